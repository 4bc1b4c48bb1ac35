/* SPDX-License-Identifier: Apache-2.0 */
/* Simulates a workload with a replacement policy of the daemon, without data, and with the optimum.
 *
 * A request hits its longest cached prefix; then its blocks are touched, the last first, and
 * missing blocks are inserted. Of a request with more blocks than the cache can hold, only the
 * first blocks, as many as it can hold, are touched or inserted. While a request is served, its
 * blocks are evicted only if the policy lets them give way (evict_gives_way()). All blocks have one
 * size. The cache is empty at first. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "evict/announced.h"
#include "workload.h"

struct simulated_cache;
struct simulated_observer;

/* A workload whose ids are numbered from 0 on, in the order of their first use. */
struct simulation {
        const struct workload *workload;
        uint32_t *blocks;   /* blocks of all requests, as workload.ids, but with numbers in place of
                               ids */
        uint32_t n_blocks;  /* number of distinct blocks */
        uint64_t *times_ns; /* times of the requests; all 0 if all timestamps are equal */
        double announced;   /* share of the last requests of sessions after which the end of the
                               session is announced; set after init */
        double returns; /* share of the other requests after which the time until the session's next
                           request is announced; set after init */
        double stops;   /* share of the requests without an announced end or return, after which the
                           reason why the engine stopped is announced; set after init */
        double liars;   /* share of the sessions that announce, true or not, after each request that
                           the next one follows in a second; set after init */
        /* `write_budget`: bytes that may be written per day of the workload's timestamps; 0:
         * unlimited. `block_bytes`: bytes of a block. The policy "opt" ignores both. Set after
         * init. */
        uint64_t write_budget, block_bytes;
};

/* The policy "opt" sets only the blocks asked and hit, the touches, the evictions and the time. */
struct simulation_result {
        uint64_t blocks_asked, blocks_hit;
        uint64_t touches, evictions;
        uint64_t writes;                     /* blocks inserted */
        uint64_t refused_first, refused_dry; /* blocks not inserted, by reasons of
                                                evict/admission.h */
        uint64_t liars_asked, liars_hit;     /* the liars' part of blocks_asked and blocks_hit */
        struct announced_stats announced;    /* announcements of all sessions, by outcome */
        double seconds; /* CPU time of the simulation; only simulation_run() sets it */
};

/* Numbers the ids of `workload`, which must outlive the simulation. Returns 0; -ENOMEM; -E2BIG if
 * the requests have INT32_MAX ids or more in all. */
int simulation_init(struct simulation *s, const struct workload *workload);
void simulation_fini(struct simulation *s);

/* Chooses, for each request of the workload, whether it is announced as its session's last. A
 * session continues with a request that repeats all but the last, partial block of this one. Of
 * the requests without a continuation, the share s->announced is announced. The caller frees
 * `*ret`, which has an entry for each request, or is NULL if s->announced is 0. Returns 0 or
 * -ENOMEM. */
int simulation_choose_ends(const struct simulation *s, uint8_t **ret);

/* Chooses what is announced after each request, by the shares of `s`. `lying`: liars announce that
 * the next request follows in a second; if false, liars announce nothing. The caller frees `*ret`,
 * which has an entry for each request, or is NULL if all shares are 0. Returns 0 or -ENOMEM. */
struct simulated_hint;
int simulation_choose_hints(const struct simulation *s, bool lying, struct simulated_hint **ret);

/* Returns whether the policy is "lru", "cq" or "opt". */
bool simulation_policy_exists(const char *policy);

/* Simulates a cache of `capacity` blocks, 1 or more. "opt" is the upper bound of a cache that knows
 * the future: it evicts the block whose next use is latest (Belady), and among blocks with the same
 * next use the one deepest in its chain, so that the cache consists of prefixes. Returns 0; -EINVAL
 * if there is no such policy; -ENOMEM. */
int simulation_run(const struct simulation *s, const char *policy, uint32_t capacity,
                   struct simulation_result *ret);

/* Callbacks before and after each request; neither may be NULL. `request`: its index in the
 * workload. `hits`: number of blocks in the request's hit prefix. `cache`: observer of the cache;
 * NULL: none. */
struct simulation_watch {
        void (*before)(void *userdata, const struct simulated_cache *c, size_t request,
                       size_t hits);
        void (*after)(void *userdata, const struct simulated_cache *c, size_t request);
        const struct simulated_observer *cache;
        void *userdata;
};

/* Simulates a policy of the daemon, and calls `watch`. Returns as simulation_run(), and -EINVAL for
 * "opt". */
int simulation_run_watched(const struct simulation *s, const char *policy, uint32_t capacity,
                           const struct simulation_watch *watch, struct simulation_result *ret);
/* Simulates a policy of the daemon with liars that give no hints, for comparison. Returns as
 * simulation_run(), and -EINVAL for "opt". */
int simulation_run_silent(const struct simulation *s, const char *policy, uint32_t capacity,
                          struct simulation_result *ret);

/* Computes, for each position in workload.ids, the index of the next request with the same block,
 * or UINT32_MAX if there is none. The caller frees `*ret`. Returns 0 or -ENOMEM. */
int simulation_next_uses(const struct simulation *s, uint32_t **ret);

/* Returns the CPU time of this thread, to measure the speed of a simulation. */
double simulation_cpu_seconds(void);
