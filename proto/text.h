/* SPDX-License-Identifier: Apache-2.0 */
/* Makes text from another process or user safe to print in one line of a terminal, a log or a
 * message. Any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Returns the length in bytes of a character at `p` that a terminal interprets or that changes the
 * direction of text: C0, DEL, C1, line and paragraph separators, bidirectional embeddings,
 * overrides and isolates. Returns 0 for any other character, and for NUL. */
size_t text_control(const char *p);
/* Replaces each byte of the characters that text_control() finds by '?', in place. Returns `text`.
 */
char *text_clean(char *text);
/* Returns whether all bytes are printable ASCII. */
bool text_is_ascii(const char *text, size_t bytes);
