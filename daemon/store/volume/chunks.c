/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on a volume's chunks, except on their bytes (put.c, get.c): find, touch, drop, sync,
 * list, walk, and verify.
 *
 * A chunk whose put is in flight is not found, listed or dropped. Lists and walks proceed by record
 * number, and visit a bounded number of records per call. Loop thread. */
#include "checked.h"
#include "store/volume/internal.h"
#include "store/volume/scrub.h"

enum { LIST_RECORDS = 16 };

uint64_t volume_max_chunk(const struct volume *v)
{
        return v->max_chunk;
}

struct store_chunk volume_describe(const struct volume *v, const struct chunk *c)
{
        return (struct store_chunk){
                .key = c->key,
                .namespace_id = chunk_namespace(v, c),
                .length = c->length,
                .crc = c->crc,
                .created_ms = c->created_ms,
        };
}

int volume_find(const struct volume *v, uint32_t namespace_id, const struct key *key, uint64_t hash,
                struct store_ref *ret_ref, struct store_chunk *ret_chunk)
{
        uint32_t i = index_find(v->index, namespace_id, key, hash);
        const struct chunk *c;

        if (i == INDEX_NONE)
                return STORE_MISS;
        c = volume_chunk_at(v, i);
        if (c->flags & CHUNK_PENDING || sweep_is_dead(v, i))
                return STORE_MISS;
        if (ret_ref)
                *ret_ref = volume_ref(v, i);
        if (ret_chunk)
                *ret_chunk = volume_describe(v, c);
        return 0;
}

bool volume_is_at(const struct volume *v, struct store_ref ref, uint32_t namespace_id,
                  const struct key *key)
{
        const struct chunk *c = volume_chunk_of(v, ref);

        return c && (c->flags & (CHUNK_LINKED | CHUNK_PENDING)) == CHUNK_LINKED &&
               chunk_namespace(v, c) == namespace_id && key_equal(&c->key, key) &&
               !sweep_is_dead(v, ref.index);
}

bool volume_has(const struct volume *v, uint32_t namespace_id, const struct key *key, uint64_t hash)
{
        uint32_t i = index_find(v->index, namespace_id, key, hash);

        return i != INDEX_NONE && !sweep_is_dead(v, i);
}

uint64_t volume_displaced(const struct volume *v)
{
        return v->displaced;
}

void volume_warm(const struct volume *v, uint64_t hash, unsigned step)
{
        index_warm(v->index, hash, step);
}

void volume_warm_touch(const struct volume *v, struct store_ref ref, unsigned step)
{
        if (ref.index >= index_high(v->index))
                return;
        if (step == 0)
                chunk_warm(volume_chunk_at(v, ref.index));
        evict_warm(v->evict, ref.index, step);
}

/* Returns the group of the chunk's slot class in the eviction order, or -1 if the ref is stale or
 * the chunk has no slot. */
static int group_of(const struct volume *v, struct store_ref ref)
{
        const struct chunk *c = volume_chunk_of(v, ref);

        return c && c->flags & CHUNK_LINKED && c->slab != INDEX_NO_SLAB
                       ? slabs_slab_class(v->slabs, c->slab)
                       : -1;
}

void volume_touch(struct volume *v, struct store_ref ref, uint32_t use)
{
        int group = group_of(v, ref);

        if (group >= 0)
                evict_touch(v->evict, ref.index, (uint32_t)group, use);
}

uint8_t volume_chain_gap(const struct volume *v, struct store_ref ref, uint32_t use,
                         struct evict_return *ret)
{
        return group_of(v, ref) >= 0 ? evict_chain_gap(v->evict, ref.index, use, ret)
                                     : EVICT_NO_GAP;
}

uint8_t volume_gap(const struct volume *v, struct store_ref ref)
{
        return group_of(v, ref) >= 0 ? evict_gap(v->evict, ref.index) : EVICT_NO_GAP;
}

void volume_set_gap(struct volume *v, struct store_ref ref, uint8_t gap)
{
        if (gap != EVICT_NO_GAP && group_of(v, ref) >= 0)
                evict_set_gap(v->evict, ref.index, gap);
}

int volume_turn(const struct volume *v, struct store_ref ref, uint32_t use)
{
        return group_of(v, ref) >= 0 ? (int)evict_turn(v->evict, ref.index, use) : -1;
}

void volume_chain(struct volume *v, struct store_ref ref, const struct store_ref *parent,
                  uint32_t use, unsigned turn, bool is_end)
{
        int group = group_of(v, ref);

        if (group < 0)
                return;
        evict_set_turn(v->evict, ref.index, (uint32_t)group, use, turn, is_end);
        if (parent && parent->index != ref.index && group_of(v, *parent) >= 0)
                evict_link(v->evict, ref.index, parent->index);
}

bool volume_explain(const struct volume *v, struct store_ref ref, struct evict_standing *ret)
{
        int group = group_of(v, ref);

        *ret = (struct evict_standing){ 0 };
        if (group < 0)
                return false;
        evict_explain(v->evict, ref.index, (uint32_t)group, ret);
        return volume_chunk_at(v, ref.index)->pins > 0;
}

unsigned volume_cost(const struct volume *v, struct store_ref ref)
{
        return group_of(v, ref) >= 0 ? evict_cost(v->evict, ref.index) : EVICT_COST_UNKNOWN;
}

bool volume_hint(struct volume *v, struct store_ref ref, enum evict_hint hint)
{
        return group_of(v, ref) >= 0 ? evict_hint(v->evict, ref.index, hint) : true;
}

bool volume_demote(struct volume *v, struct store_ref ref)
{
        int group = group_of(v, ref);

        return group >= 0 && evict_demote(v->evict, ref.index, (uint32_t)group);
}

bool volume_promote(struct volume *v, struct store_ref ref)
{
        int group = group_of(v, ref);

        return group >= 0 && evict_promote(v->evict, ref.index, (uint32_t)group);
}

uint32_t volume_demoted(const struct volume *v)
{
        return v->evict ? evict_demoted(v->evict) : 0;
}

/* Refuses a chunk whose put is in flight: such a chunk may still move to another segment or lose
 * its slot, and the counts of retained chunks are kept by segment. */
int volume_retain(struct volume *v, struct store_ref ref, bool retained)
{
        if (group_of(v, ref) < 0 || volume_chunk_at(v, ref.index)->flags & CHUNK_PENDING)
                return STORE_MISS;
        chunk_retain(v, ref.index, retained);
        return 0;
}

bool volume_is_retained(const struct volume *v, struct store_ref ref, uint16_t *ret_tenant,
                        uint32_t *ret_bytes)
{
        int group = group_of(v, ref);

        *ret_tenant = group < 0 ? 0 : slabs_class_group(v->slabs, (unsigned)group);
        *ret_bytes = group < 0 ? 0 : (uint32_t)slabs_class_bytes(v->slabs, (unsigned)group);
        return group >= 0 && evict_is_retained(v->evict, ref.index);
}

/* Queues the tombstone before it removes the chunk, so that a chunk is kept if it cannot be dropped
 * permanently. */
int volume_drop(struct volume *v, uint32_t namespace_id, const struct key *key, uint64_t hash,
                bool even_if_missing)
{
        uint32_t i = index_find(v->index, namespace_id, key, hash);
        bool has = i != INDEX_NONE && !(volume_chunk_at(v, i)->flags & CHUNK_PENDING) &&
                   !sweep_is_dead(v, i);
        int r;

        if (!has && (!even_if_missing || !volume_may_have(v, namespace_id, key, hash)))
                return STORE_MISS;
        r = tombstone_queue(v, namespace_id, key);
        if (r < 0)
                return r;
        if (has) {
                chunk_remove(v, i);
                v->stats.drops++;
        } else if (i != INDEX_NONE && sweep_is_kept(v, i)) {
                /* gives the put in flight a sequence above that of the tombstone, unless the put
                 * was purged */
                volume_chunk_at(v, i)->seq = ++v->seq;
        }
        volume_nudge(v);
        return has ? 0 : STORE_MISS;
}

bool volume_has_lost_removals(const struct volume *v)
{
        return v->lost_puts || (v->open && namespaces_purge_is_lost(v->namespaces));
}

/* Evicted chunks are not in the index, but may be on disk, so a single eviction makes every key
 * possible. So does a purge that could not be written. */
bool volume_may_have(const struct volume *v, uint32_t namespace_id, const struct key *key,
                     uint64_t hash)
{
        return !v->open || v->evicted > 0 || volume_has_lost_removals(v) ||
               volume_has(v, namespace_id, key, hash);
}

void volume_sync(struct volume *v, struct store_put *req)
{
        list_init(&req->node);
        v->requests++;
        sync_want_all(v);
        if (list_empty(&v->dirty_segments) && !table_is_dirty(v->table) && v->sync_outstanding == 0)
                put_finish(v, req, v->sync_failed || !v->dir->can_sync ? STORE_NOT_DURABLE : 0);
        else
                list_append(&v->sync_waiting, &req->node);
        volume_nudge(v);
}

bool volume_is_in_doubt(const struct volume *v, const struct store_ref *ref)
{
        uint64_t doubt = v->dir->superblock.doubt_seq;

        if (!ref || doubt == 0 || ref->index >= index_high(v->index) ||
            volume_ref(v, ref->index).generation != ref->generation)
                return doubt > 0;
        return volume_chunk_at(v, ref->index)->seq <= doubt;
}

unsigned volume_list(const struct volume *v, uint32_t namespace_id, uint64_t *cursor,
                     struct store_chunk *ret, unsigned max)
{
        uint64_t i = *cursor, high = index_high(v->index);
        uint64_t end = MIN(high, i < high ? i + (uint64_t)max * LIST_RECORDS : high);
        const struct namespace *ns = namespaces_get(v->namespaces, namespace_id);
        unsigned n = 0;

        if (!ns || ns->seen.chunks == 0)
                i = end = high;
        for (; i < end && n < max; i++) {
                const struct chunk *c = volume_chunk_at(v, (uint32_t)i);

                if ((c->flags & (CHUNK_LINKED | CHUNK_PENDING)) == CHUNK_LINKED &&
                    chunk_namespace(v, c) == namespace_id && !sweep_is_dead(v, (uint32_t)i))
                        ret[n++] = volume_describe(v, c);
        }
        *cursor = i < high ? i : 0;
        return n;
}

void volume_set_watches(struct volume *v, const struct list_node *watches)
{
        v->watches = watches;
}

bool volume_walk(const struct volume *v, uint32_t *i, unsigned max_records,
                 void (*each)(void *userdata, uint32_t namespace_id, const struct key *key,
                              uint32_t length),
                 void *userdata)
{
        uint32_t high = index_high(v->index);

        for (; *i < high && max_records > 0; max_records--, ++*i) {
                const struct chunk *c = volume_chunk_at(v, *i);
                struct key key;

                if ((c->flags & (CHUNK_LINKED | CHUNK_PENDING)) != CHUNK_LINKED)
                        continue;
                key = c->key;
                each(userdata, chunk_namespace(v, c), &key, c->length);
        }
        return *i < high;
}

bool volume_remembers(const struct volume *v, uint64_t hash)
{
        return evict_remembers(v->evict, evict_id(hash));
}

uint8_t volume_remembered_gap(const struct volume *v, uint64_t hash, struct evict_return *ret)
{
        return evict_remembered_gap(v->evict, evict_id(hash), ret);
}

void volume_admit_all(struct volume *v, bool all)
{
        if (v->evict)
                evict_admit_all(v->evict, all);
}

/* A volume that was not opened has no chunks and is not used again, so it is skipped. */
int volume_set_policy(struct volume *v, const char *policy)
{
        return v->evict ? evict_switch(&v->evict, policy) : 0;
}

/* --- verification --- */

void volume_set_scrub(struct volume *v, const struct store_scrub *scrub)
{
        v->params.scrub = *scrub;
        if (v->scrub)
                scrub_set(v->scrub, scrub);
}

int volume_verify(struct volume *v, struct store_verify *req)
{
        list_init(&req->node);
        return v->open ? scrub_verify(v->scrub, req) : STORE_BYPASSED;
}
