/* SPDX-License-Identifier: Apache-2.0 */
/* Implements turns.h. A member is in the ring or among the parked members while it has items. */
#include "fair/turns.h"

void turns_init(struct turns *t)
{
        list_init(&t->ring);
        list_init(&t->parked);
}

void turns_member_init(struct turns_member *m)
{
        list_init(&m->turn);
        list_init(&m->items);
        list_init(&m->aside);
}

static bool has_items(const struct turns_member *m)
{
        return !list_empty(&m->items) || !list_empty(&m->aside);
}

static void join(struct turns *t, struct turns_member *m)
{
        if (list_empty(&m->turn))
                list_append(&t->ring, &m->turn);
}

void turns_add(struct turns *t, struct turns_member *m, struct list_node *item)
{
        list_append(&m->items, item);
        join(t, m);
}

void turns_add_first(struct turns *t, struct turns_member *m, struct list_node *item)
{
        list_prepend(&m->items, item);
        join(t, m);
}

void turns_remove(struct turns_member *m, struct list_node *item)
{
        list_unlink(item);
        if (!has_items(m))
                list_unlink(&m->turn);
}

struct turns_member *turns_next(const struct turns *t)
{
        return list_empty(&t->ring) ? NULL : container_of(t->ring.next, struct turns_member, turn);
}

static void move(struct list_node *list, struct turns_member *m)
{
        list_unlink(&m->turn);
        if (has_items(m))
                list_append(list, &m->turn);
}

void turns_requeue(struct turns *t, struct turns_member *m)
{
        move(&t->ring, m);
}

void turns_park(struct turns *t, struct turns_member *m)
{
        move(&t->parked, m);
}

struct list_node *turns_take(struct turns *t)
{
        struct turns_member *m = turns_next(t);
        struct list_node *item = m ? list_pop(&m->items) : NULL;

        if (m)
                turns_requeue(t, m);
        return item;
}

void turns_set_aside(struct turns_member *m, struct list_node *item)
{
        list_unlink(item);
        list_append(&m->aside, item);
}

void turns_unpark(struct turns *t)
{
        list_for_each (&t->parked, n) {
                struct turns_member *m = container_of(n, struct turns_member, turn);

                list_splice(&m->aside, &m->items);
                list_splice(&m->items, &m->aside);
        }
        list_splice(&t->ring, &t->parked);
}

void turns_move(struct turns *to, struct turns *from)
{
        list_splice(&to->ring, &from->ring);
        list_splice(&to->parked, &from->parked);
}

void turns_drain(struct turns *t, struct list_node *items)
{
        struct list_node *n;

        turns_unpark(t);
        while ((n = list_pop(&t->ring)))
                list_splice(items, &container_of(n, struct turns_member, turn)->items);
}
