/* SPDX-License-Identifier: Apache-2.0 */
/* Answers gets from the pool index; see hits.h.
 *
 * Runs in the handle's thread. Owns nothing: holds.c owns the memory.
 *
 * A request is answered here as a whole or not at all. Its keys are hashed and their memory is
 * prefetched first, so that no key waits for the memory of another. Then all of their chunks are
 * held and, after one fence, their records are read again. If a chunk has disappeared, a record
 * belongs to another chunk, or the allowance is too small, the holds are released and the daemon is
 * asked.
 *
 * The position of a chunk comes from the daemon and is checked at each use. */
#include "lib/hits.h"

#include "checked.h"
#include "lib/encode.h"
#include "lib/flow.h"
#include "lib/holds.h"
#include "lib/lookup.h"
#include "lib/message.h"
#include "lib/results.h"
#include "lib/window.h"

enum {
        WANT_AFTER = 32, /* number of keys that the daemon must have found in memory before the
                            client requests the index */
        GROUP = 16,      /* number of keys whose memory is prefetched together */
};

/* --- requesting the index --- */

void hits_want(struct kvcache *kv)
{
        struct hits *h = &kv->conn->hits;
        struct message *m;

        if (h->page || h->asking || h->noted < WANT_AFTER || (kv->flags & KVCACHE_NO_LOOKUP) ||
            !(kv->conn->features & WIRE_FEATURE_POOL_INDEX) || holds_now_s() < h->not_before_s)
                return;
        m = message_new(WIRE_POOL_INDEX, sizeof(struct wire_hdr));
        if (!m)
                return;
        h->asking = true;
        message_queue(kv, m);
}

/* --- taking holds on chunks --- */

static void let_go(struct hits *h, const struct hit *hits, size_t n)
{
        for (size_t i = 0; i < n; i++)
                holds_release(h, hits[i].place);
}

/* Takes holds on all chunks, and checks that each record still belongs to the chunk that was
 * found. On failure releases the holds and returns false. */
static bool hold(struct hits *h, const struct look *look, struct hit *hits, uint32_t number,
                 uint64_t tag)
{
        size_t n = 0;
        bool all;

        while (n < look->count &&
               h->held_bytes + pool_page_held(hits[n].entry.length) <= h->allowance &&
               holds_take(h, hits[n].record, hits[n].entry.length, &hits[n].place))
                n++;
        POOL_INDEX_FENCE(__ATOMIC_SEQ_CST);
        /* If the session has ended meanwhile, the daemon may not have seen the holds. */
        all = n == look->count && pool_index_is_live(&h->view) &&
              __atomic_load_n(&h->page->tags[number - 1], __ATOMIC_ACQUIRE) == tag;
        for (size_t i = 0; all && i < n; i++) {
                uint32_t length = hits[i].entry.length;

                all = pool_index_read(&h->view.records[hits[i].record], tag,
                                      (const struct key *)(look->keys + i * look->stride),
                                      &hits[i].entry) &&
                      hits[i].entry.length == length;
        }
        if (!all)
                let_go(h, hits, n);
        return all;
}

/* --- finding the records of keys --- */

/* Searches the first bucket. Prefetches the record that it names for the hash, or the second bucket
 * if it names none. */
static void go_on_finding(const struct pool_index_view *v, struct hit *hit)
{
        hit->record = pool_index_find(v, hit->hash, true, &hit->at);
        if (hit->record == POOL_INDEX_NONE)
                pool_index_warm_second(v, hit->hash);
        else
                warm(&v->records[hit->record]);
}

/* Finds the record that belongs to key `i` now, and copies it to hit->entry. Returns false if the
 * index does not have the key. */
static bool find(const struct pool_index_view *v, const struct look *look, size_t i, uint64_t tag,
                 struct hit *hit)
{
        const struct key *k = (const struct key *)(look->keys + i * look->stride);

        if (hit->record != POOL_INDEX_NONE &&
            pool_index_read(&v->records[hit->record], tag, k, &hit->entry))
                return true;
        do {
                hit->record = pool_index_find(v, hit->hash, false, &hit->at);
                if (hit->record == POOL_INDEX_NONE)
                        return false;
        } while (!pool_index_read(&v->records[hit->record], tag, k, &hit->entry));
        return true;
}

/* Hashes the keys of [from, to), and prefetches their first buckets. */
static void begin_to_find(const struct pool_index_view *v, const struct look *look, size_t from,
                          size_t to, struct hit *hits)
{
        uint64_t hashes[GROUP];

        window_best()->hash_keys(look->secret, look->keys + from * look->stride, look->stride,
                                 to - from, hashes);
        for (size_t i = from; i < to; i++) {
                hits[i].hash = hashes[i - from];
                hits[i].at = 0;
                pool_index_warm_first(v, hits[i].hash);
        }
}

/* Finds all keys in a pipeline of groups: while one group's keys are hashed, the buckets of the
 * group before are searched, and the records of the group before that are read. Returns false if
 * the index lacks a key. */
static bool find_all(const struct pool_index_view *v, const struct look *look, struct hit *hits,
                     uint64_t tag)
{
        const size_t n = look->count;

        for (size_t at = 0; at < n + 2 * GROUP; at += GROUP) {
                if (at < n)
                        begin_to_find(v, look, at, MIN(at + GROUP, n), hits);
                for (size_t i = at - GROUP; at >= GROUP && i < MIN(at, n); i++)
                        go_on_finding(v, &hits[i]);
                for (size_t i = at - 2 * GROUP; at >= 2 * GROUP && i < MIN(at - GROUP, n); i++)
                        if (!find(v, look, i, tag, &hits[i]))
                                return false;
        }
        return true;
}

/* Checks the ranges and computes the position and length of the requested bytes of each chunk. The
 * caller has taken holds on all chunks. Returns false if a key or range is invalid, a target is too
 * small or a record points outside the pool: the request then goes to the daemon, which sets the
 * key's status. */
static bool place_all(const struct kvcache *kv, const struct kvcache_request *u,
                      const struct resolved *keys, struct hit *hits)
{
        for (size_t i = 0; i < u->count; i++) {
                const struct kvcache_entry *e = u->entries ? resolved_entry(u, i) : NULL;
                uint64_t from = e ? e->range_offset : 0, length = e ? e->range_length : 0;
                uint64_t whole = hits[i].entry.length, at = hits[i].entry.offset;

                if (from >= whole || length > whole - from ||
                    resolved_status(keys, u, i) != KVCACHE_OK)
                        return false;
                if (length == 0)
                        length = whole - from;
                if (at > kv->conn->pool_bytes || whole > kv->conn->pool_bytes - at ||
                    (keys->keys && length > keys->keys[i].bytes))
                        return false;
                hits[i].offset = at + from;
                hits[i].length = (uint32_t)length;
        }
        return true;
}

/* --- answering a get --- */

/* Adds to a counter of the page, which only this thread writes. The release order makes a reader of
 * the new value also see earlier additions. */
static void count_up(uint64_t *counter, uint64_t by)
{
        __atomic_store_n(counter, *counter + by, __ATOMIC_RELEASE);
}

/* Appends the accesses to the page's ring, from which the daemon updates recency. If the ring has
 * no room for them, adds their number to `untold`. */
static void tell(struct hits *h, const struct hit *hits, size_t n, struct pool_page_count *count)
{
        uint64_t taken = __atomic_load_n(&h->page->taken, __ATOMIC_ACQUIRE), at = h->written;

        if (POOL_PAGE_RING - (at - taken) < n + 1 || at - taken > POOL_PAGE_RING) {
                count_up(&count->untold, n);
                return;
        }
        __atomic_store_n(&h->page->ring[at++ % POOL_PAGE_RING], pool_page_touches((uint32_t)n),
                         __ATOMIC_RELAXED);
        for (size_t i = 0; i < n; i++)
                __atomic_store_n(&h->page->ring[at++ % POOL_PAGE_RING],
                                 pool_page_touch(hits[i].record, hits[i].entry.generation),
                                 __ATOMIC_RELAXED);
        h->written = at;
        __atomic_store_n(&h->page->written, at, __ATOMIC_RELEASE);
}

/* Passes the holds to the user as leases and sets the results. Returns false if memory is short;
 * the holds are then released. */
static bool lease_all(struct kvcache *kv, const struct kvcache_request *u, struct hit *hits)
{
        const struct results results = { u->results, u->result_size };
        struct kvcache_result result = { .status = KVCACHE_OK, .tiers = KVCACHE_TIER_MEMORY };
        struct lease_row row;

        for (size_t i = 0; i < u->count; i++) {
                /* Generation 0 marks a lease issued here; leases of the daemon never have it. */
                struct wire_lease place = { .id = hits[i].place };

                if (lease_acquire(&kv->leases, kv->conn, place, hits[i].entry.length,
                                  &hits[i].lease) < 0) {
                        while (i-- > 0) {
                                (void)lease_release(&kv->leases, hits[i].lease, &row);
                                kv->conn->leases--;
                        }
                        let_go(&kv->conn->hits, hits, u->count);
                        return false;
                }
                kv->conn->leases++;
                result.length = hits[i].length;
                result.chunk_length = hits[i].entry.length;
                result.data = kv->conn->pool + hits[i].offset;
                result.lease = hits[i].lease;
                results_set(&results, i, &result);
        }
        return true;
}

static void copy_all(struct kvcache *kv, const struct kvcache_request *u,
                     const struct resolved *keys, const struct hit *hits)
{
        const struct results results = { u->results, u->result_size };

        for (size_t i = 0; i < u->count; i++) {
                resolved_copy(keys, i, kv->conn->pool + hits[i].offset, hits[i].length);
                results_set(&results, i,
                            &(struct kvcache_result){
                                    .status = KVCACHE_OK,
                                    .tiers = KVCACHE_TIER_MEMORY,
                                    .length = hits[i].length,
                                    .chunk_length = hits[i].entry.length,
                            });
        }
        let_go(&kv->conn->hits, hits, u->count);
}

/* Returns whether the library makes the copies of a `get into`. For targets in shared memory,
 * the daemon's workers make copies that are large, that would run before earlier requests have been
 * reaped, or that go to memory that could be truncated (encode.c). */
static bool copies_here(const struct kvcache *kv, const struct resolved *keys)
{
        uint64_t bytes = 0;

        if (!keys->all_shared)
                return true;
        for (size_t i = 0; i < keys->count; i++)
                bytes += keys->keys[i].bytes;
        return keys->all_firm && bytes <= ENCODE_COPIES_MOST && kv->n_async == 0;
}

/* Returns the namespace of a request that may be answered here, otherwise NULL. */
static const struct namespace *namespace_of(const struct kvcache *kv,
                                            const struct kvcache_request *u)
{
        const struct namespace *ns;

        if ((u->op != KVCACHE_OP_GET && u->op != KVCACHE_OP_GET_INTO) || !kv->conn ||
            !kv->conn->hits.page || kv->chain_goes_on || (u->flags & ~(uint32_t)KVCACHE_NOWAIT) ||
            u->count == 0 || u->count > POOL_MAX_TOUCHES || u->namespace_handle == 0 ||
            u->namespace_handle > kv->n_namespaces)
                return NULL;
        ns = &kv->namespaces[u->namespace_handle - 1];
        return ns->session == kv->sessions && ns->id > 0 && ns->id <= POOL_PAGE_NAMESPACES ? ns
                                                                                           : NULL;
}

bool hits_answer(struct kvcache *kv, const struct kvcache_request *u, struct resolved *keys)
{
        const struct namespace *ns = namespace_of(kv, u);
        struct pool_page_count *count;
        struct look look;
        struct hits *h;
        struct key_secret secret;
        uint64_t tag, bytes = 0;
        int64_t began_ns = 0;

        if (!ns)
                return false;
        if (u->op == KVCACHE_OP_GET_INTO &&
            (resolve(kv, u, keys) < 0 || namespace_of(kv, u) != ns || !copies_here(kv, keys)))
                return false;
        h = &kv->conn->hits;
        tag = __atomic_load_n(&h->page->tags[ns->id - 1], __ATOMIC_ACQUIRE);
        if (tag == 0 || !pool_index_is_live(&h->view) || lookup_is_overtaking(kv) ||
            !lookup_session_is_up(kv))
                return false;
        secret = pool_index_secret(&h->view.secret, tag);
        look = (struct look){
                .secret = &secret,
                .keys = u->entries ? u->entries->key.bytes : u->keys->bytes,
                .stride = u->entries ? u->entry_size : sizeof(*u->keys),
                .count = u->count,
        };
        if (!find_all(&h->view, &look, h->scratch, tag) || !hold(h, &look, h->scratch, ns->id, tag))
                return false;
        if (!place_all(kv, u, keys, h->scratch)) {
                let_go(h, h->scratch, u->count);
                return false;
        }
        for (size_t i = 0; i < u->count; i++)
                bytes += h->scratch[i].length;
        if (u->op == KVCACHE_OP_GET) {
                if (!lease_all(kv, u, h->scratch))
                        return false;
        } else {
                began_ns = handle_now_ns();
                copy_all(kv, u, keys, h->scratch);
                message_count_copies(kv, u->count, bytes, began_ns);
        }
        count = &h->page->counts[ns->id - 1];
        count_up(&count->keys, u->count);
        count_up(u->op == KVCACHE_OP_GET ? &count->mapped_bytes : &count->copied_bytes, bytes);
        tell(h, h->scratch, u->count, count);
        kv->gets_local += u->count;
        /* This get sends no message that could carry the pending releases. Sending may reveal that
         * the session has ended; nothing of it is used after this point. */
        if (kv->n_releases > 0 && message_flush_releases(kv) == 0)
                (void)flow_send(kv);
        return true;
}
