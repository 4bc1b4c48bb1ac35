/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon of our own, for a run for which none answers: on a store in a temporary directory, or in
 * a directory that people named, in which it stays.
 *
 * It ends with us, however we end. embedded_stop() stops it and removes what was temporary. When we
 * are killed, the kernel tells the daemon (PR_SET_PDEATHSIG), and a third process, the caretaker,
 * sees our end of a pipe close, waits for the daemon's end and removes the directory. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct embedded_options {
        const char *directory; /* where the store is kept; NULL: temporary */
        uint64_t limit_bytes, pool_bytes, entries;
        const char *io_backend;      /* as the daemon's io.backend */
        const char *const *settings; /* further ones, "KEY=VALUE"; NULL ends them; may be NULL */
        const atomic_int *interrupted;
};

struct embedded {
        pid_t pid, caretaker;
        int lock_fd;
        int alive_fd;        /* the caretaker waits for its end */
        char directory[256]; /* temporary: socket, log, and the store unless it is kept */
        char socket[300];
        char store[512];
};

/* EXIT_OK; otherwise it has been said why, and nothing is left. */
int embedded_start(struct embedded *e, const struct embedded_options *options);
/* Has it ended by itself, or does within that time? Says so, and the end of its log. */
bool embedded_died(struct embedded *e, unsigned wait_ms);
void embedded_stop(struct embedded *e);
/* What a kept store occupies there. */
uint64_t embedded_kept_bytes(const char *directory);
/* Where temporary stores go: $TMPDIR, /var/tmp or /tmp. */
const char *embedded_parent(void);
