/* SPDX-License-Identifier: Apache-2.0 */
/* A tenant at run time: its pool, its cache and leases over the pool, and the counters of its
 * clients' traffic. quota.h has the tenant's limits, under the same number. The service holds the
 * parts that all tenants share. The server owns the tenants and the service. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/histogram.h"
#include "base/log.h"
#include "base/stages.h"
#include "cache/cache.h"
#include "cache/lease.h"
#include "evict/announced.h"
#include "lookup/counters.h"
#include "tenant/namespace-counts.h"
#include "tenant/quota.h"
#include "tenant/readers.h"
#include "wire.h"

struct admission;
struct bench;
struct recorder;
struct client;
struct events;
struct lookups;
struct mappings;
struct pool_index;
struct remote;
struct request_memory;

/* io.gds decides to which clients chunks are lent; io.gds_puts decides from whose files puts are
 * read. */
enum service_gds { SERVICE_GDS_OFF, SERVICE_GDS_AUTO, SERVICE_GDS_ON };

/* Totals of all recordings of this daemon (request/recorder.h) since startup. */
struct recorded {
        uint64_t recordings, keys, lost; /* lost: keys that were not recorded */
};

struct hits_pace { /* The rate at which request/hits.c touches chunks that clients used without a
                    * message, over all tenants. */
        uint64_t at_ns;   /* time at which `touches` last grew */
        uint32_t touches; /* touches that may be made now; the number grows with time */
        uint32_t words;   /* words read from clients' rings in this iteration */
        bool is_behind;   /* touches may still be made, and the last step stopped at its limit */
        unsigned turn;    /* number of the tenant whose hits are read next */
};

enum {
        SERVICE_AUDIT_USERS = 64 /* number of rate limits for audit lines; a user has the one at the
                                  * index of its uid modulo this number */
};

/* The parts that serve the clients of all tenants. The service owns none of them. */
struct service {
        struct tenant *tenants; /* indexed by their number in quota.h */
        unsigned n_tenants;
        struct store *store;
        struct kio *io;
        struct stages stages; /* off unless an admin enables them */
        struct quotas *quotas;
        struct namespace_counts *namespace_counts;
        struct lookups *lookups; /* lookup indexes of all tenants; NULL if disabled */
        struct events *events;   /* rings of all tenants; NULL if disabled */
        bool pool_index;         /* each tenant has a pool index */
        struct hits_pace hits;
        struct bench *bench;
        struct admission *admission;     /* admits the writes of all tenants */
        struct remote *remote;           /* the shared tier; NULL if there is none */
        uint64_t generation_interval_ms; /* remote.generation_interval: for so long other hosts may
                                          * serve chunks that were purged on the shared tier */
        struct list_node audits; /* used by request/audit.c: clients with audit lines to write */
        struct log_ratelimit audit_lines[SERVICE_AUDIT_USERS];
        uint64_t audit_lines_held_back; /* audit lines that these rate limits suppressed */
        struct recorder *recorder;      /* NULL if nothing is being recorded */
        struct recorded recorded;
        uint64_t staging_max; /* memory.staging: most bytes of a staging area */
        uint64_t wait_ms;     /* the wait for room if a request names no timeout */
        enum service_gds gds, gds_puts;
        uint64_t batches;       /* number of batches so far; see store_put.batch */
        uint64_t announcements; /* number of announced returns so far; see evict_promise.number */
        bool stopping;
        /* Prints the part of a report that `client` may see. */
        void (*report)(void *userdata, const struct client *client, enum wire_report what,
                       FILE *out);
        void *userdata;
        /* Reads the configuration again and prints the changes as JSON. Returns 0; 1 if the
         * configuration is invalid and nothing was changed; -ENOMEM; -ESHUTDOWN. */
        int (*reload)(void *userdata, FILE *out);
        /* Reports to the shared tier that a namespace was opened or removed; NULL without shared
         * tier. */
        void (*namespace_changed)(void *userdata, uint32_t id, bool is_there);
        void *server_userdata; /* userdata of reload() and namespace_changed() */
};

/* The outcome of a hint for an existing key: passed to the eviction policies (FINAL, RETURN,
 * TOOL_CALL, TURN_END); not applied, because another chain continues from the key (SHARED) or the
 * user's announcements do not come true (DISBELIEVED); pinned or unpinned; not pinned, because the
 * tenant's limit is reached (PIN_REFUSED) or the chunk is not on disk yet (PIN_EARLY); dropped from
 * memory (DEMOTED), or not, because it is in use or not on disk (DEMOTE_BUSY); or offered to the
 * shared tier. */
enum {
        HINTS_FINAL,
        HINTS_RETURN,
        HINTS_SHARED,
        HINTS_PINNED,
        HINTS_UNPINNED,
        HINTS_PIN_REFUSED,
        HINTS_PIN_EARLY,
        HINTS_TOOL_CALL,
        HINTS_TURN_END,
        HINTS_DISBELIEVED,
        HINTS_DEMOTED,
        HINTS_DEMOTE_BUSY,
        HINTS_OFFERED,
        HINTS
};

/* The tier in which a get found its key. LENT: on disk, and the client reads the chunk directly. */
enum { GOT_MEMORY, GOT_DISK, GOT_LENT, GOT_REMOTE, GOT_MISS, GOT };

/* Counters of all clients of a tenant. */
struct traffic {
        uint64_t requests[WIRE_OP_END];
        uint64_t keys[WIRE_OP_END];
        uint64_t results[WIRE_STATUS_END];
        uint64_t get_bytes_map, get_bytes_into;
        uint64_t own_hits;        /* keys that clients got through the pool index */
        uint64_t own_hits_untold; /* the part of own_hits that clients only counted, so that the
                                   * chunks could not be touched */
        uint64_t not_lent[WIRE_LEND_END]; /* keys of GETs that asked for a loan of a chunk on disk
                                           * and got none, by reason */
        uint64_t lent_files;              /* descriptors of data files sent to clients so far */
        uint64_t chains_split;            /* chains that were touched in parts, because they were
                                           * too long or memory for their keys was short */
        uint64_t hints[HINTS];            /* keys of HINTs that exist, by effect */
        struct histogram
                latency[WIRE_OP_END]; /* ns from when a message was readable to its reply */
        /* Latencies of keys: for GETs up to the result, for PUTs up to the acknowledgement. */
        struct histogram got[GOT], put[CACHE_ACKS];
};

/* The memory and files that the tenant's clients have registered. */
struct registered {
        uint64_t opening; /* REGISTERs in progress, each with an open descriptor */
        uint64_t regions;
        uint64_t shared;     /* regions that share a mapping with an earlier region:
                              * request/mapping.h */
        uint64_t ring_bytes; /* bytes registered with the I/O rings */
        uint64_t huge_bytes; /* bytes of the registered memory that lie in huge pages */
        uint64_t refused;    /* regions that a ring refused, at least in part */
        uint64_t files;      /* regions that are files on a disk, each with an open descriptor */
};

struct tenant {
        struct service *service;
        unsigned number;
        uint16_t store_tenant; /* the tenant's number in the store */
        struct pool *pool;
        struct readers readers; /* clients that received the pool's descriptor */
        struct cache *cache;
        struct leases *leases;
        struct pool_index *pool_index; /* NULL if disabled */
        struct announced *announced;   /* for each user of the tenant, the share of announced
                                        * returns that came true (evict/announced.h); used by
                                        * request/ */
        uint64_t retry_ns; /* used by request/hits.c: time at which requests that found no room are
                            * tried again */
        struct request_memory *request_memory; /* free blocks for batches and chains
                                                * (request/memory.h) */
        struct mappings *mappings;             /* mappings of registered memory
                                                * (request/mapping.h) */
        struct traffic traffic;
        struct lookup_counters lookup_counters;
        struct registered registered;
        uint64_t pinned_limit;       /* limit of the bytes on disk that the tenant's clients pin */
        uint64_t impossible_tallies; /* readings of a client's counters of lookups or hits that had
                                      * grown impossibly, and were reduced */
        struct log_ratelimit quota_lines, region_lines; /* limit the log lines about refused
                                                         * charges, and about memory that the I/O
                                                         * rings refused */
};

/* Opens a tenant. The caller has set its pool, `number` and `store_tenant`, and opened the
 * service's store. Returns 0 or -ENOMEM; call tenant_close() in either case. */
int tenant_open(struct tenant *t, struct service *service, const struct lease_limits *limits);
/* Closes a tenant and frees its pool. No request may be in flight and no chunk leased. */
void tenant_close(struct tenant *t);

const char *tenant_name(const struct tenant *t);
/* Returns the tenant with this number in the store, or NULL if none is configured. */
struct tenant *tenant_in_store(const struct service *service, uint16_t store_tenant);
/* Returns the name of the tenant with this number in the store, configured or not, or NULL if the
 * store does not know the number. */
const char *tenant_name_in_store(const struct service *service, uint16_t store_tenant);
