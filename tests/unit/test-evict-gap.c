/* SPDX-License-Identifier: Apache-2.0 */
/* The policy cq with a clock: mean gaps of chains, and new items that give way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "checked.h"
#include "cleanup.h"
#include "evict/evict.h"
#include "evict/gap.h"

DEFINE_CLEANUP(struct evict *, evict_free);

#define SECOND UINT64_C(1000000000)

static struct evict *make(uint32_t items)
{
        struct evict *e = NULL;

        assert_int_equal(evict_new(&e, "cq", items, 2), 0);
        evict_note_time(e, SECOND);
        return e;
}

static void at_second(struct evict *e, uint64_t seconds)
{
        evict_note_time(e, SECOND * (1 + seconds));
}

static enum evict_class class_of(const struct evict *e, uint32_t item)
{
        struct evict_standing s;

        evict_explain(e, item, 0, &s);
        return s.class;
}

static uint64_t ticks(double seconds)
{
        return (uint64_t)(seconds * GAP_TICKS_PER_S) + 1;
}

static void insert(struct evict *e, uint32_t item, uint64_t id, uint32_t use)
{
        evict_insert_known(e, item, 0, 1, id, use, EVICT_PLACE_UNKNOWN);
}

static void a_mean_fades_and_has_a_class(void **state)
{
        static const struct {
                uint32_t seconds;
                unsigned class;
        } cases[] = {
                { 1, 0 },  { 9, 0 },  { 11, 1 }, { 19, 1 },           { 21, 2 },
                { 38, 2 }, { 41, 3 }, { 76, 3 }, { 83, GAP_CLASSES }, { 100000, GAP_CLASSES }
        };
        uint8_t mean = GAP_UNKNOWN;

        assert_int_equal(gap_class(GAP_UNKNOWN), GAP_CLASSES);
        for (unsigned i = 0; i < ARRAY_SIZE(cases); i++)
                assert_int_equal(gap_class(gap_mean(GAP_UNKNOWN, ticks(cases[i].seconds))),
                                 cases[i].class);
        assert_int_equal(gap_mean(GAP_UNKNOWN, UINT32_MAX), GAP_MOST);
        mean = gap_mean(mean, ticks(100));
        assert_float_equal(gap_seconds(mean), 100, 3);
        mean = gap_mean(mean, ticks(10));
        assert_float_equal(gap_seconds(mean), 50, 2); /* 100^0.7 * 10^0.3 */
        for (int i = 0; i < 40; i++)
                mean = gap_mean(mean, ticks(10));
        assert_float_equal(gap_seconds(mean), 10, 1);
        /* Parts of one request, and a prompt that one engine hands to another. */
        assert_int_equal(gap_mean(mean, ticks(0.99)), mean);
        assert_int_equal(gap_mean(GAP_UNKNOWN, 0), GAP_UNKNOWN);
}

static void a_chain_has_the_class_of_its_gap(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8);
        uint8_t gap;

        insert(e, 0, 1, 7);
        assert_int_equal(evict_gap(e, 0), EVICT_NO_GAP);
        at_second(e, 15);
        gap = evict_chain_gap(e, 0, 8, NULL);
        assert_float_equal(gap_seconds(gap), 15, 0.5);
        assert_int_equal(evict_chain_gap(e, 0, 7, NULL),
                         EVICT_NO_GAP); /* the use that inserted it */
        evict_touch(e, 0, 0, 8);
        assert_int_equal(class_of(e, 0), EVICT_CLASS_TWICE);
        evict_set_gap(e, 0, gap);
        assert_int_equal(class_of(e, 0), EVICT_CLASS_TWICE);   /* one gap is no mean */
        assert_int_equal(evict_chain_gap(e, 0, 8, NULL), gap); /* measured once by each use */
        evict_set_gap(e, 0, EVICT_NO_GAP);
        assert_int_equal(evict_gap(e, 0), gap);
        at_second(e, 30);
        gap = evict_chain_gap(e, 0, 9, NULL);
        assert_float_equal(gap_seconds(gap), 15, 0.5);
        evict_touch(e, 0, 0, 9);
        evict_set_gap(e, 0, gap);
        assert_int_equal(class_of(e, 0), EVICT_CLASS_GAP_20);

        /* Other items of the request, which are new. Those of a third turn have seen two gaps. */
        for (uint32_t i = 1; i < 3; i++) {
                insert(e, i, 1 + i, 9);
                evict_set_gap(e, i, gap);
                assert_int_equal(class_of(e, i), EVICT_CLASS_ONCE);
                evict_set_turn(e, i, 0, 9, 1 + i, false);
                evict_touch(e, i, 0, 10);
        }
        assert_int_equal(class_of(e, 1), EVICT_CLASS_TWICE);
        assert_int_equal(class_of(e, 2), EVICT_CLASS_GAP_20);

        /* A slow chain returns to the classes by the number of uses, and a hint precedes both. */
        evict_set_gap(e, 0, gap_mean(GAP_UNKNOWN, ticks(1000)));
        assert_int_equal(class_of(e, 0), EVICT_CLASS_THRICE);
        assert_true(evict_hint(e, 0, EVICT_HINT_SOON));
        evict_set_gap(e, 0, gap);
        assert_int_equal(class_of(e, 0), EVICT_CLASS_RETURNS_SOON);
        evict_touch(e, 0, 0, 11);
        assert_int_equal(class_of(e, 0), EVICT_CLASS_GAP_20);
        /* A minute says less than the gap; other hints say more. */
        assert_true(evict_hint(e, 0, EVICT_HINT_SOON));
        assert_int_equal(class_of(e, 0), EVICT_CLASS_GAP_20);
        assert_true(evict_hint(e, 0, EVICT_HINT_LATER));
        assert_int_equal(class_of(e, 0), EVICT_CLASS_RETURNS_LATER);
        assert_true(evict_hint(e, 0, EVICT_HINT_FINAL));
        assert_int_equal(class_of(e, 0), EVICT_CLASS_FINAL);
}

static void a_ghost_keeps_the_gap(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8);
        uint8_t gap = gap_mean(GAP_UNKNOWN, ticks(30));

        insert(e, 0, 1, 6);
        evict_touch(e, 0, 0, 7);
        evict_set_gap(e, 0, gap);
        assert_int_equal(evict_remembered_gap(e, 1, NULL), EVICT_NO_GAP);
        evict_remove_victim(e, 0, 1);
        at_second(e, 30);
        assert_int_equal(evict_remembered_gap(e, 1, NULL), gap);
        assert_int_equal(evict_remembered_gap(e, 9, NULL), EVICT_NO_GAP);
        insert(e, 0, 1, 8);
        assert_int_equal(evict_gap(e, 0), gap);
        assert_int_equal(class_of(e, 0), EVICT_CLASS_GAP_40);
}

enum { HOT = 40, ROOM = 44 };

/* Fills a cache with chains that return every five steps, beside a stream of items that do not
 * return, until the policy has learned of both. Returns the next id of the stream. */
static uint64_t teach_slowly(struct evict *e, uint64_t *seconds, unsigned step)
{
        uint64_t id = 1000;
        uint32_t use = 1, stream[ROOM - HOT], n = 0;
        uint64_t ids[ROOM - HOT];

        for (uint32_t i = 0; i < HOT; i++)
                insert(e, i, i + 1, use);
        for (unsigned round = 0; round < 400; round++) {
                at_second(e, *seconds += step);
                use++;
                if (round % 5 == 0)
                        for (uint32_t i = HOT; i-- > 0;) {
                                uint8_t gap = evict_chain_gap(e, i, use, NULL);

                                evict_touch(e, i, 0, use);
                                evict_set_gap(e, i, gap);
                        }
                for (unsigned k = 0; k < 8; k++, id++) {
                        uint32_t item = HOT + n, slot = n;

                        if (n == ROOM - HOT) {
                                /* The hot items stay whatever the policy says, to be learned. */
                                slot = (uint32_t)(id % (ROOM - HOT));
                                item = stream[slot];
                                (void)evict_victim(e, 0, NULL, NULL, UINT32_MAX);
                                evict_remove_victim(e, item, ids[slot]);
                        } else {
                                n++;
                        }
                        stream[slot] = item;
                        ids[slot] = id;
                        insert(e, item, id, 100000 + use);
                }
        }
        /* Leave only items that return. */
        for (uint32_t i = 0; i < n; i++)
                evict_remove_victim(e, stream[i], ids[i]);
        return id;
}

static uint64_t teach(struct evict *e, uint64_t *seconds)
{
        return teach_slowly(e, seconds, 1);
}

static bool may_not(void *userdata, uint32_t item)
{
        return item != *(const uint32_t *)userdata;
}

static void a_new_item_of_less_worth_gives_way(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(ROOM);
        uint64_t seconds = 0, id = teach(e, &seconds);
        struct evict_record record;
        struct evict_standing s;
        struct evict_stats stats;
        uint32_t victim, pinned = HOT;
        uint64_t before;

        evict_get_stats(e, &stats);
        before = stats.yielded;
        /* A stream item takes the place of a victim, and is itself the next one. */
        victim = evict_victim(e, 0, NULL, NULL, UINT32_MAX);
        assert_true(victim < HOT);
        evict_insert_known(e, HOT, 0, 1, id, 500000, EVICT_PLACE_UNKNOWN);
        assert_true(evict_gives_way(e, HOT));
        evict_explain(e, HOT, 0, &s);
        assert_true(s.yields && s.is_next);
        evict_explain(e, victim, 0, &s);
        assert_false(s.is_next);
        assert_true(evict_worth(e, HOT, false) == 0);
        assert_int_equal(evict_victim(e, 0, NULL, NULL, UINT32_MAX), HOT);
        /* An item that must stay is passed over. */
        victim = evict_victim(e, 0, may_not, &pinned, UINT32_MAX);
        assert_true(victim < HOT);
        /* The state is saved. */
        evict_save_item(e, HOT, id, &record);
        assert_true(record.flags & EVICT_RECORD_YIELDS);
        /* The next item of the same request gives way, too, even if it was used before. */
        evict_insert_known(e, HOT + 1, 0, 1, id - 10, 500000, EVICT_PLACE_UNKNOWN);
        assert_true(evict_gives_way(e, HOT + 1));
        assert_int_equal(evict_victim(e, 0, NULL, NULL, UINT32_MAX), HOT + 1);
        evict_remove_victim(e, HOT + 1, id - 10);
        evict_get_stats(e, &stats);
        assert_int_equal(stats.yielded, before + 1);
        /* Another touch of the same use changes nothing; the next use ends it. */
        evict_touch(e, HOT, 0, 500000);
        assert_true(evict_gives_way(e, HOT));
        evict_touch(e, HOT, 0, 500001);
        assert_false(evict_gives_way(e, HOT));
        evict_remove(e, HOT);
}

static void without_a_search_for_room_no_item_gives_way(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(ROOM);
        uint64_t seconds = 0, id = teach(e, &seconds);
        uint32_t free = 0;

        /* Each insertion uses up one search; more insertions than searches had free slots. */
        for (uint32_t i = 0; i < 5000; i++) {
                insert(e, HOT, id + i, 600000 + i);
                free += !evict_gives_way(e, HOT);
                evict_remove(e, HOT);
        }
        assert_true(free > 0);
        insert(e, HOT, id + 5000, 700000);
        assert_false(evict_gives_way(e, HOT));
}

static void an_owner_admits_all_items(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(ROOM);
        uint64_t seconds = 0, id = teach(e, &seconds);

        for (uint32_t i = 0; i < 4; i++) {
                evict_admit_all(e, i % 2 == 0);
                (void)evict_victim(e, 0, NULL, NULL, UINT32_MAX);
                insert(e, HOT, id + i, 500000 + i);
                assert_int_equal(evict_gives_way(e, HOT), i % 2 != 0);
                evict_remove(e, HOT);
        }
}

/* The return times of such chains are not known, so a new item may be worth as much. */
static void no_item_gives_way_to_slow_chains(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(ROOM);
        uint64_t seconds = 0, id = teach_slowly(e, &seconds, 40);

        for (uint32_t i = 0; i < 1000; i++) {
                assert_true(evict_victim(e, 0, NULL, NULL, UINT32_MAX) < HOT);
                insert(e, HOT, id + i, 600000 + i);
                assert_false(evict_gives_way(e, HOT));
                evict_remove(e, HOT);
        }
}

/* Learns that items used twice return after two seconds, and nothing of quicker chains. */
static void learn_twice(struct evict *e, uint64_t *seconds)
{
        for (uint32_t i = 0; i < 1024; i++) {
                insert(e, 0, i + 1, 3 * i + 1);
                evict_touch(e, 0, 0, 3 * i + 2);
                at_second(e, *seconds += 2);
                evict_touch(e, 0, 0, 3 * i + 3);
                evict_remove(e, 0);
        }
        insert(e, 0, 5000, 5000);
        evict_touch(e, 0, 0, 5001);
        assert_int_equal(evict_victim(e, 0, NULL, NULL, UINT32_MAX), 0);
        assert_true(evict_chance(e, 0) > 0);
        evict_remove(e, 0);
}

static void a_quick_chain_counts_by_its_uses_until_its_class_is_learned(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8);
        uint64_t seconds = 0;

        learn_twice(e, &seconds);
        for (uint32_t i = 1; i < 3; i++) {
                insert(e, i, 6000 + i, 6000);
                evict_set_turn(e, i, 0, 6000, EVICT_LAST_TURN, false);
                evict_touch(e, i, 0, 6001);
        }
        evict_set_gap(e, 2, gap_mean(GAP_UNKNOWN, ticks(5)));
        assert_int_equal(class_of(e, 2), EVICT_CLASS_GAP_10);
        assert_true(evict_worth(e, 2, false) > 0);
        assert_true(evict_worth(e, 2, false) == evict_worth(e, 1, false));
        assert_true(evict_chance(e, 2) == evict_chance(e, 1));
        assert_int_equal(evict_victim(e, 0, NULL, NULL, UINT32_MAX), 1);
        /* The hint of a return, too, has no class yet and counts as if absent. */
        assert_true(evict_hint(e, 1, EVICT_HINT_LATER));
        evict_touch(e, 2, 0, 6001);
        assert_true(evict_worth(e, 1, false) == evict_worth(e, 2, false));
}

static void a_gap_leaves_new_items_in_their_place(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8);

        evict_insert_known(e, 0, 0, 1, 1, 7, EVICT_PLACE_CONTINUATION);
        evict_set_gap(e, 0, gap_mean(GAP_UNKNOWN, ticks(1000)));
        assert_int_equal(class_of(e, 0), EVICT_CLASS_ONCE_CONTINUED);
        evict_set_gap(e, 0, gap_mean(GAP_UNKNOWN, ticks(15)));
        assert_int_equal(class_of(e, 0), EVICT_CLASS_ONCE_CONTINUED);
}

static void list_first(void *userdata, uint32_t item)
{
        uint32_t *first = userdata;

        if (*first == EVICT_NONE)
                *first = item;
}

static void the_oldest_of_equals_is_the_next(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8);
        uint32_t first = EVICT_NONE;

        /* All within one tick, in lists of which the first has the youngest. */
        insert(e, 0, 1, 1);
        evict_touch(e, 0, 0, 2);
        insert(e, 1, 2, 3);
        assert_int_equal(evict_victim(e, 0, NULL, NULL, UINT32_MAX), 0);
        evict_next(e, 0, 2, list_first, &first);
        assert_int_equal(first, 0);
}

static void a_clock_of_months_keeps_ages(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8), *after = NULL;
        const uint64_t wraps = (UINT64_C(1) << 32 << GAP_TICK_BITS) / SECOND;
        static struct evict_learned learned;
        struct evict_record record;

        insert(e, 0, 1, 1);
        at_second(e, wraps - 10);
        insert(e, 1, 2, 2);
        insert(e, 2, 3, 2);
        evict_remove_victim(e, 2, 3);
        at_second(e, wraps + 10);
        assert_float_equal(gap_seconds(evict_chain_gap(e, 1, 3, NULL)), 20, 1);
        assert_float_equal(gap_seconds(evict_remembered_gap(e, 3, NULL)), 20, 1);
        assert_int_equal(evict_chain_gap(e, 0, 3, NULL), GAP_MOST);
        evict_save(e, &learned);
        assert_int_equal(learned.time_unit, 1);
        evict_save_item(e, 1, 2, &record);

        assert_int_equal(evict_new(&after, "cq", 8, 2), 0);
        evict_note_time(after, SECOND);
        evict_insert(after, 0, 0, 1);
        evict_insert(after, 1, 0, 1);
        assert_true(evict_restore(after, &learned));
        assert_true(evict_restore_item(after, 1, 0, &record));
        evict_note_time(after, 11 * SECOND);
        assert_float_equal(gap_seconds(evict_chain_gap(after, 1, 3, NULL)), 30, 1);

        learned.time_unit = 32;
        assert_false(evict_restore(after, &learned));
        learned.time_unit = 0;
        assert_false(evict_restore(after, &learned)); /* the time has more than 32 bits */
}

/* A request whose chunks are worth least does not evict its own beginning. */
static void a_search_spares_the_use_that_it_serves(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8);

        for (uint32_t i = 0; i < 3; i++)
                insert(e, i, i + 1, i == 2 ? 2 : 1);
        assert_int_equal(evict_victim(e, 0, NULL, NULL, UINT32_MAX), 0);
        evict_serve(e, 1);
        evict_touch(e, 2, 0, 3); /* younger, and in another list */
        assert_int_equal(evict_victim(e, 0, NULL, NULL, UINT32_MAX), 2);
        evict_serve(e, 3);
        assert_int_equal(evict_victim(e, 0, NULL, NULL, UINT32_MAX), 0);
        evict_serve(e, EVICT_NO_USE);
        /* All items are of the use: one of them leaves. */
        evict_remove(e, 2);
        evict_serve(e, 1);
        assert_int_equal(evict_victim(e, 0, NULL, NULL, UINT32_MAX), 0);
        evict_serve(e, EVICT_NO_USE);
}

static void a_client_ends_that_an_item_gives_way(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(ROOM);
        uint64_t seconds = 0, id = teach(e, &seconds);

        for (unsigned how = 0; how < 2; how++) {
                (void)evict_victim(e, 0, NULL, NULL, UINT32_MAX);
                insert(e, HOT, id + how, 500000 + how);
                assert_true(evict_gives_way(e, HOT));
                switch (how) {
                case 0: /* an ordinary item then, of the same worth */
                        assert_true(evict_hint(e, HOT, EVICT_HINT_SOON));
                        break;
                default:
                        evict_retain(e, HOT, 0, true);
                        assert_int_equal(evict_retained_victim(e, 0, NULL, NULL, UINT32_MAX), HOT);
                        break;
                }
                assert_false(evict_gives_way(e, HOT));
                if (how > 0)
                        assert_int_not_equal(evict_victim(e, 0, NULL, NULL, UINT32_MAX), HOT);
                evict_remove(e, HOT);
        }
}

static void an_item_that_gives_way_comes_back_from_a_lot(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(ROOM);
        uint64_t seconds = 0, id = teach(e, &seconds);

        (void)evict_victim(e, 0, NULL, NULL, UINT32_MAX);
        insert(e, HOT, id, 500000);
        evict_set_aside(e, HOT, 1);
        assert_false(evict_lot_is_empty(e, 1));
        assert_true(evict_victim(e, 0, NULL, NULL, UINT32_MAX) < HOT);
        evict_bring_back(e, HOT, 0);
        assert_true(evict_lot_is_empty(e, 1));
        assert_int_equal(evict_victim(e, 0, NULL, NULL, UINT32_MAX), HOT);
}

static void a_restored_item_keeps_gap_and_state(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(ROOM), *after = NULL;
        uint64_t seconds = 0, id = teach(e, &seconds);
        static struct evict_learned learned;
        struct evict_record records[2];

        (void)evict_victim(e, 0, NULL, NULL, UINT32_MAX);
        insert(e, HOT, id, 500000);
        evict_save(e, &learned);
        evict_save_item(e, 0, 1, &records[0]);
        evict_save_item(e, HOT, id, &records[1]);
        assert_int_equal(evict_new(&after, "cq", ROOM, 2), 0);
        evict_insert(after, 0, 0, 1);
        evict_insert(after, HOT, 0, 1);
        assert_true(evict_restore(after, &learned));
        assert_true(evict_restore_item(after, 0, 0, &records[0]));
        assert_true(evict_restore_item(after, HOT, 0, &records[1]));
        assert_int_equal(evict_gap(after, 0), evict_gap(e, 0));
        assert_int_equal(class_of(after, 0), class_of(e, 0));
        assert_false(evict_gives_way(after, 0));
        assert_true(evict_gives_way(after, HOT));
        assert_int_equal(evict_victim(after, 0, NULL, NULL, UINT32_MAX), HOT);
        /* The clock continues with the next reported time, whatever that is. */
        evict_note_time(after, 77 * SECOND);
        evict_touch(after, HOT, 0, 1);
        evict_note_time(after, 97 * SECOND);
        evict_touch(after, 0, 0, 1);
        assert_float_equal(gap_seconds(evict_chain_gap(after, HOT, 2, NULL)), 20, 1);
}

static void recency_ignores_gaps(void **state)
{
        _cleanup_(evict_freep) struct evict *e = NULL;

        assert_int_equal(evict_new(&e, "lru", 4, 1), 0);
        insert(e, 0, 1, 1);
        evict_set_gap(e, 0, 9);
        assert_int_equal(evict_gap(e, 0), EVICT_NO_GAP);
        assert_int_equal(evict_chain_gap(e, 0, 2, NULL), EVICT_NO_GAP);
        assert_int_equal(evict_remembered_gap(e, 1, NULL), EVICT_NO_GAP);
        assert_false(evict_gives_way(e, 0));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_mean_fades_and_has_a_class),
                cmocka_unit_test(a_chain_has_the_class_of_its_gap),
                cmocka_unit_test(a_ghost_keeps_the_gap),
                cmocka_unit_test(a_new_item_of_less_worth_gives_way),
                cmocka_unit_test(without_a_search_for_room_no_item_gives_way),
                cmocka_unit_test(an_owner_admits_all_items),
                cmocka_unit_test(no_item_gives_way_to_slow_chains),
                cmocka_unit_test(a_quick_chain_counts_by_its_uses_until_its_class_is_learned),
                cmocka_unit_test(a_gap_leaves_new_items_in_their_place),
                cmocka_unit_test(the_oldest_of_equals_is_the_next),
                cmocka_unit_test(a_clock_of_months_keeps_ages),
                cmocka_unit_test(a_search_spares_the_use_that_it_serves),
                cmocka_unit_test(a_client_ends_that_an_item_gives_way),
                cmocka_unit_test(an_item_that_gives_way_comes_back_from_a_lot),
                cmocka_unit_test(a_restored_item_keeps_gap_and_state),
                cmocka_unit_test(recency_ignores_gaps),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
