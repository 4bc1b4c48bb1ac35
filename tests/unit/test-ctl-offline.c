/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl verify --store and store check over a store that the daemon's code has written. */
#include <fcntl.h>
#include <unistd.h>

#include "build-config.h"
#include "ctl-fixture.h"
#include "store-fixture.h"

/* Exit statuses of verify, which differ from those of other commands. */
enum { ALL_GOOD = 0, DROPPED = 1, NOT_RUN = 2 };

static int make_store(void **state)
{
        ctl_reset(state);
        t.backend = "posix";
        t.root = "/tmp";
        return setup(state);
}

/* Puts `n` chunks, and closes the store. */
static void fill(uint64_t n)
{
        start_limit(64 * MIB);
        put_range(0, n, 5000);
        stop();
}

static const char *hex_of(uint64_t n)
{
        static char hex[KEY_TEXT_BYTES];
        struct key key = key_of(n);

        key_print((const struct kvcache_key *)&key, hex);
        return hex;
}

/* Turns a bit in the payload of chunk `n`. Returns where the payload begins. */
static off_t spoil(uint64_t n, unsigned *ret_segment)
{
        char name[64];
        off_t offset = 0;

        assert_true(find_payload(n, 5000, name, &offset));
        assert_int_equal(sscanf(name, "segment-%x", ret_segment), 1);
        flip_byte(name, offset + 4321);
        return offset;
}

static void verify_of_a_store_reads_every_chunk(void **state)
{
        fill(12);
        ctl_expect(ALL_GOOD, NULL, "", "verify", "--store", t.dir);
        assert_ptr_equal(strstr(ctl_out, "12 chunks in 1 segment, 58.6 KiB, in "), ctl_out);
        has(ctl_out, ": all good\n");
        assert_int_equal(fake.made[FAKE_CONNECT], 0);
}

static void verify_of_a_store_drops_the_bad_chunk_and_names_it(void **state)
{
        char expected[256];
        unsigned segment;

        fill(12);
        (void)spoil(7, &segment);
        ctl_expect(DROPPED, NULL, "", "verify", "--store", t.dir);
        snprintf(expected, sizeof(expected),
                 "dropped: %s in namespace model/a: checksum does not match\n", hex_of(7));
        assert_ptr_equal(strstr(ctl_out, expected), ctl_out);
        has(ctl_out, ": 1 did not match, 0 could not be read: dropped\n");
        ctl_expect(ALL_GOOD, NULL, "", "verify", "--store", t.dir);
        has(ctl_out, "11 chunks in 1 segment, ");
}

static void finding_in_json_has_its_place(void **state)
{
        char expected[PATH_MAX + 512];
        unsigned segment;
        off_t offset;

        fill(3);
        offset = spoil(1, &segment);
        ctl_expect(DROPPED, NULL, "", "verify", "-j", "--store", t.dir);
        snprintf(expected, sizeof(expected),
                 "\"findings\":[{\"namespace\":\"model/"
                 "a\",\"key\":\"%s\",\"segment\":%u,\"offset\":%lld,"
                 "\"length\":5000,\"error\":\"checksum does not match\"}]",
                 hex_of(1), segment, (long long)offset);
        has(ctl_out, expected);
        has(ctl_out, "\"clean\":true,\"chunks_found\":3,\"damaged_table_pages\":0,"
                     "\"lost_files\":0,\"lost_chunks\":0}]");
        has(ctl_out, "\"complete\":true}\n");
}

static void store_of_a_killed_daemon_is_reported_as_such(void **state)
{
        char expected[PATH_MAX + 512];

        in_killed_process(put_some);
        ctl_expect(ALL_GOOD, NULL, "", "verify", "--store", t.dir);
        snprintf(expected, sizeof(expected), "%s: the store was not closed cleanly\n", t.dir);
        has(ctl_out, expected);
        has(ctl_out, "350 chunks in ");
}

static void store_in_use_is_refused_with_its_process(void **state)
{
        char err[PATH_MAX + 512];

        start_limit(64 * MIB);
        snprintf(err, sizeof(err),
                 "kvcachectl: %s: a daemon or another kvcachectl verify has this store open "
                 "(process "
                 "%d); if it is a daemon, leave out --store, so that the daemon verifies it\n",
                 t.dir, getpid());
        ctl_expect(NOT_RUN, "", err, "verify", "--store", t.dir);
}

static void verify_goes_on_to_the_next_store(void **state)
{
        fill(2);
        ctl_expect(NOT_RUN, NULL, "kvcachectl: /nowhere: No such file or directory\n", "verify",
                   "--store=/nowhere", "--store", t.dir);
        has(ctl_out, "2 chunks in 1 segment, ");
        has(ctl_out, ": nothing bad so far\n");
}

/* --- store check --- */

static void change_superblocks(void (*change)(struct disk_superblock *sb))
{
        int fd = file_of("superblock", O_RDWR);

        for (off_t at = 0; at < 4 * DISK_PAGE; at += DISK_PAGE) {
                struct disk_superblock sb;

                assert_int_equal(pread(fd, &sb, sizeof(sb), at), sizeof(sb));
                change(&sb);
                sb.crc = disk_superblock_crc(&sb);
                assert_int_equal(pwrite(fd, &sb, sizeof(sb), at), sizeof(sb));
        }
        close(fd);
}

static void need_what_this_version_lacks(struct disk_superblock *sb)
{
        sb->incompat = UINT64_C(1) << 40;
}

static void store_check_says_that_this_version_opens_the_store(void **state)
{
        char expected[PATH_MAX + 512];

        fill(1);
        snprintf(expected, sizeof(expected),
                 "%s: format version 1, features: none\n"
                 "  version " KVCACHE_BUILD_VERSION " opens it and keeps its format\n"
                 "  another version opens it as it is now if it knows format version 1\n",
                 t.dir);
        ctl_expect(EXIT_OK, expected, "", "store", "check", t.dir);
        snprintf(expected, sizeof(expected),
                 "{\"version\":\"" KVCACHE_BUILD_VERSION
                 "\",\"format_version\":1,\"known_flags\":{");
        assert_int_equal(ctl("store", "check", "-j", t.dir), EXIT_OK);
        assert_ptr_equal(strstr(ctl_out, expected), ctl_out);
        snprintf(expected, sizeof(expected),
                 "\"volumes\":[{\"volume\":\"%s\",\"format_version\":1,\"flags\":{", t.dir);
        has(ctl_out, expected);
        has(ctl_out, "\"opens\":true}]}\n");
}

static void store_check_exits_with_1_if_this_version_refuses_the_store(void **state)
{
        fill(1);
        change_superblocks(need_what_this_version_lacks);
        ctl_expect(EXIT_NOT_FOUND, NULL, "", "store", "check", t.dir);
        has(ctl_out, "\n  version " KVCACHE_BUILD_VERSION " refuses it, and does not change it: ");
        has(ctl_out, "incompat 0x10000000000");
        ctl_expect(EXIT_NOT_FOUND, NULL, "", "-j", "store", "check", t.dir);
        has(ctl_out, "\"incompat\":\"0x10000000000\"},");
        has(ctl_out, "\"opens\":false,\"reason\":\"");
        ctl_expect(EXIT_BAD_INPUT, NULL, NULL, "store", "check", t.dir, "/nowhere");
        ctl_expect(NOT_RUN, "", NULL, "verify", "--store", t.dir);
        has(ctl_err, "incompat 0x10000000000");
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, make_store, teardown)
        const struct CMUnitTest tests[] = {
                CASE(verify_of_a_store_reads_every_chunk),
                CASE(verify_of_a_store_drops_the_bad_chunk_and_names_it),
                CASE(finding_in_json_has_its_place),
                CASE(store_of_a_killed_daemon_is_reported_as_such),
                CASE(store_in_use_is_refused_with_its_process),
                CASE(verify_goes_on_to_the_next_store),
                CASE(store_check_says_that_this_version_opens_the_store),
                CASE(store_check_exits_with_1_if_this_version_refuses_the_store),
        };

        return cmocka_run_group_tests(tests, NULL, ctl_remove_files);
}
