/* SPDX-License-Identifier: Apache-2.0 */
/* The announced use of a chain, in the form in which a policy receives it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* A use counts as announced until twice the announced time and these seconds have passed, because
 * times are announced in whole seconds. */
enum { PROMISE_TOLERATED_S = 2 };

/* An announced use of a chain, in `seconds`. `belief` is the share of such announcements that come
 * true. `number` differs between announcements; it is 0 in a struct that stands for no
 * announcement. The items of a chain are promised from its end to its root, or, with
 * `is_from_root`, from its root to its end. */
struct evict_promise {
        uint64_t number;
        uint32_t seconds;
        float belief;
        bool is_from_root;
};
