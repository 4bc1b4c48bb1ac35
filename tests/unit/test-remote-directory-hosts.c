/* SPDX-License-Identifier: Apache-2.0 */
/* remote/directory.c: processes that share a directory, and such that are killed. */
#include "directory-fixture.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/sanitizers.h"

enum {
        HOSTS = 2,
        OBJECTS = 100,
        BYTES = HEADER + 60000,
        KILLS = SANITIZES_THREADS ? 30 : 200, /* ThreadSanitizer makes processes slowly */
};

static void name_of(unsigned i, char ret[static 64])
{
        snprintf(ret, 64, "kv/1/id/%02x/%u", i % 8, i);
}

/* Returns the host that wrote an object, as every byte of it tells, or -1 if it is absent. */
static int whole_object(const char *name, unsigned i)
{
        struct operation *o = operation_new(BACKEND_READ, name, BYTES);
        int r, from = -1;

        backend_directory.submit(at.b, &o->op);
        r = wait_for(o);
        if (r == 0) {
                assert_int_equal(o->op.size, BYTES);
                for (int host = 0; host < HOSTS && from < 0; host++)
                        if (holds(o, BYTES, (uint64_t)host * OBJECTS + i))
                                from = host;
                assert_true(from >= 0);
        } else
                assert_int_equal(r, -ENOENT);
        operation_free(o);
        return from;
}

/* Creates all objects, and exits with how many it won, of 256 at most. */
static void run_host(unsigned host, int gate)
{
        struct operation *o[OBJECTS];
        unsigned won = 0;
        char byte;

        start(4, false);
        for (unsigned i = 0; i < OBJECTS; i++) {
                char name[64];

                name_of(i, name);
                o[i] = operation_new(BACKEND_CREATE, name, BYTES);
                fill(o[i], (uint64_t)host * OBJECTS + i);
        }
        if (read(gate, &byte, 1) != 0)
                _exit(255);
        for (unsigned i = 0; i < OBJECTS; i++)
                backend_directory.submit(at.b, &o[i]->op);
        for (unsigned i = 0; i < OBJECTS; i++) {
                int r = wait_for(o[i]);

                if (r != 0 && r != -EEXIST)
                        _exit(254);
                won += r == 0;
        }
        _exit((int)won);
}

/* Two processes create every name, and one succeeds. A third process always reads whole objects. */
static void of_several_creates_one_wins(void **state)
{
        unsigned won = 0, of[HOSTS] = { 0 };
        pid_t hosts[HOSTS];
        int gate[2];

        static_assert(OBJECTS < 254, "a process exits with how many it won");
        assert_int_equal(pipe2(gate, O_CLOEXEC), 0);
        for (unsigned i = 0; i < HOSTS; i++) {
                hosts[i] = fork();
                assert_true(hosts[i] >= 0);
                if (hosts[i] == 0) {
                        close(gate[1]);
                        run_host(i, gate[0]);
                }
        }
        start(4, false);
        close(gate[0]);
        close(gate[1]);
        for (unsigned seen = 0; seen < OBJECTS;) {
                char name[64];

                seen = 0;
                for (unsigned i = 0; i < OBJECTS; i++) {
                        name_of(i, name);
                        seen += whole_object(name, i) >= 0;
                }
        }
        for (unsigned i = 0; i < HOSTS; i++) {
                int status;

                assert_int_equal(waitpid(hosts[i], &status, 0), hosts[i]);
                assert_true(WIFEXITED(status));
                assert_true(WEXITSTATUS(status) <= OBJECTS);
                won += (unsigned)WEXITSTATUS(status);
                of[i] = (unsigned)WEXITSTATUS(status);
        }
        assert_int_equal(won, OBJECTS);
        for (unsigned i = 0; i < OBJECTS;
             i++) { /* each object stays that of the successful create */
                char name[64];

                name_of(i, name);
                of[whole_object(name, i)]--;
        }
        assert_int_equal(of[0], 0);
        assert_int_equal(of[1], 0);
        assert_int_equal(count_files("", ".tmp"), 0);
}

/* Creates and replaces until it is killed; closes `begun` once some are there. */
static void run_until_killed(struct operation *const o[static OBJECTS], unsigned first, int begun)
{
        enum { TOGETHER = 8 };

        start(4, false);
        for (unsigned n = first;; n += TOGETHER) {
                for (unsigned i = n; i < n + TOGETHER; i++) {
                        struct operation *it = o[i % OBJECTS];

                        it->ended = false;
                        it->op.kind = i % 2 ? BACKEND_REPLACE : BACKEND_CREATE;
                        it->op.deadline_ns = clock_mono_ns() + 30 * SECOND_NS;
                        backend_directory.submit(at.b, &it->op);
                }
                for (unsigned i = n; i < n + TOGETHER; i++)
                        wait_for(o[i % OBJECTS]);
                if (n == first)
                        close(begun);
        }
}

static void kill_one(struct operation *const o[static OBJECTS], unsigned round, uint64_t after_ns)
{
        uint64_t until;
        int begun[2], status;
        char byte;
        pid_t host;

        assert_int_equal(pipe2(begun, O_CLOEXEC), 0);
        host = fork();
        assert_true(host >= 0);
        if (host == 0) {
                close(begun[0]);
                run_until_killed(o, round * 37, begun[1]);
        }
        close(begun[1]);
        assert_int_equal(read(begun[0], &byte, 1), 0);
        close(begun[0]);
        for (until = clock_mono_ns() + after_ns; clock_mono_ns() < until;)
                ;
        kill(host, SIGKILL);
        assert_int_equal(waitpid(host, &status, 0), host);
        assert_true(WIFSIGNALED(status));
}

static void a_kill_leaves_whole_objects(void **state)
{
        struct operation *o[OBJECTS];
        uint64_t random = 12345;
        unsigned left = 0, there = 0;
        char name[64];

        for (unsigned i = 0; i < OBJECTS; i++) {
                name_of(i, name);
                o[i] = operation_new(BACKEND_CREATE, name, BYTES);
                fill(o[i], i);
        }
        for (unsigned round = 0; round < KILLS || (left == 0 && round < 50 * KILLS); round++) {
                random = random * 6364136223846793005u + 1442695040888963407u;
                kill_one(o, round, (random >> 33) % 3000000);
                left = count_files("", ".tmp"); /* files of processes killed in the middle */
        }
        start(4, false);
        for (unsigned i = 0; i < OBJECTS; i++) {
                name_of(i, name);
                there += whole_object(name, i) >= 0;
                operation_free(o[i]);
        }
        print_message("%u objects are there, %u temporary files were left\n", there, left);
        assert_true(there > OBJECTS / 2);
        assert_true(left > 0);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, directory_setup, directory_teardown)
        const struct CMUnitTest tests[] = {
                TEST(of_several_creates_one_wins),
                TEST(a_kill_leaves_whole_objects),
        };

        /* In memory, because a killed process waits for its I/O, and there are many. */
        if (access("/dev/shm", W_OK) == 0)
                setenv("TMPDIR", "/dev/shm", 1);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
