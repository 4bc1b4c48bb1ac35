/* SPDX-License-Identifier: Apache-2.0 */
/* Merging of adjacent requests: reads, or writes, of adjacent ranges of a file that wait
 * together at a worker become one operation. Private to io/.
 *
 * Merging saves work in the file system for each request, most of all for a first write, since
 * the extent is converted once. If the merged operation fails or is short, its requests are
 * separated and submitted one by one, so that each gets its own result. A bad block therefore
 * delays the adjacent requests by one failed operation, and its own request by two. */
#pragma once

#include "io/request.h"

struct merge {
        struct merged *all;      /* array of merged operations; NULL if memory was short, and then
                                  * nothing is merged */
        struct list_node unused; /* merged operations that are free */
};

/* Allocates `n` merged operations. Without memory for them, no request is merged. */
void merge_init(struct merge *j, unsigned n);
void merge_fini(struct merge *j);

/* Removes the first request from `ready`, which must not be empty, and merges it with adjacent
 * ones from the head of the list. Returns the merged request, whose `parts` is not NULL, or the
 * first request itself. */
struct kio_request *merge_take(struct merge *j, struct list_node *ready);
/* Releases a merged request and appends its parts to `ret_parts`, in the order of their offsets. */
void merge_split(struct merge *j, struct kio_request *req, struct list_node *ret_parts);
