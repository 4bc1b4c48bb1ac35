/* SPDX-License-Identifier: Apache-2.0 */
/* The exact-fit allocator of pool and store: a space of slabs, each divided into equal slots of one
 * size class while it is in use. It only does the accounting: it moves no bytes and accesses no
 * file.
 *
 * A slot stores its owner, a number of the caller's. When a slab is moved to another class, this
 * tells which items must be evicted from it. Memory: 4 bytes per slot of the slabs in use, or less
 * (slabs_limit_owners()).
 *
 * A class has a size and a group, another number of the caller's (a tenant); slabs of one group
 * never have slots of another. Sizes are the same for all groups; a class of a group other than 0
 * is created when it is first used. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum {
        SLAB_GRAIN = 4096, /* slots and slabs are multiples of this */
        SLAB_MAX_SLABS = 16384,
        SLAB_DECLARED_SIZES = 512, /* most sizes, shared and exact, before declarations fail */
        SLAB_MAX_SIZES = 2 * SLAB_DECLARED_SIZES,
        SLAB_ASKED_CLASSES = 16 * SLAB_DECLARED_SIZES, /* most classes before groups get no further
                                                        * ones */
        SLAB_MAX_CLASSES = SLAB_ASKED_CLASSES + SLAB_MAX_SIZES + SLAB_DECLARED_SIZES,
};
#define SLAB_NOBODY UINT32_MAX /* no owner; owners are below 2^31 */

enum slab_answer {
        SLAB_FULL =
                1, /* the class has no free slot and no slab is free: evict, or reclaim a slab */
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
/* Makes the memory of a slot no larger than owners up to `most` need. No slab may have been added.
 */
void slabs_limit_owners(struct slabs *s, uint32_t most);
/* Returns the memory of so many slots, in bytes. */
uint64_t slabs_word_bytes(const struct slabs *s, uint64_t slots);
/* Makes the next slab (0, 1, 2, ...) usable, with `bytes` <= slab_bytes, rounded down to the grain.
 * Returns 0, -ENOSPC or -EINVAL. */
int slabs_add(struct slabs *s, uint64_t bytes);

/* Declares or finds the class for chunks of `bytes`: the smallest that fits, among the declared
 * exact ones and the shared ones. Shared classes are at most 12.5 % (or one grain) apart, and the
 * largest is the whole slab. A declaration rounds up to the grain, is idempotent and returns 0, or
 * -ENOSPC if the table is full and the shared class has to be used. A class stays and keeps its
 * index. `bytes` must be 1 to slab_bytes, or the result is -E2BIG. */
int slabs_declare_class(struct slabs *s, uint64_t bytes);
int slabs_class_for(const struct slabs *s, uint64_t bytes); /* returns the class index or -E2BIG */
/* Returns the class of a group. If the table of classes is full, returns the smallest of the
 * group's classes that fits, or -ENOSPC if there is none. */
int slabs_class_of(struct slabs *s, uint16_t group, uint64_t bytes);
/* Returns the group's class of exactly this size, a multiple of the grain, for recovery.
 * Declarations and requests leave room in the tables for every class into which a space can have
 * been divided. Returns -E2BIG or -ENOSPC on failure. */
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
/* Acquires a free slot of this slab, which has a class. 0, SLAB_FULL. */
int slabs_acquire_in(struct slabs *s, uint32_t slab, uint32_t owner, struct slab_slot *ret);
void slabs_release(struct slabs *s, struct slab_slot slot);

/* Returns SLAB_NOBODY if the slot is free. */
uint32_t slabs_owner(const struct slabs *s, struct slab_slot slot);
void slabs_set_owner(struct slabs *s, struct slab_slot slot, uint32_t owner);
uint64_t slabs_offset(const struct slabs *s, struct slab_slot slot); /* within the slab */
uint64_t slabs_slot_bytes(const struct slabs *s, struct slab_slot slot);
int slabs_slab_class(const struct slabs *s, uint32_t slab);      /* -1: free or not added */
uint32_t slabs_slab_slots(const struct slabs *s, uint32_t slab); /* 0 while free */
uint32_t slabs_slab_used(const struct slabs *s, uint32_t slab);  /* slots in use */
uint32_t slabs_added(const struct slabs *s);
uint32_t slabs_free_count(const struct slabs *s); /* slabs added that have no class */

/* Frees a slab for another class. Calls evict() for the owner of each slot in use, which must
 * release the slot. Unnecessary for an empty slab, which another class takes over automatically if
 * no slab is free. */
void slabs_reclaim(struct slabs *s, uint32_t slab, void (*evict)(void *userdata, uint32_t owner),
                   void *userdata);
/* Keeps new slots out of a slab that is emptied step by step, until slabs_reclaim() or
 * slabs_reopen_slab(). */
void slabs_close_slab(struct slabs *s, uint32_t slab);
void slabs_reopen_slab(struct slabs *s, uint32_t slab);

/* Assign a class to a free slab, and then an owner to one of its slots, for recovery. Return 0,
 * -EEXIST, -EINVAL (no such slab, class or slot, or the slab is shorter than a slot) or -ENOMEM. */
int slabs_assign(struct slabs *s, uint32_t slab, unsigned class);
int slabs_occupy(struct slabs *s, struct slab_slot slot, uint32_t owner);
/* Prefetches for many slabs_occupy() in a row: call step 0, somewhat later step 1, then
 * slabs_occupy(). */
void slabs_warm(const struct slabs *s, struct slab_slot slot, unsigned step);
