/* SPDX-License-Identifier: Apache-2.0 */
/* A line on a terminal, " purging: 12 s", while a call blocks that reports no progress. A thread
 * draws it from the first full second on, and takes no signals. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "progress.h"

struct waiting {
        struct progress progress;
        const char *doing; /* has at most 40 letters */
        pthread_mutex_t lock;
        pthread_cond_t ended;
        pthread_t thread;
        bool runs, is_over; /* is_over: under the lock */
};

/* Begins to wait. Without a thread no line is shown. */
void waiting_begin(struct waiting *w, const char *doing);
/* Ends the thread and clears the line. Call it before anything else is printed. */
void waiting_end(struct waiting *w);
