/* SPDX-License-Identifier: Apache-2.0 */
/* Data files that clients read by themselves, while the store removes them. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cache-fixture.h"

/* An open of a lent file waits here, on the volume's thread, until the test lets it continue. */
static atomic_bool holds, is_held, may_continue;
static ino_t opened_inode;

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...)
{
        static const struct timespec moment = { .tv_nsec = 1000000 };
        struct stat st;
        int fd;

        if (!holds || strncmp(path, "/proc/self/fd/", 14) != 0)
                return __real_open64(path, flags);
        is_held = true;
        while (!atomic_load_explicit(&may_continue, memory_order_relaxed))
                (void)nanosleep(&moment, NULL);
        fd = __real_open64(path, flags);
        opened_inode = fd >= 0 && fstat(fd, &st) == 0 ? st.st_ino : 0;
        return fd;
}

static void opened(struct store_lent_file *file)
{
        file->complete = NULL;
}

/* Opens a name of the store's directory, or fails. */
static int open_in(const char *name, int flags)
{
        char path[sizeof(t.dir) + 32];

        snprintf(path, sizeof(path), "%s/%s", t.dir, name);
        return open(path, flags | O_CLOEXEC, 0600);
}

static bool has_data_file(void)
{
        int fd = open_in("segment-0000", O_RDONLY);

        if (fd >= 0)
                close(fd);
        return fd >= 0;
}

static void an_open_of_a_lent_file_opens_no_other_file_if_that_is_removed(void **state)
{
        struct store_borrower borrower = { .first = STORE_LOAN_NONE };
        struct store_lent_file file = { .complete = opened };
        struct store_extent extent;
        struct store_loan loan;
        struct key key = key_of(1);
        struct store_ref ref;
        struct stat lent;
        static struct req a; /* outlives a failure */
        int others[8], fd;

        put_cold(1);
        expect_get(1, CACHE_OK, 1);
        assert_int_equal(evict(1, true), CACHE_OK);
        assert_int_equal(
                store_find(t.store, t.ns, &key, cache_hash(t.cache, t.ns, &key), &ref, NULL), 0);
        if (store_lend(t.store, &borrower, ref, &loan, &extent) == STORE_NOT_LENT)
                skip();
        fd = open_in("segment-0000", O_RDONLY);
        assert_int_equal(fstat(fd, &lent), 0);
        close(fd);

        holds = true;
        file.file = extent.file;
        assert_int_equal(store_open_lent(t.store, &file), 0);
        while (!is_held)
                kio_flush(t.io);
        assert_int_equal(store_give_back(t.store, &borrower, loan), 0);
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_ERROR, .error = ENOSPC, .first = 1 });
        put_bytes(&a, 2, CACHE_WRITTEN, 1, MIB); /* in another data file */
        while (has_data_file()) {
                kio_reap(t.io);
                tiers_iterate(&t);
        }
        for (unsigned i = 0; i < 8; i++)
                others[i] = open_in("LOCK", O_RDONLY);
        atomic_store_explicit(&may_continue, true, memory_order_relaxed);
        while (file.complete) {
                kio_reap(t.io);
                tiers_iterate(&t);
        }
        assert_int_equal(file.result, -ENOENT);
        assert_int_equal(opened_inode, lent.st_ino);
        for (unsigned i = 0; i < 8; i++)
                close(others[i]);
        holds = false;
        expect(&a, CACHE_OK);
}

int main(void)
{
        static const struct CMUnitTest tests[] = {
                TEST(an_open_of_a_lent_file_opens_no_other_file_if_that_is_removed),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
