/* SPDX-License-Identifier: Apache-2.0 */
/* io/completion-queue.c: how requests return to the loop, with workers and alone. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cleanup.h"
#include "io-fixture.h"
#include "io/completion-queue.h"
#include "spin.h"

/* Waits for the semaphore: polls briefly, so that the threads meet, then sleeps, as the other
 * thread may need the processor. */
static void wait_turn(sem_t *turn)
{
        for (unsigned i = 0; i < 1000; i++) {
                if (sem_trywait(turn) == 0)
                        return;
                spin_pause();
        }
        while (sem_wait(turn) < 0)
                ;
}

static bool is_readable(int fd)
{
        struct pollfd p = { .fd = fd, .events = POLLIN };

        return poll(&p, 1, 0) == 1;
}

static void what_is_done_makes_the_descriptor_readable_until_it_is_reaped(void **state)
{
        struct kio_params p = params_of(t.backend);
        static struct kio_request reqs[8];

        skip_unless_possible();
        start(&p);
        assert_int_equal(kio_reap(t.io), 0);
        assert_false(is_readable(kio_fd(t.io)));
        for (unsigned round = 0; round < 3; round++) {
                unsigned n = 0;

                for (unsigned i = 0; i < 8; i++) {
                        reqs[i] = transfer(KIO_COPY, -1, t.pool + i * 4096, 4096, 0);
                        reqs[i].src = t.pool + POOL_PIECE;
                        kio_submit(t.io, &reqs[i], 0);
                }
                kio_flush(t.io);
                while (n < 8) {
                        struct pollfd fd = { .fd = kio_fd(t.io), .events = POLLIN };

                        assert_int_equal(poll(&fd, 1, test_timeout_ms(WAIT_MS)), 1);
                        n += kio_reap(t.io);
                }
                assert_int_equal(n, 8);
                /* The notification of the last one may arrive later and make the descriptor
                 * readable once without need. */
                kio_reap(t.io);
                assert_int_equal(kio_pending(t.io), 0);
        }
}

/* Requests for one largest merged operation do not wait for the end of the iteration, which may
 * submit much more. Later requests are not forgotten. */
static void a_worker_is_woken_before_all_is_submitted(void **state)
{
        enum { EACH = 64 * 1024, N = 2 * KIO_JOINED_MAX / EACH + 1 };
        _cleanup_(closep) int fd = -1;
        struct kio_params p = params_of(t.backend);
        static struct kio_request reqs[N];
        struct pollfd done;
        unsigned n = 0;

        skip_unless_possible();
        fd = open_file("early", O_RDWR | O_TRUNC);
        start(&p);
        for (unsigned round = 0; round < 3; round++) {
                for (unsigned i = 0; i < KIO_JOINED_MAX / EACH; i++) {
                        reqs[i] = transfer(KIO_WRITE, fd, t.pool + i * EACH, EACH, i * EACH);
                        kio_submit(t.io, &reqs[i], 0);
                }
                done = (struct pollfd){ .fd = kio_fd(t.io), .events = POLLIN };
                assert_int_equal(poll(&done, 1, test_timeout_ms(WAIT_MS)), 1);
                for (unsigned i = KIO_JOINED_MAX / EACH; i < N; i++) {
                        reqs[i] = transfer(KIO_WRITE, fd, t.pool + i * EACH, EACH, i * EACH);
                        kio_submit(t.io, &reqs[i], 0);
                }
                kio_flush(t.io);
                for (n = kio_reap(t.io); n < N; n += kio_reap(t.io))
                        assert_int_equal(poll(&done, 1, test_timeout_ms(WAIT_MS)), 1);
                assert_int_equal(kio_pending(t.io), 0);
        }
}

static void submit_in_complete(struct kio_request *req)
{
        completed++;
        if (completed < 2000) {
                kio_submit(t.io, req, completed);
                if (completed % 3)
                        kio_flush(t.io);
        }
}

/* Workers and the blocking-call thread notify while the loop reaps, sometimes unasked: whatever the
 * timing, the loop that sleeps is woken, and not for ever. */
static void wake_ups(uint32_t spin_ns)
{
        struct kio_params p = params_of(t.backend);
        static struct kio_request reqs[12];
        _cleanup_(closep) int fd = -1;
        unsigned idle = 0;

        skip_unless_possible();
        fd = open_file("wake-ups", O_RDWR | O_TRUNC);
        p.workers = 3;
        p.spin_ns = spin_ns;
        start(&p);
        for (unsigned i = 0; i < 12; i++) {
                reqs[i] = transfer(KIO_COPY, -1, t.pool + i * 8192, 64 + i * 600, 0);
                reqs[i].src = t.pool + POOL_PIECE;
                if (i % 4 == 3) {
                        reqs[i].op = KIO_CALL;
                        reqs[i].call = note_nothing;
                } else if (i % 4 == 2) {
                        reqs[i] = transfer(KIO_WRITE, fd, t.pool + i * 8192, 4096, i * 8192);
                }
                reqs[i].complete = submit_in_complete;
                kio_submit(t.io, &reqs[i], i);
        }
        while (kio_pending(t.io) > 0) {
                struct pollfd ready = { .fd = kio_fd(t.io), .events = POLLIN };

                for (unsigned k = 0; spin_ns > 0 && k < completed % 64 * 64; k++)
                        spin_pause(); /* work arrives before polling ends, as it ends, and later */
                kio_flush(t.io);
                if (poll(&ready, 1, test_timeout_ms(WAIT_MS)) != 1)
                        fail_msg("%u came back, %u did not", completed,
                                 (unsigned)kio_pending(t.io));
                idle += kio_reap(t.io) == 0;
                if (completed % 5 == 0)
                        kio_reap(t.io);
        }
        assert_true(completed >= 2000);
        /* A notification may arrive after its request was taken. A descriptor that stayed readable
         * would be detected here. */
        assert_true(idle <= completed);
        kio_reap(t.io);
        for (unsigned i = 0; i < 1000 && is_readable(kio_fd(t.io)); i++) {
                kio_reap(t.io);
                assert_in_range(i, 0, 100);
        }
        assert_false(is_readable(kio_fd(t.io)));
}

static void no_wake_up_is_lost_and_none_is_left_over(void **state)
{
        (void)state;
        wake_ups(0);
}

static void workers_that_poll_before_they_sleep_lose_none_either(void **state)
{
        (void)state;
        wake_ups(20000);
}

/* A worker learns how long it usually waits, and on a loaded machine that waits longer it stops
 * polling. So the test gives it time to poll, and repeats short waits until it has done so. */
static void an_idle_worker_polls_before_it_sleeps(void **state)
{
        bool polls = t.backend && strcmp(t.backend, "io_uring") == 0;
        struct kio_params p = params_of(t.backend);
        struct kio_stats stats = { 0 };
        static struct kio_request req;
        int64_t until;

        (void)state;
        skip_unless_possible();
        p.workers = 1;
        p.spin_ns = 50 * 1000 * 1000;
        start(&p);
        until = (int64_t)clock_mono_ns() + (int64_t)test_timeout_ms(WAIT_MS) * 1000000;
        for (unsigned i = 0; i < 20 || (polls && stats.spun_ns == 0); i++) {
                req = transfer(KIO_COPY, -1, t.pool, 64, 0);
                req.src = t.pool + POOL_PIECE;
                assert_int_equal(run(&req), 0);
                kio_get_stats(t.io, &stats);
                assert_true((int64_t)clock_mono_ns() < until);
        }
        assert_int_equal(stats.spun_ns > 0, polls);
}

static void a_reap_completes_a_bounded_number(void **state)
{
        enum { ALL = 500, MOST = 64 };
        static struct kio_request reqs[ALL];
        struct kio_params p = params_of(t.backend);
        unsigned left = ALL, n;

        (void)state;
        skip_unless_possible();
        p.workers = 1;
        start(&p);
        for (unsigned i = 0; i < ALL; i++) {
                reqs[i] = transfer(KIO_COPY, -1, t.pool, 64, 0);
                reqs[i].src = t.pool + POOL_PIECE;
                kio_submit(t.io, &reqs[i], 0);
        }
        kio_flush(t.io);
        while (left > 0) {
                struct pollfd ready = { .fd = kio_fd(t.io), .events = POLLIN };

                if (poll(&ready, 1, test_timeout_ms(WAIT_MS)) != 1)
                        fail_msg(
                                "%u requests are not completed, and the descriptor is not readable",
                                left);
                n = kio_reap(t.io);
                assert_in_range(n, 0, MOST);
                left -= n;
        }
        assert_int_equal(kio_pending(t.io), 0);
}

/* ---- the completion queue alone ---- */

enum { COMPLETION_QUEUE_ROUNDS = 20000 };

static struct {
        struct completion_queue completion_queue;
        struct list_node node;
        sem_t asked, published;
} o;

static void *publish_when_asked(void *userdata)
{
        for (unsigned round = 1; round <= COMPLETION_QUEUE_ROUNDS; round++) {
                struct list_node done = LIST_INIT(done);

                wait_turn(&o.asked);
                list_append(&done, &o.node);
                completion_queue_publish(&o.completion_queue, &done);
                sem_post(&o.published);
        }
        return NULL;
}

static unsigned completion_queue_reap(void)
{
        struct list_node got = LIST_INIT(got);
        unsigned n = 0;

        completion_queue_begin(&o.completion_queue);
        completion_queue_take(&o.completion_queue, &got);
        completion_queue_end(&o.completion_queue, &got);
        while (list_pop(&got))
                n++;
        return n;
}

/* A loop that polls without being notified often takes a node before its notification is
 * written. */
static void a_notification_that_comes_late_is_taken_back(void **state)
{
        pthread_t thread;

        assert_int_equal(completion_queue_init(&o.completion_queue), 0);
        list_init(&o.node);
        assert_int_equal(sem_init(&o.asked, 0, 0), 0);
        assert_int_equal(sem_init(&o.published, 0, 0), 0);
        assert_int_equal(pthread_create(&thread, NULL, publish_when_asked, NULL), 0);
        for (unsigned round = 1; round <= COMPLETION_QUEUE_ROUNDS; round++) {
                unsigned n = 0;

                sem_post(&o.asked);
                if (round % 2)
                        while ((n += completion_queue_reap()) == 0)
                                sched_yield(); /* the other thread may need this processor */
                wait_turn(&o.published);
                if (n == 0 && !is_readable(o.completion_queue.fd))
                        fail_msg("round %u: a lost wake-up", round);
                n += completion_queue_reap();
                assert_int_equal(n, 1);
                if (is_readable(o.completion_queue.fd))
                        fail_msg("round %u: readable for nothing, for ever", round);
        }
        pthread_join(thread, NULL);
        sem_destroy(&o.asked);
        sem_destroy(&o.published);
        completion_queue_fini(&o.completion_queue);
}

enum { COMPLETION_QUEUE_PRODUCERS = 2, COMPLETION_QUEUE_NODES = 16, COMPLETION_QUEUE_LAPS = 1500 };

static struct producer {
        struct list_node nodes[COMPLETION_QUEUE_NODES];
        sem_t idle[COMPLETION_QUEUE_NODES]; /* 0: the completion queue or the loop has the node */
} producers[COMPLETION_QUEUE_PRODUCERS];

static void *publish_for_ever(void *userdata)
{
        struct producer *me = userdata;

        for (unsigned i = 0; i < COMPLETION_QUEUE_LAPS * COMPLETION_QUEUE_NODES; i++) {
                struct list_node done = LIST_INIT(done);
                unsigned k = i % COMPLETION_QUEUE_NODES;

                wait_turn(&me->idle[k]);
                list_append(&done, &me->nodes[k]);
                completion_queue_publish(&o.completion_queue, &done);
        }
        return NULL;
}

/* Producers wait until their nodes return, and a loop sleeps until the descriptor is readable.
 * After one lost wake-up, all would wait forever. */
static void two_producers_and_a_loop_that_sleeps_never_stand_still(void **state)
{
        enum { ALL = COMPLETION_QUEUE_PRODUCERS * COMPLETION_QUEUE_LAPS * COMPLETION_QUEUE_NODES };
        pthread_t threads[COMPLETION_QUEUE_PRODUCERS];
        unsigned n = 0;

        assert_int_equal(completion_queue_init(&o.completion_queue), 0);
        for (unsigned i = 0; i < COMPLETION_QUEUE_PRODUCERS; i++) {
                for (unsigned k = 0; k < COMPLETION_QUEUE_NODES; k++) {
                        list_init(&producers[i].nodes[k]);
                        assert_int_equal(sem_init(&producers[i].idle[k], 0, 1), 0);
                }
                assert_int_equal(pthread_create(&threads[i], NULL, publish_for_ever, &producers[i]),
                                 0);
        }
        while (n < ALL) {
                struct pollfd fd = { .fd = o.completion_queue.fd, .events = POLLIN };

                if (poll(&fd, 1, test_timeout_ms(WAIT_MS)) != 1)
                        fail_msg("a lost wake-up: %u of %u came", n, (unsigned)ALL);
                completion_queue_begin(&o.completion_queue);
                for (unsigned round = 0; round < 3; round++) {
                        struct list_node got = LIST_INIT(got);

                        if (round < 2)
                                completion_queue_take(&o.completion_queue, &got);
                        else
                                completion_queue_end(&o.completion_queue, &got);
                        for (struct list_node *i; (i = list_pop(&got)); n++)
                                for (unsigned k = 0; k < COMPLETION_QUEUE_PRODUCERS; k++)
                                        if (i >= producers[k].nodes &&
                                            i < producers[k].nodes + COMPLETION_QUEUE_NODES)
                                                sem_post(
                                                        &producers[k].idle[i - producers[k].nodes]);
                }
        }
        for (unsigned i = 0; i < COMPLETION_QUEUE_PRODUCERS; i++) {
                pthread_join(threads[i], NULL);
                for (unsigned k = 0; k < COMPLETION_QUEUE_NODES; k++)
                        sem_destroy(&producers[i].idle[k]);
        }
        completion_queue_fini(&o.completion_queue);
}

/* One write covers everything until the loop has run, and there is none while it runs. */
static void one_notification_covers_all(void **state)
{
        struct list_node nodes[4], done = LIST_INIT(done), got = LIST_INIT(got);
        uint64_t count;

        assert_int_equal(completion_queue_init(&o.completion_queue), 0);
        completion_queue_publish(&o.completion_queue, &done);
        assert_false(is_readable(o.completion_queue.fd));
        for (unsigned i = 0; i < 4; i++) {
                list_init(&nodes[i]);
                list_append(&done, &nodes[i]);
                completion_queue_publish(&o.completion_queue, &done);
                assert_true(list_empty(&done));
        }
        assert_int_equal(read(o.completion_queue.fd, &count, sizeof(count)), sizeof(count));
        assert_int_equal(count, 1);
        count = 1;
        assert_int_equal(write(o.completion_queue.fd, &count, sizeof(count)), sizeof(count));

        completion_queue_begin(&o.completion_queue);
        completion_queue_take(&o.completion_queue, &got);
        for (unsigned i = 0; i < 4; i++)
                assert_ptr_equal(list_pop(&got), &nodes[i]);
        list_append(&done, &nodes[0]);
        completion_queue_publish(&o.completion_queue, &done);
        assert_false(is_readable(o.completion_queue.fd));
        completion_queue_end(&o.completion_queue, &got);
        assert_ptr_equal(list_pop(&got), &nodes[0]);

        list_append(&done, &nodes[1]);
        completion_queue_publish(&o.completion_queue, &done);
        assert_true(is_readable(o.completion_queue.fd));
        assert_int_equal(completion_queue_reap(), 1);
        assert_false(is_readable(o.completion_queue.fd));
        completion_queue_fini(&o.completion_queue);
}

int main(void)
{
        const struct CMUnitTest everywhere[] = {
                IO_TEST(what_is_done_makes_the_descriptor_readable_until_it_is_reaped),
                IO_TEST(a_worker_is_woken_before_all_is_submitted),
                IO_TEST(no_wake_up_is_lost_and_none_is_left_over),
                IO_TEST(workers_that_poll_before_they_sleep_lose_none_either),
                IO_TEST(an_idle_worker_polls_before_it_sleeps),
                IO_TEST(a_reap_completes_a_bounded_number),
        };
        const struct CMUnitTest once[] = {
                IO_TEST(a_notification_that_comes_late_is_taken_back),
                IO_TEST(two_producers_and_a_loop_that_sleeps_never_stand_still),
                IO_TEST(one_notification_covers_all),
        };
        int failed = run_everywhere(everywhere);

        failed += run_once("the completion queue", once);
        return failed > 0;
}
