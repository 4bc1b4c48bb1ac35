/* SPDX-License-Identifier: Apache-2.0 */
/* The metrics: metrics.def is the one table from which the Prometheus page, the OpenMetrics page,
 * `kvcachectl stats`, and the documentation are made.
 *
 * report/collect.c fills a struct metrics (a snapshot, plain numbers); the functions here render
 * it, and read nothing else of the daemon. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/histogram.h"
#include "transfer.h"

enum { METRICS_OPS = 40, METRICS_STATUSES = 24 }; /* wire ops and statuses, by number */

/* Indices of the other members that are arrays. */
enum {
        METRICS_TIER_MEMORY,
        METRICS_TIER_DISK,
        METRICS_TIERS,
        METRICS_TIER_REMOTE = METRICS_TIERS, /* of hits only */
        METRICS_HIT_TIERS
};
enum { METRICS_HINTS = 7 };  /* HINTS of tenant.h */
enum { METRICS_GOT = 5 };    /* GOT of tenant.h */
enum { METRICS_QUEUED = 3 }; /* TRANSFERS_SERIES of io/transfers.h */
enum { METRICS_KEPT = 5 };   /* verified, then by enum keep_refusal */
enum { METRICS_MISSES = 6 }; /* by enum cache_miss_reason */
const char *metrics_miss_reason(unsigned i);
/* What admission has answered. */
enum {
        METRICS_ADMITTED_FIRST,
        METRICS_ADMITTED_AGAIN,
        METRICS_NOT_ADMITTED_FIRST,
        METRICS_NOT_ADMITTED_DRY,
        METRICS_ADMISSIONS
};
enum { METRICS_LOOKUPS_DAEMON, METRICS_LOOKUPS_CLIENT, METRICS_LOOKUPS };
enum { METRICS_FORM_MAP, METRICS_FORM_INTO, METRICS_FORMS };
enum { METRICS_ACKS = 3 };   /* by enum wire_ack */
enum { METRICS_IO_OPS = 5 }; /* by enum kio_op */
/* Transfers of chunks, and how they ended: one of the first, by enum transfer_result. */
enum { METRICS_TRANSFERS = 20, METRICS_TRANSFER_OPS = METRICS_TRANSFERS * TRANSFER_RESULTS };
enum { METRICS_TRANSFER_NAME = 96 };
enum {
        METRICS_REFUSED_LIMIT,
        METRICS_REFUSED_CREDENTIALS,
        METRICS_REFUSED_HANDSHAKE,
        METRICS_REFUSALS
};
enum {
        METRICS_ENDED_CLOSED,
        METRICS_ENDED_BAD_FRAME,
        METRICS_ENDED_TIMEOUT,
        METRICS_ENDED_SHUTDOWN,
        METRICS_ENDINGS
};
enum {
        METRICS_WRITTEN_PAYLOAD,
        METRICS_WRITTEN_TABLE,
        METRICS_WRITES,
        METRICS_WRITTEN_PREWRITE = METRICS_WRITES,
        METRICS_WRITTEN
};
enum { METRICS_ERROR_READ, METRICS_ERROR_WRITE, METRICS_ERROR_SYNC, METRICS_STORE_ERRORS };

/* Why the daemon is degraded. */
enum metrics_degradation {
        METRICS_DEGRADED_STORE_OFFLINE,
        METRICS_DEGRADED_VOLUME_FAILED,
        METRICS_DEGRADED_VOLUME_HUNG,
        METRICS_DEGRADED_VOLUME_SUSPENDED,
        METRICS_DEGRADED_VOLUME_RESUMING,
        METRICS_DEGRADED_VOLUME_FULL,
        METRICS_DEGRADED_VOLUME_CHECKSUMS,
        METRICS_DEGRADED_IO_FALLBACK,
        METRICS_DEGRADED_IO_BUFFERED,
        METRICS_DEGRADED_IO_UNREGISTERED,
        METRICS_DEGRADED_POOL_SHORT,
        METRICS_DEGRADED_HTTP_OFF,
        METRICS_DEGRADED_REMOTE_OFFLINE,
        METRICS_DEGRADED_REMOTE_FULL,
        METRICS_DEGRADATIONS
};

enum { METRICS_SPIN_LOOP, METRICS_SPIN_WORKERS, METRICS_SPIN };
enum { METRICS_REGISTERED_POOL, METRICS_REGISTERED_REGION, METRICS_REGISTERED };
/* What the loop did: all of an iteration but its sleep, and parts of it. */
enum {
        METRICS_LOOP_ITERATION,
        METRICS_LOOP_COSTLY,
        METRICS_LOOP_PURGE,
        METRICS_LOOP_PURGE_MEMORY,
        METRICS_LOOP_HTTP,
        METRICS_LOOP
};

enum { METRICS_STAGES = 6 }; /* by enum stage */
enum { METRICS_TENANTS = 16, METRICS_TENANT_NAME = 64 };
enum { METRICS_RESOURCES = 15 }; /* by enum quota_thing */
enum { METRICS_NOT_LENT = 4 };   /* by enum wire_not_lent, from 1 on */
enum { METRICS_LOAN_RIGHT, METRICS_LOAN_VOID, METRICS_LOAN_ABANDONED, METRICS_LOAN_ENDS };
/* The shared tier. */
enum {
        METRICS_REMOTE_HIT,
        METRICS_REMOTE_MISS,
        METRICS_REMOTE_LATE,
        METRICS_REMOTE_NO_ENGINE,
        METRICS_REMOTE_NO_ROOM,
        METRICS_REMOTE_NO_GENERATION,
        METRICS_REMOTE_GETS
};
enum {
        METRICS_REMOTE_WRITTEN,
        METRICS_REMOTE_EXISTING,
        METRICS_REMOTE_DROPPED, /* then by reason, as of remote_stats.dropped */
        METRICS_REMOTE_PUTS = METRICS_REMOTE_DROPPED + 4
};
enum { METRICS_REMOTE_OFFERS = 3 };     /* by enum remote_reason */
enum { METRICS_REMOTE_REJECTIONS = 5 }; /* by enum remote_rejection, from 1 on */
enum { METRICS_REMOTE_OPS = 4 };        /* by enum backend_op_kind */
enum { METRICS_REMOTE_READ, METRICS_REMOTE_WRITE, METRICS_REMOTE_WAYS };
enum { METRICS_REMOTE_OWN, METRICS_REMOTE_OTHER, METRICS_REMOTE_PURGES };
/* What a descriptor that the daemon has open on behalf of a client is for. */
enum metrics_descriptor {
        METRICS_FD_CONNECTION,
        METRICS_FD_STAGING,
        METRICS_FD_DEFERRED_REQUEST,
        METRICS_FD_REGISTRATION,
        METRICS_FD_UNSENT_REPLY,
        METRICS_FD_CLOSING,
        METRICS_DESCRIPTORS,
};
enum { METRICS_HTTP_401, METRICS_HTTP_429, METRICS_HTTP_REFUSED };
enum { METRICS_VOLUMES = 16, METRICS_VOLUME_NAME = 256 };
/* The largest ones; then the sum of all others. */
enum { METRICS_NAMESPACES = 20, METRICS_NAMESPACE_SERIES, METRICS_NAMESPACE_NAME = 832 };
enum { METRICS_NAMESPACE_SCOPES = 4 }; /* by enum census_scope */

struct metrics {
        /* Values of labels that the configuration gives; "": none. Harmless in every format. */
        char tenant_names[METRICS_TENANTS][METRICS_TENANT_NAME];
        char volume_names[METRICS_VOLUMES][METRICS_VOLUME_NAME];
        char namespace_names[METRICS_NAMESPACE_SERIES][METRICS_NAMESPACE_NAME];
        /* Of transfers, "path,layout,technology", and with ",result". */
        char transfer_names[METRICS_TRANSFERS][METRICS_TRANSFER_NAME];
        char transfer_op_names[METRICS_TRANSFER_OPS][METRICS_TRANSFER_NAME];
#define METRICS_GAUGE(member, name, unit, help)                          double member;
#define METRICS_COUNTER(member, name, unit, help)                        double member;
#define METRICS_COUNTER_BY(member, name, unit, label, values, n, help)   double member[n];
#define METRICS_GAUGE_BY(member, name, unit, label, values, n, help)     double member[n];
#define METRICS_HISTOGRAM_BY(member, name, unit, label, values, n, help) struct histogram member[n];
#define METRICS_AGES_BY(member, name, unit, label, values, n, help)      struct histogram member[n];
#define METRICS_PROCESS_GAUGE(member, name, unit, help)                  double member;
#define METRICS_PROCESS_COUNTER(member, name, unit, help)                double member;
#define METRICS_INFO(member, name, help)                                 char member[512]; /* label text: a="b",c="d"; escaped */
#include "report/metrics.def"
#undef METRICS_GAUGE
#undef METRICS_COUNTER
#undef METRICS_COUNTER_BY
#undef METRICS_GAUGE_BY
#undef METRICS_HISTOGRAM_BY
#undef METRICS_AGES_BY
#undef METRICS_PROCESS_GAUGE
#undef METRICS_PROCESS_COUNTER
#undef METRICS_INFO
};

enum metrics_type { METRICS_TYPE_COUNTER, METRICS_TYPE_GAUGE, METRICS_TYPE_HISTOGRAM };

/* The edge of a bucket that a page shows, in what the histogram counts, and as the text formats
 * have it in seconds or bytes. */
struct metrics_edge {
        uint64_t value;
        const char *le;
};

struct metrics_buckets {
        double sum;    /* in seconds or bytes */
        bool of_bytes; /* it holds one less than each value; else nanoseconds */
        const struct metrics_edge *of;
        size_t n;
};

/* Each family by its full name, and after it its samples, with their labels as `a="x",b="y"`. */
struct metrics_visitor {
        void (*family)(void *userdata, const char *name, const char *help, enum metrics_type type);
        void (*number)(void *userdata, const char *labels, double value);
        void (*histogram)(void *userdata, const char *labels, const struct histogram *h,
                          const struct metrics_buckets *buckets);
};
void metrics_visit(const struct metrics *s, const struct metrics_visitor *visitor, void *userdata);

/* Text exposition format 0.0.4, or OpenMetrics 1.0.0 (ends with "# EOF"). HELP and TYPE for every
 * family, whether it has moved or not. Numbers are locale-independent. */
void metrics_print_prometheus(const struct metrics *s, FILE *out);
void metrics_print_openmetrics(const struct metrics *s, FILE *out);
/* One flat JSON object: {"kvcache_puts_total": 12, "kvcache_requests_total": {"PUT": 3, ...}, ...};
 * histograms as
 * {"count": n, "sum": x, "p50": x, "p90": x, "p99": x}, in the metric's unit; an info as {"label":
 * "value", ...}. */
void metrics_print_json(const struct metrics *s, FILE *out);
/* The numbers whose members are called SECTION_KEY: those without a label, or, where the label is
 * the section, number `i` of them. In the order of the table. */
void metrics_walk(const struct metrics *s, const char *section, unsigned i,
                  void (*each)(void *userdata, const char *key, double value), void *userdata);
/* "volume_suspended": the label of kvcache_degraded. */
const char *metrics_degradation_name(enum metrics_degradation reason);

/* As the label says it: "staging_bytes". */
const char *metrics_resource_name(unsigned resource);

/* Appends `key="value"` with the value escaped as both text formats want it, comma first if needed.
 * A value that does not fit is left out together with its key. `key` is a label name. */
void metrics_info_add(char *info, size_t room, const char *key, const char *value);
