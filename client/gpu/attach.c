/* SPDX-License-Identifier: Apache-2.0 */
/* Attaches and detaches a GPU.
 *
 * Runs in the handle's thread. Owns the driver, the context's reference, streams, events and
 * registrations. Attaching creates each part after the parts that it depends on: context, streams,
 * engine, staging, pool. Detaching frees them in reverse order once no copy is in progress, because
 * memory that the device may still access must stay registered, and registered memory must stay
 * mapped.
 *
 * Failures: without a driver, a device or staging there is no attachment. If the driver does not
 * register the pool or the staging memory, copies are slower. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"
#include "gpu/gpu.h"
#include "gpu/leased.h"
#include "lib/abi.h"

enum {
        OPTIONS_MIN = ABI_BYTES_TO(struct kvcache_gpu_options, staging_bytes),
        INFO_MIN = ABI_BYTES_TO(struct kvcache_gpu_info, counts),
        DEFAULT_SMS = 2, /* multiprocessors for the kernel; by measurement, one of them nearly
                            saturates the bus */
        DEFAULT_STAGING_BYTES = 128 * 1024 * 1024,
        DEFAULT_GDS_BYTES = 128 * 1024 * 1024,
        LEAST_STAGING_BYTES = 64 * 1024,
        LEAST_GDS_BYTES = 1024 * 1024,
};

int gpu_fail(struct kvcache_gpu *gpu, int error, const char *format, ...)
{
        va_list args;

        va_start(args, format);
        vsnprintf(gpu->error, sizeof(gpu->error), format, args);
        va_end(args);
        return error;
}

int gpu_fail_driver(struct kvcache_gpu *gpu, const char *what, cu_result c)
{
        return gpu_fail(gpu, driver_errno(c), "%s: %s (%d)", what,
                        driver_error_name(&gpu->driver, c), c);
}

int gpu_enter(struct kvcache_gpu *gpu)
{
        if (!gpu)
                return -EINVAL;
        if (gpu->pid != getpid())
                return -ECHILD;
        if (parts_is_closed(gpu->kv))
                return gpu_fail(gpu, -EBADF, "the handle has been closed: detach the GPU");
        gpu_make_current(gpu);
        return 0;
}

void gpu_make_current(struct kvcache_gpu *gpu)
{
        gpu->capture_mode = driver_relax(&gpu->driver);
        gpu->is_current = gpu->driver.ctx_push(gpu->context) == CU_OK;
}

static void gpu_pop_context(struct kvcache_gpu *gpu)
{
        cu_context context;

        if (gpu->is_current)
                (void)gpu->driver.ctx_pop(&context);
        gpu->is_current = false;
}

void gpu_leave(struct kvcache_gpu *gpu)
{
        gpu_pop_context(gpu);
        driver_restore(&gpu->driver, gpu->capture_mode);
}

/* --- the pool, and GPUDirect Storage --- */

/* Registers the held pool unless it is registered or KVCACHE_GPU_NO_POOL is set. If the driver
 * refuses, gets pass through the staging memory. */
static void gpu_pool_register(struct kvcache_gpu *gpu, bool pauses)
{
        static const unsigned flags[] = {
                CU_HOST_REGISTER_PORTABLE | CU_HOST_REGISTER_MAPPED | CU_HOST_REGISTER_READ_ONLY,
                CU_HOST_REGISTER_PORTABLE | CU_HOST_REGISTER_MAPPED,
        };
        cu_result c = CU_ERROR_NOT_SUPPORTED;

        if ((gpu->flags & KVCACHE_GPU_NO_POOL) || gpu->pool_slices.device)
                return;
        for (unsigned i = 0; i < ARRAY_SIZE(flags) && c != CU_OK; i++)
                c = slices_register(&gpu->driver, &gpu->pool_slices, (void *)gpu->pool.base,
                                    gpu->pool.bytes, flags[i], pauses);
        if (c != CU_OK)
                gpu_fail_driver(gpu, "the pool cannot be registered with the driver", c);
        leased_publish(gpu, pauses);
}

int gpu_pool_open(struct kvcache_gpu *gpu, bool pauses)
{
        int r = parts_pool_hold(gpu->kv, &gpu->pool);

        if (r < 0)
                return gpu_fail(gpu, r, "%s", kvcache_error(gpu->kv));
        gpu_pool_register(gpu, pauses);
        return 0;
}

int gpu_gds_open(struct kvcache_gpu *gpu)
{
        struct kvcache_info info = { .size = sizeof(info) };
        bool must = gpu->gds_option == KVCACHE_GPU_GDS_REQUIRED;
        char why[CUFILE_TEXT] =
                "the daemon does not lend its data files to this user; set io.gds: on "
                "in its configuration";

        if (gpu->gds_option == KVCACHE_GPU_GDS_NEVER ||
            (gpu->gds.state != KVCACHE_GPU_GDS_OFF && gpu->gds.state != KVCACHE_GPU_GDS_DAEMON &&
             gpu->gds.state != KVCACHE_GPU_GDS_POOL))
                return 0;
        if (!gpu->pool_slices.device) {
                gpu->gds.state = KVCACHE_GPU_GDS_POOL;
                snprintf(why, sizeof(why), "the pool is not registered with the driver");
        } else if (kvcache_get_info(gpu->kv, &info) == 0 && info.lends)
                (void)gds_open(&gpu->gds, gpu->gds_bytes, must, why);
        else
                gpu->gds.state = KVCACHE_GPU_GDS_DAEMON;
        if (gpu->gds.state == KVCACHE_GPU_GDS_NONE || !must)
                return 0;
        return gpu_fail(gpu, -EOPNOTSUPP, "GPUDirect Storage cannot be used: %s", why);
}

void gpu_pool_close(struct kvcache_gpu *gpu, bool pauses)
{
        bool is_kept = leased_keep(gpu);

        if (!is_kept) {
                slices_unregister(&gpu->driver, &gpu->pool_slices, pauses);
                parts_pool_release(gpu->kv, &gpu->pool);
        }
        gpu->pool_slices = (struct slices){ 0 };
        gpu->pool = (struct parts_pool){ 0 };
}

/* --- attaching --- */

static int gpu_open_context(struct kvcache_gpu *gpu, const struct kvcache_gpu_options *o)
{
        const struct driver *d = &gpu->driver;
        int unified = 0;
        cu_result c;

        if (o->flags & KVCACHE_GPU_CURRENT_CONTEXT) {
                c = d->ctx_get_current(&gpu->context);
                if (c == CU_OK && !gpu->context)
                        return gpu_fail(
                                gpu, -EINVAL,
                                "this thread has no current CUDA context: set one, or leave out "
                                "KVCACHE_GPU_CURRENT_CONTEXT");
                if (c == CU_OK)
                        c = d->ctx_get_device(&gpu->device);
        } else {
                c = d->device_get(&gpu->device, o->device);
                if (c == CU_OK)
                        c = d->primary_retain(&gpu->context, gpu->device);
                gpu->is_primary = c == CU_OK;
        }
        if (c != CU_OK)
                return gpu_fail_driver(gpu, "the device's CUDA context cannot be used", c);
        c = d->device_get_attribute(&unified, CU_ATTRIBUTE_UNIFIED_ADDRESSING, gpu->device);
        if (c == CU_OK)
                c = d->device_get_attribute(&gpu->multiprocessors,
                                            CU_ATTRIBUTE_MULTIPROCESSOR_COUNT, gpu->device);
        if (c != CU_OK)
                return gpu_fail_driver(gpu, "the device's attributes cannot be read", c);
        if (!unified)
                return gpu_fail(gpu, -EOPNOTSUPP, "the device has no unified addressing");
        c = d->ctx_push(gpu->context);
        if (c != CU_OK)
                return gpu_fail_driver(gpu, "the device's CUDA context cannot be made current", c);
        gpu->is_current = true;
        return 0;
}

static int gpu_open_streams(struct kvcache_gpu *gpu)
{
        const struct driver *d = &gpu->driver;
        int least, greatest, priority;
        cu_result c;

        c = d->stream_priorities(&least, &greatest);
        if (c != CU_OK)
                return gpu_fail_driver(gpu, "a CUDA stream cannot be created", c);
        priority = gpu->flags & KVCACHE_GPU_URGENT ? greatest : least;
        c = d->stream_create_at(&gpu->put_stream, CU_STREAM_IS_NON_BLOCKING, priority);
        if (c == CU_OK)
                c = d->stream_create_at(&gpu->back_stream, CU_STREAM_IS_NON_BLOCKING, priority);
        for (unsigned i = 0; i < 2 && c == CU_OK; i++) {
                c = d->stream_create_at(&gpu->get_streams[i], CU_STREAM_IS_NON_BLOCKING, priority);
                if (c == CU_OK)
                        c = d->stream_create(&gpu->order_streams[i], CU_STREAM_IS_NON_BLOCKING);
        }
        if (c == CU_OK)
                c = d->event_create(&gpu->after, CU_EVENT_IS_UNTIMED);
        if (c != CU_OK)
                return gpu_fail_driver(gpu, "a CUDA stream cannot be created", c);
        gpu->batches = calloc(GPU_BATCHES, sizeof(*gpu->batches));
        gpu->copies = calloc(ENGINE_ROOM, sizeof(*gpu->copies));
        if (!gpu->batches || !gpu->copies)
                return gpu_fail(gpu, -ENOMEM, "out of memory");
        for (unsigned i = 0; i < GPU_BATCHES; i++) {
                struct batch *b = &gpu->batches[i];

                b->slot = i;
                b->part = b->device_part = -1;
                c = d->event_create(&b->done, d->event_elapsed ? 0 : CU_EVENT_IS_UNTIMED);
                if (c == CU_OK && d->event_elapsed)
                        c = d->event_create(&b->begun, 0);
                if (c != CU_OK)
                        return gpu_fail_driver(gpu, "a CUDA event cannot be created", c);
                TAILQ_INSERT_TAIL(&gpu->idle, b, link);
        }
        return 0;
}

static int gpu_open_descriptors(struct kvcache_gpu *gpu)
{
        struct epoll_event e = { .events = EPOLLIN };
        char reason[128];

        gpu->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        gpu->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
        gpu->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
        if (gpu->event_fd < 0 || gpu->timer_fd < 0 || gpu->epoll_fd < 0 ||
            epoll_ctl(gpu->epoll_fd, EPOLL_CTL_ADD, gpu->event_fd, &e) < 0 ||
            epoll_ctl(gpu->epoll_fd, EPOLL_CTL_ADD, gpu->timer_fd, &e) < 0)
                return gpu_fail(gpu, -errno,
                                "cannot create the eventfd, timerfd or epoll of the GPU: %s",
                                strerror_r(errno, reason, sizeof(reason)));
        return 0;
}

static int gpu_open(struct kvcache_gpu *gpu, const struct kvcache_gpu_options *o)
{
        uint32_t sms = o->max_sms ? o->max_sms : DEFAULT_SMS;
        char why[DRIVER_TEXT];
        int r;

        r = driver_open(&gpu->driver, why);
        if (r < 0)
                return gpu_fail(gpu, r, "%s", why);
        gpu->capture_mode = driver_relax(&gpu->driver);
        r = gpu_open_context(gpu, o);
        if (r == 0)
                r = gpu_open_descriptors(gpu);
        if (r == 0)
                r = gpu_open_streams(gpu);
        if (r < 0)
                return r;
        r = engine_init(&gpu->engine, &gpu->driver, (enum kvcache_gpu_engine)o->engine,
                        (uint32_t)MIN(sms, (uint32_t)MAX(gpu->multiprocessors, 1)), GPU_BATCHES,
                        o->flags & (KVCACHE_GPU_NO_BOUNCE | KVCACHE_GPU_LEASED) ? 0
                                                                                : GPU_BOUNCE_BYTES);
        if (r < 0)
                return gpu_fail(gpu, r, "out of memory");
        gpu->has_engine = true;
        gpu->staging_bytes = o->staging_bytes ? o->staging_bytes : DEFAULT_STAGING_BYTES;
        r = staging_memory_open(&gpu->staging, gpu->kv, &gpu->driver, gpu->staging_bytes);
        if (r < 0)
                return gpu_fail(gpu, r, "cannot get staging memory: %s", kvcache_error(gpu->kv));
        r = gpu_pool_open(gpu, o->flags & KVCACHE_GPU_GENTLE);
        if (r < 0)
                return r;
        gds_init(&gpu->gds, &gpu->driver, gpu->context, gpu->event_fd);
        gpu->gds_option = (enum kvcache_gpu_gds_option)o->gds;
        gpu->gds_bytes = o->gds_bytes ? o->gds_bytes : DEFAULT_GDS_BYTES;
        r = gds_puts_init(&gpu->gds, o->gds_put_path);
        if (r < 0)
                return gpu_fail(gpu, r, "out of memory");
        return gpu_gds_open(gpu);
}

/* Frees the attachment. No batch, copy or read may be in progress. */
static void gpu_free(struct kvcache_gpu *gpu)
{
        const cu_stream copying[] = { gpu->put_stream, gpu->back_stream, gpu->get_streams[0],
                                      gpu->get_streams[1] };
        const struct driver *d = &gpu->driver;
        struct operation *op;

        while ((op = TAILQ_FIRST(&gpu->operations))) {
                TAILQ_REMOVE(&gpu->operations, op, link);
                operation_free(gpu, op);
        }
        for (unsigned i = 0; i < ARRAY_SIZE(copying); i++)
                if (copying[i])
                        (void)d->stream_synchronize(copying[i]);
        gds_puts_fini(&gpu->gds, gpu->kv);
        gds_fini(&gpu->gds);
        gpu_pool_close(gpu, false);
        leased_free(gpu);
        staging_memory_close(&gpu->staging, gpu->kv, d);
        if (gpu->has_engine)
                engine_fini(&gpu->engine);
        for (unsigned i = 0; gpu->batches && i < GPU_BATCHES; i++)
                for (unsigned k = 0; k < 2; k++) {
                        cu_event e = k ? gpu->batches[i].begun : gpu->batches[i].done;

                        if (e)
                                (void)d->event_destroy(e);
                }
        if (gpu->after)
                (void)d->event_destroy(gpu->after);
        for (unsigned i = 0; i < ARRAY_SIZE(copying); i++)
                if (copying[i])
                        (void)d->stream_destroy(copying[i]);
        for (unsigned i = 0; i < 2; i++)
                if (gpu->order_streams[i])
                        (void)d->stream_destroy(gpu->order_streams[i]);
        gpu_pop_context(gpu);
        if (gpu->is_primary)
                (void)d->primary_release(gpu->device);
        driver_restore(d, gpu->capture_mode);
        driver_close(&gpu->driver);
        closep(&gpu->event_fd);
        closep(&gpu->timer_fd);
        closep(&gpu->epoll_fd);
        free(gpu->batches);
        free(gpu->copies);
        parts_detach(gpu->kv);
        free(gpu);
}

static int options_check(const struct kvcache_gpu_options *user, struct kvcache_gpu_options *ret,
                         const char **ret_why)
{
        struct kvcache_gpu_options o = { .size = sizeof(o) };

        if (user) {
                *ret_why = "the size of the options is not set";
                if (!abi_size_is_valid(user->size, OPTIONS_MIN))
                        return -EINVAL;
                *ret_why = "the options set members that this library does not know: use a newer "
                           "libkvcache";
                if (abi_copy_in(&o, sizeof(o), user, user->size) < 0)
                        return -E2BIG;
        }
        *ret_why = "unknown flags, or an unknown engine";
        if ((o.flags & ~(uint32_t)(KVCACHE_GPU_CURRENT_CONTEXT | KVCACHE_GPU_NO_POOL |
                                   KVCACHE_GPU_URGENT | KVCACHE_GPU_NO_BOUNCE | KVCACHE_GPU_LEASED |
                                   KVCACHE_GPU_EXPLICIT | KVCACHE_GPU_GENTLE)) ||
            o.engine > KVCACHE_GPU_ENGINE_BOUNCE)
                return -EINVAL;
        *ret_why = "gds is not one of KVCACHE_GPU_GDS_AUTO, _REQUIRED, _NEVER";
        if (o.gds > KVCACHE_GPU_GDS_NEVER)
                return -EINVAL;
        *ret_why = "gds_bytes is less than 1 MiB, or no multiple of 65,536";
        if (o.gds_bytes != 0 &&
            (o.gds_bytes < LEAST_GDS_BYTES || o.gds_bytes % 65536 != 0 || o.gds_bytes > INT64_MAX))
                return -EINVAL;
        *ret_why = "staging_bytes is less than 64 KiB, or no multiple of 4,096";
        if (o.staging_bytes != 0 && (o.staging_bytes < LEAST_STAGING_BYTES ||
                                     o.staging_bytes % 4096 != 0 || o.staging_bytes > INT64_MAX))
                return -EINVAL;
        *ret = o;
        return 0;
}

int kvcache_gpu_attach(struct kvcache_gpu **ret, struct kvcache *kv,
                       const struct kvcache_gpu_options *options, char *ret_error,
                       size_t error_bytes)
{
        struct kvcache_gpu_options o;
        struct kvcache_gpu *gpu = NULL;
        const char *why = "the handle, or the pointer to the result, is NULL";
        int r = -EINVAL;

        if (ret && kv)
                r = options_check(options, &o, &why);
        if (r == 0) {
                gpu = calloc(1, sizeof(*gpu));
                why = "out of memory";
                r = gpu ? leased_new(&gpu->leased) : -ENOMEM;
        }
        if (r < 0) {
                if (ret_error && error_bytes > 0)
                        snprintf(ret_error, error_bytes, "%s", why);
                free(gpu);
                return r;
        }
        gpu->kv = kv;
        parts_attach(kv);
        gpu->pid = getpid();
        gpu->flags = o.flags;
        gpu->event_fd = gpu->timer_fd = gpu->epoll_fd = gpu->staging.fd = -1;
        TAILQ_INIT(&gpu->operations);
        TAILQ_INIT(&gpu->active);
        TAILQ_INIT(&gpu->idle);
        r = gpu_open(gpu, &o);
        if (r < 0) {
                if (ret_error && error_bytes > 0)
                        snprintf(ret_error, error_bytes, "%s", gpu->error);
                gpu_free(gpu);
                return r;
        }
        gpu_leave(gpu);
        *ret = gpu;
        return 0;
}

int kvcache_gpu_detach(struct kvcache_gpu *gpu, int timeout_ms)
{
        int64_t deadline;

        if (!gpu)
                return 0;
        if (gpu->pid != getpid())
                return -ECHILD;
        gpu_make_current(gpu);
        deadline = blocks_deadline(timeout_ms);
        while (!blocks_progress(gpu))
                if (!blocks_wait(gpu, deadline)) {
                        gpu_leave(gpu);
                        return gpu_fail(
                                gpu, -ETIMEDOUT,
                                "requests are still in flight: call kvcache_gpu_detach() again");
                }
        gpu_free(gpu);
        return 0;
}

int kvcache_gpu_renew(struct kvcache_gpu *gpu)
{
        int r;

        if (!gpu)
                return -EINVAL;
        r = gpu_enter(gpu);
        if (r < 0)
                return r;
        (void)blocks_progress(gpu); /* ends batches of an earlier session */
        leased_drop_pools(gpu, false, true);
        if (parts_pool_is_current(gpu->kv, &gpu->pool))
                gpu_pool_register(gpu, true); /* tries again if the driver refused before */
        else
                r = blocks_renew(gpu, true);
        gpu_leave(gpu);
        return r;
}

const char *kvcache_gpu_error(const struct kvcache_gpu *gpu)
{
        return gpu ? gpu->error : "no GPU is attached";
}

int kvcache_gpu_get_info(struct kvcache_gpu *gpu, struct kvcache_gpu_info *ret)
{
        struct kvcache_gpu_info info;
        int r;

        r = gpu_enter(gpu);
        if (r < 0)
                return r;
        if (!ret || !abi_size_is_valid(ret->size, INFO_MIN)) {
                gpu_leave(gpu);
                return gpu_fail(gpu, -EINVAL, "the info is NULL, or its size is not set");
        }
        info = (struct kvcache_gpu_info){
                .size = ret->size,
                .device = gpu->device,
                .driver_version = gpu->driver.version,
                .multiprocessors = (uint32_t)gpu->multiprocessors,
                .max_sms = gpu->engine.max_sms,
                .staging_bytes = gpu->staging.device ? gpu->staging.bytes : 0,
                .pool_bytes = gpu->pool_slices.device ? gpu->pool.bytes : 0,
                .counts = gpu->engine.counts,
                .gds = gpu->gds.counts,
                .blocks_paced = gpu->blocks_paced,
                .gds_puts = gpu->gds.puts.counts,
                .bounce_bytes = gpu->engine.bounce
                                        ? gpu->engine.bounce_part_bytes * ENGINE_BOUNCE_PARTS
                                        : 0,
                .bounce_copies = gpu->engine.bounces,
        };
        if (!gpu->gds.puts.path)
                info.gds_puts.state = KVCACHE_GPU_GDS_OFF;
        info.gds.state = gpu->gds.state;
        info.gds.device_bytes = gpu->gds.bytes;
        info.flags = (gpu->engine.kernel ? KVCACHE_GPU_HAS_KERNEL : 0) |
                     (gpu->driver.copy_batch_13 || gpu->driver.copy_batch_12 ? KVCACHE_GPU_HAS_BATCH
                                                                             : 0) |
                     (gpu->pool_slices.device ? KVCACHE_GPU_HAS_POOL : 0) |
                     (gpu->staging.is_buffer ? KVCACHE_GPU_HAS_BUFFER : 0) |
                     (gpu->gds.state == KVCACHE_GPU_GDS_NONE ? KVCACHE_GPU_HAS_GDS : 0) |
                     (gpu->gds.cufile.is_compatible ? KVCACHE_GPU_GDS_COPIES : 0);
        leased_add_counts(gpu, &info);
        abi_copy_out(ret, ret->size, &info, sizeof(info));
        gpu_leave(gpu);
        return 0;
}

int kvcache_gpu_fd(struct kvcache_gpu *gpu)
{
        struct epoll_event e = { .events = EPOLLIN };
        int fd;

        if (!gpu)
                return -EINVAL;
        if (gpu->pid != getpid())
                return -ECHILD;
        if (parts_is_closed(gpu->kv))
                return gpu_fail(gpu, -EBADF, "the handle has been closed: detach the GPU");
        fd = kvcache_fd(gpu->kv);
        if (fd < 0)
                return fd;
        if (epoll_ctl(gpu->epoll_fd, EPOLL_CTL_ADD, fd, &e) < 0 && errno != EEXIST)
                return gpu_fail(gpu, -errno, "cannot watch the handle");
        if (!gpu->is_watched) {
                gpu->is_watched = true;
                blocks_set_timer(gpu);
        }
        return gpu->epoll_fd;
}
