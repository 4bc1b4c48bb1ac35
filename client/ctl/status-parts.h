/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `status`. Each takes its members out of the status and prints them: with `detail`
 * all of them, including those that a newer daemon has added, otherwise those that fit on one
 * screen. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>

/* Print the daemon's operation: I/O, memory, eviction. */
void status_print_io(cJSON *status, bool detail);
void status_print_memory(cJSON *status, bool detail);
void status_print_eviction(cJSON *status, bool detail);
/* Prints the store: its use, its volumes, its scrubbing. */
void status_print_store(cJSON *status, bool detail);
/* Print the writes to disk, and totals since the daemon started. */
void status_print_writes(cJSON *status, bool detail);
void status_print_totals(cJSON *status, bool detail);
/* Prints the shared tier. */
void status_print_remote(cJSON *status, bool detail);
/* Print the daemon's users: sessions, tenants, limits that were reached, namespaces. */
void status_print_sessions(cJSON *status, bool detail);
void status_print_tenants(cJSON *status, bool detail);
void status_print_limits(cJSON *status, bool detail);
void status_print_namespaces(cJSON *status, bool detail);
