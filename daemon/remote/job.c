/* SPDX-License-Identifier: Apache-2.0 */
/* Implements job.h. The end of a job passes through the completions of the back end, so that the
 * loop thread waits on one descriptor. Only starting the thread can fail. */
#include "remote/job.h"

#include "base/list.h"
#include "base/thread.h"

static void on_end(struct backend_op *op)
{
        struct job *j = container_of(op, struct job, end);

        pthread_join(j->thread, NULL); /* returns at once, because the thread has ended run() */
        j->running = false;
        j->done(j);
}

static void *run(void *userdata)
{
        struct job *j = userdata;

        j->run(j);
        backend_op_end(&j->end, 0);
        return NULL;
}

int job_start(struct job *j, struct completions *completions, const char *name)
{
        int r;

        j->end = (struct backend_op){ .complete = on_end, .completions = completions };
        r = thread_start(&j->thread, name, run, j);
        j->running = r == 0;
        return r;
}

void job_abandon(struct job *j)
{
        if (j->running)
                pthread_detach(j->thread);
}
