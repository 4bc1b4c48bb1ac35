/* SPDX-License-Identifier: Apache-2.0 */
/* store/: the limit, eviction, sizes of slots, data files, and preformatting. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "checked.h"
#include "fault.h"
#include "killed.h"
#include "store-fixture.h"

static void the_limit_holds_while_filling_over_and_over(void **state)
{
        static const uint32_t lengths[] = { 4096, 12000, 16384, 65536, 200000 };
        const uint64_t limit = 24 * MIB;
        uint64_t bytes = 0, n = 0;

        start_limit(limit);
        while (bytes < 4 * limit) {
                uint32_t length = lengths[(n / 100) % ARRAY_SIZE(lengths)];

                put_range(n, 20, length);
                assert_true(du() <= limit);
                n += 20;
                bytes += 20 * length;
        }
        assert_true(stats().evictions > 0);
        assert_true(stats().used_bytes <= limit);
        assert_true(du() <= stats().used_bytes);
        assert_true(t.most_used <= limit);
        /* The last chunks are stored, and all chunks that are reported as stored can be read. */
        for (uint64_t i = 0; i < n; i++) {
                uint32_t length = lengths[(i / 100) % ARRAY_SIZE(lengths)];

                if (i + 20 >= n)
                        assert_true(present(i));
                if (present(i))
                        assert_int_equal(get(i, length), 0);
        }
        stop();
        assert_true(du() <= limit);
        start_limit(limit);
        for (uint64_t i = 0; i < n; i++)
                if (present(i))
                        assert_int_equal(get(i, lengths[(i / 100) % ARRAY_SIZE(lengths)]), 0);
        assert_int_equal(stats().crc_failures, 0);
        stop();
}

static void small_limits_lose_little_to_tables(void **state)
{
        const uint64_t all = 18279, limit = all * 16 * KIB;
        const uint32_t length = 16384;
        uint64_t least = all * 973 / 1000;

        start_limit(limit);
        for (uint64_t i = 0; i < all + all / 4; i += 500) {
                put_range(i, 500, length);
                assert_true(du() <= limit);
        }
        if (stats().chunks < least)
                fail_msg("%llu of %llu slots", (unsigned long long)stats().chunks,
                         (unsigned long long)all);
        assert_true(stats().evictions > 0);
        stop();
        assert_true(du() <= limit);
        start_limit(limit);
        assert_true(stats().chunks >= least);
        stop();
}

static void the_coldest_leaves_first(void **state)
{
        uint64_t n;

        start_limit(16 * MIB);
        /* Fills the store, and then touches every second one of the first hundred. */
        for (n = 0; stats().evictions == 0; n++)
                assert_int_equal(put(n, 65536), 0);
        assert_false(present(0));
        for (uint64_t i = 1; i < 100; i += 2)
                touch(i);
        for (unsigned i = 0; i < 49; i++)
                assert_int_equal(put(n + i, 65536), 0);
        for (uint64_t i = 1; i < 100; i++)
                assert_int_equal(present(i), i % 2 == 1);
        stop();
}

static void after_a_restart_the_later_of_a_second_leave_first(void **state)
{
        uint64_t n, last;

        start_limit(16 * MIB);
        put_range(0, 10, 65536);
        stop();
        start_limit(16 * MIB);
        for (n = 100; stats().evictions == 0; n++)
                assert_int_equal(put(n, 65536), 0);
        /* Ten consecutive puts fall within a second, or within two, so the first evicted chunk is
         * not always their root. */
        for (last = 0; last < 10 && present(last); last++)
                ;
        assert_int_equal(count_present(0, 10), 9);
        assert_true(last > 0);
        stop();
}

static void a_class_takes_the_segment_of_another(void **state)
{
        uint64_t n;

        start_limit(16 * MIB);
        for (n = 0; stats().evictions == 0; n++)
                assert_int_equal(put(n, 16384), 0);
        put_range(100000, 60, 200000);
        assert_true(stats().slab_moves > 0);
        for (uint64_t i = 100050; i < 100060; i++)
                assert_int_equal(get(i, 200000), 0);
        for (uint64_t i = 0; i < n; i++)
                if (present(i))
                        assert_int_equal(get(i, 16384), 0);
        stop();
        start_limit(16 * MIB);
        for (uint64_t i = 100050; i < 100060; i++)
                assert_int_equal(get(i, 200000), 0);
        for (uint64_t i = 0; i < n; i++)
                if (present(i))
                        assert_int_equal(get(i, 16384), 0);
        stop();
}

/* The store is full of a model's chunks when another model takes over. A few old chunks in each
 * segment continue to be used. The chunks that the new model uses repeatedly would fit beside
 * them. */
static void another_model_reaches_its_share_of_a_full_store(void **state)
{
        enum { OLD_LENGTH = 16384, NEW_LENGTH = 65536, NEW = 130, ROUNDS = 40 };
        uint64_t n = 0, hits = 0, old_hits = 0, old_asked = 0;

        start_limit(16 * MIB);
        for (; stats().evictions == 0; n += 20)
                put_range(n, 20, OLD_LENGTH);
        for (unsigned round = 0; round < ROUNDS; round++) {
                hits = old_hits = old_asked = 0;
                for (uint64_t i = 0; i < NEW; i++) {
                        uint64_t old = n - 1 - (i * 7 % (n / 20)) * 20;

                        if (present(1000000 + i)) {
                                touch(1000000 + i);
                                hits++;
                        } else {
                                assert_int_equal(put(1000000 + i, NEW_LENGTH), 0);
                        }
                        old_asked++;
                        if (present(old)) {
                                touch(old);
                                old_hits++;
                        } else {
                                assert_int_equal(put(old, OLD_LENGTH), 0);
                        }
                }
        }
        if (hits < NEW * 9 / 10 || old_hits < old_asked * 9 / 10)
                fail_msg("%llu of %u chunks of the new model are there, %llu of %llu of the old",
                         (unsigned long long)hits, (unsigned)NEW, (unsigned long long)old_hits,
                         (unsigned long long)old_asked);
        stop();
}

static int retain(uint64_t n, bool retained, uint64_t limit)
{
        struct key k = key_of(n);
        struct store_ref ref;

        assert_int_equal(store_find(t.s, t.ns, &k, store_hash(t.s, t.ns, &k), &ref, NULL), 0);
        return store_retain(t.s, ref, retained, limit);
}

static uint64_t retained_bytes(void)
{
        struct store_tenant_usage usage;

        store_get_tenant(t.s, t.tenant, &usage);
        return usage.retained;
}

static void what_is_pinned_stays_whatever_else_is_put(void **state)
{
        const uint64_t limit = 3 * 16384;

        start_limit(16 * MIB);
        put_range(0, 8, 16384);
        assert_int_equal(retain(0, true, limit), 0);
        assert_int_equal(retain(0, true, limit), 0);
        assert_int_equal(retain(3, true, limit), 0);
        assert_int_equal(retain(7, true, limit), 0);
        assert_int_equal(retained_bytes(), limit);
        assert_int_equal(retain(1, true, limit), STORE_FULL);
        /* Puts three times the store's size of these chunks, and then larger ones, which take
         * segments from them. */
        for (uint64_t n = 100; n < 100 + 3 * 1024; n += 20)
                put_range(n, 20, 16384);
        put_range(100000, 200, 200000);
        assert_true(stats().evictions > 2048 && stats().slab_moves > 0);
        assert_int_equal(stats().retained_evictions, 0);
        for (uint64_t i = 0; i < 8; i++)
                assert_int_equal(present(i), i == 0 || i == 3 || i == 7);
        assert_int_equal(get(0, 16384), 0);

        /* A drop succeeds, and the bytes can be pinned again. */
        assert_int_equal(drop(3), 0);
        assert_int_equal(retained_bytes(), limit - 16384);
        assert_int_equal(retain(7, false, limit), 0);
        assert_int_equal(retained_bytes(), limit - 2 * 16384);
        purge(true);
        assert_int_equal(retained_bytes(), 0);
        stop();
}

/* The limit of pins exceeds the store, and puts still succeed. */
static void pins_never_refuse_a_put(void **state)
{
        uint64_t n;

        start_limit(16 * MIB);
        for (n = 0; stats().evictions == 0; n++) {
                assert_int_equal(put(n, 65536), 0);
                if (present(n))
                        assert_int_equal(retain(n, true, UINT64_MAX), 0);
        }
        for (uint64_t i = 0; i < 2 * n; i++) {
                assert_int_equal(put(1000 + i, 65536), 0);
                assert_int_equal(retain(1000 + i, true, UINT64_MAX), 0);
        }
        assert_true(stats().retained_evictions > 0);
        assert_true(retained_bytes() <= 16 * MIB);
        put_range(100000, 60, 200000);
        assert_int_equal(get(100059, 200000), 0);
        stop();
}

/* Fills a store with two tenants, all of it with used chunks of the first. The second puts, and
 * pins as many of its chunks as it may. Returns how many chunks the first one has left. */
static uint64_t left_beside(uint32_t length, bool pinned, uint64_t *ret_all)
{
        uint64_t n, left;
        uint32_t mine, other;

        remove_files();
        start_limit(16 * MIB);
        t.tenant = 1;
        assert_int_equal(open_namespace("model/a", "dtype=bf16", false, &mine), 0);
        t.tenant = 2;
        assert_int_equal(open_namespace("model/a", "dtype=bf16", false, &other), 0);
        t.tenant = 1;
        t.ns = mine;
        for (n = 0; stats().evictions == 0; n++)
                assert_int_equal(put(n, 16384), 0);
        for (uint64_t i = 0; i < 3000; i++) {
                t.ns = other;
                t.tenant = 2;
                if (put(100000 + i, length) == 0 && pinned)
                        (void)retain(100000 + i, true, 4 * MIB);
                assert_true(retained_bytes() <= 4 * MIB);
                t.ns = mine;
                t.tenant = 1;
                for (uint64_t k = 1; i % 10 == 0 && k < n; k++)
                        if (present(k))
                                touch(k);
        }
        left = count_present(0, n);
        *ret_all = n;
        stop();
        return left;
}

static void pins_gain_no_room_from_other_tenants(void **state)
{
        uint64_t all, without = left_beside(4096, false, &all),
                      with = left_beside(4096, true, &all), tiny = left_beside(1, true, &all);

        /* A tiny chunk counts as the slot that it takes; a few data files may differ. */
        if (with + all / 5 < without || tiny + all / 5 < without)
                fail_msg("of %llu chunks of the other tenant %llu are left, %llu beside pins, %llu "
                         "beside tiny ones",
                         (unsigned long long)all, (unsigned long long)without,
                         (unsigned long long)with, (unsigned long long)tiny);
}

/* Pinned chunks do not lose their room sooner: for another tenant's needs, they count by their last
 * use, like others. */
static void what_is_pinned_is_not_taken_first_by_other_tenants(void **state)
{
        uint64_t n, first;
        uint32_t mine, other;

        start_limit(16 * MIB);
        t.tenant = 1;
        assert_int_equal(open_namespace("model/a", "dtype=bf16", false, &mine), 0);
        t.tenant = 2;
        assert_int_equal(open_namespace("model/a", "dtype=bf16", false, &other), 0);
        t.tenant = 1;
        t.ns = mine;
        for (n = 0; stats().evictions == 0; n++)
                assert_int_equal(put(n, 16384), 0);
        first = n - 400;
        for (uint64_t k = first; k < n; k++) {
                assert_int_equal(retain(k, true, UINT64_MAX), 0);
                touch(k);
        }
        t.tenant = 2;
        t.ns = other;
        for (uint64_t i = 0; i < 200; i++)
                assert_int_equal(put(100000 + i, 16384), 0);
        t.ns = mine;
        t.tenant = 1;
        assert_true(count_present(first, 400) >= 390);
        stop();
}

static void small_chunks_may_fill_a_store_of_large_ones(void **state)
{
        const uint64_t limit = 32 * MIB;

        start_limit(limit);
        put_range(0, 60, 1000000);
        for (uint64_t i = 0; i < 16000; i += 1000) {
                put_range(1000000 + i, 1000, 4096);
                assert_true(du() <= limit);
        }
        /* 4 KiB chunks need a ring of a tenth of the store: it found room for that. */
        assert_true(stats().chunks > 6000);
        assert_int_equal(get(1015999, 4096), 0);
        stop();
        start_limit(limit);
        assert_true(stats().chunks > 6000);
        for (uint64_t i = 1010000; i < 1016000; i++)
                if (present(i))
                        assert_int_equal(get(i, 4096), 0);
        stop();
}

static void a_bound_on_entries_evicts(void **state)
{
        struct store_params params = params_of(64 * MIB);

        params.entries = 100;
        start(&params);
        /* In parts, because a slow write keeps its chunk, and a newer one is evicted instead. */
        for (uint64_t i = 0; i < 300; i += 50)
                put_range(i, 50, 4096);
        assert_int_equal(stats().chunks, 100);
        assert_int_equal(count_present(200, 100), 100);
        stop();
        params.entries = 50;
        start(&params);
        assert_int_equal(stats().chunks, 50);
        put_range(1000, 10, 4096);
        assert_int_equal(stats().chunks, 50);
        assert_int_equal(count_present(1000, 10), 10);
        stop();
}

static void when_everything_is_read_nothing_is_evicted(void **state)
{
        static struct store_get gets[DEPTH];
        uint64_t n;
        unsigned reads = 0;
        int r = 0;

        t.faults = true;
        start_limit(8 * MIB);
        for (n = 0; stats().evictions == 0; n++)
                assert_int_equal(put(n, (uint32_t)MIB - 5000), 0);
        settle();
        /* Hold all reads in the device, so that every slot is pinned. */
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_READ, .kind = FAULT_NEVER, .first = 1, .count = FAULT_FOR_EVER });
        for (uint64_t i = 0; i < n; i++)
                if (present(i)) {
                        assert_int_equal(get_into(&gets[reads], i, t.bufs[reads]), 0);
                        reads++;
                }
        kio_flush(t.io);
        assert_true(reads > 3);
        r = submit_put(1000, (uint32_t)MIB - 5000, false);
        assert_int_equal(r, STORE_FULL);
        fault_set(NULL);
        fault_release();
        settle();
        for (unsigned i = 0; i < reads; i++)
                assert_int_equal(gets[i].result, 0);
        assert_int_equal(put(1000, (uint32_t)MIB - 5000), 0);
        assert_int_equal(get(1000, (uint32_t)MIB - 5000), 0);
        stop();
}

static void a_lowered_limit_is_enforced_at_start_and_a_raised_one_used(void **state)
{
        uint64_t all, few;

        start_limit(64 * MIB);
        put_range(0, 3500, 16384);
        all = stats().chunks;
        assert_int_equal(all, 3500);
        assert_int_equal(get(3499, 16384), 0);
        stop();

        start_limit(20 * MIB);
        assert_true(du() <= 20 * MIB);
        few = stats().chunks;
        assert_true(few < 1250 && few > 900);
        for (uint64_t i = 0; i < 3500; i++)
                if (present(i))
                        assert_int_equal(get(i, 16384), 0);
        put_range(10000, 500, 16384);
        assert_true(du() <= 20 * MIB);
        assert_int_equal(count_present(10000, 500), 500);
        stop();

        start_limit(96 * MIB);
        put_range(20000, 4500, 16384);
        assert_int_equal(count_present(20000, 4500), 4500);
        assert_true(stats().chunks > 4500 + 900);
        assert_true(du() <= 96 * MIB);
        stop();
        start_limit(96 * MIB);
        assert_int_equal(count_present(20000, 4500), 4500);
        for (uint64_t i = 20000; i < 24500; i += 50)
                assert_int_equal(get(i, 16384), 0);
        stop();
}

static void check_segments_max(void)
{
        struct store_stats s = stats();

        assert_true(s.segments <= s.segments_max);
        assert_true(s.segments_max <= s.limit / s.segment_bytes + s.segments);
}

/* The last data file takes the rest of a limit and keeps that size when the limit is raised, so
 * there may be more files than a limit has whole ones. */
static void there_are_never_more_data_files_than_there_may_be(void **state)
{
        bool more_than_whole_ones = false;
        struct store_stats s;

        start_limit(64 * MIB);
        check_segments_max();
        put_range(0, 4000, 16384);
        check_segments_max();
        for (uint64_t i = 1; i <= 6; i++) {
                stop();
                start_limit(64 * MIB + i * MIB / 3);
                check_segments_max();
                put_range(10000 * i, 4000, 16384);
                check_segments_max();
                s = stats();
                more_than_whole_ones =
                        more_than_whole_ones || s.segments > s.limit / s.segment_bytes + 1;
        }
        /* A full store uses all of its room, except a rest too small for a slot. */
        assert_in_range(s.segments_max - s.segments, 0, 1);
        assert_true(more_than_whole_ones);
        stop();
}

/* Starts without writing zeros to large files. */
static void start_unwritten(uint64_t limit)
{
        struct store_params params = params_of(limit);

        params.prewrite = false;
        start(&params);
}

/* However few slots there are: or it would be synced all the time. */
static void a_ring_has_a_part_of_the_limit(void **state)
{
        start_unwritten(64 * MIB);
        put_range(0, 100, 1 * MIB); /* fills the store */
        settle();
        assert_int_equal(stats().table_pages, 64);
        stop();
        start_unwritten(512 * MIB);
        settle();
        assert_int_equal(stats().table_pages, 512 * MIB / 512 / 4096);
        assert_true(present(99));
        stop();
        start_unwritten(64 * MIB);
        assert_true(stats().table_pages <= 256);
        assert_true(du() <= 64 * MIB);
        assert_int_equal(get(99, 1 * MIB), 0);
        put_range(100, 100, 1 * MIB);
        assert_int_equal(get(199, 1 * MIB), 0);
        stop();
        start_unwritten(UINT64_C(16) << 30);
        settle();
        assert_int_equal(stats().table_pages, 2048);
        stop();
}

/* An old version made this store, and the limit has no room for another data file. The volume does
 * not count as full for lack of a larger ring. */
static void a_file_system_without_room_keeps_the_small_ring(void **state)
{
        struct store_volume_stats volume = { 0 };
        struct store_params params;
        uint64_t used;

        start_unwritten(160 * MIB);
        put_range(0, 90, 2 * MIB); /* fills the store */
        settle();
        assert_int_equal(stats().table_pages, 80);
        used = stats().used_bytes;
        stop();
        start_unwritten(used - 4096);
        assert_int_equal(stats().table_pages, 64);
        used = stats().used_bytes;
        stop();
        params = params_of(160 * MIB);
        params.prewrite = false;
        params.reserve = UINT64_C(1) << 60;
        start(&params);
        put_range(90, 20, 2 * MIB);
        settle();
        assert_int_equal(stats().table_pages, 64);
        assert_int_equal(stats().used_bytes, used);
        assert_true(store_get_volume_stats(t.s, 0, &volume));
        assert_false(volume.full);
        assert_int_equal(volume.full_refusals, 0);
        stop();
        start_unwritten(160 * MIB);
        settle();
        assert_int_equal(stats().table_pages, 80);
        assert_int_equal(get(109, 2 * MIB), 0);
        stop();
}

static void a_lowered_limit_makes_a_large_ring_smaller(void **state)
{
        uint64_t pages;

        start_limit(64 * MIB);
        put_range(0, 12000, 4096);
        settle(); /* the ring grows behind the puts */
        pages = stats().table_pages;
        assert_true(pages > 1000);
        stop();
        start_limit(8 * MIB);
        assert_true(stats().table_pages < pages / 4);
        assert_true(du() <= 8 * MIB);
        assert_true(stats().chunks > 800);
        for (uint64_t i = 0; i < 12000; i++)
                if (present(i))
                        assert_int_equal(get(i, 4096), 0);
        put_range(20000, 3000, 4096);
        assert_int_equal(get(22999, 4096), 0);
        stop();
        start_limit(8 * MIB);
        assert_int_equal(get(22999, 4096), 0);
        stop();
}

/* A ring that is longer than the slots of the lowered limit can need, but fits the limit. */
static void a_lowered_limit_keeps_the_chunks_of_a_ring_that_fits(void **state)
{
        enum { CHUNKS = 1500 };
        struct store_params params = params_of(UINT64_C(4) << 30);

        params.prewrite = false;
        params.segment_bytes = MIB;
        start(&params);
        settle();
        assert_int_equal(stats().table_pages, 2048);
        for (uint64_t i = 0; i < CHUNKS; i++) /* each has a page of its own */
                assert_int_equal(put(i, 4096), 0);
        stop();
        for (unsigned round = 0; round < 3; round++) {
                start_unwritten(32 * MIB);
                assert_int_equal(stats().lost_files, 0);
                assert_int_equal(count_present(0, CHUNKS), CHUNKS);
                assert_true(du() <= 32 * MIB);
                stop();
        }
}

/* Limits of two lives of a store: with the first one the ring has 64 pages and with the second one
 * 256, of which a store of the third one never has more than 160. */
enum { SHORT_RING = 8, LONG_RING = 512, LOWERED = 6 };

static void start_with_small_files(uint64_t limit)
{
        struct store_params params = params_of(limit);

        params.prewrite = false;
        params.segment_bytes = MIB;
        start(&params);
}

/* Lets the ring grow without a later write of the superblock, as no data file is cut. */
static void put_into_a_longer_ring(void)
{
        start_with_small_files(LONG_RING * MIB);
        settle();
        assert_int_equal(stats().table_pages, 256);
        for (uint64_t i = 300; i < 500; i++) /* each has a page of its own */
                assert_int_equal(put(i, 4096), 0);
}

static void die_at_a_loss(void *userdata, unsigned path, enum store_volume_event event,
                          const char *text)
{
        if (event == STORE_VOLUME_HAS_LOST)
                kill(getpid(), SIGKILL);
}

static void open_with_a_lower_limit(void)
{
        struct store_params params = params_of(LOWERED * MIB);
        char error[512] = "";

        params.prewrite = false;
        params.on_volume = die_at_a_loss;
        try_open(&params, error);
        _exit(0);
}

/* A start that is killed before it has reported a lost data file must not make the next one cut the
 * ring. */
static void a_killed_start_after_a_loss_keeps_the_ring(void **state)
{
        char path[PATH_MAX + 32];

        start_with_small_files(SHORT_RING * MIB);
        settle();
        for (uint64_t i = 0; i < 300; i++) /* fills one data file, and a part of the next */
                assert_int_equal(put(i, 4096), 0);
        assert_int_equal(stats().table_pages, 64);
        stop();
        in_killed_process(put_into_a_longer_ring);
        snprintf(path, sizeof(path), "%s/segment-0000", t.dir);
        assert_int_equal(unlink(path), 0);
        in_killed_process(open_with_a_lower_limit);
        start_unwritten(LOWERED * MIB);
        assert_int_equal(stats().lost_files, 1);
        assert_int_equal(count_present(256, 244), 244);
        stop();
}

/* The list of namespaces takes more than the lowered limit. */
static void a_limit_that_is_refused_costs_no_chunk(void **state)
{
        enum { NAMES = 480, CHUNKS = 20 };
        static struct store_namespace_open opens[NAMES];
        static char names[NAMES][16], fingerprint[STORE_MAX_FINGERPRINT];
        struct store_params params = params_of(4 * MIB);
        char error[512] = "";

        memset(fingerprint, 'f', sizeof(fingerprint));
        start_limit(64 * MIB);
        for (unsigned i = 0; i < NAMES; i++) {
                int n = snprintf(names[i], sizeof(names[i]), "name-%u", i);

                opens[i] = (struct store_namespace_open){
                        .name = names[i],
                        .name_length = (uint16_t)n,
                        .fingerprint = fingerprint,
                        .fingerprint_length = sizeof(fingerprint),
                        .complete = ns_complete,
                };
                store_namespace_open(t.s, &opens[i]);
        }
        for (unsigned i = 0; i < NAMES; i++) {
                turn(ns_done, &opens[i]);
                assert_int_equal(opens[i].result, 0);
        }
        for (uint64_t i = 0; i < CHUNKS; i++)
                assert_int_equal(put(i, 16384), 0);
        stop();
        assert_int_equal(try_open(&params, error), -ENOSPC);
        assert_non_null(strstr(error, "store.limit"));
        start_limit(64 * MIB);
        assert_int_equal(count_present(0, CHUNKS), CHUNKS);
        stop();
}

static void a_little_too_much_costs_a_little(void **state)
{
        uint64_t all;

        start_limit(16 * MIB);
        put_range(0, 1200, 16384); /* fills the store */
        all = stats().chunks;
        assert_true(all > 850 && all < 1200);
        stop();
        start_limit(16 * MIB - 32 * 1024);
        assert_true(du() <= 16 * MIB - 32 * 1024);
        assert_true(stats().chunks < all && stats().chunks >= all - 4);
        for (uint64_t i = 0; i < 1200; i++)
                if (present(i))
                        assert_int_equal(get(i, 16384), 0);
        put_range(2000, 1200, 16384);
        assert_true(du() <= 16 * MIB - 32 * 1024);
        stop();
}

static void a_part_of_a_page_at_the_end_of_a_data_file_costs_nothing(void **state)
{
        char path[PATH_MAX + 64];
        struct stat st;
        uint64_t all;

        start_limit(16 * MIB);
        put_range(0, 1200, 16384);
        all = stats().chunks;
        stop();
        /* After a power loss, the unsynced size may be there in part. */
        snprintf(path, sizeof(path), "%s/segment-0000", t.dir);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(truncate(path, st.st_size + 512), 0);
        start_limit(16 * MIB);
        assert_int_equal(stats().chunks, all);
        assert_true(du() <= 16 * MIB);
        stop();
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_size % 4096, 0);
}

/* Lets it, until it has nothing left to do. */
static void prewrite_all(void)
{
        for (;;) {
                uint64_t deadline, now;

                turn_once();
                deadline = store_deadline_ns(t.s);
                now = clock_mono_ns();
                if (kio_pending(t.io) > 0)
                        wait_io();
                else if (deadline > now)
                        poll(NULL, 0, (int)((deadline - now) / 1000000) + 1);
                else if (deadline == 0)
                        return;
        }
}

static void a_store_that_is_left_alone_writes_a_third_of_its_limit_ahead(void **state)
{
        start_limit(48 * MIB);
        prewrite_all();
        assert_in_range(stats().prewrite_bytes_written, 16 * MIB, 17 * MIB);
        for (unsigned i = 0; i < 8; i++)
                assert_int_equal(put(i, (uint32_t)MIB), 0);
        prewrite_all();
        assert_in_range(stats().prewrite_bytes_written, 24 * MIB, 25 * MIB);
        stop();
}

static void nothing_is_written_ahead_beside_a_put(void **state)
{
        uint64_t before, until;

        t.faults = true;
        start_limit(48 * MIB);
        prewrite_all();
        before = stats().prewrite_bytes_written;
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_NEVER, .first = 1, .count = 1 });
        assert_int_equal(submit_put(1, (uint32_t)MIB, false), 0);
        until = clock_mono_ns() + 50 * 1000000;
        while (clock_mono_ns() < until) {
                turn_once();
                assert_int_equal(store_deadline_ns(t.s), 0);
                poll(NULL, 0, 1);
        }
        assert_int_equal(fault_hits(), 1);
        assert_int_equal(stats().prewrite_bytes_written, before);
        fault_set(NULL);
        fault_release();
        turn(puts_none, NULL);
        assert_int_equal(last_result, 0);
        prewrite_all();
        assert_int_equal(stats().prewrite_bytes_written, before + MIB);
        stop();
        t.faults = false;
}

int main(int argc, char **argv)
{
        static const struct CMUnitTest tests[] = {
                TEST(the_limit_holds_while_filling_over_and_over),
                TEST(the_coldest_leaves_first),
                TEST(after_a_restart_the_later_of_a_second_leave_first),
                TEST(another_model_reaches_its_share_of_a_full_store),
                TEST(what_is_pinned_stays_whatever_else_is_put),
                TEST(pins_never_refuse_a_put),
                TEST(a_bound_on_entries_evicts),
                TEST(when_everything_is_read_nothing_is_evicted),
                TEST(a_lowered_limit_is_enforced_at_start_and_a_raised_one_used),
                TEST(a_little_too_much_costs_a_little),
                TEST(a_part_of_a_page_at_the_end_of_a_data_file_costs_nothing),
                TEST(a_store_that_is_left_alone_writes_a_third_of_its_limit_ahead),
                TEST(nothing_is_written_ahead_beside_a_put),
        };
        /* Long ones, once. */
        static const struct CMUnitTest long_tests[] = {
                TEST(a_class_takes_the_segment_of_another),
                TEST(what_is_pinned_is_not_taken_first_by_other_tenants),
                TEST(small_chunks_may_fill_a_store_of_large_ones),
                TEST(there_are_never_more_data_files_than_there_may_be),
                TEST(a_ring_has_a_part_of_the_limit),
                TEST(a_file_system_without_room_keeps_the_small_ring),
                TEST(a_lowered_limit_makes_a_large_ring_smaller),
                TEST(a_lowered_limit_keeps_the_chunks_of_a_ring_that_fits),
                TEST(a_killed_start_after_a_loss_keeps_the_ring),
                TEST(a_limit_that_is_refused_costs_no_chunk),
                TEST(small_limits_lose_little_to_tables),
                TEST(pins_gain_no_room_from_other_tenants),
        };

        return run_store_tests(argc, argv, tests, ARRAY_SIZE(tests), long_tests,
                               ARRAY_SIZE(long_tests));
}
