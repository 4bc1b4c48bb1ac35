/* SPDX-License-Identifier: Apache-2.0 */
/* The namespaces in the status and the metrics: the largest ones by name, sums of the others, and
 * how near the limits are. Size and cost do not depend on their number, except for one pass over
 * the list. Loop thread. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "report/metrics.h"

struct client;
struct service;

/* `viewer`: the client that asks, or NULL: HTTP. Clients who are no admins see those of their
 * tenant. `named`: names are shown. */
struct status_namespaces {
        const struct client *viewer;
        bool named;
};

/* Members "namespaces" and "namespace_usage" of the status. */
void status_add_namespaces(cJSON *root, const struct service *service,
                           const struct status_namespaces *scope);
/* The metrics of the limits, and those by namespace. */
void status_collect_namespace_limits(const struct service *service,
                                     const struct status_namespaces *scope, struct metrics *s);
void status_collect_namespaces(const struct service *service, const struct status_namespaces *scope,
                               struct metrics *s);
/* The name of the tenant with this number in the store. */
const char *status_tenant_name(const struct service *service, uint16_t store_tenant);
