/* SPDX-License-Identifier: Apache-2.0 */
/* The tenant's pool index as mapped by this session, and the page through which the session
 * holds chunks; see proto/pool-index.h. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/handle.h"

/* The state of one key of a get while the pool index answers it. */
struct hit {
        uint64_t hash;
        struct pool_index_entry entry;
        uint32_t record;
        unsigned at;     /* next position to search in the key's buckets */
        uint32_t place;  /* place of the hold in the page */
        uint64_t offset; /* start of the requested bytes in the pool */
        uint32_t length;
        struct kvcache_lease lease;
};

/* Returns seconds of a clock that never goes back, without a system call. */
int64_t holds_now_s(void);
/* Maps the index and the page from the reply to POOL_INDEX. The caller keeps the descriptors. If
 * the daemon refused, or a file cannot be used, the next request is made REFUSED_S (holds.c) later
 * at the earliest. */
void holds_map(struct kvcache *kv, const struct wire_reply *reply, int fd, int page_fd);
/* Unmaps the index and the page. The caller has made sure that no chunk is held. */
void holds_fini(struct hits *h);

/* Takes a hold on a chunk, or another reference to an existing hold; `*ret` is its place. The
 * caller then issues a fence before it reads the record again. Returns false if the chunk's bucket
 * is full. */
bool holds_take(struct hits *h, uint32_t record, uint32_t length, uint32_t *ret);
/* Releases one reference that holds_take() took. */
void holds_release(struct hits *h, uint32_t place);
/* Releases the hold of a lease that the library issued itself, in this session or an ended one. */
void holds_release_lease(struct conn *conn, const struct lease_row *row);
