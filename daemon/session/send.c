/* SPDX-License-Identifier: Apache-2.0 */
/* Sends the replies of a session, or keeps them until the socket takes them.
 *
 * The kernel charges descriptors in replies to the daemon's user until the peer reads them,
 * whatever happens to the session. The daemon detects that from the socket's unread bytes, and
 * charges the peer's user until then. A session with unread descriptors is kept, closed for both
 * sides, until they are read or the peer's end is closed. */
#include "session/internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "fdpass.h"

enum { UNREAD_FDS_MAX = 32 }; /* most unread replies with descriptors */

struct outgoing {
        struct list_node node;
        int fds[WIRE_MAX_FDS];
        unsigned n_fds;
        size_t bytes;
        uint8_t msg[];
};

static uint64_t outgoing_bytes(const struct outgoing *o)
{
        return sizeof(*o) + o->bytes;
}

void session_settle_fds(struct session *s)
{
        int unread;

        if (s->unread_fds == 0 || !list_empty(&s->out) || ioctl(s->fd, SIOCOUTQ, &unread) < 0 ||
            unread > 0)
                return;
        quota_uncharge(&s->client.holds, QUOTA_UNREAD_FDS, s->unread_fds);
        s->unread_fds = s->fd_replies = 0;
        list_unlink(&s->unread);
}

static void outgoing_free(struct session *s, struct outgoing *o)
{
        for (unsigned i = 0; i < o->n_fds; i++)
                close(o->fds[i]);
        s->sessions->stats.unsent_fds -= o->n_fds;
        quota_uncharge(&s->client.holds, QUOTA_REQUEST_BYTES, outgoing_bytes(o));
        list_unlink(&o->node);
        free(o);
}

void session_drop_replies(struct session *s)
{
        while (!list_empty(&s->out))
                outgoing_free(s, container_of(s->out.next, struct outgoing, node));
}

/* Handles the result of sending a reply, other than -EAGAIN and -ETOOMANYREFS. */
static void sent(struct session *s, int r)
{
        char text[128];

        /* on_closed() in sessions.c ends the session of a peer that has closed its end. */
        if (r == 0 || r == -EPIPE || r == -ECONNRESET)
                return;
        snprintf(text, sizeof(text), "a reply could not be sent: %s: session ended", strerror(-r));
        session_end(s, &s->sessions->stats.ended_bad_frame, text);
}

void session_hold_reply(struct session *s)
{
        s->sessions->stats.replies_held += !s->held;
        s->held = true;
        session_wait_for_fds(s);
}

/* Arranges for an unsent reply to be sent again: when the socket takes more, or after a pause if
 * the kernel permits the daemon's user no more descriptors in flight. */
static void wait_to_send(struct session *s, int r)
{
        if (r == -ETOOMANYREFS) {
                session_hold_reply(s);
        } else {
                event_add(s->writable, NULL);
        }
}

static void flush_outgoing(struct session *s)
{
        while (!list_empty(&s->out)) {
                struct outgoing *o = container_of(s->out.next, struct outgoing, node);
                int r = fdpass_send(s->fd, o->msg, o->bytes, o->fds, o->n_fds);

                if (r == -EAGAIN || r == -ETOOMANYREFS) {
                        wait_to_send(s, r);
                        return;
                }
                s->held = false;
                outgoing_free(s, o);
                sent(s, r);
        }
        session_activate(s);
}

void session_on_writable(evutil_socket_t fd, short what, void *userdata)
{
        flush_outgoing(userdata);
}

/* Ends the charge for reserved descriptors that the reply does not have. */
static void release_fds(struct session *s)
{
        quota_uncharge(&s->client.holds, QUOTA_UNREAD_FDS, s->reserved_fds);
        s->reserved_fds = 0;
}

void session_send(struct client *client, const void *msg, size_t bytes, const int *fds,
                  unsigned n_fds)
{
        struct session *s = container_of(client, struct session, client);
        struct outgoing *o;
        int r;

        if (s->state != SESSION_OPEN && s->state != SESSION_HANDSHAKE)
                return;
        if (n_fds == 0) {
                release_fds(s);
        } else {
                assert(s->reserved_fds >= n_fds);
                s->reserved_fds -= n_fds;
                release_fds(s);
                s->unread_fds += n_fds;
                s->fd_replies++;
                if (list_empty(&s->unread))
                        list_append(&s->sessions->unread, &s->unread);
        }
        r = list_empty(&s->out) ? fdpass_send(s->fd, msg, bytes, fds, n_fds) : -EAGAIN;
        if (r != -EAGAIN && r != -ETOOMANYREFS) {
                sent(s, r);
                return;
        }
        /* Bounded, because at most WIRE_MAX_INFLIGHT replies can be due. */
        o = calloc(1, sizeof(*o) + bytes);
        if (!o) {
                session_end(s, &s->sessions->stats.ended_bad_frame,
                            "out of memory for a reply: session ended");
                return;
        }
        o->bytes = bytes;
        memcpy(o->msg, msg, bytes);
        /* The request was charged for as much, and a session with an unsent reply reads nothing
         * more. */
        quota_charge_anyway(&s->client.holds, QUOTA_REQUEST_BYTES, outgoing_bytes(o));
        for (unsigned i = 0; i < n_fds; i++) {
                o->fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
                if (o->fds[i] < 0)
                        break;
                o->n_fds++;
        }
        s->sessions->stats.unsent_fds += o->n_fds;
        list_append(&s->out, &o->node);
        if (o->n_fds < n_fds)
                session_end(s, &s->sessions->stats.ended_bad_frame,
                            "out of descriptors for a reply: session ended");
        else if (s->out.next == &o->node)
                wait_to_send(s, r);
}

bool session_reserve_fds(struct session *s, unsigned n, uint64_t beyond)
{
        struct quota_holder *h = &s->client.holds;

        if (s->reserved_fds >= n)
                return true;
        /* The count may be too high, because clients that have sent nothing since may have read
         * descriptors. */
        if (quota_charge(h, QUOTA_UNREAD_FDS, n + beyond) != 0) {
                sessions_settle_fds(s->sessions);
                if (quota_charge(h, QUOTA_UNREAD_FDS, n + beyond) != 0)
                        return false;
        }
        quota_uncharge(h, QUOTA_UNREAD_FDS, beyond);
        s->reserved_fds += n;
        return true;
}

/* Reserves descriptors for a reply. A quarter of the user's limit is kept for replies to HELLO on
 * its further connections. Returns false if they do not fit the rest, or if UNREAD_FDS_MAX replies
 * with descriptors are unread. */
bool session_takes_fds(struct client *client, unsigned n)
{
        struct session *s = container_of(client, struct session, client);
        struct quota_limits limits;

        if (s->fd_replies >= UNREAD_FDS_MAX)
                session_settle_fds(s);
        if (s->fd_replies >= UNREAD_FDS_MAX)
                return false;
        quotas_get_user_limits(client->tenant->service->quotas, &limits);
        return session_reserve_fds(s, n,
                                   limits.most[QUOTA_UNREAD_FDS] == QUOTA_NO_LIMIT
                                           ? 0
                                           : limits.most[QUOTA_UNREAD_FDS] / 4);
}

void session_retry(struct session *s)
{
        list_unlink(&s->waits);
        if (!list_empty(&s->out) && (s->state == SESSION_OPEN || s->state == SESSION_HANDSHAKE))
                flush_outgoing(s);
        else
                session_activate(s);
}
