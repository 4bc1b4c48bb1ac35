/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the figures of one interval for `top` as a JSON object, which --json prints, and formats
 * them for people. Pure functions; if memory runs out, members are missing. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdio.h>

#include "samples.h"

/* Computes the figures of an interval. `before`: the page of `seconds` earlier; NULL: there is
 * none, and rates are null, as are rates that two pages do not determine. Rows of volumes, tenants
 * and namespaces are ordered by traffic. */
cJSON *top_figures(const struct samples *now, const struct samples *before, double seconds);

/* Prints at most `lines` lines; 0: all. The last line of a table counts its omitted rows. Long
 * names are shortened to fit `columns`; 0: they are not. */
void top_print(const cJSON *figures, unsigned lines, unsigned columns, bool colored, FILE *out);

/* Distributes `lines` lines among `n` tables: one line to each in turn, while tables want more. */
void top_share_lines(unsigned lines, const unsigned wanted[], unsigned n, unsigned ret[]);
