/* SPDX-License-Identifier: Apache-2.0 */
/* store/index: linked chunks are found, and no others; freed records are recognized. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "store/volume/index.h"

static const struct key_secret secret = { { 11, 22 } };

static struct key key_of(uint64_t n)
{
        struct key k = { { 0 } };

        memcpy(k.bytes, &n, sizeof(n));
        return k;
}

static uint64_t hash_of(uint32_t ns, uint64_t n)
{
        struct key k = key_of(n);

        return key_hash(&secret, ns, &k);
}

static uint64_t hash_chunk(const void *userdata, uint32_t namespace_id, const struct key *key)
{
        return key_hash(userdata, namespace_id, key);
}

static int new_index(struct index **ret, uint32_t max)
{
        return index_new(ret, max, hash_chunk, &secret);
}

static uint32_t add(struct index *ix, uint32_t ns, uint64_t n, uint64_t hash)
{
        uint32_t i = index_acquire(ix);

        if (i == INDEX_NONE)
                return i;
        index_chunk(ix, i)->key = key_of(n);
        index_link(ix, i, ns, hash);
        return i;
}

static uint32_t find(const struct index *ix, uint32_t ns, uint64_t n, uint64_t hash)
{
        struct key k = key_of(n);

        return index_find(ix, ns, &k, hash);
}

static void what_is_linked_is_found_in_its_namespace_only(void **state)
{
        struct index *ix;

        assert_int_equal(new_index(&ix, 3000), 0);
        for (uint64_t n = 0; n < 1000; n++)
                assert_int_not_equal(add(ix, 1, n, hash_of(1, n)), INDEX_NONE);
        for (uint64_t n = 0; n < 1000; n++) {
                uint32_t i = find(ix, 1, n, hash_of(1, n));
                struct key k = key_of(n);

                assert_int_not_equal(i, INDEX_NONE);
                assert_true(key_equal(&index_chunk(ix, i)->key, &k));
                assert_int_equal(find(ix, 2, n, hash_of(2, n)), INDEX_NONE);
        }
        assert_int_equal(find(ix, 1, 1000, hash_of(1, 1000)), INDEX_NONE);
        index_free(ix);
}

static uint64_t hash_nothing(const void *userdata, uint32_t namespace_id, const struct key *key)
{
        return 7;
}

/* With a constant hash, all chunks have the same buckets, and differ only in namespace and key. */
static void collisions_are_told_apart_and_unlinked_in_any_order(void **state)
{
        enum { N = 50 };
        struct index *ix;
        uint32_t at[N];

        assert_int_equal(index_new(&ix, 100, hash_nothing, NULL), 0);
        for (uint64_t n = 0; n < N; n++)
                at[n] = add(ix, (uint32_t)(n % 2), n / 2, 7);
        for (uint64_t n = 0; n < N; n++)
                assert_int_equal(find(ix, (uint32_t)(n % 2), n / 2, 7), at[n]);
        for (uint64_t step = 0; step < N; step++) {
                uint64_t is_buffer_lost = step * 7 % N; /* first, middle, last */

                index_unlink(ix, at[is_buffer_lost]);
                assert_int_equal(find(ix, (uint32_t)(is_buffer_lost % 2), is_buffer_lost / 2, 7),
                                 INDEX_NONE);
                for (uint64_t other = step + 1; other < N; other++) {
                        uint64_t n = other * 7 % N;

                        assert_int_equal(find(ix, (uint32_t)(n % 2), n / 2, 7), at[n]);
                }
        }
        index_free(ix);
}

/* A bucket has 16 words: with a constant hash most chunks find no room in their two. */
static void chunks_without_room_are_found_and_unlinked(void **state)
{
        enum { N = 100 };
        struct index *ix;
        uint32_t at[N];

        assert_int_equal(index_new(&ix, 5000, hash_nothing, NULL), 0);
        for (uint64_t n = 0; n < N; n++)
                at[n] = add(ix, 1, n, 7);
        for (uint64_t n = 0; n < N; n++) {
                assert_int_equal(find(ix, 1, n, 7), at[n]);
                assert_int_equal(find(ix, 2, n, 7), INDEX_NONE);
        }
        for (uint64_t n = N; n-- > 0;) {
                index_unlink(ix, at[n]);
                index_release(ix, at[n]);
                for (uint64_t other = 0; other < N; other++)
                        assert_int_equal(find(ix, 1, other, 7), other < n ? at[other] : INDEX_NONE);
        }
        index_free(ix);
}

static void full_is_said_and_a_record_given_back_is_used_again(void **state)
{
        struct index *ix;
        uint32_t i;

        assert_int_equal(new_index(&ix, 10), 0);
        assert_int_equal(index_max(ix), 10);
        for (uint64_t n = 0; n < 10; n++)
                assert_int_not_equal(add(ix, 1, n, hash_of(1, n)), INDEX_NONE);
        assert_int_equal(index_acquire(ix), INDEX_NONE);
        assert_int_equal(index_used(ix), 10);

        i = find(ix, 1, 4, hash_of(1, 4));
        index_chunk(ix, i)->seq = 9;
        index_unlink(ix, i);
        index_release(ix, i);
        assert_int_equal(index_used(ix), 9);
        assert_int_equal(index_chunk(ix, i)->seq, 0); /* a holder of the number can see it */
        assert_int_equal(add(ix, 1, 100, hash_of(1, 100)), i);
        assert_int_equal(find(ix, 1, 4, hash_of(1, 4)), INDEX_NONE);
        assert_int_equal(find(ix, 1, 100, hash_of(1, 100)), i);
        assert_int_equal(index_acquire(ix), INDEX_NONE);
        index_free(ix);
}

static void a_fresh_record_is_empty(void **state)
{
        struct index *ix;
        struct chunk *c;
        uint32_t i;

        assert_int_equal(new_index(&ix, 10), 0);
        i = add(ix, 1, 1, hash_of(1, 1));
        c = index_chunk(ix, i);
        c->length = 5;
        c->pins = 0;
        c->reading = true;
        c->slab = 3;
        c->seq = CHUNK_SEQ_MAX;
        c->slot = 3;
        c->flags |= CHUNK_PENDING;
        index_unlink(ix, i);
        index_release(ix, i);
        assert_int_equal(index_acquire(ix), i);
        assert_int_equal(c->length, 0);
        assert_int_equal(c->slab, INDEX_NO_SLAB);
        assert_int_equal(c->seq, 0);
        assert_int_equal(c->reading, 0);
        assert_int_equal(c->slot, 0);
        assert_int_equal(c->flags, CHUNK_USED);
        index_free(ix);
}

/* The fields of a record share words. */
static void each_field_holds_its_most_without_touching_its_neighbours(void **state)
{
        struct index *ix;
        struct chunk *c;

        assert_int_equal(new_index(&ix, 10), 0);
        c = index_chunk(ix, index_acquire(ix));
        c->seq = CHUNK_SEQ_MAX;
        c->pins = CHUNK_PINS_MAX;
        c->reading = true;
        c->created_ms = CHUNK_CREATED_MAX;
        c->own = true;
        c->slab = INDEX_NO_SLAB - 1;
        c->slot = CHUNK_SLOTS_MAX - 1;
        c->flags = CHUNK_USED | CHUNK_LINKED | CHUNK_PENDING | CHUNK_DISPLACED;
        c->pins--;
        c->slab--;
        c->flags &= ~(unsigned)CHUNK_PENDING;
        assert_true(c->seq == CHUNK_SEQ_MAX);
        assert_int_equal(c->pins, CHUNK_PINS_MAX - 1);
        assert_true(c->reading);
        c->reading = false;
        assert_true(c->seq == CHUNK_SEQ_MAX);
        assert_int_equal(c->pins, CHUNK_PINS_MAX - 1);
        assert_true(c->created_ms == CHUNK_CREATED_MAX);
        assert_false(c->verified);
        c->verified = true;
        assert_true(c->created_ms == CHUNK_CREATED_MAX);
        assert_int_equal(c->slab, INDEX_NO_SLAB - 2);
        assert_int_equal(c->slot, CHUNK_SLOTS_MAX - 1);
        assert_int_equal(c->flags, CHUNK_USED | CHUNK_LINKED | CHUNK_DISPLACED);
        index_free(ix);
}

/* A store has 4096 namespaces at most, but ids go on: each id with records has a number, which is
 * free again once its last record is unlinked. */
static void any_number_of_namespaces_come_and_go(void **state)
{
        enum { AT_ONCE = 4096, ROUNDS = 8 };
        static uint32_t at[AT_ONCE];
        struct index *ix;

        assert_int_equal(new_index(&ix, AT_ONCE + 1), 0);
        for (uint32_t round = 0; round < ROUNDS; round++)
                for (uint32_t n = 0; n < AT_ONCE; n++) {
                        uint32_t ns = UINT32_MAX - round * AT_ONCE - n, old = at[n];

                        if (round > 0) {
                                assert_int_equal(index_namespace_of(ix, index_chunk(ix, old)),
                                                 ns + AT_ONCE);
                                index_unlink(ix, old);
                        }
                        at[n] = add(ix, ns, 5, hash_of(ns, 5));
                        assert_int_equal(find(ix, ns, 5, hash_of(ns, 5)), at[n]);
                        assert_int_equal(find(ix, ns + AT_ONCE, 5, hash_of(ns + AT_ONCE, 5)),
                                         INDEX_NONE);
                        if (round > 0)
                                index_release(ix, old); /* after its I/O */
                }
        index_free(ix);
}

static uint64_t bytes_of(const struct index *ix)
{
        uint64_t records, buckets;

        index_bytes(ix, &records, &buckets);
        return records + buckets;
}

static void records_stay_low_and_memory_follows_them(void **state)
{
        struct index *ix;

        assert_int_equal(new_index(&ix, 1u << 24), 0); /* 1.1 GB, if it were touched */
        for (unsigned round = 0; round < 100; round++) {
                uint32_t at[20];

                for (unsigned i = 0; i < 20; i++) {
                        at[i] = add(ix, 1, i, hash_of(1, i));
                        assert_true(at[i] < 20);
                }
                for (unsigned i = 0; i < 20; i++) {
                        index_unlink(ix, at[i]);
                        index_release(ix, at[i]);
                }
        }
        assert_int_equal(index_high(ix), 20);
        assert_true(bytes_of(ix) < 1u << 20);
        index_free(ix);
}

/* Compares the index with a plain array. */
static void random_adds_and_removes_agree_with_a_model(void **state)
{
        enum { KEYS = 2000, MAX = 1200 };
        static uint32_t model[KEYS]; /* record + 1 */
        struct index *ix;
        uint64_t x = 88172645463325252;
        uint32_t used = 0;

        assert_int_equal(new_index(&ix, MAX), 0);
        for (unsigned step = 0; step < 200000; step++) {
                uint64_t k;

                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                k = x % KEYS;
                assert_int_equal(find(ix, 3, k, hash_of(3, k)),
                                 model[k] ? model[k] - 1 : INDEX_NONE);
                if (model[k]) {
                        index_unlink(ix, model[k] - 1);
                        index_release(ix, model[k] - 1);
                        model[k] = 0;
                        used--;
                } else {
                        uint32_t i = add(ix, 3, k, hash_of(3, k));

                        assert_int_equal(i == INDEX_NONE, used == MAX);
                        if (i != INDEX_NONE) {
                                model[k] = i + 1;
                                used++;
                        }
                }
                assert_int_equal(index_used(ix), used);
        }
        index_free(ix);
}

static void a_hash_alone_finds_a_linked_chunk(void **state)
{
        enum { CHUNKS = 20000 };
        static uint32_t at[CHUNKS];
        struct index *ix;

        assert_int_equal(new_index(&ix, CHUNKS), 0);
        for (uint64_t n = 0; n < CHUNKS; n++)
                at[n] = add(ix, 1, n, hash_of(1, n));
        for (uint64_t n = 0; n < CHUNKS; n++) {
                assert_int_equal(index_find_hash(ix, hash_of(1, n)), at[n]);
                assert_int_equal(index_find_hash(ix, hash_of(1, CHUNKS + n)), INDEX_NONE);
        }
        index_free(ix);
}

/* With this bound a word has a single bit beside the number, and all tags are equal. */
static void chunks_are_found_when_numbers_leave_no_room_for_tags(void **state)
{
        enum { CHUNKS = 20000 };
        static uint32_t at[CHUNKS];
        struct index *ix;

        assert_int_equal(new_index(&ix, 1u << 30), 0);
        for (uint64_t n = 0; n < CHUNKS; n++)
                at[n] = add(ix, 1, n, hash_of(1, n));
        for (uint64_t n = 0; n < CHUNKS; n += 2)
                index_unlink(ix, at[n]);
        for (uint64_t n = 0; n < CHUNKS; n++) {
                assert_int_equal(find(ix, 1, n, hash_of(1, n)), n % 2 ? at[n] : INDEX_NONE);
                assert_int_equal(find(ix, 1, CHUNKS + n, hash_of(1, CHUNKS + n)), INDEX_NONE);
        }
        index_free(ix);
}

/* The buckets grow meanwhile. */
static void all_are_found_whether_room_was_made_first_or_not(void **state)
{
        enum { CHUNKS = 50000 };

        for (unsigned reserved = 0; reserved <= CHUNKS; reserved += CHUNKS / 2) {
                static uint32_t at[CHUNKS];
                struct index *ix;

                assert_int_equal(new_index(&ix, 1u << 20), 0);
                index_reserve(ix, reserved);
                for (uint64_t n = 0; n < CHUNKS; n++)
                        at[n] = add(ix, 1, n, hash_of(1, n));
                for (uint64_t n = 0; n < CHUNKS; n += 2) {
                        index_unlink(ix, at[n]);
                        index_release(ix, at[n]);
                }
                for (uint64_t n = 0; n < CHUNKS; n++)
                        assert_int_equal(find(ix, 1, n, hash_of(1, n)), n % 2 ? at[n] : INDEX_NONE);
                assert_true(bytes_of(ix) <= CHUNKS * 66);
                index_free(ix);
        }
}

int main(void)
{
        static const struct CMUnitTest tests[] = {
                cmocka_unit_test(what_is_linked_is_found_in_its_namespace_only),
                cmocka_unit_test(collisions_are_told_apart_and_unlinked_in_any_order),
                cmocka_unit_test(chunks_without_room_are_found_and_unlinked),
                cmocka_unit_test(a_hash_alone_finds_a_linked_chunk),
                cmocka_unit_test(chunks_are_found_when_numbers_leave_no_room_for_tags),
                cmocka_unit_test(full_is_said_and_a_record_given_back_is_used_again),
                cmocka_unit_test(a_fresh_record_is_empty),
                cmocka_unit_test(each_field_holds_its_most_without_touching_its_neighbours),
                cmocka_unit_test(any_number_of_namespaces_come_and_go),
                cmocka_unit_test(records_stay_low_and_memory_follows_them),
                cmocka_unit_test(random_adds_and_removes_agree_with_a_model),
                cmocka_unit_test(all_are_found_whether_room_was_made_first_or_not),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
