/* SPDX-License-Identifier: Apache-2.0 */
/* The first cut of a data file whose number has entries in the table that are void, because the
 * superblock says that no file has their place. Such entries stay void, whatever becomes of the
 * cut: a drop writes no tombstone for their keys. */
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "checked.h"
#include "fault.h"
#include "io/io.h"
#include "store-fixture.h"

enum { OLD = 20, NEW = 100, LENGTH = 20000 };

static const char file[] = "segment-0000";

static void start_sparse(void)
{
        struct store_params params = params_of(8 * MIB);

        params.prewrite = false;
        t.faults = true;
        start(&params);
}

static void path_of(const char *name, char ret[static PATH_MAX + 64])
{
        snprintf(ret, PATH_MAX + 64, "%s/%s", t.dir, name);
}

static void rename_file(const char *from, const char *to)
{
        char before[PATH_MAX + 64], after[PATH_MAX + 64];

        path_of(from, before);
        path_of(to, after);
        assert_int_equal(rename(before, after), 0);
}

static void put_old(void)
{
        start_sparse();
        put_range(0, OLD, LENGTH);
        settle();
        stop();
}

/* Leaves the old chunks in the data file, and a superblock without it: a power loss may leave the
 * same after a volume has removed the file. */
static void void_old(void)
{
        put_old();
        rename_file(file, ".aside");
        start_sparse();
        assert_int_equal(stats().lost_chunks, OLD);
        settle();
        stop();
        rename_file(".aside", file);
}

static atomic_uint held;

/* Runs on any thread. */
static bool hold_table_writes(const struct kio_request *req, struct fault_plan *plan)
{
        char link[32], name[PATH_MAX] = "";
        ssize_t n;

        snprintf(link, sizeof(link), "/proc/self/fd/%d", req->fd);
        n = readlink(link, name, sizeof(name) - 1);
        if (n < 6 || strcmp(name + n - 6, "/table") != 0)
                return false;
        held++;
        plan->kind = FAULT_NEVER;
        return true;
}

/* Puts a chunk up to the write of its first table page. Everything else is written. */
static void put_without_a_table(void)
{
        held = 0;
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE, .choose = hold_table_writes });
        assert_int_equal(submit_put(NEW, LENGTH, false), 0);
        while (held == 0 || kio_pending(t.io) > 1) { /* a held operation wakes no thread */
                turn_once();
                sched_yield();
        }
}

static void cut_file(void)
{
        start_sparse();
        assert_int_equal(count_present(0, OLD), 0);
        put_without_a_table();
}

static void void_chunks_of_a_file_stay_void_when_a_kill_interrupts_its_cut(void **state)
{
        void_old();
        in_killed_process(cut_file);
        start_sparse();
        assert_int_equal(count_present(0, OLD), 0);
        assert_int_equal(put(NEW, LENGTH), 0);
        stop();
        start_sparse();
        assert_int_equal(count_present(0, OLD), 0);
        assert_int_equal(get(NEW, LENGTH), 0);
        stop();
}

static void cut_new_file(void)
{
        start_sparse();
        assert_int_equal(stats().lost_chunks, OLD);
        settle();
        put_without_a_table();
}

static void lost_chunks_are_not_found_in_a_new_file_of_their_number(void **state)
{
        char name[16], path[PATH_MAX + 64];

        put_old();
        for (unsigned i = 0; i < 4; i++) { /* the numbers after the first are of empty files */
                snprintf(name, sizeof(name), "segment-%04x", i);
                path_of(name, path);
                assert_true(unlink(path) == 0 || i > 0);
        }
        in_killed_process(cut_new_file);
        start_sparse();
        assert_int_equal(count_present(0, OLD), 0);
        stop();
}

static void put_one(void)
{
        start_sparse();
        assert_int_equal(put(NEW, LENGTH), 0);
}

/* A power loss may lose a table page that was written and not synced. */
static void sizes_have_a_cut_once_its_record_is_synced(void **state)
{
        uint64_t cut;

        void_old();
        start_sparse();
        assert_int_equal(superblock().sizes[0].pages, 0);
        watch_syncs(true, 1, true);
        assert_int_equal(submit_put(NEW, LENGTH, false), 0);
        while (watched_syncs.seen == 0 || kio_pending(t.io) > 1) {
                turn_once();
                sched_yield();
        }
        assert_int_equal(superblock().sizes[0].pages, 0);
        cut = superblock().sizes_seq;
        fault_set(NULL);
        fault_release();
        turn(puts_none, NULL);
        assert_int_equal(last_result, 0);
        settle();
        assert_true(superblock().sizes[0].pages > 0);
        assert_true(superblock().sizes_seq > cut);
        stop();
}

/* The entries of the first put, and of later ones, are not void: the sizes are older than them. */
static void chunks_of_a_recorded_cut_survive_a_kill(void **state)
{
        void_old();
        in_killed_process(put_one);
        start_sparse();
        assert_int_equal(count_present(0, OLD), 0);
        assert_int_equal(get(NEW, LENGTH), 0);
        stop();
}

int main(int argc, char **argv)
{
        static const struct CMUnitTest tests[] = {
                TEST(void_chunks_of_a_file_stay_void_when_a_kill_interrupts_its_cut),
                TEST(lost_chunks_are_not_found_in_a_new_file_of_their_number),
                TEST(sizes_have_a_cut_once_its_record_is_synced),
                TEST(chunks_of_a_recorded_cut_survive_a_kill),
        };

        return run_store_tests(argc, argv, tests, ARRAY_SIZE(tests), NULL, 0);
}
