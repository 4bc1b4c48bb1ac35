/* SPDX-License-Identifier: Apache-2.0 */
/* io/buffers.c, and I/O straight to and from memory that another process may cut: on both backends,
 * on a file opened with O_DIRECT and on tmpfs without. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"
#include "io-fixture.h"
#include "io/buffers.h"

enum { PIECE = REGIONS_PIECE_BYTES, BLOCK = 4096, HUGE_PAGE = 2 << 20 };

/* Reads the file without O_DIRECT. */
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

/* Returns the request for a chunk of this size as the store makes it, with a separate tail if there
 * is one. */
static struct kio_request chunk_transfer(enum kio_op op, int fd, struct registered *d, uint64_t at,
                                         uint64_t bytes, void *tail)
{
        struct kio_request req = region_transfer(op, fd, d, at, round_up(bytes, BLOCK));

        req.tail = bytes % BLOCK ? tail : NULL;
        req.crc_bytes = op == KIO_READ ? bytes : 0;
        return req;
}

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
        fd = open_file("data", O_RDWR | O_TRUNC);
        start_with_faults(2, 32);
        register_buffer(&d, 2 * (uint64_t)PIECE + (8 << 20));
        assert_int_equal(register_region(&d), is_uring() ? 0 : -EOPNOTSUPP);
        assert_int_equal(d.region.registered_bytes, is_uring() ? d.bytes : 0);

        for (unsigned i = 0; i < ARRAY_SIZE(places); i++) {
                char *buf = d.at + places[i].at;

                fill(buf, length, i);
                req = region_transfer(KIO_WRITE, fd, &d, places[i].at, length);
                assert_int_equal(run(&req), 0);
                memset(buf, 0, length);
                req = region_transfer(KIO_READ, fd, &d, places[i].at, length);
                req.crc_bytes = length;
                assert_int_equal(run(&req), 0);
                fill(t.pool, length, i);
                assert_memory_equal(buf, t.pool, length);
                assert_int_equal(req.crc, kio_crc32c(t.pool, length));
                n += is_uring() && places[i].in_one_piece ? 2 : 0;
                assert_int_equal(stats().registered_ops, n);
        }
        /* Each transfer is one I/O, wherever it lies. */
        assert_int_equal(stats().resubmitted, 0);

        assert_int_equal(unregister_region(&d), 0);
        assert_int_equal(d.region.registered_bytes, 0);
        req = region_transfer(KIO_READ, fd, &d, 0, length);
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
        fd = open_file("data", O_RDWR | O_TRUNC);
        start_with_faults(1, 32);
        register_buffer(&d, 8 << 20);
        assert_int_equal(register_region(&d), is_uring() ? 0 : -EOPNOTSUPP);
        for (unsigned i = 0; i < ARRAY_SIZE(odd_lengths); i++) {
                uint64_t bytes = odd_lengths[i], on_disk = round_up(bytes, BLOCK);

                /* The whole last block is on disk, so that surplus bytes would be detected. */
                fill(d.at, on_disk, 100 + i);
                req = region_transfer(KIO_WRITE, fd, &d, 0, on_disk);
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
        fd = open_file("data", O_RDWR | O_TRUNC);
        start_with_faults(1, 32);
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
                        /* The client may change this memory from now on. */
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
        start_with_faults(1, 32);
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
        fd = open_file("data", O_RDWR | O_TRUNC);
        start_with_faults(1, 32);
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

/* Accesses the memory in every possible way after it was truncated to `left` bytes. */
static void expect_faults(int fd, struct registered *d, uint64_t bytes, bool pinned)
{
        static struct kio_request req;
        static _Alignas(BLOCK) char tail[BLOCK];

        req = chunk_transfer(KIO_READ, fd, d, 0, bytes, tail);
        assert_int_equal(run(&req), -EFAULT); /* if not of the device, then of the checksum */
        req = region_transfer(KIO_READ, fd, d, 0, round_up(bytes, BLOCK));
        assert_int_equal(run(&req), pinned ? 0 : -EFAULT);
        req = region_transfer(KIO_WRITE, fd, d, 0, round_up(bytes, BLOCK));
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

/* Whole pages, some more, less than a page, and enough for several slices. */
static const uint64_t wiped_bytes[] = { 8192, 8192 + 100, 100, 3 * BLOCK - 1, (1 << 20) + 17 };

/* The chunk lies at the beginning of the file, and between foreign bytes in memory. */
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
        fd = open_file("data", O_RDWR | O_TRUNC);
        start_with_faults(1, 32);
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
        fd = open_file("data", O_RDWR | O_TRUNC);
        start_with_faults(1, 32);
        register_buffer(&d, 2 << 20);
        fill(right, 2 << 20, 6);
        assert_int_equal(pwrite(fd, right, 2 << 20, 0), 2 << 20);
        for (unsigned i = 0; i < ARRAY_SIZE(wiped_bytes); i++) {
                uint64_t bytes = wiped_bytes[i];

                /* The first part arrives, the second is refused, or the file ends in the middle. */
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
        fd = open_file("data", O_RDWR | O_TRUNC);
        start_with_faults(1, 32);
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
        fd = open_file("data", O_RDWR | O_TRUNC);
        start_with_faults(1, 32);
        register_buffer(&d, 2 << 20);
        req = region_transfer(KIO_WRITE, fd, &d, 0, d.bytes);
        assert_int_equal(run(&req), 0);
        static const uint64_t lefts[] = { 512 << 10, 4096, 0, 1 << 20 };

        for (unsigned i = 0; i < ARRAY_SIZE(lefts); i++) {
                cut(&d, lefts[i]);
                /* Memory that has disappeared cannot be registered. */
                assert_int_equal(register_region(&d), is_uring() ? -EFAULT : -EOPNOTSUPP);
                assert_int_equal(d.region.registered_bytes, 0);
                expect_faults(fd, &d, bytes, false);
                assert_int_equal(unregister_region(&d), 0);
                cut(&d, d.bytes);
                req = chunk_transfer(KIO_READ, fd, &d, 0, 1 << 20, NULL);
                assert_int_equal(run(&req), 0);
        }
        /* The memory disappears while the rings have it pinned. */
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
        fd = open_file("data", O_RDWR | O_TRUNC);
        start_with_faults(1, 32);
        register_buffer(&d, 2 << 20);
        req = region_transfer(KIO_WRITE, fd, &d, 0, d.bytes);
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
                /* The end of a later read shows that the first request is at the device. */
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
        /* The daemon continues. */
        cut(&d, d.bytes);
        req = region_transfer(KIO_READ, fd, &d, 0, d.bytes);
        assert_int_equal(run(&req), 0);
        give_back(&d);
}

enum { MANY = 24 };

/* Returns the bytes of a mapping that are mapped by huge pages. */
static uint64_t huge_bytes_of(const void *at)
{
        FILE *maps = fopen("/proc/self/smaps", "re");
        uint64_t kib = 0;
        bool is_it = false;
        char line[512];

        assert_non_null(maps);
        while (fgets(line, sizeof(line), maps)) {
                unsigned long begin, end;

                if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
                        is_it = begin <= (uintptr_t)at && (uintptr_t)at < end;
                else if (is_it && sscanf(line, "ShmemPmdMapped: %lu", &begin) == 1)
                        kib = begin;
        }
        fclose(maps);
        return kib * 1024;
}

/* Makes a buffer at an address at which huge pages can be mapped. */
static void make_aligned_buffer(struct registered *d, uint64_t bytes)
{
        char *at = mmap(NULL, bytes + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        assert_ptr_not_equal(at, MAP_FAILED);
        register_buffer(d, bytes);
        munmap(d->at, bytes);
        d->at = at + (-(uintptr_t)at) % HUGE_PAGE;
        assert_ptr_equal(
                mmap(d->at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, d->fd, 0),
                d->at);
        d->region.base = d->at;
        d->region.may_be_huge = true;
}

/* Returns whether the kernel moves a client's memory to huge pages when it is asked to. */
static bool huge_pages_are_possible(void)
{
        struct registered d;
        bool r;

        make_aligned_buffer(&d, 2 * (uint64_t)PIECE);
        memset(d.at, 1, d.bytes);
        r = madvise(d.at, d.bytes, 25 /* MADV_COLLAPSE */) == 0;
        give_back(&d);
        return r;
}

static void region_moves_to_huge_pages_and_keeps_its_bytes(void **state)
{
        static struct registered d;

        skip_unless_possible();
        for (unsigned i = 0; i < 2; i++) {
                struct kio_params p = params_of(t.backend);
                uint64_t whole = 2 * (uint64_t)PIECE, huge;

                p.huge_regions = i == 1;
                start(&p);
                make_aligned_buffer(&d, whole + (1 << 20));
                for (uint64_t at = 0; at < d.bytes; at += BLOCK)
                        memset(d.at + at, (int)(at / BLOCK % 251), BLOCK);
                huge = p.huge_regions && huge_pages_are_possible() ? whole : 0;
                assert_int_equal(huge_bytes_of(d.at), 0);
                assert_int_equal(register_region(&d), is_uring() ? 0 : -EOPNOTSUPP);
                assert_int_equal(d.region.huge_bytes, huge);
                assert_int_equal(huge_bytes_of(d.at), huge);
                for (uint64_t at = 0; at < d.bytes; at += BLOCK)
                        assert_true((uint8_t)d.at[at] == at / BLOCK % 251 &&
                                    (uint8_t)d.at[at + BLOCK - 1] == at / BLOCK % 251);
                unregister_region(&d);
                give_back(&d);
                t.io = kio_stop(t.io);
        }
}

/* A client may cut its memory at any time, and missing pages cannot be moved. */
static void cut_region_does_not_move_to_huge_pages(void **state)
{
        struct kio_params p = params_of(t.backend);
        static struct registered d;

        skip_unless_possible();
        p.huge_regions = true;
        start(&p);
        make_aligned_buffer(&d, 2 * (uint64_t)PIECE);
        cut(&d, BLOCK);
        assert_int_equal(register_region(&d), is_uring() ? -EFAULT : -EOPNOTSUPP);
        assert_int_equal(d.region.huge_bytes, 0);
        unregister_region(&d);
        give_back(&d);
}

static void many_regions_come_and_go_at_once(void **state)
{
        _cleanup_(closep) int fd = -1;
        static struct registered d[MANY];
        static struct kio_request req;
        unsigned registered = 0;

        skip_unless_possible();
        fd = open_file("data", O_RDWR | O_TRUNC);
        fill(t.pool, BLOCK, 9);
        assert_int_equal(pwrite(fd, t.pool, BLOCK, 0), BLOCK);
        start_with_faults(2, 32);
        assert_int_equal(register_piece(0), 0);
        for (unsigned i = 0; i < MANY; i++) {
                register_buffer(&d[i], (i % 3) * (uint64_t)PIECE + BLOCK);
                kio_region_register(t.io, &d[i].region);
        }
        /* Some regions are unregistered before they are registered. */
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
                req = region_transfer(KIO_READ, fd, &d[i], d[i].bytes - BLOCK, BLOCK);
                assert_int_equal(run(&req), 0);
                assert_memory_equal(d[i].at + d[i].bytes - BLOCK, t.pool, BLOCK);
                registered++;
        }
        assert_int_equal(stats().registered_ops, is_uring() ? registered : 0);
        /* The numbers that became free are used again. */
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
        /* The last regions are unregistered with the rings. */
        t.io = kio_stop(t.io);
        for (unsigned i = 0; i < MANY; i++)
                give_back(&d[i]);
}

int main(void)
{
        const struct CMUnitTest everywhere[] = {
                IO_TEST(a_region_is_registered_piece_by_piece_and_used),
                IO_TEST(an_odd_length_is_read_without_a_byte_beyond_it),
                IO_TEST(an_odd_length_is_summed_in_place_and_written),
                IO_TEST(a_sum_over_memory_as_it_lies_needs_no_tail),
                IO_TEST(short_transfers_go_on_into_the_tail),
                IO_TEST(test_R1_what_fails_its_check_is_wiped_and_nothing_else),
                IO_TEST(test_R1_what_fails_half_way_is_wiped),
                IO_TEST(test_R1_memory_that_was_cut_is_wiped_as_far_as_it_is_there),
                IO_TEST(test_R2_memory_that_was_cut_is_a_fault_and_no_more),
                IO_TEST(test_R2_memory_that_is_cut_under_a_transfer_is_a_fault),
                IO_TEST(region_moves_to_huge_pages_and_keeps_its_bytes),
                IO_TEST(cut_region_does_not_move_to_huge_pages),
                IO_TEST(many_regions_come_and_go_at_once),
        };

        return run_everywhere(everywhere) > 0;
}
