/* SPDX-License-Identifier: Apache-2.0 */
/* The chains of the policy of cq.c: which item continues which. A parent lists its children, so
 * that a search finds the end of a chain from any of its items.
 *
 * Most items have one child and no siblings: such a parent and child name each other, as items plus
 * one. A parent of several children names a node instead, its fork (LINK_END combined with the
 * node's number), and each of these children names a node of its own, which holds its place in the
 * fork's list. So links take 8 bytes per item, and nodes only where chains fork: 12 bytes per child
 * of a fork, and 12 per fork. A fork has two children or more; the last one becomes an only child.
 * If its parent is removed, a fork stays until its children have left it, so that no removal visits
 * more than three other items, however many children a client may have linked. */

#include "evict/cq-internal.h"

static bool is_node(uint32_t link)
{
        return (link & LINK_END) != 0;
}

static union cq_kin *node_of(const struct cq *q, uint32_t link)
{
        return &q->kin[link & ~LINK_END];
}

static uint32_t node_new(struct cq *q)
{
        uint32_t n = q->kin_free;

        q->kin_in_use++;
        if (n == 0) {
                pages_ahead_use(&q->kin_ahead, ((uint64_t)q->kin_high + 1) * sizeof(q->kin[0]));
                return LINK_END | q->kin_high++;
        }
        q->kin_free = q->kin[n - 1].next_free;
        return LINK_END | (n - 1);
}

static void node_free(struct cq *q, uint32_t link)
{
        node_of(q, link)->next_free = q->kin_free;
        q->kin_free = (link & ~LINK_END) + 1;
        q->kin_in_use--;
}

/* Returns the parent of an item plus one; 0: none. */
static uint32_t parent_of(const struct cq *q, const struct cq_item *i)
{
        return is_node(i->parent_link)
                       ? q->kin[node_of(q, i->parent_link)->sibling.fork].fork.parent
                       : i->parent_link;
}

/* Returns the child that was linked first, plus one; 0: none. */
static uint32_t child_of(const struct cq *q, const struct cq_item *i)
{
        return is_node(i->child_link) ? node_of(q, i->child_link)->fork.first : i->child_link;
}

uint32_t cq_parent(const struct evict *e, uint32_t item)
{
        return parent_of(cq(e), &cq(e)->items[item]) - 1;
}

static void fork_append(struct cq *q, uint32_t fork, uint32_t item)
{
        union cq_kin *f = node_of(q, fork);
        uint32_t last = f->fork.last, node = node_new(q);

        node_of(q, node)->sibling.fork = fork & ~LINK_END;
        node_of(q, node)->sibling.before = last;
        node_of(q, node)->sibling.after = 0;
        if (last != 0)
                node_of(q, q->items[last - 1].parent_link)->sibling.after = item + 1;
        else
                f->fork.first = item + 1;
        f->fork.last = item + 1;
        q->items[item].parent_link = node;
}

static void fork_remove(struct cq *q, uint32_t fork, uint32_t item)
{
        uint32_t node = q->items[item].parent_link, before = node_of(q, node)->sibling.before,
                 after = node_of(q, node)->sibling.after;

        if (before != 0)
                node_of(q, q->items[before - 1].parent_link)->sibling.after = after;
        else
                q->kin[fork].fork.first = after;
        if (after != 0)
                node_of(q, q->items[after - 1].parent_link)->sibling.before = before;
        else
                q->kin[fork].fork.last = before;
        node_free(q, node);
        q->items[item].parent_link = 0;
}

static void leave_parent(struct cq *q, uint32_t item)
{
        struct cq_item *i = &q->items[item];
        uint32_t fork, parent, last;

        if (!is_node(i->parent_link)) {
                if (i->parent_link != 0)
                        q->items[i->parent_link - 1].child_link = 0;
                i->parent_link = 0;
                return;
        }
        fork = node_of(q, i->parent_link)->sibling.fork;
        fork_remove(q, fork, item);
        last = q->kin[fork].fork.last;
        if (q->kin[fork].fork.first != last)
                return;
        parent = q->kin[fork].fork.parent;
        fork_remove(q, fork, last - 1);
        node_free(q, LINK_END | fork);
        q->items[last - 1].parent_link = parent;
        if (parent != 0)
                q->items[parent - 1].child_link = last;
}

static void leave_children(struct cq *q, uint32_t item)
{
        struct cq_item *i = &q->items[item];

        if (is_node(i->child_link))
                node_of(q, i->child_link)->fork.parent = 0;
        else if (i->child_link != 0)
                q->items[i->child_link - 1].parent_link = 0;
        i->child_link = 0;
}

void cq_leave_family(struct cq *q, uint32_t item)
{
        leave_parent(q, item);
        leave_children(q, item);
}

void cq_link(struct evict *e, uint32_t item, uint32_t parent)
{
        struct cq *q = cq(e);
        struct cq_item *p = &q->items[parent];

        if (item == parent || parent_of(q, &q->items[item]) != 0)
                return;
        leave_parent(q, item); /* leaves the fork of a parent that was removed */
        if (p->child_link == 0) {
                p->child_link = item + 1;
                q->items[item].parent_link = parent + 1;
                return;
        }
        if (!is_node(p->child_link)) {
                uint32_t only = p->child_link - 1, fork = node_new(q);

                *node_of(q, fork) = (union cq_kin){ .fork = { .parent = parent + 1 } };
                fork_append(q, fork, only);
                p->child_link = fork;
        }
        fork_append(q, p->child_link, item);
}

bool cq_is_continued(const struct cq *q, const struct cq_item *i)
{
        return is_node(i->child_link) ||
               (i->child_link != 0 && q->items[i->child_link - 1].class != FINAL);
}

uint32_t cq_end_of_chain(const struct cq *q, uint32_t item, unsigned *steps)
{
        uint16_t group = q->items[item].group;

        for (; *steps > 0; --*steps) {
                uint32_t child = child_of(q, &q->items[item]);

                if (child == 0 || q->items[child - 1].group != group)
                        break;
                item = child - 1;
        }
        return item;
}
