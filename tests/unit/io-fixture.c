/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../lib/folder.h"
#include "checked.h"
#include "cleanup.h"
#include "io-fixture.h"

struct io_group t;
unsigned completed;
sem_t gate_open;
static sem_t gate_entered;

void count_complete(struct kio_request *req)
{
        completed++;
}

bool is_uring(void)
{
        return strcmp(t.backend, "io_uring") == 0;
}

bool uring_works(void)
{
        struct kio_params p = { .backend = "io_uring", .workers = 1, .depth = 4, .probe_fd = -1 };
        struct kio *io;
        char error[256];

        if (kio_start(&io, &p, error) < 0)
                return false;
        kio_stop(io);
        return true;
}

const struct kio_backend *backend_of_group(void)
{
#if HAVE_LIBURING
        if (is_uring())
                return &kio_backend_uring;
#endif
        return &kio_backend_posix;
}

void skip_unless_possible(void)
{
        if (t.skip) {
                print_message("%s: skipped\n", t.skip);
                skip();
        }
}

struct kio_params params_of(const char *backend)
{
        return (struct kio_params){
                .backend = backend,
                .workers = 1,
                .depth = 32,
                .posix_threads = 4,
                .pool = t.pool,
                .pool_bytes = POOL,
                .piece_bytes = POOL_PIECE,
                .probe_fd = -1,
        };
}

void start(const struct kio_params *p)
{
        char error[256] = "";

        if (kio_start(&t.io, p, error) < 0)
                fail_msg("kio_start: %s", error);
}

void start_on(const struct kio_params *p, const struct kio_backend *backend)
{
        char error[256] = "";

        if (kio_start_with(&t.io, p, backend, error) < 0)
                fail_msg("kio_start_with: %s", error);
}

void start_with_faults(unsigned workers, unsigned depth)
{
        struct kio_params p = params_of(t.backend);

        p.workers = workers;
        p.depth = depth;
        start_on(&p, fault_wrap(backend_of_group()));
}

int poll_and_reap(const unsigned *until, unsigned n)
{
        kio_flush(t.io);
        while (*until < n) {
                struct pollfd p = { .fd = kio_fd(t.io), .events = POLLIN };

                if (poll(&p, 1, test_timeout_ms(WAIT_MS)) != 1)
                        return -1;
                kio_reap(t.io);
        }
        return 0;
}

void wait_completed(unsigned n)
{
        if (poll_and_reap(&completed, n) < 0)
                fail_msg("%u of %u requests came back", completed, n);
        assert_int_equal(completed, n);
}

int64_t run(struct kio_request *req)
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

struct kio_stats stats(void)
{
        struct kio_stats s;

        kio_get_stats(t.io, &s);
        return s;
}

uint64_t oldest_ns(void)
{
        uint64_t oldest = 0;

        for (unsigned volume = 0; volume < KIO_VOLUMES_MAX; volume++)
                oldest = MAX(oldest, kio_oldest(t.io, volume));
        return oldest;
}

struct kio_request transfer(enum kio_op op, int fd, void *buf, uint64_t length, uint64_t offset)
{
        return (struct kio_request){ .op = op,
                                     .fd = fd,
                                     .buf = buf,
                                     .length = length,
                                     .offset = offset,
                                     .complete = count_complete };
}

struct registration {
        unsigned answers;
        int result;
};

static void on_registered(void *userdata, int r)
{
        struct registration *registration = userdata;

        registration->result = r;
        registration->answers++;
}

int register_piece(unsigned piece)
{
        static struct registration registration;

        registration.answers = 0;
        kio_register_piece(t.io, piece, on_registered, &registration);
        if (poll_and_reap(&registration.answers, 1) < 0 || registration.answers > 1)
                return -ETIMEDOUT;
        return registration.result;
}

void fill(void *buf, size_t bytes, uint64_t seed)
{
        unsigned char *p = buf;

        for (size_t i = 0; i < bytes; i++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                p[i] = (unsigned char)(seed >> 56);
        }
}

int open_file(const char *name, int more_flags)
{
        char path[PATH_MAX + 64];
        int fd;

        snprintf(path, sizeof(path), "%s/%s", t.dir, name);
        fd = open(path, O_CREAT | O_CLOEXEC | more_flags | (t.direct ? O_DIRECT : 0), 0600);
        if (fd < 0)
                fail_msg("%s: %s", path, strerror(errno));
        return fd;
}

int make_file(const char *name, size_t bytes, uint64_t seed)
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

static struct registered *buffer_of(struct kio_region *region)
{
        return container_of(region, struct registered, region);
}

void count_region(struct kio_region *region)
{
        buffer_of(region)->completed++;
}

void register_buffer(struct registered *d, uint64_t bytes)
{
        *d = (struct registered){ .fd = memfd_create("registered", MFD_CLOEXEC | MFD_ALLOW_SEALING),
                                  .bytes = bytes };
        assert_true(d->fd >= 0);
        assert_int_equal(ftruncate(d->fd, (off_t)bytes), 0);
        d->at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, d->fd, 0);
        assert_ptr_not_equal(d->at, MAP_FAILED);
        d->region = (struct kio_region){ .base = d->at, .bytes = bytes, .complete = count_region };
}

void cut(const struct registered *d, uint64_t bytes)
{
        assert_int_equal(ftruncate(d->fd, (off_t)bytes), 0);
}

int register_region(struct registered *d)
{
        d->completed = 0;
        kio_region_register(t.io, &d->region);
        assert_int_equal(d->completed, 0);
        if (poll_and_reap(&d->completed, 1) < 0)
                fail_msg("registering did not come back");
        assert_int_equal(d->completed, 1);
        assert_int_equal(kio_pending(t.io), 0);
        return d->region.result;
}

int unregister_region(struct registered *d)
{
        d->completed = 0;
        kio_region_unregister(t.io, &d->region);
        assert_int_equal(d->completed, 0);
        if (poll_and_reap(&d->completed, 1) < 0)
                fail_msg("unregistering did not come back");
        assert_int_equal(d->completed, 1);
        assert_int_equal(kio_pending(t.io), 0);
        return d->region.result;
}

void give_back(struct registered *d)
{
        munmap(d->at, d->bytes);
        close(d->fd);
}

struct kio_request region_transfer(enum kio_op op, int fd, struct registered *d, uint64_t at,
                                   uint64_t length)
{
        return (struct kio_request){ .op = op,
                                     .fd = fd,
                                     .buf = d->at + at,
                                     .length = length,
                                     .region = &d->region,
                                     .guard_src = true };
}

static int gate_call(struct kio_request *req)
{
        sem_post(&gate_entered);
        while (sem_wait(&gate_open) < 0)
                ;
        return 0;
}

struct kio_request gate_request(void)
{
        return (struct kio_request){ .op = KIO_CALL,
                                     .call = gate_call,
                                     .complete = count_complete };
}

void wait_for_gate(void)
{
        while (sem_wait(&gate_entered) < 0)
                ;
}

int note_nothing(struct kio_request *req)
{
        return 0;
}

int test_setup(void **state)
{
        completed = 0;
        sem_init(&gate_entered, 0, 0);
        sem_init(&gate_open, 0, 0);
        t.io = NULL;
        memset(t.pool, 0, POOL);
        return 0;
}

int test_teardown(void **state)
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

static bool direct_io_works(void)
{
        _cleanup_(closep) int fd = -1;
        char path[PATH_MAX + 16];

        snprintf(path, sizeof(path), "%s/data", t.dir);
        fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC | O_DIRECT, 0600);
        return fd >= 0 && pwrite(fd, t.pool, 4096, 0) == 4096;
}

int group_setup(void **state)
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
        if (is_uring() && !uring_works())
                t.skip = "io_uring cannot be had here";
        if (t.direct && !t.skip && !direct_io_works())
                t.skip = "no O_DIRECT here";
        return 0;
}

int group_teardown(void **state)
{
        munmap(t.pool, POOL);
        if (!t.dir[0])
                return 0;
        folder_empty(t.dir);
        return rmdir(t.dir);
}

int run_tests_once(const char *name, const struct CMUnitTest *tests, size_t n)
{
        t.backend = "posix";
        t.direct = false;
        return _cmocka_run_group_tests(name, tests, n, group_setup, group_teardown);
}

int run_tests_everywhere(const struct CMUnitTest *tests, size_t n)
{
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
                failed += _cmocka_run_group_tests(groups[i].name, tests, n, group_setup,
                                                  group_teardown);
        }
        return failed;
}
