/* SPDX-License-Identifier: Apache-2.0 */
/* Tells in a child process whether a call fails an assertion, for tests of functions that assert
 * which changes of a state are legal. Include cmocka.h before. */
#pragma once

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Returns whether call(from, to) aborts. The child ends with the value that `call` returns, which
 * must be 0. */
static inline bool aborts(int (*call)(unsigned from, unsigned to), unsigned from, unsigned to)
{
        int status;
        pid_t child = fork();

        assert_true(child >= 0);
        if (child == 0) {
                if (!freopen("/dev/null", "w", stderr))
                        _exit(2);
                _exit(call(from, to));
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        if (WIFSIGNALED(status)) {
                assert_int_equal(WTERMSIG(status), SIGABRT);
                return true;
        }
        assert_int_equal(status, 0);
        return false;
}
