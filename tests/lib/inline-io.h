/* SPDX-License-Identifier: Apache-2.0 */
/* The I/O layer of io.h without threads: what is submitted is done in kio_reap(), on the thread
 * that calls it, so that a run costs no hand-over and repeats itself. What a device may do by
 * chance, the plan decides; or a backend, if kio_start_with() gets one: that one is never waited
 * for, and must have room for all that is submitted.
 *
 * Linked instead of daemon/io/io.c: it defines all of io.h but the checksums. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct inline_io_plan {
        unsigned at_once;  /* operations that one kio_reap() completes, at most; 0: all */
        bool newest_first; /* no request waits for another; calls keep their order */
        unsigned fail_in;  /* so many operations on files from now, one fails; 0: none does */
        unsigned fail_ops; /* of these only, 1u << KIO_READ | ...; 0: of any that touch a file */
        int error;
};

/* From now on; until it is called, everything succeeds and is done at once. */
void inline_io_set(const struct inline_io_plan *plan);
