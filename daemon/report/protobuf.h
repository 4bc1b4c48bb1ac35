/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the metrics as protobuf, for a Prometheus that requests native histograms; see protobuf.c.
 * Loop thread. */
#pragma once

#include <stdio.h>

#include "report/metrics.h"

/* Prints length-delimited io.prometheus.client.MetricFamily messages. Without memory, the output is
 * invalid and is rejected by readers. */
void metrics_print_protobuf(const struct metrics *s, FILE *out);
