/* SPDX-License-Identifier: Apache-2.0 */
/* Implements buffers.h. A cached buffer stores its list node and size in its own first bytes. */
#include "remote/buffers.h"

#include <errno.h>

#include "base/pages.h"
#include "base/sanitizers.h"
#include "checked.h"

struct kept {
        struct list_node node;
        size_t size;
};

enum { PAGE = 4096, TRIES = 16 };
#define IDLE_NS UINT64_C(30000000000)

void buffers_init(struct buffers *s, uint64_t bound)
{
        *s = (struct buffers){ .bound = bound };
        list_init(&s->free);
}

static struct buffer take(struct buffers *s, struct kept *k)
{
        struct buffer ret = { .bytes = (uint8_t *)k, .size = k->size };

        list_unlink(&k->node);
        s->kept -= k->size;
        SANITIZERS_ALLOW(ret.bytes, ret.size);
        return ret;
}

/* Unmaps the cached buffer that was released first; returns false if there is none. */
static bool unmap_one(struct buffers *s)
{
        struct buffer b;

        if (list_empty(&s->free))
                return false;
        b = take(s, container_of(s->free.prev, struct kept, node));
        pages_unmap(b.bytes, b.size);
        return true;
}

void buffers_fini(struct buffers *s)
{
        while (unmap_one(s))
                ;
}

static bool find(struct buffers *s, size_t size, struct buffer *ret)
{
        unsigned tries = TRIES;

        list_for_each (&s->free, node) {
                struct kept *k = container_of(node, struct kept, node);

                if (k->size >= size && k->size / 2 <= size) {
                        *ret = take(s, k);
                        return true;
                }
                if (--tries == 0)
                        break;
        }
        return false;
}

int buffers_acquire(struct buffers *s, size_t size, struct buffer *ret)
{
        struct buffer b = { .size = round_up(size, PAGE) };

        if (s->used > 0 && s->used + b.size > s->bound)
                return -EAGAIN;
        if (!find(s, b.size, &b)) {
                while (s->used + s->kept + b.size > s->bound && unmap_one(s))
                        ;
                b.bytes = pages_map(b.size);
                if (!b.bytes)
                        return -ENOMEM;
        }
        s->used += b.size;
        *ret = b;
        return 0;
}

void buffers_release(struct buffers *s, struct buffer buffer, uint64_t now_ns)
{
        struct kept *k = (void *)buffer.bytes;

        s->used -= buffer.size;
        s->released_ns = now_ns;
        if (s->used + s->kept + buffer.size > s->bound) {
                pages_unmap(buffer.bytes, buffer.size);
                return;
        }
        k->size = buffer.size;
        list_prepend(&s->free, &k->node);
        s->kept += buffer.size;
        SANITIZERS_FORBID(buffer.bytes + sizeof(*k), buffer.size - sizeof(*k));
}

void buffers_trim(struct buffers *s, uint64_t now_ns)
{
        if (s->kept > 0 && s->used == 0 && now_ns > s->released_ns + IDLE_NS)
                (void)unmap_one(s);
}
