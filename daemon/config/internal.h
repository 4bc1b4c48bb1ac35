/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that the files of the configuration share: config.c (table, environment), value.c
 * (text to a value), text.c (values that are text), yaml.c (YAML), files.c (the file and its
 * drop-ins), tenants.c (entries of `tenants`), print.c (values to text), host.c (checks of this
 * host), reload.c and auto.c ("auto" values). Private to these files. */
#pragma once

#include <errno.h>
#include <string.h>

#include "config/config.h"

#define KIB    ((uint64_t)1 << 10)
#define MIB    ((uint64_t)1 << 20)
#define GIB    ((uint64_t)1 << 30)
#define TIB    ((uint64_t)1 << 40)
#define PIB    ((uint64_t)1 << 50)
#define SECOND ((uint64_t)1000)
#define MINUTE (60 * SECOND)
#define HOUR   (60 * MINUTE)

enum config_type {
        CONFIG_SOCKET, /* char *: a path that fits a socket address */
        CONFIG_HTTP,   /* char * */
        CONFIG_FILE,   /* char *: the path of a file, or "off" */
        CONFIG_TEXT,   /* char *: printable ASCII without spaces, or "off" */
        CONFIG_MODE,   /* uint32_t */
        CONFIG_PATHS,  /* struct config_strings */
        CONFIG_NAMES,  /* struct config_strings */
        CONFIG_BYTES,  /* uint64_t */
        CONFIG_COUNT,  /* uint64_t */
        CONFIG_TIME,   /* uint64_t, milliseconds */
        CONFIG_SWITCH, /* bool */
        CONFIG_CHOICE, /* char * */
        CONFIG_TENANT, /* char *: a tenant's name */
};

/* Flags of a row. CONFIG_OFF: a TIME accepts "off" and 0, which are stored as 0, even if its least
 * value is higher. */
enum { CONFIG_AUTO = 1, CONFIG_RELOAD = 2, CONFIG_OFF = 4 };

/* A row of config.def or tenant.def, whose head describes the members. `offset` is that of the
 * member in the struct of the table. */
struct config_row {
        const char *name; /* dotted name, such as "store.limit" */
        enum config_type type;
        size_t offset;
        const char *initial;
        uint64_t least, most;
        const char *words;
        unsigned flags;
        const char *help;
};

enum { CONFIG_WHY = 480 };

/* Returns the words that are accepted in addition to numbers, for error texts: ", or auto". */
static inline const char *config_or_word(const struct config_row *row)
{
        return row->flags & CONFIG_AUTO ? ", or auto" : row->flags & CONFIG_OFF ? ", or off" : "";
}

extern const struct config_row config_rows[];
extern const unsigned config_n_rows;
/* Rows of an entry of `tenants`; offsets are in struct config_tenant. */
extern const struct config_row config_tenant_rows[];
extern const unsigned config_n_tenant_rows;

/* Returns a row's number, or -1 if no key has this name. Accepts alternative names too
 * (tenants.default.users). */
int config_row_find(const char *name);
/* Returns whether `name` is the first part of a key: "store", "tenants.default". */
bool config_is_section(const char *name);

/* Assigns the value of `text` to a row's member, and marks the row as given. Returns 0, -EINVAL
 * with one sentence in `why`, or -ENOMEM. `commas`: a list is written with commas. */
int config_assign(struct config *c, unsigned row, const char *text, bool commas,
                  char why[static CONFIG_WHY]);
/* Assign to any object of the row's type: a struct config or a struct config_tenant. Unlike
 * config_assign(), they do not mark the row as given. */
int config_assign_to(void *object, const struct config_row *row, const char *text, bool commas,
                     char why[static CONFIG_WHY]);
int config_assign_list_to(void *object, const struct config_row *row, char *const *items,
                          unsigned n, char why[static CONFIG_WHY]);
/* Marks a row as given, after config_assign_list_to(). */
void config_note_given(struct config *c, unsigned row);
/* Returns whether `text` is UTF-8 that YAML can carry on one line: without control characters, line
 * or paragraph separators, or surrogates. */
bool config_text_is_clean(const char *text);
/* Checks that `text` is a value of a row whose type is text, or an item of its list; accepts any
 * text for other types. Returns 0, or -EINVAL and one sentence. */
int config_check_text(const struct config_row *row, const char *text, char why[static CONFIG_WHY]);

/* Returns whether a value of listen.http is an address that other hosts can reach. */
bool config_http_is_remote(const char *text);

/* Adds a tenant without a name, with the default of every other key. Returns 0 or -ENOMEM. */
int config_tenant_add(struct config *c, struct config_tenant **ret);
/* Removes a tenant. */
void config_tenant_drop(struct config *c, struct config_tenant *t);
/* Merges the tenant that was added last into the one of that name that an earlier file has, if any.
 * Returns the tenant to check: the merged one, or the last one. */
struct config_tenant *config_tenant_merge(struct config *c, unsigned file);
/* Checks a complete entry against those before it. Returns 0, or -EINVAL and the reason. */
int config_tenant_check(const struct config *c, const struct config_tenant *t,
                        char why[static CONFIG_WHY]);

void config_strings_fini(struct config_strings *s);
/* Frees the members of any object that a table describes. */
void config_rows_fini(void *object, const struct config_row *rows, unsigned n);

/* Adds the name of a file to struct config.files, unless it is there. Returns its index, or -ENOMEM
 * without memory or if the list is full. */
int config_file_add(struct config *c, const char *name);

/* Returns the number of leading bytes of a file's name that messages leave out, because the end
 * distinguishes long names. */
static inline size_t config_name_skip(const char *name)
{
        enum { SHOWN = 160 };
        size_t n = strlen(name);

        return n > SHOWN ? n - SHOWN : 0;
}

/* Checks the pools of all tenants against the machine's memory and the memory limit of this
 * process's control groups. `root` is as in config_available_memory(). Returns 0 or -EINVAL. */
int config_check_memory(const struct config *c, const char *root, struct config_error *ret_error);

/* Writes the error text for a key that is not in the table. */
void config_say_unknown(const char *name, char why[static CONFIG_WHY]);

/* Returns a value as text for a file, with lists as "[a, b]". The caller frees it. Returns NULL if
 * memory is short. */
char *config_format(const void *object, const struct config_row *row);
bool config_row_is_auto(const void *object, const struct config_row *row);
/* Formats the range of a value for people: "16MiB to 1PiB, or auto". */
void config_format_range(const struct config_row *row, char *ret, size_t size);

/* Quotes `text` for messages, shortened and without control characters. Returns `ret`. */
enum { CONFIG_QUOTED = 100 };
const char *config_quote(const char *text, char ret[static CONFIG_QUOTED]);

/* Formats a sentence that explains why a value is refused into `why`. Returns -EINVAL. */
int config_refuse(char why[static CONFIG_WHY], const char *fmt, ...)
        __attribute__((format(printf, 2, 3)));
/* Stores the text of an error in *ret_error. Returns `r`. */
int config_fail(struct config_error *ret_error, int r, const char *fmt, ...)
        __attribute__((format(printf, 3, 4)));

/* Formats where a key was given: "kvcache.yaml:3:8: ", "KVCACHE_STORE_LIMIT: ", or "" for a default
 * and for --set, whose errors begin with the option anyway. Returns `ret`. */
enum { CONFIG_WHERE = 320 };
const char *config_where(const struct config *c, const char *name, char ret[static CONFIG_WHERE]);
/* Formats where a row of tenant.def was given, by its number. Returns `ret`. */
const char *config_tenant_where(const struct config *c, const struct config_tenant *t, unsigned row,
                                char ret[static CONFIG_WHERE]);

static inline void *config_member(const void *object, const struct config_row *row)
{
        return (char *)object + row->offset;
}

static inline void config_bit_set(uint64_t bits[static 2], unsigned i, bool on)
{
        uint64_t bit = (uint64_t)1 << (i % 64);

        bits[i / 64] = on ? bits[i / 64] | bit : bits[i / 64] & ~bit;
}

static inline bool config_bit(const uint64_t bits[static 2], unsigned i)
{
        return bits[i / 64] >> (i % 64) & 1;
}

/* Formats an exact number of bytes: "64GiB", "4097". */
void config_exact_bytes(uint64_t bytes, char ret[static 32]);
/* Computes the bytes that a store at `path` can use: the space that is free to this user, and the
 * space of the store's existing files. `path` need not exist. *ret_device identifies the file
 * system. Returns 0 or -errno. */
int config_available_space(const char *path, uint64_t *ret_bytes, uint64_t *ret_device);
