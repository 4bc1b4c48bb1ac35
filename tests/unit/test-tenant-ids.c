/* SPDX-License-Identifier: Apache-2.0 */
/* Tenants in the store: a name keeps its number, a file has chunks of one tenant only and passes to
 * another without a byte of the first, and a limit evicts its own tenant's coldest chunks. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "checked.h"
#include "tenant/ids.h"
#include "tiers.h"

enum { KIB = 1024, MIB = 1024 * KIB, LENGTH = 60000 };

static struct tiers t;

static int setup(void **state)
{
        t = (struct tiers){ .limit = 16 * MIB };
        tiers_open(&t);
        return 0;
}

static int teardown(void **state)
{
        tiers_remove(&t);
        return 0;
}

static void reopen(void)
{
        tiers_close(&t);
        tiers_open(&t);
}

/* --- numbers --- */

static void assign(const char *const *names, unsigned n, uint16_t *ret)
{
        char error[256] = "";

        if (tenant_ids_assign(t.store, t.io, names, n, ret, error) < 0)
                fail_msg("%s", error);
        tiers_settle(&t);
}

static void a_name_keeps_its_number_whatever_the_order(void **state)
{
        static const char *const first[] = { "default", "red", "blue" },
                                 *const turned[] = { "blue", "new", "default", "red" },
                                 *const without[] = { "default", "newer" },
                                 *const again[] = { "newer", "new", "red", "blue" };
        uint16_t a[4], b[4];

        assign(first, 3, a);
        assert_int_equal(a[0], 0);
        assert_int_equal(a[1], 1);
        assert_int_equal(a[2], 2);
        assign(first, 3, b);
        assert_memory_equal(a, b, 3 * sizeof(a[0]));
        reopen();
        assign(turned, 4, b);
        assert_int_equal(b[0], a[2]);
        assert_int_equal(b[1], 3);
        assert_int_equal(b[2], 0);
        assert_int_equal(b[3], a[1]);
        reopen();
        /* A tenant that is no longer configured keeps its number. */
        assign(without, 2, b);
        assert_int_equal(b[1], 4);
        reopen();
        assign(again, 4, b);
        assert_int_equal(b[0], 4);
        assert_int_equal(b[1], 3);
        assert_int_equal(b[2], a[1]);
        assert_int_equal(b[3], a[2]);
}

static uint32_t open_namespace(uint16_t tenant, const char *name, const char *fingerprint)
{
        return tiers_namespace_as(&t, &(struct store_namespace_open){ .tenant = tenant,
                                                                      .name = name,
                                                                      .fingerprint = fingerprint });
}

static void numbers_that_contradict_each_other_are_refused(void **state)
{
        static const char *const bad[] = { "number=0\n", "number=65535\n", "number=x\n",
                                           "",           "number=1x\n",    "number=1" };
        static const char *const names[] = { "red" };
        char error[256], name[8];
        uint16_t number = 77;

        for (unsigned i = 0; i < ARRAY_SIZE(bad); i++) {
                snprintf(name, sizeof(name), "bad%u", i);
                open_namespace(TENANT_IDS, name, bad[i]);
                error[0] = '\0';
                assert_int_equal(tenant_ids_assign(t.store, t.io, names, 1, &number, error),
                                 -EUCLEAN);
                assert_non_null(strstr(error, "bad"));
                tiers_remove(&t);
                setup(NULL);
        }
        open_namespace(TENANT_IDS, "a", "number=3\n");
        open_namespace(TENANT_IDS, "b", "number=3\n");
        assert_int_equal(tenant_ids_assign(t.store, t.io, names, 1, &number, error), -EUCLEAN);
        assert_int_equal(number, 77);
}

static void a_number_in_use_is_not_given_again_though_its_name_is_lost(void **state)
{
        static const char *const names[] = { "red" };
        uint16_t number;

        open_namespace(1, "left over", "");
        assign(names, 1, &number);
        assert_int_equal(number, 2);
}

static void a_number_that_cannot_be_written_is_not_given(void **state)
{
        static const char *const names[] = { "red" };
        char error[256] = "";
        uint16_t number = 77;

        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE,
                                        .kind = FAULT_ERROR,
                                        .error = EIO,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
        assert_true(tenant_ids_assign(t.store, t.io, names, 1, &number, error) < 0);
        assert_non_null(strstr(error, "numbers"));
        fault_set(NULL);
}

static void test_R15_a_volume_that_hangs_does_not_hold_up_startup(void **state)
{
        static const char *const names[] = { "red" };
        struct store_volume_stats st;
        char error[256] = "";
        uint16_t number = 77;

        tiers_close(&t);
        t.hang_ms = 200;
        tiers_open(&t);
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_NEVER, .first = 1, .count = FAULT_FOR_EVER });
        if (tenant_ids_assign(t.store, t.io, names, 1, &number, error) < 0)
                fail_msg("%s", error);
        assert_int_equal(number, 1);
        assert_true(store_get_volume_stats(t.store, 0, &st));
        assert_int_equal(st.state, STORE_VOLUME_BYPASSED);
}

/* --- chunks --- */

static void fill(char *p, uint16_t tenant, uint32_t n)
{
        for (uint32_t i = 0; i < LENGTH; i += 16)
                snprintf(p + i, 16, "tenant%c%08u", 'A' + tenant, n);
}

static struct key key_of(uint32_t n)
{
        struct key k = { { 7 } };

        memcpy(k.bytes + 4, &n, sizeof(n));
        return k;
}

struct req {
        struct cache_request req;
        bool done;
};

static void on_done(struct cache_request *req)
{
        if (req->chunk != POOL_NONE)
                cache_unpin(t.cache, req->chunk);
        container_of(req, struct req, req)->done = true;
}

static void begin_put(struct req *r, uint16_t tenant, uint32_t ns, uint32_t n)
{
        static char bytes[4][LENGTH];
        char *src = bytes[n % ARRAY_SIZE(bytes)];

        *r = (struct req){ .req = { .namespace_id = ns,
                                    .tenant = tenant,
                                    .key = key_of(n),
                                    .deadline_ns = UINT64_MAX,
                                    .memory = src,
                                    .room = LENGTH,
                                    .length = LENGTH,
                                    .ack = CACHE_WRITTEN,
                                    .complete = on_done } };
        r->req.hash = cache_hash(t.cache, ns, &r->req.key);
        fill(src, tenant, n);
        cache_put(t.cache, &r->req);
}

static enum cache_status put(uint16_t tenant, uint32_t ns, uint32_t n)
{
        struct req r;

        begin_put(&r, tenant, ns, n);
        tiers_wait(&t, &r.done);
        return r.req.status;
}

static bool on_disk(uint32_t ns, uint32_t n)
{
        struct key k = key_of(n);

        return cache_find(t.cache, ns, &k, cache_hash(t.cache, ns, &k), NULL, NULL) & CACHE_DISK;
}

/* Counts the files with bytes of the tenant. Fails if one of them has bytes of the other tenant. */
static unsigned files_of(uint16_t tenant, uint16_t other)
{
        char mark[8], foreign[8], path[512];
        unsigned found = 0;
        DIR *dir = opendir(t.dir);
        char *text = malloc(MIB * 8);

        snprintf(mark, sizeof(mark), "tenant%c", 'A' + tenant);
        snprintf(foreign, sizeof(foreign), "tenant%c", 'A' + other);
        for (struct dirent *e; (e = readdir(dir));) {
                ssize_t n;
                int fd;

                if (strncmp(e->d_name, "segment", 7) != 0)
                        continue;
                snprintf(path, sizeof(path), "%s/%s", t.dir, e->d_name);
                fd = open(path, O_RDONLY);
                n = read(fd, text, MIB * 8);
                close(fd);
                assert_true(n >= 0);
                if (!memmem(text, (size_t)n, mark, 7))
                        continue;
                found++;
                if (memmem(text, (size_t)n, foreign, 7))
                        fail_msg("%s has bytes of both tenants", e->d_name);
        }
        closedir(dir);
        free(text);
        return found;
}

static void test_R1_a_file_has_bytes_of_one_tenant_only(void **state)
{
        uint32_t a = open_namespace(1, "n", ""), b = open_namespace(2, "n", "");
        struct store_tenant_usage one, two;

        assert_int_not_equal(a, b);
        for (uint32_t i = 0; i < 40; i++) {
                assert_int_equal(put(1, a, i), CACHE_OK);
                assert_int_equal(put(2, b, i), CACHE_OK);
        }
        tiers_settle(&t);
        assert_true(files_of(1, 2) > 0);
        assert_true(files_of(2, 1) > 0);
        store_get_tenant(t.store, 1, &one);
        store_get_tenant(t.store, 2, &two);
        assert_int_equal(one.bytes, two.bytes);
        assert_true(one.bytes >= 40 * round_up(LENGTH, 4096));
        assert_true(one.limit == UINT64_MAX);

        /* The store is full of the first tenant's chunks; the second tenant then takes over
         * files. */
        for (uint32_t i = 0; i < 400; i++)
                assert_int_equal(put(1, a, i), i < 40 ? CACHE_EXISTS : CACHE_OK);
        for (uint32_t i = 0; i < 400; i++)
                assert_int_not_equal(put(2, b, 1000 + i), CACHE_FAILED);
        tiers_settle(&t);
        assert_true(files_of(2, 1) > 1);
        assert_true(on_disk(b, 1399));
        reopen();
        (void)files_of(1, 2);
        assert_true(on_disk(b, 1399));
        store_get_tenant(t.store, 2, &two);
        assert_true(two.bytes > 0);
        for (uint32_t i = 0; i < 100; i++)
                assert_int_equal(put(1, a, 2000 + i), CACHE_OK);
        tiers_settle(&t);
        (void)files_of(1, 2);
}

/* Stands before the C library's, and lets so many wipes fail. */
static _Atomic int wipes_to_fail;

int fallocate(int fd, int mode, off_t offset, off_t length)
{
        if (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE) && wipes_to_fail > 0) {
                wipes_to_fail--;
                errno = EIO;
                return -1;
        }
        return (int)syscall(SYS_fallocate, fd, mode, offset, length);
}

static void a_file_that_could_not_be_wiped_is_wiped_for_the_next_put(void **state)
{
        uint32_t a = open_namespace(1, "n", ""), b = open_namespace(2, "n", "");

        for (uint32_t i = 0; i < 400; i++)
                assert_int_equal(put(1, a, i), CACHE_OK);
        wipes_to_fail = 2;
        assert_int_equal(put(2, b, 0), CACHE_FAILED);
        assert_int_equal(put(2, b, 1), CACHE_FAILED);
        assert_int_equal(wipes_to_fail, 0);
        for (uint32_t i = 2; i < 10; i++)
                assert_int_equal(put(2, b, i), CACHE_OK);
        tiers_settle(&t);
        assert_true(files_of(2, 1) > 0);
}

static void test_R10_a_limit_takes_the_tenants_own_coldest(void **state)
{
        uint32_t a = open_namespace(1, "n", ""), b = open_namespace(2, "n", "");
        uint64_t slot = round_up(LENGTH, 4096);
        struct store_tenant_usage u;

        store_set_tenant_limit(t.store, 1, 10 * slot + 4095);
        for (uint32_t i = 0; i < 10; i++)
                assert_int_equal(put(2, b, i), CACHE_OK);
        for (uint32_t i = 0; i < 30; i++) {
                assert_int_equal(put(1, a, i), CACHE_OK);
                store_get_tenant(t.store, 1, &u);
                assert_true(u.bytes <= 10 * slot);
        }
        for (uint32_t i = 0; i < 30; i++)
                assert_int_equal(on_disk(a, i), i >= 20);
        for (uint32_t i = 0; i < 10; i++)
                assert_true(on_disk(b, i));
        store_set_tenant_limit(t.store, 1, 3 * slot);
        store_get_tenant(t.store, 1, &u);
        assert_int_equal(u.bytes, 3 * slot);
        assert_true(on_disk(a, 29) && on_disk(a, 27) && !on_disk(a, 26));
        /* The limit is less than one chunk: none is stored, and no other tenant loses one. */
        store_set_tenant_limit(t.store, 1, slot / 2);
        assert_int_equal(put(1, a, 100), CACHE_TOO_LARGE);
        assert_true(on_disk(b, 0));
        store_set_tenant_limit(t.store, 1, 0);
        assert_int_equal(put(1, a, 101), CACHE_OK);
}

static void test_R10_what_no_share_can_hold_does_not_wait(void **state)
{
        uint32_t a = open_namespace(1, "n", ""), b = open_namespace(2, "n", "");
        struct req first, held, large, after;

        store_set_tenant_limit(t.store, 1, LENGTH / 2);
        begin_put(&first, 2, b,
                  0); /* the tenant has its own data file, so no table write is needed */
        tiers_wait(&t, &first.done);
        assert_int_equal(first.req.status, CACHE_OK);
        tiers_settle(&t);
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_NEVER, .first = 1, .count = 1 });
        begin_put(&held, 2, b, 1);
        tiers_wait_hits(&t, 1);
        /* An operation will complete some time, but that cannot help the second put. */
        begin_put(&large, 1, a, 2);
        begin_put(&after, 2, b, 3);
        tiers_wait(&t, &after.done);
        assert_int_equal(after.req.status, CACHE_OK);
        tiers_wait(&t, &large.done); /* another worker copies it, so either may be first */
        assert_int_equal(large.req.status, CACHE_TOO_LARGE);
        assert_false(held.done);
        fault_release();
        tiers_wait(&t, &held.done);
        assert_int_equal(held.req.status, CACHE_OK);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(a_name_keeps_its_number_whatever_the_order),
                TEST(numbers_that_contradict_each_other_are_refused),
                TEST(a_number_in_use_is_not_given_again_though_its_name_is_lost),
                TEST(a_number_that_cannot_be_written_is_not_given),
                TEST(test_R15_a_volume_that_hangs_does_not_hold_up_startup),
                TEST(test_R1_a_file_has_bytes_of_one_tenant_only),
                TEST(a_file_that_could_not_be_wiped_is_wiped_for_the_next_put),
                TEST(test_R10_a_limit_takes_the_tenants_own_coldest),
                TEST(test_R10_what_no_share_can_hold_does_not_wait),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
