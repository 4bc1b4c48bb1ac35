/* SPDX-License-Identifier: Apache-2.0 */
/* store/ with several volumes: chunks that were purged or dropped while a volume was offline, or
 * was used separately, do not return with it, and no others are lost. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../lib/killed.h"
#include "checked.h"
#include "volumes-fixture.h"

static void what_was_purged_while_a_volume_was_offline_never_comes_back(void **state)
{
        /* Resumed. */
        start("01");
        put_range(0, MANY);
        assert_int_equal(device(store_suspend, 1), 0);
        assert_int_equal(purge(), 0);
        assert_int_equal(device(store_resume, 1), 0);
        assert_int_equal(t.events[STORE_VOLUME_IS_EMPTIED], 1);
        assert_int_equal(count_hits(0, MANY), 0);

        /* Found again by recovery. */
        put_range(0, MANY);
        assert_int_equal(device(store_suspend, 1), 0);
        assert_int_equal(purge(), 0);
        restart("01");
        assert_int_equal(count_hits(0, MANY), 0);

        /* Alone. */
        put_range(0, MANY);
        assert_int_equal(device(store_suspend, 0), 0);
        assert_int_equal(purge(), 0);
        restart("0");
        assert_int_equal(count_hits(0, MANY), 0);
        restart("01");
        assert_int_equal(count_hits(0, MANY), 0);
        stop();
}

static void what_was_dropped_while_a_volume_was_offline_never_comes_back(void **state)
{
        uint64_t i, other;

        start("01");
        put_range(0, MANY);
        i = first_on(1);
        other = first_on(0);
        assert_int_equal(device(store_suspend, 1), 0);
        assert_int_equal(drop(other), 0);
        assert_int_equal(settle_drops(), 0);
        assert_int_equal(device(store_resume, 1), 0);
        assert_int_equal(t.events[STORE_VOLUME_IS_EMPTIED], 0); /* the volume had no part in it */
        assert_int_equal(get(i), 0);
        assert_int_equal(device(store_suspend, 1), 0);
        assert_int_equal(drop(i), 0);
        assert_int_equal(settle_drops(), 0);
        assert_int_equal(drop(i), STORE_MISS);
        restart("01");
        assert_int_equal(get(i), STORE_MISS);
        stop();
}

/* The tombstone's eviction is older than the put, wherever the put is: at its payload (write 1), in
 * flight to the table (write 2), or queued behind such a write. */
static void a_tombstone_does_not_outlive_a_put_that_was_under_way(void **state)
{
        struct put p[2];

        for (unsigned write = 1; write <= 3; write++) {
                uint64_t key = 10 * write, last = write == 3;
                struct key k = key_of(key + last);

                start("0");
                settle();
                fault_set(&(struct fault_plan){
                        .ops = 1u << KIO_WRITE, .kind = FAULT_NEVER, .first = MIN(write, 2u) });
                assert_int_equal(put_begin(&p[0], key, t.bufs[0]), 0);
                wait_hits(1);
                if (last) {
                        uint64_t written = stats().payload_writes;

                        assert_int_equal(put_begin(&p[1], key + 1, t.bufs[1]), 0);
                        turn();
                        while (stats().payload_writes == written) {
                                wait_io();
                                turn();
                        }
                }
                assert_int_equal(store_forget(t.s, t.ns, &k, store_hash(t.s, t.ns, &k)),
                                 STORE_MISS);
                fault_set(NULL);
                fault_release();
                for (unsigned i = 0; i <= last; i++) {
                        wait_for(&p[i].done);
                        assert_int_equal(p[i].req.result, 0);
                }
                assert_int_equal(get(key + last), 0);
                restart("0");
                assert_int_equal(get(key + last), 0);
                /* A put does not outlive a later drop either. */
                assert_int_equal(drop(key + last), 0);
                restart("0");
                assert_int_equal(get(key + last), STORE_MISS);
                stop();
        }
}

/* The resume is in progress until the next iteration. */
static void what_is_dropped_or_purged_during_a_resume_does_not_come_back(void **state)
{
        struct device d = { .req = { .volume = 1, .complete = device_done } };
        struct sync settling = { .req = { .complete = sync_done } };
        struct purge p = { .req = { .complete = purge_done } };
        uint64_t i;

        start("01");
        put_range(0, MANY);
        i = first_on(1);
        assert_int_equal(device(store_suspend, 1), 0);
        store_resume(t.s, &d.req);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_RESUMING);
        assert_int_equal(drop(i), 0);
        store_settle_drops(t.s, &settling.req);
        wait_for(&settling.done);
        wait_for(&d.done);
        assert_int_equal(settling.req.result, 0);
        assert_int_equal(d.req.result, 0);
        assert_int_equal(get(i), STORE_MISS);
        assert_int_equal(put(i), 0);
        put_range(MANY, MANY);
        restart("01");
        assert_int_equal(t.events[STORE_VOLUME_IS_EMPTIED], 0);
        assert_int_equal(get(i), 0);
        assert_int_equal(count_hits(MANY, MANY), MANY);

        assert_int_equal(device(store_suspend, 1), 0);
        d.done = false;
        store_resume(t.s, &d.req);
        p.req.namespace_id = t.ns;
        store_purge(t.s, &p.req);
        wait_for(&p.done);
        wait_for(&d.done);
        assert_int_equal(p.req.result, 0);
        assert_int_equal(d.req.result, 0);
        assert_int_equal(count_hits(0, 2 * MANY), 0);
        put_range(0, MANY);
        restart("01");
        assert_int_equal(t.events[STORE_VOLUME_IS_EMPTIED], 0);
        assert_int_equal(count_hits(0, MANY), MANY);
        stop();
}

static void a_drop_of_nothing_costs_no_volume_what_it_has(void **state)
{
        struct device d = { .req = { .volume = 1, .complete = device_done } };

        start("01");
        put_range(0, MANY);
        assert_int_equal(device(store_suspend, 1), 0);
        assert_int_equal(drop(MANY), STORE_MISS);
        store_resume(t.s, &d.req);
        assert_int_equal(drop(MANY), STORE_MISS);
        assert_int_equal(settle_drops(), 0);
        wait_for(&d.done);
        assert_int_equal(t.events[STORE_VOLUME_IS_EMPTIED], 0);
        assert_int_equal(count_hits(0, MANY), MANY);
        restart("01");
        assert_int_equal(t.events[STORE_VOLUME_IS_EMPTIED], 0);
        assert_int_equal(count_hits(0, MANY), MANY);
        restart("0");
        assert_int_equal(drop(MANY), STORE_MISS);
        assert_int_equal(settle_drops(), 0);
        restart("01");
        assert_int_equal(count_hits(0, MANY), MANY);
        stop();
}

/* Each volume has purged chunks while the other was missing, whatever the epochs of both. */
static void volumes_that_were_used_apart_bring_back_nothing(void **state)
{
        start("01");
        put_range(0, MANY);
        assert_int_equal(device(store_suspend, 1), 0);
        assert_int_equal(drop(first_on(0)), 0);
        assert_int_equal(purge(), 0);
        put_range(MANY, MANY);
        restart("1");
        assert_int_equal(count_hits(0, 2 * MANY), 0);
        put_range(2 * MANY, 20);
        assert_int_equal(purge(), 0);
        put_range(3 * MANY, 20);
        restart("01");
        /* Volume 1 has been emptied, but alone, so it is unknown which claims of volume 0 are
         * older. */
        assert_int_equal(count_hits(0, 4 * MANY), 0);
        put_range(3 * MANY, 20);
        restart("10");
        assert_int_equal(count_hits(3 * MANY, 20), 20);
        restart("0");
        restart("0");
        put_range(4 * MANY, 20);
        assert_int_equal(purge(), 0);
        restart("1");
        assert_int_equal(purge(), 0);
        restart("10");
        assert_int_equal(count_hits(0, 5 * MANY), 0);
        stop();
}

/* Neither volume knows about the other's changes, and the volume marked as offline is used alone
 * before the other one purges. */
static void
what_is_purged_on_one_volume_while_another_is_used_apart_does_not_come_back(void **state)
{
        start("01");
        put_range(0, MANY);
        assert_int_equal(device(store_suspend, 1), 0);
        restart("1");
        put_range(MANY, 20);
        restart("0");
        put_range(2 * MANY, 20);
        assert_int_equal(purge(), 0);
        put_range(3 * MANY, 20);
        restart("01");
        assert_int_equal(count_hits(0, 3 * MANY), 0);
        assert_int_equal(count_hits(3 * MANY, 20), 20);
        put_range(0, MANY);
        restart("10");
        assert_int_equal(count_hits(0, MANY), MANY);
        stop();
}

/* A volume without which two others have continued knows less than they do, and nothing on it shows
 * that. */
static void what_a_volume_purges_that_knows_less_than_the_others_does_not_come_back(void **state)
{
        start("012");
        put_range(0, MANY);
        restart("12");
        for (unsigned round = 0; round < 4; round++) {
                assert_int_equal(device(store_suspend, round % 2), 0);
                assert_int_equal(purge(), 0);
                assert_int_equal(device(store_resume, round % 2), 0);
                put_range(MANY, MANY);
        }
        restart("0");
        assert_int_equal(purge(), 0);
        restart("012");
        assert_int_equal(count_hits(0, 2 * MANY), 0);
        put_range(0, MANY);
        restart("12");
        restart("201");
        assert_int_equal(count_hits(0, MANY), MANY);
        stop();
}

/* The order of the claims of one volume may differ even from that of another. */
static void a_claim_that_was_made_up_for_empties_no_volume_again(void **state)
{
        unsigned hits;

        start("012");
        assert_int_equal(device(store_suspend, 1), 0);
        assert_int_equal(purge(), 0); /* 0 and 2 say that 1 has missed it */
        restart("01");
        put_range(0, MANY);
        hits = count_hits(0, MANY);
        assert_int_equal(hits, MANY);
        restart("012");
        assert_int_equal(t.events[STORE_VOLUME_IS_EMPTIED], 0);
        assert_int_equal(count_hits(0, MANY), MANY);
        stop();
}

/* The knowledge about the other volumes arrives too late to empty them. */
static void a_volume_that_was_used_apart_is_not_resumed(void **state)
{
        char aside[300];

        start("01");
        put_range(0, MANY);
        restart("1");
        assert_int_equal(purge(), 0);
        stop();
        snprintf(aside, sizeof(aside), "%s.aside", t.dirs[1]);
        assert_int_equal(rename(t.dirs[1], aside), 0);
        close(open(t.dirs[1], O_WRONLY | O_CREAT, 0600)); /* no directory */
        start("01");
        assert_int_equal(stats_of(1).state, STORE_VOLUME_BYPASSED);
        assert_int_equal(unlink(t.dirs[1]), 0);
        assert_int_equal(rename(aside, t.dirs[1]), 0);
        assert_int_equal(device(store_resume, 1), -EPROTO);
        assert_non_null(strstr(t.text, "restart the daemon"));
        assert_int_equal(stats_of(1).state, STORE_VOLUME_BYPASSED);
        restart("01");
        assert_int_equal(count_hits(0, MANY), 0);
        stop();
}

/* Returns the number of volumes whose claims a namespaces file of the volume has. */
static unsigned claims_of(unsigned volume)
{
        struct disk_namespaces header;
        char path[300];
        int fd;

        snprintf(path, sizeof(path), "%s/namespaces.0", t.dirs[volume]);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        assert_true(fd >= 0);
        assert_int_equal(read(fd, &header, sizeof(header)), sizeof(header));
        close(fd);
        return header.set_claims_count;
}

static void what_is_removed_on_volumes_that_are_used_apart_does_not_come_back(void **state)
{
        uint32_t a, b, both, id;

        start("01");
        assert_int_equal(open_namespace("a", &a), 0);
        assert_int_equal(open_namespace("b", &b), 0);
        both = t.ns;
        restart("0");
        assert_int_equal(remove_namespace(a), 0);
        restart("1");
        assert_int_equal(remove_namespace(b), 0);
        restart("01");
        assert_false(has_namespace("a"));
        assert_false(has_namespace("b"));
        assert_int_equal(t.ns, both);
        assert_int_equal(open_namespace("a", &id), 0);
        assert_true(id > b);
        restart("0");
        assert_true(has_namespace("a"));
        assert_false(has_namespace("b"));
        stop();
        assert_int_equal(claims_of(0), 2);
        assert_int_equal(claims_of(1), 2);
}

/* Makes the device report a failed write of the table, which in fact succeeded. */
static void lie_about_the_table(unsigned volume)
{
        settle();
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE,
                                        .volume = volume + 1,
                                        .kind = FAULT_LIES,
                                        .error = EIO,
                                        .first = 2 }); /* the first write is the payload's */
}

static void what_failed_and_was_written_all_the_same_is_not_found(void **state)
{
        start("0");
        put_range(0, 20);
        lie_about_the_table(0);
        assert_true(put(100) != 0);
        assert_int_equal(fault_hits(), 1);
        assert_int_equal(stats_of(0).state, STORE_VOLUME_BYPASSED);
        settle();
        assert_int_equal(device(store_resume, 0), 0);
        assert_int_equal(get(100), STORE_MISS);
        assert_int_equal(count_hits(0, 20), 20);
        assert_int_equal(put(100), 0);
        lie_about_the_table(0);
        assert_true(put(101) != 0);
        fault_set(NULL);
        restart("0");
        assert_int_equal(get(101), STORE_MISS);
        assert_int_equal(count_hits(0, 20), 20);
        assert_int_equal(get(100), 0);
        assert_int_equal(put(101), 0);
        restart("0");
        lie_about_the_table(0);
        assert_true(put(102) != 0);
        fault_set(NULL);
        assert_int_equal(
                store_forget(t.s, t.ns, &(struct key){ .bytes = { 102, [31] = 1 } },
                             store_hash(t.s, t.ns, &(struct key){ .bytes = { 102, [31] = 1 } })),
                STORE_MISS);
        restart("0");
        assert_int_equal(get(102), STORE_MISS);
        stop();
}

static void what_was_put_elsewhere_after_a_lie_can_be_dropped(void **state)
{
        uint64_t i = 1000;

        start("01");
        put_range(0, MANY);
        lie_about_the_table(0);
        while (stats_of(0).state == STORE_VOLUME_UP)
                assert_int_equal(put(i++), 0);
        settle();
        fault_set(NULL);
        assert_int_equal(get(i - 1), 0);
        assert_int_equal(drop(i - 1), 0);
        assert_int_equal(settle_drops(), 0);
        assert_int_equal(device(store_resume, 0), 0);
        assert_int_equal(get(i - 1), STORE_MISS);
        assert_int_equal(put(i - 1), 0);
        stop();
}

/* The resume forgets that the volume had lost the drop. */
static void a_drop_that_a_resume_has_undone_is_counted_as_lost(void **state)
{
        uint64_t before;

        start("0");
        assert_int_equal(put(1), 0);
        before = store_lost_drops(t.s);
        assert_int_equal(drop(1), 0);
        assert_int_equal(settle_drops(), 0);
        assert_int_equal(store_lost_drops(t.s), before);
        assert_int_equal(put(1), 0);
        assert_int_equal(device(store_suspend, 0), 0);
        assert_int_equal(drop(1), 0);
        assert_int_equal(device(store_resume, 0), 0);
        assert_int_equal(get(1), 0);
        assert_true(store_lost_drops(t.s) > before);
        stop();
}

/* The tombstone of the drop fails. */
static void a_drop_whose_tombstone_fails_is_counted_as_lost_after_a_resume(void **state)
{
        uint64_t before;

        start("0");
        assert_int_equal(put(1), 0);
        settle();
        before = store_lost_drops(t.s);
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_ERROR, .error = EIO, .first = 1 });
        assert_int_equal(drop(1), 0);
        wait_state(0, STORE_VOLUME_BYPASSED);
        fault_set(NULL);
        settle();
        assert_int_equal(device(store_resume, 0), 0);
        assert_int_equal(get(1), 0);
        assert_true(store_lost_drops(t.s) > before);
        stop();
}

static void with_all_volumes_offline_no_drop_is_answered_as_one_for_good(void **state)
{
        uint64_t i, j;

        start("01");
        put_range(0, MANY);
        i = first_on(0);
        j = first_on(1);
        assert_int_equal(device(store_suspend, 0), 0);
        assert_int_equal(device(store_suspend, 1), 0);
        for (unsigned n = 0; n < 2; n++) {
                assert_int_equal(drop(i), 0);
                assert_int_equal(settle_drops(), STORE_BYPASSED);
                assert_int_equal(drop(j), 0);
                assert_int_equal(settle_drops(), STORE_BYPASSED);
        }
        assert_int_equal(device(store_resume, 0), 0);
        assert_int_equal(drop(j), 0);
        assert_int_equal(settle_drops(), 0);
        assert_int_equal(get(i), STORE_MISS);
        restart("01");
        assert_int_equal(get(i), STORE_MISS);
        assert_int_equal(get(j), STORE_MISS);
        stop();
}

static void no_drop_is_settled_before_the_note_of_it_is_written(void **state)
{
        struct sync first = { .req = { .complete = sync_done } },
                    second = { .req = { .complete = sync_done } };
        uint64_t i;

        start("01");
        put_range(0, MANY);
        i = first_on(1);
        assert_int_equal(device(store_suspend, 1), 0);
        settle();
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE,
                                        .volume = 1,
                                        .kind = FAULT_NEVER,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
        assert_int_equal(drop(i), 0);
        store_settle_drops(t.s, &first.req);
        assert_int_equal(drop(i), 0); /* not permanent yet */
        store_settle_drops(t.s, &second.req);
        wait_hits(1);
        for (unsigned n = 0; n < 5; n++)
                turn();
        assert_false(first.done || second.done);
        fault_set(NULL);
        fault_release();
        wait_for(&first.done);
        wait_for(&second.done);
        assert_int_equal(first.req.result, 0);
        assert_int_equal(second.req.result, 0);
        assert_int_equal(drop(i), STORE_MISS);
        stop();
}

static void a_note_that_failed_is_written_for_the_next_who_asks(void **state)
{
        uint64_t i;

        start("01");
        put_range(0, MANY);
        i = first_on(1);
        assert_int_equal(device(store_suspend, 1), 0);
        settle();
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE,
                                        .volume = 1,
                                        .kind = FAULT_ERROR,
                                        .error = EIO,
                                        .first = 1,
                                        .count = 2 });
        for (unsigned n = 0; n < 2; n++) {
                assert_int_equal(drop(i), 0);
                assert_int_equal(settle_drops(), STORE_BYPASSED);
        }
        assert_int_equal(drop(i), 0);
        assert_int_equal(settle_drops(), 0);
        assert_int_equal(fault_hits(), 2);
        assert_int_equal(stats_of(0).state, STORE_VOLUME_UP);
        stop();
}

/* Dies when a purge of another namespace has reached one volume and not the other. */
static void die_amid_a_purge(void)
{
        struct purge p = { .req = { .complete = purge_done } };
        uint32_t other = 0;

        start("01");
        assert_int_equal(open_namespace("other", &other), 0);
        put_range(0, MANY);
        settle();
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE,
                                        .volume = 2,
                                        .kind = FAULT_NEVER,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
        p.req.namespace_id = other;
        store_purge(t.s, &p.req);
        wait_hits(1);
        /* The first volume has written both of its files when it has nothing pending. */
        while (stats_of(0).pending > 0) {
                wait_io();
                turn();
        }
        assert_false(p.done);
}

static void a_kill_amid_a_purge_costs_nothing_else(void **state)
{
        in_killed_process(die_amid_a_purge);
        start("01");
        assert_int_equal(t.events[STORE_VOLUME_IS_EMPTIED], 0);
        assert_int_equal(count_hits(0, MANY), MANY);
        stop();
}

int main(int argc, char **argv)
{
        const struct CMUnitTest tests[] = {
                TEST(what_was_purged_while_a_volume_was_offline_never_comes_back),
                TEST(what_was_dropped_while_a_volume_was_offline_never_comes_back),
                TEST(a_tombstone_does_not_outlive_a_put_that_was_under_way),
                TEST(what_is_dropped_or_purged_during_a_resume_does_not_come_back),
                TEST(a_drop_of_nothing_costs_no_volume_what_it_has),
                TEST(volumes_that_were_used_apart_bring_back_nothing),
                TEST(what_is_purged_on_one_volume_while_another_is_used_apart_does_not_come_back),
                TEST(what_a_volume_purges_that_knows_less_than_the_others_does_not_come_back),
                TEST(a_claim_that_was_made_up_for_empties_no_volume_again),
                TEST(a_volume_that_was_used_apart_is_not_resumed),
                TEST(what_is_removed_on_volumes_that_are_used_apart_does_not_come_back),
                TEST(what_failed_and_was_written_all_the_same_is_not_found),
                TEST(what_was_put_elsewhere_after_a_lie_can_be_dropped),
                TEST(a_drop_that_a_resume_has_undone_is_counted_as_lost),
                TEST(a_drop_whose_tombstone_fails_is_counted_as_lost_after_a_resume),
                TEST(with_all_volumes_offline_no_drop_is_answered_as_one_for_good),
                TEST(no_drop_is_settled_before_the_note_of_it_is_written),
                TEST(a_note_that_failed_is_written_for_the_next_who_asks),
                TEST(a_kill_amid_a_purge_costs_nothing_else),
        };

        if (argc > 1)
                cmocka_set_test_filter(argv[1]);
        return cmocka_run_group_tests_name("what volumes miss", tests, NULL, NULL);
}
