/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of random histories: each begins one on a key, and tells the model what becomes of it.
 * Any number are in flight together. */
#pragma once

#include "cache-fixture.h"

void history_begin(uint32_t seed);
/* Returns a number below `below`, which follows from the seed. */
uint32_t draw(uint32_t below);
/* Drops that have not been answered will not be: they may be undone. */
void history_crashes(void);

void put_one(uint32_t n);
void get_one(uint32_t n);
/* Waits for a get. */
enum cache_status get_now(uint32_t n);
/* Tells the model that chunks have left the disk for lack of room, or that a volume is not in use.
 */
void note_losses(void);
/* Ends the requests that were answered. `killed`: their clients did not get the answers. */
void end_requests(bool killed);
void assert_all_have_ended(void);

void evict_one(uint32_t n);
void purge_all(void);
void expire_one(uint32_t n);
/* Purges and removes the namespace once the requests have ended, and makes it again, under the same
 * id or a new one. */
void remove_namespace(void);

/* Pins a chunk in memory as a lease does, or ends an earlier pin. */
void pin_one(uint32_t n);
void unpin_pinned(void);
/* Pins a chunk for a client, or ends that. */
void retain_one(uint32_t n);
