/* SPDX-License-Identifier: Apache-2.0 */
/* A tenant at run time: its pool with the cache over it, the leases on that, and what its clients
 * do. What it may hold is quota.h's, under the same number. The service is what all tenants share.
 * The server owns both; loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/histogram.h"
#include "base/log.h"
#include "base/stages.h"
#include "cache/cache.h"
#include "cache/lease.h"
#include "lookup/tally.h"
#include "tenant/census.h"
#include "tenant/quota.h"
#include "tenant/readers.h"
#include "wire.h"

struct admission;
struct bench;
struct recorder;
struct client;
struct lookups;
struct mappings;
struct pool_index;
struct remote;
struct request_memory;

/* io.gds: to whom chunks are lent; io.gds_puts: whose files puts may be taken from. */
enum service_gds { SERVICE_GDS_OFF, SERVICE_GDS_AUTO, SERVICE_GDS_ON };

/* What the clients of all tenants are served with. It owns none of it. */
/* By all recordings of this daemon: request/recorder.h. */
struct recorded {
        uint64_t recordings, keys, lost; /* lost: keys */
};

struct hits_pace { /* request/hits.c's */
        uint64_t at_ns;
        uint32_t touches;   /* that may be made */
        uint32_t caught_up; /* words, in this iteration, before messages */
        bool is_behind;
        unsigned turn; /* of the tenants */
};

enum { SERVICE_AUDIT_USERS = 64 /* uids that share a limit of lines, by remainder */ };

struct service {
        struct tenant *tenants; /* by their number in quota.h */
        unsigned n_tenants;
        struct store *store;
        struct kio *io;
        struct stages stages; /* off unless an admin wants them */
        struct quotas *quotas;
        struct census *census;
        struct lookups *lookups; /* of all tenants; NULL: there is to be none */
        bool pool_index;         /* tenants are to have one */
        struct hits_pace hits;
        struct bench *bench;
        struct admission *admission; /* of the writes of all tenants */
        struct remote *remote;       /* the shared tier; NULL: there is none */
        uint64_t generation_interval_ms;
        struct list_node audits; /* request/audit.c's: of clients with lines still to be written */
        struct log_ratelimit audit_lines[SERVICE_AUDIT_USERS];
        uint64_t audit_lines_held_back;
        struct recorder *recorder; /* NULL: nothing is recorded */
        struct recorded recorded;
        uint64_t staging_max;
        uint64_t wait_ms; /* for room, where a request names no timeout */
        enum service_gds gds, gds_puts;
        uint64_t batches; /* numbers of them so far, as of store_put.batch */
        bool stopping;
        /* What `client` may see of the daemon. */
        void (*report)(void *userdata, const struct client *client, enum wire_report what,
                       FILE *out);
        void *userdata;
        /* Reads the configuration again and prints what changed, as JSON. 0; 1: it is wrong, and
         * nothing was changed; -ENOMEM; -ESHUTDOWN. */
        int (*reload)(void *userdata, FILE *out);
        /* A namespace was opened, or is removed: for the shared tier. NULL: there is none. */
        void (*namespace_changed)(void *userdata, uint32_t id, bool is_there);
        void *server_userdata; /* of these two */
};

/* What became of a hint to a key that is there: it was given to the eviction policies; or it was
 * final, and another chain goes on from the key; or it was pinned or unpinned, or is not to be, as
 * the tenant has pinned as much as it may, or not yet, as it is not on disk. */
enum {
        HINTS_FINAL,
        HINTS_RETURN,
        HINTS_SHARED,
        HINTS_PINNED,
        HINTS_UNPINNED,
        HINTS_PIN_REFUSED,
        HINTS_PIN_EARLY,
        HINTS
};

/* Where the key of a get was found. LENT: on disk, and the client reads it by itself. */
enum { GOT_MEMORY, GOT_DISK, GOT_LENT, GOT_REMOTE, GOT_MISS, GOT };

/* Counted for all clients of a tenant together. */
struct traffic {
        uint64_t requests[WIRE_OP_END];
        uint64_t keys[WIRE_OP_END];
        uint64_t results[WIRE_STATUS_END];
        uint64_t get_bytes_map, get_bytes_into;
        uint64_t own_hits, own_hits_untold; /* keys that clients got by themselves; of them, those
                                               that were not touched for it */
        uint64_t not_lent[WIRE_LEND_END];   /* GETs that were to lend, and found it on disk */
        uint64_t chains_split;              /* touched in parts */
        uint64_t hints[HINTS];              /* keys of HINTs that were there */
        struct histogram latency[WIRE_OP_END]; /* ns, from when it could be read to its reply */
        /* Likewise, of keys: of GETs up to their result, of PUTs up to their acknowledgement. */
        struct histogram got[GOT], put[CACHE_ACKS];
};

/* The memory that its clients have registered. */
struct registered {
        uint64_t opening; /* REGISTERs under way, of each of which a descriptor is open */
        uint64_t regions;
        uint64_t shared;     /* regions beyond the first of their mapping: request/mapping.h */
        uint64_t ring_bytes; /* with the I/O rings */
        uint64_t refused;    /* regions that the rings do not register, or not all of */
        uint64_t files;      /* regions that are files on a disk, of each of which one is open */
};

struct tenant {
        struct service *service;
        unsigned number;
        uint16_t store_tenant; /* its number in the store */
        struct pool *pool;
        struct readers readers; /* clients that were given its pool */
        struct cache *cache;
        struct leases *leases;
        struct pool_index *pool_index; /* NULL: there is to be none */
        uint64_t retry_ns;             /* request/hits.c's: when what found no room tries again */
        struct request_memory *request_memory; /* the request layer's */
        struct mappings *mappings;             /* likewise */
        struct traffic traffic;
        struct tally tally;
        struct registered registered;
        uint64_t pinned_limit;       /* bytes on disk that its clients may pin */
        uint64_t impossible_tallies; /* readings of a client's page that were cut */
        struct log_ratelimit quota_lines, region_lines;
};

/* Over its pool, which is there; `number` and `store_tenant` are set. The service's store, too. 0,
 * or -ENOMEM, and tenant_close() is due. */
int tenant_open(struct tenant *t, struct service *service, const struct lease_limits *limits);
/* Nothing of it is in flight, or leased. Also frees its pool. */
void tenant_close(struct tenant *t);

const char *tenant_name(const struct tenant *t);
/* The tenant with this number in the store; NULL: it is not configured. */
struct tenant *tenant_in_store(const struct service *service, uint16_t store_tenant);
/* The name of the tenant with this number in the store, configured or not; NULL: the store knows
 * none. */
const char *tenant_name_in_store(const struct service *service, uint16_t store_tenant);
