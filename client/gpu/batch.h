/* SPDX-License-Identifier: Apache-2.0 */
/* Batches: consecutive blocks of an operation, on their way out of GPU memory or into it. */
#pragma once

#include "gpu/gpu.h"

/* Block `i` of the operation has its status. */
void block_judge(struct operation *op, size_t i, int status);
/* Begins a batch with the next blocks of the operation. There is an idle one. False: no part of the
 * staging memory is free. */
bool batch_begin_put(struct kvcache_gpu *gpu, struct operation *op);
bool batch_begin_get(struct kvcache_gpu *gpu, struct operation *op);
/* Asks the daemon, as the operation wants it. 0 or what the library refuses by. */
int batch_submit(struct kvcache_gpu *gpu, struct batch *b, struct kvcache_request *request);
/* As the status of a block. */
int status_of_error(int error);
/* Its answer has come. True: the daemon may still use the staging that it named. */
bool batch_take_answer(struct kvcache_gpu *gpu, struct batch *b,
                       const struct kvcache_result *results, uint32_t n);
/* The same, into its results. */
bool batch_take_results(struct kvcache_gpu *gpu, struct batch *b);
/* No earlier operation of its direction has copies to put into the stream. */
bool operation_may_issue(const struct kvcache_gpu *gpu, const struct operation *op);
uint64_t block_bytes(const struct operation *op, size_t i);
/* Of the chunk, what the operation moves. */
void block_range(const struct operation *op, size_t i, uint64_t *ret_offset, uint64_t *ret_bytes);

/* The next batch of the operation, of as many blocks as fit into `room` bytes; there is an idle
 * one.
 */
struct batch *batch_new(struct kvcache_gpu *gpu, struct operation *op, int part, uint64_t room);
/* Copies of block `i` of the batch, to or from `host` in memory that the device sees, behind `n`
 * others in the scratch list. How many there are then. */
size_t batch_add(struct kvcache_gpu *gpu, struct batch *b, uint32_t i, cu_address host, size_t n);
/* Puts the scratch list's `n` copies into the operation's stream; the batch is BATCH_COPYING. */
void batch_copy(struct kvcache_gpu *gpu, struct batch *b, size_t n, bool is_mapped);
/* The same into another one, in no order with others. */
void batch_copy_aside(struct kvcache_gpu *gpu, struct batch *b, size_t n, bool is_mapped);
/* Its blocks have their status. `may_be_used`: by the daemon, still. */
void batch_end(struct kvcache_gpu *gpu, struct batch *b, bool may_be_used);
/* Where the device sees an address of the staging memory. */
cu_address staging_address(const struct kvcache_gpu *gpu, const void *data);

/* --- chunks.c: chunks of several blocks --- */

/* Copies and checks the indices of a request, whose blocks the operation has. Returns 0 or a
 * negative errno, with the reason in the handle. */
int chunks_take(struct kvcache_gpu *gpu, struct operation *op, const struct kvcache_gpu_request *q);
/* Returns the index of block `k` of chunk `i`, or KVCACHE_GPU_NO_BLOCK. */
uint64_t chunk_block(const struct operation *op, size_t i, uint32_t k);
/* Returns the number of blocks of a chunk that are not left out. */
uint32_t chunk_count_blocks(const struct operation *op, size_t i);
/* Returns the part of a chunk that is moved: a put's is whole, and a get leaves out blocks at both
 * ends. The operation has indices. */
void chunk_range(const struct operation *op, size_t i, uint64_t *ret_offset, uint64_t *ret_bytes);
/* Writes zeros in place of the blocks that are left out. */
void chunk_clear_holes(const struct operation *op, size_t i, uint8_t *chunk);

/* --- write.c: what is put is written by cuFile --- */

/* Begins such a batch, which gds_puts_ready() has said may be. False: no part of the device memory
 * is free. */
bool write_begin(struct kvcache_gpu *gpu, struct operation *op);
/* Its copies are done. */
void write_copied(struct kvcache_gpu *gpu, struct batch *b);
/* Goes on with one that is not BATCH_COPYING. True: something has changed. */
bool write_step(struct kvcache_gpu *gpu, struct batch *b);

/* --- borrow.c: what is lent is read by cuFile --- */

/* Bytes of a batch that may be read so. */
uint64_t borrow_room(const struct kvcache_gpu *gpu, const struct operation *op);
/* Makes it a get that borrows. 0 or as batch_submit(). */
int borrow_begin(struct kvcache_gpu *gpu, struct batch *b);
/* Goes on with one that is not BORROW_DONE: then each block is in the pool or the device memory, or
 * has its status. Its request, if it has one, is done. True: something has changed. */
bool borrow_step(struct kvcache_gpu *gpu, struct batch *b);

/* --- pace.c: what is more than may be leased at a time --- */

/* Blocks of a get are to be asked for again. The batch is BATCH_PACED now, or, if it got others,
 * to be made so when it has given those back. False: there are none, or it is of no use. */
bool pace_begin(struct batch *b);
/* What it has leased. Not used: those blocks are to be asked for again, too. */
void pace_give_back(struct kvcache_gpu *gpu, struct batch *b, bool is_used);
/* Goes on with one that is BATCH_PACED, of the operation whose turn it is. True: something has
 * changed. */
bool pace_step(struct kvcache_gpu *gpu, struct batch *b);
bool pace_holds_up_gets(const struct kvcache_gpu *gpu);
/* What has the device memory keeps it until a batch that is BATCH_PACED has gone on. */
bool pace_holds_up_device_memory(const struct kvcache_gpu *gpu);

/* --- count.c: what was moved, for kvcache_count_transfer() --- */

/* Block `i` is among the copies that are put into a stream next, in so many pieces. */
void count_block(struct batch *b, uint32_t i, uint32_t pieces);
/* Those have been put there; `before` is what the engine had counted until then. */
void count_begin(const struct kvcache_gpu *gpu, struct batch *b,
                 const struct kvcache_gpu_counts *before);
/* The batch's copies come next in its stream: their operation's clock begins with its first batch.
 */
void count_op_begin(const struct kvcache_gpu *gpu, struct batch *b);
/* They are done, or have failed. */
void count_copies(struct kvcache_gpu *gpu, struct batch *b);
/* So are its reads or writes by cuFile. */
void count_files(struct kvcache_gpu *gpu, const struct batch *b);

/* Goes on with a batch as far as can be now. True: something has changed. */
bool batch_step(struct kvcache_gpu *gpu, struct batch *b);
