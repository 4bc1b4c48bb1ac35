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

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "kvcache.h"
#include "latency.h"
#include "workload.h"

struct replay_progress {
        uint64_t requests, n_requests; /* done, and of the whole workload */
        uint64_t blocks_asked, blocks_hit, bytes;
        double seconds;
};

struct replay_options {
        const char *socket_path;
        const char *namespace_name;
        uint64_t block_bytes;
        double speed; /* 1: in the workload's own time, 10: ten times faster; 0: as fast as possible
                       */
        unsigned clients;
        enum kvcache_ack ack;
        int acks_fd;                              /* opened with O_APPEND; -1: none */
        int reconnect_ms;                         /* how long to try when the daemon has ended */
        const volatile sig_atomic_t *interrupted; /* may be NULL */
        void (*progress)(
                void *userdata,
                const struct replay_progress *progress); /* ten times a second; may be NULL */
        void *userdata;
};

struct replay_counts {
        uint64_t requests;
        uint64_t blocks_asked;
        uint64_t blocks_hit, blocks_hit_memory, blocks_hit_disk; /* got, and right in every byte */
        uint64_t blocks_put;                                     /* that were new */
        uint64_t blocks_existed;  /* put, and another client's put had come first */
        uint64_t blocks_vanished; /* match had found them, get did not */
        uint64_t blocks_unheld;   /* got or put without a lease until the request's end */
        uint64_t bytes_put, bytes_got;
        uint64_t wrong_bytes, wrong_blocks;
        uint64_t errors; /* blocks, and matches, that were answered with a failure or not at all */
        uint64_t lost;   /* of those: because the daemon went away */
        uint64_t busy;   /* blocks for which there was no room; not an error */
        uint64_t not_durable;
        uint64_t reconnects;
        uint64_t tokens_asked, tokens_saved; /* saved: of leading runs only, what an engine would
                                                not compute again */
};

enum { REPLAY_TEXT_BYTES = 640 };

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
