/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl top without a daemon and a terminal: computes figures and lines from pages of
 * metrics. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checked.h"
#include "top.h"

static struct samples parse(const char *text)
{
        struct samples s;

        assert_int_equal(samples_parse(strdup(text), &s), 0);
        return s;
}

static void close_to(double value, double expected)
{
        assert_true(fabs(value - expected) < 1e-9 * (1 + fabs(expected)));
}

static void a_page_is_read(void **state)
{
        struct samples s = parse("# HELP kvcache_a A.\n"
                                 "kvcache_a 3\n"
                                 "kvcache_hits_total{tier=\"memory\"} 1.5e3\n"
                                 "kvcache_x_bucket{op=\"GET\",le=\"0.1\"} 7\n"
                                 "kvcache_i_info{version=\"1\\\"2\\\\3\\n4\",protocol=\"5\"} 1\n"
                                 "kvcache_last 9");

        assert_int_equal(s.n, 5);
        close_to(samples_number(&s, "kvcache_a", ""), 3);
        close_to(samples_number(&s, "kvcache_hits_total", "memory"), 1500);
        assert_string_equal(s.list[2].label, "op");
        assert_string_equal(s.list[2].le, "0.1");
        assert_string_equal(samples_find(&s, "kvcache_i_info", NULL)->value, "1\"2\\3\n4");
        close_to(samples_number(&s, "kvcache_last", ""), 9);
        assert_true(isnan(samples_number(&s, "kvcache_hits_total", "disk")));
        assert_true(isnan(samples_number(&s, "kvcache_none", "")));
        samples_fini(&s);
}

static void what_is_no_sample_is_skipped(void **state)
{
        static const char *const bad[] = {
                "",           "\n\n",          "a",         "a{",         "a{b",    "a{b=",
                "a{b=\"",     "a{b=\"c",       "a{b=\"c\"", "a{b=\"c\"}", "a{=} 1", "{} 1",
                "a{b=\"\\",   "a{b=\"\\\"} 1", "a x",       " 1",         "a  ",    "a{b=\"c\",",
                "\xff\xfe 1", "a{b=\"c\"}1"
        };

        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                struct samples s = parse(bad[i]);

                assert_int_equal(s.n, 0);
                samples_fini(&s);
        }
}

static void growth_is_between_two_pages(void **state)
{
        struct samples before = parse("a_total 10\nb_total{k=\"x\"} 5\nb_total{k=\"y\"} 9\n");
        struct samples now =
                parse("new_total 4\na_total 25\nb_total{k=\"y\"} 3\nb_total{k=\"x\"} 6\n");

        close_to(samples_growth(&now, &before, "a_total", ""), 15);
        close_to(samples_growth(&now, &before, "b_total", "x"), 1);
        /* A counter that fell belongs to another namespace of that name, or another daemon. */
        assert_true(isnan(samples_growth(&now, &before, "b_total", "y")));
        assert_true(isnan(samples_growth(&now, &before, "new_total", "")));
        assert_true(isnan(samples_growth(&now, NULL, "a_total", "")));
        close_to(samples_growth_sum(&now, &before, "b_total"), 1);
        assert_true(isnan(samples_growth_sum(&now, &before, "none")));
        samples_fini(&now);
        samples_fini(&before);
}

static void a_quantile_is_of_the_interval_alone(void **state)
{
        /* A thousand slow requests before the interval; ten fast ones, one of them slower, within
         * it. */
        struct samples before = parse("h_bucket{op=\"GET\",le=\"0.001\"} 0\n"
                                      "h_bucket{op=\"GET\",le=\"0.002\"} 0\n"
                                      "h_bucket{op=\"GET\",le=\"+Inf\"} 1000\n"
                                      "h_count{op=\"GET\"} 1000\n");
        struct samples now = parse("h_bucket{op=\"GET\",le=\"0.001\"} 9\n"
                                   "h_bucket{op=\"GET\",le=\"0.002\"} 10\n"
                                   "h_bucket{op=\"GET\",le=\"+Inf\"} 1010\n"
                                   "h_count{op=\"GET\"} 1010\n");
        struct samples beyond = parse("h_bucket{op=\"GET\",le=\"0.001\"} 9\n"
                                      "h_bucket{op=\"GET\",le=\"0.002\"} 10\n"
                                      "h_bucket{op=\"GET\",le=\"+Inf\"} 1015\n"
                                      "h_count{op=\"GET\"} 1015\n");

        double above = -1;

        close_to(samples_quantile(&now, &before, "h", "GET", 0, &above), 0.001);
        close_to(samples_quantile(&now, &before, "h", "GET", 0.45, &above), 0.001);
        close_to(samples_quantile(&now, &before, "h", "GET", 0.9, &above), 0.001);
        close_to(samples_quantile(&now, &before, "h", "GET", 0.95, &above), 0.002);
        close_to(samples_quantile(&now, &before, "h", "GET", 1, &above), 0.002);
        assert_true(isnan(samples_quantile(&now, &now, "h", "GET", 0.5, &above)));
        assert_true(isnan(samples_quantile(&now, NULL, "h", "GET", 0.5, &above)));
        assert_true(isnan(samples_quantile(&now, &before, "h", "PUT", 0.5, &above)));
        close_to(above, -1);
        assert_true(isnan(samples_quantile(&beyond, &now, "h", "GET", 0.5, &above)));
        close_to(above, 0.002);
        samples_fini(&beyond);
        samples_fini(&now);
        samples_fini(&before);
}

static const char page_before[] = "kvcache_ready 1\n"
                                  "kvcache_degraded{reason=\"volume_full\"} 1\n"
                                  "kvcache_degraded{reason=\"io_fallback\"} 0\n"
                                  "kvcache_requests_total{op=\"GET\"} 100\n"
                                  "kvcache_requests_total{op=\"PUT\"} 50\n"
                                  "kvcache_hits_total{tier=\"memory\"} 10\n"
                                  "kvcache_hits_total{tier=\"disk\"} 10\n"
                                  "kvcache_misses_total{reason=\"never_stored\"} 0\n"
                                  "kvcache_misses_total{reason=\"evicted_disk\"} 0\n"
                                  "kvcache_misses_total{reason=\"evicted_pool\"} 0\n"
                                  "kvcache_get_duration_seconds_bucket"
                                  "{result=\"memory\",le=\"0.001\"} 0\n"
                                  "kvcache_get_duration_seconds_count{result=\"memory\"} 0\n"
                                  "kvcache_loads_declined_total 1\n"
                                  "kvcache_volume_up{volume=\"/a\"} 1\n"
                                  "kvcache_volume_up{volume=\"/b\"} 0\n"
                                  "kvcache_volume_read_bytes_total{volume=\"/a\"} 0\n"
                                  "kvcache_volume_read_bytes_total{volume=\"/b\"} 0\n";
static const char page_now[] = "kvcache_ready 1\n"
                               "kvcache_build_info{version=\"1.2\\u001b[2J\",protocol=\"1\"} 1\n"
                               "kvcache_degraded{reason=\"volume_full\"} 1\n"
                               "kvcache_degraded{reason=\"io_fallback\"} 0\n"
                               "kvcache_requests_total{op=\"GET\"} 300\n"
                               "kvcache_requests_total{op=\"PUT\"} 50\n"
                               "kvcache_hits_total{tier=\"memory\"} 20\n"
                               "kvcache_hits_total{tier=\"disk\"} 15\n"
                               "kvcache_misses_total{reason=\"never_stored\"} 2\n"
                               "kvcache_misses_total{reason=\"evicted_disk\"} 2\n"
                               "kvcache_misses_total{reason=\"evicted_pool\"} 1\n"
                               "kvcache_get_duration_seconds_bucket"
                               "{result=\"memory\",le=\"0.001\"} 10\n"
                               "kvcache_get_duration_seconds_count{result=\"memory\"} 10\n"
                               "kvcache_loads_declined_total 7\n"
                               "kvcache_volume_up{volume=\"/a\"} 1\n"
                               "kvcache_volume_up{volume=\"/b\"} 0\n"
                               "kvcache_volume_suspended{volume=\"/b\"} 1\n"
                               "kvcache_volume_read_bytes_total{volume=\"/a\"} 1024\n"
                               "kvcache_volume_read_bytes_total{volume=\"/b\"} 4096\n";

static double at(const cJSON *o, const char *a, const char *b)
{
        const cJSON *item =
                cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(o, a), b);

        assert_true(cJSON_IsNumber(item));
        return item->valuedouble;
}

static char *print(const cJSON *figures, unsigned lines)
{
        static char *text; /* static, because gcc 12 takes a local one for the target of a returned
                              pointer */
        size_t bytes;
        FILE *out = open_memstream(&text, &bytes);

        top_print(figures, lines, 0, false, out);
        fclose(out);
        return text;
}

static void figures_are_rates_of_the_interval(void **state)
{
        struct samples before = parse(page_before), now = parse(page_now);
        cJSON *figures = top_figures(&now, &before, 2), *row;
        char *text;

        close_to(at(figures, "requests", "per_second"), 100);
        close_to(at(figures, "gets", "keys_per_second"), 10);
        close_to(at(figures, "gets", "memory_ratio"), 0.5);
        close_to(at(figures, "gets", "disk_ratio"), 0.25);
        close_to(at(figures, "gets", "miss_ratio"), 0.25);
        close_to(at(figures, "gets", "evicted_miss_ratio"), 0.6);
        text = print(figures, 0);
        assert_non_null(strstr(text, "25.0 % missed\n"));
        assert_non_null(strstr(text, "60.0 % of the misses evicted\n"));
        assert_non_null(strstr(text, "from memory ≤1 ms/≤1 ms, from disk -/-\n"));
        assert_non_null(strstr(text, "; 3.0 loads/s declined\n"));
        free(text);
        close_to(at(figures, "degraded", "volume_full"), 1);
        assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(figures, "degraded")), 1);
        /* Without a PUT in the interval there is no row. The busier volume is first. */
        row = cJSON_GetObjectItem(cJSON_GetObjectItem(figures, "requests"), "operations");
        assert_int_equal(cJSON_GetArraySize(row), 1);
        row = cJSON_GetArrayItem(cJSON_GetObjectItem(figures, "volumes"), 0);
        assert_string_equal(cJSON_GetObjectItem(row, "volume")->valuestring, "/b");
        assert_string_equal(cJSON_GetObjectItem(row, "state")->valuestring, "suspended");
        close_to(cJSON_GetObjectItem(row, "read_bytes_per_second")->valuedouble, 2048);
        /* Values missing from the page are null. */
        assert_true(cJSON_IsNull(cJSON_GetObjectItem(row, "used_bytes")));
        cJSON_Delete(figures);

        figures = top_figures(&now, NULL, NAN);
        assert_true(cJSON_IsNull(
                cJSON_GetObjectItem(cJSON_GetObjectItem(figures, "requests"), "per_second")));
        assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(figures, "volumes")), 2);
        cJSON_Delete(figures);
        samples_fini(&now);
        samples_fini(&before);
}

static unsigned count_of(const char *text, const char *part)
{
        unsigned n = 0;

        for (; (text = strstr(text, part)); text++)
                n++;
        return n;
}

/* Returns the number of a line "... and 12 more", or 0 if there is none. */
static int left_out(const char *text)
{
        const char *line = strstr(text, "... and ");

        return line ? atoi(line + strlen("... and ")) : 0;
}

static void text_is_cut_to_the_height(void **state)
{
        char page[8192] = "", *p = page;
        struct samples s;
        cJSON *figures;

        for (int i = 0; i < 16; i++)
                p += sprintf(p, "kvcache_volume_up{volume=\"/v%d\"} 1\n", i);
        for (int i = 0; i < 20; i++)
                p += sprintf(p, "kvcache_namespace_chunks{namespace=\"n%d\"} %d\n", i, i);
        s = parse(page);
        figures = top_figures(&s, NULL, NAN);
        for (unsigned lines = 1; lines < 80; lines++) {
                char *text = print(figures, lines);
                unsigned n = count_of(text, "\n"), rows = count_of(text, "\n/v");

                /* The head is never cut here: the screen does that. */
                assert_true(n <= MAX(lines, 11u));
                if (rows > 0 && rows < 16)
                        assert_int_equal(left_out(text), 16 - rows);
                free(text);
        }
        for (unsigned lines = 0; lines <= 100; lines += 100) {
                char *text = print(figures, lines);

                assert_null(strstr(text, "... and "));
                assert_non_null(strstr(text, "\n/v15"));
                assert_non_null(strstr(text, "\nn0"));
                free(text);
        }
        cJSON_Delete(figures);
        samples_fini(&s);
}

static void long_names_are_shortened_to_the_width(void **state)
{
        struct samples s = parse("kvcache_volume_up{volume=\"/mnt/a-rather-long-name-of-a-place/"
                                 "kvcache-\xc3\xa9-0\"} 1\n"
                                 "kvcache_namespace_chunks{namespace=\"short\"} 1\n");
        cJSON *figures = top_figures(&s, NULL, NAN);
        static char *text;
        size_t bytes;

        for (unsigned columns = 60; columns <= 100; columns += 10) {
                FILE *out = open_memstream(&text, &bytes);

                top_print(figures, 40, columns, false, out);
                fclose(out);
                for (const char *line = strstr(text, "VOLUME"), *end; (end = strchr(line, '\n'));
                     line = end + 1)
                        assert_true(end - line <= (long)columns + 1); /* é is two bytes */
                assert_non_null(strstr(text, "\nshort "));
                assert_non_null(strstr(text, columns < 100 ? "-\xc3\xa9-0 " : "place/kvcache-"));
                free(text);
        }
        cJSON_Delete(figures);
        samples_fini(&s);
}

static void low_screen_has_namespaces_and_operations_at_least(void **state)
{
        struct samples before = parse("kvcache_requests_total{op=\"GET\"} 0\n"
                                      "kvcache_requests_total{op=\"PUT\"} 0\n"
                                      "kvcache_requests_total{op=\"REPORT\"} 0\n"),
                       now = parse("kvcache_requests_total{op=\"GET\"} 10\n"
                                   "kvcache_requests_total{op=\"PUT\"} 5\n"
                                   "kvcache_requests_total{op=\"REPORT\"} 1\n"
                                   "kvcache_volume_up{volume=\"/a\"} 1\n"
                                   "kvcache_volume_up{volume=\"/b\"} 1\n"
                                   "kvcache_tenant_connections{tenant=\"t\"} 1\n"
                                   "kvcache_tenant_connections{tenant=\"u\"} 1\n"
                                   "kvcache_namespace_chunks{namespace=\"m\"} 2\n"
                                   "kvcache_namespace_chunks{namespace=\"n\"} 1\n");
        cJSON *figures = top_figures(&now, &before, 1);
        static const struct {
                unsigned lines, tables;
        } cases[] = { { 11, 0 }, { 15, 1 }, { 20, 2 }, { 23, 3 }, { 27, 4 } };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                char *text = print(figures, cases[i].lines);

                assert_int_equal(strstr(text, "NAMESPACE") != NULL, cases[i].tables > 0);
                assert_int_equal(strstr(text, "OPERATION") != NULL, cases[i].tables > 1);
                assert_int_equal(strstr(text, "TENANT") != NULL, cases[i].tables > 2);
                assert_int_equal(strstr(text, "VOLUME") != NULL, cases[i].tables > 3);
                assert_true(count_of(text, "\n") <= cases[i].lines);
                free(text);
        }
        cJSON_Delete(figures);
        samples_fini(&now);
        samples_fini(&before);
}

/* Prepares figures of a busy daemon on a large host. */
static void head_fits_80_columns(void **state)
{
        static const char *const growing[] = {
                "kvcache_requests_total{op=\"GET\"}",
                "kvcache_busy_answers_total",
                "kvcache_tenant_quota_refusals_total{tenant=\"a\"}",
                "kvcache_lookup_keys_total{by=\"client\"}",
                "kvcache_loads_declined_total",
                "kvcache_hits_total{tier=\"memory\"}",
                "kvcache_hits_total{tier=\"disk\"}",
                "kvcache_misses_total{reason=\"evicted_disk\"}",
                "kvcache_pool_evictions_total",
                "kvcache_evictions_total",
                "kvcache_puts_total",
                "kvcache_return_outcomes_total{outcome=\"in_time\"}",
                "kvcache_return_outcomes_total{outcome=\"missed\"}",
                "kvcache_return_late_total",
                "kvcache_return_evicted_total",
                "kvcache_prefetched_chunks_total",
                "kvcache_prefetch_hits_total",
                "kvcache_hint_announcements_total{outcome=\"true\"}",
                "kvcache_hint_announcements_total{outcome=\"early\"}",
                "kvcache_hint_announcements_total{outcome=\"late\"}"
        };
        static const char *const bytes[] = { "kvcache_get_bytes_total{by=\"x\"}",
                                             "kvcache_put_bytes_total",
                                             "kvcache_store_read_bytes_total",
                                             "kvcache_store_written_bytes_total{what=\"x\"}" };
        static const char *const sizes[] = {
                "kvcache_pool_used_bytes",      "kvcache_pool_size_bytes",
                "kvcache_lease_bytes",          "kvcache_pool_leased_bytes",
                "kvcache_pool_unwritten_bytes", "kvcache_store_used_bytes",
                "kvcache_store_limit_bytes"
        };
        char old[4096] = "", new[4096] =
                                     "kvcache_sessions 4096\nkvcache_leases 123456\n"
                                     "kvcache_deferred_requests 1234\nkvcache_queued_reads 123\n"
                                     "kvcache_queued_writes 123\nkvcache_io_queued 123\n"
                                     "kvcache_io_inflight 123\nkvcache_return_expected 123456\n"
                                     "kvcache_hint_open_announcements 4096\n";
        struct samples before, now;
        cJSON *figures;
        char *text;

        for (size_t i = 0; i < ARRAY_SIZE(growing); i++) {
                sprintf(old + strlen(old), "%s 0\n", growing[i]);
                sprintf(new + strlen(new), "%s %d\n", growing[i], 123456);
        }
        for (size_t i = 0; i < ARRAY_SIZE(bytes); i++) {
                sprintf(old + strlen(old), "%s 0\n", bytes[i]);
                sprintf(new + strlen(new), "%s %.0f\n", bytes[i], 12.3 * (1 << 30));
        }
        for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
                sprintf(new + strlen(new), "%s %.0f\n", sizes[i], 123.0 * (1 << 30));
        before = parse(old);
        now = parse(new);
        figures = top_figures(&now, &before, 1);
        text = print(figures, 0);
        assert_non_null(strstr(text, "\nreturns   123,456 expected, 50.0 % in time; prefetched "
                                     "123,456/s, 100.0 % used\n"
                                     "announced 4,096 returns, 33.3 % came true\n"));
        assert_non_null(strstr(text, "\ngets      370,368/s, 12.3 GiB/s: 33.3 % memory, "));
        for (const char *line = text, *end; (end = strchr(line, '\n')); line = end + 1)
                if (end - line > 80)
                        fail_msg("%.*s", (int)(end - line), line);
        free(text);
        cJSON_Delete(figures);
        samples_fini(&now);
        samples_fini(&before);
}

static void what_is_wrong_has_a_colour_and_nothing_else(void **state)
{
        struct samples s = parse("kvcache_ready 1\nkvcache_degraded{reason=\"volume_hung\"} 1\n"
                                 "kvcache_volume_up{volume=\"/a\"} 1\n"
                                 "kvcache_volume_up{volume=\"/b\"} 0\n"
                                 "kvcache_volume_hung{volume=\"/b\"} 1\n");
        cJSON *figures = top_figures(&s, NULL, NAN);
        static char *text;
        size_t bytes;
        FILE *out = open_memstream(&text, &bytes);

        top_print(figures, 0, 0, true, out);
        fclose(out);
        assert_non_null(strstr(text, "\033[33mDEGRADED  \033[0mvolume_hung"));
        assert_non_null(strstr(text, "\033[1;31m/b      hung"));
        assert_int_equal(count_of(text, "\033["), 4);
        free(text);
        cJSON_Delete(figures);
        samples_fini(&s);
}

static void lines_are_shared_in_turn(void **state)
{
        unsigned ret[3];

        top_share_lines(10, (unsigned[]){ 2, 20, 20 }, 3, ret);
        assert_int_equal(ret[0], 2);
        assert_int_equal(ret[1], 4);
        assert_int_equal(ret[2], 4);
        top_share_lines(UINT32_MAX, (unsigned[]){ 2, 20, 0 }, 3, ret);
        assert_int_equal(ret[0] + ret[1] + ret[2], 22);
        top_share_lines(0, (unsigned[]){ 2, 20, 20 }, 3, ret);
        assert_int_equal(ret[0] + ret[1] + ret[2], 0);
}

static void names_cannot_steer_the_terminal(void **state)
{
        struct samples s = parse("kvcache_build_info{version=\"1\x1b[2J\"} 1\n"
                                 "kvcache_degraded{reason=\"\x1b]0;x\"} 1\n"
                                 "kvcache_volume_up{volume=\"/a\x1b[2J\"} 1\n"
                                 "kvcache_namespace_chunks{namespace=\"n\\n\xc2\x9bx\"} 1\n");
        cJSON *figures = top_figures(&s, NULL, NAN);
        char *text;

        cJSON_AddStringToObject(figures, "host", "node\x1b[2J7.example");
        text = print(figures, 0);
        assert_non_null(strstr(text, " on node?[2J7, "));
        assert_null(strchr(text, '\x1b'));
        assert_null(strstr(text, "\xc2\x9b"));
        assert_non_null(strstr(text, "\nn???x"));
        free(text);
        cJSON_Delete(figures);
        samples_fini(&s);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_page_is_read),
                cmocka_unit_test(what_is_no_sample_is_skipped),
                cmocka_unit_test(growth_is_between_two_pages),
                cmocka_unit_test(a_quantile_is_of_the_interval_alone),
                cmocka_unit_test(figures_are_rates_of_the_interval),
                cmocka_unit_test(text_is_cut_to_the_height),
                cmocka_unit_test(low_screen_has_namespaces_and_operations_at_least),
                cmocka_unit_test(head_fits_80_columns),
                cmocka_unit_test(long_names_are_shortened_to_the_width),
                cmocka_unit_test(what_is_wrong_has_a_colour_and_nothing_else),
                cmocka_unit_test(lines_are_shared_in_turn),
                cmocka_unit_test(names_cannot_steer_the_terminal),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
