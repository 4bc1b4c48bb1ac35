/* SPDX-License-Identifier: Apache-2.0 */
/* Reports chunks that the volume is about to evict; evict.h says when reports are due. The slot of
 * an evicted chunk may be overwritten at once, so a caller that wants to copy a chunk needs the
 * report before the eviction. A chunk that is evicted before the caller reads it is a miss. Loop
 * thread. */
#include "store/volume/internal.h"

struct report {
        const struct volume *volume;
        uint16_t tenant;
        uint32_t place;
        void (*each)(void *userdata, const struct store_leaving *leaving);
        void *userdata;
};

static void report(void *userdata, uint32_t i)
{
        struct report *to = userdata;
        const struct chunk *c = volume_chunk_at(to->volume, i);

        to->place++;
        if (c->pins == 0 && !(c->flags & CHUNK_PENDING) && !sweep_is_dead(to->volume, i))
                to->each(to->userdata,
                         &(struct store_leaving){
                                 .namespace_id = chunk_namespace(to->volume, c),
                                 .tenant = to->tenant,
                                 .key = &c->key,
                                 .hash = key_hash(&to->volume->params.secret,
                                                  chunk_namespace(to->volume, c), &c->key),
                                 .length = c->length,
                                 .place = to->place,
                                 .age_ns = evict_age_ns(to->volume->evict, i),
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

unsigned volume_classes_in_use(const struct volume *v, uint16_t tenant)
{
        uint32_t n_slabs;
        uint64_t slots, used;
        unsigned n = 0;

        for (int i = slabs_group_first(v->slabs, tenant); i >= 0;
             i = slabs_group_next(v->slabs, (unsigned)i)) {
                slabs_class_usage(v->slabs, (unsigned)i, &n_slabs, &slots, &used);
                n += used > 0;
        }
        return n;
}

void volume_next(const struct volume *v, uint16_t tenant, unsigned most, unsigned each_class,
                 void (*each)(void *userdata, const struct store_leaving *leaving), void *userdata)
{
        struct report to = { .volume = v, .tenant = tenant, .each = each, .userdata = userdata };

        for (int i = slabs_group_first(v->slabs, tenant); i >= 0 && most > 0;
             i = slabs_group_next(v->slabs, (unsigned)i)) {
                unsigned n = MIN(each_class, most);

                to.place = 0;
                evict_next(v->evict, (uint32_t)i, n, report, &to);
                most -= MIN(n, to.place);
        }
}
