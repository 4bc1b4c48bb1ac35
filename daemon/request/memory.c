/* SPDX-License-Identifier: Apache-2.0 */
/* Implements memory.h. Sixteen blocks per tenant are kept. While all are in use, and for a larger
 * batch, memory is allocated for that batch only. */
#include "request/memory.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/sanitizers.h"
#include "request/mapping.h"

enum { BLOCK_BYTES = 32 * 1024 }; /* bytes of a block; most batches fit */

int request_init(struct tenant *tenant)
{
        tenant->request_memory = calloc(1, sizeof(*tenant->request_memory));
        if (!tenant->request_memory || announced_new(&tenant->announced) < 0)
                return -ENOMEM;
        return mappings_new(&tenant->mappings);
}

void request_fini(struct tenant *tenant)
{
        struct request_memory *m = tenant->request_memory;

        tenant->announced = announced_free(tenant->announced);
        if (!m)
                return;
        assert(m->n_unused == m->n_blocks);
        while (m->n_unused > 0)
                free(m->blocks[--m->n_unused]);
        while (m->n_chain_spares > 0)
                free(m->chain_spares[--m->n_chain_spares]);
        free(m);
        tenant->request_memory = NULL;
        tenant->mappings = mappings_free(tenant->mappings);
}

/* The sanitizer detects accesses beyond the requested bytes, and accesses to a free block. */
void *request_block_take(struct request_memory *m, size_t bytes, bool *ret_again)
{
        char *block;

        *ret_again = bytes <= BLOCK_BYTES && (m->n_unused > 0 || m->n_blocks < REQUEST_BLOCKS);
        if (!*ret_again)
                return malloc(bytes);
        if (m->n_unused > 0) {
                block = m->blocks[--m->n_unused];
        } else {
                block = malloc(BLOCK_BYTES);
                if (!block)
                        return NULL;
                m->n_blocks++;
        }
        SANITIZERS_ALLOW(block, bytes);
        SANITIZERS_FORBID(block + bytes, BLOCK_BYTES - bytes);
        return block;
}

void request_block_release(struct request_memory *m, void *block, bool again)
{
        if (!again) {
                free(block);
                return;
        }
        SANITIZERS_FORBID(block, BLOCK_BYTES);
        m->blocks[m->n_unused++] = block;
}
