/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "cache/put-file.h"
#include "history-actions.h"

#include "checked.h"
#include "history-model.h"
#include "io/buffers.h"
#include "store/internal.h"

enum { USERS = 3, PINS = 6, MOST_FLYING = 3, REQUESTS = 300, FILE_PUTS = 512 };

/* A put or a get. */
struct request {
        struct req r;
        struct model_get get;
        unsigned version; /* version of a put; 0: a get */
        uint32_t n;
        char *memory;
        struct put_file file; /* source of a put from a file */
};

/* A drop whose key may be back until it is settled. */
struct drop {
        union {
                struct cache_settle settle;
                struct cache_purge purge;
        };
        unsigned life, n_keys;
        struct model_drop keys[];
};

static struct request *requests[REQUESTS];
static unsigned n_requests, n_drops, life;
static uint64_t evictions;
static uint32_t draws, pinned[PINS], n_pinned;

void history_begin(uint32_t seed)
{
        draws = seed * UINT32_C(2654435761) | 1;
        model = (struct model){ .now = 1 };
        evictions = 0;
}

uint32_t draw(uint32_t below)
{
        draws ^= draws << 13;
        draws ^= draws >> 17;
        draws ^= draws << 5;
        return draws % below;
}

void history_crashes(void)
{
        life++;
        evictions = 0;
}

static uint64_t hash_of(uint32_t n)
{
        struct key k = key_of(n);

        return cache_hash(t.cache, t.ns, &k);
}

/* --- puts and gets --- */

void note_losses(void)
{
        struct store_stats s;

        store_get_stats(t.store, &s);
        if (s.evictions != evictions || t.emptied > 0)
                model_disk_loses();
        evictions = s.evictions;
        t.emptied = 0;
        if (store_volumes_up(t.store) < store_volumes(t.store))
                model.may_hide = true;
}

void end_requests(bool killed)
{
        if (!killed)
                note_losses();
        for (unsigned i = 0; i < n_requests;) {
                struct request *q = requests[i];
                unsigned found = q->r.length > 0 ? q->r.version : 0;

                if (!q->r.done) {
                        i++;
                        continue;
                }
                if (q->version && killed)
                        model_put_was_killed(q->n, q->version);
                else if (q->version)
                        model_put_ended(q->n, q->version, &q->r.req, found);
                else if (q->r.req.status == CACHE_OK && !killed)
                        model_get_ended(q->n, &q->get, found);
                else if (q->r.req.status == CACHE_MISS && !killed)
                        model_get_missed(q->n, &q->get);
                requests[i] = requests[--n_requests];
                free(q->memory);
                free(q);
        }
}

static struct request *request_new(uint32_t n)
{
        struct request *q = calloc(1, sizeof(*q));

        assert_non_null(q);
        start(&q->r, n);
        q->n = n;
        requests[n_requests++] = q;
        return q;
}

/* Returns a file that puts can take bytes from, or -1 if this host has none. */
static int file_of_puts(void)
{
        static int fd = -2;
        const char *wrong;

        if (fd != -2)
                return fd;
        fd = open("/var/tmp", O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
        if (fd >= 0 &&
            (ftruncate(fd, FILE_PUTS * (off_t)MIB) < 0 || put_file_check(fd, 0, MIB, &wrong) < 0)) {
                close(fd);
                fd = -1;
        }
        return fd;
}

/* Moves the bytes of a put to the file, in which each put of a history has a range of its own. The
 * file of some puts ends too early. */
static void put_from_file(struct request *q)
{
        static unsigned puts;
        uint64_t offset = puts++ % FILE_PUTS * (uint64_t)MIB;
        uint32_t bytes = round_up(q->r.req.length, 4096U);

        q->file = (struct put_file){ .fd = file_of_puts(), .offset = offset };
        if (q->file.fd < 0)
                return;
        assert_int_equal(pwrite(q->file.fd, q->memory, bytes, (off_t)offset), bytes);
        if (draw(8) == 0)
                q->file.offset = FILE_PUTS * (uint64_t)MIB - (bytes - 4096);
        q->r.req.file = &q->file;
        q->r.req.memory = NULL;
        q->r.req.may_be_direct = false;
        q->r.req.region = NULL;
}

void put_one(uint32_t n)
{
        static const uint32_t lengths[] = { 4 * KIB, 20000, SMALL, 300000, MIB };
        static struct kio_region region; /* no ring knows it */
        uint32_t length = lengths[draw(ARRAY_SIZE(lengths))];
        struct request *q;
        unsigned version;

        if (n_requests == REQUESTS || model.keys[n].n_flying == MOST_FLYING)
                return;
        version = model_put_begins(n);
        if (version == 0)
                return;
        q = request_new(n);
        q->version = version;
        q->memory = aligned_alloc(4096, round_up(length, 4096U));
        assert_non_null(q->memory);
        fill(q->memory, n, (uint8_t)version, length);
        q->r.req.memory = q->memory;
        q->r.req.may_be_direct = draw(2);
        q->r.req.region = q->r.req.may_be_direct ? &region : NULL;
        q->r.req.length = length;
        q->r.req.ack = draw(3);
        q->r.req.user = draw(USERS);
        q->r.req.nowait = draw(2);
        if (draw(4) == 0)
                put_from_file(q);
        cache_put(t.cache, &q->r.req);
        kio_flush(t.io);
}

static struct request *begin_get(uint32_t n)
{
        struct request *q;

        if (n_requests == REQUESTS)
                return NULL;
        q = request_new(n);
        model_get_begins(n, &q->get);
        cache_get(t.cache, &q->r.req);
        kio_flush(t.io);
        return q;
}

void get_one(uint32_t n)
{
        (void)begin_get(n);
}

enum cache_status get_now(uint32_t n)
{
        struct request *q = begin_get(n);
        enum cache_status status;

        assert_non_null(q);
        tiers_wait(&t, &q->r.done);
        status = q->r.req.status;
        end_requests(false);
        return status;
}

/* --- drops --- */

static void drop_ended(struct drop *d, int result)
{
        for (unsigned i = 0; i < d->n_keys && result == 0 && d->life == life; i++)
                model_drop_is_kept(&d->keys[i]);
        n_drops--;
        free(d);
}

static void on_settled(struct cache_settle *settle)
{
        drop_ended(container_of(settle, struct drop, settle), settle->result);
}

static void on_purged(struct cache_purge *purge)
{
        drop_ended(container_of(purge, struct drop, purge), purge->store.result);
}

static struct drop *drop_new(unsigned n_keys)
{
        struct drop *d = calloc(1, sizeof(*d) + n_keys * sizeof(d->keys[0]));

        assert_non_null(d);
        d->life = life;
        d->n_keys = n_keys;
        n_drops++;
        return d;
}

/* Returns the version in the pool whose put is in flight, or 0. */
static unsigned flying_in_pool(uint32_t n, bool with_copies)
{
        struct key key = key_of(n);
        uint32_t chunk = pool_find(t.pool, t.ns, &key, hash_of(n));
        const struct pool_chunk *pc = chunk == POOL_NONE ? NULL : pool_chunk(t.pool, chunk);

        if (pc && pc->state == POOL_COPYING && with_copies)
                return container_of(pc->write->req, struct request, r.req)->version;
        return pc && pc->state == POOL_WRITING ? *(uint8_t *)pool_at(t.pool, chunk) : 0;
}

/* An evict that was answered as a miss promises nothing. */
void evict_one(uint32_t n)
{
        uint64_t lost_before = cache_lost_evictions(t.cache);
        unsigned flying = flying_in_pool(n, true);
        enum cache_status status = evict(n, false);
        struct drop *d = drop_new(1);

        d->settle = (struct cache_settle){ .lost_before = lost_before, .complete = on_settled };
        model_drop(n, flying, &d->keys[0]);
        assert_true(status == CACHE_OK || status == CACHE_MISS);
        d->n_keys = status == CACHE_OK;
        cache_settle_evictions(t.cache, &d->settle);
}

void purge_all(void)
{
        struct drop *d = drop_new(MODEL_KEYS);

        d->purge = (struct cache_purge){ .store = { .namespace_id = t.ns, .all = draw(2) },
                                         .complete = on_purged };
        for (uint32_t n = 0; n < MODEL_KEYS; n++)
                model_drop(n, flying_in_pool(n, true), &d->keys[n]);
        cache_purge(t.cache, &d->purge);
}

struct removal {
        struct store_namespace_remove req;
        struct cache_purge purge;
        bool done;
};

static void on_removed(struct store_namespace_remove *req)
{
        container_of(req, struct removal, req)->done = true;
}

static void on_purged_to_remove(struct cache_purge *purge)
{
        container_of(purge, struct removal, purge)->done = true;
}

/* Begins reads and writes that no request waits for, and which end after those that follow. */
static void begin_late_io(void)
{
        for (unsigned i = 0; i < 4; i++) {
                put_one(draw(MODEL_KEYS));
                (void)prefetch(draw(MODEL_KEYS));
        }
        while (n_requests > 0) {
                fault_set(&(struct fault_plan){ .ops = 1U << KIO_WRITE | 1U << KIO_READ,
                                                .kind = FAULT_LATE,
                                                .late_ns = 1000000,
                                                .first = 1 + draw(4),
                                                .count = 1 + draw(4) });
                tiers_wait(&t, &requests[0]->r.done);
                end_requests(false);
        }
}

/* Purges, removes and opens the namespace. No request is in flight then, because the daemon refuses
 * the removal otherwise; reads and writes that no request waits for may be. */
void remove_namespace(void)
{
        struct removal r = { .purge = { .store.namespace_id = t.ns,
                                        .complete = on_purged_to_remove },
                             .req = { .id = t.ns, .complete = on_removed } };
        struct model_drop drops[MODEL_KEYS];

        begin_late_io();
        for (uint32_t n = 0; n < MODEL_KEYS; n++)
                model_drop(n, flying_in_pool(n, true), &drops[n]);
        cache_purge(t.cache, &r.purge);
        tiers_wait(&t, &r.done);
        if (r.purge.store.result != 0)
                return;
        for (uint32_t n = 0; n < MODEL_KEYS; n++)
                model_drop_is_kept(&drops[n]);
        r.done = false;
        store_namespace_remove(t.store, &r.req);
        tiers_wait(&t, &r.done);
        assert_in_range(r.req.result == STORE_BUSY || r.req.result <= 0, 1, 1);
        if (r.req.result != STORE_BUSY && draw(2)) {
                t.store->next_id = UINT32_MAX;
                t.store->reused_id = t.ns - 1;
        }
        t.ns = tiers_namespace(&t, "a");
}

/* An expired chunk may be back after any restart. */
void expire_one(uint32_t n)
{
        struct key key = key_of(n);
        unsigned flying = flying_in_pool(n, false);
        struct model_drop drop;

        model.keys[n].is_on_disk = false;
        model.keys[n].dropped_at = model.now;
        if (cache_expire(t.cache, t.ns, &key, hash_of(n), clock_unix_ms() + 1))
                model_drop(n, flying, &drop);
}

/* --- pins --- */

void pin_one(uint32_t n)
{
        struct key k = key_of(n);
        uint32_t chunk = pool_find(t.pool, t.ns, &k, hash_of(n));

        if (n_pinned == PINS) {
                cache_unpin(t.cache, pinned[--n_pinned]);
        } else if (chunk != POOL_NONE && !pool_is_filling(pool_chunk(t.pool, chunk))) {
                pool_pin(t.pool, chunk);
                pinned[n_pinned++] = chunk;
        }
}

void retain_one(uint32_t n)
{
        struct cache_place place;
        struct key k = key_of(n);

        if (cache_find(t.cache, t.ns, &k, hash_of(n), &place, NULL))
                (void)cache_retain(t.cache, &place, draw(2), UINT64_MAX);
}

void unpin_pinned(void)
{
        while (n_pinned > 0)
                cache_unpin(t.cache, pinned[--n_pinned]);
}

void assert_all_have_ended(void)
{
        assert_int_equal(n_requests, 0);
        assert_int_equal(n_drops, 0);
}
