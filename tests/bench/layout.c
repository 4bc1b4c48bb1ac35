/* SPDX-License-Identifier: Apache-2.0 */
/* measure-layout: measures how fast one core gathers blocks of host memory into chunks and scatters
 * them back, against memcpy() of the same number of bytes, and how long it takes to compute the
 * pieces of a block.
 *
 * Copies and memcpy() alternate in slices of a few milliseconds over the same memory, far larger
 * than the caches, so that a machine whose speed drifts slows both. Prints the median of the
 * ratios, by layout and piece size. Listed regions are those of the outer-first layout, so that
 * their lines show the cost of the list; "padded" has a gap of 64 bytes after each page. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "checked.h"
#include "kvcache-layout.h"

enum {
        LAYERS = 32,
        SLICES = 41,
        MEMORY = 256 * 1024 * 1024, /* for blocks, and as much for chunks */
};

struct bench_layout {
        struct kvcache_layout layout;
        uint64_t bases[LAYERS];
        struct kvcache_layout_region regions[2 * LAYERS];
        uint64_t block_bytes;
        char *memory, *chunks;
};

static double now(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void shape(struct bench_layout *b, unsigned kind, uint64_t region)
{
        bool contiguous = kind == KVCACHE_LAYOUT_CONTIGUOUS;
        uint64_t buffer;

        b->block_bytes = region * 2 * LAYERS;
        b->layout = (struct kvcache_layout){
                .size = sizeof(b->layout),
                .kind = kind,
                .layers = LAYERS,
                .outer = 2,
                .page_tokens = 16,
                .dtype_bytes = 2,
                .inner = region / 32,
                .blocks = MEMORY / b->block_bytes,
                .bases = b->bases,
        };
        buffer = b->layout.blocks * b->block_bytes / (contiguous ? 1 : LAYERS);
        for (unsigned i = 0; i < (contiguous ? 1 : LAYERS); i++)
                b->bases[i] = (uintptr_t)b->memory + i * buffer;
}

/* Lists the same pages as the outer-first layout, with `gap` bytes behind each. */
static void shape_regions(struct bench_layout *b, uint64_t region, uint64_t gap)
{
        uint64_t stride = region + gap;

        b->block_bytes = region * 2 * LAYERS;
        b->layout = (struct kvcache_layout){
                .size = sizeof(b->layout),
                .kind = KVCACHE_LAYOUT_REGIONS,
                .blocks = MEMORY / (stride * 2 * LAYERS),
                .regions = b->regions,
                .n_regions = 2 * LAYERS,
        };
        for (unsigned i = 0; i < 2 * LAYERS; i++)
                b->regions[i] = (struct kvcache_layout_region){
                        (uintptr_t)b->memory + i * b->layout.blocks * stride, stride, region
                };
}

/* Returns the seconds per byte of one slice that begins with block `first`. */
static double slice(const struct bench_layout *b, int way, uint64_t first, uint64_t n)
{
        struct kvcache_layout_copy copies[64];
        double begin = now();
        int r = 0;

        for (uint64_t i = 0; i < n; i++) {
                char *chunk = b->chunks + (first + i) * b->block_bytes;

                if (way < 0)
                        memcpy(chunk, b->memory + (first + i) * b->block_bytes, b->block_bytes);
                else
                        copies[i] = (struct kvcache_layout_copy){ first + i, chunk, b->block_bytes,
                                                                  0, 0 };
        }
        if (way == 0)
                r = kvcache_layout_gather(&b->layout, 0, 0, copies, n, NULL, NULL, 0);
        else if (way == 1)
                r = kvcache_layout_scatter(&b->layout, 0, 0, copies, n, NULL, NULL, 0);
        if (r < 0) {
                fprintf(stderr, "the layout is refused: %s\n", strerror(-r));
                exit(1);
        }
        return (now() - begin) / (double)(n * b->block_bytes);
}

static int compare(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

static void measure(struct bench_layout *b, const char *name, uint64_t piece, int way)
{
        uint64_t n = MIN(MAX(UINT64_C(16777216) / b->block_bytes, UINT64_C(1)), UINT64_C(64));
        double ratios[SLICES], ours[SLICES];
        uint64_t at = 0;

        for (unsigned i = 0; i < SLICES; i++) {
                bool first = i % 2;
                double a = 0, theirs;

                at = at + 2 * n > b->layout.blocks ? 0 : at;
                if (first)
                        a = slice(b, way, at, n);
                theirs = slice(b, -1, (at + b->layout.blocks / 2) % (b->layout.blocks - n), n);
                if (!first)
                        a = slice(b, way, at, n);
                at += n;
                ratios[i] = theirs / a;
                ours[i] = 1e-9 / a;
        }
        qsort(ratios, SLICES, sizeof(*ratios), compare);
        qsort(ours, SLICES, sizeof(*ours), compare);
        printf("%-16s %-8s %8llu  %6.2f GB/s  %5.2f of memcpy (quartiles %.2f to %.2f)\n", name,
               way == 0 ? "gather" : "scatter", (unsigned long long)piece, ours[SLICES / 2],
               ratios[SLICES / 2], ratios[SLICES / 4], ratios[SLICES * 3 / 4]);
}

static const uint64_t pieces[] = { 1024, 4096, 16384, 32768, 65536, 131072 };

static void measure_regions(struct bench_layout *b)
{
        for (unsigned padded = 0; padded < 2; padded++)
                for (unsigned i = 0; i < ARRAY_SIZE(pieces); i++) {
                        shape_regions(b, pieces[i], padded * 64);
                        for (int way = 0; way < 2; way++)
                                measure(b, padded ? "regions, padded" : "regions", pieces[i], way);
                }
}

/* Prints the time of a call that checks the layout and computes the pieces of one block, as a
 * request of one block does. */
static void measure_pieces(const struct kvcache_layout *l, const char *name)
{
        enum { CALLS = 2000 };
        static struct kvcache_piece room[1024];
        double times[SLICES];
        int n = 0;

        for (unsigned i = 0; i < SLICES; i++) {
                double begin = now();

                for (unsigned k = 0; k < CALLS; k++)
                        n = kvcache_layout_pieces(l, k % l->blocks, NULL, room, ARRAY_SIZE(room));
                times[i] = (now() - begin) / CALLS;
        }
        qsort(times, SLICES, sizeof(*times), compare);
        printf("%-28s %5d pieces  %8.0f ns a call\n", name, n, times[SLICES / 2] * 1e9);
}

/* Measures lists of 1,024 regions, by ascending and descending address. */
static void measure_long_lists(void)
{
        static struct kvcache_layout_region regions[1024];
        struct kvcache_layout l = {
                .size = sizeof(l),
                .kind = KVCACHE_LAYOUT_REGIONS,
                .blocks = 1000,
                .regions = regions,
                .n_regions = ARRAY_SIZE(regions),
        };

        for (unsigned i = 0; i < ARRAY_SIZE(regions); i++)
                regions[i] =
                        (struct kvcache_layout_region){ 4096 + i * UINT64_C(10000000), 4096, 4000 };
        measure_pieces(&l, "regions, sorted");
        for (unsigned i = 0; i < ARRAY_SIZE(regions); i++)
                regions[i].base = 4096 + (ARRAY_SIZE(regions) - i) * UINT64_C(10000000);
        measure_pieces(&l, "regions, backwards");
        for (unsigned i = 0; i < ARRAY_SIZE(regions); i++)
                regions[i] = (struct kvcache_layout_region){ 4096 + i * 4096, 1024 * 4096, 4000 };
        measure_pieces(&l, "regions, in one tensor");
}

int main(void)
{
        static const char *const names[] = { "contiguous", "block-first", "outer-first" };
        struct bench_layout b = { .memory = aligned_alloc(4096, MEMORY),
                                  .chunks = aligned_alloc(4096, MEMORY) };

        if (!b.memory || !b.chunks) {
                fprintf(stderr, "there is no memory for the blocks\n");
                return 1;
        }
        memset(b.memory, 1, MEMORY);
        memset(b.chunks, 2, MEMORY);
        for (unsigned kind = KVCACHE_LAYOUT_CONTIGUOUS; kind <= KVCACHE_LAYOUT_OUTER_FIRST; kind++)
                for (unsigned i = 0; i < ARRAY_SIZE(pieces); i++) {
                        uint64_t apart = kind == KVCACHE_LAYOUT_BLOCK_FIRST ? 2 : 1;

                        if (kind == KVCACHE_LAYOUT_CONTIGUOUS && i > 0)
                                break;
                        shape(&b, kind,
                              kind == KVCACHE_LAYOUT_CONTIGUOUS ? 32768 : pieces[i] / apart);
                        for (int way = 0; way < 2; way++)
                                measure(&b, names[kind - 1],
                                        kind == KVCACHE_LAYOUT_CONTIGUOUS ? b.block_bytes
                                                                          : pieces[i],
                                        way);
                }
        measure_regions(&b);
        shape(&b, KVCACHE_LAYOUT_OUTER_FIRST, 16384);
        measure_pieces(&b.layout, "outer-first");
        shape_regions(&b, 16384, 0);
        measure_pieces(&b.layout, "regions");
        measure_long_lists();
        free(b.memory);
        free(b.chunks);
        return 0;
}
