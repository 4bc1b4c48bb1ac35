/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a tenant's requests reuse, so that hits allocate nothing: blocks for batches, and the
 * places of chains. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "tenant/tenant.h"

enum { REQUEST_BLOCKS = 16, REQUEST_CHAIN_SPARES = 16 };

struct request_memory {
        void *blocks[REQUEST_BLOCKS];             /* free blocks */
        unsigned n_unused, n_blocks;              /* free blocks; blocks allocated */
        void *chain_spares[REQUEST_CHAIN_SPARES]; /* free ranges of RANGE_MAX places (chain.c) */
        unsigned n_chain_spares;
};

/* Allocates the tenant's memory for requests, its table of mappings and its record of announced
 * returns. Returns 0 or -ENOMEM. */
int request_init(struct tenant *tenant);
/* Frees the memory, the table of mappings and the record. No batch and no chain may be in progress.
 * No effect before request_init(). */
void request_fini(struct tenant *tenant);

/* Returns a block of at least `bytes`, or NULL without memory. *ret_again is true for one of the
 * tenant's reusable blocks, and false for memory allocated for this use. */
void *request_block_take(struct request_memory *m, size_t bytes, bool *ret_again);
/* Releases a block of request_block_take(); `again` is the value that it stored in *ret_again. */
void request_block_release(struct request_memory *m, void *block, bool again);
