/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the requests of a tenant use again and again, so that hits allocate nothing: blocks
 * for batches, and the places of chains. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "tenant/tenant.h"

enum { REQUEST_BLOCKS = 16, REQUEST_CHAIN_SPARES = 16 };

struct request_memory {
        void *blocks[REQUEST_BLOCKS]; /* that no batch uses: */
        unsigned n_unused, n_blocks;  /* so many of so many */
        void *chain_spares[REQUEST_CHAIN_SPARES];
        unsigned n_chain_spares;
};

/* The tenant's memory for requests, and its mappings; 0, -ENOMEM. */
int request_init(struct tenant *tenant);
/* No batch and no chain is under way. Harmless before request_init(). */
void request_fini(struct tenant *tenant);

/* Of at least so many bytes, kept or allocated for this one alone: `*ret_again` tells
 * request_block_release() which. NULL: no memory. */
void *request_block_take(struct request_memory *m, size_t bytes, bool *ret_again);
void request_block_release(struct request_memory *m, void *block, bool again);
