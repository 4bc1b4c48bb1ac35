/* SPDX-License-Identifier: Apache-2.0 */
/* Touching memory that may vanish: a file behind a shared mapping can be cut by whoever holds it,
 * and the next touch is a SIGBUS.
 *
 * Any thread may run guard_call(). The handler is installed for the process, is never removed, and
 * acts only for a thread that is inside guard_call(); any other SIGBUS goes where it went before.
 */
#pragma once

/* Before any guard_call(), and again if somebody else may have set a handler since; harmless if
 * not. 0, -errno. */
int guard_install(void);

/* Runs f(userdata). 0; -EFAULT: it touched memory that is not there, and was left at that point for
 * good. So f may hold no lock and own nothing. */
int guard_call(void (*f)(void *userdata), void *userdata);

/* Memory that is shared with a client changes under any transfer, and a client may have two go to
 * one place: that is not the daemon's race, but would look like one between two of its threads.
 * Between these two calls ThreadSanitizer does not look, as it does not within guard_call(). Else
 * they do nothing. */
void guard_shared_begin(void);
void guard_shared_end(void);
