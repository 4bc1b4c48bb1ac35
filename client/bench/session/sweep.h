/* SPDX-License-Identifier: Apache-2.0 */
/* The active sweep: the same chunks put and got through the daemon by clients whose blocks lie in
 * memory in different layouts. Everything but the layout is the same: a block is gathered into
 * staging and put, or got in place and scattered, one copy of each byte by the client either way.
 *
 * Layouts take turns within an iteration, so that what else the host does hits them all; a point is
 * the median of its iterations. Clients are threads with a connection each. */
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

/* Notified of the measured passes. */
struct sweep_observer {
        void *userdata;
        /* Blocks in a layout that is about to be measured. */
        void (*layout)(void *userdata, const struct kvcache_layout *layout);
        /* A pass of `n` clients, with blocks of the same layout, took `seconds`. 0, -errno. */
        int (*pass)(void *userdata, const struct sweep_client *clients, size_t n, double seconds);
};

struct sweep_options {
        const char *socket_path;
        bool layouts[SWEEP_LAYOUTS]; /* by enum kvcache_layout_kind, less one */
        bool ops[SWEEP_OPS];
        uint64_t regions[SWEEP_LIST], depths[SWEEP_LIST], clients[SWEEP_LIST];
        unsigned n_regions, n_depths, n_clients;
        unsigned long long layers, outer, bytes, iterations;
        enum kvcache_ack ack;
        bool cold; /* chunks are evicted from memory before they are got */
        bool verify;
        const atomic_int *interrupted;
        const struct sweep_observer *observer; /* may be NULL */
};

struct sweep_point {
        uint64_t region_bytes, block_bytes, blocks, depth, clients;
        uint32_t kind; /* enum kvcache_layout_kind */
        enum sweep_op op;
        double rate;             /* bytes a second: the median */
        double slowest, fastest; /* of the iterations */
        /* Rate against fully contiguous in the same iteration, the median; 0: not measured. */
        double of_contiguous;
        uint64_t p50_ns, p99_ns; /* of a block, from its gather to its answer, or to its scatter */
        double from_disk;        /* share of the blocks got */
        uint64_t verified_bytes;
};

struct sweep_result {
        struct sweep_point *points; /* freed by the caller */
        size_t n;
};

/* "contiguous", "block-first", "outer-first"; "put", "get", "mixed". */
const char *sweep_kind_name(uint32_t kind);
const char *sweep_op_name(enum sweep_op op);
/* The largest block of the sweep. */
uint64_t sweep_block_bytes(const struct sweep_options *o);
/* 0; -ECANCELED: interrupted; -errno: `ret_error` says why. */
int sweep_run(const struct sweep_options *o, struct sweep_result *ret,
              char ret_error[static SWEEP_ERROR_BYTES]);

/* --- inside the sweep --- */

/* sweep-blocks.c: the memory of a client's blocks, in one layout. */
struct sweep_blocks {
        struct kvcache_layout layout;
        struct kvcache_layout_info info;
        uint64_t *bases;
        void **buffers;
        size_t n_buffers;
        uint8_t *chunk; /* room for the contents of one */
};

/* 0, -ENOMEM, -EINVAL. */
int sweep_blocks_init(struct sweep_blocks *b, uint32_t kind, uint64_t region_bytes, uint32_t layers,
                      uint32_t outer, uint64_t blocks);
void sweep_blocks_fini(struct sweep_blocks *b);
/* The contents that belong to the key, region by region; wipe: something else. */
void sweep_blocks_fill(struct sweep_blocks *b, uint64_t block, const struct kvcache_key *key);
void sweep_blocks_wipe(struct sweep_blocks *b);
/* Is every byte of the block the key's? */
bool sweep_blocks_right(struct sweep_blocks *b, uint64_t block, const struct kvcache_key *key);

/* sweep-client.c: one client and its passes. */
struct sweep_pass {
        enum sweep_op op;
        uint64_t blocks, depth;
        enum kvcache_ack ack;
};

/* Of gather or scatter. */
struct sweep_call {
        uint64_t begun_ns, ended_ns;
};

struct sweep_client {
        struct kvcache *kv;
        uint32_t namespace_handle;
        struct kvcache_key *keys;
        uint64_t n_keys;
        struct sweep_blocks *blocks; /* of the pass */
        const struct sweep_pass *pass;
        const atomic_int *interrupted;
        struct latency latency;
        uint64_t begun_ns, ended_ns, got, got_from_disk;
        struct sweep_call *calls; /* of the pass, with room for all its blocks */
        size_t n_calls;
        struct kvcache_layout_moved moved; /* by these calls */
        int error;                         /* -errno, with `message` */
        char message[SWEEP_ERROR_BYTES];
};

/* Moves the blocks of the pass. 0, or client->error. */
int sweep_client_move(struct sweep_client *c);
/* Evicts all keys. `tiers`: enum kvcache_tier. */
int sweep_client_evict(struct sweep_client *c, uint32_t tiers);
int sweep_client_failed(struct sweep_client *c, int r, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
