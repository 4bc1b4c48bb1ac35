/* SPDX-License-Identifier: Apache-2.0 */
/* Allocates blocks of host memory in a layout, and fills and checks them. The positions of
 * regions are computed by the formulas of the layouts, without the library, so that contents
 * that the library puts in a wrong place are detected. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "payload.h"
#include "sweep.h"

enum { PAGE_TOKENS = 16, DTYPE_BYTES = 2, BASE_ALIGN = 4096 };

int sweep_blocks_init(struct sweep_blocks *b, uint32_t kind, uint64_t region_bytes, uint32_t layers,
                      uint32_t outer, uint64_t blocks)
{
        int r;

        *b = (struct sweep_blocks){
                .n_buffers = kind == KVCACHE_LAYOUT_CONTIGUOUS ? 1 : layers,
                .info = { .size = sizeof(b->info) },
        };
        b->bases = calloc(b->n_buffers, sizeof(*b->bases));
        b->buffers = calloc(b->n_buffers, sizeof(*b->buffers));
        if (!b->bases || !b->buffers)
                return -ENOMEM;
        b->layout = (struct kvcache_layout){
                .size = sizeof(b->layout),
                .kind = kind,
                .layers = layers,
                .outer = outer,
                .page_tokens = PAGE_TOKENS,
                .dtype_bytes = DTYPE_BYTES,
                .inner = region_bytes / (PAGE_TOKENS * DTYPE_BYTES),
                .blocks = blocks,
                .bases = b->bases,
        };
        for (size_t i = 0; i < b->n_buffers; i++)
                b->bases[i] = BASE_ALIGN; /* any address suffices to measure the layout */
        r = kvcache_layout_measure(&b->layout, &b->info, NULL, 0);
        if (r < 0)
                return r;
        b->chunk = malloc(b->info.block_bytes);
        if (!b->chunk)
                return -ENOMEM;
        for (size_t i = 0; i < b->n_buffers; i++) {
                if (posix_memalign(&b->buffers[i], BASE_ALIGN, b->info.buffer_bytes) != 0) {
                        b->buffers[i] = NULL;
                        return -ENOMEM;
                }
                b->bases[i] = (uint64_t)(uintptr_t)b->buffers[i];
                memset(b->buffers[i], 0, b->info.buffer_bytes); /* touch all pages, so that no page
                                                                   faults occur while measuring */
        }
        return 0;
}

void sweep_blocks_fini(struct sweep_blocks *b)
{
        for (size_t i = 0; b->buffers && i < b->n_buffers; i++)
                free(b->buffers[i]);
        free(b->buffers);
        free(b->bases);
        free(b->chunk);
        *b = (struct sweep_blocks){ 0 };
}

/* Returns the address of a region. There is no alignment: a block's stride is its size. */
static uint8_t *region_at(const struct sweep_blocks *b, uint64_t block, uint64_t layer,
                          uint64_t outer)
{
        const struct kvcache_layout *l = &b->layout;
        uint64_t region = (uint64_t)l->page_tokens * l->inner * l->dtype_bytes, n;

        switch (l->kind) {
        case KVCACHE_LAYOUT_CONTIGUOUS:
                n = (block * l->layers + layer) * l->outer + outer;
                return (uint8_t *)b->buffers[0] + n * region;
        case KVCACHE_LAYOUT_BLOCK_FIRST:
                return (uint8_t *)b->buffers[layer] + (block * l->outer + outer) * region;
        default:
                return (uint8_t *)b->buffers[layer] + (outer * l->blocks + block) * region;
        }
}

void sweep_blocks_fill(struct sweep_blocks *b, uint64_t block, const struct kvcache_key *key)
{
        uint64_t region = b->info.region_bytes;
        const uint8_t *from = b->chunk;

        payload_fill(key, b->chunk, b->info.block_bytes);
        for (uint64_t l = 0; l < b->layout.layers; l++)
                for (uint64_t o = 0; o < b->layout.outer; o++, from += region)
                        memcpy(region_at(b, block, l, o), from, region);
}

void sweep_blocks_wipe(struct sweep_blocks *b)
{
        for (size_t i = 0; i < b->n_buffers; i++)
                memset(b->buffers[i], 0xa5, b->info.buffer_bytes);
}

bool sweep_blocks_right(struct sweep_blocks *b, uint64_t block, const struct kvcache_key *key)
{
        uint64_t region = b->info.region_bytes;
        const uint8_t *expected = b->chunk;

        payload_fill(key, b->chunk, b->info.block_bytes);
        for (uint64_t l = 0; l < b->layout.layers; l++)
                for (uint64_t o = 0; o < b->layout.outer; o++, expected += region)
                        if (memcmp(region_at(b, block, l, o), expected, region) != 0)
                                return false;
        return true;
}
