/* SPDX-License-Identifier: Apache-2.0 */
/* Shows where the time of a batch is spent: joins the times of the client with those of the
 * daemon's report of stages for many equal batches, and takes the median of each point. All times
 * are CLOCK_MONOTONIC of this host. */
#pragma once

#include <cjson/cJSON.h>
#include <stdint.h>

#include "latency.h"

/* Points in the life of a batch. Several operations may pass a point: its time is that of the first
 * one for points named BEGUN, and that of the last one for all others. waterfall_point_name()
 * describes each point. */
enum waterfall_point {
        WATERFALL_RECEIVED,  /* the loop thread has received the request */
        WATERFALL_SUBMITTED, /* the loop thread has begun all keys of the request */
        WATERFALL_COPY_BEGUN,
        WATERFALL_COPY_DONE,
        WATERFALL_COPY_TAKEN,
        WATERFALL_READ_BEGUN,
        WATERFALL_READ_DEVICE,
        WATERFALL_READ_DONE,
        WATERFALL_READ_TAKEN,
        WATERFALL_WRITE_BEGUN,
        WATERFALL_WRITE_DEVICE,
        WATERFALL_WRITE_TAKEN,
        WATERFALL_TABLE_BEGUN,
        WATERFALL_TABLE_DEVICE,
        WATERFALL_TABLE_TAKEN,
        WATERFALL_REPLIED, /* the reply is in the socket */
        WATERFALL_ENDED,   /* the client's call returns */
        WATERFALL_POINTS
};

struct waterfall {
        struct latency points[WATERFALL_POINTS]; /* ns from the beginning of the call */
        uint64_t unseen; /* batches that were added without being in the daemon's report */
};

const char *waterfall_point_name(enum waterfall_point point);
/* Adds a batch: a call from `begin_ns` to `end_ns` of the operation "GET" or "PUT" with `keys`
 * keys, and `report`, fetched from the daemon after it. A batch that is missing from the report is
 * counted in `unseen`. Returns 0, or -EINVAL if the report is malformed. */
int waterfall_add(struct waterfall *w, const cJSON *report, const char *operation, uint64_t keys,
                  uint64_t begin_ns, uint64_t end_ns);
/* Selects the points that at least half of the batches passed, in the order of their median times.
 * Returns their number. */
unsigned waterfall_order(struct waterfall *w, enum waterfall_point ret[static WATERFALL_POINTS]);
void waterfall_fini(struct waterfall *w);
