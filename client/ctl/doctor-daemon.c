/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the daemon's status for failures, and for features that the daemon does without; see
 * doctor.h. A member that a daemon of another version does not report counts as absent. */
#include "doctor.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "answer.h"
#include "check.h"
#include "checked.h"
#include "build-config.h"
#include "text.h"
#include "units.h"

static const cJSON *member(const cJSON *object, const char *name)
{
        return cJSON_GetObjectItemCaseSensitive(object, name);
}

static bool is_true(const cJSON *object, const char *name)
{
        return cJSON_IsTrue(member(object, name));
}

static void check_version(const cJSON *status, cJSON *checks)
{
        const char *version = answer_text(status, "version");
        bool same = strcmp(version, KVCACHE_BUILD_VERSION) == 0;
        char running[HUMAN_BYTES];
        const cJSON *uptime = member(status, "uptime_seconds");

        human_seconds(cJSON_IsNumber(uptime) ? uptime->valuedouble : 0, running);
        doctor_add(checks, same ? DOCTOR_OK : DOCTOR_WARNING, "version",
                   "after an upgrade restart the daemon (systemctl restart kvcache); otherwise "
                   "install a kvcachectl of the daemon's version",
                   "kvcache-daemon %s has run for %s; kvcachectl is " KVCACHE_BUILD_VERSION,
                   version, running);
}

static void check_ready(const cJSON *status, cJSON *checks)
{
        const char *state = answer_text(status, "state");

        doctor_add(checks, is_true(status, "ready") ? DOCTOR_OK : DOCTOR_PROBLEM, "ready",
                   strcmp(state, "starting") == 0
                           ? "wait; the log has the progress: journalctl -u kvcache"
                   : strcmp(state, "stopping") == 0 ? "start it again: systemctl start kvcache"
                   : strcmp(state, "offline") == 0
                           ? "put a volume back into use, as its own check says"
                           : "see its log: journalctl -u kvcache",
                   "the daemon's state is \"%s\"", state);
}

static bool has_finding(const cJSON *checks, const char *name)
{
        const cJSON *one;

        cJSON_ArrayForEach(one, checks)
        {
                if (doctor_level_of(one) >= DOCTOR_WARNING &&
                    strcmp(answer_text(one, "name"), name) == 0)
                        return true;
        }
        return false;
}

/* Returns whether an earlier check has found the cause of the degradation `reason`. */
static bool is_found(const cJSON *checks, const char *reason)
{
        static const struct {
                const char *reason, *check;
        } known[] = {
                { "store_offline", "volume" },
                { "volume_failed", "volume" },
                { "volume_hung", "volume" },
                { "volume_suspended", "volume" },
                { "volume_resuming", "volume" },
                { "volume_full", "room" },
                { "volume_checksums", "errors" },
                { "volume_losses", "files" },
                { "io_fallback", "io_uring" },
                { "io_buffered", "O_DIRECT" },
                { "io_unregistered", "locked memory" },
                { "remote_offline", "shared tier" },
                { "remote_full", "shared tier" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(known); i++)
                if (strcmp(known[i].reason, reason) == 0)
                        return has_finding(checks, known[i].check);
        return false;
}

void doctor_check_health(const cJSON *status, cJSON *checks)
{
        const cJSON *degraded = member(status, "degraded"), *one;
        bool added = false;

        cJSON_ArrayForEach(one, degraded)
        {
                const char *reason = answer_text(one, "reason");

                if (is_found(checks, reason))
                        continue;
                added = true;
                doctor_add(
                        checks, DOCTOR_PROBLEM, "health",
                        "the guide conf/operations.md explains each reason (the package has it in "
                        "/usr/share/doc/kvcache-daemon)",
                        "%s: %s", reason, answer_text(one, "text"));
        }
        if (!added)
                doctor_add(checks, DOCTOR_OK, "health", "",
                           cJSON_GetArraySize(degraded) == 0
                                   ? "nothing is degraded"
                                   : "nothing is degraded besides the findings above");
}

static void check_io(const cJSON *status, cJSON *checks)
{
        const cJSON *io = member(status, "io");
        const char *backend = answer_text(io, "backend"), *reason = answer_text(io, "reason");
        bool uring = strcmp(backend, "io_uring") == 0;

        if (!*backend)
                doctor_add(checks, DOCTOR_UNKNOWN, "io_uring",
                           "use a daemon of the same version as kvcachectl",
                           "the daemon does not report its I/O backend");
        else if (!uring && !*reason) /* every refusal of io_uring has a reason */
                doctor_add(checks, DOCTOR_OK, "io_uring", "",
                           "the I/O backend is %s, as io.backend demands", backend);
        else
                doctor_add(checks, uring ? DOCTOR_OK : DOCTOR_WARNING, "io_uring",
                           "allow io_uring, or set io.backend to posix, and restart the daemon; "
                           "io_uring needs a daemon built with liburing, kernel 5.15 or later, "
                           "kernel.io_uring_disabled=0, and a seccomp profile that permits "
                           "io_uring_setup, io_uring_enter and io_uring_register",
                           "the I/O backend is %s%s%s", backend, uring ? "" : ": ",
                           uring ? "" : reason);
}

int doctor_pending_key(const cJSON *change, const char **ret_key)
{
        const char *key = cJSON_IsString(change) ? change->valuestring : "", *end;
        size_t length;

        if (strncmp(key, "tenant ", strlen("tenant ")) == 0) {
                end = strstr(key, ": ");
                key = end ? end + strlen(": ") : "";
        }
        length = strspn(key, "abcdefghijklmnopqrstuvwxyz0123456789_.");
        *ret_key = key;
        return key[length] == ':' || !key[length] ? (int)length : 0;
}

/* Adds a check of pending changes that names only their keys: the values may name users and
 * paths, which the command `report` must leave out. */
static void check_reload(const cJSON *status, cJSON *checks)
{
        const cJSON *pending = member(status, "reload_pending"), *one;
        char keys[256] = "", changes[HUMAN_BYTES];
        unsigned n = 0;

        cJSON_ArrayForEach(one, pending)
        {
                const char *key;
                int key_length = doctor_pending_key(one, &key);
                size_t length = strlen(keys);

                n++;
                if (key_length > 0)
                        snprintf(keys + length, sizeof(keys) - length, "%s%.*s",
                                 length > 0 ? ", " : ": ", key_length, key);
        }
        human_things(n, "change", changes);
        if (!pending)
                doctor_add(checks, DOCTOR_UNKNOWN, "reload", "ask as an admin of the daemon",
                           "the daemon does not report the changes that wait for a restart");
        else if (n > 0)
                doctor_add(checks, DOCTOR_WARNING, "reload",
                           "restart the daemon: systemctl restart kvcache; kvcachectl status "
                           "prints the changes",
                           "%s of the configuration %s for a restart%s", changes,
                           n == 1 ? "waits" : "wait", keys);
        else
                doctor_add(checks, DOCTOR_OK, "reload", "",
                           "no change of the configuration waits for a restart");
}

/* --- volumes --- */

static void check_volume_state(const cJSON *volume, cJSON *checks)
{
        const char *state = answer_text(volume, "state"), *reason = answer_text(volume, "reason");
        bool up = strcmp(state, "up") == 0;
        bool asked = strcmp(state, "suspended") == 0 || strcmp(state, "resuming") == 0;
        /* A reason such as "suspended by an admin" repeats the state. */
        bool repeats = strncmp(reason, state, strlen(state)) == 0;
        char remedy[CHECK_TEXT];

        snprintf(remedy, sizeof(remedy),
                 strcmp(state, "resuming") == 0
                         ? "wait until kvcachectl device ls shows that %s is up"
                 : asked ? "put it back into use: kvcachectl device resume %s"
                 : strstr(reason, "restart the daemon")
                         ? "find out who changed its files, then run systemctl restart kvcache"
                         : "repair or replace the device, then run kvcachectl device resume %s",
                 answer_text(volume, "volume"));
        text_clean(remedy);
        doctor_add(checks,
                   up      ? DOCTOR_OK
                   : asked ? DOCTOR_WARNING
                           : DOCTOR_PROBLEM,
                   "volume", remedy, "%s is %s%s%s", answer_text(volume, "volume"),
                   repeats ? "" : state, *reason && !repeats ? ": " : "", reason);
}

static void check_volume_errors(const cJSON *volume, cJSON *checks)
{
        static const char *const kinds[] = { "read", "write", "sync", "checksum" };
        const cJSON *errors = member(volume, "errors");
        uint64_t all = 0, by_kind[ARRAY_SIZE(kinds)];

        for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
                by_kind[i] = answer_count_of(errors, kinds[i]);
                all += by_kind[i];
        }
        doctor_add(checks, all == 0 ? DOCTOR_OK : DOCTOR_PROBLEM, "errors",
                   "look for the device's errors with dmesg and smartctl, read the store back with "
                   "kvcachectl verify, and replace the device if errors continue",
                   "%s: %" PRIu64 " read, %" PRIu64 " write, %" PRIu64 " sync and %" PRIu64
                   " checksum errors since the daemon's start",
                   answer_text(volume, "volume"), by_kind[0], by_kind[1], by_kind[2], by_kind[3]);
}

static void check_volume_files(const cJSON *volume, cJSON *checks)
{
        uint64_t files = answer_count_of(volume, "lost_files");

        doctor_add(checks, files == 0 ? DOCTOR_OK : DOCTOR_PROBLEM, "files",
                   "the daemon's log names the files; find out who removed or cut them, and keep "
                   "others "
                   "out of the directory",
                   "%s: %" PRIu64
                   " files were missing or short when the volume was opened, with %" PRIu64
                   " chunks",
                   answer_text(volume, "volume"), files, answer_count_of(volume, "lost_chunks"));
}

static void check_volume_room(const cJSON *volume, cJSON *checks)
{
        bool full = is_true(volume, "full");
        char used[UNITS_TEXT], limit[UNITS_TEXT];

        units_bytes(answer_count_of(volume, "used_bytes"), used);
        units_bytes(answer_count_of(volume, "limit_bytes"), limit);
        doctor_add(checks, full ? DOCTOR_PROBLEM : DOCTOR_OK, "room",
                   "free space on the file system, or lower store.limit or store.reserve and "
                   "restart the daemon",
                   "%s: %s used of its limit of %s%s", answer_text(volume, "volume"), used, limit,
                   full ? "; the file system has no free space above store.reserve" : "");
}

static void check_volume_direct(const cJSON *volume, const cJSON *io, cJSON *checks)
{
        bool direct = is_true(volume, "direct");
        bool off = strcmp(answer_text(io, "direct_reason"), "switched off") == 0;

        /* A volume that could not be opened reports no O_DIRECT, either. */
        if (!direct && strcmp(answer_text(volume, "state"), "up") != 0)
                return;
        doctor_add(checks, direct ? DOCTOR_OK : DOCTOR_WARNING, "O_DIRECT",
                   off ? "set io.direct to auto and restart the daemon: without O_DIRECT the page "
                         "cache holds each chunk a second time"
                       : "put the store on XFS or ext4: without O_DIRECT the page cache holds "
                         "each chunk a second time",
                   "%s is %s O_DIRECT%s", answer_text(volume, "volume"),
                   direct ? "opened with" : "opened without",
                   !direct && off ? ", as io.direct demands" : "");
}

static void check_volumes(const cJSON *status, cJSON *checks)
{
        const cJSON *volumes = member(member(status, "store"), "volumes"), *one;

        cJSON_ArrayForEach(one, volumes)
        {
                check_volume_state(one, checks);
                check_volume_errors(one, checks);
                check_volume_files(one, checks);
                check_volume_room(one, checks);
                check_volume_direct(one, member(status, "io"), checks);
        }
        if (cJSON_GetArraySize(volumes) == 0)
                doctor_add(checks, DOCTOR_UNKNOWN, "volume",
                           "use a daemon of the same version as kvcachectl",
                           "the daemon's status lists no volumes");
}

/* --- the shared tier, and limits --- */

static void check_remote(const cJSON *status, cJSON *checks)
{
        const cJSON *remote = member(status, "remote");
        const char *backend = answer_text(remote, "backend");
        const char *breaker = answer_text(remote, "breaker");
        bool closed = strcmp(breaker, "closed") == 0;

        if (!*backend || strcmp(backend, "off") == 0)
                return;
        doctor_add(checks, closed ? DOCTOR_OK : DOCTOR_PROBLEM, "shared tier",
                   strcmp(backend, "directory") == 0
                           ? "check that remote.path is mounted, and that the daemon's user may "
                             "write there"
                           : "check the network, the address and the credentials under remote: in "
                             "the configuration",
                   "%s is %s%s%s", backend, closed ? "in use" : "not in use", closed ? "" : ": ",
                   closed ? "" : answer_text(remote, "reason"));
        if (is_true(remote, "full"))
                doctor_add(checks, DOCTOR_WARNING, "shared tier",
                           strcmp(backend, "s3") == 0
                                   ? "delete objects, set lifecycle rules on the bucket, or raise "
                                     "its quota"
                                   : "free room in it as an admin: kvcachectl remote sweep --limit "
                                     "SIZE",
                           "%s has no room: no chunk is written to it until it has", backend);
}

/* Adds one check for all limits, which names those that have refused something, and a second one if
 * nearly as many namespaces exist as a limit allows. */
static void check_limits(const cJSON *status, cJSON *checks)
{
        const cJSON *resources = member(status, "resources"), *one;
        const cJSON *usage = member(status, "namespace_usage");
        char names[256] = "", user[64] = "";
        uint64_t refused = 0;

        if (answer_count_of(usage, "user_limit") > 0)
                snprintf(user, sizeof(user), ", and %" PRIu64 " of %" PRIu64 " of your user",
                         answer_count_of(usage, "user_count"),
                         answer_count_of(usage, "user_limit"));
        cJSON_ArrayForEach(one, resources)
        {
                size_t length = strlen(names);
                uint64_t n = answer_count_of(one, "refused");

                if (n == 0 || !one->string)
                        continue;
                refused += n;
                snprintf(names + length, sizeof(names) - length, "%s%s", length > 0 ? ", " : "",
                         one->string);
        }
        if (refused > 0)
                doctor_add(checks, DOCTOR_WARNING, "limits",
                           "raise these limits in the configuration if the clients need more",
                           "requests were refused %" PRIu64 " times by a limit on %s", refused,
                           names);
        else
                doctor_add(checks, DOCTOR_OK, "limits", "", "no request was refused by a limit");
        /* The text of the daemon's warning is not used, because it names users and namespaces,
         * which the command `report` must leave out. */
        if (*answer_text(usage, "warning"))
                doctor_add(checks, DOCTOR_WARNING, "namespaces",
                           "remove unused namespaces: kvcachectl namespace ls lists them, and "
                           "kvcachectl namespace rm --purge NS removes one",
                           "nearly as many namespaces exist as a limit allows: %" PRIu64
                           " of %" PRIu64 " %s%s",
                           answer_count_of(usage, "count"), answer_count_of(usage, "limit"),
                           member(status, "configuration") ? "in all" : "of your tenant", user);
}

void doctor_check_daemon(const cJSON *status, cJSON *checks)
{
        check_version(status, checks);
        check_ready(status, checks);
        check_reload(status, checks);
        check_io(status, checks);
        check_volumes(status, checks);
        check_remote(status, checks);
        check_limits(status, checks);
}
