/* SPDX-License-Identifier: Apache-2.0 */
/* The active sweep: clients whose blocks lie in memory in different layouts put and get the same
 * chunks through the daemon. Only the layout differs between measurements: a block is gathered into
 * staging and put, or got in place and scattered. The client copies each byte once in both cases.
 *
 * Layouts alternate within an iteration, so that other load of the host affects all of them; a
 * point is the median of its iterations. Clients are threads with one connection each. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "kvcache-layout.h"
#include "kvcache.h"
#include "latency.h"

enum { SWEEP_LAYOUTS = 3, SWEEP_LIST = 16, SWEEP_MAX_CLIENTS = 64, SWEEP_ERROR_BYTES = 512 };

enum sweep_op { SWEEP_PUT, SWEEP_GET, SWEEP_MIXED, SWEEP_OPS };

struct sweep_client;

/* An observer of the measured passes. */
struct sweep_observer {
        void *userdata;
        /* Called with each layout of each client, before the measurements with one combination of
         * sizes; so it is called several times with equal layouts. */
        void (*layout)(void *userdata, const struct kvcache_layout *layout);
        /* Called after a pass of `n` clients with blocks of one layout, which took `seconds`.
         * Returns 0 or -errno. */
        int (*pass)(void *userdata, const struct sweep_client *clients, size_t n, double seconds);
};

struct sweep_options {
        const char *socket_path;
        bool layouts[SWEEP_LAYOUTS]; /* indexed by enum kvcache_layout_kind, less one */
        bool ops[SWEEP_OPS];
        /* Every combination is measured. `regions`: bytes of a region; `depths`: blocks that a
         * client has in flight; `clients`: numbers of clients. */
        uint64_t regions[SWEEP_LIST], depths[SWEEP_LIST], clients[SWEEP_LIST];
        unsigned n_regions, n_depths, n_clients;
        /* A block has `layers` times `outer` regions. `bytes`: bytes of the blocks of all clients,
         * but each client has at least two blocks. */
        unsigned long long layers, outer, bytes, iterations;
        enum kvcache_ack ack;
        bool cold; /* evict chunks from memory before they are got */
        bool verify;
        const atomic_int *interrupted;
        const struct sweep_observer *observer; /* may be NULL */
        /* Called after each measurement; may be NULL. `part`: share of all measurements that are
         * done, 0 to 1; `measured`: their number. */
        void (*on_progress)(void *userdata, double part, uint64_t measured);
        void *progress_userdata;
};

struct sweep_point {
        uint64_t region_bytes, block_bytes, blocks, depth, clients;
        uint32_t kind; /* enum kvcache_layout_kind */
        enum sweep_op op;
        double rate;             /* bytes per second: the median */
        double slowest, fastest; /* lowest and highest rate of all iterations */
        /* Median over the iterations of the rate divided by that of the fully contiguous layout
         * in the same iteration; 0: not measured. */
        double of_contiguous;
        uint64_t p50_ns, p99_ns; /* time of a block: for a put from the gather to the reply, for a
                                    get from the request to the end of the scatter */
        double from_disk;        /* share of the blocks got that were not in memory; 0 for puts */
        uint64_t verified_bytes; /* bytes compared in all measured iterations */
};

struct sweep_result {
        struct sweep_point *points; /* the caller frees it */
        size_t n;
};

/* Return "contiguous", "block-first" or "outer-first", and "put", "get" or "mixed". */
const char *sweep_kind_name(uint32_t kind);
const char *sweep_op_name(enum sweep_op op);
/* Returns the size of the sweep's largest block. */
uint64_t sweep_block_bytes(const struct sweep_options *o);
/* Runs the sweep and adds its points to `ret`, which is zero at first; the caller frees ret->points
 * also after an error. Returns 0; -ECANCELED if interrupted; or another -errno with the reason in
 * `ret_error`. */
int sweep_run(const struct sweep_options *o, struct sweep_result *ret,
              char ret_error[static SWEEP_ERROR_BYTES]);

/* --- internal to the sweep --- */

/* sweep-blocks.c: the memory of a client's blocks in one layout. */
struct sweep_blocks {
        struct kvcache_layout layout;
        struct kvcache_layout_info info;
        uint64_t *bases; /* addresses of the buffers, as layout.bases */
        void **buffers;  /* one buffer for the contiguous layout, otherwise one for each layer */
        size_t n_buffers;
        uint8_t *chunk; /* room for the contents of one chunk */
};

/* Allocates the blocks. Returns 0; -ENOMEM; -EINVAL or -EOVERFLOW if there is no such layout.
 * sweep_blocks_fini() must follow in any case. */
int sweep_blocks_init(struct sweep_blocks *b, uint32_t kind, uint64_t region_bytes, uint32_t layers,
                      uint32_t outer, uint64_t blocks);
void sweep_blocks_fini(struct sweep_blocks *b);
/* Fill a block with the contents of its key, region by region, or all blocks with other
 * contents. */
void sweep_blocks_fill(struct sweep_blocks *b, uint64_t block, const struct kvcache_key *key);
void sweep_blocks_wipe(struct sweep_blocks *b);
/* Returns whether every byte of a block equals the contents of its key. */
bool sweep_blocks_right(struct sweep_blocks *b, uint64_t block, const struct kvcache_key *key);

/* sweep-client.c: one client and its passes. A pass moves each block once, or half of the blocks in
 * each direction for SWEEP_MIXED. */
struct sweep_pass {
        enum sweep_op op;
        uint64_t blocks, depth;
        enum kvcache_ack ack;
};

/* The time of one gather or scatter. */
struct sweep_call {
        uint64_t begun_ns, ended_ns;
};

struct sweep_client {
        struct kvcache *kv;
        uint32_t namespace_handle;
        struct kvcache_key *keys;
        uint64_t n_keys;
        struct sweep_blocks *blocks; /* blocks of the pass */
        const struct sweep_pass *pass;
        const atomic_int *interrupted;
        struct latency latency;
        /* Times of the last pass; number of blocks got, and of those that were not in memory. */
        uint64_t begun_ns, ended_ns, got, got_from_disk;
        struct sweep_call *calls; /* calls of the pass, with room for all its blocks */
        size_t n_calls;
        struct kvcache_layout_moved moved; /* totals of `calls` */
        int error; /* -errno of the first failure, which `message` describes; 0: none */
        char message[SWEEP_ERROR_BYTES];
};

/* Moves the blocks of the pass. Returns 0 or client->error. After an error `kv` may be closed, and
 * is then NULL. */
int sweep_client_move(struct sweep_client *c);
/* Evicts all keys from `tiers`, enum kvcache_tier. Returns 0 or client->error. */
int sweep_client_evict(struct sweep_client *c, uint32_t tiers);
