/* SPDX-License-Identifier: Apache-2.0 */
/* The stub driver, with one device and one lock. Streams are queues whose work a thread or the test
 * performs.
 *
 * STUB_OLD: behaves like a driver of CUDA 11.0, without cuGetProcAddress() and the batch copy.
 * STUB_POOR: lacks a required function. */
#include "stub-cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/queue.h>
#include <time.h>

#include "checked.h"
#include "gpu/cuda-api.h"
#include "stub-capture.h"

#define EXPORT __attribute__((visibility("default")))

enum {
        MAX_MEMORY = 2048,
        MAX_FAULTS = 64,
        POISONED = 1 << 20, /* bytes of a new area of device memory */
        ERROR_UNKNOWN = 999,
        ERROR_ALREADY_REGISTERED = 712,
        ERROR_NOT_REGISTERED = 713,
        ERROR_INVALID_HANDLE = 400,
        ERROR_NOT_FOUND = 500,
        STREAM_LEGACY = 1, /* handles of streams that are always there */
        STREAM_PER_THREAD = 2,
};
static const uint64_t DEVICE = UINT64_C(1) << 60, MAPPED = UINT64_C(1) << 61;

struct copy {
        uint64_t to, from, bytes;
};

enum work_kind { WORK_COPY, WORK_KERNEL, WORK_RECORD, WORK_WAIT, WORK_HOST };

struct work {
        TAILQ_ENTRY(work) link;
        enum work_kind kind;
        bool may_be_pageable;
        struct copy copy; /* for a kernel, `from` lists its copies and `bytes` is their number */
        bool is_summed;
        uint64_t sum; /* checksum of the host memory that a copy to the device reads */
        struct CUevent_st *event;
        uint64_t version;
        void (*host)(void *user);
        void *user;
};
TAILQ_HEAD(work_list, work);

struct CUstream_st {
        TAILQ_ENTRY(CUstream_st) link;
        struct work_list work;
};
struct CUevent_st {
        uint64_t recorded, done; /* versions */
        struct timespec at;      /* when it was done */
        unsigned refs;           /* works that name it */
        bool dead;
};
struct CUctx_st {
        unsigned refs;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static TAILQ_HEAD(, CUstream_st) streams = TAILQ_HEAD_INITIALIZER(streams);
static struct {
        uint64_t base, bytes;
        bool is_device, is_read_only;
} memory[MAX_MEMORY];
static struct {
        const char *function;
        unsigned calls, after, times;
        int result;
} faults[MAX_FAULTS];
static struct CUctx_st primary;
static struct stub_live count;
static bool automatic = true, has_thread;
static int sticky; /* the context's error */
static _Thread_local struct CUctx_st *stack[8];
static _Thread_local unsigned depth;
static struct CUstream_st *legacy;
static _Thread_local struct CUstream_st *of_thread;

/* --- faults --- */

static unsigned fault_of(const char *function)
{
        for (unsigned i = 0;; i++) {
                if (!faults[i].function)
                        faults[i].function = strdup(function);
                if (strcmp(faults[i].function, function) == 0)
                        return i;
        }
}

static int enter(const char *function)
{
        unsigned i;
        int r = 0;

        pthread_mutex_lock(&lock);
        i = fault_of(function);
        faults[i].calls++;
        if (faults[i].after > 0)
                faults[i].after--;
        else if (faults[i].times > 0) {
                faults[i].times--;
                r = faults[i].result;
        }
        return r;
}

static int leave(int r)
{
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
        return r;
}

#define BEGIN()                                                                                    \
        do {                                                                                       \
                int fault_ = enter(__func__), capture_ = capture_check(__func__);                  \
                if (capture_ != 0)                                                                 \
                        return leave(capture_);                                                    \
                if (fault_ != 0)                                                                   \
                        return leave(fault_);                                                      \
        } while (0)
/* Begins a call that fails without a context, or after the context has failed. */
#define BEGIN_IN_CONTEXT()                                                                         \
        do {                                                                                       \
                BEGIN();                                                                           \
                if (depth == 0)                                                                    \
                        return leave(CU_ERROR_INVALID_CONTEXT);                                    \
                if (sticky != 0)                                                                   \
                        return leave(sticky);                                                      \
        } while (0)

/* --- memory --- */

static int memory_add(uint64_t base, uint64_t bytes, bool is_device, bool is_read_only)
{
        for (unsigned i = 0; i < MAX_MEMORY; i++)
                if (memory[i].bytes != 0 && memory[i].is_device == is_device &&
                    base < memory[i].base + memory[i].bytes && memory[i].base < base + bytes)
                        return ERROR_ALREADY_REGISTERED;
        for (unsigned i = 0; i < MAX_MEMORY; i++)
                if (memory[i].bytes == 0) {
                        memory[i].base = base;
                        memory[i].bytes = bytes;
                        memory[i].is_device = is_device;
                        memory[i].is_read_only = is_read_only;
                        return 0;
                }
        return CU_ERROR_OUT_OF_MEMORY;
}

/* Returns the bytes that were there, or 0. */
static uint64_t memory_remove(uint64_t base, bool is_device)
{
        for (unsigned i = 0; i < MAX_MEMORY; i++)
                if (memory[i].bytes != 0 && memory[i].base == base &&
                    memory[i].is_device == is_device) {
                        uint64_t bytes = memory[i].bytes;

                        memory[i].bytes = 0;
                        return bytes;
                }
        return 0;
}

/* A large area is a mapping whose pages exist once they are used: bounce buffers are large, short
 * lived and mostly unused, and sanitizers pay for each byte of an allocation. */
static bool is_mapped(uint64_t bytes)
{
        return bytes > POISONED;
}

static void *memory_new(uint64_t bytes)
{
        void *p;

        if (!is_mapped(bytes)) {
                p = aligned_alloc(512, round_up(bytes, 512));
        } else {
                p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                if (p == MAP_FAILED)
                        return NULL;
        }
        if (p)
                memset(p, 0xdd, MIN(bytes, (uint64_t)POISONED));
        return p;
}

static void memory_free(void *p, uint64_t bytes)
{
        if (is_mapped(bytes))
                munmap(p, bytes);
        else
                free(p);
}

/* Returns the CPU's pointer to the memory at a device address, or NULL. */
static void *translate(uint64_t address, uint64_t bytes, bool write, bool may_be_pageable)
{
        bool is_device = address & DEVICE;
        uint64_t real = address & ~(DEVICE | MAPPED);

        for (unsigned i = 0; i < MAX_MEMORY; i++)
                if (memory[i].bytes != 0 && memory[i].is_device == is_device &&
                    real >= memory[i].base &&
                    range_within(real - memory[i].base, bytes, memory[i].bytes))
                        return write && memory[i].is_read_only ? NULL : (void *)(uintptr_t)real;
        return may_be_pageable && !(address & (DEVICE | MAPPED)) ? (void *)(uintptr_t)real : NULL;
}

static void carry_copy(const struct copy *c, bool may_be_pageable)
{
        void *to = translate(c->to, c->bytes, true, may_be_pageable);
        const void *from = translate(c->from, c->bytes, false, may_be_pageable);

        if (to && from)
                memcpy(to, from, c->bytes);
        else
                sticky = CU_ERROR_ILLEGAL_ADDRESS;
}

/* Returns whether the source of a copy to the device is registered host memory, and its checksum.
 * Memory mapped read-only has none, because the daemon may change it at any time. TSan leaves the
 * function out, because carry_copy() reads the same bytes. */
__attribute__((no_sanitize("thread"))) static bool source_sum(const struct copy *c, uint64_t *ret)
{
        const uint8_t *from = c->to & DEVICE && !(c->from & DEVICE)
                                      ? translate(c->from, c->bytes, true, false)
                                      : NULL;

        *ret = UINT64_C(0xcbf29ce484222325);
        for (uint64_t i = 0; from && i < c->bytes; i++)
                *ret = (*ret ^ from[i]) * UINT64_C(0x100000001b3);
        return from;
}

/* Checks that the program has not changed the source of a copy that is in progress. */
static void check_source(const struct work *w)
{
        uint64_t sum;

        if (!w->is_summed || !source_sum(&w->copy, &sum) || sum == w->sum)
                return;
        fprintf(stderr, "the source of a copy of %llu bytes was changed before the copy was done\n",
                (unsigned long long)w->copy.bytes);
        abort();
}

static void carry_kernel(const struct copy *list)
{
        const struct copy *copies =
                translate(list->from, list->bytes * sizeof(*copies), false, false);

        if (!copies)
                sticky = CU_ERROR_ILLEGAL_ADDRESS;
        for (uint64_t i = 0; copies && i < list->bytes; i++)
                carry_copy(&copies[i], false);
}

/* --- streams --- */

static void event_unref(struct CUevent_st *e)
{
        if (--e->refs == 0 && e->dead)
                free(e);
}

static bool work_is_ready(const struct work *w)
{
        return w && (w->kind != WORK_WAIT || w->event->done >= w->version);
}

static void work_carry_out(struct CUstream_st *s, struct work *w)
{
        TAILQ_REMOVE(&s->work, w, link);
        switch (sticky != 0 && w->kind != WORK_RECORD && w->kind != WORK_WAIT ? -1 : (int)w->kind) {
        case WORK_COPY:
                check_source(w);
                carry_copy(&w->copy, w->may_be_pageable);
                break;
        case WORK_KERNEL:
                carry_kernel(&w->copy);
                break;
        case WORK_RECORD:
                w->event->done = MAX(w->event->done, w->version);
                clock_gettime(CLOCK_MONOTONIC, &w->event->at);
                break;
        case WORK_HOST:
                w->host(w->user);
                break;
        default:
                break;
        }
        if (w->event)
                event_unref(w->event);
        free(w);
}

static bool step(unsigned seed)
{
        struct CUstream_st *s;
        unsigned n = 0, chosen;

        TAILQ_FOREACH(s, &streams, link)
        n += work_is_ready(TAILQ_FIRST(&s->work));
        if (n == 0)
                return false;
        chosen = seed % n;
        TAILQ_FOREACH(s, &streams, link)
        if (work_is_ready(TAILQ_FIRST(&s->work)) && chosen-- == 0)
                break;
        work_carry_out(s, TAILQ_FIRST(&s->work));
        return true;
}

static void *thread(void *unused)
{
        unsigned seed = 1;

        pthread_mutex_lock(&lock);
        for (;;)
                if (!automatic || !step(seed = seed * 1664525 + 1013904223))
                        pthread_cond_wait(&changed, &lock);
                else
                        pthread_cond_broadcast(&changed);
        return NULL;
}

static struct CUstream_st *stream_new(void)
{
        struct CUstream_st *s = calloc(1, sizeof(*s));

        TAILQ_INIT(&s->work);
        TAILQ_INSERT_TAIL(&streams, s, link);
        return s;
}

/* Returns the stream of a handle, or NULL. The predefined streams are made when they are first
 * named, and stay. Streams do not wait for each other implicitly, because ours are non-blocking. */
static struct CUstream_st *stream_of(cu_stream handle)
{
        struct CUstream_st *s;

        switch ((uintptr_t)handle) {
        case 0:
        case STREAM_LEGACY:
                return legacy ? legacy : (legacy = stream_new());
        case STREAM_PER_THREAD:
                return of_thread ? of_thread : (of_thread = stream_new());
        default:
                TAILQ_FOREACH(s, &streams, link)
                if (s == handle)
                        break;
                return s;
        }
}

static int stream_add(cu_stream handle, struct work w)
{
        struct CUstream_st *s = stream_of(handle);
        int r = capture_check_stream(handle);
        struct work *copy;

        if (r != 0)
                return r;
        if (!s)
                return ERROR_INVALID_HANDLE;
        copy = malloc(sizeof(*copy));
        if (!copy)
                return CU_ERROR_OUT_OF_MEMORY;
        if (w.event)
                w.event->refs++;
        *copy = w;
        if (w.kind == WORK_COPY)
                copy->is_summed = source_sum(&w.copy, &copy->sum);
        TAILQ_INSERT_TAIL(&s->work, copy, link);
        if (!has_thread) {
                pthread_t t;

                has_thread = pthread_create(&t, NULL, thread, NULL) == 0 && pthread_detach(t) == 0;
        }
        return 0;
}

/* --- for the test --- */

EXPORT void stub_run(bool on);
EXPORT void stub_run(bool on)
{
        pthread_mutex_lock(&lock);
        automatic = on;
        leave(0);
}

EXPORT bool stub_step(unsigned seed);
EXPORT bool stub_step(unsigned seed)
{
        bool r;

        pthread_mutex_lock(&lock);
        r = step(seed);
        leave(0);
        return r;
}

EXPORT void stub_fault(const char *function, unsigned after, unsigned times, int result);
EXPORT void stub_fault(const char *function, unsigned after, unsigned times, int result)
{
        unsigned i;

        pthread_mutex_lock(&lock);
        i = fault_of(function);
        faults[i].after = after;
        faults[i].times = times;
        faults[i].result = result;
        leave(0);
}

EXPORT unsigned stub_calls(const char *function);
EXPORT unsigned stub_calls(const char *function)
{
        unsigned n;

        pthread_mutex_lock(&lock);
        n = faults[fault_of(function)].calls;
        leave(0);
        return n;
}

EXPORT void stub_live(struct stub_live *ret);
EXPORT void stub_live(struct stub_live *ret)
{
        pthread_mutex_lock(&lock);
        *ret = count;
        ret->pushed = depth;
        ret->capture_mode = capture_mode();
        leave(0);
}

EXPORT void *stub_memory(uint64_t address);
EXPORT void *stub_memory(uint64_t address)
{
        void *p;

        pthread_mutex_lock(&lock);
        p = translate(address, 1, true, false);
        leave(0);
        return p;
}

EXPORT int stub_begin_capture(void *stream, int mode);
EXPORT int stub_begin_capture(void *stream, int mode)
{
        pthread_mutex_lock(&lock);
        return leave(capture_begin(stream, mode));
}

EXPORT bool stub_end_capture(void *stream);
EXPORT bool stub_end_capture(void *stream)
{
        pthread_mutex_lock(&lock);
        return leave(capture_end(stream)) == CU_OK;
}

EXPORT void stub_arm_capture(unsigned number);
EXPORT void stub_arm_capture(unsigned number)
{
        pthread_mutex_lock(&lock);
        capture_arm(number);
        leave(0);
}

EXPORT bool stub_disarm_capture(unsigned *ret_calls);
EXPORT bool stub_disarm_capture(unsigned *ret_calls)
{
        bool r;

        pthread_mutex_lock(&lock);
        r = capture_disarm(ret_calls);
        leave(0);
        return r;
}

EXPORT void stub_reset(void);
EXPORT void stub_reset(void)
{
        pthread_mutex_lock(&lock);
        for (unsigned i = 0; i < MAX_FAULTS; i++)
                faults[i].calls = faults[i].after = faults[i].times = 0;
        sticky = 0;
        automatic = true;
        capture_reset();
        leave(0);
}

/* --- the driver --- */

#define X(member, name, suffix, since, is_needed, parameters)                                      \
        EXPORT cu_result name##suffix parameters;
CU_FUNCTIONS(X)
#undef X

cu_result cuInit(unsigned flags)
{
        BEGIN();
        return leave(CU_OK);
}

cu_result cuGetErrorName(cu_result error, const char **ret)
{
        *ret = error == CU_ERROR_OUT_OF_MEMORY     ? "CUDA_ERROR_OUT_OF_MEMORY"
               : error == CU_ERROR_ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS"
               : error == CU_ERROR_NOT_SUPPORTED   ? "CUDA_ERROR_NOT_SUPPORTED"
               : error == CU_ERROR_NO_DEVICE       ? "CUDA_ERROR_NO_DEVICE"
                                                   : NULL;
        return *ret ? CU_OK : CU_ERROR_INVALID_VALUE;
}

cu_result cuDriverGetVersion(int *ret)
{
        BEGIN();
#ifdef STUB_OLD
        *ret = 11000;
#else
        *ret = 13000;
#endif
        return leave(CU_OK);
}

cu_result cuDeviceGet(cu_device *ret, int ordinal)
{
        BEGIN();
        if (ordinal != 0)
                return leave(CU_ERROR_INVALID_DEVICE);
        *ret = 0;
        return leave(CU_OK);
}

cu_result cuDeviceGetAttribute(int *ret, int attribute, cu_device device)
{
        BEGIN();
        *ret = attribute == CU_ATTRIBUTE_MULTIPROCESSOR_COUNT ? 4 : 1;
        return leave(CU_OK);
}

cu_result cuDevicePrimaryCtxRetain(cu_context *ret, cu_device device)
{
        BEGIN();
        primary.refs++;
        count.contexts++;
        *ret = &primary;
        return leave(CU_OK);
}

cu_result cuDevicePrimaryCtxRelease_v2(cu_device device)
{
        BEGIN();
        if (primary.refs == 0)
                return leave(CU_ERROR_INVALID_CONTEXT);
        primary.refs--;
        count.contexts--;
        return leave(CU_OK);
}

cu_result cuCtxGetCurrent(cu_context *ret)
{
        BEGIN();
        *ret = depth > 0 ? stack[depth - 1] : NULL;
        return leave(CU_OK);
}

cu_result cuCtxGetDevice(cu_device *ret)
{
        BEGIN();
        *ret = 0;
        return leave(depth > 0 ? CU_OK : CU_ERROR_INVALID_CONTEXT);
}

cu_result cuCtxPushCurrent_v2(cu_context context)
{
        BEGIN();
        if (depth == ARRAY_SIZE(stack))
                return leave(ERROR_UNKNOWN);
        stack[depth++] = context;
        return leave(CU_OK);
}

cu_result cuCtxPopCurrent_v2(cu_context *ret)
{
        BEGIN();
        if (depth == 0)
                return leave(CU_ERROR_INVALID_CONTEXT);
        *ret = stack[--depth];
        return leave(CU_OK);
}

cu_result cuMemAlloc_v2(cu_address *ret, size_t bytes)
{
        void *p;
        int r;

        BEGIN_IN_CONTEXT();
        p = memory_new(bytes);
        if (!p)
                return leave(CU_ERROR_OUT_OF_MEMORY);
        r = memory_add((uintptr_t)p, bytes, true, false);
        if (r != 0) {
                memory_free(p, bytes);
                return leave(r);
        }
        count.allocations++;
        *ret = (uintptr_t)p | DEVICE;
        return leave(CU_OK);
}

cu_result cuMemFree_v2(cu_address p)
{
        uint64_t bytes;

        BEGIN();
        bytes = p & DEVICE ? memory_remove(p & ~DEVICE, true) : 0;
        if (bytes == 0)
                return leave(CU_ERROR_INVALID_VALUE);
        memory_free((void *)(uintptr_t)(p & ~DEVICE), bytes);
        count.allocations--;
        return leave(CU_OK);
}

#ifndef STUB_POOR
cu_result cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags)
{
        int r;

        BEGIN_IN_CONTEXT();
        r = memory_add((uintptr_t)p, bytes, false, flags & CU_HOST_REGISTER_READ_ONLY);
        count.registrations += r == 0;
        return leave(r);
}
#endif

cu_result cuMemHostUnregister(void *p)
{
        BEGIN();
        if (!memory_remove((uintptr_t)p, false))
                return leave(ERROR_NOT_REGISTERED);
        count.registrations--;
        return leave(CU_OK);
}

cu_result cuMemHostGetDevicePointer_v2(cu_address *ret, void *p, unsigned flags)
{
        BEGIN_IN_CONTEXT();
        if (!translate((uintptr_t)p, 1, false, false))
                return leave(CU_ERROR_INVALID_VALUE);
        *ret = (uintptr_t)p | MAPPED;
        return leave(CU_OK);
}

cu_result cuMemcpyAsync(cu_address to, cu_address from, size_t bytes, cu_stream stream)
{
        BEGIN_IN_CONTEXT();
        return leave(stream_add(stream, (struct work){ .kind = WORK_COPY,
                                                       .may_be_pageable = true,
                                                       .copy = { to, from, bytes } }));
}

#ifndef STUB_OLD
/* Performs the copies of a batch in another order than the list's. */
static int batch(cu_address *to, cu_address *from, size_t *bytes, size_t n,
                 struct cu_copy_attributes *attributes, size_t *firsts, size_t n_attributes,
                 cu_stream stream)
{
        if (n == 0 || n_attributes != 1 || firsts[0] != 0 ||
            (attributes->source_access != CU_ACCESS_IN_STREAM_ORDER &&
             attributes->source_access != CU_ACCESS_IN_ANY_ORDER) ||
            (uintptr_t)stream <= STREAM_LEGACY)
                return CU_ERROR_INVALID_VALUE;
        for (size_t i = n; i-- > 0;) {
                int r = stream_add(stream, (struct work){ .kind = WORK_COPY,
                                                          .copy = { to[i], from[i], bytes[i] } });

                if (r != 0)
                        return r;
        }
        return 0;
}

cu_result cuMemcpyBatchAsync_v2(cu_address *to, cu_address *from, size_t *bytes, size_t n,
                                struct cu_copy_attributes *attributes, size_t *firsts,
                                size_t n_attributes, cu_stream stream)
{
        BEGIN_IN_CONTEXT();
        return leave(batch(to, from, bytes, n, attributes, firsts, n_attributes, stream));
}

cu_result cuMemcpyBatchAsync(cu_address *to, cu_address *from, size_t *bytes, size_t n,
                             struct cu_copy_attributes *attributes, size_t *firsts,
                             size_t n_attributes, size_t *ret_failed, cu_stream stream)
{
        BEGIN_IN_CONTEXT();
        return leave(batch(to, from, bytes, n, attributes, firsts, n_attributes, stream));
}
#endif

cu_result cuStreamCreate(cu_stream *ret, unsigned flags)
{
        BEGIN_IN_CONTEXT();
        *ret = stream_new();
        count.streams++;
        return leave(CU_OK);
}

cu_result cuCtxGetStreamPriorityRange(int *ret_least, int *ret_greatest)
{
        BEGIN_IN_CONTEXT();
        *ret_least = 0;
        *ret_greatest = -5;
        return leave(CU_OK);
}

cu_result cuStreamCreateWithPriority(cu_stream *ret, unsigned flags, int priority)
{
        BEGIN_IN_CONTEXT();
        leave(0);
        return cuStreamCreate(ret, flags);
}

/* The work in the stream is carried out first: the real driver frees a stream when its work is
 * done. */
cu_result cuStreamDestroy_v2(cu_stream stream)
{
        struct work *w;

        BEGIN();
        if ((uintptr_t)stream <= STREAM_PER_THREAD || !stream_of(stream))
                return leave(ERROR_INVALID_HANDLE);
        while ((w = TAILQ_FIRST(&stream->work)))
                work_carry_out(stream, w);
        TAILQ_REMOVE(&streams, stream, link);
        free(stream);
        count.streams--;
        return leave(CU_OK);
}

cu_result cuStreamWaitEvent(cu_stream stream, cu_event event, unsigned flags)
{
        BEGIN_IN_CONTEXT();
        return leave(stream_add(
                stream,
                (struct work){ .kind = WORK_WAIT, .event = event, .version = event->recorded }));
}

cu_result cuStreamSynchronize(cu_stream stream)
{
        int r = enter(__func__), capture = capture_check(__func__);
        const struct CUstream_st *s = stream_of(stream);

        if (capture == 0)
                capture = capture_check_stream(stream);
        if (capture != 0)
                return leave(capture);
        if (!s)
                return leave(ERROR_INVALID_HANDLE);
        while (!TAILQ_EMPTY(&s->work))
                if (!step(0))
                        pthread_cond_wait(&changed, &lock);
        return leave(r != 0 ? r : sticky);
}

cu_result cuStreamIsCapturing(cu_stream stream, int *ret_state)
{
        BEGIN_IN_CONTEXT();
        if ((uintptr_t)stream <= STREAM_LEGACY && capture_is_active(NULL))
                return leave(CU_ERROR_CAPTURE_IMPLICIT);
        *ret_state = capture_is_active(stream) ? CU_CAPTURE_STATE_ACTIVE : CU_CAPTURE_STATE_NONE;
        return leave(CU_OK);
}

cu_result cuThreadExchangeStreamCaptureMode(int *mode)
{
        BEGIN();
        *mode = capture_exchange_mode(*mode);
        return leave(CU_OK);
}

cu_result cuEventCreate(cu_event *ret, unsigned flags)
{
        BEGIN_IN_CONTEXT();
        *ret = calloc(1, sizeof(**ret));
        count.events++;
        return leave(CU_OK);
}

cu_result cuEventDestroy_v2(cu_event event)
{
        BEGIN();
        count.events--;
        if (event->refs > 0)
                event->dead = true;
        else
                free(event);
        return leave(CU_OK);
}

cu_result cuEventRecord(cu_event event, cu_stream stream)
{
        BEGIN_IN_CONTEXT();
        event->recorded++;
        return leave(stream_add(
                stream,
                (struct work){ .kind = WORK_RECORD, .event = event, .version = event->recorded }));
}

cu_result cuEventQuery(cu_event event)
{
        BEGIN_IN_CONTEXT();
        return leave(event->done >= event->recorded ? CU_OK : CU_ERROR_NOT_READY);
}

EXPORT cu_result cuEventSynchronize(cu_event event);
cu_result cuEventSynchronize(cu_event event)
{
        int r = enter(__func__), capture = capture_check(__func__);

        if (capture != 0)
                return leave(capture);
        while (event->done < event->recorded)
                if (!step(0))
                        pthread_cond_wait(&changed, &lock);
        return leave(r != 0 ? r : sticky);
}

cu_result cuEventElapsedTime(float *ret_ms, cu_event begin, cu_event end)
{
        BEGIN_IN_CONTEXT();
        if (begin->done == 0 || end->done == 0 || begin->done < begin->recorded ||
            end->done < end->recorded)
                return leave(CU_ERROR_NOT_READY);
        *ret_ms = (float)((double)(end->at.tv_sec - begin->at.tv_sec) * 1e3 +
                          (double)(end->at.tv_nsec - begin->at.tv_nsec) / 1e6);
        return leave(CU_OK);
}

/* Only the tests' engines call this function; the library does not. */
EXPORT cu_result cuLaunchHostFunc(cu_stream stream, void (*run)(void *user), void *user);
cu_result cuLaunchHostFunc(cu_stream stream, void (*run)(void *user), void *user)
{
        BEGIN_IN_CONTEXT();
        return leave(
                stream_add(stream, (struct work){ .kind = WORK_HOST, .host = run, .user = user }));
}

cu_result cuModuleLoadData(cu_module *ret, const void *image)
{
        BEGIN_IN_CONTEXT();
        if (!strstr(image, ".visible .entry kvcache_copy("))
                return leave(CU_ERROR_INVALID_PTX);
        *ret = (cu_module)&primary;
        count.modules++;
        return leave(CU_OK);
}

cu_result cuModuleUnload(cu_module module)
{
        BEGIN();
        count.modules--;
        return leave(CU_OK);
}

cu_result cuModuleGetFunction(cu_function *ret, cu_module module, const char *name)
{
        BEGIN_IN_CONTEXT();
        *ret = (cu_function)&primary;
        return leave(strcmp(name, "kvcache_copy") == 0 ? CU_OK : ERROR_NOT_FOUND);
}

cu_result cuLaunchKernel(cu_function f, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                         unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                         cu_stream stream, void **arguments, void **extra)
{
        uint64_t list;
        uint32_t n;

        BEGIN_IN_CONTEXT();
        memcpy(&list, arguments[0], sizeof(list));
        memcpy(&n, arguments[1], sizeof(n));
        if (grid_x == 0 || grid_x > 4 || block_x == 0 || block_x > 1024 || block_x % 32 != 0)
                return leave(CU_ERROR_INVALID_VALUE);
        return leave(
                stream_add(stream, (struct work){ .kind = WORK_KERNEL, .copy = { 0, list, n } }));
}

#ifndef STUB_OLD
EXPORT cu_result cuGetProcAddress_v2(const char *symbol, void **ret, int version, uint64_t flags,
                                     int *ret_status);
cu_result cuGetProcAddress_v2(const char *symbol, void **ret, int version, uint64_t flags,
                              int *ret_status)
{
        int r = enter(symbol); /* a function that cannot be had: its first call fails */

        leave(0);
        if (r != 0)
                return r;
#ifdef STUB_POOR
        if (strcmp(symbol, "cuMemHostRegister") == 0)
                return ERROR_NOT_FOUND;
#define cuMemHostRegister_v2 NULL
#endif
#define X(member, name, suffix, since, is_needed, parameters)                                      \
        if (strcmp(symbol, #name) == 0 && version == (since)) {                                    \
                *ret = (void *)name##suffix;                                                       \
                return CU_OK;                                                                      \
        }
        CU_FUNCTIONS(X)
#undef X
        return ERROR_NOT_FOUND;
}
#endif
