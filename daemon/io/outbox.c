/* SPDX-License-Identifier: Apache-2.0 */
/* The way back to the loop. Any thread of a kio publishes, the loop takes. It owns the list's lock
 * and an eventfd.
 *
 * One notification covers everything until the loop has come for it: the eventfd's count is a token
 * of which there is one at most. Who turns `notified` on writes it, once; the loop turns it off,
 * and only when it has read the token. In between, while the loop works on what it took, nobody
 * writes.
 *
 * No wake-up is lost: who finds `notified` on has put its requests into the list before it looked,
 * and the loop looks into the list once more after it has turned it off. And none is left over, for
 * which the loop would turn in circles: a token that the loop does not find yet is still being
 * written, so it leaves `notified` as it is and reads the token when it arrives.
 *
 * Failures: there are none after the start. */
#include "outbox.h"

#include <errno.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cleanup.h"

int outbox_init(struct outbox *o)
{
        int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

        if (fd < 0)
                return -errno;
        *o = (struct outbox){ .fd = fd };
        pthread_mutex_init(&o->lock, NULL);
        list_init(&o->done);
        return 0;
}

void outbox_fini(struct outbox *o)
{
        while (list_pop(&o->done))
                ;
        closep(&o->fd);
        pthread_mutex_destroy(&o->lock);
}

void outbox_publish(struct outbox *o, struct list_node *done)
{
        uint64_t one = 1;
        ssize_t n;

        if (list_empty(done))
                return;
        pthread_mutex_lock(&o->lock);
        list_splice(&o->done, done);
        pthread_mutex_unlock(&o->lock);
        if (atomic_exchange(&o->notified, true))
                return;
        /* The count was 0, so there is room. */
        n = write(o->fd, &one, sizeof(one));
        (void)n;
}

bool outbox_begin(struct outbox *o)
{
        uint64_t count;

        /* Most often there is one: the loop comes because the descriptor is readable. But it may
         * come at any time, and that shall cost it no system call. */
        return atomic_load(&o->notified) && read(o->fd, &count, sizeof(count)) == sizeof(count);
}

void outbox_take(struct outbox *o, struct list_node *ret)
{
        pthread_mutex_lock(&o->lock);
        list_splice(ret, &o->done);
        pthread_mutex_unlock(&o->lock);
}

void outbox_end(struct outbox *o, bool begun)
{
        if (begun)
                atomic_store(&o->notified, false);
}
