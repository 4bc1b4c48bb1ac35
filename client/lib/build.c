/* SPDX-License-Identifier: Apache-2.0 */
/* A request becomes messages; see build.h.
 *
 * Runs in the handle's thread. Owns the messages until they are queued.
 *
 * Messages are runs of keys that make sense, as long as may be; a key that makes none gets its
 * verdict here and ends a run. Data of a put that is not in the lane is copied there. Failures (no
 * memory, no room in the lane, a place that was not acquired) leave what was built so far to
 * build_undo(). */
#include "build.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "message.h"
#include "request.h"

static_assert(sizeof(struct kvcache_key) == sizeof(struct key), "keys are the same bytes");

unsigned build_wire_op(enum kvcache_op op)
{
        switch (op) {
        case KVCACHE_OP_PUT:
                return WIRE_PUT;
        case KVCACHE_OP_GET:
        case KVCACHE_OP_GET_INTO:
                return WIRE_GET;
        case KVCACHE_OP_EXISTS:
                return WIRE_EXISTS;
        case KVCACHE_OP_MATCH:
                return WIRE_MATCH;
        case KVCACHE_OP_TOUCH:
                return WIRE_TOUCH;
        case KVCACHE_OP_EVICT:
                return WIRE_EVICT;
        case KVCACHE_OP_STAT:
                return WIRE_STAT;
        }
        return 0;
}

static bool build_is_chained(unsigned op)
{
        return op == WIRE_PUT || op == WIRE_GET || op == WIRE_TOUCH;
}

static const struct kvcache_key *build_key(const struct kvcache_request *user, size_t i)
{
        return user->entries ? &user->entries[i].key : &user->keys[i];
}

/* KVCACHE_OK, or what becomes of a key that the daemon never sees. */
static int build_verdict(const struct build *b, size_t i)
{
        const struct kvcache_entry *e = b->user->entries ? &b->user->entries[i] : NULL;
        struct key k;

        memcpy(&k, build_key(b->user, i), sizeof(k));
        if (key_is_root(&k))
                return KVCACHE_INVALID;
        switch (b->user->op) {
        case KVCACHE_OP_PUT:
                if (e->length == 0 || !e->data)
                        return KVCACHE_INVALID;
                return e->length > b->kv->conn->max_chunk ? KVCACHE_TOO_LARGE : KVCACHE_OK;
        case KVCACHE_OP_GET_INTO:
                if (!e->data || e->length == 0)
                        return KVCACHE_INVALID;
                break;
        case KVCACHE_OP_GET:
                if (!e)
                        return KVCACHE_OK;
                break;
        default:
                return KVCACHE_OK;
        }
        return e->range_offset > UINT32_MAX || e->range_length > UINT32_MAX ? KVCACHE_INVALID
                                                                            : KVCACHE_OK;
}

/* Names the bytes of a put in the lane. What is elsewhere is copied: to one place for all of the
 * message if there is one so long, else to one each. Every entry gets a reference on its place. */
static int build_put(struct build *b, struct message *m)
{
        struct wire_put *puts = (struct wire_put *)(m->data + sizeof(struct wire_batch));
        const struct kvcache_entry *entries = &b->user->entries[m->first];
        uint64_t copied = 0, place = 0, at = 0;
        struct lane *l = &b->kv->conn->lane;
        bool together = false;
        unsigned n = m->count;
        int r = 0;

        for (unsigned i = 0; i < n; i++)
                if (!lane_contains(l, entries[i].data, entries[i].length))
                        copied += round_up(entries[i].length,
                                           LANE_ALIGN); /* at most 1,024 times 4 GiB */
        if (copied > 0)
                together = lane_acquire(l, copied, true, &place) == 0;
        at = place;

        m->uses_lane = true;
        for (m->count = 0; m->count < n; m->count++) {
                const struct kvcache_entry *e = &entries[m->count];
                struct wire_put *put = &puts[m->count];
                bool inside = lane_contains(l, e->data, e->length);

                memcpy(&put->key, &e->key, sizeof(put->key));
                put->region = WIRE_REGION_LANE;
                put->length = (uint32_t)e->length;
                if (inside) {
                        put->offset = (uint64_t)((const uint8_t *)e->data - l->base);
                } else if (together) {
                        put->offset = at;
                        at += round_up(e->length, LANE_ALIGN);
                } else {
                        r = lane_acquire(l, e->length, false, &put->offset);
                        if (r < 0)
                                break;
                }
                if (!lane_ref(l, put->offset, e->length)) {
                        r = handle_fail(
                                b->kv, -EINVAL,
                                "the data of key %zu lies in the lane, but in no acquired place",
                                m->first + m->count);
                        break;
                }
                if (!inside)
                        memcpy(l->base + put->offset, e->data, e->length);
        }
        if (together)
                (void)lane_release(l, place); /* from here on its references keep it */
        return r;
}

static int build_get(struct build *b, struct message *m)
{
        struct wire_get *gets = (struct wire_get *)(m->data + sizeof(struct wire_batch));
        struct lane *l = &b->kv->conn->lane;
        unsigned n = m->count;

        m->uses_lane = b->in_lane;
        for (m->count = 0; m->count < n; m->count++) {
                size_t i = m->first + m->count;
                struct wire_get *get = &gets[m->count];
                const struct kvcache_entry *e;

                memcpy(&get->key, build_key(b->user, i), sizeof(get->key));
                if (!b->user->entries)
                        continue;
                e = &b->user->entries[i];
                get->range_offset = (uint32_t)e->range_offset;
                get->range_length = (uint32_t)e->range_length;
                if (!b->in_lane)
                        continue;
                get->into_region = WIRE_REGION_LANE;
                get->into_offset = (uint64_t)((const uint8_t *)e->data - l->base);
                get->into_length = (uint32_t)MIN(e->length, (uint64_t)UINT32_MAX);
                if (!lane_ref(l, get->into_offset, get->into_length))
                        return handle_fail(
                                b->kv, -EINVAL,
                                "the room of key %zu lies in the lane, but in no acquired place",
                                i);
        }
        return 0;
}

/* One message for the entries [first, first + count), all of which make sense. */
static int build_message(struct build *b, size_t first, uint32_t count)
{
        const struct kvcache_request *u = b->user;
        unsigned op = build_wire_op(u->op);
        size_t entry = wire_entry_bytes(op);
        bool chained = build_is_chained(op);
        const struct kvcache_key *parent = first > 0 ? build_key(u, first - 1) : u->parent;
        struct message *m, *before = TAILQ_LAST(&b->messages, message_list);
        struct wire_batch *batch;
        int r = 0;

        m = message_new(op, sizeof(*batch) + count * entry);
        if (!m)
                return -ENOMEM;
        TAILQ_INSERT_TAIL(&b->messages, m, link);
        m->request = b->request;
        m->first = first;
        m->count = (uint16_t)count;

        batch = (struct wire_batch *)m->data;
        batch->namespace_id = b->namespace_id;
        batch->count = (uint16_t)count;
        if (chained && parent)
                memcpy(&batch->parent, parent, sizeof(batch->parent));
        if (chained && before)
                ((struct wire_hdr *)before->data)->flags |= WIRE_F_MORE;
        if (op == WIRE_PUT || op == WIRE_GET) {
                batch->timeout_ms = b->wait_ms;
                if (u->flags & KVCACHE_NOWAIT)
                        batch->hdr.flags |= WIRE_F_NOWAIT;
        }
        switch (op) {
        case WIRE_PUT:
                batch->ack = (uint8_t)u->ack;
                if (u->flags & KVCACHE_KEEP_LEASE)
                        batch->hdr.flags |= WIRE_F_LEASE;
                r = build_put(b, m);
                break;
        case WIRE_GET:
                if (b->in_lane)
                        batch->hdr.flags |= WIRE_F_INTO;
                r = build_get(b, m);
                break;
        default:
                if (op == WIRE_EVICT)
                        batch->tiers = (uint8_t)(u->tiers ? u->tiers : KVCACHE_TIER_ALL);
                for (uint32_t i = 0; i < count; i++)
                        memcpy(m->data + sizeof(*batch) + i * entry, build_key(u, first + i),
                               entry);
                break;
        }
        return r;
}

static int build_messages(struct build *b)
{
        size_t i = b->first, end = b->first + b->count;
        int r;

        while (i < end) {
                int verdict = build_verdict(b, i);
                size_t from = i;

                if (verdict != KVCACHE_OK) {
                        request_set(b->request, i, 1, verdict);
                        i++;
                        continue;
                }
                while (i < end && i - from < b->per_message && build_verdict(b, i) == KVCACHE_OK)
                        i++;
                r = build_message(b, from, (uint32_t)(i - from));
                if (r < 0)
                        return r;
                b->request->n_messages++;
        }
        return 0;
}

void build_undo(struct build *b)
{
        struct message *m;

        while ((m = TAILQ_FIRST(&b->messages))) {
                TAILQ_REMOVE(&b->messages, m, link);
                message_unref_lane(m, &b->kv->conn->lane);
                message_free(m);
        }
}

/* A `get into` whose places are all in this session's lane is the daemon's work. Elsewhere (the
 * place of a lane whose daemon is gone, or any other memory) the library copies from the pool when
 * the reply comes. */
static bool build_all_in_lane(const struct build *b)
{
        for (size_t i = b->first; i < b->first + b->count; i++)
                if (!lane_contains(&b->kv->conn->lane, b->user->entries[i].data,
                                   b->user->entries[i].length))
                        return false;
        return true;
}

static int build_prepare(struct build *b)
{
        const struct kvcache_request *u = b->user;
        unsigned op = build_wire_op(u->op);
        struct kvcache *kv = b->kv;
        struct request *q = b->request;

        b->per_message = (uint32_t)MIN((size_t)kv->conn->max_keys,
                                       (kv->conn->max_message - sizeof(struct wire_batch)) /
                                               wire_entry_bytes(op));
        if (u->op != KVCACHE_OP_GET_INTO)
                return 0;
        b->in_lane = build_all_in_lane(b);
        if (b->in_lane)
                return 0;
        q->targets = calloc(q->count, sizeof(*q->targets));
        if (!q->targets)
                return -ENOMEM;
        for (size_t i = b->first; i < b->first + b->count; i++)
                q->targets[i] = (struct request_target){ u->entries[i].data, u->entries[i].length };
        return 0;
}

int build_request(struct build *b, bool more)
{
        const struct kvcache_request *u = b->user;
        struct message *last;
        int r;

        r = build_prepare(b);
        if (r == 0)
                r = build_messages(b);
        if (r < 0)
                return r;
        last = TAILQ_LAST(&b->messages, message_list);
        if (last && (more || (u->flags & KVCACHE_MORE)) && build_is_chained(last->op))
                ((struct wire_hdr *)last->data)->flags |= WIRE_F_MORE;
        return 0;
}
