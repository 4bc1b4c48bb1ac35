/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl verify and store check: results of reading back, and stores that this process opens
 * itself. */
#include <errno.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ctl-fixture.h"
#include "store/store.h"

/* Exit statuses of verify, which differ from those of other commands. */
enum { ALL_GOOD = 0, DROPPED = 1, NOT_RUN = 2 };

#define SEE "See: kvcachectl verify --help\n"

static void find(const struct kvcache_verify *found, size_t n)
{
        fake_admin.found = found;
        fake_admin.n_found = n;
}

static void volumes(const char *list)
{
        static char status[1024];

        snprintf(status, sizeof(status), "{\"store\":{\"volumes\":[%s]}}", list);
        fake.status = status;
}

/* --- verify by the daemon --- */

static void verify_walks_all_segments_of_all_volumes(void **state)
{
        static const struct kvcache_verify found[] = {
                { .volumes = 2,
                  .segments = 2,
                  .segment = 0,
                  .slot = 5,
                  .chunks = 5,
                  .bytes = 5120 },
                { .volumes = 2, .segments = 2, .segment = 1, .chunks = 3, .bytes = 3072 },
                { .volumes = 2, .segments = 2, .segment = 2, .chunks = 1, .bytes = 1024 },
                { .volumes = 2, .segments = 1, .segment = 1, .chunks = 1, .bytes = 1024 },
        };

        volumes("{\"volume\":\"/a\"},{\"volume\":\"/b\"}");
        find(found, ARRAY_SIZE(found));
        ctl_expect(ALL_GOOD, NULL, "", "verify");
        assert_ptr_equal(strstr(ctl_out, "10 chunks in 3 segments, 10 KiB, in "), ctl_out);
        has(ctl_out, " GB/s): all good\n");
        assert_int_equal(fake.made[FAKE_VERIFY], 4);
        assert_int_equal(fake_admin.verify.volume, 1);
        assert_int_equal(fake.request_timeout_ms, LONG_CALL_MS);
}

static void verify_goes_on_to_volumes_that_the_status_does_not_list(void **state)
{
        static const struct kvcache_verify found[] = {
                { .volumes = 3, .segments = 1, .segment = 1, .chunks = 1, .bytes = 1 },
        };

        fake.status = "<html>";
        find(found, 1);
        fake.scripts[FAKE_VERIFY] =
                (struct fake_script){ -EIO, "bypassed", .after = 1, .times = 1 };
        ctl_expect(NOT_RUN, NULL, "kvcachectl: volume 1: bypassed\n", "verify");
        assert_int_equal(fake_admin.verify.volume, 2);
}

static void verify_of_one_volume_asks_for_that_alone(void **state)
{
        volumes("{\"volume\":\"/a\"},{\"volume\":\"/b\"}");
        ctl_expect(ALL_GOOD, NULL, "", "verify", "--volume", "/b");
        assert_int_equal(fake.made[FAKE_VERIFY], 1);
        assert_int_equal(fake_admin.verify.volume, 1);
        ctl_expect(ALL_GOOD, NULL, "", "verify", "--volume=0");
        assert_int_equal(fake_admin.verify.volume, 0);
        ctl_expect(NOT_RUN, "",
                   "kvcachectl: verify: the daemon's store has no volume '/c'; \"kvcachectl device "
                   "ls\" lists the volumes\n",
                   "verify", "--volume=/c");
}

static void verify_lists_the_segments_in_which_something_is_bad(void **state)
{
        static const struct kvcache_verify found[] = {
                { .volumes = 1, .segments = 3, .segment = 1, .chunks = 1000, .bytes = 1024 },
                { .volumes = 1,
                  .segments = 3,
                  .segment = 2,
                  .chunks = 10,
                  .bytes = 2048,
                  .mismatched = 1 },
                { .volumes = 1,
                  .segments = 3,
                  .segment = 3,
                  .chunks = 2,
                  .bytes = 1024,
                  .unreadable = 2 },
        };

        volumes("{\"volume\":\"/a\\u001b[2J\"}");
        find(found, 3);
        ctl_expect(DROPPED, NULL, "", "verify");
        has(ctl_out, "/a?[2J\n"
                     "  segment  chunks   size  mismatched  unreadable  not read\n"
                     "  0001         10  2 KiB           1           0         0\n"
                     "  0002          2  1 KiB           0           2         0\n"
                     "1,012 chunks in 3 segments, 4 KiB, in ");
        has(ctl_out, ": 1 did not match, 2 could not be read: dropped\n");
        find(found, 1);
        ctl_expect(ALL_GOOD, NULL, "", "verify", "--verbose");
        has(ctl_out, "\n  0000      1,000  1 KiB           0           0         0\n");
}

static void verify_in_json_has_every_segment(void **state)
{
        static const struct kvcache_verify found[] = {
                { .volumes = 1,
                  .segments = 2,
                  .segment = 1,
                  .chunks = 2,
                  .bytes = 10,
                  .mismatched = 1 },
                { .volumes = 1,
                  .segments = 2,
                  .segment = 2,
                  .chunks = 1,
                  .bytes = 5,
                  .skipped = 1 },
        };

        volumes("{\"volume\":\"/a\"}");
        find(found, 2);
        ctl_expect(DROPPED, NULL, "", "verify", "--json");
        assert_ptr_equal(strstr(ctl_out, "{\"volumes\":[{\"volume\":\"/a\",\"segments\":["
                                         "{\"segment\":0,\"chunks\":2,\"bytes\":10,\"mismatched\":"
                                         "1,\"unreadable\":0,\"dropped\":1,"
                                         "\"skipped\":0},"
                                         "{\"segment\":1,\"chunks\":1,\"bytes\":5,\"mismatched\":0,"
                                         "\"unreadable\":0,\"dropped\":0,"
                                         "\"skipped\":1}],"
                                         "\"chunks\":3,\"bytes\":15,\"mismatched\":1,"
                                         "\"unreadable\":0,\"dropped\":1,\"skipped\":1}],"
                                         "\"chunks\":3,\"bytes\":15,\"mismatched\":1,"
                                         "\"unreadable\":0,\"dropped\":1,\"skipped\":1,"
                                         "\"seconds\":"),
                         ctl_out);
        has(ctl_out, ",\"complete\":false}\n");
}

static void verify_waits_while_others_verify(void **state)
{
        volumes("{\"volume\":\"/a\"}");
        fake.scripts[FAKE_VERIFY] = (struct fake_script){ -EBUSY, "busy", .times = 2 };
        ctl_expect(ALL_GOOD, NULL, "", "verify");
        assert_int_equal(fake.made[FAKE_VERIFY], 3);
}

static void verify_gives_a_volume_up_and_goes_on_to_the_next(void **state)
{
        static const struct kvcache_verify found[] = {
                { .volumes = 2,
                  .segments = 9,
                  .segment = 1,
                  .chunks = 4,
                  .skipped = 4,
                  .gave_up = 1 },
                { .volumes = 2, .segments = 1, .segment = 1, .chunks = 1, .bytes = 1 },
        };

        volumes("{\"volume\":\"/a\"},{\"volume\":\"/b\"}");
        find(found, 2);
        ctl_expect(NOT_RUN, NULL,
                   "kvcachectl: /a: many consecutive chunks could not be read, so the device has "
                   "failed, and the rest of the volume was not verified; look for its errors with "
                   "dmesg and smartctl\n",
                   "verify");
        has(ctl_out, "5 chunks in 2 segments, 1 B, in ");
        has(ctl_out, ": nothing bad so far; 4 were not read\n");
        assert_int_equal(fake_admin.verify.volume, 1);
}

static void messages_cannot_steer_the_terminal(void **state)
{
        volumes("{\"volume\":\"/a\\u001b[2J\"}");
        fake.scripts[FAKE_VERIFY] = (struct fake_script){ -EIO, "b\033c\xc2\x9b\nd" };
        ctl_expect(NOT_RUN, "", "kvcachectl: /a?[2J: b?c??\nd\n", "verify");
}

static void verify_stops_at_what_every_volume_would_fail_with(void **state)
{
        volumes("{\"volume\":\"/a\"},{\"volume\":\"/b\"}");
        fake.scripts[FAKE_VERIFY] = (struct fake_script){ -EACCES, NULL };
        assert_int_equal(ctl("verify"), NOT_RUN);
        has(ctl_err, "kvcachectl: verify: only admins may");
        assert_int_equal(fake.made[FAKE_VERIFY], 1);
        fake.scripts[FAKE_VERIFY] = (struct fake_script){ -ECONNRESET, "cut" };
        ctl_expect(NOT_RUN, "", "kvcachectl: /a: the daemon went away: cut\n", "verify");
        assert_int_equal(fake.made[FAKE_VERIFY], 2);
        fake.scripts[FAKE_CONNECT] = (struct fake_script){ -ECONNREFUSED, "no daemon" };
        ctl_expect(NOT_RUN, "", NULL, "verify");
}

static void verify_explains_wrong_usage(void **state)
{
        const char *many[2 + STORE_MAX_VOLUMES + 2] = { "kvcachectl", "verify" };

        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: unexpected argument '/a'; name a volume with --volume, or a store "
                   "with --store\n" SEE,
                   "verify", "/a");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: --volume is for a running daemon, and --store for a store that no "
                   "daemon has open\n" SEE,
                   "verify", "--volume=0", "--store=/a");
        for (int i = 0; i <= STORE_MAX_VOLUMES; i++)
                many[2 + i] = "--store=/a";
        assert_int_equal(ctl_run(many), EXIT_WRONG_USAGE);
        has(ctl_err, "kvcachectl: --store: a store has at most ");
        assert_int_equal(fake.made[FAKE_CONNECT], 0);
}

/* --- a store that no daemon has open --- */

static void verify_of_a_directory_that_is_no_store_says_why(void **state)
{
        char directory[256], err[512];

        ctl_expect(NOT_RUN, "", "kvcachectl: /nowhere: No such file or directory\n", "verify",
                   "--store=/nowhere");
        ctl_expect(NOT_RUN, "",
                   "kvcachectl: /dev/null: not a directory; name the directory of a volume\n",
                   "verify", "--store=/dev/null");
        snprintf(directory, sizeof(directory), "%s", ctl_path("empty"));
        assert_int_equal(mkdir(directory, 0700), 0);
        snprintf(err, sizeof(err),
                 "kvcachectl: %s: not a kvcache store: there is no file \"superblock\" in it\n",
                 directory);
        ctl_expect(NOT_RUN, "", err, "verify", "--store", directory);
        ctl_file("empty/superblock", "x", 1);
        ctl_expect(NOT_RUN, "", NULL, "verify", "--store", directory);
        has(ctl_err, directory);
        assert_int_equal(fake.made[FAKE_CONNECT], 0);
}

/* --- store check --- */

static void store_check_reports_what_cannot_be_read(void **state)
{
        char directory[256], longest[PATH_MAX + 1];

        ctl_expect(EXIT_BAD_INPUT, "", NULL, "store", "check", "/nowhere");
        has(ctl_err, "/nowhere");
        has(ctl_err, "No such file or directory");
        memset(longest, 'x', PATH_MAX);
        longest[PATH_MAX] = '\0';
        ctl_expect(
                EXIT_BAD_INPUT, "",
                "kvcachectl: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...: "
                "the path is too long\n",
                "store", "check", longest);
        snprintf(directory, sizeof(directory), "%s", ctl_path("torn"));
        assert_int_equal(mkdir(directory, 0700), 0);
        ctl_file("torn/superblock", "x", 1);
        ctl_expect(EXIT_BAD_INPUT, "", NULL, "store", "check", directory);
        has(ctl_err, directory);
        ctl_expect(EXIT_BAD_INPUT, "", NULL, "-j", "store", "check", directory);
        assert_int_equal(fake.made[FAKE_CONNECT], 0);
}

static void store_check_asks_a_running_daemon_for_its_volumes(void **state)
{
        volumes("{\"volume\":\"/nowhere/a\"},{\"volume\":\"/nowhere/b\"}");
        ctl_expect(EXIT_BAD_INPUT, "", NULL, "store", "check");
        has(ctl_err, "/nowhere/a");
        has(ctl_err, "/nowhere/b");
        fake.status = "{}";
        ctl_expect(EXIT_REFUSED, "",
                   "kvcachectl: store check: the daemon's status does not list its volumes\n",
                   "store", "check");
        fake.scripts[FAKE_REPORT_STATUS] = (struct fake_script){ -EPIPE, "cut" };
        ctl_expect(EXIT_UNREACHABLE, "", "kvcachectl: store check: the daemon went away: cut\n",
                   "store", "check");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: store needs an action: check\nSee: kvcachectl store --help\n",
                   "store");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: unknown action 'chekc'; did you mean \"store check\"?\nSee: "
                   "kvcachectl store --help\n",
                   "store", "chekc");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                CTL_TEST(verify_walks_all_segments_of_all_volumes),
                CTL_TEST(verify_goes_on_to_volumes_that_the_status_does_not_list),
                CTL_TEST(verify_of_one_volume_asks_for_that_alone),
                CTL_TEST(verify_lists_the_segments_in_which_something_is_bad),
                CTL_TEST(verify_in_json_has_every_segment),
                CTL_TEST(verify_waits_while_others_verify),
                CTL_TEST(verify_gives_a_volume_up_and_goes_on_to_the_next),
                CTL_TEST(messages_cannot_steer_the_terminal),
                CTL_TEST(verify_stops_at_what_every_volume_would_fail_with),
                CTL_TEST(verify_explains_wrong_usage),
                CTL_TEST(verify_of_a_directory_that_is_no_store_says_why),
                CTL_TEST(store_check_reports_what_cannot_be_read),
                CTL_TEST(store_check_asks_a_running_daemon_for_its_volumes),
        };

        return cmocka_run_group_tests(tests, NULL, ctl_remove_files);
}
