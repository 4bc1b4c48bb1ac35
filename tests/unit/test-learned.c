/* SPDX-License-Identifier: Apache-2.0 */
/* The file of eviction's learned state: valid and invalid bytes, and failing devices, with a real
 * pool and a real store. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "checked.h"
#include "cleanup.h"
#include "learned/format.h"
#include "learned/learned.h"
#include "tiers.h"

DEFINE_CLEANUP(struct learned *, learned_free);

/* --- faults: of the thread that writes the file --- */

static _Atomic int fail_write, fail_fsync, fail_rename;

ssize_t __real_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_write(int fd, const void *data, size_t bytes)
{
        if (fail_write && bytes > 1000) { /* not the write that wakes the loop */
                errno = fail_write;
                return -1;
        }
        return __real_write(fd, data, bytes > 5000 ? 5000 : bytes); /* a write may be short */
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
        errno = fail_fsync;
        return fail_fsync ? -1 : __real_fsync(fd);
}

int __real_renameat(int from, const char *a, int to, const char *b);
int __wrap_renameat(int from, const char *a, int to, const char *b);
int __wrap_renameat(int from, const char *a, int to, const char *b)
{
        errno = fail_rename;
        return fail_rename && strcmp(b, "learned") == 0 ? -1 : __real_renameat(from, a, to, b);
}

/* --- which bytes are a file --- */

enum { SECTIONS = 2 };

static struct learned_head *make_file(uint64_t n_chunks, uint64_t n_remembered, size_t *ret_bytes)
{
        size_t records = (size_t)(n_chunks + n_remembered) * sizeof(struct evict_record);
        size_t bytes =
                sizeof(struct learned_head) + SECTIONS * (sizeof(struct learned_section) + records);
        struct learned_head *file = calloc(1, bytes);
        char *at = (char *)(file + 1);

        assert_non_null(file);
        file->n_sections = SECTIONS;
        for (unsigned i = 0; i < SECTIONS; i++) {
                struct learned_section *s = (void *)at;

                *s = (struct learned_section){ .policy = "cq",
                                               .tier = i,
                                               .n_chunks = n_chunks,
                                               .n_remembered = n_remembered };
                at += learned_section_bytes(s);
        }
        learned_seal(file, bytes);
        *ret_bytes = bytes;
        return file;
}

static struct learned_section *first(struct learned_head *file)
{
        return (void *)(file + 1);
}

static void a_whole_file_is_one(void **state)
{
        const struct learned_section *s = NULL;
        _cleanup_(freep) struct learned_head *file = NULL;
        unsigned n = 0;
        size_t bytes;

        file = make_file(3, 5, &bytes);
        assert_null(learned_check(file, bytes));
        while ((s = learned_next(file, s)))
                assert_int_equal(s->tier, n++);
        assert_int_equal(n, SECTIONS);
}

static void no_other_bytes_are(void **state)
{
        _cleanup_(freep) struct learned_head *file = NULL;
        size_t bytes;

        file = make_file(1, 1, &bytes);
        for (size_t i = 0; i < bytes; i++) {
                ((uint8_t *)file)[i] ^= 1u << i % 8;
                assert_non_null(learned_check(file, bytes));
                ((uint8_t *)file)[i] ^= 1u << i % 8;
        }
        assert_null(learned_check(file, bytes));
        for (size_t n = 0; n < bytes; n++)
                assert_non_null(learned_check(file, n));
}

/* The checksum is right, but the sizes are not. */
static void sizes_that_lie_are_found(void **state)
{
        static const uint64_t numbers[] = { 2,
                                            UINT32_MAX,
                                            LEARNED_MAX_CHUNKS,
                                            LEARNED_MAX_CHUNKS + 1,
                                            UINT64_C(1) << 60,
                                            UINT64_MAX / 16,
                                            UINT64_MAX };

        for (unsigned i = 0; i < ARRAY_SIZE(numbers); i++)
                for (unsigned what = 0; what < 5; what++) {
                        _cleanup_(freep) struct learned_head *file = NULL;
                        size_t bytes;

                        file = make_file(1, 1, &bytes);
                        if (what == 0)
                                first(file)->n_chunks = numbers[i];
                        else if (what == 1)
                                first(file)->n_remembered = numbers[i];
                        else if (what == 2)
                                file->n_sections = (uint32_t)numbers[i] | 1;
                        else if (what == 3)
                                first(file)->tier = (uint32_t)numbers[i] | 2;
                        else
                                memset(first(file)->policy, 'c', sizeof(first(file)->policy));
                        learned_seal(file, bytes);
                        assert_non_null(learned_check(file, bytes));
                }
}

/* A policy is restored once. */
static void sections_come_in_order_and_once(void **state)
{
        static const struct {
                uint32_t tier, number;
                bool is_fine;
        } second[] = { { 0, 6, true },  { 1, 0, true },  { 1, 5, true },
                       { 0, 5, false }, { 0, 4, false }, { 0, 0, false } };

        for (unsigned i = 0; i < ARRAY_SIZE(second); i++) {
                _cleanup_(freep) struct learned_head *file = NULL;
                struct learned_section *s;
                size_t bytes;

                file = make_file(1, 1, &bytes);
                first(file)->number = 5;
                s = (void *)((char *)first(file) + learned_section_bytes(first(file)));
                s->tier = second[i].tier;
                s->number = second[i].number;
                learned_seal(file, bytes);
                assert_int_equal(!learned_check(file, bytes), second[i].is_fine);
        }
}

/* --- a device that fails --- */

static struct tiers t;
static unsigned warnings;

static void warn(void *userdata, const char *text)
{
        assert_non_null(strstr(text, "cannot save eviction state"));
        warnings++;
}

static struct learned *begin(const struct learned_head *file)
{
        struct learned *l = NULL;
        struct learned_params p = { .io = t.io,
                                    .store = t.store,
                                    .pools = &t.pool,
                                    .n_pools = 1,
                                    .folder = t.dir,
                                    .secret = { { 1, 2 } },
                                    .warn = warn };

        warnings = 0;
        assert_int_equal(learned_new(&l, &p, file, 0), 0);
        return l;
}

struct put {
        struct store_put req;
        bool done;
};

static void on_put(struct store_put *req)
{
        container_of(req, struct put, req)->done = true;
}

static void put(uint32_t n)
{
        static _Alignas(4096) char bytes[4096];
        struct put p = { .req = { .namespace_id = t.ns,
                                  .buf = bytes,
                                  .length = sizeof(bytes),
                                  .crc = kio_crc32c(bytes, sizeof(bytes)),
                                  .complete = on_put } };

        memcpy(p.req.key.bytes, &n, sizeof(n));
        p.req.key.bytes[31] = 1;
        p.req.hash = store_hash(t.store, t.ns, &p.req.key);
        assert_int_equal(store_put(t.store, &p.req), 0);
        tiers_wait(&t, &p.done);
        assert_int_equal(p.req.result, 0);
}

static struct learned_stats stats_of(const struct learned *l)
{
        struct learned_stats s;

        learned_get_stats(l, &s);
        return s;
}

/* Waits until no call is in flight. */
static void settle(void)
{
        for (tiers_settle(&t); kio_pending(t.io) > 0; tiers_settle(&t))
                tiers_wait_io(&t);
}

static void save(struct learned *l, uint64_t now_ns)
{
        learned_tick(l, now_ns, 1000);
        while (learned_iterate(l))
                ;
        settle();
}

static struct learned_head *read_file(void)
{
        struct learned_head *file = NULL;
        char error[LEARNED_ERROR_BYTES];

        return learned_read(t.dir, &file, error) == 0 ? file : NULL;
}

static bool has_new_file(void)
{
        char path[300];
        struct stat st;

        snprintf(path, sizeof(path), "%s/learned.new", t.dir);
        return stat(path, &st) == 0;
}

static void the_old_file_stays_whole_when_a_new_one_cannot_be_written(void **state)
{
        _Atomic int *const faults[] = { &fail_write, &fail_fsync, &fail_rename };
        static const int errors[] = { ENOSPC, EIO, EROFS };
        const uint64_t second = 1000000000;
        _cleanup_(learned_freep) struct learned *l = NULL;
        uint64_t now = 0, saved_ms;

        tiers_open(&t);
        l = begin(NULL);
        assert_null(read_file());
        /* Nothing was used, so nothing is saved. */
        save(l, now += 10 * second);
        assert_int_equal(stats_of(l).saves, 0);
        put(1);
        save(l, now += 10 * second);
        assert_int_equal(stats_of(l).saves, 1);
        saved_ms = stats_of(l).saved_ms;
        put(2);
        for (unsigned i = 0; i < ARRAY_SIZE(faults); i++) {
                _cleanup_(freep) struct learned_head *file = NULL;

                *faults[i] = errors[i];
                save(l, now += 10 * second);
                *faults[i] = 0;
                assert_int_equal(stats_of(l).save_errors, i + 1);
                assert_int_equal(stats_of(l).saved_ms, saved_ms);
                file = read_file();
                assert_non_null(file);
                assert_int_equal(file->saved_ms, saved_ms);
                assert_false(has_new_file());
        }
        assert_int_equal(warnings, 1);
        /* Saving is retried, though nothing has been used since. */
        save(l, now += 10 * second);
        assert_int_equal(stats_of(l).saves, 2);
        save(l, now += 10 * second);
        assert_int_equal(stats_of(l).saves, 2);
        /* A save does not happen before its time. */
        put(3);
        save(l, now += second / 2);
        assert_int_equal(stats_of(l).saves, 3);
        put(4);
        save(l, now += second / 2);
        assert_int_equal(stats_of(l).saves, 3);
        l = learned_free(l);
        tiers_remove(&t);
}

static void a_stop_saves_what_was_begun_or_used_since(void **state)
{
        _cleanup_(freep) struct learned_head *file = NULL;
        const struct learned_section *s = NULL;
        _cleanup_(learned_freep) struct learned *l = NULL;

        tiers_open(&t);
        l = begin(NULL);
        put(1);
        /* Begun, and in the middle; then with the thread, while more is used. */
        learned_tick(l, UINT64_C(1) << 40, 1000);
        assert_true(learned_iterate(l));
        put(2);
        while (learned_iterate(l))
                ;
        put(3);
        learned_stop(l);
        settle();
        assert_int_equal(stats_of(l).saves, 2);
        file = read_file();
        assert_non_null(file);
        while ((s = learned_next(file, s)))
                assert_int_equal(s->n_chunks, s->tier == LEARNED_VOLUME ? 3 : 0);
        /* A save whose write fails at shutdown is given up. */
        l = learned_free(l);
        l = begin(NULL);
        put(4);
        fail_write = ENOSPC;
        learned_stop(l);
        settle();
        fail_write = 0;
        assert_int_equal(stats_of(l).save_errors, 1);
        assert_int_equal(stats_of(l).saves, 0);
        l = learned_free(l);
        tiers_remove(&t);
}

/* Chunks of one time are in the order of their touches, and later ones follow, whatever their order
 * among those of their time is. */
static void chunks_are_saved_in_the_order_of_their_uses(void **state)
{
        enum { CHUNKS = 400, AT_ONCE = 20 };
        static struct put p[AT_ONCE];
        static _Alignas(4096) char bytes[4096];
        _cleanup_(freep) struct learned_head *file = NULL;
        _cleanup_(learned_freep) struct learned *l = NULL;
        const struct learned_section *s = NULL;
        unsigned steps = 0, resets = 0;

        tiers_open(&t);
        assert_int_equal(store_set_policy(t.store, "cq"), 0);
        l = begin(NULL);
        for (uint32_t n = 0; n < CHUNKS; n++) {
                struct store_put *req = &p[n % AT_ONCE].req;

                *req = (struct store_put){ .namespace_id = t.ns,
                                           .buf = bytes,
                                           .length = sizeof(bytes),
                                           .crc = kio_crc32c(bytes, sizeof(bytes)),
                                           .complete = on_put };
                memcpy(req->key.bytes, &n, sizeof(n));
                req->hash = store_hash(t.store, t.ns, &req->key);
                p[n % AT_ONCE].done = false;
                assert_int_equal(store_put(t.store, req), 0);
                for (uint32_t i = 0; n % AT_ONCE == AT_ONCE - 1 && i < AT_ONCE; i++)
                        tiers_wait(&t, &p[i].done);
        }
        learned_stop(l);
        settle();
        file = read_file();
        assert_non_null(file);
        do
                s = learned_next(file, s); /* the pool's is empty */
        while (s && s->n_chunks == 0);
        assert_non_null(s);
        assert_int_equal(s->n_chunks, CHUNKS);
        for (uint32_t i = 1; i < CHUNKS; i++) {
                const struct evict_record *a = &s->records[i - 1], *b = &s->records[i];

                assert_true(a->time < b->time || (a->time == b->time && a->touched < b->touched));
                steps += a->time == b->time;
                resets += a->touched > b->touched;
        }
        assert_true(steps > 0 && resets > 0);
        l = learned_free(l);
        tiers_remove(&t);
}

/* A file of this store with invalid, unknown and duplicate records. */
static void a_hostile_file_restores_what_it_can(void **state)
{
        _cleanup_(freep) struct learned_head *file = NULL;
        _cleanup_(learned_freep) struct learned *l = NULL;
        struct learned_section *s = NULL;
        struct evict_record records[64];
        uint32_t cursor = 0;
        size_t bytes;

        tiers_open(&t);
        assert_int_equal(store_set_policy(t.store, "cq"), 0);
        for (uint32_t i = 0; i < 8; i++)
                put(i);
        assert_int_equal(store_save_order(t.store, 0, &cursor, 1000, records, 64), 8);
        file = make_file(64, 64, &bytes);
        s = (void *)((char *)first(file) + learned_section_bytes(first(file)));
        evict_save(store_eviction(t.store, 0), &s->learned);
        for (unsigned i = 0; i < 64; i++) {
                s->records[i] = records[i % 8];
                if (i % 3 == 0)
                        s->records[i].class = (uint8_t)i;
                if (i % 5 == 0)
                        s->records[i].touched = UINT32_MAX - i;
                s->records[64 + i] = (struct evict_record){
                        .id = i, .touched = i, .uses = (uint8_t)i, .class = (uint8_t)i
                };
        }
        learned_seal(file, bytes);
        assert_null(learned_check(file, bytes));
        l = begin(file);
        assert_int_equal(stats_of(l).restored_chunks, 8);
        assert_true(stats_of(l).restored_remembered > 0);
        for (uint32_t i = 8; i < 200; i++)
                put(i);
        l = learned_free(l);
        tiers_remove(&t);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_whole_file_is_one),
                cmocka_unit_test(no_other_bytes_are),
                cmocka_unit_test(sizes_that_lie_are_found),
                cmocka_unit_test(sections_come_in_order_and_once),
                cmocka_unit_test(the_old_file_stays_whole_when_a_new_one_cannot_be_written),
                cmocka_unit_test(a_stop_saves_what_was_begun_or_used_since),
                cmocka_unit_test(chunks_are_saved_in_the_order_of_their_uses),
                cmocka_unit_test(a_hostile_file_restores_what_it_can),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
