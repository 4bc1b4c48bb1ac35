/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers between a client's own memory and the store, without a copy in the pool. The memory is
 * one piece, or several pieces that the device can each address; it receives them as a vector.
 *
 * Put: the store writes the bytes from the client's memory, while a worker computes their checksum
 * there. If the chunk ends with a partial block, the checksum comes first, because that step copies
 * the partial block to a page of the daemon, the tail (tails.h). The chunk is not visible before it
 * is written; a second put of the key waits for the first.
 *
 * Get: the store reads into the client's memory and verifies the bytes there. A later get of the
 * same key during that time reads into the pool, and further gets share that read. While the store
 * has enough reads, a get waits for its user's turn without holding any resource, and then looks
 * the chunk up again.
 *
 * No request is answered before the device has answered, however long that takes, because the
 * device may access the client's memory until then (R17 in SECURITY.md). When the device hangs,
 * other requests that wait for the put are answered that it failed.
 *
 * Failures: if a client writes to the memory during the transfer, the checksum is wrong. After a
 * put, that shows when the chunk is read, and is a miss. After a get it is no evidence against the
 * chunk, so the chunk is read again through the pool. Memory that was unmapped fails the request
 * only. If the user's limit of memory for requests is reached, the request uses the pool. */
#include "cache/internal.h"

#include <errno.h>
#include <stdlib.h>

#include "checked.h"

enum { DIRECT_ALIGNMENT = TAIL_BYTES, DIRECT_PIECES_MAX = 64 };

struct direct {
        struct cache *cache;
        struct cache_request *req;
        size_t charged;   /* bytes charged to the request's user */
        struct tail tail; /* page for the chunk's last, partial block */
        union {
                struct store_put put;
                struct store_get get;
        };
        /* used by a put, from here to `abandoned` */
        struct kio_request crc;
        struct store_write queued;
        bool is_at_store; /* the store has the put: store_put() was called for it */
        bool is_over; /* the write ended with `result`, but the checksum is still being computed */
        int result;
        struct list_node node;    /* in the bucket of cache.direct_puts for the key's hash */
        struct list_node waiters; /* later puts of the same key */
        bool abandoned;      /* the device hangs: no other put waits for this put, and its bytes do
                                not count as unwritten */
        struct iovec room[]; /* vector for the device: the pieces and a tail */
};

/* Returns the number of pieces if the device can address each of them: only the last may end at an
 * unaligned address. Returns 0 if it cannot, or if there are too many. */
static unsigned aligned_pieces(const struct cache_request *req)
{
        uint64_t bytes = 0;
        unsigned n = 0;

        for (; bytes < req->room; bytes += req->pieces[n++].iov_len)
                if (n == DIRECT_PIECES_MAX || bytes % DIRECT_ALIGNMENT != 0 ||
                    (uintptr_t)req->pieces[n].iov_base % DIRECT_ALIGNMENT != 0)
                        return 0;
        return n;
}

static bool may_be_direct(const struct cache_request *req)
{
        if (!req->may_be_direct)
                return false;
        if (req->pieces)
                return req->in_regions && aligned_pieces(req) > 0;
        return req->region && (uintptr_t)req->memory % DIRECT_ALIGNMENT == 0;
}

static struct direct *direct_new(struct cache *c, struct cache_request *req, uint32_t length)
{
        size_t n = req->pieces ? aligned_pieces(req) + 1 : 0;
        size_t bytes = sizeof(struct direct) + n * sizeof(struct iovec);
        bool has_tail = length % DIRECT_ALIGNMENT != 0;
        size_t charged = bytes + (has_tail ? TAIL_BYTES : 0);
        struct direct *d;

        if (req->charge && !req->charge(req, (int64_t)charged))
                return NULL;
        d = calloc(1, bytes);
        if (!d || (has_tail && tail_take(&c->tails, &d->tail) < 0)) {
                free(d);
                if (req->charge)
                        (void)req->charge(req, -(int64_t)charged);
                return NULL;
        }
        d->cache = c;
        d->req = req;
        d->charged = charged;
        list_init(&d->node);
        list_init(&d->waiters);
        return d;
}

static void direct_free(struct direct *d)
{
        if (d->queued.item.member) {
                d->cache->stats.direct_bytes -= d->queued.item.bytes;
                cache_unwritten_end(d->cache, &d->queued);
        }
        if (d->req->charge)
                (void)d->req->charge(d->req, -(int64_t)d->charged);
        tail_release(&d->cache->tails, &d->tail);
        free(d);
}

/* --- direct puts --- */

static struct list_node *bucket_of(struct cache *c, uint64_t hash)
{
        return &c->direct_puts[hash % ARRAY_SIZE(c->direct_puts)];
}

struct list_node *cache_direct_put_waiters(struct cache *c, uint32_t namespace_id,
                                           const struct key *key, uint64_t hash)
{
        if (c->n_direct_puts == 0)
                return NULL;
        list_for_each (bucket_of(c, hash), n) {
                struct direct *d = container_of(n, struct direct, node);

                if (d->req->namespace_id == namespace_id && key_equal(&d->req->key, key))
                        return &d->waiters;
        }
        return NULL;
}

bool cache_join_direct_put(struct cache *c, struct cache_request *req)
{
        struct list_node *waiters =
                cache_direct_put_waiters(c, req->namespace_id, &req->key, req->hash);

        if (!waiters)
                return false;
        cache_set_waiting(req, WAITING_FILL);
        list_append(waiters, &req->node);
        return true;
}

/* Removes a put from its bucket, so that no other put joins it, and hands over the puts that
 * waited. */
static void put_leave(struct direct *d, struct list_node *ret_waiters)
{
        list_unlink(&d->node);
        d->cache->n_direct_puts--;
        list_splice(ret_waiters, &d->waiters);
}

/* Ends a put with the result of the store's write, once the checksum is computed too. The puts that
 * waited are tried again: they find the chunk, or one of them writes it. After STORE_EXISTS, the
 * put itself is tried again, too. */
static void put_end(struct direct *d, int result)
{
        struct cache *c = d->cache;
        struct cache_request *req = d->req;
        struct list_node waiters = LIST_INIT(waiters);
        enum cache_status status = cache_status_of_put(result);
        bool is_tried_again = result == STORE_EXISTS;

        if (d->put.summing) {
                d->is_at_store = false;
                d->is_over = true;
                d->result = result;
                return;
        }
        if (status == CACHE_OK || status == CACHE_NOT_DURABLE) {
                c->stats.puts++;
                c->stats.put_bytes += req->length;
                c->stats.put_bytes_direct += req->length;
                cache_remote_offer(c, req->namespace_id, &req->key, req->hash, req->length, false);
        }
        req->direct = !is_tried_again;
        req->place.ref = result == 0 || result == STORE_NOT_DURABLE ? d->put.ref : STORE_REF_NONE;

        if (!d->abandoned)
                put_leave(d, &waiters);
        direct_free(d);
        c->retry_now = true;
        cache_kick(c);
        if (is_tried_again)
                list_prepend(&waiters, &req->node);
        else
                cache_finish(c, req, status);
        cache_try_in_turn(c, &waiters);
}

static void on_written(struct store_put *put)
{
        put_end(container_of(put, struct direct, put), put->result);
}

/* Answers the puts that wait for this one as failed, because the device hangs. The put itself is
 * not answered, because the device may still read the client's memory. */
static void on_put_abandoned(struct store_put *put)
{
        struct direct *d = container_of(put, struct direct, put);
        struct cache *c = d->cache;
        struct list_node waiters = LIST_INIT(waiters);
        struct list_node *n;

        d->abandoned = true;
        c->stats.direct_bytes -= d->queued.item.bytes;
        cache_unwritten_end(c, &d->queued);
        put_leave(d, &waiters);
        while ((n = list_pop(&waiters)))
                cache_finish(c, container_of(n, struct cache_request, node), CACHE_FAILED);
        c->retry_now = true;
        cache_kick(c);
}

bool cache_direct_store(struct store_write *queued)
{
        struct direct *d = container_of(queued, struct direct, queued);
        struct cache *c = d->cache;
        int r;

        if (d->put.sum_result < 0) {
                put_end(d, d->put.sum_result);
                return true;
        }
        r = store_put(c->params.store, &d->put);
        if (r == 0) {
                d->is_at_store = true;
                return true;
        }
        if (cache_store_may_take(c, &d->put, r))
                return false;
        put_end(d, r != STORE_EXISTS || cache_store_has_again(c, &d->put, r) ? r : -EIO);
        return true;
}

static void on_checksum(struct kio_request *crc)
{
        struct direct *d = container_of(crc, struct direct, crc);

        if (d->is_at_store) {
                store_put_checksum(&d->put, (int)crc->result, crc->crc);
                return;
        }
        d->put.sum_result = (int)crc->result;
        d->put.crc = crc->crc;
        if (d->put.summing) {
                d->put.summing = false;
                if (d->is_over)
                        put_end(d, crc->result < 0 ? (int)crc->result : d->result);
        } else if (crc->result < 0)
                put_end(d, (int)crc->result);
        else
                cache_queue_write(d->cache, &d->queued);
}

bool cache_put_direct(struct cache *c, struct cache_request *req)
{
        struct direct *d;

        if (!may_be_direct(req) || req->ack == CACHE_ACCEPTED)
                return false;
        d = direct_new(c, req, req->length);
        if (!d)
                return false;
        if (cache_unwritten_begin(c, &d->queued, req->user, req->length) < 0) {
                direct_free(d);
                return false;
        }
        cache_charge_write(&d->queued, req);
        d->queued.direct = true;
        c->stats.direct_bytes += req->length;
        d->put = (struct store_put){
                .namespace_id = req->namespace_id,
                .tenant = req->tenant,
                .key = req->key,
                .hash = req->hash,
                .parent = req->parent,
                .use = req->use,
                .gap = req->gap,
                .place = req->chain_place,
                .buf = req->memory,
                .vector = req->pieces,
                .vector_room = d->room,
                .tail = d->tail.page,
                .region = req->region,
                .foreign = true,
                .length = req->length,
                .summing = !d->tail.page,
                .cost = req->cost,
                .durable = req->ack == CACHE_DURABLE,
                .batch = req->batch,
                .ref = STORE_REF_NONE,
                .complete = on_written,
                .abandon = on_put_abandoned,
        };
        d->crc = (struct kio_request){
                .op = KIO_COPY,
                .class = KIO_CLASS_PUT,
                .src = req->memory,
                .vector = req->pieces,
                .tail = d->tail.page,
                .guard_src = true,
                .length = req->length,
                .complete = on_checksum,
        };
        cache_set_waiting(req, WAITING_NOT);
        list_append(bucket_of(c, req->hash), &d->node);
        c->n_direct_puts++;
        if (d->put.summing)
                cache_queue_write(
                        c, &d->queued); /* a put that fails at once still waits for its checksum */
        kio_submit(c->params.io, &d->crc, (unsigned)req->hash);
        return true;
}

/* --- direct gets --- */

/* Lets other reads pass this one, because the device hangs. The get itself is not answered, because
 * the device may still write to the client's memory. */
static void on_get_abandoned(struct store_get *get)
{
        struct direct *d = container_of(get, struct direct, get);

        cache_read_end(d->cache, &d->req->read);
}

static void on_read(struct store_get *get)
{
        struct direct *d = container_of(get, struct direct, get);
        struct cache *c = d->cache;
        struct cache_request *req = d->req;
        int result = get->result;

        req->length = get->length;
        req->place.ref = get->ref;
        direct_free(d);
        cache_read_end(c, &req->read);
        c->retry_now = true;
        if (result == 0) {
                c->stats.get_bytes_direct += req->length;
                req->chunk_length = req->copied = req->length;
                req->direct = true;
                req->tier = CACHE_DISK;
                cache_remote_offer(c, req->namespace_id, &req->key, req->hash, req->length, true);
                cache_finish(c, req, CACHE_OK);
        } else if (result == STORE_SUSPECT) {
                c->stats.direct_fallbacks++;
                req->may_be_direct = false;
                if (!cache_get_try(c, req))
                        cache_wait_for_room(c, req);
        } else {
                req->tier = CACHE_DISK;
                cache_finish(c, req, result == -EFAULT ? CACHE_FAULT : CACHE_MISS);
        }
}

bool cache_get_direct(struct cache *c, struct cache_request *req, struct store_ref ref,
                      uint32_t length, bool in_turn)
{
        struct direct *d;

        if (!may_be_direct(req) || req->room < length || store_is_reading(c->params.store, ref) ||
            cache_read_begin(c, &req->read, req->user, ref, length, READ_GET) < 0)
                return false;
        if (!in_turn && !cache_read_is_due(c, &req->read)) {
                cache_set_waiting(req, WAITING_TURN);
                if (req->owner)
                        list_append(req->owner, &req->owned);
                cache_read_wait(c, &req->read);
                return true;
        }
        d = direct_new(c, req, length);
        if (!d) {
                cache_read_end(c, &req->read);
                return false;
        }
        d->get = (struct store_get){
                .namespace_id = req->namespace_id,
                .key = req->key,
                .hash = req->hash,
                .ref = ref,
                .buf = req->memory,
                .room = req->room,
                .vector = req->pieces,
                .vector_room = d->room,
                .tail = d->tail.page,
                .region = req->region,
                .foreign = true,
                .complete = on_read,
                .abandon = on_get_abandoned,
        };
        cache_set_waiting(req, WAITING_NOT);
        window_submit(&req->read.item);
        if (store_get(c->params.store, &d->get) != 0) {
                cache_read_end(c, &req->read);
                direct_free(d);
                return false;
        }
        return true;
}

void cache_direct_leave(struct cache *c, struct cache_request *req)
{
        list_unlink(&req->owned);
        cache_read_end(c, &req->read);
}

/* Looks the chunk up again, because it may be in the pool, being read, or evicted by now. */
void cache_direct_start(struct cache *c, struct store_read *read)
{
        struct cache_request *req = container_of(read, struct cache_request, read);

        cache_direct_leave(c, req);
        if (!cache_get_try(c, req))
                cache_wait_for_room(c, req);
}
