/* SPDX-License-Identifier: Apache-2.0 */
/* A window of items in flight at a device that serves in the order of arrival. Only as many items
 * are in flight as keep the device busy; the others wait by member. The next one is always taken
 * from the member with the fewest bytes in flight, so a member that has little waits for at most
 * one window of the others' items. Of members with equally many bytes, the one that was served
 * least recently goes first.
 *
 * A step takes O(log members) and allocates nothing. The caller owns members and items. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/heap.h"
#include "base/list.h"
#include "fair/user.h"

enum { WINDOW_ORDERS = 2 };

struct window {
        uint32_t min_items; /* items per device that may be in flight whatever their size */
        uint32_t max_items;
        uint64_t bytes;      /* bytes in flight per device from which on only `min_items` are
                              * permitted */
        struct heap members; /* members with waiting items, by their bytes in flight */
        unsigned n_members;
        uint64_t n_waiting, n_in_flight, bytes_in_flight;
};

struct window_member {
        struct window *window;
        struct fair_user *user;
        struct heap_node turn;
        struct list_node waits[WINDOW_ORDERS]; /* waiting items, in order; items of order 0 precede
                                                * those of order 1 */
        uint64_t in_flight;                    /* bytes of the items in flight */
        uint64_t bytes;                        /* bytes of all items, waiting and in flight */
};

struct window_item {
        struct list_node node; /* in the member's queue while it waits */
        struct window_member *member;
        uint32_t bytes;
        uint8_t order; /* order of the item in its member's queue: less than WINDOW_ORDERS */
        bool in_flight;
};

void window_init(struct window *w, uint32_t min_items, uint32_t max_items, uint64_t bytes);
void window_fini(struct window *w);
/* Initializes a member and makes room for it in the window. Returns 0 or -ENOMEM; in both cases the
 * caller ends the member by window_member_fini(). */
int window_member_init(struct window_member *m, struct window *w, struct fair_user *user);
/* Ends a member, which must have no items. */
void window_member_fini(struct window_member *m);
void window_item_init(struct window_item *i, struct window_member *m, uint32_t bytes,
                      unsigned order);

static inline bool window_item_waits(const struct window_item *i)
{
        return !list_empty(&i->node);
}

/* Returns whether another item may be in flight, with `n` devices behind the window. */
bool window_is_open(const struct window *w, unsigned n);
/* Counts an item as in flight. */
void window_submit(struct window_item *i);
/* Appends an item to its member's queue. */
void window_wait(struct window_item *i);
/* Ends an item that is in flight or waits. No effect on an item that does neither. */
void window_done(struct window_item *i);
/* Removes the next item from its queue and returns it, or NULL if none waits. The caller submits
 * it. */
struct window_item *window_next(struct window *w);
