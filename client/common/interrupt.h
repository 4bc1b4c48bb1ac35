/* SPDX-License-Identifier: Apache-2.0 */
/* Signals that end a command at its next opportunity, so that it can report or clean up. */
#pragma once

#include <stdatomic.h>

/* Not 0 after such a signal. Any thread reads it. */
extern atomic_int interrupted;

/* Catches the first SIGINT and the first SIGTERM; a second one ends the process. */
void interrupt_catch(void);
/* Catches each SIGINT, SIGTERM and SIGHUP, and ignores SIGPIPE: for commands that have started a
 * daemon, which they must stop. */
void interrupt_catch_always(void);
