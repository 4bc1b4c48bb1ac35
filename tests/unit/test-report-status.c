/* SPDX-License-Identifier: Apache-2.0 */
/* The status, the metrics and the probes of a running daemon: they report what clients did, show a
 * client nothing of another tenant, and name everything that is degraded. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "checked.h"
#include "report/health.h"
#include "report/history-collect.h"
#include "report/history.h"
#include "report/status.h"
#include "request-fixture.h"

/* --- reading --- */

static cJSON *parse(char *text)
{
        cJSON *root = cJSON_Parse(text);

        if (!root)
                fail_msg("not JSON: %.200s", text);
        free(text);
        return root;
}

static cJSON *report(struct peer_end *c, enum wire_report what)
{
        struct wire_report_request msg = { .hdr.op = WIRE_REPORT, .what = what };

        return parse(call_for_text(c, &msg, sizeof(msg)));
}

static char *print(void (*printer)(FILE *out))
{
        char *text = NULL;
        size_t n;
        FILE *out = open_memstream(&text, &n);

        printer(out);
        assert_int_equal(fclose(out), 0);
        return text;
}

static void print_status(FILE *out)
{
        status_print_status(&rig.sources, out);
}

static void print_text(FILE *out)
{
        status_print_metrics(&rig.sources, HTTP_METRICS_TEXT, out);
}

static void print_openmetrics(FILE *out)
{
        status_print_metrics(&rig.sources, HTTP_METRICS_OPENMETRICS, out);
}

/* Returns a member by a path such as "totals/puts". */
static const cJSON *at(const cJSON *root, const char *path)
{
        char copy[128], *rest = copy, *name;

        snprintf(copy, sizeof(copy), "%s", path);
        while ((name = strsep(&rest, "/"))) {
                root = cJSON_GetObjectItemCaseSensitive(root, name);
                if (!root)
                        fail_msg("the status lacks %s", path);
        }
        return root;
}

static double number(const cJSON *root, const char *path)
{
        assert_true(cJSON_IsNumber(at(root, path)));
        return at(root, path)->valuedouble;
}

static const char *words(const cJSON *root, const char *path)
{
        assert_true(cJSON_IsString(at(root, path)));
        return at(root, path)->valuestring;
}

/* Returns whether a list of objects contains one with this name. */
static bool lists(const cJSON *root, const char *path, const char *name)
{
        const cJSON *o;

        cJSON_ArrayForEach(o, at(root, path)) if (strcmp(words(o, "name"), name) == 0) return true;
        return false;
}

/* Returns the value of a series in the text format. */
static double series(const char *page, const char *name)
{
        size_t n = strlen(name);

        for (const char *line = page; line; line = strchr(line, '\n')) {
                line += *line == '\n';
                if (strncmp(line, name, n) == 0 && line[n] == ' ')
                        return atof(line + n);
        }
        fail_msg("there is no series %s", name);
        return 0;
}

/* Puts two chunks, gets one of them from memory, one from disk, and one that is missing. */
static void work(struct peer_end *c, const char *name)
{
        enter(c, name);
        assert_int_equal(put(c, 1, WIRE_WRITTEN), WIRE_OK);
        assert_int_equal(put(c, 2, WIRE_WRITTEN), WIRE_OK);
        batch_of_keys(c, WIRE_EVICT, 0, 2, 1)->tiers = WIRE_TIER_MEMORY;
        assert_int_equal(call_batch(c)->status, WIRE_OK);
        assert_int_equal(get(c, 1).status, WIRE_OK);
        assert_int_equal(get(c, 2).status, WIRE_OK);
        assert_int_equal(get(c, 3).status, WIRE_MISS);
        batch_of_keys(c, WIRE_MATCH, 0, 1, 4);
        assert_int_equal(call_batch(c)->value, 2);
}

/* --- the status --- */

static void the_status_counts_what_clients_did(void **state)
{
        struct peer_end c;
        cJSON *s;

        connect_as(&c, ALICE);
        work(&c, "b");
        s = report(&c, WIRE_REPORT_STATUS);
        assert_int_equal(number(s, "totals/puts"), 2);
        assert_int_equal(number(s, "totals/gets"), 3);
        assert_int_equal(number(s, "totals/hits_memory"), 1);
        assert_int_equal(number(s, "totals/hits_disk"), 1);
        assert_int_equal(number(s, "totals/misses"), 1);
        assert_int_equal(number(s, "totals/misses_by_reason/never_stored"), 1);
        assert_int_equal(number(s, "totals/bytes_put"), 2 * LENGTH);
        assert_int_equal(number(s, "totals/bytes_got"), 2 * LENGTH);
        assert_int_equal(number(s, "totals/lookup_keys"), 4);
        assert_int_equal(number(s, "totals/lookup_found_keys"), 2);
        assert_string_equal(words(s, "totals/hit_ratio_of"), "lookups");
        assert_true(number(s, "totals/hit_ratio") == 0.5);
        assert_int_equal(number(s, "sessions/connections"), 1);
        assert_int_equal(number(s, "sessions/leases"), 2);
        assert_int_equal(number(s, "sessions/staging_bytes"), STAGING);
        assert_int_equal(number(s, "namespace_usage/user_count"), 1);
        assert_true(lists(s, "namespaces", "b"));
        assert_string_equal(words(s, "eviction/policy"), rig.config.eviction.policy);
        cJSON_Delete(s);
        hang_up(&c);
}

static void a_client_sees_nothing_of_another_tenant(void **state)
{
        struct peer_end user, guest, root;
        cJSON *s;

        connect_as(&user, ALICE);
        connect_as(&guest, GUEST);
        connect_as(&root, ROOT);
        work(&user, "b");
        enter(&guest, "g");
        s = report(&guest, WIRE_REPORT_STATUS);
        assert_true(lists(s, "tenants", "guests"));
        assert_false(lists(s, "tenants", "default"));
        assert_true(lists(s, "namespaces", "g"));
        assert_false(lists(s, "namespaces", "b"));
        assert_int_equal(number(s, "namespace_usage/count"), 1);
        assert_int_equal(number(s, "namespace_usage/chunks"), 0);
        assert_null(cJSON_GetObjectItem(s, "resources"));
        cJSON_Delete(s);
        s = report(&root, WIRE_REPORT_STATUS);
        assert_true(lists(s, "tenants", "guests"));
        assert_true(lists(s, "tenants", "default"));
        assert_true(lists(s, "namespaces", "g"));
        assert_true(lists(s, "namespaces", "b"));
        assert_int_equal(number(s, "totals/puts"), 2);
        assert_int_equal(number(s, "sessions/connections"), 3);
        assert_non_null(cJSON_GetObjectItem(s, "resources"));
        cJSON_Delete(s);
        hang_up(&user);
        hang_up(&guest);
        hang_up(&root);
}

static void metrics_for_a_client_are_of_its_tenant(void **state)
{
        struct wire_report_request msg = { .hdr.op = WIRE_REPORT, .what = WIRE_REPORT_METRICS };
        struct peer_end user, guest;
        char *page;

        connect_as(&user, ALICE);
        connect_as(&guest, GUEST);
        work(&user, "secret-name");
        enter(&guest, "g");
        page = call_for_text(&guest, &msg, sizeof(msg));
        assert_null(strstr(page, "secret-name"));
        assert_null(strstr(page, "tenant=\"default\""));
        assert_non_null(strstr(page, "tenant=\"guests\""));
        assert_true(series(page, "kvcache_namespace_chunks{namespace=\"guests:g\"}") == 0);
        free(page);
        page = call_for_text(&user, &msg, sizeof(msg));
        assert_true(series(page, "kvcache_namespace_chunks{namespace=\"default:secret-name\"}") ==
                    2);
        free(page);
        hang_up(&user);
        hang_up(&guest);
}

static void http_shows_no_names_of_namespaces_where_there_are_several_tenants(void **state)
{
        struct peer_end c;
        char *page;
        cJSON *s;

        connect_as(&c, ALICE);
        work(&c, "secret-name");
        page = print(print_status);
        assert_null(strstr(page, "secret-name"));
        s = parse(page);
        assert_int_equal(number(s, "namespace_usage/count"), 2);
        assert_int_equal(number(s, "namespace_usage/chunks"), 2);
        assert_int_equal(number(s, "namespace_usage/shown"), 0);
        cJSON_Delete(s);
        page = print(print_text);
        assert_null(strstr(page, "secret-name"));
        assert_true(series(page, "kvcache_namespace_chunks{namespace=\"other\"}") == 2);
        free(page);
        hang_up(&c);
}

static void a_namespace_near_its_limit_is_warned_of(void **state)
{
        struct namespace_limits limits = { .user = 5, .n_tenants = 1 };
        struct peer_end c;
        char name[8];
        cJSON *s;

        limits.tenants[0] = (struct namespace_tenant){ 0, "default", 6 };
        namespace_counts_set_limits(rig.service.namespace_counts, &limits);
        connect_as(&c, ALICE);
        s = report(&c, WIRE_REPORT_STATUS);
        assert_string_equal(words(s, "namespace_usage/warning"), "");
        cJSON_Delete(s);
        for (unsigned i = 0; i < 4; i++) {
                snprintf(name, sizeof(name), "n%u", i);
                assert_int_equal(open_namespace(&c, name, "", 0, 0)->status, WIRE_OK);
        }
        s = report(&c, WIRE_REPORT_STATUS);
        assert_non_null(
                strstr(words(s, "namespace_usage/warning"), "the tenant has 5 of at most 6"));
        assert_non_null(
                strstr(words(s, "namespace_usage/warning"), "this user has made 4 of at most 5"));
        cJSON_Delete(s);
        hang_up(&c);
}

/* --- names and figures of the greatest length --- */

/* Opens namespaces with names and fingerprints that JSON doubles, and fills their samples with the
 * longest figures. Namespace i has i + 1 bytes. */
static void fill_rows(struct peer_end *c)
{
        char name[WIRE_MAX_NAME + 1], fingerprint[1024];
        uint64_t now_ns = clock_mono_ns();

        memset(name, '"', sizeof(name) - 1);
        memset(fingerprint, '\\', sizeof(fingerprint));
        memcpy(fingerprint, "a=", 2);
        strcpy(fingerprint + sizeof(fingerprint) - 2, "\n");
        name[sizeof(name) - 1] = '\0';
        for (unsigned i = 0; i < NAMESPACE_ROWS; i++) {
                struct namespace_row *row = &rig.namespaces.rows[i];
                const struct store_namespace *ns;

                name[0] = (char)('A' + i);
                assert_int_equal(open_namespace(c, name, fingerprint, 0, 0)->status, WIRE_OK);
                ns = store_namespace_find(rig.service.store, 0, name, WIRE_MAX_NAME);
                assert_non_null(ns);
                *row = (struct namespace_row){
                        .last = { .of = { ns->id, ns->created_ms }, .bytes = i + 1 },
                        .n = NAMESPACE_SAMPLES,
                };
                for (unsigned k = 0; k < NAMESPACE_SAMPLES; k++) {
                        row->samples[k] = (struct namespace_sample){ .end_ns = now_ns - 1,
                                                                     .span_ns = UINT64_MAX,
                                                                     .chunks = UINT64_MAX,
                                                                     .bytes = UINT64_MAX };
                        for (unsigned n = 0; n < NAMESPACE_COUNTERS; n++)
                                row->samples[k].counted[n] = UINT64_MAX;
                }
        }
}

static void reports_of_the_longest_names_and_figures_are_bounded(void **state)
{
        struct wire_report_request msg = { .hdr.op = WIRE_REPORT, .what = WIRE_REPORT_NAMESPACES };
        struct peer_end c;
        unsigned listed = 0;
        const cJSON *one;
        char *text;
        cJSON *s;

        connect_as(&c, ROOT);
        fill_rows(&c);
        text = call_for_text(&c, &msg, sizeof(msg));
        assert_in_range(strlen(text), 128 << 10, (256 << 10) - 1);
        s = parse(text);
        cJSON_ArrayForEach(one, at(s, "namespaces"))
        {
                /* The largest are listed, and come first. */
                assert_int_equal(words(one, "name")[0], 'A' + NAMESPACE_ROWS - 1 - (int)listed++);
                assert_int_equal(cJSON_GetArraySize(at(one, "samples/bytes")), NAMESPACE_SAMPLES);
        }
        assert_in_range(listed, NAMESPACE_ROWS / 2, NAMESPACE_ROWS - 1);
        assert_int_equal(number(s, "left_out"), NAMESPACE_ROWS - listed);
        cJSON_Delete(s);

        msg.what = WIRE_REPORT_STATUS;
        text = call_for_text(&c, &msg, sizeof(msg));
        assert_in_range(strlen(text), 20 << 10, (64 << 10) - 1);
        s = parse(text);
        assert_int_equal(cJSON_GetArraySize(at(s, "namespaces")), METRICS_NAMESPACES);
        cJSON_Delete(s);
        msg.what = WIRE_REPORT_STATS;
        text = call_for_text(&c, &msg, sizeof(msg));
        assert_in_range(strlen(text), 1, (256 << 10) - 1);
        free(text);
        hang_up(&c);
}

/* --- metrics --- */

static void every_format_has_the_same_families(void **state)
{
        static const char *const suffixes[] = { "_total",
                                                "_info" }; /* sample names end with them */
        struct peer_end c;
        char *text, *openmetrics;
        unsigned families = 0;

        connect_as(&c, ALICE);
        work(&c, "b");
        text = print(print_text);
        openmetrics = print(print_openmetrics);
        assert_string_equal(openmetrics + strlen(openmetrics) - 6, "# EOF\n");
        for (const char *p = text; (p = strstr(p, "# TYPE ")); p++) {
                char name[128], line[160];

                assert_int_equal(sscanf(p, "# TYPE %127s", name), 1);
                for (unsigned i = 0; i < ARRAY_SIZE(suffixes); i++) {
                        size_t n = strlen(name), k = strlen(suffixes[i]);

                        if (n > k && strcmp(name + n - k, suffixes[i]) == 0)
                                name[n - k] = '\0';
                }
                snprintf(line, sizeof(line), "# TYPE %s ", name);
                if (!strstr(openmetrics, line))
                        fail_msg("OpenMetrics lacks %s", name);
                families++;
        }
        assert_true(families > 100);
        assert_true(series(text, "kvcache_puts_total") == 2);
        free(text);
        free(openmetrics);
        hang_up(&c);
}

/* Reads a varint; moves *p behind it. */
static uint64_t varint(const uint8_t **p, const uint8_t *end)
{
        uint64_t value = 0;

        for (unsigned shift = 0;; shift += 7) {
                assert_true(*p < end && shift < 64);
                value |= (uint64_t)(**p & 0x7f) << shift;
                if (!(*(*p)++ & 0x80))
                        return value;
        }
}

/* Walks the fields of a message. Returns how many have the number `wanted`; `ret` is the last of
 * them. */
static unsigned fields(const uint8_t *p, const uint8_t *end, unsigned wanted, const uint8_t **ret,
                       size_t *ret_bytes)
{
        unsigned n = 0;

        while (p < end) {
                uint64_t tag = varint(&p, end), bytes = 0;

                switch (tag & 7) {
                case 0:
                        (void)varint(&p, end);
                        break;
                case 1:
                        bytes = 8;
                        break;
                case 2:
                        bytes = varint(&p, end);
                        break;
                default:
                        fail_msg("wire type %u", (unsigned)(tag & 7));
                }
                assert_true(bytes <= (uint64_t)(end - p));
                if (tag >> 3 == wanted) {
                        n++;
                        *ret = p;
                        *ret_bytes = bytes;
                }
                p += bytes;
        }
        return n;
}

static void protobuf_has_each_family_behind_its_length(void **state)
{
        enum { NAME = 1, METRIC = 4, HISTOGRAM = 7, SCHEMA = 5, COUNT = 1 };
        const uint8_t *p, *end, *field, *metric;
        unsigned families = 0, of_text = 0, histograms = 0;
        size_t n, bytes, metric_bytes;
        struct peer_end c;
        char *text, *raw = NULL;
        FILE *out;

        connect_as(&c, ALICE);
        work(&c, "b");
        text = print(print_text);
        for (const char *q = text; (q = strstr(q, "# TYPE ")); q++)
                of_text++;
        out = open_memstream(&raw, &n);
        status_print_metrics(&rig.sources, HTTP_METRICS_PROTOBUF, out);
        assert_int_equal(fclose(out), 0);
        p = (const uint8_t *)raw;
        for (end = p + n; p < end; families++) {
                uint64_t length = varint(&p, end);
                char name[128];

                assert_true(length <= (uint64_t)(end - p));
                assert_int_equal(fields(p, p + length, NAME, &field, &bytes), 1);
                snprintf(name, sizeof(name), "# TYPE %.*s ", (int)bytes, (const char *)field);
                if (!strstr(text, name))
                        fail_msg("the text lacks %s", name);
                if (fields(p, p + length, METRIC, &metric, &metric_bytes) > 0 &&
                    fields(metric, metric + metric_bytes, HISTOGRAM, &field, &bytes) > 0)
                        histograms += fields(field, field + bytes, SCHEMA, &metric, &metric_bytes);
                p += length;
        }
        assert_int_equal(families, of_text);
        assert_true(histograms > 0); /* native ones */
        free(text);
        free(raw);
        hang_up(&c);
}

/* --- health --- */

static bool says(bool (*probe)(void *userdata, const char **ret_text), const char *expected)
{
        const char *text = NULL;
        bool r = probe(&rig.sources, &text);

        if (!strstr(text, expected))
                fail_msg("\"%s\" does not contain \"%s\"", text, expected);
        return r;
}

static void set_config(const char *assignment)
{
        struct config_error error = { 0 };

        if (config_set(&rig.config, assignment, "--set", &error) < 0)
                fail_msg("%s", error.text);
}

static void the_probes_say_what_state_the_daemon_is_in(void **state)
{
        set_config("listen.http=off");
        set_config("io.backend=posix");
        assert_true(says(status_is_ready, "ready"));
        assert_true(says(status_is_healthy, "ok"));
        rig.sources.ready = false;
        assert_false(says(status_is_ready, "not ready: starting"));
        rig.sources.draining = true;
        assert_false(says(status_is_ready, "not ready: stopping"));
        rig.sources.workers_stuck_ns = UINT64_C(31000000000);
        assert_false(says(status_is_healthy, "a worker thread has made no progress for 31"));
}

static void each_thing_that_is_degraded_is_named(void **state)
{
        struct wire_device suspend = { .hdr.op = WIRE_DEVICE, .action = WIRE_DEVICE_SUSPEND };
        struct peer_end root;
        cJSON *s;

        set_config("io.backend=io_uring");
        connect_as(&root, ROOT);
        assert_true(says(status_is_ready, "degraded: I/O uses threads instead of io_uring"));
        assert_true(says(status_is_ready, "degraded: nothing is served over HTTP: "));
        assert_int_equal(call(&root, &suspend, sizeof(suspend))->status, WIRE_OK);
        assert_false(says(status_is_ready, "not ready: no volume of the store is in use"));
        assert_false(says(status_is_ready, "suspended"));
        s = report(&root, WIRE_REPORT_STATUS);
        assert_string_equal(words(s, "state"), "offline");
        assert_string_equal(words(s, "health"), "degraded");
        assert_string_equal(words(cJSON_GetArrayItem(at(s, "store/volumes"), 0), "state"),
                            "suspended");
        assert_string_equal(words(cJSON_GetArrayItem(at(s, "store/paths"), 0), "state"),
                            "suspended");
        assert_true(cJSON_GetArraySize(at(s, "degraded")) >= 4);
        cJSON_Delete(s);
        hang_up(&root);
}

static void a_volume_that_fails_says_why(void **state)
{
        struct status_health health;
        struct peer_end c;
        bool found = false;

        connect_as(&c, ALICE);
        enter(&c, "a");
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE | 1u << KIO_SYNC,
                                        .kind = FAULT_ERROR,
                                        .error = EIO,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
        for (uint32_t n = 1; n < 200 && store_volumes_up(rig.t.store) > 0; n++)
                (void)put(&c, n, WIRE_WRITTEN);
        assert_int_equal(store_volumes_up(rig.t.store), 0);
        status_get_health(&rig.sources, &health);
        assert_string_equal(health.state, "offline");
        for (unsigned i = 0; i < health.n; i++)
                found |= strstr(health.degraded[i].text, "is bypassed: ") != NULL;
        assert_true(found);
        fault_set(NULL);
        hang_up(&c);
}

static void the_shared_tier_says_how_it_is(void **state)
{
        struct peer_end root, c;
        cJSON *s;

        set_config("remote.backend=directory");
        connect_as(&root, ROOT);
        connect_as(&c, ALICE);
        enter(&c, "a");
        rig_turns();
        s = report(&root, WIRE_REPORT_STATUS);
        assert_string_equal(words(s, "remote/backend"), "directory");
        assert_string_equal(words(s, "remote/breaker"), "closed");
        cJSON_Delete(s);
        fake_fail(BACKEND_READ, -EIO, 1000000);
        for (uint32_t n = 1000; n < 2000 && says(status_is_ready, "ready"); n++) {
                const char *text;

                (void)get(&c, n);
                (void)status_is_ready(&rig.sources, &text);
                if (strstr(text, "the shared tier ("))
                        break;
        }
        assert_true(says(status_is_ready, "has been offline for"));
        s = report(&root, WIRE_REPORT_STATUS);
        assert_string_equal(words(s, "remote/breaker"), "open");
        assert_true(number(s, "remote/errors") > 0);
        cJSON_Delete(s);
        hang_up(&c);
        hang_up(&root);
}

/* --- the log and the history --- */

static void the_log_of_startup_names_socket_pool_and_tenants(void **state)
{
        int stderr_before = dup(STDERR_FILENO), fd = memfd_create("log", MFD_CLOEXEC);
        char text[4096] = "";

        assert_true(stderr_before >= 0 && fd >= 0);
        strcpy(rig.sources.socket, "/run/x/kvcache.sock");
        fflush(stderr);
        dup2(fd, STDERR_FILENO);
        log_set_level(LOG_LEVEL_INFO);
        status_log_started(&rig.sources);
        log_set_level(LOG_LEVEL_ERROR);
        fflush(stderr);
        dup2(stderr_before, STDERR_FILENO);
        close(stderr_before);
        assert_true(pread(fd, text, sizeof(text) - 1, 0) > 0);
        close(fd);
        assert_non_null(strstr(text, "ready: socket /run/x/kvcache.sock, HTTP off"));
        assert_non_null(strstr(text, "memory pool 16 MiB"));
        assert_non_null(strstr(text, "tenant guests: its number in the store is "));
        assert_non_null(strstr(text, "store: "));
}

static void the_history_has_what_was_counted_in_each_sample(void **state)
{
        const uint64_t step = HISTORY_INTERVAL_S * UINT64_C(1000000000);
        static struct history history;
        uint64_t now = clock_mono_ns();
        struct peer_end c;

        connect_as(&c, ALICE);
        work(&c, "b");
        history_tick(&history, &rig.sources, now); /* where the counters begin */
        assert_int_equal(history_sum(&history, now, HISTORY_PUT_BYTES), 0);
        assert_int_equal(put(&c, 9, WIRE_WRITTEN), WIRE_OK);
        assert_int_equal(get(&c, 9).status, WIRE_OK);
        now += step;
        history_tick(&history, &rig.sources, now);
        assert_int_equal(history_sum(&history, now, HISTORY_PUT_BYTES), LENGTH);
        assert_int_equal(history_sum(&history, now, HISTORY_GET_KEYS), 1);
        assert_int_equal(history_sum(&history, now, HISTORY_GET_FOUND), 1);
        assert_int_equal(history_sum(&history, now, HISTORY_GET_BYTES), LENGTH);
        assert_true(history_get(&history, now, 0)->p99_ns[HISTORY_GET] > 0);
        assert_true(history_sum(&history, now, HISTORY_DISK_WRITTEN_BYTES) >= LENGTH);
        hang_up(&c);
}

#define TEST(name)   cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
#define SHARED(name) cmocka_unit_test_setup_teardown(name, rig_setup_remote, rig_teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(the_status_counts_what_clients_did),
                TEST(a_client_sees_nothing_of_another_tenant),
                TEST(metrics_for_a_client_are_of_its_tenant),
                TEST(http_shows_no_names_of_namespaces_where_there_are_several_tenants),
                TEST(a_namespace_near_its_limit_is_warned_of),
                TEST(reports_of_the_longest_names_and_figures_are_bounded),
                TEST(every_format_has_the_same_families),
                TEST(protobuf_has_each_family_behind_its_length),
                TEST(the_probes_say_what_state_the_daemon_is_in),
                TEST(each_thing_that_is_degraded_is_named),
                TEST(a_volume_that_fails_says_why),
                SHARED(the_shared_tier_says_how_it_is),
                TEST(the_log_of_startup_names_socket_pool_and_tenants),
                TEST(the_history_has_what_was_counted_in_each_sample),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
