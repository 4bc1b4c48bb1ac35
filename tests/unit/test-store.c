/* SPDX-License-Identifier: Apache-2.0 */
/* store/: puts, gets and lists, byte for byte; reads and writes at random against a model. */
#include <string.h>

#include "checked.h"
#include "store-fixture.h"

static void a_chunk_comes_back_byte_for_byte(void **state)
{
        static const uint32_t lengths[] = { 1, 4095, 4096, 4097, 16384, 65536 + 1, 300000 };

        start_limit(64 * MIB);
        for (unsigned i = 0; i < ARRAY_SIZE(lengths); i++) {
                assert_int_equal(get(i, lengths[i]), STORE_MISS);
                assert_int_equal(put(i, lengths[i]), 0);
                assert_true(present(i));
                assert_int_equal(put(i, lengths[i]), STORE_EXISTS);
                assert_int_equal(get(i, lengths[i]), 0);
        }
        assert_int_equal(put(100, (uint32_t)store_max_chunk(t.s)), 0);
        assert_int_equal(get(100, (uint32_t)store_max_chunk(t.s)), 0);
        assert_int_equal(put(101, (uint32_t)store_max_chunk(t.s) + 1), STORE_TOO_LARGE);
        assert_int_equal(put(102, 0), STORE_TOO_LARGE);
        assert_int_equal(stats().chunks, ARRAY_SIZE(lengths) + 1);
        stop();
}

static void too_little_room_for_a_get_is_said(void **state)
{
        static struct store_get req;

        start_limit(64 * MIB);
        assert_int_equal(put(1, 10000), 0);
        req = (struct store_get){
                .namespace_id = t.ns, .key = key_of(1), .buf = t.bufs[0], .room = 8192
        };
        req.hash = store_hash(t.s, t.ns, &req.key);
        assert_int_equal(store_get(t.s, &req), STORE_TOO_LARGE);
        assert_int_equal(req.length, 10000);
        stop();
}

static void a_put_is_seen_only_when_it_is_written(void **state)
{
        start_limit(64 * MIB);
        assert_int_equal(submit_put(1, 5000, false), 0);
        assert_false(present(1));
        assert_int_equal(get(1, 5000), STORE_MISS);
        assert_int_equal(drop(1), STORE_MISS);
        assert_int_equal(submit_put(1, 5000, false), STORE_EXISTS);
        turn(puts_none, NULL);
        assert_int_equal(last_result, 0);
        assert_int_equal(get(1, 5000), 0);
        stop();
}

static void a_stale_ref_is_harmless(void **state)
{
        struct key k = key_of(1);
        struct store_ref ref;

        start_limit(64 * MIB);
        store_touch(t.s, STORE_REF_NONE, 0);
        assert_int_equal(put(1, 5000), 0);
        assert_int_equal(store_find(t.s, t.ns, &k, store_hash(t.s, t.ns, &k), &ref, NULL), 0);
        assert_int_equal(drop(1), 0);
        store_touch(t.s, ref, 0);
        assert_int_equal(put(2, 5000), 0);
        store_touch(t.s, ref, 0);
        stop();
}

static void a_list_meets_every_chunk_once(void **state)
{
        static struct store_chunk chunks[64];
        static uint8_t seen[2000];
        uint64_t cursor = 0, calls = 0;
        uint32_t other;

        start_limit(64 * MIB);
        put_range(0, 2000, 4096);
        assert_int_equal(open_namespace("other", "", false, &other), 0);
        memset(seen, 0, sizeof(seen));
        do {
                unsigned n = store_list(t.s, t.ns, &cursor, chunks, 64);

                assert_true(n <= 64);
                for (unsigned i = 0; i < n; i++) {
                        uint64_t k;

                        memcpy(&k, chunks[i].key.bytes, sizeof(k));
                        assert_true(k < 2000);
                        seen[k]++;
                        assert_int_equal(chunks[i].length, 4096);
                }
                assert_true(++calls < 1000);
        } while (cursor != 0);
        for (unsigned i = 0; i < 2000; i++)
                assert_int_equal(seen[i], 1);
        cursor = 0;
        assert_int_equal(store_list(t.s, other, &cursor, chunks, 64), 0);
        stop();
}

static void the_same_key_in_two_namespaces_is_two_chunks(void **state)
{
        uint32_t a, b;

        start_limit(64 * MIB);
        a = t.ns;
        assert_int_equal(open_namespace("other", "", false, &b), 0);
        assert_int_equal(put(1, 5000), 0);
        t.ns = b;
        assert_int_equal(get(1, 5000), STORE_MISS);
        assert_int_equal(put(1, 6000), 0);
        t.ns = a;
        assert_int_equal(get(1, 5000), 0);
        assert_int_equal(purge(false), 1);
        t.ns = b;
        assert_int_equal(get(1, 6000), 0);
        assert_int_equal(store_namespace_get(t.s, a)->chunks, 0);
        assert_int_equal(store_namespace_get(t.s, b)->chunks, 1);
        assert_int_equal(store_namespace_get(t.s, b)->bytes, 6000);
        stop();
}

static void the_smallest_store_works(void **state)
{
        start_limit(4 * MIB);
        put_range(0, 2000, 5000);
        assert_true(stats().chunks > 200);
        assert_true(du() <= 4 * MIB);
        assert_int_equal(get(1999, 5000), 0);
        stop();
        start_limit(4 * MIB);
        assert_int_equal(get(1999, 5000), 0);
        stop();
}

static void reads_and_writes_at_random_agree_with_a_model(void **state)
{
        enum { KEYS = 600 };
        static uint32_t model[KEYS]; /* length; 0: dropped or never put. Evicted ones stay. */
        uint64_t x = 88172645463325252;
        uint64_t hits = 0;

        memset(model, 0, sizeof(model));
        start_limit(12 * MIB);
        for (unsigned step = 0; step < 20000; step++) {
                uint64_t k;

                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                k = x % KEYS;
                switch (x / KEYS % 16) {
                case 0:
                        drop(k);
                        model[k] = 0;
                        break;
                case 1 ... 8: {
                        /* The length belongs to the key: a key names its content. */
                        static const uint32_t lengths[] = { 5000, 16000, 50000 };
                        uint32_t length = lengths[k % 3] + (uint32_t)(k / 3);
                        int r = put(k, length);

                        assert_true(r == 0 || r == STORE_EXISTS);
                        model[k] = length;
                        break;
                }
                case 9:
                        if (step % 64 == 0) {
                                purge(false);
                                memset(model, 0, sizeof(model));
                        }
                        break;
                default: {
                        int r = get(k, model[k]);

                        assert_true(r == 0 || r == STORE_MISS);
                        if (r == 0) {
                                assert_true(model[k] != 0);
                                hits++;
                        }
                }
                }
                if (step % 4000 == 3999) {
                        stop();
                        start_limit(12 * MIB);
                }
        }
        if (hits < 1000)
                fail_msg("%llu hits", (unsigned long long)hits);
        assert_int_equal(stats().crc_failures, 0);
        stop();
}

int main(int argc, char **argv)
{
        static const struct CMUnitTest tests[] = {
                TEST(a_chunk_comes_back_byte_for_byte),
                TEST(too_little_room_for_a_get_is_said),
                TEST(a_put_is_seen_only_when_it_is_written),
                TEST(a_stale_ref_is_harmless),
                TEST(a_list_meets_every_chunk_once),
                TEST(the_same_key_in_two_namespaces_is_two_chunks),
                TEST(the_smallest_store_works),
                TEST(reads_and_writes_at_random_agree_with_a_model),
        };

        return run_store_tests(argc, argv, tests, ARRAY_SIZE(tests), NULL, 0);
}
