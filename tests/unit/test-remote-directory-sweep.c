/* SPDX-License-Identifier: Apache-2.0 */
/* remote/directory-sweep.c: leases, listings, removals, and marks of use. */
#include "directory-fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "checked.h"

#define LEASE      "kv/sweep"
#define LEASE_FILE "kv/.lease-sweep.1"
#define NEXT_FILE  "kv/.lease-sweep.2"
#define NAME       "kv/1/0123456789abcdef/ab/abcdef"
#define DAY        86400
#define MINUTE_NS  (60 * SECOND_NS)

static int lease(const char *owner, uint64_t for_ns)
{
        return backend_directory.lease(at.b, LEASE, owner, for_ns);
}

static int release(const char *owner)
{
        return backend_directory.release(at.b, LEASE, owner);
}

/* --- leases --- */

static void one_host_has_the_lease(void **state)
{
        start(1, false);
        assert_int_equal(release("a"), -ENOENT);
        assert_int_equal(lease("a", MINUTE_NS), 0);
        assert_int_equal(lease("b", MINUTE_NS), -EBUSY);
        assert_int_equal(release("b"), -EBUSY);
        age(LEASE_FILE, 50);
        assert_int_equal(lease("a", MINUTE_NS), 0); /* renews it */
        assert_in_range(modified_s(LEASE_FILE), (uint64_t)time(NULL) - 10,
                        (uint64_t)time(NULL) + 1);
        assert_int_equal(release("a"), 0);
        assert_int_equal(lease("b", MINUTE_NS), 0);
        assert_int_equal(lease("a", MINUTE_NS), -EBUSY);
        assert_int_equal(release("a"), -EBUSY);
        assert_int_equal(count_files("", ".lease"), 1);
        assert_int_equal(count_files("", ".tmp"), 0);
}

static void a_lease_ends_by_the_clock_of_the_file_system(void **state)
{
        start(1, false);
        assert_int_equal(lease("a", MINUTE_NS), 0);
        age(LEASE_FILE, 55);
        assert_int_equal(lease("b", 2 * MINUTE_NS), -EBUSY);
        age(LEASE_FILE, 61);
        assert_int_equal(lease("b", 2 * MINUTE_NS), 0);
        assert_false(exists(LEASE_FILE));
        assert_int_equal(lease("a", MINUTE_NS), -EBUSY);
        age(NEXT_FILE, 61); /* the holder's duration counts */
        assert_int_equal(lease("a", MINUTE_NS), -EBUSY);
        assert_int_equal(count_files("", ".tmp"), 0);
}

static void a_malformed_lease_is_taken_over(void **state)
{
        static const char *const texts[] = { "", "x", "60000", "\n\n\n", "60000 \n" };

        start(1, false);
        for (unsigned i = 0; i < ARRAY_SIZE(texts); i++) {
                write_file("kv/.lease-sweep.70", texts[i]);
                age("kv/.lease-sweep.70", 2);
                write_file("kv/.lease-sweep.x", "60000 c");
                write_file("kv/.lease-sweep.99999999999999999999", "60000 c");
                assert_int_equal(lease("b", MINUTE_NS), 0);
                assert_true(exists("kv/.lease-sweep.71"));
                assert_int_equal(lease("a", MINUTE_NS), -EBUSY);
                assert_int_equal(unlink(in_path("kv/.lease-sweep.71")), 0);
        }
}

static void what_is_no_file_is_no_lease(void **state)
{
        char target[200];

        start(1, false);
        snprintf(target, sizeof(target), "%s/lease", at.outside);
        make_parents(LEASE_FILE);
        assert_int_equal(mkfifo(in_path(LEASE_FILE), 0666), 0);
        assert_int_equal(lease("a", MINUTE_NS), -EIO);
        assert_int_equal(unlink(in_path(LEASE_FILE)), 0);
        assert_int_equal(symlink(target, in_path(LEASE_FILE)), 0);
        assert_int_equal(lease("a", MINUTE_NS), -ELOOP);
        assert_int_not_equal(access(target, F_OK), 0);
}

static void *take_over(void *userdata)
{
        *(int *)userdata = lease("b", MINUTE_NS);
        return NULL;
}

/* The holder renews the lease while another host takes it over, before or after that host's file
 * exists. */
static void of_renewal_and_takeover_one_succeeds(void **state)
{
        static const enum call steps[] = { CALL_LINKAT, CALL_UNLINKAT };

        start(1, false);
        for (unsigned i = 0; i < ARRAY_SIZE(steps); i++) {
                pthread_t other;
                int renewed, taken;

                write_file(LEASE_FILE, "60000 a\n");
                age(LEASE_FILE, 61);
                /* A temporary file whose mtime gives the present time is removed before. */
                hang_call(steps[i], steps[i] == CALL_UNLINKAT, 1);
                assert_int_equal(pthread_create(&other, NULL, take_over, &taken), 0);
                wait_until_hanging(1);
                renewed = lease("a", MINUTE_NS);
                release_calls();
                pthread_join(other, NULL);
                assert_int_equal(taken, steps[i] == CALL_LINKAT ? -EBUSY : 0);
                assert_int_equal(renewed, steps[i] == CALL_LINKAT ? 0 : -EBUSY);
                assert_int_equal(count_files("", ".lease"), 1);
        }
}

static void errors_of_leases_are_passed_on(void **state)
{
        start(1, false);
        fail_call_anywhere(CALL_PWRITEV, ENOSPC, 0, 1);
        assert_int_equal(lease("a", MINUTE_NS), -ENOSPC);
        assert_int_equal(lease("a", MINUTE_NS), 0);
        fail_call_anywhere(CALL_UTIMENSAT, EROFS, 0, 1);
        assert_int_equal(lease("a", MINUTE_NS), -EROFS);
        fail_call_anywhere(CALL_UTIMENSAT, ENOENT, 0, 1);
        assert_int_equal(lease("a", MINUTE_NS), -EBUSY); /* another host has removed it */
        fail_call_anywhere(CALL_UTIMENSAT, EIO, 0, 1);
        assert_int_equal(release("a"), -EIO);
        assert_int_equal(release("a"), 0);
        fail_call_anywhere(CALL_LINKAT, EIO, 0, 1);
        assert_int_equal(lease("b", MINUTE_NS), -EIO);
        assert_int_equal(lease("b", MINUTE_NS), 0);
}

/* If several processes find an ended lease, one takes it over. */
static void of_several_hosts_one_takes_it_over(void **state)
{
        enum { HOSTS = 4, ROUNDS = 10 };

        make_parents(LEASE_FILE);
        for (unsigned round = 0; round < ROUNDS; round++) {
                unsigned winners = 0;
                pid_t hosts[HOSTS];
                int gate[2];

                write_file(LEASE_FILE, "1000 dead\n");
                age(LEASE_FILE, 10);
                assert_int_equal(pipe(gate), 0);
                for (unsigned i = 0; i < HOSTS; i++) {
                        hosts[i] = fork();
                        if (hosts[i] == 0) {
                                char owner[16], byte;

                                close(gate[1]);
                                snprintf(owner, sizeof(owner), "host %u", i);
                                start(1, false);
                                _exit(read(gate[0], &byte, 1) == 0 && lease(owner, MINUTE_NS) == 0
                                              ? 1
                                              : 0);
                        }
                }
                close(gate[0]);
                close(gate[1]);
                for (unsigned i = 0; i < HOSTS; i++) {
                        int status;

                        assert_int_equal(waitpid(hosts[i], &status, 0), hosts[i]);
                        assert_true(WIFEXITED(status));
                        winners += WEXITSTATUS(status) == 1;
                }
                assert_int_equal(winners, 1);
                assert_int_equal(count_files("", ".tmp"), 0);
        }
}

/* --- lists --- */

struct listed {
        unsigned n, most;
        uint64_t bytes;
        bool *stop;
        bool dry_run;
        char names[32][REMOTE_NAME_MAX];
        uint64_t used_ms[32];
};

static bool on_entry(void *userdata, const struct backend_entry *e)
{
        struct listed *l = userdata;

        assert_true(l->n < ARRAY_SIZE(l->names));
        snprintf(l->names[l->n], sizeof(l->names[0]), "%s", e->name);
        l->used_ms[l->n++] = e->used_ms;
        l->bytes += e->bytes;
        if (l->stop)
                *l->stop = true;
        return l->n != l->most;
}

static int list(struct listed *l)
{
        bool stop_now = false;

        if (l->stop)
                l->stop = &stop_now;
        return backend_directory.list(at.b, !l->dry_run, on_entry, l, &stop_now);
}

static int find(const struct listed *l, const char *name)
{
        for (unsigned i = 0; i < l->n; i++)
                if (strcmp(l->names[i], name) == 0)
                        return (int)i;
        return -1;
}

static void what_is_listed_are_the_objects(void **state)
{
        struct listed l = { .n = 0 };

        start(2, false);
        assert_int_equal(list(&l), 0); /* nothing has that prefix yet */
        assert_int_equal(l.n, 0);
        assert_int_equal(create("kv/1/id/ab/one", 5000, 1), 0);
        assert_int_equal(create("kv/2/id/cd/two", 100, 1), 0);
        assert_int_equal(create("kv/generation/id", 4096, 1), 0);
        assert_int_equal(create("other/1/id/ab/one", 4096, 1), 0);
        age("kv/2/id/cd/two", 1000);
        assert_int_equal(lease("a", MINUTE_NS), 0);
        write_file("kv/1/id/ab/.tmp-host-1-1", "x");
        write_file("kv/1/id/ab/.nfs0001", "x");
        assert_int_equal(symlink("one", in_path("kv/1/id/ab/link")), 0);
        assert_int_equal(symlink(at.outside, in_path("kv/1/id/outside")), 0);
        assert_int_equal(mkfifo(in_path("kv/1/id/ab/fifo"), 0666), 0);
        assert_int_equal(list(&l), 0);
        assert_int_equal(l.n, 3);
        assert_int_equal(l.bytes, 5000 + 100 + 4096);
        assert_true(find(&l, "kv/1/id/ab/one") >= 0);
        assert_true(find(&l, "kv/generation/id") >= 0);
        assert_true(find(&l, "kv/2/id/cd/two") >= 0);
        assert_int_equal(l.used_ms[find(&l, "kv/2/id/cd/two")] / 1000,
                         modified_s("kv/2/id/cd/two"));
        assert_true(exists("kv/1/id/ab/.tmp-host-1-1"));
}

static void a_list_ends_when_it_is_asked_to(void **state)
{
        struct listed two = { .most = 2 }, stopped = { .stop = &(bool){ false } };
        char name[64];

        start(2, false);
        for (unsigned i = 0; i < 10; i++) {
                snprintf(name, sizeof(name), "kv/1/id/%02x/object", i);
                assert_int_equal(create(name, 4096, i), 0);
        }
        assert_int_equal(list(&two), 0);
        assert_int_equal(two.n, 2);
        assert_int_equal(list(&stopped), -ECANCELED);
        assert_int_equal(stopped.n, 1);
}

static void errors_do_not_end_a_list(void **state)
{
        struct listed l = { .n = 0 };

        start(2, false);
        assert_int_equal(create("kv/1/id/ab/one", 4096, 1), 0);
        assert_int_equal(create("kv/1/id/cd/two", 4096, 1), 0);
        fail_call_anywhere(CALL_FSTATAT, EACCES, 3, 1); /* kv/1, kv/1/id, a directory, its object */
        assert_int_equal(list(&l), -EACCES);
        assert_int_equal(l.n, 1);
        l.n = 0;
        fail_call_anywhere(CALL_FSTATAT, ENOENT, 3, 1); /* removed meanwhile */
        assert_int_equal(list(&l), 0);
        assert_int_equal(l.n, 1);
        l.n = 0;
        fail_call_anywhere(CALL_OPENAT2, EIO, 0, 1);
        assert_int_equal(list(&l), -EIO);
}

static void what_dead_writers_left_is_removed_after_a_day(void **state)
{
        struct listed l = { .dry_run = true };

        start(2, false);
        assert_int_equal(create("kv/1/id/ab/one", 4096, 1), 0);
        write_file("kv/1/id/ab/.tmp-host-1-1", "x");
        write_file("kv/1/id/ab/.tmp-host-1-2", "x");
        write_file("kv/1/id/ab/.nfs0001", "x");
        make_parents("kv/1/id/old/x");
        make_parents("kv/1/id/new/x");
        age("kv/1/id/ab/.tmp-host-1-1", DAY + 60);
        age("kv/1/id/ab/.tmp-host-1-2", DAY - 60);
        age("kv/1/id/ab/.nfs0001", 2 * DAY);
        age("kv/1/id/old", DAY + 60);
        age("kv/1/id/ab", DAY + 60); /* not empty */
        assert_int_equal(list(&l), 0);
        assert_int_equal(l.n, 1);
        assert_true(exists("kv/1/id/ab/.tmp-host-1-1"));
        assert_true(exists("kv/1/id/old"));
        l = (struct listed){ .n = 0 };
        assert_int_equal(list(&l), 0);
        assert_false(exists("kv/1/id/ab/.tmp-host-1-1"));
        assert_true(exists("kv/1/id/ab/.tmp-host-1-2"));
        assert_true(exists("kv/1/id/ab/.nfs0001"));
        assert_false(exists("kv/1/id/old"));
        assert_true(exists("kv/1/id/new"));
        assert_int_equal(read_back("kv/1/id/ab/one", 4096, 1), 0);
}

/* Names that no object can have, and endless directories, are skipped. */
static void what_is_no_name_of_an_object_is_passed_over(void **state)
{
        struct listed l = { .n = 0 };
        char deep[512] = "kv", wide[512];

        start(1, false);
        assert_int_equal(create(NAME, 4096, 1), 0);
        for (unsigned i = 0; i < 40; i++)
                strcat(deep, "/d");
        strcat(deep, "/file");
        write_file(deep, "x");
        snprintf(wide, sizeof(wide), "kv/%0150d/%0150d/%0150d", 1, 2, 3);
        write_file(wide, "x");
        assert_int_equal(list(&l), 0);
        assert_int_equal(l.n, 1);
        assert_string_equal(l.names[0], NAME);
}

/* --- removal, and reasons against it --- */

static int remove_unused(const char *name, uint64_t used_s)
{
        return backend_directory.remove_unused(at.b, name, used_s * 1000);
}

static void what_was_used_since_stays(void **state)
{
        uint64_t now = (uint64_t)time(NULL);

        start(1, false);
        assert_int_equal(remove_unused(NAME, now), -ENOENT);
        assert_int_equal(create(NAME, 4096, 1), 0);
        assert_int_equal(remove_unused(NAME, now - 100), -EAGAIN);
        assert_true(exists(NAME));
        age(NAME, 200);
        assert_int_equal(remove_unused(NAME, now - 100), 0);
        assert_false(exists(NAME));
        assert_int_equal(create(NAME, 4096, 1), 0);
        fail_call_anywhere(CALL_UNLINKAT, EROFS, 0, 1);
        assert_int_equal(remove_unused(NAME, now + 100), -EACCES);
        fail_call_anywhere(CALL_FSTATAT, EIO, 0, 1);
        assert_int_equal(remove_unused(NAME, now + 100), -EIO);
        fail_call_anywhere(CALL_OPENAT2, ESTALE, 0, 1);
        assert_int_equal(remove_unused(NAME, now + 100), 0);
}

static void mark_used(const char *name)
{
        backend_directory.mark_used(at.b, name, clock_unix_ms());
}

/* Waits for all marks, because a later one ends after an earlier one. */
static void wait_for_marks(void)
{
        assert_int_equal(create("kv/last", 1, 1), 0);
        age("kv/last", 2 * DAY);
        mark_used("kv/last");
        while (modified_s("kv/last") < (uint64_t)time(NULL) - DAY)
                sched_yield();
}

static void a_mark_keeps_the_sweeper_away_once_a_day(void **state)
{
        uint64_t now = (uint64_t)time(NULL);

        start(2, false);
        assert_int_equal(create("kv/old", 4096, 1), 0);
        assert_int_equal(create("kv/young", 4096, 1), 0);
        age("kv/old", 2 * DAY);
        age("kv/young", DAY - 60);
        reset_calls();
        for (unsigned i = 0; i < 3; i++) {
                mark_used("kv/old");
                mark_used("kv/young");
                mark_used("kv/missing");
        }
        wait_for_marks();
        assert_true(modified_s("kv/old") >= now - 2);
        assert_true(modified_s("kv/young") < now - DAY + 3600);
        assert_int_equal(remove_unused("kv/old", now - DAY), -EAGAIN);
        assert_int_equal(n_calls(CALL_UTIMENSAT), 2); /* "old", and "last" */
}

static void a_mark_follows_no_link(void **state)
{
        char target[200];
        struct stat before, after;
        int fd;

        snprintf(target, sizeof(target), "%s/file", at.outside);
        fd = open(target, O_CREAT | O_WRONLY, 0600);
        assert_true(fd >= 0);
        assert_int_equal(
                futimens(fd, (struct timespec[2]){ { .tv_sec = 1000 }, { .tv_sec = 1000 } }), 0);
        assert_int_equal(fstat(fd, &before), 0);
        make_parents("kv/x");
        assert_int_equal(symlink(target, in_path("kv/link")), 0);
        age("kv/link", 2 * DAY);
        assert_int_equal(symlink(at.outside, in_path("kv/outside")), 0);
        start(1, false);
        mark_used("kv/link");
        mark_used("kv/outside/file");
        wait_for_marks();
        assert_int_equal(fstat(fd, &after), 0);
        assert_int_equal(after.st_mtim.tv_sec, before.st_mtim.tv_sec);
        close(fd);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, directory_setup, directory_teardown)
        const struct CMUnitTest tests[] = {
                TEST(one_host_has_the_lease),
                TEST(a_lease_ends_by_the_clock_of_the_file_system),
                TEST(a_malformed_lease_is_taken_over),
                TEST(what_is_no_file_is_no_lease),
                TEST(of_renewal_and_takeover_one_succeeds),
                TEST(errors_of_leases_are_passed_on),
                TEST(of_several_hosts_one_takes_it_over),
                TEST(what_is_listed_are_the_objects),
                TEST(a_list_ends_when_it_is_asked_to),
                TEST(errors_do_not_end_a_list),
                TEST(what_dead_writers_left_is_removed_after_a_day),
                TEST(what_is_no_name_of_an_object_is_passed_over),
                TEST(what_was_used_since_stays),
                TEST(a_mark_keeps_the_sweeper_away_once_a_day),
                TEST(a_mark_follows_no_link),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
