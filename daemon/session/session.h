/* SPDX-License-Identifier: Apache-2.0 */
/* One connection: its peer, its messages in and out, and how it ends.
 *
 * A session that the daemon ends (bad frame, timeout) and that has leases is shut down for writing
 * and kept, with its leases, until the peer's end is closed: until then the peer may still read
 * what it leased (rule R11). Loop thread. */
#pragma once

#include <event2/event.h>
#include <stdint.h>

#include "request/request.h"

struct sessions;

struct sessions_params {
        struct event_base *base;
        struct service *service;
        int liveness_fd; /* handed out in HELLO: locked and registered as long as this process's I/O
                            lasts */
        uint8_t instance[WIRE_INSTANCE_BYTES];
        uint64_t handshake_ms;
        uint32_t spin_us; /* for how long the daemon's threads poll, for HELLO to say */
        struct histogram
                *costly; /* how long costly requests took of an iteration, ns; NULL: unknown */
};

struct sessions_stats {
        uint64_t open, accepted;
        uint64_t refused_limit, refused_credentials, refused_handshake;
        uint64_t ended_closed, ended_bad_frame, ended_timeout, ended_shutdown;
        uint64_t lines_held_back;
        uint64_t counted, uncounted; /* that look keys up by themselves, as of the last count */
        uint64_t disposing;          /* descriptors that clients sent, not closed yet */
        uint64_t stagings_closing;   /* now: staging areas of sessions that have ended */
        uint64_t replies_held;       /* with descriptors, until there was room for these */
        uint64_t unsent_fds;         /* now: descriptors of replies that the socket did not take */
        uint64_t deferred;           /* now: costly requests that wait for their user's turn */
};

int sessions_new(struct sessions **ret, const struct sessions_params *params);
/* No session may be left (see sessions_stop()), and no staging area. */
struct sessions *sessions_free(struct sessions *s);
/* Swallows the descriptor. */
void sessions_accept_take_fd(struct sessions *s, int fd);
/* End of a loop iteration: continues what is not started, frees sessions that ended. True if there
 * is more to do at once. */
bool sessions_iterate(struct sessions *s);
/* The loop is about to poll for readable sockets: a request's waiting time counts from here. */
void sessions_poll_begins(struct sessions *s);
/* When it had looked last, ns; 0: it has not since sessions_poll_begins(). */
uint64_t sessions_woken_ns(const struct sessions *s);
/* When a client last sent something, ns. */
uint64_t sessions_heard_ns(const struct sessions *s);
/* It has looked: the first of what it found is about to be dealt with. */
void sessions_woken(struct sessions *s);
/* Operations under way to close descriptors that clients sent: they may take for ever. */
unsigned sessions_disposing(const struct sessions *s);
/* Staging areas of sessions that have ended, not freed yet: that takes its time, and ends. */
unsigned sessions_stagings_closing(const struct sessions *s);
/* Has something happened to a session since its turn? */
bool sessions_active(const struct sessions *s);
/* With service.stopping set: no more is read, and each session ends when what it has asked is
 * answered.
 */
void sessions_drain(struct sessions *s);
/* Is anything not answered yet? */
bool sessions_busy(const struct sessions *s);
/* Ends all of them; sessions_iterate() frees them as their requests end. `leased` (may be NULL) is
 * called for each whose peer may still read what it leased, with its socket, which is the
 * session's. True: it has a duplicate of it, which shows when the peer closes; then the session
 * leaves it open. */
void sessions_stop(struct sessions *s,
                   bool (*leased)(void *userdata, struct client *client, int fd), void *userdata);
/* Closes, on another thread, a socket with messages that were not received. */
void sessions_close_take_fd(struct sessions *s, int fd);
bool sessions_empty(const struct sessions *s);
/* Ends those whose clients have held more of the pool than they may. */
void sessions_end_revoked(struct sessions *all);
/* Adds what clients have looked up by themselves to the tallies of their tenants. */
void sessions_count_lookups(struct sessions *s);
void sessions_get_stats(const struct sessions *s, struct sessions_stats *ret);
void sessions_set_handshake(struct sessions *s, uint64_t handshake_ms);
