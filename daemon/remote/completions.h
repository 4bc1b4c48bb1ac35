/* SPDX-License-Identifier: Apache-2.0 */
/* Ended operations of a back end on their way to the loop thread.
 *
 * Locking: `lock` protects `ended`. Any thread adds; the loop thread takes. One write to the
 * eventfd for all that end before the loop looks. */
#pragma once

#include <pthread.h>
#include <stdint.h>

#include "base/list.h"

struct completions {
        pthread_mutex_t lock;
        struct list_node ended; /* struct backend_op */
        uint64_t n_ended;
        int fd; /* eventfd, readable while there are some */
};

/* 0, -errno. Nothing may be in flight at the end, or its memory outlives the process's use of it.
 */
int completions_init(struct completions *c);
void completions_fini(struct completions *c);
/* Calls complete() of all that have ended, of at most `most`; how many. */
unsigned completions_reap(struct completions *c, unsigned most);
