/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks that are on disk only, by GPUDirect Storage: are the bytes right, which way did they come,
 * and how fast against cuFile alone? */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "checked.h"
#include "gpu-check.h"
#include "gpu/cufile.h"

enum { ROUNDS = 6, LOOP_THREADS = 8, MAX_FILES = 4096, CHECK_ROUNDS = 8 };

/* Returns the folder for puts by cuFile, or NULL for ordinary puts. */
static const char *put_path(void)
{
        return getenv("KVCACHE_GDS_PUTS");
}

static bool attach_as(struct rig *r, enum kvcache_gpu_gds_option gds, char *why)
{
        struct kvcache_gpu_options o = {
                .size = sizeof(o),
                .gds = gds,
                .gds_put_path = put_path(),
                .staging_bytes = r->staging_bytes,
        };

        return kvcache_gpu_attach(&r->gpu, r->kv, &o, why, CUFILE_TEXT) == 0;
}

static void evict(struct rig *r, const struct load *w)
{
        struct kvcache_result *results = calloc(w->count, sizeof(*results));
        struct kvcache_key *keys = calloc(w->count, sizeof(*keys));
        struct kvcache_request q;

        for (size_t i = 0; i < w->count; i++)
                keys[i] = w->blocks[i].key;
        kvcache_prep_evict(&q, r->ns, keys, w->count, KVCACHE_TIER_MEMORY, results);
        MUST(kvcache_submit_and_wait(r->kv, &q, NULL) == 0, "%s", kvcache_error(r->kv));
        free(results);
        free(keys);
}

/* Puts the blocks, reads them back once, and evicts them from memory, so that they are on disk
 * only. */
static void put_on_disk(struct rig *r, struct load *w)
{
        size_t n = 0;

        for (unsigned i = 0; i < 50 && n < w->count; i++)
                (void)load_run(r, w, true, &n);
        MUST(n == w->count, "%zu of %zu blocks were kept", n, w->count);
        wait_until_written(r);
        evict(r, w);
        (void)load_run(r, w, false, &n);
        MUST(n == w->count, "%zu of %zu blocks are there", n, w->count);
        evict(r, w);
}

static void print_counts(const struct kvcache_gpu_gds *gds)
{
        printf("%llu blocks by cuFile in %llu reads", (unsigned long long)gds->blocks,
               (unsigned long long)gds->reads);
        for (int i = 0; i < KVCACHE_GPU_GDS_REASONS; i++)
                if (gds->fallbacks[i] > 0)
                        printf("; %llu not: %s", (unsigned long long)gds->fallbacks[i],
                               kvcache_gpu_gds_reason_name(i));
        if (gds->error > CF_BASE)
                printf(" (%s, %d)", cufile_error_name(gds->error), gds->error);
        printf("\n");
}

static void print_puts(const struct kvcache_gpu_gds_puts *puts)
{
        if (puts->state == KVCACHE_GPU_GDS_OFF)
                return;
        printf("%llu blocks put by cuFile in %llu writes", (unsigned long long)puts->blocks,
               (unsigned long long)puts->writes);
        for (int i = 0; i < KVCACHE_GPU_GDS_REASONS; i++)
                if (puts->fallbacks[i] > 0)
                        printf("; %llu put otherwise: %s", (unsigned long long)puts->fallbacks[i],
                               kvcache_gpu_gds_reason_name(i));
        if (puts->error > CF_BASE)
                printf(" (%s, %d)", cufile_error_name(puts->error), puts->error);
        printf("\n");
}

void gds_check(struct rig *r, const char *reason)
{
        uint64_t bytes = 64 << 20;
        uint8_t *wanted = malloc(bytes), *got = malloc(bytes);
        struct kvcache_gpu_info info;
        char why[CUFILE_TEXT] = "";
        bool seen = false;
        struct load w;

        /* If GPUDirect Storage is not available, the second attachment works without it. */
        if (!attach_as(r, KVCACHE_GPU_GDS_REQUIRED, why)) {
                printf("%s\n", why);
                MUST(attach_as(r, KVCACHE_GPU_GDS_AUTO, why), "%s", why);
        }
        load_open(r, &w, 16 << 10, 16, bytes);
        load_name(&w, (uint64_t)getpid() << 32);
        fill(wanted, bytes, 5);
        upload(r, w.device, wanted, w.bytes);
        put_on_disk(r, &w);
        for (unsigned round = 0; round < CHECK_ROUNDS; round++) {
                size_t n;

                memset(got, 0, bytes);
                upload(r, w.device, got, w.bytes);
                (void)load_run(r, &w, false, &n);
                MUST(n == w.count, "%zu of %zu blocks came", n, w.count);
                download(r, got, w.device, w.bytes);
                MUST(memcmp(got, wanted, w.bytes) == 0, "round %u: wrong bytes", round);
                evict(r, &w);
        }
        info = rig_info(r);
        print_counts(&info.gds);
        print_puts(&info.gds_puts);
        for (int i = 0; i < KVCACHE_GPU_GDS_REASONS; i++)
                if (info.gds.fallbacks[i] > 0 && i != KVCACHE_GPU_GDS_UNVERIFIED) {
                        MUST(reason && (strcmp(reason, "any") == 0 ||
                                        strcmp(reason, kvcache_gpu_gds_reason_name(i)) == 0),
                             "blocks fell back: %s", kvcache_gpu_gds_reason_name(i));
                        seen = true;
                }
        seen |= reason && strcmp(reason, "any") == 0;
        MUST(seen == (reason != NULL), "no block fell back");
        MUST(seen || info.gds.blocks >= CHECK_ROUNDS * w.count, "few came by cuFile");
        printf("all bytes right%s%s\n", reason ? " without: " : "", reason ? reason : "");
        load_close(r, &w);
        rig_detach(r);
        free(wanted);
        free(got);
}

/* --- cuFile alone --- */

struct loop {
        struct rig *r;
        struct cufile cufile;
        cu_address memory;
        struct kvcache_loan *loans;
        size_t count, next;
        uint32_t numbers[MAX_FILES];
        cf_handle handles[MAX_FILES];
        int fds[MAX_FILES];
        unsigned n_files;
        pthread_mutex_t lock;
};

static cf_handle loop_handle(const struct loop *l, uint32_t number)
{
        for (unsigned i = 0; i < l->n_files; i++)
                if (l->numbers[i] == number)
                        return l->handles[i];
        return NULL;
}

static void loop_open(struct rig *r, struct loop *l, const struct load *w, uint64_t chunk)
{
        struct kvcache_result *results = calloc(w->count, sizeof(*results));
        struct kvcache_key *keys = calloc(w->count, sizeof(*keys));
        struct kvcache_request q;
        char why[CUFILE_TEXT];
        int error;

        *l = (struct loop){ .r = r, .count = w->count };
        pthread_mutex_init(&l->lock, NULL);
        MUST(cufile_open(&l->cufile, why, &error) == 0, "%s", why);
        MUST_CUDA(r, mem_alloc(&l->memory, LOOP_THREADS * chunk));
        MUST(l->cufile.is_compatible || l->cufile.buffer_register((void *)(uintptr_t)l->memory,
                                                                  LOOP_THREADS * chunk, 0)
                                                        .error == CF_OK,
             "registering");
        for (size_t i = 0; i < w->count; i++)
                keys[i] = w->blocks[i].key;
        kvcache_prep_get(&q, r->ns, keys, w->count, results);
        q.flags |= KVCACHE_LEND;
        MUST(kvcache_submit_and_wait(r->kv, &q, NULL) == 0, "%s", kvcache_error(r->kv));
        l->loans = calloc(w->count, sizeof(*l->loans));
        for (size_t i = 0; i < w->count; i++) {
                struct cf_descriptor descriptor = { .type = CF_HANDLE_IS_FD };
                unsigned f = l->n_files;

                l->loans[i] = results[i].loan;
                MUST(l->loans[i].generation != 0, "chunk %zu is not lent: %u", i,
                     results[i].not_lent);
                if (loop_handle(l, l->loans[i].file))
                        continue;
                MUST(f < MAX_FILES, "too many files");
                MUST(kvcache_lent_file(r->kv, &l->loans[i], &l->fds[f]) == 0, "%s",
                     kvcache_error(r->kv));
                descriptor.handle.fd = l->fds[f];
                error = l->cufile.handle_register(&l->handles[f], &descriptor).error;
                MUST(error == CF_OK, "%s", cufile_error_name(error));
                l->numbers[f] = l->loans[i].file;
                l->n_files++;
        }
        free(results);
        free(keys);
}

static void loop_close(struct loop *l)
{
        struct kvcache_result *results = calloc(l->count, sizeof(*results));
        struct rig *r = l->r;
        struct kvcache_request q;

        kvcache_prep_give_back(&q, l->loans, l->count, results);
        MUST(kvcache_submit_and_wait(r->kv, &q, NULL) == 0, "%s", kvcache_error(r->kv));
        for (unsigned i = 0; i < l->n_files; i++) {
                l->cufile.handle_deregister(l->handles[i]);
                close(l->fds[i]);
        }
        if (!l->cufile.is_compatible)
                (void)l->cufile.buffer_deregister((void *)(uintptr_t)l->memory);
        MUST_CUDA(r, mem_free(l->memory));
        cufile_close(&l->cufile);
        pthread_mutex_destroy(&l->lock);
        free(l->loans);
        free(results);
}

static void *loop_thread(void *user)
{
        static unsigned threads;
        struct loop *l = user;
        struct rig *r = l->r;
        unsigned place = __atomic_fetch_add(&threads, 1, __ATOMIC_RELAXED) % LOOP_THREADS;

        MUST_CUDA(r, ctx_push(r->context));
        for (;;) {
                const struct kvcache_loan *loan;
                size_t bytes, i;

                pthread_mutex_lock(&l->lock);
                i = l->next++;
                pthread_mutex_unlock(&l->lock);
                if (i >= l->count)
                        return NULL;
                loan = &l->loans[i];
                bytes = round_up((size_t)loan->length, (size_t)4096);
                MUST(l->cufile.read(loop_handle(l, loan->file), (void *)(uintptr_t)l->memory, bytes,
                                    (off_t)loan->offset, (off_t)(place * bytes)) == (ssize_t)bytes,
                     "chunk %zu", i);
        }
}

static double loop_run(struct loop *l, unsigned n_threads)
{
        pthread_t threads[LOOP_THREADS];
        double start = now();

        l->next = 0;
        for (unsigned i = 0; i < n_threads; i++)
                MUST(pthread_create(&threads[i], NULL, loop_thread, l) == 0, "thread");
        for (unsigned i = 0; i < n_threads; i++)
                pthread_join(threads[i], NULL);
        return now() - start;
}

static void bench_loops(struct rig *r, struct load *w, uint64_t chunk, bool eight_first,
                        double *ret_one, double *ret_eight)
{
        struct loop l;

        loop_open(r, &l, w, chunk);
        if (eight_first)
                *ret_eight = loop_run(&l, LOOP_THREADS);
        *ret_one = loop_run(&l, 1);
        if (!eight_first)
                *ret_eight = loop_run(&l, LOOP_THREADS);
        loop_close(&l);
}

static double bench_get_once(struct rig *r, struct load *w)
{
        size_t n;
        double seconds = load_run(r, w, false, &n);

        MUST(n == w->count, "%zu of %zu blocks came", n, w->count);
        evict(r, w);
        return seconds;
}

/* Measures all three ways in rounds, alternately in this and the reverse order, so that changes of
 * the disk's speed affect all of them. */
static void bench_chunk(struct rig *r, uint64_t piece, uint32_t layers, uint64_t bytes)
{
        double s[3][ROUNDS], chosen[ROUNDS], rates[4];
        struct load w;
        size_t n;

        load_open(r, &w, piece, layers, bytes);
        load_name(&w, ((uint64_t)getpid() << 32) + piece + layers);
        load_fill(r, &w);
        put_on_disk(r, &w);
        for (unsigned i = 0; i < ROUNDS; i++) {
                if (i % 2)
                        s[2][i] = bench_get_once(r, &w);
                bench_loops(r, &w, piece * 2 * layers, i % 2, &s[0][i], &s[1][i]);
                if (!(i % 2))
                        s[2][i] = bench_get_once(r, &w);
        }
        for (unsigned k = 0; k < 3; k++) {
                memcpy(chosen, s[k], sizeof(chosen));
                rates[k] = (double)w.bytes / median(chosen, ROUNDS) / 1e9;
        }
        struct kvcache_gpu_info info = rig_info(r);

        rig_detach(r);
        MUST(attach_as(r, KVCACHE_GPU_GDS_NEVER, (char[CUFILE_TEXT]){ 0 }), "attaching");
        for (unsigned i = 0; i < ROUNDS; i++) {
                evict(r, &w);
                chosen[i] = load_run(r, &w, false, &n);
                MUST(n == w.count, "%zu of %zu blocks came", n, w.count);
        }
        rates[3] = (double)w.bytes / median(chosen, ROUNDS) / 1e9;
        rig_detach(r);
        MUST(attach_as(r, KVCACHE_GPU_GDS_REQUIRED, (char[CUFILE_TEXT]){ 0 }), "attaching");
        printf("%8llu KiB%12.2f%12.2f%12.2f%12.2f%12.2f   ",
               (unsigned long long)(piece * 2 * layers) >> 10, rates[0], rates[1], rates[2],
               rates[2] / rates[1], rates[3]);
        print_counts(&info.gds);
        load_close(r, &w);
}

/* Returns the rate at which new blocks are put, up to the time when the last one is on disk. */
static double put_rate(struct rig *r, struct load *w, uint64_t space)
{
        double s[ROUNDS];
        size_t n;

        for (unsigned i = 0; i < ROUNDS; i++) {
                double start;

                load_name(w, space + ((uint64_t)i << 20));
                start = now();
                (void)load_run(r, w, true, &n);
                wait_until_written(r);
                s[i] = now() - start;
                MUST(n == w->count, "%zu of %zu blocks were kept", n, w->count);
                evict(r, w);
        }
        return (double)w->bytes / median(s, ROUNDS) / 1e9;
}

static void bench_puts(struct rig *r, uint64_t piece, uint32_t layers, uint64_t bytes)
{
        struct kvcache_gpu_options without = { .size = sizeof(without),
                                               .gds = KVCACHE_GPU_GDS_REQUIRED };
        uint64_t space = ((uint64_t)getpid() << 32) + (UINT64_C(1) << 31) + layers;
        char why[CUFILE_TEXT] = "";
        double by_cufile, by_staging;
        struct load w;

        load_open(r, &w, piece, layers, bytes);
        load_fill(r, &w);
        by_cufile = put_rate(r, &w, space);
        struct kvcache_gpu_info info = rig_info(r);

        rig_detach(r);
        MUST(kvcache_gpu_attach(&r->gpu, r->kv, &without, why, sizeof(why)) == 0, "%s", why);
        by_staging = put_rate(r, &w, space + (UINT64_C(1) << 30));
        rig_detach(r);
        MUST(attach_as(r, KVCACHE_GPU_GDS_REQUIRED, why), "%s", why);
        printf("%8llu KiB%12.2f%12.2f   ", (unsigned long long)(piece * 2 * layers) >> 10,
               by_cufile, by_staging);
        print_puts(&info.gds_puts);
        load_close(r, &w);
}

void gds_bench(struct rig *r, unsigned scale)
{
        char why[CUFILE_TEXT] = "";
        uint64_t bytes = (UINT64_C(1) << 30) / scale;
        double start = now();

        if (!attach_as(r, KVCACHE_GPU_GDS_REQUIRED, why)) {
                printf("skipped: %s\n", why);
                return;
        }
        printf("attached in %.2f s; cuFile %s\n", now() - start,
               rig_info(r).flags & KVCACHE_GPU_GDS_COPIES ? "copies through host memory"
                                                          : "has a direct way");
        printf("GB/s, chunks of %12s%12s%12s%12s%12s\n", "cuFile x1", "cuFile x8", "get_blocks",
               "of x8", "without");
        bench_chunk(r, 16 << 10, 64, bytes);
        bench_chunk(r, 9 << 10, 32, bytes);
        bench_chunk(r, 16 << 10, 4, bytes / 4);
        if (put_path()) {
                printf("GB/s, written, chunks of %10s%12s\n", "by cuFile", "without");
                bench_puts(r, 16 << 10, 64, bytes / 2);
                bench_puts(r, 9 << 10, 32, bytes / 2);
        }
        rig_detach(r);
}
