/* SPDX-License-Identifier: Apache-2.0 */
/* Namespaces in the status and the metrics: the largest with their names, sums of the others, and
 * how close the limits are. Size and cost do not depend on the number of namespaces, except for one
 * pass over the list. Loop thread. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "lookup/counters.h"
#include "report/metrics.h"

struct client;
struct service;

/* The scope of the output. `viewer` is the requesting client, or NULL for HTTP; a client that is no
 * admin sees its own tenant only. `named`: the output contains names of namespaces. */
struct status_namespaces {
        const struct client *viewer;
        bool named;
};

/* Adds the members "namespaces" and "namespace_usage" to the status. */
void status_add_namespaces(cJSON *root, const struct service *service,
                           const struct status_namespaces *scope);
/* Collect the metrics of the limits; the second function collects also those of the largest
 * namespaces and of the others together. */
void status_collect_namespace_limits(const struct service *service,
                                     const struct status_namespaces *scope, struct metrics *s);
void status_collect_namespaces(const struct service *service, const struct status_namespaces *scope,
                               struct metrics *s);
/* Returns the lookups' keys of a namespace, and in *ret_gets the keys of its gets; zeros if nothing
 * was counted. */
struct lookup_counts status_namespace_keys(const struct service *service,
                                           const struct store_namespace *ns,
                                           struct lookup_counts *ret_gets);
/* Returns the name of the tenant with this number in the store, or "(not configured)" if the store
 * does not know the number. */
const char *status_tenant_name(const struct service *service, uint16_t store_tenant);
