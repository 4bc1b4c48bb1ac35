/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a blocking function on a thread of its own, and then another on the loop thread. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "remote/backend.h"

struct job {
        void (*run)(struct job *j);  /* called on the thread */
        void (*done)(struct job *j); /* called on the loop thread after the thread has ended */
        bool running;                /* the thread may access the job and its data */

        struct backend_op end; /* passes through the completions when run() returns */
        pthread_t thread;
};

/* Starts a job that is not running and has run() and done() set. The thread has all signals blocked
 * and the given name, of at most 15 characters. Returns 0 or -errno. */
int job_start(struct job *j, struct completions *completions, const char *name);
/* Leaves a running job to the exit of the process. */
void job_abandon(struct job *j);
