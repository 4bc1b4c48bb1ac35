/* SPDX-License-Identifier: Apache-2.0 */
/* The exact-fit allocator that pool and store share: a space of slabs, each cut into equal slots of
 * one size class while it is in use. It only keeps the books: it moves no bytes and touches no
 * file.
 *
 * A slot records its owner, a number of the caller's; when a slab is moved to another class, this
 * says which items must be evicted from it. Memory: 4 bytes a slot of the slabs in use.
 *
 * A class has a size and a group, another number of the caller's (a tenant): slabs of one group
 * never have slots of another. Sizes are the same for all groups; a class of a group other than 0
 * is made when it is first used. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum {
        SLAB_GRAIN = 4096, /* slots and slabs are multiples of it */
        SLAB_MAX_SLABS = 16384,
        SLAB_DECLARED_SIZES =
                512, /* with more, shared and exact ones together, none can be declared */
        SLAB_MAX_SIZES = 2 * SLAB_DECLARED_SIZES,
        SLAB_ASKED_CLASSES = 16 * SLAB_DECLARED_SIZES, /* with more, no group gets another */
        SLAB_MAX_CLASSES = SLAB_ASKED_CLASSES + SLAB_MAX_SIZES + SLAB_DECLARED_SIZES,
};
#define SLAB_NOBODY UINT32_MAX /* owners are below 2^31 */

enum slab_answer {
        SLAB_FULL = 1, /* the class has no free slot and no slab is free: evict, or take a slab */
};

struct slab_slot {
        uint32_t slab;
        uint32_t slot;
};

struct slabs;

/* Room for `max_slabs` of up to `slab_bytes` (a multiple of the grain) each; none is there until
 * slabs_add(). -EINVAL, -ENOMEM. */
int slabs_new(struct slabs **ret, uint32_t max_slabs, uint64_t slab_bytes);
struct slabs *slabs_free(struct slabs *s);
/* Makes the next slab (0, 1, 2, ...) usable, of `bytes` <= slab_bytes, rounded down to the grain.
 * 0, -ENOSPC, -EINVAL. */
int slabs_add(struct slabs *s, uint64_t bytes);

/* The class for chunks of `bytes`: the smallest that holds them, among the exact ones that were
 * declared and the shared ones, which are at most 12.5 % (or one grain) apart and end with the slab
 * as a whole. Declaring rounds up to the grain, is idempotent and returns 0; when the table of
 * classes is full the shared class is used and -ENOSPC returned. A class once there stays, and
 * keeps its index. `bytes` is at least 1 and at most slab_bytes, or -E2BIG. */
int slabs_declare_class(struct slabs *s, uint64_t bytes);
int slabs_class_for(const struct slabs *s, uint64_t bytes); /* class index, or -E2BIG */
/* The same for a group. When the table of classes is full, the smallest of the group's own that
 * holds them; -ENOSPC if it has none. */
int slabs_class_of(struct slabs *s, uint16_t group, uint64_t bytes);
/* For recovery: the group's class of exactly this size, a multiple of the grain. What is declared,
 * or asked for, leaves room in the tables for all that a space can have been cut into. -E2BIG,
 * -ENOSPC.
 */
int slabs_class_restore(struct slabs *s, uint16_t group, uint64_t bytes);
/* Returns group 0's class with the next larger slots, or -1. */
int slabs_class_above(const struct slabs *s, unsigned class);
uint16_t slabs_class_group(const struct slabs *s, unsigned class);
/* The classes of a group: the first, and the one after; -1 past the end. */
int slabs_group_first(const struct slabs *s, uint16_t group);
int slabs_group_next(const struct slabs *s, unsigned class);
uint64_t slabs_class_bytes(const struct slabs *s, unsigned class);
unsigned slabs_class_count(const struct slabs *s);
/* Of this class: slabs it has, slots in them, slots in use. */
void slabs_class_usage(const struct slabs *s, unsigned class, uint32_t *ret_slabs,
                       uint64_t *ret_slots, uint64_t *ret_used);

/* A free slot of the class, from a slab it has, a free slab, or an empty slab of another class,
 * which changes its class by that. 0, SLAB_FULL, -ENOMEM. */
int slabs_acquire(struct slabs *s, unsigned class, uint32_t owner, struct slab_slot *ret);
/* Acquires a free slot of this slab, which has a class. 0, SLAB_FULL. */
int slabs_acquire_in(struct slabs *s, uint32_t slab, uint32_t owner, struct slab_slot *ret);
void slabs_release(struct slabs *s, struct slab_slot slot);

/* SLAB_NOBODY if the slot is free. */
uint32_t slabs_owner(const struct slabs *s, struct slab_slot slot);
void slabs_set_owner(struct slabs *s, struct slab_slot slot, uint32_t owner);
uint64_t slabs_offset(const struct slabs *s, struct slab_slot slot); /* within the slab */
uint64_t slabs_slot_bytes(const struct slabs *s, struct slab_slot slot);
int slabs_slab_class(const struct slabs *s, uint32_t slab);      /* -1: free or not added */
uint32_t slabs_slab_slots(const struct slabs *s, uint32_t slab); /* 0 while free */
uint32_t slabs_added(const struct slabs *s);
uint32_t slabs_free_count(const struct slabs *s); /* slabs added and without a class */

/* Gives a slab back to be cut anew: evict() is called for the owner of each slot that is in use,
 * and releases the slot. Not needed for an empty slab: that comes back by itself when another class
 * asks and no slab is free. */
void slabs_reclaim(struct slabs *s, uint32_t slab, void (*evict)(void *userdata, uint32_t owner),
                   void *userdata);

/* For recovery: give this free slab the class, and then this slot the owner. -EEXIST, -EINVAL (no
 * such slab, class or slot, or the slab is shorter than one slot), -ENOMEM. */
int slabs_assign(struct slabs *s, uint32_t slab, unsigned class);
int slabs_occupy(struct slabs *s, struct slab_slot slot, uint32_t owner);
/* For many of them in a row: step 0, a little later step 1, a little later slabs_occupy(). */
void slabs_warm(const struct slabs *s, struct slab_slot slot, unsigned step);
