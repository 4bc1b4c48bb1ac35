/* SPDX-License-Identifier: Apache-2.0 */
#include "snapshot.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "checked.h"
#include "text.h"

enum { PLACE_BYTES = 64, MEMBER_BYTES = PLACE_BYTES + 64, NAME_BYTES = 64 };

static const double most_count = 9007199254740992.0; /* 2^53: a double holds it exactly */
static const double most_seconds = 1e12;

DEFINE_CLEANUP(cJSON *, cJSON_Delete);

static void fclosep(FILE **f)
{
        if (*f)
                fclose(*f);
}

struct reader {
        const char *what;
        char *error;
        bool no_memory; /* the fault is a lack of memory */
};

__attribute__((format(printf, 3, 4))) static bool wrong(struct reader *r, const char *place,
                                                        const char *format, ...)
{
        int n = snprintf(r->error, SNAPSHOT_ERROR_BYTES, "%s: %s%s", r->what, place,
                         *place ? ": " : "");
        size_t used = MIN((size_t)MAX(n, 0), (size_t)SNAPSHOT_ERROR_BYTES - 1);
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(r->error + used, SNAPSHOT_ERROR_BYTES - used, format, arguments);
        va_end(arguments);
        text_clean(r->error);
        return false;
}

static bool wrong_memory(struct reader *r)
{
        r->no_memory = true;
        return wrong(r, "", "out of memory");
}

/* --- members of an object --- */

enum kind { COUNT, SECONDS, FLAG, TEXT, OBJECT, ARRAY };

struct member {
        const char *name;
        enum kind kind;
        size_t offset; /* offset of the target: a uint64_t, double, bool, char[SNAPSHOT_TEXT] or
                          pointer to cJSON, by `kind` */
        bool optional;
};

static bool read_count(struct reader *r, const cJSON *item, const char *place, uint64_t *ret)
{
        double value = item->valuedouble;

        if (!cJSON_IsNumber(item))
                return wrong(r, place, "is not a number");
        if (!(value >= 0 && value <= most_count) || value != floor(value))
                return wrong(r, place, "%g is not a whole number from 0 to 2^53", value);
        *ret = (uint64_t)value;
        return true;
}

static bool read_seconds(struct reader *r, const cJSON *item, const char *place, double *ret)
{
        if (!cJSON_IsNumber(item))
                return wrong(r, place, "is not a number");
        if (!(item->valuedouble >= 0 && item->valuedouble <= most_seconds))
                return wrong(r, place, "%g is not a number of seconds from 0 to %g",
                             item->valuedouble, most_seconds);
        *ret = item->valuedouble;
        return true;
}

static bool read_text(struct reader *r, const cJSON *item, const char *place, char *ret)
{
        if (!cJSON_IsString(item))
                return wrong(r, place, "is not a string");
        if (strlen(item->valuestring) >= SNAPSHOT_TEXT)
                return wrong(r, place, "is longer than %d bytes", SNAPSHOT_TEXT - 1);
        strcpy(ret, item->valuestring);
        text_clean(ret);
        return true;
}

static bool read_member(struct reader *r, const cJSON *item, const char *place,
                        const struct member *m, void *into)
{
        void *at = (char *)into + m->offset;

        switch (m->kind) {
        case COUNT:
                return read_count(r, item, place, at);
        case SECONDS:
                return read_seconds(r, item, place, at);
        case FLAG:
                if (!cJSON_IsBool(item))
                        return wrong(r, place, "is not true or false");
                *(bool *)at = cJSON_IsTrue(item);
                return true;
        case TEXT:
                return read_text(r, item, place, at);
        case OBJECT:
                if (!cJSON_IsObject(item))
                        return wrong(r, place, "is not an object");
                break;
        case ARRAY:
                if (!cJSON_IsArray(item))
                        return wrong(r, place, "is not an array");
                break;
        }
        *(const cJSON **)at = item;
        return true;
}

/* Reads the members of an object into a structure; `n` is at most 32. Returns false after setting
 * the error. */
static bool read_members(struct reader *r, const cJSON *object, const char *place,
                         const struct member *members, size_t n, void *into)
{
        char at[MEMBER_BYTES];
        const cJSON *item;
        uint32_t seen = 0;

        if (!cJSON_IsObject(object))
                return wrong(r, place, "is not an object");
        cJSON_ArrayForEach(item, object)
        {
                size_t i = 0;

                while (i < n && strcmp(members[i].name, item->string) != 0)
                        i++;
                if (i == n)
                        continue;
                snprintf(at, sizeof(at), "%s%s%s", place, *place ? "." : "", members[i].name);
                if (seen & UINT32_C(1) << i)
                        return wrong(r, at, "is given twice");
                seen |= UINT32_C(1) << i;
                if (!read_member(r, item, at, &members[i], into))
                        return false;
        }
        for (size_t i = 0; i < n; i++)
                if (!members[i].optional && !(seen & UINT32_C(1) << i))
                        return wrong(r, place, "%s is missing", members[i].name);
        return true;
}

/* Finds the number of a name of transfer.h. Returns false after setting the error. */
static bool read_name(struct reader *r, const char *place, const char *member, const char *text,
                      const char *(*name_of)(unsigned), unsigned n, unsigned *ret)
{
        char at[MEMBER_BYTES];

        for (unsigned i = 0; i < n; i++)
                if (strcmp(name_of(i), text) == 0) {
                        *ret = i;
                        return true;
                }
        snprintf(at, sizeof(at), "%s.%s", place, member);
        return wrong(r, at, "'%s' is not known to this version", text);
}

/* --- layouts --- */

struct layout_members {
        char layout[SNAPSHOT_TEXT];
        struct snapshot_layout values;
};

#define OF(kind, type, member, ...)                                                                \
        {                                                                                          \
#member, kind, offsetof(struct type, member), __VA_ARGS__                          \
        }
#define OF_VALUES(member)                                                                          \
        {                                                                                          \
#member, COUNT, offsetof(struct layout_members, values.member), false              \
        }

static const struct member layout_members[] = {
        OF(TEXT, layout_members, layout, false),
        OF_VALUES(blocks),
        OF_VALUES(layers),
        OF_VALUES(outer),
        OF_VALUES(page_tokens),
        OF_VALUES(inner),
        OF_VALUES(dtype_bytes),
        OF_VALUES(alignment),
};

static bool read_layout(struct reader *r, const cJSON *item, const char *place,
                        struct snapshot_layout *ret)
{
        struct layout_members m = { 0 };

        if (!read_members(r, item, place, layout_members, ARRAY_SIZE(layout_members), &m) ||
            !read_name(r, place, "layout", m.layout, transfer_layout_name, TRANSFER_LAYOUTS,
                       &m.values.layout))
                return false;
        *ret = m.values;
        return true;
}

static bool read_layouts(struct reader *r, const cJSON *array, struct snapshot *s)
{
        int n = array ? cJSON_GetArraySize(array) : 0;
        const cJSON *item;

        if (n > SNAPSHOT_MAX_LAYOUTS)
                return wrong(r, "layouts", "has %d entries, which is more than %d", n,
                             SNAPSHOT_MAX_LAYOUTS);
        s->layouts = calloc((size_t)n + 1, sizeof(*s->layouts));
        if (!s->layouts)
                return wrong_memory(r);
        cJSON_ArrayForEach(item, array)
        {
                char place[PLACE_BYTES];

                snprintf(place, sizeof(place), "layouts[%zu]", s->n_layouts);
                if (!read_layout(r, item, place, &s->layouts[s->n_layouts]))
                        return false;
                s->n_layouts++;
        }
        return true;
}

/* --- metrics --- */

struct metric_members {
        char path[SNAPSHOT_TEXT], layout[SNAPSHOT_TEXT], technology[SNAPSHOT_TEXT];
        uint64_t transfer_count, region_count, total_blocks, total_bytes, device_bytes;
        uint64_t min_transfer_size, max_transfer_size;
        double latency_secs, busy_secs;
        const cJSON *errors, *size_histogram, *latency_histogram;
};

static const struct member metric_members[] = {
        OF(TEXT, metric_members, path, false),
        OF(TEXT, metric_members, layout, false),
        OF(TEXT, metric_members, technology, false),
        OF(COUNT, metric_members, transfer_count, false),
        OF(COUNT, metric_members, region_count, false),
        OF(COUNT, metric_members, total_blocks, false),
        OF(COUNT, metric_members, total_bytes, false),
        OF(COUNT, metric_members, device_bytes, false),
        OF(COUNT, metric_members, min_transfer_size, false),
        OF(COUNT, metric_members, max_transfer_size, false),
        OF(SECONDS, metric_members, latency_secs, false),
        OF(SECONDS, metric_members, busy_secs, false),
        OF(OBJECT, metric_members, errors, false),
        OF(ARRAY, metric_members, size_histogram, false),
        OF(ARRAY, metric_members, latency_histogram, false),
};

static bool read_errors(struct reader *r, const cJSON *object, const char *place,
                        struct transfer_counts *ret)
{
        struct member members[TRANSFER_RESULTS - 1];
        char at[MEMBER_BYTES];

        for (unsigned i = 1; i < TRANSFER_RESULTS; i++)
                members[i - 1] = (struct member){ transfer_result_name(i), COUNT,
                                                  i * sizeof(ret->errors[0]), false };
        snprintf(at, sizeof(at), "%s.errors", place);
        return read_members(r, object, at, members, ARRAY_SIZE(members), ret->errors);
}

/* Reads a histogram: [[bucket, count], ...] in ascending order of the buckets. Returns false after
 * setting the error. */
static bool read_histogram(struct reader *r, const cJSON *array, const char *place,
                           const char *name, uint64_t ret[static TRANSFER_BUCKETS])
{
        uint64_t next = 0, i = 0;
        const cJSON *pair;

        cJSON_ArrayForEach(pair, array)
        {
                char at[MEMBER_BYTES];
                uint64_t bucket = 0, count = 0;

                snprintf(at, sizeof(at), "%s.%s[%" PRIu64 "]", place, name, i++);
                if (!cJSON_IsArray(pair) || cJSON_GetArraySize(pair) != 2)
                        return wrong(r, at, "is not a pair of bucket and count");
                if (!read_count(r, pair->child, at, &bucket) ||
                    !read_count(r, pair->child->next, at, &count))
                        return false;
                if (bucket >= TRANSFER_BUCKETS)
                        return wrong(r, at, "there is no bucket %" PRIu64 "; they are 0 to %d",
                                     bucket, TRANSFER_BUCKETS - 1);
                if (bucket < next)
                        return wrong(r, at, "bucket %" PRIu64 " is out of order or given twice",
                                     bucket);
                next = bucket + 1;
                ret[bucket] = count;
        }
        return true;
}

static bool check_metric(struct reader *r, const char *place, const struct metric_members *m)
{
        if (m->transfer_count == 0 &&
            (m->total_bytes > 0 || m->total_blocks > 0 || m->region_count > 0))
                return wrong(r, place, "has bytes, blocks or regions, but no transfer");
        if (m->min_transfer_size > m->max_transfer_size)
                return wrong(r, place, "min_transfer_size is above max_transfer_size");
        return true;
}

static bool read_metric(struct reader *r, const cJSON *item, const char *place,
                        struct snapshot_metric *ret)
{
        struct metric_members m = { 0 };
        struct transfer_counts *c = &ret->counts;

        transfer_counts_init(c);
        if (!read_members(r, item, place, metric_members, ARRAY_SIZE(metric_members), &m) ||
            !read_name(r, place, "path", m.path, transfer_path_name, TRANSFER_PATHS, &ret->path) ||
            !read_name(r, place, "layout", m.layout, transfer_layout_name, TRANSFER_LAYOUTS,
                       &ret->layout) ||
            !read_name(r, place, "technology", m.technology, transfer_technology_name,
                       TRANSFER_TECHNOLOGIES, &ret->technology) ||
            !check_metric(r, place, &m) || !read_errors(r, m.errors, place, c) ||
            !read_histogram(r, m.size_histogram, place, "size_histogram", c->sizes) ||
            !read_histogram(r, m.latency_histogram, place, "latency_histogram", c->latencies))
                return false;
        c->transfers = m.transfer_count;
        c->blocks = m.total_blocks;
        c->regions = m.region_count;
        c->bytes = m.total_bytes;
        c->device_bytes = m.device_bytes;
        c->min_bytes = m.transfer_count ? m.min_transfer_size : UINT64_MAX;
        c->max_bytes = m.max_transfer_size;
        ret->latency_secs = m.latency_secs;
        ret->busy_secs = m.busy_secs;
        return true;
}

int snapshot_metric_compare(const struct snapshot_metric *x, const struct snapshot_metric *y)
{
        int order = strcmp(transfer_path_name(x->path), transfer_path_name(y->path));

        if (order == 0)
                order = strcmp(transfer_layout_name(x->layout), transfer_layout_name(y->layout));
        if (order == 0)
                order = strcmp(transfer_technology_name(x->technology),
                               transfer_technology_name(y->technology));
        return order;
}

static int compare_metrics(const void *a, const void *b)
{
        return snapshot_metric_compare(a, b);
}

static bool read_metrics(struct reader *r, const cJSON *array, struct snapshot *s)
{
        enum { MOST = TRANSFER_PATHS * TRANSFER_LAYOUTS * TRANSFER_TECHNOLOGIES };
        int n = cJSON_GetArraySize(array);
        const cJSON *item;

        if (n > MOST)
                return wrong(r, "metrics", "has %d entries, which is more than %d", n, MOST);
        s->metrics = calloc((size_t)n + 1, sizeof(*s->metrics));
        if (!s->metrics)
                return wrong_memory(r);
        cJSON_ArrayForEach(item, array)
        {
                struct snapshot_metric *metric = &s->metrics[s->n_metrics];
                char place[PLACE_BYTES];

                snprintf(place, sizeof(place), "metrics[%zu]", s->n_metrics);
                if (!read_metric(r, item, place, metric))
                        return false;
                for (size_t i = 0; i < s->n_metrics; i++)
                        if (compare_metrics(&s->metrics[i], metric) == 0)
                                return wrong(
                                        r, place,
                                        "has the same path, layout and technology as metrics[%zu]",
                                        i);
                s->n_metrics++;
        }
        qsort(s->metrics, s->n_metrics, sizeof(*s->metrics), compare_metrics);
        return true;
}

/* --- the snapshot --- */

struct top_members {
        char schema[SNAPSHOT_TEXT];
        const cJSON *host, *layouts, *metrics;
};

static const struct member schema_members[] = {
        OF(TEXT, top_members, schema, false),
};
static const struct member top_members[] = {
        OF(OBJECT, top_members, host, true),
        OF(ARRAY, top_members, layouts, true),
        OF(ARRAY, top_members, metrics, false),
};
static const struct member own_members[] = {
        OF(TEXT, snapshot, name, false),
        OF(FLAG, snapshot, active, false),
        OF(FLAG, snapshot, enabled, false),
        OF(FLAG, snapshot, idle, true),
        OF(TEXT, snapshot, created, false),
        OF(TEXT, snapshot, updated, false),
        OF(SECONDS, snapshot, enabled_secs, false),
};
static const struct member host_members[] = {
        OF(TEXT, snapshot, hostname, true),
        OF(TEXT, snapshot, kernel, true),
        OF(TEXT, snapshot, daemon_version, true),
        OF(COUNT, snapshot, cpus, true),
};

bool snapshot_name_valid(const char *name)
{
        size_t n = strlen(name);

        return n >= 1 && n <= NAME_BYTES && *name != '.' &&
               strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") ==
                       n;
}

static bool read_top(struct reader *r, const cJSON *json, struct snapshot *s)
{
        struct top_members m = { 0 };

        if (!read_members(r, json, "", schema_members, ARRAY_SIZE(schema_members), &m))
                return false;
        if (strcmp(m.schema, SNAPSHOT_SCHEMA) != 0)
                return wrong(r, "schema", "'%s' is not " SNAPSHOT_SCHEMA, m.schema);
        if (!read_members(r, json, "", top_members, ARRAY_SIZE(top_members), &m) ||
            !read_members(r, json, "", own_members, ARRAY_SIZE(own_members), s))
                return false;
        if (!snapshot_name_valid(s->name))
                return wrong(r, "name",
                             "'%s' is not the name of a session: use " SNAPSHOT_NAME_RULE, s->name);
        if (m.host && !read_members(r, m.host, "host", host_members, ARRAY_SIZE(host_members), s))
                return false;
        return read_layouts(r, m.layouts, s) && read_metrics(r, m.metrics, s);
}

/* Reports the line and column at which the parser stopped. */
static bool wrong_json(struct reader *r, const char *text, size_t bytes, const char *end)
{
        size_t at = end && end >= text ? MIN((size_t)(end - text), bytes) : 0;
        unsigned line = 1, column = 1;

        for (size_t i = 0; i < at; i++) {
                column = text[i] == '\n' ? 1 : column + 1;
                line += text[i] == '\n';
        }
        return wrong(r, "",
                     at >= bytes ? "line %u, column %u: the JSON ends too early"
                                 : "line %u, column %u: not JSON from here on",
                     line, column);
}

int snapshot_parse(const char *text, size_t bytes, const char *what, struct snapshot **ret,
                   char ret_error[static SNAPSHOT_ERROR_BYTES])
{
        struct reader r = { .what = what, .error = ret_error };
        _cleanup_(cJSON_Deletep) cJSON *json = NULL;
        _cleanup_(snapshot_freep) struct snapshot *s = calloc(1, sizeof(*s));
        const char *end = NULL;

        if (!s) {
                wrong_memory(&r);
                return -ENOMEM;
        }
        if (bytes > SNAPSHOT_MAX_BYTES) {
                wrong(&r, "", "is larger than %d MiB, which no session is",
                      SNAPSHOT_MAX_BYTES >> 20);
                return -EBADMSG;
        }
        errno = 0;
        json = cJSON_ParseWithLengthOpts(text, bytes, &end, false);
        if (!json && errno == ENOMEM) { /* malloc() sets it, and cJSON reports no reason */
                wrong_memory(&r);
                return -ENOMEM;
        }
        if (!json) {
                wrong_json(&r, text, bytes, end);
                return -EBADMSG;
        }
        while (end < text + bytes && strchr(" \t\r\n", *end) && *end)
                end++;
        if (end < text + bytes) {
                wrong_json(&r, text, bytes, end);
                return -EBADMSG;
        }
        if (!read_top(&r, json, s))
                return r.no_memory ? -ENOMEM : -EBADMSG;
        *ret = TAKE_PTR(s);
        return 0;
}

static int read_whole(FILE *f, char **ret, size_t *ret_bytes)
{
        _cleanup_(freep) char *text = NULL;
        size_t n = 0, room = 0;

        do {
                char *p;

                room = room ? room * 2 : 1 << 16;
                p = realloc(text, room);
                if (!p)
                        return -ENOMEM;
                text = p;
                errno = 0;
                n += fread(text + n, 1, room - n, f);
                if (ferror(f))
                        return errno ? -errno : -EIO;
        } while (n == room && n <= SNAPSHOT_MAX_BYTES);
        *ret = TAKE_PTR(text);
        *ret_bytes = n;
        return 0;
}

int snapshot_read(const char *file, snapshot_parser *parse, struct snapshot **ret,
                  char ret_error[static SNAPSHOT_ERROR_BYTES])
{
        bool standard = strcmp(file, "-") == 0;
        const char *what = standard ? "standard input" : file;
        struct reader reader = { .what = what, .error = ret_error };
        _cleanup_(fclosep) FILE *opened = standard ? NULL : fopen(file, "re");
        _cleanup_(freep) char *text = NULL;
        size_t bytes = 0;
        int r = 0;

        if (!standard && !opened)
                r = -errno;
        if (r == 0)
                r = read_whole(standard ? stdin : opened, &text, &bytes);
        if (r < 0) {
                wrong(&reader, "", "%s", strerror(-r));
                return r;
        }
        return parse(text, bytes, what, ret, ret_error);
}

void snapshot_name_host(struct snapshot *s, const char *version)
{
        struct utsname host;

        if (uname(&host) == 0) {
                snprintf(s->hostname, sizeof(s->hostname), "%s", host.nodename);
                snprintf(s->kernel, sizeof(s->kernel), "%s", host.release);
        }
        s->cpus = (uint64_t)MAX(sysconf(_SC_NPROCESSORS_ONLN), 1L);
        snprintf(s->daemon_version, sizeof(s->daemon_version), "%s", version);
}

void snapshot_name_time(uint64_t unix_ms, char ret[static SNAPSHOT_TEXT])
{
        time_t seconds = (time_t)(unix_ms / 1000);
        struct tm utc;
        size_t n = 0;

        if (gmtime_r(&seconds, &utc))
                n = strftime(ret, SNAPSHOT_TEXT, "%Y-%m-%dT%H:%M:%S", &utc);
        snprintf(ret + n, SNAPSHOT_TEXT - n, ".%03uZ", (unsigned)(unix_ms % 1000));
}

struct snapshot *snapshot_free(struct snapshot *s)
{
        if (s) {
                free(s->layouts);
                free(s->metrics);
                free(s);
        }
        return NULL;
}
