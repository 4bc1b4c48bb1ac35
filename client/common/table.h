/* SPDX-License-Identifier: Apache-2.0 */
/* Aligned columns for people. Texts are copied, and control characters in them are replaced,
 * because names come from other users and must not control a terminal. If memory runs out, a text
 * is printed as "?", or rows are missing and the table says so. */
#pragma once

#include <stdio.h>

#include "cleanup.h"
#include "color.h"

struct text_table;

enum { TABLE_MAX_COLUMNS = 12 };

/* Creates a table. `columns` has one letter per column: 'l' left, 'r' right. Returns NULL if memory
 * is short; the functions below accept NULL as a table. */
struct text_table *text_table_new(const char *columns);
struct text_table *text_table_free(struct text_table *t);
DEFINE_CLEANUP(struct text_table *, text_table_free);
/* Adds a row with one text per column; a text that is NULL is empty. The first row may be a
 * heading. */
void text_table_add(struct text_table *t, const char *const *cells);
#define text_table_row(t, ...)                                                                     \
        text_table_add((t), (const char *const[TABLE_MAX_COLUMNS]){ __VA_ARGS__ })
/* Gives the row that was added last a colour, if `colored`. */
void text_table_color(struct text_table *t, enum color color, bool colored);
/* Shortens the texts of the first column in the middle, to 8 characters at least, so that the table
 * is at most `columns` characters wide if the other columns allow it. 0: does not shorten. */
void text_table_fit(struct text_table *t, size_t columns);
void text_table_print(const struct text_table *t, const char *indent, FILE *out);
