/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the figures of one interval for `top` as a JSON object, which --json prints, and formats
 * them for people. Pure functions; if memory runs out, members are missing. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdio.h>

#include "samples.h"

/* Computes the figures of an interval; the caller deletes the object. `before`: the page that was
 * fetched `seconds` earlier, or NULL if there is none. Rates that cannot be computed from the two
 * pages are null. Rows of operations, volumes, tenants and namespaces are ordered by traffic. */
cJSON *top_figures(const struct samples *now, const struct samples *before, double seconds);

/* Prints the head of the figures, and tables in the lines that the head leaves of `lines`; 0: no
 * limit. The last line of a table counts its omitted rows. Long names are shortened so that lines
 * of tables fit into `columns` columns; 0: names are not shortened. */
void top_print(const cJSON *figures, unsigned lines, unsigned columns, bool colored, FILE *out);

/* Distributes `lines` lines among `n` tables: assigns one line to each table in turn until each has
 * its `wanted` lines or no line is left. */
void top_share_lines(unsigned lines, const unsigned wanted[], unsigned n, unsigned ret[]);
