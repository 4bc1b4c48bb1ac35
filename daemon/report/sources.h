/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the daemon from which the status and the metrics are read. The server fills in the
 * struct at startup, and keeps the state, the times and the results of reloads up to date. */
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

/* All pointers are borrowed; http and populate may be NULL. */
struct status_sources {
        const struct config *config;
        const struct service *service; /* the parts that serve all tenants */
        struct sessions *sessions;
        const struct http *http;
        char socket[109]; /* path of the listening socket, which may be inherited, so that
                           * listen.socket names another one; "@NAME" in the abstract namespace */
        uint64_t started_unix_ms, started_ns;
        const struct populate *populate;
        const struct learned *learned;
        struct namespace_history *namespaces;
        const struct keep *keep;  /* the takeover of the previous daemon's memory (keep/keep.h) */
        const bool *keep_ready;   /* whether the pools will be kept across a restart */
        const char *keep_why_not; /* the reason why they will not be kept */
        uint64_t config_reloads, config_reloads_refused;
        struct cJSON *config_files;   /* names of the files of the configuration last accepted; the
                                         server owns it */
        uint64_t config_read_unix_ms; /* Unix time just before these files were read */
        struct cJSON *reload_pending; /* texts of changes that need a restart; the server owns it */
        uint64_t workers_stuck_ns;    /* ns since a worker last advanced; 0: all workers advance */
        bool ready, draining;         /* ready: startup is complete */
        struct histogram loop[METRICS_LOOP]; /* ns that the parts of the loop's work took */
        uint64_t loop_spun_ns;   /* ns since startup for which the loop polled instead of
                                  * sleeping */
        const uint8_t *instance; /* WIRE_INSTANCE_BYTES that identify this process, as in HELLO */
};
