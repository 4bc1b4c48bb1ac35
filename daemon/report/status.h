/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics and status of the daemon, gathered from its parts. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "report/http.h"
#include "report/sources.h"
#include "wire.h"

struct client;

/* Callbacks for http and request/, whose `userdata` is a struct status_sources. */
void status_print_metrics(void *userdata, enum http_metrics format, FILE *out);
void status_print_status(void *userdata,
                         FILE *out); /* one JSON object, whose names state the units */
/* Prints a report for a client. Only an admin gets rows of other tenants; totals of the daemon
 * include all tenants for other clients, too. */
void status_report(void *userdata, const struct client *client, enum wire_report what, FILE *out);

/* Logs the configuration in use and the results of startup. */
void status_log_started(const struct status_sources *from);
