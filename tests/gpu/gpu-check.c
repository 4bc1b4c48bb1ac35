/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks between a GPU and a daemon: are the bytes right, and how fast do they go?
 *
 *     gpu-check SOCKET check           every layout, every engine: compares all bytes
 *     gpu-check SOCKET bench [SCALE]   a table; SCALE divides the amount of data, each once
 *     gpu-check SOCKET gds [REASON]    blocks that are on disk, by cuFile: gds-check.c
 *     gpu-check SOCKET gds-bench [SCALE]
 *
 * Runs on a real driver, and on the stub. Built as a library, too, for interference.py. Exit status
 * 77: there is no GPU here. */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "checked.h"
#include "gpu-check.h"

enum {
        SKIPPED = 77,
        CHECK_BYTES = 8 << 20,
        MOST_ROUNDS = 7,
};

static const char *const engines[] = { "auto", "kernel", "batch", "plain" };

static unsigned rounds = MOST_ROUNDS; /* of which the median counts */

double now(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Loads the driver; says why not. */
static bool has_gpu(struct rig *r)
{
        char why[512];
        cu_device device;

        *r = (struct rig){ 0 };
        if (driver_open(&r->d, why) < 0) {
                printf("skipped: %s\n", why);
                return false;
        }
        if (r->d.device_get(&device, 0) != CU_OK) {
                printf("skipped: the driver has no device\n");
                return false;
        }
        return true;
}

static void rig_open(struct rig *r, const char *socket_path)
{
        struct kvcache_options o = { .size = sizeof(o),
                                     .socket_path = socket_path,
                                     .flags = KVCACHE_POPULATE };
        struct kvcache_namespace_options ns = { .size = sizeof(ns),
                                                .name = "gpu-check",
                                                .fingerprint = "" };
        char why[512];

        MUST_CUDA(r, primary_retain(&r->context, 0));
        MUST_CUDA(r, ctx_push(r->context));
        MUST_CUDA(r, stream_create(&r->stream, CU_STREAM_IS_NON_BLOCKING));
        MUST(kvcache_connect(&r->kv, &o, why, sizeof(why)) == 0, "%s", why);
        MUST(kvcache_namespace_open(r->kv, &ns, &r->ns) == 0, "%s", kvcache_error(r->kv));
}

static void rig_attach(struct rig *r, enum kvcache_gpu_engine engine, uint32_t max_sms,
                       uint32_t flags)
{
        struct kvcache_gpu_options o = {
                .size = sizeof(o), .engine = engine, .max_sms = max_sms, .flags = flags
        };
        char why[512];

        MUST(kvcache_gpu_attach(&r->gpu, r->kv, &o, why, sizeof(why)) == 0, "%s", why);
}

void rig_detach(struct rig *r)
{
        MUST(kvcache_gpu_detach(r->gpu, 60000) == 0, "%s", kvcache_gpu_error(r->gpu));
        r->gpu = NULL;
}

struct kvcache_gpu_info rig_info(struct rig *r)
{
        struct kvcache_gpu_info info = { .size = sizeof(info) };

        MUST(kvcache_gpu_get_info(r->gpu, &info) == 0, "%s", kvcache_gpu_error(r->gpu));
        return info;
}

struct kvcache_key key_of(uint64_t space, uint64_t n)
{
        struct kvcache_key key = { { 0 } };

        memcpy(key.bytes, &space, sizeof(space));
        n++;
        memcpy(key.bytes + 8, &n, sizeof(n));
        return key;
}

int run(struct rig *r, struct kvcache_gpu_request *q, bool is_put)
{
        struct kvcache_gpu_completion c;
        int e;

        q->size = sizeof(*q);
        q->block_size = sizeof(struct kvcache_gpu_block);
        q->namespace_handle = r->ns;
        e = is_put ? kvcache_gpu_put_blocks(r->gpu, q) : kvcache_gpu_get_blocks(r->gpu, q);
        MUST(e == 0, "%s", kvcache_gpu_error(r->gpu));
        e = kvcache_gpu_reap(r->gpu, &c, 1, 60000);
        MUST(e == 1 && c.kind == KVCACHE_GPU_DONE, "%d: %s", e, kvcache_gpu_error(r->gpu));
        return c.error;
}

size_t good(const struct kvcache_gpu_request *q)
{
        size_t n = 0;

        for (size_t i = 0; i < q->count; i++)
                n += (size_t)kvcache_status_ok(q->statuses[i]);
        return n;
}

/* --- are the bytes right? --- */

struct shape {
        const char *what;
        struct kvcache_layout l;
        uint32_t tokens, first_layer, n_layers;
};

static const struct shape shapes[] = {
        { "contiguous bf16",
          { .kind = 1,
            .layers = 4,
            .outer = 2,
            .page_tokens = 16,
            .dtype_bytes = 2,
            .inner = 128,
            .alignment = 4096,
            .blocks = 8 },
          0,
          0,
          0 },
        { "block first bf16",
          { .kind = 2,
            .layers = 5,
            .outer = 2,
            .page_tokens = 16,
            .dtype_bytes = 2,
            .inner = 128,
            .blocks = 8 },
          0,
          0,
          0 },
        { "outer first fp32",
          { .kind = 3,
            .layers = 5,
            .outer = 2,
            .page_tokens = 16,
            .dtype_bytes = 4,
            .inner = 64,
            .blocks = 8 },
          0,
          0,
          0 },
        { "outer first fp8, partial",
          { .kind = 3,
            .layers = 3,
            .outer = 2,
            .page_tokens = 16,
            .dtype_bytes = 1,
            .inner = 128,
            .blocks = 8 },
          5,
          0,
          0 },
        { "one tensor, odd sizes",
          { .kind = 2,
            .layers = 7,
            .outer = 1,
            .page_tokens = 3,
            .dtype_bytes = 1,
            .inner = 333,
            .blocks = 8 },
          0,
          0,
          0 },
        { "contiguous, partial, layers 1 to 2",
          { .kind = 1,
            .layers = 4,
            .outer = 2,
            .page_tokens = 16,
            .dtype_bytes = 2,
            .inner = 36,
            .blocks = 8 },
          7,
          1,
          2 },
        { "outer first, layers 2 to 4",
          { .kind = 3,
            .layers = 6,
            .outer = 2,
            .page_tokens = 16,
            .dtype_bytes = 2,
            .inner = 512,
            .blocks = 8 },
          0,
          2,
          3 },
        { "large pieces",
          { .kind = 3,
            .layers = 2,
            .outer = 2,
            .page_tokens = 64,
            .dtype_bytes = 2,
            .inner = 1024,
            .blocks = 8 },
          0,
          0,
          0 },
};

void upload(struct rig *r, cu_address to, const void *from, size_t bytes)
{
        MUST_CUDA(r, copy(to, (cu_address)(uintptr_t)from, bytes, r->stream));
        MUST_CUDA(r, stream_synchronize(r->stream));
}

void download(struct rig *r, void *to, cu_address from, size_t bytes)
{
        MUST_CUDA(r, copy((cu_address)(uintptr_t)to, from, bytes, r->stream));
        MUST_CUDA(r, stream_synchronize(r->stream));
}

void fill(uint8_t *p, size_t bytes, uint64_t seed)
{
        for (size_t i = 0; i < bytes; i++) {
                seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
                p[i] = (uint8_t)(seed >> 56);
        }
}

/* What has to be in memory after blocks 0 to 3 of `from` came into 7 to 4 of `to`. */
static void expect(const struct kvcache_layout *l, const struct shape *s, cu_address base,
                   const uint8_t *from, uint8_t *to)
{
        struct kvcache_layout_part part = { s->tokens, s->first_layer, s->n_layers, 0 };
        struct kvcache_piece source[2 * MAX_LAYERS], target[2 * MAX_LAYERS];

        for (uint64_t i = 0; i < 4; i++) {
                int n = kvcache_layout_pieces(l, i, &part, source, ARRAY_SIZE(source));
                int m = kvcache_layout_pieces(l, 7 - i, &part, target, ARRAY_SIZE(target));

                MUST(n > 0 && n == m, "%d and %d pieces", n, m);
                for (int k = 0; k < n; k++)
                        memcpy(to + (target[k].address - base), from + (source[k].address - base),
                               source[k].bytes);
        }
}

static void check_shape(struct rig *r, const struct shape *s, uint64_t space, cu_address device)
{
        uint8_t *from = malloc(CHECK_BYTES), *to = malloc(CHECK_BYTES),
                *wanted = malloc(CHECK_BYTES);
        struct kvcache_gpu_block blocks[4];
        struct kvcache_layout_info info = { .size = sizeof(info) };
        uint64_t bases[MAX_LAYERS];
        struct kvcache_layout l = s->l;
        cu_event ready, done;
        int statuses[4];
        struct kvcache_gpu_request q = {
                .layout = &l, .blocks = blocks, .count = 4, .statuses = statuses
        };

        l.size = sizeof(l);
        l.bases = bases;
        for (unsigned i = 0; i < l.layers; i++)
                bases[i] = device;
        MUST(kvcache_layout_measure(&l, &info, NULL, 0) == 0, "the layout");
        for (unsigned i = 0; i < l.layers; i++)
                bases[i] = device + i * (info.buffer_bytes + 64);
        MUST(l.layers * (info.buffer_bytes + 64) <= CHECK_BYTES, "%s is too large", s->what);
        for (unsigned i = 0; i < 4; i++)
                blocks[i] = (struct kvcache_gpu_block){ key_of(space, i), i, s->tokens, 0 };
        MUST_CUDA(r, event_create(&ready, CU_EVENT_IS_UNTIMED));
        MUST_CUDA(r, event_create(&done, CU_EVENT_IS_UNTIMED));

        /* The data is still on its way into device memory when the put is called. */
        fill(from, CHECK_BYTES, space);
        MUST_CUDA(r, copy(device, (cu_address)(uintptr_t)from, CHECK_BYTES, r->stream));
        MUST_CUDA(r, event_record(ready, r->stream));
        q.before_event = ready;
        MUST(run(r, &q, true) == 0, "%s: %s", s->what, kvcache_gpu_error(r->gpu));
        for (unsigned i = 0; i < 4; i++)
                MUST(statuses[i] == KVCACHE_OK, "%s: block %u is %s", s->what, i,
                     kvcache_status_name(statuses[i]));

        /* And what the get overwrites comes before it, and what reads it after. */
        fill(to, CHECK_BYTES, space + 1);
        memcpy(wanted, to, CHECK_BYTES);
        expect(&l, s, device, from, wanted);
        MUST_CUDA(r, copy(device, (cu_address)(uintptr_t)to, CHECK_BYTES, r->stream));
        for (unsigned i = 0; i < 4; i++)
                blocks[i].block = 7 - i;
        q.before_event = NULL;
        q.before_stream = r->stream;
        q.after_stream = r->stream;
        q.after_event = done;
        q.first_layer = s->first_layer;
        q.n_layers = s->n_layers;
        MUST(run(r, &q, false) == 0, "%s: %s", s->what, kvcache_gpu_error(r->gpu));
        MUST(good(&q) == 4, "%s: %zu of 4 blocks came", s->what, good(&q));
        download(r, to, device, CHECK_BYTES);
        for (size_t i = 0; i < CHECK_BYTES; i++)
                MUST(to[i] == wanted[i], "%s: byte %zu is 0x%02x, not 0x%02x", s->what, i, to[i],
                     wanted[i]);
        MUST_CUDA(r, event_destroy(ready));
        MUST_CUDA(r, event_destroy(done));
        free(from);
        free(to);
        free(wanted);
}

static void check(struct rig *r)
{
        static const struct {
                const char *what;
                enum kvcache_gpu_engine engine;
                uint32_t flags;
        } ways[] = {
                { "auto", KVCACHE_GPU_ENGINE_AUTO, 0 },
                { "kernel", KVCACHE_GPU_ENGINE_KERNEL, 0 },
                { "batch", KVCACHE_GPU_ENGINE_BATCH, 0 },
                { "plain", KVCACHE_GPU_ENGINE_PLAIN, 0 },
                { "auto, through staging", KVCACHE_GPU_ENGINE_AUTO, KVCACHE_GPU_NO_POOL },
                { "auto, in the current context", KVCACHE_GPU_ENGINE_AUTO,
                  KVCACHE_GPU_CURRENT_CONTEXT },
        };
        uint64_t space = (uint64_t)getpid() << 32;
        cu_address device;

        MUST_CUDA(r, mem_alloc(&device, CHECK_BYTES));
        for (unsigned w = 0; w < ARRAY_SIZE(ways); w++) {
                struct kvcache_gpu_info info;
                double start = now();

                rig_attach(r, ways[w].engine, 0, ways[w].flags);
                for (unsigned i = 0; i < ARRAY_SIZE(shapes); i++, space += 2)
                        check_shape(r, &shapes[i], space, device);
                info = rig_info(r);
                printf("%-30s %zu layouts right in %.2f s; kernel %d batch %d pool %d buffer %d, "
                       "%llu blocks from the pool, %llu through staging, %llu launches, %llu batch "
                       "calls, %llu plain copies, %llu failures\n",
                       ways[w].what, ARRAY_SIZE(shapes), now() - start,
                       !!(info.flags & KVCACHE_GPU_HAS_KERNEL),
                       !!(info.flags & KVCACHE_GPU_HAS_BATCH),
                       !!(info.flags & KVCACHE_GPU_HAS_POOL),
                       !!(info.flags & KVCACHE_GPU_HAS_BUFFER),
                       (unsigned long long)info.counts.blocks_from_pool,
                       (unsigned long long)info.counts.blocks_through_staging,
                       (unsigned long long)info.counts.kernel_launches,
                       (unsigned long long)info.counts.batch_calls,
                       (unsigned long long)info.counts.plain_copies,
                       (unsigned long long)(info.counts.kernel_failures +
                                            info.counts.batch_failures +
                                            info.counts.driver_errors));
                rig_detach(r);
        }
        MUST_CUDA(r, mem_free(device));
        printf("all bytes right\n");
}

/* --- how fast? --- */

/* Layer-separate blocks, keys and values apart: every piece on its own. */
void load_open(struct rig *r, struct load *w, uint64_t piece, uint32_t layers, uint64_t bytes)
{
        uint64_t block;

        if (layers == 0)
                layers = (uint32_t)MIN((uint64_t)MAX_LAYERS, (UINT64_C(16) << 20) / 2 / piece);
        block = piece * 2 * layers;
        *w = (struct load){ .count = MAX(bytes / block, UINT64_C(4)) };
        w->l = (struct kvcache_layout){
                .size = sizeof(w->l),
                .kind = KVCACHE_LAYOUT_OUTER_FIRST,
                .layers = layers,
                .outer = 2,
                .page_tokens = 16,
                .dtype_bytes = 2,
                .inner = piece / 32,
                .blocks = w->count,
                .bases = w->bases,
        };
        w->bytes = w->count * block;
        w->blocks = calloc(w->count, sizeof(*w->blocks));
        w->statuses = calloc(w->count, sizeof(*w->statuses));
        MUST_CUDA(r, mem_alloc(&w->device, w->bytes));
        for (uint32_t i = 0; i < layers; i++)
                w->bases[i] = w->device + i * (w->bytes / layers);
}

/* Data that is not compressible, in every place. */
void load_fill(struct rig *r, struct load *w)
{
        enum { PART = 8 << 20 };
        uint8_t *p = malloc(PART);

        fill(p, PART, 11);
        for (uint64_t at = 0; at < w->bytes; at += PART)
                upload(r, w->device + at, p, MIN((uint64_t)PART, w->bytes - at));
        free(p);
}

void load_name(struct load *w, uint64_t space)
{
        for (size_t i = 0; i < w->count; i++)
                w->blocks[i] = (struct kvcache_gpu_block){ key_of(space, i), i, 0, 0 };
}

void load_close(struct rig *r, struct load *w)
{
        MUST_CUDA(r, mem_free(w->device));
        free(w->blocks);
        free(w->statuses);
}

double load_run(struct rig *r, struct load *w, bool is_put, size_t *ret_good)
{
        struct kvcache_gpu_request q = {
                .layout = &w->l, .blocks = w->blocks, .count = w->count, .statuses = w->statuses
        };
        double start = now();
        int e = run(r, &q, is_put);
        double seconds = now() - start;

        MUST(e == 0, "%s", kvcache_gpu_error(r->gpu));
        *ret_good = good(&q);
        return seconds;
}

static int by_size(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return x < y ? -1 : x > y;
}

double median(double *v, size_t n)
{
        qsort(v, n, sizeof(*v), by_size);
        return v[n / 2];
}

static void load_put_all(struct rig *r, struct load *w)
{
        size_t n = 0;

        for (unsigned i = 0; i < 50 && n < w->count; i++)
                (void)load_run(r, w, true, &n);
        MUST(n == w->count, "%zu of %zu blocks were kept", n, w->count);
}

/* GB/s of the median. */
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

/* What was put is on disk. */
void wait_until_written(struct rig *r)
{
        static const char name[] = "\"unwritten_bytes\":";
        double start = now();

        for (;;) {
                char *text, *at;
                unsigned long long left;

                MUST(kvcache_report(r->kv, KVCACHE_REPORT_STATUS, &text) == 0, "%s",
                     kvcache_error(r->kv));
                at = strstr(text, name);
                MUST(at, "no %s in the status", name);
                left = strtoull(at + strlen(name), NULL, 10);
                free(text);
                if (left == 0)
                        return;
                MUST(now() - start < 60, "%llu bytes are still to be written", left);
        }
}

/* Fresh keys each time, with nothing left to be written of those before. */
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

/* What the bus gives: one copy at a time, as large as can be. */
static double bench_bus(struct rig *r, bool to_device)
{
        const size_t bytes = 256 << 20;
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

static void bench(struct rig *r, unsigned scale)
{
        static const uint64_t pieces[] = { 4 << 10, 16 << 10, 64 << 10, 2 << 20 };
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
        for (unsigned k = 0; k < ARRAY_SIZE(sms); k++) {
                char what[64];

                snprintf(what, sizeof(what), "get, kernel, %u SMs", sms[k]);
                printf("%-28s", what);
                rig_attach(r, KVCACHE_GPU_ENGINE_KERNEL, sms[k], 0);
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
        for (unsigned engine = 0; engine < ARRAY_SIZE(engines); engine++) {
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
        printf("%-28s%12.1f\n%-28s%12.1f\n", "the bus, to the device", bench_bus(r, true),
               "the bus, to the host", bench_bus(r, false));
        printf("%-28s%12.1f\n", "memcpy, 4 threads", bench_memcpy(4, bytes / 2));
}

/* --- for interference.py: gets in a loop, in the primary context of this process --- */

__attribute__((visibility("default"))) double gpu_check_loop(const char *socket_path,
                                                             uint64_t piece, unsigned max_sms,
                                                             unsigned flags, volatile int *ready,
                                                             const volatile int *stop);
double gpu_check_loop(const char *socket_path, uint64_t piece, unsigned max_sms, unsigned flags,
                      volatile int *ready, const volatile int *stop)
{
        cu_context context;
        struct load w;
        struct rig r;
        double start, seconds;
        uint64_t bytes = 0;
        size_t n;

        MUST(has_gpu(&r), "no GPU");
        rig_open(&r, socket_path);
        rig_attach(&r, KVCACHE_GPU_ENGINE_AUTO, max_sms, flags);
        load_open(&r, &w, piece, 0, UINT64_C(1) << 30);
        load_name(&w, 2000 + piece);
        load_fill(&r, &w);
        load_put_all(&r, &w);
        *ready = 1;
        start = now();
        while (!*stop) {
                (void)load_run(&r, &w, false, &n);
                bytes += w.bytes;
        }
        seconds = now() - start;
        load_close(&r, &w);
        rig_detach(&r);
        kvcache_close(r.kv);
        MUST_CUDA(&r, stream_destroy(r.stream));
        MUST_CUDA(&r, ctx_pop(&context));
        return (double)bytes / seconds / 1e9;
}

int main(int argc, char **argv)
{
        struct rig r;

        if (argc < 3) {
                fprintf(stderr, "usage: gpu-check SOCKET check|gds|bench|gds-bench [SCALE]\n");
                return 2;
        }
        if (strcmp(argv[2], "probe") == 0)
                return has_gpu(&r) ? 0 : SKIPPED;
        if (!has_gpu(&r))
                return SKIPPED;
        rig_open(&r, argv[1]);
        if (strcmp(argv[2], "check") == 0)
                check(&r);
        else if (strcmp(argv[2], "gds") == 0)
                gds_check(&r, argc > 3 ? argv[3] : NULL);
        else if (strcmp(argv[2], "gds-bench") == 0)
                gds_bench(&r, argc > 3 ? (unsigned)atoi(argv[3]) : 1);
        else
                bench(&r, argc > 3 ? (unsigned)atoi(argv[3]) : 1);
        kvcache_close(r.kv);
        return 0;
}
