/* SPDX-License-Identifier: Apache-2.0 */
/* See tails.h. Owns the blocks. One block whose pages are all free is kept for later requests. */
#include "cache/tails.h"

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

enum {
        BLOCK_PAGES = 16,
        BLOCK_BYTES = BLOCK_PAGES * TAIL_BYTES,
        ALL_FREE = (1 << BLOCK_PAGES) - 1
};

struct tail_block {
        struct list_node node; /* in tails.with_room */
        char *pages;
        uint32_t free; /* bit mask of free pages */
};

void tails_init(struct tails *t)
{
        list_init(&t->with_room);
}

static void block_free(struct tail_block *b)
{
        assert(b->free == ALL_FREE);
        list_unlink(&b->node);
        munmap(b->pages, BLOCK_BYTES);
        free(b);
}

void tails_fini(struct tails *t)
{
        while (!list_empty(&t->with_room))
                block_free(container_of(t->with_room.next, struct tail_block, node));
}

static struct tail_block *block_new(struct tails *t)
{
        struct tail_block *b = calloc(1, sizeof(*b));

        if (!b)
                return NULL;
        b->pages =
                mmap(NULL, BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (b->pages == MAP_FAILED) {
                free(b);
                return NULL;
        }
        b->free = ALL_FREE;
        list_append(&t->with_room, &b->node);
        return b;
}

int tail_take(struct tails *t, struct tail *ret)
{
        struct tail_block *b = list_empty(&t->with_room)
                                       ? block_new(t)
                                       : container_of(t->with_room.next, struct tail_block, node);
        unsigned i;

        if (!b)
                return -ENOMEM;
        i = (unsigned)__builtin_ctz(b->free);
        b->free &= b->free - 1;
        if (b->free == 0)
                list_unlink(&b->node);
        *ret = (struct tail){ .page = b->pages + i * TAIL_BYTES, .block = b };
        return 0;
}

void tail_release(struct tails *t, struct tail *tail)
{
        struct tail_block *b = tail->block;

        if (!tail->page)
                return;
        b->free |= 1u << ((unsigned)((char *)tail->page - b->pages) / TAIL_BYTES);
        *tail = (struct tail){ 0 };
        /* A nearly full block is used first, so that other blocks become wholly free. */
        if (list_empty(&b->node))
                list_prepend(&t->with_room, &b->node);
        if (b->free == ALL_FREE && t->with_room.next->next != &t->with_room)
                block_free(b);
}
