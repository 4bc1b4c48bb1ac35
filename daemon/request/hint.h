/* SPDX-License-Identifier: Apache-2.0 */
/* HINTs of clients, and what a PUT says of the return of its chain. Loop thread.
 *
 * A hint about reuse is advice: it reaches the eviction policies only if its user is believed, by
 * how far that user's announcements came true (evict/announced.h). The end of a chain is advice that
 * harms only the chain, and is always applied. The other kinds are requests: pin, demote, share. */
#pragma once

#include "request/internal.h"

/* Orders the keys of a hint from the end of the chain to its root, if its kind needs that. */
void hint_begin(struct batch *b);
/* Handles one key of a HINT. */
enum wire_status hint_look_up(struct batch *b, uint32_t i, struct cache *cache,
                              const struct key *key, uint64_t hash);
/* Records what a PUT says of the return of its chain, and fills in `b->promise` if it is believed. */
void hint_expect(struct batch *b);
/* Ends the announcement for a key that a client uses. */
void hint_note_use(const struct batch *b, uint64_t hash);
