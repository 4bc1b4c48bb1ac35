/* SPDX-License-Identifier: Apache-2.0 */
/* Ended operations of a back end that are to be passed to the loop thread.
 *
 * Locking: `lock` protects `ended` and `n_ended`. Any thread adds; the loop thread takes. One write
 * to the eventfd announces all operations that end before the loop takes them. */
#pragma once

#include <pthread.h>
#include <stdint.h>

#include "base/list.h"

struct completions {
        pthread_mutex_t lock;
        struct list_node ended; /* struct backend_op */
        uint64_t n_ended;
        int fd; /* an eventfd, readable while `ended` is not empty */
};

/* Returns 0 or -errno. At completions_fini() no operation may be in flight, since it would end into
 * freed memory. */
int completions_init(struct completions *c);
void completions_fini(struct completions *c);
/* Calls complete() for at most `most` ended operations, and returns their number. */
unsigned completions_reap(struct completions *c, unsigned most);
