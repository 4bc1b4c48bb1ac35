/* SPDX-License-Identifier: Apache-2.0 */
/* A request's keys as the library works on them. Of an operation that moves bytes, every entry is
 * read, checked and located once, on the way in, and this is what is used from then on. Of the
 * others the keys are used as they lie in the program's arrays: there is nothing to keep of them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "key.h"
#include "kvcache.h"
#include "lib/abi.h"
#include "lib/message.h"

/* One stretch of a key's bytes, or of the room for them. */
struct resolved_piece {
        void *data;
        uint64_t bytes;
        struct place place; /* of it, where the key is shared */
};

struct resolved_key {
        int status;         /* KVCACHE_OK, or what becomes of a key that the daemon never sees */
        bool shared;        /* all of its bytes are in memory that the daemon maps, too */
        uint32_t n_pieces;  /* 1 or more */
        size_t first_piece; /* in resolved.pieces */
        uint64_t bytes;     /* of the pieces together */
};

struct resolved {
        uint64_t session; /* in which `place` and `status` hold; 0: nothing is resolved */
        size_t count;
        struct resolved_key *keys; /* owned, as one allocation with the pieces; NULL: the operation
                                      moves no bytes */
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
/* Entry `i`, as far as the first version has it, and key `i` of a request, in the program's arrays:
 * during the call only. */
static inline const struct kvcache_entry *resolved_entry(const struct kvcache_request *user,
                                                         size_t i)
{
        return abi_at(user->entries, user->entry_size, i);
}
static inline const struct kvcache_key *resolved_key(const struct kvcache_request *user, size_t i)
{
        return user->entries ? &resolved_entry(user, i)->key : &user->keys[i];
}
/* What becomes of key `i`, as resolved_key.status. */
static inline int resolved_status(const struct resolved *r, const struct kvcache_request *user,
                                  size_t i)
{
        const struct kvcache_entry *e;
        struct key key;

        if (r->keys)
                return r->keys[i].status;
        memcpy(&key, resolved_key(user, i), sizeof(key));
        if (key_is_root(&key))
                return KVCACHE_INVALID;
        if (!user->entries || user->op != KVCACHE_OP_GET)
                return KVCACHE_OK;
        e = resolved_entry(user, i);
        return e->range_offset > UINT32_MAX || e->range_length > UINT32_MAX ? KVCACHE_INVALID
                                                                            : KVCACHE_OK;
}
/* Hands it over; `r` is empty then. */
static inline struct resolved resolved_take(struct resolved *r)
{
        struct resolved taken = *r;

        *r = (struct resolved){ 0 };
        return taken;
}
