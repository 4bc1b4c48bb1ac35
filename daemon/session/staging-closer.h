/* SPDX-License-Identifier: Apache-2.0 */
/* Frees the staging areas of sessions that have ended. To unmap an area of 64 MiB that was used,
 * and to free its memory, takes milliseconds, so a blocking-call thread does it while the loop
 * serves others. The session ends at once; the area stays charged to its user until it is freed.
 * Areas of a user are freed one after another, and users take turns. Loop thread. */
#pragma once

#include "cache/staging.h"
#include "io/io.h"
#include "tenant/quota.h"

/* Of the blocking-call thread that does it: io's, no device of the store has it. */
enum { STAGING_THREAD = KIO_VOLUMES_MAX - 4 };

struct staging_closer;

int staging_closer_new(struct staging_closer **ret, struct kio *io);
struct staging_closer *staging_closer_free(struct staging_closer *c); /* all must be freed */

/* Takes the area over, and what `holds` is charged for it. Nothing uses it any more. */
void staging_closer_add(struct staging_closer *c, struct staging *staging,
                        struct quota_holder *holds);
/* Not freed yet. */
unsigned staging_closer_count(const struct staging_closer *c);
