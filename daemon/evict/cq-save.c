/* SPDX-License-Identifier: Apache-2.0 */
/* Saves and restores the state of the policy of cq.c. Everything restored is validated. */
#include "checked.h"
#include "evict/cq-internal.h"

void cq_save(const struct evict *e, struct evict_learned *ret)
{
        static_assert((int)EVICT_COUNTS == (int)DENSITY_COUNTS, "the same counts");
        while (cq(e)->now >> ret->unit > UINT32_MAX)
                ret->unit++;
        ret->time = cq(e)->time;
        ret->time_unit = cq(e)->time_unit;
        ret->n_counts = DENSITY_COUNTS;
        density_save(&cq(e)->density, ret->counts);
}

void cq_save_item(const struct evict *e, uint32_t item, struct evict_record *ret)
{
        const struct cq_item *i = &cq(e)->items[item];

        ret->touched = i->order;
        ret->time = i->time;
        ret->gap = i->gap;
        ret->flags |= i->yields ? EVICT_RECORD_YIELDS : 0;
        ret->class = i->class;
        ret->uses = i->uses;
        ret->turn = i->turn;
}

uint32_t cq_save_remembered(const struct evict *e, uint32_t *cursor, uint32_t looks,
                            struct evict_record *ret, uint32_t room)
{
        const struct ghosts *g = &cq(e)->ghosts;
        uint32_t n = 0;

        for (; *cursor < g->n_slots && looks > 0 && n < room; looks--, ++*cursor) {
                const struct ghost *ghost = &g->table[*cursor];

                if (ghost->id != 0)
                        ret[n++] = (struct evict_record){ .id = ghost->id,
                                                          .time = ghost->time,
                                                          .class = ghost->class,
                                                          .uses = ghost->uses,
                                                          .turn = ghost->turn,
                                                          .gap = ghost->gap };
        }
        if (*cursor >= g->n_slots)
                *cursor = UINT32_MAX;
        return n;
}

bool cq_restore(struct evict *e, const struct evict_learned *l)
{
        struct cq *q = cq(e);

        if (q->time_unit > l->time_unit || l->n_counts != DENSITY_COUNTS ||
            !density_restore(&q->density, l->counts))
                return false;
        /* Items that are present were last touched before the restored state. */
        for (uint32_t i = 0; i < q->high && l->time_unit > q->time_unit; i++)
                q->items[i].time >>= l->time_unit - q->time_unit;
        q->now = MAX(q->now, l->now);
        q->time_unit = l->time_unit;
        q->time = MAX(q->time, l->time);
        q->learn_at = q->now;
        return true;
}

static bool is_record(const struct cq *q, const struct evict_record *r)
{
        return r->class < CLASSES && r->uses > 0 && r->turn <= EVICT_LAST_TURN &&
               r->time <= cq_clock(q);
}

bool cq_restore_item(struct evict *e, uint32_t item, uint32_t group, const struct evict_record *r)
{
        struct cq *q = cq(e);
        struct cq_item *i = &q->items[item];
        struct ghost ghost;

        if (!is_record(q, r))
                return false;
        (void)ghosts_take(&q->ghosts, r->id, &ghost); /* the item was evicted during the save */
        cq_unlink(q, item);
        i->group = (uint16_t)group;
        cq_stamp(q, i, r->time); /* records come in the order of their touches, which cq_stamp()
                                  * preserves */
        i->gap = r->gap;
        i->yields = (r->flags & EVICT_RECORD_YIELDS) != 0;
        i->class = r->class & 0xf;
        i->is_contended = 0;
        i->uses = MIN(r->uses, (uint8_t)MAX_USES) & 0xf;
        i->turn = r->turn & 0x3;
        cq_append(q, item, group);
        return true;
}

void cq_restore_remembered(struct evict *e, const struct evict_record *r)
{
        struct ghosts *g = &cq(e)->ghosts;
        struct ghost ghost = { .id = r->id,
                               .time = r->time,
                               .class = r->class,
                               .uses = r->uses,
                               .turn = r->turn,
                               .gap = r->gap };
        struct ghost forgotten;

        if (is_record(cq(e), r) && !ghosts_has(g, r->id))
                (void)ghosts_put(g, &ghost, &forgotten);
}
