/* SPDX-License-Identifier: Apache-2.0 */
/* Prefetches memory into the caches. */
#pragma once

/* Prefetches an address: warm(address) to read it, warm(address, 1) to write it.
 *
 * gcc considers a function that only prefetches free of effects and drops calls to it; the volatile
 * asm statement prevents that. */
#define warm(...)                                                                                  \
        ({                                                                                         \
                __builtin_prefetch(__VA_ARGS__);                                                   \
                __asm__ volatile("");                                                              \
        })
