/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `status`. Each takes its members out of the status and prints them: all, with what a
 * newer daemon has added, or without `detail` what belongs on one screen. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>

/* How it is done: I/O, memory, eviction. */
void status_print_io(cJSON *status, bool detail);
void status_print_memory(cJSON *status, bool detail);
void status_print_eviction(cJSON *status, bool detail);
/* The store: what is in use, its volumes, its scrubbing. */
void status_print_store(cJSON *status, bool detail);
/* What is written to disk, and what it has done since it started. */
void status_print_writes(cJSON *status, bool detail);
void status_print_totals(cJSON *status, bool detail);
/* The tier that it shares with other hosts. */
void status_print_remote(cJSON *status, bool detail);
/* Who uses the daemon: sessions, tenants, limits that were reached, namespaces. */
void status_print_sessions(cJSON *status, bool detail);
void status_print_tenants(cJSON *status, bool detail);
void status_print_limits(cJSON *status, bool detail);
void status_print_namespaces(cJSON *status, bool detail);
