/* SPDX-License-Identifier: Apache-2.0 */
/* remote/directory.c: what backend.h asks of a back end. */
#include "directory-fixture.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "checked.h"

#define NAME "kv/1/0123456789abcdef/ab/abcdef"

static void what_was_written_is_read_whole(void **state)
{
        static const uint64_t sizes[] = { 1,
                                          17,
                                          4095,
                                          4096,
                                          4097,
                                          4096 + 512,
                                          8192,
                                          8193,
                                          2 * MIB,
                                          2 * MIB + 1,
                                          HEADER + 2 * MIB,
                                          3 * MIB - 4095 };

        start(4, false);
        for (unsigned i = 0; i < ARRAY_SIZE(sizes); i++) {
                char name[64];

                snprintf(name, sizeof(name), "kv/1/id/%02x/object", i);
                assert_int_equal(create(name, sizes[i], i), 0);
                assert_int_equal(read_back(name, sizes[i], i), 0);
        }
        assert_int_equal(count_files("", ".tmp"), 0);
}

static void an_empty_object_is_read(void **state)
{
        struct operation *o = operation_new(BACKEND_READ, NAME, 4096);

        start(1, false);
        assert_int_equal(create(NAME, 0, 0), 0);
        backend_directory.submit(at.b, &o->op);
        assert_int_equal(wait_for(o), 0);
        assert_int_equal(o->op.size, 0);
        assert_int_equal(o->op.transferred, 0);
        operation_free(o);
}

/* The room may be smaller than the object, or larger, or end anywhere. */
static void a_read_fills_the_room_there_is(void **state)
{
        static const uint64_t rooms[] = { 1, 100, 4096, 4097, 5000, 9999, 10000, 10001, 65536 };

        start(2, false);
        assert_int_equal(create(NAME, 10000, 7), 0);
        for (unsigned i = 0; i < ARRAY_SIZE(rooms); i++) {
                struct operation *o = operation_new(BACKEND_READ, NAME, rooms[i]);
                uint64_t want = MIN(rooms[i], (uint64_t)10000);
                const uint8_t *p = o->op.pieces[0].iov_base;

                backend_directory.submit(at.b, &o->op);
                assert_int_equal(wait_for(o), 0);
                assert_int_equal(o->op.size, 10000);
                assert_int_equal(o->op.transferred, want);
                assert_true(holds(o, want, 7));
                for (uint64_t k = want; k < rooms[i]; k++)
                        assert_int_equal(p[k], 0xee);
                operation_free(o);
        }
}

static void what_is_not_there_is_said_so(void **state)
{
        start(2, false);
        assert_int_equal(read_back(NAME, 4096, 0), -ENOENT);
        assert_int_equal(delete (NAME), -ENOENT);
        assert_int_equal(create(NAME, 4096, 0), 0);
        assert_int_equal(read_back("kv/1/0123456789abcdef/ab/abcdee", 4096, 0), -ENOENT);
        assert_int_equal(delete (NAME), 0);
        assert_int_equal(delete (NAME), -ENOENT);
        assert_int_equal(read_back(NAME, 4096, 0), -ENOENT);
}

static void the_first_create_wins(void **state)
{
        start(2, false);
        assert_int_equal(create(NAME, 5000, 1), 0);
        assert_int_equal(create(NAME, 6000, 2), -EEXIST);
        assert_int_equal(read_back(NAME, 5000, 1), 0);
        assert_int_equal(count_files("", ".tmp"), 0);
}

static void a_replace_replaces(void **state)
{
        start(2, true);
        assert_int_equal(replace(NAME, 5000, 1), 0);
        assert_int_equal(replace(NAME, 6000, 2), 0);
        assert_int_equal(read_back(NAME, 6000, 2), 0);
        assert_int_equal(count_files("", ".tmp"), 0);
}

static void many_at_once_all_end(void **state)
{
        enum { N = 300 };
        struct operation *o[N];

        start(8, false);
        for (unsigned round = 0; round < 2; round++) {
                for (unsigned i = 0; i < N; i++) {
                        char name[64];

                        snprintf(name, sizeof(name), "kv/1/id/%02x/%u", i % 16, i);
                        o[i] = operation_new(round == 0 ? BACKEND_CREATE : BACKEND_READ, name,
                                             HEADER + 1000 + i);
                        if (round == 0)
                                fill(o[i], i);
                        backend_directory.submit(at.b, &o[i]->op);
                }
                for (unsigned i = 0; i < N; i++) {
                        assert_int_equal(wait_for(o[i]), 0);
                        if (round == 1)
                                assert_true(holds(o[i], HEADER + 1000 + i, i));
                        operation_free(o[i]);
                }
        }
}

/* Files and directories are made as the umask has it. */
static void modes_are_those_of_the_umask(void **state)
{
        mode_t before = umask(027);
        struct stat s;

        start(1, false);
        assert_int_equal(create(NAME, 4096, 0), 0);
        assert_int_equal(stat(in_path(NAME), &s), 0);
        assert_int_equal(s.st_mode & 07777, 0640);
        assert_int_equal(stat(in_path("kv/1"), &s), 0);
        assert_int_equal(s.st_mode & 0777, 0750);
        umask(before);
}

/* --- other things in an object's place --- */

static void expect_no_object_but(int other)
{
        struct operation *o = operation_new(BACKEND_READ, NAME, 8192);
        int r;

        backend_directory.submit(at.b, &o->op);
        r = wait_for(o);
        assert_true(r == -EIO || r == other);
        assert_string_not_equal(o->op.error, "");
        operation_free(o);
        assert_int_equal(create(NAME, 4096, 1), -EEXIST);
}

static void expect_no_object(void)
{
        expect_no_object_but(-EIO);
}

static void a_link_is_not_followed(void **state)
{
        char target[200];

        start(2, false);
        snprintf(target, sizeof(target), "%s/secret", at.outside);
        make_parents(NAME);
        write_file("inside", "x");
        assert_int_equal(symlink(target, in_path(NAME)), 0);
        expect_no_object();
        assert_int_equal(unlink(in_path(NAME)), 0);
        assert_int_equal(symlink("../../../../inside", in_path(NAME)), 0);
        expect_no_object();
        assert_int_equal(replace(NAME, 4096, 3), 0);
        assert_int_equal(read_back(NAME, 4096, 3), 0);
        assert_int_not_equal(access(target, F_OK), 0);
}

static void a_linked_directory_is_not_entered(void **state)
{
        for (unsigned by_parts = 0; by_parts < 2; by_parts++) {
                char name[200];

                start(2, false);
                if (by_parts)
                        fail_call(CALL_OPENAT2, ENOSYS, 0, 1);
                make_parents("kv/1/x");
                assert_int_equal(symlink(at.outside, in_path("kv/1/0123456789abcdef")), 0);
                assert_int_equal(create(NAME, 4096, 1), -EIO);
                assert_int_equal(replace(NAME, 4096, 1), -EIO);
                assert_int_equal(read_back(NAME, 4096, 1), -EIO);
                assert_int_equal(delete (NAME), -EIO);
                snprintf(name, sizeof(name), "%s/ab", at.outside);
                assert_int_not_equal(access(name, F_OK), 0);
                assert_int_equal(unlink(in_path("kv/1/0123456789abcdef")), 0);
                stop();
        }
}

static void a_fifo_is_not_waited_for(void **state)
{
        start(1, false);
        make_parents(NAME);
        assert_int_equal(mkfifo(in_path(NAME), 0666), 0);
        expect_no_object();
        assert_int_equal(delete (NAME), 0);
        assert_int_equal(create(NAME, 4096, 1), 0);
}

static void a_device_is_not_read(void **state)
{
        start(1, false);
        make_parents(NAME);
        if (mknod(in_path(NAME), S_IFCHR | 0666, makedev(1, 5)) < 0) {
                print_message("making a device takes root: skipped\n");
                skip();
        }
        expect_no_object_but(-EACCES); /* mounted with nodev */
        assert_int_equal(delete (NAME), 0);
}

static void a_directory_is_no_object(void **state)
{
        start(1, false);
        make_parents(NAME "/x");
        expect_no_object();
        assert_int_equal(replace(NAME, 4096, 1), -EIO);
        assert_int_equal(delete (NAME), -EIO);
        assert_true(exists(NAME));
        assert_int_equal(count_files("", ".tmp"), 0);
}

/* --- remote.path --- */

static void a_path_has_to_be_absolute(void **state)
{
        struct backend_params p = { .path = "kv", .depth = 1 };
        struct backend *b = NULL;
        char error[256] = "";

        assert_int_equal(backend_directory.open(&b, &p, error), -EINVAL);
        assert_non_null(strstr(error, "remote.path"));
        p.path = NULL;
        assert_int_equal(backend_directory.open(&b, &p, error), -EINVAL);
}

static void a_missing_path_is_found_when_it_comes(void **state)
{
        struct operation *o = operation_new(BACKEND_READ, NAME, 4096);

        assert_int_equal(rmdir(at.path), 0);
        start(1, false);
        backend_directory.submit(at.b, &o->op);
        assert_int_equal(wait_for(o), -EIO);
        assert_non_null(strstr(o->op.error, "mounted"));
        operation_free(o);
        assert_int_equal(create(NAME, 4096, 1), -EIO);
        assert_int_equal(mkdir(at.path, 0700), 0);
        assert_int_equal(create(NAME, 4096, 1), 0);
        assert_int_equal(read_back(NAME, 4096, 1), 0);
}

/* The file system was unmounted and mounted again. */
static void a_path_that_was_replaced_is_found(void **state)
{
        start(1, false);
        assert_int_equal(create("one", 4096, 1), 0);
        assert_int_equal(unlink(in_path("one")), 0);
        assert_int_equal(rmdir(at.path), 0);
        assert_int_equal(mkdir(at.path, 0700), 0);
        write_file("two", "two");
        assert_int_equal(read_back("one", 4096, 1), -ENOENT);
        assert_int_equal(delete ("two"), 0);
        assert_int_equal(create(NAME, 4096, 1), 0);
        assert_true(exists(NAME));
}

/* --- the end --- */

static void after_a_stop_nothing_is_begun(void **state)
{
        struct operation *o = operation_new(BACKEND_READ, NAME, 4096);

        start(2, false);
        assert_int_equal(create(NAME, 4096, 1), 0);
        backend_directory.stop(at.b);
        backend_directory.submit(at.b, &o->op);
        assert_true(has_ended(o));
        assert_int_equal(o->op.result, -ECANCELED);
        operation_free(o);
        at.b = backend_directory.close(at.b);
        assert_null(at.b);
        assert_null(backend_directory.close(NULL));
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, directory_setup, directory_teardown)
        const struct CMUnitTest tests[] = {
                TEST(what_was_written_is_read_whole),
                TEST(an_empty_object_is_read),
                TEST(a_read_fills_the_room_there_is),
                TEST(what_is_not_there_is_said_so),
                TEST(the_first_create_wins),
                TEST(a_replace_replaces),
                TEST(many_at_once_all_end),
                TEST(modes_are_those_of_the_umask),
                TEST(a_link_is_not_followed),
                TEST(a_linked_directory_is_not_entered),
                TEST(a_fifo_is_not_waited_for),
                TEST(a_device_is_not_read),
                TEST(a_directory_is_no_object),
                TEST(a_path_has_to_be_absolute),
                TEST(a_missing_path_is_found_when_it_comes),
                TEST(a_path_that_was_replaced_is_found),
                TEST(after_a_stop_nothing_is_begun),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
