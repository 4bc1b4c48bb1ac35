/* SPDX-License-Identifier: Apache-2.0 */
/* The writer of the pool index; see pool-index.h, and proto/pool-index.h for the protocol.
 *
 * Owns the index and its own mapping of each client's page. The pages are sealed against shrinking,
 * so that no client can truncate one under this mapping.
 *
 * Failures: a chunk that finds no place in its buckets is not announced, and clients ask the daemon
 * for it. */
#include "lookup/pool-index.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/pages.h"
#include "cache/backing.h"
#include "checked.h"
#include "cleanup.h"
#include "lookup/pool-judge.h"

enum {
        RECORDS_PER_BUCKET = 6, /* records for each bucket of eight words, if the pool is full of
                                 * the smallest chunks */
        FILL_STEP = 128,        /* records visited in one iteration */
        POPULATE_BYTES = 4 << 20,
        ALLOWANCE_PART = 8, /* an allowance is the part of the limit that no other allowance covers,
                             * divided by this */
        REVOKE_FACTOR = 2,  /* a client that holds more than this many times its allowance holds too
                             * much */

        /* Estimated cost of scanning a client's page, and of each hold, which is a cache miss. */
        SCAN_CLIENT_NS = 256,
        SCAN_HOLD_NS = 128,
        SCAN_CHEAP_NS = 20000, /* a scan that costs no more may run at any time */
        SCAN_PART = 8,         /* other scans take at most 1/SCAN_PART of the time */
};
#define ALLOWANCE_MOST  (UINT64_C(1) << 30)
#define ALLOWANCE_LEAST (UINT64_C(64) << 10)

struct pool_index {
        struct pool *pool;
        struct kio *io;
        struct pool_guard guard;
        struct backing backing;
        struct pool_index_header *header;            /* NULL until a client asks for the index */
        struct kio_request call;                     /* populates the memory */
        uint64_t populated, populating, to_populate; /* bytes of the header and the buckets */
        bool is_ready;                               /* the memory of the index is populated */
        struct pool_index_bucket *buckets;
        struct pool_index_record *records;
        uint32_t n_buckets, n_records;
        struct key_secret secret, tags;
        uint32_t filled; /* records visited so far while the index is filled */
        unsigned suspended;
        uint32_t *scans; /* by record: number of the last scan that found it held */
        uint32_t scan;
        uint64_t scan_ns;      /* time of the last scan, CLOCK_MONOTONIC ns */
        uint64_t scan_cost_ns; /* estimated cost of the last scan */
        struct list_node clients;
        struct pool_judge judge;
        struct pool_index_stats stats;
};

/* --- the index --- */

static uint64_t tag_of(const struct pool_index *pi, uint32_t namespace_id)
{
        static const struct key none;
        uint64_t tag = key_hash(&pi->tags, namespace_id, &none);

        return tag ? tag : 1;
}

static void word_set(uint64_t *word, uint64_t value)
{
        __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static unsigned used(const struct pool_index_bucket *b)
{
        unsigned n = 0;

        for (unsigned i = 0; i < POOL_INDEX_WORDS; i++)
                n += b->words[i] != 0;
        return n;
}

/* Adds a word to the first bucket, which readers examine first; once that is more than half full,
 * to the emptier one. Returns false if both are full. */
static bool word_add(struct pool_index *pi, uint64_t hash, uint32_t record)
{
        struct lookup_pair p = pool_index_places(hash, pi->n_buckets);
        struct pool_index_bucket *a = &pi->buckets[p.a], *b = &pi->buckets[p.b];
        unsigned in_a = used(a), in_b = used(b);
        struct pool_index_bucket *to = in_a <= POOL_INDEX_WORDS / 2 || in_a <= in_b ? a : b;

        for (unsigned i = 0; i < POOL_INDEX_WORDS; i++) {
                if (to->words[i] != 0)
                        continue;
                word_set(&to->words[i], pool_index_word(hash, record));
                return true;
        }
        return false;
}

static void word_remove(struct pool_index *pi, uint64_t hash, uint32_t record)
{
        struct lookup_pair p = pool_index_places(hash, pi->n_buckets);
        uint64_t word = pool_index_word(hash, record);

        for (unsigned i = 0; i < 2 * POOL_INDEX_WORDS; i++) {
                struct pool_index_bucket *b = &pi->buckets[i % 2 ? p.b : p.a];

                if (b->words[i / 2] != word)
                        continue;
                word_set(&b->words[i / 2], 0);
                return;
        }
}

static void announce(struct pool_index *pi, uint32_t chunk)
{
        const struct pool_chunk *c = pool_chunk(pi->pool, chunk);
        struct pool_index_record *r = &pi->records[chunk];
        uint32_t serial = r->serial;

        if ((serial & 1) || !pool_is_resident(pi->pool, chunk) ||
            pool_is_dropped(pi->pool, chunk) || !pool_may_announce(pi->pool, chunk))
                return;
        /* A reader that still sees the old record must see that `serial` has changed. */
        POOL_INDEX_FENCE(__ATOMIC_RELEASE);
        r->key = c->key;
        __atomic_store_n(&r->tag, tag_of(pi, c->namespace_id), __ATOMIC_RELAXED);
        __atomic_store_n(&r->offset, pool_offset(pi->pool, chunk), __ATOMIC_RELAXED);
        __atomic_store_n(&r->length, c->length, __ATOMIC_RELAXED);
        __atomic_store_n(&r->generation, c->generation, __ATOMIC_RELAXED);
        if (!word_add(pi, pool_index_hash(&pi->secret, r->tag, &r->key), chunk)) {
                pi->stats.unplaced++;
                return;
        }
        pi->stats.entries++;
        __atomic_store_n(&r->serial, serial + 1, __ATOMIC_RELEASE);
}

static void take_back(struct pool_index *pi, uint32_t chunk)
{
        struct pool_index_record *r = &pi->records[chunk];

        if (!(r->serial & 1))
                return;
        __atomic_store_n(&r->serial, r->serial + 1, __ATOMIC_RELEASE);
        word_remove(pi, pool_index_hash(&pi->secret, r->tag, &r->key), chunk);
        pi->stats.entries--;
}

static void on_changed(void *userdata, uint32_t chunk, bool is_there)
{
        struct pool_index *pi = userdata;

        if (!pi->is_ready)
                return;
        if (is_there)
                announce(pi, chunk);
        else
                take_back(pi, chunk);
}

/* --- memory of the index --- */

static int run_populate(struct kio_request *req)
{
        const struct pool_index *pi = container_of(req, struct pool_index, call);

        return backing_populate(&pi->backing, pi->populated, pi->populating);
}

static void populate(struct pool_index *pi);

static void on_populated(struct kio_request *req)
{
        struct pool_index *pi = container_of(req, struct pool_index, call);

        /* Without memory no chunk is announced, and clients continue to ask the daemon. */
        if (req->result < 0)
                return;
        pi->populated += pi->populating;
        if (pi->populated < pi->to_populate)
                populate(pi);
        else
                pi->is_ready = true;
}

static void populate(struct pool_index *pi)
{
        pi->populating = MIN(pi->to_populate - pi->populated, (uint64_t)POPULATE_BYTES);
        pi->call = (struct kio_request){
                .op = KIO_CALL,
                .class = KIO_CLASS_BACKGROUND,
                .call = run_populate,
                .complete = on_populated,
        };
        list_init(&pi->call.node);
        kio_submit(pi->io, &pi->call, 0);
}

static int make_index(struct pool_index *pi)
{
        uint32_t n_records = pool_max_chunks(pi->pool);
        uint32_t n_buckets = n_records / RECORDS_PER_BUCKET + 1;
        uint64_t bytes = round_up(pool_index_bytes(n_buckets, n_records), 4096);
        struct backing backing;
        int r;

        if (!pi->scans)
                pi->scans = pages_map((size_t)n_records * sizeof(*pi->scans));
        if (!pi->scans)
                return -ENOMEM;
        if (getrandom(&pi->secret, sizeof(pi->secret), 0) != sizeof(pi->secret) ||
            getrandom(&pi->tags, sizeof(pi->tags), 0) != sizeof(pi->tags))
                return -EIO;
        r = backing_open(&backing, "kvcache-pool-index", bytes);
        if (r < 0)
                return r;
        r = backing_populate(&backing, 0, POOL_INDEX_HEADER_BYTES);
        if (r < 0) {
                backing_close(&backing);
                return r;
        }
        pi->backing = backing;
        pi->n_buckets = n_buckets;
        pi->n_records = n_records;
        pi->buckets = (struct pool_index_bucket *)((char *)backing.base + POOL_INDEX_HEADER_BYTES);
        pi->records = (struct pool_index_record *)(pi->buckets + n_buckets);
        pi->header = backing.base;
        *pi->header = (struct pool_index_header){
                .magic = POOL_INDEX_MAGIC,
                .version = POOL_INDEX_VERSION,
                .header_bytes = POOL_INDEX_HEADER_BYTES,
                .bytes = bytes,
                .n_buckets = n_buckets,
                .n_records = n_records,
                .secret = pi->secret,
                .state = pi->suspended ? LOOKUP_BUILDING : LOOKUP_LIVE,
        };
        pi->stats.bytes = bytes;
        pool_make_slabs_private(pi->pool);
        /* Populate the buckets, which are used in random order. Records are used one after the
         * other and populated by page faults. */
        pi->to_populate = MIN(
                round_up(POOL_INDEX_HEADER_BYTES + n_buckets * sizeof(*pi->buckets), 4096), bytes);
        pi->is_ready = !pi->io;
        if (pi->io)
                populate(pi);
        return 0;
}

bool pool_index_iterate(struct pool_index *pi)
{
        uint32_t end;

        if (!pi->is_ready || pi->filled >= pool_records(pi->pool))
                return false;
        end = MIN(pi->filled + FILL_STEP, pool_records(pi->pool));
        for (; pi->filled < end; pi->filled++)
                announce(pi, pi->filled);
        return pi->filled < pool_records(pi->pool);
}

/* Orders the daemon's stores for clients before its loads of their stores. */
static void fence(void)
{
        POOL_INDEX_FENCE(__ATOMIC_SEQ_CST);
}

void pool_index_suspend(struct pool_index *pi, bool suspend)
{
        pi->suspended += suspend ? 1 : -1;
        if (!pi->header)
                return;
        __atomic_store_n(&pi->header->state,
                         (uint64_t)(pi->suspended ? LOOKUP_BUILDING : LOOKUP_LIVE),
                         __ATOMIC_RELEASE);
        fence();
}

static void on_suspend(void *userdata, bool suspend)
{
        pool_index_suspend(userdata, suspend);
}

/* --- holds of clients --- */

static const uint64_t *bucket_of(const struct pool_client *client, uint32_t bucket)
{
        return client->page->holds[bucket];
}

static uint64_t load(const uint64_t *word)
{
        return __atomic_load_n(word, __ATOMIC_RELAXED);
}

/* Calls each() for every hold in the buckets that the client marks as used, if the hold belongs in
 * its bucket. */
static void each_hold(const struct pool_client *client, void (*each)(void *userdata, uint64_t hold),
                      void *userdata)
{
        for (uint32_t i = 0; i < ARRAY_SIZE(client->page->used); i++) {
                for (uint64_t left = load(&client->page->used[i]); left; left &= left - 1) {
                        uint32_t bucket = i * 64 + (uint32_t)__builtin_ctzll(left);

                        for (uint32_t j = 0; j < POOL_PAGE_WAYS; j++) {
                                uint64_t hold = load(&bucket_of(client, bucket)[j]);

                                if ((uint32_t)hold != 0 &&
                                    pool_page_bucket((uint32_t)(hold >> 32) - 1) == bucket)
                                        each(userdata, hold);
                        }
                }
        }
}

/* Stores the record that a hold refers to. Returns false if the hold is invalid, and so holds
 * nothing. */
static bool hold_is_of(const struct pool_index *pi, uint64_t hold, uint32_t *ret)
{
        uint32_t record = (uint32_t)(hold >> 32) - 1;
        const struct pool_chunk *c;

        if (hold >> 32 == 0 || record >= pool_records(pi->pool))
                return false;
        *ret = record;
        c = pool_chunk(pi->pool, record);
        return c->length == (uint32_t)hold && !pool_is_filling(c) &&
               (c->pins > 0 || pool_is_resident(pi->pool, record)) &&
               !pool_is_private(pi->pool, record);
}

static bool client_holds(const struct pool_client *client, uint32_t chunk, uint64_t hold)
{
        uint32_t number = pool_page_bucket(chunk);
        const uint64_t *bucket = bucket_of(client, number);
        bool holds = false;

        /* An unmarked bucket holds nothing, as each_hold() would not visit it. */
        if (!(load(&client->page->used[number / 64]) >> number % 64 & 1))
                return false;
        for (uint32_t i = 0; i < POOL_PAGE_WAYS; i++)
                holds |= load(&bucket[i]) == hold;
        return holds;
}

static bool on_has_clients(void *userdata)
{
        return !list_empty(&((struct pool_index *)userdata)->clients);
}

static void note_held(struct pool_index *pi, uint32_t chunk)
{
        pi->scans[chunk] = pi->scan;
        pool_note_held(pi->pool, chunk);
}

static bool on_is_held(void *userdata, uint32_t chunk)
{
        struct pool_index *pi = userdata;
        uint64_t hold = pool_page_hold(chunk, pool_chunk(pi->pool, chunk)->length);
        bool is_held = false;

        if (pool_is_private(pi->pool, chunk))
                return false;
        fence();
        list_for_each (&pi->clients, n) {
                const struct pool_client *client = container_of(n, struct pool_client, node);

                is_held |= !client->revoked && (uint32_t)hold != 0 &&
                           client_holds(client, chunk, hold);
        }
        if (is_held)
                note_held(pi, chunk);
        return is_held;
}

struct sight {
        struct pool_index *pi;
        uint64_t bytes;
        uint32_t holds;
};

static void mark(void *userdata, uint64_t hold)
{
        struct sight *s = userdata;
        uint32_t record;

        s->bytes += pool_page_held((uint32_t)hold);
        s->holds++;
        if (hold_is_of(s->pi, hold, &record))
                note_held(s->pi, record);
}

/* Returns whether a client holds too much: more than REVOKE_FACTOR times its allowance. A client of
 * the library never holds more than its allowance. The reads here are not atomic while the client
 * holds and releases, so the limit is higher, and must be exceeded repeatedly. */
static bool is_too_much(const struct pool_client *client, uint64_t bytes)
{
        return bytes > client->allowance * REVOKE_FACTOR;
}

static void revoke_client(struct pool_client *client)
{
        pool_index_close(client);
        client->revoked = true;
        client->index->stats.revoked++;
}

/* Revokes the clients that the last scan found holding too much, if their users are barred. */
static void revoke_barred(struct pool_index *pi, uint64_t now_ns)
{
        list_for_each (&pi->clients, n) {
                struct pool_client *client = container_of(n, struct pool_client, node);

                if (client->is_over && !client->revoked &&
                    pool_judge_is_barred(&pi->judge, client->uid, now_ns))
                        revoke_client(client);
        }
}

/* Returns the least time from the last scan to the next one; 0 after a scan of at most
 * SCAN_CHEAP_NS. */
static uint64_t rest_ns(const struct pool_index *pi)
{
        return pi->scan_cost_ns > SCAN_CHEAP_NS ? SCAN_PART * pi->scan_cost_ns : 0;
}

static uint64_t on_next_scan_ns(void *userdata)
{
        const struct pool_index *pi = userdata;

        return pi->scan_ns + rest_ns(pi);
}

static bool on_scan(void *userdata, uint64_t max_age_ns)
{
        struct pool_index *pi = userdata;
        uint64_t now_ns = clock_mono_ns();
        bool is_over = false;

        if (max_age_ns > 0 && pi->scan_ns != 0 &&
            now_ns - pi->scan_ns <= MAX(max_age_ns, rest_ns(pi)))
                return false;
        pool_forget_held_slabs(pi->pool);
        pi->scan++;
        pi->scan_ns = now_ns;
        pi->scan_cost_ns = 0;
        fence();
        list_for_each (&pi->clients, n) {
                struct pool_client *client = container_of(n, struct pool_client, node);
                struct sight s = { .pi = pi };

                if (client->revoked)
                        continue;
                each_hold(client, mark, &s);
                pi->scan_cost_ns += SCAN_CLIENT_NS + (uint64_t)s.holds * SCAN_HOLD_NS;
                client->has_holds = s.holds > 0;
                client->is_over = is_too_much(client, s.bytes);
                if (client->is_over)
                        pool_judge_note_over(&pi->judge, client->uid);
                is_over |= client->is_over;
        }
        pool_judge_end_scan(&pi->judge, now_ns);
        if (is_over)
                revoke_barred(pi, now_ns);
        return true;
}

static bool on_was_held(void *userdata, uint32_t chunk)
{
        const struct pool_index *pi = userdata;

        return pi->scans && pi->scans[chunk] == pi->scan;
}

static bool on_has_holds(void *userdata, uid_t uid)
{
        const struct pool_index *pi = userdata;

        list_for_each (&pi->clients, n) {
                const struct pool_client *client = container_of(n, struct pool_client, node);

                if (client->uid == uid && client->has_holds)
                        return true;
        }
        return false;
}

struct holds {
        const struct pool_index *pi;
        uint64_t bytes;
        uint32_t n;
        void (*each)(void *userdata, uint32_t chunk);
        void *userdata;
};

static void add_hold(void *userdata, uint64_t hold)
{
        struct holds *h = userdata;
        uint32_t record;

        h->bytes += pool_page_held((uint32_t)hold);
        if (!hold_is_of(h->pi, hold, &record))
                return;
        h->n++;
        if (h->each)
                h->each(h->userdata, record);
}

uint32_t pool_index_holds(const struct pool_client *client)
{
        struct holds h = { .pi = client->index };

        if (!client->index || client->revoked)
                return 0;
        fence();
        each_hold(client, add_hold, &h);
        return h.n;
}

void pool_index_each_hold(const struct pool_client *client,
                          void (*each)(void *userdata, uint32_t chunk), void *userdata)
{
        struct holds h = { .pi = client->index };

        if (!client->index || client->revoked)
                return;
        fence();
        each_hold(client, add_hold, &h);
        if (is_too_much(client, h.bytes))
                return;
        h.each = each;
        h.userdata = userdata;
        each_hold(client, add_hold, &h);
}

/* --- clients --- */

int pool_index_new(struct pool_index **ret, struct pool *pool, struct kio *io)
{
        struct pool_index *pi = calloc(1, sizeof(*pi));

        if (!pi)
                return -ENOMEM;
        pi->pool = pool;
        pi->io = io;
        pi->backing.fd = pi->backing.writable_fd = -1;
        pi->guard = (struct pool_guard){
                .has_clients = on_has_clients,
                .changed = on_changed,
                .is_held = on_is_held,
                .scan = on_scan,
                .next_scan_ns = on_next_scan_ns,
                .was_held = on_was_held,
                .has_holds = on_has_holds,
                .suspend = on_suspend,
                .userdata = pi,
        };
        list_init(&pi->clients);
        pool_set_guard(pool, &pi->guard);
        *ret = pi;
        return 0;
}

struct pool_index *pool_index_free(struct pool_index *pi)
{
        if (!pi)
                return NULL;
        pool_set_guard(pi->pool, NULL);
        if (pi->header)
                backing_close(&pi->backing);
        if (pi->scans)
                munmap(pi->scans, (size_t)pool_max_chunks(pi->pool) * sizeof(*pi->scans));
        free(pi);
        return NULL;
}

/* Returns the allowance of a user's next session: 1/ALLOWANCE_PART of the bytes that are left, at
 * most ALLOWANCE_MOST. All sessions of a user together get at most three quarters of `most`. */
static uint64_t allowance_of(const struct pool_index *pi, uid_t uid, uint64_t most)
{
        uint64_t of_user = 0, left;

        list_for_each (&pi->clients, n) {
                const struct pool_client *client = container_of(n, struct pool_client, node);

                if (client->uid == uid)
                        of_user += client->allowance;
        }
        left = MIN(most - MIN(pi->stats.allowed, most), most * 3 / 4 - MIN(of_user, most * 3 / 4));
        return MIN(left / ALLOWANCE_PART, ALLOWANCE_MOST);
}

int pool_index_join(struct pool_index *pi, struct pool_client *client, uid_t uid, uint64_t most,
                    int *ret_fd, uint64_t *ret_bytes, int *ret_page_fd)
{
        uint64_t allowance = allowance_of(pi, uid, most);
        _cleanup_(freep) struct pool_index_seen *seen = calloc(POOL_PAGE_NAMESPACES, sizeof(*seen));
        void *page = NULL;
        int r = 0;

        if (!seen)
                return -ENOMEM;
        if (pool_judge_is_barred(&pi->judge, uid, clock_mono_ns()))
                return -EACCES;
        if (allowance < ALLOWANCE_LEAST)
                return -EDQUOT;
        if (!pi->header)
                r = make_index(pi);
        if (r == 0)
                r = pages_share("kvcache-holds", POOL_PAGE_BYTES, PROT_READ | PROT_WRITE, &page,
                                ret_page_fd);
        if (r < 0)
                return r;
        client->page = page;
        client->seen = TAKE_PTR(seen);
        client->joined_ns = clock_mono_ns();
        client->page->allowance = allowance;
        client->allowance = allowance;
        client->uid = uid;
        client->index = pi;
        client->pool = pi->pool;
        list_init(&client->node);
        list_append(&pi->clients, &client->node);
        pi->stats.allowed += allowance;
        pi->stats.clients++;
        *ret_fd = pi->backing.fd;
        *ret_bytes = pi->backing.bytes;
        return 0;
}

void pool_index_leave(struct pool_client *client)
{
        struct pool_index *pi = client->index;

        if (!pi)
                return;
        list_unlink(&client->node);
        munmap(client->page, POOL_PAGE_BYTES);
        free(client->seen);
        pi->stats.allowed -= client->allowance;
        pi->stats.clients--;
        *client = (struct pool_client){ 0 };
        pool_hold_less(pi->pool);
}

void pool_index_close(struct pool_client *client)
{
        if (!client->index)
                return;
        for (unsigned i = 0; i < POOL_PAGE_NAMESPACES; i++)
                __atomic_store_n(&client->page->tags[i], 0, __ATOMIC_RELAXED);
        fence();
}

void pool_index_allow(struct pool_client *client, unsigned number, uint32_t id)
{
        if (!client->index || client->revoked || number == 0 || number > POOL_PAGE_NAMESPACES)
                return;
        __atomic_store_n(&client->page->tags[number - 1], id == 0 ? 0 : tag_of(client->index, id),
                         __ATOMIC_RELEASE);
}

/* --- iteration over clients --- */

struct pool_client *pool_index_next_client(const struct pool_index *pi, struct pool_client *before)
{
        const struct list_node *n = before ? before->node.next : pi->clients.next;

        return n == &pi->clients ? NULL : container_of(n, struct pool_client, node);
}

struct pool_client *pool_index_turn(struct pool_index *pi)
{
        struct list_node *n = pi->clients.next;

        if (list_empty(&pi->clients))
                return NULL;
        list_unlink(n);
        list_append(&pi->clients, n);
        return container_of(n, struct pool_client, node);
}

void pool_index_get_stats(const struct pool_index *pi, struct pool_index_stats *ret)
{
        *ret = pi->stats;
}
