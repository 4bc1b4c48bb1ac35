/* SPDX-License-Identifier: Apache-2.0 */
/* Mappings of clients' memory, which buffers share: what several handles of one user register is
 * mapped, registered with the rings and charged once.
 *
 * A mapping is found by the file (device, inode, time of birth), the user and the tenant, and
 * serves every stretch within its own. Users and tenants never share one, whatever file they have
 * in common. The file is checked anew for each buffer, before it comes here. The charge is the
 * user's and not a connection's: it stays until the last share is released and the memory unmapped.
 *
 * Memory: one mapping for each region that is charged, no descriptors. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "cache/region.h"
#include "request/client.h"

/* A tenant's. */
struct mappings;
int mappings_new(struct mappings **ret); /* 0, -ENOMEM */
/* Nothing is mapped any more. */
struct mappings *mappings_free(struct mappings *all);

/* A buffer's share of a mapping. */
struct mapping_share {
        /* 0: it can be used; -errno: it could not be mapped, and this is no share any more. */
        void (*opened)(struct mapping_share *s, int result);
        void (*closed)(struct mapping_share *s);

        struct list_node node;
        struct mapping *mapping;
        uint64_t offset; /* of its stretch in the mapping's */
};

/* Finds or makes a mapping of a file that was checked; set before: opened, closed. OK: *ret_open
 * says that it can be used now; else opened() comes later, and the descriptor was taken if a new
 * mapping takes it. Otherwise why not: BUSY, QUOTA: it is not charged; BUSY as well: no memory. */
enum wire_status mapping_acquire(struct mapping_share *s, struct client *client,
                                 struct region_file *file, bool *ret_open);
/* No request uses this share any more: once after opened() with 0. closed() comes at once if others
 * share the mapping, else when it is unmapped. */
void mapping_release(struct mapping_share *s);
/* Of [offset, offset + length) in the share's stretch; what lies beyond that is the caller's to
 * exclude. */
void *mapping_at(const struct mapping_share *s, uint64_t offset, uint64_t length,
                 struct kio_region **ret_region);
