/* SPDX-License-Identifier: Apache-2.0 */
/* Batches: consecutive blocks of an operation, on their way out of GPU memory or into it. */
#pragma once

#include "gpu/gpu.h"

/* Block `i` of the operation has its status. */
void block_judge(struct operation *op, size_t i, int status);
/* Begins a batch with the next blocks of the operation. There is an idle one. False: no part of the
 * staging memory is free. */
bool batch_begin_put(struct kvcache_gpu *gpu, struct operation *op);
bool batch_begin_get(struct kvcache_gpu *gpu, struct operation *op);
/* Goes on with a batch as far as can be now. True: something has changed. */
bool batch_step(struct kvcache_gpu *gpu, struct batch *b);
