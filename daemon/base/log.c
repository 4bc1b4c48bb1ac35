/* SPDX-License-Identifier: Apache-2.0 */
/* One line, one system call: sd_journal_sendv() with fields, or write(2) of text to stderr.
 *
 * Any thread calls log_write(); threads share only the level (atomic) and what log_open() found
 * before there were threads. The context is the thread's own copy, so that it may outlive its
 * source.
 *
 * Messages contain text from clients and files: control characters are replaced before a line is
 * written, so that such text cannot forge a second line, or colours, in the log. A line that is too
 * long is cut and ends in "...". Failures cannot be reported anywhere; a line that the journal
 * refuses goes to stderr. errno is preserved. */
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "build-config.h"

#if HAVE_LIBSYSTEMD
#define SD_JOURNAL_SUPPRESS_LOCATION
#include <systemd/sd-journal.h>
#endif

#include "base/clock.h"
#include "base/log.h"
#include "checked.h"
#include "text.h"

enum { LOG_MAX_LINE = 2048, LOG_MAX_CLIENT = 64 };

static const char *const level_names[] = {
        [LOG_LEVEL_ERROR] = "error", [LOG_LEVEL_WARNING] = "warning", [LOG_LEVEL_NOTICE] = "notice",
        [LOG_LEVEL_INFO] = "info",   [LOG_LEVEL_DEBUG] = "debug",
};

static atomic_int log_level = LOG_LEVEL_INFO;
static bool log_to_journal;
static bool log_with_time = true;

static __thread struct {
        bool set;
        uint64_t session;
        int pid;
        unsigned uid;
        char client[LOG_MAX_CLIENT];
} context;

#if HAVE_LIBSYSTEMD
/* Is stderr the very stream that the service manager made? It tells by device and inode; a daemon
 * started from a shell within such a service inherits the variable, but not the stream. */
static bool stderr_is_journal(void)
{
        const char *stream = getenv("JOURNAL_STREAM");
        unsigned long long dev, ino;
        struct stat st;
        char rest;

        if (!stream || sscanf(stream, "%llu:%llu%c", &dev, &ino, &rest) != 2)
                return false;
        if (fstat(STDERR_FILENO, &st) < 0 || st.st_dev != dev || st.st_ino != ino)
                return false;
        /* sd_journal_sendv() succeeds silently where there is no journal to send to */
        return access("/run/systemd/journal/socket", W_OK) == 0;
}
#endif

void log_open(void)
{
        int saved = errno;

        log_to_journal = false;
#if HAVE_LIBSYSTEMD
        log_to_journal = stderr_is_journal();
#endif
        log_with_time = !isatty(STDERR_FILENO);
        errno = saved;
}

void log_set_level(enum log_level level)
{
        atomic_store_explicit(&log_level, (int)level, memory_order_relaxed);
}

bool log_enabled(enum log_level level)
{
        return (int)level <= atomic_load_explicit(&log_level, memory_order_relaxed);
}

int log_level_from_name(const char *name, enum log_level *ret)
{
        for (unsigned i = LOG_LEVEL_ERROR; i <= LOG_LEVEL_DEBUG; i++)
                if (strcmp(name, level_names[i]) == 0) {
                        *ret = (enum log_level)i;
                        return 0;
                }
        return -EINVAL;
}

void log_set_context(const struct log_context *c)
{
        context.set = c != NULL;
        if (!c)
                return;
        context.session = c->session;
        context.pid = c->pid;
        context.uid = c->uid;
        snprintf(context.client, sizeof(context.client), "%s", c->client ? c->client : "");
        text_clean(context.client);
}

__attribute__((format(printf, 4, 5))) static size_t append(char *line, size_t size, size_t used,
                                                           const char *fmt, ...)
{
        va_list args;
        int n;

        va_start(args, fmt);
        n = vsnprintf(line + used, size - used, fmt, args);
        va_end(args);
        return n < 0 ? used : MIN(used + (size_t)n, size - 1);
}

static void write_text(enum log_level level, const char *message)
{
        char line[LOG_MAX_LINE + 256];
        size_t n = 0;
        ssize_t written;

        if (log_with_time) {
                uint64_t ms = clock_unix_ms();
                time_t seconds = (time_t)(ms / 1000);
                struct tm tm;

                gmtime_r(&seconds, &tm);
                n += strftime(line, sizeof(line), "%Y-%m-%dT%H:%M:%S", &tm);
                n = append(line, sizeof(line), n, ".%03uZ ", (unsigned)(ms % 1000));
        }
        n = append(line, sizeof(line), n, "kvcache-daemon: %s: ", level_names[level]);
        if (context.set)
                n = append(line, sizeof(line), n, "session %llu (%s%spid %d, uid %u): ",
                           (unsigned long long)context.session, context.client,
                           *context.client ? ", " : "", context.pid, context.uid);
        n = append(line, sizeof(line) - 1, n, "%s", message);
        line[n++] = '\n';
        do
                written = write(STDERR_FILENO, line, n);
        while (written < 0 && errno == EINTR);
}

#if HAVE_LIBSYSTEMD
static int write_journal(enum log_level level, const char *file, int line, const char *func,
                         const char *message)
{
        struct iovec iov[10];
        char fields[10][LOG_MAX_LINE + 32];
        int n = 0;

#define FIELD(...)                                                                                 \
        do {                                                                                       \
                iov[n].iov_len = append(fields[n], sizeof(fields[n]), 0, __VA_ARGS__);             \
                iov[n].iov_base = fields[n];                                                       \
                n++;                                                                               \
        } while (0)
        FIELD("MESSAGE=%s", message);
        FIELD("PRIORITY=%d", (int)level);
        FIELD("SYSLOG_IDENTIFIER=kvcache-daemon");
        FIELD("CODE_FILE=%s", file);
        FIELD("CODE_LINE=%d", line);
        FIELD("CODE_FUNC=%s", func);
        if (context.set) {
                FIELD("KVCACHE_SESSION=%llu", (unsigned long long)context.session);
                FIELD("KVCACHE_PEER_PID=%d", context.pid);
                FIELD("KVCACHE_PEER_UID=%u", context.uid);
                if (*context.client)
                        FIELD("KVCACHE_CLIENT=%s", context.client);
        }
#undef FIELD
        return sd_journal_sendv(iov, n);
}
#endif

void log_write(enum log_level level, const char *file, int line, const char *func, const char *fmt,
               ...)
{
        char message[LOG_MAX_LINE];
        int saved = errno;
        va_list args;
        int n;

        assert(level >= LOG_LEVEL_ERROR && level <= LOG_LEVEL_DEBUG);

        va_start(args, fmt);
        n = vsnprintf(message, sizeof(message), fmt, args);
        va_end(args);
        if (n < 0)
                snprintf(message, sizeof(message), "(a message that cannot be shown)");
        if (n >= (int)sizeof(message))
                strcpy(message + sizeof(message) - 4, "...");
        text_clean(message);

#if HAVE_LIBSYSTEMD
        if (log_to_journal && write_journal(level, file, line, func, message) >= 0) {
                errno = saved;
                return;
        }
#endif
        write_text(level, message);
        errno = saved;
}

bool log_ratelimit_pass(struct log_ratelimit *r, uint32_t *ret_held_back)
{
        const uint64_t second = 1000000000u;
        uint64_t now = clock_mono_ns(), seconds;

        if (r->refilled_ns == 0)
                r->refilled_ns = now;
        if (now > r->refilled_ns) {
                seconds = (now - r->refilled_ns) / second;
                r->tokens = (uint32_t)MIN((uint64_t)r->tokens + seconds,
                                          MAX((uint64_t)r->burst, (uint64_t)1));
                r->refilled_ns += seconds * second;
        }
        if (r->tokens == 0) {
                if (r->held_back < UINT32_MAX)
                        r->held_back++;
                return false;
        }
        r->tokens--;
        *ret_held_back = r->held_back;
        r->held_back = 0;
        return true;
}
