/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/lease.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/pages.h"
#include "cleanup.h"
#include "memory/pool.h"

struct entry {
        uint32_t chunk;
        uint32_t generation;
        uint32_t prev, next; /* of its holder's, or of the free ones (next) */
        struct lease_holder *holder; /* NULL: free */
        uint64_t bytes;
};

struct leases {
        struct pool *pool;
        struct lease_limits limits;
        struct entry *entries; /* mmap: touched as it fills */
        uint32_t max, high_water, free;
        uint64_t count, bytes;
};

DEFINE_CLEANUP(struct leases *, leases_free);

int leases_new(struct leases **ret, struct pool *pool, uint32_t max,
               const struct lease_limits *limits)
{
        _cleanup_(leases_freep) struct leases *l = calloc(1, sizeof(*l));

        if (!l)
                return -ENOMEM;
        l->entries = pages_map((uint64_t)max * sizeof(*l->entries));
        if (!l->entries)
                return -ENOMEM;
        l->pool = pool;
        l->max = max;
        l->limits = *limits;
        l->free = LEASE_NONE;
        *ret = TAKE_PTR(l);
        return 0;
}

struct leases *leases_free(struct leases *l)
{
        if (!l)
                return NULL;
        if (l->entries)
                munmap(l->entries, (size_t)l->max * sizeof(*l->entries));
        free(l);
        return NULL;
}

void leases_set_limits(struct leases *l, const struct lease_limits *limits)
{
        l->limits = *limits;
}

void lease_holder_init(struct lease_holder *h)
{
        *h = (struct lease_holder){ .first = LEASE_NONE };
}

int lease_acquire(struct leases *l, struct lease_holder *h, uint32_t chunk, struct lease *ret)
{
        uint64_t bytes = pool_slot_bytes(l->pool, chunk);
        struct pool_stats pool;
        struct entry *e;
        uint32_t id;

        if (h->count >= l->limits.count || bytes > l->limits.bytes ||
            h->bytes > l->limits.bytes - bytes)
                return LEASE_QUOTA;
        pool_get_stats(l->pool, &pool);
        if (pool_chunk(l->pool, chunk)->leases == 0 &&
            (bytes > l->limits.bytes_all || pool.leased_bytes > l->limits.bytes_all - bytes))
                return LEASE_FULL;
        if (l->free != LEASE_NONE) {
                id = l->free;
                l->free = l->entries[id].next;
        } else if (l->high_water < l->max) {
                id = l->high_water++;
        } else {
                return LEASE_FULL;
        }

        e = &l->entries[id];
        if (++e->generation == 0)
                e->generation = 1;
        e->chunk = chunk;
        e->holder = h;
        e->bytes = bytes;
        e->prev = LEASE_NONE;
        e->next = h->first;
        if (h->first != LEASE_NONE)
                l->entries[h->first].prev = id;
        h->first = id;
        h->count++;
        h->bytes += bytes;
        l->count++;
        l->bytes += bytes;
        pool_lease(l->pool, chunk);
        *ret = (struct lease){ .id = id, .generation = e->generation };
        return 0;
}

static void entry_release(struct leases *l, uint32_t id)
{
        struct entry *e = &l->entries[id];
        struct lease_holder *h = e->holder;

        if (e->prev != LEASE_NONE)
                l->entries[e->prev].next = e->next;
        else
                h->first = e->next;
        if (e->next != LEASE_NONE)
                l->entries[e->next].prev = e->prev;
        h->count--;
        h->bytes -= e->bytes;
        l->count--;
        l->bytes -= e->bytes;
        e->holder = NULL;
        e->next = l->free;
        l->free = id;
        pool_unlease(l->pool, e->chunk);
}

int lease_release(struct leases *l, struct lease_holder *h, struct lease lease)
{
        if (lease.id >= l->high_water || l->entries[lease.id].holder != h ||
            l->entries[lease.id].generation != lease.generation)
                return LEASE_STALE;
        entry_release(l, lease.id);
        return 0;
}

void lease_release_all(struct leases *l, struct lease_holder *h)
{
        while (h->first != LEASE_NONE)
                entry_release(l, h->first);
}

uint64_t leases_count(const struct leases *l)
{
        return l->count;
}

uint64_t leases_bytes(const struct leases *l)
{
        return l->bytes;
}
