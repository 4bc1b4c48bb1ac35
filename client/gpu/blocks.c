/* SPDX-License-Identifier: Apache-2.0 */
/* Requests for blocks: checks them and continues them.
 *
 * Runs in the handle's thread, inside the program's calls. Owns the operations.
 *
 * An operation is cut into batches (batch.c). Several are in flight, so that the copies of one
 * overlap with the daemon's work on another. An operation is issued when the last of its copies is
 * in a stream, and done when every block has its status.
 *
 * Failures: the end of a session fails the requests sent in it. The pool of the next session is
 * registered when no batch is active. */
#include <errno.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "checked.h"
#include "gpu/batch.h"
#include "gpu/leased.h"
#include "lib/abi.h"

enum {
        REQUEST_MIN = ABI_BYTES_TO(struct kvcache_gpu_request, user_data),
        BLOCK_MIN = ABI_BYTES_TO(struct kvcache_gpu_block, cost_us),
        /* Pauses between polls for the end of copies. The driver does not announce the end: a
         * host function behind each batch would, but the driver's locks and threads for such
         * functions slow the program's own launches. */
        POLL_GET_NS = 30 * 1000,
        POLL_PUT_NS = 150 * 1000,
        POLL_MOST_NS = 1000 * 1000, /* longest pause, for copies that wait for other work */
        POLL_AGE = 8, /* divisor: the pause is the time since the copies began, divided by this
                         number */
        POLL_REST_NS = 10 * 1000 * 1000, /* pause while memory settles or a stream is captured */
};

int64_t blocks_deadline(int timeout_ms)
{
        return timeout_ms < 0 ? INT64_MAX : gds_now() + (int64_t)timeout_ms * 1000000;
}

void operation_free(struct kvcache_gpu *gpu, struct operation *op)
{
        if (op->before)
                (void)gpu->driver.event_destroy(op->before);
        if (op->begun)
                (void)gpu->driver.event_destroy(op->begun);
        layout_fini(&op->layout);
        free(op->indices);
        free(op->blocks);
        free(op);
}

/* Returns whether the program's stream that must follow the operation is being captured: it cannot
 * be made to wait until its capture has ended. */
static bool operation_is_held_up(const struct kvcache_gpu *gpu, const struct operation *op)
{
        return op->after_stream && driver_is_capturing(&gpu->driver, op->after_stream);
}

static bool operation_is_ready(const struct operation *op)
{
        return !op->is_issued && op->next == op->count && op->unissued == 0;
}

/* Issues the operation, whose last copy is in a stream: makes the program's stream and event follow
 * the copies. */
static void operation_issue(struct kvcache_gpu *gpu, struct operation *op)
{
        cu_stream stream = op->is_put ? gpu->put_stream : gpu->get_streams[0];
        const struct driver *d = &gpu->driver;
        cu_result c = CU_OK;

        op->is_issued = true;
        if (!op->after_event && !op->after_stream)
                return;
        if (!op->is_put) {
                c = d->event_record(gpu->after, gpu->get_streams[1]);
                if (c == CU_OK)
                        c = d->stream_wait_event(stream, gpu->after, 0);
        }
        if (c == CU_OK && op->after_event)
                c = d->event_record(op->after_event, stream);
        if (c == CU_OK && op->after_stream)
                c = d->event_record(gpu->after, stream);
        if (c == CU_OK && op->after_stream)
                c = d->stream_wait_event(op->after_stream, gpu->after, 0);
        if (c != CU_OK) {
                gpu->engine.counts.driver_errors++;
                op->error =
                        gpu_fail_driver(gpu, "the stream cannot be made to wait for the copies", c);
        }
}

/* Ends the blocks that are in no batch yet with KVCACHE_LOST, because they cannot be requested now,
 * and sets the error of their operations. */
static void operations_lose(struct kvcache_gpu *gpu, int error)
{
        struct operation *op;

        TAILQ_FOREACH(op, &gpu->operations, link)
        for (; op->next < op->count; op->next++) {
                block_judge(op, op->next, KVCACHE_LOST);
                op->error = error;
        }
}

int blocks_renew(struct kvcache_gpu *gpu, bool pauses)
{
        int r;

        if (parts_pool_is_current(gpu->kv, &gpu->pool))
                return 0;
        if (!TAILQ_EMPTY(&gpu->active))
                return gpu_fail(gpu, -EAGAIN,
                                "requests are still in flight: call kvcache_gpu_renew() after they "
                                "have ended");
        gpu_pool_close(gpu, pauses);
        r = gpu_pool_open(gpu, pauses);
        if (r == 0)
                (void)gpu_gds_open(gpu); /* only kvcache_gpu_attach() fails if GPUDirect Storage is
                                            not available */
        if (r == 0 && !gpu->staging.is_buffer) {
                staging_memory_close(&gpu->staging, gpu->kv, &gpu->driver);
                r = staging_memory_open(&gpu->staging, gpu->kv, &gpu->driver, gpu->staging_bytes);
                if (r < 0)
                        gpu_fail(gpu, r, "%s", kvcache_error(gpu->kv));
        }
        return r;
}

/* Returns whether the current session's memory is registered. If not, registers it once no batch is
 * active, unless KVCACHE_GPU_EXPLICIT is set; if it cannot be registered, ends the blocks that are
 * in no batch. */
static bool blocks_are_connected(struct kvcache_gpu *gpu)
{
        int r;

        if (parts_pool_is_current(gpu->kv, &gpu->pool))
                return true;
        if (!TAILQ_EMPTY(&gpu->active))
                return false;
        if (gpu->flags & KVCACHE_GPU_EXPLICIT)
                r = gpu_fail(gpu, -EAGAIN,
                             "the pool of the present session is not registered with the GPU: call "
                             "kvcache_gpu_renew()");
        else
                r = blocks_renew(gpu, false);
        if (r < 0)
                operations_lose(gpu, r);
        return r == 0;
}

/* Makes batches of the operations' next blocks, in the order of the operations, while there are
 * idle batches and memory. */
static void blocks_schedule(struct kvcache_gpu *gpu)
{
        bool full[2] = { false, false };
        struct operation *op;

        TAILQ_FOREACH(op, &gpu->operations, link)
        while (op->next < op->count && !full[op->is_put]) {
                if (!blocks_are_connected(gpu) || TAILQ_EMPTY(&gpu->idle))
                        return;
                full[op->is_put] =
                        !(op->is_put ? batch_begin_put(gpu, op) : batch_begin_get(gpu, op));
        }
}

bool blocks_progress(struct kvcache_gpu *gpu)
{
        struct operation *op;
        struct batch *b, *next;
        uint64_t notices;
        bool changed, idle;

        (void)!read(gpu->event_fd, &notices, sizeof(notices));
        parts_flow(gpu->kv);
        leased_progress(gpu);
        do {
                changed = false;
                for (b = TAILQ_FIRST(&gpu->active); b; b = next) {
                        next = TAILQ_NEXT(b, link);
                        changed |= batch_step(gpu, b);
                }
                blocks_schedule(gpu);
                TAILQ_FOREACH(op, &gpu->operations, link)
                if (operation_is_ready(op) && !operation_is_held_up(gpu, op)) {
                        operation_issue(gpu, op);
                        changed = true;
                }
        } while (changed);
        idle = TAILQ_EMPTY(&gpu->active);
        TAILQ_FOREACH(op, &gpu->operations, link)
        idle = idle && op->judged == op->count;
        if (gpu->is_watched)
                blocks_set_timer(gpu);
        return idle;
}

static int64_t batch_pause(const struct batch *b, int64_t now)
{
        int64_t least = b->op->is_put ? POLL_PUT_NS : POLL_GET_NS;

        return MIN(MAX((now - b->began_ns) / POLL_AGE, least), (int64_t)POLL_MOST_NS);
}

/* Returns the time of the next poll, or INT64_MAX if descriptors report everything that is
 * awaited. */
static int64_t blocks_poll_at(const struct kvcache_gpu *gpu)
{
        int64_t pause = INT64_MAX, now = gds_now();
        const struct operation *op;
        const struct batch *b;

        TAILQ_FOREACH(b, &gpu->active, link)
        if (b->state == BATCH_COPYING)
                pause = MIN(pause, batch_pause(b, now));
        else if (b->state == BATCH_SETTLING)
                pause = MIN(pause, (int64_t)POLL_REST_NS);
        TAILQ_FOREACH(op, &gpu->operations, link)
        if (operation_is_ready(op))
                pause = MIN(pause, (int64_t)POLL_REST_NS);
        return pause == INT64_MAX ? pause : now + pause;
}

void blocks_set_timer(struct kvcache_gpu *gpu)
{
        int64_t at = blocks_poll_at(gpu);
        struct itimerspec t = { 0 }; /* all zero: disarms the timer */

        if (at != INT64_MAX)
                t.it_value =
                        (struct timespec){ .tv_sec = at / 1000000000, .tv_nsec = at % 1000000000 };
        (void)timerfd_settime(gpu->timer_fd, TFD_TIMER_ABSTIME, &t, NULL);
}

bool blocks_wait(struct kvcache_gpu *gpu, int64_t deadline)
{
        if (gds_now() >= deadline)
                return false;
        parts_wait(gpu->kv, gpu->event_fd, MIN(deadline, blocks_poll_at(gpu)));
        return true;
}

/* --- the public calls --- */

static int request_check(struct kvcache_gpu *gpu, const struct kvcache_gpu_request *user,
                         bool is_put, struct kvcache_gpu_request *ret)
{
        struct kvcache_gpu_request q = { 0 };

        if (!user || !abi_size_is_valid(user->size, REQUEST_MIN))
                return gpu_fail(gpu, -EINVAL, "the request is NULL, or its size is not set");
        if (abi_copy_in(&q, sizeof(q), user, user->size) < 0)
                return gpu_fail(gpu, -E2BIG,
                                "the request sets members that this library does not know: use a "
                                "newer libkvcache");
        if (q.flags & ~(uint32_t)(KVCACHE_NOWAIT | KVCACHE_GPU_NOTIFY_ISSUED))
                return gpu_fail(gpu, -EINVAL, "unknown flags 0x%x", q.flags);
        if ((unsigned)q.ack > KVCACHE_DURABLE)
                return gpu_fail(gpu, -EINVAL, "unknown acknowledgement %d", (int)q.ack);
        if (q.timeout_ms < 0)
                return gpu_fail(gpu, -EINVAL, "timeout_ms is negative");
        if (q.count > 0 && (!q.blocks || !q.statuses))
                return gpu_fail(
                        gpu, -EINVAL,
                        "`blocks` or `statuses` of the request is NULL, but its count is not 0");
        if (q.count > 0 && !abi_size_is_valid(q.block_size, BLOCK_MIN))
                return gpu_fail(gpu, -EINVAL, "the request's block_size is not set");
        if (is_put && (q.first_layer != 0 || q.n_layers != 0))
                return gpu_fail(gpu, -EINVAL, "a put takes whole blocks, not layers of them");
        *ret = q;
        return 0;
}

static int operation_take_blocks(struct kvcache_gpu *gpu, struct operation *op,
                                 const struct kvcache_gpu_request *q)
{
        op->blocks = calloc(MAX(q->count, (size_t)1), sizeof(*op->blocks));
        if (!op->blocks)
                return gpu_fail(gpu, -ENOMEM, "out of memory");
        for (size_t i = 0; i < q->count; i++) {
                struct kvcache_gpu_block *b = &op->blocks[i];
                struct layout_part part = op->layers;

                if (abi_copy_in(b, sizeof(*b), abi_at(q->blocks, q->block_size, i), q->block_size) <
                    0)
                        return gpu_fail(gpu, -E2BIG,
                                        "block %zu sets members that this library does not know: "
                                        "use a newer libkvcache",
                                        i);
                part.tokens = b->tokens;
                if (b->block >= op->layout.blocks)
                        return gpu_fail(gpu, -EINVAL,
                                        "block %zu of the request: the layout has no block %llu", i,
                                        (unsigned long long)b->block);
                if (layout_part_check(&op->layout, &part) < 0)
                        return gpu_fail(gpu, -EINVAL,
                                        "block %zu of the request: the layout's blocks have fewer "
                                        "than %u tokens",
                                        i, b->tokens);
                b->tokens = part.tokens;
                if (op->is_put &&
                    layout_chunk_bytes(&op->layout, b->tokens) > gpu->staging.part_bytes)
                        return gpu_fail(
                                gpu, -E2BIG,
                                "a block of %llu bytes is longer than an eighth of the staging "
                                "memory: raise staging_bytes",
                                (unsigned long long)layout_chunk_bytes(&op->layout, b->tokens));
                q->statuses[i] = KVCACHE_PENDING;
        }
        return 0;
}

/* Copies the order that the request requires, and records op->before after all work that the
 * request must follow, as it stands now. Returns 0; -EBUSY if a stream of the request is being
 * captured; another -errno. */
static int operation_take_order(struct kvcache_gpu *gpu, struct operation *op,
                                const struct kvcache_gpu_request *q)
{
        const struct driver *d = &gpu->driver;
        cu_stream order = gpu->order_streams[op->is_put];
        cu_result c;

        if (driver_is_capturing(d, q->before_stream) || driver_is_capturing(d, q->after_stream))
                return gpu_fail(gpu, -EBUSY,
                                "a stream of the request is being captured into a CUDA graph");
        op->after_stream = q->after_stream;
        op->after_event = q->after_event;
        if (!q->before_stream && !q->before_event)
                return 0;
        c = d->event_create(&op->before, CU_EVENT_IS_UNTIMED);
        if (c == CU_OK && q->before_event)
                c = d->stream_wait_event(order, q->before_event, 0);
        if (c == CU_OK && q->before_stream)
                c = d->event_record(op->before, q->before_stream);
        if (c == CU_OK && q->before_stream)
                c = d->stream_wait_event(order, op->before, 0);
        if (c == CU_OK)
                c = d->event_record(op->before, order);
        return c == CU_OK ? 0 : gpu_fail_driver(gpu, "the request's order cannot be kept", c);
}

static int operation_init(struct kvcache_gpu *gpu, struct operation *op,
                          const struct kvcache_gpu_request *q)
{
        const char *why;
        int r;

        r = layout_init(&op->layout, q->layout, &why);
        if (r < 0)
                return gpu_fail(gpu, r, "%s", why);
        op->layers = (struct layout_part){ .first_layer = q->first_layer, .n_layers = q->n_layers };
        r = layout_part_check(&op->layout, &op->layers);
        if (r < 0)
                return gpu_fail(gpu, r, "the layout does not have the layers of the request");
        r = operation_take_blocks(gpu, op, q);
        if (r == 0)
                r = chunks_take(gpu, op, q);
        if (r < 0)
                return r;
        return operation_take_order(gpu, op, q);
}

static int blocks_begin(struct kvcache_gpu *gpu, const struct kvcache_gpu_request *user,
                        bool is_put)
{
        struct kvcache_gpu_request q = { 0 };
        struct operation *op;
        int r;

        r = request_check(gpu, user, is_put, &q);
        if (r < 0)
                return r;
        op = calloc(1, sizeof(*op));
        if (!op)
                return gpu_fail(gpu, -ENOMEM, "out of memory");
        *op = (struct operation){
                .is_put = is_put,
                .has_parent = q.parent,
                .namespace_handle = q.namespace_handle,
                .flags = q.flags,
                .ack = q.ack,
                .timeout_ms = q.timeout_ms,
                .count = q.count,
                .statuses = q.statuses,
                .user_data = q.user_data,
        };
        if (q.parent)
                op->parent = *q.parent;
        r = operation_init(gpu, op, &q);
        if (r < 0) {
                operation_free(gpu, op);
                return r;
        }
        TAILQ_INSERT_TAIL(&gpu->operations, op, link);
        (void)blocks_progress(gpu);
        return 0;
}

int kvcache_gpu_put_blocks(struct kvcache_gpu *gpu, const struct kvcache_gpu_request *request)
{
        int r;

        r = gpu_enter(gpu);
        if (r < 0)
                return r;
        r = blocks_begin(gpu, request, true);
        gpu_leave(gpu);
        return r;
}

int kvcache_gpu_get_blocks(struct kvcache_gpu *gpu, const struct kvcache_gpu_request *request)
{
        int r;

        r = gpu_enter(gpu);
        if (r < 0)
                return r;
        r = blocks_begin(gpu, request, false);
        gpu_leave(gpu);
        return r;
}

static int blocks_take_completions(struct kvcache_gpu *gpu, void *ret, size_t size, size_t max)
{
        struct operation *op, *next;
        size_t n = 0;

        for (op = TAILQ_FIRST(&gpu->operations); op && n < max; op = next) {
                struct kvcache_gpu_completion c = { .user_data = op->user_data,
                                                    .error = op->error,
                                                    .count = op->count,
                                                    .copy_ns = (uint64_t)(op->copy_ms * 1e6) };

                next = TAILQ_NEXT(op, link);
                if (op->is_issued && !op->issued_is_known &&
                    (op->flags & KVCACHE_GPU_NOTIFY_ISSUED)) {
                        op->issued_is_known = true;
                        c.kind = KVCACHE_GPU_ISSUED;
                        abi_copy_out(abi_at(ret, size, n++), size, &c, sizeof(c));
                }
                if (n == max || !op->is_issued || op->judged < op->count)
                        continue;
                c.kind = KVCACHE_GPU_DONE;
                abi_copy_out(abi_at(ret, size, n++), size, &c, sizeof(c));
                TAILQ_REMOVE(&gpu->operations, op, link);
                operation_free(gpu, op);
        }
        return (int)n;
}

int kvcache_gpu_reap_sized(struct kvcache_gpu *gpu, struct kvcache_gpu_completion *ret,
                           size_t completion_size, size_t max, int timeout_ms)
{
        int64_t deadline;
        int r;

        r = gpu_enter(gpu);
        if (r < 0)
                return r;
        if (!ret || max == 0 || !abi_size_is_valid(completion_size, GPU_COMPLETION_MIN)) {
                gpu_leave(gpu);
                return gpu_fail(gpu, -EINVAL,
                                "the array of completions is NULL or empty, or its element size is "
                                "invalid");
        }
        deadline = blocks_deadline(timeout_ms);
        max = MIN(max, (size_t)INT32_MAX);
        do {
                (void)blocks_progress(gpu);
                r = blocks_take_completions(gpu, ret, completion_size, max);
        } while (r == 0 && !TAILQ_EMPTY(&gpu->operations) && blocks_wait(gpu, deadline));
        gpu_leave(gpu);
        return r;
}
