/* SPDX-License-Identifier: Apache-2.0 */
/* The completion queue: any thread of a kio publishes requests, and the loop takes them. It owns
 * the list, its lock and an eventfd.
 *
 * One notification covers everything until the loop has served it. A thread that finds
 * `notified` off turns it on and writes the eventfd; a thread that finds it on does not write.
 * The loop reads the eventfd first and turns `notified` off last, in the same critical section
 * in which it takes the rest of the list. A request that is published later therefore finds it
 * off, and one that was published earlier has been taken: no wake-up is lost, whenever the write
 * itself happens. A write that comes after its request was taken makes the descriptor readable
 * once without need.
 *
 * After initialization nothing can fail. */
#include "io/completion-queue.h"

#include <errno.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cleanup.h"

int completion_queue_init(struct completion_queue *o)
{
        int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

        if (fd < 0)
                return -errno;
        *o = (struct completion_queue){ .fd = fd };
        pthread_mutex_init(&o->lock, NULL);
        list_init(&o->done);
        return 0;
}

void completion_queue_fini(struct completion_queue *o)
{
        while (list_pop(&o->done))
                ;
        closep(&o->fd);
        pthread_mutex_destroy(&o->lock);
}

/* Makes the descriptor readable. The write can fail only if the counter is full, in which case it
 * is readable already. */
void completion_queue_wake(struct completion_queue *o)
{
        uint64_t one = 1;
        ssize_t n = write(o->fd, &one, sizeof(one));

        (void)n;
}

void completion_queue_publish(struct completion_queue *o, struct list_node *done)
{
        bool notified;

        if (list_empty(done))
                return;
        pthread_mutex_lock(&o->lock);
        list_splice(&o->done, done);
        notified = o->notified;
        o->notified = true;
        pthread_mutex_unlock(&o->lock);
        if (!notified)
                completion_queue_wake(o);
}

void completion_queue_begin(struct completion_queue *o)
{
        uint64_t count;
        ssize_t n;

        n = read(o->fd, &count, sizeof(count));
        (void)n;
}

void completion_queue_take(struct completion_queue *o, struct list_node *ret)
{
        pthread_mutex_lock(&o->lock);
        list_splice(ret, &o->done);
        pthread_mutex_unlock(&o->lock);
}

void completion_queue_end(struct completion_queue *o, struct list_node *ret)
{
        pthread_mutex_lock(&o->lock);
        list_splice(ret, &o->done);
        o->notified = false;
        pthread_mutex_unlock(&o->lock);
}
