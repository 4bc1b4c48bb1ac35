/* SPDX-License-Identifier: Apache-2.0 */
/* A user's request: split into messages when it is sent, and one status per key when it completes.
 *
 * Runs in the handle's thread, within the user's calls. Owns the requests; message.c owns their
 * messages.
 *
 * Normal path: all messages are built during the submit call, which copies data outside shared
 * memory to the staging area, so that the user's entries are not needed afterwards. Each reply
 * fills the results of its keys; the last one completes the request, which then waits to be reaped.
 * Malformed keys get their status at once and are in no message.
 *
 * Failures: a deadline ends the wait, but not the messages that are in flight. They lose their
 * request: the leases of their late replies are released, and their places in the staging area
 * stay taken until they are answered. If no message of a request was sent, the request is taken
 * back instead, and its keys are KVCACHE_BUSY. */
#include "lib/request.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "checked.h"

static_assert((int)KVCACHE_NOT_EMPTY == (int)WIRE_NOT_EMPTY &&
                      WIRE_CANCELLED == WIRE_STATUS_END - 1,
              "statuses have the wire's numbers, but for CANCELLED");

/* --- completion, expiry and cancellation --- */

void resolved_fini(struct resolved *r)
{
        free(r->keys);
        *r = (struct resolved){ 0 };
}

void request_free(struct request *q)
{
        if (!q)
                return;
        resolved_fini(&q->targets);
        free(q);
}

void request_complete(struct kvcache *kv, struct request *q)
{
        assert(!q->done);
        q->done = true;
        TAILQ_REMOVE(&kv->requests, q, link);
        if (!q->waited)
                TAILQ_INSERT_TAIL(&kv->ready, q, link);
        if (TAILQ_EMPTY(&kv->requests))
                kv->next_deadline = INT64_MAX;
}

void request_message_done(struct kvcache *kv, struct request *q)
{
        assert(q->n_messages > 0);
        if (--q->n_messages == 0)
                request_complete(kv, q);
}

void request_set(struct request *q, size_t first, size_t count, int status)
{
        if (q->op == KVCACHE_OP_MATCH && status != KVCACHE_OK && count > 0)
                q->run = MIN(q->run, first);
        for (size_t i = first; q->results.base && i < first + count; i++)
                results_set(&q->results, i, &(struct kvcache_result){ .status = status });
}

void request_sent(struct request *q)
{
        q->n_sent++;
}

void request_lost(struct kvcache *kv, struct message *m, int error)
{
        struct request *q = m->request;

        request_set(q, m->first, m->count, KVCACHE_LOST);
        q->error = error;
        request_message_done(kv, q);
}

static void take_back(struct kvcache *kv, struct message *m)
{
        TAILQ_REMOVE(&kv->queue, m, link);
        message_unref_staging(m, &kv->conn->staging);
        message_free(m);
}

/* Completes a request whose deadline has passed. Its messages in flight continue without it, and so
 * do queued ones if another message of the request was sent. */
static void request_expire_one(struct kvcache *kv, struct request *q)
{
        struct message *m, *next;

        q->error = -ETIMEDOUT;
        for (unsigned i = 0; i < WIRE_MAX_INFLIGHT; i++) {
                m = kv->inflight[i];
                if (!m || m->request != q)
                        continue;
                m->request = NULL;
                request_set(q, m->first, m->count, KVCACHE_PENDING);
        }
        for (m = TAILQ_FIRST(&kv->queue); m; m = next) {
                next = TAILQ_NEXT(m, link);
                if (m->request != q)
                        continue;
                m->request = NULL;
                request_set(q, m->first, m->count, q->n_sent > 0 ? KVCACHE_PENDING : KVCACHE_BUSY);
                if (q->n_sent == 0)
                        take_back(kv, m);
        }
        q->n_messages = 0;
        request_complete(kv, q);
}

/* Queued messages can be taken back without a gap in the chain, because the queue is sent in order.
 * If the last message that was sent announces another, the daemon ends the chain at the next
 * message that does not continue it, or after some seconds. */
void request_cancel(struct kvcache *kv, struct request *q)
{
        struct message *m, *next;

        for (unsigned i = 0; i < WIRE_MAX_INFLIGHT; i++)
                if (kv->inflight[i] && kv->inflight[i]->request == q)
                        message_cancel(kv, kv->inflight[i]);
        for (m = TAILQ_FIRST(&kv->queue); m; m = next) {
                next = TAILQ_NEXT(m, link);
                if (m->request != q)
                        continue;
                q->error = -ECANCELED;
                request_set(q, m->first, m->count, KVCACHE_CANCELLED);
                take_back(kv, m);
                request_message_done(kv, q);
        }
}

void request_expire(struct kvcache *kv, int64_t now)
{
        int64_t soonest = INT64_MAX;
        struct request *q, *next;

        if (now < kv->next_deadline)
                return;
        for (q = TAILQ_FIRST(&kv->requests); q; q = next) {
                next = TAILQ_NEXT(q, link);
                if (q->deadline <= now)
                        request_expire_one(kv, q);
                else
                        soonest = MIN(soonest, q->deadline);
        }
        kv->next_deadline = soonest;
}

static bool request_target_is_in(const struct request *q, const struct resolved_key *k,
                                 const void *data, uint64_t bytes)
{
        const struct resolved_piece *p = &q->targets.pieces[k->first_piece];
        uintptr_t from = (uintptr_t)data, to = from + bytes;

        for (uint32_t i = 0; i < k->n_pieces; i++)
                if ((uintptr_t)p[i].data < to && from < (uintptr_t)p[i].data + p[i].bytes)
                        return true;
        return false;
}

bool request_copies_to(const struct kvcache *kv, const void *data, uint64_t bytes)
{
        const struct request *q;

        TAILQ_FOREACH(q, &kv->requests, link)
        for (size_t i = 0; i < q->targets.count; i++)
                if (request_target_is_in(q, &q->targets.keys[i], data, bytes))
                        return true;
        return false;
}
