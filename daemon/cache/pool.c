/* SPDX-License-Identifier: Apache-2.0 */
/* The pool's table and its records; pool-room.c finds a slot for a chunk, pool-uses.c passes uses
 * and hints to the eviction policy, pool-slabs.c keeps slabs without leased chunks, pool-purge.c
 * drops purged chunks, and pool-keep.c takes over the chunks of an earlier process.
 *
 * The pool owns the mapping, the slab allocator over it, the eviction order and the records. A
 * record's number is its slot's owner and its item in the policy. There are as many records as 4
 * KiB slots; their memory is touched only as it is used. Failure: POOL_FULL, and the caller waits
 * or answers BUSY. */
#include "cache/pool-internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/pages.h"
#include "checked.h"
#include "cleanup.h"
#include "warm.h"

enum {
        SLAB_STEP = 2 << 20,
        SLAB_MAX = 64 << 20,
};

static_assert(SLAB_MAX_SLABS <= UINT16_MAX && SLAB_MAX / SLAB_GRAIN <= UINT16_MAX,
              "a chunk's record has 16 bits for each of slab and slot");

DEFINE_CLEANUP(struct pool *, pool_free);

uint64_t pool_whole_bytes(uint64_t bytes, uint64_t *ret_slab_bytes)
{
        uint64_t slab =
                MAX(MIN(round_down(bytes / 8, SLAB_STEP), (uint64_t)SLAB_MAX), (uint64_t)SLAB_STEP);

        *ret_slab_bytes = slab;
        return bytes / slab > SLAB_MAX_SLABS ? 0 : round_down(bytes, slab);
}

int pool_new(struct pool **ret, uint64_t bytes, const char *policy)
{
        uint64_t slab_bytes, whole = pool_whole_bytes(bytes, &slab_bytes);
        struct backing backing;
        int r;

        if (whole == 0)
                return -EINVAL;
        r = backing_open(&backing, "kvcache-pool", whole);
        if (r < 0)
                return r;
        r = pool_new_over(ret, &backing, policy);
        if (r < 0)
                backing_close(&backing);
        return r;
}

int pool_new_over(struct pool **ret, const struct backing *backing, const char *policy)
{
        _cleanup_(pool_freep) struct pool *p = calloc(1, sizeof(*p));
        uint64_t n_buckets = 1024, bytes = backing->bytes;
        int r;

        if (!p)
                return -ENOMEM;
        p->backing = (struct backing){ .fd = -1, .writable_fd = -1 };
        list_init(&p->watches);
        list_init(&p->purges);
        for (unsigned i = 0; i < POOL_PURGE_BUCKETS; i++)
                list_init(&p->marks[i]);
        if (bytes == 0 || pool_whole_bytes(bytes, &p->slab_bytes) != bytes)
                return -EINVAL;
        p->n_slabs = (uint32_t)(bytes / p->slab_bytes);
        p->reserved_slabs = pool_reserved_slabs(p->n_slabs);
        p->slab_state = calloc(p->n_slabs, sizeof(*p->slab_state));
        if (!p->slab_state)
                return -ENOMEM;
        r = slabs_new(&p->slabs, p->n_slabs, p->slab_bytes);
        if (r < 0)
                return r;

        p->max_chunks = (uint32_t)MIN(bytes / SLAB_GRAIN, (uint64_t)INT32_MAX - 1);
        r = evict_new(&p->evict, policy, p->max_chunks, SLAB_MAX_CLASSES);
        if (r < 0)
                return r;
        while (n_buckets < p->max_chunks)
                n_buckets *= 2;
        p->bucket_mask = (uint32_t)(n_buckets - 1);
        /* Bucket values are record numbers plus one, so that untouched memory means empty. */
        p->chunks = pages_map((size_t)p->max_chunks * sizeof(*p->chunks));
        p->buckets = pages_map(n_buckets * sizeof(*p->buckets));
        if (!p->chunks || !p->buckets)
                return -ENOMEM;
        pages_ahead_init(&p->chunks_ahead, p->chunks, (uint64_t)p->max_chunks * sizeof(*p->chunks));
        p->free_chunk = p->first_held = p->emptying = p->hiding = POOL_NONE;
        p->stats.bytes = bytes;
        p->passes_left = POOL_MAX_PASSED;
        p->moves_left = POOL_MAX_MOVED;
        p->searches_left = POOL_MAX_SEARCHED;
        p->empties_left = p->hides_left = POOL_EMPTIED_AT_ONCE;
        p->held_scan = 1;
        p->backing = *backing;
        *ret = TAKE_PTR(p);
        return 0;
}

struct pool *pool_free(struct pool *p)
{
        if (!p)
                return NULL;
        pages_ahead_fini(&p->chunks_ahead);
        if (p->chunks)
                munmap(p->chunks, (size_t)p->max_chunks * sizeof(*p->chunks));
        if (p->buckets)
                munmap(p->buckets, ((size_t)p->bucket_mask + 1) * sizeof(*p->buckets));
        evict_free(p->evict);
        slabs_free(p->slabs);
        free(p->slab_state);
        backing_close(&p->backing);
        free(p);
        return NULL;
}

int pool_set_policy(struct pool *p, const char *policy)
{
        return evict_switch(&p->evict, policy);
}

bool pool_remembers(const struct pool *p, uint64_t hash)
{
        return evict_remembers(p->evict, evict_id(hash));
}

void pool_admit_all(struct pool *p, bool all)
{
        evict_admit_all(p->evict, all);
}

uint8_t pool_remembered_gap(const struct pool *p, uint64_t hash, struct evict_return *ret)
{
        return evict_remembered_gap(p->evict, evict_id(hash), ret);
}

const struct backing *pool_backing(const struct pool *p)
{
        return &p->backing;
}

int pool_fd(const struct pool *p)
{
        return p->backing.fd;
}

void *pool_base(const struct pool *p)
{
        return p->backing.base;
}

uint64_t pool_bytes(const struct pool *p)
{
        return p->backing.bytes;
}

uint64_t pool_slab_bytes(const struct pool *p)
{
        return p->slab_bytes;
}

int pool_next_slab(const struct pool *p)
{
        return p->open_slabs < p->n_slabs ? (int)p->open_slabs : -1;
}

void pool_use_huge_pages(struct pool *p)
{
        p->huge_pages = true;
}

bool pool_uses_huge_pages(const struct pool *p)
{
        return p->huge_pages;
}

int pool_populate(const struct pool *p, uint64_t offset, uint64_t bytes, uint64_t *ret_huge)
{
        *ret_huge = 0;
        return p->huge_pages ? backing_populate_huge(&p->backing, offset, bytes, ret_huge)
                             : backing_populate(&p->backing, offset, bytes);
}

int pool_open_slab(struct pool *p, uint64_t huge_bytes)
{
        int r = p->open_slabs < slabs_added(p->slabs) ? 0 : slabs_add(p->slabs, p->slab_bytes);

        if (r < 0)
                return r;
        p->open_slabs++;
        p->stats.populated_bytes += p->slab_bytes;
        p->stats.huge_bytes += huge_bytes;
        return 0;
}

void pool_declare(struct pool *p, uint64_t bytes)
{
        if (bytes > 0 && bytes <= p->slab_bytes)
                (void)slabs_declare_class(
                        p->slabs,
                        bytes); /* if the class table is full, chunks use the next larger class */
}

/* --- the table of chunks --- */

struct pool_chunk *pool_chunk(const struct pool *p, uint32_t chunk)
{
        assert(chunk < p->high_water);
        return &p->chunks[chunk];
}

uint64_t pool_offset(const struct pool *p, uint32_t chunk)
{
        const struct pool_chunk *c = pool_chunk(p, chunk);

        return c->slab * p->slab_bytes + slabs_offset(p->slabs, pool_slot_of(c));
}

void *pool_at(const struct pool *p, uint32_t chunk)
{
        return (char *)p->backing.base + pool_offset(p, chunk);
}

uint64_t pool_slot_bytes(const struct pool *p, uint32_t chunk)
{
        return slabs_slot_bytes(p->slabs, pool_slot_of(pool_chunk(p, chunk)));
}

uint32_t pool_table_find(const struct pool *p, uint32_t namespace_id, const struct key *key,
                         uint64_t hash)
{
        uint32_t i = p->buckets[hash & p->bucket_mask];

        while (i != 0) {
                const struct pool_chunk *c = &p->chunks[i - 1];

                if (c->hash == hash && c->namespace_id == namespace_id && key_equal(&c->key, key))
                        return i - 1;
                i = c->next;
        }
        return POOL_NONE;
}

uint32_t pool_find(const struct pool *p, uint32_t namespace_id, const struct key *key,
                   uint64_t hash)
{
        uint32_t chunk = pool_find_any(p, namespace_id, key, hash);

        return chunk != POOL_NONE && !(p->chunks[chunk].flags & POOL_UNVERIFIED) ? chunk
                                                                                 : POOL_NONE;
}

void pool_table_insert(struct pool *p, uint32_t chunk)
{
        uint32_t *bucket = &p->buckets[p->chunks[chunk].hash & p->bucket_mask];

        p->chunks[chunk].next = *bucket;
        *bucket = chunk + 1;
        pool_floor_add(p, &p->chunks[chunk]);
        ++*pool_namespace_chunks(p, p->chunks[chunk].namespace_id);
        p->stats.chunks++;
        p->stats.payload_bytes += p->chunks[chunk].length;
}

void pool_table_remove(struct pool *p, uint32_t chunk)
{
        uint32_t *at = &p->buckets[p->chunks[chunk].hash & p->bucket_mask];

        while (*at != chunk + 1) {
                assert(*at != 0);
                at = &p->chunks[*at - 1].next;
        }
        *at = p->chunks[chunk].next;
        pool_floor_remove(p, &p->chunks[chunk]);
        --*pool_namespace_chunks(p, p->chunks[chunk].namespace_id);
        p->stats.chunks--;
        p->stats.payload_bytes -= p->chunks[chunk].length;
}

/* Frees slot and record of a chunk that is evicted, or dropped, unpinned and held by no client. */
void pool_free_chunk(struct pool *p, uint32_t chunk)
{
        struct pool_chunk *c = &p->chunks[chunk];

        assert(c->pins == 0 && list_empty(&c->waiters));
        pool_set_prefetched(p, chunk, false);
        p->stats.used_bytes -= slabs_slot_bytes(p->slabs, pool_slot_of(c));
        slabs_release(p->slabs, pool_slot_of(c));
        c->generation++;
        c->flags = POOL_DROPPED;
        pool_set_state(c, POOL_FREE);
        c->next = p->free_chunk;
        p->free_chunk = chunk;
}

void pool_notify(const struct pool *p, uint32_t chunk, bool is_there)
{
        list_for_each (&p->watches, n) {
                const struct pool_watch *watch = container_of(n, struct pool_watch, node);

                if (watch->changed)
                        watch->changed(watch->userdata, chunk, is_there);
        }
        if (p->guard)
                p->guard->changed(p->guard->userdata, chunk, is_there);
}

void pool_notify_evicted(const struct pool *p, uint32_t chunk)
{
        list_for_each (&p->watches, n) {
                const struct pool_watch *watch = container_of(n, struct pool_watch, node);

                if (watch->evicted)
                        watch->evicted(watch->userdata, chunk);
        }
}

void pool_leave(struct pool *p, uint32_t chunk)
{
        struct pool_chunk *c = &p->chunks[chunk];

        if (!(c->flags & POOL_UNVERIFIED)) {
                pool_notify(p, chunk, false);
                return;
        }
        c->flags &= ~(uint32_t)POOL_UNVERIFIED;
        p->stats.unverified--;
}

/* --- acquiring, filling and dropping chunks --- */

uint32_t pool_take_record(struct pool *p)
{
        uint32_t chunk = p->free_chunk;

        /* At least one record is free: each slot in use has one, and there are as many records as 4
         * KiB slots. */
        if (chunk != POOL_NONE) {
                p->free_chunk = p->chunks[chunk].next;
                return chunk;
        }
        assert(p->high_water < p->max_chunks);
        p->high_water++;
        pages_ahead_use(&p->chunks_ahead, (uint64_t)p->high_water * sizeof(*p->chunks));
        return p->high_water - 1;
}

/* Finds a slot; with `to_lease` first in a slab that has leased chunks, while few slabs are
 * without. If there is none, frees dropped chunks that clients no longer hold, and tries again.
 * Returns whether a slot was found. */
static bool find_slot(struct pool *p, unsigned class, bool to_lease, struct slab_slot *ret)
{
        p->met_held = false;
        if (to_lease && pool_is_short_of_slabs(p)) {
                pool_scan_holds(p);
                if (pool_acquire_in_leased_slab(p, class, ret))
                        return true;
        }
        if (pool_acquire_slot(p, class, ret))
                return true;
        p->held_up |= p->met_held || p->n_held > 0 || !evict_lot_is_empty(p->evict, POOL_LOT_HELD);
        if (p->n_held == 0)
                return false;
        (void)pool_release_held(p);
        return pool_acquire_slot(p, class, ret);
}

static int acquire(struct pool *p, uint32_t namespace_id, const struct key *key, uint64_t hash,
                   uint32_t length, uint32_t use, bool to_lease, uint32_t *ret)
{
        int class = length == 0 ? -E2BIG : slabs_class_for(p->slabs, length);
        struct slab_slot slot;
        struct pool_chunk *c;
        uint32_t chunk;

        if (class < 0)
                return POOL_TOO_LARGE;
        chunk = list_empty(&p->purges) && p->stats.unverified == 0
                        ? POOL_NONE
                        : pool_table_find(p, namespace_id, key, hash);
        if (chunk != POOL_NONE) {
                assert(pool_is_dead(p, &p->chunks[chunk]) ||
                       p->chunks[chunk].flags & POOL_UNVERIFIED);
                pool_drop(p, chunk);
        }
        pool_floor_begin(p, namespace_id);
        if (!find_slot(p, (unsigned)class, to_lease, &slot))
                return POOL_FULL;
        chunk = pool_take_record(p);
        slabs_set_owner(p->slabs, slot, chunk);

        c = &p->chunks[chunk];
        *c = (struct pool_chunk){
                .key = *key,
                .hash = hash,
                .namespace_id = namespace_id,
                .length = length,
                .slab = (uint16_t)slot.slab,
                .slot = (uint16_t)slot.slot,
                .generation = c->generation,
                .born = p->n_purges,
                .pins = 1,
                .state = POOL_ACQUIRED,
                .use = use,
        };
        list_init(&c->waiters);
        pool_table_insert(p, chunk);
        p->stats.used_bytes += slabs_slot_bytes(p->slabs, slot);
        pool_count_pinned(p, c, true);
        *ret = chunk;
        return 0;
}

int pool_acquire(struct pool *p, uint32_t namespace_id, const struct key *key, uint64_t hash,
                 uint32_t length, uint32_t use, uint32_t *ret)
{
        return acquire(p, namespace_id, key, hash, length, use, false, ret);
}

int pool_acquire_to_lease(struct pool *p, uint32_t namespace_id, const struct key *key,
                          uint64_t hash, uint32_t length, uint32_t use, uint32_t *ret)
{
        return acquire(p, namespace_id, key, hash, length, use, true, ret);
}

void pool_set_state(struct pool_chunk *c, enum pool_state state)
{
        static const uint8_t before[] = {
                [POOL_FREE] = 1 << POOL_RESIDENT | 1 << POOL_ACQUIRED,
                [POOL_RESIDENT] = 1 << POOL_WRITING | 1 << POOL_ACQUIRED | 1 << POOL_READING,
                [POOL_WRITING] = 1 << POOL_RESIDENT | 1 << POOL_COPYING,
                [POOL_ACQUIRED] = 1 << POOL_COPYING | 1 << POOL_READING,
                [POOL_COPYING] = 1 << POOL_ACQUIRED,
                [POOL_READING] = 1 << POOL_ACQUIRED,
        };

        assert(before[state] & 1 << c->state);
        c->state = state;
}

void pool_commit(struct pool *p, uint32_t chunk, uint32_t crc)
{
        struct pool_chunk *c = pool_chunk(p, chunk);

        if (pool_is_dead(p, c))
                pool_drop(p, chunk);
        pool_set_state(c, c->state == POOL_COPYING ? POOL_WRITING : POOL_RESIDENT);
        c->crc = crc;
        if (c->flags & POOL_DROPPED)
                return;
        evict_insert_known(p->evict, chunk, (uint32_t)slabs_slab_class(p->slabs, c->slab),
                           c->length, evict_id(c->hash), c->use, (enum evict_place)c->place);
        evict_set_gap(p->evict, chunk, c->gap);
        evict_set_cost(p->evict, chunk, c->cost);
        pool_notify(p, chunk, true);
}

void pool_drop(struct pool *p, uint32_t chunk)
{
        struct pool_chunk *c = pool_chunk(p, chunk);

        if (c->flags & POOL_DROPPED)
                return;
        c->flags |= POOL_DROPPED;
        pool_table_remove(p, chunk);
        if (!pool_is_filling(c)) {
                evict_remove(p->evict, chunk);
                pool_leave(p, chunk);
        }
        if (c->pins == 0 && !pool_keep_for_clients(p, chunk))
                pool_free_chunk(p, chunk);
}

void pool_pin(struct pool *p, uint32_t chunk)
{
        struct pool_chunk *c = pool_chunk(p, chunk);

        if (c->pins++ == 0)
                pool_count_pinned(p, c, true);
}

bool pool_unpin(struct pool *p, uint32_t chunk)
{
        struct pool_chunk *c = pool_chunk(p, chunk);

        assert(c->pins > 0);
        if (--c->pins > 0)
                return false;
        pool_count_pinned(p, c, false);
        if (c->flags & POOL_ASIDE)
                pool_end_aside(p, chunk);
        if ((c->flags & POOL_DROPPED) && !pool_keep_for_clients(p, chunk))
                pool_free_chunk(p, chunk);
        return true;
}

void pool_lease(struct pool *p, uint32_t chunk)
{
        struct pool_chunk *c = pool_chunk(p, chunk);

        pool_pin(p, chunk);
        if (c->leases++ == 0)
                pool_count_leased(p, c, true);
}

bool pool_unlease(struct pool *p, uint32_t chunk)
{
        struct pool_chunk *c = pool_chunk(p, chunk);

        assert(c->leases > 0);
        if (--c->leases == 0)
                pool_count_leased(p, c, false);
        return pool_unpin(p, chunk);
}

uint64_t pool_leased_bytes(const struct pool *p)
{
        return p->stats.leased_bytes;
}

void pool_warm(const struct pool *p, uint64_t hash, unsigned step)
{
        const uint32_t *bucket = &p->buckets[hash & p->bucket_mask];

        if (step == 0) {
                warm(bucket);
        } else if (*bucket != 0) {
                const struct pool_chunk *c = &p->chunks[*bucket - 1];

                warm(c);
                warm(&c->pins, 1);
        }
}

uint32_t pool_drop_namespace(struct pool *p, uint32_t namespace_id)
{
        const uint32_t *left = pool_namespace_chunks(p, namespace_id);
        uint32_t i = 0;

        for (; *left > 0 && i < p->high_water; i++)
                if (p->chunks[i].namespace_id == namespace_id)
                        pool_drop(p, i);
        return i;
}

void pool_add_watch(struct pool *p, struct pool_watch *watch)
{
        list_append(&p->watches, &watch->node);
}

void pool_remove_watch(struct pool_watch *watch)
{
        list_unlink(&watch->node);
}

bool pool_walk(const struct pool *p, uint32_t *chunk, unsigned max_records,
               void (*each)(void *userdata, uint32_t namespace_id, const struct key *key,
                            uint32_t length),
               void *userdata)
{
        for (; *chunk < p->high_water && max_records > 0; max_records--, ++*chunk) {
                const struct pool_chunk *c = &p->chunks[*chunk];

                if (pool_is_resident(p, *chunk))
                        each(userdata, c->namespace_id, &c->key, c->length);
        }
        return *chunk < p->high_water;
}

bool pool_is_resident(const struct pool *p, uint32_t chunk)
{
        return chunk < p->high_water &&
               !(p->chunks[chunk].flags & (POOL_DROPPED | POOL_UNVERIFIED)) &&
               !pool_is_filling(&p->chunks[chunk]);
}

uint32_t pool_max_chunks(const struct pool *p)
{
        return p->max_chunks;
}

uint32_t pool_records(const struct pool *p)
{
        return p->high_water;
}

void pool_get_stats(const struct pool *p, struct pool_stats *ret)
{
        *ret = p->stats;
        evict_get_stats(p->evict, &ret->evict);
}

const struct histogram *pool_evicted_ages(const struct pool *p)
{
        return &p->evicted_ages;
}

void pool_note_time(struct pool *p, uint64_t now_ns)
{
        evict_note_time(p->evict, now_ns);
        p->passes_left = POOL_MAX_PASSED;
        p->moves_left = POOL_MAX_MOVED;
        p->searches_left = POOL_MAX_SEARCHED;
        pool_empty_more(p);
        pool_private_more(p);
}

const struct evict *pool_eviction(const struct pool *p)
{
        return p->evict;
}

bool pool_restore_learned(struct pool *p, const char *policy, const struct evict_learned *learned,
                          const struct evict_record *remembered, uint64_t n)
{
        if (strcmp(policy, evict_policy(p->evict)) != 0 || !evict_restore(p->evict, learned))
                return false;
        for (uint64_t i = 0; i < n; i++)
                evict_restore_remembered(p->evict, &remembered[i]);
        return true;
}
