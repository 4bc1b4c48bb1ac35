/* SPDX-License-Identifier: Apache-2.0 */
#include "simulate-arguments.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "common.h"
#include "human.h"
#include "plot-option.h"

enum {
        MAX_PREFILL_RATE = 1000000000,
        MAX_LATENCY_MS = 1000000,
        DEFAULT_LATENCY_MS = 5,
        MAX_LAG_S = 1000000000,
};

enum {
        OPTION_SYNTHETIC = OPTION_LONG,
        OPTION_SEED,
        OPTION_DISK,
        OPTION_ANNOUNCE,
        OPTION_RETURNS,
        OPTION_STOPS,
        OPTION_LIARS,
        OPTION_BUDGET,
        OPTION_SVG,
        OPTION_PLOT,
        OPTION_EXPLAIN,
        OPTION_HOSTS,
        OPTION_ROUTE,
        OPTION_LAG,
        OPTION_SHARED,
        OPTION_REMOTE_WRITE,
        OPTION_REMOTE_LATENCY,
        OPTION_PREFILL_RATE,
        OPTION_BLOCK_TOKENS,
        OPTION_UNIT,
};

const struct option_row simulate_options[] = {
        { 'p', "policy", "LIST",
          "eviction policies: lru (leaf first), cq (count queues, learns), or opt, the\n"
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
        { OPTION_RETURNS, "announce-returns", "SHARE",
          "announce in how many seconds a session returns, with this share of the\n"
          "requests that it does return after: 50%; cq keeps what returns soonest\n"
          "(default: 0%)" },
        { OPTION_STOPS, "announce-stops", "SHARE",
          "announce why the engine stopped, a tool call or the end of turn, with this\n"
          "share of the other requests; drawn by the length of the pause (default: 0%)" },
        { OPTION_LIARS, "liars", "SHARE",
          "let this share of the sessions belong to a user that announces a return in a\n"
          "second with every request; prints what that changes for both users\n"
          "(default: 0%)" },
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
        { OPTION_PLOT, "plot", "[=FILE.svg]", PLOT_OPTION_HELP },
        { OPTION_EXPLAIN, "explain", "KEY",
          "explain instead why a block was kept or evicted at each decision; KEY: an id of\n"
          "the workload, or the key of replay; takes one policy (default: cq) and one\n"
          "capacity (default: 5%)" },
        { OPTION_HOSTS, "hosts", "LIST",
          "simulate a fleet instead: split the requests over so many hosts, each with a\n"
          "cache of its own, and a shared tier behind them: 1,2,4,8,16,32,64; takes one\n"
          "policy (default: cq) and one capacity, of each host's cache (default: 5%)" },
        { OPTION_ROUTE, "route", "HOW",
          "session: all requests of a session to one host, the sessions in turn (the\n"
          "default); random: each request to any host; events: to the host that has most of\n"
          "its blocks, by the events of the hosts' caches, and little to compute",
          "session random events" },
        { OPTION_LAG, "lag", "SECONDS",
          "time until an event reaches the router; needs --route events (default: 0)" },
        { OPTION_SHARED, "shared", "SIZE",
          "size of the shared tier: blocks, a share of the distinct blocks with %, or\n"
          "bytes with a unit; 0: there is none (default: unlimited)" },
        { OPTION_REMOTE_WRITE, "remote-write", "WHAT",
          "blocks that hosts write to the shared tier: reused (those hit in a host's\n"
          "own cache; the default), all (those computed), or never",
          "never reused all" },
        { OPTION_REMOTE_LATENCY, "remote-latency", "MS",
          "milliseconds until a load from the shared tier begins (default: 5)" },
        { OPTION_PREFILL_RATE, "prefill-rate", "N",
          "tokens that an engine computes a second; prints the rate above which loads\n"
          "from the shared tier are faster than that; needs --bytes-per-block" },
        { OPTION_BLOCK_TOKENS, "tokens-per-block", "N", WORKLOAD_SOURCE_TOKENS_HELP },
        { OPTION_UNIT, "time-unit", "UNIT", WORKLOAD_SOURCE_UNIT_HELP, "s ms" },
        { 0 },
};

/* Calls `add` for each item of a list with commas. Returns false after reporting an error. */
static bool for_each(struct ctl *ctl, const struct command *self, const char *option,
                     const char *list, struct simulate_arguments *a,
                     bool (*add)(struct ctl *ctl, const struct command *self, const char *text,
                                 struct simulate_arguments *a))
{
        char text[24];

        for (const char *at = list;; at++) {
                size_t n = strcspn(at, ",");

                if (n == 0 || n >= sizeof(text)) {
                        ctl->exit_status = usage_error(self,
                                                       "--%s: '%s' is not a list with commas of "
                                                       "items of 1 to %zu characters",
                                                       option, list, sizeof(text) - 1);
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
                       struct simulate_arguments *a)
{
        static const char *const known[] = { "lru", "cq", "opt" };

        for (size_t i = 0; i < ARRAY_SIZE(known); i++)
                if (strcmp(known[i], text) == 0) {
                        if (a->n_policies == SIMULATE_POLICIES)
                                break;
                        a->policies[a->n_policies++] = known[i];
                        return true;
                }
        ctl->exit_status =
                a->n_policies == SIMULATE_POLICIES
                        ? usage_error(self,
                                      "--policy: '%s' is one policy too many: give at most %d",
                                      text, SIMULATE_POLICIES)
                        : usage_error(self, "--policy: '%s' is unknown; use lru, cq or opt", text);
        return false;
}

static struct capacity *new_capacity(struct ctl *ctl, const struct command *self, const char *text,
                                     struct simulate_arguments *a)
{
        struct capacity *c;

        if (a->n_capacities == SIMULATE_CAPACITIES) {
                ctl->exit_status =
                        usage_error(self, "'%s' is one size of the cache too many: give at most %d",
                                    text, SIMULATE_CAPACITIES);
                return NULL;
        }
        c = &a->capacities[a->n_capacities++];
        *c = (struct capacity){ 0 };
        snprintf(c->text, sizeof(c->text), "%s", text);
        return c;
}

static bool add_capacity(struct ctl *ctl, const struct command *self, const char *text,
                         struct simulate_arguments *a)
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
                     struct simulate_arguments *a)
{
        struct capacity *c = new_capacity(ctl, self, text, a);
        unsigned long long bytes;

        if (!c || !option_bytes(ctl, "--disk", text, &bytes))
                return false;
        c->bytes = bytes;
        return true;
}

static bool add_hosts(struct ctl *ctl, const struct command *self, const char *text,
                      struct simulate_arguments *a)
{
        unsigned long long hosts;

        if (a->n_hosts == SIMULATE_HOSTS) {
                ctl->exit_status = usage_error(self, "--hosts: '%s': more than %d numbers of hosts",
                                               text, SIMULATE_HOSTS);
                return false;
        }
        if (!option_count(ctl, "--hosts", text, 1, FLEET_MAX_HOSTS, &hosts))
                return false;
        a->hosts[a->n_hosts++] = (uint32_t)hosts;
        return true;
}

static bool read_shared(struct ctl *ctl, const struct command *self, const char *text,
                        struct simulate_arguments *a)
{
        struct capacity *c = &a->shared;
        size_t n = strlen(text);
        unsigned long long bytes;
        bool is_count = n > 0 && strspn(text, "0123456789") == n;

        *c = (struct capacity){ .is_share = n > 0 && text[n - 1] == '%' };
        a->shared_is_limited = true;
        if (n >= sizeof(c->text)) {
                ctl->exit_status = usage_error(self, "--shared: '%.40s' is too long", text);
                return false;
        }
        snprintf(c->text, sizeof(c->text), "%s", text);
        if (c->is_share)
                return workload_source_share(ctl, self, "--shared", text, &c->share);
        if (is_count && !option_count(ctl, "--shared", text, 0, INT32_MAX, &bytes))
                return false;
        if (!is_count && !option_bytes(ctl, "--shared", text, &bytes))
                return false;
        if (is_count)
                c->blocks = bytes;
        else
                c->bytes = bytes;
        return true;
}

static bool read_latency(struct ctl *ctl, const struct command *self, const char *text,
                         struct simulate_arguments *a)
{
        double ms;

        if (human_parse_number(text, &ms) == 0 && ms <= MAX_LATENCY_MS) {
                a->remote_latency = ms / 1e3;
                return true;
        }
        ctl->exit_status =
                usage_error(self, "--remote-latency: '%s' is not a number of milliseconds up to %d",
                            text, MAX_LATENCY_MS);
        return false;
}

static bool read_lag(struct ctl *ctl, const struct command *self, const char *text,
                     struct simulate_arguments *a)
{
        if (human_parse_seconds(text, &a->lag) == 0 && a->lag <= MAX_LAG_S) {
                a->has_lag = true;
                return true;
        }
        ctl->exit_status =
                usage_error(self, "--lag: '%s' is not a time up to %d seconds; use 0.2, 30s or 5m",
                            text, MAX_LAG_S);
        return false;
}

/* Returns the index of `text` in `words`, or -1 after reporting that there is none. */
static int read_word(struct ctl *ctl, const struct command *self, const char *option,
                     const char *text, const char *const *words)
{
        for (int i = 0; words[i]; i++)
                if (strcmp(words[i], text) == 0)
                        return i;
        ctl->exit_status =
                usage_error(self, "--%s: '%s' is unknown; use %s, %s%s%s", option, text, words[0],
                            words[1], words[2] ? ", " : "", words[2] ? words[2] : "");
        return -1;
}

/* Handles the options that require --hosts. Returns false after reporting an error. */
static bool fleet_option(struct ctl *ctl, const struct command *self, int option,
                         const char *argument, struct simulate_arguments *a)
{
        static const char *const writes[] = { [FLEET_WRITE_NEVER] = "never",
                                              [FLEET_WRITE_REUSED] = "reused",
                                              [FLEET_WRITE_ALL] = "all",
                                              NULL };
        static const char *const routes[] = { [FLEET_ROUTE_SESSION] = "session",
                                              [FLEET_ROUTE_RANDOM] = "random",
                                              [FLEET_ROUTE_EVENTS] = "events",
                                              NULL };
        unsigned long long n = 0;
        int which = 0;

        for (const struct option_row *row = simulate_options; row->id; row++)
                if (row->id == option)
                        a->of_fleet = row->name;
        switch (option) {
        case OPTION_ROUTE:
                which = read_word(ctl, self, "route", argument, routes);
                a->route = (enum fleet_route)which;
                break;
        case OPTION_LAG:
                return read_lag(ctl, self, argument, a);
        case OPTION_REMOTE_WRITE:
                which = read_word(ctl, self, "remote-write", argument, writes);
                a->write = (enum fleet_write)which;
                break;
        case OPTION_SHARED:
                return read_shared(ctl, self, argument, a);
        case OPTION_REMOTE_LATENCY:
                return read_latency(ctl, self, argument, a);
        case OPTION_PREFILL_RATE:
                if (!option_count(ctl, "--prefill-rate", argument, 1, MAX_PREFILL_RATE, &n))
                        return false;
                a->prefill_rate = (double)n;
                break;
        }
        return which >= 0;
}

static bool simulate_option(struct ctl *ctl, const struct command *self, int option,
                            const char *argument, struct simulate_arguments *a)
{
        switch (option) {
        case OPTION_BLOCK_TOKENS:
                return workload_source_tokens(ctl, argument, &a->source);
        case OPTION_UNIT:
                return workload_source_unit(ctl, self, argument, &a->source);
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
        case OPTION_RETURNS:
                return workload_source_share(ctl, self, "--announce-returns", argument,
                                             &a->returns);
        case OPTION_STOPS:
                return workload_source_share(ctl, self, "--announce-stops", argument, &a->stops);
        case OPTION_LIARS:
                return workload_source_share(ctl, self, "--liars", argument, &a->liars);
        case OPTION_SVG:
                a->svg = argument;
                return true;
        case OPTION_PLOT:
                return plot_option_read(ctl, self, argument, &a->plots, &a->svg);
        case OPTION_EXPLAIN:
                a->explain = argument;
                return true;
        case OPTION_SYNTHETIC:
                return workload_source_kind(ctl, self, argument, &a->source);
        case OPTION_SEED:
                return option_count(ctl, "--seed", argument, 0, UINT64_MAX, &a->source.seed);
        case OPTION_HOSTS:
                a->n_hosts = 0;
                return for_each(ctl, self, "hosts", argument, a, add_hosts);
        default:
                return fleet_option(ctl, self, option, argument, a);
        }
}

static int check_fleet(const struct command *self, const struct simulate_arguments *a)
{
        if (a->n_hosts == 0)
                return a->of_fleet ? usage_error(self, "--%s needs --hosts", a->of_fleet) : EXIT_OK;
        if (a->n_policies > 1 || (a->n_policies == 1 && strcmp(a->policies[0], "opt") == 0))
                return usage_error(self, "--hosts needs exactly one policy: lru or cq");
        if (a->n_capacities > 1)
                return usage_error(self, "--hosts needs exactly one size of a host's cache");
        if (a->write_budget > 0)
                return usage_error(self, "--write-budget cannot be combined with --hosts");
        if (a->returns > 0)
                return usage_error(self, "--announce-returns cannot be combined with --hosts");
        if (a->has_lag && a->route != FLEET_ROUTE_EVENTS)
                return usage_error(self, "--lag needs --route events");
        if (a->stops > 0 || a->liars > 0)
                return usage_error(self,
                                   "--announce-stops and --liars cannot be combined with --hosts");
        if (a->shared.bytes > 0 && a->block_bytes == 0)
                return usage_error(self, "--shared in bytes needs --bytes-per-block");
        if (a->prefill_rate > 0 && a->block_bytes == 0)
                return usage_error(self, "--prefill-rate needs --bytes-per-block");
        return EXIT_OK;
}

static int check_explain(const struct command *self, const struct simulate_arguments *a)
{
        if (!a->explain)
                return EXIT_OK;
        if (a->n_hosts > 0)
                return usage_error(self, "--explain cannot be combined with --hosts");
        if (a->svg || a->plots)
                return usage_error(self, "--explain cannot be combined with a plot");
        if (a->n_policies > 1 || (a->n_policies == 1 && strcmp(a->policies[0], "opt") == 0))
                return usage_error(self, "--explain needs exactly one policy: lru or cq");
        if (a->n_capacities > 1)
                return usage_error(self, "--explain needs exactly one --capacity or --disk");
        return EXIT_OK;
}

int simulate_read_arguments(struct ctl *ctl, const struct command *self, int argc, char **argv,
                            struct simulate_arguments *a, bool *ret_end)
{
        const char *argument, *policies, *capacities;
        int r, first;

        *ret_end = true;
        a->write = FLEET_WRITE_REUSED;
        a->route = FLEET_ROUTE_SESSION;
        a->remote_latency = DEFAULT_LATENCY_MS / 1e3;
        while ((r = option_next(ctl, self, argc, argv, &argument, &first)) > 0)
                if (!simulate_option(ctl, self, r, argument, a))
                        return ctl->exit_status;
        if (r < 0)
                return ctl->exit_status;
        r = workload_source_operand(self, argc, argv, first, &a->source);
        if (r != EXIT_OK)
                return r;
        a->block_tokens = a->source.format.block_tokens ?: TRACE_BLOCK_TOKENS;
        for (size_t i = 0; i < a->n_capacities; i++)
                if (a->capacities[i].bytes > 0 && a->block_bytes == 0)
                        return usage_error(self, "--disk needs --bytes-per-block");
        if (a->write_budget > 0 && a->block_bytes == 0)
                return usage_error(self, "--write-budget needs --bytes-per-block");
        r = plot_option_check(ctl, self, a->plots, a->svg);
        if (r != EXIT_OK)
                return r;
        r = check_fleet(self, a);
        if (r != EXIT_OK)
                return r;
        r = check_explain(self, a);
        if (r != EXIT_OK)
                return r;
        policies = a->n_hosts > 0 || a->explain ? "cq" : "lru,cq,opt";
        capacities = a->n_hosts > 0 || a->explain ? "5%" : "1%,5%,10%,20%,50%";
        if ((a->n_policies == 0 && !for_each(ctl, self, "policy", policies, a, add_policy)) ||
            (a->n_capacities == 0 && !for_each(ctl, self, "capacity", capacities, a, add_capacity)))
                return ctl->exit_status;
        *ret_end = false;
        return EXIT_OK;
}

bool capacity_set_blocks(struct capacity *c, uint64_t block_bytes, uint32_t distinct)
{
        if (c->is_share)
                c->blocks = MAX((uint64_t)floor(c->share * distinct), UINT64_C(1));
        else if (c->bytes > 0)
                c->blocks = c->bytes / block_bytes;
        if (!c->is_share)
                c->share = (double)c->blocks / distinct;
        return c->blocks > 0;
}

void capacity_text(const struct capacity *c, char ret[static SIMULATE_CELL_BYTES])
{
        char blocks[HUMAN_BYTES];

        human_count(c->blocks, blocks);
        if (c->is_share || c->bytes > 0)
                snprintf(ret, SIMULATE_CELL_BYTES, "%s (%s)", c->text, blocks);
        else
                snprintf(ret, SIMULATE_CELL_BYTES, "%s", blocks);
}
