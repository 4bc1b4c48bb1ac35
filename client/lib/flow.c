/* SPDX-License-Identifier: Apache-2.0 */
/* Moves messages through the queue, the window and the socket, and finds them again by their tags.
 *
 * Runs in the handle's thread, within the user's calls. Owns the queue and the window
 * (kvcache.inflight).
 *
 * Messages are sent in order while fewer than max_inflight are unanswered and the socket accepts
 * them; pending releases are appended to every batch. A RELEASE message is not answered if the
 * daemon supports that: it then needs no place in the window and no wakeup here. A tag is a running
 * number with the window's slot in its low bits, so that a reply finds its message without a
 * search. A reply is checked as a whole before any part of it is used.
 *
 * Failures: the session ends when the socket fails or the daemon violates the protocol. Requests in
 * flight are then lost, and sent messages that name the client's memory stay with the session as
 * ghosts (R17 in SECURITY.md). */
#include "lib/flow.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "cleanup.h"
#include "fdpass.h"
#include "lib/reply.h"
#include "lib/request.h"
#include "lib/retired.h"

static_assert((WIRE_MAX_INFLIGHT & (WIRE_MAX_INFLIGHT - 1)) == 0, "a tag's low bits are a slot");

/* --- end of a session --- */

static void lost(struct kvcache *kv, struct message *m, struct conn *c, bool sent, int error)
{
        if (m->control) {
                m->control->error = error;
                m->control->done = true;
        }
        if (m->request)
                request_lost(kv, m, error);
        m->control = NULL;
        m->request = NULL;
        if (sent && m->moves) {
                TAILQ_INSERT_TAIL(&c->ghosts, m, link);
                return;
        }
        message_unref_staging(m, &c->staging);
        message_free(m);
}

void flow_session_lost(struct kvcache *kv, int error)
{
        struct conn *c = kv->conn;
        struct message *m;

        assert(c);
        for (unsigned i = 0; i < WIRE_MAX_INFLIGHT; i++) {
                m = kv->inflight[i];
                kv->inflight[i] = NULL;
                if (m)
                        lost(kv, m, c, true, error);
        }
        while ((m = TAILQ_FIRST(&kv->queue))) {
                TAILQ_REMOVE(&kv->queue, m, link);
                lost(kv, m, c, false, error);
        }
        kv->n_inflight = kv->n_cancels = kv->n_background = 0;
        kv->chain_goes_on = false;
        kv->keys_inflight = 0;
        kv->want_out = false;
        kv->n_releases = 0; /* the daemon releases them with the session */
        kv->release_bytes = 0;
        kv->release_queued = false;
        retired_add(kv);
}

/* --- sending --- */

/* Copies `m` to kv->out and appends as many pending releases as fit. Returns their number. */
static size_t take_releases(struct kvcache *kv, const struct message *m)
{
        size_t room = (kv->conn->max_message - MIN(m->bytes, kv->conn->max_message)) /
                      sizeof(struct wire_lease);
        struct wire_batch *b = (struct wire_batch *)kv->out;
        size_t n = MIN(kv->n_releases, room);

        n = MIN(n, (size_t)WIRE_MAX_RELEASES);
        memcpy(kv->out, m->data, m->bytes);
        memcpy((uint8_t *)kv->out + m->bytes, kv->releases, n * sizeof(struct wire_lease));
        b->hdr.len = (uint32_t)(m->bytes + n * sizeof(struct wire_lease));
        b->releases = (uint16_t)n;
        return n;
}

/* Removes the first `n` pending releases, which have been sent. */
static void drop_releases(struct kvcache *kv, size_t n)
{
        if (n == 0)
                return;
        kv->n_releases -= n;
        memmove(kv->releases, kv->releases + n, kv->n_releases * sizeof(*kv->releases));
        if (kv->n_releases == 0)
                kv->release_bytes = 0;
}

/* Returns whether `m` may be sent now. If the daemon supports CANCEL, one slot of the window stays
 * free and fewer than WIRE_MAX_KEYS_INFLIGHT keys are in flight, so that a CANCEL can always be
 * sent and read. */
static bool may_go(const struct kvcache *kv, const struct message *m)
{
        const struct conn *c = kv->conn;
        bool spare = (c->features & WIRE_FEATURE_CANCEL) && c->max_inflight > 1;

        if (m->is_unanswered)
                return true;
        if (!spare || m->op == WIRE_CANCEL)
                return kv->n_inflight < c->max_inflight;
        return kv->n_inflight < c->max_inflight - 1 &&
               (kv->keys_inflight == 0 || kv->keys_inflight + m->count < WIRE_MAX_KEYS_INFLIGHT);
}

/* Records that `m`, the first message of the queue, was sent. */
static void sent(struct kvcache *kv, struct message *m, unsigned slot)
{
        kv->sent++;
        TAILQ_REMOVE(&kv->queue, m, link);
        if (m->op == WIRE_RELEASE)
                kv->release_queued = false;
        if (m->is_unanswered) {
                message_free(m);
                return;
        }
        kv->inflight[slot] = m;
        kv->n_inflight++;
        kv->keys_inflight += wire_op_is_batch(m->op) ? m->count : 0;
        kv->n_background +=
                m->op == WIRE_RELEASE || m->op == WIRE_TRANSFERS || m->op == WIRE_POOL_INDEX;
        if (m->request)
                request_sent(m->request);
}

int flow_send(struct kvcache *kv)
{
        struct message *m;
        int r;

        kv->want_out = false;
        while (kv->conn && (m = TAILQ_FIRST(&kv->queue)) && may_go(kv, m)) {
                const void *data = m->data;
                size_t n_releases = 0, bytes = m->bytes;
                unsigned slot = 0;

                if (m->op == WIRE_RELEASE && kv->n_releases == 0) {
                        /* Earlier messages have carried all releases that this RELEASE was
                         * queued for. */
                        TAILQ_REMOVE(&kv->queue, m, link);
                        kv->release_queued = false;
                        message_free(m);
                        continue;
                }
                while (!m->is_unanswered && kv->inflight[slot])
                        slot++;
                m->tag = ((kv->sent + 1) * WIRE_MAX_INFLIGHT) | slot;
                ((struct wire_hdr *)m->data)->tag = m->tag;
                if (kv->n_releases > 0 && wire_op_is_batch(m->op)) {
                        n_releases = take_releases(kv, m);
                        data = kv->out;
                        bytes += n_releases * sizeof(struct wire_lease);
                }
                r = fdpass_send(kv->conn->sock, data, bytes, &m->fd, m->fd >= 0 ? 1 : 0);
                if (r == -EAGAIN) {
                        kv->want_out = true;
                        return 0;
                }
                if (r == -EINTR)
                        continue;
                if (r < 0) {
                        handle_fail(kv, r, "the connection to the daemon was lost");
                        flow_session_lost(kv, -ECONNRESET);
                        return -ECONNRESET;
                }
                sent(kv, m, slot);
                drop_releases(kv, n_releases);
        }
        return 0;
}

/* --- receiving --- */

/* Handles the result of a receive: `n` bytes, 0 at the end of the connection, or -errno. Closes all
 * of `fds` that the reply's receiver has not taken. Returns 0, or -errno if the session must end.
 */
static int take(struct kvcache *kv, ssize_t n, int fds[static WIRE_MAX_FDS], unsigned n_fds)
{
        int r;

        if (n > 0) {
                r = reply_take(kv, (size_t)n, fds, n_fds);
                for (unsigned i = 0; i < n_fds; i++)
                        closep(&fds[i]);
                return r;
        }
        if (n == 0)
                return handle_fail(kv, -ECONNRESET, "the daemon closed the connection");
        if (n == -EBADMSG || n == -EMSGSIZE)
                return handle_fail(
                        kv, -EBADMSG,
                        "the daemon sent more than a message may hold, so the session is closed");
        return handle_fail(kv, -ECONNRESET, "the connection to the daemon was lost");
}

int flow(struct kvcache *kv)
{
        int r;

        r = flow_send(kv);
        while (r == 0 && kv->conn && kv->n_inflight > 0) {
                int fds[WIRE_MAX_FDS];
                unsigned n_fds = 0;
                ssize_t n = fdpass_recv(kv->conn->sock, kv->in, sizeof(kv->in), fds, &n_fds);

                if (n == -EAGAIN)
                        break;
                r = take(kv, n, fds, n_fds);
                if (r < 0) {
                        flow_session_lost(kv, r);
                        break;
                }
                r = flow_send(kv);
        }
        return r;
}

void flow_check_idle(struct kvcache *kv)
{
        int fds[WIRE_MAX_FDS];
        unsigned n_fds = 0;
        ssize_t n;

        if (!kv->conn || kv->n_inflight > 1 + kv->n_background)
                return;
        if (kv->n_inflight > 0) {
                /* No call waits for the reply to a LOOKUP, a CANCEL or a background message. */
                if (kv->conn->lookup.asking || kv->n_cancels > 0 || kv->n_background > 0)
                        (void)flow(kv);
                if (!kv->conn || kv->n_inflight > 0)
                        return;
        }
        /* No reply is due, so that only the end of the connection can make the socket readable. */
        n = fdpass_recv(kv->conn->sock, kv->in, sizeof(kv->in), fds, &n_fds);
        for (unsigned i = 0; i < n_fds; i++)
                closep(&fds[i]);
        if (n != -EAGAIN && n != -EINTR)
                flow_session_lost(kv, n > 0 ? -EBADMSG : -ECONNRESET);
}

bool flow_has_ended(struct kvcache *kv)
{
        if (kv->n_inflight > 0)
                (void)flow(kv);
        else
                flow_check_idle(kv);
        return !kv->conn;
}

/* --- waiting --- */

/* Receives a reply, polling first within the spin budget. Returns -EAGAIN after the receive's own
 * timeout. */
static ssize_t await_reply(struct kvcache *kv, int fds[static WIRE_MAX_FDS], unsigned *n_fds)
{
        int64_t budget = (int64_t)spin_budget(&kv->spin);
        int64_t began = kv->spin.limit_ns ? handle_now_ns() : 0, now = began;
        ssize_t n = -EAGAIN;

        while (now - began < budget && n == -EAGAIN) {
                n = fdpass_recv(kv->conn->sock, kv->in, sizeof(kv->in), fds, n_fds);
                now = handle_now_ns();
        }
        if (n == -EAGAIN) {
                n = fdpass_wait(kv->conn->sock, kv->in, sizeof(kv->in), fds, n_fds);
                now = kv->spin.limit_ns ? handle_now_ns() : 0;
        }
        spin_learn(&kv->spin, (uint64_t)(now - began));
        return n;
}

/* Waits for a reply, at most CONN_WAIT_MS. One receive, with a timeout of its own, replaces a
 * poll() and a receive. Called if nothing waits to be sent and the deadline is further away. */
static void wait_reply(struct kvcache *kv)
{
        int fds[WIRE_MAX_FDS], r;
        unsigned n_fds = 0;
        ssize_t n = await_reply(kv, fds, &n_fds);

        if (n == -EAGAIN || n == -EINTR)
                return;
        r = take(kv, n, fds, n_fds);
        if (r < 0)
                flow_session_lost(kv, r);
        else
                (void)flow(kv);
}

/* Waits until the socket is ready or `until` (ns) passes. */
static void wait_once(struct kvcache *kv, int64_t until)
{
        struct pollfd p = { .fd = kv->conn ? kv->conn->sock : -1,
                            .events = POLLIN | (kv->want_out ? POLLOUT : 0) };

        if (kv->conn && kv->n_inflight > 0 && !kv->want_out &&
            until - handle_now_ns() > CONN_WAIT_MS * INT64_C(1000000)) {
                wait_reply(kv);
        } else if (poll(&p, 1, handle_poll_ms(until)) > 0) {
                if (p.revents & ~POLLOUT)
                        flow_check_idle(kv);
                (void)flow(kv);
        }
}

bool flow_until(struct kvcache *kv, bool (*done)(struct kvcache *kv, const void *what),
                const void *what, int64_t deadline)
{
        while (!done(kv, what)) {
                if (handle_now_ns() >= deadline)
                        return false;
                wait_once(kv, MIN(deadline, kv->next_deadline));
                request_expire(kv, handle_now_ns());
        }
        return true;
}

static bool call_is_done(struct kvcache *kv, const void *control)
{
        (void)kv;
        return ((const struct control *)control)->done;
}

int flow_call(struct kvcache *kv, struct message *m, struct control *c, int64_t deadline)
{
        if (!m)
                return handle_no_memory(kv);
        c->done = false;
        c->fd = -1;
        m->control = c;
        message_queue(kv, m);
        (void)flow_send(kv);
        if (flow_until(kv, call_is_done, c, deadline))
                return c->error;

        /* Ignore the reply if it arrives later, or take the message back if it was not sent. */
        TAILQ_FOREACH(m, &kv->queue, link)
        if (m->control == c)
                break;
        if (m) {
                TAILQ_REMOVE(&kv->queue, m, link);
                message_free(m);
        }
        for (unsigned i = 0; i < WIRE_MAX_INFLIGHT; i++)
                if (kv->inflight[i] && kv->inflight[i]->control == c)
                        kv->inflight[i]->control = NULL;
        return handle_fail(kv, -ETIMEDOUT, "the daemon did not answer in time");
}
