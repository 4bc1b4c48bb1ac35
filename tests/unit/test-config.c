/* SPDX-License-Identifier: Apache-2.0 */
/* config/: the table of keys, the kinds of value, keys and tenants, and the sources of values:
 * files, the environment, the command line. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "cleanup.h"
#include "config-fixture.h"

static void every_default_is_what_its_row_says(void **state)
{
        for (unsigned i = 0; i < config_n_rows; i++) {
                _cleanup_(freep) char *text = config_format(&config, &config_rows[i]);

                assert_string_equal(text, config_rows[i].initial);
                assert_false(config_given(&config, config_rows[i].name));
        }
        assert_string_equal(config.listen.http, "127.0.0.1:9750");
        assert_int_equal(config.listen.mode, 0660);
        assert_int_equal(config.store.segment, 1 << 30);
        assert_true(config.store.prewrite);
        assert_int_equal(config.memory.staging, 64 << 20);
        assert_int_equal(config.io.depth, 32);
        assert_true(config.io.direct);
        assert_int_equal(config.io.hang_ms, 30000);
        assert_int_equal(config.limits.wait_ms, 5000);
        assert_string_equal(config.log.level, "info");
        assert_int_equal(config_check(&config, &fault), 0);
}

static void every_default_can_be_given_everywhere(void **state)
{
        for (unsigned i = 0; i < config_n_rows; i++) {
                const struct config_row *row = &config_rows[i];
                char text[256], variable[280], *variables[] = { variable, NULL };

                snprintf(text, sizeof(text), "%s: %s\n", row->name, row->initial);
                assert_int_equal(load(text), 0);
                assert_true(config_given(&config, row->name));

                reset();
                snprintf(text, sizeof(text), "%s=%s", row->name, row->initial);
                assert_int_equal(config_set(&config, text, "--set", &fault), 0);
                assert_true(config_given(&config, row->name));

                reset();
                snprintf(variable, sizeof(variable), "KVCACHE_%s", text);
                for (char *p = variable; *p != '='; p++)
                        *p = *p == '.' ? '_' : *p >= 'a' ? (char)(*p - 'a' + 'A') : *p;
                assert_int_equal(config_load_environment(&config, variables, say, &fault), 0);
                assert_true(config_given(&config, row->name));
                assert_int_equal(n_said, 0);
        }
}

static void rows_do_not_share_names_or_members(void **state)
{
        for (unsigned i = 0; i < config_n_rows; i++) {
                const char *name = config_rows[i].name;

                assert_true(strlen(config_rows[i].help) > 10);
                assert_int_equal(config_rows[i].help[strlen(config_rows[i].help) - 1], '.');
                for (unsigned j = 0; j < i; j++) {
                        assert_string_not_equal(name, config_rows[j].name);
                        assert_int_not_equal(config_rows[i].offset, config_rows[j].offset);
                        /* a section's rows are neighbours: it is printed once */
                        if (strncmp(name, config_rows[j].name, strcspn(name, ".") + 1) == 0)
                                assert_int_equal(strncmp(config_rows[i - 1].name, name,
                                                         strcspn(name, ".") + 1),
                                                 0);
                }
        }
}

static void numbers_are_held_to_their_range(void **state)
{
        for (unsigned i = 0; i < config_n_rows; i++) {
                const struct config_row *row = &config_rows[i];
                const char *unit = row->type == CONFIG_BYTES  ? "B"
                                   : row->type == CONFIG_TIME ? "ms"
                                                              : "";
                char text[128], part[128];

                if (row->type != CONFIG_BYTES && row->type != CONFIG_COUNT &&
                    row->type != CONFIG_TIME)
                        continue;
                for (int d = 0; d < 4; d++) {
                        uint64_t value = d == 0   ? row->least
                                         : d == 1 ? row->most
                                         : d == 2 ? row->least - 1
                                                  : row->most + 1;

                        if (d == 2 && row->least == 0)
                                continue;
                        snprintf(text, sizeof(text), "%s=%llu%s", row->name,
                                 (unsigned long long)value, unit);
                        reset();
                        assert_int_equal(config_set(&config, text, "--set", &fault),
                                         d < 2 ? 0 : -EINVAL);
                        if (d < 2)
                                assert_int_equal(*(uint64_t *)config_member(&config, row), value);
                        else {
                                snprintf(part, sizeof(part), "is out of range: ");
                                assert_non_null(strstr(fault.text, part));
                        }
                }
        }
}

/* Parses a value of this type without a range: -ERANGE beyond 64 bits. */
static int parse(enum config_type type, const char *text, uint64_t *ret)
{
        const struct config_row row = { .name = "row", .type = type, .most = UINT64_MAX };
        char why[CONFIG_WHY];
        int r = config_assign_to(ret, &row, text, false, why);

        return r < 0 && strstr(why, "out of range") ? -ERANGE : r;
}

static void sizes_are_exact(void **state)
{
        static const struct {
                const char *text;
                uint64_t value;
        } good[] = {
                { "0", 0 },
                { "4096", 4096 },
                { "1B", 1 },
                { "64GiB", 64 * GIB },
                { "64 GiB", 64 * GIB },
                { "1.5MiB", 3 * MIB / 2 },
                { "0.5KiB", 512 },
                { "10GB", 10000000000 },
                { "10kB", 10000 },
                { "10KB", 10000 },
                { "16383PiB", 16383 * PIB },
                { "18446744073709551615", UINT64_MAX },
                { "0.000000001GB", 1 },
                { "000012KiB", 12 * KIB },
        };
        static const struct {
                const char *text;
                int r;
        } bad[] = {
                { "", -EINVAL },
                { "-1", -EINVAL },
                { "+1", -EINVAL },
                { " 1", -EINVAL },
                { "1 ", -EINVAL },
                { "GiB", -EINVAL },
                { "1G", -EINVAL },
                { "1gib", -EINVAL },
                { "1e9", -EINVAL },
                { "0x10", -EINVAL },
                { "1.GiB", -EINVAL },
                { ".5GiB", -EINVAL },
                { "1,5GiB", -EINVAL },
                { "1.5", -EINVAL },
                { "1.5B", -EINVAL },
                { "1GiB1", -EINVAL },
                { "1 GiB ", -EINVAL },
                { "1s", -EINVAL },
                { "nan", -EINVAL },
                { "16384PiB", -ERANGE },
                { "18446744073709551616", -ERANGE },
                { "340282366920938463463374607431768211456", -ERANGE },
                { "99999999999999999999999999999999999999999999999999GiB", -ERANGE },
        };
        uint64_t value = 0;

        for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
                assert_int_equal(parse(CONFIG_BYTES, good[i].text, &value), 0);
                assert_true(value == good[i].value);
        }
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                value = 42;
                assert_int_equal(parse(CONFIG_BYTES, bad[i].text, &value), bad[i].r);
                assert_int_equal(value, 42);
        }
}

static void times_need_a_unit(void **state)
{
        uint64_t value = 0;

        assert_int_equal(parse(CONFIG_TIME, "5s", &value), 0);
        assert_int_equal(value, 5000);
        assert_int_equal(parse(CONFIG_TIME, "250ms", &value), 0);
        assert_int_equal(value, 250);
        assert_int_equal(parse(CONFIG_TIME, "1min", &value), 0);
        assert_int_equal(value, 60000);
        assert_int_equal(parse(CONFIG_TIME, "1.5 h", &value), 0);
        assert_int_equal(value, 5400000);
        assert_int_equal(parse(CONFIG_TIME, "2d", &value), 0);
        assert_int_equal(value, 172800000);
        assert_int_equal(parse(CONFIG_TIME, "0", &value), 0);
        assert_int_equal(value, 0);
        assert_int_equal(parse(CONFIG_TIME, "5", &value), -EINVAL);
        assert_int_equal(parse(CONFIG_TIME, "5m", &value), -EINVAL);
        assert_int_equal(parse(CONFIG_TIME, "0.5ms", &value), -EINVAL);
        assert_int_equal(parse(CONFIG_TIME, "5GiB", &value), -EINVAL);
        assert_int_equal(parse(CONFIG_TIME, "", &value), -EINVAL);
        assert_int_equal(parse(CONFIG_TIME, "99999999999999999999d", &value), -ERANGE);
}

static void nested_dotted_and_flow_are_the_same(void **state)
{
        static const char *const texts[] = {
                "store:\n  limit: 64GiB\n  path: /a\nlimits:\n  wait: 1s\n",
                "store.limit: 64GiB\nstore.path: /a\nlimits.wait: 1s\n",
                "store: {limit: 64GiB, path: [/a]}\nlimits: {wait: 1000ms}",
                "{store: {limit: '64GiB', path: \"/a\"}, limits.wait: 1s}",
                "store:\r\n  limit: 64GiB\r\n  path:\r\n    - /a\r\nlimits:\r\n  wait: 1s\r\n",
                "\xef\xbb\xbfstore: {limit: 64 GiB, path: /a} # with a mark\nlimits.wait: 1s\n",
                "%YAML 1.1\n---\nstore: {limit: 64GiB, path: /a}\nlimits: {wait: 1s}\n...\n",
        };

        for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
                int r = load(texts[i]);

                if (r < 0)
                        fail_msg("%s: %s", texts[i], fault.text);
                assert_true(config.store.limit == 64 * GIB);
                assert_int_equal(config.store.path.n, 1);
                assert_string_equal(config.store.path.items[0], "/a");
                assert_int_equal(config.limits.wait_ms, 1000);
                assert_true(config_given(&config, "store.limit"));
                assert_true(config_given(&config, "limits.wait"));
                assert_false(config_given(&config, "limits.drain"));
        }
}

static void nothing_is_the_defaults(void **state)
{
        static const char *const texts[] = {
                "",
                "\n\n",
                "# only a comment",
                "---\n",
                "---\n...\n",
                "{}",
                "~",
                "store:\nlimits: ~\naccess: {}\n",
                "tenants:\n",
                "tenants: {default: {}}\n",
                "tenants: {default: }\n",
                "\xef\xbb\xbf",
        };

        for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
                int r = load(texts[i]);

                if (r < 0)
                        fail_msg("\"%s\": %s", texts[i], fault.text);
                for (unsigned row = 0; row < config_n_rows; row++)
                        assert_false(config_bit(config.given, row));
        }
}

static void every_kind_of_value_is_read(void **state)
{
        assert_int_equal(
                load("listen: {socket: /run/x.sock, http: 'unix:/run/h.sock', mode: 0600}\n"
                     "store: {path: [/a, '/b b'], prewrite: off, entries: auto, limit: auto}\n"
                     "io: {backend: io_uring, workers: 3, direct: off}\n"
                     "access: {admin_users: [root, \"1000\"], users: []}\n"
                     "tenants: {default: {groups: [video, render]}}\n"
                     "log: {level: debug}\n"),
                0);
        assert_string_equal(config.listen.socket, "/run/x.sock");
        assert_string_equal(config.listen.http, "unix:/run/h.sock");
        assert_int_equal(config.listen.mode, 0600);
        assert_int_equal(config.store.path.n, 2);
        assert_string_equal(config.store.path.items[1], "/b b");
        assert_false(config.store.prewrite);
        assert_int_equal(config.store.limit, 0);
        assert_true(config_given(&config, "store.limit"));
        assert_string_equal(config.io.backend, "io_uring");
        assert_int_equal(config.io.workers, 3);
        assert_false(config.io.direct);
        assert_int_equal(config.access.admin_users.n, 2);
        assert_string_equal(config.access.admin_users.items[1], "1000");
        assert_int_equal(config.access.users.n, 0);
        assert_int_equal(config.access.groups.n, 2);
        assert_true(config_given(&config, "access.groups"));
        assert_string_equal(config.log.level, "debug");
        assert_int_equal(load("listen.http: '[::1]:9750'"), 0);
        assert_int_equal(load("listen.http: localhost:0"), 0);
        assert_int_equal(load("listen.http: 127.1.2.3:9750"), 0);
        assert_int_equal(load("listen.http: off"), 0);
        assert_int_equal(load("io.direct: on\nstore.prewrite: true\n"), 0);
        assert_true(config.io.direct && config.store.prewrite);
}

static void tenants_are_read_in_their_order_and_printed_back(void **state)
{
        _cleanup_(freep) char *text = NULL;

        assert_int_equal(load("tenants:\n"
                              "  - name: research\n"
                              "    users: [alice, 1000]\n"
                              "    pool: 64MiB\n"
                              "    stored_bytes: 1GiB\n"
                              "  - {groups: ml, name: prod-1.x_Y, keys: 4096, leases: auto}\n"
                              "  - {name: default, connections: 5}\n"),
                         0);
        assert_int_equal(config.n_tenants, 3);
        assert_string_equal(config.tenants[0].name, "research");
        assert_int_equal(config.tenants[0].users.n, 2);
        assert_string_equal(config.tenants[0].users.items[1], "1000");
        assert_int_equal(config.tenants[0].pool, 64 * MIB);
        assert_int_equal(config.tenants[0].stored_bytes, GIB);
        assert_int_equal(config.tenants[0].connections, 0);
        assert_string_equal(config.tenants[1].name, "prod-1.x_Y");
        assert_string_equal(config.tenants[1].groups.items[0], "ml");
        assert_int_equal(config.tenants[1].keys, 4096);
        assert_int_equal(config.tenants[2].connections, 5);

        text = printed(print_it);
        assert_int_equal(load(text), 0);
        assert_int_equal(config.n_tenants, 3);
        assert_string_equal(config.tenants[1].name, "prod-1.x_Y");
        assert_int_equal(config.tenants[0].users.n, 2);
        assert_int_equal(config.tenants[0].stored_bytes, GIB);
        assert_int_equal(config.tenants[2].connections, 5);
        assert_int_equal(load("tenants: []\n"), 0);
        assert_int_equal(config.n_tenants, 0);
}

static void there_are_at_most_so_many_tenants(void **state)
{
        char text[4096] = "tenants:\n- {name: default}\n";

        for (int i = 0; i < CONFIG_MAX_TENANTS; i++) {
                assert_int_equal(load(text), 0);
                snprintf(text + strlen(text), sizeof(text) - strlen(text),
                         "- {name: t%d, users: u%d}\n", i, i);
        }
        assert_int_equal(load(text), -EINVAL);
        assert_non_null(strstr(fault.text, "more than 16 tenants"));
}

static void say_change(void *userdata, enum config_change change, const char *text)
{
        assert_int_equal(change == CONFIG_NEEDS_RESTART, strstr(text, "after a restart") != NULL);
        assert_int_not_equal(change, CONFIG_KEPT);
        say(text);
}

static const struct config_report reporting = { .say = say_change };

static void a_reload_changes_limits_of_tenants_and_says_what_it_does_not(void **state)
{
        struct config next;

        assert_int_equal(load("tenants:\n- {name: a, users: x, keys: 2048, pool: 8MiB}\n"), 0);
        config_init(&next);
        assert_int_equal(config_load_text(&next, "t",
                                          "tenants:\n- {name: a, users: y, stored_bytes: 1GiB}\n",
                                          51, &fault),
                         0);
        n_said = 0;
        assert_int_equal(config_reload(&config, &next, &reporting), 2);
        assert_int_equal(config.tenants[0].keys, 0);
        assert_int_equal(config.tenants[0].stored_bytes, GIB);
        assert_string_equal(config.tenants[0].users.items[0], "x");
        assert_true(was_said("tenant a: keys: 2048 is now auto"));
        assert_true(was_said("tenant a: users: [x] becomes [\"y\"] only after a restart"));
        assert_true(was_said("tenant a: pool: 8MiB becomes auto only after a restart"));
        config_fini(&next);
        config_init(&next);
        n_said = 0;
        assert_int_equal(config_reload(&config, &next, &reporting), 0);
        assert_true(was_said("only after a restart"));
        assert_int_equal(config.n_tenants, 1);
        config_fini(&next);
}

static void limits_of_a_user_are_three_quarters_where_they_are_auto(void **state)
{
        uint64_t connections, keys;

        assert_int_equal(load("limits: {connections: 4096, keys: 4096}"), 0);
        config_uid_limits(&config, &connections, &keys);
        assert_int_equal(connections, 3072);
        assert_int_equal(keys, 3072);
        assert_int_equal(load("limits: {connections: 70}"), 0);
        config_uid_limits(&config, &connections, &keys);
        assert_int_equal(connections, 64);
        assert_int_equal(load("limits: {connections: 2, uid_keys: 1024}"), 0);
        config_uid_limits(&config, &connections, &keys);
        assert_int_equal(connections, 2);
        assert_int_equal(keys, 1024);
}

/* --- the environment and the command line --- */

static void variables_are_read_reserved_ones_left_and_unknown_ones_reported(void **state)
{
        char *variables[] = {
                (char *)"PATH=/bin",
                (char *)"KVCACHE_STORE_LIMIT=2GiB",
                (char *)"KVCACHE_STORE_PATH=/a,/b",
                (char *)"KVCACHE_LIMITS_HTTP_CONNECTIONS=7",
                (char *)"KVCACHE_SOCKET=/x",
                (char *)"KVCACHE_LIBRARY=/x",
                (char *)"KVCACHE_DATA_DIR=/x",
                (char *)"KVCACHE_BENCH_SESSION=1",
                (char *)"KVCACHE_MEMORY_POOL=",
                (char *)"KVCACHE_STORE_LIMTI=1",
                (char *)"KVCACHE_XYZZY=\x1b[31m",
                (char *)"KVCACHE_",
                (char *)"KVCACHE_SOCKETS",
                (char *)"KVCACHED_PORT=1",
                (char *)"=",
                (char *)"",
                (char *)"KVCACHE_TENANTS_DEFAULT_USERS=alice",
                (char *)"kvcache_log_level=debug",
                NULL,
        };

        assert_int_equal(config_load_environment(&config, variables, say, &fault), 0);
        assert_true(config.store.limit == 2 * GIB);
        assert_int_equal(config.store.path.n, 2);
        assert_string_equal(config.store.path.items[1], "/b");
        assert_int_equal(config.limits.http_connections, 7);
        assert_int_equal(config.memory.pool, 0);
        assert_false(config_given(&config, "memory.pool"));
        assert_int_equal(config.access.users.n, 1);
        assert_string_equal(config.log.level, "info");
        assert_int_equal(n_said, 2);
        assert_string_equal(said[0], "environment variable \"KVCACHE_STORE_LIMTI\" is not known "
                                     "and ignored; did you mean "
                                     "\"KVCACHE_STORE_LIMIT\"?");
        assert_true(was_said("\"KVCACHE_XYZZY\" is not known and ignored"));
}

static void bad_variable_is_an_error_that_names_it(void **state)
{
        char *variables[] = { (char *)"KVCACHE_STORE_LIMIT=64G", NULL };

        assert_int_equal(config_load_environment(&config, variables, say, &fault), -EINVAL);
        assert_true(strncmp(fault.text, "KVCACHE_STORE_LIMIT: store.limit: unknown unit \"G\"",
                            50) == 0);
}

static void long_variable_is_not_taken_for_another(void **state)
{
        char variable[4096] = "KVCACHE_STORE_LIMIT", *variables[] = { variable, NULL };

        memset(variable + 19, 'X', 3000);
        strcpy(variable + 3019, "=1GiB");
        assert_int_equal(config_load_environment(&config, variables, say, &fault), 0);
        assert_false(config_given(&config, "store.limit"));
        assert_int_equal(n_said, 1);
}

static void bad_assignment_is_an_error_that_shows_it(void **state)
{
        static const struct {
                const char *text, *error;
        } bad[] = {
                { "store.limit",
                  "--set \"store.limit\": write it as key=value, as in store.limit=64GiB" },
                { "=1", "--set \"=1\": write it as key=value, as in store.limit=64GiB" },
                { "", "--set \"\": write it as key=value, as in store.limit=64GiB" },
                { "store.limt=1GiB", "--set \"store.limt=1GiB\": unknown key \"store.limt\"; did "
                                     "you mean \"store.limit\"?" },
                { "store=1", "--set \"store=1\": \"store\" is a section; name a key in it" },
                { "io.depth=0",
                  "--set \"io.depth=0\": io.depth: \"0\" is out of range: 1 to 1024" },
                { "io.depth=", "--set \"io.depth=\": io.depth: \"\" is not a whole number" },
                { "store.path=/a,,/b",
                  "--set \"store.path=/a,,/b\": store.path: a path cannot be empty" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                assert_int_equal(config_set(&config, bad[i].text, "--set", &fault), -EINVAL);
                assert_string_equal(fault.text, bad[i].error);
        }
}

static void a_list_on_the_command_line_may_have_brackets(void **state)
{
        static const struct {
                const char *text;
                unsigned n;
                const char *first, *last;
        } good[] = {
                { "/a,/b", 2, "/a", "/b" },
                { "[/a,/b]", 2, "/a", "/b" },
                { "[ /a b , /c ]", 2, "/a b", "/c" },
                { "[/a]", 1, "/a", "/a" },
                /* Paths may contain brackets, and are not lists then. */
                { "[/a", 1, "[/a", "[/a" },
                { "/a]", 1, "/a]", "/a]" },
                { "/[a],/b", 2, "/[a]", "/b" },
                { "[/a],/b", 2, "[/a]", "/b" },
        };
        char text[64];

        for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
                snprintf(text, sizeof(text), "store.path=%s", good[i].text);
                if (config_set(&config, text, "--set", &fault) < 0)
                        fail_msg("%s", fault.text);
                assert_int_equal(config.store.path.n, good[i].n);
                assert_string_equal(config.store.path.items[0], good[i].first);
                assert_string_equal(config.store.path.items[good[i].n - 1], good[i].last);
        }
        assert_int_equal(config_set(&config, "store.path=[/a,,/b]", "--set", &fault), -EINVAL);
        assert_non_null(strstr(fault.text, "a path cannot be empty"));
        assert_int_equal(config_set(&config, "access.users=[]", "--set", &fault), 0);
        assert_int_equal(config_set(&config, "access.users=[ ]", "--set", &fault), 0);
        assert_int_equal(config.access.users.n, 0);
}

static void later_sources_win(void **state)
{
        char path[256];
        static const char text[] = "store.limit: 1GiB\nmemory.pool: 1GiB\nmemory.staging: 1MiB\n";
        char *variables[] = { (char *)"KVCACHE_MEMORY_POOL=2GiB",
                              (char *)"KVCACHE_MEMORY_STAGING=2MiB", NULL };
        char *sets[] = { (char *)"memory.staging=3MiB", (char *)"memory.staging=4MiB" };

        write_file(in_folder("kvcache.yaml", path), text, strlen(text));
        assert_int_equal(config_load_all(&config, path, true, variables, sets, 2, say, &fault), 0);
        assert_true(config.store.limit == GIB);
        assert_true(config.memory.pool == 2 * GIB);
        assert_true(config.memory.staging == 4 * MIB);
        assert_int_equal(n_said, 0);

        reset();
        assert_int_equal(config_load_all(&config, in_folder("none", path), true, variables, sets, 2,
                                         say, &fault),
                         -ENOENT);
        reset();
        assert_int_equal(config_load_all(&config, path, false, variables, sets, 2, say, &fault), 0);
        assert_true(config.memory.pool == 2 * GIB);
        reset();
        assert_int_equal(config_load_all(&config, NULL, true, variables, NULL, 0, NULL, &fault), 0);
        assert_true(config.memory.staging == 2 * MIB);
}

static void keys_that_contradict_each_other_are_refused(void **state)
{
        static const char *const bad[] = {
                "memory.pool: 16MiB\nlimits.leased_bytes: 32MiB\n",
                "store.limit: 20MiB\nstore.path: [/a, /b]\n",
                "listen.socket: /run/x\nlisten.http: unix:/run/x\n",
        };

        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                assert_int_equal(load(bad[i]), 0);
                assert_int_equal(config_check(&config, &fault), -EINVAL);
                assert_true(strlen(fault.text) > 20);
        }
        assert_int_equal(load("store.limit: 32MiB\nstore.path: [/a, /b]\n"), 0);
        assert_int_equal(config_check(&config, &fault), 0);
}

static void an_address_that_other_hosts_reach_must_be_allowed(void **state)
{
        static const char *const addresses[] = { "0.0.0.0:9750", "192.0.2.1:0", "[::]:9750",
                                                 "[2001:db8::1]:9750", "[::ffff:127.0.0.1]:1" };

        for (size_t i = 0; i < ARRAY_SIZE(addresses); i++) {
                char text[128], expected[256];

                snprintf(text, sizeof(text), "listen.http: '%s'\n", addresses[i]);
                assert_int_equal(load(text), 0);
                assert_int_equal(config_check(&config, &fault), -EINVAL);
                snprintf(expected, sizeof(expected),
                         "t:1:14: listen.http: \"%s\" is reachable from other hosts; set "
                         "http.allow_remote: true to allow that, or use a loopback address, as in "
                         "\"127.0.0.1:9750\"",
                         addresses[i]);
                assert_string_equal(fault.text, expected);
                snprintf(text, sizeof(text), "listen.http: '%s'\nhttp: {allow_remote: true}\n",
                         addresses[i]);
                assert_int_equal(load(text), 0);
                assert_int_equal(config_check(&config, &fault), 0);
        }
        assert_int_equal(load("http: {allow_remote: true, token_file: /etc/x}\n"), 0);
        assert_true(config.http.allow_remote);
        assert_string_equal(config.http.token_file, "/etc/x");
        assert_int_equal(load("http.hosts: [kvcache.example.com, b]\n"), 0);
        assert_int_equal(config.http.hosts.n, 2);
        assert_string_equal(config.http.hosts.items[0], "kvcache.example.com");
        assert_int_equal(load("listen.http: localhost:1\n"), 0);
        assert_int_equal(config_check(&config, &fault), 0);
}

static void reload_takes_what_may_change_and_tells_the_rest(void **state)
{
        struct config next;
        char path[256];

        setenv("STATE_DIRECTORY", folder, 1);
        setenv("RUNTIME_DIRECTORY", in_folder("run", path), 1);
        assert_int_equal(config_resolve(&config, NULL, NULL, &fault), 0);
        unsetenv("STATE_DIRECTORY");
        unsetenv("RUNTIME_DIRECTORY");

        config_init(&next); /* auto again: no change */
        assert_int_equal(config_reload(&config, &next, &reporting), 0);
        assert_int_equal(n_said, 0);

        assert_int_equal(config_set(&next, "limits.wait=9s", "--set", &fault), 0);
        assert_int_equal(config_set(&next, "log.level=debug", "--set", &fault), 0);
        assert_int_equal(config_set(&next, "limits.leased_bytes=2MiB", "--set", &fault), 0);
        assert_int_equal(config_set(&next, "store.limit=32MiB", "--set", &fault), 0);
        assert_int_equal(config_set(&next, "access.users=alice", "--set", &fault), 0);
        assert_int_equal(config_reload(&config, &next, &reporting), 3);
        assert_int_equal(config.limits.wait_ms, 9000);
        assert_string_equal(config.log.level, "debug");
        assert_int_equal(config.limits.leased_bytes, 2 * MIB);
        assert_true(config.store.limit != 32 * MIB || config.access.users.n == 0);
        assert_int_equal(config.access.users.n, 0);
        assert_true(was_said("limits.wait: 5s is now 9s"));
        assert_true(was_said("becomes 32MiB only after a restart"));
        assert_true(was_said("access.users: [] becomes [alice] only after a restart"));
        assert_true(config_given(&config, "limits.wait"));
        config_fini(&next);

        n_said = 0;
        config_init(&next); /* more than the pool that runs */
        assert_int_equal(
                config_load_text(&next, "t", "limits:\n  leased_bytes: 1TiB\n", 29, &fault), 0);
        assert_int_equal(config_reload_check(&config, &next, &fault), -EINVAL);
        assert_non_null(
                strstr(fault.text, "t:2:17: limits.leased_bytes: 1TiB is more than the pool"));
        assert_int_equal(config_set(&next, "memory.pool=1TiB", "--set", &fault), 0);
        assert_int_equal(config_reload_check(&config, &next, &fault), 0);
        assert_int_equal(config_reload(&config, &next, &reporting), 2);
        assert_true(was_said("limits.leased_bytes: 2MiB becomes 1TiB only after a restart"));
        assert_int_equal(config.limits.leased_bytes, 2 * MIB);
        config_fini(&next);
        assert_int_equal(config_set(&config, "limits.wait=9s", "--set", &fault), 0);
        assert_int_equal(config_set(&config, "log.level=debug", "--set", &fault), 0);

        n_said = 0;
        config_init(&next); /* resets everything to the defaults */
        assert_int_equal(config_reload(&config, &next, &reporting), 3);
        assert_int_equal(config.limits.leased_bytes, config.memory.pool / 8 * 3);
        assert_int_equal(config.limits.wait_ms, 5000);
        assert_false(config_given(&config, "limits.wait"));
        assert_int_equal(config_reload(&config, &next, &reporting), 0);
        assert_int_equal(n_said, 3);
        config_fini(&next);
}

enum { MODE_FORMS = 7 };

static const char *format_mode(char ret[static 16], unsigned form, unsigned mode)
{
        switch (form) {
        case 0:
                snprintf(ret, 16, "%04o", mode);
                break;
        case 1:
                snprintf(ret, 16, "\"%04o\"", mode);
                break;
        case 2:
                snprintf(ret, 16, "%u", mode);
                break;
        case 3:
                snprintf(ret, 16, "\"%u\"", mode);
                break;
        case 4:
                snprintf(ret, 16, "%o", mode);
                break;
        case 5:
                snprintf(ret, 16, "0x%x", mode);
                break;
        default:
                snprintf(ret, 16, "0o%o", mode);
                break;
        }
        return ret;
}

/* Some YAML tools convert octal numbers to decimal, or drop the leading zero. */
static void no_form_of_a_mode_is_taken_for_another_mode(void **state)
{
        unsigned taken = 0;

        for (unsigned mode = 0; mode <= 0777; mode++)
                for (unsigned i = 0; i < MODE_FORMS; i++) {
                        char value[16], text[64];

                        snprintf(text, sizeof(text), "listen.mode: %s",
                                 format_mode(value, i, mode));
                        if (load(text) < 0)
                                continue;
                        taken++;
                        if (config.listen.mode != mode)
                                fail_msg("\"%s\" is taken for %04o", text, config.listen.mode);
                }
        assert_true(taken >= 2 * 512);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                CASE(every_default_is_what_its_row_says),
                CASE(every_default_can_be_given_everywhere),
                CASE(rows_do_not_share_names_or_members),
                CASE(numbers_are_held_to_their_range),
                CASE(sizes_are_exact),
                CASE(times_need_a_unit),
                CASE(nested_dotted_and_flow_are_the_same),
                CASE(nothing_is_the_defaults),
                CASE(every_kind_of_value_is_read),
                CASE(tenants_are_read_in_their_order_and_printed_back),
                CASE(there_are_at_most_so_many_tenants),
                CASE(a_reload_changes_limits_of_tenants_and_says_what_it_does_not),
                CASE(limits_of_a_user_are_three_quarters_where_they_are_auto),
                CASE(variables_are_read_reserved_ones_left_and_unknown_ones_reported),
                CASE(bad_variable_is_an_error_that_names_it),
                CASE(long_variable_is_not_taken_for_another),
                CASE(bad_assignment_is_an_error_that_shows_it),
                CASE(a_list_on_the_command_line_may_have_brackets),
                CASE(later_sources_win),
                CASE(keys_that_contradict_each_other_are_refused),
                CASE(an_address_that_other_hosts_reach_must_be_allowed),
                CASE(reload_takes_what_may_change_and_tells_the_rest),
                CASE(no_form_of_a_mode_is_taken_for_another_mode),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
