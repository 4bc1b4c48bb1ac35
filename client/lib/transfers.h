/* SPDX-License-Identifier: Apache-2.0 */
/* What the program, or client/gpu, has moved by itself: counters in a page of the daemon's, which
 * reads them when it reports. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "transfer-page.h"

struct transfers_own;

/* Of a session. */
struct transfers {
        struct transfers_own *own;  /* NULL: nothing has been counted yet */
        struct transfer_page *page; /* NULL: not there yet, or not to be had */
        bool asked;                 /* TRANSFERS has been sent */
};

/* `sum` is what `n` operations have moved together in its latency_ns, which end now. 0; -ENOSPC: no
 * slot is left; -ENOMEM. */
int transfers_count(struct transfers *t, uint32_t key, const struct transfer_record *sum,
                    uint64_t n, uint64_t now_ns);
/* The reply to TRANSFERS; `fd` stays the caller's. A page that cannot be used is done without. */
void transfers_take(struct transfers *t, int fd);
/* `forked`: in a child, which does not have the page. */
void transfers_fini(struct transfers *t, bool forked);
