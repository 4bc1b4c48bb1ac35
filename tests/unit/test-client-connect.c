/* SPDX-License-Identifier: Apache-2.0 */
/* libkvcache without a path: which of the usual sockets it trusts. In a directory below /tmp,
 * another user may have bound the name first. The test sets the user of the process
 * (--wrap=geteuid) and of the listener (--wrap=getsockopt), and hides a daemon of this machine
 * (--wrap=connect). */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "../lib/rig.h"

enum { WAIT_MS = 60000 };

static uid_t self, listener;
static char folder[64], path[96];

uid_t __wrap_geteuid(void);
uid_t __wrap_geteuid(void)
{
        return self;
}

int __real_getsockopt(int fd, int level, int name, void *value, socklen_t *length);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *length);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *length)
{
        int r = __real_getsockopt(fd, level, name, value, length);

        if (r == 0 && level == SOL_SOCKET && name == SO_PEERCRED)
                ((struct ucred *)value)->uid = listener;
        return r;
}

int __real_connect(int fd, const struct sockaddr *address, socklen_t length);
int __wrap_connect(int fd, const struct sockaddr *address, socklen_t length);
int __wrap_connect(int fd, const struct sockaddr *address, socklen_t length)
{
        if (strcmp(((const struct sockaddr_un *)address)->sun_path, path) != 0) {
                errno = ENOENT;
                return -1;
        }
        return __real_connect(fd, address, length);
}

static int setup(void **state)
{
        struct rig *f;

        self = 1000000 + (uid_t)getpid();
        snprintf(folder, sizeof(folder), "/tmp/kvcache-%u", (unsigned)self);
        snprintf(path, sizeof(path), "%s/kvcache.sock", folder);
        unsetenv("KVCACHE_SOCKET");
        unsetenv("XDG_RUNTIME_DIR");
        if (mkdir(folder, 0700) < 0 || rig_setup(state) != 0)
                return -1;
        f = *state;
        f->d = fake_daemon_start(path, NULL);
        return f->d ? 0 : -1;
}

static int teardown(void **state)
{
        int r = rig_teardown(state);

        unlink(path);
        return rmdir(folder) < 0 ? -1 : r;
}

static int connect_by(struct rig *f, const char *socket_path, char why[static 512])
{
        struct kvcache_options o = { .size = sizeof(o),
                                     .socket_path = socket_path,
                                     .connect_timeout_ms = WAIT_MS };

        return kvcache_connect(&f->kv, &o, why, 512);
}

static void a_daemon_of_this_user_or_root_is_trusted(void **state)
{
        struct rig *f = *state;
        char why[512] = "";

        listener = self;
        assert_int_equal(connect_by(f, NULL, why), 0);
        kvcache_close(f->kv);
        listener = 0;
        assert_int_equal(connect_by(f, NULL, why), 0);
}

static void a_daemon_of_another_user_is_not_trusted(void **state)
{
        struct rig *f = *state;
        char why[512] = "";

        listener = self + 1;
        assert_int_equal(connect_by(f, NULL, why), -EACCES);
        assert_non_null(strstr(why, path));
        assert_null(f->kv);
}

/* A program started by sudo or su may have the $XDG_RUNTIME_DIR of another user. */
static void a_runtime_directory_of_another_user_is_not_trusted(void **state)
{
        struct rig *f = *state;
        char why[512] = "", runtime[72], other[96], saved[96];

        snprintf(runtime, sizeof(runtime), "%s/run", folder);
        snprintf(other, sizeof(other), "%s/kvcache", runtime);
        snprintf(saved, sizeof(saved), "%s", path);
        assert_int_equal(mkdir(runtime, 0700), 0);
        assert_int_equal(mkdir(other, 0700), 0);
        snprintf(other, sizeof(other), "%s/kvcache/kvcache.sock", runtime);
        assert_int_equal(rename(path, other), 0);
        snprintf(path, sizeof(path), "%s", other);
        setenv("XDG_RUNTIME_DIR", runtime, 1);

        listener = self + 1;
        assert_int_equal(connect_by(f, NULL, why), -EACCES);
        assert_non_null(strstr(why, other));
        listener = self;
        assert_int_equal(connect_by(f, NULL, why), 0);

        unsetenv("XDG_RUNTIME_DIR");
        snprintf(path, sizeof(path), "%s", saved);
        assert_int_equal(rename(other, path), 0);
        other[strlen(other) - strlen("/kvcache.sock")] = '\0';
        assert_int_equal(rmdir(other), 0);
        assert_int_equal(rmdir(runtime), 0);
}

static void without_the_variable_the_users_runtime_directory_is_tried(void **state)
{
        struct rig *f = *state;
        char why[512] = "", expected[64];

        listener = self + 1;
        assert_int_equal(connect_by(f, NULL, why), -EACCES);
        snprintf(expected, sizeof(expected), "/run/user/%u/kvcache/kvcache.sock", (unsigned)self);
        assert_non_null(strstr(why, expected));
}

static void a_path_that_the_caller_names_is_trusted(void **state)
{
        struct rig *f = *state;
        char why[512] = "";

        listener = self + 1;
        assert_int_equal(connect_by(f, path, why), 0);
        kvcache_close(f->kv);
        f->kv = NULL;
        setenv("KVCACHE_SOCKET", path, 1);
        assert_int_equal(connect_by(f, NULL, why), 0);
        unsetenv("KVCACHE_SOCKET");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(a_daemon_of_this_user_or_root_is_trusted),
                TEST(a_daemon_of_another_user_is_not_trusted),
                TEST(a_runtime_directory_of_another_user_is_not_trusted),
                TEST(without_the_variable_the_users_runtime_directory_is_tried),
                TEST(a_path_that_the_caller_names_is_trusted),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
