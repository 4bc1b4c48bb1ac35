/* SPDX-License-Identifier: Apache-2.0 */
/* Puts through cuFile: to a file of this library, from which the daemon takes them (gds-put.c).
 *
 * Runs in the handle's thread; the threads of gds.c make cuFile's calls.
 *
 * A batch is gathered into a part of the device memory. cuFile writes that, in large pieces, to the
 * part of the file with the same number, and a put names each block's place there. The batch keeps
 * both parts until the daemon has answered.
 *
 * Failures: the blocks of a piece that was not written, and blocks that the daemon could not
 * read from the file, are copied from the device memory to a part of the staging memory and put
 * from there, in as many rounds as necessary, because the engine's own memory may hold another
 * block by then. They are counted with the reason. These copies use a separate stream, because
 * they need not wait for other work. Any other refusal of the daemon, such as a lack of room,
 * becomes the block's status. */
#include <errno.h>
#include <string.h>

#include "checked.h"
#include "gpu/batch.h"

bool write_begin(struct kvcache_gpu *gpu, struct operation *op)
{
        uint64_t at, offset, bytes;
        struct batch *b;
        size_t n = 0;
        int part = -1;

        /* Half of the device memory is reserved for gets, because a put may wait for resources
         * that a get has. */
        if (gpu->gds.puts.file.users < GDS_PARTS / 2)
                part = gds_part_acquire(&gpu->gds);
        if (part < 0)
                return false;
        b = batch_new(gpu, op, -1, gpu->gds.part_bytes);
        b->device_part = part;
        b->writes = b->is_written = true;
        b->step = WRITE_GATHER;
        b->n_asked = b->n_reads = 0;
        gds_puts_acquire(&gpu->gds);
        at = (uint64_t)part * gpu->gds.part_bytes;
        for (uint32_t i = 0; i < b->n; i++) {
                block_range(op, b->first + i, &offset, &bytes);
                b->entries[i].data = gpu->gds.puts.base + at;
                b->entries[i].length = bytes;
                b->borrowed[i].at = at;
                n = batch_add(gpu, b, i, gpu->gds.memory + at, n);
                at += round_up(bytes, GDS_PAGE);
        }
        batch_copy(gpu, b, n, true);
        return true;
}

/* Ends a batch whose blocks all have their status. A failed gather is no result of the file. */
static void write_end(struct kvcache_gpu *gpu, struct batch *b)
{
        if (b->step != WRITE_GATHER)
                gds_puts_judge(&gpu->gds, b->is_written);
        for (uint32_t i = 0; i < b->n; i++)
                block_judge(b->op, b->first + i, b->results[i].status);
        batch_end(gpu, b, b->is_settling);
}

/* --- through the file --- */

static uint64_t block_end(const struct batch *b, uint32_t i)
{
        return b->borrowed[i].at + round_up(b->entries[i].length, GDS_PAGE);
}

static void write_to_file(struct kvcache_gpu *gpu, struct batch *b)
{
        uint64_t at = b->borrowed[0].at, end = block_end(b, b->n - 1);
        uint64_t most = MAX((uint64_t)GDS_READ_BYTES,
                            round_up((end - at) / GPU_BATCH_BLOCKS + 1, (uint64_t)GDS_PAGE));

        for (; at < end; at += most) {
                uint64_t bytes = MIN(most, end - at);

                b->reads[b->n_reads++] = (struct gds_read){
                        .file = &gpu->gds.puts.file,
                        .offset = at,
                        .at = at,
                        .bytes = bytes,
                        .needed = bytes,
                        .is_write = true,
                };
        }
        b->step = WRITE_FILE;
        b->state = BATCH_READING;
        b->began_ns = gds_now();
        gds_submit(&gpu->gds, &b->group, b->reads, b->n_reads);
}

static void write_refuse(struct kvcache_gpu *gpu, struct batch *b, uint32_t i,
                         enum kvcache_gpu_gds_reason reason, int error)
{
        if (b->borrowed[i].reason != KVCACHE_GPU_GDS_NONE)
                return;
        b->borrowed[i].reason = reason;
        b->is_written = false;
        gds_puts_count(&gpu->gds, reason, error, 1);
}

/* Makes the batch wait for staging memory, through which the blocks that did not pass through the
 * file are put next; ends the batch if there are none. */
static void write_rest(struct kvcache_gpu *gpu, struct batch *b)
{
        b->n_asked = 0;
        for (uint32_t i = 0; i < b->n; i++)
                if (b->borrowed[i].reason != KVCACHE_GPU_GDS_NONE)
                        b->asked[b->n_asked++] = i;
        b->step = WRITE_WAIT;
        b->state = BATCH_LENT;
        if (b->n_asked == 0)
                write_end(gpu, b);
}

/* Puts `n` blocks of `asked` from the places in `again`. Returns false if the put could not be
 * sent: `answers` then has the status for each of these blocks. */
static bool write_ask(struct kvcache_gpu *gpu, struct batch *b, uint32_t n, enum write_step step)
{
        struct kvcache_request request;
        int r;

        memset(b->answers, 0, n * sizeof(b->answers[0]));
        kvcache_prep_put(&request, b->op->namespace_handle, b->again, n, b->op->ack, b->answers);
        r = batch_submit(gpu, b, &request);
        b->step = step;
        for (uint32_t k = 0; k < n && r < 0; k++)
                b->answers[k].status = status_of_error(r);
        if (r < 0 && step == WRITE_STAGED)
                b->op->error = r;
        return r == 0;
}

/* Takes the answers to a put from the file as the status of the blocks. Blocks that the daemon
 * could not read from the file pass through the staging memory next. */
static void write_taken(struct kvcache_gpu *gpu, struct batch *b)
{
        for (uint32_t k = 0; k < b->n_asked; k++) {
                uint32_t i = b->asked[k];
                int status = b->answers[k].status;

                b->results[i].status = status;
                if (status == KVCACHE_FAILED || status == KVCACHE_INVALID)
                        write_refuse(gpu, b, i, KVCACHE_GPU_GDS_PUT, 0);
                else
                        gpu->gds.puts.counts.blocks += kvcache_status_ok(status);
        }
        write_rest(gpu, b);
}

static void write_written(struct kvcache_gpu *gpu, struct batch *b)
{
        uint32_t i = 0;

        count_files(gpu, b);
        for (uint32_t r = 0; r < b->n_reads; r++) {
                const struct gds_read *w = &b->reads[r];

                gds_judge(&gpu->gds, w);
                while (i > 0 && block_end(b, i - 1) > w->at)
                        i--;
                for (; i < b->n && b->borrowed[i].at < w->at + w->bytes; i++)
                        if (w->error != 0)
                                write_refuse(gpu, b, i,
                                             w->error == GDS_SHORT ? KVCACHE_GPU_GDS_TOO_SHORT
                                                                   : KVCACHE_GPU_GDS_FAILED,
                                             w->error == GDS_SHORT ? 0 : w->error);
        }
        b->n_asked = 0;
        for (i = 0; i < b->n; i++)
                if (b->borrowed[i].reason == KVCACHE_GPU_GDS_NONE) {
                        b->again[b->n_asked] = b->entries[i];
                        b->asked[b->n_asked++] = i;
                }
        if (b->n_asked == 0)
                write_rest(gpu, b);
        else if (!write_ask(gpu, b, b->n_asked, WRITE_PUT))
                write_taken(gpu, b);
}

/* --- through the staging memory --- */

/* Copies the first blocks of `asked` to a part of the staging memory, as many as fit. Returns false
 * if no part is free. */
static bool write_back(struct kvcache_gpu *gpu, struct batch *b)
{
        uint64_t at = 0;
        uint32_t n;

        b->part = staging_part_acquire(&gpu->staging);
        if (b->part < 0)
                return false;
        for (n = 0; n < b->n_asked; n++) {
                uint32_t i = b->asked[n];
                uint8_t *to = staging_part(&gpu->staging, b->part) + at;

                if (at + b->entries[i].length > gpu->staging.part_bytes)
                        break;
                b->again[n] = b->entries[i];
                b->again[n].data = to;
                gpu->copies[n] =
                        (struct copy){ staging_address(gpu, to),
                                       gpu->gds.memory + b->borrowed[i].at, b->entries[i].length };
                at += round_up(b->entries[i].length, GDS_PAGE);
        }
        b->n_round = n;
        b->step = WRITE_BACK;
        for (uint32_t k = 0; k < n; k++)
                count_block(b, b->asked[k], 1);
        batch_copy_aside(gpu, b, n, gpu->staging.device != 0);
        return true;
}

/* Handles the answers of one round through the staging memory. */
static void write_staged(struct kvcache_gpu *gpu, struct batch *b, bool may_be_used)
{
        b->is_settling |= may_be_used;
        for (uint32_t k = 0; k < b->n_round; k++)
                b->results[b->asked[k]].status = b->answers[k].status;
        b->n_asked -= b->n_round;
        memmove(b->asked, b->asked + b->n_round, b->n_asked * sizeof(b->asked[0]));
        if (may_be_used) { /* the daemon may still use the part, so there is no further round */
                for (uint32_t k = 0; k < b->n_asked; k++)
                        b->results[b->asked[k]].status = KVCACHE_FAILED;
                write_end(gpu, b);
                return;
        }
        staging_part_release(&gpu->staging, b->part);
        b->part = -1;
        b->step = WRITE_WAIT;
        b->state = BATCH_LENT;
        if (b->n_asked == 0)
                write_end(gpu, b);
}

/* --- continuing a batch --- */

void write_copied(struct kvcache_gpu *gpu, struct batch *b)
{
        if (b->is_failed) {
                for (uint32_t i = 0; i < b->n && b->step == WRITE_GATHER; i++)
                        b->results[i].status = KVCACHE_FAILED;
                for (uint32_t k = 0; k < b->n_asked; k++)
                        b->results[b->asked[k]].status = KVCACHE_FAILED;
                b->op->error = -EIO;
                write_end(gpu, b);
        } else if (b->step == WRITE_GATHER) {
                write_to_file(gpu, b);
        } else if (!write_ask(gpu, b, b->n_round, WRITE_STAGED)) {
                write_staged(gpu, b, false);
        }
}

bool write_step(struct kvcache_gpu *gpu, struct batch *b)
{
        int error = b->op->error;

        switch (b->step) {
        case WRITE_FILE:
                if (!gds_group_is_done(&gpu->gds, &b->group))
                        return false;
                write_written(gpu, b);
                return true;
        case WRITE_PUT:
                if (!parts_request_is_done(b->request))
                        return false;
                b->is_settling |= batch_take_answer(gpu, b, b->answers, b->n_asked);
                b->op->error = error; /* the daemon could not read these blocks from the file, so
                                         they are put from staging */
                write_taken(gpu, b);
                return true;
        case WRITE_WAIT:
                return write_back(gpu, b);
        case WRITE_STAGED:
                if (!parts_request_is_done(b->request))
                        return false;
                write_staged(gpu, b, batch_take_answer(gpu, b, b->answers, b->n_round));
                return true;
        default:
                return false;
        }
}
