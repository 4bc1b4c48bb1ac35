/* SPDX-License-Identifier: Apache-2.0 */
/* An intrusive doubly linked ring. A node in no list points to itself, so that unlinking it twice
 * is harmless. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct list_node {
        struct list_node *prev, *next;
};

#define LIST_INIT(name)                                                                            \
        {                                                                                          \
                &(name), &(name)                                                                   \
        }

#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

static inline void list_init(struct list_node *n)
{
        n->prev = n->next = n;
}

static inline bool list_empty(const struct list_node *head)
{
        return head->next == head;
}

static inline void list_append(struct list_node *head, struct list_node *n)
{
        n->prev = head->prev;
        n->next = head;
        head->prev->next = n;
        head->prev = n;
}

static inline void list_prepend(struct list_node *head, struct list_node *n)
{
        list_append(head->next, n);
}

static inline void list_unlink(struct list_node *n)
{
        n->prev->next = n->next;
        n->next->prev = n->prev;
        list_init(n);
}

static inline struct list_node *list_pop(struct list_node *head)
{
        struct list_node *n = head->next;

        if (n == head)
                return NULL;
        list_unlink(n);
        return n;
}

/* Moves all nodes of `from` to the end of `to`. */
static inline void list_splice(struct list_node *to, struct list_node *from)
{
        if (list_empty(from))
                return;
        from->next->prev = to->prev;
        to->prev->next = from->next;
        from->prev->next = to;
        to->prev = from->prev;
        list_init(from);
}

#define list_for_each(head, n) for (struct list_node *n = (head)->next; n != (head); n = n->next)
#define list_for_each_safe(head, n)                                                                \
        for (struct list_node *n = (head)->next, *n##_next = n->next; n != (head);                 \
             n = n##_next, n##_next = n->next)
