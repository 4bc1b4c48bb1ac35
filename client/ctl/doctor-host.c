/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the resources that this host gives the daemon; see doctor.h. Any user may run the
 * checks; a check of a file that the user may not read is DOCTOR_UNKNOWN. */
#include "doctor.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/timex.h>

#include "answer.h"
#include "checked.h"
#include "host.h"
#include "units.h"

static const cJSON *member(const cJSON *object, const char *name)
{
        return cJSON_GetObjectItemCaseSensitive(object, name);
}

/* Returns the remedy for a path of the daemon that cannot be examined here. */
static const char *where_to_run(int error)
{
        return error == EACCES ? "run kvcachectl doctor as root"
                               : "run kvcachectl doctor where the daemon runs";
}

/* --- the store's volumes --- */

/* Repeats the daemon's sentence about the file system. The part of the sentence before "; " is
 * the finding, and the part behind it is the remedy. */
static void check_file_system(const cJSON *volume, const char *path, cJSON *checks)
{
        const char *type = answer_text(volume, "file_system");
        const char *warning = answer_text(volume, "file_system_warning");
        const char *said = *warning ? warning : answer_text(volume, "file_system_advice");
        const char *remedy = strstr(said, "; ");
        int length = (int)(remedy ? (size_t)(remedy - said) : strlen(said));

        if (!*type && !*said) {
                doctor_add(checks, DOCTOR_UNKNOWN, "file system",
                           "put the volume back into use, or upgrade the daemon",
                           "%s: the daemon does not report its file system", path);
                return;
        }
        doctor_add(checks,
                   *warning ? DOCTOR_PROBLEM
                   : *said  ? DOCTOR_WARNING
                            : DOCTOR_OK,
                   "file system", remedy ? remedy + strlen("; ") : "use XFS or ext4",
                   "%s is on %s%s%.*s", path, *type ? type : "a file system of another kind",
                   *said ? ": " : "", length, said);
}

static void check_space(const cJSON *volume, const char *path, cJSON *checks)
{
        uint64_t limit = answer_count_of(volume, "limit_bytes");
        uint64_t used = answer_count_of(volume, "used_bytes"), wanted, free_bytes;
        char available[UNITS_TEXT], missing[UNITS_TEXT];
        struct statvfs fs;

        if (statvfs(path, &fs) < 0) {
                doctor_add(checks, DOCTOR_UNKNOWN, "space", where_to_run(errno),
                           "the free space of %s cannot be read: %s", path, strerror(errno));
                return;
        }
        wanted = limit > used ? limit - used : 0;
        free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
        units_bytes(free_bytes, available);
        units_bytes(wanted, missing);
        doctor_add(checks, wanted > free_bytes ? DOCTOR_WARNING : DOCTOR_OK, "space",
                   "lower store.limit and restart the daemon, or free space: the store evicts "
                   "earlier than its limit says",
                   "%s: %s are free, and the store may grow by %s", path, available, missing);
}

/* --- the configuration --- */

static bool is_newer(const char *root, const char *path, double unix_ms)
{
        char rooted[PATH_MAX];
        struct stat st;

        snprintf(rooted, sizeof(rooted), "%s%s", root, path);
        return stat(rooted, &st) == 0 && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) &&
               (double)st.st_mtim.tv_sec * 1e3 + (double)st.st_mtim.tv_nsec / 1e6 > unix_ms;
}

/* Finds files that were changed, and drop-ins that were added or removed, since the daemon read its
 * configuration. A file that this user cannot see counts as unchanged. */
static void check_configuration(const char *root, const cJSON *status, cJSON *checks)
{
        const cJSON *configuration = member(status, "configuration"),
                    *files = member(configuration, "files"),
                    *read_ms = member(configuration, "read_unix_ms"), *one;
        char names[256] = "", directory[PATH_MAX], drop_ins[HUMAN_BYTES];
        int n = cJSON_GetArraySize(files);

        if (n == 0 || !cJSON_IsNumber(read_ms))
                return; /* only admins see the files */
        cJSON_ArrayForEach(one, files)
        {
                const char *path = cJSON_IsString(one) ? one->valuestring : "", *slash;
                size_t length = strlen(names);

                if (!is_newer(root, path, read_ms->valuedouble))
                        continue;
                slash = strrchr(path, '/');
                snprintf(names + length, sizeof(names) - length, "%s%s", length > 0 ? ", " : "",
                         slash ? slash + 1 : path);
        }
        one = cJSON_GetArrayItem(files, 0);
        snprintf(directory, sizeof(directory), "%s.d", cJSON_IsString(one) ? one->valuestring : "");
        if (*names == '\0' && is_newer(root, directory, read_ms->valuedouble))
                snprintf(names, sizeof(names), "the directory of drop-ins");
        human_things((uint64_t)n - 1, "drop-in", drop_ins);
        if (*names)
                doctor_add(checks, DOCTOR_WARNING, "configuration",
                           "read it again: kvcachectl reload",
                           "%s changed after the daemon read the configuration", names);
        else
                doctor_add(checks, DOCTOR_OK, "configuration", "",
                           "the configuration's file and %s have not changed since the daemon read "
                           "them",
                           drop_ins);
}

/* --- memory, clock and socket --- */

bool doctor_read_process(const char *root, uint64_t pid, const char *name,
                         char ret[static HOST_FILE_MOST + 1])
{
        char path[PATH_MAX];

        snprintf(path, sizeof(path), "%s/proc/%" PRIu64 "/comm", root, pid);
        if (host_read_file(path, ret) < 0 || strncmp(ret, "kvcache-daemon", 14) != 0)
                return false;
        snprintf(path, sizeof(path), "%s/proc/%" PRIu64 "/%s", root, pid, name);
        return host_read_file(path, ret) >= 0;
}

/* Returns whether the daemon's status lists the degradation `reason`. */
static bool is_degraded(const cJSON *status, const char *reason)
{
        const cJSON *one;

        cJSON_ArrayForEach(one, member(status, "degraded"))
        {
                if (strcmp(answer_text(one, "reason"), reason) == 0)
                        return true;
        }
        return false;
}

/* Checks that the pool is registered with io_uring, if the daemon wanted to register it. The check
 * uses the daemon's own report rather than the limit on locked memory, because CAP_IPC_LOCK exempts
 * a process from the limit, and POSIX I/O registers nothing. The limit only explains a failure. */
static void check_memlock(const char *root, const cJSON *status, cJSON *checks)
{
        const cJSON *io = member(status, "io");
        const char *reason = answer_text(io, "registered_reason"), *line = NULL;
        bool registered = cJSON_IsTrue(member(io, "registered"));
        char text[HOST_FILE_MOST + 1], pool[UNITS_TEXT], allowed[UNITS_TEXT], limit[128] = "";

        if (strcmp(answer_text(io, "backend"), "io_uring") != 0)
                return;
        if (registered || !is_degraded(status, "io_unregistered")) {
                doctor_add(checks, DOCTOR_OK, "locked memory", "", "%s",
                           registered ? "the memory pool is registered with io_uring" : reason);
                return;
        }
        if (doctor_read_process(root, answer_count_of(status, "pid"), "limits", text))
                line = strstr(text, "Max locked memory");
        if (line)
                line += strcspn(line, "0123456789\n");
        if (line && *line >= '0') {
                units_bytes(strtoull(line, NULL, 10), allowed);
                units_bytes(answer_count_of(member(status, "pool"), "bytes"), pool);
                snprintf(limit, sizeof(limit),
                         "; the daemon may lock %s, and its pool of %s counts for each worker",
                         allowed, pool);
        }
        doctor_add(checks, DOCTOR_WARNING, "locked memory",
                   strstr(reason, "RLIMIT_MEMLOCK")
                           ? "set LimitMEMLOCK=infinity for the daemon (kvcache.service does), and "
                             "restart it"
                           : "see the daemon's log: journalctl -u kvcache",
                   "the memory pool is not registered with io_uring: %s%s", reason, limit);
}

/* Returns the least memory.max of the cgroup `group` and those above it, or UINT64_MAX if none has
 * a limit. Changes the text `group`. */
static uint64_t cgroup_limit(const char *root, char *group)
{
        char path[PATH_MAX], text[HOST_FILE_MOST + 1];
        uint64_t least = UINT64_MAX;

        for (;;) {
                char *slash = strrchr(group, '/');

                snprintf(path, sizeof(path), "%s/sys/fs/cgroup%s/memory.max", root, group);
                if (host_read_file(path, text) > 0 && *text >= '0' && *text <= '9')
                        least = MIN(least, (uint64_t)strtoull(text, NULL, 10));
                if (!slash)
                        return least;
                *slash = '\0';
        }
}

static uint64_t memory_total(const char *root)
{
        char path[PATH_MAX], text[HOST_FILE_MOST + 1];
        const char *line;

        snprintf(path, sizeof(path), "%s/proc/meminfo", root);
        if (host_read_file(path, text) < 0 || !(line = strstr(text, "MemTotal:")))
                return UINT64_MAX;
        return (uint64_t)strtoull(line + strlen("MemTotal:"), NULL, 10) * 1024;
}

static void check_memory(const char *root, const cJSON *status, cJSON *checks)
{
        uint64_t pool = answer_count_of(member(status, "pool"), "bytes"), limit, total;
        char text[HOST_FILE_MOST + 1], wanted[UNITS_TEXT], allowed[UNITS_TEXT];
        char *group;

        units_bytes(pool, wanted);
        total = memory_total(root);
        if (total != UINT64_MAX) {
                units_bytes(total, allowed);
                doctor_add(checks, pool > total / 10 * 9 ? DOCTOR_PROBLEM : DOCTOR_OK, "memory",
                           "lower memory.pool and restart the daemon: the kernel ends processes "
                           "when memory runs out",
                           "the memory pool has %s of the host's %s", wanted, allowed);
        }
        if (!doctor_read_process(root, answer_count_of(status, "pid"), "cgroup", text) ||
            !(group = strstr(text, "0::/"))) {
                doctor_add(checks, DOCTOR_UNKNOWN, "cgroup",
                           "run kvcachectl doctor where the daemon runs",
                           "the daemon's cgroup (version 2) cannot be read");
                return;
        }
        group += strlen("0::");
        group[strcspn(group, "\n")] = '\0';
        limit = cgroup_limit(root, group);
        if (limit == UINT64_MAX) {
                doctor_add(checks, DOCTOR_OK, "cgroup", "",
                           "the daemon's cgroup does not bound the memory");
                return;
        }
        units_bytes(limit, allowed);
        doctor_add(
                checks,
                pool > limit            ? DOCTOR_PROBLEM
                : pool > limit / 10 * 9 ? DOCTOR_WARNING
                                        : DOCTOR_OK,
                "cgroup",
                "raise MemoryMax= (or the container's limit) above memory.pool by 10 % at least, "
                "or lower memory.pool and restart the daemon",
                "the memory pool has %s, and the daemon's cgroup allows %s", wanted, allowed);
}

void doctor_check_clock(int state, cJSON *checks)
{
        bool synchronised = state != TIME_ERROR;

        if (state < 0) {
                doctor_add(checks, DOCTOR_UNKNOWN, "clock",
                           "run kvcachectl doctor on the host, outside of its containers",
                           "the state of the kernel's clock cannot be read: %s", strerror(errno));
                return;
        }
        doctor_add(
                checks, synchronised ? DOCTOR_OK : DOCTOR_WARNING, "clock",
                "run chrony or systemd-timesyncd: lifetimes of chunks and the shared tier's ages "
                "follow the clock",
                "the kernel says that the clock is %s",
                synchronised ? "synchronised" : "not synchronised");
}

void doctor_check_socket(const char *path, cJSON *checks)
{
        struct stat st;

        if (stat(path, &st) < 0) {
                doctor_add(checks, DOCTOR_UNKNOWN, "socket", where_to_run(errno),
                           "the mode of the socket %s cannot be read: %s", path, strerror(errno));
                return;
        }
        doctor_add(checks, st.st_mode & S_IWOTH ? DOCTOR_WARNING : DOCTOR_OK, "socket",
                   "unless every user of this host may use the cache, set listen.mode: \"0660\", "
                   "and SocketMode=0660 in kvcache.socket, and restart both",
                   "%s has mode %04o%s", path, st.st_mode & 07777,
                   st.st_mode & S_IWOTH ? ": every user may connect" : "");
}

void doctor_check_host(const char *root, const cJSON *status, cJSON *checks)
{
        const cJSON *one;

        cJSON_ArrayForEach(one, member(member(status, "store"), "volumes"))
        {
                const char *path = answer_text(one, "volume");

                check_file_system(one, path, checks);
                check_space(one, path, checks);
        }
        check_configuration(root, status, checks);
        check_memlock(root, status, checks);
        check_memory(root, status, checks);
        doctor_check_nodes(root, status, checks);
}
