/* SPDX-License-Identifier: Apache-2.0 */
/* Counts transfers between the GPU, the host and the disk, as kvcache_count_transfer() does.
 *
 * Runs in the handle's thread; owns nothing. An error in counting does not affect the operation.
 *
 * The copies of a batch are counted together when they end. Their number is that of the
 * operations that the driver was given: entries of a batch call count one by one, and a launch of
 * the kernel counts as one, without the copies into bounce memory before it. A get whose blocks
 * come partly from host memory and partly from device memory, where cuFile has read them, has
 * copies on two paths. They are divided by their number of pieces, and a single launch counts on
 * both paths. */
#include "checked.h"
#include "gpu/batch.h"

/* Returns the other end of block `i`'s copies: MOVED_DEVICE or MOVED_HOST. */
static unsigned side_of(const struct batch *b, uint32_t i)
{
        if (b->writes)
                return b->step == WRITE_GATHER ? MOVED_DEVICE : MOVED_HOST;
        return b->borrowed[i].is_good ? MOVED_DEVICE : MOVED_HOST;
}

/* Returns whether the copies go from device memory to staging, in the stored layout. */
static bool is_write_back(const struct batch *b)
{
        return b->writes && b->step == WRITE_BACK;
}

void count_block(struct batch *b, uint32_t i, uint32_t pieces)
{
        struct moved *m = &b->moved[side_of(b, i)];
        const struct operation *op = b->op;
        uint32_t n = chunk_count_blocks(op, b->first + i);
        struct layout_part part = op->layers;
        uint64_t offset, bytes;

        block_range(op, b->first + i, &offset, &bytes);
        m->pieces += pieces;
        if (is_write_back(b)) {
                m->blocks++;
                m->regions++;
                m->bytes += bytes;
                m->device_bytes += bytes;
                return;
        }
        if (op->indices)
                bytes = op->layout.block_bytes;
        part.tokens = op->blocks[b->first + i].tokens;
        m->blocks += n;
        m->regions += (uint64_t)n * layout_count_regions(&op->layout, op->layers.n_layers);
        m->bytes += n * bytes;
        m->device_bytes += n * layout_device_bytes(&op->layout, &part, bytes);
}

void count_begin(const struct kvcache_gpu *gpu, struct batch *b,
                 const struct kvcache_gpu_counts *before)
{
        b->began_ns = gds_now();
        b->copies_by = engine_technology(&gpu->engine, before, &b->copies);
}

static uint64_t nanoseconds_since(int64_t began_ns)
{
        return (uint64_t)MAX(gds_now() - began_ns, INT64_C(0));
}

/* Returns the duration of the copies on the device, without the wait for earlier work in the
 * stream. */
static uint64_t copying_ns(const struct kvcache_gpu *gpu, const struct batch *b)
{
        float ms;

        if (b->is_timed && !b->is_failed &&
            gpu->driver.event_elapsed(&ms, b->begun, b->done) == CU_OK && ms >= 0)
                return (uint64_t)((double)ms * 1e6);
        return nanoseconds_since(b->began_ns);
}

void count_op_begin(const struct kvcache_gpu *gpu, struct batch *b)
{
        struct operation *op = b->op;

        if (op->begun || gpu->driver.event_create(&op->begun, 0) != CU_OK)
                return;
        if (gpu->driver.event_record(op->begun, b->stream) == CU_OK)
                return;
        (void)gpu->driver.event_destroy(op->begun);
        op->begun = NULL;
}

/* Adds the batch's time to its operation's. Batches in two streams overlap, so time in which both
 * run counts once. */
static void count_op_end(const struct kvcache_gpu *gpu, struct batch *b)
{
        const struct driver *d = &gpu->driver;
        struct operation *op = b->op;
        float begin = 0, end = 0;

        if (!b->is_timed || b->is_failed || !op->begun ||
            d->event_elapsed(&begin, op->begun, b->begun) != CU_OK ||
            d->event_elapsed(&end, op->begun, b->done) != CU_OK)
                return;
        op->copy_ms += MAX((double)end - MAX((double)begin, op->copied_ms), 0.0);
        op->copied_ms = MAX(op->copied_ms, (double)end);
}

void count_copies(struct kvcache_gpu *gpu, struct batch *b)
{
        uint64_t pieces = b->moved[MOVED_HOST].pieces + b->moved[MOVED_DEVICE].pieces;
        struct kvcache_transfer t = {
                .layout = is_write_back(b) ? KVCACHE_LAYOUT_CONTIGUOUS : b->op->layout.kind,
                .technology = b->copies_by,
                .result = b->is_failed ? KVCACHE_TRANSFER_IO : KVCACHE_TRANSFER_OK,
                .duration_ns = copying_ns(gpu, b),
        };

        count_op_end(gpu, b);
        for (unsigned side = 0; side < MOVED_SIDES; side++) {
                struct moved *m = &b->moved[side];

                if (m->blocks == 0)
                        continue;
                t.path = side == MOVED_DEVICE ? KVCACHE_DEVICE_TO_DEVICE
                         : b->op->is_put      ? KVCACHE_DEVICE_TO_HOST
                                              : KVCACHE_HOST_TO_DEVICE;
                t.transfers =
                        MAX((uint64_t)((double)b->copies * (double)m->pieces / (double)pieces),
                            UINT64_C(1));
                t.blocks = m->blocks;
                t.regions = m->regions;
                t.bytes = m->bytes;
                t.device_bytes = m->device_bytes;
                (void)parts_count_transfer(gpu->kv, &t);
                *m = (struct moved){ 0 };
        }
}

/* Returns whether cuFile read or wrote block `i`, and every call for it succeeded. */
static bool came_by_file(const struct batch *b, uint32_t i)
{
        const struct borrowed *block = &b->borrowed[i];

        if (!b->writes)
                return block->loan.generation != 0 && block->read != READ_NONE &&
                       b->reads[block->read].error == 0;
        for (uint32_t r = 0; r < b->n_reads; r++)
                if (b->reads[r].error != 0 && b->reads[r].at < block->at + b->entries[i].length &&
                    block->at < b->reads[r].at + b->reads[r].bytes)
                        return false;
        return true;
}

void count_files(struct kvcache_gpu *gpu, const struct batch *b)
{
        struct kvcache_transfer t = {
                .path = b->writes ? KVCACHE_DEVICE_TO_DISK : KVCACHE_DISK_TO_DEVICE,
                .layout = KVCACHE_LAYOUT_CONTIGUOUS,
                .technology = KVCACHE_GDS,
                .duration_ns = nanoseconds_since(b->began_ns),
        };
        uint64_t failed = 0, cut = 0;

        for (uint32_t r = 0; r < b->n_reads; r++) {
                t.transfers += b->reads[r].error == 0;
                t.device_bytes += b->reads[r].error == 0 ? b->reads[r].bytes : 0;
                cut += b->reads[r].error == GDS_SHORT;
                failed += b->reads[r].error != 0 && b->reads[r].error != GDS_SHORT;
        }
        for (uint32_t i = 0; i < b->n; i++)
                if (came_by_file(b, i)) {
                        uint64_t offset, bytes;

                        block_range(b->op, b->first + i, &offset, &bytes);
                        t.blocks++;
                        t.bytes += bytes;
                }
        t.regions = t.blocks;
        if (t.transfers > 0)
                (void)parts_count_transfer(gpu->kv, &t);
        t.transfers = cut;
        t.result = KVCACHE_TRANSFER_SHORT;
        if (cut > 0)
                (void)parts_count_transfer(gpu->kv, &t);
        t.transfers = failed;
        t.result = KVCACHE_TRANSFER_IO;
        if (failed > 0)
                (void)parts_count_transfer(gpu->kv, &t);
}
