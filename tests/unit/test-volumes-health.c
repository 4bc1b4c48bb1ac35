/* SPDX-License-Identifier: Apache-2.0 */
/* store/ with several volumes: the effects of a volume that fails, hangs, is suspended or is
 * missing, and its return. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checked.h"
#include "store/volume/volume.h"
#include "volumes-fixture.h"

static void remove_dir(unsigned i)
{
        char command[300];

        snprintf(command, sizeof(command), "rm -r '%s'", t.dirs[i]);
        assert_int_equal(system(command), 0);
}

static void replace_file(unsigned dir, const char *name, unsigned kind)
{
        char path[PATH_MAX], target[PATH_MAX];

        snprintf(path, sizeof(path), "%s/%s", t.dirs[dir], name);
        assert_true(unlink(path) == 0 || rmdir(path) == 0);
        switch (kind) {
        case 0:
                assert_int_equal(mkfifo(path, 0600), 0);
                break;
        case 1:
                assert_int_equal(mkdir(path, 0700), 0);
                break;
        case 2:
                snprintf(target, sizeof(target), "%s/%s", t.dirs[0], name);
                assert_int_equal(symlink(target, path), 0);
                break;
        default:
                assert_int_equal(mknod(path, S_IFSOCK | 0600, 0), 0);
        }
}

/* Anything else in the place of a volume's file costs only that volume, and no time. */
static void what_is_no_file_costs_its_volume_only(void **state)
{
        static const char *const names[] = { "superblock",   "LOCK",  "namespaces.0",
                                             "namespaces.1", "table", "segment-0000" };

        start("01");
        put_range(0, MANY);
        stop();
        for (unsigned i = 0; i < ARRAY_SIZE(names); i++)
                for (unsigned kind = 0; kind < 4; kind++) {
                        copy_dir(1, 2);
                        replace_file(2, names[i], kind);
                        refused("2", -EMEDIUMTYPE, "not a regular file");
                        start("02");
                        assert_int_equal(stats_of(1).state, STORE_VOLUME_BYPASSED);
                        assert_non_null(strstr(stats_of(1).reason, "not a regular file"));
                        assert_true(count_hits(0, MANY) > 0);
                        assert_int_equal(device(store_resume, 1), -EMEDIUMTYPE);
                        stop();
                        remove_dir(2);
                }
}

static void a_suspended_volume_is_a_miss_and_comes_back_whole(void **state)
{
        unsigned on_0;

        start("01");
        put_range(0, MANY);
        on_0 = (unsigned)stats_of(0).stats.chunks;
        assert_int_equal(device(store_suspend, 1), 0);
        assert_int_equal(device(store_suspend, 1), STORE_EXISTS);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_SUSPENDED);
        assert_int_equal(store_volumes_up(t.s), 1);
        assert_int_equal(count_hits(0, MANY), on_0);
        put_range(MANY, MANY);
        assert_int_equal(count_hits(MANY, MANY), MANY);
        assert_int_equal(device(store_resume, 0), STORE_EXISTS);
        assert_int_equal(device(store_resume, 1), 0);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_UP);
        assert_int_equal(count_hits(0, 2 * MANY), 2 * MANY);
        /* Chunks put on other volumes are there, too. */
        for (uint64_t i = MANY; i < 2 * MANY; i++)
                assert_int_equal(put(i), STORE_EXISTS);
        assert_int_equal(t.events[STORE_VOLUME_IS_SUSPENDED], 1);
        assert_int_equal(t.events[STORE_VOLUME_IS_RESUMED], 1);
        assert_int_equal(t.told, 2);
        assert_int_equal(stats().puts, 2 * MANY);
        restart("01");
        assert_int_equal(count_hits(0, 2 * MANY), 2 * MANY);
        stop();
}

/* Moves the files without which data files count as the remains of an emptied directory. */
static void move_heads(const char *from, const char *to)
{
        static const char *const names[] = { "superblock", "table" };
        char a[PATH_MAX], b[PATH_MAX];

        for (unsigned i = 0; i < ARRAY_SIZE(names); i++) {
                snprintf(a, sizeof(a), "%s/%s", from, names[i]);
                snprintf(b, sizeof(b), "%s/%s", to, names[i]);
                assert_int_equal(rename(a, b), 0);
        }
}

/* An admin moves the files of a suspended volume one by one, and stops the daemon in between. */
static void a_suspended_volume_whose_files_are_moved_keeps_its_data_files(void **state)
{
        char elsewhere[PATH_MAX];

        start("01");
        put_range(0, MANY);
        assert_int_equal(device(store_suspend, 1), 0);
        snprintf(elsewhere, sizeof(elsewhere), "%s/elsewhere", t.root);
        assert_int_equal(mkdir(elsewhere, 0700), 0);
        move_heads(t.dirs[1], elsewhere);
        stop();
        move_heads(elsewhere, t.dirs[1]);
        assert_int_equal(rmdir(elsewhere), 0);
        start("01");
        assert_int_equal(count_hits(0, MANY), MANY);
        stop();
}

/* The next sync of the file or directory with this end of its path fails; NULL: none. */
static const char *_Atomic failing_sync;

static int sync_or_fail(int fd, int (*sync)(int fd))
{
        const char *end = failing_sync;
        char link[64], path[PATH_MAX];
        ssize_t n;

        if (!end)
                return sync(fd);
        snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
        n = readlink(link, path, sizeof(path));
        if (n < (ssize_t)strlen(end) || memcmp(path + n - strlen(end), end, strlen(end)) != 0)
                return sync(fd);
        failing_sync = NULL;
        errno = EIO;
        return -1;
}

int __real_fdatasync(int fd);
int __wrap_fdatasync(int fd);
int __wrap_fdatasync(int fd)
{
        return sync_or_fail(fd, __real_fdatasync);
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
        return sync_or_fail(fd, __real_fsync);
}

static int sync_store(void)
{
        struct sync p = { .req = { .complete = sync_done } };

        store_sync(t.s, &p.req);
        wait_for(&p.done);
        return p.req.result;
}

/* The syncs of a stop or suspend, and their consequence for the chunks that were put before. */
static const struct {
        const char *path;
        int later; /* the result of later syncs */
} last_syncs[] = {
        { "/1/segment-0000", STORE_NOT_DURABLE },
        { "/1", STORE_NOT_DURABLE },
        { "/1/table", 0 },
        { "/1/superblock", 0 },
};

static void expect_chunks(int synced)
{
        assert_int_equal(sync_store(), synced);
        assert_int_equal(count_hits(0, MANY), MANY);
}

static void a_suspend_reports_every_failed_sync(void **state)
{
        for (unsigned i = 0; i < ARRAY_SIZE(last_syncs); i++) {
                start("01");
                put_range(0, MANY);
                settle();
                failing_sync = last_syncs[i].path;
                assert_int_equal(device(store_suspend, 1), -EIO);
                assert_null(failing_sync);
                assert_non_null(strstr(t.text, "could not be synced"));
                assert_int_equal(stats_of(1).state, STORE_VOLUME_SUSPENDED);
                assert_int_equal(device(store_resume, 1), 0);
                expect_chunks(last_syncs[i].later);
                restart("01");
                expect_chunks(last_syncs[i].later);
                stop();
                remove_dir(0);
                remove_dir(1);
        }
}

static void a_suspend_reports_a_sync_that_failed_before(void **state)
{
        start("01");
        put_range(0, MANY);
        settle();
        failing_sync = "/1/segment-0000";
        assert_int_equal(sync_store(), STORE_NOT_DURABLE);
        settle();
        assert_int_equal(device(store_suspend, 1), -EIO);
        assert_non_null(strstr(t.text, "could not be synced"));
        assert_int_equal(device(store_resume, 1), 0);
        expect_chunks(STORE_NOT_DURABLE);
        put_range(MANY, MANY);
        settle();
        assert_int_equal(device(store_suspend, 1), 0); /* the new volume's syncs succeed */
        stop();
}

static void chunks_that_a_stop_cannot_sync_are_not_durable_later(void **state)
{
        for (unsigned i = 0; i < ARRAY_SIZE(last_syncs); i++) {
                start("01");
                put_range(0, MANY);
                settle();
                failing_sync = last_syncs[i].path;
                stop();
                assert_null(failing_sync);
                start("01");
                expect_chunks(last_syncs[i].later);
                stop();
                remove_dir(0);
                remove_dir(1);
        }
}

/* The directory is synced before the ring grows, and that sync reports the failure alone. */
static void chunks_are_not_durable_if_a_growing_ring_cannot_sync_the_directory(void **state)
{
        start("1");
        put_range(0, 1);
        settle();
        failing_sync = "/1";
        for (uint64_t i = 1; failing_sync && i < 4000; i++)
                assert_int_equal(put(i), 0);
        assert_null(failing_sync);
        settle();
        assert_int_equal(sync_store(), STORE_NOT_DURABLE);
        restart("1");
        assert_int_equal(sync_store(), STORE_NOT_DURABLE);
        stop();
}

static void verify_done(struct store_verify *req)
{
        req->complete = NULL;
}

static void verify(unsigned volume)
{
        struct store_verify req = {
                .volume = volume, .max_chunks = 1000, .max_bytes = 64 * MIB, .complete = verify_done
        };

        assert_int_equal(store_verify(t.s, &req), 0);
        for (turn(); req.complete; turn())
                wait_io();
        assert_int_equal(req.result, 0);
        assert_true(req.found.chunks > 0);
}

/* Counts only go up, whatever becomes of a volume. */
static void assert_no_less(const struct store_stats *before, const struct store_stats *after)
{
#define NO_LESS(member)                                                                            \
        do {                                                                                       \
                assert_true(before->member > 0);                                                   \
                if (after->member < before->member)                                                \
                        fail_msg(#member " went from %llu to %llu",                                \
                                 (unsigned long long)before->member,                               \
                                 (unsigned long long)after->member);                               \
        } while (0)
        NO_LESS(puts);
        NO_LESS(payload_bytes_written);
        NO_LESS(table_bytes_written);
        NO_LESS(table_pages_written);
        NO_LESS(table_entries_written);
        NO_LESS(scrub_bytes);
        NO_LESS(scrub_chunks);
        NO_LESS(scrub_passes);
        NO_LESS(scrub_last_pass_ms);
#undef NO_LESS
}

static void what_is_counted_of_a_volume_goes_on_when_it_is_resumed(void **state)
{
        struct store_scrub scrub = { .rate = 64 * MIB, .interval_ms = 1 };
        struct store_stats before, again;

        start("01");
        put_range(0, MANY);
        verify(1);
        store_set_scrub(t.s, &scrub);
        while (stats_of(1).stats.scrub_passes == 0) {
                struct pollfd p = { .fd = kio_fd(t.io), .events = POLLIN };

                turn();
                poll(&p, 1, 1); /* a pass goes at its rate */
        }
        scrub.rate = 0;
        store_set_scrub(t.s, &scrub);
        settle();
        before = stats_of(1).stats;
        for (unsigned n = 0; n < 2; n++) {
                assert_int_equal(device(store_suspend, 1), 0);
                assert_int_equal(device(store_resume, 1), 0);
                again = stats_of(1).stats;
                assert_no_less(&before, &again);
                /* Nothing is counted twice. */
                assert_int_equal(again.scrub_chunks, before.scrub_chunks);
                assert_int_equal(again.table_entries_written, before.table_entries_written);
                assert_int_equal(again.chunks, before.chunks);
                assert_int_equal(again.namespaces, before.namespaces);
        }
        verify(1);
        assert_true(stats_of(1).stats.scrub_chunks > before.scrub_chunks);
        stop();
}

static void suspending_waits_for_what_was_begun(void **state)
{
        struct device d = { .req = { .volume = 0, .complete = device_done } };
        struct put p[8];

        start("0");
        for (unsigned i = 0; i < ARRAY_SIZE(p); i++)
                assert_int_equal(put_begin(&p[i], i, t.bufs[i]), 0);
        store_suspend(t.s, &d.req);
        wait_for(&d.done);
        assert_int_equal(d.req.result, 0);
        for (unsigned i = 0; i < ARRAY_SIZE(p); i++) {
                assert_true(p[i].done);
                assert_int_equal(p[i].req.result, 0);
        }
        assert_int_equal(put(20), STORE_BYPASSED);
        assert_int_equal(get(0), STORE_MISS);
        assert_int_equal(device(store_resume, 0), 0);
        assert_int_equal(count_hits(0, 8), 8);
        assert_int_equal(put(20), 0);
        stop();
}

static void fail_volume(unsigned volume, unsigned ops, int error)
{
        fault_set(&(struct fault_plan){ .ops = ops,
                                        .volume = volume + 1,
                                        .kind = FAULT_ERROR,
                                        .error = error,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
}

static void a_failing_volume_is_bypassed_when_its_budget_is_spent(void **state)
{
        unsigned failed = 0, hits = 0;

        t.error_budget = 5;
        start("01");
        put_range(0, MANY);
        settle();
        fail_volume(1, 1u << KIO_READ, EIO);
        for (uint64_t i = 0; i < MANY; i++) {
                int r = get(i);

                assert_true(r == 0 || r == STORE_MISS || r == -EIO);
                failed += r == -EIO;
                hits += r == 0;
        }
        assert_int_equal(failed, 6);
        assert_int_equal(hits, stats_of(0).stats.chunks);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_BYPASSED);
        assert_non_null(strstr(stats_of(1).reason, "error_budget"));
        assert_int_equal(stats_of(1).stats.read_errors, 6);
        assert_int_equal(t.events[STORE_VOLUME_IS_BYPASSED], 1);
        assert_int_equal(t.told, 1);
        fault_set(NULL);
        settle(); /* the superblock is being marked, which is also a call of the volume */
        assert_int_equal(device(store_suspend, 1), 0);
        assert_non_null(strstr(stats_of(1).reason, "error_budget")); /* why is not forgotten */
        put_range(MANY, 50);
        settle();
        assert_int_equal(device(store_resume, 1), 0);
        assert_int_equal(count_hits(MANY, 50), 50);
        assert_true(count_hits(0, MANY) >= MANY - 6);
        stop();
}

/* Flips a bit in each page of all data files of a volume. */
static void damage(unsigned volume)
{
        DIR *dir = opendir(t.dirs[volume]);
        unsigned files = 0;

        assert_non_null(dir);
        for (struct dirent *e; (e = readdir(dir));) {
                struct stat st;
                int fd;

                if (strncmp(e->d_name, "segment", 7) != 0)
                        continue;
                fd = openat(dirfd(dir), e->d_name, O_RDWR);
                assert_true(fd >= 0 && fstat(fd, &st) == 0);
                for (off_t at = 100; at < st.st_size; at += 4096) {
                        uint8_t byte;

                        assert_int_equal(pread(fd, &byte, 1, at), 1);
                        byte ^= 4;
                        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
                }
                assert_int_equal(fsync(fd), 0);
                close(fd);
                files++;
        }
        closedir(dir);
        assert_true(files > 0);
}

static unsigned count_wrong(uint64_t from, uint64_t n)
{
        unsigned missing = 0;

        for (uint64_t i = from; i < from + n; i++) {
                int r = get(i);

                assert_true(r == 0 || r == STORE_MISS);
                missing += r == STORE_MISS;
        }
        return missing;
}

/* A device returns other bytes than were written, and no error. */
static void a_volume_that_returns_wrong_bytes_is_bypassed_when_its_budget_is_spent(void **state)
{
        uint64_t on_first, on_second;

        t.error_budget = 5;
        start("01");
        put_range(0, MANY);
        settle();
        on_first = stats_of(0).stats.chunks;
        on_second = stats_of(1).stats.chunks;
        damage(1);
        assert_int_equal(count_wrong(0, MANY), on_second);
        assert_int_equal(stats_of(0).state, STORE_VOLUME_UP);
        assert_int_equal(stats_of(0).stats.crc_failures, 0);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_BYPASSED);
        assert_int_equal(stats_of(1).stats.crc_failures, 6);
        assert_int_not_equal(stats_of(1).stats.crc_failed_ns, 0);
        assert_non_null(strstr(stats_of(1).reason, "error_budget"));
        assert_non_null(strstr(stats_of(1).reason, "checksum"));
        assert_int_equal(t.events[STORE_VOLUME_IS_BYPASSED], 1);
        assert_int_equal(count_hits(0, MANY), on_first);
        stop();
}

/* A client may change its memory while a direct put reads it: others must not lose the volume. */
static void chunks_written_from_a_clients_memory_count_only_once_verified(void **state)
{
        t.error_budget = 5;
        t.foreign = true;
        start("01");
        put_range(0, MANY);
        settle();
        damage(1);
        assert_true(count_wrong(0, MANY) > 6);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_UP);
        put_range(MANY, MANY);
        settle();
        assert_int_equal(count_wrong(MANY, MANY), 0);
        damage(1);
        assert_true(count_wrong(MANY, MANY) > 6);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_BYPASSED);
        stop();
}

static void chunks_of_an_earlier_process_count_only_once_verified(void **state)
{
        t.error_budget = 5;
        start("01");
        put_range(0, 2 * MANY);
        settle();
        stop();
        start("01");
        assert_int_equal(count_wrong(MANY, MANY), 0);
        damage(1);
        assert_true(count_wrong(0, MANY) > 6);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_UP);
        assert_true(count_wrong(MANY, MANY) > 6);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_BYPASSED);
        stop();
}

/* A power loss may tear what was not synced. So after a kill, only chunks that this process has
 * written or verified count. */
static void chunks_that_a_power_loss_may_have_torn_do_not_bypass_their_volume(void **state)
{
        t.error_budget = 5;
        start("01");
        put_range(0, MANY);
        settle();
        copy_dir(0, 2); /* in use, as a killed daemon leaves them */
        copy_dir(1, 3);
        stop();
        damage(3);
        start("23");
        assert_true(count_wrong(0, MANY) > 6);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_UP);
        assert_true(stats_of(1).stats.crc_failures > 6);
        put_range(MANY, MANY);
        settle();
        damage(3);
        assert_true(count_wrong(MANY, MANY) > 6);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_BYPASSED);
        stop();
}

static void test_R2_what_a_client_cut_off_is_tried_on_one_volume_only(void **state)
{
        struct put p;

        start("01");
        settle();
        for (unsigned foreign = 0; foreign < 2; foreign++) {
                fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE,
                                                .kind = FAULT_ERROR,
                                                .error = EFAULT,
                                                .first = 1,
                                                .count = FAULT_FOR_EVER });
                for (uint64_t i = 0; i < 20; i++) {
                        uint64_t before = fault_matched();

                        p = (struct put){ .req = { .namespace_id = t.ns,
                                                   .key = key_of(i),
                                                   .buf = t.bufs[0],
                                                   .length = 8192,
                                                   .foreign = foreign,
                                                   .complete = put_done } };
                        p.req.hash = store_hash(t.s, t.ns, &p.req.key);
                        assert_int_equal(store_put(t.s, &p.req), 0);
                        wait_for(&p.done);
                        assert_int_equal(p.req.result, -EFAULT);
                        assert_int_equal(fault_matched() - before, foreign ? 1 : 2);
                }
                assert_int_equal(stats_of(0).stats.write_errors, 20);
                assert_int_equal(stats_of(1).stats.write_errors, 20);
        }
        assert_int_equal(t.told, 0);
        fault_set(NULL);
        put_range(0, 20);
        assert_int_equal(count_hits(0, 20), 20);
        stop();
}

static void a_put_that_fails_on_one_volume_is_written_to_another(void **state)
{
        start("01");
        settle();
        fail_volume(1, 1u << KIO_WRITE, EIO);
        put_range(0, 100);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_BYPASSED);
        assert_int_equal(count_hits(0, 100), 100);
        assert_int_equal(stats_of(0).stats.chunks, 100);
        fault_set(NULL);
        restart("01");
        assert_int_equal(count_hits(0, 100), 100);
        stop();
}

static void a_table_that_cannot_be_written_bypasses_the_volume_at_once(void **state)
{
        uint64_t i;

        start("01");
        put_range(0, 50);
        settle();
        i = first_on(0);
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE,
                                        .volume = 1,
                                        .kind = FAULT_ERROR,
                                        .error = EIO,
                                        .first = 1,
                                        .count = 1 });
        assert_int_equal(drop(i), 0); /* a tombstone is all that is written */
        assert_int_equal(settle_drops(), 0);
        assert_int_equal(stats_of(0).state, STORE_VOLUME_BYPASSED);
        assert_non_null(strstr(stats_of(0).reason, "table"));
        fault_set(NULL);
        settle();
        /* The tombstone was not written, so the dropped chunk must not return with the volume. */
        assert_int_equal(device(store_resume, 0), 0);
        assert_int_equal(get(i), STORE_MISS);
        restart("01");
        assert_int_equal(get(i), STORE_MISS);
        stop();
}

static void a_read_only_volume_is_bypassed_and_a_full_one_is_not(void **state)
{
        start("01");
        settle();
        fail_volume(1, 1u << KIO_WRITE, ENOSPC);
        put_range(0, 60);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_UP);
        assert_true(stats_of(1).full);
        assert_true(stats_of(1).full_refusals > 0);
        assert_int_equal(t.events[STORE_VOLUME_IS_FULL], 1);
        assert_int_equal(t.told, 1);
        fail_volume(1, 1u << KIO_WRITE, EROFS);
        put_range(60, 60);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_BYPASSED);
        assert_int_equal(count_hits(0, 120), 120);
        fault_set(NULL);
        stop();
}

static void with_its_only_volume_bypassed_the_store_answers_misses(void **state)
{
        uint32_t id;

        start("0");
        put_range(0, 20);
        settle();
        fail_volume(0, 1u << KIO_WRITE, EROFS);
        assert_int_equal(put(100), -EROFS);
        assert_true(stats().bypassed);
        assert_int_equal(put(101), STORE_BYPASSED);
        assert_int_equal(get(0), STORE_MISS);
        /* A kill may bring back any of them, whichever request is next. */
        for (uint64_t i = 0; i < 2; i++) {
                assert_int_equal(drop(i), 0);
                assert_int_equal(settle_drops(), STORE_BYPASSED);
        }
        /* Other requests fail, too, because they may concern another request's drop. */
        assert_int_equal(drop(1000), STORE_MISS);
        assert_int_equal(settle_drops(), STORE_BYPASSED);
        assert_int_equal(open_namespace("meanwhile", &id), 0);
        assert_int_equal(purge(), -EIO);
        assert_int_equal(drop(2), 0);
        assert_int_equal(settle_drops(), STORE_BYPASSED);
        fault_set(NULL);
        settle();
        assert_int_equal(device(store_resume, 0), 0);
        assert_int_equal(get(1), STORE_MISS); /* purged, after all */
        assert_int_equal(store_namespace_get(t.s, id)->chunks, 0);
        assert_int_equal(put(101), 0);
        restart("0");
        assert_int_equal(get(101), 0);
        assert_int_equal(get(1), STORE_MISS);
        stop();
}

static void startup_without_one_of_its_volumes_goes_on(void **state)
{
        unsigned on_0;

        start("01");
        put_range(0, MANY);
        on_0 = (unsigned)stats_of(0).stats.chunks;
        stop();
        assert_int_equal(rename(t.dirs[1], t.dirs[2]), 0);
        close(open(t.dirs[1], O_WRONLY | O_CREAT, 0600)); /* no directory: it cannot be opened */
        start("01");
        assert_int_equal(t.events[STORE_VOLUME_IS_BYPASSED], 1);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_BYPASSED);
        assert_int_equal(count_hits(0, MANY), on_0);
        put_range(MANY, 50);
        assert_true(device(store_resume, 1) < 0);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_BYPASSED);
        assert_int_equal(unlink(t.dirs[1]), 0);
        assert_int_equal(rename(t.dirs[2], t.dirs[1]), 0);
        assert_int_equal(device(store_resume, 1), 0);
        assert_int_equal(count_hits(0, MANY + 50), MANY + 50);
        stop();
        assert_int_equal(rename(t.dirs[1], t.dirs[2]), 0);
        close(open(t.dirs[1], O_WRONLY | O_CREAT, 0600));
        refused("1", -ENOTDIR, t.dirs[1]);
        assert_int_equal(unlink(t.dirs[1]), 0);
}

static void test_R15_a_volume_that_hangs_is_bypassed_and_keeps_its_buffers(void **state)
{
        uint64_t on_0, on_1, homed_on_1;
        struct put p[DEPTH] = { 0 };
        struct sync sync = { .req = { .complete = sync_done } };
        struct get g;

        t.hang_ms = 200;
        start("01");
        put_range(0, MANY);
        on_0 = first_on(0);
        on_1 = first_on(1);
        homed_on_1 = next_on(1, on_1 + 1);
        assert_int_equal(drop(homed_on_1), 0);
        settle();
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_READ | 1u << KIO_WRITE | 1u << KIO_SYNC,
                                        .volume = 2,
                                        .kind = FAULT_NEVER,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
        assert_int_equal(get_begin(&g, on_1, t.bufs[1]), 0);
        assert_int_equal(put_begin(&p[2], homed_on_1, t.bufs[2]), 0);
        for (unsigned i = 3; i < 12; i++)
                assert_int_equal(put_begin(&p[i], MANY + i, t.bufs[i]), 0);
        store_sync(t.s, &sync.req);
        wait_hits(2);
        /* The other volume continues meanwhile. */
        assert_int_equal(get(on_0) == 0 || g.abandoned, true);
        wait_state(1, STORE_VOLUME_BYPASSED);
        assert_non_null(strstr(stats_of(1).reason, "io.hang"));
        assert_true(g.abandoned);
        assert_false(g.done);
        for (unsigned i = 2; i < 12; i++)
                while (!p[i].done && !p[i].abandoned)
                        turn();
        assert_true(p[2].abandoned);
        assert_false(p[2].done);
        wait_for(&sync.done);
        assert_int_equal(sync.req.result, STORE_NOT_DURABLE);
        assert_int_equal(get(on_1), STORE_MISS);
        assert_int_equal(get(on_0), 0);
        put_range(2 * MANY, 20);
        assert_int_equal(purge(), 0);
        assert_int_equal(drop(1), STORE_MISS);
        assert_int_equal(settle_drops(), 0);
        assert_int_equal(device(store_resume, 1), STORE_BUSY);

        /* The request returns: only now are the buffers ours. */
        fault_set(NULL);
        fault_release();
        wait_for(&g.done);
        for (unsigned i = 2; i < 12; i++)
                wait_for(&p[i].done);
        settle();
        assert_int_equal(device(store_resume, 1), 0);
        assert_int_equal(count_hits(0, MANY), 0); /* purged */
        put_range(0, 50);
        assert_int_equal(count_hits(0, 50), 50);
        assert_int_equal(t.events[STORE_VOLUME_IS_BYPASSED], 1);
        restart("01");
        assert_int_equal(count_hits(0, MANY), 50);
        stop();
}

static void test_R15_a_suspend_does_not_wait_for_a_device_that_hangs(void **state)
{
        struct device d = { .req = { .volume = 0, .complete = device_done } };
        struct put p;

        t.hang_ms = 200;
        start("0");
        settle();
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_NEVER, .first = 1, .count = FAULT_FOR_EVER });
        assert_int_equal(put_begin(&p, 1, t.bufs[0]), 0);
        wait_hits(1);
        store_suspend(t.s, &d.req);
        wait_state(0, STORE_VOLUME_BYPASSED);
        assert_true(d.done);
        assert_true(d.req.result < 0);
        assert_true(p.abandoned);
        fault_set(NULL);
        fault_release();
        wait_for(&p.done);
        settle();
        assert_int_equal(device(store_resume, 0), 0);
        assert_int_equal(put(2), 0);
        stop();
}

/* --- calls in progress while other volumes come and go --- */

/* Occupies the thread of a volume's blocking calls, so that a later call of the volume waits. */
struct gate {
        struct kio_request req;
        sem_t open;
        bool done;
};

static int wait_at_gate(struct kio_request *req)
{
        struct gate *g = container_of(req, struct gate, req);

        while (sem_wait(&g->open) < 0)
                ;
        return 0;
}

static void passed_gate(struct kio_request *req)
{
        container_of(req, struct gate, req)->done = true;
}

static void gate_close(struct gate *g, unsigned volume)
{
        *g = (struct gate){ .req = { .op = KIO_CALL,
                                     .class = KIO_CLASS_PUT,
                                     .volume = volume + 1,
                                     .call = wait_at_gate,
                                     .complete = passed_gate } };
        list_init(&g->req.node);
        assert_int_equal(sem_init(&g->open, 0, 0), 0);
        kio_submit(t.io, &g->req, volume);
}

static void gate_open(struct gate *g)
{
        sem_post(&g->open);
        wait_for(&g->done);
        sem_destroy(&g->open);
}

static bool is_marked_away(unsigned volume)
{
        struct disk_superblock sb;
        char path[300];
        int fd;

        snprintf(path, sizeof(path), "%s/superblock", t.dirs[volume]);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        assert_true(fd >= 0);
        assert_int_equal(pread(fd, &sb, sizeof(sb), 0), sizeof(sb));
        close(fd);
        return sb.away;
}

/* The last volume in use is being suspended when another comes back, and continues without it. */
static void a_volume_that_is_being_suspended_is_marked_when_another_comes_back(void **state)
{
        struct device d = { .req = { .volume = 1, .complete = device_done } };
        struct gate gate;

        start("01");
        put_range(0, 20);
        assert_int_equal(device(store_suspend, 0), 0);
        settle();
        gate_close(&gate, 1);
        store_suspend(t.s, &d.req);
        while (t.events[STORE_VOLUME_IS_SUSPENDED] < 2)
                turn();
        assert_false(d.done);
        assert_int_equal(device(store_resume, 0), 0);
        gate_open(&gate);
        wait_for(&d.done);
        assert_int_equal(d.req.result, 0);
        settle();
        assert_true(is_marked_away(1));
        assert_false(is_marked_away(0));
        assert_int_equal(device(store_resume, 1), 0);
        assert_false(is_marked_away(1));
        assert_int_equal(count_hits(0, 20), 20);
        stop();
}

/* A resume that has taken longer than io.hang ends after its volume has joined the others. */
static void a_volume_whose_resume_is_given_up_is_marked(void **state)
{
        struct device d = { .req = { .volume = 1, .complete = device_done } };
        struct gate gate;

        t.hang_ms = 200;
        start("012");
        put_range(0, 20);
        assert_int_equal(device(store_suspend, 1), 0);
        settle();
        gate_close(&gate, 1);
        store_resume(t.s, &d.req);
        wait_state(1, STORE_VOLUME_BYPASSED);
        assert_true(d.done);
        assert_int_equal(d.req.result, -ETIMEDOUT);
        /* the call reads nothing of another volume, which is replaced meanwhile */
        assert_int_equal(device(store_suspend, 2), 0);
        assert_int_equal(device(store_resume, 2), 0);
        gate_open(&gate);
        while (device(store_suspend, 1) == STORE_BUSY) {
                wait_io();
                turn();
        }
        settle();
        assert_true(is_marked_away(1));
        assert_int_equal(device(store_resume, 1), 0);
        assert_false(is_marked_away(1));
        assert_int_equal(count_hits(0, 20), 20);
        stop();
}

/* --- a change of the eviction policy --- */

static unsigned switched;

int __real_volume_set_policy(struct volume *v, const char *policy);
int __wrap_volume_set_policy(struct volume *v, const char *policy);

static bool policy_fails;

int __wrap_volume_set_policy(struct volume *v, const char *policy)
{
        switched++;
        return policy_fails ? -ENOMEM : __real_volume_set_policy(v, policy);
}

static void a_change_of_policy_without_memory_is_reported_and_costs_nothing_else(void **state)
{
        start("01");
        put_range(0, MANY);
        switched = 0;
        policy_fails = true;
        assert_int_equal(store_set_policy(t.s, "lru"), -ENOMEM);
        assert_int_equal(switched, 2); /* the second volume is tried despite the first */
        assert_int_equal(count_hits(0, MANY), MANY);

        /* A volume that was suspended meanwhile behaves in the same way. */
        assert_int_equal(device(store_suspend, 1), 0);
        assert_int_equal(device(store_resume, 1), 0);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_UP);
        assert_int_equal(t.events[STORE_VOLUME_KEEPS_POLICY], 1);
        assert_int_equal(count_hits(0, MANY), MANY);

        /* The next reload. */
        policy_fails = false;
        assert_int_equal(store_set_policy(t.s, "lru"), 0);
        assert_int_equal(count_hits(0, MANY), MANY);
        assert_int_equal(device(store_suspend, 1), 0);
        assert_int_equal(device(store_resume, 1), 0);
        assert_int_equal(t.events[STORE_VOLUME_KEEPS_POLICY], 1);
        stop();
}

int main(int argc, char **argv)
{
        const struct CMUnitTest tests[] = {
                TEST(a_suspended_volume_is_a_miss_and_comes_back_whole),
                TEST(a_suspended_volume_whose_files_are_moved_keeps_its_data_files),
                TEST(a_suspend_reports_every_failed_sync),
                TEST(a_suspend_reports_a_sync_that_failed_before),
                TEST(chunks_that_a_stop_cannot_sync_are_not_durable_later),
                TEST(chunks_are_not_durable_if_a_growing_ring_cannot_sync_the_directory),
                TEST(what_is_no_file_costs_its_volume_only),
                TEST(what_is_counted_of_a_volume_goes_on_when_it_is_resumed),
                TEST(suspending_waits_for_what_was_begun),
                TEST(a_failing_volume_is_bypassed_when_its_budget_is_spent),
                TEST(a_volume_that_returns_wrong_bytes_is_bypassed_when_its_budget_is_spent),
                TEST(chunks_written_from_a_clients_memory_count_only_once_verified),
                TEST(chunks_of_an_earlier_process_count_only_once_verified),
                TEST(chunks_that_a_power_loss_may_have_torn_do_not_bypass_their_volume),
                TEST(test_R2_what_a_client_cut_off_is_tried_on_one_volume_only),
                TEST(a_put_that_fails_on_one_volume_is_written_to_another),
                TEST(a_table_that_cannot_be_written_bypasses_the_volume_at_once),
                TEST(a_read_only_volume_is_bypassed_and_a_full_one_is_not),
                TEST(with_its_only_volume_bypassed_the_store_answers_misses),
                TEST(startup_without_one_of_its_volumes_goes_on),
                TEST(test_R15_a_volume_that_hangs_is_bypassed_and_keeps_its_buffers),
                TEST(test_R15_a_suspend_does_not_wait_for_a_device_that_hangs),
                TEST(a_volume_that_is_being_suspended_is_marked_when_another_comes_back),
                TEST(a_volume_whose_resume_is_given_up_is_marked),
                TEST(a_change_of_policy_without_memory_is_reported_and_costs_nothing_else),
        };

        if (argc > 1)
                cmocka_set_test_filter(argv[1]);
        return cmocka_run_group_tests_name("volumes that fail", tests, NULL, NULL);
}
