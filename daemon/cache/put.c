/* SPDX-License-Identifier: Apache-2.0 */
/* Puts: from a client into the pool, and from there into the store; see cache.c for the normal path
 * and the failures. Loop thread; a worker copies, or a blocking-call thread reads the client's
 * file. If the volume hangs during the write, on_write_abandoned() answers the put. */
#include "cache/internal.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "cache/put-file.h"
#include "cleanup.h"

static void write_end(struct write *w)
{
        struct cache *c = w->cache;

        list_unlink(&w->dropping);
        cache_pass_evictions(c);
        if (!w->abandoned && !w->queued.postponed) {
                c->stats.unwritten_bytes -= w->slot_bytes;
                c->stats.unwritten_chunks--;
        }
        cache_unwritten_end(c, &w->queued);
        c->pending--;
        cache_unpin(c, w->chunk);
        cache_kick(c);
        free(w);
}

enum cache_status cache_status_of_put(int result)
{
        switch (result) {
        case 0:
        case -ECANCELED: /* purged during the write, so it counts as written and then purged */
                return CACHE_OK;
        case STORE_NOT_DURABLE:
                return CACHE_NOT_DURABLE;
        case STORE_FULL:
        case -ENOSPC:
        case -EDQUOT:
                return CACHE_NO_SPACE;
        case STORE_TOO_LARGE:
                return CACHE_TOO_LARGE;
        case -EFAULT:
                return CACHE_FAULT;
        default:
                return CACHE_FAILED;
        }
}

/* Drops a written chunk from the store, because it was evicted during the write, or because its put
 * was answered as failed. The store has usually dropped an evicted chunk already, and may have
 * another chunk of the key by now. */
static void write_dropped(struct write *w)
{
        struct cache *c = w->cache;
        const struct pool_chunk *pc = pool_chunk(c->params.pool, w->chunk);
        struct store_ref ref;

        if (store_find(c->params.store, pc->namespace_id, &pc->key, pc->hash, &ref, NULL) != 0 ||
            ref.index != w->store.ref.index || ref.generation != w->store.ref.generation)
                return;
        if (store_drop(c->params.store, pc->namespace_id, &pc->key, pc->hash) < 0)
                c->lost_evictions++;
}

/* Ends a write that the store has completed or refused. */
static void write_done(struct write *w, int result)
{
        struct cache *c = w->cache;
        struct pool_chunk *pc = pool_chunk(c->params.pool, w->chunk);
        struct cache_request *req = TAKE_PTR(w->req);
        bool written = result == 0 || result == STORE_NOT_DURABLE;
        bool dropped = pool_is_dropped(c->params.pool, w->chunk);
        enum cache_status status;

        if (w->abandoned) { /* all requests were answered when the device hung */
                if (written && (w->drop || dropped))
                        write_dropped(w);
                write_end(w);
                return;
        }
        if (written && w->drop)
                write_dropped(w);

        pool_set_state(pc, POOL_RESIDENT);
        pc->ref = written && !w->drop ? w->store.ref : STORE_REF_NONE;
        if (written)
                pc->flags |= POOL_STORED;
        else if (!dropped && w->acknowledged)
                c->stats.pool_only++;
        c->retry_now = true;

        /* A chunk that was purged or evicted during its write counts as written and then removed.
         */
        status = dropped && !written ? CACHE_OK : cache_status_of_put(result);

        if (!written && !dropped && !w->acknowledged)
                pool_drop(c->params.pool, w->chunk);
        cache_settle_waiters(c, w->chunk, WAITING_WRITE, written || dropped ? CACHE_OK : status);
        if (req) {
                if (status == CACHE_OK || status == CACHE_NOT_DURABLE)
                        cache_finish_with(c, req, status, w->chunk);
                else
                        cache_finish(c, req, status);
        }
        write_end(w);
}

static void on_stored(struct store_put *store)
{
        struct write *w = container_of(store, struct write, store);

        write_done(w, store->result);
}

/* Answers all waiters, because the device hangs: as failed, or with CACHE_OK if the chunk was
 * dropped meanwhile. Its bytes no longer count as unwritten. The slot stays occupied until the
 * device answers. */
static void on_write_abandoned(struct store_put *store)
{
        struct write *w = container_of(store, struct write, store);
        struct cache *c = w->cache;
        struct pool_chunk *pc = pool_chunk(c->params.pool, w->chunk);
        struct cache_request *req = TAKE_PTR(w->req);
        bool dropped = pool_is_dropped(c->params.pool, w->chunk);

        w->abandoned = true;
        c->stats.unwritten_bytes -= w->slot_bytes;
        c->stats.unwritten_chunks--;
        cache_unwritten_end(c, &w->queued);
        pool_set_state(pc, POOL_RESIDENT);
        pc->ref = STORE_REF_NONE;
        if (w->drop)
                c->lost_evictions++;
        list_unlink(&w->dropping);
        cache_pass_evictions(c);
        if (!dropped && w->acknowledged)
                c->stats.pool_only++;
        else if (!dropped)
                pool_drop(c->params.pool, w->chunk);
        cache_settle_waiters(c, w->chunk, WAITING_WRITE, dropped ? CACHE_OK : CACHE_FAILED);
        if (req && dropped)
                cache_finish_with(c, req, CACHE_OK, w->chunk);
        else if (req)
                cache_finish(c, req, CACHE_FAILED);
        c->retry_now = true;
        cache_kick(c);
}

bool cache_store_may_take(const struct cache *c, const struct store_put *put, int r)
{
        const struct store *s = c->params.store;

        return (r == STORE_FULL || r == STORE_EXISTS) && store_pending(s) > 0 &&
               !cache_store_has_again(c, put, r);
}

bool cache_store_has_again(const struct cache *c, const struct store_put *put, int r)
{
        return r == STORE_EXISTS && store_find(c->params.store, put->namespace_id, &put->key,
                                               put->hash, NULL, NULL) == 0;
}

/* Ends a write whose key the store has again since a suspended volume was resumed. The write's
 * chunk leaves the pool, and the puts that wait for it find the chunk of the store. */
static void write_superseded(struct write *w)
{
        struct cache *c = w->cache;
        struct pool_chunk *pc = pool_chunk(c->params.pool, w->chunk);
        struct cache_request *req = TAKE_PTR(w->req);
        struct list_node puts = LIST_INIT(puts);

        if (req)
                list_append(&puts, &req->node);
        list_for_each_safe (&pc->waiters, n) {
                if (container_of(n, struct cache_request, node)->waiting != WAITING_WRITE)
                        continue;
                list_unlink(n);
                list_append(&puts, n);
        }
        pool_set_state(pc, POOL_RESIDENT);
        pc->ref = STORE_REF_NONE;
        pool_drop(c->params.pool, w->chunk);
        c->retry_now = true;
        write_end(w);
        cache_try_in_turn(c, &puts);
}

bool cache_write_store(struct store_write *queued)
{
        struct write *w = container_of(queued, struct write, queued);
        struct cache *c = w->cache;
        int r;

        if (pool_is_dropped(c->params.pool, w->chunk)) {
                write_done(w, -ECANCELED);
                return true;
        }
        r = store_put(c->params.store, &w->store);
        if (r == 0)
                return true;
        if (cache_store_may_take(c, &w->store, r))
                return false;
        if (!w->acknowledged && cache_store_has_again(c, &w->store, r))
                write_superseded(w);
        else
                write_done(w, r == STORE_EXISTS ? -EIO : r);
        return true;
}

/* Keeps a chunk in the pool that the write budget refused, or whose write is postponed. Puts of the
 * same key that wait for its bytes ask for admission themselves. */
static void keep_in_pool(struct write *w)
{
        struct cache *c = w->cache;
        struct pool_chunk *pc = pool_chunk(c->params.pool, w->chunk);
        struct cache_request *req = TAKE_PTR(w->req);

        pool_set_state(pc, POOL_RESIDENT);
        pc->ref = STORE_REF_NONE;
        pc->flags |= POOL_REFUSED;
        pc->user = req->user;
        if (w->queued.postponed)
                cache_postpone(c, w->chunk);
        cache_settle_waiters(c, w->chunk, WAITING_FILL, CACHE_OK);
        cache_finish_with(c, req, CACHE_OK, w->chunk);
        write_end(w);
}

static void on_copied(struct kio_request *copy)
{
        struct write *w = container_of(copy, struct write, copy);
        struct cache *c = w->cache;
        struct pool_chunk *pc = pool_chunk(c->params.pool, w->chunk);
        struct cache_request *req = w->req;

        if (copy->result == 0 && req->fetched && copy->crc != req->fetched->crc) {
                req->fetched->is_bad = true;
                copy->result = -EBADMSG;
        }
        if (copy->result < 0) {
                c->stats.file_failures += w->file != NULL;
                w->req = NULL;
                pool_set_state(pc, POOL_ACQUIRED);
                pc->ref = STORE_REF_NONE;
                pool_drop(c->params.pool, w->chunk);
                cache_settle_waiters(c, w->chunk, WAITING_FILL, CACHE_FAILED);
                cache_finish(c, req, copy->result == -EFAULT ? CACHE_FAULT : CACHE_FAILED);
                write_end(w);
                return;
        }

        pool_expect(c->params.pool, pc->use, w->store.promise.number ? &w->store.promise : NULL);
        pool_commit(c->params.pool, w->chunk, copy->crc);
        pool_expect(c->params.pool, pc->use, NULL);
        w->store.crc = copy->crc;
        if (!req->fetched) {
                c->stats.puts++;
                c->stats.put_bytes += pc->length;
                cache_remote_offer_chunk(c, w->chunk, false);
        }
        if (w->file) {
                c->stats.file_puts++;
                c->stats.file_put_bytes += pc->length;
        }
        if (w->refused) {
                keep_in_pool(w);
                return;
        }
        if (req->ack == CACHE_ACCEPTED) {
                w->acknowledged = true;
                w->req = NULL;
        } else {
                req = NULL;
        }
        /* From here on, puts of the same key wait for the write, which may end, and fail, at once.
         */
        list_for_each (&pc->waiters, n) {
                struct cache_request *other = container_of(n, struct cache_request, node);

                if (other->kind == KIND_PUT && other->ack == CACHE_ACCEPTED)
                        w->acknowledged = true;
                else if (other->kind == KIND_PUT)
                        cache_set_waiting(other, WAITING_WRITE);
        }
        /* The answer has the chunk's place in the store (cache_place.ref) once the store has taken
         * the write, so the write is passed on before the answer; if it has to wait, the answer has
         * none. A write that ends at once unpins the chunk, so this pin keeps it until the request
         * is answered. */
        {
                uint32_t chunk = w->chunk;

                pool_pin(c->params.pool, chunk);
                cache_queue_write(c, &w->queued);
                cache_settle_waiters(c, chunk, WAITING_FILL, CACHE_OK);
                if (req)
                        cache_finish_with(c, req, CACHE_OK, chunk);
                cache_unpin(c, chunk);
        }
}

/* Creates the write of a pinned chunk, and takes over the pin. Returns NULL if memory is short. */
static struct write *write_new(struct cache *c, uint32_t chunk, struct cache_request *req,
                               bool postponed)
{
        struct pool_chunk *pc = pool_chunk(c->params.pool, chunk);
        struct write *w = calloc(1, sizeof(*w));

        if (!w)
                return NULL;
        w->cache = c;
        w->chunk = chunk;
        w->slot_bytes = pool_slot_bytes(c->params.pool, chunk);
        w->queued.postponed = postponed;
        if (cache_unwritten_begin(c, &w->queued, req->user, w->slot_bytes) < 0) {
                free(w);
                return NULL;
        }
        cache_charge_write(&w->queued, req);
        list_init(&w->dropping);
        w->store = (struct store_put){
                .namespace_id = req->namespace_id,
                .tenant = req->tenant,
                .key = req->key,
                .hash = req->hash,
                .parent = req->parent,
                .use = req->use,
                .gap = req->gap,
                .promise = req->promise,
                .place = req->chain_place,
                .buf = pool_at(c->params.pool, chunk),
                .length = pc->length,
                .crc = pc->crc,
                .cost = pc->cost & 0xff,
                .created_ms = pc->created_ms,
                .durable = req->ack == CACHE_DURABLE,
                .batch = req->batch,
                .ref = STORE_REF_NONE,
                .complete = on_stored,
                .abandon = on_write_abandoned,
        };
        pc->flags &= ~(uint32_t)POOL_REFUSED;
        pool_set_state(pc, pc->state == POOL_RESIDENT ? POOL_WRITING : POOL_COPYING);
        pc->write = w;
        if (!postponed) {
                c->stats.unwritten_bytes += w->slot_bytes;
                c->stats.unwritten_chunks++;
        }
        c->pending++;
        return w;
}

static void on_synced(struct store_sync *store)
{
        struct cache_request *req = container_of(store, struct cache_request, sync.store);
        struct cache *c = req->cache;
        int result = store->result;
        uint32_t chunk = req->sync.chunk;
        enum cache_status status = result == 0                   ? CACHE_EXISTS
                                   : result == STORE_NOT_DURABLE ? CACHE_NOT_DURABLE
                                                                 : CACHE_FAILED;

        if (status != CACHE_FAILED && chunk != POOL_NONE)
                cache_finish_with(c, req, status, chunk);
        else
                cache_finish(c, req, status);
        if (chunk != POOL_NONE)
                cache_unpin(c, chunk);
}

/* Answers a put whose key the store has: first reads back a chunk that was found at startup and not
 * read since (verify.c), and syncs if the put is durable. Returns false if the put must wait until
 * other chunks have been read back. */
static bool finish_existing(struct cache *c, struct cache_request *req, uint32_t chunk,
                            struct store_ref ref)
{
        if (store_is_unverified(c->params.store, ref)) {
                if (cache_verify_existing(c, req))
                        return true;
                /* Too many chunks are being read back. A put that does not need the disk (accepted
                 * and NOWAIT, or from the shared tier) does not wait for them: it is answered
                 * EXISTS, although the chunk is not verified. */
                if (cache_needs_disk(req))
                        return false;
        }
        if (req->ack != CACHE_DURABLE) {
                if (chunk != POOL_NONE) {
                        cache_finish_with(c, req, CACHE_EXISTS, chunk);
                        return true;
                }
                req->place.ref = ref;
                cache_finish(c, req, CACHE_EXISTS);
                return true;
        }
        if (chunk != POOL_NONE)
                pool_pin(c->params.pool, chunk);
        req->cache = c;
        req->sync.store = (struct store_sync){ .of_one = true, .ref = ref, .complete = on_synced };
        req->sync.chunk = chunk;
        req->place.ref = ref;
        cache_set_waiting(req, WAITING_SYNC);
        store_sync(c->params.store, &req->sync.store);
        return true;
}

bool cache_write_resident(struct cache *c, uint32_t chunk, struct cache_request *req)
{
        struct write *w;

        sets_expect(c->sets, SETS_DISK, req->namespace_id, &req->key);
        pool_pin(c->params.pool, chunk);
        w = write_new(c, chunk, req, false);
        if (!w) {
                cache_unpin(c, chunk);
                return false;
        }
        w->acknowledged = true;
        if (req->ack != CACHE_ACCEPTED)
                cache_wait_on(c, req, chunk, WAITING_WRITE);
        cache_queue_write(c, &w->queued);
        return true;
}

bool cache_put_present(struct cache *c, struct cache_request *req, uint32_t chunk)
{
        struct pool_chunk *pc = pool_chunk(c->params.pool, chunk);
        struct store_ref ref;

        if (pool_is_filling(pc)) {
                cache_wait_on(c, req, chunk, WAITING_FILL);
                return true;
        }
        if (req->ack == CACHE_ACCEPTED) {
                if (pc->state == POOL_WRITING)
                        pc->write->acknowledged = true;
                else if (pc->flags & POOL_REFUSED && pc->use != req->use)
                        cache_write_kept(c, chunk, req->use, true);
                cache_finish_with(c, req, CACHE_EXISTS, chunk);
                return true;
        }
        if (pc->state == POOL_WRITING) {
                cache_wait_on(c, req, chunk, WAITING_WRITE);
                return true;
        }
        if (store_find(c->params.store, req->namespace_id, &req->key, req->hash, &ref, NULL) == 0)
                return finish_existing(c, req, chunk, ref);
        /* Only the pool has the chunk, because its write failed, was refused or was postponed, or
         * the store evicted it. */
        if (cache_over_budget(c, req))
                return false;
        if (!cache_admit(c, req, true))
                cache_finish(c, req, CACHE_NO_SPACE);
        else if (!cache_write_resident(c, chunk, req))
                cache_finish(c, req, CACHE_FAILED);
        return true;
}

/* Reads the client's file. Runs on the blocking-call thread. */
static int read_file(struct kio_request *copy)
{
        struct write *w = container_of(copy, struct write, copy);

        return put_file_read(w->file, w->file_offset, copy->buf, copy->length, &copy->crc);
}

/* Has a worker copy the client's bytes to the pool, or has the blocking-call thread read the
 * client's file into the pool. */
static void submit_copy(struct write *w, const struct cache_request *req, void *to)
{
        w->copy = (struct kio_request){
                .op = KIO_COPY,
                .class = KIO_CLASS_PUT,
                .buf = to,
                .src = req->memory,
                .vector = req->pieces,
                .region = req->region,
                .guard_src = !req->fetched,
                .length = req->length,
                .payload = req->length,
                .complete = on_copied,
        };
        if (req->file) {
                w->file = req->file;
                w->file_offset = req->file_offset;
                w->copy.op = KIO_CALL;
                w->copy.volume = PUT_FILE_THREAD;
                w->copy.call = read_file;
        }
        kio_submit(w->cache->params.io, &w->copy, w->chunk);
}

bool cache_put_try(struct cache *c, struct cache_request *req)
{
        uint32_t chunk = pool_find(c->params.pool, req->namespace_id, &req->key, req->hash);
        struct store_ref ref;
        bool admitted, behind;
        struct write *w;
        int r;

        if (req->fetched && *req->unwanted) {
                cache_finish(c, req, CACHE_CANCELLED);
                return true;
        }
        if (chunk != POOL_NONE)
                return cache_put_present(c, req, chunk);
        if (store_find(c->params.store, req->namespace_id, &req->key, req->hash, &ref, NULL) == 0)
                return finish_existing(c, req, POOL_NONE, ref);
        if (cache_join_direct_put(c, req))
                return true;
        if (cache_others_first(c, req))
                return false;
        behind = cache_over_budget(c, req);
        if (behind && !cache_may_postpone(c, req))
                return false;
        admitted = !behind && cache_admit(c, req, false);
        if (!admitted && req->ack != CACHE_ACCEPTED) {
                cache_finish(c, req, CACHE_NO_SPACE);
                return true;
        }
        if (admitted)
                sets_expect(c->sets, SETS_DISK, req->namespace_id, &req->key);
        /* An unverified chunk of an earlier process may differ from the bytes of this put. */
        pool_drop_unverified(c->params.pool, req->namespace_id, &req->key, req->hash);
        if (cache_put_direct(c, req))
                return true;
        sets_expect(c->sets, SETS_MEMORY, req->namespace_id, &req->key);
        r = pool_acquire(c->params.pool, req->namespace_id, &req->key, req->hash, req->length,
                         req->use, &chunk);
        if (r == POOL_FULL)
                return false;
        if (r == POOL_TOO_LARGE) {
                cache_finish(c, req, CACHE_TOO_LARGE);
                return true;
        }
        pool_chunk(c->params.pool, chunk)->cost = req->cost;
        pool_chunk(c->params.pool, chunk)->gap = req->gap;
        pool_chunk(c->params.pool, chunk)->place = req->chain_place & 0x3;
        pool_chunk(c->params.pool, chunk)->created_ms =
                req->fetched ? req->fetched->created_ms : clock_unix_ms();
        w = write_new(c, chunk, req, behind);
        if (!w) {
                pool_drop(c->params.pool, chunk);
                cache_unpin(c, chunk);
                cache_finish(c, req, CACHE_FAILED);
                return true;
        }
        w->req = req;
        w->refused = !admitted;
        cache_set_waiting(req, WAITING_NOT);
        submit_copy(w, req, pool_at(c->params.pool, chunk));
        return true;
}

void cache_put(struct cache *c, struct cache_request *req)
{
        cache_request_init(c, req, KIND_PUT);
        if (c->stopping)
                cache_finish(c, req, CACHE_CANCELLED);
        else if (req->length > pool_slab_bytes(c->params.pool) ||
                 req->length > store_max_chunk(c->params.store))
                cache_finish(c, req, CACHE_TOO_LARGE);
        else if (!cache_put_try(c, req))
                cache_wait_for_room(c, req);
}
