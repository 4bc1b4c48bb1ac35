/* SPDX-License-Identifier: Apache-2.0 */
/* io/: transfers, copies and errors. The same tests run on both backends, on a file opened with
 * O_DIRECT and on tmpfs without. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cleanup.h"
#include "io-fixture.h"
#include "copy.h"
#include "io/stream.h"

static void what_was_written_is_read_back_with_its_crc(void **state)
{
        _cleanup_(closep) int fd = -1;
        struct kio_params p = params_of(t.backend);
        static struct kio_request req;
        char *from = t.pool + 4096, *to = t.pool + 2 * POOL_PIECE + 8192;
        uint64_t length = (1 << 20) + 12288;

        skip_unless_possible();
        fd = open_file("data", O_RDWR | O_TRUNC);
        start(&p);
        fill(from, length, 1);
        req = transfer(KIO_WRITE, fd, from, length, 4096);
        assert_int_equal(run(&req), 0);
        req = transfer(KIO_SYNC, fd, NULL, 0, 0);
        assert_int_equal(run(&req), 0);
        req = transfer(KIO_READ, fd, to, length, 4096);
        req.crc_bytes = length - 777;
        assert_int_equal(run(&req), 0);
        assert_memory_equal(from, to, length);
        assert_int_equal(req.crc, kio_crc32c(from, length - 777));
        assert_true(req.done_ns >= req.submitted_ns);

        assert_int_equal(stats().ops[KIO_WRITE], 1);
        assert_int_equal(stats().ops[KIO_SYNC], 1);
        assert_int_equal(stats().bytes[KIO_READ], length);
        assert_int_equal(stats().bytes[KIO_WRITE], length);
        assert_int_equal(stats().errors[KIO_READ], 0);
        assert_int_equal(stats().inflight, 0);
        assert_int_equal(stats().queued, 0);
        assert_true(stats().busy_time_ns > 0);
        assert_true(stats().inflight_time_ns >= stats().busy_time_ns);
}

static void registered_pieces_are_used_and_others_work_too(void **state)
{
        _cleanup_(closep) int fd = -1;
        struct kio_params p = params_of(t.backend);
        static struct kio_request req;
        struct kio_info info;
        bool uring = strcmp(t.backend, "io_uring") == 0;

        skip_unless_possible();
        fd = open_file("data", O_RDWR | O_TRUNC);
        p.workers = 2;
        start(&p);
        assert_int_equal(register_piece(1), 0);
        assert_int_equal(register_piece(1), 0);
        assert_int_equal(register_piece(3), 0);
        kio_get_info(t.io, &info);
        assert_int_equal(info.registered, uring);

        fill(t.pool + POOL_PIECE, 2 * POOL_PIECE, 2);
        req = transfer(KIO_WRITE, fd, t.pool + POOL_PIECE, POOL_PIECE,
                       0); /* all of the registered one */
        assert_int_equal(run(&req), 0);
        assert_int_equal(stats().registered_ops, uring ? 1 : 0);
        req = transfer(KIO_WRITE, fd, t.pool + 2 * POOL_PIECE - 4096, 8192,
                       POOL_PIECE - 4096); /* across its end */
        assert_int_equal(run(&req), 0);
        assert_int_equal(stats().registered_ops, uring ? 1 : 0);
        req = transfer(KIO_READ, fd, t.pool + 3 * POOL_PIECE, POOL_PIECE, 0);
        assert_int_equal(run(&req), 0);
        assert_int_equal(stats().registered_ops, uring ? 2 : 0);
        assert_memory_equal(t.pool + POOL_PIECE, t.pool + 3 * POOL_PIECE, POOL_PIECE);
        req = transfer(KIO_READ, fd, t.pool, 8192, POOL_PIECE - 4096);
        assert_int_equal(run(&req), 0);
        assert_memory_equal(t.pool + 2 * POOL_PIECE - 4096, t.pool, 8192);
}

static void a_read_beyond_the_end_of_the_file_is_an_error(void **state)
{
        _cleanup_(closep) int whole = -1, odd = -1;
        struct kio_params p = params_of(t.backend);
        static struct kio_request req;

        skip_unless_possible();
        whole = make_file("whole", 8192, 3);
        odd = make_file("odd", 5000, 4);
        start(&p);
        req = transfer(KIO_READ, whole, t.pool, 16384, 0);
        req.crc_bytes = 16384;
        assert_int_equal(run(&req), -EIO);
        req = transfer(KIO_READ, odd, t.pool, 8192, 0);
        assert_int_equal(run(&req), -EIO);
        req = transfer(KIO_READ, whole, t.pool, 4096, 1 << 20);
        assert_int_equal(run(&req), -EIO);
        req = transfer(KIO_READ, whole, t.pool, 8192, 0);
        assert_int_equal(run(&req), 0);
        assert_int_equal(stats().errors[KIO_READ], 3);
        assert_int_equal(stats().ops[KIO_READ], 1);
}

static void a_bad_descriptor_or_address_is_an_error(void **state)
{
        _cleanup_(closep) int fd = -1, readable = -1;
        struct kio_params p = params_of(t.backend);
        static struct kio_request req;
        char *unmapped;

        skip_unless_possible();
        fd = make_file("data", 65536, 5);
        readable = open_file("data", O_RDONLY);
        start(&p);
        req = transfer(KIO_READ, -1, t.pool, 4096, 0);
        assert_int_equal(run(&req), -EBADF);
        req = transfer(KIO_WRITE, readable, t.pool, 4096, 0);
        assert_int_equal(run(&req), -EBADF);
        req = transfer(KIO_SYNC, -1, NULL, 0, 0);
        assert_int_equal(run(&req), -EBADF);

        unmapped = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_ptr_not_equal(unmapped, MAP_FAILED);
        req = transfer(KIO_READ, fd, unmapped, 8192, 0);
        assert_int_equal(run(&req), -EFAULT);
        munmap(unmapped, 8192);
        req = transfer(KIO_READ, fd, t.pool, 8192, 0);
        assert_int_equal(run(&req), 0);
}

static void nothing_is_transferred_at_once(void **state)
{
        struct kio_params p = params_of(t.backend);
        static struct kio_request req;

        skip_unless_possible();
        start(&p);
        req = transfer(KIO_READ, -1, t.pool, 0, 0);
        assert_int_equal(run(&req), 0);
        req = transfer(KIO_WRITE, -1, t.pool, 0, 0);
        assert_int_equal(run(&req), 0);
        req = transfer(KIO_COPY, -1, t.pool, 0, 0);
        req.src = t.pool;
        assert_int_equal(run(&req), 0);
        assert_int_equal(req.crc, 0);
        assert_int_equal(stats().queued, 0);
}

static void a_copy_carries_the_crc_of_what_arrived(void **state)
{
        struct kio_params p = params_of(t.backend);
        static struct kio_request req;
        uint64_t length = POOL_PIECE + 12345;
        char *from = t.pool + 3, *to = t.pool + 2 * POOL_PIECE;

        skip_unless_possible();
        start(&p);
        fill(from, length, 6);
        req = transfer(KIO_COPY, -1, to, length, 0);
        req.src = from;
        assert_int_equal(run(&req), 0);
        assert_memory_equal(from, to, length);
        assert_int_equal(req.crc, kio_crc32c(from, length));
        assert_int_equal(to[length], 0);
        assert_int_equal(stats().bytes[KIO_COPY], length);

        memset(to, 0, length);
        req.unchecked = true;
        assert_int_equal(run(&req), 0);
        assert_memory_equal(from, to, length);
        assert_int_equal(req.crc, 0);
        assert_int_equal(to[length], 0);
}

static void memory_that_vanishes_costs_only_its_own_request(void **state)
{
        struct kio_params p = params_of(t.backend);
        static struct kio_request req;
        uint64_t length = 1 << 20;
        char *shared;
        int fd = memfd_create("staging", MFD_CLOEXEC);

        skip_unless_possible();
        assert_true(fd >= 0);
        assert_int_equal(ftruncate(fd, (off_t)length), 0);
        shared = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        assert_ptr_not_equal(shared, MAP_FAILED);
        fill(shared, length, 7);
        start(&p);
        for (int round = 0; round < 3; round++) {
                assert_int_equal(ftruncate(fd, (off_t)length), 0);
                fill(shared, length, 7);
                req = transfer(KIO_COPY, -1, t.pool, length, 0);
                req.src = shared;
                req.guard_src = true;
                assert_int_equal(run(&req), 0);
                assert_int_equal(req.crc, kio_crc32c(shared, length));

                assert_int_equal(ftruncate(fd, 300 * 1024), 0);
                req = transfer(KIO_COPY, -1, t.pool, length, 0);
                req.src = shared;
                req.guard_src = true;
                assert_int_equal(run(&req), -EFAULT);
                req = transfer(KIO_COPY, -1, shared, length, 0);
                req.src = t.pool;
                req.guard_src = true;
                assert_int_equal(run(&req), -EFAULT);
                /* Remaining requests can be used. */
                req = transfer(KIO_COPY, -1, t.pool, 300 * 1024, 0);
                req.src = shared;
                req.guard_src = true;
                assert_int_equal(run(&req), 0);
        }
        assert_int_equal(stats().errors[KIO_COPY], 6);
        munmap(shared, length);
        close(fd);
}

/* ---- faults ---- */

static void short_transfers_go_on_where_they_stopped(void **state)
{
        _cleanup_(closep) int fd = -1;
        static struct kio_request req;
        struct fault_plan plan = { .ops = 1u << KIO_READ | 1u << KIO_WRITE,
                                   .kind = FAULT_SHORT,
                                   .short_bytes = 8192,
                                   .first = 1,
                                   .count = 20 };
        char *from = t.pool, *to = t.pool + POOL_PIECE;
        uint64_t length = 1 << 20;

        skip_unless_possible();
        fd = open_file("data", O_RDWR | O_TRUNC);
        start_with_faults(1, 8);
        assert_int_equal(register_piece(0), 0);
        fill(from, length, 12);
        fault_set(&plan);
        req = transfer(KIO_WRITE, fd, from, length, 0);
        assert_int_equal(run(&req), 0);
        assert_int_equal(stats().resubmitted, 20);
        assert_int_equal(fault_hits(), 20);
        fault_set(&plan);
        req = transfer(KIO_READ, fd, to, length, 0);
        req.crc_bytes = length;
        assert_int_equal(run(&req), 0);
        assert_memory_equal(from, to, length);
        assert_int_equal(req.crc, kio_crc32c(from, length));
        assert_int_equal(stats().resubmitted, 40);
        assert_int_equal(stats().bytes[KIO_READ], length);
}

static void the_rest_of_an_odd_short_transfer_is_aligned(void **state)
{
        _cleanup_(closep) int fd = -1;
        static struct kio_request req;
        /* A whole sector, as O_DIRECT needs it, but not a whole block. */
        struct fault_plan plan = { .ops = 1u << KIO_WRITE,
                                   .kind = FAULT_SHORT,
                                   .short_bytes = 4096 + 512,
                                   .first = 1,
                                   .count = 5 };
        uint64_t length = 65536;

        skip_unless_possible();
        fd = open_file("data", O_RDWR | O_TRUNC);
        start_with_faults(1, 8);
        fill(t.pool, length, 13);
        fault_set(&plan);
        req = transfer(KIO_WRITE, fd, t.pool, length, 0);
        if (run(&req) == -EINVAL && t.direct)
                skip(); /* a disk with 4 KiB sectors */
        assert_int_equal(req.result, 0);
        assert_int_equal(fault_hits(), 5);
        fault_set(NULL);
        req = transfer(KIO_READ, fd, t.pool + POOL_PIECE, length, 0);
        assert_int_equal(run(&req), 0);
        assert_memory_equal(t.pool, t.pool + POOL_PIECE, length);

        /* A device that always transfers less than a block is given up, rather than retried
         * forever. */
        plan.short_bytes = 512;
        plan.count = FAULT_FOR_EVER;
        fault_set(&plan);
        req = transfer(KIO_WRITE, fd, t.pool, length, 0);
        assert_int_equal(run(&req), -EIO);
        assert_in_range(fault_hits(), 2, 64);
}

static void unaligned_buffered_transfers_go_on_byte_by_byte(void **state)
{
        static struct kio_request req;
        struct fault_plan plan = {
                .kind = FAULT_SHORT, .short_bytes = 10, .first = 1, .count = FAULT_FOR_EVER
        };
        int fd = memfd_create("data", MFD_CLOEXEC);

        skip_unless_possible();
        assert_true(fd >= 0);
        start_with_faults(1, 8);
        fill(t.pool, 333, 14);
        fault_set(&plan);
        req = transfer(KIO_WRITE, fd, t.pool, 333, 7);
        assert_int_equal(run(&req), 0);
        req = transfer(KIO_READ, fd, t.pool + 1000, 333, 7);
        assert_int_equal(run(&req), 0);
        assert_memory_equal(t.pool, t.pool + 1000, 333);
        close(fd);
}

static void interrupted_operations_are_tried_again_but_not_for_ever(void **state)
{
        _cleanup_(closep) int fd = -1;
        static const int errors[] = { EINTR, EAGAIN };
        static struct kio_request req;

        skip_unless_possible();
        fd = make_file("data", 65536, 15);
        start_with_faults(1, 8);
        for (unsigned i = 0; i < 2; i++) {
                struct fault_plan plan = {
                        .kind = FAULT_ERROR, .error = errors[i], .first = 1, .count = 3
                };

                fault_set(&plan);
                req = transfer(KIO_READ, fd, t.pool, 65536, 0);
                req.crc_bytes = 65536;
                assert_int_equal(run(&req), 0);
                assert_int_equal(fault_matched(), 4);
                assert_int_equal(req.crc, kio_crc32c(t.pool, 65536));

                plan.count = FAULT_FOR_EVER;
                fault_set(&plan);
                req = transfer(KIO_READ, fd, t.pool, 65536, 0);
                assert_int_equal(run(&req), -errors[i]);
                assert_in_range(fault_hits(), 4, 64);
        }
}

static void an_error_is_the_result_of_its_request_only(void **state)
{
        _cleanup_(closep) int fd = -1;
        struct fault_plan plan = {
                .ops = 1u << KIO_WRITE, .kind = FAULT_ERROR, .error = ENOSPC, .first = 5, .count = 2
        };
        static struct kio_request reqs[20];
        unsigned failed = 0;

        skip_unless_possible();
        fd = open_file("data", O_RDWR | O_TRUNC);
        start_with_faults(1, 8);
        fault_set(&plan);
        for (unsigned i = 0; i < 20; i++) {
                /* Not adjacent, because neighbours would be merged. */
                reqs[i] = transfer(KIO_WRITE, fd, t.pool + i * 4096, 4096, i * 8192);
                kio_submit(t.io, &reqs[i], 0);
        }
        wait_completed(20);
        for (unsigned i = 0; i < 20; i++) {
                failed += reqs[i].result == -ENOSPC;
                assert_true(reqs[i].result == 0 || reqs[i].result == -ENOSPC);
        }
        assert_int_equal(failed, 2);
        assert_int_equal(stats().errors[KIO_WRITE], 2);
}

static void a_failed_sync_is_not_tried_again(void **state)
{
        _cleanup_(closep) int fd = -1;
        struct fault_plan plan = {
                .ops = 1u << KIO_SYNC, .kind = FAULT_ERROR, .error = EIO, .first = 1
        };
        static struct kio_request req;

        skip_unless_possible();
        fd = open_file("data", O_RDWR | O_TRUNC);
        start_with_faults(1, 8);
        fault_set(&plan);
        req = transfer(KIO_SYNC, fd, NULL, 0, 0);
        assert_int_equal(run(&req), -EIO);
        assert_int_equal(fault_matched(), 1);
        assert_int_equal(run(&req), 0);
}

static void seeded_faults_lose_no_request(void **state)
{
        _cleanup_(closep) int fd = -1;
        struct kio_request *reqs = calloc(300, sizeof(*reqs));
        unsigned failed = 0;

        assert_non_null(reqs);
        if (t.skip)
                free(reqs);
        skip_unless_possible();
        fd = make_file("data", POOL_PIECE, 16);
        for (uint64_t seed = 1; seed <= 4; seed++) {
                static const enum fault_kind kinds[] = { FAULT_ERROR, FAULT_SHORT, FAULT_LATE };
                struct fault_plan plan = { .kind = kinds[seed % 3],
                                           .error = EIO,
                                           .late_ns = 1000000,
                                           .one_in = 3,
                                           .seed = seed };

                start_with_faults(2, 16);
                fault_set(&plan);
                completed = 0;
                failed = 0;
                for (unsigned i = 0; i < 300; i++) {
                        reqs[i] =
                                transfer(KIO_READ, fd, t.pool + i * 16384, 16384, (i % 32) * 65536);
                        reqs[i].crc_bytes = 16384;
                        kio_submit(t.io, &reqs[i], i);
                }
                wait_completed(300);
                for (unsigned i = 0; i < 300; i++) {
                        failed += reqs[i].result == -EIO;
                        if (reqs[i].result == 0)
                                assert_int_equal(reqs[i].crc,
                                                 kio_crc32c(t.pool + i * 16384, 16384));
                }
                assert_true(fault_hits() > 0);
                assert_int_equal(failed, plan.kind == FAULT_ERROR ? fault_hits() : 0);
                assert_int_equal(stats().inflight, 0);
                t.io = kio_stop(t.io);
        }
        free(reqs);
}

static void a_queue_that_cannot_be_entered_fails_requests_until_it_can(void **state)
{
        _cleanup_(closep) int fd = -1;
        static struct kio_request first, copy, req;

        skip_unless_possible();
        copy = transfer(KIO_COPY, -1, t.pool + POOL_PIECE, 4096, 0);
        copy.src = t.pool + 2 * POOL_PIECE;
        fd = make_file("data", 65536, 19);
        start_with_faults(1, 8);
        /* The worker must take the first request before it tries to enter, because it fails
         * requests from then on. */
        fault_gate_close();
        first = transfer(KIO_READ, fd, t.pool, 4096, 0);
        kio_submit(t.io, &first, 0);
        kio_submit(t.io, &copy, 0);
        kio_flush(t.io);
        fault_break_submit(EIO);
        fault_gate_open();
        wait_completed(1); /* the copy: by then the worker has tried to enter */
        assert_int_equal(copy.result, 0);
        /* Submitted requests may be at the device; later ones fail. */
        for (unsigned i = 0; i < 3; i++) {
                req = transfer(KIO_READ, fd, t.pool + 4096, 4096, 0);
                completed = 0;
                kio_submit(t.io, &req, 0);
                wait_completed(1);
                assert_int_equal(req.result, -EIO);
        }
        assert_int_equal(kio_pending(t.io), 1);
        completed = 0;
        fault_break_submit(0);
        wait_completed(1);
        assert_int_equal(first.result, 0);
        assert_int_equal(run(&req), 0);
}

static void a_worker_that_fails_gets_no_copies_while_another_is_full(void **state)
{
        static struct kio_request copies[3];

        skip_unless_possible();
        start_with_faults(2, 8);
        fault_break_submit_of(0, EIO);
        for (unsigned i = 0; i < ARRAY_SIZE(copies); i++) {
                copies[i] = transfer(KIO_COPY, -1, t.pool + POOL_PIECE, 1 << 19, 0);
                copies[i].src = t.pool + 2 * POOL_PIECE;
        }
        do { /* until worker 0 has tried to enter its queue */
                completed = 0;
                kio_submit(t.io, &copies[0], 0);
                wait_completed(1);
        } while (copies[0].worker == 0);
        completed = 0;
        kio_submit(t.io, &copies[1], 0); /* fills worker 1, which begins at the flush */
        kio_submit(t.io, &copies[2], 0);
        assert_int_equal(copies[1].worker, 1);
        assert_int_equal(copies[2].worker, 1);
        wait_completed(2);
        fault_break_submit(0);
}

/* ---- CRC-32C ---- */

static void crc32c_is_the_one_of_iscsi(void **state)
{
        unsigned char zeros[32] = { 0 }, ones[32], up[32];

        memset(ones, 0xff, sizeof(ones));
        for (unsigned i = 0; i < 32; i++)
                up[i] = (unsigned char)i;
        /* RFC 3720, B.4 */
        assert_int_equal(kio_crc32c("123456789", 9), 0xe3069283u);
        assert_int_equal(kio_crc32c(zeros, 32), 0x8a9136aau);
        assert_int_equal(kio_crc32c(ones, 32), 0x62a8ab43u);
        assert_int_equal(kio_crc32c(up, 32), 0x46dd794eu);
        assert_int_equal(kio_crc32c(NULL, 0), 0);
}

static void crc32c_can_be_computed_in_parts_and_while_copying(void **state)
{
        enum { N = 200001 };
        char *from = malloc(N), *to = malloc(N);
        uint32_t whole;

        assert_non_null(from);
        assert_non_null(to);
        fill(from, N, 22);
        whole = kio_crc32c(from, N);
        for (size_t cut = 0; cut <= N; cut += 9973) {
                assert_int_equal(kio_crc32c_extend(kio_crc32c(from, cut), from + cut, N - cut),
                                 whole);
                memset(to, 0, N);
                assert_int_equal(kio_copy_crc32c(kio_copy_crc32c(0, to, from, cut), to + cut,
                                                 from + cut, N - cut),
                                 whole);
                assert_memory_equal(from, to, N);
        }
        from[N / 2] ^= 1;
        assert_int_not_equal(kio_crc32c(from, N), whole);
        free(from);
        free(to);
}

/* Tests each method of this processor, with any alignment of source and target, and any checksum so
 * far. */
static void a_copy_past_the_caches_has_the_checksum_of_what_it_stored(void **state)
{
        enum { N = STREAM_LEAST, ROOM = N + 4096 };
        const struct stream_way *way;
        char *from = malloc(ROOM), *to = aligned_alloc(4096, ROOM);

        assert_non_null(from);
        assert_non_null(to);
        fill(from, ROOM, 23);
        for (unsigned i = 0; (way = stream_way(i)); i++) {
                for (size_t bytes = STREAM_UNIT; bytes <= N; bytes += 7 * STREAM_UNIT) {
                        size_t f = bytes % 61, a = bytes / STREAM_UNIT % 5 * STREAM_ALIGNMENT;
                        uint32_t before = (uint32_t)(bytes * 2654435761u);

                        memset(to, 0x77, ROOM);
                        assert_int_equal(~way->copy_crc(~before, to + a, from + f, bytes),
                                         kio_crc32c_extend(before, from + f, bytes));
                        assert_memory_equal(to + a, from + f, bytes);
                        assert_int_equal(to[a + bytes], 0x77);
                }
        }
        free(from);
        free(to);
}

static void a_long_copy_is_right_wherever_it_begins_and_ends(void **state)
{
        enum { ROOM = STREAM_LEAST + 4096 };
        char *from = malloc(ROOM), *to = malloc(ROOM);

        assert_non_null(from);
        assert_non_null(to);
        fill(from, ROOM, 24);
        for (size_t at = 0; at < 300; at += 7) {
                size_t bytes = STREAM_LEAST - 150 + at;

                memset(to, 0x77, ROOM);
                assert_int_equal(kio_copy_crc32c(5, to + 1 + at, from + at, bytes),
                                 kio_crc32c_extend(5, from + at, bytes));
                assert_memory_equal(to + 1 + at, from + at, bytes);
                assert_int_equal(to[at], 0x77);
                assert_int_equal(to[1 + at + bytes], 0x77);
                memset(to, 0x77, ROOM);
                copy_past_caches(to + 1 + at, from + at, bytes);
                assert_memory_equal(to + 1 + at, from + at, bytes);
                assert_int_equal(to[at], 0x77);
                assert_int_equal(to[1 + at + bytes], 0x77);
        }
        free(from);
        free(to);
}

int main(void)
{
        const struct CMUnitTest everywhere[] = {
                IO_TEST(what_was_written_is_read_back_with_its_crc),
                IO_TEST(registered_pieces_are_used_and_others_work_too),
                IO_TEST(a_read_beyond_the_end_of_the_file_is_an_error),
                IO_TEST(a_bad_descriptor_or_address_is_an_error),
                IO_TEST(nothing_is_transferred_at_once),
                IO_TEST(a_copy_carries_the_crc_of_what_arrived),
                IO_TEST(memory_that_vanishes_costs_only_its_own_request),
                IO_TEST(short_transfers_go_on_where_they_stopped),
                IO_TEST(the_rest_of_an_odd_short_transfer_is_aligned),
                IO_TEST(unaligned_buffered_transfers_go_on_byte_by_byte),
                IO_TEST(interrupted_operations_are_tried_again_but_not_for_ever),
                IO_TEST(an_error_is_the_result_of_its_request_only),
                IO_TEST(a_failed_sync_is_not_tried_again),
                IO_TEST(seeded_faults_lose_no_request),
                IO_TEST(a_queue_that_cannot_be_entered_fails_requests_until_it_can),
                IO_TEST(a_worker_that_fails_gets_no_copies_while_another_is_full),
        };
        const struct CMUnitTest once[] = {
                IO_TEST(crc32c_is_the_one_of_iscsi),
                IO_TEST(crc32c_can_be_computed_in_parts_and_while_copying),
                IO_TEST(a_copy_past_the_caches_has_the_checksum_of_what_it_stored),
                IO_TEST(a_long_copy_is_right_wherever_it_begins_and_ends),
        };
        int failed = run_everywhere(everywhere);

        failed += run_once("CRC-32C", once);
        return failed > 0;
}
