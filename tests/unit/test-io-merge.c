/* SPDX-License-Identifier: Apache-2.0 */
/* io/merge.c in the worker: on both backends, on a file opened with O_DIRECT and on tmpfs
 * without. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"
#include "io-fixture.h"

enum {
        BLOCK = 4096,
        FILES = 2,
        BLOCKS = 320, /* blocks of each file */
        FILE_BYTES = BLOCKS * BLOCK,
        ITEMS = FILES * BLOCKS,
        CANARY = 0xa5,
        N = 16, /* neighbours, where it does not matter how many */
};

static struct {
        uint64_t size;
        int fd;
} files[FILES] = { { .fd = -1 }, { .fd = -1 } };

/* Requests that a test submits together. Static, because a failed assertion leaves the test while a
 * worker may still use them. */
static struct item {
        struct kio_request req;
        unsigned file;
        uint64_t bytes; /* bytes of its length that count */
        uint64_t guard; /* bytes after them that belong to no request */
} items[ITEMS];
static unsigned n_items;
static _Alignas(BLOCK) char tails[ITEMS][BLOCK], model[FILES][FILE_BYTES];
static bool together; /* does their memory lie side by side? */
static uint64_t pool_used, pattern;
static struct kio_stats before;

/* ---- helpers ---- */

static const enum kio_op both[] = { KIO_WRITE, KIO_READ };

static void start_merging(const struct kio_backend *backend, unsigned depth, unsigned hang_ms)
{
        struct kio_params p = params_of(t.backend);

        skip_unless_possible();
        p.depth = depth;
        p.hang_ns = hang_ms * UINT64_C(1000000);
        start_on(&p, fault_wrap(backend));
}

static void start_with_depth(unsigned depth)
{
        start_merging(backend_of_group(), depth, 0);
}

static const char *volume_of(unsigned file)
{
        static char path[PATH_MAX + 16];

        snprintf(path, sizeof(path), "%s/%u", t.dir, file);
        return path;
}

/* Opens it anew, not through O_DIRECT if `plain`. */
static void reopen(unsigned file, int more_flags, bool plain)
{
        closep(&files[file].fd);
        more_flags |= t.direct && !plain ? O_DIRECT : 0;
        files[file].fd = open(volume_of(file), O_CREAT | O_RDWR | O_CLOEXEC | more_flags, 0600);
        assert_true(files[file].fd >= 0);
}

static void remake(unsigned file)
{
        files[file].size = FILE_BYTES;
        fill(model[file], FILE_BYTES, ++pattern);
        reopen(file, O_TRUNC, true);
        assert_int_equal(write(files[file].fd, model[file], FILE_BYTES), FILE_BYTES);
        reopen(file, 0, false);
}

static void cut_file(unsigned file, uint64_t bytes)
{
        assert_int_equal(ftruncate(files[file].fd, (off_t)bytes), 0);
        files[file].size = bytes;
}

static void clear(void)
{
        n_items = 0;
        pool_used = 0;
        pattern++;
        before = stats();
}

/* Returns the memory of block `i` of the item's transfer. */
static char *block_of(const struct item *item, uint64_t i)
{
        return i < item->bytes / BLOCK || !item->req.tail ? (char *)item->req.buf + i * BLOCK
                                                          : item->req.tail;
}

/* Adds a request like that of a chunk, with a tail for an odd rest. The same place always gets the
 * same bytes, until clear(). */
static struct kio_request *add(enum kio_op op, unsigned file, uint64_t offset, uint64_t bytes)
{
        struct item *item = &items[n_items];
        uint64_t length = round_up(bytes, BLOCK), gap = together ? 0 : BLOCK;

        assert_true(n_items < ITEMS && pool_used + length + gap <= POOL);
        *item = (struct item){ .file = file, .bytes = bytes, .guard = length - bytes + gap };
        item->req = (struct kio_request){ .op = op,
                                          .fd = files[file].fd,
                                          .offset = offset,
                                          .buf = t.pool + pool_used,
                                          .length = length,
                                          .crc_bytes = op == KIO_READ ? bytes : 0,
                                          .complete = count_complete };
        memset(item->req.buf, CANARY, length + gap);
        if (bytes % BLOCK)
                item->req.tail = memset(tails[n_items], CANARY, BLOCK);
        for (uint64_t i = 0; op == KIO_WRITE && i < length / BLOCK; i++)
                fill(block_of(item, i), BLOCK,
                     pattern << 32 | file << 16 | (offset / BLOCK + i + 1));
        pool_used += length + gap;
        n_items++;
        return &item->req;
}

/* Adds N neighbours of one to three blocks, in ascending, descending or mixed order. */
static void add_neighbours(enum kio_op op, unsigned order)
{
        uint64_t offsets[N], offset = 3 * BLOCK;

        for (unsigned i = 0; i < N; offset += (1 + i++ % 3) * BLOCK)
                offsets[i] = offset;
        for (unsigned i = 0; i < N; i++) {
                unsigned k = order == 0 ? i : order == 1 ? N - 1 - i : (i * 5 + 3) % N;

                add(op, 0, offsets[k], (1 + k % 3) * BLOCK);
        }
}

/* Fails nothing, but counts all operations. */
static const struct fault_plan no_fault = { .first = UINT64_MAX };

static void submit(const struct fault_plan *plan)
{
        fault_set(plan);
        fault_gate_close();
        for (unsigned i = 0; i < n_items; i++)
                kio_submit(t.io, &items[i].req, 0);
        completed = 0;
        fault_gate_open();
}

static void go(const struct fault_plan *plan)
{
        submit(plan);
        wait_completed(n_items);
        assert_int_equal(kio_pending(t.io), 0);
        assert_int_equal(stats().inflight, 0);
        assert_int_equal(stats().queued, 0);
        assert_int_equal(oldest_ns(), 0);
}

static void expect_read(const struct item *item)
{
        const char *right = model[item->file] + item->req.offset;
        static unsigned char untouched[2 * BLOCK];

        memset(untouched, CANARY, sizeof(untouched));
        assert_memory_equal(item->req.buf, right, item->bytes);
        assert_memory_equal((char *)item->req.buf + item->bytes, untouched, item->guard);
        if (item->req.crc_bytes > 0)
                assert_int_equal(item->req.crc, kio_crc32c(right, item->req.crc_bytes));
}

/* Checks the bytes read and the files: exactly the successful requests took effect. */
static void expect_right_data(void)
{
        static char whole[FILE_BYTES];

        for (struct item *i = items; i < items + n_items; i++)
                if (i->req.op == KIO_WRITE && i->req.result == 0)
                        for (uint64_t k = 0; k < i->req.length / BLOCK; k++)
                                memcpy(model[i->file] + i->req.offset + k * BLOCK, block_of(i, k),
                                       BLOCK);
        for (struct item *i = items; i < items + n_items; i++)
                if (i->req.op == KIO_READ && i->req.result == 0)
                        expect_read(i);
        for (unsigned i = 0; i < FILES; i++) {
                reopen(i, 0, true);
                assert_int_equal(pread(files[i].fd, whole, FILE_BYTES, 0), files[i].size);
                assert_memory_equal(whole, model[i], files[i].size);
                reopen(i, 0, false);
        }
}

/* Checks the bytes, and the counters since clear(). */
static void expect_right(void)
{
        struct kio_stats now = stats();

        expect_right_data();
        for (unsigned op = KIO_READ; op <= KIO_SYNC; op++) {
                uint64_t successes = 0, failures = 0, bytes = 0;

                for (struct item *i = items; i < items + n_items; i++) {
                        if (i->req.op != op)
                                continue;
                        successes += i->req.result == 0;
                        failures += i->req.result < 0;
                        bytes += i->req.result == 0 ? i->req.length : 0;
                }
                assert_int_equal(now.ops[op] - before.ops[op] + now.joined[op] - before.joined[op],
                                 successes);
                /* The merged operation counts as one failure more, if there was one and it was not
                 * a short transfer. */
                assert_in_range(now.errors[op] - before.errors[op], failures,
                                failures + (now.resubmitted > before.resubmitted));
                assert_int_equal(now.bytes[op] - before.bytes[op], bytes);
        }
}

/* Checks that all have succeeded, with this number of operations of this kind. */
static void expect_ops(enum kio_op op, uint64_t ops)
{
        for (unsigned i = 0; i < n_items; i++)
                assert_int_equal(items[i].req.result, 0);
        assert_int_equal(stats().ops[op] - before.ops[op], ops);
        expect_right();
}

static void swap(unsigned i, unsigned k)
{
        struct item other = items[i];

        items[i] = items[k];
        items[k] = other;
}

static uint64_t resubmitted(void)
{
        return stats().resubmitted - before.resubmitted;
}

static int setup(void **state)
{
        test_setup(state);
        together = false;
        for (unsigned i = 0; i < FILES && !t.skip; i++)
                remake(i);
        return 0;
}

static int teardown(void **state)
{
        test_teardown(state);
        for (unsigned i = 0; i < FILES && !t.skip; i++)
                closep(&files[i].fd);
        return 0;
}

/* ---- requests that are merged, and requests that are not ---- */

/* With one place in flight, merged requests use the same resources repeatedly. */
static void neighbours_go_as_one_in_any_order(void **state)
{
        start_with_depth(1);
        for (unsigned round = 0; round < 36; round++) {
                enum kio_op op = both[round % 2];

                clear();
                add_neighbours(op, round / 2 % 3);
                if (op == KIO_READ) { /* the checksum of a part, and none */
                        items[round % N].req.crc_bytes -= 777;
                        items[(round + 1) % N].req.crc_bytes = 0;
                }
                go(&no_fault);
                assert_int_equal(fault_matched(), 1);
                assert_int_equal(resubmitted(), 0);
                expect_ops(op, 1);
        }
}

static void what_differs_in_anything_goes_alone(void **state)
{
        static struct kio_region region;
        /* The request submitted next to blocks 2 and 3. */
        static const struct {
                unsigned block, file;
                enum kio_class class;
                unsigned volume;
                bool has_region, is_other, is_adjacent;
        } cases[] = {
                { .block = 4, .is_adjacent = true },
                { .block = 0, .is_adjacent = true },
                { .block = 4, .file = 1 },
                { .block = 0, .file = 1 },
                { .block = 5 }, /* a gap */
                { .block = 200 },
                { .block = 3 }, /* block 3 is in both requests */
                { .block = 1 },
                { .block = 2 },
                { .block = 4, .class = KIO_CLASS_PUT },
                { .block = 4, .class = KIO_CLASS_BACKGROUND },
                { .block = 4, .volume = 1 },
                { .block = 4, .has_region = true },
                { .block = 4, .is_other = true },
        };

        start_with_depth(8);
        for (unsigned i = 0; i < 2 * ARRAY_SIZE(cases); i++) {
                enum kio_op op = both[i % 2];
                struct kio_request *next;

                clear();
                add(op, 0, 2 * BLOCK, 2 * BLOCK);
                next = add(cases[i / 2].is_other ? both[!(i % 2)] : op, cases[i / 2].file,
                           cases[i / 2].block * BLOCK, 2 * BLOCK);
                next->class = cases[i / 2].class;
                next->volume = cases[i / 2].volume;
                next->region = cases[i / 2].has_region ? &region : NULL;
                go(&no_fault);
                assert_int_equal(fault_matched(), cases[i / 2].is_adjacent ? 1 : 2);
                expect_ops(op, cases[i / 2].is_adjacent || cases[i / 2].is_other ? 1 : 2);
        }
}

static void syncs_go_alone(void **state)
{
        start_with_depth(8);
        clear();
        add(KIO_SYNC, 0, 0, 0);
        add(KIO_WRITE, 0, 0, BLOCK);
        add(KIO_SYNC, 0, BLOCK, 0);
        add(KIO_WRITE, 0, BLOCK, BLOCK);
        add(KIO_SYNC, 0, BLOCK, 0);
        go(&no_fault);
        assert_int_equal(fault_matched(), 4);
        assert_int_equal(stats().ops[KIO_SYNC], 3);
        expect_ops(KIO_WRITE, 1);
}

static void one_operation_has_its_limits(void **state)
{
        static const struct {
                enum kio_op op;
                unsigned kib, n, ops;
        } cases[] = {
                { KIO_WRITE, 4, 32, 1 },  { KIO_WRITE, 4, 33, 2 },  { KIO_WRITE, 4, 64, 2 },
                { KIO_WRITE, 4, 65, 3 },  { KIO_WRITE, 64, 8, 1 },  { KIO_WRITE, 64, 9, 2 },
                { KIO_WRITE, 256, 2, 1 }, { KIO_WRITE, 260, 2, 2 }, { KIO_WRITE, 512, 2, 2 },
                { KIO_WRITE, 172, 3, 2 }, { KIO_WRITE, 520, 2, 2 }, { KIO_READ, 4, 32, 1 },
                { KIO_READ, 4, 64, 2 },   { KIO_READ, 64, 2, 1 },   { KIO_READ, 64, 3, 2 },
                { KIO_READ, 12, 20, 2 },  { KIO_READ, 44, 3, 2 },   { KIO_READ, 68, 2, 2 },
                { KIO_READ, 128, 2, 2 },  { KIO_READ, 256, 2, 2 },
        };

        start_with_depth(8);
        for (unsigned i = 0; i < ARRAY_SIZE(cases); i++) {
                clear();
                for (unsigned k = 0; k < cases[i].n; k++)
                        add(cases[i].op, 0, k * cases[i].kib * 1024, cases[i].kib * 1024);
                go(&no_fault);
                assert_int_equal(fault_matched(), cases[i].ops);
                expect_ops(cases[i].op, cases[i].ops);
        }
}

static void adjacent_requests_are_searched_among_those_that_come_first(void **state)
{
        start_with_depth(64);
        for (unsigned between = 31; between <= 32; between++) {
                clear();
                add(KIO_WRITE, 0, 0, BLOCK);
                for (unsigned i = 0; i < between; i++)
                        add(KIO_WRITE, 0, (10 + 2 * i) * BLOCK, BLOCK);
                add(KIO_WRITE, 0, BLOCK, BLOCK);
                go(&no_fault);
                expect_ops(KIO_WRITE, between == 31 ? 32 : 34);
        }
}

/* Parts that are adjacent in memory, within one registered piece, are as good as one transfer of
 * the total size. */
static void memory_side_by_side_is_registered_memory(void **state)
{
        start_with_depth(8);
        assert_int_equal(register_piece(0), 0);
        for (unsigned i = 0; i < 6; i++) {
                enum kio_op op = both[i % 2];

                clear();
                together = i < 4;
                pool_used =
                        i / 2 == 1 ? POOL_PIECE - 2 * BLOCK : 0; /* across the end of the piece */
                for (unsigned k = 0; k < N; k++)
                        add(op, 0, k * BLOCK, BLOCK);
                for (unsigned k = 0; k < N / 2; k += 3) /* requests come in another order */
                        swap(k, N - 1 - k);
                go(&no_fault);
                assert_int_equal(stats().registered_ops - before.registered_ops,
                                 i < 2 && is_uring() ? 1 : 0);
                expect_ops(op, 1);
        }
}

static void memory_of_a_region_is_registered_memory_as_well(void **state)
{
        static struct registered d;

        start_with_depth(8);
        register_buffer(&d, N * BLOCK);
        assert_int_equal(register_region(&d), is_uring() ? 0 : -EOPNOTSUPP);
        for (unsigned i = 0; i < 2; i++) {
                clear();
                for (unsigned k = 0; k < N; k++) {
                        struct kio_request *req = add(both[i], 0, k * BLOCK, BLOCK);

                        req->buf = memcpy(d.at + k * BLOCK, req->buf, BLOCK);
                        req->region = &d.region;
                        items[k].guard = 0;
                }
                go(&no_fault);
                assert_int_equal(stats().registered_ops - before.registered_ops, is_uring());
                expect_ops(both[i], 1);
        }
        assert_int_equal(unregister_region(&d), 0);
        give_back(&d);
}

static void odd_lengths_go_along_with_their_tails(void **state)
{
        static const uint64_t lengths[] = { 4096, 100,  8193, 4095, 12288, 4097,
                                            1,    8192, 5000, 4096, 8191 };
        static const struct fault_plan plans[] = {
                { .first = UINT64_MAX },
                { .kind = FAULT_ERROR, .error = EIO, .first = 1 },
                { .kind = FAULT_SHORT, .short_bytes = 3 * BLOCK, .first = 1 },
                { .kind = FAULT_SHORT, .short_bytes = 8 * BLOCK + 512, .first = 1 },
                { .kind = FAULT_SHORT, .short_bytes = BLOCK, .first = 1, .count = FAULT_FOR_EVER },
        };
        enum { M = ARRAY_SIZE(lengths) };

        start_with_depth(8);
        for (unsigned i = 0; i < 4 * ARRAY_SIZE(plans); i++) {
                uint64_t offsets[M], offset = 0;

                together = i & 2;
                for (unsigned k = 0; k < M; offset += round_up(lengths[k++], BLOCK))
                        offsets[k] = offset;
                clear();
                for (unsigned k = 0; k < M; k++) {
                        unsigned m = k * 4 % M;

                        add(both[i & 1], 0, offsets[m], lengths[m]);
                }
                go(&plans[i / 4]);
                expect_ops(both[i & 1], i / 4 == 0 ? 1 : M);
        }
        /* The maximum number of requests, each in two pieces of memory. */
        together = false;
        clear();
        for (unsigned k = 0; k < 32; k++)
                add(KIO_WRITE, 0, k * 2 * BLOCK, BLOCK + 1 + k);
        go(&no_fault);
        expect_ops(KIO_WRITE, 1);
}

/* ---- a failed merged request is split ---- */

/* A single error fails no part. With several, the first parts fail, because they are retried alone
 * and in order. */
static void an_error_is_that_of_those_that_have_it_alone(void **state)
{
        static const int errors[] = { EIO, ENOSPC, EINVAL, EINTR, EAGAIN };

        start_with_depth(8);
        for (unsigned i = 0; i < 12 * ARRAY_SIZE(errors); i++) {
                struct fault_plan plan = { .kind = FAULT_ERROR, .first = 1, .count = 1 };
                bool passes = i / 12 >= 3;
                uint64_t failing = 0;             /* requests before this offset fail */
                unsigned failed = passes ? 0 : 1; /* the merged operation counts, too */

                plan.error = errors[i / 12];
                if (i % 4 > 1 && (passes || i % 12 >= 8)) {
                        plan.count = FAULT_FOR_EVER;
                        failing = FILE_BYTES;
                } else if (i % 4 > 1) {
                        plan.count = 3;
                        failing = 6 * BLOCK;
                }
                clear();
                add_neighbours(both[i % 2], i % 12 / 4);
                go(&plan);
                for (unsigned k = 0; k < N; k++) {
                        assert_int_equal(items[k].req.result,
                                         items[k].req.offset < failing ? -plan.error : 0);
                        failed += items[k].req.offset < failing;
                }
                assert_int_equal(stats().errors[both[i % 2]] - before.errors[both[i % 2]], failed);
                if (failing == 0 || !passes) {
                        assert_int_equal(fault_matched(), 1 + N);
                        assert_int_equal(resubmitted(), N);
                }
                expect_right();
        }
}

static void memory_that_is_not_there_costs_only_its_own_part(void **state)
{
        enum { PARTS = 8, PART = 2 * BLOCK };
        char *map;

        start_with_depth(8);
        for (unsigned i = 0; i < 4 * PARTS; i++) {
                unsigned missing = i / 4;
                bool alone = i & 2; /* is only that one in the mapping? */

                map = mmap(NULL, PARTS * PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                           -1, 0);
                assert_ptr_not_equal(map, MAP_FAILED);
                clear();
                for (unsigned k = 0; k < PARTS; k++) {
                        struct kio_request *req = add(both[i % 2], 0, k * PART, PART);

                        if (alone && k != missing)
                                continue;
                        req->buf = memcpy(map + k * PART, req->buf, PART);
                        items[k].guard = 0;
                }
                assert_int_equal(mprotect(map + missing * PART, PART, PROT_NONE), 0);
                go(&no_fault);
                assert_int_equal(fault_matched(), 1 + PARTS);
                assert_int_equal(resubmitted(), PARTS);
                for (unsigned k = 0; k < PARTS; k++)
                        assert_int_equal(items[k].req.result, k == missing ? -EFAULT : 0);
                expect_right();
                munmap(map, PARTS * PART);
        }
}

static void short_transfers_of_all_are_made_up_by_each(void **state)
{
        static const uint64_t lengths[] = {
                1,     511,   512, 4095,       4096,           4097,          4608,
                12288, 20557, 0,   30 * BLOCK, 30 * BLOCK + 1, 31 * BLOCK - 1
        };
        struct fault_plan plan = { .kind = FAULT_SHORT, .first = 1 };

        start_with_depth(8);
        for (unsigned i = 0; i < 2 * ARRAY_SIZE(lengths); i++) {
                plan.short_bytes = lengths[i / 2];
                clear();
                add_neighbours(both[i % 2], i % 3);
                go(&plan);
                assert_int_equal(fault_matched(), 1 + N);
                assert_int_equal(resubmitted(), N);
                expect_ops(both[i % 2], N);
        }
        /* Then transfers each of them again, 31 blocks one by one. */
        plan.short_bytes = BLOCK;
        plan.count = FAULT_FOR_EVER;
        for (unsigned i = 0; i < 2; i++) {
                clear();
                add_neighbours(both[i], 2);
                go(&plan);
                assert_int_equal(fault_matched(), 1 + 31);
                assert_int_equal(resubmitted(), 31);
                expect_ops(both[i], N);
        }
}

static void of_a_read_beyond_the_end_those_within_succeed(void **state)
{
        enum { PARTS = 8 };
        static const uint64_t sizes[] = { 0, 1, 2 * BLOCK, 5 * BLOCK + 1000, 15 * BLOCK + 4095 };

        start_with_depth(8);
        for (unsigned i = 0; i < ARRAY_SIZE(sizes); i++) {
                remake(0);
                cut_file(0, sizes[i]);
                clear();
                for (unsigned k = 0; k < PARTS; k++)
                        add(KIO_READ, 0, k * 2 * BLOCK, 2 * BLOCK);
                go(&no_fault);
                for (unsigned k = 0; k < PARTS; k++)
                        assert_int_equal(items[k].req.result,
                                         (k + 1) * 2 * BLOCK <= sizes[i] ? 0 : -EIO);
                expect_right();
        }
}

/* ---- at the device ---- */

/* If the device answers none of them, there are as many operations as places, however many requests
 * they contain. */
static void many_neighbours_stay_within_the_depth(void **state)
{
        struct fault_plan never = { .kind = FAULT_NEVER, .first = 1, .count = FAULT_FOR_EVER };

        start_with_depth(4);
        for (unsigned i = 0; i < 2; i++) {
                clear();
                for (unsigned k = 0; k < BLOCKS; k++)
                        add(both[i], 0, k * BLOCK, BLOCK);
                add(KIO_COPY, 0, 0, BLOCK)->src = model[0];
                submit(&never);
                wait_completed(1); /* the worker has pushed all it may when the copy ends */
                assert_int_equal(fault_most_in_flight(), 4);
                assert_int_equal(stats().inflight, 4);
                assert_int_equal(stats().queued, BLOCKS - 4 * 32);
                fault_set(&no_fault);
                fault_release();
                wait_completed(1 + BLOCKS);
                assert_in_range(fault_most_in_flight(), 1, 4);
                assert_int_equal(fault_matched(), BLOCKS / 32 - 4);
                assert_int_equal(stats().inflight, 0);
                assert_int_equal(stats().queued, 0);
                expect_ops(both[i], BLOCKS / 32);
        }
}

/* A queue that is full until the test says otherwise. */
static struct {
        struct kio_backend backend;
        _Atomic bool full;
} narrow;

static int narrow_open(struct kio_queue **ret, const struct kio_queue_params *params)
{
        int r = backend_of_group()->open(ret, params);

        if (r == 0)
                (*ret)->ops = &narrow.backend;
        return r;
}

static int narrow_push(struct kio_queue *q, struct kio_request *req)
{
        return atomic_load(&narrow.full) ? -EAGAIN : backend_of_group()->push(q, req);
}

static void what_finds_no_room_waits_as_it_was(void **state)
{
        narrow.backend = *backend_of_group();
        narrow.backend.open = narrow_open;
        narrow.backend.push = narrow_push;
        start_merging(&narrow.backend, 8, 0);
        for (unsigned i = 0; i < 6; i++) {
                clear();
                add_neighbours(both[i % 2], i / 2);
                add(KIO_COPY, 0, 0, BLOCK)->src = model[0];
                swap(N / 2, N);
                atomic_store(&narrow.full, true);
                for (unsigned k = 0; k < N; k += N / 2) { /* those up to a copy, then the others */
                        fault_gate_close();
                        for (unsigned m = k; m < k + N / 2; m++)
                                kio_submit(t.io, &items[k > 0 ? m + 1 : m].req, 0);
                        kio_submit(t.io, &items[N / 2].req, 0);
                        completed = 0;
                        fault_gate_open();
                        wait_completed(1); /* by then the worker has tried to push them */
                        assert_int_equal(stats().queued, k + N / 2);
                        assert_int_equal(stats().inflight, 0);
                }
                atomic_store(&narrow.full, false);
                kio_submit(t.io, &items[N / 2].req, 0); /* the worker checks again */
                wait_completed(2 + N);
                assert_int_equal(stats().queued, 0);
                assert_int_equal(resubmitted(), 0);
                expect_ops(both[i % 2], 1);
        }
}

/* Other requests of the volume fail, and other volumes continue. When the device answers, each
 * request gets its own result, even if the file has become too short for all of them. */
static void test_R15_merged_requests_that_hang_cost_their_volume_only(void **state)
{
        enum { HANG_MS = 500, LATE = N, OTHER = N + 4 };
        struct fault_plan never = { .kind = FAULT_NEVER, .volume = 1, .first = 1 };

        start_merging(backend_of_group(), 1, HANG_MS);
        for (unsigned i = 0; i < 3; i++) {
                bool too_short = i == 2;

                clear();
                add_neighbours(i == 0 ? KIO_WRITE : KIO_READ, 2);
                for (unsigned k = 0; k < 4; k++)
                        add(KIO_READ, 0, (100 + k) * BLOCK, BLOCK);
                add(KIO_READ, 1, 0, BLOCK);
                for (unsigned k = 0; k < n_items; k++)
                        items[k].req.volume = k == OTHER ? 2 : 1;
                submit(&never);
                wait_completed(5);
                for (unsigned k = 0; k < N; k++)
                        assert_int_equal(items[k].req.state, KIO_QUEUED);
                for (unsigned k = LATE; k < OTHER; k++)
                        assert_int_equal(items[k].req.result, -ETIMEDOUT);
                assert_int_equal(items[OTHER].req.result, 0);
                assert_true(kio_oldest(t.io, 1) >= HANG_MS * UINT64_C(1000000));
                assert_int_equal(kio_oldest(t.io, 2), 0);
                assert_int_equal(kio_pending(t.io), N);
                assert_int_equal(stats().inflight, 1);
                assert_int_equal(stats().queued, 0);
                if (too_short)
                        cut_file(0, 9 * BLOCK);

                completed = 0;
                fault_set(NULL);
                fault_release();
                wait_completed(N);
                for (unsigned k = 0; k < N; k++)
                        assert_int_equal(items[k].req.result,
                                         too_short && items[k].req.offset >= 9 * BLOCK ? -EIO : 0);
                assert_int_equal(kio_oldest(t.io, 1), 0);
                assert_int_equal(stats().inflight, 0);
                expect_right();
        }
        clear();
        add_neighbours(KIO_WRITE, 0);
        go(&no_fault);
        files[0].size = 34 * BLOCK;
        expect_ops(KIO_WRITE, 1);
}

static void stop_waits_for_neighbours(void **state)
{
        static const struct fault_plan plans[] = {
                { .kind = FAULT_LATE, .late_ns = 20000000, .first = 1 },
                { .kind = FAULT_ERROR, .error = EIO, .first = 1 },
                { .kind = FAULT_SHORT, .short_bytes = 5 * BLOCK, .first = 1 },
        };

        for (unsigned i = 0; i < 2 * ARRAY_SIZE(plans); i++) {
                start_with_depth(2);
                clear();
                add_neighbours(both[i % 2], i % 3);
                submit(&plans[i / 2]);
                t.io = kio_stop(t.io);
                assert_int_equal(completed, 0);
                assert_int_equal(fault_matched(), i / 2 == 0 ? 1 : 1 + N);
                for (unsigned k = 0; k < N; k++) {
                        assert_int_equal(items[k].req.state, KIO_DONE);
                        assert_int_equal(items[k].req.result, 0);
                }
                expect_right_data();
        }
}

/* ---- anything ---- */

static uint64_t random_state;

static uint64_t draw(uint64_t below)
{
        random_state = random_state * 6364136223846793005u + 1442695040888963407u;
        return (random_state >> 33) % below;
}

/* Adds parts of both files, of any length, with gaps, in an order that is more or less random. */
static void add_mix(enum kio_op op)
{
        uint64_t reach = 1 + draw(draw(2) ? 8 : 100);

        clear();
        together = draw(2);
        for (unsigned file = 0; file < FILES; file++)
                for (uint64_t at = 0, blocks; at < BLOCKS; at += blocks) {
                        uint64_t odd = draw(3) == 0 ? draw(BLOCK) : 0;
                        enum kio_class class = draw(8) == 0 ? draw(KIO_CLASS_END) : KIO_CLASS_GET;

                        blocks = MIN(1 + draw(1 + draw(8)), BLOCKS - at);
                        if (draw(5) > 0)
                                add(op, file, at * BLOCK, blocks * BLOCK - odd)->class = class;
                }
        for (unsigned i = 0; i < n_items; i++)
                swap(i, MIN(i + (unsigned)draw(reach), n_items - 1));
}

static void submit_mix(void)
{
        bool closed = false;

        completed = 0;
        for (unsigned i = 0; i < n_items; i++) {
                if (draw(16) == 0) {
                        if (closed)
                                fault_gate_open();
                        else
                                fault_gate_close();
                        closed = !closed;
                }
                kio_submit(t.io, &items[i].req, 0);
                if (draw(8) == 0)
                        kio_flush(t.io);
                if (draw(32) == 0)
                        kio_reap(t.io);
        }
        if (closed)
                fault_gate_open();
        wait_completed(n_items);
}

static void whatever_is_mixed_comes_out_right(void **state)
{
        static const uint64_t lengths[] = { BLOCK, 1, 5000, 3 * BLOCK, 0 };
        uint64_t total[] = { 0, 0 }, joined = 0;

        start_with_depth(4);
        random_state = 26;
        for (unsigned round = 0; round < 60; round++) {
                enum kio_op op = both[round % 2];
                struct fault_plan plan = { .one_in = 5, .seed = round };

                if (round / 2 % 3 == 2) {
                        plan.kind = FAULT_SHORT;
                        /* O_DIRECT takes whole blocks only. */
                        plan.short_bytes = t.direct ? BLOCK : lengths[draw(ARRAY_SIZE(lengths))];
                } else {
                        plan.kind = FAULT_ERROR;
                        plan.error = draw(2) ? EINTR : EAGAIN;
                }
                add_mix(op);
                fault_set(round / 2 % 3 == 0 ? &no_fault : &plan);
                submit_mix();
                total[op] += n_items;
                for (unsigned i = 0; i < n_items; i++)
                        assert_int_equal(items[i].req.result, 0);
                expect_right();
                assert_true(stats().joined[op] > before.joined[op]);
                joined += stats().joined[op] - before.joined[op];
                assert_int_equal(resubmitted() > 0, round / 2 % 3 > 0);
                assert_int_equal(stats().ops[op] + stats().joined[op], total[op]);
                assert_in_range(fault_most_in_flight(), 1, 5);
        }
        assert_true(joined > (total[0] + total[1]) / 4);
        assert_int_equal(stats().inflight, 0);
        assert_int_equal(stats().queued, 0);
}

#define MERGE_TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
        const struct CMUnitTest everywhere[] = {
                MERGE_TEST(neighbours_go_as_one_in_any_order),
                MERGE_TEST(what_differs_in_anything_goes_alone),
                MERGE_TEST(syncs_go_alone),
                MERGE_TEST(one_operation_has_its_limits),
                MERGE_TEST(adjacent_requests_are_searched_among_those_that_come_first),
                MERGE_TEST(memory_side_by_side_is_registered_memory),
                MERGE_TEST(memory_of_a_region_is_registered_memory_as_well),
                MERGE_TEST(odd_lengths_go_along_with_their_tails),
                MERGE_TEST(an_error_is_that_of_those_that_have_it_alone),
                MERGE_TEST(memory_that_is_not_there_costs_only_its_own_part),
                MERGE_TEST(short_transfers_of_all_are_made_up_by_each),
                MERGE_TEST(of_a_read_beyond_the_end_those_within_succeed),
                MERGE_TEST(many_neighbours_stay_within_the_depth),
                MERGE_TEST(what_finds_no_room_waits_as_it_was),
                MERGE_TEST(test_R15_merged_requests_that_hang_cost_their_volume_only),
                MERGE_TEST(stop_waits_for_neighbours),
                MERGE_TEST(whatever_is_mixed_comes_out_right),
        };

        return run_everywhere(everywhere) > 0;
}
