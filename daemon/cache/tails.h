/* SPDX-License-Identifier: Apache-2.0 */
/* Pages for the tails of direct requests: what of a chunk is not a whole block of the device. They
 * come in blocks that are mapped and unmapped whole, since the allocator takes twice the memory for
 * an aligned page and keeps it. Loop thread. */
#pragma once

#include "base/list.h"

enum { TAIL_BYTES = 4096 };

struct tail_block;
struct tail {
        void *page; /* NULL: none */
        struct tail_block *block;
};

struct tails {
        struct list_node with_room; /* blocks with a free page */
};

void tails_init(struct tails *t);
void tails_fini(struct tails *t); /* all must be released */

/* A page, aligned; its content is undefined. 0, -ENOMEM. */
int tail_take(struct tails *t, struct tail *ret);
/* Harmless if there is none. */
void tail_release(struct tails *t, struct tail *tail);
