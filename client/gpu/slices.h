/* SPDX-License-Identifier: Apache-2.0 */
/* Registers host memory with the driver in slices.
 *
 * The driver takes a lock while it registers or unregisters memory: 10 GiB take seconds, in which
 * no other thread of the process can launch anything. A slice takes milliseconds, and after each
 * one a caller may pause, so that an engine that computes meanwhile gets its turns.
 *
 * A copy engine of the device must not cross the end of a slice. All ends are at addresses that are
 * multiples of SLICE_LEAST_BYTES, where engine.c cuts the copies. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "gpu/driver.h"

enum {
        SLICE_LEAST_BYTES = 16 * 1024 * 1024,
        SLICES_MOST = 1024, /* maximum number of slices; larger memory has larger slices */
};

/* Registered memory; all zero if none is registered. */
struct slices {
        void *base;
        uint64_t bytes;
        uint64_t slice_bytes; /* distance between the ends of slices, except the last end;
                                 UINT64_MAX: the memory was registered in one piece */
        cu_address device;    /* device address of the first byte */
};

/* Returns the bytes from `address`, of `bytes` in all, up to the next end that a slice may have. */
static inline uint64_t slice_rest(uint64_t address, uint64_t bytes, uint64_t slice_bytes)
{
        uint64_t rest = slice_bytes - address % slice_bytes;

        return rest < bytes ? rest : bytes;
}

/* Registers all of the memory or nothing. With `pauses`, it sleeps after each slice as long as the
 * slice took. Memory is registered in one piece if the device would otherwise not see its slices as
 * one range, at the host's addresses plus a multiple of SLICE_LEAST_BYTES. Returns CU_OK, or the
 * driver's error; `*ret` is then all zero. */
cu_result slices_register(const struct driver *d, struct slices *ret, void *base, uint64_t bytes,
                          unsigned flags, bool pauses);
void slices_unregister(const struct driver *d, struct slices *s, bool pauses);
