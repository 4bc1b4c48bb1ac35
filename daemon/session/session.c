/* SPDX-License-Identifier: Apache-2.0 */
/* One session: receiving messages, and its end. send.c sends replies; sessions.c handles all
 * sessions.
 *
 * A session reads while it has fewer than WIRE_MAX_INFLIGHT messages and CLIENT_MAX_KEYS keys
 * unanswered, no reply to be sent, no costly request that waits for its turn, no message with keys
 * to start, and need not wait until its peer has read descriptors. Otherwise it leaves messages in
 * the socket, where the peer has to wait. An iteration reads sessions for a limited time; the other
 * readable sessions are read in the next ones, users in turn. A session calls recvmsg() itself,
 * since bufferevents would drop descriptors. */
#include "session/internal.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "checked.h"
#include "cleanup.h"
#include "fdpass.h"
#include "request/client-end.h"
#include "request/events-request.h"
#include "request/hits.h"
#include "request/reply.h"

enum {
        MESSAGES_PER_ITERATION = 16,
        HELLO_FDS = 2,
};

void session_say(struct session *s, enum log_level level, const char *what)
{
        struct sessions *all = s->sessions;
        uint32_t held_back = 0;

        if (!log_enabled(level))
                return;
        if (!log_ratelimit_pass(&all->lines, &held_back)) {
                all->stats.lines_held_back++;
                return;
        }
        log_set_context(&(struct log_context){ .session = s->client.id,
                                               .pid = s->peer.pid,
                                               .uid = s->peer.uid,
                                               .client = s->name });
        if (held_back)
                log_at(level, "%s (%u similar lines held back)", what, held_back);
        else
                log_at(level, "%s", what);
        log_set_context(NULL);
}

void session_activate(struct session *s)
{
        if (list_empty(&s->active))
                list_append(s->state == SESSION_GONE ? &s->sessions->closing : &s->sessions->active,
                            &s->active);
}

/* --- received descriptors --- */

static void dispose_all(struct session *s, const int *fds, unsigned n)
{
        for (unsigned i = 0; i < n; i++)
                if (fds[i] >= 0)
                        fd_closer_add(s->sessions->fd_closer, fds[i], s->peer.uid);
}

static bool may_take_fds(const struct session *s)
{
        return fd_closer_may_add(s->sessions->fd_closer, s->peer.uid);
}

/* --- ending and closing a session --- */

static void session_free(struct session *s)
{
        session_drop_replies(s);
        if (s->user)
                fair_user_unref(s->user->state.user);
        if (s->client.staging.base)
                staging_closer_add(s->sessions->staging_closer, &s->client.staging,
                                   &s->client.holds);
        client_fini(&s->client);
        quota_holder_close(&s->client.holds);
        if (s->readable)
                event_free(s->readable);
        if (s->writable)
                event_free(s->writable);
        if (s->deadline)
                event_free(s->deadline);
        if (s->fd >= 0)
                close(s->fd); /* also removes it from the epoll, unless it has a duplicate: see
                               * close_socket() */
        list_unlink(&s->active);
        list_unlink(&s->unread);
        list_unlink(&s->waits);
        list_unlink(&s->node);
        s->sessions->n_unclosed -= s->unclosed;
        s->sessions->stats.open--;
        free(s);
}

static void uncharge_deferred(struct session *s, const struct deferred *d)
{
        quota_uncharge(&s->client.holds, QUOTA_DEFERRED_FDS, d->n_fds);
        quota_uncharge(&s->client.holds, QUOTA_REQUEST_BYTES, sizeof(*d) + d->bytes);
}

static void drop_deferred(struct session *s)
{
        struct deferred *d = TAKE_PTR(s->deferred);

        if (!d)
                return;
        sessions_undefer(s);
        uncharge_deferred(s, d);
        dispose_all(s, d->fds, ARRAY_SIZE(d->fds));
        free(d);
}

static void stop_events(struct session *s)
{
        event_del(s->readable);
        event_del(s->writable);
        event_del(s->deadline);
        s->reading = false;
        turns_remove(&s->user->late, &s->late);
        drop_deferred(s);
        session_drop_replies(s);
}

void session_peer_closed(struct session *s)
{
        if (s->state == SESSION_GONE)
                return;
        if (s->state == SESSION_OPEN)
                s->sessions->stats.ended_closed++;
        else if (s->state == SESSION_HANDSHAKE)
                s->sessions->stats.refused_handshake++;
        s->state = SESSION_GONE;
        stop_events(s);
        client_abandon(&s->client);
        session_activate(s);
}

void session_end(struct session *s, uint64_t *counter, const char *why)
{
        if (s->state == SESSION_ENDED || s->state == SESSION_GONE)
                return;
        ++*counter;
        if (why)
                session_say(s, LOG_LEVEL_WARNING, why);
        s->state = SESSION_ENDED;
        s->client.ended = true;
        hits_end(&s->client);
        events_request_end(&s->client);
        stop_events(s);
        (void)shutdown(s->fd, SHUT_WR);
        session_activate(s);
}

/* Discards unread messages before a session is closed, because closing with unread messages would
 * reset the peer's connection and lose the last reply. Returns true if nothing is left, false if
 * there may be more messages, or descriptors, which must not be closed here. */
static bool discard_incoming(struct session *s)
{
        for (int i = 0; i < MESSAGES_PER_ITERATION && !fdpass_brings(s->fd); i++) {
                int fds[FDPASS_TAKE_MAX];
                unsigned n_fds;
                ssize_t n = fdpass_take(s->fd, s->sessions->incoming.bytes,
                                        sizeof(s->sessions->incoming), false, fds, &n_fds);

                if (n <= 0 && n != -EMSGSIZE)
                        return true;
        }
        return false;
}

/* Shuts the connection down, unless the next daemon has a duplicate of the socket. session_free()
 * then closes the socket, or the fd closer does if it contains messages. Returns false if it must
 * stay open for now, unless the daemon stops: the peer has not read all descriptors, or the socket
 * contains descriptors for which the fd closer has no room. */
static bool close_socket(struct session *s)
{
        struct sessions *all = s->sessions;

        if (s->inherited) {
                /* Do not shut the connection down, since the next daemon has to see the peer's
                 * close. Remove the socket from the epoll, which would otherwise watch the
                 * duplicate, with events that name this session. */
                (void)epoll_ctl(all->closed_fd, EPOLL_CTL_DEL, s->fd, NULL);
                return true;
        }
        (void)shutdown(s->fd, SHUT_RDWR); /* no message can arrive afterwards */
        session_settle_fds(s);
        if (s->unread_fds > 0 && !s->client.tenant->service->stopping) {
                session_wait_for_fds(s);
                return false;
        }
        if (discard_incoming(s))
                return true;
        if (!may_take_fds(s) && !s->client.tenant->service->stopping) {
                all->n_unclosed += !s->unclosed;
                s->unclosed = true;
                return false;
        }
        (void)epoll_ctl(all->closed_fd, EPOLL_CTL_DEL, s->fd, NULL);
        fd_closer_add(all->fd_closer, TAKE_FD(s->fd), s->peer.uid);
        return true;
}

static void on_deadline(evutil_socket_t fd, short what, void *userdata)
{
        struct session *s = userdata;

        session_end(s, &s->sessions->stats.ended_timeout,
                    "the client sent no first message within limits.handshake: session ended");
}

static void session_chain_opened(struct client *client)
{
        sessions_chain_opened(container_of(client, struct session, client)->sessions);
}

/* Activates the session after an answer, unless session_iterate() is running: it continues anyway,
 * and another iteration would make the loop poll twice for each request of a client with one
 * request at a time. */
static void session_idle(struct client *client)
{
        struct session *s = container_of(client, struct session, client);

        if (!s->running)
                session_activate(s);
}

/* --- receiving --- */

/* Returns the earliest time at which the current message may have been readable. If the loop slept
 * before this iteration, this is the time of its wake-up; otherwise it is the time at which the
 * previous poll returned. A session that is read late has the time of an earlier iteration. Returns
 * the present time if none is known. */
static uint64_t received_ns(const struct session *s)
{
        uint64_t readable_ns = s->late_ns ? s->late_ns : s->sessions->readable_ns;

        return readable_ns ? readable_ns : clock_mono_ns();
}

static void hello(struct session *s, const struct wire_hello *msg)
{
        struct tenant *tenant = s->client.tenant;
        struct {
                struct wire_reply reply;
                struct wire_hello_result result;
        } out;
        int fds[HELLO_FDS] = { pool_fd(tenant->pool), s->sessions->params.liveness_fd };

        s->client.inflight++;
        tenant->traffic.requests[WIRE_HELLO]++;
        memcpy(s->name, msg->client, WIRE_CLIENT_NAME);
        if (msg->version_min > WIRE_VERSION_MAX || msg->version_max < WIRE_VERSION_MIN) {
                char text[160];

                snprintf(text, sizeof(text),
                         "this daemon speaks protocol versions %d to %d, the client %u to %u",
                         WIRE_VERSION_MIN, WIRE_VERSION_MAX, msg->version_min, msg->version_max);
                request_fail((struct request){ &s->client, msg->hdr, received_ns(s) }, WIRE_VERSION,
                             text);
                session_end(s, &s->sessions->stats.refused_handshake, text);
                return;
        }
        out.result = (struct wire_hello_result){
                .version = MIN(msg->version_max, (uint16_t)WIRE_VERSION_MAX),
                .max_keys = WIRE_MAX_KEYS,
                .max_inflight = WIRE_MAX_INFLIGHT,
                .max_message = WIRE_MAX_MESSAGE,
                .spin_us = s->sessions->params.spin_us,
                .pool_bytes = pool_bytes(tenant->pool),
                .max_chunk =
                        MIN(pool_slab_bytes(tenant->pool), store_max_chunk(tenant->service->store)),
                .staging_max = tenant->service->staging_max,
                .features =
                        WIRE_FEATURE_PREFETCH | WIRE_FEATURE_NAMESPACES | WIRE_FEATURE_CANCEL |
                        WIRE_FEATURE_LEND | WIRE_FEATURE_HINT | WIRE_FEATURE_PIN |
                        WIRE_FEATURE_ADVICE | WIRE_FEATURE_HINT_PARENT | WIRE_FEATURE_COST |
                        WIRE_FEATURE_LIFETIME | WIRE_FEATURE_BENCH | WIRE_FEATURE_TRANSFERS |
                        WIRE_FEATURE_RECORD | WIRE_FEATURE_RELOAD | WIRE_FEATURE_STAGES |
                        WIRE_FEATURE_NAMESPACE_REPORT | WIRE_FEATURE_LEASE_INTO |
                        WIRE_FEATURE_NO_REPLY |
                        (client_may_borrow(&s->client) ? WIRE_FEATURE_LENDS : 0) |
                        (client_may_register_files(&s->client) ? WIRE_FEATURE_FILES : 0) |
                        (tenant->service->remote ? WIRE_FEATURE_REMOTE : 0) |
                        (tenant->service->events ? WIRE_FEATURE_EVENTS : 0) |
                        (tenant->pool_index ? WIRE_FEATURE_POOL_INDEX : 0) |
                        (tenant->service->lookups ? WIRE_FEATURE_LOOKUP | WIRE_FEATURE_TALLY : 0),
        };
        memcpy(out.result.instance, s->sessions->params.instance, WIRE_INSTANCE_BYTES);
        out.reply = (struct wire_reply){
                .hdr = { .len = sizeof(out), .op = WIRE_HELLO | WIRE_REPLY, .tag = msg->hdr.tag },
                .count = 1,
        };
        event_del(s->deadline);
        s->state = SESSION_OPEN;
        s->client.inflight--;
        histogram_add(&tenant->traffic.latency[WIRE_HELLO], clock_mono_ns() - received_ns(s));
        readers_note(&tenant->readers, &s->peer);
        session_send(&s->client, &out, sizeof(out), fds, HELLO_FDS);
        session_say(s, LOG_LEVEL_DEBUG, "session opened");
}

/* Returns whether a request takes long on the loop thread, or causes work there that does. Such
 * requests are begun at the end of an iteration within a time limit, users in turn
 * (sessions_iterate()). */
static bool is_costly(unsigned op)
{
        return op == WIRE_NAMESPACE || op == WIRE_STAGING || op == WIRE_REGISTER ||
               op == WIRE_LOOKUP || op == WIRE_LIST || op == WIRE_PURGE || op == WIRE_REPORT ||
               op == WIRE_VERIFY || op == WIRE_DEVICE || op == WIRE_NAMESPACES ||
               op == WIRE_NAMESPACE_REMOVE || op == WIRE_BENCH || op == WIRE_TRANSFERS ||
               op == WIRE_RECORD || op == WIRE_RELOAD || op == WIRE_POOL_INDEX || op == WIRE_EVENTS;
}

static void defer(struct session *s, const struct wire_hdr *hdr, size_t bytes, int *fds,
                  unsigned n_fds)
{
        struct deferred *d = malloc(sizeof(*d) + bytes);

        if (!d) {
                session_end(s, &s->sessions->stats.ended_bad_frame,
                            "out of memory for a request: session ended");
                return;
        }
        d->readable_ns = received_ns(s);
        memcpy(d->hdr, hdr, bytes);
        for (unsigned i = 0; i < ARRAY_SIZE(d->fds); i++)
                d->fds[i] = i < n_fds ? TAKE_FD(fds[i]) : -1;
        d->n_fds = n_fds;
        d->bytes = bytes;
        /* A session has at most one deferred request, so the limit of connections bounds their
         * number; a request over another limit is refused when it begins. */
        quota_charge_anyway(&s->client.holds, QUOTA_DEFERRED_FDS, n_fds);
        quota_charge_anyway(&s->client.holds, QUOTA_REQUEST_BYTES, sizeof(*d) + bytes);
        s->deferred = d;
        sessions_defer(s->sessions, s);
}

void session_begin_deferred(struct session *s)
{
        struct deferred *d = TAKE_PTR(s->deferred);

        uncharge_deferred(s, d);
        s->client.readable_ns = d->readable_ns;
        request_dispatch(&s->client, d->hdr, d->fds);
        s->client.readable_ns = 0;
        dispose_all(s, d->fds, ARRAY_SIZE(d->fds));
        free(d);
}

static void handle(struct session *s, size_t bytes, int *fds, unsigned n_fds)
{
        const struct wire_hdr *hdr = &s->sessions->incoming.hdr;
        const char *wrong = wire_check_request(hdr, bytes);
        char text[256];

        if (!wrong && n_fds != wire_request_fds(hdr->op))
                wrong = n_fds > 0 ? "the request came with descriptors, which its operation does "
                                    "not take"
                                  : "the request came without its descriptor";

        if (!wrong && (hdr->op == WIRE_HELLO) != (s->state == SESSION_HANDSHAKE))
                wrong = s->state == SESSION_HANDSHAKE ? "a request before HELLO" : "a second HELLO";
        if (wrong) {
                snprintf(text, sizeof(text), "bad frame: %s: session ended", wrong);
                session_end(s, &s->sessions->stats.ended_bad_frame, text);
                return;
        }
        session_settle_fds(s);
        if (is_costly(hdr->op)) {
                defer(s, hdr, bytes, fds, n_fds);
                return;
        }
        s->client.readable_ns = received_ns(s);
        if (hdr->op == WIRE_HELLO)
                hello(s, (const struct wire_hello *)hdr);
        else
                request_dispatch(&s->client, hdr, fds);
        s->client.readable_ns = 0;
}

static bool may_read(const struct session *s)
{
        return list_empty(&s->waits) &&
               (s->state == SESSION_OPEN || s->state == SESSION_HANDSHAKE) &&
               s->client.inflight < WIRE_MAX_INFLIGHT &&
               s->client.keys_inflight < CLIENT_MAX_KEYS && list_empty(&s->out) && !s->deferred &&
               list_empty(&s->client.unstarted) && !s->client.tenant->service->stopping;
}

static void read_messages(struct session *s)
{
        for (int i = 0; i < MESSAGES_PER_ITERATION && may_read(s); i++) {
                struct sessions *all = s->sessions;
                int fds[FDPASS_TAKE_MAX];
                unsigned n_fds;
                bool take_fds = may_take_fds(s);
                ssize_t n;

                if (!take_fds && fdpass_brings(s->fd)) {
                        session_end(s, &all->stats.ended_bad_frame,
                                    "too many descriptors of this user wait to be closed: session "
                                    "ended");
                        return;
                }
                /* The reply to HELLO has two descriptors. */
                if (s->state == SESSION_HANDSHAKE && !session_reserve_fds(s, HELLO_FDS, 0)) {
                        session_hold_reply(s);
                        return;
                }
                s->held = false;
                n = fdpass_take(s->fd, all->incoming.bytes, sizeof(all->incoming), take_fds, fds,
                                &n_fds);

                if (n == -EAGAIN || n == -EINTR)
                        return;
                if (n <= 0)
                        dispose_all(s, fds, n_fds);
                if (n == -EMSGSIZE || n == -EBADMSG) {
                        session_end(
                                s, &s->sessions->stats.ended_bad_frame,
                                n == -EMSGSIZE
                                        ? "bad frame: longer than a message may be: session ended"
                                        : "bad frame: too many descriptors: session ended");
                        return;
                }
                if (n == 0) {
                        struct pollfd p = { .fd = s->fd, .events = POLLRDHUP };

                        /* An empty message looks like the end of the stream. */
                        if (poll(&p, 1, 0) == 1 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)))
                                session_peer_closed(s);
                        else
                                session_end(s, &s->sessions->stats.ended_bad_frame,
                                            "bad frame: a message of no bytes: session ended");
                        return;
                }
                if (n < 0) {
                        if (n == -ECONNRESET)
                                session_peer_closed(s);
                        else
                                session_end(s, &s->sessions->stats.ended_bad_frame,
                                            "a message could not be read: session ended");
                        return;
                }
                handle(s, (size_t)n, fds, n_fds);
                dispose_all(s, fds, n_fds);
        }
}

static void update_reading(struct session *s)
{
        bool want = may_read(s) && list_empty(&s->late);

        if (want == s->reading)
                return;
        if (want)
                event_add(s->readable, NULL);
        else
                event_del(s->readable);
        s->reading = want;
}

static void on_readable(evutil_socket_t fd, short what, void *userdata)
{
        struct session *s = userdata;

        sessions_woken(s->sessions);
        s->sessions->received_ns = s->sessions->woken_ns;
        if (sessions_may_read(s->sessions)) {
                session_read(s);
        } else {
                s->late_ns = received_ns(s);
                sessions_read_later(s->sessions, s);
                update_reading(s);
        }
}

void session_read(struct session *s)
{
        uint64_t began_ns = clock_mono_ns();

        read_messages(s);
        s->sessions->read_ns += clock_mono_ns() - began_ns;
        s->late_ns = 0;
        session_activate(s);
}

/* --- the life of a session --- */

void session_begin(struct session *s, struct tenant *tenant, const struct quota_holder *holds,
                   bool admin)
{
        struct sessions *all = s->sessions;
        struct event_base *base = all->params.base;
        uint64_t id = s->client.id;
        int r;

        r = client_init(&s->client, tenant, holds);
        s->client.id = id;
        s->client.uid = s->peer.uid;
        s->client.pid = s->peer.pid;
        s->client.name = s->name;
        s->client.admin = admin;
        s->client.send = session_send;
        s->client.idle = session_idle;
        s->client.takes_fds = session_takes_fds;
        s->client.chain_opened = session_chain_opened;
        s->state = SESSION_HANDSHAKE;
        list_init(&s->active);
        list_init(&s->unread);
        list_init(&s->waits);
        list_init(&s->late);
        list_init(&s->costly);
        list_init(&s->out);
        s->user = sessions_user_get(all, s->peer.uid);
        list_append(&all->all, &s->node);
        all->stats.open++;
        s->readable = event_new(base, s->fd, EV_READ | EV_PERSIST, on_readable, s);
        s->writable = event_new(base, s->fd, EV_WRITE, session_on_writable, s);
        s->deadline = evtimer_new(base, on_deadline, s);
        if (r < 0 || !s->user || !s->readable || !s->writable || !s->deadline ||
            epoll_ctl(all->closed_fd, EPOLL_CTL_ADD, s->fd,
                      &(struct epoll_event){ .events = EPOLLRDHUP | EPOLLET, .data.ptr = s }) < 0) {
                session_free(s);
                return;
        }
        event_add(s->deadline,
                  &(struct timeval){
                          .tv_sec = (time_t)(all->params.handshake_ms / 1000),
                          .tv_usec = (suseconds_t)(all->params.handshake_ms % 1000 * 1000) });
        update_reading(s);
}

bool session_iterate(struct session *s)
{
        struct sessions *all = s->sessions;
        bool started, idle, left;

        s->running = true;
        started = request_run(&s->client);
        s->running = false;
        idle = started && s->client.inflight == 0 && !s->deferred;
        if (idle) {
                if (s->client.tenant->service->stopping && list_empty(&s->out))
                        session_end(s, &all->stats.ended_shutdown, NULL);
                if (s->state == SESSION_ENDED && hits_leases(&s->client) == 0 &&
                    s->client.loans.count == 0) {
                        (void)discard_incoming(s);
                        s->state = SESSION_GONE;
                        client_abandon(&s->client);
                }
        }
        left = client_settle(&s->client, &all->steps);
        if (!started || left)
                session_activate(s);
        /* Unregistering the client's buffers may take several iterations. */
        if (idle && !left && s->state == SESSION_GONE && s->client.inflight == 0) {
                if (close_socket(s))
                        session_free(s);
                return false;
        }
        if (s->state != SESSION_GONE)
                update_reading(s);
        return !started || left;
}
