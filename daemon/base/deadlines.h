/* SPDX-License-Identifier: Apache-2.0 */
/* Timers: a heap of deadlines, whose callbacks run on the loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/heap.h"

struct deadline {
        struct heap_node node; /* in deadlines.heap, by time */
        /* Called after the deadline has left the heap; may add and remove any deadline. */
        void (*expire)(struct deadline *d, uint64_t now_ns);
};

struct deadlines {
        struct heap heap;
};

static inline uint64_t deadline_ns(const struct deadline *d)
{
        return d->node.key;
}

void deadlines_fini(struct deadlines *s);
/* Adds a deadline, or moves it if it is in the heap. Returns 0 or -ENOMEM. Cannot fail if `d` is in
 * the heap, or if another deadline was removed and none was added since. */
int deadlines_add(struct deadlines *s, struct deadline *d, uint64_t at_ns);
void deadlines_remove(struct deadlines *s, struct deadline *d); /* harmless if `d` is in no heap */
/* Expires up to `most` of the deadlines that are due. */
void deadlines_run(struct deadlines *s, uint64_t now_ns, unsigned most);
/* Returns the time of the earliest deadline, or 0 if there is none. */
static inline uint64_t deadlines_next(const struct deadlines *s)
{
        return s->heap.n > 0 ? heap_first(&s->heap)->key : 0;
}
