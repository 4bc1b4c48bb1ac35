/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl stat, ls, evict and purge: chunks shown and dropped. */
#include <errno.h>
#include <unistd.h>

#include "ctl-fixture.h"

#define HEX_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

static void answer(const struct kvcache_result *results, size_t n)
{
        fake.answers = results;
        fake.n_answers = n;
        fake.keys_answered = 0;
}

/* Puts chunks of one byte under the keys 1, 2, ... */
static void store_many(unsigned n)
{
        for (unsigned i = 1; i <= n; i++) {
                char key[KEY_TEXT_BYTES];

                snprintf(key, sizeof(key), "%064x", i);
                ctl_store(key, "x");
        }
}

static unsigned count_of(const char *text, const char *part)
{
        unsigned n = 0;

        for (; (text = strstr(text, part)); text++)
                n++;
        return n;
}

/* --- stat --- */

static const struct kvcache_result described = {
        .status = KVCACHE_OK,
        .tiers = KVCACHE_TIER_DISK,
        .length = 1536,
        .created_ms = FAKE_CREATED_MS,
        .crc32c = 0xbeef,
        .leases = 2,
        .memory = { .reuse_class = KVCACHE_CLASS_RECENCY, .age = 1234 },
        .disk = { .reuse_class = KVCACHE_CLASS_TWICE,
                  .worth = 256,
                  .age = 7,
                  .flags = KVCACHE_STANDING_NEXT | 3 << KVCACHE_STANDING_COST_BIT },
};

static void stat_shows_chunk_and_standing_in_tables(void **state)
{
        char expected[1024];

        answer(&described, 1);
        snprintf(expected, sizeof(expected),
                 "key   length  where  put at               crc32c    leases\n"
                 "k    1.5 KiB  disk   2023-11-14 22:13:20  0000beef       2\n"
                 "\n"
                 "key  tier    class         age  worth  evicted\n"
                 "k    memory  by recency  1,234      -  after chunks used before it\n"
                 "k    disk    used twice      7      2  next\n"
                 "\n"
                 "key  digits\n"
                 "k    %s\n",
                 ctl_hex("k"));
        ctl_expect(EXIT_OK, expected, "", "stat", "k");
        assert_int_equal(fake.request.op, KVCACHE_OP_STAT);
}

static void stat_does_not_repeat_digits_that_were_typed(void **state)
{
        answer(&described, 1);
        assert_int_equal(ctl("stat", "hex:" HEX_A), EXIT_OK);
        lacks(ctl_out, "digits");
}

static void stat_describes_a_chunk_in_json(void **state)
{
        char expected[1024];

        answer(&described, 1);
        snprintf(expected, sizeof(expected),
                 "{\"keys\":[{\"key\":\"%s\",\"name\":\"k\",\"length\":1536,\"tiers\":[\"disk\"],"
                 "\"created_ms\":1700000000000,\"crc32c\":\"0000beef\",\"leases\":2,\"eviction\":{"
                 "\"memory\":{\"class\":\"by "
                 "recency\",\"age_uses\":1234,\"worth\":null,\"next\":false,"
                 "\"cost_ns_per_byte\":null,\"pinned\":false,\"pinned_by_client\":false,"
                 "\"continued\":false,"
                 "\"evicted\":\"after chunks used before it\"},"
                 "\"disk\":{\"class\":\"used twice\",\"age_uses\":7,\"worth\":2,\"next\":true,"
                 "\"cost_ns_per_byte\":0.1,\"pinned\":false,\"pinned_by_client\":false,"
                 "\"continued\":false,"
                 "\"evicted\":\"next\"}}}]}\n",
                 ctl_hex("k"));
        ctl_expect(EXIT_OK, expected, "", "stat", "-j", "k");
}

static void stat_names_every_class_and_reason(void **state)
{
        static const struct {
                struct kvcache_standing standing;
                const char *class, *worth, *evicted;
        } cases[] = {
                { { .reuse_class = KVCACHE_CLASS_ONCE },
                  "used once",
                  "1",
                  "after chunks worth less" },
                { { .reuse_class = KVCACHE_CLASS_ONCE_END, .worth = INT16_MAX },
                  "used once, end of a chain",
                  "any",
                  "after chunks worth less" },
                { { .reuse_class = KVCACHE_CLASS_FINAL, .worth = -256 },
                  "hint: final",
                  "0.5",
                  "before others: its chain has ended" },
                { { .reuse_class = KVCACHE_CLASS_12,
                    .flags = KVCACHE_STANDING_PINNED | KVCACHE_STANDING_NEXT },
                  "used 12 times or more",
                  "1",
                  "not while it is leased, lent or written" },
                { { .reuse_class = KVCACHE_CLASS_THRICE, .flags = KVCACHE_STANDING_RETAINED },
                  "used 3 times",
                  "1",
                  "not until it is unpinned" },
                { { .reuse_class = KVCACHE_CLASS_RETURN_60, .flags = KVCACHE_STANDING_CONTINUED },
                  "hint: returns within 60 s",
                  "1",
                  "after the chunks that continue it" },
                { { .reuse_class = 200 }, "of a later version", "1", "after chunks worth less" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                struct kvcache_result result = { .status = KVCACHE_OK,
                                                 .memory = cases[i].standing };
                char line[256];

                answer(&result, 1);
                assert_int_equal(ctl("stat", "k"), EXIT_OK);
                snprintf(line, sizeof(line), "memory  %s", cases[i].class);
                has(ctl_out, line);
                snprintf(line, sizeof(line), "  %s  %s\n", cases[i].worth, cases[i].evicted);
                has(ctl_out, line);
                lacks(ctl_out, "k    disk");
        }
}

static void stat_reports_the_missing_key_and_shows_the_other(void **state)
{
        const struct kvcache_result results[] = { { .status = KVCACHE_MISS }, described };

        answer(results, 2);
        ctl_expect(EXIT_NOT_FOUND, NULL, "kvcachectl: absent: not found in namespace 'ns'\n",
                   "stat", "-n", "ns", "absent", "k");
        assert_int_equal(count_of(ctl_out, "\nk "), 4);
        answer(results, 1);
        ctl_expect(EXIT_NOT_FOUND, "", "kvcachectl: absent: not found in namespace 'default'\n",
                   "stat", "absent");
        answer(results, 1);
        ctl_expect(EXIT_NOT_FOUND, "{\"keys\":[]}\n", NULL, "-j", "stat", "absent");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: a key is needed\nSee: kvcachectl stat --help\n", "stat");
}

/* --- ls --- */

static void ls_lists_each_chunk_on_a_line(void **state)
{
        store_many(1);
        ctl_expect(EXIT_OK,
                   "0000000000000000000000000000000000000000000000000000000000000001        1 B  "
                   "2023-11-14 22:13:20"
                   "  disk\n",
                   "1 chunk, 1 B\n", "ls");
        assert_string_equal(fake.opened_name, "default");
        ctl_expect(EXIT_OK,
                   "{\"chunks\":[{\"key\":"
                   "\"0000000000000000000000000000000000000000000000000000000000000001\","
                   "\"length\":1,\"created_ms\":1700000000000,\"tiers\":[\"disk\"]}],"
                   "\"count\":1,\"bytes\":1,\"complete\":true}\n",
                   "", "ls", "-j", "ns");
        assert_string_equal(fake.opened_name, "ns");
}

static void ls_lists_all_pages(void **state)
{
        store_many(1100);
        ctl_expect(EXIT_OK, NULL, "1,100 chunks, 1.07 KiB\n", "ls");
        assert_int_equal(count_of(ctl_out, "\n"), 1100);
        assert_int_equal(fake.made[FAKE_LIST], 3);
        fake.scripts[FAKE_LIST] = (struct fake_script){ -ECONNRESET, "cut", .after = 4 };
        ctl_expect(EXIT_UNREACHABLE, NULL, "kvcachectl: ls: the daemon went away: cut\n", "ls");
}

static void ls_ends_at_its_limit_and_says_that_there_are_more(void **state)
{
        store_many(600);
        ctl_expect(EXIT_OK, NULL, "515 chunks, 515 B; there are more\n", "ls", "--limit=515");
        assert_int_equal(count_of(ctl_out, "\n"), 515);
        assert_int_equal(fake.list_max, 3);
        assert_int_equal(ctl("ls", "--limit", "1", "--json"), EXIT_OK);
        has(ctl_out, "\"count\":1,\"bytes\":1,\"complete\":false}");
        ctl_expect(
                EXIT_WRONG_USAGE, "",
                "kvcachectl: --limit: '0' is not a whole number from 1 to 18446744073709551615\n",
                "ls", "--limit=0");
}

static void ls_of_nothing_says_so(void **state)
{
        ctl_expect(EXIT_OK, "", "0 chunks, 0 B\n", "ls");
        fake.missing_namespace = "absent";
        assert_int_equal(ctl("ls", "absent"), EXIT_NOT_FOUND);
        has(ctl_err, "kvcachectl: there is no namespace 'absent'\n");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: ls lists one namespace, but several are given\nSee: kvcachectl ls "
                   "--help\n",
                   "ls", "a", "b");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: ls lists one namespace, but several are given\nSee: kvcachectl ls "
                   "--help\n",
                   "ls", "a", "-n", "b");
}

/* --- evict --- */

static void evict_passes_the_tiers(void **state)
{
        ctl_store("k", "x");
        ctl_expect(EXIT_OK, "k  evicted from memory\n", "", "evict", "--tier=memory", "k");
        assert_int_equal(fake.request.op, KVCACHE_OP_EVICT);
        assert_int_equal(fake.request.tiers, KVCACHE_TIER_MEMORY);
        ctl_expect(EXIT_OK, "k  evicted\n", "", "evict", "--tier", "all", "k");
        assert_int_equal(fake.request.tiers, KVCACHE_TIER_ALL);
        ctl_store("k", "x");
        ctl_expect(EXIT_NOT_FOUND, "absent  missing\nk  evicted\n", "", "evict", "absent", "k");
}

static void evict_of_all_takes_every_page_of_the_namespace(void **state)
{
        store_many(4700);
        ctl_expect(EXIT_OK, "4,700 evicted, 0 missing\n", "", "evict", "--all", "-n", "ns");
        assert_int_equal(fake.made[FAKE_SUBMIT], 2);
        assert_int_equal(fake.most_keys, 4096);
        assert_int_equal(fake.keys_answered, 4700);
        assert_string_equal(fake.opened_name, "ns");
        store_many(4700);
        ctl_expect(EXIT_OK, "{\"evicted\":4700,\"missing\":0,\"unwritten\":0}\n", "", "-j", "evict",
                   "--all");
        store_many(4700);
        fake.scripts[FAKE_LIST] =
                (struct fake_script){ -ECONNRESET, "cut", .after = fake.made[FAKE_LIST] + 1 };
        ctl_expect(EXIT_UNREACHABLE, "", "kvcachectl: evict: the daemon went away: cut\n", "evict",
                   "--all");
        assert_int_equal(fake.keys_answered, 2 * 4700);
}

static void evict_of_a_file_prints_the_sums(void **state)
{
        static const struct kvcache_result results[] = { { .status = KVCACHE_BUSY },
                                                         { .status = KVCACHE_OK } };

        answer(results, 2);
        ctl_input(HEX_A "\n" HEX_A "\n", 130);
        ctl_expect(EXIT_REFUSED, "1 evicted from memory, 0 missing, 1 not on disk yet and kept\n",
                   "", "evict", "--from=-", "--tier=memory");
}

static void evict_explains_wrong_usage(void **state)
{
#define SEE_EVICT "See: kvcachectl evict --help\n"
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: give exactly one of: keys, --from FILE, --all\n" SEE_EVICT,
                   "evict");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: give exactly one of: keys, --from FILE, --all\n" SEE_EVICT, "evict",
                   "--all", "k");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: --tier: 'disk' is not memory or all\n" SEE_EVICT, "evict",
                   "--tier=disk", "k");
        assert_int_equal(fake.made[FAKE_CONNECT], 0);
}

/* --- purge --- */

static void purge_deletes_a_namespace_and_counts(void **state)
{
        store_many(2);
        ctl_expect(EXIT_OK, "2 chunks purged\n", "", "purge", "ns");
        assert_string_equal(fake.opened_name, "ns");
        assert_false(fake_admin.purged_remote);
        store_many(1);
        ctl_expect(EXIT_OK, "1 chunk purged\n", "", "purge", "--all");
        ctl_expect(EXIT_OK, "{\"dropped\":0}\n", "", "purge", "-j", "--all");
}

static void purge_of_the_shared_tier_says_how_long_other_hosts_may_serve(void **state)
{
        fake_admin.dropped = 1234;
        fake_admin.other_hosts_seconds = 60;
        ctl_expect(
                EXIT_OK,
                "1,234 chunks purged here\n"
                "The shared tier is purged; other hosts may serve their copies for up to 60 s.\n",
                "", "purge", "--remote", "ns");
        assert_true(fake_admin.purged_remote);
        assert_false(fake_admin.purged_all);
        ctl_expect(EXIT_OK, "{\"dropped\":1234,\"other_hosts_seconds\":60}\n", "", "purge",
                   "--remote", "--all", "-j");
        assert_true(fake_admin.purged_all);
}

static void purge_on_a_terminal_does_nothing_unless_it_is_confirmed(void **state)
{
        static const char *const refusals[] = { "n\n", "\n", "no\n", " y\n" };

        for (size_t i = 0; i < ARRAY_SIZE(refusals); i++) {
                ctl_type(refusals[i]);
                ctl_expect(EXIT_INTERRUPTED, "",
                           "Permanently delete all chunks of namespace a?[2J from this host? [y/N] "
                           "kvcachectl: "
                           "purge: not confirmed, and nothing was done\n",
                           "purge", "a\033[2J");
        }
        ctl_type("n\n");
        ctl_expect(EXIT_INTERRUPTED, "",
                   "Permanently delete all chunks of all namespaces from this host, and from the "
                   "shared tier for all hosts? [y/N] kvcachectl: "
                   "purge: not confirmed, and nothing was done\n",
                   "purge", "--all", "--remote");
        assert_int_equal(fake.made[FAKE_CONNECT], 0);
        ctl_type("y\n");
        ctl_expect(EXIT_OK, "0 chunks purged\n", NULL, "purge", "ns");
        ctl_type("n\n");
        ctl_expect(EXIT_OK, "0 chunks purged\n", "", "purge", "ns", "--yes");
}

static void purge_reports_refusals(void **state)
{
        fake.scripts[FAKE_PURGE] = (struct fake_script){ -EACCES, "for admins" };
        assert_int_equal(ctl("purge", "--all"), EXIT_REFUSED);
        has(ctl_err, "kvcachectl: purge --all: only admins may do this: root,");
        ctl_expect(EXIT_REFUSED, "", "kvcachectl: purge: for admins\n", "purge", "ns");
        fake.missing_namespace = "absent";
        assert_int_equal(ctl("purge", "absent"), EXIT_NOT_FOUND);
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: give exactly one of: NS, --all\nSee: kvcachectl purge "
                   "--help\n",
                   "purge");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: give exactly one of: NS, --all\nSee: kvcachectl purge "
                   "--help\n",
                   "purge", "ns", "--all");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                CTL_TEST(stat_shows_chunk_and_standing_in_tables),
                CTL_TEST(stat_does_not_repeat_digits_that_were_typed),
                CTL_TEST(stat_describes_a_chunk_in_json),
                CTL_TEST(stat_names_every_class_and_reason),
                CTL_TEST(stat_reports_the_missing_key_and_shows_the_other),
                CTL_TEST(ls_lists_each_chunk_on_a_line),
                CTL_TEST(ls_lists_all_pages),
                CTL_TEST(ls_ends_at_its_limit_and_says_that_there_are_more),
                CTL_TEST(ls_of_nothing_says_so),
                CTL_TEST(evict_passes_the_tiers),
                CTL_TEST(evict_of_all_takes_every_page_of_the_namespace),
                CTL_TEST(evict_of_a_file_prints_the_sums),
                CTL_TEST(evict_explains_wrong_usage),
                CTL_TEST(purge_deletes_a_namespace_and_counts),
                CTL_TEST(purge_of_the_shared_tier_says_how_long_other_hosts_may_serve),
                CTL_TEST(purge_on_a_terminal_does_nothing_unless_it_is_confirmed),
                CTL_TEST(purge_reports_refusals),
        };

        return cmocka_run_group_tests(tests, NULL, ctl_remove_files);
}
