/* SPDX-License-Identifier: Apache-2.0 */
/* The handle: what all files of the library share. Not installed. */
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

/* The tenant's lookup index, as a session has it. */
struct lookup_serial {
        const void *base; /* NULL: there is none */
        uint64_t bytes;
        struct lookup_view view;
        uint64_t serial;    /* of the handle's maps: which one the namespaces' secrets are of */
        bool asking;        /* a LOOKUP is in the queue or on its way */
        int64_t not_before; /* when the next one may be sent, ms */
        int64_t alive_ns;   /* when the daemon was last seen to live */
};

/* The tenant's pool index, as a session has it: lib/hits.h. */
struct hits {
        const void *base; /* NULL: there is none */
        uint64_t bytes;
        struct pool_index_view view;
        struct pool_page *page;
        struct hit *scratch; /* POOL_MAX_TOUCHES of them */
        uint64_t allowance, held_bytes;
        uint64_t written;     /* words of the page's ring */
        uint16_t *refs;       /* of each of the page's holds: leases and copies */
        uint64_t noted;       /* keys that the daemon found in memory */
        bool asking;          /* a POOL_INDEX is in the queue or on its way */
        int64_t not_before_s; /* when the next one may be sent */
};

/* A registered buffer as a session knows it. */
struct conn_region {
        uint32_t id; /* the daemon's number */
        uint8_t *base;
        uint64_t bytes;
};

enum { CONN_WAIT_MS = 20 }; /* that one receive on the socket waits at most */

struct conn {
        TAILQ_ENTRY(conn) link; /* kvcache.ended */
        int sock;               /* -1: closed */
        int live_fd; /* the liveness file: locked by the daemon while its I/O can run; -1: settled
                      */
        const uint8_t *pool; /* NULL: unmapped */
        uint64_t pool_bytes;
        uint64_t max_chunk, staging_max, features;
        uint32_t max_keys, max_inflight, max_message;
        uint16_t version;
        uint8_t instance[WIRE_INSTANCE_BYTES];
        struct staging staging;
        struct lookup_serial lookup; /* of a session that is up */
        struct hits hits;            /* likewise; its page, as long as there are leases */
        struct tally tally;          /* likewise */
        struct transfers transfers;  /* likewise */
        struct conn_region regions[WIRE_MAX_REGIONS];
        unsigned n_regions;
        uint64_t leases;            /* that the user holds */
        unsigned holds;             /* on the pool's mapping: lib/parts.h */
        struct message_list ghosts; /* sent, never answered, and they name the client's memory */
};
TAILQ_HEAD(conn_list, conn);

/* A registered buffer: the user knows it by a number of the handle's, the daemon by one of the
 * session's; a buffer that outlives its session gets another of those when it is next needed. */
struct buffer {
        uint32_t number;  /* the handle's; never used twice */
        uint32_t id;      /* the daemon's, in session `session` */
        uint64_t session; /* 0: in none */
        uint8_t *base;
        uint64_t offset, bytes; /* in the file */
        int fd;
        bool mapped;  /* by the library */
        bool firm;    /* and its file cannot shrink: writing there raises no signal */
        bool on_disk; /* a file: `base` is but a name for it */
        bool leaving; /* being unregistered: no request names it any more */
};

struct namespace
{
        char *name;
        char *fingerprint; /* NULL: not compared */
        uint64_t chunk_bytes;
        uint32_t lifetime_s;
        uint32_t flags;
        uint32_t id;            /* the daemon's */
        uint64_t session;       /* that gave the id; another one: to be opened again */
        uint64_t lookup_serial; /* whose secret this is; another one: to be made anew */
        struct key_secret lookup_secret;
};

struct kvcache {
        const volatile uint32_t *fork_mark; /* a page that reads zero in a child */
        pid_t pid; /* that made the handle; compared where there is no such page */

        char *socket_path; /* NULL: by environment and default */
        char client_name[WIRE_CLIENT_NAME];
        uint32_t flags;
        struct spin spin; /* of waits for replies */
        int connect_timeout_ms, request_timeout_ms;
        uint64_t staging_bytes;

        struct conn *conn; /* NULL: to be connected anew */
        struct conn_list ended;
        uint64_t sessions; /* there have been, this one included */
        struct namespace *namespaces;
        uint32_t n_namespaces;

        struct buffer buffers[WIRE_MAX_REGIONS];
        unsigned n_buffers, buffer_hint; /* the one that was found last */
        uint32_t buffers_ever;

        struct lease_table leases;
        struct wire_lease *releases; /* of `conn`, to ride on the next message */
        size_t n_releases, releases_room;
        uint64_t release_bytes;
        bool release_queued; /* a message of their own is in the queue */

        struct message_list queue; /* waits for the window or the socket */
        struct message *inflight[WIRE_MAX_INFLIGHT];
        unsigned n_inflight;
        uint32_t keys_inflight;
        unsigned n_cancels;    /* CANCELs that are queued or in flight */
        unsigned n_background; /* RELEASEs, TRANSFERS and POOL_INDEXes that are in flight */
        bool chain_goes_on;    /* the latest message of a chain says so */
        uint64_t sent;         /* messages, ever */
        bool want_out;         /* the socket is full */

        struct request_list requests; /* incomplete */
        struct request_list ready;    /* complete, not reaped */
        size_t n_async;               /* in either, to be reaped by the user */
        int64_t next_deadline;        /* none of `requests` is due before */

        uint64_t lookups_mapped; /* there have been */
        uint64_t lookups_local;  /* keys answered from them */
        uint64_t gets_local;     /* keys got by the pool index */

        int epoll_fd, timer_fd;
        bool fd_is_known; /* to the user: before that the timer is not needed */
        int64_t timer_ns; /* when timer_fd becomes readable; INT64_MAX: never */
        bool epoll_out;   /* what the epoll fd asks of the socket */

        unsigned attached; /* GPUs: lib/parts.h */
        bool is_closed;    /* by the user, with one attached: freed when it is detached */

        char error[1536];
        uint64_t in[WIRE_MAX_MESSAGE / sizeof(uint64_t)];
        uint64_t out[WIRE_MAX_MESSAGE / sizeof(uint64_t)];
};

enum { HANDLE_FORK_MARK = 0x6b766331 }; /* what `fork_mark` reads in the process that made it */

int64_t handle_now_ns(void);
int64_t handle_deadline(int timeout_ms, int default_ms);
/* Milliseconds until `deadline`, rounded up, for poll(). */
int handle_poll_ms(int64_t deadline);

/* In a child of the process that made it? */
bool handle_is_forked(const struct kvcache *kv);
/* Every public call begins here: -ECHILD after fork(); clears the error text. */
int handle_enter(struct kvcache *kv);
/* ... and those that may leave something to wait for end here: the epoll fd then knows it. */
void handle_leave(struct kvcache *kv);

/* Sets the error text, returns `error`. */
int handle_fail(struct kvcache *kv, int error, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
int handle_no_memory(struct kvcache *kv);
/* A structure of the program's has a member set that this library does not know: -E2BIG. */
int handle_is_newer(struct kvcache *kv, const char *what);
/* The same as handle_fail() with a text from the daemon, which need not be printable nor end with
 * NUL. */
int handle_fail_text(struct kvcache *kv, int error, const char *what, const char *text,
                     size_t bytes);
/* "No such file or directory". */
const char *handle_strerror(int error, char *buffer, size_t bytes);
