/* SPDX-License-Identifier: Apache-2.0 */
/* What the daemon looks like from outside, gathered from its parts: the metrics' snapshot, and the
 * status as JSON. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "report/metrics.h"
#include "lookup/tally.h"
#include "wire.h"

struct cache_stats;
struct client;
struct config;
struct dispatch_env;
struct pool_stats;
struct http;
struct populate;
struct sessions;
struct store_path_stats;

/* The parts; http may be NULL. */
struct status_sources {
        const struct config *config;
        const struct dispatch_env *env; /* of all tenants */
        struct sessions *sessions;
        const struct http *http;
        uint64_t started_unix_ms, started_ns;
        const struct populate *populate;
        uint64_t config_reloads;
        uint64_t workers_stuck_ns; /* for how long some worker has not advanced; 0: they do */
        bool ready, draining;      /* ready: it has started */
        struct histogram loop[STATS_LOOP]; /* ns */
        const uint8_t *instance;           /* WIRE_INSTANCE_BYTES */
};

/* `userdata` of these is a struct status_sources: callbacks for http and dispatch. */
void status_print_metrics(void *userdata, bool openmetrics, FILE *out);
void status_print_status(
        void *userdata,
        FILE *out); /* one JSON object; numbers are bytes, counts or seconds as the names say */
/* Of other tenants than the client's, and of what only they can have, an admin alone is told. */
void status_report(void *userdata, const struct client *client, enum wire_report what, FILE *out);

/* The lines of a start: what it runs on, what it found. */
void status_log_started(const struct status_sources *from);

/* --- health.c --- */

enum { STATUS_TEXT = 512, STATUS_DEGRADED_MAX = 24 };

struct status_health {
        const char *state; /* "starting", "ready", "offline": no path of the store is in use,
                              "stopping" */
        bool ready;
        unsigned n;
        struct {
                enum stats_degradation reason;
                char text[STATUS_TEXT];
        } degraded[STATUS_DEGRADED_MAX];
};
void status_get_health(const struct status_sources *from, struct status_health *ret);
/* "up", "bypassed", "hung", "suspended", "resuming". */
const char *status_path_state(const struct store_path_stats *p);
/* For http. What /readyz says begins with "ready" or "not ready: ", with a line for each thing that
 * is degraded; /healthz is "ok" as long as loop and workers run. The text stays until the next
 * call. */
bool status_is_ready(void *userdata, const char **ret_text);
bool status_is_healthy(void *userdata, const char **ret_text);

/* --- collect.c --- */

/* `only`: what clients of this tenant may see; NULL: all. */
void status_collect(const struct status_sources *from, const struct dispatch_env *only,
                    struct stats *ret);
/* Sums over all tenants. */
void status_collect_cache(const struct dispatch_env *env, struct cache_stats *ret);
void status_collect_pools(const struct dispatch_env *env, struct pool_stats *ret);
/* By whomever they were answered. */
struct tally_keys status_lookups(const struct tally_keys of[TALLY_KINDS]);
/* Of all tenants, as of the last sessions_count_lookups(): which part of the keys asked for was
 * there, of those looked up, or, while there are none, of those got. Never of both: a client that
 * looks a key up and then gets it has asked for it once. "look-ups" or "gets"; NULL: none were
 * asked for. */
const char *status_hit_ratio(const struct dispatch_env *env, double *ret_ratio);
