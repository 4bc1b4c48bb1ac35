/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks that wait to be written to the shared tier, each once: those of a tenant in order, the
 * tenants by fair queueing. Bounded by bytes and by number; of the tenant that has most waiting the
 * oldest are dropped. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "key.h"
#include "remote/fair.h"

struct queue_entry {
        struct list_node node;    /* of those that wait */
        struct queue_entry *next; /* of one bucket */
        uint64_t hash;            /* what it is known by */
        uint64_t epoch;           /* of its namespace when it came */
        uint32_t namespace_id, length;
        uint16_t tenant;
        struct key key;
        uint64_t key_hash;
};

enum { QUEUE_MAX = 65536, QUEUE_BUCKETS = 16384 };

struct queue {
        struct fair waiting;
        struct queue_entry **buckets;
        uint64_t n, bytes, bound; /* of those that wait */
};

/* 0, -ENOMEM. */
int queue_init(struct queue *q, uint64_t bound);
void queue_fini(struct queue *q); /* none may be taken */
bool queue_has(const struct queue *q, uint64_t hash);
/* Would one more of this tenant's drop none, but of a tenant that has more waiting? */
bool queue_has_room(const struct queue *q, uint16_t tenant, uint32_t length);
/* Copies the entry. How many had to be dropped for it, itself included if it alone is larger than
 * the bound, or there is no memory. */
unsigned queue_put(struct queue *q, const struct queue_entry *e);
/* The one to be written next; NULL: none waits. */
struct queue_entry *queue_first(const struct queue *q);
/* It does not wait any more, but is still known, until queue_end(). queue_serve(): it is written,
 * which counts as its tenant's turn. */
void queue_take(struct queue *q, struct queue_entry *e);
void queue_serve(struct queue *q, struct queue_entry *e);
void queue_end(struct queue *q, struct queue_entry *e);
