/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of a request, as the library processes them. For an operation that moves bytes, every
 * entry is read, checked and located once, and later code uses the result. The keys of other
 * operations are read from the program's arrays when they are needed. */
#pragma once

#include "key.h"
#include "lib/request.h"

/* Resolves all keys of `user` for the current session, unless they are resolved for it. Buffers
 * that the keys name are registered again if this session does not have them. Returns 0, -ENOMEM,
 * or -errno if the request cannot be sent. */
int resolve(struct kvcache *kv, const struct kvcache_request *user, struct resolved *r);
/* Return entry `i`, of which only the members up to `cost_us` may be read (ABI_ENTRY_MIN), and key
 * `i` of a request. Both point into the program's arrays, which are valid during the call only. */
static inline const struct kvcache_entry *resolved_entry(const struct kvcache_request *user,
                                                         size_t i)
{
        return abi_at(user->entries, user->entry_size, i);
}
static inline const struct kvcache_key *resolved_key(const struct kvcache_request *user, size_t i)
{
        return user->entries ? &resolved_entry(user, i)->key : &user->keys[i];
}
/* Returns KVCACHE_OK if key `i` can be sent, otherwise its final status; see
 * resolved_key.status. */
static inline int resolved_status(const struct resolved *r, const struct kvcache_request *user,
                                  size_t i)
{
        const struct kvcache_entry *e;
        struct key key;

        if (r->keys)
                return r->keys[i].status;
        if (user->op == KVCACHE_OP_GIVE_BACK)
                return user->loans[i].session == r->session && user->loans[i].generation != 0
                               ? KVCACHE_OK
                               : KVCACHE_STALE;
        memcpy(&key, resolved_key(user, i), sizeof(key));
        if (key_is_root(&key))
                return KVCACHE_INVALID;
        if (!user->entries || user->op != KVCACHE_OP_GET)
                return KVCACHE_OK;
        e = resolved_entry(user, i);
        if ((user->flags & KVCACHE_LEND) && (e->range_offset != 0 || e->range_length != 0))
                return KVCACHE_INVALID;
        return e->range_offset > UINT32_MAX || e->range_length > UINT32_MAX ? KVCACHE_INVALID
                                                                            : KVCACHE_OK;
}
/* Moves the contents of `r` to the returned structure and leaves `r` empty. */
static inline struct resolved resolved_take(struct resolved *r)
{
        struct resolved taken = *r;

        *r = (struct resolved){ 0 };
        return taken;
}
