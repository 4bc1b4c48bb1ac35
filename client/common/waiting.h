/* SPDX-License-Identifier: Apache-2.0 */
/* Shows a line such as " purging: 12 s" on a terminal while a call that reports no progress
 * blocks. A thread draws the line from the first full second on; signals are blocked in that
 * thread. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "progress.h"

struct waiting {
        struct progress progress;
        const char *doing; /* text before the time, such as "purging"; cut to 40 bytes */
        pthread_mutex_t lock;
        pthread_cond_t ended;
        pthread_t thread;
        bool runs, is_over; /* runs: the thread exists; is_over: the call has returned, protected by
                               the lock */
};

/* Starts the thread that draws the line. If the thread cannot be started, no line is shown. */
void waiting_begin(struct waiting *w, const char *doing);
/* Ends the thread and clears the line. Call it before anything else is printed. */
void waiting_end(struct waiting *w);
