/* SPDX-License-Identifier: Apache-2.0 */
#include "host-blocks.h"

#include <errno.h>
#include <stdlib.h>

#include "checked.h"

struct host_block {
        uint32_t block, host_plus_one; /* 0 in host_plus_one: the entry is empty */
        uint32_t number;
};

int host_blocks_init(struct host_blocks *b, uint32_t hosts)
{
        enum { FIRST_SLOTS = 1024 };

        *b = (struct host_blocks){ .n_slots = FIRST_SLOTS };
        b->table = calloc(b->n_slots, sizeof(*b->table));
        b->count = calloc(MAX(hosts, 1U), sizeof(*b->count));
        return b->table && b->count ? 0 : -ENOMEM;
}

void host_blocks_fini(struct host_blocks *b)
{
        free(b->table);
        free(b->count);
        *b = (struct host_blocks){ 0 };
}

/* Returns the entry of a block, or the empty entry at which the block would be inserted. */
static struct host_block *find(const struct host_blocks *b, uint32_t host, uint32_t block)
{
        uint64_t hash = ((uint64_t)host << 32 | block) * UINT64_C(0x9e3779b97f4a7c15);
        size_t slot = (hash ^ hash >> 29) & (b->n_slots - 1);

        while (b->table[slot].host_plus_one != 0 &&
               (b->table[slot].host_plus_one != host + 1 || b->table[slot].block != block))
                slot = (slot + 1) & (b->n_slots - 1);
        return &b->table[slot];
}

static int grow(struct host_blocks *b)
{
        struct host_blocks larger = *b;

        larger.n_slots = 2 * b->n_slots;
        larger.table = calloc(larger.n_slots, sizeof(*larger.table));
        if (!larger.table)
                return -ENOMEM;
        for (size_t i = 0; i < b->n_slots; i++) {
                const struct host_block *old = &b->table[i];

                if (old->host_plus_one != 0)
                        *find(&larger, old->host_plus_one - 1, old->block) = *old;
        }
        free(b->table);
        *b = larger;
        return 0;
}

int host_blocks_number(struct host_blocks *b, uint32_t host, uint32_t block, uint32_t *ret)
{
        struct host_block *entry = find(b, host, block);

        if (entry->host_plus_one == 0) {
                if (2 * (b->n + 1) > b->n_slots) {
                        if (grow(b) < 0)
                                return -ENOMEM;
                        entry = find(b, host, block);
                }
                *entry = (struct host_block){ block, host + 1, b->count[host]++ };
                b->n++;
        }
        *ret = entry->number;
        return 0;
}
