/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks that wait to be written to the shared tier, each once. A tenant's chunks are in order, and
 * tenants share by fair queueing. The queue is bounded in bytes and in number; if it is full, the
 * oldest chunks of the tenant with most waiting are dropped. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "key.h"
#include "fair/sfq.h"

struct queue_entry {
        struct list_node node;    /* in `waiting` */
        struct queue_entry *next; /* in the same hash bucket */
        uint64_t hash;            /* identifies the chunk in queue_has() */
        uint64_t epoch;           /* namespace's epoch when it was queued */
        uint32_t namespace_id, length;
        uint16_t tenant;
        struct key key;
        uint64_t key_hash;
};

enum { QUEUE_MAX = 65536, QUEUE_BUCKETS = 16384 };

struct queue {
        struct sfq waiting;
        struct queue_entry **buckets;
        uint64_t n, bytes, bound; /* number of waiting chunks, their bytes, and the most bytes that
                                     may wait */
};

/* Returns 0 or -ENOMEM. */
int queue_init(struct queue *q, uint64_t bound);
void queue_fini(struct queue *q); /* every taken entry must have been ended by queue_end() */
bool queue_has(const struct queue *q, uint64_t hash);
/* Returns whether another chunk of this tenant would fit without dropping any chunk, or by dropping
 * only chunks of a tenant that has more bytes waiting. */
bool queue_has_room(const struct queue *q, uint16_t tenant, uint32_t length);
/* Adds a copy of the entry. Returns how many entries were dropped for it. That includes the new
 * entry itself if it alone exceeds the bound, or memory is exhausted. */
unsigned queue_put(struct queue *q, const struct queue_entry *e);
/* Returns the entry to write next, or NULL. */
struct queue_entry *queue_first(const struct queue *q);
/* Remove an entry from the waiting entries. queue_has() still finds it until queue_end(), which
 * frees it. queue_serve() also charges its bytes to the tenant, because the chunk is written. */
void queue_take(struct queue *q, struct queue_entry *e);
void queue_serve(struct queue *q, struct queue_entry *e);
void queue_end(struct queue *q, struct queue_entry *e);
