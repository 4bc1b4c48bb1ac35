/* SPDX-License-Identifier: Apache-2.0 */
/* Neighbours on the disk go to the device as one operation: a request that is made up of others.
 * Only io/ includes this.
 *
 * It saves a system's way through its file system for each of them, of which a first write is the
 * longest: the extent is converted once. A failure or a short transfer is nobody's yet: the parts
 * are taken apart and go one by one, so that each gets what is its own. The price is that a bad
 * place makes its neighbours wait for the device's first answer, and itself for two. */
#pragma once

#include "io/request.h"

struct merge {
        struct merged *all;      /* NULL: nothing is joined */
        struct list_node unused; /* of them */
};

/* Up to `n` at a time. */
void merge_init(struct merge *j, unsigned n);
void merge_fini(struct merge *j);

/* Takes what stands first in `ready`, and with it those that follow there and are its neighbours:
 * one request then, with parts. */
struct kio_request *merge_take(struct merge *j, struct list_node *ready);
/* Takes one with parts apart: they come to `ret_parts` as they were, by their places. */
void merge_split(struct merge *j, struct kio_request *req, struct list_node *ret_parts);
