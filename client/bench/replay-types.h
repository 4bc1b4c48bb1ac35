/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a replay, and the counters of a replay and each of its clients. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "simulated-hints.h"
#include "kvcache.h"

enum { REPLAY_TEXT_BYTES = 640 };

struct replay_progress {
        uint64_t requests, n_requests; /* requests done, and requests of the whole workload */
        uint64_t blocks_asked, blocks_hit, bytes;
        double seconds;
};

/* The number of parts into which a replay divides the workload's requests, in their order, for
 * the plot. Each part has an equal number of requests. */
enum { REPLAY_PARTS = 30 };
struct replay_part {
        uint64_t requests;
        uint64_t blocks_asked, blocks_hit, blocks_hit_memory;
        uint64_t ns; /* sum of the times that the requests took */
};

struct replay_options {
        const char *socket_path;
        const char *namespace_name;
        uint64_t block_bytes;
        double speed; /* 1: in the workload's own time, 10: ten times faster; 0: as fast as
                         possible */
        unsigned clients;
        enum kvcache_ack ack;
        /* The hint that follows each request; NULL: no hints are given. The times of hints are
         * divided by `speed`. */
        const struct simulated_hint *hints;
        uint64_t *sent_ns; /* out: for each request, the time at which it was sent, in ns since the
                              beginning of the replay, plus 1; 0: the request was not sent. NULL:
                              not wanted */
        int acks_fd;      /* file to which the keys of acknowledged blocks are appended, opened with
                             O_APPEND; -1: none */
        int reconnect_ms; /* ms for which a client tries to reconnect after the daemon has ended */
        const atomic_int
                *interrupted; /* nonzero after a signal, which ends the replay; may be NULL */
        void (*progress)(void *userdata,
                         const struct replay_progress *progress); /* called ten times a second; may
                                                                     be NULL */
        void *userdata;
};

struct replay_counts {
        uint64_t requests;
        uint64_t blocks_asked;
        /* Blocks that were got and of which every byte was correct: all, and by tier. */
        uint64_t blocks_hit, blocks_hit_memory, blocks_hit_disk, blocks_hit_remote;
        uint64_t blocks_put;      /* blocks put that were not stored before */
        uint64_t blocks_existed;  /* blocks put that were already stored, because another client had
                                     put them first */
        uint64_t blocks_vanished; /* blocks that match reported and get did not find */
        uint64_t blocks_unheld;   /* blocks got or put without keeping a lease until the end of the
                                     request */
        uint64_t bytes_put, bytes_got;
        uint64_t wrong_bytes, wrong_blocks;
        uint64_t errors; /* blocks and matches that failed or were not answered */
        uint64_t lost;   /* part of `errors` caused by the end of the daemon */
        uint64_t busy;   /* blocks refused for lack of room; not an error */
        uint64_t not_durable;
        uint64_t ends_announced, returns_announced;
        uint64_t reconnects;
        uint64_t tokens_asked, tokens_saved; /* asked: tokens of all requests; saved: tokens of the
                                                hit prefixes, which an engine need not compute */
};
