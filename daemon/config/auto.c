/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the values of keys that are "auto" on this machine, and reports them.
 *
 * Runs once at startup, on the loop thread; reads /proc, control groups and the file system,
 * changes nothing. Computed values are marked in `automatic`, so that a reload does not take them
 * for a change.
 *
 * The bytes of an existing store count as free space: otherwise each startup would find less room
 * than the last one and evict. Failures: no directory for a store, one that cannot be examined, and
 * a file system without room for the smallest store; the amount of memory is always known. */
#include <assert.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/small-file.h"
#include "units.h"
#include "checked.h"
#include "cleanup.h"
#include "config/internal.h"

static const uint64_t limit_least = 16 * MIB, limit_most = 64 * GIB, pool_least = 16 * MIB,
                      pool_most = 4 * GIB;

__attribute__((format(printf, 2, 3))) static void tell(void (*say)(const char *text),
                                                       const char *fmt, ...)
{
        char text[640];
        va_list args;

        if (!say)
                return;
        va_start(args, fmt);
        vsnprintf(text, sizeof(text), fmt, args);
        va_end(args);
        say(text);
}

/* Returns whether the daemon must choose the value of this key because it is "auto", and marks it
 * as chosen. */
static bool take_auto(struct config *c, const char *name)
{
        int row = config_row_find(name);

        assert(row >= 0);
        if (!config_row_is_auto(c, &config_rows[row]))
                return false;
        config_bit_set(c->automatic, (unsigned)row, true);
        return true;
}

/* --- memory --- */

static int read_small(const char *path, char *ret, size_t size)
{
        _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
        int64_t bytes = fd < 0 ? -errno : small_file_read(fd, ret, size - 1);

        if (bytes < 0)
                return (int)bytes;
        ret[bytes] = '\0';
        return 0;
}

/* Returns the lowest limit that `file` has in the group's folder or in one above it; UINT64_MAX if
 * there is none. "max" and text that is not a number are no limit. */
static uint64_t group_limit(const char *root, const char *mount, const char *group,
                            const char *file)
{
        char folder[PATH_MAX], path[PATH_MAX + 64], text[64];
        uint64_t least = UINT64_MAX, value;
        size_t top;

        if (strstr(group, "/..")) /* the process cannot see the group's folder from its cgroup
                                   * namespace */
                group = "";
        top = (size_t)snprintf(folder, sizeof(folder), "%s%s", root, mount);
        if (top >= sizeof(folder) || top + strlen(group) >= sizeof(folder))
                return least;
        strcpy(folder + top, group);
        for (;;) {
                snprintf(path, sizeof(path), "%s/%s", folder, file);
                if (read_small(path, text, sizeof(text)) == 0) {
                        text[strcspn(text, "\n")] = '\0';
                        if (units_parse_count(text, &value) == 0)
                                least = MIN(least, value);
                }
                if (folder[top] == '\0')
                        return least;
                *strrchr(folder + top, '/') = '\0';
        }
}

uint64_t config_memory_limit(const char *root)
{
        char path[PATH_MAX], text[16384], *rest = text, *line;
        uint64_t least = UINT64_MAX, limit;

        snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
        if (read_small(path, text, sizeof(text)) < 0)
                return least;
        while ((line = strsep(&rest, "\n"))) { /* each line is HIERARCHY:CONTROLLERS:PATH */
                char *controllers = strchr(line, ':'),
                     *group = controllers ? strchr(controllers + 1, ':') : NULL;

                if (!group || group[1] != '/')
                        continue;
                *controllers++ = '\0';
                *group++ = '\0';
                if (strcmp(group, "/") == 0)
                        *group = '\0';
                if (*controllers == '\0') {
                        limit = group_limit(root, "/sys/fs/cgroup", group, "memory.max");
                        least = MIN(least, limit);
                        continue;
                }
                for (char *controller; (controller = strsep(&controllers, ","));)
                        if (strcmp(controller, "memory") == 0) {
                                limit = group_limit(root, "/sys/fs/cgroup/memory", group,
                                                    "memory.limit_in_bytes");
                                least = MIN(least, limit);
                        }
        }
        return least;
}

uint64_t config_available_memory(const char *root, bool *ret_limited)
{
        uint64_t available = 0, limit = config_memory_limit(root);
        char path[PATH_MAX], text[8192];
        const char *line;

        snprintf(path, sizeof(path), "%s/proc/meminfo", root);
        if (read_small(path, text, sizeof(text)) == 0 && (line = strstr(text, "MemAvailable:")))
                available = strtoull(line + strlen("MemAvailable:"), NULL, 10);
        if (!checked_mul(available, KIB, &available))
                available = 0;
        if (available == 0) /* without /proc, assume half of the machine's memory */
                available = (uint64_t)sysconf(_SC_PHYS_PAGES) / 2 * (uint64_t)sysconf(_SC_PAGESIZE);
        *ret_limited = limit < available;
        return MIN(available, limit);
}

/* Returns the available memory and the memory of kept pools, which the new pools take over. */
static uint64_t memory_for_pools(const struct config *c, uint64_t available)
{
        uint64_t bytes;

        return checked_add(available, c->kept_bytes, &bytes) ? bytes : UINT64_MAX;
}

uint64_t config_auto_staging(const struct config *c, const char *root)
{
        bool limited;
        uint64_t available = config_available_memory(root, &limited),
                 all = memory_for_pools(c, available), pools = config_pools_bytes(c);

        return MAX(MIN(available / 2, all - MIN(pools, all)), available / 8);
}

static void resolve_pool(struct config *c, void (*say)(const char *text),
                         void (*warn)(const char *text))
{
        bool limited;
        uint64_t available = config_available_memory("", &limited), quarter = available / 4;
        const char *what = limited ? "are allowed by the daemon's control group" : "are available";
        char chosen[UNITS_TEXT], all[UNITS_TEXT];

        units_bytes(available, all);
        if (!take_auto(c, "memory.pool")) {
                /* config_check_host() refuses a pool above the limit of a control group. */
                if (!limited && c->memory.pool > available &&
                    c->memory.pool - available > c->kept_bytes) {
                        units_bytes(c->memory.pool, chosen);
                        tell(warn,
                             "memory.pool is %s, but only %s of memory are available: it cannot "
                             "fill",
                             chosen, all);
                }
                return;
        }
        c->memory.pool = MAX(round_down(MIN(quarter, pool_most), 2 * MIB), pool_least);
        units_bytes(c->memory.pool, chosen);
        if (quarter > pool_most)
                tell(say, "memory.pool is %s, the most that auto takes: %s of memory %s", chosen,
                     all, what);
        else if (round_down(quarter, 2 * MIB) < pool_least)
                tell(say, "memory.pool is %s, the least that auto takes: %s of memory %s", chosen,
                     all, what);
        else
                tell(say, "memory.pool is %s: a quarter of the %s of memory that %s", chosen, all,
                     what);
}

/* Returns the size of each tenant's pool that is "auto": a quarter of memory.pool, but no more than
 * an equal share of the memory left for such pools, and at least pool_least. Left are three
 * quarters of the memory, less all pools of a given size. */
static uint64_t tenant_share(const struct config *c, uint64_t available)
{
        uint64_t given = c->memory.pool, most = memory_for_pools(c, available) / 4 * 3,
                 automatic = 0;

        for (unsigned i = 0; i < c->n_tenants; i++) {
                const struct config_tenant *t = &c->tenants[i];

                if (strcmp(t->name, "default") == 0)
                        continue;
                automatic += t->pool == 0;
                if (!checked_add(given, t->pool, &given))
                        given = UINT64_MAX;
        }
        most = automatic > 0 && most > given ? (most - given) / automatic : 0;
        return MAX(round_down(MIN(c->memory.pool / 4, most), 2 * MIB), pool_least);
}

static void resolve_tenants(struct config *c, void (*say)(const char *text),
                            void (*warn)(const char *text))
{
        bool limited;
        uint64_t available = config_available_memory("", &limited), all = c->memory.pool,
                 share = tenant_share(c, available), group = config_memory_limit("");
        char chosen[UNITS_TEXT], total[UNITS_TEXT];

        for (unsigned i = 0; i < c->n_tenants; i++) {
                struct config_tenant *t = &c->tenants[i];
                unsigned row = 0;

                if (strcmp(t->name, "default") == 0)
                        continue;
                while (config_tenant_rows[row].offset != offsetof(struct config_tenant, pool))
                        row++;
                if (t->pool == 0) {
                        t->pool = share;
                        config_bit_set(t->automatic, row, true);
                        units_bytes(t->pool, chosen);
                        tell(say, "the pool of tenant %s is %s: %s", t->name, chosen,
                             share == pool_least ? "the least that auto takes"
                             : share < round_down(c->memory.pool / 4, 2 * MIB)
                                     ? "its share of three quarters of the memory"
                                     : "a quarter of memory.pool");
                }
                if (!checked_add(all, t->pool, &all))
                        all = UINT64_MAX;
        }
        if (c->n_tenants > 0 && !limited && all > available && all - available > c->kept_bytes) {
                units_bytes(all, chosen);
                units_bytes(available, total);
                tell(warn,
                     "the pools of all tenants are %s, but only %s of memory are available: they "
                     "cannot fill",
                     chosen, total);
        }
        if (all <= group && all > group / 10 * 9) { /* the same threshold as in kvcachectl doctor */
                units_bytes(all, chosen);
                units_bytes(group, total);
                tell(warn,
                     "the memory pools are %s, nearly all of the %s that the control group allows: "
                     "leave a tenth for the rest of the daemon, or the kernel ends it",
                     chosen, total);
        }
}

/* --- disk --- */

/* Returns the space that the files of a store's folder occupy; 0 if the folder cannot be opened. */
static uint64_t store_usage(const char *path)
{
        DIR *dir = opendir(path);
        uint64_t bytes = 0;
        struct dirent *entry;
        struct stat st;

        if (!dir)
                return 0;
        while ((entry = readdir(dir)))
                if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                    S_ISREG(st.st_mode))
                        bytes += (uint64_t)st.st_blocks * 512;
        closedir(dir);
        return bytes;
}

int config_available_space(const char *path, uint64_t *ret_bytes, uint64_t *ret_device)
{
        char parent[PATH_MAX];
        struct statvfs fs;
        struct stat st;
        uint64_t bytes;

        if ((size_t)snprintf(parent, sizeof(parent), "%s", path) >= sizeof(parent))
                return -ENAMETOOLONG;
        while (stat(parent, &st) < 0) {
                char *slash;

                if (errno != ENOENT)
                        return -errno;
                slash = strrchr(parent, '/');
                while (slash && slash > parent && slash[-1] == '/')
                        slash--;
                if (!slash)
                        strcpy(parent, ".");
                else if (slash == parent)
                        strcpy(parent, "/");
                else
                        *slash = '\0';
        }
        if (!S_ISDIR(st.st_mode))
                return -ENOTDIR;
        if (statvfs(parent, &fs) < 0)
                return -errno;
        if (!checked_mul((uint64_t)fs.f_bavail, (uint64_t)fs.f_frsize, &bytes) ||
            !checked_add(bytes, store_usage(path), &bytes))
                bytes = UINT64_MAX;
        *ret_bytes = bytes;
        *ret_device = (uint64_t)st.st_dev;
        return 0;
}

/* Adds up the space that the volumes can use, counting each file system once. */
static int add_free_space(struct config *c, uint64_t *ret_bytes, unsigned *ret_devices,
                          struct config_error *ret_error)
{
        uint64_t devices[CONFIG_MAX_VOLUMES], free_bytes = 0, bytes;
        unsigned n_devices = 0, missing = 0, j;
        char at[CONFIG_WHERE];

        for (unsigned i = 0; i < c->store.path.n; i++) {
                const char *path = c->store.path.items[i];
                int r = config_available_space(path, &bytes, &devices[n_devices]);

                if (r < 0 && missing + 1 < c->store.path.n) {
                        missing++; /* the store reports the volume, and starts without it */
                        continue;
                }
                if (r < 0) {
                        c->place[config_row_find("store.path")].broken = true;
                        return config_fail(ret_error, r, "%sstore.path: %.240s: %s%s",
                                           config_where(c, "store.path", at), path, strerror(-r),
                                           r == -EACCES || r == -EPERM
                                                   ? "; the daemon's user must own the directory"
                                                   : "");
                }
                for (j = 0; devices[j] != devices[n_devices]; j++)
                        ;
                if (j < n_devices) /* the volume shares a file system with an earlier one */
                        continue;
                n_devices++;
                if (!checked_add(free_bytes, bytes, &free_bytes))
                        free_bytes = UINT64_MAX;
        }
        /* Counts a missing volume like an average other one, so that the limit stays about the same
         * without it. */
        if (missing > 0 && (!checked_mul(free_bytes / n_devices, (uint64_t)missing, &bytes) ||
                            !checked_add(free_bytes, bytes, &free_bytes)))
                free_bytes = UINT64_MAX;
        *ret_bytes = free_bytes;
        *ret_devices = n_devices;
        return 0;
}

static int resolve_limit(struct config *c, void (*say)(const char *text),
                         void (*warn)(const char *text), struct config_error *ret_error)
{
        uint64_t free_bytes = 0, least = limit_least * c->store.path.n;
        char chosen[UNITS_TEXT], all[UNITS_TEXT], where[320], at[UNITS_TEXT];
        bool automatic = take_auto(c, "store.limit");
        unsigned n_devices = 0;
        int r;

        assert(c->store.path.n > 0 && c->store.path.n <= CONFIG_MAX_VOLUMES);
        r = add_free_space(c, &free_bytes, &n_devices, ret_error);
        if (r < 0)
                return r;
        if (c->store.path.n == 1)
                snprintf(where, sizeof(where), "at %.240s", c->store.path.items[0]);
        else
                snprintf(where, sizeof(where), "on %s", units_count(n_devices, "file system", at));
        units_bytes(free_bytes, all);
        if (!automatic) {
                if (c->store.limit > free_bytes) {
                        units_bytes(c->store.limit, chosen);
                        tell(warn,
                             "store.limit is %s, but only %s are free %s: the store stops growing "
                             "when the file "
                             "system is full",
                             chosen, all, where);
                }
                return 0;
        }
        c->store.limit = round_down(MIN(free_bytes / 2, limit_most), MIB);
        if (c->store.limit < least) {
                c->store.limit = 0;
                units_bytes(least, chosen);
                return config_fail(
                        ret_error, -ENOSPC,
                        "store.limit: only %s are free %s; auto uses half of that, and a store "
                        "needs at least %s. Free some space, or set store.path or store.limit",
                        all, where, chosen);
        }
        units_bytes(c->store.limit, chosen);
        if (free_bytes / 2 > limit_most)
                tell(say, "store.limit is %s: %s are free %s, and auto takes no more", chosen, all,
                     where);
        else
                tell(say, "store.limit is %s: half of the %s that are free %s", chosen, all, where);
        return 0;
}

/* --- places of the socket and the store --- */

static const char *home_folder(void)
{
        const char *home = getenv("HOME");
        const struct passwd *pw;

        if (home && *home == '/')
                return home;
        pw = getpwuid(geteuid());
        return pw && pw->pw_dir && pw->pw_dir[0] == '/' ? pw->pw_dir : NULL;
}

/* Gets the first folder of a list in an environment variable that the service manager has set,
 * without a slash at its end. Returns false if that is no absolute path. */
static bool first_folder(const char *variable, char ret[static PATH_MAX])
{
        const char *value = getenv(variable);
        size_t n = value ? strcspn(value, ":") : 0;

        while (n > 1 && value[n - 1] == '/')
                n--;
        if (n == 0 || n >= PATH_MAX || *value != '/')
                return false;
        memcpy(ret, value, n);
        ret[n] = '\0';
        return true;
}

/* Sets a key that is auto to a path. */
static int assign_path(struct config *c, unsigned row, const char *path, const char *from,
                       void (*say)(const char *text), struct config_error *ret_error)
{
        char why[CONFIG_WHY];
        uint64_t given[2];
        int r;

        memcpy(given, c->given, sizeof(given));
        r = config_assign(c, row, path, false, why);
        memcpy(c->given, given, sizeof(given));
        if (r < 0)
                return config_fail(ret_error, r, "%s; auto chose this path (%s), so set %s", why,
                                   from, config_rows[row].name);
        config_bit_set(c->automatic, row, true);
        tell(say, "%s is %.240s: %s", config_rows[row].name, path, from);
        return 0;
}

static int resolve_socket(struct config *c, void (*say)(const char *text),
                          struct config_error *ret_error)
{
        char folder[PATH_MAX], volume[PATH_MAX + 32];
        const char *from;
        int row = config_row_find("listen.socket");

        if (!config_row_is_auto(c, &config_rows[row]))
                return 0;
        if (first_folder("RUNTIME_DIRECTORY", folder)) {
                snprintf(volume, sizeof(volume), "%s/kvcache.sock", folder);
                from = "in $RUNTIME_DIRECTORY";
        } else if (geteuid() == 0) {
                snprintf(volume, sizeof(volume), "/run/kvcache/kvcache.sock");
                from = "the daemon runs as root";
        } else if (first_folder("XDG_RUNTIME_DIR", folder)) {
                snprintf(volume, sizeof(volume), "%s/kvcache/kvcache.sock", folder);
                from = "in $XDG_RUNTIME_DIR";
        } else {
                snprintf(volume, sizeof(volume), "/tmp/kvcache-%u/kvcache.sock",
                         (unsigned)geteuid());
                from = "$XDG_RUNTIME_DIR is not set";
        }
        return assign_path(c, (unsigned)row, volume, from, say, ret_error);
}

static int resolve_path(struct config *c, void (*say)(const char *text),
                        struct config_error *ret_error)
{
        char folder[PATH_MAX], volume[PATH_MAX + 32];
        const char *from, *home;
        int row = config_row_find("store.path");

        if (!config_row_is_auto(c, &config_rows[row]))
                return 0;
        if (first_folder("STATE_DIRECTORY", folder)) {
                snprintf(volume, sizeof(volume), "%s", folder);
                from = "$STATE_DIRECTORY";
        } else if (geteuid() == 0) {
                snprintf(volume, sizeof(volume), "/var/lib/kvcache");
                from = "the daemon runs as root";
        } else if (first_folder("XDG_STATE_HOME", folder)) {
                snprintf(volume, sizeof(volume), "%s/kvcache", folder);
                from = "in $XDG_STATE_HOME";
        } else {
                home = home_folder();
                if (!home || strlen(home) >= PATH_MAX)
                        return config_fail(
                                ret_error, -EINVAL,
                                "store.path: auto finds no directory: neither $XDG_STATE_HOME nor "
                                "a home directory is set; set store.path");
                snprintf(volume, sizeof(volume), "%s/.local/state/kvcache", home);
                from = "in the home directory";
        }
        return assign_path(c, (unsigned)row, volume, from, say, ret_error);
}

static void resolve_workers(struct config *c, void (*say)(const char *text))
{
        unsigned cores = 1;
        cpu_set_t set;

        if (!take_auto(c, "io.workers"))
                return;
        if (sched_getaffinity(0, sizeof(set), &set) == 0)
                cores = (unsigned)CPU_COUNT(&set);
        else if (sysconf(_SC_NPROCESSORS_ONLN) > 0) /* more processors than fit into the set */
                cores = (unsigned)sysconf(_SC_NPROCESSORS_ONLN);
        c->io.workers = MAX(MIN(cores, 4u), 1u);
        tell(say, "io.workers is %u: there %s %u core%s", (unsigned)c->io.workers,
             cores == 1 ? "is" : "are", cores, cores == 1 ? "" : "s");
}

int config_resolve(struct config *c, void (*say)(const char *text), void (*warn)(const char *text),
                   struct config_error *ret_error)
{
        char chosen[UNITS_TEXT];
        int r;

        r = resolve_socket(c, say, ret_error);
        if (r < 0)
                return r;
        r = resolve_path(c, say, ret_error);
        if (r < 0)
                return r;
        r = resolve_limit(c, say, warn, ret_error);
        if (r < 0)
                return r;
        if (take_auto(c, "store.entries")) {
                c->store.entries = MIN(MAX(c->store.limit / (256 * KIB), (uint64_t)1 << 20),
                                       (uint64_t)1 << 30);
                tell(say,
                     "store.entries is %llu: one for every 256 KiB of the limit, at least 1048576",
                     (unsigned long long)c->store.entries);
        }
        resolve_pool(c, say, warn);
        resolve_tenants(c, say, warn);
        resolve_workers(c, say);
        if (take_auto(c, "limits.leased_bytes")) {
                c->limits.leased_bytes = config_auto_leased_bytes(c->memory.pool);
                units_bytes(c->limits.leased_bytes, chosen);
                tell(say, "limits.leased_bytes is %s: three eighths of the pool", chosen);
        }
        return config_check(c, ret_error);
}
