/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of leased chunks.
 *
 * The public calls run in any thread, one at a time (leased.lock), concurrently with the handle's
 * thread, and do not access the handle. They use their own copy engines and streams, and set the
 * context and the capture mode of the calling thread.
 *
 * Order: requests for which a stream of the program waits have a queue of their own. All requests
 * of a queue share its first stream, so they are copied one after another, and an event in that
 * stream is reached when all earlier requests of the queue are copied. A list for the kernel may be
 * in the second stream, whose work lies between `begun` and `done` in the first.
 *
 * Failures: if the driver refuses a copy, the call waits for the copies that are already in the
 * streams, and fails. A request for which the call returned 0 fails only if the device fails. */
#include "gpu/leased.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "checked.h"
#include "gpu/gpu.h"
#include "lib/abi.h"

enum {
        REQUEST_MIN = ABI_BYTES_TO(struct kvcache_gpu_leased_request, user_data),
        POLL_NS = 20 * 1000,
};

int leased_fail(struct leased *l, int error, const char *format, ...)
{
        va_list args;

        va_start(args, format);
        vsnprintf(l->error, sizeof(l->error), format, args);
        va_end(args);
        return error;
}

static int leased_fail_driver(struct kvcache_gpu *gpu, struct leased_queue *queue, const char *what,
                              cu_result c)
{
        queue->engine.counts.driver_errors++;
        return leased_fail(gpu->leased, driver_errno(c), "%s: %s (%d)", what,
                           driver_error_name(&gpu->driver, c), c);
}

/* --- context and capture mode of the calling thread --- */

/* The changes that a call makes to its thread, and undoes. */
struct visit {
        int capture_mode;
        bool is_current;
};

static int leased_enter(struct kvcache_gpu *gpu, struct visit *ret)
{
        if (!gpu)
                return -EINVAL;
        if (gpu->pid != getpid())
                return -ECHILD;
        pthread_mutex_lock(&gpu->leased->lock);
        ret->capture_mode = driver_relax(&gpu->driver);
        ret->is_current = gpu->driver.ctx_push(gpu->context) == CU_OK;
        return 0;
}

static void leased_leave(struct kvcache_gpu *gpu, const struct visit *v)
{
        cu_context context;

        if (v->is_current)
                (void)gpu->driver.ctx_pop(&context);
        driver_restore(&gpu->driver, v->capture_mode);
        pthread_mutex_unlock(&gpu->leased->lock);
}

/* --- streams and engines of a queue --- */

static void queue_synchronize(const struct leased_queue *queue, const struct driver *d)
{
        for (unsigned i = 0; i < LEASED_STREAMS; i++)
                if (queue->streams[i])
                        (void)d->stream_synchronize(queue->streams[i]);
}

void leased_synchronize(struct leased *l, const struct driver *d)
{
        for (unsigned i = 0; i < LEASED_KINDS; i++)
                queue_synchronize(&l->queues[i], d);
}

static void queue_close(struct leased_queue *queue, const struct driver *d)
{
        queue_synchronize(queue, d);
        if (queue->engine.d)
                engine_fini(&queue->engine);
        for (unsigned i = 0; i < LEASED_SLOTS; i++)
                if (queue->slot_done[i])
                        (void)d->event_destroy(queue->slot_done[i]);
        if (queue->joint)
                (void)d->event_destroy(queue->joint);
        for (unsigned i = 0; i < LEASED_STREAMS; i++)
                if (queue->streams[i])
                        (void)d->stream_destroy(queue->streams[i]);
        *queue = (struct leased_queue){ 0 };
        STAILQ_INIT(&queue->under_way);
}

static cu_result queue_open_streams(struct leased_queue *queue, const struct driver *d,
                                    bool is_urgent)
{
        int least, greatest;
        cu_result c = d->stream_priorities(&least, &greatest);

        if (c == CU_OK)
                c = d->event_create(&queue->joint, CU_EVENT_IS_UNTIMED);
        for (unsigned i = 0; i < LEASED_STREAMS && c == CU_OK; i++)
                c = d->stream_create_at(&queue->streams[i], CU_STREAM_IS_NON_BLOCKING,
                                        is_urgent ? greatest : least);
        for (unsigned i = 0; i < LEASED_SLOTS && c == CU_OK; i++)
                c = d->event_create(&queue->slot_done[i], CU_EVENT_IS_UNTIMED);
        return c;
}

static int queue_open(struct kvcache_gpu *gpu, struct leased_queue *queue)
{
        struct leased *l = gpu->leased;
        cu_result c;
        int r;

        if (queue->is_open)
                return 0;
        if (!l->copies)
                l->copies = calloc(ENGINE_ROOM, sizeof(*l->copies));
        r = l->copies ? engine_init(&queue->engine, &gpu->driver, gpu->engine.forced,
                                    gpu->engine.max_sms, LEASED_SLOTS,
                                    gpu->flags & KVCACHE_GPU_NO_BOUNCE ? 0 : GPU_BOUNCE_BYTES)
                      : -ENOMEM;
        if (r < 0) {
                queue_close(queue, &gpu->driver);
                return leased_fail(l, r, "out of memory");
        }
        queue->engine.source_access = CU_ACCESS_IN_ANY_ORDER;
        c = queue_open_streams(queue, &gpu->driver, gpu->flags & KVCACHE_GPU_URGENT);
        if (c != CU_OK) {
                r = leased_fail_driver(gpu, queue, "a CUDA stream cannot be created", c);
                queue_close(queue, &gpu->driver);
                return r;
        }
        queue->is_open = true;
        return 0;
}

static void leased_close(struct leased *l, const struct driver *d)
{
        struct leased_copy *copy;

        for (unsigned i = 0; i < LEASED_KINDS; i++) {
                queue_synchronize(&l->queues[i], d);
                STAILQ_CONCAT(&l->idle, &l->queues[i].under_way);
                queue_close(&l->queues[i], d);
        }
        while ((copy = STAILQ_FIRST(&l->idle))) {
                cu_event events[] = { copy->before, copy->begun, copy->done };

                STAILQ_REMOVE_HEAD(&l->idle, link);
                for (unsigned i = 0; i < ARRAY_SIZE(events); i++)
                        if (events[i])
                                (void)d->event_destroy(events[i]);
                free(copy);
        }
        free(l->copies);
        l->copies = NULL;
}

int leased_new(struct leased **ret)
{
        struct leased *l = calloc(1, sizeof(*l));

        if (!l)
                return -ENOMEM;
        for (unsigned i = 0; i < LEASED_KINDS; i++)
                STAILQ_INIT(&l->queues[i].under_way);
        STAILQ_INIT(&l->idle);
        pthread_mutex_init(&l->lock, NULL);
        *ret = l;
        return 0;
}

void leased_free(struct kvcache_gpu *gpu)
{
        struct leased *l = gpu->leased;

        leased_progress(gpu);
        leased_close(l, &gpu->driver);
        leased_drop_pools(gpu, true, false);
        pthread_mutex_destroy(&l->lock);
        free(l);
        gpu->leased = NULL;
}

/* --- counting --- */

static void leased_tally(struct leased *l, const struct kvcache_transfer *t)
{
        unsigned i;

        for (i = 0; i < l->n_tallies; i++)
                if (l->tallies[i].layout == t->layout &&
                    l->tallies[i].technology == t->technology && l->tallies[i].result == t->result)
                        break;
        if (i == LEASED_TALLIES)
                return;
        if (i == l->n_tallies) {
                l->tallies[l->n_tallies++] = *t;
                return;
        }
        l->tallies[i].transfers += t->transfers;
        l->tallies[i].blocks += t->blocks;
        l->tallies[i].regions += t->regions;
        l->tallies[i].bytes += t->bytes;
        l->tallies[i].device_bytes += t->device_bytes;
        l->tallies[i].duration_ns += t->duration_ns;
}

void leased_progress(struct kvcache_gpu *gpu)
{
        struct kvcache_transfer tallies[LEASED_TALLIES];
        struct leased *l = gpu->leased;
        unsigned n_tallies;

        pthread_mutex_lock(&l->lock);
        n_tallies = l->n_tallies;
        memcpy(tallies, l->tallies, n_tallies * sizeof(tallies[0]));
        l->n_tallies = 0;
        pthread_mutex_unlock(&l->lock);
        if (!(gpu->flags & KVCACHE_GPU_EXPLICIT))
                leased_drop_pools(gpu, false, false);
        for (unsigned i = 0; i < n_tallies; i++)
                (void)parts_count_transfer(gpu->kv, &tallies[i]);
}

static void queue_add_counts(const struct leased_queue *queue, struct kvcache_gpu_info *info)
{
        const struct kvcache_gpu_counts *from = &queue->engine.counts;
        struct kvcache_gpu_counts *to = &info->counts;

        to->bytes += from->bytes;
        to->pieces += from->pieces;
        to->kernel_launches += from->kernel_launches;
        to->kernel_copies += from->kernel_copies;
        to->kernel_failures += from->kernel_failures;
        to->batch_calls += from->batch_calls;
        to->batch_copies += from->batch_copies;
        to->batch_failures += from->batch_failures;
        to->plain_copies += from->plain_copies;
        to->driver_errors += from->driver_errors;
        info->bounce_bytes += queue->engine.bounce_part_bytes * ENGINE_BOUNCE_PARTS;
        info->bounce_copies += queue->engine.bounces;
}

void leased_add_counts(struct kvcache_gpu *gpu, struct kvcache_gpu_info *info)
{
        struct leased *l = gpu->leased;

        pthread_mutex_lock(&l->lock);
        for (unsigned i = 0; i < LEASED_KINDS; i++)
                queue_add_counts(&l->queues[i], info);
        info->counts.blocks_from_pool += l->blocks;
        pthread_mutex_unlock(&l->lock);
}

/* --- making the copies of a request --- */

/* Checks all arguments before anything is put into a stream. */
static int leased_check(struct leased *l, const struct kvcache_gpu_leased_request *q,
                        const struct layout *layout, const struct leased_pool *pool)
{
        uint64_t bytes = layout_chunk_bytes(layout, layout->page_tokens);

        for (size_t i = 0; i < q->count; i++) {
                if (q->blocks[i] >= layout->blocks)
                        return leased_fail(l, -EINVAL,
                                           "block %zu of the request: the layout has no block %llu",
                                           i, (unsigned long long)q->blocks[i]);
                if (bytes > pool->hold.bytes || q->pool_offsets[i] > pool->hold.bytes - bytes)
                        return leased_fail(
                                l, -EINVAL,
                                "chunk %zu, at offset %llu, is not within the pool of %llu "
                                "bytes",
                                i, (unsigned long long)q->pool_offsets[i],
                                (unsigned long long)pool->hold.bytes);
        }
        return 0;
}

static struct leased_copy *copy_new(struct kvcache_gpu *gpu)
{
        struct leased_copy *copy = STAILQ_FIRST(&gpu->leased->idle);
        const struct driver *d = &gpu->driver;
        unsigned timed = d->event_elapsed ? 0 : CU_EVENT_IS_UNTIMED;

        if (copy) {
                STAILQ_REMOVE_HEAD(&gpu->leased->idle, link);
                return copy;
        }
        copy = calloc(1, sizeof(*copy));
        if (!copy)
                return NULL;
        if (d->event_create(&copy->before, CU_EVENT_IS_UNTIMED) == CU_OK &&
            d->event_create(&copy->begun, timed) == CU_OK &&
            d->event_create(&copy->done, timed) == CU_OK)
                return copy;
        STAILQ_INSERT_HEAD(&gpu->leased->idle, copy, link); /* leased_close() frees it */
        return NULL;
}

/* Makes the first stream wait for the work that the request must follow, and records the event
 * `begun` before its copies. */
static cu_result queue_order(const struct driver *d, const struct leased_queue *queue,
                             struct leased_copy *copy, const struct kvcache_gpu_leased_request *q)
{
        cu_stream stream = queue->streams[0];
        cu_result c = CU_OK;

        if (q->before_event)
                c = d->stream_wait_event(stream, q->before_event, 0);
        if (c == CU_OK && q->before_stream) {
                c = d->event_record(copy->before, q->before_stream);
                if (c == CU_OK)
                        c = d->stream_wait_event(stream, copy->before, 0);
        }
        return c == CU_OK ? d->event_record(copy->begun, stream) : c;
}

/* Returns a slot whose list is no longer in use, or ENGINE_NO_SLOT. */
static unsigned queue_slot(const struct driver *d, struct leased_queue *queue)
{
        unsigned slot = queue->next_slot;

        if (queue->slot_is_used[slot] &&
            d->event_query(queue->slot_done[slot]) == CU_ERROR_NOT_READY)
                return ENGINE_NO_SLOT;
        queue->next_slot = (slot + 1) % LEASED_SLOTS;
        return slot;
}

static cu_result queue_put_list(const struct driver *d, struct leased_queue *queue, unsigned stream,
                                struct copy *list, size_t n)
{
        unsigned slot = queue_slot(d, queue);
        cu_result c;

        c = engine_copy(&queue->engine, slot, queue->streams[stream], list, n, true, (int)stream);
        if (slot != ENGINE_NO_SLOT) {
                queue->slot_is_used[slot] = true;
                if (c == CU_OK)
                        c = d->event_record(queue->slot_done[slot], queue->streams[stream]);
        }
        return c;
}

/* Puts all copies into the streams. Lists of small pieces alternate between both, so that one's
 * launch overlaps with the other's copies into bounce memory. */
static cu_result leased_put(struct kvcache_gpu *gpu, struct leased_queue *queue,
                            struct leased_copy *copy, const struct kvcache_gpu_leased_request *q,
                            const struct layout *layout, cu_address pool)
{
        struct leased *l = gpu->leased;
        struct layout_part part = { .tokens = layout->page_tokens, .n_layers = layout->layers };
        uint64_t bytes = layout_chunk_bytes(layout, layout->page_tokens), listed = 0;
        uint64_t room = UINT64_MAX;
        const struct driver *d = &gpu->driver;
        unsigned stream = 0, streams = 1;
        cu_result c = CU_OK;
        size_t n = 0;

        for (size_t i = 0; i < q->count && c == CU_OK; i++) {
                uint32_t k = layout_pieces(layout, q->blocks[i], &part, l->pieces);

                if (i == 0 && engine_prefers_kernel(&queue->engine, bytes, k)) {
                        streams = LEASED_STREAMS;
                        room = GPU_BATCH_BYTES;
                        c = d->stream_wait_event(queue->streams[1], copy->begun, 0);
                }
                if (n > 0 && (n + k > ENGINE_MAX_COPIES || listed + bytes > room)) {
                        if (c == CU_OK)
                                c = queue_put_list(d, queue, stream, l->copies, n);
                        stream = (stream + 1) % streams;
                        n = listed = 0;
                }
                for (uint32_t p = 0; p < k; p++)
                        l->copies[n++] = (struct copy){
                                l->pieces[p].address,
                                pool + q->pool_offsets[i] + l->pieces[p].offset,
                                l->pieces[p].bytes,
                        };
                listed += bytes;
                copy->moved.device_bytes += layout_device_bytes(layout, &part, bytes);
        }
        if (c == CU_OK && n > 0)
                c = queue_put_list(d, queue, stream, l->copies, n);
        if (c == CU_OK && streams > 1) {
                c = d->event_record(queue->joint, queue->streams[1]);
                if (c == CU_OK)
                        c = d->stream_wait_event(queue->streams[0], queue->joint, 0);
        }
        return c;
}

static int leased_begin(struct kvcache_gpu *gpu, struct leased_queue *queue,
                        const struct kvcache_gpu_leased_request *q, const struct layout *layout,
                        cu_address pool)
{
        struct leased *l = gpu->leased;
        const struct kvcache_gpu_counts before = queue->engine.counts;
        const struct driver *d = &gpu->driver;
        struct leased_copy *copy = copy_new(gpu);
        cu_result c;

        if (!copy)
                return leased_fail(l, -ENOMEM, "out of memory");
        copy->user_data = q->user_data;
        copy->count = q->count;
        copy->moved = (struct kvcache_transfer){
                .path = KVCACHE_HOST_TO_DEVICE,
                .layout = q->count > 0 ? layout->kind : KVCACHE_LAYOUT_CONTIGUOUS,
                .blocks = q->count,
                .regions = q->count > 0 ? (uint64_t)q->count *
                                                  layout_count_regions(layout, layout->layers)
                                        : 0,
                .bytes = q->count > 0 ? q->count * layout_chunk_bytes(layout, layout->page_tokens)
                                      : 0,
        };
        c = queue_order(d, queue, copy, q);
        if (c == CU_OK && q->count > 0)
                c = leased_put(gpu, queue, copy, q, layout, pool);
        if (c == CU_OK)
                c = d->event_record(copy->done, queue->streams[0]);
        if (c == CU_OK && q->after_stream)
                c = d->stream_wait_event(q->after_stream, copy->done, 0);
        if (c != CU_OK) {
                queue_synchronize(queue, d);
                STAILQ_INSERT_TAIL(&l->idle, copy, link);
                return leased_fail_driver(gpu, queue, "leased chunks cannot be copied", c);
        }
        copy->moved.technology = engine_technology(&queue->engine, &before, &copy->moved.transfers);
        STAILQ_INSERT_TAIL(&queue->under_way, copy, link);
        return 0;
}

static int leased_take(struct kvcache_gpu *gpu, const struct kvcache_gpu_leased_request *user)
{
        struct kvcache_gpu_leased_request q = { 0 };
        const struct leased_pool *pool;
        struct leased *l = gpu->leased;
        struct leased_queue *queue;
        struct layout layout = { 0 };
        const char *why;
        int r;

        if (!user || !abi_size_is_valid(user->size, REQUEST_MIN))
                return leased_fail(l, -EINVAL, "the request is NULL, or its size is not set");
        if (abi_copy_in(&q, sizeof(q), user, user->size) < 0)
                return leased_fail(l, -E2BIG,
                                   "the request sets members that this library does not know: use "
                                   "a newer libkvcache");
        if (q.flags)
                return leased_fail(l, -EINVAL, "unknown flags 0x%x", q.flags);
        if (q.count > 0 && (!q.layout || !q.blocks || !q.pool_offsets))
                return leased_fail(l, -EINVAL,
                                   "`layout`, `blocks` or `pool_offsets` of the request is NULL");
        if (driver_is_capturing(&gpu->driver, q.before_stream) ||
            driver_is_capturing(&gpu->driver, q.after_stream))
                return leased_fail(l, -EBUSY,
                                   "a stream of the request is being captured into a CUDA graph");
        queue = &l->queues[q.after_stream ? LEASED_AWAITED : LEASED_PLAIN];
        r = queue_open(gpu, queue);
        if (r < 0)
                return r;
        if (q.count == 0)
                return leased_begin(gpu, queue, &q, NULL, 0);
        pool = leased_find(l, q.pool_id);
        if (!pool)
                return leased_fail(l, -ESTALE, "pool %llx is not registered with this device",
                                   (unsigned long long)q.pool_id);
        r = layout_init(&layout, q.layout, &why);
        if (r < 0)
                return leased_fail(l, r, "%s", why);
        r = leased_check(l, &q, &layout, pool);
        if (r == 0)
                r = leased_begin(gpu, queue, &q, &layout, pool->slices.device);
        layout_fini(&layout);
        return r;
}

int kvcache_gpu_copy_leased(struct kvcache_gpu *gpu,
                            const struct kvcache_gpu_leased_request *request)
{
        struct visit v;
        int r = leased_enter(gpu, &v);

        if (r < 0)
                return r;
        r = leased_take(gpu, request);
        leased_leave(gpu, &v);
        return r;
}

/* --- completions --- */

static void leased_complete(struct kvcache_gpu *gpu, struct leased_queue *queue,
                            struct leased_copy *copy, cu_result c,
                            struct kvcache_gpu_completion *ret)
{
        struct leased *l = gpu->leased;
        float ms = 0;

        if (c == CU_OK && gpu->driver.event_elapsed &&
            (gpu->driver.event_elapsed(&ms, copy->begun, copy->done) != CU_OK || ms < 0))
                ms = 0;
        *ret = (struct kvcache_gpu_completion){
                .user_data = copy->user_data,
                .kind = KVCACHE_GPU_DONE,
                .error = c == CU_OK ? 0
                                    : leased_fail_driver(gpu, queue,
                                                         "leased chunks were not copied", c),
                .count = copy->count,
                .copy_ns = (uint64_t)((double)ms * 1e6),
        };
        copy->moved.duration_ns = ret->copy_ns;
        copy->moved.result = c == CU_OK ? KVCACHE_TRANSFER_OK : KVCACHE_TRANSFER_IO;
        if (copy->count > 0)
                leased_tally(l, &copy->moved);
        if (c == CU_OK)
                l->blocks += copy->count;
        STAILQ_REMOVE_HEAD(&queue->under_way, link);
        STAILQ_INSERT_TAIL(&l->idle, copy, link);
}

static int leased_reap(struct kvcache_gpu *gpu, void *ret, size_t size, size_t max)
{
        struct leased_copy *copy;
        size_t n = 0;

        for (unsigned i = 0; i < LEASED_KINDS; i++) {
                struct leased_queue *queue = &gpu->leased->queues[i];

                while (n < max && (copy = STAILQ_FIRST(&queue->under_way))) {
                        cu_result result = gpu->driver.event_query(copy->done);
                        struct kvcache_gpu_completion c;

                        if (result == CU_ERROR_NOT_READY)
                                break;
                        leased_complete(gpu, queue, copy, result, &c);
                        abi_copy_out(abi_at(ret, size, n++), size, &c, sizeof(c));
                }
        }
        return (int)n;
}

static bool leased_is_idle(const struct leased *l)
{
        for (unsigned i = 0; i < LEASED_KINDS; i++)
                if (!STAILQ_EMPTY(&l->queues[i].under_way))
                        return false;
        return true;
}

int kvcache_gpu_reap_leased_sized(struct kvcache_gpu *gpu, struct kvcache_gpu_completion *ret,
                                  size_t completion_size, size_t max, int timeout_ms)
{
        const struct timespec pause = { .tv_nsec = POLL_NS };
        int64_t deadline = blocks_deadline(timeout_ms);
        bool is_idle;
        int r;

        max = MIN(max, (size_t)INT32_MAX);
        for (;;) {
                struct visit v;

                r = leased_enter(gpu, &v);
                if (r < 0)
                        return r;
                if (!ret || max == 0 || !abi_size_is_valid(completion_size, GPU_COMPLETION_MIN))
                        r = leased_fail(gpu->leased, -EINVAL,
                                        "the array of completions is NULL or empty, or its element "
                                        "size is invalid");
                else
                        r = leased_reap(gpu, ret, completion_size, max);
                is_idle = leased_is_idle(gpu->leased);
                leased_leave(gpu, &v);
                if (r != 0 || is_idle || gds_now() >= deadline)
                        return r;
                (void)nanosleep(&pause, NULL);
        }
}

const char *kvcache_gpu_leased_error(const struct kvcache_gpu *gpu)
{
        return gpu ? gpu->leased->error : "no GPU is attached";
}
