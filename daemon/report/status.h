/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon seen from outside, gathered from its parts: the metrics' snapshot, and the status as
 * JSON. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "report/http.h"
#include "report/sources.h"
#include "wire.h"

struct client;

/* `userdata` of these is a struct status_sources: callbacks for http and dispatch. */
void status_print_metrics(void *userdata, enum http_metrics format, FILE *out);
void status_print_status(
        void *userdata,
        FILE *out); /* one JSON object; numbers are bytes, counts or seconds as the names say */
/* Only an admin gets what concerns other tenants than the client's. */
void status_report(void *userdata, const struct client *client, enum wire_report what, FILE *out);

/* The log lines of startup: what the daemon runs on, what it found. */
void status_log_started(const struct status_sources *from);
