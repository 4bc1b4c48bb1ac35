/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the configuration share: config.c (table, environment, reload), value.c
 * (text to a value), text.c (values that are text), yaml.c (YAML), print.c (values to text) and
 * auto.c (what "auto" means). Private to these files. */
#pragma once

#include <errno.h>

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

/* OFF: "off" and 0 are values of a TIME, kept as 0, whatever its least. */
enum { CONFIG_AUTO = 1, CONFIG_RELOAD = 2, CONFIG_OFF = 4 };

struct config_row {
        const char *name; /* dotted */
        enum config_type type;
        size_t offset;
        const char *initial;
        uint64_t least, most;
        const char *words;
        unsigned flags;
        const char *help;
};

enum { CONFIG_WHY = 480 };

/* The word that is a value besides numbers, for texts: ", or auto". */
static inline const char *config_or_word(const struct config_row *row)
{
        return row->flags & CONFIG_AUTO ? ", or auto" : row->flags & CONFIG_OFF ? ", or off" : "";
}

extern const struct config_row config_rows[];
extern const unsigned config_n_rows;
/* Of an entry of `tenants`: offsets are those of struct config_tenant. */
extern const struct config_row config_tenant_rows[];
extern const unsigned config_n_tenant_rows;

/* The row's number, or -1. Knows the other names as well (tenants.default.users). */
int config_row_find(const char *name);
/* Is it the first part of some key: "store", "tenants.default"? */
bool config_is_section(const char *name);

/* Gives the row's member the value of `text`, or of a list's items; marks it as given. 0, or
 * -EINVAL with one sentence in `why`, or -ENOMEM. `commas`: a list is written with commas. */
int config_assign(struct config *c, unsigned row, const char *text, bool commas,
                  char why[static CONFIG_WHY]);
/* The same for any object that the row is of: a struct config, or a struct config_tenant. */
int config_assign_to(void *object, const struct config_row *row, const char *text, bool commas,
                     char why[static CONFIG_WHY]);
int config_assign_list_to(void *object, const struct config_row *row, char *const *items,
                          unsigned n, char why[static CONFIG_WHY]);
/* It was given a value by config_assign_list_to(). */
void config_note_given(struct config *c, unsigned row);
/* UTF-8 that YAML can carry on one line: no control characters, no line or paragraph separators, no
 * surrogates. */
bool config_text_is_clean(const char *text);
/* Is it what the row takes, or a list of it has? 0, -EINVAL and one sentence. */
int config_check_text(const struct config_row *row, const char *text, char why[static CONFIG_WHY]);

/* Of a value of listen.http: an address that other hosts can reach. */
bool config_http_is_remote(const char *text);

/* One more tenant, all "auto" and without a name. -ENOMEM. */
int config_tenant_add(struct config *c, struct config_tenant **ret);
/* The last one, which is not to be. */
void config_tenant_drop(struct config *c);
/* Is the entry, which is read whole, possible beside those before it? -EINVAL and why not. */
int config_tenant_check(const struct config *c, const struct config_tenant *t,
                        char why[static CONFIG_WHY]);

void config_strings_fini(struct config_strings *s);

/* Checks the pools of all tenants against the machine's memory and against the memory limit of this
 * process's control groups. `root`: see config_available_memory(). 0, -EINVAL. */
int config_check_memory(const struct config *c, const char *root, struct config_error *ret_error);

/* What to say about a key that is not in the table. */
void config_say_unknown(const char *name, char why[static CONFIG_WHY]);

/* The value as it is written in a file: malloc()ed, NULL without memory. Lists as "[a, b]". */
char *config_format(const void *object, const struct config_row *row);
bool config_row_is_auto(const void *object, const struct config_row *row);
/* "16MiB to 1PiB, or auto": what a value may be, for people. */
void config_format_range(const struct config_row *row, char *ret, size_t size);

/* `text` in quotes, cut and without control characters, for messages. Returns `ret`. */
enum { CONFIG_QUOTED = 100 };
const char *config_quote(const char *text, char ret[static CONFIG_QUOTED]);

/* Puts a sentence into `why`; returns -EINVAL. */
int config_refuse(char why[static CONFIG_WHY], const char *fmt, ...)
        __attribute__((format(printf, 2, 3)));
/* Sets the error; returns `r`. */
int config_fail(struct config_error *ret_error, int r, const char *fmt, ...)
        __attribute__((format(printf, 3, 4)));

/* "kvcache.yaml:3:8: ", "KVCACHE_STORE_LIMIT: ", or "" for a default and --set. Returns `ret`. */
enum { CONFIG_WHERE = 320 };
const char *config_where(const struct config *c, const char *name, char ret[static CONFIG_WHERE]);
/* Of a row of tenant.def, by its number. */
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

/* "64GiB", "4097": exact. */
void config_exact_bytes(uint64_t bytes, char ret[static 32]);
/* Bytes that the store at `path` could have: what is free to this user, and what its files take
 * already. `path` need not exist yet. *ret_device tells file systems apart. 0, -errno. */
int config_available_space(const char *path, uint64_t *ret_bytes, uint64_t *ret_device);
