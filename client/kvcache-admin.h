/* SPDX-License-Identifier: Apache-2.0 */
/* libkvcache for administrators of a daemon: namespaces, lists of chunks, purge, verify, volumes,
 * reports. The conventions, handles and return values of <kvcache.h> apply. */
#ifndef KVCACHE_ADMIN_H
#define KVCACHE_ADMIN_H

#include <kvcache.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* An existing namespace, as kvcache_namespace_list() and kvcache_namespace_stat() describe it. */
struct kvcache_namespace_info {
        char name[256];
        char tenant[64];
        uint32_t owner;                /* uid of its creator; UINT32_MAX: not known */
        uint32_t sessions;             /* number of sessions that have it open */
        uint64_t chunks, stored_bytes; /* on disk */
        uint64_t chunk_bytes;          /* declared; 0: none */
        uint64_t created_ms;           /* Unix time */
        uint64_t last_used_ms; /* Unix time: now if a session has the namespace open, else the end
                                  of the last one that had; 0: none since the daemon started */
        uint32_t fingerprint_crc32c;
        uint32_t may_remove; /* 1: this client may set the namespace's lifetime, and remove the
                                namespace once it is empty */
        uint32_t lifetime_s; /* seconds after their put for which chunks are found; 0: no limit */
        uint32_t reserved;   /* 0 */
};
/* Lists up to `max` namespaces of `tenant`; NULL selects the client's own tenant or, for an admin,
 * all. Start with *cursor = 0 and repeat the call until *cursor is 0 again. Returns the number of
 * namespaces, or -EOPNOTSUPP if the daemon is too old. */
int kvcache_namespace_list_sized(struct kvcache *kv, const char *tenant, uint64_t *cursor,
                                 struct kvcache_namespace_info *ret, size_t info_size, size_t max);
static inline int kvcache_namespace_list(struct kvcache *kv, const char *tenant, uint64_t *cursor,
                                         struct kvcache_namespace_info *ret, size_t max)
{
        return kvcache_namespace_list_sized(kv, tenant, cursor, ret, sizeof(*ret), max);
}
/* Describes the namespace `name` of `tenant` (NULL: the client's own). `ret_fingerprint` (may be
 * NULL) gets the fingerprint, which the caller frees with free(). Returns -ENOENT if the namespace
 * does not exist or is not visible to this client. */
int kvcache_namespace_stat_sized(struct kvcache *kv, const char *name, const char *tenant,
                                 struct kvcache_namespace_info *ret, size_t info_size,
                                 char **ret_fingerprint);
static inline int kvcache_namespace_stat(struct kvcache *kv, const char *name, const char *tenant,
                                         struct kvcache_namespace_info *ret, char **ret_fingerprint)
{
        return kvcache_namespace_stat_sized(kv, name, tenant, ret, sizeof(*ret), ret_fingerprint);
}
enum {
        KVCACHE_PURGE = 1 << 0, /* also delete the namespace's chunks, permanently, on this host and
                                   on the shared tier */
};
/* Removes a namespace; the removal is on stable storage when the call returns. Only its creator and
 * admins may remove it, otherwise -EACCES. `ret_dropped` (may be NULL) gets the number of chunks
 * that were purged. Returns -ENOENT as kvcache_namespace_stat(); without KVCACHE_PURGE, -ENOTEMPTY
 * if the namespace holds chunks, or uses the shared tier, which may hold some; -EIO also if the
 * shared tier did not confirm the purge, and then nothing is purged or removed; -EBUSY if other
 * sessions have the namespace open, an operation on it or a request of this handle is in progress
 * or, without KVCACHE_PURGE, a volume is suspended or bypassed, and kvcache_error() says which;
 * -EOPNOTSUPP if the daemon is too old. A handle that had the namespace open opens it again at the
 * next use, which may create a new one. */
int kvcache_namespace_remove(struct kvcache *kv, const char *name, const char *tenant,
                             uint32_t flags, uint64_t *ret_dropped);

/* Sets how long after their put the namespace's chunks are found, for present and future chunks; 0:
 * no limit. The change is on stable storage when the call returns. A lifetime above 2,047 s may be
 * rounded up by less than a thousandth; kvcache_namespace_stat() returns the result. Only the
 * namespace's creator and admins may set it, otherwise -EACCES. Returns -ENOENT as
 * kvcache_namespace_stat(); -EIO if the lifetime could not be written; -EOPNOTSUPP if the daemon is
 * too old. */
int kvcache_namespace_set_lifetime(struct kvcache *kv, const char *name, const char *tenant,
                                   uint32_t lifetime_s);

struct kvcache_listed {
        struct kvcache_key key;
        uint64_t length;
        uint64_t created_ms;
        uint32_t tiers;
        uint32_t reserved; /* 0 */
};
/* Lists up to `max` chunks of a namespace that are on disk, in no order. Chunks that are only in
 * memory, because their write is pending or failed, are left out. Start with *cursor = 0 and repeat
 * the call until *cursor is 0 again. Returns the number of chunks, which may be 0 before the end,
 * too. */
int kvcache_list_sized(struct kvcache *kv, uint32_t namespace_handle, uint64_t *cursor,
                       struct kvcache_listed *ret, size_t listed_size, size_t max);
static inline int kvcache_list(struct kvcache *kv, uint32_t namespace_handle, uint64_t *cursor,
                               struct kvcache_listed *ret, size_t max)
{
        return kvcache_list_sized(kv, namespace_handle, cursor, ret, sizeof(*ret), max);
}

enum kvcache_event_kind {
        KVCACHE_EVENT_STORED = 1,  /* the tier has the chunk */
        KVCACHE_EVENT_REMOVED = 2, /* the tier no longer has the chunk */
        KVCACHE_EVENT_NAMESPACE_REMOVED =
                3, /* no tier has a chunk of the namespace; `key` is zero */
};
/* An event: one tier stored or removed a chunk of the client's tenant, or a namespace was removed.
 * Also an entry of a snapshot, which has the form of a STORED event. */
struct kvcache_event {
        struct kvcache_key key;
        uint64_t sequence; /* events are numbered without gaps; 0 in a snapshot */
        uint64_t time_ms;  /* Unix time; 0 in a snapshot */
        uint64_t length;
        /* NULL: the namespace has been removed since the event. Valid until the next
         * kvcache_events_next() or kvcache_events_snapshot() of this handle. */
        const char *namespace_name;
        uint32_t namespace_number; /* identifies the namespace until it is removed or the daemon
                                      restarts */
        uint32_t kind;             /* enum kvcache_event_kind; ignore events of other kinds */
        uint32_t tier;             /* KVCACHE_TIER_MEMORY or KVCACHE_TIER_DISK; 0 without a chunk */
        uint32_t reserved;         /* 0 */
};
/* The position of a reader in the sequence of events. Set all members to zero at first. */
struct kvcache_events_position {
        uint64_t epoch; /* identifies the daemon's process */
        uint64_t next;  /* sequence number of the next event */
        /* Set with -ESTALE: sequence number of the oldest event that is kept. A reader that does
         * not need to know every chunk may set `next` to this number and continue. */
        uint64_t oldest;
        uint64_t reserved; /* 0 */
};
enum { KVCACHE_EVENTS_MAX_WAIT_MS = 60000 };
/* Returns up to `max` events from `*position` on, and moves the position behind them. Without
 * events, waits up to `wait_ms`, and then returns 0.
 *
 * Returns -ESTALE if events were lost: the position is new, the reader is slow, the daemon has
 * restarted, or a volume began or ceased to be in use. `*position` is then the position that
 * follows a snapshot: forget all chunks, call kvcache_events_snapshot() to its end, and call
 * this function again. Events may repeat chunks of the snapshot, so take each event as the state
 * of a tier, and do not count events. Returns -EOPNOTSUPP if the daemon has no events
 * (events.ring) or is too old; -EBUSY if another call of this connection is waiting. The daemon
 * sends only events of the client's tenant. */
int kvcache_events_next_sized(struct kvcache *kv, struct kvcache_events_position *position,
                              struct kvcache_event *ret, size_t event_size, size_t max,
                              uint32_t wait_ms);
static inline int kvcache_events_next(struct kvcache *kv, struct kvcache_events_position *position,
                                      struct kvcache_event *ret, size_t max, uint32_t wait_ms)
{
        return kvcache_events_next_sized(kv, position, ret, sizeof(*ret), max, wait_ms);
}
/* Returns up to `max` chunks that are stored, as events; a chunk in both tiers is returned twice.
 * Start with *cursor = 0 and repeat the call until *cursor is 0 again. `position` is the one that
 * kvcache_events_next() set with -ESTALE. Returns the number of entries, which may be 0 before the
 * end, too. Returns -ESTALE if the daemon has restarted since then: get a new position and start
 * again. */
int kvcache_events_snapshot_sized(struct kvcache *kv,
                                  const struct kvcache_events_position *position, uint64_t *cursor,
                                  struct kvcache_event *ret, size_t event_size, size_t max);
static inline int kvcache_events_snapshot(struct kvcache *kv,
                                          const struct kvcache_events_position *position,
                                          uint64_t *cursor, struct kvcache_event *ret, size_t max)
{
        return kvcache_events_snapshot_sized(kv, position, cursor, ret, sizeof(*ret), max);
}

/* Deletes all chunks of the namespace permanently; the deletion is on stable storage when the call
 * returns. `ret_dropped` (may be NULL) gets the number of chunks. Returns -EIO if the deletion
 * could not be written; the chunks may then be back after a restart. */
int kvcache_purge(struct kvcache *kv, uint32_t namespace_handle, uint64_t *ret_dropped);
/* Deletes all chunks of the store, as kvcache_purge() does. Only admins may call it, otherwise
 * -EACCES. */
int kvcache_purge_all(struct kvcache *kv, uint64_t *ret_dropped);

/* Purges the namespace on this host and on the shared tier. This host finds no chunk of it from now
 * on, also after a restart. Other hosts learn of the purge within `*ret_seconds` (may be NULL),
 * which the call does not wait for. Returns -EINVAL if the namespace is not on the shared tier, and
 * nothing was purged; -EIO as kvcache_purge(), or if the namespace was purged here but the shared
 * tier could not be reached, so that chunks may come back from there; -EOPNOTSUPP if the daemon is
 * too old or has no shared tier. */
int kvcache_purge_remote(struct kvcache *kv, uint32_t namespace_handle, uint64_t *ret_dropped,
                         uint32_t *ret_seconds);
int kvcache_purge_all_remote(struct kvcache *kv, uint64_t *ret_dropped, uint32_t *ret_seconds);

enum {
        KVCACHE_DRY_RUN = 1 << 0, /* delete nothing, and report what would be deleted */
};
struct kvcache_sweep {
        uint32_t size;                   /* sizeof(struct kvcache_sweep) */
        uint32_t flags;                  /* KVCACHE_DRY_RUN */
        uint64_t limit_bytes;            /* target size of the shared tier */
        uint64_t seen, seen_bytes;       /* out: chunks on the shared tier */
        uint64_t deleted, deleted_bytes; /* out: chunks deleted */
};
/* Deletes from the shared tier the chunks that no host has used for longest, and purged chunks.
 * Only one host may sweep at a time, otherwise -EBUSY. Returns -EINVAL if the tier's back end
 * expires objects itself, as S3 does; -EIO if the shared tier fails; -EOPNOTSUPP if the daemon is
 * too old or has no shared tier; -EACCES if the client is not an admin. May take minutes, and
 * longer than the handle's timeout: -ETIMEDOUT, while the sweep continues. */
int kvcache_remote_sweep(struct kvcache *kv, struct kvcache_sweep *sweep);

/* Position of a scan through one volume of the store, and the findings of the last step. */
struct kvcache_verify {
        uint32_t size;   /* sizeof(struct kvcache_verify) */
        uint32_t volume; /* index in the store, from 0; the caller iterates over the volumes */
        uint32_t segment, slot; /* in: where to begin, at first 0; out: where to continue */
        uint32_t max_chunks;    /* maximum number of chunks to read in this step; 0: the library's
                                   choice */
        uint32_t reserved;      /* 0 */
        uint64_t max_bytes; /* stop after the chunk that reaches this; 0: the library's choice */

        uint32_t volumes;  /* out: number of volumes in the store */
        uint32_t segments; /* out: number of segments in this volume; the scan has ended when
                              `segment` equals it */
        uint64_t chunks,
                bytes;       /* out: chunks read in this step and their bytes, including bad ones */
        uint64_t mismatched; /* chunks whose bytes differ from those put; they were dropped */
        uint64_t unreadable; /* chunks that the device failed to read; they were dropped */
        uint64_t skipped;    /* chunks that were not read, for example for lack of memory; they are
                                still stored */
        uint32_t gave_up;    /* 1: many consecutive reads failed: the device is at fault */
        uint32_t reserved_2; /* 0 */
};
/* Reads a part of one segment from disk, compares checksums, and drops bad chunks, which are misses
 * from then on. Returns -EACCES if the client is not an admin, -EINVAL if there is no such volume,
 * -EBUSY if too much is being verified already, -EIO if the volume is suspended or bypassed. */
int kvcache_verify(struct kvcache *kv, struct kvcache_verify *verify);

/* Suspends or resumes a volume of the store, numbered from 0 in the order of the status report's
 * store.volumes. kvcache_device_suspend() returns when all pending I/O of the volume is complete;
 * the volume's chunks are misses from then on. kvcache_device_resume() probes the device and uses
 * the volume again, also after the daemon has bypassed it, and may take a second for each million
 * chunks. Both return 1 if the volume was in the requested state already; -EACCES if the client is
 * not an admin; -EINVAL if there is no such volume; -EBUSY if the device has not completed earlier
 * I/O or another such call is in progress; -EIO if the device fails, and kvcache_error() describes
 * the failure. */
int kvcache_device_suspend(struct kvcache *kv, uint32_t volume);
int kvcache_device_resume(struct kvcache *kv, uint32_t volume);

/* Sends a message to the daemon and waits for the reply. `*ret_ns` (may be NULL) is set to the time
 * between them, in nanoseconds. */
int kvcache_ping(struct kvcache *kv, uint64_t *ret_ns);

enum kvcache_report {
        KVCACHE_REPORT_STATUS = 0,  /* JSON */
        KVCACHE_REPORT_STATS = 1,   /* JSON: every metric */
        KVCACHE_REPORT_METRICS = 2, /* Prometheus text */
        KVCACHE_REPORT_CONFIG =
                3, /* YAML, the configuration in force; only for admins, otherwise -EACCES */
        KVCACHE_REPORT_STAGES =
                4, /* JSON, times of the latest requests and I/O operations while io.stages is on;
                      only for admins, otherwise -EACCES; -EOPNOTSUPP if the daemon is too old */
        KVCACHE_REPORT_NAMESPACES =
                5, /* JSON, the largest namespaces and those whose page was opened last, with
                      samples of 15 minutes and the chunks that are evicted next; of all tenants for
                      admins; -EOPNOTSUPP if the daemon is too old */
};
/* Returns a report of the daemon, NUL-terminated. The caller frees it with free(). */
int kvcache_report(struct kvcache *kv, enum kvcache_report what, char **ret_text);

/* A benchmark session counts transfers of chunks by path, memory layout and technology;
 * `kvcache-bench session` shows its counters. At most one session is active at a time; the others
 * keep their counters. */
enum kvcache_bench_action {
        KVCACHE_BENCH_INIT = 1,   /* create a session, active, enabled and with zero counters */
        KVCACHE_BENCH_STATUS = 2, /* only return the session */
        KVCACHE_BENCH_RESET = 3, /* set the counters to zero; transfers that complete later count */
        KVCACHE_BENCH_ENABLE = 4,  /* count again after DISABLE, if the session is active */
        KVCACHE_BENCH_DISABLE = 5, /* keep the counters, count no transfers, and stop the clock */
        KVCACHE_BENCH_LIST = 6,    /* return an array of all sessions */
        KVCACHE_BENCH_DELETE = 7,
};
enum {
        KVCACHE_BENCH_RESUME = 1 << 0, /* INIT: an existing session continues with its counters */
        KVCACHE_BENCH_FORCE = 1 << 1,  /* INIT: an existing session starts again at zero */
};
/* Controls benchmark sessions. `name`: [A-Za-z0-9._-]{1,64} without a leading dot; NULL selects the
 * active session. INIT needs a name, and LIST takes none. `ret_json` (may be NULL) gets the session
 * in the schema kvcache.bench.v1, for DELETE its last state; the member "file" is the path of the
 * session's file as the daemon sees it. The text is NUL-terminated, and the caller frees it with
 * free().
 *
 * Returns -EEXIST for INIT of an existing session without a flag; -ENOENT if there is no session of
 * that name; -EINVAL if the name or the flags are invalid; -ESRCH if no session is active; -EDQUOT
 * if there are 64 sessions; -EOPNOTSUPP if the daemon is too old; -EACCES if the client is not an
 * admin, except for STATUS and LIST. */
int kvcache_bench_session(struct kvcache *kv, enum kvcache_bench_action action, const char *name,
                          uint32_t flags, char **ret_json);

/* Records which chunks all clients get and put, for `duration_s` seconds, at most 7 days. `*ret_fd`
 * is a stream socket, which the caller closes; its entries have hashed keys and are described in
 * section 6.30 of the protocol's specification. The recording ends after its duration, or with the
 * connection. Returns -EEXIST if a recording is running; -EINVAL if the duration is 0 or too long;
 * -EACCES if the client is not an admin; -EOPNOTSUPP if the daemon is too old. */
int kvcache_record(struct kvcache *kv, uint32_t duration_s, int *ret_fd);

/* Makes the daemon read its configuration again, as on SIGHUP. `ret_json` (may be NULL) lists
 * applied changes, changes that need a restart, and faults (section 6.31 of the protocol's
 * specification). The text is NUL-terminated, and the caller frees it with free(). Returns 0, or 1
 * if the configuration is invalid and nothing was changed; -EOPNOTSUPP if the daemon is too old;
 * -EACCES if the client is not an admin. */
int kvcache_reload(struct kvcache *kv, char **ret_json);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
