/* SPDX-License-Identifier: Apache-2.0 */
/* Runs operations that have no asynchronous form, one after another, off the rings: creating a
 * data file can take as long as a hundred writes.
 *
 * The loop fills the inbox. The thread takes the next request by class, runs it without the
 * lock, and publishes the result at once, since the next call may take long. It sleeps only on
 * the condition variable.
 *
 * A failed call has its error as result. A call that hangs delays only the other calls of its
 * volume; kio_oldest() reports its age. */
#include "io/blocking-call.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/thread.h"
#include "io/classes.h"
#include "io/counter.h"

static void blocking_call_run(struct blocking_call *c, struct kio_request *req)
{
        struct list_node done = LIST_INIT(done);
        int r;

        counter_set(&c->call_ns, clock_mono_ns());
        counter_add(&c->begun, 1);
        r = req->call(req);
        req->result = r;
        req->done_ns = clock_mono_ns();
        counter_add(r < 0 ? &c->errors : &c->ops, 1);
        counter_add(&c->finished, 1);
        counter_set(&c->call_ns, 0);
        req->state = KIO_DONE;
        list_append(&done, &req->node);
        completion_queue_publish(c->completion_queue, &done);
}

static void *blocking_call_thread(void *userdata)
{
        struct blocking_call *c = userdata;

        pthread_mutex_lock(&c->lock);
        for (uint32_t turn = 0;; turn++) {
                struct list_node *n;

                while (classes_are_empty(c->inbox) && !c->stopping) {
                        c->sleeping = true;
                        pthread_cond_wait(&c->cond, &c->lock);
                }
                c->sleeping = false;
                if (classes_are_empty(c->inbox))
                        break;
                n = list_pop(&c->inbox[classes_pick(c->inbox, 0, turn)]);
                pthread_mutex_unlock(&c->lock);
                blocking_call_run(c, container_of(n, struct kio_request, node));
                pthread_mutex_lock(&c->lock);
        }
        pthread_mutex_unlock(&c->lock);
        return NULL;
}

int blocking_call_init(struct blocking_call *c, unsigned volume,
                       struct completion_queue *completion_queue)
{
        char name[16];
        int r;

        *c = (struct blocking_call){ .completion_queue = completion_queue };
        classes_init(c->inbox);
        pthread_mutex_init(&c->lock, NULL);
        pthread_cond_init(&c->cond, NULL);
        snprintf(name, sizeof(name), "kio-call-%u", volume % 1000);
        r = thread_start(&c->thread, name, blocking_call_thread, c);
        if (r < 0) {
                pthread_cond_destroy(&c->cond);
                pthread_mutex_destroy(&c->lock);
                return r;
        }
        c->has_thread = true;
        return 0;
}

void blocking_call_fini(struct blocking_call *c)
{
        if (!c->has_thread)
                return;
        pthread_mutex_lock(&c->lock);
        c->stopping = true;
        pthread_cond_signal(&c->cond);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->thread, NULL);
        pthread_cond_destroy(&c->cond);
        pthread_mutex_destroy(&c->lock);
        c->has_thread = false;
}

void blocking_call_submit(struct blocking_call *c, struct kio_request *req)
{
        bool wake;

        pthread_mutex_lock(&c->lock);
        list_append(&c->inbox[req->class], &req->node);
        wake = c->sleeping;
        c->sleeping = false;
        pthread_mutex_unlock(&c->lock);
        c->submitted++;
        if (wake) {
                c->wakeups++;
                pthread_cond_signal(&c->cond);
        }
}

bool blocking_call_is_alive(struct blocking_call *c)
{
        uint64_t finished = counter_get(&c->finished);
        bool advanced = finished != c->seen_finished;

        c->seen_finished = finished;
        return advanced || counter_get(&c->call_ns) != 0 || finished == c->submitted;
}
