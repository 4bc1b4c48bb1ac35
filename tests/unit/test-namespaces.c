/* SPDX-License-Identifier: Apache-2.0 */
/* store/volume/namespace-file.c and dir.c: which copies of a volume's namespaces files and
 * superblock are trusted at startup, and what is written before one of them is overwritten. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "checked.h"
#include "store/volume/namespace.h"

#define RESERVE UINT64_C(65536)

static struct {
        char path[64];
        struct dir *dir;
        struct namespaces *names;
        bool lost;
        unsigned writes_at[8]; /* by page: whole writes that began there, while counting */
        bool counting;
} t;

ssize_t __real_pwrite64(int fd, const void *buf, size_t bytes, off_t offset);
ssize_t __wrap_pwrite64(int fd, const void *buf, size_t bytes, off_t offset);

ssize_t __wrap_pwrite64(int fd, const void *buf, size_t bytes, off_t offset)
{
        if (t.counting && offset / DISK_PAGE < (off_t)ARRAY_SIZE(t.writes_at))
                t.writes_at[offset / DISK_PAGE]++;
        return __real_pwrite64(fd, buf, bytes, offset);
}

static void open_dir(void)
{
        const struct dir_params params = { .path = t.path, .lock_wait_ms = 5000, .lock_fd = -1 };
        char error[512] = "";

        if (dir_open(&t.dir, &params, error) < 0 ||
            (t.dir->fresh && dir_make(t.dir, NULL, 0, 1, error) < 0))
                fail_msg("%s", error);
}

static void open_names(void)
{
        char error[512] = "";

        if (namespaces_open(&t.names, t.dir, RESERVE, &t.lost, error) < 0)
                fail_msg("%s", error);
}

static void close_all(void)
{
        t.names = namespaces_free(t.names);
        t.dir = dir_close(t.dir);
}

static void open_again(void)
{
        close_all();
        open_dir();
        open_names();
}

static int set_up(void **state)
{
        snprintf(t.path, sizeof(t.path), "/tmp/kvcache-names-XXXXXX");
        assert_non_null(mkdtemp(t.path));
        open_dir();
        open_names();
        return 0;
}

static int tear_down(void **state)
{
        static const char *const files[] = { "LOCK", "superblock", "namespaces.0", "namespaces.1" };

        close_all();
        for (unsigned i = 0; i < ARRAY_SIZE(files); i++) {
                char name[128];

                snprintf(name, sizeof(name), "%s/%s", t.path, files[i]);
                unlink(name);
        }
        return rmdir(t.path);
}

static int file_of(const char *name)
{
        char path[128];
        int fd;

        snprintf(path, sizeof(path), "%s/%s", t.path, name);
        fd = open(path, O_RDWR | O_CLOEXEC);
        assert_true(fd >= 0);
        return fd;
}

static const char *const copies[] = { "namespaces.0", "namespaces.1" };

static struct disk_namespaces header_of(unsigned copy)
{
        struct disk_namespaces h;
        int fd = file_of(copies[copy]);

        assert_int_equal(pread(fd, &h, sizeof(h), 0), sizeof(h));
        close(fd);
        return h;
}

static void flip(const char *name, uint64_t offset)
{
        int fd = file_of(name);
        char byte;

        assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
        close(fd);
}

static void note(const struct volume_set *set)
{
        namespaces_note_set(t.names, set, true);
        assert_int_equal(namespaces_write_now(t.names), 0);
}

static const struct volume_set two_missed = {
        .epoch = 40,
        .removed_at = { 3, 0, 7 },
        .missed_at = { [0] = { 11, 12 }, [1] = { 23, 5 }, [3] = { 0, 0, 40 } },
};

static void what_each_volume_has_missed_is_kept_apart(void **state)
{
        enum { top = VOLUMES_SET_MAX - 1 };
        struct volume_set last = { .epoch = 9, .missed_at = { [top] = { [5] = 9 } } },
                          by_last = { .epoch = 9, .missed_at = { [5] = { [top] = 9 } } };

        note(&two_missed);
        open_again();
        assert_memory_equal(namespaces_set(t.names), &two_missed, sizeof(two_missed));
        note(&last);
        open_again();
        memcpy(last.missed_at[0], two_missed.missed_at[0], sizeof(last.missed_at[0]));
        assert_memory_equal(namespaces_set(t.names), &last, sizeof(last));
        note(&by_last);
        open_again();
        memcpy(by_last.missed_at[0], two_missed.missed_at[0], sizeof(last.missed_at[0]));
        assert_memory_equal(namespaces_set(t.names), &by_last, sizeof(by_last));
        note(&(struct volume_set){ .epoch = 50 });
        assert_int_equal(header_of(0).set_missed_count, 0);
        assert_int_equal(header_of(0).set_claims_count, 2); /* of itself */
}

/* Other volumes report that it has missed changes; the volume itself records that it was emptied
 * for that. */
static void what_a_volume_has_missed_itself_counts_once_it_is_emptied(void **state)
{
        struct volume_set set = two_missed;

        namespaces_note_set(t.names, &set, false);
        assert_int_equal(namespaces_write_now(t.names), 0);
        open_again();
        assert_int_equal(namespaces_set(t.names)->missed_at[0][1], 0);
        assert_int_equal(namespaces_set(t.names)->missed_at[1][0], 23);
        note(&set);
        set.missed_at[0][0] = 9; /* lower than it was emptied for already */
        set.missed_at[0][2] = 13;
        note(&set);
        open_again();
        assert_int_equal(namespaces_set(t.names)->missed_at[0][0], 11);
        assert_int_equal(namespaces_set(t.names)->missed_at[0][1], 12);
        assert_int_equal(namespaces_set(t.names)->missed_at[0][2], 13);
}

/* An older version empties both by the highest epoch, never by less than required. */
static void an_older_version_reads_the_sum(void **state)
{
        note(&two_missed);
        for (unsigned i = 0; i < 2; i++) {
                struct disk_namespaces h = header_of(i);

                assert_int_equal(h.set_epoch, 40);
                assert_int_equal(h.set_missed, 1u << 1 | 1u << 3);
                assert_int_equal(h.set_missed_at, 40);
                assert_int_equal(h.set_missed_count, 4);
                assert_int_equal(h.set_emptied_at, 12 + 1);
                assert_int_equal(h.set_removed_at, 7);
                assert_int_equal(h.bytes, sizeof(h)); /* later records do not disturb it */
        }
}

/* Writes the file like an older version: with `missed_count` like the previous one, which had an
 * epoch of each volume; otherwise like one before that. */
static void write_as_older(bool missed_count)
{
        for (unsigned i = 0; i < 2; i++) {
                struct disk_namespaces h = header_of(i);
                int fd = file_of(copies[i]);

                h.set_claims_count = h.set_claims_crc = 0;
                if (!missed_count)
                        h.set_missed_count = h.set_missed_crc = 0;
                h.crc = kio_crc32c(&h.count, h.bytes - offsetof(struct disk_namespaces, count));
                assert_int_equal(pwrite(fd, &h, sizeof(h), 0), sizeof(h));
                close(fd);
        }
}

static void what_an_older_version_wrote_holds_for_each(void **state)
{
        for (unsigned round = 0; round < 2; round++) {
                const struct volume_set *set;

                note(&two_missed);
                write_as_older(round == 0);
                open_again();
                assert_false(t.lost);
                set = namespaces_set(t.names);
                assert_int_equal(set->epoch, 40);
                /* The volume was emptied for every claim that is not higher, and knows removals by
                 * all. */
                assert_int_equal(set->missed_at[0][0], 12);
                assert_int_equal(set->removed_at[0], 7);
                assert_int_equal(set->missed_at[1][0], round == 0 ? 23 : 40);
                assert_int_equal(set->missed_at[2][0], 0);
                assert_int_equal(set->missed_at[3][0], 40);
                assert_int_equal(namespaces_write_now(t.names), 0);
        }
}

/* No startup has given this epoch, and later startups would give lower ones. */
static void an_epoch_that_cannot_be_is_no_copy(void **state)
{
        note(&two_missed);
        note(&(struct volume_set){ .epoch = UINT64_MAX / 2 - 1 });
        open_again();
        assert_false(t.lost);
        note(&(struct volume_set){ .epoch = UINT64_MAX - 5 });
        open_again();
        assert_true(t.lost);
}

/* The list is whole, and what follows it is not: the copy does not count. */
static void a_torn_end_is_a_torn_copy(void **state)
{
        note(&two_missed);
        flip(copies[0], sizeof(struct disk_namespaces) + 3);
        open_again();
        assert_false(t.lost);
        assert_memory_equal(namespaces_set(t.names), &two_missed, sizeof(two_missed));
        for (unsigned i = 0; i < 2; i++)
                flip(copies[i], sizeof(struct disk_namespaces) + 3);
        open_again();
        assert_true(t.lost);
        for (unsigned i = 0; i < 2; i++)
                flip(copies[i], offsetof(struct disk_namespaces, set_missed_count));
        open_again();
        assert_true(t.lost);
        note(&two_missed);
        for (unsigned i = 0; i < 2; i++) /* the last byte that belongs to the claims */
                flip(copies[i],
                     sizeof(struct disk_namespaces) + (4 + 5 * 4) * sizeof(uint64_t) - 1);
        open_again();
        assert_true(t.lost);
}

/* The record that was read may exist in the page cache only, after a failed sync of another
 * process. A sync now would prove nothing. */
static void what_is_read_is_written_again(void **state)
{
        note(&two_missed);
        close_all();
        open_dir();
        t.counting = true;
        open_names();
        t.counting = false;
        assert_int_equal(t.writes_at[0], 2); /* each copy once, and nothing else */
        for (unsigned i = 1; i < ARRAY_SIZE(t.writes_at); i++)
                assert_int_equal(t.writes_at[i], 0);
        open_again();
        assert_memory_equal(namespaces_set(t.names), &two_missed, sizeof(two_missed));
}

/* The valid half is written before the other one is overwritten. */
static void the_half_of_a_superblock_that_counts_is_written_again(void **state)
{
        for (unsigned half = 0; half < 2; half++) {
                for (unsigned i = 0; i < 2; i++)
                        flip("superblock", (uint64_t)(2 * half + i) * DISK_PAGE + 100);
                close_all();
                memset(t.writes_at, 0, sizeof(t.writes_at));
                t.counting = true;
                open_dir();
                t.counting = false;
                for (unsigned i = 0; i < DISK_SUPERBLOCKS; i++)
                        assert_int_equal(t.writes_at[i], i == 2 * (1 - half));
                assert_int_equal(dir_write_superblock(t.dir), 0);
        }
        close_all();
        memset(t.writes_at, 0, sizeof(t.writes_at));
        t.counting = true;
        open_dir();
        t.counting = false;
        assert_int_equal(t.writes_at[0] + t.writes_at[2],
                         0); /* both copies are equal, so nothing is in doubt */
}

/* Never shorter than was asked for, and longer by less than a thousandth. */
static void a_lifetime_is_kept_to_a_thousandth(void **state)
{
        for (uint32_t code = 0; code <= UINT16_MAX; code++) {
                uint32_t s = disk_lifetime_decode((uint16_t)code);

                assert_int_equal(disk_lifetime_decode(disk_lifetime_encode(s)), s);
        }
        for (uint64_t s = 0; s <= UINT32_MAX; s += s < 1 << 20 ? 1 : s / 4096) {
                uint64_t kept = disk_lifetime_decode(disk_lifetime_encode((uint32_t)s));

                assert_in_range(kept, s, s + s / 1024);
                if (s < 2048)
                        assert_int_equal(kept, s);
        }
        assert_int_equal(disk_lifetime_decode(disk_lifetime_encode(UINT32_MAX)), UINT32_MAX);
}

static void adopt(uint32_t id, const char *name, uint32_t lifetime_s)
{
        const struct store_namespace ns = {
                .id = id, .name = name, .fingerprint = "f", .lifetime_s = lifetime_s
        };

        assert_int_equal(namespaces_adopt(t.names, &ns, UINT64_MAX / 2, 1), 0);
        assert_int_equal(namespaces_write_now(t.names), 0);
}

static uint32_t lifetime_of(uint32_t id)
{
        return namespaces_get(t.names, id)->seen.lifetime_s;
}

static void a_lifetime_is_written_down(void **state)
{
        struct disk_namespace record;
        int fd;

        adopt(1, "a", 0);
        adopt(2, "b", 90);
        open_again();
        assert_int_equal(lifetime_of(1), 0);
        assert_int_equal(lifetime_of(2), 90);
        namespaces_note_lifetime(t.names, namespaces_get(t.names, 1), 5000);
        namespaces_note_lifetime(t.names, namespaces_get(t.names, 2), 0);
        assert_int_equal(namespaces_write_now(t.names), 0);
        open_again();
        assert_int_equal(lifetime_of(1), 5000);
        assert_int_equal(lifetime_of(2), 0);

        /* Where older versions, which write 0 there, do not look. */
        fd = file_of(copies[0]);
        assert_int_equal(pread(fd, &record, sizeof(record), sizeof(struct disk_namespaces)),
                         sizeof(record));
        close(fd);
        assert_int_equal(offsetof(struct disk_namespace, lifetime), 10);
        assert_int_equal(record.lifetime, disk_lifetime_encode(5000));
}

static void error_tells_whether_a_file_is_not_opened_or_not_allocated(void **state)
{
        void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
        struct rlimit limit, low;
        char name[128], error[512];
        int r;

        t.names = namespaces_free(t.names);
        snprintf(name, sizeof(name), "%s/%s", t.path, copies[0]);
        assert_int_equal(truncate(name, 0), 0);
        assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
        low = (struct rlimit){ DISK_PAGE, limit.rlim_max };
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
        r = namespaces_open(&t.names, t.dir, RESERVE, &t.lost, error);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        assert_ptr_not_equal(signal(SIGXFSZ, before), SIG_ERR);
        assert_int_equal(r, -EFBIG);
        assert_non_null(
                strstr(error, "/namespaces.0: cannot allocate 65536 bytes: File too large"));

        snprintf(name, sizeof(name), "%s/superblock", t.path);
        assert_int_equal(unlink(name), 0);
        assert_int_equal(namespaces_open(&t.names, t.dir, RESERVE, &t.lost, error), -ESTALE);
        assert_non_null(strstr(error, "/namespaces.0: cannot open or create: "));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(what_each_volume_has_missed_is_kept_apart),
                TEST(what_a_volume_has_missed_itself_counts_once_it_is_emptied),
                TEST(an_older_version_reads_the_sum),
                TEST(what_an_older_version_wrote_holds_for_each),
                TEST(an_epoch_that_cannot_be_is_no_copy),
                TEST(a_torn_end_is_a_torn_copy),
                TEST(what_is_read_is_written_again),
                TEST(the_half_of_a_superblock_that_counts_is_written_again),
                TEST(error_tells_whether_a_file_is_not_opened_or_not_allocated),
                cmocka_unit_test(a_lifetime_is_kept_to_a_thousandth),
                TEST(a_lifetime_is_written_down),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
