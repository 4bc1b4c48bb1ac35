/* SPDX-License-Identifier: Apache-2.0 */
/* The cache and the shared tier. Loop thread.
 *
 * In: a get whose key is in neither tier asks the shared one, once for all gets of that key. The
 * shared tier reads the chunk into a buffer of its own. The cache then puts the chunk into the pool
 * as it would a client's, and the chunk becomes visible only if its bytes have the checksum that
 * the stored object states. Admission decides whether the chunk is written to the disk. So a hung
 * back end occupies no memory of the pool, and the cache ends each get at its deadline.
 *
 * Out: the cache offers the shared tier chunks that were put, that are used again, or that are
 * about to be evicted although another use is expected. When the shared tier takes an offer,
 * cache_remote_load() loads the bytes from the pool or the store and checks them. An offered chunk
 * keeps no slot: if it was evicted before its turn, the offer is dropped. While the shared tier
 * takes evicted chunks, the eviction policy does not evict new chunks in favour of older ones,
 * because they would leave before they are offered.
 *
 * Failures: every failure is a miss for all gets that wait, or BUSY if the pool has no room for the
 * chunk. If the key is purged or evicted during the fetch, the fetch is abandoned: its chunk is
 * neither put nor returned. */
#include "cache/internal.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "checked.h"
#include "remote/remote.h"

enum {
        PREFETCH_FETCHES = 128, /* most fetches for prefetches in flight; later gets wait behind
                                 * them */
        PAGE = 4096,
};

/* Least chance of another use with which a chunk that is about to be evicted is offered. */
#define WORTH_WRITING 0.25

/* One key that the shared tier was asked for. */
struct fetch {
        struct remote_get remote;
        struct cache_request put; /* puts the chunk that `remote` returned */
        struct cache_fetched fetched;
        struct cache *cache;
        struct list_node
                node; /* in a list of cache.fetches, until the fetch ends or is abandoned */
        struct list_node waiters;  /* struct cache_request */
        uint64_t last_deadline_ns; /* the latest deadline of the waiters */
        uint32_t user, use;
        bool is_prefetch; /* started by a prefetch */
        bool unwanted;    /* the fetch is abandoned, and its chunk is to be dropped */
};

int cache_remote_init(struct cache *c)
{
        if (!c->params.remote)
                return 0;
        c->fetches = calloc(CACHE_FETCHES, sizeof(*c->fetches));
        if (!c->fetches)
                return -ENOMEM;
        for (unsigned i = 0; i < CACHE_FETCHES; i++)
                list_init(&c->fetches[i]);
        return 0;
}

void cache_remote_fini(struct cache *c)
{
        free(c->fetches);
}

/* --- from the shared tier --- */

static struct fetch *find(const struct cache *c, uint32_t namespace_id, const struct key *key,
                          uint64_t hash)
{
        if (c->n_fetches == 0)
                return NULL;
        list_for_each (&c->fetches[hash % CACHE_FETCHES], n) {
                struct fetch *f = container_of(n, struct fetch, node);

                if (f->remote.namespace_id == namespace_id && key_equal(&f->remote.key, key))
                        return f;
        }
        return NULL;
}

bool cache_remote_is_fetching(const struct cache *c, uint32_t namespace_id, const struct key *key,
                              uint64_t hash)
{
        return find(c, namespace_id, key, hash) != NULL;
}

/* Removes a fetch from the list, so that no get joins it. */
static void leave_list(struct fetch *f)
{
        if (list_empty(&f->node))
                return;
        list_unlink(&f->node);
        f->cache->n_fetches--;
        f->cache->n_prefetch_fetches -= f->is_prefetch;
}

static void fetch_free(struct fetch *f)
{
        leave_list(f);
        f->cache->stats.fetching--;
        f->cache->pending--;
        free(f);
}

/* Retries or ends all gets of a fetch that returned no chunk. A retried get finds a chunk that was
 * put in the meantime. If the fetch ended at its deadline, a get with a later deadline asks the
 * shared tier once more. */
static void settle_unfound(struct fetch *f, enum cache_status status)
{
        struct cache *c = f->cache;
        uint64_t tried_until_ns = f->remote.deadline_ns;
        bool is_late = clock_mono_ns() >= tried_until_ns;
        struct list_node waiters = LIST_INIT(waiters), *n;

        list_splice(&waiters, &f->waiters);
        fetch_free(f);
        while ((n = list_pop(&waiters))) {
                struct cache_request *req = container_of(n, struct cache_request, node);

                cache_stop_waiting_remote(c, req);
                req->asked_remote = !(is_late && req->deadline_ns > tried_until_ns);
                if (c->stopping)
                        cache_finish(c, req, CACHE_CANCELLED);
                else if (status != CACHE_MISS)
                        cache_finish(c, req, status);
                else if (!cache_get_try(c, req))
                        cache_wait_for_room(c, req);
        }
}

static void on_put(struct cache_request *put)
{
        struct fetch *f = container_of(put, struct fetch, put);
        struct cache *c = f->cache;
        uint32_t chunk = put->chunk;
        struct list_node *n;

        remote_get_end(c->params.remote, &f->remote, f->fetched.is_bad);
        if (chunk == POOL_NONE) {
                settle_unfound(f, put->status == CACHE_BUSY ? CACHE_BUSY : CACHE_MISS);
                return;
        }
        if (put->status == CACHE_OK) {
                c->stats.fetched++;
                c->stats.fetched_bytes += put->length;
                if (f->is_prefetch && list_empty(&f->waiters)) {
                        pool_set_prefetched(c->params.pool, chunk, true);
                        c->stats.prefetched++;
                        c->stats.prefetched_bytes += put->length;
                }
        }
        while ((n = list_pop(&f->waiters))) {
                struct cache_request *req = container_of(n, struct cache_request, node);

                cache_stop_waiting_remote(c, req);
                req->tier = put->status == CACHE_OK ? CACHE_REMOTE : CACHE_MEMORY;
                cache_settle_get(c, req, chunk);
        }
        fetch_free(f);
        cache_unpin(c, chunk);
}

/* Returns whether the fetched chunk is older than its namespace's lifetime, and so counts as
 * absent. */
static bool has_expired(const struct fetch *f)
{
        const struct cache *c = f->cache;
        uint32_t lifetime_s = store_lifetime_s(c->params.store, f->remote.namespace_id);

        return lifetime_s > 0 &&
               f->remote.created_ms < store_born_after_ms(lifetime_s, clock_unix_ms());
}

/* Puts the fetched chunk into the pool. The put occupies a buffer of the shared tier while it waits
 * for room, so it waits no longer than a read of the tier may take. */
static void put_into_pool(struct fetch *f)
{
        const struct remote_get *found = &f->remote;

        f->fetched = (struct cache_fetched){
                .crc = found->crc,
                .created_ms =
                        MIN(found->created_ms, clock_unix_ms()), /* created_ms is another host's
                                                                    time, which may be ahead */
        };
        f->put = (struct cache_request){
                .namespace_id = found->namespace_id,
                .tenant = f->cache->params.tenant,
                .user = f->user,
                .key = found->key,
                .hash = found->hash,
                .use = f->use,
                .nowait = list_empty(&f->waiters),
                .deadline_ns = MIN(f->last_deadline_ns,
                                   clock_mono_ns() + remote_timeout_ns(f->cache->params.remote)),
                .memory = (void *)(uintptr_t)found->payload,
                .room = found->length,
                .length = found->length,
                .ack = CACHE_ACCEPTED,
                .fetched = &f->fetched,
                .unwanted = &f->unwanted,
                .complete = on_put,
        };
        cache_put(f->cache, &f->put);
}

static void on_fetched(struct remote_get *remote)
{
        struct fetch *f = container_of(remote, struct fetch, remote);
        struct cache *c = f->cache;
        bool is_wanted =
                !f->unwanted && !c->stopping && (f->is_prefetch || !list_empty(&f->waiters));

        if (remote->found && is_wanted && has_expired(f)) {
                list_for_each (&f->waiters, n)
                        container_of(n, struct cache_request, node)->expired = true;
                is_wanted = false;
        }
        if (remote->found && is_wanted) {
                put_into_pool(f);
                return;
        }
        if (remote->found)
                remote_get_end(c->params.remote, remote, false);
        settle_unfound(f, CACHE_MISS);
}

/* Starts a fetch. Returns NULL if the shared tier does not have the key or cannot be asked now, or
 * if memory is short. */
static struct fetch *begin(struct cache *c, const struct fetch *as)
{
        struct fetch *f = malloc(sizeof(*f));

        if (!f)
                return NULL;
        *f = *as;
        f->cache = c;
        f->remote.complete = on_fetched;
        list_init(&f->waiters);
        if (!remote_get(c->params.remote, &f->remote)) {
                free(f);
                return NULL;
        }
        list_append(&c->fetches[f->remote.hash % CACHE_FETCHES], &f->node);
        c->n_fetches++;
        c->n_prefetch_fetches += f->is_prefetch;
        c->stats.fetching++;
        c->pending++;
        return f;
}

bool cache_remote_get(struct cache *c, struct cache_request *req)
{
        struct fetch *f;

        if (!c->params.remote || c->stopping || req->asked_remote ||
            (req->unwanted && *req->unwanted))
                return false;
        if (req->nowait) {
                (void)cache_remote_prefetch(c, req->user, req->namespace_id, &req->key, req->hash);
                return false;
        }
        f = find(c, req->namespace_id, &req->key, req->hash);
        if (f)
                c->stats.shared_fetches++;
        else
                f = begin(c, &(struct fetch){
                                     .remote = { .namespace_id = req->namespace_id,
                                                 .tenant = c->params.tenant,
                                                 .key = req->key,
                                                 .hash = req->hash,
                                                 .deadline_ns = req->deadline_ns },
                                     .user = req->user,
                                     .use = req->use,
                             });
        if (!f || cache_wait_for_remote(c, req) < 0)
                return false;
        f->last_deadline_ns = MAX(f->last_deadline_ns, req->deadline_ns);
        list_append(&f->waiters, &req->node);
        return true;
}

enum cache_status cache_remote_prefetch(struct cache *c, uint32_t user, uint32_t namespace_id,
                                        const struct key *key, uint64_t hash)
{
        const struct fetch as = {
                .remote = { .namespace_id = namespace_id,
                            .tenant = c->params.tenant,
                            .key = *key,
                            .hash = hash,
                            .deadline_ns = UINT64_MAX },
                .user = user,
                .is_prefetch = true,
        };

        if (!c->params.remote)
                return CACHE_MISS;
        if (find(c, namespace_id, key, hash))
                return CACHE_OK;
        if (c->n_prefetch_fetches >= PREFETCH_FETCHES)
                return remote_presence(c->params.remote, namespace_id, hash) == 0 ? CACHE_MISS
                                                                                  : CACHE_BUSY;
        return begin(c, &as) ? CACHE_OK : CACHE_MISS;
}

void cache_remote_leave(struct cache *c, struct cache_request *req)
{
        list_unlink(&req->node);
        cache_stop_waiting_remote(c, req);
}

static void finish_all(struct cache *c, struct list_node *waiters, enum cache_status status)
{
        struct list_node *n;

        while ((n = list_pop(waiters))) {
                struct cache_request *req = container_of(n, struct cache_request, node);

                cache_stop_waiting_remote(c, req);
                cache_finish(c, req, status);
        }
}

/* Abandons a fetch: its chunk will be dropped, and a later get of the key starts a new fetch. Moves
 * the waiting gets to `waiters`. */
static void forget(struct fetch *f, struct list_node *waiters)
{
        leave_list(f);
        f->unwanted = true;
        list_splice(waiters, &f->waiters);
}

void cache_remote_forget(struct cache *c, bool all, uint32_t namespace_id)
{
        struct list_node waiters = LIST_INIT(waiters);

        for (unsigned i = 0; c->n_fetches > 0 && i < CACHE_FETCHES; i++)
                list_for_each_safe (&c->fetches[i], n) {
                        struct fetch *f = container_of(n, struct fetch, node);

                        if (all || f->remote.namespace_id == namespace_id)
                                forget(f, &waiters);
                }
        finish_all(c, &waiters, CACHE_MISS);
}

void cache_remote_forget_key(struct cache *c, uint32_t namespace_id, const struct key *key,
                             uint64_t hash)
{
        struct list_node waiters = LIST_INIT(waiters);
        struct fetch *f = find(c, namespace_id, key, hash);

        if (f)
                forget(f, &waiters);
        finish_all(c, &waiters, CACHE_MISS);
}

void cache_remote_stop(struct cache *c)
{
        struct list_node waiters = LIST_INIT(waiters);

        for (unsigned i = 0; c->n_fetches > 0 && i < CACHE_FETCHES; i++)
                list_for_each (&c->fetches[i], n)
                        list_splice(&waiters, &container_of(n, struct fetch, node)->waiters);
        finish_all(c, &waiters, CACHE_CANCELLED);
}

/* --- to the shared tier --- */

void cache_remote_offer(struct cache *c, uint32_t namespace_id, const struct key *key,
                        uint64_t hash, uint32_t length, bool again)
{
        if (c->params.remote && !c->stopping)
                remote_offer(c->params.remote, namespace_id, c->params.tenant, key, hash, length,
                             again ? REMOTE_USED_AGAIN : REMOTE_PUT);
}

void cache_remote_offer_chunk(struct cache *c, uint32_t chunk, bool again)
{
        const struct pool_chunk *pc = pool_chunk(c->params.pool, chunk);

        if (!pool_is_filling(pc) && !(pc->flags & POOL_DROPPED))
                cache_remote_offer(c, pc->namespace_id, &pc->key, pc->hash, pc->length, again);
}

static void offer_leaving_disk(void *userdata, const struct store_leaving *leaving)
{
        if (leaving->chance >= WORTH_WRITING)
                remote_offer(userdata, leaving->namespace_id, leaving->tenant, leaving->key,
                             leaving->hash, leaving->length, REMOTE_LEAVING);
}

void cache_offer_leaving_disk(struct store *store, struct remote *remote)
{
        bool takes = remote_takes_leaving(remote);

        store_admit_all(store, takes);
        if (takes)
                store_report_leaving(store, offer_leaving_disk, remote);
}

/* Offers the shared tier a chunk that is about to leave memory, if it is likely enough to be used
 * again. Skips chunks that have been on disk, because they are offered when they leave it. */
static void offer_leaving_memory(void *userdata, uint32_t chunk, double chance)
{
        struct cache *c = userdata;
        const struct pool_chunk *pc = pool_chunk(c->params.pool, chunk);

        if (chance >= WORTH_WRITING && !(pc->flags & (POOL_STORED | POOL_UNVERIFIED)) &&
            !pool_is_dropped(c->params.pool, chunk))
                remote_offer(c->params.remote, pc->namespace_id, c->params.tenant, &pc->key,
                             pc->hash, pc->length, REMOTE_LEAVING);
}

void cache_offer_leaving_memory(struct cache *c)
{
        bool takes = remote_takes_leaving(c->params.remote);

        pool_admit_all(c->params.pool, takes);
        if (!c->stopping && takes)
                pool_report_leaving(c->params.pool, offer_leaving_memory, c);
}

/* The load of a chunk into a buffer of the shared tier. */
struct load {
        struct cache *cache;
        struct remote_put *put;
        struct kio_request copy;
        struct store_get get;
        uint32_t chunk; /* pinned; POOL_NONE if loaded from the store */
        uint32_t want_crc;
};

static void load_end(struct load *l, bool loaded, uint32_t crc)
{
        struct cache *c = l->cache;

        if (l->chunk != POOL_NONE)
                cache_unpin(c, l->chunk);
        l->put->crc = crc;
        remote_put_loaded(l->put, loaded);
        c->pending--;
        free(l);
}

/* Returns whether the chunk still exists: a chunk that was dropped from memory only is still on
 * disk. */
static bool is_still_there(const struct load *l)
{
        const struct cache *c = l->cache;

        return !pool_is_dropped(c->params.pool, l->chunk) ||
               store_find(c->params.store, l->put->namespace_id, &l->put->key, l->put->hash, NULL,
                          NULL) == 0;
}

static void on_copied(struct kio_request *copy)
{
        struct load *l = container_of(copy, struct load, copy);

        load_end(l, copy->result == 0 && copy->crc == l->want_crc && is_still_there(l), copy->crc);
}

static void on_read(struct store_get *get)
{
        struct load *l = container_of(get, struct load, get);

        load_end(l, get->result == 0 && get->length == l->put->length, get->crc);
}

/* The device may write to the buffer until it answers; on_read() ends the load then. */
static void on_read_abandoned(struct store_get *get)
{
}

static bool load_from_pool(struct load *l)
{
        struct cache *c = l->cache;
        struct remote_put *put = l->put;
        const struct pool_chunk *pc = pool_chunk(c->params.pool, l->chunk);

        if (pool_is_filling(pc) || pc->length != put->length) {
                l->chunk = POOL_NONE;
                return false;
        }
        put->created_ms = pc->created_ms;
        l->want_crc = pc->crc;
        pool_pin(c->params.pool, l->chunk);
        l->copy = (struct kio_request){
                .op = KIO_COPY,
                .class = KIO_CLASS_BACKGROUND,
                .src = pool_at(c->params.pool, l->chunk),
                .buf = put->buffer,
                .length = put->length,
                .complete = on_copied,
        };
        kio_submit(c->params.io, &l->copy, l->chunk);
        return true;
}

static bool load_from_store(struct load *l)
{
        struct cache *c = l->cache;
        struct remote_put *put = l->put;
        struct store_chunk info;
        struct store_ref ref;

        if (store_find(c->params.store, put->namespace_id, &put->key, put->hash, &ref, &info) !=
                    0 ||
            info.length != put->length)
                return false;
        put->created_ms = info.created_ms;
        l->get = (struct store_get){
                .background = true,
                .namespace_id = put->namespace_id,
                .key = put->key,
                .hash = put->hash,
                .ref = ref,
                .buf = put->buffer,
                .room = (uint32_t)round_up((uint64_t)put->length, PAGE),
                .complete = on_read,
                .abandon = on_read_abandoned,
        };
        return store_get(c->params.store, &l->get) == 0;
}

void cache_remote_load(struct cache *c, struct remote_put *put)
{
        struct load *l = c->stopping ? NULL : calloc(1, sizeof(*l));

        if (!l) {
                remote_put_loaded(put, false);
                return;
        }
        l->cache = c;
        l->put = put;
        l->chunk = pool_find(c->params.pool, put->namespace_id, &put->key, put->hash);
        c->pending++;
        if ((l->chunk == POOL_NONE || !load_from_pool(l)) && !load_from_store(l))
                load_end(l, false, 0);
}
