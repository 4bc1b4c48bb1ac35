/* SPDX-License-Identifier: Apache-2.0 */
/* The copy engine: a list of copies between device memory and memory that the driver maps, put into
 * a stream in the way that is fastest for their size.
 *
 *   bounce  many small pieces from host memory in which they lie side by side: long copies by the
 *           copy engines into device memory, and one launch that scatters them from there
 *   kernel  many small pieces: one launch reads or writes mapped host memory
 *   batch   larger pieces: one call of the driver's batch copy, by its copy engines
 *   plain   one asynchronous copy each
 *
 * What fails is tried in the next way, in this order. Copies are idempotent: those that a failed
 * way has put into the stream already do no harm.
 *
 * A launch that reads the bus holds its multiprocessors for as long as the bus takes; one that
 * scatters within the device, for a fraction of that. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/driver.h"
#include "kvcache-gpu.h"

/* As copy.cu has it. */
struct copy {
        cu_address to, from;
        uint64_t bytes;
};

#define ENGINE_NO_SLOT UINT_MAX

enum {
        ENGINE_MAX_COPIES = 16384, /* in a list */
        ENGINE_SPLIT = 16 * 1024,  /* a warp's share: longer copies are several of the kernel's */
        ENGINE_KERNEL_COPIES = ENGINE_MAX_COPIES + 4096,
        ENGINE_BOUNCE_PARTS = 2,
        /* Measured: below, the batch call is bound by its cost of each copy. */
        ENGINE_KERNEL_BELOW = 64 * 1024,
};

struct engine {
        const struct driver *d;
        cu_module module;
        cu_function kernel; /* NULL: cannot be used */
        uint32_t max_sms;
        enum kvcache_gpu_engine forced; /* KVCACHE_GPU_ENGINE_AUTO: by size */
        int source_access; /* when the batch call may read: CU_ACCESS_IN_STREAM_ORDER, or
                              CU_ACCESS_IN_ANY_ORDER of sources that do not change */
        struct copy *host; /* the slots' lists, registered with the driver */
        cu_address device; /* their copies there */
        bool registered;
        unsigned n_slots;
        /* Device memory, a part for each stream that bounces; 0: none. */
        cu_address bounce;
        uint64_t bounce_part_bytes;
        struct copy *runs, *rest; /* scratch: into a part, and from there */
        uint64_t bounces;         /* copies into a part */
        /* Arguments of the batch call. */
        cu_address *to, *from;
        size_t *bytes;
        struct kvcache_gpu_counts counts;
};

/* In the current context. A kernel that cannot be loaded is no failure, nor are fewer than
 * `bounce_bytes` of device memory. 0; -ENOMEM. */
int engine_init(struct engine *ret, const struct driver *d, enum kvcache_gpu_engine forced,
                uint32_t max_sms, unsigned n_slots, uint64_t bounce_bytes);
void engine_fini(struct engine *e);
/* Does it take the kernel for what the kernel is best at? */
bool engine_has_kernel(const struct engine *e);
/* Puts them into the stream; those that touch at both ends become one, in place. `slot` is not used
 * by a list that may still be under way; with ENGINE_NO_SLOT, the kernel takes no part. Not
 * `is_mapped`: the host's side is not known to the driver, which copies it plainly. `part`: this
 * stream's, of copies to the device; < 0: they do not bounce. CU_OK, or the last way's error. */
cu_result engine_copy(struct engine *e, unsigned slot, cu_stream stream, struct copy *list,
                      size_t n, bool is_mapped, int part);
