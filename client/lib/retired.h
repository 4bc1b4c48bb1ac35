/* SPDX-License-Identifier: Apache-2.0 */
/* Whose memory is it: sessions that have ended, and what still hangs on them (rule R17). */
#pragma once

#include "lib/handle.h"

/* kv->conn becomes one of the ended sessions. */
void retired_add(struct kvcache *kv);
/* Frees the parts of ended sessions that are not needed any more. */
void retired_collect(struct kvcache *kv);
/* Does a request that is not answered, of this session or of one that has ended, name memory in
 * [data, data + bytes)? */
bool retired_uses(struct kvcache *kv, const void *data, uint64_t bytes);
