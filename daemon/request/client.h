/* SPDX-License-Identifier: Apache-2.0 */
/* A client: the leases, namespaces, staging area, registered buffers and messages in flight of one
 * connection, all charged to its user.
 *
 * session.c owns a client and sets its callbacks; the other files of this room work on it, and
 * answer it through reply.h. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "benchmark/benchmark.h"
#include "events/events.h"
#include "lookup/index.h"
#include "cache/staging.h"
#include "cache/lease.h"
#include "lookup/pool-index.h"
#include "lookup/tally-page.h"
#include "tenant/tenant.h"
#include "wire.h"

enum {
        CLIENT_MAX_NAMESPACES = 256,
        CLIENT_MAX_KEYS = WIRE_MAX_KEYS_INFLIGHT,
};

/* The client's registered buffers; see buffers.c. */
struct buffer;
struct buffers {
        struct buffer *all[WIRE_MAX_REGIONS]; /* index is the buffer's number minus one */
        uint64_t usable;                      /* bit mask of the buffers that may be named */
};

/* The text of the refusal when takes_fds() returns false. */
#define CLIENT_UNREAD "too many replies with descriptors are unread"

struct chain;

/* Keys that the client evicted, pinned or unpinned and that audit.c has not logged yet. */
struct audit {
        struct list_node node; /* in service.audits */
        const char *operation; /* NULL: no keys to log */
        uint32_t namespace_id;
        uint64_t chunks, since_ns;
};

struct client {
        struct tenant *tenant;
        uint64_t id;
        struct quota_holder holds; /* opened by the session, which closes it after client_fini() */
        uint64_t readable_ns;      /* time at which the current message could be read, ns; 0: not
                                    * known, so that the present time counts */
        uid_t uid;
        pid_t pid;
        const char *name; /* for the log: the name in HELLO; "?" before it */
        bool admin;
        bool ended; /* nothing more is sent or leased */

        struct lease_holder leases;
        struct store_borrower loans;
        struct staging staging;
        struct buffers buffers;
        uint32_t namespaces[CLIENT_MAX_NAMESPACES]; /* ids in the store, 0 if removed; the client's
                                                     * number of a namespace is its index plus
                                                     * one */
        unsigned n_namespaces;                      /* entries of `namespaces` in use now or
                                                     * before */
        unsigned open_namespaces;                   /* entries of `namespaces` in use now */
        unsigned opening;                           /* NAMESPACE messages not answered yet */
        struct audit audit;                         /* keys that audit.c has not logged yet */
        struct tally_page page;                     /* page in which the client counts lookups that
                                                     * it answered itself */
        struct pool_client hits; /* client's membership in the pool index, through which it gets
                                  * chunks without a message */
        uint32_t hits_left;      /* words of the ended session's ring that are still to be read */
        struct bench_page *transfers; /* counters of the client's transfers, shared with it; NULL:
                                       * none */
        uint64_t since_ns;            /* time at which the client connected, ns */
        bool looks_up;                /* the client has received the lookup index */

        unsigned inflight;          /* messages not answered yet, and buffers that are released
                                     * because the client has ended */
        uint32_t keys_inflight;     /* keys of these messages */
        struct list_node unstarted; /* batches with keys to start, in order */
        struct list_node batches;   /* batches not answered, for CANCEL and client_abandon() */
        struct list_node lookups;   /* struct lookup_wait of LOOKUPs not answered */
        struct events_wait *events; /* the EVENTS message that waits for events; NULL: none */
        struct chain *chain;        /* the open chain, which the next message may continue */
        struct key chain_last;
        uint64_t chain_ns;            /* time at which the open chain's last message arrived, ns */
        struct list_node chains_over; /* struct chain: complete chains that are still to be
                                       * touched */
        bool abandoned;               /* the client is ended, and client_settle() releases its
                                       * resources */

        void (*send)(struct client *client, const void *msg, size_t bytes, const int *fds,
                     unsigned n_fds);
        void (*idle)(
                struct client *client); /* reports that inflight fell or that client_settle()
                                         * has work; must not free the client within the call */
        /* Returns whether the next reply may carry this number of descriptors. Descriptors count
         * against the daemon's limit until the peer reads them, so a client or user with many
         * unread descriptors gets no further ones. */
        bool (*takes_fds)(struct client *client, unsigned n);
        void (*chain_opened)(struct client *client);
};

/* Returns the user of the connection, to whom resources are charged. */
static inline const struct quota_user *client_user(const struct client *client)
{
        return client->holds.user;
}

/* Initializes a client. Returns 0 or -ENOMEM; client_fini() must be called in either case. */
int client_init(struct client *client, struct tenant *tenant, const struct quota_holder *holds);

/* Charges `amount` of a thing to the client. Returns WIRE_OK; otherwise charges nothing, logs the
 * limit, and returns the status with which to refuse the request, WIRE_QUOTA or WIRE_BUSY. */
enum wire_status client_charge(struct client *client, enum quota_thing what, uint64_t amount);
/* Charges a request that is kept until it is answered, and `bytes` of memory. Returns as
 * client_charge() does. */
enum wire_status client_charge_request(struct client *client, uint64_t bytes);
/* Ends the charge for the memory of a request, before the answer ends the charge for the request
 * itself. */
void client_uncharge_request(struct client *client, uint64_t bytes);
/* Returns the text that explains a refusal with this status. */
const char *client_refusal(enum wire_status status);
/* Returns why the store could not record an operation that ended with `result`: an error of a
 * device, or no volume is in use, for which the store returns -EIO. */
const char *client_write_error(const struct client *client, int result);
/* Leases a chunk. Returns WIRE_OK and fills *ret, or the status of the refusal. */
enum wire_status client_lease(struct client *client, uint32_t chunk, struct wire_lease *ret);
/* Returns whether the quotas (tenant/quota.h) have room for a lease of the chunk; the table of
 * leases may still refuse it. A negative answer does not count as a refusal. */
bool client_has_room_for_lease(const struct client *client, uint32_t chunk);
/* Ends leases, and returns how many of them did not exist. */
uint32_t client_release(struct client *client, const struct wire_lease *leases, unsigned n);
/* Ends at most `most` of the client's leases, the latest first, and returns their number. */
uint32_t client_release_some(struct client *client, uint32_t most);

/* Returns whether the configuration permits the client to read chunks directly from the data
 * files. */
bool client_may_borrow(const struct client *client);
/* Returns whether the configuration permits the client to register files from which puts are
 * read. */
bool client_may_register_files(const struct client *client);

/* Adds the lookups that the client has performed itself since the last call to the counters of its
 * tenant. */
void client_count_lookups(struct client *client, uint64_t now_ns);

/* Returns the store's id of the namespace that the client knows by `number`, or 0 if it has not
 * opened such a namespace. Numbers are private to the client, so that they reveal nothing about
 * others. */
uint32_t client_namespace(const struct client *client, uint32_t number);
/* Returns the client's number of a namespace, or 0 if it has not opened it. */
uint32_t client_namespace_number(const struct client *client, uint32_t id);
/* Invalidates the client's number of a namespace that was removed. */
void client_forget_namespace(struct client *client, uint32_t id);
