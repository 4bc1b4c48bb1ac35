/* SPDX-License-Identifier: Apache-2.0 */
/* The pool, leases and staging areas: which chunks are evicted, which must stay, and memory that no
 * client can change. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "checked.h"
#include "cache/backing.h"
#include "cache/staging.h"
#include "cache/lease.h"
#include "cache/pool.h"
#include "../lib/aborts.h"

enum { MIB = 1 << 20 };

static struct key key_of(uint32_t n)
{
        struct key k = { { 1 } };

        memcpy(k.bytes + 4, &n, sizeof(n));
        return k;
}

static struct pool *new_pool(uint64_t bytes)
{
        struct pool *p = NULL;

        assert_int_equal(pool_new(&p, bytes, "lru"), 0);
        while (pool_next_slab(p) >= 0) {
                uint64_t offset = (uint64_t)pool_next_slab(p) * pool_slab_bytes(p), huge;

                assert_int_equal(pool_populate(p, offset, pool_slab_bytes(p), &huge), 0);
                assert_int_equal(huge, 0); /* huge pages were not requested */
                assert_int_equal(pool_open_slab(p, 0), 0);
        }
        return p;
}

static int acquire(struct pool *p, uint32_t n, uint32_t length, uint32_t *ret)
{
        struct key k = key_of(n);

        return pool_acquire(p, 1, &k, n, length, 0, ret);
}

static uint32_t find(const struct pool *p, uint32_t n)
{
        struct key k = key_of(n);

        return pool_find(p, 1, &k, n);
}

static uint32_t add(struct pool *p, uint32_t n, uint32_t length)
{
        uint32_t chunk;

        assert_int_equal(acquire(p, n, length, &chunk), 0);
        pool_commit(p, chunk, n);
        pool_unpin(p, chunk);
        return chunk;
}

static void a_client_cannot_write_punch_or_resize_the_pool(void **state)
{
        struct backing b;
        char path[64];
        int rw;

        assert_int_equal(backing_open(&b, "test", 4 * MIB), 0);
        assert_int_equal(fcntl(b.fd, F_GET_SEALS),
                         F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | 0x10 /* FUTURE_WRITE */);
        assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, b.fd, 0), MAP_FAILED);
        /* Opening it for writing fails even through /proc, where root's open() succeeds. */
        snprintf(path, sizeof(path), "/proc/self/fd/%d", b.fd);
        rw = open(path, O_RDWR | O_CLOEXEC);
        if (rw >= 0) {
                assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, rw, 0),
                                 MAP_FAILED);
                assert_int_equal(pwrite(rw, "x", 1, 0), -1);
                assert_int_equal(fallocate(rw, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096),
                                 -1);
                assert_int_equal(ftruncate(rw, 0), -1);
                close(rw);
        }
        /* The daemon's own mapping stays writable, and readers see its changes. */
        strcpy(b.base, "bytes");
        assert_string_equal(mmap(NULL, 4096, PROT_READ, MAP_SHARED, b.fd, 0), "bytes");
        backing_close(&b);
}

static void what_is_populated_keeps_what_is_in_it(void **state)
{
        struct backing b;
        uint64_t huge;

        assert_int_equal(backing_open(&b, "test", 4 * MIB), 0);
        strcpy(b.base, "first");
        strcpy((char *)b.base + 4096, "second");
        assert_int_equal(backing_populate(&b, 0, 8192), 0);
        assert_int_equal(backing_populate_huge(&b, 0, 4 * MIB, &huge), 0);
        /* Populates as before kernel 5.14, because the range does not begin at a page. */
        assert_int_equal(backing_populate(&b, 1, 8192), 0);
        assert_string_equal(b.base, "first");
        assert_string_equal((char *)b.base + 4096, "second");
        backing_close(&b);
}

/* Returns the part of the mapping at `base` that is in huge pages, according to the kernel. */
static uint64_t mapped_by_huge_pages(const void *base)
{
        FILE *f = fopen("/proc/self/smaps", "re");
        char line[256], begin[32];
        unsigned long kib = 0;
        bool here = false;

        assert_non_null(f);
        snprintf(begin, sizeof(begin), "%lx-", (unsigned long)base);
        while (fgets(line, sizeof(line), f)) {
                if (strncmp(line, begin, strlen(begin)) == 0)
                        here = true;
                else if (here && sscanf(line, "ShmemPmdMapped: %lu kB", &kib) == 1)
                        break;
        }
        fclose(f);
        return (uint64_t)kib * 1024;
}

static void huge_pages_are_counted_as_the_kernel_counts_them(void **state)
{
        struct pool_stats stats;
        struct pool *p = NULL;
        uint64_t huge;

        assert_int_equal(pool_new(&p, 64 * MIB, "lru"), 0);
        assert_false(pool_uses_huge_pages(p));
        pool_use_huge_pages(p);
        assert_int_equal(pool_populate(p, 0, pool_slab_bytes(p), &huge), 0);
        assert_int_equal(huge % BACKING_HUGE_PAGE, 0);
        assert_in_range(huge, 0, pool_slab_bytes(p));
        assert_in_range(mapped_by_huge_pages(pool_base(p)), huge, pool_slab_bytes(p));
        assert_int_equal(pool_open_slab(p, huge), 0);
        pool_get_stats(p, &stats);
        assert_int_equal(stats.huge_bytes, huge);
        assert_int_equal(stats.populated_bytes, pool_slab_bytes(p));
        for (const char *at = pool_base(p); at < (char *)pool_base(p) + pool_slab_bytes(p); at++)
                assert_true(*at == 0);
        pool_free(p);
        if (huge == 0)
                skip();
}

static void a_chunk_is_found_from_acquire_to_drop_and_its_bytes_stay_while_pinned(void **state)
{
        struct pool *p = new_pool(16 * MIB);
        struct pool_stats stats;
        uint32_t a, b;

        assert_int_equal(acquire(p, 1, 10000, &a), 0);
        assert_int_equal(find(p, 1), a);
        assert_int_equal(pool_chunk(p, a)->state, POOL_ACQUIRED);
        pool_commit(p, a, 7);
        assert_int_equal(pool_chunk(p, a)->state, POOL_RESIDENT);
        memset(pool_at(p, a), 'a', 10000);

        pool_drop(p, a);
        assert_int_equal(find(p, 1), POOL_NONE);
        /* Dropped, but pinned: its slot stays taken. */
        assert_int_equal(acquire(p, 2, 10000, &b), 0);
        assert_ptr_not_equal(pool_at(p, a), pool_at(p, b));
        assert_int_equal(((char *)pool_at(p, a))[9999], 'a');
        assert_true(pool_unpin(p, a));
        pool_commit(p, b, 0);
        pool_unpin(p, b);
        pool_drop(p, b);
        pool_get_stats(p, &stats);
        assert_int_equal(stats.used_bytes, 0);
        assert_int_equal(stats.pinned_bytes, 0);
        assert_int_equal(stats.chunks, 0);
        pool_free(p);
}

static void the_coldest_unpinned_chunk_leaves(void **state)
{
        struct pool *p = new_pool(16 * MIB);
        uint32_t n = 0, first = add(p, 0, MIB), second = add(p, 1, MIB);
        struct pool_stats stats;

        pool_pin(p, first);
        do {
                add(p, ++n + 1, MIB);
                pool_get_stats(p, &stats);
        } while (stats.evictions == 0);
        /* The oldest chunk is pinned, so the next one was evicted. */
        assert_int_equal(find(p, 0), first);
        assert_int_equal(find(p, 1), POOL_NONE);
        assert_true(second != POOL_NONE);

        /* A touched chunk outlives later ones. */
        assert_int_equal(stats.evictions, 1);
        pool_touch(p, find(p, 2), pool_chunk(p, find(p, 2))->generation, 0);
        add(p, ++n + 1, MIB);
        assert_int_not_equal(find(p, 2), POOL_NONE);
        assert_int_equal(find(p, 3), POOL_NONE);
        pool_unpin(p, first);
        pool_free(p);
}

static void when_all_is_pinned_the_pool_says_full_and_loses_nothing(void **state)
{
        struct pool *p = new_pool(8 * MIB);
        uint32_t chunks[64], n = 0, extra;

        while (acquire(p, n, MIB, &chunks[n]) == 0)
                pool_commit(p, chunks[n++], 0);
        assert_int_equal(n, 8);
        assert_int_equal(acquire(p, 99, MIB, &extra), POOL_FULL);
        assert_int_equal(acquire(p, 99, 4096, &extra), POOL_FULL);
        for (uint32_t i = 0; i < n; i++)
                assert_int_equal(find(p, i), chunks[i]);
        pool_unpin(p, chunks[3]);
        assert_int_equal(acquire(p, 99, MIB, &extra), 0);
        assert_int_equal(find(p, 3), POOL_NONE);
        pool_free(p);
}

static void a_size_without_a_slab_takes_the_coldest_one_that_nobody_pins(void **state)
{
        struct pool *p = new_pool(16 * MIB);
        uint32_t pinned = add(p, 0, 4096), chunk;
        struct pool_stats stats;

        pool_pin(p, pinned);
        for (uint32_t i = 1; i < 16 * MIB / 4096; i++)
                add(p, i, 4096);
        assert_int_equal(acquire(p, 100000, 2 * MIB, &chunk), 0);
        pool_get_stats(p, &stats);
        assert_int_equal(stats.slab_moves, 1);
        assert_int_equal(find(p, 0), pinned);
        pool_free(p);
}

static void a_lease_in_every_slab_does_not_keep_other_sizes_out(void **state)
{
        struct pool *p = new_pool(16 * MIB);
        uint32_t chunk, n = 0;
        struct pool_stats stats;

        /* Each slab has one pinned chunk of 64 KiB. */
        for (uint32_t i = 0; i < 16 * MIB / 65536; i++) {
                chunk = add(p, n++, 65536);
                if (i % (pool_slab_bytes(p) / 65536) == 0)
                        pool_pin(p, chunk);
        }
        assert_int_equal(acquire(p, 1000, 20000, &chunk), 0);
        assert_int_equal(pool_slot_bytes(p, chunk), 65536);
        pool_commit(p, chunk, 0);
        pool_unpin(p, chunk);
        assert_int_equal(find(p, 1000), chunk);
        /* These chunks do not fit: one wastes too much, the other is too large. */
        assert_int_equal(acquire(p, 1001, 4096, &chunk), POOL_FULL);
        assert_int_equal(acquire(p, 1002, 100000, &chunk), POOL_FULL);
        pool_get_stats(p, &stats);
        assert_int_equal(stats.evictions, 1);
        pool_free(p);
}

static void every_slot_can_be_used_and_used_again(void **state)
{
        struct pool *p = new_pool(8 * MIB);
        struct pool_stats stats;

        for (uint32_t i = 0; i < 3 * 2048; i++)
                add(p, i, 4096);
        pool_get_stats(p, &stats);
        assert_int_equal(stats.chunks, 2048);
        assert_int_equal(stats.evictions, 2 * 2048);
        pool_free(p);
}

/* --- purges --- */

struct one_purge {
        struct pool_purge purge;
        bool done;
};

static void on_purged(struct pool_purge *purge)
{
        container_of(purge, struct one_purge, purge)->done = true;
}

static void purge(struct pool *p, uint32_t namespace_id, struct one_purge *ret)
{
        *ret = (struct one_purge){ .purge = { .namespace_id = namespace_id,
                                              .all = namespace_id == 0,
                                              .complete = on_purged } };
        pool_purge(p, &ret->purge);
}

/* Purges of all are of namespace 0. */
static void purge_at_once(struct pool *p, uint32_t namespace_id)
{
        struct one_purge one;

        purge(p, namespace_id, &one);
        while (!one.done)
                (void)pool_sweep(p);
}

static void acquire_of(struct pool *p, uint32_t namespace_id, uint32_t n, uint32_t *ret)
{
        struct key k = key_of(n);

        assert_int_equal(pool_acquire(p, namespace_id, &k, n, 1000, 0, ret), 0);
}

static uint32_t add_of(struct pool *p, uint32_t namespace_id, uint32_t n)
{
        uint32_t chunk;

        acquire_of(p, namespace_id, n, &chunk);
        pool_commit(p, chunk, n);
        pool_unpin(p, chunk);
        return chunk;
}

static uint32_t find_of(const struct pool *p, uint32_t namespace_id, uint32_t n)
{
        struct key k = key_of(n);

        return pool_find(p, namespace_id, &k, n);
}

enum { SWEPT = 30000, STEP_VISITS = 4096 };

/* A purge hides all chunks at once. Each step of its walk visits few records, however many there
 * are, and concurrent purges share one walk. */
static void a_purge_takes_effect_at_once_and_is_walked_in_steps(void **state)
{
        struct pool *p = new_pool(160 * MIB);
        struct one_purge first, second, all, none;
        uint64_t visits = 0;
        unsigned steps = 0;
        struct pool_stats stats;

        for (uint32_t n = 0; n < SWEPT; n++)
                add_of(p, 1 + n % 3, n);
        purge(p, 4, &none);
        assert_true(none.done);
        purge(p, 8192 + 4, &none);
        assert_true(none.done);
        assert_false(pool_is_sweeping(p));
        assert_int_equal(pool_sweep(p), 0);

        purge(p, 1, &first);
        for (uint32_t n = 0; n < SWEPT; n++)
                assert_int_equal(find_of(p, 1 + n % 3, n) == POOL_NONE, n % 3 == 0);
        pool_get_stats(p, &stats);
        assert_int_equal(stats.chunks, SWEPT); /* nothing was walked for that */
        assert_true(pool_is_sweeping(p));
        visits += pool_sweep(p);
        assert_false(first.done);
        purge(p, 1, &second);
        purge(p, 0, &all);
        for (uint32_t n = 0; n < SWEPT; n++)
                assert_int_equal(find_of(p, 1 + n % 3, n), POOL_NONE);
        add_of(p, 1, 0);
        add_of(p, 2, SWEPT);
        while (!all.done) {
                uint32_t n = pool_sweep(p);

                assert_in_range(n, 0, STEP_VISITS);
                visits += n;
                steps++;
        }
        assert_true(first.done && second.done);
        assert_true(steps > SWEPT / STEP_VISITS);
        assert_in_range(visits, SWEPT, SWEPT + 3 * STEP_VISITS); /* and not three times as many */
        assert_false(pool_is_sweeping(p));
        assert_int_not_equal(find_of(p, 1, 0), POOL_NONE);
        assert_int_not_equal(find_of(p, 2, SWEPT), POOL_NONE);
        pool_get_stats(p, &stats);
        assert_int_equal(stats.chunks, 2);
        pool_free(p);
}

/* Filling, leased, put again, evicted: as with a purge that walks at once. */
static void what_is_purged_is_dropped_by_what_reaches_it_first(void **state)
{
        struct pool *p = new_pool(16 * MIB);
        uint32_t filling, again, leased, other, colliding;
        struct one_purge one;
        struct pool_stats stats;

        acquire_of(p, 1, 1, &filling);
        leased = add_of(p, 1, 2);
        pool_lease(p, leased);
        add_of(p, 1, 3);
        other = add_of(p, 2, 1);
        colliding = add_of(p, 1 + 8192, 1);
        purge(p, 1, &one);
        assert_true(pool_is_dropped(p, filling));
        assert_true(pool_is_dropped(p, leased));
        assert_false(pool_is_dropped(p, other));
        assert_false(pool_is_dropped(p, colliding));

        pool_commit(p, filling, 0);
        assert_int_equal(find_of(p, 1, 1), POOL_NONE);
        acquire_of(p, 1, 1, &again);
        assert_int_not_equal(again, filling);
        pool_commit(p, again, 0);
        assert_int_equal(find_of(p, 1, 1), again);
        pool_unpin(p, again);
        pool_unpin(p, filling);
        add_of(p, 1, 2);
        assert_int_not_equal(find_of(p, 1, 2), leased);
        assert_int_not_equal(add_of(p, 1, 3), POOL_NONE);
        while (!one.done)
                (void)pool_sweep(p);
        for (uint32_t n = 1; n <= 3; n++)
                assert_int_not_equal(find_of(p, 1, n), POOL_NONE);
        assert_int_equal(find_of(p, 2, 1), other);
        assert_int_equal(find_of(p, 1 + 8192, 1), colliding);
        assert_int_equal(pool_chunk(p, leased)->key.bytes[0], 1);
        (void)pool_unlease(p, leased);
        purge_at_once(p, 0);
        pool_get_stats(p, &stats);
        assert_int_equal(stats.used_bytes, 0);
        assert_int_equal(stats.pinned_bytes, 0);
        assert_int_equal(stats.chunks, 0);
        pool_free(p);
}

enum { N_KEYS = 400, N_NAMESPACES = 5, N_PURGES = 8 };
/* Two of the namespaces share the count of their chunks, and three the bucket of their purges. */
static const uint32_t namespaces[N_NAMESPACES] = { 1, 2, 1 + 1024, 1 + 8192, 3 };

/* Expected contents of the pool, and notifications of its watch. */
struct truth {
        struct pool *p;
        uint32_t chunk[N_NAMESPACES][N_KEYS];
        bool told[N_NAMESPACES][N_KEYS];
};

static unsigned number_of(uint32_t namespace_id)
{
        unsigned i = 0;

        while (namespaces[i] != namespace_id)
                i++;
        return i;
}

static void on_changed(void *userdata, uint32_t chunk, bool is_there)
{
        struct truth *t = userdata;
        const struct pool_chunk *c = pool_chunk(t->p, chunk);
        unsigned ns = number_of(c->namespace_id);
        uint32_t n;

        memcpy(&n, c->key.bytes + 4, sizeof(n));
        assert_int_not_equal(t->told[ns][n], is_there);
        assert_false(is_there && pool_is_dropped(t->p, chunk));
        t->told[ns][n] = is_there;
        if (!is_there && t->chunk[ns][n] == chunk)
                t->chunk[ns][n] = POOL_NONE;
}

static void forget_all_of(struct truth *t, unsigned ns)
{
        for (uint32_t n = 0; n < N_KEYS; n++)
                t->chunk[ns][n] = POOL_NONE;
}

/* Any order of puts, fills, leases, drops, evictions, purges and steps of their walk leaves the
 * chunks that an immediate purge would have left, and notifies the watch of each change once. */
static void purges_beside_everything_else_leave_what_they_should(void **state)
{
        static struct truth t;
        struct pool_watch watch = { .changed = on_changed, .userdata = &t };
        struct one_purge purges[N_PURGES];
        uint32_t held[64], n_held = 0, seed = 12345;
        struct pool_stats stats;

        t.p = new_pool(16 * MIB);
        pool_add_watch(t.p, &watch);
        for (unsigned ns = 0; ns < N_NAMESPACES; ns++)
                forget_all_of(&t, ns);
        for (unsigned i = 0; i < N_PURGES; i++)
                purges[i].done = true;
        for (unsigned round = 0; round < 200000; round++) {
                unsigned ns, what;
                uint32_t n;
                struct key k;

                seed = seed * 1664525 + 1013904223;
                ns = seed >> 8 & 0xffff;
                what = ns % 64;
                ns = ns / 64 % N_NAMESPACES;
                n = (seed >> 20) % N_KEYS;
                k = key_of(n);
                assert_int_equal(pool_find(t.p, namespaces[ns], &k, n), t.chunk[ns][n]);
                if (what < 40 && t.chunk[ns][n] == POOL_NONE && n_held < 64) {
                        uint32_t chunk, length = what < 2 ? 2 * MIB : 1000 + what * 2000;

                        if (pool_acquire(t.p, namespaces[ns], &k, n, length, 0, &chunk) == 0) {
                                t.chunk[ns][n] = chunk;
                                held[n_held++] = chunk;
                        }
                } else if (what < 54 && n_held > 0) {
                        uint32_t at = n % n_held, chunk = held[at];

                        if (pool_is_filling(pool_chunk(t.p, chunk))) {
                                pool_commit(t.p, chunk, 0);
                        } else {
                                (void)pool_unpin(t.p, chunk);
                                held[at] = held[--n_held];
                        }
                } else if (what < 56 && t.chunk[ns][n] != POOL_NONE) {
                        pool_drop(t.p, t.chunk[ns][n]);
                        t.chunk[ns][n] = POOL_NONE;
                } else if (what == 56 && round % 3 == 0 && purges[n % N_PURGES].done) {
                        purge(t.p, round % 40 == 0 ? 0 : namespaces[ns], &purges[n % N_PURGES]);
                        for (unsigned i = 0; i < N_NAMESPACES; i++)
                                if (i == ns || round % 40 == 0)
                                        forget_all_of(&t, i);
                } else if (what == 57 && n % 4 == 0) {
                        (void)pool_sweep(t.p);
                }
        }
        while (n_held > 0) {
                uint32_t chunk = held[--n_held];

                if (pool_is_filling(pool_chunk(t.p, chunk)))
                        pool_commit(t.p, chunk, 0);
                (void)pool_unpin(t.p, chunk);
        }
        while (pool_is_sweeping(t.p))
                (void)pool_sweep(t.p);
        for (unsigned ns = 0; ns < N_NAMESPACES; ns++)
                for (uint32_t n = 0; n < N_KEYS; n++) {
                        assert_int_equal(find_of(t.p, namespaces[ns], n), t.chunk[ns][n]);
                        assert_int_equal(t.told[ns][n], t.chunk[ns][n] != POOL_NONE);
                }
        pool_get_stats(t.p, &stats);
        assert_true(stats.evictions > 0);
        purge_at_once(t.p, 0);
        pool_get_stats(t.p, &stats);
        assert_int_equal(stats.used_bytes, 0);
        assert_int_equal(stats.pinned_bytes, 0);
        pool_free(t.p);
}

/* Drops one chunk of each namespace in turn; pinned chunks are dropped with their last pin. */
static void a_namespace_is_dropped_without_looking_further_than_its_last_chunk(void **state)
{
        enum { N = 300, MANY = 8192 };
        struct pool *p = new_pool(16 * MIB);
        uint32_t chunks[N], last;
        struct pool_stats stats;
        struct key k = { { 0 } };

        for (uint32_t i = 0; i < N; i++) {
                memcpy(k.bytes, &i, sizeof(i));
                assert_int_equal(pool_acquire(p, 1 + i % 3, &k, i, 1000, 0, &chunks[i]), 0);
                assert_int_equal(chunks[i], i);
                if (i % 10 == 0)
                        continue; /* is being filled */
                pool_commit(p, i, 0);
                (void)pool_unpin(p, i);
        }
        assert_int_equal(pool_drop_namespace(p, 4), 0);
        assert_int_equal(pool_drop_namespace(p, MANY), 0);
        assert_int_equal(pool_drop_namespace(p, MANY + 4), 0);
        assert_int_equal(pool_drop_namespace(p, MANY + 1), N); /* shares the count of 1 */
        pool_get_stats(p, &stats);
        assert_int_equal(stats.chunks, N);

        assert_int_equal(pool_drop_namespace(p, 1), N - 2);
        assert_int_equal(pool_drop_namespace(p, 1), 0);
        for (uint32_t i = 0; i < N; i++) {
                memcpy(k.bytes, &i, sizeof(i));
                assert_int_equal(pool_find(p, 1 + i % 3, &k, i), i % 3 == 0 ? POOL_NONE : i);
        }
        memcpy(k.bytes, &(uint32_t){ 0 }, sizeof(uint32_t));
        assert_int_equal(pool_acquire(p, 1, &k, 0, 1000, 0, &last), 0);
        assert_int_equal(pool_drop_namespace(p, 1), last + 1);

        purge_at_once(p, 0);
        for (uint32_t i = 0; i < N; i += 10)
                (void)pool_unpin(p, i);
        (void)pool_unpin(p, last);
        pool_get_stats(p, &stats);
        assert_int_equal(stats.used_bytes, 0);
        pool_free(p);
}

static void what_is_too_large_is_said_so(void **state)
{
        struct pool *p = new_pool(16 * MIB);
        uint32_t chunk;

        assert_int_equal(pool_slab_bytes(p), 2 * MIB);
        assert_int_equal(acquire(p, 1, 2 * MIB + 1, &chunk), POOL_TOO_LARGE);
        assert_int_equal(acquire(p, 1, 0, &chunk), POOL_TOO_LARGE);
        assert_int_equal(acquire(p, 1, 2 * MIB, &chunk), 0);
        pool_free(p);
}

static void release_all(struct leases *l, struct lease_holder *h)
{
        (void)lease_release_some(l, h, UINT32_MAX);
        assert_int_equal(h->count, 0);
}

static void a_lease_pins_until_released_and_a_stale_one_is_refused(void **state)
{
        struct pool *p = new_pool(8 * MIB);
        struct lease_limits limits = { .bytes_all = 8 * MIB };
        struct lease_holder mine, other;
        struct leases *l = NULL;
        struct lease a, b;
        uint32_t chunk = add(p, 1, 4096);

        assert_int_equal(leases_new(&l, p, 100, &limits), 0);
        assert_int_equal(lease_holder_init(l, &mine, 1, false), 0);
        assert_int_equal(lease_holder_init(l, &other, 2, false), 0);
        assert_int_equal(lease_acquire(l, &mine, chunk, &a), 0);
        assert_int_not_equal(a.generation, 0);
        assert_int_equal(pool_chunk(p, chunk)->leases, 1);
        assert_int_equal(lease_release(l, &other, a), LEASE_STALE);
        assert_int_equal(lease_release(l, &mine, (struct lease){ a.id, a.generation + 1 }),
                         LEASE_STALE);
        assert_int_equal(lease_release(l, &mine, (struct lease){ UINT32_MAX, 1 }), LEASE_STALE);
        assert_int_equal(lease_release(l, &mine, a), 0);
        assert_int_equal(pool_chunk(p, chunk)->pins, 0);
        assert_int_equal(lease_release(l, &mine, a), LEASE_STALE);

        /* The same number again is another generation. */
        assert_int_equal(lease_acquire(l, &mine, chunk, &b), 0);
        assert_int_equal(a.id, b.id);
        assert_int_equal(lease_release(l, &mine, a), LEASE_STALE);
        assert_int_equal(mine.count, 1);
        release_all(l, &mine);
        assert_int_equal(mine.count, 0);
        assert_int_equal(pool_chunk(p, chunk)->pins, 0);
        assert_int_equal(mine.bytes, 0);
        lease_holder_fini(&mine);
        lease_holder_fini(&other);
        leases_free(l);
        pool_free(p);
}

/* The pin of a lease alone, whatever else leaves around it. */
static void test_R7_a_leased_slot_is_never_given_to_another(void **state)
{
        struct pool *p = new_pool(16 * MIB);
        uint32_t chunk = add(p, 0, MIB), n = 0;
        struct lease_limits limits = { .bytes_all = 8 * MIB };
        struct lease_holder mine;
        struct leases *l = NULL;
        struct pool_stats stats;
        struct lease lease;

        assert_int_equal(leases_new(&l, p, 100, &limits), 0);
        assert_int_equal(lease_holder_init(l, &mine, 1, false), 0);
        assert_int_equal(lease_acquire(l, &mine, chunk, &lease), 0);
        do {
                add(p, ++n, MIB);
                pool_get_stats(p, &stats);
        } while (stats.evictions < 40);
        assert_int_equal(find(p, 0), chunk);
        release_all(l, &mine);
        add(p, ++n, MIB);
        assert_int_equal(find(p, 0), POOL_NONE);
        lease_holder_fini(&mine);
        leases_free(l);
        pool_free(p);
}

static void what_is_leased_of_the_pool_counts_once(void **state)
{
        struct pool *p = new_pool(8 * MIB);
        struct lease_limits limits = { .bytes_all = 16384 };
        struct lease_holder one, two;
        struct leases *l = NULL;
        struct lease lease[4];
        uint32_t a = add(p, 1, 4096), b = add(p, 2, 8192), c = add(p, 3, 16384);

        assert_int_equal(leases_new(&l, p, 100, &limits), 0);
        assert_int_equal(lease_holder_init(l, &one, 1, false), 0);
        assert_int_equal(lease_holder_init(l, &two, 2, false), 0);
        assert_int_equal(lease_acquire(l, &one, a, &lease[0]), 0);
        assert_int_equal(lease_acquire(l, &one, b, &lease[1]), 0);
        /* A second lease of a chunk costs nothing, and another chunk does not fit. */
        assert_int_equal(lease_acquire(l, &two, b, &lease[2]), 0);
        assert_int_equal(lease_release(l, &two, lease[2]), 0);
        assert_int_equal(lease_acquire(l, &two, c, &lease[2]), LEASE_FULL);
        release_all(l, &one);
        assert_int_equal(lease_acquire(l, &two, c, &lease[2]), 0);
        release_all(l, &two);
        lease_holder_fini(&one);
        lease_holder_fini(&two);
        leases_free(l);
        pool_free(p);
}

/* However many users lease a chunk, and in whatever order they release it, each is charged with it
 * for as long as it has a lease on it. */
static void each_user_of_a_chunk_is_charged_until_its_last_lease_ends(void **state)
{
        enum { USERS = 3 };
        static const unsigned orders[][USERS] = { { 0, 1, 2 }, { 1, 0, 2 }, { 2, 1, 0 } };
        struct pool *p = new_pool(8 * MIB);
        struct lease_limits limits = { .bytes_all = 4 * 4096, .shared = true };
        uint32_t a = add(p, 1, 4096),
                 others[] = { add(p, 2, 4096), add(p, 3, 4096), add(p, 4, 4096) };
        struct lease_holder users[USERS];
        struct leases *l = NULL;
        struct lease twice, lease;

        assert_int_equal(leases_new(&l, p, 1000, &limits), 0);
        for (unsigned i = 0; i < USERS; i++)
                assert_int_equal(lease_holder_init(l, &users[i], i + 1, false), 0);
        for (unsigned o = 0; o < ARRAY_SIZE(orders); o++) {
                for (unsigned i = 0; i < USERS; i++)
                        assert_int_equal(lease_acquire(l, &users[i], a, &lease), 0);
                for (unsigned i = 0; i < USERS; i++) {
                        struct lease_holder *h = &users[orders[o][i]];

                        /* A second lease costs nothing, and its end changes nothing. */
                        assert_int_equal(lease_acquire(l, h, a, &twice), 0);
                        assert_int_equal(lease_release(l, h, twice), 0);
                        /* With `a`, three of the other four are within its share; without it, four
                         * are. */
                        assert_int_equal(lease_acquire(l, h, others[0], &lease), 0);
                        assert_int_equal(lease_acquire(l, h, others[1], &lease), 0);
                        assert_int_equal(lease_acquire(l, h, others[2], &lease), LEASE_FULL);
                        release_all(l, h);
                        if (i + 1 == USERS)
                                assert_int_equal(pool_chunk(p, a)->users, 0);
                }
                assert_int_equal(pool_leased_bytes(p), 0);
        }
        for (unsigned i = 0; i < USERS; i++)
                lease_holder_fini(&users[i]);
        leases_free(l);
        pool_free(p);
}

/* Room for one more user remains, whatever users lease; a chunk leased by several connections of
 * one user counts once. */
static void test_R10_a_users_leases_leave_room_for_another_user(void **state)
{
        enum { CHUNKS = 16, HOLDERS = 3 };
        struct pool *p = new_pool(8 * MIB);
        struct lease_limits limits = { .bytes_all = CHUNKS * 4096, .shared = true };
        struct lease_holder greedy[HOLDERS], second, third;
        struct leases *l = NULL;
        struct lease lease;
        uint32_t chunks[CHUNKS];
        unsigned n = 0;

        for (unsigned i = 0; i < CHUNKS; i++)
                chunks[i] = add(p, i + 1, 4096);
        assert_int_equal(leases_new(&l, p, 1000, &limits), 0);
        for (unsigned i = 0; i < HOLDERS; i++)
                assert_int_equal(lease_holder_init(l, &greedy[i], 1, false), 0);
        assert_int_equal(lease_holder_init(l, &second, 2, false), 0);
        assert_int_equal(lease_holder_init(l, &third, 3, false), 0);
        for (unsigned i = 0; i < CHUNKS; i++)
                n += lease_acquire(l, &greedy[i % HOLDERS], chunks[i], &lease) == 0;
        assert_int_equal(n, CHUNKS / 4 * 3);
        /* A second connection leases the same chunks, which costs nothing. */
        for (unsigned i = 0; i < n; i++)
                assert_int_equal(lease_acquire(l, &greedy[(i + 1) % HOLDERS], chunks[i], &lease),
                                 0);
        for (n = 0; lease_acquire(l, &second, chunks[CHUNKS - 1 - n], &lease) == 0;)
                n++;
        assert_int_equal(n, 3);
        /* A chunk leased by another user counts for that user, too, who may lease it even at its
         * limit. */
        assert_int_equal(lease_acquire(l, &second, chunks[0], &lease), LEASE_FULL);
        assert_int_equal(lease_acquire(l, &third, chunks[0], &lease), 0);
        /* When one of two leases of a user ends, the chunk still counts for the user. */
        release_all(l, &greedy[0]);
        release_all(l, &third);
        assert_int_equal(lease_acquire(l, &greedy[2], chunks[CHUNKS - 4], &lease), LEASE_FULL);
        for (unsigned i = 0; i < HOLDERS; i++)
                release_all(l, &greedy[i]);
        for (n = 0; n < CHUNKS && lease_acquire(l, &greedy[0], chunks[n], &lease) == 0;)
                n++;
        assert_int_equal(n, 9); /* 3 times 4 of the 13 that the second one left, at most */
        release_all(l, &second);
        release_all(l, &greedy[0]);
        for (unsigned i = 0; i < HOLDERS; i++)
                lease_holder_fini(&greedy[i]);
        lease_holder_fini(&second);
        lease_holder_fini(&third);
        leases_free(l);
        pool_free(p);
}

static void a_place_outside_the_staging_is_no_place(void **state)
{
        struct staging l;

        assert_int_equal(staging_open(&l, 65536), 0);
        assert_non_null(staging_at(&l, 0, 65536));
        assert_non_null(staging_at(&l, 65535, 1));
        assert_null(staging_at(&l, 65536, 1));
        assert_null(staging_at(&l, 1, 65536));
        assert_null(staging_at(&l, UINT64_MAX, 2));
        assert_null(staging_at(&l, 2, UINT64_MAX));
        assert_int_equal(ftruncate(l.fd, 0), -1);
        assert_int_equal(ftruncate(l.fd, 1 << 20), -1);
        staging_close(&l);
        assert_null(staging_at(&l, 0, 1));
}

static int change_state(unsigned from, unsigned to)
{
        struct pool_chunk c = { .state = (enum pool_state)from };

        pool_set_state(&c, (enum pool_state)to);
        return c.state != to;
}

/* A chunk has one owner at a time, so no owner takes it from another. */
static void a_state_follows_from_its_predecessors_only(void **state)
{
        static const char *const legal[] = {
                [POOL_FREE] = "......",     [POOL_RESIDENT] = "F.W...", [POOL_WRITING] = ".R....",
                [POOL_ACQUIRED] = "FR..CR", [POOL_COPYING] = "..WA..",  [POOL_READING] = ".R.A..",
        };

        for (unsigned from = POOL_FREE; from <= POOL_READING; from++)
                for (unsigned to = POOL_FREE; to <= POOL_READING; to++)
                        assert_int_equal(aborts(change_state, from, to), legal[from][to] == '.');
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_state_follows_from_its_predecessors_only),
                cmocka_unit_test(a_client_cannot_write_punch_or_resize_the_pool),
                cmocka_unit_test(what_is_populated_keeps_what_is_in_it),
                cmocka_unit_test(huge_pages_are_counted_as_the_kernel_counts_them),
                cmocka_unit_test(
                        a_chunk_is_found_from_acquire_to_drop_and_its_bytes_stay_while_pinned),
                cmocka_unit_test(the_coldest_unpinned_chunk_leaves),
                cmocka_unit_test(when_all_is_pinned_the_pool_says_full_and_loses_nothing),
                cmocka_unit_test(a_size_without_a_slab_takes_the_coldest_one_that_nobody_pins),
                cmocka_unit_test(a_lease_in_every_slab_does_not_keep_other_sizes_out),
                cmocka_unit_test(every_slot_can_be_used_and_used_again),
                cmocka_unit_test(a_purge_takes_effect_at_once_and_is_walked_in_steps),
                cmocka_unit_test(what_is_purged_is_dropped_by_what_reaches_it_first),
                cmocka_unit_test(purges_beside_everything_else_leave_what_they_should),
                cmocka_unit_test(
                        a_namespace_is_dropped_without_looking_further_than_its_last_chunk),
                cmocka_unit_test(what_is_too_large_is_said_so),
                cmocka_unit_test(a_lease_pins_until_released_and_a_stale_one_is_refused),
                cmocka_unit_test(test_R7_a_leased_slot_is_never_given_to_another),
                cmocka_unit_test(what_is_leased_of_the_pool_counts_once),
                cmocka_unit_test(each_user_of_a_chunk_is_charged_until_its_last_lease_ends),
                cmocka_unit_test(test_R10_a_users_leases_leave_room_for_another_user),
                cmocka_unit_test(a_place_outside_the_staging_is_no_place),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
