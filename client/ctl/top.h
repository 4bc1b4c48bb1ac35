/* SPDX-License-Identifier: Apache-2.0 */
/* What `top` shows: the figures of one interval as an object of JSON, which --json prints as it is,
 * and the same laid out for people. Pure functions; when memory runs out, members are missing. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdio.h>

#include "samples.h"

/* `before`: the page of `seconds` earlier; NULL: there is none, and rates are null. A rate that two
 * pages do not give is null, too. Rows of volumes, tenants and namespaces are in the order of their
 * traffic. */
cJSON *top_figures(const struct samples *now, const struct samples *before, double seconds);

/* At most `lines` lines; 0: all. What is left out of a table is counted in its last line. Long
 * names are shortened to fit `columns`; 0: they are not. */
void top_print(const cJSON *figures, unsigned lines, unsigned columns, bool colored, FILE *out);

/* How many rows of each of `n` tables are shown in `lines` lines: a line each in turn, while there
 * are any. */
void top_share_lines(unsigned lines, const unsigned wanted[], unsigned n, unsigned ret[]);
