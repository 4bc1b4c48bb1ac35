/* SPDX-License-Identifier: Apache-2.0 */
/* A file system with less room than the limit: the store removes data files, and every put
 * succeeds. The room is simulated: a write fails if the files of the store would then occupy more,
 * as on a file system that keeps sparse files or never overwrites in place. */
#include "store-fixture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "checked.h"
#include "fault.h"
#include "io/io.h"

static struct {
        atomic_ullong bytes;
        atomic_bool in_place; /* a write over bytes that are there takes no room */
} room;

/* Returns the bytes that the store's files occupy. Any thread may call it. */
static uint64_t occupied(void)
{
        uint64_t bytes = 0;
        DIR *dir = opendir(t.dir);
        struct dirent *e;
        struct stat st;

        if (!dir)
                abort();
        while ((e = readdir(dir)))
                if (fstatat(dirfd(dir), e->d_name, &st, 0) == 0 && S_ISREG(st.st_mode))
                        bytes += (uint64_t)st.st_blocks * 512;
        closedir(dir);
        return bytes;
}

static bool is_refused(const struct kio_request *req, struct fault_plan *plan)
{
        off_t data = lseek(req->fd, (off_t)req->offset, SEEK_DATA);
        struct stat st;

        if (fstat(req->fd, &st) < 0)
                abort();
        if (room.in_place &&
            ((data >= 0 && (uint64_t)data == req->offset) || st.st_blocks * 512 >= st.st_size))
                return false;
        plan->kind = FAULT_ERROR;
        plan->error = ENOSPC;
        return occupied() + req->length > room.bytes;
}

static void limit_room(uint64_t bytes, bool in_place)
{
        room.bytes = bytes;
        room.in_place = in_place;
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE, .choose = is_refused });
}

/* Startup writes without kio. */
static atomic_bool is_starting; /* read by the threads of the store */

ssize_t __real_pwrite64(int fd, const void *buf, size_t bytes, off64_t offset);
ssize_t __wrap_pwrite64(int fd, const void *buf, size_t bytes, off64_t offset);
ssize_t __wrap_pwrite64(int fd, const void *buf, size_t bytes, off64_t offset)
{
        if (is_starting && occupied() + bytes > room.bytes) {
                errno = ENOSPC;
                return -1;
        }
        return __real_pwrite64(fd, buf, bytes, offset);
}

int __real_fstatvfs64(int fd, struct statvfs64 *ret);
int __wrap_fstatvfs64(int fd, struct statvfs64 *ret);
int __wrap_fstatvfs64(int fd, struct statvfs64 *ret)
{
        int r = __real_fstatvfs64(fd, ret);

        if (r == 0 && is_starting)
                ret->f_bavail = 0;
        return r;
}

static void start_sparse(void)
{
        struct store_params params = params_of(64 * MIB);

        params.prewrite = false;
        t.faults = true;
        start(&params);
}

static void a_sparse_store_evicts_when_the_file_system_is_full(void **state)
{
        start_sparse();
        limit_room(24 * MIB, true);
        for (uint64_t n = 0; n < 2000; n += 20)
                put_range(n, 20, 65536); /* each is 0, or waits for room */
        assert_true(stats().files_given_up > 0);
        assert_false(stats().bypassed);
        assert_int_equal(stats().write_errors, 0);
        assert_true(occupied() <= 24 * MIB + DEPTH * 65536); /* writes in parallel add up */
        assert_int_equal(get(1999, 65536), 0);
        assert_true(count_present(0, 2000) > 200);
        stop();

        start_sparse();
        for (uint64_t n = 3000; n < 3500; n += 20)
                put_range(n, 20, 65536);
        assert_int_equal(get(3499, 65536), 0);
        fault_set(NULL);
        stop();
}

/* Other sizes and tenants take their first slots in other files, after a hand-over. */
static void other_sizes_and_tenants_get_room_on_a_full_file_system(void **state)
{
        uint32_t other;

        start_sparse();
        limit_room(24 * MIB, true);
        put_range(0, 600, 65536);
        put_range(1000, 600, 20000);
        assert_int_equal(get(1599, 20000), 0);
        t.tenant = 1;
        assert_int_equal(open_namespace("model/b", "dtype=bf16", false, &other), 0);
        t.ns = other;
        put_range(2000, 600, 65536);
        assert_int_equal(get(2599, 65536), 0);
        fault_set(NULL);
        stop();
}

/* Nothing can be overwritten, because another program has taken the remaining room. */
static void the_table_and_the_namespaces_get_room_on_a_full_file_system(void **state)
{
        uint64_t before;
        uint32_t other;

        start_sparse();
        put_range(0, 400, 65536);
        settle();
        before = occupied();

        limit_room(before, false);
        assert_int_equal(open_namespace("model/b", "dtype=bf16", false, &other), 0);
        assert_int_equal(stats().files_given_up, 1);
        limit_room(occupied() + 65536, false); /* room for the payload, but not for the entry */
        assert_int_equal(put(1000, 65536), 0);
        assert_int_equal(stats().files_given_up, 2);
        assert_false(stats().bypassed);
        assert_int_equal(get(1000, 65536), 0);
        assert_true(count_present(0, 400) >= 300);
        fault_set(NULL);
        stop();
        start_sparse();
        assert_int_equal(get(1000, 65536), 0);
        stop();
}

static void a_store_starts_on_a_file_system_that_refuses_every_write(void **state)
{
        start_sparse();
        put_range(0, 400, 65536);
        stop();
        fault_set(NULL);
        room.bytes = occupied();
        is_starting = true;
        start_sparse();
        is_starting = false;
        assert_in_range(stats().files_given_up, 1, 4); /* files made ahead are empty */
        assert_true(count_present(0, 400) >= 300);
        assert_int_equal(put(1000, 65536), 0);
        stop();
        start_sparse();
        assert_int_equal(get(1000, 65536), 0);
        stop();
}

/* Removed files bring no room, as with a snapshot, and the start is refused. */
static void a_refused_start_gives_up_few_files_in_vain(void **state)
{
        struct store_params params = params_of(64 * MIB);
        char error[512] = "";

        start_sparse();
        put_range(0, 400, 65536);
        stop();
        fault_set(NULL);
        room.bytes = 0;
        is_starting = true;
        params.prewrite = false;
        assert_int_equal(try_open(&params, error), -ENOSPC);
        is_starting = false;
        start_sparse();
        assert_true(count_present(0, 400) >= 300);
        stop();
}

/* Removed files bring no room, as with a snapshot. */
static void few_files_are_given_up_in_vain(void **state)
{
        start_sparse();
        put_range(0, 400, 65536);
        settle();
        limit_room(0, false);
        for (uint64_t n = 1000; n < 1008; n++)
                assert_int_equal(put(n, 65536), -ENOSPC);
        assert_true(stats().files_given_up > 0);
        assert_true(count_present(0, 400) >= 200);
        assert_false(stats().bypassed);
        fault_set(NULL);
        assert_int_equal(put(2000, 65536), 0);
        stop();
}

/* A put that is tried again moves to another segment, or waits without one. A pin counts in the
 * segment of its chunk, so a pin during the put is refused. */
static void puts_on_a_full_file_system_cannot_be_pinned(void **state)
{
        struct store_tenant_usage usage;

        start_sparse();
        put_range(0, 400, 65536);
        settle();
        limit_room(0, false);
        for (unsigned i = 0; i < DEPTH; i++)
                assert_int_equal(submit_put(1000 + i, 1 << 20, false), 0);
        for (unsigned i = 0; i < DEPTH; i++)
                assert_int_equal(store_retain(t.s, slots[i].req.ref, true, UINT64_MAX), STORE_MISS);
        turn(puts_none, NULL);
        fault_set(NULL);
        store_get_tenant(t.s, t.tenant, &usage);
        assert_int_equal(usage.retained, 0);
        stop();
}

int main(int argc, char **argv)
{
        static const struct CMUnitTest tests[] = {
                TEST(a_sparse_store_evicts_when_the_file_system_is_full),
                TEST(other_sizes_and_tenants_get_room_on_a_full_file_system),
                TEST(the_table_and_the_namespaces_get_room_on_a_full_file_system),
                TEST(a_store_starts_on_a_file_system_that_refuses_every_write),
                TEST(a_refused_start_gives_up_few_files_in_vain),
                TEST(few_files_are_given_up_in_vain),
                TEST(puts_on_a_full_file_system_cannot_be_pinned),
        };

        return run_store_tests(argc, argv, tests, ARRAY_SIZE(tests), NULL, 0);
}
