/* SPDX-License-Identifier: Apache-2.0 */
/* Registers host memory with the driver; see slices.h. */
#include "gpu/slices.h"

#include <time.h>

static struct timespec now(void)
{
        struct timespec t;

        (void)clock_gettime(CLOCK_MONOTONIC, &t);
        return t;
}

/* Sleeps for the time that has passed since `began`. */
static void pause_as_long(struct timespec began)
{
        struct timespec t = now();

        t.tv_sec -= began.tv_sec;
        t.tv_nsec -= began.tv_nsec;
        if (t.tv_nsec < 0) {
                t.tv_sec--;
                t.tv_nsec += 1000000000;
        }
        (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
}

static uint64_t slice_bytes_of(uint64_t bytes)
{
        uint64_t slice = SLICE_LEAST_BYTES;

        while (bytes / slice >= SLICES_MOST)
                slice *= 2;
        return slice;
}

/* Unregisters the slices of the first `bytes` bytes. */
static void unregister_first(const struct driver *d, const struct slices *s, uint64_t bytes,
                             bool pauses)
{
        uint8_t *base = s->base;
        uint64_t at = 0;

        while (at < bytes) {
                uint64_t n = slice_rest((uintptr_t)base + at, bytes - at, s->slice_bytes);
                struct timespec began = now();

                (void)d->host_unregister(base + at);
                at += n;
                if (pauses && at < bytes)
                        pause_as_long(began);
        }
}

/* Registers the slice at `at`. Fails if its device address does not follow that of the slice before
 * it, or if its difference from the host's address is not a multiple of SLICE_LEAST_BYTES. */
static cu_result register_one(const struct driver *d, struct slices *s, uint64_t at, uint64_t bytes,
                              unsigned flags)
{
        uint8_t *base = s->base;
        cu_address device;
        cu_result c;

        c = d->host_register(base + at, bytes, flags);
        if (c != CU_OK)
                return c;
        c = d->host_address(&device, base + at, 0);
        if (c == CU_OK && at == 0)
                s->device = device;
        if (c == CU_OK && (device != s->device + at ||
                           (device - (uintptr_t)(base + at)) % SLICE_LEAST_BYTES != 0))
                c = CU_ERROR_NOT_SUPPORTED;
        if (c != CU_OK)
                (void)d->host_unregister(base + at);
        return c;
}

static cu_result register_in_slices(const struct driver *d, struct slices *s, unsigned flags,
                                    bool pauses)
{
        uint64_t at = 0;

        while (at < s->bytes) {
                uint64_t n = slice_rest((uintptr_t)s->base + at, s->bytes - at, s->slice_bytes);
                struct timespec began = now();
                cu_result c = register_one(d, s, at, n, flags);

                if (c != CU_OK) {
                        unregister_first(d, s, at, pauses);
                        return c;
                }
                at += n;
                if (pauses && at < s->bytes)
                        pause_as_long(began);
        }
        return CU_OK;
}

static cu_result register_at_once(const struct driver *d, struct slices *s, unsigned flags)
{
        cu_result c = d->host_register(s->base, s->bytes, flags);

        if (c != CU_OK)
                return c;
        s->slice_bytes = UINT64_MAX;
        c = d->host_address(&s->device, s->base, 0);
        if (c != CU_OK)
                (void)d->host_unregister(s->base);
        return c;
}

cu_result slices_register(const struct driver *d, struct slices *ret, void *base, uint64_t bytes,
                          unsigned flags, bool pauses)
{
        struct slices s = { .base = base, .bytes = bytes, .slice_bytes = slice_bytes_of(bytes) };
        cu_result c = register_in_slices(d, &s, flags, pauses);

        if (c == CU_ERROR_NOT_SUPPORTED && s.device)
                c = register_at_once(d, &s, flags);
        *ret = c == CU_OK ? s : (struct slices){ 0 };
        return c;
}

void slices_unregister(const struct driver *d, struct slices *s, bool pauses)
{
        if (s->base)
                unregister_first(d, s, s->bytes, pauses);
        *s = (struct slices){ 0 };
}
