/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule of reads before announced returns, with a clock that the tests set. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cache/prefetch.h"
#include "checked.h"

#define SECOND UINT64_C(1000000000)
#define MS     UINT64_C(1000000)

enum { USER = 1000, OTHER = 2000, NS = 7, OTHER_NS = 8, CHUNK = 64 * 1024, RATE = 1 << 30 };

/* A read that the schedule has asked for. */
struct asked {
        uint32_t user, number;
        struct evict_promise promise;
        uint64_t at_ns;
        bool free_only;
};

static struct {
        struct announced *announced;
        uint32_t blocked;      /* keys below this number are refused */
        uint32_t other_length; /* the length of chunks of OTHER; 0: CHUNK */
        struct prefetch *prefetch;
        uint64_t now_ns, announcements;
        enum prefetch_answer answer;
        struct asked asked[70000];
        unsigned n_asked, n_started;
        bool completes; /* reads end at once, after the iteration */
        bool is_full;   /* reads that may evict nothing are refused */
} f;

static uint32_t number_of(const struct key *key)
{
        uint32_t number;

        memcpy(&number, key->bytes, sizeof(number));
        return number;
}

static enum prefetch_answer on_read(void *userdata, const struct prefetch_chunk *chunk,
                                    uint32_t *ret_bytes)
{
        assert_ptr_equal(userdata, &f);
        assert_in_range(f.n_asked, 0, ARRAY_SIZE(f.asked) - 1);
        f.asked[f.n_asked++] = (struct asked){ .user = chunk->user,
                                               .number = number_of(chunk->key),
                                               .promise = chunk->promise,
                                               .at_ns = f.now_ns,
                                               .free_only = chunk->free_only };
        if (f.is_full && chunk->free_only)
                return PREFETCH_NO_ROOM;
        if (number_of(chunk->key) < f.blocked)
                return PREFETCH_BLOCKED;
        if (f.answer == PREFETCH_STARTED) {
                *ret_bytes = chunk->user == OTHER && f.other_length ? f.other_length : CHUNK;
                f.n_started++;
        }
        return f.answer;
}

static int setup(void **state)
{
        memset(&f, 0, sizeof(f));
        f.now_ns = 1000 * SECOND;
        f.completes = true;
        f.answer = PREFETCH_STARTED;
        assert_int_equal(announced_new(&f.announced), 0);
        assert_int_equal(
                prefetch_new(&f.prefetch, &(struct prefetch_params){ .announced = f.announced,
                                                                     .bytes_per_second = RATE,
                                                                     .read = on_read,
                                                                     .userdata = &f }),
                0);
        return 0;
}

static int teardown(void **state)
{
        f.prefetch = prefetch_free(f.prefetch);
        f.announced = announced_free(f.announced);
        return 0;
}

static struct prefetch_stats stats(void)
{
        struct prefetch_stats s;

        prefetch_get_stats(f.prefetch, &s);
        return s;
}

static uint64_t outcomes(enum prefetch_outcome outcome)
{
        return stats().outcomes[outcome];
}

/* Ends the reads in flight. */
static void complete(void)
{
        while (stats().inflight_bytes > 0)
                prefetch_read_done(f.prefetch,
                                   (uint32_t)MIN(stats().inflight_bytes, (uint64_t)CHUNK),
                                   f.now_ns);
}

static uint64_t iterate(void)
{
        uint64_t next_ns = prefetch_iterate(f.prefetch, f.now_ns);

        if (f.completes)
                complete();
        return next_ns;
}

/* Runs the schedule at the times that it names, until this time. */
static void run_until(uint64_t ns)
{
        uint64_t next_ns = iterate();

        while (next_ns != 0 && next_ns <= ns) {
                f.now_ns = MAX(f.now_ns, next_ns);
                next_ns = iterate();
        }
        f.now_ns = MAX(f.now_ns, ns);
}

/* Makes announcements of a user come true, or not. */
static void give_record(uint32_t user, unsigned n, bool is_true)
{
        for (uint64_t i = 1; i <= n; i++) {
                uint64_t id = (uint64_t)user << 32 | i;

                announced_make(f.announced, user, id, ANNOUNCED_RETURN, is_true ? 1 : 3600,
                               f.now_ns);
                announced_use(f.announced, user, id, f.now_ns + (is_true ? SECOND : 0));
        }
}

/* Schedules a part of the chain of the last announcement. Its keys have the numbers from `first`,
 * the root first. Returns whether it was scheduled. */
static bool announce_part(uint32_t namespace_id, uint32_t user, uint64_t id, uint32_t seconds,
                          uint32_t first, uint32_t n)
{
        struct key *keys;

        keys = prefetch_announce(f.prefetch,
                                 &(struct prefetch_return){ .user = user,
                                                            .namespace_id = namespace_id,
                                                            .id = id,
                                                            .seconds = seconds,
                                                            .number = f.announcements,
                                                            .n = n },
                                 f.now_ns);
        for (uint32_t i = 0; keys && i < n; i++) {
                uint32_t number = first + i;

                keys[i] = (struct key){ 0 };
                memcpy(keys[i].bytes, &number, sizeof(number));
        }
        return keys != NULL;
}

/* Announces a chain, or its end. Returns whether it was scheduled. */
static bool announce_in(uint32_t namespace_id, uint32_t user, uint64_t id, uint32_t seconds,
                        uint32_t first, uint32_t n)
{
        announced_make(f.announced, user, id, ANNOUNCED_RETURN, seconds, f.now_ns);
        f.announcements++;
        return announce_part(namespace_id, user, id, seconds, first, n);
}

static bool announce(uint32_t user, uint64_t id, uint32_t seconds, uint32_t first, uint32_t n)
{
        return announce_in(NS, user, id, seconds, first, n);
}

static void chains_are_read_in_the_order_of_their_times_and_before_them(void **state)
{
        uint64_t began_ns = f.now_ns;

        give_record(USER, 4, true);
        assert_true(announce(USER, 1, 40, 100, 4));
        assert_true(announce(USER, 2, 10, 200, 4));
        assert_true(announce(USER, 3, 20, 300, 4));
        assert_int_equal(stats().chains, 3);
        run_until(began_ns + 5 * SECOND);
        assert_int_equal(f.n_asked, 0);
        run_until(began_ns + 60 * SECOND);
        assert_int_equal(f.n_asked, 12);
        for (uint32_t i = 0; i < 12; i++) {
                uint32_t due_s = i < 4 ? 10 : i < 8 ? 20 : 40;

                assert_int_equal(f.asked[i].number, (i < 4 ? 200 : i < 8 ? 300 : 100) + i % 4);
                assert_in_range(f.asked[i].at_ns, began_ns + due_s * SECOND / 2,
                                began_ns + due_s * SECOND - 100 * MS);
                assert_int_equal(f.asked[i].user, USER);
                assert_in_range(f.asked[i].promise.seconds, 1, due_s / 4);
                assert_true(f.asked[i].promise.belief > PREFETCH_LEAST_BELIEF);
        }
        assert_int_equal(outcomes(PREFETCH_READ), 3);
        assert_int_equal(stats().chains + stats().keys, 0);
        assert_int_equal(iterate(), 0);
}

/* Returns the lead of a chain of `n` keys. */
static uint64_t lead_of(uint64_t id, uint32_t seconds, uint32_t n)
{
        uint64_t due_ns = f.now_ns + seconds * SECOND;
        unsigned before = f.n_asked;

        assert_true(announce(USER, id, seconds, 0, n));
        run_until(due_ns);
        assert_true(f.n_asked > before);
        return due_ns - f.asked[before].at_ns;
}

static void the_lead_grows_with_the_reads_and_is_bounded(void **state)
{
        uint64_t slow;

        give_record(USER, 4, true);
        assert_in_range(lead_of(1, 2, 1), 20 * MS, SECOND);
        assert_in_range(lead_of(2, 1, 1024), 500 * MS, 500 * MS); /* half of the announced time */
        assert_in_range(lead_of(3, 4000, 1), 30 * SECOND, 30 * SECOND);
        prefetch_set_rate(f.prefetch, 8 << 20);
        slow = lead_of(4, 100, 512); /* 32 MiB of 64 KiB each, or more if the mean is still large */
        assert_true(slow > 4 * SECOND + 8 * SECOND);
        assert_true(slow > lead_of(5, 100, 1));
}

/* The loop runs 30 ms late each time. */
static void the_lead_grows_with_the_delay_of_the_reads(void **state)
{
        uint64_t prompt;

        give_record(USER, 20, true);
        prompt = lead_of(1, 10, 1);
        for (uint64_t id = 2; id < 100; id++) {
                assert_true(announce(USER, id, 10, 0, 1));
                f.now_ns = iterate() + 30 * MS;
                (void)iterate();
                f.now_ns += 10 * SECOND;
        }
        assert_in_range(lead_of(100, 10, 1), prompt + 50 * MS, prompt + 60 * MS);
}

/* Lets chains return `parts` hundredths of the announced time after they were announced. */
static void return_after(uint32_t user, uint64_t first_id, unsigned times, unsigned parts)
{
        for (uint64_t id = first_id; id < first_id + times; id++) {
                (void)announced_make(f.announced, user, id, ANNOUNCED_RETURN, 100, f.now_ns);
                f.now_ns += parts * SECOND;
                announced_use(f.announced, user, id, f.now_ns);
        }
}

static void the_lead_follows_how_early_chains_return(void **state)
{
        uint64_t unknown, exact, early;

        give_record(USER, 4, true);
        unknown = lead_of(1, 100, 1);
        return_after(USER, 1000, 200, 100);
        exact = lead_of(2, 100, 1);
        return_after(USER, 2000, 200, 96);
        early = lead_of(3, 100, 1);
        assert_in_range(unknown, 4 * SECOND, 6 * SECOND);
        assert_in_range(exact, 20 * MS, 60 * MS);
        assert_in_range(early, 10 * SECOND, 13 * SECOND);
        return_after(USER, 3000, 200, 60);
        assert_in_range(lead_of(4, 100, 1), 25 * SECOND, 26 * SECOND);
}

/* Chains that return up to a quarter of their time early are read that early. A twentieth of the
 * time, divided by that quarter, is a fifth of the chain. */
static void chains_read_early_evict_for_a_part_of_their_chunks_only(void **state)
{
        return_after(USER, 1000, 200, 80);
        assert_true(announce(USER, 1, 100, 0, 40));
        run_until(f.now_ns + 100 * SECOND);
        assert_int_equal(f.n_started, 40);
        for (unsigned i = 0; i < 40; i++)
                assert_int_equal(f.asked[i].free_only, i >= 8);
        f.is_full = true;
        assert_true(announce(USER, 2, 100, 0, 40));
        run_until(f.now_ns + 100 * SECOND);
        assert_int_equal(f.n_started, 48);
        assert_int_equal(f.n_asked, 49);
        assert_int_equal(outcomes(PREFETCH_READ), 2);
        /* Chains that return in time are read whole. */
        return_after(USER, 2000, 400, 100);
        assert_true(announce(USER, 3, 100, 0, 40));
        run_until(f.now_ns + 100 * SECOND);
        assert_int_equal(f.n_started, 88);
        assert_int_equal(outcomes(PREFETCH_READ), 3);
}

static void a_chain_that_was_used_or_announced_again_is_not_read(void **state)
{
        uint64_t began_ns = f.now_ns;

        give_record(USER, 8, true);
        assert_true(announce(USER, 1, 10, 100, 4));
        assert_true(announce(USER, 2, 10, 200, 4));
        announced_use(f.announced, USER, 1, f.now_ns + 6 * SECOND);
        f.now_ns += 5 * SECOND;
        assert_true(announce(USER, 2, 30, 200, 4));
        run_until(began_ns + 20 * SECOND);
        assert_int_equal(f.n_asked, 0);
        assert_int_equal(outcomes(PREFETCH_ENDED), 2);
        run_until(began_ns + 60 * SECOND);
        assert_int_equal(f.n_asked, 4);
        assert_in_range(f.asked[0].at_ns, began_ns + 20 * SECOND, began_ns + 35 * SECOND);
}

static void a_user_without_true_announcements_gets_nothing(void **state)
{
        assert_true(announce(USER, 1, 4, 100, 4)); /* no outcome yet */
        give_record(OTHER, 40, false);
        assert_true(announce(OTHER, 2, 4, 200, 4));
        run_until(f.now_ns + 20 * SECOND);
        assert_int_equal(f.n_asked, 0);
        assert_int_equal(outcomes(PREFETCH_DISBELIEVED), 2);
        assert_int_equal(stats().chains, 0);
}

/* Belief counts when the chain is due: what was believed before is of no use to a liar. */
static void a_user_that_begins_to_lie_gets_nothing_more(void **state)
{
        give_record(USER, 8, true);
        assert_true(announce(USER, 1, 20, 100, 4));
        give_record(USER, 40, false);
        run_until(f.now_ns + 60 * SECOND);
        assert_int_equal(f.n_asked, 0);
        assert_int_equal(outcomes(PREFETCH_DISBELIEVED), 1);
}

static void reads_keep_to_the_budget(void **state)
{
        uint64_t began_ns = f.now_ns, first_ns;

        prefetch_set_rate(f.prefetch, 16 * CHUNK);
        give_record(USER, 8, true);
        assert_true(announce(USER, 1, 200, 0, 512));
        run_until(began_ns + 400 * SECOND);
        assert_true(f.n_asked > 100);
        first_ns = f.asked[0].at_ns;
        for (unsigned i = 0; i < f.n_asked; i++) {
                uint64_t passed_ns = f.asked[i].at_ns - first_ns;

                /* A quarter of a second's budget accrues at most, and one chunk may exceed it. */
                assert_true(i <= passed_ns * 16 / SECOND + 16 / 4 + 1);
        }
        /* The announced time is over before all are read. */
        assert_int_equal(f.n_asked < 512, outcomes(PREFETCH_LATE));
}

static void reads_in_flight_are_bounded(void **state)
{
        unsigned most = PREFETCH_INFLIGHT_BYTES / CHUNK;

        f.completes = false;
        give_record(USER, 8, true);
        assert_true(announce(USER, 1, 10, 0, 2 * most));
        f.now_ns += 9900 * MS;
        for (unsigned i = 0; i < 100; i++)
                (void)iterate();
        assert_int_equal(f.n_started, most);
        assert_true(iterate() > f.now_ns); /* the loop sleeps meanwhile */
        prefetch_read_done(f.prefetch, CHUNK, f.now_ns + MS);
        (void)iterate();
        assert_int_equal(f.n_started, most + 1);
        f.now_ns += 10 * MS;
        complete();
        for (unsigned i = 0; i < 100; i++)
                (void)iterate();
        complete();
        assert_int_equal(f.n_started, 2 * most);
        assert_true(stats().rate > 0);
}

/* A user with many due chains does not delay another one. */
static void users_are_served_in_turn(void **state)
{
        unsigned at = 0;

        prefetch_set_rate(f.prefetch, 16 * CHUNK);
        give_record(USER, 30, true);
        give_record(OTHER, 30, true);
        for (uint32_t i = 0; i < 30; i++)
                assert_true(announce(USER, 1 + i, 8, 1000 * i, 1000));
        f.now_ns += 100 * MS;
        assert_true(announce(OTHER, 100, 8, 0, 8));
        run_until(f.now_ns + 7900 * MS);
        for (unsigned of_other = 0; of_other < 8; at++) {
                assert_true(at < f.n_asked);
                of_other += f.asked[at].user == OTHER;
        }
        assert_true(at <= 8 * 16); /* not behind 30,000 keys */
}

/* A user gets no more of the budget because its chunks are large. */
static void users_share_the_bytes(void **state)
{
        uint64_t bytes[2] = { 0 };

        give_record(USER, 4, true);
        give_record(OTHER, 4, true);
        f.other_length = 4 << 20;
        prefetch_set_rate(f.prefetch, 64 << 20);
        assert_true(announce(OTHER, 1, 100, 0, 1000));
        for (uint32_t i = 0; i < 16; i++)
                assert_true(announce(USER, 2 + i, 100, 1000 * (1 + i), 1000));
        f.now_ns += 95 * SECOND;
        run_until(f.now_ns + 4 * SECOND);
        for (unsigned i = 0; i < f.n_asked; i++)
                bytes[f.asked[i].user == OTHER] +=
                        f.asked[i].user == OTHER ? f.other_length : CHUNK;
        assert_in_range(bytes[0] + bytes[1], UINT64_C(240) << 20, UINT64_C(290) << 20);
        assert_in_range(bytes[0], bytes[1] - (8 << 20), bytes[1] + (8 << 20));
}

static void an_iteration_handles_a_limited_number_of_keys(void **state)
{
        give_record(USER, 8, true);
        f.answer = PREFETCH_ABSENT;
        assert_true(announce(USER, 1, 10, 0, 1000));
        f.now_ns += 9 * SECOND;
        assert_int_equal(iterate(), f.now_ns); /* again at once */
        assert_in_range(f.n_asked, 1, PREFETCH_STEPS);
        for (unsigned i = 0; i < 40; i++)
                (void)iterate();
        assert_int_equal(f.n_asked, 1000);
        assert_int_equal(outcomes(PREFETCH_IN_MEMORY), 1);
}

static void a_refused_read_is_tried_again_until_it_is_too_late(void **state)
{
        uint64_t began_ns = f.now_ns;

        give_record(USER, 8, true);
        f.answer = PREFETCH_BUSY;
        assert_true(announce(USER, 1, 10, 0, 4));
        assert_true(announce(USER, 2, 60, 100, 4));
        run_until(began_ns + 10 * SECOND);
        assert_true(f.n_asked > 1);
        assert_int_equal(f.asked[f.n_asked - 1].number, 0);
        f.answer = PREFETCH_STARTED;
        run_until(began_ns + 10 * SECOND + 10 * MS);
        assert_int_equal(f.n_started, 4);
        f.answer = PREFETCH_BUSY;
        run_until(began_ns + 100 * SECOND);
        assert_int_equal(outcomes(PREFETCH_LATE), 1);
        assert_int_equal(stats().chains, 0);
}

/* Chains whose devices are busy, or whose sizes have no room, come first by their times. They cost
 * each iteration a limited number of attempts. */
static void blocked_chains_delay_no_other(void **state)
{
        enum { BLOCKED = 40 };
        uint64_t began_ns = f.now_ns, next_ns;

        give_record(USER, 20, true);
        f.blocked = BLOCKED;
        for (uint32_t i = 0; i < BLOCKED; i++)
                assert_true(announce(USER, 1 + i, 100, i, 1));
        assert_true(announce(USER, 1 + BLOCKED, 101, 100, 4));
        f.now_ns = began_ns + 99 * SECOND;
        next_ns = iterate();
        assert_in_range(f.n_asked, 1, PREFETCH_STEPS / 8);
        assert_int_equal(next_ns, f.now_ns + 2 * MS);
        run_until(began_ns + 100 * SECOND);
        assert_int_equal(f.n_started, 4);
        assert_int_equal(outcomes(PREFETCH_READ), 1);
        assert_int_equal(stats().chains, BLOCKED);
        /* Each is tried again, and is late in the end. */
        f.blocked = BLOCKED / 2;
        run_until(began_ns + 100 * SECOND + 300 * MS);
        assert_int_equal(outcomes(PREFETCH_READ), 1 + BLOCKED / 2);
        run_until(began_ns + 120 * SECOND);
        assert_int_equal(outcomes(PREFETCH_LATE), BLOCKED / 2);
        assert_int_equal(stats().chains, 0);
}

/* Blocked reads have no bytes, and must not take the turns of other users. */
static void blocked_chains_delay_no_other_user(void **state)
{
        enum { BLOCKED = 100, STARTED = 20 };

        give_record(USER, 20, true);
        give_record(OTHER, 20, true);
        f.blocked = BLOCKED;
        for (uint32_t i = 0; i < BLOCKED; i++)
                assert_true(announce(USER, 1 + i, 100, i, 1));
        assert_true(announce(OTHER, 1 + BLOCKED, 100, 1000, STARTED));
        f.now_ns += 99 * SECOND;
        (void)iterate();
        assert_int_equal(f.n_started, STARTED);
        assert_int_equal(outcomes(PREFETCH_READ), 1);
}

static void a_chain_that_is_worth_less_is_given_up(void **state)
{
        give_record(USER, 8, true);
        f.answer = PREFETCH_NO_ROOM;
        assert_true(announce(USER, 1, 10, 0, 100));
        run_until(f.now_ns + 60 * SECOND);
        assert_int_equal(f.n_asked, 1);
        assert_int_equal(outcomes(PREFETCH_WORTH_LESS), 1);
}

static void a_user_has_at_most_half_of_the_schedule(void **state)
{
        unsigned scheduled = 0;

        give_record(USER, 30, true);
        give_record(OTHER, 30, true);
        while (announce(USER, 1 + scheduled, 100, 0, 1024))
                scheduled++;
        assert_int_equal(scheduled, PREFETCH_KEYS / 2 / 1024);
        assert_int_equal(outcomes(PREFETCH_REFUSED), 1);
        assert_true(announce(OTHER, 1000, 100, 0, 1024));
        /* Chains whose announcement has ended make room. */
        announced_use(f.announced, USER, 1, f.now_ns);
        assert_false(announce(USER, 2000, 100, 0, 1024)); /* searched a moment ago */
        f.now_ns += 100 * MS;
        assert_true(announce(USER, 2000, 100, 0, 1024));
        assert_int_equal(outcomes(PREFETCH_ENDED), 1);
}

/* Chains that were used long before their announced time leave no user without room. */
static void ended_chains_of_other_users_make_room(void **state)
{
        enum { EACH = PREFETCH_KEYS / 2 / 1024, THIRD = 3000 };

        for (uint32_t user = USER; user <= OTHER; user += OTHER - USER) {
                give_record(user, 30, true);
                for (uint32_t i = 1; i <= EACH; i++) {
                        assert_true(announce(user, user + i, 3600, 0, 1024));
                        announced_use(f.announced, user, user + i, f.now_ns + 60 * SECOND);
                }
        }
        f.now_ns += 60 * SECOND;
        give_record(THIRD, 30, true);
        assert_true(announce(THIRD, 9000, 100, 0, 1024));
        assert_int_equal(outcomes(PREFETCH_ENDED), 2 * EACH);
        assert_int_equal(stats().chains, 1);
}

static void ended_chains_of_other_users_free_their_records(void **state)
{
        for (uint32_t i = 0; i < PREFETCH_USERS; i++) {
                assert_true(announce(USER + i, 1 + i, 3600, 0, 1));
                announced_use(f.announced, USER + i, 1 + i, f.now_ns + SECOND);
        }
        f.now_ns += SECOND;
        assert_true(announce(USER + PREFETCH_USERS, 1000, 3600, 0, 1));
        assert_int_equal(stats().chains, 1);
}

static void more_users_than_records_are_refused(void **state)
{
        for (uint32_t i = 0; i < PREFETCH_USERS; i++)
                assert_true(announce(USER + i, 1 + i, 4, 0, 1));
        (void)announce(USER + PREFETCH_USERS, 1000, 4, 0, 1);
        assert_int_equal(stats().chains, PREFETCH_USERS);
        run_until(f.now_ns + 20 * SECOND);
        give_record(OTHER, 8, true);
        (void)announce(OTHER, 2000, 4, 0, 1);
        run_until(f.now_ns + 20 * SECOND);
        assert_int_equal(stats().chains, 0);
}

static void chains_of_a_purged_namespace_are_dropped(void **state)
{
        give_record(USER, 30, true);
        for (uint32_t i = 0; i < 50; i++) /* in a mixed order, which the heap has to keep */
                assert_true(
                        announce_in(i % 3 ? NS : OTHER_NS, USER, 1 + i, 10 + i * 37 % 50, i, 1));
        prefetch_forget(f.prefetch, false, NS);
        assert_int_equal(stats().chains, 17);
        assert_int_equal(stats().keys, 17);
        assert_int_equal(outcomes(PREFETCH_DROPPED), 33);
        run_until(f.now_ns + 200 * SECOND);
        assert_int_equal(f.n_asked, 17);
        for (unsigned i = 0; i < f.n_asked; i++) {
                assert_int_equal(f.asked[i].number % 3, 0);
                assert_true(i == 0 ||
                            f.asked[i - 1].number * 37 % 50 <= f.asked[i].number * 37 % 50);
        }
        assert_true(announce(USER, 100, 10, 0, 1));
        prefetch_forget(f.prefetch, true, 0);
        assert_int_equal(stats().chains, 0);
}

static void stopping_lets_reads_in_flight_complete(void **state)
{
        f.completes = false;
        give_record(USER, 8, true);
        assert_true(announce(USER, 1, 10, 0, 10));
        f.now_ns += 9800 * MS;
        f.answer = PREFETCH_STARTED;
        (void)iterate();
        assert_true(stats().inflight_bytes > 0);
        assert_true(announce(USER, 2, 10, 0, 10));
        prefetch_stop(f.prefetch);
        assert_int_equal(stats().chains, 0);
        assert_false(announce(USER, 3, 10, 0, 10));
        assert_int_equal(iterate(), 0);
        complete();
        assert_int_equal(stats().inflight_bytes, 0);
}

static void a_rate_of_zero_switches_prefetching_off(void **state)
{
        give_record(USER, 8, true);
        assert_true(announce(USER, 1, 10, 0, 10));
        prefetch_set_rate(f.prefetch, 0);
        assert_int_equal(stats().chains, 0);
        assert_false(announce(USER, 2, 10, 0, 10));
        run_until(f.now_ns + 60 * SECOND);
        assert_int_equal(f.n_asked, 0);
        prefetch_set_rate(f.prefetch, RATE);
        assert_true(announce(USER, 3, 10, 0, 10));
        run_until(f.now_ns + 60 * SECOND);
        assert_int_equal(f.n_asked, 10);
}

static void odd_announcements_are_refused(void **state)
{
        struct prefetch_return r = {
                .user = USER, .namespace_id = NS, .id = 9, .seconds = 5, .number = 1, .n = 1
        };

        give_record(USER, 8, true);
        assert_null(prefetch_announce(f.prefetch, &r, f.now_ns)); /* not recorded */
        assert_false(announce(USER, 1, 5, 0, 0));                 /* no keys */
        announced_make(f.announced, OTHER, 9, ANNOUNCED_RETURN, 5, f.now_ns);
        assert_null(prefetch_announce(f.prefetch, &r, f.now_ns)); /* another user's */
        assert_true(announce(USER, 2, UINT32_MAX, 0, 1));
        assert_true(announce(USER, 3, 1, 1, 1));
        run_until(f.now_ns + SECOND);
        assert_int_equal(f.n_asked, 1);
        assert_int_equal(f.asked[0].number, 1);
        assert_int_equal(stats().chains, 1);
}

/* --- chains that are announced in parts --- */

/* Clients announce the parts one after the other, the end first. Only the end is measured. */
static void parts_of_a_chain_are_read_as_one_from_its_root(void **state)
{
        enum { PART = 1024 };
        uint64_t lead, due_ns, before;

        give_record(USER, 20, true);
        prefetch_set_rate(f.prefetch, 128 << 20);
        (void)lead_of(8, 100, 3 * PART); /* measures the length of a chunk */
        lead = lead_of(9, 100, 3 * PART);
        before = f.n_asked;
        due_ns = f.now_ns + 100 * SECOND;
        assert_true(announce(USER, 3, 100, 2 * PART, PART));
        for (uint32_t i = 2; i > 0; i--) {
                f.now_ns += MS;
                assert_true(announce_part(NS, USER, i, 100, (i - 1) * PART, PART));
        }
        assert_int_equal(stats().chains, 1);
        assert_int_equal(stats().keys, 3 * PART);
        run_until(due_ns);
        assert_int_equal(f.n_asked - before, 3 * PART);
        for (uint32_t i = 0; i < 3 * PART; i++)
                assert_int_equal(f.asked[before + i].number, i);
        assert_in_range(due_ns - f.asked[before].at_ns, lead - 2 * MS, lead + 2 * MS);
        assert_int_equal(stats().chains + stats().keys, 0);
        assert_int_equal(outcomes(PREFETCH_READ), 3);
}

/* The chunks that a chain may read by evicting others are its first ones. */
static void parts_of_a_chain_evict_as_one(void **state)
{
        unsigned evicting = 0;

        give_record(USER, 20, true);
        return_after(USER, 100, 200, 80);
        assert_true(announce(USER, 2, 100, 50, 50));
        assert_true(announce_part(NS, USER, 1, 100, 0, 50));
        run_until(f.now_ns + 100 * SECOND);
        assert_int_equal(f.n_asked, 100);
        for (uint32_t i = 0; i < 100; i++) {
                assert_int_equal(f.asked[i].number, i);
                assert_true(i == 0 || !f.asked[i - 1].free_only || f.asked[i].free_only);
                evicting += !f.asked[i].free_only;
        }
        assert_in_range(evicting, 10, 40);
}

/* A part belongs to the chain with its number, as long as that is scheduled. */
static void a_part_extends_only_its_own_chain(void **state)
{
        give_record(USER, 20, true);
        assert_true(announce(USER, 2, 100, 10, 10));
        assert_true(announce(USER, 1, 100, 0, 10)); /* the second ends where the first begins */
        assert_int_equal(stats().chains, 2);
        prefetch_forget(f.prefetch, true, 0);
        assert_false(announce_part(NS, USER, 9, 100, 0, 10));
        assert_int_equal(stats().chains + stats().keys, 0);
}

/* Reads that have begun are not put off for a part that is announced later. */
static void a_part_does_not_extend_a_chain_that_is_being_read(void **state)
{
        give_record(USER, 20, true);
        assert_true(announce(USER, 2, 10, 10, 10));
        f.answer = PREFETCH_BUSY;
        f.now_ns += 10 * SECOND;
        (void)iterate();
        assert_int_equal(f.n_asked, 1);
        assert_false(announce_part(NS, USER, 1, 10, 0, 10));
        f.answer = PREFETCH_STARTED;
        run_until(f.now_ns + 10 * SECOND);
        assert_int_equal(f.n_asked, 11);
        assert_int_equal(f.asked[1].number, 10);
}

/* Without room for a part, what follows it is not read either. */
static void a_part_without_room_ends_the_chain_after_it(void **state)
{
        enum { PART = 1024, PARTS = PREFETCH_KEYS / 2 / PART };

        give_record(USER, 20, true);
        assert_true(announce(USER, PARTS, 1000, 0, PART));
        for (uint32_t i = 1; i < PARTS; i++)
                assert_true(announce_part(NS, USER, PARTS - i, 1000, 0, PART));
        assert_int_equal(stats().chains, 1);
        assert_int_equal(stats().keys, PREFETCH_KEYS / 2);
        for (unsigned i = 0; i < 2; i++) {
                assert_false(announce_part(NS, USER, 2 * PARTS, 1000, 0, PART));
                assert_int_equal(outcomes(PREFETCH_REFUSED), 1);
                assert_int_equal(stats().chains + stats().keys, 0);
        }
        assert_true(announce(USER, 1, 1000, 0, PART));
}

/* A chain of many short parts takes as much of the schedule as many chains. */
static void parts_count_as_chains(void **state)
{
        give_record(USER, 20, true);
        assert_true(announce(USER, 1, 1000, 0, 1));
        for (unsigned i = 1; i < PREFETCH_CHAINS / 2; i++)
                assert_true(announce_part(NS, USER, 1 + i, 1000, 0, 1));
        assert_int_equal(stats().chains, 1);
        assert_false(announce_part(NS, USER, PREFETCH_CHAINS, 1000, 0, 1));
        assert_int_equal(stats().chains, 0);
        assert_true(announce(USER, 1, 1000, 0, 1));
}

/* Only the chains announced last can be extended. */
static void parts_of_chains_that_were_announced_long_ago_are_not_scheduled(void **state)
{
        uint64_t first;

        give_record(USER, 20, true);
        assert_true(announce(USER, 1, 1000, 0, 1));
        first = f.announcements;
        for (uint64_t id = 2; id < PREFETCH_CHAINS / 2; id++)
                assert_true(announce(USER, id, 1000, (uint32_t)id, 1));
        assert_true(announce_part(NS, USER, 9999, 1000, 0, 1));
        f.announcements = first;
        assert_false(announce_part(NS, USER, 9999, 1000, 0, 1));
        assert_int_equal(stats().chains, PREFETCH_CHAINS / 2 - 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(chains_are_read_in_the_order_of_their_times_and_before_them),
                TEST(the_lead_grows_with_the_reads_and_is_bounded),
                TEST(the_lead_grows_with_the_delay_of_the_reads),
                TEST(the_lead_follows_how_early_chains_return),
                TEST(chains_read_early_evict_for_a_part_of_their_chunks_only),
                TEST(a_chain_that_was_used_or_announced_again_is_not_read),
                TEST(a_user_without_true_announcements_gets_nothing),
                TEST(a_user_that_begins_to_lie_gets_nothing_more),
                TEST(reads_keep_to_the_budget),
                TEST(reads_in_flight_are_bounded),
                TEST(users_are_served_in_turn),
                TEST(users_share_the_bytes),
                TEST(an_iteration_handles_a_limited_number_of_keys),
                TEST(a_refused_read_is_tried_again_until_it_is_too_late),
                TEST(blocked_chains_delay_no_other),
                TEST(blocked_chains_delay_no_other_user),
                TEST(a_chain_that_is_worth_less_is_given_up),
                TEST(a_user_has_at_most_half_of_the_schedule),
                TEST(ended_chains_of_other_users_make_room),
                TEST(ended_chains_of_other_users_free_their_records),
                TEST(more_users_than_records_are_refused),
                TEST(chains_of_a_purged_namespace_are_dropped),
                TEST(stopping_lets_reads_in_flight_complete),
                TEST(a_rate_of_zero_switches_prefetching_off),
                TEST(odd_announcements_are_refused),
                TEST(parts_of_a_chain_are_read_as_one_from_its_root),
                TEST(parts_of_a_chain_evict_as_one),
                TEST(a_part_extends_only_its_own_chain),
                TEST(a_part_does_not_extend_a_chain_that_is_being_read),
                TEST(a_part_without_room_ends_the_chain_after_it),
                TEST(parts_count_as_chains),
                TEST(parts_of_chains_that_were_announced_long_ago_are_not_scheduled),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
