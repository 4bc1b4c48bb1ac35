/* SPDX-License-Identifier: Apache-2.0 */
/* Is the daemon ready, is it degraded, and why? See health.c. Loop thread. */
#pragma once

#include "report/sources.h"

struct store_volume_stats;

enum { STATUS_TEXT = 512, STATUS_DEGRADED_MAX = 48 };

struct status_health {
        const char *state; /* "starting", "ready", "offline": no volume of the store is in use,
                              "stopping" */
        bool ready;
        unsigned n;
        struct {
                enum metrics_degradation reason;
                char text[STATUS_TEXT];
        } degraded[STATUS_DEGRADED_MAX];
};
void status_get_health(const struct status_sources *from, struct status_health *ret);
/* "up", "bypassed", "hung", "suspended", "resuming". */
const char *status_volume_state(const struct store_volume_stats *p);
/* For http. What /readyz says begins with "ready" or "not ready: ", with a line for each thing that
 * is degraded; /healthz is "ok" as long as loop and workers run. The text stays until the next
 * call. */
bool status_is_ready(void *userdata, const char **ret_text);
bool status_is_healthy(void *userdata, const char **ret_text);
