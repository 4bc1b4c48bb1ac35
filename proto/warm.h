/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is about to be needed. */
#pragma once

/* prefetch(address) to read it, prefetch(address, 1) to write it.
 *
 * A function that does nothing else has no effects in the eyes of gcc, which drops the calls to it
 * where it sees both; an empty statement that may not be dropped keeps them. */
#define warm(...)                                                                                  \
        ({                                                                                         \
                __builtin_prefetch(__VA_ARGS__);                                                   \
                __asm__ volatile("");                                                              \
        })
