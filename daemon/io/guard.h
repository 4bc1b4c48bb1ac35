/* SPDX-License-Identifier: Apache-2.0 */
/* Access to memory that may vanish: a process that holds the file behind a shared mapping can
 * truncate it, and the next access raises SIGBUS.
 *
 * Any thread may run guard_call(). The handler is installed for the process, is never removed, and
 * acts only on a thread that is inside guard_call(); any other SIGBUS goes to the handler before
 * it.
 */
#pragma once

/* Call it before any guard_call(), and again if other code may have replaced the handler since;
 * calling it twice is harmless. 0, -errno. */
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
