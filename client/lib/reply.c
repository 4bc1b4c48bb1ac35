/* SPDX-License-Identifier: Apache-2.0 */
/* Checks replies and applies them; see reply.h.
 *
 * Runs in the handle's thread. Owns nothing: the user owns the results, and the handle's table the
 * leases.
 *
 * A reply is checked as a whole before any part is applied, so that a reply with a malformed key
 * has no effect. If the deadline of the request has passed, the reply's leases are released, its
 * loans are returned, and the rest is ignored. */
#include "lib/reply.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "checked.h"
#include "cleanup.h"
#include "lib/buffers.h"
#include "lib/holds.h"
#include "lib/lookup.h"
#include "lib/request.h"
#include "lib/transfers.h"

enum { LENT_PAGE = 4096 };

/* --- checking --- */

static const char *reply_check_get(const struct kvcache *kv, const struct message *m,
                                   const struct wire_get_result *r, unsigned i)
{
        const struct wire_get *asked =
                (const struct wire_get *)(m->data + sizeof(struct wire_batch)) + i;
        bool leased = r->flags & WIRE_RESULT_LEASED, into = m->moves;
        bool lent = r->flags & WIRE_RESULT_LENT;

        if (r->flags & ~(WIRE_RESULT_LEASED | WIRE_RESULT_LENT))
                return "unknown result flags";
        if (lent &&
            (r->status != WIRE_OK || !(((const struct wire_hdr *)m->data)->flags & WIRE_F_LEND)))
                return "a loan where none belongs";
        if (lent && (r->offset % LENT_PAGE != 0 || r->offset > INT64_MAX - UINT32_MAX ||
                     r->lease.generation == 0 || r->file == 0))
                return "a loan of an impossible place";
        if (into && (((const struct wire_hdr *)m->data)->flags & WIRE_F_LEASE)
                    ? leased && r->status != WIRE_OK
                    : leased != (r->status == WIRE_OK && !into && !lent))
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

static const char *reply_check_put(const struct kvcache *kv, const struct message *m,
                                   const struct wire_put_result *r)
{
        if (r->flags & ~WIRE_RESULT_LEASED)
                return "unknown result flags";
        if (!(r->flags & WIRE_RESULT_LEASED))
                return NULL;
        if (!(((const struct wire_hdr *)m->data)->flags & WIRE_F_LEASE))
                return "a lease that was not requested";
        if (!range_within(r->offset, r->length, kv->conn->pool_bytes) || r->lease.generation == 0)
                return "a lease outside of the pool";
        return NULL;
}

static bool asks_remote(const struct message *m)
{
        return ((const struct wire_hdr *)m->data)->flags & WIRE_F_REMOTE;
}

/* Returns how many keys directly after the leading run of a MATCH the shared tier has; 0 if the
 * message does not ask for the shared tier. */
static uint64_t reply_shared(const struct message *m, const struct wire_reply *reply)
{
        return asks_remote(m) ? reply->value64 & ~WIRE_MATCH_SEARCHING : 0;
}

static const char *reply_check_result(const struct kvcache *kv, const struct message *m,
                                      const void *payload, unsigned i)
{
        switch (m->op) {
        case WIRE_GET:
                return reply_check_get(kv, m, (const struct wire_get_result *)payload + i, i);
        case WIRE_PUT:
                return reply_check_put(kv, m, (const struct wire_put_result *)payload + i);
        case WIRE_EXISTS:
                return ((const uint8_t *)payload)[i] &
                                       ~(WIRE_TIER_ALL | (asks_remote(m) ? WIRE_TIER_REMOTE : 0))
                               ? "an unknown tier"
                               : NULL;
        default:
                return NULL;
        }
}

/* Returns whether the payload of a successful reply has the required length and, if its length
 * varies, a valid number of results. */
static bool reply_is_as_long(const struct message *m, const struct wire_reply *reply)
{
        size_t payload = reply->hdr.len - sizeof(*reply);

        switch (m->op) {
        case WIRE_LIST:
                return reply->count <= m->count &&
                       payload == reply->count * sizeof(struct wire_list_result);
        case WIRE_NAMESPACES:
                return reply->count <= m->count && payload <= WIRE_MAX_MESSAGE - sizeof(*reply);
        case WIRE_EVENTS:
                return reply->count <= m->count && payload <= WIRE_MAX_MESSAGE - sizeof(*reply);
        case WIRE_VERIFY:
                return reply->count == 1 && payload == sizeof(struct wire_verify_result);
        case WIRE_SWEEP:
                return reply->count == 1 && payload == sizeof(struct wire_sweep_result);
        case WIRE_PING:
                return payload == m->bytes - sizeof(struct wire_hdr);
        default:
                return payload == wire_result_bytes(m->op) * m->count;
        }
}

/* Returns the fault in the reply to `m`, or NULL. */
static const char *reply_check(const struct kvcache *kv, const struct message *m,
                               const struct wire_reply *reply, unsigned n_fds)
{
        unsigned fds = m->op == WIRE_STAGING || m->op == WIRE_REPORT || m->op == WIRE_LOOKUP ||
                       m->op == WIRE_LENT_FILE || m->op == WIRE_BENCH || m->op == WIRE_TRANSFERS ||
                       m->op == WIRE_RECORD || m->op == WIRE_RELOAD;
        unsigned two = m->op == WIRE_POOL_INDEX ? 2 : fds;
        bool tally = ((const struct wire_hdr *)m->data)->flags & WIRE_F_TALLY;
        const char *wrong = NULL;

        if (reply->hdr.op != (m->op | WIRE_REPLY) || reply->hdr.flags != 0)
                return "the reply is to another operation";
        if (reply->status != WIRE_OK)
                return n_fds != 0          ? "a refusal with descriptors"
                       : reply->count != 0 ? "a refusal with results"
                                           : NULL;
        if (n_fds < two || n_fds > two + tally)
                return "wrong number of descriptors";
        if (wire_op_is_batch(m->op) && wire_result_bytes(m->op) > 0 && reply->count != m->count)
                return "wrong number of results";
        if (!reply_is_as_long(m, reply))
                return "wrong length";
        if (m->op == WIRE_MATCH &&
            (reply->value > m->count || reply_shared(m, reply) > m->count - reply->value))
                return "more keys than were asked for";
        if (m->op == WIRE_PING && memcmp(reply + 1, m->data + sizeof(struct wire_hdr),
                                         m->bytes - sizeof(struct wire_hdr)) != 0)
                return "not the bytes that were sent";
        if (m->op == WIRE_REGISTER)
                return buffer_check(kv, reply);
        for (unsigned i = 0; i < m->count && !wrong; i++)
                wrong = reply_check_result(kv, m, reply + 1, i);
        return wrong;
}

/* --- the results of a batch --- */

/* Converts a wire status to enum kvcache_status. A later daemon may define more statuses, which
 * this library reports as KVCACHE_FAILED. */
static int reply_status(unsigned wire_status)
{
        if (wire_status == WIRE_CANCELLED)
                return KVCACHE_CANCELLED;
        return wire_status < WIRE_STATUS_END ? (int)wire_status : KVCACHE_FAILED;
}

/* Releases a lease that the user never sees. If memory is short, the lease ends with the
 * session. */
static void reply_drop_lease(struct kvcache *kv, struct wire_lease lease, uint32_t length)
{
        (void)message_release(kv, lease, length);
}

/* Passes a lease to the user. Returns false if memory is short; the lease is then released. */
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

/* Ends a loan that the user never sees. If memory is short, the loan ends with the session. */
static void reply_drop_loan(struct kvcache *kv, struct wire_lease loan)
{
        struct wire_batch *batch;
        struct message *m =
                message_new(WIRE_GIVE_BACK, sizeof(struct wire_batch) + sizeof(struct wire_lease));

        if (!m)
                return;
        m->count = 1;
        batch = (struct wire_batch *)m->data;
        batch->count = 1;
        memcpy(batch + 1, &loan, sizeof(loan));
        message_queue(kv, m);
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

/* Copies a leased chunk to the user's target, which the daemon did not fill because it does not map
 * that memory or because the request is small. Returns false if the target is too small. */
static bool reply_copy(const struct request *q, size_t key, const uint8_t *data, uint64_t length)
{
        if (length > q->targets.keys[key].bytes)
                return false;
        resolved_copy(&q->targets, key, data, length);
        return true;
}

static void reply_take_get(struct kvcache *kv, struct request *q, const struct message *m,
                           size_t key, const struct wire_get_result *r)
{
        bool leased = r->flags & WIRE_RESULT_LEASED;
        struct kvcache_result result = {
                .status = reply_status(r->status),
                .tiers = r->tier & (WIRE_TIER_ALL | WIRE_TIER_REMOTE),
                .length = r->length,
                .chunk_length = r->chunk_length,
        };
        bool lends = ((const struct wire_hdr *)m->data)->flags & WIRE_F_LEND;

        if (r->status == WIRE_OK && r->tier == WIRE_TIER_MEMORY)
                kv->conn->hits.noted++;
        if (!q) {
                if (leased)
                        reply_drop_lease(kv, r->lease, r->length);
                else if (r->flags & WIRE_RESULT_LENT)
                        reply_drop_loan(kv, r->lease);
                return;
        }
        if (r->flags & WIRE_RESULT_LENT)
                result.loan = (struct kvcache_loan){
                        .session = kv->sessions,
                        .offset = r->offset,
                        .file = r->file,
                        .length = r->length,
                        .id = r->lease.id,
                        .generation = r->lease.generation,
                };
        else if (lends)
                result.not_lent = r->file;
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

static struct kvcache_standing reply_standing(const struct wire_standing *s)
{
        return (struct kvcache_standing){
                .age = s->age,
                .worth = s->worth,
                .reuse_class = s->class,
                .flags = s->flags,
        };
}

static void reply_take_stat(struct request *q, size_t key, const struct wire_stat_result *stat)
{
        results_set(&q->results, key,
                    &(struct kvcache_result){
                            .status = reply_status(stat->status),
                            .tiers = stat->tiers,
                            .length = stat->length,
                            .chunk_length = stat->length,
                            .created_ms = stat->created_ms,
                            .crc32c = stat->crc32c,
                            .leases = stat->leases,
                            .memory = reply_standing(&stat->memory),
                            .disk = reply_standing(&stat->disk),
                    });
}

/* Applies result `i`. If `q` is NULL, because the request has expired, only releases its lease or
 * loan. */
static void reply_take_result(struct kvcache *kv, struct request *q, const struct message *m,
                              const void *payload, unsigned i)
{
        size_t key = m->first + i;
        unsigned tiers;

        if (m->op == WIRE_PUT) {
                reply_take_put(kv, q, key, (const struct wire_put_result *)payload + i);
        } else if (m->op == WIRE_GET) {
                reply_take_get(kv, q, m, key, (const struct wire_get_result *)payload + i);
        } else if (q && m->op == WIRE_EXISTS) {
                tiers = ((const uint8_t *)payload)[i];
                results_set(&q->results, key,
                            &(struct kvcache_result){
                                    .status = tiers ? KVCACHE_OK : KVCACHE_MISS,
                                    .tiers = tiers,
                            });
        } else if (q && m->op == WIRE_STAT) {
                reply_take_stat(q, key, (const struct wire_stat_result *)payload + i);
        } else if (q && m->op != WIRE_MATCH) {
                request_set(q, key, 1, reply_status(((const uint16_t *)payload)[i]));
        }
}

/* Sets the results of a MATCH: the leading run, the keys after it that the shared tier has, and the
 * rest. If the daemon is still searching, the first key of the rest is BUSY. */
static void reply_take_match(struct request *q, const struct message *m,
                             const struct wire_reply *reply)
{
        size_t shared = reply_shared(m, reply), end = m->first + reply->value + shared;
        bool searches = asks_remote(m) && (reply->value64 & WIRE_MATCH_SEARCHING);
        size_t rest = m->first + m->count - end;

        request_set(q, m->first, reply->value, KVCACHE_OK);
        for (size_t i = end - shared; q->results.base && i < end; i++)
                results_set(&q->results, i,
                            &(struct kvcache_result){ .status = KVCACHE_OK,
                                                      .tiers = KVCACHE_TIER_REMOTE });
        request_set(q, end, rest, KVCACHE_MISS);
        if (searches && rest > 0)
                request_set(q, end, 1, KVCACHE_BUSY);
}

/* Counts the copies of leased chunks that the library has made in place of the daemon. */
static void reply_count_copies(struct kvcache *kv, const struct wire_reply *reply, int64_t began_ns)
{
        const struct wire_get_result *results = (const struct wire_get_result *)(reply + 1);
        uint64_t blocks = 0, bytes = 0;

        for (unsigned i = 0; i < reply->count; i++) {
                if (!(results[i].flags & WIRE_RESULT_LEASED))
                        continue;
                blocks++;
                bytes += results[i].length;
        }
        message_count_copies(kv, blocks, bytes, began_ns);
}

static void reply_take_batch(struct kvcache *kv, const struct message *m,
                             const struct wire_reply *reply)
{
        struct request *q = m->request;
        unsigned asked = ((const struct wire_hdr *)m->data)->flags;
        bool copies = m->op == WIRE_GET && (asked & WIRE_F_INTO) && (asked & WIRE_F_LEASE);
        int64_t began_ns = copies ? handle_now_ns() : 0;

        if (reply->status != WIRE_OK && q) {
                q->error = message_errno(reply->status);
                handle_fail_text(kv, q->error, kvcache_status_name(reply_status(reply->status)),
                                 (const char *)(reply + 1), reply->hdr.len - sizeof(*reply));
                request_set(q, m->first, m->count, reply_status(reply->status));
        } else if (reply->status == WIRE_OK) {
                if (q && m->op == WIRE_MATCH)
                        reply_take_match(q, m, reply);
                for (unsigned i = 0; i < m->count; i++)
                        reply_take_result(kv, q, m, reply + 1, i);
                /* The library took these leases for its own copies, so the user cannot release
                 * them. */
                if (copies)
                        (void)message_flush_releases(kv);
                if (copies && q)
                        reply_count_copies(kv, reply, began_ns);
        }
        if (q)
                request_message_done(kv, q);
}

/* --- replies to messages other than batches --- */

static void reply_take_control(struct kvcache *kv, struct message *m,
                               const struct wire_reply *reply, int *fd, unsigned n_fds)
{
        const char *payload = (const char *)(reply + 1);
        size_t bytes = reply->hdr.len - sizeof(*reply);
        struct control *c = m->control;
        int error = 0;

        if (m->op == WIRE_LOOKUP) {
                lookup_take(kv, reply, n_fds > 0 ? fd[0] : -1, n_fds > 1 ? fd[1] : -1);
                return;
        }
        if (m->op == WIRE_POOL_INDEX) {
                holds_map(kv, reply, n_fds > 0 ? fd[0] : -1, n_fds > 1 ? fd[1] : -1);
                return;
        }
        if (m->op == WIRE_TRANSFERS) {
                if (n_fds > 0)
                        transfers_take(&kv->conn->transfers, fd[0]);
                return;
        }
        if (m->op == WIRE_CANCEL) {
                kv->n_cancels--;
                return;
        }
        if (m->op == WIRE_UNREGISTER &&
            (reply->status == WIRE_OK || reply->status == WIRE_INVALID)) {
                buffer_unregistered(kv, m); /* INVALID means that the daemon has no such region, so
                                               it is not registered either way */
        } else if (reply->status != WIRE_OK) {
                error = message_errno(reply->status);
                if (c)
                        handle_fail_text(kv, error, kvcache_status_name(reply->status), payload,
                                         bytes);
        } else if (m->op == WIRE_STAGING && !kv->conn->staging.base) {
                /* Map the area even if the caller has stopped waiting: a session gets only one. */
                error = staging_map(&kv->conn->staging, *fd, reply->value64);
                if (error == -EPERM && c)
                        handle_fail(kv, error,
                                    "the daemon's staging area is not sealed against shrinking");
                else if (error == -EBADMSG && c)
                        handle_fail(kv, error,
                                    "the daemon states a wrong size of its staging area");
                else if (error < 0 && c)
                        handle_fail_errno(kv, error, "the daemon's staging area cannot be used");
        } else if (m->op == WIRE_REGISTER) {
                buffer_take(kv, m, reply);
        }
        if (!c)
                return;
        if (error == 0) {
                c->value = reply->value;
                c->value64 = reply->value64;
                c->count = reply->count;
                if (m->op == WIRE_REPORT || m->op == WIRE_LENT_FILE || m->op == WIRE_BENCH ||
                    m->op == WIRE_RECORD || m->op == WIRE_RELOAD)
                        c->fd = TAKE_FD(*fd);
                if (c->payload) {
                        assert(bytes <= c->payload_bytes);
                        memcpy(c->payload, payload, bytes);
                        c->payload_bytes = bytes;
                }
        }
        c->error = error;
        c->done = true;
}

int reply_take(struct kvcache *kv, size_t bytes, int fds[static WIRE_MAX_FDS], unsigned n_fds)
{
        const struct wire_reply *reply = (const struct wire_reply *)kv->in;
        const char *wrong = NULL;
        struct message *m = NULL;

        if (bytes < sizeof(*reply) || reply->hdr.len != bytes)
                wrong = "wrong length";
        else
                m = kv->inflight[reply->hdr.tag % WIRE_MAX_INFLIGHT];
        if (!wrong)
                wrong = !m || m->tag != reply->hdr.tag ? "the reply is to no request"
                                                       : reply_check(kv, m, reply, n_fds);
        if (wrong)
                return handle_fail(
                        kv, -EBADMSG,
                        "the daemon sent a malformed reply (%s), so the session is closed", wrong);

        kv->inflight[m->tag % WIRE_MAX_INFLIGHT] = NULL;
        kv->n_inflight--;
        kv->n_background -=
                m->op == WIRE_RELEASE || m->op == WIRE_TRANSFERS || m->op == WIRE_POOL_INDEX;
        if (wire_op_is_batch(m->op)) {
                kv->keys_inflight -= m->count;
                message_unref_staging(m, &kv->conn->staging);
                reply_take_batch(kv, m, reply);
        } else {
                reply_take_control(kv, m, reply, fds, n_fds);
        }
        message_free(m);
        return 0;
}
