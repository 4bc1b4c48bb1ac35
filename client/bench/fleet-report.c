/* SPDX-License-Identifier: Apache-2.0 */
#include "fleet-report.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "checked.h"
#include "common.h"
#include "human.h"
#include "plot-option.h"
#include "table.h"
#include "units.h"

enum { CELL_BYTES = SIMULATE_CELL_BYTES };

static const char *const write_names[] = {
        [FLEET_WRITE_NEVER] = "never", [FLEET_WRITE_REUSED] = "reused", [FLEET_WRITE_ALL] = "all"
};
static const char *const route_names[] = {
        [FLEET_ROUTE_SESSION] = "session",
        [FLEET_ROUTE_RANDOM] = "random",
        [FLEET_ROUTE_EVENTS] = "events",
};

/* Figures of the shared tier, in bytes, or in blocks if the size of a block is not known. NAN: not
 * known. */
struct figures {
        /* Bytes or blocks per second: read from the shared tier on average and in the busiest
         * window; written to the shared tier. */
        double read, busiest, written;

        double stored;     /* size of the shared tier's contents at the end */
        double saved_s;    /* time of computing that hits in the shared tier save, s */
        double break_even; /* rate of one load from which loading is faster than computing, in bytes
                              per second; INFINITY: loading is never faster; NAN: there are no
                              loads, or the rate of computing is not known */
};

static double ratio(uint64_t part, uint64_t whole)
{
        return whole > 0 ? (double)part / (double)whole : 0;
}

/* Returns the skew of the work: the number of blocks that the busiest host computes, divided by
 * the mean of all hosts. Returns 1 if no host computes a block. */
static double skew_of(const struct simulate_arguments *a, size_t run, const struct fleet_result *r)
{
        uint64_t computed = r->blocks_asked - r->blocks_hit;

        return computed > 0 ? (double)r->most_computed * a->hosts[run] / (double)computed : 1;
}

static double trace_seconds(const struct fleet *f)
{
        const struct workload *w = f->simulation->workload;
        uint64_t begin_ms = w->requests[0].timestamp_ms;
        uint64_t end_ms = w->requests[w->n_requests - 1].timestamp_ms;

        return (double)(end_ms - MIN(begin_ms, end_ms)) / 1e3;
}

/* Computes the figures. The time of all loads is the sum of their latencies plus their bytes
 * divided by the rate of a load; the time of computing the same blocks is their tokens divided
 * by the rate of prefill. */
static void compute_figures(const struct simulate_arguments *a, const struct fleet *f,
                            const struct fleet_result *r, struct figures *ret)
{
        double unit = a->block_bytes > 0 ? (double)a->block_bytes : 1;
        double seconds = trace_seconds(f), bytes = (double)r->blocks_read * unit, left_s;

        *ret = (struct figures){
                .read = seconds > 0 ? bytes / seconds : NAN,
                .busiest = seconds > 0 ? (double)r->busiest_read * unit * 1e3 /
                                                 MIN(seconds * 1e3, (double)FLEET_WINDOW_MS)
                                       : NAN,
                .written = seconds > 0 ? (double)r->blocks_written * unit / seconds : NAN,
                .stored = (double)r->blocks_stored * unit,
                .saved_s = NAN,
                .break_even = NAN,
        };
        if (a->prefill_rate == 0)
                return;
        ret->saved_s = (double)(r->blocks_hit - r->blocks_hit_local) * (double)a->block_tokens /
                       a->prefill_rate;
        left_s = ret->saved_s - (double)r->loads * a->remote_latency;
        if (r->loads > 0)
                ret->break_even = left_s > 0 ? bytes / left_s : INFINITY;
}

/* --- text --- */

static void rate_text(const struct simulate_arguments *a, double rate, char ret[static CELL_BYTES])
{
        if (isnan(rate))
                snprintf(ret, CELL_BYTES, "-");
        else if (isinf(rate))
                snprintf(ret, CELL_BYTES, "never");
        else if (a->block_bytes == 0)
                snprintf(ret, CELL_BYTES, "%.1f blocks/s", rate);
        else if (rate >= 1e9)
                snprintf(ret, CELL_BYTES, "%.2f GB/s", rate / 1e9);
        else
                snprintf(ret, CELL_BYTES, "%.1f MB/s", rate / 1e6);
}

static void stored_text(const struct simulate_arguments *a, double stored,
                        char ret[static CELL_BYTES])
{
        char text[HUMAN_BYTES];

        if (a->block_bytes > 0)
                snprintf(ret, CELL_BYTES, "%s", units_bytes((uint64_t)stored, text));
        else
                snprintf(ret, CELL_BYTES, "%s blocks", human_count((uint64_t)stored, text));
}

static void print_head(const struct simulate_arguments *a, const struct fleet *f,
                       const struct fleet_result *result)
{
        char requests[HUMAN_BYTES], asked[HUMAN_BYTES], distinct[HUMAN_BYTES];
        char sessions[HUMAN_BYTES], capacity[CELL_BYTES], shared[CELL_BYTES] = "unlimited";

        human_count(f->simulation->workload->n_requests, requests);
        human_count(result->blocks_asked, asked);
        human_count(f->simulation->n_blocks, distinct);
        human_things(f->n_sessions, "session", sessions);
        capacity_text(&a->capacities[0], capacity);
        if (a->shared_is_limited && a->shared.blocks == 0)
                snprintf(shared, sizeof(shared), "none");
        else if (a->shared_is_limited)
                capacity_text(&a->shared, shared);
        printf("%s requests for %s blocks, %s of them distinct, in %s.\n", requests, asked,
               distinct, sessions);
        printf("A host's cache, in blocks: %s, %s. The shared tier: %s, written: %s. Route: "
               "%s.\n",
               capacity, a->policies[0], shared, write_names[a->write], route_names[a->route]);
        printf("Hits, of the blocks asked for; one cache for everything would hit %.2f %%:\n",
               100 * ratio(f->blocks_bound, result->blocks_asked));
}

static void print_notes(const struct simulate_arguments *a, const struct fleet *f,
                        const struct fleet_result *results)
{
        char time[HUMAN_BYTES], tokens[HUMAN_BYTES];
        double touches = 0, seconds = 0;

        human_seconds(trace_seconds(f), time);
        if (a->route == FLEET_ROUTE_EVENTS) {
                char lag[HUMAN_BYTES];

                human_seconds(a->lag, lag);
                printf("EXPECTED: blocks that the router, which hears of changes after %s, "
                       "believed to "
                       "be on\nthe host; STALE: those of them that the host had evicted.\n",
                       lag);
        }
        printf("SKEW is the work of the busiest host, in blocks computed, over the mean.\n");
        printf("LOCAL is what there is without a shared tier; SHARED is what the tier adds.\n"
               "READ, its busiest minute, and WRITTEN are those of all hosts together, at the pace "
               "of the workload (%s).\n",
               time);
        if (a->prefill_rate > 0) {
                human_count((uint64_t)a->prefill_rate, tokens);
                printf("BREAK-EVEN: the rate that a load must get, after %g ms, to beat computing "
                       "at %s tokens a second.\n",
                       a->remote_latency * 1e3, tokens);
        }
        for (size_t i = 0; i < a->n_hosts; i++) {
                touches += (double)results[i].touches;
                seconds += results[i].seconds;
        }
        if (seconds > 0)
                printf("%.1f million touches a second of CPU time\n", touches / seconds / 1e6);
}

static void percent_text(uint64_t part, uint64_t whole, char ret[static CELL_BYTES])
{
        snprintf(ret, CELL_BYTES, "%.2f %%", 100 * ratio(part, whole));
}

enum { COLUMNS = 12 };
static_assert((int)COLUMNS <= (int)TABLE_MAX_COLUMNS, "a column each");

/* Adds a row with the cells of all columns, except those that the arguments do not have: blocks
 * that the router expected and that were stale, without --route events; the rate of breaking even,
 * without --prefill-rate. */
static void add_row(struct text_table *table, const struct simulate_arguments *a,
                    const char *const cells[static COLUMNS])
{
        enum { EXPECTED = 5, STALE = 6, BREAK_EVEN = 11 };
        const char *row[TABLE_MAX_COLUMNS] = { NULL };
        size_t n = 0;

        for (size_t i = 0; i < COLUMNS; i++) {
                if (a->route != FLEET_ROUTE_EVENTS && (i == EXPECTED || i == STALE))
                        continue;
                if (a->prefill_rate == 0 && i == BREAK_EVEN)
                        continue;
                row[n++] = cells[i];
        }
        text_table_add(table, row);
}

int fleet_report_text(const struct simulate_arguments *a, const struct fleet *f,
                      const struct fleet_result *results)
{
        static const char *const heads[COLUMNS] = { "HOSTS",   "LOCAL",    "SHARED", "TOTAL",
                                                    "SKEW",    "EXPECTED", "STALE",  "READ",
                                                    "BUSIEST", "WRITTEN",  "STORED", "BREAK-EVEN" };
        size_t columns = COLUMNS - (a->prefill_rate == 0) - 2 * (a->route != FLEET_ROUTE_EVENTS);
        _cleanup_(text_table_freep) struct text_table *table =
                text_table_new(&"rrrrrrrrrrrr"[COLUMNS - columns]);

        if (!table)
                return complain_memory();
        add_row(table, a, heads);
        for (size_t i = 0; i < a->n_hosts; i++) {
                const struct fleet_result *r = &results[i];
                char texts[COLUMNS][CELL_BYTES];
                const char *cells[COLUMNS];
                struct figures figures;

                compute_figures(a, f, r, &figures);
                snprintf(texts[0], CELL_BYTES, "%u", a->hosts[i]);
                percent_text(r->blocks_hit_local, r->blocks_asked, texts[1]);
                percent_text(r->blocks_hit - r->blocks_hit_local, r->blocks_asked, texts[2]);
                percent_text(r->blocks_hit, r->blocks_asked, texts[3]);
                snprintf(texts[4], CELL_BYTES, "%.2f", skew_of(a, i, r));
                percent_text(r->blocks_expected, r->blocks_asked, texts[5]);
                percent_text(r->blocks_stale, r->blocks_asked, texts[6]);
                rate_text(a, figures.read, texts[7]);
                rate_text(a, figures.busiest, texts[8]);
                rate_text(a, figures.written, texts[9]);
                stored_text(a, figures.stored, texts[10]);
                rate_text(a, figures.break_even, texts[11]);
                for (size_t k = 0; k < COLUMNS; k++)
                        cells[k] = texts[k];
                add_row(table, a, cells);
        }
        print_head(a, f, &results[0]);
        text_table_print(table, "  ", stdout);
        print_notes(a, f, results);
        return EXIT_OK;
}

/* --- JSON --- */

static void add_setting(cJSON *object, const struct simulate_arguments *a, const struct fleet *f)
{
        cJSON_AddStringToObject(object, "policy", a->policies[0]);
        cJSON_AddNumberToObject(object, "capacity", a->capacities[0].share);
        cJSON_AddNumberToObject(object, "capacity_blocks", (double)a->capacities[0].blocks);
        if (a->capacities[0].bytes > 0)
                cJSON_AddNumberToObject(object, "capacity_bytes", (double)a->capacities[0].bytes);
        cJSON_AddStringToObject(object, "route", route_names[a->route]);
        cJSON_AddStringToObject(object, "remote_write", write_names[a->write]);
        json_add_number(object, "shared_blocks",
                        a->shared_is_limited ? (double)a->shared.blocks : INFINITY);
        cJSON_AddNumberToObject(object, "sessions", f->n_sessions);
}

static void add_bytes(cJSON *object, const struct simulate_arguments *a, const struct fleet *f,
                      const struct fleet_result *r)
{
        struct figures figures;

        compute_figures(a, f, r, &figures);
        if (a->block_bytes > 0) {
                double unit = (double)a->block_bytes;

                cJSON_AddNumberToObject(object, "bytes_read", (double)r->blocks_read * unit);
                cJSON_AddNumberToObject(object, "bytes_written", (double)r->blocks_written * unit);
                cJSON_AddNumberToObject(object, "bytes_stored", figures.stored);
                json_add_number(object, "bytes_read_per_second", figures.read);
                json_add_number(object, "bytes_read_per_second_busiest", figures.busiest);
                json_add_number(object, "bytes_written_per_second", figures.written);
        }
        if (a->prefill_rate > 0) {
                json_add_number(object, "prefill_seconds_saved", figures.saved_s);
                json_add_number(object, "break_even_bytes_per_second", figures.break_even);
        }
}

int fleet_report_json(const struct simulate_arguments *a, const struct fleet *f,
                      const struct fleet_result *results)
{
        _cleanup_(cJSON_Deletep) cJSON *array = cJSON_CreateArray();

        for (size_t i = 0; i < a->n_hosts; i++) {
                const struct fleet_result *r = &results[i];
                cJSON *object = cJSON_CreateObject();

                cJSON_AddNumberToObject(object, "hosts", a->hosts[i]);
                add_setting(object, a, f);
                cJSON_AddNumberToObject(object, "hit_ratio", ratio(r->blocks_hit, r->blocks_asked));
                cJSON_AddNumberToObject(object, "hit_ratio_local",
                                        ratio(r->blocks_hit_local, r->blocks_asked));
                cJSON_AddNumberToObject(
                        object, "hit_ratio_shared",
                        ratio(r->blocks_hit - r->blocks_hit_local, r->blocks_asked));
                cJSON_AddNumberToObject(object, "hit_ratio_bound",
                                        ratio(f->blocks_bound, r->blocks_asked));
                cJSON_AddNumberToObject(object, "blocks_asked", (double)r->blocks_asked);
                cJSON_AddNumberToObject(object, "blocks_hit", (double)r->blocks_hit);
                cJSON_AddNumberToObject(object, "blocks_hit_local", (double)r->blocks_hit_local);
                cJSON_AddNumberToObject(object, "loads", (double)r->loads);
                cJSON_AddNumberToObject(object, "blocks_read", (double)r->blocks_read);
                cJSON_AddNumberToObject(object, "blocks_written", (double)r->blocks_written);
                cJSON_AddNumberToObject(object, "blocks_stored", (double)r->blocks_stored);
                cJSON_AddNumberToObject(object, "shared_evictions", (double)r->evictions);
                cJSON_AddNumberToObject(object, "seconds", trace_seconds(f));
                cJSON_AddNumberToObject(object, "skew", skew_of(a, i, r));
                if (a->route == FLEET_ROUTE_EVENTS) {
                        cJSON_AddNumberToObject(object, "lag", a->lag);
                        cJSON_AddNumberToObject(object, "blocks_expected",
                                                (double)r->blocks_expected);
                        cJSON_AddNumberToObject(object, "blocks_stale", (double)r->blocks_stale);
                }
                add_bytes(object, a, f, r);
                cJSON_AddNumberToObject(object, "touches_per_second",
                                        r->seconds > 0 ? (double)r->touches / r->seconds : 0);
                cJSON_AddItemToArray(array, object);
        }
        return print_json(array);
}

/* --- the plot --- */

enum { OF_LOCAL = 0, OF_TOTAL = 1, OF_READ = 2, OF_BOUND = CHART_GREY, OF_WRITTEN = 4 };
enum { HITS = 3, LINES = 5 }; /* HITS: lines of the first panel; LINES: lines of both panels */
static_assert((int)OF_WRITTEN < (int)CHART_SERIES, "a colour each");

static const struct {
        unsigned series;
        const char *name;
} plot_lines[LINES] = { { OF_LOCAL, "without a shared tier" },
                        { OF_TOTAL, "with a shared tier" },
                        { OF_BOUND, "one cache for everything" },
                        { OF_READ, "read" },
                        { OF_WRITTEN, "written" } };

static int by_hosts(const void *a, const void *b)
{
        const struct chart_point *x = a, *y = b;

        return (x->x > y->x) - (x->x < y->x);
}

/* Fills a line; `points` has one entry per number of hosts. */
static void fill_line(const struct simulate_arguments *a, const struct fleet *f,
                      const struct fleet_result *results, size_t line, double divisor,
                      const char *unit, char (*marks)[CELL_BYTES], struct chart_point *points)
{
        for (size_t i = 0; i < a->n_hosts; i++) {
                const struct fleet_result *r = &results[i];
                struct figures figures;
                double y;

                compute_figures(a, f, r, &figures);
                switch (plot_lines[line].series) {
                case OF_LOCAL:
                        y = 100 * ratio(r->blocks_hit_local, r->blocks_asked);
                        break;
                case OF_TOTAL:
                        y = 100 * ratio(r->blocks_hit, r->blocks_asked);
                        break;
                case OF_BOUND:
                        y = 100 * ratio(f->blocks_bound, r->blocks_asked);
                        break;
                case OF_READ:
                        y = figures.read / divisor;
                        break;
                default:
                        y = figures.written / divisor;
                }
                points[i] = (struct chart_point){ .x = a->hosts[i], .y = y, .mark = marks[i] };
                snprintf(points[i].text, sizeof(points[i].text), "%s, %s: %.2f %s",
                         plot_lines[line].name, marks[i], y, unit);
        }
        qsort(points, a->n_hosts, sizeof(*points), by_hosts);
}

static double most_moved(const struct simulate_arguments *a, const struct fleet *f,
                         const struct fleet_result *results)
{
        double most = 0;

        for (size_t i = 0; i < a->n_hosts; i++) {
                struct figures figures;

                compute_figures(a, f, &results[i], &figures);
                most = MAX(most, MAX(figures.read, figures.written));
        }
        return most;
}

int fleet_report_chart(const struct simulate_arguments *a, const struct fleet *f,
                       const struct fleet_result *results, bool as_svg)
{
        static struct chart_point points[LINES][SIMULATE_HOSTS];
        static char marks[SIMULATE_HOSTS][CELL_BYTES];
        bool is_in_bytes = a->block_bytes > 0, has_rates = trace_seconds(f) > 0;
        bool is_large = is_in_bytes && most_moved(a, f, results) >= 1e9;
        char subtitle[256], requests[HUMAN_BYTES], capacity[CELL_BYTES];
        struct chart_line lines[LINES];
        struct chart_panel panels[] = {
                { .title = "Hit ratio: hits, of the blocks asked for",
                  .unit = "%",
                  .lines = lines,
                  .n_lines = HITS,
                  .x_title = "hosts" },
                { .title = is_in_bytes ? "Moved from and to the shared tier, all hosts together"
                                       : "Blocks moved from and to the shared tier a second, all "
                                         "hosts together",
                  .unit = is_large      ? "GB/s"
                          : is_in_bytes ? "MB/s"
                                        : "",
                  .lines = lines + HITS,
                  .n_lines = LINES - HITS,
                  .x_title = "hosts" },
        };
        struct chart chart = { .title = "A shared tier, by the number of hosts",
                               .subtitle = subtitle,
                               .panels = panels,
                               .n = has_rates ? 2 : 1 };

        for (size_t i = 0; i < a->n_hosts; i++)
                snprintf(marks[i], sizeof(marks[i]), "%u", a->hosts[i]);
        for (size_t l = 0; l < (has_rates ? LINES : HITS); l++) {
                unsigned series = plot_lines[l].series;
                double divisor = l < HITS ? 1 : is_large ? 1e9 : is_in_bytes ? 1e6 : 1;

                fill_line(a, f, results, l, divisor, panels[l < HITS ? 0 : 1].unit, marks,
                          points[l]);
                lines[l] = (struct chart_line){ series, points[l], a->n_hosts };
                chart.series[series] = plot_lines[l].name;
                chart.is_line[series] = true;
                chart.is_dashed[series] = series == OF_BOUND;
        }
        human_count(f->simulation->workload->n_requests, requests);
        capacity_text(&a->capacities[0], capacity);
        snprintf(subtitle, sizeof(subtitle),
                 "%s requests, route: %s; a host's cache: %s blocks, %s; written: %s", requests,
                 route_names[a->route], capacity, a->policies[0], write_names[a->write]);
        if (as_svg)
                return plot_option_write(&chart, a->svg);
        chart_text(&chart, stdout);
        return EXIT_OK;
}
