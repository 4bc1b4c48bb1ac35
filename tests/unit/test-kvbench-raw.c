/* SPDX-License-Identifier: Apache-2.0 */
/* RAW of kvcache-bench profile with io_uring, while submitting I/O fails: a client leaves no I/O in
 * flight. Reads come from a pipe, so that the test decides when they complete. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "build-config.h"
#include "kvbench/raw.h"

#if HAVE_LIBURING
#include <liburing.h>

enum { BLOCK = 4096, BLOCKS = 8, HANG_S = 60 };

/* Faults of io_uring_submit(), by the number of the call, from 1 on; 0: none. A call that is cut
 * submits one I/O less. Before a failing call, blocks are written to the pipe. */
static struct {
        unsigned calls, fails, cut;
        size_t then_blocks;
        int error;
        int pipe[2];
        unsigned submitted;
} fault;

int __wrap_io_uring_submit(struct io_uring *ring);
int __real_io_uring_submit(struct io_uring *ring);

static void fill_pipe(size_t blocks)
{
        static const uint8_t block[BLOCK];

        for (size_t i = 0; i < blocks; i++)
                assert_int_equal(write(fault.pipe[1], block, BLOCK), BLOCK);
}

/* Replaces io_uring_submit() for the linker. */
int __wrap_io_uring_submit(struct io_uring *ring)
{
        unsigned kept = ++fault.calls == fault.cut ? 1 : 0;
        int r;

        if (fault.calls == fault.fails) {
                fill_pipe(fault.then_blocks);
                return fault.error;
        }
        ring->sq.sqe_tail -= kept;
        r = __real_io_uring_submit(ring);
        ring->sq.sqe_tail += kept;
        assert_true(r >= 0);
        fault.submitted += (unsigned)r;
        return r;
}

struct fixture {
        struct profile_job job;
        struct profile profile;
        struct profile_tally tally;
        struct raw raw;
        void *client;
};

static bool begin(struct fixture *f)
{
        static const struct raw_options options = { .directory = "/tmp",
                                                    .io = RAW_URING,
                                                    .window_bytes = 2 * BLOCKS * BLOCK,
                                                    .depth = BLOCKS };
        char why[256];

        if (raw_uring_probe(why, sizeof(why)) < 0)
                return false;
        memset(&fault, 0, sizeof(fault));
        *f = (struct fixture){ .job = { .name = "test",
                                        .io_size = BLOCK,
                                        .n_blocks = 64,
                                        .users = 1,
                                        .clients = 1 } };
        assert_int_equal(profile_init(&f->profile, &f->job, NULL), 0);
        assert_int_equal(raw_open(&f->raw, &f->profile, &options), 0);
        assert_int_equal(pipe2(fault.pipe, O_CLOEXEC), 0);
        assert_true(dup3(fault.pipe[0], f->raw.fd, O_CLOEXEC) >= 0);
        assert_int_equal(f->raw.side.client_new(&f->raw, &f->profile, &f->client), 0);
        alarm(HANG_S);
        return true;
}

/* Reads blocks in one piece. Returns the result of the client. */
static int move(struct fixture *f, uint32_t blocks)
{
        struct profile_piece piece = { .count = blocks, .root = true };
        struct profile_work work = {
                .pieces = &piece, .n_pieces = 1, .n_blocks = blocks, .tally = &f->tally
        };

        return f->raw.side.move(f->client, &work);
}

static unsigned reaped(struct fixture *f)
{
        struct raw_client *c = f->client;

        return *((struct io_uring *)c->ring)->cq.khead; /* the ring is the first member */
}

static void end(struct fixture *f)
{
        alarm(0);
        f->raw.side.client_free(f->client);
        raw_close(&f->raw);
        close(fault.pipe[0]);
        close(fault.pipe[1]);
        profile_tally_fini(&f->tally);
        profile_fini(&f->profile);
}

static void io_in_flight_is_reaped_after_a_failed_submission(void **state)
{
        static const int errors[] = { -EBUSY, -EAGAIN, -EBADR };

        for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
                struct fixture f;

                if (!begin(&f))
                        skip();
                fault.fails = 2;
                fault.error = errors[i];
                fault.then_blocks = BLOCKS - 1;
                fill_pipe(1);
                assert_true(move(&f, 2 * BLOCKS) < 0);
                assert_non_null(strstr(f.profile.error, "submitting I/O to io_uring failed: "));
                assert_int_equal(fault.submitted, BLOCKS);
                assert_int_equal(reaped(&f), BLOCKS);
                assert_int_equal(f.tally.blocks, 1);
                end(&f);
        }
}

static void failed_first_submission_leaves_nothing_to_reap(void **state)
{
        struct fixture f;

        if (!begin(&f))
                skip();
        fault.fails = 1;
        fault.error = -ENOMEM;
        assert_true(move(&f, BLOCKS) < 0);
        assert_int_equal(reaped(&f), 0);
        end(&f);
}

static void io_that_was_not_submitted_is_submitted_later(void **state)
{
        struct fixture f;

        if (!begin(&f))
                skip();
        fault.cut = 1;
        fill_pipe(4);
        assert_int_equal(move(&f, 4), 0);
        assert_int_equal(fault.calls, 2);
        assert_int_equal(f.tally.blocks, 4);
        assert_int_equal(reaped(&f), 4);
        end(&f);
}

static void io_that_was_not_submitted_is_not_waited_for_after_a_failure(void **state)
{
        struct fixture f;

        if (!begin(&f))
                skip();
        fault.cut = 1;
        fault.fails = 2;
        fault.error = -EBUSY;
        fill_pipe(4);
        assert_true(move(&f, 4) < 0);
        assert_int_equal(fault.submitted, 3);
        assert_int_equal(reaped(&f), 3);
        end(&f);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(io_in_flight_is_reaped_after_a_failed_submission),
                cmocka_unit_test(failed_first_submission_leaves_nothing_to_reap),
                cmocka_unit_test(io_that_was_not_submitted_is_submitted_later),
                cmocka_unit_test(io_that_was_not_submitted_is_not_waited_for_after_a_failure),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
        return 77;
}

#endif
