/* SPDX-License-Identifier: Apache-2.0 */
/* Inside a replay: one client, which plays requests over one connection, and what all clients
 * share. For replay.c, which makes them and runs each in a thread of its own. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "latency.h"
#include "replay-types.h"
#include "workload.h"

struct replay_shared {
        const struct replay_options *options;
        const struct workload *workload;
        uint64_t round_put_blocks, round_get_blocks;
        uint64_t hold_bytes;
        uint64_t start_ns;

        atomic_size_t next_request;
        atomic_bool stop;
        _Atomic uint64_t requests, blocks_asked, blocks_hit, bytes;

        pthread_mutex_t lock;
        pthread_cond_t ended;
        unsigned running; /* under lock, as all below */
        int status;
        char error[REPLAY_TEXT_BYTES];
        char first_wrong[REPLAY_TEXT_BYTES];
};

/* What has become of a block of the request at hand. */
enum replay_block {
        REPLAY_TO_GET,
        REPLAY_TO_PUT,
        REPLAY_REFUSED, /* no room, or too many leases: once more, with nothing held */
        REPLAY_HIT,
        REPLAY_DONE,
};

struct replay_client {
        struct replay_shared *shared;
        pthread_t thread;
        struct kvcache *kv;
        uint32_t namespace;
        bool lost; /* an answer said so: reach the daemon anew before the next request */

        /* of the request at hand */
        const uint64_t *ids;
        size_t n_blocks;
        size_t room; /* of each array below, in blocks */
        enum replay_block *state;
        struct kvcache_key *keys;
        struct kvcache_entry *entries;
        struct kvcache_result *results;
        struct kvcache_lease *held;
        size_t n_held;
        bool hold;   /* until the daemon refuses */
        void *spare; /* where blocks are made when the staging area has no room */

        struct replay_counts counts;
        struct latency match, get, put;
};

bool replay_should_stop(struct replay_shared *s);
/* Ends the whole replay; the first reason is the one that is printed. Returns a negative errno. */
int replay_fail(struct replay_shared *s, int status, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

/* Waits for its time, and plays it. 0, or negative: the replay is over. */
int replay_client_play(struct replay_client *c, const struct workload_request *request);
/* Of everything that it holds, at once. */
void replay_client_let_go(struct replay_client *c);
/* Closes the connection. */
void replay_client_fini(struct replay_client *c);
