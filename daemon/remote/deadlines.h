/* SPDX-License-Identifier: Apache-2.0 */
/* What is to happen at a time: a heap of deadlines. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct deadline {
        uint64_t at_ns;
        unsigned place; /* in the heap, from 1 on; 0: it is in none */
        /* Taken out of the heap before; may add and remove any. */
        void (*expire)(struct deadline *d, uint64_t now_ns);
};

struct deadlines {
        struct deadline **heap; /* [0] is not used */
        unsigned n, room;
};

void deadlines_fini(struct deadlines *s);
/* Also moves one that is in. 0, -ENOMEM; which cannot be if `d` is in, or one was removed before.
 */
int deadlines_add(struct deadlines *s, struct deadline *d, uint64_t at_ns);
void deadlines_remove(struct deadlines *s, struct deadline *d); /* may be in none */
/* Expires all that are due. */
void deadlines_run(struct deadlines *s, uint64_t now_ns);
/* Of the first one; 0: there is none. */
uint64_t deadlines_next(const struct deadlines *s);
