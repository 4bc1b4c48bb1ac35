/* SPDX-License-Identifier: Apache-2.0 */
#include "trace.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "checked.h"
#include "cleanup.h"

enum { MAX_LINE_BYTES = 16 * 1024 * 1024 };
#define MAX_EXACT 9007199254740992.0 /* 2^53: a double represents all integers up to it */

struct trace {
        FILE *file;
        char *name;
        struct trace_format format;
        uint64_t line_number;
        uint64_t timestamp_ms;
        char *line;
        size_t line_room;
        uint64_t *ids;
        size_t ids_room;
};

DEFINE_CLEANUP(cJSON *, cJSON_Delete);
DEFINE_CLEANUP(struct trace *, trace_close);

__attribute__((format(printf, 3, 4))) static int malformed(const struct trace *t, char *ret_error,
                                                           const char *format, ...)
{
        char text[256];
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(text, sizeof(text), format, arguments);
        va_end(arguments);
        snprintf(ret_error, TRACE_ERROR_BYTES, "%.200s:%llu: %s", t->name,
                 (unsigned long long)t->line_number, text);
        return -EBADMSG;
}

int trace_open(struct trace **ret, const char *path, const struct trace_format *format,
               char ret_error[static TRACE_ERROR_BYTES])
{
        _cleanup_(trace_closep) struct trace *t = calloc(1, sizeof(*t));
        struct stat st;
        int r;

        if (!t)
                return -ENOMEM;
        t->format = *format;
        if (strcmp(path, "-") == 0) {
                t->file = stdin;
                t->name = strdup("standard input");
        } else {
                t->file = fopen(path, "re");
                if (!t->file) {
                        r = -errno;
                        snprintf(ret_error, TRACE_ERROR_BYTES, "%.200s: %s", path, strerror(-r));
                        return r;
                }
                t->name = strdup(path);
        }
        if (!t->name)
                return -ENOMEM;
        if (fstat(fileno(t->file), &st) == 0 && S_ISDIR(st.st_mode)) {
                snprintf(ret_error, TRACE_ERROR_BYTES, "%.200s: is a directory, not a trace", path);
                return -EISDIR;
        }
        *ret = TAKE_PTR(t);
        return 0;
}

struct trace *trace_close(struct trace *t)
{
        if (!t)
                return NULL;
        if (t->file && t->file != stdin)
                fclose(t->file);
        free(t->name);
        free(t->line);
        free(t->ids);
        free(t);
        return NULL;
}

static int grow(void *array, size_t *room, size_t need, size_t each)
{
        size_t n = MAX(*room * 2, need + 256);
        void *p = reallocarray(*(void **)array, n, each);

        if (!p)
                return -ENOMEM;
        *(void **)array = p;
        *room = n;
        return 0;
}

/* Reads one line without its newline into t->line. Returns its length; -ENODATA at the end; -EFBIG
 * if the line is too long; -ENOMEM or -EIO. */
static ssize_t read_line(struct trace *t)
{
        size_t n = 0;
        int c = EOF;

        for (;;) {
                if (n + 1 >= t->line_room && grow(&t->line, &t->line_room, n + 2, 1) < 0)
                        return -ENOMEM;
                c = getc_unlocked(t->file);
                if (c == EOF || c == '\n')
                        break;
                if (n >= MAX_LINE_BYTES)
                        return -EFBIG;
                t->line[n++] = (char)c;
        }
        if (c == EOF && ferror(t->file))
                return -EIO;
        if (c == EOF && n == 0)
                return -ENODATA;
        t->line[n] = '\0';
        return (ssize_t)n;
}

static bool is_count(const cJSON *item)
{
        return cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble <= MAX_EXACT;
}

/* Checks the beginning of the file. Returns 0; -EBADMSG with a message that names the kind of file
 * if it is a known one that is not a trace. */
static int check_kind(const struct trace *t, size_t length, char *ret_error)
{
        static const struct {
                const char *magic, *remedy;
        } kinds[] = {
                { "\x1f\x8b", "is compressed: unpack it with \"gzip -dc\"" },
                { "\xfd"
                  "7zXZ",
                  "is compressed: unpack it with \"xz -dc\"" },
                { "\x28\xb5\x2f\xfd", "is compressed: unpack it with \"zstd -dc\"" },
                { "BZh", "is compressed: unpack it with \"bzip2 -dc\"" },
                { "version https://git-lfs", "is a pointer of Git LFS: fetch the file with \"git "
                                             "lfs pull\"" },
                { "[", "is an array of JSON: write one object a line with \"jq -c .[]\"" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
                size_t n = strlen(kinds[i].magic);

                if (length >= n && memcmp(t->line, kinds[i].magic, n) == 0)
                        return malformed(t, ret_error, "%s", kinds[i].remedy);
        }
        return 0;
}

static int read_count(struct trace *t, const cJSON *object, const char *name, uint64_t absent,
                      uint64_t *ret, char *ret_error)
{
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

        if (!item) {
                *ret = absent;
                return 0;
        }
        if (!is_count(item))
                return malformed(t, ret_error, "\"%s\" is not a number from 0 to 2^53", name);
        *ret = (uint64_t)item->valuedouble;
        return 0;
}

static int read_ids(struct trace *t, const cJSON *object, size_t *ret_n, char *ret_error)
{
        const cJSON *array = cJSON_GetObjectItemCaseSensitive(object, "hash_ids"), *item;
        size_t n = 0;

        if (!array)
                return malformed(t, ret_error, "\"hash_ids\" is missing");
        if (!cJSON_IsArray(array))
                return malformed(t, ret_error, "\"hash_ids\" is not an array");
        cJSON_ArrayForEach(item, array)
        {
                /* 2^53 may have been 2^53 + 1 in the file: the two ids would be one block. */
                if (!is_count(item) || item->valuedouble != floor(item->valuedouble) ||
                    item->valuedouble >= MAX_EXACT)
                        return malformed(
                                t, ret_error,
                                "item %zu of \"hash_ids\" is not an integer from 0 to 2^53 - 1",
                                n + 1);
                if (n == t->ids_room && grow(&t->ids, &t->ids_room, n + 1, sizeof(*t->ids)) < 0)
                        return -ENOMEM;
                t->ids[n++] = (uint64_t)item->valuedouble;
        }
        *ret_n = n;
        return 0;
}

/* Reads the time of a request in ms; a request without a timestamp gets that of the line before.
 * Returns 0 or -EBADMSG. */
static int read_timestamp(struct trace *t, const cJSON *object, uint64_t *ret, char *ret_error)
{
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, "timestamp");
        double ms;

        if (!item && cJSON_GetObjectItemCaseSensitive(object, "delay"))
                return malformed(t, ret_error,
                                 "\"delay\" without \"timestamp\": a time after the session's "
                                 "answer is not supported; add a timestamp to each request");
        if (!item) {
                *ret = t->timestamp_ms;
                return 0;
        }
        if (!is_count(item) || item->valuedouble * 1000 > MAX_EXACT)
                return malformed(t, ret_error, "\"timestamp\" is not a number from 0 to 2^53/1000");
        if (t->format.unit == TRACE_UNKNOWN && item->valuedouble != floor(item->valuedouble))
                return malformed(t, ret_error,
                                 "\"timestamp\" has a fraction: set its unit with --time-unit s "
                                 "(seconds) or --time-unit ms (milliseconds)");
        ms = t->format.unit == TRACE_SECONDS ? round(item->valuedouble * 1000) : item->valuedouble;
        *ret = (uint64_t)ms;
        if (*ret < t->timestamp_ms)
                return malformed(t, ret_error,
                                 "\"timestamp\" is less than in a line before: sort the lines by "
                                 "it");
        return 0;
}

/* Checks that the number of blocks fits the prompt's tokens, unless the block size was given or the
 * request has no tokens or no blocks. Some traces list only the full blocks of a prompt, and others
 * also its last, partial block. Returns 0 or -EBADMSG. */
static int check_block_tokens(const struct trace *t, const struct trace_request *request,
                              char *ret_error)
{
        uint64_t n = request->n_ids, tokens = request->input_tokens;

        if (t->format.block_tokens != 0 || tokens == 0 || n == 0)
                return 0;
        if (tokens <= (n + 1) * TRACE_BLOCK_TOKENS &&
            tokens + TRACE_BLOCK_TOKENS >= n * TRACE_BLOCK_TOKENS)
                return 0;
        return malformed(t, ret_error,
                         "%llu tokens in %llu blocks: blocks do not have %d tokens here; set "
                         "--tokens-per-block (about %llu)",
                         (unsigned long long)tokens, (unsigned long long)n, TRACE_BLOCK_TOKENS,
                         (unsigned long long)((tokens + n - 1) / n));
}

int trace_next(struct trace *t, struct trace_request *ret, char ret_error[static TRACE_ERROR_BYTES])
{
        _cleanup_(cJSON_Deletep) cJSON *object = NULL;
        struct trace_request request = { 0 };
        const char *end = NULL;
        ssize_t n;
        int r;

        do {
                n = read_line(t);
                if (n == -ENODATA)
                        return 0;
                t->line_number++;
                if (n == -EFBIG)
                        return malformed(t, ret_error,
                                         "the line is longer than %d MiB, so this is not a trace",
                                         MAX_LINE_BYTES / 1024 / 1024);
                if (n < 0) {
                        malformed(t, ret_error, "%s", strerror((int)-n));
                        return (int)n;
                }
                if (t->line_number == 1 && check_kind(t, (size_t)n, ret_error) < 0)
                        return -EBADMSG;
        } while (strspn(t->line, " \t\r") == (size_t)n);

        if (strlen(t->line) != (size_t)n)
                return malformed(t, ret_error, "the line has a NUL byte, so this is not a trace");
        object = cJSON_ParseWithOpts(t->line, &end, true);
        if (!object)
                return malformed(t, ret_error, "the line is not JSON from column %zu on: \"%.20s\"",
                                 end ? (size_t)(end - t->line) + 1 : 1, end ? end : t->line);
        if (!cJSON_IsObject(object))
                return malformed(t, ret_error, "the line is not a JSON object");

        r = read_timestamp(t, object, &request.timestamp_ms, ret_error);
        if (r < 0)
                return r;
        r = read_count(t, object, "input_length", 0, &request.input_tokens, ret_error);
        if (r < 0)
                return r;
        r = read_count(t, object, "output_length", 0, &request.output_tokens, ret_error);
        if (r < 0)
                return r;
        r = read_ids(t, object, &request.n_ids, ret_error);
        if (r < 0)
                return r;
        r = check_block_tokens(t, &request, ret_error);
        if (r < 0)
                return r;
        t->timestamp_ms = request.timestamp_ms;
        request.ids = t->ids;
        *ret = request;
        return 1;
}
