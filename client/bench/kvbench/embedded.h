/* SPDX-License-Identifier: Apache-2.0 */
/* A private daemon, for a run that finds no running daemon. The store is in a temporary directory,
 * or in a directory that the user named and that is kept.
 *
 * The daemon ends with this process in any case. embedded_stop() stops it and removes temporary
 * files. If this process is killed, the kernel ends the daemon (PR_SET_PDEATHSIG). A third
 * process, the caretaker, sees this process's end of a pipe close, waits for the daemon's end
 * and removes the directory. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct embedded_options {
        const char *directory; /* directory of the store; NULL: temporary */
        uint64_t limit_bytes, pool_bytes, entries;
        const char *io_backend;      /* value of the daemon's io.backend */
        const char *const *settings; /* further settings, "KEY=VALUE", ended by NULL; may be NULL */
        const atomic_int *interrupted;
};

struct embedded {
        pid_t pid, caretaker;
        int lock_fd;
        int alive_fd;        /* write end of a pipe; the caretaker waits until it is closed */
        char directory[256]; /* temporary directory: socket, log, and the store unless
                                options.directory was given */
        char socket[300];
        char store[512];
};

/* Starts a daemon and waits until it answers. Returns EXIT_OK; EXIT_INTERRUPTED; 1 after reporting
 * a failure. After a failure neither the process nor temporary files are left. */
int embedded_start(struct embedded *e, const struct embedded_options *options);
/* Returns whether the daemon has ended, or ends within `wait_ms`, and reports it with the end of
 * its log. Returns false if there is no daemon, or its end has been reported already. */
bool embedded_died(struct embedded *e, unsigned wait_ms);
void embedded_stop(struct embedded *e);
/* Returns the bytes that a kept store occupies in the directory. */
uint64_t embedded_kept_bytes(const char *directory);
/* Returns the directory of temporary stores: $TMPDIR if it is an absolute path of fewer than 60
 * bytes, else /var/tmp if it is writable, else /tmp. */
const char *embedded_parent(void);
