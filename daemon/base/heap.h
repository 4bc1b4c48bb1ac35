/* SPDX-License-Identifier: Apache-2.0 */
/* A binary heap of nodes in their owners' memory. The node with the smallest key is first. Of nodes
 * with equal keys, the one that was added first is first. Each change moves only nodes on one path
 * from the root. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct heap_node {
        uint64_t key, order;
        unsigned place; /* index in the heap, from 1; 0 if the node is in no heap */
};

struct heap {
        struct heap_node **nodes; /* array of nodes from index 1 on */
        unsigned n, room;
        uint64_t order; /* number of calls of heap_add() so far: the order of the node added last */
};

void heap_fini(struct heap *h);
/* Makes room for `n` nodes. Returns 0 or -ENOMEM. */
int heap_reserve(struct heap *h, unsigned n);
/* Adds a node with this key, or changes the key of a node in the heap. Either way, the node comes
 * after all others with an equal key. There must be room for a new node, see heap_reserve(). */
void heap_add(struct heap *h, struct heap_node *node, uint64_t key);
/* Changes the key of a node in the heap. The node keeps its order among nodes with equal keys. */
void heap_change(struct heap *h, struct heap_node *node, uint64_t key);
void heap_remove(struct heap *h, struct heap_node *node); /* no effect on a node in no heap */

static inline struct heap_node *heap_first(const struct heap *h)
{
        return h->n > 0 ? h->nodes[1] : NULL;
}
