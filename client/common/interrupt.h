/* SPDX-License-Identifier: Apache-2.0 */
/* Catches signals that end a command, which checks `interrupted` and then reports or cleans up
 * before it ends. */
#pragma once

#include <stdatomic.h>

/* Not 0 after a signal was caught. Any thread may read it. */
extern atomic_int interrupted;

/* Catches the first SIGINT and the first SIGTERM; a second signal of the same kind ends the
 * process. */
void interrupt_catch(void);
/* Catches each SIGINT, SIGTERM and SIGHUP, and ignores SIGPIPE: for commands that have started a
 * daemon, which they must stop. */
void interrupt_catch_always(void);
