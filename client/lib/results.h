/* SPDX-License-Identifier: Apache-2.0 */
/* The results of a request: the program's array, in the element size that the program was built
 * with. */
#pragma once

#include "lib/abi.h"

struct results {
        struct kvcache_result *base; /* NULL: the program wants no results */
        size_t size;                 /* size of one element */
};

__attribute__((cold)) void results_set_sized(const struct results *to, size_t i,
                                             const struct kvcache_result *r);

static inline void results_set(const struct results *to, size_t i, const struct kvcache_result *r)
{
        if (to->size == sizeof(*r))
                to->base[i] = *r;
        else
                results_set_sized(to, i, r);
}
