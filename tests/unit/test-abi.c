/* SPDX-License-Identifier: Apache-2.0 */
/* libkvcache's structures across versions of the header: sizes, members that one side does not
 * know, and the constructors. The test is built three times: with the present header, with a
 * library whose structures have grown, and as a program whose structures have grown. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "../lib/rig.h"

enum { MORE = 16, KEYS = 5, BYTES = 300 };

/* A structure of a program that was built with a later header than any library. */
#define WIDE(name)                                                                                 \
        struct wide_##name {                                                                       \
                struct kvcache_##name as;                                                          \
                uint64_t more[MORE];                                                               \
        }
WIDE(options);
WIDE(info);
WIDE(namespace_options);
WIDE(buffer_options);
WIDE(request);
WIDE(entry);
WIDE(result);
WIDE(completion);
WIDE(namespace_info);
WIDE(listed);
WIDE(verify);

static bool all_zero(const uint64_t *more)
{
        uint64_t all = 0;

        for (unsigned i = 0; i < MORE; i++)
                all |= more[i];
        return all == 0;
}

static void start(struct rig *f)
{
        struct fake_options o = { 0 };
        struct wide_options w = { .as = { .size = sizeof(w), .socket_path = f->path } };
        struct wide_namespace_options ns = {
                .as = { .size = sizeof(ns), .name = "ns", .fingerprint = "a=b\n" },
        };
        char why[256] = "";

        f->d = fake_daemon_start(f->path, &o);
        w.more[MORE - 1] = 1;
        assert_int_equal(kvcache_connect(&f->kv, &w.as, why, sizeof(why)), -E2BIG);
        assert_non_null(strstr(why, "a member of the options is set"));
        assert_non_null(strstr(why, "does not know: use a newer libkvcache"));
        assert_non_null(strstr(why, kvcache_version()));
        w.more[MORE - 1] = 0;
        assert_int_equal(kvcache_connect(&f->kv, &w.as, why, sizeof(why)), 0);

        ns.more[MORE - 1] = 1;
        assert_int_equal(kvcache_namespace_open(f->kv, &ns.as, &f->ns), -E2BIG);
        ns.more[MORE - 1] = 0;
        assert_int_equal(kvcache_namespace_open(f->kv, &ns.as, &f->ns), 0);
}

static struct kvcache_request prepare(struct rig *f, enum kvcache_op op,
                                      const struct wide_entry *entries, size_t n,
                                      struct wide_result *results)
{
        struct kvcache_request q;

        kvcache_prep(&q, op, f->ns, n, &results->as);
        q.entries = &entries->as;
        q.entry_size = sizeof(*entries);
        q.result_size = sizeof(*results);
        return q;
}

static void test_the_version_is_the_headers(void **state)
{
        char ours[32];

        snprintf(ours, sizeof(ours), "%d.%d.", KVCACHE_VERSION_MAJOR, KVCACHE_VERSION_MINOR);
        assert_memory_equal(kvcache_version(), ours, strlen(ours));
}

static void test_only_a_chunk_that_is_there_is_ok(void **state)
{
        for (int status = -2; status < 200; status++)
                assert_int_equal(kvcache_status_ok(status), status == KVCACHE_OK ||
                                                                    status == KVCACHE_EXISTS ||
                                                                    status == KVCACHE_NOT_DURABLE);
}

static void test_elements_lie_where_the_program_has_them(void **state)
{
        struct rig *f = *state;
        struct wide_result results[KEYS + 1];
        struct wide_entry entries[KEYS];
        struct wide_completion done[2];
        uint8_t data[KEYS][BYTES], back[KEYS][BYTES];
        struct kvcache_request q;

        start(f);
        memset(entries, 0, sizeof(entries));
        for (unsigned i = 0; i < KEYS; i++) {
                rig_fill(data[i], BYTES, i);
                entries[i].as.key = rig_key(i);
                entries[i].as.data = data[i];
                entries[i].as.length = BYTES;
        }
        memset(results, 0xee, sizeof(results));
        memset(done, 0xee, sizeof(done));
        q = prepare(f, KVCACHE_OP_PUT, entries, KEYS, results);
        q.user_data = 77;
        assert_int_equal(kvcache_submit(f->kv, &q), 0);
        assert_int_equal(kvcache_reap_sized(f->kv, &done[0].as, sizeof(done[0]), 2, 5000), 1);
        assert_int_equal(done[0].as.user_data, 77);
        assert_int_equal(done[0].as.count, KEYS);
        assert_true(all_zero(done[0].more));
        assert_int_equal(done[1].as.user_data, 0xeeeeeeeeeeeeeeee);
        for (unsigned i = 0; i < KEYS; i++) {
                assert_int_equal(results[i].as.status, KVCACHE_OK);
                assert_int_equal(results[i].as.length, BYTES);
                assert_true(all_zero(results[i].more));
                entries[i].as.data = back[i];
        }
        assert_int_equal(results[KEYS].more[0], 0xeeeeeeeeeeeeeeee);

        memset(results, 0xee, sizeof(results));
        q = prepare(f, KVCACHE_OP_GET_INTO, entries, KEYS, results);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        for (unsigned i = 0; i < KEYS; i++) {
                assert_int_equal(results[i].as.status, KVCACHE_OK);
                assert_true(rig_filled(back[i], BYTES, i));
                assert_true(all_zero(results[i].more));
        }
        assert_int_equal(results[KEYS].as.status, (int)0xeeeeeeee);
        static const enum kvcache_op rest[] = { KVCACHE_OP_EXISTS,   KVCACHE_OP_STAT,
                                                KVCACHE_OP_TOUCH,    KVCACHE_OP_MATCH,
                                                KVCACHE_OP_PREFETCH, KVCACHE_OP_HINT,
                                                KVCACHE_OP_PIN,      KVCACHE_OP_UNPIN,
                                                KVCACHE_OP_EVICT };
        for (unsigned op = 0; op < sizeof(rest) / sizeof(rest[0]); op++) {
                memset(results, 0xee, sizeof(results));
                q = prepare(f, rest[op], entries, KEYS, results);
                assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
                for (unsigned i = 0; i < KEYS; i++) {
                        assert_int_equal(results[i].as.status, KVCACHE_OK);
                        assert_true(all_zero(results[i].more));
                }
                assert_int_equal(results[KEYS].as.status, (int)0xeeeeeeee);
        }
}

static void test_one_result_is_in_the_programs_size(void **state)
{
        struct rig *f = *state;
        struct kvcache_key k = rig_key(1);
        struct wide_result w[2];

        start(f);
        assert_int_equal(kvcache_put(f->kv, f->ns, &k, "abc", 3, KVCACHE_WRITTEN), KVCACHE_OK);
        memset(w, 0xee, sizeof(w));
        assert_int_equal(kvcache_get_map_sized(f->kv, f->ns, &k, &w[0].as, sizeof(w[0])),
                         KVCACHE_OK);
        assert_memory_equal(w[0].as.data, "abc", 3);
        assert_true(all_zero(w[0].more));
        assert_int_equal(w[1].as.status, (int)0xeeeeeeee);
        assert_int_equal(kvcache_release(f->kv, &w[0].as.lease, 1), 0);
        assert_int_equal(kvcache_get_map_sized(f->kv, f->ns, &k, &w[0].as, 8), -EINVAL);
        assert_int_equal(kvcache_get_map_sized(f->kv, f->ns, &k, NULL, sizeof(w[0])), -EINVAL);
}

static void test_what_admins_get_is_in_the_programs_size(void **state)
{
        struct rig *f = *state;
        struct kvcache_key k = rig_key(1);
        struct wide_namespace_info infos[2];
        struct wide_listed listed[2];
        struct wide_verify verify = { .as = { .size = sizeof(verify) } };
        struct wide_info info = { .as = { .size = sizeof(info) } };
        uint64_t cursor = 0;

        start(f);
        assert_int_equal(kvcache_put(f->kv, f->ns, &k, "abc", 3, KVCACHE_WRITTEN), KVCACHE_OK);
        memset(infos, 0xee, sizeof(infos));
        assert_true(kvcache_namespace_list_sized(f->kv, NULL, &cursor, &infos[0].as,
                                                 sizeof(infos[0]), 1) == 1);
        assert_true(all_zero(infos[0].more));
        assert_int_equal(infos[1].as.owner, 0xeeeeeeee);
        memset(infos, 0xee, sizeof(infos));
        assert_int_equal(kvcache_namespace_stat_sized(f->kv, "ns", NULL, &infos[0].as,
                                                      sizeof(infos[0]), NULL),
                         0);
        assert_string_equal(infos[0].as.name, "ns");
        assert_true(all_zero(infos[0].more));
        assert_int_equal(infos[1].as.owner, 0xeeeeeeee);

        cursor = 0;
        memset(listed, 0xee, sizeof(listed));
        assert_int_equal(
                kvcache_list_sized(f->kv, f->ns, &cursor, &listed[0].as, sizeof(listed[0]), 2), 1);
        assert_int_equal(listed[0].as.length, 3);
        assert_true(all_zero(listed[0].more));
        assert_int_equal(listed[1].as.length, 0xeeeeeeeeeeeeeeee);

        verify.more[MORE - 1] = 1;
        assert_int_equal(kvcache_verify(f->kv, &verify.as), -E2BIG);
        verify.more[MORE - 1] = 0;
        assert_int_equal(kvcache_verify(f->kv, &verify.as), 0);
        assert_int_equal(verify.as.size, sizeof(verify));

        memset(info.more, 0xee, sizeof(info.more));
        assert_int_equal(kvcache_get_info(f->kv, &info.as), 0);
        assert_int_equal(info.as.size, sizeof(info));
        assert_true(all_zero(info.more));
}

static void test_members_that_the_library_does_not_know_must_be_zero(void **state)
{
        struct rig *f = *state;
        struct wide_request w;
        struct wide_entry entries[3];
        struct wide_result results[3];
        struct wide_buffer_options b = { .as = { .size = sizeof(b), .fd = 0, .bytes = 4096 } };
        uint32_t buffer;
        void *base;

        start(f);
        memset(&w, 0, sizeof(w));
        memset(entries, 0, sizeof(entries));
        for (unsigned i = 0; i < 3; i++) {
                entries[i].as.key = rig_key(i);
                entries[i].as.data = (void *)"abc";
                entries[i].as.length = 3;
        }
        w.as = prepare(f, KVCACHE_OP_PUT, entries, 3, results);
        w.as.size = sizeof(w);
        w.more[MORE - 1] = 1;
        assert_int_equal(kvcache_submit(f->kv, &w.as), -E2BIG);
        assert_non_null(strstr(kvcache_error(f->kv), "request"));
        w.more[MORE - 1] = 0;
        entries[2].more[MORE - 1] = 1;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &w.as, NULL), -E2BIG);
        assert_non_null(strstr(kvcache_error(f->kv), "entry"));
        entries[2].more[MORE - 1] = 0;
        assert_int_equal(kvcache_inflight(f->kv), 0);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &w.as, NULL), 0);

        b.more[0] = b.more[MORE - 1] = 1;
        assert_int_equal(kvcache_buffer_register(f->kv, &b.as, &buffer, &base), -E2BIG);
}

static void test_sizes_that_no_header_had_are_refused(void **state)
{
        static const size_t wrong[] = { 0, 4, 8, 16, sizeof(struct kvcache_result) + 4, 8192 };
        struct rig *f = *state;
        struct kvcache_result result;
        struct kvcache_entry entry = { .key = rig_key(1), .data = &result, .length = 1 };
        struct kvcache_completion done;
        struct kvcache_listed listed;
        struct kvcache_namespace_info info;
        struct kvcache_request q;
        uint64_t cursor = 0;

        start(f);
        for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
                struct kvcache_options o = { .size = (uint32_t)wrong[i], .socket_path = f->path };
                struct kvcache_buffer_options b = { .size = (uint32_t)wrong[i], .bytes = 4096 };
                struct kvcache_namespace_options ns = { .size = (uint32_t)wrong[i], .name = "x" };
                struct kvcache_verify v = { .size = (uint32_t)wrong[i] };
                struct kvcache_info inf = { .size = (uint32_t)wrong[i] };
                struct kvcache *other;
                uint32_t n;
                void *base;

                if (i < 4) { /* 60 and 8192 may be valid or not for these */
                        assert_int_equal(kvcache_connect(&other, &o, NULL, 0), -EINVAL);
                        assert_int_equal(kvcache_buffer_register(f->kv, &b, &n, &base), -EINVAL);
                        assert_int_equal(kvcache_namespace_open(f->kv, &ns, &n), -EINVAL);
                        assert_int_equal(kvcache_verify(f->kv, &v), -EINVAL);
                        assert_int_equal(kvcache_get_info(f->kv, &inf), -EINVAL);
                }
                kvcache_prep_put(&q, f->ns, &entry, 1, KVCACHE_WRITTEN, &result);
                q.entry_size = (uint32_t)wrong[i];
                assert_int_equal(kvcache_submit(f->kv, &q), -EINVAL);
                assert_non_null(strstr(kvcache_error(f->kv), "entry_size"));
                kvcache_prep_put(&q, f->ns, &entry, 1, KVCACHE_WRITTEN, &result);
                q.result_size = (uint32_t)wrong[i];
                assert_int_equal(kvcache_submit(f->kv, &q), -EINVAL);
                assert_non_null(strstr(kvcache_error(f->kv), "result_size"));
                kvcache_prep_put(&q, f->ns, &entry, 1, KVCACHE_WRITTEN, &result);
                if (i < 4) {
                        q.size = (uint32_t)wrong[i];
                        assert_int_equal(kvcache_submit(f->kv, &q), -EINVAL);
                }
                assert_int_equal(kvcache_reap_sized(f->kv, &done, i < 4 ? wrong[i] : 8192, 1, 0),
                                 -EINVAL);
                assert_int_equal(kvcache_list_sized(f->kv, f->ns, &cursor, &listed,
                                                    i < 4 ? wrong[i] : 8192, 1),
                                 -EINVAL);
                assert_int_equal(
                        kvcache_namespace_list_sized(f->kv, NULL, &cursor, &info, wrong[i], 1),
                        -EINVAL);
        }
        assert_int_equal(kvcache_inflight(f->kv), 0);
}

static void test_constructors_set_every_member(void **state)
{
        struct rig *f = *state;
        struct kvcache_key keys[2] = { rig_key(1), rig_key(2) };
        struct kvcache_result results[2];
        struct kvcache_entry entries[2] = {
                { .key = keys[0], .data = (void *)"abc", .length = 3 },
                { .key = keys[1], .data = (void *)"abcd", .length = 4 },
        };
        struct kvcache_lease leases[2];
        struct kvcache_request q;
        char back[2][4];
        uint64_t run = 0;

        start(f);
        memset(&q, 0xee, sizeof(q));
        kvcache_prep_match(&q, f->ns, keys, 2);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, &run), 0);
        assert_int_equal(run, 0);

        memset(&q, 0xee, sizeof(q));
        kvcache_prep_put(&q, f->ns, entries, 2, KVCACHE_DURABLE, results);
        assert_int_equal(q.ack, KVCACHE_DURABLE);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        assert_true(kvcache_status_ok(results[0].status) && kvcache_status_ok(results[1].status));

        memset(&q, 0xee, sizeof(q));
        kvcache_prep_get(&q, f->ns, keys, 2, results);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        assert_memory_equal(results[1].data, "abcd", 4);
        for (unsigned i = 0; i < 2; i++)
                leases[i] = results[i].lease;
        assert_int_equal(kvcache_release(f->kv, leases, 2), 0);

        for (unsigned i = 0; i < 2; i++) {
                entries[i].data = back[i];
                entries[i].length = sizeof(back[i]);
        }
        memset(&q, 0xee, sizeof(q));
        kvcache_prep_get_into(&q, f->ns, entries, 2, results);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        assert_memory_equal(back[0], "abc", 3);

        memset(&q, 0xee, sizeof(q));
        kvcache_prep_exists(&q, f->ns, keys, 2, results);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        assert_int_equal(results[1].status, KVCACHE_OK);

        memset(&q, 0xee, sizeof(q));
        kvcache_prep_stat(&q, f->ns, keys, 2, results);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        assert_int_equal(results[1].length, 4);

        memset(&q, 0xee, sizeof(q));
        kvcache_prep_touch(&q, f->ns, keys, 2, NULL);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);

        memset(&q, 0xee, sizeof(q));
        kvcache_prep_prefetch(&q, f->ns, keys, 2, NULL);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);

        memset(&q, 0xee, sizeof(q));
        kvcache_prep_hint(&q, f->ns, keys, 2, 60, NULL);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        q.op = KVCACHE_OP_TOUCH; /* TOUCH has no such time */
        assert_true(kvcache_submit_and_wait(f->kv, &q, NULL) < 0);

        memset(&q, 0xee, sizeof(q));
        kvcache_prep_pin(&q, f->ns, keys, 2, results);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        assert_int_equal(f->d->hint, WIRE_HINT_PIN);
        memset(&q, 0xee, sizeof(q));
        kvcache_prep_unpin(&q, f->ns, keys, 2, results);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        assert_int_equal(f->d->hint, WIRE_HINT_UNPIN);

        memset(&q, 0xee, sizeof(q));
        kvcache_prep_evict(&q, f->ns, keys, 2, KVCACHE_TIER_ALL, results);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        kvcache_prep_match(&q, f->ns, keys, 2);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, &run), 0);
        assert_int_equal(run, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, rig_setup, rig_teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(the_version_is_the_headers),
                TEST(only_a_chunk_that_is_there_is_ok),
                TEST(elements_lie_where_the_program_has_them),
                TEST(one_result_is_in_the_programs_size),
                TEST(what_admins_get_is_in_the_programs_size),
                TEST(members_that_the_library_does_not_know_must_be_zero),
                TEST(sizes_that_no_header_had_are_refused),
                TEST(constructors_set_every_member),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
