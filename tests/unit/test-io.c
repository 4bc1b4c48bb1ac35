/* SPDX-License-Identifier: Apache-2.0 */
/* io/: the same tests on both backends, on a file opened with O_DIRECT and on tmpfs without; then
 * what only one backend or the ladder between them has. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "build-config.h"
#include "checked.h"
#include "child.h"
#include "cleanup.h"
#include "fault.h"
#include "io/backend.h"
#include "io/io.h"
#include "io/completion-queue.h"

enum { PIECE = 2 << 20, PIECES = 4, POOL = PIECE * PIECES, WAIT_MS = 60000 };

static struct {
        const char *backend; /* what the group runs on */
        bool direct;
        const char *skip; /* why the group cannot run */
        char dir[PATH_MAX];
        char *pool;
        struct kio *io;
} t;

/* ---- helpers ----
 *
 * Requests are static: a failed assertion leaves the test while a worker may still have them. */

static unsigned completed;

static void count_complete(struct kio_request *req)
{
        completed++;
}

static struct kio_params params_of(const char *backend)
{
        return (struct kio_params){
                .backend = backend,
                .workers = 1,
                .depth = 32,
                .posix_threads = 4,
                .pool = t.pool,
                .pool_bytes = POOL,
                .piece_bytes = PIECE,
                .probe_fd = -1,
        };
}

static void start(const struct kio_params *p)
{
        char error[256] = "";
        int r = kio_start(&t.io, p, error);

        if (r < 0)
                fail_msg("kio_start: %s", error);
}

static const struct kio_backend *backend_of_group(void)
{
#if HAVE_LIBURING
        if (strcmp(t.backend, "io_uring") == 0)
                return &kio_backend_uring;
#endif
        return &kio_backend_posix;
}

static void start_with_faults(unsigned workers, unsigned depth)
{
        struct kio_params p = params_of(t.backend);
        char error[256] = "";

        p.workers = workers;
        p.depth = depth;
        if (kio_start_with(&t.io, &p, fault_wrap(backend_of_group()), error) < 0)
                fail_msg("kio_start_with: %s", error);
}

/* Waits until `n` requests have completed since `completed` was set to 0. */
static void wait_completed(unsigned n)
{
        kio_flush(t.io);
        while (completed < n) {
                struct pollfd p = { .fd = kio_fd(t.io), .events = POLLIN };

                if (poll(&p, 1, WAIT_MS) != 1)
                        fail_msg("%u of %u requests came back", completed, n);
                kio_reap(t.io);
        }
        assert_int_equal(completed, n);
}

static int64_t run(struct kio_request *req)
{
        req->complete = count_complete;
        completed = 0;
        kio_submit(t.io, req, 0);
        assert_int_equal(kio_pending(t.io), 1);
        wait_completed(1);
        assert_int_equal(kio_pending(t.io), 0);
        assert_int_equal(req->state, KIO_IDLE);
        return req->result;
}

static struct kio_request transfer(enum kio_op op, int fd, void *buf, uint64_t length,
                                   uint64_t offset)
{
        return (struct kio_request){ .op = op,
                                     .fd = fd,
                                     .buf = buf,
                                     .length = length,
                                     .offset = offset,
                                     .complete = count_complete };
}

static void fill(void *buf, size_t bytes, uint64_t seed)
{
        unsigned char *p = buf;

        for (size_t i = 0; i < bytes; i++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                p[i] = (unsigned char)(seed >> 56);
        }
}

static int open_file(const char *name, int more_flags)
{
        char path[PATH_MAX + 64];
        int fd;

        snprintf(path, sizeof(path), "%s/%s", t.dir, name);
        fd = open(path, O_CREAT | O_CLOEXEC | more_flags | (t.direct ? O_DIRECT : 0), 0600);
        if (fd < 0)
                fail_msg("%s: %s", path, strerror(errno));
        return fd;
}

/* A file of `bytes` pattern bytes, by plain system calls. */
static int make_file(const char *name, size_t bytes, uint64_t seed)
{
        char path[PATH_MAX + 64];
        char *buf = malloc(bytes + 1);
        int fd;

        assert_non_null(buf);
        fill(buf, bytes, seed);
        snprintf(path, sizeof(path), "%s/%s", t.dir, name);
        fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, buf, bytes), (ssize_t)bytes);
        close(fd);
        free(buf);
        return open_file(name, O_RDWR);
}

static struct kio_stats stats(void)
{
        struct kio_stats s;

        kio_get_stats(t.io, &s);
        return s;
}

static int registered_result;

static void on_registered(void *userdata, int r)
{
        registered_result = r;
        (*(unsigned *)userdata)++;
}

static int register_piece(unsigned piece)
{
        unsigned calls = 0;

        kio_register_piece(t.io, piece, on_registered, &calls);
        while (calls == 0) {
                struct pollfd p = { .fd = kio_fd(t.io), .events = POLLIN };

                if (poll(&p, 1, WAIT_MS) != 1)
                        fail_msg("registration did not come back");
                kio_reap(t.io);
        }
        assert_int_equal(calls, 1);
        return registered_result;
}

/* A call that holds its thread until it may go on. */
static sem_t gate_entered, gate_open;

static int gate_call(struct kio_request *req)
{
        sem_post(&gate_entered);
        while (sem_wait(&gate_open) < 0)
                ;
        return 0;
}

static struct kio_request gate_request(void)
{
        return (struct kio_request){ .op = KIO_CALL,
                                     .call = gate_call,
                                     .complete = count_complete };
}

static void wait_for_gate(void)
{
        while (sem_wait(&gate_entered) < 0)
                ;
}

static int test_setup(void **state)
{
        completed = 0;
        sem_init(&gate_entered, 0, 0);
        sem_init(&gate_open, 0, 0);
        t.io = NULL;
        memset(t.pool, 0, POOL);
        return 0;
}

static int test_teardown(void **state)
{
        fault_break_submit(0);
        fault_set(NULL);
        fault_release();
        fault_gate_open();
        for (unsigned i = 0; i < 2; i++)
                sem_post(&gate_open); /* for calls of a test that failed */
        t.io = kio_stop(t.io);
        return 0;
}

static void skip_unless_possible(void)
{
        if (t.skip) {
                print_message("%s: skipped\n", t.skip);
                skip();
        }
}

/* ---- on every backend and medium ---- */

static void what_was_written_is_read_back_with_its_crc(void **state)
{
        _cleanup_(closep) int fd = -1;
        struct kio_params p = params_of(t.backend);
        static struct kio_request req;
        char *from = t.pool + 4096, *to = t.pool + 2 * PIECE + 8192;
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

        fill(t.pool + PIECE, 2 * PIECE, 2);
        req = transfer(KIO_WRITE, fd, t.pool + PIECE, PIECE, 0); /* all of the registered one */
        assert_int_equal(run(&req), 0);
        assert_int_equal(stats().registered_ops, uring ? 1 : 0);
        req = transfer(KIO_WRITE, fd, t.pool + 2 * PIECE - 4096, 8192,
                       PIECE - 4096); /* across its end */
        assert_int_equal(run(&req), 0);
        assert_int_equal(stats().registered_ops, uring ? 1 : 0);
        req = transfer(KIO_READ, fd, t.pool + 3 * PIECE, PIECE, 0);
        assert_int_equal(run(&req), 0);
        assert_int_equal(stats().registered_ops, uring ? 2 : 0);
        assert_memory_equal(t.pool + PIECE, t.pool + 3 * PIECE, PIECE);
        req = transfer(KIO_READ, fd, t.pool, 8192, PIECE - 4096);
        assert_int_equal(run(&req), 0);
        assert_memory_equal(t.pool + 2 * PIECE - 4096, t.pool, 8192);
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
        uint64_t length = PIECE + 12345;
        char *from = t.pool + 3, *to = t.pool + 2 * PIECE;

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
                /* What is still there can be used. */
                req = transfer(KIO_COPY, -1, t.pool, 300 * 1024, 0);
                req.src = shared;
                req.guard_src = true;
                assert_int_equal(run(&req), 0);
        }
        assert_int_equal(stats().errors[KIO_COPY], 6);
        munmap(shared, length);
        close(fd);
}

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

static int note_nothing(struct kio_request *req)
{
        return 0;
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

/* Of the calls that wait, gets' go first, and each class in the order in which it came. */
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
        /* The eighth turn is a put's where there is one; none is left by then. */
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
        /* A ring registers its memory itself. */
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
        fd = make_file("data", PIECE, 8);
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

/* How many operations of these classes are at the device together, if it answers none of them. */
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
        last = transfer(KIO_COPY, -1, t.pool + PIECE, 4096, 0);
        last.src = t.pool + 2 * PIECE;
        kio_submit(t.io, &last, 0);
        completed = 0;
        fault_gate_open();
        wait_completed(1); /* the copy: by then the worker has pushed what it may */
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
        /* Of the first eight one is a put, though all puts came before all gets. */
        for (n = 0; n < 8; n++)
                puts += order[n] == KIO_CLASS_PUT;
        assert_int_equal(order[0], KIO_CLASS_GET);
        assert_int_equal(puts, 1);
        /* All gets are through by the time 30 of them and their share of others went. */
        for (n = 0; n < 36; n++)
                puts += order[n] == KIO_CLASS_BACKGROUND;
        assert_int_equal(puts, 2); /* one put counted above, one background in 64 */
        for (n = 36; n < 90; n++)
                assert_int_not_equal(order[n], KIO_CLASS_GET);
        for (n = 62; n < 90; n++)
                assert_int_equal(order[n], KIO_CLASS_BACKGROUND);
}

/* The put's one turn in eight is a slice, not the whole copy. */
static void gets_do_not_wait_for_a_long_copy(void **state)
{
        static struct kio_request copy, gets[20];

        skip_unless_possible();
        start_with_faults(1, 8);
        fill(t.pool, PIECE, 23);
        fault_gate_close();
        copy = transfer(KIO_COPY, -1, t.pool + 2 * PIECE, 2 * PIECE, 0);
        copy.src = t.pool;
        copy.class = KIO_CLASS_PUT;
        copy.complete = note_order;
        kio_submit(t.io, &copy, 0);
        for (unsigned i = 0; i < 20; i++) {
                gets[i] = transfer(KIO_COPY, -1, t.pool + PIECE + i * 4096, 4096, 0);
                gets[i].src = t.pool;
                gets[i].complete = note_order;
                kio_submit(t.io, &gets[i], 0);
        }
        n_order = 0;
        fault_gate_open();
        wait_completed(21);
        assert_int_equal(n_order, 21);
        assert_int_equal(order[20], KIO_CLASS_PUT);
        assert_memory_equal(t.pool, t.pool + 2 * PIECE, PIECE);
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
        fill(t.pool, PIECE, 10);
        for (unsigned i = 0; i < 100; i++) {
                reqs[i] = transfer(i % 5 == 4 ? KIO_COPY : KIO_WRITE, fd, t.pool + (i % 100) * 4096,
                                   4096, i * 4096);
                reqs[i].src = t.pool + (i % 100) * 4096;
                if (reqs[i].op == KIO_COPY)
                        reqs[i].buf = t.pool + PIECE + i * 4096;
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
        assert_int_equal(kio_crc32c(t.pool + PIECE + 4 * 4096, 4096),
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
        assert_int_equal(kio_oldest_ns(t.io), 0);
}

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
        assert_in_range(kio_oldest_ns(t.io), 1, clock_mono_ns() - since);
        sem_post(&gate_open);
        wait_completed(2);
        assert_int_equal(kio_oldest_ns(t.io), 0);
        assert_true(kio_is_alive(t.io));
        assert_true(kio_is_alive(t.io));
}

/* ---- devices that hang ---- */

enum { HANG_MS = 500 };

static void start_with_hanging(unsigned depth)
{
        struct kio_params p = params_of(t.backend);
        char error[256] = "";

        p.depth = depth;
        p.posix_threads = 2;
        p.hang_ns = HANG_MS * UINT64_C(1000000);
        if (kio_start_with(&t.io, &p, fault_wrap(backend_of_group()), error) < 0)
                fail_msg("kio_start_with: %s", error);
}

/* Twice in a row without any turn between: once it has come to rest at the device. */
static bool rests_alive(void)
{
        for (unsigned i = 0; i < WAIT_MS; i++) {
                if (kio_is_alive(t.io) && kio_is_alive(t.io))
                        return true;
                nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
        }
        return false;
}

/* One path has all places and does not answer: its other requests fail, the other path goes on,
 * nothing is given back before the device has answered, and then all is well again. */
static void test_R15_a_path_that_hangs_costs_itself_only(void **state)
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
                late[i] = transfer(KIO_READ, bad, t.pool + PIECE + i * 4096, 4096, 0);
                late[i].volume = 1;
                kio_submit(t.io, &late[i], 0);
                other[i] = transfer(KIO_READ, good, t.pool + 2 * PIECE + i * 4096, 4096, 0);
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
        assert_true(kio_oldest_ns(t.io) >= HANG_MS * UINT64_C(1000000));
        assert_true(rests_alive());
        /* Now it is known: no waiting. The other path has all places. */
        late[0].state = KIO_IDLE;
        completed = 0;
        kio_submit(t.io, &late[0], 0);
        for (unsigned i = 0; i < 8; i++) {
                other[i] = transfer(KIO_READ, good, t.pool + 2 * PIECE + i * 4096, 4096, 0);
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
        assert_int_equal(kio_oldest_ns(t.io), 0);
        assert_int_equal(stats().inflight, 0);
        assert_int_equal(run(&late[0]), 0);
}

static void test_R15_a_call_that_hangs_holds_up_only_its_path(void **state)
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
                other[i] = transfer(KIO_READ, fd, t.pool + PIECE + i * 4096, 4096, 0);
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

/* ---- the way back to the loop ---- */

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
                        reqs[i].src = t.pool + PIECE;
                        kio_submit(t.io, &reqs[i], 0);
                }
                kio_flush(t.io);
                while (n < 8) {
                        struct pollfd fd = { .fd = kio_fd(t.io), .events = POLLIN };

                        assert_int_equal(poll(&fd, 1, WAIT_MS), 1);
                        n += kio_reap(t.io);
                }
                assert_int_equal(n, 8);
                /* The last one's notification may come after it: then it is readable for nothing,
                 * once. */
                kio_reap(t.io);
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
static void no_wake_up_is_lost_and_none_is_left_over(void **state)
{
        struct kio_params p = params_of(t.backend);
        static struct kio_request reqs[12];
        unsigned idle = 0;

        skip_unless_possible();
        p.workers = 3;
        start(&p);
        for (unsigned i = 0; i < 12; i++) {
                reqs[i] = transfer(KIO_COPY, -1, t.pool + i * 8192, 64 + i * 600, 0);
                reqs[i].src = t.pool + PIECE;
                if (i % 4 == 3) {
                        reqs[i].op = KIO_CALL;
                        reqs[i].call = note_nothing;
                }
                reqs[i].complete = submit_in_complete;
                kio_submit(t.io, &reqs[i], i);
        }
        while (kio_pending(t.io) > 0) {
                struct pollfd fd = { .fd = kio_fd(t.io), .events = POLLIN };

                kio_flush(t.io);
                if (poll(&fd, 1, WAIT_MS) != 1)
                        fail_msg("%u came back, %u did not", completed,
                                 (unsigned)kio_pending(t.io));
                idle += kio_reap(t.io) == 0;
                if (completed % 5 == 0)
                        kio_reap(t.io);
        }
        assert_true(completed >= 2000);
        /* A notification can arrive when its request has been taken already; a descriptor that
         * stays readable would show up here without end. */
        assert_true(idle <= completed);
        kio_reap(t.io);
        for (unsigned i = 0; i < 1000 && is_readable(kio_fd(t.io)); i++) {
                kio_reap(t.io);
                assert_in_range(i, 0, 100);
        }
        assert_false(is_readable(kio_fd(t.io)));
}

/* ---- faults, on every backend and medium ---- */

static void short_transfers_go_on_where_they_stopped(void **state)
{
        _cleanup_(closep) int fd = -1;
        static struct kio_request req;
        struct fault_plan plan = { .ops = 1u << KIO_READ | 1u << KIO_WRITE,
                                   .kind = FAULT_SHORT,
                                   .short_bytes = 8192,
                                   .first = 1,
                                   .count = 20 };
        char *from = t.pool, *to = t.pool + PIECE;
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
        req = transfer(KIO_READ, fd, t.pool + PIECE, length, 0);
        assert_int_equal(run(&req), 0);
        assert_memory_equal(t.pool, t.pool + PIECE, length);

        /* Less than a block, for ever: given up, not tried for ever. */
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
                /* Not side by side: those would go as one. */
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
        fd = make_file("data", PIECE, 16);
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

static void what_hangs_shows_its_age_and_stops_nobody_else(void **state)
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
        age = kio_oldest_ns(t.io);
        assert_in_range(age, 1, clock_mono_ns() - since);
        assert_true(kio_oldest_ns(t.io) >= age);
        completed = 0;
        fault_release();
        wait_completed(1);
        assert_int_equal(hanging.result, 0);
        assert_int_equal(kio_oldest_ns(t.io), 0);
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

static void a_queue_that_cannot_be_entered_fails_requests_until_it_can(void **state)
{
        _cleanup_(closep) int fd = -1;
        static struct kio_request first, copy, req;

        skip_unless_possible();
        copy = transfer(KIO_COPY, -1, t.pool + PIECE, 4096, 0);
        copy.src = t.pool + 2 * PIECE;
        fd = make_file("data", 65536, 19);
        start_with_faults(1, 8);
        fault_break_submit(EIO);
        first = transfer(KIO_READ, fd, t.pool, 4096, 0);
        kio_submit(t.io, &first, 0);
        kio_submit(t.io, &copy, 0);
        wait_completed(1); /* the copy: by then the worker has tried to enter */
        assert_int_equal(copy.result, 0);
        /* What was handed over may be with the device, for all one knows; the next ones fail. */
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

/* ---- the start ---- */

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
        /* Each to a place of its own: they start side by side. */
        for (unsigned i = 0; i < 4; i++) {
                char expected[4096] = { 0 };

                if (i < p.workers)
                        fill(expected, sizeof(expected), 20);
                assert_memory_equal(t.pool + i * sizeof(expected), expected, sizeof(expected));
        }
        /* One alone: thread sanitizers do not see a ring's memory go, and would take the next ring
         * at its place for a race. */
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
                /* Not before something is: a memlock limit shows with the first piece only. */
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

/* ---- io_uring and the ladder ---- */

static bool uring_works(void)
{
        struct kio_params p = params_of("io_uring");
        struct kio *io;
        char error[256];

        if (kio_start(&io, &p, error) < 0)
                return false;
        kio_stop(io);
        return true;
}

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

static int poll_and_reap(const unsigned *until, unsigned n)
{
        while (*until < n) {
                struct pollfd p = { .fd = kio_fd(t.io), .events = POLLIN };

                if (poll(&p, 1, WAIT_MS) != 1)
                        return -1;
                kio_reap(t.io);
        }
        return 0;
}

static int child_with_little_memlock(void)
{
        struct rlimit little = { 65536, 65536 };
        struct kio_params p = params_of("io_uring");
        static struct kio_request req;
        struct kio_info info;
        unsigned registrations = 0;
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
                registrations = 0;
                kio_register_piece(t.io, piece, on_registered, &registrations);
                CHECK(3, poll_and_reap(&registrations, 1) == 0);
                CHECK(4, registered_result == -ENOMEM);
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
                req = transfer(KIO_READ, fd, t.pool + PIECE, 65536, 0);
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

/* From here on this system call fails so. */
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
        unsigned registrations = 0;
        char error[256] = "";

        if (!uring_works() || deny(SYS_io_uring_register, EINVAL) < 0)
                return 77;
        CHECK(21, kio_start(&t.io, &p, error) == 0);
        kio_get_info(t.io, &info);
        CHECK(22, info.reason[0] && !strstr(info.ring_flags, "RESTRICTED"));
        kio_register_piece(t.io, 0, on_registered, &registrations);
        CHECK(23, poll_and_reap(&registrations, 1) == 0 && registered_result == -EOPNOTSUPP);
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
                alarm(60);
                _exit(child_touches_what_is_cut_off());
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        /* A sanitizer's handler, if there was one before ours, reports it and exits. */
        assert_true((WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS) ||
                    (WIFEXITED(status) && WEXITSTATUS(status) != 0));
}

#if HAVE_LIBURING
/* The descriptor of the only ring in this process, -1. */
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

        t.backend = "io_uring";
        if (!uring_works()) {
                print_message("io_uring cannot be had here: skipped\n");
                close(event);
                t.backend = "posix";
                skip();
        }
        t.backend = "posix";
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

/* ---- the completion queue alone ---- */

enum { COMPLETION_QUEUE_ROUNDS = 20000 };

static struct {
        struct completion_queue completion_queue;
        struct list_node node;
        _Atomic unsigned asked, published;
} o;

static void *publish_when_asked(void *userdata)
{
        for (unsigned round = 1; round <= COMPLETION_QUEUE_ROUNDS; round++) {
                struct list_node done = LIST_INIT(done);

                while (atomic_load(&o.asked) < round)
                        sched_yield();
                list_append(&done, &o.node);
                completion_queue_publish(&o.completion_queue, &done);
                atomic_store(&o.published, round);
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

/* The loop that looks unasked often takes a node before its notification is written. */
static void a_notification_that_comes_late_is_taken_back(void **state)
{
        pthread_t thread;

        assert_int_equal(completion_queue_init(&o.completion_queue), 0);
        list_init(&o.node);
        atomic_store(&o.asked, 0);
        atomic_store(&o.published, 0);
        assert_int_equal(pthread_create(&thread, NULL, publish_when_asked, NULL), 0);
        for (unsigned round = 1; round <= COMPLETION_QUEUE_ROUNDS; round++) {
                unsigned n = 0;

                atomic_store(&o.asked, round);
                if (round % 2)
                        while ((n += completion_queue_reap()) == 0)
                                ;
                while (atomic_load(&o.published) < round)
                        sched_yield();
                if (n == 0 && !is_readable(o.completion_queue.fd))
                        fail_msg("round %u: a lost wake-up", round);
                n += completion_queue_reap();
                assert_int_equal(n, 1);
                if (is_readable(o.completion_queue.fd))
                        fail_msg("round %u: readable for nothing, for ever", round);
        }
        pthread_join(thread, NULL);
        completion_queue_fini(&o.completion_queue);
}

enum { COMPLETION_QUEUE_PRODUCERS = 2, COMPLETION_QUEUE_NODES = 16, COMPLETION_QUEUE_LAPS = 1500 };

static struct producer {
        struct list_node nodes[COMPLETION_QUEUE_NODES];
        _Atomic unsigned busy[COMPLETION_QUEUE_NODES]; /* with the completion queue or the loop */
} producers[COMPLETION_QUEUE_PRODUCERS];

static void *publish_for_ever(void *userdata)
{
        struct producer *me = userdata;

        for (unsigned i = 0; i < COMPLETION_QUEUE_LAPS * COMPLETION_QUEUE_NODES; i++) {
                struct list_node done = LIST_INIT(done);
                unsigned k = i % COMPLETION_QUEUE_NODES;

                while (atomic_load(&me->busy[k]))
                        sched_yield();
                atomic_store(&me->busy[k], 1);
                list_append(&done, &me->nodes[k]);
                completion_queue_publish(&o.completion_queue, &done);
        }
        return NULL;
}

/* Producers that stand still until their nodes come back, a loop that sleeps when the descriptor
 * says so: one lost wake-up, and all stop for ever. */
static void two_producers_and_a_loop_that_sleeps_never_stand_still(void **state)
{
        enum { ALL = COMPLETION_QUEUE_PRODUCERS * COMPLETION_QUEUE_LAPS * COMPLETION_QUEUE_NODES };
        pthread_t threads[COMPLETION_QUEUE_PRODUCERS];
        unsigned n = 0;

        assert_int_equal(completion_queue_init(&o.completion_queue), 0);
        for (unsigned i = 0; i < COMPLETION_QUEUE_PRODUCERS; i++) {
                for (unsigned k = 0; k < COMPLETION_QUEUE_NODES; k++) {
                        list_init(&producers[i].nodes[k]);
                        atomic_store(&producers[i].busy[k], 0);
                }
                assert_int_equal(pthread_create(&threads[i], NULL, publish_for_ever, &producers[i]),
                                 0);
        }
        while (n < ALL) {
                struct pollfd fd = { .fd = o.completion_queue.fd, .events = POLLIN };

                if (poll(&fd, 1, WAIT_MS) != 1)
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
                                                atomic_store(
                                                        &producers[k].busy[i - producers[k].nodes],
                                                        0);
                }
        }
        for (unsigned i = 0; i < COMPLETION_QUEUE_PRODUCERS; i++)
                pthread_join(threads[i], NULL);
        completion_queue_fini(&o.completion_queue);
}

/* One write for all that comes until the loop has been there, and none while it is. */
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

/* ---- checksums ---- */

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

/* ---- groups ---- */

static void remove_dir(void)
{
        static const char *const names[] = { "data", "whole", "odd", "full", "empty", "LOCK" };
        char path[PATH_MAX + 16];

        for (unsigned i = 0; i < ARRAY_SIZE(names); i++) {
                snprintf(path, sizeof(path), "%s/%s", t.dir, names[i]);
                unlink(path);
        }
        rmdir(t.dir);
}

static int group_setup(void **state)
{
        const char *tmp = getenv("TMPDIR");

        t.skip = NULL;
        snprintf(t.dir, sizeof(t.dir), "%s/test-io-XXXXXX",
                 t.direct ? (tmp ? tmp : "/var/tmp") : "/dev/shm");
        if (!mkdtemp(t.dir)) {
                t.skip = "no place for files";
                t.dir[0] = '\0';
        }
        t.pool = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (t.pool == MAP_FAILED)
                return -1;
        if (strcmp(t.backend, "io_uring") == 0 && !uring_works())
                t.skip = "io_uring cannot be had here";
        if (t.direct && !t.skip) {
                char path[PATH_MAX + 16];
                int fd;

                snprintf(path, sizeof(path), "%s/data", t.dir);
                fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC | O_DIRECT, 0600);
                if (fd < 0 || pwrite(fd, t.pool, 4096, 0) != 4096)
                        t.skip = "no O_DIRECT here";
                closep(&fd);
        }
        return 0;
}

static int group_teardown(void **state)
{
        munmap(t.pool, POOL);
        if (t.dir[0])
                remove_dir();
        return 0;
}

#define IO_TEST(f) cmocka_unit_test_setup_teardown(f, test_setup, test_teardown)

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
                IO_TEST(calls_run_one_by_one_on_a_thread_of_their_own),
                IO_TEST(calls_go_in_the_order_of_their_classes),
                IO_TEST(what_holds_up_calls_holds_up_nothing_else),
                IO_TEST(many_requests_stay_within_the_depth),
                IO_TEST(either_kind_gets_its_depth_and_the_other_a_place),
                IO_TEST(gets_find_a_place_when_puts_fill_the_device),
                IO_TEST(gets_overtake_puts_but_do_not_starve_them),
                IO_TEST(gets_do_not_wait_for_a_long_copy),
                IO_TEST(stop_waits_for_what_was_submitted),
                IO_TEST(a_request_can_be_submitted_again_from_complete),
                IO_TEST(idle_workers_cost_nothing),
                IO_TEST(a_call_that_lasts_is_alive_and_its_age_shows),
                IO_TEST(test_R15_a_path_that_hangs_costs_itself_only),
                IO_TEST(test_R15_a_call_that_hangs_holds_up_only_its_path),
                IO_TEST(test_R15_threads_that_hang_are_replaced),
                IO_TEST(what_is_done_makes_the_descriptor_readable_until_it_is_reaped),
                IO_TEST(no_wake_up_is_lost_and_none_is_left_over),
                IO_TEST(short_transfers_go_on_where_they_stopped),
                IO_TEST(the_rest_of_an_odd_short_transfer_is_aligned),
                IO_TEST(unaligned_buffered_transfers_go_on_byte_by_byte),
                IO_TEST(interrupted_operations_are_tried_again_but_not_for_ever),
                IO_TEST(an_error_is_the_result_of_its_request_only),
                IO_TEST(a_failed_sync_is_not_tried_again),
                IO_TEST(seeded_faults_lose_no_request),
                IO_TEST(what_hangs_shows_its_age_and_stops_nobody_else),
                IO_TEST(a_late_operation_comes_back_by_itself),
                IO_TEST(a_queue_that_cannot_be_entered_fails_requests_until_it_can),
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
                IO_TEST(a_notification_that_comes_late_is_taken_back),
                IO_TEST(two_producers_and_a_loop_that_sleeps_never_stand_still),
                IO_TEST(one_notification_covers_all),
                IO_TEST(crc32c_is_the_one_of_iscsi),
                IO_TEST(crc32c_can_be_computed_in_parts_and_while_copying),
        };
        static const struct {
                const char *name, *backend;
                bool direct;
        } groups[] = {
                { "io_uring, O_DIRECT", "io_uring", true },
                { "io_uring, tmpfs", "io_uring", false },
                { "posix, O_DIRECT", "posix", true },
                { "posix, tmpfs", "posix", false },
        };
        int failed = 0;

        for (unsigned i = 0; i < ARRAY_SIZE(groups); i++) {
                t.backend = groups[i].backend;
                t.direct = groups[i].direct;
                failed += cmocka_run_group_tests_name(groups[i].name, everywhere, group_setup,
                                                      group_teardown);
        }
        t.backend = "posix";
        t.direct = false;
        failed += cmocka_run_group_tests_name("the ladder", once, group_setup, group_teardown);
        return failed > 0;
}
