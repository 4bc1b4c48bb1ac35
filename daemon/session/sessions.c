/* SPDX-License-Identifier: Apache-2.0 */
/* All sessions: which connections are admitted, which session is served next, and which peers have
 * closed.
 *
 * The daemon must notice a peer's close whether it reads from the session or not. libevent's
 * EV_CLOSED does not report a peer that left replies unread: the kernel then reports an error as
 * well, which libevent passes to readers and writers only, again and again. All sessions are
 * therefore also in an edge-triggered epoll of their own. */
#include "session/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "request/chain.h"
#include "request/hits.h"
#include "cleanup.h"

enum {
        CLOSED_NS = 200000, /* ns per iteration after which no further event of a closed peer is
                             * read */
        ENDED_NS = 150000,  /* ns per iteration after which no further session of a closed peer is
                             * freed */
        LINES_BURST = 20,
        SLEPT_NS = 20000, /* ns; a poll that takes longer counts as a sleep of the loop */
        TURN_NS = 50000,  /* ns per iteration after which no further session with many keys to start
                           * is continued */
        SETTLED_PER_ITERATION = 64,
        TICK_MS = 10,
        CHAINS_MS = 1000,
        CHAIN_IDLE_MS = 5000,
        NS_PER_MS = 1000000,
        SETTLE_STEPS = 128, /* steps of client_settle() per iteration, for all sessions */
        READ_NS = 100000,   /* ns per iteration for reading messages; the other readable sessions
                             * are read later, users in turn */
        COSTLY_NS = 500000, /* most ns per iteration for all costly requests; the last one begun may
                             * exceed it */
};

/* --- periodic work: finding descriptors that were read, and closing idle chains --- */

void sessions_settle_fds(struct sessions *all)
{
        for (unsigned i = 0; i < SETTLED_PER_ITERATION && !list_empty(&all->unread); i++) {
                struct session *s = container_of(all->unread.next, struct session, unread);

                list_unlink(&s->unread);
                list_append(&all->unread, &s->unread);
                session_settle_fds(s);
        }
}

static void start_tick(struct sessions *all, unsigned ms)
{
        if (!list_empty(&all->waiting))
                ms = TICK_MS;
        all->ticks = true;
        event_add(all->tick, &(struct timeval){ .tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000 });
}

void session_wait_for_fds(struct session *s)
{
        if (!list_empty(&s->waits))
                return;
        list_append(&s->sessions->waiting, &s->waits);
        start_tick(s->sessions, TICK_MS);
}

/* Closes chains that were left open for CHAIN_IDLE_MS, because they occupy memory. Returns whether
 * some are still open. */
static bool close_idle_chains(struct sessions *all, uint64_t now_ns)
{
        bool open = false;

        list_for_each (&all->all, n) {
                struct client *client = &container_of(n, struct session, node)->client;

                if (client->chain &&
                    client->chain_ns + CHAIN_IDLE_MS * (uint64_t)NS_PER_MS <= now_ns)
                        chain_close(client);
                open |= client->chain != NULL;
        }
        return open;
}

static void on_tick(evutil_socket_t fd, short what, void *userdata)
{
        struct sessions *all = userdata;
        uint64_t now_ns = clock_mono_ns();
        struct list_node turn = LIST_INIT(turn);

        all->ticks = false;
        sessions_settle_fds(all);
        list_splice(&turn, &all->waiting);
        for (unsigned i = 0; i < SETTLED_PER_ITERATION && !list_empty(&turn); i++)
                session_retry(container_of(turn.next, struct session, waits));
        list_splice(&turn, &all->waiting); /* sessions that must wait again come after those that
                                            * were not retried */
        list_splice(&all->waiting, &turn);
        if (all->chains_open && now_ns - all->chains_seen_ns >= CHAINS_MS * (uint64_t)NS_PER_MS) {
                all->chains_seen_ns = now_ns;
                all->chains_open = close_idle_chains(all, now_ns);
        }
        if (!list_empty(&all->waiting) || all->chains_open)
                start_tick(all, CHAINS_MS);
}

void sessions_chain_opened(struct sessions *all)
{
        all->chains_open = true;
        if (!all->ticks)
                start_tick(all, CHAINS_MS);
}

/* Retries sessions that had to wait for room in the fd closer. */
static void on_disposed(void *userdata)
{
        struct sessions *all = userdata;

        if (all->n_unclosed == 0)
                return;
        list_for_each (&all->all, n) {
                struct session *s = container_of(n, struct session, node);

                if (s->unclosed)
                        session_activate(s);
        }
}

static void on_closed(evutil_socket_t fd, short what, void *userdata)
{
        uint64_t until_ns = clock_mono_ns() + CLOSED_NS;
        struct epoll_event event;

        sessions_woken(userdata);
        /* Take one event at a time: the later ones stay in the epoll. */
        while (epoll_wait(fd, &event, 1, 0) == 1) {
                if (event.events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
                        session_peer_closed(event.data.ptr);
                if (clock_mono_ns() >= until_ns)
                        break;
        }
}

static int user_init(struct fair_state *state)
{
        struct sessions_user *u = (struct sessions_user *)state;

        turns_member_init(&u->late);
        turns_member_init(&u->costly);
        turns_member_init(&u->much);
        return 0;
}

DEFINE_CLEANUP(struct sessions *, sessions_free);

int sessions_new(struct sessions **ret, const struct sessions_params *params)
{
        _cleanup_(sessions_freep) struct sessions *s = calloc(1, sizeof(*s));

        if (!s)
                return -ENOMEM;
        s->params = *params;
        list_init(&s->all);
        list_init(&s->active);
        list_init(&s->closing);
        list_init(&s->unread);
        list_init(&s->waiting);
        turns_init(&s->late);
        turns_init(&s->costly);
        fair_room_init(&s->users, sizeof(struct sessions_user), user_init, NULL);
        s->lines = (struct log_ratelimit)LOG_RATELIMIT_INIT(LINES_BURST);
        s->closed_fd = epoll_create1(EPOLL_CLOEXEC);
        if (s->closed_fd < 0)
                return -errno;
        if (fd_closer_new(&s->fd_closer, params->service->io, on_disposed, s) < 0 ||
            staging_closer_new(&s->staging_closer, params->service->io) < 0)
                return -ENOMEM;
        s->closed = event_new(params->base, s->closed_fd, EV_READ | EV_PERSIST, on_closed, s);
        s->tick = evtimer_new(params->base, on_tick, s);
        if (!s->tick || !s->closed || event_add(s->closed, NULL) < 0)
                return -ENOMEM;
        *ret = TAKE_PTR(s);
        return 0;
}

struct sessions *sessions_free(struct sessions *s)
{
        if (!s)
                return NULL;
        assert(list_empty(&s->all));
        fair_room_fini(&s->users);
        fd_closer_free(s->fd_closer);
        staging_closer_free(s->staging_closer);
        if (s->tick)
                event_free(s->tick);
        if (s->closed)
                event_free(s->closed);
        if (s->closed_fd >= 0)
                close(s->closed_fd);
        free(s);
        return NULL;
}

/* Tells a client why it is refused, in a reply to the HELLO that it has sent or will send. The
 * client may have closed, or may read nothing: the reply is dropped then. */
static void send_refusal(int fd, enum wire_status status, const char *text)
{
        size_t length = strlen(text);
        struct {
                struct wire_reply reply;
                char text[WIRE_MAX_TEXT];
        } out = { .reply = { .hdr = { .len = (uint32_t)(sizeof(out.reply) + length),
                                      .op = WIRE_HELLO | WIRE_REPLY,
                                      .tag = WIRE_REFUSAL_TAG },
                             .status = (uint16_t)status } };

        assert(length <= sizeof(out.text));
        memcpy(out.text, text, length);
        (void)send(fd, &out, out.reply.hdr.len, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void sessions_accept_take_fd(struct sessions *all, int fd)
{
        struct service *service = all->params.service;
        struct quota_holder holds;
        enum wire_status status;
        const char *refusal;
        char line[WIRE_MAX_TEXT];
        struct session *s;
        unsigned tenant;
        bool admin;
        int r;

        all->stats.accepted++;
        s = calloc(1, sizeof(*s));
        if (!s) {
                close(fd);
                return;
        }
        s->sessions = all;
        s->fd = fd;
        s->client.id = ++all->next_id;
        strcpy(s->name, "?");
        if (peer_from_socket(fd, &s->peer) < 0 ||
            quotas_identify(service->quotas, &s->peer, &tenant, &admin) != 0) {
                all->stats.refused_credentials++;
                refusal = "this user may not connect (access.users, access.groups, tenants)";
                status = WIRE_DENIED;
                goto refuse;
        }
        r = service->stopping ? QUOTA_FULL
                              : quota_holder_open(&holds, service->quotas, tenant, s->peer.uid);
        if (r != 0) {
                all->stats.refused_limit++;
                status = r == QUOTA_OVER_USER || r == QUOTA_OVER_TENANT ? WIRE_QUOTA : WIRE_BUSY;
                refusal = r == QUOTA_OVER_USER
                                  ? "too many connections of this user (limits.uid_connections)"
                          : r == QUOTA_OVER_TENANT
                                  ? "too many connections of this tenant (tenants.connections)"
                          : r < 0 ? "the daemon has no memory for the connection"
                                  : "too many connections of all clients (limits.connections), or "
                                    "this user has its share of the rest";
                if (service->stopping) {
                        status = WIRE_SHUTDOWN;
                        refusal = "the daemon is stopping";
                }
                goto refuse;
        }
        holds.admin = admin;
        session_begin(s, &service->tenants[tenant], &holds, admin);
        return;
refuse:
        snprintf(line, sizeof(line), "%s: refused", refusal);
        session_say(s, LOG_LEVEL_WARNING, line);
        send_refusal(fd, status, refusal);
        close(fd);
        free(s);
}

/* --- users --- */

struct sessions_user *sessions_user_get(struct sessions *all, uint32_t uid)
{
        return (struct sessions_user *)fair_state_get(&all->users, uid);
}

bool sessions_may_read(const struct sessions *all)
{
        return turns_is_empty(&all->late) && all->read_ns < READ_NS;
}

void sessions_read_later(struct sessions *all, struct session *s)
{
        turns_add(&all->late, &s->user->late, &s->late);
}

/* Reads sessions that wait for it, one of each user in turn, until the iteration's time for reading
 * is spent. Returns whether more of them wait. */
static bool read_late(struct sessions *all)
{
        struct list_node *n;

        while (all->read_ns < READ_NS && (n = turns_take(&all->late)))
                session_read(container_of(n, struct session, late));
        return !turns_is_empty(&all->late);
}

void sessions_defer(struct sessions *all, struct session *s)
{
        turns_add(&all->costly, &s->user->costly, &s->costly);
        all->stats.deferred++;
}

void sessions_undefer(struct session *s)
{
        turns_remove(&s->user->costly, &s->costly);
        s->sessions->stats.deferred--;
}

/* Begins costly requests, one of each user in turn, until COSTLY_NS have passed. Returns whether
 * there is more to do immediately. */
static bool begin_deferred(struct sessions *all)
{
        uint64_t began_ns, now_ns;
        struct list_node *n;
        bool more = false;

        if (turns_is_empty(&all->costly))
                return false;
        began_ns = now_ns = clock_mono_ns();
        while (now_ns - began_ns < COSTLY_NS && (n = turns_take(&all->costly))) {
                struct session *s = container_of(n, struct session, costly);

                all->stats.deferred--;
                session_begin_deferred(s);
                more |= session_iterate(s); /* the session reads further messages */
                now_ns = clock_mono_ns();
        }
        if (all->params.costly)
                histogram_add(all->params.costly, now_ns - began_ns);
        return more || !turns_is_empty(&all->costly);
}

/* Continues sessions with many keys to start, one of each user in turn, until TURN_NS have passed.
 * Returns whether there is more to do immediately. */
static bool iterate_much(struct sessions *all, struct turns *much)
{
        uint64_t until_ns = clock_mono_ns() + TURN_NS;
        struct list_node left = LIST_INIT(left), *n;
        bool more = false;

        while ((n = turns_take(much))) {
                more |= session_iterate(container_of(n, struct session, active));
                if (clock_mono_ns() >= until_ns)
                        break;
        }
        /* Sessions that had no turn go first in the next iteration. */
        turns_drain(much, &left);
        more |= !list_empty(&left);
        list_splice(&left, &all->active);
        list_splice(&all->active, &left);
        return more;
}

/* Continues each session whose peer has closed, which frees it in the end. After ENDED_NS the next
 * iteration continues the others. */
static void continue_closing(struct sessions *all)
{
        struct list_node turn = LIST_INIT(turn), *n;
        uint64_t until_ns;

        if (list_empty(&all->closing))
                return;
        list_splice(&turn, &all->closing);
        until_ns = clock_mono_ns() + ENDED_NS;
        while ((n = list_pop(&turn))) {
                (void)session_iterate(container_of(n, struct session, active));
                if (clock_mono_ns() >= until_ns)
                        break;
        }
        list_splice(&turn, &all->closing);
        list_splice(&all->closing, &turn);
}

/* Reads the sessions that wait for it, and continues all active sessions. Sessions with few keys to
 * start go first. Sessions with many keys share the rest of the iteration, users in turn and each
 * user's sessions in order; then the loop polls again, so that new small requests go first. A
 * client with occasional requests therefore does not wait for a whole round of busy ones. */
bool sessions_iterate(struct sessions *all)
{
        struct list_node turn = LIST_INIT(turn), *n;
        struct turns much;
        bool more = false;

        sessions_woken(all);
        more = read_late(all);
        all->read_ns = 0;
        all->steps = SETTLE_STEPS;
        turns_init(&much);
        list_splice(&turn, &all->active);
        while ((n = list_pop(&turn))) {
                struct session *s = container_of(n, struct session, active);

                if (s->state == SESSION_GONE)
                        list_append(&all->closing, &s->active);
                else if (request_is_small(&s->client))
                        more |= session_iterate(s);
                else
                        turns_add(&much, &s->user->much, &s->active);
        }
        if (!turns_is_empty(&much))
                more |= iterate_much(all, &much);
        continue_closing(all);
        return begin_deferred(all) || more;
}

void sessions_drain(struct sessions *all)
{
        list_for_each (&all->all, n)
                session_activate(container_of(n, struct session, node));
}

bool sessions_busy(const struct sessions *all)
{
        list_for_each (&all->all, n)
                if (container_of(n, struct session, node)->client.inflight > 0)
                        return true;
        return !turns_is_empty(&all->costly);
}

void sessions_stop(struct sessions *all,
                   bool (*leased)(void *userdata, struct client *client, int fd), void *userdata)
{
        list_for_each_safe (&all->all, n) {
                struct session *s = container_of(n, struct session, node);

                session_end(s, &all->stats.ended_shutdown, NULL);
                if (leased && hits_leases(&s->client) > 0 && s->state == SESSION_ENDED)
                        s->inherited = leased(userdata, &s->client, s->fd);
                session_peer_closed(s);
        }
}

void sessions_close_take_fd(struct sessions *all, int fd)
{
        fd_closer_add(all->fd_closer, fd, 0);
}

void sessions_poll_begins(struct sessions *all)
{
        all->poll_ns = clock_mono_ns();
}

void sessions_woken(struct sessions *all)
{
        uint64_t before_ns = all->woken_ns;

        if (all->poll_ns == 0)
                return;
        all->woken_ns = clock_mono_ns();
        all->readable_ns = before_ns == 0 || all->woken_ns - all->poll_ns > SLEPT_NS ? all->woken_ns
                                                                                     : before_ns;
        all->poll_ns = 0;
}

uint64_t sessions_woken_ns(const struct sessions *all)
{
        return all->poll_ns == 0 ? all->woken_ns : 0;
}

uint64_t sessions_received_ns(const struct sessions *all)
{
        return all->received_ns;
}

bool sessions_are_ending(const struct sessions *all)
{
        return !list_empty(&all->closing);
}

bool sessions_active(const struct sessions *all)
{
        return !list_empty(&all->active) || !turns_is_empty(&all->late) ||
               !turns_is_empty(&all->costly);
}

unsigned sessions_disposing(const struct sessions *all)
{
        return fd_closer_count(all->fd_closer);
}

unsigned sessions_stagings_closing(const struct sessions *all)
{
        return staging_closer_count(all->staging_closer);
}

bool sessions_empty(const struct sessions *all)
{
        return list_empty(&all->all);
}

void sessions_count_lookups(struct sessions *all)
{
        uint64_t now_ns = clock_mono_ns();

        all->stats.counted = all->stats.uncounted = 0;
        list_for_each (&all->all, n) {
                struct client *client = &container_of(n, struct session, node)->client;

                client_count_lookups(client, now_ns);
                hits_count(client, now_ns);
                all->stats.counted += client->page.counts != NULL;
                all->stats.uncounted += client->looks_up && !client->page.counts;
        }
}

void sessions_end_revoked(struct sessions *all)
{
        list_for_each_safe (&all->all, n) {
                struct session *s = container_of(n, struct session, node);

                if (s->client.hits.revoked && s->state == SESSION_OPEN)
                        session_end(
                                s, &all->stats.ended_bad_frame,
                                "the client holds more of the pool than its share: session ended");
        }
}

void sessions_get_stats(const struct sessions *all, struct sessions_stats *ret)
{
        *ret = all->stats;
        ret->disposing = fd_closer_count(all->fd_closer);
        ret->stagings_closing = staging_closer_count(all->staging_closer);
}

void sessions_set_handshake(struct sessions *all, uint64_t handshake_ms)
{
        all->params.handshake_ms = handshake_ms;
}
