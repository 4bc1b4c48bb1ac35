/* SPDX-License-Identifier: Apache-2.0 */
/* The look-up index: per tenant a table of what can be found, in memory that its clients map and
 * read without asking anybody. lookup.h of proto says what is in it, table.h how it is
 * written; this is when.
 *
 * There is none until a client of the tenant asks, and until then nothing is told of what comes and
 * goes. From then on it is kept up, and replaced by a larger or smaller one as needed. Loop thread.
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
        /* Memory of the machine that is to be had now, bytes; a table takes no more than half of
         * it. NULL: nobody knows. */
        uint64_t (*available)(void *userdata);
        void *userdata;
        uint32_t min_buckets; /* of a table; 0: LOOKUP_TABLE_MIN_BUCKETS */
};

int lookups_new(struct lookups **ret, const struct lookups_params *params);
/* Clients that have a table find it superseded. Nobody may be waiting. NULL is fine. */
struct lookups *lookups_free(struct lookups *l);

struct lookup_wait {
        struct list_node node;  /* the index's */
        struct list_node owned; /* whoever's who asks */
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
/* Completes all with -ESHUTDOWN; from now on nobody may ask. */
void lookups_stop(struct lookups *l);

/* Builds for about so long, if something is to be built. True: there is more to do at once. */
enum { LOOKUPS_SLICE_NS = 200000 }; /* of an iteration */
bool lookups_iterate(struct lookups *l, uint64_t now_ns, uint64_t slice_ns);
/* Writes the clocks: about once a second, since a table whose clock stands is believed by nobody.
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
