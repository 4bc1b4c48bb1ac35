/* SPDX-License-Identifier: Apache-2.0 */
/* One volume of a store that no daemon has open, opened as it is. Nothing is created in it, but
 * what recovery drops, and chunks that are found to be bad, are removed for good. Blocks. */
#pragma once

#include <stdint.h>

#include "kvcache-admin.h"
#include "store/store.h"

struct offline;

/* Takes the store's lock as a daemon does. As root, with the rights of the directory's owner: what
 * is written must stay the daemon's. `on_finding`: what is dropped, from within offline_verify().
 * EXIT_OK; else it has been said why, and the status is for the caller to choose. */
int offline_open(struct offline **ret, const char *directory,
                 void (*on_finding)(void *userdata, const struct store_finding *finding),
                 void *userdata);
/* As kvcache_verify(). */
int offline_verify(struct offline *o, struct kvcache_verify *verify);
void offline_get_stats(const struct offline *o, struct store_stats *ret);
const char *offline_namespace(const struct offline *o, uint32_t id);
/* NULL is fine. */
struct offline *offline_close(struct offline *o);
