/* SPDX-License-Identifier: Apache-2.0 */
/* The last fifteen minutes of single namespaces, in samples of 15 seconds, for their pages: of the
 * largest ones, and of those whose page was requested last. A namespace is sampled from the moment
 * it becomes one of these, and loses its samples when it ceases to be one.
 *
 * Loop thread. Fixed size: nothing is allocated, and nothing can fail. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum {
        NAMESPACE_SAMPLE_S = 15,
        NAMESPACE_SAMPLES = 15 * 60 / NAMESPACE_SAMPLE_S,
        NAMESPACE_WATCHED = 12, /* requested namespaces that are remembered */
        NAMESPACE_ROWS = 32,    /* the 20 largest, and the remembered ones */
};

/* Counters since startup, in keys. */
enum namespace_counter {
        NAMESPACE_LOOKUP_KEYS,
        NAMESPACE_LOOKUP_FOUND,
        NAMESPACE_GET_KEYS,
        NAMESPACE_GET_FOUND,
        NAMESPACE_COUNTERS
};

/* A namespace is identified by its id and its time of creation, because the id may be assigned
 * again. */
struct namespace_id {
        uint32_t id;
        uint64_t created_ms;
};

struct namespace_now {
        struct namespace_id of;
        uint64_t counters[NAMESPACE_COUNTERS];
        uint64_t chunks, bytes;
};

struct namespace_sample {
        uint64_t end_ns, span_ns; /* monotonic end of the interval, and its length */
        uint64_t counted[NAMESPACE_COUNTERS];
        uint64_t chunks, bytes; /* chunks and bytes at the end of the interval */
};

struct namespace_row {
        struct namespace_now last; /* of.id 0: the row is free */
        uint64_t last_ns;
        struct namespace_sample samples[NAMESPACE_SAMPLES];
        unsigned next, n;
};

struct namespace_history {
        struct namespace_row rows[NAMESPACE_ROWS];
        struct namespace_id watched[NAMESPACE_WATCHED]; /* the latest request first */
        unsigned n_watched;
        uint64_t last_ns, due_ns;
};

/* Returns whether a sample is due; the caller then collects the counters and calls
 * namespace_history_add(). */
static inline bool namespace_history_is_due(const struct namespace_history *h, uint64_t now_ns)
{
        return now_ns >= h->due_ns || now_ns < h->last_ns;
}
/* Adds a sample of each listed namespace, of which there are at most NAMESPACE_ROWS, and forgets
 * those that are not listed. The first call with a namespace only records its counters. If the
 * clock has gone back, all samples are dropped. */
void namespace_history_add(struct namespace_history *h, uint64_t now_ns,
                           const struct namespace_now *list, unsigned n);
/* Remembers that the page of a namespace was requested; if NAMESPACE_WATCHED are remembered
 * already, the one requested longest ago is forgotten. A namespace that is not sampled yet is
 * sampled from now on, if there is a free row. */
void namespace_history_watch(struct namespace_history *h, uint64_t now_ns,
                             const struct namespace_now *now);

/* Returns the i-th sample of a namespace from the oldest, of those that ended within the last
 * fifteen minutes, or NULL if there are fewer. */
const struct namespace_sample *namespace_history_get(const struct namespace_history *h,
                                                     struct namespace_id of, uint64_t now_ns,
                                                     unsigned i);
/* Returns the share of the keys that were found, of lookups or, if there were none, of gets. -1: no
 * keys were requested. */
double namespace_hit_ratio(const uint64_t counted[static NAMESPACE_COUNTERS]);
