/* SPDX-License-Identifier: Apache-2.0 */
/* Plots a replay: the hit ratio and the time of a request, over the requests of the workload. */
#pragma once

#include "replay.h"

/* Plots as SVG into the file `svg` ("-": standard output), or in characters if that is NULL.
 * Returns an exit status. */
int replay_plot(const struct replay_result *result, const char *workload, const char *svg);
