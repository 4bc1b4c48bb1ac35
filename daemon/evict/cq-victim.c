/* SPDX-License-Identifier: Apache-2.0 */
/* The search for a victim in the policy of cq.c, and the worth of items.
 *
 * The worth of a slot in a group is the mean worth of its last victims. A new item whose worth is
 * below that, and below that of the last victim, gives way: it is evicted before all others, by the
 * next search that may evict it. The mean is slow, because a moment with nothing worthless at the
 * old ends would otherwise cost new items their place. A victim that is not of a quick chain counts
 * as worthless here: only a chain known to return soon may keep a new item out. */
#include <math.h>
#include <stddef.h>

#include "checked.h"
#include "evict/cq-internal.h"

/* The mean price is a moving average over n / PRICE_SHARE searches, where n is the number of items
 * present. */
enum { PRICE_SHARE = 6 };
/* Most items of one promise that a search examines. The items of a chain that was just put are
 * promised late and still being written, and must not use up the search's passes. */
enum { PROMISE_TRIES = 4 };
/* Most items by which a search moves the second candidate of a list, which passes an item at most
 * once between two uses of it. */
enum { LOW_STEPS = 32 };

/* The candidate of one list in a search for a victim. */
struct old_end {
        uint32_t link;
        float density;
        uint64_t stamp; /* cq_stamp_of() of the item */
};

/* Returns the class by which an item is judged. Until the class of a hint or of a gap is known, its
 * items count as if they had no hint, or no gap. Inline, like the next two functions, because a
 * call would make a search for a victim 40 ns slower. */
static inline unsigned judged_class(const struct cq *q, const struct cq_item *i)
{
        unsigned class = i->class;

        if (class >= FIRST_HINT && class < FINAL && !q->density.is_known[class])
                class = cq_class_of(i->uses, cq_place_of(i->turn), i->gap);
        if (class >= FIRST_GAP && !q->density.is_known[class])
                class = cq_class_of(i->uses, EVICT_PLACE_UNKNOWN, GAP_UNKNOWN);
        return class;
}

/* Returns the item at a link as the candidate of its list. An item of the use `spared` counts as
 * the end of the list, because the items younger than it are mostly of the same use. */
static inline struct old_end old_end_at(const struct cq *q, uint32_t link, uint32_t spared)
{
        struct old_end end = { .link = link };
        unsigned class;

        if (link & LINK_END)
                return end;
        if (cq_is_of_use(q, &q->items[link - 1], spared)) {
                end.link = LINK_END;
                return end;
        }
        end.stamp = cq_stamp_of(&q->items[link - 1]);
        class = judged_class(q, &q->items[link - 1]);
        end.density = density_at(&q->density, class, cq_age(q, &q->items[link - 1])) *
                      q->weight[q->items[link - 1].cost];
        return end;
}

/* Returns the list whose end is worth least, or YIELDING if all lists are exhausted. Among ends
 * that are worth the same, prefers that of a list of FINAL items, and then the older one. */
static inline unsigned worth_least(const struct old_end ends[static YIELDING], unsigned lists)
{
        unsigned least = YIELDING;

        for (unsigned list = 0; list < lists; list++) {
                const struct old_end *a = &ends[list], *b = &ends[least % YIELDING];

                if (a->link & LINK_END)
                        continue;
                if (least == YIELDING || a->density < b->density ||
                    (a->density == b->density && (list % CLASSES == FINAL || a->stamp < b->stamp)))
                        least = list;
        }
        return least;
}

/* Returns whether the class of a list is known and younger items of it are worth less than the
 * oldest one. If the oldest item is older than twice the longest mean gap of its class, its usual
 * return is overdue, and a rise of the density up to its age rests on a few chains. */
static inline bool find_low(const struct cq *q, uint32_t list, struct density_low *ret)
{
        unsigned class = list % LISTS % CLASSES;
        uint32_t oldest = cq_oldest(q, list), age;

        if (class < FIRST_GAP || list % LISTS == YIELDING || !q->density.is_known[class] ||
            oldest & LINK_END)
                return false;
        age = cq_age(q, &q->items[oldest - 1]);
        return age <= 2 * gap_class_ticks(class - FIRST_GAP) >> q->time_unit &&
               density_low(&q->density, class, age, ret);
}

/* Moves the second candidate of a list towards younger items, up to the oldest item that is not
 * older than the age of the least density. That item is at the end of its chain. */
static void move_low(struct cq *q, uint32_t list, uint32_t least)
{
        struct cq_list *l = &q->lists[list];

        if (l->low == 0)
                l->low = l->youngest_or_0;
        for (unsigned steps = LOW_STEPS; steps > 0; steps--) {
                const struct cq_item *i = &q->items[l->low - 1];

                if (cq_age(q, i) <= least || i->younger & LINK_END)
                        return;
                l->low = i->younger;
        }
}

/* Returns the second candidate of a list, which must have one, or the list's end if that item is
 * too young. */
static inline struct old_end low_end_at(const struct cq *q, uint32_t list, uint32_t from,
                                        uint32_t spared)
{
        uint32_t low = q->lists[list].low;

        if (low == 0 || cq_age(q, &q->items[low - 1]) < from)
                return (struct old_end){ .link = LINK_END | list };
        return old_end_at(q, low, spared);
}

/* Returns the second candidate that is worth least among all lists of a group, or a list's end. */
static struct old_end least_low(struct cq *q, uint32_t group, uint32_t spared)
{
        struct old_end least = { .link = LINK_END, .density = INFINITY };

        for (unsigned list = FIRST_GAP; list < q->lists_used;
             list += list % CLASSES == CLASSES - 1 ? FIRST_GAP + 1 : 1) {
                struct density_low low;
                struct old_end end;

                if (!find_low(q, group * LISTS + list, &low))
                        continue;
                move_low(q, group * LISTS + list, low.least);
                end = low_end_at(q, group * LISTS + list, low.from, spared);
                if (!(end.link & LINK_END) && end.density < least.density)
                        least = end;
        }
        return least;
}

/* Finds the first evictable item on the way from `end` up to `oldest`. A pinned end therefore
 * protects only itself. Returns false if there is none or the search has passed enough items. */
static bool nearest_to_end(struct cq *q, uint32_t oldest, uint32_t end,
                           bool (*may_evict)(void *userdata, uint32_t item), void *userdata,
                           uint32_t *passes_left, uint32_t *ret)
{
        for (uint32_t i = end;; i = cq_parent(&q->evict, i)) {
                if (!may_evict || may_evict(userdata, i)) {
                        *ret = i;
                        return true;
                }
                if (i == oldest || *passes_left == 0)
                        return false;
                --*passes_left;
        }
}

/* Finds the victim of the chain that continues the second candidate of a list. Returns false if a
 * promise protects it or no item may be evicted. */
static bool low_victim(struct cq *q, uint32_t low, bool (*may_evict)(void *userdata, uint32_t item),
                       void *userdata, unsigned *steps, uint32_t *passes_left, uint32_t *ret)
{
        uint32_t end = cq_end_of_chain(q, low, steps);

        return !(end != low && cq_is_announced(&q->items[end])) &&
               nearest_to_end(q, low, end, may_evict, userdata, passes_left, ret);
}

static void note_price(struct cq *q, uint32_t group, float density, bool is_quick)
{
        struct cq_price *price = &q->prices[group];
        float share = 1.0F / (float)(1 + q->items_in / PRICE_SHARE);

        price->least = is_quick ? density : 0;
        price->mean += share * (density - price->mean);
        price->searches += price->searches < UINT32_MAX;
}

static void note_price_of(struct cq *q, uint32_t group, const struct old_end *victim)
{
        note_price(q, group, victim->density,
                   judged_class(q, &q->items[victim->link - 1]) >= FIRST_GAP);
}

/* Returns the promise of a group that is worth least, if it is worth less than `most`. */
static const struct cq_promise *least_promised(const struct cq *q, uint32_t group, float most)
{
        const struct cq_promise *one = NULL;
        struct evict_promised left;

        if (q->promises.n > 0) {
                left = cq_promised_of(q, group);
                one = cq_promised_next(q, &left);
        }
        return one && cq_promise_worth(q, one) < most ? one : NULL;
}

bool cq_gives_way(const struct cq *q, const struct cq_item *i, uint32_t group)
{
        const struct cq_price *price = &q->prices[group];

        if (q->evict.expected_use != EVICT_NO_USE && i->last_use == cq_use(q->evict.expected_use))
                return cq_expected_density(q) * q->weight[i->cost] < price->least;
        return q->density.is_known[i->class] &&
               density_at(&q->density, i->class, 0) * q->weight[i->cost] <
                       MIN(price->mean, price->least);
}

/* Returns an item that gives way, or EVICT_NONE. The youngest goes first, which is the deepest of
 * the request in progress, or the end of its chain once the chain is linked. */
static uint32_t yielding_victim(struct cq *q, uint32_t group,
                                bool (*may_evict)(void *userdata, uint32_t item), void *userdata,
                                uint32_t *passes_left)
{
        uint32_t link = cq_youngest(q, group * LISTS + YIELDING), victim;
        unsigned steps = SEARCH_STEPS;

        for (; !(link & LINK_END); link = q->items[link - 1].older) {
                if (nearest_to_end(q, link - 1, cq_end_of_chain(q, link - 1, &steps), may_evict,
                                   userdata, passes_left, &victim))
                        return victim;
                if (*passes_left == 0)
                        break;
                --*passes_left;
        }
        return EVICT_NONE;
}

/* Returns a promised item to the list of its class, because another chain continues it. */
static void leave_promise(struct cq *q, uint32_t item)
{
        struct cq_item *i = &q->items[item];

        cq_unlink(q, item);
        i->class = cq_class_of(i->uses, cq_place_of(i->turn), i->gap) & 0xf;
        cq_append(q, item, i->group);
}

__attribute__((noinline)) static void make_youngest(struct cq *q, uint32_t item)
{
        cq_unlink(q, item);
        cq_append(q, item, q->items[item].group);
}

/* Returns the promised item of a group that is worth least and may be evicted, or EVICT_NONE if all
 * are worth more than `limit`. Another chain that continues the item goes first if it is worth
 * less, and otherwise protects the item from the promise. Not inline, so that a search without
 * promises stays as fast as it would be without this. */
__attribute__((noinline)) static uint32_t promised_victim(struct cq *q, uint32_t group, float limit,
                                                          bool (*may_evict)(void *userdata,
                                                                            uint32_t item),
                                                          void *userdata, uint32_t *passes_left)
{
        struct evict_promised left = cq_promised_of(q, group);
        unsigned steps = SEARCH_STEPS;
        const struct cq_promise *one;
        uint32_t next;

        while ((one = cq_promised_next(q, &left))) {
                uint32_t link = cq_oldest(q, cq_promise_list(q, one));
                float worth = cq_promise_worth(q, one);
                unsigned tries = PROMISE_TRIES;

                if (worth > limit)
                        break;
                for (; !(link & LINK_END) && tries > 0; tries--, link = next) {
                        uint32_t item = link - 1, end = cq_end_of_chain(q, item, &steps);

                        next = q->items[item].younger;
                        if (end != item && (cq_is_announced(&q->items[end]) ||
                                            old_end_at(q, end + 1, EVICT_NO_USE).density > worth)) {
                                leave_promise(q, item);
                                if (next & LINK_END && cq_oldest(q, next & ~LINK_END) & LINK_END)
                                        left = cq_promised_of(q, group); /* the promise has ended */
                        } else if (!may_evict || may_evict(userdata, end)) {
                                note_price(q, group, worth, true);
                                return end;
                        }
                        if (*passes_left == 0)
                                return EVICT_NONE;
                        --*passes_left;
                }
        }
        return EVICT_NONE;
}

/* Returns whether enough touches have happened to learn the common classes. A class that is still
 * unknown then is rare. */
static bool has_learned(const struct cq *q)
{
        enum { TOUCHES = 16384, TOUCHES_PER_ITEM = 1 };

        return q->now >= MAX((uint64_t)TOUCHES, (uint64_t)q->items_in * TOUCHES_PER_ITEM);
}

/* Returns the worth below which promised items go before the end of a list. At first no class is
 * known, and items without a promise would be worth nothing. */
static float promise_limit(const struct cq *q, const struct old_end *end)
{
        return has_learned(q) ? end->density : (float)cq_worth(&q->evict, end->link - 1);
}

static uint32_t search(struct cq *q, uint32_t group, uint32_t spared,
                       bool (*may_evict)(void *userdata, uint32_t item), void *userdata,
                       uint32_t max_passed)
{
        struct old_end ends[YIELDING], low;
        unsigned steps = SEARCH_STEPS, list;
        const struct cq_promise *one;
        float least;
        uint32_t victim;

        for (list = 0; list < q->lists_used; list++)
                ends[list] = old_end_at(q, cq_oldest(q, group * LISTS + list), spared);
        list = worth_least(ends, q->lists_used);
        low = least_low(q, group, spared);
        least = list < YIELDING ? MIN(ends[list].density, low.density) : INFINITY;
        victim = yielding_victim(q, group, may_evict, userdata, &max_passed);
        if (victim != EVICT_NONE) {
                one = least_promised(q, group, least);
                if (one)
                        note_price(q, group, cq_promise_worth(q, one), true);
                else if (list < YIELDING)
                        note_price_of(q, group,
                                      low.density < ends[list].density ? &low : &ends[list]);
                return victim;
        }
        if (q->promises.n > 0) {
                if (list < YIELDING)
                        least = promise_limit(q, low.density < ends[list].density ? &low
                                                                                  : &ends[list]);
                victim = promised_victim(q, group, least, may_evict, userdata, &max_passed);
                if (victim != EVICT_NONE)
                        return victim;
        }
        if (list < YIELDING && low.density < ends[list].density &&
            low_victim(q, low.link - 1, may_evict, userdata, &steps, &max_passed, &victim)) {
                note_price_of(q, group, &low);
                return victim;
        }
        for (; list < YIELDING; list = worth_least(ends, q->lists_used)) {
                uint32_t oldest = ends[list].link - 1, next;
                uint32_t end = cq_end_of_chain(q, oldest, &steps);

                if (end != oldest &&
                    cq_is_announced(&q->items[end])) { /* the promise protects the item */
                        next = q->items[oldest].younger;
                        make_youngest(q, oldest);
                        ends[list] = old_end_at(q, next, spared);
                        continue;
                }
                if (nearest_to_end(q, oldest, end, may_evict, userdata, &max_passed, &victim)) {
                        note_price_of(q, group, &ends[list]);
                        return victim;
                }
                if (max_passed-- == 0)
                        return EVICT_NONE;
                ends[list] = old_end_at(q, q->items[oldest].younger, spared);
        }
        return q->promises.n > 0
                       ? promised_victim(q, group, INFINITY, may_evict, userdata, &max_passed)
                       : EVICT_NONE;
}

uint32_t cq_victim(struct evict *e, uint32_t group,
                   bool (*may_evict)(void *userdata, uint32_t item), void *userdata,
                   uint32_t max_passed)
{
        struct cq *q = cq(e);
        uint32_t victim;

        cq_learn(q);
        victim = search(q, group, cq_use(e->served), may_evict, userdata, max_passed);
        if (victim == EVICT_NONE && e->served != EVICT_NO_USE)
                victim = search(q, group, EVICT_NO_USE, may_evict, userdata, max_passed);
        return victim;
}

/* If too little is known of the item's class, one in four of the class's items is assumed to return
 * after its present age has passed once more. An item that gives way is worth nothing. */
double cq_worth(const struct evict *e, uint32_t item)
{
        const struct cq *q = cq(e);
        const struct cq_item *i = &q->items[item];
        uint32_t age = cq_age(q, i);

        if (i->yields)
                return 0;
        if (q->density.is_known[judged_class(q, i)] || i->class == FINAL)
                return (double)old_end_at(q, item + 1, EVICT_NO_USE).density;
        return (double)q->weight[i->cost] / (4.0 * ((double)age + 1));
}

/* Returns whether a promise is worth less than an announced use: a promise that is overdue by a
 * time is worth as much as one that is due in the same time, as in cq-promise.c. A chain is not
 * worth less than itself, although its times were rounded up. */
static bool is_promised_less(const struct cq *q, const struct cq_promise *one,
                             const struct evict_promise *announced)
{
        uint64_t wait = one->due > q->time ? one->due - q->time : q->time - one->due;

        return one->announcement != announced->number &&
               (double)cq_promise_belief(q, one) * (announced->seconds * GAP_TICKS_PER_S + 1) <
                       (double)announced->belief * ((double)wait + 1);
}

/* Costs do not count, because the cost of the item to be brought in is not known. */
bool cq_is_worth_less(const struct evict *e, uint32_t item)
{
        const struct cq *q = cq(e);
        const struct cq_promise *one = cq_promise_near(q, item);

        if (one)
                return is_promised_less(q, one, &e->expected);
        return cq_worth(e, item) <
               (double)(cq_expected_density(q) * q->weight[q->items[item].cost]);
}

/* Returns a link to the second candidate of a list if it is worth less than the oldest item, or
 * else the list's end. */
static uint32_t low_link(const struct cq *q, uint32_t list)
{
        struct density_low ages;
        struct old_end low;

        if (!find_low(q, list, &ages))
                return LINK_END | list;
        low = low_end_at(q, list, ages.from, EVICT_NO_USE);
        return !(low.link & LINK_END) &&
                               low.density < old_end_at(q, cq_oldest(q, list), EVICT_NO_USE).density
                       ? low.link
                       : LINK_END | list;
}

uint32_t cq_low(const struct evict *e, uint32_t list)
{
        return link_item(low_link(cq(e), list));
}

double cq_chance(const struct evict *e, uint32_t item)
{
        const struct cq *q = cq(e);
        const struct cq_item *i = &q->items[item];
        unsigned class;

        if (i->class == FINAL)
                return 0;
        if (cq_has_hint(i) && !q->density.is_known[i->class])
                return 1;
        class = judged_class(q, i);
        return q->density.is_known[class] ? (double)density_chance(&q->density, class, cq_age(q, i))
                                          : 0;
}

void cq_explain(const struct evict *e, uint32_t item, uint32_t group, struct evict_standing *ret)
{
        const struct cq *q = cq(e);
        const struct cq_item *i = &q->items[item];
        uint32_t yielding = cq_oldest(q, group * LISTS + YIELDING), next = EVICT_NONE;
        const struct cq_promise *own = cq_promise_near(q, item), *promised;
        unsigned steps = SEARCH_STEPS, least;
        struct old_end ends[YIELDING], low;

        static_assert(FINAL + 1 == EVICT_CLASS_FINAL, "the lists in their order");
        for (unsigned list = 0; list < q->lists_used; list++)
                ends[list] = old_end_at(q, cq_oldest(q, group * LISTS + list), EVICT_NO_USE);
        least = worth_least(ends, q->lists_used);
        for (unsigned list = 0; list < q->lists_used; list++) {
                low = old_end_at(q, low_link(q, group * LISTS + list), EVICT_NO_USE);
                if (!(low.link & LINK_END) && low.density < ends[least].density) {
                        ends[list] = low;
                        least = list;
                }
        }
        promised = least_promised(q, group,
                                  least < YIELDING ? promise_limit(q, &ends[least]) : INFINITY);
        if (promised)
                next = cq_oldest(q, cq_promise_list(q, promised)) - 1;
        else if (least < YIELDING)
                next = cq_end_of_chain(q, ends[least].link - 1, &steps);
        *ret = (struct evict_standing){
                .class = i->class < FIRST_GAP ? i->class + EVICT_CLASS_ONCE
                                              : i->class - FIRST_GAP + EVICT_CLASS_GAP_10,
                .age = q->now - MIN(q->now, cq_touched(e, item)),
                .density = i->yields ? 0
                           : own     ? (double)cq_promise_worth(q, own)
                                     : (double)old_end_at(q, item + 1, EVICT_NO_USE).density,
                .least_density = promised           ? (double)cq_promise_worth(q, promised)
                                 : least < YIELDING ? (double)ends[least].density
                                                    : 0,
                .is_next = i->yields || (yielding & LINK_END && next == item),
                .is_continued = i->child_link != 0,
                .yields = i->yields,
                .gap_s = gap_seconds(i->gap),
        };
}
