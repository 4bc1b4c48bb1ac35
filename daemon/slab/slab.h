/* SPDX-License-Identifier: Apache-2.0 */
/* The slot allocator that pool and store share. A space consists of slabs; while a slab is in use,
 * it is divided into equal slots of one size class. The allocator only does the accounting; it
 * neither moves bytes nor accesses files.
 *
 * Each used slot has an owner, a number that the caller chooses. When a slab is moved to another
 * class, the owners are the items that must be evicted from it. The allocator takes 4 bytes of
 * memory for each slot of the slabs in use, or less (slabs_limit_owners()).
 *
 * A class has a slot size and a group, which is another number of the caller's (the store uses the
 * tenant's). All slots of a slab belong to one class, and so to one group. All groups have the same
 * sizes; a class of a group other than 0 is created when it is first used. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum {
        SLAB_GRAIN = 4096,      /* sizes of slots and slabs are multiples of this number of bytes */
        SLAB_MAX_SLABS = 16384, /* most slabs of an allocator */
        SLAB_DECLARED_SIZES = 512, /* number of sizes, shared and declared, from which on
                                      slabs_declare_class() fails */
        SLAB_MAX_SIZES =
                2 * SLAB_DECLARED_SIZES, /* most sizes, including those of slabs_class_restore() */
        SLAB_ASKED_CLASSES =
                16 * SLAB_DECLARED_SIZES, /* number of classes from which on slabs_class_of() and
                                             slabs_declare_class() create no further ones */
        SLAB_MAX_CLASSES = SLAB_ASKED_CLASSES + SLAB_MAX_SIZES + SLAB_DECLARED_SIZES,
};
#define SLAB_NOBODY UINT32_MAX /* in place of an owner: the slot is free. Owners are below 2^31 */

enum slab_answer {
        SLAB_FULL = 1, /* the class has no free slot, and no slab is free or empty; the caller must
                          evict an item or reclaim a slab */
};

struct slab_slot {
        uint32_t slab;
        uint32_t slot;
};

struct slabs;

/* Creates an allocator for `max_slabs` slabs of up to `slab_bytes`, a multiple of the grain, each;
 * slabs_add() makes them usable. Returns 0, -EINVAL or -ENOMEM. */
int slabs_new(struct slabs **ret, uint32_t max_slabs, uint64_t slab_bytes);
struct slabs *slabs_free(struct slabs *s);
/* Limits owners to `most`, so that a slot takes fewer bits of memory. No slab may have been
 * added. */
void slabs_limit_owners(struct slabs *s, uint32_t most);
/* Returns the memory that this number of slots takes, in bytes. */
uint64_t slabs_word_bytes(const struct slabs *s, uint64_t slots);
/* Makes the next slab (0, 1, 2, ...) usable, with `bytes` <= slab_bytes, rounded down to the grain.
 * Returns 0, -ENOSPC or -EINVAL. */
int slabs_add(struct slabs *s, uint64_t bytes);

/* slabs_declare_class() adds a size: `bytes`, rounded up to the grain. Returns 0, also if the size
 * exists, or -ENOSPC if there are too many sizes or classes; items then use the next larger size.
 * slabs_class_for() returns the index of group 0's smallest class that fits `bytes`, among the
 * declared sizes and the shared ones. Shared sizes are at most 12.5 % (or one grain) apart, and the
 * largest is a whole slab. A class is never removed and keeps its index. Both return -E2BIG unless
 * `bytes` is 1 to slab_bytes. */
int slabs_declare_class(struct slabs *s, uint64_t bytes);
int slabs_class_for(const struct slabs *s, uint64_t bytes);
/* Returns the class of a group for `bytes`, like slabs_class_for() for group 0; creates the class
 * if necessary. If the table of classes is full, returns the smallest of the group's classes that
 * fits, or -ENOSPC if there is none. Returns -E2BIG as slabs_class_for() does. */
int slabs_class_of(struct slabs *s, uint16_t group, uint64_t bytes);
/* Returns the group's class of exactly this size, a multiple of the grain, for recovery; creates
 * the class if necessary. The limits of slabs_declare_class() and slabs_class_of() leave room in
 * the tables for every class that the slabs of a space can have. Returns -E2BIG or -ENOSPC on
 * failure. */
int slabs_class_restore(struct slabs *s, uint16_t group, uint64_t bytes);
/* Returns group 0's class with the next larger slots, or -1. */
int slabs_class_above(const struct slabs *s, unsigned class);
uint16_t slabs_class_group(const struct slabs *s, unsigned class);
/* Iterate over the classes of a group; return -1 after the last one. */
int slabs_group_first(const struct slabs *s, uint16_t group);
int slabs_group_next(const struct slabs *s, unsigned class);
uint64_t slabs_class_bytes(const struct slabs *s, unsigned class);
unsigned slabs_class_count(const struct slabs *s);
/* Stores the number of slabs of a class, of their slots, and of the slots in use. */
void slabs_class_usage(const struct slabs *s, unsigned class, uint32_t *ret_slabs,
                       uint64_t *ret_slots, uint64_t *ret_used);

/* Acquires a free slot of a class: from one of its slabs, a free slab, or an empty slab of another
 * class, which then changes its class. Returns 0, SLAB_FULL or -ENOMEM. */
int slabs_acquire(struct slabs *s, unsigned class, uint32_t owner, struct slab_slot *ret);
/* Acquires a free slot of this slab, which must have a class. Returns 0, or SLAB_FULL if the slab
 * has no free slot or is closed. */
int slabs_acquire_in(struct slabs *s, uint32_t slab, uint32_t owner, struct slab_slot *ret);
void slabs_release(struct slabs *s, struct slab_slot slot);

/* Returns the owner of a slot, or SLAB_NOBODY if the slot is free. */
uint32_t slabs_owner(const struct slabs *s, struct slab_slot slot);
void slabs_set_owner(struct slabs *s, struct slab_slot slot, uint32_t owner);
uint64_t slabs_offset(const struct slabs *s,
                      struct slab_slot slot); /* offset of the slot in its slab, in bytes */
uint64_t slabs_slot_bytes(const struct slabs *s, struct slab_slot slot);
int slabs_slab_class(const struct slabs *s,
                     uint32_t slab); /* -1 if the slab is free or was not added */
uint32_t slabs_slab_slots(const struct slabs *s,
                          uint32_t slab); /* number of slots; 0 if the slab is free */
uint32_t slabs_slab_used(const struct slabs *s, uint32_t slab); /* number of slots in use */
uint32_t slabs_added(const struct slabs *s);
uint32_t slabs_free_count(const struct slabs *s); /* number of added slabs that have no class */

/* Frees a slab for another class. Calls evict() for the owner of each slot in use; evict() must
 * release the slot. An empty slab need not be reclaimed, because slabs_acquire() moves it to
 * another class if no slab is free. */
void slabs_reclaim(struct slabs *s, uint32_t slab, void (*evict)(void *userdata, uint32_t owner),
                   void *userdata);
/* slabs_close_slab() keeps new owners out of a slab while the caller empties the slab step by step,
 * until slabs_reclaim() or slabs_reopen_slab(). */
void slabs_close_slab(struct slabs *s, uint32_t slab);
void slabs_reopen_slab(struct slabs *s, uint32_t slab);

/* For recovery: slabs_assign() assigns a class to a free slab, and slabs_occupy() an owner to one
 * free slot of a slab. Both return 0, -EEXIST if the slab has a class or the slot an owner already,
 * or -EINVAL (no such slab, class or slot, or the slab is shorter than a slot); slabs_assign() also
 * returns -ENOMEM. */
int slabs_assign(struct slabs *s, uint32_t slab, unsigned class);
int slabs_occupy(struct slabs *s, struct slab_slot slot, uint32_t owner);
/* Prefetches the cache lines of slabs_occupy(), for many calls in a row: call step 0, somewhat
 * later step 1, and then slabs_occupy(). */
void slabs_warm(const struct slabs *s, struct slab_slot slot, unsigned step);
