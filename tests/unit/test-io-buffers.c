/* SPDX-License-Identifier: Apache-2.0 */
/* io/buffers.c, and I/O straight to and from memory that another process may cut: on both backends,
 * on a file opened with O_DIRECT and on tmpfs without; then what only rings have. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "build-config.h"
#include "checked.h"
#include "child.h"
#include "cleanup.h"
#include "fault.h"
#include "io/backend.h"
#include "io/io.h"
#include "io/buffers.h"

enum {
        POOL = 4 << 20,
        POOL_PIECE = 2 << 20,
        PIECE = REGIONS_PIECE_BYTES,
        BLOCK = 4096,
        WAIT_MS = 60000,
};

static struct {
        const char *backend; /* what the group runs on */
        bool direct;
        const char *skip; /* why the group cannot run */
        char dir[PATH_MAX];
        char *pool;
        struct kio *io;
} t;

/* ---- helpers ----
 *
 * Requests and regions are static: a failed assertion leaves the test while a worker may still have
 * them. */

static unsigned completed;

static void count_complete(struct kio_request *req)
{
        completed++;
}

static bool is_uring(void)
{
        return strcmp(t.backend, "io_uring") == 0;
}

static const struct kio_backend *backend_of_group(void)
{
#if HAVE_LIBURING
        if (is_uring())
                return &kio_backend_uring;
#endif
        return &kio_backend_posix;
}

static struct kio_params params_of(unsigned workers)
{
        return (struct kio_params){
                .backend = t.backend,
                .workers = workers,
                .depth = 32,
                .posix_threads = 4,
                .pool = t.pool,
                .pool_bytes = POOL,
                .piece_bytes = POOL_PIECE,
                .probe_fd = -1,
        };
}

static void start_on(const struct kio_backend *backend, unsigned workers)
{
        struct kio_params p = params_of(workers);
        char error[256] = "";

        if (kio_start_with(&t.io, &p, backend, error) < 0)
                fail_msg("kio_start_with: %s", error);
}

static void start(unsigned workers)
{
        start_on(fault_wrap(backend_of_group()), workers);
}

static int poll_and_reap(const unsigned *until, unsigned n)
{
        kio_flush(t.io);
        while (*until < n) {
                struct pollfd p = { .fd = kio_fd(t.io), .events = POLLIN };

                if (poll(&p, 1, WAIT_MS) != 1)
                        return -1;
                kio_reap(t.io);
        }
        return 0;
}

static int64_t run(struct kio_request *req)
{
        req->complete = count_complete;
        completed = 0;
        kio_submit(t.io, req, 0);
        if (poll_and_reap(&completed, 1) < 0)
                fail_msg("a request did not come back");
        assert_int_equal(kio_pending(t.io), 0);
        return req->result;
}

static struct kio_stats stats(void)
{
        struct kio_stats s;

        kio_get_stats(t.io, &s);
        return s;
}

static void fill(void *buf, size_t bytes, uint64_t seed)
{
        unsigned char *p = buf;

        for (size_t i = 0; i < bytes; i++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                p[i] = (unsigned char)(seed >> 56);
        }
}

static int open_data(void)
{
        char path[PATH_MAX + 64];
        int fd;

        snprintf(path, sizeof(path), "%s/data", t.dir);
        fd = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC | (t.direct ? O_DIRECT : 0), 0600);
        if (fd < 0)
                fail_msg("%s: %s", path, strerror(errno));
        return fd;
}

/* A file as the tests see it, not through O_DIRECT. */
static void read_plainly(char *buf, uint64_t bytes)
{
        char path[PATH_MAX + 64];
        int fd;

        snprintf(path, sizeof(path), "%s/data", t.dir);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        assert_true(fd >= 0);
        assert_int_equal(pread(fd, buf, bytes, 0), (ssize_t)bytes);
        close(fd);
}

/* What a client registers, with the daemon's mapping of it. */
struct registered {
        struct kio_region region;
        int fd;
        char *at;
        uint64_t bytes;
        unsigned completed;
};

static struct registered *buffer_of(struct kio_region *region)
{
        return container_of(region, struct registered, region);
}

static void count_region(struct kio_region *region)
{
        buffer_of(region)->completed++;
}

static void register_buffer(struct registered *d, uint64_t bytes)
{
        *d = (struct registered){ .fd = memfd_create("registered", MFD_CLOEXEC | MFD_ALLOW_SEALING),
                                  .bytes = bytes };
        assert_true(d->fd >= 0);
        assert_int_equal(ftruncate(d->fd, (off_t)bytes), 0);
        d->at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, d->fd, 0);
        assert_ptr_not_equal(d->at, MAP_FAILED);
        d->region = (struct kio_region){ .base = d->at, .bytes = bytes, .complete = count_region };
}

static void cut(const struct registered *d, uint64_t bytes)
{
        assert_int_equal(ftruncate(d->fd, (off_t)bytes), 0);
}

static int register_region(struct registered *d)
{
        d->completed = 0;
        kio_region_register(t.io, &d->region);
        assert_int_equal(d->completed, 0);
        if (poll_and_reap(&d->completed, 1) < 0)
                fail_msg("registering did not come back");
        assert_int_equal(d->completed, 1);
        assert_int_equal(kio_pending(t.io), 0);
        return d->region.result;
}

static int unregister_region(struct registered *d)
{
        d->completed = 0;
        kio_region_unregister(t.io, &d->region);
        assert_int_equal(d->completed, 0);
        if (poll_and_reap(&d->completed, 1) < 0)
                fail_msg("unregistering did not come back");
        assert_int_equal(d->completed, 1);
        assert_int_equal(kio_pending(t.io), 0);
        return d->region.result;
}

static void give_back(struct registered *d)
{
        munmap(d->at, d->bytes);
        close(d->fd);
}

static unsigned pool_registrations;
static int pool_result;

static void on_pool_registered(void *userdata, int r)
{
        pool_registrations++;
        pool_result = r;
}

static int register_pool_piece(unsigned piece)
{
        pool_registrations = 0;
        kio_register_piece(t.io, piece, on_pool_registered, NULL);
        return poll_and_reap(&pool_registrations, 1) < 0 ? -ETIMEDOUT : pool_result;
}

static struct kio_request transfer(enum kio_op op, int fd, struct registered *d, uint64_t at,
                                   uint64_t length)
{
        return (struct kio_request){ .op = op,
                                     .fd = fd,
                                     .buf = d->at + at,
                                     .length = length,
                                     .region = &d->region,
                                     .guard_src = true };
}

/* Of a chunk of so many bytes, as the store does it: the tail goes aside if there is one. */
static struct kio_request chunk_transfer(enum kio_op op, int fd, struct registered *d, uint64_t at,
                                         uint64_t bytes, void *tail)
{
        struct kio_request req = transfer(op, fd, d, at, round_up(bytes, BLOCK));

        req.tail = bytes % BLOCK ? tail : NULL;
        req.crc_bytes = op == KIO_READ ? bytes : 0;
        return req;
}

static int test_setup(void **state)
{
        t.io = NULL;
        memset(t.pool, 0, POOL);
        return 0;
}

static int test_teardown(void **state)
{
        fault_set(NULL);
        fault_release();
        t.io = kio_stop(t.io);
        return 0;
}

static void skip_unless_possible(void)
{
        if (t.skip) {
                print_message("%s: skipped\n", t.skip);
                skip();
        }
}

/* ---- on every backend and medium ---- */

static void a_region_is_registered_piece_by_piece_and_used(void **state)
{
        _cleanup_(closep) int fd = -1;
        static struct registered d;
        static struct kio_request req;
        static const struct {
                uint64_t at;
                bool in_one_piece;
        } places[] = {
                { 0, true },
                { PIECE - (1 << 20), true },
                { PIECE - 4096, false },
                { PIECE, true },
                { 2 * (uint64_t)PIECE + (7 << 20), true },
                { 2 * (uint64_t)PIECE - (1 << 19), false },
        };
        uint64_t n = 0, length = 1 << 20;

        skip_unless_possible();
        fd = open_data();
        start(2);
        register_buffer(&d, 2 * (uint64_t)PIECE + (8 << 20));
        assert_int_equal(register_region(&d), is_uring() ? 0 : -EOPNOTSUPP);
        assert_int_equal(d.region.registered_bytes, is_uring() ? d.bytes : 0);

        for (unsigned i = 0; i < ARRAY_SIZE(places); i++) {
                char *buf = d.at + places[i].at;

                fill(buf, length, i);
                req = transfer(KIO_WRITE, fd, &d, places[i].at, length);
                assert_int_equal(run(&req), 0);
                memset(buf, 0, length);
                req = transfer(KIO_READ, fd, &d, places[i].at, length);
                req.crc_bytes = length;
                assert_int_equal(run(&req), 0);
                fill(t.pool, length, i);
                assert_memory_equal(buf, t.pool, length);
                assert_int_equal(req.crc, kio_crc32c(t.pool, length));
                n += is_uring() && places[i].in_one_piece ? 2 : 0;
                assert_int_equal(stats().registered_ops, n);
        }
        /* One I/O each, wherever it lies. */
        assert_int_equal(stats().resubmitted, 0);

        assert_int_equal(unregister_region(&d), 0);
        assert_int_equal(d.region.registered_bytes, 0);
        req = transfer(KIO_READ, fd, &d, 0, length);
        assert_int_equal(run(&req), 0);
        assert_int_equal(stats().registered_ops, n);
        give_back(&d);
}

static const uint64_t odd_lengths[] = {
        1, 511, 4095, 4096, 4097, 8191, 12289, 200001, (1 << 20) + 777, 2 << 20
};

static void an_odd_length_is_read_without_a_byte_beyond_it(void **state)
{
        _cleanup_(closep) int fd = -1;
        static struct registered d;
        static struct kio_request req;
        static _Alignas(BLOCK) char tail[BLOCK];

        skip_unless_possible();
        fd = open_data();
        start(1);
        register_buffer(&d, 8 << 20);
        assert_int_equal(register_region(&d), is_uring() ? 0 : -EOPNOTSUPP);
        for (unsigned i = 0; i < ARRAY_SIZE(odd_lengths); i++) {
                uint64_t bytes = odd_lengths[i], on_disk = round_up(bytes, BLOCK);

                /* All of the last block is on disk, so that what is too much would show. */
                fill(d.at, on_disk, 100 + i);
                req = transfer(KIO_WRITE, fd, &d, 0, on_disk);
                assert_int_equal(run(&req), 0);
                memset(d.at, 0xaa, d.bytes);
                req = chunk_transfer(KIO_READ, fd, &d, 4 << 20, bytes, tail);
                assert_int_equal(run(&req), 0);
                fill(t.pool, bytes, 100 + i);
                assert_int_equal(req.crc, kio_crc32c(t.pool, bytes));
                assert_memory_equal(d.at + (4 << 20), t.pool, bytes);
                for (uint64_t k = 0; k < 4 << 20; k++)
                        assert_int_equal((unsigned char)d.at[k], 0xaa);
                for (uint64_t k = (4 << 20) + bytes; k < 8 << 20; k++)
                        if ((unsigned char)d.at[k] != 0xaa)
                                fail_msg("length %llu: byte %llu behind it was written",
                                         (unsigned long long)bytes,
                                         (unsigned long long)(k - (4 << 20) - bytes));
        }
        assert_int_equal(stats().resubmitted, 0);
        unregister_region(&d);
        give_back(&d);
}

static void an_odd_length_is_summed_in_place_and_written(void **state)
{
        _cleanup_(closep) int fd = -1;
        static struct registered d;
        static struct kio_request req;
        static _Alignas(BLOCK) char tail[BLOCK];
        static char zeros[BLOCK];
        uint64_t at = 1 << 20;

        skip_unless_possible();
        fd = open_data();
        start(1);
        register_buffer(&d, 4 << 20);
        assert_int_equal(register_region(&d), is_uring() ? 0 : -EOPNOTSUPP);
        for (unsigned i = 0; i < ARRAY_SIZE(odd_lengths); i++) {
                uint64_t bytes = odd_lengths[i], broken = bytes % BLOCK,
                         body = round_down(bytes, BLOCK);
                uint32_t crc;

                memset(d.at, 0xaa, d.bytes);
                fill(d.at + at, bytes, 200 + i);
                fill(t.pool, bytes, 200 + i);
                memset(tail, 0xbb, sizeof(tail));
                req = (struct kio_request){ .op = KIO_COPY,
                                            .src = d.at + at,
                                            .length = bytes,
                                            .tail = tail,
                                            .guard_src = true };
                assert_int_equal(run(&req), 0);
                crc = req.crc;
                assert_int_equal(crc, kio_crc32c(t.pool, bytes));
                if (broken) {
                        assert_memory_equal(tail, t.pool + body, broken);
                        assert_memory_equal(tail + broken, zeros, BLOCK - broken);
                        /* From here on the client may do there what it likes. */
                        memset(d.at + at + body, 0xcc, broken);
                }
                req = chunk_transfer(KIO_WRITE, fd, &d, at, bytes, tail);
                assert_int_equal(run(&req), 0);
                read_plainly(t.pool + (2 << 20), body);
                if (broken == 0)
                        assert_int_equal(kio_crc32c(t.pool + (2 << 20), bytes), crc);

                memset(d.at, 0, d.bytes);
                memset(tail, 0, sizeof(tail));
                req = chunk_transfer(KIO_READ, fd, &d, at, bytes, tail);
                assert_int_equal(run(&req), 0);
                assert_int_equal(req.crc, crc);
                assert_memory_equal(d.at + at, t.pool, bytes);
                if (broken)
                        assert_memory_equal(tail + broken, zeros, BLOCK - broken);
        }
        assert_int_equal(stats().bytes[KIO_COPY], 0); /* nothing was moved */
        unregister_region(&d);
        give_back(&d);
}

static void a_sum_over_memory_as_it_lies_needs_no_tail(void **state)
{
        static struct kio_request req;

        skip_unless_possible();
        start(1);
        fill(t.pool, 300007, 5);
        req = (struct kio_request){ .op = KIO_COPY, .src = t.pool, .length = 300007 };
        assert_int_equal(run(&req), 0);
        assert_int_equal(req.crc, kio_crc32c(t.pool, 300007));
        req = (struct kio_request){ .op = KIO_COPY, .src = t.pool, .length = 0 };
        assert_int_equal(run(&req), 0);
        assert_int_equal(req.crc, 0);
}

static void short_transfers_go_on_into_the_tail(void **state)
{
        _cleanup_(closep) int fd = -1;
        static struct registered d;
        static struct kio_request req;
        static _Alignas(BLOCK) char tail[BLOCK];
        struct fault_plan plan = { .ops = 1u << KIO_READ | 1u << KIO_WRITE,
                                   .kind = FAULT_SHORT,
                                   .first = 1,
                                   .count = FAULT_FOR_EVER };
        static const uint64_t steps[] = { 4096, 8192, 12288 };
        uint64_t bytes = 10 * BLOCK + 99;

        skip_unless_possible();
        fd = open_data();
        start(1);
        register_buffer(&d, 1 << 20);
        assert_int_equal(register_region(&d), is_uring() ? 0 : -EOPNOTSUPP);
        for (unsigned i = 0; i < ARRAY_SIZE(steps); i++) {
                plan.short_bytes = steps[i];
                fault_set(&plan);
                memset(d.at, 0xaa, d.bytes);
                fill(d.at, bytes, 300 + i);
                fill(t.pool, bytes, 300 + i);
                memset(tail, 0, BLOCK);
                memcpy(tail, d.at + 10 * BLOCK, 99);
                memset(d.at + 10 * BLOCK, 0xaa, BLOCK);
                req = chunk_transfer(KIO_WRITE, fd, &d, 0, bytes, tail);
                assert_int_equal(run(&req), 0);
                memset(tail, 0, BLOCK);
                memset(d.at, 0xaa, d.bytes);
                req = chunk_transfer(KIO_READ, fd, &d, 0, bytes, tail);
                assert_int_equal(run(&req), 0);
                assert_int_equal(req.crc, kio_crc32c(t.pool, bytes));
                assert_memory_equal(d.at, t.pool, bytes);
                for (uint64_t k = bytes; k < d.bytes; k++)
                        assert_int_equal((unsigned char)d.at[k], 0xaa);
                assert_true(fault_hits() >= 2 * (11 * BLOCK / steps[i]));
        }
        unregister_region(&d);
        give_back(&d);
}

/* Every way to touch it, with the memory gone from `left` on. */
static void expect_faults(int fd, struct registered *d, uint64_t bytes, bool pinned)
{
        static struct kio_request req;
        static _Alignas(BLOCK) char tail[BLOCK];

        req = chunk_transfer(KIO_READ, fd, d, 0, bytes, tail);
        assert_int_equal(run(&req), -EFAULT); /* if not of the device, then of the checksum */
        req = transfer(KIO_READ, fd, d, 0, round_up(bytes, BLOCK));
        assert_int_equal(run(&req), pinned ? 0 : -EFAULT);
        req = transfer(KIO_WRITE, fd, d, 0, round_up(bytes, BLOCK));
        req.offset = 4 << 20;
        assert_int_equal(run(&req), pinned ? 0 : -EFAULT);
        req = (struct kio_request){ .op = KIO_COPY,
                                    .src = d->at,
                                    .length = bytes,
                                    .tail = tail,
                                    .region = &d->region,
                                    .guard_src = true };
        assert_int_equal(run(&req), -EFAULT);
        req = (struct kio_request){ .op = KIO_COPY,
                                    .src = t.pool,
                                    .buf = d->at,
                                    .length = bytes,
                                    .region = &d->region,
                                    .guard_src = true };
        assert_int_equal(run(&req), -EFAULT);
}

static void assert_zeros(const char *at, uint64_t bytes)
{
        for (uint64_t i = 0; i < bytes; i++)
                if (at[i] != 0)
                        fail_msg("byte %llu of %llu was not wiped", (unsigned long long)i,
                                 (unsigned long long)bytes);
}

/* Whole pages, some more, less than one; and so much that it takes several slices. */
static const uint64_t wiped_bytes[] = { 8192, 8192 + 100, 100, 3 * BLOCK - 1, (1 << 20) + 17 };

/* The chunk lies at the file's begin, and between what is not its own in memory. */
static struct kio_request read_to_be_wiped(int fd, struct registered *d, uint64_t bytes, void *tail)
{
        struct kio_request req = chunk_transfer(KIO_READ, fd, d, BLOCK, bytes, tail);

        req.wipe = true;
        memset(d->at, 0x77, d->bytes);
        return req;
}

static void assert_wiped(const struct registered *d, uint64_t bytes)
{
        assert_zeros(d->at + BLOCK, bytes);
        assert_int_equal(d->at[BLOCK - 1], 0x77);
        assert_int_equal(d->at[BLOCK + bytes], 0x77);
}

static void test_R1_what_fails_its_check_is_wiped_and_nothing_else(void **state)
{
        _cleanup_(freep) char *tail = aligned_alloc(BLOCK, BLOCK);
        _cleanup_(freep) char *right = aligned_alloc(BLOCK, 2 << 20);
        _cleanup_(closep) int fd = -1;
        static struct registered d;
        static struct kio_request req;

        skip_unless_possible();
        fd = open_data();
        start(1);
        register_buffer(&d, 2 << 20);
        fill(right, 2 << 20, 5);
        assert_int_equal(pwrite(fd, right, 2 << 20, 0), 2 << 20);
        for (unsigned i = 0; i < ARRAY_SIZE(wiped_bytes); i++) {
                uint64_t bytes = wiped_bytes[i], wiped = stats().wiped;
                uint32_t crc = kio_crc32c(right, bytes);

                req = read_to_be_wiped(fd, &d, bytes, tail);
                req.want_crc = crc;
                assert_int_equal(run(&req), 0);
                assert_memory_equal(d.at + BLOCK, right, bytes);
                assert_int_equal(stats().wiped, wiped);

                req = read_to_be_wiped(fd, &d, bytes, tail);
                req.want_crc = crc ^ 1;
                assert_int_equal(run(&req), 0);
                assert_int_equal(req.crc, crc);
                assert_wiped(&d, bytes);
                assert_int_equal(stats().wiped, wiped + 1);
        }
        give_back(&d);
}

static void test_R1_what_fails_half_way_is_wiped(void **state)
{
        _cleanup_(freep) char *tail = aligned_alloc(BLOCK, BLOCK);
        _cleanup_(freep) char *right = aligned_alloc(BLOCK, 2 << 20);
        _cleanup_(closep) int fd = -1;
        static struct registered d;
        static struct kio_request req;

        skip_unless_possible();
        fd = open_data();
        start(1);
        register_buffer(&d, 2 << 20);
        fill(right, 2 << 20, 6);
        assert_int_equal(pwrite(fd, right, 2 << 20, 0), 2 << 20);
        for (unsigned i = 0; i < ARRAY_SIZE(wiped_bytes); i++) {
                uint64_t bytes = wiped_bytes[i];

                /* The first part comes, the second is refused; the file ends in the middle. */
                fault_set(&(struct fault_plan){ .ops = 1u << KIO_READ,
                                                .kind = FAULT_SHORT,
                                                .short_bytes = BLOCK,
                                                .first = 1,
                                                .count = bytes > BLOCK });
                req = read_to_be_wiped(fd, &d, bytes, tail);
                req.want_crc = kio_crc32c(right, bytes);
                assert_int_equal(run(&req), 0);
                assert_memory_equal(d.at + BLOCK, right, bytes);
                if (bytes > BLOCK) {
                        assert_int_equal(ftruncate(fd, BLOCK), 0);
                        fault_set(NULL);
                        req = read_to_be_wiped(fd, &d, bytes, tail);
                        req.want_crc = kio_crc32c(right, bytes);
                        assert_int_equal(run(&req), -EIO);
                        assert_wiped(&d, bytes);
                        assert_int_equal(pwrite(fd, right, 2 << 20, 0), 2 << 20);
                }
                fault_set(&(struct fault_plan){ .ops = 1u << KIO_READ,
                                                .kind = FAULT_ERROR,
                                                .error = EIO,
                                                .first = 1,
                                                .count = FAULT_FOR_EVER });
                req = read_to_be_wiped(fd, &d, bytes, tail);
                assert_int_equal(run(&req), -EIO);
                assert_wiped(&d, bytes);
                fault_set(NULL);
        }
        give_back(&d);
}

static void test_R1_memory_that_was_cut_is_wiped_as_far_as_it_is_there(void **state)
{
        _cleanup_(freep) char *right = aligned_alloc(BLOCK, 1 << 20);
        _cleanup_(closep) int fd = -1;
        static struct registered d;
        static struct kio_request req;

        skip_unless_possible();
        fd = open_data();
        start(1);
        register_buffer(&d, 2 << 20);
        fill(right, 1 << 20, 7);
        assert_int_equal(pwrite(fd, right, 1 << 20, 0), 1 << 20);
        req = read_to_be_wiped(fd, &d, 1 << 20, NULL);
        cut(&d, 512 << 10);
        assert_int_equal(run(&req), -EFAULT);
        assert_zeros(d.at + BLOCK, (512 << 10) - BLOCK);
        give_back(&d);
}

static void test_R2_memory_that_was_cut_is_a_fault_and_no_more(void **state)
{
        _cleanup_(closep) int fd = -1;
        static struct registered d;
        static struct kio_request req;
        uint64_t bytes = (1 << 20) + 55;

        skip_unless_possible();
        fd = open_data();
        start(1);
        register_buffer(&d, 2 << 20);
        req = transfer(KIO_WRITE, fd, &d, 0, d.bytes);
        assert_int_equal(run(&req), 0);
        static const uint64_t lefts[] = { 512 << 10, 4096, 0, 1 << 20 };

        for (unsigned i = 0; i < ARRAY_SIZE(lefts); i++) {
                cut(&d, lefts[i]);
                /* What has gone is not worth a registered buffer. */
                assert_int_equal(register_region(&d), is_uring() ? -EFAULT : -EOPNOTSUPP);
                assert_int_equal(d.region.registered_bytes, 0);
                expect_faults(fd, &d, bytes, false);
                assert_int_equal(unregister_region(&d), 0);
                cut(&d, d.bytes);
                req = chunk_transfer(KIO_READ, fd, &d, 0, 1 << 20, NULL);
                assert_int_equal(run(&req), 0);
        }
        /* And under the rings' feet, that have it pinned. */
        memset(d.at, 1, d.bytes);
        assert_int_equal(register_region(&d), is_uring() ? 0 : -EOPNOTSUPP);
        cut(&d, 0);
        expect_faults(fd, &d, 1 << 20, is_uring());
        assert_int_equal(unregister_region(&d), 0);
        give_back(&d);
}

/* Cut while the device has the request; with and without a tail; pinned and not. */
static void test_R2_memory_that_is_cut_under_a_transfer_is_a_fault(void **state)
{
        _cleanup_(closep) int fd = -1;
        static struct registered d;
        static struct kio_request req, other;
        static _Alignas(BLOCK) char tail[BLOCK];
        struct fault_plan plan = { .kind = FAULT_NEVER, .first = 1 };

        skip_unless_possible();
        fd = open_data();
        start(1);
        register_buffer(&d, 2 << 20);
        req = transfer(KIO_WRITE, fd, &d, 0, d.bytes);
        assert_int_equal(run(&req), 0);
        for (unsigned round = 0; round < 8; round++) {
                enum kio_op op = round & 1 ? KIO_WRITE : KIO_READ;
                uint64_t bytes = round & 2 ? (1 << 20) + 77 : 1 << 20;
                bool pin = round & 4;
                bool lands; /* in pages that are unmapped everywhere */

                cut(&d, d.bytes);
                memset(d.at, 1, d.bytes);
                if (pin)
                        register_region(&d);
                lands = pin && is_uring() && bytes % BLOCK == 0;
                fault_set(&plan);
                req = chunk_transfer(op, fd, &d, 0, bytes, tail);
                req.offset = op == KIO_WRITE ? 4 << 20 : 0;
                req.complete = count_complete;
                completed = 0;
                kio_submit(t.io, &req, 0);
                /* Behind it, so that it is there. */
                other = (struct kio_request){ .op = KIO_READ,
                                              .fd = fd,
                                              .buf = t.pool,
                                              .length = BLOCK,
                                              .complete = count_complete };
                kio_submit(t.io, &other, 0);
                assert_int_equal(poll_and_reap(&completed, 1), 0);
                assert_int_equal(other.result, 0);
                assert_int_equal(fault_hits(), 1);
                cut(&d, 8192);
                fault_release();
                assert_int_equal(poll_and_reap(&completed, 2), 0);
                assert_int_equal(req.result, op == KIO_WRITE && lands ? 0 : -EFAULT);
                if (pin)
                        assert_int_equal(unregister_region(&d), 0);
        }
        /* The daemon goes on. */
        cut(&d, d.bytes);
        req = transfer(KIO_READ, fd, &d, 0, d.bytes);
        assert_int_equal(run(&req), 0);
        give_back(&d);
}

enum { MANY = 24 };

static void many_regions_come_and_go_at_once(void **state)
{
        _cleanup_(closep) int fd = -1;
        static struct registered d[MANY];
        static struct kio_request req;
        unsigned registered = 0;

        skip_unless_possible();
        fd = open_data();
        fill(t.pool, BLOCK, 9);
        assert_int_equal(pwrite(fd, t.pool, BLOCK, 0), BLOCK);
        start(2);
        assert_int_equal(register_pool_piece(0), 0);
        for (unsigned i = 0; i < MANY; i++) {
                register_buffer(&d[i], (i % 3) * (uint64_t)PIECE + BLOCK);
                kio_region_register(t.io, &d[i].region);
        }
        /* Some are not wanted any more before they are there. */
        for (unsigned i = 0; i < MANY; i += 4)
                kio_region_unregister(t.io, &d[i].region);
        for (unsigned i = 0; i < MANY; i++)
                assert_int_equal(poll_and_reap(&d[i].completed, 1), 0);
        assert_int_equal(kio_pending(t.io), 0);
        for (unsigned i = 0; i < MANY; i++) {
                assert_int_equal(d[i].completed, 1);
                if (i % 4 == 0)
                        continue;
                assert_int_equal(d[i].region.result, is_uring() ? 0 : -EOPNOTSUPP);
                req = transfer(KIO_READ, fd, &d[i], d[i].bytes - BLOCK, BLOCK);
                assert_int_equal(run(&req), 0);
                assert_memory_equal(d[i].at + d[i].bytes - BLOCK, t.pool, BLOCK);
                registered++;
        }
        assert_int_equal(stats().registered_ops, is_uring() ? registered : 0);
        /* And again, into what has come free. */
        for (unsigned i = 0; i < MANY; i++) {
                d[i].completed = 0;
                if (i % 4 == 0)
                        kio_region_register(t.io, &d[i].region);
                else
                        kio_region_unregister(t.io, &d[i].region);
        }
        for (unsigned i = 0; i < MANY; i++) {
                assert_int_equal(poll_and_reap(&d[i].completed, 1), 0);
                assert_int_equal(d[i].region.result, i % 4 == 0 && !is_uring() ? -EOPNOTSUPP : 0);
        }
        /* The last ones go with the rings. */
        t.io = kio_stop(t.io);
        for (unsigned i = 0; i < MANY; i++)
                give_back(&d[i]);
}

/* ---- rings ---- */

#if HAVE_LIBURING

static bool uring_works(void)
{
        struct kio_params p = { .backend = "io_uring", .workers = 1, .depth = 4, .probe_fd = -1 };
        struct kio *io;
        char error[256];

        if (kio_start(&io, &p, error) < 0)
                return false;
        kio_stop(io);
        return true;
}

/* A ring whose table of buffers fails by plan, and that sees what goes on between two calls. */
static struct {
        struct kio_backend backend;
        _Atomic unsigned calls, fail_from, fail_until; /* the first is 1 */
        _Atomic int error;
        _Atomic unsigned entered, entered_before, in_one_turn;
} spy;

static int spy_open(struct kio_queue **ret, const struct kio_queue_params *params)
{
        int r = kio_backend_uring.open(ret, params);

        if (r == 0)
                (*ret)->ops = &spy.backend;
        return r;
}

static int spy_submit(struct kio_queue *q, bool wait, uint64_t timeout_ns)
{
        atomic_fetch_add(&spy.entered, 1);
        return kio_backend_uring.submit(q, wait, timeout_ns);
}

static int spy_set_buffer(struct kio_queue *q, unsigned number, void *base, uint64_t bytes)
{
        unsigned call = atomic_fetch_add(&spy.calls, 1) + 1, entered = atomic_load(&spy.entered);

        if (call > 1 && atomic_load(&spy.entered_before) == entered)
                atomic_fetch_add(&spy.in_one_turn, 1);
        atomic_store(&spy.entered_before, entered);
        if (call >= atomic_load(&spy.fail_from) && call < atomic_load(&spy.fail_until))
                return -atomic_load(&spy.error);
        return kio_backend_uring.set_buffer(q, number, base, bytes);
}

static void start_with_spy(void)
{
        if (!uring_works()) {
                print_message("io_uring cannot be had here: skipped\n");
                skip();
        }
        memset(&spy, 0, sizeof(spy));
        spy.backend = kio_backend_uring;
        spy.backend.open = spy_open;
        spy.backend.submit = spy_submit;
        spy.backend.set_buffer = spy_set_buffer;
        start_on(&spy.backend, 1);
}

static void fail_calls(unsigned from, unsigned until, int error)
{
        atomic_store(&spy.calls, 0);
        atomic_store(&spy.error, error);
        atomic_store(&spy.fail_from, from);
        atomic_store(&spy.fail_until, until);
}

static void a_ring_is_held_up_for_one_piece_at_a_time(void **state)
{
        static struct registered d, e;

        start_with_spy();
        register_buffer(&d, 4 * (uint64_t)PIECE);
        register_buffer(&e, 2 * (uint64_t)PIECE);
        kio_region_register(t.io, &d.region);
        kio_region_register(t.io, &e.region);
        assert_int_equal(poll_and_reap(&d.completed, 1), 0);
        assert_int_equal(poll_and_reap(&e.completed, 1), 0);
        assert_int_equal(d.region.result, 0);
        assert_int_equal(e.region.result, 0);
        assert_int_equal(atomic_load(&spy.calls), 6);
        assert_int_equal(unregister_region(&d), 0);
        assert_int_equal(unregister_region(&e), 0);
        assert_int_equal(atomic_load(&spy.calls), 12);
        assert_int_equal(atomic_load(&spy.in_one_turn), 0);
        give_back(&d);
        give_back(&e);
}

static void what_a_ring_refuses_ends_there_and_costs_the_pool_nothing(void **state)
{
        int fd = memfd_create("data", MFD_CLOEXEC);
        static struct registered d, e;
        static struct kio_request req;

        start_with_spy();
        assert_int_equal(ftruncate(fd, 1 << 20), 0);
        register_buffer(&d, 4 * (uint64_t)PIECE);
        fail_calls(3, UINT_MAX, ENOMEM);
        assert_int_equal(register_region(&d), -ENOMEM);
        assert_int_equal(d.region.registered_bytes, 2 * (uint64_t)PIECE);
        assert_int_equal(atomic_load(&spy.calls), 3);
        req = transfer(KIO_READ, fd, &d, PIECE, 65536);
        assert_int_equal(run(&req), 0);
        assert_int_equal(stats().registered_ops, 1);
        req = transfer(KIO_READ, fd, &d, 2 * (uint64_t)PIECE, 65536);
        assert_int_equal(run(&req), 0);
        assert_int_equal(stats().registered_ops, 1);
        /* The pool does not hear of it, nor do other regions once there is memory. */
        assert_int_equal(register_pool_piece(0), 0);
        fail_calls(0, 0, 0);
        register_buffer(&e, PIECE);
        assert_int_equal(register_region(&e), 0);
        assert_int_equal(unregister_region(&e), 0);
        fail_calls(0, 0, 0);
        assert_int_equal(unregister_region(&d), 0);
        assert_int_equal(atomic_load(&spy.calls), 2);
        give_back(&d);
        give_back(&e);
        close(fd);
}

static void what_a_ring_will_not_let_go_is_tried_again_and_said(void **state)
{
        static struct registered d;

        start_with_spy();
        register_buffer(&d, 3 * (uint64_t)PIECE);
        assert_int_equal(register_region(&d), 0);
        fail_calls(2, 5, ENOMEM);
        assert_int_equal(unregister_region(&d), 0);
        assert_int_equal(atomic_load(&spy.calls), 6);
        fail_calls(0, 0, 0);
        assert_int_equal(register_region(&d), 0);
        fail_calls(2, UINT_MAX, ENOMEM);
        assert_int_equal(unregister_region(&d), -ENOMEM);
        /* The numbers come back all the same: a new buffer takes the old one's place. */
        fail_calls(0, 0, 0);
        assert_int_equal(register_region(&d), 0);
        assert_int_equal(unregister_region(&d), 0);
        give_back(&d);
}

/* Of one whose state is looked at. */
static void ignore_region(struct kio_region *region)
{
}

static void wait_region(const struct kio_region *region, enum kio_region_state state)
{
        while (region->state != state) {
                struct pollfd p = { .fd = kio_fd(t.io), .events = POLLIN };

                if (poll(&p, 1, WAIT_MS) != 1)
                        fail_msg("a region did not come back");
                kio_reap(t.io);
        }
}

static void without_buffers_left_it_goes_unregistered(void **state)
{
        enum { N = REGIONS_BUFFERS + 3 };
        static struct kio_region regions[N];
        static struct registered d, e;
        unsigned full = 0;

        start_with_spy();
        register_buffer(&d, (uint64_t)N * BLOCK);
        register_buffer(&e, 2 * (uint64_t)PIECE);
        for (unsigned i = 0; i < N; i++)
                regions[i] = (struct kio_region){ .base = d.at + (uint64_t)i * BLOCK,
                                                  .bytes = BLOCK,
                                                  .complete = ignore_region };
        for (unsigned i = 0; i < N; i++) {
                kio_region_register(t.io, &regions[i]);
                wait_region(&regions[i], KIO_REGION_REGISTERED);
                if (i < REGIONS_BUFFERS)
                        assert_int_equal(regions[i].result, 0);
                else
                        full += regions[i].result == -ENOSPC;
        }
        assert_int_equal(full, 3);
        /* One comes free: half of what is wanted. */
        kio_region_unregister(t.io, &regions[7]);
        wait_region(&regions[7], KIO_REGION_NONE);
        assert_int_equal(register_region(&e), -ENOSPC);
        assert_int_equal(e.region.registered_bytes, PIECE);
        t.io = kio_stop(t.io);
        give_back(&d);
        give_back(&e);
}

/* F_SEAL_WRITE waits for pages that are pinned, and gives up: EBUSY. */
static int seal(struct registered *d)
{
        munmap(d->at, d->bytes);
        return fcntl(d->fd, F_ADD_SEALS, F_SEAL_WRITE) < 0 ? errno : 0;
}

static void test_R2_after_unregistering_no_ring_holds_the_pages(void **state)
{
        static struct registered kept, left;
        unsigned tries = 0;

        start_with_spy();
        register_buffer(&kept, 2 * (uint64_t)PIECE);
        register_buffer(&left, 2 * (uint64_t)PIECE);
        memset(kept.at, 1, kept.bytes);
        memset(left.at, 1, left.bytes);
        assert_int_equal(register_region(&kept), 0);
        assert_int_equal(register_region(&left), 0);
        assert_int_equal(unregister_region(&left), 0);
        /* An older kernel takes a second for it; the sealing waits by itself. */
        while (seal(&left) == EBUSY && ++tries < 100)
                left.at = MAP_FAILED;
        assert_true(tries < 100);
        assert_true(fcntl(left.fd, F_GET_SEALS) & F_SEAL_WRITE);
        /* The test would see it. */
        assert_int_equal(seal(&kept), EBUSY);
        t.io = kio_stop(t.io);
        close(kept.fd);
        close(left.fd);
}

static int memlock_child(uint64_t limit, bool pool_too)
{
        struct rlimit little = { limit, limit };
        unsigned workers = pool_too ? 1 : 2;
        struct kio_params p = params_of(workers);
        static struct kio_request req;
        static struct registered d;
        char error[256] = "";
        int fd = memfd_create("data", MFD_CLOEXEC);

        p.backend = "io_uring";
        d.fd = memfd_create("registered", MFD_CLOEXEC);
        d.bytes = 2 * (uint64_t)PIECE;
        CHECK(1, fd >= 0 && d.fd >= 0 && ftruncate(d.fd, (off_t)d.bytes) == 0);
        d.at = mmap(NULL, d.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, d.fd, 0);
        CHECK(2, d.at != MAP_FAILED);
        if (setrlimit(RLIMIT_MEMLOCK, &little) < 0)
                return 77;
        /* CAP_IPC_LOCK is beyond limits, and goes with the uid: one that is unused, as the
         * limit is the uid's. */
        if (geteuid() == 0)
                CHECK(3, setgid(65534) == 0 && setuid(60000 + (uid_t)getpid() % 5000) == 0);
        if (kio_start(&t.io, &p, error) < 0)
                return 77;
        if (pool_too)
                CHECK(4, register_pool_piece(0) == 0);
        d.region = (struct kio_region){ .base = d.at, .bytes = d.bytes, .complete = count_region };
        kio_region_register(t.io, &d.region);
        CHECK(5, poll_and_reap(&d.completed, 1) == 0);
        CHECK(6, d.region.result == -ENOMEM && d.region.registered_bytes == 0);
        fill(d.at, 65536, 21);
        req = transfer(KIO_WRITE, fd, &d, 0, 65536);
        CHECK(7, run(&req) == 0);
        req = transfer(KIO_READ, fd, &d, 1 << 20, 65536);
        req.crc_bytes = 65536;
        CHECK(8, run(&req) == 0 && req.crc == kio_crc32c(d.at, 65536));
        CHECK(9, stats().registered_ops == 0);
        if (pool_too)
                CHECK(10, register_pool_piece(1) == 0);
        d.completed = 0;
        kio_region_unregister(t.io, &d.region);
        CHECK(11, poll_and_reap(&d.completed, 1) == 0 && d.region.result == 0);
        t.io = kio_stop(t.io);
        return 0;
}

static int child_with_little_memlock(void)
{
        return memlock_child(65536, false);
}

static int child_with_memlock_for_the_pool(void)
{
        return memlock_child(POOL + (2 << 20), true);
}

static void test_R4_without_memlock_a_region_goes_unregistered(void **state)
{
        in_child(child_with_little_memlock);
}

static void test_R4_a_region_that_may_not_be_locked_costs_the_pool_nothing(void **state)
{
        in_child(child_with_memlock_for_the_pool);
}

#endif

/* ---- groups ---- */

static int group_setup(void **state)
{
        const char *tmp = getenv("TMPDIR");

        t.skip = NULL;
        snprintf(t.dir, sizeof(t.dir), "%s/test-io-region-XXXXXX",
                 t.direct ? (tmp ? tmp : "/var/tmp") : "/dev/shm");
        if (!mkdtemp(t.dir)) {
                t.skip = "no place for files";
                t.dir[0] = '\0';
        }
        t.pool = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (t.pool == MAP_FAILED)
                return -1;
#if HAVE_LIBURING
        if (is_uring() && !uring_works())
                t.skip = "io_uring cannot be had here";
#else
        if (is_uring())
                t.skip = "built without io_uring";
#endif
        if (t.direct && !t.skip) {
                char path[PATH_MAX + 16];
                int fd;

                snprintf(path, sizeof(path), "%s/data", t.dir);
                fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC | O_DIRECT, 0600);
                if (fd < 0 || pwrite(fd, t.pool, BLOCK, 0) != BLOCK)
                        t.skip = "no O_DIRECT here";
                closep(&fd);
        }
        return 0;
}

static int group_teardown(void **state)
{
        char path[PATH_MAX + 16];

        munmap(t.pool, POOL);
        if (t.dir[0]) {
                snprintf(path, sizeof(path), "%s/data", t.dir);
                unlink(path);
                rmdir(t.dir);
        }
        return 0;
}

#define REGION_TEST(f) cmocka_unit_test_setup_teardown(f, test_setup, test_teardown)

int main(void)
{
        const struct CMUnitTest everywhere[] = {
                REGION_TEST(a_region_is_registered_piece_by_piece_and_used),
                REGION_TEST(an_odd_length_is_read_without_a_byte_beyond_it),
                REGION_TEST(an_odd_length_is_summed_in_place_and_written),
                REGION_TEST(a_sum_over_memory_as_it_lies_needs_no_tail),
                REGION_TEST(short_transfers_go_on_into_the_tail),
                REGION_TEST(test_R1_what_fails_its_check_is_wiped_and_nothing_else),
                REGION_TEST(test_R1_what_fails_half_way_is_wiped),
                REGION_TEST(test_R1_memory_that_was_cut_is_wiped_as_far_as_it_is_there),
                REGION_TEST(test_R2_memory_that_was_cut_is_a_fault_and_no_more),
                REGION_TEST(test_R2_memory_that_is_cut_under_a_transfer_is_a_fault),
                REGION_TEST(many_regions_come_and_go_at_once),
        };
#if HAVE_LIBURING
        const struct CMUnitTest rings[] = {
                REGION_TEST(a_ring_is_held_up_for_one_piece_at_a_time),
                REGION_TEST(what_a_ring_refuses_ends_there_and_costs_the_pool_nothing),
                REGION_TEST(what_a_ring_will_not_let_go_is_tried_again_and_said),
                REGION_TEST(without_buffers_left_it_goes_unregistered),
                REGION_TEST(test_R2_after_unregistering_no_ring_holds_the_pages),
                REGION_TEST(test_R4_without_memlock_a_region_goes_unregistered),
                REGION_TEST(test_R4_a_region_that_may_not_be_locked_costs_the_pool_nothing),
        };
#endif
        static const struct {
                const char *name, *backend;
                bool direct;
        } groups[] = {
                { "io_uring, O_DIRECT", "io_uring", true },
                { "io_uring, tmpfs", "io_uring", false },
                { "posix, O_DIRECT", "posix", true },
                { "posix, tmpfs", "posix", false },
        };
        int failed = 0;

        for (unsigned i = 0; i < ARRAY_SIZE(groups); i++) {
                t.backend = groups[i].backend;
                t.direct = groups[i].direct;
                failed += cmocka_run_group_tests_name(groups[i].name, everywhere, group_setup,
                                                      group_teardown);
        }
#if HAVE_LIBURING
        t.backend = "posix";
        t.direct = false;
        failed += cmocka_run_group_tests_name("rings", rings, group_setup, group_teardown);
#endif
        return failed > 0;
}
