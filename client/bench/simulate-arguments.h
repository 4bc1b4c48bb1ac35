/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and checks the options of simulate. These functions report errors on stderr. */
#pragma once

#include "fleet.h"
#include "options.h"
#include "workload-source.h"

enum {
        SIMULATE_POLICIES = 8,
        SIMULATE_CAPACITIES = 32,
        SIMULATE_HOSTS = 32, /* maximum number of entries in a list of numbers of hosts */
        SIMULATE_CELL_BYTES = 96,
};

extern const struct option_row simulate_options[];

/* The size of a cache, as given. */
struct capacity {
        char text[24];
        double share;    /* size divided by the number of distinct blocks; as given, or set by
                            capacity_set_blocks() if `is_share` is false */
        uint64_t bytes;  /* size of --disk, or of --shared with a unit; otherwise 0 */
        uint64_t blocks; /* size as given; otherwise set by capacity_set_blocks() */
        bool is_share;   /* given as a percentage */
};

struct simulate_arguments {
        struct workload_source source;
        const char *policies[SIMULATE_POLICIES];
        struct capacity capacities[SIMULATE_CAPACITIES];
        size_t n_policies, n_capacities;
        unsigned long long block_bytes, write_budget;
        double announced, returns, stops, liars;
        const char *svg;
        bool plots;          /* plot in characters on standard output */
        const char *explain; /* the block to explain: an id or a key; NULL: none */

        /* Members for fleets, which have one policy and one capacity. */
        const char
                *of_fleet; /* name of a given option that only fleets have; NULL: none was given */
        uint32_t hosts[SIMULATE_HOSTS];
        size_t n_hosts; /* number of entries in the list of numbers of hosts; 0: not a fleet */
        struct capacity shared;
        bool shared_is_limited; /* `shared` limits the size of the shared tier; false: the tier is
                                   unlimited */
        enum fleet_write write;
        enum fleet_route route;
        double lag; /* seconds until an event reaches the router */
        bool has_lag;
        unsigned long long block_tokens;
        double prefill_rate;   /* tokens per second; 0: not given */
        double remote_latency; /* seconds */
};

/* Reads the arguments. Returns EXIT_OK, or another status after reporting an error. Sets `*ret_end`
 * to whether the command must end now: after an error, or because --help was given. */
int simulate_read_arguments(struct ctl *ctl, const struct command *self, int argc, char **argv,
                            struct simulate_arguments *a, bool *ret_end);

/* Computes the size in blocks, once the number of distinct blocks, 1 or more, is known. A share is
 * one block or more. Returns false if another size is less than one block. */
bool capacity_set_blocks(struct capacity *c, uint64_t block_bytes, uint32_t distinct);
/* Formats the size for a table: "5% (9,139)", or only the number of blocks if it was given. */
void capacity_text(const struct capacity *c, char ret[static SIMULATE_CELL_BYTES]);
