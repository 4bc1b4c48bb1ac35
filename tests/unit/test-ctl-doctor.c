/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl doctor: each check passes on a host that has everything, and fails alone. The host is
 * a folder, which $KVCACHE_TEST_ROOT puts in front of the paths of /proc and /sys. */
#include <errno.h>
#include <sys/stat.h>
#include <sys/timex.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "build-config.h"
#include "ctl-fixture.h"
#include "doctor.h"

#define PID "4242"

static struct ctl_host host;
static char socket_path[sizeof(host.root) + 16];
static char status_text[4096];

/* Prepares a host and a daemon that pass every check. */
static int everything(void **state)
{
        ctl_reset(state);
        ctl_host_new(&host);
        snprintf(socket_path, sizeof(socket_path), "%s/socket", host.root);
        ctl_host_write(&host, "socket", "");
        assert_int_equal(chmod(socket_path, 0660), 0);
        ctl_host_write(&host, "proc/meminfo", "MemTotal:       1048576 kB\nMemFree: 1 kB\n");
        ctl_host_write(&host, "proc/" PID "/comm", "kvcache-daemon\n");
        ctl_host_write(
                &host, "proc/" PID "/limits",
                "Limit  Soft Limit  Hard Limit  Units\n"
                "Max locked memory         unlimited            unlimited            bytes\n");
        ctl_host_write(&host, "proc/" PID "/cgroup", "0::/system.slice/kvcache.service\n");
        ctl_host_write(&host, "sys/fs/cgroup/system.slice/kvcache.service/memory.max", "max\n");
        snprintf(status_text, sizeof(status_text),
                 "{\"version\":\"%s\",\"pid\":" PID
                 ",\"uptime_seconds\":5,\"ready\":true,\"state\":\"ready\",\"degraded\":[],"
                 "\"reload_pending\":[],\"socket\":\"%s\",\"io\":{\"backend\":\"io_uring\","
                 "\"registered\":true},"
                 "\"pool\":{\"bytes\":1048576},\"store\":{\"volumes\":[{\"volume\":\"%s\","
                 "\"state\":\"up\",\"limit_bytes\":8192,\"used_bytes\":4096,\"full\":false,"
                 "\"errors\":{\"read\":0,\"write\":0,\"sync\":0,\"checksum\":0},\"direct\":true,"
                 "\"file_system\":\"xfs\",\"file_system_warning\":\"\","
                 "\"file_system_advice\":\"\"}]},"
                 "\"remote\":{\"backend\":\"off\"},"
                 "\"resources\":{\"leases\":{\"refused\":0},\"keys\":{\"refused\":0}},"
                 "\"namespace_usage\":{\"warning\":\"\"}}",
                 KVCACHE_BUILD_VERSION, socket_path, host.volume);
        fake.status = status_text;
        return 0;
}

/* Replaces a part of the status. */
static void change(const char *part, const char *by)
{
        static char changed[sizeof(status_text) + 256];
        const char *at = strstr(status_text, part);

        assert_non_null(at);
        snprintf(changed, sizeof(changed), "%.*s%s%s", (int)(at - status_text), status_text, by,
                 at + strlen(part));
        fake.status = changed;
}

/* Adds a degradation to the status of all later changes, until status_text is restored. */
static void degrade(const char *reason)
{
        char degraded[128];

        snprintf(degraded, sizeof(degraded), "\"degraded\":[{\"reason\":\"%s\",\"text\":\"x\"}]",
                 reason);
        change("\"degraded\":[]", degraded);
        snprintf(status_text, sizeof(status_text), "%s", fake.status);
}

/* Runs the command. Returns the check of that name that is not "ok", or the last one that is. The
 * caller deletes the answer in *ret. */
static const cJSON *diagnose(const char *name, int expected, cJSON **ret)
{
        const cJSON *one, *found = NULL;

        assert_int_equal(ctl("--json", "doctor"), expected);
        *ret = cJSON_Parse(ctl_out);
        assert_non_null(*ret);
        cJSON_ArrayForEach(one, cJSON_GetObjectItem(*ret, "checks"))
        {
                const char *own = cJSON_GetObjectItem(one, "name")->valuestring;

                /* The clock is that of the machine that runs the test. */
                if (strcmp(own, "clock") != 0 && strcmp(own, name) != 0 &&
                    doctor_level_of(one) != DOCTOR_OK)
                        fail_msg("%s: %s", own, cJSON_GetObjectItem(one, "found")->valuestring);
                if (strcmp(own, name) == 0 && (!found || doctor_level_of(found) == DOCTOR_OK))
                        found = one;
        }
        assert_non_null(found);
        return found;
}

static void expect(const char *name, enum doctor_level level, const char *text)
{
        int status = level == DOCTOR_PROBLEM ? EXIT_NOT_FOUND : EXIT_OK;
        cJSON *answer = NULL;
        const cJSON *check = diagnose(name, status, &answer);

        assert_string_equal(cJSON_GetObjectItem(check, "level")->valuestring,
                            doctor_level_name(level));
        has(cJSON_GetObjectItem(check, "found")->valuestring, text);
        assert_int_equal(*cJSON_GetObjectItem(check, "remedy")->valuestring == '\0',
                         level == DOCTOR_OK);
        cJSON_Delete(answer);
}

static void host_and_daemon_with_everything_pass(void **state)
{
        expect("version", DOCTOR_OK, KVCACHE_BUILD_VERSION " has run for 5.0 s");
        assert_int_equal(ctl("doctor"), EXIT_OK);
        has(ctl_out, "ok       io_uring           the I/O backend is io_uring\n");
        has(ctl_out, "is on xfs\n");
        has(ctl_out, "0 unknown, ");
        has(ctl_out, "\n0 problems, ");
        lacks(ctl_out, "problem  ");
}

static void each_finding_in_the_status_is_reported_alone(void **state)
{
        static const struct {
                const char *part, *by, *name;
                enum doctor_level level;
                const char *text;
        } cases[] = {
                { KVCACHE_BUILD_VERSION, "9.9", "version", DOCTOR_WARNING, "kvcache-daemon 9.9" },
                { "\"ready\":true,\"state\":\"ready\"", "\"ready\":false,\"state\":\"recovering\"",
                  "ready", DOCTOR_PROBLEM, "\"recovering\"" },
                { "\"degraded\":[]", "\"degraded\":[{\"reason\":\"io\",\"text\":\"slow\"}]",
                  "health", DOCTOR_PROBLEM, "io: slow" },
                { "\"reload_pending\":[]",
                  "\"reload_pending\":[\"io.depth: 32 becomes 7 only after a restart\"]", "reload",
                  DOCTOR_WARNING, "1 change of the configuration waits for a restart: io.depth" },
                { "\"reload_pending\":[],", "", "reload", DOCTOR_UNKNOWN, "does not report" },
                { "\"backend\":\"io_uring\"", "\"backend\":\"posix\",\"reason\":\"no ring\"",
                  "io_uring", DOCTOR_WARNING, "the I/O backend is posix: no ring" },
                { "\"io\":{\"backend\":\"io_uring\",\"registered\":true},", "", "io_uring",
                  DOCTOR_UNKNOWN, "does not report its I/O backend" },
                { "\"state\":\"up\"", "\"state\":\"bypassed\",\"reason\":\"EIO\"", "volume",
                  DOCTOR_PROBLEM, "is bypassed: EIO" },
                { "\"state\":\"up\"", "\"state\":\"suspended\"", "volume", DOCTOR_WARNING,
                  "is suspended" },
                { "\"state\":\"up\"", "\"state\":\"suspended\",\"reason\":\"EIO\"", "volume",
                  DOCTOR_WARNING, "is suspended: EIO" },
                { "\"state\":\"up\"",
                  "\"state\":\"suspended\",\"reason\":\"suspended by an admin\"", "volume",
                  DOCTOR_WARNING, "/volume is suspended by an admin" },
                { "\"checksum\":0", "\"checksum\":3", "errors", DOCTOR_PROBLEM,
                  "0 read, 0 write, 0 sync and 3 checksum errors" },
                { "\"read\":0", "\"read\":1", "errors", DOCTOR_PROBLEM, "1 read" },
                { "\"full\":false", "\"full\":true", "room", DOCTOR_PROBLEM,
                  "4 KiB used of its limit of 8 KiB; the file system has no free space above "
                  "store.reserve" },
                { "\"direct\":true", "\"direct\":false", "O_DIRECT", DOCTOR_WARNING, "without" },
                { "\"backend\":\"off\"",
                  "\"backend\":\"s3\",\"breaker\":\"open\",\"reason\":\"timeout\"", "shared tier",
                  DOCTOR_PROBLEM, "s3 is not in use: timeout" },
                { "\"backend\":\"off\"", "\"backend\":\"s3\",\"breaker\":\"closed\",\"full\":true",
                  "shared tier", DOCTOR_WARNING, "no room" },
                { "\"leases\":{\"refused\":0},\"keys\":{\"refused\":0}",
                  "\"leases\":{\"refused\":2},\"keys\":{\"refused\":1}", "limits", DOCTOR_WARNING,
                  "refused 3 times by a limit on leases, keys" },
                { "\"warning\":\"\"", "\"warning\":\"x\",\"count\":5,\"limit\":6", "namespaces",
                  DOCTOR_WARNING, "5 of 6 of your tenant" },
                { "\"warning\":\"\"}",
                  "\"warning\":\"x\",\"count\":5,\"limit\":9,\"user_count\":3,\"user_limit\":3},"
                  "\"configuration\":{}",
                  "namespaces", DOCTOR_WARNING, "5 of 9 in all, and 3 of 3 of your user" },
                { "\"pool\":{\"bytes\":1048576}", "\"pool\":{\"bytes\":1000000000}", "memory",
                  DOCTOR_PROBLEM, "of the host's 1 GiB" },
                { "\"limit_bytes\":8192", "\"limit_bytes\":1e18", "space", DOCTOR_WARNING,
                  "are free" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                fake.status = status_text;
                change(cases[i].part, cases[i].by);
                expect(cases[i].name, cases[i].level, cases[i].text);
        }
}

static void remedy_of_a_full_shared_tier_follows_its_back_end(void **state)
{
        static const struct {
                const char *backend, *remedy;
        } cases[] = {
                { "s3", "remedy: delete objects, set lifecycle rules on the bucket, or raise its "
                        "quota\n" },
                { "directory", "remedy: free room in it as an admin: kvcachectl remote sweep "
                               "--limit SIZE\n" },
                { "rados", "remedy: free room in it as an admin: kvcachectl remote sweep --limit "
                           "SIZE\n" },
        };
        char by[96];

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                snprintf(by, sizeof(by), "\"backend\":\"%s\",\"breaker\":\"closed\",\"full\":true",
                         cases[i].backend);
                change("\"backend\":\"off\"", by);
                expect("shared tier", DOCTOR_WARNING, "no chunk is written to it until it has");
                assert_int_equal(ctl("doctor"), EXIT_OK);
                has(ctl_out, cases[i].remedy);
        }
}

static void remedy_of_a_daemon_that_is_not_ready_follows_its_state(void **state)
{
        static const struct {
                const char *state, *remedy;
        } cases[] = {
                { "starting", "remedy: wait; the log has the progress: journalctl -u kvcache\n" },
                { "stopping", "remedy: start it again: systemctl start kvcache\n" },
                { "offline", "remedy: put a volume back into use, as its own check says\n" },
                { "unknown", "remedy: see its log: journalctl -u kvcache\n" },
        };
        char by[64];

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                snprintf(by, sizeof(by), "\"ready\":false,\"state\":\"%s\"", cases[i].state);
                change("\"ready\":true,\"state\":\"ready\"", by);
                expect("ready", DOCTOR_PROBLEM, cases[i].state);
                assert_int_equal(ctl("doctor"), EXIT_NOT_FOUND);
                has(ctl_out, cases[i].remedy);
        }
}

static void o_direct_that_is_switched_off_is_not_blamed_on_the_file_system(void **state)
{
        char *direct;

        change("\"registered\":true}", "\"registered\":true,\"direct_reason\":\"switched off\"}");
        direct = strstr(fake.status, "\"direct\":true");
        assert_non_null(direct);
        memcpy(direct + strlen("\"direct\":"), "null", 4);
        expect("O_DIRECT", DOCTOR_WARNING, "opened without O_DIRECT, as io.direct demands");
        ctl("doctor");
        has(ctl_out, "remedy: set io.direct to auto and restart the daemon");
}

static void remedy_of_a_shared_tier_follows_its_back_end(void **state)
{
        change("\"backend\":\"off\"",
               "\"backend\":\"directory\",\"breaker\":\"open\",\"reason\":\"EIO\"");
        ctl("doctor");
        has(ctl_out, "remedy: check that remote.path is mounted");
        change("\"backend\":\"off\"",
               "\"backend\":\"s3\",\"breaker\":\"open\",\"reason\":\"timeout\"");
        ctl("doctor");
        has(ctl_out, "remedy: check the network, the address and the credentials");
}

static void volume_that_is_not_open_is_not_said_to_lack_o_direct(void **state)
{
        change("\"state\":\"up\"", "\"state\":\"bypassed\",\"direct\":false");
        ctl("doctor");
        assert_null(strstr(ctl_out, "O_DIRECT"));
}

static void remedy_of_a_volume_follows_its_state_and_its_reason(void **state)
{
        static const struct {
                const char *by, *remedy;
        } cases[] = {
                { "'state':'bypassed','reason':'EIO'",
                  "remedy: repair or replace the device, then run kvcachectl device resume /" },
                { "'state':'suspended'",
                  "remedy: put it back into use: kvcachectl device resume /" },
                { "'state':'resuming'", "remedy: wait until kvcachectl device ls shows that /" },
                { "'state':'bypassed','reason':'its file was removed: restart the daemon'",
                  "remedy: find out who changed its files, then run systemctl restart kvcache\n" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                change("\"state\":\"up\"", ctl_json(cases[i].by));
                ctl("doctor");
                has(ctl_out, cases[i].remedy);
        }
}

static void posix_backend_is_a_finding_only_if_io_uring_was_refused(void **state)
{
        change("\"backend\":\"io_uring\"", "\"backend\":\"posix\",\"reason\":\"\"");
        expect("io_uring", DOCTOR_OK, "the I/O backend is posix, as io.backend demands");
        assert_int_equal(ctl("doctor"), EXIT_OK);
        has(ctl_out, "the I/O backend is posix, as io.backend demands\n");
        lacks(ctl_out, "allow io_uring");
        change("\"backend\":\"io_uring\"", "\"backend\":\"posix\",\"reason\":\"built without\"");
        assert_int_equal(ctl("doctor"), EXIT_OK);
        has(ctl_out, "the I/O backend is posix: built without\n");
        has(ctl_out, "permits io_uring_setup, io_uring_enter and io_uring_register");
        has(ctl_out, "or set io.backend to posix");
}

static void pending_changes_are_named_by_their_keys_only(void **state)
{
        change("\"reload_pending\":[]",
               ctl_json("'reload_pending':['store.path: /SECRET becomes /SECRET only after a "
                        "restart','tenant SECRET: users: SECRET becomes SECRET only after a "
                        "restart','tenants: added, removed','tenant SECRET','tenant a: SECRET x: "
                        "users: 1 becomes 2','SECRET key: x','log.level',7,null,['SECRET'],"
                        "'\\u001b[2J: x','']"));
        expect("reload", DOCTOR_WARNING,
               "12 changes of the configuration wait for a restart: store.path, users, tenants, "
               "log.level");
        assert_int_equal(ctl("doctor"), EXIT_OK);
        has(ctl_out, ": store.path, users, tenants, log.level\n");
        has(ctl_out, "remedy: restart the daemon: systemctl restart kvcache");
        lacks(ctl_out, "SECRET");
        lacks(ctl_out, "\033");
}

static void process_of_another_name_is_not_taken_for_the_daemon(void **state)
{
        ctl_host_write(&host, "proc/" PID "/comm", "bash\n");
        assert_int_equal(ctl("doctor"), EXIT_OK);
        has(ctl_out,
            "unknown  cgroup             the daemon's cgroup (version 2) cannot be read\n");
        has(ctl_out, "1 unknown, ");
}

static void sentence_of_the_daemon_about_a_file_system_is_repeated_with_its_remedy(void **state)
{
        static const char xfs[] = "\"file_system\":\"xfs\",\"file_system_warning\":\"\","
                                  "\"file_system_advice\":\"\"";
        static const struct {
                const char *by;
                enum doctor_level level;
                const char *found, *remedy;
        } cases[] = {
                { "'file_system':'tmpfs','file_system_warning':'is memory; use a disk',"
                  "'file_system_advice':''",
                  DOCTOR_PROBLEM, "/volume is on tmpfs: is memory\n", "remedy: use a disk\n" },
                { "'file_system':'btrfs','file_system_warning':'','file_system_advice':'copies; x'",
                  DOCTOR_WARNING, "/volume is on btrfs: copies\n", "remedy: x\n" },
                { "'file_system':'','file_system_warning':'','file_system_advice':'untried; y'",
                  DOCTOR_WARNING, "/volume is on a file system of another kind: untried\n",
                  "remedy: y\n" },
                { "'file_system':'zfs','file_system_advice':'without a remedy'", DOCTOR_WARNING,
                  "is on zfs: without a remedy\n", "remedy: use XFS or ext4\n" },
                { "'file_system':'ext4'", DOCTOR_OK, "/volume is on ext4\n", "ext4" },
                { "'file_system':''", DOCTOR_UNKNOWN, "does not report its file system\n",
                  "remedy: put the volume back into use" },
                { "'x':0", DOCTOR_UNKNOWN, "does not report its file system\n",
                  "remedy: put the volume back into use" },
                { "'file_system':7,'file_system_warning':[],'file_system_advice':{}",
                  DOCTOR_UNKNOWN, "does not report its file system\n", "remedy: " },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                change(xfs, ctl_json(cases[i].by));
                expect("file system", cases[i].level, "/volume");
                ctl("doctor");
                has(ctl_out, cases[i].found);
                has(ctl_out, cases[i].remedy);
        }
}

static void volume_that_cannot_be_reached_is_unknown(void **state)
{
        assert_int_equal(rmdir(host.volume), 0);
        expect("space", DOCTOR_UNKNOWN, "No such file or directory");
}

static void limit_on_locked_memory_is_named_if_the_pool_is_not_registered(void **state)
{
        static const struct {
                const char *limit, *reason, *found, *remedy;
        } cases[] = {
                { "65536     65536", "RLIMIT_MEMLOCK is too small",
                  "RLIMIT_MEMLOCK is too small; the daemon may lock 64 KiB, and its pool of 1 MiB "
                  "counts for each worker",
                  "set LimitMEMLOCK=infinity for the daemon" },
                { "65536     unlimited", "RLIMIT_MEMLOCK is too small",
                  "RLIMIT_MEMLOCK is too small; the daemon may lock 64 KiB, and its pool of 1 MiB "
                  "counts for each worker",
                  "set LimitMEMLOCK=infinity for the daemon" },
                { "unlimited  unlimited", "the kernel lacks it", "the kernel lacks it",
                  "see the daemon's log: journalctl" },
                { "", "RLIMIT_MEMLOCK is too small", "RLIMIT_MEMLOCK is too small",
                  "set LimitMEMLOCK=infinity for the daemon" },
        };
        static const char before[] = "the memory pool is not registered with io_uring: ";
        char text[160], sound[sizeof(status_text)];

        memcpy(sound, status_text, sizeof(sound));
        expect("locked memory", DOCTOR_OK, "the memory pool is registered with io_uring");
        degrade("io_unregistered");
        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                const cJSON *check;
                cJSON *answer;

                snprintf(text, sizeof(text), "Max locked memory         %s     bytes\nMax 7\n",
                         cases[i].limit);
                ctl_host_write(&host, "proc/" PID "/limits", text);
                snprintf(text, sizeof(text), "\"registered\":false,\"registered_reason\":\"%s\"",
                         cases[i].reason);
                change("\"registered\":true", text);
                check = diagnose("locked memory", EXIT_OK, &answer);
                assert_int_equal(doctor_level_of(check), DOCTOR_WARNING);
                assert_string_equal(cJSON_GetObjectItem(check, "found")->valuestring +
                                            strlen(before),
                                    cases[i].found);
                has(cJSON_GetObjectItem(check, "remedy")->valuestring, cases[i].remedy);
                cJSON_Delete(answer);
        }
        memcpy(status_text, sound, sizeof(sound));
        change("\"registered\":true",
               "\"registered\":false,\"registered_reason\":\"nothing has been registered yet\"");
        expect("locked memory", DOCTOR_OK, "nothing has been registered yet");
        change("\"registered\":true",
               "\"registered\":false,\"registered_reason\":\"io.registration is off\"");
        expect("locked memory", DOCTOR_OK, "io.registration is off");
        change("\"backend\":\"io_uring\",\"registered\":true",
               "\"backend\":\"posix\",\"registered\":false");
        assert_int_equal(ctl("doctor"), EXIT_OK);
        lacks(ctl_out, "locked memory");
}

static void degradation_is_reported_by_one_check(void **state)
{
        static const struct {
                const char *reason, *part, *by, *check;
                enum doctor_level level;
        } cases[] = {
                { "store_offline", "\"state\":\"up\"", "\"state\":\"bypassed\"", "volume",
                  DOCTOR_PROBLEM },
                { "volume_failed", "\"state\":\"up\"", "\"state\":\"bypassed\"", "volume",
                  DOCTOR_PROBLEM },
                { "volume_hung", "\"state\":\"up\"", "\"state\":\"hung\"", "volume",
                  DOCTOR_PROBLEM },
                { "volume_suspended", "\"state\":\"up\"", "\"state\":\"suspended\"", "volume",
                  DOCTOR_WARNING },
                { "volume_resuming", "\"state\":\"up\"", "\"state\":\"resuming\"", "volume",
                  DOCTOR_WARNING },
                { "volume_full", "\"full\":false", "\"full\":true", "room", DOCTOR_PROBLEM },
                { "volume_checksums", "\"checksum\":0", "\"checksum\":1", "errors",
                  DOCTOR_PROBLEM },
                { "volume_losses", "\"full\":false", "\"lost_files\":1", "files", DOCTOR_PROBLEM },
                { "io_fallback", "\"io_uring\"", "\"posix\",\"reason\":\"x\"", "io_uring",
                  DOCTOR_WARNING },
                { "io_buffered", "\"direct\":true", "\"direct\":false", "O_DIRECT",
                  DOCTOR_WARNING },
                { "io_unregistered", "\"registered\":true", "\"registered\":false", "locked memory",
                  DOCTOR_WARNING },
                { "remote_offline", "\"backend\":\"off\"",
                  "\"backend\":\"s3\",\"breaker\":\"open\"", "shared tier", DOCTOR_PROBLEM },
                { "remote_full", "\"backend\":\"off\"",
                  "\"backend\":\"s3\",\"breaker\":\"closed\",\"full\":true", "shared tier",
                  DOCTOR_WARNING },
        };
        char sound[sizeof(status_text)];

        memcpy(sound, status_text, sizeof(sound));
        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                degrade(cases[i].reason);
                expect("health", DOCTOR_PROBLEM, cases[i].reason); /* the only sign of it */
                change(cases[i].part, cases[i].by);
                expect(cases[i].check, cases[i].level, "");
                memcpy(status_text, sound, sizeof(sound));
        }
}

static void least_limit_of_all_cgroups_above_the_daemon_counts(void **state)
{
        expect("cgroup", DOCTOR_OK, "the daemon's cgroup does not bound the memory");
        ctl_host_write(&host, "sys/fs/cgroup/system.slice/kvcache.service/memory.max", "9000000\n");
        expect("cgroup", DOCTOR_OK, "allows 8.58 MiB");
        ctl_host_write(&host, "sys/fs/cgroup/system.slice/memory.max", "1100000\n");
        expect("cgroup", DOCTOR_WARNING, "the memory pool has 1 MiB");
        ctl_host_write(&host, "sys/fs/cgroup/memory.max", "1000000\n");
        expect("cgroup", DOCTOR_PROBLEM, "allows 977 KiB");
        ctl_host_write(&host, "proc/" PID "/cgroup", "1:memory:/x\n");
        expect("cgroup", DOCTOR_UNKNOWN, "cannot be read");
}

static void socket_that_everybody_may_write_to_is_a_warning(void **state)
{
        assert_int_equal(chmod(socket_path, 0666), 0);
        expect("socket", DOCTOR_WARNING, "has mode 0666: every user may connect");
        assert_int_equal(remove(socket_path), 0);
        expect("socket", DOCTOR_UNKNOWN, "No such file or directory");
}

static void clock_that_the_kernel_calls_unsynchronised_is_a_warning(void **state)
{
        static const struct {
                int state;
                enum doctor_level level;
        } cases[] = { { TIME_OK, DOCTOR_OK },
                      { TIME_ERROR, DOCTOR_WARNING },
                      { -1, DOCTOR_UNKNOWN } };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                cJSON *checks = cJSON_CreateArray();

                doctor_check_clock(cases[i].state, checks);
                assert_int_equal(cJSON_GetArraySize(checks), 1);
                assert_int_equal(doctor_level_of(cJSON_GetArrayItem(checks, 0)), cases[i].level);
                cJSON_Delete(checks);
        }
}

static void daemon_that_does_not_answer_is_a_problem(void **state)
{
        fake.scripts[FAKE_CONNECT] = (struct fake_script){ -ENOENT, "no socket at /x" };
        assert_int_equal(ctl("doctor"), EXIT_UNREACHABLE);
        has(ctl_out, "problem  daemon             ");
        has(ctl_out, "remedy: systemctl status kvcache shows");
        has(ctl_out, "\n1 problem, ");
        fake.scripts[FAKE_CONNECT] = (struct fake_script){ -EACCES, "/x (Permission denied)" };
        assert_int_equal(ctl("doctor"), EXIT_UNREACHABLE);
        has(ctl_out, "remedy: a member of the socket's group may connect");
}

static void daemon_that_does_not_report_its_status_is_a_problem(void **state)
{
        static const int lost[] = { -ETIMEDOUT, -ECONNRESET, -EPIPE };

        for (size_t i = 0; i < ARRAY_SIZE(lost); i++) {
                fake.scripts[FAKE_REPORT_STATUS] = (struct fake_script){ lost[i], "no answer" };
                ctl_expect(EXIT_UNREACHABLE, NULL, "", "doctor");
                has(ctl_out, "problem  daemon             the daemon does not report its status: "
                             "no answer\n");
                has(ctl_out, "remedy: systemctl status kvcache shows");
                has(ctl_out, "\n1 problem, ");
        }
        fake.scripts[FAKE_REPORT_STATUS] = (struct fake_script){ -EACCES, "not you" };
        ctl_expect(EXIT_REFUSED, "", "kvcachectl: doctor: not you\n", "doctor");
}

static void malformed_and_hostile_status_is_survived(void **state)
{
        fake.status = "[1]";
        ctl_expect(EXIT_REFUSED, "", "kvcachectl: doctor: the daemon's status is malformed\n",
                   "doctor");
        fake.status = "{}";
        assert_int_equal(ctl("doctor"), EXIT_NOT_FOUND);
        has(ctl_out, "unknown  volume             the daemon's status lists no volumes\n");
        fake.status = ctl_json("{'state':'\\u001b[2J','store':{'volumes':[7,{'volume':5}]},"
                               "'resources':[1,{'refused':1e300}],'pool':3,'pid':-1}");
        assert_int_equal(ctl("doctor"), EXIT_NOT_FOUND);
        lacks(ctl_out, "\033");
        assert_int_equal(ctl("doctor", "more"), EXIT_WRONG_USAGE);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, everything)
        const struct CMUnitTest tests[] = {
                TEST(host_and_daemon_with_everything_pass),
                TEST(each_finding_in_the_status_is_reported_alone),
                TEST(remedy_of_a_full_shared_tier_follows_its_back_end),
                TEST(remedy_of_a_daemon_that_is_not_ready_follows_its_state),
                TEST(o_direct_that_is_switched_off_is_not_blamed_on_the_file_system),
                TEST(remedy_of_a_shared_tier_follows_its_back_end),
                TEST(volume_that_is_not_open_is_not_said_to_lack_o_direct),
                TEST(remedy_of_a_volume_follows_its_state_and_its_reason),
                TEST(posix_backend_is_a_finding_only_if_io_uring_was_refused),
                TEST(pending_changes_are_named_by_their_keys_only),
                TEST(process_of_another_name_is_not_taken_for_the_daemon),
                TEST(sentence_of_the_daemon_about_a_file_system_is_repeated_with_its_remedy),
                TEST(volume_that_cannot_be_reached_is_unknown),
                TEST(limit_on_locked_memory_is_named_if_the_pool_is_not_registered),
                TEST(degradation_is_reported_by_one_check),
                TEST(least_limit_of_all_cgroups_above_the_daemon_counts),
                TEST(socket_that_everybody_may_write_to_is_a_warning),
                TEST(clock_that_the_kernel_calls_unsynchronised_is_a_warning),
                TEST(daemon_that_does_not_answer_is_a_problem),
                TEST(daemon_that_does_not_report_its_status_is_a_problem),
                TEST(malformed_and_hostile_status_is_survived),
        };

        return cmocka_run_group_tests(tests, NULL, ctl_remove_files);
}
