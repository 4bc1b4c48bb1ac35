/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of `batch` keys, so many on their way that the daemon always has `outstanding` keys
 * at hand; one thread, one connection. What a request is, put.c and get.c say.
 *
 * * A slice begins before its first request and ends when its last one is drained, as a slice of
 * fio does: filling and emptying the queue count. Only what was meant to be measured counts as
 * `bytes`: chunks that a put brought in, chunks that a get brought from the disk. What came from
 * memory, was there already, was busy or failed is counted beside it, so that one is not taken
 * for the other. */
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

/* One slice, and its line of JSON. */
int traffic_slice(struct traffic *t, const struct bench_step *step, traffic_submit_fn submit,
                  traffic_take_fn take);
void traffic_count_failure(struct counts *c, int status);

/* Places of the staging area, all of it; or, with --region, of registered memory.
 * Filled with contents for a put, touched in any case. */
int traffic_make_places(struct traffic *t);
/* For a flight, until it is given back: the whole of them in turn, so that bytes come from memory
 * and go there, not from or to a cache. Its number. */
uint64_t traffic_take_place(struct traffic *t, uint32_t flight);
void traffic_give_place(struct traffic *t, uint32_t flight);
