/* SPDX-License-Identifier: Apache-2.0 */
/* A piece of work that may block, on a thread of its own, and what follows on the loop thread. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "remote/backend.h"

struct job {
        void (*run)(struct job *j);  /* on the thread */
        void (*done)(struct job *j); /* on the loop thread, when the thread has ended */
        bool running;                /* the thread may touch the job and what belongs to it */

        struct backend_op end; /* comes back through the completions */
        pthread_t thread;
};

/* run() and done() are set, and it is not running. The thread gets this name, of 15 characters at
 * most, and no signal. 0, -errno. */
int job_start(struct job *j, struct completions *completions, const char *name);
/* It is left to the exit of the process. */
void job_abandon(struct job *j);
