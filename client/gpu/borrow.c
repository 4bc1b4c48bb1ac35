/* SPDX-License-Identifier: Apache-2.0 */
/* Gets in which cuFile reads chunks from disk: chunks that are on disk only, and that the daemon
 * lends, do not pass through the daemon.
 *
 * Runs in the handle's thread; the threads of gds.c make cuFile's calls.
 *
 * The daemon is asked for all blocks of a batch at once. It leases blocks in memory as usual, and
 * lends those on disk. The lent blocks are read into a part of the device memory, adjacent chunks
 * of a file together. The loans are then returned, all at once; only the daemon's answer says
 * whether the bytes that were read are those of the chunks. From the device memory the blocks are
 * scattered like those in the pool.
 *
 * Order: a read does not touch the engine's memory, so it need not wait for anything. Parts of the
 * device memory are taken in the order of the batches, so no batch waits for a part that a later
 * batch has. If leases are short, a batch may nevertheless have to wait for a later one (pace.c),
 * and then continues without a part.
 *
 * Failures: a block that is not lent, not read, or whose loan is not returned successfully, is
 * got through the pool and counted with the reason; one request gets all such blocks of the
 * batch. */
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "gpu/batch.h"

uint64_t borrow_room(const struct kvcache_gpu *gpu, const struct operation *op)
{
        /* A read of a part of a chunk is up to two pages longer than the part. */
        return op->layers.n_layers == op->layout.layers && !op->has_holes ? gpu->gds.part_bytes
                                                                          : gpu->gds.part_bytes / 2;
}

int borrow_begin(struct kvcache_gpu *gpu, struct batch *b)
{
        struct kvcache_request request;

        b->borrows = true;
        b->question = BORROW_BLOCKS;
        b->n_asked = b->n_reads = 0;
        kvcache_prep(&request, KVCACHE_OP_GET, b->op->namespace_handle, b->n, b->results);
        request.entries = b->entries;
        request.flags = KVCACHE_LEND;
        return batch_submit(gpu, b, &request);
}

/* --- loans --- */

static enum kvcache_gpu_gds_reason reason_of(uint32_t not_lent)
{
        switch (not_lent) {
        case KVCACHE_NOT_LENT_NONE:
                return KVCACHE_GPU_GDS_NONE;
        case KVCACHE_NOT_LENT_UNVERIFIED:
                return KVCACHE_GPU_GDS_UNVERIFIED;
        case KVCACHE_NOT_LENT_VOLUME:
                return KVCACHE_GPU_GDS_VOLUME;
        case KVCACHE_NOT_LENT_LIMIT:
                return KVCACHE_GPU_GDS_LIMIT;
        default:
                return KVCACHE_GPU_GDS_DAEMON;
        }
}

/* Orders loans by file and offset. */
static int loan_compare(const void *a, const void *b)
{
        const struct kvcache_loan *x = a, *y = b;

        if (x->file != y->file)
                return x->file < y->file ? -1 : 1;
        return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Collects the batch's loans in b->loans, sorted, and the indices of their blocks in b->asked. */
static void borrow_take(struct kvcache_gpu *gpu, struct batch *b)
{
        (void)batch_take_answer(gpu, b, b->results, b->n);
        b->n_asked = 0;
        for (uint32_t i = 0; i < b->n; i++) {
                const struct kvcache_result *result = &b->results[i];
                struct borrowed *borrowed = &b->borrowed[i];

                if (!kvcache_status_ok(result->status))
                        continue;
                borrowed->read = READ_NONE;
                borrowed->loan = result->loan;
                if (result->loan.generation != 0)
                        b->loans[b->n_asked++] = result->loan;
                else if (result->not_lent != KVCACHE_NOT_LENT_NONE)
                        gds_count(&gpu->gds, reason_of(result->not_lent), 0, 1);
        }
        qsort(b->loans, b->n_asked, sizeof(b->loans[0]), loan_compare);
        for (uint32_t k = 0; k < b->n_asked; k++)
                for (uint32_t i = 0; i < b->n; i++)
                        if (b->borrowed[i].loan.generation != 0 &&
                            b->borrowed[i].loan.id == b->loans[k].id)
                                b->asked[k] = i;
}

/* --- reading --- */

/* Extends the batch's last read by these bytes of a file, if they directly follow that read in the
 * same file and fit. Returns whether the read was extended. */
static bool read_extend(const struct kvcache_gpu *gpu, struct batch *b, const struct gds_file *file,
                        uint64_t offset, uint64_t at, uint64_t bytes, uint64_t needed)
{
        uint64_t most = gpu->gds.cufile.is_compatible ? GDS_COPIED_READ_BYTES : GDS_READ_BYTES;
        struct gds_read *last = b->n_reads > 0 ? &b->reads[b->n_reads - 1] : NULL;

        if (!last || last->file != file || last->offset + last->bytes != offset ||
            last->at + last->bytes != at || last->bytes + bytes > most)
                return false;
        last->needed = last->bytes + needed;
        last->bytes += bytes;
        return true;
}

/* Plans the read of a lent block to `*at` in the device memory, and advances `*at`. If the read
 * does not fit or the file is not available, only sets the block's reason. */
static void borrow_plan(struct kvcache_gpu *gpu, struct batch *b, uint32_t i, uint64_t *at)
{
        uint64_t part = (uint64_t)b->device_part * gpu->gds.part_bytes;
        struct borrowed *borrowed = &b->borrowed[i];
        uint64_t range, length, start, bytes;
        struct gds_file *file;

        if (b->results[i].chunk_length != block_bytes(b->op, b->first + i))
                return; /* get_locate() reports the mismatch */
        block_range(b->op, b->first + i, &range, &length);
        start = round_down(borrowed->loan.offset + range, GDS_PAGE);
        bytes = round_up(borrowed->loan.offset + range + length, GDS_PAGE) - start;
        borrowed->reason = KVCACHE_GPU_GDS_SIZE;
        if (bytes > part + gpu->gds.part_bytes - *at)
                return;
        file = gds_file_acquire(&gpu->gds, gpu->kv, &borrowed->loan, &borrowed->reason);
        if (!file)
                return;
        length += borrowed->loan.offset + range - start;
        if (read_extend(gpu, b, file, start, *at, bytes, length))
                gds_file_release(file);
        else
                b->reads[b->n_reads++] = (struct gds_read){
                        .file = file, .offset = start, .at = *at, .bytes = bytes, .needed = length
                };
        borrowed->read = b->n_reads - 1;
        borrowed->at = *at + (borrowed->loan.offset + range - start);
        *at += bytes;
}

/* Returns whether no earlier batch still waits for a part of the device memory. */
static bool borrow_is_next(const struct kvcache_gpu *gpu, const struct batch *b)
{
        const struct batch *o;

        TAILQ_FOREACH(o, &gpu->active, link)
        {
                if (o == b)
                        break;
                if (o->borrows && o->op && !o->op->is_put &&
                    (o->state == BATCH_LENT ||
                     (o->state == BATCH_ASKING && o->question == BORROW_BLOCKS)))
                        return false;
        }
        return true;
}

/* --- returning loans, and the remaining blocks --- */

/* Gets the blocks that were neither leased nor read; if there are none, the batch is
 * BORROW_DONE. */
static void borrow_get_rest(struct kvcache_gpu *gpu, struct batch *b)
{
        struct kvcache_request request;
        uint32_t n = 0;
        int r;

        for (uint32_t k = 0; k < b->n_asked; k++) {
                uint32_t i = b->asked[k];

                if (b->borrowed[i].reason != KVCACHE_GPU_GDS_NONE)
                        b->asked[n++] = i;
        }
        b->n_asked = n;
        b->question = BORROW_DONE;
        if (n == 0)
                return;
        for (uint32_t k = 0; k < n; k++)
                b->again[k] = b->entries[b->asked[k]];
        memset(b->answers, 0, n * sizeof(b->answers[0]));
        kvcache_prep(&request, KVCACHE_OP_GET, b->op->namespace_handle, n, b->answers);
        request.entries = b->again;
        r = batch_submit(gpu, b, &request);
        if (r == 0) {
                b->question = BORROW_GET;
                return;
        }
        b->op->error = r;
        for (uint32_t k = 0; k < n; k++)
                b->results[b->asked[k]].status = status_of_error(r);
}

/* Decides for each block, after the loans were returned, whether the bytes that were read are
 * valid. `answers` is NULL if the daemon did not answer. */
static void borrow_settle(struct kvcache_gpu *gpu, struct batch *b,
                          const struct kvcache_result *answers)
{
        for (uint32_t k = 0; k < b->n_asked; k++) {
                struct borrowed *borrowed = &b->borrowed[b->asked[k]];
                int error = borrowed->read == READ_NONE ? 0 : b->reads[borrowed->read].error;

                if (borrowed->read != READ_NONE && error != 0)
                        borrowed->reason = error == GDS_SHORT ? KVCACHE_GPU_GDS_TOO_SHORT
                                                              : KVCACHE_GPU_GDS_FAILED;
                else if (borrowed->read != READ_NONE &&
                         (!answers || answers[k].status != KVCACHE_OK))
                        borrowed->reason = KVCACHE_GPU_GDS_RECALLED;
                borrowed->is_good =
                        borrowed->read != READ_NONE && borrowed->reason == KVCACHE_GPU_GDS_NONE;
                if (borrowed->reason != KVCACHE_GPU_GDS_NONE)
                        gds_count(&gpu->gds, borrowed->reason, error == GDS_SHORT ? 0 : error, 1);
        }
        borrow_get_rest(gpu, b);
}

static void borrow_give_back(struct kvcache_gpu *gpu, struct batch *b)
{
        struct kvcache_request request;

        for (uint32_t r = 0; r < b->n_reads; r++) {
                gds_file_release(b->reads[r].file);
                gds_judge(&gpu->gds, &b->reads[r]);
        }
        for (uint32_t k = 0; k < b->n_asked; k++)
                if (b->borrowed[b->asked[k]].read != READ_NONE)
                        b->borrowed[b->asked[k]].reason = KVCACHE_GPU_GDS_NONE;
        memset(b->answers, 0, b->n_asked * sizeof(b->answers[0]));
        kvcache_prep_give_back(&request, b->loans, b->n_asked, b->answers);
        b->question = BORROW_GIVE_BACK;
        if (parts_submit(gpu->kv, &request, &b->request) == 0)
                b->state = BATCH_ASKING;
        else
                borrow_settle(gpu, b, NULL);
}

/* --- steps of a batch --- */

static bool borrow_read(struct kvcache_gpu *gpu, struct batch *b)
{
        uint64_t at;

        if (!borrow_is_next(gpu, b))
                return false;
        b->device_part = gds_part_acquire(&gpu->gds);
        if (b->device_part < 0) {
                /* batches that use the device memory may wait for leases that this batch has */
                if (!pace_holds_up_device_memory(gpu))
                        return false;
                for (uint32_t k = 0; k < b->n_asked; k++)
                        b->borrowed[b->asked[k]].reason = KVCACHE_GPU_GDS_BUFFER;
                borrow_give_back(gpu, b);
                return true;
        }
        at = (uint64_t)b->device_part * gpu->gds.part_bytes;
        for (uint32_t k = 0; k < b->n_asked; k++)
                borrow_plan(gpu, b, b->asked[k], &at);
        b->state = BATCH_READING;
        b->began_ns = gds_now();
        gds_submit(&gpu->gds, &b->group, b->reads, b->n_reads);
        return true;
}

bool borrow_step(struct kvcache_gpu *gpu, struct batch *b)
{
        if (b->state == BATCH_LENT)
                return borrow_read(gpu, b);
        if (b->state == BATCH_READING) {
                if (!gds_group_is_done(&gpu->gds, &b->group))
                        return false;
                count_files(gpu, b);
                borrow_give_back(gpu, b);
                return true;
        }
        switch (b->question) {
        case BORROW_BLOCKS:
                borrow_take(gpu, b);
                if (b->n_asked > 0)
                        b->state = BATCH_LENT;
                else
                        b->question = BORROW_DONE;
                break;
        case BORROW_GIVE_BACK:
                (void)parts_request_take(gpu->kv, b->request); /* each loan has its own answer */
                b->request = NULL;
                borrow_settle(gpu, b, b->answers);
                break;
        case BORROW_GET:
                (void)batch_take_answer(gpu, b, b->answers, b->n_asked);
                for (uint32_t k = 0; k < b->n_asked; k++)
                        b->results[b->asked[k]] = b->answers[k];
                b->question = BORROW_DONE;
                break;
        case BORROW_DONE:
                break;
        }
        return true;
}
