/* SPDX-License-Identifier: Apache-2.0 */
/* store/: the same tests on both backends with O_DIRECT, and on tmpfs without; every byte that is
 * got is compared. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "build-config.h"
#include "checked.h"
#include "cleanup.h"
#include "fault.h"
#include "store/volume/format.h"
#include "store/store.h"

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)

enum { DEPTH = 32, ROOM = 4 << 20, WAIT_MS = 60000 };

static struct {
        const char *backend; /* of the group */
        const char *root;
        bool direct, faults;

        char dir[PATH_MAX];
        struct kio *io;
        struct store *s;
        uint32_t ns;     /* where keys go */
        uint16_t tenant; /* whose that is */
        char *bufs[DEPTH];
        uint64_t most_used;
} t;

/* --- opening and turning --- */

static struct store_params params_of(uint64_t limit)
{
        /* Each start reads the table in another way than the one before. */
        static const uint32_t blocks[] = { 0, 1, 16, 5 };
        static unsigned opened;
        static const char *paths[1];

        paths[0] = t.dir;
        return (struct store_params){
                .paths = paths,
                .n_paths = 1,
                .limit = limit,
                .segment_bytes = 1024 * MIB,
                .prewrite = true,
                .direct = t.direct,
                .table_block = blocks[opened++ % ARRAY_SIZE(blocks)],
                .policy = "lru",
                .secret = { { 1, 2 } },
                /* A ring that was closed may hold the lock for a while after its process has gone
                   on. */
                .lock_wait_ms = 30000,
        };
}

static int try_open(const struct store_params *params, char error[static 512])
{
        struct kio_params io = {
                .backend = t.backend,
                .workers = 2,
                .depth = 32,
                .posix_threads = 4,
                .pool = t.bufs[0],
                .pool_bytes = ROOM,
                .piece_bytes = ROOM,
                .probe_fd = -1,
        };
        int locks[STORE_MAX_VOLUMES], r;

        r = store_prepare(&t.s, params, error);
        if (r < 0)
                return r;
        io.lock_fds = locks;
        io.n_lock_fds = store_lock_fds(t.s, locks);
#if HAVE_LIBURING
        const struct kio_backend *inner =
                strcmp(t.backend, "posix") == 0 ? &kio_backend_posix : &kio_backend_uring;
#else
        const struct kio_backend *inner = &kio_backend_posix;
#endif
        if (t.faults)
                r = kio_start_with(&t.io, &io, fault_wrap(inner), error);
        else
                r = kio_start(&t.io, &io, error);
        if (r < 0)
                fail_msg("kio_start: %s", error);
        r = store_open(t.s, t.io, error);
        if (r < 0) {
                t.s = store_close(t.s);
                t.io = kio_stop(t.io);
        }
        return r;
}

static void turn(bool (*until)(const void *arg), const void *arg);

static bool ns_done(const void *arg)
{
        return ((const struct store_namespace_open *)arg)->complete == NULL;
}

static void ns_complete(struct store_namespace_open *req)
{
        req->complete = NULL;
}

static int open_namespace(const char *name, const char *fingerprint, bool attach, uint32_t *ret_id)
{
        struct store_namespace_open req = {
                .tenant = t.tenant,
                .name = name,
                .name_length = (uint16_t)strlen(name),
                .fingerprint = fingerprint,
                .fingerprint_length = (uint16_t)strlen(fingerprint),
                .attach = attach,
                .complete = ns_complete,
        };

        store_namespace_open(t.s, &req);
        assert_non_null(req.complete);
        turn(ns_done, &req);
        if (ret_id && req.result == 0)
                *ret_id = req.namespace->id;
        return req.result;
}

/* The answer's namespace is read while it may be. */
static void refusal_complete(struct store_namespace_open *req)
{
        if (req->result == STORE_MISMATCH)
                assert_string_equal(req->namespace->name, "refused");
        else
                assert_null(req->namespace);
        req->complete = NULL;
}

static void start(const struct store_params *params)
{
        char error[512] = "";

        if (try_open(params, error) < 0)
                fail_msg("open: %s", error);
        assert_int_equal(open_namespace("model/a", "dtype=bf16", false, &t.ns), 0);
}

static void start_limit(uint64_t limit)
{
        struct store_params params = params_of(limit);

        start(&params);
}

static uint64_t du(void)
{
        DIR *d = opendir(t.dir);
        struct dirent *e;
        uint64_t sum = 0;
        struct stat st;

        assert_non_null(d);
        while ((e = readdir(d)))
                if (strcmp(e->d_name, "..") != 0 &&
                    fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
                        sum += (uint64_t)st.st_blocks * 512;
        closedir(d);
        return sum;
}

static struct store_stats stats(void)
{
        struct store_stats st;

        store_get_stats(t.s, &st);
        return st;
}

/* One turn of a loop, without waiting: is there something left to wait for? */
static void turn_once(void)
{
        kio_reap(t.io);
        store_iterate(t.s);
        kio_flush(t.io);
        t.most_used = MAX(t.most_used, stats().used_bytes);
}

static void wait_io(void)
{
        struct pollfd p = { .fd = kio_fd(t.io), .events = POLLIN };

        if (kio_pending(t.io) == 0)
                fail_msg("waits for nothing: %llu pending", (unsigned long long)store_pending(t.s));
        if (poll(&p, 1, WAIT_MS) != 1)
                fail_msg("I/O hangs");
}

static void turn(bool (*until)(const void *arg), const void *arg)
{
        turn_once();
        while (!until(arg)) {
                wait_io();
                turn_once();
        }
}

static bool idle(const void *arg)
{
        return store_pending(t.s) == 0;
}

static void settle(void)
{
        turn(idle, NULL);
}

static void stop(void)
{
        store_stop(t.s);
        while (store_pending(t.s) > 0) {
                wait_io();
                kio_reap(t.io);
        }
        t.s = store_close(t.s);
        t.io = kio_stop(t.io);
}

/* --- keys and payloads made from numbers --- */

static struct key key_of(uint64_t n)
{
        struct key k = { { 0 } };

        memcpy(k.bytes, &n, sizeof(n));
        k.bytes[31] = 1;
        return k;
}

static void payload_of(uint64_t n, void *buf, uint32_t length)
{
        uint64_t x = n * UINT64_C(0x9e3779b97f4a7c15) + 1, *p = buf;

        for (uint32_t i = 0; i < (length + 7) / 8; i++) {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                p[i] = x;
        }
}

struct put {
        struct store_put req;
        unsigned buf;
        bool busy;
};
static struct put slots[DEPTH];
static unsigned puts_busy;
static int last_result;

static void put_complete(struct store_put *req)
{
        struct put *p = container_of(req, struct put, req);

        assert_true(p->busy);
        p->busy = false;
        puts_busy--;
        last_result = req->result;
}

static bool put_free(const void *arg)
{
        return puts_busy < DEPTH;
}

static bool puts_none(const void *arg)
{
        return puts_busy == 0;
}

static int submit_put(uint64_t n, uint32_t length, bool durable)
{
        struct put *p = NULL;
        int r;

        if (puts_busy == DEPTH)
                turn(put_free, NULL);
        for (unsigned i = 0; i < DEPTH; i++)
                if (!slots[i].busy) {
                        p = &slots[i];
                        p->buf = i;
                }
        payload_of(n, t.bufs[p->buf], length);
        p->req = (struct store_put){
                .namespace_id = t.ns,
                .tenant = t.tenant,
                .key = key_of(n),
                .buf = t.bufs[p->buf],
                .length = length,
                .crc = kio_crc32c(t.bufs[p->buf], length),
                .durable = durable,
                .complete = put_complete,
        };
        p->req.hash = store_hash(t.s, t.ns, &p->req.key);
        r = store_put(t.s, &p->req);
        if (r == 0) {
                p->busy = true;
                puts_busy++;
        }
        return r;
}

static int put(uint64_t n, uint32_t length)
{
        int r = submit_put(n, length, false);

        if (r != 0)
                return r;
        turn(puts_none, NULL);
        return last_result;
}

static int put_durable(uint64_t n, uint32_t length)
{
        int r = submit_put(n, length, true);

        if (r != 0)
                return r;
        turn(puts_none, NULL);
        return last_result;
}

/* Many at once. FULL passes when something completes. */
static void put_range(uint64_t first, uint64_t n, uint32_t length)
{
        for (uint64_t i = first; i < first + n; i++) {
                int r;

                while ((r = submit_put(i, length, false)) == STORE_FULL) {
                        wait_io();
                        turn_once();
                }
                assert_int_equal(r, 0);
        }
        turn(puts_none, NULL);
}

static bool got;

static void get_complete(struct store_get *req)
{
        got = true;
}

static bool get_done(const void *arg)
{
        return got;
}

static int get_into(struct store_get *req, uint64_t n, char *buf)
{
        *req = (struct store_get){
                .namespace_id = t.ns,
                .key = key_of(n),
                .buf = buf,
                .room = ROOM,
                .complete = get_complete,
        };
        req->hash = store_hash(t.s, t.ns, &req->key);
        got = false;
        return store_get(t.s, req);
}

/* 0: there, and every byte is right. */
static int get(uint64_t n, uint32_t length)
{
        static char *expected;
        static struct store_get req;
        int r = get_into(&req, n, t.bufs[0]);

        if (!expected)
                expected = malloc(ROOM);
        if (r != 0)
                return r;
        turn(get_done, NULL);
        if (req.result != 0)
                return req.result;
        payload_of(n, expected, length);
        assert_int_equal(req.length, length);
        assert_memory_equal(req.buf, expected, length);
        return 0;
}

static bool present(uint64_t n)
{
        struct key k = key_of(n);
        struct store_ref ref;

        return store_find(t.s, t.ns, &k, store_hash(t.s, t.ns, &k), &ref, NULL) == 0;
}

static void touch(uint64_t n)
{
        struct key k = key_of(n);
        struct store_ref ref;

        assert_int_equal(store_find(t.s, t.ns, &k, store_hash(t.s, t.ns, &k), &ref, NULL), 0);
        store_touch(t.s, ref);
}

static int drop(uint64_t n)
{
        struct key k = key_of(n);

        return store_drop(t.s, t.ns, &k, store_hash(t.s, t.ns, &k));
}

static void purge_complete(struct store_purge *req)
{
        req->complete = NULL;
}

static bool purge_done(const void *arg)
{
        return ((const struct store_purge *)arg)->complete == NULL;
}

static uint64_t purge(bool all)
{
        struct store_purge req = { .namespace_id = t.ns, .all = all, .complete = purge_complete };

        store_purge(t.s, &req);
        assert_non_null(req.complete);
        turn(purge_done, &req);
        assert_int_equal(req.result, 0);
        return req.dropped;
}

static uint64_t count_present(uint64_t first, uint64_t n)
{
        uint64_t count = 0;

        for (uint64_t i = first; i < first + n; i++)
                count += present(i);
        return count;
}

/* Runs `f` in a process that is then killed: the store is neither stopped nor closed. */
static void in_killed_process(void (*f)(void))
{
        int status;
        pid_t pid = fork();

        assert_true(pid >= 0);
        if (pid == 0) {
                f();
                kill(getpid(), SIGKILL);
                _exit(1);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static int file_of(const char *name, int flags)
{
        char path[PATH_MAX + 64];
        int fd;

        snprintf(path, sizeof(path), "%s/%s", t.dir, name);
        fd = open(path, flags, 0600);
        assert_true(fd >= 0);
        return fd;
}

static void flip_byte(const char *name, off_t offset)
{
        int fd = file_of(name, O_RDWR);
        uint8_t b;

        assert_int_equal(pread(fd, &b, 1, offset), 1);
        b ^= 0x10;
        assert_int_equal(pwrite(fd, &b, 1, offset), 1);
        assert_int_equal(fsync(fd), 0);
        close(fd);
}

/* --- set up --- */

static void remove_files(void)
{
        DIR *d = opendir(t.dir);
        struct dirent *e;

        while (d && (e = readdir(d)))
                if (e->d_name[0] != '.')
                        unlinkat(dirfd(d), e->d_name, 0);
        if (d)
                closedir(d);
}

static void remove_dir(void)
{
        remove_files();
        rmdir(t.dir);
}

static int setup(void **state)
{
        snprintf(t.dir, sizeof(t.dir), "%s/kvcache-store-XXXXXX", t.root);
        if (!mkdtemp(t.dir))
                return -1;
        for (unsigned i = 0; i < DEPTH; i++)
                t.bufs[i] = aligned_alloc(4096, ROOM);
        memset(slots, 0, sizeof(slots));
        puts_busy = 0;
        t.most_used = 0;
        t.faults = false;
        t.tenant = 0;
        fault_set(NULL);
        return 0;
}

static int teardown(void **state)
{
        fault_set(NULL);
        fault_release();
        if (t.s)
                stop();
        for (unsigned i = 0; i < DEPTH; i++)
                free(t.bufs[i]);
        remove_dir();
        return 0;
}

/* --- tests --- */

static void a_chunk_comes_back_byte_for_byte(void **state)
{
        static const uint32_t lengths[] = { 1, 4095, 4096, 4097, 16384, 65536 + 1, 300000 };

        start_limit(64 * MIB);
        for (unsigned i = 0; i < ARRAY_SIZE(lengths); i++) {
                assert_int_equal(get(i, lengths[i]), STORE_MISS);
                assert_int_equal(put(i, lengths[i]), 0);
                assert_true(present(i));
                assert_int_equal(put(i, lengths[i]), STORE_EXISTS);
                assert_int_equal(get(i, lengths[i]), 0);
        }
        assert_int_equal(put(100, (uint32_t)store_max_chunk(t.s)), 0);
        assert_int_equal(get(100, (uint32_t)store_max_chunk(t.s)), 0);
        assert_int_equal(put(101, (uint32_t)store_max_chunk(t.s) + 1), STORE_TOO_LARGE);
        assert_int_equal(put(102, 0), STORE_TOO_LARGE);
        assert_int_equal(stats().chunks, ARRAY_SIZE(lengths) + 1);
        stop();
}

static void too_little_room_for_a_get_is_said(void **state)
{
        static struct store_get req;

        start_limit(64 * MIB);
        assert_int_equal(put(1, 10000), 0);
        req = (struct store_get){
                .namespace_id = t.ns, .key = key_of(1), .buf = t.bufs[0], .room = 8192
        };
        req.hash = store_hash(t.s, t.ns, &req.key);
        assert_int_equal(store_get(t.s, &req), STORE_TOO_LARGE);
        assert_int_equal(req.length, 10000);
        stop();
}

static void a_put_is_seen_only_when_it_is_written(void **state)
{
        start_limit(64 * MIB);
        assert_int_equal(submit_put(1, 5000, false), 0);
        assert_false(present(1));
        assert_int_equal(get(1, 5000), STORE_MISS);
        assert_int_equal(drop(1), STORE_MISS);
        assert_int_equal(submit_put(1, 5000, false), STORE_EXISTS);
        turn(puts_none, NULL);
        assert_int_equal(last_result, 0);
        assert_int_equal(get(1, 5000), 0);
        stop();
}

static void a_stale_ref_is_harmless(void **state)
{
        struct key k = key_of(1);
        struct store_ref ref;

        start_limit(64 * MIB);
        store_touch(t.s, STORE_REF_NONE);
        assert_int_equal(put(1, 5000), 0);
        assert_int_equal(store_find(t.s, t.ns, &k, store_hash(t.s, t.ns, &k), &ref, NULL), 0);
        assert_int_equal(drop(1), 0);
        store_touch(t.s, ref);
        assert_int_equal(put(2, 5000), 0);
        store_touch(t.s, ref);
        stop();
}

static void restart_keeps_everything(void **state)
{
        start_limit(64 * MIB);
        assert_true(stats().clean_start);
        put_range(0, 300, 16384);
        put_range(1000, 50, 100001);
        assert_int_equal(drop(7), 0);
        stop();
        for (unsigned round = 0; round < 3; round++) {
                start_limit(64 * MIB);
                assert_true(stats().clean_start);
                assert_int_equal(stats().recovered_chunks, 349);
                for (uint64_t i = 0; i < 300; i++)
                        assert_int_equal(get(i, 16384), i == 7 ? STORE_MISS : 0);
                for (uint64_t i = 1000; i < 1050; i++)
                        assert_int_equal(get(i, 100001), 0);
                stop();
        }
}

static void put_some(void)
{
        start_limit(64 * MIB);
        put_range(0, 300, 16384);
        put_range(1000, 50, 100001);
}

static void a_kill_loses_nothing_written(void **state)
{
        in_killed_process(put_some);
        start_limit(64 * MIB);
        assert_false(stats().clean_start);
        for (uint64_t i = 0; i < 300; i++)
                assert_int_equal(get(i, 16384), 0);
        for (uint64_t i = 1000; i < 1050; i++)
                assert_int_equal(get(i, 100001), 0);
        stop();
}

static void put_more_with_gaps(void)
{
        start_limit(64 * MIB);
        put_range(2000, 2000, 8192);
        /* Many in flight: some are on disk, some are not, none may be wrong. */
        for (uint64_t i = 0; i < DEPTH; i++)
                submit_put(5000 + i, 8192, false);
        turn_once();
}

static void kill_after_kill_never_gives_a_wrong_byte(void **state)
{
        for (unsigned round = 0; round < 4; round++) {
                in_killed_process(round == 0 ? put_some : put_more_with_gaps);
                start_limit(64 * MIB);
                for (uint64_t i = 0; i < 300; i++)
                        assert_int_equal(get(i, 16384), 0);
                for (uint64_t i = 5000; i < 5000 + DEPTH; i++)
                        if (present(i))
                                assert_int_equal(get(i, 8192), 0);
                if (round > 0) {
                        assert_int_equal(count_present(2000, 2000), 2000);
                        for (uint64_t i = 2000; i < 4000; i++)
                                assert_int_equal(drop(i), 0);
                        for (uint64_t i = 5000; i < 5000 + DEPTH; i++)
                                drop(i);
                }
                stop();
        }
}

/* What the process that will be killed says about each key, in memory that outlives it. */
struct said {
        uint64_t acked;
        uint8_t keys[4096]; /* 1: written, 2: dropped and settled */
};
static struct said *said;

static void churn(void)
{
        start_limit(64 * MIB);
        for (uint64_t n = said->acked;; n++) {
                uint64_t k = n % ARRAY_SIZE(said->keys);

                if (said->keys[k] == 1) {
                        said->keys[k] = 0;
                        assert_int_equal(drop(k), 0);
                        if (n % 64 == 0) {
                                settle();
                                said->keys[k] = 2;
                        }
                }
                said->keys[k] = said->keys[k] == 2 && n % 3 == 0 ? 2 : 0;
                if (said->keys[k] == 0 && put(k, 6000) == 0)
                        said->keys[k] = 1;
                __atomic_store_n(&said->acked, n + 1, __ATOMIC_RELEASE);
        }
}

static void a_kill_at_any_moment_loses_nothing_answered(void **state)
{
        uint64_t x = 88172645463325252;

        said = mmap(NULL, sizeof(*said), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert_ptr_not_equal(said, MAP_FAILED);
        for (unsigned round = 0; round < 6; round++) {
                uint64_t until;
                int status;
                pid_t pid;

                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                until = said->acked + x % 1500;
                pid = fork();
                assert_true(pid >= 0);
                if (pid == 0) {
                        churn();
                        _exit(1);
                }
                while (__atomic_load_n(&said->acked, __ATOMIC_ACQUIRE) < until)
                        if (waitpid(pid, &status, WNOHANG) != 0)
                                fail_msg("the other process ended");
                kill(pid, SIGKILL);
                assert_int_equal(waitpid(pid, &status, 0), pid);
                start_limit(64 * MIB);
                for (uint64_t k = 0; k < ARRAY_SIZE(said->keys); k++) {
                        if (said->keys[k] == 1)
                                assert_int_equal(get(k, 6000), 0);
                        else if (said->keys[k] == 2)
                                assert_false(present(k));
                        else if (present(k))
                                assert_int_equal(get(k, 6000), 0);
                        said->keys[k] = present(k);
                }
                stop();
        }
        munmap(said, sizeof(*said));
}

static void drop_and_settle(void)
{
        start_limit(64 * MIB);
        for (uint64_t i = 0; i < 300; i += 3)
                assert_int_equal(drop(i), 0);
        assert_int_equal(drop(0), STORE_MISS);
        /* A key that was dropped may be put anew. */
        assert_int_equal(put(3, 20000), 0);
        settle();
}

static void a_drop_survives_a_kill(void **state)
{
        in_killed_process(put_some);
        in_killed_process(drop_and_settle);
        start_limit(64 * MIB);
        for (uint64_t i = 0; i < 300; i++)
                assert_int_equal(get(i, i == 3 ? 20000 : 16384),
                                 i % 3 == 0 && i != 3 ? STORE_MISS : 0);
        stop();
}

static void drop_and_go_round(void)
{
        struct store_stats before;

        start_limit(16 * MIB);
        put_range(0, 100, 4096);
        for (uint64_t i = 0; i < 100; i++)
                assert_int_equal(drop(i), 0);
        /* Until the ring has been overwritten twice; at most some hundred keys at once. */
        before = stats();
        for (uint64_t i = 1000;
             stats().table_pages_written < before.table_pages_written + 2 * before.table_pages;
             i++) {
                assert_int_equal(put(i, 4096), 0);
                if (i >= 1100)
                        assert_int_equal(drop(i - 100), 0);
        }
        settle();
}

static void a_drop_survives_the_ring_going_round(void **state)
{
        in_killed_process(drop_and_go_round);
        start_limit(16 * MIB);
        assert_int_equal(count_present(0, 1000), 0);
        assert_true(stats().chunks <= 100);
        stop();
}

static void purge_then_put(void)
{
        start_limit(64 * MIB);
        assert_int_equal(purge(false), 350);
        assert_int_equal(stats().chunks, 20); /* of the other namespace */
        assert_int_equal(put(5, 16384), 0);
}

static void a_purge_survives_a_kill(void **state)
{
        uint32_t first;

        start_limit(64 * MIB);
        first = t.ns;
        assert_int_equal(open_namespace("other", "x=1", false, &t.ns), 0);
        put_range(0, 20, 4096);
        stop();
        in_killed_process(put_some);
        in_killed_process(purge_then_put);
        start_limit(64 * MIB);
        assert_int_equal(t.ns, first);
        assert_int_equal(count_present(0, 2000), 1);
        assert_int_equal(get(5, 16384), 0);
        assert_int_equal(open_namespace("other", "", true, &t.ns), 0);
        for (uint64_t i = 0; i < 20; i++)
                assert_int_equal(get(i, 4096), 0);
        assert_int_equal(purge(true), 21);
        stop();
        start_limit(64 * MIB);
        assert_int_equal(stats().chunks, 0);
        stop();
}

enum { MANY = 3000, STEP_DROPS = 520 };

/* Of several steps: nothing of it is found from the first on. */
static void begin_large_purge(struct store_purge *req)
{
        static struct store_chunk chunks[64];
        uint64_t cursor = 0;

        store_purge(t.s, req);
        assert_int_equal(count_present(0, MANY), 0);
        assert_true(stats().chunks >= MANY - STEP_DROPS);
        do
                assert_int_equal(store_list(t.s, t.ns, &cursor, chunks, 64), 0);
        while (cursor != 0);
}

static void a_large_purge_takes_steps(void **state)
{
        struct store_purge one = { .complete = purge_complete },
                           same = { .complete = purge_complete },
                           all = { .all = true, .complete = purge_complete };
        uint64_t before, seen = 0;
        static struct store_get get_req;

        start_limit(64 * MIB);
        put_range(0, MANY, 4096);
        one.namespace_id = same.namespace_id = t.ns;
        begin_large_purge(&one);
        assert_int_equal(get_into(&get_req, MANY - 1, t.bufs[0]), STORE_MISS);
        assert_int_equal(drop(MANY - 2), STORE_MISS);
        /* A put of a key that is still in the index takes its place, and stays. */
        assert_int_equal(submit_put(MANY - 1, 8192, false), 0);
        for (before = stats().chunks; one.complete; before = stats().chunks) {
                wait_io();
                turn_once();
                assert_true(before <= stats().chunks + STEP_DROPS);
                seen++;
        }
        turn(puts_none, NULL);
        assert_int_equal(last_result, 0);
        assert_true(seen >= (MANY - STEP_DROPS) / STEP_DROPS);
        assert_int_equal(one.result, 0);
        assert_int_equal(one.dropped, MANY);
        assert_int_equal(get(MANY - 1, 8192), 0);
        assert_int_equal(stats().chunks, 1);

        /* Several at once: each chunk is counted by one of them. */
        put_range(0, MANY - 1, 4096);
        one.complete = purge_complete;
        begin_large_purge(&one);
        store_purge(t.s, &same);
        store_purge(t.s, &all);
        turn(purge_done, &one);
        turn(purge_done, &same);
        turn(purge_done, &all);
        assert_int_equal(one.dropped + same.dropped + all.dropped, MANY);
        assert_int_equal(stats().chunks, 0);
        stop();
}

static void die_in_a_large_purge(void)
{
        struct store_purge req = { .complete = purge_complete };

        start_limit(64 * MIB);
        req.namespace_id = t.ns;
        put_range(0, MANY, 4096);
        begin_large_purge(&req);
        assert_int_equal(put(7, 8192), 0);
        turn(purge_done, &req);
        assert_int_equal(put(9, 8192), 0);
}

static void a_stop_in_a_large_purge_loses_nothing_of_it(void **state)
{
        struct store_purge req = { .complete = purge_complete };

        in_killed_process(die_in_a_large_purge);
        start_limit(64 * MIB);
        assert_int_equal(count_present(0, MANY), 2);
        assert_int_equal(get(7, 8192), 0);
        put_range(10, MANY, 4096);
        req.namespace_id = t.ns;
        store_purge(t.s, &req);
        assert_non_null(req.complete);
        assert_int_equal(put(8, 8192), 0);
        stop();
        assert_null(req.complete);
        assert_int_equal(req.result, 0);
        assert_int_equal(req.dropped, MANY + 2);
        start_limit(64 * MIB);
        assert_int_equal(count_present(0, MANY + 10), 1);
        assert_int_equal(get(8, 8192), 0);
        stop();
}

static void a_purge_takes_puts_in_flight(void **state)
{
        start_limit(64 * MIB);
        for (uint64_t i = 0; i < 8; i++)
                assert_int_equal(submit_put(i, 8192, false), 0);
        assert_int_equal(purge(false), 0);
        /* The same keys again, while the first puts are on their way. */
        turn(puts_none, NULL);
        assert_int_equal(last_result, -ECANCELED);
        assert_int_equal(count_present(0, 8), 0);
        assert_int_equal(put(1, 8192), 0);
        assert_int_equal(get(1, 8192), 0);
        assert_int_equal(stats().chunks, 1);
        stop();
        start_limit(64 * MIB);
        assert_int_equal(count_present(0, 8), 1);
        stop();
}

static void a_purged_read_in_flight_is_a_miss(void **state)
{
        static struct store_get req;

        start_limit(64 * MIB);
        assert_int_equal(put(1, 8192), 0);
        assert_int_equal(get_into(&req, 1, t.bufs[1]), 0);
        assert_int_equal(drop(1), 0);
        assert_int_equal(put(1, 4096), 0); /* another slot: that one is being read */
        turn(get_done, NULL);
        assert_int_equal(req.result, STORE_MISS);
        assert_int_equal(get(1, 4096), 0);
        stop();
}

static void a_list_meets_every_chunk_once(void **state)
{
        static struct store_chunk chunks[64];
        static uint8_t seen[2000];
        uint64_t cursor = 0, calls = 0;
        uint32_t other;

        start_limit(64 * MIB);
        put_range(0, 2000, 4096);
        assert_int_equal(open_namespace("other", "", false, &other), 0);
        memset(seen, 0, sizeof(seen));
        do {
                unsigned n = store_list(t.s, t.ns, &cursor, chunks, 64);

                assert_true(n <= 64);
                for (unsigned i = 0; i < n; i++) {
                        uint64_t k;

                        memcpy(&k, chunks[i].key.bytes, sizeof(k));
                        assert_true(k < 2000);
                        seen[k]++;
                        assert_int_equal(chunks[i].length, 4096);
                }
                assert_true(++calls < 1000);
        } while (cursor != 0);
        for (unsigned i = 0; i < 2000; i++)
                assert_int_equal(seen[i], 1);
        cursor = 0;
        assert_int_equal(store_list(t.s, other, &cursor, chunks, 64), 0);
        stop();
}

static void namespaces_are_known_again(void **state)
{
        struct store_namespace_open req = { .name = "n",
                                            .name_length = 1,
                                            .fingerprint = "a=1\nb=2",
                                            .fingerprint_length = 7,
                                            .chunk_bytes = 20000,
                                            .complete = ns_complete };
        uint32_t id, id2;

        start_limit(64 * MIB);
        store_namespace_open(t.s, &req);
        turn(ns_done, &req);
        assert_int_equal(req.result, 0);
        id = req.namespace->id;
        assert_int_equal(open_namespace("n", "a=1\nb=3", false, NULL), STORE_MISMATCH);
        assert_int_equal(open_namespace("n", "a=1\nb=2", false, &id2), 0);
        assert_int_equal(id, id2);
        assert_int_equal(open_namespace("n", "", true, &id2), 0);
        assert_int_equal(id, id2);
        assert_int_equal(open_namespace("n", "", false, NULL), STORE_MISMATCH);
        assert_int_equal(open_namespace("m", "", true, NULL), STORE_MISS);
        assert_int_equal(open_namespace("", "x", false, NULL), -EINVAL);
        assert_null(store_namespace_get(t.s, 77));
        stop();
        start_limit(64 * MIB);
        assert_int_equal(open_namespace("n", "a=1\nb=2", false, &id2), 0);
        assert_int_equal(id, id2);
        assert_string_equal(store_namespace_get(t.s, id)->fingerprint, "a=1\nb=2");
        assert_int_equal(store_namespace_get(t.s, id)->chunk_bytes, 20000);
        assert_int_equal(stats().namespaces, 2);
        stop();
}

/* The second comes before, the third while, the fourth after the first one's write is under way. */
static void all_who_open_one_new_namespace_are_answered(void **state)
{
        struct store_namespace_open reqs[6];

        start_limit(64 * MIB);
        settle();
        for (unsigned i = 0; i < ARRAY_SIZE(reqs); i++) {
                reqs[i] = (struct store_namespace_open){ .name = "shared",
                                                         .name_length = 6,
                                                         .fingerprint = "f",
                                                         .fingerprint_length = 1,
                                                         .complete = ns_complete };
                store_namespace_open(t.s, &reqs[i]);
                if (i >= 1)
                        turn_once();
        }
        for (unsigned i = 0; i < ARRAY_SIZE(reqs); i++) {
                turn(ns_done, &reqs[i]);
                assert_int_equal(reqs[i].result, 0);
                assert_ptr_equal(reqs[i].namespace, reqs[0].namespace);
        }
        settle();
        assert_int_equal(stats().namespaces, 2);
        stop();
}

static void many_namespaces_grow_their_files_up_to_a_bound(void **state)
{
        char name[32];
        int r = 0;
        unsigned i;

        start_limit(256 * MIB);
        for (i = 0; i < STORE_MAX_NAMESPACES + 10 && r == 0; i++) {
                snprintf(name, sizeof(name), "namespace-%u", i);
                r = open_namespace(
                        name,
                        "model=m,revision=0123456789abcdef,dtype=bf16,layout=x,block_tokens=16",
                        false, NULL);
        }
        assert_int_equal(r, -ENOSPC);
        assert_int_equal(i, STORE_MAX_NAMESPACES);
        assert_true(du() <= 256 * MIB);
        stop();
        start_limit(256 * MIB);
        assert_int_equal(stats().namespaces, STORE_MAX_NAMESPACES);
        assert_int_equal(open_namespace("namespace-4000", "", true, NULL), 0);
        stop();
}

/* 4 KiB, another for each. */
static const char *long_fingerprint(unsigned i)
{
        static char text[STORE_MAX_FINGERPRINT + 1];

        memset(text, 'a' + (int)(i % 26), STORE_MAX_FINGERPRINT);
        snprintf(text, 16, "%u", i);
        text[strlen(text)] = '-';
        return text;
}

static void remove_complete(struct store_namespace_remove *req)
{
        req->complete = NULL;
}

static bool remove_done(const void *arg)
{
        return ((const struct store_namespace_remove *)arg)->complete == NULL;
}

static int remove_namespace(uint32_t id)
{
        struct store_namespace_remove req = { .id = id, .complete = remove_complete };

        store_namespace_remove(t.s, &req);
        assert_non_null(req.complete);
        turn(remove_done, &req);
        return req.result;
}

static void a_removed_namespace_stays_removed(void **state)
{
        uint32_t first, id;

        start_limit(64 * MIB);
        first = t.ns;
        assert_int_equal(remove_namespace(first + 10), STORE_MISS);
        put_range(0, 20, 5000);
        assert_int_equal(remove_namespace(first), STORE_BUSY);
        assert_int_equal(count_present(0, 20), 20);
        purge(false);
        assert_int_equal(remove_namespace(first), 0);
        assert_int_equal(remove_namespace(first), STORE_MISS);
        assert_null(store_namespace_get(t.s, first));
        assert_null(store_namespace_find(t.s, 0, "model/a", 7));
        assert_int_equal(submit_put(1, 5000, false), -EINVAL);
        assert_int_equal(open_namespace("model/a", "", true, NULL), STORE_MISS);
        stop();
        start_limit(64 * MIB); /* makes it anew */
        assert_int_not_equal(t.ns, first);
        assert_int_equal(count_present(0, 20), 0);
        t.ns = first;
        assert_int_equal(count_present(0, 20), 0);
        assert_int_equal(open_namespace("model/a", "other=1", false, NULL), STORE_MISMATCH);
        assert_int_equal(open_namespace("model/a", "", true, &id), 0);
        assert_int_equal(remove_namespace(id), 0);
        assert_int_equal(open_namespace("model/a", "other=1", false, &id), 0);
        stop();
}

/* A worker puts the list together. What is removed meanwhile is still in this copy, and not in the
 * next. */
static void the_list_of_namespaces_is_put_together_off_the_loop(void **state)
{
        enum { LONG = 200, REMOVED = 40 };
        struct store_namespace_open open[REMOVED];
        struct store_namespace_remove remove[REMOVED];
        struct kio_stats before, after;
        uint32_t ids[LONG];
        char name[16];

        start_limit(256 * MIB);
        for (unsigned i = 0; i < LONG; i++) {
                snprintf(name, sizeof(name), "long-%u", i);
                assert_int_equal(open_namespace(name, long_fingerprint(i), false, &ids[i]), 0);
        }
        settle();
        kio_get_stats(t.io, &before);
        assert_int_equal(open_namespace("one-more", "x", false, NULL), 0);
        settle();
        kio_get_stats(t.io, &after);
        assert_true(after.bytes[KIO_COPY] - before.bytes[KIO_COPY] >=
                    (uint64_t)LONG * STORE_MAX_FINGERPRINT);

        for (unsigned i = 0; i < REMOVED; i++) {
                snprintf(name, sizeof(name), "new-%u", i);
                open[i] = (struct store_namespace_open){ .name = name,
                                                         .name_length = (uint16_t)strlen(name),
                                                         .fingerprint = "f",
                                                         .fingerprint_length = 1,
                                                         .complete = ns_complete };
                store_namespace_open(t.s, &open[i]);
                store_iterate(t.s);
                kio_flush(t.io); /* the copy is under way */
                remove[i] = (struct store_namespace_remove){ .id = ids[i],
                                                             .complete = remove_complete };
                store_namespace_remove(t.s, &remove[i]);
                turn(ns_done, &open[i]);
                turn(remove_done, &remove[i]);
                assert_int_equal(open[i].result, 0);
                assert_int_equal(remove[i].result, 0);
        }
        stop();
        start_limit(256 * MIB);
        assert_int_equal(stats().namespaces, 2 + LONG);
        for (unsigned i = 0; i < LONG; i++) {
                snprintf(name, sizeof(name), "long-%u", i);
                assert_int_equal(open_namespace(name, "", true, NULL),
                                 i < REMOVED ? STORE_MISS : 0);
                if (i >= REMOVED)
                        assert_int_equal(open_namespace(name, long_fingerprint(i), false, NULL), 0);
        }
        stop();
}

/* Of a request that waits for its answer the namespace stays. */
static void what_is_being_opened_or_written_is_not_removed(void **state)
{
        struct store_namespace_open open = { .name = "busy",
                                             .name_length = 4,
                                             .fingerprint = "f",
                                             .fingerprint_length = 1,
                                             .complete = ns_complete };
        struct store_namespace_remove remove = { .complete = remove_complete };
        uint32_t id;

        start_limit(64 * MIB);
        store_namespace_open(t.s, &open);
        assert_int_equal(open_namespace("busy", "f", false, &id), 0);
        turn(ns_done, &open);

        open.complete = ns_complete;
        store_namespace_open(t.s, &open); /* of one that is there: only the answer is to come */
        remove.id = id;
        store_namespace_remove(t.s, &remove);
        turn(remove_done, &remove);
        assert_int_equal(remove.result, STORE_BUSY);
        turn(ns_done, &open);
        assert_int_equal(open.result, 0);
        assert_int_equal(open.namespace->id, id);

        assert_int_equal(submit_put(7, 5000, false), 0);
        assert_int_equal(remove_namespace(t.ns), STORE_BUSY);
        settle();
        assert_int_equal(count_present(7, 1), 1);
        assert_int_equal(remove_namespace(id), 0);
        stop();
}

/* What a client asked to be opened is refused with a pointer to the namespace that is there: it
 * outlives the removal and the failure of it. */
static void a_refusal_names_a_namespace_that_is_still_memory(void **state)
{
        struct store_namespace_open reqs[8];
        struct store_params params = params_of(64 * MIB);

        t.faults = true;
        params.prewrite = false;
        start(&params);
        settle();
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE,
                                        .kind = FAULT_ERROR,
                                        .error = ENOSPC,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
        for (unsigned i = 0; i < ARRAY_SIZE(reqs); i++) {
                reqs[i] = (struct store_namespace_open){ .name = "refused",
                                                         .name_length = 7,
                                                         .fingerprint = i % 2 ? "2" : "1",
                                                         .fingerprint_length = 1,
                                                         .complete = refusal_complete };
                store_namespace_open(t.s, &reqs[i]);
        }
        for (unsigned i = 0; i < ARRAY_SIZE(reqs); i++) {
                turn(ns_done, &reqs[i]);
                assert_int_equal(reqs[i].result, i % 2 ? STORE_MISMATCH : -ENOSPC);
        }
        assert_int_equal(open_namespace("refused", "", true, NULL), STORE_MISS);
        fault_set(NULL);
        assert_int_equal(open_namespace("refused", "2", false, NULL), 0);
        stop();
}

/* As if ids had been given for ever. */
static void forge_next_id(uint32_t id)
{
        for (unsigned i = 0; i < DISK_NAMESPACE_FILES; i++) {
                const char *names[] = { "namespaces.0", "namespaces.1" };
                int fd = file_of(names[i], O_RDWR);
                struct disk_namespaces *h = calloc(1, MIB);

                assert_true(pread(fd, h, MIB, 0) >= (ssize_t)sizeof(*h));
                h->next_id = id;
                h->crc = kio_crc32c(&h->count, h->bytes - offsetof(struct disk_namespaces, count));
                assert_int_equal(pwrite(fd, h, sizeof(*h), 0), sizeof(*h));
                free(h);
                close(fd);
        }
}

static void an_id_comes_back_without_what_was_under_it(void **state)
{
        uint32_t first, id = 0, others[4], ids[64];
        unsigned rounds = 0;
        char name[16];

        start_limit(64 * MIB);
        first = t.ns;
        put_range(0, 50, 5000);
        stop();
        forge_next_id(UINT32_MAX - 2);
        start_limit(64 * MIB);
        for (unsigned i = 0; i < 2; i++) {
                snprintf(name, sizeof(name), "other-%u", i);
                assert_int_equal(open_namespace(name, "f", false, &others[i]), 0);
                assert_int_equal(others[i], UINT32_MAX - 2 + i);
        }
        /* From here on they are given again; not those that are in use. */
        for (unsigned i = 0; i < ARRAY_SIZE(ids); i++) {
                snprintf(name, sizeof(name), "new-%u", i);
                assert_int_equal(open_namespace(name, "f", false, &ids[i]), 0);
                assert_int_not_equal(ids[i], first);
                assert_true(ids[i] > 0 && ids[i] <= first + ARRAY_SIZE(ids));
        }
        purge(false);
        assert_int_equal(remove_namespace(first), 0);
        stop();
        start_limit(64 * MIB); /* "model/a" has another id by now, or the very same */
        for (; id != first && rounds < 200; rounds++) {
                assert_int_equal(open_namespace("again", "f", false, &id), 0);
                if (id != first)
                        assert_int_equal(remove_namespace(id), 0);
                if (t.ns == first)
                        id = first;
        }
        assert_int_equal(id, first);
        t.ns = first;
        assert_int_equal(count_present(0, 50), 0);
        put_range(100, 10, 5000);
        stop();
        start_limit(64 * MIB);
        t.ns = first;
        assert_int_equal(count_present(0, 50), 0);
        assert_int_equal(count_present(100, 10), 10);
        stop();
}

static void namespaces_come_and_go_and_leave_nothing(void **state)
{
        const bool is_long = getenv("KVCACHE_TEST_LONG");
        unsigned cycles = is_long ? 1000000 : 2000;
        uint64_t used = 0, bytes = 0;
        uint32_t id;

        start_limit(64 * MIB);
        for (unsigned i = 0; i < cycles; i++) {
                char name[32];

                snprintf(name, sizeof(name), "name-%u", i % 3 ? i : 0);
                assert_int_equal(open_namespace(name, "dtype=bf16", false, &id), 0);
                assert_int_equal(remove_namespace(id), 0);
                if (i == 100) {
                        settle(); /* data files are made ahead */
                        used = du();
                        bytes = stats().used_bytes;
                }
        }
        settle();
        assert_int_equal(stats().namespaces, 1);
        assert_int_equal(du(), used);
        assert_int_equal(stats().used_bytes, bytes);
        stop();
        start_limit(64 * MIB);
        assert_int_equal(stats().namespaces, 1);
        stop();
}

/* The store waits until the time for it has come. */
static void retry_writes(void)
{
        while (store_deadline_ns(t.s) && !store_pending(t.s)) {
                uint64_t at = store_deadline_ns(t.s), now = clock_mono_ns();

                if (at > now + UINT64_C(5) * 1000000000)
                        return; /* something else's */
                if (at > now)
                        poll(NULL, 0, (int)((at - now) / 1000000 + 1));
                settle();
        }
}

static bool copies_are_the_same(void)
{
        char *bufs[DISK_NAMESPACE_FILES];
        bool same;

        for (unsigned i = 0; i < DISK_NAMESPACE_FILES; i++) {
                const char *names[] = { "namespaces.0", "namespaces.1" };
                int fd = file_of(names[i], O_RDONLY);

                bufs[i] = calloc(1, 16 * KIB);
                assert_true(pread(fd, bufs[i], 16 * KIB, 0) > 0);
                close(fd);
        }
        same = memcmp(bufs[0], bufs[1], 16 * KIB) == 0;
        free(bufs[0]);
        free(bufs[1]);
        return same;
}

/* Whichever of the two copies could not be written, and whatever the device did of it: nothing but
 * that copy is written next, and it is written without being asked. */
static void a_copy_that_failed_is_the_next_to_be_written(void **state)
{
        for (unsigned nth = 1; nth <= 4; nth++) {
                struct store_params params = params_of(64 * MIB);
                struct store_purge req = { .complete = purge_complete };
                int r;

                params.prewrite = false;
                t.faults = true;
                start(&params);
                put_range(0, 20, 5000);
                settle();
                fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE | 1u << KIO_SYNC,
                                                .kind = FAULT_ERROR,
                                                .error = EIO,
                                                .first = nth });
                req.namespace_id = t.ns;
                store_purge(t.s, &req);
                turn(purge_done, &req);
                r = req.result;
                assert_int_equal(r, nth <= 2 ? -EIO : 0);
                settle();
                assert_int_equal(fault_hits(), 1);
                if (nth == 3)
                        assert_false(copies_are_the_same());
                retry_writes();
                assert_true(copies_are_the_same());
                assert_int_equal(count_present(0, 20), 0);
                fault_set(NULL);
                stop();
        }
}

static void the_same_key_in_two_namespaces_is_two_chunks(void **state)
{
        uint32_t a, b;

        start_limit(64 * MIB);
        a = t.ns;
        assert_int_equal(open_namespace("other", "", false, &b), 0);
        assert_int_equal(put(1, 5000), 0);
        t.ns = b;
        assert_int_equal(get(1, 5000), STORE_MISS);
        assert_int_equal(put(1, 6000), 0);
        t.ns = a;
        assert_int_equal(get(1, 5000), 0);
        assert_int_equal(purge(false), 1);
        t.ns = b;
        assert_int_equal(get(1, 6000), 0);
        assert_int_equal(store_namespace_get(t.s, a)->chunks, 0);
        assert_int_equal(store_namespace_get(t.s, b)->chunks, 1);
        assert_int_equal(store_namespace_get(t.s, b)->bytes, 6000);
        stop();
}

static void the_limit_holds_while_filling_over_and_over(void **state)
{
        static const uint32_t lengths[] = { 4096, 12000, 16384, 65536, 200000 };
        const uint64_t limit = 24 * MIB;
        uint64_t bytes = 0, n = 0;

        start_limit(limit);
        while (bytes < 4 * limit) {
                uint32_t length = lengths[(n / 100) % ARRAY_SIZE(lengths)];

                put_range(n, 20, length);
                assert_true(du() <= limit);
                n += 20;
                bytes += 20 * length;
        }
        assert_true(stats().evictions > 0);
        assert_true(stats().used_bytes <= limit);
        assert_true(du() <= stats().used_bytes);
        assert_true(t.most_used <= limit);
        /* The last ones are there, and what is said to be there is. */
        for (uint64_t i = 0; i < n; i++) {
                uint32_t length = lengths[(i / 100) % ARRAY_SIZE(lengths)];

                if (i + 20 >= n)
                        assert_true(present(i));
                if (present(i))
                        assert_int_equal(get(i, length), 0);
        }
        stop();
        assert_true(du() <= limit);
        start_limit(limit);
        for (uint64_t i = 0; i < n; i++)
                if (present(i))
                        assert_int_equal(get(i, lengths[(i / 100) % ARRAY_SIZE(lengths)]), 0);
        assert_int_equal(stats().crc_failures, 0);
        stop();
}

static void small_limits_lose_little_to_tables(void **state)
{
        const uint64_t all = 18279, limit = all * 16 * KIB;
        const uint32_t length = 16384;
        uint64_t least = all * 973 / 1000;

        start_limit(limit);
        for (uint64_t i = 0; i < all + all / 4; i += 500) {
                put_range(i, 500, length);
                assert_true(du() <= limit);
        }
        if (stats().chunks < least)
                fail_msg("%llu of %llu slots", (unsigned long long)stats().chunks,
                         (unsigned long long)all);
        assert_true(stats().evictions > 0);
        stop();
        assert_true(du() <= limit);
        start_limit(limit);
        assert_true(stats().chunks >= least);
        stop();
}

static void the_coldest_leaves_first(void **state)
{
        uint64_t n;

        start_limit(16 * MIB);
        /* Fill, then touch every second of the first hundred. */
        for (n = 0; stats().evictions == 0; n++)
                assert_int_equal(put(n, 65536), 0);
        assert_false(present(0));
        for (uint64_t i = 1; i < 100; i += 2)
                touch(i);
        for (unsigned i = 0; i < 49; i++)
                assert_int_equal(put(n + i, 65536), 0);
        for (uint64_t i = 1; i < 100; i++)
                assert_int_equal(present(i), i % 2 == 1);
        stop();
}

static void after_a_restart_the_later_of_a_second_leave_first(void **state)
{
        uint64_t n, last;

        start_limit(16 * MIB);
        put_range(0, 10, 65536);
        stop();
        start_limit(16 * MIB);
        for (n = 100; stats().evictions == 0; n++)
                assert_int_equal(put(n, 65536), 0);
        /* Ten puts in a row are within a second, or in two: the first evicted is not the root of
         * them all. */
        for (last = 0; last < 10 && present(last); last++)
                ;
        assert_int_equal(count_present(0, 10), 9);
        assert_true(last > 0);
        stop();
}

static void a_class_takes_the_segment_of_another(void **state)
{
        uint64_t n;

        start_limit(16 * MIB);
        for (n = 0; stats().evictions == 0; n++)
                assert_int_equal(put(n, 16384), 0);
        put_range(100000, 60, 200000);
        assert_true(stats().slab_moves > 0);
        for (uint64_t i = 100050; i < 100060; i++)
                assert_int_equal(get(i, 200000), 0);
        for (uint64_t i = 0; i < n; i++)
                if (present(i))
                        assert_int_equal(get(i, 16384), 0);
        stop();
        start_limit(16 * MIB);
        for (uint64_t i = 100050; i < 100060; i++)
                assert_int_equal(get(i, 200000), 0);
        for (uint64_t i = 0; i < n; i++)
                if (present(i))
                        assert_int_equal(get(i, 16384), 0);
        stop();
}

static void small_chunks_may_fill_a_store_of_large_ones(void **state)
{
        const uint64_t limit = 32 * MIB;

        start_limit(limit);
        put_range(0, 60, 1000000);
        for (uint64_t i = 0; i < 16000; i += 1000) {
                put_range(1000000 + i, 1000, 4096);
                assert_true(du() <= limit);
        }
        /* 4 KiB chunks need a ring of a tenth of the store: it found room for that. */
        assert_true(stats().chunks > 6000);
        assert_int_equal(get(1015999, 4096), 0);
        stop();
        start_limit(limit);
        assert_true(stats().chunks > 6000);
        for (uint64_t i = 1010000; i < 1016000; i++)
                if (present(i))
                        assert_int_equal(get(i, 4096), 0);
        stop();
}

static void a_bound_on_entries_evicts(void **state)
{
        struct store_params params = params_of(64 * MIB);

        params.entries = 100;
        start(&params);
        put_range(0, 300, 4096);
        assert_int_equal(stats().chunks, 100);
        assert_int_equal(count_present(200, 100), 100);
        stop();
        params.entries = 50;
        start(&params);
        assert_int_equal(stats().chunks, 50);
        put_range(1000, 10, 4096);
        assert_int_equal(stats().chunks, 50);
        assert_int_equal(count_present(1000, 10), 10);
        stop();
}

static void when_everything_is_read_nothing_is_evicted(void **state)
{
        static struct store_get gets[DEPTH];
        uint64_t n;
        unsigned reads = 0;
        int r = 0;

        t.faults = true;
        start_limit(8 * MIB);
        for (n = 0; stats().evictions == 0; n++)
                assert_int_equal(put(n, (uint32_t)MIB - 5000), 0);
        settle();
        /* Hold all reads in the device, so that every slot is pinned. */
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_READ, .kind = FAULT_NEVER, .first = 1, .count = FAULT_FOR_EVER });
        for (uint64_t i = 0; i < n; i++)
                if (present(i)) {
                        assert_int_equal(get_into(&gets[reads], i, t.bufs[reads]), 0);
                        reads++;
                }
        kio_flush(t.io);
        assert_true(reads > 3);
        r = submit_put(1000, (uint32_t)MIB - 5000, false);
        assert_int_equal(r, STORE_FULL);
        fault_set(NULL);
        fault_release();
        settle();
        for (unsigned i = 0; i < reads; i++)
                assert_int_equal(gets[i].result, 0);
        assert_int_equal(put(1000, (uint32_t)MIB - 5000), 0);
        assert_int_equal(get(1000, (uint32_t)MIB - 5000), 0);
        stop();
}

/* Where in which file lies the payload of this number? */
static bool find_payload(uint64_t n, uint32_t length, char *ret_name, off_t *ret_offset)
{
        _cleanup_(freep) char *expected = malloc(ROOM);
        DIR *d = opendir(t.dir);
        struct dirent *e;
        bool found = false;

        payload_of(n, expected, length);
        while (!found && (e = readdir(d))) {
                _cleanup_(freep) char *page = malloc(4096);
                int fd;

                if (strncmp(e->d_name, "segment-", 8) != 0)
                        continue;
                fd = file_of(e->d_name, O_RDONLY);
                for (off_t o = 0; !found && pread(fd, page, 4096, o) == 4096; o += 4096)
                        if (memcmp(page, expected, MIN(length, 4096u)) == 0) {
                                strcpy(ret_name, e->d_name);
                                *ret_offset = o;
                                found = true;
                        }
                close(fd);
        }
        closedir(d);
        return found;
}

static void a_flipped_bit_is_a_miss_and_the_chunk_is_gone(void **state)
{
        char name[64];
        off_t offset;

        start_limit(64 * MIB);
        put_range(0, 20, 10000);
        stop();
        assert_true(find_payload(5, 10000, name, &offset));
        flip_byte(name, offset + 9999);
        assert_true(find_payload(6, 10000, name, &offset));
        flip_byte(name, offset + 10000); /* past its end: of no chunk */
        start_limit(64 * MIB);
        assert_true(present(5));
        assert_int_equal(get(5, 10000), STORE_MISS);
        assert_int_equal(stats().crc_rereads, 1);
        assert_int_equal(stats().crc_failures, 1);
        assert_false(present(5));
        for (uint64_t i = 0; i < 20; i++)
                assert_int_equal(get(i, 10000), i == 5 ? STORE_MISS : 0);
        stop();
        start_limit(64 * MIB);
        assert_false(present(5));
        assert_int_equal(put(5, 10000), 0);
        assert_int_equal(get(5, 10000), 0);
        stop();
}

static void a_damaged_table_page_costs_its_own_entries(void **state)
{
        uint64_t there;

        start_limit(64 * MIB);
        for (uint64_t i = 0; i < 64; i++)
                assert_int_equal(put(i, 4096), 0); /* one page each */
        stop();
        flip_byte("table", 20 * 4096 + 130);
        start_limit(64 * MIB);
        assert_int_equal(stats().skipped_pages, 1);
        there = count_present(0, 64);
        assert_true(there >= 63);
        for (uint64_t i = 0; i < 64; i++)
                if (present(i))
                        assert_int_equal(get(i, 4096), 0);
        assert_int_equal(put(1000, 4096), 0);
        stop();
        start_limit(64 * MIB);
        assert_int_equal(count_present(0, 64), there);
        assert_true(present(1000));
        stop();
}

/* A direct read that has a bad page in it fails as a whole, and each that fails may take a device
 * seconds. */
static struct {
        ino_t table;
        off_t bad;
        unsigned reads, failed;
} reads_of;

ssize_t __real_pread64(int fd, void *buf, size_t bytes, off_t offset);
ssize_t __wrap_pread64(int fd, void *buf, size_t bytes, off_t offset);

ssize_t __wrap_pread64(int fd, void *buf, size_t bytes, off_t offset)
{
        struct stat st;
        off_t bad = reads_of.bad;

        if (reads_of.table == 0 || fstat(fd, &st) < 0 || st.st_ino != reads_of.table)
                return __real_pread64(fd, buf, bytes, offset);
        __atomic_add_fetch(&reads_of.reads, 1, __ATOMIC_RELAXED);
        if (offset + (off_t)bytes <= bad || offset >= bad + DISK_PAGE)
                return __real_pread64(fd, buf, bytes, offset);
        __atomic_add_fetch(&reads_of.failed, 1, __ATOMIC_RELAXED);
        errno = EIO;
        return -1;
}

static void a_table_page_that_cannot_be_read_costs_a_few_reads(void **state)
{
        static const char zeros[4 * DISK_PAGE];
        struct stat st;
        int fd;

        start_limit(256 * MIB);
        put_range(0, 200, 5000);
        stop();
        /* A page that is empty, but has been written: others are not read. */
        fd = file_of("table", O_RDWR);
        assert_int_equal(fstat(fd, &st), 0);
        assert_int_equal(pwrite(fd, zeros, sizeof(zeros), st.st_size - (off_t)sizeof(zeros)),
                         sizeof(zeros));
        close(fd);
        /* Late in a file that is read as a whole, in small blocks, and in larger ones. */
        for (unsigned i = 0; i < 4; i++) {
                reads_of.bad = st.st_size - (off_t)(1 + i) * DISK_PAGE;
                reads_of.reads = reads_of.failed = 0;
                reads_of.table = st.st_ino;
                start_limit(256 * MIB);
                reads_of.table = 0;
                assert_in_range(reads_of.failed, 1, 2 * 9 + 2); /* a MiB is 2^8 pages; two looks */
                assert_true(reads_of.reads <= 2 * (unsigned)(st.st_size / DISK_PAGE) + 64);
                assert_int_equal(count_present(0, 200), 200);
                stop();
        }
}

static void a_table_of_garbage_is_an_empty_table(void **state)
{
        _cleanup_(freep) char *garbage = malloc(64 * 4096);
        int fd;

        start_limit(64 * MIB);
        put_range(0, 200, 4096);
        stop();
        payload_of(99, garbage, 64 * 4096);
        fd = file_of("table", O_RDWR);
        assert_int_equal(pwrite(fd, garbage, 64 * 4096, 0), 64 * 4096);
        close(fd);
        start_limit(64 * MIB);
        assert_true(count_present(0, 200) < 200);
        put_range(1000, 500, 4096);
        stop();
        start_limit(64 * MIB);
        assert_int_equal(count_present(1000, 500), 500);
        stop();
}

static void one_copy_of_the_namespaces_is_enough(void **state)
{
        uint32_t id;

        start_limit(64 * MIB);
        id = t.ns;
        put_range(0, 20, 4096);
        stop();
        for (unsigned i = 0; i < 2; i++) {
                char name[] = "namespaces.0";

                name[11] = (char)('0' + i);
                flip_byte(name, 150);
                start_limit(64 * MIB);
                assert_int_equal(t.ns, id);
                assert_int_equal(count_present(0, 20), 20);
                stop();
        }
}

static void without_namespaces_nothing_is_anybodys(void **state)
{
        uint32_t id;

        start_limit(64 * MIB);
        id = t.ns;
        put_range(0, 20, 4096);
        stop();
        flip_byte("namespaces.0", 50);
        flip_byte("namespaces.1", 150);
        start_limit(64 * MIB);
        assert_true(t.ns > id); /* the number is not given to another namespace */
        assert_int_equal(stats().chunks, 0);
        t.ns = id;
        assert_int_equal(count_present(0, 20), 0);
        stop();
}

/* Changes some bytes of some table entries and makes the CRCs right again: what a bug or malice
 * could write. */
static void forge_entries(uint64_t *x, unsigned n)
{
        int sb_fd = file_of("superblock", O_RDONLY), fd = file_of("table", O_RDWR);
        struct disk_superblock sb;

        assert_int_equal(pread(sb_fd, &sb, sizeof(sb), 0), sizeof(sb));
        close(sb_fd);
        for (unsigned i = 0; i < n; i++) {
                struct disk_page page;
                uint32_t p;
                struct disk_entry *e;

                *x = *x * UINT64_C(6364136223846793005) + 1442695040888963407;
                p = (uint32_t)(*x >> 33) % 64;
                assert_int_equal(pread(fd, &page, sizeof(page), (off_t)p * DISK_PAGE),
                                 sizeof(page));
                if (!disk_page_valid(&page, sb.uuid, p))
                        continue;
                e = &page.entries[(*x >> 40) % DISK_PAGE_ENTRIES];
                for (unsigned j = 0; j < 1 + i % 4; j++) {
                        *x = *x * UINT64_C(6364136223846793005) + 1442695040888963407;
                        /* All but the key: an attacker that forges our CRCs can rename a chunk, and
                         * no store could tell. */
                        ((uint8_t *)
                                 e)[sizeof(e->key) + (*x >> 33) % (sizeof(*e) - sizeof(e->key))] =
                                (uint8_t)(*x >> 50) & (i % 2 ? 0xff : 0x03);
                }
                if (i % 5 == 0) {
                        page.safe = (uint32_t)(*x >> 20);
                        page.ring_pages = (uint32_t)(*x >> 30) >> (i % 32);
                        page.run_sequence = *x >> (i % 64);
                }
                if (i % 11 == 0)
                        page.sequence = *x >> (1 + i % 63);
                e->crc = disk_entry_crc(e, sb.uuid);
                page.crc = disk_page_crc(&page);
                assert_int_equal(pwrite(fd, &page, sizeof(page), (off_t)p * DISK_PAGE),
                                 sizeof(page));
        }
        close(fd);
}

static void damage_at_random_gives_misses_and_never_a_wrong_byte(void **state)
{
        static const char *const files[] = { "table", "segment-0000", "segment-0001",
                                             "namespaces.0", "namespaces.1" };
        uint64_t x = 4711, misses = 0, hits = 0;

        for (unsigned round = 0; round < 40; round++) {
                start_limit(12 * MIB);
                for (uint64_t i = 0; i < 150; i++) {
                        uint32_t length = i % 2 ? 5000 : 16384;
                        int r = get(i, length);

                        assert_true(r == 0 || r == STORE_MISS);
                        hits += r == 0;
                        misses += r != 0;
                        if (r != 0)
                                assert_true((r = put(i, length)) == 0 || r == STORE_EXISTS);
                        if (i % 10 == round % 10)
                                drop(i);
                }
                stop();
                assert_true(du() <= 12 * MIB);
                if (round % 2) {
                        forge_entries(&x, 40);
                        continue;
                }
                for (unsigned i = 0; i < 10; i++) {
                        const char *file = files[(x >> 33) % ARRAY_SIZE(files)];

                        x = x * UINT64_C(6364136223846793005) + 1442695040888963407;
                        /* The first 256 KiB: of a table all, of a namespaces file too; and there is
                         * something. */
                        flip_byte(file, (off_t)((x >> 33) %
                                                (strncmp(file, "names", 5) == 0 ? 200 : 250000)));
                }
        }
        assert_true(hits > 1000);
        assert_true(misses > 100);
}

static void expect_refused(int expected, const char *text)
{
        struct store_params params = params_of(64 * MIB);
        char error[512] = "";
        int r = try_open(&params, error);

        assert_int_equal(r, expected);
        if (!strstr(error, text) || !strstr(error, t.dir))
                fail_msg("unexpected text: %s", error);
}

/* Gives `change` each page of the table that is one, and its number; makes its CRCs right again. */
static void change_pages(void (*change)(struct disk_page *pages, uint32_t n))
{
        enum { MOST = 64 };
        static struct disk_page pages[MOST];
        int sb_fd = file_of("superblock", O_RDONLY), fd = file_of("table", O_RDWR);
        struct disk_superblock sb;
        uint32_t n = 0;

        assert_int_equal(pread(sb_fd, &sb, sizeof(sb), 0), sizeof(sb));
        close(sb_fd);
        assert_true(pread(fd, pages, sizeof(pages), 0) > 0);
        while (n < MOST && disk_page_valid(&pages[n], sb.uuid, n))
                n++;
        assert_true(n > 2 && n < MOST);
        change(pages, n);
        for (uint32_t i = 0; i < n; i++) {
                for (unsigned j = 0; j < pages[i].count; j++)
                        pages[i].entries[j].crc = disk_entry_crc(&pages[i].entries[j], sb.uuid);
                pages[i].position = i;
                pages[i].crc = disk_page_crc(&pages[i]);
        }
        assert_int_equal(pwrite(fd, pages, sizeof(pages[0]) * n, 0), sizeof(pages[0]) * n);
        close(fd);
}

static void turn_all_but_the_newest_round(struct disk_page *pages, uint32_t n)
{
        struct disk_page swap;

        for (uint32_t a = 0, b = n - 2; a < b; a++, b--) {
                swap = pages[a];
                pages[a] = pages[b];
                pages[b] = swap;
        }
        pages[n - 1].run_sequence = pages[n - 1].sequence; /* the others are of an earlier run */
}

/* Tombstones come before what they take out. */
static void a_drop_counts_wherever_the_ring_has_it(void **state)
{
        in_killed_process(put_some);
        in_killed_process(drop_and_settle);
        change_pages(turn_all_but_the_newest_round);
        start_limit(64 * MIB);
        for (uint64_t i = 0; i < 300; i++)
                assert_int_equal(get(i, i == 3 ? 20000 : 16384),
                                 i % 3 == 0 && i != 3 ? STORE_MISS : 0);
        stop();
}

static void use_up_sequences(struct disk_page *pages, uint32_t n)
{
        pages[0].entries[0].seq = (UINT64_C(1) << 52) - 1;
}

static void exceed_sequences(struct disk_page *pages, uint32_t n)
{
        pages[0].entries[0].seq = UINT64_C(1) << 52;
}

static void a_sequence_has_52_bits_and_no_more_are_given(void **state)
{
        in_killed_process(put_some);
        change_pages(exceed_sequences);
        start_limit(64 * MIB);
        assert_int_equal(count_present(0, 300), 299);
        stop();
        change_pages(use_up_sequences);
        expect_refused(-EOVERFLOW, "no sequence numbers are left");
}

/* --- how far sequences go --- */

static struct disk_superblock superblock(void)
{
        struct disk_superblock sb;
        int fd = file_of("superblock", O_RDONLY);

        assert_int_equal(pread(fd, &sb, sizeof(sb), 0), sizeof(sb));
        close(fd);
        return sb;
}

static void table_is_bad_at(off_t offset)
{
        struct stat st;
        int fd = file_of("table", O_RDONLY);

        assert_int_equal(fstat(fd, &st), 0);
        close(fd);
        reads_of.table = st.st_ino;
        reads_of.bad = offset;
}

static void start_only(void)
{
        struct store_params params = params_of(64 * MIB);
        char error[512] = "";

        params.prewrite = false;
        if (try_open(&params, error) < 0)
                fail_msg("open: %s", error);
}

/* As a kill leaves it: what the superblock said at startup. */
static void stop_as_killed(const struct disk_superblock *sb)
{
        int fd;

        stop();
        fd = file_of("superblock", O_RDWR);
        for (unsigned i = 0; i < DISK_SUPERBLOCKS; i++)
                assert_int_equal(pwrite(fd, sb, sizeof(*sb), i * DISK_PAGE), sizeof(*sb));
        close(fd);
}

/* However often a page cannot be read and however the daemon ends, recovery takes a bounded number
 * of sequences: 2^32 of them fit, where 4,096 did. */
static void starts_with_a_damaged_table_do_not_use_up_sequences(void **state)
{
        const unsigned starts = 100;
        struct disk_superblock first, sb;

        start_limit(64 * MIB);
        put_range(0, 300, 5000);
        stop();
        first = superblock();
        assert_true(first.seq_ceiling > 300 && first.seq_ceiling < 10000);
        table_is_bad_at(DISK_PAGE);
        for (unsigned i = 0; i < starts; i++) {
                start_only();
                sb = superblock();
                if (i % 2)
                        stop_as_killed(&sb);
                else
                        stop();
                assert_true(reads_of.failed > 0);
        }
        reads_of.table = 0;
        sb = superblock();
        assert_true(sb.seq_ceiling > first.seq_ceiling);
        assert_true((sb.seq_ceiling - first.seq_ceiling) / starts <= UINT64_C(1) << 20);
        assert_true((sb.page_ceiling - first.page_ceiling) / starts <= UINT64_C(1) << 20);
        /* With all of it readable nothing is left out. */
        start_limit(64 * MIB);
        stop();
        assert_true(superblock().seq_ceiling <= sb.seq_ceiling + 10);
}

static off_t newest_page(void)
{
        struct disk_page page;
        uint64_t sequence = 0;
        off_t newest = 0;
        int fd = file_of("table", O_RDONLY);

        for (off_t i = 0; pread(fd, &page, sizeof(page), i * DISK_PAGE) == sizeof(page); i++)
                if (page.magic == DISK_PAGE_MAGIC && page.sequence > sequence) {
                        sequence = page.sequence;
                        newest = i;
                }
        close(fd);
        return newest;
}

/* What an unreadable page may say is below what is given from then on: a purge covers it. */
static void what_could_not_be_read_is_older_than_a_later_purge(void **state)
{
        struct disk_superblock sb;

        start_limit(64 * MIB);
        put_range(0, 300, 5000);
        sb = superblock();
        stop_as_killed(&sb);
        table_is_bad_at(newest_page() * DISK_PAGE);
        start_limit(64 * MIB);
        assert_true(reads_of.failed > 0);
        assert_true(purge(true) <= 300);
        stop();
        reads_of.table = 0;
        start_limit(64 * MIB);
        assert_int_equal(count_present(0, 300), 0);
        stop();
}

static void rewrite_superblocks(void (*change)(struct disk_superblock *sb), unsigned first,
                                unsigned n);

static void as_an_older_daemon(struct disk_superblock *sb)
{
        sb->generation++;
}

static void what_an_older_daemon_left_in_the_superblock_is_not_believed(void **state)
{
        start_limit(64 * MIB);
        put_range(0, 300, 5000);
        stop();
        rewrite_superblocks(as_an_older_daemon, 0, DISK_SUPERBLOCKS);
        table_is_bad_at(DISK_PAGE);
        start_only();
        reads_of.table = 0;
        assert_true(superblock().seq_ceiling > UINT64_C(1) << 40);
        stop();
}

/* The file whose syncs fail; 0: none do. */
static struct {
        ino_t file;
        unsigned failed;
} syncs_of;

int __real_fdatasync(int fd);
int __wrap_fdatasync(int fd);

int __wrap_fdatasync(int fd)
{
        ino_t file = __atomic_load_n(&syncs_of.file, __ATOMIC_RELAXED);
        struct stat st;

        if (file == 0 || fstat(fd, &st) < 0 || st.st_ino != file)
                return __real_fdatasync(fd);
        __atomic_add_fetch(&syncs_of.failed, 1, __ATOMIC_RELAXED);
        errno = EIO;
        return -1;
}

static void start_with_reserve(uint64_t sequences)
{
        struct store_params params = params_of(64 * MIB);

        params.prewrite = false;
        params.sequence_reserve = sequences;
        start(&params);
}

static void a_put_that_is_refused_takes_no_sequence(void **state)
{
        uint64_t before;

        start_limit(64 * MIB);
        put_range(0, 10, 5000);
        stop();
        before = superblock().seq_ceiling; /* exact after a clean stop */
        start_limit(64 * MIB);
        store_set_tenant_limit(t.s, 0, 1);
        for (uint64_t i = 0; i < 100; i++)
                assert_int_equal(submit_put(100 + i, 5000, false), STORE_TOO_LARGE);
        stop();
        assert_int_equal(superblock().seq_ceiling, before);
}

/* Each put takes a sequence: without new ceilings the volume would be bypassed on the way. */
static void ceilings_of_sequences_are_raised_while_it_runs(void **state)
{
        enum { RESERVED = 256, EACH = 8, PUTS = 80 * EACH };
        struct disk_superblock sb;

        start_with_reserve(RESERVED);
        assert_true(superblock().seq_ceiling <= 2 * RESERVED);
        for (unsigned i = 0; i < PUTS; i += EACH)
                put_range(i, EACH, 500);
        settle();
        sb = superblock();
        assert_true(sb.seq_ceiling > PUTS && sb.seq_ceiling <= PUTS + 2 * RESERVED);
        assert_true(sb.page_ceiling > PUTS / EACH);
        assert_false(stats().bypassed);
        /* A start that does not see all of them goes on above them: a purge covers what it missed.
         */
        stop_as_killed(&sb);
        table_is_bad_at(10 * DISK_PAGE);
        start_with_reserve(RESERVED);
        assert_true(reads_of.failed > 0);
        assert_true(purge(true) <= PUTS);
        stop();
        reads_of.table = 0;
        start_limit(64 * MIB);
        assert_int_equal(count_present(0, PUTS), 0);
        stop();
}

static void a_volume_that_cannot_raise_its_ceilings_is_bypassed_before_them(void **state)
{
        enum { RESERVED = 256 };
        struct stat st;
        uint64_t n = 0, ceiling, page_ceiling;
        int r, fd;

        start_with_reserve(RESERVED);
        ceiling = superblock().seq_ceiling;
        page_ceiling = superblock().page_ceiling;
        fd = file_of("superblock", O_RDONLY);
        assert_int_equal(fstat(fd, &st), 0);
        close(fd);
        syncs_of.failed = 0;
        __atomic_store_n(&syncs_of.file, st.st_ino, __ATOMIC_RELAXED);
        while ((r = put(n, 500)) == 0)
                assert_true(++n < MIN(ceiling, page_ceiling));
        assert_int_equal(r, STORE_BYPASSED);
        assert_true(n > RESERVED / 4 && stats().bypassed);
        assert_in_range(syncs_of.failed, 1, 16); /* it does not try again and again */
        settle();
        __atomic_store_n(&syncs_of.file, 0, __ATOMIC_RELAXED);
        stop();
        start_limit(64 * MIB);
        assert_int_equal(count_present(0, n), n);
        assert_int_equal(put(n, 500), 0);
        stop();
}

/* A table that claims more than a store of this limit can have. */
static void a_table_that_is_too_large_is_cut_and_not_allocated(void **state)
{
        struct stat st;
        int fd;

        start_limit(64 * MIB);
        put_range(0, 100, 5000);
        stop();
        fd = file_of("table", O_RDWR);
        assert_int_equal(ftruncate(fd, (off_t)1 << 40), 0);
        start_limit(64 * MIB);
        assert_int_equal(count_present(0, 100), 100);
        assert_int_equal(fstat(fd, &st), 0);
        close(fd);
        assert_true((uint64_t)st.st_size <= 64 * MIB / 8);
        assert_true(du() <= 64 * MIB);
        stop();
}

static void rewrite_superblocks(void (*change)(struct disk_superblock *sb), unsigned first,
                                unsigned n)
{
        int fd = file_of("superblock", O_RDWR);

        for (unsigned i = first; i < first + n; i++) {
                struct disk_superblock sb;

                assert_int_equal(pread(fd, &sb, sizeof(sb), i * DISK_PAGE), sizeof(sb));
                change(&sb);
                sb.crc = disk_superblock_crc(&sb);
                assert_int_equal(pwrite(fd, &sb, sizeof(sb), i * DISK_PAGE), sizeof(sb));
        }
        close(fd);
}

static void set_incompat(struct disk_superblock *sb)
{
        sb->incompat = UINT64_C(1) << 40;
}

static void set_ro_compat(struct disk_superblock *sb)
{
        sb->incompat = 0;
        sb->ro_compat = 4;
}

static void set_compat(struct disk_superblock *sb)
{
        sb->ro_compat = 0;
        sb->compat = 4;
}

static void set_version(struct disk_superblock *sb)
{
        sb->version = 2;
}

static void an_unknown_format_is_refused(void **state)
{
        start_limit(64 * MIB);
        put_range(0, 20, 4096);
        stop();
        rewrite_superblocks(set_incompat, 0, 4);
        expect_refused(-EPROTO, "incompat 0x10000000000");
        rewrite_superblocks(set_ro_compat, 0, 4);
        expect_refused(-EPROTO, "ro_compat 0x4");
        rewrite_superblocks(set_compat, 0, 4);
        start_limit(64 * MIB);
        assert_int_equal(count_present(0, 20), 20);
        stop();
        rewrite_superblocks(set_version, 0, 4);
        expect_refused(-EPROTO, "version 2");
}

static void one_superblock_of_four_is_enough(void **state)
{
        for (unsigned keep = 0; keep < 4; keep++) {
                start_limit(64 * MIB);
                assert_int_equal(count_present(0, 20), keep == 0 ? 0 : 20);
                if (keep == 0)
                        put_range(0, 20, 4096);
                stop();
                for (unsigned i = 0; i < 4; i++)
                        if (i != keep)
                                flip_byte("superblock", i * 4096 + 100 * i);
        }
        start_limit(64 * MIB);
        assert_int_equal(count_present(0, 20), 20);
        stop();
        for (unsigned i = 0; i < 4; i++)
                flip_byte("superblock", i * 4096 + 1000);
        expect_refused(-EPROTO, "superblock");
}

static void a_foreign_directory_is_refused_and_untouched(void **state)
{
        char path[PATH_MAX + 64];

        close(file_of("holiday.jpg", O_CREAT | O_WRONLY));
        expect_refused(-EPROTO, "not a kvcache store and not empty");
        snprintf(path, sizeof(path), "%s/LOCK", t.dir);
        assert_int_equal(access(path, F_OK), -1);
        snprintf(path, sizeof(path), "%s/holiday.jpg", t.dir);
        unlink(path);
        close(file_of("segment-0000", O_CREAT | O_WRONLY));
        expect_refused(-EPROTO, "superblock");
        snprintf(path, sizeof(path), "%s/segment-0000", t.dir);
        unlink(path);
        /* What a crash leaves of a store that was being made is no hindrance. */
        close(file_of("superblock.new", O_CREAT | O_WRONLY));
        start_limit(64 * MIB);
        stop();
}

static void a_directory_is_made_with_its_parents(void **state)
{
        char root[PATH_MAX];
        struct stat st;

        strcpy(root, t.dir);
        strcat(t.dir, "/a/b");
        start_limit(64 * MIB);
        assert_int_equal(stat(t.dir, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0700);
        stop();
        remove_dir();
        t.dir[strlen(t.dir) - 2] = '\0';
        remove_dir();
        strcpy(t.dir, root);
}

static void a_second_opener_is_refused(void **state)
{
        struct store_params params = params_of(64 * MIB);
        struct store *second;
        char error[512] = "";

        start_limit(64 * MIB);
        params.lock_wait_ms = 1;
        assert_int_equal(store_prepare(&second, &params, error), -EBUSY);
        assert_non_null(strstr(error, "another kvcache-daemon"));
        stop();
}

static void an_opener_waits_for_the_lock(void **state)
{
        struct store_params params = params_of(64 * MIB);
        char error[512] = "";
        int pipes[2], back[2], status;
        char c = 0;
        pid_t pid;

        start_limit(64 * MIB);
        stop();
        assert_int_equal(pipe2(pipes, O_CLOEXEC) | pipe2(back, O_CLOEXEC), 0);
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                struct store *s;

                if (store_prepare(&s, &params, error) < 0)
                        _exit(1);
                /* "x": it has the lock; then it waits until the parent has been refused once. */
                if (write(pipes[1], "x", 1) != 1 || read(back[0], &c, 1) != 1)
                        _exit(2);
                /* What follows is a race that either outcome of is right: the parent finds the lock
                 * free, or waits. */
                _exit(0);
        }
        assert_int_equal(read(pipes[0], &c, 1), 1);
        params.lock_wait_ms = 1;
        assert_int_equal(store_prepare(&t.s, &params, error), -EBUSY);
        assert_int_equal(write(back[1], "x", 1), 1);
        params.lock_wait_ms = 30000;
        start(&params);
        stop();
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        for (unsigned i = 0; i < 2; i++) {
                close(pipes[i]);
                close(back[i]);
        }
}

static void bad_parameters_are_refused(void **state)
{
        const char *two[] = { t.dir, t.dir };
        struct store_params params = params_of(1 * MIB);
        char error[512] = "";
        struct store *s;

        assert_int_equal(store_prepare(&s, &params, error), -EINVAL);
        assert_non_null(strstr(error, "store.limit"));
        params = params_of(64 * MIB);
        params.paths = two;
        params.n_paths = 2;
        assert_int_equal(store_prepare(&s, &params, error), -EINVAL);
        assert_non_null(strstr(error, "the same directory"));
        params.n_paths = STORE_MAX_VOLUMES + 1;
        assert_int_equal(store_prepare(&s, &params, error), -EINVAL);
        assert_non_null(strstr(error, "at most"));
        params = params_of(64 * MIB);
        params.policy = "belady";
        assert_int_equal(store_prepare(&s, &params, error), -EINVAL);
}

static void the_smallest_store_works(void **state)
{
        start_limit(4 * MIB);
        put_range(0, 2000, 5000);
        assert_true(stats().chunks > 200);
        assert_true(du() <= 4 * MIB);
        assert_int_equal(get(1999, 5000), 0);
        stop();
        start_limit(4 * MIB);
        assert_int_equal(get(1999, 5000), 0);
        stop();
}

static void a_lowered_limit_is_enforced_at_start_and_a_raised_one_used(void **state)
{
        uint64_t all, few;

        start_limit(64 * MIB);
        put_range(0, 3500, 16384);
        all = stats().chunks;
        assert_int_equal(all, 3500);
        assert_int_equal(get(3499, 16384), 0);
        stop();

        start_limit(20 * MIB);
        assert_true(du() <= 20 * MIB);
        few = stats().chunks;
        assert_true(few < 1250 && few > 900);
        for (uint64_t i = 0; i < 3500; i++)
                if (present(i))
                        assert_int_equal(get(i, 16384), 0);
        put_range(10000, 500, 16384);
        assert_true(du() <= 20 * MIB);
        assert_int_equal(count_present(10000, 500), 500);
        stop();

        start_limit(96 * MIB);
        put_range(20000, 4500, 16384);
        assert_int_equal(count_present(20000, 4500), 4500);
        assert_true(stats().chunks > 4500 + 900);
        assert_true(du() <= 96 * MIB);
        stop();
        start_limit(96 * MIB);
        assert_int_equal(count_present(20000, 4500), 4500);
        for (uint64_t i = 20000; i < 24500; i += 50)
                assert_int_equal(get(i, 16384), 0);
        stop();
}

static void check_segments_max(void)
{
        struct store_stats s = stats();

        assert_true(s.segments <= s.segments_max);
        assert_true(s.segments_max <= s.limit / s.segment_bytes + s.segments);
}

/* The last data file takes what a limit leaves, and stays as small when the limit is raised: there
 * are more of them than the limit has whole ones. */
static void there_are_never_more_data_files_than_there_may_be(void **state)
{
        bool more_than_whole_ones = false;
        struct store_stats s;

        start_limit(64 * MIB);
        check_segments_max();
        put_range(0, 4000, 16384);
        check_segments_max();
        for (uint64_t i = 1; i <= 6; i++) {
                stop();
                start_limit(64 * MIB + i * MIB / 3);
                check_segments_max();
                put_range(10000 * i, 4000, 16384);
                check_segments_max();
                s = stats();
                more_than_whole_ones =
                        more_than_whole_ones || s.segments > s.limit / s.segment_bytes + 1;
        }
        /* What is full has all that it can have, but for a rest that is too small for a slot. */
        assert_in_range(s.segments_max - s.segments, 0, 1);
        assert_true(more_than_whole_ones);
        stop();
}

static void a_lowered_limit_makes_a_large_ring_smaller(void **state)
{
        uint64_t pages;

        start_limit(64 * MIB);
        put_range(0, 12000, 4096);
        settle(); /* the ring grows behind the puts */
        pages = stats().table_pages;
        assert_true(pages > 1000);
        stop();
        start_limit(8 * MIB);
        assert_true(stats().table_pages < pages / 4);
        assert_true(du() <= 8 * MIB);
        assert_true(stats().chunks > 800);
        for (uint64_t i = 0; i < 12000; i++)
                if (present(i))
                        assert_int_equal(get(i, 4096), 0);
        put_range(20000, 3000, 4096);
        assert_int_equal(get(22999, 4096), 0);
        stop();
        start_limit(8 * MIB);
        assert_int_equal(get(22999, 4096), 0);
        stop();
}

static void a_little_too_much_costs_a_little(void **state)
{
        uint64_t all;

        start_limit(16 * MIB);
        put_range(0, 1200, 16384); /* it is full */
        all = stats().chunks;
        assert_true(all > 850 && all < 1200);
        stop();
        start_limit(16 * MIB - 32 * 1024);
        assert_true(du() <= 16 * MIB - 32 * 1024);
        assert_true(stats().chunks < all && stats().chunks >= all - 4);
        for (uint64_t i = 0; i < 1200; i++)
                if (present(i))
                        assert_int_equal(get(i, 16384), 0);
        put_range(2000, 1200, 16384);
        assert_true(du() <= 16 * MIB - 32 * 1024);
        stop();
}

static void a_part_of_a_page_at_the_end_of_a_data_file_costs_nothing(void **state)
{
        char path[PATH_MAX + 64];
        struct stat st;
        uint64_t all;

        start_limit(16 * MIB);
        put_range(0, 1200, 16384);
        all = stats().chunks;
        stop();
        /* As a power loss may leave it: of the size that was not synced, a part. */
        snprintf(path, sizeof(path), "%s/segment-0000", t.dir);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(truncate(path, st.st_size + 512), 0);
        start_limit(16 * MIB);
        assert_int_equal(stats().chunks, all);
        assert_true(du() <= 16 * MIB);
        stop();
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_size % 4096, 0);
}

static void a_missing_segment_costs_its_own_chunks(void **state)
{
        char path[PATH_MAX + 64];
        uint64_t there;

        start_limit(32 * MIB);
        put_range(0, 500, 16384);
        stop();
        snprintf(path, sizeof(path), "%s/segment-0002", t.dir);
        assert_int_equal(unlink(path), 0);
        start_limit(32 * MIB);
        there = count_present(0, 500);
        assert_true(there >= 500 - 64 && there < 500);
        for (uint64_t i = 0; i < 500; i++)
                if (present(i))
                        assert_int_equal(get(i, 16384), 0);
        put_range(1000, 2000, 16384);
        assert_true(du() <= 32 * MIB);
        assert_int_equal(get(2999, 16384), 0);
        stop();
        start_limit(32 * MIB);
        assert_int_equal(get(2999, 16384), 0);
        stop();
}

/* --- writing ahead --- */

/* Lets it, until it has nothing left to do. */
static void prewrite_all(void)
{
        for (;;) {
                uint64_t deadline, now;

                turn_once();
                deadline = store_deadline_ns(t.s);
                now = clock_mono_ns();
                if (kio_pending(t.io) > 0)
                        wait_io();
                else if (deadline > now)
                        poll(NULL, 0, (int)((deadline - now) / 1000000) + 1);
                else if (deadline == 0)
                        return;
        }
}

static void a_store_that_is_left_alone_writes_a_third_of_its_limit_ahead(void **state)
{
        start_limit(48 * MIB);
        prewrite_all();
        assert_in_range(stats().prewrite_bytes_written, 16 * MIB, 17 * MIB);
        for (unsigned i = 0; i < 8; i++)
                assert_int_equal(put(i, (uint32_t)MIB), 0);
        prewrite_all();
        assert_in_range(stats().prewrite_bytes_written, 24 * MIB, 25 * MIB);
        stop();
}

static void nothing_is_written_ahead_beside_a_put(void **state)
{
        uint64_t before, until;

        t.faults = true;
        start_limit(48 * MIB);
        prewrite_all();
        before = stats().prewrite_bytes_written;
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_NEVER, .first = 1, .count = 1 });
        assert_int_equal(submit_put(1, (uint32_t)MIB, false), 0);
        until = clock_mono_ns() + 50 * 1000000;
        while (clock_mono_ns() < until) {
                turn_once();
                assert_int_equal(store_deadline_ns(t.s), 0);
                poll(NULL, 0, 1);
        }
        assert_int_equal(fault_hits(), 1);
        assert_int_equal(stats().prewrite_bytes_written, before);
        fault_set(NULL);
        fault_release();
        turn(puts_none, NULL);
        assert_int_equal(last_result, 0);
        prewrite_all();
        assert_int_equal(stats().prewrite_bytes_written, before + MIB);
        stop();
        t.faults = false;
}

static void a_durable_put_says_what_the_file_system_can_promise(void **state)
{
        static struct put p;
        int expected = strcmp(t.root, "/dev/shm") == 0 ? STORE_NOT_DURABLE : 0;
        uint64_t syncs;

        start_limit(64 * MIB);
        assert_int_equal(put_durable(1, 5000), expected);
        assert_int_equal(get(1, 5000), 0);
        for (uint64_t i = 100; i < 100 + DEPTH; i++)
                assert_int_equal(submit_put(i, 5000, true), 0);
        turn(puts_none, NULL);
        assert_int_equal(last_result, expected);
        assert_int_equal(put(2, 5000), 0);

        /* A sync of what is there; then another, that has nothing to do. */
        for (unsigned i = 0; i < 2; i++) {
                settle();
                syncs = stats().syncs;
                p.req.complete = put_complete;
                p.busy = true;
                puts_busy++;
                store_sync(t.s, &p.req);
                assert_true(p.busy);
                turn(puts_none, NULL);
                assert_int_equal(last_result, expected);
                if (expected == 0)
                        assert_int_equal(stats().syncs > syncs, i == 0);
        }
        stop();
}

static struct disk_superblock superblock_of_store(void)
{
        struct disk_superblock sb;
        int fd = file_of("superblock", O_RDONLY);

        assert_int_equal(pread(fd, &sb, sizeof(sb), 0), sizeof(sb));
        close(fd);
        return sb;
}

/* The syncs of the table, or of other files. */
static struct {
        bool of_table;
        unsigned from; /* the first one that fails; 0: none does */
        bool never;    /* it is held, rather than failing */
        atomic_uint seen;
} syncs;

/* Any thread. */
static bool choose_sync(const struct kio_request *req, struct fault_plan *plan)
{
        char link[32], file[512];
        ssize_t n;

        if (req->op != KIO_SYNC)
                return false;
        snprintf(link, sizeof(link), "/proc/self/fd/%d", req->fd);
        n = readlink(link, file, sizeof(file) - 1);
        file[MAX(n, (ssize_t)0)] = '\0';
        if (syncs.of_table != (n > 6 && strcmp(file + n - 6, "/table") == 0) ||
            ++syncs.seen != syncs.from)
                return false;
        plan->kind = syncs.never ? FAULT_NEVER : FAULT_ERROR;
        plan->error = EIO;
        return true;
}

static void watch_syncs(bool of_table, unsigned from, bool never)
{
        syncs.of_table = of_table;
        syncs.from = from;
        syncs.never = never;
        syncs.seen = 0;
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_SYNC, .choose = choose_sync });
}

static int sync_of(bool of_one, struct store_ref ref)
{
        static struct put p;

        p.req = (struct store_put){ .complete = put_complete, .of_one = of_one, .ref = ref };
        p.busy = true;
        puts_busy++;
        store_sync(t.s, &p.req);
        turn(puts_none, NULL);
        return last_result;
}

static int sync_of_chunk(uint64_t i)
{
        struct key k = key_of(i);
        struct store_ref ref;

        assert_int_equal(store_find(t.s, t.ns, &k, store_hash(t.s, t.ns, &k), &ref, NULL), 0);
        return sync_of(true, ref);
}

/* The kernel may have dropped what was to be synced, and says so once. */
static void what_a_failed_sync_left_behind_never_becomes_durable(void **state)
{
        if (strcmp(t.root, "/dev/shm") == 0)
                skip();
        t.faults = true;
        start_limit(64 * MIB);
        assert_int_equal(put(1, 5000), 0);
        watch_syncs(false, 1, false);
        assert_int_equal(put_durable(2, 5000), STORE_NOT_DURABLE);
        fault_set(NULL);
        assert_int_equal(put(3, 5000), 0);
        settle();
        stop();
        for (unsigned i = 0; i < 3; i++) {
                start_limit(64 * MIB);
                assert_int_equal(sync_of(false, STORE_REF_NONE), STORE_NOT_DURABLE);
                for (uint64_t k = 1; k <= 3; k++)
                        assert_int_equal(sync_of_chunk(k), STORE_NOT_DURABLE);
                assert_int_equal(put(10 + i, 5000), 0);
                assert_int_equal(sync_of_chunk(10), 0);
                assert_int_equal(sync_of_chunk(10 + i), 0);
                assert_int_equal(put_durable(20 + i, 5000), 0);
                stop();
        }
        start_limit(64 * MIB);
        for (uint64_t k = 1; k <= 3; k++)
                assert_int_equal(drop(k), 0);
        stop();
        assert_true(superblock_of_store().doubt_seq > 0);
        start_limit(64 * MIB);
        assert_int_equal(superblock_of_store().doubt_seq, 0);
        assert_int_equal(sync_of(false, STORE_REF_NONE), 0);
        stop();
}

static void a_failed_sync_is_never_believed_again(void **state)
{
        if (strcmp(t.root, "/dev/shm") == 0)
                skip();
        t.faults = true;
        start_limit(64 * MIB);
        assert_int_equal(put_durable(1, 5000), 0);
        watch_syncs(false, 1, false);
        assert_int_equal(put_durable(2, 5000), STORE_NOT_DURABLE);
        fault_set(NULL);
        assert_int_equal(put_durable(3, 5000), STORE_NOT_DURABLE);
        assert_int_equal(stats().sync_errors, 1);
        assert_false(stats().bypassed);
        assert_int_equal(get(2, 5000), 0);
        put_range(100, 5000, 4096);
        settle();
        assert_int_equal(superblock_of_store().unsynced, 1);
        stop();
        assert_int_equal(superblock_of_store().unsynced, 1);
        start_limit(64 * MIB);
        assert_false(stats().clean_start);
        assert_int_equal(superblock_of_store().unsynced, 0);
        assert_int_equal(get(3, 5000), 0);
        assert_int_equal(put_durable(4, 5000), 0);
        stop();
}

static void read_table(void *buf, size_t bytes)
{
        int fd = file_of("table", O_RDONLY);

        memset(buf, 0, bytes);
        assert_true(pread(fd, buf, bytes, 0) > 0);
        close(fd);
}

/* The pages that it was to cover may never reach the disk. Nothing overwrites what they stand for.
 */
static void a_failed_sync_of_the_table_bypasses_the_path(void **state)
{
        static char before[64 * 4096], after[64 * 4096];

        if (strcmp(t.root, "/dev/shm") == 0)
                skip();
        t.faults = true;
        start_limit(64 * MIB);
        assert_int_equal(put_durable(1, 5000), 0);
        watch_syncs(true, 1, false);
        assert_int_equal(put_durable(2, 5000), STORE_NOT_DURABLE);
        fault_set(NULL);
        assert_true(stats().bypassed);
        assert_int_equal(stats().sync_errors, 1);
        settle();
        read_table(before, sizeof(before));
        assert_int_equal(put(3, 5000), STORE_BYPASSED);
        settle();
        read_table(after, sizeof(after));
        assert_memory_equal(before, after, sizeof(before));
        assert_int_equal(superblock_of_store().unsynced, 1);
        stop();
        start_limit(64 * MIB);
        assert_false(stats().clean_start);
        assert_int_equal(get(1, 5000), 0);
        assert_int_equal(put_durable(4, 5000), 0);
        stop();
}

/* A chunk of each size makes the ring grow. */
static void a_failed_sync_of_a_growing_ring_is_one_as_well(void **state)
{
        unsigned not_grown = 0;

        if (strcmp(t.root, "/dev/shm") == 0)
                skip();
        t.faults = true;
        for (unsigned i = 0; i < 400 && not_grown == 0; i++) {
                start_limit(64 * MIB);
                watch_syncs(true, 1 + i % 10, false);
                for (uint32_t pages = 1; pages <= 15; pages++) {
                        int r = put(pages, pages * 4096);

                        assert_true(r == 0 || r == STORE_BYPASSED);
                }
                settle();
                /* It was this one's sync; others come before, now more, now fewer. */
                if (stats().bypassed && stats().table_pages == 64) {
                        not_grown++;
                        assert_int_equal(stats().sync_errors, 1);
                        assert_int_equal(put_durable(100, 5000), STORE_BYPASSED);
                }
                fault_set(NULL);
                stop();
                remove_files();
        }
        assert_true(not_grown > 0);
}

static void a_failed_payload_write_stores_nothing(void **state)
{
        struct store_params params = params_of(64 * MIB);

        params.prewrite = false;
        t.faults = true;
        start(&params);
        assert_int_equal(put(1, 5000), 0);
        settle();
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_ERROR, .error = EIO, .first = 1 });
        assert_int_equal(put(2, 5000), -EIO);
        fault_set(NULL);
        assert_false(present(2));
        assert_int_equal(stats().write_errors, 1);
        assert_int_equal(put(2, 5000), 0);
        assert_int_equal(get(2, 5000), 0);
        assert_false(stats().bypassed);
        stop();
}

/* --- from tenant to tenant --- */

static void become(uint16_t tenant)
{
        t.tenant = tenant;
        assert_int_equal(open_namespace("model/a", "dtype=bf16", false, &t.ns), 0);
}

/* Does the chunk's begin lie in any data file? */
static bool is_in_some_file(uint64_t n)
{
        _cleanup_(freep) char *buf = malloc(MIB);
        char payload[64];
        DIR *d = opendir(t.dir);
        struct dirent *e;
        bool found = false;

        assert_true(buf && d);
        payload_of(n, payload, sizeof(payload));
        while ((e = readdir(d))) {
                ssize_t bytes;
                int fd;

                if (strncmp(e->d_name, "segment-", 8) != 0)
                        continue;
                fd = openat(dirfd(d), e->d_name, O_RDONLY | O_CLOEXEC);
                assert_true(fd >= 0);
                while ((bytes = read(fd, buf, MIB)) > 0) /* chunks begin on pages */
                        for (ssize_t at = 0; at < bytes; at += 4096)
                                found = found || memcmp(buf + at, payload, sizeof(payload)) == 0;
                close(fd);
        }
        closedir(d);
        return found;
}

/* A store that tenant 1 has filled, and in which tenant 2 has a namespace. */
static void start_filled_by_another(void)
{
        struct store_params params = params_of(8 * MIB);

        params.prewrite = false;
        t.faults = true;
        start(&params);
        become(1);
        for (uint64_t n = 1000; stats().evictions == 0; n += 8)
                put_range(n, 8, 20000);
        become(2);
        settle();
}

static bool all_but_four(const void *arg)
{
        return puts_busy == 4;
}

/* One whose share is taken by what is being written. */
static void a_tenant_without_room_keeps_no_other_waiting(void **state)
{
        struct store_params params = params_of(64 * MIB);
        uint32_t first, second;
        uint64_t last = 10;
        int r;

        params.prewrite = false;
        t.faults = true;
        start(&params);
        become(2);
        become(1);
        first = t.ns;
        store_set_tenant_limit(t.s, 1, 3 * 64 * KIB);
        assert_int_equal(put(100, 64 * KIB), 0); /* it has a segment */
        assert_int_equal(drop(100), 0);
        settle();
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_NEVER, .first = 1, .count = FAULT_FOR_EVER });
        for (uint64_t n = 0; n < 3; n++) { /* one by one, so that they are not joined */
                assert_int_equal(submit_put(n, 64 * KIB, false), 0);
                while (fault_hits() <= n)
                        turn_once();
        }
        fault_set(NULL);
        become(2);
        second = t.ns;
        do { /* until one waits for a segment, so that the other tenant's waits behind it */
                t.tenant = 2;
                t.ns = second;
                assert_int_equal(submit_put(last++, MIB, false), 0);
                t.tenant = 1;
                t.ns = first;
                r = submit_put(3, 64 * KIB, false);
        } while (r == STORE_FULL && last < 24);
        assert_int_equal(r, 0);
        t.tenant = 2;
        t.ns = second;
        for (unsigned n = 0; n < 3; n++)
                assert_int_equal(submit_put(last++, MIB, false), 0);
        turn(all_but_four, NULL);
        assert_int_equal(count_present(10, last - 10), last - 10);
        fault_release();
        turn(puts_none, NULL);
        assert_int_equal(last_result, 0);
        t.ns = first;
        assert_true(present(3));
        stop();
}

static void test_R1_a_handover_is_on_disk_before_the_next_tenants_first_byte(void **state)
{
        static const uint32_t lengths[] = { 60000, 4096, 20000, 300000 };

        for (unsigned i = 0; i < ARRAY_SIZE(lengths); i++) {
                uint32_t length = lengths[i];
                uint64_t handovers;

                start_filled_by_another();
                handovers = stats().handovers;
                fault_set(&(struct fault_plan){ .ops = 1u << KIO_SYNC,
                                                .kind = FAULT_NEVER,
                                                .first = 1,
                                                .count = FAULT_FOR_EVER });
                assert_int_equal(submit_put(1, length, false), 0);
                while (fault_hits() == 0) { /* what is held back wakes no thread */
                        turn_once();
                        sched_yield();
                }
                assert_int_equal(stats().handovers, handovers);
                assert_false(is_in_some_file(1));
                fault_set(NULL);
                fault_release();
                turn(puts_none, NULL);
                assert_int_equal(last_result, 0);
                assert_int_equal(stats().handovers, handovers + 1);
                assert_int_equal(stats().handover_failures, 0);
                assert_int_equal(get(1, length), 0);
                settle();
                stop();
                remove_files();
                t.tenant = 0;
        }
}

static void test_R1_a_file_that_cannot_be_handed_over_is_not_used(void **state)
{
        start_filled_by_another();
        watch_syncs(true, 1, false);
        assert_int_equal(put(1, 60000), STORE_BYPASSED);
        assert_int_equal(stats().handover_failures, 1);
        assert_false(is_in_some_file(1));
        assert_true(stats().bypassed);
        fault_set(NULL);
        settle();
        stop();
        t.tenant = 0;
        start_limit(8 * MIB);
        become(2);
        assert_int_equal(put(2, 60000), 0);
        assert_int_equal(get(2, 60000), 0);
        settle();
        stop();
}

static bool is_record_written(const void *before)
{
        return stats().table_writes > *(const uint64_t *)before;
}

/* The kernel reports a failed write to one of two syncs of a file: the other would be believed. */
static void test_R1_a_handover_waits_for_a_sync_of_the_table_that_is_under_way(void **state)
{
        uint64_t before, handovers;

        if (strcmp(t.root, "/dev/shm") == 0)
                skip(); /* nothing is durable there: a put starts no sync */
        start_filled_by_another();
        handovers = stats().handovers;
        watch_syncs(true, 1, true);
        become(1);
        assert_int_equal(submit_put(1, 20000, true), 0);
        while (syncs.seen == 0)
                turn_once();
        before = stats().table_writes;
        become(2);
        assert_int_equal(submit_put(2, 60000, false), 0);
        turn(is_record_written, &before);
        turn_once();
        assert_int_equal(syncs.seen, 1);
        assert_int_equal(stats().handovers, handovers);
        fault_set(NULL);
        fault_release();
        turn(puts_none, NULL);
        assert_int_equal(get(2, 60000), 0);
        assert_int_equal(stats().handovers, handovers + 1);
        settle();
        stop();
}

static void test_R1_a_handover_whose_record_fails_bypasses_the_path(void **state)
{
        start_filled_by_another();
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_ERROR, .error = EIO, .first = 1 });
        assert_int_equal(put(1, 60000), STORE_BYPASSED);
        assert_int_equal(fault_hits(), 1);
        fault_set(NULL);
        assert_false(is_in_some_file(1));
        assert_int_equal(stats().handover_failures, 1);
        assert_true(stats().bypassed);
        settle();
        stop();
        t.tenant = 0;
        start_limit(8 * MIB);
        become(2);
        assert_int_equal(put(1, 60000), 0);
        assert_int_equal(get(1, 60000), 0);
        settle();
        stop();
}

static int declare_size(unsigned n, uint64_t bytes)
{
        char name[16];
        struct store_namespace_open req = {
                .name = name,
                .fingerprint = "f",
                .fingerprint_length = 1,
                .chunk_bytes = bytes,
                .complete = ns_complete,
        };

        snprintf(name, sizeof(name), "other-%u", n);
        req.name_length = (uint16_t)strlen(name);
        store_namespace_open(t.s, &req);
        turn(ns_done, &req);
        return req.result;
}

/* Sizes that lie on the disk, declared or not, come before those that are only declared; also where
 * the largest segment is larger than it was, and more sizes are shared. */
static void what_is_stored_outlives_any_number_of_declared_sizes(void **state)
{
        struct store_params params = params_of(1024 * MIB);
        const uint32_t lengths[] = { 777 * 4096, 333 * 4096, 5000, 123 * 4096 + 1 };

        params.prewrite = false;
        start(&params);
        assert_int_equal(declare_size(0, 777 * 4096), 0);
        assert_int_equal(declare_size(1, 333 * 4096), 0);
        for (unsigned i = 0; i < ARRAY_SIZE(lengths); i++)
                assert_int_equal(put(i, lengths[i]), 0);
        become(3);
        assert_int_equal(put(9, 333 * 4096), 0);
        settle();
        stop();
        for (unsigned round = 0; round < 3; round++) {
                params.limit = (1 + round) * 1024 * MIB;
                t.tenant = 0;
                start(&params);
                for (unsigned i = 0; i < ARRAY_SIZE(lengths); i++)
                        assert_int_equal(get(i, lengths[i]), 0);
                become(3);
                assert_int_equal(get(9, 333 * 4096), 0);
                t.tenant = 0;
                for (unsigned n = 0; n < 450; n++) /* also anew, so that 0 and 1 declare others */
                        assert_int_equal(declare_size(n, 4096 * (1000 + n + 450 * round)), 0);
                settle();
                stop();
        }
}

static void a_store_of_one_tenant_hands_nothing_over(void **state)
{
        struct store_params params = params_of(8 * MIB);

        params.prewrite = false;
        start(&params);
        put_range(0, 200, 60000);
        put_range(1000, 2000, 4000);
        assert_int_equal(stats().handovers, 0);
        settle();
        stop();
}

static void a_failed_table_write_bypasses_the_path(void **state)
{
        struct store_params params = params_of(64 * MIB);

        params.prewrite = false;
        t.faults = true;
        start(&params);
        put_range(0, 20, 5000);
        settle();
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_ERROR, .error = EIO, .first = 2 });
        assert_int_equal(put(100, 5000), STORE_BYPASSED);
        fault_set(NULL);
        assert_true(stats().bypassed);
        assert_false(present(100));
        assert_int_equal(submit_put(101, 5000, false), STORE_BYPASSED);
        for (uint64_t i = 0; i < 20; i++)
                assert_int_equal(get(i, 5000), STORE_MISS);
        assert_int_equal(drop(3), 0); /* but it is not written: store_settle_drops() says so */
        settle();
        stop();
        start_limit(64 * MIB);
        assert_false(stats().clean_start);
        assert_int_equal(get(4, 5000), 0);
        assert_int_equal(put(100, 5000), 0);
        stop();
}

static void a_read_error_is_counted_and_a_miss(void **state)
{
        t.faults = true;
        start_limit(64 * MIB);
        assert_int_equal(put(1, 5000), 0);
        settle();
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_READ, .kind = FAULT_ERROR, .error = EIO, .first = 1 });
        assert_int_equal(get(1, 5000), -EIO);
        fault_set(NULL);
        assert_int_equal(stats().read_errors, 1);
        assert_int_equal(get(1, 5000), STORE_MISS);
        assert_int_equal(put(1, 5000), 0);
        assert_int_equal(get(1, 5000), 0);
        stop();
}

/* --- memory that a client shares --- */

static struct {
        int fd;
        char *at;
        uint64_t bytes;
        struct kio_region region;
        bool use_region;
} f;
static _Alignas(4096) char tail[4096];

static void share(uint64_t bytes)
{
        f.fd = memfd_create("shared", MFD_CLOEXEC);
        f.bytes = bytes;
        assert_true(f.fd >= 0);
        assert_int_equal(ftruncate(f.fd, (off_t)bytes), 0);
        f.at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, f.fd, 0);
        assert_ptr_not_equal(f.at, MAP_FAILED);
}

static void unshare_it(void)
{
        munmap(f.at, f.bytes);
        close(f.fd);
}

static bool put_over(const void *arg)
{
        return ((const struct store_put *)arg)->complete == NULL;
}

static void put_is_over(struct store_put *req)
{
        req->complete = NULL;
}

/* From f.at, as it lies there; the caller has summed it and filled the tail. */
static int put_foreign(uint64_t n, uint32_t length, uint32_t crc)
{
        static struct store_put req;
        int r;

        req = (struct store_put){ .namespace_id = t.ns,
                                  .key = key_of(n),
                                  .buf = f.at,
                                  .tail = tail,
                                  .foreign = true,
                                  .length = length,
                                  .crc = crc,
                                  .complete = put_is_over };
        req.hash = store_hash(t.s, t.ns, &req.key);
        r = store_put(t.s, &req);
        if (r != 0)
                return r;
        turn(put_over, &req);
        return req.result;
}

static int begin_get_foreign(struct store_get *req, uint64_t n, uint32_t room)
{
        *req = (struct store_get){ .namespace_id = t.ns,
                                   .key = key_of(n),
                                   .buf = f.at,
                                   .room = room,
                                   .tail = tail,
                                   .region = f.use_region ? &f.region : NULL,
                                   .foreign = true,
                                   .complete = get_complete };
        req->hash = store_hash(t.s, t.ns, &req->key);
        got = false;
        return store_get(t.s, req);
}

static int get_foreign(uint64_t n, uint32_t room)
{
        static struct store_get req;
        int r = begin_get_foreign(&req, n, room);

        if (r != 0)
                return r;
        turn(get_done, NULL);
        return req.result;
}

static void odd_chunks_come_from_and_go_to_memory_of_their_length(void **state)
{
        static const uint32_t lengths[] = { 1, 4095, 4096, 4097, 16384, 65536 + 1, 300000 };
        char *expected = malloc(MIB);

        assert_non_null(expected);
        share(MIB);
        start_limit(64 * MIB);
        for (unsigned i = 0; i < ARRAY_SIZE(lengths); i++) {
                uint32_t length = lengths[i], body = length & ~4095u;

                payload_of(i, expected, length);
                memset(f.at, 0xaa, f.bytes);
                memcpy(f.at, expected, body);
                memset(tail, 0, sizeof(tail));
                memcpy(tail, expected + body, length - body);
                assert_int_equal(put_foreign(i, length, kio_crc32c(expected, length)), 0);
                assert_int_equal(get(i, length), 0);

                memset(f.at, 0xaa, f.bytes);
                assert_int_equal(get_foreign(i, length - 1), STORE_TOO_LARGE);
                assert_int_equal(get_foreign(i, length), 0);
                assert_memory_equal(f.at, expected, length);
                for (uint64_t k = length; k < f.bytes; k++)
                        assert_int_equal((unsigned char)f.at[k], 0xaa);
        }
        stop();
        unshare_it();
        free(expected);
}

static void test_R2_a_mismatch_in_shared_memory_says_nothing_against_the_chunk(void **state)
{
        char name[64];
        off_t offset;

        share(MIB);
        start_limit(64 * MIB);
        put_range(0, 4, 10000);
        stop();
        assert_true(find_payload(2, 10000, name, &offset));
        flip_byte(name, offset + 9999);
        start_limit(64 * MIB);
        for (unsigned round = 0; round < 3; round++) {
                assert_int_equal(get_foreign(2, 10000), STORE_SUSPECT);
                assert_true(present(2));
        }
        assert_int_equal(get_foreign(1, 10000), 0);
        assert_int_equal(stats().reads, 4);
        assert_int_equal(stats().gets, 1);
        assert_int_equal(stats().crc_rereads, 0);
        assert_int_equal(stats().crc_failures, 0);
        /* In memory of one's own it shows why. */
        assert_int_equal(get(2, 10000), STORE_MISS);
        assert_int_equal(stats().crc_failures, 1);
        assert_false(present(2));
        assert_int_equal(get_foreign(2, 10000), STORE_MISS);
        stop();
        unshare_it();
}

static void test_R2_shared_memory_that_is_gone_costs_the_device_nothing(void **state)
{
        struct store_params params = params_of(64 * MIB);

        share(MIB);
        params.error_budget = 2;
        t.faults = true;
        start(&params);
        assert_int_equal(put(1, 300000), 0);
        settle();
        for (unsigned round = 0; round < 10; round++) {
                assert_int_equal(ftruncate(f.fd, round % 2 ? 8192 : 0), 0);
                assert_int_equal(put_foreign(2, 300000, 0), -EFAULT);
                assert_false(present(2));
                assert_int_equal(get_foreign(1, 300000), -EFAULT);
                assert_true(present(1));
        }
        assert_false(stats().bypassed);
        assert_int_equal(stats().write_errors, 0);
        assert_int_equal(stats().read_errors, 0);
        assert_int_equal(stats().crc_failures, 0);
        assert_int_equal(get(1, 300000), 0);
        assert_int_equal(ftruncate(f.fd, (off_t)f.bytes), 0);
        assert_int_equal(get_foreign(1, 300000), 0);
        /* What is the device's stays the device's. */
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_READ, .kind = FAULT_ERROR, .error = EIO, .first = 1 });
        assert_int_equal(get_foreign(1, 300000), -EIO);
        fault_set(NULL);
        assert_int_equal(stats().read_errors, 1);
        assert_false(present(1));
        settle();
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE,
                                        .kind = FAULT_ERROR,
                                        .error = EIO,
                                        .first = 1,
                                        .count = 2 });
        assert_int_equal(put_foreign(2, 8192, 0), -EIO);
        assert_int_equal(put_foreign(2, 8192, 0), -EIO);
        fault_set(NULL);
        assert_int_equal(stats().write_errors, 2);
        assert_true(stats().bypassed);
        stop();
        unshare_it();
}

static void region_is_over(struct kio_region *region)
{
        f.use_region = !f.use_region;
}

static bool region_is_used(const void *arg)
{
        return f.use_region;
}

static bool region_is_not(const void *arg)
{
        return !f.use_region;
}

/* A ring that has the memory pinned reads into it all the same; then it is not there to be summed.
 */
static void test_R2_registered_memory_that_is_gone_kills_nobody(void **state)
{
        share(MIB);
        memset(f.at, 1, f.bytes);
        start_limit(64 * MIB);
        assert_int_equal(put(1, 65536), 0);
        assert_int_equal(put(2, 65536 + 1), 0);
        f.region =
                (struct kio_region){ .base = f.at, .bytes = f.bytes, .complete = region_is_over };
        kio_region_register(t.io, &f.region);
        turn(region_is_used, NULL);
        assert_int_equal(get_foreign(1, 65536), 0);
        assert_int_equal(get_foreign(2, 65536 + 1), 0);
        assert_int_equal(ftruncate(f.fd, 0), 0);
        assert_int_equal(get_foreign(1, 65536), -EFAULT);
        assert_int_equal(get_foreign(2, 65536 + 1), -EFAULT);
        assert_int_equal(stats().read_errors, 0);
        assert_int_equal(get(1, 65536), 0);
        assert_int_equal(get(2, 65536 + 1), 0);
        kio_region_unregister(t.io, &f.region);
        turn(region_is_not, NULL);
        stop();
        unshare_it();
}

/* Of memory that is the store's caller's own it is an error like any other. */
static void a_fault_in_ones_own_memory_is_an_error_of_the_path(void **state)
{
        struct store_params params = params_of(64 * MIB);

        params.prewrite = false;
        t.faults = true;
        start(&params);
        assert_int_equal(put(1, 5000), 0);
        settle();
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_ERROR, .error = EFAULT, .first = 1 });
        assert_int_equal(put(2, 5000), -EFAULT);
        assert_int_equal(stats().write_errors, 1);
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_READ, .kind = FAULT_ERROR, .error = EFAULT, .first = 1 });
        assert_int_equal(get(1, 5000), -EFAULT);
        assert_int_equal(stats().read_errors, 1);
        fault_set(NULL);
        stop();
}

static bool held(const void *arg)
{
        return fault_hits() == 1;
}

static void who_asks_hears_whether_a_chunk_is_being_read(void **state)
{
        static struct store_get req;
        struct key k = key_of(1);
        struct store_ref ref, other;

        share(MIB);
        t.faults = true;
        start_limit(64 * MIB);
        assert_int_equal(put(1, 5000), 0);
        assert_int_equal(put(2, 5000), 0);
        settle();
        assert_int_equal(store_find(t.s, t.ns, &k, store_hash(t.s, t.ns, &k), &ref, NULL), 0);
        k = key_of(2);
        assert_int_equal(store_find(t.s, t.ns, &k, store_hash(t.s, t.ns, &k), &other, NULL), 0);
        assert_false(store_is_reading(t.s, STORE_REF_NONE));
        assert_false(store_is_reading(t.s, ref));
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_READ, .kind = FAULT_NEVER, .first = 1 });
        assert_int_equal(begin_get_foreign(&req, 1, 5000), 0);
        assert_true(store_is_reading(t.s, ref));
        assert_false(store_is_reading(t.s, other));
        kio_flush(t.io);
        while (!held(NULL)) {
                struct pollfd p = { .fd = kio_fd(t.io), .events = POLLIN };

                poll(&p, 1, 1);
        }
        assert_true(store_is_reading(t.s, ref));
        assert_int_equal(drop(1), 0); /* the read goes on */
        fault_release();
        turn(get_done, NULL);
        assert_int_equal(req.result, STORE_MISS);
        assert_false(store_is_reading(t.s, ref));
        fault_set(NULL);
        stop();
        unshare_it();
}

/* The least CPU time that so many questions have cost, of a few tries. */
static uint64_t ask_ns(struct store_ref ref, unsigned questions)
{
        uint64_t best = UINT64_MAX;

        for (unsigned attempt = 0; attempt < 5; attempt++) {
                struct timespec a, b;

                clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
                for (unsigned i = 0; i < questions; i++)
                        assert_true(store_is_reading(t.s, ref));
                clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
                best = MIN(best,
                           (uint64_t)((b.tv_sec - a.tv_sec) * 1000000000 + b.tv_nsec - a.tv_nsec));
        }
        return best;
}

static unsigned n_got;

static void count_got(struct store_get *req)
{
        n_got++;
}

static bool all_got(const void *arg)
{
        return n_got == *(const unsigned *)arg;
}

static void the_answer_costs_the_same_however_many_are_being_read(void **state)
{
        enum { N = 1000, QUESTIONS = 1000 };
        static struct store_get reqs[N];
        static const unsigned one = 1, all = N;
        struct store_ref last;
        uint64_t alone_ns;
        struct key k = key_of(N - 1);
        char *at;

        share((uint64_t)N * 4096);
        at = f.at;
        start_limit(64 * MIB);
        put_range(0, N, 4096);
        assert_int_equal(store_find(t.s, t.ns, &k, store_hash(t.s, t.ns, &k), &last, NULL), 0);
        n_got = 0;
        assert_int_equal(begin_get_foreign(&reqs[N - 1], N - 1, 4096), 0);
        reqs[N - 1].complete = count_got;
        alone_ns = ask_ns(last, QUESTIONS);
        turn(all_got, &one);
        assert_false(store_is_reading(t.s, last));

        n_got = 0;
        for (unsigned i = 0; i < N; i++) {
                f.at = at + (size_t)i * 4096; /* each has a place of its own */
                assert_int_equal(begin_get_foreign(&reqs[i], i, 4096), 0);
                reqs[i].complete = count_got;
        }
        f.at = at;
        assert_in_range(ask_ns(last, QUESTIONS), 0, 20 * alone_ns);
        turn(all_got, &all);
        for (unsigned i = 0; i < N; i++) {
                struct store_ref ref;

                k = key_of(i);
                assert_int_equal(store_find(t.s, t.ns, &k, store_hash(t.s, t.ns, &k), &ref, NULL),
                                 0);
                assert_false(store_is_reading(t.s, ref));
        }
        stop();
        unshare_it();
}

/* A record that is used again says nothing of who had it before. */
static void a_chunk_is_not_being_read_because_the_one_before_it_was(void **state)
{
        static struct store_get req;
        struct key k = key_of(1);
        struct store_ref before, now;

        share(MIB);
        start_limit(64 * MIB);
        assert_int_equal(put(1, 5000), 0);
        assert_int_equal(store_find(t.s, t.ns, &k, store_hash(t.s, t.ns, &k), &before, NULL), 0);
        assert_int_equal(begin_get_foreign(&req, 1, 5000), 0);
        assert_true(store_is_reading(t.s, before));
        assert_int_equal(drop(1), 0);
        turn(get_done, NULL);
        settle();
        assert_int_equal(put(1, 5000), 0);
        assert_int_equal(store_find(t.s, t.ns, &k, store_hash(t.s, t.ns, &k), &now, NULL), 0);
        assert_int_equal(now.index, before.index);
        assert_false(store_is_reading(t.s, now));
        assert_false(store_is_reading(t.s, before));
        stop();
        unshare_it();
}

static void a_failed_namespaces_write_is_the_answer_and_not_the_end(void **state)
{
        struct store_params params = params_of(64 * MIB);
        struct store_purge req = { .complete = purge_complete };

        params.prewrite = false;
        t.faults = true;
        start(&params);
        put_range(0, 20, 5000);
        settle();
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE | 1u << KIO_SYNC,
                                        .kind = FAULT_ERROR,
                                        .error = EIO,
                                        .first = 1 });
        assert_int_equal(open_namespace("n", "f", false, NULL), -EIO);
        assert_int_equal(open_namespace("n", "f", false, NULL), 0);
        settle();
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_SYNC, .kind = FAULT_ERROR, .error = EIO, .first = 1 });
        req.namespace_id = t.ns;
        store_purge(t.s, &req);
        turn(purge_done, &req);
        assert_int_equal(req.result, -EIO);
        assert_int_equal(req.dropped, 20);
        assert_int_equal(count_present(0, 20), 0);
        stop();
}

static void reads_and_writes_at_random_agree_with_a_model(void **state)
{
        enum { KEYS = 600 };
        static uint32_t model[KEYS]; /* length; 0: dropped or never put. Evicted ones stay. */
        uint64_t x = 88172645463325252;
        uint64_t hits = 0;

        memset(model, 0, sizeof(model));
        start_limit(12 * MIB);
        for (unsigned step = 0; step < 20000; step++) {
                uint64_t k;

                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                k = x % KEYS;
                switch (x / KEYS % 16) {
                case 0:
                        drop(k);
                        model[k] = 0;
                        break;
                case 1 ... 8: {
                        /* The length belongs to the key: a key names its content. */
                        static const uint32_t lengths[] = { 5000, 16000, 50000 };
                        uint32_t length = lengths[k % 3] + (uint32_t)(k / 3);
                        int r = put(k, length);

                        assert_true(r == 0 || r == STORE_EXISTS);
                        model[k] = length;
                        break;
                }
                case 9:
                        if (step % 64 == 0) {
                                purge(false);
                                memset(model, 0, sizeof(model));
                        }
                        break;
                default: {
                        int r = get(k, model[k]);

                        assert_true(r == 0 || r == STORE_MISS);
                        if (r == 0) {
                                assert_true(model[k] != 0);
                                hits++;
                        }
                }
                }
                if (step % 4000 == 3999) {
                        stop();
                        start_limit(12 * MIB);
                }
        }
        if (hits < 1000)
                fail_msg("%llu hits", (unsigned long long)hits);
        assert_int_equal(stats().crc_failures, 0);
        stop();
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

static const struct CMUnitTest tests[] = {
        TEST(a_chunk_comes_back_byte_for_byte),
        TEST(too_little_room_for_a_get_is_said),
        TEST(a_put_is_seen_only_when_it_is_written),
        TEST(a_stale_ref_is_harmless),
        TEST(restart_keeps_everything),
        TEST(a_kill_loses_nothing_written),
        TEST(kill_after_kill_never_gives_a_wrong_byte),
        TEST(a_kill_at_any_moment_loses_nothing_answered),
        TEST(a_drop_survives_a_kill),
        TEST(a_drop_survives_the_ring_going_round),
        TEST(a_purge_survives_a_kill),
        TEST(a_large_purge_takes_steps),
        TEST(a_stop_in_a_large_purge_loses_nothing_of_it),
        TEST(a_purge_takes_puts_in_flight),
        TEST(a_purged_read_in_flight_is_a_miss),
        TEST(a_list_meets_every_chunk_once),
        TEST(namespaces_are_known_again),
        TEST(a_removed_namespace_stays_removed),
        TEST(the_list_of_namespaces_is_put_together_off_the_loop),
        TEST(what_is_being_opened_or_written_is_not_removed),
        TEST(a_refusal_names_a_namespace_that_is_still_memory),
        TEST(an_id_comes_back_without_what_was_under_it),
        TEST(namespaces_come_and_go_and_leave_nothing),
        TEST(a_copy_that_failed_is_the_next_to_be_written),
        TEST(all_who_open_one_new_namespace_are_answered),
        TEST(the_same_key_in_two_namespaces_is_two_chunks),
        TEST(the_limit_holds_while_filling_over_and_over),
        TEST(the_coldest_leaves_first),
        TEST(after_a_restart_the_later_of_a_second_leave_first),
        TEST(a_class_takes_the_segment_of_another),
        TEST(small_chunks_may_fill_a_store_of_large_ones),
        TEST(a_bound_on_entries_evicts),
        TEST(when_everything_is_read_nothing_is_evicted),
        TEST(a_flipped_bit_is_a_miss_and_the_chunk_is_gone),
        TEST(a_damaged_table_page_costs_its_own_entries),
        TEST(a_table_page_that_cannot_be_read_costs_a_few_reads),
        TEST(a_table_of_garbage_is_an_empty_table),
        TEST(one_copy_of_the_namespaces_is_enough),
        TEST(without_namespaces_nothing_is_anybodys),
        TEST(damage_at_random_gives_misses_and_never_a_wrong_byte),
        TEST(a_drop_counts_wherever_the_ring_has_it),
        TEST(a_sequence_has_52_bits_and_no_more_are_given),
        TEST(starts_with_a_damaged_table_do_not_use_up_sequences),
        TEST(a_put_that_is_refused_takes_no_sequence),
        TEST(ceilings_of_sequences_are_raised_while_it_runs),
        TEST(a_volume_that_cannot_raise_its_ceilings_is_bypassed_before_them),
        TEST(what_could_not_be_read_is_older_than_a_later_purge),
        TEST(what_an_older_daemon_left_in_the_superblock_is_not_believed),
        TEST(a_table_that_is_too_large_is_cut_and_not_allocated),
        TEST(an_unknown_format_is_refused),
        TEST(one_superblock_of_four_is_enough),
        TEST(a_foreign_directory_is_refused_and_untouched),
        TEST(a_directory_is_made_with_its_parents),
        TEST(a_second_opener_is_refused),
        TEST(an_opener_waits_for_the_lock),
        TEST(bad_parameters_are_refused),
        TEST(the_smallest_store_works),
        TEST(a_lowered_limit_is_enforced_at_start_and_a_raised_one_used),
        TEST(there_are_never_more_data_files_than_there_may_be),
        TEST(a_lowered_limit_makes_a_large_ring_smaller),
        TEST(a_little_too_much_costs_a_little),
        TEST(a_part_of_a_page_at_the_end_of_a_data_file_costs_nothing),
        TEST(a_missing_segment_costs_its_own_chunks),
        TEST(a_store_that_is_left_alone_writes_a_third_of_its_limit_ahead),
        TEST(nothing_is_written_ahead_beside_a_put),
        TEST(a_durable_put_says_what_the_file_system_can_promise),
        TEST(a_failed_sync_is_never_believed_again),
        TEST(what_a_failed_sync_left_behind_never_becomes_durable),
        TEST(a_failed_sync_of_the_table_bypasses_the_path),
        TEST(a_failed_sync_of_a_growing_ring_is_one_as_well),
        TEST(a_failed_payload_write_stores_nothing),
        TEST(a_tenant_without_room_keeps_no_other_waiting),
        TEST(test_R1_a_handover_is_on_disk_before_the_next_tenants_first_byte),
        TEST(test_R1_a_file_that_cannot_be_handed_over_is_not_used),
        TEST(test_R1_a_handover_waits_for_a_sync_of_the_table_that_is_under_way),
        TEST(test_R1_a_handover_whose_record_fails_bypasses_the_path),
        TEST(a_store_of_one_tenant_hands_nothing_over),
        TEST(what_is_stored_outlives_any_number_of_declared_sizes),
        TEST(a_failed_table_write_bypasses_the_path),
        TEST(a_read_error_is_counted_and_a_miss),
        TEST(odd_chunks_come_from_and_go_to_memory_of_their_length),
        TEST(test_R2_a_mismatch_in_shared_memory_says_nothing_against_the_chunk),
        TEST(test_R2_shared_memory_that_is_gone_costs_the_device_nothing),
        TEST(test_R2_registered_memory_that_is_gone_kills_nobody),
        TEST(a_fault_in_ones_own_memory_is_an_error_of_the_path),
        TEST(who_asks_hears_whether_a_chunk_is_being_read),
        TEST(the_answer_costs_the_same_however_many_are_being_read),
        TEST(a_chunk_is_not_being_read_because_the_one_before_it_was),
        TEST(a_failed_namespaces_write_is_the_answer_and_not_the_end),
        TEST(reads_and_writes_at_random_agree_with_a_model),
};

/* Long ones, once. */
static const struct CMUnitTest long_tests[] = {
        TEST(small_limits_lose_little_to_tables),
        TEST(many_namespaces_grow_their_files_up_to_a_bound),
};

static bool uring_works(void)
{
        struct kio_params p = { .backend = "io_uring", .workers = 1, .depth = 4, .probe_fd = -1 };
        char error[256] = "";
        struct kio *io;

        if (kio_start(&io, &p, error) < 0) {
                fprintf(stderr, "without io_uring: %s\n", error);
                return false;
        }
        kio_stop(io);
        return true;
}

int main(int argc, char **argv)
{
        const char *disk = getenv("TMPDIR") ? getenv("TMPDIR") : "/var/tmp";
        int failed = 0;

        if (argc > 1)
                cmocka_set_test_filter(argv[1]);
        t.root = disk;
        t.direct = true;
        if (uring_works()) {
                t.backend = "io_uring";
                failed += cmocka_run_group_tests_name("store on io_uring, O_DIRECT", tests, NULL,
                                                      NULL);
        }
        t.backend = "posix";
        failed += cmocka_run_group_tests_name("store on posix, O_DIRECT", tests, NULL, NULL);
        t.backend = "auto";
        failed += cmocka_run_group_tests_name("store, long", long_tests, NULL, NULL);
        t.backend = "posix";
        t.root = "/dev/shm";
        t.direct = false;
        if (access(t.root, W_OK) == 0)
                failed += cmocka_run_group_tests_name("store on posix, tmpfs, buffered", tests,
                                                      NULL, NULL);
        return failed;
}
