/* SPDX-License-Identifier: Apache-2.0 */
/* A removal removes a namespace that nothing uses: no session has it open, and it is known to hold
 * no chunk, neither on a volume nor in memory. No client asked for it by name; the checks, and the
 * way of the removal to disk, are those of NAMESPACE_REMOVE.
 *
 * Loop thread. The caller owns the struct until complete() is called, which may be before
 * removal_start() returns. Failures: a namespace that is used, or of which that cannot be known
 * because a volume is offline, stays (REMOVAL_USED), and counts as used at that time. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "cache/cache.h"
#include "wire.h"

struct service;

enum { REMOVAL_USED = 1 };

struct removal {
        uint32_t id;
        char name[WIRE_MAX_NAME + 1];
        /* 0: removed, on stable storage. REMOVAL_USED. -errno: removed from memory, but it may be
         * back after a restart; -ENOMEM: it stays. */
        int result;
        void (*complete)(struct removal *removal);

        /* The module's. */
        struct service *service;
        struct cache_count count;
        struct store_namespace_remove store;
};
void removal_start(struct removal *removal, struct service *service, uint32_t id,
                   void (*complete)(struct removal *removal));

/* Returns whether all volumes are in use, so that a namespace can be known to be empty. */
bool removal_sees_all(const struct service *service);
/* Ends what the service keeps for a namespace that was removed. */
void removal_forget(struct service *service, uint32_t id);
