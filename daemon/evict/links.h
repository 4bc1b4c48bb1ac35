/* SPDX-License-Identifier: Apache-2.0 */
/* Links of the lists that policies keep items in. A link is 0 (not in), LINK_END and a list's
 * number, or one more than an item. */
#pragma once

#include <stdint.h>

#include "evict/evict.h"

#define LINK_END (UINT32_C(1) << 31)

/* Item or EVICT_NONE. */
static inline uint32_t link_item(uint32_t link)
{
        return link & LINK_END ? EVICT_NONE : link - 1;
}
