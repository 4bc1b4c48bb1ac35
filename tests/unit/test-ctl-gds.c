/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl gds: checks and verdict. The host is a folder, which $KVCACHE_TEST_ROOT puts in front
 * of the paths of /proc, /dev, /etc and /run. */
#include <errno.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "ctl-fixture.h"
#include "gds-host.h"

/* A symbol of each stub, so that libcuda and libcufile are loaded with this program and found by
 * their names. The types do not matter: only the addresses are taken. */
void cuCtxGetCurrent(void);
void cuFileDriverOpen(void);
__attribute__((used)) static void (*const stubs[])(void) = { cuCtxGetCurrent, cuFileDriverOpen };

static struct ctl_host host;

static void remove_host(const char *name)
{
        char path[512];

        snprintf(path, sizeof(path), "%s/%s", host.root, name);
        assert_int_equal(remove(path), 0);
}

/* Mounts a file system at the root of the host. Its device, whose number is for experiments, is
 * not that of the folder. */
static void mount_host(const char *device, const char *type_and_options)
{
        char text[512];

        snprintf(text, sizeof(text),
                 "malformed\n21 1 0:99 / /proc rw - proc proc rw\n22 1 %s / / rw shared:1 - %s\n",
                 device, type_and_options);
        ctl_host_write(&host, "proc/self/mountinfo", text);
}

/* Prepares a host, a daemon and a volume with everything that a direct path needs. */
static int everything(void **state)
{
        static char status[512];

        ctl_reset(state);
        ctl_host_new(&host);
        unsetenv("CUFILE_ENV_PATH_JSON");
        ctl_host_write(&host, "proc/driver/nvidia-fs/version", "version: 2.20\nmore\n");
        ctl_host_write(&host, "dev/nvidia-fs0", "");
        ctl_host_write(&host, "etc/cufile.json",
                       "{ // a comment\n \"properties\": {\"allow_compat_mode\": true} }\n");
        ctl_host_write(&host, "run/udev/data/b123:1",
                       "S:disk\nE:ID_FS_TYPE=xfs\nE:ID_FS_USAGE=filesystem\n");
        mount_host("123:1", "xfs /dev/x rw");
        snprintf(status, sizeof(status),
                 "{\"store\":{\"volumes\":[{\"volume\":\"%s\",\"direct\":true}]}}", host.volume);
        fake.status = status;
        fake.lends = fake.takes_files = true;
        fake.config = "io:\n  gds: auto\n  gds_puts: off\n";
        return 0;
}

static void host_and_daemon_with_everything_have_a_direct_way(void **state)
{
        fake.stats =
                "{\"kvcache_lent_chunks_total\":1200,\"kvcache_lent_bytes_total\":2048,"
                "\"kvcache_not_lent_chunks_total\":{\"in_memory\":7,\"other\":0,\"x\\u001b\":1},"
                "\"kvcache_file_puts_total\":3,\"kvcache_file_put_bytes_total\":1024,"
                "\"kvcache_file_put_failures_total\":1}";
        ctl_expect(EXIT_OK, NULL, "", "gds");
        has(ctl_out, "This host\n  yes  libcuda.so.1    loads\n  yes  libcufile.so.0  loads\n"
                     "  yes  nvidia-fs       /proc/driver/nvidia-fs/version: version: 2.20\n"
                     "  yes  device nodes    the device nodes (1) are readable and writable\n"
                     "  yes  cufile.json     /etc/cufile.json: allow_compat_mode true\n");
        has(ctl_out, "  yes  O_DIRECT        O_DIRECT works\n"
                     "  yes  file system     xfs\n"
                     "  yes  udev            /run/udev/data/b123:1: ID_FS_TYPE=xfs\n");
        has(ctl_out, "  yes  owner           this user may open the store's files by name\n");
        has(ctl_out,
            "\nDaemon\n  yes  daemon          answers\n"
            "  yes  lending         the daemon lends its data files to this user; io.gds: auto\n"
            "  yes  puts            the daemon takes puts that cuFile has written from this user; "
            "io.gds_puts: off\n"
            "       lent            1,200 chunks, 2 KiB; not lent (in_memory): 7; not lent (x?): "
            "1\n"
            "       from files      3 chunks, 1 KiB; failed: 1\n"
            "\nverdict: direct\n");
}

static void answer_in_json_has_the_metrics_as_they_are(void **state)
{
        fake.stats = "{\"kvcache_lent_chunks_total\":1,\"kvcache_not_lent_chunks_total\":{\"in_"
                     "memory\":7}}";
        ctl_expect(EXIT_OK, NULL, "", "--json", "gds");
        has(ctl_out, "\"lends\":true,\"policy\":\"auto\",\"takes_files\":true,\"lent_chunks\":1,"
                     "\"not_lent_chunks\":{\"in_memory\":7}},\"verdict\":\"direct\"}\n");
        has(ctl_out, "{\"name\":\"daemon\",\"ok\":true,\"found\":\"answers\",\"remedy\":\"\"}");
}

/* --- missing parts --- */

static void each_missing_part_lowers_the_verdict(void **state)
{
        static const struct {
                const char *file, *text; /* NULL: the file is removed */
                const char *check, *verdict;
        } cases[] = {
                { "proc/driver/nvidia-fs/version", NULL,
                  "no   nvidia-fs       /proc/driver/nvidia-fs/version: No such file or directory",
                  "compatibility mode: nvidia-fs is not loaded" },
                { "dev/nvidia-fs0", NULL,
                  "no   device nodes    there are no device nodes /dev/nvidia-fs*",
                  "compatibility mode: no usable /dev/nvidia-fs*" },
                { "etc/cufile.json", "{\"properties\":{\"force_compat_mode\":true}}",
                  "yes  cufile.json     /etc/cufile.json: allow_compat_mode is not set, "
                  "force_compat_mode true",
                  "compatibility mode: cufile.json forces compatibility mode" },
                { "etc/cufile.json", "{\"properties\":",
                  "no   cufile.json     /etc/cufile.json: could not be read as JSON", "direct" },
                { "etc/cufile.json", NULL,
                  "no   cufile.json     /etc/cufile.json: No such file or directory", "direct" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                char verdict[256];

                everything(NULL);
                if (cases[i].text)
                        ctl_host_write(&host, cases[i].file, cases[i].text);
                else
                        remove_host(cases[i].file);
                ctl_expect(EXIT_OK, NULL, "", "gds");
                has(ctl_out, cases[i].check);
                snprintf(verdict, sizeof(verdict), "\nverdict: %s", cases[i].verdict);
                has(ctl_out, verdict);
        }
}

static void compatibility_mode_that_is_not_allowed_leaves_staging(void **state)
{
        ctl_host_write(&host, "etc/cufile.json", "{\"properties\":{\"allow_compat_mode\":false}}");
        assert_int_equal(ctl("gds"), EXIT_OK);
        has(ctl_out, "\nverdict: direct\n");
        remove_host("dev/nvidia-fs0");
        assert_int_equal(ctl("gds"), EXIT_OK);
        has(ctl_out, "\nverdict: staging: no usable /dev/nvidia-fs*, and cufile.json does not "
                     "allow compatibility mode\n");
        remove_host("proc/driver/nvidia-fs/version");
        assert_int_equal(ctl("gds"), EXIT_OK);
        has(ctl_out, "\nverdict: staging: nvidia-fs is not loaded, and cufile.json does not allow "
                     "compatibility mode\n");
}

static void settings_are_read_from_the_file_that_cufile_reads(void **state)
{
        char large[70000], path[256];

        snprintf(path, sizeof(path), "%s",
                 ctl_file("own.json", "{\"properties\":{\"force_compat_mode\":true}}", 41));
        setenv("CUFILE_ENV_PATH_JSON", path, 1);
        assert_int_equal(ctl("gds"), EXIT_OK);
        has(ctl_out, "\nverdict: compatibility mode: cufile.json forces compatibility mode\n");
        has(ctl_out, path);
        memset(large, ' ', sizeof(large));
        ctl_file("own.json", large, sizeof(large));
        assert_int_equal(ctl("gds"), EXIT_OK);
        has(ctl_out, ": larger than 64 KiB\n");
        setenv("CUFILE_ENV_PATH_JSON", host.root, 1);
        assert_int_equal(ctl("gds"), EXIT_OK);
        has(ctl_out, ": not a regular file\n");
        unsetenv("CUFILE_ENV_PATH_JSON");
}

static void hostile_file_cannot_steer_the_terminal(void **state)
{
        ctl_host_write(&host, "proc/driver/nvidia-fs/version", "\033[2J\xc2\x9b\n");
        assert_int_equal(ctl("gds"), EXIT_OK);
        has(ctl_out, "version: ?[2J??\n");
}

static void locked_memory_is_compared_with_64_mib(void **state)
{
        struct gds_verdict v = { .way = GDS_DIRECT };
        struct rlimit before, low;
        cJSON *checks = cJSON_CreateArray(), *check;

        assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &before), 0);
        low = (struct rlimit){ MIN((rlim_t)4096, before.rlim_max), before.rlim_max };
        assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &low), 0);
        gds_check_host(host.root, checks, &v);
        assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &before), 0);
        check = cJSON_GetArrayItem(checks, 5);
        assert_string_equal(cJSON_GetObjectItem(check, "found")->valuestring,
                            "RLIMIT_MEMLOCK is 4 KiB");
        assert_true(cJSON_IsFalse(cJSON_GetObjectItem(check, "ok")));
        assert_int_equal(v.way, GDS_DIRECT); /* registering less may still work */
        cJSON_Delete(checks);
}

/* --- the daemon --- */

static void daemon_that_does_not_lend_leaves_staging(void **state)
{
        fake.lends = fake.takes_files = false;
        fake.scripts[FAKE_REPORT_CONFIG].result = -EACCES;
        fake.scripts[FAKE_REPORT_STATS].result = -EACCES;
        ctl_expect(EXIT_OK, NULL, "", "gds");
        has(ctl_out, "  no   lending         the daemon does not lend its data files to this user\n"
                     "                       remedy: set io.gds");
        has(ctl_out, "  no   puts            the daemon takes no puts that cuFile has written from "
                     "this user\n");
        has(ctl_out, "\nverdict: staging: the daemon does not lend to this user (io.gds)\n");
        lacks(ctl_out, "  lent ");
}

static void verdict_is_unknown_without_a_daemon(void **state)
{
        fake.scripts[FAKE_CONNECT] = (struct fake_script){ -ECONNREFUSED, "no daemon at /x" };
        ctl_expect(EXIT_OK, NULL,
                   "kvcachectl: warning: gds: no daemon at /x; only this host was checked\n",
                   "gds");
        has(ctl_out, "  no   daemon          no daemon at /x\n");
        has(ctl_out, "\nverdict: unknown: no daemon answered\n");
        assert_int_equal(ctl("-j", "gds"), EXIT_OK);
        has(ctl_out, "\"connected\":false");
        has(ctl_err, "{\"warning\":{\"message\":\"gds: no daemon at /x;");
}

static void verdict_is_unknown_if_the_volumes_are_not_listed(void **state)
{
        fake.status = "{}";
        ctl_expect(EXIT_OK, NULL,
                   "kvcachectl: warning: gds: the daemon's status does not list its volumes\n",
                   "gds");
        has(ctl_out, "\nverdict: unknown: the daemon did not list its volumes\n");
        fake.scripts[FAKE_REPORT_STATUS] = (struct fake_script){ -EPIPE, "cut" };
        ctl_expect(EXIT_OK, NULL,
                   "kvcachectl: warning: gds: the daemon's status does not list its volumes: cut\n",
                   "gds");
}

/* --- volumes --- */

/* Checks the volume; the result is in `found` and the verdict. */
static struct gds_verdict check_volume(const char *path, bool direct, char found[static 4096])
{
        struct gds_verdict v = { .way = GDS_DIRECT };
        cJSON *checks = cJSON_CreateArray();
        char *text;

        gds_check_volume(host.root, path, direct, checks, &v);
        text = cJSON_PrintUnformatted(checks);
        assert_non_null(text);
        snprintf(found, 4096, "%s", text);
        free(text);
        cJSON_Delete(checks);
        return v;
}

static void file_system_decides_on_the_way(void **state)
{
        static const struct {
                const char *mounted, *found;
                enum gds_way way;
        } cases[] = {
                { "xfs /dev/x rw", "\"ok\":true,\"found\":\"xfs\"", GDS_DIRECT },
                { "ext4 /dev/x rw", "\"ok\":true,\"found\":\"ext4, data=ordered by default\"",
                  GDS_DIRECT },
                { "ext4 /dev/x rw,data=ordered,x", "\"ok\":true,\"found\":\"ext4, data=ordered\"",
                  GDS_DIRECT },
                { "ext4 /dev/x rw,data=journal", "\"ok\":false,\"found\":\"ext4, data=journal\"",
                  GDS_COMPATIBLE },
                { "btrfs /dev/x rw", "\"ok\":false,\"found\":\"btrfs\"", GDS_COMPATIBLE },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                char found[4096];
                struct gds_verdict v;

                mount_host("123:1", cases[i].mounted);
                ctl_host_write(&host, "run/udev/data/b123:1",
                               "E:ID_FS_TYPE=any\nE:ID_FS_USAGE=filesystem\n");
                v = check_volume(host.volume, true, found);
                has(found, cases[i].found);
                assert_int_equal(v.way, cases[i].way);
        }
}

static void device_must_be_in_the_database_of_udev(void **state)
{
        char found[4096];
        struct gds_verdict v;

        remove_host("run/udev/data/b123:1");
        v = check_volume(host.volume, true, found);
        has(found, "/run/udev/data/b123:1: No such file or directory");
        assert_int_equal(v.way, GDS_STAGING);
        has(v.reason, "is not in udev's database");
        ctl_host_write(&host, "run/udev/data/b123:1", "E:ID_FS_TYPE=xfs\nE:ID_FS_USAGE_X=1\n");
        v = check_volume(host.volume, true, found);
        has(found, "/run/udev/data/b123:1: has no E:ID_FS_USAGE");
        assert_int_equal(v.way, GDS_STAGING);
}

static void file_system_without_a_block_device_must_be_a_shared_one(void **state)
{
        char found[4096];
        struct gds_verdict v;

        mount_host("0:50", "nfs4 host:/x rw");
        v = check_volume(host.volume, true, found);
        has(found, "\"ok\":true,\"found\":\"nfs4 has no block device of its own\"");
        assert_int_equal(v.way, GDS_DIRECT);
        mount_host("0:50", "tmpfs none rw");
        v = check_volume(host.volume, true, found);
        has(found, "\"ok\":false,\"found\":\"tmpfs has no block device of its own\"");
        assert_int_equal(v.way, GDS_STAGING);
}

static void nearest_mount_point_counts_unless_the_device_is_known(void **state)
{
        char found[4096], text[1024], escaped[256];
        struct stat st;

        snprintf(escaped, sizeof(escaped), "%s/a\\040b", host.root);
        snprintf(text, sizeof(text),
                 "1 1 123:1 / / rw - btrfs /dev/x rw\n2 1 123:2 / %s rw - nilfs2 /dev/y rw\n3 1 "
                 "123:3 / "
                 "%s rw - f2fs /dev/z rw\n",
                 escaped, host.volume);
        ctl_host_write(&host, "proc/self/mountinfo", text);
        check_volume(host.volume, true, found);
        has(found, "\"found\":\"f2fs\"");
        snprintf(text, sizeof(text), "%s/a b", host.root);
        assert_int_equal(mkdir(text, 0755), 0);
        check_volume(text, true, found);
        has(found, "\"found\":\"nilfs2\"");
        snprintf(text, sizeof(text), "%s/a bc", host.root); /* not below "a b" */
        assert_int_equal(mkdir(text, 0755), 0);
        check_volume(text, true, found);
        has(found, "\"found\":\"btrfs\"");
        assert_int_equal(stat(host.volume, &st), 0);
        snprintf(text, sizeof(text),
                 "1 1 123:1 / %s rw - btrfs /dev/x rw\n2 1 %u:%u / /other rw - zfs /dev/y rw\n",
                 host.volume, major(st.st_dev), minor(st.st_dev));
        ctl_host_write(&host, "proc/self/mountinfo", text);
        check_volume(host.volume, true, found);
        has(found, "\"found\":\"zfs\"");
}

static void volume_that_cannot_be_found_leaves_the_verdict_unknown(void **state)
{
        char found[4096];
        struct gds_verdict v = check_volume("/nowhere/volume", true, found);

        has(found, "the mount of the volume could not be found: No such file or directory");
        assert_int_equal(v.way, GDS_UNKNOWN);
        ctl_host_write(&host, "proc/self/mountinfo", "");
        v = check_volume(host.volume, true, found);
        has(found, "the mount of the volume could not be found: not in /proc/self/mountinfo");
        assert_int_equal(v.way, GDS_UNKNOWN);
}

static void volume_without_o_direct_leaves_staging(void **state)
{
        char found[4096];
        struct gds_verdict v = check_volume(host.volume, false, found);

        has(found, "does not work, so nothing is lent from here");
        assert_int_equal(v.way, GDS_STAGING);
        has(v.reason, ": no O_DIRECT");
}

static void verdict_keeps_the_first_reason_for_the_least_way(void **state)
{
        struct gds_verdict v = { .way = GDS_DIRECT };

        gds_at_most(&v, GDS_COMPATIBLE, "one");
        gds_at_most(&v, GDS_COMPATIBLE, "two");
        assert_string_equal(v.reason, "one");
        gds_at_most(&v, GDS_STAGING, "three\033");
        gds_at_most(&v, GDS_UNKNOWN, "four");
        assert_string_equal(v.reason, "three?");
        assert_int_equal(v.way, GDS_STAGING);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup(name, everything)
        const struct CMUnitTest tests[] = {
                CASE(host_and_daemon_with_everything_have_a_direct_way),
                CASE(answer_in_json_has_the_metrics_as_they_are),
                CASE(each_missing_part_lowers_the_verdict),
                CASE(compatibility_mode_that_is_not_allowed_leaves_staging),
                CASE(settings_are_read_from_the_file_that_cufile_reads),
                CASE(hostile_file_cannot_steer_the_terminal),
                CASE(locked_memory_is_compared_with_64_mib),
                CASE(daemon_that_does_not_lend_leaves_staging),
                CASE(verdict_is_unknown_without_a_daemon),
                CASE(verdict_is_unknown_if_the_volumes_are_not_listed),
                CASE(file_system_decides_on_the_way),
                CASE(device_must_be_in_the_database_of_udev),
                CASE(file_system_without_a_block_device_must_be_a_shared_one),
                CASE(nearest_mount_point_counts_unless_the_device_is_known),
                CASE(volume_that_cannot_be_found_leaves_the_verdict_unknown),
                CASE(volume_without_o_direct_leaves_staging),
                CASE(verdict_keeps_the_first_reason_for_the_least_way),
        };

        return cmocka_run_group_tests(tests, NULL, ctl_remove_files);
}
