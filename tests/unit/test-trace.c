/* SPDX-License-Identifier: Apache-2.0 */
/* The trace reader: valid traces, and messages that say where and why it refuses others. */
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

#include "trace.h"

static char path[] = "/tmp/test-trace-XXXXXX";
static struct trace_format format; /* the next trace has this format */

static int make_file(void **state)
{
        int fd = mkstemp(path);

        if (fd < 0)
                return -1;
        close(fd);
        return 0;
}

static int remove_file(void **state)
{
        return unlink(path);
}

static struct trace *open_bytes(const char *text, size_t bytes)
{
        char error[TRACE_ERROR_BYTES] = "";
        struct trace *trace = NULL;
        FILE *file = fopen(path, "w");

        assert_non_null(file);
        assert_int_equal(fwrite(text, 1, bytes, file), bytes);
        assert_int_equal(fclose(file), 0);
        assert_int_equal(trace_open(&trace, path, &format, error), 0);
        return trace;
}

static struct trace *open_text(const char *text)
{
        return open_bytes(text, strlen(text));
}

static void a_mooncake_line_is_read_whole(void **state)
{
        struct trace *trace =
                open_text("{\"timestamp\": 27482, \"input_length\": 1955, \"output_length\": 52, "
                          "\"hash_ids\": [46, 47, 48, 9007199254740991]}\n");
        char error[TRACE_ERROR_BYTES];
        struct trace_request request;

        assert_int_equal(trace_next(trace, &request, error), 1);
        assert_int_equal(request.timestamp_ms, 27482);
        assert_int_equal(request.input_tokens, 1955);
        assert_int_equal(request.output_tokens, 52);
        assert_int_equal(request.n_ids, 4);
        assert_int_equal(request.ids[0], 46);
        assert_int_equal(request.ids[2], 48);
        assert_int_equal(request.ids[3], 9007199254740991);
        assert_int_equal(trace_next(trace, &request, error), 0);
        assert_int_equal(trace_next(trace, &request, error), 0);
        trace_close(trace);
}

static void only_hash_ids_must_be_there(void **state)
{
        struct trace *trace =
                open_text("{\"timestamp\": 500, \"hash_ids\": [1]}\r\n"
                          "\n"
                          "  \t\r\n"
                          "{\"chat_id\": \"x\", \"hash_ids\": [], \"more\": {\"a\": [1]}}\n"
                          "{\"hash_ids\":[7,7]}"); /* and no newline at the end */
        char error[TRACE_ERROR_BYTES];
        struct trace_request request;

        assert_int_equal(trace_next(trace, &request, error), 1);
        assert_int_equal(request.timestamp_ms, 500);
        assert_int_equal(request.input_tokens, 0);
        assert_int_equal(trace_next(trace, &request, error), 1);
        assert_int_equal(request.timestamp_ms, 500);
        assert_int_equal(request.n_ids, 0);
        assert_int_equal(trace_next(trace, &request, error), 1);
        assert_int_equal(request.n_ids, 2);
        assert_int_equal(request.ids[1], 7);
        assert_int_equal(trace_next(trace, &request, error), 0);
        trace_close(trace);
}

static void a_malformed_line_is_named_with_its_reason(void **state)
{
        static const struct {
                const char *line, *reason;
        } bad[] = {
                { "hello", "not JSON" },
                { "{\"hash_ids\": [1, 2", "not JSON" },
                { "{\"hash_ids\": [1, 2,]}", "not JSON" },
                { "{\"hash_ids\": [1]} {\"hash_ids\": [2]}", "not JSON" },
                { "[1, 2]", "not a JSON object" },
                { "12", "not a JSON object" },
                { "{}", "\"hash_ids\" is missing" },
                { "{\"timestamp\": 3}", "\"hash_ids\" is missing" },
                { "{\"hash_ids\": 5}", "\"hash_ids\" is not an array" },
                { "{\"hash_ids\": null}", "\"hash_ids\" is not an array" },
                { "{\"hash_ids\": [1, \"2\"]}", "item 2 of \"hash_ids\"" },
                { "{\"hash_ids\": [1, 2, -3]}", "item 3 of \"hash_ids\"" },
                { "{\"hash_ids\": [1.5]}", "item 1 of \"hash_ids\"" },
                { "{\"hash_ids\": [1e300]}", "item 1 of \"hash_ids\"" },
                { "{\"hash_ids\": [9007199254740994]}", "item 1 of \"hash_ids\"" },
                { "{\"hash_ids\": [[1]]}", "item 1 of \"hash_ids\"" },
                { "{\"timestamp\": \"now\", \"hash_ids\": []}", "\"timestamp\"" },
                { "{\"timestamp\": -1, \"hash_ids\": []}", "\"timestamp\"" },
                { "{\"input_length\": true, \"hash_ids\": []}", "\"input_length\"" },
                { "{\"output_length\": [], \"hash_ids\": []}", "\"output_length\"" },
        };

        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
                char text[256], where[64], error[TRACE_ERROR_BYTES] = "";
                struct trace_request request;
                struct trace *trace;

                snprintf(text, sizeof(text), "{\"hash_ids\": [1]}\n\n%s\n{\"hash_ids\": [2]}\n",
                         bad[i].line);
                snprintf(where, sizeof(where), "%s:3: ", path);
                trace = open_text(text);
                assert_int_equal(trace_next(trace, &request, error), 1);
                assert_int_equal(trace_next(trace, &request, error), -EBADMSG);
                assert_ptr_equal(strstr(error, where), error);
                if (!strstr(error, bad[i].reason))
                        fail_msg("line %s: %s", bad[i].line, error);
                trace_close(trace);
        }
}

static void binary_files_are_refused(void **state)
{
        static const char with_nul[] = "{\"hash_ids\": [1]}\0{\n";
        char error[TRACE_ERROR_BYTES] = "", bytes[4096];
        struct trace_request request;
        struct trace *trace = open_bytes(with_nul, sizeof(with_nul) - 1);

        assert_int_equal(trace_next(trace, &request, error), -EBADMSG);
        assert_non_null(strstr(error, "NUL"));
        trace_close(trace);

        for (size_t i = 0; i < sizeof(bytes); i++)
                bytes[i] = (char)(i * 197 + (i >> 8) * 31 + 128);
        trace = open_bytes(bytes, sizeof(bytes));
        assert_int_equal(trace_next(trace, &request, error), -EBADMSG);
        trace_close(trace);
}

static void a_line_without_end_is_given_up(void **state)
{
        char error[TRACE_ERROR_BYTES] = "";
        struct trace_request request;
        struct trace *trace = NULL;

        if (trace_open(&trace, "/dev/zero", &format, error) < 0)
                skip();
        assert_int_equal(trace_next(trace, &request, error), -EBADMSG);
        assert_non_null(strstr(error, "/dev/zero:1: "));
        trace_close(trace);
}

static void deep_nesting_does_no_harm(void **state)
{
        enum { DEPTH = 100000 };
        char *text = malloc(DEPTH + 16), error[TRACE_ERROR_BYTES] = "";
        struct trace_request request;
        struct trace *trace;

        assert_non_null(text);
        strcpy(text, "{\"hash_ids\":");
        memset(text + strlen("{\"hash_ids\":"), '[', DEPTH - strlen("{\"hash_ids\":"));
        trace = open_bytes(text, DEPTH);
        assert_int_equal(trace_next(trace, &request, error), -EBADMSG);
        trace_close(trace);
        free(text);
}

static void long_requests_are_read_whole(void **state)
{
        enum { IDS = 20000 };
        char *text = malloc(IDS * 12 + 64), *p = text, error[TRACE_ERROR_BYTES] = "";
        struct trace_request request;
        struct trace *trace;

        assert_non_null(text);
        for (int line = 0; line < 2; line++) {
                p += sprintf(p, "{\"hash_ids\": [0");
                for (int i = 1; i < (line ? 3 : IDS); i++)
                        p += sprintf(p, ", %d", i * 3);
                p += sprintf(p, "]}\n");
        }
        trace = open_text(text);
        assert_int_equal(trace_next(trace, &request, error), 1);
        assert_int_equal(request.n_ids, IDS);
        for (int i = 0; i < IDS; i++)
                assert_int_equal(request.ids[i], i * 3);
        assert_int_equal(trace_next(trace, &request, error), 1);
        assert_int_equal(request.n_ids, 3);
        trace_close(trace);
        free(text);
}

static void what_cannot_be_opened_says_why(void **state)
{
        char error[TRACE_ERROR_BYTES] = "";
        struct trace *trace = NULL;

        assert_int_equal(trace_open(&trace, "/nonexistent/trace.jsonl", &format, error), -ENOENT);
        assert_non_null(strstr(error, "/nonexistent/trace.jsonl: "));
        assert_int_equal(trace_open(&trace, "/tmp", &format, error), -EISDIR);
        assert_non_null(strstr(error, "directory"));
        assert_null(trace);
}

/* Reads the text. Returns the result of the last line, whose request and error it leaves. */
static int read_all(const char *text, struct trace_request *request, char *error)
{
        struct trace *trace = open_text(text);
        int r, last = 0;

        *error = '\0';
        while ((r = trace_next(trace, request, error)) > 0)
                last = r;
        trace_close(trace);
        return r < 0 ? r : last;
}

static void expect_refused(const char *text, const char *reason)
{
        char error[TRACE_ERROR_BYTES];
        struct trace_request request;

        assert_int_equal(read_all(text, &request, error), -EBADMSG);
        if (!strstr(error, reason))
                fail_msg("%s: %s", text, error);
}

static void timestamps_in_seconds_are_refused_until_their_unit_is_known(void **state)
{
        static const char text[] = "{\"timestamp\": 0, \"hash_ids\": [1]}\n"
                                   "{\"timestamp\": 1.2345, \"hash_ids\": [1]}\n";
        char error[TRACE_ERROR_BYTES];
        struct trace_request request;

        expect_refused(text, ":2: \"timestamp\" has a fraction: set its unit with --time-unit s");
        format.unit = TRACE_SECONDS;
        assert_int_equal(read_all(text, &request, error), 1);
        assert_int_equal(request.timestamp_ms, 1235);
        format.unit = TRACE_MILLISECONDS;
        assert_int_equal(read_all(text, &request, error), 1);
        assert_int_equal(request.timestamp_ms, 1);
}

static void timestamps_that_fall_are_refused(void **state)
{
        expect_refused("{\"timestamp\": 7, \"hash_ids\": [1]}\n"
                       "{\"hash_ids\": [1]}\n"
                       "{\"timestamp\": 6, \"hash_ids\": [1]}\n",
                       ":3: \"timestamp\" is less than in a line before: sort the lines by it");
        expect_refused("{\"timestamp\": 1e17, \"hash_ids\": [1]}\n", "\"timestamp\" is not");
}

static void times_after_an_answer_are_refused(void **state)
{
        expect_refused("{\"session_id\": \"a\", \"timestamp\": 5, \"hash_ids\": [1]}\n"
                       "{\"session_id\": \"a\", \"delay\": 100, \"hash_ids\": [1, 2]}\n",
                       ":2: \"delay\" without \"timestamp\"");
}

/* The field's traces have blocks of 16, 64 and 512 tokens. */
static void blocks_of_another_size_are_refused_until_it_is_known(void **state)
{
        static const char *const fitting[] = {
                "{\"input_length\": 1024, \"hash_ids\": [1, 2]}",
                "{\"input_length\": 1025, \"hash_ids\": [1, 2, 3]}", /* the last one in part */
                "{\"input_length\": 1535, \"hash_ids\": [1, 2]}",    /* full blocks only */
                "{\"input_length\": 100, \"hash_ids\": []}",
                "{\"hash_ids\": [1, 2]}",
        };
        static const char text[] = "{\"input_length\": 333, \"hash_ids\": [1,2,3,4,5,6,7,8,9,10,11,"
                                   "12,13,14,15,16,17,18,19,20,21]}\n";
        char error[TRACE_ERROR_BYTES];
        struct trace_request request;

        for (size_t i = 0; i < sizeof(fitting) / sizeof(fitting[0]); i++)
                if (read_all(fitting[i], &request, error) != 1)
                        fail_msg("%s: %s", fitting[i], error);
        expect_refused(text, ":1: 333 tokens in 21 blocks: blocks do not have 512 tokens here; set "
                             "--tokens-per-block (about 16)");
        expect_refused("{\"input_length\": 4096, \"hash_ids\": [1]}", "(about 4096)");
        format.block_tokens = 16;
        assert_int_equal(read_all(text, &request, error), 1);
}

static void files_that_are_something_else_are_named(void **state)
{
        expect_refused("\x1f\x8b\x08 and so on", ":1: is compressed: unpack it with \"gzip -dc\"");
        expect_refused("\xfd"
                       "7zXZ",
                       "\"xz -dc\"");
        expect_refused("\x28\xb5\x2f\xfd\n", "\"zstd -dc\"");
        expect_refused("BZh9", "\"bzip2 -dc\"");
        expect_refused("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 3\n",
                       "is a pointer of Git LFS: fetch the file with \"git lfs pull\"");
        expect_refused("[\n{\"hash_ids\": [1]}\n]\n", "is an array of JSON");
}

static int reset_format(void **state)
{
        format = (struct trace_format){ 0 };
        return 0;
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_mooncake_line_is_read_whole),
                cmocka_unit_test(only_hash_ids_must_be_there),
                cmocka_unit_test(a_malformed_line_is_named_with_its_reason),
                cmocka_unit_test(binary_files_are_refused),
                cmocka_unit_test(a_line_without_end_is_given_up),
                cmocka_unit_test(deep_nesting_does_no_harm),
                cmocka_unit_test(long_requests_are_read_whole),
                cmocka_unit_test(what_cannot_be_opened_says_why),
                cmocka_unit_test_setup(timestamps_in_seconds_are_refused_until_their_unit_is_known,
                                       reset_format),
                cmocka_unit_test_setup(timestamps_that_fall_are_refused, reset_format),
                cmocka_unit_test_setup(times_after_an_answer_are_refused, reset_format),
                cmocka_unit_test_setup(blocks_of_another_size_are_refused_until_it_is_known,
                                       reset_format),
                cmocka_unit_test_setup(files_that_are_something_else_are_named, reset_format),
        };

        return cmocka_run_group_tests(tests, make_file, remove_file);
}
