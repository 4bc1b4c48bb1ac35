/* SPDX-License-Identifier: Apache-2.0 */
/* The items that are evicted next, and the reports of them; see evict.h. */
#include <assert.h>

#include "checked.h"
#include "evict/evict.h"
#include "evict/policy.h"

enum { MAX_LISTS = 72 }; /* most lists per group of any policy */
#define REPORT_DUE UINT32_MAX

/* An item that may be evicted next from a group. */
struct next {
        uint32_t item;
        uint32_t until; /* item of the same list before which a visit ends, or EVICT_NONE */
        double worth;
        uint64_t order;
};

/* Returns an item with its worth. Items that give way have less than any other worth, because they
 * are evicted first. */
static struct next next_of(const struct evict *e, uint32_t item, uint32_t until)
{
        if (item == EVICT_NONE || item == until)
                return (struct next){ .item = EVICT_NONE };
        return (struct next){ .item = item,
                              .until = until,
                              .worth = evict_gives_way(e, item) ? -1 : evict_worth(e, item, false),
                              .order = e->policy->order(e, item) };
}

static bool is_before(const struct next *a, const struct next *b)
{
        return a->worth < b->worth || (a->worth == b->worth && a->order < b->order);
}

/* Advances to the next promised item: the next one of the same promise, or the end of the chain of
 * the next promise. one->item is EVICT_NONE after the last one. */
static void next_promised(const struct evict *e, struct evict_promised *left, struct next *one)
{
        if (one->item != EVICT_NONE)
                one->item = e->policy->after(e, one->item);
        if (one->item == EVICT_NONE && left->from < left->to)
                one->item = e->policy->next_promised(e, left, &one->worth);
        if (one->item != EVICT_NONE)
                one->order = e->policy->order(e, one->item);
}

/* Promised items are visited as one more list, which consists of the chains of all promises. A list
 * that has a low() item is visited from there and from its first item, which ends at the former. */
void evict_next(const struct evict *e, uint32_t group, uint32_t n,
                void (*each)(void *userdata, uint32_t item), void *userdata)
{
        struct next oldest[2 * MAX_LISTS + 1];
        uint32_t lists = e->policy->lists, heads = lists;
        struct evict_promised promised = { 0 };
        uint32_t (*first)(const struct evict *, uint32_t) =
                e->policy->first_victim ?: e->policy->first;
        uint32_t (*after)(const struct evict *, uint32_t) =
                e->policy->victim_after ?: e->policy->after;

        assert(group < e->max_groups && lists <= MAX_LISTS);
        for (uint32_t i = 0; i < lists; i++) {
                uint32_t list = group * lists + i;
                uint32_t low = e->policy->low ? e->policy->low(e, list) : EVICT_NONE;

                oldest[i] = next_of(e, first(e, list), low);
                if (low != EVICT_NONE)
                        oldest[heads++] = next_of(e, low, EVICT_NONE);
        }
        oldest[heads] = (struct next){ .item = EVICT_NONE };
        if (e->policy->promised)
                promised = e->policy->promised(e, group);
        next_promised(e, &promised, &oldest[heads]);
        while (n-- > 0) {
                uint32_t least = heads + 1;

                for (uint32_t i = 0; i <= heads; i++)
                        if (oldest[i].item != EVICT_NONE &&
                            (least > heads || is_before(&oldest[i], &oldest[least])))
                                least = i;
                if (least > heads)
                        return;
                each(userdata, oldest[least].item);
                if (least < heads)
                        oldest[least] =
                                next_of(e, after(e, oldest[least].item), oldest[least].until);
                else
                        next_promised(e, &promised, &oldest[least]);
        }
}

void evict_note_leaving(struct evict *e, uint32_t group)
{
        assert(group < e->max_groups);
        if (e->until_report[group] == REPORT_DUE)
                return;
        if (e->until_report[group] > 1) {
                e->until_report[group]--;
                return;
        }
        e->until_report[group] = REPORT_DUE;
        e->reports_due++;
}

void evict_hasten_report(struct evict *e, uint32_t group)
{
        if (group >= e->max_groups || e->until_report[group] == 0 ||
            e->until_report[group] == REPORT_DUE)
                return;
        e->until_report[group] = REPORT_DUE;
        e->reports_due++;
}

bool evict_reports_are_due(const struct evict *e)
{
        return e->reports_due > 0;
}

/* The interval is at most a sixteenth of the group, so that reported items are near the end of
 * their stay. */
void evict_report_leaving(struct evict *e, uint32_t group, uint64_t items,
                          void (*each)(void *userdata, uint32_t item), void *userdata)
{
        uint32_t interval = (uint32_t)MIN(items / 16 + 1, UINT64_C(128));

        assert(group < e->max_groups);
        if (e->until_report[group] != REPORT_DUE)
                return;
        e->reports_due--;
        e->until_report[group] = interval;
        evict_next(e, group, 2 * interval, each, userdata);
}
