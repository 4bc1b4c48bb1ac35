/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the cost of the pool's mapping to a new client, by first reads of hits or, with
 * --populate, when it connects; and idle connections.
 *
 * Each step of `touch` is a new connection: --count chunks from --first on are got, and each is
 * read from its first byte to its last, twice. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"

static int compare(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

        return (x > y) - (x < y);
}

/* Reads a word of each cache line. Returns the nanoseconds that this took. */
static uint64_t read_ns(const void *data, uint64_t length)
{
        const uint64_t *words = data;
        uint64_t begin = bench_now_ns(), sum = 0;

        for (uint64_t i = 0; i < length / sizeof(*words); i += 64 / sizeof(*words))
                sum += words[i];
        __asm__ volatile("" ::"r"(sum)); /* keeps it */
        return bench_now_ns() - begin;
}

static int touch_hits(const struct bench_options *o, struct kvcache *kv, uint32_t namespace_handle,
                      uint64_t *first, uint64_t *again, uint64_t *ret_n)
{
        uint64_t n = 0;

        for (uint64_t i = 0; i < o->count; i++) {
                struct kvcache_key key = bench_key(o, o->first + i);
                struct kvcache_result result;
                int r = kvcache_get_map(kv, namespace_handle, &key, &result);

                if (r < 0)
                        return bench_fail("cannot get: %s", kvcache_error(kv));
                if (r != KVCACHE_OK)
                        continue;
                if (result.tiers & KVCACHE_TIER_MEMORY) {
                        first[n] = read_ns(result.data, result.length);
                        again[n++] = read_ns(result.data, result.length);
                }
                (void)kvcache_release(kv, &result.lease, 1);
        }
        if (n == 0)
                return bench_fail("no chunk is in memory");
        *ret_n = n;
        return 0;
}

int mode_touch(const struct bench_options *o)
{
        uint64_t *first = calloc(o->count + 1, sizeof(*first)),
                 *again = calloc(o->count + 1, sizeof(*again)), n = 0, connect_ns;
        struct bench_step step;
        int r = 0;

        if (!first || !again)
                r = bench_fail("out of memory");
        while (r == 0 && bench_next(o, &step)) {
                uint64_t begin = bench_now_ns();
                struct kvcache *kv = NULL;
                uint32_t namespace_handle;

                r = bench_open(o, true, &kv, &namespace_handle);
                connect_ns = bench_now_ns() - begin;
                if (r == 0)
                        r = touch_hits(o, kv, namespace_handle, first, again, &n);
                kvcache_close(kv);
                if (r != 0)
                        break;
                qsort(first, n, sizeof(*first), compare);
                qsort(again, n, sizeof(*again), compare);
                printf("{\"chunks\": %" PRIu64 ", \"connect_ns\": %" PRIu64
                       ", \"first_ns\": %" PRIu64 ", \"again_ns\": %" PRIu64 "}",
                       n, connect_ns, first[n / 2], again[n / 2]);
                bench_answer();
        }
        free(first);
        free(again);
        return r;
}

int mode_idle(const struct bench_options *o)
{
        struct kvcache **kv = calloc(o->connections + 1, sizeof(struct kvcache *));
        uint64_t n = 0;
        uint32_t namespace_handle;
        struct bench_step step;
        int r = kv ? 0 : bench_fail("out of memory");

        while (r == 0 && n < o->connections) {
                r = bench_open(o, false, &kv[n], &namespace_handle);
                n += r == 0;
        }
        while (r == 0 && bench_next(o, &step)) {
                printf("{\"connections\": %" PRIu64 "}", n);
                bench_answer();
        }
        while (n > 0)
                kvcache_close(kv[--n]);
        free(kv);
        return r;
}
