/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: one connection each, with its peer, its messages and its end.
 *
 * A session with leases that the daemon ends (bad frame, timeout) is shut down for writing. It is
 * kept with its leases until the peer's end is closed, because until then the peer may read the
 * leased chunks (R11 in SECURITY.md). Loop thread. */
#pragma once

#include <event2/event.h>
#include <stdint.h>

#include "request/request.h"

struct sessions;

struct sessions_params {
        struct event_base *base;
        struct service *service;
        int liveness_fd; /* sent in the reply to HELLO: a lock on its file lasts as long as this
                          * process's I/O, and clients test it */
        uint8_t instance[WIRE_INSTANCE_BYTES];
        uint64_t handshake_ms;
        uint32_t spin_us; /* time in us for which the daemon's threads poll before they sleep;
                           * reported by HELLO */
        struct histogram *costly; /* histogram of the ns per iteration spent on costly requests;
                                   * NULL: not recorded */
};

struct sessions_stats {
        /* Sessions now, and counts since startup. refused_limit: also a connection during shutdown;
         * refused_handshake: sessions whose peer closed before HELLO, or with which the daemon has
         * no protocol version in common; ended_bad_frame: also sessions ended because a message
         * could not be read, a reply not be sent, or a limit was exceeded. */
        uint64_t open, accepted;
        uint64_t refused_limit, refused_credentials, refused_handshake;
        uint64_t ended_closed, ended_bad_frame, ended_timeout, ended_shutdown;
        uint64_t lines_held_back;    /* log lines about sessions that the rate limit suppressed */
        uint64_t counted, uncounted; /* sessions that look up keys themselves, with and without
                                      * counters, at the last sessions_count_lookups() */
        uint64_t disposing;          /* now: descriptors received from clients and not closed yet */
        uint64_t stagings_closing;   /* now: staging areas of ended sessions */
        uint64_t replies_held;       /* replies with descriptors that had to wait for room */
        uint64_t unsent_fds;         /* now: descriptors of replies that the socket did not take */
        uint64_t deferred;           /* now: costly requests waiting for their user's turn */
};

/* Creates the module. `params` is copied. Returns 0 or -errno. */
int sessions_new(struct sessions **ret, const struct sessions_params *params);
/* Frees the module. No session may exist (see sessions_stop()), and no staging area may be left. */
struct sessions *sessions_free(struct sessions *s);
/* Creates a session for an accepted connection. Takes the descriptor. */
void sessions_accept_take_fd(struct sessions *s, int fd);
/* Continues sessions at the end of a loop iteration and frees those that have ended. Returns
 * whether there is more to do immediately. */
bool sessions_iterate(struct sessions *s);
/* Reports that the loop begins to poll for readable sockets. A request's waiting time counts from
 * then on. */
void sessions_poll_begins(struct sessions *s);
/* Returns the time at which the last poll returned, ns, or 0 if one is in progress. */
uint64_t sessions_woken_ns(const struct sessions *s);
/* Returns the time of the last wake-up of the loop at which a client's socket was readable, ns; 0:
 * none was. */
uint64_t sessions_received_ns(const struct sessions *s);
/* Reports that the poll has returned and its first event is about to be handled. */
void sessions_woken(struct sessions *s);
/* Returns the number of calls of close() in flight for descriptors from clients and sockets of
 * ended sessions. A call may never return. */
unsigned sessions_disposing(const struct sessions *s);
/* Returns the number of staging areas of ended sessions that are not freed yet. Freeing takes a
 * bounded time. */
unsigned sessions_stagings_closing(const struct sessions *s);
/* Returns whether sessions_iterate() has a session to continue or a costly request to begin. */
bool sessions_active(const struct sessions *s);
/* Returns whether sessions_iterate() has a session to continue whose peer has closed. No client
 * waits for that. */
bool sessions_are_ending(const struct sessions *s);
/* Makes sessions stop reading; service.stopping must be set. Each session ends when its requests
 * are answered. */
void sessions_drain(struct sessions *s);
/* Returns whether any request is unanswered. */
bool sessions_busy(const struct sessions *s);
/* Ends all sessions; sessions_iterate() frees them as their requests end. `leased` (may be NULL) is
 * called for each session whose peer may still read leased chunks, with the session's socket. If it
 * returns true, it has duplicated the socket to see the peer's close, and the session closes its
 * own descriptor without shutting the connection down. */
void sessions_stop(struct sessions *s,
                   bool (*leased)(void *userdata, struct client *client, int fd), void *userdata);
/* Closes, on another thread, a socket that may contain unread messages. Takes the descriptor. */
void sessions_close_take_fd(struct sessions *s, int fd);
bool sessions_empty(const struct sessions *s);
/* Ends the sessions of clients that were revoked for holding too much of the pool. */
void sessions_end_revoked(struct sessions *all);
/* Adds the lookups and hits that clients have counted themselves to the counts of their tenants. */
void sessions_count_lookups(struct sessions *s);
void sessions_get_stats(const struct sessions *s, struct sessions_stats *ret);
void sessions_set_handshake(struct sessions *s, uint64_t handshake_ms);
