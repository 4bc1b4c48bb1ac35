/* SPDX-License-Identifier: Apache-2.0 */
/* Drops expired chunks on all volumes; volume/expire.c decides which chunks have expired. An
 * expired chunk is dropped at once if a request asks for its key, and otherwise when the walk of
 * store_expire_step() reaches it. Loop thread. An expired chunk on an offline volume is not found,
 * and is dropped once the volume is resumed. */
#include "store/internal.h"

bool store_expire(struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash,
                  uint64_t born_after_ms)
{
        struct store_ref ref;
        bool any = false;

        /* drops every chunk of the key, because another volume may have an older one */
        while (store_find(s, namespace_id, key, hash, &ref, NULL) == 0 &&
               volume_expire(s->volumes[store_volume_of(ref)].volume, ref, born_after_ms))
                any = true;
        return any;
}

bool store_expire_step(struct store *s, uint64_t now_ms, uint64_t *expired)
{
        unsigned i = s->expire_volume;

        while (i < s->n_volumes && !member_is_up(s, i))
                i++;
        if (i < s->n_volumes && !volume_expire_step(s->volumes[i].volume, now_ms, expired))
                i++;
        s->expire_volume = i < s->n_volumes ? i : 0;
        return i < s->n_volumes;
}

uint64_t store_records(const struct store *s)
{
        uint64_t records = 0;

        for (unsigned i = 0; i < s->n_volumes; i++)
                if (member_is_up(s, i))
                        records += volume_records(s->volumes[i].volume);
        return records;
}
