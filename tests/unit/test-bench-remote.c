/* SPDX-License-Identifier: Apache-2.0 */
/* kvcache-bench remote --bare over a directory: its figures, what it leaves behind, and what it
 * refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench-rig.h"
#include "checked.h"
#include "remote-job.h"

#define remote(...) bench(&command_remote, __VA_ARGS__)

/* Returns an empty directory, which the test removes. */
static const char *shared(void)
{
        static char path[256];

        snprintf(path, sizeof(path), "%s", bench_path("shared"));
        (void)mkdir(path, 0700);
        return path;
}

/* Fails unless nothing was left in it. */
static void assert_removed(void)
{
        assert_int_equal(rmdir(shared()), 0);
}

static void json_has_the_rates_of_the_engine(void **state)
{
        static const char *const ways[] = { "write.bare", "read.bare" };
        cJSON *json;

        assert_int_equal(remote("--json", "directory", "--path", shared(), "-n", "20", "-b", "5000",
                                "-d", "4", "--bare"),
                         EXIT_OK);
        json = bench_json();
        assert_string_equal(json_text(json, "backend"), "directory");
        assert_true(json_number(json, "objects") == 20);
        assert_true(json_number(json, "object_bytes") == 5000);
        assert_true(json_number(json, "depth") == 4);
        for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
                char name[64];
                double rate, seconds;

                snprintf(name, sizeof(name), "%s.objects", ways[i]);
                assert_true(json_number(json, name) == 20);
                snprintf(name, sizeof(name), "%s.bytes_per_second", ways[i]);
                rate = json_number(json, name);
                snprintf(name, sizeof(name), "%s.seconds", ways[i]);
                seconds = json_number(json, name);
                assert_float_equal(rate * seconds, 100000, 1);
        }
        assert_true(json_number(json, "read.bare.p50_ns") <= json_number(json, "read.bare.p99_ns"));
        assert_null(cJSON_GetObjectItem(cJSON_GetObjectItem(json, "write"), "ratio"));
        cJSON_Delete(json);
        assert_removed();
}

static void the_table_has_a_row_for_each_direction(void **state)
{
        assert_int_equal(remote("directory", "--path", shared(), "-n", "3", "-b", "64KiB", "-d",
                                "8", "--bare", "--sync", "--prefix", "a/b"),
                         EXIT_OK);
        assert_out("directory: 3 objects of 64 KiB, 8 at a time\n");
        assert_out(" rate objects/s p50 p99 ratio\n");
        assert_out(" write storage alone ");
        assert_out(" read storage alone ");
        assert_null(strstr(bench_out(), "daemon"));
        rmdir(bench_path("shared/a"));
        assert_removed();
}

static void an_engine_that_cannot_be_opened_is_refused(void **state)
{
        assert_int_equal(remote("directory", "--path", "/nonexistent/shared", "--bare"),
                         EXIT_REFUSED);
        assert_err("directory: ");
        assert_err("/nonexistent/shared");
        assert_string_equal(bench_out(), "");
}

static void wrong_usage_is_refused_with_its_reason(void **state)
{
        static const struct {
                const char *arguments[4], *message;
        } cases[] = {
                { { NULL }, "exactly one BACKEND is needed" },
                { { "directory", "s3" }, "exactly one BACKEND is needed" },
                { { "nfs" }, "'nfs' is not a back end; use one of: directory, rados, s3" },
                { { "directory", "-b", "0" }, "--block-bytes: a block has 1 byte to 64MiB" },
                { { "directory", "-b", "65MiB" }, "--block-bytes: a block has 1 byte to 64MiB" },
                { { "directory", "-b", "x" }, "--block-bytes: 'x' is not a size" },
                { { "directory", "-n", "0" }, "--objects: '0' is not a whole number from 1" },
                { { "directory", "-d", "257" }, "--depth: '257' is not a whole number" },
                { { "directory", "--timeout", "0" }, "--timeout: '0'" },
                { { "directory", "--prefix", "" }, "--prefix: '' has a part that is empty" },
                { { "directory", "--prefix", "a/" }, "--prefix: 'a/'" },
                { { "directory", "--prefix", "a//b" }, "--prefix: 'a//b'" },
                { { "directory", "--prefix", "../x" }, "--prefix: '../x'" },
                { { "directory", "--prefix", "a b" }, "--prefix: 'a b'" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                assert_int_equal(bench_run(&command_remote, cases[i].arguments), EXIT_WRONG_USAGE);
                assert_err(cases[i].message);
        }
        assert_int_equal(remote("--help"), EXIT_OK);
        assert_out("BACKEND is directory, rados or s3");
}

static void a_payload_belongs_to_one_object_alone(void **state)
{
        enum { BYTES = 3 * REMOTE_STAMP_BYTES };
        uint8_t *payload = test_malloc(BYTES);

        remote_fill(payload, BYTES);
        remote_stamp(7, payload, BYTES);
        assert_true(remote_is_stamped(7, payload, BYTES));
        assert_false(remote_is_stamped(8, payload, BYTES));
        for (unsigned i = 0; i < 3; i++) {
                payload[i * REMOTE_STAMP_BYTES] ^= 1;
                assert_false(remote_is_stamped(7, payload, BYTES));
                payload[i * REMOTE_STAMP_BYTES] ^= 1;
        }
        memmove(payload, payload + REMOTE_STAMP_BYTES, REMOTE_STAMP_BYTES);
        assert_false(remote_is_stamped(7, payload, BYTES));
        test_free(payload);
}

static void keys_of_objects_differ(void **state)
{
        uint8_t keys[200][KEY_BYTES];

        for (uint64_t i = 0; i < ARRAY_SIZE(keys); i++) {
                remote_key_of(i, keys[i]);
                for (uint64_t k = 0; k < i; k++)
                        assert_memory_not_equal(keys[i], keys[k], KEY_BYTES);
        }
}

static void a_rate_is_bytes_a_second(void **state)
{
        struct remote_figures f = { .bytes = 3000, .ns = 1500000000 };

        assert_true(remote_rate(&f) == 2000);
        f.ns = 0;
        assert_true(remote_rate(&f) == 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(json_has_the_rates_of_the_engine),
                cmocka_unit_test(the_table_has_a_row_for_each_direction),
                cmocka_unit_test(an_engine_that_cannot_be_opened_is_refused),
                cmocka_unit_test(wrong_usage_is_refused_with_its_reason),
                cmocka_unit_test(a_payload_belongs_to_one_object_alone),
                cmocka_unit_test(keys_of_objects_differ),
                cmocka_unit_test(a_rate_is_bytes_a_second),
        };

        return cmocka_run_group_tests(tests, bench_directory_make, bench_directory_remove);
}
