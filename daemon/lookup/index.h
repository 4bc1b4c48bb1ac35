/* SPDX-License-Identifier: Apache-2.0 */
/* The lookup index: for each tenant a table of the keys that can be found, in memory that its
 * clients map and read without a message. proto/lookup.h specifies its content and table.h writes
 * it; this module decides when a table is built, updated and replaced.
 *
 * A tenant has no table until a client asks for one; earlier changes are not recorded. From then on
 * the table is kept up to date, and replaced by a larger or smaller one as needed. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "io/io.h"
#include "cache/pool.h"
#include "store/store.h"

struct lookups;

enum lookup_answer {
        LOOKUP_WAIT = 1, /* complete() follows */
};

struct lookups_tenant {
        uint16_t store_tenant; /* the tenant's number in the store */
        struct pool *pool;
};

struct lookups_params {
        struct store *store; /* must be open */
        struct kio *io;      /* populates the memory of tables */
        const struct lookups_tenant *tenants;
        unsigned n_tenants;
        /* Returns the available memory of the machine in bytes, of which a table takes at most
         * half. If it is NULL, the size of a table has no limit. */
        uint64_t (*available)(void *userdata);
        void *userdata;
        uint32_t min_buckets; /* minimum for a table; 0: LOOKUP_TABLE_MIN_BUCKETS */
};

/* Creates the index of all tenants, without tables. `params` is copied. Returns 0 or -ENOMEM. */
int lookups_new(struct lookups **ret, const struct lookups_params *params);
/* Frees the index, which may be NULL. Clients with a table find it superseded. No request may be
 * waiting and no call may be in flight. */
struct lookups *lookups_free(struct lookups *l);

/* A request that waits for a table. */
struct lookup_wait {
        struct list_node node;  /* used by the index */
        struct list_node owned; /* used by the waiting client, not by the index */
        int result;             /* 0: the table exists; -ESHUTDOWN: lookups_stop(); -ECANCELED:
                                 * lookups_cancel(); another -errno: it could not be built */
        void (*complete)(struct lookup_wait *wait);
};
/* Asks for the table of a tenant. Returns 0 if it exists; LOOKUP_WAIT if it is being built or will
 * be, where building begins at most a second after a failed attempt; or -ESHUTDOWN. */
int lookups_ask(struct lookups *l, unsigned tenant, struct lookup_wait *wait);
/* Returns the descriptor of a tenant's table, which is borrowed and read-only, and its size; or -1
 * if there is no table. */
int lookups_fd(const struct lookups *l, unsigned tenant, uint64_t *ret_bytes);
/* Completes a waiting request with -ECANCELED. */
void lookups_cancel(struct lookup_wait *wait);
/* Completes all waiting requests with -ESHUTDOWN, and refuses later ones. */
void lookups_stop(struct lookups *l);

/* Builds tables for about `slice_ns`. Returns whether there is more to build immediately. */
enum { LOOKUPS_SLICE_NS = 200000 }; /* ns per iteration */
bool lookups_iterate(struct lookups *l, uint64_t now_ns, uint64_t slice_ns);
/* Updates the clocks in the tables. Call it about once a second: clients do not use a table whose
 * clock has stopped. */
void lookups_tick(struct lookups *l, uint64_t now_ns);

struct lookups_stats {
        uint64_t tables, building;    /* tables that exist, and tables that are being built, now */
        uint64_t entries, unplaced;   /* words in the tables; words that found no place */
        uint64_t bytes;               /* size of all tables, including those being built */
        uint64_t buckets, overflowed; /* all buckets; those that an addition has found full */
        uint64_t builds, failed;      /* successful builds; failed builds */
};
void lookups_get_stats(const struct lookups *l, struct lookups_stats *ret);
