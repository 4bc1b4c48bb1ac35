/* SPDX-License-Identifier: Apache-2.0 */
/* libkvcache: the client of kvcache-daemon, which keeps the KV-cache blocks of LLM engines in
 * memory and on disk.
 *
 * No threads, no signals, no output, no exit. Every call that can wait takes a timeout or uses the
 * handle's. One handle belongs to one thread at a time; several handles in one process are
 * independent. After fork() every call on a handle of the parent answers -ECHILD in the child. When
 * the daemon restarts, requests in flight end with a status, and the next call connects anew and
 * maps the new memory.
 *
 * Calls return 0 (or a count) on success and a negative errno when the call as a whole failed;
 * kvcache_error() then says why in words. What became of each key is in its result's status:
 * a key that is not KVCACHE_OK is to be recomputed, nothing more. */
#ifndef KVCACHE_H
#define KVCACHE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define KVCACHE_API_VERSION 1

enum { KVCACHE_KEY_BYTES = 32 };

struct kvcache_key {
        uint8_t bytes[KVCACHE_KEY_BYTES];
};

/* Stable numbers. */
enum kvcache_status {
        KVCACHE_OK = 0,
        KVCACHE_MISS = 1,   /* not there, or it failed its check */
        KVCACHE_EXISTS = 2, /* put: it was already there; nothing was copied. As good as OK */
        KVCACHE_BUSY = 3,   /* no room now */
        KVCACHE_TOO_LARGE = 4,
        KVCACHE_NOT_DURABLE = 5, /* put durable: written, but it may not survive power loss */
        KVCACHE_FAILED = 6,      /* put: the device refused */
        KVCACHE_INVALID = 7,
        KVCACHE_STALE = 8, /* release: no such lease */
        KVCACHE_DENIED = 9,
        KVCACHE_QUOTA = 10,
        KVCACHE_MISMATCH = 11, /* namespace: exists with another fingerprint */
        KVCACHE_NO_NAMESPACE = 12,
        KVCACHE_VERSION = 13,
        KVCACHE_SHUTDOWN = 14,
        KVCACHE_NO_SPACE = 15,
        KVCACHE_NOT_EMPTY = 16,
        /* The library's own: */
        KVCACHE_LOST = 100, /* the daemon went away before it answered */
        /* The deadline passed, the request goes on: memory it names is not yours yet. (One that had
         * not even been sent is taken back: its keys are KVCACHE_BUSY.) */
        KVCACHE_PENDING = 101,
};

/* How far a put has come when it is answered. */
enum kvcache_ack {
        KVCACHE_ACCEPTED = 0, /* visible; may be lost with the daemon */
        KVCACHE_WRITTEN = 1,  /* survives kill -9 of the daemon */
        KVCACHE_DURABLE = 2,  /* survives power loss */
};

enum kvcache_tier {
        KVCACHE_TIER_MEMORY = 1,
        KVCACHE_TIER_DISK = 2,
        KVCACHE_TIER_ALL = 3,
};

struct kvcache; /* a connection, its mappings, and what is in flight */

struct kvcache_options {
        uint32_t size;           /* sizeof(struct kvcache_options) */
        uint32_t flags;          /* KVCACHE_POPULATE, KVCACHE_NO_LOOKUP */
        const char *socket_path; /* NULL: $KVCACHE_SOCKET, else the default path */
        const char
                *client_name; /* for the daemon's log, at most 31 bytes; NULL: the program's name */
        int connect_timeout_ms; /* 0: 5,000 */
        int request_timeout_ms; /* of blocking calls, and of requests that name none; 0: 30,000,
                                   which a purge, a verify or a device call may need more than */
        uint64_t lane_bytes; /* of the lane, at most what the daemon allows; 0: as much as that */
};
enum {
        KVCACHE_POPULATE = 1 << 0, /* fault the whole pool mapping in at connect: the first touch of
                                      a page costs more than copying it */
        KVCACHE_NO_LOOKUP = 1 << 1, /* EXISTS and MATCH always ask the daemon: see there */
};

/* Connects, agrees on a version, maps the pool read-only and checks its seals. `*ret` is set on
 * success only. -ENOENT, -ECONNREFUSED: no daemon there; -EACCES; -EPROTONOSUPPORT: no version in
 * common; -ETIMEDOUT; -ECONNRESET: it hung up, as it does on users that may not connect; -EPERM:
 * its memory is not sealed as it must be; -EBADMSG: it makes no sense. `ret_error` (may be NULL)
 * gets a sentence. */
int kvcache_connect(struct kvcache **ret, const struct kvcache_options *options, char *ret_error,
                    size_t error_bytes);
/* Ends what is in flight, unmaps, frees: data of leases must not be touched any more. NULL is fine.
 */
void kvcache_close(struct kvcache *kv);
/* Why the last call on this handle failed. Never NULL; valid until the next call. */
const char *kvcache_error(const struct kvcache *kv);
const char *kvcache_status_name(int status);

/* What the daemon said at connect. */
struct kvcache_info {
        uint32_t size; /* in: sizeof(struct kvcache_info) */
        uint32_t protocol_version;
        uint64_t pool_bytes;
        uint64_t max_chunk_bytes;
        uint64_t lane_bytes;    /* of this handle's lane; 0: none yet */
        uint64_t reconnects;    /* how often this handle has connected anew */
        uint8_t instance[16];   /* of the daemon: another value, another process */
        uint64_t lookup_bytes;  /* of the look-up index that is mapped now; 0: none is */
        uint64_t lookups_local; /* keys that this handle has answered from it */
};
int kvcache_get_info(struct kvcache *kv, struct kvcache_info *ret);

/* --- namespaces ---
 * A name and what its blocks depend on. `fingerprint`: canonical text, lines "key=value\n" sorted
 * by key: model, revision, dtype, layout, block tokens, parallel sizes. The same name with another
 * fingerprint is refused with KVCACHE_MISMATCH and kvcache_error() names the field: that is what
 * keeps two configurations from reading each other's bytes.
 *
 * Returns 0 and a handle that stays valid across reconnects. -EEXIST: mismatch. -ENOENT: `attach`
 * and not there. */
struct kvcache_namespace_options {
        uint32_t size;
        uint32_t flags;          /* KVCACHE_ATTACH */
        const char *name;        /* 1 to 255 bytes */
        const char *fingerprint; /* NULL with KVCACHE_ATTACH: do not compare (tools) */
        uint64_t chunk_bytes; /* size of most chunks: stored without rounding loss; 0: not declared
                               */
};
enum {
        KVCACHE_ATTACH = 1 << 0, /* must exist already */
};
int kvcache_namespace_open(struct kvcache *kv, const struct kvcache_namespace_options *options,
                           uint32_t *ret_namespace);

/* --- the lane: shared memory from which puts are taken and to which `get into` copies ---
 * Made at the first use. kvcache_lane_acquire() gives a place, 64-byte aligned; -ENOBUFS: no room
 * now (drain, release, try again); -E2BIG: never. A place that a request in flight names belongs to
 * the daemon until its completion is drained; releasing it earlier is safe: the library frees it
 * when that has happened. */
int kvcache_lane_acquire(struct kvcache *kv, size_t bytes, void **ret_place);
void kvcache_lane_release(struct kvcache *kv, void *place);

/* --- donated regions: memory of the caller's that the daemon moves bytes to and from by itself ---
 * What a put or a `get into` names there is not copied by the library. Nor by the daemon, which
 * moves it between there and the disk, where the place is in one piece, begins at a multiple of
 * 4,096 bytes of the region, and is put KVCACHE_WRITTEN or KVCACHE_DURABLE without a lease to keep,
 * or is to hold a whole chunk that is not in memory. A region counts in full against the daemon's
 * limits.donated.
 *
 * A place that a request names is the daemon's until its completion is drained; after
 * KVCACHE_PENDING or KVCACHE_LOST until kvcache_region_settled() says so. Who changes the bytes of
 * a put before that, punches holes or cuts the file, harms the own chunks only: they are misses.
 *
 * A region outlives its session: after a reconnect the library donates it again before it sends
 * anything that names it. Where the daemon refuses that, keys that name it are KVCACHE_INVALID, the
 * request's error and kvcache_error() after kvcache_submit() or kvcache_call() say why, and the
 * next request tries again. */
struct kvcache_region_options {
        uint32_t size;  /* sizeof(struct kvcache_region_options) */
        uint32_t flags; /* 0 */
        int fd; /* a memfd with F_SEAL_SHRINK, or a file on tmpfs or hugetlbfs, open for reading and
                   writing. Stays the caller's: the library keeps a duplicate */
        uint64_t offset, bytes; /* of the stretch in the file: multiples of its page size, and not
                                   beyond its end. Its pages that are not there yet are made; those
                                   of the rest of the file must be there (before Linux 5.14 all
                                   of them: write to each, or fallocate()) */
        void *base; /* where the caller has mapped the stretch, shared; NULL: the library maps it,
                       and a child after fork() does not have it */
};
/* Lends [offset, offset + bytes) of the file to the daemon. `*ret_region` is the handle's own
 * number for it, `*ret_base` (may be NULL where `base` is given) where it is mapped. -EINVAL: it is
 * not what it must be, overlaps a region, or there are too many, 64; kvcache_error() says which.
 * -EDQUOT, -EBUSY: limits.donated; -EIO: the daemon could not map it. */
int kvcache_region_donate(struct kvcache *kv, const struct kvcache_region_options *options,
                          uint32_t *ret_region, void **ret_base);
/* Takes it back, and unmaps what the library has mapped. Requests in flight that name it are waited
 * for, those of a daemon that is gone too: after 0 nobody but the caller touches the memory. It
 * connects to nothing. -EINVAL: no such region. Any other error, as -ETIMEDOUT after the handle's
 * request timeout: the memory is still mapped and the daemon may still move bytes there; no later
 * request names the region, its memory is like any other to them; call again to go on waiting.
 * kvcache_close() takes all regions back, without waiting: nobody can tell then whether bytes still
 * move, so withdraw first where requests may be in flight. */
int kvcache_region_withdraw(struct kvcache *kv, uint32_t region);

/* --- asynchronous core: submit, wait until kvcache_fd() is readable, drain --- */

enum kvcache_op {
        KVCACHE_OP_PUT = 1, /* from `data`, `length` bytes */
        KVCACHE_OP_GET = 2, /* mapped: results carry `data` in the pool and a lease to release */
        /* Copied to `data`, `length` bytes of room, or to `pieces`: by the daemon if all rooms of
         * the request are in places of the lane or in donated regions, else by the library when it
         * takes the reply. */
        KVCACHE_OP_GET_INTO = 3,
        /* These two the library answers by itself where it can, from the tenant's look-up index:
         * memory that the daemon keeps up, asked for with the first of them. Then they are complete
         * when the call returns, and nobody is told of them. A key that is there, and is not put or
         * evicted meanwhile, is never called absent; one that is not there can be called present,
         * for three seconds after the daemon was killed or for as long as its device is left aside:
         * a get of it is a miss. */
        KVCACHE_OP_EXISTS = 4,
        KVCACHE_OP_MATCH = 5, /* completion's `value`: keys of the leading run that are there */
        KVCACHE_OP_TOUCH = 6,
        KVCACHE_OP_EVICT = 7,
        KVCACHE_OP_STAT = 8,
        /* From disk to the pool, for a get that will come; the answer does not wait for it. Per
         * key: KVCACHE_OK: it is there or on its way; KVCACHE_MISS; KVCACHE_BUSY: there is no room
         * now, or enough is on its way; KVCACHE_TOO_LARGE; KVCACHE_SHUTDOWN. A quarter of the pool,
         * 128 MiB or 1,024 chunks are on their way at most. */
        KVCACHE_OP_PREFETCH = 9,
};

struct kvcache_lease {
        uint32_t id, generation;
};

/* A part of a key's bytes. */
struct kvcache_piece {
        void *data;
        uint64_t length; /* at least 1 */
};

/* One key of a request. Keys of a request are a chain, root first; what is not a chain is none the
 * worse for it. */
struct kvcache_entry {
        struct kvcache_key key;
        void *data; /* PUT: the bytes; a place of the lane or of a donated region is taken as it is,
                       other memory is copied to the lane first. GET_INTO: room for the bytes */
        uint64_t length;       /* PUT: 1 to max_chunk_bytes. GET_INTO: room at data */
        uint64_t range_offset; /* GET, GET_INTO: within the chunk */
        uint64_t range_length; /* 0: to its end */
        /* PUT, GET_INTO: the bytes, or the room, in several places of any memory, one after the
         * other; `data` and `length` are not looked at then. A key all of whose pieces are in the
         * lane or in donated regions travels as it is, with at most 4,088 of them: more are -E2BIG.
         * Others are gathered or scattered by the library. The array is read during the call only.
         */
        const struct kvcache_piece *pieces;
        uint32_t n_pieces; /* 0: `data`, `length` */
};

struct kvcache_result {
        int status;     /* enum kvcache_status */
        uint32_t tiers; /* GET: where it came from; EXISTS, STAT: where it is (enum kvcache_tier) */
        uint64_t length;       /* GET, GET_INTO: bytes got; PUT, STAT: of the chunk */
        uint64_t chunk_length; /* GET, GET_INTO: of the whole chunk */
        const void *
                data; /* GET, PUT with KVCACHE_KEEP_LEASE: in the pool, read-only, until released */
        struct kvcache_lease lease; /* generation 0: none */
        uint64_t created_ms;        /* STAT */
        uint32_t crc32c;            /* STAT */
        uint32_t leases;            /* STAT */
};

enum {
        KVCACHE_NOWAIT = 1 << 0,     /* PUT, GET: KVCACHE_BUSY rather than waiting for room */
        KVCACHE_KEEP_LEASE = 1 << 1, /* PUT: keep a lease on each chunk */
        KVCACHE_MORE = 1 << 2, /* PUT, GET, GET_INTO, TOUCH, PREFETCH: the chain goes on with the
                                  next such request, whose `parent` is the last key of this one. A
                                  get of what is there and a put of the rest are one chain: its
                                  recency is set from its end to its root, so that ends are evicted
                                  first */
};

struct kvcache_request {
        uint32_t size; /* sizeof(struct kvcache_request) */
        enum kvcache_op op;
        uint32_t namespace_handle;
        uint32_t flags;
        enum kvcache_ack ack; /* PUT */
        uint32_t tiers;       /* EVICT: KVCACHE_TIER_MEMORY or KVCACHE_TIER_ALL; 0: all */
        const struct kvcache_entry *entries; /* read during the call only */
        const struct kvcache_key *keys; /* instead of entries for GET (whole chunks), EXISTS, MATCH,
                                           TOUCH, EVICT, STAT, PREFETCH */
        size_t count; /* any; more than a message holds are sent as several, as one chain */
        const struct kvcache_key *parent; /* the key before the first; NULL: the first is a root */
        struct kvcache_result *results; /* `count` of them, the caller's; written at completion. May
                                           be NULL for MATCH, TOUCH and PREFETCH */
        int timeout_ms;     /* 0: the handle's; then the key's status is KVCACHE_PENDING */
        uint64_t user_data; /* comes back with the completion */
};

struct kvcache_completion {
        uint64_t user_data;
        uint64_t value; /* MATCH */
        int error; /* 0, or -errno of the request as a whole; each result has a status in any case
                    */
        enum kvcache_op op;
        size_t count;
};

/* Sends it, or queues it when the daemon has enough in flight. 0; -ENOBUFS: data does not fit the
 * lane now; -E2BIG: it never does, or a key has more pieces than a message; -EINVAL; -ENOTCONN: the
 * daemon is away and reconnecting failed; -EOPNOTSUPP: it is too old for this. */
int kvcache_submit(struct kvcache *kv, const struct kvcache_request *request);
/* An epoll fd over socket and deadlines: readable when kvcache_drain() has something to do.
 * Borrowed; stays the same across reconnects. */
int kvcache_fd(const struct kvcache *kv);
/* Takes up to `max` completions, waiting for the first at most timeout_ms (0: not at all; < 0:
 * until there is one or nothing is in flight). Returns how many. */
int kvcache_drain(struct kvcache *kv, struct kvcache_completion *ret, size_t max, int timeout_ms);
/* Requests submitted and not yet drained. */
size_t kvcache_inflight(const struct kvcache *kv);
/* May this memory, of the lane or of a donated region, be reused: is no request, not one that timed
 * out or was lost with a daemon either, still moving bytes there? 1, 0, -errno. What another
 * mapping of the same file shows is not recognized: ask for the addresses that the requests named.
 */
int kvcache_region_settled(struct kvcache *kv, const void *data, size_t bytes);

/* Gives leases back; sent with the next request, or by kvcache_flush(), or when many are held.
 * Leases of a daemon that is gone are ignored. The data must not be touched any more. */
int kvcache_release(struct kvcache *kv, const struct kvcache_lease *leases, size_t n);
int kvcache_flush(struct kvcache *kv);

/* --- blocking calls ---
 * Return a status (enum kvcache_status, >= 0) for one key, or a negative errno. */
int kvcache_put(struct kvcache *kv, uint32_t namespace_handle, const struct kvcache_key *key,
                const void *data, size_t length, enum kvcache_ack ack);
/* Copies into `buffer`; *ret_length is the chunk's length, also when KVCACHE_TOO_LARGE says that it
 * did not fit. */
int kvcache_get(struct kvcache *kv, uint32_t namespace_handle, const struct kvcache_key *key,
                void *buffer, size_t room, size_t *ret_length);
/* In place: valid until kvcache_release(kv, &result.lease, 1). */
int kvcache_get_map(struct kvcache *kv, uint32_t namespace_handle, const struct kvcache_key *key,
                    struct kvcache_result *ret);
/* Any request, whatever its size, waited for: a put that the lane cannot hold at once goes in
 * rounds; -E2BIG: one chunk is longer than the lane, or has more pieces than a message. 0, or
 * -errno; each result has a status in any case. `ret_value` may be NULL. */
int kvcache_call(struct kvcache *kv, const struct kvcache_request *request, uint64_t *ret_value);

/* A namespace that exists. */
struct kvcache_namespace_info {
        char name[256];
        char tenant[64];
        uint32_t owner;                /* user id of who made it; UINT32_MAX: not known */
        uint32_t sessions;             /* that have it open */
        uint64_t chunks, stored_bytes; /* on disk */
        uint64_t chunk_bytes;          /* declared; 0: none */
        uint64_t created_ms;           /* Unix time */
        uint64_t last_used_ms; /* when the last session that had it open ended, now if one has; 0:
                                  none has since the daemon started */
        uint32_t fingerprint_crc32c;
        uint32_t may_remove; /* 1: this client may remove it, once it is empty */
        uint64_t reserved[4];
};
/* Up to `max` namespaces; `tenant`: those of this one; NULL: of the own one, or, of an admin, of
 * all. Start with *cursor = 0; at the end it is 0 again. Returns how many. -EOPNOTSUPP: the daemon
 * is too old for this. */
int kvcache_namespace_list(struct kvcache *kv, const char *tenant, uint64_t *cursor,
                           struct kvcache_namespace_info *ret, size_t max);
/* One by its name; `tenant`: NULL: the own one. `ret_fingerprint` (may be NULL) gets its text, to
 * be freed by the caller with free(). -ENOENT: there is none, or none that this client may know of.
 */
int kvcache_namespace_stat(struct kvcache *kv, const char *name, const char *tenant,
                           struct kvcache_namespace_info *ret, char **ret_fingerprint);
enum {
        KVCACHE_PURGE = 1 << 0, /* what it holds, too: forgotten for good */
};
/* Removes a namespace; on stable storage when this returns. For the user who made it, and for
 * admins: -EACCES. `ret_dropped` (may be NULL): chunks that were purged with it. -ENOENT: as above;
 * -ENOTEMPTY: it holds chunks; -EBUSY: other sessions have it open, or something of it is under
 * way; kvcache_error() says which. A handle that has it open opens it anew, and so may make it
 * again, when it is next used. */
int kvcache_namespace_remove(struct kvcache *kv, const char *name, const char *tenant,
                             uint32_t flags, uint64_t *ret_dropped);

struct kvcache_listed {
        struct kvcache_key key;
        uint64_t length;
        uint64_t created_ms;
        uint32_t tiers;
};
/* Up to `max` chunks of a namespace, in no order; those that are in memory only, since they are
 * being written or could not be, are passed over. Start with *cursor = 0; at the end it is 0 again.
 * Returns how many, which may be none before the end, too. */
int kvcache_list(struct kvcache *kv, uint32_t namespace_handle, uint64_t *cursor,
                 struct kvcache_listed *ret, size_t max);
/* Forgets everything in the namespace, for good; on stable storage when this returns. */
int kvcache_purge(struct kvcache *kv, uint32_t namespace_handle, uint64_t *ret_dropped);
/* Everything in the store. Needs an admin: -EACCES. */
int kvcache_purge_all(struct kvcache *kv, uint64_t *ret_dropped);
/* Where a walk through the store is, and what the last step found. */
struct kvcache_verify {
        uint32_t size;          /* sizeof(struct kvcache_verify) */
        uint32_t path;          /* of the store, from 0; the caller goes from one to the next */
        uint32_t segment, slot; /* in: where to begin, at first 0; out: where to go on */
        uint32_t max_chunks;    /* at most so many; 0: the library's choice */
        uint64_t max_bytes;     /* ends behind the chunk that reaches this; 0: the same */

        uint32_t paths;         /* out: of the store */
        uint32_t segments;      /* of this path; when `segment` reaches it, the path is through */
        uint64_t chunks, bytes; /* looked at, bad ones included */
        uint64_t mismatched;    /* not what was put: dropped */
        uint64_t unreadable;    /* refused by the device: dropped */
        uint64_t skipped;       /* not read, for want of memory and the like: still there */
        uint32_t gave_up;       /* 1: many in a row could not be read: the device is at fault */
};
/* Reads a stretch of one segment back from disk, compares checksums, and drops what is bad: a miss
 * from then on. Needs an admin: -EACCES. -EINVAL: no such path; -EBUSY: too much is being verified
 * already; -EIO: the path is bypassed. */
int kvcache_verify(struct kvcache *kv, struct kvcache_verify *verify);
/* Leaves path `path` of the store aside, from 0 in the order of the status report's store.paths,
 * when all that was begun there has been written: its keys are misses from then on. Resuming probes
 * the device and uses the path again, also one that the daemon has left aside by itself; it may
 * take a second for each million chunks. 0; 1: it was in that state already. Need an admin:
 * -EACCES. -EINVAL: no such path; -EBUSY: the device has not given back what was asked of it
 * before, or another such call is under way; -EIO: the device, and kvcache_error() says what. */
int kvcache_device_suspend(struct kvcache *kv, uint32_t path);
int kvcache_device_resume(struct kvcache *kv, uint32_t path);
/* Round trip, ns. */
int kvcache_ping(struct kvcache *kv, uint64_t *ret_ns);

enum kvcache_report {
        KVCACHE_REPORT_STATUS = 0,  /* JSON */
        KVCACHE_REPORT_STATS = 1,   /* JSON, every metric */
        KVCACHE_REPORT_METRICS = 2, /* Prometheus text */
        KVCACHE_REPORT_CONFIG = 3,  /* YAML; needs an admin: -EACCES */
};
/* A text about the daemon, NUL-terminated, to be freed by the caller with free(). */
int kvcache_report(struct kvcache *kv, enum kvcache_report what, char **ret_text);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
