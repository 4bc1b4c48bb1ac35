/* SPDX-License-Identifier: Apache-2.0 */
/* Implements deadlines.h with heap.h. */
#include "base/deadlines.h"

#include "base/list.h"

void deadlines_fini(struct deadlines *s)
{
        heap_fini(&s->heap);
}

int deadlines_add(struct deadlines *s, struct deadline *d, uint64_t at_ns)
{
        int r = d->node.place == 0 ? heap_reserve(&s->heap, s->heap.n + 1) : 0;

        if (r == 0)
                heap_add(&s->heap, &d->node, at_ns);
        return r;
}

void deadlines_remove(struct deadlines *s, struct deadline *d)
{
        heap_remove(&s->heap, &d->node);
}

void deadlines_run(struct deadlines *s, uint64_t now_ns, unsigned most)
{
        struct heap_node *first;

        while (most-- > 0 && (first = heap_first(&s->heap)) && first->key <= now_ns) {
                struct deadline *d = container_of(first, struct deadline, node);

                heap_remove(&s->heap, first);
                d->expire(d, now_ns);
        }
}
