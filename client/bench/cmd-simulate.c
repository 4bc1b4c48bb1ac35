/* SPDX-License-Identifier: Apache-2.0 */
/* simulate: which share of its blocks a workload would find in caches of several sizes, by policy.
 * Needs no daemon. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "commands.h"
#include "common.h"
#include "human.h"
#include "session/chart.h"
#include "session/output.h"
#include "simulate.h"
#include "table.h"
#include "units.h"
#include "workload-source.h"

DEFINE_CLEANUP(struct workload *, workload_free);

enum { MAX_POLICIES = 8, MAX_CAPACITIES = 32, CHAT_REQUESTS = 10000, CELL_BYTES = 96 };

enum {
        OPTION_SYNTHETIC = OPTION_LONG,
        OPTION_SEED,
        OPTION_DISK,
        OPTION_ANNOUNCE,
        OPTION_BUDGET,
        OPTION_SVG
};

static const struct option_row simulate_options[] = {
        { 'p', "policy", "LIST",
          "what to evict by: lru (leaf first), cq (count queues, learns), or opt, the\n"
          "optimum of a cache that knows the future (default: lru,cq,opt)",
          "lru cq opt" },
        { 'c', "capacity", "LIST",
          "sizes of the cache: blocks, or with % a share of the distinct blocks of the\n"
          "workload (default: 1%,5%,10%,20%,50%)" },
        { OPTION_DISK, "disk", "LIST",
          "sizes of the cache in bytes, instead: 4TB,8TB; needs --bytes-per-block" },
        { OPTION_ANNOUNCE, "announce-ends", "SHARE",
          "announce that a session has ended after its last request, for this share\n"
          "of the sessions: 50%; cq evicts those first (default: 0%)" },
        { 'b', "bytes-per-block", "SIZE",
          "bytes of a block; kvcache-bench iosize computes those of a model" },
        { OPTION_BUDGET, "write-budget", "SIZE",
          "bytes a day that may be written, as of store.write_budget, by the timestamps\n"
          "of the workload: 20TB; needs --bytes-per-block (default: 0, no limit)" },
        { 'r', "requests", "N",
          "simulate the first N requests (default: the whole trace; synthetic: 10,000)" },
        { OPTION_SYNTHETIC, "synthetic", "KIND",
          "generate a workload instead of reading a trace; KIND: chat", "chat" },
        { OPTION_SEED, "seed", "N", "seed of the synthetic workload (default: 0)" },
        { OPTION_SVG, "svg", "FILE",
          "plot the hit ratio over the size of the cache, a line for each policy; \"-\":\n"
          "to standard output, in the place of the table" },
        { 0 },
};

/* A size of the cache, as it was asked for. */
struct capacity {
        char text[24];
        double share;   /* of the distinct blocks; with `is_share` */
        uint64_t bytes; /* of --disk, or 0 */
        uint64_t blocks;
        bool is_share;
};

struct arguments {
        struct workload_source source;
        const char *policies[MAX_POLICIES];
        struct capacity capacities[MAX_CAPACITIES];
        size_t n_policies, n_capacities;
        unsigned long long block_bytes, write_budget;
        double announced;
        const char *svg;
};

/* Calls `add` for each of a list with commas; false: it has said why not. */
static bool for_each(struct ctl *ctl, const struct command *self, const char *option,
                     const char *list, struct arguments *a,
                     bool (*add)(struct ctl *ctl, const struct command *self, const char *text,
                                 struct arguments *a))
{
        char text[24];

        for (const char *at = list;; at++) {
                size_t n = strcspn(at, ",");

                if (n == 0 || n >= sizeof(text)) {
                        ctl->exit_status = usage_error(self, "--%s: '%s' is not a list with commas",
                                                       option, list);
                        return false;
                }
                memcpy(text, at, n);
                text[n] = '\0';
                if (!add(ctl, self, text, a))
                        return false;
                at += n;
                if (*at == '\0')
                        return true;
        }
}

static bool add_policy(struct ctl *ctl, const struct command *self, const char *text,
                       struct arguments *a)
{
        static const char *const known[] = { "lru", "cq", "opt" };

        for (size_t i = 0; i < ARRAY_SIZE(known); i++)
                if (strcmp(known[i], text) == 0 && a->n_policies < MAX_POLICIES) {
                        a->policies[a->n_policies++] = known[i];
                        return true;
                }
        ctl->exit_status = usage_error(
                self, "--policy: '%s' is not known, or one too many; there are: lru, cq, opt",
                text);
        return false;
}

static struct capacity *new_capacity(struct ctl *ctl, const struct command *self, const char *text,
                                     struct arguments *a)
{
        struct capacity *c;

        if (a->n_capacities == MAX_CAPACITIES) {
                ctl->exit_status = usage_error(self, "'%s': more than %d sizes of the cache", text,
                                               MAX_CAPACITIES);
                return NULL;
        }
        c = &a->capacities[a->n_capacities++];
        *c = (struct capacity){ 0 };
        snprintf(c->text, sizeof(c->text), "%s", text);
        return c;
}

static bool add_capacity(struct ctl *ctl, const struct command *self, const char *text,
                         struct arguments *a)
{
        struct capacity *c = new_capacity(ctl, self, text, a);
        char number[sizeof(c->text)];
        size_t n = strlen(text);
        double value;

        if (!c)
                return false;
        c->is_share = text[n - 1] == '%';
        snprintf(number, sizeof(number), "%.*s", (int)(c->is_share ? n - 1 : n), text);
        if (human_parse_number(number, &value) == 0 && value > 0 &&
            (c->is_share ? value <= 100 : value >= 1 && value <= INT32_MAX)) {
                c->share = value / 100;
                c->blocks = c->is_share ? 0 : (uint64_t)value;
                return true;
        }
        ctl->exit_status = usage_error(
                self, "--capacity: '%s' is neither a number of blocks nor a share up to 100%%",
                text);
        return false;
}

static bool add_disk(struct ctl *ctl, const struct command *self, const char *text,
                     struct arguments *a)
{
        struct capacity *c = new_capacity(ctl, self, text, a);
        unsigned long long bytes;

        if (!c || !option_bytes(ctl, "--disk", text, &bytes))
                return false;
        c->bytes = bytes;
        return true;
}

static bool simulate_option(struct ctl *ctl, const struct command *self, int option,
                            const char *argument, struct arguments *a)
{
        switch (option) {
        case 'p':
                a->n_policies = 0;
                return for_each(ctl, self, "policy", argument, a, add_policy);
        case 'c':
                return for_each(ctl, self, "capacity", argument, a, add_capacity);
        case OPTION_DISK:
                return for_each(ctl, self, "disk", argument, a, add_disk);
        case 'b':
                return option_bytes(ctl, "--bytes-per-block", argument, &a->block_bytes);
        case OPTION_BUDGET:
                return option_bytes(ctl, "--write-budget", argument, &a->write_budget);
        case 'r':
                return option_count(ctl, "--requests", argument, 1, 1000000000,
                                    &a->source.requests);
        case OPTION_ANNOUNCE:
                return workload_source_share(ctl, self, "--announce-ends", argument, &a->announced);
        case OPTION_SVG:
                a->svg = argument;
                return true;
        case OPTION_SYNTHETIC:
                return workload_source_kind(ctl, self, argument, &a->source);
        case OPTION_SEED:
                return option_count(ctl, "--seed", argument, 0, UINT64_MAX, &a->source.seed);
        }
        return true;
}

/* EXIT_OK, or the status to end with; *ret_end says that this is it (help). */
static int read_arguments(struct ctl *ctl, const struct command *self, int argc, char **argv,
                          struct arguments *a, bool *ret_end)
{
        const char *argument;
        int r, first;

        *ret_end = true;
        while ((r = option_next(ctl, self, argc, argv, &argument, &first)) > 0)
                if (!simulate_option(ctl, self, r, argument, a))
                        return ctl->exit_status;
        if (r < 0)
                return ctl->exit_status;
        r = workload_source_operand(self, argc, argv, first, &a->source);
        if (r != EXIT_OK)
                return r;
        for (size_t i = 0; i < a->n_capacities; i++)
                if (a->capacities[i].bytes > 0 && a->block_bytes == 0)
                        return usage_error(self, "--disk needs --bytes-per-block");
        if (a->write_budget > 0 && a->block_bytes == 0)
                return usage_error(self, "--write-budget needs --bytes-per-block");
        if (ctl->json && a->svg && strcmp(a->svg, "-") == 0)
                return usage_error(self, "--svg - and --json both print to standard output");
        if ((a->n_policies == 0 && !for_each(ctl, self, "policy", "lru,cq,opt", a, add_policy)) ||
            (a->n_capacities == 0 &&
             !for_each(ctl, self, "capacity", "1%,5%,10%,20%,50%", a, add_capacity)))
                return ctl->exit_status;
        *ret_end = false;
        return EXIT_OK;
}

/* In blocks, once it is known how many there are. False: it is less than one. */
static bool set_blocks(struct capacity *c, const struct arguments *a, uint32_t distinct)
{
        if (c->is_share)
                c->blocks = MAX((uint64_t)floor(c->share * distinct), UINT64_C(1));
        else if (c->bytes > 0)
                c->blocks = c->bytes / a->block_bytes;
        if (!c->is_share)
                c->share = (double)c->blocks / distinct;
        return c->blocks > 0;
}

static double ratio(uint64_t part, uint64_t whole)
{
        return whole > 0 ? (double)part / (double)whole : 0;
}

struct run {
        const char *policy;
        const struct capacity *capacity;
        struct simulation_result result;
};

static void add_writes(cJSON *object, const struct arguments *a, const struct simulation_result *r)
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

static int report_json(const struct arguments *a, const struct run *runs, size_t n)
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
                if (strcmp(runs[i].policy, "opt") != 0)
                        add_writes(object, a, r);
                cJSON_AddNumberToObject(object, "touches_per_second",
                                        r->seconds > 0 ? (double)r->touches / r->seconds : 0);
                cJSON_AddItemToArray(array, object);
        }
        return print_json(array);
}

static void capacity_text(const struct capacity *c, char ret[static CELL_BYTES])
{
        char blocks[HUMAN_BYTES];

        human_count(c->blocks, blocks);
        if (c->is_share || c->bytes > 0)
                snprintf(ret, CELL_BYTES, "%s (%s)", c->text, blocks);
        else
                snprintf(ret, CELL_BYTES, "%s", blocks);
}

/* What may be written in the time that the workload takes. */
static double budget_bytes(const struct arguments *a, const struct simulation *s)
{
        const struct workload_request *requests = s->workload->requests;
        uint64_t ms = requests[s->workload->n_requests - 1].timestamp_ms - requests[0].timestamp_ms;

        return (double)a->write_budget * (double)ms / (24 * 3600 * 1e3);
}

static int print_writes(const struct arguments *a, const struct simulation *s,
                        const struct run *runs)
{
        char columns[MAX_POLICIES + 2] = "r", cells[MAX_POLICIES + 1][CELL_BYTES];
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

static int report_text(const struct arguments *a, const struct simulation *s,
                       const struct run *runs)
{
        _cleanup_(text_table_freep) struct text_table *table = NULL;
        char columns[MAX_POLICIES + 2] = "r", cells[MAX_POLICIES + 1][CELL_BYTES];
        char requests[HUMAN_BYTES], asked[HUMAN_BYTES], distinct[HUMAN_BYTES];
        const char *row[TABLE_MAX_COLUMNS] = { "CAPACITY" };
        double touches = 0, seconds = 0;

        static_assert(MAX_POLICIES + 1 <= TABLE_MAX_COLUMNS, "a column each");
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
        if (seconds > 0)
                printf("%.1f million touches a second of CPU time\n", touches / seconds / 1e6);
        return EXIT_OK;
}

static int by_size(const void *a, const void *b)
{
        const struct chart_point *x = a, *y = b;

        return (x->x > y->x) - (x->x < y->x);
}

/* The line of a policy; `points`: one for each capacity. */
static void fill_line(const struct arguments *a, const struct run *runs, size_t policy,
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

static const char *size_axis(const struct arguments *a)
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

static void report_chart(const struct arguments *a, const struct simulation *s,
                         const struct run *runs, FILE *out)
{
        enum { OF_LRU, OF_CQ, OF_OPT = CHART_SERIES - 1 };
        static struct chart_point points[MAX_POLICIES][MAX_CAPACITIES];
        char marks[MAX_CAPACITIES][CELL_BYTES], subtitle[192];
        char requests[HUMAN_BYTES], asked[HUMAN_BYTES], distinct[HUMAN_BYTES];
        struct chart_line lines[MAX_POLICIES];
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
        chart_svg(&chart, out);
}

static int report(const struct arguments *a, const struct simulation *s, const struct run *runs,
                  size_t n, bool json)
{
        struct output out;
        int status;

        if (a->svg) {
                status = output_open(&out, a->svg);
                if (status != EXIT_OK)
                        return status;
                report_chart(a, s, runs, out.file);
                status = output_close(&out, true);
                if (status != EXIT_OK || strcmp(a->svg, "-") == 0)
                        return status;
        }
        return json ? report_json(a, runs, n) : report_text(a, s, runs);
}

static int simulate(struct arguments *a, const struct simulation *s, bool json)
{
        static struct run runs[MAX_POLICIES * MAX_CAPACITIES];
        size_t n = 0;

        for (size_t c = 0; c < a->n_capacities; c++) {
                if (!set_blocks(&a->capacities[c], a, s->n_blocks))
                        return complain(EXIT_WRONG_USAGE,
                                        "a cache of %s is less than one of the %u blocks",
                                        a->capacities[c].text, s->n_blocks);
                for (size_t p = 0; p < a->n_policies; p++, n++) {
                        uint64_t blocks = MIN(a->capacities[c].blocks, (uint64_t)s->n_blocks);
                        int r;

                        runs[n] = (struct run){ .policy = a->policies[p],
                                                .capacity = &a->capacities[c] };
                        r = simulation_run(s, a->policies[p], (uint32_t)blocks, &runs[n].result);
                        if (r < 0)
                                return r == -ENOMEM ? complain_memory()
                                                    : complain(EXIT_LOCAL, "%s: %s", a->policies[p],
                                                               strerror(-r));
                }
        }
        return report(a, s, runs, n, json);
}

static int run_simulate(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        _cleanup_(workload_freep) struct workload *workload = NULL;
        struct arguments a = { 0 };
        struct simulation s;
        bool end;
        int status = read_arguments(ctl, self, argc, argv, &a, &end);

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
                                "more blocks than can be simulated: use --requests");
        default:
                return complain_memory();
        }
        s.announced = a.announced;
        s.write_budget = a.write_budget;
        s.block_bytes = a.block_bytes;
        if (s.n_blocks == 0)
                status = complain(EXIT_BAD_INPUT, "no request asks for a block");
        else if (a.write_budget > 0 && budget_bytes(&a, &s) < 1)
                status = complain(EXIT_BAD_INPUT,
                                  "--write-budget: all requests have the same timestamp");
        else
                status = simulate(&a, &s, ctl->json);
        simulation_fini(&s);
        return status;
}

const struct command command_simulate = {
        .name = "simulate",
        .arguments = "TRACE | --synthetic chat",
        .summary = "the hit ratio of caches of several sizes and policies, without a daemon",
        .help = "Plays the requests of a block trace against the daemon's own eviction policies, "
                "without\n"
                "data, and prints which share of the blocks they would have found, for each size "
                "of the\n"
                "cache. A request hits its longest prefix that is cached; then its missing blocks "
                "come in,\n"
                "or, with --write-budget, those that the daemon's admission lets in.\n"
                "All blocks are of one size, and the cache is empty at first. TRACE is as for "
                "replay.\n"
                "With --json: an array, an object for each size and policy; ratios from 0 to 1.\n",
        .options = simulate_options,
        .run = run_simulate,
};
