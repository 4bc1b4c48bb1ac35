/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../lib/folder.h"
#include "base/clock.h"
#include "base/sanitizers.h"
#include "build-config.h"
#include "checked.h"
#include "cleanup.h"
#include "fault.h"
#include "store-fixture.h"
#include "timeout.h"

struct store_test t;

struct store_params params_of(uint64_t limit)
{
        /* Each startup reads the table with another block size than the previous one. */
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
                /* A ring that was closed may hold the lock for a while after its process has
                 * continued. */
                .lock_wait_ms = 30000,
        };
}

int try_open(const struct store_params *params, char error[static 512])
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

bool ns_done(const void *arg)
{
        return ((const struct store_namespace_open *)arg)->complete == NULL;
}

void ns_complete(struct store_namespace_open *req)
{
        req->complete = NULL;
}

int open_namespace(const char *name, const char *fingerprint, bool attach, uint32_t *ret_id)
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

void refusal_complete(struct store_namespace_open *req)
{
        if (req->result == STORE_MISMATCH)
                assert_string_equal(req->namespace->name, "refused");
        else
                assert_null(req->namespace);
        req->complete = NULL;
}

void start(const struct store_params *params)
{
        char error[512] = "";

        if (try_open(params, error) < 0)
                fail_msg("open: %s", error);
        assert_int_equal(open_namespace("model/a", "dtype=bf16", false, &t.ns), 0);
}

void start_limit(uint64_t limit)
{
        struct store_params params = params_of(limit);

        start(&params);
}

uint64_t du(void)
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

struct store_stats stats(void)
{
        struct store_stats st;

        store_get_stats(t.s, &st);
        return st;
}

void turn_once(void)
{
        kio_reap(t.io);
        store_iterate(t.s);
        kio_flush(t.io);
        t.most_used = MAX(t.most_used, stats().used_bytes);
}

void wait_io(void)
{
        struct pollfd p = { .fd = kio_fd(t.io), .events = POLLIN };

        if (kio_pending(t.io) == 0)
                fail_msg("waits for nothing: %llu pending", (unsigned long long)store_pending(t.s));
        if (poll(&p, 1, test_timeout_ms(WAIT_MS)) != 1)
                fail_msg("I/O hangs");
}

bool store_is_due(void)
{
        uint64_t deadline = store_deadline_ns(t.s);

        return deadline > 0 && deadline <= clock_mono_ns();
}

void turn(bool (*until)(const void *arg), const void *arg)
{
        turn_once();
        while (!until(arg)) {
                if (!store_is_due())
                        wait_io();
                turn_once();
        }
}

static bool idle(const void *arg)
{
        return store_pending(t.s) == 0;
}

void settle(void)
{
        turn(idle, NULL);
}

void stop(void)
{
        store_stop(t.s);
        while (store_pending(t.s) > 0) {
                wait_io();
                kio_reap(t.io);
        }
        t.s = store_close(t.s);
        t.io = kio_stop(t.io);
}

struct key key_of(uint64_t n)
{
        struct key k = { { 0 } };

        memcpy(k.bytes, &n, sizeof(n));
        k.bytes[31] = 1;
        return k;
}

enum { PIECE = 4096 };

/* Writes the next bytes of a payload. TSan leaves it out, because only one thread sees `piece`. The
 * copy of the piece is checked. */
__attribute__((no_sanitize("thread"))) static void next_piece(uint64_t *x, uint64_t *piece)
{
        for (unsigned i = 0; i < PIECE / 8; i++) {
                *x ^= *x << 13;
                *x ^= *x >> 7;
                *x ^= *x << 17;
                piece[i] = *x;
        }
}

void payload_of(uint64_t n, void *buf, uint32_t length)
{
        uint64_t x = n * UINT64_C(0x9e3779b97f4a7c15) + 1, piece[PIECE / 8];
        uint32_t whole = (length + 7) / 8 * 8;

        for (uint32_t at = 0; at < whole; at += PIECE) {
                next_piece(&x, piece);
                memcpy((char *)buf + at, piece, MIN(whole - at, (uint32_t)PIECE));
        }
}

struct put slots[DEPTH];
unsigned puts_busy;
int last_result;
static unsigned puts_failed;

void put_complete(struct store_put *req)
{
        struct put *p = container_of(req, struct put, req);

        assert_true(p->busy);
        p->busy = false;
        puts_busy--;
        last_result = req->result;
        puts_failed += req->result != 0;
}

static bool put_free(const void *arg)
{
        return puts_busy < DEPTH;
}

bool puts_none(const void *arg)
{
        return puts_busy == 0;
}

int submit_put(uint64_t n, uint32_t length, bool durable)
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

struct put *submit_direct(uint64_t n, uint32_t length, uint64_t batch, bool summing, void *buf)
{
        struct put *p = slots;

        while (p->busy)
                p++;
        assert_true(p < slots + DEPTH);
        p->buf = (unsigned)(p - slots);
        if (!buf)
                payload_of(n, t.bufs[p->buf], length);
        p->req = (struct store_put){
                .namespace_id = t.ns,
                .tenant = t.tenant,
                .key = key_of(n),
                .buf = buf ? buf : t.bufs[p->buf],
                .foreign = buf != NULL,
                .length = length,
                .summing = summing,
                .crc = summing || buf ? 0 : kio_crc32c(t.bufs[p->buf], length),
                .batch = batch,
                .complete = put_complete,
        };
        p->req.hash = store_hash(t.s, t.ns, &p->req.key);
        assert_int_equal(store_put(t.s, &p->req), 0);
        p->busy = true;
        puts_busy++;
        kio_flush(t.io);
        return p;
}

int put(uint64_t n, uint32_t length)
{
        int r = submit_put(n, length, false);

        if (r != 0)
                return r;
        turn(puts_none, NULL);
        return last_result;
}

int put_durable(uint64_t n, uint32_t length)
{
        int r = submit_put(n, length, true);

        if (r != 0)
                return r;
        turn(puts_none, NULL);
        return last_result;
}

void put_range(uint64_t first, uint64_t n, uint32_t length)
{
        unsigned failed = puts_failed;

        for (uint64_t i = first; i < first + n; i++) {
                int r;

                while ((r = submit_put(i, length, false)) == STORE_FULL) {
                        wait_io();
                        turn_once();
                }
                assert_int_equal(r, 0);
        }
        turn(puts_none, NULL);
        assert_int_equal(puts_failed, failed);
}

bool got;

void get_complete(struct store_get *req)
{
        got = true;
}

bool get_done(const void *arg)
{
        return got;
}

int get_into(struct store_get *req, uint64_t n, char *buf)
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

int get(uint64_t n, uint32_t length)
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

bool present(uint64_t n)
{
        struct key k = key_of(n);
        struct store_ref ref;

        return store_find(t.s, t.ns, &k, store_hash(t.s, t.ns, &k), &ref, NULL) == 0;
}

void touch(uint64_t n)
{
        struct key k = key_of(n);
        struct store_ref ref;

        assert_int_equal(store_find(t.s, t.ns, &k, store_hash(t.s, t.ns, &k), &ref, NULL), 0);
        store_touch(t.s, ref, 0);
}

int drop(uint64_t n)
{
        struct key k = key_of(n);

        return store_drop(t.s, t.ns, &k, store_hash(t.s, t.ns, &k));
}

void purge_complete(struct store_purge *req)
{
        req->complete = NULL;
}

bool purge_done(const void *arg)
{
        return ((const struct store_purge *)arg)->complete == NULL;
}

uint64_t purge(bool all)
{
        struct store_purge req = { .namespace_id = t.ns, .all = all, .complete = purge_complete };

        store_purge(t.s, &req);
        assert_non_null(req.complete);
        turn(purge_done, &req);
        assert_int_equal(req.result, 0);
        return req.dropped;
}

uint64_t count_present(uint64_t first, uint64_t n)
{
        uint64_t count = 0;

        for (uint64_t i = first; i < first + n; i++)
                count += present(i);
        return count;
}

int file_of(const char *name, int flags)
{
        char path[PATH_MAX + 64];
        int fd;

        snprintf(path, sizeof(path), "%s/%s", t.dir, name);
        fd = open(path, flags, 0600);
        assert_true(fd >= 0);
        return fd;
}

void flip_byte(const char *name, off_t offset)
{
        int fd = file_of(name, O_RDWR);
        uint8_t b;

        assert_int_equal(pread(fd, &b, 1, offset), 1);
        b ^= 0x10;
        assert_int_equal(pwrite(fd, &b, 1, offset), 1);
        assert_int_equal(fsync(fd), 0);
        close(fd);
}

void remove_files(void)
{
        folder_empty(t.dir);
}

void remove_dir(void)
{
        remove_files();
        rmdir(t.dir);
}

int setup(void **state)
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

int teardown(void **state)
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

void put_some(void)
{
        start_limit(64 * MIB);
        put_range(0, 300, 16384);
        put_range(1000, 50, 100001);
}

bool find_payload(uint64_t n, uint32_t length, char *ret_name, off_t *ret_offset)
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

void expect_refused(int expected, const char *text)
{
        struct store_params params = params_of(64 * MIB);
        char error[512] = "";
        int r = try_open(&params, error);

        assert_int_equal(r, expected);
        if (!strstr(error, text) || !strstr(error, t.dir))
                fail_msg("unexpected text: %s", error);
}

struct disk_superblock superblock(void)
{
        struct disk_superblock sb;
        int fd = file_of("superblock", O_RDONLY);

        assert_int_equal(pread(fd, &sb, sizeof(sb), 0), sizeof(sb));
        close(fd);
        return sb;
}

struct watched_syncs watched_syncs;

/* Runs on any thread. */
static bool choose_sync(const struct kio_request *req, struct fault_plan *plan)
{
        char link[32], file[512];
        ssize_t n;

        if (req->op != KIO_SYNC)
                return false;
        snprintf(link, sizeof(link), "/proc/self/fd/%d", req->fd);
        n = readlink(link, file, sizeof(file) - 1);
        file[MAX(n, (ssize_t)0)] = '\0';
        /* The names' second copy is written after the put that needed the first is answered. */
        if (strstr(file, "/namespaces."))
                return false;
        if (watched_syncs.of_table != (n > 6 && strcmp(file + n - 6, "/table") == 0) ||
            ++watched_syncs.seen != watched_syncs.from)
                return false;
        plan->kind = watched_syncs.never ? FAULT_NEVER : FAULT_ERROR;
        plan->error = watched_syncs.never ? 0 : EIO;
        return true;
}

void watch_syncs(bool of_table, unsigned from, bool never)
{
        watched_syncs.of_table = of_table;
        watched_syncs.from = from;
        watched_syncs.never = never;
        watched_syncs.seen = 0;
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_SYNC, .choose = choose_sync });
}

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

static int run_group(const char *name, const struct CMUnitTest *tests, size_t n)
{
        return n > 0 ? _cmocka_run_group_tests(name, tests, n, NULL, NULL) : 0;
}

int run_store_tests(int argc, char **argv, const struct CMUnitTest *tests, size_t n,
                    const struct CMUnitTest *long_tests, size_t n_long)
{
        const char *disk = getenv("TMPDIR") ? getenv("TMPDIR") : "/var/tmp";
        bool uring = uring_works(), shm = access("/dev/shm", W_OK) == 0;
        int failed = 0;

        if (argc > 1)
                cmocka_set_test_filter(argv[1]);
        t.root = disk;
        t.direct = true;
        if (uring) {
                t.backend = "io_uring";
                failed += run_group("store on io_uring, O_DIRECT", tests, n);
        }
        /* A sanitizer runs only one group with O_DIRECT, and POSIX in the last group. */
        if (!uring || !shm || (!SANITIZES_ADDRESSES && !SANITIZES_THREADS)) {
                t.backend = "posix";
                failed += run_group("store on posix, O_DIRECT", tests, n);
        }
        t.backend = "auto";
        failed += run_group("store, long", long_tests, n_long);
        t.backend = "posix";
        t.root = "/dev/shm";
        t.direct = false;
        if (shm)
                failed += run_group("store on posix, tmpfs, buffered", tests, n);
        return failed;
}
