/* SPDX-License-Identifier: Apache-2.0 */
/* Implements search.h. Copies the keys and hashes, since the chain belongs to the caller. */
#include "remote/search.h"

#include <errno.h>
#include <stdlib.h>

#include "checked.h"

int search_init(struct search *s, const struct key *keys, const uint64_t *hashes, uint32_t n,
                uint32_t stride)
{
        struct search new = {
                .n = n,
                .high = n,
                .keys = calloc(n, sizeof(*new.keys)),
                .hashes = calloc(n, sizeof(*new.hashes)),
        };

        if (!new.keys || !new.hashes) {
                search_fini(&new);
                return -ENOMEM;
        }
        for (uint32_t i = 0; i < n; i++) {
                new.keys[i] = keys[(size_t)i * stride];
                new.hashes[i] = hashes[(size_t)i * stride];
        }
        *s = new;
        return 0;
}

void search_fini(struct search *s)
{
        free(s->keys);
        free(s->hashes);
        *s = (struct search){ 0 };
}

bool search_next(const struct search *s, uint32_t *ret)
{
        if (s->low >= s->high)
                return false;
        *ret = s->low + (s->high - s->low) / 2;
        return true;
}

void search_answer(struct search *s, uint32_t key, bool there)
{
        s->probes++;
        if (there)
                s->low = MAX(s->low, key + 1);
        else
                s->high = MIN(s->high, key);
}
