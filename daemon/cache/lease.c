/* SPDX-License-Identifier: Apache-2.0 */
/* See lease.h. Owns the table of leases, a state of each user (fair/user.h), and a record for each
 * pair of user and chunk: a chunk that a user leases several times counts once against its share.
 * Both tables are mapped for the greatest number of leases, and their memory is touched as it is
 * used, so that a lease allocates nothing. The record freed last is reused first, so that it is
 * still in the CPU cache. The list of a chunk's pairs begins in the chunk's record, which a lease
 * reads anyway.
 *
 * Failures: LEASE_FULL at the limits that lease_acquire() in lease.h lists; LEASE_STALE for a lease
 * that was released already or belongs to another connection. */
#include "cache/lease.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/pages-ahead.h"
#include "base/pages.h"
#include "checked.h"
#include "cleanup.h"
#include "cache/pool.h"
#include "fair/user.h"

/* The leases of a user. Each connection refers to the user. */
struct lease_user {
        struct fair_state state;
        uint32_t count;
        uint64_t bytes; /* each chunk counts once */
};

/* A chunk that a user leases at least once. Pairs are numbered from 1; 0 means none. */
struct pair {
        struct lease_user *user;
        uint32_t count;
        uint32_t next; /* the chunk's next pair, of another user; or the next free pair */
};

struct entry {
        uint32_t chunk;
        uint32_t generation;
        uint32_t pair;
        uint32_t prev, next;         /* in the holder's list; `next` also in the free list */
        struct lease_holder *holder; /* NULL if free */
        uint64_t bytes;
};

struct leases {
        struct pool *pool;
        struct lease_limits limits;
        struct entry *entries; /* mapped; memory is touched as it is used */
        uint32_t max, high_water, free;
        uint64_t count;
        struct pair *pairs; /* mapped; memory is touched as it is used */
        uint32_t pairs_high_water, free_pair;
        struct pages_ahead entries_ahead, pairs_ahead;
        struct fair_room users; /* struct lease_user */
};

DEFINE_CLEANUP(struct leases *, leases_free);

int leases_new(struct leases **ret, struct pool *pool, uint32_t max,
               const struct lease_limits *limits)
{
        _cleanup_(leases_freep) struct leases *l = calloc(1, sizeof(*l));

        if (!l)
                return -ENOMEM;
        l->max = max;
        fair_room_init(&l->users, sizeof(struct lease_user), NULL, NULL);
        l->entries = pages_map((uint64_t)max * sizeof(*l->entries));
        l->pairs = pages_map((uint64_t)max * sizeof(*l->pairs));
        if (!l->entries || !l->pairs)
                return -ENOMEM;
        pages_ahead_init(&l->entries_ahead, l->entries, (uint64_t)max * sizeof(*l->entries));
        pages_ahead_init(&l->pairs_ahead, l->pairs, (uint64_t)max * sizeof(*l->pairs));
        l->pool = pool;
        l->limits = *limits;
        l->free = LEASE_NONE;
        *ret = TAKE_PTR(l);
        return 0;
}

struct leases *leases_free(struct leases *l)
{
        if (!l)
                return NULL;
        fair_room_fini(&l->users);
        pages_ahead_fini(&l->entries_ahead);
        pages_ahead_fini(&l->pairs_ahead);
        if (l->entries)
                munmap(l->entries, (size_t)l->max * sizeof(*l->entries));
        if (l->pairs)
                munmap(l->pairs, (size_t)l->max * sizeof(*l->pairs));
        free(l);
        return NULL;
}

uint64_t leases_bytes_most(const struct leases *l)
{
        return l->limits.bytes_all;
}

void leases_set_limits(struct leases *l, const struct lease_limits *limits)
{
        l->limits = *limits;
}

/* --- users, and the chunks that each leases --- */

int lease_holder_init(struct leases *l, struct lease_holder *h, uid_t uid, bool admin)
{
        struct lease_user *user = (struct lease_user *)fair_state_get(&l->users, uid);

        if (!user)
                return -ENOMEM;
        *h = (struct lease_holder){ .first = LEASE_NONE, .user = user, .admin = admin };
        return 0;
}

void lease_holder_fini(struct lease_holder *h)
{
        if (!h->user)
                return;
        assert(h->count == 0);
        fair_user_unref(TAKE_PTR(h->user)->state.user);
}

/* Returns the number of the pair, or 0 if the user does not lease the chunk. */
static uint32_t pair_find(const struct leases *l, const struct lease_user *user,
                          const struct pool_chunk *chunk)
{
        uint32_t number = chunk->users;

        while (number > 0 && l->pairs[number - 1].user != user)
                number = l->pairs[number - 1].next;
        return number;
}

/* Adds a pair and returns its number. There is always room, because there are no more pairs than
 * leases. */
static uint32_t pair_add(struct leases *l, struct lease_user *user, struct pool_chunk *chunk)
{
        uint32_t number = l->free_pair;

        if (number > 0)
                l->free_pair = l->pairs[number - 1].next;
        else
                number = ++l->pairs_high_water;
        pages_ahead_use(&l->pairs_ahead, (uint64_t)number * sizeof(*l->pairs));
        l->pairs[number - 1] = (struct pair){ .user = user, .next = chunk->users };
        chunk->users = number;
        return number;
}

static void pair_remove(struct leases *l, uint32_t number, struct pool_chunk *chunk)
{
        struct pair *pair = &l->pairs[number - 1];
        uint32_t *at = &chunk->users;

        while (*at != number)
                at = &l->pairs[*at - 1].next;
        *at = pair->next;
        pair->next = l->free_pair;
        l->free_pair = number;
}

/* Returns whether `used` is at most LEASE_SHARE times `left`. */
static bool within_share(uint64_t used, uint64_t left)
{
        return used / LEASE_SHARE + (used % LEASE_SHARE > 0) <= left;
}

/* --- leases --- */

int lease_acquire(struct leases *l, struct lease_holder *h, uint32_t chunk, struct lease *ret)
{
        uint64_t bytes = pool_slot_bytes(l->pool, chunk), of_all, left;
        struct pool_chunk *pc = pool_chunk(l->pool, chunk);
        bool first = pc->leases == 0;
        struct lease_user *user = h->user;
        struct entry *e;
        uint32_t id, pair;

        of_all = pool_leased_bytes(l->pool) + (first ? bytes : 0);
        if (first && of_all > l->limits.bytes_all)
                return LEASE_FULL;
        pair = pair_find(l, user, pc);
        left = l->limits.bytes_all - MIN(of_all, l->limits.bytes_all);
        if (l->limits.shared && !h->admin &&
            ((pair == 0 && !within_share(user->bytes + bytes, left)) || l->count == l->max ||
             !within_share(user->count + UINT64_C(1), l->max - l->count - 1)))
                return LEASE_FULL;
        if (!h->admin &&
            !pool_make_leasable(l->pool, chunk, user->state.user->uid, user->count == 0))
                return LEASE_FULL;
        if (l->free != LEASE_NONE) {
                id = l->free;
                l->free = l->entries[id].next;
        } else if (l->high_water < l->max) {
                id = l->high_water++;
                pages_ahead_use(&l->entries_ahead, (uint64_t)l->high_water * sizeof(*l->entries));
        } else {
                return LEASE_FULL;
        }

        e = &l->entries[id];
        if (++e->generation == 0)
                e->generation = 1;
        e->chunk = chunk;
        e->holder = h;
        e->bytes = bytes;
        if (pair == 0) {
                pair = pair_add(l, user, pc);
                user->bytes += bytes;
        }
        e->pair = pair;
        l->pairs[pair - 1].count++;
        user->count++;
        e->prev = LEASE_NONE;
        e->next = h->first;
        if (h->first != LEASE_NONE)
                l->entries[h->first].prev = id;
        h->first = id;
        h->count++;
        h->bytes += bytes;
        l->count++;
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
        h->user->count--;
        if (--l->pairs[e->pair - 1].count == 0) {
                h->user->bytes -= e->bytes;
                pair_remove(l, e->pair, pool_chunk(l->pool, e->chunk));
        }
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

uint32_t lease_release_some(struct leases *l, struct lease_holder *h, uint32_t most)
{
        uint32_t n = 0;

        for (; h->first != LEASE_NONE && n < most; n++)
                entry_release(l, h->first);
        return n;
}

void lease_walk(const struct leases *l, const struct lease_holder *h,
                void (*each)(void *userdata, uint32_t chunk), void *userdata)
{
        for (uint32_t id = h->first; id != LEASE_NONE; id = l->entries[id].next)
                each(userdata, l->entries[id].chunk);
}
