/* SPDX-License-Identifier: Apache-2.0 */
/* Events: for each tenant a ring of the latest changes of its chunks, from which clients follow
 * what the daemon holds. An event says that a tier has gained or lost a chunk. README.md has the
 * design, and proto/README.md the request.
 *
 * The ring has a fixed size. A reader that is too slow finds a gap, takes a snapshot and continues;
 * no writer waits for it. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "cache/pool.h"
#include "store/store.h"
#include "wire.h"

struct events;
struct events_ring;

struct events_tenant {
        uint16_t store_tenant; /* the tenant's number in the store */
        struct pool *pool;
};

struct events_params {
        struct store *store; /* must be open */
        const struct events_tenant *tenants;
        unsigned n_tenants;
        uint64_t ring_bytes; /* size of a ring, rounded down to a power of two of events */
};

/* Creates the rings, and watches the store and the pools from now on. `params` is copied. Returns 0
 * or -ENOMEM, or -errno if there is no randomness for the epoch. */
int events_new(struct events **ret, const struct events_params *params);
/* Frees the rings; `e` may be NULL. No request may be waiting. */
struct events *events_free(struct events *e);

/* Ends the binding of a removed namespace to its number in events, and reports the removal as an
 * event; a ring whose events never named the namespace has none. `e` may be NULL. */
void events_namespace_removed(struct events *e, uint32_t id);

/* A request that waits for events. */
struct events_wait {
        struct list_node node; /* used by the rings */
        uint64_t from;         /* sequence number of the first event wanted */
        uint64_t deadline_ns;
        uint32_t max;             /* number of new events from which on the answer does not wait */
        struct events_ring *ring; /* private to the rings */
        int result;               /* set at completion: 0 if the reply is due, because there are
                                   * events or a gap, or the deadline has passed; -ECANCELED or
                                   * -ESHUTDOWN */
        void (*complete)(struct events_wait *wait);
};
enum events_answer {
        EVENTS_WAIT = 1, /* complete() follows */
};
/* Waits for events of a tenant. Returns 0 if the reply is due now: there are `max` events, the
 * reader has to see a gap (`epoch` is not the present one, or the ring has not all events from
 * `from` on), or the deadline has passed. Returns EVENTS_WAIT if complete() follows, or -ESHUTDOWN
 * after events_stop(). */
int events_ask(struct events *e, unsigned tenant, uint64_t epoch, struct events_wait *wait,
               uint64_t now_ns);
/* Completes a waiting request with -ECANCELED. */
void events_cancel(struct events_wait *wait);
/* Completes all waiting requests with -ESHUTDOWN, and refuses later ones. */
void events_stop(struct events *e);

/* Completes a bounded number of the waiting requests that are due. Call it at the end of each
 * iteration, after everything that changes chunks. Returns whether there is more to do at once;
 * *ret_deadline_ns is the time at which it must run again at the latest, or 0 if only an event
 * makes that necessary. */
bool events_iterate(struct events *e, uint64_t now_ns, uint64_t *ret_deadline_ns);

/* A reply: its head, and a body of `bytes` with struct wire_events_result, the events, and the
 * names of their namespaces. */
struct events_reply {
        size_t bytes;
        struct wire_reply head; /* count, value and value64 are filled in */
        uint8_t body[WIRE_MAX_MESSAGE - sizeof(struct wire_reply)];
};
static_assert(offsetof(struct events_reply, body) ==
                      offsetof(struct events_reply, head) + sizeof(struct wire_reply),
              "the body follows the head");
/* Fills in at most `max` events of a tenant from `from` on, or a gap. */
void events_read(struct events *e, unsigned tenant, uint64_t epoch, uint64_t from, unsigned max,
                 struct events_reply *ret);
/* Fills in at most `max` of the tenant's chunks as events, from a cursor on, which is 0 at the
 * beginning; visits a bounded number of records. The head's value64 is the cursor to continue with,
 * or 0 at the end. Chunks that change during the walk may be missing; later events report these
 * chunks. */
void events_snapshot(struct events *e, unsigned tenant, uint64_t cursor, unsigned max,
                     struct events_reply *ret);

struct events_stats {
        uint64_t ring_bytes;             /* bytes of all rings together */
        uint64_t written, overwritten;   /* events written so far, and those that newer events have
                                          * overwritten */
        uint64_t sent, snapshot_entries; /* events in replies, and chunks in replies to requests for
                                          * a snapshot */
        uint64_t gaps;                   /* replies that reported a gap */
        uint64_t resets;                 /* gaps that the daemon caused itself, because many chunks
                                          * changed at once or bindings were lost */
        uint64_t waiting;                /* requests that wait for events, now */
};
void events_get_stats(const struct events *e, struct events_stats *ret);
