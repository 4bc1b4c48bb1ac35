/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `status` that have files of their own. Each takes its members out of the status. */
#pragma once

#include <cjson/cJSON.h>

/* The store: what is in use, its volumes, its scrubbing. */
void status_print_store(cJSON *status);
/* Who uses the daemon: sessions, tenants, limits that were reached, namespaces. */
void status_print_clients(cJSON *status);
