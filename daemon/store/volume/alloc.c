/* SPDX-License-Identifier: Apache-2.0 */
/* Finds a slot for a chunk: a free slot, a slot in a new segment, or the slot of an evicted chunk.
 *
 * The sources of a slot, in this order: a free slot in a segment of the class, or in a free
 * segment; a segment that is made but not prewritten yet; a new segment, if the limit allows (the
 * put waits for it); the slot of the class's coldest chunk; the coldest segment of another class,
 * which is emptied. After every segment's worth of evictions in a class, the volume compares: if
 * the chunks of some segment of another class are worth less than the chunks that the class could
 * keep with one more segment, the class takes that segment. So classes follow demand, and a few
 * chunks in use do not keep a segment from other classes. A segment that changes its class is
 * emptied in steps (emptying.c); puts that need it wait.
 *
 * A class belongs to one tenant, so a segment never has chunks of two tenants. A tenant at its
 * limit gets a slot only by evicting its own coldest chunks. Below the limits, tenants exchange
 * segments as classes do.
 *
 * A chunk that a client has pinned is called retained, because pins are references by I/O here.
 * While its tenant has anything else to evict, a retained chunk is not evicted, and its segment is
 * not given to another class of that tenant. When another tenant needs a segment, a retained chunk
 * counts by its recency like any other chunk, so that a tenant's pins neither gain nor lose room.
 *
 * Eviction writes nothing. The slot's next entry supersedes the old one, and until then the CRC
 * makes a half overwritten slot a miss. Eviction skips pinned chunks, whose slots have I/O. If a
 * pinned chunk is dropped, its slot and record stay until the last pin ends. */
#include <assert.h>
#include <math.h>
#include <sys/stat.h>

#include "checked.h"
#include "store/volume/internal.h"

enum { MAX_COMPARED = 128 }; /* most segments in one comparison */

uint64_t chunk_offset(const struct volume *v, const struct chunk *c)
{
        return slabs_offset(v->slabs, (struct slab_slot){ .slab = c->slab, .slot = c->slot });
}

unsigned chunk_affinity(const struct volume *v, const struct chunk *c)
{
        uint64_t run = MAX(v->segments[c->slab]->slot_bytes, (uint64_t)KIO_JOINED_MAX);

        return c->slab + (unsigned)(chunk_offset(v, c) / run);
}

/* Returns the usage and limit of the tenant that the slab's class belongs to. */
static struct tenant_room *room_of_slab(struct volume *v, uint32_t slab)
{
        return &v->tenants[slabs_class_group(v->slabs, (unsigned)slabs_slab_class(v->slabs, slab))];
}

void room_return(struct volume *v, struct chunk *c)
{
        struct slab_slot slot = { .slab = c->slab, .slot = c->slot };

        v->segments[c->slab]->pinned -= c->pins > 0;
        room_of_slab(v, c->slab)->bytes -= slabs_slot_bytes(v->slabs, slot);
        slabs_release(v->slabs, slot);
        v->used_slots--;
        c->slab = INDEX_NO_SLAB;
}

static void chunk_release(struct volume *v, uint32_t i)
{
        struct chunk *c = volume_chunk_at(v, i);

        if (c->slab != INDEX_NO_SLAB)
                room_return(v, c);
        index_release(v->index, i);
}

void room_charge(struct volume *v, const struct chunk *c)
{
        struct slab_slot slot = { .slab = c->slab, .slot = c->slot };

        v->used_slots++;
        v->segments[c->slab]->pinned += c->pins > 0;
        room_of_slab(v, c->slab)->bytes += slabs_slot_bytes(v->slabs, slot);
}

void chunk_pin(struct volume *v, uint32_t i)
{
        struct chunk *c = volume_chunk_at(v, i);

        assert(c->pins < CHUNK_PINS_MAX);
        if (c->pins++ == 0 && c->slab != INDEX_NO_SLAB)
                v->segments[c->slab]->pinned++;
        v->pins++;
}

void chunk_unpin(struct volume *v, uint32_t i)
{
        struct chunk *c = volume_chunk_at(v, i);

        assert(c->pins > 0);
        if (--c->pins == 0 && c->slab != INDEX_NO_SLAB)
                v->segments[c->slab]->pinned--;
        v->pins--;
        if (c->pins == 0 && !(c->flags & CHUNK_LINKED))
                chunk_release(v, i);
}

static bool is_retained(const struct volume *v, uint32_t i)
{
        return evict_is_retained(v->evict, i);
}

/* Adds a chunk to the counts of retained chunks, or subtracts it. */
static void count_retained(struct volume *v, const struct chunk *c, bool retained)
{
        uint64_t bytes = slabs_class_bytes(v->slabs, (unsigned)slabs_slab_class(v->slabs, c->slab));

        room_of_slab(v, c->slab)->retained += retained ? bytes : -bytes;
        v->segments[c->slab]->retained += retained ? 1 : UINT32_MAX;
}

void chunk_retain(struct volume *v, uint32_t i, bool retained)
{
        const struct chunk *c = volume_chunk_at(v, i);

        if (is_retained(v, i) == retained)
                return;
        evict_retain(v->evict, i, (uint32_t)slabs_slab_class(v->slabs, c->slab), retained);
        count_retained(v, c, retained);
}

uint64_t volume_tenant_retained(const struct volume *v, uint16_t tenant)
{
        return v->tenants[tenant].retained;
}

/* Removes a chunk from index and eviction order. `id` is the chunk's id for the policy to remember
 * if the chunk is evicted, or 0 if it is dropped. */
static void remove_chunk(struct volume *v, uint32_t i, uint64_t id)
{
        struct chunk *c = volume_chunk_at(v, i);
        struct namespace *ns = namespaces_get(v->namespaces, chunk_namespace(v, c));

        assert(ns);
        if (is_retained(v, i))
                count_retained(v, c, false);
        index_unlink(v->index, i);
        if (id != 0)
                evict_remove_victim(v->evict, i, id);
        else
                evict_remove(v->evict, i);
        table_forget(v->table, i);
        if (c->flags & CHUNK_PENDING) {
                ns->pending--;
        } else {
                ns->seen.chunks--;
                ns->seen.bytes -= c->length;
                v->chunks--;
                v->payload_bytes -= c->length;
                v->displaced -= (c->flags & CHUNK_DISPLACED) != 0;
                c->flags &= ~(unsigned)CHUNK_DISPLACED;
                chunk_notify(v, i, ns, false);
        }
        if (c->pins == 0)
                chunk_release(v, i);
}

void chunk_remove(struct volume *v, uint32_t i)
{
        remove_chunk(v, i, 0);
}

static bool may_evict(void *userdata, uint32_t i)
{
        return volume_chunk_at(userdata, i)->pins == 0;
}

void chunk_evict(struct volume *v, uint32_t i)
{
        const struct chunk *c = volume_chunk_at(v, i);

        v->evicted++;
        v->stats.evictions++;
        v->stats.retained_evictions += is_retained(v, i);
        v->stats.evicted_bytes += c->length;
        histogram_add(&v->evicted_ages, evict_age_ns(v->evict, i));
        evict_note_leaving(v->evict, (unsigned)slabs_slab_class(v->slabs, c->slab));
        v->evicting = true;
        remove_chunk(v, i, evict_id(key_hash(&v->params.secret, chunk_namespace(v, c), &c->key)));
        v->evicting = false;
}

static bool is_same_tenant(const struct volume *v, unsigned class, unsigned other)
{
        return slabs_class_group(v->slabs, class) == slabs_class_group(v->slabs, other);
}

/* Returns whether neither I/O nor a loan uses a chunk of the slab and, if `keep_retained` is set,
 * no chunk of it is retained. */
static bool is_movable(const struct volume *v, uint32_t slab, bool keep_retained)
{
        const struct segment *seg = v->segments[slab];

        return seg->pinned == 0 && (!keep_retained || seg->retained == 0);
}

/* Estimates the worth of a slab's chunks, see evict_worth(), from a sample, which is a different
 * one each time. Retained chunks count like any others, so pins neither raise nor lower the
 * worth. */
static double slab_worth(struct volume *v, uint32_t slab, bool by_recency)
{
        uint32_t slots = slabs_slab_slots(v->slabs, slab), step = slots / EVICT_SLAB_SAMPLE + 1;
        uint32_t sampled = 0;
        double worth = 0;

        for (uint32_t i = v->sample_phase++ % step; i < slots; i += step, sampled++) {
                uint32_t chunk =
                        slabs_owner(v->slabs, (struct slab_slot){ .slab = slab, .slot = i });

                if (chunk != SLAB_NOBODY && evict_contains(v->evict, chunk))
                        worth += evict_worth(v->evict, chunk, by_recency);
        }
        return sampled > 0 ? worth * slots / sampled : 0;
}

/* Returns whether a segment may be taken from its class: its file exists, it has a class other than
 * `except_class`, has at least `min_bytes`, and is not being emptied, synced, prewritten or handed
 * over. */
static bool is_candidate(const struct volume *v, uint32_t slab, int except_class,
                         uint64_t min_bytes)
{
        const struct segment *seg = v->segments[slab];
        int class = slabs_slab_class(v->slabs, slab);

        return class >= 0 && class != except_class && seg->fd >= 0 && seg->bytes >= min_bytes &&
               slab != v->emptying.slab && !seg->syncing && !seg->prewriting && !seg->handing_over;
}

/* Returns the slab that is worth least by recency, among at most MAX_COMPARED candidates without
 * I/O and loans, or UINT32_MAX if there is none. With `of_tenant_only`, all candidates belong to
 * the tenant of `except_class`; with `keep_retained`, candidates of that tenant have no retained
 * chunk. */
static uint32_t find_slab(struct volume *v, int except_class, uint64_t min_bytes,
                          bool of_tenant_only, bool keep_retained)
{
        uint32_t found = UINT32_MAX, n = slabs_added(v->slabs), compared = 0;
        uint32_t first = n > MAX_COMPARED ? v->compare_at : 0;
        double least = INFINITY;

        for (uint32_t k = 0; k < n && compared < MAX_COMPARED; k++) {
                uint32_t i = (first + k) % n;
                bool same;
                double worth;

                v->compare_at = i;
                if (!is_candidate(v, i, except_class, min_bytes))
                        continue;
                same = except_class >= 0 &&
                       is_same_tenant(v, (unsigned)slabs_slab_class(v->slabs, i),
                                      (unsigned)except_class);
                if ((of_tenant_only && !same) || !is_movable(v, i, same && keep_retained))
                        continue;
                compared++;
                worth = slab_worth(v, i, true);
                if (worth < least) {
                        found = i;
                        least = worth;
                }
        }
        return found;
}

/* Begins to empty a slab for a class. With `keep_retained`, retained chunks of the class's own
 * tenant end the emptying. Returns whether the slab is empty now. */
static bool empty_for(struct volume *v, uint32_t slab, unsigned class, bool keep_retained)
{
        bool same = is_same_tenant(v, (unsigned)slabs_slab_class(v->slabs, slab), class);

        return emptying_begin(v, slab, same && keep_retained, EMPTIED_FOR_CLASS);
}

/* Empties the slab that is worth least, for another class. Returns 0 if the slab is empty;
 * ROOM_WAIT while this or another slab is being emptied; STORE_FULL if no slab can be taken. */
static int take_slab(struct volume *v, unsigned class, uint64_t min_bytes, bool of_tenant_only,
                     bool keep_retained)
{
        uint32_t slab;

        if (emptying_is_active(v))
                return ROOM_WAIT;
        slab = find_slab(v, (int)class, min_bytes, of_tenant_only, keep_retained);
        if (slab == UINT32_MAX)
                return STORE_FULL;
        return empty_for(v, slab, class, keep_retained) ? 0 : ROOM_WAIT;
}

static bool is_occupied(const struct segment *seg, uint64_t bytes)
{
        struct stat st;

        return fstat(seg->fd, &st) == 0 && (uint64_t)st.st_blocks * 512 >= bytes;
}

uint32_t room_take_occupied_slab(struct volume *v)
{
        static const struct {
                bool any_usage, any_chunks;
        } passes[] = { { false, false }, { false, true }, { true, true } };
        uint32_t taken = UINT32_MAX;

        for (unsigned p = 0; p < ARRAY_SIZE(passes) && taken == UINT32_MAX; p++) {
                double least = INFINITY;

                for (uint32_t i = 0; i < slabs_added(v->slabs); i++) {
                        const struct segment *seg = v->segments[i];
                        double worth;

                        if (!is_candidate(v, i, -1, 0))
                                continue;
                        worth = slab_worth(v, i, true);
                        if (worth < least && is_movable(v, i, !passes[p].any_chunks) &&
                            is_occupied(seg, passes[p].any_usage ? DISK_PAGE : seg->bytes / 2)) {
                                taken = i;
                                least = worth;
                        }
                }
        }
        if (taken != UINT32_MAX)
                emptying_all(v, taken);
        return taken;
}

uint32_t room_take_slab(struct volume *v)
{
        uint32_t slab;

        if (!emptying_is_active(v)) {
                slab = find_slab(v, -1, 0, false, false);
                if (slab != UINT32_MAX)
                        (void)emptying_begin(v, slab, false, EMPTIED_FOR_RING);
        }
        return emptying_take(v);
}

/* Looks for a segment of another class that is worth less than one more segment would be worth to
 * the victim's class, and begins to empty it; no effect while a segment is being emptied. Returns
 * whether the segment is empty now. Segments of the same tenant are compared by learned worth and
 * costs. Segments of other tenants are compared by recency, because a client's hints must not gain
 * room from other tenants. */
static bool take_cheaper_slab(struct volume *v, unsigned class, uint32_t victim, uint64_t bytes)
{
        uint32_t slots = (uint32_t)(v->segment_bytes / bytes), n = slabs_added(v->slabs);
        double gain[] = { evict_slab_gain(v->evict, victim, slots, false),
                          evict_slab_gain(v->evict, victim, slots, true) };
        uint32_t taken = UINT32_MAX;
        double least = 1;

        if (emptying_is_active(v))
                return false;
        for (uint32_t k = 0; k < MIN(n, (uint32_t)MAX_COMPARED); k++) {
                uint32_t i = v->compare_at = (v->compare_at + 1) % n;
                double part;
                bool same;

                if (!is_candidate(v, i, (int)class, bytes))
                        continue;
                same = is_same_tenant(v, (unsigned)slabs_slab_class(v->slabs, i), class);
                if (gain[!same] <= 0)
                        continue;
                if (!is_movable(v, i, same))
                        continue;
                part = slab_worth(v, i, !same) / gain[!same];
                if (part < least) {
                        taken = i;
                        least = part;
                }
        }
        return taken != UINT32_MAX && empty_for(v, taken, class, true);
}

/* Counts an eviction of the class. Returns whether a segment's worth of evictions has passed since
 * segments were last compared. */
static bool is_time_to_compare(struct volume *v, unsigned class, uint64_t bytes)
{
        if (++v->class_evictions[class] < MAX(v->segment_bytes / bytes, UINT64_C(1)))
                return false;
        v->class_evictions[class] = 0;
        return true;
}

/* Evicts `victim` to free a slot of its class. If the victim lies in the segment that is being
 * emptied, its slot does not become available, and the eviction counts towards the limit of
 * emptying_may_evict(). Returns 0, or ROOM_WAIT if that limit is reached. */
static int evict_of_class(struct volume *v, uint32_t victim)
{
        if (volume_chunk_at(v, victim)->slab == v->emptying.slab && !emptying_may_evict(v))
                return ROOM_WAIT;
        chunk_evict(v, victim);
        return 0;
}

/* Makes room for a class that has only retained chunks left. Empties a segment of another class of
 * the tenant; if there is none, a segment that is worth less than one more segment would be worth
 * to the class; if there is none either, evicts the retained victim, because pins must not gain
 * room from other tenants. */
static int evict_retained_for(struct volume *v, unsigned class, uint32_t victim, uint64_t bytes)
{
        uint32_t *since = &v->since_no_other[class];

        /* the search visits all segments, so after a failure it is repeated only after a segment's
         * worth of evictions */
        if (*since == 0 || *since >= MAX(v->segment_bytes / bytes, UINT64_C(1))) {
                int r = take_slab(v, class, bytes, true, true);

                if (r != STORE_FULL)
                        return r;
                *since = 0;
        }
        ++*since;
        if (is_time_to_compare(v, class, bytes) && take_cheaper_slab(v, class, victim, bytes))
                return 0;
        return evict_of_class(v, victim);
}

/* Frees a slot of the class, or a segment that can be cut for it. Returns 0, ROOM_WAIT or
 * STORE_FULL. */
static int evict_for(struct volume *v, unsigned class)
{
        uint64_t bytes = slabs_class_bytes(v->slabs, class);
        uint32_t victim = evict_victim(v->evict, class, may_evict, v, STORE_MAX_PASSED);
        int r;

        if (victim != EVICT_NONE) {
                if (is_time_to_compare(v, class, bytes) &&
                    take_cheaper_slab(v, class, victim, bytes))
                        return 0;
                return evict_of_class(v, victim);
        }
        victim = evict_retained_victim(v->evict, class, may_evict, v, STORE_MAX_PASSED);
        if (victim != EVICT_NONE)
                return evict_retained_for(v, class, victim, bytes);
        r = take_slab(v, class, bytes, false, true);
        return r == STORE_FULL ? take_slab(v, class, bytes, false, false) : r;
}

typedef uint32_t victim_fn(struct evict *e, uint32_t group,
                           bool (*may_evict)(void *userdata, uint32_t item), void *userdata,
                           uint32_t max_passed);

static uint32_t colder(const struct volume *v, uint32_t one, uint32_t other)
{
        if (one == EVICT_NONE || other == EVICT_NONE)
                return one == EVICT_NONE ? other : one;
        return evict_touched(v->evict, other) < evict_touched(v->evict, one) ? other : one;
}

static uint32_t coldest_of_tenant(struct volume *v, uint16_t tenant, victim_fn *find)
{
        uint32_t victim = EVICT_NONE;

        for (int class = slabs_group_first(v->slabs, tenant); class >= 0;
             class = slabs_group_next(v->slabs, (unsigned)class))
                victim = colder(v, victim,
                                find(v->evict, (uint32_t) class, may_evict, v, STORE_MAX_PASSED));
        return victim;
}

static uint32_t coldest_of_all(struct volume *v, victim_fn *find)
{
        uint32_t victim = EVICT_NONE;

        for (unsigned i = 0; i < slabs_class_count(v->slabs); i++)
                victim = colder(v, victim, find(v->evict, i, may_evict, v, STORE_MAX_PASSED));
        return victim;
}

/* Evicts the tenant's coldest chunk, or a retained one if it has no other. Returns false if none
 * can be evicted. */
static bool evict_of_tenant(struct volume *v, uint16_t tenant)
{
        uint32_t victim = coldest_of_tenant(v, tenant, evict_victim);

        if (victim == EVICT_NONE)
                victim = coldest_of_tenant(v, tenant, evict_retained_victim);
        if (victim == EVICT_NONE)
                return false;
        chunk_evict(v, victim);
        return true;
}

/* Evicts the tenant's chunks until `more` bytes fit into its limit. Returns 0; ROOM_WAIT if this
 * iteration may evict no further chunk; STORE_FULL if no chunk can be evicted now; or
 * STORE_TOO_LARGE if `more` exceeds the limit. */
static int fit_tenant(struct volume *v, uint16_t tenant, uint64_t more)
{
        const struct tenant_room *room = &v->tenants[tenant];

        if (room->limit == 0)
                return 0;
        if (more > room->limit)
                return STORE_TOO_LARGE;
        for (bool is_first = true; room->bytes > room->limit - more; is_first = false) {
                if (!is_first && !emptying_may_evict(v))
                        return ROOM_WAIT;
                if (!evict_of_tenant(v, tenant))
                        return STORE_FULL;
        }
        return 0;
}

void volume_set_tenant_limit(struct volume *v, uint16_t tenant, uint64_t bytes)
{
        const struct tenant_room *room = &v->tenants[tenant];

        v->tenants[tenant].limit = bytes;
        /* fit_tenant() evicts chunks that have I/O now, when the tenant puts its next chunk */
        while (bytes > 0 && room->bytes > bytes && evict_of_tenant(v, tenant))
                ;
}

uint64_t volume_tenant_bytes(const struct volume *v, uint16_t tenant)
{
        return v->tenants[tenant].bytes;
}

/* Evicts one chunk: of this class if possible, and otherwise the coldest of all classes; a retained
 * chunk only if no class has another one. Returns false if no chunk can be evicted. */
bool room_evict_any(struct volume *v, unsigned class)
{
        uint32_t victim = evict_victim(v->evict, class, may_evict, v, STORE_MAX_PASSED);

        if (victim == EVICT_NONE)
                victim = coldest_of_all(v, evict_victim);
        if (victim == EVICT_NONE)
                victim = coldest_of_all(v, evict_retained_victim);
        if (victim == EVICT_NONE)
                return false;
        chunk_evict(v, victim);
        return true;
}

int room_acquire(struct volume *v, uint32_t chunk, unsigned class)
{
        uint64_t bytes = slabs_class_bytes(v->slabs, class);
        struct chunk *c = volume_chunk_at(v, chunk);
        int fits = fit_tenant(v, slabs_class_group(v->slabs, class), bytes);

        if (fits != 0)
                return fits;
        if (v->used_slots >= table_capacity(v->table)) {
                ring_iterate(v);
                if (ring_is_growing(v))
                        return ROOM_WAIT;
                if (!room_evict_any(v, class))
                        return STORE_FULL;
        }
        for (;;) {
                struct slab_slot slot;
                int r = slabs_acquire(v->slabs, class, chunk, &slot);

                if (r == 0) {
                        c->slab = slot.slab & INDEX_NO_SLAB;
                        c->slot = slot.slot & (CHUNK_SLOTS_MAX - 1);
                        room_charge(v, c);
                        segment_note_cut(v, slot.slab);
                        return 0;
                }
                if (r < 0)
                        return r;
                if (segments_add_next(v))
                        continue;
                if (v->formatting ? v->formatting->bytes >= bytes : segments_format_next(v, bytes))
                        return ROOM_WAIT;
                fits = evict_for(v, class);
                if (fits != 0)
                        return fits;
        }
}
