/* SPDX-License-Identifier: Apache-2.0 */
/* A terminal that one command redraws: the alternate screen, without a cursor, with each key read
 * as it is pressed. There is only one screen, which the main thread owns.
 *
 * A signal that ends or stops the process first restores the terminal, whatever the process is
 * waiting for; SIGCONT enters the screen again. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum screen_event { SCREEN_TIMEOUT, SCREEN_RESIZED, SCREEN_QUIT, SCREEN_REFRESH };

/* Returns whether standard output is a terminal that can be redrawn. */
bool screen_possible(void);
void screen_enter(void);
/* Restores the terminal; does nothing if the screen is not entered. */
void screen_leave(void);
/* Gets the current size of the terminal; 24 lines of 80 columns if it is not known. */
void screen_size(unsigned *ret_lines, unsigned *ret_columns);
/* Shows as many lines of `text` as the terminal has, each cut to its width. Returns 0, or -EIO if a
 * write fails, for example because the terminal has been closed. */
int screen_paint(const char *text);
/* Waits for a key, a new size or `deadline_ns` (CLOCK_MONOTONIC). Returns SCREEN_QUIT for q,
 * SCREEN_REFRESH for the space bar, SCREEN_RESIZED if the screen must be redrawn, and
 * SCREEN_TIMEOUT at the deadline. Ignores other keys. */
enum screen_event screen_wait(uint64_t deadline_ns);
