/* SPDX-License-Identifier: Apache-2.0 */
/* The allocator: no slot is given twice, none is lost, sizes fit closely, and empty slabs serve
 * every class. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checked.h"
#include "cleanup.h"
#include "slab/slab.h"

DEFINE_CLEANUP(struct slabs *, slabs_free);

enum { KIB = 1024, MIB = 1024 * KIB };

static uint32_t most_owner; /* 0: any */

static struct slabs *make(uint32_t n_slabs, uint64_t slab_bytes, uint64_t last_bytes)
{
        struct slabs *s = NULL;

        assert_int_equal(slabs_new(&s, n_slabs, slab_bytes), 0);
        if (most_owner != 0)
                slabs_limit_owners(s, most_owner);
        for (uint32_t i = 0; i < n_slabs; i++)
                assert_int_equal(slabs_add(s, i + 1 < n_slabs ? slab_bytes : last_bytes), 0);
        return s;
}

static unsigned class_of(struct slabs *s, uint64_t bytes)
{
        int class = slabs_class_for(s, bytes);

        assert_true(class >= 0);
        assert_true((unsigned)class < slabs_class_count(s));
        return (unsigned)class;
}

static uint32_t used_in(const struct slabs *s, uint32_t slab)
{
        uint32_t n = 0;

        for (uint32_t i = 0; i < slabs_slab_slots(s, slab); i++)
                n += slabs_owner(s, (struct slab_slot){ slab, i }) != SLAB_NOBODY;
        return n;
}

/* Sums over all classes and slabs agree with each other. */
static void check_sums(const struct slabs *s)
{
        uint32_t slabs_in_classes = 0, n;
        uint64_t slots_in_classes = 0, used_in_classes = 0, slots, used;
        uint64_t slots_in_slabs = 0, used_in_slabs = 0;
        uint32_t free_slabs = 0;

        for (unsigned c = 0; c < slabs_class_count(s); c++) {
                slabs_class_usage(s, c, &n, &slots, &used);
                assert_true(used <= slots);
                slabs_in_classes += n;
                slots_in_classes += slots;
                used_in_classes += used;
        }
        for (uint32_t i = 0; i < slabs_added(s); i++) {
                slots_in_slabs += slabs_slab_slots(s, i);
                used_in_slabs += used_in(s, i);
                if (slabs_slab_class(s, i) < 0) {
                        assert_int_equal(slabs_slab_slots(s, i), 0);
                        free_slabs++;
                }
        }
        assert_int_equal(free_slabs, slabs_free_count(s));
        assert_int_equal(slabs_in_classes + free_slabs, slabs_added(s));
        assert_int_equal(slots_in_classes, slots_in_slabs);
        assert_int_equal(used_in_classes, used_in_slabs);
}

static void sizes_that_make_no_sense_are_refused(void **state)
{
        struct slabs *s = NULL;

        assert_int_equal(slabs_new(&s, 0, MIB), -EINVAL);
        assert_int_equal(slabs_new(&s, SLAB_MAX_SLABS + 1, MIB), -EINVAL);
        assert_int_equal(slabs_new(&s, 1, 0), -EINVAL);
        assert_int_equal(slabs_new(&s, 1, MIB + 1), -EINVAL);
        assert_int_equal(slabs_new(&s, 1, UINT64_C(1) << 60), -EINVAL);
        assert_null(s);
        assert_null(slabs_free(NULL));
}

static void slabs_are_added_up_to_the_number_announced(void **state)
{
        _cleanup_(slabs_freep) struct slabs *s = NULL;

        assert_int_equal(slabs_new(&s, 2, MIB), 0);
        assert_int_equal(slabs_added(s), 0);
        assert_int_equal(slabs_add(s, MIB + 4096), -EINVAL);
        assert_int_equal(slabs_add(s, 4095), -EINVAL);
        assert_int_equal(slabs_add(s, MIB), 0);
        assert_int_equal(slabs_add(s, 8 * KIB + 17), 0);
        assert_int_equal(slabs_add(s, MIB), -ENOSPC);
        assert_int_equal(slabs_added(s), 2);
        assert_int_equal(slabs_free_count(s), 2);
        check_sums(s);
}

static void nothing_is_free_before_a_slab_is_added(void **state)
{
        _cleanup_(slabs_freep) struct slabs *s = NULL;
        struct slab_slot slot = { 7, 7 };

        assert_int_equal(slabs_new(&s, 4, MIB), 0);
        assert_int_equal(slabs_acquire(s, class_of(s, 4096), 1, &slot), SLAB_FULL);
        assert_int_equal(slot.slab, 7);
        assert_int_equal(slabs_slab_class(s, 0), -1);
        assert_int_equal(slabs_slab_slots(s, 3), 0);
        assert_int_equal(slabs_owner(s, slot), SLAB_NOBODY);
}

static void shared_classes_are_close_and_on_the_grain(void **state)
{
        static const uint64_t spaces[] = { SLAB_GRAIN,
                                           12 * KIB,
                                           MIB,
                                           34 * MIB,
                                           64 * MIB,
                                           UINT64_C(1) << 30,
                                           (UINT64_C(1) << 30) + 4096 };

        for (size_t i = 0; i < ARRAY_SIZE(spaces); i++) {
                _cleanup_(slabs_freep) struct slabs *s = make(1, spaces[i], spaces[i]);
                unsigned before = slabs_class_count(s);

                for (uint64_t bytes = 1; bytes <= spaces[i]; bytes += 1 + bytes / 37) {
                        uint64_t got = slabs_class_bytes(s, class_of(s, bytes));

                        assert_true(got >= bytes);
                        assert_true(got <= spaces[i]);
                        assert_int_equal(got % SLAB_GRAIN, 0);
                        assert_true(got - round_up(bytes, SLAB_GRAIN) <= bytes / 8);
                }
                assert_int_equal(slabs_class_bytes(s, class_of(s, spaces[i])), spaces[i]);
                assert_int_equal(slabs_class_bytes(s, class_of(s, 1)), SLAB_GRAIN);
                assert_int_equal(slabs_class_for(s, 0), -E2BIG);
                assert_int_equal(slabs_class_for(s, spaces[i] + 1), -E2BIG);
                assert_int_equal(slabs_class_for(s, UINT64_MAX), -E2BIG);
                assert_int_equal(slabs_class_count(s), before);
        }
}

static void neighbouring_classes_are_at_most_an_eighth_apart(void **state)
{
        _cleanup_(slabs_freep) struct slabs *s = make(1, 64 * MIB, 64 * MIB);
        uint64_t below = 8 * SLAB_GRAIN;

        while (below < 64 * MIB) {
                uint64_t next = slabs_class_bytes(s, class_of(s, below + 1));

                assert_true(next > below);
                assert_true((next - below) * 8 <= below);
                below = next;
        }
        assert_true(slabs_class_count(s) < 128);
}

static void a_declared_size_gets_an_exact_class(void **state)
{
        _cleanup_(slabs_freep) struct slabs *s = make(2, 64 * MIB, 64 * MIB);
        const uint64_t odd = 1234567;
        unsigned shared = class_of(s, odd), exact;

        assert_true(slabs_class_bytes(s, shared) > round_up(odd, SLAB_GRAIN));
        assert_int_equal(slabs_declare_class(s, odd), 0);
        exact = class_of(s, odd);
        assert_int_not_equal(exact, shared);
        assert_int_equal(slabs_class_bytes(s, exact), round_up(odd, SLAB_GRAIN));
        /* Larger chunks still use the shared class, whose index has not changed. */
        assert_int_equal(class_of(s, round_up(odd, SLAB_GRAIN) + 1), shared);

        assert_int_equal(slabs_declare_class(s, odd), 0);
        assert_int_equal(slabs_declare_class(s, odd + 1), 0);
        assert_int_equal(slabs_class_count(s), exact + 1);
        /* A size that a shared class already has adds no class. */
        assert_int_equal(slabs_declare_class(s, 2 * MIB), 0);
        assert_int_equal(slabs_class_count(s), exact + 1);

        assert_int_equal(slabs_declare_class(s, 0), -E2BIG);
        assert_int_equal(slabs_declare_class(s, 64 * MIB + 1), -E2BIG);
}

static void a_full_table_of_classes_falls_back_to_the_shared_ones(void **state)
{
        _cleanup_(slabs_freep) struct slabs *s = make(1, 64 * MIB, 64 * MIB);
        uint64_t bytes = 32 * MIB;
        int r;

        while ((r = slabs_declare_class(s, bytes)) == 0)
                bytes += SLAB_GRAIN;
        assert_int_equal(r, -ENOSPC);
        assert_int_equal(slabs_class_count(s), SLAB_DECLARED_SIZES);
        assert_int_equal(slabs_class_bytes(s, class_of(s, bytes)), 36 * MIB);
        /* Classes in the table stay declared. */
        assert_int_equal(slabs_declare_class(s, bytes - SLAB_GRAIN), 0);
        assert_int_equal(slabs_class_bytes(s, class_of(s, bytes - SLAB_GRAIN)), bytes - SLAB_GRAIN);
}

static void a_slab_has_slots_of_one_group_only(void **state)
{
        _cleanup_(slabs_freep) struct slabs *s = make(3, 2 * MIB, 2 * MIB);
        int none = slabs_class_of(s, 0, 64 * KIB), one = slabs_class_of(s, 1, 64 * KIB),
            seven = slabs_class_of(s, 7, 64 * KIB), larger = slabs_class_of(s, 7, 128 * KIB);
        struct slab_slot a, b, c, d;
        unsigned count = slabs_class_count(s), found = 0;

        assert_int_equal(none, slabs_class_for(s, 64 * KIB));
        assert_true(one >= 0 && seven >= 0 && one != none && seven != none && seven != one);
        assert_int_equal(slabs_class_of(s, 7, 64 * KIB - 1), seven);
        assert_int_equal(slabs_class_bytes(s, (unsigned)seven), 64 * KIB);
        assert_int_equal(slabs_class_group(s, (unsigned)seven), 7);
        assert_int_equal(slabs_class_group(s, (unsigned)none), 0);
        assert_int_equal(slabs_class_of(s, 1, 2 * MIB + 1), -E2BIG);
        assert_int_equal(slabs_class_count(s), count);

        assert_int_equal(slabs_acquire(s, (unsigned)none, 1, &a), 0);
        assert_int_equal(slabs_acquire(s, (unsigned)one, 2, &b), 0);
        assert_int_equal(slabs_acquire(s, (unsigned)seven, 3, &c), 0);
        assert_true(a.slab != b.slab && b.slab != c.slab && a.slab != c.slab);
        assert_int_equal(slabs_acquire(s, (unsigned)larger, 4, &d), SLAB_FULL);
        assert_int_equal(slabs_slab_class(s, c.slab), seven);
        /* An empty slab is available to any group. */
        slabs_release(s, a);
        assert_int_equal(slabs_acquire(s, (unsigned)larger, 4, &d), 0);
        assert_int_equal(d.slab, a.slab);
        check_sums(s);

        for (int i = slabs_group_first(s, 7); i >= 0; i = slabs_group_next(s, (unsigned)i)) {
                assert_int_equal(slabs_class_group(s, (unsigned)i), 7);
                found++;
        }
        assert_int_equal(found, 2);
        assert_int_equal(slabs_group_first(s, 8), -1);
}

static void a_full_table_of_groups_is_said(void **state)
{
        _cleanup_(slabs_freep) struct slabs *s = make(1, 64 * MIB, 64 * MIB);
        int r = 0;

        for (unsigned group = 1; r >= 0 && group < UINT16_MAX; group++)
                r = slabs_class_of(s, (uint16_t)group, 4096);
        assert_int_equal(r, -ENOSPC);
        assert_int_equal(slabs_class_count(s), SLAB_ASKED_CLASSES);
        assert_true(slabs_class_of(s, 1, 4096) >= 0);
        assert_int_equal(slabs_class_of(s, 1, 8192), -ENOSPC);
        assert_int_equal(slabs_declare_class(s, 33 * MIB), -ENOSPC);
        /* A class of the group also accepts smaller chunks. */
        r = slabs_class_restore(s, 1, MIB);
        assert_true(r >= 0);
        assert_int_equal(slabs_class_of(s, 1, 8192), r);
        assert_int_equal(slabs_class_of(s, 1, MIB + 1), -ENOSPC);
        assert_int_equal(slabs_class_of(s, 2, 8192), -ENOSPC);
}

static void what_is_restored_has_its_class_whatever_is_declared(void **state)
{
        _cleanup_(slabs_freep) struct slabs *s = make(1, 64 * MIB, 64 * MIB);
        const uint64_t odd = 777 * SLAB_GRAIN;
        unsigned n = 0;
        int class;

        for (uint64_t bytes = 32 * MIB; slabs_declare_class(s, bytes) == 0;)
                bytes += SLAB_GRAIN;
        assert_int_equal(slabs_declare_class(s, odd), -ENOSPC);
        for (uint16_t group = 0; group < 3; group++) {
                class = slabs_class_restore(s, group, odd);
                assert_true(class >= 0);
                assert_int_equal(slabs_class_bytes(s, (unsigned)class), odd);
                assert_int_equal(slabs_class_group(s, (unsigned)class), group);
                assert_int_equal(slabs_class_of(s, group, odd), class);
        }
        assert_int_equal(slabs_class_restore(s, 0, 65 * MIB), -E2BIG);
        while ((class = slabs_class_restore(s, 5, 8 * MIB + n * SLAB_GRAIN)) >= 0)
                n++;
        assert_int_equal(class, -ENOSPC);
        assert_in_range(n, SLAB_MAX_SIZES - SLAB_DECLARED_SIZES - 1, SLAB_MAX_SIZES);
}

static void a_space_holds_exactly_what_fits_and_no_place_twice(void **state)
{
        _cleanup_(slabs_freep) struct slabs *s = make(3, MIB, 100 * KIB);
        unsigned class = class_of(s, 48 * KIB);
        uint32_t expected = 21 + 21 + 2;
        bool seen[3][21] = { 0 };
        struct slab_slot slot;

        for (uint32_t i = 0; i < expected; i++) {
                assert_int_equal(slabs_acquire(s, class, i, &slot), 0);
                assert_in_range(slot.slab, 0, 2);
                assert_in_range(slot.slot, 0, 20);
                assert_false(seen[slot.slab][slot.slot]);
                seen[slot.slab][slot.slot] = true;
                assert_int_equal(slabs_owner(s, slot), i);
                assert_int_equal(slabs_slot_bytes(s, slot), 48 * KIB);
                assert_int_equal(slabs_offset(s, slot), (uint64_t)slot.slot * 48 * KIB);
                assert_true(slabs_offset(s, slot) + 48 * KIB <= (slot.slab == 2 ? 100 * KIB : MIB));
        }
        assert_int_equal(slabs_acquire(s, class, 1, &slot), SLAB_FULL);
        assert_int_equal(slabs_free_count(s), 0);
        assert_int_equal(slabs_slab_slots(s, 2), 2);
        assert_int_equal(used_in(s, 2), 2);
        check_sums(s);
}

static void slabs_are_cut_in_order_and_slots_given_in_order(void **state)
{
        _cleanup_(slabs_freep) struct slabs *s = make(2, 64 * KIB, 64 * KIB);
        unsigned class = class_of(s, 16 * KIB);
        struct slab_slot slot;

        for (uint32_t i = 0; i < 8; i++) {
                assert_int_equal(slabs_acquire(s, class, 0, &slot), 0);
                assert_int_equal(slot.slab, i / 4);
                assert_int_equal(slot.slot, i % 4);
        }
}

static void a_released_slot_is_found_again(void **state)
{
        _cleanup_(slabs_freep) struct slabs *s = make(4, 64 * KIB, 64 * KIB);
        unsigned class = class_of(s, 16 * KIB);
        struct slab_slot slots[16], again;

        for (uint32_t i = 0; i < 16; i++)
                assert_int_equal(slabs_acquire(s, class, i, &slots[i]), 0);
        slabs_release(s, slots[6]);
        assert_int_equal(slabs_owner(s, slots[6]), SLAB_NOBODY);
        assert_int_equal(slabs_owner(s, slots[5]), 5);
        assert_int_equal(slabs_acquire(s, class, 99, &again), 0);
        assert_memory_equal(&again, &slots[6], sizeof(again));
        assert_int_equal(slabs_owner(s, again), 99);
        slabs_set_owner(s, again, 0x7fffffff);
        assert_int_equal(slabs_owner(s, again), 0x7fffffff);
        assert_int_equal(slabs_acquire(s, class, 1, &again), SLAB_FULL);

        /* The slab with the most recently freed slot comes first. */
        slabs_release(s, slots[2]);
        slabs_release(s, slots[14]);
        assert_int_equal(slabs_acquire(s, class, 1, &again), 0);
        assert_memory_equal(&again, &slots[14], sizeof(again));
}

static void slots_are_given_in_the_order_in_which_they_came_back(void **state)
{
        _cleanup_(slabs_freep) struct slabs *s = make(2, 128 * KIB, 128 * KIB);
        static const uint32_t order[] = { 3, 4, 5, 1 };
        unsigned class = class_of(s, 16 * KIB);
        struct slab_slot slots[8], slot;

        for (uint32_t i = 0; i < 8; i++)
                assert_int_equal(slabs_acquire(s, class, i, &slots[i]), 0);
        for (uint32_t i = 0; i < ARRAY_SIZE(order); i++)
                slabs_release(s, slots[order[i]]);
        for (uint32_t i = 0; i < ARRAY_SIZE(order); i++) {
                assert_int_equal(slabs_acquire(s, class, i, &slot), 0);
                assert_int_equal(slot.slab, 0);
                assert_int_equal(slot.slot, order[i]);
        }

        /* An empty slab is filled from its beginning, however it became empty. */
        for (uint32_t i = 8; i-- > 0;)
                slabs_release(s, slots[i]);
        for (uint32_t i = 0; i < 8; i++) {
                assert_int_equal(slabs_acquire(s, class, i, &slot), 0);
                assert_int_equal(slot.slot, i);
        }
        check_sums(s);
}

static void a_slab_that_is_too_short_serves_smaller_classes_only(void **state)
{
        _cleanup_(slabs_freep) struct slabs *s = make(2, MIB, 64 * KIB);
        unsigned large = class_of(s, 512 * KIB), small = class_of(s, 64 * KIB);
        struct slab_slot slot;

        assert_int_equal(slabs_acquire(s, large, 1, &slot), 0);
        assert_int_equal(slabs_acquire(s, large, 2, &slot), 0);
        assert_int_equal(slot.slab, 0);
        assert_int_equal(slabs_acquire(s, large, 3, &slot), SLAB_FULL);
        assert_int_equal(slabs_free_count(s), 1);
        assert_int_equal(slabs_acquire(s, small, 3, &slot), 0);
        assert_int_equal(slot.slab, 1);
        slabs_release(s, slot);
        /* The slab is empty and has a class, but is still too short. */
        assert_int_equal(slabs_acquire(s, large, 3, &slot), SLAB_FULL);
        check_sums(s);
}

static void an_empty_slab_goes_to_the_class_that_asks(void **state)
{
        _cleanup_(slabs_freep) struct slabs *s = make(2, MIB, MIB);
        unsigned small = class_of(s, 4096), large = class_of(s, MIB);
        struct slab_slot a, b, slot;

        for (uint32_t i = 0; i < 256; i++)
                assert_int_equal(slabs_acquire(s, small, i, &a), 0);
        assert_int_equal(slabs_acquire(s, small, 256, &b), 0);
        assert_int_not_equal(a.slab, b.slab);
        assert_int_equal(slabs_acquire(s, large, 1, &slot), SLAB_FULL);

        slabs_release(s, b);
        assert_int_equal(slabs_slab_class(s, b.slab), (int)small);
        assert_int_equal(slabs_free_count(s), 0);
        assert_int_equal(slabs_acquire(s, large, 1, &slot), 0);
        assert_int_equal(slot.slab, b.slab);
        assert_int_equal(slabs_slab_class(s, b.slab), (int)large);
        assert_int_equal(slabs_slab_slots(s, b.slab), 1);
        assert_int_equal(slabs_owner(s, slot), 1);
        /* The class that lost the slab is full now. */
        assert_int_equal(slabs_acquire(s, small, 2, &slot), SLAB_FULL);
        check_sums(s);
}

static void a_slab_in_use_is_never_taken_by_itself(void **state)
{
        _cleanup_(slabs_freep) struct slabs *s = make(1, MIB, MIB);
        struct slab_slot held, slot;

        assert_int_equal(slabs_acquire(s, class_of(s, 4096), 1, &held), 0);
        assert_int_equal(slabs_acquire(s, class_of(s, 8192), 2, &slot), SLAB_FULL);
        assert_int_equal(slabs_owner(s, held), 1);
}

struct owned {
        struct slabs *slabs;
        struct slab_slot slots[16]; /* by owner */
        unsigned evicted;
};

static void evict_owner(void *userdata, uint32_t owner)
{
        struct owned *o = userdata;

        assert_int_equal(slabs_owner(o->slabs, o->slots[owner]), owner);
        slabs_release(o->slabs, o->slots[owner]);
        o->evicted |= 1u << owner;
}

static void a_closed_slab_gets_no_slots(void **state)
{
        _cleanup_(slabs_freep) struct slabs *s = make(2, MIB, MIB);
        unsigned class = class_of(s, 256 * KIB);
        struct slab_slot slots[8], slot;

        for (uint32_t i = 0; i < 8; i++)
                assert_int_equal(slabs_acquire(s, class, i, &slots[i]), 0);
        slabs_close_slab(s, slots[0].slab);
        slabs_release(s, slots[0]);
        assert_int_equal(slabs_acquire(s, class, 9, &slot), SLAB_FULL);
        assert_int_equal(slabs_acquire_in(s, slots[0].slab, 9, &slot), SLAB_FULL);
        slabs_reopen_slab(s, slots[0].slab);
        assert_int_equal(slabs_acquire(s, class, 9, &slots[0]), 0);
        assert_int_equal(slots[0].slab, slots[1].slab);
        check_sums(s);
        /* Emptied while it is closed, it is not an empty slab for others; then it is free. */
        slabs_close_slab(s, slots[0].slab);
        for (uint32_t i = 0; i < 4; i++)
                slabs_release(s, slots[i]);
        assert_int_equal(slabs_acquire(s, class_of(s, MIB), 9, &slot), SLAB_FULL);
        slabs_reclaim(s, slots[0].slab, NULL, NULL);
        assert_int_equal(slabs_acquire(s, class_of(s, MIB), 9, &slot), 0);
        assert_int_equal(slot.slab, slots[0].slab);
        /* Reopened, an empty slab goes to whichever class needs it. */
        slabs_release(s, slot);
        slabs_close_slab(s, slot.slab);
        assert_int_equal(slabs_acquire(s, class, 9, &slot), SLAB_FULL);
        slabs_reopen_slab(s, slots[0].slab);
        assert_int_equal(slabs_acquire(s, class, 9, &slot), 0);
        check_sums(s);
}

static void a_reclaimed_slab_is_free(void **state)
{
        _cleanup_(slabs_freep) struct slabs *s = make(2, MIB, MIB);
        unsigned class = class_of(s, 64 * KIB);
        struct slab_slot slot;
        struct owned o = { .slabs = s };

        assert_int_equal(slabs_acquire(s, class, 1, &slot), 0);
        slabs_release(s, slot);
        assert_int_equal(slabs_free_count(s), 1);
        slabs_reclaim(s, slot.slab, evict_owner, &o);
        assert_int_equal(slabs_free_count(s), 2);
        assert_int_equal(slabs_slab_class(s, slot.slab), -1);
        slabs_reclaim(s, slot.slab, evict_owner, &o);
        assert_int_equal(o.evicted, 0);
        /* Each used slot is evicted once, and no other. */
        for (uint32_t i = 0; i < ARRAY_SIZE(o.slots); i++)
                assert_int_equal(slabs_acquire(s, class, i, &o.slots[i]), 0);
        slot = o.slots[0];
        for (uint32_t i = 0; i < ARRAY_SIZE(o.slots); i++) {
                assert_int_equal(o.slots[i].slab, slot.slab);
                if (i % 3 == 1)
                        slabs_release(s, o.slots[i]);
        }
        slabs_reclaim(s, slot.slab, evict_owner, &o);
        for (uint32_t i = 0; i < ARRAY_SIZE(o.slots); i++)
                assert_int_equal(o.evicted >> i & 1, i % 3 != 1);
        assert_int_equal(slabs_free_count(s), 2);
        assert_int_equal(slabs_owner(s, slot), SLAB_NOBODY);
        check_sums(s);
}

static void the_fuller_slab_is_filled_before_the_empty_one(void **state)
{
        _cleanup_(slabs_freep) struct slabs *s = make(2, 64 * KIB, 64 * KIB);
        unsigned class = class_of(s, 16 * KIB);
        struct slab_slot slots[8], slot;

        for (uint32_t i = 0; i < 8; i++)
                assert_int_equal(slabs_acquire(s, class, i, &slots[i]), 0);
        slabs_release(s, slots[5]);
        for (uint32_t i = 0; i < 4; i++)
                slabs_release(s, slots[i]);
        assert_int_equal(slabs_acquire(s, class, 9, &slot), 0);
        assert_int_equal(slot.slab, slots[5].slab);
        assert_int_equal(used_in(s, slots[0].slab), 0);
}

static void recovery_occupies_slots_in_any_order_and_the_gaps_stay_usable(void **state)
{
        _cleanup_(slabs_freep) struct slabs *s = make(3, 256 * KIB, 256 * KIB);
        unsigned class = class_of(s, 16 * KIB);
        static const uint32_t taken[] = { 9, 2, 15, 3 };
        bool seen[16] = { 0 };
        struct slab_slot slot;

        assert_int_equal(slabs_assign(s, 1, class), 0);
        assert_int_equal(slabs_free_count(s), 2);
        for (uint32_t i = 0; i < ARRAY_SIZE(taken); i++) {
                assert_int_equal(slabs_occupy(s, (struct slab_slot){ 1, taken[i] }, 100 + i), 0);
                seen[taken[i]] = true;
        }
        for (uint32_t i = 0; i < ARRAY_SIZE(taken); i++)
                assert_int_equal(slabs_owner(s, (struct slab_slot){ 1, taken[i] }), 100 + i);
        assert_int_equal(slabs_owner(s, (struct slab_slot){ 1, 4 }), SLAB_NOBODY);
        assert_int_equal(used_in(s, 1), 4);

        for (uint32_t i = 0; i < 12; i++) {
                assert_int_equal(slabs_acquire(s, class, i, &slot), 0);
                assert_int_equal(slot.slab, 1);
                assert_false(seen[slot.slot]);
                seen[slot.slot] = true;
        }
        assert_int_equal(used_in(s, 1), 16);
        assert_int_equal(slabs_acquire(s, class, 1, &slot), 0);
        assert_int_not_equal(slot.slab, 1);
        check_sums(s);
}

static void recovery_may_fill_a_slab_and_release_from_it(void **state)
{
        _cleanup_(slabs_freep) struct slabs *s = make(1, 64 * KIB, 64 * KIB);
        unsigned class = class_of(s, 16 * KIB);
        struct slab_slot slot;

        assert_int_equal(slabs_assign(s, 0, class), 0);
        for (uint32_t i = 4; i-- > 0;)
                assert_int_equal(slabs_occupy(s, (struct slab_slot){ 0, i }, i), 0);
        assert_int_equal(slabs_acquire(s, class, 7, &slot), SLAB_FULL);
        slabs_release(s, (struct slab_slot){ 0, 2 });
        assert_int_equal(slabs_acquire(s, class, 7, &slot), 0);
        assert_int_equal(slot.slot, 2);
        assert_int_equal(slabs_acquire(s, class, 7, &slot), SLAB_FULL);
        for (uint32_t i = 0; i < 4; i++)
                slabs_release(s, (struct slab_slot){ 0, i });
        slabs_reclaim(s, 0, NULL, NULL);
        check_sums(s);
}

/* The list of free slots knows nothing of what recovery has occupied. */
static void recovery_may_release_before_anything_is_acquired(void **state)
{
        _cleanup_(slabs_freep) struct slabs *s = make(1, 256 * KIB, 256 * KIB);
        unsigned class = class_of(s, 16 * KIB);
        bool seen[16] = { 0 };
        struct slab_slot slot;

        for (uint32_t i = 0; i < 6; i++)
                assert_int_equal(slabs_acquire(s, class, i, &slot), 0);
        slabs_release(s, (struct slab_slot){ 0, 1 });
        slabs_release(s, (struct slab_slot){ 0, 4 });
        assert_int_equal(slabs_occupy(s, (struct slab_slot){ 0, 4 }, 44), 0);
        assert_int_equal(slabs_occupy(s, (struct slab_slot){ 0, 9 }, 99), 0);
        slabs_release(s, (struct slab_slot){ 0, 2 });
        slabs_release(s, (struct slab_slot){ 0, 3 });
        assert_int_equal(slabs_owner(s, (struct slab_slot){ 0, 4 }), 44);
        assert_int_equal(slabs_owner(s, (struct slab_slot){ 0, 9 }), 99);
        for (uint32_t i = 0; i < 12; i++) {
                assert_int_equal(slabs_acquire(s, class, i, &slot), 0);
                assert_false(seen[slot.slot]);
                assert_true(slot.slot != 0 && slot.slot != 4 && slot.slot != 5 && slot.slot != 9);
                seen[slot.slot] = true;
        }
        assert_int_equal(slabs_owner(s, (struct slab_slot){ 0, 4 }), 44);
        check_sums(s);
}

static void what_recovery_reads_from_a_disk_may_be_nonsense(void **state)
{
        _cleanup_(slabs_freep) struct slabs *s = make(2, MIB, 64 * KIB);
        unsigned class = class_of(s, 64 * KIB), large = class_of(s, 128 * KIB);

        assert_int_equal(slabs_assign(s, 2, class), -EINVAL);
        assert_int_equal(slabs_assign(s, UINT32_MAX, class), -EINVAL);
        assert_int_equal(slabs_assign(s, 0, slabs_class_count(s)), -EINVAL);
        assert_int_equal(slabs_assign(s, 1, large), -EINVAL);
        assert_int_equal(slabs_occupy(s, (struct slab_slot){ 0, 0 }, 1), -EINVAL);
        assert_int_equal(slabs_assign(s, 0, class), 0);
        assert_int_equal(slabs_assign(s, 0, class), -EEXIST);
        assert_int_equal(slabs_occupy(s, (struct slab_slot){ 0, 16 }, 1), -EINVAL);
        assert_int_equal(slabs_occupy(s, (struct slab_slot){ 0, UINT32_MAX }, 1), -EINVAL);
        assert_int_equal(slabs_occupy(s, (struct slab_slot){ 2, 0 }, 1), -EINVAL);
        assert_int_equal(slabs_occupy(s, (struct slab_slot){ UINT32_MAX, 0 }, 1), -EINVAL);
        assert_int_equal(slabs_occupy(s, (struct slab_slot){ 0, 15 }, 1), 0);
        assert_int_equal(slabs_occupy(s, (struct slab_slot){ 0, 15 }, 2), -EEXIST);
        assert_int_equal(slabs_owner(s, (struct slab_slot){ 0, 15 }), 1);
        check_sums(s);
}

/* The model: for each owner, the place it has. Overlap is looked for byte range by byte range. */
static void random_work_never_overlaps_and_never_leaks(void **state)
{
        enum { SLABS = 6, OWNERS = 300, ROUNDS = 20000 };
        static const uint64_t sizes[] = { 4096,     5000,      16 * KIB, 17 * KIB,
                                          50 * KIB, 128 * KIB, 200 * KIB };
        _cleanup_(slabs_freep) struct slabs *s = make(SLABS, 256 * KIB, 72 * KIB);
        struct {
                bool held;
                struct slab_slot slot;
                uint64_t bytes;
        } owners[OWNERS] = { 0 };
        uint32_t grains[SLABS][64]; /* owner + 1 of each 4 KiB */
        unsigned seed = 4711, full = 0, got = 0, held = 0;

        memset(grains, 0, sizeof(grains));
        assert_int_equal(slabs_declare_class(s, 200 * KIB), 0);
        for (int round = 0; round < ROUNDS; round++) {
                uint32_t o = (uint32_t)rand_r(&seed) % OWNERS;
                uint64_t offset;

                if (owners[o].held) {
                        assert_int_equal(slabs_owner(s, owners[o].slot), o);
                        offset = slabs_offset(s, owners[o].slot) / SLAB_GRAIN;
                        for (uint64_t g = 0; g < owners[o].bytes / SLAB_GRAIN; g++) {
                                assert_int_equal(grains[owners[o].slot.slab][offset + g], o + 1);
                                grains[owners[o].slot.slab][offset + g] = 0;
                        }
                        slabs_release(s, owners[o].slot);
                        owners[o].held = false;
                        held--;
                } else {
                        uint64_t want = sizes[(unsigned)rand_r(&seed) % ARRAY_SIZE(sizes)];
                        int r = slabs_acquire(s, class_of(s, want), o, &owners[o].slot);

                        if (r == SLAB_FULL) {
                                full++;
                                continue;
                        }
                        assert_int_equal(r, 0);
                        got++;
                        held++;
                        owners[o].held = true;
                        owners[o].bytes = slabs_slot_bytes(s, owners[o].slot);
                        assert_true(owners[o].bytes >= want);
                        offset = slabs_offset(s, owners[o].slot) / SLAB_GRAIN;
                        assert_true(offset + owners[o].bytes / SLAB_GRAIN <=
                                    (owners[o].slot.slab == SLABS - 1 ? 18 : 64));
                        for (uint64_t g = 0; g < owners[o].bytes / SLAB_GRAIN; g++) {
                                assert_int_equal(grains[owners[o].slot.slab][offset + g], 0);
                                grains[owners[o].slot.slab][offset + g] = o + 1;
                        }
                }
                if (round % 100 == 0) {
                        uint32_t used = 0;

                        check_sums(s);
                        for (uint32_t i = 0; i < SLABS; i++)
                                used += used_in(s, i);
                        assert_int_equal(used, held);
                }
        }
        assert_true(full > 100);
        assert_true(got > 1000);

        for (uint32_t o = 0; o < OWNERS; o++)
                if (owners[o].held)
                        slabs_release(s, owners[o].slot);
        check_sums(s);
        /* All slabs serve one class again. */
        for (uint32_t i = 0; i < SLABS - 1; i++) {
                struct slab_slot slot;

                assert_int_equal(slabs_acquire(s, class_of(s, 256 * KIB), i, &slot), 0);
        }
}

/* Owners and slots up to the limit take the fewest bits; the last slot number and the end of a free
 * list differ in any case. */
static void slots_are_the_same_with_few_owners(void **state)
{
        static const uint32_t limits[] = { 1, 255, 256, 65535, 65536, INT32_MAX };
        _cleanup_(slabs_freep) struct slabs *one = NULL;
        struct slab_slot slot;

        for (unsigned i = 0; i < ARRAY_SIZE(limits); i++) {
                most_owner = limits[i];
                one = make(1, 256 * KIB, 256 * KIB);
                for (uint32_t n = 0; n < 64; n++)
                        assert_int_equal(slabs_acquire(one, class_of(one, 4096),
                                                       n % 2 ? limits[i] : 0, &slot),
                                         0);
                assert_int_equal(slabs_acquire(one, class_of(one, 4096), 0, &slot), SLAB_FULL);
                for (uint32_t n = 0; n < 64; n++)
                        assert_int_equal(slabs_owner(one, (struct slab_slot){ 0, n }),
                                         n % 2 ? limits[i] : 0);
                for (uint32_t n = 63; n > 0; n--) /* slot 0 stays in use, and so the free list */
                        slabs_release(one, (struct slab_slot){ 0, n });
                for (uint32_t n = 63; n > 0; n--) {
                        assert_int_equal(slabs_acquire(one, class_of(one, 4096), 1, &slot), 0);
                        assert_int_equal(slot.slot, n);
                }
                assert_int_equal(slabs_acquire(one, class_of(one, 4096), 0, &slot), SLAB_FULL);
                check_sums(one);
                one = slabs_free(one);
        }
        most_owner = 300;
        random_work_never_overlaps_and_never_leaks(state);
        recovery_occupies_slots_in_any_order_and_the_gaps_stay_usable(state);
        recovery_may_fill_a_slab_and_release_from_it(state);
        slots_are_given_in_the_order_in_which_they_came_back(state);
        most_owner = 0;
}

static void the_memory_of_slots_follows_the_owners(void **state)
{
        _cleanup_(slabs_freep) struct slabs *s = NULL;

        assert_int_equal(slabs_new(&s, 1, MIB), 0);
        assert_int_equal(slabs_word_bytes(s, 1000), 4000);
        slabs_limit_owners(s, (1 << 23) - 1);
        assert_int_equal(slabs_word_bytes(s, 1000), 3000);
        slabs_limit_owners(s, 1); /* a slab may have 256 slots */
        assert_int_equal(slabs_word_bytes(s, 1000), 1250);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(sizes_that_make_no_sense_are_refused),
                cmocka_unit_test(slabs_are_added_up_to_the_number_announced),
                cmocka_unit_test(nothing_is_free_before_a_slab_is_added),
                cmocka_unit_test(shared_classes_are_close_and_on_the_grain),
                cmocka_unit_test(neighbouring_classes_are_at_most_an_eighth_apart),
                cmocka_unit_test(a_declared_size_gets_an_exact_class),
                cmocka_unit_test(a_full_table_of_classes_falls_back_to_the_shared_ones),
                cmocka_unit_test(a_slab_has_slots_of_one_group_only),
                cmocka_unit_test(a_full_table_of_groups_is_said),
                cmocka_unit_test(what_is_restored_has_its_class_whatever_is_declared),
                cmocka_unit_test(a_space_holds_exactly_what_fits_and_no_place_twice),
                cmocka_unit_test(slabs_are_cut_in_order_and_slots_given_in_order),
                cmocka_unit_test(a_released_slot_is_found_again),
                cmocka_unit_test(slots_are_given_in_the_order_in_which_they_came_back),
                cmocka_unit_test(a_slab_that_is_too_short_serves_smaller_classes_only),
                cmocka_unit_test(an_empty_slab_goes_to_the_class_that_asks),
                cmocka_unit_test(a_slab_in_use_is_never_taken_by_itself),
                cmocka_unit_test(a_closed_slab_gets_no_slots),
                cmocka_unit_test(a_reclaimed_slab_is_free),
                cmocka_unit_test(the_fuller_slab_is_filled_before_the_empty_one),
                cmocka_unit_test(recovery_occupies_slots_in_any_order_and_the_gaps_stay_usable),
                cmocka_unit_test(recovery_may_fill_a_slab_and_release_from_it),
                cmocka_unit_test(recovery_may_release_before_anything_is_acquired),
                cmocka_unit_test(what_recovery_reads_from_a_disk_may_be_nonsense),
                cmocka_unit_test(random_work_never_overlaps_and_never_leaks),
                cmocka_unit_test(slots_are_the_same_with_few_owners),
                cmocka_unit_test(the_memory_of_slots_follows_the_owners),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
