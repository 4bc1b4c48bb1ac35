/* SPDX-License-Identifier: Apache-2.0 */
/* Collects the snapshot of all metrics from all parts. Loop thread. */
#pragma once

#include "report/sources.h"

struct tenant;

/* `only`: what clients of this tenant may see; NULL: all. */
void status_collect(const struct status_sources *from, const struct tenant *only,
                    struct metrics *ret);
