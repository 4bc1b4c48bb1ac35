/* SPDX-License-Identifier: Apache-2.0 */
/* Round robin over members that have queued items. The items of a member are served in order. A
 * member that cannot proceed is parked, so that it does not delay other members. Each call takes
 * constant time, except turns_unpark() and turns_drain(), which take it for each member.
 *
 * The caller owns members and items. A member may be freed when it has no items. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/list.h"

struct turns {
        struct list_node ring, parked; /* `ring`: members with items, in the order of their turns;
                                        * `parked`: members that turns_park() has taken out of the
                                        * ring */
};

struct turns_member {
        struct list_node turn;
        struct list_node items; /* items of the member, in order */
        struct list_node aside; /* items that turns_set_aside() has removed from `items` */
};

void turns_init(struct turns *t);
void turns_member_init(struct turns_member *m);

/* Returns whether no member has an item, parked members included. */
static inline bool turns_is_empty(const struct turns *t)
{
        return list_empty(&t->ring) && list_empty(&t->parked);
}

/* Returns the first item of a member, or NULL if it has none that is not set aside. */
static inline struct list_node *turns_item(const struct turns_member *m)
{
        return list_empty(&m->items) ? NULL : m->items.next;
}

/* Queues an item behind those of its member. A new member is the last one in turn. */
void turns_add(struct turns *t, struct turns_member *m, struct list_node *item);
/* Queues an item before those of its member. */
void turns_add_first(struct turns *t, struct turns_member *m, struct list_node *item);
/* Removes an item wherever it is. A member without items leaves the ring. */
void turns_remove(struct turns_member *m, struct list_node *item);

/* Returns the member in turn, or NULL if none can proceed. */
struct turns_member *turns_next(const struct turns *t);
/* Moves a member that has had its turn to the end of the ring, or out of the ring if it has no
 * items. */
void turns_requeue(struct turns *t, struct turns_member *m);
/* Removes the first item of the member in turn, makes that member the last one, and returns the
 * item. Returns NULL if no member can proceed. */
struct list_node *turns_take(struct turns *t);

/* Excludes a member from the ring until turns_unpark(). */
void turns_park(struct turns *t, struct turns_member *m);
/* Removes an item from its queue, so that the member's next item can be tried. turns_unpark()
 * returns it if the member is parked by then. */
void turns_set_aside(struct turns_member *m, struct list_node *item);
/* Returns the parked members to the ring, behind its members and in the order in which they were
 * parked. Their items that were set aside precede their other items. */
void turns_unpark(struct turns *t);
/* Moves all members to another round robin, behind its own. */
void turns_move(struct turns *to, struct turns *from);
/* Moves the items of all members, parked ones included, to the end of a list: all items of the
 * first member, then those of the second, and so on. */
void turns_drain(struct turns *t, struct list_node *items);
