/* SPDX-License-Identifier: Apache-2.0 */
#include "table.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "human.h"
#include "text.h"
#include "checked.h"

struct text_table {
        size_t n_columns, n_rows, rows_room;
        char columns[TABLE_MAX_COLUMNS];
        char **cells;       /* texts, row by row; NULL: memory was short */
        enum color *colors; /* colour of each row; NULL before the first row */
        bool incomplete;
};

struct text_table *text_table_new(const char *columns)
{
        struct text_table *t = calloc(1, sizeof(*t));

        if (!t)
                return NULL;
        t->n_columns = strlen(columns);
        assert(t->n_columns <= TABLE_MAX_COLUMNS);
        memcpy(t->columns, columns, t->n_columns);
        return t;
}

struct text_table *text_table_free(struct text_table *t)
{
        if (!t)
                return NULL;
        for (size_t i = 0; i < t->n_rows * t->n_columns; i++)
                free(t->cells[i]);
        free(t->cells);
        free(t->colors);
        free(t);
        return NULL;
}

static char *printable(const char *text)
{
        char *copy = strdup(text ? text : "");

        return copy ? text_clean(copy) : NULL;
}

void text_table_add(struct text_table *t, const char *const *cells)
{
        char **row;

        if (!t)
                return;
        if (t->n_rows == t->rows_room) {
                size_t room = MAX(t->rows_room * 2, (size_t)16);
                void *p = reallocarray(t->cells, room * t->n_columns, sizeof(*t->cells));

                if (!p) {
                        t->incomplete = true;
                        return;
                }
                t->cells = p;
                p = reallocarray(t->colors, room, sizeof(*t->colors));
                if (!p) {
                        t->incomplete = true;
                        return;
                }
                t->colors = p;
                t->rows_room = room;
        }
        row = t->cells + t->n_rows * t->n_columns;
        for (size_t i = 0; i < t->n_columns; i++)
                row[i] = printable(cells[i]);
        t->colors[t->n_rows] = COLOR_NONE;
        t->n_rows++;
}

void text_table_color(struct text_table *t, enum color color, bool colored)
{
        if (t && t->n_rows > 0 && colored)
                t->colors[t->n_rows - 1] = color;
}

static void measure(const struct text_table *t, size_t ret_widths[static TABLE_MAX_COLUMNS])
{
        memset(ret_widths, 0, TABLE_MAX_COLUMNS * sizeof(*ret_widths));
        for (size_t i = 0; i < t->n_rows * t->n_columns; i++)
                if (t->cells[i])
                        ret_widths[i % t->n_columns] =
                                MAX(ret_widths[i % t->n_columns], human_width(t->cells[i]));
}

/* Returns the number of bytes of the first `columns` code points. */
static size_t bytes_of(const char *text, size_t columns)
{
        size_t i, n = 0;

        for (i = 0; text[i]; i++) {
                n += ((unsigned char)text[i] & 0xc0) != 0x80;
                if (n > columns)
                        break;
        }
        return i;
}

/* Shortens "/very/long/name" to "/ve..name", because names differ at their ends. */
static void shorten(char *text, size_t columns)
{
        size_t width = human_width(text), head, from;

        if (width <= columns)
                return;
        head = bytes_of(text, (columns - 2) / 2);
        from = bytes_of(text, width - (columns - 2 - (columns - 2) / 2));
        memcpy(text + head, "..", 2); /* fits: more than two bytes are left out */
        memmove(text + head + 2, text + from, strlen(text + from) + 1);
}

void text_table_fit(struct text_table *t, size_t columns)
{
        enum { LEAST = 8 };
        size_t widths[TABLE_MAX_COLUMNS], all = 0;

        if (!t || columns == 0)
                return;
        measure(t, widths);
        for (size_t i = 0; i < t->n_columns; i++)
                all += widths[i] + (i > 0 ? 2 : 0);
        if (all <= columns)
                return;
        columns = widths[0] - MIN(widths[0], all - columns);
        for (size_t row = 0; row < t->n_rows; row++)
                if (t->cells[row * t->n_columns])
                        shorten(t->cells[row * t->n_columns], MAX(columns, (size_t)LEAST));
}

void text_table_print(const struct text_table *t, const char *indent, FILE *out)
{
        size_t widths[TABLE_MAX_COLUMNS];

        if (!t) {
                fprintf(out, "%s(out of memory)\n", indent);
                return;
        }
        measure(t, widths);
        for (size_t row = 0; row < t->n_rows; row++) {
                size_t owed = 0; /* spaces pending before the next text, so that no line ends
                                    with spaces */

                fprintf(out, "%s%s", indent, color_begin(t->colors[row], true));
                for (size_t column = 0; column < t->n_columns; column++) {
                        const char *cell = t->cells[row * t->n_columns + column];
                        size_t pad;

                        if (!cell)
                                cell = "?";
                        pad = widths[column] - MIN(widths[column], human_width(cell));
                        if (t->columns[column] == 'r')
                                owed += pad;
                        if (*cell) {
                                fprintf(out, "%*s%s", (int)owed, "", cell);
                                owed = 0;
                        }
                        if (t->columns[column] != 'r')
                                owed += pad;
                        owed += 2;
                }
                fprintf(out, "%s\n", color_end(t->colors[row], true));
        }
        if (t->incomplete)
                fprintf(out, "%s(out of memory: rows are missing)\n", indent);
}
