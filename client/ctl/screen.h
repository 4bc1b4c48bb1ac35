/* SPDX-License-Identifier: Apache-2.0 */
/* A terminal that one command redraws: the alternate screen, without a cursor, each key read as it
 * is pressed. There is one; the main thread owns it.
 *
 * A signal that ends or stops the process first puts the terminal back as it was, whatever the
 * process is waiting for; SIGCONT takes it again. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum screen_event { SCREEN_TIMEOUT, SCREEN_RESIZED, SCREEN_QUIT, SCREEN_REFRESH };

/* Can standard output be redrawn? It is a terminal, and not a dumb one. */
bool screen_possible(void);
void screen_enter(void);
/* Does nothing if the screen is not entered. */
void screen_leave(void);
/* As of now. */
void screen_size(unsigned *ret_lines, unsigned *ret_columns);
/* Shows the first lines of `text`, each cut to the width. 0; -errno: the terminal has been closed.
 */
int screen_paint(const char *text);
/* Until `deadline_ns` (CLOCK_MONOTONIC), a key, or a new size. */
enum screen_event screen_wait(uint64_t deadline_ns);
