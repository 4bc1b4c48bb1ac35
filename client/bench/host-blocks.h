/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers the blocks that each host of a fleet uses, from 0 on, so that a host's tables need
 * memory only for blocks that the host uses. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct host_blocks {
        struct host_block *table; /* hashed by host and block */
        size_t n_slots, n;
        uint32_t *count; /* number of blocks of each host */
};

/* Initializes the tables. Returns 0 or -ENOMEM; the caller may call host_blocks_fini() in both
 * cases. */
int host_blocks_init(struct host_blocks *b, uint32_t hosts);
void host_blocks_fini(struct host_blocks *b);
/* Sets `*ret` to the host's number of a block of the fleet, a new number at the block's first
 * use. Returns 0 or -ENOMEM. */
int host_blocks_number(struct host_blocks *b, uint32_t host, uint32_t block, uint32_t *ret);
