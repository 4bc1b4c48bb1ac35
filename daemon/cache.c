/* SPDX-License-Identifier: Apache-2.0 */
/* The two tiers as one. Runs on the loop thread; owns who waits for what, and the writes behind
 * accepted puts.
 *
 * Put: find the key in either tier (first put wins) -> a slot of the pool -> a worker copies and
 * computes the CRC over the copy -> visible, `accepted` -> the store writes payload, then table ->
 * `written`.
 * Get: in the pool, at once -> else a slot of the pool -> the store reads and verifies -> visible.
 * Whoever finds a key on its way in waits on that chunk, and is looked at again when it has
 * arrived.
 *
 * Failures: a copy that faults stores nothing. What stands at a device that hangs is given up by
 * those who wait, but keeps its place in the pool. A write that fails leaves an accepted chunk in
 * the pool only, and takes one that nobody was told of out again. A read that fails is a miss for
 * all who waited. */
#include "cache.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "checked.h"
#include "cleanup.h"

enum { KIND_GET, KIND_PUT };

enum {
        /* In a wait for room the first of a line goes first, so that a large one is not starved by
         * small ones. But one that has found none for so long, since what it needs is leased, does
         * not hold up who comes behind it any more. */
        PATIENCE_MS = 100,
        FAILED_TRIES = 16, /* of a turn */
        LOOKS = 1024,      /* of a turn, at those who wait */
};
#define PATIENCE_NS (PATIENCE_MS * UINT64_C(1000000))

enum waiting {
        WAITING_NOT,
        WAITING_ROOM,  /* in wait_gets or wait_puts */
        WAITING_FILL,  /* on a chunk, until its bytes are there */
        WAITING_WRITE, /* on a chunk, until the store has it */
        WAITING_SYNC,
};

struct cache {
        struct cache_params params;
        struct list_node wait_gets, wait_puts; /* for room, in order */
        struct list_node retry;                /* writes that the store could not take yet */
        struct list_node dropping; /* writes whose chunk was evicted meanwhile, in that order */
        struct list_node settling;             /* who waits for those, in order */
        uint64_t evictions;                    /* of chunks being written, so far */
        uint64_t next_deadline_ns;             /* of those who wait for room; 0: nobody */
        uint64_t look_again_ns;                /* when somebody's patience ends; 0: nobody's */
        uint64_t unwritten_limit;
        uint64_t pending;                      /* requests and writes */
        bool kicked, retry_now, stopping;
        bool lost_eviction;     /* of a chunk whose write hangs, since the last who asked */
        uint64_t retry_pending; /* of the store, when it was tried last */
        struct cache_stats stats;
};

/* A chunk on its way from a client to the store. Its pin keeps the pool's bytes until they are
 * written. */
struct write {
        struct kio_request copy;
        struct store_put store;
        struct list_node node; /* in cache.retry */
        struct cache *cache;
        struct cache_request *req; /* who is still to be answered; NULL: nobody */
        uint32_t chunk;
        uint64_t slot_bytes;
        bool told;  /* somebody was answered "accepted": it stays in the pool if its write fails */
        uint64_t drop; /* evicted while it was being written: the number of that eviction; 0: it was
                          was not */
        bool abandoned; /* its device hangs: nobody waits for it, and it is not counted */
        struct list_node dropping;
};

/* A chunk on its way from the store into the pool. */
struct fill {
        struct store_get store;
        struct cache *cache;
        uint32_t chunk;
};

/* A put that finds its key written and wants it durable. */
struct sync {
        struct store_put store;
        struct cache *cache;
        struct cache_request *req;
};

DEFINE_CLEANUP(struct cache *, cache_free);

int cache_new(struct cache **ret, const struct cache_params *params)
{
        struct cache *c = calloc(1, sizeof(*c));

        if (!c)
                return -ENOMEM;
        c->params = *params;
        list_init(&c->wait_gets);
        list_init(&c->wait_puts);
        list_init(&c->retry);
        list_init(&c->dropping);
        list_init(&c->settling);
        c->unwritten_limit = pool_bytes(params->pool) / 4;
        *ret = c;
        return 0;
}

struct cache *cache_free(struct cache *c)
{
        if (!c)
                return NULL;
        assert(c->pending == 0);
        free(c);
        return NULL;
}

/* --- where a chunk is in the store: packed into the pool's tag while nothing writes it --- */

static uint64_t pack_ref(struct store_ref ref)
{
        return (uint64_t)ref.index << 32 | ref.generation;
}

static struct store_ref unpack_ref(uint64_t tag)
{
        return (struct store_ref){ .index = (uint32_t)(tag >> 32), .generation = (uint32_t)tag };
}

static struct write *write_of(const struct pool_chunk *pc)
{
        return pc->flags & POOL_WRITING ? (struct write *)(uintptr_t)pc->tag : NULL;
}

static struct cache_place place_of(const struct cache *c, uint32_t chunk)
{
        const struct pool_chunk *pc = pool_chunk(c->params.pool, chunk);
        const struct write *w = write_of(pc);

        return (struct cache_place){
                .chunk = chunk,
                .generation = pc->generation,
                .ref = w ? w->store.ref : unpack_ref(pc->tag),
        };
}

/* --- answers --- */

static void finish(struct cache *c, struct cache_request *req, enum cache_status status)
{
        req->status = status;
        req->waiting = WAITING_NOT;
        if (req->kind == KIND_GET) {
                if (status == CACHE_OK && req->tier == CACHE_MEMORY)
                        c->stats.hits_memory++;
                else if (status == CACHE_OK)
                        c->stats.hits_disk++;
                else if (status == CACHE_MISS)
                        c->stats.misses++;
        } else if (status == CACHE_OK || status == CACHE_NOT_DURABLE) {
                c->stats.puts_by_ack[req->ack]++;
        } else if (status == CACHE_EXISTS) {
                c->stats.puts_existing++;
        }
        if (status == CACHE_BUSY)
                c->stats.busy++;
        c->pending--;
        req->complete(req);
}

/* With the chunk, pinned for the caller. */
static void finish_with(struct cache *c, struct cache_request *req, enum cache_status status,
                        uint32_t chunk)
{
        req->chunk = chunk;
        req->place = place_of(c, chunk);
        pool_pin(c->params.pool, chunk);
        finish(c, req, status);
}

static void wait_on(struct cache *c, struct cache_request *req, uint32_t chunk,
                    enum waiting waiting)
{
        req->waiting = waiting;
        list_append(&pool_chunk(c->params.pool, chunk)->waiters, &req->node);
}

static void wait_for_room(struct cache *c, struct cache_request *req)
{
        if (c->stopping || req->nowait) {
                finish(c, req, c->stopping ? CACHE_CANCELLED : CACHE_BUSY);
                return;
        }
        c->stats.waited++;
        req->waiting = WAITING_ROOM;
        req->waits_since_ns = clock_mono_ns();
        if (c->look_again_ns == 0)
                c->look_again_ns = req->waits_since_ns + PATIENCE_NS;
        list_append(req->kind == KIND_GET ? &c->wait_gets : &c->wait_puts, &req->node);
        if (c->next_deadline_ns == 0 || req->deadline_ns < c->next_deadline_ns)
                c->next_deadline_ns = req->deadline_ns;
}

static bool over_budget(const struct cache *c, const struct cache_request *req)
{
        uint64_t unwritten = c->stats.unwritten_bytes;

        return unwritten >= c->unwritten_limit ||
               (req->length > c->unwritten_limit - unwritten && unwritten > 0);
}

/* Must it let others go first, who have been waiting for room longer? */
static bool others_first(const struct cache *c, const struct cache_request *req)
{
        const struct list_node *list = req->kind == KIND_GET ? &c->wait_gets : &c->wait_puts;

        /* It is its turn: see let_in(). */
        if (req->waiting == WAITING_ROOM || list_empty(list))
                return false;
        if ((c->kicked && !req->nowait) ||
            (req->kind == KIND_PUT &&
             over_budget(c, container_of(list->next, struct cache_request, node))))
                return true;
        return clock_mono_ns() <
               container_of(list->prev, struct cache_request, node)->waits_since_ns + PATIENCE_NS;
}

static void settle_waiters(struct cache *c, uint32_t chunk, enum waiting which,
                           enum cache_status status);

void cache_unpin(struct cache *c, uint32_t chunk)
{
        if (pool_unpin(c->params.pool, chunk))
                cache_kick(c);
}

void cache_kick(struct cache *c)
{
        c->kicked = true;
}

/* --- put --- */

static bool write_submit(struct write *w);

/* Hands those on to the store whose evictions have all reached it. */
static void settle_evictions(struct cache *c)
{
        while (!list_empty(&c->settling)) {
                struct cache_settle *settle =
                        container_of(c->settling.next, struct cache_settle, node);

                if (!list_empty(&c->dropping) &&
                    container_of(c->dropping.next, struct write, dropping)->drop <=
                            settle->evictions)
                        return;
                list_unlink(&settle->node);
                store_settle_drops(c->params.store, &settle->store);
        }
}

static void on_settled(struct store_put *store)
{
        struct cache_settle *settle = container_of(store, struct cache_settle, store);

        settle->result = settle->cache->lost_eviction ? STORE_BYPASSED : store->result;
        settle->cache->lost_eviction = false;
        settle->cache->pending--;
        settle->complete(settle);
}

void cache_settle_evictions(struct cache *c, struct cache_settle *settle)
{
        c->pending++;
        settle->cache = c;
        settle->evictions = c->evictions;
        settle->store.complete = on_settled;
        list_init(&settle->node);
        list_append(&c->settling, &settle->node);
        settle_evictions(c);
}

static void write_end(struct write *w)
{
        struct cache *c = w->cache;

        list_unlink(&w->dropping);
        settle_evictions(c);
        if (!w->abandoned) {
                c->stats.unwritten_bytes -= w->slot_bytes;
                c->stats.unwritten_chunks--;
        }
        c->pending--;
        cache_unpin(c, w->chunk);
        cache_kick(c);
        free(w);
}

/* The store has it, or never will. */
static void write_done(struct write *w, int result)
{
        struct cache *c = w->cache;
        struct pool_chunk *pc = pool_chunk(c->params.pool, w->chunk);
        struct cache_request *req = TAKE_PTR(w->req);
        bool written = result == 0 || result == STORE_NOT_DURABLE;
        bool gone = pc->flags & POOL_DROPPED;
        enum cache_status status = CACHE_FAILED;

        if (w->abandoned) { /* all is said */
                if (written && (w->drop || gone))
                        (void)store_drop(c->params.store, pc->namespace_id, &pc->key, pc->hash);
                write_end(w);
                return;
        }
        if (written && w->drop)
                (void)store_drop(c->params.store, pc->namespace_id, &pc->key, pc->hash);

        pc->flags &= ~(uint32_t)POOL_WRITING;
        pc->tag = pack_ref(written && !w->drop ? w->store.ref : STORE_REF_NONE);
        if (written)
                pc->flags |= POOL_STORED;
        else if (!gone && w->told)
                c->stats.pool_only++;
        c->retry_now = true;

        /* What was purged or evicted while it was written was written and then purged, as far as
         * anyone can tell. */
        if (result == STORE_NOT_DURABLE)
                status = CACHE_NOT_DURABLE;
        else if (written || gone)
                status = CACHE_OK;
        else if (result == STORE_FULL || result == -ENOSPC || result == -EDQUOT)
                status = CACHE_NO_SPACE;
        else if (result == STORE_TOO_LARGE)
                status = CACHE_TOO_LARGE;

        if (!written && !gone && !w->told)
                pool_drop(c->params.pool, w->chunk);
        settle_waiters(c, w->chunk, WAITING_WRITE, written || gone ? CACHE_OK : status);
        if (req) {
                if (status == CACHE_OK || status == CACHE_NOT_DURABLE)
                        finish_with(c, req, status, w->chunk);
                else
                        finish(c, req, status);
        }
        write_end(w);
}

static void on_stored(struct store_put *store)
{
        struct write *w = container_of(store, struct write, store);

        write_done(w, store->result);
}

/* The device hangs: whoever waits is told that the write failed, and room is made for others; but
 * the bytes stay until it is over. */
static void on_write_abandoned(struct store_put *store)
{
        struct write *w = container_of(store, struct write, store);
        struct cache *c = w->cache;
        struct pool_chunk *pc = pool_chunk(c->params.pool, w->chunk);
        struct cache_request *req = TAKE_PTR(w->req);
        bool gone = pc->flags & POOL_DROPPED;

        w->abandoned = true;
        c->stats.unwritten_bytes -= w->slot_bytes;
        c->stats.unwritten_chunks--;
        pc->flags &= ~(uint32_t)POOL_WRITING;
        pc->tag = pack_ref(STORE_REF_NONE);
        if (w->drop)
                c->lost_eviction = true;
        list_unlink(&w->dropping);
        settle_evictions(c);
        if (!gone && w->told)
                c->stats.pool_only++;
        else if (!gone)
                pool_drop(c->params.pool, w->chunk);
        settle_waiters(c, w->chunk, WAITING_WRITE, gone ? CACHE_OK : CACHE_FAILED);
        if (req && gone)
                finish_with(c, req, CACHE_OK, w->chunk);
        else if (req)
                finish(c, req, CACHE_FAILED);
        c->retry_now = true;
        cache_kick(c);
}

/* False: the store cannot take it now, and it waits for its next try. */
static bool write_submit(struct write *w)
{
        struct cache *c = w->cache;
        const struct pool_chunk *pc = pool_chunk(c->params.pool, w->chunk);
        int r;

        if (pc->flags & POOL_DROPPED) {
                write_done(w, -ECANCELED);
                return true;
        }
        r = store_put(c->params.store, &w->store);
        if (r == 0)
                return true;
        /* EXISTS: an older put of the key, evicted meanwhile, is still on its way to being dropped.
         * Its bytes are not these, and even if it can be found already it is about to go. */
        if ((r == STORE_EXISTS || r == STORE_FULL) && store_pending(c->params.store) > 0) {
                list_append(&c->retry, &w->node);
                return false;
        }
        write_done(w, r == STORE_EXISTS ? -EIO : r);
        return true;
}

static void on_copied(struct kio_request *copy)
{
        struct write *w = container_of(copy, struct write, copy);
        struct cache *c = w->cache;
        struct pool_chunk *pc = pool_chunk(c->params.pool, w->chunk);
        struct cache_request *req = w->req;

        if (copy->result < 0) {
                w->req = NULL;
                pc->flags &= ~(uint32_t)POOL_WRITING;
                pc->tag = pack_ref(STORE_REF_NONE);
                pool_drop(c->params.pool, w->chunk);
                settle_waiters(c, w->chunk, WAITING_FILL, CACHE_FAILED);
                finish(c, req, copy->result == -EFAULT ? CACHE_FAULT : CACHE_FAILED);
                write_end(w);
                return;
        }

        pool_commit(c->params.pool, w->chunk, copy->crc);
        w->store.crc = copy->crc;
        c->stats.puts++;
        c->stats.put_bytes += pc->length;
        if (req->ack == CACHE_ACCEPTED) {
                w->told = true;
                w->req = NULL;
        } else {
                req = NULL;
        }
        /* Puts of the same key wait for the write from here on: it may end, and fail, at once. */
        list_for_each(&pc->waiters, n) {
                struct cache_request *other = container_of(n, struct cache_request, node);

                if (other->kind == KIND_PUT && other->ack == CACHE_ACCEPTED)
                        w->told = true;
                else if (other->kind == KIND_PUT)
                        other->waiting = WAITING_WRITE;
        }
        /* The answer carries the place in the store, so it comes after the store was asked; what
         * was written or failed at once is freed by then, so it is pinned meanwhile. */
        {
                uint32_t chunk = w->chunk;

                pool_pin(c->params.pool, chunk);
                (void)write_submit(w);
                settle_waiters(c, chunk, WAITING_FILL, CACHE_OK);
                if (req)
                        finish_with(c, req, CACHE_OK, chunk);
                cache_unpin(c, chunk);
        }
}

/* `chunk` is pinned for the write, which takes the pin over. */
static struct write *write_new(struct cache *c, uint32_t chunk, const struct cache_request *req)
{
        struct pool_chunk *pc = pool_chunk(c->params.pool, chunk);
        struct write *w = calloc(1, sizeof(*w));

        if (!w)
                return NULL;
        w->cache = c;
        w->chunk = chunk;
        w->slot_bytes = pool_slot_bytes(c->params.pool, chunk);
        list_init(&w->node);
        list_init(&w->dropping);
        w->store = (struct store_put){
                .namespace_id = req->namespace_id,
                .tenant = req->tenant,
                .key = req->key,
                .hash = req->hash,
                .parent = req->parent,
                .buf = pool_at(c->params.pool, chunk),
                .length = pc->length,
                .crc = pc->crc,
                .durable = req->ack == CACHE_DURABLE,
                .ref = STORE_REF_NONE,
                .complete = on_stored,
                .abandon = on_write_abandoned,
        };
        pc->flags |= POOL_WRITING;
        pc->tag = (uint64_t)(uintptr_t)w;
        c->stats.unwritten_bytes += w->slot_bytes;
        c->stats.unwritten_chunks++;
        c->pending++;
        return w;
}

static void on_synced(struct store_put *store)
{
        struct sync *s = container_of(store, struct sync, store);
        struct cache_request *req = s->req;
        struct cache *c = s->cache;
        int result = store->result;

        free(s);
        if (result == 0)
                finish(c, req, CACHE_EXISTS);
        else
                finish(c, req, result == STORE_NOT_DURABLE ? CACHE_NOT_DURABLE : CACHE_FAILED);
}

/* The store has the key. */
static void finish_existing(struct cache *c, struct cache_request *req, uint32_t chunk,
                            struct store_ref ref)
{
        struct sync *s;

        if (req->ack != CACHE_DURABLE) {
                if (chunk != POOL_NONE) {
                        finish_with(c, req, CACHE_EXISTS, chunk);
                        return;
                }
                req->place.ref = ref;
                finish(c, req, CACHE_EXISTS);
                return;
        }
        s = calloc(1, sizeof(*s));
        if (!s) {
                finish(c, req, CACHE_FAILED);
                return;
        }
        s->cache = c;
        s->req = req;
        s->store.complete = on_synced;
        req->place.ref = ref;
        req->waiting = WAITING_SYNC;
        store_sync(c->params.store, &s->store);
}

/* The key is in the pool. */
static void put_present(struct cache *c, struct cache_request *req, uint32_t chunk)
{
        struct pool_chunk *pc = pool_chunk(c->params.pool, chunk);
        struct store_ref ref;
        struct write *w;

        if (pc->flags & POOL_FILLING) {
                wait_on(c, req, chunk, WAITING_FILL);
                return;
        }
        if (req->ack == CACHE_ACCEPTED) {
                if (pc->flags & POOL_WRITING)
                        write_of(pc)->told = true;
                finish_with(c, req, CACHE_EXISTS, chunk);
                return;
        }
        if (pc->flags & POOL_WRITING) {
                wait_on(c, req, chunk, WAITING_WRITE);
                return;
        }
        if (store_find(c->params.store, req->namespace_id, &req->key, req->hash, &ref, NULL) == 0) {
                finish_existing(c, req, chunk, ref);
                return;
        }
        /* In memory only, because its write failed or because the store has evicted it: write what
         * is here. */
        pool_pin(c->params.pool, chunk);
        w = write_new(c, chunk, req);
        if (!w) {
                cache_unpin(c, chunk);
                finish(c, req, CACHE_FAILED);
                return;
        }
        w->told = true;
        wait_on(c, req, chunk, WAITING_WRITE);
        (void)write_submit(w);
}

/* False: there is no room now. */
static bool put_try(struct cache *c, struct cache_request *req)
{
        uint32_t chunk = pool_find(c->params.pool, req->namespace_id, &req->key, req->hash);
        struct store_ref ref;
        struct write *w;
        int r;

        if (chunk != POOL_NONE) {
                put_present(c, req, chunk);
                return true;
        }
        if (store_find(c->params.store, req->namespace_id, &req->key, req->hash, &ref, NULL) == 0) {
                finish_existing(c, req, POOL_NONE, ref);
                return true;
        }
        if (others_first(c, req) || over_budget(c, req))
                return false;
        r = pool_acquire(c->params.pool, req->namespace_id, &req->key, req->hash, req->length,
                         &chunk);
        if (r == POOL_FULL)
                return false;
        if (r == POOL_TOO_LARGE) {
                finish(c, req, CACHE_TOO_LARGE);
                return true;
        }
        w = write_new(c, chunk, req);
        if (!w) {
                pool_drop(c->params.pool, chunk);
                cache_unpin(c, chunk);
                finish(c, req, CACHE_FAILED);
                return true;
        }
        w->req = req;
        req->waiting = WAITING_NOT;
        w->copy = (struct kio_request){
                .op = KIO_COPY,
                .class = KIO_CLASS_PUT,
                .buf = pool_at(c->params.pool, chunk),
                .src = req->src,
                .guard_src = true,
                .length = req->length,
                .complete = on_copied,
        };
        kio_submit(c->params.io, &w->copy, chunk);
        return true;
}

static void request_init(struct cache *c, struct cache_request *req, int kind)
{
        list_init(&req->node);
        req->kind = (uint8_t)kind;
        req->waiting = WAITING_NOT;
        req->chunk = POOL_NONE;
        req->tier = 0;
        req->place = (struct cache_place){ .chunk = POOL_NONE, .ref = STORE_REF_NONE };
        req->hash = store_hash(c->params.store, req->namespace_id, &req->key);
        c->pending++;
}

void cache_put(struct cache *c, struct cache_request *req)
{
        request_init(c, req, KIND_PUT);
        if (c->stopping)
                finish(c, req, CACHE_CANCELLED);
        else if (req->length > pool_slab_bytes(c->params.pool) ||
                 req->length > store_max_chunk(c->params.store))
                finish(c, req, CACHE_TOO_LARGE);
        else if (!put_try(c, req))
                wait_for_room(c, req);
}

/* --- get --- */

static void on_read(struct store_get *store)
{
        struct fill *f = container_of(store, struct fill, store);
        struct cache *c = f->cache;
        uint32_t chunk = f->chunk;
        struct pool_chunk *pc = pool_chunk(c->params.pool, chunk);
        bool good =
                store->result == 0 && store->length == pc->length && !(pc->flags & POOL_DROPPED);

        if (good) {
                pc->flags |= POOL_STORED;
                pc->tag = pack_ref(store->ref);
                pool_commit(c->params.pool, chunk, store->crc);
        } else {
                pool_drop(c->params.pool, chunk);
        }
        settle_waiters(c, chunk, WAITING_FILL, good ? CACHE_OK : CACHE_MISS);
        cache_unpin(c, chunk);
        c->retry_now = true;
        c->pending--;
        free(f);
}

/* The device hangs: a miss for all who wait. The slot stays its until on_read(). */
static void on_read_abandoned(struct store_get *store)
{
        struct fill *f = container_of(store, struct fill, store);
        struct cache *c = f->cache;

        pool_drop(c->params.pool, f->chunk);
        settle_waiters(c, f->chunk, WAITING_FILL, CACHE_MISS);
        c->retry_now = true;
}

static bool get_try(struct cache *c, struct cache_request *req)
{
        uint32_t chunk = pool_find(c->params.pool, req->namespace_id, &req->key, req->hash);
        struct store_chunk info;
        struct fill *f;
        int r;

        if (chunk != POOL_NONE) {
                struct pool_chunk *pc = pool_chunk(c->params.pool, chunk);

                if (!(pc->flags & POOL_FILLING)) {
                        if (!req->tier)
                                req->tier = CACHE_MEMORY;
                        finish_with(c, req, CACHE_OK, chunk);
                        return true;
                }
                if (pc->flags & POOL_READING)
                        c->stats.shared_fills++;
                req->tier = pc->flags & POOL_READING ? CACHE_DISK : CACHE_MEMORY;
                wait_on(c, req, chunk, WAITING_FILL);
                return true;
        }
        if (store_find(c->params.store, req->namespace_id, &req->key, req->hash, NULL, &info) !=
            0) {
                finish(c, req, CACHE_MISS);
                return true;
        }
        req->length = info.length;
        if (others_first(c, req))
                return false;
        r = pool_acquire(c->params.pool, req->namespace_id, &req->key, req->hash, info.length,
                         &chunk);
        if (r == POOL_FULL)
                return false;
        if (r == POOL_TOO_LARGE) {
                finish(c, req, CACHE_TOO_LARGE);
                return true;
        }
        f = calloc(1, sizeof(*f));
        if (f) {
                f->cache = c;
                f->chunk = chunk;
                f->store = (struct store_get){
                        .namespace_id = req->namespace_id,
                        .key = req->key,
                        .hash = req->hash,
                        .buf = pool_at(c->params.pool, chunk),
                        .room = (uint32_t)pool_slot_bytes(c->params.pool, chunk),
                        .complete = on_read,
                        .abandon = on_read_abandoned,
                };
                r = store_get(c->params.store, &f->store);
        }
        if (!f || r != 0) {
                free(f);
                pool_drop(c->params.pool, chunk);
                cache_unpin(c, chunk);
                finish(c, req, CACHE_MISS);
                return true;
        }
        c->pending++;
        pool_chunk(c->params.pool, chunk)->flags |= POOL_READING;
        req->tier = CACHE_DISK;
        wait_on(c, req, chunk, WAITING_FILL);
        return true;
}

void cache_get(struct cache *c, struct cache_request *req)
{
        request_init(c, req, KIND_GET);
        if (!get_try(c, req))
                wait_for_room(c, req);
}

/* Looks again at those who waited on a chunk for this. CACHE_OK: it has come about. Else gets are
 * misses; puts that waited for the bytes try for themselves; those that waited for the write fail
 * as it did, with `status`. */
static void settle_waiters(struct cache *c, uint32_t chunk, enum waiting which,
                           enum cache_status status)
{
        struct pool_chunk *pc = pool_chunk(c->params.pool, chunk);
        struct list_node settled = LIST_INIT(settled);
        struct list_node *n;

        list_for_each_safe(&pc->waiters, node) {
                struct cache_request *req = container_of(node, struct cache_request, node);

                if (req->waiting != which)
                        continue;
                list_unlink(node);
                list_append(&settled, node);
        }
        while ((n = list_pop(&settled))) {
                struct cache_request *req = container_of(n, struct cache_request, node);

                req->waiting = WAITING_NOT;
                if (req->kind == KIND_GET) {
                        if (status == CACHE_OK)
                                finish_with(c, req, CACHE_OK, chunk);
                        else
                                finish(c, req, CACHE_MISS);
                } else if (status == CACHE_OK && (pc->flags & POOL_DROPPED)) {
                        finish(c, req, CACHE_EXISTS); /* the first was there, and is gone */
                } else if (status == CACHE_OK) {
                        put_present(c, req, chunk);
                } else if (which == WAITING_WRITE) {
                        finish(c, req, status);
                } else if (!put_try(c, req)) {
                        wait_for_room(c, req);
                }
        }
}

/* --- find, touch, evict, purge --- */

unsigned cache_find(struct cache *c, uint32_t namespace_id, const struct key *key,
                    struct cache_place *ret_place, struct store_chunk *ret_info)
{
        uint64_t hash = store_hash(c->params.store, namespace_id, key);
        uint32_t chunk = pool_find(c->params.pool, namespace_id, key, hash);
        struct cache_place place = { .chunk = POOL_NONE, .ref = STORE_REF_NONE };
        unsigned tiers = 0;

        if (store_find(c->params.store, namespace_id, key, hash, &place.ref, ret_info) == 0)
                tiers |= CACHE_DISK;
        if (chunk != POOL_NONE && !(pool_chunk(c->params.pool, chunk)->flags & POOL_FILLING)) {
                const struct pool_chunk *pc = pool_chunk(c->params.pool, chunk);

                if (!tiers && ret_info)
                        *ret_info = (struct store_chunk){
                                .key = *key,
                                .namespace_id = namespace_id,
                                .length = pc->length,
                                .crc = pc->crc,
                        };
                if (!tiers)
                        place = place_of(c, chunk);
                place.chunk = chunk;
                place.generation = pc->generation;
                tiers |= CACHE_MEMORY;
        }
        if (ret_place)
                *ret_place = place;
        return tiers;
}

void cache_touch(struct cache *c, const struct cache_place *place)
{
        if (place->chunk != POOL_NONE)
                pool_touch(c->params.pool, place->chunk, place->generation);
        store_touch(c->params.store, place->ref);
}

enum cache_status cache_evict(struct cache *c, uint32_t namespace_id, const struct key *key,
                              bool memory_only)
{
        uint64_t hash = store_hash(c->params.store, namespace_id, key);
        uint32_t chunk = pool_find(c->params.pool, namespace_id, key, hash);
        bool found = chunk != POOL_NONE;

        if (memory_only) {
                if (!found)
                        return store_find(c->params.store, namespace_id, key, hash, NULL, NULL) == 0
                                       ? CACHE_OK
                                       : CACHE_MISS;
                if (pool_chunk(c->params.pool, chunk)->flags & (POOL_FILLING | POOL_WRITING))
                        return CACHE_BUSY;
                pool_drop(c->params.pool, chunk);
                cache_kick(c);
                return CACHE_OK;
        }
        if (found) {
                struct write *w = write_of(pool_chunk(c->params.pool, chunk));

                if (w) {
                        w->drop = ++c->evictions;
                        list_append(&c->dropping, &w->dropping);
                }
                pool_drop(c->params.pool, chunk);
                cache_kick(c);
        }
        if (store_drop(c->params.store, namespace_id, key, hash) == 0)
                found = true;
        return found ? CACHE_OK : CACHE_MISS;
}

struct purge_context {
        struct cache *cache;
        const struct store_purge *req;
};

static void purge_chunk(void *userdata, uint32_t chunk)
{
        struct purge_context *p = userdata;
        const struct pool_chunk *pc = pool_chunk(p->cache->params.pool, chunk);

        if (p->req->all || pc->namespace_id == p->req->namespace_id)
                pool_drop(p->cache->params.pool, chunk);
}

void cache_forget(struct cache *c)
{
        const struct store_purge all = { .all = true };

        pool_for_each(c->params.pool, purge_chunk, &(struct purge_context){ c, &all });
        cache_kick(c);
}

void cache_purge(struct cache *c, struct store_purge *req)
{
        pool_for_each(c->params.pool, purge_chunk, &(struct purge_context){ c, req });
        cache_kick(c);
        store_purge(c->params.store, req);
}

/* --- waiting --- */

/* `owner`: NULL is everybody. */
static void cancel_in(struct cache *c, struct list_node *list, const void *owner)
{
        struct list_node gone = LIST_INIT(gone);
        struct list_node *n;

        list_for_each_safe(list, node) {
                if (owner && container_of(node, struct cache_request, node)->owner != owner)
                        continue;
                list_unlink(node);
                list_append(&gone, node);
        }
        while ((n = list_pop(&gone)))
                finish(c, container_of(n, struct cache_request, node), CACHE_CANCELLED);
}

void cache_cancel(struct cache *c, const void *owner)
{
        cancel_in(c, &c->wait_gets, owner);
        cancel_in(c, &c->wait_puts, owner);
}

/* Lets in as many as find room, from the front. */
static void let_in(struct cache *c, struct list_node *list,
                   bool (*try)(struct cache *, struct cache_request *), uint64_t now_ns)
{
        struct list_node stay = LIST_INIT(stay);
        struct list_node *n;
        uint32_t no_room[FAILED_TRIES]; /* lengths */
        unsigned n_no_room = 0, looks = 0;

        while (n_no_room < FAILED_TRIES && looks++ < LOOKS && (n = list_pop(list))) {
                struct cache_request *req = container_of(n, struct cache_request, node);
                uint64_t patience_ns = req->waits_since_ns + PATIENCE_NS;
                bool tried = false;

                /* What there is no room for once, there is none for a second time. */
                for (unsigned i = 0; i < n_no_room && !tried; i++)
                        tried = req->length == no_room[i];
                if (!tried) {
                        if (try(c, req))
                                continue;
                        no_room[n_no_room++] = req->length;
                }
                list_append(&stay, n);
                if (req->kind == KIND_PUT && over_budget(c, req))
                        break;
                if (now_ns < patience_ns) {
                        if (c->look_again_ns == 0 || patience_ns < c->look_again_ns)
                                c->look_again_ns = patience_ns;
                        break;
                }
        }
        list_splice(&stay, list);
        list_splice(list, &stay);
}

static void expire(struct cache *c, struct list_node *list, uint64_t now_ns, uint64_t *next)
{
        struct list_node late = LIST_INIT(late);
        struct list_node *n;

        list_for_each_safe(list, node) {
                struct cache_request *req = container_of(node, struct cache_request, node);

                if (req->deadline_ns <= now_ns) {
                        list_unlink(node);
                        list_append(&late, node);
                } else if (*next == 0 || req->deadline_ns < *next) {
                        *next = req->deadline_ns;
                }
        }
        while ((n = list_pop(&late)))
                finish(c, container_of(n, struct cache_request, node), CACHE_BUSY);
}

/* Writes that the store could not take: as many as it takes now, in order. */
static void retry_writes(struct cache *c)
{
        struct list_node again = LIST_INIT(again);
        struct list_node *n;
        unsigned refused = 0;

        c->retry_now = false;
        c->retry_pending = store_pending(c->params.store);
        list_splice(&again, &c->retry);
        while (refused < FAILED_TRIES && (n = list_pop(&again)))
                refused += !write_submit(container_of(n, struct write, node));
        list_splice(&c->retry, &again);
}

static bool may_retry(const struct cache *c)
{
        /* What the store could not take may have stood behind another cache's. */
        return !list_empty(&c->retry) && (c->retry_now || store_pending(c->params.store) == 0 ||
                                          store_pending(c->params.store) != c->retry_pending);
}

uint64_t cache_turn(struct cache *c, uint64_t now_ns)
{
        if (may_retry(c))
                retry_writes(c);

        if (c->kicked || (c->look_again_ns != 0 && c->look_again_ns <= now_ns)) {
                c->kicked = false;
                c->look_again_ns = 0;
                let_in(c, &c->wait_gets, get_try, now_ns);
                let_in(c, &c->wait_puts, put_try, now_ns);
        }
        if (c->next_deadline_ns != 0 && c->next_deadline_ns <= now_ns) {
                uint64_t next = 0;

                expire(c, &c->wait_gets, now_ns, &next);
                expire(c, &c->wait_puts, now_ns, &next);
                c->next_deadline_ns = next;
        }
        if (c->look_again_ns != 0 &&
            (c->next_deadline_ns == 0 || c->look_again_ns < c->next_deadline_ns))
                return c->look_again_ns;
        return c->next_deadline_ns;
}

bool cache_has_work(const struct cache *c)
{
        return (c->kicked && !(list_empty(&c->wait_gets) && list_empty(&c->wait_puts))) ||
               may_retry(c);
}

void cache_stop(struct cache *c)
{
        c->stopping = true;
        cancel_in(c, &c->wait_gets, NULL);
        cancel_in(c, &c->wait_puts, NULL);
}

uint64_t cache_pending(const struct cache *c)
{
        return c->pending;
}

void cache_get_stats(const struct cache *c, struct cache_stats *ret)
{
        *ret = c->stats;
}
