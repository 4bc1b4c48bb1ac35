/* SPDX-License-Identifier: Apache-2.0 */
/* State and interfaces shared by session.c, send.c and sessions.c. Private to these files. Loop
 * thread. */
#pragma once

#include "session/session.h"

#include "base/log.h"
#include "fair/turns.h"
#include "fair/user.h"
#include "session/fd-closer.h"
#include "session/staging-closer.h"

enum session_state {
        SESSION_HANDSHAKE,
        SESSION_OPEN,
        SESSION_ENDED, /* ended by the daemon: kept until the peer closes its end or has no more
                        * leases and loans */
        SESSION_GONE,  /* the peer has closed its end, or an ended session has no more leases and
                        * loans: kept until the session's requests have ended and its socket can be
                        * closed */
};

/* The sessions of a user, which take turns with those of other users. Each session refers to the
 * user. */
struct sessions_user {
        struct fair_state state;
        struct turns_member late;   /* struct session whose socket is read later, see
                                     * sessions_read_later() */
        struct turns_member costly; /* struct session with a deferred request */
        struct turns_member much;   /* struct session with many keys to start, see
                                     * sessions_iterate() */
};

/* A costly request that was read but not begun. */
struct deferred {
        uint64_t readable_ns;
        int fds[WIRE_MAX_FDS]; /* -1: none */
        unsigned n_fds;        /* number of descriptors, which are charged to the user */
        size_t bytes;          /* length of `hdr`, charged to the user */
        struct wire_hdr hdr[];
};

struct session {
        struct client client;
        struct list_node node;   /* in sessions.all */
        struct list_node active; /* in sessions.active, or in sessions.closing if the peer has
                                  * closed: must be iterated */
        struct list_node late;   /* in user->late while its messages wait to be read */
        struct list_node costly; /* in user->costly while `deferred` is set */
        struct sessions *sessions;
        struct sessions_user *user;
        struct deferred *deferred; /* NULL: none; otherwise nothing more is read */
        enum session_state state;
        int fd;
        struct peer peer;
        char name[WIRE_CLIENT_NAME + 1];
        struct event *readable, *writable, *deadline;
        uint64_t late_ns; /* time since which the messages wait to be read, while they are read
                           * late; otherwise 0 */
        bool reading;
        bool running;         /* session_iterate() is starting requests, and continues afterwards */
        bool unclosed;        /* ended, but its socket contains descriptors that were not
                               * received */
        struct list_node out; /* replies that the socket did not take */
        unsigned fd_replies;  /* replies with descriptors sent since the peer last had read
                               * everything */
        unsigned unread_fds;  /* descriptors in these replies, charged to the user */
        unsigned reserved_fds;   /* descriptors charged for a reply that is about to be sent */
        struct list_node unread; /* in sessions.unread while `unread_fds` is not 0 */
        bool inherited;          /* the next daemon has a duplicate of the session's socket */
        bool held;               /* a reply waits until the peer has read descriptors of earlier
                                  * replies */
        struct list_node waits;  /* in sessions.waiting, until descriptors are read */
};

struct sessions {
        struct sessions_params params;
        int closed_fd; /* epoll descriptor that reports peers that have closed */
        struct event *closed;
        struct list_node all, active, closing;
        uint32_t steps; /* permitted for client_settle() in this iteration, for all sessions */
        struct list_node
                unread; /* sessions with unread descriptors, the least recently checked first */
        struct list_node
                waiting; /* sessions that cannot send or close until descriptors are read */
        struct event *tick;
        bool ticks;       /* the event `tick` is pending */
        bool chains_open; /* some sessions may have open chains */
        uint64_t chains_seen_ns;
        struct fair_room users; /* struct sessions_user */
        struct turns late;      /* sessions whose sockets are read later, users in turn */
        struct turns costly;    /* sessions with a deferred request, users in turn */
        struct fd_closer *fd_closer;
        struct staging_closer *staging_closer;
        unsigned n_unclosed; /* sessions whose `unclosed` is set */
        uint64_t next_id;
        struct sessions_stats stats;
        struct log_ratelimit lines;
        uint64_t poll_ns;     /* time at which the loop last began to poll; 0: that poll has
                               * returned */
        uint64_t woken_ns;    /* time at which that poll returned */
        uint64_t read_ns;     /* time that this iteration has spent on reading messages */
        uint64_t received_ns; /* time of the last wake-up of the loop at which a client's socket was
                               * readable */
        uint64_t readable_ns; /* earliest time at which the messages of this iteration were
                               * readable */
        union {
                struct wire_hdr hdr;
                uint8_t bytes[WIRE_MAX_MESSAGE];
        } incoming; /* the message being handled, in private memory */
};

/* Logs a line about a session's client, within the rate limit of all sessions. */
void session_say(struct session *s, enum log_level level, const char *what);
/* Makes the session be iterated, in this iteration or the next. */
void session_activate(struct session *s);

/* Ends the charge for descriptors if the peer has read everything that was sent. */
void session_settle_fds(struct session *s);
/* Makes the session be retried when descriptors may have been read. */
void session_wait_for_fds(struct session *s);
/* Sends a held reply again, or lets the session continue to read or end. */
void session_retry(struct session *s);
/* --- send.c --- */

/* Implement the client's send() and takes_fds(). */
void session_send(struct client *client, const void *msg, size_t bytes, const int *fds,
                  unsigned n_fds);
bool session_takes_fds(struct client *client, unsigned n);
/* Charges the user for descriptors of a reply that is about to be made. Succeeds only if `beyond`
 * further descriptors would fit the limit, too; they are not charged. Returns false without
 * charging anything if they do not fit. */
bool session_reserve_fds(struct session *s, unsigned n, uint64_t beyond);
/* Delays a reply with descriptors until the peer has read descriptors of earlier replies. */
void session_hold_reply(struct session *s);
void session_on_writable(evutil_socket_t fd, short what, void *userdata);
/* Frees all replies that were not sent. */
void session_drop_replies(struct session *s);

/* --- session.c, sessions.c --- */

/* Reports that a session has a chain that its next message may continue. */
void sessions_chain_opened(struct sessions *all);
/* Calls session_settle_fds() for a bounded number of sessions with unread descriptors, the least
 * recently checked first. */
void sessions_settle_fds(struct sessions *all);

/* Starts a new session of an accepted peer: the session takes over `holds` and reads messages from
 * then on. Frees the session and closes its socket if memory or a kernel resource is short. */
void session_begin(struct session *s, struct tenant *tenant, const struct quota_holder *holds,
                   bool admin);
/* Continues a session, and frees it if it is over. Returns whether it has more to do. */
bool session_iterate(struct session *s);
/* Begins the deferred request, which is answered now or later. */
void session_begin_deferred(struct session *s);
/* Returns whether a readable session may be read now: none waits to be read, and this iteration
 * has time left for reading. Otherwise sessions_read_later() queues it for its user's turn. */
bool sessions_may_read(const struct sessions *all);
void sessions_read_later(struct sessions *all, struct session *s);
/* Reads the messages of a session whose turn it is. */
void session_read(struct session *s);
/* Returns the user of a new session with a reference for it, or NULL without memory. */
struct sessions_user *sessions_user_get(struct sessions *all, uint32_t uid);
/* Queues a session with a deferred request for its user's turn. */
void sessions_defer(struct sessions *all, struct session *s);
/* Removes a session from the queue of sessions_defer(). */
void sessions_undefer(struct session *s);

/* Ends a session on the daemon's initiative: nothing is read, sent or leased any longer. Existing
 * leases and loans stay until the peer closes; without them, session_iterate() frees the session.
 * Increments *counter, and logs `why` unless that is NULL. No effect on a session that has
 * ended. */
void session_end(struct session *s, uint64_t *counter, const char *why);
/* Ends a session whose peer has closed its end: drops unsent replies and abandons the client's
 * requests. session_iterate() frees the session when these have ended. No effect if it has been
 * called before. */
void session_peer_closed(struct session *s);
