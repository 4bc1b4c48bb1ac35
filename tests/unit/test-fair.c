/* SPDX-License-Identifier: Apache-2.0 */
/* fair/: users by uid, round robin, windows of items in flight, fair queueing. Each primitive
 * serves a thousand members without starving one, with bounded work in each step. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/heap.h"
#include "checked.h"
#include "fair/sfq.h"
#include "fair/turns.h"
#include "fair/user.h"
#include "fair/window.h"

enum { MEMBERS = 1000 };

/* --- users --- */

struct mine {
        struct fair_state state;
        unsigned count;
};

static unsigned n_states;
static bool no_memory;

static int mine_init(struct fair_state *s)
{
        assert_int_equal(((struct mine *)s)->count, 0);
        if (no_memory)
                return -ENOMEM;
        n_states++;
        return 0;
}

static void mine_fini(struct fair_state *s)
{
        n_states--;
}

static void a_user_exists_while_it_is_referenced(void **state)
{
        struct fair_user *u = fair_user_get(7);

        assert_non_null(u);
        assert_ptr_equal(fair_user_get(7), u);
        assert_ptr_not_equal(fair_user_find(7), fair_user_find(8));
        assert_null(fair_user_find(8));
        fair_user_ref(u);
        for (unsigned i = 0; i < 3; i++) {
                assert_ptr_equal(fair_user_find(7), u);
                fair_user_unref(u);
        }
        assert_null(fair_user_find(7));
        assert_int_equal(fair_users(), 0);
}

static void each_room_has_its_own_state_of_a_user(void **state)
{
        struct fair_room first, second;
        struct fair_state *a, *b;

        fair_room_init(&first, sizeof(struct mine), mine_init, mine_fini);
        fair_room_init(&second, sizeof(struct mine), mine_init, mine_fini);
        assert_null(fair_state_find(&first, 7));
        a = fair_state_get(&first, 7);
        assert_null(fair_state_find(&second, 7));
        b = fair_state_get(&second, 7);
        assert_ptr_not_equal(a, b);
        assert_ptr_equal(a->user, b->user);
        assert_int_equal(a->user->uid, 7);
        assert_ptr_equal(fair_state_get(&first, 7), a);
        assert_ptr_equal(fair_state_find(&first, 7), a);
        assert_ptr_equal(fair_state_find(&second, 7), b);

        fair_user_unref(a->user);
        fair_user_unref(a->user);
        assert_int_equal(n_states, 2);
        fair_user_unref(b->user);
        assert_int_equal(n_states, 0);
        assert_true(list_empty(&first.states) && list_empty(&second.states));
}

static void a_room_may_end_before_its_users(void **state)
{
        struct fair_user *u = fair_user_get(7);
        struct fair_room first, second;
        struct fair_state *b;

        fair_room_init(&first, sizeof(struct mine), mine_init, mine_fini);
        fair_room_init(&second, sizeof(struct mine), mine_init, mine_fini);
        assert_non_null(fair_state_get(&first, 7));
        b = fair_state_get(&second, 7);
        fair_room_fini(&first);
        assert_int_equal(n_states, 1);
        assert_ptr_equal(fair_state_find(&second, 7), b);
        for (unsigned i = 0; i < 3; i++)
                fair_user_unref(u);
        assert_int_equal(n_states, 0);
        fair_room_fini(&second);
}

static void a_state_without_memory_leaves_no_user(void **state)
{
        struct fair_room room;

        fair_room_init(&room, sizeof(struct mine), mine_init, mine_fini);
        no_memory = true;
        assert_null(fair_state_get(&room, 7));
        no_memory = false;
        assert_int_equal(fair_users(), 0);
        fair_room_fini(&room);
}

/* Uids of containers differ by 65,536, and have the same low bits. */
static void a_flood_of_uids_leaves_no_users(void **state)
{
        struct fair_room room;

        fair_room_init(&room, sizeof(struct mine), mine_init, mine_fini);
        for (uint32_t i = 0; i < 100000; i++) {
                struct fair_state *s = fair_state_get(&room, i << 16 | i >> 16);

                s->user->refs++;
                fair_user_unref(s->user);
                if (i >= MEMBERS)
                        fair_user_unref(fair_user_find((i - MEMBERS) << 16 | (i - MEMBERS) >> 16));
                assert_int_equal(fair_users(), MIN(i + 1, (uint32_t)MEMBERS));
        }
        for (uint32_t i = 100000 - MEMBERS; i < 100000; i++)
                fair_user_unref(fair_user_find(i << 16 | i >> 16));
        assert_int_equal(fair_users(), 0);
        assert_int_equal(n_states, 0);
}

/* --- turns --- */

struct item {
        struct list_node node;
        unsigned member, number;
};

static struct turns_member members[MEMBERS];

static struct item *item_of(struct list_node *n)
{
        return n ? container_of(n, struct item, node) : NULL;
}

static void add(struct turns *t, struct item *i, unsigned member, unsigned number)
{
        i->member = member;
        i->number = number;
        turns_add(t, &members[member], &i->node);
}

static void init_turns(struct turns *t)
{
        turns_init(t);
        for (unsigned i = 0; i < MEMBERS; i++)
                turns_member_init(&members[i]);
}

static void members_are_served_in_turn_and_their_items_in_order(void **state)
{
        static struct item items[MEMBERS][3], flood[5000];
        struct turns t;

        init_turns(&t);
        assert_true(turns_is_empty(&t));
        assert_null(turns_take(&t));
        for (unsigned i = 0; i < ARRAY_SIZE(flood); i++)
                add(&t, &flood[i], 0, i);
        for (unsigned m = 1; m < MEMBERS; m++)
                for (unsigned k = 0; k < 3; k++)
                        add(&t, &items[m][k], m, k);
        for (unsigned k = 0; k < 3; k++)
                for (unsigned m = 0; m < MEMBERS; m++) {
                        const struct item *i = item_of(turns_take(&t));

                        assert_int_equal(i->member, m);
                        assert_int_equal(i->number, k);
                }
        for (unsigned k = 3; k < ARRAY_SIZE(flood); k++)
                assert_ptr_equal(turns_take(&t), &flood[k].node);
        assert_true(turns_is_empty(&t));
}

static void a_parked_member_does_not_delay_the_others(void **state)
{
        struct item a[2], b[2], c;
        struct turns t;

        init_turns(&t);
        add(&t, &a[0], 0, 0);
        add(&t, &a[1], 0, 1);
        add(&t, &b[0], 1, 0);
        add(&t, &b[1], 1, 1);
        turns_park(&t, &members[0]);
        add(&t, &c, 0, 2); /* stays parked */
        assert_ptr_equal(turns_take(&t), &b[0].node);
        turns_set_aside(&members[1], &b[1].node);
        turns_park(&t, &members[1]);
        assert_null(turns_next(&t));
        assert_null(turns_take(&t));
        assert_false(turns_is_empty(&t));
        add(&t, &b[0], 1, 2);
        turns_unpark(&t);
        assert_ptr_equal(turns_take(&t), &a[0].node);
        assert_ptr_equal(turns_take(&t), &b[1].node); /* precedes the one that came later */
        assert_ptr_equal(turns_take(&t), &a[1].node);
        assert_ptr_equal(turns_take(&t), &b[0].node);
        assert_ptr_equal(turns_take(&t), &c.node);
        assert_true(turns_is_empty(&t));
}

static void a_parked_member_with_items_set_aside_stays(void **state)
{
        struct item a[2];
        struct turns t;

        init_turns(&t);
        add(&t, &a[0], 0, 0);
        add(&t, &a[1], 0, 1);
        turns_set_aside(&members[0], &a[0].node);
        turns_park(&t, &members[0]);
        turns_remove(&members[0], &a[1].node);
        turns_unpark(&t);
        assert_ptr_equal(turns_take(&t), &a[0].node);
        assert_true(turns_is_empty(&t));
}

static void a_member_without_items_leaves_wherever_it_is(void **state)
{
        struct item a, b, c;
        struct turns t;

        init_turns(&t);
        add(&t, &a, 0, 0);
        add(&t, &b, 1, 0);
        add(&t, &c, 2, 0);
        turns_remove(&members[1], &b.node);
        turns_remove(&members[1], &b.node); /* harmless */
        turns_park(&t, &members[0]);
        turns_remove(&members[0], &a.node);
        turns_set_aside(&members[2], &c.node);
        turns_park(&t, &members[2]);
        assert_false(turns_is_empty(&t));
        turns_remove(&members[2], &c.node);
        assert_true(turns_is_empty(&t));
        turns_park(&t, &members[0]); /* has no items */
        turns_requeue(&t, &members[1]);
        assert_true(turns_is_empty(&t));
        memset(members, 0xaa, sizeof(members)); /* the callers may free their members */
        turns_unpark(&t);
        assert_null(turns_take(&t));
}

static void items_may_precede_and_be_drained(void **state)
{
        struct list_node all = LIST_INIT(all);
        struct item a[2], b[2];
        struct turns t;

        init_turns(&t);
        add(&t, &a[0], 0, 0);
        add(&t, &b[0], 1, 0);
        turns_add_first(&t, &members[0], &a[1].node);
        turns_add_first(&t, &members[1], &b[1].node);
        turns_park(&t, &members[0]);
        turns_drain(&t, &all);
        assert_true(turns_is_empty(&t));
        assert_ptr_equal(list_pop(&all), &b[1].node);
        assert_ptr_equal(list_pop(&all), &b[0].node);
        assert_ptr_equal(list_pop(&all), &a[1].node);
        assert_ptr_equal(list_pop(&all), &a[0].node);
        assert_true(list_empty(&members[0].turn) && list_empty(&members[1].turn));
}

static void members_move_between_round_robins(void **state)
{
        struct item a[2], b, c;
        struct turns t, other;

        init_turns(&t);
        turns_init(&other);
        add(&t, &a[0], 0, 0);
        add(&t, &b, 1, 0);
        turns_park(&t, &members[1]);
        add(&other, &c, 2, 0);
        turns_move(&other, &t);
        assert_true(turns_is_empty(&t));
        add(&t, &a[1], 0, 1); /* stays where its member is */
        assert_true(turns_is_empty(&t));
        assert_ptr_equal(turns_take(&other), &c.node);
        assert_ptr_equal(turns_take(&other), &a[0].node);
        assert_ptr_equal(turns_take(&other), &a[1].node);
        assert_null(turns_take(&other));
        turns_unpark(&other);
        assert_ptr_equal(turns_take(&other), &b.node);
        assert_true(turns_is_empty(&other));
}

/* A step changes the neighbours of the member in turn only. */
static void a_turn_touches_no_other_member(void **state)
{
        static struct turns_member before[MEMBERS];
        static struct item items[MEMBERS][2];
        struct turns t;

        init_turns(&t);
        for (unsigned m = 0; m < MEMBERS; m++)
                for (unsigned k = 0; k < 2; k++)
                        add(&t, &items[m][k], m, k);
        for (unsigned step = 0; step < 2 * MEMBERS; step++) {
                unsigned changed = 0;

                memcpy(before, members, sizeof(before));
                assert_non_null(turns_take(&t));
                for (unsigned m = 0; m < MEMBERS; m++)
                        changed += memcmp(&before[m], &members[m], sizeof(before[m])) != 0;
                assert_in_range(changed, 1, 3);
        }
}

/* --- windows --- */

static struct window_member readers[MEMBERS];

struct read {
        struct window_item item;
};

static unsigned member_of(const struct read *r)
{
        return (unsigned)(r->item.member - readers);
}

static void init_window(struct window *w)
{
        window_init(w, 2, 8, 1000);
        for (unsigned i = 0; i < MEMBERS; i++)
                assert_int_equal(window_member_init(&readers[i], w, NULL), 0);
}

static void fini_window(struct window *w)
{
        assert_int_equal(w->n_in_flight + w->bytes_in_flight + w->n_waiting, 0);
        for (unsigned i = 0; i < MEMBERS; i++)
                window_member_fini(&readers[i]);
        window_fini(w);
}

static void wait_for(struct read *r, unsigned member, uint32_t bytes, unsigned order)
{
        window_item_init(&r->item, &readers[member], bytes, order);
        window_wait(&r->item);
}

static struct read *submit_next(struct window *w)
{
        struct window_item *i = window_next(w);

        if (i)
                window_submit(i);
        return i ? container_of(i, struct read, item) : NULL;
}

static void done(struct read *r)
{
        window_done(&r->item);
        window_done(&r->item); /* idempotent */
}

static void a_window_is_limited_in_items_and_bytes(void **state)
{
        struct read r[9];
        struct window w;

        init_window(&w);
        for (unsigned i = 0; i < ARRAY_SIZE(r); i++) {
                assert_int_equal(window_is_open(&w, 1), i < 8);
                assert_true(window_is_open(&w, 2));
                window_item_init(&r[i].item, &readers[0], 100, 0);
                window_submit(&r[i].item);
        }
        for (unsigned i = 0; i < ARRAY_SIZE(r); i++)
                done(&r[i]);
        for (unsigned i = 0; i < 2; i++) { /* two of any size */
                assert_true(window_is_open(&w, 1));
                window_item_init(&r[i].item, &readers[0], 5000, 0);
                window_submit(&r[i].item);
        }
        assert_false(window_is_open(&w, 1));
        done(&r[0]);
        assert_true(window_is_open(&w, 1));
        done(&r[1]);
        fini_window(&w);
}

static void the_member_with_the_fewest_bytes_in_flight_is_next(void **state)
{
        struct read a[3], b[3], urgent;
        struct window w;

        init_window(&w);
        assert_null(window_next(&w));
        for (unsigned i = 0; i < 3; i++)
                wait_for(&a[i], 0, 100, 1);
        for (unsigned i = 0; i < 3; i++)
                wait_for(&b[i], 1, 60, 0);
        wait_for(&urgent, 0, 1, 0);
        assert_int_equal(readers[0].bytes, 301);
        assert_ptr_equal(submit_next(&w), &urgent); /* order 0 first; members are in turn */
        assert_ptr_equal(submit_next(&w), &b[0]);   /* 0 < 1 */
        assert_ptr_equal(submit_next(&w), &a[0]);   /* 1 < 60 */
        assert_ptr_equal(submit_next(&w), &b[1]);   /* 60 < 101 */
        assert_ptr_equal(submit_next(&w), &a[1]);   /* 101 < 120 */
        done(&a[0]);
        done(&a[1]);
        done(&urgent);
        assert_int_equal(readers[0].in_flight, 0);
        assert_ptr_equal(submit_next(&w), &a[2]);
        assert_ptr_equal(submit_next(&w), &b[2]);
        assert_null(submit_next(&w));
        for (unsigned i = 0; i < 3; i++)
                done(&b[i]);
        done(&a[2]);
        fini_window(&w);
}

/* An item may end before it is submitted; its member has had its turn all the same. */
static void members_with_equal_bytes_are_in_turn(void **state)
{
        struct read r[2][2];
        struct window w;

        init_window(&w);
        for (unsigned m = 0; m < 2; m++)
                for (unsigned k = 0; k < 2; k++)
                        wait_for(&r[m][k], m, 10, 0);
        for (unsigned i = 0; i < 4; i++)
                assert_ptr_equal(window_next(&w), &r[i % 2][i / 2].item);
        assert_null(window_next(&w));
        fini_window(&w);
}

/* One member floods the window; each of the others is served within one window of its items. */
static void no_member_of_a_thousand_starves(void **state)
{
        static struct read flood[5000], one[MEMBERS];
        struct read *flying[8];
        unsigned first = 0, served = 0;
        struct window w;

        init_window(&w);
        for (unsigned i = 0; i < ARRAY_SIZE(flood); i++)
                wait_for(&flood[i], 0, 10, 0);
        for (unsigned i = 0; i < ARRAY_SIZE(flying); i++)
                flying[i] = submit_next(&w);
        for (unsigned i = 1; i < MEMBERS; i++)
                wait_for(&one[i], i, 1, 0);
        while (served < MEMBERS - 1) {
                done(flying[first]);
                flying[first] = submit_next(&w);
                /* While the first member has bytes in flight, all others precede it, in turn. */
                if (member_of(flying[first]) != 0)
                        assert_int_equal(member_of(flying[first]), ++served);
                else
                        assert_int_equal(readers[0].in_flight, 10);
                first = (first + 1) % ARRAY_SIZE(flying);
        }
        assert_in_range(w.n_waiting, ARRAY_SIZE(flood) - 8 - MEMBERS / 4, ARRAY_SIZE(flood));
        for (unsigned i = 0; i < ARRAY_SIZE(flying); i++)
                done(flying[i]);
        for (unsigned i = 0; i < ARRAY_SIZE(flood); i++)
                done(&flood[i]); /* the waiting items leave */
        assert_null(submit_next(&w));
        fini_window(&w);
}

static void a_member_may_leave_while_it_waits_or_is_in_flight(void **state)
{
        static struct read r[MEMBERS][2];
        struct window w;

        init_window(&w);
        for (unsigned m = 0; m < MEMBERS; m++)
                for (unsigned k = 0; k < 2; k++)
                        wait_for(&r[m][k], m, 10, k);
        for (unsigned m = 0; m < MEMBERS; m += 2) /* waiting items */
                for (unsigned k = 0; k < 2; k++)
                        done(&r[m][k]);
        for (unsigned m = 1; m < MEMBERS; m += 2)
                assert_ptr_equal(submit_next(&w), &r[m][0]);
        for (unsigned m = 1; m < MEMBERS; m += 4) /* one item in flight, one waiting */
                for (unsigned k = 0; k < 2; k++)
                        done(&r[m][k]);
        for (unsigned m = 3; m < MEMBERS; m += 4)
                assert_ptr_equal(submit_next(&w), &r[m][1]);
        assert_null(submit_next(&w));
        for (unsigned m = 3; m < MEMBERS; m += 4)
                for (unsigned k = 0; k < 2; k++)
                        done(&r[m][k]);
        fini_window(&w);
}

/* --- fair queueing --- */

struct waits {
        struct list_node node;
        uint16_t tenant;
        uint64_t bytes;
};

static void enqueue(struct sfq *f, struct waits *w, uint16_t tenant, uint64_t bytes)
{
        *w = (struct waits){ .tenant = tenant, .bytes = bytes };
        list_init(&w->node);
        sfq_append(f, tenant, &w->node, bytes);
}

static struct waits *serve(struct sfq *f)
{
        struct list_node *node = sfq_first(f, 0);
        struct waits *w = node ? container_of(node, struct waits, node) : NULL;

        if (w) {
                sfq_charge(f, w->tenant, w->bytes);
                sfq_remove(f, w->tenant, node, w->bytes);
        }
        return w;
}

static void those_of_a_tenant_are_served_in_order(void **state)
{
        struct waits all[20];
        struct sfq f;

        sfq_init(&f);
        assert_null(sfq_first(&f, 0));
        assert_true(sfq_is_empty(&f));
        for (unsigned i = 0; i < ARRAY_SIZE(all); i++)
                enqueue(&f, &all[i], 3, i);
        sfq_remove(&f, 3, &all[7].node, 7); /* its deadline */
        for (unsigned i = 0; i < ARRAY_SIZE(all); i++)
                if (i != 7)
                        assert_ptr_equal(serve(&f), &all[i]);
        assert_null(serve(&f));
        assert_int_equal(sfq_flow(&f, 3)->bytes, 0);
}

static void tenants_get_the_same_bytes_however_much_they_have_waiting(void **state)
{
        static struct waits many[2000], few[20];
        uint64_t bytes[3] = { 0 };
        struct sfq f;

        sfq_init(&f);
        for (unsigned i = 0; i < ARRAY_SIZE(many); i++)
                enqueue(&f, &many[i], 1, 100);
        for (unsigned i = 0; i < ARRAY_SIZE(few); i++)
                enqueue(&f, &few[i], 2, 1000);
        for (unsigned i = 0; sfq_flow(&f, 2)->n > 0; i++) {
                const struct waits *w = serve(&f);

                bytes[w->tenant] += w->bytes;
                assert_in_range(bytes[1] + 1000, bytes[2], bytes[2] + 2000);
        }
        assert_int_equal(bytes[2], 20000);
        while (serve(&f))
                ;
}

static void a_tenant_that_had_nothing_waiting_has_no_credit(void **state)
{
        static struct waits of_one[1000], of_two[100];
        uint64_t served[3] = { 0 };
        struct sfq f;

        sfq_init(&f);
        for (unsigned i = 0; i < ARRAY_SIZE(of_one); i++)
                enqueue(&f, &of_one[i], 1, 100);
        for (unsigned i = 0; i < 500; i++)
                serve(&f);
        for (unsigned i = 0; i < ARRAY_SIZE(of_two); i++)
                enqueue(&f, &of_two[i], 2, 100);
        for (unsigned i = 0; i < 40; i++)
                served[serve(&f)->tenant]++;
        assert_in_range(served[1], 19, 21);
        assert_ptr_equal(sfq_first(&f, UINT64_C(1) << 1), sfq_flow(&f, 2)->waiting.next);
        assert_ptr_equal(sfq_first(&f, UINT64_C(1) << 2), sfq_flow(&f, 1)->waiting.next);
        assert_null(sfq_first(&f, 3 << 1));
}

/* --- the heap --- */

enum { NODES = 4096, DEPTH = 13 };

/* Returns how many nodes of the heap one step has moved. */
static unsigned moved(const struct heap *h, struct heap_node **before)
{
        unsigned n = 0;

        for (unsigned i = 1; i <= h->n; i++) {
                assert_int_equal(h->nodes[i]->place, i);
                n += h->nodes[i] != before[i];
                before[i] = h->nodes[i];
        }
        return n;
}

static void a_step_of_the_heap_moves_one_path(void **state)
{
        static struct heap_node nodes[NODES], *before[NODES + 1];
        uint64_t seed = 1, last = 0;
        struct heap h = { 0 };

        for (unsigned i = 0; i < NODES; i++) {
                assert_int_equal(heap_reserve(&h, i + 1), 0);
                seed = seed * UINT64_C(6364136223846793005) + 1;
                heap_add(&h, &nodes[i], seed >> 50);
                assert_true(moved(&h, before) <= DEPTH);
        }
        for (unsigned i = 0; i < NODES; i += 3) {
                heap_change(&h, &nodes[i], NODES - i);
                assert_true(moved(&h, before) <= DEPTH);
        }
        for (unsigned i = 0; i < NODES; i += 5) {
                heap_remove(&h, &nodes[i]);
                heap_remove(&h, &nodes[i]);
                assert_true(moved(&h, before) <= DEPTH);
        }
        for (struct heap_node *n; (n = heap_first(&h));) {
                assert_true(n->key >= last);
                last = n->key;
                heap_remove(&h, n);
                assert_true(moved(&h, before) <= DEPTH);
        }
        heap_fini(&h);
}

static void equal_keys_leave_the_heap_in_the_order_of_their_addition(void **state)
{
        struct heap_node nodes[100] = { 0 };
        struct heap h = { 0 };

        assert_int_equal(heap_reserve(&h, ARRAY_SIZE(nodes)), 0);
        for (unsigned i = 0; i < ARRAY_SIZE(nodes); i++)
                heap_add(&h, &nodes[i], 3);
        heap_add(&h, &nodes[0], 3);    /* moves behind the others */
        heap_change(&h, &nodes[9], 9); /* and back: keeps its order */
        heap_change(&h, &nodes[9], 3);
        for (unsigned i = 0; i < ARRAY_SIZE(nodes); i++) {
                struct heap_node *n = heap_first(&h);

                assert_ptr_equal(n, &nodes[(i + 1) % ARRAY_SIZE(nodes)]);
                heap_remove(&h, n);
        }
        heap_fini(&h);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_user_exists_while_it_is_referenced),
                cmocka_unit_test(each_room_has_its_own_state_of_a_user),
                cmocka_unit_test(a_room_may_end_before_its_users),
                cmocka_unit_test(a_state_without_memory_leaves_no_user),
                cmocka_unit_test(a_flood_of_uids_leaves_no_users),
                cmocka_unit_test(members_are_served_in_turn_and_their_items_in_order),
                cmocka_unit_test(a_parked_member_does_not_delay_the_others),
                cmocka_unit_test(a_parked_member_with_items_set_aside_stays),
                cmocka_unit_test(a_member_without_items_leaves_wherever_it_is),
                cmocka_unit_test(items_may_precede_and_be_drained),
                cmocka_unit_test(members_move_between_round_robins),
                cmocka_unit_test(a_turn_touches_no_other_member),
                cmocka_unit_test(a_window_is_limited_in_items_and_bytes),
                cmocka_unit_test(the_member_with_the_fewest_bytes_in_flight_is_next),
                cmocka_unit_test(members_with_equal_bytes_are_in_turn),
                cmocka_unit_test(no_member_of_a_thousand_starves),
                cmocka_unit_test(a_member_may_leave_while_it_waits_or_is_in_flight),
                cmocka_unit_test(those_of_a_tenant_are_served_in_order),
                cmocka_unit_test(tenants_get_the_same_bytes_however_much_they_have_waiting),
                cmocka_unit_test(a_tenant_that_had_nothing_waiting_has_no_credit),
                cmocka_unit_test(a_step_of_the_heap_moves_one_path),
                cmocka_unit_test(equal_keys_leave_the_heap_in_the_order_of_their_addition),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
