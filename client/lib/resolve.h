/* SPDX-License-Identifier: Apache-2.0 */
/* A request's keys as the library works on them. Of an operation that moves bytes, every entry is
 * read, checked and located once, on the way in, and this is what is used from then on. Of the
 * others the keys are used as they lie in the program's arrays: there is nothing to keep of them.
 */
#pragma once

#include "key.h"
#include "lib/request.h"

/* Resolves all keys of `user` for the session that is up, unless they are. Regions that it names
 * and this session does not have are registered again. 0; -ENOMEM; -errno: the request cannot go
 * out.
 */
int resolve(struct kvcache *kv, const struct kvcache_request *user, struct resolved *r);
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
/* Hands it over; `r` is empty then. */
static inline struct resolved resolved_take(struct resolved *r)
{
        struct resolved taken = *r;

        *r = (struct resolved){ 0 };
        return taken;
}
