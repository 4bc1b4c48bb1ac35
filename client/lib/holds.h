/* SPDX-License-Identifier: Apache-2.0 */
/* The tenant's pool index as this session has it, and the page by which it holds chunks; see
 * pool-index.h of proto. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/handle.h"

/* A key of a request that is answered by the index. */
struct hit {
        uint64_t hash;
        struct pool_index_entry entry;
        uint32_t record;
        unsigned at;     /* how far its buckets have been searched */
        uint32_t place;  /* of the hold */
        uint64_t offset; /* of what is wanted of it, in the pool */
        uint32_t length;
        struct kvcache_lease lease;
};

/* Seconds of a clock that never goes back, without a system call. */
int64_t holds_now_s(void);
/* The answer to POOL_INDEX; the descriptors stay the caller's. */
void holds_map(struct kvcache *kv, const struct wire_reply *reply, int fd, int page_fd);
/* Nothing is held any more. */
void holds_fini(struct hits *h);

/* A place where the chunk is held, from now on if it was not: a fence has to follow before the
 * record is looked at again. False: its bucket is full. */
bool holds_take(struct hits *h, uint32_t record, uint32_t length, uint32_t *ret);
/* Once for each of these. */
void holds_release(struct hits *h, uint32_t place);
/* Of a lease that is none of the daemon's: of this session, or of one that has ended. */
void holds_release_lease(struct conn *conn, const struct lease_row *row);
