/* SPDX-License-Identifier: Apache-2.0 */
/* Timers: a heap of deadlines. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct deadline {
        uint64_t at_ns;
        unsigned place; /* index in the heap, from 1; 0: not in a heap */
        /* Called after the deadline has left the heap; may add and remove any deadline. */
        void (*expire)(struct deadline *d, uint64_t now_ns);
};

struct deadlines {
        struct deadline **heap; /* [0] is not used */
        unsigned n, room;
};

void deadlines_fini(struct deadlines *s);
/* Adds a deadline, or moves it if it is in the heap. Returns 0 or -ENOMEM. Cannot fail if `d` is in
 * the heap, or if one was removed before. */
int deadlines_add(struct deadlines *s, struct deadline *d, uint64_t at_ns);
void deadlines_remove(struct deadlines *s, struct deadline *d); /* harmless if `d` is in no heap */
/* Expires every deadline that is due. */
void deadlines_run(struct deadlines *s, uint64_t now_ns);
/* Returns the time of the earliest deadline, or 0 if there is none. */
uint64_t deadlines_next(const struct deadlines *s);
