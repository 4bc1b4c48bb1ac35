/* SPDX-License-Identifier: Apache-2.0 */
/* Implements sets.h. Evictions are announced from within the search for room, where neither tier
 * may be changed. So a watch only queues the key, and the end of the iteration looks up the other
 * chunks of the set and has the eviction policy demote them. No chunk is removed here: leases, pins
 * and writes keep their meaning, and a wrong decision costs a miss at most. When the missing chunk
 * is stored again, the other chunks are promoted before it gets a slot, because one of them would
 * otherwise be evicted for it.
 *
 * An iteration makes about STEPS lookups for the queue and as many for sets_expect(). When the
 * lookups for sets_expect() are used up, the key is queued as well, and the set may lose a chunk
 * before its entry is handled. If the queue is full, the key is dropped and counted, and the other
 * chunks of its set are evicted by their age. The names of a namespace's siblings are resolved once
 * for each version of the list of namespaces. */
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
        QUEUE = 4096, /* most queued events */
        STEPS = 512, /* lookups per iteration for the queue, and as many for sets_expect(); the last
                        set may exceed them */
        /* Namespaces whose siblings are remembered: the rows have room for as many as a store may
         * have, and a namespace's row is its id modulo ROWS. Ids ascend, so a row has more
         * namespaces than WAYS only after many were removed. */
        ROWS = 1024,
        WAYS = 4,
        NAME_BYTES = 256,
        /* Owners of namespaces share the lookups of sets_expect() and the queue by a hash of the
         * owner; owners with the same hash share one part. */
        OWNERS_LOG2 = 6, /* owners have 1 << OWNERS_LOG2 parts */
        OWNER_STEPS = STEPS / 4,
        OWNER_QUEUE = QUEUE / 4 * 3,
};

/* The other namespaces of a shard's set. */
struct family {
        uint64_t version; /* store_namespaces_version() at the time of the lookup */
        uint32_t owner;
        uint32_t n;
        uint32_t siblings[SETS_MOST_SHARDS - 1];
};

/* WAYS namespaces whose ids are equal modulo ROWS, and their families. */
struct row {
        uint32_t of[WAYS]; /* ids of the namespaces; 0: the entry is unused */
        uint32_t replaced; /* number of entries that were replaced by another namespace's */
        struct family families[WAYS];
};

/* A chunk that was evicted or, if `is_expected`, is being stored or read into the tier. */
struct event {
        struct key key;
        uint32_t namespace_id;
        uint8_t tier;
        uint8_t owner; /* index into sets.owners */
        bool is_expected;
};

struct sets {
        struct sets_params params;
        bool is_watching;
        struct pool_watch pool_watch;
        struct store_watch store_watch;
        struct sets_stats stats;
        struct row rows[ROWS];
        uint32_t expected; /* lookups that sets_expect() made in this iteration */
        struct {
                uint32_t expected, queued;
        } owners[1 << OWNERS_LOG2]; /* lookups and queued events of the owners with this hash */
        uint32_t first, n;          /* position and length of the queue */
        struct event queue[QUEUE];
};

DEFINE_CLEANUP(struct sets *, sets_free);

/* --- namespaces that hold the shards of one set --- */

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

/* Returns where `text` begins if [from, end) ends with it and has at least one character before it;
 * otherwise NULL. */
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
 * that no user decides about another user's chunks by choosing a name. Returns the number of
 * lookups. */
static uint32_t find_siblings(const struct sets *s, uint32_t namespace_id, struct family *f)
{
        const struct store *store = s->params.store;
        const struct store_namespace *ns = store_namespace_get(store, namespace_id), *other;
        struct sets_name parts;

        f->owner = ns ? ns->owner : 0;
        if (!ns || ns->tenant != s->params.tenant || !sets_parse_name(ns->name, &parts))
                return 1;
        for (unsigned i = 0; i < parts.shards; i++) {
                char name[NAME_BYTES];
                int length =
                        snprintf(name, sizeof(name), "%.*s/s%u.of.%u%s", (int)parts.base_length,
                                 ns->name, i, parts.shards, parts.variant);

                if (i == parts.shard || length >= (int)sizeof(name))
                        continue;
                other = store_namespace_find(store, s->params.tenant, name, (size_t)length);
                if (other && other->owner == ns->owner)
                        f->siblings[f->n++] = other->id;
        }
        return parts.shards;
}

/* Returns the family of a namespace, or NULL if it is not remembered. */
static const struct family *known_family(const struct sets *s, uint32_t namespace_id)
{
        const struct row *row = &s->rows[namespace_id % ROWS];

        for (unsigned way = 0; way < WAYS; way++)
                if (row->of[way] == namespace_id)
                        return row->families[way].version ==
                                               store_namespaces_version(s->params.store)
                                       ? &row->families[way]
                                       : NULL;
        return NULL;
}

/* Returns the entry of a row for a namespace: its own, an unused one, or the next to be
 * replaced. */
static unsigned entry_for(struct row *row, uint32_t namespace_id)
{
        for (unsigned way = 0; way < WAYS; way++)
                if (row->of[way] == namespace_id || row->of[way] == 0)
                        return way;
        return row->replaced++ % WAYS;
}

/* Returns the family of a namespace, and adds the lookups that it took to *steps. */
static const struct family *family_of(struct sets *s, uint32_t namespace_id, uint32_t *steps)
{
        const struct family *known = known_family(s, namespace_id);
        struct row *row = &s->rows[namespace_id % ROWS];
        unsigned way;

        if (known)
                return known;
        way = entry_for(row, namespace_id);
        row->of[way] = namespace_id;
        row->families[way] =
                (struct family){ .version = store_namespaces_version(s->params.store) };
        *steps += find_siblings(s, namespace_id, &row->families[way]);
        s->stats.resolved++;
        return &row->families[way];
}

/* Returns the number of a namespace's owner in sets.owners. `f`: its family, or NULL if that is not
 * remembered. */
static uint8_t owner_of(const struct sets *s, uint32_t namespace_id, const struct family *f)
{
        const struct store_namespace *ns =
                f ? NULL : store_namespace_get(s->params.store, namespace_id);
        uint32_t owner = f ? f->owner : ns ? ns->owner : 0;

        return (uint8_t)(owner * UINT32_C(0x9e3779b1) >> (32 - OWNERS_LOG2));
}

/* --- evictions and puts of chunks, and their effect on the sets --- */

/* Queues an event, unless the namespace is known to have no siblings. If the queue, or the owner's
 * part of it, is full, counts the event as missed instead. A namespace whose family is not
 * remembered is resolved at the event's turn. */
static void queue_event(struct sets *s, unsigned tier, uint32_t namespace_id, const struct key *key,
                        bool is_expected)
{
        const struct family *f = known_family(s, namespace_id);
        uint8_t owner;

        if (f && f->n == 0)
                return;
        owner = owner_of(s, namespace_id, f);
        if (s->n == QUEUE || s->owners[owner].queued == OWNER_QUEUE) {
                s->stats.missed[tier]++;
                return;
        }
        s->owners[owner].queued++;
        s->queue[(s->first + s->n++) % QUEUE] = (struct event){ .key = *key,
                                                                .namespace_id = namespace_id,
                                                                .tier = (uint8_t)tier,
                                                                .owner = owner,
                                                                .is_expected = is_expected };
}

static void on_pool_evicted(void *userdata, uint32_t chunk)
{
        struct sets *s = userdata;
        const struct pool_chunk *c = pool_chunk(s->params.pool, chunk);

        queue_event(s, SETS_MEMORY, c->namespace_id, &c->key, false);
}

static void on_store_changed(void *userdata, const struct store_change *change)
{
        struct sets *s = userdata;

        if (change->is_evicted && change->tenant == s->params.tenant)
                queue_event(s, SETS_DISK, change->namespace_id, change->key, false);
}

/* The place of a chunk in one tier. */
struct place {
        uint32_t chunk;       /* used for SETS_MEMORY */
        struct store_ref ref; /* used for SETS_DISK */
};

static bool find(const struct sets *s, unsigned tier, uint32_t namespace_id, const struct key *key,
                 struct place *ret)
{
        const struct sets_params *p = &s->params;
        uint64_t hash = store_hash(p->store, namespace_id, key);

        if (tier == SETS_DISK)
                return store_find(p->store, namespace_id, key, hash, &ret->ref, NULL) == 0;
        ret->chunk = pool_find(p->pool, namespace_id, key, hash);
        return ret->chunk != POOL_NONE;
}

/* Returns whether the tier has the chunk again, or is being given it. The pool finds a chunk from
 * the beginning of its fill; the store finds a chunk only after its write, so is_being_written() is
 * asked. */
static bool is_back(const struct sets *s, const struct event *e)
{
        const struct sets_params *p = &s->params;
        struct place at;

        return find(s, e->tier, e->namespace_id, &e->key, &at) ||
               (e->tier == SETS_DISK && p->is_being_written &&
                p->is_being_written(p->userdata, e->namespace_id, &e->key));
}

static bool demote(struct sets *s, unsigned tier, const struct place *at)
{
        return tier == SETS_DISK ? store_demote(s->params.store, at->ref)
                                 : pool_demote(s->params.pool, at->chunk);
}

static bool promote(struct sets *s, unsigned tier, const struct place *at)
{
        return tier == SETS_DISK ? store_promote(s->params.store, at->ref)
                                 : pool_promote(s->params.pool, at->chunk);
}

static bool has_demoted(const struct sets *s, unsigned tier)
{
        return (tier == SETS_DISK ? store_demoted(s->params.store) : pool_demoted(s->params.pool)) >
               0;
}

/* Demotes the other chunks of the set, unless the evicted chunk is stored again already. */
static void follow(struct sets *s, const struct event *e, const struct family *f)
{
        struct place at;

        if (is_back(s, e))
                return;
        for (uint32_t i = 0; i < f->n; i++)
                if (find(s, e->tier, f->siblings[i], &e->key, &at))
                        s->stats.demoted[e->tier] += demote(s, e->tier, &at);
}

static void promote_others(struct sets *s, unsigned tier, const struct key *key,
                           const struct family *f)
{
        struct place at;

        for (uint32_t i = 0; i < f->n; i++)
                if (find(s, tier, f->siblings[i], key, &at))
                        s->stats.promoted[tier] += promote(s, tier, &at);
}

void sets_iterate(struct sets *s)
{
        for (unsigned i = 0; s->expected > 0 && i < ARRAY_SIZE(s->owners); i++)
                s->owners[i].expected = 0;
        s->expected = 0;
        for (uint32_t steps = 0; s->n > 0 && steps < STEPS; s->n--) {
                const struct event *e = &s->queue[s->first];
                const struct family *f = family_of(s, e->namespace_id, &steps);

                s->first = (s->first + 1) % QUEUE;
                s->owners[e->owner].queued--;
                if (!e->is_expected)
                        follow(s, e, f);
                else if (has_demoted(s, e->tier))
                        promote_others(s, e->tier, &e->key, f);
                steps += f->n + 1;
        }
}

void sets_expect(struct sets *s, unsigned tier, uint32_t namespace_id, const struct key *key)
{
        const struct family *f;
        uint32_t steps = 0;
        uint8_t owner;

        if (!has_demoted(s, tier))
                return;
        f = known_family(s, namespace_id);
        owner = owner_of(s, namespace_id, f);
        if (s->expected >= STEPS || s->owners[owner].expected >= OWNER_STEPS) {
                queue_event(s, tier, namespace_id, key, true);
                return;
        }
        if (!f)
                f = family_of(s, namespace_id, &steps);
        promote_others(s, tier, key, f);
        steps += f->n;
        s->expected += steps;
        s->owners[owner].expected += steps;
}

bool sets_has_work(const struct sets *s)
{
        return s->n > 0;
}

const struct sets_stats *sets_get_stats(const struct sets *s)
{
        return &s->stats;
}

int sets_new(struct sets **ret, const struct sets_params *params)
{
        _cleanup_(sets_freep) struct sets *s = calloc(1, sizeof(*s));

        if (!s)
                return -ENOMEM;
        s->params = *params;
        s->pool_watch = (struct pool_watch){ .evicted = on_pool_evicted, .userdata = s };
        s->store_watch = (struct store_watch){ .changed = on_store_changed, .userdata = s };
        pool_add_watch(params->pool, &s->pool_watch);
        store_add_watch(params->store, &s->store_watch);
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
