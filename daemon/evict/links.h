/* SPDX-License-Identifier: Apache-2.0 */
/* Links of the lists in which policies keep items. A link is 0 (absent), LINK_END combined with a
 * list's number, or an item's number plus one. */
#pragma once

#include <stdint.h>

#include "evict/evict.h"

#define LINK_END (UINT32_C(1) << 31)

/* Returns the item of a link, or EVICT_NONE for the end of a list. */
static inline uint32_t link_item(uint32_t link)
{
        return link & LINK_END ? EVICT_NONE : link - 1;
}
