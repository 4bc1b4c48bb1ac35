/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a YAML file, once per command. Owns the parsed document. libyaml shares aliased nodes
 * instead of copying them, and only scalars of one mapping are read, so the memory of a small file
 * stays small. */
#include "yaml-file.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checked.h"
#include "text.h"
#include "cleanup.h"
#include "common.h"

enum {
        SHOWN_BYTES = 48, /* maximum bytes of a text of the file in a message */
        MOST_KEYS = 64,   /* maximum number of keys of one mapping */
};

/* Returns the length of the UTF-8 sequence that begins at `p`, or 0 if it is invalid or
 * incomplete. */
static size_t plain_bytes(const unsigned char *p)
{
        size_t n = p[0] < 0x80   ? 1
                   : p[0] < 0xc2 ? 0
                   : p[0] < 0xe0 ? 2
                   : p[0] < 0xf0 ? 3
                   : p[0] < 0xf5 ? 4
                                 : 0;

        for (size_t i = 1; i < n; i++)
                if ((p[i] & 0xc0) != 0x80)
                        return 0;
        return n;
}

const char *yaml_file_shown(const char *text, char *buffer, size_t room)
{
        static const char dots[] = "...";
        const unsigned char *p = (const unsigned char *)text;
        size_t n = 0, cut = 0; /* `cut`: where the text may be cut if the rest does not fit */

        while (*p != '\0') {
                char piece[16];
                size_t taken = text_control((const char *)p), length;

                if (taken == 0 && (length = plain_bytes(p)) > 0) {
                        memcpy(piece, p, length);
                        taken = length;
                } else {
                        taken = MAX(taken, (size_t)1);
                        for (size_t i = 0; i < taken; i++)
                                snprintf(piece + 4 * i, 5, "\\x%02x", p[i]);
                        length = 4 * taken;
                        if (*p == '\n' || *p == '\t')
                                length = (size_t)snprintf(piece, sizeof(piece), "\\%c",
                                                          *p == '\n' ? 'n' : 't');
                }
                if (n + length >= room) {
                        strcpy(buffer + cut, dots);
                        return buffer;
                }
                memcpy(buffer + n, piece, length);
                n += length;
                p += taken;
                if (n + sizeof(dots) <= room)
                        cut = n;
        }
        buffer[n] = '\0';
        return buffer;
}

/* Prints a message; `status` distinguishes a warning, EXIT_OK, from an error. */
static void say(const struct yaml_file *f, int status, const yaml_node_t *node, const char *format,
                va_list arguments) __attribute__((format(printf, 4, 0)));
static void say(const struct yaml_file *f, int status, const yaml_node_t *node, const char *format,
                va_list arguments)
{
        const char *kind = status == EXIT_OK ? "warning: " : "";
        char text[512], path[512]; /* a path may come from a pattern, and contain any character */

        vsnprintf(text, sizeof(text), format, arguments);
        yaml_file_shown(f->path, path, sizeof(path));
        if (node)
                complain(status, "%s:%zu:%zu: %s%s", path, node->start_mark.line + 1,
                         node->start_mark.column + 1, kind, text);
        else
                complain(status, "%s: %s%s", path, kind, text);
}

int yaml_file_error(const struct yaml_file *f, const yaml_node_t *node, const char *format, ...)
{
        va_list arguments;

        va_start(arguments, format);
        say(f, EXIT_LOCAL, node, format, arguments);
        va_end(arguments);
        return -EINVAL;
}

void yaml_file_warn(const struct yaml_file *f, const yaml_node_t *node, const char *format, ...)
{
        va_list arguments;

        va_start(arguments, format);
        say(f, EXIT_OK, node, format, arguments);
        va_end(arguments);
}

static int read_file(const char *path, char **ret, size_t *ret_bytes)
{
        _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
        _cleanup_(freep) char *text = NULL;
        size_t bytes = 0;

        if (fd < 0)
                return -errno;
        text = malloc(YAML_FILE_MAX_BYTES + 1);
        if (!text)
                return -ENOMEM;
        for (;;) {
                ssize_t n = read(fd, text + bytes, YAML_FILE_MAX_BYTES + 1 - bytes);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return -errno;
                if (n == 0)
                        break;
                bytes += n;
                if (bytes > YAML_FILE_MAX_BYTES)
                        return -EFBIG;
        }
        *ret = TAKE_PTR(text);
        *ret_bytes = bytes;
        return 0;
}

int yaml_file_open(struct yaml_file *ret, const char *path)
{
        _cleanup_(freep) char *text = NULL;
        size_t bytes = 0;
        int r;

        *ret = (struct yaml_file){ .path = path };
        r = read_file(path, &text, &bytes);
        if (r == -EFBIG) {
                yaml_file_error(ret, NULL,
                                "is larger than %d KiB, and describes no model or deployment",
                                YAML_FILE_MAX_BYTES / 1024);
                return r;
        }
        if (r < 0) {
                yaml_file_error(ret, NULL, "%s", strerror(-r));
                return r;
        }
        return yaml_file_parse(ret, path, text, bytes);
}

/* Reports libyaml's error with its position. Returns -ENOMEM or -EINVAL. */
static int syntax_error(const struct yaml_file *f, const yaml_parser_t *parser)
{
        const char *problem = parser->problem ? parser->problem : "cannot be read";
        yaml_node_t at = { .start_mark = parser->problem_mark };

        switch (parser->error) {
        case YAML_MEMORY_ERROR:
                complain_memory();
                return -ENOMEM;
        case YAML_READER_ERROR:
                return yaml_file_error(f, NULL, "is not a text file: %s at byte %zu", problem,
                                       parser->problem_offset);
        default:
                if (parser->context)
                        return yaml_file_error(f, &at, "%s, %s", parser->context, problem);
                return yaml_file_error(f, &at, "%s", problem);
        }
}

int yaml_file_parse(struct yaml_file *ret, const char *path, const void *text, size_t bytes)
{
        yaml_parser_t parser;
        yaml_document_t more;
        int r = 0;

        *ret = (struct yaml_file){ .path = path };
        if (!yaml_parser_initialize(&parser)) {
                complain_memory();
                return -ENOMEM;
        }
        yaml_parser_set_input_string(&parser, text, bytes);
        if (!yaml_parser_load(&parser, &ret->document)) {
                r = syntax_error(ret, &parser);
                goto finish;
        }
        ret->loaded = true;
        ret->root = yaml_document_get_root_node(&ret->document);
        if (!ret->root || yaml_file_is_null(ret->root)) {
                r = yaml_file_error(ret, NULL, "is empty");
                goto finish;
        }
        if (ret->root->type != YAML_MAPPING_NODE) {
                r = yaml_file_error(ret, ret->root, "must be a mapping of keys to values");
                goto finish;
        }
        if (!yaml_parser_load(&parser, &more)) {
                r = syntax_error(ret, &parser);
                goto finish;
        }
        if (yaml_document_get_root_node(&more))
                r = yaml_file_error(ret, yaml_document_get_root_node(&more),
                                    "a second document begins here; a file must have only one");
        yaml_document_delete(&more);
finish:
        yaml_parser_delete(&parser);
        return r;
}

void yaml_file_close(struct yaml_file *f)
{
        if (f->loaded)
                yaml_document_delete(&f->document);
        f->loaded = false;
}

/* Returns a scalar without NUL bytes as a C string, or NULL. */
static const char *scalar(const yaml_node_t *node)
{
        if (node->type != YAML_SCALAR_NODE ||
            strlen((const char *)node->data.scalar.value) != node->data.scalar.length)
                return NULL;
        return (const char *)node->data.scalar.value;
}

int yaml_file_each(struct yaml_file *f, const yaml_node_t *mapping,
                   int (*pair)(struct yaml_file *f, const yaml_node_t *key_node, const char *key,
                               const yaml_node_t *value, void *data),
                   void *data)
{
        const yaml_node_pair_t *first = mapping->data.mapping.pairs.start;
        const yaml_node_pair_t *end = mapping->data.mapping.pairs.top;
        char word[SHOWN_BYTES];

        if (end - first > MOST_KEYS)
                return yaml_file_error(f, mapping, "has more than %d keys", MOST_KEYS);
        for (const yaml_node_pair_t *p = first; p < end; p++) {
                const yaml_node_t *key_node = yaml_document_get_node(&f->document, p->key);
                const yaml_node_t *value = yaml_document_get_node(&f->document, p->value);
                const char *key = scalar(key_node);
                int r;

                if (!key)
                        return yaml_file_error(f, key_node, "a key must be plain text");
                for (const yaml_node_pair_t *q = first; q < p; q++) {
                        const yaml_node_t *other = yaml_document_get_node(&f->document, q->key);

                        if (strcmp((const char *)other->data.scalar.value, key) == 0)
                                return yaml_file_error(f, key_node,
                                                       "%s: is given twice, first in line %zu",
                                                       yaml_file_shown(key, word, sizeof(word)),
                                                       other->start_mark.line + 1);
                }
                r = pair(f, key_node, key, value, data);
                if (r < 0)
                        return r;
        }
        return 0;
}

bool yaml_file_is_null(const yaml_node_t *node)
{
        const char *text = scalar(node);

        if (!text || node->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
                return false;
        return strcmp(text, "") == 0 || strcmp(text, "~") == 0 || strcmp(text, "null") == 0 ||
               strcmp(text, "Null") == 0 || strcmp(text, "NULL") == 0;
}

/* Gets the text of a value. Returns 0; -EINVAL after reporting the type of a value that is not a
 * text, or a NUL byte in it. */
static int value_text(const struct yaml_file *f, const char *key, const yaml_node_t *value,
                      const char *wanted, const char **ret)
{
        const char *text = scalar(value);

        if (yaml_file_is_null(value))
                return yaml_file_error(f, value, "%s: has no value; it must be %s", key, wanted);
        if (value->type == YAML_SEQUENCE_NODE)
                return yaml_file_error(f, value, "%s: is a list; it must be %s", key, wanted);
        if (value->type == YAML_MAPPING_NODE)
                return yaml_file_error(f, value, "%s: is a mapping; it must be %s", key, wanted);
        if (!text)
                return yaml_file_error(f, value, "%s: has a NUL byte in it", key);
        *ret = text;
        return 0;
}

int yaml_file_text(const struct yaml_file *f, const char *key, const yaml_node_t *value, char *ret,
                   size_t room)
{
        const char *text;
        int r = value_text(f, key, value, "a text", &text);

        if (r < 0)
                return r;
        if (strlen(text) >= room)
                return yaml_file_error(f, value, "%s: is longer than %zu bytes", key, room - 1);
        for (const char *p = text; *p; p++)
                if (text_control(p) > 0)
                        return yaml_file_error(f, value, "%s: has a control character in it", key);
        strcpy(ret, text);
        return 0;
}

/* Skips digits, with optional '_' between them. */
static const char *skip_digits(const char *p)
{
        while (isdigit((unsigned char)*p) ||
               (*p == '_' && isdigit((unsigned char)p[-1]) && isdigit((unsigned char)p[1])))
                p++;
        return p;
}

static int not_a_number(const struct yaml_file *f, const char *key, const yaml_node_t *value,
                        const char *text, const char *wanted)
{
        char word[SHOWN_BYTES];

        return yaml_file_error(f, value, "%s: '%s' must be %s", key,
                               yaml_file_shown(text, word, sizeof(word)), wanted);
}

int yaml_file_number(const struct yaml_file *f, const char *key, const yaml_node_t *value,
                     double *ret, char *ret_text, size_t room)
{
        static const char wanted[] = "a number above 0";
        const char *text = NULL, *begin, *p;
        char digits[64];
        size_t n = 0;
        double number;
        int r = value_text(f, key, value, wanted, &text);

        if (r < 0)
                return r;
        begin = text + strspn(text, " \t\n");
        if (*begin == '+')
                begin++;
        p = isdigit((unsigned char)*begin) ? skip_digits(begin + 1) : begin;
        if (begin[0] == '0' && p > begin + 1)
                return not_a_number(f, key, value, text,
                                    "written without a zero in front, which YAML takes for octal");
        if (p > begin && *p == '.')
                p = isdigit((unsigned char)p[1]) ? skip_digits(p + 2) : p + 1;
        if (p > begin && (*p == 'e' || *p == 'E')) {
                const char *exponent = p + 1 + (p[1] == '+' || p[1] == '-');

                if (isdigit((unsigned char)*exponent))
                        p = skip_digits(exponent + 1);
        }
        if (p == begin || p[strspn(p, " \t\n")] != '\0')
                return not_a_number(f, key, value, text, wanted);
        for (const char *q = begin; q < p; q++) {
                if (*q == '_')
                        continue;
                if (n + 1 >= MIN(sizeof(digits), room))
                        return not_a_number(f, key, value, text, "a shorter number");
                digits[n++] = *q;
        }
        digits[n] = '\0';
        number = strtod(digits, NULL);
        if (!(number > 0))
                return not_a_number(f, key, value, text, wanted);
        /* More digits than a double has would be rounded down to an allowed number. */
        if (!(number <= (double)YAML_FILE_MOST) ||
            (strspn(digits, "0123456789") == n && strtoull(digits, NULL, 10) > YAML_FILE_MOST))
                return not_a_number(f, key, value, text, "at most 9007199254740992 (2^53)");
        *ret = number;
        strcpy(ret_text, digits);
        return 0;
}

int yaml_file_count(const struct yaml_file *f, const char *key, const yaml_node_t *value,
                    uint64_t *ret)
{
        static const char wanted[] = "a whole number from 1";
        const char *text = NULL;
        char digits[64];
        double number;
        int r = value_text(f, key, value, wanted, &text);

        if (r < 0)
                return r;
        r = yaml_file_number(f, key, value, &number, digits, sizeof(digits));
        if (r < 0)
                return r;
        if (strspn(digits, "0123456789") != strlen(digits))
                return not_a_number(f, key, value, text, wanted);
        *ret = strtoull(digits, NULL, 10);
        return 0;
}
