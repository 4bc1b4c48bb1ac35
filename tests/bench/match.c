/* SPDX-License-Identifier: Apache-2.0 */
/* Measures how long the library takes to find the leading run of a chain: one MATCH at a time, for
 * chains of --batch stored keys. Each call draws new keys from all --count chunks, so that an index
 * of millions of them is in no cache; drawing is not measured. The library decides whether a call
 * reaches the daemon, and the daemon's counter of requests shows that. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"

enum { CALLS_MAX = 1 << 18 };

static int compare(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

        return (x > y) - (x < y);
}

static int match_slice(const struct bench_options *o, struct kvcache *kv, uint32_t namespace_handle,
                       const struct bench_step *step, struct kvcache_key *keys, uint64_t *samples)
{
        uint64_t end = bench_now_ns() + (uint64_t)(step->seconds * 1e9), n = 0;
        struct kvcache_request request;

        kvcache_prep_match(&request, namespace_handle, keys, o->batch);
        do {
                uint64_t begin, run = 0;
                int r;

                for (uint64_t i = 0; i < o->batch; i++)
                        keys[i] = bench_key(
                                o, o->first + ((uint64_t)random() << 31 | (uint64_t)random()) %
                                                      o->count);
                begin = bench_now_ns();
                r = kvcache_submit_and_wait(kv, &request, &run);
                samples[n++] = bench_now_ns() - begin;
                if (r < 0)
                        return bench_fail("cannot match: %s", kvcache_error(kv));
                if (run != o->batch)
                        return bench_fail("only %" PRIu64 " of %" PRIu64 " keys are there", run,
                                          o->batch);
        } while (n < CALLS_MAX && bench_now_ns() < end);
        qsort(samples, n, sizeof(*samples), compare);
        printf("{\"calls\": %" PRIu64 ", \"p50_ns\": %" PRIu64 ", \"p99_ns\": %" PRIu64 "}", n,
               samples[n / 2], samples[n * 99 / 100]);
        bench_answer();
        return 0;
}

int mode_match(const struct bench_options *o)
{
        struct kvcache_key *keys = calloc(o->batch, sizeof(*keys));
        uint64_t *samples = calloc(CALLS_MAX, sizeof(*samples));
        struct kvcache *kv = NULL;
        uint32_t namespace_handle;
        struct bench_step step;
        int r;

        srandom((unsigned)o->seed + 1);
        if (!keys || !samples)
                r = bench_fail("out of memory");
        else if (o->count == 0)
                r = bench_fail("--count says how many chunks are there");
        else
                r = bench_open(o, true, &kv, &namespace_handle);
        while (r == 0 && bench_next(o, &step))
                r = match_slice(o, kv, namespace_handle, &step, keys, samples);
        kvcache_close(kv);
        free(keys);
        free(samples);
        return r;
}
