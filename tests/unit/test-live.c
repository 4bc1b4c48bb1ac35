/* SPDX-License-Identifier: Apache-2.0 */
/* The sessions of a daemon for answers that no daemon gives in a test: those of an older one,
 * failures, and answers that are not sessions. Messages and exit statuses. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "checked.h"
#include "session/live.h"

/* --- the library --- */

struct kvcache {
        int unused;
};

static struct {
        const char *error;
        const char *json; /* NULL: it fails with `result` */
        int connect, result;
        unsigned calls;
        struct kvcache handle;
} fake;

int kvcache_connect(struct kvcache **ret, const struct kvcache_options *options, char *ret_error,
                    size_t error_bytes)
{
        if (fake.connect < 0)
                return fake.connect;
        *ret = &fake.handle;
        return 0;
}

const char *kvcache_error(const struct kvcache *kv)
{
        return fake.error;
}

const char *kvcache_status_name(int status)
{
        return "?";
}

int kvcache_namespace_open(struct kvcache *kv, const struct kvcache_namespace_options *options,
                           uint32_t *ret_handle)
{
        return -EOPNOTSUPP;
}

int kvcache_namespace_list_sized(struct kvcache *kv, const char *tenant, uint64_t *cursor,
                                 struct kvcache_namespace_info *ret, size_t info_size, size_t max)
{
        return -EOPNOTSUPP;
}

int kvcache_bench_session(struct kvcache *kv, enum kvcache_bench_action action, const char *name,
                          uint32_t flags, char **ret_json)
{
        fake.calls++;
        if (!fake.json)
                return fake.result;
        if (ret_json)
                *ret_json = strdup(fake.json);
        return 0;
}

/* --- messages on stderr --- */

static int saved_stderr;
static FILE *said;

static int set_up(void **state)
{
        memset(&fake, 0, sizeof(fake));
        fake.error = "";
        unsetenv("KVCACHE_BENCH_SESSION");
        unsetenv("DYNAMO_BENCHMARK_SESSION");
        said = tmpfile();
        fflush(stderr);
        saved_stderr = dup(STDERR_FILENO);
        return said && dup2(fileno(said), STDERR_FILENO) >= 0 ? 0 : -1;
}

static int tear_down(void **state)
{
        fflush(stderr);
        dup2(saved_stderr, STDERR_FILENO);
        close(saved_stderr);
        fclose(said);
        return 0;
}

/* Returns the whole output so far. */
static const char *message(void)
{
        static char text[4096];
        size_t n;

        fflush(stderr);
        rewind(said);
        n = fread(text, 1, sizeof(text) - 1, said);
        text[n] = '\0';
        return text;
}

#define assert_said(words) assert_non_null(strstr(message(), words))

static int call(int result, const char *name, enum kvcache_bench_action action)
{
        struct ctl ctl = { 0 };
        char *json = NULL;
        int status;

        fake.json = NULL;
        fake.result = result;
        status = live_call(&ctl, action, name, 0, &json);
        assert_null(json);
        return status;
}

static void test_each_refusal_has_its_status_and_its_words(void **state)
{
        static const struct {
                int r;
                const char *name;
                enum kvcache_bench_action action;
                int status;
                const char *words;
        } rows[] = {
                { -ESRCH, NULL, KVCACHE_BENCH_STATUS, SESSION_NONE_ACTIVE, "no session is active" },
                { -ENOENT, "A", KVCACHE_BENCH_STATUS, SESSION_UNKNOWN, "no session A" },
                { -EEXIST, "B", KVCACHE_BENCH_INIT, SESSION_FAILED, "session B already" },
                { -EOPNOTSUPP, NULL, KVCACHE_BENCH_LIST, SESSION_FAILED, "too old" },
                { -EACCES, "A", KVCACHE_BENCH_RESET, SESSION_FAILED, "only admins may" },
                { -EDQUOT, "C", KVCACHE_BENCH_INIT, SESSION_FAILED, "session C: " },
                { -ECONNRESET, "A", KVCACHE_BENCH_STATUS, SESSION_FAILED, "went away" },
                { -ENOENT, NULL, KVCACHE_BENCH_STATUS, SESSION_FAILED, "went away" },
                { -ETIMEDOUT, "A", KVCACHE_BENCH_DELETE, SESSION_FAILED, "session A: " },
                { -ENOMEM, "A", KVCACHE_BENCH_STATUS, SESSION_FAILED, "out of memory" },
                { -EBUSY, NULL, KVCACHE_BENCH_RESET, SESSION_FAILED, "session command: " },
        };

        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                assert_int_equal(call(rows[i].r, rows[i].name, rows[i].action), rows[i].status);
                assert_said(rows[i].words);
        }
}

static void test_the_daemon_s_words_are_passed_on(void **state)
{
        fake.error = "the limit of 64 benchmark sessions is reached";
        assert_int_equal(call(-EDQUOT, "C", KVCACHE_BENCH_INIT), SESSION_FAILED);
        assert_said("session C: the limit of 64 benchmark sessions");
}

static void test_no_daemon_is_a_failure_of_its_own(void **state)
{
        struct ctl ctl = { 0 };

        fake.connect = -ECONNREFUSED;
        assert_int_equal(live_call(&ctl, KVCACHE_BENCH_LIST, NULL, 0, NULL), SESSION_FAILED);
        assert_int_equal(fake.calls, 0);
}

#define GOOD                                                                                       \
        "{\"schema\":\"kvcache.bench.v1\",\"name\":\"A\",\"active\":true,\"enabled\":true,"        \
        "\"created\":\"c\",\"updated\":\"u\",\"enabled_secs\":1,\"metrics\":[]"

static int load(const char *json, struct snapshot **ret, char **ret_file)
{
        struct ctl ctl = { 0 };

        fake.json = json;
        return live_session(&ctl, KVCACHE_BENCH_STATUS, NULL, 0, ret, ret_file);
}

static void test_an_answer_that_is_no_session_is_refused_with_its_place(void **state)
{
        static const char *const bad[] = {
                "", "null", "[]", "{}", "\x1b[2J", GOOD, "{\"schema\":\"kvcache.bench.v2\"}",
        };

        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                struct snapshot *s = NULL;
                char *file = NULL;

                assert_int_equal(load(bad[i], &s, &file), SESSION_FAILED);
                assert_null(s);
                assert_null(file);
                assert_said("the daemon's active session: ");
        }
        assert_null(strchr(message(), '\x1b'));
}

static void test_the_file_is_the_daemon_s_if_it_names_one(void **state)
{
        static const struct {
                const char *json, *file;
        } rows[] = {
                { GOOD ",\"file\":\"/store/bench/bench_A.json\"}", "/store/bench/bench_A.json" },
                { GOOD "}", NULL },
                { GOOD ",\"file\":null}", NULL },
                { GOOD ",\"file\":[1]}", NULL },
        };

        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                struct snapshot *s = NULL;
                char *file = NULL;

                assert_int_equal(load(rows[i].json, &s, &file), SESSION_OK);
                assert_string_equal(s->name, "A");
                if (rows[i].file)
                        assert_string_equal(file, rows[i].file);
                else
                        assert_null(file);
                free(file);
                snapshot_free(s);
        }
        assert_string_equal(message(), "");
}

static void test_active_is_quiet(void **state)
{
        struct ctl ctl = { .kv = &fake.handle };
        char name[SNAPSHOT_TEXT] = "before";

        fake.result = -EOPNOTSUPP;
        assert_false(live_active(&ctl, name));
        fake.json = "{";
        assert_false(live_active(&ctl, name));
        assert_string_equal(name, "before");
        fake.json = GOOD "}";
        assert_true(live_active(&ctl, name));
        assert_string_equal(name, "A");
        assert_string_equal(message(), "");
}

static void test_environment(void **state)
{
        const char *name = "before";

        assert_int_equal(live_environment(&name), SESSION_OK);
        assert_null(name);
        setenv("DYNAMO_BENCHMARK_SESSION", "D", 1);
        assert_int_equal(live_environment(&name), SESSION_OK);
        assert_string_equal(name, "D");
        setenv("KVCACHE_BENCH_SESSION", "", 1);
        assert_int_equal(live_environment(&name), SESSION_OK);
        assert_string_equal(name, "D");
        setenv("KVCACHE_BENCH_SESSION", "K", 1);
        assert_int_equal(live_environment(&name), SESSION_OK);
        assert_string_equal(name, "K");
        setenv("KVCACHE_BENCH_SESSION", "../K\x1b", 1);
        assert_int_equal(live_environment(&name), SESSION_WRONG_USAGE);
        assert_null(name);
        assert_said("KVCACHE_BENCH_SESSION: '../K");
        assert_null(strchr(message(), '\x1b'));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(test_each_refusal_has_its_status_and_its_words),
                TEST(test_the_daemon_s_words_are_passed_on),
                TEST(test_no_daemon_is_a_failure_of_its_own),
                TEST(test_an_answer_that_is_no_session_is_refused_with_its_place),
                TEST(test_the_file_is_the_daemon_s_if_it_names_one),
                TEST(test_active_is_quiet),
                TEST(test_environment),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
