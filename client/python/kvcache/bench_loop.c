/* SPDX-License-Identifier: Apache-2.0 */
/* The baseline of `python -m kvcache.bench`: submits the same request from C. */
#include <stddef.h>
#include <stdint.h>

typedef int (*call_fn)(void *kv, const void *request, uint64_t *value);
typedef int (*release_fn)(void *kv, const void *leases, size_t n);

/* A copy of struct kvcache_result of kvcache.h. */
struct result {
        int status;
        uint32_t tiers;
        uint64_t length, chunk_length;
        const void *data;
        struct {
                uint32_t id, generation;
        } lease;
        uint64_t created_ms;
        uint32_t crc32c, leases;
};

/* Submits the request `rounds` times, and releases each result's lease if `release` is given.
 * Returns the first negative answer, or the number of statuses that were not 0. */
int bench_loop(call_fn call, release_fn release, void *kv, const void *request,
               const struct result *results, size_t count, unsigned rounds);
int bench_loop(call_fn call, release_fn release, void *kv, const void *request,
               const struct result *results, size_t count, unsigned rounds)
{
        int wrong = 0;

        while (rounds-- > 0) {
                uint64_t value;
                int r = call(kv, request, &value);

                if (r < 0)
                        return r;
                for (size_t i = 0; results && i < count; i++) {
                        wrong += results[i].status != 0;
                        if (release)
                                (void)release(kv, &results[i].lease, 1);
                }
        }
        return wrong;
}
