/* SPDX-License-Identifier: Apache-2.0 */
/* store/ with several volumes: how chunks are distributed, which directories belong together
 * (added, left out, or refused), and the numbers of volumes. */
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checked.h"
#include "volumes-fixture.h"

static void chunks_are_spread_and_found_again(void **state)
{
        struct store_chunk listed[16];
        uint64_t cursor = 0, sum = 0;
        unsigned met = 0;

        start("012");
        put_range(0, MANY);
        for (unsigned i = 0; i < PATHS; i++) {
                struct store_volume_stats st = stats_of(i);

                assert_string_equal(st.path, t.dirs[i]);
                assert_in_range(st.stats.chunks, MANY / PATHS / 2, MANY / PATHS * 2);
                sum += st.stats.limit;
        }
        assert_true(sum <= t.limit && sum > t.limit - 1 * MIB);
        assert_int_equal(stats().chunks, MANY);
        assert_int_equal(stats().puts, MANY);
        assert_int_equal(store_namespace_get(t.s, t.ns)->chunks, MANY);
        assert_int_equal(store_namespace_find(t.s, 0, "model/a", 7)->id, t.ns);
        assert_null(store_namespace_find(t.s, 0, "model/b", 7));
        assert_null(store_namespace_find(t.s, 1, "model/a", 7));
        assert_int_equal(put(7), STORE_EXISTS);
        restart("012");
        assert_int_equal(stats().recovered_chunks, MANY);
        assert_int_equal(count_hits(0, MANY), MANY);
        do
                met += store_list(t.s, t.ns, &cursor, listed, ARRAY_SIZE(listed));
        while (cursor != 0);
        assert_int_equal(met, MANY);
        assert_int_equal(drop(7), 0);
        assert_int_equal(drop(7), STORE_MISS);
        assert_int_equal(settle_drops(), 0);
        stop();

        /* In another order. */
        start("201");
        assert_int_equal(count_hits(0, MANY), MANY - 1);
        assert_int_equal(put(8), STORE_EXISTS);
        assert_int_equal(put(7), 0);
        assert_int_equal(purge(), 0);
        assert_int_equal(count_hits(0, MANY), 0);
        restart("012");
        assert_int_equal(stats().chunks, 0);
        stop();
}

static void an_empty_volume_may_be_added_to_a_store(void **state)
{
        start("0");
        put_range(0, MANY);
        restart("01");
        assert_int_equal(count_hits(0, MANY), MANY);
        put_range(MANY, MANY);
        assert_true(stats_of(1).stats.chunks > 0);
        restart("10");
        assert_int_equal(count_hits(0, 2 * MANY), 2 * MANY);
        restart("102");
        assert_int_equal(count_hits(0, 2 * MANY), 2 * MANY);
        put_range(2 * MANY, 50);
        stop();
}

static void a_volume_that_is_left_out_takes_its_chunks_with_it(void **state)
{
        unsigned left;

        start("01");
        put_range(0, MANY);
        left = (unsigned)stats_of(0).stats.chunks;
        restart("0");
        assert_int_equal(count_hits(0, MANY), left);
        restart("01");
        assert_int_equal(count_hits(0, MANY), MANY);
        stop();
        /* A purge or a drop that the volume has missed. */
        start("0");
        assert_int_equal(purge(), 0);
        restart("01");
        assert_int_equal(t.events[STORE_VOLUME_IS_EMPTIED], 1);
        assert_int_equal(count_hits(0, MANY), 0);
        put_range(0, MANY);
        restart("1");
        for (uint64_t i = 0; drop(i) != 0; i++)
                assert_true(i < MANY); /* some of them are here */
        assert_int_equal(settle_drops(), 0);
        restart("01");
        assert_int_equal(t.events[STORE_VOLUME_IS_EMPTIED], 1);
        stop();
}

static void a_store_of_one_volume_carries_no_trace_of_sets(void **state)
{
        struct disk_superblock sb;
        char name[300];
        int fd;

        start("0");
        put_range(0, 20);
        assert_int_equal(purge(), 0);
        stop();
        snprintf(name, sizeof(name), "%s/superblock", t.dirs[0]);
        fd = open(name, O_RDONLY);
        assert_int_equal(read(fd, &sb, sizeof(sb)), sizeof(sb));
        close(fd);
        for (const uint8_t *p = sb.set; p < (uint8_t *)&sb.seq_ceiling; p++)
                assert_int_equal(*p, 0);
        for (unsigned i = 0; i < sizeof(sb.reserved); i++)
                assert_int_equal(sb.reserved[i], 0);
        assert_int_equal(sb.volume_index, 0);
        assert_int_equal(sb.volume_count, 1);
}

static void volumes_of_different_stores_are_refused(void **state)
{
        start("0");
        restart("1");
        stop();
        refused("01", -EPROTO, "two stores");
        start("02");
        stop();
        refused("012", -EPROTO, "different stores");
        refused("10", -EPROTO, "different stores");
        start("0");
        restart("20");
        stop();
}

static void a_copy_of_a_volume_is_refused(void **state)
{
        start("01");
        put_range(0, 20);
        stop();
        copy_dir(1, 2);
        refused("012", -EPROTO, "one is a copy");
        start("02");
        assert_int_equal(count_hits(0, 20), 20);
        stop();
}

static void namespaces_that_contradict_each_other_are_refused(void **state)
{
        uint32_t a, b;

        start("01");
        restart("0");
        assert_int_equal(open_namespace("apart-0", &a), 0);
        restart("1");
        assert_int_equal(open_namespace("apart-1", &b), 0);
        stop();
        assert_int_equal(a, b);
        refused("01", -EUCLEAN, "contradict");
}

static struct disk_superblock superblock_of(unsigned dir)
{
        struct disk_superblock sb = { 0 };
        char name[300];
        int fd;

        snprintf(name, sizeof(name), "%s/superblock", t.dirs[dir]);
        fd = open(name, O_RDONLY);
        if (fd >= 0) {
                assert_int_equal(read(fd, &sb, sizeof(sb)), sizeof(sb));
                close(fd);
        }
        return sb;
}

/* The number that an empty directory would get may belong to an unusable volume, which may also
 * belong to the set. */
static void empty_directories_become_volumes_only_beside_all_the_others(void **state)
{
        close(open(t.dirs[1], O_WRONLY | O_CREAT, 0600));
        refused("01", -EIO, t.dirs[1]);
        assert_int_equal(superblock_of(0).volume_count, 0);
        assert_int_equal(unlink(t.dirs[1]), 0);

        start("01");
        put_range(0, MANY);
        stop();
        assert_int_equal(rename(t.dirs[1], t.dirs[3]), 0);
        close(open(t.dirs[1], O_WRONLY | O_CREAT, 0600));
        start("012");
        assert_int_equal(stats_of(2).state, STORE_VOLUME_BYPASSED);
        assert_non_null(strstr(stats_of(2).reason, "not added"));
        assert_int_equal(superblock_of(2).volume_count, 0);
        assert_int_equal(unlink(t.dirs[1]), 0);
        assert_int_equal(rename(t.dirs[3], t.dirs[1]), 0);
        assert_int_equal(device(store_resume, 1), 0);
        assert_int_equal(device(store_resume, 2), 0);
        assert_int_equal(superblock_of(2).volume_index, 2);
        assert_int_equal(count_hits(0, MANY), MANY);
        stop();
}

/* The numbers are on the disk of the others before, and come back where they were not used. */
static void a_number_that_a_start_announces_is_not_given_twice(void **state)
{
        struct disk_superblock sb;
        char name[300];

        start("0");
        put_range(0, MANY);
        stop();
        snprintf(name, sizeof(name), "%s/superblock.new", t.dirs[1]);
        assert_int_equal(mkdir(t.dirs[1], 0700), 0);
        assert_int_equal(mkdir(name, 0700), 0);
        start("01");
        assert_int_equal(stats_of(1).state, STORE_VOLUME_BYPASSED);
        assert_int_equal(superblock_of(0).volume_count, 1);
        sb = superblock_of(0);
        stop();
        assert_int_equal(rmdir(name), 0);
        start("01");
        assert_int_equal(superblock_of(1).volume_index, 1);
        assert_memory_equal(superblock_of(1).set, sb.set, sizeof(sb.set));
        assert_int_equal(superblock_of(0).volume_count, 2);
        assert_int_equal(count_hits(0, MANY), MANY);
        stop();
}

static struct {
        struct kio_request req;
        sem_t end;
        bool done;
} held;

static int wait_for_end(struct kio_request *req)
{
        return sem_wait(&held.end) < 0 ? -errno : 0;
}

static void calls_released(struct kio_request *req)
{
        held.done = true;
}

/* Superblocks of the volume are written after this. */
static void hold_calls(unsigned volume)
{
        held.done = false;
        sem_init(&held.end, 0, 0);
        held.req = (struct kio_request){ .op = KIO_CALL,
                                         .class = KIO_CLASS_PUT,
                                         .volume = volume + 1,
                                         .call = wait_for_end,
                                         .complete = calls_released };
        list_init(&held.req.node);
        kio_submit(t.io, &held.req, 0);
        kio_flush(t.io);
}

static void release_calls(void)
{
        sem_post(&held.end);
        wait_for(&held.done);
        sem_destroy(&held.end);
}

/* The other volumes have the number of a new one on stable storage before its empty directory
 * becomes a volume. */
static void a_volume_that_is_added_by_a_resume_is_written_down_first(void **state)
{
        struct rlimit before, none;
        struct device d;
        int r;

        start("01");
        put_range(0, MANY);
        stop();
        close(open(t.dirs[2], O_WRONLY | O_CREAT, 0600));
        start("012");
        assert_int_equal(stats_of(2).state, STORE_VOLUME_BYPASSED);
        assert_int_equal(unlink(t.dirs[2]), 0);
        settle();

        assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
        none = before;
        none.rlim_cur = 0;
        signal(SIGXFSZ, SIG_IGN);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
        r = device(store_resume, 2);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        signal(SIGXFSZ, SIG_DFL);
        assert_int_equal(r, -EFBIG);
        assert_non_null(strstr(stats_of(2).reason, "the superblock of"));
        assert_int_equal(superblock_of(2).volume_count, 0);

        hold_calls(1);
        d = (struct device){ .req = { .volume = 2, .complete = device_done } };
        store_resume(t.s, &d.req);
        while (!d.done && superblock_of(0).volume_count < 3)
                turn();
        for (unsigned i = 0; i < 100; i++)
                turn();
        assert_false(d.done);
        assert_int_equal(superblock_of(1).volume_count, 2);
        assert_int_equal(superblock_of(2).volume_count, 0);
        release_calls();
        wait_for(&d.done);
        assert_int_equal(d.req.result, 0);
        assert_int_equal(superblock_of(1).volume_count, 3);
        assert_int_equal(superblock_of(2).volume_count, 3);
        assert_int_equal(superblock_of(2).volume_index, 2);
        put_range(MANY, MANY);
        assert_true(stats_of(2).stats.chunks > 0);
        assert_int_equal(count_hits(0, 2 * MANY), 2 * MANY);
        stop();

        /* The number of the volume is not reused, and the changes it misses are recorded. */
        assert_int_equal(rename(t.dirs[2], t.dirs[3]), 0);
        start("01");
        assert_int_equal(purge(), 0);
        restart("014");
        assert_int_equal(superblock_of(4).volume_index, 3);
        restart("0134");
        assert_int_equal(t.events[STORE_VOLUME_IS_EMPTIED], 1);
        assert_int_equal(count_hits(0, 2 * MANY), 0);
        stop();
}

/* A stop does not wait longer for the superblocks of other volumes than for any one of them. */
static void a_stop_ends_a_resume_that_waits_for_a_number(void **state)
{
        struct device d;

        start("01");
        stop();
        close(open(t.dirs[2], O_WRONLY | O_CREAT, 0600));
        start("012");
        assert_int_equal(unlink(t.dirs[2]), 0);
        settle();
        hold_calls(1);
        d = (struct device){ .req = { .volume = 2, .complete = device_done } };
        store_resume(t.s, &d.req);
        while (!d.done && superblock_of(0).volume_count < 3)
                turn();
        assert_false(d.done);
        store_stop(t.s);
        assert_true(d.done);
        assert_int_equal(d.req.result, -ECANCELED);
        release_calls();
        restart("012");
        assert_int_equal(store_volumes_up(t.s), 3);
        stop();
}

static void test_R3_a_volume_of_another_daemon_is_refused(void **state)
{
        struct store_params params;
        const char *paths[] = { t.dirs[2], t.dirs[1] };
        struct store *other;
        char error[512] = "";

        start("01");
        params = (struct store_params){
                .paths = paths,
                .n_paths = 2,
                .limit = t.limit,
                .segment_bytes = MIB,
                .policy = "lru",
                .lock_wait_ms = 50,
        };
        assert_int_equal(store_prepare(&other, &params, error), -EBUSY);
        assert_non_null(strstr(error, t.dirs[1]));
        stop();
}

int main(int argc, char **argv)
{
        const struct CMUnitTest tests[] = {
                TEST(chunks_are_spread_and_found_again),
                TEST(an_empty_volume_may_be_added_to_a_store),
                TEST(a_volume_that_is_left_out_takes_its_chunks_with_it),
                TEST(a_store_of_one_volume_carries_no_trace_of_sets),
                TEST(volumes_of_different_stores_are_refused),
                TEST(a_copy_of_a_volume_is_refused),
                TEST(namespaces_that_contradict_each_other_are_refused),
                TEST(empty_directories_become_volumes_only_beside_all_the_others),
                TEST(a_number_that_a_start_announces_is_not_given_twice),
                TEST(a_volume_that_is_added_by_a_resume_is_written_down_first),
                TEST(a_stop_ends_a_resume_that_waits_for_a_number),
                TEST(test_R3_a_volume_of_another_daemon_is_refused),
        };

        if (argc > 1)
                cmocka_set_test_filter(argv[1]);
        return cmocka_run_group_tests_name("several volumes", tests, NULL, NULL);
}
