/* SPDX-License-Identifier: Apache-2.0 */
/* Handles the options that plot a report: --plot prints characters, and --plot=FILE.svg and
 * --svg FILE write SVG. */
#pragma once

#include "options.h"
#include "session/chart.h"

#define PLOT_OPTION_HELP "plot the report in characters, below it; =FILE.svg: as SVG into a file"

/* Reads the argument of --plot: sets `*ret_svg` to a file, or `*ret_plots` to true if `argument` is
 * NULL. Returns false after reporting an error and setting ctl->exit_status. */
bool plot_option_read(struct ctl *ctl, const struct command *self, const char *argument,
                      bool *ret_plots, const char **ret_svg);
/* Checks that at most one of --json, --plot and "--svg -" is given, because each prints to standard
 * output. Returns EXIT_OK, or the status to end with. */
int plot_option_check(const struct ctl *ctl, const struct command *self, bool plots,
                      const char *svg);
/* Writes a chart as SVG; "-" is standard output. Returns an exit status. */
int plot_option_write(const struct chart *chart, const char *svg);
