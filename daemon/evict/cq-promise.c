/* SPDX-License-Identifier: Apache-2.0 */
/* The promises of the policy of cq.c: chains whose next use a client has announced.
 *
 * A promise is a list of the chain's items, its end first, and the time of the announced use. A
 * chain that is read ahead of its return is promised from its root on, so each of its items is put
 * before the earlier ones. An item is in one list at a time, so a promise costs an item nothing:
 * its next use moves it to the list of its class, and a promise without items is freed. The worth
 * of a promise is one hit, weighted by the belief in it, per time until it is due. When the promise
 * is overdue, its use is assumed to follow after another delay as long as the present one; when its
 * window has passed, its worth is reduced. Of all promises of a group, the one due latest or the
 * one overdue for the longest time is worth least, and its end goes first.
 *
 * The promises are kept in the order of group and time in an array of numbers. A new promise moves
 * at most MAX_PROMISES of them; a touch does nothing unless it empties one. Beyond MAX_PROMISES,
 * items are judged by the class of their hint alone. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/pages.h"
#include "checked.h"
#include "evict/cq-internal.h"

enum {
        /* Ticks by which a use is assumed to be later than announced, so that a promise that is due
         * now is not worth infinitely much. */
        SLACK_TICKS = 1000,
        /* Ticks to which times are rounded up. A chain longer than a message is announced in parts,
         * its end first, and all parts should be due at the same time. */
        DUE_TICKS = 1024,
};

int cq_promises_init(struct cq_promises *p, uint32_t first_list)
{
        *p = (struct cq_promises){ .first_list = first_list };
        p->all = pages_map(MAX_PROMISES * sizeof(p->all[0])); /* takes no memory while unused */
        p->order = calloc(MAX_PROMISES, sizeof(p->order[0]));
        p->spare = calloc(MAX_PROMISES, sizeof(p->spare[0]));
        return p->all && p->order && p->spare ? 0 : -1;
}

void cq_promises_fini(struct cq_promises *p)
{
        if (p->all)
                pages_unmap(p->all, MAX_PROMISES * sizeof(p->all[0]));
        free(p->order);
        free(p->spare);
}

/* Returns whether a promise precedes another. With equal times, the one made first counts as the
 * later one, because it has the end of the chain. */
static bool is_before(const struct cq_promise *a, const struct cq_promise *b)
{
        if (a->group != b->group)
                return a->group < b->group;
        return a->due != b->due ? a->due < b->due : a->made > b->made;
}

/* Returns the number of promises that are before `one` in the order. */
static uint32_t position_of(const struct cq_promises *p, const struct cq_promise *one)
{
        uint32_t from = 0, to = p->n;

        while (from < to) {
                uint32_t middle = from + (to - from) / 2;

                if (is_before(&p->all[p->order[middle]], one))
                        from = middle + 1;
                else
                        to = middle;
        }
        return from;
}

static void end_promise(struct cq *q, uint32_t list)
{
        struct cq_promises *p = &q->promises;
        uint32_t number = list - p->first_list, at;

        if (&p->all[number] == p->kept)
                return;
        at = position_of(p, &p->all[number]);
        assert(p->order[at] == number);
        p->n--;
        memmove(&p->order[at], &p->order[at + 1], (p->n - at) * sizeof(p->order[0]));
        p->all[number].announcement = 0; /* the promise is free now */
        p->spare[p->n_spare++] = (uint16_t)number;
}

void cq_leave_promise(struct cq *q, uint32_t item)
{
        struct cq_item *i = &q->items[item];

        i->is_contended = 0;
        if (i->older & i->younger & LINK_END)
                end_promise(q, i->older & ~LINK_END);
}

/* Returns the promise of this announcement for a group if it is one of the latest promises, and
 * otherwise makes it. Returns NULL if there are MAX_PROMISES already. */
static struct cq_promise *promise_of(struct cq *q, uint32_t group,
                                     const struct evict_promise *announced)
{
        struct cq_promises *p = &q->promises;
        struct cq_promise *one;
        uint32_t at, number;

        for (unsigned i = 0; i < ARRAY_SIZE(p->recent); i++) {
                one = &p->all[p->recent[i]];
                if (one->announcement == announced->number && one->group == group)
                        return one;
        }
        if (p->n == MAX_PROMISES)
                return NULL;
        number = p->n_spare > 0 ? p->spare[--p->n_spare] : p->high++;
        one = &p->all[number];
        *one = (struct cq_promise){
                .announcement = announced->number,
                .group = group,
                .belief = announced->belief,
                .made = ++p->made,
                .due = round_up(q->time + (uint64_t)(announced->seconds * GAP_TICKS_PER_S),
                                DUE_TICKS),
        };
        one->late =
                one->due + (uint64_t)((announced->seconds + PROMISE_TOLERATED_S) * GAP_TICKS_PER_S);
        q->lists[p->first_list + number] = (struct cq_list){ 0 };
        at = position_of(p, one);
        memmove(&p->order[at + 1], &p->order[at], (p->n - at) * sizeof(p->order[0]));
        p->order[at] = (uint16_t)number;
        p->n++;
        p->recent[p->next_recent++ % ARRAY_SIZE(p->recent)] = (uint16_t)number;
        return one;
}

bool cq_promise(struct evict *e, uint32_t item, const struct evict_promise *announced)
{
        struct cq *q = cq(e);
        struct cq_item *i = &q->items[item];
        struct cq_promise *one;

        if (q->noted_ns == 0 || announced->number == 0)
                return false;
        one = promise_of(q, i->group, announced);
        if (!one)
                return false;
        q->promises.kept = one; /* the item may be the only one of the promise, which must not end
                                 * while the item is moved within it */
        cq_unlink(q, item);
        q->promises.kept = NULL;
        i->class = (FIRST_HINT + evict_hint_return(announced->seconds) - EVICT_HINT_SOON) & 0xf;
        i->yields = 0;
        i->is_contended = 1;
        (announced->is_from_root ? cq_prepend_to : cq_append_to)(q, item, cq_promise_list(q, one));
        return true;
}

/* Returns the expected hits of an item per unit of time, if its use is `wait` ticks away and comes
 * true with the probability `belief`. */
static float density(const struct cq *q, float belief, uint64_t wait)
{
        return belief / ((float)((wait + SLACK_TICKS) >> q->time_unit) + 1);
}

float cq_promise_belief(const struct cq *q, const struct cq_promise *one)
{
        return q->time > one->late ? (1.0F - one->belief) * one->belief : one->belief;
}

/* Returns the density of each item of a promise. */
static float density_of(const struct cq *q, const struct cq_promise *one)
{
        uint64_t wait = one->due > q->time ? one->due - q->time : q->time - one->due;

        return density(q, cq_promise_belief(q, one), wait);
}

float cq_promise_worth(const struct cq *q, const struct cq_promise *one)
{
        uint32_t end = cq_oldest(q, cq_promise_list(q, one)) - 1;

        return density_of(q, one) * q->weight[q->items[end].cost];
}

const struct cq_promise *cq_promise_near(const struct cq *q, uint32_t item)
{
        uint32_t link = item + 1;

        if (!cq_is_in_promise(&q->items[item]))
                return NULL;
        for (unsigned steps = SEARCH_STEPS; !(link & LINK_END) && steps > 0; steps--)
                link = q->items[link - 1].older;
        return link & LINK_END ? &q->promises.all[(link & ~LINK_END) - q->promises.first_list]
                               : NULL;
}

float cq_expected_density(const struct cq *q)
{
        const struct evict_promise *p = &q->evict.expected;

        return p->seconds == 0 ? 0
                               : density(q, p->belief, (uint64_t)(p->seconds * GAP_TICKS_PER_S));
}

/* Returns the first position of a group in the order. */
static uint32_t first_of(const struct cq_promises *p, uint32_t group)
{
        const struct cq_promise before_all = { .group = group, .made = UINT64_MAX };

        return position_of(p, &before_all);
}

struct evict_promised cq_promised_of(const struct cq *q, uint32_t group)
{
        const struct cq_promises *p = &q->promises;

        return p->n == 0 ? (struct evict_promised){ 0 }
                         : (struct evict_promised){ .from = first_of(p, group),
                                                    .to = first_of(p, group + 1) };
}

const struct cq_promise *cq_promised_next(const struct cq *q, struct evict_promised *left)
{
        const struct cq_promises *p = &q->promises;
        const struct cq_promise *overdue, *latest;

        if (left->from >= left->to)
                return NULL;
        overdue = &p->all[p->order[left->from]];
        latest = &p->all[p->order[left->to - 1]];
        if (density_of(q, overdue) < density_of(q, latest)) {
                left->from++;
                return overdue;
        }
        left->to--;
        return latest;
}

uint32_t cq_promise_list(const struct cq *q, const struct cq_promise *one)
{
        return q->promises.first_list + (uint32_t)(one - q->promises.all);
}

struct evict_promised cq_promised(const struct evict *e, uint32_t group)
{
        return cq_promised_of(cq(e), group);
}

uint32_t cq_next_promised(const struct evict *e, struct evict_promised *left, double *ret_worth)
{
        const struct cq *q = cq(e);
        const struct cq_promise *one = cq_promised_next(q, left);

        if (!one)
                return EVICT_NONE;
        *ret_worth = (double)cq_promise_worth(q, one);
        return cq_oldest(q, cq_promise_list(q, one)) - 1;
}
