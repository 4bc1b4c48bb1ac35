/* SPDX-License-Identifier: Apache-2.0 */
/* Least recently used, a list a group. Leaf first comes from the order of the touches: a chain is
 * touched from its end to its root, so its end is the oldest of it and goes first.
 *
 * Runs on the loop thread. The lists are threaded through one array by item number: 16 bytes an
 * item, touched by the machine only as items appear. Nothing fails after it was made. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "policy.h"

/* `group` is one more than the group, so that zeroed memory says "not in". 2^48 touches are nine
 * years at a million a second. */
struct lru_item {
        uint32_t older, younger;
        uint64_t touched : 48;
        uint64_t group : 16;
};
static_assert(sizeof(struct lru_item) == 16, "there is one for each chunk");

enum { LRU_MAX_GROUPS = UINT16_MAX - 1 };

struct lru_group {
        uint32_t oldest, youngest;
};

struct lru {
        struct evict evict;
        uint64_t now;
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

        if (max_groups > LRU_MAX_GROUPS)
                return -EINVAL;
        l = calloc(1, sizeof(*l) + max_groups * sizeof(l->groups[0]));
        if (!l)
                return -ENOMEM;
        l->items = calloc(max_items, sizeof(l->items[0]));
        if (!l->items) {
                free(l);
                return -ENOMEM;
        }
        for (uint32_t i = 0; i < max_groups; i++)
                l->groups[i] = (struct lru_group){ .oldest = EVICT_NONE, .youngest = EVICT_NONE };
        *ret = &l->evict;
        return 0;
}

static void lru_free(struct evict *e)
{
        free(lru(e)->items);
        free(lru(e));
}

static void lru_unlink(struct lru *l, uint32_t item)
{
        struct lru_item *i = &l->items[item];
        struct lru_group *g = &l->groups[i->group - 1];

        if (i->older == EVICT_NONE)
                g->oldest = i->younger;
        else
                l->items[i->older].younger = i->younger;
        if (i->younger == EVICT_NONE)
                g->youngest = i->older;
        else
                l->items[i->younger].older = i->older;
}

static void lru_append(struct lru *l, uint32_t item)
{
        struct lru_item *i = &l->items[item];
        struct lru_group *g = &l->groups[i->group - 1];

        i->older = g->youngest;
        i->younger = EVICT_NONE;
        i->touched = ++l->now;
        if (g->youngest == EVICT_NONE)
                g->oldest = item;
        else
                l->items[g->youngest].younger = item;
        g->youngest = item;
}

static void lru_insert(struct evict *e, uint32_t item, uint32_t group, uint32_t bytes)
{
        lru(e)->items[item].group = group + 1;
        lru_append(lru(e), item);
}

static void lru_touch(struct evict *e, uint32_t item)
{
        lru_unlink(lru(e), item);
        lru_append(lru(e), item);
}

static void lru_remove(struct evict *e, uint32_t item)
{
        lru_unlink(lru(e), item);
        lru(e)->items[item] = (struct lru_item){ 0 };
}

static bool lru_contains(const struct evict *e, uint32_t item)
{
        return lru(e)->items[item].group != 0;
}

static uint32_t lru_victim(struct evict *e, uint32_t group,
                           bool (*may_evict)(void *userdata, uint32_t item), void *userdata,
                           uint32_t max_passed)
{
        const struct lru *l = lru(e);
        uint32_t passed = 0;

        for (uint32_t i = l->groups[group].oldest; i != EVICT_NONE; i = l->items[i].younger) {
                if (!may_evict || may_evict(userdata, i))
                        return i;
                if (passed++ == max_passed)
                        break;
        }
        return EVICT_NONE;
}

static uint64_t lru_touched(const struct evict *e, uint32_t item)
{
        return lru(e)->items[item].touched;
}

static uint64_t lru_now(const struct evict *e)
{
        return lru(e)->now;
}

const struct evict_policy evict_policy_lru = {
        .name = "lru",
        .new = lru_new,
        .free = lru_free,
        .insert = lru_insert,
        .touch = lru_touch,
        .remove = lru_remove,
        .contains = lru_contains,
        .victim = lru_victim,
        .touched = lru_touched,
        .now = lru_now,
};
