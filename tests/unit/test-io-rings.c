/* SPDX-License-Identifier: Apache-2.0 */
/* io/buffers.c on rings: a ring's table of buffers, its refusals, and limits on locked memory. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "checked.h"
#include "child.h"
#include "io-fixture.h"
#include "io/buffers.h"

#if HAVE_LIBURING

enum { PIECE = REGIONS_PIECE_BYTES, BLOCK = 4096 };

/* A ring whose table of buffers fails by plan, and which observes the order of calls. */
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
        struct kio_params p = params_of("posix");

        if (!uring_works()) {
                print_message("io_uring cannot be had here: skipped\n");
                skip();
        }
        memset(&spy, 0, sizeof(spy));
        spy.backend = kio_backend_uring;
        spy.backend.open = spy_open;
        spy.backend.submit = spy_submit;
        spy.backend.set_buffer = spy_set_buffer;
        start_on(&p, &spy.backend);
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
        req = region_transfer(KIO_READ, fd, &d, PIECE, 65536);
        assert_int_equal(run(&req), 0);
        assert_int_equal(stats().registered_ops, 1);
        req = region_transfer(KIO_READ, fd, &d, 2 * (uint64_t)PIECE, 65536);
        assert_int_equal(run(&req), 0);
        assert_int_equal(stats().registered_ops, 1);
        /* The failure affects neither the pool nor other regions that are registered later. */
        assert_int_equal(register_piece(0), 0);
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
        /* The numbers are freed nevertheless: a new buffer takes the old one's place. */
        fail_calls(0, 0, 0);
        assert_int_equal(register_region(&d), 0);
        assert_int_equal(unregister_region(&d), 0);
        give_back(&d);
}

/* A callback for regions whose state the test reads. */
static void ignore_region(struct kio_region *region)
{
}

static void wait_region(const struct kio_region *region, enum kio_region_state state)
{
        while (region->state != state) {
                struct pollfd p = { .fd = kio_fd(t.io), .events = POLLIN };

                if (poll(&p, 1, test_timeout_ms(WAIT_MS)) != 1)
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
        /* One region is freed: half of the required room. */
        kio_region_unregister(t.io, &regions[7]);
        wait_region(&regions[7], KIO_REGION_NONE);
        assert_int_equal(register_region(&e), -ENOSPC);
        assert_int_equal(e.region.registered_bytes, PIECE);
        t.io = kio_stop(t.io);
        give_back(&d);
        give_back(&e);
}

/* Sets F_SEAL_WRITE, which waits for pinned pages and finally fails with EBUSY. */
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
        /* An older kernel needs up to a second to unpin the memory, for which the sealing waits. */
        while (seal(&left) == EBUSY && ++tries < 100)
                left.at = MAP_FAILED;
        assert_true(tries < 100);
        assert_true(fcntl(left.fd, F_GET_SEALS) & F_SEAL_WRITE);
        /* Sealing pinned memory fails, so the test would detect it. */
        assert_int_equal(seal(&kept), EBUSY);
        t.io = kio_stop(t.io);
        close(kept.fd);
        close(left.fd);
}

static int memlock_child(uint64_t limit, bool pool_too)
{
        struct rlimit little = { limit, limit };
        unsigned workers = pool_too ? 1 : 2;
        struct kio_params p = params_of("io_uring");
        static struct kio_request req;
        static struct registered d;
        char error[256] = "";
        int fd = memfd_create("data", MFD_CLOEXEC);

        p.workers = workers;
        d.fd = memfd_create("registered", MFD_CLOEXEC);
        d.bytes = 2 * (uint64_t)PIECE;
        CHECK(1, fd >= 0 && d.fd >= 0 && ftruncate(d.fd, (off_t)d.bytes) == 0);
        d.at = mmap(NULL, d.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, d.fd, 0);
        CHECK(2, d.at != MAP_FAILED);
        if (setrlimit(RLIMIT_MEMLOCK, &little) < 0)
                return 77;
        /* CAP_IPC_LOCK lifts the limit, and is lost with the uid. The new uid is an unused one,
         * because the limit belongs to the uid. */
        if (geteuid() == 0)
                CHECK(3, setgid(65534) == 0 && setuid(60000 + (uid_t)getpid() % 5000) == 0);
        if (kio_start(&t.io, &p, error) < 0)
                return 77;
        if (pool_too)
                CHECK(4, register_piece(0) == 0);
        d.region = (struct kio_region){ .base = d.at, .bytes = d.bytes, .complete = count_region };
        kio_region_register(t.io, &d.region);
        CHECK(5, poll_and_reap(&d.completed, 1) == 0);
        CHECK(6, d.region.result == -ENOMEM && d.region.registered_bytes == 0);
        fill(d.at, 65536, 21);
        req = region_transfer(KIO_WRITE, fd, &d, 0, 65536);
        CHECK(7, run(&req) == 0);
        req = region_transfer(KIO_READ, fd, &d, 1 << 20, 65536);
        req.crc_bytes = 65536;
        CHECK(8, run(&req) == 0 && req.crc == kio_crc32c(d.at, 65536));
        CHECK(9, stats().registered_ops == 0);
        if (pool_too)
                CHECK(10, register_piece(1) == 0);
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

int main(void)
{
        const struct CMUnitTest rings[] = {
                IO_TEST(a_ring_is_held_up_for_one_piece_at_a_time),
                IO_TEST(what_a_ring_refuses_ends_there_and_costs_the_pool_nothing),
                IO_TEST(what_a_ring_will_not_let_go_is_tried_again_and_said),
                IO_TEST(without_buffers_left_it_goes_unregistered),
                IO_TEST(test_R2_after_unregistering_no_ring_holds_the_pages),
                IO_TEST(test_R4_without_memlock_a_region_goes_unregistered),
                IO_TEST(test_R4_a_region_that_may_not_be_locked_costs_the_pool_nothing),
        };

        return run_once("rings", rings) > 0;
}

#else

int main(void)
{
        return 77;
}

#endif
