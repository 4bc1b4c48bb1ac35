/* SPDX-License-Identifier: Apache-2.0 */
/* Lifetimes over all volumes; volume/expire.c decides which chunks have expired. An expired chunk
 * is dropped at once if a request asks for its key, and otherwise when the walk reaches it. Loop
 * thread. A chunk on an offline volume is not found, and expires once the volume is back. */
#include "store/internal.h"

bool store_expire(struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash,
                  uint64_t born_after_ms)
{
        struct store_ref ref;
        bool any = false;

        /* another volume may have another chunk of the key */
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
