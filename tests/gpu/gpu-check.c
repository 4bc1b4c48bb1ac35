/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks between a GPU and a daemon: are the bytes right, and how fast do they go?
 *
 *     gpu-check SOCKET check           every layout, every engine: compares all bytes
 *     gpu-check SOCKET bench [SCALE]   a table; SCALE divides the amount of data, each once
 *     gpu-check SOCKET gds [REASON]    blocks that are on disk, by cuFile: gds-check.c
 *     gpu-check SOCKET gds-bench [SCALE]
 *
 * Here is what the parts share; the bytes are in gpu-layouts.c, the figures in gpu-bench.c. Runs on
 * a real driver, and on the stub. Built as a library, too, for interference.py. Exit status 77:
 * there is no GPU here. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "checked.h"
#include "gpu-check.h"

enum {
        SKIPPED = 77,
        LEAST_BLOCKS = 4,
        /* Small sizes for checks, and for a table of little data, because populating the default
         * takes longer than the rest. A block may have an eighth of it. */
        CHECK_STAGING_BYTES = 16 << 20,
        SCALED_STAGING_BYTES = 40 << 20,
};

double now(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Loads the driver, or prints why that is not possible. */
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

void rig_attach(struct rig *r, enum kvcache_gpu_engine engine, uint32_t max_sms, uint32_t flags)
{
        /* GPUDirect Storage is checked by gds-check.c; here cuFile would only show
         * compute-sanitizer a call of its own that the driver refuses. */
        struct kvcache_gpu_options o = { .size = sizeof(o),
                                         .engine = engine,
                                         .max_sms = max_sms,
                                         .flags = flags,
                                         .gds = KVCACHE_GPU_GDS_NEVER,
                                         .staging_bytes = r->staging_bytes };
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

/* --- a load: as many blocks as these bytes are --- */

/* Opens a load whose blocks have separate layers, keys and values, so that no two pieces can be
 * joined. */
void load_open(struct rig *r, struct load *w, uint64_t piece, uint32_t layers, uint64_t bytes)
{
        uint64_t block;

        if (layers == 0) {
                uint64_t most = MIN(UINT64_C(16) << 20, MAX(bytes / LEAST_BLOCKS, 2 * piece));

                layers = (uint32_t)MIN((uint64_t)MAX_LAYERS, most / 2 / piece);
        }
        block = piece * 2 * layers;
        *w = (struct load){ .count = MAX(bytes / block, (uint64_t)LEAST_BLOCKS) };
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

void load_list_regions(struct load *w)
{
        const struct kvcache_layout *from = &w->l;
        uint64_t page = from->page_tokens * from->inner * from->dtype_bytes;
        uint32_t n = 2 * from->layers;

        for (uint32_t i = 0; i < n; i++)
                w->regions[i] = (struct kvcache_layout_region){
                        w->bases[i / 2] + i % 2 * from->blocks * page, page, page
                };
        w->l = (struct kvcache_layout){
                .size = sizeof(w->l),
                .kind = KVCACHE_LAYOUT_REGIONS,
                .blocks = from->blocks,
                .regions = w->regions,
                .n_regions = n,
        };
}

/* Fills every place with data that does not compress. */
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

void load_put_all(struct rig *r, struct load *w)
{
        size_t n = 0;

        for (unsigned i = 0; i < 50 && n < w->count; i++)
                (void)load_run(r, w, true, &n);
        MUST(n == w->count, "%zu of %zu blocks were kept", n, w->count);
}

/* Returns once the daemon has written every chunk to disk. */
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

/* --- for interference.py: gets in a loop, in the primary context of this process --- */

__attribute__((visibility("default"))) double
gpu_check_loop(const char *socket_path, uint64_t piece, unsigned max_sms, unsigned flags,
               unsigned engine, volatile int *ready, const volatile int *stop);
double gpu_check_loop(const char *socket_path, uint64_t piece, unsigned max_sms, unsigned flags,
                      unsigned engine, volatile int *ready, const volatile int *stop)
{
        cu_context context;
        struct load w;
        struct rig r;
        double start, seconds;
        uint64_t bytes = 0;
        size_t n;

        MUST(has_gpu(&r), "no GPU");
        rig_open(&r, socket_path);
        rig_attach(&r, (enum kvcache_gpu_engine)engine, max_sms, flags);
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
                fprintf(stderr,
                        "usage: gpu-check SOCKET check|regions|gds|bench|gds-bench [SCALE]\n");
                return 2;
        }
        if (strcmp(argv[2], "probe") == 0)
                return has_gpu(&r) ? 0 : SKIPPED;
        if (!has_gpu(&r))
                return SKIPPED;
        rig_open(&r, argv[1]);
        if (strcmp(argv[2], "check") == 0 || strcmp(argv[2], "regions") == 0) {
                r.staging_bytes = CHECK_STAGING_BYTES;
                gpu_check(&r, strcmp(argv[2], "regions") == 0);
        } else if (strcmp(argv[2], "gds") == 0) {
                r.staging_bytes = CHECK_STAGING_BYTES;
                gds_check(&r, argc > 3 ? argv[3] : NULL);
        } else if (strcmp(argv[2], "gds-bench") == 0) {
                gds_bench(&r, argc > 3 ? (unsigned)atoi(argv[3]) : 1);
        } else {
                unsigned scale = argc > 3 ? (unsigned)atoi(argv[3]) : 1;

                r.staging_bytes = scale > 1 ? SCALED_STAGING_BYTES : 0;
                gpu_bench(&r, scale);
        }
        kvcache_close(r.kv);
        return 0;
}
