/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that may be registered, and memory that may not: rule R2. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "cache/region.h"
#include "checked.h"

enum { PAGE = 4096, PAGES = 16, BYTES = PAGE * PAGES };

/* Writes to every page of the file. */
static void fill(int fd)
{
        static const char page[PAGE] = "page";

        for (unsigned i = 0; i < PAGES; i++)
                assert_int_equal(pwrite(fd, page, PAGE, (off_t)i * PAGE), PAGE);
}

static int memfd(unsigned flags, int seals)
{
        int fd = memfd_create("test-region", MFD_CLOEXEC | flags);

        assert_true(fd >= 0);
        fill(fd);
        if (seals)
                assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
        return fd;
}

/* Makes an unlinked file in `dir`, or skips the test if there is no such directory. */
static int file_in(const char *dir)
{
        char path[256];
        int fd;

        snprintf(path, sizeof(path), "%s/kvcache-test-region-XXXXXX", dir);
        fd = mkostemp(path, O_CLOEXEC);
        if (fd < 0) {
                print_message("no file in %s: %s\n", dir, strerror(errno));
                skip();
        }
        unlink(path);
        fill(fd);
        return fd;
}

static void assert_refused(int fd, uint64_t offset, uint64_t bytes, const char *why)
{
        struct region_identity file = { .inode = 7 };
        const char *wrong = NULL;

        assert_int_equal(region_check(fd, offset, bytes, &file, &wrong), -EINVAL);
        assert_non_null(wrong);
        assert_non_null(strstr(wrong, why));
        assert_int_equal(file.inode, 7);
}

static void assert_taken(int fd, uint64_t offset, uint64_t bytes)
{
        struct region r = { 0 };
        struct region_identity file;
        const char *wrong = NULL;
        char *theirs = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);

        assert_true(theirs != MAP_FAILED);
        assert_int_equal(region_check(fd, offset, bytes, &file, &wrong), 0);
        assert_null(wrong);
        assert_int_equal(region_map(&r, fd, offset, bytes), 0);
        assert_int_equal(r.bytes, bytes);
        /* Both sides see the same memory. */
        theirs[0] = 'x';
        assert_int_equal(*(char *)r.base, 'x');
        ((char *)r.base)[bytes - 1] = 'y';
        assert_int_equal(theirs[bytes - 1], 'y');
        munmap(theirs, bytes);
        assert_ptr_equal(region_at(&r, 1, bytes - 1), (char *)r.base + 1);
        assert_null(region_at(&r, 1, bytes));
        assert_null(region_at(&r, UINT64_MAX, 2));
        assert_null(region_at(&r, bytes + 1, 0));
        region_unmap(&r);
        assert_null(region_at(&r, 0, 1));
}

static void test_R2_a_memfd_is_taken_sealed_against_shrinking_or_not(void **state)
{
        const int seals[] = {
                0,
                F_SEAL_GROW,
                F_SEAL_SEAL,
                F_SEAL_SHRINK,
                F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
        };
        int never = memfd(0, 0);

        assert_taken(never, 0, BYTES);
        close(never);
        for (unsigned i = 0; i < ARRAY_SIZE(seals); i++) {
                int fd = memfd(MFD_ALLOW_SEALING, seals[i]);

                assert_taken(fd, 0, BYTES);
                assert_taken(fd, PAGE, BYTES - 2 * PAGE);
                close(fd);
        }
}

static void test_R2_what_has_a_hole_is_refused_wherever_that_is(void **state)
{
        static const uint64_t holes[] = { 0, PAGES / 2, PAGES - 1 };

        for (unsigned i = 0; i < 3; i++) {
                int fd = memfd(MFD_ALLOW_SEALING, F_SEAL_SHRINK);
                uint64_t at = holes[i] * PAGE;

                assert_int_equal(
                        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, PAGE),
                        0);
                assert_refused(fd, 0, BYTES, "hole");
                assert_refused(fd, at, PAGE, "hole");
                /* A range beside the hole is refused as well, because only the file's owner could
                 * say where the hole is. */
                assert_refused(fd, at > 0 ? 0 : PAGE, PAGE, "hole");
                close(fd);
        }
}

static void test_R2_an_empty_file_is_all_hole(void **state)
{
        int fd = memfd_create("test-region", MFD_CLOEXEC | MFD_ALLOW_SEALING);

        assert_int_equal(ftruncate(fd, BYTES), 0);
        assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
        assert_refused(fd, 0, BYTES, "hole");
        assert_int_equal(fallocate(fd, 0, 0, BYTES), 0);
        assert_taken(fd, 0, BYTES);
        close(fd);
}

static void test_R2_a_file_on_tmpfs_is_taken_and_one_on_a_disk_is_not(void **state)
{
        int shm = file_in("/dev/shm"), disk;

        assert_true(region_is_memory(shm));
        assert_taken(shm, 0, BYTES);
        close(shm);
        disk = open(".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        if (disk < 0 || region_is_memory(disk)) {
                print_message("the build folder is on tmpfs, or has no O_TMPFILE\n");
                skip();
        }
        assert_int_equal(ftruncate(disk, BYTES), 0);
        assert_refused(disk, 0, BYTES, "neither");
        close(disk);
}

static void test_R2_what_is_no_memory_is_refused_without_being_asked(void **state)
{
        int pipes[2], directory = open("/dev/shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        int null = open("/dev/zero", O_RDWR | O_CLOEXEC);

        assert_int_equal(pipe(pipes), 0);
        for (unsigned i = 0; i < 2; i++) {
                assert_false(region_is_memory(pipes[i]));
                assert_refused(pipes[i], 0, PAGE, "neither");
        }
        assert_refused(directory, 0, PAGE, "neither");
        assert_refused(null, 0, PAGE, "neither");
        assert_refused(-1, 0, PAGE, "neither");
        close(pipes[0]);
        close(pipes[1]);
        close(directory);
        close(null);
}

static void test_R2_what_cannot_be_written_is_refused(void **state)
{
        int fd = memfd(MFD_ALLOW_SEALING, F_SEAL_SHRINK), copy, path_only;
        int sealed = memfd(MFD_ALLOW_SEALING, F_SEAL_SHRINK | F_SEAL_WRITE);
        int future = memfd(MFD_ALLOW_SEALING, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE);
        char path[64];

        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        copy = open(path, O_RDONLY | O_CLOEXEC);
        path_only = open(path, O_PATH | O_CLOEXEC);
        assert_true(copy >= 0 && path_only >= 0);
        assert_refused(copy, 0, BYTES, "reading and writing");
        assert_refused(path_only, 0, BYTES, "neither");
        assert_refused(sealed, 0, BYTES, "against writing");
        assert_refused(future, 0, BYTES, "against writing");
        close(copy);
        close(path_only);
        close(sealed);
        close(future);
        close(fd);
}

static void test_R2_the_stretch_lies_within_the_file_and_on_its_pages(void **state)
{
        int fd = memfd(MFD_ALLOW_SEALING, F_SEAL_SHRINK);

        assert_refused(fd, 0, BYTES + PAGE, "ends before");
        assert_refused(fd, BYTES, PAGE, "ends before");
        assert_refused(fd, UINT64_MAX - PAGE + 1, PAGE, "ends before");
        assert_refused(fd, UINT64_MAX / 2 + 1, PAGE, "ends before");
        assert_refused(fd, 0, PAGE + 1, "page size");
        assert_refused(fd, 0, 0, "page size");
        assert_refused(fd, 512, PAGE, "page size");
        close(fd);
}

static void the_position_in_the_file_stays_the_clients(void **state)
{
        int fd = memfd(MFD_ALLOW_SEALING, F_SEAL_SHRINK);

        assert_int_equal(lseek(fd, 123, SEEK_SET), 123);
        assert_taken(fd, 0, BYTES);
        assert_int_equal(lseek(fd, 0, SEEK_CUR), 123);
        close(fd);
}

#define HUGE_PAGES "/proc/sys/vm/nr_hugepages"

/* Reserves huge pages. Returns the number that was reserved before, or -1. */
static long reserve_huge_pages(long more)
{
        FILE *f = fopen(HUGE_PAGES, "r+e");
        long before = -1;

        if (!f)
                return -1;
        if (fscanf(f, "%ld", &before) == 1) {
                rewind(f);
                fprintf(f, "%ld\n", before + more);
        }
        return fclose(f) == 0 ? before : -1;
}

/* Huge pages belong to the machine: tests that use them take turns, as in daemon/buffers.py. */
static int take_turn_with_huge_pages(void)
{
        int turn = open(HUGE_PAGES, O_RDONLY | O_CLOEXEC);

        assert_true(turn >= 0);
        assert_int_equal(flock(turn, LOCK_EX), 0);
        return turn;
}

static void test_R2_huge_pages_are_taken_whole(void **state)
{
        int fd = memfd_create("test-region", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
        struct stat st;
        bool reserved;
        off_t huge;
        int turn, r;

        if (fd < 0 || fstat(fd, &st) < 0) {
                print_message("no hugetlbfs here: %s\n", strerror(errno));
                skip();
        }
        huge = st.st_blksize;
        assert_int_equal(ftruncate(fd, 2 * huge), 0);
        assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
        assert_true(region_is_memory(fd));
        assert_refused(fd, 0, (uint64_t)huge * 2, "hole");
        assert_refused(fd, PAGE, (uint64_t)huge, "page size");
        turn = take_turn_with_huge_pages();
        reserved = reserve_huge_pages(2) >= 0;
        r = fallocate(fd, 0, 0, 2 * huge) < 0 ? errno : 0;
        if (reserved)
                (void)reserve_huge_pages(-2); /* the pages are returned when they are free again */
        if (r != 0) {
                print_message("cannot reserve two huge pages: %s\n", strerror(r));
                assert_int_equal(r, ENOSPC);
                close(fd);
                close(turn);
                skip();
        }
        assert_taken(fd, (uint64_t)huge, (uint64_t)huge);
        close(fd);
        close(turn);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_R2_a_memfd_is_taken_sealed_against_shrinking_or_not),
                cmocka_unit_test(test_R2_what_has_a_hole_is_refused_wherever_that_is),
                cmocka_unit_test(test_R2_an_empty_file_is_all_hole),
                cmocka_unit_test(test_R2_a_file_on_tmpfs_is_taken_and_one_on_a_disk_is_not),
                cmocka_unit_test(test_R2_what_is_no_memory_is_refused_without_being_asked),
                cmocka_unit_test(test_R2_what_cannot_be_written_is_refused),
                cmocka_unit_test(test_R2_the_stretch_lies_within_the_file_and_on_its_pages),
                cmocka_unit_test(the_position_in_the_file_stays_the_clients),
                cmocka_unit_test(test_R2_huge_pages_are_taken_whole),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
