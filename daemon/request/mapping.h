/* SPDX-License-Identifier: Apache-2.0 */
/* Mappings of client memory, shared by registered buffers. Memory that one user registers several
 * times is mapped, registered with the rings and charged once.
 *
 * A mapping is identified by the file (device, inode, time of birth), the user and the tenant, and
 * serves every range within its own. Different users or tenants never share one, even for the same
 * file. The caller has checked the file for each buffer. The charge belongs to the user rather than
 * to a connection, and lasts until the last share is released and the memory unmapped.
 *
 * There are at most as many mappings as charged regions, and an open mapping keeps no descriptor.
 * Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "cache/region.h"
#include "request/client.h"

/* The mappings of a tenant. */
struct mappings;
int mappings_new(struct mappings **ret); /* returns 0 or -ENOMEM */
/* Frees the table, which must be empty. */
struct mappings *mappings_free(struct mappings *all);

/* A buffer's share of a mapping. */
struct mapping_share {
        /* Reports that the share can be used (0), or that the mapping failed (-errno) and the share
         * has ended. */
        void (*opened)(struct mapping_share *s, int result);
        void (*closed)(struct mapping_share *s);

        struct list_node node;
        struct mapping *mapping;
        uint64_t offset; /* offset of the share's range within the mapping */
};

/* Finds or creates the mapping of a checked file, for a share with opened() and closed() set.
 * Returns WIRE_OK, and in *ret_open whether the share can be used now; otherwise opened() follows.
 * A new mapping takes the file's descriptor and sets it to -1; otherwise the caller keeps it.
 * Returns QUOTA or BUSY if the charge is refused or there is no memory. */
enum wire_status mapping_acquire(struct mapping_share *s, struct client *client,
                                 struct region_file *file, bool *ret_open);
/* Releases a share that no request uses. Call it once after opened() with 0. Calls closed() at once
 * if others share the mapping, otherwise after the unmapping. */
void mapping_release(struct mapping_share *s);
/* Returns the address of [offset, offset + length) within the share's range. Returns NULL beyond
 * the mapping; the caller must exclude anything beyond the share's range. */
void *mapping_at(const struct mapping_share *s, uint64_t offset, uint64_t length,
                 struct kio_region **ret_region);
