/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the rings, and decides when waiting requests are answered.
 *
 * The watches of store and pools call on_store_changed() and on_pool_changed() for each change. A
 * change is one record of fixed size in the tenant's ring, in place of the oldest one when the ring
 * is full. Nothing is allocated, and no reader is visited.
 *
 * Requests that wait for events are answered together: DELAY_NS after the first new event, or when
 * there are as many as one of them wants. So a subscriber costs two replies in a few milliseconds
 * at most, however fast chunks change.
 *
 * A volume that begins or ceases to be in use changes many chunks at once. No events are written
 * about these; all readers find a gap instead. */
#include "events/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/pages.h"
#include "checked.h"
#include "cleanup.h"
#include "warm.h"

enum {
        ANSWERS_PER_ITERATION = 8,
        EVENTS_PER_ITERATION = 512 /* events in answers after which an iteration begins no further
                                    * answer, since each may be looked up in the store */
};
#define DELAY_NS UINT64_C(2000000)

/* --- writing events --- */

/* Returns the place of the next event, where the oldest one was. */
static struct record *ring_next(struct events_ring *r)
{
        uint64_t at = r->next++;

        warm(&r->records[(at + 4) & (r->n_records - 1)], 1);
        return &r->records[at & (r->n_records - 1)];
}

void ring_reset(struct events_ring *r)
{
        /* A gap takes a sequence number, so that a reader that has read everything finds it,
         * too. */
        r->begin = ++r->next;
        r->resets++;
}

/* Returns the time of the events of this iteration, so that the clock is read once. */
static uint64_t time_ms(struct events *e)
{
        if (e->now_ms == 0)
                e->now_ms = clock_unix_ms();
        return e->now_ms;
}

static void note(struct events_ring *r, uint32_t id, const struct key *key, uint32_t length,
                 uint8_t tier, bool is_there)
{
        const struct binding *b = r->latest;
        struct record *record;

        if (!b || b->id != id)
                b = binding_of(r, id);
        if (!b)
                return;
        record = ring_next(r);
        record->key = *key;
        record->time_ms = time_ms(r->all);
        record->id = id;
        record->number = b->number;
        record->length = length;
        record->kind = is_there ? WIRE_EVENT_STORED : WIRE_EVENT_REMOVED;
        record->tier = tier;
}

static void on_pool_changed(void *userdata, uint32_t chunk, bool is_there)
{
        struct events_ring *r = userdata;
        const struct pool_chunk *c = pool_chunk(r->pool, chunk);

        note(r, c->namespace_id, &c->key, c->length, WIRE_TIER_MEMORY, is_there);
}

/* Ignores a chunk that a volume stores after it ceased to be in use, because no request finds it.
 */
static void on_store_changed(void *userdata, const struct store_change *change)
{
        struct events *e = userdata;

        for (unsigned i = 0; i < e->n_rings; i++) {
                if (e->rings[i].number != change->tenant)
                        continue;
                if (!change->is_there || store_is_in_use(e->store, change->at))
                        note(&e->rings[i], change->namespace_id, change->key, change->length,
                             WIRE_TIER_DISK, change->is_there);
                return;
        }
}

static void on_volumes_changed(void *userdata)
{
        struct events *e = userdata;

        for (unsigned i = 0; i < e->n_rings; i++)
                ring_reset(&e->rings[i]);
}

void events_namespace_removed(struct events *e, uint32_t id)
{
        for (unsigned i = 0; e && i < e->n_rings; i++) {
                struct events_ring *r = &e->rings[i];
                uint32_t number = binding_remove(r, id);

                if (number != 0)
                        *ring_next(r) = (struct record){
                                .time_ms = time_ms(e),
                                .id = id,
                                .number = number,
                                .kind = WIRE_EVENT_NAMESPACE_REMOVED,
                        };
        }
}

/* --- requests that wait for events --- */

static bool is_gap(const struct events_ring *r, uint64_t epoch, uint64_t from)
{
        return epoch != r->all->epoch || from < ring_first(r) || from > r->next;
}

int events_ask(struct events *e, unsigned tenant, uint64_t epoch, struct events_wait *wait,
               uint64_t now_ns)
{
        struct events_ring *r = &e->rings[tenant];

        assert(tenant < e->n_rings);
        if (e->stopping)
                return -ESHUTDOWN;
        if (is_gap(r, epoch, wait->from) || r->next - wait->from >= wait->max ||
            wait->deadline_ns <= now_ns)
                return 0;
        if (r->next > wait->from && r->due_ns == 0)
                r->due_ns = now_ns + DELAY_NS;
        r->deadline_ns =
                r->n_waiting == 0 ? wait->deadline_ns : MIN(r->deadline_ns, wait->deadline_ns);
        r->wanted = r->n_waiting == 0 ? wait->max : MIN(r->wanted, wait->max);
        if (r->n_waiting == 0)
                r->due_next = r->next;
        list_append(&r->waiting, &wait->node);
        wait->ring = r;
        r->n_waiting++;
        return EVENTS_WAIT;
}

static void complete(struct events_wait *wait, int result)
{
        list_unlink(&wait->node);
        if (wait->ring)
                wait->ring->n_waiting--;
        wait->ring = NULL;
        wait->result = result;
        wait->complete(wait);
}

void events_cancel(struct events_wait *wait)
{
        complete(wait, -ECANCELED);
}

void events_stop(struct events *e)
{
        e->stopping = true;
        for (unsigned i = 0; i < e->n_rings; i++)
                while (!list_empty(&e->rings[i].waiting))
                        complete(container_of(e->rings[i].waiting.next, struct events_wait, node),
                                 -ESHUTDOWN);
        while (!list_empty(&e->due))
                complete(container_of(e->due.next, struct events_wait, node), -ESHUTDOWN);
}

/* Moves the ring's waiting requests that are due to events.due: those for which there is a new
 * event or a gap, and those whose deadline has passed. */
static void collect(struct events_ring *r, uint64_t now_ns)
{
        r->deadline_ns = UINT64_MAX;
        r->wanted = UINT32_MAX;
        list_for_each_safe (&r->waiting, n) {
                struct events_wait *wait = container_of(n, struct events_wait, node);

                if (wait->from == r->next && wait->deadline_ns > now_ns) {
                        r->deadline_ns = MIN(r->deadline_ns, wait->deadline_ns);
                        r->wanted = MIN(r->wanted, wait->max);
                        continue;
                }
                list_unlink(n);
                list_append(&r->all->due, n);
                wait->ring = NULL;
                r->n_waiting--;
        }
        r->due_ns = 0;
        r->due_next = r->next;
}

/* Collects the ring's requests if they are due. Returns the time at which they will be; 0: no
 * request waits. */
static uint64_t ring_iterate(struct events_ring *r, uint64_t now_ns)
{
        if (r->n_waiting == 0) {
                r->due_ns = 0;
                return 0;
        }
        if (r->next != r->due_next && r->due_ns == 0)
                r->due_ns = now_ns + DELAY_NS;
        if ((r->due_ns != 0 && r->due_ns <= now_ns) || r->deadline_ns <= now_ns ||
            r->next - r->due_next >= r->wanted)
                collect(r, now_ns);
        if (r->n_waiting == 0)
                return 0;
        return r->due_ns != 0 ? MIN(r->due_ns, r->deadline_ns) : r->deadline_ns;
}

bool events_iterate(struct events *e, uint64_t now_ns, uint64_t *ret_deadline_ns)
{
        uint64_t sent = e->stats.sent;

        *ret_deadline_ns = 0;
        e->now_ms = 0;
        for (unsigned i = 0; i < e->n_rings; i++) {
                uint64_t of_this = ring_iterate(&e->rings[i], now_ns);

                if (of_this != 0 && (*ret_deadline_ns == 0 || of_this < *ret_deadline_ns))
                        *ret_deadline_ns = of_this;
        }
        for (unsigned n = 0; n < ANSWERS_PER_ITERATION &&
                             e->stats.sent - sent < EVENTS_PER_ITERATION && !list_empty(&e->due);
             n++)
                complete(container_of(e->due.next, struct events_wait, node), 0);
        return !list_empty(&e->due);
}

/* --- creation and end --- */

DEFINE_CLEANUP(struct events *, events_free);

static int ring_init(struct events_ring *r, struct events *e, const struct events_tenant *tenant,
                     uint64_t n_records)
{
        r->all = e;
        r->number = tenant->store_tenant;
        r->pool = tenant->pool;
        r->n_records = n_records;
        r->begin = r->next = 1;
        r->records = pages_map(n_records * sizeof(*r->records));
        r->bindings = calloc(BINDINGS, sizeof(*r->bindings));
        if (!r->records || !r->bindings)
                return -ENOMEM;
        r->watch = (struct pool_watch){ .changed = on_pool_changed, .userdata = r };
        pool_add_watch(r->pool, &r->watch);
        return 0;
}

int events_new(struct events **ret, const struct events_params *params)
{
        _cleanup_(events_freep) struct events *e =
                calloc(1, sizeof(*e) + params->n_tenants * sizeof(struct events_ring));
        uint64_t n_records = 1;

        if (!e)
                return -ENOMEM;
        list_init(&e->due);
        list_init(&e->watch.node);
        e->n_rings = params->n_tenants;
        for (unsigned i = 0; i < e->n_rings; i++) {
                list_init(&e->rings[i].waiting);
                list_init(&e->rings[i].watch.node);
        }
        while (n_records * 2 * sizeof(struct record) <= params->ring_bytes)
                n_records *= 2;
        if (getrandom(&e->epoch, sizeof(e->epoch), 0) != sizeof(e->epoch))
                return -errno;
        e->epoch |= 1; /* zero stands for no epoch */
        e->store = params->store;
        e->several_volumes = store_volumes(e->store) > 1;
        for (unsigned i = 0; i < e->n_rings; i++) {
                int r = ring_init(&e->rings[i], e, &params->tenants[i], n_records);

                if (r < 0)
                        return r;
        }
        e->stats.ring_bytes = e->n_rings * n_records * sizeof(struct record);
        e->watch = (struct store_watch){ .changed = on_store_changed,
                                         .volumes_changed = on_volumes_changed,
                                         .userdata = e };
        store_add_watch(e->store, &e->watch);
        *ret = TAKE_PTR(e);
        return 0;
}

struct events *events_free(struct events *e)
{
        if (!e)
                return NULL;
        assert(list_empty(&e->due));
        store_remove_watch(&e->watch);
        for (unsigned i = 0; i < e->n_rings; i++) {
                struct events_ring *r = &e->rings[i];

                assert(list_empty(&r->waiting));
                pool_remove_watch(&r->watch);
                if (r->records)
                        pages_unmap(r->records, r->n_records * sizeof(*r->records));
                free(r->bindings);
        }
        free(e);
        return NULL;
}

void events_get_stats(const struct events *e, struct events_stats *ret)
{
        *ret = e->stats;
        for (unsigned i = 0; i < e->n_rings; i++) {
                const struct events_ring *r = &e->rings[i];

                ret->written += r->next - 1 - r->resets;
                ret->overwritten += ring_first(r) - 1 - r->resets;
                ret->resets += r->resets;
                ret->waiting += r->n_waiting;
        }
}
