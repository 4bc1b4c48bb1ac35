/* SPDX-License-Identifier: Apache-2.0 */
/* The lookup index: per tenant a table of the keys that can be found, in memory that its clients
 * map and read without a message. proto/lookup.h has its content, table.h how it is written; this
 * module decides when a table is built, updated and replaced.
 *
 * A tenant has no table until a client asks for it; changes before that are not recorded. From then
 * on the table is kept up to date, and replaced by a larger or smaller one as needed. Loop thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "io/io.h"
#include "cache/pool.h"
#include "store/store.h"

struct lookups;

enum lookup_answer {
        LOOKUP_WAIT = 1, /* complete() will follow */
};

struct lookups_tenant {
        uint16_t store_tenant; /* its number in the store */
        struct pool *pool;
};

struct lookups_params {
        struct store *store; /* open */
        struct kio *io;      /* its workers make the memory of tables */
        const struct lookups_tenant *tenants;
        unsigned n_tenants;
        /* Memory of the machine that is available now, bytes; a table takes no more than half of
         * it. NULL: unknown. */
        uint64_t (*available)(void *userdata);
        void *userdata;
        uint32_t min_buckets; /* of a table; 0: LOOKUP_TABLE_MIN_BUCKETS */
};

int lookups_new(struct lookups **ret, const struct lookups_params *params);
/* Clients that have a table find it superseded. No request may be waiting. NULL is fine. */
struct lookups *lookups_free(struct lookups *l);

struct lookup_wait {
        struct list_node node;  /* the index's */
        struct list_node owned; /* the waiting client's */
        int result;             /* 0: it is there; -errno: it could not be made; -ECANCELED */
        void (*complete)(struct lookup_wait *wait);
};
/* The tenant wants a table. 0: lookups_fd() gives it; LOOKUP_WAIT: it is being built, or will be, a
 * second after an attempt that failed; -ESHUTDOWN. */
int lookups_ask(struct lookups *l, unsigned tenant, struct lookup_wait *wait);
/* Of the table that is there: borrowed, read-only. -1: there is none. */
int lookups_fd(const struct lookups *l, unsigned tenant, uint64_t *ret_bytes);
/* Completes it with -ECANCELED; it must be waiting. */
void lookups_cancel(struct lookup_wait *wait);
/* Completes all with -ESHUTDOWN; the caller may add no request from now on. */
void lookups_stop(struct lookups *l);

/* Builds for about so long, if something is to be built. True: there is more to do at once. */
enum { LOOKUPS_SLICE_NS = 200000 }; /* of an iteration */
bool lookups_iterate(struct lookups *l, uint64_t now_ns, uint64_t slice_ns);
/* Writes the clocks. Call it about once a second: clients do not use a table whose clock stands.
 */
void lookups_tick(struct lookups *l, uint64_t now_ns);

struct lookups_stats {
        uint64_t tables, building;    /* now */
        uint64_t entries, unplaced;   /* words of the tables, and those that found no place */
        uint64_t bytes;               /* of all tables, those that are being built included */
        uint64_t buckets, overflowed; /* all, and those that were full once */
        uint64_t builds, failed;      /* ended: well, and for want of memory */
};
void lookups_get_stats(const struct lookups *l, struct lookups_stats *ret);
