/* SPDX-License-Identifier: Apache-2.0 */
/* remote/directory.c with a file system that fails, hangs, is full, or makes short transfers. */
#include "directory-fixture.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "base/clock.h"
#include "checked.h"

#define NAME  "kv/1/0123456789abcdef/ab/abcdef"
#define OTHER "kv/1/0123456789abcdef/cd/cdef01"

enum { BYTES = HEADER + 10000 };

/* --- errors --- */

struct failure {
        enum backend_op_kind kind;
        enum call call;
        int error;
        unsigned times;
        int result;
};

static int run(enum backend_op_kind kind, const char *name, char ret_error[static 120])
{
        struct operation *o = operation_new(kind, name, BYTES);
        int r;

        fill(o, 1);
        backend_directory.submit(at.b, &o->op);
        r = wait_for(o);
        memcpy(ret_error, o->op.error, 120);
        if (r == 0 && kind == BACKEND_READ)
                assert_true(holds(o, BYTES, 1));
        operation_free(o);
        return r;
}

static void every_error_has_its_result(void **state)
{
        static const struct failure failures[] = {
                { BACKEND_READ, CALL_OPENAT2, EIO, 1, -EIO },
                { BACKEND_READ, CALL_OPENAT2, EACCES, 1, -EACCES },
                { BACKEND_READ, CALL_OPENAT2, ENOENT, 1, -ENOENT },
                { BACKEND_READ, CALL_OPENAT2, ENFILE, 1, -ENFILE },
                { BACKEND_READ, CALL_OPENAT2, ELOOP, 1, -EIO },
                { BACKEND_READ, CALL_OPENAT2, EXDEV, 1, -EIO },
                { BACKEND_READ, CALL_OPENAT2, ENOTDIR, 1, -EIO },
                { BACKEND_READ, CALL_OPENAT2, ETIMEDOUT, 1, -ETIMEDOUT },
                { BACKEND_READ, CALL_OPENAT2, EAGAIN, 3, 0 },
                { BACKEND_READ, CALL_OPENAT2, ESTALE, 1, 0 },
                { BACKEND_READ, CALL_OPENAT2, ESTALE, 2, -ESTALE },
                { BACKEND_READ, CALL_OPENAT2, EPERM, 1, 0 }, /* a filter of system calls */
                { BACKEND_READ, CALL_FSTAT, EIO, 1, -EIO },
                { BACKEND_READ, CALL_FSTAT, ESTALE, 1, 0 },
                { BACKEND_READ, CALL_PREADV, EIO, 1, -EIO },
                { BACKEND_READ, CALL_PREADV, EINTR, 5, 0 },
                { BACKEND_READ, CALL_PREADV, ESTALE, 1, 0 },
                { BACKEND_READ, CALL_PREADV, ESTALE, 2, -ESTALE },
                { BACKEND_READ, CALL_PREADV, ETIMEDOUT, 1, -ETIMEDOUT },
                { BACKEND_CREATE, CALL_OPENAT2, ESTALE, 1, 0 },
                { BACKEND_CREATE, CALL_OPENAT2, ENOENT, 1, 0 }, /* makes the directories */
                { BACKEND_CREATE, CALL_OPENAT, EACCES, 1, -EACCES },
                { BACKEND_CREATE, CALL_OPENAT, EROFS, 1, -EACCES },
                { BACKEND_CREATE, CALL_OPENAT, ENOSPC, 1, -ENOSPC },
                { BACKEND_CREATE, CALL_OPENAT, EDQUOT, 1, -ENOSPC },
                { BACKEND_CREATE, CALL_OPENAT, EEXIST, 2, 0 }, /* temporary name of the object */
                { BACKEND_CREATE, CALL_OPENAT, ENOENT, 1, 0 }, /* the sweeper took the directory */
                { BACKEND_CREATE, CALL_OPENAT, ENOENT, 2, -EIO },
                { BACKEND_CREATE, CALL_OPENAT, ESTALE, 1, 0 },
                { BACKEND_CREATE, CALL_OPENAT, ESTALE, 2, -ESTALE },
                { BACKEND_CREATE, CALL_PWRITEV, EIO, 1, -EIO },
                { BACKEND_CREATE, CALL_PWRITEV, ENOSPC, 1, -ENOSPC },
                { BACKEND_CREATE, CALL_PWRITEV, EDQUOT, 1, -ENOSPC },
                { BACKEND_CREATE, CALL_PWRITEV, EFBIG, 1, -E2BIG },
                { BACKEND_CREATE, CALL_PWRITEV, EINTR, 5, 0 },
                { BACKEND_CREATE, CALL_PWRITEV, ESTALE, 1, 0 },
                { BACKEND_CREATE, CALL_FSYNC, EIO, 1, -EIO },
                { BACKEND_CREATE, CALL_FSYNC, ENOSPC, 1, -ENOSPC },
                { BACKEND_CREATE, CALL_LINKAT, EIO, 1, -EIO },
                { BACKEND_CREATE, CALL_LINKAT, EACCES, 1, -EACCES },
                { BACKEND_CREATE, CALL_LINKAT, ENOSPC, 1, -ENOSPC },
                { BACKEND_CREATE, CALL_LINKAT, EEXIST, 1, -EEXIST },
                { BACKEND_CREATE, CALL_LINKAT, ESTALE, 1, 0 },
                { BACKEND_CREATE, CALL_UNLINKAT, EIO, 1, 0 }, /* a temporary file stays */
                { BACKEND_REPLACE, CALL_PWRITEV, ENOSPC, 1, -ENOSPC },
                { BACKEND_REPLACE, CALL_FSYNC, EIO, 1, -EIO },
                { BACKEND_REPLACE, CALL_RENAMEAT, EIO, 1, -EIO },
                { BACKEND_REPLACE, CALL_RENAMEAT, EROFS, 1, -EACCES },
                { BACKEND_REPLACE, CALL_RENAMEAT, ESTALE, 1, 0 },
                { BACKEND_DELETE, CALL_UNLINKAT, EIO, 1, -EIO },
                { BACKEND_DELETE, CALL_UNLINKAT, EPERM, 1, -EACCES },
                { BACKEND_DELETE, CALL_UNLINKAT, EISDIR, 1, -EIO },
                { BACKEND_DELETE, CALL_UNLINKAT, ENOENT, 1, -ENOENT },
                { BACKEND_DELETE, CALL_UNLINKAT, ESTALE, 1, 0 },
        };

        for (unsigned i = 0; i < ARRAY_SIZE(failures); i++) {
                const struct failure *f = &failures[i];
                bool writes = f->kind == BACKEND_CREATE || f->kind == BACKEND_REPLACE;
                bool stays = f->kind == BACKEND_CREATE && f->call == CALL_UNLINKAT;
                unsigned before = count_files("", ".tmp");
                char error[120], others[120];
                int r;

                start(1, true);
                reset_calls();
                if (!writes)
                        assert_int_equal(run(BACKEND_REPLACE, NAME, error), 0);
                fail_call(f->call, f->error, 0, f->times);
                r = run(f->kind, NAME, error);
                if (r != f->result || hits(f->call) != f->times)
                        fail_msg("failure %u: %d instead of %d, %u calls failed", i, r, f->result,
                                 hits(f->call));
                if (r == 0 || r == -ENOENT || r == -EEXIST)
                        assert_string_equal(error, "");
                else
                        assert_non_null(strstr(error, at.path));
                reset_calls();
                assert_int_equal(count_files("", ".tmp"), before + stays);
                assert_int_equal(exists(NAME), writes ? r == 0 : f->kind == BACKEND_READ || r != 0);
                if (exists(NAME))
                        assert_int_equal(run(BACKEND_READ, NAME, others), 0);
                assert_int_equal(run(BACKEND_REPLACE, NAME, others), 0);
                assert_int_equal(run(BACKEND_DELETE, NAME, others), 0);
                stop();
        }
}

/* A purge relies on the sync, even without remote.sync: of the file, and of the directories from
 * its own up to remote.path. */
static void what_is_replaced_is_synced(void **state)
{
        char error[120];

        start(1, false);
        reset_calls();
        assert_int_equal(create(NAME, BYTES, 1), 0);
        assert_int_equal(n_calls(CALL_FSYNC), 0);
        assert_int_equal(replace(NAME, BYTES, 1), 0);
        assert_int_equal(n_calls(CALL_FSYNC), 1 + 5);
        for (unsigned i = 0; i <= 5; i++) {
                fail_call(CALL_FSYNC, EIO, i, 1);
                assert_int_equal(run(BACKEND_REPLACE, NAME, error), -EIO);
                assert_non_null(strstr(error, "cannot sync"));
                assert_non_null(strstr(error, at.path));
                assert_int_equal(count_files("", ".tmp"), 0);
        }
        fail_call(CALL_FSYNC, EINVAL, 1, 5); /* a file system that syncs no directories */
        assert_int_equal(run(BACKEND_REPLACE, NAME, error), 0);
        assert_int_equal(replace("top", BYTES, 1), 0);
}

/* NFS writes back at close(), and reports a lack of space then. The first descriptor closed after
 * the write is the file's. */
static void what_close_says_counts(void **state)
{
        static const int errors[] = { ENOSPC, EDQUOT, EIO };

        start(1, false);
        assert_int_equal(create(OTHER, BYTES, 1), 0); /* the directories, and remote.path */
        for (unsigned i = 0; i < ARRAY_SIZE(errors); i++) {
                assert_int_equal(create(NAME, BYTES, 1), 0);
                assert_int_equal(delete (NAME), 0);
                lie_about_call(CALL_CLOSE, errors[i]);
                assert_int_equal(create(NAME, BYTES, 1), errors[i] == EIO ? -EIO : -ENOSPC);
                assert_int_equal(hits(CALL_CLOSE), 1);
                reset_calls();
                assert_false(exists(NAME));
                assert_int_equal(count_files("", ".tmp"), 0);
        }
}

static void without_hard_links_it_is_renamed(void **state)
{
        static const int errors[] = { EPERM, EOPNOTSUPP, ENOSYS, EMLINK };

        for (unsigned i = 0; i < ARRAY_SIZE(errors); i++) {
                start(1, false);
                reset_calls();
                fail_call(CALL_LINKAT, errors[i], 0, 1);
                assert_int_equal(create(NAME, BYTES, 1), 0);
                assert_int_equal(create(OTHER, BYTES, 2), 0);
                if (n_calls(CALL_RENAMEAT) > 0) {
                        print_message("no RENAME_NOREPLACE on this file system: skipped\n");
                        skip();
                }
                assert_int_equal(n_calls(CALL_LINKAT), 1); /* the result is remembered */
                assert_int_equal(n_calls(CALL_RENAMEAT2), 2);
                assert_int_equal(create(NAME, BYTES, 3), -EEXIST);
                assert_int_equal(read_back(NAME, BYTES, 1), 0);
                assert_int_equal(read_back(OTHER, BYTES, 2), 0);
                fail_call(CALL_FSTATAT, ENOENT, 0, 1); /* another host was first meanwhile */
                assert_int_equal(create(NAME, BYTES, 3), -EEXIST);
                assert_int_equal(hits(CALL_FSTATAT), 1);
                assert_int_equal(read_back(NAME, BYTES, 1), 0);
                assert_int_equal(count_files("", ".tmp"), 0);
                assert_int_equal(delete (NAME), 0);
                assert_int_equal(delete (OTHER), 0);
                stop();
        }
}

static void without_either_it_is_renamed_over(void **state)
{
        start(1, false);
        fail_call(CALL_LINKAT, EPERM, 0, 1);
        fail_call(CALL_RENAMEAT2, EINVAL, 0, 1);
        assert_int_equal(create(NAME, BYTES, 1), 0);
        assert_int_equal(create(OTHER, BYTES, 2), 0);
        assert_int_equal(n_calls(CALL_LINKAT), 1);
        assert_int_equal(n_calls(CALL_RENAMEAT2), 1);
        assert_int_equal(n_calls(CALL_RENAMEAT), 2);
        fail_call(CALL_FSTATAT, ENOENT, 0, 1);
        assert_int_equal(create(NAME, BYTES, 3), -EEXIST);
        assert_int_equal(read_back(NAME, BYTES, 1), 0);
        fail_call(CALL_RENAMEAT, EIO, 0, 1);
        assert_int_equal(delete (NAME), 0);
        assert_int_equal(create(NAME, BYTES, 3), -EIO);
        assert_int_equal(count_files("", ".tmp"), 0);
}

/* NFS may repeat a request whose answer was lost. */
static void a_link_that_was_made_after_all_counts(void **state)
{
        start(1, false);
        lie_about_call(CALL_LINKAT, EEXIST);
        assert_int_equal(create(NAME, BYTES, 1), 0);
        assert_int_equal(hits(CALL_LINKAT), 1);
        assert_int_equal(read_back(NAME, BYTES, 1), 0);
        assert_int_equal(count_files("", ".tmp"), 0);
}

/* --- transfers --- */

static void without_direct_io_it_is_buffered(void **state)
{
        start(1, false);
        assert_int_equal(create(NAME, BYTES, 1), 0);
        fail_call(CALL_PREADV, EINVAL, 0, 1);
        assert_int_equal(read_back(NAME, BYTES, 1), 0);
        assert_int_equal(read_back(NAME, BYTES, 1), 0);
        stop();

        start(1, false); /* openat2() fails at opening, for a read and for a create */
        fail_call(CALL_OPENAT2, EINVAL, 0, 1);
        assert_int_equal(read_back(NAME, BYTES, 1), 0);
        assert_int_equal(hits(CALL_OPENAT2), 1);
        stop();

        start(1, false);
        lie_about_call(CALL_OPENAT, EINVAL); /* the call has nevertheless created the file */
        assert_int_equal(create(OTHER, BYTES, 2), 0);
        assert_int_equal(hits(CALL_OPENAT), 1);
        assert_int_equal(read_back(OTHER, BYTES, 2), 0);
        assert_int_equal(count_files("", ".tmp"), 0);
        stop();

        start(1, false);
        assert_int_equal(delete (OTHER), 0);
        fail_call(CALL_PWRITEV, EINVAL, 0, 1);
        assert_int_equal(create(OTHER, BYTES, 3), 0);
        assert_int_equal(read_back(OTHER, BYTES, 3), 0);
}

static void short_transfers_go_on(void **state)
{
        static const uint64_t at_most[] = { 1000, 4096, 5000, 8192 };

        start(2, false);
        for (unsigned i = 0; i < ARRAY_SIZE(at_most); i++) {
                shorten_calls(at_most[i]);
                assert_int_equal(create(NAME, BYTES, i), 0);
                assert_int_equal(read_back(NAME, BYTES, i), 0);
                shorten_calls(0);
                assert_int_equal(read_back(NAME, BYTES, i), 0);
                assert_int_equal(delete (NAME), 0);
                assert_int_equal(create(NAME, BYTES, i), 0);
                shorten_calls(at_most[i]);
                assert_int_equal(read_back(NAME, BYTES, i), 0);
                assert_int_equal(delete (NAME), 0);
        }
}

/* Another host has truncated the object, so the read is short. */
static void a_cut_object_is_short(void **state)
{
        struct operation *o = operation_new(BACKEND_READ, NAME, BYTES);

        start(1, false);
        assert_int_equal(create(NAME, BYTES, 1), 0);
        assert_int_equal(truncate(in_path(NAME), 5000), 0);
        backend_directory.submit(at.b, &o->op);
        assert_int_equal(wait_for(o), 0);
        assert_int_equal(o->op.size, 5000);
        assert_int_equal(o->op.transferred, 5000);
        assert_true(holds(o, 5000, 1));
        operation_free(o);
}

/* The object does not fit into a file system of 2 MiB. */
static void a_full_file_system_takes_no_more(void **state)
{
        char name[64];
        unsigned n = 0;
        int r;

        if (mount("tmpfs", at.path, "tmpfs", 0, "size=2m") < 0) {
                print_message("mounting takes root: skipped\n");
                skip();
        }
        start(2, false);
        do {
                snprintf(name, sizeof(name), "kv/1/id/00/%u", n++);
                r = create(name, HEADER + 100000, n);
        } while (r == 0 && n < 100);
        assert_int_equal(r, -ENOSPC);
        assert_in_range(n, 10, 22);
        assert_false(exists(name));
        assert_int_equal(count_files("", ".tmp"), 0);
        for (unsigned i = 1; i < n; i++) {
                snprintf(name, sizeof(name), "kv/1/id/00/%u", i - 1);
                assert_int_equal(read_back(name, HEADER + 100000, i), 0);
        }
        assert_int_equal(delete ("kv/1/id/00/0"), 0);
        assert_int_equal(create("kv/1/id/00/0", HEADER + 100000, 1), 0);
        stop();
        assert_int_equal(umount2(at.path, MNT_DETACH), 0);
}

/* --- what hangs --- */

static struct operation *submit_read(const char *name, uint64_t ms)
{
        struct operation *o = operation_new(BACKEND_READ, name, BYTES);

        o->op.deadline_ns = clock_mono_ns() + ms * 1000000;
        backend_directory.submit(at.b, &o->op);
        return o;
}

/* Submits an operation that hangs, as the `n`th. Its deadline is in `ms`, or later if the machine
 * was too slow to start it by then. */
static struct operation *submit_hanging(enum backend_op_kind kind, unsigned n, uint64_t ms)
{
        for (;; ms *= 2) {
                struct operation *o = operation_new(kind, NAME, BYTES);

                o->op.deadline_ns = clock_mono_ns() + ms * 1000000;
                backend_directory.submit(at.b, &o->op);
                while (n_hanging() < n && !has_ended(o))
                        sched_yield();
                if (n_hanging() == n)
                        return o;
                assert_int_equal(wait_for(o), -ETIMEDOUT);
                operation_free(o);
        }
}

/* Counts the threads of the back end, including its supervisor; a thread has its name a moment
 * after it has begun. */
static unsigned n_threads(void)
{
        DIR *dir = opendir("/proc/self/task");
        const struct dirent *d;
        unsigned n = 0;

        assert_non_null(dir);
        while ((d = readdir(dir))) {
                char path[300], name[16] = "";
                FILE *f;

                snprintf(path, sizeof(path), "/proc/self/task/%s/comm", d->d_name);
                f = fopen(path, "r");
                if (f && fgets(name, sizeof(name), f))
                        n += strncmp(name, "kv-directory", 12) == 0;
                if (f)
                        fclose(f);
        }
        closedir(dir);
        return n;
}

static void wait_for_threads(unsigned most)
{
        while (n_threads() > most)
                sched_yield();
}

static void one_that_hangs_does_not_stop_the_others(void **state)
{
        struct operation *hung[2], *o;

        start(2, false);
        assert_int_equal(create(NAME, BYTES, 1), 0);
        hang_call(CALL_PREADV, 0, 2);
        for (unsigned i = 0; i < 2; i++)
                hung[i] = submit_hanging(BACKEND_READ, i + 1, 20);
        for (unsigned i = 0; i < 20; i++) {
                o = submit_read(NAME, 30000);
                assert_int_equal(wait_for(o), 0);
                operation_free(o);
        }
        assert_int_equal(create(OTHER, BYTES, 2), 0);
        assert_false(has_ended(hung[0]) || has_ended(hung[1]));
        release_calls();
        for (unsigned i = 0; i < 2; i++) {
                assert_int_equal(wait_for(hung[i]), 0); /* the operation ends at some time */
                assert_true(holds(hung[i], BYTES, 1));
                operation_free(hung[i]);
        }
}

static void what_waits_behind_hung_threads_ends_in_time(void **state)
{
        enum { HUNG = 4, WAITING = 10 };
        struct operation *hung[HUNG], *waiting[WAITING];
        uint64_t begun;

        start(2, false); /* at most four threads */
        assert_int_equal(create(NAME, BYTES, 1), 0);
        hang_call(CALL_PREADV, 0, HUNG);
        for (unsigned i = 0; i < HUNG; i++)
                hung[i] = submit_hanging(BACKEND_READ, i + 1, i < 2 ? 10 : 1000);
        begun = clock_mono_ns();
        for (unsigned i = 0; i < WAITING; i++)
                waiting[i] = submit_read(NAME, 50 + i);
        for (unsigned i = 0; i < WAITING; i++) {
                assert_int_equal(wait_for(waiting[i]), -ETIMEDOUT);
                assert_non_null(strstr(waiting[i]->op.error, "no thread"));
                operation_free(waiting[i]);
        }
        assert_true(clock_mono_ns() - begun >= 50 * 1000000ull);
        assert_int_equal(n_threads(), HUNG + 1);
        release_calls();
        for (unsigned i = 0; i < HUNG; i++) {
                assert_int_equal(wait_for(hung[i]), 0);
                operation_free(hung[i]);
        }
        assert_int_equal(read_back(NAME, BYTES, 1), 0);
        wait_for_threads(2 + 1); /* `depth` threads again */
}

static void hung_writes_leave_threads_for_reads(void **state)
{
        enum { WRITES = 8 };
        struct operation *o[WRITES];

        start(4, false);
        assert_int_equal(create(NAME, BYTES, 1), 0);
        hang_call(CALL_PWRITEV, 0, WRITES);
        for (unsigned i = 0; i < WRITES; i++) {
                char name[64];

                snprintf(name, sizeof(name), "kv/1/id/00/%u", i);
                o[i] = operation_new(BACKEND_CREATE, name, BYTES);
                backend_directory.submit(at.b, &o[i]->op);
        }
        wait_until_hanging(3);
        for (unsigned i = 0; i < 20; i++)
                assert_int_equal(read_back(NAME, BYTES, 1), 0);
        assert_int_equal(n_hanging(), 3);
        release_calls();
        for (unsigned i = 0; i < WRITES; i++) {
                assert_int_equal(wait_for(o[i]), 0);
                operation_free(o[i]);
        }
}

static void a_deadline_in_the_past_is_met_at_once(void **state)
{
        struct operation *o = operation_new(BACKEND_CREATE, NAME, BYTES);

        start(1, false);
        o->op.deadline_ns = 1;
        backend_directory.submit(at.b, &o->op);
        assert_int_equal(wait_for(o), -ETIMEDOUT);
        operation_free(o);
        assert_false(exists("kv"));
}

/* The create ends late, after its deadline, and must not leave a name. */
static void a_late_create_leaves_nothing(void **state)
{
        struct operation *o;

        start(1, false);
        assert_int_equal(create(OTHER, BYTES, 1), 0);
        hang_call(CALL_PWRITEV, 0, 1);
        o = submit_hanging(BACKEND_CREATE, 1, 5);
        while (clock_mono_ns() <= o->op.deadline_ns)
                sched_yield();
        release_calls();
        assert_int_equal(wait_for(o), -ETIMEDOUT);
        operation_free(o);
        assert_false(exists(NAME));
        assert_int_equal(count_files("", ".tmp"), 0);
}

static void a_stop_waits_for_nothing(void **state)
{
        enum { WAITING = 5 };
        struct operation *reading, *creating = operation_new(BACKEND_CREATE, OTHER, BYTES);
        struct operation *waiting[WAITING];

        start(3, false);
        assert_int_equal(create(NAME, BYTES, 1), 0);
        hang_call(CALL_PREADV, 0, 2);
        reading = submit_read(NAME, 30000);
        wait_until_hanging(1);
        hang_call(CALL_PWRITEV, 0, 1);
        backend_directory.submit(at.b, &creating->op);
        wait_until_hanging(2);
        hang_call(CALL_PREADV, 0, 1);
        waiting[0] = submit_read(NAME, 30000);
        wait_until_hanging(3);
        for (unsigned i = 1; i < WAITING; i++)
                waiting[i] = submit_read(NAME, 30000);
        backend_directory.stop(at.b);
        for (unsigned i = 1; i < WAITING; i++) {
                assert_true(has_ended(waiting[i]));
                assert_int_equal(waiting[i]->op.result, -ECANCELED);
                operation_free(waiting[i]);
        }
        assert_false(has_ended(reading) || has_ended(creating) || has_ended(waiting[0]));
        release_calls();
        /* A read that completed before counts; an object not yet named does not exist. */
        assert_int_equal(wait_for(reading), 0);
        assert_int_equal(wait_for(waiting[0]), 0);
        assert_int_equal(wait_for(creating), -ECANCELED);
        assert_false(exists(OTHER));
        operation_free(reading);
        operation_free(creating);
        operation_free(waiting[0]);
}

static void what_hangs_at_the_end_is_left_behind(void **state)
{
        struct operation *o;

        start(1, false);
        assert_int_equal(create(NAME, BYTES, 1), 0);
        hang_call(CALL_PREADV, 0, 1);
        o = submit_read(NAME, 30000);
        wait_until_hanging(1);
        stop();
        assert_false(has_ended(o));
        release_calls();
        wait_for_threads(0);
        assert_false(has_ended(o)); /* nothing is there any more that could take it */
        operation_free(o);
}

static void a_mark_that_hangs_stops_no_other(void **state)
{
        start(1, false);
        assert_int_equal(create(NAME, BYTES, 1), 0);
        assert_int_equal(create(OTHER, BYTES, 1), 0);
        age(NAME, 2 * 86400);
        reset_calls();
        hang_call(CALL_UTIMENSAT, 0, 1);
        backend_directory.mark_used(at.b, NAME, 0);
        wait_until_hanging(1);
        for (unsigned i = 0; i < 1000; i++) {
                char name[64];

                snprintf(name, sizeof(name), "kv/1/id/00/%u", i);
                backend_directory.mark_used(at.b, name, 0); /* returns at once */
        }
        release_calls();
        assert_int_equal(read_back(OTHER, BYTES, 1), 0);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, directory_setup, directory_teardown)
        const struct CMUnitTest tests[] = {
                TEST(every_error_has_its_result),
                TEST(what_is_replaced_is_synced),
                TEST(what_close_says_counts),
                TEST(without_hard_links_it_is_renamed),
                TEST(without_either_it_is_renamed_over),
                TEST(a_link_that_was_made_after_all_counts),
                TEST(without_direct_io_it_is_buffered),
                TEST(short_transfers_go_on),
                TEST(a_cut_object_is_short),
                TEST(a_full_file_system_takes_no_more),
                TEST(one_that_hangs_does_not_stop_the_others),
                TEST(what_waits_behind_hung_threads_ends_in_time),
                TEST(hung_writes_leave_threads_for_reads),
                TEST(a_deadline_in_the_past_is_met_at_once),
                TEST(a_late_create_leaves_nothing),
                TEST(a_stop_waits_for_nothing),
                TEST(what_hangs_at_the_end_is_left_behind),
                TEST(a_mark_that_hangs_stops_no_other),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
