/* SPDX-License-Identifier: Apache-2.0 */
#include "child.h"
#include "timeout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

void in_child(int (*f)(void))
{
        int status;
        pid_t pid = fork();

        assert_true(pid >= 0);
        if (pid == 0) {
                alarm((unsigned)test_timeout_ms(60000) / 1000);
                _exit(f());
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (WIFSIGNALED(status))
                fail_msg("the child died of signal %d", WTERMSIG(status));
        if (WEXITSTATUS(status) == 77)
                skip();
        if (WEXITSTATUS(status) != 0)
                fail_msg("the child's check number %d does not hold", WEXITSTATUS(status));
}
