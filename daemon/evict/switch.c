/* SPDX-License-Identifier: Apache-2.0 */
/* Moves items to another policy, in the order of their last touches and as if each had been used
 * once, at that time.
 *
 * Runs on the loop thread, once per change of the setting. A policy's lists are in order, so they
 * are merged by a heap of their oldest items without sorting. The only memory is that of the new
 * policy and the heap. The old policy's learned state is discarded, since the new one would
 * interpret it differently. Fails without memory, or if the new policy is unknown, and then leaves
 * the old policy unchanged. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "evict/evict.h"
#include "evict/policy.h"

enum { SAMPLE = 64 }; /* items moved between two reports of the time */

struct head {
        uint64_t order;
        uint32_t item, group;
};

struct heap {
        struct head *heads; /* one per unexhausted list, the oldest first */
        uint32_t n;
};

/* Restores the heap's order below position `i`, whose head may be younger than those below it. */
static void sift(struct heap *h, uint32_t i)
{
        for (;;) {
                uint32_t least = i;
                struct head swapped;

                for (uint32_t below = 2 * i + 1; below <= 2 * i + 2 && below < h->n; below++)
                        if (h->heads[below].order < h->heads[least].order)
                                least = below;
                if (least == i)
                        return;
                swapped = h->heads[i];
                h->heads[i] = h->heads[least];
                h->heads[least] = swapped;
                i = least;
        }
}

static void hand_over(const struct evict *from, struct evict *to, struct heap *h)
{
        for (uint32_t i = h->n / 2; i-- > 0;)
                sift(h, i);
        for (uint32_t n = 0; h->n > 0; n++) {
                struct head *oldest = &h->heads[0];

                /* Report the time of the touch to the new policy, so that ages in seconds are
                 * preserved. */
                if (n % SAMPLE == 0)
                        evict_note_time(to, ages_time(&from->ages,
                                                      from->policy->touched(from, oldest->item),
                                                      from->policy->now(from)));
                to->policy->insert(to, oldest->item, oldest->group, 0, 0, EVICT_NO_USE,
                                   EVICT_PLACE_UNKNOWN);
                oldest->item = from->policy->after(from, oldest->item);
                if (oldest->item != EVICT_NONE)
                        oldest->order = from->policy->order(from, oldest->item);
                else
                        *oldest = h->heads[--h->n];
                sift(h, 0);
        }
        evict_note_time(to, from->ages.now_ns);
}

/* Hands the marks of retained items and of items in lots to the new policy, which has these items
 * in the corresponding groups. Demoted items become victims like others. */
static void swap_marks(struct evict *from, struct evict *to)
{
        struct evict_marks retained = to->retained, aside = to->aside;

        to->retained = from->retained;
        to->aside = from->aside;
        to->demoted_victims = from->demoted_victims;
        from->retained = retained;
        from->aside = aside;
}

int evict_switch(struct evict **e, const char *policy)
{
        struct evict *from = *e;
        uint32_t lists = from->policy->lists, groups = evict_policy_groups(from->max_groups);
        uint32_t all = groups * lists + from->policy->extra_lists;
        _cleanup_(freep) struct head *heads = NULL;
        struct heap heap;
        struct evict *to;
        int r;

        if (strcmp(evict_policy(from), policy) == 0)
                return 0;
        heads = calloc(all, sizeof(*heads));
        if (!heads)
                return -ENOMEM;
        r = evict_new(&to, policy, from->max_items, from->max_groups);
        if (r < 0)
                return r;
        heap = (struct heap){ .heads = heads };
        for (uint32_t i = 0; i < all; i++) {
                uint32_t item = from->policy->first(from, i);

                if (item != EVICT_NONE)
                        heads[heap.n++] = (struct head){
                                .order = from->policy->order(from, item),
                                .item = item,
                                .group = i < groups * lists ? i / lists
                                                            : from->policy->group(from, item),
                        };
        }
        hand_over(from, to, &heap);
        swap_marks(from, to);
        evict_free(from);
        *e = to;
        return 1;
}
