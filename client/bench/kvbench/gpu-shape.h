/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of a block in GPU memory, derived from the model and the deployment: number of layers,
 * separate keys and values or not, and the bytes of each. Pure functions. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "deployment.h"
#include "kvcache-gpu.h"
#include "model.h"

struct gpu_shape {
        enum kvcache_layout_kind kind;
        uint32_t layers, outer, page_tokens;
        uint64_t inner;        /* bytes of a token in one layer, of the keys or of the values */
        uint64_t region_bytes; /* bytes of a region: page_tokens tokens of `inner` bytes each */
        bool whole; /* the block is described as one piece, because it cannot be divided into equal
                       parts by layer, keys or values, and token */
};

/* Returns "contiguous", "block-first" or "outer-first". */
const char *gpu_shape_kind_name(enum kvcache_layout_kind kind);
/* Parses the name of a kind. Returns 0 or -EINVAL. */
int gpu_shape_kind_parse(const char *text, enum kvcache_layout_kind *ret);

void gpu_shape_of(struct gpu_shape *ret, enum kvcache_layout_kind kind,
                  const struct kvbench_model *model, const struct kvbench_deployment *deployment,
                  uint64_t io_size);

/* Returns the number of pieces of a block in memory; adjacent pieces count as one. */
static inline uint32_t gpu_shape_pieces(const struct gpu_shape *s)
{
        switch (s->kind) {
        case KVCACHE_LAYOUT_BLOCK_FIRST:
                return s->layers;
        case KVCACHE_LAYOUT_OUTER_FIRST:
                return s->layers * s->outer;
        default:
                return 1;
        }
}
