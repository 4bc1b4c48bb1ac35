/* SPDX-License-Identifier: Apache-2.0 */
/* io/: what runs before what, and how much at once: blocking calls, the depth, classes, puts and
 * gets. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "checked.h"
#include "cleanup.h"
#include "io-fixture.h"

struct call {
        struct kio_request req;
        pthread_t thread;
        char name[16];
        sigset_t blocked;
};

static int note_thread(struct kio_request *req)
{
        struct call *c = container_of(req, struct call, req);

        c->thread = pthread_self();
        pthread_getname_np(c->thread, c->name, sizeof(c->name));
        pthread_sigmask(SIG_SETMASK, NULL, &c->blocked);
        return -ENOTTY;
}

static void calls_run_one_by_one_on_a_thread_of_their_own(void **state)
{
        struct kio_params p = params_of(t.backend);
        static struct call calls[4];

        skip_unless_possible();
        p.workers = 2;
        start(&p);
        for (unsigned i = 0; i < 4; i++) {
                calls[i].req = (struct kio_request){ .op = KIO_CALL,
                                                     .class = i % KIO_CLASS_END,
                                                     .call = note_thread,
                                                     .complete = count_complete };
                kio_submit(t.io, &calls[i].req, i);
        }
        wait_completed(4);
        for (unsigned i = 0; i < 4; i++) {
                assert_int_equal(calls[i].req.result, -ENOTTY);
                assert_true(calls[i].req.done_ns >= calls[i].req.submitted_ns);
                assert_string_equal(calls[i].name, "kio-call-0");
                assert_true(pthread_equal(calls[i].thread, calls[0].thread));
                assert_false(pthread_equal(calls[i].thread, pthread_self()));
                assert_true(sigismember(&calls[i].blocked, SIGTERM));
                assert_true(sigismember(&calls[i].blocked, SIGCHLD));
                assert_false(sigismember(&calls[i].blocked, SIGBUS));
        }
        assert_int_equal(stats().errors[KIO_CALL], 4);
        assert_int_equal(stats().ops[KIO_CALL], 0);
        assert_int_equal(stats().queued, 0);
}

/* Waiting calls of gets go first, and each class in order of arrival. */
static void calls_go_in_the_order_of_their_classes(void **state)
{
        struct kio_params p = params_of(t.backend);
        static struct kio_request gate;
        static struct call calls[9];
        static const unsigned expected[] = { 6, 7, 8, 3, 4, 5, 0, 1, 2 };
        unsigned turn_of_put = 0;

        skip_unless_possible();
        start(&p);
        gate = gate_request();
        kio_submit(t.io, &gate, 0);
        wait_for_gate();
        for (unsigned i = 0; i < 9; i++) {
                calls[i].req = (struct kio_request){ .op = KIO_CALL,
                                                     .class = KIO_CLASS_END - 1 - i / 3,
                                                     .call = note_thread,
                                                     .complete = count_complete };
                kio_submit(t.io, &calls[i].req, 0);
        }
        assert_int_equal(stats().queued, 9);
        sem_post(&gate_open);
        wait_completed(10);
        for (unsigned i = 1; i < 9; i++)
                turn_of_put += calls[expected[i - 1]].req.done_ns > calls[expected[i]].req.done_ns;
        /* Every eighth submission prefers a put, but none is left by then. */
        assert_int_equal(turn_of_put, 0);
        assert_int_equal(stats().ops[KIO_CALL], 1);
        assert_int_equal(stats().errors[KIO_CALL], 9);
}

static void what_holds_up_calls_holds_up_nothing_else(void **state)
{
        _cleanup_(closep) int fd = -1;
        struct kio_params p = params_of(t.backend);
        static struct kio_request gate, call, req;

        skip_unless_possible();
        fd = make_file("data", 65536, 25);
        start(&p);
        gate = gate_request();
        kio_submit(t.io, &gate, 0);
        call = gate_request();
        kio_submit(t.io, &call, 0);
        wait_for_gate();
        for (unsigned i = 0; i < 10; i++) {
                req = transfer(KIO_READ, fd, t.pool, 65536, 0);
                req.crc_bytes = 65536;
                completed = 0;
                kio_submit(t.io, &req, 0);
                wait_completed(1);
                assert_int_equal(req.result, 0);
        }
        /* Each worker registers the memory with its own ring, so this waits for both. */
        completed = 0;
        assert_int_equal(register_piece(0), 0);
        assert_int_equal(completed, 0);
        assert_int_equal(kio_pending(t.io), 2);
        sem_post(&gate_open);
        sem_post(&gate_open);
        wait_completed(2);
}

static void many_requests_stay_within_the_depth(void **state)
{
        _cleanup_(closep) int fd = -1;
        enum { N = 600 };
        struct kio_request *reqs = calloc(N, sizeof(*reqs));

        assert_non_null(reqs);
        if (t.skip)
                free(reqs);
        skip_unless_possible();
        fd = make_file("data", POOL_PIECE, 8);
        start_with_faults(2, 4);
        for (unsigned i = 0; i < N; i++) {
                reqs[i] = transfer(KIO_READ, fd, t.pool + i * 4096, 4096, (i % 512) * 4096);
                reqs[i].crc_bytes = 4096;
                reqs[i].class = i % KIO_CLASS_END;
                kio_submit(t.io, &reqs[i], i);
                if (i % 50 == 0)
                        kio_flush(t.io);
        }
        wait_completed(N);
        for (unsigned i = 0; i < N; i++) {
                assert_int_equal(reqs[i].result, 0);
                assert_int_equal(reqs[i].crc, reqs[i % 512].crc);
                assert_int_equal(reqs[i].crc, kio_crc32c(t.pool + i * 4096, 4096));
        }
        assert_in_range(fault_most_in_flight(), 1, 5);
        assert_int_equal(stats().ops[KIO_READ], N);
        free(reqs);
}

static void as_few_workers_take_a_burst_as_it_needs(void **state)
{
        enum { WORKERS = 3, DEPTH = 4, READS = WORKERS * DEPTH + 6, COPIES = 13, SUMS = 17 };
        static struct kio_request reads[READS], copies[COPIES], sums[SUMS];
        const uint64_t part = 64 * 1024; /* a quarter of what a worker copies before another does */
        _cleanup_(closep) int fd = -1;

        skip_unless_possible();
        fd = make_file("data", 65536, 25);
        start_with_faults(WORKERS, DEPTH);
        completed = 0;
        for (unsigned i = 0; i < READS; i++) {
                reads[i] = transfer(KIO_READ, fd, t.pool + i * 4096, 4096, 4096 * (i % 8));
                kio_submit(t.io, &reads[i], i);
                /* Each worker first gets as many as the device takes from it; afterwards all of
                 * them get more. */
                assert_int_equal(reads[i].worker, i < WORKERS * DEPTH ? i / DEPTH : i % WORKERS);
        }
        for (unsigned i = 0; i < COPIES; i++) {
                copies[i] = transfer(KIO_COPY, -1, t.pool + POOL_PIECE, part, 0);
                copies[i].src = t.pool + 2 * POOL_PIECE;
                kio_submit(t.io, &copies[i], 7);
                assert_int_equal(copies[i].worker, i < 12 ? i / 4 : 0);
        }
        wait_completed(READS + COPIES);
        /* A checksum counts as a quarter of a copy. */
        completed = 0;
        for (unsigned i = 0; i < SUMS; i++) {
                sums[i] = transfer(KIO_COPY, -1, NULL, part, 0);
                sums[i].src = t.pool + 2 * POOL_PIECE;
                kio_submit(t.io, &sums[i], 7);
                assert_int_equal(sums[i].worker, i < 16 ? 0 : 1);
        }
        wait_completed(SUMS);
        /* Completed requests are no load. */
        for (unsigned i = 0; i < DEPTH; i++) {
                completed = 0;
                kio_submit(t.io, &reads[i], 2);
                assert_int_equal(reads[i].worker, 0);
                wait_completed(1);
        }
}

/* Starts workers with `depth` places, which get reads in shares of `spread_bytes` bytes. */
static void start_spreading(unsigned workers, unsigned depth, uint64_t spread_bytes)
{
        struct kio_params p = params_of(t.backend);

        p.workers = workers;
        p.depth = p.posix_threads = depth;
        p.spread_bytes = spread_bytes;
        start_on(&p, fault_wrap(backend_of_group()));
}

static void reads_are_spread_where_there_are_cores_for_it(void **state)
{
        enum { WORKERS = 3, DEPTH = 16, EACH = 2, ROUNDS = 3, N = WORKERS * EACH * ROUNDS };
        static struct kio_request reads[N], writes[EACH + 1];
        struct fault_plan never = { .kind = FAULT_NEVER, .first = 1, .count = FAULT_FOR_EVER };
        _cleanup_(closep) int fd = -1;

        skip_unless_possible();
        fd = make_file("data", 65536, 26);
        start_spreading(WORKERS, DEPTH, EACH * 4096);
        completed = 0;
        fault_set(&never);
        /* Writes are not compared: the first worker has room for all of them, and for as many reads
         * as before. */
        for (unsigned i = 0; i < ARRAY_SIZE(writes); i++) {
                writes[i] = transfer(KIO_WRITE, fd, t.pool + POOL_PIECE, 4096, 32768);
                kio_submit(t.io, &writes[i], 2);
                assert_int_equal(writes[i].worker, 0);
        }
        for (unsigned i = 0; i < N; i++) {
                reads[i] = transfer(KIO_READ, fd, t.pool + i * 4096, 4096, 4096 * (i % 8));
                kio_submit(t.io, &reads[i], i);
                assert_int_equal(reads[i].worker, i / EACH % WORKERS);
        }
        kio_flush(t.io);
        fault_set(NULL);
        fault_release();
        wait_completed(N + ARRAY_SIZE(writes));
        /* Completed requests are no load. */
        for (unsigned i = 0; i < EACH + 1; i++) {
                kio_submit(t.io, &reads[i], 2);
                assert_int_equal(reads[i].worker, i / EACH);
        }
        completed = 0;
        wait_completed(EACH + 1);
}

/* This holds however small the reads are. */
static void a_reader_has_no_more_than_its_places_before_another_has(void **state)
{
        enum { WORKERS = 3, DEPTH = 4, N = 2 * WORKERS * DEPTH };
        static struct kio_request reads[N];
        _cleanup_(closep) int fd = -1;

        skip_unless_possible();
        fd = make_file("data", 65536, 27);
        start_spreading(WORKERS, DEPTH, 1 << 20);
        completed = 0;
        for (unsigned i = 0; i < N; i++) {
                reads[i] = transfer(KIO_READ, fd, t.pool + i * 4096, 4096, 4096 * (i % 8));
                kio_submit(t.io, &reads[i], 0);
                assert_int_equal(reads[i].worker, i / DEPTH % WORKERS);
        }
        wait_completed(N);
}

/* A worker that has its share begins before the end of the loop's iteration. */
static void a_reader_is_woken_when_the_next_one_is_given_reads(void **state)
{
        enum { WORKERS = 2, DEPTH = 16, EACH = 4, N = EACH + 1, TRIES = 1000 };
        static struct kio_request reads[N];
        unsigned woken = 0, tries = 0;
        _cleanup_(closep) int fd = -1;

        skip_unless_possible();
        fd = make_file("data", 65536, 26);
        start_spreading(WORKERS, DEPTH, EACH * 4096);
        for (; woken == 0 && tries < TRIES; tries++) { /* the worker may not have been asleep yet */
                uint64_t before = stats().wakeups;

                completed = 0;
                for (unsigned i = 0; i < EACH; i++) {
                        reads[i] = transfer(KIO_READ, fd, t.pool + i * 4096, 4096, 4096 * i);
                        kio_submit(t.io, &reads[i], 0);
                        assert_int_equal(reads[i].worker, 0);
                }
                assert_int_equal(stats().wakeups, before);
                reads[EACH] = transfer(KIO_READ, fd, t.pool + EACH * 4096, 4096, 0);
                kio_submit(t.io, &reads[EACH], 0);
                assert_int_equal(reads[EACH].worker, 1);
                woken = (unsigned)(stats().wakeups - before);
                wait_completed(N);
        }
        assert_int_equal(woken, 1);
}

/* Checks how many operations of each class are at the device together, if it answers none of
 * them. */
static void expect_in_flight(const unsigned submitted[static KIO_CLASS_END],
                             const unsigned expected[static KIO_CLASS_END])
{
        static struct kio_request reqs[3 * 64], last;
        struct fault_plan never = { .kind = FAULT_NEVER, .first = 1, .count = FAULT_FOR_EVER };
        unsigned n = 0, most = 0;
        int fd = make_file("data", 65536, 24);

        start_with_faults(1, 16);
        fault_set(&never);
        fault_gate_close();
        for (unsigned c = 0; c < KIO_CLASS_END; c++)
                for (unsigned i = 0; i < submitted[c]; i++) {
                        reqs[n] = transfer(KIO_READ, fd, t.pool + n * 4096, 4096, 0);
                        reqs[n].class = c;
                        kio_submit(t.io, &reqs[n++], 0);
                }
        last = transfer(KIO_COPY, -1, t.pool + POOL_PIECE, 4096, 0);
        last.src = t.pool + 2 * POOL_PIECE;
        kio_submit(t.io, &last, 0);
        completed = 0;
        fault_gate_open();
        wait_completed(1); /* the worker has pushed all it may when the copy ends */
        for (unsigned c = 0; c < KIO_CLASS_END; c++) {
                assert_int_equal(fault_most_in_flight_of(c), expected[c]);
                most += expected[c];
        }
        assert_int_equal(fault_most_in_flight(), most);
        assert_int_equal(stats().inflight, most);
        assert_int_equal(stats().queued, n - most);
        fault_set(NULL);
        fault_release();
        wait_completed(n + 1);
        for (unsigned i = 0; i < n; i++)
                assert_int_equal(reqs[i].result, 0);
        t.io = kio_stop(t.io);
        close(fd);
}

static void either_kind_gets_its_depth_and_the_other_a_place(void **state)
{
        skip_unless_possible();
        expect_in_flight((unsigned[]){ 64, 0, 0 }, (unsigned[]){ 16, 0, 0 });
        expect_in_flight((unsigned[]){ 0, 64, 0 }, (unsigned[]){ 0, 16, 0 });
        expect_in_flight((unsigned[]){ 0, 0, 64 }, (unsigned[]){ 0, 0, 2 });
        /* Two more places than the depth: neither kind can take all. */
        expect_in_flight((unsigned[]){ 64, 64, 64 }, (unsigned[]){ 16, 2, 0 });
        expect_in_flight((unsigned[]){ 2, 64, 64 }, (unsigned[]){ 2, 16, 0 });
        expect_in_flight((unsigned[]){ 0, 15, 64 }, (unsigned[]){ 0, 15, 1 });
}

/* Gets that come late find a place, though all that came before fill the device. */
static void gets_find_a_place_when_puts_fill_the_device(void **state)
{
        _cleanup_(closep) int fd = -1;
        static struct kio_request puts[64], get;
        struct fault_plan never = {
                .ops = 1u << KIO_WRITE, .kind = FAULT_NEVER, .first = 1, .count = FAULT_FOR_EVER
        };

        skip_unless_possible();
        fd = make_file("data", 65536, 26);
        start_with_faults(1, 8);
        fault_set(&never);
        for (unsigned i = 0; i < 64; i++) {
                puts[i] = transfer(KIO_WRITE, fd, t.pool, 4096, 0);
                puts[i].class = i % 2 ? KIO_CLASS_PUT : KIO_CLASS_BACKGROUND;
                kio_submit(t.io, &puts[i], 0);
        }
        kio_flush(t.io);
        for (unsigned i = 0; i < 10; i++) {
                get = transfer(KIO_READ, fd, t.pool + 4096, 4096, 0);
                completed = 0;
                kio_submit(t.io, &get, 0);
                wait_completed(1);
                assert_int_equal(get.result, 0);
        }
        assert_int_equal(stats().inflight, 8);
        completed = 0;
        fault_set(NULL);
        fault_release();
        wait_completed(64);
}

static enum kio_class order[256];

static unsigned n_order;

static void note_order(struct kio_request *req)
{
        order[n_order++] = req->class;
        completed++;
}

/* One operation in flight at a time shows the order in which they went. */
static void gets_overtake_puts_but_do_not_starve_them(void **state)
{
        _cleanup_(closep) int fd = -1;
        static struct kio_request reqs[3 * 30];
        unsigned n = 0, puts = 0;

        skip_unless_possible();
        fd = make_file("data", 65536, 9);
        start_with_faults(1, 1);
        fault_gate_close();
        for (unsigned i = 0; i < 90; i++) {
                reqs[i] = transfer(KIO_READ, fd, t.pool, 4096, 0);
                reqs[i].class = i < 30   ? KIO_CLASS_BACKGROUND
                                : i < 60 ? KIO_CLASS_PUT
                                         : KIO_CLASS_GET;
                reqs[i].complete = note_order;
                kio_submit(t.io, &reqs[i], 0);
        }
        n_order = 0;
        fault_gate_open();
        wait_completed(90);
        assert_int_equal(n_order, 90);
        /* A put is among the first eight, though all puts came before all gets. */
        for (n = 0; n < 8; n++)
                puts += order[n] == KIO_CLASS_PUT;
        assert_int_equal(order[0], KIO_CLASS_GET);
        assert_int_equal(puts, 1);
        /* All gets have been submitted after 30 of them and their share of others. */
        for (n = 0; n < 36; n++)
                puts += order[n] == KIO_CLASS_BACKGROUND;
        assert_int_equal(puts, 2); /* one put counted above, one background in 64 */
        for (n = 36; n < 90; n++)
                assert_int_not_equal(order[n], KIO_CLASS_GET);
        for (n = 62; n < 90; n++)
                assert_int_equal(order[n], KIO_CLASS_BACKGROUND);
}

/* The kernel hands a submission to the device when it has built all of it. */
static void idle_device_begins_before_all_operations_are_built(void **state)
{
        enum { N = 16, AHEAD = 4 };
        _cleanup_(closep) int fd = -1;
        static struct kio_request reqs[N];

        skip_unless_possible();
        fd = make_file("data", N * 2 * 4096, 9);
        start_with_faults(1, N);
        for (unsigned n = 1; n <= N; n++) {
                completed = 0;
                fault_set(NULL);
                fault_gate_close();
                for (unsigned i = 0; i < n; i++) {
                        /* Gaps keep the reads from being merged. */
                        reqs[i] = transfer(KIO_READ, fd, t.pool + i * 4096, 4096, i * 2 * 4096);
                        kio_submit(t.io, &reqs[i], 0);
                }
                fault_gate_open();
                wait_completed(n);
                assert_int_equal(fault_first_submission(), MIN(n, (unsigned)AHEAD));
        }
}

/* The put's one turn in eight is a slice, not the whole copy. */
static void gets_do_not_wait_for_a_long_copy(void **state)
{
        static struct kio_request copy, gets[20];

        skip_unless_possible();
        start_with_faults(1, 8);
        fill(t.pool, POOL_PIECE, 23);
        fault_gate_close();
        copy = transfer(KIO_COPY, -1, t.pool + 2 * POOL_PIECE, 2 * POOL_PIECE, 0);
        copy.src = t.pool;
        copy.class = KIO_CLASS_PUT;
        copy.complete = note_order;
        kio_submit(t.io, &copy, 0);
        for (unsigned i = 0; i < 20; i++) {
                gets[i] = transfer(KIO_COPY, -1, t.pool + POOL_PIECE + i * 4096, 4096, 0);
                gets[i].src = t.pool;
                gets[i].complete = note_order;
                kio_submit(t.io, &gets[i], 0);
        }
        n_order = 0;
        fault_gate_open();
        wait_completed(21);
        assert_int_equal(n_order, 21);
        assert_int_equal(order[20], KIO_CLASS_PUT);
        assert_memory_equal(t.pool, t.pool + 2 * POOL_PIECE, POOL_PIECE);
        assert_int_equal(gets[19].crc, kio_crc32c(t.pool, 4096));
}

static void stop_waits_for_what_was_submitted(void **state)
{
        _cleanup_(closep) int fd = -1;
        struct kio_params p = params_of(t.backend);
        static struct kio_request reqs[100], calls[2];

        skip_unless_possible();
        fd = open_file("data", O_RDWR | O_TRUNC);
        p.depth = 4;
        p.workers = 2;
        start(&p);
        fill(t.pool, POOL_PIECE, 10);
        for (unsigned i = 0; i < 100; i++) {
                reqs[i] = transfer(i % 5 == 4 ? KIO_COPY : KIO_WRITE, fd, t.pool + (i % 100) * 4096,
                                   4096, i * 4096);
                reqs[i].src = t.pool + (i % 100) * 4096;
                if (reqs[i].op == KIO_COPY)
                        reqs[i].buf = t.pool + POOL_PIECE + i * 4096;
                kio_submit(t.io, &reqs[i], i);
        }
        for (unsigned i = 0; i < 2; i++) {
                calls[i] = gate_request();
                kio_submit(t.io, &calls[i], 0);
        }
        sem_post(&gate_open);
        sem_post(&gate_open);
        /* Not even flushed. */
        t.io = kio_stop(t.io);
        assert_int_equal(completed, 0);
        assert_int_equal(calls[0].state, KIO_DONE);
        assert_int_equal(calls[1].state, KIO_DONE);
        for (unsigned i = 0; i < 100; i++) {
                assert_int_equal(reqs[i].state, KIO_DONE);
                assert_int_equal(reqs[i].result, 0);
        }
        assert_int_equal(kio_crc32c(t.pool + POOL_PIECE + 4 * 4096, 4096),
                         kio_crc32c(t.pool + 4 * 4096, 4096));
}

/* complete() may use the request again. */
static unsigned hops;

static void hop(struct kio_request *req)
{
        assert_int_equal(req->result, 0);
        if (++hops < 50) {
                kio_submit(t.io, req, hops);
                kio_flush(t.io);
        } else
                completed++;
}

static void a_request_can_be_submitted_again_from_complete(void **state)
{
        _cleanup_(closep) int fd = -1;
        struct kio_params p = params_of(t.backend);
        static struct kio_request req;

        skip_unless_possible();
        fd = make_file("data", 4096, 11);
        p.workers = 3;
        start(&p);
        hops = 0;
        req = transfer(KIO_READ, fd, t.pool, 4096, 0);
        req.complete = hop;
        kio_submit(t.io, &req, 0);
        wait_completed(1);
        assert_int_equal(hops, 50);
        assert_int_equal(stats().ops[KIO_READ], 50);
}

static void idle_workers_cost_nothing(void **state)
{
        struct kio_params p = params_of(t.backend);
        static struct kio_request req;
        struct pollfd fd;
        uint64_t before;

        skip_unless_possible();
        p.workers = 4;
        start(&p);
        for (unsigned i = 0; i < 4; i++) {
                req = transfer(KIO_COPY, -1, t.pool, 4096, 0);
                req.src = t.pool + 4096;
                assert_int_equal(run(&req), 0);
        }
        assert_true(kio_is_alive(t.io));
        before = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
        fd = (struct pollfd){ .fd = kio_fd(t.io), .events = POLLIN };
        assert_int_equal(poll(&fd, 1, 200), 0);
        assert_true(clock_ns(CLOCK_PROCESS_CPUTIME_ID) - before < 50 * 1000000u);
        assert_true(kio_is_alive(t.io));
        assert_true(kio_is_alive(t.io));
        assert_int_equal(oldest_ns(), 0);
}

int main(void)
{
        const struct CMUnitTest everywhere[] = {
                IO_TEST(calls_run_one_by_one_on_a_thread_of_their_own),
                IO_TEST(calls_go_in_the_order_of_their_classes),
                IO_TEST(what_holds_up_calls_holds_up_nothing_else),
                IO_TEST(many_requests_stay_within_the_depth),
                IO_TEST(as_few_workers_take_a_burst_as_it_needs),
                IO_TEST(reads_are_spread_where_there_are_cores_for_it),
                IO_TEST(a_reader_has_no_more_than_its_places_before_another_has),
                IO_TEST(a_reader_is_woken_when_the_next_one_is_given_reads),
                IO_TEST(either_kind_gets_its_depth_and_the_other_a_place),
                IO_TEST(gets_find_a_place_when_puts_fill_the_device),
                IO_TEST(gets_overtake_puts_but_do_not_starve_them),
                IO_TEST(idle_device_begins_before_all_operations_are_built),
                IO_TEST(gets_do_not_wait_for_a_long_copy),
                IO_TEST(stop_waits_for_what_was_submitted),
                IO_TEST(a_request_can_be_submitted_again_from_complete),
                IO_TEST(idle_workers_cost_nothing),
        };
        int failed = run_everywhere(everywhere);

        return failed > 0;
}
