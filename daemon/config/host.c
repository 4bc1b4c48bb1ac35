/* SPDX-License-Identifier: Apache-2.0 */
/* Checks what a configuration needs of the host: the users and groups that it names, memory for its
 * pools, directories for the store and the sockets, files with secrets that others cannot read.
 *
 * Runs at startup and for --check-config, and changes nothing. Each error names where the value was
 * given. Only --check-config checks the directories here; at startup, the daemon creates them and
 * reports an error. */
#include <errno.h>
#include <grp.h>
#include <libgen.h>
#include <limits.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "units.h"
#include "checked.h"
#include "cleanup.h"
#include "config/internal.h"

/* --- users and groups --- */

static bool is_number(const char *name)
{
        uint64_t n;

        return units_parse_count(name, &n) == 0 && n < UINT32_MAX;
}

/* Checks that the host knows all names of a list. `where` is where the list was given. */
static int check_names(const struct config_strings *names, bool groups, const char *key,
                       const char *where, struct config_error *ret_error)
{
        for (unsigned i = 0; i < names->n; i++) {
                const char *name = names->items[i];
                char quoted[CONFIG_QUOTED];
                int r;

                if (is_number(name) || (groups ? getgrnam(name) != NULL : getpwnam(name) != NULL))
                        continue;
                r = config_note(ret_error, config_fail(ret_error, -EINVAL,
                                                       "%s%s: there is no %s %s on this host; "
                                                       "create it, or use its number",
                                                       where, key, groups ? "group" : "user",
                                                       config_quote(name, quoted)));
                if (r < 0)
                        return r;
        }
        return 0;
}

static int check_access(const struct config *c, struct config_error *ret_error)
{
        const struct {
                const char *key;
                const struct config_strings *names;
                bool groups;
        } lists[] = {
                { "access.admin_users", &c->access.admin_users, false },
                { "access.admin_groups", &c->access.admin_groups, true },
                { "access.users", &c->access.users, false },
                { "access.groups", &c->access.groups, true },
        };
        char where[CONFIG_WHERE], key[128];
        int r = 0;

        for (unsigned i = 0; i < ARRAY_SIZE(lists) && r == 0; i++)
                r = check_names(lists[i].names, lists[i].groups, lists[i].key,
                                config_where(c, lists[i].key, where), ret_error);
        for (unsigned i = 0; i < c->n_tenants && r == 0; i++) {
                const struct config_tenant *t = &c->tenants[i];

                for (unsigned row = 0; row < config_n_tenant_rows && r == 0; row++) {
                        if (config_tenant_rows[row].type != CONFIG_NAMES)
                                continue;
                        snprintf(key, sizeof(key), "%s of tenant %s", config_tenant_rows[row].name,
                                 t->name);
                        r = check_names(config_member(t, &config_tenant_rows[row]),
                                        config_tenant_rows[row].offset ==
                                                offsetof(struct config_tenant, groups),
                                        key, config_tenant_where(c, t, row, where), ret_error);
                }
        }
        return r;
}

/* --- memory --- */

uint64_t config_pools_bytes(const struct config *c)
{
        uint64_t all = c->memory.pool;

        for (unsigned i = 0; i < c->n_tenants; i++)
                if (strcmp(c->tenants[i].name, "default") != 0 &&
                    !checked_add(all, c->tenants[i].pool, &all))
                        all = UINT64_MAX;
        return all;
}

/* Returns the memory of the machine in bytes, whether it is free or not; UINT64_MAX if that is not
 * known. */
static uint64_t machine_memory(void)
{
        long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);

        return pages > 0 && bytes > 0 ? (uint64_t)pages * (uint64_t)bytes : UINT64_MAX;
}

int config_check_memory(const struct config *c, const char *root, struct config_error *ret_error)
{
        uint64_t machine = machine_memory(), group = config_memory_limit(root), all;
        char pools[UNITS_TEXT], has[UNITS_TEXT], where[CONFIG_WHERE];
        const char *whose = "";

        all = config_pools_bytes(c);
        if (all <= MIN(machine, group))
                return 0;
        if (all > c->memory.pool)
                whose = "with the pools of all tenants, ";
        config_where(c, "memory.pool", where);
        units_bytes(all, pools);
        units_bytes(MIN(machine, group), has);
        return config_note(
                ret_error,
                group < machine
                        ? config_fail(ret_error, -EINVAL,
                                      "%smemory.pool: %s%s is more than the memory limit of the "
                                      "daemon's control group, %s; use a smaller size, or raise "
                                      "the limit (MemoryMax= of a unit, limits of a container)",
                                      where, whose, pools, has)
                        : config_fail(ret_error, -EINVAL,
                                      "%smemory.pool: %s%s is more than this machine's memory, %s; "
                                      "use a smaller size, or auto",
                                      where, whose, pools, has));
}

/* --- secrets --- */

int config_check_secret(const char *key, const char *path, char ret_error[static 256])
{
        struct stat st;

        if (stat(path, &st) < 0) {
                snprintf(ret_error, 256, "%s: %.100s: %s", key, path, strerror(errno));
                return -errno;
        }
        if (!S_ISREG(st.st_mode)) {
                snprintf(ret_error, 256, "%s: %.100s: not a regular file", key, path);
                return -EINVAL;
        }
        /* Root may check on behalf of the user that is to run the daemon. */
        if (geteuid() != 0 && st.st_uid != 0 && st.st_uid != geteuid()) {
                snprintf(ret_error, 256,
                         "%s: %.100s: the file belongs to another user, who could change it; give "
                         "it to root or the daemon's user",
                         key, path);
                return -EINVAL;
        }
        if (st.st_mode & (S_IWGRP | S_IRWXO)) {
                snprintf(ret_error, 256,
                         "%s: %.100s: mode %04o lets other users %s the file: chmod 0640", key,
                         path, (unsigned)st.st_mode & 07777,
                         st.st_mode & S_IROTH ? "read" : "change");
                return -EINVAL;
        }
        return 0;
}

static int check_secret(const char *key, const char *path, const char *where,
                        struct config_error *ret_error)
{
        char why[256];
        int r = strcmp(path, "off") == 0 ? 0 : config_check_secret(key, path, why);

        return r == 0 ? 0 : config_note(ret_error, config_fail(ret_error, r, "%s%s", where, why));
}

static int check_secrets(const struct config *c, struct config_error *ret_error)
{
        char where[CONFIG_WHERE], key[128];
        int r = 0;

        if (strcmp(c->remote.backend, "off") == 0)
                return 0;
        if (strcmp(c->remote.backend, "s3") == 0)
                r = check_secret("remote.credentials", c->remote.credentials,
                                 config_where(c, "remote.credentials", where), ret_error);
        for (unsigned i = 0; i < c->n_tenants && r == 0; i++) {
                const struct config_tenant *t = &c->tenants[i];

                for (unsigned row = 0; row < config_n_tenant_rows && r == 0; row++) {
                        if (config_tenant_rows[row].offset !=
                            offsetof(struct config_tenant, remote_secret))
                                continue;
                        snprintf(key, sizeof(key), "%s of tenant %s", config_tenant_rows[row].name,
                                 t->name);
                        r = check_secret(key, t->remote_secret,
                                         config_tenant_where(c, t, row, where), ret_error);
                }
        }
        return r;
}

int config_check_host(const struct config *c, struct config_error *ret_error)
{
        int r = check_access(c, ret_error);

        if (r == 0)
                r = check_secrets(c, ret_error);
        return r < 0 ? r : config_check_memory(c, "", ret_error);
}

/* --- places of the store and the sockets --- */

/* Checks that a directory can be used, or can be created together with its missing parents. Returns
 * 0, or -errno with the path that failed in ret_at. */
static int check_directory(const char *path, char ret_at[static PATH_MAX])
{
        struct stat st;
        bool there = true;

        snprintf(ret_at, PATH_MAX, "%s", path);
        while (stat(ret_at, &st) < 0) {
                char *slash;

                if (errno != ENOENT)
                        return -errno;
                there = false;
                slash = strrchr(ret_at, '/');
                while (slash && slash > ret_at && slash[-1] == '/')
                        slash--;
                if (!slash)
                        strcpy(ret_at, ".");
                else
                        slash[slash == ret_at] = '\0';
        }
        if (!S_ISDIR(st.st_mode))
                return -ENOTDIR;
        if (access(ret_at, (there ? R_OK : 0) | W_OK | X_OK) < 0)
                return -errno;
        return 0;
}

static const char *hint_for(int r)
{
        switch (r) {
        case -EACCES:
        case -EPERM:
                return "; the daemon's user needs write permission";
        case -EROFS:
                return "; choose a directory on a file system that can be written";
        case -ENOTDIR:
                return "; use a directory";
        default:
                return "";
        }
}

static int check_store_path(const struct config *c, const char *path,
                            struct config_error *ret_error)
{
        char at[PATH_MAX], where[CONFIG_WHERE];
        int r = check_directory(path, at);

        if (r == 0)
                return 0;
        if (strcmp(at, path) == 0)
                return config_fail(ret_error, r, "%sstore.path: %.200s: %s%s",
                                   config_where(c, "store.path", where), path, strerror(-r),
                                   hint_for(r));
        return config_fail(ret_error, r, "%sstore.path: %.200s cannot be made in %.100s: %s%s",
                           config_where(c, "store.path", where), path, at, strerror(-r),
                           hint_for(r));
}

/* Checks the place of a Unix socket. Its directory must exist; with `makes_directory`, the last
 * part of the directory may be missing, because startup creates it. A file that exists under the
 * name must be a socket. */
static int check_socket_place(const struct config *c, const char *key, const char *path,
                              bool makes_directory, struct config_error *ret_error)
{
        _cleanup_(freep) char *copy = strdup(path);
        char at[PATH_MAX], where[CONFIG_WHERE], *directory;
        struct stat st;
        bool there;
        int r;

        if (!copy)
                return config_fail(ret_error, -ENOMEM, "out of memory");
        directory = dirname(copy);
        r = check_directory(directory, at);
        there = r == 0 && strcmp(at, directory) == 0;
        if (r == 0 && !there && (!makes_directory || strcmp(at, dirname(directory)) != 0))
                r = -ENOENT;
        if (r < 0)
                return config_fail(
                        ret_error, r, "%s%s: no socket can be made at %.108s: %.200s: %s%s",
                        config_where(c, key, where), key, path, at,
                        r == -ENOENT ? "the directories below it are missing" : strerror(-r),
                        hint_for(r));
        /* Applies the rule of startup, except that root may check for the user that is to run the
         * daemon. */
        if (makes_directory && there && stat(at, &st) == 0 &&
            (((st.st_mode & S_IWOTH) && !(st.st_mode & S_ISVTX)) ||
             (geteuid() != 0 && st.st_uid != 0 && st.st_uid != geteuid())))
                return config_fail(
                        ret_error, -EPERM,
                        "%s%s: other users may change the directory %.108s, and could "
                        "replace the socket; it must belong to root or the daemon's user, "
                        "without o+w or with its sticky bit",
                        config_where(c, key, where), key, at);
        if (lstat(path, &st) == 0 && !S_ISSOCK(st.st_mode))
                return config_fail(
                        ret_error, -EEXIST,
                        "%s%s: %.108s exists and is not a socket; remove it, or use another path",
                        config_where(c, key, where), key, path);
        return 0;
}

static bool is_broken(const struct config *c, const char *key)
{
        return c->place[config_row_find(key)].broken;
}

int config_check_places(const struct config *c, void (*warn)(const char *text),
                        struct config_error *ret_error)
{
        unsigned n = is_broken(c, "store.path") ? 0 : c->store.path.n, unusable = 0;
        int r;

        for (unsigned i = 0; i < n; i++) {
                r = check_store_path(c, c->store.path.items[i], ret_error);
                unusable += r < 0;
                if (r < 0 && unusable < n)
                        warn(ret_error->text);
                else if ((r = config_note(ret_error, r)) < 0)
                        return r;
        }
        if (!is_broken(c, "listen.socket")) {
                r = config_note(ret_error, check_socket_place(c, "listen.socket", c->listen.socket,
                                                              true, ret_error));
                if (r < 0)
                        return r;
        }
        if (strncmp(c->listen.http, "unix:", 5) == 0)
                return config_note(
                        ret_error,
                        check_socket_place(c, "listen.http", c->listen.http + 5, false, ret_error));
        return 0;
}
