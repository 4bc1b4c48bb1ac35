/* SPDX-License-Identifier: Apache-2.0 */
/* The table of keys; values from the environment and from --set.
 *
 * Runs on the loop thread, at startup and at a reload. value.c parses the values, and reload.c
 * compares two configurations. An unknown key is
 * refused with the closest known one by edit distance, or with the list of keys. */
#include <assert.h>
#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "suggest.h"
#include "config/internal.h"

#define AUTO   CONFIG_AUTO
#define RELOAD CONFIG_RELOAD
#define OFF    CONFIG_OFF

const struct config_row config_rows[] = {
/* clang-format off */
#define ROW(type, section, key, member, initial, least, most, words, flags, help)             \
        { #section "." #key, CONFIG_##type, offsetof(struct config, section.member), initial, \
          least, most, words, flags, help },
#include "config/config.def"
#undef ROW
        /* clang-format on */
};
const unsigned config_n_rows = ARRAY_SIZE(config_rows);
static_assert(ARRAY_SIZE(config_rows) <= CONFIG_MAX_ROWS, "struct config has a bit a row");

const struct config_row config_tenant_rows[] = {
/* clang-format off */
#define ROW(type, section, key, member, initial, least, most, words, flags, help)               \
        { #section "." #key, CONFIG_##type, offsetof(struct config_tenant, member), initial,     \
          least, most, words, flags, help },
#include "config/tenant.def"
#undef ROW
        /* clang-format on */
};
const unsigned config_n_tenant_rows = ARRAY_SIZE(config_tenant_rows);
static_assert(ARRAY_SIZE(config_tenant_rows) <= CONFIG_MAX_TENANT_ROWS, "each row has its place");

typedef char *member_SOCKET, *member_HTTP, *member_FILE, *member_TEXT, *member_CHOICE,
        *member_TENANT;
typedef uint32_t member_MODE;
typedef struct config_strings member_PATHS, member_NAMES;
typedef uint64_t member_BYTES, member_COUNT, member_TIME;
typedef bool member_SWITCH;
#define ROW(type, section, key, member, ...)                                                       \
        static_assert(__builtin_types_compatible_p(                                                \
                              __typeof__(((struct config *)0)->section.member), member_##type),    \
                      #section "." #key " and its member are of different types");
#include "config/config.def"
#undef ROW

#define ROW(type, section, key, member, ...)                                                       \
        static_assert(__builtin_types_compatible_p(                                                \
                              __typeof__(((struct config_tenant *)0)->member), member_##type),     \
                      #section "." #key " and its member are of different types");
#include "config/tenant.def"
#undef ROW

/* Alternative names of keys. */
static const struct {
        const char *name, *row;
} aliases[] = {
        { "tenants.default.users", "access.users" },
        { "tenants.default.groups", "access.groups" },
};

/* Variables that the client library and its tools read; the daemon ignores them. */
static const char *const reserved_variables[] = { "KVCACHE_SOCKET", "KVCACHE_BENCH_SESSION",
                                                  "KVCACHE_LIBRARY", "KVCACHE_DATA_DIR" };

int config_fail(struct config_error *ret_error, int r, const char *fmt, ...)
{
        va_list args;

        va_start(args, fmt);
        vsnprintf(ret_error->text, sizeof(ret_error->text), fmt, args);
        va_end(args);
        return r;
}

/* Converts a key to the name of its variable: "store.limit" to "KVCACHE_STORE_LIMIT". */
static void variable_name(const char *name, char ret[static 64])
{
        size_t n = (size_t)snprintf(ret, 64, "KVCACHE_%s", name);

        assert(n < 64);
        for (char *p = ret; *p; p++)
                *p = *p == '.' ? '_' : (char)toupper((unsigned char)*p);
}

int config_note(struct config_error *ret_error, int r)
{
        uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */

        if (r >= 0 || r == -ENOMEM || !ret_error->each || ret_error->broken)
                return r;
        for (const char *p = ret_error->text; *p; p++)
                hash = (hash ^ (unsigned char)*p) * UINT64_C(0x100000001b3);
        for (unsigned i = 0; i < ret_error->n && i < ARRAY_SIZE(ret_error->noted); i++)
                if (ret_error->noted[i] == hash)
                        return 0;
        if (ret_error->n < ARRAY_SIZE(ret_error->noted))
                ret_error->noted[ret_error->n] = hash;
        ret_error->n++;
        ret_error->each(ret_error->userdata, ret_error->text);
        return 0;
}

static void print_where(const struct config *c, const struct config_place *place, const char *name,
                        char ret[static CONFIG_WHERE])
{
        char variable[64];
        size_t skip;

        ret[0] = '\0';
        switch (place->from) {
        case CONFIG_FROM_NOWHERE:
        case CONFIG_FROM_SET: /* the caller prefixes the error with the option */
                break;
        case CONFIG_FROM_FILE:
                name = c->files.items[place->file];
                skip = config_name_skip(name);
                snprintf(ret, CONFIG_WHERE, "%s%s:%u:%u: ", skip > 0 ? "..." : "", name + skip,
                         place->line, place->column);
                break;
        case CONFIG_FROM_ENVIRONMENT:
                variable_name(name, variable);
                snprintf(ret, CONFIG_WHERE, "%s: ", variable);
                break;
        }
}

const char *config_where(const struct config *c, const char *name, char ret[static CONFIG_WHERE])
{
        int row = config_row_find(name);

        assert(row >= 0);
        print_where(c, &c->place[row], name, ret);
        return ret;
}

const char *config_tenant_where(const struct config *c, const struct config_tenant *t, unsigned row,
                                char ret[static CONFIG_WHERE])
{
        print_where(c, &t->place[row], "", ret);
        return ret;
}

/* --- names of keys --- */

int config_row_find(const char *name)
{
        for (unsigned i = 0; i < ARRAY_SIZE(aliases); i++)
                if (strcmp(aliases[i].name, name) == 0)
                        name = aliases[i].row;
        for (unsigned i = 0; i < config_n_rows; i++)
                if (strcmp(config_rows[i].name, name) == 0)
                        return (int)i;
        return -1;
}

static const char *name_at(unsigned i)
{
        return i < config_n_rows ? config_rows[i].name : aliases[i - config_n_rows].name;
}

enum { N_NAMES = ARRAY_SIZE(config_rows) + ARRAY_SIZE(aliases) };

bool config_is_section(const char *name)
{
        size_t n = strlen(name);

        for (unsigned i = 0; i < N_NAMES; i++)
                if (strncmp(name_at(i), name, n) == 0 && name_at(i)[n] == '.')
                        return n > 0;
        return false;
}

/* Returns the length of a dotted name without its last part. */
static size_t section_length(const char *name)
{
        const char *dot = strrchr(name, '.');

        return dot ? (size_t)(dot - name) : 0;
}

void config_say_unknown(const char *name, char why[static CONFIG_WHY])
{
        char quoted[CONFIG_QUOTED], quoted_entry[CONFIG_QUOTED], entry[CONFIG_QUOTED];
        char sections[16][24];
        struct suggestion meant = suggest_init(name);
        bool lacks_section = false;
        size_t n = section_length(name);
        unsigned n_sections = 0;
        int used;

        if (strncmp(name, "tenants.", 8) == 0 && strcmp(name, "tenants.default") != 0 &&
            strncmp(name, "tenants.default.", 16) != 0) {
                snprintf(entry, sizeof(entry), "- name: %s", name + 8);
                config_refuse(why,
                              "unknown key %s; tenants are a list in the file, with one entry for "
                              "each tenant: %s, and its keys below",
                              config_quote(name, quoted), config_quote(entry, quoted_entry));
                return;
        }
        for (unsigned i = 0; i < N_NAMES; i++) {
                const char *candidate = name_at(i), *last = strrchr(candidate, '.') + 1;

                suggest_try(&meant, name, candidate);
                if (n == 0 && !lacks_section && strcasecmp(last, name) == 0) {
                        meant = (struct suggestion){ .text = candidate };
                        lacks_section = true;
                }
        }
        /* Compare with sections, too, because `stor:` with keys below it is a likely mistake. */
        for (unsigned i = 0; i < N_NAMES && n_sections < ARRAY_SIZE(sections); i++) {
                size_t length = strcspn(name_at(i), ".");

                if (n_sections > 0 && strncmp(sections[n_sections - 1], name_at(i), length) == 0)
                        continue;
                assert(length < sizeof(sections[0]));
                snprintf(sections[n_sections], sizeof(sections[0]), "%.*s", (int)length,
                         name_at(i));
                suggest_try(&meant, name, sections[n_sections++]);
        }
        config_quote(name, quoted);
        if (meant.text) {
                config_refuse(why, "unknown key %s; did you mean \"%s\"?", quoted, meant.text);
                return;
        }
        used = snprintf(why, CONFIG_WHY, "unknown key %s; ", quoted);
        if (n > 0 && n < 64) {
                const char *sep = "the keys there are ";

                for (unsigned i = 0; i < N_NAMES && used < CONFIG_WHY; i++)
                        if (strncmp(name_at(i), name, n + 1) == 0 &&
                            section_length(name_at(i)) == n) {
                                used += snprintf(why + used, CONFIG_WHY - (size_t)used, "%s%s", sep,
                                                 name_at(i) + n + 1);
                                sep = ", ";
                        }
                if (*sep == ',')
                        return;
        }
        for (unsigned i = 0; i < n_sections && used < CONFIG_WHY; i++)
                used += snprintf(why + used, CONFIG_WHY - (size_t)used, "%s%s",
                                 i == 0 ? "the sections are " : ", ", sections[i]);
}

/* --- the whole configuration --- */

void config_init(struct config *c)
{
        char why[CONFIG_WHY];
        int r;

        *c = (struct config){};
        for (unsigned i = 0; i < config_n_rows; i++) {
                r = config_assign(c, i, config_rows[i].initial, true, why);
                if (r == -ENOMEM)
                        abort();
                assert(r == 0);
        }
        memset(c->given, 0, sizeof(c->given));
}

void config_rows_fini(void *object, const struct config_row *rows, unsigned n)
{
        for (unsigned i = 0; i < n; i++)
                switch (rows[i].type) {
                case CONFIG_SOCKET:
                case CONFIG_HTTP:
                case CONFIG_FILE:
                case CONFIG_TEXT:
                case CONFIG_CHOICE:
                case CONFIG_TENANT:
                        free(*(char **)config_member(object, &rows[i]));
                        break;
                case CONFIG_PATHS:
                case CONFIG_NAMES:
                        config_strings_fini(config_member(object, &rows[i]));
                        break;
                default:
                        break;
                }
}

void config_fini(struct config *c)
{
        config_rows_fini(c, config_rows, config_n_rows);
        for (unsigned i = 0; i < c->n_tenants; i++)
                config_rows_fini(&c->tenants[i], config_tenant_rows, config_n_tenant_rows);
        free(c->tenants);
        config_strings_fini(&c->files);
        *c = (struct config){};
}

void config_uid_limits(const struct config *c, uint64_t *ret_connections, uint64_t *ret_keys)
{
        uint64_t most = c->limits.connections;

        *ret_connections = c->limits.uid_connections
                                   ? c->limits.uid_connections
                                   : MIN(MAX(most - most / 4, (uint64_t)64), most);
        *ret_keys = c->limits.uid_keys ? c->limits.uid_keys : c->limits.keys - c->limits.keys / 4;
}

/* --- environment, --set --- */

int config_load_environment(struct config *c, char *const *variables,
                            void (*warn)(const char *text), struct config_error *ret_error)
{
        char why[CONFIG_WHY], text[CONFIG_WHY], quoted[CONFIG_QUOTED];
        int r;

        for (; *variables; variables++) {
                const char *equals = strchr(*variables, '=');
                char name[64], candidate[64], meant_name[64];
                struct suggestion meant;
                int row = -1;

                if (strncmp(*variables, "KVCACHE_", 8) != 0 || !equals)
                        continue;
                snprintf(name, sizeof(name), "%.*s", (int)MIN(equals - *variables, (ptrdiff_t)63),
                         *variables);
                for (unsigned i = 0; i < ARRAY_SIZE(reserved_variables); i++)
                        if (strcmp(name, reserved_variables[i]) == 0)
                                row = -2;
                if (row == -2)
                        continue;

                meant = suggest_init(name + 8);
                for (unsigned i = 0; i < N_NAMES && row < 0; i++) {
                        struct suggestion before = meant;

                        variable_name(name_at(i), candidate);
                        if (strcmp(candidate, name) == 0)
                                row = config_row_find(name_at(i));
                        suggest_try(&meant, name, candidate);
                        if (meant.distance < before.distance)
                                strcpy(meant_name, candidate);
                }
                if (row < 0) {
                        if (meant.text)
                                snprintf(text, sizeof(text),
                                         "environment variable %s is not known and ignored; did "
                                         "you mean \"%s\"?",
                                         config_quote(name, quoted), meant_name);
                        else
                                snprintf(text, sizeof(text),
                                         "environment variable %s is not known and ignored",
                                         config_quote(name, quoted));
                        if (warn)
                                warn(text);
                        continue;
                }
                if (equals[1] == '\0')
                        continue;
                r = config_assign(c, (unsigned)row, equals + 1, true, why);
                c->place[row] =
                        (struct config_place){ .from = CONFIG_FROM_ENVIRONMENT, .broken = r < 0 };
                if (r < 0)
                        r = config_note(ret_error, config_fail(ret_error, r, "%s: %s", name, why));
                if (r < 0)
                        return r;
        }
        return 0;
}

int config_set(struct config *c, const char *assignment, const char *origin,
               struct config_error *ret_error)
{
        const char *equals = strchr(assignment, '=');
        char why[CONFIG_WHY], quoted[CONFIG_QUOTED], name[128];
        int row, r;

        if (!equals || equals == assignment)
                return config_fail(ret_error, -EINVAL,
                                   "%s %s: write it as key=value, as in store.limit=64GiB", origin,
                                   config_quote(assignment, quoted));
        snprintf(name, sizeof(name), "%.*s", (int)MIN(equals - assignment, (ptrdiff_t)127),
                 assignment);
        row = config_row_find(name);
        if (row < 0) {
                if (config_is_section(name))
                        config_refuse(why, "\"%.40s\" is a section; name a key in it", name);
                else
                        config_say_unknown(name, why);
                return config_fail(ret_error, -EINVAL, "%s %s: %s", origin,
                                   config_quote(assignment, quoted), why);
        }
        r = config_assign(c, (unsigned)row, equals + 1, true, why);
        c->place[row] = (struct config_place){ .from = CONFIG_FROM_SET, .broken = r < 0 };
        if (r < 0)
                return config_fail(ret_error, r, "%s %s: %s", origin,
                                   config_quote(assignment, quoted), why);
        return 0;
}

/* Checks the keys that the back end of the shared tier needs. */
static int check_remote(const struct config *c, struct config_error *ret_error)
{
        const struct {
                const char *backend, *key, *value, *example;
        } needed[] = {
                { "directory", "remote.path", c->remote.path, "/mnt/shared/kvcache" },
                { "rados", "remote.pool", c->remote.pool, "kvcache" },
                { "rados", "remote.ceph_conf", c->remote.ceph_conf, "/etc/ceph/ceph.conf" },
                { "rados", "remote.ceph_user", c->remote.ceph_user, "kvcache" },
                { "s3", "remote.endpoint", c->remote.endpoint, "https://s3.example.com" },
                { "s3", "remote.bucket", c->remote.bucket, "kvcache" },
                { "s3", "remote.region", c->remote.region, "us-east-1" },
                { "s3", "remote.credentials", c->remote.credentials, "/etc/kvcache/credentials" },
                { NULL, "remote.prefix", c->remote.prefix, "kvcache" },
        };
        bool is_off = strcmp(c->remote.backend, "off") == 0;
        char where[CONFIG_WHERE];
        int r = 0;

        for (unsigned i = 0; i < ARRAY_SIZE(needed) && r == 0 && !is_off; i++)
                if ((!needed[i].backend || strcmp(needed[i].backend, c->remote.backend) == 0) &&
                    strcmp(needed[i].value, "off") == 0)
                        r = config_note(ret_error,
                                        config_fail(ret_error, -EINVAL,
                                                    "%sremote.backend: %s needs %s, as in %s",
                                                    config_where(c, "remote.backend", where),
                                                    c->remote.backend, needed[i].key,
                                                    needed[i].example));
        if (r < 0 || is_off)
                return r;
        if (strcmp(c->remote.endpoint, "off") != 0 &&
            strncmp(c->remote.endpoint, "https://", 8) != 0 &&
            strncmp(c->remote.endpoint, "http://", 7) != 0)
                r = config_note(ret_error,
                                config_fail(ret_error, -EINVAL,
                                            "%sremote.endpoint: \"%s\" begins with neither "
                                            "https:// nor http://",
                                            config_where(c, "remote.endpoint", where),
                                            c->remote.endpoint));
        if (r == 0 && (strlen(c->remote.prefix) >= CONFIG_PREFIX || c->remote.prefix[0] == '/' ||
                       c->remote.prefix[strlen(c->remote.prefix) - 1] == '/' ||
                       strstr(c->remote.prefix, "//") || strstr(c->remote.prefix, "..")))
                r = config_note(
                        ret_error,
                        config_fail(
                                ret_error, -EINVAL,
                                "%sremote.prefix: \"%s\" is not a prefix of object names; use at "
                                "most %d characters, parts divided by one /, none of them \"..\"",
                                config_where(c, "remote.prefix", where), c->remote.prefix,
                                CONFIG_PREFIX - 1));
        return r;
}

static bool is_prefix_of_floor(const char *prefix, size_t bytes, const char *floor)
{
        uint64_t size;
        size_t n;

        return config_split_floor(floor, &n, &size) && n == bytes &&
               memcmp(prefix, floor, bytes) == 0;
}

/* Checks that each prefix in memory.floors has one size, and that all sizes together are at most
 * three quarters of memory.pool, so that other namespaces have room. */
static int check_floors(const struct config *c, struct config_error *ret_error)
{
        uint64_t sum = 0, bytes = 0;
        char a[32], b[32], where[CONFIG_WHERE];
        size_t prefix = 0;

        for (unsigned i = 0; i < c->memory.floors.n; i++) {
                const char *floor = c->memory.floors.items[i];

                (void)config_split_floor(floor, &prefix, &bytes); /* cannot fail, because the entry
                                                                   * was checked when it was read */
                for (unsigned j = 0; j < i; j++)
                        if (is_prefix_of_floor(floor, prefix, c->memory.floors.items[j]))
                                return config_note(
                                        ret_error,
                                        config_fail(ret_error, -EINVAL,
                                                    "%smemory.floors: the prefix \"%.*s\" has two "
                                                    "sizes; leave one of the entries out",
                                                    config_where(c, "memory.floors", where),
                                                    (int)prefix, floor));
                sum += MIN(bytes, (uint64_t)TIB);
        }
        if (c->memory.pool == 0 || sum <= c->memory.pool / 4 * 3)
                return 0;
        config_exact_bytes(sum, a);
        config_exact_bytes(c->memory.pool, b);
        return config_note(
                ret_error,
                config_fail(ret_error, -EINVAL,
                            "%smemory.floors: %s together is more than three quarters of "
                            "memory.pool, which is %s",
                            config_where(c, "memory.floors", where), a, b));
}

int config_check(const struct config *c, struct config_error *ret_error)
{
        uint64_t n = MAX(c->store.path.n, 1u);
        char a[32], b[32], where[CONFIG_WHERE];
        int r = 0;

        if (c->store.limit != 0 && c->store.limit / n < 16 * MIB) {
                config_exact_bytes(c->store.limit, a);
                r = config_note(ret_error,
                                config_fail(ret_error, -EINVAL,
                                            "%sstore.limit: %s is too little for %u paths; each "
                                            "needs at least 16MiB",
                                            config_where(c, "store.limit", where), a, (unsigned)n));
                if (r < 0)
                        return r;
        }
        if (c->memory.pool != 0 && c->limits.leased_bytes > c->memory.pool) {
                config_exact_bytes(c->limits.leased_bytes, a);
                config_exact_bytes(c->memory.pool, b);
                r = config_note(ret_error,
                                config_fail(ret_error, -EINVAL,
                                            "%slimits.leased_bytes: %s is more than memory.pool, "
                                            "which is %s",
                                            config_where(c, "limits.leased_bytes", where), a, b));
                if (r < 0)
                        return r;
        }
        if (config_http_is_remote(c->listen.http) && !c->http.allow_remote) {
                r = config_note(ret_error,
                                config_fail(ret_error, -EINVAL,
                                            "%slisten.http: \"%s\" is reachable from other hosts; "
                                            "set http.allow_remote: true to allow that, or use a "
                                            "loopback address, as in \"127.0.0.1:9750\"",
                                            config_where(c, "listen.http", where), c->listen.http));
                if (r < 0)
                        return r;
        }
        r = check_floors(c, ret_error);
        if (r == 0)
                r = check_remote(c, ret_error);
        if (r < 0)
                return r;
        if (strncmp(c->listen.http, "unix:", 5) == 0 &&
            strcmp(c->listen.http + 5, c->listen.socket) == 0)
                r = config_note(ret_error, config_fail(ret_error, -EINVAL,
                                                       "%slisten.http: this is also the path of "
                                                       "listen.socket; use another path",
                                                       config_where(c, "listen.http", where)));
        return r;
}

int config_load_all(struct config *c, const char *path, bool path_must_exist,
                    char *const *variables, char *const *sets, unsigned n_sets,
                    void (*warn)(const char *text), struct config_error *ret_error)
{
        int r;

        if (path) {
                r = config_load_file(c, path, ret_error);
                if (r < 0 && !path_must_exist && (r == -ENOENT || r == -ENOTDIR))
                        r = 0;
                r = config_note(ret_error, r);
                if (r == 0)
                        r = config_load_drop_ins(c, path, warn, ret_error);
                if (r < 0)
                        return r;
        }
        r = config_load_environment(c, variables, warn, ret_error);
        for (unsigned i = 0; r == 0 && i < n_sets; i++)
                r = config_note(ret_error, config_set(c, sets[i], "--set", ret_error));
        if (r < 0)
                return r;
        r = config_check(c, ret_error);
        return r < 0 ? r : ret_error->n > 0 ? -EINVAL : 0;
}

bool config_given(const struct config *c, const char *name)
{
        int row = config_row_find(name);

        assert(row >= 0);
        return config_bit(c->given, (unsigned)row);
}

bool config_pool_is_automatic(const struct config *c, const struct config_tenant *t)
{
        unsigned row = 0;

        if (!t)
                return config_bit(c->automatic, (unsigned)config_row_find("memory.pool"));
        while (config_tenant_rows[row].offset != offsetof(struct config_tenant, pool))
                row++;
        return config_bit(t->automatic, row);
}
