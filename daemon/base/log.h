/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: to journald with fields when the daemon's stderr is the journal, else to stderr as
 * text, unless told otherwise (log.format).
 *
 * `server`, `session` and `main` log; parts return. Any thread may call. A line says what happened
 * and what follows. */
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
        LOG_FORMAT_AUTO,    /* the journal if stderr is it (JOURNAL_STREAM against its device and
                             * inode), otherwise text */
        LOG_FORMAT_TEXT,    /* a line to stderr */
        LOG_FORMAT_JOURNAL, /* the journal, wherever stderr goes; what it refuses goes to stderr */
        LOG_FORMAT_JSON,    /* an object on a line of stderr */
};

/* Call once, first: LOG_FORMAT_AUTO. */
void log_open(void);
/* "auto", "text", "journal" or "json". 0; -EINVAL: none of them; -ENOTSUP: there is no journal
 * here, and the format stays what it was. */
int log_set_format(const char *name);
void log_set_level(enum log_level level);
bool log_enabled(enum log_level level);
/* "error", "warning", "notice", "info", "debug". 0, -EINVAL. */
int log_level_from_name(const char *name, enum log_level *ret);

/* Fields of this thread's next lines: the session's number and peer, as journal fields
 * KVCACHE_SESSION, KVCACHE_PEER_PID, KVCACHE_PEER_UID, and as a prefix in text. NULL ends it. */
struct log_context {
        uint64_t session;
        int pid;
        unsigned uid;
        const char *client;
};
void log_set_context(const struct log_context *c);

/* Fields of this thread's next lines that describe an operation on stored data: journal fields
 * KVCACHE_OPERATION, KVCACHE_NAMESPACE, KVCACHE_TENANT and KVCACHE_CHUNKS. A NULL name or tenant is
 * left out. `o` is not copied and must stay valid until NULL ends it. */
struct log_operation {
        const char *operation, *namespace_name, *tenant;
        uint64_t chunks;
};
void log_set_operation(const struct log_operation *o);

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

/* For lines that a client can cause: at most `burst` in a row, then one a second; what was held
 * back is counted and said with the next line that passes ("(12 similar lines held back)"). */
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
/* May a line go out now? Sets *ret_held_back to how many did not since the last that did. */
bool log_ratelimit_pass(struct log_ratelimit *r, uint32_t *ret_held_back);
