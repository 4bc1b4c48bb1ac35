/* SPDX-License-Identifier: Apache-2.0 */
/* Charts of lines in characters, 80 columns wide. A point is the mark of its line, so that lines
 * differ without colour; dots connect points. A separate mark shows where points of several
 * lines coincide. */
#include <math.h>
#include <string.h>

#include "checked.h"
#include "chart.h"
#include "color.h"

enum {
        LEFT = 11, /* width of the labels of the y axis */
        WIDTH = 67,
        HEIGHT = 15,
        FEW_POINTS = 16, /* number of points above which labels are farther apart */
        INDENT = 2,
        EMPTY = 0,
        DOT = 1,
        SEVERAL = 2,
        FIRST_MARK = 3, /* value of a cell with a point: FIRST_MARK plus the series of its line */
};

static const char marks[CHART_SERIES] = { 'o', 'x', '#', '*', '+' };

struct canvas {
        unsigned char cells[HEIGHT][WIDTH]; /* cells by row, from the top */
        unsigned char series[HEIGHT][WIDTH];
        double least_x, most_x, most_y;
        bool is_log;
};

static double place(const struct canvas *c, double x)
{
        double from = c->is_log ? log(c->least_x) : c->least_x;
        double to = c->is_log ? log(c->most_x) : c->most_x;

        return to > from ? ((c->is_log ? log(x) : x) - from) / (to - from) : 0.5;
}

static unsigned column_of(const struct canvas *c, double x)
{
        return (unsigned)lround(MIN(MAX(place(c, x), 0.0), 1.0) * (WIDTH - 1));
}

static unsigned row_of(const struct canvas *c, double y)
{
        return HEIGHT - 1 - (unsigned)lround(MIN(MAX(y / c->most_y, 0.0), 1.0) * (HEIGHT - 1));
}

static void set_dot(struct canvas *c, unsigned row, unsigned column, unsigned series)
{
        if (c->cells[row][column] != EMPTY)
                return;
        c->cells[row][column] = DOT;
        c->series[row][column] = (unsigned char)series;
}

static void set_mark(struct canvas *c, unsigned row, unsigned column, unsigned series)
{
        unsigned char *cell = &c->cells[row][column];

        if (*cell > DOT && *cell != FIRST_MARK + series)
                *cell = SEVERAL;
        else
                *cell = (unsigned char)(FIRST_MARK + series);
        c->series[row][column] = (unsigned char)series;
}

/* Connects two points by dots, one in each column and in each row that the line passes, up to the
 * second point. */
static void connect(struct canvas *c, const struct chart_point *a, const struct chart_point *b,
                    unsigned series)
{
        unsigned from = column_of(c, a->x), to = column_of(c, b->x), last = row_of(c, a->y);

        for (unsigned column = from + 1; column <= to; column++) {
                double part = (double)(column - from) / (double)(to - from);
                unsigned row = row_of(c, a->y + (b->y - a->y) * part);

                for (; last + 1 < row; last++)
                        set_dot(c, last + 1, column, series);
                for (; last > row + 1; last--)
                        set_dot(c, last - 1, column, series);
                set_dot(c, row, column, series);
                last = row;
        }
}

static void draw(const struct chart_panel *p, struct canvas *c)
{
        const double step = chart_grid_step(p);

        *c = (struct canvas){ .least_x = INFINITY };
        chart_limits(p, &c->least_x, &c->most_x, &c->most_y, &c->is_log);
        c->most_y = ceil(c->most_y / step - 1e-9) * step;
        for (size_t i = 0; i < p->n_lines; i++)
                for (size_t k = 0; k < p->lines[i].n; k++)
                        set_mark(c, row_of(c, p->lines[i].points[k].y),
                                 column_of(c, p->lines[i].points[k].x), p->lines[i].series);
        for (size_t i = 0; i < p->n_lines; i++)
                for (size_t k = 1; k < p->lines[i].n; k++)
                        connect(c, &p->lines[i].points[k - 1], &p->lines[i].points[k],
                                p->lines[i].series);
}

/* --- printing --- */

static void begin_color(unsigned series, bool colored, FILE *out)
{
        static const char *const codes[CHART_SERIES] = { "34", "33", "32", "90", "35" };

        if (colored)
                fprintf(out, "\033[%sm", codes[series]);
}

static void end_color(bool colored, FILE *out)
{
        if (colored)
                fputs("\033[0m", out);
}

static void print_cell(const struct canvas *c, unsigned row, unsigned column, bool colored,
                       FILE *out)
{
        unsigned char cell = c->cells[row][column];

        if (cell == EMPTY) {
                fputc(' ', out);
                return;
        }
        if (cell == SEVERAL) {
                fputc('&', out);
                return;
        }
        begin_color(c->series[row][column], colored, out);
        fputc(cell == DOT ? '.' : marks[cell - FIRST_MARK], out);
        end_color(colored, out);
}

static void print_rows(const struct chart_panel *p, const struct canvas *c, bool colored, FILE *out)
{
        double step = chart_grid_step(p);

        for (unsigned row = 0; row < HEIGHT; row++) {
                char label[32] = "";
                unsigned end = WIDTH;

                for (unsigned i = 0; (double)i * step <= c->most_y * 1.0001; i++)
                        if (row_of(c, (double)i * step) == row)
                                snprintf(label, sizeof(label), "%.6g%s%s", (double)i * step,
                                         *p->unit ? " " : "", p->unit);
                while (end > 0 && c->cells[row][end - 1] == EMPTY)
                        end--;
                fprintf(out, "%*s %c", LEFT - 2, label, *label ? '+' : '|');
                for (unsigned column = 0; column < end; column++)
                        print_cell(c, row, column, colored, out);
                fputc('\n', out);
        }
}

/* Prints the labels of the x axis that have room. */
static void print_axis(const struct chart_panel *p, const struct canvas *c, FILE *out)
{
        /* all lines have points at the same values of x */
        const struct chart_line *first = &p->lines[0];
        char ticks[WIDTH + 1], labels[LEFT + WIDTH + 8];
        int free_from = 0, between = first->n > FEW_POINTS ? 6 : 2;

        memset(ticks, '-', WIDTH);
        memset(labels, ' ', sizeof(labels));
        ticks[WIDTH] = '\0';
        for (size_t k = 0; k < first->n; k++) {
                int column = (int)column_of(c, first->points[k].x), width;
                const char *mark = first->points[k].mark;

                width = (int)strlen(mark);
                if (width >= WIDTH / 2)
                        continue;
                column = MAX(LEFT + column - width / 2, 0);
                column = MIN(column, (int)sizeof(labels) - 1 - width);
                if (column < free_from)
                        continue;
                ticks[column_of(c, first->points[k].x)] = '+';
                memcpy(labels + column, mark, (size_t)width);
                free_from = column + width + between;
        }
        labels[MAX(free_from - between, 0)] = '\0';
        fprintf(out, "%*s+%s\n%s\n", LEFT - 1, "", ticks, labels);
        fprintf(out, "%*s%s%s\n",
                LEFT + MAX((WIDTH - (int)strlen(p->x_title) - (c->is_log ? 13 : 0)) / 2, 0), "",
                p->x_title, c->is_log ? ", logarithmic" : "");
}

static bool has_series(const struct chart_panel *p, unsigned series)
{
        for (size_t i = 0; i < p->n_lines; i++)
                if (p->lines[i].series == series)
                        return true;
        return false;
}

static void print_legend(const struct chart *chart, const struct chart_panel *p,
                         const struct canvas *c, bool colored, FILE *out)
{
        bool meet = memchr(c->cells, SEVERAL, sizeof(c->cells)) != NULL;

        const char *between = "";

        fprintf(out, "%*s", LEFT, "");
        for (unsigned series = 0; series < CHART_SERIES; series++) {
                if (!has_series(p, series))
                        continue;
                fputs(between, out);
                begin_color(series, colored, out);
                fputc(marks[series], out);
                end_color(colored, out);
                fprintf(out, " %s", chart->series[series]);
                between = "   ";
        }
        fprintf(out, "%s\n", meet ? "   & several" : "");
}

void chart_text(const struct chart *chart, FILE *out)
{
        bool colored = color_wanted(out);
        struct canvas canvas;

        for (size_t i = 0; i < chart->n; i++) {
                const struct chart_panel *p = &chart->panels[i];

                if (p->n_lines == 0)
                        continue;
                draw(p, &canvas);
                fprintf(out, "\n%*s%s\n", INDENT, "", p->title);
                print_legend(chart, p, &canvas, colored, out);
                print_rows(p, &canvas, colored, out);
                print_axis(p, &canvas, out);
        }
}
