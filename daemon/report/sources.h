/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the daemon from which status and metrics are read. server.c fills it in once. */
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
struct namespace_history;
struct populate;
struct sessions;

/* All pointers are borrowed; http may be NULL. */
struct status_sources {
        const struct config *config;
        const struct service *service; /* for all tenants */
        struct sessions *sessions;
        const struct http *http;
        uint64_t started_unix_ms, started_ns;
        const struct populate *populate;
        const struct learned *learned;
        struct namespace_history *namespaces;
        const struct keep *keep;  /* NULL: memory is never kept */
        const bool *keep_ready;   /* whether the pools will be kept across a restart */
        const char *keep_why_not; /* the reason if not */
        uint64_t config_reloads, config_reloads_refused;
        struct cJSON *config_files;   /* names of the files last read; the server owns it */
        uint64_t config_read_unix_ms; /* before they were read */
        struct cJSON *reload_pending; /* texts of changes that need a restart; the server owns it */
        uint64_t workers_stuck_ns;    /* how long a worker has not advanced; 0: all advance */
        bool ready, draining;         /* ready: startup is complete */
        struct histogram loop[METRICS_LOOP]; /* ns */
        uint64_t loop_spun_ns;
        const uint8_t *instance; /* WIRE_INSTANCE_BYTES */
};
