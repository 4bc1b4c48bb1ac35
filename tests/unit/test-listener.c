/* SPDX-License-Identifier: Apache-2.0 */
/* The listening socket: whose path it takes and whose it leaves alone, and what happens when
 * descriptors run out. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "session/listener.h"

static struct {
        struct event_base *base;
        char dir[64], path[100];
        int accepted[16];
        unsigned n_accepted, exhausted;
        char error[256];
} t;

static void on_connection(void *userdata, int fd)
{
        t.accepted[t.n_accepted++] = fd;
}

static void on_exhausted(void *userdata, int error)
{
        assert_true(error == -EMFILE || error == -ENFILE);
        t.exhausted++;
}

static int listen_on(struct listener **ret, int inherited)
{
        struct listener_params params = {
                .path = t.path,
                .mode = 0640,
                .inherited_fd = inherited,
                .on_connection = on_connection,
                .on_exhausted = on_exhausted,
        };

        return listener_new(ret, t.base, &params, t.error);
}

static int setup(void **state)
{
        memset(&t, 0, sizeof(t));
        strcpy(t.dir, "/tmp/kvcache-listener-XXXXXX");
        assert_non_null(mkdtemp(t.dir));
        snprintf(t.path, sizeof(t.path), "%s/run/s", t.dir); /* creates its directory */
        t.base = event_base_new();
        return 0;
}

static int teardown(void **state)
{
        char run[80];

        for (unsigned i = 0; i < t.n_accepted; i++)
                close(t.accepted[i]);
        event_base_free(t.base);
        unlink(t.path);
        snprintf(run, sizeof(run), "%s/run", t.dir);
        rmdir(run);
        assert_int_equal(rmdir(t.dir), 0);
        return 0;
}

static struct sockaddr_un address(void)
{
        struct sockaddr_un a = { .sun_family = AF_UNIX };

        strcpy(a.sun_path, t.path);
        return a;
}

/* Returns 0 or -errno. */
static int try_connect(int *ret_fd)
{
        struct sockaddr_un a = address();
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

        if (connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0) {
                int r = -errno;

                close(fd);
                return r;
        }
        *ret_fd = fd;
        return 0;
}

static int bind_socket(int type)
{
        struct sockaddr_un a = address();
        char run[80];
        int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

        snprintf(run, sizeof(run), "%s/run", t.dir);
        mkdir(run, 0755);
        assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
        return fd;
}

static void wait_for(unsigned accepted)
{
        while (t.n_accepted < accepted)
                event_base_loop(t.base, EVLOOP_ONCE);
}

static void it_accepts_and_takes_its_file_away(void **state)
{
        struct listener *l = NULL;
        struct stat st;
        int fd[3];

        assert_int_equal(listen_on(&l, -1), 0);
        assert_int_equal(stat(t.path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0640);
        for (unsigned i = 0; i < 3; i++)
                assert_int_equal(try_connect(&fd[i]), 0);
        wait_for(3);
        assert_true(fcntl(t.accepted[0], F_GETFL) & O_NONBLOCK);
        assert_true(fcntl(t.accepted[0], F_GETFD) & FD_CLOEXEC);
        l = listener_free(l);
        assert_int_equal(access(t.path, F_OK), -1);
        for (unsigned i = 0; i < 3; i++)
                close(fd[i]);
}

static void it_does_not_take_the_path_of_who_listens(void **state)
{
        struct listener *l = NULL, *other = NULL;
        int fd;

        assert_int_equal(listen_on(&l, -1), 0);
        assert_int_equal(listen_on(&other, -1), -EADDRINUSE);
        assert_non_null(strstr(t.error, t.path));
        assert_null(other);
        assert_int_equal(try_connect(&fd), 0);
        close(fd);
        l = listener_free(l);
}

/* A busy socket is not replaced either: one with a full backlog, or of another kind. */
static void it_does_not_take_the_path_of_who_is_busy(void **state)
{
        struct listener *l = NULL;
        int busy = bind_socket(SOCK_SEQPACKET), fd[8];
        unsigned n = 0;

        assert_int_equal(listen(busy, 0), 0);
        while (n < 8 && try_connect(&fd[n]) == 0)
                n++;
        assert_in_range(n, 1, 7);
        assert_int_equal(listen_on(&l, -1), -EADDRINUSE);
        close(busy);
        while (n > 0)
                close(fd[--n]);
        unlink(t.path);

        busy = bind_socket(SOCK_STREAM);
        assert_int_equal(listen(busy, 5), 0);
        assert_int_equal(listen_on(&l, -1), -EADDRINUSE);
        close(busy);
}

static void it_replaces_a_socket_without_a_listener(void **state)
{
        struct listener *l = NULL;
        int fd;

        close(bind_socket(SOCK_SEQPACKET));
        assert_int_equal(try_connect(&fd), -ECONNREFUSED);
        assert_int_equal(listen_on(&l, -1), 0);
        assert_int_equal(try_connect(&fd), 0);
        wait_for(1);
        close(fd);
        l = listener_free(l);
}

static void it_replaces_nothing_that_is_not_a_socket(void **state)
{
        struct listener *l = NULL;
        int fd;

        close(bind_socket(SOCK_SEQPACKET));
        unlink(t.path);
        fd = open(t.path, O_CREAT | O_WRONLY, 0644);
        assert_int_equal(listen_on(&l, -1), -EEXIST);
        assert_non_null(strstr(t.error, t.path));
        assert_int_equal(access(t.path, F_OK), 0);
        close(fd);
}

static void it_leaves_the_file_of_a_successor_alone(void **state)
{
        struct listener *l = NULL;
        int successor;

        assert_int_equal(listen_on(&l, -1), 0);
        assert_int_equal(unlink(t.path), 0);
        successor = bind_socket(SOCK_SEQPACKET);
        l = listener_free(l);
        assert_int_equal(access(t.path, F_OK), 0);
        close(successor);
}

static void an_inherited_socket_is_used_as_it_is_and_its_file_kept(void **state)
{
        struct listener *l = NULL;
        int inherited = bind_socket(SOCK_SEQPACKET), fd;

        assert_int_equal(listen(inherited, 5), 0);
        assert_int_equal(listen_on(&l, inherited), 0);
        assert_int_equal(try_connect(&fd), 0);
        wait_for(1);
        l = listener_free(l);
        assert_int_equal(access(t.path, F_OK), 0);
        close(fd);
}

static void an_inherited_descriptor_of_another_kind_is_refused(void **state)
{
        struct listener *l = NULL;
        int fd = bind_socket(SOCK_STREAM), file = open("/dev/null", O_RDONLY);

        assert_int_equal(listen(fd, 5), 0);
        assert_int_equal(listen_on(&l, fd), -EINVAL);
        assert_non_null(strstr(t.error, "SEQPACKET"));
        close(fd);
        unlink(t.path);
        fd = bind_socket(SOCK_SEQPACKET); /* does not listen */
        assert_int_equal(listen_on(&l, fd), -EINVAL);
        close(fd);
        assert_int_equal(listen_on(&l, file), -EINVAL);
        close(file);
}

/* In such a directory, another user could replace the socket. */
static void a_directory_that_others_may_change_is_refused(void **state)
{
        struct listener *l = NULL;
        char run[80];

        snprintf(run, sizeof(run), "%s/run", t.dir);
        assert_int_equal(mkdir(run, 0755), 0);
        assert_int_equal(chmod(run, 0777), 0);
        assert_int_equal(listen_on(&l, -1), -EPERM);
        assert_non_null(strstr(t.error, "every user may write to the directory"));
        assert_non_null(strstr(t.error, run));
        assert_int_equal(access(t.path, F_OK), -1);

        /* In a sticky directory such as /tmp, users can create files, and change only their own. */
        assert_int_equal(chmod(run, 01777), 0);
        assert_int_equal(listen_on(&l, -1), 0);
        l = listener_free(l);

        if (geteuid() == 0) {
                assert_int_equal(chmod(run, 0755), 0);
                assert_int_equal(chown(run, 20001, 20001), 0);
                assert_int_equal(listen_on(&l, -1), -EPERM);
                assert_non_null(strstr(t.error, "belongs to user 20001"));
                assert_int_equal(access(t.path, F_OK), -1);
                assert_int_equal(chown(run, 0, 0), 0);
        }
        assert_int_equal(listen_on(&l, -1), 0);
        l = listener_free(l);
}

static void a_path_that_is_too_long_is_refused(void **state)
{
        struct listener *l = NULL;
        char before[sizeof(t.path)], longer[200];
        struct listener_params params = { .path = longer, .inherited_fd = -1 };

        memcpy(before, t.path, sizeof(before));
        memset(longer, 'x', sizeof(longer) - 1);
        longer[0] = '/';
        longer[sizeof(longer) - 1] = '\0';
        assert_int_equal(listener_new(&l, t.base, &params, t.error), -ENAMETOOLONG);
}

static void without_descriptors_it_pauses_and_goes_on(void **state)
{
        struct rlimit before, none;
        struct listener *l = NULL;
        uint64_t cpu;
        int fd[3];

        assert_int_equal(listen_on(&l, -1), 0);
        for (unsigned i = 0; i < 3; i++)
                assert_int_equal(try_connect(&fd[i]), 0);
        assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
        none = before;
        none.rlim_cur = 3;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
        cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        while (t.exhausted < 3)
                event_base_loop(t.base, EVLOOP_ONCE);
        /* The listener slept through two pauses of 100 ms. */
        assert_true(clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu < 50000000);
        assert_int_equal(t.n_accepted, 0);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        wait_for(3);
        l = listener_free(l);
        for (unsigned i = 0; i < 3; i++)
                close(fd[i]);
}

/* A daemon that cannot find out whether another one listens must not remove the other's socket. */
static void it_leaves_a_path_alone_that_it_cannot_check(void **state)
{
        struct listener *l = NULL, *other = NULL;
        struct rlimit before, none;
        int fd;

        assert_int_equal(listen_on(&l, -1), 0);
        assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
        none = before;
        none.rlim_cur = 3;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
        assert_int_equal(listen_on(&other, -1), -EMFILE);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        assert_non_null(strstr(t.error, t.path));
        assert_non_null(strstr(t.error, strerror(EMFILE)));
        assert_int_equal(try_connect(&fd), 0);
        wait_for(1);
        l = listener_free(l);
        close(fd);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(it_accepts_and_takes_its_file_away),
                TEST(it_does_not_take_the_path_of_who_listens),
                TEST(it_does_not_take_the_path_of_who_is_busy),
                TEST(it_leaves_a_path_alone_that_it_cannot_check),
                TEST(it_replaces_a_socket_without_a_listener),
                TEST(it_replaces_nothing_that_is_not_a_socket),
                TEST(it_leaves_the_file_of_a_successor_alone),
                TEST(an_inherited_socket_is_used_as_it_is_and_its_file_kept),
                TEST(an_inherited_descriptor_of_another_kind_is_refused),
                TEST(a_directory_that_others_may_change_is_refused),
                TEST(a_path_that_is_too_long_is_refused),
                TEST(without_descriptors_it_pauses_and_goes_on),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
