/* SPDX-License-Identifier: Apache-2.0 */
/* store/ with several volumes: one list of namespaces for all, whichever volumes were offline when
 * a namespace was created or removed. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "../lib/killed.h"
#include "base/clock.h"
#include "checked.h"
#include "volumes-fixture.h"

static void a_volume_that_was_offline_learns_the_namespaces(void **state)
{
        uint32_t id, again;

        start("01");
        assert_int_equal(device(store_suspend, 1), 0);
        assert_int_equal(open_namespace("new", &id), 0);
        restart("01");
        assert_int_equal(open_namespace("new", &again), 0);
        assert_int_equal(again, id);
        restart("1");
        assert_int_equal(open_namespace("new", &again), 0);
        assert_int_equal(again, id);
        stop();
}

/* The names created without the volume take more room than it has left. */
static void a_volume_that_is_full_learns_the_namespaces(void **state)
{
        static char fingerprint[STORE_MAX_FINGERPRINT + 1];
        const unsigned names = 200;
        uint32_t id;

        memset(fingerprint, 'f', sizeof(fingerprint) - 1);
        t.limit = 16 * MIB;
        start("01");
        assert_int_equal(device(store_suspend, 0), 0);
        put_range(0, t.limit / 2 / LENGTH);
        assert_true(stats().evictions > 0);
        assert_int_equal(device(store_resume, 0), 0);
        assert_int_equal(device(store_suspend, 1), 0);
        for (unsigned i = 0; i < names; i++) {
                char name[16];

                snprintf(name, sizeof(name), "name-%u", i);
                assert_int_equal(open_with(name, fingerprint, &id), 0);
        }
        assert_int_equal(device(store_resume, 1), 0);
        restart("1");
        assert_true(has_namespace("name-0"));
        assert_true(has_namespace("name-199"));
        stop();
}

static void what_is_removed_while_a_volume_is_offline_does_not_come_back_with_it(void **state)
{
        for (unsigned round = 0; round < 4; round++) {
                char name[16];
                uint32_t id, other;

                snprintf(name, sizeof(name), "name-%u", round);
                start("012");
                assert_int_equal(open_namespace(name, &id), 0);
                t.ns = id;
                put_range(round * 1000, MANY);
                assert_int_equal(remove_namespace(id), STORE_BUSY);
                assert_int_equal(device(store_suspend, 1), 0);
                assert_int_equal(purge(), 0);
                assert_int_equal(remove_namespace(id), 0);
                assert_int_equal(open_namespace("other", &other), 0);
                assert_int_equal(remove_namespace(other), 0);
                if (round % 2 == 0) {
                        assert_int_equal(device(store_resume, 1), 0);
                } else {
                        restart("012");
                        assert_int_equal(stats_of(1).state, STORE_VOLUME_UP);
                }
                assert_false(has_namespace(name));
                assert_false(has_namespace("other"));
                t.ns = id;
                assert_int_equal(count_hits(round * 1000, MANY), 0);
                if (round >= 2) {
                        assert_int_equal(open_namespace(name, &t.ns), 0);
                        assert_int_not_equal(t.ns, id);
                        assert_int_equal(count_hits(round * 1000, MANY), 0);
                        put_range(round * 1000, 20);
                }
                restart("1");
                assert_int_equal(has_namespace(name), round >= 2);
                restart("120");
                assert_int_equal(has_namespace(name), round >= 2);
                if (round >= 2) {
                        assert_int_equal(open_namespace(name, &t.ns), 0);
                        assert_int_equal(count_hits(round * 1000, 20), 20);
                }
                stop();
        }
}

static void a_removal_that_one_volume_cannot_write_costs_that_volume(void **state)
{
        uint32_t id;

        start("01");
        assert_int_equal(open_namespace("name", &id), 0);
        settle();
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE,
                                        .volume = 2,
                                        .kind = FAULT_ERROR,
                                        .error = EIO,
                                        .first = 1 });
        assert_int_equal(remove_namespace(id), 0);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_BYPASSED);
        fault_set(NULL);
        settle();
        assert_int_equal(device(store_resume, 1), 0);
        assert_false(has_namespace("name"));
        restart("01");
        assert_false(has_namespace("name"));
        stop();
}

/* Suspends volume 1 after it has written the change, and before volume 0, then the last one,
 * fails. */
static void leave_the_last_volume_without(bool is_removal)
{
        struct purge p = { .req = { .namespace_id = t.ns, .complete = purge_done } };
        struct removal r = { .req = { .complete = removed } };
        uint32_t id;

        start("01");
        assert_int_equal(open_namespace("name", &id), 0);
        put_range(0, MANY);
        settle();
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .volume = 1, .kind = FAULT_NEVER, .first = 1 });
        r.req.id = id;
        if (is_removal)
                store_namespace_remove(t.s, &r.req);
        else
                store_purge(t.s, &p.req);
        wait_hits(1);
        while (stats_of(1).pending > 0) {
                wait_io();
                turn();
        }
        assert_int_equal(device(store_suspend, 1), 0);
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_SYNC,
                                        .volume = 1,
                                        .kind = FAULT_ERROR,
                                        .error = EIO,
                                        .first = 1 });
        fault_release();
        wait_for(is_removal ? &r.done : &p.done);
        assert_int_equal(fault_hits(), 1);
        assert_true((is_removal ? r.req.result : p.req.result) < 0);
        assert_int_equal(stats_of(0).state, STORE_VOLUME_UP);
        fault_set(NULL);
        assert_int_equal(purge(), 0);
        stop();
}

static void what_the_last_volume_cannot_write_is_not_answered_as_purged(void **state)
{
        leave_the_last_volume_without(false);
}

static void what_the_last_volume_cannot_write_is_not_answered_as_removed(void **state)
{
        leave_the_last_volume_without(true);
}

static void without_a_volume_nothing_is_removed(void **state)
{
        uint32_t id;

        start("01");
        assert_int_equal(open_namespace("name", &id), 0);
        assert_int_equal(device(store_suspend, 0), 0);
        assert_int_equal(device(store_suspend, 1), 0);
        assert_int_equal(remove_namespace(id), -EIO);
        assert_true(has_namespace("name"));
        stop();
}

static void a_volume_that_cannot_take_the_namespaces_stays_offline(void **state)
{
        struct rlimit before, little;
        char name[200];
        uint32_t id;
        int r;

        start("01");
        put_range(0, MANY);
        assert_int_equal(device(store_suspend, 1), 0);
        /* Creates more namespaces than the allocated part of their files holds. */
        memset(name, 'n', sizeof(name) - 1);
        name[sizeof(name) - 1] = '\0';
        for (unsigned i = 0; i < 100; i++) {
                memcpy(name, (char[]){ (char)('a' + i / 10), (char)('a' + i % 10) }, 2);
                assert_int_equal(open_namespace(name, &id), 0);
        }
        settle();
        assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
        little = before;
        little.rlim_cur = 16 * KIB;
        signal(SIGXFSZ, SIG_IGN);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
        r = device(store_resume, 1);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        signal(SIGXFSZ, SIG_DFL);
        assert_int_equal(r, -EFBIG);
        assert_non_null(strstr(t.text, "namespaces"));
        assert_int_equal(stats_of(1).state, STORE_VOLUME_BYPASSED);

        assert_int_equal(device(store_resume, 1), 0);
        assert_int_equal(count_hits(0, MANY), MANY);
        stop();
}

/* Dies when the first volume has everything on disk, and the second nothing. The caller's name and
 * fingerprint are overwritten at once. */
static void die_amid_a_removal(void)
{
        char name[] = "name", fingerprint[] = "f";
        struct removal r = { .req = { .complete = removed } };
        struct opening o = { .req = { .name = name,
                                      .name_length = sizeof(name) - 1,
                                      .fingerprint = fingerprint,
                                      .fingerprint_length = sizeof(fingerprint) - 1,
                                      .complete = opened } };
        uint32_t id = 0;

        start("01");
        assert_int_equal(open_namespace(name, &id), 0);
        settle();
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE,
                                        .volume = 2,
                                        .kind = FAULT_NEVER,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
        r.req.id = id;
        store_namespace_remove(t.s, &r.req);
        store_namespace_open(t.s, &o.req);
        memset(name, 'x', sizeof(name));
        memset(fingerprint, 'x', sizeof(fingerprint));
        wait_hits(1);
        while (stats_of(0).pending > 0) {
                wait_io();
                turn();
        }
        assert_false(r.done);
        assert_false(o.done);
}

static void a_name_whose_removal_a_kill_cuts_off_contradicts_nothing(void **state)
{
        uint32_t id;

        in_killed_process(die_amid_a_removal);
        start("01");
        assert_int_equal(open_namespace("name", &id), 0);
        stop();
}

static void an_open_of_what_is_being_removed_waits_and_makes_it_anew(void **state)
{
        char names[3][8] = { "name", "name", "name" }, fingerprints[3][8] = { "f", "g", "" };
        struct opening o[3];
        struct removal r = { .req = { .complete = removed } };
        uint32_t id = 0, other;

        start("01");
        assert_int_equal(open_namespace("name", &id), 0);
        settle();
        r.req.id = id;
        store_namespace_remove(t.s, &r.req);
        for (unsigned i = 0; i < 3; i++) {
                o[i] = (struct opening){ .req = { .name = names[i],
                                                  .name_length = 4,
                                                  .fingerprint = fingerprints[i],
                                                  .fingerprint_length =
                                                          (uint16_t)strlen(fingerprints[i]),
                                                  .attach = i == 2,
                                                  .complete = opened } };
                store_namespace_open(t.s, &o[i].req);
        }
        memset(names, 'x', sizeof(names));
        memset(fingerprints, 'x', sizeof(fingerprints));
        assert_int_equal(open_namespace("another", &other), 0);
        for (unsigned i = 0; i < 3; i++)
                wait_for(&o[i].done);
        assert_true(r.done);
        assert_int_equal(r.req.result, 0);
        assert_int_equal(o[0].req.result, 0);
        assert_int_equal(o[1].req.result, STORE_MISMATCH); /* the first namespace exists by now */
        assert_int_equal(o[2].req.result, 0);
        assert_true(store_namespace_find(t.s, 0, "name", 4)->id > id);

        /* A store that stops answers all of them. */
        settle();
        r = (struct removal){ .req = { .id = other, .complete = removed } };
        store_namespace_remove(t.s, &r.req);
        o[0] = (struct opening){ .req = { .name = "another",
                                          .name_length = 7,
                                          .fingerprint = "",
                                          .complete = opened } };
        store_namespace_open(t.s, &o[0].req);
        stop();
        assert_true(r.done && o[0].done);
        start("01");
        assert_true(has_namespace("name"));
        assert_int_equal(has_namespace("another"), o[0].req.result == 0);
        stop();
}

static int set_lifetime(const char *name, uint32_t lifetime_s)
{
        struct opening o = { .req = { .name = name,
                                      .name_length = (uint16_t)strlen(name),
                                      .attach = true,
                                      .lifetime_s = lifetime_s,
                                      .set_lifetime = true,
                                      .complete = opened } };

        store_namespace_open(t.s, &o.req);
        wait_for(&o.done);
        if (o.req.result == 0)
                assert_int_equal(o.req.namespace->lifetime_s, lifetime_s);
        return o.req.result;
}

static uint32_t lifetime(const char *name)
{
        const struct store_namespace *ns = store_namespace_find(t.s, 0, name, strlen(name));

        assert_non_null(ns);
        assert_int_equal(store_lifetimes(t.s), ns->lifetime_s > 0);
        return ns->lifetime_s;
}

static void a_lifetime_is_every_volumes(void **state)
{
        uint32_t id;

        start("01");
        assert_int_equal(open_namespace("name", &id), 0);
        assert_int_equal(store_lifetimes(t.s), 0);
        assert_int_equal(set_lifetime("none", 100), STORE_MISS);
        assert_int_equal(set_lifetime("name", 100), 0);
        assert_int_equal(store_lifetime_s(t.s, id), 100);
        restart("0");
        assert_int_equal(lifetime("name"), 100);
        restart("1");
        assert_int_equal(lifetime("name"), 100);
        restart("10");
        assert_int_equal(lifetime("name"), 100);
        assert_int_equal(open_namespace("name", &id), 0);
        assert_int_equal(lifetime("name"), 100);

        /* A suspended volume learns the lifetime when it is resumed. */
        assert_int_equal(device(store_suspend, 1), 0);
        assert_int_equal(set_lifetime("name", 0), 0);
        assert_int_equal(device(store_resume, 1), 0);
        assert_int_equal(lifetime("name"), 0);
        restart("1");
        assert_int_equal(lifetime("name"), 0);
        restart("0");
        assert_int_equal(lifetime("name"), 0);
        stop();
}

/* The volumes do not say which one was present, so the shorter lifetime holds. */
static void of_two_lifetimes_the_shorter_one_holds(void **state)
{
        static const uint32_t set[][2] = { { 50, 50 }, { 200, 100 }, { 0, 100 } };
        uint32_t id;

        for (unsigned i = 0; i < ARRAY_SIZE(set); i++) {
                start("01");
                assert_int_equal(open_namespace("name", &id), 0);
                assert_int_equal(set_lifetime("name", 100), 0);
                assert_int_equal(device(store_suspend, 1), 0);
                assert_int_equal(set_lifetime("name", set[i][0]), 0);
                restart(i == 1 ? "10" : "01");
                assert_int_equal(lifetime("name"), set[i][1]);
                restart("0");
                assert_int_equal(lifetime("name"), set[i][1]);
                restart("1");
                assert_int_equal(lifetime("name"), set[i][1]);
                stop();
        }
}

static void a_lifetime_that_cannot_be_written_is_not_answered_as_set(void **state)
{
        uint32_t id;

        start("0");
        assert_int_equal(open_namespace("name", &id), 0);
        settle();
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_SYNC,
                                        .volume = 1,
                                        .kind = FAULT_ERROR,
                                        .error = ENOSPC,
                                        .first = 1,
                                        .count = 1 });
        assert_int_equal(set_lifetime("name", 100), -ENOSPC);
        fault_set(NULL);
        assert_true(has_namespace("name"));
        assert_int_equal(set_lifetime("name", 100), 0);
        restart("0");
        assert_int_equal(lifetime("name"), 100);
        assert_int_equal(remove_namespace(id), 0);
        assert_int_equal(store_lifetimes(t.s), 0);
        stop();
}

static void chunks_expire_on_every_volume(void **state)
{
        const struct key *keys[MANY];
        uint64_t expired = 0, now_ms;
        struct key key[MANY];

        start("01");
        put_range(0, MANY);
        settle();
        now_ms = clock_unix_ms() + 101 * 1000;
        while (store_expire_step(t.s, now_ms, &expired))
                ;
        assert_int_equal(expired, 0);
        assert_int_equal(set_lifetime("model/a", 100), 0);
        while (store_expire_step(t.s, now_ms - 101 * 1000, &expired))
                ;
        assert_int_equal(expired, 0);
        for (unsigned i = 0; i < MANY; i++) {
                key[i] = key_of(i);
                keys[i] = &key[i];
        }
        for (unsigned i = 0; i < 10; i++) {
                uint64_t hash = store_hash(t.s, t.ns, keys[i]);

                assert_false(store_expire(t.s, t.ns, keys[i], hash, now_ms - 101 * 1000 - 100000));
                assert_true(store_expire(t.s, t.ns, keys[i], hash, now_ms));
                assert_false(store_expire(t.s, t.ns, keys[i], hash, now_ms));
        }
        assert_int_equal(count_hits(0, MANY), MANY - 10);
        while (store_expire_step(t.s, now_ms, &expired))
                ;
        assert_int_equal(expired, MANY - 10);
        assert_int_equal(stats().expired, MANY);
        assert_int_equal(stats().chunks, 0);
        assert_int_equal(count_hits(0, MANY), 0);
        put_range(0, 20);
        restart("01");
        assert_int_equal(count_hits(0, 20), 20);
        stop();
}

int main(int argc, char **argv)
{
        const struct CMUnitTest tests[] = {
                TEST(a_volume_that_was_offline_learns_the_namespaces),
                TEST(a_volume_that_is_full_learns_the_namespaces),
                TEST(a_volume_that_cannot_take_the_namespaces_stays_offline),
                TEST(what_is_removed_while_a_volume_is_offline_does_not_come_back_with_it),
                TEST(a_removal_that_one_volume_cannot_write_costs_that_volume),
                TEST(what_the_last_volume_cannot_write_is_not_answered_as_purged),
                TEST(what_the_last_volume_cannot_write_is_not_answered_as_removed),
                TEST(without_a_volume_nothing_is_removed),
                TEST(a_name_whose_removal_a_kill_cuts_off_contradicts_nothing),
                TEST(an_open_of_what_is_being_removed_waits_and_makes_it_anew),
                TEST(a_lifetime_is_every_volumes),
                TEST(of_two_lifetimes_the_shorter_one_holds),
                TEST(a_lifetime_that_cannot_be_written_is_not_answered_as_set),
                TEST(chunks_expire_on_every_volume),
        };

        if (argc > 1)
                cmocka_set_test_filter(argv[1]);
        return cmocka_run_group_tests_name("namespaces of several volumes", tests, NULL, NULL);
}
