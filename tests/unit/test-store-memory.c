/* SPDX-License-Identifier: Apache-2.0 */
/* store/: memory that a client shares, and which chunks are being read. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "checked.h"
#include "fault.h"
#include "store-fixture.h"

static struct {
        int fd;
        char *at;
        uint64_t bytes;
        struct kio_region region;
        bool use_region;
} f;
static _Alignas(4096) char tail[4096];

static void share(uint64_t bytes)
{
        f.fd = memfd_create("shared", MFD_CLOEXEC);
        f.bytes = bytes;
        assert_true(f.fd >= 0);
        assert_int_equal(ftruncate(f.fd, (off_t)bytes), 0);
        f.at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, f.fd, 0);
        assert_ptr_not_equal(f.at, MAP_FAILED);
}

static void unshare_it(void)
{
        munmap(f.at, f.bytes);
        close(f.fd);
}

static bool put_over(const void *arg)
{
        return ((const struct store_put *)arg)->complete == NULL;
}

static void put_is_over(struct store_put *req)
{
        req->complete = NULL;
}

/* Puts the bytes at f.at in place; the caller has computed the checksum and filled the tail. */
static int put_foreign(uint64_t n, uint32_t length, uint32_t crc)
{
        static struct store_put req;
        int r;

        req = (struct store_put){ .namespace_id = t.ns,
                                  .key = key_of(n),
                                  .buf = f.at,
                                  .tail = tail,
                                  .foreign = true,
                                  .length = length,
                                  .crc = crc,
                                  .complete = put_is_over };
        req.hash = store_hash(t.s, t.ns, &req.key);
        r = store_put(t.s, &req);
        if (r != 0)
                return r;
        turn(put_over, &req);
        return req.result;
}

static int begin_get_foreign(struct store_get *req, uint64_t n, uint32_t room)
{
        *req = (struct store_get){ .namespace_id = t.ns,
                                   .key = key_of(n),
                                   .buf = f.at,
                                   .room = room,
                                   .tail = tail,
                                   .region = f.use_region ? &f.region : NULL,
                                   .foreign = true,
                                   .complete = get_complete };
        req->hash = store_hash(t.s, t.ns, &req->key);
        got = false;
        return store_get(t.s, req);
}

static int get_foreign(uint64_t n, uint32_t room)
{
        static struct store_get req;
        int r = begin_get_foreign(&req, n, room);

        if (r != 0)
                return r;
        turn(get_done, NULL);
        return req.result;
}

static void odd_chunks_come_from_and_go_to_memory_of_their_length(void **state)
{
        static const uint32_t lengths[] = { 1, 4095, 4096, 4097, 16384, 65536 + 1, 300000 };
        char *expected = malloc(MIB);

        assert_non_null(expected);
        share(MIB);
        start_limit(64 * MIB);
        for (unsigned i = 0; i < ARRAY_SIZE(lengths); i++) {
                uint32_t length = lengths[i], body = length & ~4095u;

                payload_of(i, expected, length);
                memset(f.at, 0xaa, f.bytes);
                memcpy(f.at, expected, body);
                memset(tail, 0, sizeof(tail));
                memcpy(tail, expected + body, length - body);
                assert_int_equal(put_foreign(i, length, kio_crc32c(expected, length)), 0);
                assert_int_equal(get(i, length), 0);

                memset(f.at, 0xaa, f.bytes);
                assert_int_equal(get_foreign(i, length - 1), STORE_TOO_LARGE);
                assert_int_equal(get_foreign(i, length), 0);
                assert_memory_equal(f.at, expected, length);
                for (uint64_t k = length; k < f.bytes; k++)
                        assert_int_equal((unsigned char)f.at[k], 0xaa);
        }
        stop();
        unshare_it();
        free(expected);
}

static void test_R2_a_mismatch_in_shared_memory_says_nothing_against_the_chunk(void **state)
{
        char name[64];
        off_t offset;

        share(MIB);
        start_limit(64 * MIB);
        put_range(0, 4, 10000);
        stop();
        assert_true(find_payload(2, 10000, name, &offset));
        flip_byte(name, offset + 9999);
        start_limit(64 * MIB);
        for (unsigned round = 0; round < 3; round++) {
                assert_int_equal(get_foreign(2, 10000), STORE_SUSPECT);
                assert_true(present(2));
        }
        assert_int_equal(get_foreign(1, 10000), 0);
        assert_int_equal(stats().reads, 4);
        assert_int_equal(stats().gets, 1);
        assert_int_equal(stats().crc_rereads, 0);
        assert_int_equal(stats().crc_failures, 0);
        /* In the store's own memory, the reason is reported. */
        assert_int_equal(get(2, 10000), STORE_MISS);
        assert_int_equal(stats().crc_failures, 1);
        assert_false(present(2));
        assert_int_equal(get_foreign(2, 10000), STORE_MISS);
        stop();
        unshare_it();
}

static void test_R2_shared_memory_that_vanished_costs_the_device_nothing(void **state)
{
        struct store_params params = params_of(64 * MIB);

        share(MIB);
        params.error_budget = 2;
        t.faults = true;
        start(&params);
        assert_int_equal(put(1, 300000), 0);
        settle();
        for (unsigned round = 0; round < 10; round++) {
                assert_int_equal(ftruncate(f.fd, round % 2 ? 8192 : 0), 0);
                assert_int_equal(put_foreign(2, 300000, 0), -EFAULT);
                assert_false(present(2));
                assert_int_equal(get_foreign(1, 300000), -EFAULT);
                assert_true(present(1));
        }
        assert_false(stats().bypassed);
        assert_int_equal(stats().write_errors, 0);
        assert_int_equal(stats().read_errors, 0);
        assert_int_equal(stats().crc_failures, 0);
        assert_int_equal(get(1, 300000), 0);
        assert_int_equal(ftruncate(f.fd, (off_t)f.bytes), 0);
        assert_int_equal(get_foreign(1, 300000), 0);
        /* Errors of the device are still reported as such. */
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_READ, .kind = FAULT_ERROR, .error = EIO, .first = 1 });
        assert_int_equal(get_foreign(1, 300000), -EIO);
        fault_set(NULL);
        assert_int_equal(stats().read_errors, 1);
        assert_false(present(1));
        settle();
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE,
                                        .kind = FAULT_ERROR,
                                        .error = EIO,
                                        .first = 1,
                                        .count = 2 });
        assert_int_equal(put_foreign(2, 8192, 0), -EIO);
        assert_int_equal(put_foreign(2, 8192, 0), -EIO);
        fault_set(NULL);
        assert_int_equal(stats().write_errors, 2);
        assert_true(stats().bypassed);
        stop();
        unshare_it();
}

static void region_is_over(struct kio_region *region)
{
        f.use_region = !f.use_region;
}

static bool region_is_used(const void *arg)
{
        return f.use_region;
}

static bool region_is_not(const void *arg)
{
        return !f.use_region;
}

/* A ring that has pinned the memory reads into it nevertheless; the checksum then finds it
 * missing. */
static void test_R2_registered_memory_that_vanished_kills_no_process(void **state)
{
        share(MIB);
        memset(f.at, 1, f.bytes);
        start_limit(64 * MIB);
        assert_int_equal(put(1, 65536), 0);
        assert_int_equal(put(2, 65536 + 1), 0);
        f.region =
                (struct kio_region){ .base = f.at, .bytes = f.bytes, .complete = region_is_over };
        kio_region_register(t.io, &f.region);
        turn(region_is_used, NULL);
        assert_int_equal(get_foreign(1, 65536), 0);
        assert_int_equal(get_foreign(2, 65536 + 1), 0);
        assert_int_equal(ftruncate(f.fd, 0), 0);
        assert_int_equal(get_foreign(1, 65536), -EFAULT);
        assert_int_equal(get_foreign(2, 65536 + 1), -EFAULT);
        assert_int_equal(stats().read_errors, 0);
        assert_int_equal(get(1, 65536), 0);
        assert_int_equal(get(2, 65536 + 1), 0);
        kio_region_unregister(t.io, &f.region);
        turn(region_is_not, NULL);
        stop();
        unshare_it();
}

/* In memory of the store's caller, a fault is an ordinary error. */
static void a_fault_in_ones_own_memory_is_an_error_of_the_volume(void **state)
{
        struct store_params params = params_of(64 * MIB);

        params.prewrite = false;
        t.faults = true;
        start(&params);
        assert_int_equal(put(1, 5000), 0);
        settle();
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_ERROR, .error = EFAULT, .first = 1 });
        assert_int_equal(put(2, 5000), -EFAULT);
        assert_int_equal(stats().write_errors, 1);
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_READ, .kind = FAULT_ERROR, .error = EFAULT, .first = 1 });
        assert_int_equal(get(1, 5000), -EFAULT);
        assert_int_equal(stats().read_errors, 1);
        fault_set(NULL);
        stop();
}

static bool held(const void *arg)
{
        return fault_hits() == 1;
}

static void who_asks_hears_whether_a_chunk_is_being_read(void **state)
{
        static struct store_get req;
        struct key k = key_of(1);
        struct store_ref ref, other;

        share(MIB);
        t.faults = true;
        start_limit(64 * MIB);
        assert_int_equal(put(1, 5000), 0);
        assert_int_equal(put(2, 5000), 0);
        settle();
        assert_int_equal(store_find(t.s, t.ns, &k, store_hash(t.s, t.ns, &k), &ref, NULL), 0);
        k = key_of(2);
        assert_int_equal(store_find(t.s, t.ns, &k, store_hash(t.s, t.ns, &k), &other, NULL), 0);
        assert_false(store_is_reading(t.s, STORE_REF_NONE));
        assert_false(store_is_reading(t.s, ref));
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_READ, .kind = FAULT_NEVER, .first = 1 });
        assert_int_equal(begin_get_foreign(&req, 1, 5000), 0);
        assert_true(store_is_reading(t.s, ref));
        assert_false(store_is_reading(t.s, other));
        kio_flush(t.io);
        while (!held(NULL)) {
                struct pollfd p = { .fd = kio_fd(t.io), .events = POLLIN };

                poll(&p, 1, 1);
        }
        assert_true(store_is_reading(t.s, ref));
        assert_int_equal(drop(1), 0); /* the read continues */
        fault_release();
        turn(get_done, NULL);
        assert_int_equal(req.result, STORE_MISS);
        assert_false(store_is_reading(t.s, ref));
        fault_set(NULL);
        stop();
        unshare_it();
}

/* Returns the least CPU time of several attempts at this number of questions. */
static uint64_t ask_ns(struct store_ref ref, unsigned questions)
{
        uint64_t best = UINT64_MAX;

        for (unsigned attempt = 0; attempt < 5; attempt++) {
                struct timespec a, b;

                clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
                for (unsigned i = 0; i < questions; i++)
                        assert_true(store_is_reading(t.s, ref));
                clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
                best = MIN(best,
                           (uint64_t)((b.tv_sec - a.tv_sec) * 1000000000 + b.tv_nsec - a.tv_nsec));
        }
        return best;
}

static unsigned n_got;

static void count_got(struct store_get *req)
{
        n_got++;
}

static bool all_got(const void *arg)
{
        return n_got == *(const unsigned *)arg;
}

static void the_answer_costs_the_same_however_many_are_being_read(void **state)
{
        enum { N = 1000, QUESTIONS = 1000 };
        static struct store_get reqs[N];
        static const unsigned one = 1, all = N;
        struct store_ref last;
        uint64_t alone_ns;
        struct key k = key_of(N - 1);
        char *at;

        share((uint64_t)N * 4096);
        at = f.at;
        start_limit(64 * MIB);
        put_range(0, N, 4096);
        assert_int_equal(store_find(t.s, t.ns, &k, store_hash(t.s, t.ns, &k), &last, NULL), 0);
        n_got = 0;
        assert_int_equal(begin_get_foreign(&reqs[N - 1], N - 1, 4096), 0);
        reqs[N - 1].complete = count_got;
        alone_ns = ask_ns(last, QUESTIONS);
        turn(all_got, &one);
        assert_false(store_is_reading(t.s, last));

        n_got = 0;
        for (unsigned i = 0; i < N; i++) {
                f.at = at + (size_t)i * 4096; /* each has a place of its own */
                assert_int_equal(begin_get_foreign(&reqs[i], i, 4096), 0);
                reqs[i].complete = count_got;
        }
        f.at = at;
        assert_in_range(ask_ns(last, QUESTIONS), 0, 20 * alone_ns);
        turn(all_got, &all);
        for (unsigned i = 0; i < N; i++) {
                struct store_ref ref;

                k = key_of(i);
                assert_int_equal(store_find(t.s, t.ns, &k, store_hash(t.s, t.ns, &k), &ref, NULL),
                                 0);
                assert_false(store_is_reading(t.s, ref));
        }
        stop();
        unshare_it();
}

/* A reused record reveals nothing about its previous chunk. */
static void a_chunk_is_not_being_read_because_the_one_before_it_was(void **state)
{
        static struct store_get req;
        struct key k = key_of(1);
        struct store_ref before, now;

        share(MIB);
        start_limit(64 * MIB);
        assert_int_equal(put(1, 5000), 0);
        assert_int_equal(store_find(t.s, t.ns, &k, store_hash(t.s, t.ns, &k), &before, NULL), 0);
        assert_int_equal(begin_get_foreign(&req, 1, 5000), 0);
        assert_true(store_is_reading(t.s, before));
        assert_int_equal(drop(1), 0);
        turn(get_done, NULL);
        settle();
        assert_int_equal(put(1, 5000), 0);
        assert_int_equal(store_find(t.s, t.ns, &k, store_hash(t.s, t.ns, &k), &now, NULL), 0);
        assert_int_equal(now.index, before.index);
        assert_false(store_is_reading(t.s, now));
        assert_false(store_is_reading(t.s, before));
        stop();
        unshare_it();
}

int main(int argc, char **argv)
{
        static const struct CMUnitTest tests[] = {
                TEST(odd_chunks_come_from_and_go_to_memory_of_their_length),
                TEST(test_R2_a_mismatch_in_shared_memory_says_nothing_against_the_chunk),
                TEST(test_R2_shared_memory_that_vanished_costs_the_device_nothing),
                TEST(test_R2_registered_memory_that_vanished_kills_no_process),
                TEST(a_fault_in_ones_own_memory_is_an_error_of_the_volume),
                TEST(who_asks_hears_whether_a_chunk_is_being_read),
                TEST(the_answer_costs_the_same_however_many_are_being_read),
                TEST(a_chunk_is_not_being_read_because_the_one_before_it_was),
        };

        return run_store_tests(argc, argv, tests, ARRAY_SIZE(tests), NULL, 0);
}
