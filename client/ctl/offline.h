/* SPDX-License-Identifier: Apache-2.0 */
/* Opens one volume of a store that no daemon has open. Creates nothing; entries that recovery
 * drops, and chunks found to be bad, are removed permanently. Calls block. */
#pragma once

#include <stdint.h>

#include "kvcache-admin.h"
#include "store/store.h"

struct offline;

/* Opens a volume, taking the store's lock as a daemon does. A process of root first switches to
 * the owner of the directory, so that files which are written still belong to the daemon's user.
 * `on_finding` is called for each dropped chunk, from within offline_verify(). Returns EXIT_OK;
 * otherwise the function has reported the failure, and the caller chooses the exit status. */
int offline_open(struct offline **ret, const char *directory,
                 void (*on_finding)(void *userdata, const struct store_finding *finding),
                 void *userdata);
/* Verifies a part of a segment, as kvcache_verify() does. Returns 0; -EINVAL if the volume or the
 * segment does not exist; -EIO if the verification failed for another reason than unreadable
 * chunks. */
int offline_verify(struct offline *o, struct kvcache_verify *verify);
void offline_get_stats(const struct offline *o, struct store_stats *ret);
const char *offline_namespace(const struct offline *o, uint32_t id);
/* Closes the volume; NULL is allowed. Returns NULL. */
struct offline *offline_close(struct offline *o);
