/* SPDX-License-Identifier: Apache-2.0 */
/* The rings, as the files of this room share them. Private to these files. Loop thread. */
#pragma once

#include "events/events.h"

/* An event in a ring: one CPU cache line. Its position gives its sequence number. */
struct record {
        struct key key;
        uint64_t time_ms; /* Unix time of the change in ms */
        uint32_t id;      /* the store's id of the namespace */
        uint32_t number;  /* the tenant's number of the namespace */
        uint32_t length;
        uint8_t kind; /* enum wire_event_kind of the change */
        uint8_t tier; /* WIRE_TIER_MEMORY or WIRE_TIER_DISK */
        uint8_t unused[10];
};
static_assert(sizeof(struct record) == 64, "one CPU cache line");

/* The number by which a tenant's events name a namespace. The store's ids are not sent, because
 * they would reveal the namespaces of other tenants. */
struct binding {
        uint32_t id; /* the store's id of the namespace; 0: the entry is free */
        uint32_t number;
        uint64_t reply; /* number of the last reply that contains the namespace's name */
};
/* Twice the number of namespaces that can exist, so that a search ends soon. */
enum { BINDINGS = 2 * STORE_MAX_NAMESPACES };
static_assert((BINDINGS & (BINDINGS - 1)) == 0, "a mask selects the place");

struct events_ring {
        struct events *all;
        uint16_t number; /* the tenant's number in the store */
        struct pool *pool;
        struct pool_watch watch;

        struct record *records;
        uint64_t n_records; /* number of records in the ring, a power of two */
        uint64_t next;      /* sequence number of the next event; the first has 1 */
        uint64_t begin;     /* sequence number of the first event that readers may get */
        uint64_t resets;    /* gaps made by ring_reset(), each of which takes a sequence number */

        struct binding *bindings;
        uint32_t n_bindings, last_number;
        uint64_t replies;       /* number of replies begun, compared with binding.reply */
        struct binding *latest; /* the binding found last; NULL: none */

        struct list_node waiting; /* struct events_wait */
        uint64_t n_waiting;
        uint64_t due_ns;      /* time at which waiting requests get the new events; 0: there are no
                               * new events */
        uint64_t deadline_ns; /* earliest deadline of a waiting request, or a time before it */
        uint64_t due_next;    /* `next` when the waiting requests were last answered */
        uint32_t wanted;      /* the fewest events for which a waiting request is answered at
                               * once */
};

struct events {
        struct store *store;
        struct store_watch watch;
        uint64_t epoch;
        uint64_t now_ms; /* Unix time of the events of this iteration; 0: the clock was not read
                          * yet */
        bool several_volumes;
        bool stopping;
        struct list_node due; /* struct events_wait: requests to be completed */
        struct events_stats stats;
        unsigned n_rings;
        struct events_ring rings[];
};

/* names.c */
/* Returns the binding of a namespace, and makes one if there is none. Returns NULL if the namespace
 * does not exist or is another tenant's. Makes a gap if the table of bindings is full. The binding
 * stays in place until the next call, or until binding_remove(). */
struct binding *binding_of(struct events_ring *r, uint32_t id);
/* Returns the binding of an id and a number, or NULL if that namespace was removed. */
struct binding *binding_find(struct events_ring *r, uint32_t id, uint32_t number);
/* Removes the binding of an id, and returns its number, or 0 if the id has no binding. */
uint32_t binding_remove(struct events_ring *r, uint32_t id);

/* Returns the sequence number of the oldest event that the ring has. */
static inline uint64_t ring_first(const struct events_ring *r)
{
        return r->next - r->begin > r->n_records ? r->next - r->n_records : r->begin;
}

/* ring.c */
/* Makes a gap, after which readers take a snapshot. */
void ring_reset(struct events_ring *r);
