/* SPDX-License-Identifier: Apache-2.0 */
/* One client of a replay, which sends requests over one connection, and the state that all
 * clients share. Used by replay.c, which creates the clients and runs each in its own thread. */
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
        unsigned running; /* protected by `lock`, like the members below */
        int status;
        char error[REPLAY_TEXT_BYTES];
        char first_wrong[REPLAY_TEXT_BYTES];
};

/* State of a block of the current request. */
enum replay_block {
        REPLAY_TO_GET,
        REPLAY_TO_PUT,
        REPLAY_REFUSED, /* refused for lack of room or leases: tried once more after the client has
                           released all its leases */
        REPLAY_HIT,
        REPLAY_DONE,
};

struct replay_client {
        struct replay_shared *shared;
        pthread_t thread;
        struct kvcache *kv;
        uint32_t namespace;
        bool lost; /* the connection failed, or a key was not answered: before its next round, the
                      client pings until a daemon answers */

        /* State of the current request. */
        const uint64_t *ids;
        size_t n_blocks;
        size_t room; /* size of each array below, in blocks */
        enum replay_block *state;
        struct kvcache_key *keys;
        struct kvcache_entry *entries;
        struct kvcache_result *results;
        struct kvcache_lease *held;
        size_t n_held;
        enum kvcache_advice advice; /* advice sent after the request, with `return_s` */
        uint32_t return_s;
        bool hold;   /* keep leases until the request ends; false for the rest of a request after
                        blocks were refused */
        void *spare; /* buffer for contents when the staging area has no room */

        uint64_t began_ns; /* when the current request was sent; 0: not yet */
        struct replay_counts counts;
        struct replay_part parts[REPLAY_PARTS];
        struct latency match, get, put;
};

bool replay_should_stop(struct replay_shared *s);
/* Ends the whole replay with a reason; later calls keep the first reason. Returns -ECANCELED. */
int replay_fail(struct replay_shared *s, int status, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

/* Waits until the request's time, and sends it. Returns 0, or a negative errno if the replay is
 * over. */
int replay_client_play(struct replay_client *c, const struct workload_request *request);
/* Releases all leases of the client. */
void replay_client_let_go(struct replay_client *c);
/* Closes the connection and frees the client's memory. */
void replay_client_fini(struct replay_client *c);
