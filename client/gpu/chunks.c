/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks of several blocks: the blocks of a request's chunks, and their places in a chunk.
 *
 * Runs in the handle's thread. The operation of a request without `indices` has chunks of one block
 * each, with the block's index in kvcache_gpu_block.block. All other operations have a list of
 * indices, which operation_free() frees. A block that is left out of a get keeps its bytes; its
 * part of a put's chunk is zeros, which the processor writes into the staging memory. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "gpu/batch.h"

static const uint64_t *chunk_indices(const struct operation *op, size_t i)
{
        return op->indices + i * op->chunk_blocks;
}

/* Returns the first block of a chunk that is not left out, and the one behind the last such block.
 */
static void chunk_present(const struct operation *op, size_t i, uint32_t *ret_first,
                          uint32_t *ret_end)
{
        const uint64_t *indices = chunk_indices(op, i);
        uint32_t first = 0, end = op->chunk_blocks;

        while (first < end && indices[first] == KVCACHE_GPU_NO_BLOCK)
                first++;
        while (end > first && indices[end - 1] == KVCACHE_GPU_NO_BLOCK)
                end--;
        *ret_first = first;
        *ret_end = end;
}

uint32_t chunk_count_blocks(const struct operation *op, size_t i)
{
        uint32_t n = 0;

        if (!op->indices)
                return 1;
        for (uint32_t k = 0; k < op->chunk_blocks; k++)
                n += chunk_indices(op, i)[k] != KVCACHE_GPU_NO_BLOCK;
        return n;
}

uint64_t chunk_block(const struct operation *op, size_t i, uint32_t k)
{
        return op->indices ? chunk_indices(op, i)[k] : op->blocks[i].block;
}

void chunk_range(const struct operation *op, size_t i, uint64_t *ret_offset, uint64_t *ret_bytes)
{
        uint32_t first = 0, end = op->chunk_blocks;

        if (!op->is_put)
                chunk_present(op, i, &first, &end);
        *ret_offset = first * op->layout.block_bytes;
        *ret_bytes = (end - first) * op->layout.block_bytes;
}

void chunk_clear_holes(const struct operation *op, size_t i, uint8_t *chunk)
{
        uint64_t bytes = op->layout.block_bytes;

        for (uint32_t k = 0; k < op->chunk_blocks; k++)
                if (chunk_block(op, i, k) == KVCACHE_GPU_NO_BLOCK)
                        memset(chunk + k * bytes, 0, bytes);
}

static int chunk_check(struct kvcache_gpu *gpu, struct operation *op, size_t i)
{
        uint32_t present = chunk_count_blocks(op, i);

        if (op->blocks[i].block != 0 || op->blocks[i].tokens != op->layout.page_tokens)
                return gpu_fail(
                        gpu, -EINVAL,
                        "chunk %zu: `block` and `tokens` must be 0 in a request with indices", i);
        for (uint32_t k = 0; k < op->chunk_blocks; k++) {
                uint64_t index = chunk_indices(op, i)[k];

                if (index != KVCACHE_GPU_NO_BLOCK && index >= op->layout.blocks)
                        return gpu_fail(gpu, -EINVAL, "chunk %zu: the layout has no block %llu", i,
                                        (unsigned long long)index);
        }
        if (present == 0)
                return gpu_fail(gpu, -EINVAL,
                                "chunk %zu has KVCACHE_GPU_NO_BLOCK for all of its blocks", i);
        op->has_holes |= present < op->chunk_blocks;
        return 0;
}

/* Checks that a chunk of the operation fits into the list of copies and, if it is put, into a part
 * of the staging memory. */
static int chunks_check_size(struct kvcache_gpu *gpu, const struct operation *op)
{
        uint64_t pieces = layout_most_pieces(&op->layout, op->layout.layers), bytes;

        if (!checked_mul(op->layout.block_bytes, op->chunk_blocks, &bytes))
                return gpu_fail(gpu, -EOVERFLOW, "a chunk exceeds the address space");
        if (pieces * op->chunk_blocks > ENGINE_MAX_COPIES)
                return gpu_fail(gpu, -E2BIG,
                                "a chunk of %u blocks of %llu pieces has more than %d pieces",
                                op->chunk_blocks, (unsigned long long)pieces, ENGINE_MAX_COPIES);
        if (op->is_put && bytes > gpu->staging.part_bytes)
                return gpu_fail(gpu, -E2BIG,
                                "a chunk of %llu bytes is longer than an eighth of the staging "
                                "memory: raise staging_bytes",
                                (unsigned long long)bytes);
        return 0;
}

int chunks_take(struct kvcache_gpu *gpu, struct operation *op, const struct kvcache_gpu_request *q)
{
        size_t n;
        int r;

        op->chunk_blocks = MAX(q->chunk_blocks, UINT32_C(1));
        if (q->reserved != 0)
                return gpu_fail(gpu, -EINVAL, "the request's reserved member is not 0");
        if (!q->indices)
                return op->chunk_blocks == 1
                               ? 0
                               : gpu_fail(gpu, -EINVAL, "chunks of several blocks need indices");
        if (q->n_layers != 0)
                return gpu_fail(
                        gpu, -EINVAL,
                        "n_layers must be 0 in a request with indices, which moves all layers");
        r = chunks_check_size(gpu, op);
        if (r < 0)
                return r;
        if (!checked_mul(q->count, (size_t)op->chunk_blocks, &n))
                return gpu_fail(gpu, -EOVERFLOW, "the array of indices exceeds the address space");
        op->indices = calloc(MAX(n, (size_t)1), sizeof(*op->indices));
        if (!op->indices)
                return gpu_fail(gpu, -ENOMEM, "out of memory");
        memcpy(op->indices, q->indices, n * sizeof(*op->indices));
        for (size_t i = 0; i < q->count && r == 0; i++)
                r = chunk_check(gpu, op, i);
        return r;
}
