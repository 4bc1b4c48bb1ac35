/* SPDX-License-Identifier: Apache-2.0 */
/* Sets: the chunks that an engine of several GPUs stores under one key, each in the namespace of
 * its shard. A set with a missing shard is a miss, so when one of its chunks is evicted from a
 * tier, the set's other chunks become the next victims of that tier. When the missing chunk is
 * stored again, they are ordinary chunks again. cache/README.md says which namespaces belong
 * together. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct key;
struct pool;
struct store;
struct sets;

enum { SETS_MEMORY, SETS_DISK, SETS_TIERS };

enum { SETS_MOST_SHARDS = 64 };

struct sets_stats {
        uint64_t demoted[SETS_TIERS];  /* chunks that became next victims */
        uint64_t promoted[SETS_TIERS]; /* demoted chunks that became ordinary again, because the
                                          missing shard is being stored or read */
        uint64_t missed[SETS_TIERS];   /* evictions and puts whose sets were not looked up, because
                                        * the queue of these events, or the owner's part of it, was
                                        * full */
        uint64_t resolved;             /* namespaces whose siblings were looked up by name */
};

struct sets_params {
        struct pool *pool;
        struct store *store;
        uint16_t tenant;
        /* Returns whether the chunk is being written to the store, which finds it only after the
         * write. NULL if no chunk ever is. */
        bool (*is_being_written)(void *userdata, uint32_t namespace_id, const struct key *key);
        void *userdata;
};

/* Creates the sets, which watch the pool and the store. The caller ends the watches with
 * sets_unwatch() before it closes either of these. Returns 0 or -ENOMEM. */
int sets_new(struct sets **ret, const struct sets_params *params);
/* Ends the watches. Idempotent; NULL is allowed. */
void sets_unwatch(struct sets *s);
struct sets *sets_free(struct sets *s);

/* Promotes the other chunks of the set in a tier that is about to get this chunk. If the lookups of
 * this iteration are used up, sets_iterate() promotes them later. */
void sets_expect(struct sets *s, unsigned tier, uint32_t namespace_id, const struct key *key);
/* Handles the queued events in a bounded number of steps: demotes the other chunks of sets from
 * which a chunk was evicted, and promotes those that sets_expect() has left. Call it once an
 * iteration. */
void sets_iterate(struct sets *s);
/* Returns whether events are queued for the next sets_iterate(). */
bool sets_has_work(const struct sets *s);
const struct sets_stats *sets_get_stats(const struct sets *s);

/* The name of a shard's namespace: "BASE/sSHARD.of.SHARDS", followed by "/vN" for a variant. */
struct sets_name {
        uint32_t base_length;
        unsigned shard, shards;
        const char *variant; /* in the name; "" if there is none */
};

/* Splits a name. Returns false if it is not that of a shard, because it has another form, or a
 * number is out of range or has a leading zero. */
bool sets_parse_name(const char *name, struct sets_name *ret);
