/* SPDX-License-Identifier: Apache-2.0 */
/* Safe access to memory that may vanish: a process that holds the file behind a shared mapping
 * can truncate it, and the next access raises SIGBUS.
 *
 * Any thread may run guard_call(). The SIGBUS handler is installed for the process, is never
 * removed, and acts only on a thread that is inside guard_call(). It passes any other SIGBUS to
 * the previous handler. */
#pragma once

/* Installs the handler. Call it before guard_call(), and again if other code may have replaced
 * the handler; calling it twice is harmless. Returns 0 or -errno. */
int guard_install(void);

/* Runs f(userdata) and returns 0, or -EFAULT if f accessed memory that does not exist. In that
 * case f was abandoned at the access, so f must not hold a lock or own anything. */
int guard_call(void (*f)(void *userdata), void *userdata);

/* Suspend and resume the checks of ThreadSanitizer on this thread; guard_call() itself calls both.
 * A client may change shared memory during a transfer, or direct two transfers to one place, which
 * the sanitizer would report as a race of the daemon. Without ThreadSanitizer these functions do
 * nothing. */
void guard_shared_begin(void);
void guard_shared_end(void);
