/* SPDX-License-Identifier: Apache-2.0 */
/* The chunks that an earlier process left in the pool's memory: the slabs are cut as before, and
 * the chunks keep their slots and their places in the eviction order.
 *
 * Such a chunk is unverified until pool_verify(). Its slot is taken, and it may be evicted, dropped
 * and purged like any other chunk. No request finds it, and a new chunk of the same key replaces
 * it. Loop thread. All parameters come from a file and are checked against the slabs. */
#include "cache/pool-internal.h"

#include <assert.h>
#include <errno.h>

uint32_t pool_find_any(const struct pool *p, uint32_t namespace_id, const struct key *key,
                       uint64_t hash)
{
        uint32_t chunk = pool_table_find(p, namespace_id, key, hash);

        return chunk != POOL_NONE && !pool_is_dead(p, &p->chunks[chunk]) ? chunk : POOL_NONE;
}

void pool_drop_unverified(struct pool *p, uint32_t namespace_id, const struct key *key,
                          uint64_t hash)
{
        uint32_t chunk = pool_table_find(p, namespace_id, key, hash);

        if (chunk != POOL_NONE && p->chunks[chunk].flags & POOL_UNVERIFIED)
                pool_drop(p, chunk);
}

uint64_t pool_slab_slot_bytes(const struct pool *p, uint32_t slab)
{
        int class = slabs_slab_class(p->slabs, slab);

        return class < 0 ? 0 : slabs_class_bytes(p->slabs, (unsigned)class);
}

uint32_t pool_open_slabs(const struct pool *p)
{
        return slabs_added(p->slabs);
}

uint32_t pool_at_slot(const struct pool *p, uint32_t slab, uint32_t slot)
{
        uint32_t owner = slabs_owner(p->slabs, (struct slab_slot){ slab, slot });

        return owner == SLAB_NOBODY ? POOL_NONE : owner;
}

int pool_keep_slab(struct pool *p, uint64_t slot_bytes)
{
        uint32_t slab = slabs_added(p->slabs);
        int class, r;

        if (slab >= p->n_slabs || slot_bytes > p->slab_bytes || slot_bytes % SLAB_GRAIN != 0)
                return -EINVAL;
        r = slabs_add(p->slabs, p->slab_bytes);
        if (r < 0 || slot_bytes == 0)
                return r;
        class = slabs_class_restore(p->slabs, 0, slot_bytes);
        return class < 0 ? class : slabs_assign(p->slabs, slab, (unsigned)class);
}

/* Takes a free record and assigns it the slot. Returns 0, -EINVAL if the slot does not exist, or
 * -EEXIST if it is taken. */
static int occupy(struct pool *p, struct slab_slot slot, uint32_t *ret_chunk)
{
        uint32_t chunk;
        int r;

        if (slot.slot >= slabs_slab_slots(p->slabs, slot.slab))
                return -EINVAL;
        if (slabs_owner(p->slabs, slot) != SLAB_NOBODY)
                return -EEXIST;
        chunk = pool_take_record(p);
        r = slabs_occupy(p->slabs, slot, chunk);
        assert(r == 0);
        p->stats.used_bytes += slabs_slot_bytes(p->slabs, slot);
        *ret_chunk = chunk;
        return 0;
}

int pool_keep_chunk(struct pool *p, const struct pool_kept *kept, uint32_t *ret_chunk)
{
        struct slab_slot slot = { kept->slab, kept->slot };
        int class = slabs_slab_class(p->slabs, kept->slab), r;
        struct evict_record record = kept->record;
        struct pool_chunk *c;
        uint32_t chunk;

        if (class < 0 || kept->length == 0 ||
            kept->length > slabs_class_bytes(p->slabs, (unsigned)class))
                return -EINVAL;
        if (pool_table_find(p, kept->namespace_id, &kept->key, kept->hash) != POOL_NONE)
                return -EEXIST;
        r = occupy(p, slot, &chunk);
        if (r < 0)
                return r;
        c = &p->chunks[chunk];
        *c = (struct pool_chunk){
                .key = kept->key,
                .hash = kept->hash,
                .namespace_id = kept->namespace_id,
                .length = kept->length,
                .crc = kept->crc,
                .slab = (uint16_t)slot.slab,
                .slot = (uint16_t)slot.slot,
                .generation = c->generation,
                .born = p->n_purges,
                .state = POOL_RESIDENT,
                .flags = POOL_UNVERIFIED | (kept->flags & (POOL_STORED | POOL_REFUSED)),
                .user = kept->user,
                .created_ms = kept->created_ms,
                .ref = kept->ref,
        };
        list_init(&c->waiters);
        pool_table_insert(p, chunk);
        p->stats.unverified++;
        evict_insert_known(p->evict, chunk, (uint32_t) class, c->length, evict_id(c->hash),
                           EVICT_NO_USE, EVICT_PLACE_UNKNOWN);
        record.id = evict_id(c->hash);
        (void)evict_restore_item(p->evict, chunk, (uint32_t) class, &record);
        *ret_chunk = chunk;
        return 0;
}

int pool_keep_slot(struct pool *p, uint32_t slab, uint32_t slot, uint32_t *ret_chunk)
{
        struct pool_chunk *c;
        int r = occupy(p, (struct slab_slot){ slab, slot }, ret_chunk);

        if (r < 0)
                return r;
        c = &p->chunks[*ret_chunk];
        *c = (struct pool_chunk){
                .slab = (uint16_t)slab,
                .slot = (uint16_t)slot,
                .generation = c->generation,
                .state = POOL_RESIDENT,
                .flags = POOL_DROPPED,
        };
        list_init(&c->waiters);
        pool_lease(p, *ret_chunk);
        return 0;
}

void pool_each_kept(const struct pool *p,
                    void (*each)(void *userdata, const struct pool_kept *kept), void *userdata)
{
        for (uint32_t i = 0; i < p->high_water; i++) {
                const struct pool_chunk *c = &p->chunks[i];
                struct pool_kept kept = {
                        .key = c->key,
                        .hash = c->hash,
                        .namespace_id = c->namespace_id,
                        .length = c->length,
                        .crc = c->crc,
                        .slab = c->slab,
                        .slot = c->slot,
                        .flags = c->flags,
                        .user = c->user,
                        .created_ms = c->created_ms,
                };

                if (c->state != POOL_RESIDENT || c->flags & POOL_DROPPED || pool_is_dead(p, c))
                        continue;
                evict_save_item(p->evict, i, evict_id(c->hash), &kept.record);
                each(userdata, &kept);
        }
}

bool pool_is_unverified(const struct pool *p, uint32_t chunk, uint32_t generation)
{
        const struct pool_chunk *c = pool_chunk(p, chunk);

        return c->generation == generation && (c->flags & POOL_UNVERIFIED) && !pool_is_dead(p, c);
}

void pool_verify(struct pool *p, uint32_t chunk)
{
        struct pool_chunk *c = pool_chunk(p, chunk);

        assert(c->flags & POOL_UNVERIFIED);
        if (pool_is_dead(p, c)) {
                pool_drop(p, chunk);
                return;
        }
        c->flags &= ~(uint32_t)POOL_UNVERIFIED;
        p->stats.unverified--;
        pool_notify(p, chunk, true);
}
