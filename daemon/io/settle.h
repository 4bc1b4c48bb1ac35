/* SPDX-License-Identifier: Apache-2.0 */
/* The answers of a worker's device: decides how a request continues after the device, or the worker
 * itself, has finished a part of it. Runs on the worker's thread. Private to io/. */
#pragma once

#include "io/worker-state.h"

/* Advances the integral of transfers in flight over time. Call it before their number changes. */
void settle_account(struct worker *w, uint64_t now);
/* Ends a request with its result: 0 or -errno. A read with `wipe` that failed, or whose checksum is
 * wrong, is queued for wiping of its memory instead, and ended after that. */
void settle_request(struct worker *w, struct kio_request *req, int64_t result, uint64_t now);
/* Updates the worker's `busy`, `hanging` and `oldest_ns` for a volume, after the list of the
 * volume's operations in flight has changed. */
void settle_note_volume(struct worker *w, unsigned volume);
/* Appends the parts of a merged request, in order, or the request itself, to `ret_parts`. */
void settle_take_apart(struct worker *w, struct kio_request *req, struct list_node *ret_parts);
/* Puts the requests in front of all others of their class that are ready, in their order. */
void settle_put_back(struct worker *w, struct list_node *parts);
/* Takes a bounded number of the device's answers, and moves each request to `done`, `compute` or
 * back to `ready`. Returns the number of answers taken. */
unsigned settle_reap(struct worker *w);
