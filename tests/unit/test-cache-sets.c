/* SPDX-License-Identifier: Apache-2.0 */
/* The cache: chunks of one key in the namespaces of several shards leave a tier together, and
 * chunks of other namespaces are evicted as if there were no sets. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "cache-fixture.h"
#include "checked.h"
#include "evict/admission.h"

enum { FILLER = 1000 };

static uint32_t plain; /* the namespace of the fixture */

static void put_again(uint32_t ns, uint32_t n, enum cache_status status)
{
        struct req r;

        t.ns = ns;
        put_bytes(&r, n, CACHE_WRITTEN, 1, SMALL);
        t.ns = plain;
        expect(&r, status);
        tiers_settle(&t);
}

/* Puts a chunk into a namespace, in memory and on disk. */
static void put_into(uint32_t ns, uint32_t n)
{
        put_again(ns, n, CACHE_OK);
}

static bool is_in(uint32_t ns, uint32_t n, unsigned tier)
{
        struct key k = key_of(n);
        uint64_t hash = store_hash(t.store, ns, &k);

        return tier == SETS_MEMORY ? pool_find(t.pool, ns, &k, hash) != POOL_NONE
                                   : store_find(t.store, ns, &k, hash, NULL, NULL) == 0;
}

/* Puts other chunks until the tier has evicted the key of the namespace. Returns the next filler's
 * number. */
static uint32_t fill_until_evicted(uint32_t ns, uint32_t n, unsigned tier, uint32_t filler)
{
        while (is_in(ns, n, tier)) {
                assert_true(filler < FILLER + 10000);
                put_into(plain, filler++);
        }
        tiers_settle(&t);
        return filler;
}

static void begin(void)
{
        plain = t.ns;
}

/* Puts key 1 into the first namespace, then enough to fill `tier` in part, and key 1 into the
 * others. So only the first one is old. */
static void put_a_set(const uint32_t *shards, unsigned n, uint32_t fillers)
{
        put_into(shards[0], 1);
        for (uint32_t i = 0; i < fillers; i++)
                put_into(plain, 100 + i);
        for (unsigned i = 1; i < n; i++)
                put_into(shards[i], 1);
}

static void the_others_are_evicted_next(unsigned tier, uint32_t fillers)
{
        uint32_t shards[3], filler;
        struct sets_stats sets;

        begin();
        shards[0] = tiers_namespace(&t, "m/g0/s0.of.3");
        shards[1] = tiers_namespace(&t, "m/g0/s1.of.3");
        shards[2] = tiers_namespace(&t, "m/g0/s2.of.3");
        put_a_set(shards, 3, fillers);
        put_into(shards[1], 2);
        filler = fill_until_evicted(shards[0], 1, tier, FILLER);
        sets = stats().sets;
        assert_int_equal(sets.demoted[tier], 2);
        assert_int_equal(sets.missed[tier], 0);
        for (uint32_t i = 0; i < 2; i++)
                put_into(plain, filler++);
        assert_false(is_in(shards[1], 1, tier));
        assert_false(is_in(shards[2], 1, tier));
        assert_true(is_in(plain, 100, tier)); /* older than they were */
        assert_true(is_in(shards[1], 2, tier));
}

static void the_other_shards_leave_memory_next(void **state)
{
        the_others_are_evicted_next(SETS_MEMORY, 30);
}

static void small_disk(void)
{
        tiers_close(&t);
        t.limit = 12 * MIB;
        tiers_open(&t);
        t.limit = 0;
}

static void the_other_shards_leave_the_disk_next(void **state)
{
        small_disk();
        the_others_are_evicted_next(SETS_DISK, 30);
}

/* The missing chunk needs a slot when the tier is full, and does not get the slot of its set. */
static void a_set_that_is_completed_on_disk_stays(void **state)
{
        unsigned tier = SETS_DISK;
        uint32_t shards[2], filler;

        small_disk();
        begin();
        shards[0] = tiers_namespace(&t, "m/g0/s0.of.2");
        shards[1] = tiers_namespace(&t, "m/g0/s1.of.2");
        put_a_set(shards, 2, 30);
        filler = fill_until_evicted(shards[0], 1, tier, FILLER);
        assert_int_equal(stats().sets.demoted[tier], 1);
        put_again(shards[0], 1, CACHE_EXISTS); /* in memory */
        assert_int_equal(stats().sets.promoted[tier], 1);
        for (uint32_t i = 0; i < 5; i++)
                put_into(plain, filler++);
        assert_true(is_in(shards[0], 1, tier) && is_in(shards[1], 1, tier));
        assert_int_equal(stats().sets.demoted[tier], 1);
}

static void a_set_that_is_read_again_stays_in_memory(void **state)
{
        uint32_t shards[2], filler;
        struct req r;

        begin();
        shards[0] = tiers_namespace(&t, "m/g0/s0.of.2/v2");
        shards[1] = tiers_namespace(&t, "m/g0/s1.of.2/v2");
        put_a_set(shards, 2, 30);
        filler = fill_until_evicted(shards[0], 1, SETS_MEMORY, FILLER);
        t.ns = shards[0];
        get(&r, 1);
        t.ns = plain;
        expect(&r, CACHE_OK);
        assert_int_equal(r.version, 1);
        for (uint32_t i = 0; i < 5; i++)
                put_into(plain, filler++);
        assert_true(is_in(shards[0], 1, SETS_MEMORY) && is_in(shards[1], 1, SETS_MEMORY));
        assert_int_equal(stats().sets.promoted[SETS_MEMORY], 1);
}

static void a_leased_shard_stays(void **state)
{
        struct key k = key_of(1);
        uint32_t shards[2], chunk;

        begin();
        shards[0] = tiers_namespace(&t, "m/g0/s0.of.2");
        shards[1] = tiers_namespace(&t, "m/g0/s1.of.2");
        put_a_set(shards, 2, 30);
        chunk = pool_find(t.pool, shards[1], &k, store_hash(t.store, shards[1], &k));
        pool_lease(t.pool, chunk);
        (void)fill_until_evicted(shards[0], 1, SETS_MEMORY, FILLER);
        assert_int_equal(stats().sets.demoted[SETS_MEMORY], 0);
        assert_true(is_in(shards[1], 1, SETS_MEMORY));
        (void)pool_unlease(t.pool, chunk);
}

/* --- puts that complete a set --- */

/* Puts chunks until the disk evicts the key of the namespace, and reaps them without an iteration,
 * so that the eviction has not been followed when this returns. */
static void evict_from_disk_now(uint32_t ns, uint32_t n)
{
        for (uint32_t filler = FILLER; is_in(ns, n, SETS_DISK); filler++) {
                struct req r;

                assert_true(filler < FILLER + 10000);
                put_bytes(&r, filler, CACHE_ACCEPTED, 1, SMALL);
                while (!r.done || cache_pending(t.cache) > 0 || store_pending(t.store) > 0) {
                        tiers_wait_io(&t);
                        kio_reap(t.io);
                        store_iterate(t.store);
                        kio_flush(t.io);
                }
        }
}

/* Drops the chunk from memory, whether the disk has it or not. */
static void forget_in_memory(uint32_t ns, uint32_t n)
{
        struct key k = key_of(n);

        pool_drop(t.pool, pool_find(t.pool, ns, &k, store_hash(t.store, ns, &k)));
}

/* The chunk is written again before the eviction was followed, and is on its way to the disk when
 * that happens. */
static void a_set_whose_chunk_is_being_written_is_not_demoted(void **state)
{
        uint32_t shards[2];
        struct req r;

        small_disk();
        begin();
        shards[0] = tiers_namespace(&t, "m/g0/s0.of.2");
        shards[1] = tiers_namespace(&t, "m/g0/s1.of.2");
        put_a_set(shards, 2, 30);
        evict_from_disk_now(shards[0], 1);
        hold(KIO_WRITE, 1);
        t.ns = shards[0];
        put_bytes(&r, 1, CACHE_WRITTEN, 1, SMALL); /* resident in memory */
        t.ns = plain;
        assert_false(r.done);
        tiers_iterate(&t);
        assert_false(is_in(shards[0], 1, SETS_DISK));
        assert_int_equal(stats().sets.demoted[SETS_DISK], 0);
        release();
        expect(&r, CACHE_EXISTS);
        tiers_settle(&t);
        assert_true(is_in(shards[0], 1, SETS_DISK) && is_in(shards[1], 1, SETS_DISK));
        assert_int_equal(stats().sets.demoted[SETS_DISK], 0);
}

/* The write budget keeps the missing chunk in memory, so the set on disk stays incomplete until a
 * second use of the chunk writes it. */
static void a_refused_chunk_completes_no_set_on_disk(void **state)
{
        struct admission *admission;
        struct key k = key_of(1);
        struct cache_place place;
        uint32_t shards[2];
        struct req r;

        assert_int_equal(admission_new(&admission, 1 << 10, 1, clock_mono_ns()), 0);
        tiers_close(&t);
        t.limit = 12 * MIB;
        t.admission = admission;
        tiers_open(&t);
        begin();
        shards[0] = tiers_namespace(&t, "m/g0/s0.of.2");
        shards[1] = tiers_namespace(&t, "m/g0/s1.of.2");
        put_a_set(shards, 2, 30);
        (void)fill_until_evicted(shards[0], 1, SETS_DISK, FILLER);
        assert_int_equal(stats().sets.demoted[SETS_DISK], 1);
        t.ns = shards[0];
        forget_in_memory(shards[0], 1);
        assert_int_equal(admission_set_budget(admission, 86400, clock_mono_ns()), 0);
        admission_count_written(admission, 0, clock_mono_ns());
        admission_count_written(admission, 1 << 30, clock_mono_ns());
        put_bytes(&r, 1, CACHE_ACCEPTED, 1, SMALL);
        expect(&r, CACHE_OK);
        tiers_settle(&t);
        assert_false(is_in(shards[0], 1, SETS_DISK));
        assert_int_equal(stats().sets.promoted[SETS_DISK], 0);

        assert_int_equal(admission_set_budget(admission, 0, clock_mono_ns()), 0);
        assert_true(cache_find(t.cache, t.ns, &k, cache_hash(t.cache, t.ns, &k), &place, NULL));
        cache_touch(t.cache, &place, cache_next_use(t.cache), EVICT_NO_GAP);
        tiers_settle(&t);
        assert_true(is_in(shards[0], 1, SETS_DISK) && is_in(shards[1], 1, SETS_DISK));
        assert_int_equal(stats().sets.promoted[SETS_DISK], 1);
        t.ns = plain;
        t.limit = 0;
        tiers_close(&t);
        t.admission = NULL;
        admission_free(admission);
        tiers_open(&t);
}

/* Memory from which a put goes to the disk directly. */
struct shared {
        struct kio_region region;
        char *at;
        bool over;
};

static void region_is_over(struct kio_region *region)
{
        container_of(region, struct shared, region)->over = true;
}

static void share(struct shared *m)
{
        *m = (struct shared){ .at = mmap(NULL, MIB, PROT_READ | PROT_WRITE,
                                         MAP_SHARED | MAP_ANONYMOUS, -1, 0) };
        assert_ptr_not_equal(m->at, MAP_FAILED);
        m->region = (struct kio_region){ .base = m->at, .bytes = MIB, .complete = region_is_over };
        kio_region_register(t.io, &m->region);
        tiers_wait(&t, &m->over);
}

static void unshare(struct shared *m)
{
        m->over = false;
        kio_region_unregister(t.io, &m->region);
        tiers_wait(&t, &m->over);
        munmap(m->at, MIB);
}

/* A put that goes to the disk directly completes the set there, and none in memory. */
static void a_direct_put_completes_a_set_on_disk_only(void **state)
{
        uint32_t shards[2];
        struct shared m;
        struct req r;

        small_disk();
        begin();
        share(&m);
        shards[0] = tiers_namespace(&t, "m/g0/s0.of.2");
        shards[1] = tiers_namespace(&t, "m/g0/s1.of.2");
        put_a_set(shards, 2, 30);
        forget_in_memory(shards[0], 1);
        {
                struct key k = key_of(1);

                assert_true(pool_demote(t.pool, pool_find(t.pool, shards[1], &k,
                                                          store_hash(t.store, shards[1], &k))));
        }
        evict_from_disk_now(shards[0], 1);
        hold(KIO_WRITE, 1);
        t.ns = shards[0];
        start(&r, 1);
        t.ns = plain;
        r.req.memory = m.at;
        r.req.region = &m.region;
        r.req.may_be_direct = true;
        r.req.length = SMALL;
        r.req.ack = CACHE_WRITTEN;
        cache_put(t.cache, &r.req);
        kio_flush(t.io);
        tiers_iterate(&t); /* follows the eviction while the put is in flight */
        assert_true(stats().direct_bytes > 0);
        assert_int_equal(stats().sets.demoted[SETS_DISK], 0);
        assert_int_equal(stats().sets.promoted[SETS_MEMORY], 0);
        release();
        expect(&r, CACHE_OK);
        assert_true(is_in(shards[0], 1, SETS_DISK) && is_in(shards[1], 1, SETS_DISK));
        unshare(&m);
}

enum { MANY_PUTS = 100 };

/* While a chunk is demoted, each put looks for the other shards of its key. A set that is completed
 * after the lookups of the iteration were used up is promoted in a later one. */
static void puts_of_an_iteration_look_for_a_bounded_number_of_chunks(void **state)
{
        static struct req many[MANY_PUTS];
        uint32_t shards[SETS_MOST_SHARDS];

        small_disk();
        begin();
        for (unsigned i = 0; i < SETS_MOST_SHARDS; i++) {
                char name[32];

                snprintf(name, sizeof(name), "m/g0/s%u.of.%d", i, SETS_MOST_SHARDS);
                shards[i] = tiers_namespace(&t, name);
        }
        put_a_set(shards, 2, 30);
        (void)fill_until_evicted(shards[0], 1, SETS_DISK, FILLER);
        assert_int_equal(stats().sets.demoted[SETS_DISK], 1);
        t.ns = shards[0];
        forget_in_memory(shards[0], 1);
        looks = 0;
        for (uint32_t i = 0; i < MANY_PUTS; i++)
                put_bytes(&many[i], i == MANY_PUTS - 1 ? 1 : 10000 + i, CACHE_ACCEPTED, 1, 4096);
        t.ns = plain;
        assert_in_range(looks, MANY_PUTS, MANY_PUTS + 128 + 2 * SETS_MOST_SHARDS);
        assert_int_equal(stats().sets.promoted[SETS_DISK], 0);
        for (uint32_t i = 0; i < MANY_PUTS; i++)
                expect(&many[i], CACHE_OK);
        tiers_settle(&t);
        assert_int_equal(stats().sets.promoted[SETS_DISK], 1);
        assert_int_equal(stats().sets.missed[SETS_DISK], 0);
}

struct owned {
        struct store_namespace_open req;
        bool done;
        uint32_t id;
};

static void on_opened(struct store_namespace_open *req)
{
        struct owned *o = container_of(req, struct owned, req);

        assert_int_equal(req->result, 0);
        o->id = req->namespace->id;
        o->done = true;
}

static uint32_t open_as(const char *name, uint32_t owner)
{
        struct owned o = { .req = { .name = name,
                                    .name_length = (uint16_t)strlen(name),
                                    .fingerprint = "",
                                    .owner = owner,
                                    .complete = on_opened } };

        store_namespace_open(t.store, &o.req);
        tiers_wait(&t, &o.done);
        return o.id;
}

static void what_belongs_to_no_set_stays(void **state)
{
        static const char *const others[] = {
                "m/g0/s1.of.3", /* another number of shards */
                "m/g1/s1.of.2", /* another group */
                "m/g0/s01.of.2", "m/g0/s2.of.2",    "m/g0/s1.of.2/",
                "m/g0",          "m/g0/s1.of.2/v2", /* another variant */
        };
        uint32_t first, ids[ARRAY_SIZE(others)];

        begin();
        first = tiers_namespace(&t, "m/g0/s0.of.2");
        put_into(first, 1);
        for (uint32_t i = 0; i < 30; i++)
                put_into(plain, 100 + i);
        for (unsigned i = 0; i < ARRAY_SIZE(others); i++) {
                ids[i] = tiers_namespace(&t, others[i]);
                put_into(ids[i], 1);
        }
        (void)fill_until_evicted(first, 1, SETS_MEMORY, FILLER);
        assert_int_equal(stats().sets.demoted[SETS_MEMORY], 0);
        for (unsigned i = 0; i < ARRAY_SIZE(others); i++)
                assert_true(is_in(ids[i], 1, SETS_MEMORY));
}

/* Another user cannot have chunks evicted by opening a namespace with a name of the set. */
static void shards_of_another_owner_stay(void **state)
{
        uint32_t shards[2], filler;

        begin();
        shards[0] = tiers_namespace(&t, "m/g0/s0.of.2");
        shards[1] = open_as("m/g0/s1.of.2", 1234);
        put_a_set(shards, 2, 30);
        filler = fill_until_evicted(shards[0], 1, SETS_MEMORY, FILLER);
        put_into(plain, filler);
        assert_int_equal(stats().sets.demoted[SETS_MEMORY], 0);
        assert_true(is_in(shards[1], 1, SETS_MEMORY));
}

/* --- many evictions at once, in a pool without a cache --- */

enum { SHARDS = 8, SLOTS = 4096, KEYS = SLOTS / SHARDS, OWNER_QUEUE = 3072 };

static struct pool *pool_of_slots(void)
{
        struct pool *p;

        assert_int_equal(pool_new(&p, (uint64_t)SLOTS * 4096, "lru"), 0);
        while (pool_next_slab(p) >= 0)
                assert_int_equal(pool_open_slab(p, 0), 0);
        return p;
}

static struct sets *sets_of(struct pool *p)
{
        const struct sets_params params = { .pool = p, .store = t.store };
        struct sets *sets;

        assert_int_equal(sets_new(&sets, &params), 0);
        return sets;
}

static void add(struct pool *p, uint32_t ns, uint32_t n)
{
        struct key k = key_of(n);
        uint32_t chunk;

        assert_int_equal(pool_acquire(p, ns, &k, store_hash(t.store, ns, &k), 4096, 0, &chunk), 0);
        pool_commit(p, chunk, 0);
        (void)pool_unpin(p, chunk);
        pool_note_time(p, 1); /* the next search may pass over as many chunks as this one */
}

static void open_shards(uint32_t shards[static SHARDS])
{
        for (unsigned i = 0; i < SHARDS; i++) {
                char name[32];

                snprintf(name, sizeof(name), "m/g0/s%u.of.%d", i, SHARDS);
                shards[i] = tiers_namespace(&t, name);
        }
}

static void an_iteration_follows_a_bounded_number_of_evictions(void **state)
{
        struct pool *p = pool_of_slots();
        uint32_t shards[SHARDS];
        unsigned iterations = 0;
        struct sets *sets;
        uint64_t before;

        open_shards(shards);
        sets = sets_of(p);
        for (uint32_t i = 0; i < SLOTS; i++)
                add(p, shards[i / KEYS], i % KEYS);
        for (uint32_t i = 0; i < KEYS; i++)
                add(p, t.ns, i); /* evicts the first shard of each key */
        for (; sets_has_work(sets); iterations++) {
                before = sets_get_stats(sets)->demoted[SETS_MEMORY];
                sets_iterate(sets);
                assert_in_range(sets_get_stats(sets)->demoted[SETS_MEMORY] - before, 1, 512);
        }
        assert_int_equal(sets_get_stats(sets)->demoted[SETS_MEMORY], KEYS * (SHARDS - 1));
        assert_true(iterations > 4);
        for (uint32_t i = KEYS; i < SLOTS; i++)
                add(p, t.ns, i);
        for (uint32_t i = 0; i < SLOTS; i++) {
                struct key k = key_of(i);

                assert_true(pool_find(p, t.ns, &k, store_hash(t.store, t.ns, &k)) != POOL_NONE);
        }
        sets_free(sets);
        pool_free(p);
}

static void evictions_beyond_the_queue_are_counted(void **state)
{
        struct pool *p = pool_of_slots();
        uint32_t shards[SHARDS];
        struct sets *sets;

        open_shards(shards);
        sets = sets_of(p);
        for (uint32_t i = 0; i < SLOTS + OWNER_QUEUE + 100; i++)
                add(p, shards[0], i);
        assert_int_equal(sets_get_stats(sets)->missed[SETS_MEMORY], 100);
        while (sets_has_work(sets))
                sets_iterate(sets);
        assert_int_equal(sets_get_stats(sets)->demoted[SETS_MEMORY], 0);
        add(p, shards[0], 1 << 20);
        assert_int_equal(sets_get_stats(sets)->missed[SETS_MEMORY], 100);
        assert_true(sets_has_work(sets));
        sets_free(sets);
        pool_free(p);
}

/* A user whose sets lose more chunks than an iteration follows keeps no other user's sets from
 * being promoted at once, or followed. */
static void one_owner_leaves_lookups_and_queue_to_others(void **state)
{
        struct pool *p = pool_of_slots();
        uint32_t shards[SHARDS], others[2];
        struct sets *sets;
        struct key k = key_of(1);

        open_shards(shards);
        others[0] = open_as("m/g1/s0.of.2", 1234);
        others[1] = open_as("m/g1/s1.of.2", 1234);
        sets = sets_of(p);
        add(p, others[0], 1);
        assert_true(
                pool_demote(p, pool_find(p, others[0], &k, store_hash(t.store, others[0], &k))));
        for (uint32_t i = 0; i < SLOTS; i++)
                sets_expect(sets, SETS_MEMORY, shards[0], &k);
        assert_true(sets_get_stats(sets)->missed[SETS_MEMORY] > 0);
        sets_expect(sets, SETS_MEMORY, others[1], &k);
        assert_int_equal(sets_get_stats(sets)->promoted[SETS_MEMORY], 1);
        for (uint32_t i = 0; i < SLOTS + 100; i++) /* evicts the other owner's, and many more */
                add(p, shards[0], i);
        assert_int_equal(pool_find(p, others[0], &k, store_hash(t.store, others[0], &k)),
                         POOL_NONE);
        add(p, others[1], 1);
        while (sets_has_work(sets))
                sets_iterate(sets);
        assert_int_equal(sets_get_stats(sets)->demoted[SETS_MEMORY], 1);
        sets_free(sets);
        pool_free(p);
}

enum { FAMILIES = 1000 };

/* Has each family expect a chunk, in turn. Returns how many were resolved by name for it. */
static uint64_t expect_in_all(struct sets *sets, const uint32_t *namespaces)
{
        uint64_t before = sets_get_stats(sets)->resolved;
        struct key k = key_of(1);

        for (unsigned i = 0; i < FAMILIES; i++) {
                sets_expect(sets, SETS_MEMORY, namespaces[i], &k);
                sets_iterate(sets);
        }
        return sets_get_stats(sets)->resolved - before;
}

/* Puts into many families in turn do not make them replace each other's records. */
static void a_thousand_families_are_remembered(void **state)
{
        static uint32_t firsts[FAMILIES];
        struct pool *p = pool_of_slots();
        struct sets *sets = sets_of(p);
        struct key k = key_of(7);
        char name[32];

        for (unsigned i = 0; i < FAMILIES; i++) {
                snprintf(name, sizeof(name), "m%u/s0.of.2", i);
                firsts[i] = tiers_namespace(&t, name);
        }
        add(p, t.ns, 7);
        assert_true(pool_demote(p, pool_find(p, t.ns, &k, store_hash(t.store, t.ns, &k))));
        assert_int_equal(expect_in_all(sets, firsts), FAMILIES);
        assert_int_equal(expect_in_all(sets, firsts), 0);
        (void)tiers_namespace(&t, "another"); /* a new one may belong to any family */
        assert_int_equal(expect_in_all(sets, firsts), FAMILIES);
        sets_free(sets);
        pool_free(p);
}

static void names_of_shards_are_recognized(void **state)
{
        static const char *const bad[] = {
                "",
                "s0.of.2",
                "/s0.of.2",
                "a/s0.of.1",
                "a/s0.of.0",
                "a/s2.of.2",
                "a/s.of.2",
                "a/s0.of.",
                "a/s00.of.2",
                "a/s0.of.02",
                "a/s0.of.65",
                "a/s0.of.100",
                "a/s-1.of.2",
                "a/s0.of.2 ",
                "a/s0 .of.2",
                "a/t0.of.2",
                "a/s0.on.2",
                "a/s99999999999.of.2",
                "a/s0.of.4294967298",
                "a/s0xof.2",
                "as0.of.2",
                "/v2",
                "a/v2",
                "a/s0.of.2/v",
                "a/s0.of.2/w2",
                "a/s0.of.2/v2/v3",
                "a/s0.of.2v2",
        };
        struct sets_name name;

        for (unsigned i = 0; i < ARRAY_SIZE(bad); i++)
                if (sets_parse_name(bad[i], &name))
                        fail_msg("'%s' is taken for the name of a shard", bad[i]);
        assert_true(sets_parse_name("kv/m/s0.of.2/g12/s63.of.64", &name));
        assert_int_equal(name.base_length, strlen("kv/m/s0.of.2/g12"));
        assert_int_equal(name.shard, 63);
        assert_int_equal(name.shards, 64);
        assert_string_equal(name.variant, "");
        assert_true(sets_parse_name("a/s0.of.2/v12", &name));
        assert_int_equal(name.base_length, 1);
        assert_int_equal(name.shard, 0);
        assert_int_equal(name.shards, 2);
        assert_string_equal(name.variant, "/v12");
}

int main(int argc, char **argv)
{
        const struct CMUnitTest tests[] = {
                TEST(the_other_shards_leave_memory_next),
                TEST(the_other_shards_leave_the_disk_next),
                TEST(a_set_that_is_completed_on_disk_stays),
                TEST(a_set_that_is_read_again_stays_in_memory),
                TEST(a_set_whose_chunk_is_being_written_is_not_demoted),
                TEST(a_direct_put_completes_a_set_on_disk_only),
                TEST(a_refused_chunk_completes_no_set_on_disk),
                TEST(puts_of_an_iteration_look_for_a_bounded_number_of_chunks),
                TEST(a_leased_shard_stays),
                TEST(what_belongs_to_no_set_stays),
                TEST(shards_of_another_owner_stay),
                TEST(an_iteration_follows_a_bounded_number_of_evictions),
                TEST(evictions_beyond_the_queue_are_counted),
                TEST(one_owner_leaves_lookups_and_queue_to_others),
                TEST(a_thousand_families_are_remembered),
                TEST(names_of_shards_are_recognized),
        };

        if (argc > 1)
                cmocka_set_test_filter(argv[1]);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
