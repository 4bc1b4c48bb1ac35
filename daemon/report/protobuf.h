/* SPDX-License-Identifier: Apache-2.0 */
/* The metrics as protobuf, for a Prometheus that asks for native histograms. See protobuf.c. Loop
 * thread. */
#pragma once

#include <stdio.h>

#include "report/metrics.h"

/* One io.prometheus.client.MetricFamily after the other, each behind its length. Without memory, a
 * page that cannot be read. */
void metrics_print_protobuf(const struct metrics *s, FILE *out);
