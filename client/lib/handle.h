/* SPDX-License-Identifier: Apache-2.0 */
/* The handle: the state that all files of the library share. Not installed. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "kvcache.h"
#include "lib/lease.h"
#include "lib/staging.h"
#include "lib/tally.h"
#include "lib/transfers.h"
#include "proto/lookup.h"
#include "proto/pool-index.h"
#include "spin.h"
#include "wire.h"

struct message;
struct request;
TAILQ_HEAD(message_list, message);
TAILQ_HEAD(request_list, request);

/* The tenant's lookup index as mapped by a session. */
struct lookup_serial {
        const void *base; /* NULL: not mapped */
        uint64_t bytes;
        struct lookup_view view;
        uint64_t serial; /* number of this mapping, counted by kvcache.lookups_mapped; a namespace's
                            secret is valid for the mapping with the number namespace.lookup_serial
                          */
        bool asking;     /* a LOOKUP is queued or in flight */
        int64_t not_before; /* earliest time of the next LOOKUP, ms */
        int64_t alive_ns;   /* latest time at which the session was seen to be up, ns */
};

/* The tenant's pool index as mapped by a session; see lib/hits.h. */
struct hits {
        const void *base; /* NULL: not mapped */
        uint64_t bytes;
        struct pool_index_view view;
        struct pool_page *page;
        struct hit *scratch; /* POOL_MAX_TOUCHES entries */
        uint64_t allowance, held_bytes;
        uint64_t written; /* number of words ever written to the page's ring */
        uint16_t *refs; /* references to each hold of the page, by its place: leases and copies; 0:
                           the place is free */
        uint64_t noted; /* number of keys that the daemon's replies to gets reported as found in
                           memory; from WANT_AFTER (hits.c) on, the library requests the index */
        bool asking;    /* a POOL_INDEX is queued or in flight */
        int64_t not_before_s; /* earliest time of the next POOL_INDEX, in seconds of the clock of
                                 holds_now_s() */
};

/* A registered buffer, as one session knows it. */
struct conn_region {
        uint32_t id; /* assigned by the daemon */
        uint8_t *base;
        uint64_t bytes;
};

enum { CONN_WAIT_MS = 20 }; /* maximum time of one receive on the socket */

struct conn {
        TAILQ_ENTRY(conn) link; /* kvcache.ended */
        int sock;               /* -1: closed */
        int live_fd; /* the liveness file, locked by the daemon while its I/O can run; -1 until
                        HELLO is answered */
        const uint8_t *pool; /* NULL: unmapped */
        uint64_t pool_bytes;
        uint64_t pool_id; /* the pool's id, as kvcache_pool_of() returns it */
        uint64_t max_chunk, staging_max, features;
        uint32_t max_keys, max_inflight, max_message;
        uint16_t version;
        uint8_t instance[WIRE_INSTANCE_BYTES];
        struct staging staging;
        struct lookup_serial lookup; /* valid while the session is up */
        struct hits hits;   /* used while the session is up; its page stays mapped while there are
                               leases */
        struct tally tally; /* valid while the session is up */
        struct transfers transfers; /* valid while the session is up */
        struct conn_region regions[WIRE_MAX_REGIONS];
        unsigned n_regions;
        uint64_t leases; /* number of leases that the user holds, including those that the library
                            took through the pool index */
        unsigned holds;  /* number of holds on the pool's mapping, see lib/parts.h */
        struct message_list ghosts; /* messages sent but never answered that name the client's
                                       memory */
};
TAILQ_HEAD(conn_list, conn);

/* A registered buffer. The user knows the buffer by the handle's number, and the daemon by a
 * region's number, which belongs to one session. After a reconnect, the next request that names the
 * buffer registers it again. */
struct buffer {
        uint32_t number;  /* assigned by the handle; never reused */
        uint32_t id;      /* assigned by the daemon, in session `session` */
        uint64_t session; /* 0: registered in no session */
        uint8_t *base;
        uint64_t offset, bytes; /* range of the file */
        int fd;
        bool mapped; /* the library mapped the memory at `base`, or reserved its addresses, and
                        unmaps it */
        bool firm;   /* mapped by the library from a file that cannot shrink, so that writing to the
                        memory raises no SIGBUS */
        bool on_disk; /* a file on a disk: `base` only names addresses */
        bool leaving; /* being unregistered: new requests do not use it */
};

struct namespace
{
        char *name;
        char *fingerprint; /* fingerprint that the program gave; NULL: none, so that it is not
                              compared */
        uint64_t chunk_bytes;
        uint32_t lifetime_s;
        uint32_t flags;
        uint32_t id;      /* the daemon's number of the namespace in session `session` */
        uint64_t session; /* session that assigned `id`; 0: none. In any other session the namespace
                             is opened again */
        uint64_t lookup_serial; /* number of the mapping for which `lookup_secret` was computed; for
                                   another mapping it is computed again */
        struct key_secret lookup_secret;
};

struct kvcache {
        const volatile uint32_t
                *fork_mark; /* word in a page that the kernel zeroes in a child; HANDLE_FORK_MARK in
                               the process that made the handle */
        pid_t pid;          /* process that made the handle; 0: `fork_mark` detects a child */

        char *socket_path; /* NULL: from the environment, or the default */
        char client_name[WIRE_CLIENT_NAME];
        uint32_t flags;
        struct spin spin; /* state of polling for replies */
        int connect_timeout_ms, request_timeout_ms;
        uint64_t staging_bytes;

        struct conn *conn; /* NULL: not connected; the next call connects */
        struct conn_list ended;
        uint64_t sessions; /* number of sessions that the handle has opened */
        struct namespace *namespaces;
        uint32_t n_namespaces;

        struct buffer buffers[WIRE_MAX_REGIONS];
        unsigned n_buffers, buffer_hint; /* buffer_hint: index of the buffer that was found last */
        uint32_t buffers_ever;

        struct lease_table leases;
        struct wire_lease *releases; /* leases of `conn` that the next batch message releases */
        size_t n_releases, releases_room;
        uint64_t release_bytes;
        bool release_queued; /* a RELEASE message for the pending releases is queued */

        struct message_list queue; /* messages that wait for the window or the socket */
        struct message *inflight[WIRE_MAX_INFLIGHT];
        unsigned n_inflight;
        uint32_t keys_inflight;
        unsigned n_cancels;    /* CANCELs queued or in flight */
        unsigned n_background; /* RELEASEs, TRANSFERS and POOL_INDEXes in flight */
        bool chain_goes_on; /* the latest message of a chain had WIRE_F_MORE: the chain continues in
                               the next such message */
        uint64_t sent;      /* number of messages sent, ever */
        bool want_out;      /* messages wait until the socket is writable */

        struct request_list requests; /* incomplete requests */
        struct request_list ready;    /* complete requests that are not reaped */
        size_t n_async;               /* requests in both lists that the user will reap */
        int64_t next_deadline; /* lower bound of the deadlines of `requests`, ns; INT64_MAX: there
                                  are none */

        uint64_t lookups_mapped; /* number of lookup indexes mapped so far */
        uint64_t lookups_local;  /* keys answered from lookup indexes */
        uint64_t gets_local;     /* keys got through pool indexes */

        int epoll_fd, timer_fd;
        bool fd_is_known; /* the user has the fd; until then the timer is not needed */
        int64_t timer_ns; /* time at which timer_fd becomes readable, ns; INT64_MAX: never */
        bool epoll_out;   /* the epoll fd waits for the socket to become writable */

        struct events_buffer *events; /* the latest reply to EVENTS; NULL until the handle first
                                         asks for events */

        unsigned attached; /* number of attached GPUs, see lib/parts.h */
        bool is_closed; /* closed by the user while a GPU is attached; freed by the last detach */

        char error[1536];
        uint64_t in[WIRE_MAX_MESSAGE / sizeof(uint64_t)];
        uint64_t out[WIRE_MAX_MESSAGE / sizeof(uint64_t)];
};

enum {
        HANDLE_FORK_MARK = 0x6b766331
}; /* content of `fork_mark` in the process that made the handle */

int64_t handle_now_ns(void);
int64_t handle_deadline(int timeout_ms, int default_ms);
/* Returns the milliseconds until `deadline`, rounded up, as poll() takes them: -1 for INT64_MAX. */
int handle_poll_ms(int64_t deadline);

/* Returns whether this process is a child of the one that made the handle. */
bool handle_is_forked(const struct kvcache *kv);
/* Begins a public call that may set the error text, and clears that text. Returns 0; -EINVAL if
 * `kv` is NULL; -ECHILD after fork(). */
int handle_enter(struct kvcache *kv);
/* Ends every public call that may leave requests waiting: updates the epoll fd and its timer. */
void handle_leave(struct kvcache *kv);

/* Sets the error text and returns `error`. */
int handle_fail(struct kvcache *kv, int error, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
int handle_no_memory(struct kvcache *kv);
/* Reports that a structure of the program has a member set that this library does not know. Returns
 * -E2BIG. */
int handle_is_newer(struct kvcache *kv, const char *what);
/* Sets the error text to `what` and the text of the negative errno `error`. Returns `error`. */
int handle_fail_errno(struct kvcache *kv, int error, const char *what);
/* Sets the error text to `what` and a text of `bytes` bytes from the daemon, which need not be
 * printable or NUL-terminated. Returns `error`. */
int handle_fail_text(struct kvcache *kv, int error, const char *what, const char *text,
                     size_t bytes);
/* Returns the text of an errno of either sign, such as "No such file or directory"; it may lie in
 * `buffer`. */
const char *handle_strerror(int error, char *buffer, size_t bytes);
