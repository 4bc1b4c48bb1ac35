/* SPDX-License-Identifier: Apache-2.0 */
/* What a reply to a batch says, believed only after it was checked; see reply.h.
 *
 * Runs in the handle's thread. Owns nothing: results are the user's, leases go to the handle's
 * table.
 *
 * A reply is checked whole, so that a malformed last key leaves the first without effect. If the
 * deadline of the request has passed, the reply's leases are released and the rest is ignored. */
#include "lib/reply.h"

#include <string.h>

#include "checked.h"
#include "lib/message.h"
#include "lib/request.h"

static const void *reply_payload(const struct wire_reply *reply)
{
        return reply + 1;
}

static const char *reply_check_get(const struct kvcache *kv, const struct message *m,
                                   const struct wire_get_result *r, unsigned i)
{
        const struct wire_get *asked =
                (const struct wire_get *)(m->data + sizeof(struct wire_batch)) + i;
        bool leased = r->flags & WIRE_RESULT_LEASED, into = m->moves;

        if (r->flags & ~WIRE_RESULT_LEASED)
                return "unknown result flags";
        if (leased != (r->status == WIRE_OK && !into))
                return "a lease where none belongs, or none where one does";
        if (r->status != WIRE_OK)
                return NULL;
        if (leased &&
            (!range_within(r->offset, r->length, kv->conn->pool_bytes) || r->lease.generation == 0))
                return "a lease outside of the pool";
        if (r->length == 0 || !range_within(asked->range_offset, r->length, r->chunk_length))
                return "a range outside of the chunk";
        if (asked->range_length != 0 ? r->length > asked->range_length
                                     : r->length != r->chunk_length - asked->range_offset)
                return "not the range that was asked for";
        if (into && r->length > asked->into_length)
                return "more bytes than there was room for";
        return NULL;
}

static const char *reply_check_put(const struct kvcache *kv, const struct wire_put_result *r)
{
        if (r->flags & ~WIRE_RESULT_LEASED)
                return "unknown result flags";
        if (!(r->flags & WIRE_RESULT_LEASED))
                return NULL;
        if (!range_within(r->offset, r->length, kv->conn->pool_bytes) || r->lease.generation == 0)
                return "a lease outside of the pool";
        return NULL;
}

const char *reply_check(const struct kvcache *kv, const struct message *m,
                        const struct wire_reply *reply)
{
        const char *wrong = NULL;

        switch (m->op) {
        case WIRE_GET:
                for (unsigned i = 0; i < m->count && !wrong; i++)
                        wrong = reply_check_get(
                                kv, m, (const struct wire_get_result *)reply_payload(reply) + i, i);
                break;
        case WIRE_PUT:
                for (unsigned i = 0; i < m->count && !wrong; i++)
                        wrong = reply_check_put(
                                kv, (const struct wire_put_result *)reply_payload(reply) + i);
                if (!wrong && !(((const struct wire_hdr *)m->data)->flags & WIRE_F_LEASE))
                        for (unsigned i = 0; i < m->count && !wrong; i++)
                                if (((const struct wire_put_result *)reply_payload(reply))[i].flags)
                                        wrong = "a lease that was not requested";
                break;
        case WIRE_EXISTS:
                for (unsigned i = 0; i < m->count && !wrong; i++)
                        if (((const uint8_t *)reply_payload(reply))[i] & ~WIRE_TIER_ALL)
                                wrong = "an unknown tier";
                break;
        case WIRE_MATCH:
                if (reply->value > m->count)
                        wrong = "more keys than were asked for";
                break;
        default:
                break;
        }
        return wrong;
}

/* A later daemon may know more statuses; to this library they say that it did not work. */
static int reply_status(unsigned wire_status)
{
        if (wire_status == WIRE_CANCELLED)
                return KVCACHE_CANCELLED;
        return wire_status < WIRE_STATUS_END ? (int)wire_status : KVCACHE_FAILED;
}

/* Ends a lease that the user never sees. Without memory to note it, it ends with the session. */
static void reply_drop_lease(struct kvcache *kv, struct wire_lease lease, uint32_t length)
{
        (void)message_release(kv, lease, length);
}

/* Hands a lease to the user. False: no memory to note it, it is dropped. */
static bool reply_lease(struct kvcache *kv, struct wire_lease lease, uint64_t offset,
                        uint32_t length, struct kvcache_result *ret)
{
        if (lease_acquire(&kv->leases, kv->conn, lease, length, &ret->lease) < 0) {
                reply_drop_lease(kv, lease, length);
                return false;
        }
        kv->conn->leases++;
        ret->data = kv->conn->pool + offset;
        return true;
}

static void reply_take_put(struct kvcache *kv, struct request *q, size_t key,
                           const struct wire_put_result *r)
{
        struct kvcache_result result = { .status = reply_status(r->status), .length = r->length };

        if (!q) {
                if (r->flags & WIRE_RESULT_LEASED)
                        reply_drop_lease(kv, r->lease, r->length);
                return;
        }
        if (r->flags & WIRE_RESULT_LEASED)
                (void)reply_lease(kv, r->lease, r->offset, r->length, &result);
        results_set(&q->results, key, &result);
}

/* Copies to where the user wants it. False: there is less room than that. */
static bool reply_copy(const struct request *q, size_t key, const uint8_t *data, uint64_t length)
{
        const struct resolved_key *k = &q->targets.keys[key];
        const struct resolved_piece *p = &q->targets.pieces[k->first_piece];

        if (length > k->bytes)
                return false;
        for (; length > 0; p++) {
                uint64_t n = MIN(p->bytes, length);

                memcpy(p->data, data, n);
                data += n;
                length -= n;
        }
        return true;
}

static void reply_take_get(struct kvcache *kv, struct request *q, size_t key,
                           const struct wire_get_result *r)
{
        bool leased = r->flags & WIRE_RESULT_LEASED;
        struct kvcache_result result = {
                .status = reply_status(r->status),
                .tiers = r->tier & WIRE_TIER_ALL,
                .length = r->length,
                .chunk_length = r->chunk_length,
        };

        if (!q) {
                if (leased)
                        reply_drop_lease(kv, r->lease, r->length);
                return;
        }
        if (leased && !q->targets.keys) {
                if (!reply_lease(kv, r->lease, r->offset, r->length, &result))
                        result.status = KVCACHE_BUSY;
        } else if (leased) {
                if (!reply_copy(q, key, kv->conn->pool + r->offset, r->length))
                        result.status = KVCACHE_TOO_LARGE;
                reply_drop_lease(kv, r->lease, r->length);
        }
        results_set(&q->results, key, &result);
}

void reply_take(struct kvcache *kv, struct message *m, const struct wire_reply *reply)
{
        const void *payload = reply_payload(reply);
        struct request *q = m->request;

        if (reply->status != WIRE_OK) {
                if (!q)
                        return;
                q->error = message_errno(reply->status);
                handle_fail_text(kv, q->error, kvcache_status_name(reply_status(reply->status)),
                                 payload, reply->hdr.len - sizeof(*reply));
                request_set(q, m->first, m->count, reply_status(reply->status));
                request_message_done(kv, q);
                return;
        }
        if (!q && m->op != WIRE_GET && m->op != WIRE_PUT)
                return;

        if (m->op == WIRE_MATCH) {
                request_set(q, m->first, reply->value, KVCACHE_OK);
                request_set(q, m->first + reply->value, m->count - reply->value, KVCACHE_MISS);
        }
        for (unsigned i = 0; i < m->count; i++) {
                size_t key = m->first + i;
                const struct wire_stat_result *stat;
                struct kvcache_result result;

                switch (m->op) {
                case WIRE_PUT:
                        reply_take_put(kv, q, key, (const struct wire_put_result *)payload + i);
                        break;
                case WIRE_GET:
                        reply_take_get(kv, q, key, (const struct wire_get_result *)payload + i);
                        break;
                case WIRE_EXISTS:
                        result = (struct kvcache_result){
                                .tiers = ((const uint8_t *)payload)[i],
                                .status = ((const uint8_t *)payload)[i] ? KVCACHE_OK : KVCACHE_MISS,
                        };
                        results_set(&q->results, key, &result);
                        break;
                case WIRE_TOUCH:
                case WIRE_EVICT:
                case WIRE_PREFETCH:
                        request_set(q, key, 1, reply_status(((const uint16_t *)payload)[i]));
                        break;
                case WIRE_STAT:
                        stat = (const struct wire_stat_result *)payload + i;
                        result = (struct kvcache_result){
                                .status = reply_status(stat->status),
                                .tiers = stat->tiers,
                                .length = stat->length,
                                .chunk_length = stat->length,
                                .created_ms = stat->created_ms,
                                .crc32c = stat->crc32c,
                                .leases = stat->leases,
                        };
                        results_set(&q->results, key, &result);
                        break;
                default:
                        break;
                }
        }
        if (q)
                request_message_done(kv, q);
}
