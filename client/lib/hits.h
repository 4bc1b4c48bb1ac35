/* SPDX-License-Identifier: Apache-2.0 */
/* The tenant's pool index as this session has it: gets of chunks that are in memory, answered
 * without a word to the daemon. See pool-index.h of proto. */
#pragma once

#include "lib/handle.h"
#include "lib/resolve.h"

/* A get, if all of its keys can be got here: the results are set. False: the daemon is to be asked.
 * `keys`: as of submit(), which may be given them afterwards. */
bool hits_answer(struct kvcache *kv, const struct kvcache_request *user, struct resolved *keys);
/* Asks for the index, unless it is too early or too late for it. */
void hits_want(struct kvcache *kv);
