/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl top without a daemon and without a terminal: pages of metrics in, figures and lines
 * out. */
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
        /* It fell: another namespace by that name, or another daemon. */
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
        /* A thousand slow ones before; ten fast ones, of which one is slower, in the interval. */
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

        close_to(samples_quantile(&now, &before, "h", "GET", 0.45), 0.0005);
        close_to(samples_quantile(&now, &before, "h", "GET", 0.95), 0.0015);
        close_to(samples_quantile(&now, &before, "h", "GET", 1), 0.002);
        close_to(samples_quantile(&beyond, &now, "h", "GET", 0.5), 0.002);
        assert_true(isnan(samples_quantile(&now, &now, "h", "GET", 0.5)));
        assert_true(isnan(samples_quantile(&now, NULL, "h", "GET", 0.5)));
        assert_true(isnan(samples_quantile(&now, &before, "h", "PUT", 0.5)));
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
        static char *text; /* a local one, gcc 12 takes for what is returned a pointer to */
        size_t bytes;
        FILE *out = open_memstream(&text, &bytes);

        top_print(figures, lines, out);
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
        assert_non_null(strstr(text, "25.0 % missed, 60.0 % of these evicted\n"));
        free(text);
        close_to(at(figures, "degraded", "volume_full"), 1);
        assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(figures, "degraded")), 1);
        /* No PUT in the interval: no row. The busier volume is the first. */
        row = cJSON_GetObjectItem(cJSON_GetObjectItem(figures, "requests"), "operations");
        assert_int_equal(cJSON_GetArraySize(row), 1);
        row = cJSON_GetArrayItem(cJSON_GetObjectItem(figures, "volumes"), 0);
        assert_string_equal(cJSON_GetObjectItem(row, "volume")->valuestring, "/b");
        assert_string_equal(cJSON_GetObjectItem(row, "state")->valuestring, "suspended");
        close_to(cJSON_GetObjectItem(row, "read_bytes_per_second")->valuedouble, 2048);
        /* What the page does not have is null. */
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

/* "... and 12 more"; 0: no such line. */
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
                assert_true(n <= MAX(lines, 9u));
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
        char *text = print(figures, 0);

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
                cmocka_unit_test(lines_are_shared_in_turn),
                cmocka_unit_test(names_cannot_steer_the_terminal),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
