/* SPDX-License-Identifier: Apache-2.0 */
/* Frees the staging areas of ended sessions. Unmapping a used area of 64 MiB and freeing its memory
 * takes milliseconds, so a blocking-call thread does it while the loop serves others. The session
 * ends at once; the area stays charged to its user until it is freed. A user's areas are freed one
 * after another, and users take turns. Loop thread. */
#pragma once

#include "cache/staging.h"
#include "io/io.h"
#include "tenant/quota.h"

/* The number of its blocking-call thread. Such a thread has a number like a volume of the store,
 * but one that no volume has. */
enum { STAGING_THREAD = KIO_VOLUMES_MAX - 4 };

struct staging_closer;

/* Creates a closer. Returns 0 or -ENOMEM. */
int staging_closer_new(struct staging_closer **ret, struct kio *io);
struct staging_closer *staging_closer_free(struct staging_closer *c); /* all areas must have been
                                                                       * freed */

/* Takes over an area that is no longer used, and the charge in `holds` for it. Without memory for a
 * record, it frees the area at once. */
void staging_closer_add(struct staging_closer *c, struct staging *staging,
                        struct quota_holder *holds);
/* Returns the number of areas not freed yet. */
unsigned staging_closer_count(const struct staging_closer *c);
