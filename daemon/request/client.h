/* SPDX-License-Identifier: Apache-2.0 */
/* What one connection holds, whom it is charged to: leases, namespaces, its
 * staging area, its registered buffers, messages in flight.
 *
 * session.c owns a client and sets its callbacks; the other files of this room work on it, and
 * answer it by reply.h. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/histogram.h"
#include "base/list.h"
#include "base/log.h"
#include "cache/cache.h"
#include "lookup/index.h"
#include "cache/staging.h"
#include "cache/lease.h"
#include "tenant/census.h"
#include "lookup/tally-page.h"
#include "tenant/quota.h"
#include "wire.h"

enum {
        CLIENT_MAX_NAMESPACES = 256,
        CLIENT_MAX_KEYS = 8 * 1024, /* in flight: with more, no more of its messages are read */
};

/* Counted for all clients of a tenant together. */
struct traffic {
        uint64_t requests[WIRE_OP_END];
        uint64_t keys[WIRE_OP_END];
        uint64_t results[WIRE_STATUS_END];
        uint64_t get_bytes_map, get_bytes_into;
        uint64_t chains_split;                 /* touched in parts */
        struct histogram latency[WIRE_OP_END]; /* ns, from when it could be read to its reply */
};

struct client;

/* Memory for batches that is used again and again: so many blocks are there, and these of them in
 * no use. batch.c's. */
enum { REQUEST_BLOCKS = 16 };
struct request_blocks {
        void *unused[REQUEST_BLOCKS];
        unsigned n_unused, n;
};

/* Places of chains, to be used again: chain.c's. */
enum { CHAIN_SPARES = 16 };
struct chain_spares {
        void *unused[CHAIN_SPARES];
        unsigned n;
};

/* The regions that clients have registered, of all clients: buffers.c's. */
struct buffer_stats {
        uint64_t regions, registered_bytes;
        uint64_t refused; /* regions that the rings do not register, or not all of */
};

/* Those of one client. */
struct buffer;
struct buffers {
        struct buffer *all[WIRE_MAX_REGIONS]; /* a region's number is one more than the place */
        uint64_t usable;                      /* by bit: may be named */
};

/* What the clients of a tenant share. Each tenant has its own; `all` is the array of them, by the
 * tenant's number in quota.h. */
struct dispatch_env {
        struct dispatch_env *all;
        unsigned n_all; /* 0: this is the only one */
        unsigned tenant;
        uint16_t store_tenant; /* its number in the store */
        struct cache *cache;
        struct pool *pool;
        struct leases *leases;
        struct store *store;
        struct kio *io;
        struct quotas *tenants;
        struct census *census;
        struct lookups *lookups; /* of all tenants; NULL: there is to be none */
        struct traffic traffic;
        struct tally tally;               /* freed by request_fini() */
        uint64_t impossible_tallies;      /* readings of a client's page that were cut */
        struct request_blocks blocks;     /* given back by request_fini() */
        struct chain_spares chain_spares; /* and these */
        struct log_ratelimit quota_lines, region_lines;
        struct buffer_stats buffers;
        uint64_t staging_max;
        uint64_t wait_ms; /* for room, where a request names no timeout */
        bool stopping;
        /* What `client` may see of it. */
        void (*report)(void *userdata, const struct client *client, enum wire_report what,
                       FILE *out);
        void *userdata;
};

/* What is answered where takes_fds() says no. */
#define CLIENT_UNREAD "too many replies with descriptors are unread"

struct chain;

struct client {
        struct dispatch_env *env;
        uint64_t id;
        struct quota_holder holds; /* opened, and closed after client_fini(), by the session */
        uint64_t readable_ns;      /* when the message that is dispatched could be read; 0: now */
        uid_t uid;
        bool admin;
        bool gone; /* nothing is sent any more, nothing is leased any more */

        struct lease_holder leases;
        struct staging staging;
        struct buffers buffers;
        uint32_t namespaces[CLIENT_MAX_NAMESPACES]; /* the store's, 0: removed; the client's number
                                                       is one more than the place */
        unsigned n_namespaces;                      /* places that are, or were, in use */
        unsigned open_namespaces;                   /* that are */
        unsigned opening;                           /* NAMESPACE messages that are not answered */
        struct tally_page page;                     /* what it has looked up by itself */
        bool looks_up;                              /* it may: the look-up index was handed to it */

        unsigned inflight;          /* messages not answered yet */
        uint32_t keys_inflight;     /* of these */
        struct list_node unstarted; /* batches whose keys are not all started, in order */
        struct list_node waits;     /* requests to the cache that wait for room */
        struct list_node lookups;   /* of struct lookup_wait: LOOKUPs that are not answered */
        struct chain *chain;        /* the one that the next message may continue */
        struct key chain_last;
        uint64_t chain_ns;            /* when its latest message came */
        struct list_node chains_over; /* struct chain, still to be touched */
        bool abandoned;               /* what it leases is given back: client_settle() */

        void (*send)(struct client *client, const void *msg, size_t bytes, const int *fds,
                     unsigned n_fds);
        void (*idle)(struct client *client); /* inflight fell; the client itself stays until the
                                                turn's end */
        /* May it be sent so many descriptors, in the reply that comes next? Not if it, or its user,
         * leaves many replies with descriptors unread: those count against the daemon's limit until
         * they are read. */
        bool (*takes_fds)(struct client *client, unsigned n);
        void (*chain_opened)(struct client *client);
};

/* Whose connection it is, for what is shared out by user. */
static inline const struct quota_user *client_user(const struct client *client)
{
        return client->holds.user;
}

/* Takes what is opened for the connection. Without memory, -ENOMEM, and client_fini() is due. */
int client_init(struct client *client, struct dispatch_env *env, const struct quota_holder *holds);

/* OK, or what a charge that was refused is answered with. */
enum wire_status client_charge(struct client *client, enum quota_thing what, uint64_t amount);
/* A request that is kept until it is answered, and `bytes` of memory with it: as client_charge().
 */
enum wire_status client_charge_request(struct client *client, uint64_t bytes);
/* Before its answer, which ends the charge for the request itself. */
void client_uncharge_request(struct client *client, uint64_t bytes);
/* Why it was refused. */
const char *client_refusal(enum wire_status status);
/* A lease on the chunk: OK and filled in, or what stands against it. */
enum wire_status client_lease(struct client *client, uint32_t chunk, struct wire_lease *ret);
/* After leases were given back: what they were charged with. */
void client_settle_leases(struct client *client);
/* Ends leases; returns how many of them there were not. */
uint32_t client_release(struct client *client, const struct wire_lease *leases, unsigned n);

/* Counts what it has looked up by itself since the last time. */
void client_count_lookups(struct client *client, uint64_t now_ns);

/* The store's id of the namespace that the client knows by `number`; 0: it has not opened that.
 * What others have opened does not show in a client's numbers. */
uint32_t client_namespace(const struct client *client, uint32_t number);
/* The other way: the client's number for it; 0: it has not opened that. */
uint32_t client_namespace_number(const struct client *client, uint32_t id);
/* It was removed: its number is none from now on. */
void client_forget_namespace(struct client *client, uint32_t id);
