/* SPDX-License-Identifier: Apache-2.0 */
/* See queue.h. Entries are on the heap, each in the list of those that wait, and in the bucket of
 * its hash. */
#include "remote/queue.h"

#include <errno.h>
#include <stdlib.h>

int queue_init(struct queue *q, uint64_t bound)
{
        struct queue_entry **buckets = calloc(QUEUE_BUCKETS, sizeof(*buckets));

        if (!buckets)
                return -ENOMEM;
        *q = (struct queue){ .buckets = buckets, .bound = bound };
        list_init(&q->waiting);
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

struct queue_entry *queue_first(const struct queue *q)
{
        return list_empty(&q->waiting) ? NULL
                                       : container_of(q->waiting.next, struct queue_entry, node);
}

void queue_take(struct queue *q, struct queue_entry *e)
{
        list_unlink(&e->node);
        q->n--;
        q->bytes -= e->length;
}

void queue_end(struct queue *q, struct queue_entry *e)
{
        struct queue_entry **at = bucket(q, e->hash);

        while (*at != e)
                at = &(*at)->next;
        *at = e->next;
        free(e);
}

bool queue_has_room(const struct queue *q, uint32_t length)
{
        return q->n < QUEUE_MAX && length <= q->bound && q->bytes <= q->bound - length;
}

unsigned queue_put(struct queue *q, const struct queue_entry *e)
{
        struct queue_entry *new, *oldest;
        unsigned dropped = 0;

        if (e->length > q->bound)
                return 1;
        new = malloc(sizeof(*new));
        if (!new)
                return 1;
        while ((oldest = queue_first(q)) && !queue_has_room(q, e->length)) {
                queue_take(q, oldest);
                queue_end(q, oldest);
                dropped++;
        }
        *new = *e;
        new->next = *bucket(q, e->hash);
        *bucket(q, e->hash) = new;
        list_append(&q->waiting, &new->node);
        q->n++;
        q->bytes += e->length;
        return dropped;
}
