/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the rings, and walks the chunks for snapshots: builds the replies to EVENTS.
 *
 * A reply has the events and the names of their namespaces, each name once. It ends early when it
 * is full.
 *
 * With several volumes a chunk may be on two of them, if one was not in use while the chunk was
 * put. When one volume removes it, the other still has it. So the reader of a removal from disk
 * looks the chunk up in the store, and reports it as stored if it is found; events of later changes
 * follow. */
#include "events/internal.h"

#include <assert.h>
#include <string.h>

#include "checked.h"

enum {
        STEP = 64, /* records of a snapshot that are visited together */
        /* Most steps of one call. Records of other tenants do not fill a reply, so that without
         * this limit a call might visit all records. */
        STEPS_PER_CALL = 64,
        /* Bytes of the longest name in a reply. */
        NAME_BYTES = sizeof(struct wire_event_name) + WIRE_MAX_NAME + 1,
};
static_assert(NAME_BYTES % 8 == 0, "names are padded");

/* The cursor of a snapshot: first a position in the store's walk; with this bit, the next record of
 * the pool. */
#define CURSOR_POOL (UINT64_C(1) << 63)

/* A reply in progress. The names are collected separately, because they follow the events. */
struct builder {
        struct events_ring *ring;
        struct events_reply *reply;
        struct wire_event *events;
        unsigned max;
        size_t name_bytes;
        uint8_t tier; /* the tier that a snapshot walks */
};
static _Alignas(8) uint8_t names[WIRE_MAX_MESSAGE]; /* too large for the stack */

static size_t room(const struct builder *b)
{
        return sizeof(b->reply->body) - sizeof(struct wire_events_result) -
               b->reply->head.count * sizeof(*b->events) - b->name_bytes;
}

static void begin(struct builder *b, struct events_ring *r, unsigned max,
                  struct events_reply *reply)
{
        reply->head = (struct wire_reply){ 0 };
        *b = (struct builder){
                .ring = r,
                .reply = reply,
                .events = (struct wire_event *)(reply->body + sizeof(struct wire_events_result)),
                .max = max,
        };
        r->replies++;
}

static void end(struct builder *b, uint64_t next, uint32_t flags)
{
        struct wire_events_result head = {
                .epoch = b->ring->all->epoch,
                .first = ring_first(b->ring),
                .next = b->ring->next,
                .flags = flags,
        };

        memcpy(b->reply->body, &head, sizeof(head));
        memcpy(b->events + b->reply->head.count, names, b->name_bytes);
        b->reply->head.value64 = next;
        b->reply->bytes = sizeof(head) + b->reply->head.count * sizeof(*b->events) + b->name_bytes;
}

/* Adds the name of the namespace, unless the reply has it. Returns false if there is no room for it
 * and for an event. */
static bool add_name(struct builder *b, struct binding *binding)
{
        const struct store_namespace *ns;
        struct wire_event_name head;
        size_t bytes;

        if (binding->reply == b->ring->replies)
                return true;
        ns = store_namespace_get(b->ring->all->store, binding->id);
        if (!ns)
                return true; /* the namespace is being removed, so its name is not needed */
        head = (struct wire_event_name){ .namespace_number = binding->number,
                                         .name_length = (uint16_t)strlen(ns->name) };
        bytes = round_up(sizeof(head) + head.name_length, 8);
        if (room(b) < bytes + sizeof(*b->events))
                return false;
        memset(names + b->name_bytes, 0, bytes);
        memcpy(names + b->name_bytes, &head, sizeof(head));
        memcpy(names + b->name_bytes + sizeof(head), ns->name, head.name_length);
        b->name_bytes += bytes;
        b->reply->head.value++;
        binding->reply = b->ring->replies;
        return true;
}

/* Returns whether the record says that a volume has removed a chunk, but the store still finds the
 * chunk, on another volume. Stores the length of the chunk then. */
static bool is_still_stored(const struct events_ring *r, const struct record *record,
                            const struct binding *binding, uint32_t *ret_length)
{
        struct store_chunk chunk;

        if (!r->all->several_volumes || record->kind != WIRE_EVENT_REMOVED ||
            record->tier != WIRE_TIER_DISK || !binding ||
            store_find(r->all->store, record->id, &record->key,
                       store_hash(r->all->store, record->id, &record->key), NULL, &chunk) != 0)
                return false;
        *ret_length = chunk.length;
        return true;
}

/* Adds a record as an event. Returns false if the reply is full. */
static bool add_record(struct builder *b, const struct record *record)
{
        struct binding *binding = binding_find(b->ring, record->id, record->number);
        struct wire_event *event = &b->events[b->reply->head.count];
        uint32_t length = record->length;
        uint8_t kind = record->kind;

        if (b->reply->head.count == b->max || room(b) < sizeof(*event) ||
            (binding && !add_name(b, binding)))
                return false;
        if (is_still_stored(b->ring, record, binding, &length))
                kind = WIRE_EVENT_STORED;
        *event = (struct wire_event){
                .key = record->key,
                .time_ms = record->time_ms,
                .namespace_number = record->number,
                .length = length,
                .kind = kind,
                .tier = record->tier,
        };
        b->reply->head.count++;
        return true;
}

void events_read(struct events *e, unsigned tenant, uint64_t epoch, uint64_t from, unsigned max,
                 struct events_reply *ret)
{
        struct events_ring *r = &e->rings[tenant];
        struct builder b;

        assert(tenant < e->n_rings);
        begin(&b, r, max, ret);
        if (epoch != e->epoch || from < ring_first(r) || from > r->next) {
                e->stats.gaps++;
                end(&b, r->next, WIRE_EVENTS_GAP);
                return;
        }
        while (from < r->next && add_record(&b, &r->records[from & (r->n_records - 1)]))
                from++;
        e->stats.sent += ret->head.count;
        end(&b, from, 0);
}

/* --- snapshots --- */

static void add_chunk(void *userdata, uint32_t namespace_id, const struct key *key, uint32_t length)
{
        struct builder *b = userdata;
        struct binding *binding = binding_of(b->ring, namespace_id);

        if (!binding)
                return;
        (void)add_name(b, binding); /* a step begins only if its names have room */
        b->events[b->reply->head.count++] = (struct wire_event){
                .key = *key,
                .namespace_number = binding->number,
                .length = length,
                .kind = WIRE_EVENT_STORED,
                .tier = b->tier,
        };
}

/* Visits the next records. Returns the cursor after them, or 0 at the end. */
static uint64_t step(struct builder *b, uint64_t cursor, unsigned records)
{
        struct events_ring *r = b->ring;
        uint32_t chunk = (uint32_t)cursor;

        if (!(cursor & CURSOR_POOL)) {
                b->tier = WIRE_TIER_DISK;
                store_walk_findable(r->all->store, &cursor, records, add_chunk, b);
                return cursor == STORE_WALK_END ? CURSOR_POOL : cursor;
        }
        b->tier = WIRE_TIER_MEMORY;
        return pool_walk(r->pool, &chunk, records, add_chunk, b) ? CURSOR_POOL | chunk : 0;
}

void events_snapshot(struct events *e, unsigned tenant, uint64_t cursor, unsigned max,
                     struct events_reply *ret)
{
        struct events_ring *r = &e->rings[tenant];
        struct builder b;

        assert(tenant < e->n_rings);
        begin(&b, r, max, ret);
        for (unsigned i = 0; i < STEPS_PER_CALL && ret->head.count < max; i++) {
                unsigned records = MIN((unsigned)STEP, max - ret->head.count);

                if (room(&b) < records * (sizeof(struct wire_event) + NAME_BYTES))
                        break;
                cursor = step(&b, cursor, records);
                if (cursor == 0)
                        break;
        }
        e->stats.snapshot_entries += ret->head.count;
        end(&b, cursor, 0);
}
