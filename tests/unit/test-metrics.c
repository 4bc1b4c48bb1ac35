/* SPDX-License-Identifier: Apache-2.0 */
/* Guarantees of the renderers in metrics.c: pages that Prometheus and OpenMetrics parsers accept,
 * valid JSON, and equal numbers in all of them. The pages are parsed here line by line; promtool,
 * if installed, checks the names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <ctype.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "base/histogram.h"
#include "checked.h"
#include "cleanup.h"
#include "report/metrics.h"
#include "wire.h"

static struct metrics snapshot; /* large: not on the stack */

static char *render(void (*print)(const struct metrics *, FILE *))
{
        char *text = NULL;
        size_t n;
        FILE *f = open_memstream(&text, &n);

        assert_non_null(f);
        print(&snapshot, f);
        assert_int_equal(fclose(f), 0);
        assert_int_equal(strlen(text), n);
        return text;
}

static void fill(void)
{
        memset(&snapshot, 0, sizeof(snapshot));
        metrics_info_add(snapshot.build, sizeof(snapshot.build), "version", "1.2.3");
        metrics_info_add(snapshot.build, sizeof(snapshot.build), "protocol", "1");
        metrics_info_add(snapshot.io, sizeof(snapshot.io), "backend", "io_uring");
        metrics_info_add(snapshot.io, sizeof(snapshot.io), "ring_flags",
                         "SINGLE_ISSUER|DEFER_TASKRUN");
        snapshot.start_time = 1700000000.25;
        snapshot.uptime = 12.5;
        snapshot.ready = 1;
        snapshot.puts = 12;
        snapshot.put_bytes = 123456789012345.0;
        snapshot.requests[WIRE_PUT] = 3;
        snapshot.key_results[WIRE_MISS] = 7;
        snapshot.hits[METRICS_TIER_DISK] = 5;
        snapshot.io_busy_seconds = 0.1;
        snapshot.process_cpu = 1.5;
        snapshot.process_open_fds = 31;
        histogram_add(&snapshot.get_duration[0], 900);
        histogram_add(&snapshot.get_duration[0], 2000);
        histogram_add(&snapshot.get_duration[0], 4000);
        histogram_add(&snapshot.request_duration[WIRE_GET], 9000);        /* under the first edge */
        histogram_add(&snapshot.request_duration[WIRE_GET], 300000);      /* 0.3 ms */
        histogram_add(&snapshot.request_duration[WIRE_GET], 20000000000); /* 20 s: over the last */
}

/* Returns the value of the sample whose name and labels are exactly `series`. Fails the test unless
 * there is exactly one. */
static double sample(const char *page, const char *series)
{
        size_t n = strlen(series);
        double value = NAN;
        unsigned found = 0;

        for (const char *line = page; line && *line;
             line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
                if (strncmp(line, series, n) != 0 || line[n] != ' ')
                        continue;
                value = strtod(line + n + 1, NULL);
                found++;
        }
        if (found != 1)
                fail_msg("%u samples of %s", found, series);
        return value;
}

/* Reads a page as the formats' grammars have it: HELP, TYPE (and UNIT) once a family and before its
 * samples, samples in one block, names and labels well-formed, values numbers. Returns how many
 * samples. */
static unsigned check_page(const char *page, bool openmetrics)
{
        char family[128] = "", type[32] = "", seen[512][128];
        unsigned samples = 0, families = 0;
        const char *line = page, *end;
        bool eof = false;

        for (; *line; line = end + 1) {
                const char *text;
                char name[128];
                size_t n;

                end = strchr(line, '\n');
                assert_non_null(end); /* the last line ends, too */
                assert_false(eof);
                if (end - line == 5 && memcmp(line, "# EOF", 5) == 0) {
                        eof = true;
                        continue;
                }
                assert_true(end - line > 8);
                text = line + 7;
                if (memcmp(line, "# HELP ", 7) == 0) {
                        const char *help = strchr(text, ' ');

                        assert_true(help && help < end - 1); /* the help text is not empty */
                        assert_true((size_t)(help - text) < sizeof(family));
                        snprintf(family, sizeof(family), "%.*s", (int)(help - text), text);
                        for (unsigned i = 0; i < families; i++)
                                assert_string_not_equal(seen[i], family);
                        assert_true(families < 512);
                        strcpy(seen[families++], family);
                        type[0] = '\0';
                        continue;
                }
                if (memcmp(line, "# TYPE ", 7) == 0) {
                        assert_int_equal(strncmp(text, family, strlen(family)), 0);
                        snprintf(type, sizeof(type), "%.*s",
                                 (int)(end - (text + strlen(family) + 1)),
                                 text + strlen(family) + 1);
                        continue;
                }
                if (memcmp(line, "# UNIT ", 7) == 0) {
                        const char *unit = text + strlen(family) + 1;
                        size_t length = (size_t)(end - unit);

                        assert_true(openmetrics);
                        assert_int_equal(strncmp(text, family, strlen(family)), 0);
                        assert_true(strlen(family) > length);
                        assert_int_equal(strncmp(family + strlen(family) - length, unit, length),
                                         0);
                        continue;
                }

                /* A sample. */
                samples++;
                assert_true(type[0]);
                n = strspn(line, "abcdefghijklmnopqrstuvwxyz_0123456789");
                snprintf(name, sizeof(name), "%.*s", (int)n, line);
                assert_true(strncmp(name, "kvcache_", 8) == 0 || strncmp(name, "process_", 8) == 0);
                assert_int_equal(strncmp(name, family, strlen(family)), 0);
                if (strcmp(type, "counter") == 0)
                        assert_string_equal(name + strlen(name) - 6, "_total");
                if (openmetrics && strcmp(type, "counter") == 0)
                        assert_string_equal(name + strlen(family), "_total");
                if (strcmp(type, "gauge") == 0)
                        assert_string_equal(name, family);
                if (strcmp(type, "info") == 0)
                        assert_string_equal(name + strlen(family), "_info");
                if (line[n] == '{') {
                        const char *p = line + n;

                        do {
                                p++;
                                assert_true(islower(*p));
                                p += strspn(p, "abcdefghijklmnopqrstuvwxyz_");
                                assert_int_equal(*p++, '=');
                                assert_int_equal(*p++, '"');
                                for (; *p != '"'; p++) {
                                        assert_int_not_equal(*p, '\n');
                                        if (*p == '\\') {
                                                p++;
                                                assert_true(*p == '\\' || *p == '"' || *p == 'n');
                                        }
                                }
                                p++;
                        } while (*p == ',');
                        assert_int_equal(*p, '}');
                        n = (size_t)(p + 1 - line);
                }
                assert_int_equal(line[n], ' ');
                char *after;
                double value = strtod(line + n + 1, &after);

                assert_ptr_equal(after, end);
                assert_true(isfinite(value) && value >= 0);
        }
        assert_int_equal(eof, openmetrics);
        assert_true(families > 40);
        return samples;
}

static void a_prometheus_page_parses_and_tells_what_was_counted(void **state)
{
        _cleanup_(freep) char *page = NULL;

        fill();
        page = render(metrics_print_prometheus);
        check_page(page, false);
        assert_true(sample(page, "kvcache_puts_total") == 12);
        assert_true(sample(page, "kvcache_put_bytes_total") == 123456789012345.0);
        assert_true(sample(page, "kvcache_start_time_seconds") == 1700000000.25);
        assert_true(sample(page, "kvcache_requests_total{op=\"PUT\"}") == 3);
        assert_true(sample(page, "kvcache_requests_total{op=\"PING\"}") == 0);
        assert_true(sample(page, "kvcache_hits_total{tier=\"disk\"}") == 5);
        assert_true(sample(page, "kvcache_build_info{version=\"1.2.3\",protocol=\"1\"}") == 1);
        assert_non_null(strstr(page, "kvcache_io_busy_seconds_total 0.1\n"));
        assert_non_null(strstr(page, "# TYPE kvcache_build_info gauge\n"));
}

static void an_openmetrics_page_parses_and_has_the_same_samples(void **state)
{
        _cleanup_(freep) char *old = NULL, *new = NULL;

        fill();
        old = render(metrics_print_prometheus);
        new = render(metrics_print_openmetrics);
        assert_int_equal(check_page(old, false), check_page(new, true));
        assert_non_null(strstr(new, "# TYPE kvcache_puts counter\n"));
        assert_non_null(strstr(new, "# UNIT kvcache_put_bytes bytes\n"));
        assert_non_null(strstr(new, "# TYPE kvcache_build info\n"));
        assert_string_equal(new + strlen(new) - 6, "# EOF\n");

        /* Sample lines of both formats are identical. */
        for (const char *line = old; *line; line = strchr(line, '\n') + 1) {
                char text[512];

                if (*line == '#')
                        continue;
                snprintf(text, sizeof(text), "\n%.*s\n", (int)strcspn(line, "\n"), line);
                assert_non_null(strstr(new, text));
        }
}

static void every_op_and_status_has_a_series(void **state)
{
        _cleanup_(freep) char *page = NULL;
        char series[128];

        fill();
        page = render(metrics_print_prometheus);
        for (unsigned op = 1; op < WIRE_OP_END; op++) {
                snprintf(series, sizeof(series), "kvcache_requests_total{op=\"%s\"}",
                         wire_op_name(op));
                sample(page, series);
                snprintf(series, sizeof(series),
                         "kvcache_request_duration_seconds_count{op=\"%s\"}", wire_op_name(op));
                sample(page, series);
        }
        for (unsigned status = 0; status < WIRE_STATUS_END; status++) {
                snprintf(series, sizeof(series), "kvcache_key_results_total{status=\"%s\"}",
                         wire_status_name(status));
                assert_true(sample(page, series) == (status == WIRE_MISS ? 7 : 0));
        }
        assert_null(strstr(page, "\"unknown\""));
}

static void histogram_buckets_are_cumulative(void **state)
{
        static const struct {
                const char *le;
                double n;
        } expected[] = {
                { "1e-05", 1 }, { "0.00025", 1 }, { "0.0005", 2 },
                { "0.001", 2 }, { "10.0", 2 },    { "+Inf", 3 },
        };
        _cleanup_(freep) char *page = NULL;
        char series[128];

        fill();
        page = render(metrics_print_prometheus);
        for (size_t i = 0; i < ARRAY_SIZE(expected); i++) {
                snprintf(series, sizeof(series),
                         "kvcache_request_duration_seconds_bucket{op=\"GET\",le=\"%s\"}",
                         expected[i].le);
                assert_true(sample(page, series) == expected[i].n);
        }
        assert_true(sample(page, "kvcache_request_duration_seconds_count{op=\"GET\"}") == 3);
        assert_true(fabs(sample(page, "kvcache_request_duration_seconds_sum{op=\"GET\"}") -
                         20.000309) < 1e-9);
}

static void histograms_of_times_begin_with_a_microsecond(void **state)
{
        _cleanup_(freep) char *page = NULL;

        fill();
        page = render(metrics_print_prometheus);
#define BUCKET "kvcache_get_duration_seconds_bucket{result=\"memory\",le="
        assert_true(sample(page, BUCKET "\"1e-06\"}") == 1);
        assert_true(sample(page, BUCKET "\"2.5e-06\"}") == 2);
        assert_true(sample(page, BUCKET "\"5e-06\"}") == 3);
        assert_true(sample(page, BUCKET "\"+Inf\"}") == 3);
#undef BUCKET
}

/* The metrics have the names that Prometheus' own client libraries use. */
static void metrics_of_the_process_have_the_usual_names(void **state)
{
        _cleanup_(freep) char *page = NULL, *json = NULL;

        fill();
        page = render(metrics_print_openmetrics);
        assert_true(sample(page, "process_cpu_seconds_total") == 1.5);
        assert_true(sample(page, "process_open_fds") == 31);
        assert_true(sample(page, "process_max_fds") == 0);
        assert_true(sample(page, "process_start_time_seconds") == 0);
        assert_true(sample(page, "process_resident_memory_bytes") == 0);
        assert_true(sample(page, "process_virtual_memory_bytes") == 0);
        assert_non_null(strstr(page, "# TYPE process_cpu_seconds counter\n"));
        assert_non_null(strstr(page, "# UNIT process_cpu_seconds seconds\n"));
        assert_null(strstr(page, "kvcache_process"));
        json = render(metrics_print_json);
        assert_non_null(strstr(json, "\"process_cpu_seconds_total\": 1.5"));
}

/* The edges reach days, with the resolution of an eighth of an octave of all histograms. */
static void ages_have_buckets_of_seconds_to_days(void **state)
{
        _cleanup_(freep) char *page = NULL;

        fill();
        histogram_add(&snapshot.evicted_ages[METRICS_TIER_DISK], 900000000);
        histogram_add(&snapshot.evicted_ages[METRICS_TIER_DISK], UINT64_C(100000) * 1000000000);
        page = render(metrics_print_prometheus);
        assert_true(sample(page, "kvcache_evicted_age_seconds_bucket{tier=\"disk\",le=\"1.0\"}") ==
                    1);
        assert_true(
                sample(page, "kvcache_evicted_age_seconds_bucket{tier=\"disk\",le=\"65536.0\"}") ==
                1);
        assert_true(
                sample(page, "kvcache_evicted_age_seconds_bucket{tier=\"disk\",le=\"131072.0\"}") ==
                2);
        assert_true(
                sample(page,
                       "kvcache_evicted_age_seconds_bucket{tier=\"memory\",le=\"1048576.0\"}") ==
                0);
}

static void an_empty_histogram_is_shown_as_zeros(void **state)
{
        _cleanup_(freep) char *page = NULL, *json = NULL;

        fill();
        page = render(metrics_print_prometheus);
        assert_true(
                sample(page, "kvcache_request_duration_seconds_bucket{op=\"PURGE\",le=\"+Inf\"}") ==
                0);
        assert_true(sample(page, "kvcache_request_duration_seconds_sum{op=\"PURGE\"}") == 0);
        json = render(metrics_print_json);
        assert_non_null(strstr(
                json, "\"PURGE\": {\"count\": 0, \"sum\": 0, \"p50\": 0, \"p90\": 0, \"p99\": 0}"));
}

/* Several labels, and histograms of bytes. */
static void transfers_have_a_label_for_each_of_their_kinds(void **state)
{
        _cleanup_(freep) char *page = NULL, *json = NULL;
        unsigned failed = METRICS_TRANSFER_OPS - TRANSFER_RESULTS + TRANSFER_ERROR_SHORT;
        unsigned ok = METRICS_TRANSFER_OPS - TRANSFER_RESULTS;

        fill();
        strcpy(snapshot.transfer_names[METRICS_TRANSFERS - 1], "host_to_host,other,memcpy");
        strcpy(snapshot.transfer_op_names[ok], "host_to_host,other,memcpy,ok");
        strcpy(snapshot.transfer_op_names[failed], "host_to_host,other,memcpy,short");
        snapshot.transfer_ops[failed] = 3;
        snapshot.transfer_bytes[METRICS_TRANSFERS - 1] = 4609;
        histogram_add(&snapshot.transfer_sizes[METRICS_TRANSFERS - 1], 512 - 1);
        histogram_add(&snapshot.transfer_sizes[METRICS_TRANSFERS - 1], 4097 - 1);
        page = render(metrics_print_prometheus);
#define OF "path=\"host_to_host\",layout=\"other\",technology=\"memcpy\""
        assert_true(sample(page, "kvcache_transfer_ops_total{" OF ",result=\"short\"}") == 3);
        assert_true(sample(page, "kvcache_transfer_ops_total{" OF ",result=\"ok\"}") == 0);
        assert_true(sample(page, "kvcache_transfer_bytes_total{" OF ",result=\"ok\"}") == 4609);
        assert_true(sample(page, "kvcache_transfer_size_bytes_bucket{" OF ",le=\"512.0\"}") == 1);
        assert_true(sample(page, "kvcache_transfer_size_bytes_bucket{" OF ",le=\"8192.0\"}") == 2);
        assert_true(sample(page, "kvcache_transfer_size_bytes_sum{" OF "}") == 4609);
        assert_true(sample(page, "kvcache_transfer_seconds_count{" OF "}") == 0);
#undef OF
        json = render(metrics_print_json);
        assert_non_null(strstr(json, "{\"host_to_host,other,memcpy,ok\": 0, "
                                     "\"host_to_host,other,memcpy,short\": 3}"));
        assert_non_null(strstr(
                json, "\"host_to_host,other,memcpy\": {\"count\": 2, \"sum\": 4609, \"p50\": "));
}

static const cJSON *member(const cJSON *object, const char *name)
{
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

        if (!item)
                fail_msg("no %s", name);
        return item;
}

static void the_json_parses_and_agrees_with_the_page(void **state)
{
        _cleanup_(freep) char *text = NULL, *page = NULL;
        const cJSON *get, *item;
        unsigned members = 0;
        cJSON *json;

        fill();
        text = render(metrics_print_json);
        page = render(metrics_print_prometheus);
        json = cJSON_Parse(text);
        assert_non_null(json);
        assert_true(member(json, "kvcache_puts_total")->valuedouble == 12);
        assert_true(member(member(json, "kvcache_requests_total"), "PUT")->valuedouble == 3);
        assert_string_equal(member(member(json, "kvcache_io_info"), "backend")->valuestring,
                            "io_uring");
        assert_string_equal(member(member(json, "kvcache_build_info"), "protocol")->valuestring,
                            "1");
        get = member(member(json, "kvcache_request_duration_seconds"), "GET");
        assert_true(member(get, "count")->valuedouble == 3);
        assert_true(member(get, "p50")->valuedouble >= 300e-6 &&
                    member(get, "p50")->valuedouble < 300e-6 * 1.126);
        assert_true(member(get, "p99")->valuedouble == 20);
        cJSON_ArrayForEach(item, json)
        {
                members++;
                if (cJSON_IsNumber(item))
                        assert_true(sample(page, item->string) == item->valuedouble);
        }
        assert_true(members > 40);
        cJSON_Delete(json);
}

static void label_values_are_escaped_and_come_back_whole(void **state)
{
        static const char hostile[] = "a\"b\\c\nd,e=\"f\"}";
        _cleanup_(freep) char *page = NULL, *text = NULL;
        cJSON *json;

        fill();
        snapshot.build[0] = '\0';
        metrics_info_add(snapshot.build, sizeof(snapshot.build), "first", hostile);
        metrics_info_add(snapshot.build, sizeof(snapshot.build), "second", "");
        assert_string_equal(snapshot.build, "first=\"a\\\"b\\\\c\\nd,e=\\\"f\\\"}\",second=\"\"");
        page = render(metrics_print_prometheus);
        check_page(page, false);
        text = render(metrics_print_json);
        json = cJSON_Parse(text);
        assert_non_null(json);
        assert_string_equal(member(member(json, "kvcache_build_info"), "first")->valuestring,
                            hostile);
        assert_string_equal(member(member(json, "kvcache_build_info"), "second")->valuestring, "");
        cJSON_Delete(json);
}

static void a_label_that_does_not_fit_is_left_out_whole(void **state)
{
        for (size_t room = 1; room < 40; room++) {
                _cleanup_(freep) char *info =
                        malloc(room); /* exact: a sanitizer sees one byte too many */
                static const char both[] = "k=\"v\",long=\"x\\\"y\\\\z\"";
                static const char one[] = "k=\"v\"";

                info[0] = '\0';
                metrics_info_add(info, room, "k", "v");
                metrics_info_add(info, room, "long", "x\"y\\z");
                if (room >= sizeof(both))
                        assert_string_equal(info, both);
                else if (room >= sizeof(one))
                        assert_string_equal(info, one);
                else
                        assert_string_equal(info, "");
        }
}

static void numbers_have_a_point_in_every_locale(void **state)
{
        static const char *const names[] = { "de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE" };
        _cleanup_(freep) char *page = NULL;
        bool set = false;

        for (size_t i = 0; i < ARRAY_SIZE(names) && !set; i++)
                set = setlocale(LC_ALL, names[i]) != NULL;
        if (!set)
                skip();
        fill();
        page = render(metrics_print_prometheus);
        assert_string_not_equal(localeconv()->decimal_point, ".");
        setlocale(LC_ALL, "C");
        assert_non_null(strstr(page, "kvcache_uptime_seconds 12.5\n"));
}

static void numbers_come_back_exactly(void **state)
{
        static const double numbers[] = {
                0, 1, 0.1, 1.0 / 3, 1e-9, 9007199254740991.0, 9007199254740993.0, 1e300, 5e-324
        };

        for (size_t i = 0; i < ARRAY_SIZE(numbers); i++) {
                _cleanup_(freep) char *page = NULL;

                fill();
                snapshot.uptime = numbers[i];
                page = render(metrics_print_prometheus);
                assert_true(sample(page, "kvcache_uptime_seconds") == numbers[i]);
        }
        _cleanup_(freep) char *json = NULL;

        snapshot.uptime = NAN;
        json = render(metrics_print_json);
        assert_non_null(strstr(json, "\"kvcache_uptime_seconds\": null"));
}

static void promtool_has_nothing_to_say(void **state)
{
        char path[] = "/tmp/test-stats-XXXXXX", line[512], said[1024] = "";
        int fd, status;
        FILE *f, *promtool;

        if (system("command -v promtool >/dev/null 2>&1") != 0)
                skip();
        fill();
        fd = mkstemp(path);
        assert_true(fd >= 0);
        f = fdopen(fd, "w");
        metrics_print_prometheus(&snapshot, f);
        assert_int_equal(fclose(f), 0);

        snprintf(line, sizeof(line), "promtool check metrics < %s 2>&1", path);
        promtool = popen(line, "r");
        assert_non_null(promtool);
        said[fread(said, 1, sizeof(said) - 1, promtool)] = '\0';
        status = pclose(promtool);
        unlink(path);
        assert_string_equal(said, "");
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

struct wanted {
        const char *key;
        double value;
        unsigned n, found;
};

static void look_for(void *userdata, const char *key, double value)
{
        struct wanted *wanted = userdata;

        wanted->n++;
        if (strcmp(key, wanted->key) == 0) {
                wanted->found++;
                assert_int_equal((int)value, (int)wanted->value);
        }
}

static void a_section_of_the_status_is_walked(void **state)
{
        struct wanted pool = { "live_bytes", 17 }, tenant = { "keys_limit", 4 }, none = { "x", 0 };

        fill();
        snapshot.pool_live_bytes = 17;
        snapshot.tenant_keys_limit[1] = 4;
        metrics_walk(&snapshot, "pool", 0, look_for, &pool);
        assert_int_equal(pool.found, 1);
        assert_int_equal(pool.n, 20);
        metrics_walk(&snapshot, "tenant", 1, look_for, &tenant);
        assert_int_equal(tenant.found, 1);
        metrics_walk(&snapshot, "poo", 0, look_for, &none);
        /* Metrics with another label do not belong to the section. */
        none.key = "written_bytes";
        metrics_walk(&snapshot, "store", 0, look_for, &none);
        assert_int_equal(none.found, 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_prometheus_page_parses_and_tells_what_was_counted),
                cmocka_unit_test(an_openmetrics_page_parses_and_has_the_same_samples),
                cmocka_unit_test(every_op_and_status_has_a_series),
                cmocka_unit_test(histogram_buckets_are_cumulative),
                cmocka_unit_test(histograms_of_times_begin_with_a_microsecond),
                cmocka_unit_test(metrics_of_the_process_have_the_usual_names),
                cmocka_unit_test(ages_have_buckets_of_seconds_to_days),
                cmocka_unit_test(an_empty_histogram_is_shown_as_zeros),
                cmocka_unit_test(transfers_have_a_label_for_each_of_their_kinds),
                cmocka_unit_test(the_json_parses_and_agrees_with_the_page),
                cmocka_unit_test(label_values_are_escaped_and_come_back_whole),
                cmocka_unit_test(a_label_that_does_not_fit_is_left_out_whole),
                cmocka_unit_test(numbers_have_a_point_in_every_locale),
                cmocka_unit_test(numbers_come_back_exactly),
                cmocka_unit_test(a_section_of_the_status_is_walked),
                cmocka_unit_test(promtool_has_nothing_to_say),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
