/* SPDX-License-Identifier: Apache-2.0 */
/* Implements completions.h. The eventfd is written when the first operation is added and read when
 * the last one is taken, both under the lock, so that it is readable exactly while there are ended
 * operations. */
#include "remote/completions.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "cleanup.h"
#include "remote/backend.h"

int completions_init(struct completions *c)
{
        int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

        if (fd < 0)
                return -errno;
        *c = (struct completions){ .fd = fd };
        pthread_mutex_init(&c->lock, NULL);
        list_init(&c->ended);
        return 0;
}

void completions_fini(struct completions *c)
{
        closep(&c->fd);
        pthread_mutex_destroy(&c->lock);
}

void backend_op_end(struct backend_op *op, int result)
{
        struct completions *c = op->completions;
        uint64_t one = 1;
        ssize_t n = 0;

        op->result = result;
        op->ended_ns = clock_mono_ns();
        pthread_mutex_lock(&c->lock);
        if (list_empty(&c->ended))
                n = write(c->fd, &one, sizeof(one));
        list_append(&c->ended, &op->node);
        c->n_ended++;
        pthread_mutex_unlock(&c->lock);
        (void)n; /* the write fails only if the counter is full; the eventfd is readable then */
}

unsigned completions_reap(struct completions *c, unsigned most)
{
        struct list_node taken = LIST_INIT(taken), *node;
        unsigned taken_n = 0;
        uint64_t count;
        ssize_t n = 0;

        pthread_mutex_lock(&c->lock);
        while (taken_n < most && (node = list_pop(&c->ended))) {
                list_append(&taken, node);
                taken_n++;
        }
        if (list_empty(&c->ended))
                n = read(c->fd, &count, sizeof(count));
        pthread_mutex_unlock(&c->lock);
        (void)n;
        while ((node = list_pop(&taken))) {
                struct backend_op *op = container_of(node, struct backend_op, node);

                op->complete(op);
        }
        return taken_n;
}
