/* SPDX-License-Identifier: Apache-2.0 */
/* config/: printed configurations are read back unchanged; the template, the manual and --help have
 * every key. --template prints the contents of conf/kvcache.yaml, --man the list of
 * kvcache.yaml(5). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "cleanup.h"
#include "config-fixture.h"

static void printed_is_read_back_the_same(void **state)
{
        static const char *const sets[] = {
                "listen.socket=/run/a \"quoted\" \\ path: #1",
                "listen.http=[::1]:80",
                "http.allow_remote=true",
                "http.token_file=/run/a \"quoted\" \\ path: #1",
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
                int r = config_set(&config, sets[i], "--set", &fault);

                if (strstr(sets[i], "- a"))
                        assert_int_equal(r, -EINVAL);
                else if (r < 0)
                        fail_msg("%s", fault.text);
                assert_reads_back();
        }
        assert_int_equal(config.listen.mode, 7);
        assert_int_equal(config.io.hang_ms, 1001);
}

/* A YAML tool that reads and writes the printed configuration must not change a text. */
static void text_that_yaml_tools_rewrite_is_quoted(void **state)
{
        static const struct {
                const char *text;
                bool is_quoted;
        } buckets[] = {
                { "010", true },  { "1e3", true },  { "1_000", true }, { "0x10", true },
                { "1.0", true },  { "no", true },   { "Yes", true },   { "TRUE", true },
                { "y", true },    { "NULL", true }, { "1000", false }, { "node", false },
                { "7th", false }, { "off", false },
        };

        for (size_t i = 0; i < ARRAY_SIZE(buckets); i++) {
                char set[64], line[64];
                _cleanup_(freep) char *text = NULL;

                snprintf(set, sizeof(set), "remote.bucket=%s", buckets[i].text);
                assert_int_equal(config_set(&config, set, "--set", &fault), 0);
                text = printed(print_it);
                snprintf(line, sizeof(line),
                         buckets[i].is_quoted ? " bucket: \"%s\"" : " bucket: %s", buckets[i].text);
                if (!strstr(text, line))
                        fail_msg("%s is not printed as%s", buckets[i].text, line);
                assert_reads_back();
        }
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
                assert_int_equal(config_set(&config, text, "--set", &fault), -EINVAL);
                assert_non_null(strstr(fault.text, "is not one line of UTF-8 text"));
        }
        assert_int_equal(config_set(&config,
                                    "store.path=/x\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbd",
                                    "--set", &fault),
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

        for (char *p = text; *p; p++) /* uncomments the lines of keys */
                if (*p == '#' && p[1] != ' ' && p[1] != '\n' && strncmp(p, "#tenants:", 9) != 0)
                        *p = ' ';
        config_init(&defaults);
        if (load(text) < 0)
                fail_msg("%s", fault.text);
        for (unsigned i = 0; i < config_n_rows; i++)
                assert_true(config_bit(config.given, i));
        assert_same(&config, &defaults);
        config_fini(&defaults);
}

/* Reads a file of the source tree, relative to this one. */
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

static void shipped_file_is_the_template(void **state)
{
        _cleanup_(freep) char *text = printed(config_print_template);
        _cleanup_(freep) char *file = source_file("conf/kvcache.yaml");

        if (strcmp(text, file) != 0)
                fail_msg("conf/kvcache.yaml differs from the table: test-config-print --template > "
                         "conf/kvcache.yaml");
}

/* Converts troff to plain text: removes font changes and backslashes. */
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
                        fail_msg("daemon/config/kvcache.yaml.5 lacks \"%s\" (test-config-print "
                                 "--man "
                                 "prints the "
                                 "list)",
                                 entry);
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

int main(int argc, char **argv)
{
        const struct CMUnitTest tests[] = {
                CASE(printed_is_read_back_the_same),
                CASE(text_that_yaml_tools_rewrite_is_quoted),
                CASE(text_that_yaml_cannot_carry_is_refused),
                CASE(template_changes_nothing_and_shows_every_key),
                CASE(shipped_file_is_the_template),
                CASE(manual_has_every_key_default_range_and_help),
                CASE(help_lists_every_key),
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
