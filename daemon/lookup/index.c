/* SPDX-License-Identifier: Apache-2.0 */
/* Implements index.h: the lookup index of each tenant. Runs on the loop thread; owns the tables.
 *
 * A new table is built beside the one that clients read, if there is one: a blocking-call thread
 * populates its memory, then the loop walks the store and the tenant's pool, one slice per
 * iteration. Changes meanwhile go to both tables, but to the new one only behind the position of
 * the walk, which will find the rest itself. Then the new table goes live, waiting requests are
 * answered, the old one is marked superseded, and a blocking-call thread frees it. Clients see the
 * mark and ask for the new table; their mapping of the old one stays valid.
 *
 * A table is replaced when it is nearly full or mostly empty, when too many of its buckets have
 * overflowed, and at once when a volume of the store has returned with another index.
 *
 * Failures: without memory for a new table the waiting requests fail and the old table stays in
 * use. A key without a place in the table is answered over the socket; a key that is present is
 * never reported absent. */
#include "lookup/index.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "checked.h"
#include "cleanup.h"
#include "lookup/table.h"
#include "wire.h"

enum {
        /* Loads of a table: words to be stored, in percent of those for which the main buckets have
         * room. A table at LOAD_FULL or above, or below LOAD_EMPTY, is replaced. */
        LOAD_AT_REST = 97, /* initial load of a large table */
        LOAD_GROWING = 90, /* initial load of the replacement of a full table */
        LOAD_SMALL = 60,   /* initial load of a small table, whose size does not matter */
        LOAD_FULL = 98,
        LOAD_EMPTY = 40,

        STEP = 64, /* entries walked between two readings of the clock */
        POPULATE_BYTES = 2 * BACKING_HUGE_PAGE,
};
#define SMALL_WORDS (UINT64_C(1) << 20)
/* Least time from a build to the replacement of a table that is not full, and from a failed rebuild
 * to the next attempt. */
#define REST_NS (UINT64_C(60) * 1000000000)
/* Time after a failed build without an older table, during which requests wait. */
#define RETRY_NS UINT64_C(1000000000)

enum phase { PHASE_MEMORY, PHASE_STORE, PHASE_POOL };

struct tenant {
        struct lookups *all;
        uint16_t number; /* the tenant's number in the store */
        struct pool *pool;
        struct pool_watch watch;
        bool watching;

        struct lookup_table *live;
        uint64_t built_ns;
        bool full;              /* a larger table is needed */
        bool wanted;            /* a table is needed and none is being built */
        uint64_t not_before_ns; /* end of the interval after a failed build */
        struct list_node waiting;

        struct lookup_table *next; /* the table being built */
        enum phase phase;
        uint64_t populated, store_cursor;
        uint32_t pool_cursor;

        struct kio_request call; /* populates `calling_bytes` of a table's memory from `populated`
                                    on, by a blocking-call thread */
        struct backing calling;
        uint64_t calling_bytes;
        bool is_calling;
        struct lookup_table *orphan; /* the former `next`, still in use by the call */
};

struct lookups {
        struct store *store;
        struct kio *io;
        uint64_t (*available)(void *userdata);
        void *userdata;
        uint32_t min_buckets;
        struct store_watch watch;
        bool watching, stopping;
        unsigned turn; /* selects the tenant whose table is built first in an iteration */
        uint64_t builds, failed;
        unsigned n_tenants;
        struct tenant tenants[];
};

/* --- changes of store and pool --- */

static const struct lookup_table_name *name_of(const struct tenant *t, struct lookup_table *table,
                                               uint32_t id)
{
        static const struct lookup_table_name nobodys;
        struct lookup_table_name *name = &table->names[id % LOOKUP_TABLE_NAMES];
        const struct store_namespace *ns;

        if (name->id == id)
                return name;
        ns = store_namespace_get(t->all->store, id);
        if (!ns)
                return &nobodys; /* belongs to no tenant, because no client can have opened the
                                  * namespace */
        *name = (struct lookup_table_name){ .id = id, .of_tenant = ns->tenant == t->number };
        if (name->of_tenant)
                lookup_namespace_secret(&table->secret, ns->name, strlen(ns->name), &name->secret);
        return name;
}

static void apply(struct tenant *t, struct lookup_table *table, uint32_t namespace_id,
                  const struct key *key, unsigned tier, bool is_there)
{
        const struct lookup_table_name *name = name_of(t, table, namespace_id);

        if (!name->of_tenant)
                return;
        if (is_there)
                lookup_table_add(table, lookup_hash(&name->secret, key), tier);
        else
                lookup_table_remove(table, lookup_hash(&name->secret, key), tier);
        if (table == t->live && !t->full)
                t->full = (table->words + table->unplaced) * 100 >=
                          lookup_table_room(table) * LOAD_FULL;
}

static void on_store_changed(void *userdata, const struct store_change *change)
{
        struct lookups *l = userdata;

        for (unsigned i = 0; i < l->n_tenants; i++) {
                struct tenant *t = &l->tenants[i];

                if (t->number != change->tenant)
                        continue;
                if (t->live)
                        apply(t, t->live, change->namespace_id, change->key, WIRE_TIER_DISK,
                              change->is_there);
                if (t->next && (t->phase > PHASE_STORE ||
                                (t->phase == PHASE_STORE && change->at < t->store_cursor)))
                        apply(t, t->next, change->namespace_id, change->key, WIRE_TIER_DISK,
                              change->is_there);
                return;
        }
}

static void on_pool_changed(void *userdata, uint32_t chunk, bool is_there)
{
        struct tenant *t = userdata;
        const struct pool_chunk *c = pool_chunk(t->pool, chunk);

        if (t->live)
                apply(t, t->live, c->namespace_id, &c->key, WIRE_TIER_MEMORY, is_there);
        if (t->next && t->phase == PHASE_POOL && chunk < t->pool_cursor)
                apply(t, t->next, c->namespace_id, &c->key, WIRE_TIER_MEMORY, is_there);
}

/* --- the life of a table --- */

static void answer(struct tenant *t, int result)
{
        struct list_node waiting = LIST_INIT(waiting);
        struct list_node *n;

        list_splice(&waiting, &t->waiting);
        while ((n = list_pop(&waiting))) {
                struct lookup_wait *wait = container_of(n, struct lookup_wait, node);

                wait->result = result;
                wait->complete(wait);
        }
}

static int run_close(struct kio_request *req)
{
        backing_close(&container_of(req, struct lookup_table, closing)->backing);
        return 0;
}

static void on_table_closed(struct kio_request *req)
{
        lookup_table_free(container_of(req, struct lookup_table, closing));
}

/* Has a blocking-call thread free a table, because a large one takes milliseconds. Returns NULL. */
static struct lookup_table *table_close(const struct lookups *l, struct lookup_table *table)
{
        if (!table)
                return NULL;
        table->closing = (struct kio_request){
                .op = KIO_CALL,
                .class = KIO_CLASS_BACKGROUND,
                .call = run_close,
                .complete = on_table_closed,
        };
        kio_submit(l->io, &table->closing, 0);
        return NULL;
}

static void drop_live(struct tenant *t)
{
        if (!t->live)
                return;
        lookup_table_set_state(t->live, LOOKUP_SUPERSEDED);
        t->live = table_close(t->all, t->live);
}

/* Discards the table being built. While its memory is being populated, the table is only put aside;
 * on_populated() frees it. */
static void drop_next(struct tenant *t)
{
        if (t->is_calling && t->next)
                t->orphan = TAKE_PTR(t->next);
        t->next = table_close(t->all, t->next);
}

/* Discards all tables. The store calls it in the middle of its own work, so rebuilding is left to a
 * later iteration. */
static void on_store_replaced(void *userdata)
{
        struct lookups *l = userdata;

        for (unsigned i = 0; i < l->n_tenants; i++) {
                struct tenant *t = &l->tenants[i];

                t->wanted = t->wanted || t->live || t->next;
                t->not_before_ns = 0;
                drop_live(t);
                drop_next(t);
        }
}

/* Estimates the number of words in the new table. If the estimate is wrong, the table is replaced
 * by one of the right size. */
static uint64_t count_words(const struct tenant *t)
{
        const struct store_namespace *ns;
        struct pool_stats pool;
        uint64_t words;

        if (t->live)
                return t->live->words + t->live->unplaced;
        pool_get_stats(t->pool, &pool);
        words = pool.chunks;
        for (unsigned i = 0; (ns = store_namespace_at(t->all->store, i)); i++)
                if (ns->tenant == t->number)
                        words += ns->chunks;
        return words;
}

static int build_start(struct tenant *t)
{
        struct lookups *l = t->all;
        uint64_t words = count_words(t);
        unsigned load = words < SMALL_WORDS ? LOAD_SMALL : t->full ? LOAD_GROWING : LOAD_AT_REST;
        uint32_t n_buckets = MAX(lookup_table_buckets(words, load), l->min_buckets);
        int r;

        if (l->available && lookup_table_bytes(n_buckets) > l->available(l->userdata) / 2)
                return -ENOMEM;
        r = lookup_table_new(&t->next, n_buckets);
        if (r < 0)
                return r;
        t->phase = PHASE_MEMORY;
        t->populated = 0;
        t->store_cursor = 0;
        t->pool_cursor = 0;
        if (!l->watching) {
                l->watching = true;
                store_add_watch(l->store, &l->watch);
        }
        if (!t->watching) {
                t->watching = true;
                pool_add_watch(t->pool, &t->watch);
        }
        return 0;
}

static void build_failed(struct tenant *t, int r, uint64_t now_ns)
{
        drop_next(t);
        t->all->failed++;
        t->not_before_ns = now_ns + (t->live ? REST_NS : RETRY_NS);
        answer(t, r);
}

static void build_done(struct tenant *t, uint64_t now_ns)
{
        struct lookup_table *old = TAKE_PTR(t->live);

        t->live = TAKE_PTR(t->next);
        t->built_ns = now_ns;
        t->not_before_ns = 0;
        t->full = (t->live->words + t->live->unplaced) * 100 >=
                  lookup_table_room(t->live) * LOAD_FULL;
        lookup_table_set_clock(t->live, now_ns / 1000000);
        lookup_table_set_state(t->live, LOOKUP_LIVE);
        if (old)
                lookup_table_set_state(old, LOOKUP_SUPERSEDED);
        table_close(t->all, old);
        t->all->builds++;
        answer(t, 0);
}

/* The keys found by one step of a walk. They are added together, so that their cache misses
 * overlap. */
struct harvest {
        struct tenant *t;
        unsigned n;
        uint64_t hashes[STEP];
};

static void reap(void *userdata, uint32_t namespace_id, const struct key *key, uint32_t length)
{
        struct harvest *h = userdata;
        const struct lookup_table_name *name = name_of(h->t, h->t->next, namespace_id);
        uint64_t hash;

        if (!name->of_tenant)
                return;
        hash = lookup_hash(&name->secret, key);
        lookup_table_warm(h->t->next, hash);
        h->hashes[h->n++] = hash;
}

static void add_harvest(struct harvest *h, unsigned tier)
{
        for (unsigned i = 0; i < h->n; i++)
                lookup_table_add(h->t->next, h->hashes[i], tier);
}

static int run_populate(struct kio_request *req)
{
        const struct tenant *t = container_of(req, struct tenant, call);
        uint64_t huge;

        return backing_populate_huge(&t->calling, t->populated, t->calling_bytes, &huge);
}

static void on_populated(struct kio_request *req)
{
        struct tenant *t = container_of(req, struct tenant, call);

        t->is_calling = false;
        if (t->orphan) {
                t->orphan = table_close(t->all, t->orphan);
                return;
        }
        if (req->result < 0) {
                build_failed(t, (int)req->result, clock_mono_ns());
                return;
        }
        t->populated += t->calling_bytes;
        if (t->populated == t->next->backing.bytes)
                t->phase = PHASE_STORE;
}

static void populate(struct tenant *t)
{
        t->is_calling = true;
        t->calling = t->next->backing;
        t->calling_bytes = MIN(t->next->backing.bytes - t->populated, (uint64_t)POPULATE_BYTES);
        t->call = (struct kio_request){
                .op = KIO_CALL,
                .class = KIO_CLASS_BACKGROUND,
                .call = run_populate,
                .complete = on_populated,
        };
        list_init(&t->call.node);
        kio_submit(t->all->io, &t->call, 0);
}

static void build_step(struct tenant *t, uint64_t now_ns)
{
        struct harvest h = { .t = t };
        bool more;

        if (t->phase == PHASE_STORE) {
                store_walk(t->all->store, &t->store_cursor, STEP, reap, &h);
                add_harvest(&h, WIRE_TIER_DISK);
                if (t->store_cursor == STORE_WALK_END)
                        t->phase = PHASE_POOL;
                return;
        }
        more = pool_walk(t->pool, &t->pool_cursor, STEP, reap, &h);
        add_harvest(&h, WIRE_TIER_MEMORY);
        if (!more)
                build_done(t, now_ns);
}

/* --- iteration --- */

bool lookups_iterate(struct lookups *l, uint64_t now_ns, uint64_t slice_ns)
{
        uint64_t until_ns = 0;
        bool more = false;

        if (l->stopping)
                return false;
        l->turn++;
        for (unsigned i = 0; i < l->n_tenants; i++) {
                struct tenant *t = &l->tenants[(l->turn + i) % l->n_tenants];

                if (t->full && t->live && !t->next && now_ns >= t->not_before_ns)
                        t->wanted = true;
                if (t->wanted && !t->next && !t->is_calling && now_ns >= t->not_before_ns) {
                        int r = build_start(t);

                        t->wanted = false;
                        if (r < 0)
                                build_failed(t, r, now_ns);
                }
                if (!t->next)
                        continue;
                if (t->phase == PHASE_MEMORY) {
                        if (!t->is_calling)
                                populate(t);
                        continue;
                }
                if (until_ns == 0)
                        until_ns = clock_mono_ns() + slice_ns;
                do {
                        build_step(t, now_ns);
                        now_ns = clock_mono_ns();
                } while (t->next && now_ns < until_ns);
                more = true; /* even a table that was completed just now may need a replacement at
                              * once */
                if (now_ns >= until_ns)
                        break; /* other tenants go first in the next iteration */
        }
        return more;
}

static bool is_worn(const struct lookups *l, const struct lookup_table *t)
{
        return (t->n_buckets > l->min_buckets &&
                (t->words + t->unplaced) * 100 < lookup_table_room(t) * LOAD_EMPTY) ||
               t->overflowed > t->n_buckets / 2 || t->stash_overflowed > t->n_stash / 16 ||
               t->unplaced > t->words >> 16;
}

void lookups_tick(struct lookups *l, uint64_t now_ns)
{
        for (unsigned i = 0; i < l->n_tenants; i++) {
                struct tenant *t = &l->tenants[i];

                if (!t->live)
                        continue;
                lookup_table_set_clock(t->live, now_ns / 1000000);
                if (!t->next && now_ns - t->built_ns >= REST_NS && now_ns >= t->not_before_ns &&
                    is_worn(l, t->live))
                        t->wanted = true;
        }
}

/* --- requests --- */

int lookups_ask(struct lookups *l, unsigned tenant, struct lookup_wait *wait)
{
        struct tenant *t = &l->tenants[tenant];

        assert(tenant < l->n_tenants);
        if (l->stopping)
                return -ESHUTDOWN;
        if (t->live)
                return 0;
        if (!t->next)
                t->wanted = true;
        list_append(&t->waiting, &wait->node);
        return LOOKUP_WAIT;
}

int lookups_fd(const struct lookups *l, unsigned tenant, uint64_t *ret_bytes)
{
        const struct tenant *t = &l->tenants[tenant];

        if (!t->live)
                return -1;
        *ret_bytes = t->live->backing.bytes;
        return t->live->backing.fd;
}

void lookups_cancel(struct lookup_wait *wait)
{
        list_unlink(&wait->node);
        wait->result = -ECANCELED;
        wait->complete(wait);
}

void lookups_stop(struct lookups *l)
{
        l->stopping = true;
        for (unsigned i = 0; i < l->n_tenants; i++) {
                struct tenant *t = &l->tenants[i];

                drop_next(t);
                answer(t, -ESHUTDOWN);
        }
}

/* --- creation and end --- */

int lookups_new(struct lookups **ret, const struct lookups_params *params)
{
        struct lookups *l = calloc(1, sizeof(*l) + params->n_tenants * sizeof(struct tenant));

        if (!l)
                return -ENOMEM;
        l->store = params->store;
        l->io = params->io;
        l->available = params->available;
        l->userdata = params->userdata;
        l->min_buckets = params->min_buckets ? params->min_buckets : LOOKUP_TABLE_MIN_BUCKETS;
        l->watch = (struct store_watch){
                .changed = on_store_changed,
                .replaced = on_store_replaced,
                .userdata = l,
        };
        l->n_tenants = params->n_tenants;
        for (unsigned i = 0; i < l->n_tenants; i++) {
                struct tenant *t = &l->tenants[i];

                t->all = l;
                t->number = params->tenants[i].store_tenant;
                t->pool = params->tenants[i].pool;
                t->watch = (struct pool_watch){ .changed = on_pool_changed, .userdata = t };
                list_init(&t->waiting);
        }
        *ret = l;
        return 0;
}

struct lookups *lookups_free(struct lookups *l)
{
        if (!l)
                return NULL;
        if (l->watching)
                store_remove_watch(&l->watch);
        for (unsigned i = 0; i < l->n_tenants; i++) {
                struct tenant *t = &l->tenants[i];

                assert(list_empty(&t->waiting));
                if (t->watching)
                        pool_remove_watch(&t->watch);
                assert(!t->is_calling);
                if (t->live)
                        lookup_table_set_state(t->live, LOOKUP_SUPERSEDED);
                lookup_table_free(t->live);
                lookup_table_free(t->next);
        }
        free(l);
        return NULL;
}

void lookups_get_stats(const struct lookups *l, struct lookups_stats *ret)
{
        *ret = (struct lookups_stats){ .builds = l->builds, .failed = l->failed };
        for (unsigned i = 0; i < l->n_tenants; i++) {
                const struct tenant *t = &l->tenants[i];

                if (t->next) {
                        ret->building++;
                        ret->bytes += t->next->backing.bytes;
                }
                if (!t->live)
                        continue;
                ret->bytes += t->live->backing.bytes;
                ret->tables++;
                ret->entries += t->live->words;
                ret->unplaced += t->live->unplaced;
                ret->buckets += (uint64_t)t->live->n_buckets + t->live->n_stash;
                ret->overflowed += t->live->overflowed + t->live->stash_overflowed;
        }
}
