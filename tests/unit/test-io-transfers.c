/* SPDX-License-Identifier: Apache-2.0 */
/* The recorder of transfers, on every backend and medium: a completed transfer is counted once,
 * with the bytes of the chunk; a failed one is an error and adds nothing. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"
#include "io-fixture.h"

enum { PAGE = 4096, CHUNKS = 12, FILE_BYTES = 1 << 20 };

static struct kio_request requests[CHUNKS];
static int fd = -1;

static struct transfer_counts window[TRANSFERS_SERIES];
static bool recording;

static void begin(void)
{
        skip_unless_possible();
        start_with_faults(1, 32);
        for (unsigned i = 0; i < TRANSFERS_SERIES; i++)
                transfer_counts_init(&window[i]);
        kio_record_transfers(t.io, window);
        recording = true;
        closep(&fd);
        fd = make_file("transfers", FILE_BYTES, 7);
        close(fd);
        fd = open_file("transfers", O_RDWR);
        assert_true(fd >= 0);
        fault_set(NULL);
}

static const struct transfer_series *series(unsigned i)
{
        return &kio_transfers(t.io)->series[i];
}

/* Checks that a window that has existed since the first operation has the same counts. */
static void assert_window(const struct transfer_counts *c, const struct transfer_series *s)
{
        uint64_t sizes = 0, latencies = 0;

        for (unsigned i = 0; i < TRANSFER_BUCKETS; i++) {
                sizes += c->sizes[i];
                latencies += c->latencies[i];
                assert_int_equal(sizes, histogram_at_most(&s->sizes, (UINT64_C(1) << i) - 1));
        }
        assert_int_equal(c->transfers, s->ops[TRANSFER_OK]);
        assert_int_equal(sizes, c->transfers);
        assert_int_equal(latencies, c->transfers);
        assert_int_equal(c->latency_ns, s->latencies.sum);
        assert_int_equal(c->blocks, s->blocks);
        assert_int_equal(c->regions, s->blocks);
        assert_int_equal(c->bytes, s->bytes);
        assert_int_equal(c->device_bytes, s->device_bytes);
        for (unsigned r = TRANSFER_OK + 1; r < TRANSFER_RESULTS; r++)
                assert_int_equal(c->errors[r], s->ops[r]);
        if (c->transfers > 0) {
                assert_int_equal(c->max_bytes, s->sizes.max + 1);
                assert_true(c->min_bytes > 0 && c->min_bytes <= c->bytes / c->transfers);
        }
}

static int compare_and_tear_down(void **state)
{
        for (unsigned i = 0; recording && i < TRANSFERS_SERIES; i++)
                assert_window(&window[i], series(i));
        recording = false;
        return test_teardown(state);
}

#undef IO_TEST
#define IO_TEST(f) cmocka_unit_test_setup_teardown(f, test_setup, compare_and_tear_down)

/* Returns the checksum that the pages at `at` must have. */
static uint32_t crc_of(uint64_t at, uint64_t bytes)
{
        struct kio_request read = transfer(KIO_READ, fd, t.pool, round_up(bytes, PAGE), at);

        read.crc_bytes = bytes;
        assert_int_equal(run(&read), 0);
        return read.crc;
}

/* Chunk `i` has its own place, in memory and in the file. `apart`: nothing can be merged. */
static struct kio_request *chunk(enum kio_op op, unsigned i, uint64_t payload, bool apart)
{
        uint64_t length = round_up(payload, PAGE), at = i * (apart ? 4 * PAGE : length);

        requests[i] = transfer(op, fd, t.pool + i * 4 * PAGE, length, at);
        requests[i].payload = payload;
        if (op == KIO_READ) {
                requests[i].crc_bytes = payload;
                requests[i].want_crc = crc_of(at, payload);
        }
        return &requests[i];
}

static void run_all(unsigned n)
{
        fault_gate_close();
        completed = 0;
        for (unsigned i = 0; i < n; i++)
                kio_submit(t.io, &requests[i], 0);
        fault_gate_open();
        wait_completed(n);
}

static void nothing_has_moved(const struct transfer_series *s)
{
        assert_int_equal(s->ops[TRANSFER_OK], 0);
        assert_int_equal(s->blocks, 0);
        assert_int_equal(s->bytes, 0);
        assert_int_equal(s->device_bytes, 0);
        assert_int_equal(s->sizes.count, 0);
        assert_int_equal(s->latencies.count, 0);
}

/* Fully contiguous, not merged: transfers = blocks. */
static void chunks_apart_are_an_operation_each(void **state)
{
        static const enum kio_op ops[] = { KIO_WRITE, KIO_READ };

        begin();
        for (unsigned k = 0; k < ARRAY_SIZE(ops); k++) {
                const struct transfer_series *s =
                        series(ops[k] == KIO_READ ? TRANSFERS_READ : TRANSFERS_WRITE);

                for (unsigned i = 0; i < CHUNKS; i++)
                        chunk(ops[k], i, PAGE + 100 * i, true);
                nothing_has_moved(s);
                run_all(CHUNKS);
                assert_int_equal(s->ops[TRANSFER_OK], CHUNKS);
                assert_int_equal(s->blocks, CHUNKS);
                assert_int_equal(s->bytes, CHUNKS * PAGE + 100 * CHUNKS * (CHUNKS - 1) / 2);
                assert_int_equal(s->device_bytes, PAGE + (CHUNKS - 1) * 2 * PAGE);
                assert_int_equal(s->sizes.sum + s->sizes.count, s->bytes);
                assert_int_equal(s->sizes.max + 1, PAGE + 100 * (CHUNKS - 1));
                assert_int_equal(s->latencies.count, CHUNKS);
                assert_true(s->busy_ns > 0 && s->busy_ns >= s->latencies.max);
                assert_int_equal(s->inflight, 0);
                assert_int_equal(s->layout, TRANSFER_FULLY_CONTIGUOUS);
                assert_int_equal(s->technology, is_uring() ? TRANSFER_IO_URING : TRANSFER_POSIX);
                for (unsigned r = TRANSFER_OK + 1; r < TRANSFER_RESULTS; r++)
                        assert_int_equal(s->ops[r], 0);
        }
        nothing_has_moved(series(TRANSFERS_COPY));
}

/* Merged requests are one operation, of several blocks and the size of all of them. */
static void adjacent_chunks_are_blocks_of_one_operation(void **state)
{
        const struct transfer_series *s;
        struct kio_stats after;

        begin();
        s = series(TRANSFERS_WRITE);
        for (unsigned i = 0; i < CHUNKS; i++)
                chunk(KIO_WRITE, i, PAGE, false);
        run_all(CHUNKS);
        after = stats();
        assert_int_equal(s->blocks, CHUNKS);
        assert_int_equal(s->bytes, CHUNKS * PAGE);
        assert_int_equal(s->ops[TRANSFER_OK], after.ops[KIO_WRITE]);
        assert_int_equal(after.ops[KIO_WRITE] + after.joined[KIO_WRITE], CHUNKS);
        assert_true(s->ops[TRANSFER_OK] < CHUNKS);
        assert_int_equal(s->sizes.count, s->ops[TRANSFER_OK]);
        assert_int_equal(s->sizes.sum + s->sizes.count, CHUNKS * PAGE);
        assert_true(s->sizes.max >= PAGE);
}

/* If the merged one fails, its parts are tried alone and count so. */
static void parts_of_a_failed_operation_count_for_themselves(void **state)
{
        struct fault_plan plan = { .kind = FAULT_ERROR, .error = EIO, .first = 1 };
        const struct transfer_series *s;

        begin();
        s = series(TRANSFERS_WRITE);
        for (unsigned i = 0; i < CHUNKS; i++)
                chunk(KIO_WRITE, i, PAGE, false);
        fault_set(&plan);
        run_all(CHUNKS);
        fault_set(NULL);
        assert_int_equal(s->ops[TRANSFER_OK], CHUNKS);
        assert_int_equal(s->blocks, CHUNKS);
        assert_int_equal(s->bytes, CHUNKS * PAGE);
        assert_int_equal(s->sizes.sum + s->sizes.count, CHUNKS * PAGE);
        assert_int_equal(s->sizes.max + 1, PAGE);
        assert_int_equal(s->ops[TRANSFER_ERROR_IO], 0);
}

static void failures_are_errors_of_their_kind_and_add_no_bytes(void **state)
{
        static const struct {
                enum fault_kind kind;
                int error;
                enum transfer_result result;
        } cases[] = {
                { FAULT_ERROR, EIO, TRANSFER_ERROR_IO },
                { FAULT_ERROR, ENOSPC, TRANSFER_ERROR_IO },
                { FAULT_LIES, EIO, TRANSFER_ERROR_IO },
                { FAULT_TORN, EIO, TRANSFER_ERROR_IO },
                { FAULT_ERROR, ETIMEDOUT, TRANSFER_ERROR_TIMEOUT },
                { FAULT_ERROR, ECANCELED, TRANSFER_ERROR_CANCELLED },
        };
        static const enum kio_op ops[] = { KIO_WRITE, KIO_READ };

        begin();
        for (unsigned i = 0; i < 2 * ARRAY_SIZE(cases); i++) {
                struct fault_plan plan = { .kind = cases[i / 2].kind,
                                           .error = cases[i / 2].error,
                                           .first = 1,
                                           .count = FAULT_FOR_EVER };
                const struct transfer_series *s =
                        series(ops[i % 2] == KIO_READ ? TRANSFERS_READ : TRANSFERS_WRITE);
                uint64_t before = s->ops[cases[i / 2].result];
                struct kio_request *req = chunk(ops[i % 2], 0, PAGE, true);

                fault_set(&plan);
                assert_int_equal(run(req), -cases[i / 2].error);
                fault_set(NULL);
                assert_int_equal(s->ops[cases[i / 2].result], before + 1);
                nothing_has_moved(s);
                assert_int_equal(s->inflight, 0);
        }
}

static void a_read_beyond_the_end_of_the_file_is_short(void **state)
{
        const struct transfer_series *s;
        struct kio_request *req;

        begin();
        s = series(TRANSFERS_READ);
        req = chunk(KIO_READ, 0, 2 * PAGE, true);
        req->offset = FILE_BYTES - PAGE;
        assert_int_equal(run(req), -EIO);
        assert_int_equal(s->ops[TRANSFER_ERROR_SHORT], 1);
        assert_int_equal(s->ops[TRANSFER_ERROR_IO], 0);
        nothing_has_moved(s);
        req->offset = 0; /* the same request again, without the mark */
        assert_int_equal(run(req), 0);
        assert_int_equal(s->ops[TRANSFER_OK], 1);
        assert_int_equal(s->bytes, 2 * PAGE);
}

/* A short transfer that is continued counts as one operation, and its bytes once. */
static void a_transfer_that_is_continued_counts_once(void **state)
{
        struct fault_plan plan = { .kind = FAULT_SHORT, .short_bytes = PAGE, .first = 1 };
        const struct transfer_series *s;

        begin();
        s = series(TRANSFERS_READ);
        chunk(KIO_READ, 0, 3 * PAGE, true);
        fault_set(&plan);
        assert_int_equal(run(&requests[0]), 0);
        fault_set(NULL);
        assert_int_equal(s->ops[TRANSFER_OK], 1);
        assert_int_equal(s->bytes, 3 * PAGE);
        assert_int_equal(s->sizes.sum + 1, 3 * PAGE);
}

static void bytes_that_fail_their_check_are_errors(void **state)
{
        const struct transfer_series *s;

        begin();
        s = series(TRANSFERS_READ);
        for (unsigned wipe = 0; wipe < 2; wipe++) {
                struct kio_request *req = chunk(KIO_READ, 0, PAGE, true);

                req->want_crc++;
                req->wipe = wipe;
                assert_int_equal(run(req), 0);
                assert_int_equal(s->ops[TRANSFER_ERROR_CHECKSUM], wipe + 1);
                nothing_has_moved(s);
        }
}

static void copies_of_chunks_count_and_checksums_alone_do_not(void **state)
{
        const struct transfer_series *s;
        struct kio_request copy;

        begin();
        s = series(TRANSFERS_COPY);
        copy = transfer(KIO_COPY, -1, t.pool, 600 * 1024, 0); /* in several slices */
        copy.src = t.pool + 2 * POOL_PIECE;
        copy.payload = copy.length;
        assert_int_equal(run(&copy), 0);
        assert_int_equal(s->ops[TRANSFER_OK], 1);
        assert_int_equal(s->bytes, copy.length);
        assert_int_equal(s->technology, TRANSFER_MEMCPY);
        assert_int_equal(s->path, TRANSFER_HOST_TO_HOST);
        copy.payload = 0;
        assert_int_equal(run(&copy), 0);
        assert_int_equal(s->ops[TRANSFER_OK], 1);
        assert_int_equal(s->bytes, copy.length);
}

/* The rate is bytes divided by busy time, also during transfers: a series that is never idle, or
 * one of whose transfers hangs, has its time so far. */
static void the_busy_time_goes_on_with_each_completion(void **state)
{
        static const struct {
                uint64_t at; /* submitted, or done */
                int slot;    /* ~slot: done */
                uint64_t busy;
        } steps[] = {
                { 100, 0, 0 },   { 105, 1, 0 },  { 110, ~0, 10 }, { 112, 0, 10 },  { 120, ~1, 20 },
                { 122, 1, 20 },  { 123, 2, 20 }, { 150, ~2, 50 }, { 130, ~1, 50 }, /* reaped late */
                { 160, ~0, 60 }, { 200, 0, 60 }, { 207, ~0, 67 },
        };
        struct kio_request reqs[3];
        struct transfers all;

        (void)state;
        transfers_init(&all, TRANSFER_POSIX);
        for (unsigned i = 0; i < ARRAY_SIZE(steps); i++) {
                bool ends = steps[i].slot < 0;
                struct kio_request *req = &reqs[ends ? ~steps[i].slot : steps[i].slot];

                if (ends) {
                        req->done_ns = req->settled_ns = steps[i].at;
                        transfers_end(&all, req);
                } else {
                        *req = (struct kio_request){ .op = KIO_WRITE,
                                                     .length = PAGE,
                                                     .payload = PAGE,
                                                     .submitted_ns = steps[i].at,
                                                     .device_ns = steps[i].at };
                        transfers_begin(&all, req);
                }
                assert_int_equal(all.series[TRANSFERS_WRITE].busy_ns, steps[i].busy);
        }
        assert_int_equal(all.series[TRANSFERS_WRITE].inflight, 0);
        assert_int_equal(all.series[TRANSFERS_WRITE].ops[TRANSFER_OK], 6);
}

static void the_names_are_those_of_the_specification(void **state)
{
        assert_string_equal(transfer_path_name(TRANSFER_HOST_TO_DISK), "host_to_disk");
        assert_string_equal(transfer_path_name(TRANSFER_DEVICE_TO_DISK), "device_to_disk");
        assert_string_equal(transfer_path_name(TRANSFER_PATHS), "other");
        assert_string_equal(transfer_layout_name(TRANSFER_LAYER_SEPARATE_OUTER_FIRST),
                            "layer_separate_outer_first");
        assert_string_equal(transfer_layout_name(TRANSFER_REGIONS), "regions");
        assert_string_equal(transfer_technology_name(TRANSFER_COMPOSED), "composed");
        assert_string_equal(transfer_technology_name(UINT32_MAX), "other");
        assert_string_equal(transfer_result_name(TRANSFER_ERROR_TIMEOUT), "timeout");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                IO_TEST(chunks_apart_are_an_operation_each),
                IO_TEST(adjacent_chunks_are_blocks_of_one_operation),
                IO_TEST(parts_of_a_failed_operation_count_for_themselves),
                IO_TEST(failures_are_errors_of_their_kind_and_add_no_bytes),
                IO_TEST(a_read_beyond_the_end_of_the_file_is_short),
                IO_TEST(a_transfer_that_is_continued_counts_once),
                IO_TEST(bytes_that_fail_their_check_are_errors),
                IO_TEST(copies_of_chunks_count_and_checksums_alone_do_not),
                cmocka_unit_test(the_busy_time_goes_on_with_each_completion),
                cmocka_unit_test(the_names_are_those_of_the_specification),
        };

        return run_everywhere(tests);
}
