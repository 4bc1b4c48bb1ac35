/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the results of a sweep: text, JSON, CSV, a chart. */
#pragma once

#include <stdio.h>

#include "report.h"
#include "sweep.h"

/* Writes the report. `where` describes the daemon, for the heading. Returns 0 or -ENOMEM. */
int sweep_report(const struct sweep_options *o, const struct sweep_result *result,
                 const char *where, const struct report_options *how, FILE *out);
