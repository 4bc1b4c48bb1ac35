/* SPDX-License-Identifier: Apache-2.0 */
/* One round trip at a time: a mapped hit through the library, and the same bytes to and from an
 * echo server.
 *
 * One thread does both, in slices that alternate, the first of a pair in turn. The echo is asked
 * with a plain send() and recv() that block: it has no library, no lease, no lookup. Its messages
 * are as long as the hit's are: a batch of one key with one release riding along, and the reply
 * with one result. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "bench.h"
#include "checked.h"
#include "wire.h"

enum {
        REQUEST_BYTES =
                sizeof(struct wire_batch) + sizeof(struct wire_get) + sizeof(struct wire_lease),
        REPLY_BYTES = sizeof(struct wire_reply) + sizeof(struct wire_get_result),
        KEYS = 64,
        SAMPLES_MAX = 1 << 20,
};

struct rtt {
        const struct bench_options *o;
        struct kvcache *kv;
        uint32_t namespace_handle;
        struct kvcache_key keys[KEYS];
        uint64_t next;
        int echo_fd;
        uint32_t *samples;
};

static int compare(const void *a, const void *b)
{
        uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

        return (x > y) - (x < y);
}

static int echo_connect(const char *path, int *ret)
{
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        int fd;

        if (!path || strlen(path) >= sizeof(address.sun_path))
                return bench_fail("--echo needs a socket's path");
        memcpy(address.sun_path, path, strlen(path));
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return bench_fail("no socket: %s", strerror(errno));
        if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
                bench_fail("cannot connect to the echo: %s", strerror(errno));
                close(fd);
                return 1;
        }
        *ret = fd;
        return 0;
}

static int echo_once(struct rtt *t)
{
        static uint8_t request[REQUEST_BYTES], reply[REPLY_BYTES];
        uint32_t bytes = REPLY_BYTES;

        memcpy(request, &bytes, sizeof(bytes)); /* the echo answers with so many */
        if (send(t->echo_fd, request, sizeof(request), 0) != sizeof(request) ||
            recv(t->echo_fd, reply, sizeof(reply), 0) != sizeof(reply))
                return bench_fail("the echo fails: %s", strerror(errno));
        return 0;
}

static int hit_once(struct rtt *t)
{
        const struct kvcache_key *key = &t->keys[t->next++ % KEYS];
        struct kvcache_result result;
        int r;

        r = kvcache_get_map(t->kv, t->namespace_handle, key, &result);
        if (r < 0)
                return bench_fail("cannot get: %s", kvcache_error(t->kv));
        if (r != KVCACHE_OK)
                return bench_fail("a hit was wanted, the answer is: %s", kvcache_status_name(r));
        if (!(result.tiers & KVCACHE_TIER_MEMORY))
                return bench_fail("a hit in memory was wanted, it came from the disk");
        /* Rides on the next request. */
        r = kvcache_release(t->kv, &result.lease, 1);
        return r < 0 ? bench_fail("cannot release: %s", kvcache_error(t->kv)) : 0;
}

static int slice(struct rtt *t, int (*once)(struct rtt *t), uint32_t *ret_p50_ns,
                 uint32_t *ret_p99_ns)
{
        uint64_t begin = bench_now_ns(), end = begin + t->o->slice_ms * 1000000, before = begin,
                 now;
        uint64_t n = 0;
        int r;

        do {
                r = once(t);
                if (r != 0)
                        return r;
                now = bench_now_ns();
                t->samples[n++] = (uint32_t)MIN(now - before, (uint64_t)UINT32_MAX);
                before = now;
        } while (now < end && n < SAMPLES_MAX);
        qsort(t->samples, n, sizeof(*t->samples), compare);
        *ret_p50_ns = t->samples[n / 2];
        *ret_p99_ns = t->samples[n * 99 / 100];
        return 0;
}

static int pairs(struct rtt *t)
{
        uint32_t hit = 0, hit_p99 = 0, echo = 0, echo_p99 = 0, warm;
        int r;

        r = slice(t, hit_once, &warm, &warm);
        if (r == 0)
                r = slice(t, echo_once, &warm, &warm);
        for (uint64_t i = 0; r == 0 && i < t->o->pairs; i++) {
                if (i % 2 == 0)
                        r = slice(t, echo_once, &echo, &echo_p99);
                if (r == 0)
                        r = slice(t, hit_once, &hit, &hit_p99);
                if (r == 0 && i % 2 == 1)
                        r = slice(t, echo_once, &echo, &echo_p99);
                if (r == 0)
                        printf("%s{\"hit_p50_ns\": %" PRIu32 ", \"hit_p99_ns\": %" PRIu32
                               ", \"echo_p50_ns\": %" PRIu32 ", \"echo_p99_ns\": %" PRIu32 "}",
                               i == 0 ? "[" : ", ", hit, hit_p99, echo, echo_p99);
        }
        if (r == 0) {
                putchar(']');
                bench_answer();
        }
        return r;
}

/* Chunks to hit: put if they are not there, and got once. */
static int prepare(struct rtt *t)
{
        uint64_t size = t->o->size;
        uint8_t *data = malloc(size);
        int r = 0;

        if (!data)
                return bench_fail("out of memory");
        content_fill(data, size, 0);
        for (uint64_t i = 0; i < KEYS && r == 0; i++) {
                t->keys[i] = content_key(i);
                content_stamp(data, size, i, 0);
                r = kvcache_put(t->kv, t->namespace_handle, &t->keys[i], data, size,
                                KVCACHE_WRITTEN);
                if (r < 0)
                        r = bench_fail("cannot put: %s", kvcache_error(t->kv));
                else if (r != KVCACHE_OK && r != KVCACHE_EXISTS)
                        r = bench_fail("cannot put: %s", kvcache_status_name(r));
                else
                        r = 0;
        }
        free(data);
        return r;
}

int mode_rtt(const struct bench_options *o)
{
        struct rtt t = { .o = o, .echo_fd = -1 };
        struct bench_step step;
        int r;

        t.samples = calloc(SAMPLES_MAX, sizeof(*t.samples));
        if (!t.samples)
                return bench_fail("out of memory");
        r = bench_open(o, false, &t.kv, &t.namespace_handle);
        if (r == 0)
                r = echo_connect(o->echo_path, &t.echo_fd);
        if (r == 0)
                r = prepare(&t);
        while (r == 0 && bench_next(o, &step))
                r = pairs(&t);
        if (t.echo_fd >= 0)
                close(t.echo_fd);
        kvcache_close(t.kv);
        free(t.samples);
        return r;
}
