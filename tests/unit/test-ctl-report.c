/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl report: the form of the archive, its files, and the data that they omit. */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive.h"
#include "ctl-fixture.h"

static char member_text[64 * 1024];

/* Finds a file of an archive as tar(1) does. NULL: the archive does not have it. The text is valid
 * until the next call. */
static const char *member(const char *archive, size_t bytes, const char *name)
{
        const char *end = archive + bytes;

        while (archive + 512 <= end && *archive) {
                size_t length = strtoull(archive + 124, NULL, 8);
                unsigned sum = 8 * ' ';

                for (unsigned i = 0; i < 512; i++)
                        sum += i >= 148 && i < 156 ? 0 : (uint8_t)archive[i];
                assert_int_equal(strtoul(archive + 148, NULL, 8), sum);
                assert_memory_equal(archive + 257,
                                    "ustar\0"
                                    "00",
                                    8);
                assert_string_equal(archive + 100, "0000600");
                assert_true(archive + 512 + length <= end);
                if (strcmp(archive, name) == 0) {
                        assert_true(length < sizeof(member_text));
                        memcpy(member_text, archive + 512, length);
                        member_text[length] = '\0';
                        return member_text;
                }
                archive += 512 + (length + 511) / 512 * 512;
        }
        return NULL;
}

static const char *printed(const char *name)
{
        assert_int_equal(ctl_out_bytes % 512, 0);
        return member(ctl_out, ctl_out_bytes, name);
}

static int daemon_with_names(void **state)
{
        ctl_reset(state);
        fake.status = "{\"version\":\"1\",\"host\":\"SECRET\",\"ready\":true,\"namespaces\":[{"
                      "\"name\":\"SECRET\"}],"
                      "\"namespace_usage\":{\"count\":3,\"warning\":\"SECRET has many\"},"
                      "\"reload_pending\":[\"store.path: /SECRET becomes /SECRET only\",\"tenant "
                      "SECRET: users: SECRET becomes 1\",\"tenant SECRET\",\"SECRET\",7,null,"
                      "{\"SECRET\":1},\"\",\"io.depth\"],"
                      "\"tenants\":[{\"name\":\"SECRET\",\"requests\":7},{\"name\":\"SECRET\"}]}";
        fake.metrics = "# HELP kvcache_a Of a tenant=\"any\".\nkvcache_a 1\n"
                       "kvcache_b{tenant=\"SECRET\",x=\"1\"} 2\nkvcache_b{namespace=\"SECRET\"} 3\n"
                       "kvcache_floor_bytes{prefix=\"SECRET\"} 3\n"
                       "kvcache_c{kind=\"get\"} 4\n# EOF\n";
        fake.config = "listen:\n  socket: /s\nremote:\n  local_namespaces:\n  - SECRET\n"
                      "    - SECRET\n  write: reused\nmemory:\n  floors: [SECRET=1GiB]\nhttp:\n  "
                      "hosts: [SECRET]\naccess:\n  users: "
                      "[SECRET]\n"
                      "  groups:\n  - SECRET\n\ntenants:\n- name: SECRET\n  uid: SECRET\n"
                      "log:\n  level: info\n";
        return 0;
}

static void archive_has_its_files_without_names(void **state)
{
        ctl_expect(EXIT_OK, NULL, "", "report", "--out", "-");
        has(printed("README.txt"), "Read the files before you send them.");
        has(printed("versions.txt"), "\nlibkvcache fake\n");
        has(printed("doctor.json"), "\"version\"");
        has(printed("status.json"), "tenant 2");
        has(printed("status.json"), "\"requests\":\t7");
        has(printed("status.json"), "\"count\":\t3");
        has(printed("status.json"), "\"reload_pending\":\t[\"store.path\", \"users\", \"\", \"\", "
                                    "\"\", \"\", \"\", \"\", \"io.depth\"]");
        has(printed("doctor.json"), "for a restart: store.path, users, io.depth\"");
        assert_string_equal(printed("metrics.txt"),
                            "# HELP kvcache_a Of a tenant=\"any\".\nkvcache_a 1\n"
                            "kvcache_c{kind=\"get\"} 4\n# EOF\n");
        assert_string_equal(printed("config.yaml"),
                            "listen:\n  socket: /s\nremote:\n  write: "
                            "reused\nmemory:\nhttp:\n\nlog:\n  level: info\n");
        assert_null(memmem(ctl_out, ctl_out_bytes, "SECRET", 6));
        assert_null(printed("other"));
}

static void file_is_private_and_never_replaced(void **state)
{
        const char *path = ctl_path("report.tar");
        static char bytes[256 * 1024];
        struct stat st;
        FILE *file;
        size_t n;

        assert_int_equal(ctl("report", "-o", path), EXIT_OK);
        has(ctl_out, "report.tar: read its files before you send it\n");
        path = ctl_path("report.tar");
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0600);
        file = fopen(path, "r");
        assert_non_null(file);
        n = fread(bytes, 1, sizeof(bytes), file);
        fclose(file);
        assert_int_equal(n, st.st_size);
        assert_non_null(member(bytes, n, "status.json"));
        assert_int_equal(ctl("report", "-o", path), EXIT_LOCAL);
        has(ctl_err, "report.tar: File exists; name another file with --out\n");
        assert_int_equal(remove(ctl_path("report.tar")), 0);
        assert_int_equal(ctl("--json", "report", "-o", ctl_path("report.tar")), EXIT_OK);
        has(ctl_out, "\"files\":[\"README.txt\",\"versions.txt\",\"doctor.json\",\"status.json\","
                     "\"metrics.txt\",\"config.yaml\"]}\n");
}

static void parts_that_cannot_be_had_are_missing(void **state)
{
        fake.scripts[FAKE_REPORT_CONFIG].result = -EACCES;
        fake.scripts[FAKE_REPORT_METRICS] = (struct fake_script){ -EIO, "broken" };
        ctl_expect(EXIT_OK, NULL,
                   "kvcachectl: warning: report: the archive lacks metrics.txt: "
                   "broken\nkvcachectl: warning: "
                   "report: the archive lacks config.yaml: only admins may read it\n",
                   "report", "-o", "-");
        assert_null(printed("config.yaml"));
        assert_null(printed("metrics.txt"));
        assert_non_null(printed("status.json"));
}

static void without_a_daemon_the_host_is_reported(void **state)
{
        fake.scripts[FAKE_CONNECT] = (struct fake_script){ -ENOENT, "no socket at /x" };
        assert_int_equal(ctl("report", "-o", "-"), EXIT_UNREACHABLE);
        has(ctl_err, "warning: report: the archive describes only this host: no socket at /x\n");
        has(printed("doctor.json"), "no socket at /x");
        assert_null(printed("status.json"));
        /* The file stays: it shows why no daemon answers. */
        assert_int_equal(ctl("report", "-o", ctl_path("alone.tar")), EXIT_UNREACHABLE);
        assert_int_equal(access(ctl_path("alone.tar"), F_OK), 0);
}

static void daemon_without_a_status_is_in_the_report(void **state)
{
        fake.scripts[FAKE_REPORT_STATUS] = (struct fake_script){ -ETIMEDOUT, "no answer" };
        ctl_expect(EXIT_UNREACHABLE, NULL,
                   "kvcachectl: warning: report: the archive describes only this host: the daemon "
                   "does not report its status: no answer\n",
                   "report", "-o", "-");
        has(printed("doctor.json"), "the daemon does not report its status: no answer");
        assert_null(printed("status.json"));
}

static bool lacks_memory;

int __wrap_print_json(const cJSON *object);
int __real_print_json(const cJSON *object);

/* Replaces print_json() for the linker. */
int __wrap_print_json(const cJSON *object)
{
        return lacks_memory ? complain_memory() : __real_print_json(object);
}

static void answer_that_cannot_be_printed_fails(void **state)
{
        lacks_memory = true;
        ctl_expect(EXIT_LOCAL, "", NULL, "-j", "report", "-o", ctl_path("silent.tar"));
        lacks_memory = false;
        assert_int_equal(access(ctl_path("silent.tar"), F_OK), 0);
}

static void archive_that_cannot_be_written_fails(void **state)
{
        assert_int_equal(ctl("report", "-o", "/nowhere/report.tar"), EXIT_LOCAL);
        has(ctl_err, "/nowhere/report.tar: No such file or directory\n");
        assert_int_equal(ctl("report", "-o", "/dev/full"), EXIT_LOCAL);
        assert_int_equal(ctl("report", "operand"), EXIT_WRONG_USAGE);
        fake.status = "[]";
        assert_int_equal(ctl("report", "-o", ctl_path("half.tar")), EXIT_REFUSED);
        assert_int_equal(access(ctl_path("half.tar"), F_OK), -1);
}

static void names_and_sizes_beyond_the_format_are_refused(void **state)
{
        char name[101];

        memset(name, 'n', 100);
        name[100] = '\0';
        assert_int_equal(archive_add(stderr, name, "", 0, 0), -ENAMETOOLONG);
        assert_int_equal(archive_add(stderr, "n", "", (size_t)1 << 33, 0), -EFBIG);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, daemon_with_names)
        const struct CMUnitTest tests[] = {
                TEST(archive_has_its_files_without_names),
                TEST(file_is_private_and_never_replaced),
                TEST(parts_that_cannot_be_had_are_missing),
                TEST(without_a_daemon_the_host_is_reported),
                TEST(daemon_without_a_status_is_in_the_report),
                TEST(answer_that_cannot_be_printed_fails),
                TEST(archive_that_cannot_be_written_fails),
                TEST(names_and_sizes_beyond_the_format_are_refused),
        };

        return cmocka_run_group_tests(tests, NULL, ctl_remove_files);
}
