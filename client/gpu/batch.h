/* SPDX-License-Identifier: Apache-2.0 */
/* Batches: consecutive blocks of an operation that are moved to or from GPU memory together. */
#pragma once

#include "gpu/gpu.h"

/* Sets the status of block `i` of the operation. */
void block_judge(struct operation *op, size_t i, int status);
/* Begin a batch with the next blocks of the operation; an idle batch must exist. Return false if
 * the batch must wait: no part of the staging memory is free or, for a put by cuFile, of the device
 * memory; or gets are held up (pace.c). */
bool batch_begin_put(struct kvcache_gpu *gpu, struct operation *op);
bool batch_begin_get(struct kvcache_gpu *gpu, struct operation *op);
/* Submits a request of the batch with the operation's timeout, KVCACHE_NOWAIT flag and place in the
 * chain, and makes the batch BATCH_ASKING. Returns 0 or the library's error. */
int batch_submit(struct kvcache_gpu *gpu, struct batch *b, struct kvcache_request *request);
/* Returns the status of blocks whose request could not be sent because of `error`. */
int status_of_error(int error);
/* Takes the answer to the batch's request. Returns true if the daemon may still use the staging
 * memory that the request named. */
bool batch_take_answer(struct kvcache_gpu *gpu, struct batch *b,
                       const struct kvcache_result *results, uint32_t n);
/* Copies the answer to the batch's request into its results. Returns whether the daemon may
 * still use the staging memory. */
bool batch_take_results(struct kvcache_gpu *gpu, struct batch *b);
/* Returns whether no earlier operation of the same direction has copies left to put into the
 * stream. */
bool operation_may_issue(const struct kvcache_gpu *gpu, const struct operation *op);
uint64_t block_bytes(const struct operation *op, size_t i);
/* Computes the range of the chunk that the operation moves. */
void block_range(const struct operation *op, size_t i, uint64_t *ret_offset, uint64_t *ret_bytes);

/* Returns the operation's next batch, of as many blocks as fit into `room` bytes, but at least one
 * and at most GPU_BATCH_BLOCKS; an idle batch must exist. */
struct batch *batch_new(struct kvcache_gpu *gpu, struct operation *op, int part, uint64_t room);
/* Adds the copies of block `i` of the batch to the scratch list, behind `n` others, and counts
 * them. `host` is the address of the block's range in the staging memory, the pool or cuFile's
 * device memory. Returns the new number of copies. */
size_t batch_add(struct kvcache_gpu *gpu, struct batch *b, uint32_t i, cu_address host, size_t n);
/* Puts the scratch list's `n` copies into the operation's stream, and makes the batch
 * BATCH_COPYING. */
void batch_copy(struct kvcache_gpu *gpu, struct batch *b, size_t n, bool is_mapped);
/* Puts the copies into a separate stream, without an order with other copies. */
void batch_copy_aside(struct kvcache_gpu *gpu, struct batch *b, size_t n, bool is_mapped);
/* Ends a batch whose blocks have their status. `may_be_used`: the daemon may still use the
 * batch's part of the staging memory. */
void batch_end(struct kvcache_gpu *gpu, struct batch *b, bool may_be_used);
/* Returns the device's address for an address in the staging memory. */
cu_address staging_address(const struct kvcache_gpu *gpu, const void *data);

/* --- chunks.c: chunks of several blocks --- */

/* Copies and checks the indices of a request, whose blocks the operation has. Returns 0 or a
 * negative errno, with the reason in the handle. */
int chunks_take(struct kvcache_gpu *gpu, struct operation *op, const struct kvcache_gpu_request *q);
/* Returns the index of block `k` of chunk `i`, or KVCACHE_GPU_NO_BLOCK. */
uint64_t chunk_block(const struct operation *op, size_t i, uint32_t k);
/* Returns the number of blocks of a chunk that are not left out. */
uint32_t chunk_count_blocks(const struct operation *op, size_t i);
/* Computes the range of a chunk that is moved: a put moves the whole chunk, and a get leaves out
 * absent blocks at both ends. The operation must have indices. */
void chunk_range(const struct operation *op, size_t i, uint64_t *ret_offset, uint64_t *ret_bytes);
/* Writes zeros in place of the blocks that are left out. */
void chunk_clear_holes(const struct operation *op, size_t i, uint8_t *chunk);

/* --- write.c: puts that cuFile writes to a file --- */

/* Begins a batch of puts through the file, after gds_puts_ready() has allowed it. Returns false if
 * no part of the device memory is free. */
bool write_begin(struct kvcache_gpu *gpu, struct operation *op);
/* Continues a batch whose copies have ended. */
void write_copied(struct kvcache_gpu *gpu, struct batch *b);
/* Continues a batch that is not BATCH_COPYING. Returns whether anything has changed. */
bool write_step(struct kvcache_gpu *gpu, struct batch *b);

/* --- borrow.c: gets of lent chunks that cuFile reads --- */

/* Returns the maximum bytes of a batch of several blocks of which cuFile reads the lent ones. */
uint64_t borrow_room(const struct kvcache_gpu *gpu, const struct operation *op);
/* Makes the batch a get that borrows. Returns 0 or the error of batch_submit(). */
int borrow_begin(struct kvcache_gpu *gpu, struct batch *b);
/* Continues a batch that is not BORROW_DONE and whose request, if any, has completed. At
 * BORROW_DONE each block is in the pool or the device memory, or has its status. Returns whether
 * anything has changed. */
bool borrow_step(struct kvcache_gpu *gpu, struct batch *b);

/* --- pace.c: gets of more than may be leased at a time --- */

/* Plans to request again the blocks of a get that the daemon refused with QUOTA. The batch becomes
 * BATCH_PACED at once or, if the daemon leased other blocks of the batch, when these are copied and
 * their leases released. Returns false if no block was refused with QUOTA; if no block was leased
 * although no other batch had leases when the request was sent; or if the batch has failed or uses
 * the staging memory. */
bool pace_begin(struct batch *b);
/* Releases the batch's leases. If `is_used` is false, their blocks were not copied and are
 * marked to be requested again. */
void pace_give_back(struct kvcache_gpu *gpu, struct batch *b, bool is_used);
/* Continues a BATCH_PACED batch of the operation whose turn it is. Returns whether anything has
 * changed. */
bool pace_step(struct kvcache_gpu *gpu, struct batch *b);
bool pace_holds_up_gets(const struct kvcache_gpu *gpu);
/* Returns whether batches that use the device memory keep their parts until a BATCH_PACED batch
 * has continued. */
bool pace_holds_up_device_memory(const struct kvcache_gpu *gpu);

/* --- count.c: counts of transfers, for kvcache_count_transfer() --- */

/* Counts block `i`, in `pieces` copies, towards the copies that are put into a stream next. */
void count_block(struct batch *b, uint32_t i, uint32_t pieces);
/* Records that the counted copies are in the stream. `before`: the engine's counts before they
 * were put there. */
void count_begin(const struct kvcache_gpu *gpu, struct batch *b,
                 const struct kvcache_gpu_counts *before);
/* At the operation's first batch, records the event from which the times of all its copies are
 * measured. Called before the batch's copies enter the stream. */
void count_op_begin(const struct kvcache_gpu *gpu, struct batch *b);
/* Counts the batch's copies, which have ended or failed. */
void count_copies(struct kvcache_gpu *gpu, struct batch *b);
/* Counts the batch's reads or writes by cuFile, which have ended or failed. */
void count_files(struct kvcache_gpu *gpu, const struct batch *b);

/* Continues a batch as far as possible now. Returns whether anything has changed. */
bool batch_step(struct kvcache_gpu *gpu, struct batch *b);
