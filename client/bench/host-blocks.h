/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers for the blocks of each host of a fleet, from 0 on, so that all hosts together need no
 * more memory than the blocks that they use. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct host_blocks {
        struct host_block *table; /* hashed by host and block */
        size_t n_slots, n;
        uint32_t *count; /* by host: its blocks */
};

/* Returns 0 or -ENOMEM. host_blocks_fini() may follow in any case. */
int host_blocks_init(struct host_blocks *b, uint32_t hosts);
void host_blocks_fini(struct host_blocks *b);
/* Returns the host's number of a block of the fleet, a new one at its first use. Returns 0 or
 * -ENOMEM. */
int host_blocks_number(struct host_blocks *b, uint32_t host, uint32_t block, uint32_t *ret);
