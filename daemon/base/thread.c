/* SPDX-License-Identifier: Apache-2.0 */
/* Implements thread.h. The loop thread handles signals: every other thread starts with all of them
 * blocked, and threads that it starts (including a library's) inherit that. Only signals that a
 * fault raises in the thread itself (SIGSEGV, SIGBUS, ...) stay unblocked: if such a signal is
 * blocked, the kernel kills the process instead of calling the handler, and guard_call() needs the
 * handler of SIGBUS. */
#include "base/thread.h"

#include <signal.h>
#include <stddef.h>

static void block_signals(sigset_t *ret_before)
{
        sigset_t all;

        sigfillset(&all);
        sigdelset(&all, SIGBUS);
        sigdelset(&all, SIGSEGV);
        sigdelset(&all, SIGFPE);
        sigdelset(&all, SIGILL);
        sigdelset(&all, SIGSYS);
        sigdelset(&all, SIGTRAP);
        sigdelset(&all, SIGABRT);
        pthread_sigmask(SIG_SETMASK, &all, ret_before);
}

int thread_start(pthread_t *ret, const char *name, void *(*run)(void *userdata), void *userdata)
{
        sigset_t before;
        int r;

        block_signals(&before);
        r = pthread_create(ret, NULL, run, userdata);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (r != 0)
                return -r;
        pthread_setname_np(*ret, name);
        return 0;
}
