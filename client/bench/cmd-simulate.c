/* SPDX-License-Identifier: Apache-2.0 */
/* simulate: computes the hit rate of a workload in caches of several sizes, by policy, or on a
 * fleet of hosts with a shared tier. Needs no daemon. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "commands.h"
#include "common.h"
#include "explain-report.h"
#include "fleet-report.h"
#include "human.h"
#include "plot-option.h"
#include "progress.h"
#include "simulate-arguments.h"
#include "simulate.h"
#include "table.h"
#include "units.h"

DEFINE_CLEANUP(struct workload *, workload_free);

enum { CHAT_REQUESTS = 10000, CELL_BYTES = SIMULATE_CELL_BYTES };

static double ratio(uint64_t part, uint64_t whole)
{
        return whole > 0 ? (double)part / (double)whole : 0;
}

struct run {
        const char *policy;
        const struct capacity *capacity;
        struct simulation_result result;
        struct simulation_result silent; /* with --liars: result if the liars give no hints */
};

static void add_writes(cJSON *object, const struct simulate_arguments *a,
                       const struct simulation_result *r)
{
        cJSON_AddNumberToObject(object, "blocks_written", (double)r->writes);
        if (a->block_bytes > 0)
                cJSON_AddNumberToObject(object, "bytes_written",
                                        (double)r->writes * (double)a->block_bytes);
        if (a->write_budget == 0)
                return;
        cJSON_AddNumberToObject(object, "write_budget", (double)a->write_budget);
        cJSON_AddNumberToObject(object, "refused_first", (double)r->refused_first);
        cJSON_AddNumberToObject(object, "refused_dry", (double)r->refused_dry);
}

static double others_ratio(const struct simulation_result *r)
{
        return ratio(r->blocks_hit - r->liars_hit, r->blocks_asked - r->liars_asked);
}

static double liars_ratio(const struct simulation_result *r)
{
        return ratio(r->liars_hit, r->liars_asked);
}

static void add_hints(cJSON *object, const struct simulate_arguments *a, const struct run *run)
{
        const struct announced_stats *s = &run->result.announced;

        if (a->announced + a->returns + a->stops + a->liars == 0)
                return;
        cJSON_AddNumberToObject(object, "announced", (double)s->made);
        cJSON_AddNumberToObject(object, "announced_true", (double)s->came_true);
        cJSON_AddNumberToObject(object, "announced_early", (double)s->early);
        cJSON_AddNumberToObject(object, "announced_late", (double)s->late);
        cJSON_AddNumberToObject(object, "announced_unmeasured", (double)s->unmeasured);
        cJSON_AddNumberToObject(object, "announced_disbelieved", (double)s->disbelieved);
        if (a->liars == 0)
                return;
        cJSON_AddNumberToObject(object, "others_hit_ratio", others_ratio(&run->result));
        cJSON_AddNumberToObject(object, "others_hit_ratio_silent", others_ratio(&run->silent));
        cJSON_AddNumberToObject(object, "liars_hit_ratio", liars_ratio(&run->result));
        cJSON_AddNumberToObject(object, "liars_hit_ratio_silent", liars_ratio(&run->silent));
}

static int report_json(const struct simulate_arguments *a, const struct run *runs, size_t n)
{
        _cleanup_(cJSON_Deletep) cJSON *array = cJSON_CreateArray();

        for (size_t i = 0; i < n; i++) {
                const struct simulation_result *r = &runs[i].result;
                cJSON *object = cJSON_CreateObject();

                cJSON_AddStringToObject(object, "policy", runs[i].policy);
                cJSON_AddNumberToObject(object, "capacity", runs[i].capacity->share);
                cJSON_AddNumberToObject(object, "capacity_blocks",
                                        (double)runs[i].capacity->blocks);
                if (runs[i].capacity->bytes > 0)
                        cJSON_AddNumberToObject(object, "capacity_bytes",
                                                (double)runs[i].capacity->bytes);
                cJSON_AddNumberToObject(object, "hit_ratio", ratio(r->blocks_hit, r->blocks_asked));
                cJSON_AddNumberToObject(object, "blocks_asked", (double)r->blocks_asked);
                cJSON_AddNumberToObject(object, "blocks_hit", (double)r->blocks_hit);
                cJSON_AddNumberToObject(object, "evictions", (double)r->evictions);
                if (strcmp(runs[i].policy, "opt") != 0) {
                        add_writes(object, a, r);
                        add_hints(object, a, &runs[i]);
                }
                cJSON_AddNumberToObject(object, "touches_per_second",
                                        r->seconds > 0 ? (double)r->touches / r->seconds : 0);
                cJSON_AddItemToArray(array, object);
        }
        return print_json(array);
}

/* Returns the bytes that the write budget allows during the whole workload. */
static double budget_bytes(const struct simulate_arguments *a, const struct simulation *s)
{
        const struct workload_request *requests = s->workload->requests;
        uint64_t ms = requests[s->workload->n_requests - 1].timestamp_ms - requests[0].timestamp_ms;

        return (double)a->write_budget * (double)ms / (24 * 3600 * 1e3);
}

static int print_writes(const struct simulate_arguments *a, const struct simulation *s,
                        const struct run *runs)
{
        char columns[SIMULATE_POLICIES + 2] = "r", cells[SIMULATE_POLICIES + 1][CELL_BYTES];
        char budget[HUMAN_BYTES];
        const char *row[TABLE_MAX_COLUMNS] = { "CAPACITY" };
        _cleanup_(text_table_freep) struct text_table *table = NULL;

        for (size_t p = 0; p < a->n_policies; p++) {
                columns[p + 1] = 'r';
                row[p + 1] = a->policies[p];
        }
        table = text_table_new(columns);
        if (!table)
                return complain_memory();
        text_table_add(table, row);
        for (size_t c = 0; c < a->n_capacities; c++) {
                capacity_text(&a->capacities[c], cells[0]);
                row[0] = cells[0];
                for (size_t p = 0; p < a->n_policies; p++) {
                        const struct simulation_result *r = &runs[c * a->n_policies + p].result;

                        if (strcmp(a->policies[p], "opt") == 0)
                                snprintf(cells[p + 1], CELL_BYTES, "-");
                        else
                                snprintf(cells[p + 1], CELL_BYTES, "%.1f %%",
                                         100 * (double)r->writes * (double)a->block_bytes /
                                                 budget_bytes(a, s));
                        row[p + 1] = cells[p + 1];
                }
                text_table_add(table, row);
        }
        units_bytes((uint64_t)budget_bytes(a, s), budget);
        printf("Written, of the budget of %s for the time that the workload takes:\n", budget);
        text_table_print(table, "  ", stdout);
        return EXIT_OK;
}

/* Prints the hits of the liars and of the other user, with the liars' hints and without them. */
static int print_liars(const struct simulate_arguments *a, const struct run *runs)
{
        _cleanup_(text_table_freep) struct text_table *table = text_table_new("rlrrrr");
        const char *head[] = { "CAPACITY", "POLICY", "OTHERS", "BEFORE", "LIARS", "BEFORE" };
        char cells[ARRAY_SIZE(head)][CELL_BYTES];
        const char *row[ARRAY_SIZE(head)];

        if (!table)
                return complain_memory();
        text_table_add(table, head);
        for (size_t i = 0; i < a->n_capacities * a->n_policies; i++) {
                const struct run *run = &runs[i];
                double ratios[] = { others_ratio(&run->result), others_ratio(&run->silent),
                                    liars_ratio(&run->result), liars_ratio(&run->silent) };

                if (strcmp(run->policy, "opt") == 0)
                        continue;
                capacity_text(run->capacity, cells[0]);
                row[0] = cells[0];
                row[1] = run->policy;
                for (size_t k = 0; k < ARRAY_SIZE(ratios); k++) {
                        snprintf(cells[k + 2], CELL_BYTES, "%.2f %%", 100 * ratios[k]);
                        row[k + 2] = cells[k + 2];
                }
                text_table_add(table, row);
        }
        printf("Hits by user, and before the liars gave hints:\n");
        text_table_print(table, "  ", stdout);
        return EXIT_OK;
}

static int report_text(const struct simulate_arguments *a, const struct simulation *s,
                       const struct run *runs)
{
        _cleanup_(text_table_freep) struct text_table *table = NULL;
        char columns[SIMULATE_POLICIES + 2] = "r", cells[SIMULATE_POLICIES + 1][CELL_BYTES];
        char requests[HUMAN_BYTES], asked[HUMAN_BYTES], distinct[HUMAN_BYTES];
        const char *row[TABLE_MAX_COLUMNS] = { "CAPACITY" };
        double touches = 0, seconds = 0;

        static_assert(SIMULATE_POLICIES + 1 <= TABLE_MAX_COLUMNS, "a column each");
        human_count(s->workload->n_requests, requests);
        human_count(s->workload->n_ids, asked);
        human_count(s->n_blocks, distinct);
        printf("%s requests for %s blocks, %s of them distinct. Hits, of the blocks asked for:\n",
               requests, asked, distinct);
        for (size_t p = 0; p < a->n_policies; p++) {
                columns[p + 1] = 'r';
                row[p + 1] = a->policies[p];
        }
        table = text_table_new(columns);
        if (!table)
                return complain_memory();
        text_table_add(table, row);
        for (size_t c = 0; c < a->n_capacities; c++) {
                capacity_text(&a->capacities[c], cells[0]);
                row[0] = cells[0];
                for (size_t p = 0; p < a->n_policies; p++) {
                        const struct simulation_result *r = &runs[c * a->n_policies + p].result;

                        snprintf(cells[p + 1], CELL_BYTES, "%.2f %%",
                                 100 * ratio(r->blocks_hit, r->blocks_asked));
                        row[p + 1] = cells[p + 1];
                        touches += (double)r->touches;
                        seconds += r->seconds;
                }
                text_table_add(table, row);
        }
        text_table_print(table, "  ", stdout);
        if (a->write_budget > 0 && print_writes(a, s, runs) != EXIT_OK)
                return EXIT_LOCAL;
        if (a->liars > 0 && print_liars(a, runs) != EXIT_OK)
                return EXIT_LOCAL;
        if (seconds > 0)
                printf("%.1f million touches a second of CPU time\n", touches / seconds / 1e6);
        return EXIT_OK;
}

static int by_size(const void *a, const void *b)
{
        const struct chart_point *x = a, *y = b;

        return (x->x > y->x) - (x->x < y->x);
}

/* Fills the line of a policy; `points` has one entry per capacity. */
static void fill_line(const struct simulate_arguments *a, const struct run *runs, size_t policy,
                      unsigned series, char (*marks)[CELL_BYTES], struct chart_point *points,
                      struct chart_line *ret)
{
        for (size_t c = 0; c < a->n_capacities; c++) {
                const struct run *run = &runs[c * a->n_policies + policy];
                const struct capacity *capacity = run->capacity;
                double percent = 100 * ratio(run->result.blocks_hit, run->result.blocks_asked);

                points[c] = (struct chart_point){ .x = capacity->share,
                                                  .y = percent,
                                                  .mark = marks[c] };
                snprintf(points[c].text, sizeof(points[c].text), "%s, %s: %.2f %%", run->policy,
                         capacity->text, percent);
        }
        qsort(points, a->n_capacities, sizeof(*points), by_size);
        *ret = (struct chart_line){ .series = series, .points = points, .n = a->n_capacities };
}

static const char *size_axis(const struct simulate_arguments *a)
{
        size_t shares = 0, bytes = 0;

        for (size_t c = 0; c < a->n_capacities; c++) {
                shares += a->capacities[c].is_share;
                bytes += a->capacities[c].bytes > 0;
        }
        if (shares == a->n_capacities)
                return "capacity, of the distinct blocks";
        if (bytes == a->n_capacities)
                return "capacity in bytes";
        return shares + bytes == 0
                       ? "capacity in blocks"
                       : "capacity: of the distinct blocks (%), in bytes (B), in blocks";
}

/* Plots as SVG into a->svg, or in characters. Returns an exit status. */
static int report_chart(const struct simulate_arguments *a, const struct simulation *s,
                        const struct run *runs, bool as_svg)
{
        enum { OF_LRU, OF_CQ, OF_OPT = CHART_GREY };
        static struct chart_point points[SIMULATE_POLICIES][SIMULATE_CAPACITIES];
        char marks[SIMULATE_CAPACITIES][CELL_BYTES], subtitle[192];
        char requests[HUMAN_BYTES], asked[HUMAN_BYTES], distinct[HUMAN_BYTES];
        struct chart_line lines[SIMULATE_POLICIES];
        struct chart_panel panel = {
                .title = "Hit ratio: hits, of the blocks asked for",
                .unit = "%",
                .lines = lines,
                .n_lines = a->n_policies,
                .x_title = size_axis(a),
        };
        struct chart chart = {
                .title = "Hit ratio by capacity", .subtitle = subtitle, .panels = &panel, .n = 1
        };

        for (size_t c = 0; c < a->n_capacities; c++)
                if (a->capacities[c].is_share || a->capacities[c].bytes > 0)
                        snprintf(marks[c], CELL_BYTES, "%s", a->capacities[c].text);
                else
                        human_count(a->capacities[c].blocks, marks[c]);
        for (size_t p = 0; p < a->n_policies; p++) {
                unsigned series = strcmp(a->policies[p], "opt") == 0   ? OF_OPT
                                  : strcmp(a->policies[p], "lru") == 0 ? OF_LRU
                                                                       : OF_CQ;

                chart.series[series] = a->policies[p];
                chart.is_line[series] = true;
                chart.is_dashed[series] = series == OF_OPT;
                fill_line(a, runs, p, series, marks, points[p], &lines[p]);
        }
        human_count(s->workload->n_requests, requests);
        human_count(s->workload->n_ids, asked);
        human_count(s->n_blocks, distinct);
        snprintf(subtitle, sizeof(subtitle), "%s requests for %s blocks, %s of them distinct",
                 requests, asked, distinct);
        if (as_svg)
                return plot_option_write(&chart, a->svg);
        chart_text(&chart, stdout);
        return EXIT_OK;
}

static int report(const struct simulate_arguments *a, const struct simulation *s,
                  const struct run *runs, size_t n, bool json)
{
        int status;

        if (a->svg) {
                status = report_chart(a, s, runs, true);
                if (status != EXIT_OK || strcmp(a->svg, "-") == 0)
                        return status;
        }
        status = json ? report_json(a, runs, n) : report_text(a, s, runs);
        return status == EXIT_OK && a->plots ? report_chart(a, s, runs, false) : status;
}

/* Reports that a simulation failed with the negative errno `r`. Returns an exit status. */
static int complain_failure(const char *policy, int r)
{
        return r == -ENOMEM ? complain_memory()
                            : complain(EXIT_LOCAL, "--policy %s: the simulation failed: %s", policy,
                                       strerror(-r));
}

static int simulate(struct simulate_arguments *a, const struct simulation *s, bool json)
{
        static struct run runs[SIMULATE_POLICIES * SIMULATE_CAPACITIES];
        struct progress progress;
        size_t n = 0;

        progress_init(&progress);
        for (size_t c = 0; c < a->n_capacities; c++) {
                if (!capacity_set_blocks(&a->capacities[c], a->block_bytes, s->n_blocks))
                        return complain(EXIT_WRONG_USAGE,
                                        "a cache of %s has no room for even one of the %u blocks; "
                                        "give a larger size",
                                        a->capacities[c].text, s->n_blocks);
                for (size_t p = 0; p < a->n_policies; p++, n++) {
                        uint64_t blocks = MIN(a->capacities[c].blocks, (uint64_t)s->n_blocks);
                        int r;

                        runs[n] = (struct run){ .policy = a->policies[p],
                                                .capacity = &a->capacities[c] };
                        progress_note(&progress,
                                      (double)n / (double)(a->n_capacities * a->n_policies),
                                      "simulated", n, "cache");
                        r = simulation_run(s, a->policies[p], (uint32_t)blocks, &runs[n].result);
                        if (r == 0 && a->liars > 0 && strcmp(a->policies[p], "opt") != 0)
                                r = simulation_run_silent(s, a->policies[p], (uint32_t)blocks,
                                                          &runs[n].silent);
                        if (r < 0)
                                return complain_failure(a->policies[p], r);
                }
        }
        progress_end(&progress);
        return report(a, s, runs, n, json);
}

/* Finds the number of a block by its id in decimal, or by the key that replay gives it, in
 * hexadecimal. Returns false if `text` is neither, or the workload does not have the block. */
static bool find_block(const struct simulation *s, const char *text, uint32_t *ret)
{
        struct kvcache_key key, other;
        bool is_key = strlen(text) == 2 * sizeof(key.bytes);
        char *end;
        uint64_t id;

        if (is_key ? key_parse(text, &key) < 0 : *text < '0' || *text > '9')
                return false;
        errno = 0;
        id = strtoull(text, &end, 10);
        if (!is_key && (*end != '\0' || errno == ERANGE))
                return false;
        for (size_t i = 0; i < s->workload->n_ids; i++) {
                if (is_key)
                        workload_key(s->workload, s->workload->ids[i], &other);
                if (is_key ? memcmp(&key, &other, sizeof(key)) == 0 : s->workload->ids[i] == id) {
                        *ret = s->blocks[i];
                        return true;
                }
        }
        return false;
}

static int explain(struct simulate_arguments *a, const struct simulation *s, bool json)
{
        _cleanup_(explanation_fini) struct explanation e = { 0 };
        struct capacity *c = &a->capacities[0];
        uint32_t block, blocks;
        int r;

        if (!find_block(s, a->explain, &block))
                return complain(EXIT_NOT_FOUND,
                                "--explain: no request asks for block '%s'; give an id of the "
                                "workload or a key of 64 hexadecimal digits",
                                a->explain);
        if (!capacity_set_blocks(c, a->block_bytes, s->n_blocks))
                return complain(EXIT_WRONG_USAGE,
                                "a cache of %s has no room for even one of the %u blocks; give a "
                                "larger size",
                                c->text, s->n_blocks);
        blocks = (uint32_t)MIN(c->blocks, (uint64_t)s->n_blocks);
        r = explanation_run(&e, s, a->policies[0], blocks, block);
        if (r < 0)
                return complain_failure(a->policies[0], r);
        return json ? explain_report_json(a, s, block, &e) : explain_report_text(a, s, block, &e);
}

static int report_fleet(const struct simulate_arguments *a, const struct fleet *f,
                        const struct fleet_result *results, bool json)
{
        int status;

        if (a->svg) {
                status = fleet_report_chart(a, f, results, true);
                if (status != EXIT_OK || strcmp(a->svg, "-") == 0)
                        return status;
        }
        status = json ? fleet_report_json(a, f, results) : fleet_report_text(a, f, results);
        return status == EXIT_OK && a->plots ? fleet_report_chart(a, f, results, false) : status;
}

static int simulate_fleet(struct simulate_arguments *a, const struct simulation *s, bool json)
{
        static struct fleet_result results[SIMULATE_HOSTS];
        _cleanup_(fleet_fini) struct fleet fleet = {
                .policy = a->policies[0],
                .shared = s->n_blocks,
                .write = a->write,
                .route = a->route,
                .lag_ns = (uint64_t)(a->lag * 1e9),
        };
        struct capacity *capacity = &a->capacities[0], *shared = &a->shared;

        if (!capacity_set_blocks(capacity, a->block_bytes, s->n_blocks))
                return complain(EXIT_WRONG_USAGE,
                                "a cache of %s has no room for even one of the %u blocks; give a "
                                "larger size",
                                capacity->text, s->n_blocks);
        if (a->shared_is_limited) {
                bool is_none = shared->bytes == 0 && shared->share == 0 && shared->blocks == 0;

                if (!is_none && !capacity_set_blocks(shared, a->block_bytes, s->n_blocks))
                        return complain(EXIT_WRONG_USAGE,
                                        "a shared tier of %s has no room for even one of the %u "
                                        "blocks; give a larger size",
                                        shared->text, s->n_blocks);
                fleet.shared = (uint32_t)MIN(shared->blocks, (uint64_t)s->n_blocks);
        }
        fleet.capacity = (uint32_t)MIN(capacity->blocks, (uint64_t)s->n_blocks);
        if (fleet_init(&fleet, s) < 0)
                return complain_memory();
        for (size_t i = 0; i < a->n_hosts; i++) {
                int r = fleet_run(&fleet, a->hosts[i], &results[i]);

                if (r < 0)
                        return complain_failure(fleet.policy, r);
        }
        return report_fleet(a, &fleet, results, json);
}

static int run_simulate(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        _cleanup_(workload_freep) struct workload *workload = NULL;
        struct simulate_arguments a = { 0 };
        struct simulation s;
        bool end;
        int status = simulate_read_arguments(ctl, self, argc, argv, &a, &end);

        if (end)
                return status;
        status = workload_source_load(&a.source, CHAT_REQUESTS, &workload);
        if (status != EXIT_OK)
                return status;
        switch (simulation_init(&s, workload)) {
        case 0:
                break;
        case -E2BIG:
                return complain(EXIT_BAD_INPUT,
                                "the workload has more blocks than can be simulated; use "
                                "--requests to simulate only its first requests");
        default:
                return complain_memory();
        }
        s.announced = a.announced;
        s.returns = a.returns;
        s.stops = a.stops;
        s.liars = a.liars;
        s.write_budget = a.write_budget;
        s.block_bytes = a.block_bytes;
        if (s.n_blocks == 0)
                status = complain(EXIT_BAD_INPUT,
                                  "the workload is empty: no request asks for a block");
        else if (a.write_budget > 0 && budget_bytes(&a, &s) < 1)
                status = complain(
                        EXIT_BAD_INPUT,
                        "--write-budget: the timestamps of all requests lie so close that the "
                        "budget allows no byte");
        else if (a.lag > 0 && s.times_ns[workload->n_requests - 1] == 0)
                status = complain(EXIT_BAD_INPUT,
                                  "--lag: all requests have the same timestamp, so that no event "
                                  "would arrive");
        else if (a.explain)
                status = explain(&a, &s, ctl->json);
        else
                status = a.n_hosts > 0 ? simulate_fleet(&a, &s, ctl->json)
                                       : simulate(&a, &s, ctl->json);
        simulation_fini(&s);
        return status;
}

const struct command command_simulate = {
        .name = "simulate",
        .arguments = "TRACE | --synthetic chat",
        .summary =
                "compute the hit ratio of caches of several sizes and policies, without a daemon",
        .help = "Plays the requests of a block trace against the daemon's own eviction policies,\n"
                "without data, and prints the hit ratio for each size of the cache. A request "
                "hits\n"
                "its longest cached prefix; then its missing blocks are cached or, with\n"
                "--write-budget, those that the daemon's admission policy accepts. All blocks are "
                "of\n"
                "one size, and the cache is empty at first. TRACE is as for replay. With --hosts: "
                "how\n"
                "much a tier adds that the hosts of a fleet share, how much is read from it and\n"
                "written to it, and from which rate loading from it beats computing. With --json: "
                "an\n"
                "array, an object for each size and policy, or for each number of hosts; ratios "
                "from\n"
                "0 to 1.\n",
        .options = simulate_options,
        .run = run_simulate,
};
