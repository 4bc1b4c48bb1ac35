/* SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "human.h"
#include "checked.h"
#include "latency.h"

enum { BAR_MOST = 40, BAR_LEAST = 10 };
enum { SECOND_NS = 1000000000, REDRAW_NS = SECOND_NS / 10 };

static bool is_drawn; /* a line of progress is on the terminal */

void progress_init(struct progress *p)
{
        const char *term = getenv("TERM");

        *p = (struct progress){
                .shown = isatty(STDERR_FILENO) && (!term || strcmp(term, "dumb") != 0),
                .due_ns = latency_now_ns() + SECOND_NS,
        };
}

void progress_bar(double part, size_t width, char *ret)
{
        size_t filled = (size_t)((double)width * MIN(MAX(part, 0.0), 1.0) + 0.5);

        memset(ret, '.', width);
        memset(ret, '#', filled);
        ret[width] = '\0';
}

void progress_format(unsigned columns, double part, const char *tail, char *ret, size_t room)
{
        size_t tail_width = human_width(tail), width;
        char bar[BAR_MOST + 1];

        width = columns > tail_width + 3 ? MIN((size_t)columns - tail_width - 3, (size_t)BAR_MOST)
                                         : 0;
        if (width < BAR_LEAST) {
                snprintf(ret, room, "%.*s", (int)columns - 1, tail + 1);
                return;
        }
        progress_bar(part, width, bar);
        snprintf(ret, room, "[%s]%s", bar, tail);
}

static unsigned terminal_columns(void)
{
        struct winsize size;

        return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_col == 0 ? 80 : size.ws_col;
}

void progress_show_text(struct progress *p, const char *text)
{
        if (!p->shown)
                return;
        fprintf(stderr, "\r%s\033[K", text);
        fflush(stderr);
        is_drawn = true;
}

void progress_show(struct progress *p, double part, const char *tail)
{
        char line[512];

        if (!p->shown)
                return;
        progress_format(terminal_columns(), part, tail, line, sizeof(line));
        progress_show_text(p, line);
}

void progress_note(struct progress *p, double part, const char *doing, uint64_t n, const char *noun)
{
        char things[HUMAN_BYTES], tail[128];
        uint64_t now_ns;

        if (!p->shown)
                return;
        now_ns = latency_now_ns();
        if (now_ns < p->due_ns)
                return;
        p->due_ns = now_ns + REDRAW_NS;
        human_things(n, noun, things);
        snprintf(tail, sizeof(tail), " %3.0f %%  %.40s: %s", 100 * MIN(MAX(part, 0.0), 1.0), doing,
                 things);
        progress_show(p, part, tail);
}

void progress_clear(void)
{
        if (is_drawn)
                fputs("\r\033[K", stderr);
        is_drawn = false;
}

void progress_end(struct progress *p)
{
        if (p->shown)
                progress_clear();
        p->shown = false;
}
