/* SPDX-License-Identifier: Apache-2.0 */
/* Implements window.h with a heap of the members that have waiting items. */
#include "fair/window.h"

#include <assert.h>

void window_init(struct window *w, uint32_t min_items, uint32_t max_items, uint64_t bytes)
{
        *w = (struct window){ .min_items = min_items, .max_items = max_items, .bytes = bytes };
}

void window_fini(struct window *w)
{
        heap_fini(&w->members);
}

int window_member_init(struct window_member *m, struct window *w, struct fair_user *user)
{
        *m = (struct window_member){ .window = w, .user = user };
        for (unsigned order = 0; order < WINDOW_ORDERS; order++)
                list_init(&m->waits[order]);
        return heap_reserve(&w->members, ++w->n_members);
}

void window_member_fini(struct window_member *m)
{
        assert(m->bytes == 0 && m->turn.place == 0);
        m->window->n_members--;
}

void window_item_init(struct window_item *i, struct window_member *m, uint32_t bytes,
                      unsigned order)
{
        *i = (struct window_item){ .member = m, .bytes = bytes, .order = (uint8_t)order };
        list_init(&i->node);
}

bool window_is_open(const struct window *w, unsigned n)
{
        return w->n_in_flight < (uint64_t)w->min_items * n ||
               (w->n_in_flight < (uint64_t)w->max_items * n && w->bytes_in_flight < w->bytes * n);
}

/* Returns the list with the member's next item, or NULL if none waits. */
static struct list_node *first_list(struct window_member *m)
{
        for (unsigned order = 0; order < WINDOW_ORDERS; order++)
                if (!list_empty(&m->waits[order]))
                        return &m->waits[order];
        return NULL;
}

static void change_in_flight(struct window_item *i, bool in_flight)
{
        uint64_t bytes = in_flight ? i->bytes : -(uint64_t)i->bytes;
        struct window_member *m = i->member;

        i->in_flight = in_flight;
        m->in_flight += bytes;
        m->bytes += bytes;
        m->window->bytes_in_flight += bytes;
        m->window->n_in_flight += in_flight ? 1 : UINT64_MAX;
        if (m->turn.place > 0)
                heap_change(&m->window->members, &m->turn, m->in_flight);
}

void window_submit(struct window_item *i)
{
        change_in_flight(i, true);
}

void window_wait(struct window_item *i)
{
        struct window_member *m = i->member;

        list_append(&m->waits[i->order], &i->node);
        m->bytes += i->bytes;
        m->window->n_waiting++;
        if (m->turn.place == 0)
                heap_add(&m->window->members, &m->turn, m->in_flight);
}

static void leave_queue(struct window_item *i)
{
        struct window_member *m = i->member;

        list_unlink(&i->node);
        m->bytes -= i->bytes;
        m->window->n_waiting--;
        if (!first_list(m))
                heap_remove(&m->window->members, &m->turn);
}

void window_done(struct window_item *i)
{
        if (i->in_flight)
                change_in_flight(i, false);
        else if (window_item_waits(i))
                leave_queue(i);
}

struct window_item *window_next(struct window *w)
{
        struct heap_node *first = heap_first(&w->members);
        struct window_member *m;
        struct window_item *i;

        if (!first)
                return NULL;
        m = container_of(first, struct window_member, turn);
        i = container_of(first_list(m)->next, struct window_item, node);
        leave_queue(i);
        if (first_list(m))
                heap_add(&w->members, &m->turn, m->in_flight);
        return i;
}
