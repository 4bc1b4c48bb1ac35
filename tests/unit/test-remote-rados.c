/* SPDX-License-Identifier: Apache-2.0 */
/* remote/rados.c over a librados without a cluster, which fails and hangs by plan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backend-contract.h"
#include "base/clock.h"
#include "checked.h"
#include "stub-rados.h"

#define NAME "kv/1/0123456789abcdef/ab/abcdef"
#define OID  "1/0123456789abcdef/ab/abcdef"

static struct stub_rados stub;
static struct backend *b;

static struct backend_params params_of(const char *pool, unsigned depth)
{
        return (struct backend_params){
                .prefix = "kv", .pool = pool, .depth = depth, .timeout_ns = 300 * SECOND_NS
        };
}

static void start_on(const char *pool, unsigned depth)
{
        struct backend_params p = params_of(pool, depth);
        char error[256] = "";

        if (backend_rados.open(&b, &p, error) < 0)
                fail_msg("%s", error);
}

static void start(void)
{
        start_on("pool", 8);
}

static void stop(void)
{
        backend_rados.stop(b);
        b = backend_rados.close(b);
        assert_null(b);
}

static int setup(void **state)
{
        stub.reset();
        return 0;
}

static int teardown(void **state)
{
        stub.reset();
        if (b)
                stop();
        return 0;
}

static void wait_for_calls(const char *function, unsigned n)
{
        while (stub.calls(function) < n)
                usleep(1000);
}

static void wait_for_nothing_live(void)
{
        while (stub.live() > 0)
                usleep(1000);
}

static int write_one(uint64_t seed)
{
        return backend_write(&backend_rados, b, BACKEND_CREATE, NAME, 9000, seed);
}

static int read_one(uint64_t seed)
{
        return backend_read(&backend_rados, b, NAME, 9000, seed);
}

static void it_keeps_the_contract(void **state)
{
        struct backend_params p = params_of("pool", 8);
        unsigned checks;

        assert_int_equal(backend_contract(&backend_rados, &p, &checks), 0);
        assert_true(checks > 100);
        wait_for_nothing_live();
}

static void the_prefix_is_the_namespace(void **state)
{
        struct operation *o = operation_new(BACKEND_READ, "other/1/x", 4096, false);

        start();
        assert_int_equal(write_one(1), 0);
        assert_true(stub.has("kv", OID));
        backend_rados.submit(b, &o->op);
        assert_int_equal(operation_wait(o), -EINVAL);
        operation_free(o);
}

/* Beyond our own deadlines, librados has its own, and never waits for room of its own. */
static void librados_has_timeouts(void **state)
{
        start();
        assert_int_equal(write_one(1), 0);
        assert_string_equal(stub.option("rados_osd_op_timeout"), "300");
        assert_string_equal(stub.option("rados_mon_op_timeout"), "300");
        assert_string_equal(stub.option("client_mount_timeout"), "300");
        assert_string_equal(stub.option("objecter_inflight_op_bytes"), "1099511627776");
}

static void errors_are_those_of_the_contract(void **state)
{
        static const struct {
                int librados, want;
        } cases[] = {
                { -EDQUOT, -ENOSPC },       { -ENOSPC, -ENOSPC },       { -EPERM, -EACCES },
                { -EACCES, -EACCES },       { -EBUSY, -EBUSY },         { -EAGAIN, -EBUSY },
                { -EFBIG, -E2BIG },         { -EMSGSIZE, -E2BIG },      { -EIO, -EIO },
                { -ETIMEDOUT, -ETIMEDOUT }, { -ESHUTDOWN, -ESHUTDOWN },
        };

        start();
        assert_int_equal(write_one(1), 0);
        for (unsigned i = 0; i < ARRAY_SIZE(cases); i++) {
                stub.fault("read", 0, 1, cases[i].librados);
                assert_int_equal(read_one(1), cases[i].want);
                stub.fault("write", 0, 1, cases[i].librados);
                assert_int_equal(backend_delete(&backend_rados, b, NAME), cases[i].want);
                assert_int_equal(read_one(1), 0);
        }
        stub.fault("write", 0, 1, -ENOENT); /* the pool is missing */
        assert_int_equal(backend_write(&backend_rados, b, BACKEND_REPLACE, NAME, 10, 1), -EIO);
}

static void calls_that_fail_at_once_end(void **state)
{
        static const char *const functions[] = { "rados_aio_create_completion2", "create_op",
                                                 "rados_aio_read_op_operate" };

        start();
        assert_int_equal(write_one(1), 0);
        for (unsigned i = 0; i < ARRAY_SIZE(functions); i++) {
                stub.fault(functions[i], 0, 1, -ENOMEM);
                assert_int_equal(read_one(1), -ENOMEM);
                assert_int_equal(read_one(1), 0);
        }
        stub.fault("rados_aio_write_op_operate", 0, 1, -EIO);
        assert_int_equal(backend_delete(&backend_rados, b, NAME), -EIO);
}

/* Lengths that exceed the buffer are never believed. */
static void lengths_are_not_believed(void **state)
{
        struct operation *o = operation_new(BACKEND_READ, NAME, 9000, true);

        start();
        assert_int_equal(write_one(1), 0);
        stub.lie(1 << 30);
        backend_rados.submit(b, &o->op);
        assert_int_equal(operation_wait(o), 0);
        assert_int_equal(o->op.transferred, 9000);
        operation_free(o);
}

static void what_hangs_ends_at_its_deadline(void **state)
{
        struct operation *o[3];
        uint64_t began;

        start();
        assert_int_equal(write_one(1), 0);
        stub.hang(true);
        began = clock_mono_ns();
        for (unsigned i = 0; i < 3; i++) {
                o[i] = operation_new(i == 1 ? BACKEND_REPLACE : BACKEND_READ, NAME, 9000, i);
                o[i]->op.deadline_ns = began + SECOND_NS / 10 * (i + 1);
                backend_rados.submit(b, &o[i]->op);
        }
        for (unsigned i = 0; i < 3; i++) {
                assert_int_equal(operation_wait(o[i]), -ETIMEDOUT);
                assert_true(clock_mono_ns() >= o[i]->op.deadline_ns);
                assert_string_not_equal(o[i]->op.error, "");
        }
        assert_true(clock_mono_ns() - began < 60 * SECOND_NS);
        for (unsigned i = 0; i < 3; i++) {
                assert_true(o[i]->memory[0] == (char)0xee); /* nothing came later */
                operation_free(o[i]);
        }
        stub.hang(false);
        assert_int_equal(read_one(1), 0);
}

/* An operation that librados does not return keeps its memory; others continue. */
static void memory_is_kept_while_librados_has_it(void **state)
{
        struct operation *o = NULL;

        start();
        assert_int_equal(write_one(1), 0);
        stub.hang(true);
        stub.ignore_cancel(true);
        /* A slow machine may not begin the operation before its deadline. */
        for (uint64_t ns = SECOND_NS / 20; stub.pending() == 0; ns *= 2) {
                if (o) {
                        assert_int_equal(operation_wait(o), -ETIMEDOUT);
                        operation_free(o);
                }
                o = operation_new(BACKEND_READ, NAME, 9000, false);
                o->op.deadline_ns = clock_mono_ns() + ns;
                backend_rados.submit(b, &o->op);
                while (stub.pending() == 0 && !operation_has_ended(o))
                        usleep(1000);
        }
        wait_for_calls("rados_aio_cancel", 1);
        assert_false(operation_has_ended(o));
        stub.hang(false);
        assert_int_equal(operation_wait(o), 0); /* the read completed after all, and is whole */
        assert_true(operation_holds(o, 9000, 1));
        operation_free(o);
}

/* More than `depth` operations wait, and end at their deadlines while waiting. */
static void what_waits_ends_at_its_deadline(void **state)
{
        struct operation *o[5];

        start_on("pool", 2);
        assert_int_equal(write_one(1), 0);
        stub.hang(true);
        for (unsigned i = 0; i < 5; i++) {
                o[i] = operation_new(BACKEND_READ, NAME, 4096, false);
                o[i]->op.deadline_ns =
                        clock_mono_ns() + (i < 2 ? 60 : 0) * SECOND_NS + SECOND_NS / 10;
                backend_rados.submit(b, &o[i]->op);
        }
        for (unsigned i = 2; i < 5; i++)
                assert_int_equal(operation_wait(o[i]), -ETIMEDOUT);
        while (stub.pending() < 2)
                usleep(1000);
        assert_int_equal(stub.pending(), 2);
        stub.hang(false);
        for (unsigned i = 0; i < 5; i++) {
                if (i < 2)
                        assert_int_equal(operation_wait(o[i]), 0);
                operation_free(o[i]);
        }
}

static void a_cluster_may_come_later(void **state)
{
        struct operation *o = operation_new(BACKEND_READ, NAME, 4096, false);

        stub.fault("rados_connect", 0, 1, -ETIMEDOUT);
        start();
        backend_rados.submit(b, &o->op);
        assert_int_equal(operation_wait(o), -ETIMEDOUT);
        assert_non_null(strstr(o->op.error, "cannot connect"));
        operation_free(o);
        wait_for_calls("rados_connect", 2);
        while (write_one(1) == -ETIMEDOUT)
                usleep(1000);
        assert_int_equal(read_one(1), 0);
}

static void what_keeps_it_from_connecting_is_named(void **state)
{
        static const struct {
                const char *function;
                int result, want;
                const char *text;
        } cases[] = {
                { "rados_create", -EINVAL, -EINVAL, "librados" },
                { "rados_conf_read_file", -ENOENT, -ENOTCONN, "ceph.conf" },
                { "rados_connect", -EACCES, -EACCES, "Permission" },
                { "rados_connect", -ENOENT, -ENOTCONN, "cannot connect" },
                { "rados_ioctx_create", -EPERM, -EACCES, "pool" },
        };

        for (unsigned i = 0; i <= ARRAY_SIZE(cases); i++) {
                bool no_pool = i == ARRAY_SIZE(cases);
                struct operation *o = operation_new(BACKEND_READ, NAME, 4096, false);

                if (!no_pool)
                        stub.fault(cases[i].function, 0, 1, cases[i].result);
                start_on(no_pool ? "missing" : "pool", 4);
                backend_rados.submit(b, &o->op);
                assert_int_equal(operation_wait(o), no_pool ? -ENOTCONN : cases[i].want);
                assert_non_null(
                        strstr(o->op.error, no_pool ? "ceph osd pool create" : cases[i].text));
                operation_free(o);
                stop();
                wait_for_nothing_live();
                stub.reset();
        }
}

/* Neither the loop nor the end of the process waits for hung operations. */
static void stop_and_close_do_not_wait(void **state)
{
        struct operation *o[2];
        uint64_t began;

        start();
        assert_int_equal(write_one(1), 0);
        stub.hang(true);
        stub.ignore_cancel(true);
        o[0] = operation_new(BACKEND_READ, NAME, 9000, false);
        backend_rados.submit(b, &o[0]->op);
        while (stub.pending() == 0)
                usleep(1000);
        began = clock_mono_ns();
        stop();
        assert_true(clock_mono_ns() - began < 60 * SECOND_NS);
        assert_false(operation_has_ended(o[0]));
        stub.hang(false); /* nothing is there any more to take its end; its memory is kept till
                             here */
        wait_for_nothing_live();
        assert_false(operation_has_ended(o[0]));
        operation_free(o[0]);

        stub.reset();
        stub.hang_connect(true);
        start();
        o[1] = operation_new(BACKEND_READ, NAME, 9000, false);
        backend_rados.submit(b, &o[1]->op);
        wait_for_calls("rados_connect", 1);
        began = clock_mono_ns();
        stop();
        assert_true(clock_mono_ns() - began < 60 * SECOND_NS);
        assert_int_equal(operation_wait(o[1]), -ECANCELED);
        operation_free(o[1]);
        stub.hang_connect(false);
        wait_for_nothing_live();
}

static void a_mark_moves_mtime_once_a_day(void **state)
{
        int64_t long_ago = time(NULL) - 30 * 86400, an_hour_ago = time(NULL) - 3600;
        unsigned before;

        start();
        assert_int_equal(write_one(1), 0);
        assert_true(stub.set_mtime(OID, long_ago));
        backend_rados.mark_used(b, NAME, clock_unix_ms());
        while (stub.mtime(OID) == long_ago)
                usleep(1000);
        /* The object is not marked again, although it looks old again. */
        assert_true(stub.set_mtime(OID, long_ago));
        before = stub.calls("rados_aio_write_op_operate");
        for (unsigned i = 0; i < 100; i++)
                backend_rados.mark_used(b, NAME, clock_unix_ms());
        assert_int_equal(read_one(1), 0);
        assert_int_equal(stub.calls("rados_aio_write_op_operate"), before);
        assert_int_equal(stub.mtime(OID), long_ago);
        /* An object that a read has seen as new needs no mark. */
        stop();
        start();
        assert_true(stub.set_mtime(OID, an_hour_ago));
        assert_int_equal(read_one(1), 0);
        backend_rados.mark_used(b, NAME, clock_unix_ms());
        assert_int_equal(read_one(1), 0);
        assert_int_equal(stub.mtime(OID), an_hour_ago);
        /* A failed mark is ignored. */
        stub.fault("write", 0, 1, -EIO);
        backend_rados.mark_used(b, "kv/1/x", clock_unix_ms());
        assert_int_equal(read_one(1), 0);
        assert_false(stub.has("kv", "1/x"));
}

static bool count(void *userdata, const struct backend_entry *e)
{
        ++*(unsigned *)userdata;
        return true;
}

static void the_sweeper_gets_errors(void **state)
{
        const bool never = false;
        unsigned n = 0;

        stub.hang_connect(true);
        start();
        assert_int_equal(backend_rados.list(b, true, count, &n, &never), -ENOTCONN);
        assert_int_equal(backend_rados.lease(b, "kv/sweeper", "me", SECOND_NS), -ENOTCONN);
        stub.hang_connect(false);
        assert_int_equal(write_one(1), 0);
        stub.fault("rados_nobjects_list_open", 0, 1, -EPERM);
        assert_int_equal(backend_rados.list(b, true, count, &n, &never), -EACCES);
        stub.fault("rados_nobjects_list_next", 0, 1, -ETIMEDOUT);
        assert_int_equal(backend_rados.list(b, true, count, &n, &never), -ETIMEDOUT);
        stub.fault("read", 0, 1, -ETIMEDOUT);
        assert_int_equal(backend_rados.list(b, true, count, &n, &never), -ETIMEDOUT);
        stub.fault("read", 0, 1, -ENOENT); /* deleted meanwhile */
        assert_int_equal(backend_rados.list(b, true, count, &n, &never), 0);
        assert_int_equal(n, 0);
        stub.fault("rados_aio_stat", 0, 1, -EIO);
        assert_int_equal(backend_rados.list(b, true, count, &n, &never), -EIO);
        assert_int_equal(backend_rados.list(b, true, count, &n, &never), 0);
        assert_int_equal(n, 1);
        stub.fault("rados_write_op_operate", 0, 1, -EOVERFLOW); /* used in between */
        assert_int_equal(backend_rados.remove_unused(b, NAME, UINT64_MAX), -EAGAIN);
        stub.fault("rados_stat", 0, 1, -ETIMEDOUT);
        assert_int_equal(backend_rados.remove_unused(b, NAME, UINT64_MAX), -ETIMEDOUT);
        stub.fault("rados_lock_exclusive", 0, 1, -ETIMEDOUT);
        assert_int_equal(backend_rados.lease(b, "kv/sweeper", "me", SECOND_NS), -ETIMEDOUT);
        assert_int_equal(backend_rados.lease(b, "elsewhere/sweeper", "me", SECOND_NS), -EINVAL);
}

static void a_wrong_setting_is_named(void **state)
{
        struct backend_params p = params_of(NULL, 4);
        char error[256] = "";

        assert_int_equal(backend_rados.open(&b, &p, error), -EINVAL);
        assert_non_null(strstr(error, "remote.pool"));
        p.pool = "pool";
        p.ceph_conf = "/nonexistent/ceph.conf";
        assert_int_equal(backend_rados.open(&b, &p, error), -ENOENT);
        assert_non_null(strstr(error, "/nonexistent/ceph.conf"));
        assert_null(b);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(it_keeps_the_contract),
                TEST(the_prefix_is_the_namespace),
                TEST(librados_has_timeouts),
                TEST(errors_are_those_of_the_contract),
                TEST(calls_that_fail_at_once_end),
                TEST(lengths_are_not_believed),
                TEST(what_hangs_ends_at_its_deadline),
                TEST(memory_is_kept_while_librados_has_it),
                TEST(what_waits_ends_at_its_deadline),
                TEST(a_cluster_may_come_later),
                TEST(what_keeps_it_from_connecting_is_named),
                TEST(stop_and_close_do_not_wait),
                TEST(a_mark_moves_mtime_once_a_day),
                TEST(the_sweeper_gets_errors),
                TEST(a_wrong_setting_is_named),
        };

        if (!stub_rados_load(&stub)) {
                fprintf(stderr, "the stub of librados is not found: LD_LIBRARY_PATH\n");
                return 1;
        }
        return cmocka_run_group_tests_name("remote-rados", tests, NULL, NULL);
}
