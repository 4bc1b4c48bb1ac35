/* SPDX-License-Identifier: Apache-2.0 */
/* session: parses the options, and checks which of them the action accepts. */
#include <errno.h>
#include <string.h>

#include "../commands.h"
#include "common.h"
#include "compare.h"
#include "dynamo.h"
#include "export.h"
#include "human.h"
#include "output.h"
#include "session.h"

enum action {
        INIT,
        STATUS,
        REPORT,
        EXPORT,
        COMPARE,
        RESET,
        ENABLE,
        DISABLE,
        LIST,
        DELETE,
        TEST,
        RUN,
        ACTIONS
};

static const char *const action_names[] = { "init",  "status", "report",  "export", "compare",
                                            "reset", "enable", "disable", "list",   "delete",
                                            "test",  "run",    NULL };
/* Maximum number of operands of each action. An action that requires sessions must have exactly
 * this number. */
static const int most_operands[ACTIONS] = { 1, 1, 1, 2, 2, 1, 1, 1, 0, 1, 0, 0 };

enum option {
        OPTION_COUNT = 'c',
        OPTION_FORMAT = 'f',
        OPTION_SESSION = OPTION_LONG,
        OPTION_RESUME,
        OPTION_FORCE,
        OPTION_PATH,
        OPTION_LAYOUT,
        OPTION_NO_CLOCK,
        OPTION_COMPAT,
        OPTION_BY,
        OPTION_FAIL,
        OPTION_IO,
        OPTION_LAYOUTS,
        OPTION_REGIONS,
        OPTION_LAYERS,
        OPTION_OUTER,
        OPTION_BYTES,
        OPTION_DEPTHS,
        OPTION_CLIENTS,
        OPTION_OPS,
        OPTION_ITERATIONS,
        OPTION_ACK,
        OPTION_COLD,
        OPTION_VERIFY,
        OPTION_SNAPSHOT,
};

static const struct option_row session_options[] = {
        { OPTION_SESSION, "session", "NAME",
          "the session; status, report and export also read a file; run: the session that\n"
          "must be active, or, with --snapshot, the name in the file (default: run)" },
        { OPTION_RESUME, "resume", NULL, "init: continue an existing session with its counters" },
        { OPTION_FORCE, "force", NULL, "init: restart an existing session at zero" },
        { OPTION_FORMAT, "format", "FORMAT",
          "report, run: text, json, csv, svg or html; export: json, csv or jsonl;\n"
          "compare: text or json (default: the first format)",
          "text json csv svg html jsonl" },
        { OPTION_PATH, "path", "PATH", "report: this path only, such as host_to_disk" },
        { OPTION_LAYOUT, "layout", "LAYOUT", "report: this layout only, such as fully_contiguous" },
        { OPTION_NO_CLOCK, "no-clock", NULL,
          "report: leave out figures that change while nothing is moved, so that two\n"
          "reports on an idle session are equal byte for byte" },
        { 'o', "output", "FILE",
          "report, export, compare, run: into FILE, which appears complete or not at\n"
          "all; - is standard output (the default)" },
        { OPTION_COMPAT, "compat", "TOOL",
          "export: in the form of another tool; TOOL: dynamo (its layout benchmark)", "dynamo" },
        { OPTION_BY, "by", "KIND",
          "compare: by key (the default: the same path, layout and technology) or by\n"
          "layout (on a path, each layout of A and B against fully contiguous)",
          "key layout" },
        { OPTION_FAIL, "fail-on-regress", "PERCENT",
          "compare: end with status 5 if a rate, transfers/block or the share of\n"
          "errors is worse by more" },
        { OPTION_COUNT, "count", "N", "test: how many records (default: 100)" },
        { OPTION_IO, "io", NULL,
          "test: also put and get real data in all layouts, and compare every byte" },
        { OPTION_LAYOUTS, "layouts", "LIST",
          "run: of contiguous, block-first and outer-first (default: all)",
          "contiguous block-first outer-first" },
        { OPTION_REGIONS, "regions", "LIST",
          "run: sizes of a region, multiples of 32 (default: 4KiB,32KiB,128KiB)" },
        { OPTION_LAYERS, "layers", "N", "run: layers of a block (default: 16)" },
        { OPTION_OUTER, "outer", "N", "run: 2: keys and values, 1: one tensor (default: 2)" },
        { OPTION_BYTES, "bytes", "SIZE",
          "run: bytes of a pass, of all clients together (default: 64MiB)" },
        { OPTION_DEPTHS, "depths", "LIST", "run: blocks in flight of a client (default: 4)" },
        { OPTION_CLIENTS, "clients", "LIST", "run: connections, a thread each (default: 1)" },
        { OPTION_OPS, "ops", "LIST", "run: of put, get and mixed (default: put,get)",
          "put get mixed" },
        { OPTION_ITERATIONS, "iterations", "N",
          "run: passes of each combination; the median counts (default: 5)" },
        { OPTION_ACK, "ack", "CLASS",
          "run: answer a put when it is accepted (the default), written or durable", ACK_VALUES },
        { OPTION_COLD, "cold", NULL, "run: get from disk: evicted from memory before" },
        { OPTION_VERIFY, "verify", NULL, "run: compare every byte, outside the measured time" },
        { OPTION_SNAPSHOT, "snapshot", "FILE",
          "run: also write what its clients copied between layouts and chunks as a\n"
          "session, which report, export and compare read" },
        { 0 },
};

/* Returns the actions that accept an option, one bit each. */
static unsigned actions_of(int option)
{
        switch (option) {
        case OPTION_SESSION:
                return 1 << STATUS | 1 << REPORT | 1 << EXPORT | 1 << RESET | 1 << ENABLE |
                       1 << DISABLE | 1 << RUN;
        case OPTION_RESUME:
        case OPTION_FORCE:
                return 1 << INIT;
        case OPTION_FORMAT:
        case 'o':
                return 1 << REPORT | 1 << EXPORT | 1 << COMPARE | 1 << RUN;
        case OPTION_PATH:
        case OPTION_LAYOUT:
        case OPTION_NO_CLOCK:
                return 1 << REPORT;
        case OPTION_COMPAT:
                return 1 << EXPORT;
        case OPTION_BY:
        case OPTION_FAIL:
                return 1 << COMPARE;
        case OPTION_COUNT:
        case OPTION_IO:
                return 1 << TEST;
        default:
                return 1 << RUN;
        }
}

static const char *name_of_option(int option)
{
        const struct option_row *row = session_options;

        while (row->id != option)
                row++;
        return row->name;
}

/* --- the options --- */

static bool name_option(struct ctl *ctl, const struct command *self, const char *option,
                        const char *argument, const char *(*name_of)(unsigned), unsigned n,
                        int *ret)
{
        char all[256] = "";

        for (unsigned i = 0; i < n; i++)
                if (strcmp(name_of(i), argument) == 0) {
                        *ret = (int)i;
                        return true;
                }
        for (unsigned i = 0; i < n; i++) {
                size_t used = strlen(all);

                snprintf(all + used, sizeof(all) - used, "%s%s", i > 0 ? ", " : "", name_of(i));
        }
        ctl->exit_status = usage_error(self, "--%s: there is no %s '%s'; use one of %s", option,
                                       option, argument, all);
        return false;
}

static bool one_of(struct ctl *ctl, const struct command *self, const char *option,
                   const char *argument, const char *first, const char *second, bool *ret_second)
{
        *ret_second = strcmp(argument, second) == 0;
        if (*ret_second || strcmp(argument, first) == 0)
                return true;
        if (strcmp(first, second) == 0)
                ctl->exit_status =
                        usage_error(self, "--%s: '%s' is not %s", option, argument, first);
        else
                ctl->exit_status = usage_error(self, "--%s: '%s' is neither %s nor %s", option,
                                               argument, first, second);
        return false;
}

static bool percent_option(struct ctl *ctl, const struct command *self, const char *argument,
                           double *ret)
{
        if (human_parse_number(argument, ret) == 0)
                return true;
        ctl->exit_status = usage_error(
                self, "--fail-on-regress: '%s' is not a number of percent, 0 or more", argument);
        return false;
}

/* Handles an option of `run`. Returns false if the command must end with ctl->exit_status. */
static bool take_run_option(struct ctl *ctl, const struct command *self, int option,
                            const char *argument, struct sweep_options *o)
{
        static const char *const layouts[] = { "contiguous", "block-first", "outer-first", NULL },
                                 *const ops[] = { "put", "get", "mixed", NULL };

        switch (option) {
        case OPTION_LAYOUTS:
                return session_names_option(ctl, "layouts", argument, layouts, o->layouts);
        case OPTION_OPS:
                return session_names_option(ctl, "ops", argument, ops, o->ops);
        case OPTION_REGIONS:
                return session_numbers_option(ctl, "regions", argument, 32, 16 << 20, o->regions,
                                              &o->n_regions);
        case OPTION_DEPTHS:
                return session_numbers_option(ctl, "depths", argument, 1, 256, o->depths,
                                              &o->n_depths);
        case OPTION_CLIENTS:
                return session_numbers_option(ctl, "clients", argument, 1, SWEEP_MAX_CLIENTS,
                                              o->clients, &o->n_clients);
        case OPTION_LAYERS:
                return option_count(ctl, "--layers", argument, 1, 4096, &o->layers);
        case OPTION_OUTER:
                return option_count(ctl, "--outer", argument, 1, 2, &o->outer);
        case OPTION_BYTES:
                return option_bytes(ctl, "--bytes", argument, &o->bytes);
        case OPTION_ITERATIONS:
                return option_count(ctl, "--iterations", argument, 1, 10000, &o->iterations);
        case OPTION_ACK:
                if (ack_parse(argument, &o->ack))
                        return true;
                ctl->exit_status = usage_error(
                        self, "--ack: '%s' is unknown; use accepted, written or durable", argument);
                return false;
        case OPTION_COLD:
                o->cold = true;
                return true;
        case OPTION_VERIFY:
                o->verify = true;
                return true;
        }
        return true;
}

static bool take_option(struct ctl *ctl, const struct command *self, int option,
                        const char *argument, struct session_arguments *a)
{
        switch (option) {
        case OPTION_SESSION:
                a->session = argument;
                return true;
        case OPTION_RESUME:
                a->resume = true;
                return true;
        case OPTION_FORCE:
                a->force = true;
                return true;
        case OPTION_FORMAT:
                a->format = argument;
                return true;
        case 'o':
                a->output = argument;
                return true;
        case OPTION_PATH:
                return name_option(ctl, self, "path", argument, transfer_path_name, TRANSFER_PATHS,
                                   &a->report.path);
        case OPTION_LAYOUT:
                return name_option(ctl, self, "layout", argument, transfer_layout_name,
                                   TRANSFER_LAYOUTS, &a->report.layout);
        case OPTION_NO_CLOCK:
                a->report.no_clock = true;
                return true;
        case OPTION_COMPAT:
                return one_of(ctl, self, "compat", argument, "dynamo", "dynamo", &a->dynamo);
        case OPTION_BY:
                return one_of(ctl, self, "by", argument, "key", "layout", &a->by_layout);
        case OPTION_FAIL:
                return percent_option(ctl, self, argument, &a->most_percent);
        case OPTION_COUNT:
                return option_count(ctl, "--count", argument, 1, 100000000, &a->count);
        case OPTION_IO:
                a->io = true;
                return true;
        case OPTION_SNAPSHOT:
                a->snapshot = argument;
                return true;
        default:
                return take_run_option(ctl, self, option, argument, &a->sweep);
        }
}

/* Reads `export FORMAT FILE`, as Dynamo's tool has it. Returns false if that is wrong usage. */
static bool take_format_and_file(struct ctl *ctl, const struct command *self,
                                 struct session_arguments *a)
{
        if (a->format || a->output) {
                ctl->exit_status = usage_error(
                        self,
                        "export: '%s' and '%s' already give the format and the file; leave out %s",
                        a->operands[0], a->operands[1], a->format ? "--format" : "--output");
                return false;
        }
        a->format = a->operands[0];
        a->output = a->operands[1];
        a->n_operands = 0;
        return true;
}

/* Checks combinations of options and operands. Returns false after reporting an error and setting
 * ctl->exit_status. */
static bool check_operands(struct ctl *ctl, const struct command *self, enum action action,
                           const struct session_arguments *a)
{
        if ((action == INIT || action == DELETE) && a->n_operands == 0)
                ctl->exit_status = usage_error(self, "%s: name a session", action_names[action]);
        else if (action == COMPARE && a->n_operands != 2)
                ctl->exit_status = usage_error(self, "compare: name two sessions");
        else if (a->session && a->n_operands > 0)
                ctl->exit_status = usage_error(
                        self, "--session and '%s' both name a session: give one of them",
                        a->operands[0]);
        else if (a->resume && a->force)
                ctl->exit_status = usage_error(
                        self, "--resume and --force exclude each other: give one of them");
        else
                return true;
        return false;
}

/* Reads the arguments. Returns the action, or -1 if the command must end with ctl->exit_status. */
static int read_arguments(struct ctl *ctl, const struct command *self, int argc, char **argv,
                          struct session_arguments *a)
{
        const char *argument;
        uint64_t given = 0;
        int r, first, action;

        while ((r = option_next(ctl, self, argc, argv, &argument, &first)) > 0) {
                if (!take_option(ctl, self, r, argument, a))
                        return -1;
                for (unsigned i = 0; session_options[i].id; i++)
                        if (session_options[i].id == r)
                                given |= UINT64_C(1) << i;
        }
        if (r < 0)
                return -1;
        if (first == argc) {
                ctl->exit_status =
                        usage_error(self, "an action is needed, such as init, report or run");
                return -1;
        }
        action = action_index(ctl, self, argv[first++]);
        for (unsigned i = 0; action >= 0 && session_options[i].id; i++)
                if (given & UINT64_C(1) << i &&
                    !(actions_of(session_options[i].id) & 1u << action)) {
                        ctl->exit_status = usage_error(self, "--%s is not an option of %s",
                                                       name_of_option(session_options[i].id),
                                                       action_names[action]);
                        return -1;
                }
        if (action >= 0 && argc - first > most_operands[action]) {
                ctl->exit_status =
                        usage_error(self, "%s: '%s' is one operand too many", action_names[action],
                                    argv[first + most_operands[action]]);
                return -1;
        }
        for (; action >= 0 && first < argc; first++)
                a->operands[a->n_operands++] = argv[first];
        if (action == EXPORT && a->n_operands == 2 && !take_format_and_file(ctl, self, a))
                return -1;
        return action >= 0 && check_operands(ctl, self, (enum action)action, a) ? action : -1;
}

/* Returns the index of the format in `names`, or -1 after reporting that it is unknown. */
static int format_of(struct ctl *ctl, const struct command *self, const struct session_arguments *a,
                     const char *const *names)
{
        const char *wanted = a->format ? a->format : ctl->json ? "json" : names[0];
        char all[64] = "";

        for (int i = 0; names[i]; i++) {
                size_t used = strlen(all);

                if (strcmp(names[i], wanted) == 0)
                        return i;
                snprintf(all + used, sizeof(all) - used, "%s%s", i == 0 ? "" : ", ", names[i]);
        }
        ctl->exit_status = usage_error(self, "--format: '%s' is not one of %s", wanted, all);
        return -1;
}

/* --- the actions --- */

static const char *const report_formats[] = { "text", "json", "csv", "svg", "html", NULL };

bool session_is_file(const char *name)
{
        size_t n = strlen(name);

        return strchr(name, '/') || strcmp(name, "-") == 0 ||
               (n >= 5 && strcmp(name + n - 5, ".json") == 0);
}

static int load_live(struct ctl *ctl, const char *name, struct snapshot **ret)
{
        return live_session(ctl, KVCACHE_BENCH_STATUS, name, 0, ret, NULL);
}

/* Loads a file, or a session of the daemon. `name`: NULL selects the session that the environment
 * names, otherwise the active one. Returns an exit status. */
static int session_load(struct ctl *ctl, const char *name, struct snapshot **ret)
{
        char error[SNAPSHOT_ERROR_BYTES];
        int r;

        if (!name) {
                r = live_environment(&name);
                return r == SESSION_OK ? load_live(ctl, name, ret) : r;
        }
        if (!session_is_file(name)) {
                r = live_check_name("session", name);
                return r == SESSION_OK ? load_live(ctl, name, ret) : r;
        }
        r = snapshot_read(name, dynamo_parse, ret, error);
        if (r == 0)
                return SESSION_OK;
        return complain(r == -ENOENT ? SESSION_UNKNOWN : SESSION_FAILED, "%s", error);
}

/* Loads the session named by --session or the operand. */
static int load_one(struct ctl *ctl, const struct session_arguments *a, struct snapshot **ret)
{
        return session_load(ctl, a->session ? a->session : a->operands[0], ret);
}

static int run_status(struct ctl *ctl, const struct session_arguments *a)
{
        _cleanup_(snapshot_freep) struct snapshot *s = NULL;
        int status = load_one(ctl, a, &s);

        if (status != SESSION_OK)
                return status;
        return session_status_print(s, ctl->json, stdout) < 0 ? complain_memory() : SESSION_OK;
}

static int finish(struct output *out, int r, int status)
{
        int closed = output_close(out, r >= 0);

        if (r < 0)
                return complain_memory();
        return closed != EXIT_OK ? closed : status;
}

static int run_report(struct ctl *ctl, const struct command *self, struct session_arguments *a)
{
        _cleanup_(snapshot_freep) struct snapshot *s = NULL;
        struct output out;
        int format = format_of(ctl, self, a, report_formats), status;

        if (format < 0)
                return ctl->exit_status;
        a->report.format = (enum report_format)format;
        a->report.one_line = ctl->json;
        status = load_one(ctl, a, &s);
        if (status == SESSION_OK)
                status = output_open(&out, a->output);
        if (status != SESSION_OK)
                return status;
        return finish(&out, session_report(s, &a->report, out.file), SESSION_OK);
}

static int run_export(struct ctl *ctl, const struct command *self, struct session_arguments *a)
{
        static const char *const formats[] = { "json", "csv", "jsonl", NULL };
        _cleanup_(snapshot_freep) struct snapshot *s = NULL;
        struct output out;
        int format = format_of(ctl, self, a, formats), status;

        if (format < 0)
                return ctl->exit_status;
        if (a->dynamo && format != EXPORT_JSON)
                return usage_error(self,
                                   "--compat dynamo writes JSON and allows no other --format");
        if (!a->output)
                return usage_error(self, "export: name a file with --output; - is standard output");
        status = load_one(ctl, a, &s);
        if (status == SESSION_OK)
                status = output_open(&out, a->output);
        if (status != SESSION_OK)
                return status;
        return finish(
                &out,
                session_export(s, a->dynamo ? EXPORT_DYNAMO : (enum export_format)format, out.file),
                SESSION_OK);
}

static int run_compare(struct ctl *ctl, const struct command *self, struct session_arguments *a)
{
        static const char *const formats[] = { "text", "json", NULL };
        _cleanup_(snapshot_freep) struct snapshot *first = NULL, *second = NULL;
        struct compare_options options = { .by_layout = a->by_layout,
                                           .most_percent = a->most_percent,
                                           .one_line = ctl->json };
        int format = format_of(ctl, self, a, formats), status, r;
        struct output out;

        if (format < 0)
                return ctl->exit_status;
        if (strcmp(a->operands[0], "-") == 0 && strcmp(a->operands[1], "-") == 0)
                return usage_error(self,
                                   "compare: only one session can be read from standard input");
        options.json = format == 1;
        status = session_load(ctl, a->operands[0], &first);
        if (status == SESSION_OK)
                status = session_load(ctl, a->operands[1], &second);
        if (status == SESSION_OK)
                status = output_open(&out, a->output);
        if (status != SESSION_OK)
                return status;
        r = session_compare(first, second, &options, out.file);
        return finish(&out, r, r > 0 ? SESSION_PAST_THRESHOLD : SESSION_OK);
}

static int run_run(struct ctl *ctl, const struct command *self, struct session_arguments *a)
{
        int format = format_of(ctl, self, a, report_formats);

        if (format < 0)
                return ctl->exit_status;
        for (unsigned i = 0; i < a->sweep.n_regions; i++)
                if (a->sweep.regions[i] % 32 != 0)
                        return usage_error(self, "--regions: %llu is not a multiple of 32",
                                           (unsigned long long)a->sweep.regions[i]);
        if (a->session && live_check_name("--session", a->session) != SESSION_OK)
                return SESSION_WRONG_USAGE;
        a->report.format = (enum report_format)format;
        a->report.one_line = ctl->json;
        return session_run(ctl, a);
}

/* Returns SESSION_FAILED for an exit status that `session` does not have, and any other status
 * unchanged. */
static int own_status(int status)
{
        return status > SESSION_PAST_THRESHOLD && status != EXIT_INTERRUPTED ? SESSION_FAILED
                                                                             : status;
}

static int run_action(struct ctl *ctl, const struct command *self, int action,
                      struct session_arguments *a)
{
        switch (action) {
        case INIT:
                return session_init(ctl, a);
        case STATUS:
                return run_status(ctl, a);
        case REPORT:
                return run_report(ctl, self, a);
        case EXPORT:
                return run_export(ctl, self, a);
        case COMPARE:
                return run_compare(ctl, self, a);
        case RESET:
                return session_change(ctl, a, KVCACHE_BENCH_RESET, "reset", "reset");
        case ENABLE:
                return session_change(ctl, a, KVCACHE_BENCH_ENABLE, "enable", "enabled");
        case DISABLE:
                return session_change(ctl, a, KVCACHE_BENCH_DISABLE, "disable", "disabled");
        case LIST:
                return session_list(ctl);
        case DELETE:
                return session_change(ctl, a, KVCACHE_BENCH_DELETE, "delete", "deleted");
        case TEST:
                return session_test(ctl, a);
        case RUN:
                return run_run(ctl, self, a);
        }
        return ctl->exit_status;
}

static int run_session(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        struct session_arguments a = {
                .report = { .path = -1, .layout = -1 },
                .most_percent = -1,
                .count = 100,
        };

        session_run_defaults(&a.sweep);

        return own_status(run_action(ctl, self, read_arguments(ctl, self, argc, argv, &a), &a));
}

const struct command command_session = {
        .name = "session",
        .arguments = "ACTION [SESSION...]",
        .summary = "compare the costs of memory layouts: transfers by path and layout",
        .help = "Benchmark sessions: counters of the transfers by path (host_to_disk, "
                "disk_to_host,\n"
                "host_to_host, ...), by the layout of the blocks in memory (fully contiguous, or "
                "a\n"
                "buffer for each layer) and by transfer technology.\n"
                "\n"
                "  init NAME          create a session of that name, and count into it from now "
                "on\n"
                "  status [SESSION]   print a summary of the counters\n"
                "  report [SESSION]   print the figures as text, JSON, CSV, a chart, or a page "
                "with a chart\n"
                "  export [SESSION]   write the raw counters to --output; export FORMAT FILE, "
                "too\n"
                "  compare A B        compare two sessions, by key or by layout\n"
                "  reset [NAME]       to zero\n"
                "  disable, enable    stop and continue counting; the counters stay [NAME]\n"
                "  list, delete NAME  list the daemon's sessions; delete one, and its file\n"
                "  test               verify the arithmetic and, with --io, the data\n"
                "  run                put and get blocks in each layout through the daemon, or "
                "one\n"
                "                     of its own if none answers, and report what each costs\n"
                "\n"
                "SESSION is one that the daemon keeps, or a file: a snapshot, an export, or what\n"
                "Dynamo's bench_layout_transfers wrote. The name of a file has a '/' or ends\n"
                "with \".json\"; - is standard input. Without one it is $KVCACHE_BENCH_SESSION,\n"
                "else $DYNAMO_BENCHMARK_SESSION, else the active one.\n"
                "So init refuses the name - and those that end with \".json\".\n"
                "init, reset, enable, disable and delete are for admins.\n"
                "\n"
                "Exit status: 1 failure, 2 wrong usage, 3 no session is active, 4 no such\n"
                "session, 5 compare: worse than --fail-on-regress allows.",
        .options = session_options,
        .actions = action_names,
        .run = run_session,
};
