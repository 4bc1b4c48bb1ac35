/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl namespace, and ls --namespaces: lists, one namespace, the difference of two,
 * lifetimes and removals. */
#include <errno.h>

#include "ctl-fixture.h"

#define SEE     "See: kvcachectl namespace --help\n"
#define NO_USER 4000000000u /* no user has this id */

static const struct kvcache_namespace_info two[] = {
        { .name = "small",
          .tenant = "default",
          .owner = UINT32_MAX,
          .chunks = 1,
          .stored_bytes = 1024,
          .created_ms = FAKE_CREATED_MS },
        { .name = "large",
          .tenant = "default",
          .owner = NO_USER,
          .sessions = 3,
          .chunks = 1234,
          .stored_bytes = 5 << 20,
          .chunk_bytes = 4096,
          .created_ms = FAKE_CREATED_MS,
          .last_used_ms = FAKE_CREATED_MS + 61000,
          .fingerprint_crc32c = 0xabcd,
          .may_remove = 1,
          .lifetime_s = 3600 },
};

static void have(const struct kvcache_namespace_info *list, size_t n)
{
        fake.namespaces = list;
        fake.n_namespaces = n;
}

/* --- ls --- */

static void ls_lists_the_largest_namespace_first(void **state)
{
        static const char table[] = "namespace  chunks  bytes  chunk size  owner       sessions  "
                                    "lifetime  made                 last used\n"
                                    "large       1,234  5 MiB       4 KiB  4000000000         3    "
                                    "   1 h  2023-11-14 22:13:20  now\n"
                                    "small           1  1 KiB           -  -                  0    "
                                    "     -  2023-11-14 22:13:20  -\n";

        have(two, 2);
        ctl_expect(EXIT_OK, table, "", "namespace", "ls");
        assert_string_equal(fake.tenant, "");
        assert_int_equal(fake.request_timeout_ms, LONG_CALL_MS);
        ctl_expect(EXIT_OK, table, "", "namespace");
        ctl_expect(EXIT_OK, table, "", "ls", "--namespaces");
}

static void ls_in_json_has_every_member(void **state)
{
        have(two, 2);
        ctl_expect(EXIT_OK,
                   "{\"namespaces\":[{\"name\":\"large\",\"tenant\":\"default\",\"chunks\":1234,"
                   "\"bytes\":5242880,"
                   "\"chunk_bytes\":4096,\"owner\":4000000000,\"sessions\":3,\"created_unix_ms\":"
                   "1700000000000,"
                   "\"last_used_unix_ms\":1700000061000,\"fingerprint_crc32c\":43981,\"may_"
                   "remove\":true,"
                   "\"lifetime_s\":3600}],\"count\":2}\n",
                   "", "namespace", "ls", "--json", "--limit=1");
        have(two, 1);
        assert_int_equal(ctl("namespace", "-j"), EXIT_OK);
        has(ctl_out, "\"owner\":null,");
        has(ctl_out, "\"may_remove\":false,\"lifetime_s\":0}],\"count\":1}\n");
        have(NULL, 0);
        ctl_expect(EXIT_OK, "{\"namespaces\":[],\"count\":0}\n", "", "namespace", "ls", "-j");
}

static void ls_takes_all_pages_and_stops_at_its_limit(void **state)
{
        static struct kvcache_namespace_info many[300];

        for (unsigned i = 0; i < ARRAY_SIZE(many); i++) {
                snprintf(many[i].name, sizeof(many[i].name), "n%03u", i);
                strcpy(many[i].tenant, "default");
                many[i].stored_bytes = i / 2; /* two of each size: in the order of their names */
        }
        have(many, ARRAY_SIZE(many));
        ctl_expect(EXIT_OK, NULL, "", "namespace", "ls", "--limit", "3", "--tenant=t");
        assert_int_equal(fake.made[FAKE_NAMESPACE_LIST], 3);
        assert_string_equal(fake.tenant, "t");
        has(ctl_out, "\nn298 ");
        assert_true(strstr(ctl_out, "\nn298 ") < strstr(ctl_out, "\nn299 "));
        has(ctl_out, "\nn296 ");
        lacks(ctl_out, "\nn297 ");
        has(ctl_out, "\n... and 297 more\n");
        assert_int_equal(ctl("namespace", "ls"), EXIT_OK);
        has(ctl_out, "\nn001 ");
        lacks(ctl_out, "more");
        fake.scripts[FAKE_NAMESPACE_LIST] = (struct fake_script){ -ECONNRESET, "cut", .after = 7 };
        ctl_expect(EXIT_UNREACHABLE, "", "kvcachectl: namespace ls: the daemon went away: cut\n",
                   "namespace", "ls");
        fake.scripts[FAKE_NAMESPACE_LIST] = (struct fake_script){ -EOPNOTSUPP, "too old" };
        ctl_expect(EXIT_REFUSED, "", "kvcachectl: ls: too old\n", "ls", "--namespaces");
}

static void ls_of_several_tenants_names_them_and_is_safe_for_a_terminal(void **state)
{
        static const struct kvcache_namespace_info list[] = {
                { .name = "a\033]0;x", .tenant = "one", .stored_bytes = 2 },
                { .name = "b", .tenant = "two", .stored_bytes = 1 },
        };

        have(list, 2);
        assert_int_equal(ctl("namespace", "ls"), EXIT_OK);
        has(ctl_out, "\none:a?]0;x ");
        has(ctl_out, "\ntwo:b ");
}

/* --- stat --- */

static void stat_shows_one_namespace_with_its_fingerprint(void **state)
{
        have(two, 2);
        fake_admin.fingerprint = "dtype=fp8\nmodel=m\033[2J\n";
        ctl_expect(EXIT_OK,
                   "namespace     large\n"
                   "tenant        default\n"
                   "chunks        1,234\n"
                   "bytes         5 MiB\n"
                   "chunk size    4 KiB\n"
                   "owner         4000000000\n"
                   "sessions      3\n"
                   "made          2023-11-14 22:13:20\n"
                   "last used     now\n"
                   "lifetime      1 h\n"
                   "fingerprint   0000abcd\n"
                   "              dtype=fp8\n"
                   "              model=m?[2J\n",
                   "", "namespace", "stat", "large", "--tenant", "t");
        assert_string_equal(fake_admin.name, "large");
        assert_string_equal(fake.tenant, "t");
        assert_int_equal(ctl("namespace", "stat", "large", "-j"), EXIT_OK);
        has(ctl_out, "\"lifetime_s\":3600,\"fingerprint\":\"dtype=fp8\\nmodel=m\\u001b[2J\\n\"}\n");
}

static void stat_says_what_is_not_known(void **state)
{
        have(two, 2);
        ctl_expect(EXIT_OK,
                   "namespace     small\n"
                   "tenant        default\n"
                   "chunks        1\n"
                   "bytes         1 KiB\n"
                   "chunk size    not declared\n"
                   "owner         not known: an admin may remove it\n"
                   "sessions      0\n"
                   "made          2023-11-14 22:13:20\n"
                   "last used     not since the daemon started\n"
                   "lifetime      no end\n"
                   "fingerprint   empty\n",
                   "", "namespace", "stat", "small");
}

static void stat_shows_the_name_of_the_owner(void **state)
{
        struct kvcache_namespace_info root = { .name = "r",
                                               .tenant = "default",
                                               .last_used_ms = FAKE_CREATED_MS };

        have(&root, 1);
        assert_int_equal(ctl("namespace", "stat", "r"), EXIT_OK);
        has(ctl_out, "\nowner         root\n");
        has(ctl_out, "\nlast used     2023-11-14 22:13:20\n");
}

#define FIGURES                                                                                    \
        "namespace     large\n"                                                                    \
        "tenant        default\n"                                                                  \
        "chunks        1,234\n"                                                                    \
        "bytes         5 MiB\n"                                                                    \
        "chunk size    4 KiB\n"                                                                    \
        "owner         4000000000\n"                                                               \
        "sessions      3\n"                                                                        \
        "made          2023-11-14 22:13:20\n"                                                      \
        "last used     now\n"                                                                      \
        "lifetime      1 h\n"

static const char sampled[] =
        "{\"namespaces\":[{\"name\":\"large\",\"tenant\":\"other\",\"samples\":{},\"evicted_next\":"
        "{}},"
        "{\"name\":\"large\",\"tenant\":\"default\",\"samples\":{\"age_seconds\":[75,61,14,1],"
        "\"seconds\":[15,15,15,15],\"chunks\":[9,10,11,12],\"bytes\":[1024,2048,3072,4096],"
        "\"lookup_keys\":[0,0,10,30],\"lookup_found_keys\":[0,0,5,25],\"get_keys\":[4,4,100,0],"
        "\"get_found_keys\":[1,1,0,0]},\"evicted_next\":{\"of\":1024,\"chunks\":700,\"bytes\":"
        "2867200,"
        "\"first\":[{\"key\":\"00ff\\u001b\",\"place\":3,\"bytes\":4096,\"age_seconds\":3700,"
        "\"chance\":0.125},{\"key\":\"01\",\"place\":1000,\"bytes\":4096,\"age_seconds\":1,"
        "\"chance\":0}]}}],\"sample_seconds\":15}";

static void show_prints_minutes_and_the_next_to_be_evicted(void **state)
{
        have(two, 2);
        fake.namespace_report = sampled;
        ctl_expect(EXIT_OK,
                   FIGURES "\n"
                           "minutes ago  hit ratio  looked up  got  chunks  bytes\n"
                           "          1     25.0 %          0    8      10  2 KiB\n"
                           "          0     75.0 %         40  100      12  4 KiB\n"
                           "\n"
                           "evicted next: 700 of the 1,024 chunks that leave the disk first, 2.73 "
                           "MiB\n"
                           "place   size  unused for   reuse  key\n"
                           "    3  4 KiB   1 h 1 min  12.5 %  00ff?\n"
                           "1,000  4 KiB       1.0 s       -  01\n",
                   "", "namespace", "show", "large");
        assert_int_equal(ctl("namespace", "show", "large", "-j"), EXIT_OK);
        has(ctl_out, "\"lifetime_s\":3600,\"samples\":{\"age_seconds\":[75,61,14,1]");
        has(ctl_out, "\"evicted_next\":{\"of\":1024,");
}

static void show_without_samples_says_why(void **state)
{
        static const char *const reports[] = {
                "{}",
                "{\"namespaces\":[]}",
                "{\"namespaces\":[1,null,{},{\"name\":\"large\"}]}",
                "no JSON",
        };

        have(two, 2);
        for (size_t i = 0; i < ARRAY_SIZE(reports); i++) {
                fake.namespace_report = reports[i];
                ctl_expect(EXIT_OK,
                           FIGURES
                           "\nThere are no samples yet: ask again in 15 seconds. The daemon "
                           "takes them of the 20 largest namespaces, and of those whose page "
                           "was opened last.\n",
                           "", "namespace", "show", "large");
        }
        fake.namespace_report = "{\"namespaces\":[{\"name\":\"x\"}],\"left_out\":2}";
        ctl_expect(EXIT_OK,
                   FIGURES "\nThe report of the daemon is full and leaves out the samples of the 2 "
                           "smallest namespaces. This may be one of them.\n",
                   "", "namespace", "show", "large");
        fake.namespace_report = "{\"namespaces\":[{\"name\":\"large\",\"tenant\":\"default\"}]}";
        ctl_expect(EXIT_OK,
                   FIGURES "\nThe first sample is not complete yet: ask again in 15 seconds.\n"
                           "\nevicted next: 0 of the 0 chunks that leave the disk first, 0 B\n",
                   "", "namespace", "show", "large");
}

static void show_survives_a_report_of_nonsense(void **state)
{
        have(two, 2);
        fake.namespace_report =
                "{\"namespaces\":[{\"name\":\"large\",\"tenant\":\"default\",\"samples\":{\"age_"
                "seconds\":"
                "[-5,1e300,\"x\",null,899.999],\"chunks\":[1e300],\"lookup_keys\":{\"a\":1},"
                "\"lookup_found_keys\":[7]},\"evicted_next\":{\"of\":-1,\"chunks\":1e300,\"bytes\":"
                "\"\","
                "\"first\":[1,{},{\"key\":5,\"chance\":1e300,\"age_seconds\":1e300}]}}]}";
        assert_int_equal(ctl("namespace", "show", "large"), EXIT_OK);
        has(ctl_out, "minutes ago");
        has(ctl_out, "evicted next: ");
        fake.scripts[FAKE_REPORT_NAMESPACES].result = -EOPNOTSUPP;
        assert_int_equal(ctl("namespace", "show", "large"), EXIT_REFUSED);
}

static void missing_namespace_exits_with_1_and_is_named(void **state)
{
        static const char *const actions[] = { "stat", "rm", "lifetime", "show" };

        for (size_t i = 0; i < ARRAY_SIZE(actions); i++) {
                char err[128];

                fake.scripts[FAKE_NAMESPACE_REMOVE].result =
                        fake.scripts[FAKE_NAMESPACE_LIFETIME].result = -ENOENT;
                snprintf(err, sizeof(err),
                         "kvcachectl: namespace %s: there is no namespace 'gone'\n", actions[i]);
                ctl_expect(EXIT_NOT_FOUND, "", err, "namespace", actions[i], "gone",
                           i == 2 ? "1h" : NULL);
        }
}

/* --- diff --- */

static void have_fingerprints(const char *const *fingerprints)
{
        have(two, 2); /* "small" has the first one, "large" the second */
        fake_admin.fingerprints = fingerprints;
}

static void diff_prints_a_line_for_each_field_that_differs(void **state)
{
        static const struct {
                const char *fingerprints[2], *printed;
        } cases[] = {
                { { "dtype=bf16\nmodel=m\ntp=1\n", "dtype=fp8\nmodel=m\ntp=2\n" },
                  "dtype: bf16 | fp8\ntp: 1 | 2\n" },
                { { "a=1\nb=2\nd=4\n", "b=2\nc=3\n" },
                  "a: 1, only in small\nc: 3, only in large\nd: 4, only in small\n" },
                { { "b=2\n", "a=1\nb=2\nc=3\n" }, "a: 1, only in large\nc: 3, only in large\n" },
                { { "", "a=1\n" }, "a: 1, only in large\n" },
                { { "a=1\n", "" }, "a: 1, only in small\n" },
                { { "a=\n", "b=\n" }, "a: , only in small\nb: , only in large\n" },
                { { "a=\n", "a=x=y\n" }, "a:  | x=y\n" },
                { { "a=1\nab=1\n", "a=1\nabc=1\n" },
                  "ab: 1, only in small\nabc: 1, only in large\n" },
                { { "a=\033[2J\n", "a=x\n" }, "a: ?[2J | x\n" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                have_fingerprints(cases[i].fingerprints);
                ctl_expect(1, cases[i].printed, "", "namespace", "diff", "small", "large",
                           "--tenant=t");
        }
        assert_string_equal(fake.tenant, "t");
}

static void diff_of_equal_fingerprints_prints_nothing_and_exits_with_0(void **state)
{
        static const char *const equal[][2] = { { "", "" }, { "a=1\nb=\n", "a=1\nb=\n" } };

        for (size_t i = 0; i < ARRAY_SIZE(equal); i++) {
                have_fingerprints(equal[i]);
                ctl_expect(EXIT_OK, "", "", "namespace", "diff", "small", "large");
                ctl_expect(EXIT_OK, "", "", "namespace", "diff", "small", "small");
                ctl_expect(EXIT_OK, "{\"a\":\"small\",\"b\":\"large\",\"fields\":[]}\n", "",
                           "namespace", "diff", "small", "large", "-j");
        }
}

static void diff_in_json_has_null_for_a_missing_field(void **state)
{
        static const char *const fingerprints[] = { "a=1\nb=2\n", "b=\"\nc=3\n" };

        have_fingerprints(fingerprints);
        ctl_expect(1,
                   "{\"a\":\"small\",\"b\":\"large\",\"fields\":["
                   "{\"field\":\"a\",\"a\":\"1\",\"b\":null},"
                   "{\"field\":\"b\",\"a\":\"2\",\"b\":\"\\\"\"},"
                   "{\"field\":\"c\",\"a\":null,\"b\":\"3\"}]}\n",
                   "", "namespace", "diff", "small", "large", "--json");
}

static void diff_never_exits_with_1_after_an_error(void **state)
{
        have(two, 2);
        ctl_expect(EXIT_REFUSED, "", "kvcachectl: namespace diff: there is no namespace 'gone'\n",
                   "namespace", "diff", "gone", "small");
        ctl_expect(EXIT_REFUSED, "", "kvcachectl: namespace diff: there is no namespace 'gone'\n",
                   "namespace", "diff", "small", "gone");
        fake.scripts[FAKE_NAMESPACE_STAT] = (struct fake_script){ -ECONNRESET, "cut", .after = 1 };
        ctl_expect(EXIT_UNREACHABLE, "", "kvcachectl: namespace diff: the daemon went away: cut\n",
                   "namespace", "diff", "small", "large");
}

/* --- lifetime --- */

static void lifetime_takes_units_and_prints_the_result(void **state)
{
        static const struct {
                const char *text, *printed;
                uint32_t seconds;
        } cases[] = {
                { "90s", "1 min 30 s", 90 },       { "90", "1 min 30 s", 90 },
                { "30m", "30 min", 1800 },         { "12h", "12 h", 43200 },
                { "1.5d", "1 d 12 h", 36 * 3600 }, { "1", "1.0 s", 1 },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                char expected[64];

                have(two, 2);
                snprintf(expected, sizeof(expected), "large: lifetime %s\n", cases[i].printed);
                ctl_expect(EXIT_OK, expected, "", "namespace", "lifetime", "large", cases[i].text);
                assert_int_equal(fake_admin.lifetime_s, cases[i].seconds);
        }
        ctl_expect(EXIT_OK, "small: lifetime no end\n", "", "namespace", "lifetime", "small",
                   "none");
        assert_int_equal(fake_admin.lifetime_s, 0);
        ctl_expect(EXIT_OK, "{\"name\":\"large\",\"lifetime_s\":60}\n", "", "namespace", "lifetime",
                   "large", "1m", "-j");
}

static void lifetime_that_is_no_time_is_refused(void **state)
{
        static const char *const bad[] = { "0",  "0.5s", "",     "h",          "-1",
                                           "1w", "inf",  "0x10", "4294967296", "never" };

        have(two, 2);
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                char err[256];

                snprintf(err, sizeof(err),
                         "kvcachectl: 'namespace lifetime': '%s' is neither a time from 1s to "
                         "4294967295s, such as 90s, 30m, 12h or 7d, nor 'none'\n" SEE,
                         bad[i]);
                ctl_expect(EXIT_WRONG_USAGE, "", err, "namespace", "lifetime", "large", "--",
                           bad[i]);
        }
        assert_int_equal(fake.made[FAKE_CONNECT], 0);
}

/* --- rm --- */

static void rm_removes_and_purges_only_when_asked(void **state)
{
        ctl_expect(EXIT_OK, "ns: removed\n", "", "namespace", "rm", "ns");
        assert_string_equal(fake_admin.name, "ns");
        assert_int_equal(fake_admin.remove_flags, 0);
        fake_admin.dropped = 1;
        ctl_expect(EXIT_OK, "ns: removed, with 1 chunk\n", "", "namespace", "rm", "ns", "--purge");
        assert_int_equal(fake_admin.remove_flags, KVCACHE_PURGE);
        fake_admin.dropped = 2000;
        ctl_expect(EXIT_OK, "ns: removed, with 2,000 chunks\n", "", "namespace", "--purge", "rm",
                   "ns");
        ctl_expect(EXIT_OK, "{\"removed\":\"ns\",\"dropped\":2000}\n", "", "namespace", "rm", "ns",
                   "-j", "--tenant=t");
        assert_string_equal(fake.tenant, "t");
}

static void rm_reports_refusals_in_the_words_of_the_library(void **state)
{
        fake.scripts[FAKE_NAMESPACE_REMOVE] =
                (struct fake_script){ -ENOTEMPTY, "it holds 3 chunks" };
        ctl_expect(EXIT_REFUSED, "", "kvcachectl: namespace rm: it holds 3 chunks\n", "namespace",
                   "rm", "ns");
        fake.scripts[FAKE_NAMESPACE_REMOVE] = (struct fake_script){ -EACCES, NULL };
        ctl_expect(EXIT_REFUSED, "", "kvcachectl: namespace rm: Permission denied\n", "namespace",
                   "rm", "ns");
        fake.scripts[FAKE_CONNECT] = (struct fake_script){ -ECONNREFUSED, "no daemon at /x" };
        assert_int_equal(ctl("namespace", "rm", "ns"), EXIT_UNREACHABLE);
        has(ctl_err, "kvcachectl: no daemon at /x\nStart it (systemctl start kvcache, or "
                     "kvcache-daemon), or name");
}

static void namespace_explains_wrong_usage(void **state)
{
        ctl_expect(EXIT_WRONG_USAGE, "", "kvcachectl: 'namespace stat' needs one namespace\n" SEE,
                   "namespace", "stat");
        ctl_expect(EXIT_WRONG_USAGE, "", "kvcachectl: 'namespace rm' needs one namespace\n" SEE,
                   "namespace", "rm", "a", "b");
        ctl_expect(EXIT_WRONG_USAGE, "", "kvcachectl: 'namespace ls' takes no argument\n" SEE,
                   "namespace", "ls", "a");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: 'namespace lifetime' needs a namespace, and a time such as 12h, or "
                   "'none'\n" SEE,
                   "namespace", "lifetime", "a");
        ctl_expect(EXIT_WRONG_USAGE, "", "kvcachectl: 'namespace diff' needs two namespaces\n" SEE,
                   "namespace", "diff", "a");
        ctl_expect(EXIT_WRONG_USAGE, "", "kvcachectl: 'namespace diff' needs two namespaces\n" SEE,
                   "namespace", "diff", "a", "b", "c");
        ctl_expect(EXIT_WRONG_USAGE, "", "kvcachectl: --purge is for 'namespace rm'\n" SEE,
                   "namespace", "stat", "a", "--purge");
        ctl_expect(EXIT_WRONG_USAGE, "", "kvcachectl: --limit is for 'namespace ls'\n" SEE,
                   "namespace", "rm", "a", "--limit=1");
        ctl_expect(
                EXIT_WRONG_USAGE, "",
                "kvcachectl: unknown action 'del'; use ls, stat, show, diff, lifetime and rm\n" SEE,
                "namespace", "del");
        assert_int_equal(fake.made[FAKE_CONNECT], 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                CTL_TEST(ls_lists_the_largest_namespace_first),
                CTL_TEST(ls_in_json_has_every_member),
                CTL_TEST(ls_takes_all_pages_and_stops_at_its_limit),
                CTL_TEST(ls_of_several_tenants_names_them_and_is_safe_for_a_terminal),
                CTL_TEST(stat_shows_one_namespace_with_its_fingerprint),
                CTL_TEST(stat_says_what_is_not_known),
                CTL_TEST(stat_shows_the_name_of_the_owner),
                CTL_TEST(show_prints_minutes_and_the_next_to_be_evicted),
                CTL_TEST(show_without_samples_says_why),
                CTL_TEST(show_survives_a_report_of_nonsense),
                CTL_TEST(missing_namespace_exits_with_1_and_is_named),
                CTL_TEST(diff_prints_a_line_for_each_field_that_differs),
                CTL_TEST(diff_of_equal_fingerprints_prints_nothing_and_exits_with_0),
                CTL_TEST(diff_in_json_has_null_for_a_missing_field),
                CTL_TEST(diff_never_exits_with_1_after_an_error),
                CTL_TEST(lifetime_takes_units_and_prints_the_result),
                CTL_TEST(lifetime_that_is_no_time_is_refused),
                CTL_TEST(rm_removes_and_purges_only_when_asked),
                CTL_TEST(rm_reports_refusals_in_the_words_of_the_library),
                CTL_TEST(namespace_explains_wrong_usage),
        };

        return cmocka_run_group_tests(tests, NULL, ctl_remove_files);
}
