/* SPDX-License-Identifier: Apache-2.0 */
/* What a sweep has measured: text, JSON, CSV, a chart. */
#pragma once

#include <stdio.h>

#include "report.h"
#include "sweep.h"

/* `where`: which daemon, for the head. 0, -ENOMEM. */
int sweep_report(const struct sweep_options *o, const struct sweep_result *result,
                 const char *where, const struct report_options *how, FILE *out);
