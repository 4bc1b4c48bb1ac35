/* SPDX-License-Identifier: Apache-2.0 */
/* What simulate was asked for: its options, read and checked. Errors are explained on stderr
 * here. */
#pragma once

#include "fleet.h"
#include "options.h"
#include "workload-source.h"

enum {
        SIMULATE_POLICIES = 8,
        SIMULATE_CAPACITIES = 32,
        SIMULATE_HOSTS = 32, /* numbers of them, in a list */
        SIMULATE_CELL_BYTES = 96,
};

extern const struct option_row simulate_options[];

/* A size of a cache, as it was asked for. */
struct capacity {
        char text[24];
        double share;   /* of the distinct blocks; with `is_share` */
        uint64_t bytes; /* of --disk, or of --shared with a unit; or 0 */
        uint64_t blocks;
        bool is_share;
};

struct simulate_arguments {
        struct workload_source source;
        const char *policies[SIMULATE_POLICIES];
        struct capacity capacities[SIMULATE_CAPACITIES];
        size_t n_policies, n_capacities;
        unsigned long long block_bytes, write_budget;
        double announced;
        const char *svg;

        /* Of a fleet: with one policy and one capacity. */
        const char *of_fleet; /* an option that only a fleet has; NULL: none was given */
        uint32_t hosts[SIMULATE_HOSTS];
        size_t n_hosts; /* 0: it is no fleet */
        struct capacity shared;
        bool shared_is_limited; /* `shared` is the limit */
        enum fleet_write write;
        enum fleet_route route;
        unsigned long long block_tokens;
        double prefill_rate;   /* tokens a second; 0: not given */
        double remote_latency; /* seconds */
};

/* EXIT_OK, or the status to end with; *ret_end says that this is it (help). */
int simulate_read_arguments(struct ctl *ctl, const struct command *self, int argc, char **argv,
                            struct simulate_arguments *a, bool *ret_end);

/* In blocks, once it is known how many distinct ones there are. False: it is less than one. */
bool capacity_set_blocks(struct capacity *c, uint64_t block_bytes, uint32_t distinct);
/* As a table shows it: "5% (9,139)". */
void capacity_text(const struct capacity *c, char ret[static SIMULATE_CELL_BYTES]);
