/* SPDX-License-Identifier: Apache-2.0 */
/* Reports chunks that the volume is about to evict; evict.h says when reports are due. A slot is
 * overwritten as soon as its chunk is evicted, so a caller that wants to copy the bytes must know
 * in advance. If the chunk is evicted before the caller reads it, it is not found. Loop thread. */
#include "store/volume/internal.h"

struct report {
        struct volume *volume;
        uint16_t tenant;
        void (*each)(void *userdata, const struct store_leaving *leaving);
        void *userdata;
};

static void report(void *userdata, uint32_t i)
{
        struct report *to = userdata;
        const struct chunk *c = volume_chunk_at(to->volume, i);

        if (c->pins == 0 && !(c->flags & CHUNK_PENDING) && !sweep_is_dead(to->volume, i))
                to->each(to->userdata,
                         &(struct store_leaving){
                                 .namespace_id = chunk_namespace(to->volume, c),
                                 .tenant = to->tenant,
                                 .key = &c->key,
                                 .hash = key_hash(&to->volume->params.secret,
                                                  chunk_namespace(to->volume, c), &c->key),
                                 .length = c->length,
                                 .chance = evict_chance(to->volume->evict, i),
                         });
}

void volume_report_leaving(struct volume *v,
                           void (*each)(void *userdata, const struct store_leaving *leaving),
                           void *userdata)
{

        if (!evict_reports_are_due(v->evict))
                return;
        for (unsigned i = 0; i < slabs_class_count(v->slabs); i++) {
                struct report to = { .volume = v,
                                     .tenant = (uint16_t)slabs_class_group(v->slabs, i),
                                     .each = each,
                                     .userdata = userdata };
                uint32_t n_slabs;
                uint64_t slots, used;

                slabs_class_usage(v->slabs, i, &n_slabs, &slots, &used);
                evict_report_leaving(v->evict, i, used, report, &to);
        }
}
