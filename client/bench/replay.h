/* SPDX-License-Identifier: Apache-2.0 */
/* Replays a workload against the daemon as an engine would, and checks every byte received.
 *
 * A request is a chain of block ids: match it, get the hit prefix (mapped, in place), put the rest
 * in order, and hold leases on its blocks until it ends. Contents are derived from keys
 * (payload.h). A block that match reported and get did not find is an ordinary miss, and is put
 * again.
 *
 * Several clients are threads with one connection each, which take the requests in order from one
 * queue. The blocks that a client requests and holds at a time are small parts of the pool, so that
 * clients cannot wait for each other's leases. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "latency.h"
#include "replay-types.h"
#include "workload.h"

struct replay_result {
        struct replay_counts counts;
        struct latency match, get,
                put; /* latency of each call, which handles a round of several blocks */
        struct replay_part parts[REPLAY_PARTS];
        double seconds;
        bool evictions_known;
        uint64_t evictions; /* evictions during the replay, as counted by the daemon; if it was
                               restarted, only those since then */
        bool interrupted;
        int status;                    /* exit status of the replay */
        char error[REPLAY_TEXT_BYTES]; /* reason for the early end, unless `status` is EXIT_OK */
        char first_wrong[REPLAY_TEXT_BYTES]; /* first wrong block and position; "" if all bytes
                                                were right */
};

/* Runs a replay, and fills `ret` with the results up to its end. Returns ret->status, which does
 * not include wrong bytes and errors that did not end the replay. */
int replay_run(const struct replay_options *options, const struct workload *workload,
               struct replay_result *ret);
void replay_result_fini(struct replay_result *result);

/* Gets kvcache_evictions_total from the daemon's stats: the number; if there is one number per
 * tier, that of the disk, or else their sum. Returns false if the stats do not have it. */
bool replay_parse_evictions(const char *stats_json, uint64_t *ret);

/* Formats the figures of a progress line. Returns the completed part of the workload, 0 to 1. */
enum { REPLAY_PROGRESS_BYTES = 256 };
double replay_progress_text(const struct replay_progress *now,
                            char ret[static REPLAY_PROGRESS_BYTES]);
