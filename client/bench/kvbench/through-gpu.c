/* SPDX-License-Identifier: Apache-2.0 */
/* A client of the side KVCACHE with blocks in GPU memory: one call of kvcache_gpu_put_blocks() or
 * kvcache_gpu_get_blocks() for each piece.
 *
 * Runs in its own thread, and owns its connection, its attachment to the GPU, and device memory for
 * a window of blocks in the requested layout. Before a window is moved, outside of measured time,
 * its blocks are generated there; before a read, all of the memory is set to a value that no block
 * has, so that missing bytes are detected. After a read, all of the memory is copied to the host at
 * once, and every byte of every block is compared.
 *
 * A request that is lost, refused or incomplete ends the job, as in through-client.c. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "gpu-memory.h"
#include "through.h"

enum {
        REAP_MAX = 64,
        DETACH_MS = 10000,
        STAGING_PARTS = 8, /* parts of libkvcache's staging memory, each of which holds a block */
        STAGING_PAGE = 4096,
        STAGING_BYTES = 128 << 20,
        UNWRITTEN = 0xa5,
};

struct flight {
        const struct profile_piece *piece;
        int *statuses; /* statuses of a piece */
        uint64_t at[4];
};

struct client {
        struct through *through;
        struct profile *profile;
        struct kvcache *kv;
        struct kvcache_gpu *gpu;
        uint32_t namespace_handle;

        struct gpu_memory memory;
        struct kvcache_layout layout;
        uint64_t *bases;
        struct kvcache_piece *pieces; /* pieces of one block, as counted by gpu_shape_pieces() */
        uint32_t n_pieces;
        uint8_t *chunk; /* one block as stored */

        struct flight *flights;
        uint32_t *idle;
        size_t n_flights, n_idle;
        int *statuses;
        struct kvcache_gpu_block *blocks; /* blocks of one call */
};

/* Adds the attachment's counters to those of the report. */
static void client_count(struct client *c)
{
        struct kvcache_gpu_info info = { .size = sizeof(info) };
        struct through_gpu *total = &c->through->gpu;

        if (kvcache_gpu_get_info(c->gpu, &info) < 0)
                return;
        pthread_mutex_lock(&total->lock);
        total->bytes += info.counts.bytes;
        total->kernel_copies += info.counts.kernel_copies;
        total->batch_copies += info.counts.batch_copies;
        total->plain_copies += info.counts.plain_copies;
        total->blocks_from_pool += info.counts.blocks_from_pool;
        total->blocks_through_staging += info.counts.blocks_through_staging;
        total->gds_blocks += info.gds.blocks;
        for (size_t i = 0; i < KVCACHE_GPU_GDS_REASONS; i++)
                total->gds_fallbacks[i] += info.gds.fallbacks[i];
        total->gds_state = info.gds.state;
        total->driver_version = info.driver_version;
        pthread_mutex_unlock(&total->lock);
}

void through_gpu_client_free(void *userdata)
{
        struct client *c = userdata;

        if (c->gpu)
                client_count(c);
        /* Requests still in flight use the statuses and device memory. The process ends soon, so
         * leave the memory rather than free it early. */
        if (kvcache_gpu_detach(c->gpu, DETACH_MS) < 0)
                return;
        kvcache_close(c->kv);
        gpu_memory_close(&c->memory);
        free(c->bases);
        free(c->pieces);
        free(c->chunk);
        free(c->flights);
        free(c->idle);
        free(c->statuses);
        free(c->blocks);
        free(c);
}

/* Allocates device memory for a window, and computes the addresses of its blocks. */
static int client_take_memory(struct client *c)
{
        const struct through *t = c->through;
        const struct gpu_shape *shape = &t->options.gpu->shape;
        struct profile *p = c->profile;
        struct kvcache_layout_info info = { .size = sizeof(info) };
        uint64_t slots = t->side.window_bytes / round_up(p->job->io_size, STAGING_PAGE), bytes;
        uint32_t n_bases = shape->kind == KVCACHE_LAYOUT_CONTIGUOUS ? 1 : shape->layers;
        char why[GPU_MEMORY_TEXT] = "";

        c->bases = calloc(n_bases, sizeof(*c->bases));
        c->n_pieces = shape->layers * shape->outer;
        c->pieces = calloc(c->n_pieces, sizeof(*c->pieces));
        c->chunk = malloc(p->job->io_size);
        if (!c->bases || !c->pieces || !c->chunk)
                return profile_fail(p, "out of memory");
        c->layout = (struct kvcache_layout){
                .size = sizeof(c->layout),
                .kind = shape->kind,
                .layers = shape->layers,
                .outer = shape->outer,
                .page_tokens = shape->page_tokens,
                .dtype_bytes = 1,
                .inner = shape->inner,
                .blocks = MIN(MAX(slots, (uint64_t)1), p->job->n_blocks),
                .bases = c->bases,
        };
        for (uint32_t i = 0; i < n_bases; i++) /* valid addresses for measuring, before memory is
                                                  allocated */
                c->bases[i] = STAGING_PAGE;
        if (kvcache_layout_measure(&c->layout, &info, why, sizeof(why)) < 0)
                return profile_fail(p, "the blocks' layout in GPU memory is invalid: %s", why);
        if (!checked_mul(info.buffer_bytes, n_bases, &bytes))
                return profile_fail(p,
                                    "the blocks' buffers in GPU memory have more than 2^64 bytes");
        if (gpu_memory_open(&c->memory, t->options.gpu->device, bytes, why) < 0)
                return profile_fail(p, "GPU %d: %s", t->options.gpu->device, why);
        for (uint32_t i = 0; i < n_bases; i++)
                c->bases[i] = c->memory.address + i * info.buffer_bytes;
        return 0;
}

static int client_attach(struct client *c)
{
        const struct through *t = c->through;
        struct profile *p = c->profile;
        uint64_t part = round_up(p->job->io_size, STAGING_PAGE) + STAGING_PAGE;
        struct kvcache_gpu_options options = {
                .size = sizeof(options),
                .device = t->options.gpu->device,
                .staging_bytes = round_up(
                        MAX(MIN((uint64_t)STAGING_BYTES / p->job->clients, p->job->n_blocks * part),
                            STAGING_PARTS * part + STAGING_PAGE),
                        STAGING_PAGE),
                .gds = t->options.gds ? KVCACHE_GPU_GDS_REQUIRED : KVCACHE_GPU_GDS_AUTO,
        };
        char error[512] = "";
        int r = kvcache_gpu_attach(&c->gpu, c->kv, &options, error, sizeof(error));

        if (r == -EOPNOTSUPP && t->options.gds) { /* the report gives the reason */
                options.gds = KVCACHE_GPU_GDS_AUTO;
                r = kvcache_gpu_attach(&c->gpu, c->kv, &options, error, sizeof(error));
        }
        if (r < 0)
                return profile_fail(p, "GPU %d cannot be attached: %s", t->options.gpu->device,
                                    error);
        return 0;
}

int through_gpu_client_new(void *self, struct profile *p, void **ret)
{
        struct through *t = self;
        struct client *c = calloc(1, sizeof(*c));
        size_t most = p->piece_blocks;
        int r;

        if (!c)
                return profile_fail(p, "out of memory");
        *ret = c;
        c->through = t;
        c->profile = p;
        r = through_connect(t, p, &c->kv, &c->namespace_handle);
        if (r == 0)
                r = client_take_memory(c);
        if (r == 0)
                r = client_attach(c);
        if (r < 0)
                return r;
        c->n_flights = MAX(t->side.depth / most, (uint64_t)1);
        c->flights = calloc(c->n_flights, sizeof(*c->flights));
        c->idle = calloc(c->n_flights, sizeof(*c->idle));
        c->statuses = calloc(c->n_flights * most, sizeof(*c->statuses));
        c->blocks = calloc(most, sizeof(*c->blocks));
        if (!c->flights || !c->idle || !c->statuses || !c->blocks)
                return profile_fail(p, "out of memory");
        for (size_t i = 0; i < c->n_flights; i++) {
                c->flights[i].statuses = c->statuses + i * most;
                c->idle[c->n_idle++] = (uint32_t)i;
        }
        return through_check_instance(t, p, c->kv);
}

/* Copies between a block's chunk and the mirror of the device's memory. */
static void move_chunk(struct client *c, uint64_t slot, bool into_memory)
{
        int n = kvcache_layout_pieces(&c->layout, slot, NULL, c->pieces, c->n_pieces);

        for (int i = 0; i < n; i++) {
                uint8_t *there = c->memory.mirror + (c->pieces[i].address - c->memory.address),
                        *here = c->chunk + c->pieces[i].offset;

                memcpy(into_memory ? there : here, into_memory ? here : there, c->pieces[i].bytes);
        }
}

int through_gpu_client_prepare(void *userdata, const struct profile_work *work)
{
        struct client *c = userdata;
        struct profile *p = c->profile;
        char why[GPU_MEMORY_TEXT];

        if (!work->write) {
                memset(c->memory.mirror, UNWRITTEN, c->memory.bytes);
        } else {
                content_fill(&p->content, c->chunk);
                for (size_t i = 0; i < work->n_pieces; i++)
                        for (uint32_t k = 0; k < work->pieces[i].count; k++) {
                                content_stamp(&p->content, c->chunk, work->pieces[i].first + k,
                                              work->generation);
                                move_chunk(c, work->pieces[i].at + k, true);
                        }
        }
        if (gpu_memory_upload(&c->memory, why) < 0)
                return profile_fail(p, "GPU %d: %s", c->memory.ordinal, why);
        return 0;
}

static int client_submit(struct client *c, const struct profile_work *work,
                         const struct profile_piece *piece)
{
        struct profile *p = c->profile;
        uint32_t number = c->idle[c->n_idle - 1];
        struct flight *f = &c->flights[number];
        struct kvcache_gpu_request request = {
                .size = sizeof(request),
                .block_size = sizeof(c->blocks[0]),
                .namespace_handle = c->namespace_handle,
                .ack = KVCACHE_WRITTEN,
                .timeout_ms = PROFILE_STUCK_MS,
                .layout = &c->layout,
                .blocks = c->blocks,
                .count = piece->count,
                .parent = piece->root ? NULL : &p->keys[piece->first - 1],
                .statuses = f->statuses,
                .user_data = number,
        };
        int r;

        f->piece = piece;
        f->at[0] = profile_now_ns();
        for (uint32_t i = 0; i < piece->count; i++)
                c->blocks[i] = (struct kvcache_gpu_block){
                        .key = p->keys[piece->first + i],
                        .block = piece->at + i,
                };
        f->at[1] = profile_now_ns();
        r = work->write ? kvcache_gpu_put_blocks(c->gpu, &request)
                        : kvcache_gpu_get_blocks(c->gpu, &request);
        if (r < 0)
                return profile_fail(p, "a request cannot be made: %s", kvcache_gpu_error(c->gpu));
        f->at[2] = profile_now_ns();
        c->n_idle--;
        return 0;
}

static int client_take(struct client *c, const struct profile_work *work, const struct flight *f)
{
        struct profile *p = c->profile;
        uint64_t io_size = p->job->io_size;

        for (uint32_t i = 0; i < f->piece->count; i++)
                switch (f->statuses[i]) {
                case KVCACHE_OK:
                        break;
                case KVCACHE_FAILED:
                        return profile_fail(
                                p,
                                "%s block %" PRIu64
                                ": the GPU, its driver or the daemon's disk failed; latest error "
                                "of the GPU: %s",
                                work->write ? "writing" : "reading", f->piece->first + i,
                                kvcache_gpu_error(c->gpu));
                default:
                        return through_block_failed(p, work->write, f->piece->first + i,
                                                    f->statuses[i], 0);
                }
        profile_count(work->tally, f->piece->count, io_size, f->at);
        atomic_fetch_add_explicit(&p->done_blocks, f->piece->count, memory_order_relaxed);
        return 0;
}

int through_gpu_client_move(void *userdata, const struct profile_work *work)
{
        struct client *c = userdata;
        struct profile *p = c->profile;
        struct kvcache_gpu_completion done[REAP_MAX];
        uint64_t last = profile_now_ns();
        size_t next = 0;
        int r;

        r = through_check_instance(c->through, p, c->kv);
        if (r < 0)
                return r;
        while (next < work->n_pieces || c->n_idle < c->n_flights) {
                int n;

                while (next < work->n_pieces && c->n_idle > 0) {
                        r = client_submit(c, work, &work->pieces[next++]);
                        if (r < 0)
                                return r;
                }
                n = kvcache_gpu_reap(c->gpu, done, REAP_MAX, THROUGH_REAP_MS);
                r = through_reaped(p, n, kvcache_gpu_error(c->gpu), &last);
                if (r < 0)
                        return r;
                for (int i = 0; i < n; i++) {
                        uint32_t number = (uint32_t)done[i].user_data;

                        c->flights[number].at[3] = last;
                        c->idle[c->n_idle++] = number;
                        r = client_take(c, work, &c->flights[number]);
                        if (r < 0)
                                return r;
                }
        }
        return 0;
}

int through_gpu_client_check(void *userdata, const struct profile_work *work)
{
        struct client *c = userdata;
        struct profile *p = c->profile;
        uint64_t io_size = p->job->io_size;
        char why[GPU_MEMORY_TEXT];

        if (gpu_memory_download(&c->memory, why) < 0)
                return profile_fail(p, "GPU %d: %s", c->memory.ordinal, why);
        for (size_t i = 0; i < work->n_pieces; i++) {
                const struct profile_piece *piece = &work->pieces[i];

                for (uint32_t k = 0; k < piece->count; k++) {
                        size_t first = 0;
                        uint64_t wrong;

                        move_chunk(c, piece->at + k, false);
                        wrong = content_check(&p->content, c->chunk, piece->first + k,
                                              work->generation, &first);
                        if (wrong > 0)
                                return profile_fail(
                                        p,
                                        "block %" PRIu64 " is wrong: %" PRIu64 " of %" PRIu64
                                        " bytes differ, the first at offset %zu (in GPU memory)",
                                        piece->first + k, wrong, io_size, first);
                        work->tally->bytes_verified += io_size;
                }
                if (profile_should_stop(p))
                        return -ECANCELED;
        }
        return 0;
}
