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

/* A layout describes where blocks lie in an engine's memory, on the GPU or on the host. A region is
 * the part of a block that belongs to one layer and to either keys or values: page_tokens × inner ×
 * dtype_bytes bytes. A stored chunk is always [layers, outer, tokens, inner] without padding.
 *
 * KVCACHE_LAYOUT_REGIONS serves all other memory: pages of several sizes, padded pages, tensors
 * that several layers share. The program lists regions of any sizes, and a chunk consists of the
 * block's bytes of each region, in the order of the list and without padding. */

enum kvcache_layout_kind {
        KVCACHE_LAYOUT_CONTIGUOUS = 1,  /* one buffer: [blocks, layers, outer, page, inner] */
        KVCACHE_LAYOUT_BLOCK_FIRST = 2, /* one buffer per layer: [blocks, outer, page, inner] */
        KVCACHE_LAYOUT_OUTER_FIRST = 3, /* one buffer per layer: [outer, blocks, page, inner] */
        KVCACHE_LAYOUT_REGIONS = 4,     /* any memory: `regions` lists the parts of a block */
};

/* One region of all blocks: that of block b is `bytes` bytes at base + b × stride. */
struct kvcache_layout_region {
        uint64_t base;   /* address; not 0 */
        uint64_t stride; /* bytes from a block to the next one; at least `bytes` */
        uint64_t bytes;  /* bytes of the region in one block, without padding; at least 1 */
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
        /* For KVCACHE_LAYOUT_REGIONS only: these members are set together with `size`, `kind` and
         * `blocks`, and all other members are 0. The list is read during a call only, and the
         * caller keeps it. No byte belongs to two regions or to two blocks, and regions of
         * different strides do not lie between each other's blocks. A block counts as one layer and
         * one token. */
        const struct kvcache_layout_region *regions;
        uint32_t n_regions; /* 1 to 1,024 */
        uint32_t reserved;  /* 0 */
};

struct kvcache_layout_info {
        uint32_t size; /* in: sizeof(struct kvcache_layout_info) */
        uint32_t reserved;
        uint64_t region_bytes; /* size of a region; for KVCACHE_LAYOUT_REGIONS, this member, the
                                  strides and buffer_bytes are 0 */
        uint64_t block_bytes;  /* size of the chunk of a whole block */
        uint64_t block_stride, layer_stride, outer_stride;
        uint64_t buffer_bytes; /* size of each buffer, from its aligned base */
        uint64_t max_pieces;   /* maximum number of pieces of a block (kvcache_layout_pieces()) */
};

/* Checks a layout and computes its sizes. Returns -EINVAL or -E2BIG if the layout is invalid,
 * -EOVERFLOW if a sum exceeds 64 bits, -ENOMEM. `ret_error` (may be NULL) gets a sentence that
 * describes the failure. */
int kvcache_layout_measure(const struct kvcache_layout *layout, struct kvcache_layout_info *ret,
                           char *ret_error, size_t error_bytes);

/* A part of a block: the first `tokens` tokens of each region in some of the layers. The chunk of a
 * block with fewer tokens is shorter accordingly. */
struct kvcache_layout_part {
        uint32_t tokens;                /* number of tokens; 0: all of them */
        uint32_t first_layer, n_layers; /* 0, 0: all of them */
        uint32_t reserved;              /* 0 */
};

struct kvcache_piece {
        uint64_t address; /* in the engine's memory */
        uint64_t offset;  /* offset in the chunk of all layers */
        uint64_t bytes;
};

/* Computes the pieces of one block, sorted by offset; a run of bytes that is contiguous both in
 * memory and in the chunk is one piece. `part` may be NULL. Returns the number of pieces, at most
 * layers × outer, or n_regions; -ENOBUFS if there are more than `max`; -EINVAL if there is no such
 * block, layer or token; the errors of kvcache_layout_measure(). */
int kvcache_layout_pieces(const struct kvcache_layout *layout, uint64_t block,
                          const struct kvcache_layout_part *part, struct kvcache_piece *ret,
                          size_t max);

/* --- blocks of host memory --- */

/* A block of the layout and its chunk, which is contiguous and does not overlap the block. For a
 * chunk of several blocks, use one struct for each block: `chunk` of block j is the chunk's start
 * plus j × block_bytes. */
struct kvcache_layout_copy {
        uint64_t block;
        void *chunk;          /* written by gather, only read by scatter */
        uint64_t chunk_bytes; /* must be the size of a chunk of `tokens`, with all layers */
        uint32_t tokens;      /* number of tokens, from the block's first on; 0: page_tokens */
        uint32_t reserved;    /* 0 */
};

/* The amount that one call of kvcache_layout_gather() or kvcache_layout_scatter() moved. */
struct kvcache_layout_moved {
        uint32_t size; /* in: sizeof(struct kvcache_layout_moved) */
        uint32_t reserved;
        uint64_t blocks;
        uint64_t regions;      /* blocks × layers moved × outer, or blocks × n_regions */
        uint64_t copies;       /* calls of memcpy(); adjacent regions are copied by one call */
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
 * Returns 0; -EINVAL, -EOVERFLOW or -E2BIG as kvcache_layout_measure(); -EINVAL also if a block,
 * layer or token does not exist or a chunk has another length; -ENOMEM. */
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
