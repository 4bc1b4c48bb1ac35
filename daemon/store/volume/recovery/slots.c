/* SPDX-License-Identifier: Apache-2.0 */
/* Recovery, the last step: assigns slots to the chunks of the index. Cuts each segment as its
 * entries say, occupies the slots, and adds the chunks to the eviction order by the second of their
 * put, the oldest first. Chunks of the same second are added in reverse order of their puts, so
 * that a parent is younger than its children. */
#include "store/volume/recovery/internal.h"

#include <errno.h>
#include <stdlib.h>

#include "cleanup.h"

enum {
        WARM_DISTANCE = 32,   /* chunks between prefetching and using a slot */
        MOVES_PER_RECORD = 8, /* moves per chunk after which sort_by_age() uses qsort() */
};

/* --- the chunks in the order of their puts --- */

struct age {
        uint64_t second, seq;
        uint32_t chunk;
};

/* The order in which chunks are added. Records were acquired in the order of the scan, from the
 * newest page back, which is nearly the reverse order of the puts. If it is exactly this order, the
 * records are walked backwards, second by second; otherwise `ages` is a sorted array of all
 * chunks. */
struct order {
        const struct volume *v;
        uint32_t run, at, end; /* records of the current second are [run, end); of these, [run, at)
                                  have been returned */
        struct age *ages;
        size_t n, done;
};

static struct age age_of(const struct volume *v, uint32_t i)
{
        const struct chunk *c = volume_chunk_at(v, i);

        return (struct age){ .second = c->created_ms / 1000, .seq = c->seq, .chunk = i };
}

static bool is_used(const struct volume *v, uint32_t i)
{
        return volume_chunk_at(v, i)->flags & CHUNK_USED;
}

static bool is_in_order_of_puts(const struct volume *v)
{
        struct age last = { .second = UINT64_MAX, .seq = UINT64_MAX };

        for (uint32_t i = 0; i < index_high(v->index); i++) {
                struct age now = age_of(v, i);

                if (!is_used(v, i))
                        continue;
                if (now.second > last.second || (now.second == last.second && now.seq > last.seq))
                        return false;
                last = now;
        }
        return true;
}

static int by_age(const void *a, const void *b)
{
        const struct age *x = a, *y = b;

        if (x->second != y->second)
                return x->second < y->second ? -1 : 1;
        return x->seq > y->seq ? -1 : x->seq < y->seq;
}

/* Sorts by age. First reverses the chunks of each second, which are in about the order of their
 * puts. Then only puts that were written together are out of order, mostly by a few places, so
 * insertion sort needs few moves. Falls back to qsort() if there are many. */
static void sort_by_age(struct age *ages, size_t n)
{
        uint64_t moves = 0;

        for (size_t i = 0, end; i < n; i = end) {
                for (end = i + 1; end < n && ages[end].second == ages[i].second; end++)
                        ;
                for (size_t a = i, b = end - 1; a < b; a++, b--) {
                        struct age swap = ages[a];

                        ages[a] = ages[b];
                        ages[b] = swap;
                }
        }
        for (size_t i = 1; i < n && moves <= MOVES_PER_RECORD * n; i++) {
                struct age a = ages[i];
                size_t to = i;

                for (; to > 0 && by_age(&ages[to - 1], &a) > 0; to--, moves++)
                        ages[to] = ages[to - 1];
                ages[to] = a;
        }
        if (moves > MOVES_PER_RECORD * n)
                qsort(ages, n, sizeof(*ages), by_age);
}

static int order_init(struct order *o, const struct volume *v)
{
        *o = (struct order){ .v = v, .run = index_high(v->index) };
        o->at = o->end = o->run;
        if (is_in_order_of_puts(v))
                return 0;
        o->ages = recovery_huge_alloc(((uint64_t)index_used(v->index) + 1) * sizeof(*o->ages));
        if (!o->ages)
                return -ENOMEM;
        for (uint32_t i = index_high(v->index); i-- > 0;)
                if (is_used(v, i))
                        o->ages[o->n++] = age_of(v, i);
        sort_by_age(o->ages, o->n);
        return 0;
}

static void order_fini(struct order *o)
{
        free(o->ages);
}

/* Moves to the records of the next second. Returns false if there are none. */
static bool next_second(struct order *o)
{
        uint64_t second = UINT64_MAX;

        o->end = o->run;
        for (; o->run > 0; o->run--) {
                uint64_t of_this = age_of(o->v, o->run - 1).second;

                if (!is_used(o->v, o->run - 1))
                        continue;
                if (second != UINT64_MAX && of_this != second)
                        break;
                second = of_this;
        }
        o->at = o->run;
        return second != UINT64_MAX;
}

/* Returns the next chunk in order, or INDEX_NONE at the end. */
static uint32_t order_next(struct order *o)
{
        if (o->ages)
                return o->done < o->n ? o->ages[o->done++].chunk : INDEX_NONE;
        do {
                for (; o->at < o->end; o->at++)
                        if (is_used(o->v, o->at))
                                return o->at++;
        } while (next_second(o));
        return INDEX_NONE;
}

/* --- assigning slots --- */

static int cut_segment(struct recovery *rec, uint32_t number)
{
        uint16_t tenant = rec->scans[number].tenant;
        struct volume *v = rec->v;
        struct segment *seg = v->segments[number];
        uint64_t bytes = (uint64_t)rec->scans[number].slot_pages * DISK_PAGE;
        int class, r;

        class = slabs_class_restore(v->slabs, tenant, bytes);
        if (class < 0)
                return class;
        r = slabs_assign(v->slabs, number, (unsigned)class);
        if (r < 0)
                return r;
        seg->slot_bytes = bytes;
        seg->tenant = tenant;
        seg->epoch = rec->scans[number].epoch;
        v->cut_slots += slabs_slab_slots(v->slabs, number);
        return 0;
}

static void warm_place(const struct volume *v, uint32_t i, unsigned step)
{
        const struct chunk *c = volume_chunk_at(v, i);

        slabs_warm(v->slabs, (struct slab_slot){ .slab = c->slab, .slot = c->slot }, step);
}

static void take_place(struct recovery *rec, uint32_t i)
{
        struct volume *v = rec->v;
        struct chunk *c = volume_chunk_at(v, i);
        int r = 0;

        if (slabs_slab_class(v->slabs, c->slab) < 0)
                r = cut_segment(rec, c->slab);
        if (r == 0)
                r = slabs_occupy(v->slabs, (struct slab_slot){ .slab = c->slab, .slot = c->slot },
                                 i);
        if (r < 0) {
                recovery_forget(v, i);
                return;
        }
        room_charge(v, c);
        evict_insert(v->evict, i, (uint32_t)slabs_slab_class(v->slabs, c->slab), c->length);
        chunk_publish(v, i);
}

int recovery_take_slots(struct recovery *rec)
{
        struct volume *v = rec->v;
        _cleanup_(order_fini) struct order order;
        uint32_t upcoming[WARM_DISTANCE], i;
        uint64_t known = 0;

        if (order_init(&order, v) < 0)
                return recovery_fail(rec, -ENOMEM,
                                     "cannot allocate memory to sort the chunks by age");
        for (uint64_t done = 0;; done++) {
                while (known - done < WARM_DISTANCE && (i = order_next(&order)) != INDEX_NONE) {
                        warm_place(v, i, 0);
                        upcoming[known++ % WARM_DISTANCE] = i;
                }
                if (done == known)
                        break;
                if (known - done > WARM_DISTANCE / 2)
                        warm_place(v, upcoming[(done + WARM_DISTANCE / 2) % WARM_DISTANCE], 1);
                take_place(rec, upcoming[done % WARM_DISTANCE]);
        }
        /* Declared sizes get their classes after the chunks on the disk. If the table of classes is
         * full, chunks of a declared size use the next larger class. */
        for (unsigned n = 0; n < namespaces_count(v->namespaces); n++)
                slabs_declare_class(v->slabs, namespaces_at(v->namespaces, n)->seen.chunk_bytes);
        v->stats.recovered_chunks = v->chunks;
        return 0;
}
