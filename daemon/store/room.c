/* SPDX-License-Identifier: Apache-2.0 */
/* Room for a chunk: a free slot, a new segment, or somebody's who must leave.
 *
 * In this order: a free slot of the class, in a segment that it has or that is free; a segment that
 * is made but not prewritten yet; a new one, if the limit allows (the put waits for it); the
 * class's own coldest chunk; the coldest segment of another class, emptied. Every segment's worth
 * of evictions a class asks whether some segment of another class is colder, as a whole, than what
 * it evicts of its own, and then takes that: so classes follow what is in demand.
 *
 * Eviction writes nothing: the slot's next entry supersedes, and until then the CRC makes a slot
 * that was half overwritten a miss. A chunk with I/O on its slot is pinned: it is passed over by
 * eviction; when it is dropped its slot and record stay until the last pin goes. */
#include <assert.h>

#include "checked.h"
#include "store/internal.h"

uint64_t chunk_offset(const struct store *s, const struct chunk *c)
{
        return slabs_offset(s->slabs, (struct slab_slot){ .slab = c->slab, .slot = c->slot });
}

static void chunk_release(struct store *s, uint32_t i)
{
        struct chunk *c = store_chunk_at(s, i);

        if (c->slab != INDEX_NO_SLAB) {
                slabs_release(s->slabs, (struct slab_slot){ .slab = c->slab, .slot = c->slot });
                s->used_slots--;
        }
        index_release(s->index, i);
}

void chunk_pin(struct store *s, uint32_t i)
{
        struct chunk *c = store_chunk_at(s, i);

        assert(c->pins < UINT16_MAX);
        c->pins++;
        s->pins++;
}

void chunk_unpin(struct store *s, uint32_t i)
{
        struct chunk *c = store_chunk_at(s, i);

        assert(c->pins > 0);
        c->pins--;
        s->pins--;
        if (c->pins == 0 && !(c->flags & CHUNK_LINKED))
                chunk_release(s, i);
}

void chunk_remove(struct store *s, uint32_t i)
{
        struct chunk *c = store_chunk_at(s, i);

        index_unlink(s->index, i);
        evict_remove(s->evict, i);
        c->table_position = TABLE_NOWHERE;
        if (!(c->flags & CHUNK_PENDING)) {
                struct namespace *ns = namespaces_get(s->namespaces, c->namespace_id);

                assert(ns);
                ns->seen.chunks--;
                ns->seen.bytes -= c->length;
                s->chunks--;
                s->payload_bytes -= c->length;
        }
        if (c->pins == 0)
                chunk_release(s, i);
}

static bool may_evict(void *userdata, uint32_t i)
{
        return store_chunk_at(userdata, i)->pins == 0;
}

static void evict_chunk(struct store *s, uint32_t i)
{
        s->stats.evictions++;
        s->stats.evicted_bytes += store_chunk_at(s, i)->length;
        chunk_remove(s, i);
}

/* Time of the last touch of anything in the slab, or UINT64_MAX if there is I/O in it, or if it is
 * not colder. */
static uint64_t slab_touched(struct store *s, uint32_t slab, uint64_t colder_than)
{
        uint32_t slots = slabs_slab_slots(s->slabs, slab);
        uint64_t touched = 0;

        for (uint32_t i = 0; i < slots; i++) {
                uint32_t chunk =
                        slabs_owner(s->slabs, (struct slab_slot){ .slab = slab, .slot = i });

                if (chunk == SLAB_NOBODY)
                        continue;
                if (store_chunk_at(s, chunk)->pins > 0)
                        return UINT64_MAX;
                touched = MAX(touched, evict_touched(s->evict, chunk));
                if (touched >= colder_than)
                        return UINT64_MAX;
        }
        return touched;
}

uint32_t room_take_slab(struct store *s, int except_class, uint64_t min_bytes, uint64_t colder_than)
{
        uint32_t taken = UINT32_MAX;

        for (uint32_t i = 0; i < slabs_added(s->slabs); i++) {
                const struct segment *seg = s->segments[i];
                int class = slabs_slab_class(s->slabs, i);
                uint64_t touched;

                if (class < 0 || class == except_class || seg->fd < 0 || seg->bytes < min_bytes ||
                    seg->syncing || seg->prewriting)
                        continue;
                touched = slab_touched(s, i, colder_than);
                if (touched < colder_than) {
                        taken = i;
                        colder_than = touched;
                }
        }
        if (taken == UINT32_MAX)
                return taken;
        for (uint32_t i = 0, slots = slabs_slab_slots(s->slabs, taken); i < slots; i++) {
                uint32_t chunk =
                        slabs_owner(s->slabs, (struct slab_slot){ .slab = taken, .slot = i });

                if (chunk != SLAB_NOBODY)
                        evict_chunk(s, chunk);
        }
        slabs_reclaim(s->slabs, taken);
        s->stats.slab_moves++;
        return taken;
}

/* Frees a slot of the class, or a segment that can be cut for it. */
static bool evict_for(struct store *s, unsigned class)
{
        uint64_t bytes = slabs_class_bytes(s->slabs, class);
        uint32_t victim = evict_victim(s->evict, class, may_evict, s, STORE_MAX_PASSED);

        if (victim == EVICT_NONE)
                return room_take_slab(s, (int)class, bytes, UINT64_MAX) != UINT32_MAX;
        if (++s->class_evictions[class] >= MAX(s->segment_bytes / bytes, UINT64_C(1))) {
                s->class_evictions[class] = 0;
                if (room_take_slab(s, (int)class, bytes, evict_touched(s->evict, victim)) !=
                    UINT32_MAX)
                        return true;
        }
        evict_chunk(s, victim);
        return true;
}

/* One chunk less, of this class or else of the coldest. */
bool room_evict_any(struct store *s, unsigned class)
{
        uint32_t victim = evict_victim(s->evict, class, may_evict, s, STORE_MAX_PASSED);
        uint64_t coldest = UINT64_MAX;

        if (victim != EVICT_NONE) {
                evict_chunk(s, victim);
                return true;
        }
        for (unsigned i = 0; i < slabs_class_count(s->slabs); i++) {
                uint32_t other = evict_victim(s->evict, i, may_evict, s, STORE_MAX_PASSED);

                if (other != EVICT_NONE && evict_touched(s->evict, other) < coldest) {
                        coldest = evict_touched(s->evict, other);
                        victim = other;
                }
        }
        if (victim == EVICT_NONE)
                return false;
        evict_chunk(s, victim);
        return true;
}

int room_acquire(struct store *s, uint32_t chunk, unsigned class)
{
        uint64_t bytes = slabs_class_bytes(s->slabs, class);
        struct chunk *c = store_chunk_at(s, chunk);

        if (s->used_slots >= table_capacity(s->table)) {
                ring_turn(s);
                if (ring_is_growing(s))
                        return ROOM_WAIT;
                if (!room_evict_any(s, class))
                        return STORE_FULL;
        }
        for (;;) {
                struct slab_slot slot;
                int r = slabs_acquire(s->slabs, class, chunk, &slot);

                if (r == 0) {
                        c->slab = (uint16_t)slot.slab;
                        c->slot = slot.slot;
                        s->used_slots++;
                        segment_note_cut(s, slot.slab);
                        return 0;
                }
                if (r < 0)
                        return r;
                if (segments_add_next(s))
                        continue;
                if (s->formatting ? s->formatting->bytes >= bytes : segments_format_next(s, bytes))
                        return ROOM_WAIT;
                if (!evict_for(s, class))
                        return STORE_FULL;
        }
}
