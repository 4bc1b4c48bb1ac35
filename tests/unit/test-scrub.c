/* SPDX-License-Identifier: Apache-2.0 */
/* store/volume/scrub.c: chunks that the disk has lost are found, and no others, with a real store,
 * bits flipped in its files, and reads that fail by plan. The test is the loop. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "../lib/folder.h"
#include "base/clock.h"
#include "checked.h"
#include "fault.h"
#include "timeout.h"
#include "store/store.h"

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)

enum { ROOM = 8 << 20, WAIT_MS = 60000, MAX_FINDINGS = 512, HELD = 16 };

static struct {
        const char *root;
        bool direct;
        unsigned depth;
        struct store_params params;

        char dir[PATH_MAX];
        struct kio *io;
        struct store *s;
        uint32_t ns;
        char *buf, *expected;

        unsigned n_findings;
        struct {
                struct key key;
                int error;
                uint32_t segment;
                uint64_t offset;
        } findings[MAX_FINDINGS];
} t;

/* --- the loop --- */

static void turn_once(void)
{
        kio_reap(t.io);
        store_iterate(t.s);
        kio_flush(t.io);
}

/* Waits until something completes or the store has work. Returns false if neither can happen. */
static bool wait_for_work(uint64_t most_ns)
{
        struct pollfd p = { .fd = kio_fd(t.io), .events = POLLIN };
        uint64_t deadline = store_deadline_ns(t.s), now = clock_mono_ns();
        uint64_t wait = MIN(most_ns, (uint64_t)test_timeout_ms(WAIT_MS) * 1000000);

        if (deadline)
                wait = deadline > now ? MIN(wait, deadline - now) : 0;
        else if (kio_pending(t.io) == 0)
                return false;
        poll(&p, 1, (int)((wait + 999999) / 1000000));
        return true;
}

static void turn_until(bool (*until)(const void *arg), const void *arg)
{
        uint64_t began = clock_mono_ns();

        turn_once();
        while (!until(arg)) {
                if (!wait_for_work(UINT64_MAX))
                        fail_msg("waits for nothing: %llu pending",
                                 (unsigned long long)store_pending(t.s));
                if (clock_mono_ns() - began > (uint64_t)test_timeout_ms(WAIT_MS) * 1000000)
                        fail_msg("never comes true");
                turn_once();
        }
}

static struct store_stats stats(void)
{
        struct store_stats st;

        store_get_stats(t.s, &st);
        return st;
}

static bool is_true(const void *arg)
{
        return *(const bool *)arg;
}

static bool passes_reached(const void *arg)
{
        return stats().scrub_passes >= *(const uint64_t *)arg;
}

static void wait_passes(uint64_t n)
{
        turn_until(passes_reached, &n);
}

static bool hits_reached(const void *arg)
{
        return fault_hits() >= *(const uint64_t *)arg;
}

/* Waits until the plan has held or failed `n` operations. */
static void wait_hits(uint64_t n)
{
        uint64_t began = clock_mono_ns();

        turn_once();
        while (!hits_reached(&n)) {
                wait_for_work(1000000);
                turn_once();
                if (clock_mono_ns() - began > (uint64_t)test_timeout_ms(WAIT_MS) * 1000000)
                        fail_msg("the plan was never asked");
        }
}

/* --- open and close --- */

static void on_finding(void *userdata, const struct store_finding *finding)
{
        assert_ptr_equal(userdata, &t);
        assert_int_equal(strncmp(finding->path, t.dir, strlen(t.dir)), 0);
        assert_true(t.n_findings < MAX_FINDINGS);
        t.findings[t.n_findings].key = finding->chunk->key;
        t.findings[t.n_findings].segment = finding->segment;
        t.findings[t.n_findings].offset = finding->offset;
        t.findings[t.n_findings++].error = finding->error;
}

static bool found(const struct key *key)
{
        for (unsigned i = 0; i < t.n_findings; i++)
                if (key_equal(&t.findings[i].key, key))
                        return true;
        return false;
}

static void on_namespace(struct store_namespace_open *req)
{
        req->complete = NULL;
}

static bool namespace_open(const void *arg)
{
        return ((const struct store_namespace_open *)arg)->complete == NULL;
}

static int try_open(char error[static 512])
{
        struct kio_params io = {
                .backend = "posix",
                .workers = 2,
                .depth = t.depth,
                .posix_threads = 4,
                .pool = t.buf,
                .pool_bytes = ROOM,
                .piece_bytes = ROOM,
                .probe_fd = -1,
        };
        int locks[STORE_MAX_VOLUMES], r;

        r = store_prepare(&t.s, &t.params, error);
        if (r < 0)
                return r;
        io.lock_fds = locks;
        io.n_lock_fds = store_lock_fds(t.s, locks);
        r = kio_start_with(&t.io, &io, fault_wrap(&kio_backend_posix), error);
        if (r < 0)
                fail_msg("kio_start: %s", error);
        r = store_open(t.s, t.io, error);
        if (r < 0) {
                t.s = store_close(t.s);
                t.io = kio_stop(t.io);
        }
        return r;
}

static void start(void)
{
        struct store_namespace_open req = {
                .name = "model",
                .name_length = 5,
                .fingerprint = "",
                .complete = on_namespace,
        };
        char error[512] = "";

        if (try_open(error) < 0)
                fail_msg("open: %s", error);
        store_namespace_open(t.s, &req);
        turn_until(namespace_open, &req);
        assert_int_equal(req.result, 0);
        t.ns = req.namespace->id;
}

static void stop(void)
{
        store_stop(t.s);
        while (store_pending(t.s) > 0) {
                struct pollfd p = { .fd = kio_fd(t.io), .events = POLLIN };

                kio_flush(t.io);
                if (poll(&p, 1, test_timeout_ms(WAIT_MS)) != 1)
                        fail_msg("does not stop");
                kio_reap(t.io);
        }
        t.s = store_close(t.s);
        t.io = kio_stop(t.io);
}

static int setup(void **state)
{
        static const char *paths[1];

        snprintf(t.dir, sizeof(t.dir), "%s/kvcache-scrub-XXXXXX", t.root);
        if (!mkdtemp(t.dir))
                return -1;
        paths[0] = t.dir;
        t.params = (struct store_params){
                .paths = paths,
                .n_paths = 1,
                .limit = 512 * MIB,
                .segment_bytes = 8 * MIB,
                .prewrite = false, /* keeps the operations of a plan free of preformatting */
                .direct = t.direct,
                .policy = "lru",
                .error_budget = 1000,
                .secret = { { 1, 2 } },
                .lock_wait_ms = 30000,
                .on_finding = on_finding,
                .userdata = &t,
        };
        t.buf = aligned_alloc(4096, ROOM);
        t.expected = malloc(ROOM);
        t.depth = 32;
        t.n_findings = 0;
        fault_set(NULL);
        return t.buf && t.expected ? 0 : -1;
}

static int teardown(void **state)
{
        fault_set(NULL);
        fault_release();
        if (t.s)
                stop();
        folder_remove(t.dir);
        free(t.buf);
        free(t.expected);
        return 0;
}

/* --- chunks --- */

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

static bool io_done;
static int io_result;

static void on_put(struct store_put *req)
{
        io_done = true;
        io_result = req->result;
}

static void on_get(struct store_get *req)
{
        io_done = true;
        io_result = req->result;
}

static void put(uint64_t n, uint32_t length)
{
        struct store_put req = {
                .namespace_id = t.ns,
                .key = key_of(n),
                .buf = t.buf,
                .length = length,
                .complete = on_put,
        };
        int r;

        payload_of(n, t.buf, length);
        req.crc = kio_crc32c(t.buf, length);
        req.hash = store_hash(t.s, t.ns, &req.key);
        io_done = false;
        while ((r = store_put(t.s, &req)) == STORE_FULL) {
                wait_for_work(UINT64_MAX);
                turn_once();
        }
        assert_int_equal(r, 0);
        turn_until(is_true, &io_done);
        assert_int_equal(io_result, 0);
}

/* Returns 0 if the chunk is stored and every byte is right. */
static int get(uint64_t n, uint32_t length)
{
        struct store_get req = {
                .namespace_id = t.ns,
                .key = key_of(n),
                .buf = t.buf,
                .room = ROOM,
                .complete = on_get,
        };
        int r;

        req.hash = store_hash(t.s, t.ns, &req.key);
        io_done = false;
        r = store_get(t.s, &req);
        if (r != 0)
                return r;
        turn_until(is_true, &io_done);
        if (io_result != 0)
                return io_result;
        payload_of(n, t.expected, length);
        assert_int_equal(req.length, length);
        assert_memory_equal(t.buf, t.expected, length);
        return 0;
}

static bool present(uint64_t n)
{
        struct key k = key_of(n);

        return store_find(t.s, t.ns, &k, store_hash(t.s, t.ns, &k), NULL, NULL) == 0;
}

static void drop(uint64_t n)
{
        struct key k = key_of(n);

        assert_int_equal(store_drop(t.s, t.ns, &k, store_hash(t.s, t.ns, &k)), 0);
}

/* Returns sizes of one page, of several, of more than one read, of more than the buffer, and odd
 * ones. */
static uint32_t length_of(uint64_t n)
{
        static const uint32_t lengths[] = { 4096, 1, 10000, 65536, 4095, 300001, 700000, 2500003 };

        return lengths[n % ARRAY_SIZE(lengths)];
}

static uint64_t put_many(uint64_t n)
{
        uint64_t bytes = 0;

        for (uint64_t i = 0; i < n; i++) {
                put(i, length_of(i));
                bytes += length_of(i);
        }
        return bytes;
}

/* --- the files --- */

static int segment_file(uint32_t segment)
{
        char path[PATH_MAX + 32];

        snprintf(path, sizeof(path), "%s/segment-%04x", t.dir, segment);
        return open(path, O_RDWR);
}

/* Returns the file and the offset of the chunk's bytes. */
static int find_on_disk(uint64_t n, off_t *ret_offset)
{
        uint32_t length = MIN(length_of(n), 4096u);
        char page[4096];

        payload_of(n, t.expected, length);
        for (uint32_t segment = 0;; segment++) {
                int fd = segment_file(segment);

                if (fd < 0)
                        fail_msg("chunk %llu is in no segment", (unsigned long long)n);
                for (off_t offset = 0; pread(fd, page, sizeof(page), offset) == sizeof(page);
                     offset += 4096)
                        if (memcmp(page, t.expected, length) == 0) {
                                *ret_offset = offset;
                                return fd;
                        }
                close(fd);
        }
}

static void flip_at(int fd, off_t offset, unsigned bit)
{
        uint8_t byte;

        assert_int_equal(pread(fd, &byte, 1, offset), 1);
        byte ^= (uint8_t)(1u << bit);
        assert_int_equal(pwrite(fd, &byte, 1, offset), 1);
        assert_int_equal(fsync(fd), 0);
}

/* Flips one bit, `at` bytes from the chunk's beginning. */
static void flip(uint64_t n, uint64_t at)
{
        off_t offset;
        int fd = find_on_disk(n, &offset);

        flip_at(fd, offset + (off_t)at, (unsigned)(n % 8));
        close(fd);
}

/* --- verifying --- */

static void on_verified(struct store_verify *req)
{
        req->complete = NULL;
}

static bool verify_done(const void *arg)
{
        return ((const struct store_verify *)arg)->complete == NULL;
}

static struct store_verify verify_from(uint32_t segment, uint32_t slot, uint32_t max_chunks,
                                       uint64_t max_bytes)
{
        return (struct store_verify){
                .segment = segment,
                .slot = slot,
                .max_chunks = max_chunks,
                .max_bytes = max_bytes,
                .complete = on_verified,
        };
}

/* Verifies the whole volume, message by message. */
static struct store_verified verify_all(uint32_t max_chunks, uint64_t max_bytes)
{
        struct store_verified sum = { 0 };
        uint32_t segment = 0, slot = 0;

        for (;;) {
                struct store_verify req = verify_from(segment, slot, max_chunks, max_bytes);

                assert_int_equal(store_verify(t.s, &req), 0);
                turn_until(verify_done, &req);
                assert_int_equal(req.result, 0);
                assert_int_equal(req.volumes, 1);
                assert_true(req.found.chunks <= max_chunks);
                assert_true(req.next_segment > segment ||
                            (req.next_segment == segment && req.next_slot >= slot));
                sum.chunks += req.found.chunks;
                sum.bytes += req.found.bytes;
                sum.mismatched += req.found.mismatched;
                sum.unreadable += req.found.unreadable;
                sum.skipped += req.found.skipped;
                segment = req.next_segment;
                slot = req.next_slot;
                if (segment >= req.segments)
                        return sum;
        }
}

/* --- tests --- */

enum { MANY = 40 };

static void a_pass_reads_every_chunk_and_leaves_good_ones_alone(void **state)
{
        uint64_t bytes;

        start();
        bytes = put_many(MANY);
        store_set_scrub(t.s, &(struct store_scrub){ .rate = 1024 * MIB, .interval_ms = 1 });
        wait_passes(1);
        assert_int_equal(stats().scrub_chunks, MANY);
        assert_true(stats().scrub_bytes >= bytes);
        assert_int_equal(stats().scrub_failures, 0);
        assert_int_equal(stats().crc_rereads, 0);
        assert_true(stats().scrub_last_pass_ms > 0);
        assert_int_equal(stats().reads, 0); /* this counter has gets only */
        assert_int_equal(stats().scrub_pinned, 0);
        for (uint64_t i = 0; i < MANY; i++)
                assert_int_equal(get(i, length_of(i)), 0);
        assert_int_equal(t.n_findings, 0);
}

static void no_pass_unless_asked_for(void **state)
{
        start();
        put_many(4);
        assert_int_equal(store_deadline_ns(t.s), 0);
        store_set_scrub(t.s, &(struct store_scrub){ .rate = 0, .interval_ms = 1 });
        turn_once();
        assert_int_equal(store_deadline_ns(t.s), 0);
        assert_int_equal(stats().scrub_bytes, 0);
}

static void the_first_pass_comes_an_interval_after_opening_at_most_an_hour(void **state)
{
        uint64_t before = clock_mono_ns(), after;

        start();
        after = clock_mono_ns();
        store_set_scrub(t.s, &(struct store_scrub){ .rate = MIB, .interval_ms = 60000 });
        turn_once();
        assert_in_range(store_deadline_ns(t.s), before + UINT64_C(60) * 1000000000,
                        after + UINT64_C(60) * 1000000000);
        store_set_scrub(t.s, &(struct store_scrub){ .rate = MIB, .interval_ms = 86400000 });
        turn_once();
        assert_in_range(store_deadline_ns(t.s), before + UINT64_C(3600) * 1000000000,
                        after + UINT64_C(3600) * 1000000000);
        assert_int_equal(stats().scrub_bytes, 0);
}

static void a_pass_over_nothing_ends_and_does_not_spin(void **state)
{
        uint64_t now;

        start();
        store_set_scrub(t.s, &(struct store_scrub){ .rate = MIB, .interval_ms = 1 });
        wait_passes(1);
        now = clock_mono_ns();
        turn_once();
        assert_true(store_deadline_ns(t.s) > now);
        assert_int_equal(stats().scrub_bytes, 0);
}

/* Flips a bit in each of several chunks at places of every kind, and others outside of all. */
static void flip_some(uint64_t *ret_mask)
{
        static const struct {
                uint64_t n, at;
        } flips[] = {
                { 0, 0 },       { 1, 0 },       { 10, 9999 },   { 19, 65535 },   { 21, 1 },
                { 29, 300000 }, { 30, 350000 }, { 7, 2500002 }, { 15, 1 << 20 }, { 23, 0 },
        };

        *ret_mask = 0;
        for (unsigned i = 0; i < ARRAY_SIZE(flips); i++) {
                flip(flips[i].n, flips[i].at);
                *ret_mask |= UINT64_C(1) << flips[i].n;
        }
        /* Bytes between a chunk's end and its slot's end belong to no chunk. */
        flip(2, 10000);
        flip(9, 1);
        flip(5, 300001);
        flip(31, 2500003);
}

static void check_found(uint64_t mask)
{
        for (uint64_t i = 0; i < MANY; i++) {
                struct key key = key_of(i);
                bool bad = mask >> i & 1;

                assert_int_equal(found(&key), bad);
                assert_int_equal(present(i), !bad);
                assert_int_equal(get(i, length_of(i)), bad ? STORE_MISS : 0);
        }
        assert_int_equal(t.n_findings, __builtin_popcountll(mask));
        for (unsigned i = 0; i < t.n_findings; i++)
                assert_int_equal(t.findings[i].error, 0);
}

static void a_pass_finds_every_flipped_bit_and_nothing_else(void **state)
{
        uint64_t mask;

        start();
        put_many(MANY);
        flip_some(&mask);
        store_set_scrub(t.s, &(struct store_scrub){ .rate = 1024 * MIB, .interval_ms = 1 });
        wait_passes(1);
        assert_int_equal(stats().scrub_failures, __builtin_popcountll(mask));
        assert_int_equal(stats().crc_failures, __builtin_popcountll(mask));
        assert_int_equal(stats().crc_rereads, __builtin_popcountll(mask));
        store_set_scrub(t.s, &(struct store_scrub){ 0 });
        check_found(mask);
}

static void a_get_that_finds_one_tells_of_it(void **state)
{
        uint64_t mask;

        start();
        put_many(MANY);
        flip_some(&mask);
        for (uint64_t i = 0; i < MANY; i++)
                assert_int_equal(get(i, length_of(i)), mask >> i & 1 ? STORE_MISS : 0);
        assert_int_equal(stats().crc_failures, __builtin_popcountll(mask));
        check_found(mask);
}

static void verify_finds_the_same_and_it_stays_dropped(void **state)
{
        struct store_verified sum;
        uint64_t mask, bytes;

        start();
        bytes = put_many(MANY);
        flip_some(&mask);
        sum = verify_all(1000, UINT64_MAX);
        assert_int_equal(sum.chunks, MANY);
        assert_int_equal(sum.bytes, bytes);
        assert_int_equal(sum.mismatched, __builtin_popcountll(mask));
        assert_int_equal(sum.unreadable, 0);
        assert_int_equal(sum.skipped, 0);
        check_found(mask);
        sum = verify_all(1000, UINT64_MAX);
        assert_int_equal(sum.chunks, MANY - __builtin_popcountll(mask));
        assert_int_equal(sum.mismatched, 0);
        stop();
        start();
        check_found(mask);
}

static void verify_is_bounded_as_it_was_asked(void **state)
{
        struct store_verify req;
        struct store_verified sum;
        uint64_t bytes;

        start();
        bytes = put_many(MANY);
        sum = verify_all(1, 1);
        assert_int_equal(sum.chunks, MANY);
        assert_int_equal(sum.bytes, bytes);
        sum = verify_all(3, 100000);
        assert_int_equal(sum.chunks, MANY);
        assert_int_equal(sum.bytes, bytes);

        /* Past the end there is nothing, of a volume that is not there not even that. */
        req = verify_from(UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT64_MAX);
        assert_int_equal(store_verify(t.s, &req), 0);
        turn_until(verify_done, &req);
        assert_int_equal(req.result, 0);
        assert_int_equal(req.found.chunks, 0);
        assert_int_equal(req.next_segment, req.segments);
        req = verify_from(0, UINT32_MAX, 1, 1);
        assert_int_equal(store_verify(t.s, &req), 0);
        turn_until(verify_done, &req);
        assert_int_equal(req.found.chunks, 0);
        assert_int_equal(req.next_segment, 1);
        req = verify_from(0, 0, 1, 1);
        req.volume = 1;
        assert_int_equal(store_verify(t.s, &req), STORE_MISS);
}

static void every_chunk_of_a_full_store_is_met_by_verify(void **state)
{
        struct store_verified sum;

        t.params.limit = 32 * MIB;
        start();
        for (uint64_t i = 0; i < 1500; i++)
                put(i, 30000);
        assert_true(stats().evictions > 0);
        sum = verify_all(700, UINT64_MAX);
        assert_int_equal(sum.chunks, stats().chunks);
        assert_int_equal(sum.mismatched, 0);
}

/* The read of a bad chunk is held at the device. Meanwhile the chunk is dropped, and others need
 * its slot. */
static void
R7_a_slot_that_is_read_back_is_not_reused_and_a_dropped_chunk_is_no_finding(void **state)
{
        struct store_verify req = verify_from(0, 0, 1, 1);
        t.params.limit = 32 * MIB;
        start();
        put(0, 65536);
        put(1, 65536);
        flip(0, 17);
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_READ, .kind = FAULT_NEVER, .first = 1 });
        assert_int_equal(store_verify(t.s, &req), 0);
        wait_hits(1);
        drop(0);
        assert_false(present(0));
        /* Puts everything that fits, several times over, so that chunk 1, which is not pinned, is
         * evicted. */
        for (uint64_t n = 2; n < 1000; n++)
                put(n, 65536);
        assert_false(present(1));
        fault_set(NULL);
        fault_release();
        turn_until(verify_done, &req);
        assert_int_equal(req.result, 0);
        assert_int_equal(req.found.chunks, 0);
        assert_int_equal(req.found.mismatched, 0);
        assert_int_equal(stats().scrub_failures, 0);
        assert_int_equal(t.n_findings, 0);
        assert_int_equal(stats().scrub_pinned, 0);
}

static void on_purged(struct store_purge *req)
{
        req->complete = NULL;
}

static bool purge_done(const void *arg)
{
        return ((const struct store_purge *)arg)->complete == NULL;
}

static void a_purge_while_it_is_read_is_no_finding(void **state)
{
        struct store_verify req = verify_from(0, 0, 1000, UINT64_MAX);
        struct store_purge purge = { .all = true, .complete = on_purged };

        start();
        put_many(5);
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_READ, .kind = FAULT_NEVER, .first = 1 });
        assert_int_equal(store_verify(t.s, &req), 0);
        wait_hits(1);
        store_purge(t.s, &purge);
        fault_set(NULL);
        fault_release();
        turn_until(verify_done, &req);
        turn_until(purge_done, &purge);
        assert_int_equal(purge.result, 0);
        assert_int_equal(purge.dropped, 5);
        assert_int_equal(stats().scrub_pinned, 0);
        assert_int_equal(req.found.chunks, 0);
        assert_int_equal(stats().scrub_failures, 0);
}

static void an_error_that_passes_costs_nothing(void **state)
{
        struct store_verified sum;

        start();
        put_many(5);
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_READ, .kind = FAULT_ERROR, .error = EIO, .first = 1, .count = 2 });
        sum = verify_all(1000, UINT64_MAX);
        assert_int_equal(fault_hits(), 2);
        assert_int_equal(sum.chunks, 5);
        assert_int_equal(sum.unreadable, 0);
        assert_int_equal(stats().read_errors, 2);
        for (uint64_t i = 0; i < 5; i++)
                assert_true(present(i));
}

static void a_chunk_that_cannot_be_read_is_dropped_and_its_neighbours_stay(void **state)
{
        struct store_verified sum;

        start();
        put_many(5);
        /* Fails the read of all chunks, and then both reads of the first one alone. */
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_READ, .kind = FAULT_ERROR, .error = EIO, .first = 1, .count = 3 });
        sum = verify_all(1000, UINT64_MAX);
        assert_int_equal(fault_hits(), 3);
        assert_int_equal(sum.chunks, 5);
        assert_int_equal(sum.unreadable, 1);
        assert_int_equal(sum.mismatched, 0);
        assert_int_equal(t.n_findings, 1);
        assert_int_equal(t.findings[0].error, -EIO);
        assert_int_equal(stats().chunks, 4);
        assert_int_equal(stats().crc_failures, 0);
}

static void an_error_that_is_not_of_the_bytes_leaves_the_chunk(void **state)
{
        struct store_verified sum;

        start();
        put_many(8);
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_READ,
                                        .kind = FAULT_ERROR,
                                        .error = ENOMEM,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
        sum = verify_all(1000, UINT64_MAX);
        assert_int_equal(sum.chunks, 0);
        assert_int_equal(sum.skipped, 8);
        assert_int_equal(stats().chunks, 8);
        assert_int_equal(t.n_findings, 0);
}

static void a_device_that_reads_nothing_any_more_does_not_empty_the_store(void **state)
{
        struct store_verify req = verify_from(0, 0, 100000, UINT64_MAX);

        start();
        for (uint64_t i = 0; i < 200; i++)
                put(i, 4096);
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_READ,
                                        .kind = FAULT_ERROR,
                                        .error = EIO,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
        assert_int_equal(store_verify(t.s, &req), 0);
        turn_until(verify_done, &req);
        assert_int_equal(req.result, -EIO);
        assert_true(req.found.unreadable > 0);
        assert_true(stats().chunks >= 150);

        store_set_scrub(t.s, &(struct store_scrub){ .rate = 1024 * MIB, .interval_ms = 1 });
        wait_hits(fault_hits() + 10);
        fault_set(NULL);
        wait_passes(1);
        assert_true(stats().chunks >= 100);
        assert_int_equal(stats().scrub_pinned, 0);
}

static void a_short_read_is_read_on(void **state)
{
        struct store_verified sum;

        start();
        put_many(MANY);
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_READ, .kind = FAULT_SHORT, .one_in = 2, .seed = 7 });
        sum = verify_all(1000, UINT64_MAX);
        assert_true(fault_hits() > 0);
        assert_int_equal(sum.chunks, MANY);
        assert_int_equal(sum.mismatched + sum.unreadable + sum.skipped, 0);
}

/* The time between any two reads of a pass is that of the first one's bytes at the rate. */
static void a_pass_keeps_to_its_rate(void **state)
{
        const uint64_t rate = 16 * MIB;
        uint64_t began, took;

        start();
        for (uint64_t i = 0; i < 8; i++)
                put(i, 1 << 20);
        began = clock_mono_ns();
        store_set_scrub(t.s, &(struct store_scrub){ .rate = rate, .interval_ms = 1 });
        wait_passes(1);
        took = clock_mono_ns() - began;
        assert_int_equal(stats().scrub_bytes, 8 * MIB);
        /* The pass waited after all reads except the last. */
        assert_true(took >= (8 * MIB - 256 * KIB) * UINT64_C(1000000000) / rate);
        /* A request is neither delayed like background work, nor does it wait for a chunk that the
         * pass reads slowly. */
        store_set_scrub(t.s, &(struct store_scrub){ .rate = 4096, .interval_ms = 1 });
        assert_int_equal(verify_all(1000, UINT64_MAX).chunks, 8);
}

static void a_request_does_not_wait_for_a_slow_pass(void **state)
{
        uint64_t before;

        start();
        put(0, 4 << 20);
        store_set_scrub(t.s, &(struct store_scrub){ .rate = 4096, .interval_ms = 1 });
        before = stats().scrub_bytes;
        while (stats().scrub_bytes == before || kio_pending(t.io) > 0) {
                wait_for_work(1000000);
                turn_once();
        }
        /* The scrubber has read a piece and now waits a minute, with the chunk pinned. */
        assert_true(store_deadline_ns(t.s) > clock_mono_ns() + UINT64_C(30) * 1000000000);
        assert_int_equal(stats().scrub_pinned, 1);
        assert_int_equal(verify_all(10, UINT64_MAX).chunks, 1);
        stop();
}

static void a_slow_pass_that_is_switched_off_lets_go(void **state)
{
        start();
        put(0, 4 << 20);
        store_set_scrub(t.s, &(struct store_scrub){ .rate = 4096, .interval_ms = 1 });
        while (stats().scrub_bytes == 0 || kio_pending(t.io) > 0) {
                wait_for_work(1000000);
                turn_once();
        }
        assert_int_equal(stats().scrub_pinned, 1);
        store_set_scrub(t.s, &(struct store_scrub){ 0 });
        turn_once();
        assert_int_equal(stats().scrub_pinned, 0);
        assert_int_equal(stats().scrub_segments, 0);
        assert_int_equal(store_deadline_ns(t.s), 0);
}

struct held_put {
        struct store_put req;
        char *buf;
        bool done;
};

static void on_held_put(struct store_put *req)
{
        container_of(req, struct held_put, req)->done = true;
}

/* The device accepts no writes, so puts wait for a place in the queue. */
static void a_pass_waits_while_others_wait(void **state)
{
        static struct held_put puts[HELD];
        uint64_t until;

        t.depth = 4;
        start();
        put_many(8);
        while (kio_pending(t.io) > 0) { /* the first puts also write the superblock */
                assert_true(wait_for_work(20000000));
                turn_once();
        }
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_NEVER, .first = 1, .count = FAULT_FOR_EVER });
        for (unsigned i = 0; i < HELD; i++) {
                puts[i].done = false;
                puts[i].buf = aligned_alloc(4096, 4096);
                assert_non_null(puts[i].buf);
                memset(puts[i].buf, (int)i, 4096);
                puts[i].req = (struct store_put){
                        .namespace_id = t.ns,
                        .key = key_of(1000 + i),
                        .buf = puts[i].buf,
                        .length = 4096,
                        .crc = kio_crc32c(puts[i].buf, 4096),
                        .complete = on_held_put,
                };
                puts[i].req.hash = store_hash(t.s, t.ns, &puts[i].req.key);
                assert_int_equal(store_put(t.s, &puts[i].req), 0);
                /* The maximum number at the device are submitted one by one, because neighbours
                 * would be merged. The others wait. */
                if (i < t.depth)
                        wait_hits(i + 1);
        }
        until = clock_mono_ns() + UINT64_C(300) * 1000000;
        store_set_scrub(t.s, &(struct store_scrub){ .rate = 1024 * MIB, .interval_ms = 1 });
        while (clock_mono_ns() < until) {
                assert_true(wait_for_work(20000000));
                turn_once();
                if (clock_mono_ns() < until) /* scrubbing waits for a second */
                        assert_int_equal(stats().scrub_bytes, 0);
        }
        fault_set(NULL);
        fault_release();
        for (unsigned i = 0; i < HELD; i++) {
                turn_until(is_true, &puts[i].done);
                assert_int_equal(puts[i].req.result, 0);
        }
        wait_passes(1);
        assert_int_equal(stats().scrub_failures, 0);
        for (unsigned i = 0; i < HELD; i++)
                free(puts[i].buf);
}

static void the_end_of_the_store_ends_what_is_verified(void **state)
{
        struct store_verify reqs[3];

        start();
        put_many(MANY);
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_READ, .kind = FAULT_NEVER, .first = 1 });
        for (unsigned i = 0; i < ARRAY_SIZE(reqs); i++) {
                reqs[i] = verify_from(0, 0, 1000, UINT64_MAX);
                assert_int_equal(store_verify(t.s, &reqs[i]), 0);
        }
        wait_hits(1);
        store_stop(t.s);
        assert_true(store_pending(t.s) > 0);
        fault_set(NULL);
        fault_release();
        stop();
        for (unsigned i = 0; i < ARRAY_SIZE(reqs); i++) {
                assert_true(verify_done(&reqs[i]));
                assert_int_equal(reqs[i].result, -ECANCELED);
        }
}

static void too_many_at_once_are_refused(void **state)
{
        static struct store_verify reqs[200];
        unsigned n = 0;
        int r = 0;

        start();
        put_many(3);
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_READ, .kind = FAULT_NEVER, .first = 1 });
        for (; n < ARRAY_SIZE(reqs); n++) {
                reqs[n] = verify_from(0, 0, 1000, UINT64_MAX);
                r = store_verify(t.s, &reqs[n]);
                if (r != 0)
                        break;
        }
        assert_int_equal(r, STORE_FULL);
        assert_true(n >= 16);
        wait_hits(1);
        fault_set(NULL);
        fault_release();
        for (unsigned i = 0; i < n; i++) {
                turn_until(verify_done, &reqs[i]);
                assert_int_equal(reqs[i].result, 0);
                assert_int_equal(reqs[i].found.chunks, reqs[0].found.chunks);
        }
}

/* The read does not come back; the caller is answered, and the buffer stays the device's. */
static void R15_a_device_that_hangs_holds_up_no_other(void **state)
{
        struct store_verify reqs[2];

        t.params.hang_ms = 1000;
        start();
        put_many(MANY);
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_READ, .kind = FAULT_NEVER, .first = 1 });
        for (unsigned i = 0; i < ARRAY_SIZE(reqs); i++) {
                reqs[i] = verify_from(0, 0, 1000, UINT64_MAX);
                assert_int_equal(store_verify(t.s, &reqs[i]), 0);
        }
        wait_hits(1);
        while (!verify_done(&reqs[0]) || !verify_done(&reqs[1])) {
                struct pollfd p = { .fd = kio_fd(t.io), .events = POLLIN };

                poll(&p, 1, 10);
                store_tick(t.s);
                turn_once();
        }
        for (unsigned i = 0; i < ARRAY_SIZE(reqs); i++) {
                assert_int_equal(reqs[i].result, STORE_BYPASSED);
                assert_int_equal(reqs[i].found.chunks, 0);
        }
        assert_true(store_pending(t.s) > 0);
        assert_int_equal(store_verify(t.s, &reqs[0]), STORE_BYPASSED);
        fault_set(NULL);
        fault_release();
        stop();
        assert_int_equal(t.n_findings, 0);
}

/* --- stores opened as they are --- */

/* Names and sizes of all files, in one number. */
static uint64_t shape_of(const char *dir)
{
        DIR *d = opendir(dir);
        uint64_t sum = 0;
        struct stat st;

        assert_non_null(d);
        for (struct dirent *e; (e = readdir(d));)
                if (e->d_name[0] != '.' && fstatat(dirfd(d), e->d_name, &st, 0) == 0)
                        sum += kio_crc32c(e->d_name, strlen(e->d_name)) * UINT64_C(31) +
                               (uint64_t)st.st_size;
        closedir(d);
        return sum;
}

static void as_it_is_nothing_is_made_and_nothing_put(void **state)
{
        struct store_put req = { .buf = t.buf, .length = 100, .complete = on_put };
        uint64_t shape, mask;
        char error[512] = "";

        start();
        put_many(MANY);
        flip_some(&mask);
        stop();
        shape = shape_of(t.dir);

        t.params.as_is = true;
        t.params.limit = 1; /* ignored, because otherwise all chunks would be evicted */
        t.params.segment_bytes = 1;
        if (try_open(error) < 0)
                fail_msg("open: %s", error);
        assert_int_equal(stats().limit, 512 * MIB);
        assert_int_equal(stats().chunks, MANY);
        assert_true(stats().clean_start);
        assert_int_equal(verify_all(1000, UINT64_MAX).mismatched, __builtin_popcountll(mask));
        req.namespace_id = t.ns;
        req.key = key_of(5000);
        req.hash = store_hash(t.s, t.ns, &req.key);
        assert_int_equal(store_put(t.s, &req), STORE_BYPASSED);
        stop();
        assert_int_equal(shape_of(t.dir), shape);

        t.params.as_is = false;
        t.params.limit = 512 * MIB;
        t.params.segment_bytes = 8 * MIB;
        start();
        assert_true(stats().clean_start);
        check_found(mask);
}

/* A start with a higher limit makes the lists of namespaces larger before the superblock has that
 * limit. If it is killed in between, a full store exceeds the limit in its superblock. */
static void as_it_is_nothing_is_removed(void **state)
{
        static const char *const names[] = { "namespaces.0", "namespaces.1" };
        char error[512] = "", path[PATH_MAX + 32];
        uint64_t chunks, shape;

        t.params.limit = 16 * MIB;
        start();
        for (uint64_t i = 0; i < 400; i++)
                put(i, 50000);
        chunks = stats().chunks;
        stop();
        for (unsigned i = 0; i < ARRAY_SIZE(names); i++) {
                snprintf(path, sizeof(path), "%s/%s", t.dir, names[i]);
                assert_int_equal(truncate(path, 2 * MIB), 0);
        }
        shape = shape_of(t.dir);
        t.params.as_is = true;
        if (try_open(error) < 0)
                fail_msg("open: %s", error);
        assert_int_equal(stats().chunks, chunks);
        assert_int_equal(verify_all(1000, UINT64_MAX).mismatched, 0);
        stop();
        assert_int_equal(shape_of(t.dir), shape);
        t.params.as_is = false;
        t.params.limit = 32 * MIB;
        start();
        assert_int_equal(stats().chunks, chunks);
        stop();
}

/* This store is from an old version. */
static void as_it_is_a_small_table_stays_small(void **state)
{
        char error[512] = "", name[PATH_MAX + 8];
        struct stat st;

        start();
        stop();
        snprintf(name, sizeof(name), "%s/table", t.dir);
        assert_int_equal(truncate(name, 64 * 4096), 0);
        t.params.as_is = true;
        if (try_open(error) < 0)
                fail_msg("open: %s", error);
        verify_all(1000, UINT64_MAX);
        stop();
        assert_int_equal(stat(name, &st), 0);
        assert_int_equal(st.st_size, 64 * 4096);
}

static void as_it_is_an_empty_store_stays_empty(void **state)
{
        char error[512] = "";
        uint64_t shape;

        start();
        stop();
        shape = shape_of(t.dir);
        t.params.as_is = true;
        if (try_open(error) < 0)
                fail_msg("open: %s", error);
        assert_int_equal(verify_all(1, 1).chunks, 0);
        stop();
        assert_int_equal(shape_of(t.dir), shape);
}

/* Verifies one of two volumes alone, after which they are one store as before. */
static void as_it_is_one_volume_of_several(void **state)
{
        static const char *both[2];
        struct store_verified sum;
        char other[PATH_MAX], error[512] = "";
        const char *const *one = t.params.paths;
        uint64_t chunks;

        if ((size_t)snprintf(other, sizeof(other), "%s/second", t.dir) >= sizeof(other))
                fail_msg("too long a name");
        both[0] = other;
        both[1] = t.dir;
        /* The second directory is inside the first one, which must become a store before. */
        start();
        stop();
        t.params.paths = both;
        t.params.n_paths = 2;
        start();
        for (uint64_t i = 0; i < 60; i++)
                put(i, 50000);
        chunks = stats().chunks;
        assert_int_equal(chunks, 60);
        stop();

        t.params.n_paths = 1;
        t.params.as_is = true;
        for (unsigned i = 0; i < 2; i++) {
                t.params.paths = &both[i];
                if (try_open(error) < 0)
                        fail_msg("open: %s", error);
                assert_in_range(stats().chunks, 1, 59);
                chunks -= stats().chunks;
                sum = verify_all(1000, UINT64_MAX);
                assert_int_equal(sum.chunks, stats().chunks);
                assert_int_equal(sum.mismatched, 0);
                stop();
        }
        assert_int_equal(chunks, 0);

        t.params.as_is = false;
        t.params.n_paths = 2;
        t.params.paths = both;
        start();
        assert_int_equal(stats().chunks, 60);
        assert_true(stats().clean_start);
        for (uint64_t i = 0; i < 60; i++)
                assert_int_equal(get(i, 50000), 0);
        stop();
        t.params.n_paths = 1;
        t.params.paths = one;
        folder_remove(other);
}

static const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(a_pass_reads_every_chunk_and_leaves_good_ones_alone),
        T(no_pass_unless_asked_for),
        T(the_first_pass_comes_an_interval_after_opening_at_most_an_hour),
        T(a_pass_over_nothing_ends_and_does_not_spin),
        T(a_pass_finds_every_flipped_bit_and_nothing_else),
        T(a_get_that_finds_one_tells_of_it),
        T(verify_finds_the_same_and_it_stays_dropped),
        T(verify_is_bounded_as_it_was_asked),
        T(every_chunk_of_a_full_store_is_met_by_verify),
        T(R7_a_slot_that_is_read_back_is_not_reused_and_a_dropped_chunk_is_no_finding),
        T(a_purge_while_it_is_read_is_no_finding),
        T(an_error_that_passes_costs_nothing),
        T(a_chunk_that_cannot_be_read_is_dropped_and_its_neighbours_stay),
        T(an_error_that_is_not_of_the_bytes_leaves_the_chunk),
        T(a_device_that_reads_nothing_any_more_does_not_empty_the_store),
        T(a_short_read_is_read_on),
        T(a_pass_keeps_to_its_rate),
        T(a_request_does_not_wait_for_a_slow_pass),
        T(a_slow_pass_that_is_switched_off_lets_go),
        T(a_pass_waits_while_others_wait),
        T(the_end_of_the_store_ends_what_is_verified),
        T(too_many_at_once_are_refused),
        T(R15_a_device_that_hangs_holds_up_no_other),
        T(as_it_is_nothing_is_made_and_nothing_put),
        T(as_it_is_nothing_is_removed),
        T(as_it_is_a_small_table_stays_small),
        T(as_it_is_an_empty_store_stays_empty),
        T(as_it_is_one_volume_of_several),
};

int main(int argc, char **argv)
{
        int failed;

        if (argc > 1)
                cmocka_set_test_filter(argv[1]);
        t.root = getenv("TMPDIR") ? getenv("TMPDIR") : "/var/tmp";
        t.direct = true;
        failed = cmocka_run_group_tests_name("scrub, O_DIRECT", tests, NULL, NULL);
        t.root = "/dev/shm";
        t.direct = false;
        if (access(t.root, W_OK) == 0)
                failed += cmocka_run_group_tests_name("scrub, tmpfs, buffered", tests, NULL, NULL);
        return failed;
}
