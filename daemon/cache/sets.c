/* SPDX-License-Identifier: Apache-2.0 */
/* Implements sets.h. Evictions are announced from within the search for room, where neither tier
 * may be changed. So a watch only queues the key, and the end of the iteration looks up the other
 * chunks of the set and has the eviction policy demote them. No chunk is removed here: leases, pins
 * and writes keep their meaning, and a wrong decision costs a miss at most. They are promoted
 * before the missing chunk gets its slot, or that slot would be one of theirs.
 *
 * An iteration makes STEPS lookups. A queue that is full drops the key, which is counted; the other
 * chunks then leave by their age. The names of a namespace's siblings are resolved once for each
 * version of the list of namespaces. */
#include "cache/sets.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/pool.h"
#include "checked.h"
#include "cleanup.h"
#include "store/store.h"

enum {
        QUEUE = 4096,
        STEPS = 512,
        FAMILIES = 64, /* namespaces whose siblings are remembered, by remainder */
        NAME_BYTES = 256,
};

/* The other namespaces of a shard's set. */
struct family {
        uint64_t version; /* store_namespaces_version() at the time of the lookup */
        uint32_t of;      /* 0: the entry is unused */
        uint32_t n;
        uint32_t siblings[SETS_MOST_SHARDS - 1];
};

struct eviction {
        struct key key;
        uint32_t namespace_id;
        uint8_t tier;
};

struct sets {
        struct pool *pool;
        struct store *store;
        uint16_t tenant;
        bool is_watching;
        struct pool_watch pool_watch;
        struct store_watch store_watch;
        struct sets_stats stats;
        struct family families[FAMILIES];
        uint32_t first, n; /* position and length of the queue */
        struct eviction queue[QUEUE];
};

DEFINE_CLEANUP(struct sets *, sets_free);

/* --- which namespaces belong together --- */

/* Reads the decimal number that ends before `end`, back to `from`. Returns its first character, or
 * NULL if there is no number, it has a leading zero or more than two digits. */
static const char *number_before(const char *from, const char *end, unsigned *ret)
{
        const char *at = end;

        while (at > from && at[-1] >= '0' && at[-1] <= '9')
                at--;
        if (at == end || end - at > 2 || (*at == '0' && end - at > 1))
                return NULL;
        *ret = 0;
        for (const char *digit = at; digit < end; digit++)
                *ret = *ret * 10 + (unsigned)(*digit - '0');
        return at;
}

/* Returns where `text` begins if it ends before `end`, or NULL. */
static const char *text_before(const char *from, const char *end, const char *text)
{
        size_t length = strlen(text);

        return (size_t)(end - from) > length && memcmp(end - length, text, length) == 0
                       ? end - length
                       : NULL;
}

/* Returns where the variant "/vN" of a name begins, or its end if it has none. */
static const char *without_variant(const char *name)
{
        const char *end = name + strlen(name), *at;
        unsigned variant;

        at = number_before(name, end, &variant);
        at = at ? text_before(name, at, "/v") : NULL;
        return at ? at : end;
}

bool sets_parse_name(const char *name, struct sets_name *ret)
{
        const char *end = without_variant(name), *at;

        ret->variant = end;
        at = number_before(name, end, &ret->shards);
        at = at ? text_before(name, at, ".of.") : NULL;
        at = at ? number_before(name, at, &ret->shard) : NULL;
        at = at ? text_before(name, at, "/s") : NULL;
        if (!at || ret->shards < 2 || ret->shards > SETS_MOST_SHARDS || ret->shard >= ret->shards)
                return false;
        ret->base_length = (uint32_t)(at - name);
        return true;
}

/* Fills in the siblings of a namespace that exist. Only namespaces of one owner belong together, so
 * that no user decides about another user's chunks by choosing a name. */
static void find_siblings(const struct sets *s, struct family *f)
{
        const struct store_namespace *ns = store_namespace_get(s->store, f->of), *other;
        struct sets_name parts;

        if (!ns || ns->tenant != s->tenant || !sets_parse_name(ns->name, &parts))
                return;
        for (unsigned i = 0; i < parts.shards; i++) {
                char name[NAME_BYTES];
                int length =
                        snprintf(name, sizeof(name), "%.*s/s%u.of.%u%s", (int)parts.base_length,
                                 ns->name, i, parts.shards, parts.variant);

                if (i == parts.shard || length >= (int)sizeof(name))
                        continue;
                other = store_namespace_find(s->store, s->tenant, name, (size_t)length);
                if (other && other->owner == ns->owner)
                        f->siblings[f->n++] = other->id;
        }
}

static const struct family *family_of(struct sets *s, uint32_t namespace_id)
{
        uint64_t version = store_namespaces_version(s->store);
        struct family *f = &s->families[namespace_id % FAMILIES];

        if (f->of == namespace_id && f->version == version)
                return f;
        *f = (struct family){ .version = version, .of = namespace_id };
        find_siblings(s, f);
        return f;
}

/* --- evictions --- */

static void queue_eviction(struct sets *s, unsigned tier, uint32_t namespace_id,
                           const struct key *key)
{
        if (family_of(s, namespace_id)->n == 0)
                return;
        if (s->n == QUEUE) {
                s->stats.missed[tier]++;
                return;
        }
        s->queue[(s->first + s->n++) % QUEUE] = (struct eviction){ .key = *key,
                                                                   .namespace_id = namespace_id,
                                                                   .tier = (uint8_t)tier };
}

static void on_pool_evicted(void *userdata, uint32_t chunk)
{
        struct sets *s = userdata;
        const struct pool_chunk *c = pool_chunk(s->pool, chunk);

        queue_eviction(s, SETS_MEMORY, c->namespace_id, &c->key);
}

static void on_store_changed(void *userdata, const struct store_change *change)
{
        struct sets *s = userdata;

        if (change->is_evicted && change->tenant == s->tenant)
                queue_eviction(s, SETS_DISK, change->namespace_id, change->key);
}

/* A chunk of one tier. */
struct place {
        uint32_t chunk;       /* in memory */
        struct store_ref ref; /* on disk */
};

static bool find(const struct sets *s, unsigned tier, uint32_t namespace_id, const struct key *key,
                 struct place *ret)
{
        uint64_t hash = store_hash(s->store, namespace_id, key);

        if (tier == SETS_DISK)
                return store_find(s->store, namespace_id, key, hash, &ret->ref, NULL) == 0;
        ret->chunk = pool_find(s->pool, namespace_id, key, hash);
        return ret->chunk != POOL_NONE;
}

static bool demote(struct sets *s, unsigned tier, const struct place *at)
{
        return tier == SETS_DISK ? store_demote(s->store, at->ref)
                                 : pool_demote(s->pool, at->chunk);
}

static bool promote(struct sets *s, unsigned tier, const struct place *at)
{
        return tier == SETS_DISK ? store_promote(s->store, at->ref)
                                 : pool_promote(s->pool, at->chunk);
}

/* Demotes the other chunks of the set, unless the evicted one is back already. */
static void follow(struct sets *s, const struct eviction *e, const struct family *f)
{
        struct place at;

        if (find(s, e->tier, e->namespace_id, &e->key, &at))
                return;
        for (uint32_t i = 0; i < f->n; i++)
                if (find(s, e->tier, f->siblings[i], &e->key, &at))
                        s->stats.demoted[e->tier] += demote(s, e->tier, &at);
}

void sets_iterate(struct sets *s)
{
        for (uint32_t steps = 0; s->n > 0 && steps < STEPS; s->n--) {
                const struct eviction *e = &s->queue[s->first];
                const struct family *f = family_of(s, e->namespace_id);

                s->first = (s->first + 1) % QUEUE;
                follow(s, e, f);
                steps += f->n + 1;
        }
}

void sets_expect(struct sets *s, unsigned tier, uint32_t namespace_id, const struct key *key)
{
        const struct family *f;
        struct place at;

        if ((tier == SETS_DISK ? store_demoted(s->store) : pool_demoted(s->pool)) == 0)
                return;
        f = family_of(s, namespace_id);
        for (uint32_t i = 0; i < f->n; i++)
                if (find(s, tier, f->siblings[i], key, &at))
                        s->stats.promoted[tier] += promote(s, tier, &at);
}

bool sets_has_work(const struct sets *s)
{
        return s->n > 0;
}

const struct sets_stats *sets_get_stats(const struct sets *s)
{
        return &s->stats;
}

int sets_new(struct sets **ret, struct pool *pool, struct store *store, uint16_t tenant)
{
        _cleanup_(sets_freep) struct sets *s = calloc(1, sizeof(*s));

        if (!s)
                return -ENOMEM;
        s->pool = pool;
        s->store = store;
        s->tenant = tenant;
        s->pool_watch = (struct pool_watch){ .evicted = on_pool_evicted, .userdata = s };
        s->store_watch = (struct store_watch){ .changed = on_store_changed, .userdata = s };
        pool_add_watch(pool, &s->pool_watch);
        store_add_watch(store, &s->store_watch);
        s->is_watching = true;
        *ret = TAKE_PTR(s);
        return 0;
}

void sets_unwatch(struct sets *s)
{
        if (!s || !s->is_watching)
                return;
        pool_remove_watch(&s->pool_watch);
        store_remove_watch(&s->store_watch);
        s->is_watching = false;
}

struct sets *sets_free(struct sets *s)
{
        sets_unwatch(s);
        free(s);
        return NULL;
}
