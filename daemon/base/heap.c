/* SPDX-License-Identifier: Apache-2.0 */
/* Implements heap.h in an array. Each node stores its index, so it can be moved and removed. */
#include "base/heap.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "checked.h"

void heap_fini(struct heap *h)
{
        free(h->nodes);
        *h = (struct heap){ 0 };
}

int heap_reserve(struct heap *h, unsigned n)
{
        unsigned room = MAX(2 * h->room, 8u);
        struct heap_node **nodes;

        if (n < h->room)
                return 0;
        while (room <= n)
                room *= 2;
        nodes = realloc(h->nodes, room * sizeof(struct heap_node *));
        if (!nodes)
                return -ENOMEM;
        h->nodes = nodes;
        h->room = room;
        return 0;
}

static bool precedes(const struct heap_node *a, const struct heap_node *b)
{
        return a->key != b->key ? a->key < b->key : a->order < b->order;
}

static void put(struct heap *h, struct heap_node *node, unsigned place)
{
        h->nodes[place] = node;
        node->place = place;
}

/* Moves the free place up or down until it is the node's place, and stores the node there. */
static void sift(struct heap *h, struct heap_node *node, unsigned place)
{
        for (; place > 1 && precedes(node, h->nodes[place / 2]); place /= 2)
                put(h, h->nodes[place / 2], place);
        for (unsigned child; (child = 2 * place) <= h->n; place = child) {
                if (child < h->n && precedes(h->nodes[child + 1], h->nodes[child]))
                        child++;
                if (precedes(node, h->nodes[child]))
                        break;
                put(h, h->nodes[child], place);
        }
        put(h, node, place);
}

void heap_add(struct heap *h, struct heap_node *node, uint64_t key)
{
        if (node->place == 0) {
                assert(h->n + 1 < h->room);
                node->place = ++h->n;
        }
        node->order = ++h->order;
        heap_change(h, node, key);
}

void heap_change(struct heap *h, struct heap_node *node, uint64_t key)
{
        node->key = key;
        sift(h, node, node->place);
}

void heap_remove(struct heap *h, struct heap_node *node)
{
        unsigned place = node->place;
        struct heap_node *last;

        if (place == 0)
                return;
        node->place = 0;
        last = h->nodes[h->n--];
        if (last != node)
                sift(h, last, place);
}
