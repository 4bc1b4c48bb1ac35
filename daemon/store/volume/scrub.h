/* SPDX-License-Identifier: Apache-2.0 */
/* Reads chunks of one volume back: the background pass, and verification on request; see scrub.c.
 * Only the store's files include this. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "store/volume/types.h"

struct scrub;
struct volume;

/* Creates the reader and its buffer. `now_ns` is the monotonic time. Returns 0 or -ENOMEM. */
int scrub_new(struct scrub **ret, struct volume *v, uint64_t now_ns);
struct scrub *scrub_free(struct scrub *s); /* no operation may be in flight */

void scrub_set(struct scrub *s, const struct store_scrub *settings);
/* Implements store_verify() for this volume. */
int scrub_verify(struct scrub *s, struct store_verify *req);

/* Starts the reads that are due. If the volume stops or is bypassed, ends the pass and all requests
 * instead. */
void scrub_iterate(struct scrub *s, uint64_t now_ns);
/* Calls complete() for finished requests. Returns whether there were any. */
bool scrub_reap(struct scrub *s);
/* Returns the CLOCK_MONOTONIC time at which scrub_iterate() must be called even if nothing
 * completes; 0 if never. */
uint64_t scrub_deadline_ns(const struct scrub *s);

/* Adds the scrub's counters to those in `ret`. */
void scrub_get_stats(const struct scrub *s, struct store_stats *ret);
