/* SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "human.h"
#include "checked.h"

enum { BAR_MOST = 40, BAR_LEAST = 10 };

void progress_init(struct progress *p)
{
        const char *term = getenv("TERM");

        *p = (struct progress){
                .shown = isatty(STDERR_FILENO) && (!term || strcmp(term, "dumb") != 0),
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

void progress_show(struct progress *p, double part, const char *tail)
{
        char line[512];

        if (!p->shown)
                return;
        progress_format(terminal_columns(), part, tail, line, sizeof(line));
        fprintf(stderr, "\r%s\033[K", line);
        fflush(stderr);
}

void progress_end(struct progress *p)
{
        if (p->shown)
                fputs("\r\033[K", stderr);
        p->shown = false;
}
