/* SPDX-License-Identifier: Apache-2.0 */
/* Allocates GPU memory with the few functions of libcuda.so.1 that it needs, loaded by their
 * symbols. */
#include "gpu-memory.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "cleanup.h"

/* X(member, symbol, whether it is required, parameters) */
#define FUNCTIONS(X)                                                                               \
        X(init, cuInit, 1, (unsigned flags))                                                       \
        X(error_name, cuGetErrorName, 1, (int error, const char **ret))                            \
        X(device_get, cuDeviceGet, 1, (int *ret, int ordinal))                                     \
        X(device_name, cuDeviceGetName, 0, (char *ret, int bytes, int device))                     \
        X(retain, cuDevicePrimaryCtxRetain, 1, (void **ret, int device))                           \
        X(release, cuDevicePrimaryCtxRelease_v2, 1, (int device))                                  \
        X(push, cuCtxPushCurrent_v2, 1, (void *context))                                           \
        X(pop, cuCtxPopCurrent_v2, 1, (void **ret))                                                \
        X(alloc, cuMemAlloc_v2, 1, (uint64_t * ret, size_t bytes))                                 \
        X(free, cuMemFree_v2, 1, (uint64_t address))                                               \
        X(stream_create, cuStreamCreate, 1, (void **ret, unsigned flags))                          \
        X(stream_destroy, cuStreamDestroy_v2, 1, (void *stream))                                   \
        X(stream_synchronize, cuStreamSynchronize, 1, (void *stream))                              \
        X(copy, cuMemcpyAsync, 1, (uint64_t to, uint64_t from, size_t bytes, void *stream))

struct gpu_driver {
        void *dl;
        int device;
        void *context;
#define X(member, symbol, is_needed, parameters) int(*member) parameters;
        FUNCTIONS(X)
#undef X
};

enum { STREAM_NON_BLOCKING = 1 };

static int fail(char *ret_why, int error, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
static int fail(char *ret_why, int error, const char *format, ...)
{
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(ret_why, GPU_MEMORY_TEXT, format, arguments);
        va_end(arguments);
        return error;
}

static int refused(const struct gpu_driver *d, char *ret_why, const char *call, int result)
{
        const char *name = NULL;

        if (d->error_name(result, &name) != 0 || !name)
                name = "an unknown CUDA error";
        return fail(ret_why, -EIO, "%s(): %s", call, name);
}

static struct gpu_driver *driver_free(struct gpu_driver *d)
{
        if (d && d->dl)
                dlclose(d->dl);
        free(d);
        return NULL;
}
DEFINE_CLEANUP(struct gpu_driver *, driver_free);

static int driver_load(struct gpu_driver **ret, int ordinal, char *ret_why)
{
        _cleanup_(driver_freep) struct gpu_driver *d = calloc(1, sizeof(*d));
        const char *missing = NULL;
        int c;

        if (!d)
                return fail(ret_why, -ENOMEM, "out of memory");
        /* Keep the library's code in memory, because the driver has its own threads. */
        d->dl = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (!d->dl)
                return fail(ret_why, -ENODEV, "the CUDA driver cannot be loaded: %s", dlerror());
#define X(member, symbol, is_needed, parameters)                                                   \
        *(void **)&d->member = dlsym(d->dl, #symbol);                                              \
        if (!d->member && (is_needed) && !missing)                                                 \
                missing = #symbol;
        FUNCTIONS(X)
#undef X
        if (missing)
                return fail(ret_why, -ENOSYS, "the CUDA driver (libcuda.so.1) lacks %s()", missing);
        c = d->init(0);
        if (c != 0)
                return refused(d, ret_why,
                               "the CUDA driver (libcuda.so.1) cannot be initialized: cuInit", c);
        c = d->device_get(&d->device, ordinal);
        if (c != 0)
                return fail(ret_why, -ENODEV, "the CUDA driver (libcuda.so.1) has no device %d",
                            ordinal);
        *ret = TAKE_PTR(d);
        return 0;
}

int gpu_memory_probe(int ordinal, char *ret)
{
        _cleanup_(driver_freep) struct gpu_driver *d = NULL;
        char why[GPU_MEMORY_TEXT];
        int r = driver_load(&d, ordinal, ret ? ret : why);

        if (r < 0 || !ret)
                return r;
        if (!d->device_name || d->device_name(ret, GPU_MEMORY_TEXT, d->device) != 0)
                snprintf(ret, GPU_MEMORY_TEXT, "device %d", ordinal);
        return 0;
}

int gpu_memory_open(struct gpu_memory *m, int ordinal, uint64_t bytes,
                    char ret_why[static GPU_MEMORY_TEXT])
{
        struct gpu_driver *d;
        int c, r;

        *m = (struct gpu_memory){ .ordinal = ordinal, .bytes = bytes };
        r = driver_load(&m->driver, ordinal, ret_why);
        if (r < 0)
                return r;
        d = m->driver;
        m->mirror = malloc(bytes);
        if (!m->mirror) {
                gpu_memory_close(m);
                return fail(ret_why, -ENOMEM, "%llu bytes of host memory cannot be allocated",
                            (unsigned long long)bytes);
        }
        c = d->retain(&d->context, d->device);
        if (c == 0) {
                c = d->push(d->context);
                if (c != 0) {
                        (void)d->release(d->device);
                        d->context = NULL;
                }
        }
        if (c == 0)
                c = d->stream_create(&m->stream, STREAM_NON_BLOCKING);
        if (c != 0) {
                r = refused(d, ret_why,
                            "cannot create a context and a stream on the device: "
                            "cuDevicePrimaryCtxRetain() or cuStreamCreate",
                            c);
                gpu_memory_close(m);
                return r;
        }
        c = d->alloc(&m->address, bytes);
        if (c != 0) {
                m->address = 0;
                r = refused(d, ret_why, "cannot allocate memory of the device: cuMemAlloc", c);
                gpu_memory_close(m);
        }
        return c == 0 ? 0 : r;
}

void gpu_memory_close(struct gpu_memory *m)
{
        struct gpu_driver *d = m->driver;
        void *popped;

        if (!d)
                return;
        if (m->address)
                (void)d->free(m->address);
        if (m->stream)
                (void)d->stream_destroy(m->stream);
        if (d->context) {
                (void)d->pop(&popped);
                (void)d->release(d->device);
        }
        free(m->mirror);
        driver_free(d);
        *m = (struct gpu_memory){ 0 };
}

static int copy(struct gpu_memory *m, uint64_t to, uint64_t from, char *ret_why)
{
        const struct gpu_driver *d = m->driver;
        int c = d->copy(to, from, m->bytes, m->stream);

        if (c == 0)
                c = d->stream_synchronize(m->stream);
        return c == 0 ? 0
                      : refused(d, ret_why,
                                "cannot copy blocks: cuMemcpyAsync() or cuStreamSynchronize", c);
}

int gpu_memory_upload(struct gpu_memory *m, char ret_why[static GPU_MEMORY_TEXT])
{
        return copy(m, m->address, (uintptr_t)m->mirror, ret_why);
}

int gpu_memory_download(struct gpu_memory *m, char ret_why[static GPU_MEMORY_TEXT])
{
        return copy(m, (uintptr_t)m->mirror, m->address, ret_why);
}
