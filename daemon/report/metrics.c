/* SPDX-License-Identifier: Apache-2.0 */
/* Renders a snapshot. The rows of metrics.def form one table of `struct row`, which every output
 * walks.
 *
 * Stateless; any thread. The renderers use the C locale, whatever the process's locale is, because
 * Prometheus does not accept a decimal comma. Printing cannot fail; the FILE keeps its error. */
#include "report/metrics.h"

#include <assert.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "wire.h"

static_assert((int)METRICS_OPS >= (int)WIRE_OP_END, "every operation has its place");
static_assert((int)METRICS_STATUSES >= (int)WIRE_STATUS_END, "every status has its place");

/* --- label values by index; NULL: the index is unused. Without a snapshot (`s` is NULL), as for
 * the documentation, a word replaces the values that only a snapshot has. --- */

static const char *op_value(const struct metrics *s, unsigned i)
{
        return i > 0 && i < WIRE_OP_END ? wire_op_name(i) : NULL;
}

static const char *status_value(const struct metrics *s, unsigned i)
{
        return i < WIRE_STATUS_END ? wire_status_name(i) : NULL;
}

#define VALUES(function, ...)                                                                      \
        static const char *function(const struct metrics *s, unsigned i)                           \
        {                                                                                          \
                static const char *const names[] = { __VA_ARGS__ };                                \
                return i < ARRAY_SIZE(names) ? names[i] : NULL;                                    \
        }                                                                                          \
        struct values_semicolon

const char *metrics_miss_reason(unsigned i)
{
        static const char *const names[] = { "never_stored", "evicted_pool", "evicted_disk",
                                             "failed_check", "refused",      "expired" };

        static_assert(ARRAY_SIZE(names) == METRICS_MISSES, "a name each");
        return i < ARRAY_SIZE(names) ? names[i] : NULL;
}

static const char *miss_value(const struct metrics *s, unsigned i)
{
        return metrics_miss_reason(i);
}

VALUES(admission_value, "first", "again", "refused_first", "refused_dry");
VALUES(return_value, "in_time", "missed");
VALUES(kept_value, "verified", "damaged", "changed", "no_slot", "replaced");
VALUES(tier_value, "memory", "disk");
VALUES(hit_tier_value, "memory", "disk", "remote");
VALUES(got_value, "memory", "disk", "lent", "remote", "miss");
VALUES(remote_get_value, "hit", "miss", "late", "offline", "no_room", "no_generation");
VALUES(remote_put_value, "written", "existing", "queue_full", "gone", "engine_full", "failed");
VALUES(remote_offer_value, "put", "used_again", "evicted");
VALUES(remote_rejection_value, "header", "version", "other_object", "length", "checksum");
VALUES(remote_op_value, "read", "create", "replace", "delete");
VALUES(remote_way_value, "read", "write");
VALUES(remote_purge_value, "own", "other_host");
VALUES(queued_value, "read", "write", "copy");
VALUES(lookup_value, "daemon", "client");
VALUES(hint_value, "final", "return", "shared", "pinned", "unpinned", "pin_refused", "pin_early",
       "tool_call", "turn_end", "disbelieved", "demoted", "demote_busy", "offered");
VALUES(announced_value, "true", "early", "late", "unmeasured", "disbelieved");
VALUES(prefetch_value, "read", "in_memory", "ended", "disbelieved", "worth_less", "late", "refused",
       "dropped");
VALUES(form_value, "map", "into");
VALUES(ack_value, "accepted", "written", "durable");
VALUES(io_value, "read", "write", "sync", "copy", "call");
VALUES(http_refused_value, "401", "421", "429");
VALUES(refused_value, "limit", "credentials", "handshake");
VALUES(ended_value, "closed", "bad_frame", "timeout", "shutdown");
VALUES(written_value, "payload", "table", "prewrite");
VALUES(memory_part_value, "records", "hash_table", "slots", "table", "eviction", "forks", "ghosts");
VALUES(loop_value, "iteration", "costly", "purge", "purge_memory", "http");
VALUES(stage_value, "wait", "submit", "queue", "device", "compute", "return");
VALUES(store_error_value, "read", "write", "sync");
VALUES(namespace_scope_value, "session", "user", "tenant", "store");
VALUES(resource_value, "connections", "leases", "leased_bytes", "stagings", "staging_bytes",
       "registered_bytes", "regions", "keys", "requests", "request_bytes", "unread_fds",
       "deferred_fds", "loans", "loaned_bytes", "files");
VALUES(not_lent_value, "denied", "unverified", "volume", "limit");
VALUES(loan_end_value, "right", "void", "abandoned");
VALUES(descriptor_value, "connection", "staging", "deferred_request", "registration",
       "unsent_reply", "closing");

const char *metrics_resource_name(unsigned resource)
{
        return resource_value(NULL, resource);
}

VALUES(registered_value, "pool", "region");
VALUES(spin_value, "loop", "workers");
VALUES(degradation_value, "store_offline", "volume_failed", "volume_hung", "volume_suspended",
       "volume_resuming", "volume_full", "volume_checksums", "volume_losses", "io_fallback",
       "io_buffered", "io_unregistered", "pool_short", "http_off", "remote_offline", "remote_full");

const char *metrics_degradation_name(enum metrics_degradation reason)
{
        return degradation_value(NULL, reason);
}

static const char *tenant_value(const struct metrics *s, unsigned i)
{
        if (!s)
                return i == 0 ? "NAME" : NULL;
        return s->tenant_names[i][0] ? s->tenant_names[i] : NULL;
}

static const char *floor_value(const struct metrics *s, unsigned i)
{
        if (!s)
                return i == 0 ? "PREFIX" : NULL;
        return s->floor_names[i][0] ? s->floor_names[i] : NULL;
}

static const char *volume_value(const struct metrics *s, unsigned i)
{
        if (!s)
                return i == 0 ? "PATH" : NULL;
        return s->volume_names[i][0] ? s->volume_names[i] : NULL;
}

static const char *namespace_value(const struct metrics *s, unsigned i)
{
        if (!s)
                return i == 0 ? "NAME" : i == METRICS_NAMESPACES ? "other" : NULL;
        return s->namespace_names[i][0] ? s->namespace_names[i] : NULL;
}

static const char *transfer_value(const struct metrics *s, unsigned i)
{
        if (!s)
                return i == 0 ? "PATH,LAYOUT,TECHNOLOGY" : NULL;
        return s->transfer_names[i][0] ? s->transfer_names[i] : NULL;
}

/* Returns the name of a transfer with the result "ok", for bytes and blocks, which count successful
 * operations only. */
static const char *transfer_ok_value(const struct metrics *s, unsigned i)
{
        if (!s)
                return i == 0 ? "PATH,LAYOUT,TECHNOLOGY,ok" : NULL;
        i = i * TRANSFER_RESULTS + TRANSFER_OK;
        return s->transfer_op_names[i][0] ? s->transfer_op_names[i] : NULL;
}

static const char *transfer_op_value(const struct metrics *s, unsigned i)
{
        if (!s)
                return i == 0 ? "PATH,LAYOUT,TECHNOLOGY,RESULT" : NULL;
        return s->transfer_op_names[i][0] ? s->transfer_op_names[i] : NULL;
}

/* --- the table --- */

enum kind { GAUGE, COUNTER, HISTOGRAM, AGES, INFO };

struct row {
        enum kind kind;
        const char *member;
        const char *prefix;
        const char *name;
        const char *unit;
        const char *help;
        const char *label; /* NULL: a single number */
        const char *(*value)(const struct metrics *s, unsigned i);
        unsigned n;
        size_t offset; /* within struct metrics */
};

#define ROW_OF(p, k, m, nm, u, l, v, count, h)                                                     \
        { .kind = k,                                                                               \
          .member = #m,                                                                            \
          .prefix = p,                                                                             \
          .name = nm,                                                                              \
          .unit = u,                                                                               \
          .help = h,                                                                               \
          .label = l,                                                                              \
          .value = v,                                                                              \
          .n = count,                                                                              \
          .offset = offsetof(struct metrics, m) },
#define ROW(k, ...) ROW_OF("kvcache_", k, __VA_ARGS__)
#define METRICS_PROCESS_GAUGE(member, name, unit, help)                                            \
        ROW_OF("process_", GAUGE, member, name, unit, NULL, NULL, 1, help)
#define METRICS_PROCESS_COUNTER(member, name, unit, help)                                          \
        ROW_OF("process_", COUNTER, member, name, unit, NULL, NULL, 1, help)
#define METRICS_GAUGE(member, name, unit, help) ROW(GAUGE, member, name, unit, NULL, NULL, 1, help)
#define METRICS_COUNTER(member, name, unit, help)                                                  \
        ROW(COUNTER, member, name, unit, NULL, NULL, 1, help)
#define METRICS_COUNTER_BY(member, name, unit, label, values, n, help)                             \
        ROW(COUNTER, member, name, unit, label, values, n, help)
#define METRICS_GAUGE_BY(member, name, unit, label, values, n, help)                               \
        ROW(GAUGE, member, name, unit, label, values, n, help)
#define METRICS_HISTOGRAM_BY(member, name, unit, label, values, n, help)                           \
        ROW(HISTOGRAM, member, name, unit, label, values, n, help)
#define METRICS_AGES_BY(member, name, unit, label, values, n, help)                                \
        ROW(AGES, member, name, unit, label, values, n, help)
#define METRICS_INFO(member, name, help) ROW(INFO, member, name, "", NULL, NULL, 1, help)
static const struct row rows[] = {
#include "report/metrics.def"
};

/* Upper edges of the buckets on a page. Their text is part of the series' identity, so both formats
 * print the same. */
static const struct metrics_edge edges_seconds[] = {
        { 1000, "1e-06" },       { 2500, "2.5e-06" },   { 5000, "5e-06" },
        { 10000, "1e-05" },      { 25000, "2.5e-05" },  { 50000, "5e-05" },
        { 100000, "0.0001" },    { 250000, "0.00025" }, { 500000, "0.0005" },
        { 1000000, "0.001" },    { 2500000, "0.0025" }, { 5000000, "0.005" },
        { 10000000, "0.01" },    { 25000000, "0.025" }, { 50000000, "0.05" },
        { 100000000, "0.1" },    { 250000000, "0.25" }, { 1000000000, "1.0" },
        { 10000000000, "10.0" },
};

static const struct metrics_edge edges_bytes[] = {
        { 512, "512.0" },           { 1024, "1024.0" },       { 2048, "2048.0" },
        { 4096, "4096.0" },         { 8192, "8192.0" },       { 16384, "16384.0" },
        { 32768, "32768.0" },       { 65536, "65536.0" },     { 131072, "131072.0" },
        { 262144, "262144.0" },     { 524288, "524288.0" },   { 1048576, "1048576.0" },
        { 2097152, "2097152.0" },   { 4194304, "4194304.0" }, { 8388608, "8388608.0" },
        { 67108864, "67108864.0" },
};

static const struct metrics_edge edges_ages[] = {
        { 1 * UINT64_C(1000000000), "1.0" },
        { 2 * UINT64_C(1000000000), "2.0" },
        { 4 * UINT64_C(1000000000), "4.0" },
        { 8 * UINT64_C(1000000000), "8.0" },
        { 16 * UINT64_C(1000000000), "16.0" },
        { 32 * UINT64_C(1000000000), "32.0" },
        { 64 * UINT64_C(1000000000), "64.0" },
        { 128 * UINT64_C(1000000000), "128.0" },
        { 256 * UINT64_C(1000000000), "256.0" },
        { 512 * UINT64_C(1000000000), "512.0" },
        { 1024 * UINT64_C(1000000000), "1024.0" },
        { 2048 * UINT64_C(1000000000), "2048.0" },
        { 4096 * UINT64_C(1000000000), "4096.0" },
        { 8192 * UINT64_C(1000000000), "8192.0" },
        { 16384 * UINT64_C(1000000000), "16384.0" },
        { 32768 * UINT64_C(1000000000), "32768.0" },
        { 65536 * UINT64_C(1000000000), "65536.0" },
        { 131072 * UINT64_C(1000000000), "131072.0" },
        { 262144 * UINT64_C(1000000000), "262144.0" },
        { 524288 * UINT64_C(1000000000), "524288.0" },
        { 1048576 * UINT64_C(1000000000), "1048576.0" },
};

static bool row_is_of_bytes(const struct row *row)
{
        return strcmp(row->unit, "bytes") == 0;
}

static bool row_is_histogram(const struct row *row)
{
        return row->kind == HISTOGRAM || row->kind == AGES;
}

/* Returns the sum of a histogram in seconds or bytes. Histograms of bytes store one less than each
 * value, so that powers of two end their buckets. */
static double row_sum(const struct row *row, const struct histogram *h)
{
        return row_is_of_bytes(row) ? (double)h->sum + (double)h->count : (double)h->sum / 1e9;
}

static double row_quantile(const struct row *row, const struct histogram *h, double quantile)
{
        double value = (double)histogram_quantile(h, quantile);

        return row_is_of_bytes(row) ? value + (h->count > 0) : value / 1e9;
}

static const char *const kind_names[] = {
        [GAUGE] = "gauge",    [COUNTER] = "counter", [HISTOGRAM] = "histogram",
        [AGES] = "histogram", [INFO] = "info",
};

static double row_number(const struct row *row, const struct metrics *s, unsigned i)
{
        return ((const double *)((const char *)s + row->offset))[i];
}

static const struct histogram *row_histogram(const struct row *row, const struct metrics *s,
                                             unsigned i)
{
        return (const struct histogram *)((const char *)s + row->offset) + i;
}

static const char *row_info(const struct row *row, const struct metrics *s)
{
        return (const char *)s + row->offset;
}

/* Returns the suffix of a sample's name after the family's name. */
static const char *row_suffix(const struct row *row)
{
        return row->kind == COUNTER ? "_total" : row->kind == INFO ? "_info" : "";
}

/* Sets the C locale for this thread while a page is printed. */
static locale_t locale_enter(locale_t *ret_c)
{
        *ret_c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
        return *ret_c ? uselocale(*ret_c) : (locale_t)0;
}

static void locale_leave(locale_t c, locale_t old)
{
        if (!c)
                return;
        uselocale(old);
        freelocale(c);
}

/* Prints a count. A page has thousands, for which fprintf() would take most of the time. */
static void print_count(FILE *out, uint64_t x)
{
        char text[20], *at = text + sizeof(text);

        do
                *--at = (char)('0' + x % 10);
        while ((x /= 10) > 0);
        fwrite(at, 1, (size_t)(text + sizeof(text) - at), out);
}

/* Prints the shorter of 15 and 17 digits that reads back unchanged; whole numbers without an
 * exponent. */
static void print_number(FILE *out, double x)
{
        char text[32];

        if (isnan(x)) {
                fputs("NaN", out);
        } else if (isinf(x)) {
                fputs(x > 0 ? "+Inf" : "-Inf", out);
        } else if (x == floor(x) && fabs(x) <= 9007199254740992.0) {
                if (x < 0)
                        fputc('-', out);
                print_count(out, (uint64_t)fabs(x));
        } else {
                snprintf(text, sizeof(text), "%.15g", x);
                if (strtod(text, NULL) < x || strtod(text, NULL) > x)
                        snprintf(text, sizeof(text), "%.17g", x);
                fputs(text, out);
        }
}

static void print_json_number(FILE *out, double x)
{
        if (isfinite(x))
                print_number(out, x);
        else
                fputs("null", out);
}

static void print_json_string(FILE *out, const char *text, size_t n)
{
        fputc('"', out);
        for (size_t i = 0; i < n; i++) {
                unsigned char c = (unsigned char)text[i];

                if (c == '"' || c == '\\')
                        fprintf(out, "\\%c", c);
                else if (c < 0x20)
                        fprintf(out, "\\u%04x", c);
                else
                        fputc(c, out);
        }
        fputc('"', out);
}

/* Escapes HELP text: backslash and newline, and for OpenMetrics also the quote. */
static void print_help(FILE *out, const char *text, bool openmetrics)
{
        for (;;) {
                size_t n = strcspn(text, openmetrics ? "\\\n\"" : "\\\n");

                fwrite(text, 1, n, out);
                text += n;
                if (!*text)
                        return;
                fputc('\\', out);
                fputc(*text == '\n' ? 'n' : *text, out);
                text++;
        }
}

enum { LABELS_MAX = METRICS_NAMESPACE_NAME + 128 };

/* Formats the labels "a,b" and the values "x,y" as `a="x",b="y"`. The value of a single label may
 * contain commas. */
static void format_labels(char ret[static LABELS_MAX], const char *labels, const char *values)
{
        size_t at = 0;

        while (at < LABELS_MAX) {
                size_t label = strcspn(labels, ","), value = strlen(values);

                if (labels[label])
                        value = strcspn(values, ",");
                at += (size_t)snprintf(ret + at, LABELS_MAX - at, "%.*s=\"%.*s\"%s", (int)label,
                                       labels, (int)value, values, labels[label] ? "," : "");
                if (!labels[label])
                        return;
                labels += label + 1;
                values += value + (values[value] == ',');
        }
}

static const struct metrics_edge *row_edges(const struct row *row, size_t *ret_n)
{
        if (row->kind == AGES) {
                *ret_n = ARRAY_SIZE(edges_ages);
                return edges_ages;
        }
        *ret_n = row_is_of_bytes(row) ? ARRAY_SIZE(edges_bytes) : ARRAY_SIZE(edges_seconds);
        return row_is_of_bytes(row) ? edges_bytes : edges_seconds;
}

static void print_histogram(FILE *out, const struct row *row, const char *value,
                            const struct histogram *h)
{
        size_t n_edges;
        const struct metrics_edge *edges = row_edges(row, &n_edges);
        char labels[LABELS_MAX], begin[LABELS_MAX + 128];
        size_t n;

        format_labels(labels, row->label, value);
        n = (size_t)snprintf(begin, sizeof(begin), "%s%s_bucket{%s,le=\"", row->prefix, row->name,
                             labels);
        n = MIN(n, sizeof(begin) - 1);
        for (size_t b = 0; b <= n_edges; b++) {
                fwrite(begin, 1, n, out);
                fputs(b < n_edges ? edges[b].le : "+Inf", out);
                fputs("\"} ", out);
                print_count(out, b < n_edges ? histogram_at_most(h, edges[b].value -
                                                                            row_is_of_bytes(row))
                                             : h->count);
                fputc('\n', out);
        }
        fprintf(out, "%s%s_sum{%s} ", row->prefix, row->name, labels);
        print_number(out, row_sum(row, h));
        fprintf(out, "\n%s%s_count{%s} %" PRIu64 "\n", row->prefix, row->name, labels, h->count);
}

static void print_page(const struct metrics *s, FILE *out, bool openmetrics)
{
        for (const struct row *row = rows; row < rows + ARRAY_SIZE(rows); row++) {
                /* The older format names the family like its samples; OpenMetrics omits their
                 * suffix. */
                const char *family = openmetrics ? "" : row_suffix(row);
                const char *type =
                        row->kind == INFO && !openmetrics ? "gauge" : kind_names[row->kind];

                fprintf(out, "# HELP %s%s%s ", row->prefix, row->name, family);
                print_help(out, row->help, openmetrics);
                fprintf(out, "\n# TYPE %s%s%s %s\n", row->prefix, row->name, family, type);
                if (openmetrics && row->unit[0])
                        fprintf(out, "# UNIT %s%s %s\n", row->prefix, row->name, row->unit);

                if (row->kind == INFO) {
                        fprintf(out, "%s%s_info{%s} 1\n", row->prefix, row->name, row_info(row, s));
                        continue;
                }
                for (unsigned i = 0; i < row->n; i++) {
                        const char *value = row->label ? row->value(s, i) : NULL;

                        if (row->label && !value)
                                continue;
                        if (row_is_histogram(row)) {
                                print_histogram(out, row, value, row_histogram(row, s, i));
                                continue;
                        }
                        fprintf(out, "%s%s%s", row->prefix, row->name, row_suffix(row));
                        if (value) {
                                char labels[LABELS_MAX];

                                format_labels(labels, row->label, value);
                                fprintf(out, "{%s}", labels);
                        }
                        fputc(' ', out);
                        print_number(out, row_number(row, s, i));
                        fputc('\n', out);
                }
        }
        if (openmetrics)
                fputs("# EOF\n", out);
}

void metrics_visit(const struct metrics *s, const struct metrics_visitor *visitor, void *userdata)
{
        static const enum metrics_type types[] = {
                [GAUGE] = METRICS_TYPE_GAUGE,         [COUNTER] = METRICS_TYPE_COUNTER,
                [HISTOGRAM] = METRICS_TYPE_HISTOGRAM, [AGES] = METRICS_TYPE_HISTOGRAM,
                [INFO] = METRICS_TYPE_GAUGE,
        };

        for (const struct row *row = rows; row < rows + ARRAY_SIZE(rows); row++) {
                struct metrics_buckets buckets = { .of_bytes = row_is_of_bytes(row) };
                char name[128], labels[LABELS_MAX];

                snprintf(name, sizeof(name), "%s%s%s", row->prefix, row->name, row_suffix(row));
                visitor->family(userdata, name, row->help, types[row->kind]);
                if (row->kind == INFO) {
                        visitor->number(userdata, row_info(row, s), 1);
                        continue;
                }
                buckets.of = row_edges(row, &buckets.n);
                for (unsigned i = 0; i < row->n; i++) {
                        const char *value = row->label ? row->value(s, i) : NULL;

                        if (row->label && !value)
                                continue;
                        labels[0] = '\0';
                        if (value)
                                format_labels(labels, row->label, value);
                        if (row_is_histogram(row)) {
                                buckets.sum = row_sum(row, row_histogram(row, s, i));
                                visitor->histogram(userdata, labels, row_histogram(row, s, i),
                                                   &buckets);
                        } else {
                                visitor->number(userdata, labels, row_number(row, s, i));
                        }
                }
        }
}

void metrics_print_prometheus(const struct metrics *s, FILE *out)
{
        locale_t c, old = locale_enter(&c);

        print_page(s, out, false);
        locale_leave(c, old);
}

void metrics_print_openmetrics(const struct metrics *s, FILE *out)
{
        locale_t c, old = locale_enter(&c);

        print_page(s, out, true);
        locale_leave(c, old);
}

static void print_json_histogram(FILE *out, const struct row *row, const struct histogram *h)
{
        fprintf(out, "{\"count\": %" PRIu64 ", \"sum\": ", h->count);
        print_json_number(out, row_sum(row, h));
        fputs(", \"p50\": ", out);
        print_json_number(out, row_quantile(row, h, 0.50));
        fputs(", \"p90\": ", out);
        print_json_number(out, row_quantile(row, h, 0.90));
        fputs(", \"p99\": ", out);
        print_json_number(out, row_quantile(row, h, 0.99));
        fputc('}', out);
}

/* Converts label text to names and values. metrics_info_add() wrote the text, so it is well-formed;
 * text after a malformed label is omitted. */
static void print_json_info(FILE *out, const char *info)
{
        bool first = true;

        fputc('{', out);
        while (*info) {
                const char *equals = strstr(info, "=\"");
                const char *p;
                char value[512];
                size_t n = 0;

                if (!equals)
                        break;
                for (p = equals + 2; *p && *p != '"' && n < sizeof(value); p++) {
                        char ch = *p;

                        if (ch == '\\' && p[1]) {
                                p++;
                                ch = *p == 'n' ? '\n' : *p;
                        }
                        value[n++] = ch;
                }
                if (*p != '"')
                        break;
                if (!first)
                        fputs(", ", out);
                first = false;
                print_json_string(out, info, (size_t)(equals - info));
                fputs(": ", out);
                print_json_string(out, value, n);
                info = p + 1;
                if (*info == ',')
                        info++;
        }
        fputc('}', out);
}

void metrics_print_json(const struct metrics *s, FILE *out)
{
        locale_t c, old = locale_enter(&c);

        fputc('{', out);
        for (const struct row *row = rows; row < rows + ARRAY_SIZE(rows); row++) {
                bool first = true;

                fprintf(out, "%s\"%s%s%s\": ", row == rows ? "" : ", ", row->prefix, row->name,
                        row_suffix(row));
                if (row->kind == INFO) {
                        print_json_info(out, row_info(row, s));
                        continue;
                }
                if (!row->label) {
                        print_json_number(out, row_number(row, s, 0));
                        continue;
                }
                fputc('{', out);
                for (unsigned i = 0; i < row->n; i++) {
                        const char *value = row->value(s, i);

                        if (!value)
                                continue;
                        if (!first)
                                fputs(", ", out);
                        first = false;
                        print_json_string(out, value, strlen(value));
                        fputs(": ", out);
                        if (row_is_histogram(row))
                                print_json_histogram(out, row, row_histogram(row, s, i));
                        else
                                print_json_number(out, row_number(row, s, i));
                }
                fputc('}', out);
        }
        fputs("}\n", out);
        locale_leave(c, old);
}

void metrics_walk(const struct metrics *s, const char *section, unsigned i,
                  void (*each)(void *userdata, const char *key, double value), void *userdata)
{
        size_t n = strlen(section);

        for (const struct row *row = rows; row < rows + ARRAY_SIZE(rows); row++)
                if ((row->kind == GAUGE || row->kind == COUNTER) &&
                    strncmp(row->member, section, n) == 0 && row->member[n] == '_' &&
                    (!row->label || strcmp(row->label, section) == 0))
                        each(userdata, row->member + n + 1, row_number(row, s, i));
}

void metrics_info_add(char *info, size_t room, const char *key, const char *value)
{
        size_t at = strlen(info);
        size_t start = at;
        int n;

        assert(at < room);
        n = snprintf(info + at, room - at, "%s%s=\"", at ? "," : "", key);
        if (n < 0 || (size_t)n >= room - at)
                goto too_long;
        at += (size_t)n;
        for (; *value; value++) {
                const char *escaped = *value == '\\'   ? "\\\\"
                                      : *value == '"'  ? "\\\""
                                      : *value == '\n' ? "\\n"
                                                       : NULL;
                size_t length = escaped ? 2 : 1;

                if (at + length + 2 > room) /* the closing quote and the NUL */
                        goto too_long;
                memcpy(info + at, escaped ? escaped : value, length);
                at += length;
        }
        if (at + 2 > room)
                goto too_long;
        memcpy(info + at, "\"", 2);
        return;

too_long:
        info[start] = '\0';
}
