/* SPDX-License-Identifier: Apache-2.0 */
/* The copy engine puts copies from or to device memory into a stream, a list at a time, and chooses
 * the method that is fastest for their size. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/driver.h"
#include "kvcache-gpu.h"

/* A copy, with the layout that copy.cu uses. */
struct copy {
        cu_address to, from;
        uint64_t bytes;
};

#define ENGINE_NO_SLOT UINT_MAX

enum {
        ENGINE_MAX_COPIES = 16384, /* copies in a list */
        ENGINE_EDGES = 1024, /* further entries of a list, because copies are cut at the ends of
                                slices (slices.h) */
        ENGINE_ROOM = ENGINE_MAX_COPIES + ENGINE_EDGES,
        ENGINE_SPLIT = 16 * 1024, /* bytes per warp; the kernel splits longer copies */
        /* Entries of a slot's list, after long copies were split. */
        ENGINE_KERNEL_COPIES = ENGINE_ROOM + 3072,
        ENGINE_BOUNCE_PARTS = 2,
        /* Bytes of a copy below which, by measurement, the driver's batch call is bound by its cost
         * of each copy. */
        ENGINE_KERNEL_BELOW = 64 * 1024,
        /* Bytes of a copy below which, by measurement, copies through bounce memory take their
         * caller less time than a batch call, and are no slower. */
        ENGINE_BOUNCE_BELOW = 1024 * 1024,
};

struct engine {
        const struct driver *d;
        cu_module module;
        cu_function kernel; /* NULL if the kernel cannot be used */
        uint32_t max_sms;
        enum kvcache_gpu_engine forced; /* KVCACHE_GPU_ENGINE_AUTO chooses by size */
        int source_access; /* when the batch call may read: CU_ACCESS_IN_STREAM_ORDER, or
                              CU_ACCESS_IN_ANY_ORDER of sources that do not change */
        struct copy *host; /* lists of the slots, registered with the driver */
        cu_address device; /* copies of these lists in device memory */
        bool registered;
        unsigned n_slots;
        /* Bounce memory: device memory to which contiguous runs of host memory are copied first,
         * and from which the copies are then made within the device. A part for each stream that
         * uses it; 0: none. */
        cu_address bounce;
        uint64_t bounce_part_bytes;
        struct copy *runs, *rest; /* scratch lists: copies from host memory into a part of the
                                     bounce memory, and out of the part */
        uint64_t bounces;         /* number of copies into parts of the bounce memory */
        /* Arguments of the driver's batch call. */
        cu_address *to, *from;
        size_t *bytes;
        struct kvcache_gpu_counts counts;
};

/* Initializes an engine in the current context. It is no failure if the kernel cannot be loaded, or
 * if less than `bounce_bytes` of device memory is available. Returns 0 or -ENOMEM. */
int engine_init(struct engine *ret, const struct driver *d, enum kvcache_gpu_engine forced,
                uint32_t max_sms, unsigned n_slots, uint64_t bounce_bytes);
void engine_fini(struct engine *e);
/* Returns whether the kernel can be used, and no method without the kernel is forced. */
bool engine_has_kernel(const struct engine *e);
/* Returns whether the engine uses the kernel for many copies to the device whose sources form
 * contiguous runs of `run_bytes` in host memory, `per_run` copies in each. */
bool engine_prefers_kernel(const struct engine *e, uint64_t run_bytes, uint64_t per_run);
/* Puts copies into the stream. Adjacent copies are merged, and copies that cross the end of a slice
 * are cut, in place: the list has ENGINE_ROOM entries. `slot` must not belong to a list that may
 * still be in progress; with ENGINE_NO_SLOT, the kernel is not used. If `is_mapped` is false, the
 * host memory is not registered with the driver, and the engine makes the copies one by one. `part`
 * is this stream's part for bouncing copies to the device, or negative if they must not bounce.
 * Returns CU_OK, or the error of the last method tried. */
cu_result engine_copy(struct engine *e, unsigned slot, cu_stream stream, struct copy *list,
                      size_t n, bool is_mapped, int part);
/* Returns the enum kvcache_transfer_technology of the copies made since the engine had the
 * counts `before`. `*ret_operations` gets the number of operations that the driver was given, at
 * least 1: each entry of a batch call counts, and a launch of the kernel counts as one. Copies into
 * bounce memory, and of the kernel's lists, do not count. */
uint32_t engine_technology(const struct engine *e, const struct kvcache_gpu_counts *before,
                           uint64_t *ret_operations);
