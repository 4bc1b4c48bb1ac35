/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl's commands on keys: exists, prefetch, hint, pin, unpin, and the files of keys that
 * they read. */
#include <errno.h>
#include <unistd.h>

#include "ctl-fixture.h"
#include "keyfile.h"

#define HEX_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define HEX_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define HEX_C "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"

/* Sets the statuses of the keys of the next request. */
static void answer(unsigned n, ...)
{
        static struct kvcache_result results[16];
        va_list statuses;

        assert_in_range(n, 1, ARRAY_SIZE(results));
        va_start(statuses, n);
        for (unsigned i = 0; i < n; i++)
                results[i] = (struct kvcache_result){ .status = va_arg(statuses, int) };
        va_end(statuses);
        fake.answers = results;
        fake.n_answers = n;
        fake.keys_answered = 0;
}

/* --- exists --- */

static void exists_prints_the_tier_of_each_key(void **state)
{
        static const struct kvcache_result results[] = {
                { .status = KVCACHE_OK, .tiers = KVCACHE_TIER_MEMORY },
                { .status = KVCACHE_EXISTS, .tiers = KVCACHE_TIER_DISK },
                { .status = KVCACHE_OK, .tiers = KVCACHE_TIER_ALL },
                { .status = KVCACHE_OK },
        };

        fake.answers = results;
        fake.n_answers = ARRAY_SIZE(results);
        ctl_expect(EXIT_OK, "a  memory\nb  disk\nc  memory, disk\nd  -\n", "", "exists", "a", "b",
                   "c", "d");
        assert_int_equal(fake.request.op, KVCACHE_OP_EXISTS);
        assert_int_equal(fake.request.count, 4);
        assert_memory_equal(&fake.key, &(struct kvcache_key[]){ ctl_key("a") }, sizeof(fake.key));
}

static void exists_exits_with_1_if_a_key_is_missing(void **state)
{
        char expected[512];

        ctl_store("k", "x");
        ctl_expect(EXIT_NOT_FOUND, "k  memory, disk\ngone  missing\n", "", "exists", "k", "gone");
        ctl_expect(EXIT_OK, "k  memory, disk\n", "", "exists", "k");
        snprintf(expected, sizeof(expected),
                 "{\"keys\":[{\"key\":\"" HEX_A "\",\"name\":\"%s\",\"found\":false,\"tiers\":[]},"
                 "{\"key\":\"%s\",\"name\":\"k\",\"found\":true,\"tiers\":[\"memory\",\"disk\"]}],"
                 "\"found\":1,\"missing\":1}\n",
                 "hex:" HEX_A, ctl_hex("k"));
        ctl_expect(EXIT_NOT_FOUND, expected, "", "--json", "exists", "hex:" HEX_A, "k");
}

static void exists_counts_the_keys_of_a_file_and_shows_the_first_missing_ones(void **state)
{
        char text[4096] = "# comment\n", *p = text + strlen(text), first[128];

        for (unsigned i = 0; i < 12; i++)
                p += sprintf(p, "%064x 5 a\033[2J\n", i + 1);
        ctl_file("keys", text, strlen(text));
        assert_int_equal(ctl("exists", "--from", ctl_path("keys")), EXIT_NOT_FOUND);
        assert_string_equal(ctl_out, "0 found, 12 missing\n");
        snprintf(first, sizeof(first), "missing: %064x in a?[2J\n", 1);
        assert_ptr_equal(strstr(ctl_err, first), ctl_err);
        snprintf(first, sizeof(first), "missing: %064x in a?[2J\nand 2 more keys are missing\n",
                 10);
        has(ctl_err, first);
        assert_string_equal(fake.opened_name, "a\033[2J");
        assert_int_equal(ctl("exists", "-j", "--from", ctl_path("keys")), EXIT_NOT_FOUND);
        assert_string_equal(ctl_err, "");
        has(ctl_out, "\"found\":0,\"missing\":12}\n");
}

static void exists_lists_no_more_than_1000_missing_keys_in_json(void **state)
{
        static char text[1001 * 66 + 1];
        unsigned n = 0;

        for (unsigned i = 0; i < 1001; i++)
                sprintf(text + (size_t)i * 65, "%064x\n", i + 1);
        ctl_input(text, strlen(text));
        assert_int_equal(ctl("exists", "-j", "--from=-"), EXIT_NOT_FOUND);
        for (const char *p = ctl_out; (p = strstr(p, "\"0000")); p++)
                n++;
        assert_int_equal(n, 1000);
        has(ctl_out, "],\"found\":0,\"missing\":1001}\n");
}

/* --- files of keys --- */

static bool keyfile_lacks_memory;

int __wrap_keyfile_open(struct keyfile **ret, const char *path, char *ret_error);
int __real_keyfile_open(struct keyfile **ret, const char *path, char *ret_error);

/* Replaces keyfile_open() for the linker. */
int __wrap_keyfile_open(struct keyfile **ret, const char *path, char *ret_error)
{
        return keyfile_lacks_memory ? -ENOMEM : __real_keyfile_open(ret, path, ret_error);
}

static void lack_of_memory_is_no_fault_of_the_key_file(void **state)
{
        ctl_input(HEX_A "\n", 65);
        keyfile_lacks_memory = true;
        ctl_expect(EXIT_LOCAL, "", "kvcachectl: out of memory\n", "exists", "--from", "-");
        keyfile_lacks_memory = false;
        ctl_expect(EXIT_BAD_INPUT, "", "kvcachectl: /nowhere/keys: No such file or directory\n",
                   "exists", "--from", "/nowhere/keys");
}

static void file_of_keys_is_asked_in_batches_of_one_namespace(void **state)
{
        static char text[5000 * 66 + 128];
        char *p = text;

        for (unsigned i = 0; i < 5000; i++)
                p += sprintf(p, "%064x\n", i + 1);
        sprintf(p, HEX_A " 7 other\n");
        ctl_input(text, strlen(text));
        ctl_expect(EXIT_NOT_FOUND, "0 in memory or being read, 5,001 missing\n", "", "prefetch",
                   "--from", "-");
        assert_int_equal(fake.made[FAKE_SUBMIT], 3);
        assert_int_equal(fake.most_keys, 4096);
        assert_int_equal(fake.request.count, 1);
        assert_int_equal(fake.made[FAKE_OPEN], 2);
        assert_string_equal(fake.opened_name, "other");
        assert_int_equal(fake.opened_flags, KVCACHE_ATTACH);
}

static void keys_of_a_missing_namespace_are_missing(void **state)
{
        static const char text[] = HEX_A " 5 gone\n" HEX_B " 5 here\n";

        ctl_store(HEX_B, "x");
        fake.missing_namespace = "gone";
        ctl_input(text, strlen(text));
        ctl_expect(EXIT_NOT_FOUND, "1 found, 1 missing\n", "missing: " HEX_A " in gone\n", "exists",
                   "--from=-");
        assert_int_equal(fake.made[FAKE_SUBMIT], 1);
}

static void malformed_file_of_keys_is_named_with_its_line(void **state)
{
        static const char text[] = HEX_A "\nnot a key\n";
        char err[512];

        ctl_file("bad", text, strlen(text));
        snprintf(err, sizeof(err),
                 "kvcachectl: %s:2: not \"<64 hex digits> [length [namespace]]\"\n",
                 ctl_path("bad"));
        ctl_expect(EXIT_BAD_INPUT, "", err, "exists", "--from", ctl_path("bad"));
        ctl_expect(EXIT_BAD_INPUT, "", "kvcachectl: /nowhere/file: No such file or directory\n",
                   "pin", "--from", "/nowhere/file");
        assert_int_equal(fake.made[FAKE_CONNECT], 1);
}

static void commands_on_keys_explain_wrong_usage(void **state)
{
        static const char *const names[] = { "exists", "prefetch", "pin", "unpin" };

        for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
                char err[256];

                snprintf(err, sizeof(err),
                         "kvcachectl: either keys or --from FILE are needed\nSee: kvcachectl %s "
                         "--help\n",
                         names[i]);
                ctl_expect(EXIT_WRONG_USAGE, "", err, names[i]);
                ctl_expect(EXIT_WRONG_USAGE, "", err, names[i], "k", "--from", "-");
        }
        assert_int_equal(fake.made[FAKE_CONNECT], 0);
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: 'hex:1' is not a key: use any text, or hex: and 64 hex digits that "
                   "are not all 0\n",
                   "pin", "k", "hex:1");
        assert_int_equal(fake.made[FAKE_SUBMIT], 0);
}

static void commands_on_keys_report_a_failed_call(void **state)
{
        static const char *const names[] = {
                "exists", "prefetch", "pin", "unpin", "stat", "evict"
        };

        for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
                char err[256];

                ctl_reset(NULL);
                fake.scripts[FAKE_SUBMIT] = (struct fake_script){ -ECONNRESET, "cut" };
                snprintf(err, sizeof(err), "kvcachectl: %s: the daemon went away: cut\n", names[i]);
                ctl_expect(EXIT_UNREACHABLE, "", err, names[i], "k");
                fake.scripts[FAKE_OPEN] = (struct fake_script){ -EACCES, "denied" };
                ctl_expect(EXIT_REFUSED, "", "kvcachectl: ns: denied\n", names[i], "k", "-n", "ns");
                fake.scripts[FAKE_CONNECT] = (struct fake_script){ -EPROTO, "another protocol" };
                ctl_expect(EXIT_REFUSED, "", "kvcachectl: another protocol\n", names[i], "k");
        }
}

static void commands_on_keys_report_a_status_that_they_do_not_expect(void **state)
{
        static const char *const names[] = { "exists", "prefetch", "pin", "evict", "stat" };

        for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
                char err[256];

                ctl_reset(NULL);
                answer(1, KVCACHE_LOST);
                /* `stat` names the key. */
                snprintf(err, sizeof(err),
                         "kvcachectl: %s: the daemon went away before it answered\n",
                         strcmp(names[i], "stat") == 0 ? "k" : names[i]);
                ctl_expect(EXIT_UNREACHABLE, "", err, names[i], "k");
                answer(1, 77);
                assert_int_equal(ctl(names[i], "k"), EXIT_REFUSED);
                has(ctl_err, ": the daemon answered FAILED\n");
        }
}

/* --- prefetch --- */

static void prefetch_counts_keys_by_their_answer(void **state)
{
        answer(5, KVCACHE_OK, KVCACHE_MISS, KVCACHE_BUSY, KVCACHE_TOO_LARGE, KVCACHE_OK);
        ctl_expect(EXIT_REFUSED, "2 in memory or being read, 1 missing, 2 left out: no room now\n",
                   "", "prefetch", "a", "b", "c", "d", "e");
        assert_int_equal(fake.request.op, KVCACHE_OP_PREFETCH);
        answer(2, KVCACHE_OK, KVCACHE_MISS);
        ctl_expect(EXIT_NOT_FOUND, "{\"prefetched\":1,\"missing\":1,\"no_room\":0}\n", "", "-j",
                   "prefetch", "a", "b");
        answer(1, KVCACHE_OK);
        ctl_expect(EXIT_OK, "1 in memory or being read, 0 missing\n", "", "prefetch", "a");
}

/* --- hint --- */

static void hint_passes_the_time_of_return(void **state)
{
        answer(2, KVCACHE_OK, KVCACHE_OK);
        ctl_expect(EXIT_OK, "2 hinted, 0 missing\n", "", "hint", "return", "4294967295", "a", "b");
        assert_int_equal(fake.request.op, KVCACHE_OP_HINT);
        assert_int_equal(fake.request.return_s, UINT32_MAX);
        assert_int_equal(fake.request.tiers, 0);
        answer(2, KVCACHE_OK, KVCACHE_MISS);
        ctl_expect(EXIT_NOT_FOUND, "{\"hinted\":1,\"missing\":1}\n", "", "hint", "-j", "final", "a",
                   "b", "-n", "ns");
        assert_int_equal(fake.request.return_s, 0);
        assert_string_equal(fake.opened_name, "ns");
        answer(1, KVCACHE_QUOTA);
        assert_int_equal(ctl("hint", "final", "a"), EXIT_REFUSED);
        has(ctl_err, "hint: a limit of this user or tenant is reached");
}

static void hint_passes_advice(void **state)
{
        static const struct {
                const char *action;
                enum kvcache_advice advice;
        } cases[] = {
                { "tool-call", KVCACHE_ADVICE_TOOL_CALL },
                { "turn-end", KVCACHE_ADVICE_TURN_END },
                { "demote", KVCACHE_ADVICE_DEMOTE },
                { "share", KVCACHE_ADVICE_SHARE },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                answer(1, KVCACHE_OK);
                ctl_expect(EXIT_OK, "1 hinted, 0 missing\n", "", "hint", cases[i].action, "a");
                assert_int_equal(fake.request.op, KVCACHE_OP_ADVISE);
                assert_int_equal(fake.request.advice, cases[i].advice);
                assert_int_equal(fake.request.return_s, 0);
        }
        answer(2, KVCACHE_OK, KVCACHE_BUSY);
        ctl_expect(EXIT_REFUSED, "1 hinted, 0 missing, 1 in use or not on disk\n", "", "hint",
                   "demote", "a", "b");
}

static void hint_explains_wrong_usage(void **state)
{
#define SEE_HINT "See: kvcachectl hint --help\n"
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: the kind of hint is needed before the keys: final, return SECONDS, "
                   "tool-call, turn-end, demote or share\n" SEE_HINT,
                   "hint");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: 'hint return' needs the number of seconds until the next use, and "
                   "then keys\n" SEE_HINT,
                   "hint", "return");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: hint return: '0' is not a whole number from 1 to 4294967295\n",
                   "hint", "return", "0", "k");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: hint return: '4294967296' is not a whole number from 1 to "
                   "4294967295\n",
                   "hint", "return", "4294967296", "k");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: unknown action 'finl'; did you mean \"hint final\"?\n" SEE_HINT,
                   "hint", "finl", "k");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: unknown action 'xyzzy'; use final, return, tool-call, turn-end, "
                   "demote and share\n" SEE_HINT,
                   "hint", "xyzzy", "k");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: either keys or --from FILE are needed\n" SEE_HINT, "hint", "final");
        assert_int_equal(fake.made[FAKE_CONNECT], 0);
}

/* --- pin --- */

static void pin_counts_keys_by_their_answer(void **state)
{
        answer(4, KVCACHE_OK, KVCACHE_MISS, KVCACHE_BUSY, KVCACHE_QUOTA);
        ctl_expect(EXIT_REFUSED,
                   "1 pinned, 1 missing, 1 not pinned because they are being written; try again, 1 "
                   "not pinned: over the tenant's limit (tenants.pinned_bytes)\n",
                   "", "pin", "a", "b", "c", "d");
        assert_int_equal(fake.request.op, KVCACHE_OP_PIN);
        answer(1, KVCACHE_QUOTA);
        ctl_expect(EXIT_REFUSED,
                   "{\"pinned\":0,\"missing\":0,\"not_yet_on_disk\":0,\"over_limit\":1}\n", "",
                   "pin", "-j", "a");
        answer(1, KVCACHE_MISS);
        ctl_expect(EXIT_NOT_FOUND, "0 unpinned, 1 missing\n", "", "unpin", "a");
        assert_int_equal(fake.request.op, KVCACHE_OP_UNPIN);
        answer(1, KVCACHE_OK);
        ctl_expect(EXIT_OK,
                   "{\"unpinned\":1,\"missing\":0,\"not_yet_on_disk\":0,\"over_limit\":0}\n", "",
                   "unpin", "-j", "a");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                CTL_TEST(exists_prints_the_tier_of_each_key),
                CTL_TEST(exists_exits_with_1_if_a_key_is_missing),
                CTL_TEST(exists_counts_the_keys_of_a_file_and_shows_the_first_missing_ones),
                CTL_TEST(exists_lists_no_more_than_1000_missing_keys_in_json),
                CTL_TEST(lack_of_memory_is_no_fault_of_the_key_file),
                CTL_TEST(file_of_keys_is_asked_in_batches_of_one_namespace),
                CTL_TEST(keys_of_a_missing_namespace_are_missing),
                CTL_TEST(malformed_file_of_keys_is_named_with_its_line),
                CTL_TEST(commands_on_keys_explain_wrong_usage),
                CTL_TEST(commands_on_keys_report_a_failed_call),
                CTL_TEST(commands_on_keys_report_a_status_that_they_do_not_expect),
                CTL_TEST(prefetch_counts_keys_by_their_answer),
                CTL_TEST(hint_passes_the_time_of_return),
                CTL_TEST(hint_passes_advice),
                CTL_TEST(hint_explains_wrong_usage),
                CTL_TEST(pin_counts_keys_by_their_answer),
        };

        return cmocka_run_group_tests(tests, NULL, ctl_remove_files);
}
