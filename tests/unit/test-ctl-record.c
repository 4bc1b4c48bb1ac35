/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl record: entries of a recording become the lines of a trace. The recording is a socket
 * that a test has filled. Each run is in a child, because the command keeps its state. */
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ctl-fixture.h"
#include "recording.h"

#define SEE "See: kvcachectl record --help\n"

static int feed = -1; /* the daemon's end of the recording */

static int begin(void **state)
{
        int ends[2], room = 1024 * 1024;

        ctl_reset(state);
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
                return -1;
        feed = ends[0];
        (void)setsockopt(feed, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
        fake_admin.record_fd = ends[1];
        return 0;
}

static int end(void **state)
{
        close(feed);
        if (fake_admin.record_fd >= 0)
                close(fake_admin.record_fd);
        return 0;
}

static void send_bytes(const void *bytes, size_t n)
{
        assert_int_equal(write(feed, bytes, n), n);
}

/* Sends an entry of session 1 whose ids are first, first + 1, ... */
static void send_entry(uint16_t kind, uint64_t time_ms, uint64_t parent, uint16_t n, uint64_t first)
{
        struct wire_record_entry entry = {
                .kind = kind,
                .count = n,
                .session = 1,
                .time_ms = time_ms,
                .parent = parent,
        };

        send_bytes(&entry, sizeof(entry));
        for (uint64_t i = 0; i < n; i++)
                send_bytes(&(uint64_t){ first + i }, sizeof(uint64_t));
}

static void send_end(uint64_t lost)
{
        send_bytes(&(struct wire_record_entry){ .kind = WIRE_RECORD_END, .lost = lost },
                   sizeof(struct wire_record_entry));
}

/* --- the command --- */

static void record_writes_a_line_for_each_request(void **state)
{
        send_entry(WIRE_RECORD_GET, 5, 0, 2, 10);
        send_entry(WIRE_RECORD_PUT, 7, 11, 1, 12); /* continues the get: the same line */
        send_entry(WIRE_RECORD_PUT, 9, 0, 1, 90);
        send_end(0);
        ctl_compare(ctl_in_child("record", "--out", "-"), EXIT_OK,
                    "{\"timestamp\": 5, \"hash_ids\": [10, 11, 12]}\n"
                    "{\"timestamp\": 9, \"hash_ids\": [90]}\n",
                    "", __FILE__, __LINE__);
}

static void record_reports_the_file_that_it_wrote(void **state)
{
        char path[256], expected[512], text[256] = "";
        FILE *file;

        send_entry(WIRE_RECORD_PUT, 61000, 0, 3, 1);
        send_end(0);
        snprintf(path, sizeof(path), "%s", ctl_path("trace"));
        snprintf(expected, sizeof(expected), "%s: 1 request for 3 blocks in 1 min 1 s\n", path);
        ctl_compare(ctl_in_child("record", "-o", path, "-d", "7d"), EXIT_OK, expected, "", __FILE__,
                    __LINE__);
        file = fopen(path, "r");
        assert_non_null(file);
        assert_true(fread(text, 1, sizeof(text) - 1, file) > 0);
        fclose(file);
        assert_string_equal(text, "{\"timestamp\": 61000, \"hash_ids\": [1, 2, 3]}\n");
}

static void record_in_json_counts_lost_blocks(void **state)
{
        char path[256], expected[512];

        send_entry(WIRE_RECORD_PUT, 1, 0, 1, 1);
        send_end(7);
        snprintf(path, sizeof(path), "%s", ctl_path("lossy"));
        snprintf(expected, sizeof(expected),
                 "{\"trace\":\"%s\",\"requests\":1,\"blocks\":1,\"bytes\":%zu,\"lost_blocks\":7,"
                 "\"full\":false}\n",
                 path, strlen("{\"timestamp\": 1, \"hash_ids\": [1]}\n"));
        ctl_compare(ctl_in_child("-j", "record", "-o", path), EXIT_OK, expected,
                    "{\"warning\":{\"message\":\"record: the trace lacks 7 blocks, because "
                    "requests arrived too fast or it reached --max-bytes\"}}\n",
                    __FILE__, __LINE__);
}

static void record_ends_when_the_trace_is_full(void **state)
{
        for (uint64_t i = 0; i < 3; i++)
                send_entry(WIRE_RECORD_PUT, i * 2 * RECORDING_OPEN_MS, 0, 1, i);
        ctl_compare(ctl_in_child("record", "-o-", "--max-bytes=100"), EXIT_OK,
                    "{\"timestamp\": 0, \"hash_ids\": [0]}\n"
                    "{\"timestamp\": 480000, \"hash_ids\": [], \"lost_blocks\": 2}\n",
                    "kvcachectl: record: the trace lacks 2 blocks, because requests arrived too "
                    "fast or it reached --max-bytes\nkvcachectl: the recording "
                    "ended early, because the trace has reached --max-bytes\n",
                    __FILE__, __LINE__);
}

static void record_keeps_what_came_before_the_daemon_went_away(void **state)
{
        send_entry(WIRE_RECORD_PUT, 1, 0, 1, 1);
        send_bytes("half an entry", 13);
        shutdown(feed, SHUT_WR);
        ctl_compare(
                ctl_in_child("record", "-o-"), EXIT_UNREACHABLE,
                "{\"timestamp\": 1, \"hash_ids\": [1]}\n",
                "kvcachectl: record: the daemon went away, so the trace ends before --duration\n",
                __FILE__, __LINE__);
}

static void record_refuses_a_malformed_entry(void **state)
{
        send_entry(WIRE_RECORD_PUT, 1, 0, 1, 1);
        send_bytes(
                &(struct wire_record_entry){ .kind = WIRE_RECORD_PUT, .count = WIRE_MAX_KEYS + 1 },
                sizeof(struct wire_record_entry));
        ctl_compare(ctl_in_child("record", "-o-"), EXIT_REFUSED,
                    "{\"timestamp\": 1, \"hash_ids\": [1]}\n",
                    "kvcachectl: record: the daemon sent malformed data\n", __FILE__, __LINE__);
}

static void record_passes_over_entries_of_a_later_version(void **state)
{
        send_entry(99, 1, 0, 2, 5);
        send_entry(WIRE_RECORD_PUT, 2, 0, WIRE_MAX_KEYS, 1);
        send_end(0);
        assert_int_equal(ctl_in_child("record", "-o-"), EXIT_OK);
        assert_ptr_equal(strstr(ctl_out, "{\"timestamp\": 2, \"hash_ids\": [1, 2, 3, "), ctl_out);
}

static void record_reports_refusals_and_unwritable_files(void **state)
{
        char path[256], err[512];

        snprintf(path, sizeof(path), "%s", ctl_file("there", "mine", 4));
        snprintf(
                err, sizeof(err),
                "kvcachectl: record: cannot create %s: File exists; name another file with --out\n",
                path);
        ctl_compare(ctl_in_child("record", "-o", path), EXIT_LOCAL, "", err, __FILE__, __LINE__);
        send_entry(WIRE_RECORD_PUT, 1, 0, 1, 1);
        send_end(0);
        fake.scripts[FAKE_RECORD] = (struct fake_script){ -EACCES, NULL };
        assert_int_equal(ctl_in_child("record", "-o-"), EXIT_REFUSED);
        has(ctl_err, "kvcachectl: record: only admins may");
        fake.scripts[FAKE_RECORD] = (struct fake_script){ -EEXIST, "a recording is under way" };
        ctl_compare(ctl_in_child("record", "-o-"), EXIT_REFUSED, "",
                    "kvcachectl: record: a recording is under way\n", __FILE__, __LINE__);
}

static void record_explains_wrong_usage(void **state)
{
        static const char *const bad[] = { "0", "8d", "x", "604801" };
        char err[256];

        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                snprintf(err, sizeof(err),
                         "kvcachectl: --duration: '%s' is not a time from 1s to 7d, such as 30m or "
                         "12h\n" SEE,
                         bad[i]);
                ctl_compare(ctl_in_child("record", "-o-", "-d", bad[i]), EXIT_WRONG_USAGE, "", err,
                            __FILE__, __LINE__);
        }
        ctl_compare(ctl_in_child("record"), EXIT_WRONG_USAGE, "",
                    "kvcachectl: --out FILE is needed\n" SEE, __FILE__, __LINE__);
        ctl_compare(ctl_in_child("record", "-o-", "x"), EXIT_WRONG_USAGE, "",
                    "kvcachectl: record takes no operand, but 'x' is one\n" SEE, __FILE__,
                    __LINE__);
        assert_int_equal(ctl_in_child("record", "-o-", "-j"), EXIT_WRONG_USAGE);
        has(ctl_err, "--out - and --json both print to standard output");
        ctl_compare(ctl_in_child("record", "-o-", "--max-bytes=x"), EXIT_WRONG_USAGE, "", NULL,
                    __FILE__, __LINE__);
}

/* --- lines --- */

static struct recording lines;
static char *text;
static size_t text_bytes;

static void lines_begin(void)
{
        lines = (struct recording){ .out = open_memstream(&text, &text_bytes) };
        assert_non_null(lines.out);
}

static void add(uint16_t kind, uint64_t session, uint64_t time_ms, uint64_t parent, uint16_t n,
                uint64_t first)
{
        struct wire_record_entry entry = {
                .kind = kind, .count = n, .session = session, .time_ms = time_ms, .parent = parent
        };
        uint64_t ids[16];

        for (uint64_t i = 0; i < n; i++)
                ids[i] = first + i;
        assert_int_equal(recording_add(&lines, &entry, ids), 0);
}

static void lines_end(const char *expected)
{
        recording_flush(&lines);
        fclose(lines.out);
        assert_string_equal(text, expected);
        free(text);
}

static void line_goes_on_in_its_session_only(void **state)
{
        lines_begin();
        add(WIRE_RECORD_GET, 1, 1, 0, 1, 10);
        add(WIRE_RECORD_PUT, 2, 2, 10, 1, 11);
        add(WIRE_RECORD_PUT, 1, 3, 10, 1, 12);
        add(WIRE_RECORD_PUT, 1, 4, 0, 0, 0); /* nothing of it */
        lines_end("{\"timestamp\": 1, \"hash_ids\": [10, 12]}\n"
                  "{\"timestamp\": 2, \"hash_ids\": [11]}\n");
        assert_int_equal(lines.requests, 2);
        assert_int_equal(lines.blocks, 3);
}

static void get_answered_late_comes_before_what_follows_it(void **state)
{
        lines_begin();
        add(WIRE_RECORD_GET, 1, 1, 11, 1, 12);
        add(WIRE_RECORD_GET, 1, 2, 0, 2, 10);
        lines_end("{\"timestamp\": 1, \"hash_ids\": [10, 11, 12]}\n");
}

static void get_does_not_go_on_with_what_was_put(void **state)
{
        lines_begin();
        add(WIRE_RECORD_PUT, 1, 1, 0, 1, 10);
        add(WIRE_RECORD_GET, 1, 2, 10, 1, 11);
        lines_end(
                "{\"timestamp\": 1, \"hash_ids\": [10]}\n{\"timestamp\": 2, \"hash_ids\": [11]}\n");
}

static void line_ends_after_two_minutes(void **state)
{
        lines_begin();
        add(WIRE_RECORD_PUT, 1, 0, 0, 1, 10);
        add(WIRE_RECORD_PUT, 1, RECORDING_OPEN_MS, 10, 1, 11);
        add(WIRE_RECORD_PUT, 1, RECORDING_OPEN_MS + 1, 11, 1, 12);
        lines_end("{\"timestamp\": 0, \"hash_ids\": [10, 11]}\n{\"timestamp\": 120001, "
                  "\"hash_ids\": [12]}\n");
}

static void oldest_line_comes_out_when_too_many_are_open(void **state)
{
        lines_begin();
        for (uint64_t session = 0; session <= RECORDING_OPEN_LINES; session++)
                add(WIRE_RECORD_PUT, session, 1, 0, 1, session);
        assert_int_equal(lines.requests, 1);
        assert_int_equal(lines.n_open, RECORDING_OPEN_LINES);
        recording_flush(&lines);
        assert_int_equal(lines.requests, RECORDING_OPEN_LINES + 1);
        assert_int_equal(lines.bytes, ftell(lines.out));
        fclose(lines.out);
        free(text);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, end)
        const struct CMUnitTest tests[] = {
                CASE(record_writes_a_line_for_each_request),
                CASE(record_reports_the_file_that_it_wrote),
                CASE(record_in_json_counts_lost_blocks),
                CASE(record_ends_when_the_trace_is_full),
                CASE(record_keeps_what_came_before_the_daemon_went_away),
                CASE(record_refuses_a_malformed_entry),
                CASE(record_passes_over_entries_of_a_later_version),
                CASE(record_reports_refusals_and_unwritable_files),
                CASE(record_explains_wrong_usage),
                CTL_TEST(line_goes_on_in_its_session_only),
                CTL_TEST(get_answered_late_comes_before_what_follows_it),
                CTL_TEST(get_does_not_go_on_with_what_was_put),
                CTL_TEST(line_ends_after_two_minutes),
                CTL_TEST(oldest_line_comes_out_when_too_many_are_open),
        };

        return cmocka_run_group_tests(tests, NULL, ctl_remove_files);
}
