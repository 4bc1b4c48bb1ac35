/* SPDX-License-Identifier: Apache-2.0 */
/* A request's keys as the library works on them: every entry is read, checked and located once, on
 * the way in, and this is what is used from then on. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvcache.h"
#include "lib/message.h"

/* One stretch of a key's bytes, or of the room for them. */
struct resolved_piece {
        void *data;
        uint64_t bytes;
        struct place place; /* of it, where the key is shared */
};

struct resolved_key {
        const struct kvcache_key *key; /* the program's: during the call only */
        int status;         /* KVCACHE_OK, or what becomes of a key that the daemon never sees */
        bool shared;        /* all of its bytes are in memory that the daemon maps, too */
        uint32_t n_pieces;  /* PUT, GET_INTO: 1 or more */
        size_t first_piece; /* in resolved.pieces */
        uint64_t bytes;     /* of the pieces together */
        uint32_t range_offset, range_length;
};

struct resolved {
        uint64_t session; /* in which `place` and `status` hold; 0: nothing is resolved */
        size_t count;
        struct resolved_key *keys; /* owned, as one allocation with the pieces */
        struct resolved_piece *pieces;
        bool needs_staging; /* some bytes of a put are in no shared memory: they are copied there */
        bool all_shared;    /* each key that a message will name is */
        int refused;        /* 0, or -errno: the daemon did not take a region again */
};

/* Resolves all keys of `user` for the session that is up, unless they are. Regions that it names
 * and this session does not have are registered again. 0; -ENOMEM; -errno: the request cannot go
 * out.
 */
int resolve(struct kvcache *kv, const struct kvcache_request *user, struct resolved *r);
void resolved_fini(struct resolved *r);
/* Hands it over; `r` is empty then. */
static inline struct resolved resolved_take(struct resolved *r)
{
        struct resolved taken = *r;

        *r = (struct resolved){ 0 };
        return taken;
}
