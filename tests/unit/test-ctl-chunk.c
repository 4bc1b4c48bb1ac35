/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl put and get: one chunk, to and from files and standard streams. */
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ctl-fixture.h"

#define HEX_A   "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define SEE_PUT "See: kvcachectl put --help\n"
#define SEE_GET "See: kvcachectl get --help\n"

/* --- put --- */

static void put_stores_standard_input_and_prints_the_digits(void **state)
{
        char expected[256];

        ctl_input("hello", 5);
        snprintf(expected, sizeof(expected), "prompt  5 B put, under %s\n", ctl_hex("prompt"));
        ctl_expect(EXIT_OK, expected, "", "put", "prompt");
        assert_int_equal(fake.chunks_put, 1);
        assert_int_equal(fake.ack, KVCACHE_WRITTEN);
        assert_string_equal(fake.client_name, "kvcachectl");
        assert_string_equal(fake.opened_name, "default");
        assert_int_equal(fake.opened_flags, KVCACHE_ATTACH);
        ctl_expect(EXIT_OK, "hello", "", "get", "prompt");
        ctl_expect(EXIT_OK, HEX_A "  5 B put\n", "", "put", HEX_A, "-");
}

static void put_passes_its_options_to_the_library(void **state)
{
        const char *path = ctl_file("chunk", "12345678", 8);

        ctl_expect(EXIT_OK, NULL, "", "--socket", "/run/x", "put", "k", path, "--ack=durable", "-n",
                   "ns", "--fingerprint", "model=m,dtype=fp8");
        assert_string_equal(fake.socket_path, "/run/x");
        assert_int_equal(fake.ack, KVCACHE_DURABLE);
        assert_string_equal(fake.opened_name, "ns");
        assert_string_equal(fake.opened_fingerprint, "dtype=fp8\nmodel=m\n");
        assert_int_equal(fake.opened_flags, 0);
        ctl_expect(EXIT_OK, NULL, "", "put", "l", path, "--ack", "accepted");
        assert_int_equal(fake.ack, KVCACHE_ACCEPTED);
}

static void put_makes_a_missing_namespace_with_the_raw_format(void **state)
{
        fake.missing_namespace = "new";
        ctl_input("x", 1);
        ctl_expect(EXIT_OK, NULL, "", "put", "-n", "new", "k");
        assert_string_equal(fake.opened_fingerprint, "format=raw\n");
        assert_int_equal(fake.made[FAKE_OPEN], 2);
}

static void put_of_an_existing_key_says_that_the_first_one_wins(void **state)
{
        char expected[512];

        ctl_store("k", "old");
        ctl_input("new", 3);
        ctl_expect(EXIT_OK, "k  is stored already: the first put of a key wins\n", "", "put", "k");
        snprintf(expected, sizeof(expected),
                 "{\"key\":\"%s\",\"name\":\"k\",\"namespace\":\"default\",\"length\":3,"
                 "\"status\":\"EXISTS\",\"existed\":true}\n",
                 ctl_hex("k"));
        ctl_expect(EXIT_OK, expected, "", "put", "k", "--json");
        ctl_expect(EXIT_OK, "old", "", "get", "k");
}

static void put_reports_each_refusal_with_its_cause(void **state)
{
        static const struct {
                int result, status;
                const char *error, *err;
        } cases[] = {
                { KVCACHE_BUSY, EXIT_REFUSED, NULL, "put: the daemon has no room now; try again" },
                { KVCACHE_QUOTA, EXIT_REFUSED, NULL,
                  "put: a limit of this user or tenant is reached; \"kvcachectl status\" shows "
                  "which" },
                { KVCACHE_FAILED, EXIT_REFUSED, NULL,
                  "put: the daemon could not read or write its disk; \"kvcachectl device ls\" "
                  "shows "
                  "why" },
                { KVCACHE_TOO_LARGE, EXIT_REFUSED, NULL,
                  "put: larger than the largest chunk that the daemon stores" },
                { KVCACHE_LOST, EXIT_UNREACHABLE, NULL,
                  "put: the daemon went away before it answered" },
                { KVCACHE_PENDING, EXIT_UNREACHABLE, NULL,
                  "put: the daemon did not answer in time" },
                { KVCACHE_DENIED, EXIT_REFUSED, NULL, "put: the daemon answered FAILED" },
                { -ECONNRESET, EXIT_UNREACHABLE, "cut", "put: the daemon went away: cut" },
                { -ETIMEDOUT, EXIT_UNREACHABLE, "late",
                  "put: late; the daemon may still be processing the request" },
                { -EPROTO, EXIT_REFUSED, NULL, "put: Protocol error" },
                { -ENOMEM, EXIT_LOCAL, NULL, "out of memory" },
                { -ENOENT, EXIT_NOT_FOUND, "no such tenant", "put: no such tenant" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                char err[256];

                ctl_reset(NULL);
                ctl_input("x", 1);
                fake.scripts[FAKE_PUT] = (struct fake_script){ cases[i].result, cases[i].error };
                snprintf(err, sizeof(err), "kvcachectl: %s\n", cases[i].err);
                ctl_expect(cases[i].status, "", err, "put", "k");
        }
}

static void put_that_is_not_durable_is_reported_and_refused(void **state)
{
        ctl_input("x", 1);
        fake.scripts[FAKE_PUT].result = KVCACHE_NOT_DURABLE;
        ctl_expect(EXIT_REFUSED, HEX_A "  1 B put\n",
                   "kvcachectl: put: written, but this file system cannot promise that it survives "
                   "power "
                   "loss\n",
                   "put", HEX_A, "--ack=durable");
}

static void put_refuses_input_that_is_no_chunk(void **state)
{
        char err[512];

        ctl_expect(EXIT_BAD_INPUT, "",
                   "kvcachectl: standard input is empty; a chunk has at least 1 byte\n", "put",
                   "k");
        ctl_expect(EXIT_BAD_INPUT, "",
                   "kvcachectl: cannot read /nowhere/file: No such file or directory\n", "put", "k",
                   "/nowhere/file");
        ctl_expect(EXIT_BAD_INPUT, "", "kvcachectl: cannot read /: Is a directory\n", "put", "k",
                   "/");
        fake.max_chunk_bytes = 4096;
        ctl_file("large", (char[4097]){ 0 }, 4097);
        snprintf(err, sizeof(err),
                 "kvcachectl: %s is larger than 4 KiB, the most that this daemon takes as one "
                 "chunk\n",
                 ctl_path("large"));
        ctl_expect(EXIT_REFUSED, "", err, "put", "k", ctl_path("large"));
        assert_int_equal(fake.chunks_put, 0);
        ctl_file("large", (char[4096]){ 0 }, 4096);
        ctl_expect(EXIT_OK, NULL, "", "put", "k", ctl_path("large"));
}

static void put_takes_input_larger_than_its_first_buffer(void **state)
{
        static char bytes[200 * 1024], got[sizeof(bytes)];

        for (size_t i = 0; i < sizeof(bytes); i++)
                bytes[i] = (char)(i * 7 + i / 251);
        ctl_expect(EXIT_OK, NULL, "", "put", "k", ctl_file("big", bytes, sizeof(bytes)));
        ctl_expect(EXIT_OK, NULL, "", "get", "k");
        assert_int_equal(ctl_out_bytes, sizeof(got));
        memcpy(got, ctl_out, sizeof(got));
        assert_memory_equal(got, bytes, sizeof(bytes));
}

static void put_reports_namespaces_that_cannot_be_opened(void **state)
{
        ctl_input("x", 1);
        fake.fingerprint = "model=m\n";
        ctl_expect(EXIT_REFUSED, "", "kvcachectl: block_bytes differs\n", "put", "k", "-f",
                   "model=n");
        fake.scripts[FAKE_OPEN] = (struct fake_script){ -EACCES, "not yours" };
        ctl_expect(EXIT_REFUSED, "", "kvcachectl: ns: not yours\n", "put", "k", "-n", "ns");
        fake.scripts[FAKE_GET_INFO] = (struct fake_script){ -EPIPE, "closed" };
        ctl_expect(EXIT_UNREACHABLE, "", "kvcachectl: put: the daemon went away: closed\n", "put",
                   "k");
}

static void put_explains_wrong_usage(void **state)
{
        static const char sixty_three[] =
                "hex:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
        static const char zeros[] =
                "0000000000000000000000000000000000000000000000000000000000000000";
        char err[256];

        ctl_expect(EXIT_WRONG_USAGE, "", "kvcachectl: a key is needed; a file may follow\n" SEE_PUT,
                   "put");
        ctl_expect(EXIT_WRONG_USAGE, "", "kvcachectl: a key is needed; a file may follow\n" SEE_PUT,
                   "put", "a", "b", "c");
        ctl_expect(
                EXIT_WRONG_USAGE, "",
                "kvcachectl: --ack: 'soon' is unknown; use accepted, written or durable\n" SEE_PUT,
                "put", "k", "--ack=soon");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: 'text:' is not a key: use any text, or hex: and 64 hex digits that "
                   "are not all 0\n" SEE_PUT,
                   "put", "text:");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: unknown option '--akc'; did you mean \"--ack\"?\n" SEE_PUT, "put",
                   "k", "--akc", "durable");
        ctl_expect(EXIT_WRONG_USAGE, "", "kvcachectl: option '--ack' needs an argument\n" SEE_PUT,
                   "put", "k", "--ack");
        for (size_t i = 0; i < 2; i++) {
                const char *key = i == 0 ? sixty_three
                                         : zeros; /* all zeros are the root, which is not a key */

                snprintf(err, sizeof(err),
                         "kvcachectl: '%s' is not a key: use any text, or hex: and 64 hex digits "
                         "that are not all 0\n" SEE_PUT,
                         key);
                ctl_expect(EXIT_WRONG_USAGE, "", err, "put", key);
        }
        assert_int_equal(fake.made[FAKE_CONNECT], 0);
        ctl_input("x", 1);
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: --fingerprint: 'a=1,a=2' is not of the form key=value,key=value "
                   "with at most 128 keys, each once\n",
                   "put", "k", "-f", "a=1,a=2");
        assert_int_equal(fake.chunks_put, 0);
}

static void key_cannot_steer_the_terminal(void **state)
{
        ctl_input("x", 1);
        ctl_expect(EXIT_OK, NULL, "", "put", "a\033[2Jb");
        lacks(ctl_out, "\033");
        has(ctl_out, "a?[2Jb  1 B put");
}

/* --- get --- */

static void get_writes_a_chunk_to_a_file_and_describes_it_in_json(void **state)
{
        char path[256], expected[512], got[16] = "";
        FILE *file;

        ctl_store("k", "0123456789");
        snprintf(path, sizeof(path), "%s", ctl_path("got"));
        snprintf(expected, sizeof(expected),
                 "{\"key\":\"%s\",\"name\":\"k\",\"length\":3,\"chunk_length\":10,\"from\":["
                 "\"memory\"]}\n",
                 ctl_hex("k"));
        ctl_expect(EXIT_OK, expected, "", "get", "k", "-o", path, "--json", "--offset=2",
                   "--length", "3");
        file = fopen(path, "r");
        assert_non_null(file);
        assert_int_equal(fread(got, 1, sizeof(got), file), 3);
        fclose(file);
        assert_string_equal(got, "234");
        ctl_expect(EXIT_OK, "0123456789", "", "get", "k", "--output=-");
}

static void get_passes_the_range_to_the_library(void **state)
{
        ctl_store("k", "0123456789");
        ctl_expect(EXIT_OK, "6789", "", "get", "k", "--offset", "6");
        assert_int_equal(fake.entry.range_offset, 6);
        assert_int_equal(fake.entry.range_length, 0);
        assert_int_equal(fake.request.op, KVCACHE_OP_GET);
        ctl_expect(EXIT_OK, "01", "", "get", "k", "--length", "2");
        assert_int_equal(fake.entry.range_length, 2);
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: k: the range of --offset and --length is not within the chunk\n",
                   "get", "k", "--offset=10");
}

static void get_of_a_missing_key_exits_with_1_and_leaves_no_file(void **state)
{
        char path[256];

        snprintf(path, sizeof(path), "%s", ctl_path("none"));
        ctl_expect(EXIT_NOT_FOUND, "", "kvcachectl: k: not found in namespace 'ns'\n", "get", "k",
                   "-n", "ns", "-o", path);
        assert_int_equal(access(path, F_OK), -1);
        ctl_expect(EXIT_NOT_FOUND, "",
                   "{\"error\":{\"message\":\"k: not found in namespace 'default'\"}}\n", "get",
                   "k", "-j", "-o", path);
}

static void get_from_a_missing_namespace_lists_those_that_exist(void **state)
{
        static struct kvcache_namespace_info list[25];
        char expected[1024] = "kvcachectl: there is no namespace 'gone'\nThe daemon has: a\?[2J0";

        fake.missing_namespace = "gone";
        ctl_expect(EXIT_NOT_FOUND, "",
                   "kvcachectl: there is no namespace 'gone'\n"
                   "The namespace does not exist yet; the first put creates it.\n",
                   "get", "k", "-n", "gone");
        for (unsigned i = 0; i < ARRAY_SIZE(list); i++)
                snprintf(list[i].name, sizeof(list[i].name), "a\033[2J%u", i);
        fake.namespaces = list;
        fake.n_namespaces = 1;
        ctl_expect(EXIT_NOT_FOUND, "", strcat(expected, "\n"), "get", "k", "-n", "gone");
        fake.n_namespaces = ARRAY_SIZE(list);
        assert_int_equal(ctl("get", "k", "-n", "gone"), EXIT_NOT_FOUND);
        has(ctl_err, "a?[2J19, and more: kvcachectl namespace ls\n");
        lacks(ctl_err, "J20");
        fake.scripts[FAKE_NAMESPACE_LIST].result = -EOPNOTSUPP; /* an old daemon */
        ctl_expect(EXIT_NOT_FOUND, "", "kvcachectl: there is no namespace 'gone'\n", "get", "k",
                   "-n", "gone");
}

static void get_reports_output_that_cannot_be_written(void **state)
{
        ctl_store("k", "0123456789");
        ctl_expect(EXIT_LOCAL, "",
                   "kvcachectl: cannot write /nowhere/file: No such file or directory\n", "get",
                   "k", "-o", "/nowhere/file");
        ctl_expect(EXIT_LOCAL, "", "kvcachectl: cannot write /dev/full: No space left on device\n",
                   "get", "k", "-o", "/dev/full");
        assert_int_equal(access("/dev/full", F_OK), 0); /* only a regular file is removed */
}

static void get_removes_a_file_that_it_cannot_write_whole(void **state)
{
        static char bytes[200 * 1024];
        struct rlimit before, low;
        char path[256], err[512];

        memset(bytes, 'x', sizeof(bytes) - 1);
        ctl_store("k", bytes);
        snprintf(path, sizeof(path), "%s", ctl_path("partial"));
        snprintf(err, sizeof(err), "kvcachectl: cannot write %s: File too large\n", path);
        signal(SIGXFSZ, SIG_IGN);
        assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
        low = (struct rlimit){ 64 * 1024, before.rlim_max };
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
        ctl_expect(EXIT_LOCAL, "", err, "get", "k", "-o", path);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_int_equal(access(path, F_OK), -1);
}

static void get_reports_a_daemon_that_goes_away(void **state)
{
        ctl_store("k", "0123456789");
        fake.scripts[FAKE_SUBMIT] = (struct fake_script){ -ECONNRESET, "closed" };
        ctl_expect(EXIT_UNREACHABLE, "", "kvcachectl: get: the daemon went away: closed\n", "get",
                   "k");
        fake.scripts[FAKE_SUBMIT].result = 0;
        fake.lease_quota = 1;
        fake.die_at_call = 1;
        ctl_expect(EXIT_UNREACHABLE, "", NULL, "get", "k");
}

static void get_explains_wrong_usage(void **state)
{
        ctl_expect(EXIT_WRONG_USAGE, "", "kvcachectl: one key is needed\n" SEE_GET, "get");
        ctl_expect(EXIT_WRONG_USAGE, "", "kvcachectl: one key is needed\n" SEE_GET, "get", "a",
                   "b");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: 'hex:12' is not a key: use any text, or hex: and 64 hex digits "
                   "that are not all 0\n" SEE_GET,
                   "get", "hex:12");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: --length: at least 1 byte must be read\n" SEE_GET, "get", "k",
                   "--length=0");
        ctl_expect(
                EXIT_WRONG_USAGE, "",
                "kvcachectl: --offset: '3X' is not a size; write it like 4096, 64KiB or 1.5GiB\n",
                "get", "k", "--offset=3X");
        ctl_expect(EXIT_WRONG_USAGE, "", "kvcachectl: --offset: '16777216TiB' is too large\n",
                   "get", "k", "--offset=16777216TiB");
        assert_int_equal(ctl("get", "k", "--json"), EXIT_WRONG_USAGE);
        has(ctl_err,
            "--json needs --output: standard output cannot have both the chunk and the JSON");
        assert_int_equal(fake.made[FAKE_CONNECT], 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                CTL_TEST(put_stores_standard_input_and_prints_the_digits),
                CTL_TEST(put_passes_its_options_to_the_library),
                CTL_TEST(put_makes_a_missing_namespace_with_the_raw_format),
                CTL_TEST(put_of_an_existing_key_says_that_the_first_one_wins),
                CTL_TEST(put_reports_each_refusal_with_its_cause),
                CTL_TEST(put_that_is_not_durable_is_reported_and_refused),
                CTL_TEST(put_refuses_input_that_is_no_chunk),
                CTL_TEST(put_takes_input_larger_than_its_first_buffer),
                CTL_TEST(put_reports_namespaces_that_cannot_be_opened),
                CTL_TEST(put_explains_wrong_usage),
                CTL_TEST(key_cannot_steer_the_terminal),
                CTL_TEST(get_writes_a_chunk_to_a_file_and_describes_it_in_json),
                CTL_TEST(get_passes_the_range_to_the_library),
                CTL_TEST(get_of_a_missing_key_exits_with_1_and_leaves_no_file),
                CTL_TEST(get_from_a_missing_namespace_lists_those_that_exist),
                CTL_TEST(get_reports_output_that_cannot_be_written),
                CTL_TEST(get_removes_a_file_that_it_cannot_write_whole),
                CTL_TEST(get_reports_a_daemon_that_goes_away),
                CTL_TEST(get_explains_wrong_usage),
        };

        return cmocka_run_group_tests(tests, NULL, ctl_remove_files);
}
