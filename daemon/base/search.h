/* SPDX-License-Identifier: Apache-2.0 */
/* A binary search. */
#pragma once

#include <stdint.h>

/* Returns the least index of 0 to `n` at which `is_before`, an expression in the index `i`, is
 * false. The expression is true for all smaller indexes and false for all larger ones. */
#define search_first(n, i, is_before)                                                              \
        ({                                                                                         \
                uint32_t low_ = 0, high_ = (n);                                                    \
                                                                                                   \
                while (low_ < high_) {                                                             \
                        uint32_t i = low_ + (high_ - low_) / 2;                                    \
                                                                                                   \
                        if (is_before)                                                             \
                                low_ = i + 1;                                                      \
                        else                                                                       \
                                high_ = i;                                                         \
                }                                                                                  \
                low_;                                                                              \
        })
