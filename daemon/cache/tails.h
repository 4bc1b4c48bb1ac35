/* SPDX-License-Identifier: Apache-2.0 */
/* Pages for the tails of direct transfers: the last part of a chunk, which does not fill a block of
 * the device. Pages are mapped and unmapped in blocks of several, because malloc() needs twice the
 * memory for an aligned page and does not return it. Loop thread. */
#pragma once

#include "base/list.h"

enum { TAIL_BYTES = 4096 };

struct tail_block;
struct tail {
        void *page; /* NULL if none */
        struct tail_block *block;
};

struct tails {
        struct list_node with_room; /* blocks with a free page */
};

void tails_init(struct tails *t);
void tails_fini(struct tails *t); /* all must be released */

/* Takes an aligned page with undefined content. Returns 0 or -ENOMEM. */
int tail_take(struct tails *t, struct tail *ret);
/* Releases the page and clears *tail. No effect if there is no page. */
void tail_release(struct tails *t, struct tail *tail);
