/* SPDX-License-Identifier: Apache-2.0 */
/* Merges adjacent requests: if reads, or writes, of adjacent places in a file wait together, the
 * worker submits one merged operation. Private to io/.
 *
 * It saves the file system's work for each of them; most of all for a first write, since the extent
 * is converted once. If the merged operation fails or is short, its parts are separated and
 * submitted one by one, so that each gets its own result. So a bad block delays the adjacent
 * requests by one failed operation, and its own by two. */
#pragma once

#include "io/request.h"

struct merge {
        struct merged *all;      /* NULL: nothing is joined */
        struct list_node unused; /* of them */
};

/* Up to `n` at a time. */
void merge_init(struct merge *j, unsigned n);
void merge_fini(struct merge *j);

/* Takes what stands first in `ready`, and with it those that follow there and are adjacent to it:
 * one request then, with parts. */
struct kio_request *merge_take(struct merge *j, struct list_node *ready);
/* Takes one with parts apart: they come to `ret_parts` as they were, by their places. */
void merge_split(struct merge *j, struct kio_request *req, struct list_node *ret_parts);
