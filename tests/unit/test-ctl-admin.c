/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl device, remote, reload, config, ping and stats: how a daemon is asked and changed. */
#include <errno.h>
#include <inttypes.h>

#include "ctl-fixture.h"

#define ONLY_ADMIN                                                                                 \
        ": only admins may do this: root, the daemon's own user, and those whom its "              \
        "configuration "                                                                           \
        "names (access.admin_users, access.admin_groups)\n"

static const char two_volumes[] =
        "{\"store\":{\"volumes\":["
        "{\"volume\":\"/mnt/a\",\"state\":\"up\",\"payload_bytes\":1024,\"used_bytes\":2048,"
        "\"limit_bytes\":1048576,\"chunks\":1234,\"errors\":{\"read\":1,\"write\":2,\"sync\":4},"
        "\"since_unix_ms\":1700000000000},"
        "{\"volume\":\"1\",\"state\":\"bypassed\",\"reason\":\"write: EIO\",\"full\":true}]}}";

/* --- device --- */

static void device_ls_shows_each_volume_and_what_is_wrong_with_it(void **state)
{
        fake.status = two_volumes;
        ctl_expect(EXIT_OK,
                   "VOLUME  STATE      LIVE  RESERVED  LIMIT  CHUNKS  ERRORS  SINCE\n"
                   "/mnt/a  up        1 KiB     2 KiB  1 MiB   1,234       7  2023-11-14 22:13:20\n"
                   "1       bypassed    0 B       0 B    0 B       0       0  1970-01-01 00:00:00\n"
                   "1: write: EIO\n"
                   "1: the file system has no free space above store.reserve: the volume does not "
                   "grow\n",
                   "", "device");
        assert_int_equal(fake.request_timeout_ms, LONG_CALL_MS);
        assert_int_equal(ctl("device", "ls", "-j"), EXIT_OK);
        has(ctl_out, "{\"volumes\":[{\"volume\":\"/mnt/a\",\"state\":\"up\",");
}

static void device_suspend_and_resume_name_the_volume_by_directory_or_number(void **state)
{
        fake.status = two_volumes;
        ctl_expect(EXIT_OK, "/mnt/a: suspended\n", "", "device", "suspend", "/mnt/a");
        assert_int_equal(fake_admin.volume, 0);
        assert_true(fake_admin.suspended);
        /* A directory whose name is another volume's number has precedence. */
        ctl_expect(EXIT_OK, "1: in use\n", "", "device", "resume", "1");
        assert_int_equal(fake_admin.volume, 1);
        assert_false(fake_admin.suspended);
        ctl_expect(EXIT_OK, "/mnt/a: in use\n", "", "device", "resume", "0");
        ctl_expect(EXIT_OK, "{\"volume\":\"/mnt/a\",\"state\":\"suspended\",\"changed\":true}\n",
                   "", "device", "-j", "suspend", "0");
        fake.scripts[FAKE_DEVICE].result = 1; /* the volume was in that state already */
        ctl_expect(EXIT_OK, "/mnt/a: was suspended\n", "", "device", "suspend", "0");
        ctl_expect(EXIT_OK, "{\"volume\":\"/mnt/a\",\"state\":\"up\",\"changed\":false}\n", "",
                   "device", "-j", "resume", "0");
}

static void device_that_does_not_exist_exits_with_1(void **state)
{
        static const char *const bad[] = { "2", "/mnt", "", "18446744073709551616", "-1" };

        fake.status = two_volumes;
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                char err[128];

                snprintf(err, sizeof(err),
                         "kvcachectl: device resume: the daemon's store has no volume '%s'; "
                         "\"kvcachectl device ls\" lists the volumes\n",
                         bad[i]);
                ctl_expect(EXIT_NOT_FOUND, "", err, "device", "resume", "--", bad[i]);
        }
        assert_int_equal(fake.made[FAKE_DEVICE], 0);
}

static void device_reports_refusals(void **state)
{
        static const char *const hostile[] = { "not JSON", "{}", "[]",
                                               "{\"store\":{\"volumes\":{}}}", "{\"store\":7}" };

        for (size_t i = 0; i < ARRAY_SIZE(hostile); i++) {
                fake.status = hostile[i];
                ctl_expect(EXIT_REFUSED, "",
                           "kvcachectl: device: the daemon's status does not list its volumes\n",
                           "device", "ls");
        }
        fake.status = two_volumes;
        fake.scripts[FAKE_DEVICE] = (struct fake_script){ -EACCES, NULL };
        ctl_expect(EXIT_REFUSED, "", "kvcachectl: device suspend" ONLY_ADMIN, "device", "suspend",
                   "0");
        fake.scripts[FAKE_DEVICE] = (struct fake_script){ -EIO, "EIO on /mnt/a" };
        ctl_expect(EXIT_REFUSED, "", "kvcachectl: device resume: EIO on /mnt/a\n", "device",
                   "resume", "0");
        fake.scripts[FAKE_REPORT_STATUS] = (struct fake_script){ -EPIPE, "cut" };
        ctl_expect(EXIT_UNREACHABLE, "", "kvcachectl: device: the daemon went away: cut\n",
                   "device");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: 'device suspend' needs one volume: its directory, or its number in "
                   "'device ls', from 0\nSee: kvcachectl device --help\n",
                   "device", "suspend");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: 'device ls' takes no argument\nSee: kvcachectl device --help\n",
                   "device", "ls", "0");
}

static void device_texts_cannot_steer_the_terminal(void **state)
{
        fake.status =
                "{\"store\":{\"volumes\":[{\"volume\":\"/a\\u001b[2J\",\"state\":\"\\u001bc\","
                "\"reason\":\"EIO\\u009b2J\",\"full\":true}]}}";
        ctl_expect(EXIT_OK,
                   "VOLUME  STATE  LIVE  RESERVED  LIMIT  CHUNKS  ERRORS  SINCE\n"
                   "/a?[2J  ?c      0 B       0 B    0 B       0       0  1970-01-01 00:00:00\n"
                   "/a?[2J: EIO??2J\n"
                   "/a?[2J: the file system has no free space above store.reserve: the volume does "
                   "not grow\n",
                   "", "device");
        ctl_expect(EXIT_OK, "/a?[2J: suspended\n", "", "device", "suspend", "0");
}

static void device_ls_survives_absurd_numbers(void **state)
{
        fake.status =
                "{\"store\":{\"volumes\":[{\"volume\":7,\"payload_bytes\":1e300,\"used_bytes\":-1,"
                "\"limit_bytes\":\"x\",\"chunks\":1e300,\"since_unix_ms\":1e19,\"errors\":[]},null,"
                "3]}}";
        assert_int_equal(ctl("device"), EXIT_OK);
        has(ctl_out, "16 EiB");
        has(ctl_out, "18,446,744,073,709,551,615");
}

/* --- remote --- */

static void remote_sweep_passes_its_limit_and_counts(void **state)
{
        fake_admin.swept = (struct kvcache_sweep){
                .seen = 10, .seen_bytes = 10 << 20, .deleted = 4, .deleted_bytes = 4 << 20
        };
        ctl_expect(EXIT_OK, "4 chunks, 4 MiB, deleted; 6 MiB left\n", "", "remote", "sweep",
                   "--limit=6MiB");
        assert_int_equal(fake_admin.sweep.limit_bytes, 6 << 20);
        assert_int_equal(fake_admin.sweep.flags, 0);
        assert_int_equal(fake.request_timeout_ms, LONG_CALL_MS);
        ctl_expect(EXIT_OK, "would be: 4 chunks, 4 MiB, deleted; 6 MiB left\n", "", "remote",
                   "sweep", "--limit", "0", "--dry-run");
        assert_int_equal(fake_admin.sweep.flags, KVCACHE_DRY_RUN);
        ctl_expect(EXIT_OK,
                   "{\"seen\":10,\"seen_bytes\":10485760,\"deleted\":4,\"deleted_bytes\":4194304,"
                   "\"dry_run\":true}\n",
                   "", "-j", "remote", "sweep", "--limit=1", "--dry-run");
        fake_admin.swept.deleted_bytes = UINT64_MAX; /* more than there was */
        ctl_expect(EXIT_OK, "4 chunks, 16 EiB, deleted; 0 B left\n", "", "remote", "sweep",
                   "--limit=1");
}

static void remote_sweep_reports_refusals(void **state)
{
        fake.scripts[FAKE_SWEEP] = (struct fake_script){ -EACCES, NULL };
        ctl_expect(EXIT_REFUSED, "", "kvcachectl: remote sweep" ONLY_ADMIN, "remote", "sweep",
                   "--limit=1");
        fake.scripts[FAKE_SWEEP] = (struct fake_script){ -EBUSY, "another host sweeps" };
        ctl_expect(EXIT_REFUSED, "", "kvcachectl: remote sweep: another host sweeps\n", "remote",
                   "sweep", "--limit=1");
#define SEE_REMOTE "See: kvcachectl remote --help\n"
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: 'remote sweep' needs --limit SIZE, such as --limit 10TiB: it "
                   "deletes chunks until at most SIZE is left\n" SEE_REMOTE,
                   "remote", "sweep");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: --limit and --dry-run are options of 'remote sweep'\n" SEE_REMOTE,
                   "remote", "--dry-run");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: 'remote status' takes no argument\n" SEE_REMOTE, "remote", "status",
                   "x");
        ctl_expect(
                EXIT_WRONG_USAGE, "",
                "kvcachectl: --limit: '1.5' is not a size; write it like 4096, 64KiB or 1.5GiB\n",
                "remote", "sweep", "--limit=1.5");
}

static void remote_status_is_the_part_of_the_status(void **state)
{
        fake.status = "{\"pid\":1,\"remote\":{\"backend\":\"off\"}}";
        ctl_expect(EXIT_OK, "\nShared tier\n  backend           off (remote.backend)\n", "",
                   "remote");
        ctl_expect(EXIT_OK, "{\"backend\":\"off\"}\n", "", "remote", "status", "--json");
        fake.status = "{\"pid\":1}";
        ctl_expect(EXIT_REFUSED, "",
                   "kvcachectl: remote status: this daemon is too old to report the shared tier\n",
                   "remote");
        fake.status = "<html>";
        ctl_expect(EXIT_REFUSED, "", "kvcachectl: remote status: the daemon's answer is not JSON\n",
                   "remote");
}

/* --- reload --- */

static void reload_lists_what_changed_and_what_needs_a_restart(void **state)
{
        fake_admin.reloaded =
                "{\"applied\":[\"log.level: debug\",7],\"restart\":[\"io.workers\\u001b[2J\"]}";
        ctl_expect(EXIT_OK,
                   "applied:\n  log.level: debug\nneeds a restart:\n  io.workers?[2J\n1 setting "
                   "changed\n",
                   "", "reload");
        ctl_expect(
                EXIT_OK,
                "{\"applied\":[\"log.level: debug\",7],\"restart\":[\"io.workers\\u001b[2J\"]}\n",
                "", "reload", "-j");
        fake_admin.reloaded = "{}";
        ctl_expect(EXIT_OK, "nothing has changed\n", "", "reload");
        fake_admin.reloaded = "{\"kept\":[\"memory.pool\"]}";
        ctl_expect(EXIT_REFUSED, "not changed:\n  memory.pool\n0 settings changed\n",
                   "kvcachectl: the daemon ran out of memory and did not apply all changes; run "
                   "kvcachectl reload again\n",
                   "reload");
}

static void reload_of_a_wrong_configuration_prints_each_error_and_is_refused(void **state)
{
        fake_admin.reload_refused = true;
        fake_admin.reloaded =
                "{\"errors\":[\"line 3: store.limit: 3X is not a size\"],\"n_errors\":12}";
        ctl_expect(EXIT_REFUSED, "",
                   "wrong:\n  line 3: store.limit: 3X is not a size\nkvcachectl: the configuration "
                   "has 12 errors, so nothing was changed\n",
                   "reload");
        assert_int_equal(ctl("reload", "--json"), EXIT_REFUSED);
        has(ctl_out, "\"n_errors\":12}\n");
        fake_admin.reloaded = "[1]";
        ctl_expect(EXIT_REFUSED, "", "kvcachectl: reload: the daemon's answer is malformed\n",
                   "reload");
        fake.scripts[FAKE_RELOAD] = (struct fake_script){ -EACCES, NULL };
        ctl_expect(EXIT_REFUSED, "", "kvcachectl: reload" ONLY_ADMIN, "reload");
        fake.scripts[FAKE_RELOAD] = (struct fake_script){ -EOPNOTSUPP, "the daemon is too old" };
        ctl_expect(EXIT_REFUSED, "", "kvcachectl: reload: the daemon is too old\n", "reload");
}

static void commands_without_operands_refuse_one(void **state)
{
        static const char *const names[] = { "reload", "config", "ping", "stats", "gds", "top" };

        for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
                char err[128];

                snprintf(err, sizeof(err),
                         "kvcachectl: unexpected argument 'x'\nSee: kvcachectl %s --help\n",
                         names[i]);
                ctl_expect(EXIT_WRONG_USAGE, "", err, names[i], "x");
        }
        assert_int_equal(fake.made[FAKE_CONNECT], 0);
}

/* --- config --- */

static void config_prints_yaml(void **state)
{
        fake.config = "store:\n  limit: 1GiB # \"x\"\n";
        ctl_expect(EXIT_OK, "store:\n  limit: 1GiB # \"x\"\n", "", "config");
        ctl_expect(EXIT_OK, "{\"yaml\":\"store:\\n  limit: 1GiB # \\\"x\\\"\\n\"}\n", "", "config",
                   "-j");
        fake.scripts[FAKE_REPORT_CONFIG] = (struct fake_script){ -EACCES, NULL };
        ctl_expect(EXIT_REFUSED, "", "kvcachectl: config" ONLY_ADMIN, "config");
        fake.scripts[FAKE_REPORT_CONFIG] = (struct fake_script){ -EPIPE, "cut" };
        ctl_expect(EXIT_UNREACHABLE, "", "kvcachectl: config: the daemon went away: cut\n",
                   "config");
}

/* --- ping --- */

static void ping_prints_the_time_of_a_round_trip(void **state)
{
        ctl_expect(EXIT_OK, "the daemon answered in 12.3 µs\n", "", "ping");
        ctl_expect(EXIT_OK,
                   "3 round trips: least 12.3 µs, p50 12.3 µs, p99 12.3 µs, most 12.3 µs\n", "",
                   "ping", "-c", "3");
        assert_int_equal(fake.made[FAKE_PING], 4);
        ctl_expect(EXIT_OK,
                   "{\"count\":2,\"min_us\":12.345,\"p50_us\":12.345,\"p99_us\":12.345,\"max_us\":"
                   "12.345}\n",
                   "", "ping", "--count=2", "--json");
        fake.scripts[FAKE_PING] =
                (struct fake_script){ -ETIMEDOUT, "no answer in 5 s", .after = 7 };
        ctl_expect(EXIT_UNREACHABLE, "",
                   "kvcachectl: ping: no answer in 5 s; the daemon may still be processing the "
                   "request\n",
                   "ping", "--count", "9");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: --count: '1e3' is not a whole number from 1 to 10000000\n", "ping",
                   "-c", "1e3");
}

/* --- stats --- */

static const char metrics[] =
        "{\"kvcache_build_info\":\"1.2\",\"kvcache_zero\":0,\"kvcache_pool_used_bytes\":2048,"
        "\"kvcache_ratio\":0.25,"
        "\"kvcache_hits_total\":{\"memory\":1500,\"disk\":0,\"note\":\"n/a\"},"
        "\"kvcache_start_time_seconds\":1700000000,\"kvcache_uptime_seconds\":3661,"
        "\"kvcache_last_purge_timestamp_seconds\":-1,"
        "\"kvcache_get_duration_seconds\":{\"count\":3,\"p50\":0.001507327,\"p90\":0.002},"
        "\"kvcache_put_duration_seconds\":{\"written\":{\"count\":0,\"p50\":0},\"durable\":{"
        "\"count\":1,\"p50\":2}},"
        "\"kvcache_transfer_size_bytes\":{\"count\":2,\"p50\":524288}}";

static void stats_prints_metrics_by_kind_with_their_units(void **state)
{
        fake.stats = metrics;
        ctl_expect(EXIT_OK,
                   "kvcache_build_info        1.2\n"
                   "kvcache_hits_total  note  n/a\n"
                   "\n"
                   "kvcache_pool_used_bytes                                     2 KiB\n"
                   "kvcache_ratio                                                0.25\n"
                   "kvcache_hits_total                    memory                1,500\n"
                   "kvcache_start_time_seconds                    2023-11-14 22:13:20\n"
                   "kvcache_uptime_seconds                                  1 h 1 min\n"
                   "kvcache_last_purge_timestamp_seconds                        never\n"
                   "\n"
                   "                                       count       p50    p90  p99\n"
                   "kvcache_get_duration_seconds               3   ≤1.6 ms  ≤2 ms    -\n"
                   "kvcache_put_duration_seconds  durable      1      ≤2 s      -    -\n"
                   "kvcache_transfer_size_bytes                2  ≤512 KiB      -    -\n",
                   "", "stats");
}

static void stats_includes_zeros_on_request(void **state)
{
        fake.stats = metrics;
        assert_int_equal(ctl("stats"), EXIT_OK);
        lacks(ctl_out, "kvcache_zero");
        lacks(ctl_out, "written");
        assert_int_equal(ctl("stats", "--all"), EXIT_OK);
        has(ctl_out, "kvcache_zero");
        has(ctl_out, "kvcache_put_duration_seconds  written      0");
}

static void stats_passes_json_and_prometheus_text_through(void **state)
{
        fake.stats = "{ \"a_total\": 9007199254740993 }";
        ctl_expect(EXIT_OK, "{\"a_total\":9007199254740993}\n", "", "stats",
                   "-j"); /* not rounded */
        fake.metrics = "# HELP a A.\na_total 1\n";
        ctl_expect(EXIT_OK, "# HELP a A.\na_total 1\n", "", "stats", "--prometheus");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "{\"error\":{\"message\":\"--prometheus prints text; it cannot be combined with "
                   "--json\"}}\n",
                   "stats", "-p", "-j");
        fake.scripts[FAKE_REPORT_METRICS] = (struct fake_script){ -EPIPE, "cut" };
        ctl_expect(EXIT_UNREACHABLE, "", "kvcachectl: stats: the daemon went away: cut\n", "stats",
                   "-p");
        fake.stats = "<html>";
        ctl_expect(EXIT_REFUSED, "", "kvcachectl: stats: the daemon's answer is not JSON\n",
                   "stats");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                CTL_TEST(device_ls_shows_each_volume_and_what_is_wrong_with_it),
                CTL_TEST(device_suspend_and_resume_name_the_volume_by_directory_or_number),
                CTL_TEST(device_that_does_not_exist_exits_with_1),
                CTL_TEST(device_reports_refusals),
                CTL_TEST(device_texts_cannot_steer_the_terminal),
                CTL_TEST(device_ls_survives_absurd_numbers),
                CTL_TEST(remote_sweep_passes_its_limit_and_counts),
                CTL_TEST(remote_sweep_reports_refusals),
                CTL_TEST(remote_status_is_the_part_of_the_status),
                CTL_TEST(reload_lists_what_changed_and_what_needs_a_restart),
                CTL_TEST(reload_of_a_wrong_configuration_prints_each_error_and_is_refused),
                CTL_TEST(commands_without_operands_refuse_one),
                CTL_TEST(config_prints_yaml),
                CTL_TEST(ping_prints_the_time_of_a_round_trip),
                CTL_TEST(stats_prints_metrics_by_kind_with_their_units),
                CTL_TEST(stats_includes_zeros_on_request),
                CTL_TEST(stats_passes_json_and_prometheus_text_through),
        };

        return cmocka_run_group_tests(tests, NULL, ctl_remove_files);
}
