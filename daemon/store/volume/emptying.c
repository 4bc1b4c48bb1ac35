/* SPDX-License-Identifier: Apache-2.0 */
/* Empties a segment in steps, for another class, for the ring's growth, or at once for a file
 * system without room.
 *
 * A segment of 1 GiB, the default size, has up to 262,144 chunks, and each takes over a microsecond
 * to evict. So no new chunk gets a slot in the segment, and each iteration of the volume evicts up
 * to STORE_EMPTIED of its chunks; a chunk can be read until it is evicted. One segment is emptied
 * at a time, and puts that need it wait. Only a segment without pinned chunks is chosen. A chunk
 * that is pinned later, by a get, a loan or a check, is skipped. After all others are evicted, the
 * emptying waits LINGER_NS for the pinned chunks, and then gives up: the segment stays with its
 * class. If retained chunks must be kept, it also gives up when a client pins one of the chunks
 * (HINT with PIN).
 *
 * Eviction writes nothing, so startup after a crash may find the evicted chunks again, as after any
 * eviction. A volume that stops empties at once, because it has no further iterations. Loop thread;
 * cannot fail. */
#include <assert.h>

#include "base/clock.h"
#include "checked.h"
#include "store/volume/internal.h"

enum { MAX_VISITED = 4096 };               /* most slots that an iteration visits */
#define LINGER_NS (UINT64_C(50) * 1000000) /* longest wait for pinned chunks */

void emptying_init(struct volume *v)
{
        v->emptying = (struct emptying){ .slab = EMPTYING_NONE, .left = STORE_EMPTIED };
}

bool emptying_is_active(const struct volume *v)
{
        return v->emptying.slab != EMPTYING_NONE;
}

/* Ends the emptying: frees the slab, or lets its class use it again. */
static void end(struct volume *v, bool is_empty)
{
        uint32_t slab = v->emptying.slab;

        v->emptying.slab = EMPTYING_NONE;
        if (is_empty) {
                slabs_reclaim(v->slabs, slab, NULL, NULL);
                v->stats.slab_moves++;
        } else {
                slabs_reopen_slab(v->slabs, slab);
        }
}

bool emptying_may_evict(struct volume *v)
{
        if (v->stopping)
                return true;
        if (v->emptying.left == 0) {
                v->emptying.is_short = true;
                return false;
        }
        v->emptying.left--;
        return true;
}

/* Evicts chunks of the slab from the current slot on, as many as this iteration may. Returns false
 * if a chunk must be kept because it is retained. */
static bool evict_some(struct volume *v)
{
        struct emptying *e = &v->emptying;
        uint32_t slots = slabs_slab_slots(v->slabs, e->slab);
        uint32_t last = v->stopping ? slots : MIN(slots, e->at + MAX_VISITED);

        for (; e->at < last; e->at++) {
                uint32_t i = slabs_owner(v->slabs, (struct slab_slot){ e->slab, e->at });

                if (i == SLAB_NOBODY || volume_chunk_at(v, i)->pins > 0)
                        continue;
                if (e->keep_retained && evict_is_retained(v->evict, i))
                        return false;
                if (!emptying_may_evict(v))
                        return true;
                chunk_evict(v, i);
        }
        return true;
}

/* Returns to the first slot, because some chunks were in use, or the file is being synced. Returns
 * false if the wait for that to end is over. */
static bool begin_again(struct volume *v)
{
        struct emptying *e = &v->emptying;
        uint64_t now = clock_mono_ns();

        if (e->until_ns == 0)
                e->until_ns = now + LINGER_NS;
        e->at = 0;
        return now < e->until_ns && !v->stopping;
}

/* Continues the emptying. Returns whether the slab is empty and has been freed. */
static bool step(struct volume *v)
{
        struct emptying *e = &v->emptying;
        const struct segment *seg = v->segments[e->slab];

        if (!evict_some(v)) {
                end(v, false);
                return false;
        }
        if (e->at < slabs_slab_slots(v->slabs, e->slab))
                return false;
        if (slabs_slab_used(v->slabs, e->slab) > 0 || seg->syncing) {
                if (!begin_again(v))
                        end(v, false);
                return false;
        }
        if (e->purpose == EMPTIED_FOR_RING) {
                e->is_done = true;
                return false;
        }
        end(v, true);
        return true;
}

bool emptying_begin(struct volume *v, uint32_t slab, bool keep_retained,
                    enum emptying_purpose purpose)
{
        struct emptying *e = &v->emptying;

        assert(!emptying_is_active(v));
        *e = (struct emptying){
                .slab = slab,
                .keep_retained = keep_retained,
                .purpose = purpose,
                .left = e->left,
                .is_short = e->is_short,
        };
        slabs_close_slab(v->slabs, slab);
        return step(v);
}

uint32_t emptying_take(struct volume *v)
{
        uint32_t slab = v->emptying.slab;

        if (!emptying_is_active(v) || !v->emptying.is_done)
                return EMPTYING_NONE;
        end(v, true);
        return slab;
}

static void evict_owner(void *userdata, uint32_t i)
{
        chunk_evict(userdata, i);
}

void emptying_all(struct volume *v, uint32_t slab)
{
        slabs_reclaim(v->slabs, slab, evict_owner, v);
        v->stats.slab_moves++;
}

void emptying_iterate(struct volume *v)
{
        struct emptying *e = &v->emptying;

        e->left = STORE_EMPTIED;
        e->is_short = false;
        if (!emptying_is_active(v))
                return;
        if (v->bypassed || e->is_done)
                end(v, e->is_done); /* the ring has not taken the emptied slab, and no longer needs
                                       it */
        else
                (void)step(v);
}

uint64_t emptying_deadline_ns(const struct volume *v)
{
        const struct emptying *e = &v->emptying;

        if (v->bypassed || (!emptying_is_active(v) && !e->is_short))
                return 0;
        /* if the emptying is back at the first slot, it waits for chunks in use */
        return e->is_short || e->until_ns == 0 || e->at > 0 ? 1 : e->until_ns;
}
