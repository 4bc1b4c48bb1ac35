/* SPDX-License-Identifier: Apache-2.0 */
/* libkvcache's windows of keys: both methods of searching the shared index compute the hashes and
 * answers of proto/lookup.h, the daemon's own code, whatever the table contains. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "checked.h"
#include "lib/window.h"
#include "lookup/table.h"
#include "wire.h"

enum {
        PAGE = 4096,
        KEYS = 40,
        STRIDE_MAX = 72,
        BUCKETS = 64,
        WORDS = 1300 /* some are in the stash */
};

static const struct key_secret secret = { { 0x0706050403020100, 0x0f0e0d0c0b0a0908 } };
static uint64_t seed = 88172645463325252u;
static struct {
        struct lookup_table *table;
        struct lookup_view view;
        uint8_t *pages; /* a page for keys, followed by an inaccessible one */
} f;

static uint64_t draw(void)
{
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        return seed * UINT64_C(0x2545f4914f6cdd1d);
}

/* Returns a method that this processor supports, by number. */
static const struct window_ways *way(unsigned number)
{
#if defined(__x86_64__)
        if (number == 1 && __builtin_cpu_supports("avx2"))
                return &window_avx2;
#endif
        return number == 0 ? &window_plain : NULL;
}

/* Makes random keys, the last of which ends where memory ends. */
static struct look look_at(size_t stride, size_t count)
{
        size_t bytes = count ? (count - 1) * stride + KEY_BYTES : 0;

        for (size_t i = 0; i < PAGE; i++)
                f.pages[i] = (uint8_t)(draw() | 1);
        return (struct look){ &f.view, &secret, f.pages + PAGE - bytes, stride, count };
}

static void hashes_are_those_of_the_keys(void **state)
{
        static const size_t strides[] = { KEY_BYTES, 41, STRIDE_MAX };

        (void)state;
        for (unsigned number = 0; way(number); number++)
                for (size_t n = 0; n <= KEYS; n++)
                        for (size_t first = 0; first < KEYS + 2 * WINDOW_KEYS; first += 7) {
                                size_t stride = strides[n % ARRAY_SIZE(strides)];
                                struct look look = look_at(stride, n);
                                struct window w = { .absent = 5 };

                                assert_true(way(number)->hash(&look, first, &w));
                                assert_int_equal(w.first, MIN(first, n));
                                assert_int_equal(w.n, MIN(n - w.first, (size_t)WINDOW_KEYS));
                                assert_int_equal(w.absent, 0);
                                for (size_t i = 0; i < w.n; i++) {
                                        struct key k;

                                        memcpy(&k, look.keys + (w.first + i) * stride, sizeof(k));
                                        assert_int_equal(w.hashes[i], lookup_hash(&secret, &k));
                                }
                        }
}

static void hashes_alone_are_the_same(void **state)
{
        (void)state;
        for (unsigned number = 0; way(number); number++)
                for (size_t n = 0; n <= KEYS; n++) {
                        size_t stride = n % 2 ? KEY_BYTES : 41;
                        struct look look = look_at(stride, n);
                        uint64_t hashes[KEYS + 1];

                        hashes[n] = 4711; /* is left alone */
                        if (n > 2)
                                memset((uint8_t *)look.keys + stride, 0, KEY_BYTES); /* the root */
                        way(number)->hash_keys(&secret, look.keys, stride, n, hashes);
                        for (size_t i = 0; i < n; i++) {
                                struct key k;

                                memcpy(&k, look.keys + i * stride, sizeof(k));
                                assert_int_equal(hashes[i], lookup_hash(&secret, &k));
                        }
                        assert_int_equal(hashes[n], 4711);
                }
}

static void the_root_is_seen_wherever_it_is(void **state)
{
        (void)state;
        for (unsigned number = 0; way(number); number++)
                for (size_t n = 1; n <= WINDOW_KEYS; n++)
                        for (size_t at = 0; at < n; at++) {
                                struct look look = look_at(KEY_BYTES, n);
                                uint8_t *key = f.pages + PAGE - (n - at) * KEY_BYTES;
                                struct window w;

                                memset(key, 0, KEY_BYTES);
                                assert_false(way(number)->hash(&look, 0, &w));
                                for (unsigned byte = 0; byte < KEY_BYTES; byte++) {
                                        key[byte] = 0x80;
                                        assert_true(way(number)->hash(&look, 0, &w));
                                        key[byte] = 0;
                                }
                        }
}

static void search(const struct window_ways *ways, const struct look *look, struct window *w)
{
        struct lookup_pair p;

        w->absent = 0;
        ways->find_first(look, w);
        for (size_t i = 0; i < w->n; i++) {
                p = lookup_main(w->hashes[i], f.view.n_buckets);
                assert_int_equal(
                        w->absent >> i & 1,
                        !(lookup_scan(&f.view.buckets[p.a], w->hashes[i]) & WIRE_TIER_ALL));
        }
        ways->find_second(look, w);
        for (size_t i = 0; i < w->n; i++) {
                p = lookup_main(w->hashes[i], f.view.n_buckets);
                assert_int_equal(w->absent >> i & 1,
                                 !((lookup_scan(&f.view.buckets[p.a], w->hashes[i]) |
                                    lookup_scan(&f.view.buckets[p.b], w->hashes[i])) &
                                   WIRE_TIER_ALL));
        }
        assert_int_equal(w->n < 32 ? w->absent >> w->n : 0, 0);
}

/* Half of the hashes are in the table, in any tier. */
static void what_is_in_a_bucket_is_found_there(void **state)
{
        static uint64_t hashes[2 * WORDS];
        unsigned absent = 0, present = 0;

        (void)state;
        for (size_t i = 0; i < ARRAY_SIZE(hashes); i++) {
                hashes[i] = draw();
                if (i % 2 == 0)
                        lookup_table_add(f.table, hashes[i], 1 + (unsigned)(i / 2) % 2);
        }
        assert_true(f.table->overflowed > 0 && f.table->words > BUCKETS * LOOKUP_WORDS);
        for (unsigned number = 0; way(number); number++)
                for (size_t at = 0; at + WINDOW_KEYS <= ARRAY_SIZE(hashes); at++) {
                        struct look look = look_at(KEY_BYTES, KEYS);
                        struct window w = { .n = at % (WINDOW_KEYS + 1) };

                        memcpy(w.hashes, hashes + at, sizeof(w.hashes));
                        search(way(number), &look, &w);
                        for (size_t i = 0; i < w.n; i++) {
                                bool is_absent = w.absent >> i & 1;

                                assert_true(is_absent || (at + i) % 2 == 0);
                                absent += is_absent;
                                present += !is_absent;
                        }
                }
        assert_true(absent > 1000 && present > 1000);
}

/* Words without a tier are none, also where the tag is that of the hash; and a bucket's first word
 * has a bit that is not its word's. */
static void a_word_may_be_anything(void **state)
{
        uint32_t *words = f.table->buckets->words;
        size_t n = (size_t)(f.table->n_buckets + f.table->n_stash) * LOOKUP_WORDS;

        (void)state;
        for (unsigned number = 0; way(number); number++)
                for (unsigned round = 0; round < 2000; round++) {
                        struct look look = look_at(KEY_BYTES, KEYS);
                        struct window w = { .n = WINDOW_KEYS };
                        uint64_t hash = round % 3 == 0 ? draw() << 32 : draw();
                        uint32_t tag = lookup_tag(hash);

                        for (size_t i = 0; i < n; i++)
                                words[i] = (uint32_t)(draw() % 4 ? draw() : tag | (draw() & 4));
                        for (size_t i = 0; i < WINDOW_KEYS; i++)
                                w.hashes[i] = (hash & ~UINT64_C(7)) | i % 8;
                        if (round % 2) {
                                struct lookup_pair p = lookup_main(hash, f.view.n_buckets);

                                words[(round % 4 == 1 ? p.a : p.b) * LOOKUP_WORDS +
                                      round / 4 % LOOKUP_WORDS] =
                                        tag | (1 + (uint32_t)(draw() % 3));
                        }
                        search(way(number), &look, &w);
                        if (round % 2)
                                assert_int_equal(w.absent, 0);
                }
}

static int setup(void **state)
{
        (void)state;
        f.pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(f.pages != MAP_FAILED);
        assert_int_equal(mprotect(f.pages + PAGE, PAGE, PROT_NONE), 0);
        assert_int_equal(lookup_table_new(&f.table, BUCKETS), 0);
        assert_true(lookup_view_init(&f.view, f.table->header, f.table->backing.bytes));
        return 0;
}

static int teardown(void **state)
{
        (void)state;
        f.table = lookup_table_free(f.table);
        munmap(f.pages, 2 * PAGE);
        return 0;
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                CASE(hashes_are_those_of_the_keys),    CASE(hashes_alone_are_the_same),
                CASE(the_root_is_seen_wherever_it_is), CASE(what_is_in_a_bucket_is_found_there),
                CASE(a_word_may_be_anything),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
