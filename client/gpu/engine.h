/* SPDX-License-Identifier: Apache-2.0 */
/* The copy engine: a list of copies between device memory and memory that the driver maps, put into
 * a stream in the way that is fastest for their size.
 *
 *   kernel  many small pieces: one launch reads or writes mapped host memory
 *   batch   larger pieces: one call of the driver's batch copy, by its copy engines
 *   plain   one asynchronous copy each
 *
 * What fails is tried in the next way, in this order. Copies are idempotent: those that a failed
 * way has put into the stream already do no harm. */
#pragma once

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

enum {
        ENGINE_MAX_COPIES = 16384, /* in a list */
        ENGINE_SPLIT = 16 * 1024,  /* a warp's share: longer copies are several of the kernel's */
        ENGINE_KERNEL_COPIES = ENGINE_MAX_COPIES + 4096,
};

struct engine {
        const struct driver *d;
        cu_module module;
        cu_function kernel; /* NULL: cannot be used */
        uint32_t max_sms;
        enum kvcache_gpu_engine forced; /* KVCACHE_GPU_ENGINE_AUTO: by size */
        struct copy *host;              /* the slots' lists, registered with the driver */
        cu_address device;              /* their copies there */
        bool registered;
        unsigned n_slots;
        /* Arguments of the batch call. */
        cu_address *to, *from;
        size_t *bytes;
        struct kvcache_gpu_counts counts;
};

/* In the current context. A kernel that cannot be loaded is no failure. 0; -ENOMEM. */
int engine_init(struct engine *ret, const struct driver *d, enum kvcache_gpu_engine forced,
                uint32_t max_sms, unsigned n_slots);
void engine_fini(struct engine *e);
/* Does it take the kernel for what the kernel is best at? */
bool engine_has_kernel(const struct engine *e);
/* Puts them into the stream; those that touch at both ends become one, in place. `slot` is not used
 * by a list that may still be under way. Not `is_mapped`: the host's side is not known to the
 * driver, which copies it plainly. CU_OK, or the last way's error. */
cu_result engine_copy(struct engine *e, unsigned slot, cu_stream stream, struct copy *list,
                      size_t n, bool is_mapped);
