/* SPDX-License-Identifier: Apache-2.0 */
/* The table holds itself together, good files are read, bad ones are refused where they are bad,
 * and hostile ones are refused at all. With --template it prints what conf/kvcache.yaml must be,
 * with --man the list of kvcache.yaml(5). */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "checked.h"
#include "cleanup.h"
#include "config/internal.h"

static struct config config;
static struct config_error error;
static char folder[64];

static char said[64][1200];
static unsigned n_said;

static void say(const char *text)
{
        if (n_said < ARRAY_SIZE(said))
                snprintf(said[n_said++], sizeof(said[0]), "%s", text);
}

static bool was_said(const char *part)
{
        for (unsigned i = 0; i < n_said; i++)
                if (strstr(said[i], part))
                        return true;
        return false;
}

static int begin(void **state)
{
        config_init(&config);
        memset(&error, 0, sizeof(error));
        n_said = 0;
        strcpy(folder, "/tmp/kvcache-test-config-XXXXXX");
        return mkdtemp(folder) ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
        return remove(path);
}

static int end(void **state)
{
        config_fini(&config);
        return nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void reset(void)
{
        config_fini(&config);
        config_init(&config);
        memset(&error, 0, sizeof(error));
}

static int load_bytes(const char *text, size_t length)
{
        reset();
        return config_load_text(&config, "t", text, length, &error);
}

static int load(const char *text)
{
        return load_bytes(text, strlen(text));
}

static void write_file(const char *path, const char *text, size_t length)
{
        _cleanup_(closep) int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

        assert_true(fd >= 0);
        assert_int_equal(write(fd, text, length), (ssize_t)length);
}

static const char *in_folder(const char *name, char ret[static 256])
{
        snprintf(ret, 256, "%s/%s", folder, name);
        return ret;
}

static char *printed(void (*print)(FILE *out))
{
        char *text = NULL;
        size_t size;
        FILE *out = open_memstream(&text, &size);

        assert_non_null(out);
        print(out);
        assert_int_equal(fclose(out), 0);
        return text;
}

static void print_it(FILE *out)
{
        config_print(&config, out);
}

/* A file of the source tree, from the place of this one. */
static char *source_file(const char *name)
{
        char path[4096], *text;
        const char *root = getenv("KVCACHE_SOURCE_ROOT");
        size_t n;
        FILE *in;

        if (root)
                snprintf(path, sizeof(path), "%s/%s", root, name);
        else
                snprintf(path, sizeof(path), "%.*s/../../%s",
                         (int)(strrchr(__FILE__, '/') - __FILE__), __FILE__, name);
        in = fopen(path, "r");
        if (!in)
                fail_msg("%s: %s (run this from the build folder)", path, strerror(errno));
        text = calloc(1, 1 << 20);
        assert_non_null(text);
        n = fread(text, 1, (1 << 20) - 1, in);
        fclose(in);
        text[n] = '\0';
        return text;
}

/* --- the table --- */

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
        assert_int_equal(config_check(&config, &error), 0);
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
                assert_int_equal(config_set(&config, text, "--set", &error), 0);
                assert_true(config_given(&config, row->name));

                reset();
                snprintf(variable, sizeof(variable), "KVCACHE_%s", text);
                for (char *p = variable; *p != '='; p++)
                        *p = *p == '.' ? '_' : *p >= 'a' ? (char)(*p - 'a' + 'A') : *p;
                assert_int_equal(config_load_environment(&config, variables, say, &error), 0);
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
                        assert_int_equal(config_set(&config, text, "--set", &error),
                                         d < 2 ? 0 : -EINVAL);
                        if (d < 2)
                                assert_int_equal(*(uint64_t *)config_member(&config, row), value);
                        else {
                                snprintf(part, sizeof(part), "is out of range: ");
                                assert_non_null(strstr(error.text, part));
                        }
                }
        }
}

/* --- values --- */

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
                assert_int_equal(config_parse_bytes(good[i].text, &value), 0);
                assert_true(value == good[i].value);
        }
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                value = 42;
                assert_int_equal(config_parse_bytes(bad[i].text, &value), bad[i].r);
                assert_int_equal(value, 42);
        }
}

static void times_need_a_unit(void **state)
{
        uint64_t value = 0;

        assert_int_equal(config_parse_ms("5s", &value), 0);
        assert_int_equal(value, 5000);
        assert_int_equal(config_parse_ms("250ms", &value), 0);
        assert_int_equal(value, 250);
        assert_int_equal(config_parse_ms("1min", &value), 0);
        assert_int_equal(value, 60000);
        assert_int_equal(config_parse_ms("1.5 h", &value), 0);
        assert_int_equal(value, 5400000);
        assert_int_equal(config_parse_ms("2d", &value), 0);
        assert_int_equal(value, 172800000);
        assert_int_equal(config_parse_ms("0", &value), 0);
        assert_int_equal(value, 0);
        assert_int_equal(config_parse_ms("5", &value), -EINVAL);
        assert_int_equal(config_parse_ms("5m", &value), -EINVAL);
        assert_int_equal(config_parse_ms("0.5ms", &value), -EINVAL);
        assert_int_equal(config_parse_ms("5GiB", &value), -EINVAL);
        assert_int_equal(config_parse_ms("", &value), -EINVAL);
        assert_int_equal(config_parse_ms("99999999999999999999d", &value), -ERANGE);
}

/* --- good files --- */

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
                        fail_msg("%s: %s", texts[i], error.text);
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
                        fail_msg("\"%s\": %s", texts[i], error.text);
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
        assert_non_null(strstr(error.text, "there may be 16 tenants"));
}

static void a_reload_changes_limits_of_tenants_and_says_what_it_does_not(void **state)
{
        struct config next;

        assert_int_equal(load("tenants:\n- {name: a, users: x, keys: 2048, pool: 8MiB}\n"), 0);
        config_init(&next);
        assert_int_equal(config_load_text(&next, "t",
                                          "tenants:\n- {name: a, users: y, stored_bytes: 1GiB}\n",
                                          51, &error),
                         0);
        n_said = 0;
        assert_int_equal(config_reload(&config, &next, say), 2);
        assert_int_equal(config.tenants[0].keys, 0);
        assert_int_equal(config.tenants[0].stored_bytes, GIB);
        assert_string_equal(config.tenants[0].users.items[0], "x");
        assert_true(was_said("tenant a: keys: 2048 is now auto"));
        assert_true(was_said("tenant a: users: [x] becomes [y] only at the next start"));
        assert_true(was_said("tenant a: pool: 8MiB becomes auto only at the next start"));
        config_fini(&next);
        config_init(&next);
        n_said = 0;
        assert_int_equal(config_reload(&config, &next, say), 0);
        assert_true(was_said("only at the next start"));
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

/* --- bad files --- */

static void errors_name_place_fault_and_remedy(void **state)
{
        static const struct {
                const char *text, *error; /* all of it */
        } bad[] = {
                { "store:\n  limt: 5GiB\n",
                  "t:2:3: unknown key \"store.limt\"; did you mean \"store.limit\"?" },
                { "stor:\n  limit: 5GiB\n",
                  "t:1:1: unknown key \"stor\"; did you mean \"store\"?" },
                { "# c\n\nlimit: 3GiB\n",
                  "t:3:1: unknown key \"limit\"; did you mean \"store.limit\"?" },
                { "http: off\n", "t:1:1: unknown key \"http\"; did you mean \"listen.http\"?" },
                { "Store: {}\n", "t:1:1: unknown key \"Store\"; did you mean \"store\"?" },
                { "memory:\n  poool: 1GiB\n",
                  "t:2:3: unknown key \"memory.poool\"; did you mean \"memory.pool\"?" },
                { "store: {foo: 1}\n", "t:1:9: unknown key \"store.foo\"; the keys there are path, "
                                       "limit, segment, entries, prewrite, error_budget, "
                                       "reserve, scrub_rate, scrub_interval" },
                { "xyzzy: 1\n", "t:1:1: unknown key \"xyzzy\"; the sections are listen, store, "
                                "memory, io, eviction, "
                                "access, limits, log, tenants" },
                { "\"\xc3\xa4\xc3\xb6\": 1",
                  "t:1:1: unknown key \"\xc3\xa4\xc3\xb6\"; the sections are listen, store, "
                  "memory, io, eviction, access, limits, log, tenants" },
                { "tenants: {acme: {}}\n",
                  "t:1:11: unknown key \"tenants.acme\"; tenants are a list in the file, an entry "
                  "each: \"- name: acme\", and its keys below" },
                { "? \"tenants.a\\tb\"\n: 1\n",
                  "t:1:3: unknown key \"tenants.a?b\"; tenants are a list in the file, an entry "
                  "each: \"- name: a?b\", and its keys below" },
                { "tenants: [default]\n",
                  "t:1:11: a tenant is a mapping: \"- name: research\", and "
                  "its other keys below" },
                { "tenants: 5\n", "t:1:10: \"tenants\" is a section: its keys go below it, "
                                  "indented, as \"key: value\"" },
                { "tenants:\n- users: [a]\n", "t:2:3: this tenant has no name" },
                { "tenants:\n- name: a\n  users: [a]\n- {name: a, groups: b}\n",
                  "t:4:3: there are two tenants \"a\"" },
                { "tenants:\n- name: a\n", "t:2:3: tenant \"a\" has neither users nor groups" },
                { "tenants:\n- name: default\n  pool: 1GiB\n",
                  "t:2:3: tenant \"default\" has limits only: its users and groups are those of "
                  "access, its pool is memory.pool" },
                { "tenants:\n- name: a b\n",
                  "t:2:9: tenants.name: \"a b\" is not a tenant's name: 1 to 63 letters, digits, "
                  "\".\", \"_\" and \"-\"" },
                { "tenants:\n- name: a\n  user: b\n",
                  "t:3:3: unknown key \"user\" of a tenant; did you mean \"users\"?" },
                { "tenants:\n- name: a\n  xyzzy: b\n", "t:3:3: unknown key \"xyzzy\" of a tenant" },
                { "tenants:\n- name: a\n  name: b\n",
                  "t:3:3: \"tenants.name\" is given twice; first at line 2" },
                { "tenants:\n- name: a\n  pool: 1KiB\n",
                  "t:3:9: tenants.pool: \"1KiB\" is out of range: 8MiB to 1TiB, or auto" },
                { "tenants:\n- name: a\n  users: [b, b]\n",
                  "t:3:10: tenants.users: \"b\" is listed twice" },
                { "tenants:\n- name: a\n  users: {b: c}\n",
                  "t:3:10: \"tenants.users\" takes a value; there are no keys below it" },
                { "tenants:\n- name: a\n  users:\n",
                  "t:3:3: \"tenants.users\" has no value; give it one, or leave the line out" },
                { "tenants:\n- [a]\n",
                  "t:2:3: a tenant is a mapping: \"- name: research\", and its "
                  "other keys below" },
                { "tenants:\n- name: a\n  users: a\ntenants: []\n",
                  "t:4:1: section \"tenants\" is there twice; first at line 1" },
                { "store: {limit: 1GiB}\nstore.limit: 2GiB\n",
                  "t:2:1: \"store.limit\" is given twice; first at line 1" },
                { "store:\n  limit: 1GiB\n  limit: 1GiB\n",
                  "t:3:3: \"store.limit\" is given twice; first at line 2" },
                { "store: {}\nio: {}\nstore: {}\n",
                  "t:3:1: section \"store\" is there twice; first at line 1" },
                { "access.users: a\ntenants.default.users: b\n",
                  "t:2:1: \"access.users\" is given twice (as tenants.default.users); first at "
                  "line 1" },
                { "store.limit:\n",
                  "t:1:1: \"store.limit\" has no value; give it one, or leave the line out" },
                { "store.path: ~\n",
                  "t:1:1: \"store.path\" has no value; give it one, or leave the line out" },
                { "store: 5\n", "t:1:8: \"store\" is a section: its keys go below it, indented, as "
                                "\"key: value\"" },
                { "store: {limit: {x: 1}}\n",
                  "t:1:16: \"store.limit\" takes a value; there are no keys below it" },
                { "store.limit: [1GiB]\n", "t:1:14: store.limit takes one value, not a list" },
                { "store.limit: 64G\n",
                  "t:1:14: store.limit: unknown unit \"G\" in \"64G\"; did you mean \"GiB\"? Units "
                  "are B, KiB, MiB, GiB, TiB, PiB, or decimal kB, MB, GB, TB, PB" },
                { "store.limit: 64gib\n",
                  "t:1:14: store.limit: unknown unit \"gib\" in \"64gib\"; did you mean \"GiB\"? "
                  "Units are B, KiB, MiB, GiB, TiB, PiB, or decimal kB, MB, GB, TB, PB" },
                { "store.limit: -1GiB\n", "t:1:14: store.limit: \"-1GiB\" cannot be negative" },
                { "store.limit: lots\n",
                  "t:1:14: store.limit: \"lots\" is not a size; write a number with a unit, as in "
                  "64GiB or 512MiB, or auto" },
                { "store.limit: 1\n",
                  "t:1:14: store.limit: \"1\" is out of range: 16MiB to 1PiB, or auto" },
                { "store.segment: auto\n",
                  "t:1:16: store.segment: \"auto\" is not a size; write a number with a unit, as "
                  "in 64GiB or 512MiB" },
                { "store.segment: 99999999999999999999GiB\n",
                  "t:1:16: store.segment: \"99999999999999999999GiB\" is out of range: 1MiB to "
                  "64GiB" },
                { "memory.pool: 4MiB",
                  "t:1:14: memory.pool: \"4MiB\" is out of range: 8MiB to 1TiB, or auto" },
                { "limits.wait: 30\n", "t:1:14: limits.wait: \"30\" has no unit; did you mean "
                                       "\"30s\"? Units are ms, s, min, h, d" },
                { "limits:\n  wait: 30 seconds\n",
                  "t:2:9: limits.wait: unknown unit \"seconds\" in \"30 seconds\"; did you mean "
                  "\"s\"? Units are ms, s, "
                  "min, h, d" },
                { "io.depth: many", "t:1:11: io.depth: \"many\" is not a whole number" },
                { "io.depth: 1.5", "t:1:11: io.depth: \"1.5\" is not a whole number" },
                { "io.depth: -3", "t:1:11: io.depth: \"-3\" is not a whole number" },
                { "io.depth: 18446744073709551617",
                  "t:1:11: io.depth: \"18446744073709551617\" is out of range: 1 to 1024" },
                { "io.workers: few",
                  "t:1:13: io.workers: \"few\" is not a whole number, nor auto" },
                { "io:\n  backend: io_urign",
                  "t:2:12: io.backend: \"io_urign\" is not one of auto, io_uring, posix; did "
                  "you mean \"io_uring\"?" },
                { "log.level: warn", "t:1:12: log.level: \"warn\" is not one of error, warning, "
                                     "notice, info, debug; did "
                                     "you mean \"warning\"?" },
                { "eviction.policy: arc",
                  "t:1:18: eviction.policy: \"arc\" is not known; this version has lru" },
                { "store.prewrite: maybe",
                  "t:1:17: store.prewrite: \"maybe\" is not one of on, off" },
                { "listen.mode: 999",
                  "t:1:14: listen.mode: \"999\" is not a mode in octal, as in 0660" },
                { "listen.mode: 4755",
                  "t:1:14: listen.mode: \"4755\" is not a mode in octal, as in 0660" },
                { "listen.http: 9750", "t:1:14: listen.http: \"9750\" names no address; did you "
                                       "mean \"127.0.0.1:9750\"?" },
                { "listen.http: 127.0.0.1:99999",
                  "t:1:14: listen.http: the port in \"127.0.0.1:99999\" is not a number from 0 to "
                  "65535" },
                { "listen.http: 127.0.0.1:009750",
                  "t:1:14: listen.http: the port in \"127.0.0.1:009750\" is not a number from 0 to "
                  "65535" },
                { "listen.http: ::1:9750",
                  "t:1:14: listen.http: \"::1:9750\": an IPv6 address is written in brackets, as "
                  "in \"[::1]:9750\"" },
                { "listen.http: unix:h",
                  "t:1:14: listen.http: the path in \"unix:h\" must begin with /" },
                { "listen.http: 0.0.0.0:9750",
                  "t:1:14: listen.http: \"0.0.0.0:9750\" would be seen from other hosts; write a "
                  "loopback address, as in \"127.0.0.1:9750\", and put a proxy in front" },
                { "listen.http: '[2001:db8::1]:9750'",
                  "t:1:14: listen.http: \"[2001:db8::1]:9750\" would be seen from other hosts; "
                  "write a loopback address, as in \"127.0.0.1:9750\", and put a proxy in front" },
                { "listen.http: '[::]:9750'",
                  "t:1:14: listen.http: \"[::]:9750\" would be seen from other hosts; write a "
                  "loopback address, as in \"127.0.0.1:9750\", and put a proxy in front" },
                { "listen.http: '[::1%lo]:9750'",
                  "t:1:14: listen.http: \"[::1%lo]:9750\" has no address in front of the port; "
                  "127.0.0.1, [::1] and localhost are" },
                { "listen.http: myhost:9750",
                  "t:1:14: listen.http: \"myhost:9750\" has no address in front of the port; "
                  "127.0.0.1, [::1] and localhost are" },
                { "listen.http: 127.1:9750",
                  "t:1:14: listen.http: \"127.1:9750\" has no address in front of the port; "
                  "127.0.0.1, [::1] and localhost are" },
                { "listen.http: localhost.:9750",
                  "t:1:14: listen.http: \"localhost.:9750\" has no address in front of the port; "
                  "127.0.0.1, [::1] and localhost are" },
                { "listen.http: /run/h", "t:1:14: listen.http: did you mean \"unix:/run/h\"?" },
                { "listen.http: http://x:1",
                  "t:1:14: listen.http: \"http://x:1\": an IPv6 address is written in brackets, "
                  "as in \"[::1]:9750\"" },
                { "listen.socket: /run/kvcache/",
                  "t:1:16: listen.socket: \"/run/kvcache/\" is a directory; the socket "
                  "needs a name in it" },
                { "store.path: ~/x", "t:1:13: store.path: \"~\" in \"~/x\" is not replaced here; "
                                     "write the whole path" },
                { "store.path: ''", "t:1:13: store.path: a path cannot be empty" },
                { "store.path: []", "t:1:13: store.path: the list is empty; give a path, or auto" },
                { "store.path: [/a, auto]", "t:1:13: store.path: auto stands alone; write "
                                            "\"./auto\" for a directory of that name" },
                { "store.path: [/a, /b, /a]", "t:1:13: store.path: \"/a\" is listed twice" },
                { "store.path:\n  - /a\n  - [/b]\n",
                  "t:3:5: store.path: a list of plain values is wanted; this entry is a list" },
                { "store.path:\n  - /a\n  -\n", "t:3:4: store.path: an entry without a value" },
                { "access.users: alice, bob", "t:1:15: access.users: \"alice, bob\" is not a name; "
                                              "several are written as a list: [alice, bob]" },
                { "access.users: [{a: b}]", "t:1:16: access.users: a list of plain values is "
                                            "wanted; this entry is a mapping" },
                { "store:\n limit: 2GiB\n  path: /x\n",
                  "t:2:9: the value of \"store.limit\" goes on in the next line; look "
                  "at the indentation there" },
                { "store.path: \"a\\nb\"",
                  "t:1:13: store.path: \"a?b\" is not one line of UTF-8 text" },
                { "store.path: \"a\\0b\"", "t:1:13: a NUL character within text" },
                { "\"store\\0x\": 1", "t:1:1: a NUL character within text" },
                { "\"\": 1", "t:1:1: an empty key" },
                { "? [a]\n: b\n", "t:1:3: a key must be plain text, not a list" },
                { "? {a: b}\n: b\n", "t:1:3: a key must be plain text, not a mapping" },
                { "<<: {}", "t:1:1: unknown key \"<<\"; the sections are listen, store, memory, "
                            "io, eviction, access, "
                            "limits, log, tenants" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                assert_int_equal(load(bad[i].text), -EINVAL);
                assert_string_equal(error.text, bad[i].error);
        }
}

static void what_yaml_has_beyond_keys_and_values_is_refused(void **state)
{
        static const struct {
                const char *text, *error; /* its beginning */
        } bad[] = {
                { "store.path: *x\n", "t:1:13: aliases (\"*\") are not supported" },
                { "store: &a {}\n", "t:1:8: anchors (\"a\" after \"&\") are not supported" },
                { "&k store: {}\n", "t:1:1: anchors" },
                { "store.limit: !!str 64GiB\n",
                  "t:1:14: tags (\"tag:yaml.org,2002:str\") are not supported" },
                { "store.path: !x [/a]\n", "t:1:13: tags (\"!x\") are not supported" },
                { "!!binary aGVsbG8=\n", "t:1:1: tags" },
                { "--- {}\n--- {}\n", "t:2:1: a second document begins here" },
                { "log.level: info\n---\nlog.level: debug\n",
                  "t:2:1: a second document begins here" },
                { "- store\n", "t:1:1: \"key: value\" lines are wanted, not a list" },
                { "store", "t:1:1: \"key: value\" lines are wanted, not a single value" },
                { "store:\n\tlimit: 1GiB\n",
                  "t:2:1: not valid YAML: found character that cannot start any token" },
                { "store.path: [\n", "t:2:1: not valid YAML: " },
                { "store.path: \"abc\n",
                  "t:2:1: not valid YAML: found unexpected end of stream (while scanning a quoted "
                  "scalar that begins at line 1)" },
                { "store.limit: 1GiB: 2\n",
                  "t:1:18: not valid YAML: mapping values are not allowed in this context" },
                { "%FOO\n---\n", "t:1:" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                assert_int_equal(load(bad[i].text), -EINVAL);
                if (strncmp(error.text, bad[i].error, strlen(bad[i].error)) != 0)
                        fail_msg("\"%s\" begins otherwise than \"%s\"", error.text, bad[i].error);
        }
        assert_int_equal(load("store:\n\tlimit: 1GiB\n"), -EINVAL);
        assert_non_null(strstr(error.text, "indent with spaces, not with tabs"));
}

/* --- hostile files --- */

static void assert_one_line(void)
{
        assert_true(strncmp(error.text, "t:", 2) == 0);
        assert_null(strchr(error.text, '\n'));
        for (const char *p = error.text; *p; p++)
                assert_true((unsigned char)*p >= 0x20 && *p != 0x7f);
}

static void bytes_that_are_not_text_are_refused(void **state)
{
        static const struct {
                const char *bytes;
                size_t length;
                const char *error;
        } bad[] = {
                { "\0\0\1", 3, "t:1:1: not text in UTF-8 (control characters are not allowed)" },
                { "\x7f"
                  "ELF\2\1",
                  6, "t:1:1: not text" },
                { "store:\n  \xff\xfe", 11,
                  "t:2:3: not text in UTF-8 (invalid leading UTF-8 octet)" },
                { "\xff\xfe"
                  "a\0:\0",
                  6, "t:1:1: not text" },
                { "store: \xc3", 8, "t:1:8: not text in UTF-8 (incomplete UTF-8 octet sequence)" },
                { "a\xed\xa0\x80", 4, "t:1:2: not text" },
                { "a\x1b[31m: 1", 9, "t:1:2: not text" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                assert_int_equal(load_bytes(bad[i].bytes, bad[i].length), -EINVAL);
                if (strncmp(error.text, bad[i].error, strlen(bad[i].error)) != 0)
                        fail_msg("\"%s\" begins otherwise than \"%s\"", error.text, bad[i].error);
                assert_one_line();
        }
}

static void deep_long_and_large_ones_are_refused_with_one_line(void **state)
{
        static const struct {
                const char *once, *prefix;
                size_t times;
        } bad[] = {
                { "[", "", 500000 },
                { "{", "", 500000 },
                { "{a: ", "", 100000 },
                { "- ", "", 200000 },
                { "? ", "", 200000 },
                { "[", "store.path: ", 500000 },
                { "{", "store.path: ", 500000 },
                { "{a: ", "store: ", 100000 },
                { "a, ", "access.users: [", 300000 },
                { "- a\n", "access.users:\n", 200000 },
                { "x", "", 1000000 },
                { "x", "store.path: ", 1000000 },
                { "store.", "", 100000 },
                { "\xc3\xa4", "store.", 400000 },
                { "store: {}\n", "", 100000 },
                { "9", "store.limit: ", 900000 },
                { "0", "store.limit: 1.", 900000 },
                { "!", "", 900000 },
                { "&a ", "", 300000 },
                { "%A\n", "", 300000 },
                { "%TAG !x! y\n", "", 90000 },
                { "---\n", "", 250000 },
                { "\"", "", 900001 },
                { "|\n", "store: ", 400000 },
        };

        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                size_t n = strlen(bad[i].once), prefix = strlen(bad[i].prefix);
                _cleanup_(freep) char *text = malloc(prefix + n * bad[i].times);

                assert_non_null(text);
                memcpy(text, bad[i].prefix, prefix);
                for (size_t j = 0; j < bad[i].times; j++)
                        memcpy(text + prefix + j * n, bad[i].once, n);
                if (load_bytes(text, prefix + n * bad[i].times) != -EINVAL)
                        fail_msg("%s%s... was not refused", bad[i].prefix, bad[i].once);
                assert_one_line();
                assert_true(strlen(error.text) < sizeof(error.text) - 1);
        }
}

static void laughs_are_not_counted(void **state)
{
        assert_int_equal(load("a: &a [x,x,x]\nb: &b [*a,*a,*a]\nc: [*b,*b,*b]\n"), -EINVAL);
        assert_int_equal(load("store:\n  path: &a [x,x,x]\n  limit: *a\n"), -EINVAL);
        assert_one_line();
}

static const char sample[] =
        "# sample\nlisten:\n  socket: '/run/x'\n  http: 127.0.0.1:1\nstore: {path: [\"/a\\u00e4\", "
        "/b], limit: 1.5GiB}\n"
        "limits.wait: 10s\naccess:\n  users:\n    - alice\n    - 1000\nlog.level: debug\n";

static void every_cut_of_a_good_file_is_good_or_one_error(void **state)
{
        assert_int_equal(load(sample), 0);
        for (size_t n = 0; n < sizeof(sample) - 1; n++) {
                /* its own memory, so that a sanitizer sees a step over the end */
                _cleanup_(freep) char *text = malloc(n + 1);

                assert_non_null(text);
                memcpy(text, sample, n);
                if (load_bytes(text, n) < 0)
                        assert_one_line();
        }
}

static void changed_bytes_are_good_or_one_error(void **state)
{
        uint64_t random = 1;

        for (int round = 0; round < 20000; round++) {
                char text[sizeof(sample) - 1];
                unsigned changes;

                memcpy(text, sample, sizeof(text));
                random = random * 6364136223846793005u + 1442695040888963407u;
                changes = 1 + (random >> 60);
                for (unsigned i = 0; i < changes; i++) {
                        random = random * 6364136223846793005u + 1442695040888963407u;
                        text[(random >> 33) % sizeof(text)] =
                                random & 1 ? "\n\t :-[]{}\"'#&*!|>%@~?,"[(random >> 8) % 23]
                                           : (char)(random >> 16);
                }
                if (load_bytes(text, sizeof(text)) < 0)
                        assert_one_line();
        }
}

static void files_that_are_none_get_one_clear_error(void **state)
{
        char path[256], expected[640];
        _cleanup_(freep) char *large = malloc(CONFIG_MAX_FILE + 1);
        struct config_error e = {};

        assert_int_equal(config_load_file(&config, folder, &e), -EISDIR);
        snprintf(expected, sizeof(expected), "%s: is a directory; a file is wanted", folder);
        assert_string_equal(e.text, expected);

        assert_int_equal(config_load_file(&config, in_folder("none", path), &e), -ENOENT);
        snprintf(expected, sizeof(expected),
                 "%s: No such file or directory; write one, or start without --config", path);
        assert_string_equal(e.text, expected);

        assert_int_equal(config_load_file(&config, "", &e), -ENOENT);
        assert_int_equal(config_load_file(&config, "/dev/zero", &e), -EINVAL);
        assert_string_equal(e.text,
                            "/dev/zero: larger than 1024 KiB: this is not a configuration file");
        assert_int_equal(config_load_file(&config, "/dev/null", &e), 0);

        assert_non_null(large);
        memset(large, '#', CONFIG_MAX_FILE + 1);
        write_file(in_folder("large", path), large, CONFIG_MAX_FILE + 1);
        assert_int_equal(config_load_file(&config, path, &e), -EINVAL);
        write_file(path, large, CONFIG_MAX_FILE);
        assert_int_equal(config_load_file(&config, path, &e), 0);

        write_file(path, "store.limit: 1GiB\n", 18);
        assert_int_equal(chmod(path, 0), 0);
        if (geteuid() != 0)
                assert_int_equal(config_load_file(&config, path, &e), -EACCES);
        assert_int_equal(chmod(path, 0600), 0);
        assert_int_equal(config_load_file(&config, path, &e), 0);
        assert_true(config.store.limit == GIB);
}

static void pipe_is_read_to_its_end(void **state)
{
        char path[64];
        int fds[2];

        assert_int_equal(pipe(fds), 0);
        assert_int_equal(write(fds[1], "store:\n", 7), 7);
        assert_int_equal(write(fds[1], "  limit: 3GiB\n", 14), 14);
        close(fds[1]);
        snprintf(path, sizeof(path), "/dev/fd/%d", fds[0]);
        assert_int_equal(config_load_file(&config, path, &error), 0);
        assert_true(config.store.limit == 3 * GIB);
        close(fds[0]);
}

/* --- print and read back --- */

static void assert_same(const struct config *a, const struct config *b)
{
        for (unsigned i = 0; i < config_n_rows; i++) {
                _cleanup_(freep) char *ta = config_format(a, &config_rows[i]);
                _cleanup_(freep) char *tb = config_format(b, &config_rows[i]);

                assert_string_equal(ta, tb);
        }
}

static void assert_reads_back(void)
{
        _cleanup_(freep) char *text = printed(print_it);
        struct config again;

        config_init(&again);
        if (config_load_text(&again, "again", text, strlen(text), &error) < 0)
                fail_msg("%s in:\n%s", error.text, text);
        assert_same(&config, &again);
        config_fini(&again);
}

static void printed_is_read_back_the_same(void **state)
{
        static const char *const sets[] = {
                "listen.socket=/run/a \"quoted\" \\ path: #1",
                "listen.http=[::1]:80",
                "listen.mode=0007",
                "store.limit=1073741825",
                "store.segment=3MiB",
                "store.entries=4097",
                "store.prewrite=off",
                "memory.pool=8MiB",
                "memory.staging=65537",
                "io.backend=posix",
                "io.workers=64",
                "io.depth=1",
                "io.direct=off",
                "io.hang=1001ms",
                "access.users=null,yes,0,- a",
                "limits.leased_bytes=2MiB",
                "limits.wait=0",
                "limits.handshake=90s",
                "limits.http=61s",
                "log.level=error",
        };
        static char *paths[] = { (char *)"null",   (char *)"/plain",
                                 (char *)"- list", (char *)"a: b",
                                 (char *)"# c",    (char *)"'",
                                 (char *)"\"",     (char *)"\\",
                                 (char *)"{}",     (char *)"[",
                                 (char *)" ",      (char *)"*x",
                                 (char *)"!y",     (char *)"\xc3\xa4\xf0\x9f\x98\x80",
                                 (char *)"%",      (char *)"," };
        char why[CONFIG_WHY];

        assert_reads_back();
        assert_int_equal(config_assign_list_to(&config, &config_rows[config_row_find("store.path")],
                                               paths, 16, why),
                         0);
        assert_reads_back();
        for (size_t i = 0; i < ARRAY_SIZE(sets); i++) {
                int r = config_set(&config, sets[i], "--set", &error);

                if (strstr(sets[i], "- a"))
                        assert_int_equal(r, -EINVAL);
                else if (r < 0)
                        fail_msg("%s", error.text);
                assert_reads_back();
        }
        assert_int_equal(config.listen.mode, 7);
        assert_int_equal(config.io.hang_ms, 1001);
}

static void text_that_yaml_cannot_carry_is_refused(void **state)
{
        static const char *const bad[] = {
                "a\nb",
                "a\x1b",
                "\x7f",
                "\xff",
                "\xc3",
                "\xc0\x80",
                "\xe0\x80\x80",
                "\xed\xa0\x80",
                "\xef\xbb\xbf",
                "\xe2\x80\xa8",
                "\xc2\x85",
                "\xf4\x90\x80\x80",
                "\xf8\x88\x80\x80\x80",
                "\xef\xbf\xbf",
                "\xf0\x80\x80\x80",
        };

        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                char text[64];

                snprintf(text, sizeof(text), "store.path=/x%s", bad[i]);
                assert_int_equal(config_set(&config, text, "--set", &error), -EINVAL);
                assert_non_null(strstr(error.text, "is not one line of UTF-8 text"));
        }
        assert_int_equal(config_set(&config,
                                    "store.path=/x\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbd",
                                    "--set", &error),
                         0);
        assert_reads_back();
}

static void template_changes_nothing_and_shows_every_key(void **state)
{
        _cleanup_(freep) char *text = printed(config_print_template);
        struct config defaults;

        assert_int_equal(load(text), 0);
        for (unsigned i = 0; i < config_n_rows; i++)
                assert_false(config_bit(config.given, i));

        for (char *p = text; *p; p++) /* what a person does to the lines of keys */
                if (*p == '#' && p[1] != ' ' && p[1] != '\n' && strncmp(p, "#tenants:", 9) != 0)
                        *p = ' ';
        config_init(&defaults);
        if (load(text) < 0)
                fail_msg("%s", error.text);
        for (unsigned i = 0; i < config_n_rows; i++)
                assert_true(config_bit(config.given, i));
        assert_same(&config, &defaults);
        config_fini(&defaults);
}

static void shipped_file_is_the_template(void **state)
{
        _cleanup_(freep) char *text = printed(config_print_template);
        _cleanup_(freep) char *file = source_file("conf/kvcache.yaml");

        if (strcmp(text, file) != 0)
                fail_msg("conf/kvcache.yaml differs from the table: test-config --template > "
                         "conf/kvcache.yaml");
}

/* Out of troff what a reader sees: no font changes, no backslashes. */
static void strip_troff(char *text)
{
        char *to = text;

        for (const char *p = text; *p; p++) {
                if (*p == '\\' && p[1] == 'f' && p[2]) {
                        p += 2;
                        continue;
                }
                if (*p == '\\' && (p[1] == '-' || p[1] == '&' || p[1] == 'e')) {
                        p++;
                        if (*p == '-')
                                *to++ = '-';
                        else if (*p == 'e')
                                *to++ = '\\';
                        continue;
                }
                *to++ = *p == '\n' ? ' ' : *p;
        }
        *to = '\0';
}

static void manual_has_every_key_default_range_and_help(void **state)
{
        _cleanup_(freep) char *man = source_file("daemon/config/kvcache.yaml.5");

        strip_troff(man);
        for (unsigned i = 0; i < config_n_rows; i++) {
                const struct config_row *row = &config_rows[i];
                char range[96], entry[1500];

                config_format_range(row, range, sizeof(range));
                snprintf(entry, sizeof(entry), "%s = %s %s Range: %s%s.", row->name, row->initial,
                         row->help, range,
                         row->flags & CONFIG_RELOAD ? "; changes with a reload" : "");
                if (!strstr(man, entry))
                        fail_msg("daemon/config/kvcache.yaml.5 lacks \"%s\" (test-config --man "
                                 "prints the "
                                 "list)",
                                 entry);
        }
}

static void print_man_text(const char *text, FILE *out)
{
        for (; *text; text++)
                fprintf(out, *text == '-' ? "\\-" : *text == '\\' ? "\\e" : "%c", *text);
}

static void print_man(FILE *out)
{
        for (unsigned i = 0; i < config_n_rows; i++) {
                const struct config_row *row = &config_rows[i];
                char range[96];

                config_format_range(row, range, sizeof(range));
                fprintf(out, ".TP\n\\fB%s\\fR = ", row->name);
                print_man_text(row->initial, out);
                fputs("\n", out);
                print_man_text(row->help, out);
                fputs("\nRange: ", out);
                print_man_text(range, out);
                fprintf(out, "%s.\n", row->flags & CONFIG_RELOAD ? "; changes with a reload" : "");
        }
}

static void help_lists_every_key(void **state)
{
        _cleanup_(freep) char *text = printed(config_print_keys);

        for (unsigned i = 0; i < config_n_rows; i++) {
                char part[128];

                snprintf(part, sizeof(part), "  %s=%s  (", config_rows[i].name,
                         config_rows[i].initial);
                assert_non_null(strstr(text, part));
        }
        for (char *line = text, *next; *line; line = next + 1) {
                next = strchr(line, '\n');
                assert_non_null(next);
                assert_true(next - line <= 100);
        }
}

/* --- environment, --set, order --- */

static void variables_are_read_reserved_ones_left_and_unknown_ones_told(void **state)
{
        char *variables[] = {
                (char *)"PATH=/bin",
                (char *)"KVCACHE_STORE_LIMIT=2GiB",
                (char *)"KVCACHE_STORE_PATH=/a,/b",
                (char *)"KVCACHE_LIMITS_HTTP_CONNECTIONS=7",
                (char *)"KVCACHE_SOCKET=/x",
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

        assert_int_equal(config_load_environment(&config, variables, say, &error), 0);
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

        assert_int_equal(config_load_environment(&config, variables, say, &error), -EINVAL);
        assert_true(strncmp(error.text, "KVCACHE_STORE_LIMIT: store.limit: unknown unit \"G\"",
                            50) == 0);
}

static void long_variable_is_not_taken_for_another(void **state)
{
        char variable[4096] = "KVCACHE_STORE_LIMIT", *variables[] = { variable, NULL };

        memset(variable + 19, 'X', 3000);
        strcpy(variable + 3019, "=1GiB");
        assert_int_equal(config_load_environment(&config, variables, say, &error), 0);
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
                assert_int_equal(config_set(&config, bad[i].text, "--set", &error), -EINVAL);
                assert_string_equal(error.text, bad[i].error);
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
                /* No list in brackets, but paths that have some. */
                { "[/a", 1, "[/a", "[/a" },
                { "/a]", 1, "/a]", "/a]" },
                { "/[a],/b", 2, "/[a]", "/b" },
                { "[/a],/b", 2, "[/a]", "/b" },
        };
        char text[64];

        for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
                snprintf(text, sizeof(text), "store.path=%s", good[i].text);
                if (config_set(&config, text, "--set", &error) < 0)
                        fail_msg("%s", error.text);
                assert_int_equal(config.store.path.n, good[i].n);
                assert_string_equal(config.store.path.items[0], good[i].first);
                assert_string_equal(config.store.path.items[good[i].n - 1], good[i].last);
        }
        assert_int_equal(config_set(&config, "store.path=[/a,,/b]", "--set", &error), -EINVAL);
        assert_non_null(strstr(error.text, "a path cannot be empty"));
        assert_int_equal(config_set(&config, "access.users=[]", "--set", &error), 0);
        assert_int_equal(config_set(&config, "access.users=[ ]", "--set", &error), 0);
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
        assert_int_equal(config_load_all(&config, path, true, variables, sets, 2, say, &error), 0);
        assert_true(config.store.limit == GIB);
        assert_true(config.memory.pool == 2 * GIB);
        assert_true(config.memory.staging == 4 * MIB);
        assert_int_equal(n_said, 0);

        reset();
        assert_int_equal(config_load_all(&config, in_folder("none", path), true, variables, sets, 2,
                                         say, &error),
                         -ENOENT);
        reset();
        assert_int_equal(config_load_all(&config, path, false, variables, sets, 2, say, &error), 0);
        assert_true(config.memory.pool == 2 * GIB);
        reset();
        assert_int_equal(config_load_all(&config, NULL, true, variables, NULL, 0, NULL, &error), 0);
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
                assert_int_equal(config_check(&config, &error), -EINVAL);
                assert_true(strlen(error.text) > 20);
        }
        assert_int_equal(load("store.limit: 32MiB\nstore.path: [/a, /b]\n"), 0);
        assert_int_equal(config_check(&config, &error), 0);
}

/* --- what auto means --- */

static void auto_becomes_a_choice_that_is_told(void **state)
{
        static const char *const chosen[] = { "listen.socket",      "store.path",  "store.limit",
                                              "store.entries",      "memory.pool", "io.workers",
                                              "limits.leased_bytes" };
        char path[256];
        unsigned before;

        setenv("RUNTIME_DIRECTORY", in_folder("run", path), 1);
        setenv("STATE_DIRECTORY", in_folder("state/deep:/other", path), 1);
        assert_int_equal(config_resolve(&config, say, &error), 0);
        assert_string_equal(config.listen.socket, in_folder("run/kvcache.sock", path));
        assert_int_equal(config.store.path.n, 1);
        assert_string_equal(config.store.path.items[0], in_folder("state/deep", path));
        assert_true(config.store.limit >= 16 * MIB && config.store.limit <= 64 * GIB);
        assert_int_equal(config.store.limit % MIB, 0);
        assert_true(config.store.entries >= 1 << 20);
        assert_true(config.memory.pool >= 16 * MIB && config.memory.pool <= 4 * GIB);
        assert_int_equal(config.memory.pool % (2 * MIB), 0);
        assert_in_range(config.io.workers, 1, 4);
        assert_int_equal(config.limits.leased_bytes, config.memory.pool / 4);
        assert_int_equal(n_said, ARRAY_SIZE(chosen));
        for (size_t i = 0; i < ARRAY_SIZE(chosen); i++) {
                char part[64];

                snprintf(part, sizeof(part), "%s is ", chosen[i]);
                assert_int_equal(strncmp(said[i], part, strlen(part)), 0);
                assert_false(config_given(&config, chosen[i]));
        }
        assert_true(was_said("iB of memory"));
        assert_reads_back();

        before = n_said; /* once is enough */
        assert_int_equal(config_resolve(&config, say, &error), 0);
        assert_int_equal(n_said, before);
        unsetenv("RUNTIME_DIRECTORY");
        unsetenv("STATE_DIRECTORY");
}

static void what_was_given_is_left_alone(void **state)
{
        char path[256], set[320];

        snprintf(set, sizeof(set), "store.path=%s", in_folder("s", path));
        assert_int_equal(config_set(&config, set, "--set", &error), 0);
        assert_int_equal(load("listen.socket: /run/x\nstore: {limit: 1PiB, entries: "
                              "5000}\nmemory.pool: 8MiB\n"
                              "io.workers: 9\nlimits.leased_bytes: 1MiB\n"),
                         0);
        assert_int_equal(config_set(&config, set, "--set", &error), 0);
        assert_int_equal(config_resolve(&config, say, &error), 0);
        assert_string_equal(config.listen.socket, "/run/x");
        assert_true(config.store.limit == PIB);
        assert_int_equal(config.store.entries, 5000);
        assert_int_equal(config.memory.pool, 8 * MIB);
        assert_int_equal(config.io.workers, 9);
        assert_int_equal(n_said, 1); /* but a petabyte is not there */
        assert_true(was_said("store.limit is 1 PiB, but only "));
}

static char first_noted[sizeof(error.text)];

static void note(void *userdata, const char *text)
{
        if (++*(unsigned *)userdata == 1)
                snprintf(first_noted, sizeof(first_noted), "%s", text);
}

/* Whatever is wrong where: reading on behind errors ends, finds one where reading that stops at it
 * does, and the same first. */
static void all_errors_are_noted_whatever_is_wrong(void **state)
{
        static const char right[] =
                "store:\n  limit: 1GiB\n  path: [/a, /b]\n  prewrite: off\nmemory.pool: 64MiB\n"
                "access:\n  users: [root, 12]\n  groups:\n  - root\n"
                "tenants:\n- name: a\n  users: [root]\n  pool: 16MiB\n- {name: b, groups: root}\n"
                "log: {level: info}\nio:\n  depth: 4\n";
        static const char put_in[] = "x[]{}:,&*- \n\"!|#0";
        char alone[sizeof(error.text)];
        unsigned more_than_one = 0;

        for (size_t at = 0; at < sizeof(right) - 1; at++)
                for (size_t k = 0; k < sizeof(put_in); k++) {
                        struct config_error all = { .each = note };
                        char text[sizeof(right) + 1];
                        unsigned noted = 0;
                        size_t n;

                        /* In its place, or, at the last, nothing. */
                        n = (size_t)snprintf(text, sizeof(text), "%.*s%.*s%s", (int)at, right,
                                             put_in[k] != '\0', &put_in[k], right + at + 1);
                        (void)load(text);
                        memcpy(alone, error.text, sizeof(alone));
                        reset();
                        all.userdata = &noted;
                        (void)config_load_text(&config, "t", text, n, &all);
                        assert_int_equal(all.n, noted);
                        assert_int_equal(noted > 0, alone[0] != '\0');
                        if (noted > 0)
                                assert_string_equal(first_noted, alone);
                        more_than_one += noted > 1;
                }
        assert_true(more_than_one > 50);
}

static void folders_that_cannot_be_are_refused(void **state)
{
        char path[256], set[320], file[256];

        write_file(in_folder("file", file), "x", 1);
        snprintf(set, sizeof(set), "store.path=%s", in_folder("file", path));
        assert_int_equal(config_set(&config, set, "--set", &error), 0);
        assert_int_equal(config_resolve(&config, say, &error), -ENOTDIR);
        snprintf(set, sizeof(set), "store.path=%s", in_folder("file/below", path));
        assert_int_equal(config_set(&config, set, "--set", &error), 0);
        assert_int_equal(config_resolve(&config, say, &error), -ENOTDIR);
        assert_true(strncmp(error.text, "store.path: /tmp/", 17) == 0);
}

static void own_files_count_as_free_space(void **state)
{
        uint64_t full, empty, device_full, device_empty;
        char path[256], file[300];
        _cleanup_(closep) int fd = -1;

        assert_int_equal(mkdir(in_folder("full", path), 0700), 0);
        snprintf(file, sizeof(file), "%s/segment-0000", path);
        fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
        if (posix_fallocate(fd, 0, 64 << 20) != 0)
                skip();
        assert_int_equal(config_available_space(path, &full, &device_full), 0);
        assert_int_equal(
                config_available_space(in_folder("none/../none", path), &empty, &device_empty), 0);
        assert_int_equal(device_full, device_empty);
        assert_true(full > empty + (32 << 20)); /* others may use the disk meanwhile */
}

static void make_memory(const char *cgroup, const char *group, const char *file, const char *limit)
{
        static const char meminfo[] =
                "MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n";
        char path[512];

        snprintf(path, sizeof(path), "%s/proc", folder);
        mkdir(path, 0700);
        snprintf(path, sizeof(path), "%s/proc/self", folder);
        mkdir(path, 0700);
        snprintf(path, sizeof(path), "%s/proc/meminfo", folder);
        write_file(path, meminfo, strlen(meminfo));
        snprintf(path, sizeof(path), "%s/proc/self/cgroup", folder);
        write_file(path, cgroup, strlen(cgroup));
        if (!file)
                return;
        snprintf(path, sizeof(path), "%s/sys/fs/cgroup%s", folder, group);
        for (char *p = path + strlen(folder) + 1;; p++)
                if (*p == '/' || *p == '\0') {
                        char was = *p;

                        *p = '\0';
                        mkdir(path, 0700);
                        *p = was;
                        if (was == '\0')
                                break;
                }
        snprintf(path, sizeof(path), "%s/sys/fs/cgroup%s/%s", folder, group, file);
        write_file(path, limit, strlen(limit));
}

static void assert_memory(uint64_t expected, bool expected_limited)
{
        bool limited;

        assert_int_equal(config_available_memory(folder, &limited), expected);
        assert_int_equal(limited, expected_limited);
}

static void memory_is_what_the_strictest_says(void **state)
{
        make_memory("0::/\n", NULL, NULL, NULL);
        assert_memory(8 * GIB, false);
        make_memory("0::/a/b\n", "/a/b", "memory.max", "max\n");
        assert_memory(8 * GIB, false);
        make_memory("0::/a/b\n", "/a", "memory.max", "1073741824\n"); /* above the own group */
        assert_memory(GIB, true);
        make_memory("0::/a/b\n", "/a/b", "memory.max", "536870912\n");
        assert_memory(512 * MIB, true);
        make_memory("0::/a/b\n", "/a/b", "memory.max", "17179869184\n"); /* more than there is */
        assert_memory(GIB, true);
        make_memory("0::/../../x\n", "", "memory.max", "268435456\n"); /* outside the namespace */
        assert_memory(256 * MIB, true);
        make_memory("nonsense\n:::\n::\n12\n0::\n0:memory\n5:cpu,memory:\n", NULL, NULL, NULL);
        assert_memory(8 * GIB, false);
        make_memory("12:cpu,cpuacct:/x\n7:memory:/docker/1\n", "/memory/docker/1",
                    "memory.limit_in_bytes", "134217728\n");
        assert_memory(128 * MIB, true);
        make_memory("7:memory:/elsewhere\n", "/memory", "memory.limit_in_bytes",
                    "9223372036854771712\n");
        assert_memory(8 * GIB, false);
        make_memory("7:memory:/elsewhere\n", "/memory", "memory.limit_in_bytes", "garbage\n");
        assert_memory(8 * GIB, false);
}

/* --- reload --- */

static void reload_takes_what_may_change_and_tells_the_rest(void **state)
{
        struct config next;
        char path[256];

        setenv("STATE_DIRECTORY", folder, 1);
        setenv("RUNTIME_DIRECTORY", in_folder("run", path), 1);
        assert_int_equal(config_resolve(&config, NULL, &error), 0);
        unsetenv("STATE_DIRECTORY");
        unsetenv("RUNTIME_DIRECTORY");

        config_init(&next); /* auto again: no change */
        assert_int_equal(config_reload(&config, &next, say), 0);
        assert_int_equal(n_said, 0);

        assert_int_equal(config_set(&next, "limits.wait=9s", "--set", &error), 0);
        assert_int_equal(config_set(&next, "log.level=debug", "--set", &error), 0);
        assert_int_equal(config_set(&next, "limits.leased_bytes=2MiB", "--set", &error), 0);
        assert_int_equal(config_set(&next, "store.limit=32MiB", "--set", &error), 0);
        assert_int_equal(config_set(&next, "access.users=alice", "--set", &error), 0);
        assert_int_equal(config_reload(&config, &next, say), 3);
        assert_int_equal(config.limits.wait_ms, 9000);
        assert_string_equal(config.log.level, "debug");
        assert_int_equal(config.limits.leased_bytes, 2 * MIB);
        assert_true(config.store.limit != 32 * MIB || config.access.users.n == 0);
        assert_int_equal(config.access.users.n, 0);
        assert_true(was_said("limits.wait: 5s is now 9s"));
        assert_true(was_said("becomes 32MiB only at the next start"));
        assert_true(was_said("access.users: [] becomes [alice] only at the next start"));
        assert_true(config_given(&config, "limits.wait"));
        config_fini(&next);

        n_said = 0;
        config_init(&next); /* more than the pool that runs */
        assert_int_equal(config_set(&next, "limits.leased_bytes=16TiB", "--set", &error), 0);
        assert_int_equal(config_reload(&config, &next, say), 2);
        assert_true(was_said("limits.leased_bytes stays 2MiB: 16TiB is more than the pool"));
        assert_int_equal(config.limits.leased_bytes, 2 * MIB);
        config_fini(&next);
        assert_int_equal(config_set(&config, "limits.wait=9s", "--set", &error), 0);
        assert_int_equal(config_set(&config, "log.level=debug", "--set", &error), 0);

        n_said = 0;
        config_init(&next); /* all of it taken back */
        assert_int_equal(config_reload(&config, &next, say), 3);
        assert_int_equal(config.limits.leased_bytes, config.memory.pool / 4);
        assert_int_equal(config.limits.wait_ms, 5000);
        assert_false(config_given(&config, "limits.wait"));
        assert_int_equal(config_reload(&config, &next, say), 0);
        assert_int_equal(n_said, 3);
        config_fini(&next);
}

int main(int argc, char **argv)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)
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
                CASE(errors_name_place_fault_and_remedy),
                CASE(what_yaml_has_beyond_keys_and_values_is_refused),
                CASE(bytes_that_are_not_text_are_refused),
                CASE(deep_long_and_large_ones_are_refused_with_one_line),
                CASE(laughs_are_not_counted),
                CASE(every_cut_of_a_good_file_is_good_or_one_error),
                CASE(changed_bytes_are_good_or_one_error),
                CASE(files_that_are_none_get_one_clear_error),
                CASE(pipe_is_read_to_its_end),
                CASE(printed_is_read_back_the_same),
                CASE(text_that_yaml_cannot_carry_is_refused),
                CASE(template_changes_nothing_and_shows_every_key),
                CASE(shipped_file_is_the_template),
                CASE(manual_has_every_key_default_range_and_help),
                CASE(help_lists_every_key),
                CASE(variables_are_read_reserved_ones_left_and_unknown_ones_told),
                CASE(bad_variable_is_an_error_that_names_it),
                CASE(long_variable_is_not_taken_for_another),
                CASE(bad_assignment_is_an_error_that_shows_it),
                CASE(a_list_on_the_command_line_may_have_brackets),
                CASE(later_sources_win),
                CASE(keys_that_contradict_each_other_are_refused),
                CASE(auto_becomes_a_choice_that_is_told),
                CASE(what_was_given_is_left_alone),
                CASE(folders_that_cannot_be_are_refused),
                CASE(all_errors_are_noted_whatever_is_wrong),
                CASE(own_files_count_as_free_space),
                CASE(memory_is_what_the_strictest_says),
                CASE(reload_takes_what_may_change_and_tells_the_rest),
        };

        if (argc == 2 && strcmp(argv[1], "--template") == 0) {
                config_print_template(stdout);
                return 0;
        }
        if (argc == 2 && strcmp(argv[1], "--man") == 0) {
                print_man(stdout);
                return 0;
        }
        return cmocka_run_group_tests(tests, NULL, NULL);
}
