/* SPDX-License-Identifier: Apache-2.0 */
#include "watch.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "color.h"
#include "human.h"
#include "latency.h"
#include "screen.h"
#include "text.h"

/* Timeout of a request. The daemon normally answers within milliseconds, so a longer delay is
 * shown as a lost connection. */
enum { WATCH_TIMEOUT_MS = 5000 };

bool watch_interval(struct ctl *ctl, const char *option, const char *text, double *ret)
{
        if (human_parse_number(text, ret) == 0 && *ret >= 0.1 && *ret <= 3600)
                return true;
        ctl->exit_status =
                complain(EXIT_WRONG_USAGE, "%s: '%s' is not a number of seconds from 0.1 to 3600",
                         option, text);
        return false;
}

/* Closes the connection after a missing answer; the next interval connects again. */
static void watch_lose(struct watch *w, int r)
{
        const char *error = w->ctl->kv ? kvcache_error(w->ctl->kv) : "";

        if (*error)
                snprintf(w->error, sizeof(w->error), "%s", error);
        else if (!*w->error)
                snprintf(w->error, sizeof(w->error), "%s", strerror(-r));
        text_clean(w->error);
        if (!w->lost_ms)
                w->lost_ms = latency_unix_ms();
        kvcache_close(w->ctl->kv);
        w->ctl->kv = NULL;
        if (w->forget)
                w->forget(w->userdata);
}

/* Asks the daemon, after connecting again if necessary. Returns -ENOMEM, otherwise 0: any other
 * failure is kept in `w`, and shown. */
static int watch_ask(struct watch *w)
{
        char error[CTL_ERROR_BYTES];
        int r = 0;

        if (!w->ctl->kv) {
                r = ctl_try_connect(w->ctl, error);
                if (r < 0)
                        snprintf(w->error, sizeof(w->error), "%s", error);
        }
        if (r >= 0)
                r = w->ask(w->ctl, w->userdata);
        if (r == -ENOMEM)
                return r;
        if (r < 0) {
                watch_lose(w, r);
                return 0;
        }
        w->answered_ms = latency_unix_ms();
        w->lost_ms = 0;
        w->error[0] = '\0';
        return 0;
}

/* --- output as JSON, text or a screen --- */

static int show_json(const struct watch *w)
{
        _cleanup_(cJSON_Deletep) cJSON *lost = NULL;

        if (!w->lost_ms)
                return w->print_json(w->userdata);
        lost = cJSON_CreateObject();
        cJSON_AddNumberToObject(lost, "unix_ms", (double)latency_unix_ms());
        cJSON_AddBoolToObject(lost, "connected", false);
        cJSON_AddNumberToObject(lost, "lost_unix_ms", (double)w->lost_ms);
        cJSON_AddStringToObject(lost, "message", w->error);
        return print_json(lost);
}

/* Prints the time, a line if the daemon does not answer, and the last answer below. */
static void print_all(const struct watch *w, unsigned lines, FILE *out)
{
        bool colored = color_wanted(stdout);
        char now[HUMAN_BYTES], since[HUMAN_BYTES];
        unsigned used = 1;

        human_time(latency_unix_ms(), now);
        fprintf(out, "%s, every %g s%s\n", now, w->interval, w->screen ? "; q quits" : "");
        if (w->lost_ms) {
                human_time(w->lost_ms, since);
                fprintf(out, "%sNO ANSWER%s since %s, trying again: %s\n",
                        color_begin(COLOR_BAD, colored), color_end(COLOR_BAD, colored), since,
                        w->error);
                used++;
        }
        if (!w->answered_ms || (w->lost_ms && !w->screen))
                return; /* print nothing: in a log, old figures would be mistaken for new ones */
        if (w->lost_ms) {
                human_time(w->answered_ms, since);
                fprintf(out, "The last figures, of %s:\n", since);
                used++;
        }
        if (lines == 0 || lines > used)
                w->print(w->userdata, lines ? lines - used : 0, colored, out);
}

static int show_text(const struct watch *w)
{
        _cleanup_(freep) char *text = NULL;
        unsigned lines = 0, columns;
        size_t bytes;
        FILE *out;

        if (w->screen)
                screen_size(&lines, &columns);
        out = open_memstream(&text, &bytes);
        if (!out)
                return complain_memory();
        print_all(w, lines, out);
        if (fclose(out) != 0 || !text)
                return complain_memory();
        if (w->screen)
                return screen_paint(text) < 0 ? complain_output(EIO) : EXIT_OK;
        printf("%s\n", text);
        return EXIT_OK;
}

static int watch_show(const struct watch *w)
{
        int r = w->ctl->json ? show_json(w) : show_text(w);

        errno = 0;
        return r == EXIT_OK && fflush(stdout) != 0 ? complain_output(errno) : r;
}

/* --- the loop --- */

/* Waits until `deadline` or until the user requests a refresh. Returns false if the user ends the
 * command. */
static bool watch_wait(const struct watch *w, uint64_t deadline)
{
        if (!w->screen) {
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
                        (void)watch_show(w); /* if the terminal is closed, the next call fails */
                        break;
                default:
                        return true;
                }
        }
}

static int watch_loop(struct watch *w)
{
        uint64_t step = (uint64_t)(w->interval * 1e9), due = latency_now_ns();
        unsigned long long shown = w->at_once;
        int r = w->screen || w->at_once ? watch_show(w) : EXIT_OK;

        while (r == EXIT_OK && (w->count == 0 || shown < w->count)) {
                uint64_t now = latency_now_ns();

                /* If the answer took longer than the interval, the next one begins now. */
                due = due + step > now ? due + step : now + step;
                if (!watch_wait(w, due))
                        return EXIT_OK;
                if (latency_now_ns() <
                    due) /* the user has requested a refresh before the end of the interval */
                        due = latency_now_ns();
                if (watch_ask(w) < 0)
                        return complain_memory();
                r = watch_show(w);
                shown++;
        }
        return r == EXIT_OK && w->lost_ms ? EXIT_UNREACHABLE : r;
}

int watch_run(struct watch *w)
{
        int r;

        w->ctl->request_timeout_ms = WATCH_TIMEOUT_MS;
        r = ctl_connect(w->ctl);
        if (r)
                return r;
        w->screen = !w->batch && !w->ctl->json && screen_possible();
        if (watch_ask(w) < 0)
                return complain_memory();
        if (w->screen)
                screen_enter();
        r = watch_loop(w);
        screen_leave();
        if (w->screen && w->count > 0) { /* the terminal no longer shows the last interval */
                int shown;

                w->screen = false;
                shown = watch_show(w);
                return r == EXIT_OK ? shown : r;
        }
        return r;
}
