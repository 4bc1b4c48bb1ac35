/* SPDX-License-Identifier: Apache-2.0 */
/* Maps the bytes of a block in an engine's memory to their offsets in the stored chunk.
 *
 * A program's descriptor is checked once and becomes a struct layout, in which no sum can overflow.
 * The layout handles addresses only: host and device memory are treated alike. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kvcache-layout.h"

enum {
        LAYOUT_MAX_LAYERS = 4096,
        LAYOUT_MAX_PIECES = 2 * LAYOUT_MAX_LAYERS, /* maximum for one block */
        LAYOUT_MAX_REGIONS = 1024,
};

struct layout {
        enum kvcache_layout_kind kind;
        uint32_t layers, outer, page_tokens;
        uint64_t token_bytes;  /* bytes of one token in one region: in one layer, of keys or of
                                  values */
        uint64_t region_bytes; /* bytes of page_tokens tokens */
        uint64_t block_bytes;  /* bytes of a whole block, as stored */
        uint64_t block_stride, layer_stride, outer_stride;
        uint64_t buffer_bytes; /* size of a buffer, from its aligned base */
        uint64_t blocks;
        uint64_t *bases; /* aligned; one base, or `layers` of them */
        /* For KVCACHE_LAYOUT_REGIONS the listed regions, with adjacent ones merged; otherwise
         * NULL and 0. A block of such a layout counts as one layer, one outer and one token of
         * block_bytes. */
        struct kvcache_layout_region *regions;
        uint32_t n_regions, n_listed; /* number of regions after and before they were merged */
};

/* A part of a block: its first `tokens` tokens in `n_layers` layers from `first_layer` on. */
struct layout_part {
        uint32_t tokens, first_layer, n_layers;
};

/* Checks `from`, the program's descriptor, and copies it. Returns 0; -EINVAL, -EOVERFLOW or -E2BIG,
 * and `*ret_why` is a static text that gives the reason; -ENOMEM. layout_fini() frees the copy. */
int layout_init(struct layout *ret, const struct kvcache_layout *from, const char **ret_why);
void layout_fini(struct layout *l);
/* Sets the reason of a failure. Returns `error`. */
static inline int layout_fail(const char **ret_why, int error, const char *why)
{
        *ret_why = why;
        return error;
}
/* Copies `why` to the program's buffer, if it has one. Returns `error`. */
int layout_report(int error, const char *why, char *ret_error, size_t error_bytes);

/* Checks a part, and replaces zero tokens or layers by all of them. Returns 0 or -EINVAL. */
int layout_part_check(const struct layout *l, struct layout_part *part);
/* Returns the size of a chunk that holds `tokens` tokens of each region. */
static inline uint64_t layout_chunk_bytes(const struct layout *l, uint32_t tokens)
{
        return l->token_bytes * tokens * l->outer * l->layers;
}
/* Returns the maximum number of pieces of a part with `n_layers` layers. */
static inline uint32_t layout_most_pieces(const struct layout *l, uint32_t n_layers)
{
        return l->regions ? l->n_regions : n_layers * l->outer;
}
/* Returns the number of regions in which the program keeps `n_layers` layers of a block. */
static inline uint32_t layout_count_regions(const struct layout *l, uint32_t n_layers)
{
        return l->regions ? l->n_listed : n_layers * l->outer;
}
/* Returns the bytes that a part occupies in the engine's memory. A whole block occupies its strides
 * in all buffers, which include the padding up to the next block. Less than a block, and a block of
 * listed regions, occupies `bytes`, the size of the part. */
uint64_t layout_device_bytes(const struct layout *l, const struct layout_part *part,
                             uint64_t bytes);
/* Computes the pieces of a block's part, by offset in the chunk; pieces that are adjacent in memory
 * are merged. Returns the number of pieces, at most layout_most_pieces(), for which `ret` has room.
 * `block` and `part` are valid. */
uint32_t layout_pieces(const struct layout *l, uint64_t block, const struct layout_part *part,
                       struct kvcache_piece *ret);

/* --- layout-regions.c: layouts that list their regions --- */

/* Copies the regions of `from`, checks them and sets the sizes of `l`, whose kind and blocks are
 * set. Returns as layout_init(). */
int layout_init_regions(struct layout *l, const struct kvcache_layout *from, const char **ret_why);
