/* SPDX-License-Identifier: Apache-2.0 */
/* A request becomes messages; see build.h.
 *
 * Runs in the handle's thread. Owns the messages until they are queued.
 *
 * Messages are runs of keys that make sense, as long as may be; a key that makes none gets its
 * verdict here and ends a run. A put's data that is in the lane or in donated regions stays where
 * it is, in pieces if it is several; other data is copied to the lane. As soon as one key of a
 * message is in pieces, all are: a key that lies in one place has one piece. Failures (no memory,
 * no room in the lane, a place that was not acquired, too many pieces) leave what was built so far
 * to build_undo(). */
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
        case KVCACHE_OP_PREFETCH:
                return WIRE_PREFETCH;
        }
        return 0;
}

static const struct kvcache_key *build_key(const struct kvcache_request *user, size_t i)
{
        return user->entries ? &user->entries[i].key : &user->keys[i];
}

/* --- where the bytes of a key are --- */

enum build_home {
        BUILD_SHARED,    /* in memory that the daemon has, too */
        BUILD_ELSEWHERE, /* or a part of it is */
        BUILD_REFUSED,   /* in a region that the daemon did not take again */
};

static uint32_t build_parts(const struct kvcache_entry *e)
{
        return e->n_pieces > 0 ? e->n_pieces : 1;
}

static struct kvcache_piece build_part(const struct kvcache_entry *e, uint32_t i)
{
        return e->n_pieces > 0 ? e->pieces[i] : (struct kvcache_piece){ e->data, e->length };
}

uint64_t build_length(const struct kvcache_entry *e)
{
        uint64_t sum = 0;

        if (e->n_pieces > 0 && !e->pieces)
                return 0;
        for (uint32_t i = 0; i < build_parts(e); i++)
                if (!checked_add(sum, build_part(e, i).length, &sum))
                        return UINT64_MAX;
        return sum;
}

static enum build_home build_place(struct kvcache *kv, const void *data, uint64_t bytes,
                                   struct place *ret)
{
        const struct lane *l = &kv->conn->lane;
        const struct donated *d;

        if (lane_contains(l, data, bytes)) {
                *ret = (struct place){ WIRE_REGION_LANE,
                                       (uint64_t)((const uint8_t *)data - l->base), bytes };
                return BUILD_SHARED;
        }
        d = donated_find(kv, data, bytes);
        if (!d)
                return BUILD_ELSEWHERE;
        *ret = (struct place){ d->id, (uint64_t)((const uint8_t *)data - d->base), bytes };
        return d->session == kv->sessions ? BUILD_SHARED : BUILD_REFUSED;
}

static enum build_home build_home(struct kvcache *kv, const struct kvcache_entry *e)
{
        enum build_home home = BUILD_SHARED;

        if (e->n_pieces > 0 && !e->pieces)
                return BUILD_ELSEWHERE;
        for (uint32_t i = 0; i < build_parts(e); i++) {
                struct kvcache_piece part = build_part(e, i);
                struct place p;

                /* The enumeration ascends as it gets worse. */
                home = MAX(home, build_place(kv, part.data, part.length, &p));
        }
        return home;
}

bool build_needs_lane(struct kvcache *kv, const struct kvcache_entry *entries, size_t n)
{
        for (size_t i = 0; i < n; i++)
                if (build_home(kv, &entries[i]) == BUILD_ELSEWHERE)
                        return true;
        return false;
}

/* Do its bytes, or the room for them, make sense? */
static int build_verdict_bytes(const struct build *b, const struct kvcache_entry *e)
{
        uint64_t length;

        if (e->n_pieces > 0 && !e->pieces)
                return KVCACHE_INVALID;
        for (uint32_t i = 0; i < build_parts(e); i++) {
                struct kvcache_piece part = build_part(e, i);

                if (part.length == 0 || !part.data)
                        return KVCACHE_INVALID;
        }
        length = build_length(e);
        if (b->user->op == KVCACHE_OP_PUT && length > b->kv->conn->max_chunk)
                return KVCACHE_TOO_LARGE;
        if (e->n_pieces > 1 && length > UINT32_MAX)
                return KVCACHE_INVALID; /* no chunk is that long, nor is a number for it */
        return build_home(b->kv, e) == BUILD_REFUSED ? KVCACHE_INVALID : KVCACHE_OK;
}

/* KVCACHE_OK, or what becomes of a key that the daemon never sees. */
static int build_verdict(const struct build *b, size_t i)
{
        const struct kvcache_entry *e = b->user->entries ? &b->user->entries[i] : NULL;
        struct key k;
        int verdict;

        memcpy(&k, build_key(b->user, i), sizeof(k));
        if (key_is_root(&k))
                return KVCACHE_INVALID;
        switch (b->user->op) {
        case KVCACHE_OP_PUT:
                return build_verdict_bytes(b, e);
        case KVCACHE_OP_GET_INTO:
                verdict = build_verdict_bytes(b, e);
                if (verdict != KVCACHE_OK)
                        return verdict;
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

/* --- naming them --- */

/* The next piece of a message; a place in the lane gets a reference. False: nobody has acquired
 * it. */
static bool build_piece(struct build *b, struct message *m, const struct place *p)
{
        struct wire_piece *pieces = (struct wire_piece *)(m->data + m->pieces_at);

        if (p->region == WIRE_REGION_LANE && !lane_ref(&b->kv->conn->lane, p->offset, p->bytes))
                return false;
        pieces[m->n_pieces++] = (struct wire_piece){ p->offset, (uint32_t)p->bytes, p->region };
        return true;
}

/* Names where a key's bytes are: `copy`, or else all of its parts, which are shared. `*ret` is what
 * the key's entry says: one place, or its pieces. */
static int build_name(struct build *b, struct message *m, const struct place *copy,
                      const struct kvcache_entry *e, struct place *ret)
{
        struct lane *l = &b->kv->conn->lane;
        uint32_t n = copy ? 1 : build_parts(e);
        uint16_t first = m->n_pieces;
        uint64_t bytes = 0;
        bool ok = true;

        for (uint32_t i = 0; i < n && ok; i++) {
                struct place p;

                if (copy) {
                        p = *copy;
                } else {
                        struct kvcache_piece part = build_part(e, i);

                        (void)build_place(b->kv, part.data, part.length, &p);
                        p.bytes = MIN(p.bytes, (uint64_t)UINT32_MAX);
                }
                if (m->pieces_at)
                        ok = build_piece(b, m, &p);
                else
                        ok = p.region != WIRE_REGION_LANE || lane_ref(l, p.offset, p.bytes);
                bytes += p.bytes;
                *ret = p;
        }
        if (!ok)
                return handle_fail(b->kv, -EINVAL,
                                   "the memory of key %zu lies in the lane, but in no acquired "
                                   "place",
                                   m->first + m->count);
        if (m->pieces_at)
                *ret = (struct place){ .region = n, .offset = first, .bytes = bytes };
        return 0;
}

static void build_gather(const struct kvcache_entry *e, uint8_t *to)
{
        for (uint32_t i = 0; i < build_parts(e); i++) {
                struct kvcache_piece part = build_part(e, i);

                memcpy(to, part.data, part.length);
                to += part.length;
        }
}

/* Names the bytes of a put. What is in no shared memory is copied to the lane: to one place for all
 * of the message if there is one so long, else to one each. Every entry gets a reference on its
 * place there. */
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
                if (build_home(b->kv, &entries[i]) == BUILD_ELSEWHERE)
                        copied += round_up(build_length(&entries[i]),
                                           LANE_ALIGN); /* at most 1,024 times 4 GiB */
        if (copied > 0)
                together = lane_acquire(l, copied, true, &place) == 0;
        at = place;

        m->moves = true;
        for (m->count = 0; m->count < n; m->count++) {
                const struct kvcache_entry *e = &entries[m->count];
                bool copy = build_home(b->kv, e) == BUILD_ELSEWHERE;
                struct place to = { WIRE_REGION_LANE, at, copy ? build_length(e) : 0 },
                             named = { 0 };
                struct wire_put *put = &puts[m->count];

                memcpy(&put->key, &e->key, sizeof(put->key));
                if (copy && together) {
                        at += round_up(to.bytes, LANE_ALIGN);
                } else if (copy) {
                        r = lane_acquire(l, to.bytes, false, &to.offset);
                        if (r < 0)
                                break;
                }
                r = build_name(b, m, copy ? &to : NULL, e, &named);
                if (r < 0)
                        break;
                put->region = named.region;
                put->offset = named.offset;
                put->length = (uint32_t)named.bytes;
                if (copy)
                        build_gather(e, l->base + to.offset);
        }
        if (together)
                (void)lane_release(l, place); /* from here on its references keep it */
        return r;
}

static int build_get(struct build *b, struct message *m)
{
        struct wire_get *gets = (struct wire_get *)(m->data + sizeof(struct wire_batch));
        unsigned n = m->count;
        int r;

        m->moves = b->into;
        for (m->count = 0; m->count < n; m->count++) {
                size_t i = m->first + m->count;
                struct wire_get *get = &gets[m->count];
                const struct kvcache_entry *e;
                struct place named = { 0 };

                memcpy(&get->key, build_key(b->user, i), sizeof(get->key));
                if (!b->user->entries)
                        continue;
                e = &b->user->entries[i];
                get->range_offset = (uint32_t)e->range_offset;
                get->range_length = (uint32_t)e->range_length;
                if (!b->into)
                        continue;
                r = build_name(b, m, NULL, e, &named);
                if (r < 0)
                        return r;
                get->into_region = named.region;
                get->into_offset = named.offset;
                get->into_length = (uint32_t)named.bytes;
        }
        return 0;
}

/* One message for the entries [first, first + count), all of which make sense, with so many pieces
 * if any. */
static int build_message(struct build *b, size_t first, uint32_t count, uint32_t pieces)
{
        const struct kvcache_request *u = b->user;
        unsigned op = build_wire_op(u->op);
        size_t entry = wire_entry_bytes(op);
        bool chained = wire_op_is_chained(op);
        const struct kvcache_key *parent = first > 0 ? build_key(u, first - 1) : u->parent;
        struct message *m, *before = TAILQ_LAST(&b->messages, message_list);
        struct wire_batch *batch;
        int r = 0;

        m = message_new(op, sizeof(*batch) + count * entry + pieces * sizeof(struct wire_piece));
        if (!m)
                return -ENOMEM;
        TAILQ_INSERT_TAIL(&b->messages, m, link);
        m->request = b->request;
        m->first = first;
        m->count = (uint16_t)count;

        batch = (struct wire_batch *)m->data;
        batch->namespace_id = b->namespace_id;
        batch->count = (uint16_t)count;
        if (pieces > 0) {
                m->pieces_at = (uint32_t)(sizeof(*batch) + count * entry);
                batch->pieces = (uint16_t)pieces;
                batch->hdr.flags |= WIRE_F_PIECES;
        }
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
                if (b->into)
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

/* How many pieces the daemon is told of this entry: 1 if it lies in one place, or is copied. */
static uint32_t build_pieces(const struct build *b, size_t i)
{
        const struct kvcache_entry *e;

        if (b->user->op != KVCACHE_OP_PUT && !b->into)
                return 1;
        e = &b->user->entries[i];
        return build_parts(e) > 1 && build_home(b->kv, e) == BUILD_SHARED ? e->n_pieces : 1;
}

/* How many of the entries from `from` on one message holds, and their pieces, if any are in pieces.
 */
static uint32_t build_run(const struct build *b, size_t from, uint32_t *ret_pieces)
{
        size_t end = b->first + b->count, entry = wire_entry_bytes(build_wire_op(b->user->op));
        uint64_t pieces = 0, bytes;
        bool in_pieces = false;
        uint32_t n = 0;

        while (from + n < end && n < b->per_message && build_verdict(b, from + n) == KVCACHE_OK) {
                uint32_t more = build_pieces(b, from + n);
                bool any = in_pieces || more > 1;

                bytes = sizeof(struct wire_batch) + (n + 1) * entry;
                if (any)
                        bytes += (pieces + more) * sizeof(struct wire_piece);
                if (bytes > b->kv->conn->max_message)
                        break;
                in_pieces = any;
                pieces += more;
                n++;
        }
        *ret_pieces = in_pieces ? (uint32_t)pieces : 0;
        return n;
}

static int build_messages(struct build *b)
{
        size_t i = b->first, end = b->first + b->count;
        int r;

        while (i < end) {
                int verdict = build_verdict(b, i);
                uint32_t n, pieces = 0;

                if (verdict != KVCACHE_OK) {
                        request_set(b->request, i, 1, verdict);
                        i++;
                        continue;
                }
                n = build_run(b, i, &pieces);
                if (n == 0)
                        return handle_fail(b->kv, -E2BIG,
                                           "key %zu has %u pieces, more than a message holds", i,
                                           b->user->entries[i].n_pieces);
                r = build_message(b, i, n, pieces);
                if (r < 0)
                        return r;
                b->request->n_messages++;
                i += n;
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

/* A `get into` whose places are all in memory that this session shares is the daemon's work.
 * Elsewhere (the place of a lane whose daemon is gone, or any other memory) the library copies from
 * the pool when the reply comes. */
static bool build_all_shared(const struct build *b)
{
        for (size_t i = b->first; i < b->first + b->count; i++)
                if (build_verdict(b, i) == KVCACHE_OK &&
                    build_home(b->kv, &b->user->entries[i]) == BUILD_ELSEWHERE)
                        return false;
        return true;
}

/* Notes where the library is to copy to: the entries are the user's again when the call ends. */
static int build_targets(struct build *b)
{
        const struct kvcache_request *u = b->user;
        struct request *q = b->request;
        size_t n_pieces = 0, at = 0;

        for (size_t i = b->first; i < b->first + b->count; i++)
                if (u->entries[i].pieces)
                        n_pieces += u->entries[i].n_pieces;
        q->targets = calloc(q->count, sizeof(*q->targets));
        if (n_pieces > 0)
                q->target_pieces = calloc(n_pieces, sizeof(*q->target_pieces));
        if (!q->targets || (n_pieces > 0 && !q->target_pieces))
                return -ENOMEM;
        for (size_t i = b->first; i < b->first + b->count; i++) {
                const struct kvcache_entry *e = &u->entries[i];
                struct request_target *t = &q->targets[i];

                *t = (struct request_target){ .data = e->data, .room = build_length(e) };
                if (e->n_pieces == 0 || !e->pieces)
                        continue;
                t->pieces = q->target_pieces + at;
                t->n_pieces = e->n_pieces;
                memcpy(q->target_pieces + at, e->pieces, e->n_pieces * sizeof(*e->pieces));
                at += e->n_pieces;
        }
        return 0;
}

static int build_prepare(struct build *b)
{
        const struct kvcache_request *u = b->user;
        unsigned op = build_wire_op(u->op);
        struct kvcache *kv = b->kv;

        b->per_message = (uint32_t)MIN((size_t)kv->conn->max_keys,
                                       (kv->conn->max_message - sizeof(struct wire_batch)) /
                                               wire_entry_bytes(op));
        if (u->op != KVCACHE_OP_GET_INTO)
                return 0;
        b->into = build_all_shared(b);
        return b->into ? 0 : build_targets(b);
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
        if (last && (more || (u->flags & KVCACHE_MORE)) && wire_op_is_chained(last->op))
                ((struct wire_hdr *)last->data)->flags |= WIRE_F_MORE;
        return 0;
}
