/* SPDX-License-Identifier: Apache-2.0 */
/* Collects the snapshot of all metrics. Loop thread. */
#pragma once

#include "report/sources.h"

struct tenant;

/* Fills *ret, except for the metrics of namespaces (namespaces.h). With `only`, the tenant of a
 * client that is no admin, if there are several tenants, it omits the resources, the floors and the
 * rows of other tenants, and counts hints of this tenant alone; NULL: everything. */
void status_collect(const struct status_sources *from, const struct tenant *only,
                    struct metrics *ret);
