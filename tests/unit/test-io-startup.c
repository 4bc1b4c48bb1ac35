/* SPDX-License-Identifier: Apache-2.0 */
/* io/: the backend on which workers start, the self-test, and the alternatives if the kernel
 * refuses a part of io_uring. */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checked.h"
#include "child.h"
#include "cleanup.h"
#include "io-fixture.h"

static void the_self_test_reads_the_probe_file(void **state)
{
        _cleanup_(closep) int empty = -1, full = -1, unreadable = -1;
        struct kio_params p = params_of(t.backend);
        char error[256] = "";

        skip_unless_possible();
        full = make_file("full", 4096, 20);
        empty = open_file("empty", O_RDWR | O_TRUNC);
        unreadable = open_file("empty", O_WRONLY);
        p.probe_fd = empty;
        start(&p);
        t.io = kio_stop(t.io);
        p.probe_fd = full;
        p.workers = 3;
        start(&p);
        t.io = kio_stop(t.io);
        /* Each worker reads to its own place, because they start concurrently. */
        for (unsigned i = 0; i < 4; i++) {
                char expected[4096] = { 0 };

                if (i < p.workers)
                        fill(expected, sizeof(expected), 20);
                assert_memory_equal(t.pool + i * sizeof(expected), expected, sizeof(expected));
        }
        /* The pool's existing contents are kept. */
        p.workers = 1;
        p.pool_has_data = true;
        fill(t.pool, 4096, 21);
        start(&p);
        t.io = kio_stop(t.io);
        {
                char expected[4096] = { 0 };

                fill(expected, sizeof(expected), 21);
                assert_memory_equal(t.pool, expected, sizeof(expected));
        }
        p.pool_has_data = false;
        /* Only one worker, because thread sanitizers do not see a ring's memory being unmapped, and
         * would report the next ring at its place as a race. */
        p.workers = 1;
        p.probe_fd = unreadable;
        assert_int_equal(kio_start(&t.io, &p, error), -EBADF);
        assert_null(t.io);
        assert_non_null(strstr(error, "self-test"));
}

static void what_it_runs_on_is_said(void **state)
{
        struct kio_params p = params_of(t.backend);
        struct kio_info info;

        skip_unless_possible();
        p.workers = 2;
        p.depth = 7;
        start(&p);
        kio_get_info(t.io, &info);
        assert_string_equal(info.backend, t.backend);
        assert_int_equal(info.workers, 2);
        assert_int_equal(info.depth, 7);
        if (strcmp(t.backend, "posix") == 0) {
                assert_string_equal(info.reason, "");
                assert_string_equal(info.ring_flags, "");
                assert_false(info.registered);
                assert_string_not_equal(info.registered_reason, "");
        } else {
                /* A memlock limit shows only when the first piece is registered. */
                assert_false(info.registered);
                assert_string_equal(info.registered_reason, "nothing has been registered yet");
        }
}

static void senseless_parameters_are_refused(void **state)
{
        struct kio_params p = params_of("auto");
        char error[256];

        p.backend = "aio";
        assert_int_equal(kio_start(&t.io, &p, error), -EINVAL);
        assert_non_null(strstr(error, "posix"));
        p = params_of("auto");
        p.workers = 0;
        assert_int_equal(kio_start(&t.io, &p, error), -EINVAL);
        p = params_of("auto");
        p.depth = 0;
        assert_int_equal(kio_start(&t.io, &p, error), -EINVAL);
        assert_null(kio_stop(NULL));
}

/* ---- io_uring, and what is used without it ---- */

static void the_ring_holds_the_lock_while_it_lives(void **state)
{
        struct kio_params p = params_of("io_uring");
        char path[PATH_MAX + 16];
        int lock, other;

        if (!uring_works())
                skip();
        snprintf(path, sizeof(path), "%s/LOCK", t.dir);
        lock = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
        assert_true(lock >= 0);
        assert_int_equal(flock(lock, LOCK_EX | LOCK_NB), 0);
        p.lock_fds = &lock;
        p.n_lock_fds = 1;
        start(&p);
        close(lock);
        other = open(path, O_RDWR | O_CLOEXEC);
        assert_int_equal(flock(other, LOCK_EX | LOCK_NB), -1);
        assert_int_equal(errno, EWOULDBLOCK);
        t.io = kio_stop(t.io);
        /* The kernel gives a ring's files back a moment later. */
        assert_int_equal(flock(other, LOCK_EX), 0);
        close(other);
}

static int child_with_little_memlock(void)
{
        struct rlimit little = { 65536, 65536 };
        struct kio_params p = params_of("io_uring");
        static struct kio_request req;
        struct kio_info info;
        char error[256] = "";
        int fd = memfd_create("data", MFD_CLOEXEC);

        CHECK(1, fd >= 0 && setrlimit(RLIMIT_MEMLOCK, &little) == 0);
        /* CAP_IPC_LOCK is beyond limits, and goes with the uid. */
        if (geteuid() == 0)
                CHECK(2, setgid(65534) == 0 && setuid(65534) == 0);
        p.workers = 2;
        if (kio_start(&t.io, &p, error) < 0)
                return 77;
        for (unsigned piece = 0; piece < 2; piece++) {
                CHECK(3, register_piece(piece) == -ENOMEM);
        }
        kio_get_info(t.io, &info);
        CHECK(5, !info.registered && strstr(info.registered_reason, "RLIMIT_MEMLOCK"));
        fill(t.pool, 65536, 21);
        for (unsigned worker = 0; worker < 2; worker++) {
                completed = 0;
                req = transfer(KIO_WRITE, fd, t.pool, 65536, 0);
                kio_submit(t.io, &req, worker);
                kio_flush(t.io);
                CHECK(6, poll_and_reap(&completed, 1) == 0 && req.result == 0);
                req = transfer(KIO_READ, fd, t.pool + POOL_PIECE, 65536, 0);
                req.crc_bytes = 65536;
                kio_submit(t.io, &req, worker);
                kio_flush(t.io);
                CHECK(7, poll_and_reap(&completed, 2) == 0 && req.result == 0);
                CHECK(8, req.crc == kio_crc32c(t.pool, 65536));
        }
        CHECK(9, stats().registered_ops == 0);
        t.io = kio_stop(t.io);
        return 0;
}

static void without_memlock_io_goes_unregistered(void **state)
{
        in_child(child_with_little_memlock);
}

/* Makes this system call fail from now on. */
static int deny(unsigned nr, int error)
{
        struct sock_filter filter[] = {
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = { .len = ARRAY_SIZE(filter), .filter = filter };

        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
                return -1;
        return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static int expect_posix(const char *reason)
{
        struct kio_params p = params_of("auto");
        static struct kio_request req;
        struct kio_info info;
        char error[256] = "";

        CHECK(11, kio_start(&t.io, &p, error) == 0);
        kio_get_info(t.io, &info);
        CHECK(12, strcmp(info.backend, "posix") == 0);
        if (!HAVE_LIBURING)
                reason = "liburing";
        CHECK(13, strstr(info.reason, reason));
        req = transfer(KIO_COPY, -1, t.pool, 4096, 0);
        req.src = t.pool + 4096;
        completed = 0;
        kio_submit(t.io, &req, 0);
        kio_flush(t.io);
        CHECK(14, poll_and_reap(&completed, 1) == 0 && req.result == 0);
        t.io = kio_stop(t.io);

        p.backend = "io_uring";
        CHECK(15, kio_start(&t.io, &p, error) < 0);
        CHECK(16, !t.io && strstr(error, reason));
        return 0;
}

static int child_with_setup_refused(void)
{
        if (deny(SYS_io_uring_setup, EPERM) < 0)
                return 77;
        return expect_posix("io_uring is refused (kernel.io_uring_disabled or a seccomp filter)");
}

static int child_without_io_uring(void)
{
        if (deny(SYS_io_uring_setup, ENOSYS) < 0)
                return 77;
        return expect_posix("the kernel has no io_uring");
}

static int child_with_enter_refused(void)
{
        if (deny(SYS_io_uring_enter, EPERM) < 0)
                return 77;
        return expect_posix("io_uring");
}

static void where_io_uring_is_refused_it_is_posix_and_says_why(void **state)
{
        in_child(child_with_setup_refused);
}

static void where_there_is_no_io_uring_it_is_posix_and_says_why(void **state)
{
        in_child(child_without_io_uring);
}

static void a_ring_that_cannot_be_entered_is_not_used(void **state)
{
        in_child(child_with_enter_refused);
}

static int child_with_registering_refused(void)
{
        struct kio_params p = params_of("io_uring");
        struct kio_info info;
        char error[256] = "";

        if (!uring_works() || deny(SYS_io_uring_register, EINVAL) < 0)
                return 77;
        CHECK(21, kio_start(&t.io, &p, error) == 0);
        kio_get_info(t.io, &info);
        CHECK(22, info.reason[0] && !strstr(info.ring_flags, "RESTRICTED"));
        CHECK(23, register_piece(0) == -EOPNOTSUPP);
        kio_get_info(t.io, &info);
        CHECK(24, !info.registered && info.registered_reason[0]);
        t.io = kio_stop(t.io);
        return 0;
}

static void a_lesser_rung_is_taken_and_said(void **state)
{
        in_child(child_with_registering_refused);
}

static int child_touches_what_is_cut_off(void)
{
        struct rlimit no_core = { 0, 0 };
        struct kio_params p = params_of("posix");
        char error[256];
        volatile char *unmapped;
        int fd = memfd_create("unmapped", MFD_CLOEXEC);

        setrlimit(RLIMIT_CORE, &no_core);
        signal(SIGBUS, SIG_DFL);
        CHECK(31, kio_start(&t.io, &p, error) == 0);
        CHECK(32, ftruncate(fd, 4096) == 0);
        unmapped = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
        CHECK(33, ftruncate(fd, 0) == 0);
        return *unmapped;
}

static void a_fault_outside_the_guard_still_kills(void **state)
{
        int status;
        pid_t pid = fork();

        assert_true(pid >= 0);
        if (pid == 0) {
                alarm((unsigned)test_timeout_ms(WAIT_MS) / 1000);
                _exit(child_touches_what_is_cut_off());
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        /* A sanitizer's handler, if there was one before ours, reports it and exits. */
        assert_true((WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS) ||
                    (WIFEXITED(status) && WEXITSTATUS(status) != 0));
}

#if HAVE_LIBURING
/* Returns the descriptor of the only ring in this process, or -1. */
static int find_ring(void)
{
        for (int fd = 3; fd < 1024; fd++) {
                char link[64], target[64];
                ssize_t n;

                snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
                n = readlink(link, target, sizeof(target) - 1);
                target[n < 0 ? 0 : n] = '\0';
                if (strcmp(target, "anon_inode:[io_uring]") == 0)
                        return fd;
        }
        return -1;
}
#endif

static void test_R14_the_ring_refuses_what_it_is_not_here_for(void **state)
{
#if HAVE_LIBURING
        struct kio_queue_params p = { .depth = 4, .probe_fd = -1 };
        struct kio_queue *q;
        int event = eventfd(0, EFD_CLOEXEC), ring;
        long r;

        if (!uring_works()) {
                print_message("io_uring cannot be had here: skipped\n");
                close(event);
                skip();
        }
        assert_int_equal(kio_backend_uring.open(&q, &p), 0);
        assert_non_null(strstr(kio_backend_uring.describe(q), "RESTRICTED"));
        ring = find_ring();
        assert_true(ring >= 0);
        assert_true(fcntl(ring, F_GETFD) & FD_CLOEXEC);
        r = syscall(SYS_io_uring_register, ring, IORING_REGISTER_EVENTFD, &event, 1);
        assert_int_equal(r, -1);
        assert_int_equal(errno, EACCES);
        r = syscall(SYS_io_uring_register, ring, IORING_REGISTER_FILES, &event, 1);
        assert_int_equal(r, -1);
        assert_int_equal(errno, EACCES);
        kio_backend_uring.close(q);
        close(event);
#else
        skip();
#endif
}

int main(void)
{
        const struct CMUnitTest everywhere[] = {
                IO_TEST(the_self_test_reads_the_probe_file),
                IO_TEST(what_it_runs_on_is_said),
        };
        const struct CMUnitTest once[] = {
                IO_TEST(senseless_parameters_are_refused),
                IO_TEST(the_ring_holds_the_lock_while_it_lives),
                IO_TEST(without_memlock_io_goes_unregistered),
                IO_TEST(where_io_uring_is_refused_it_is_posix_and_says_why),
                IO_TEST(where_there_is_no_io_uring_it_is_posix_and_says_why),
                IO_TEST(a_ring_that_cannot_be_entered_is_not_used),
                IO_TEST(a_lesser_rung_is_taken_and_said),
                IO_TEST(test_R14_the_ring_refuses_what_it_is_not_here_for),
                IO_TEST(a_fault_outside_the_guard_still_kills),
        };
        int failed = run_everywhere(everywhere);

        failed += run_once("what is used without io_uring", once);
        return failed > 0;
}
