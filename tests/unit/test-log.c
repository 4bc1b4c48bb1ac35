/* SPDX-License-Identifier: Apache-2.0 */
/* stderr is a file while a test runs; the journal is not reached from here, only the decision not
 * to use it. */
#include <errno.h>
#include <pthread.h>
#include <regex.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cJSON.h>
#include <cmocka.h>

#include "base/log.h"

static char text[1 << 20];
static int saved_stderr, capture;

static int begin(void **state)
{
        char name[] = "/tmp/kvcache-test-log-XXXXXX";

        unsetenv("JOURNAL_STREAM");
        capture = mkstemp(name);
        if (capture < 0)
                return -1;
        unlink(name);
        saved_stderr = dup(STDERR_FILENO);
        dup2(capture, STDERR_FILENO);
        log_open();
        log_set_level(LOG_LEVEL_INFO);
        log_set_context(NULL);
        return 0;
}

static int end(void **state)
{
        if (saved_stderr >= 0)
                dup2(saved_stderr, STDERR_FILENO);
        close(saved_stderr);
        close(capture);
        return 0;
}

/* Returns the log since begin(), and restores stderr, so that assertions are visible. */
static const char *logged(void)
{
        ssize_t n;

        dup2(saved_stderr, STDERR_FILENO);
        n = pread(capture, text, sizeof(text) - 1, 0);
        assert_true(n >= 0);
        text[n] = '\0';
        return text;
}

static void assert_logged(const char *pattern)
{
        regex_t re;
        int r;

        logged();
        assert_int_equal(regcomp(&re, pattern, REG_EXTENDED | REG_NOSUB), 0);
        r = regexec(&re, text, 0, NULL, 0);
        regfree(&re);
        if (r != 0)
                fail_msg("\"%s\" does not match \"%s\"", text, pattern);
}

#define TIME "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{3}Z "

static void line_has_time_level_and_text(void **state)
{
        log_warning("disk %d is slow", 3);
        assert_logged("^" TIME "kvcache-daemon: warning: disk 3 is slow\n$");
}

static void lines_below_the_level_are_not_made(void **state)
{
        int made = 0;

        log_debug("hidden %d", made++);
        log_set_level(LOG_LEVEL_ERROR);
        log_warning("hidden %d", made++);
        log_error("shown");
        log_set_level(LOG_LEVEL_DEBUG);
        log_debug("shown too");
        assert_int_equal(made, 0);
        assert_logged("^[^\n]*error: shown\n[^\n]*debug: shown too\n$");
}

static void client_text_cannot_make_lines_or_colours(void **state)
{
        log_info("a\nkvcache-daemon: error: forged\x1b[31m\x7f\xc2\x9b"
                 "31m\tz\xc3\xa4");
        assert_logged(
                "info: a[?]kvcache-daemon: error: forged[?]\\[31m[?][?][?]31m[?]z\xc3\xa4\n$");
}

static void long_line_is_cut_and_says_so(void **state)
{
        char *large = malloc(100000);

        assert_non_null(large);
        memset(large, 'x', 99999);
        large[99999] = '\0';
        log_info("%s", large);
        free(large);
        assert_logged("x[.][.][.]\n$");
        assert_true(strlen(text) < 2400);
        assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
}

static void longest_line_with_context_is_one_line(void **state)
{
        char name[200], *large = malloc(5000);
        struct log_context c = {
                .session = UINT64_MAX, .pid = 2147483647, .uid = 4294967295u, .client = name
        };

        assert_non_null(large);
        memset(name, 'n', sizeof(name) - 1);
        name[sizeof(name) - 1] = '\0';
        memset(large, 'x', 4999);
        large[4999] = '\0';
        log_set_context(&c);
        log_info("%s", large);
        free(large);
        assert_logged("x[.][.][.]\n$");
}

static void context_is_a_prefix_until_it_ends(void **state)
{
        char client[] = "vllm\n";
        struct log_context c = { .session = 12, .pid = 345, .uid = 1000, .client = client };

        log_set_context(&c);
        memset(client, '#', 4); /* the log has its own copy */
        log_notice("hello");
        c.client = NULL;
        log_set_context(&c);
        log_notice("anonymous");
        log_set_context(NULL);
        log_notice("bye");
        assert_logged("notice: session 12 [(]vllm[?], pid 345, uid 1000[)]: hello\n"
                      "[^\n]*notice: session 12 [(]pid 345, uid 1000[)]: anonymous\n"
                      "[^\n]*notice: bye\n$");
}

static void errno_survives_and_can_be_shown(void **state)
{
        errno = ENOSPC;
        log_error("cannot write: %m");
        assert_int_equal(errno, ENOSPC);
        log_open();
        assert_int_equal(errno, ENOSPC);
        assert_logged("cannot write: No space left on device\n$");
}

static void another_stream_than_the_journals_gets_text(void **state)
{
        static const char *const streams[] = { "1:2",   "",  "x",
                                               "1:2:3", ":", "99999999999999999999:1" };

        for (size_t i = 0; i < sizeof(streams) / sizeof(*streams); i++) {
                setenv("JOURNAL_STREAM", streams[i], 1);
                log_open();
                log_info("line %zu.", i);
        }
        unsetenv("JOURNAL_STREAM");
        assert_logged(
                "line 0[.]\n.*line 1[.]\n.*line 2[.]\n.*line 3[.]\n.*line 4[.]\n.*line 5[.]\n$");
}

static void line_is_not_lost_without_a_journal(void **state)
{
        struct stat st;
        char stream[64];

        if (access("/run/systemd/journal/socket", F_OK) == 0)
                skip();
        assert_int_equal(fstat(STDERR_FILENO, &st), 0);
        snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev,
                 (unsigned long long)st.st_ino);
        setenv("JOURNAL_STREAM", stream, 1);
        log_open();
        log_info("still here");
        unsetenv("JOURNAL_STREAM");
        assert_logged("still here\n$");
}

/* --- JSON --- */

/* Returns the JSON object on line `number`, counted from 0. */
static cJSON *object_of(int number)
{
        const char *line = logged();
        cJSON *object;

        for (; number > 0; number--) {
                line = strchr(line, '\n');
                assert_non_null(line++);
        }
        object = cJSON_ParseWithLength(line, strcspn(line, "\n"));
        if (!object)
                fail_msg("no JSON: %.300s", line);
        return object;
}

static void assert_member(const cJSON *object, const char *name, const char *wanted)
{
        const char *found = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));

        assert_non_null(found);
        assert_string_equal(found, wanted);
}

static void say_so(int n)
{
        log_notice("said %d", n);
}

static void an_object_has_text_place_and_who(void **state)
{
        struct log_context c = { .session = 12, .pid = 345, .uid = 1000, .client = "v\"llm" };
        const char *first, *second;
        cJSON *one, *other;

        assert_int_equal(log_set_format("json"), 0);
        log_warning("a \"quoted\" back\\slash, \n\x1b\x01 z\xc3\xa4 \xff\xc3( \xed\xa0\x80");
        log_set_context(&c);
        say_so(1);
        log_set_context(NULL);
        say_so(2);

        one = object_of(0);
        assert_member(one, "level", "warning");
        assert_member(one, "message",
                      "a \"quoted\" back\\slash, ??? z\xc3\xa4 \xef\xbf\xbd\xef\xbf\xbd( "
                      "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
        assert_member(one, "function", __func__);
        assert_null(cJSON_GetObjectItem(one, "session"));
        cJSON_Delete(one);

        one = object_of(1);
        other = object_of(2);
        assert_int_equal(cJSON_GetObjectItem(one, "session")->valueint, 12);
        assert_int_equal(cJSON_GetObjectItem(one, "pid")->valueint, 345);
        assert_int_equal(cJSON_GetObjectItem(one, "uid")->valueint, 1000);
        assert_member(one, "client", "v\"llm");
        assert_member(other, "message", "said 2");
        first = cJSON_GetStringValue(cJSON_GetObjectItem(one, "id"));
        second = cJSON_GetStringValue(cJSON_GetObjectItem(other, "id"));
        assert_int_equal(strlen(first), 32);
        assert_int_equal(strspn(first, "0123456789abcdef"), 32);
        assert_string_equal(first, second);
        cJSON_Delete(other);
        other = object_of(0);
        assert_string_not_equal(first, cJSON_GetStringValue(cJSON_GetObjectItem(other, "id")));
        cJSON_Delete(one);
        cJSON_Delete(other);
}

static void the_longest_object_is_one_line(void **state)
{
        static const char *const fillers[] = { "\"", "\\", "\xff", "x" };
        struct log_context c = { .session = UINT64_MAX, .pid = 1, .uid = UINT32_MAX };
        char name[200], *large = malloc(5000);

        assert_non_null(large);
        assert_int_equal(log_set_format("json"), 0);
        for (size_t i = 0; i < 4; i++) {
                memset(large, *fillers[i], 4999);
                large[4999] = '\0';
                memset(name, *fillers[i], sizeof(name) - 1);
                name[sizeof(name) - 1] = '\0';
                c.client = name;
                log_set_context(&c);
                log_info("%s", large);
        }
        free(large);
        for (int i = 0; i < 4; i++) {
                cJSON *object = object_of(i);
                const char *message = cJSON_GetStringValue(cJSON_GetObjectItem(object, "message"));

                assert_string_equal(message + strlen(message) - 3, "...");
                cJSON_Delete(object);
        }
        assert_ptr_equal(strchr(text, '\0'), strrchr(text, '\n') + 1);
}

static void formats_have_names(void **state)
{
        assert_int_equal(log_set_format("json"), 0);
        assert_int_equal(log_set_format("xml"), -EINVAL);
        assert_int_equal(log_set_format(""), -EINVAL);
        if (access("/run/systemd/journal/socket", F_OK) != 0)
                assert_int_equal(log_set_format("journal"), -ENOTSUP);
        log_info("an object");
        assert_int_equal(log_set_format("auto"), 0);
        log_info("automatic");
        assert_int_equal(log_set_format("json"), 0);
        assert_int_equal(log_set_format("text"), 0);
        log_info("text");
        assert_logged("^[{].*an object.*[}]\n[^{\n]*info: automatic\n[^{\n]*info: text\n$");
}

static void names_are_levels_and_back(void **state)
{
        enum log_level level = LOG_LEVEL_NOTICE;

        assert_int_equal(log_level_from_name("debug", &level), 0);
        assert_int_equal(level, LOG_LEVEL_DEBUG);
        assert_int_equal(log_level_from_name("error", &level), 0);
        assert_int_equal(level, LOG_LEVEL_ERROR);
        assert_int_equal(log_level_from_name("Error", &level), -EINVAL);
        assert_int_equal(log_level_from_name("", &level), -EINVAL);
        assert_int_equal(level, LOG_LEVEL_ERROR);
}

static void burst_passes_then_one_a_second(void **state)
{
        struct log_ratelimit r = LOG_RATELIMIT_INIT(3);
        const uint64_t second = 1000000000u;
        uint32_t held = 77;

        for (int i = 0; i < 3; i++) {
                assert_true(log_ratelimit_pass(&r, &held));
                assert_int_equal(held, 0);
        }
        held = 77;
        for (int i = 0; i < 5; i++)
                assert_false(log_ratelimit_pass(&r, &held));
        assert_int_equal(held, 77);

        r.refilled_ns -= second; /* a second goes by */
        assert_true(log_ratelimit_pass(&r, &held));
        assert_int_equal(held, 5);
        assert_false(log_ratelimit_pass(&r, &held));

        r.refilled_ns -= 10 * second; /* ten seconds do not save up more than a burst */
        for (int i = 0; i < 3; i++)
                assert_true(log_ratelimit_pass(&r, &held));
        assert_false(log_ratelimit_pass(&r, &held));
}

static void *write_lines(void *userdata)
{
        struct log_context c = { .session = (uintptr_t)userdata, .pid = 1, .client = "t" };

        log_set_context(&c);
        for (int i = 0; i < 500; i++)
                log_info("line %d of %u ends here", i, (unsigned)c.session);
        return NULL;
}

static void lines_of_threads_do_not_mix(void **state)
{
        pthread_t threads[4];
        unsigned lines = 0;
        char *rest = text, *line;

        for (uintptr_t i = 0; i < 4; i++)
                assert_int_equal(pthread_create(&threads[i], NULL, write_lines, (void *)(i + 1)),
                                 0);
        for (int i = 0; i < 4; i++)
                pthread_join(threads[i], NULL);
        logged();
        while ((line = strsep(&rest, "\n")) && *line) {
                unsigned session, number, of;
                char *colon = strstr(line, "session ");

                assert_non_null(colon);
                assert_int_equal(sscanf(colon,
                                        "session %u (t, pid 1, uid 0): line %u of %u ends here",
                                        &session, &number, &of),
                                 3);
                assert_int_equal(session, of);
                lines++;
        }
        assert_int_equal(lines, 2000);
}

/* Fields of an operation are members of each JSON line until they are ended; a name is cut. */
static void an_operations_fields_are_in_json_until_they_are_ended(void **state)
{
        char name[1000], cut[256];
        struct log_operation o = { .operation = "purge", .namespace_name = name, .chunks = 7 };
        cJSON *one, *other;

        memset(name, 'n', sizeof(name));
        memcpy(name, "a\"b\n", 4);
        name[sizeof(name) - 1] = '\0';
        memcpy(cut, name, sizeof(cut));
        cut[3] = '?';
        cut[sizeof(cut) - 1] = '\0';
        assert_int_equal(log_set_format("json"), 0);
        log_set_operation(&o);
        say_so(1);
        log_set_operation(NULL);
        say_so(2);

        one = object_of(0);
        other = object_of(1);
        assert_member(one, "operation", "purge");
        assert_member(one, "namespace", cut);
        assert_null(cJSON_GetObjectItem(one, "tenant"));
        assert_int_equal(cJSON_GetObjectItem(one, "chunks")->valueint, 7);
        assert_null(cJSON_GetObjectItem(other, "operation"));
        assert_null(cJSON_GetObjectItem(other, "chunks"));
        cJSON_Delete(one);
        cJSON_Delete(other);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)
        const struct CMUnitTest tests[] = {
                CASE(line_has_time_level_and_text),
                CASE(lines_below_the_level_are_not_made),
                CASE(client_text_cannot_make_lines_or_colours),
                CASE(long_line_is_cut_and_says_so),
                CASE(longest_line_with_context_is_one_line),
                CASE(context_is_a_prefix_until_it_ends),
                CASE(errno_survives_and_can_be_shown),
                CASE(another_stream_than_the_journals_gets_text),
                CASE(line_is_not_lost_without_a_journal),
                CASE(an_object_has_text_place_and_who),
                CASE(an_operations_fields_are_in_json_until_they_are_ended),
                CASE(the_longest_object_is_one_line),
                CASE(formats_have_names),
                CASE(names_are_levels_and_back),
                CASE(burst_passes_then_one_a_second),
                CASE(lines_of_threads_do_not_mix),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
