/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the results of a simulated fleet: a table, JSON, a plot. */
#pragma once

#include "simulate-arguments.h"

/* Print the results, one for each of the arguments' numbers of hosts. Return an exit status. */
int fleet_report_text(const struct simulate_arguments *a, const struct fleet *f,
                      const struct fleet_result *results);
int fleet_report_json(const struct simulate_arguments *a, const struct fleet *f,
                      const struct fleet_result *results);
/* Plots the results as SVG into a->svg, or in characters on standard output. Returns an exit
 * status. */
int fleet_report_chart(const struct simulate_arguments *a, const struct fleet *f,
                       const struct fleet_result *results, bool as_svg);
