/* SPDX-License-Identifier: Apache-2.0 */
/* config/: each unit has its factor, and files with secrets are checked like the token of HTTP. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "checked.h"
#include "cleanup.h"
#include "config-fixture.h"

static void every_unit_of_a_size_has_its_factor(void **state)
{
        static const struct {
                const char *text;
                uint64_t bytes;
        } cases[] = {
                { "7B", 7 },
                { "7KiB", UINT64_C(7) << 10 },
                { "7MiB", UINT64_C(7) << 20 },
                { "7GiB", UINT64_C(7) << 30 },
                { "7TiB", UINT64_C(7) << 40 },
                { "7PiB", UINT64_C(7) << 50 },
                { "7kB", 7000 },
                { "7KB", 7000 },
                { "7MB", 7000000 },
                { "7GB", UINT64_C(7000000000) },
                { "7TB", UINT64_C(7000000000000) },
                { "7PB", UINT64_C(7000000000000000) },
        };
        char set[64];

        for (unsigned i = 0; i < ARRAY_SIZE(cases); i++) {
                snprintf(set, sizeof(set), "store.rated_endurance=%s", cases[i].text);
                if (config_set(&config, set, "--set", &fault) < 0)
                        fail_msg("%s", fault.text);
                assert_int_equal(config.store.rated_endurance, cases[i].bytes);
        }
}

static void every_unit_of_a_time_has_its_factor(void **state)
{
        static const struct {
                const char *text;
                uint64_t ms;
        } cases[] = {
                { "3000ms", 3000 }, { "3s", 3000 },      { "3min", 180000 },
                { "3h", 10800000 }, { "3d", 259200000 },
        };
        char set[64];

        for (unsigned i = 0; i < ARRAY_SIZE(cases); i++) {
                snprintf(set, sizeof(set), "store.scrub_interval=%s", cases[i].text);
                if (config_set(&config, set, "--set", &fault) < 0)
                        fail_msg("%s", fault.text);
                assert_int_equal(config.store.scrub_interval_ms, cases[i].ms);
        }
}

static void a_secret_is_in_a_file_that_no_other_user_reads_or_changes(void **state)
{
        static const struct {
                mode_t mode;
                const char *why; /* NULL: taken */
        } cases[] = {
                { 0600, NULL },
                { 0640, NULL },
                { 0400, NULL },
                { 0644, "mode 0644 lets other users read the file: chmod 0640" },
                { 0604, "lets other users read the file" },
                { 0660, "lets other users change the file" },
                { 0602, "lets other users change the file" },
                { 0601, "lets other users change the file" },
        };
        char path[256], why[256];

        write_file(in_folder("secret", path), "x", 1);
        for (unsigned i = 0; i < ARRAY_SIZE(cases); i++) {
                assert_int_equal(chmod(path, cases[i].mode), 0);
                assert_int_equal(config_check_secret("remote.credentials", path, why),
                                 cases[i].why ? -EINVAL : 0);
                if (cases[i].why && !strstr(why, cases[i].why))
                        fail_msg("mode %o: %s", cases[i].mode, why);
        }
        assert_int_equal(config_check_secret("remote.credentials", folder, why), -EINVAL);
        assert_non_null(strstr(why, "not a regular file"));
        assert_int_equal(config_check_secret("remote.credentials", in_folder("none", path), why),
                         -ENOENT);
        assert_non_null(strstr(why, "remote.credentials"));
}

/* Checks the configuration against this host. */
static int check_host(const char *text)
{
        assert_int_equal(load(text), 0);
        return config_check_host(&config, &fault);
}

static void the_secrets_of_a_shared_tier_are_checked_at_startup(void **state)
{
        char path[256], text[1024];

        write_file(in_folder("secret", path), "x", 1);
        assert_int_equal(chmod(path, 0644), 0);
        snprintf(text, sizeof(text),
                 "memory.pool: 16MiB\nremote: {backend: s3, endpoint: \"https://x\", bucket: b, "
                 "region: r, credentials: %s}\n",
                 path);
        assert_int_equal(check_host(text), -EINVAL);
        assert_non_null(strstr(fault.text, "remote.credentials"));
        assert_int_equal(chmod(path, 0600), 0);
        assert_int_equal(check_host(text), 0);

        assert_int_equal(chmod(path, 0640), 0);
        snprintf(text, sizeof(text),
                 "memory.pool: 16MiB\nremote: {backend: directory, path: /x}\ntenants:\n- {name: "
                 "a, users: [0], "
                 "remote_secret: %s}\n",
                 path);
        assert_int_equal(check_host(text), 0);
        assert_int_equal(chmod(path, 0606), 0);
        assert_int_equal(check_host(text), -EINVAL);
        assert_non_null(strstr(fault.text, "of tenant a"));
}

static void a_time_that_may_be_off_is_0_or_at_least_its_least(void **state)
{
        static const struct {
                const char *text, *printed;
                uint64_t ms;
        } good[] = {
                { "off", "off", 0 },
                { "0", "off", 0 },
                { "1s", "1s", 1000 },
                { "7d", "168h", 604800000 },
        };
        static const char *const bad[] = { "1ms", "999ms", "on", "OFF", "never", "auto", "8761h" };
        unsigned row = (unsigned)config_row_find("namespaces.expire");
        char why[CONFIG_WHY];

        assert_int_equal(config.namespaces.expire_ms, 7 * 24 * HOUR);
        for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
                _cleanup_(freep) char *printed = NULL;

                assert_int_equal(config_assign(&config, row, good[i].text, false, why), 0);
                assert_int_equal(config.namespaces.expire_ms, good[i].ms);
                printed = config_format(&config, &config_rows[row]);
                assert_string_equal(printed, good[i].printed);
        }
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
                assert_int_equal(config_assign(&config, row, bad[i], false, why), -EINVAL);
        assert_int_equal(config.namespaces.expire_ms, 7 * 24 * HOUR);
        assert_int_equal(config_assign(&config, row, "1ms", false, why), -EINVAL);
        assert_non_null(strstr(why, "1s to 8760h, or off"));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                CASE(every_unit_of_a_size_has_its_factor),
                CASE(every_unit_of_a_time_has_its_factor),
                CASE(a_secret_is_in_a_file_that_no_other_user_reads_or_changes),
                CASE(the_secrets_of_a_shared_tier_are_checked_at_startup),
                CASE(a_time_that_may_be_off_is_0_or_at_least_its_least),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
