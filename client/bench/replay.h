/* SPDX-License-Identifier: Apache-2.0 */
/* Plays a workload against the daemon as an engine would, and checks every byte that it gets.
 *
 * A request is a chain of block ids: match it, get the hit prefix (mapped, in place), put the rest
 * in order, and hold leases on its blocks until it ends. Contents follow from keys (payload.h). A
 * block that match promised and get did not find is a miss like another, and is put again.
 *
 * Several clients are threads, one connection each; they take the requests in order from one queue.
 * What a client asks for at once, and what it holds, are small parts of the pool, so that clients
 * cannot wait for each other's leases. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "latency.h"
#include "replay-types.h"
#include "workload.h"

struct replay_result {
        struct replay_counts counts;
        struct latency match, get, put; /* of one call: a round of blocks, not one block */
        double seconds;
        bool evictions_known;
        uint64_t evictions; /* from the store, by the daemon's own count */
        bool interrupted;
        int status;                          /* exit status; but for EXIT_OK: */
        char error[REPLAY_TEXT_BYTES];       /* why it ended early */
        char first_wrong[REPLAY_TEXT_BYTES]; /* which block, and where; "" when all were right */
};

/* `ret` is filled in as far as it came. Returns ret->status: wrong bytes and errors that did not
 * end the replay are not in it. */
int replay_run(const struct replay_options *options, const struct workload *workload,
               struct replay_result *ret);
void replay_result_fini(struct replay_result *result);

/* kvcache_evictions_total in the daemon's stats: a number, or one a tier. */
bool replay_parse_evictions(const char *stats_json, uint64_t *ret);

/* The figures for a progress line; returns how much of the workload is done, from 0 to 1. */
enum { REPLAY_PROGRESS_BYTES = 256 };
double replay_progress_text(const struct replay_progress *now,
                            char ret[static REPLAY_PROGRESS_BYTES]);
