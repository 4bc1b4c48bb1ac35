/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl top, and status --watch: repeat a request at every interval, on a terminal or as
 * consecutive output. Intervals are short in tests that need several, and an hour in those that a
 * key ends. */
#include <errno.h>

#include "ctl-fixture.h"

/* --- below one another --- */

static void status_is_printed_count_times(void **state)
{
        fake.status = "{ \"pid\": 7 }";
        ctl_expect(EXIT_OK, "{\"pid\":7}\n{\"pid\":7}\n{\"pid\":7}\n", "", "-j", "status",
                   "--watch=0.1", "--count=3");
        assert_int_equal(fake.made[FAKE_REPORT_STATUS], 3);
        assert_int_equal(fake.made[FAKE_CONNECT], 1);
        assert_int_equal(fake.request_timeout_ms, 5000);
        ctl_expect(EXIT_OK, "{\"pid\":7}\n", "", "-j", "status", "-w", "--count", "1");
        ctl_expect(EXIT_OK, "{\"pid\":7}\n", "", "-j", "status", "--count", "1", "-w", "3600");
}

static void watched_status_has_the_time_and_the_interval_above_it(void **state)
{
        fake.status = "{\"version\":\"1\",\"pid\":7}";
        assert_int_equal(ctl("status", "--watch=3600", "--count=1", "--all"), EXIT_OK);
        has(ctl_out, ", every 3600 s\nkvcache-daemon 1, pid 7\n");
        assert_int_equal(ctl("status", "--watch", "--count=1"), EXIT_OK);
        has(ctl_out, ", every 2 s\nkvcache-daemon 1, pid 7\n");
        fake.status = "<html>";
        assert_int_equal(ctl("status", "--watch", "--count=1"), EXIT_OK);
        has(ctl_out, " s\nThe daemon's answer is not JSON.\n");
}

static void daemon_that_does_not_answer_is_shown_and_connected_to_again(void **state)
{
        fake.status = "{\"pid\":7}";
        fake.scripts[FAKE_REPORT_STATUS] =
                (struct fake_script){ -ECONNRESET, "cut\033[2J", .after = 1, .times = 1 };
        assert_int_equal(ctl("status", "-w0.1", "--count=3"), EXIT_OK);
        has(ctl_out, "\nNO ANSWER since ");
        has(ctl_out, ", trying again: cut?[2J\n");
        assert_int_equal(fake.made[FAKE_CONNECT], 2);
        fake.made[FAKE_REPORT_STATUS] = 0;
        assert_int_equal(ctl("-j", "status", "-w0.1", "--count=2"), EXIT_UNREACHABLE);
        has(ctl_out, "{\"pid\":7}\n{\"unix_ms\":");
        has(ctl_out, ",\"connected\":false,\"lost_unix_ms\":");
        has(ctl_out, ",\"message\":\"cut?[2J\"}\n");
}

static void daemon_that_stays_away_ends_the_watch_with_3(void **state)
{
        fake.scripts[FAKE_REPORT_STATUS] = (struct fake_script){ -EPIPE, NULL };
        fake.scripts[FAKE_CONNECT] =
                (struct fake_script){ -ECONNREFUSED, "no daemon at /x", .after = 1 };
        assert_int_equal(ctl("status", "-w0.1", "--count=2"), EXIT_UNREACHABLE);
        has(ctl_out, ", trying again: Broken pipe\n");
        has(ctl_out, ", trying again: no daemon at /x\n");
        ctl_reset(NULL);
        fake.scripts[FAKE_CONNECT] = (struct fake_script){ -ECONNREFUSED, "no daemon at /x" };
        ctl_expect(EXIT_UNREACHABLE, "", NULL, "status", "-w0.1", "--count=2");
}

static void memory_that_ran_out_ends_the_watch(void **state)
{
        fake.scripts[FAKE_REPORT_STATUS].result = -ENOMEM;
        ctl_expect(EXIT_LOCAL, "", "kvcachectl: out of memory\n", "status", "-w0.1", "--count=2");
        ctl_reset(NULL);
        fake.scripts[FAKE_REPORT_STATUS] = (struct fake_script){ -ENOMEM, .after = 1 };
        ctl_expect(EXIT_LOCAL, NULL, "kvcachectl: out of memory\n", "status", "-w0.1", "--count=2");
}

static void intervals_out_of_range_are_refused(void **state)
{
        static const char *const bad[] = { "0.09", "3601", "-1", "nan", "1s", "0x1", "" };

        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                char option[32], err[128];

                snprintf(option, sizeof(option), "--watch=%s", bad[i]);
                snprintf(err, sizeof(err),
                         "kvcachectl: --watch: '%s' is not a number of seconds from 0.1 to 3600\n",
                         bad[i]);
                ctl_expect(EXIT_WRONG_USAGE, "", err, "status", option);
                snprintf(err, sizeof(err),
                         "kvcachectl: --interval: '%s' is not a number of seconds from 0.1 to "
                         "3600\n",
                         bad[i]);
                ctl_expect(EXIT_WRONG_USAGE, "", err, "top", "--interval", bad[i]);
        }
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: --watch: '9999' is not a number of seconds from 0.1 to 3600\n",
                   "status", "--watch", "9999");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: --count needs --watch\nSee: kvcachectl status --help\n", "status",
                   "--count=1");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: --count: '0' is not a whole number from 1 to 1000000000\n", "top",
                   "-c", "0");
        assert_int_equal(fake.made[FAKE_CONNECT], 0);
}

/* --- top --- */

static void top_prints_rates_of_count_intervals(void **state)
{
        fake.metrics = "kvcache_ready 1\nkvcache_requests_total{op=\"GET\"} 5\n";
        assert_int_equal(ctl("top", "--batch", "-i", "0.1", "-c", "2"), EXIT_OK);
        assert_int_equal(fake.made[FAKE_REPORT_METRICS], 3);
        has(ctl_out, ", every 0.1 s\n");
        lacks(ctl_out, "quits");
        assert_int_equal(ctl("-j", "top", "--interval=0.1", "--count=1"), EXIT_OK);
        has(ctl_out, "\"connected\":true}\n");
        has(ctl_out, "\"requests\":{\"per_second\":0,");
        assert_int_equal(fake.made[FAKE_REPORT_METRICS], 5);
}

/* The counters of another daemon are not compared with those of the one before. */
static void top_has_no_rates_after_the_daemon_was_lost(void **state)
{
        fake.metrics = "kvcache_ready 1\nkvcache_requests_total{op=\"GET\"} 5\n";
        fake.scripts[FAKE_REPORT_METRICS] =
                (struct fake_script){ -ECONNRESET, "cut", .after = 2, .times = 1 };
        assert_int_equal(ctl("-j", "top", "-i0.1", "-c3"), EXIT_OK);
        has(ctl_out, "\"requests\":{\"per_second\":0,");
        has(ctl_out, "\"connected\":false,");
        has(ctl_out, "\"requests\":{\"per_second\":null,");
}

static void top_asks_for_the_host_once_for_each_connection(void **state)
{
        static const char *const statuses[] = { "{\"host\":\"h\"}", "{\"host\":\"\"}", "{}" };

        fake.metrics = "kvcache_ready 1\n";
        for (size_t i = 0; i < ARRAY_SIZE(statuses); i++) {
                fake.status = statuses[i];
                fake.made[FAKE_REPORT_STATUS] = fake.made[FAKE_REPORT_METRICS] = 0;
                assert_int_equal(ctl("-j", "top", "-i0.1", "-c2"), EXIT_OK);
                assert_int_equal(fake.made[FAKE_REPORT_METRICS], 3);
                assert_int_equal(fake.made[FAKE_REPORT_STATUS], 1);
        }
        fake.scripts[FAKE_REPORT_METRICS] =
                (struct fake_script){ -ECONNRESET, "cut", .after = 1, .times = 1 };
        fake.made[FAKE_REPORT_STATUS] = fake.made[FAKE_REPORT_METRICS] = 0;
        assert_int_equal(ctl("-j", "top", "-i0.1", "-c2"), EXIT_OK);
        assert_int_equal(fake.made[FAKE_REPORT_STATUS], 2);
}

/* --- on a terminal --- */

static void terminal(const char *keys)
{
        setenv("TERM", "xterm", 1);
        ctl_type(keys);
        ctl_output_to_terminal();
}

static void q_ends_the_watch_and_gives_the_terminal_back(void **state)
{
        fake.status = "{\"version\":\"1\",\"pid\":7}";
        terminal("xq");
        assert_int_equal(ctl("status", "--watch=3600"), EXIT_OK);
        assert_ptr_equal(strstr(ctl_out, "\033[?1049h\033[?25l\033[H"), ctl_out);
        has(ctl_out, ", every 3600 s; q quits\033[K\r\nkvcache-daemon 1, pid 7\033[K");
        has(ctl_out, "\033[J\033[?25h\033[?1049l");
        assert_int_equal(fake.made[FAKE_REPORT_STATUS], 1);
}

static void space_refreshes_at_once(void **state)
{
        fake.status = "{\"pid\":7}";
        terminal("  Q");
        assert_int_equal(ctl("status", "--watch=3600"), EXIT_OK);
        assert_int_equal(fake.made[FAKE_REPORT_STATUS], 3);
}

static void last_of_a_number_of_intervals_stays_on_the_terminal(void **state)
{
        const char *left;

        fake.metrics = "kvcache_ready 1\nkvcache_build_info{version=\"9.9\"} 1\n";
        terminal("");
        assert_int_equal(ctl("top", "-i0.1", "-c1"), EXIT_OK);
        left = strstr(ctl_out, "\033[?1049l");
        assert_non_null(left);
        has(left, "kvcache-daemon 9.9");
        lacks(left, "q quits");
}

static void top_on_a_terminal_shows_figures_before_the_first_interval(void **state)
{
        fake.metrics = "kvcache_ready 1\nkvcache_build_info{version=\"9.9\"} 1\n";
        terminal("q");
        assert_int_equal(ctl("top", "-i", "3600"), EXIT_OK);
        has(ctl_out, "9.9");
        assert_int_equal(fake.made[FAKE_REPORT_METRICS], 1);
        terminal("q");
        assert_int_equal(ctl("top", "--batch", "-i0.1", "-c1"), EXIT_OK);
        lacks(ctl_out, "\033[?1049h");
}

static void last_figures_stay_on_the_terminal_while_the_daemon_is_lost(void **state)
{
        fake.status = "{\"version\":\"1\",\"pid\":7}";
        fake.scripts[FAKE_REPORT_STATUS] = (struct fake_script){ -ECONNRESET, "cut", .after = 1 };
        terminal(" q");
        assert_int_equal(ctl("status", "--watch=3600"), EXIT_OK);
        has(ctl_out, "\033[1;31mNO ANSWER\033[0m since ");
        has(ctl_out, "trying again: cut\033[0m\033[K\r\nThe last figures, of ");
}

static void dumb_terminal_is_not_redrawn(void **state)
{
        fake.status = "{\"pid\":7}";
        terminal("");
        setenv("TERM", "dumb", 1);
        assert_int_equal(ctl("status", "-w0.1", "--count=1"), EXIT_OK);
        lacks(ctl_out, "\033");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                CTL_TEST(status_is_printed_count_times),
                CTL_TEST(watched_status_has_the_time_and_the_interval_above_it),
                CTL_TEST(daemon_that_does_not_answer_is_shown_and_connected_to_again),
                CTL_TEST(daemon_that_stays_away_ends_the_watch_with_3),
                CTL_TEST(memory_that_ran_out_ends_the_watch),
                CTL_TEST(intervals_out_of_range_are_refused),
                CTL_TEST(top_prints_rates_of_count_intervals),
                CTL_TEST(top_has_no_rates_after_the_daemon_was_lost),
                CTL_TEST(top_asks_for_the_host_once_for_each_connection),
                CTL_TEST(q_ends_the_watch_and_gives_the_terminal_back),
                CTL_TEST(space_refreshes_at_once),
                CTL_TEST(top_on_a_terminal_shows_figures_before_the_first_interval),
                CTL_TEST(last_of_a_number_of_intervals_stays_on_the_terminal),
                CTL_TEST(last_figures_stay_on_the_terminal_while_the_daemon_is_lost),
                CTL_TEST(dumb_terminal_is_not_redrawn),
        };

        return cmocka_run_group_tests(tests, NULL, ctl_remove_files);
}
