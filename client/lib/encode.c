/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the messages of a request; see encode.h.
 *
 * Runs in the handle's thread. Owns the messages until they are queued.
 *
 * A message carries the longest possible run of valid keys; an invalid key gets its status here and
 * ends a run. A put's data in the staging area or in registered buffers is sent by reference, in
 * pieces if there are several; other data is copied to the staging area. If one key of a message
 * has several pieces, all keys of the message are described by pieces. Failures (no memory, no room
 * in the staging area, a place that was not acquired, too many pieces) leave the messages built so
 * far to encode_undo(). */
#include "lib/encode.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "lib/abi.h"

unsigned encode_wire_op(const struct kvcache_request *user)
{
        switch (user->op) {
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
        case KVCACHE_OP_GIVE_BACK:
                return WIRE_GIVE_BACK;
        case KVCACHE_OP_HINT:
        case KVCACHE_OP_PIN:
        case KVCACHE_OP_UNPIN:
                return WIRE_HINT;
        case KVCACHE_OP_ADVISE:
                return user->advice == KVCACHE_ADVICE_PREFETCH ? WIRE_PREFETCH : WIRE_HINT;
        }
        return 0;
}

/* Returns key `i` of a PUT or a GET_INTO. */
static const struct resolved_key *encode_key(const struct encode *b, size_t i)
{
        return &b->keys->keys[i];
}

/* Returns the hint of an ADVISE; 0 for unknown advice, and for PREFETCH, which is another message.
 */
static enum wire_hint hint_of_advice(enum kvcache_advice advice)
{
        static const uint8_t hints[] = {
                [KVCACHE_ADVICE_RETURN] = WIRE_HINT_RETURN,
                [KVCACHE_ADVICE_FINAL] = WIRE_HINT_FINAL,
                [KVCACHE_ADVICE_TOOL_CALL] = WIRE_HINT_TOOL_CALL,
                [KVCACHE_ADVICE_TURN_END] = WIRE_HINT_TURN_END,
                [KVCACHE_ADVICE_PIN] = WIRE_HINT_PIN,
                [KVCACHE_ADVICE_UNPIN] = WIRE_HINT_UNPIN,
                [KVCACHE_ADVICE_DEMOTE] = WIRE_HINT_DEMOTE,
                [KVCACHE_ADVICE_PREFETCH] = 0,
                [KVCACHE_ADVICE_SHARE] = WIRE_HINT_SHARE,
        };

        return (unsigned)advice < ARRAY_SIZE(hints) ? (enum wire_hint)hints[advice] : 0;
}

unsigned encode_feature_of(const struct kvcache_request *user)
{
        switch (user->op == KVCACHE_OP_ADVISE ? user->advice : KVCACHE_ADVICE_NONE) {
        case KVCACHE_ADVICE_RETURN:
        case KVCACHE_ADVICE_FINAL:
                return WIRE_FEATURE_HINT;
        case KVCACHE_ADVICE_PIN:
        case KVCACHE_ADVICE_UNPIN:
                return WIRE_FEATURE_PIN;
        case KVCACHE_ADVICE_PREFETCH:
                return WIRE_FEATURE_PREFETCH;
        case KVCACHE_ADVICE_NONE:
                return 0;
        default:
                return WIRE_FEATURE_ADVICE;
        }
}

/* Returns the code of enum wire_expects by which a PUT announces the next use of its chain. */
static uint8_t expects(const struct encode *b)
{
        const struct kvcache_request *u = b->user;

        if (u->advice == KVCACHE_ADVICE_NONE || !(b->kv->conn->features & WIRE_FEATURE_ADVICE))
                return WIRE_EXPECTS_NOTHING;
        return u->advice == KVCACHE_ADVICE_FINAL ? WIRE_EXPECTS_FINAL
                                                 : wire_expects_return(u->return_s);
}

static enum wire_hint wire_hint(const struct kvcache_request *user)
{
        if (user->op == KVCACHE_OP_ADVISE)
                return hint_of_advice(user->advice);
        switch (user->op) {
        case KVCACHE_OP_PIN:
                return WIRE_HINT_PIN;
        case KVCACHE_OP_UNPIN:
                return WIRE_HINT_UNPIN;
        default:
                return user->return_s ? WIRE_HINT_RETURN : WIRE_HINT_FINAL;
        }
}

/* --- locations of the keys' bytes in a message --- */

/* Appends a piece to a message, and takes a reference if it lies in the staging area. Returns false
 * if the place was not acquired. */
static bool encode_piece(struct encode *b, struct message *m, const struct place *p)
{
        struct wire_piece *pieces = (struct wire_piece *)(m->data + m->pieces_at);

        if (p->region == WIRE_REGION_STAGING &&
            !staging_ref(&b->kv->conn->staging, p->offset, p->bytes))
                return false;
        pieces[m->n_pieces++] = (struct wire_piece){ p->offset, (uint32_t)p->bytes, p->region };
        return true;
}

/* Sets `*ret`, the location that the key's entry names: the place `copy` if it is not NULL,
 * otherwise the key's pieces in memory shared with the daemon. The location is one place, or a
 * range of the message's pieces. Returns 0; -EINVAL if memory lies in the staging area but in no
 * acquired place. */
static int encode_name(struct encode *b, struct message *m, const struct place *copy,
                       const struct resolved_key *k, struct place *ret)
{
        struct staging *l = &b->kv->conn->staging;
        uint32_t n = copy ? 1 : k->n_pieces;
        uint16_t first = m->n_pieces;
        uint64_t bytes = 0;
        bool ok = true;

        for (uint32_t i = 0; i < n && ok; i++) {
                struct place p = copy ? *copy : b->keys->pieces[k->first_piece + i].place;

                p.bytes = MIN(p.bytes, (uint64_t)UINT32_MAX);
                if (m->pieces_at)
                        ok = encode_piece(b, m, &p);
                else
                        ok = p.region != WIRE_REGION_STAGING || staging_ref(l, p.offset, p.bytes);
                bytes += p.bytes;
                *ret = p;
        }
        if (!ok)
                return handle_fail(b->kv, -EINVAL,
                                   "the memory of key %zu lies in the staging area, but not in a "
                                   "place of kvcache_staging_acquire()",
                                   m->first + m->count);
        if (m->pieces_at)
                *ret = (struct place){ .region = n, .offset = first, .bytes = bytes };
        return 0;
}

static void encode_gather(const struct encode *b, const struct resolved_key *k, uint8_t *to)
{
        const struct resolved_piece *p = &b->keys->pieces[k->first_piece];

        for (uint32_t i = 0; i < k->n_pieces; i++, p++) {
                memcpy(to, p->data, p->bytes);
                to += p->bytes;
        }
}

/* Returns the cost of entry `i`, or 0 if the daemon does not know the field and would reject it. */
static uint32_t cost_of(const struct encode *b, size_t i)
{
        const struct kvcache_request *u = b->user;
        const struct kvcache_entry *e = abi_at(u->entries, u->entry_size, i);

        return b->kv->conn->features & WIRE_FEATURE_COST ? e->cost_us : 0;
}

/* Fills in the entries of a PUT: keys, costs, and locations of the bytes. Bytes outside shared
 * memory are copied to the staging area: to one place for the whole message if there is room,
 * otherwise to one place for each key. Each entry takes a reference on its place. */
static int encode_put(struct encode *b, struct message *m)
{
        struct wire_put *puts = (struct wire_put *)(m->data + sizeof(struct wire_batch));
        const struct resolved_key *keys = encode_key(b, m->first);
        uint64_t copied = 0, place = 0, at = 0;
        struct staging *l = &b->kv->conn->staging;
        bool together = false;
        unsigned n = m->count;
        int r = 0;

        for (unsigned i = 0; i < n; i++)
                if (!keys[i].shared)
                        copied += round_up(keys[i].bytes,
                                           STAGING_ALIGN); /* at most 1,024 times 4 GiB */
        if (copied > 0)
                together = staging_acquire(l, copied, true, &place) == 0;
        at = place;

        m->moves = true;
        for (m->count = 0; m->count < n; m->count++) {
                const struct resolved_key *k = &keys[m->count];
                bool copy = !k->shared;
                struct place to = { WIRE_REGION_STAGING, at, copy ? k->bytes : 0 }, named = { 0 };
                struct wire_put *put = &puts[m->count];

                memcpy(&put->key, resolved_key(b->user, m->first + m->count), sizeof(put->key));
                if (copy && together) {
                        at += round_up(to.bytes, STAGING_ALIGN);
                } else if (copy) {
                        r = staging_acquire(l, to.bytes, false, &to.offset);
                        if (r < 0)
                                break;
                }
                r = encode_name(b, m, copy ? &to : NULL, k, &named);
                if (r < 0)
                        break;
                put->region = named.region;
                put->offset = named.offset;
                put->length = (uint32_t)named.bytes;
                put->cost_us = cost_of(b, m->first + m->count);
                if (copy)
                        encode_gather(b, k, l->base + to.offset);
        }
        if (together)
                (void)staging_release(l, place); /* from here on, only references keep the place */
        return r;
}

static int encode_get(struct encode *b, struct message *m)
{
        struct wire_get *gets = (struct wire_get *)(m->data + sizeof(struct wire_batch));
        unsigned n = m->count;
        int r;

        m->moves = b->into;
        for (m->count = 0; m->count < n; m->count++) {
                size_t i = m->first + m->count;
                struct wire_get *get = &gets[m->count];
                struct place named = { 0 };

                memcpy(&get->key, resolved_key(b->user, i), sizeof(get->key));
                if (b->user->entries) {
                        const struct kvcache_entry *e = resolved_entry(b->user, i);

                        get->range_offset = (uint32_t)e->range_offset;
                        get->range_length = (uint32_t)e->range_length;
                }
                if (!b->into)
                        continue;
                r = encode_name(b, m, NULL, encode_key(b, i), &named);
                if (r < 0)
                        return r;
                get->into_region = named.region;
                get->into_offset = named.offset;
                get->into_length = (uint32_t)named.bytes;
        }
        return 0;
}

/* --- messages of a request --- */

/* Returns whether a message of an unchained op names the key before its first. */
static bool names_parent(const struct encode *b, unsigned op)
{
        return op == WIRE_HINT && wire_hint(b->user) == WIRE_HINT_RETURN &&
               (b->kv->conn->features & WIRE_FEATURE_HINT_PARENT);
}

/* Sets the key before the entry `first`, if it is known. */
static void encode_parent(const struct encode *b, size_t first, struct wire_batch *batch)
{
        const struct kvcache_key *parent =
                first > 0 ? resolved_key(b->user, first - 1) : b->user->parent;

        if (parent)
                memcpy(&batch->parent, parent, sizeof(batch->parent));
}

/* Builds one message for the valid entries [first, first + count), with room for `pieces` pieces; 0
 * if each entry names one place. Returns 0; -ENOMEM, -ENOBUFS, -E2BIG or -EINVAL. */
static int encode_message(struct encode *b, size_t first, uint32_t count, uint32_t pieces)
{
        const struct kvcache_request *u = b->user;
        unsigned op = encode_wire_op(u);
        size_t entry = wire_entry_bytes(op);
        bool chained = wire_op_is_chained(op);
        struct message *m, *before = TAILQ_LAST(&b->messages, message_list);
        struct wire_batch *batch;
        int r = 0;

        m = message_new(op, sizeof(*batch) + count * entry + pieces * sizeof(struct wire_piece));
        if (!m)
                return -ENOMEM;
        /* Hints are sent from the end of a chain to its root. */
        if (op == WIRE_HINT)
                TAILQ_INSERT_HEAD(&b->messages, m, link);
        else
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
        if (chained || names_parent(b, op))
                encode_parent(b, first, batch);
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
                batch->expects = expects(b);
                if (u->flags & KVCACHE_KEEP_LEASE)
                        batch->hdr.flags |= WIRE_F_LEASE;
                r = encode_put(b, m);
                break;
        case WIRE_GET:
                if (b->into)
                        batch->hdr.flags |= WIRE_F_INTO;
                if (b->lease_into)
                        batch->hdr.flags |= WIRE_F_LEASE;
                if ((u->flags & KVCACHE_LEND) && (b->kv->conn->features & WIRE_FEATURE_LEND))
                        batch->hdr.flags |= WIRE_F_LEND;
                r = encode_get(b, m);
                break;
        case WIRE_GIVE_BACK:
                for (uint32_t i = 0; i < count; i++)
                        ((struct wire_lease *)(batch + 1))[i] =
                                (struct wire_lease){ u->loans[first + i].id,
                                                     u->loans[first + i].generation };
                break;
        default:
                if ((u->flags & KVCACHE_REMOTE) && (b->kv->conn->features & WIRE_FEATURE_REMOTE))
                        batch->hdr.flags |= WIRE_F_REMOTE;
                if (op == WIRE_EVICT)
                        batch->tiers = (uint8_t)(u->tiers ? u->tiers : KVCACHE_TIER_ALL);
                if (op == WIRE_HINT) {
                        batch->hint = (uint8_t)wire_hint(u);
                        batch->return_s = u->return_s;
                }
                for (uint32_t i = 0; i < count; i++)
                        memcpy(m->data + sizeof(*batch) + i * entry, resolved_key(u, first + i),
                               entry);
                break;
        }
        return r;
}

/* Returns how many pieces the message needs for a key: 1 if it lies in one place or is copied. */
static uint32_t encode_pieces(const struct encode *b, size_t i)
{
        if (b->user->op != KVCACHE_OP_PUT && !b->into)
                return 1;
        return encode_key(b, i)->shared ? encode_key(b, i)->n_pieces : 1;
}

/* Returns how many consecutive valid entries from `from` on fit into one message. `*ret_pieces`
 * gets their number of pieces, or 0 if each entry names one place. */
static uint32_t encode_run(const struct encode *b, size_t from, uint32_t *ret_pieces)
{
        size_t end = b->first + b->count, entry = wire_entry_bytes(encode_wire_op(b->user));
        uint64_t pieces = 0, bytes;
        bool in_pieces = false;
        uint32_t n = 0;

        while (from + n < end && n < b->per_message &&
               resolved_status(b->keys, b->user, from + n) == KVCACHE_OK) {
                uint32_t more = encode_pieces(b, from + n);
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

/* Reports that a message has no room for the pieces of entry `i`. Returns -E2BIG. */
static int encode_too_many_pieces(const struct encode *b, size_t i)
{
        size_t entry = wire_entry_bytes(encode_wire_op(b->user));
        size_t most = (b->kv->conn->max_message - sizeof(struct wire_batch) - entry) /
                      sizeof(struct wire_piece);

        return handle_fail(b->kv, -E2BIG,
                           "key %zu has %u pieces in staging or registered buffers, but a message "
                           "holds %zu: use fewer, longer pieces",
                           i, encode_key(b, i)->n_pieces, most);
}

static int encode_messages(struct encode *b)
{
        size_t i = b->first, end = b->first + b->count;
        int r;

        while (i < end) {
                int status = resolved_status(b->keys, b->user, i);
                uint32_t n, pieces = 0;

                if (status != KVCACHE_OK) {
                        request_set(b->request, i, 1, status);
                        i++;
                        continue;
                }
                n = encode_run(b, i, &pieces);
                if (n == 0)
                        return encode_too_many_pieces(b, i);
                r = encode_message(b, i, n, pieces);
                if (r < 0)
                        return r;
                b->request->n_messages++;
                i += n;
        }
        return 0;
}

void encode_undo(struct encode *b)
{
        struct message *m;

        while ((m = TAILQ_FIRST(&b->messages))) {
                TAILQ_REMOVE(&b->messages, m, link);
                message_unref_staging(m, &b->kv->conn->staging);
                message_free(m);
        }
}

/* Returns whether the library copies this `get into` itself. If no other request is in flight, a
 * small copy costs less than waiting for a worker's copy and the reply. Large copies are faster
 * with the daemon's several workers. Memory that could be truncated is always left to a worker,
 * for which a missing page is an error rather than a signal to the program. */
static bool library_copies(const struct encode *b)
{
        uint64_t bytes = 0;

        if (!b->into || !b->keys->all_firm || !(b->kv->conn->features & WIRE_FEATURE_LEASE_INTO) ||
            b->kv->keys_inflight > 0)
                return false;
        for (size_t i = b->first; i < b->first + b->count && bytes <= ENCODE_COPIES_MOST; i++)
                bytes += encode_key(b, i)->bytes;
        return bytes <= ENCODE_COPIES_MOST;
}

/* Decides who copies a `get into`. If all targets are in memory shared with this session, the
 * daemon copies, except small chunks that are in memory. Otherwise, such as in the staging area
 * of an ended daemon, the library copies from the pool when the reply arrives. */
static void encode_prepare(struct encode *b)
{
        const struct kvcache_request *u = b->user;
        struct kvcache *kv = b->kv;

        b->per_message = (uint32_t)MIN((size_t)kv->conn->max_keys,
                                       (kv->conn->max_message - sizeof(struct wire_batch)) /
                                               wire_entry_bytes(encode_wire_op(u)));
        b->into = u->op == KVCACHE_OP_GET_INTO && b->keys->all_shared;
        b->lease_into = library_copies(b);
}

int encode_request(struct encode *b, bool more)
{
        const struct kvcache_request *u = b->user;
        struct message *last;
        int r;

        encode_prepare(b);
        r = encode_messages(b);
        if (r < 0)
                return r;
        last = TAILQ_LAST(&b->messages, message_list);
        if (last && wire_op_is_chained(last->op)) {
                b->kv->chain_goes_on = more || (u->flags & KVCACHE_MORE);
                if (b->kv->chain_goes_on)
                        ((struct wire_hdr *)last->data)->flags |= WIRE_F_MORE;
        }
        return 0;
}
