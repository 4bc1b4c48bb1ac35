/* SPDX-License-Identifier: Apache-2.0 */
/* Text from another party, made safe for one line of a terminal, a log or a message. Any thread. */
#pragma once

#include <stddef.h>

/* Bytes at `p` of a character that a terminal acts on, or that turns the direction of text: C0,
 * DEL, C1, line and paragraph separators, bidirectional controls. 0: it is none. */
size_t text_control(const char *p);
/* In place: '?' for each byte of such a character. Returns `text`. */
char *text_clean(char *text);
