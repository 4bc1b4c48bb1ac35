/* SPDX-License-Identifier: Apache-2.0 */
/* Plays a workload against a replacement policy of the daemon's, without data, and against the
 * optimum.
 *
 * A request hits its longest prefix that is cached; then all of its blocks are touched, the last
 * first, and those that are missing come in. No block of a request goes while it is served. Blocks
 * are of one size; of a request that is longer than the cache only the beginning comes in. The
 * cache is empty at first. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "workload.h"

/* A workload whose ids are numbered from 0 on, in the order of their first use. */
struct simulation {
        const struct workload *workload;
        uint32_t *blocks;  /* as workload.ids */
        uint32_t n_blocks; /* distinct ones */
        double announced;  /* of the ends of sessions, this share is announced; set after init */
        /* Bytes a day that may be written, by the timestamps of the workload, and those of a block;
         * 0: as many as there are. "opt" takes no notice. Set after init. */
        uint64_t write_budget, block_bytes;
};

struct simulation_result {
        uint64_t blocks_asked, blocks_hit;
        uint64_t touches, evictions;
        uint64_t writes;                     /* blocks that came in */
        uint64_t refused_first, refused_dry; /* that did not, as of evict/admission.h */
        double seconds;                      /* of CPU time */
};

/* Reads `workload`, which must outlive it. 0, -ENOMEM, -E2BIG: more blocks than a policy can have
 * items. */
int simulation_init(struct simulation *s, const struct workload *workload);
void simulation_fini(struct simulation *s);

/* By request of the workload: is it announced as its session's last? A session goes on with a
 * request that repeats all but the last, partial block of this one; of those that do not, a share
 * that is always the same is. NULL: none is. 0, -ENOMEM. */
int simulation_choose_ends(const struct simulation *s, uint8_t **ret);

/* "lru", "cq" or "opt". */
bool simulation_policy_exists(const char *policy);

/* `capacity`: blocks, 1 or more. "opt" is what a cache could have hit at most that knows the
 * future: it evicts what is used again the latest (Belady); of blocks that are used again at the
 * same time the one that is deepest in its chain, so that what is cached is made of prefixes. 0,
 * -EINVAL, -ENOMEM. */
int simulation_run(const struct simulation *s, const char *policy, uint32_t capacity,
                   struct simulation_result *ret);

/* Of this thread, to measure how fast a simulation is. */
double simulation_cpu_seconds(void);
