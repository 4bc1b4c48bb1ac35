/* SPDX-License-Identifier: Apache-2.0 */
/* Implements queue.h. Entries are on the heap. Each is in the bucket of its hash, and while it
 * waits also in the flow of its tenant. */
#include "remote/queue.h"

#include <errno.h>
#include <stdlib.h>

int queue_init(struct queue *q, uint64_t bound)
{
        struct queue_entry **buckets = calloc(QUEUE_BUCKETS, sizeof(*buckets));

        if (!buckets)
                return -ENOMEM;
        *q = (struct queue){ .buckets = buckets, .bound = bound };
        sfq_init(&q->waiting);
        return 0;
}

void queue_fini(struct queue *q)
{
        struct queue_entry *e;

        if (!q->buckets)
                return;
        while ((e = queue_first(q))) {
                queue_take(q, e);
                queue_end(q, e);
        }
        free(q->buckets);
        *q = (struct queue){ 0 };
}

static struct queue_entry **bucket(const struct queue *q, uint64_t hash)
{
        return &q->buckets[hash % QUEUE_BUCKETS];
}

bool queue_has(const struct queue *q, uint64_t hash)
{
        for (const struct queue_entry *e = *bucket(q, hash); e; e = e->next)
                if (e->hash == hash)
                        return true;
        return false;
}

static struct queue_entry *entry_of(struct list_node *node)
{
        return node ? container_of(node, struct queue_entry, node) : NULL;
}

struct queue_entry *queue_first(const struct queue *q)
{
        return entry_of(sfq_first(&q->waiting, 0));
}

void queue_take(struct queue *q, struct queue_entry *e)
{
        sfq_remove(&q->waiting, e->tenant, &e->node, e->length);
        q->n--;
        q->bytes -= e->length;
}

void queue_serve(struct queue *q, struct queue_entry *e)
{
        sfq_charge(&q->waiting, e->tenant, e->length);
        queue_take(q, e);
}

void queue_end(struct queue *q, struct queue_entry *e)
{
        struct queue_entry **at = bucket(q, e->hash);

        while (*at != e)
                at = &(*at)->next;
        *at = e->next;
        free(e);
}

static bool fits(const struct queue *q, uint32_t length)
{
        return q->n < QUEUE_MAX && length <= q->bound && q->bytes <= q->bound - length;
}

bool queue_has_room(const struct queue *q, uint16_t tenant, uint32_t length)
{
        const struct sfq_flow *own = sfq_flow(&q->waiting, tenant);
        const struct sfq_flow *longest = sfq_longest(&q->waiting, q->bound, QUEUE_MAX);

        return fits(q, length) || (length <= q->bound && longest && longest != own &&
                                   longest->bytes >= own->bytes + length);
}

unsigned queue_put(struct queue *q, const struct queue_entry *e)
{
        struct queue_entry *new;
        unsigned dropped = 0;

        if (e->length > q->bound)
                return 1;
        new = malloc(sizeof(*new));
        if (!new)
                return 1;
        for (; !fits(q, e->length); dropped++) {
                const struct sfq_flow *longest = sfq_longest(&q->waiting, q->bound, QUEUE_MAX);
                struct queue_entry *oldest = entry_of(longest->waiting.next);

                queue_take(q, oldest);
                queue_end(q, oldest);
        }
        *new = *e;
        new->next = *bucket(q, e->hash);
        *bucket(q, e->hash) = new;
        list_init(&new->node);
        sfq_append(&q->waiting, e->tenant, &new->node, e->length);
        q->n++;
        q->bytes += e->length;
        return dropped;
}
