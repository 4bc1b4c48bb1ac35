/* SPDX-License-Identifier: Apache-2.0 */
/* Batches: consecutive blocks of an operation, moved to or from GPU memory together.
 *
 * Runs in the handle's thread. Owns the batches.
 *
 * A put's batch is gathered into a part of the staging memory, and then put from there. A get's
 * batch is requested, and then scattered directly from the pool, whose leases last until the copies
 * are done. If the pool is not registered, the batch is read into a part of the staging memory and
 * scattered from there.
 *
 * Order: operations of one direction share streams, and work that one copy waits for delays all
 * later copies of the stream. Therefore operations put their copies into the streams strictly in
 * the order in which the program submitted the operations, even if the daemon answers in another
 * order. An earlier request thus never waits for work that only a later one waits for.
 *
 * Failures: a driver call that fails makes the blocks of its batch KVCACHE_FAILED, after the
 * earlier work in the stream is done. Staging memory that a lost request may still access stays
 * taken until the library reports it as settled. */
#include "gpu/batch.h"

#include <errno.h>
#include <string.h>

#include "checked.h"

enum {
        DIRECT_PAGE = 4096, /* alignment of blocks in staging, for the daemon's direct I/O */
        POOL_SHARE = 16, /* a batch of several blocks leases at most a POOL_SHARE-th of the pool */
};

/* --- statuses of blocks --- */

void block_judge(struct operation *op, size_t i, int status)
{
        op->statuses[i] = status;
        op->judged++;
}

static void batch_judge_all(struct batch *b, int status, int error)
{
        for (uint32_t i = 0; i < b->n; i++)
                block_judge(b->op, b->first + i, status);
        if (b->op->error == 0)
                b->op->error = error;
}

int status_of_error(int error)
{
        switch (error) {
        case -ENOTCONN:
                return KVCACHE_LOST;
        case -ENOMEM:
        case -ENOBUFS:
                return KVCACHE_BUSY;
        case -E2BIG:
                return KVCACHE_TOO_LARGE;
        case -EEXIST:
                return KVCACHE_MISMATCH;
        case -ENOENT:
                return KVCACHE_NO_NAMESPACE;
        default:
                return KVCACHE_INVALID;
        }
}

/* --- batches --- */

uint64_t block_bytes(const struct operation *op, size_t i)
{
        return layout_chunk_bytes(&op->layout, op->blocks[i].tokens) * op->chunk_blocks;
}

void block_range(const struct operation *op, size_t i, uint64_t *ret_offset, uint64_t *ret_bytes)
{
        uint64_t layer = block_bytes(op, i) / op->layout.layers;

        if (op->indices) {
                chunk_range(op, i, ret_offset, ret_bytes);
                return;
        }
        *ret_offset = layer * op->layers.first_layer;
        *ret_bytes = layer * op->layers.n_layers;
}

static uint32_t block_most_pieces(const struct operation *op)
{
        return layout_most_pieces(&op->layout, op->layers.n_layers) * op->chunk_blocks;
}

/* Returns how many of the remaining blocks make a batch, if each batch holds `room` bytes; at least
 * one. */
static uint32_t batch_size(const struct operation *op, uint64_t room)
{
        uint64_t bytes = 0, pieces = 0, offset, one;
        uint32_t n = 0;

        while (n < GPU_BATCH_BLOCKS && op->next + n < op->count) {
                block_range(op, op->next + n, &offset, &one);
                bytes += round_up(one, DIRECT_PAGE);
                pieces += block_most_pieces(op);
                if (n > 0 && (bytes > room || pieces > ENGINE_MAX_COPIES))
                        break;
                n++;
        }
        return n;
}

static void batch_release_device_part(struct kvcache_gpu *gpu, struct batch *b)
{
        if (b->device_part >= 0)
                gds_part_release(&gpu->gds, b->device_part);
        b->device_part = -1;
}

static void batch_free(struct kvcache_gpu *gpu, struct batch *b)
{
        if (b->part >= 0)
                staging_part_release(&gpu->staging, b->part);
        batch_release_device_part(gpu, b);
        if (b->writes)
                gds_puts_release(&gpu->gds);
        b->writes = false;
        b->part = -1;
        b->op = NULL;
        b->state = BATCH_FREE;
        TAILQ_REMOVE(&gpu->active, b, link);
        TAILQ_INSERT_TAIL(&gpu->idle, b, link);
}

void batch_end(struct kvcache_gpu *gpu, struct batch *b, bool may_be_used)
{
        pace_give_back(gpu, b, true);
        if (may_be_used && (b->part >= 0 || b->writes)) {
                b->op = NULL;
                b->state = BATCH_SETTLING;
        } else {
                batch_free(gpu, b);
        }
}

/* Appends the copies of one block of the layout to the scratch list, which has `n` copies.
 * `chunk` is the address of the chunk's first byte, even if the range that is moved begins
 * later. Returns the new length of the list. */
static size_t batch_add_block(struct kvcache_gpu *gpu, const struct operation *op, uint64_t block,
                              const struct layout_part *part, cu_address chunk, size_t n)
{
        uint32_t k = layout_pieces(&op->layout, block, part, gpu->pieces);

        for (uint32_t p = 0; p < k; p++) {
                const struct kvcache_piece *piece = &gpu->pieces[p];
                cu_address there = chunk + piece->offset;

                gpu->copies[n++] = op->is_put
                                           ? (struct copy){ there, piece->address, piece->bytes }
                                           : (struct copy){ piece->address, there, piece->bytes };
        }
        return n;
}

size_t batch_add(struct kvcache_gpu *gpu, struct batch *b, uint32_t i, cu_address host, size_t n)
{
        const struct operation *op = b->op;
        size_t chunk = b->first + i, before = n;
        struct layout_part part = op->layers;
        uint64_t offset, bytes;

        block_range(op, chunk, &offset, &bytes);
        part.tokens = op->blocks[chunk].tokens;
        for (uint32_t k = 0; k < op->chunk_blocks; k++) {
                uint64_t block = chunk_block(op, chunk, k);

                if (block != KVCACHE_GPU_NO_BLOCK)
                        n = batch_add_block(gpu, op, block, &part,
                                            host + k * op->layout.block_bytes - offset, n);
        }
        count_block(b, i, (uint32_t)(n - before));
        return n;
}

static void batch_fail(struct kvcache_gpu *gpu, struct batch *b, const char *what, cu_result c)
{
        gpu->engine.counts.driver_errors++;
        b->is_failed = true;
        b->op->error = gpu_fail_driver(gpu, what, c);
}

/* Returns the index in get_streams of the stream for a get's batch. If the kernel may be used,
 * batches alternate between two streams, so that the list and launch of one overlap with the copies
 * of the other. Otherwise they share one, because batch calls in two streams would interfere. */
static unsigned get_stream(const struct kvcache_gpu *gpu, const struct batch *b)
{
        return engine_has_kernel(&gpu->engine) ? b->slot % 2 : 0;
}

/* Puts `n` copies into the stream, and an event behind them. */
static void batch_copy_in(struct kvcache_gpu *gpu, struct batch *b, cu_stream stream,
                          cu_event before, size_t n, bool is_mapped, int bounce_part)
{
        const struct kvcache_gpu_counts counts = gpu->engine.counts;
        const struct driver *d = &gpu->driver;
        cu_result c = CU_OK;

        b->stream = stream;
        if (before)
                c = d->stream_wait_event(stream, before, 0);
        b->is_timed = c == CU_OK && b->begun && d->event_record(b->begun, stream) == CU_OK;
        if (b->is_timed)
                count_op_begin(gpu, b);
        if (c == CU_OK)
                c = engine_copy(&gpu->engine, b->slot, stream, gpu->copies, n, is_mapped,
                                bounce_part);
        if (c != CU_OK)
                batch_fail(gpu, b, "blocks cannot be copied", c);
        count_begin(gpu, b, &counts);
        b->issue = gpu->next_issue++;
        c = d->event_record(b->done, stream);
        if (c != CU_OK) {
                /* No event marks the end of the copies, so wait until the stream is empty. */
                batch_fail(gpu, b, "an event cannot be recorded", c);
                (void)d->stream_synchronize(stream);
        }
        b->state = BATCH_COPYING;
}

void batch_copy(struct kvcache_gpu *gpu, struct batch *b, size_t n, bool is_mapped)
{
        unsigned stream = get_stream(gpu, b);

        if (b->op->is_put)
                batch_copy_in(gpu, b, gpu->put_stream, b->op->before, n, is_mapped, -1);
        else /* blocks that cuFile has read are in device memory already, so their copies do not use
                bounce memory */
                batch_copy_in(gpu, b, gpu->get_streams[stream], b->op->before, n, is_mapped,
                              b->device_part < 0 ? (int)stream : -1);
        b->op->unissued--;
}

void batch_copy_aside(struct kvcache_gpu *gpu, struct batch *b, size_t n, bool is_mapped)
{
        batch_copy_in(gpu, b, gpu->back_stream, NULL, n, is_mapped, -1);
}

int batch_submit(struct kvcache_gpu *gpu, struct batch *b, struct kvcache_request *request)
{
        struct operation *op = b->op;
        int r;

        request->flags |= op->flags & KVCACHE_NOWAIT;
        if (b->first + b->n < op->count)
                request->flags |= KVCACHE_MORE;
        if (b->first > 0)
                request->parent = &op->blocks[b->first - 1].key;
        else if (op->has_parent)
                request->parent = &op->parent;
        request->timeout_ms = op->timeout_ms;
        r = parts_submit(gpu->kv, request, &b->request);
        if (r < 0)
                return gpu_fail(gpu, r, "%s", kvcache_error(gpu->kv));
        b->state = BATCH_ASKING;
        return 0;
}

/* Sends the batch's request. Returns false if sending failed; all blocks of the batch then have
 * their status. */
static bool batch_ask(struct kvcache_gpu *gpu, struct batch *b, struct kvcache_request *request)
{
        int r = batch_submit(gpu, b, request);

        if (r < 0)
                batch_judge_all(b, status_of_error(r), r);
        return r == 0;
}

bool batch_take_answer(struct kvcache_gpu *gpu, struct batch *b,
                       const struct kvcache_result *results, uint32_t n)
{
        int r = parts_request_take(gpu->kv, b->request);
        bool may_be_used = false;

        b->request = NULL;
        if (r < 0) {
                gpu_fail(gpu, r, "%s", kvcache_error(gpu->kv));
                if (b->op->error == 0)
                        b->op->error = r;
        }
        for (uint32_t i = 0; i < n; i++)
                may_be_used |=
                        results[i].status == KVCACHE_PENDING || results[i].status == KVCACHE_LOST;
        return may_be_used;
}

bool batch_take_results(struct kvcache_gpu *gpu, struct batch *b)
{
        bool may_be_used;

        if (b->n_again == 0)
                return batch_take_answer(gpu, b, b->results, b->n);
        may_be_used = batch_take_answer(gpu, b, b->answers, b->n_again);
        for (uint32_t k = 0; k < b->n_again; k++)
                b->results[b->asked[k]] = b->answers[k];
        b->n_again = 0;
        return may_be_used;
}

struct batch *batch_new(struct kvcache_gpu *gpu, struct operation *op, int part, uint64_t room)
{
        struct batch *b = TAILQ_FIRST(&gpu->idle);

        TAILQ_REMOVE(&gpu->idle, b, link);
        TAILQ_INSERT_TAIL(&gpu->active, b, link);
        b->op = op;
        b->part = part;
        b->first = op->next;
        b->n = batch_size(op, room);
        b->is_failed = b->is_settling = false;
        b->borrows = b->is_paced = b->asked_alone = false;
        b->n_again = 0;
        memset(b->moved, 0, sizeof(b->moved));
        memset(b->is_judged, 0, b->n * sizeof(b->is_judged[0]));
        memset(b->borrowed, 0, b->n * sizeof(b->borrowed[0]));
        memset(b->entries, 0, b->n * sizeof(b->entries[0]));
        memset(b->results, 0, b->n * sizeof(b->results[0]));
        for (uint32_t i = 0; i < b->n; i++) {
                b->entries[i].key = op->blocks[b->first + i].key;
                b->entries[i].cost_us = op->blocks[b->first + i].cost_us;
        }
        op->next += b->n;
        op->unissued++;
        return b;
}

/* Gives each entry its place in the batch's part of the staging memory. */
static void batch_place(struct kvcache_gpu *gpu, struct batch *b)
{
        uint8_t *at = staging_part(&gpu->staging, b->part);

        for (uint32_t i = 0; i < b->n; i++) {
                uint64_t offset, bytes;

                block_range(b->op, b->first + i, &offset, &bytes);
                b->entries[i].data = at;
                b->entries[i].length = bytes;
                at += round_up(bytes, DIRECT_PAGE);
        }
}

cu_address staging_address(const struct kvcache_gpu *gpu, const void *data)
{
        if (!gpu->staging.device)
                return (cu_address)(uintptr_t)data;
        return gpu->staging.device + (uint64_t)((const uint8_t *)data - gpu->staging.base);
}

/* --- puts --- */

bool batch_begin_put(struct kvcache_gpu *gpu, struct operation *op)
{
        enum kvcache_gpu_gds_reason reason =
                gds_puts_ready(&gpu->gds, gpu->kv, block_bytes(op, op->next));
        struct batch *b;
        size_t n = 0;
        int part;

        if (reason == KVCACHE_GPU_GDS_NONE && op->has_holes)
                reason = KVCACHE_GPU_GDS_HOLES;
        if (reason == KVCACHE_GPU_GDS_NONE)
                return write_begin(gpu, op);
        part = staging_part_acquire(&gpu->staging);
        if (part < 0)
                return false;
        b = batch_new(gpu, op, part, gpu->staging.part_bytes);
        gds_puts_count(&gpu->gds, reason, 0, b->n);
        batch_place(gpu, b);
        for (uint32_t i = 0; i < b->n; i++) {
                if (op->has_holes)
                        chunk_clear_holes(op, b->first + i, b->entries[i].data);
                n = batch_add(gpu, b, i, staging_address(gpu, b->entries[i].data), n);
        }
        batch_copy(gpu, b, n, gpu->staging.device != 0);
        return true;
}

static void put_gathered(struct kvcache_gpu *gpu, struct batch *b)
{
        struct kvcache_request request;

        if (b->is_failed) {
                batch_judge_all(b, KVCACHE_FAILED, -EIO);
                batch_end(gpu, b, false);
                return;
        }
        kvcache_prep_put(&request, b->op->namespace_handle, b->entries, b->n, b->op->ack,
                         b->results);
        if (!batch_ask(gpu, b, &request))
                batch_end(gpu, b, false);
}

static void put_answered(struct kvcache_gpu *gpu, struct batch *b)
{
        bool may_be_used = batch_take_answer(gpu, b, b->results, b->n);

        for (uint32_t i = 0; i < b->n; i++)
                block_judge(b->op, b->first + i, b->results[i].status);
        batch_end(gpu, b, may_be_used);
}

/* --- gets --- */

static void get_unasked(struct kvcache_gpu *gpu, struct batch *b)
{
        b->op->unissued--;
        batch_end(gpu, b, false);
}

static void get_ask_in_pool(struct kvcache_gpu *gpu, struct operation *op)
{
        uint64_t room = MIN((uint64_t)GPU_BATCH_BYTES, gpu->pool.bytes / POOL_SHARE);
        bool borrows = gds_is_usable(&gpu->gds);
        struct kvcache_request request;
        struct batch *b;
        int r;

        b = batch_new(gpu, op, -1, borrows ? MIN(room, borrow_room(gpu, op)) : room);
        if (borrows) {
                r = borrow_begin(gpu, b);
                if (r < 0) {
                        batch_judge_all(b, status_of_error(r), r);
                        get_unasked(gpu, b);
                }
                return;
        }
        kvcache_prep(&request, KVCACHE_OP_GET, op->namespace_handle, b->n, b->results);
        request.entries = b->entries;
        if (!batch_ask(gpu, b, &request))
                get_unasked(gpu, b);
}

static bool get_ask_into_staging(struct kvcache_gpu *gpu, struct operation *op)
{
        int part = staging_part_acquire(&gpu->staging);
        struct kvcache_request request;
        struct batch *b;
        uint64_t offset, bytes;

        if (part < 0)
                return false;
        b = batch_new(gpu, op, part, gpu->staging.part_bytes);
        block_range(op, b->first, &offset, &bytes);
        if (bytes > gpu->staging.part_bytes) { /* such a block is alone in its batch */
                gpu_fail(gpu, -E2BIG,
                         "a block of %llu bytes is longer than an eighth of the staging memory: "
                         "raise staging_bytes",
                         (unsigned long long)bytes);
                batch_judge_all(b, KVCACHE_TOO_LARGE, -E2BIG);
                get_unasked(gpu, b);
                return true;
        }
        batch_place(gpu, b);
        for (uint32_t i = 0; i < b->n; i++)
                block_range(op, b->first + i, &b->entries[i].range_offset,
                            &b->entries[i].range_length);
        kvcache_prep_get_into(&request, op->namespace_handle, b->entries, b->n, b->results);
        if (!batch_ask(gpu, b, &request))
                get_unasked(gpu, b);
        return true;
}

bool batch_begin_get(struct kvcache_gpu *gpu, struct operation *op)
{
        if (!gpu->pool_slices.device)
                return get_ask_into_staging(gpu, op);
        if (pace_holds_up_gets(gpu))
                return false;
        get_ask_in_pool(gpu, op);
        return true;
}

/* Returns the block's status, and the device address of its range. */
static int get_locate(const struct kvcache_gpu *gpu, const struct batch *b, uint32_t i,
                      cu_address *ret)
{
        const struct kvcache_result *result = &b->results[i];
        uint64_t offset, bytes, at;

        if (!kvcache_status_ok(result->status))
                return result->status;
        if (result->chunk_length != block_bytes(b->op, b->first + i))
                return KVCACHE_MISMATCH;
        if (b->borrowed[i].is_good) {
                *ret = gpu->gds.memory + b->borrowed[i].at;
                return KVCACHE_OK;
        }
        if (b->part >= 0) {
                *ret = staging_address(gpu, b->entries[i].data);
                return KVCACHE_OK;
        }
        /* Another session with another pool may have replaced the one that the request was sent
         * in. */
        at = (uint64_t)((uintptr_t)result->data - (uintptr_t)gpu->pool.base);
        if (!range_within(at, result->chunk_length, gpu->pool.bytes))
                return KVCACHE_LOST;
        block_range(b->op, b->first + i, &offset, &bytes);
        *ret = gpu->pool_slices.device + at + offset;
        return KVCACHE_OK;
}

/* Counts the blocks that came from the disk without GPUDirect Storage, with the reason, unless it
 * is off. */
static void get_count(struct kvcache_gpu *gpu, const struct batch *b)
{
        enum kvcache_gpu_gds_reason reason = gpu->gds.state;

        if (b->borrows || reason == KVCACHE_GPU_GDS_OFF)
                return;
        if (b->part >= 0)
                reason = KVCACHE_GPU_GDS_POOL;
        else if (reason == KVCACHE_GPU_GDS_NONE)
                reason = KVCACHE_GPU_GDS_PAUSED;
        for (uint32_t i = 0; i < b->n; i++)
                gds_count(&gpu->gds, reason, 0,
                          !b->is_judged[i] && kvcache_status_ok(b->results[i].status) &&
                                  (b->results[i].tiers & KVCACHE_TIER_DISK));
}

static void get_judge(struct batch *b, uint32_t i, int status)
{
        block_judge(b->op, b->first + i, status);
        b->is_judged[i] = true;
}

/* Makes the batch wait until it may request again the blocks that were refused with QUOTA (pace.c).
 * Returns its leases and its device memory, which other batches need meanwhile. The blocks that the
 * batch got must have their status. */
static void get_pace(struct kvcache_gpu *gpu, struct batch *b)
{
        pace_give_back(gpu, b, true);
        batch_release_device_part(gpu, b);
        b->state = BATCH_PACED;
}

static void get_answered(struct kvcache_gpu *gpu, struct batch *b)
{
        bool may_be_used = false, again;
        size_t n = 0;

        if (b->request)
                may_be_used = batch_take_results(gpu, b) && b->part >= 0;
        get_count(gpu, b);
        again = pace_begin(b);
        if (b->state == BATCH_PACED) {
                batch_release_device_part(gpu, b);
                return;
        }
        for (uint32_t i = 0; i < b->n; i++) {
                cu_address host;
                int status;

                if (b->is_judged[i] || (again && b->results[i].status == KVCACHE_QUOTA))
                        continue;
                status = get_locate(gpu, b, i, &host);
                if (status == KVCACHE_OK)
                        n = batch_add(gpu, b, i, host, n);
                else
                        get_judge(b, i, status);
                b->results[i].status = status;
        }
        b->is_settling = may_be_used;
        if (again &&
            n == 0) { /* no copy is to be made: every block that was got has the wrong length */
                get_pace(gpu, b);
                return;
        }
        b->op->unissued += again; /* the batch will make more copies */
        if (n > 0) {
                batch_copy(gpu, b, n, b->part < 0 || gpu->staging.device != 0);
        } else {
                b->op->unissued--;
                batch_end(gpu, b, may_be_used);
        }
}

static void get_scattered(struct kvcache_gpu *gpu, struct batch *b)
{
        struct kvcache_gpu_counts *counts = &gpu->engine.counts;
        bool again = false;

        for (uint32_t i = 0; i < b->n; i++) {
                uint64_t *way = b->borrowed[i].is_good ? &gpu->gds.counts.blocks
                                : b->part < 0          ? &counts->blocks_from_pool
                                                       : &counts->blocks_through_staging;

                if (b->is_judged[i])
                        continue;
                again |= b->results[i].status != KVCACHE_OK;
                if (b->results[i].status != KVCACHE_OK && !b->is_failed)
                        continue;
                get_judge(b, i, b->is_failed ? KVCACHE_FAILED : KVCACHE_OK);
                *way += !b->is_failed;
        }
        if (again && !b->is_failed) {
                get_pace(gpu, b);
                return;
        }
        b->op->unissued -= again; /* the batch makes no more copies */
        batch_end(gpu, b, b->is_settling);
}

/* --- continuing a batch --- */

bool operation_may_issue(const struct kvcache_gpu *gpu, const struct operation *op)
{
        const struct operation *o;

        TAILQ_FOREACH(o, &gpu->operations, link)
        if (o->is_put == op->is_put && !o->is_issued)
                break;
        return o == op;
}

static bool batch_is_settled(struct kvcache_gpu *gpu, const struct batch *b)
{
        const struct gds *g = &gpu->gds;

        if (b->part >= 0 && kvcache_memory_settled(gpu->kv, staging_part(&gpu->staging, b->part),
                                                   gpu->staging.part_bytes) == 0)
                return false;
        return !b->writes ||
               kvcache_memory_settled(gpu->kv,
                                      g->puts.base + (uint64_t)b->device_part * g->part_bytes,
                                      g->part_bytes) != 0;
}

/* Returns whether no batch that was put into the same stream earlier is still BATCH_COPYING: the
 * batches of a stream end in the order in which they were issued. */
static bool batch_is_oldest_of_stream(const struct kvcache_gpu *gpu, const struct batch *b)
{
        const struct batch *other;

        TAILQ_FOREACH(other, &gpu->active, link)
        if (other->state == BATCH_COPYING && other->stream == b->stream && other->issue < b->issue)
                return false;
        return true;
}

bool batch_step(struct kvcache_gpu *gpu, struct batch *b)
{
        bool changed = false;
        cu_result c;

        switch (b->state) {
        case BATCH_ASKING:
        case BATCH_LENT:
        case BATCH_READING:
                if (b->writes)
                        return write_step(gpu, b);
                if (b->request && !parts_request_is_done(b->request))
                        return false;
                if (b->op->is_put) {
                        put_answered(gpu, b);
                        return true;
                }
                if (b->borrows && b->question != BORROW_DONE) {
                        changed = borrow_step(gpu, b);
                        if (b->question != BORROW_DONE)
                                return changed;
                }
                if (!operation_may_issue(gpu, b->op))
                        return changed;
                get_answered(gpu, b);
                return true;
        case BATCH_PACED:
                return operation_may_issue(gpu, b->op) && pace_step(gpu, b);
        case BATCH_COPYING:
                if (!batch_is_oldest_of_stream(gpu, b))
                        return false;
                c = gpu->driver.event_query(b->done);
                if (c == CU_ERROR_NOT_READY)
                        return false;
                if (c != CU_OK) {
                        /* The batch's memory is released next, so wait until nothing can copy
                         * there. */
                        (void)gpu->driver.stream_synchronize(b->stream);
                        if (!b->is_failed)
                                batch_fail(gpu, b, "blocks were not copied", c);
                }
                count_copies(gpu, b);
                if (b->writes)
                        write_copied(gpu, b);
                else if (b->op->is_put)
                        put_gathered(gpu, b);
                else
                        get_scattered(gpu, b);
                return true;
        case BATCH_SETTLING:
                if (!batch_is_settled(gpu, b))
                        return false;
                batch_free(gpu, b);
                return true;
        default:
                return false;
        }
}
