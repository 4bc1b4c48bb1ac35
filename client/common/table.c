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
        char **cells; /* n_rows * n_columns */
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
                t->rows_room = room;
        }
        row = t->cells + t->n_rows * t->n_columns;
        for (size_t i = 0; i < t->n_columns; i++)
                row[i] = printable(cells[i]);
        t->n_rows++;
}

void text_table_print(const struct text_table *t, const char *indent, FILE *out)
{
        size_t widths[TABLE_MAX_COLUMNS] = { 0 };

        if (!t) {
                fprintf(out, "%s(out of memory)\n", indent);
                return;
        }
        for (size_t i = 0; i < t->n_rows * t->n_columns; i++)
                if (t->cells[i])
                        widths[i % t->n_columns] =
                                MAX(widths[i % t->n_columns], human_width(t->cells[i]));

        for (size_t row = 0; row < t->n_rows; row++) {
                size_t owed = 0; /* spaces before the next text: none at a line's end */

                fputs(indent, out);
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
                fputc('\n', out);
        }
        if (t->incomplete)
                fprintf(out, "%s(out of memory: rows are missing)\n", indent);
}
