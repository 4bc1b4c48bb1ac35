/* SPDX-License-Identifier: Apache-2.0 */
/* libkvcache: layouts. An engine describes where its blocks lie in memory; the library computes the
 * pieces of a block, and gathers blocks of host memory into chunks or scatters chunks into them.
 * Blocks of GPU memory are moved by <kvcache-gpu.h> with the same descriptor.
 *
 * Nothing here needs a handle or a daemon, and every function may be called by any thread. */
#ifndef KVCACHE_LAYOUT_H
#define KVCACHE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Position of blocks in an engine's memory, on the GPU or on the host.
 * A region is page_tokens × inner × dtype_bytes: the part of a block that belongs to one layer and
 * to either keys or values. A stored chunk is always [layers, outer, tokens, inner] without
 * padding.
 *
 * KVCACHE_LAYOUT_REGIONS serves all other memory: pages of several sizes, padded pages, tensors
 * that several layers share. The program lists the regions, in any sizes, and a chunk is what a
 * block has of each of them, in the order of the list and without padding. */

enum kvcache_layout_kind {
        KVCACHE_LAYOUT_CONTIGUOUS = 1,  /* one buffer: [blocks, layers, outer, page, inner] */
        KVCACHE_LAYOUT_BLOCK_FIRST = 2, /* one buffer per layer: [blocks, outer, page, inner] */
        KVCACHE_LAYOUT_OUTER_FIRST = 3, /* one buffer per layer: [outer, blocks, page, inner] */
        KVCACHE_LAYOUT_REGIONS = 4,     /* `regions` lists them */
};

/* A part of every block: block b has the `bytes` bytes at base + b × stride. */
struct kvcache_layout_region {
        uint64_t base;   /* address; not 0 */
        uint64_t stride; /* bytes from a block to the next one; at least `bytes` */
        uint64_t bytes;  /* at least 1, without padding */
};

struct kvcache_layout {
        uint32_t size;        /* sizeof(struct kvcache_layout) */
        uint32_t kind;        /* enum kvcache_layout_kind */
        uint32_t layers;      /* 1 to 4,096 */
        uint32_t outer;       /* 2: keys and values; 1: one tensor, as in MLA */
        uint32_t page_tokens; /* tokens per block */
        uint32_t dtype_bytes; /* 1, 2, 4 or 8 */
        uint64_t inner;       /* elements of one token: heads × head size */
        uint64_t alignment;   /* alignment of blocks and of the bases, which are rounded up to it: a
                                 power of two; 0: none */
        uint64_t blocks;      /* number of blocks in each buffer */
        const uint64_t *bases; /* addresses: one, or one for each layer */
        uint64_t base_bytes;   /* size of each buffer, for bounds checks; 0: unchecked */
        /* KVCACHE_LAYOUT_REGIONS only, which has these members, `size`, `kind` and `blocks`; all
         * others are 0 there. The list is read during a call only, and the caller keeps it. No byte
         * belongs to two regions or to two blocks, and regions of different strides do not lie
         * between each other's blocks. A block counts as one layer and one token. */
        const struct kvcache_layout_region *regions;
        uint32_t n_regions; /* 1 to 1,024 */
        uint32_t reserved;  /* 0 */
};

struct kvcache_layout_info {
        uint32_t size; /* in: sizeof(struct kvcache_layout_info) */
        uint32_t reserved;
        uint64_t region_bytes; /* this, the strides and buffer_bytes are 0 for
                                  KVCACHE_LAYOUT_REGIONS */
        uint64_t block_bytes;  /* size of the chunk of a whole block */
        uint64_t block_stride, layer_stride, outer_stride;
        uint64_t buffer_bytes; /* size of each buffer, from its aligned base */
        uint64_t max_pieces;   /* a block has at most this number of pieces */
};

/* Checks a layout and computes its sizes. Returns -EINVAL or -E2BIG if the layout is invalid,
 * -EOVERFLOW if a sum exceeds 64 bits, -ENOMEM. `ret_error` (may be NULL) gets a sentence. */
int kvcache_layout_measure(const struct kvcache_layout *layout, struct kvcache_layout_info *ret,
                           char *ret_error, size_t error_bytes);

/* A part of a block. A partial block has the first `tokens` of each region; its chunk is shorter
 * accordingly. */
struct kvcache_layout_part {
        uint32_t tokens;                /* 0: all of them */
        uint32_t first_layer, n_layers; /* 0, 0: all of them */
        uint32_t reserved;              /* 0 */
};

struct kvcache_piece {
        uint64_t address; /* in the engine's memory */
        uint64_t offset;  /* in the chunk, which has all layers */
        uint64_t bytes;
};

/* Computes the pieces of one block, by offset; a run that is contiguous both in memory and in the
 * chunk is one piece. `part` may be NULL. Returns the number of pieces, at most layers × outer, or
 * n_regions; -ENOBUFS if there are more than `max`; -EINVAL if there is no such block, layer or
 * token. */
int kvcache_layout_pieces(const struct kvcache_layout *layout, uint64_t block,
                          const struct kvcache_layout_part *part, struct kvcache_piece *ret,
                          size_t max);

/* --- blocks of host memory --- */

/* A block of the layout and its chunk, which is contiguous and does not overlap the block. A chunk
 * of several blocks takes a copy for each of them: block j begins at j × block_bytes. */
struct kvcache_layout_copy {
        uint64_t block;
        void *chunk;          /* written by gather, only read by scatter */
        uint64_t chunk_bytes; /* must be the size of a chunk of `tokens`, with all layers */
        uint32_t tokens;      /* 0: all of a page */
        uint32_t reserved;    /* 0 */
};

/* Counters of moved blocks and bytes. */
struct kvcache_layout_moved {
        uint32_t size; /* in: sizeof(struct kvcache_layout_moved) */
        uint32_t reserved;
        uint64_t blocks;
        uint64_t regions;      /* blocks × layers × outer, or blocks × n_regions */
        uint64_t copies;       /* calls of memcpy(): adjacent regions are one */
        uint64_t bytes;        /* without padding */
        uint64_t device_bytes; /* bytes of the blocks in the layout, with the padding between blocks
                                  if all layers and tokens were moved, else equal to `bytes`; equal
                                  to `bytes` for KVCACHE_LAYOUT_REGIONS */
};

/* Copies `n` blocks into their chunks, or chunks into their blocks. Only `n_layers` layers from
 * `first_layer` on are copied (0, 0: all); a chunk has room for all layers nevertheless. All
 * arguments are checked before the first byte is copied. The layout's addresses are those of the
 * calling process. `ret` and `ret_error` may be NULL.
 *
 * Returns 0; -EINVAL, -EOVERFLOW or -E2BIG as kvcache_layout_measure(), or if a block, layer or
 * token does not exist or a chunk has another length; -ENOMEM. */
int kvcache_layout_gather(const struct kvcache_layout *layout, uint32_t first_layer,
                          uint32_t n_layers, const struct kvcache_layout_copy *copies, size_t n,
                          struct kvcache_layout_moved *ret, char *ret_error, size_t error_bytes);
int kvcache_layout_scatter(const struct kvcache_layout *layout, uint32_t first_layer,
                           uint32_t n_layers, const struct kvcache_layout_copy *copies, size_t n,
                           struct kvcache_layout_moved *ret, char *ret_error, size_t error_bytes);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
