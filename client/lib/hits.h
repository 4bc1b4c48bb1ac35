/* SPDX-License-Identifier: Apache-2.0 */
/* Answers gets of chunks in memory from the tenant's pool index, without a message to the
 * daemon. See proto/pool-index.h. */
#pragma once

#include "lib/handle.h"
#include "lib/resolve.h"

/* Answers a get if all of its keys can be answered here, and sets the results. Returns false if the
 * daemon must be asked. `keys` may be resolved already, as for submit(), and may be passed to
 * submit() afterwards. */
bool hits_answer(struct kvcache *kv, const struct kvcache_request *user, struct resolved *keys);
/* Requests the pool index from the daemon, unless the session has it, has asked already, was
 * refused shortly before, has too few hits in memory, or may not use the index. */
void hits_want(struct kvcache *kv);
