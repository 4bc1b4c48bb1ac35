/* SPDX-License-Identifier: Apache-2.0 */
/* io/: operations that last, come late or never: their age shows, and they cost only their own
 * volume. */
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <semaphore.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

#include "base/clock.h"
#include "cleanup.h"
#include "io-fixture.h"

static void a_call_that_lasts_is_alive_and_its_age_shows(void **state)
{
        struct kio_params p = params_of(t.backend);
        static struct kio_request gate, call;
        uint64_t since;

        skip_unless_possible();
        start(&p);
        since = clock_mono_ns();
        gate = gate_request();
        kio_submit(t.io, &gate, 0);
        wait_for_gate();
        call = (struct kio_request){ .op = KIO_CALL,
                                     .call = note_nothing,
                                     .complete = count_complete };
        kio_submit(t.io, &call, 0);
        assert_true(kio_is_alive(t.io));
        assert_true(kio_is_alive(t.io));
        assert_int_equal(stats().queued, 1);
        assert_in_range(oldest_ns(), 1, clock_mono_ns() - since);
        sem_post(&gate_open);
        wait_completed(2);
        assert_int_equal(oldest_ns(), 0);
        assert_true(kio_is_alive(t.io));
        assert_true(kio_is_alive(t.io));
}

static void what_hangs_shows_its_age_and_stops_no_other(void **state)
{
        _cleanup_(closep) int fd = -1;
        struct fault_plan plan = { .ops = 1u << KIO_READ, .kind = FAULT_NEVER, .first = 1 };
        static struct kio_request hanging, req;
        struct pollfd p;
        uint64_t age, since;

        skip_unless_possible();
        fd = make_file("data", 65536, 17);
        start_with_faults(1, 8);
        fault_set(&plan);
        since = clock_mono_ns();
        hanging = transfer(KIO_READ, fd, t.pool, 4096, 0);
        kio_submit(t.io, &hanging, 0);
        for (unsigned i = 0; i < 20; i++) {
                completed = 0;
                req = transfer(KIO_READ, fd, t.pool + 4096, 4096, 0);
                kio_submit(t.io, &req, 0);
                wait_completed(1);
                assert_int_equal(req.result, 0);
        }
        assert_int_equal(kio_pending(t.io), 1);
        assert_int_equal(stats().inflight, 1);
        p = (struct pollfd){ .fd = kio_fd(t.io), .events = POLLIN };
        assert_int_equal(poll(&p, 1, 50), 0);
        assert_true(kio_is_alive(t.io));
        assert_true(kio_is_alive(t.io));
        age = oldest_ns();
        assert_in_range(age, 1, clock_mono_ns() - since);
        assert_true(oldest_ns() >= age);
        completed = 0;
        fault_release();
        wait_completed(1);
        assert_int_equal(hanging.result, 0);
        assert_int_equal(oldest_ns(), 0);
}

static void a_late_operation_comes_back_by_itself(void **state)
{
        _cleanup_(closep) int fd = -1;
        struct fault_plan plan = {
                .ops = 1u << KIO_READ, .kind = FAULT_LATE, .late_ns = 20000000, .first = 1
        };
        static struct kio_request req;

        skip_unless_possible();
        fd = make_file("data", 65536, 18);
        start_with_faults(1, 8);
        fault_set(&plan);
        req = transfer(KIO_READ, fd, t.pool, 4096, 0);
        assert_int_equal(run(&req), 0);
        assert_true(req.done_ns - req.submitted_ns >= 20000000);
}

/* ---- devices that hang ---- */

enum { HANG_MS = 500 };

static void start_with_hanging(unsigned depth)
{
        struct kio_params p = params_of(t.backend);

        p.depth = depth;
        p.posix_threads = 2;
        p.hang_ns = HANG_MS * UINT64_C(1000000);
        start_on(&p, fault_wrap(backend_of_group()));
}

/* Returns whether the I/O layer is alive twice in a row without an iteration in between, as it is
 * once it rests at the device. */
static bool rests_alive(void)
{
        for (unsigned i = 0; i < (unsigned)test_timeout_ms(WAIT_MS); i++) {
                if (kio_is_alive(t.io) && kio_is_alive(t.io))
                        return true;
                nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
        }
        return false;
}

/* One volume has all places and does not answer. Its other requests fail, the other volume
 * continues, no memory is returned before the device has answered, and then everything works
 * again. */
static void test_R15_a_volume_that_hangs_costs_itself_only(void **state)
{
        _cleanup_(closep) int bad = -1, good = -1;
        struct fault_plan never = {
                .kind = FAULT_NEVER, .one_fd = true, .first = 1, .count = FAULT_FOR_EVER
        };
        static struct kio_request stuck[4], late[4], other[8];

        skip_unless_possible();
        bad = make_file("bad", 65536, 30);
        good = make_file("good", 65536, 31);
        start_with_hanging(4);
        never.fd = bad;
        fault_set(&never);
        fault_gate_close();
        for (unsigned i = 0; i < 4; i++) {
                stuck[i] = transfer(KIO_READ, bad, t.pool + i * 4096, 4096, 0);
                stuck[i].volume = 1;
                kio_submit(t.io, &stuck[i], 0);
        }
        for (unsigned i = 0; i < 4; i++) {
                late[i] = transfer(KIO_READ, bad, t.pool + POOL_PIECE + i * 4096, 4096, 0);
                late[i].volume = 1;
                kio_submit(t.io, &late[i], 0);
                other[i] = transfer(KIO_READ, good, t.pool + 2 * POOL_PIECE + i * 4096, 4096, 0);
                other[i].volume = 2;
                kio_submit(t.io, &other[i], 0);
        }
        kio_flush(t.io);
        completed = 0;
        fault_gate_open();
        wait_completed(8);
        for (unsigned i = 0; i < 4; i++) {
                assert_int_equal(stuck[i].state, KIO_QUEUED);
                assert_int_equal(late[i].result, -ETIMEDOUT);
                assert_int_equal(other[i].result, 0);
        }
        assert_true(kio_oldest(t.io, 1) >= HANG_MS * UINT64_C(1000000));
        assert_int_equal(kio_oldest(t.io, 2), 0);
        assert_int_equal(kio_oldest(t.io, 0), 0);
        assert_true(oldest_ns() >= HANG_MS * UINT64_C(1000000));
        assert_true(rests_alive());
        /* The volume is known to hang, so its requests fail at once, and the other volume has all
         * places. */
        late[0].state = KIO_IDLE;
        completed = 0;
        kio_submit(t.io, &late[0], 0);
        for (unsigned i = 0; i < 8; i++) {
                other[i] = transfer(KIO_READ, good, t.pool + 2 * POOL_PIECE + i * 4096, 4096, 0);
                other[i].volume = 2;
                kio_submit(t.io, &other[i], 0);
        }
        wait_completed(9);
        assert_int_equal(late[0].result, -ETIMEDOUT);
        for (unsigned i = 0; i < 8; i++)
                assert_int_equal(other[i].result, 0);
        assert_int_equal(kio_pending(t.io), 4);
        assert_int_equal(stats().inflight, 4);

        completed = 0;
        fault_set(NULL);
        fault_release();
        wait_completed(4);
        for (unsigned i = 0; i < 4; i++)
                assert_int_equal(stuck[i].result, 0);
        assert_int_equal(kio_oldest(t.io, 1), 0);
        assert_int_equal(oldest_ns(), 0);
        assert_int_equal(stats().inflight, 0);
        assert_int_equal(run(&late[0]), 0);
}

static void test_R15_a_call_that_hangs_holds_up_only_its_volume(void **state)
{
        struct kio_params p = params_of(t.backend);
        static struct kio_request gate, behind, other;

        skip_unless_possible();
        start(&p);
        gate = gate_request();
        gate.volume = 3;
        kio_submit(t.io, &gate, 0);
        wait_for_gate();
        behind = other = (struct kio_request){ .op = KIO_CALL,
                                               .call = note_nothing,
                                               .complete = count_complete };
        behind.volume = 3;
        other.volume = KIO_VOLUMES_MAX - 1;
        kio_submit(t.io, &behind, 0);
        completed = 0;
        kio_submit(t.io, &other, 0);
        wait_completed(1);
        assert_int_equal(other.result, 0);
        assert_true(kio_oldest(t.io, 3) > 0);
        assert_int_equal(kio_oldest(t.io, KIO_VOLUMES_MAX - 1), 0);
        assert_true(rests_alive());
        assert_int_equal(stats().queued, 1);
        completed = 0;
        sem_post(&gate_open);
        wait_completed(2);
        assert_int_equal(kio_oldest(t.io, 3), 0);
}

/* Where each call takes a thread: memory that the kernel cannot fill until another thread lets it.
 */
static void test_R15_threads_that_hang_are_replaced(void **state)
{
        _cleanup_(closep) int fd = -1, uffd = -1;
        struct uffdio_api api = { .api = UFFD_API };
        struct uffdio_register area = { .mode = UFFDIO_REGISTER_MODE_MISSING };
        struct uffdio_zeropage let;
        static struct kio_request stuck[4], late, other[8];
        char *missing;

        skip_unless_possible();
        if (strcmp(t.backend, "posix") != 0)
                skip();
        uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
        if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api) < 0) {
                print_message("no userfaultfd for faults of the kernel: skipped\n");
                skip();
        }
        missing = mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_ptr_not_equal(missing, MAP_FAILED);
        area.range = (struct uffdio_range){ .start = (uintptr_t)missing, .len = 4 * 4096 };
        assert_int_equal(ioctl(uffd, UFFDIO_REGISTER, &area), 0);

        fd = make_file("data", 65536, 32);
        start_with_hanging(4);
        for (unsigned i = 0; i < 4; i++) {
                stuck[i] = transfer(KIO_READ, fd, missing + i * 4096, 4096, 0);
                stuck[i].volume = 1;
                kio_submit(t.io, &stuck[i], 0);
        }
        kio_flush(t.io);
        while (kio_oldest(t.io, 1) < HANG_MS * UINT64_C(1000000))
                nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
        completed = 0;
        late = transfer(KIO_READ, fd, t.pool, 4096, 0);
        late.volume = 1;
        kio_submit(t.io, &late, 0);
        for (unsigned i = 0; i < 8; i++) {
                other[i] = transfer(KIO_READ, fd, t.pool + POOL_PIECE + i * 4096, 4096, 0);
                other[i].volume = 2;
                kio_submit(t.io, &other[i], 0);
        }
        wait_completed(9);
        assert_int_equal(late.result, -ETIMEDOUT);
        for (unsigned i = 0; i < 8; i++)
                assert_int_equal(other[i].result, 0);

        completed = 0;
        for (unsigned i = 0; i < 4; i++) {
                let = (struct uffdio_zeropage){ .range = { .start = (uintptr_t)missing + i * 4096,
                                                           .len = 4096 } };
                assert_int_equal(ioctl(uffd, UFFDIO_ZEROPAGE, &let), 0);
        }
        wait_completed(4);
        for (unsigned i = 0; i < 4; i++)
                assert_int_equal(stuck[i].result, 0);
        t.io = kio_stop(t.io);
        munmap(missing, 4 * 4096);
}

int main(void)
{
        const struct CMUnitTest everywhere[] = {
                IO_TEST(a_call_that_lasts_is_alive_and_its_age_shows),
                IO_TEST(test_R15_a_volume_that_hangs_costs_itself_only),
                IO_TEST(test_R15_a_call_that_hangs_holds_up_only_its_volume),
                IO_TEST(test_R15_threads_that_hang_are_replaced),
                IO_TEST(what_hangs_shows_its_age_and_stops_no_other),
                IO_TEST(a_late_operation_comes_back_by_itself),
        };
        int failed = run_everywhere(everywhere);

        return failed > 0;
}
