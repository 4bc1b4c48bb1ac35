/* SPDX-License-Identifier: Apache-2.0 */
/* Checks a host for GPUDirect Storage; see gds-host.h. Runs on the tool's main thread. Files are
 * read up to a limit and may have any content; control characters in the text of checks are
 * replaced. A file that cannot be read makes its check fail, and never ends the command. */
#include "gds-host.h"

#include <dlfcn.h>
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "checked.h"
#include "cleanup.h"
#include "common.h"
#include "host.h"
#include "human.h"
#include "text.h"
#include "units.h"

enum { MEMLOCK_LEAST = 64 * 1024 * 1024 };

const char *gds_way_name(enum gds_way way)
{
        static const char *const names[] = {
                [GDS_STAGING] = "staging",
                [GDS_UNKNOWN] = "unknown",
                [GDS_COMPATIBLE] = "compatibility mode",
                [GDS_DIRECT] = "direct",
        };

        return names[way];
}

void gds_at_most(struct gds_verdict *v, enum gds_way way, const char *format, ...)
{
        va_list arguments;

        if (way >= v->way)
                return;
        v->way = way;
        va_start(arguments, format);
        vsnprintf(v->reason, sizeof(v->reason), format, arguments);
        va_end(arguments);
        text_clean(v->reason);
}

bool gds_check(cJSON *checks, const char *name, bool ok, const char *remedy, const char *format,
               ...)
{
        va_list arguments;

        va_start(arguments, format);
        check_add(checks, name, "ok", cJSON_CreateBool(ok), ok ? "" : remedy, format, arguments);
        va_end(arguments);
        return ok;
}

/* --- libraries --- */

static void check_library(const char *name, const char *remedy, cJSON *checks,
                          struct gds_verdict *v)
{
        void *dl = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
        const char *why = dl ? "loads" : dlerror();

        if (!gds_check(checks, name, dl, remedy, "%s", why ?: "does not load"))
                gds_at_most(v, GDS_STAGING, "%s does not load", name);
        if (dl)
                dlclose(dl);
}

/* --- nvidia-fs --- */

static bool check_module(const char *root, cJSON *checks)
{
        char path[PATH_MAX], text[HOST_FILE_MOST + 1];
        ssize_t n;

        snprintf(path, sizeof(path), "%s/proc/driver/nvidia-fs/version", root);
        n = host_read_file(path, text);
        if (n >= 0)
                text[strcspn(text, "\n")] = '\0';
        return gds_check(checks, "nvidia-fs", n >= 0,
                         "install the kernel module (package nvidia-fs or nvidia-gds) and run "
                         "\"modprobe nvidia-fs\"",
                         "%s: %s", "/proc/driver/nvidia-fs/version",
                         n >= 0 ? text : host_read_error(n));
}

static bool check_nodes(const char *root, cJSON *checks)
{
        const char *refused = NULL;
        char pattern[PATH_MAX];
        glob_t found = { 0 };
        size_t n = 0;
        bool ok;

        snprintf(pattern, sizeof(pattern), "%s/dev/nvidia-fs*", root);
        if (glob(pattern, 0, NULL, &found) == 0)
                n = found.gl_pathc;
        for (size_t i = 0; i < n && !refused; i++)
                if (access(found.gl_pathv[i], R_OK | W_OK) < 0)
                        refused = found.gl_pathv[i] + strlen(root);
        ok = n > 0 && !refused;
        if (n == 0)
                gds_check(checks, "device nodes", ok,
                          "load nvidia-fs; give a container its device nodes",
                          "there are no device nodes /dev/nvidia-fs*");
        else if (refused)
                gds_check(checks, "device nodes", ok,
                          "give this user read and write permission on /dev/nvidia-fs*",
                          "this user has no read and write permission on %s", refused);
        else
                gds_check(checks, "device nodes", ok, "",
                          "the device nodes (%zu) are readable and writable", n);
        globfree(&found);
        return ok;
}

/* --- cufile.json --- */

struct compat {
        bool refused, forced;
};

static struct compat check_settings(const char *root, cJSON *checks)
{
        static const char remedy[] = "correct the file, or install the one of the package "
                                     "gds-tools; without it cuFile uses its defaults";
        _cleanup_(cJSON_Deletep) cJSON *json = NULL;
        const char *own = getenv("CUFILE_ENV_PATH_JSON"), *path = own;
        char file[PATH_MAX], text[HOST_FILE_MOST + 1];
        const cJSON *properties, *allow;
        struct compat c = { 0 };
        ssize_t n;

        if (!own || !*own) {
                snprintf(file, sizeof(file), "%s/etc/cufile.json", root);
                own = file;
                path = "/etc/cufile.json";
        }
        n = host_read_file(own, text);
        if (n < 0) {
                gds_check(checks, "cufile.json", false, remedy, "%s: %s", path, host_read_error(n));
                return c;
        }
        cJSON_Minify(text); /* removes the comments, which NVIDIA's file has */
        json = cJSON_Parse(text);
        properties = cJSON_GetObjectItemCaseSensitive(json, "properties");
        if (!cJSON_IsObject(json)) {
                gds_check(checks, "cufile.json", false, remedy, "%s: could not be read as JSON",
                          path);
                return c;
        }
        allow = cJSON_GetObjectItemCaseSensitive(properties, "allow_compat_mode");
        c.refused = cJSON_IsFalse(allow);
        c.forced = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(properties, "force_compat_mode"));
        gds_check(checks, "cufile.json", true, "", "%s: allow_compat_mode %s%s", path,
                  cJSON_IsTrue(allow) ? "true"
                  : c.refused         ? "false"
                                      : "is not set",
                  c.forced ? ", force_compat_mode true" : "");
        return c;
}

/* --- the host --- */

static void check_memlock(cJSON *checks)
{
        static const char remedy[] = "\"ulimit -l unlimited\", or LimitMEMLOCK=infinity, if "
                                     "memory cannot be registered (5036)";
        char text[HUMAN_BYTES] = "unlimited";
        struct rlimit limit;

        if (getrlimit(RLIMIT_MEMLOCK, &limit) < 0) {
                gds_check(checks, "locked memory", false, remedy, "%s", strerror(errno));
                return;
        }
        if (limit.rlim_cur != RLIM_INFINITY)
                units_bytes(limit.rlim_cur, text);
        gds_check(checks, "locked memory",
                  limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= MEMLOCK_LEAST, remedy,
                  "RLIMIT_MEMLOCK is %s", text);
}

void gds_check_host(const char *root, cJSON *checks, struct gds_verdict *v)
{
        bool module, nodes;
        struct compat c;

        check_library("libcuda.so.1", "install NVIDIA's driver; start a container with the GPU",
                      checks, v);
        check_library("libcufile.so.0",
                      "install cuFile (package libcufile of CUDA, or nvidia-gds) where the dynamic "
                      "linker finds it",
                      checks, v);
        module = check_module(root, checks);
        nodes = check_nodes(root, checks);
        c = check_settings(root, checks);
        check_memlock(checks);
        if (c.refused && !(module && nodes))
                gds_at_most(v, GDS_STAGING, "%s, and cufile.json does not allow compatibility mode",
                            module ? "no usable /dev/nvidia-fs*" : "nvidia-fs is not loaded");
        else if (!module)
                gds_at_most(v, GDS_COMPATIBLE,
                            "nvidia-fs is not loaded (only cuFile's driver can tell whether PCI "
                            "peer-to-peer DMA takes its place)");
        else if (!nodes)
                gds_at_most(v, GDS_COMPATIBLE, "no usable /dev/nvidia-fs*");
        else if (c.forced)
                gds_at_most(v, GDS_COMPATIBLE, "cufile.json forces compatibility mode");
}

/* --- file systems --- */

/* Returns whether cuFile's documentation names the file system as a shared one, which has no block
 * device. */
static bool is_shared(const char *type)
{
        static const char *const types[] = { "nfs",  "nfs4",   "lustre", "gpfs",
                                             "mmfs", "beegfs", "wekafs" };

        for (size_t i = 0; i < ARRAY_SIZE(types); i++)
                if (strcmp(type, types[i]) == 0)
                        return true;
        return false;
}

static void check_file_system(const char *path, const struct host_mount *m, cJSON *checks,
                              struct gds_verdict *v)
{
        static const char remedy[] = "for a direct way, put the store on a local NVMe disk with "
                                     "XFS, or ext4 mounted with data=ordered";
        const char *data = strstr(m->options, "data=");
        bool is_ext4 = strcmp(m->type, "ext4") == 0;
        bool ok = strcmp(m->type, "xfs") == 0 || is_shared(m->type) ||
                  (is_ext4 && (!data || strncmp(data, "data=ordered", 12) == 0));

        gds_check(checks, "file system", ok, remedy, "%s%s%.*s", m->type,
                  !is_ext4 ? ""
                  : data   ? ", "
                           : ", data=ordered by default",
                  is_ext4 && data ? (int)strcspn(data, ",\n") : 0, data ?: "");
        if (!ok)
                gds_at_most(v, GDS_COMPATIBLE, "%s: cuFile has no direct path to this %s", path,
                            m->type);
}

/* Gets the value of a property from udev's text. Returns false if it has no such property. */
static bool udev_property(const char *text, const char *key, char *ret, size_t room)
{
        size_t length = strlen(key);

        for (const char *line = text; line; line = strchr(line, '\n')) {
                line += *line == '\n';
                if (strncmp(line, "E:", 2) == 0 && strncmp(line + 2, key, length) == 0 &&
                    line[2 + length] == '=') {
                        line += 3 + length;
                        snprintf(ret, room, "%.*s", (int)strcspn(line, "\n"), line);
                        return true;
                }
        }
        return false;
}

static void check_udev(const char *root, const char *path, const struct host_mount *m,
                       cJSON *checks, struct gds_verdict *v)
{
        static const char *const keys[] = { "ID_FS_USAGE", "ID_FS_TYPE" };
        static const char remedy[] =
                "cuFile refuses every file on this device (5027): run udev, or give a container "
                "the host's /run/udev, read-only";
        char file[PATH_MAX], text[HOST_FILE_MOST + 1], name[64], type[64];
        bool ok = false;
        ssize_t n;

        if (m->major == 0) {
                if (!gds_check(checks, "udev", is_shared(m->type),
                               "put the store on a file system of a block device",
                               "%s has no block device of its own", m->type))
                        gds_at_most(v, GDS_STAGING, "%s: cuFile refuses files on %s (5027)", path,
                                    m->type);
                return;
        }
        snprintf(name, sizeof(name), "/run/udev/data/b%u:%u", m->major, m->minor);
        snprintf(file, sizeof(file), "%s%s", root, name);
        n = host_read_file(file, text);
        if (n < 0) {
                gds_check(checks, "udev", false, remedy, "%s: %s", name, host_read_error(n));
        } else {
                const char *missing = NULL;

                for (size_t i = 0; i < ARRAY_SIZE(keys) && !missing; i++)
                        if (!udev_property(text, keys[i], type, sizeof(type)))
                                missing = keys[i];
                ok = !missing;
                gds_check(checks, "udev", ok, ok ? "" : remedy, "%s: %s%s", name,
                          ok ? "ID_FS_TYPE=" : "has no E:", ok ? type : missing);
        }
        if (!ok)
                gds_at_most(v, GDS_STAGING,
                            "%s: its device is not in udev's database, so cuFile refuses its files "
                            "(5027)",
                            path);
}

/* Checks that this user may open the store's files. The descriptor that the daemon lends does not
 * suffice: cuFile opens the file again by its name, and the files belong to the daemon's user. */
static void check_owner(const char *path, const struct stat *st, cJSON *checks,
                        struct gds_verdict *v)
{
        bool ok = geteuid() == 0 || (st && st->st_uid == geteuid());

        if (!gds_check(checks, "owner", ok,
                       "run the engine as the daemon's user or as root; for other users the CPU "
                       "copies the data",
                       "%s",
                       ok ? "this user may open the store's files by name"
                          : "this user may not open the store's files by name"))
                gds_at_most(v, GDS_STAGING,
                            "%s: cuFile opens files by name, which this user may not (5031)", path);
}

void gds_check_volume(const char *root, const char *path, bool direct, cJSON *checks,
                      struct gds_verdict *v)
{
        struct host_mount m = { 0 };
        struct stat st;
        bool seen = stat(path, &st) == 0;
        int error = seen ? 0 : errno;

        if (!gds_check(checks, "O_DIRECT", direct,
                       "put the store on a file system with O_DIRECT, and leave io.direct at auto",
                       "%s",
                       direct ? "O_DIRECT works"
                              : "O_DIRECT does not work, so nothing is lent from here"))
                gds_at_most(v, GDS_STAGING, "%s: no O_DIRECT", path);
        /* A mount point is also found for a directory that this user may not enter. */
        if ((!seen && error != EACCES) || !host_find_mount(root, path, seen ? &st : NULL, &m)) {
                gds_check(checks, "file system", false,
                          "run kvcachectl where the daemon runs, if that is in a container",
                          "the mount of the volume could not be found: %s",
                          error ? strerror(error) : "not in /proc/self/mountinfo");
                gds_at_most(v, GDS_UNKNOWN, "%s: its file system could not be found", path);
                return;
        }
        check_file_system(path, &m, checks, v);
        check_udev(root, path, &m, checks, v);
        check_owner(path, seen ? &st : NULL, checks, v);
}
