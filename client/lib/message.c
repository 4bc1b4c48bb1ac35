/* SPDX-License-Identifier: Apache-2.0 */
/* A message on its way: queue, window, socket, and back by its tag.
 *
 * Runs in the handle's thread, inside of the user's calls. Owns the queue and the window
 * (kvcache.inflight).
 *
 * Messages leave in order while fewer than max_inflight are unanswered and the socket takes them;
 * pending releases ride on every batch. A tag is a running number with the window's slot in its low
 * bits, so a reply finds its message without a search. A reply is checked whole before anything of
 * it is used.
 *
 * Failures: when the socket ends, or when the daemon says something that it may not, the session
 * ends: what was in flight is lost, and sent messages that name the client's memory stay as ghosts
 * of the session (rule R17). */
#include "lib/message.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "cleanup.h"
#include "fdpass.h"
#include "lib/retired.h"
#include "lib/reply.h"
#include "lib/request.h"

enum {
        /* Releases that wait for no other message. */
        RELEASES_MANY = 256,
        RELEASE_BYTES_MANY = 16 << 20,
};
static_assert((WIRE_MAX_INFLIGHT & (WIRE_MAX_INFLIGHT - 1)) == 0, "a tag's low bits are a slot");

struct message *message_new(unsigned op, size_t bytes)
{
        struct message *m = NULL;
        struct wire_hdr *hdr;

        assert(bytes >= sizeof(*hdr) && bytes <= WIRE_MAX_MESSAGE);
        m = calloc(1, sizeof(*m) + bytes);
        if (!m)
                return NULL;
        m->op = (uint16_t)op;
        m->bytes = (uint32_t)bytes;
        m->fd = -1;
        hdr = (struct wire_hdr *)m->data;
        hdr->len = (uint32_t)bytes;
        hdr->op = (uint16_t)op;
        return m;
}

void message_free(struct message *m)
{
        free(m);
}

unsigned message_places(const struct message *m)
{
        if (!m->moves)
                return 0;
        return m->pieces_at ? m->n_pieces : m->count;
}

struct place message_place(const struct message *m, unsigned i)
{
        const void *entries = m->data + sizeof(struct wire_batch);

        assert(i < message_places(m));
        if (m->pieces_at) {
                const struct wire_piece *p =
                        (const struct wire_piece *)(m->data + m->pieces_at) + i;

                return (struct place){ p->region, p->offset, p->length };
        }
        if (m->op == WIRE_PUT) {
                const struct wire_put *put = (const struct wire_put *)entries + i;

                return (struct place){ put->region, put->offset, put->length };
        } else {
                const struct wire_get *get = (const struct wire_get *)entries + i;

                return (struct place){ get->into_region, get->into_offset, get->into_length };
        }
}

void message_unref_staging(struct message *m, struct staging *l)
{
        for (unsigned i = 0; i < message_places(m); i++) {
                struct place p = message_place(m, i);

                if (p.region == WIRE_REGION_STAGING)
                        staging_unref(l, p.offset);
        }
        m->moves = false;
}

static void control_done(struct control *c, int error)
{
        c->error = error;
        c->done = true;
}

/* --- releases --- */

int message_release(struct kvcache *kv, struct wire_lease lease, uint32_t length)
{
        if (kv->n_releases == kv->releases_room) {
                size_t room = MAX(2 * kv->releases_room, (size_t)RELEASES_MANY);
                struct wire_lease *releases = realloc(kv->releases, room * sizeof(*releases));

                if (!releases)
                        return -ENOMEM;
                kv->releases = releases;
                kv->releases_room = room;
        }
        kv->releases[kv->n_releases++] = lease;
        kv->release_bytes += length;
        if (kv->n_releases < RELEASES_MANY && kv->release_bytes < RELEASE_BYTES_MANY)
                return 0;
        return message_flush_releases(kv);
}

int message_flush_releases(struct kvcache *kv)
{
        struct message *m;

        if (kv->n_releases == 0 || kv->release_queued || !kv->conn)
                return 0;
        m = message_new(WIRE_RELEASE, sizeof(struct wire_batch));
        if (!m)
                return -ENOMEM;
        kv->release_queued = true;
        message_queue(kv, m);
        return 0;
}

/* Appends what fits of the pending releases to `m`, in kv->out. How many. */
static size_t message_take_releases(struct kvcache *kv, const struct message *m)
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

/* They are on their way. */
static void message_drop_releases(struct kvcache *kv, size_t n)
{
        if (n == 0)
                return;
        kv->n_releases -= n;
        memmove(kv->releases, kv->releases + n, kv->n_releases * sizeof(*kv->releases));
        if (kv->n_releases == 0)
                kv->release_bytes = 0;
}

/* --- out --- */

void message_queue(struct kvcache *kv, struct message *m)
{
        TAILQ_INSERT_TAIL(&kv->queue, m, link);
}

void message_cancel(struct kvcache *kv, struct message *m)
{
        struct message *cancel;

        if (!(kv->conn->features & WIRE_FEATURE_CANCEL) || m->cancelled ||
            (m->op != WIRE_PUT && m->op != WIRE_GET))
                return;
        cancel = message_new(WIRE_CANCEL, sizeof(struct wire_cancel));
        if (!cancel)
                return; /* it ends as it would */
        ((struct wire_cancel *)cancel->data)->tag = m->tag;
        m->cancelled = true;
        kv->n_cancels++;
        TAILQ_INSERT_HEAD(&kv->queue, cancel, link);
}

/* May this one be sent now? Where the daemon can cancel, a CANCEL has to get through whatever
 * waits: it finds a place in the window, and a daemon that reads. */
static bool message_may_go(const struct kvcache *kv, const struct message *m)
{
        const struct conn *c = kv->conn;
        bool spare = (c->features & WIRE_FEATURE_CANCEL) && c->max_inflight > 1;

        if (!spare || m->op == WIRE_CANCEL)
                return kv->n_inflight < c->max_inflight;
        return kv->n_inflight < c->max_inflight - 1 &&
               (kv->keys_inflight == 0 || kv->keys_inflight + m->count < WIRE_MAX_KEYS_INFLIGHT);
}

int message_send(struct kvcache *kv)
{
        struct message *m;
        int r;

        kv->want_out = false;
        while (kv->conn && (m = TAILQ_FIRST(&kv->queue)) && message_may_go(kv, m)) {
                const void *data = m->data;
                size_t n_releases = 0, bytes = m->bytes;
                unsigned slot = 0;

                if (m->op == WIRE_RELEASE && kv->n_releases == 0) {
                        /* All of them rode on messages that were queued before. */
                        TAILQ_REMOVE(&kv->queue, m, link);
                        kv->release_queued = false;
                        message_free(m);
                        continue;
                }
                while (kv->inflight[slot])
                        slot++;
                m->tag = ((kv->sent + 1) * WIRE_MAX_INFLIGHT) | slot;
                ((struct wire_hdr *)m->data)->tag = m->tag;
                if (kv->n_releases > 0 && wire_op_is_batch(m->op)) {
                        n_releases = message_take_releases(kv, m);
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
                        handle_fail(kv, r, "the daemon closed the connection");
                        message_session_lost(kv, -ECONNRESET);
                        return -ECONNRESET;
                }
                kv->sent++;
                kv->inflight[slot] = m;
                kv->n_inflight++;
                kv->keys_inflight += wire_op_is_batch(m->op) ? m->count : 0;
                TAILQ_REMOVE(&kv->queue, m, link);
                if (m->op == WIRE_RELEASE)
                        kv->release_queued = false;
                if (m->request)
                        request_sent(m->request);
                message_drop_releases(kv, n_releases);
        }
        return 0;
}

/* --- in --- */

/* What is wrong with this reply to `m`, or NULL. */
static const char *message_check_reply(const struct kvcache *kv, const struct message *m,
                                       const struct wire_reply *reply, size_t bytes, unsigned n_fds)
{
        size_t payload = bytes - sizeof(*reply), result = wire_result_bytes(m->op);
        const struct wire_hdr *request = (const struct wire_hdr *)m->data;
        unsigned fds = m->op == WIRE_STAGING || m->op == WIRE_REPORT || m->op == WIRE_LOOKUP;
        unsigned fds_max = fds + (request->flags & WIRE_F_TALLY ? 1 : 0);

        if (reply->hdr.op != (m->op | WIRE_REPLY) || reply->hdr.flags != 0)
                return "it answers another operation";
        if (reply->status != WIRE_OK)
                return n_fds != 0          ? "a refusal with descriptors"
                       : reply->count != 0 ? "a refusal with results"
                                           : NULL;
        if (n_fds < fds || n_fds > fds_max)
                return "wrong number of descriptors";

        if (wire_op_is_batch(m->op)) {
                if (result > 0 && reply->count != m->count)
                        return "wrong number of results";
                if (payload != result * m->count)
                        return "wrong length";
                return reply_check(kv, m, reply);
        }
        switch (m->op) {
        case WIRE_LIST:
                if (reply->count > m->count ||
                    payload != reply->count * sizeof(struct wire_list_result))
                        return "wrong length";
                return NULL;
        case WIRE_NAMESPACES:
                return reply->count <= m->count && payload <= WIRE_MAX_MESSAGE - sizeof(*reply)
                               ? NULL
                               : "wrong length";
        case WIRE_VERIFY:
                return reply->count == 1 && payload == sizeof(struct wire_verify_result)
                               ? NULL
                               : "wrong length";
        case WIRE_PING:
                if (payload != m->bytes - sizeof(struct wire_hdr) ||
                    memcmp((const uint8_t *)kv->in + sizeof(*reply),
                           m->data + sizeof(struct wire_hdr), payload) != 0)
                        return "not the bytes that were sent";
                return NULL;
        case WIRE_REGISTER:
                return payload == 0 ? buffer_check(kv, reply) : "wrong length";
        default:
                return payload == 0 ? NULL : "wrong length";
        }
}

static void message_take_control(struct kvcache *kv, struct message *m,
                                 const struct wire_reply *reply, int *fd, unsigned n_fds)
{
        const char *payload = (const char *)kv->in + sizeof(*reply);
        size_t bytes = reply->hdr.len - sizeof(*reply);
        struct control *c = m->control;
        int error = 0;

        if (m->op == WIRE_LOOKUP) {
                lookup_take(kv, reply, n_fds > 0 ? fd[0] : -1, n_fds > 1 ? fd[1] : -1);
                return;
        }
        if (m->op == WIRE_CANCEL) {
                kv->n_cancels--;
                return;
        }
        if (m->op == WIRE_UNREGISTER &&
            (reply->status == WIRE_OK || reply->status == WIRE_INVALID)) {
                buffer_unregistered(kv, m); /* or the daemon has no such region: as good */
        } else if (reply->status != WIRE_OK) {
                error = message_errno(reply->status);
                if (c)
                        handle_fail_text(kv, error, kvcache_status_name(reply->status), payload,
                                         bytes);
        } else if (m->op == WIRE_STAGING && !kv->conn->staging.base) {
                /* Whether or not the caller still waits: a session gets its staging area once. */
                error = staging_map(&kv->conn->staging, *fd, reply->value64);
                if (error < 0 && c)
                        handle_fail(kv, error, "the daemon's staging area cannot be used");
        } else if (m->op == WIRE_REGISTER) {
                buffer_take(kv, m, reply);
        }
        if (!c)
                return;
        if (error == 0) {
                c->value = reply->value;
                c->value64 = reply->value64;
                c->count = reply->count;
                if (m->op == WIRE_REPORT)
                        c->fd = TAKE_FD(*fd);
                if (c->payload) {
                        assert(bytes <= c->payload_bytes);
                        memcpy(c->payload, payload, bytes);
                        c->payload_bytes = bytes;
                }
        }
        control_done(c, error);
}

static int message_take_reply(struct kvcache *kv, size_t bytes, int fds[static WIRE_MAX_FDS],
                              unsigned n_fds)
{
        const struct wire_reply *reply = (const struct wire_reply *)kv->in;
        const char *wrong = NULL;
        struct message *m = NULL;

        if (bytes < sizeof(*reply) || reply->hdr.len != bytes)
                wrong = "wrong length";
        else
                m = kv->inflight[reply->hdr.tag % WIRE_MAX_INFLIGHT];
        if (!wrong)
                wrong = !m || m->tag != reply->hdr.tag
                                ? "it answers no request"
                                : message_check_reply(kv, m, reply, bytes, n_fds);
        if (wrong)
                return handle_fail(kv, -EBADMSG,
                                   "the daemon sent a reply that is malformed (%s): session closed",
                                   wrong);

        kv->inflight[m->tag % WIRE_MAX_INFLIGHT] = NULL;
        kv->n_inflight--;
        if (wire_op_is_batch(m->op)) {
                kv->keys_inflight -= m->count;
                message_unref_staging(m, &kv->conn->staging);
                reply_take(kv, m, reply);
        } else {
                message_take_control(kv, m, reply, fds, n_fds);
        }
        message_free(m);
        return 0;
}

/* What a receive has brought, `n` bytes or an error. */
static int message_take(struct kvcache *kv, ssize_t n, int fds[static WIRE_MAX_FDS], unsigned n_fds)
{
        int r;

        if (n > 0) {
                r = message_take_reply(kv, (size_t)n, fds, n_fds);
                for (unsigned i = 0; i < n_fds; i++)
                        closep(&fds[i]);
                return r;
        }
        if (n == 0)
                return handle_fail(kv, -ECONNRESET, "the daemon closed the connection");
        if (n == -EBADMSG || n == -EMSGSIZE)
                return handle_fail(kv, -EBADMSG,
                                   "the daemon sent more than a message may hold: session closed");
        return handle_fail(kv, -ECONNRESET, "the connection to the daemon broke");
}

int message_flow(struct kvcache *kv)
{
        int r;

        r = message_send(kv);
        while (r == 0 && kv->conn && kv->n_inflight > 0) {
                int fds[WIRE_MAX_FDS];
                unsigned n_fds = 0;
                ssize_t n = fdpass_recv(kv->conn->sock, kv->in, sizeof(kv->in), fds, &n_fds);

                if (n == -EAGAIN)
                        break;
                r = message_take(kv, n, fds, n_fds);
                if (r < 0) {
                        message_session_lost(kv, r);
                        break;
                }
                r = message_send(kv);
        }
        return r;
}

void message_check_idle(struct kvcache *kv)
{
        int fds[WIRE_MAX_FDS];
        unsigned n_fds = 0;
        ssize_t n;

        if (!kv->conn || kv->n_inflight > 1)
                return;
        if (kv->n_inflight > 0) {
                /* No call waits for a LOOKUP or a CANCEL. */
                if (kv->conn->lookup.asking || kv->n_cancels > 0)
                        (void)message_flow(kv);
                return;
        }
        /* No reply is due: what is readable can only be the end. */
        n = fdpass_recv(kv->conn->sock, kv->in, sizeof(kv->in), fds, &n_fds);
        for (unsigned i = 0; i < n_fds; i++)
                closep(&fds[i]);
        if (n != -EAGAIN && n != -EINTR)
                message_session_lost(kv, n > 0 ? -EBADMSG : -ECONNRESET);
}

bool message_has_ended(struct kvcache *kv)
{
        if (kv->n_inflight > 0)
                (void)message_flow(kv);
        else
                message_check_idle(kv);
        return !kv->conn;
}

/* The common wait: nothing to send, something to come, and the receive's own timeout is short
 * enough. One system call instead of a poll() and a receive. */
static int message_wait_reply(struct kvcache *kv)
{
        int fds[WIRE_MAX_FDS], r;
        unsigned n_fds = 0;
        ssize_t n = fdpass_wait(kv->conn->sock, kv->in, sizeof(kv->in), fds, &n_fds);

        if (n == -EAGAIN || n == -EINTR)
                return 0;
        r = message_take(kv, n, fds, n_fds);
        if (r < 0)
                message_session_lost(kv, r);
        else
                r = message_flow(kv);
        return r;
}

int message_wait(struct kvcache *kv, int64_t deadline)
{
        int r = 0;

        if (kv->conn) {
                int64_t until = MIN(deadline, kv->next_deadline);
                struct pollfd p = { .fd = kv->conn->sock,
                                    .events = POLLIN | (kv->want_out ? POLLOUT : 0) };

                if (kv->n_inflight > 0 && !kv->want_out &&
                    until - handle_now_ns() > CONN_WAIT_MS * INT64_C(1000000)) {
                        r = message_wait_reply(kv);
                } else if (poll(&p, 1, handle_poll_ms(until)) > 0) {
                        if (p.revents & ~POLLOUT)
                                message_check_idle(kv);
                        r = message_flow(kv);
                }
        }
        request_expire(kv, handle_now_ns());
        return r;
}

int message_call(struct kvcache *kv, struct message *m, struct control *c, int64_t deadline)
{
        c->done = false;
        c->fd = -1;
        m->control = c;
        message_queue(kv, m);
        (void)message_send(kv);
        while (!c->done && handle_now_ns() < deadline)
                (void)message_wait(kv, deadline);
        if (c->done)
                return c->error;

        /* Its reply will be ignored. If it was not even sent, it need not be. */
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

/* --- the end --- */

static void message_lost(struct kvcache *kv, struct message *m, struct conn *c, bool sent,
                         int error)
{
        if (m->control)
                control_done(m->control, error);
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

void message_session_lost(struct kvcache *kv, int error)
{
        struct conn *c = kv->conn;
        struct message *m;

        assert(c);
        for (unsigned i = 0; i < WIRE_MAX_INFLIGHT; i++) {
                m = kv->inflight[i];
                kv->inflight[i] = NULL;
                if (m)
                        message_lost(kv, m, c, true, error);
        }
        while ((m = TAILQ_FIRST(&kv->queue))) {
                TAILQ_REMOVE(&kv->queue, m, link);
                message_lost(kv, m, c, false, error);
        }
        kv->n_inflight = kv->n_cancels = 0;
        kv->keys_inflight = 0;
        kv->want_out = false;
        kv->n_releases = 0; /* they end with the session */
        kv->release_bytes = 0;
        kv->release_queued = false;
        region_end_session(kv);
}

int message_errno(unsigned wire_status)
{
        switch (wire_status) {
        case WIRE_OK:
                return 0;
        case WIRE_MISS:
        case WIRE_NO_NAMESPACE:
                return -ENOENT;
        case WIRE_EXISTS_ALREADY:
        case WIRE_MISMATCH:
                return -EEXIST;
        case WIRE_BUSY:
                return -EBUSY;
        case WIRE_TOO_LARGE:
                return -E2BIG;
        case WIRE_INVALID:
                return -EINVAL;
        case WIRE_STALE:
                return -ESTALE;
        case WIRE_DENIED:
                return -EACCES;
        case WIRE_QUOTA:
                return -EDQUOT;
        case WIRE_VERSION:
                return -EPROTONOSUPPORT;
        case WIRE_SHUTDOWN:
                return -ESHUTDOWN;
        case WIRE_NO_SPACE:
                return -ENOSPC;
        case WIRE_NOT_EMPTY:
                return -ENOTEMPTY;
        case WIRE_CANCELLED:
                return -ECANCELED;
        default:
                return -EIO;
        }
}
