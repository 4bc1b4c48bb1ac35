/* SPDX-License-Identifier: Apache-2.0 */
/* Removes a namespace that is unused: no session has it open, and it is known to hold no chunk,
 * neither on a volume nor in memory. The daemon removes it on its own initiative; the checks, and
 * the way in which the removal is recorded on disk, are those of NAMESPACE_REMOVE.
 *
 * Loop thread. The caller owns the struct until complete() is called, which may be before
 * removal_start() returns. Failures: a namespace stays (REMOVAL_USED), and counts as used at that
 * time, if a session has it open, if it has chunks, if an offline volume may have chunks of it, or
 * if the daemon is stopping. */
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
        /* 0 if the removal is on stable storage; REMOVAL_USED if the namespace stays, or does not
         * exist; -errno if the removal failed. The namespace then stays if store_namespace_get()
         * still finds it; otherwise it is removed from memory, but may be back after a restart. */
        int result;
        void (*complete)(struct removal *removal);

        /* Private to the module. */
        struct service *service;
        struct cache_count count;
        struct store_namespace_remove store;
};
void removal_start(struct removal *removal, struct service *service, uint32_t id,
                   void (*complete)(struct removal *removal));

/* Returns whether all volumes are in use, so that a namespace can be known to be empty. */
bool removal_sees_all(const struct service *service);
/* Reports a removed namespace to the shared tier and the events, and drops its counts. */
void removal_forget(struct service *service, uint32_t id);
