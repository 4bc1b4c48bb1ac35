/* SPDX-License-Identifier: Apache-2.0 */
/* Where the bytes of a block lie in an engine's memory, against where they lie in the stored chunk.
 *
 * A descriptor of the program's is checked once and becomes a struct layout, in which no sum can
 * overflow any more. It knows addresses only: host and device memory are the same to it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kvcache-layout.h"

enum {
        LAYOUT_MAX_LAYERS = 4096,
        LAYOUT_MAX_PIECES = 2 * LAYOUT_MAX_LAYERS, /* of one block */
};

struct layout {
        enum kvcache_layout_kind kind;
        uint32_t layers, outer, page_tokens;
        uint64_t token_bytes;  /* of one layer and one outer */
        uint64_t region_bytes; /* page_tokens of them */
        uint64_t block_bytes;  /* of a whole block, as stored */
        uint64_t block_stride, layer_stride, outer_stride;
        uint64_t buffer_bytes; /* from an aligned base */
        uint64_t blocks;
        uint64_t *bases; /* aligned; one, or `layers` */
};

/* What of a block: its first `tokens` tokens in `n_layers` layers from `first_layer` on. */
struct layout_part {
        uint32_t tokens, first_layer, n_layers;
};

/* 0; -EINVAL, -EOVERFLOW, -E2BIG: `ret_why` is a static text that says what is wrong; -ENOMEM. */
int layout_init(struct layout *ret, const struct kvcache_layout *from, const char **ret_why);
void layout_fini(struct layout *l);
/* Gives the program's text, if it has room for one. Returns `error`. */
int layout_report(int error, const char *why, char *ret_error, size_t error_bytes);

/* Zero tokens or layers mean all of them. 0 or -EINVAL. */
int layout_part_check(const struct layout *l, struct layout_part *part);
/* Of a chunk that holds `tokens` of each region. */
static inline uint64_t layout_chunk_bytes(const struct layout *l, uint32_t tokens)
{
        return l->token_bytes * tokens * l->outer * l->layers;
}
/* The size of a block in the layout, padding to the next one included; of a part of a block
 * `bytes`, which it has. */
uint64_t layout_device_bytes(const struct layout *l, const struct layout_part *part,
                             uint64_t bytes);
/* Its pieces by offset in the chunk; those that touch at both ends are one. Returns how many, at
 * most n_layers × outer, for which `ret` has room. `block` and `part` are valid. */
uint32_t layout_pieces(const struct layout *l, uint64_t block, const struct layout_part *part,
                       struct kvcache_piece *ret);
