/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatches evict.h to the chosen policy of a table. A new policy is one more source file and one
 * more row.
 *
 * This file also keeps retained items from being victims, for all policies. A policy has a second
 * group for each group of its owner, which contains the retained items and is searched only if no
 * other item is left. After these groups it has one group for each lot.
 *
 * Runs on the loop thread. An item or group out of range, and an item inserted or removed twice,
 * are bugs of the caller, and asserted here for all policies. */
#include "evict/evict.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "evict/gap.h"
#include "evict/policy.h"

static const struct evict_policy *const policies[] = {
        &evict_policy_lru,
        &evict_policy_cq,
};

static const struct evict_policy *policy_find(const char *name)
{
        for (size_t i = 0; i < ARRAY_SIZE(policies); i++)
                if (strcmp(policies[i]->name, name) == 0)
                        return policies[i];
        return NULL;
}

bool evict_policy_exists(const char *policy)
{
        return policy_find(policy) != NULL;
}

const char *evict_policy_name(const char *policy)
{
        return policy_find(policy)->name;
}

uint32_t evict_policy_groups(uint32_t max_groups)
{
        return 2 * max_groups + EVICT_LOTS;
}

int evict_new(struct evict **ret, const char *policy, uint32_t max_items, uint32_t max_groups)
{
        const struct evict_policy *p = policy_find(policy);
        uint8_t *retained, *aside, *demoted;
        uint32_t *until_report;
        struct evict *e;
        int r;

        if (!p || max_items == 0 || max_items == EVICT_NONE || max_groups == 0 ||
            max_groups > UINT32_MAX / 2 - EVICT_LOTS)
                return -EINVAL;
        retained = calloc(max_items / 8 + 1, 1);
        aside = calloc(max_items / 8 + 1, 1);
        demoted = calloc(max_items / 8 + 1, 1);
        until_report = calloc(max_groups, sizeof(*until_report));
        r = retained && aside && demoted && until_report
                    ? p->new (&e, max_items, evict_policy_groups(max_groups))
                    : -ENOMEM;
        if (r < 0) {
                free(retained);
                free(aside);
                free(demoted);
                free(until_report);
                return r;
        }
        e->policy = p;
        e->retained.bits = retained;
        e->aside.bits = aside;
        e->demoted.bits = demoted;
        e->until_report = until_report;
        e->max_items = max_items;
        e->max_groups = max_groups;
        *ret = e;
        return 0;
}

struct evict *evict_free(struct evict *e)
{
        if (e) {
                free(e->retained.bits);
                free(e->aside.bits);
                free(e->demoted.bits);
                free(e->until_report);
                e->policy->free(e);
        }
        return NULL;
}

static bool is_marked(const struct evict_marks *m, uint32_t item)
{
        return m->n > 0 && m->bits[item / 8] & 1u << item % 8;
}

static void mark(struct evict_marks *m, uint32_t item, bool marked)
{
        if (is_marked(m, item) == marked)
                return;
        m->bits[item / 8] ^= (uint8_t)(1u << item % 8);
        m->n += marked ? 1 : UINT32_MAX;
}

bool evict_is_retained(const struct evict *e, uint32_t item)
{
        return is_marked(&e->retained, item);
}

/* Returns the group in which the policy keeps an item of the owner's `group`: the group itself, or
 * its second group if the item is retained. */
static uint32_t group_of(const struct evict *e, uint32_t item, uint32_t group)
{
        assert(group < e->max_groups);
        return evict_is_retained(e, item) ? e->max_groups + group : group;
}

bool evict_is_aside(const struct evict *e, uint32_t item)
{
        return is_marked(&e->aside, item);
}

bool evict_is_demoted(const struct evict *e, uint32_t item)
{
        return is_marked(&e->demoted, item);
}

bool evict_demote(struct evict *e, uint32_t item, uint32_t group)
{
        assert(evict_contains(e, item));
        if (evict_is_retained(e, item) || evict_is_aside(e, item) || evict_is_demoted(e, item))
                return false;
        mark(&e->demoted, item, true);
        e->policy->demote(e, item, group_of(e, item, group));
        return true;
}

bool evict_promote(struct evict *e, uint32_t item, uint32_t group)
{
        assert(evict_contains(e, item));
        if (!evict_is_demoted(e, item))
                return false;
        mark(&e->demoted, item, false);
        mark(&e->aside, item, false);
        e->policy->promote(e, item, group_of(e, item, group));
        return true;
}

void evict_spare(struct evict *e, uint32_t item, uint32_t group)
{
        assert(evict_contains(e, item));
        mark(&e->demoted, item, false);
        mark(&e->aside, item, false);
        e->policy->promote(e, item, group_of(e, item, group));
}

uint32_t evict_demoted(const struct evict *e)
{
        return e->demoted.n;
}

unsigned evict_cost_level(uint64_t ns, uint32_t bytes)
{
        double least = 0.05, each = (double)ns / MAX(bytes, 1U), level;

        if (ns == 0)
                return EVICT_COST_UNKNOWN;
        level = 1 + round(2 * log2(each / least));
        return (unsigned)MIN(MAX(level, 1.0), (double)(EVICT_COSTS - 1));
}

void evict_set_cost(struct evict *e, uint32_t item, unsigned level)
{
        assert(evict_contains(e, item) && level < EVICT_COSTS);
        if (e->policy->set_cost)
                e->policy->set_cost(e, item, level);
}

unsigned evict_cost(const struct evict *e, uint32_t item)
{
        assert(evict_contains(e, item));
        return e->policy->cost ? e->policy->cost(e, item) : EVICT_COST_UNKNOWN;
}

void evict_retain(struct evict *e, uint32_t item, uint32_t group, bool retained)
{
        assert(evict_contains(e, item));
        if (evict_is_retained(e, item) == retained)
                return;
        (void)evict_promote(e, item, group);
        mark(&e->retained, item, retained);
        mark(&e->aside, item, false);
        e->policy->refresh(e, item, group_of(e, item, group));
}

bool evict_contains(const struct evict *e, uint32_t item)
{
        return item < e->max_items && e->policy->contains(e, item);
}

bool evict_remembers(const struct evict *e, uint64_t id)
{
        assert(id != 0);
        return e->policy->remembers && e->policy->remembers(e, id);
}

static void insert(struct evict *e, uint32_t item, uint32_t group, uint32_t bytes, uint64_t id,
                   uint32_t use, enum evict_place place)
{
        assert(item < e->max_items && group < e->max_groups);
        assert(!e->policy->contains(e, item));
        e->policy->insert(e, item, group, bytes, id, use, place);
}

void evict_insert(struct evict *e, uint32_t item, uint32_t group, uint32_t bytes)
{
        insert(e, item, group, bytes, 0, EVICT_NO_USE, EVICT_PLACE_UNKNOWN);
}

void evict_insert_known(struct evict *e, uint32_t item, uint32_t group, uint32_t bytes, uint64_t id,
                        uint32_t use, enum evict_place place)
{
        assert(id != 0);
        insert(e, item, group, bytes, id, use, place);
}

void evict_touch(struct evict *e, uint32_t item, uint32_t group, uint32_t use)
{
        assert(evict_contains(e, item));
        mark(&e->aside, item, false);
        e->policy->touch(e, item, group_of(e, item, group), use);
        (void)evict_promote(e, item, group); /* after the change of group, because it makes the item
                                              * the youngest */
}

void evict_set_aside(struct evict *e, uint32_t item, unsigned lot)
{
        assert(evict_contains(e, item) && lot < EVICT_LOTS);
        if (evict_is_aside(e, item))
                return;
        mark(&e->aside, item, true);
        e->policy->make_oldest(e, item, 2 * e->max_groups + lot);
}

void evict_bring_back(struct evict *e, uint32_t item, uint32_t group)
{
        assert(evict_contains(e, item));
        if (!evict_is_aside(e, item))
                return;
        mark(&e->aside, item, false);
        e->policy->make_oldest(e, item, group_of(e, item, group));
}

uint32_t evict_each_aside(struct evict *e, unsigned lot,
                          void (*each)(void *userdata, uint32_t item), void *userdata)
{
        uint32_t lists = e->policy->lists, visited = 0;

        assert(lot < EVICT_LOTS);
        for (uint32_t i = 0; e->aside.n > 0 && i < lists; i++) {
                uint32_t item = e->policy->first(e, (2 * e->max_groups + lot) * lists + i);

                for (uint32_t next; item != EVICT_NONE; item = next, visited++) {
                        next = e->policy->after(e, item);
                        each(userdata, item);
                }
        }
        return visited;
}

bool evict_lot_is_empty(const struct evict *e, unsigned lot)
{
        uint32_t lists = e->policy->lists;

        assert(lot < EVICT_LOTS);
        for (uint32_t i = 0; e->aside.n > 0 && i < lists; i++)
                if (e->policy->first(e, (2 * e->max_groups + lot) * lists + i) != EVICT_NONE)
                        return false;
        return true;
}

void evict_set_turn(struct evict *e, uint32_t item, uint32_t group, uint32_t use, unsigned turn,
                    bool is_end)
{
        assert(evict_contains(e, item) && turn > 0);
        evict_bring_back(e, item, group);
        if (e->policy->set_turn)
                e->policy->set_turn(e, item, group_of(e, item, group), use,
                                    MIN(turn, (unsigned)EVICT_LAST_TURN), is_end);
}

unsigned evict_turn(const struct evict *e, uint32_t item, uint32_t use)
{
        assert(evict_contains(e, item));
        return e->policy->turn ? e->policy->turn(e, item, use) : 1;
}

uint8_t evict_chain_gap(const struct evict *e, uint32_t item, uint32_t use,
                        struct evict_return *ret)
{
        struct evict_return unused;

        assert(evict_contains(e, item));
        ret = ret ?: &unused;
        *ret = (struct evict_return){ 0 };
        return e->policy->chain_gap ? e->policy->chain_gap(e, item, use, ret) : EVICT_NO_GAP;
}

uint8_t evict_remembered_gap(const struct evict *e, uint64_t id, struct evict_return *ret)
{
        struct evict_return unused;

        assert(id != 0);
        ret = ret ?: &unused;
        *ret = (struct evict_return){ .is_evicted = true };
        return e->policy->remembered_gap ? e->policy->remembered_gap(e, id, ret) : EVICT_NO_GAP;
}

double evict_gap_seconds(uint8_t gap)
{
        return gap_seconds(gap);
}

uint8_t evict_gap(const struct evict *e, uint32_t item)
{
        assert(evict_contains(e, item));
        return e->policy->gap ? e->policy->gap(e, item) : EVICT_NO_GAP;
}

void evict_set_gap(struct evict *e, uint32_t item, uint8_t gap)
{
        assert(evict_contains(e, item));
        if (e->policy->set_gap && gap != EVICT_NO_GAP)
                e->policy->set_gap(e, item, gap);
}

void evict_admit_all(struct evict *e, bool all)
{
        e->admits_all = all;
}

bool evict_gives_way(const struct evict *e, uint32_t item)
{
        assert(evict_contains(e, item));
        return e->policy->yields && e->policy->yields(e, item);
}

void evict_serve(struct evict *e, uint32_t use)
{
        e->served = use;
}

bool evict_wants_chains(const struct evict *e)
{
        return e->policy->link != NULL;
}

void evict_link(struct evict *e, uint32_t item, uint32_t parent)
{
        assert(evict_contains(e, item) && evict_contains(e, parent));
        if (e->policy->link)
                e->policy->link(e, item, parent);
}

uint32_t evict_parent(const struct evict *e, uint32_t item)
{
        return evict_contains(e, item) && e->policy->parent ? e->policy->parent(e, item)
                                                            : EVICT_NONE;
}

bool evict_hint(struct evict *e, uint32_t item, enum evict_hint hint)
{
        assert(evict_contains(e, item) && hint != EVICT_HINT_NONE);
        return e->policy->hint ? e->policy->hint(e, item, hint) : true;
}

/* An item that is demoted or in a lot is left there, because a promise would move it to another
 * list. A promised item may be the next victim from now on, so it must be reported before the next
 * evictions. */
void evict_promise(struct evict *e, uint32_t item, const struct evict_promise *promise)
{
        assert(evict_contains(e, item));
        if (!e->policy->promise || evict_is_aside(e, item) || evict_is_demoted(e, item) ||
            !e->policy->promise(e, item, promise))
                evict_hint(e, item, evict_hint_return(promise->seconds));
        else
                evict_hasten_report(e, e->policy->group(e, item));
}

void evict_expect(struct evict *e, uint32_t use, const struct evict_promise *promise)
{
        e->expected_use = promise ? use : EVICT_NO_USE;
        if (promise)
                e->expected = *promise;
}

void evict_warm(const struct evict *e, uint32_t item, unsigned step)
{
        if (item < e->max_items)
                e->policy->warm(e, item, step);
}

void evict_populate(const struct evict *e, uint32_t from, uint32_t to)
{
        to = MIN(to, e->max_items);
        if (from < to)
                e->policy->populate(e, from, to);
}

void evict_populate_ahead(struct evict *e, bool on)
{
        if (e->policy->populate_ahead)
                e->policy->populate_ahead(e, on);
}

void evict_unpopulate(const struct evict *e, uint32_t from)
{
        if (from < e->max_items)
                e->policy->unpopulate(e, from);
}

void evict_remove(struct evict *e, uint32_t item)
{
        assert(evict_contains(e, item));
        mark(&e->retained, item, false);
        mark(&e->aside, item, false);
        mark(&e->demoted, item, false);
        e->policy->remove(e, item, 0);
}

void evict_remove_victim(struct evict *e, uint32_t item, uint64_t id)
{
        assert(evict_contains(e, item) && id != 0);
        mark(&e->retained, item, false);
        mark(&e->aside, item, false);
        e->demoted_victims += evict_is_demoted(e, item);
        e->policy->remove(e, item, id);
        mark(&e->demoted, item, false);
}

uint32_t evict_victim(struct evict *e, uint32_t group,
                      bool (*may_evict)(void *userdata, uint32_t item), void *userdata,
                      uint32_t max_passed)
{
        assert(group < e->max_groups);
        return e->policy->victim(e, group, may_evict, userdata, max_passed);
}

uint32_t evict_retained_victim(struct evict *e, uint32_t group,
                               bool (*may_evict)(void *userdata, uint32_t item), void *userdata,
                               uint32_t max_passed)
{
        assert(group < e->max_groups);
        return e->retained.n == 0 ? EVICT_NONE
                                  : e->policy->victim(e, e->max_groups + group, may_evict, userdata,
                                                      max_passed);
}

uint64_t evict_touched(const struct evict *e, uint32_t item)
{
        return evict_contains(e, item) ? e->policy->touched(e, item) : 0;
}

void evict_note_time(struct evict *e, uint64_t now_ns)
{
        ages_note(&e->ages, e->policy->now(e), now_ns);
        if (e->policy->advance)
                e->policy->advance(e);
}

uint64_t evict_age_ns(const struct evict *e, uint32_t item)
{
        assert(evict_contains(e, item));
        return e->ages.now_ns - ages_time(&e->ages, e->policy->touched(e, item), e->policy->now(e));
}

bool evict_is_worth_less(struct evict *e, uint32_t item, const struct evict_promise *promise)
{
        struct evict_promise expected = e->expected;
        bool is_less;

        assert(evict_contains(e, item));
        if (!e->policy->is_worth_less)
                return evict_age_ns(e, item) / 1000000000 > promise->seconds;
        e->expected = *promise;
        is_less = e->policy->is_worth_less(e, item);
        e->expected = expected;
        return is_less;
}

double evict_slab_gain(const struct evict *e, uint32_t victim, uint32_t slots, bool by_recency)
{
        return 0.8 * slots * evict_worth(e, victim, by_recency);
}

double evict_worth(const struct evict *e, uint32_t item, bool by_recency)
{
        assert(evict_contains(e, item));
        if (by_recency || !e->policy->worth)
                return 1.0 / (double)(e->policy->now(e) - e->policy->touched(e, item) + 1);
        return e->policy->worth(e, item);
}

double evict_chance(const struct evict *e, uint32_t item)
{
        assert(evict_contains(e, item));
        return e->policy->chance ? e->policy->chance(e, item) : 0;
}

void evict_explain(const struct evict *e, uint32_t item, uint32_t group, struct evict_standing *ret)
{
        assert(evict_contains(e, item) && group < e->max_groups);
        *ret = (struct evict_standing){ 0 };
        e->policy->explain(e, item, group, ret);
        ret->is_retained = evict_is_retained(e, item);
        ret->cost = evict_cost(e, item);
}

void evict_get_stats(const struct evict *e, struct evict_stats *ret)
{
        *ret = (struct evict_stats){ .demoted = e->demoted.n,
                                     .demoted_victims = e->demoted_victims };
        e->policy->get_stats(e, ret);
}

void evict_add_stats(struct evict_stats *sum, const struct evict_stats *one)
{
        sum->ghosts += one->ghosts;
        sum->ghosts_max += one->ghosts_max;
        sum->ghost_hits += one->ghost_hits;
        sum->yielded += one->yielded;
        sum->demoted += one->demoted;
        sum->demoted_victims += one->demoted_victims;
        sum->fork_bytes += one->fork_bytes;
        sum->ghost_bytes = one->ghost_bytes;
        sum->item_bytes = one->item_bytes;
}

uint64_t evict_touches(const struct evict *e)
{
        return e->policy->now(e);
}

void evict_save(const struct evict *e, struct evict_learned *ret)
{
        *ret = (struct evict_learned){ .now = e->policy->now(e) };
        e->policy->save(e, ret);
}

void evict_save_item(const struct evict *e, uint32_t item, uint64_t id, struct evict_record *ret)
{
        assert(evict_contains(e, item) && id != 0);
        *ret = (struct evict_record){
                .id = id,
                .flags = (uint8_t)((evict_is_retained(e, item) ? EVICT_RECORD_RETAINED : 0) |
                                   evict_cost(e, item) << EVICT_RECORD_COST),
        };
        e->policy->save_item(e, item, ret);
        if (evict_is_demoted(e, item)) /* a demoted item is not restored as such: the owner decides
                                        * again after the restart */
                ret->flags &= (uint8_t)~EVICT_RECORD_YIELDS;
}

uint32_t evict_save_remembered(const struct evict *e, uint32_t *cursor, uint32_t looks,
                               struct evict_record *ret, uint32_t room)
{
        if (e->policy->save_remembered && *cursor != UINT32_MAX)
                return e->policy->save_remembered(e, cursor, looks, ret, room);
        *cursor = UINT32_MAX;
        return 0;
}

bool evict_restore(struct evict *e, const struct evict_learned *l)
{
        /* Times in this unit must fit 32 bits. */
        if (l->unit > 31 || l->now >> l->unit > UINT32_MAX || l->time_unit > 31 ||
            l->time >> l->time_unit > UINT32_MAX)
                return false;
        return e->policy->restore(e, l);
}

void evict_restore_remembered(struct evict *e, const struct evict_record *r)
{
        if (r->id != 0 && e->policy->restore_remembered)
                e->policy->restore_remembered(e, r);
}

bool evict_restore_item(struct evict *e, uint32_t item, uint32_t group,
                        const struct evict_record *r)
{
        assert(evict_contains(e, item));
        evict_bring_back(e, item, group);
        if (r->id == 0 || !e->policy->restore_item(e, item, group_of(e, item, group), r))
                return false;
        evict_set_cost(e, item, r->flags >> EVICT_RECORD_COST);
        return true;
}

void evict_restore_rest(struct evict *e, bool (*is_new)(void *userdata, uint32_t item),
                        void *userdata)
{
        for (uint32_t list = 0; list < 2 * e->max_groups * e->policy->lists; list++) {
                uint32_t item = e->policy->first(e, list), end = EVICT_NONE, next;

                /* Stop at the first refreshed item, which has moved to the end of the list. */
                for (; item != EVICT_NONE && item != end; item = next) {
                        next = e->policy->after(e, item);
                        if (!is_new(userdata, item))
                                continue;
                        e->policy->refresh(e, item, list / e->policy->lists);
                        if (end == EVICT_NONE)
                                end = item;
                        if (next == EVICT_NONE)
                                break;
                }
        }
}

const char *evict_policy(const struct evict *e)
{
        return e->policy->name;
}
