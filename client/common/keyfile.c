/* SPDX-License-Identifier: Apache-2.0 */
#include "keyfile.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "units.h"
#include "cleanup.h"
#include "key.h"

struct keyfile {
        FILE *file;
        char *name;
        uint64_t line_number;
        bool written_by_replay; /* a line had a length, as in the files of `replay --acks` */
        char line[KEYFILE_LINE_BYTES];
};

DEFINE_CLEANUP(struct keyfile *, keyfile_close);

int keyfile_open(struct keyfile **ret, const char *path, char ret_error[static KEYFILE_ERROR_BYTES])
{
        _cleanup_(keyfile_closep) struct keyfile *f = calloc(1, sizeof(*f));

        if (!f)
                return -ENOMEM;
        f->name = strdup(strcmp(path, "-") == 0 ? "standard input" : path);
        if (!f->name)
                return -ENOMEM;
        f->file = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
        if (!f->file) {
                int r = -errno;

                snprintf(ret_error, KEYFILE_ERROR_BYTES, "%.200s: %s", path, strerror(-r));
                return r;
        }
        *ret = TAKE_PTR(f);
        return 0;
}

double keyfile_part(const struct keyfile *f)
{
        struct stat st;
        off_t at = ftello(f->file);

        if (at < 0 || fstat(fileno(f->file), &st) < 0 || !S_ISREG(st.st_mode) || st.st_size == 0)
                return 0;
        return (double)at / (double)st.st_size;
}

struct keyfile *keyfile_close(struct keyfile *f)
{
        if (!f)
                return NULL;
        if (f->file && f->file != stdin)
                fclose(f->file);
        free(f->name);
        free(f);
        return NULL;
}

/* Splits the line at its first two spaces; the rest is the namespace. */
static int parse_line(char *line, struct keyfile_entry *ret)
{
        struct keyfile_entry entry = { 0 };
        char *length = strchr(line, ' '), *namespace = NULL;
        struct key key;

        if (length) {
                *length++ = '\0';
                namespace = strchr(length, ' ');
                if (namespace)
                        *namespace ++ = '\0';
                if (units_parse_count(length, &entry.length) < 0)
                        return -EBADMSG;
        }
        if (namespace && (!*namespace || strlen(namespace) >= KEYFILE_NAMESPACE_BYTES))
                return -EBADMSG;
        if (key_from_hex(line, &key) < 0)
                return -EBADMSG;
        memcpy(entry.key.bytes, key.bytes, sizeof(entry.key.bytes));
        entry.namespace = namespace;
        *ret = entry;
        return 0;
}

int keyfile_next(struct keyfile *f, struct keyfile_entry *ret,
                 char ret_error[static KEYFILE_ERROR_BYTES])
{
        for (;;) {
                size_t n;
                bool whole;

                if (!fgets(f->line, sizeof(f->line), f->file)) {
                        if (!ferror(f->file))
                                return 0;
                        snprintf(ret_error, KEYFILE_ERROR_BYTES, "%.200s: %s", f->name,
                                 strerror(errno));
                        return -EIO;
                }
                f->line_number++;
                n = strlen(f->line);
                whole = n > 0 && f->line[n - 1] == '\n';
                if (whole)
                        f->line[--n] = '\0';
                if (n > 0 && f->line[n - 1] == '\r')
                        f->line[--n] = '\0';
                if (f->line[strspn(f->line, " \t")] == '\0' || f->line[0] == '#')
                        continue;
                if (parse_line(f->line, ret) == 0) {
                        f->written_by_replay |= ret->length > 0;
                        /* A last line without a newline may be cut within the namespace, and
                         * would still parse. */
                        return whole || !f->written_by_replay;
                }
                if (!whole && feof(f->file))
                        return 0;
                snprintf(ret_error, KEYFILE_ERROR_BYTES,
                         "%.200s:%" PRIu64 ": not \"<64 hex digits> [length [namespace]]\"",
                         f->name, f->line_number);
                return -EBADMSG;
        }
}

size_t keyfile_format(const struct kvcache_key *key, uint64_t length, const char *namespace,
                      char ret[static KEYFILE_LINE_BYTES])
{
        struct key k;
        char hex[KEY_HEX_BYTES + 1];

        memcpy(k.bytes, key->bytes, sizeof(k.bytes));
        key_to_hex(&k, hex);
        return (size_t)snprintf(ret, KEYFILE_LINE_BYTES, "%s %" PRIu64 " %.255s\n", hex, length,
                                namespace);
}
