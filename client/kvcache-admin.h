/* SPDX-License-Identifier: Apache-2.0 */
/* libkvcache for those who look after a daemon: namespaces, lists of chunks, purge, verify, the
 * volumes, reports. Conventions, handles and return values are those of <kvcache.h>. */
#ifndef KVCACHE_ADMIN_H
#define KVCACHE_ADMIN_H

#include <kvcache.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* A namespace that exists. */
struct kvcache_namespace_info {
        char name[256];
        char tenant[64];
        uint32_t owner;                /* id of the user that made it; UINT32_MAX: not known */
        uint32_t sessions;             /* that have it open */
        uint64_t chunks, stored_bytes; /* on disk */
        uint64_t chunk_bytes;          /* declared; 0: none */
        uint64_t created_ms;           /* Unix time */
        uint64_t last_used_ms; /* when the last session that had it open ended, now if one has; 0:
                                  none has since the daemon started */
        uint32_t fingerprint_crc32c;
        uint32_t may_remove; /* 1: this client may remove it, once it is empty, and set its lifetime
                              */
        uint32_t lifetime_s; /* chunks are not found any more when they are so old; 0: no end */
        uint32_t reserved;   /* 0 */
};
/* Up to `max` namespaces; `tenant`: those of this one; NULL: of the own one, or, of an admin, of
 * all. Start with *cursor = 0; at the end it is 0 again. Returns how many. -EOPNOTSUPP: the daemon
 * is too old for this. */
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
        KVCACHE_PURGE = 1 << 0, /* also its chunks, on the shared tier, too: deleted for good */
};
/* Removes a namespace; on stable storage when this returns. For the user that made it, and for
 * admins: -EACCES. `ret_dropped` (may be NULL): chunks that were purged with it. -ENOENT: as above;
 * -ENOTEMPTY: it holds chunks, or uses the shared tier, which may; -EIO: also, the shared tier did
 * not confirm the purge, and nothing is purged or removed; -EBUSY: other sessions have it open, or
 * some operation on it is in progress; kvcache_error() says which. A handle that has it open opens
 * it again, and so may make it again, when it is next used. */
int kvcache_namespace_remove(struct kvcache *kv, const char *name, const char *tenant,
                             uint32_t flags, uint64_t *ret_dropped);

/* How long after it was put a chunk of the namespace is found, for all that is in it and all that
 * will be; 0: no end. On stable storage when this returns. Above 2,047 s it may be rounded up, by
 * less than a thousandth; kvcache_namespace_stat() has what it is. For whom
 * kvcache_namespace_remove() is: -EACCES. -ENOENT: as above. -EOPNOTSUPP: the daemon is too old. */
int kvcache_namespace_set_lifetime(struct kvcache *kv, const char *name, const char *tenant,
                                   uint32_t lifetime_s);

struct kvcache_listed {
        struct kvcache_key key;
        uint64_t length;
        uint64_t created_ms;
        uint32_t tiers;
        uint32_t reserved; /* 0 */
};
/* Up to `max` chunks of a namespace, in no order; those that are in memory only, since they are
 * being written or could not be, are passed over. Start with *cursor = 0; at the end it is 0 again.
 * Returns how many, which may be none before the end, too. */
int kvcache_list_sized(struct kvcache *kv, uint32_t namespace_handle, uint64_t *cursor,
                       struct kvcache_listed *ret, size_t listed_size, size_t max);
static inline int kvcache_list(struct kvcache *kv, uint32_t namespace_handle, uint64_t *cursor,
                               struct kvcache_listed *ret, size_t max)
{
        return kvcache_list_sized(kv, namespace_handle, cursor, ret, sizeof(*ret), max);
}

/* Deletes everything in the namespace, for good; on stable storage when this returns. `ret_dropped`
 * (may be NULL): how many chunks. */
int kvcache_purge(struct kvcache *kv, uint32_t namespace_handle, uint64_t *ret_dropped);
/* Everything in the store. For admins: -EACCES. */
int kvcache_purge_all(struct kvcache *kv, uint64_t *ret_dropped);

/* Purges the namespace on this host and on the shared tier. This host finds no chunk of it from now
 * on, also after a restart. Other hosts learn of the purge within `*ret_seconds` (may be NULL),
 * which the call does not wait for. Returns -EINVAL if the daemon has no shared tier or the
 * namespace is not on it, and nothing was purged; -EIO if the namespace was purged here but the
 * shared tier could not be reached, so that chunks may come back from there; -EOPNOTSUPP if the
 * daemon is too old, or has no such tier. */
int kvcache_purge_remote(struct kvcache *kv, uint32_t namespace_handle, uint64_t *ret_dropped,
                         uint32_t *ret_seconds);
int kvcache_purge_all_remote(struct kvcache *kv, uint64_t *ret_dropped, uint32_t *ret_seconds);

enum {
        KVCACHE_DRY_RUN = 1 << 0, /* deletes nothing, and says what would be deleted */
};
struct kvcache_sweep {
        uint32_t size;                   /* sizeof(struct kvcache_sweep) */
        uint32_t flags;                  /* KVCACHE_DRY_RUN */
        uint64_t limit_bytes;            /* that are left at most */
        uint64_t seen, seen_bytes;       /* out: chunks on the shared tier */
        uint64_t deleted, deleted_bytes; /* of these */
};
/* Deletes from the shared tier what no host has used for longest, and what was purged there. One
 * host at a time: -EBUSY. -EINVAL: there is no shared tier, or its engine does that by itself, as
 * S3 does. -EOPNOTSUPP: the daemon is too old, or has no such tier. For admins: -EACCES. May take
 * minutes. */
int kvcache_remote_sweep(struct kvcache *kv, struct kvcache_sweep *sweep);

/* Where a walk through the store is, and what the last step found. */
struct kvcache_verify {
        uint32_t size;   /* sizeof(struct kvcache_verify) */
        uint32_t volume; /* index in the store, from 0; the caller iterates over the volumes */
        uint32_t segment, slot; /* in: where to begin, at first 0; out: where to go on */
        uint32_t max_chunks;    /* at most so many; 0: the library's choice */
        uint32_t reserved;      /* 0 */
        uint64_t max_bytes;     /* ends behind the chunk that reaches this; 0: the same */

        uint32_t volumes; /* out: of the store */
        uint32_t
                segments; /* number in this volume; when `segment` reaches it, the volume is done */
        uint64_t chunks, bytes; /* read, bad ones included */
        uint64_t mismatched;    /* not what was put: dropped */
        uint64_t unreadable;    /* refused by the device: dropped */
        uint64_t skipped;       /* not read, for want of memory and the like: still there */
        uint32_t gave_up;       /* 1: many in a row could not be read: the device is at fault */
        uint32_t reserved_2;    /* 0 */
};
/* Reads a part of one segment back from disk, compares checksums, and drops what is bad: a miss
 * from then on. For admins: -EACCES. -EINVAL: no such volume; -EBUSY: too much is being verified
 * already; -EIO: the volume is bypassed. */
int kvcache_verify(struct kvcache *kv, struct kvcache_verify *verify);

/* Suspends a volume of the store, numbered from 0 in the order of the status report's
 * store.volumes, when all that was begun there has been written: its keys are misses from then on.
 * Resuming probes the device and uses the volume again, also one that the daemon has bypassed by
 * itself; it may take a second for each million chunks. 1: it was in that state already. For
 * admins: -EACCES. -EINVAL: no such volume; -EBUSY: the device has not completed earlier I/O, or
 * another such call is in progress; -EIO: the device, and kvcache_error() says what. */
int kvcache_device_suspend(struct kvcache *kv, uint32_t volume);
int kvcache_device_resume(struct kvcache *kv, uint32_t volume);

/* Round trip, ns. `ret_ns` may be NULL. */
int kvcache_ping(struct kvcache *kv, uint64_t *ret_ns);

enum kvcache_report {
        KVCACHE_REPORT_STATUS = 0,  /* JSON */
        KVCACHE_REPORT_STATS = 1,   /* JSON, every metric */
        KVCACHE_REPORT_METRICS = 2, /* Prometheus text */
        KVCACHE_REPORT_CONFIG = 3,  /* YAML; for admins: -EACCES */
        KVCACHE_REPORT_STAGES = 4,  /* JSON, times of the latest requests and I/O operations, while
                                       io.stages is on; for admins: -EACCES; of a daemon that has
                                       none -EOPNOTSUPP */
};
/* A text about the daemon, NUL-terminated, to be freed by the caller with free(). */
int kvcache_report(struct kvcache *kv, enum kvcache_report what, char **ret_text);

/* A benchmark session counts the transfers of chunks, by path, memory layout and what moved them;
 * kvcache-bench session shows it. At most one is active, at a time; the others keep what they have.
 */
enum kvcache_bench_action {
        KVCACHE_BENCH_INIT = 1,    /* a session of that name, active and enabled; it is at zero */
        KVCACHE_BENCH_STATUS = 2,  /* nothing but the answer */
        KVCACHE_BENCH_RESET = 3,   /* to zero; what completes later counts */
        KVCACHE_BENCH_ENABLE = 4,  /* goes on counting, if it is the active one */
        KVCACHE_BENCH_DISABLE = 5, /* keeps what it has, and its clock stands still */
        KVCACHE_BENCH_LIST = 6,    /* the answer is an array */
        KVCACHE_BENCH_DELETE = 7,
};
enum {
        KVCACHE_BENCH_RESUME = 1 << 0, /* INIT: one that exists goes on with what it has */
        KVCACHE_BENCH_FORCE = 1 << 1,  /* INIT: one that exists begins anew */
};
/* `name`: [A-Za-z0-9._-]{1,64} without a leading dot; NULL: the active one, of LIST all. `ret_json`
 * (may be NULL): the session, as of DELETE it was, in the schema kvcache.bench.v1, with the path of
 * its file, as the daemon sees it, in "file"; NUL-terminated, to be freed by the caller with
 * free(). -EEXIST: INIT without a flag; -ENOENT: there is none of that name; -ESRCH: none is
 * active; -EDQUOT: there are 64; -EOPNOTSUPP: the daemon is too old. All but STATUS and LIST is for
 * admins: -EACCES. */
int kvcache_bench_session(struct kvcache *kv, enum kvcache_bench_action action, const char *name,
                          uint32_t flags, char **ret_json);

/* Records which chunks all clients get and put, for `duration_s` seconds, at most 7 days. `*ret_fd`
 * is a stream socket, which the caller closes; its entries have hashed keys and are described in
 * section 6.30 of the protocol's specification. The recording ends after its duration, or with the
 * connection. Returns -EEXIST if a recording is running, -EACCES if the client is not an admin,
 * -EOPNOTSUPP if the daemon is too old. */
int kvcache_record(struct kvcache *kv, uint32_t duration_s, int *ret_fd);

/* The daemon reads its configuration again, as on SIGHUP. `ret_json` (may be NULL): what was
 * applied, what needs a restart, what is wrong (section 6.31 of the protocol's specification);
 * NUL-terminated, to be freed by the caller with free(). 0; 1: the configuration is wrong, and
 * nothing was changed. -EOPNOTSUPP: the daemon is too old. For admins: -EACCES. */
int kvcache_reload(struct kvcache *kv, char **ret_json);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
