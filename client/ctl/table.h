/* SPDX-License-Identifier: Apache-2.0 */
/* Aligned columns for people. Texts are copied, and control characters in them (names come from
 * other users) are replaced: a name cannot steer a terminal. When memory runs out, rows are missing
 * and the table says so. */
#pragma once

#include <stdio.h>

struct table;

enum { TABLE_MAX_COLUMNS = 8 };

/* One letter a column: 'l' left, 'r' right. */
struct table *table_new(const char *columns);
struct table *table_free(struct table *t);
/* One text a column; NULL is empty. The first row may be a heading. */
void table_add(struct table *t, const char *const *cells);
#define table_row(t, ...) table_add((t), (const char *const[TABLE_MAX_COLUMNS]){ __VA_ARGS__ })
void table_print(const struct table *t, const char *indent, FILE *out);
