/* SPDX-License-Identifier: Apache-2.0 */
/* Collects the snapshot of all metrics. Loop thread. */
#pragma once

#include "report/sources.h"

struct tenant;

/* Fills *ret. With `only`, it contains only the metrics that clients of this tenant may see; NULL:
 * everything. */
void status_collect(const struct status_sources *from, const struct tenant *only,
                    struct metrics *ret);
