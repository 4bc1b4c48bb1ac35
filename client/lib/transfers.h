/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of the transfers that the program or client/gpu makes itself, in a page that the daemon
 * provides and reads when it reports. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "transfer-page.h"

struct transfers_own;

/* The counters of the transfers of one session. */
struct transfers {
        struct transfers_own *own;  /* NULL: no transfer has been counted */
        struct transfer_page *page; /* NULL: not received yet, or not available */
        bool asked;                 /* TRANSFERS has been queued or sent */
};

/* Counts `n` operations that end at `now_ns`. `sum` has their totals; its latency_ns is the time
 * that they took together. Returns 0; -ENOSPC if no slot is left; -ENOMEM. */
int transfers_count(struct transfers *t, uint32_t key, const struct transfer_record *sum,
                    uint64_t n, uint64_t now_ns);
/* Maps the page of the reply to TRANSFERS; the caller keeps `fd`. A page that cannot be used is
 * ignored. */
void transfers_take(struct transfers *t, int fd);
/* Frees the counters. `forked`: the process is a child, which does not have the mapping. */
void transfers_fini(struct transfers *t, bool forked);
