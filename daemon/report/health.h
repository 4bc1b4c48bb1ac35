/* SPDX-License-Identifier: Apache-2.0 */
/* Determines whether the daemon is ready or degraded, and why; see health.c. Loop thread. */
#pragma once

#include "report/sources.h"

struct store_volume_stats;

enum { STATUS_TEXT = 512, STATUS_DEGRADED_MAX = 48 };

struct status_health {
        const char *state; /* "starting", "ready", "offline" (no volume is in use) or "stopping" */
        bool ready;
        unsigned n;
        struct {
                enum metrics_degradation reason;
                char text[STATUS_TEXT];
        } degraded[STATUS_DEGRADED_MAX];
};
/* Determines the state, and lists the first STATUS_DEGRADED_MAX degradations; further ones are left
 * out. */
void status_get_health(const struct status_sources *from, struct status_health *ret);
/* Returns "up", "bypassed", "hung", "suspended" or "resuming". "hung" is a bypassed volume with
 * operations that its device has not answered yet. */
const char *status_volume_state(const struct store_volume_stats *p);
/* Callbacks for http. The text of /readyz begins with "ready" or "not ready: " and has a line for
 * each degradation. The text of /healthz is "ok" while the loop and the workers run. Each text is
 * valid until the next call. */
bool status_is_ready(void *userdata, const char **ret_text);
bool status_is_healthy(void *userdata, const char **ret_text);
