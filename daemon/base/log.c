/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a line with one system call: sd_journal_sendv() with fields, or write(2) of text or JSON
 * to stderr.
 *
 * Any thread calls log_write(); threads share only the level and the format (atomic), and the
 * results of log_open(), which ran before there were threads. Each thread has its own copy of the
 * context, so that it may outlive its source.
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

enum { LOG_MAX_LINE = 2048, LOG_MAX_CLIENT = 64, LOG_MAX_NAME = 256 };

static const char *const level_names[] = {
        [LOG_LEVEL_ERROR] = "error", [LOG_LEVEL_WARNING] = "warning", [LOG_LEVEL_NOTICE] = "notice",
        [LOG_LEVEL_INFO] = "info",   [LOG_LEVEL_DEBUG] = "debug",
};

static const char *const format_names[] = {
        [LOG_FORMAT_AUTO] = "auto",
        [LOG_FORMAT_TEXT] = "text",
        [LOG_FORMAT_JOURNAL] = "journal",
        [LOG_FORMAT_JSON] = "json",
};

static atomic_int log_level = LOG_LEVEL_INFO;
static atomic_int log_format = LOG_FORMAT_TEXT;     /* never LOG_FORMAT_AUTO */
static enum log_format log_found = LOG_FORMAT_TEXT; /* the format chosen by LOG_FORMAT_AUTO */
static bool log_with_time = true;

/* The place in the code that logs a line. */
struct place {
        const char *file, *func;
        int line;
        char id[33]; /* message id, the same in every version until the text, the file's name or the
                        function's name changes */
};

static __thread struct {
        bool set;
        uint64_t session;
        int pid;
        unsigned uid;
        char client[LOG_MAX_CLIENT];
} context;

static __thread const struct log_operation *operation;

#if HAVE_LIBSYSTEMD
/* Returns whether stderr is the stream whose device and inode the service manager has stored in
 * JOURNAL_STREAM. A daemon started from a shell within such a service inherits this variable, but
 * not the stream. */
static bool stderr_is_journal(void)
{
        const char *stream = getenv("JOURNAL_STREAM");
        unsigned long long dev, ino;
        struct stat st;
        char rest;

        if (!stream || sscanf(stream, "%llu:%llu%c", &dev, &ino, &rest) != 2)
                return false;
        return fstat(STDERR_FILENO, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}
#endif

/* Returns whether there is a journal. Without one, sd_journal_sendv() succeeds silently. */
static bool has_journal(void)
{
        return HAVE_LIBSYSTEMD && access("/run/systemd/journal/socket", W_OK) == 0;
}

void log_open(void)
{
        int saved = errno;

        log_found = LOG_FORMAT_TEXT;
#if HAVE_LIBSYSTEMD
        if (stderr_is_journal() && has_journal())
                log_found = LOG_FORMAT_JOURNAL;
#endif
        atomic_store_explicit(&log_format, (int)log_found, memory_order_relaxed);
        log_with_time = !isatty(STDERR_FILENO);
        errno = saved;
}

int log_set_format(const char *name)
{
        unsigned f = LOG_FORMAT_AUTO;

        while (f < ARRAY_SIZE(format_names) && strcmp(name, format_names[f]) != 0)
                f++;
        if (f == ARRAY_SIZE(format_names))
                return -EINVAL;
        if (f == LOG_FORMAT_JOURNAL && !has_journal())
                return -ENOTSUP;
        if (f == LOG_FORMAT_AUTO)
                f = log_found;
        atomic_store_explicit(&log_format, (int)f, memory_order_relaxed);
        return 0;
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

void log_set_operation(const struct log_operation *o)
{
        operation = o;
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

static size_t append_time(char *line, size_t size)
{
        uint64_t ms = clock_unix_ms();
        time_t seconds = (time_t)(ms / 1000);
        struct tm tm;
        size_t n;

        gmtime_r(&seconds, &tm);
        n = strftime(line, size, "%Y-%m-%dT%H:%M:%S", &tm);
        return append(line, size, n, ".%03uZ", (unsigned)(ms % 1000));
}

static void write_line(const char *line, size_t n)
{
        ssize_t written;

        do
                written = write(STDERR_FILENO, line, n);
        while (written < 0 && errno == EINTR);
}

static void write_text(enum log_level level, const char *message)
{
        char line[LOG_MAX_LINE + 256];
        size_t n = 0;

        if (log_with_time) {
                n = append_time(line, sizeof(line));
                line[n++] = ' ';
        }
        n = append(line, sizeof(line), n, "kvcache-daemon: %s: ", level_names[level]);
        if (context.set)
                n = append(line, sizeof(line), n, "session %llu (%s%spid %d, uid %u): ",
                           (unsigned long long)context.session, context.client,
                           *context.client ? ", " : "", context.pid, context.uid);
        n = append(line, sizeof(line) - 1, n, "%s", message);
        line[n++] = '\n';
        write_line(line, n);
}

/* --- lines as JSON and in the journal --- */

/* Returns the number of bytes of the UTF-8 character at `p`, or 0 if it is invalid. */
static unsigned character_at(const unsigned char *p)
{
        static const struct {
                unsigned char mask, lead;
                uint32_t least;
        } forms[] = { { 0x80, 0x00, 0 },
                      { 0xe0, 0xc0, 0x80 },
                      { 0xf0, 0xe0, 0x800 },
                      { 0xf8, 0xf0, 0x10000 } };

        for (unsigned n = 0; n < ARRAY_SIZE(forms); n++) {
                uint32_t c = *p & (unsigned char)~forms[n].mask;

                if ((*p & forms[n].mask) != forms[n].lead)
                        continue;
                for (unsigned i = 1; i <= n; i++) {
                        if ((p[i] & 0xc0) != 0x80)
                                return 0;
                        c = c << 6 | (p[i] & 0x3f);
                }
                return c < forms[n].least || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff) ? 0
                                                                                          : n + 1;
        }
        return 0;
}

/* Appends `,"name":"text"`, with invalid UTF-8 replaced by U+FFFD, as JSON requires. `size` must
 * have room for six times the text. */
static size_t append_string(char *line, size_t size, size_t used, const char *name,
                            const char *text)
{
        const unsigned char *p = (const unsigned char *)text;

        used = append(line, size, used, ",\"%s\":\"", name);
        while (*p) {
                unsigned n = character_at(p);

                if (n == 0)
                        used = append(line, size, used, "\xef\xbf\xbd");
                else if (*p == '"' || *p == '\\')
                        used = append(line, size, used, "\\%c", *p);
                else if (*p < 0x20)
                        used = append(line, size, used, "\\u%04x", *p);
                else
                        used = append(line, size, used, "%.*s", (int)n, (const char *)p);
                p += MAX(n, 1u);
        }
        return append(line, size, used, "\"");
}

/* Appends a string without control characters. Names come from clients and are cut, so that a line
 * has room for all fields. */
static size_t append_cleaned(char *line, size_t size, size_t used, const char *name,
                             const char *text)
{
        char clean[LOG_MAX_NAME];

        if (!text)
                return used;
        snprintf(clean, sizeof(clean), "%s", text);
        return append_string(line, size, used, name, text_clean(clean));
}

static void write_json(enum log_level level, const struct place *at, const char *message)
{
        char line[6 * (LOG_MAX_LINE + LOG_MAX_CLIENT + 3 * LOG_MAX_NAME) + 1024];
        size_t size = sizeof(line) - 2, n;

        n = append(line, size, 0, "{\"time\":\"");
        n += append_time(line + n, size - n);
        n = append(line, size, n, "\"");
        n = append_string(line, size, n, "level", level_names[level]);
        n = append_string(line, size, n, "message", message);
        if (context.set) {
                n = append(line, size, n, ",\"session\":%llu,\"pid\":%d,\"uid\":%u",
                           (unsigned long long)context.session, context.pid, context.uid);
                n = append_string(line, size, n, "client", context.client);
        }
        if (operation) {
                n = append_cleaned(line, size, n, "operation", operation->operation);
                n = append_cleaned(line, size, n, "namespace", operation->namespace_name);
                n = append_cleaned(line, size, n, "tenant", operation->tenant);
                n = append(line, size, n, ",\"chunks\":%llu",
                           (unsigned long long)operation->chunks);
        }
        n = append_string(line, size, n, "id", at->id);
        n = append_string(line, size, n, "file", at->file);
        n = append(line, size, n, ",\"line\":%d", at->line);
        n = append_string(line, size, n, "function", at->func);
        memcpy(line + n, "}\n", 2);
        write_line(line, n + 2);
}

#if HAVE_LIBSYSTEMD
static int write_journal(enum log_level level, const struct place *at, const char *message)
{
        struct iovec iov[15];
        char fields[15][LOG_MAX_LINE + 32];
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
        FIELD("MESSAGE_ID=%s", at->id);
        FIELD("CODE_FILE=%s", at->file);
        FIELD("CODE_LINE=%d", at->line);
        FIELD("CODE_FUNC=%s", at->func);
        if (context.set) {
                FIELD("KVCACHE_SESSION=%llu", (unsigned long long)context.session);
                FIELD("KVCACHE_PEER_PID=%d", context.pid);
                FIELD("KVCACHE_PEER_UID=%u", context.uid);
                if (*context.client)
                        FIELD("KVCACHE_CLIENT=%s", context.client);
        }
        if (operation) {
                FIELD("KVCACHE_OPERATION=%s", operation->operation);
                if (operation->namespace_name)
                        FIELD("KVCACHE_NAMESPACE=%s", operation->namespace_name);
                if (operation->tenant)
                        FIELD("KVCACHE_TENANT=%s", operation->tenant);
                FIELD("KVCACHE_CHUNKS=%llu", (unsigned long long)operation->chunks);
        }
#undef FIELD
        return sd_journal_sendv(iov, n);
}
#endif

/* Continues an FNV-1a hash. */
static uint64_t hash_on(uint64_t hash, const char *text)
{
        for (const unsigned char *p = (const unsigned char *)text; *p; p++)
                hash = (hash ^ *p) * UINT64_C(0x100000001b3);
        return hash;
}

/* Computes the id of a message from its format string and the names of file and function, without
 * the line number, so that a search for the id also finds the message in later versions. */
static void make_id(const char *file, const char *func, const char *fmt, char ret[static 33])
{
        const char *name = strrchr(file, '/');
        uint64_t high = hash_on(UINT64_C(0xcbf29ce484222325), name ? name + 1 : file);
        uint64_t low = hash_on(UINT64_C(0xcbf29ce484222325), fmt);

        snprintf(ret, 33, "%016llx%016llx", (unsigned long long)hash_on(high, func),
                 (unsigned long long)hash_on(low, func));
}

void log_write(enum log_level level, const char *file, int line, const char *func, const char *fmt,
               ...)
{
        enum log_format format = atomic_load_explicit(&log_format, memory_order_relaxed);
        struct place at = { .file = file, .func = func, .line = line };
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
        if (format != LOG_FORMAT_TEXT)
                make_id(file, func, fmt, at.id);

#if HAVE_LIBSYSTEMD
        if (format == LOG_FORMAT_JOURNAL && write_journal(level, &at, message) >= 0) {
                errno = saved;
                return;
        }
#endif
        if (format == LOG_FORMAT_JSON)
                write_json(level, &at, message);
        else
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
