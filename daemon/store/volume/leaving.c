/* SPDX-License-Identifier: Apache-2.0 */
/* What the volume is about to evict.
 *
 * A slot is written over as soon as its chunk is evicted, so a caller that wants the bytes
 * elsewhere has to know before. Evictions of a class are counted as they happen, which is all that
 * a search for room pays. Every few of them the caller gets the chunks that stand next in the
 * policy's order: more than are evicted until the next report, so that there is time to read them.
 * What is evicted all the same is not found when its turn comes. Loop thread. */
#include "store/volume/internal.h"

void volume_note_eviction(struct volume *v, unsigned class)
{
        uint32_t *until = &v->until_report[class];

        if (*until == EVICT_REPORT_DUE)
                return;
        if (*until == 0)
                v->report_due = true;
        --*until; /* from 0 on: it is due */
}

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
                to->each(to->userdata, &(struct store_leaving){
                                               .namespace_id = c->namespace_id,
                                               .tenant = to->tenant,
                                               .key = &c->key,
                                               .hash = key_hash(&to->volume->params.secret,
                                                                c->namespace_id, &c->key),
                                               .length = c->length,
                                               .chance = evict_chance(to->volume->evict, i),
                                       });
}

void volume_report_leaving(struct volume *v,
                           void (*each)(void *userdata, const struct store_leaving *leaving),
                           void *userdata)
{

        if (!v->report_due)
                return;
        v->report_due = false;
        for (unsigned i = 0; i < slabs_class_count(v->slabs); i++)
                if (v->until_report[i] == EVICT_REPORT_DUE) {
                        struct report to = { .volume = v,
                                             .tenant = (uint16_t)slabs_class_group(v->slabs, i),
                                             .each = each,
                                             .userdata = userdata };
                        uint32_t n_slabs, interval;
                        uint64_t slots, used;

                        slabs_class_usage(v->slabs, i, &n_slabs, &slots, &used);
                        interval = evict_leaving_interval(used);
                        v->until_report[i] = interval - 1;
                        evict_next(v->evict, i, 2 * interval, report, &to);
                }
}
