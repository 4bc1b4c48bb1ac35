/* SPDX-License-Identifier: Apache-2.0 */
/* Uses libkvcache's registered buffers, for test_buffers.py: region-client SOCKET SCENARIO
 *
 *     roundtrip   odd sizes at odd places, pieces, mixed memory: gets return the bytes
 *                 that were put, and change nothing else
 *     restart     prints "ready" and waits for a line, three times, while the test restarts the
 *                 daemon
 *     settled     prints "ready", waits for a line, then keeps gets in flight until the
 *                 daemon has ended
 *
 * The last line is "ok", and the exit status 0, if everything was right. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <kvcache.h>

enum { KIB = 1 << 10, MIB = 1 << 20, GUARD = 0xee, REUSED = 0x5a };

#define CHECK(x)                                                                                   \
        do {                                                                                       \
                if (!(x)) {                                                                        \
                        printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #x,                          \
                               kv ? kvcache_error(kv) : "");                                       \
                        exit(1);                                                                   \
                }                                                                                  \
        } while (0)

static struct kvcache *kv;
static uint32_t ns;

static void start(const char *socket_path)
{
        struct kvcache_options o = { .size = sizeof(o),
                                     .socket_path = socket_path,
                                     .client_name = "region-client" };
        struct kvcache_namespace_options n = { .size = sizeof(n),
                                               .name = "regions",
                                               .fingerprint = "" };
        char why[512] = "";

        if (kvcache_connect(&kv, &o, why, sizeof(why)) < 0) {
                printf("no daemon: %s\n", why);
                exit(1);
        }
        CHECK(kvcache_namespace_open(kv, &n, &ns) == 0);
}

static int sealed_memfd(size_t bytes)
{
        int fd = memfd_create("region-client", MFD_CLOEXEC | MFD_ALLOW_SEALING);

        CHECK(fd >= 0 && posix_fallocate(fd, 0, (off_t)bytes) == 0);
        CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
        return fd;
}

static uint8_t *register_buffer(int fd, uint64_t offset, uint64_t bytes, void *base,
                                uint32_t *ret_region)
{
        struct kvcache_buffer_options o = {
                .size = sizeof(o), .fd = fd, .offset = offset, .bytes = bytes, .base = base
        };
        void *where = NULL;

        CHECK(kvcache_buffer_register(kv, &o, ret_region, &where) == 0);
        return where;
}

static struct kvcache_key key_of(uint64_t n)
{
        struct kvcache_key k = { { 0 } };

        n++;
        memcpy(k.bytes, &n, sizeof(n));
        memset(k.bytes + 16, 0x77, 16);
        return k;
}

static uint8_t byte_of(uint64_t n, size_t i)
{
        return (uint8_t)(n * 31 + i * 7 + (i >> 8) + (i >> 16));
}

static void fill(uint8_t *p, size_t bytes, uint64_t n)
{
        for (size_t i = 0; i < bytes; i++)
                p[i] = byte_of(n, i);
}

static bool filled(const uint8_t *p, size_t bytes, uint64_t n)
{
        for (size_t i = 0; i < bytes; i++)
                if (p[i] != byte_of(n, i))
                        return false;
        return true;
}

/* Returns whether all memory outside [at, at + bytes) is unchanged. */
static bool guarded(const uint8_t *base, size_t size, size_t at, size_t bytes)
{
        for (size_t i = 0; i < size; i++)
                if ((i < at || i >= at + bytes) && base[i] != GUARD)
                        return false;
        return true;
}

static int call(enum kvcache_op op, enum kvcache_ack ack, const struct kvcache_entry *e, size_t n,
                struct kvcache_result *r)
{
        struct kvcache_request q = {
                .size = sizeof(q),
                .entry_size = sizeof(struct kvcache_entry),
                .result_size = sizeof(struct kvcache_result),
                .op = op,
                .namespace_handle = ns,
                .ack = op == KVCACHE_OP_PUT ? ack : 0,
                .entries = e,
                .count = n,
                .results = r,
        };

        return kvcache_submit_and_wait(kv, &q, NULL);
}

static void evict_from_memory(const struct kvcache_key *keys, size_t n)
{
        struct kvcache_result *r = calloc(n, sizeof(*r));
        struct kvcache_request q = {
                .size = sizeof(q),
                .entry_size = sizeof(struct kvcache_entry),
                .result_size = sizeof(struct kvcache_result),
                .op = KVCACHE_OP_EVICT,
                .namespace_handle = ns,
                .tiers = KVCACHE_TIER_MEMORY,
                .keys = keys,
                .count = n,
                .results = r,
        };

        CHECK(r);
        (void)kvcache_submit_and_wait(kv, &q, NULL);
        free(r);
}

static void wait_for_a_line(void)
{
        char line[16];

        printf("ready\n");
        fflush(stdout);
        CHECK(fgets(line, sizeof(line), stdin));
}

/* --- roundtrip --- */

static void one_trip(uint8_t *base, size_t size, uint64_t n, size_t bytes, size_t at, size_t back)
{
        struct kvcache_entry e = { .key = key_of(n), .data = base + at, .length = bytes };
        struct kvcache_result r;

        memset(base, GUARD, size);
        fill(base + at, bytes, n);
        CHECK(call(KVCACHE_OP_PUT, n % 3, &e, 1, &r) == 0);
        CHECK(r.status == KVCACHE_OK || r.status == KVCACHE_NOT_DURABLE);
        CHECK(filled(base + at, bytes, n) && guarded(base, size, at, bytes));
        for (int i = 0; i < 2; i++) {
                if (i == 0)
                        evict_from_memory(&e.key, 1);
                memset(base, GUARD, size);
                e.data = base + back;
                CHECK(call(KVCACHE_OP_GET_INTO, 0, &e, 1, &r) == 0);
                CHECK(r.status == KVCACHE_OK && r.length == bytes);
                CHECK(filled(base + back, bytes, n) && guarded(base, size, back, bytes));
        }
}

static void in_pieces(uint8_t *base, size_t size, uint8_t *own)
{
        enum { N = 3000, EACH = 37 };
        struct iovec *p = calloc(N, sizeof(*p));
        struct kvcache_result r[2];
        uint8_t *whole = malloc(N * EACH);

        CHECK(p && whole);
        for (unsigned elsewhere = 0; elsewhere < 2; elsewhere++) {
                struct kvcache_entry e[2] = {
                        { .key = key_of(1000 + elsewhere), .pieces = p, .n_pieces = N },
                        { .key = key_of(1010 + elsewhere), .data = own, .length = 5000 },
                };

                fill(whole, N * EACH, 1000 + elsewhere);
                memset(base, GUARD, size);
                for (unsigned i = 0; i < N; i++) {
                        p[i] = (struct iovec){ base + (N - i) * 50, EACH };
                        memcpy(p[i].iov_base, whole + i * EACH, EACH);
                }
                if (elsewhere) { /* then the library gathers and scatters */
                        p[7].iov_base = own + 6000;
                        memcpy(p[7].iov_base, whole + 7 * EACH, EACH);
                }
                fill(own, 5000, 1010 + elsewhere);
                CHECK(call(KVCACHE_OP_PUT, KVCACHE_WRITTEN, e, 2, r) == 0);
                CHECK(r[0].status == KVCACHE_OK && r[1].status == KVCACHE_OK);
                memset(base, GUARD, size);
                memset(own, 0, 10000);
                CHECK(call(KVCACHE_OP_GET_INTO, 0, e, elsewhere ? 2 : 1, r) == 0);
                CHECK(r[0].status == KVCACHE_OK && r[0].length == N * EACH);
                for (unsigned i = 0; i < N; i++) {
                        CHECK(memcmp(p[i].iov_base, whole + i * EACH, EACH) == 0);
                        CHECK(((uint8_t *)base)[(N - i) * 50 + EACH] == GUARD);
                }
                if (elsewhere)
                        CHECK(filled(own, 5000, 1011));
        }
        free(whole);
        free(p);
}

static void roundtrip(void)
{
        static const size_t sizes[] = { 1, 4095, 4096, 4097, 64 * KIB + 1, 2 * MIB - 3, 2 * MIB };
        size_t size = 6 * MIB;
        uint32_t region, other;
        uint8_t *base, *own = malloc(10000);
        int fd = sealed_memfd(size);
        struct kvcache_buffer_options bad = { .size = sizeof(bad), .bytes = 4096 };
        uint64_t n = 0;
        void *where;

        CHECK(own);
        base = register_buffer(fd, 0, size, NULL, &region);
        for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
                for (unsigned k = 0; k < 3; k++) {
                        one_trip(base, size, n++, sizes[i], 0, 3 * MIB);
                        one_trip(base, size, n++, sizes[i], 12 * KIB, 3 * MIB + 1);
                        one_trip(base, size, n++, sizes[i], 4099, size - sizes[i]);
                }
        in_pieces(base, size, own);

        /* A hole is filled; other unusable memory is refused in the daemon's words. */
        bad.fd = memfd_create("hole", MFD_CLOEXEC);
        CHECK(bad.fd >= 0 && ftruncate(bad.fd, 8192) == 0);
        CHECK(kvcache_buffer_register(kv, &bad, &other, &where) == -EINVAL);
        CHECK(strstr(kvcache_error(kv), "hole")); /* behind the stretch, where it fills nothing */
        bad.bytes = 8192;
        CHECK(kvcache_buffer_register(kv, &bad, &other, &where) == 0);
        CHECK(kvcache_buffer_unregister(kv, other) == 0);
        bad.bytes = 3 * 4096;
        CHECK(kvcache_buffer_register(kv, &bad, &other, &where) == -EINVAL);
        CHECK(kvcache_buffer_unregister(kv, region) == 0);
        CHECK(kvcache_buffer_unregister(kv, region) == -EINVAL);
        CHECK(kvcache_memory_settled(kv, own, 1) == 1);
        close(bad.fd);
        close(fd);
        free(own);
}

/* --- restart --- */

static void restart(void)
{
        enum { ROUNDS = 3, BYTES = 70000 };
        int fd = sealed_memfd(2 * MIB), other_fd = sealed_memfd(2 * MIB);
        uint8_t *mine = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, other_fd, MIB);
        uint32_t region, other;
        uint8_t *base;

        CHECK(mine != MAP_FAILED);
        base = register_buffer(fd, 0, 2 * MIB, NULL, &region);
        CHECK(register_buffer(other_fd, MIB, MIB, mine, &other) == mine);
        close(fd);
        close(other_fd); /* the library has its own */
        for (uint64_t round = 0; round <= ROUNDS; round++) {
                struct kvcache_entry e[2];
                struct kvcache_result r[2];

                for (uint64_t before = 0; before < round; before++) {
                        memset(base, 0, 2 * MIB);
                        memset(mine, 0, MIB);
                        e[0] = (struct kvcache_entry){ key_of(2 * before), mine + 4096, BYTES };
                        e[1] = (struct kvcache_entry){ key_of(2 * before + 1), base + 17, BYTES };
                        CHECK(call(KVCACHE_OP_GET_INTO, 0, e, 2, r) == 0);
                        CHECK(r[0].status == KVCACHE_OK && r[1].status == KVCACHE_OK);
                        CHECK(filled(mine + 4096, BYTES, 2 * before));
                        CHECK(filled(base + 17, BYTES, 2 * before + 1));
                }
                if (round == ROUNDS)
                        break;
                fill(base + 4096, BYTES, 2 * round);
                fill(mine + 1, BYTES, 2 * round + 1);
                e[0] = (struct kvcache_entry){ key_of(2 * round), base + 4096, BYTES };
                e[1] = (struct kvcache_entry){ key_of(2 * round + 1), mine + 1, BYTES };
                CHECK(call(KVCACHE_OP_PUT, KVCACHE_WRITTEN, e, 2, r) == 0);
                CHECK(r[0].status == KVCACHE_OK && r[1].status == KVCACHE_OK);
                wait_for_a_line();
        }
        CHECK(kvcache_buffer_unregister(kv, other) == 0);
        CHECK(kvcache_buffer_unregister(kv, region) == 0);
        munmap(mine, MIB);
}

/* --- settled --- */

static double seconds(void)
{
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void settled(void)
{
        enum { KEYS = 12 };
        int fd = sealed_memfd(KEYS * MIB);
        struct kvcache_key keys[KEYS];
        struct kvcache_result r[KEYS];
        struct kvcache_entry e[KEYS];
        uint32_t region, lost = 0;
        uint8_t *base;
        double began;

        base = register_buffer(fd, 0, KEYS * MIB, NULL, &region);
        for (unsigned i = 0; i < KEYS; i++) {
                keys[i] = key_of(5000 + i);
                e[i] = (struct kvcache_entry){ keys[i], base + i * MIB, MIB };
                fill(e[i].data, MIB, 5000 + i);
        }
        CHECK(call(KVCACHE_OP_PUT, KVCACHE_WRITTEN, e, KEYS, r) == 0);
        for (unsigned i = 0; i < KEYS; i++)
                CHECK(r[i].status == KVCACHE_OK || r[i].status == KVCACHE_EXISTS);
        wait_for_a_line();

        for (began = seconds(); lost == 0 && seconds() - began < 60;) {
                struct kvcache_completion c;

                for (unsigned i = 0; i < KEYS; i++)
                        r[i] = (struct kvcache_result){ .status = KVCACHE_BUSY };
                evict_from_memory(keys, KEYS);
                memset(base, 0, KEYS * MIB);
                for (unsigned i = 0; i < KEYS; i++) {
                        struct kvcache_request q = {
                                .size = sizeof(q),
                                .entry_size = sizeof(struct kvcache_entry),
                                .result_size = sizeof(struct kvcache_result),
                                .op = KVCACHE_OP_GET_INTO,
                                .namespace_handle = ns,
                                .entries = &e[i],
                                .count = 1,
                                .results = &r[i],
                        };

                        if (kvcache_submit(kv, &q) < 0) {
                                lost++; /* the daemon has ended already */
                                break;
                        }
                }
                while (kvcache_inflight(kv) > 0)
                        CHECK(kvcache_reap(kv, &c, 1, -1) >= 0);
                for (unsigned i = 0; i < KEYS; i++)
                        lost += r[i].status == KVCACHE_LOST;
        }
        CHECK(lost > 0);
        for (began = seconds(); kvcache_memory_settled(kv, base, KEYS * MIB) == 0;) {
                CHECK(seconds() - began < 30);
                usleep(200);
        }
        /* Answered memory has the chunk, the rest belongs to the caller again, and both must stay
         * so. */
        for (unsigned i = 0; i < KEYS; i++)
                if (r[i].status == KVCACHE_LOST)
                        memset(e[i].data, REUSED, MIB);
        usleep(200000);
        for (unsigned i = 0; i < KEYS; i++) {
                const uint8_t *p = e[i].data;

                if (r[i].status == KVCACHE_OK)
                        CHECK(filled(p, MIB, 5000 + i));
                for (unsigned at = 0; r[i].status == KVCACHE_LOST && at < MIB; at++)
                        CHECK(p[at] == REUSED);
        }
        CHECK(kvcache_buffer_unregister(kv, region) == 0);
        close(fd);
}

int main(int argc, char **argv)
{
        if (argc != 3) {
                fprintf(stderr, "usage: region-client SOCKET SCENARIO\n");
                return 2;
        }
        start(argv[1]);
        if (strcmp(argv[2], "roundtrip") == 0)
                roundtrip();
        else if (strcmp(argv[2], "restart") == 0)
                restart();
        else if (strcmp(argv[2], "settled") == 0)
                settled();
        else
                return 2;
        kvcache_close(kv);
        printf("ok\n");
        return 0;
}
