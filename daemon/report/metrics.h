/* SPDX-License-Identifier: Apache-2.0 */
/* The metrics. metrics.def is the table from which the Prometheus and OpenMetrics pages,
 * `kvcachectl stats` and the documentation are made.
 *
 * report/collect.c fills a struct metrics, a snapshot of plain numbers; the functions here render
 * it and read nothing else of the daemon. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/histogram.h"
#include "transfer.h"

enum { METRICS_OPS = 40, METRICS_STATUSES = 24 }; /* indexed by wire ops and statuses */

/* Indices of the members that are arrays. */
enum {
        METRICS_TIER_MEMORY,
        METRICS_TIER_DISK,
        METRICS_TIERS,
        METRICS_TIER_REMOTE = METRICS_TIERS, /* an index of hits only */
        METRICS_HIT_TIERS
};
enum { METRICS_HINTS = 13 }; /* HINTS of tenant.h */
enum { METRICS_ANNOUNCED = 5, METRICS_PREFETCHES = 8 };
enum { METRICS_GOT = 5 };    /* GOT of tenant.h */
enum { METRICS_QUEUED = 3 }; /* TRANSFERS_SERIES of io/transfers.h */
enum { METRICS_KEPT = 5 };   /* index 0: verified chunks; then by enum keep_refusal */
enum { METRICS_MISSES = 6 }; /* indexed by enum cache_miss_reason */
const char *metrics_miss_reason(unsigned i);
/* Answers about writes to the store under store.write_budget, as evict/admission.c counts them:
 * admitted although the key was seen for the first time; admitted because it was seen before;
 * refused by chance, the first time; refused because the budget was used up. */
enum {
        METRICS_ADMITTED_FIRST,
        METRICS_ADMITTED_AGAIN,
        METRICS_NOT_ADMITTED_FIRST,
        METRICS_NOT_ADMITTED_DRY,
        METRICS_ADMISSIONS
};
/* Predictions that a chain returns within twice its mean gap, by outcome: the chain was used again
 * in that time, or was not. */
enum { METRICS_RETURN_IN_TIME, METRICS_RETURN_MISSED, METRICS_RETURNS };
/* Lookups that the daemon answered, and those that clients answered themselves from the lookup
 * index. */
enum { METRICS_LOOKUPS_DAEMON, METRICS_LOOKUPS_CLIENT, METRICS_LOOKUPS };
enum { METRICS_FORM_MAP, METRICS_FORM_INTO, METRICS_FORMS };
enum { METRICS_ACKS = 3 };   /* indexed by enum wire_ack */
enum { METRICS_IO_OPS = 5 }; /* indexed by enum kio_op */
/* Transfers of chunks, each by result. The index of an operation is the index of its transfer times
 * TRANSFER_RESULTS, plus its enum transfer_result. */
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
enum { METRICS_MEMORY_PARTS = 7 }; /* STORE_MEMORY_PARTS */
enum { METRICS_ERROR_READ, METRICS_ERROR_WRITE, METRICS_ERROR_SYNC, METRICS_STORE_ERRORS };

/* Reasons why the daemon is degraded, counted by report/health.c: the values of the label of
 * kvcache_degraded. */
enum metrics_degradation {
        METRICS_DEGRADED_STORE_OFFLINE,
        METRICS_DEGRADED_VOLUME_FAILED,
        METRICS_DEGRADED_VOLUME_HUNG,
        METRICS_DEGRADED_VOLUME_SUSPENDED,
        METRICS_DEGRADED_VOLUME_RESUMING,
        METRICS_DEGRADED_VOLUME_FULL,
        METRICS_DEGRADED_VOLUME_CHECKSUMS,
        METRICS_DEGRADED_VOLUME_LOSSES,
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
/* Parts of the loop's work: a whole iteration except its sleep, and some of its steps. */
enum {
        METRICS_LOOP_ITERATION,
        METRICS_LOOP_COSTLY,
        METRICS_LOOP_PURGE,
        METRICS_LOOP_PURGE_MEMORY,
        METRICS_LOOP_HTTP,
        METRICS_LOOP
};

enum { METRICS_STAGES = 6 }; /* indexed by enum stage */
enum { METRICS_TENANTS = 16, METRICS_TENANT_NAME = 64 };
enum { METRICS_FLOORS = 15, METRICS_FLOOR_NAME = 256 };
enum { METRICS_RESOURCES = 15 }; /* indexed by enum quota_thing */
enum { METRICS_NOT_LENT = 4 };   /* indexed by enum wire_not_lent, without the first value */
/* Loans that have ended: the chunk was valid to the end; it had become void; the connection was
 * closed before GIVE_BACK. */
enum { METRICS_LOAN_RIGHT, METRICS_LOAN_VOID, METRICS_LOAN_ABANDONED, METRICS_LOAN_ENDS };
/* Gets at the shared tier by outcome; the last three are remote_stats.refused, in order. */
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
        METRICS_REMOTE_DROPPED, /* and the following: by reason, in the order of
                                 * remote_stats.dropped */
        METRICS_REMOTE_PUTS = METRICS_REMOTE_DROPPED + 4
};
enum { METRICS_REMOTE_OFFERS = 3 }; /* indexed by enum remote_reason */
enum {
        METRICS_REMOTE_REJECTIONS = 5
};                               /* indexed by enum remote_rejection, without the first value */
enum { METRICS_REMOTE_OPS = 4 }; /* indexed by enum backend_op_kind */
enum { METRICS_REMOTE_READ, METRICS_REMOTE_WRITE, METRICS_REMOTE_WAYS };
enum { METRICS_REMOTE_OWN, METRICS_REMOTE_OTHER, METRICS_REMOTE_PURGES };
/* Purposes of descriptors that the daemon has open on behalf of clients. */
enum metrics_descriptor {
        METRICS_FD_CONNECTION,
        METRICS_FD_STAGING,
        METRICS_FD_DEFERRED_REQUEST,
        METRICS_FD_REGISTRATION,
        METRICS_FD_UNSENT_REPLY,
        METRICS_FD_CLOSING,
        METRICS_DESCRIPTORS,
};
enum { METRICS_HTTP_401, METRICS_HTTP_421, METRICS_HTTP_429, METRICS_HTTP_REFUSED };
enum { METRICS_VOLUMES = 16, METRICS_VOLUME_NAME = 256 };
/* The largest namespaces, followed by the sum of all others. */
enum { METRICS_NAMESPACES = 20, METRICS_NAMESPACE_SERIES, METRICS_NAMESPACE_NAME = 832 };
enum { METRICS_NAMESPACE_SCOPES = 4 }; /* indexed by enum namespace_scope */

struct metrics {
        /* Label values that come from the configuration; "": the entry is unused. Valid in every
         * format without escaping. */
        char tenant_names[METRICS_TENANTS][METRICS_TENANT_NAME];
        char floor_names[METRICS_FLOORS][METRICS_FLOOR_NAME]; /* prefixes of memory.floors */
        char volume_names[METRICS_VOLUMES][METRICS_VOLUME_NAME];
        char namespace_names[METRICS_NAMESPACE_SERIES][METRICS_NAMESPACE_NAME];
        /* Names of transfers, "path,layout,technology", and with ",result". */
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

/* The upper edge of a bucket of a page: in the units that the histogram counts, and as text in
 * seconds or bytes. */
struct metrics_edge {
        uint64_t value;
        const char *le;
};

struct metrics_buckets {
        double sum;    /* in seconds or bytes */
        bool of_bytes; /* the histogram counts bytes, each value reduced by 1; otherwise
                        * nanoseconds */
        const struct metrics_edge *of;
        size_t n;
};

/* Callbacks for each metric family, by its full name, and then for its samples, with labels such as
 * `a="x",b="y"`. */
struct metrics_visitor {
        void (*family)(void *userdata, const char *name, const char *help, enum metrics_type type);
        void (*number)(void *userdata, const char *labels, double value);
        void (*histogram)(void *userdata, const char *labels, const struct histogram *h,
                          const struct metrics_buckets *buckets);
};
/* Calls the visitor for all families, in the order of the table. */
void metrics_visit(const struct metrics *s, const struct metrics_visitor *visitor, void *userdata);

/* Print Prometheus text format 0.0.4, or OpenMetrics 1.0.0, which ends with "# EOF". Every family
 * has HELP and TYPE, whether or not it has changed. Numbers do not depend on the locale. */
void metrics_print_prometheus(const struct metrics *s, FILE *out);
void metrics_print_openmetrics(const struct metrics *s, FILE *out);
/* Prints one flat JSON object: {"kvcache_puts_total": 12, "kvcache_requests_total": {"PUT": 3,
 * ...}, ...}. A histogram is {"count": n, "sum": x, "p50": x, "p90": x, "p99": x} in the metric's
 * unit, and an info is {"label": "value", ...}. */
void metrics_print_json(const struct metrics *s, FILE *out);
/* Calls each() for the numbers whose members are named SECTION_KEY, in the order of the table:
 * those without a label, or element `i` of those whose label is the section. */
void metrics_walk(const struct metrics *s, const char *section, unsigned i,
                  void (*each)(void *userdata, const char *key, double value), void *userdata);
/* Returns the label of kvcache_degraded, such as "volume_suspended". */
const char *metrics_degradation_name(enum metrics_degradation reason);

/* Returns the label of a resource, such as "staging_bytes". */
const char *metrics_resource_name(unsigned resource);

/* Appends `key="value"`, after a comma if needed, with the value escaped for both text formats. If
 * there is not enough room, neither key nor value is appended. `key` must be a valid label name. */
void metrics_info_add(char *info, size_t room, const char *key, const char *value);
