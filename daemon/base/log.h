/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: to journald with fields if the daemon's stderr is the journal, otherwise to stderr as
 * text, unless log.format says otherwise.
 *
 * main.c, the server's files, and the rooms session/, request/, tenant/ and report/ log; the rooms
 * below them return errors. Any thread. A line states an event and its consequence. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum log_level {
        LOG_LEVEL_ERROR = 3,
        LOG_LEVEL_WARNING = 4,
        LOG_LEVEL_NOTICE = 5,
        LOG_LEVEL_INFO = 6,
        LOG_LEVEL_DEBUG = 7
};

enum log_format {
        LOG_FORMAT_AUTO,    /* the journal if stderr is its stream (JOURNAL_STREAM names its device
                             * and inode), otherwise text */
        LOG_FORMAT_TEXT,    /* one line on stderr */
        LOG_FORMAT_JOURNAL, /* the journal, wherever stderr goes; lines that it refuses go to
                             * stderr */
        LOG_FORMAT_JSON,    /* one JSON object per line of stderr */
};

/* Initializes logging with LOG_FORMAT_AUTO. Call it once, before any other function. */
void log_open(void);
/* Sets the format: "auto", "text", "journal" or "json". Returns 0, -EINVAL for another name, or
 * -ENOTSUP for "journal" if there is no journal. The format is unchanged after a failure. */
int log_set_format(const char *name);
/* log_set_level() sets the least important level that is logged. log_enabled() returns whether
 * lines of a level are logged. */
void log_set_level(enum log_level level);
bool log_enabled(enum log_level level);
/* Parses "error", "warning", "notice", "info" or "debug". Returns 0 or -EINVAL. */
int log_level_from_name(const char *name, enum log_level *ret);

/* Context of this thread's next lines: the session and its peer, as journal fields KVCACHE_SESSION,
 * KVCACHE_PEER_PID, KVCACHE_PEER_UID and KVCACHE_CLIENT, as members in JSON, and as a prefix in
 * text. `client` is the client's name for itself, or NULL. The struct is copied; NULL ends the
 * context. */
struct log_context {
        uint64_t session;
        int pid;
        unsigned uid;
        const char *client;
};
void log_set_context(const struct log_context *c);

/* Context of this thread's next lines about an operation on stored data: journal fields
 * KVCACHE_OPERATION, KVCACHE_NAMESPACE, KVCACHE_TENANT and KVCACHE_CHUNKS, and members in JSON;
 * absent in text. A NULL namespace_name or tenant is omitted. `o` is not copied and must stay valid
 * until a call with NULL ends the context. */
struct log_operation {
        const char *operation, *namespace_name, *tenant;
        uint64_t chunks;
};
void log_set_operation(const struct log_operation *o);

/* Writes one line, whatever the level; callers use the macros below. */
void log_write(enum log_level level, const char *file, int line, const char *func, const char *fmt,
               ...) __attribute__((format(printf, 5, 6)));

#define log_at(level, ...)                                                                         \
        do {                                                                                       \
                if (log_enabled(level))                                                            \
                        log_write((level), __FILE__, __LINE__, __func__, __VA_ARGS__);             \
        } while (0)
#define log_error(...)   log_at(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_at(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_notice(...)  log_at(LOG_LEVEL_NOTICE, __VA_ARGS__)
#define log_info(...)    log_at(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...)   log_at(LOG_LEVEL_DEBUG, __VA_ARGS__)

/* Limits lines that a client can cause: at most `burst` in a row, then one per second. Suppressed
 * lines are counted, and reported with the next line that passes ("(12 similar lines held
 * back)"). */
struct log_ratelimit {
        uint32_t burst;
        uint32_t tokens;
        uint32_t held_back;
        uint64_t refilled_ns;
};
#define LOG_RATELIMIT_INIT(n)                                                                      \
        {                                                                                          \
                .burst = (n), .tokens = (n)                                                        \
        }
/* Returns whether a line may be written now, and then sets *ret_held_back to the number suppressed
 * since the last one. */
bool log_ratelimit_pass(struct log_ratelimit *r, uint32_t *ret_held_back);
