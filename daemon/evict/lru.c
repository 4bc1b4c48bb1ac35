/* SPDX-License-Identifier: Apache-2.0 */
/* Least recently used: one list per group, whose old end is the victim. Leaf first follows from the
 * order of touches: a chain is touched from its end to its root, so that its end is the oldest and
 * is evicted first.
 *
 * Runs on the loop thread. The lists are threaded through one array by item number, 12 bytes per
 * item, which become resident only as items appear. The ends of a list identify its group. Cannot
 * fail once created.
 *
 * The time of a touch is a 32-bit number. Before it would overflow, all times are halved and then
 * count pairs of touches, later fours: one pass over the items whenever the total number of touches
 * has doubled. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/pages.h"
#include "checked.h"
#include "evict/links.h"
#include "evict/policy.h"
#include "warm.h"
#include "evict/evict.h"

/* An item. Links are as in links.h; the number of a list is its group. */
struct lru_item {
        uint32_t older, younger;
        uint32_t touched; /* number of the last touch, in units of 2^unit touches */
};
static_assert(sizeof(struct lru_item) == 12, "there is one for each chunk");

enum { LRU_MAX_GROUPS = UINT16_MAX - 1 };

struct lru_group {
        uint32_t oldest, youngest; /* links; in an empty list both are the list's end */
};

struct lru {
        struct evict evict;
        uint64_t now;
        unsigned unit;
        uint32_t high; /* all items ever inserted have numbers below this */
        struct lru_item *items;
        struct lru_group groups[];
};

static struct lru *lru(const struct evict *e)
{
        return (struct lru *)e;
}

static int lru_new(struct evict **ret, uint32_t max_items, uint32_t max_groups)
{
        struct lru *l;

        if (max_groups > LRU_MAX_GROUPS || max_items >= LINK_END)
                return -EINVAL;
        l = calloc(1, sizeof(*l) + max_groups * sizeof(l->groups[0]));
        if (!l)
                return -ENOMEM;
        l->items = calloc(max_items, sizeof(l->items[0]));
        if (!l->items) {
                free(l);
                return -ENOMEM;
        }
        pages_wish_huge(l->items, max_items * sizeof(l->items[0]));
        for (uint32_t i = 0; i < max_groups; i++)
                l->groups[i] =
                        (struct lru_group){ .oldest = LINK_END | i, .youngest = LINK_END | i };
        *ret = &l->evict;
        return 0;
}

static void lru_free(struct evict *e)
{
        free(lru(e)->items);
        free(lru(e));
}

/* Return the field that names the younger or older neighbour of the item or list end that a link
 * refers to. */
static uint32_t *younger_of(struct lru *l, uint32_t link)
{
        return link & LINK_END ? &l->groups[link & ~LINK_END].oldest : &l->items[link - 1].younger;
}

static uint32_t *older_of(struct lru *l, uint32_t link)
{
        return link & LINK_END ? &l->groups[link & ~LINK_END].youngest : &l->items[link - 1].older;
}

static void lru_unlink(struct lru *l, uint32_t item)
{
        const struct lru_item *i = &l->items[item];

        *younger_of(l, i->older) = i->younger;
        *older_of(l, i->younger) = i->older;
}

static uint32_t lru_tick(struct lru *l)
{
        if (++l->now >> l->unit > UINT32_MAX) {
                l->unit++;
                for (uint32_t i = 0; i < l->high; i++)
                        if (l->items[i].older != 0)
                                l->items[i].touched /= 2;
        }
        return (uint32_t)(l->now >> l->unit);
}

static void lru_put_youngest(struct lru *l, uint32_t item, uint32_t group, uint32_t touched)
{
        uint32_t older = l->groups[group].youngest;

        l->items[item] = (struct lru_item){ .older = older,
                                            .younger = LINK_END | group,
                                            .touched = touched };
        *younger_of(l, older) = item + 1;
        l->groups[group].youngest = item + 1;
}

static void lru_make_oldest(struct evict *e, uint32_t item, uint32_t group)
{
        struct lru *l = lru(e);
        uint32_t younger;

        lru_unlink(l, item);
        younger = l->groups[group].oldest;
        l->items[item].older = LINK_END | group;
        l->items[item].younger = younger;
        *older_of(l, younger) = item + 1;
        l->groups[group].oldest = item + 1;
}

static void lru_append(struct lru *l, uint32_t item, uint32_t group)
{
        lru_put_youngest(l, item, group, lru_tick(l));
}

static void lru_insert(struct evict *e, uint32_t item, uint32_t group, uint32_t bytes, uint64_t id,
                       uint32_t use, unsigned place)
{
        lru(e)->high = MAX(lru(e)->high, item + 1);
        lru_append(lru(e), item, group);
}

static void lru_refresh(struct evict *e, uint32_t item, uint32_t group)
{
        lru_unlink(lru(e), item);
        lru_append(lru(e), item, group);
}

static void lru_touch(struct evict *e, uint32_t item, uint32_t group, uint32_t use)
{
        lru_refresh(e, item, group);
}

/* Prefetches the item in step 0, and its neighbours in step 1. */
static void lru_warm(const struct evict *e, uint32_t item, unsigned step)
{
        const struct lru *l = lru(e);
        const struct lru_item *i = &l->items[item];

        if (step == 0) {
                warm(i, 1);
                return;
        }
        if (i->older == 0)
                return;
        if (!(i->older & LINK_END))
                warm(&l->items[i->older - 1], 1);
        if (!(i->younger & LINK_END))
                warm(&l->items[i->younger - 1], 1);
}

static void lru_populate(const struct evict *e, uint32_t from, uint32_t to)
{
        pages_populate(&lru(e)->items[from], (uint64_t)(to - from) * sizeof(struct lru_item));
}

static void lru_unpopulate(const struct evict *e, uint32_t from)
{
        pages_unpopulate(&lru(e)->items[from],
                         (uint64_t)(e->max_items - from) * sizeof(struct lru_item));
}

static void lru_remove(struct evict *e, uint32_t item, uint64_t id)
{
        lru_unlink(lru(e), item);
        lru(e)->items[item] = (struct lru_item){ 0 };
}

static bool lru_contains(const struct evict *e, uint32_t item)
{
        return lru(e)->items[item].older != 0;
}

static uint32_t lru_victim(struct evict *e, uint32_t group,
                           bool (*may_evict)(void *userdata, uint32_t item), void *userdata,
                           uint32_t max_passed)
{
        const struct lru *l = lru(e);
        uint32_t passed = 0;

        for (uint32_t link = l->groups[group].oldest; !(link & LINK_END);
             link = l->items[link - 1].younger) {
                if (!may_evict || may_evict(userdata, link - 1))
                        return link - 1;
                if (passed++ == max_passed)
                        break;
        }
        return EVICT_NONE;
}

static uint32_t lru_first(const struct evict *e, uint32_t list)
{
        return link_item(lru(e)->groups[list].oldest);
}

static uint32_t lru_after(const struct evict *e, uint32_t item)
{
        return link_item(lru(e)->items[item].younger);
}

static uint64_t lru_touched(const struct evict *e, uint32_t item)
{
        return (uint64_t)lru(e)->items[item].touched << lru(e)->unit;
}

static uint64_t lru_now(const struct evict *e)
{
        return lru(e)->now;
}

static void lru_explain(const struct evict *e, uint32_t item, uint32_t group,
                        struct evict_standing *ret)
{
        *ret = (struct evict_standing){
                .class = EVICT_CLASS_RECENCY,
                .age = lru(e)->now - MIN(lru(e)->now, lru_touched(e, item)),
                .is_next = lru(e)->groups[group].oldest == item + 1,
        };
}

static void lru_save(const struct evict *e, struct evict_learned *ret)
{
        ret->unit = lru(e)->unit;
}

static void lru_save_item(const struct evict *e, uint32_t item, struct evict_record *ret)
{
        ret->touched = lru(e)->items[item].touched;
}

static bool lru_restore(struct evict *e, const struct evict_learned *l)
{
        struct lru *to = lru(e);

        if (to->unit > l->unit)
                return false;
        for (uint32_t i = 0; i < to->high && l->unit > to->unit; i++)
                to->items[i].touched >>= l->unit - to->unit;
        to->unit = l->unit;
        to->now = MAX(to->now, l->now);
        return true;
}

static bool lru_restore_item(struct evict *e, uint32_t item, uint32_t group,
                             const struct evict_record *r)
{
        struct lru *l = lru(e);

        if (r->touched > l->now >> l->unit)
                return false;
        lru_unlink(l, item);
        lru_put_youngest(l, item, group, r->touched);
        return true;
}

static void lru_get_stats(const struct evict *e, struct evict_stats *ret)
{
        ret->item_bytes = sizeof(struct lru_item);
}

const struct evict_policy evict_policy_lru = {
        .name = "lru",
        .new = lru_new,
        .free = lru_free,
        .insert = lru_insert,
        .touch = lru_touch,
        .refresh = lru_refresh,
        .make_oldest = lru_make_oldest,
        .demote = lru_make_oldest,
        .promote = lru_refresh,
        .warm = lru_warm,
        .populate = lru_populate,
        .unpopulate = lru_unpopulate,
        .remove = lru_remove,
        .contains = lru_contains,
        .victim = lru_victim,
        .touched = lru_touched,
        .order = lru_touched,
        .now = lru_now,
        .explain = lru_explain,
        .lists = 1,
        .first = lru_first,
        .after = lru_after,
        .get_stats = lru_get_stats,
        .save = lru_save,
        .save_item = lru_save_item,
        .restore = lru_restore,
        .restore_item = lru_restore_item,
};
