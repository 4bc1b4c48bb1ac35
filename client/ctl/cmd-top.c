/* SPDX-License-Identifier: Apache-2.0 */
/* `top`: what the daemon does now, anew every interval.
 *
 * Each interval fetches the page of metrics and shows what has changed since the last one. On a
 * terminal the display is redrawn in place; elsewhere, and with --batch or --json, each interval is
 * printed below the one before. A daemon that stops answering is shown as such, and connected to
 * again every interval; its counters then begin anew, and so do the rates. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "answer.h"
#include "commands.h"
#include "common.h"
#include "human.h"
#include "latency.h"
#include "samples.h"
#include "screen.h"
#include "text.h"
#include "top.h"

/* The daemon answers at once, or is in trouble that should be seen. */
enum { TOP_TIMEOUT_MS = 5000 };

struct top {
        struct ctl *ctl;
        double interval; /* seconds */
        unsigned long long count;
        bool screen;
        struct samples pages[2];     /* of the last interval, and of the one before */
        uint64_t taken_ns[2];        /* when; 0: there is no page */
        cJSON *figures;              /* of the last answer */
        uint64_t answered_ms;        /* Unix time of it */
        char error[CTL_ERROR_BYTES]; /* why there is no answer; "": there is one */
        uint64_t lost_ms;            /* since when */
};

/* --- figures --- */

static void top_forget(struct top *top)
{
        for (int i = 0; i < 2; i++) {
                samples_fini(&top->pages[i]);
                top->taken_ns[i] = 0;
        }
}

/* No answer: the connection is closed, and made again for the next interval. */
static void top_lose(struct top *top, int r)
{
        const char *error = top->ctl->kv ? kvcache_error(top->ctl->kv) : "";

        if (*error)
                snprintf(top->error, sizeof(top->error), "%s", error);
        else if (!*top->error)
                snprintf(top->error, sizeof(top->error), "%s", strerror(-r));
        text_clean(top->error);
        if (!top->lost_ms)
                top->lost_ms = latency_unix_ms();
        kvcache_close(top->ctl->kv);
        top->ctl->kv = NULL;
        top_forget(top);
}

/* -ENOMEM; any other failure is shown, and 0. */
static int top_sample(struct top *top)
{
        char error[CTL_ERROR_BYTES], *text;
        double seconds = NAN;
        int r = 0;

        if (!top->ctl->kv) {
                r = ctl_try_connect(top->ctl, error);
                if (r < 0)
                        snprintf(top->error, sizeof(top->error), "%s", error);
        }
        if (r >= 0)
                r = kvcache_report(top->ctl->kv, KVCACHE_REPORT_METRICS, &text);
        if (r < 0 && r != -ENOMEM)
                top_lose(top, r);
        if (r < 0)
                return r == -ENOMEM ? r : 0;

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
        top->answered_ms = latency_unix_ms();
        cJSON_AddNumberToObject(top->figures, "unix_ms", (double)top->answered_ms);
        cJSON_AddBoolToObject(top->figures, "connected", true);
        top->lost_ms = 0;
        top->error[0] = '\0';
        return top->figures ? 0 : -ENOMEM;
}

/* --- three ways to show them --- */

static int top_show_json(const struct top *top)
{
        _cleanup_(cJSON_Deletep) cJSON *lost = NULL;

        if (!top->lost_ms)
                return print_json(top->figures);
        lost = cJSON_CreateObject();
        cJSON_AddNumberToObject(lost, "unix_ms", (double)latency_unix_ms());
        cJSON_AddBoolToObject(lost, "connected", false);
        cJSON_AddNumberToObject(lost, "lost_unix_ms", (double)top->lost_ms);
        cJSON_AddStringToObject(lost, "message", top->error);
        return print_json(lost);
}

/* The first two lines, and the figures below them. */
static void top_print_all(const struct top *top, unsigned lines, FILE *out)
{
        char now[HUMAN_BYTES], since[HUMAN_BYTES];
        unsigned used = 1;

        human_time(latency_unix_ms(), now);
        fprintf(out, "%s, every %g s%s\n", now, top->interval, top->screen ? "; q quits" : "");
        if (top->lost_ms) {
                human_time(top->lost_ms, since);
                fprintf(out, "NO ANSWER since %s, trying again: %s\n", since, top->error);
                used++;
        }
        if (!top->figures || (top->lost_ms && !top->screen))
                return; /* in a log, old figures would be taken for new ones */
        if (top->lost_ms) {
                human_time(top->answered_ms, since);
                fprintf(out, "The last figures, of %s:\n", since);
                used++;
        }
        if (lines == 0 || lines > used)
                top_print(top->figures, lines ? lines - used : 0, out);
}

static int top_show_text(const struct top *top)
{
        _cleanup_(freep) char *text = NULL;
        unsigned lines = 0, columns;
        size_t bytes;
        FILE *out;

        if (top->screen)
                screen_size(&lines, &columns);
        out = open_memstream(&text, &bytes);
        if (!out)
                return complain_memory();
        top_print_all(top, lines, out);
        if (fclose(out) != 0 || !text)
                return complain_memory();
        if (top->screen)
                return screen_paint(text) < 0 ? EXIT_LOCAL : EXIT_OK;
        printf("%s\n", text);
        return EXIT_OK;
}

static int top_show(const struct top *top)
{
        int r = top->ctl->json ? top_show_json(top) : top_show_text(top);

        errno = 0;
        return r == EXIT_OK && fflush(stdout) != 0 ? complain_output(errno) : r;
}

/* --- the loop --- */

/* Until `deadline`; false: the user has had enough. */
static bool top_wait(const struct top *top, uint64_t deadline)
{
        if (!top->screen) {
                struct timespec until = { .tv_sec = (time_t)(deadline / 1000000000),
                                          .tv_nsec = (long)(deadline % 1000000000) };

                while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
                        ;
                return true;
        }
        for (;;) {
                switch (screen_wait(deadline)) {
                case SCREEN_QUIT:
                        return false;
                case SCREEN_RESIZED:
                        (void)top_show(top); /* if the terminal is closed, the next one fails */
                        break;
                default:
                        return true;
                }
        }
}

/* The first page is only what the second is compared with; on a terminal it is shown without rates,
 * so that the screen is not empty. */
static int top_loop(struct top *top)
{
        uint64_t step = (uint64_t)(top->interval * 1e9), due = latency_now_ns();
        unsigned long long shown = 0;
        int r;

        if (top->screen)
                r = top_show(top);
        else
                r = EXIT_OK;
        while (r == EXIT_OK) {
                uint64_t now = latency_now_ns();

                /* After a wait for the daemon, an interval is a whole one again. */
                due = due + step > now ? due + step : now + step;
                if (!top_wait(top, due))
                        return EXIT_OK;
                if (latency_now_ns() < due) /* the user asked for it early */
                        due = latency_now_ns();
                if (top_sample(top) < 0)
                        return complain_memory();
                r = top_show(top);
                if (top->count && ++shown == top->count)
                        break;
        }
        return r == EXIT_OK && top->lost_ms ? EXIT_UNREACHABLE : r;
}

static const struct option_row top_options[] = {
        { 'i', "interval", "SECONDS", "how often (default: 1; 0.1 to 3600)" },
        { 'c', "count", "N", "end after N intervals (default: go on until interrupted)" },
        { 'b', "batch", NULL,
          "print each interval below the one before, with all rows; the default\n"
          "where standard output is no terminal" },
        { 0 },
};

/* False: the command ends with ctl->exit_status. */
static bool read_options(struct top *top, const struct command *self, int argc, char **argv,
                         bool *ret_batch)
{
        struct ctl *ctl = top->ctl;
        const char *argument;
        int r, first;

        while ((r = option_next(ctl, self, argc, argv, &argument, &first)) > 0) {
                if (r == 'b') {
                        *ret_batch = true;
                } else if (r == 'c') {
                        if (!option_count(ctl, "--count", argument, 1, 1000000000, &top->count))
                                return false;
                } else if (human_parse_number(argument, &top->interval) < 0 ||
                           top->interval < 0.1 || top->interval > 3600) {
                        ctl->exit_status = complain(EXIT_WRONG_USAGE,
                                                    "--interval: '%s' is not a number of seconds "
                                                    "from 0.1 to 3600",
                                                    argument);
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
        struct top top = { .ctl = ctl, .interval = 1 };
        bool batch = false;
        int r;

        if (!read_options(&top, self, argc, argv, &batch))
                return ctl->exit_status;
        ctl->request_timeout_ms = TOP_TIMEOUT_MS;
        r = ctl_connect(ctl);
        if (r)
                return r;
        top.screen = !batch && !ctl->json && screen_possible();
        r = top_sample(&top);
        if (r == 0) {
                if (top.screen)
                        screen_enter();
                r = top_loop(&top);
                screen_leave();
        } else {
                r = complain_memory();
        }
        top_forget(&top);
        cJSON_Delete(top.figures);
        return r;
}

const struct command command_top = {
        .name = "top",
        .arguments = "",
        .summary = "show what the daemon does, anew every second",
        .help = "Shows rates and latencies of the last interval: requests, hits and misses, bytes\n"
                "in and out, p50 and p99 of each operation; how full pool and store are and what\n"
                "waits; and the volumes, tenants and namespaces, busiest first.\n"
                "\n"
                "On a terminal the display is redrawn in place, cut to its size; q or Ctrl-C ends\n"
                "it, the space bar refreshes it at once. While the daemon does not answer, top\n"
                "says so and tries again. With --json, prints one object a line.",
        .options = top_options,
        .run = run_top,
};
