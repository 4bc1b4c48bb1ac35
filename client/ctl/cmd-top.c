/* SPDX-License-Identifier: Apache-2.0 */
/* `top`: shows live rates, refreshed every interval. Each interval fetches the page of metrics
 * and shows the changes since the last one. After a lost connection the rates start again,
 * because the daemon's counters may have. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "answer.h"
#include "commands.h"
#include "common.h"
#include "latency.h"
#include "samples.h"
#include "screen.h"
#include "top.h"
#include "watch.h"

struct top {
        struct samples pages[2]; /* [0]: page of the last interval; [1]: page of the one before */
        uint64_t taken_ns[2];    /* time at which each page was fetched, ns; 0: no page */
        cJSON *figures;          /* figures of the last interval */
        bool has_host;           /* `host` was asked for on this connection */
        char host[256];          /* the daemon's host; empty: the status does not name it */
};

static void top_forget(void *userdata)
{
        struct top *top = userdata;

        for (int i = 0; i < 2; i++) {
                samples_fini(&top->pages[i]);
                top->taken_ns[i] = 0;
        }
        top->has_host = false;
}

/* Gets the name of the daemon's host, which the page of metrics does not have. Asks once for each
 * connection. Returns 0 or -errno. */
static int top_ask_host(struct ctl *ctl, struct top *top)
{
        _cleanup_(cJSON_Deletep) cJSON *status = NULL;
        char *text;
        int r;

        if (top->has_host)
                return 0;
        r = kvcache_report(ctl->kv, KVCACHE_REPORT_STATUS, &text);
        if (r < 0)
                return r;
        status = cJSON_Parse(text);
        free(text);
        snprintf(top->host, sizeof(top->host), "%s", answer_text(status, "host"));
        top->has_host = true;
        return 0;
}

static int top_ask(struct ctl *ctl, void *userdata)
{
        struct top *top = userdata;
        double seconds = NAN;
        char *text;
        int r;

        r = top_ask_host(ctl, top);
        if (r < 0)
                return r;
        r = kvcache_report(ctl->kv, KVCACHE_REPORT_METRICS, &text);
        if (r < 0)
                return r;
        samples_fini(&top->pages[1]);
        top->pages[1] = top->pages[0];
        top->taken_ns[1] = top->taken_ns[0];
        top->taken_ns[0] = latency_now_ns();
        r = samples_parse(text, &top->pages[0]);
        if (r < 0)
                return r;
        if (top->taken_ns[1])
                seconds = (double)(top->taken_ns[0] - top->taken_ns[1]) / 1e9;
        cJSON_Delete(top->figures);
        top->figures =
                top_figures(&top->pages[0], top->taken_ns[1] ? &top->pages[1] : NULL, seconds);
        cJSON_AddStringToObject(top->figures, "host", top->host);
        cJSON_AddNumberToObject(top->figures, "unix_ms", (double)latency_unix_ms());
        cJSON_AddBoolToObject(top->figures, "connected", true);
        return top->figures ? 0 : -ENOMEM;
}

static int top_print_json(void *userdata)
{
        const struct top *top = userdata;

        return print_json(top->figures);
}

static void top_print_text(void *userdata, unsigned lines, bool colored, FILE *out)
{
        const struct top *top = userdata;
        unsigned height, columns = 0;

        if (lines > 0)
                screen_size(&height, &columns);
        top_print(top->figures, lines, columns, colored, out);
}

static const struct option_row top_options[] = {
        { 'i', "interval", "SECONDS", "refresh every SECONDS (default: 1; 0.1 to 3600)" },
        { 'c', "count", "N",
          "end after N intervals, the last of which stays on the terminal\n"
          "(default: run until interrupted)" },
        { 'b', "batch", NULL,
          "print each interval below the one before, with all rows; the default\n"
          "where standard output is no terminal" },
        { 0 },
};

/* Reads the options. Returns false if the command must end with ctl->exit_status. */
static bool read_options(struct watch *watch, const struct command *self, int argc, char **argv)
{
        struct ctl *ctl = watch->ctl;
        const char *argument;
        int r, first;

        while ((r = option_next(ctl, self, argc, argv, &argument, &first)) > 0) {
                if (r == 'b') {
                        watch->batch = true;
                } else if (r == 'c') {
                        if (!option_count(ctl, "--count", argument, 1, 1000000000, &watch->count))
                                return false;
                } else if (!watch_interval(ctl, "--interval", argument, &watch->interval)) {
                        return false;
                }
        }
        if (r < 0)
                return false;
        ctl->exit_status = answer_no_operands(self, argc, argv, first);
        return ctl->exit_status == EXIT_OK;
}

static int run_top(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        struct top top = { 0 };
        struct watch watch = { .ctl = ctl,
                               .interval = 1,
                               .ask = top_ask,
                               .forget = top_forget,
                               .print_json = top_print_json,
                               .print = top_print_text,
                               .userdata = &top };
        int r;

        if (!read_options(&watch, self, argc, argv))
                return ctl->exit_status;
        r = watch_run(&watch);
        top_forget(&top);
        cJSON_Delete(top.figures);
        return r;
}

const struct command command_top = {
        .name = "top",
        .arguments = "",
        .summary = "show live rates and latencies, refreshed every second",
        .help = "Shows rates and latencies of the last interval: requests, hits and misses, bytes "
                "in\n"
                "and out, p50 and p99 of each operation; how full pool and store are; the waiting\n"
                "requests; and the volumes, tenants and namespaces, busiest first.\n"
                "\n"
                "On a terminal the display is redrawn in place, cut to its size; q or Ctrl-C ends\n"
                "it, and the space bar refreshes it immediately. While the daemon does not\n"
                "answer, top says so and retries. With --json, prints one object a line.",
        .options = top_options,
        .run = run_top,
};
