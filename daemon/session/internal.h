/* SPDX-License-Identifier: Apache-2.0 */
/* What session.c, send.c and sessions.c share. Private to these files. */
#pragma once

#include "session/session.h"

#include "base/log.h"
#include "session/fd-closer.h"
#include "session/staging-closer.h"

enum { SESSIONS_USER_BUCKETS = 64 };

enum session_state {
        SESSION_HANDSHAKE,
        SESSION_OPEN,
        SESSION_ENDED, /* by us: waits for the peer to close, or to hold nothing */
        SESSION_GONE,  /* the peer has closed: waits for its requests to end */
};

/* A user with a session. */
struct sessions_user {
        struct list_node node;   /* in its bucket of sessions.users */
        struct list_node turn;   /* in sessions.costly, while one of its sessions waits there */
        struct list_node costly; /* struct session, in order */
        struct list_node much;   /* likewise, with much to start: see sessions_iterate() */
        struct list_node much_turn;
        uint32_t uid;
        unsigned n_sessions;
};

/* A costly request that was read and not begun yet. */
struct deferred {
        uint64_t readable_ns;
        int fds[WIRE_MAX_FDS]; /* -1: none */
        unsigned n_fds;        /* charged to the user */
        size_t bytes;          /* likewise */
        struct wire_hdr hdr[];
};

struct session {
        struct client client;
        struct list_node node;   /* in sessions.all */
        struct list_node active; /* in sessions.active: to be looked at in this iteration */
        struct list_node costly; /* in its user's, while it has one deferred */
        struct sessions *sessions;
        struct sessions_user *user;
        struct deferred *deferred; /* NULL: none; while there is one, nothing more is read */
        enum session_state state;
        int fd;
        struct peer peer;
        char name[WIRE_CLIENT_NAME + 1];
        struct event *readable, *writable, *deadline;
        bool reading;
        bool running;            /* its requests are being started: session_iterate() goes on */
        bool unclosed;           /* ended, but its socket holds descriptors that no one receives */
        struct list_node out;    /* what the socket would not take yet */
        unsigned fd_replies;     /* with descriptors, since the peer was seen to have read all */
        unsigned unread_fds;     /* in these; the user is charged for them */
        unsigned reserved_fds;   /* charged for a reply that is about to be sent */
        struct list_node unread; /* in sessions.unread, if there are any */
        bool inherited;          /* the next daemon has its socket */
        bool held;               /* a reply of its waits for descriptors to be read */
        struct list_node waits;  /* in sessions.waiting: for descriptors to be read */
};

struct sessions {
        struct sessions_params params;
        int closed_fd; /* the epoll that says whose peer has closed */
        struct event *closed;
        struct list_node all, active;
        uint32_t
                steps; /* that client_settle() may still take in this iteration, for all sessions */
        struct list_node
                unread; /* sessions that were sent descriptors, least recently seen first */
        struct list_node
                waiting; /* sessions that have some to send, or to be closed with none unread */
        struct event *tick;
        bool ticks;       /* it is pending */
        bool chains_open; /* some may be */
        uint64_t chains_seen_ns;
        struct list_node users[SESSIONS_USER_BUCKETS];
        struct list_node costly; /* users with costly requests, in turn */
        struct fd_closer *fd_closer;
        struct staging_closer *staging_closer;
        unsigned n_unclosed;
        uint64_t next_id;
        struct sessions_stats stats;
        struct log_ratelimit lines;
        uint64_t poll_ns;     /* when the loop began to look for what can be read; 0: it has */
        uint64_t woken_ns;    /* when it had looked */
        uint64_t heard_ns;    /* when a client last sent something */
        uint64_t readable_ns; /* since when what it found may have been there */
        union {
                struct wire_hdr hdr;
                uint8_t bytes[WIRE_MAX_MESSAGE];
        } incoming; /* one message at a time, private memory */
};

/* One line about a client, unless clients have caused too many. */
void session_say(struct session *s, enum log_level level, const char *what);
/* It is looked at in this iteration, or in the next. */
void session_activate(struct session *s);

/* Has the peer read all that it was sent? Then its user is not charged for descriptors any more. */
void session_settle_fds(struct session *s);
/* It is retried as soon as descriptors may have been read. */
void session_wait_for_fds(struct session *s);
/* What it waited for may have come: a reply is sent again, or it goes on to read or to end. */
void session_retry(struct session *s);
/* --- send.c --- */

/* The client's send() and takes_fds(). */
void session_send(struct client *client, const void *msg, size_t bytes, const int *fds,
                  unsigned n_fds);
bool session_takes_fds(struct client *client, unsigned n);
/* Room for a reply with descriptors is charged before the reply is made. True if there is. */
bool session_reserve_fds(struct session *s, unsigned n, uint64_t beyond);
/* A reply with descriptors waits until some are read. */
void session_hold_reply(struct session *s);
void session_on_writable(evutil_socket_t fd, short what, void *userdata);
/* Nothing more is sent. */
void session_drop_replies(struct session *s);

/* --- session.c, sessions.c --- */

/* Some session has a chain that its next message may continue. */
void sessions_chain_opened(struct sessions *all);
/* Looks at some of those that have been sent descriptors. */
void sessions_settle_fds(struct sessions *all);

/* Its first state, for any peer: reads from now on. Frees it without memory. */
void session_begin(struct session *s, struct tenant *tenant, const struct quota_holder *holds,
                   bool admin);
/* True if it has more to start. Frees it when it is over. */
bool session_iterate(struct session *s);
/* Its deferred request: begins, with its answer now or later. */
void session_begin_deferred(struct session *s);
/* Of this uid, one session more; NULL: no memory. */
struct sessions_user *sessions_user_get(struct sessions *all, uint32_t uid);
void sessions_user_put(struct sessions_user *u);
/* The session has a request deferred: its user's turn will come. */
void sessions_defer(struct sessions *all, struct session *s);
/* It has none any more. */
void sessions_undefer(struct session *s);

/* Our end: nothing is read, sent or leased any more; what is leased stays until the peer closes.
 * Without a lease there is nothing to wait for: session_iterate() frees it. */
void session_end(struct session *s, uint64_t *counter, const char *why);
/* The peer's end is closed. */
void session_gone(struct session *s);
