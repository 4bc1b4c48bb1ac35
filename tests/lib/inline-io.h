/* SPDX-License-Identifier: Apache-2.0 */
/* The I/O layer of io.h without threads: submitted requests are performed in kio_reap(), on its
 * caller's thread, so that runs are fast and repeatable. The plan replaces the nondeterminism of a
 * device; or a backend does, if kio_start_with() gets one, which is never waited for and must have
 * room for all requests.
 *
 * Linked instead of daemon/io/io.c: defines all of io.h except the checksums. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct inline_io_plan {
        unsigned at_once;  /* maximum number of operations that a kio_reap() completes; 0: all */
        bool newest_first; /* requests complete in reverse order; calls keep theirs */
        unsigned fail_in;  /* the operation on a file, counted from now, that fails; 0: none */
        unsigned fail_ops; /* kinds that are counted, 1u << KIO_READ | ...; 0: any on a file */
        int error;
};

/* Sets the plan. By default, every operation succeeds at once. */
void inline_io_set(const struct inline_io_plan *plan);
