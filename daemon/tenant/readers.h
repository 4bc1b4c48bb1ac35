/* SPDX-License-Identifier: Apache-2.0 */
/* Records the peers that were given the descriptor of a tenant's pool. A peer keeps its mapping
 * until it unmaps it, and no process can take the mapping back. A pool that outlives the daemon
 * (memory.keep) may be used again only if each of these peers may still connect as this tenant.
 *
 * Loop thread. Bounded by READERS_MAX; beyond that, or without memory, the record says only that it
 * is incomplete. */
#pragma once

#include <stdbool.h>

#include "tenant/quota.h"

enum { READERS_MAX = 1024 };

struct readers {
        struct peer *items; /* distinct credentials; the pid has no meaning */
        unsigned n, room;
        bool incomplete;
};

/* Records the credentials unless they are recorded already. */
void readers_note(struct readers *r, const struct peer *p);
void readers_fini(struct readers *r);
