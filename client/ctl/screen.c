/* SPDX-License-Identifier: Apache-2.0 */
#include "screen.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "checked.h"
#include "latency.h"

#define TAKE_SCREEN "\033[?1049h\033[?25l"
#define GIVE_BACK   "\033[?25h\033[?1049l"

static const int ending[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };

/* State of the one screen. Signal handlers read `before`, `raw` and `has_keys`, which are set
 * before the handlers are installed, and set `changed`. */
static struct {
        struct termios before, raw;
        bool has_keys; /* standard input is a terminal, and `before` is the original state of that
                          terminal */
        bool input_ended;
        bool entered;
        volatile sig_atomic_t changed; /* the size changed, or the screen must be redrawn */
        sigset_t waiting; /* signal mask during waits, in which SIGWINCH is not blocked */
} screen;

/* take() and give_back() are called by signal handlers and use only async-signal-safe functions. */
static void take(void)
{
        ssize_t n = write(STDOUT_FILENO, TAKE_SCREEN, strlen(TAKE_SCREEN));

        (void)n;
        if (screen.has_keys)
                tcsetattr(STDIN_FILENO, TCSANOW, &screen.raw);
}

static void give_back(void)
{
        ssize_t n = write(STDOUT_FILENO, GIVE_BACK, strlen(GIVE_BACK));

        (void)n;
        if (screen.has_keys)
                tcsetattr(STDIN_FILENO, TCSANOW, &screen.before);
}

/* SA_RESETHAND has restored the default action of the signal, and because of SA_NODEFER raise()
 * performs that action at once. */
static void on_end(int signal)
{
        give_back();
        raise(signal);
}

static void on_stop(int signal)
{
        int saved = errno;

        give_back();
        raise(SIGSTOP);
        take();
        screen.changed = 1;
        errno = saved;
}

static void on_resize(int signal)
{
        screen.changed = 1;
}

bool screen_possible(void)
{
        const char *term = getenv("TERM");

        return isatty(STDOUT_FILENO) && term && *term && strcmp(term, "dumb") != 0;
}

void screen_enter(void)
{
        struct sigaction end = { .sa_handler = on_end, .sa_flags = (int)SA_RESETHAND | SA_NODEFER };
        struct sigaction stop = { .sa_handler = on_stop, .sa_flags = SA_RESTART };
        struct sigaction resize = { .sa_handler = on_resize, .sa_flags = SA_RESTART };
        sigset_t winch;

        screen.has_keys = tcgetattr(STDIN_FILENO, &screen.before) == 0;
        screen.raw = screen.before;
        screen.raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO); /* ISIG stays set: Ctrl-C raises a
                                                             signal */
        screen.raw.c_cc[VMIN] = 1;
        screen.raw.c_cc[VTIME] = 0;
        screen.entered = true;
        for (size_t i = 0; i < ARRAY_SIZE(ending); i++) {
                struct sigaction was;

                /* Keep SIGHUP ignored under nohup. */
                if (sigaction(ending[i], NULL, &was) == 0 && was.sa_handler != SIG_IGN)
                        sigaction(ending[i], &end, NULL);
        }
        sigaction(SIGTSTP, &stop, NULL);
        sigaction(SIGWINCH, &resize, NULL);
        sigemptyset(&winch);
        sigaddset(&winch, SIGWINCH);
        sigprocmask(SIG_BLOCK, &winch, &screen.waiting);
        take();
}

void screen_leave(void)
{
        if (!screen.entered)
                return;
        screen.entered = false;
        for (size_t i = 0; i < ARRAY_SIZE(ending); i++)
                signal(ending[i], SIG_DFL);
        signal(SIGTSTP, SIG_DFL);
        signal(SIGWINCH, SIG_DFL);
        give_back();
}

void screen_size(unsigned *ret_lines, unsigned *ret_columns)
{
        struct winsize size;
        bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;

        *ret_lines = known && size.ws_row > 0 ? size.ws_row : 24;
        *ret_columns = known && size.ws_col > 0 ? size.ws_col : 80;
}

/* Returns the number of bytes of a line that fit into `columns` columns, at one column per code
 * point. Colour sequences take no column. */
static size_t cut(const char *line, size_t bytes, unsigned columns)
{
        unsigned n = 0;
        size_t i;

        for (i = 0; i < bytes; i++) {
                if (line[i] == '\033') {
                        i += strcspn(line + i, "m\n");
                        continue;
                }
                n += ((unsigned char)line[i] & 0xc0) != 0x80;
                if (n > columns)
                        break;
        }
        return i;
}

int screen_paint(const char *text)
{
        unsigned lines, columns;

        screen_size(&lines, &columns);
        fputs("\033[H", stdout);
        for (unsigned i = 0; i < lines && *text; i++) {
                size_t bytes = strcspn(text, "\n");

                fprintf(stdout, "%s%.*s%s\033[K", i > 0 ? "\n" : "", (int)cut(text, bytes, columns),
                        text, memchr(text, '\033', bytes) ? "\033[0m" : "");
                text += bytes + (text[bytes] != '\0');
        }
        fputs("\033[J", stdout);
        return fflush(stdout) != 0 || ferror(stdout) ? -EIO : 0;
}

/* Reads a key that has been pressed, without blocking. Returns SCREEN_TIMEOUT if there is none, or
 * if the key has no meaning. */
static enum screen_event read_key(void)
{
        char key;
        ssize_t n = read(STDIN_FILENO, &key, 1);

        if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
                screen.input_ended = true;
        if (n != 1)
                return SCREEN_TIMEOUT;
        return key == 'q' || key == 'Q' ? SCREEN_QUIT
               : key == ' '             ? SCREEN_REFRESH
                                        : SCREEN_TIMEOUT;
}

enum screen_event screen_wait(uint64_t deadline_ns)
{
        for (;;) {
                bool keys = screen.has_keys && !screen.input_ended;
                struct pollfd input = { .fd = keys ? STDIN_FILENO : -1, .events = POLLIN };
                uint64_t now = latency_now_ns(), left = deadline_ns - MIN(now, deadline_ns);
                struct timespec timeout = { .tv_sec = (time_t)(left / 1000000000),
                                            .tv_nsec = (long)(left % 1000000000) };
                enum screen_event event;

                if (screen.changed) {
                        screen.changed = 0;
                        return SCREEN_RESIZED;
                }
                if (left == 0)
                        return SCREEN_TIMEOUT;
                if (ppoll(&input, 1, &timeout, &screen.waiting) <= 0)
                        continue;
                event = read_key();
                if (event != SCREEN_TIMEOUT)
                        return event;
        }
}
