/* SPDX-License-Identifier: Apache-2.0 */
/* The announced use of a chain, as a policy gets it. */
#pragma once

#include <stdint.h>

/* An announced use of a chain, in `seconds`. `belief` is the share of such announcements that come
 * true. `number` is not 0 and differs between announcements. */
struct evict_promise {
        uint64_t number;
        uint32_t seconds;
        float belief;
};
