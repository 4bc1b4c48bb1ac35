/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps requests of `batch` keys in flight, enough that the daemon always has `outstanding` keys to
 * serve. One thread, one connection. put.c and get.c define the requests.
 *
 * A slice begins before its first request and ends when its last one is reaped, like a slice of
 * fio: filling and emptying the queue count. `bytes` counts only the operations that are to be
 * measured: chunks that a put stored, and chunks that a get read from the disk. Chunks that came
 * from memory, existed already, were busy or failed have counters of their own, so that they are
 * not mistaken for measured ones. */
#pragma once

#include "bench.h"

enum { TRAFFIC_STUCK_MS = 60000 };

struct flight {
        struct kvcache_entry *entries;
        struct kvcache_result *results;
        struct kvcache_key *keys;
        struct kvcache_lease *leases;
        uint64_t n;
};

struct counts {
        uint64_t bytes, keys, memory, memory_bytes, misses, exists, busy, failed;
        double seconds, cpu_seconds;
};

struct traffic {
        const struct bench_options *o;
        struct kvcache *kv;
        uint32_t namespace_handle;
        struct flight *flights;
        uint32_t *idle; /* stack of flights that are not in flight */
        uint64_t n_flights, n_idle;
        struct counts counts;

        /* put, and get into a region: places of `batch` chunks each, taken in turn */
        uint8_t **places;
        uint64_t n_places, next_place;
        bool *place_busy;
        uint64_t *place_of; /* by flight */
        uint64_t next_number;

        /* get */
        uint64_t *numbers; /* in the order in which they are got, over and over */
        uint64_t n_numbers, position;
};

int traffic_init(struct traffic *t, const struct bench_options *o, bool attach);
void traffic_fini(struct traffic *t);

typedef int (*traffic_submit_fn)(struct traffic *t, uint32_t flight);
typedef void (*traffic_take_fn)(struct traffic *t, uint32_t flight);

/* Runs one slice, and prints its line of JSON. */
int traffic_slice(struct traffic *t, const struct bench_step *step, traffic_submit_fn submit,
                  traffic_take_fn take);
void traffic_count_failure(struct counts *c, int status);

/* Makes the places of the requests: the whole staging area or, with --region, registered memory.
 * Puts get contents, and every place is touched. */
int traffic_make_places(struct traffic *t);
/* Takes a place for a flight until traffic_give_place(), and returns its number. Places are used in
 * turn, so that bytes move from and to memory rather than a cache. */
uint64_t traffic_take_place(struct traffic *t, uint32_t flight);
void traffic_give_place(struct traffic *t, uint32_t flight);
