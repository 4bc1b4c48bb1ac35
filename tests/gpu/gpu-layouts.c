/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of every layout by every engine: are the bytes right, at both ends? */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checked.h"
#include "gpu-check.h"

enum { CHECK_BYTES = 8 << 20 };

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
        { "padded regions of two sizes", { .kind = KVCACHE_LAYOUT_REGIONS, .blocks = 8 }, 0, 0, 0 },
};

/* Shapes of listed regions come last, because a connection counts 16 combinations of layout, path
 * and technology, and the other shapes use them up. */
enum { N_KINDS = ARRAY_SIZE(shapes) - 1, LISTED = 5 };

/* Lists pages of two sizes in one tensor, each followed by padding, and a separate region of odd
 * length. */
static void list_regions(struct kvcache_layout *l, struct kvcache_layout_region *regions,
                         cu_address device)
{
        for (unsigned i = 0; i < LISTED - 1; i++)
                regions[i] = (struct kvcache_layout_region){ device + i * 8192, 4 * 8192,
                                                             i % 2 ? 4096 : 7680 };
        regions[LISTED - 1] = (struct kvcache_layout_region){ device + (1 << 20), 999, 777 };
        l->regions = regions;
        l->n_regions = LISTED;
}

/* Copies blocks 0 to 3 of `from` into blocks 7 to 4 of `to`: the memory that the test expects. */
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
        struct kvcache_layout_region regions[LISTED];
        uint64_t bases[MAX_LAYERS];
        struct kvcache_layout l = s->l;
        cu_event ready, done;
        int statuses[4];
        struct kvcache_gpu_request q = {
                .layout = &l, .blocks = blocks, .count = 4, .statuses = statuses
        };

        l.size = sizeof(l);
        if (l.kind == KVCACHE_LAYOUT_REGIONS)
                list_regions(&l, regions, device);
        else
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

        /* The copy into device memory is still in progress when the put is called. */
        fill(from, CHECK_BYTES, space);
        MUST_CUDA(r, copy(device, (cu_address)(uintptr_t)from, CHECK_BYTES, r->stream));
        MUST_CUDA(r, event_record(ready, r->stream));
        q.before_event = ready;
        MUST(run(r, &q, true) == 0, "%s: %s", s->what, kvcache_gpu_error(r->gpu));
        for (unsigned i = 0; i < 4; i++)
                MUST(statuses[i] == KVCACHE_OK, "%s: block %u is %s", s->what, i,
                     kvcache_status_name(statuses[i]));

        /* The get must also come after this copy, which it overwrites, and before the one that
         * reads the result. */
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

void gpu_check(struct rig *r, bool listed)
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
                { "bounce", KVCACHE_GPU_ENGINE_BOUNCE, 0 },
                { "auto, through staging", KVCACHE_GPU_ENGINE_AUTO, KVCACHE_GPU_NO_POOL },
                { "auto, in the current context", KVCACHE_GPU_ENGINE_AUTO,
                  KVCACHE_GPU_CURRENT_CONTEXT },
        };
        uint64_t space = (uint64_t)getpid() << 32;
        size_t first = listed ? N_KINDS : 0, end = listed ? ARRAY_SIZE(shapes) : N_KINDS;
        cu_address device;

        MUST_CUDA(r, mem_alloc(&device, CHECK_BYTES));
        for (unsigned w = 0; w < ARRAY_SIZE(ways); w++) {
                struct kvcache_gpu_info info;
                double start = now();

                rig_attach(r, ways[w].engine, 0, ways[w].flags);
                for (size_t i = first; i < end; i++, space += 2)
                        check_shape(r, &shapes[i], space, device);
                info = rig_info(r);
                printf("%-30s %zu layouts right in %.2f s; kernel %d batch %d pool %d buffer %d, "
                       "%llu blocks from the pool, %llu through staging, %llu launches, %llu batch "
                       "calls, %llu plain copies, %llu into bounce memory, %llu failures\n",
                       ways[w].what, end - first, now() - start,
                       !!(info.flags & KVCACHE_GPU_HAS_KERNEL),
                       !!(info.flags & KVCACHE_GPU_HAS_BATCH),
                       !!(info.flags & KVCACHE_GPU_HAS_POOL),
                       !!(info.flags & KVCACHE_GPU_HAS_BUFFER),
                       (unsigned long long)info.counts.blocks_from_pool,
                       (unsigned long long)info.counts.blocks_through_staging,
                       (unsigned long long)info.counts.kernel_launches,
                       (unsigned long long)info.counts.batch_calls,
                       (unsigned long long)info.counts.plain_copies,
                       (unsigned long long)info.bounce_copies,
                       (unsigned long long)(info.counts.kernel_failures +
                                            info.counts.batch_failures +
                                            info.counts.driver_errors));
                rig_detach(r);
        }
        MUST_CUDA(r, mem_free(device));
        printf("all bytes right\n");
}
