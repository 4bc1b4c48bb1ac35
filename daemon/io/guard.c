/* SPDX-License-Identifier: Apache-2.0 */
/* Owns the process's SIGBUS handler and one jump buffer per thread.
 *
 * Normal path: guard_call() sets the thread's jump buffer, runs the function and clears it. On a
 * SIGBUS inside the function, the handler jumps back. SIGBUS must never be blocked, because a
 * blocked SIGBUS that the thread itself causes kills the process. After the jump, the signal
 * mask is therefore restored to the one the handler found; saving it in the jump buffer would
 * cost a system call in each guard_call(). */
#include "io/guard.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <ucontext.h>

#include "base/sanitizers.h"

#if SANITIZES_THREADS
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);

void guard_shared_begin(void)
{
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
        AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}

void guard_shared_end(void)
{
        AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}
#else
void guard_shared_begin(void)
{
}

void guard_shared_end(void)
{
}
#endif

static struct sigaction guard_before;
static pthread_mutex_t guard_lock = PTHREAD_MUTEX_INITIALIZER;

static _Thread_local sigjmp_buf guard_jump;
static _Thread_local volatile sig_atomic_t guard_active;
static _Thread_local sigset_t guard_mask;

static void guard_handle(int sig, siginfo_t *info, void *context)
{
        if (guard_active) {
                guard_active = 0;
                guard_mask = ((const ucontext_t *)context)->uc_sigmask;
                siglongjmp(guard_jump, 1);
        }
        if (guard_before.sa_flags & SA_SIGINFO) {
                guard_before.sa_sigaction(sig, info, context);
                return;
        }
        if (guard_before.sa_handler == SIG_IGN && info->si_code <= 0)
                return;
        if (guard_before.sa_handler != SIG_DFL && guard_before.sa_handler != SIG_IGN) {
                guard_before.sa_handler(sig);
                return;
        }
        /* The default action kills: a fault recurs when this handler returns, but a signal that
         * was sent has to be raised again. */
        signal(sig, SIG_DFL);
        if (info->si_code <= 0)
                raise(sig);
}

int guard_install(void)
{
        struct sigaction action = { .sa_sigaction = guard_handle,
                                    .sa_flags = SA_SIGINFO | SA_ONSTACK };
        struct sigaction now;
        int r = 0;

        sigemptyset(&action.sa_mask);
        pthread_mutex_lock(&guard_lock);
        if (sigaction(SIGBUS, NULL, &now) < 0)
                r = -errno;
        else if (!(now.sa_flags & SA_SIGINFO) || now.sa_sigaction != guard_handle) {
                guard_before = now;
                if (sigaction(SIGBUS, &action, NULL) < 0)
                        r = -errno;
        }
        pthread_mutex_unlock(&guard_lock);
        return r;
}

int guard_call(void (*f)(void *userdata), void *userdata)
{
        if (sigsetjmp(guard_jump, 0) != 0) {
                /* ThreadSanitizer needs no guard_shared_end() here: entering a signal handler
                 * resets its ignore state. */
                pthread_sigmask(SIG_SETMASK, &guard_mask, NULL);
                return -EFAULT;
        }
        guard_shared_begin();
        guard_active = 1;
        f(userdata);
        guard_active = 0;
        guard_shared_end();
        return 0;
}
