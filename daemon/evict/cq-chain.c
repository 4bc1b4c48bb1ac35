/* SPDX-License-Identifier: Apache-2.0 */
/* The chains of the policy of cq.c: which item continues which. A parent lists its children, so
 * that a search finds the end of a chain from any of its items. */
#include <stddef.h>

#include "evict/cq-internal.h"

static struct cq_item *parent_of(struct cq *q, const struct cq_item *i)
{
        struct cq_item *p = i->parent != 0 ? &q->items[i->parent - 1] : NULL;

        return p && p->older != 0 && p->stay == i->parent_stay ? p : NULL;
}

void cq_link(struct evict *e, uint32_t item, uint32_t parent)
{
        struct cq *q = cq(e);
        struct cq_item *i = &q->items[item], *p = &q->items[parent];

        if (item == parent || parent_of(q, i))
                return;
        i->parent = parent + 1;
        i->parent_stay = p->stay;
        i->sibling_before = p->last_child;
        i->sibling_after = 0;
        *(p->last_child ? &q->items[p->last_child - 1].sibling_after : &p->child) = item + 1;
        p->last_child = item + 1;
}

bool cq_is_continued(const struct cq *q, const struct cq_item *i)
{
        return i->child != 0 &&
               (i->child != i->last_child || q->items[i->child - 1].class != FINAL);
}

void cq_leave_family(struct cq *q, uint32_t item)
{
        const struct cq_item *i = &q->items[item];
        struct cq_item *p = parent_of(q, i);

        if (!p)
                return;
        *(i->sibling_before ? &q->items[i->sibling_before - 1].sibling_after : &p->child) =
                i->sibling_after;
        *(i->sibling_after ? &q->items[i->sibling_after - 1].sibling_before : &p->last_child) =
                i->sibling_before;
}

uint32_t cq_end_of_chain(const struct cq *q, uint32_t item, unsigned *steps)
{
        uint16_t group = q->items[item].group;

        for (; *steps > 0 && q->items[item].child != 0; --*steps) {
                uint32_t child = q->items[item].child - 1;

                if (q->items[child].group != group)
                        break;
                item = child;
        }
        return item;
}
