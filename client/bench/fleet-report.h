/* SPDX-License-Identifier: Apache-2.0 */
/* What a simulated fleet is printed as: a table, JSON, a plot. */
#pragma once

#include "simulate-arguments.h"

/* `results`: one for each of the arguments' hosts. Exit statuses. */
int fleet_report_text(const struct simulate_arguments *a, const struct fleet *f,
                      const struct fleet_result *results);
int fleet_report_json(const struct simulate_arguments *a, const struct fleet *f,
                      const struct fleet_result *results);
void fleet_report_chart(const struct simulate_arguments *a, const struct fleet *f,
                        const struct fleet_result *results, FILE *out);
