/* SPDX-License-Identifier: Apache-2.0 */
/* What is counted, and how it is told: metrics.def is the one table from which the Prometheus page,
 * the OpenMetrics page, `kvcachectl stats`, and the documentation come.
 *
 * The server collects into a struct stats (a snapshot, plain numbers); the functions here render
 * one. Nothing here reads the daemon's parts. */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "base/histogram.h"

enum { STATS_OPS = 32, STATS_STATUSES = 24 }; /* wire ops and statuses, by number */

/* Indices of the other members that are arrays. */
enum { STATS_TIER_MEMORY, STATS_TIER_DISK, STATS_TIERS };
enum { STATS_LOOKUPS_DAEMON, STATS_LOOKUPS_CLIENT, STATS_LOOKUPS };
enum { STATS_FORM_MAP, STATS_FORM_INTO, STATS_FORMS };
enum { STATS_ACKS = 3 };   /* by enum wire_ack */
enum { STATS_IO_OPS = 5 }; /* by enum kio_op */
enum { STATS_REFUSED_LIMIT, STATS_REFUSED_CREDENTIALS, STATS_REFUSED_HANDSHAKE, STATS_REFUSALS };
enum {
        STATS_ENDED_CLOSED,
        STATS_ENDED_BAD_FRAME,
        STATS_ENDED_TIMEOUT,
        STATS_ENDED_SHUTDOWN,
        STATS_ENDINGS
};
enum {
        STATS_WRITTEN_PAYLOAD,
        STATS_WRITTEN_TABLE,
        STATS_WRITES,
        STATS_WRITTEN_PREWRITE = STATS_WRITES,
        STATS_WRITTEN
};
enum { STATS_ERROR_READ, STATS_ERROR_WRITE, STATS_ERROR_SYNC, STATS_STORE_ERRORS };

/* Why the daemon is degraded. */
enum stats_degradation {
        STATS_DEGRADED_STORE_OFFLINE,
        STATS_DEGRADED_PATH_FAILED,
        STATS_DEGRADED_PATH_HUNG,
        STATS_DEGRADED_PATH_SUSPENDED,
        STATS_DEGRADED_PATH_RESUMING,
        STATS_DEGRADED_PATH_FULL,
        STATS_DEGRADED_IO_FALLBACK,
        STATS_DEGRADED_IO_BUFFERED,
        STATS_DEGRADED_IO_UNREGISTERED,
        STATS_DEGRADED_POOL_SHORT,
        STATS_DEGRADED_HTTP_OFF,
        STATS_DEGRADATIONS
};

enum { STATS_REGISTERED_POOL, STATS_REGISTERED_REGION, STATS_REGISTERED };
/* What the loop did: all of an iteration but its sleep, and parts of it. */
enum { STATS_LOOP_ITERATION, STATS_LOOP_COSTLY, STATS_LOOP_PURGE, STATS_LOOP_HTTP, STATS_LOOP };

enum { STATS_TENANTS = 16, STATS_TENANT_NAME = 64 };
enum { STATS_RESOURCES = 11 }; /* by enum tenant_thing */
enum { STATS_PATHS = 16, STATS_PATH_NAME = 256 };
/* The largest ones; then the sum of all others. */
enum { STATS_NAMESPACES = 20, STATS_NAMESPACE_SERIES, STATS_NAMESPACE_NAME = 832 };
enum { STATS_NAMESPACE_SCOPES = 4 }; /* by enum census_scope */

struct stats {
        /* Values of labels that the configuration gives; "": none. Harmless in every format. */
        char tenant_names[STATS_TENANTS][STATS_TENANT_NAME];
        char path_names[STATS_PATHS][STATS_PATH_NAME];
        char namespace_names[STATS_NAMESPACE_SERIES][STATS_NAMESPACE_NAME];
#define STATS_GAUGE(member, name, unit, help)                          double member;
#define STATS_COUNTER(member, name, unit, help)                        double member;
#define STATS_COUNTER_BY(member, name, unit, label, values, n, help)   double member[n];
#define STATS_GAUGE_BY(member, name, unit, label, values, n, help)     double member[n];
#define STATS_HISTOGRAM_BY(member, name, unit, label, values, n, help) struct histogram member[n];
#define STATS_INFO(member, name, help)                                 char member[512]; /* label text: a="b",c="d"; escaped */
#include "report/metrics.def"
#undef STATS_GAUGE
#undef STATS_COUNTER
#undef STATS_COUNTER_BY
#undef STATS_GAUGE_BY
#undef STATS_HISTOGRAM_BY
#undef STATS_INFO
};

/* Text exposition format 0.0.4, or OpenMetrics 1.0.0 (ends with "# EOF"). HELP and TYPE for every
 * family, whether it has moved or not. Numbers are locale-independent. */
void stats_print_prometheus(const struct stats *s, FILE *out);
void stats_print_openmetrics(const struct stats *s, FILE *out);
/* One flat JSON object: {"kvcache_puts_total": 12, "kvcache_requests_total": {"PUT": 3, ...}, ...};
 * histograms as
 * {"count": n, "sum": x, "p50": x, "p90": x, "p99": x}, in the metric's unit; an info as {"label":
 * "value", ...}. */
void stats_print_json(const struct stats *s, FILE *out);
/* A Markdown table of all metrics, for the documentation. */
void stats_print_documentation(FILE *out);
/* "path_suspended": the label of kvcache_degraded. */
const char *stats_degradation_name(enum stats_degradation reason);

/* As the label says it: "lane_bytes". */
const char *stats_resource_name(unsigned resource);

/* Appends `key="value"` with the value escaped as both text formats want it, comma first if needed.
 * A value that does not fit is left out together with its key. `key` is a label name. */
void stats_info_add(char *info, size_t room, const char *key, const char *value);
