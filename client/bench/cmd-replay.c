/* SPDX-License-Identifier: Apache-2.0 */
/* replay: reads the options, chooses the workload, and prints the report; replay.c runs the
 * replay. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "commands.h"
#include "common.h"
#include "human.h"
#include "units.h"
#include "progress.h"
#include "checked.h"
#include "replay.h"
#include "simulate.h"
#include "table.h"
#include "workload-source.h"
#include "interrupt.h"
#include "plot-option.h"
#include "replay-plot.h"
#include "session/output.h"

DEFINE_CLEANUP(struct workload *, workload_free);

enum { MOST_CLIENTS = 1024, CHAT_REQUESTS = 1000 };

enum {
        OPTION_SYNTHETIC = OPTION_LONG,
        OPTION_SEED,
        OPTION_SPEED,
        OPTION_CLIENTS,
        OPTION_ACK,
        OPTION_ACKS,
        OPTION_RECONNECT,
        OPTION_ANNOUNCE,
        OPTION_PLAYED,
        OPTION_PLOT,
        OPTION_SVG,
        OPTION_RETURNS,
        OPTION_STOPS,
        OPTION_BLOCK_TOKENS,
        OPTION_UNIT,
};

static const struct option_row replay_options[] = {
        { OPTION_SYNTHETIC, "synthetic", "KIND",
          "generate a workload instead of reading a trace; KIND: chat", "chat" },
        { OPTION_SEED, "seed", "N",
          "seed of the synthetic workload, and part of every key: workloads\n"
          "with different seeds share nothing (default: 0)" },
        { 'b', "block-bytes", "SIZE", "bytes of a block (default: 64KiB)" },
        { 'r', "requests", "N",
          "replay the first N requests (default: the whole trace; synthetic: 1,000)" },
        { OPTION_SPEED, "speed", "X",
          "1: at the pace of the trace, 10: ten times faster; 0 (the default): as\n"
          "fast as possible" },
        { OPTION_UNIT, "time-unit", "UNIT", WORKLOAD_SOURCE_UNIT_HELP, "s ms" },
        { OPTION_BLOCK_TOKENS, "tokens-per-block", "N", WORKLOAD_SOURCE_TOKENS_HELP },
        { 'c', "clients", "N",
          "number of connections, each with one request in progress (default: 1)" },
        { OPTION_ACK, "ack", "CLASS",
          "answer a put when its block is accepted (visible; the default), written\n"
          "(survives a crash of the daemon) or durable (survives power loss)",
          ACK_VALUES },
        { OPTION_ACKS, "acks", "FILE",
          "append each key to FILE as soon as its put is answered; `kvcachectl\n"
          "exists --from FILE` reads it" },
        { 'n', "namespace", "NS", "the namespace (default: replay)", "@namespaces" },
        { OPTION_ANNOUNCE, "announce-ends", "SHARE",
          "tell the daemon that a session has ended after its last request, for this\n"
          "share of the sessions: 50%; it evicts those first (default: 0%)" },
        { OPTION_PLOT, "plot", "[=FILE.svg]", PLOT_OPTION_HELP },
        { OPTION_SVG, "svg", "FILE",
          "plot the report as SVG; \"-\": to standard output, in the place of the report" },
        { OPTION_PLAYED, "played", "FILE",
          "write the workload as a trace, with the times at which its requests were sent;\n"
          "simulate then computes what a cache would have hit at this pace" },
        { OPTION_RETURNS, "announce-returns", "SHARE",
          "tell the daemon in how many seconds a session returns, with this share of the\n"
          "requests that it does return after, divided by the speed; needs --speed\n"
          "(default: 0%)" },
        { OPTION_STOPS, "announce-stops", "SHARE",
          "tell the daemon why the engine stopped, as in simulate (default: 0%)" },
        { OPTION_RECONNECT, "reconnect", "SECONDS",
          "how long to try to reach a daemon that does not answer (default: 2)" },
        { 0 },
};

struct arguments {
        struct workload_source source;
        const char *acks, *played, *svg;
        bool plots;
        unsigned long long block_bytes, clients;
        double announced, returns, stops;
        struct replay_options replay;
};

/* Handles an option. Returns false if the command must end with ctl->exit_status. */
static bool replay_option(struct ctl *ctl, const struct command *self, int option,
                          const char *argument, struct arguments *a)
{
        double seconds;

        switch (option) {
        case OPTION_SYNTHETIC:
                return workload_source_kind(ctl, self, argument, &a->source);
        case OPTION_UNIT:
                return workload_source_unit(ctl, self, argument, &a->source);
        case OPTION_BLOCK_TOKENS:
                return workload_source_tokens(ctl, argument, &a->source);
        case OPTION_SEED:
                return option_count(ctl, "--seed", argument, 0, UINT64_MAX, &a->source.seed);
        case 'b':
                if (!option_bytes(ctl, "--block-bytes", argument, &a->block_bytes))
                        return false;
                if (a->block_bytes == 0)
                        ctl->exit_status =
                                usage_error(self, "--block-bytes: a block has at least 1 byte");
                return a->block_bytes > 0;
        case 'r':
                return option_count(ctl, "--requests", argument, 1, 1000000000,
                                    &a->source.requests);
        case OPTION_SPEED:
                if (human_parse_number(argument, &a->replay.speed) == 0)
                        return true;
                ctl->exit_status =
                        usage_error(self, "--speed: '%s' is not a number of 0 or more", argument);
                return false;
        case 'c':
                return option_count(ctl, "--clients", argument, 1, MOST_CLIENTS, &a->clients);
        case OPTION_ACK:
                if (ack_parse(argument, &a->replay.ack))
                        return true;
                ctl->exit_status = usage_error(
                        self, "--ack: '%s' is unknown; use accepted, written or durable", argument);
                return false;
        case OPTION_ACKS:
                a->acks = argument;
                return true;
        case OPTION_PLAYED:
                a->played = argument;
                return true;
        case OPTION_PLOT:
                return plot_option_read(ctl, self, argument, &a->plots, &a->svg);
        case OPTION_SVG:
                a->svg = argument;
                return true;
        case 'n':
                a->replay.namespace_name = argument;
                return true;
        case OPTION_ANNOUNCE:
                return workload_source_share(ctl, self, "--announce-ends", argument, &a->announced);
        case OPTION_RETURNS:
                return workload_source_share(ctl, self, "--announce-returns", argument,
                                             &a->returns);
        case OPTION_STOPS:
                return workload_source_share(ctl, self, "--announce-stops", argument, &a->stops);
        case OPTION_RECONNECT:
                if (human_parse_number(argument, &seconds) < 0 || seconds > 1e6) {
                        ctl->exit_status = usage_error(
                                self,
                                "--reconnect: '%s' is not a number of seconds from 0 to 1000000",
                                argument);
                        return false;
                }
                a->replay.reconnect_ms = (int)(seconds * 1000);
                return true;
        }
        return true;
}

/* Reads the arguments. Returns EXIT_OK, or another status after reporting an error. Sets `*ret_end`
 * to true if the command must end in spite of EXIT_OK, because --help was given; also after some
 * errors. */
static int read_arguments(struct ctl *ctl, const struct command *self, int argc, char **argv,
                          struct arguments *a, bool *ret_end)
{
        const char *argument;
        int r, first;

        *ret_end = true;
        while ((r = option_next(ctl, self, argc, argv, &argument, &first)) > 0)
                if (!replay_option(ctl, self, r, argument, a))
                        return ctl->exit_status;
        if (r < 0)
                return ctl->exit_status;
        *ret_end = false;
        r = workload_source_operand(self, argc, argv, first, &a->source);
        if (r != EXIT_OK)
                return r;
        if (a->returns > 0 && a->replay.speed <= 0)
                return usage_error(self, "--announce-returns needs a --speed above 0");
        if (strpbrk(a->replay.namespace_name, "\r\n"))
                return usage_error(self, "--namespace: a name must not contain a line end");
        if (a->played && strcmp(a->played, "-") == 0)
                return usage_error(self, "--played needs the name of a file, because the report "
                                         "goes to standard output");
        return plot_option_check(ctl, self, a->plots, a->svg);
}

static void on_progress(void *userdata, const struct replay_progress *now)
{
        char tail[REPLAY_PROGRESS_BYTES];
        double part = replay_progress_text(now, tail);

        progress_show(userdata, part, tail);
}

static double ratio(uint64_t part, uint64_t whole)
{
        return whole ? (double)part / (double)whole : 0;
}

static void add_latency(cJSON *to, const char *name, struct latency *latency)
{
        cJSON *object = cJSON_AddObjectToObject(to, name);

        cJSON_AddNumberToObject(object, "p50", (double)latency_quantile(latency, 0.5) / 1000);
        cJSON_AddNumberToObject(object, "p90", (double)latency_quantile(latency, 0.9) / 1000);
        cJSON_AddNumberToObject(object, "p99", (double)latency_quantile(latency, 0.99) / 1000);
        cJSON_AddNumberToObject(object, "calls", (double)latency->n);
}

static int report_json(const struct arguments *a, struct replay_result *result, int status)
{
        _cleanup_(cJSON_Deletep) cJSON *object = cJSON_CreateObject();
        const struct replay_counts *n = &result->counts;
        static const char *const acks[] = { "accepted", "written", "durable" };
        cJSON *latencies;

        cJSON_AddStringToObject(object, "workload",
                                a->source.trace ? a->source.trace : a->source.synthetic);
        cJSON_AddStringToObject(object, "namespace", a->replay.namespace_name);
        cJSON_AddNumberToObject(object, "block_bytes", (double)a->block_bytes);
        cJSON_AddNumberToObject(object, "clients", (double)a->clients);
        cJSON_AddStringToObject(object, "ack", acks[a->replay.ack]);
        cJSON_AddNumberToObject(object, "requests", (double)n->requests);
        cJSON_AddNumberToObject(object, "blocks_asked", (double)n->blocks_asked);
        cJSON_AddNumberToObject(object, "blocks_hit", (double)n->blocks_hit);
        cJSON_AddNumberToObject(object, "hit_ratio", ratio(n->blocks_hit, n->blocks_asked));
        cJSON_AddNumberToObject(object, "blocks_hit_memory", (double)n->blocks_hit_memory);
        cJSON_AddNumberToObject(object, "blocks_hit_disk", (double)n->blocks_hit_disk);
        cJSON_AddNumberToObject(object, "blocks_hit_remote", (double)n->blocks_hit_remote);
        cJSON_AddNumberToObject(object, "blocks_put", (double)n->blocks_put);
        cJSON_AddNumberToObject(object, "blocks_existed", (double)n->blocks_existed);
        cJSON_AddNumberToObject(object, "blocks_vanished", (double)n->blocks_vanished);
        cJSON_AddNumberToObject(object, "blocks_unheld", (double)n->blocks_unheld);
        cJSON_AddNumberToObject(object, "bytes_put", (double)n->bytes_put);
        cJSON_AddNumberToObject(object, "bytes_got", (double)n->bytes_got);
        cJSON_AddNumberToObject(object, "wrong_bytes", (double)n->wrong_bytes);
        cJSON_AddNumberToObject(object, "wrong_blocks", (double)n->wrong_blocks);
        cJSON_AddNumberToObject(object, "errors", (double)n->errors);
        cJSON_AddNumberToObject(object, "lost", (double)n->lost);
        cJSON_AddNumberToObject(object, "busy", (double)n->busy);
        cJSON_AddNumberToObject(object, "not_durable", (double)n->not_durable);
        cJSON_AddNumberToObject(object, "ends_announced", (double)n->ends_announced);
        cJSON_AddNumberToObject(object, "returns_announced", (double)n->returns_announced);
        cJSON_AddNumberToObject(object, "reconnects", (double)n->reconnects);
        if (result->evictions_known)
                cJSON_AddNumberToObject(object, "evictions", (double)result->evictions);
        else
                cJSON_AddNullToObject(object, "evictions");
        cJSON_AddNumberToObject(object, "seconds", result->seconds);
        cJSON_AddNumberToObject(object, "gigabytes_per_second",
                                result->seconds > 0 ? (double)(n->bytes_put + n->bytes_got) /
                                                              result->seconds / 1e9
                                                    : 0);
        latencies = cJSON_AddObjectToObject(object, "latency_us");
        add_latency(latencies, "match", &result->match);
        add_latency(latencies, "get", &result->get);
        add_latency(latencies, "put", &result->put);
        cJSON_AddNumberToObject(object, "prefill_tokens_asked", (double)n->tokens_asked);
        cJSON_AddNumberToObject(object, "prefill_tokens_saved", (double)n->tokens_saved);
        cJSON_AddBoolToObject(object, "interrupted", result->interrupted);
        if (*result->error)
                cJSON_AddStringToObject(object, "error", result->error);
        if (*result->first_wrong)
                cJSON_AddStringToObject(object, "first_wrong", result->first_wrong);
        cJSON_AddNumberToObject(object, "exit_status", status);
        return print_json(object);
}

__attribute__((format(printf, 2, 3))) static void line(const char *label, const char *format, ...)
{
        va_list arguments;

        printf("  %-14s ", label);
        va_start(arguments, format);
        vprintf(format, arguments);
        va_end(arguments);
        putchar('\n');
}

static void add_latency_row(struct text_table *table, const char *name, struct latency *latency)
{
        char p50[HUMAN_BYTES], p90[HUMAN_BYTES], p99[HUMAN_BYTES], calls[HUMAN_BYTES];

        human_ns(latency_quantile(latency, 0.5), p50);
        human_ns(latency_quantile(latency, 0.9), p90);
        human_ns(latency_quantile(latency, 0.99), p99);
        human_count(latency->n, calls);
        if (latency->n == 0)
                text_table_row(table, name, "-", "-", "-", "0");
        else
                text_table_row(table, name, p50, p90, p99, calls);
}

static void report_blocks(const struct arguments *a, const struct replay_counts *n)
{
        char x[HUMAN_BYTES], y[HUMAN_BYTES];

        human_count(n->blocks_asked, x);
        units_bytes(a->block_bytes, y);
        line("blocks wanted", "%s of %s", x, y);
        human_count(n->blocks_hit, x);
        human_percent(n->blocks_hit, n->blocks_asked, y);
        line("blocks hit", "%s (%s)", x, y);
        human_count(n->blocks_hit_memory, x);
        human_count(n->blocks_hit_disk, y);
        line("", "%s from memory, %s from disk", x, y);
        if (n->blocks_hit_remote) {
                human_count(n->blocks_hit_remote, x);
                line("", "%s from the shared tier", x);
        }
        human_count(n->blocks_put, x);
        line("blocks put", "%s", x);
        if (n->blocks_existed) {
                human_count(n->blocks_existed, x);
                line("", "%s more were there already: another client came first", x);
        }
        if (n->blocks_vanished) {
                human_things(n->blocks_vanished, "block", x);
                line("vanished", "%s between match and get, put again", x);
        }
}

/* Prints the numbers of errors, of refused blocks and of other deviations from a perfect replay. */
static void report_failures(const struct replay_result *result)
{
        const struct replay_counts *n = &result->counts;
        char x[HUMAN_BYTES], y[HUMAN_BYTES];

        if (n->busy) {
                human_things(n->busy, "block", x);
                line("busy", "%s found no room", x);
        }
        if (n->not_durable) {
                human_things(n->not_durable, "block", x);
                line("not durable",
                     "%s: this file system cannot promise that they survive power loss", x);
        }
        if (n->reconnects) {
                human_count(n->reconnects, x);
                line("reconnects", "%s", x);
        }
        human_count(n->errors, x);
        human_count(n->lost, y);
        line("errors", "%s%s%s%s", x, n->lost ? ", of which " : "", n->lost ? y : "",
             n->lost ? " because the daemon went away" : "");
        human_count(n->wrong_bytes, x);
        line("wrong bytes", "%s%s", x,
             n->wrong_bytes ? ""
             : n->bytes_got ? ": every byte got was compared"
                            : "");
        if (*result->first_wrong)
                line("", "%s", result->first_wrong);
}

static void report(const struct arguments *a, struct replay_result *result)
{
        _cleanup_(text_table_freep) struct text_table *table = text_table_new("lrrrr");
        uint64_t block_tokens = a->source.format.block_tokens ?: TRACE_BLOCK_TOKENS;
        const struct replay_counts *n = &result->counts;
        char x[HUMAN_BYTES], y[HUMAN_BYTES], z[HUMAN_BYTES];

        human_count(n->requests, x);
        human_seconds(result->seconds, y);
        line("requests", "%s in %s (%.0f a second), %llu client%s", x, y,
             result->seconds > 0 ? (double)n->requests / result->seconds : 0, a->clients,
             a->clients == 1 ? "" : "s");
        report_blocks(a, n);
        units_bytes(n->bytes_got, x);
        units_bytes(n->bytes_put, y);
        line("bytes", "%s got, %s put: %.2f GB/s", x, y,
             result->seconds > 0 ? (double)(n->bytes_got + n->bytes_put) / result->seconds / 1e9
                                 : 0);
        if (n->ends_announced) {
                human_things(n->ends_announced, "session", x);
                line("announced", "the end of %s", x);
        }
        if (n->returns_announced) {
                human_things(n->returns_announced, "session", x);
                line("announced", "the return, or the reason of the stop, of %s", x);
        }
        if (result->evictions_known) {
                human_count(result->evictions, x);
                line("evictions", "%s", x);
        } else {
                line("evictions", "not known");
        }
        human_count(n->tokens_saved, x);
        human_count(n->tokens_asked, y);
        human_percent(n->tokens_saved, n->tokens_asked, z);
        line("prefill saved", "about %s of %s tokens (%s), at %" PRIu64 " tokens a block", x, y, z,
             block_tokens);
        report_failures(result);

        putchar('\n');
        text_table_row(table, "a call of", "p50", "p90", "p99", "calls");
        add_latency_row(table, "match", &result->match);
        add_latency_row(table, "get", &result->get);
        add_latency_row(table, "put", &result->put);
        text_table_print(table, "  ", stdout);

        printf("\nreplay: %" PRIu64 " requests, %" PRIu64 " blocks put, %" PRIu64
               " blocks hit (%.1f %%), %" PRIu64 " wrong bytes\n",
               n->requests, n->blocks_put, n->blocks_hit,
               100 * ratio(n->blocks_hit, n->blocks_asked), n->wrong_bytes);
}

static int announce(const struct arguments *a, const struct workload *w)
{
        char requests[HUMAN_BYTES], blocks[HUMAN_BYTES], distinct_text[HUMAN_BYTES],
                bytes[HUMAN_BYTES];
        size_t distinct;

        if (workload_distinct(w, &distinct) < 0)
                return complain_memory();
        human_things(w->n_requests, "request", requests);
        human_things(w->n_ids, "block", blocks);
        human_count(distinct, distinct_text);
        units_bytes((uint64_t)distinct * a->block_bytes, bytes);
        printf("Replaying ");
        print_safe(a->source.trace ? a->source.trace : "synthetic chat sessions", stdout);
        printf(": %s for %s, %s of them distinct (%s)\n\n", requests, blocks, distinct_text, bytes);
        fflush(stdout);
        return EXIT_OK;
}

static int final_status(const struct replay_result *result)
{
        if (result->counts.wrong_bytes > 0)
                return EXIT_NOT_FOUND;
        if (result->status != EXIT_OK)
                return result->status;
        if (result->interrupted)
                return EXIT_INTERRUPTED;
        return result->counts.errors > 0 ? EXIT_REFUSED : EXIT_OK;
}

static int choose_hints(const struct arguments *a, const struct workload *workload,
                        struct simulated_hint **ret)
{
        struct simulation simulation;
        int r = simulation_init(&simulation, workload);

        if (r == -E2BIG)
                return complain(EXIT_BAD_INPUT,
                                "the workload has more blocks than can be replayed, repeats "
                                "included; use --requests to replay only its first requests");
        if (r < 0)
                return complain_memory();
        simulation.announced = a->announced;
        simulation.returns = a->returns;
        simulation.stops = a->stops;
        r = simulation_choose_hints(&simulation, false, ret);
        simulation_fini(&simulation);
        return r < 0 ? complain_memory() : EXIT_OK;
}

static const char *workload_name(const struct arguments *a)
{
        return a->source.trace ? a->source.trace : a->source.synthetic;
}

/* Prints the report and its plots. Returns an exit status. */
static int print_report(const struct arguments *a, struct replay_result *result, int status,
                        bool json)
{
        bool is_replaced = a->svg && strcmp(a->svg, "-") == 0;
        int r = EXIT_OK;

        if (a->svg)
                r = replay_plot(result, workload_name(a), a->svg);
        if (is_replaced)
                return r;
        if (json)
                r = MAX(r, report_json(a, result, status));
        else
                report(a, result);
        if (a->plots)
                r = MAX(r, replay_plot(result, workload_name(a), NULL));
        fflush(stdout);
        return r;
}

/* Writes the requests that were played as a trace, and closes `out`. If the replay has not begun,
 * or memory is short, no file appears. Returns an exit status. */
static int write_played(const struct arguments *a, const struct workload *workload,
                        struct output *out, bool has_begun)
{
        int status = EXIT_OK;

        if (has_begun && workload_write(workload, a->replay.sent_ns, out->file) < 0)
                status = complain_memory();
        return MAX(output_close(out, has_begun && status == EXIT_OK), status);
}

static int run_replay(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        struct arguments a = {
                .block_bytes = 64 * 1024,
                .clients = 1,
                .replay = {
                        .namespace_name = "replay",
                        .ack = KVCACHE_ACCEPTED,
                        .reconnect_ms = 2000,
                        .interrupted = &interrupted,
                        .progress = on_progress,
                },
        };
        _cleanup_(workload_freep) struct workload *workload = NULL;
        _cleanup_(freep) struct simulated_hint *hints = NULL;
        _cleanup_(freep) uint64_t *sent_ns = NULL;
        _cleanup_(closep) int acks_fd = -1;
        struct replay_result result;
        struct progress progress;
        struct output played;
        bool end;
        int r, status;

        r = read_arguments(ctl, self, argc, argv, &a, &end);
        if (r || end)
                return r;
        r = workload_source_load(&a.source, CHAT_REQUESTS, &workload);
        if (r)
                return r;
        r = choose_hints(&a, workload, &hints);
        if (r)
                return r;
        if (a.played) {
                sent_ns = calloc(MAX(workload->n_requests, (size_t)1), sizeof(*sent_ns));
                if (!sent_ns)
                        return complain_memory();
        }
        if (a.acks) {
                acks_fd = open(a.acks, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
                if (acks_fd < 0)
                        return complain(EXIT_LOCAL, "%s: %s", a.acks, strerror(errno));
        }
        if (!ctl->json && !(a.svg && strcmp(a.svg, "-") == 0)) {
                r = announce(&a, workload);
                if (r)
                        return r;
        }
        if (a.played) { /* fails before the replay, which may take hours */
                r = output_open(&played, a.played);
                if (r)
                        return r;
        }

        interrupt_catch(); /* a signal ends the replay after the current request */
        progress_init(&progress);
        a.replay.socket_path = ctl->socket_path;
        a.replay.block_bytes = a.block_bytes;
        a.replay.clients = (unsigned)a.clients;
        a.replay.acks_fd = acks_fd;
        a.replay.hints = hints;
        a.replay.sent_ns = sent_ns;
        a.replay.userdata = &progress;
        replay_run(&a.replay, workload, &result);
        progress_end(&progress);

        status = final_status(&result);
        if (*result.error)
                complain(status, "%s", result.error);
        else if (result.interrupted)
                complain(status, "replay: interrupted; only the requests until then are reported");
        /* If the replay did not begin, there is nothing to report. */
        if (result.seconds > 0)
                r = print_report(&a, &result, status, ctl->json);
        if (a.played)
                r = MAX(r, write_played(&a, workload, &played, result.seconds > 0));
        if (result.counts.wrong_bytes > 0)
                complain(status, "WRONG BYTES: the daemon returned other bytes than were put; run "
                                 "kvcachectl verify, and report this bug");
        replay_result_fini(&result);
        return status ? status : r;
}

const struct command command_replay = {
        .name = "replay",
        .arguments = "TRACE | --synthetic chat",
        .summary = "replay a block trace, and compare every byte",
        .help = "Replays the requests of a trace as an engine would issue them: for each, it\n"
                "matches the blocks, gets the leading ones that are present, puts the others in\n"
                "order, and holds leases on all of them until the request ends. The content of a\n"
                "block follows from its key, and every byte that is got is compared.\n"
                "\n"
                "TRACE (\"-\": standard input) has one JSON object a line, as the Mooncake traces\n"
                "do: {\"timestamp\": ms, \"input_length\": tokens, \"output_length\": tokens,\n"
                "\"hash_ids\": [block ids, chained over the prefix]}. `--synthetic chat` "
                "generates\n"
                "sessions of several turns, with shared system prompts and think times.\n"
                "\n"
                "A block counts as hit if every byte that was got is right. A latency is that of "
                "one\n"
                "call, which moves a round of blocks. The prefill tokens saved are an estimate:\n"
                "leading blocks hit, at 512 tokens a block unless --tokens-per-block says "
                "otherwise.\n"
                "With --json,\n"
                "the report is one object; latencies are in microseconds.\n"
                "\n"
                "Exit status 1: some bytes were wrong; 3: the daemon closed the connection; 4: it\n"
                "refused, or some blocks failed.",
        .options = replay_options,
        .run = run_replay,
};
