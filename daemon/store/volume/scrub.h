/* SPDX-License-Identifier: Apache-2.0 */
/* Reading back what lies on one volume: the background pass, and verifying on request. See scrub.c;
 * only the store's files include this. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "store/volume/types.h"

struct scrub;
struct volume;

/* The buffer, once and for all. `now_ns` is the monotonic clock's. -ENOMEM. */
int scrub_new(struct scrub **ret, struct volume *v, uint64_t now_ns);
struct scrub *scrub_free(struct scrub *s); /* nothing of it is with a worker */

void scrub_set(struct scrub *s, const struct store_scrub *settings);
/* As store_verify(). */
int scrub_verify(struct scrub *s, struct store_verify *req);

/* Begins what is due, ends what cannot go on: the volume stops, or is bypassed. */
void scrub_iterate(struct scrub *s, uint64_t now_ns);
/* Calls complete() for what is verified. Did it, for any? */
bool scrub_reap(struct scrub *s);
/* When scrub_iterate() has something to do though nothing completes; 0: never. */
uint64_t scrub_deadline_ns(const struct scrub *s);

/* Adds its counts to what `ret` has. */
void scrub_get_stats(const struct scrub *s, struct store_stats *ret);
