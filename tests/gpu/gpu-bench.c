/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the rate of blocks by every engine, in pieces of several sizes, beside the bus and
 * memcpy(). */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "checked.h"
#include "gpu-check.h"

enum { MOST_ROUNDS = 7 };

static const char *const engines[] = { "auto", "kernel", "batch", "plain", "bounce" };

static unsigned rounds = MOST_ROUNDS; /* the result is their median */

/* Returns the GB/s of the median round. */
static double bench_get(struct rig *r, struct load *w)
{
        double s[MOST_ROUNDS];
        size_t n;

        (void)load_run(r, w, false, &n);
        for (unsigned i = 0; i < rounds; i++) {
                s[i] = load_run(r, w, false, &n);
                MUST(n == w->count, "%zu of %zu blocks are in the pool", n, w->count);
        }
        return (double)w->bytes / median(s, rounds) / 1e9;
}

struct memcpy_job {
        uint8_t *to, *from;
        size_t bytes;
};

static void *memcpy_thread(void *user)
{
        struct memcpy_job *j = user;

        for (size_t at = 0; at < j->bytes; at += 2 << 20)
                memcpy(j->to + at, j->from + at, MIN(j->bytes - at, (size_t)2 << 20));
        return NULL;
}

static double bench_memcpy(unsigned threads, size_t bytes)
{
        uint8_t *p = mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        double s[MOST_ROUNDS];

        MUST(p != MAP_FAILED, "no memory");
        memset(p, 1, bytes);
        for (unsigned i = 0; i < rounds; i++) {
                struct memcpy_job jobs[8];
                pthread_t t[8];
                double start = now();

                for (unsigned k = 0; k < threads; k++) {
                        size_t share = bytes / threads;

                        jobs[k] =
                                (struct memcpy_job){ p + bytes + k * share, p + k * share, share };
                        MUST(pthread_create(&t[k], NULL, memcpy_thread, &jobs[k]) == 0, "thread");
                }
                for (unsigned k = 0; k < threads; k++)
                        pthread_join(t[k], NULL);
                s[i] = now() - start;
        }
        munmap(p, 2 * bytes);
        return (double)bytes / median(s, rounds) / 1e9;
}

/* Measures puts of new keys, after all earlier chunks have been written. */
static double bench_put(struct rig *r, struct load *w, uint64_t *space, size_t *ret_refused)
{
        double s[MOST_ROUNDS];

        *ret_refused = 0;
        for (unsigned i = 0; i < rounds; i++) {
                size_t n;

                load_name(w, ++*space);
                wait_until_written(r);
                s[i] = load_run(r, w, true, &n);
                *ret_refused += w->count - n;
        }
        return (double)w->bytes / median(s, rounds) / 1e9;
}

/* Returns the GB/s of the bus, measured with one large copy at a time. */
static double bench_bus(struct rig *r, bool to_device, size_t bytes)
{
        void *host = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        cu_address device, at = (cu_address)(uintptr_t)host;
        double s[MOST_ROUNDS];

        MUST(host != MAP_FAILED, "no memory");
        MUST_CUDA(r, host_register(host, bytes, CU_HOST_REGISTER_PORTABLE));
        MUST_CUDA(r, mem_alloc(&device, bytes));
        for (unsigned i = 0; i < rounds; i++) {
                double start = now();

                for (unsigned k = 0; k < 4; k++)
                        MUST_CUDA(r, copy(to_device ? device : at, to_device ? at : device, bytes,
                                          r->stream));
                MUST_CUDA(r, stream_synchronize(r->stream));
                s[i] = now() - start;
        }
        MUST_CUDA(r, mem_free(device));
        MUST_CUDA(r, host_unregister(host));
        munmap(host, bytes);
        return 4 * (double)bytes / median(s, rounds) / 1e9;
}

static const uint64_t pieces[] = { 4 << 10, 16 << 10, 64 << 10, 2 << 20 };

/* Compares an outer-first layout with the same memory as a list of regions, alternately: gets, then
 * puts. */
static void bench_regions(struct rig *r, uint64_t bytes, uint64_t *space)
{
        double rates[4][ARRAY_SIZE(pieces)];

        rig_attach(r, KVCACHE_GPU_ENGINE_AUTO, 0, 0);
        for (unsigned p = 0; p < ARRAY_SIZE(pieces); p++)
                for (unsigned listed = 0; listed < 2; listed++) {
                        struct load w;
                        size_t refused;

                        load_open(r, &w, pieces[p], 0, bytes);
                        load_fill(r, &w);
                        if (listed)
                                load_list_regions(&w);
                        load_name(&w, 3000 + p);
                        load_put_all(r, &w);
                        rates[listed][p] = bench_get(r, &w);
                        rates[2 + listed][p] = bench_put(r, &w, space, &refused);
                        load_close(r, &w);
                }
        rig_detach(r);
        for (unsigned k = 0; k < 4; k++) {
                static const char *const rows[] = { "outer first, get", "listed regions, get",
                                                    "outer first, put", "listed regions, put" };

                printf("%-28s", rows[k]);
                for (unsigned p = 0; p < ARRAY_SIZE(pieces); p++)
                        printf("%12.1f", rates[k][p]);
                printf("\n");
        }
}

void gpu_bench(struct rig *r, unsigned scale)
{
        static const uint32_t sms[] = { 1, 2, 4, 8, 16, 32 };
        uint64_t space = (uint64_t)getpid() << 32, bytes = (UINT64_C(1) << 30) / scale;
        struct kvcache_gpu_info info;
        double start = now();

        rounds = scale > 1 ? 1 : MOST_ROUNDS;
        rig_attach(r, KVCACHE_GPU_ENGINE_AUTO, 0, 0);
        info = rig_info(r);
        printf("attached in %.2f s: driver %d, %u multiprocessors, flags 0x%x, pool %llu MiB\n",
               now() - start, info.driver_version, info.multiprocessors, info.flags,
               (unsigned long long)info.pool_bytes >> 20);
        if (!(info.flags & KVCACHE_GPU_HAS_POOL))
                printf("%s\n", kvcache_gpu_error(r->gpu));
        rig_detach(r);
        printf("\n%-28s", "GB/s, pieces of");
        for (unsigned p = 0; p < ARRAY_SIZE(pieces); p++)
                printf("%8llu KiB", (unsigned long long)pieces[p] >> 10);
        printf("\n");
        for (unsigned engine = 0; engine < ARRAY_SIZE(engines); engine++) {
                char what[64];

                snprintf(what, sizeof(what), "get, %s", engines[engine]);
                printf("%-28s", what);
                rig_attach(r, (enum kvcache_gpu_engine)engine, 0, 0);
                for (unsigned p = 0; p < ARRAY_SIZE(pieces); p++) {
                        struct load w;

                        load_open(r, &w, pieces[p], 0, bytes);
                        load_name(&w, 1000 + p);
                        load_fill(r, &w);
                        load_put_all(r, &w);
                        printf("%12.1f", bench_get(r, &w));
                        fflush(stdout);
                        load_close(r, &w);
                }
                printf("\n");
                rig_detach(r);
        }
        for (unsigned k = 0; k < 2 * ARRAY_SIZE(sms); k++) {
                enum kvcache_gpu_engine engine =
                        k % 2 ? KVCACHE_GPU_ENGINE_BOUNCE : KVCACHE_GPU_ENGINE_KERNEL;
                char what[64];

                snprintf(what, sizeof(what), "get, %s, %u SMs", engines[engine], sms[k / 2]);
                printf("%-28s", what);
                rig_attach(r, engine, sms[k / 2], 0);
                for (unsigned p = 0; p < ARRAY_SIZE(pieces); p++) {
                        struct load w;

                        load_open(r, &w, pieces[p], 0, bytes);
                        load_name(&w, 1000 + p);
                        printf("%12.1f", bench_get(r, &w));
                        fflush(stdout);
                        load_close(r, &w);
                }
                printf("\n");
                rig_detach(r);
        }
        for (unsigned engine = 0; engine < KVCACHE_GPU_ENGINE_BOUNCE; engine++) {
                char what[64];
                size_t refused = 0;

                snprintf(what, sizeof(what), "put accepted, %s", engines[engine]);
                printf("%-28s", what);
                rig_attach(r, (enum kvcache_gpu_engine)engine, 0, 0);
                for (unsigned p = 0; p < ARRAY_SIZE(pieces); p++) {
                        struct load w;
                        size_t n;

                        load_open(r, &w, pieces[p], 0, bytes / 2);
                        load_fill(r, &w);
                        printf("%12.1f", bench_put(r, &w, &space, &n));
                        fflush(stdout);
                        refused += n;
                        load_close(r, &w);
                }
                printf("   %zu blocks refused\n", refused);
                rig_detach(r);
        }
        bench_regions(r, bytes / 2, &space);
        printf("%-28s%12.1f\n%-28s%12.1f\n", "the bus, to the device",
               bench_bus(r, true, bytes / 4), "the bus, to the host",
               bench_bus(r, false, bytes / 4));
        printf("%-28s%12.1f\n", "memcpy, 4 threads", bench_memcpy(4, bytes / 2));
}
