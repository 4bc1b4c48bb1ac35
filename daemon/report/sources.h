/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the daemon that the status and the metrics are read from. server.c fills it in once.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "report/metrics.h"

struct cJSON;
struct config;
struct service;
struct http;
struct keep;
struct learned;
struct populate;
struct sessions;

/* The parts; http may be NULL. */
struct status_sources {
        const struct config *config;
        const struct service *service; /* of all tenants */
        struct sessions *sessions;
        const struct http *http;
        uint64_t started_unix_ms, started_ns;
        const struct populate *populate;
        const struct learned *learned;
        const struct keep *keep;  /* NULL: there is none */
        const bool *keep_ready;   /* will the pools be handed on? */
        const char *keep_why_not; /* if not */
        uint64_t config_reloads, config_reloads_refused;
        struct cJSON *reload_pending; /* texts of changes that need a restart; the server's */
        uint64_t workers_stuck_ns;    /* for how long some worker has not advanced; 0: they do */
        bool ready, draining;         /* ready: it has started */
        struct histogram loop[METRICS_LOOP]; /* ns */
        uint64_t loop_spun_ns;
        const uint8_t *instance; /* WIRE_INSTANCE_BYTES */
};
