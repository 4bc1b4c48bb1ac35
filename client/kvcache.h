/* SPDX-License-Identifier: Apache-2.0 */
/* libkvcache: the client library of kvcache-daemon, which keeps the KV-cache blocks of LLM engines
 * in memory and on disk. The calls that administer a daemon are in <kvcache-admin.h>.
 *
 * The library starts threads for GPUDirect Storage only, installs no signal handlers, prints
 * nothing and never exits. Every call that can wait takes a timeout or uses the handle's. A handle
 * belongs to one thread at a time; several handles in one process are independent. After fork(),
 * every call on a handle of the parent returns -ECHILD in the child. When the daemon restarts,
 * requests in flight end with a status, and the next call connects again and maps the new memory.
 *
 * Return values of every function that returns int: 0 means success. A value above 0 is an expected
 * answer, which the function's comment names: a count, an enum kvcache_status, or 1 for "yes" or
 * "already so". A negative value is a negative errno: the call as a whole failed, and
 * kvcache_error() returns the reason as a text. Each key of a request has its own status in its
 * result. The caller recomputes a key whose status is not kvcache_status_ok().
 *
 * Structures grow at their end. If a structure has a member `size`, the caller sets the member
 * to the structure's sizeof; a function that takes or fills an array also takes the size of one
 * element, which the inline functions below pass. A program that was built against an older
 * header runs with a newer library: the library takes members that the program does not know as
 * zero, and does not write them. A program that was built against a newer header runs with an
 * older library as long as the members that the library does not know are zero: the library
 * refuses a structure with another value in such a member (-E2BIG), and sets such members of
 * results to zero. struct kvcache_key, struct kvcache_lease, struct kvcache_loan, struct
 * kvcache_standing and struct iovec never change: they lie in arrays and in other structures. */
#ifndef KVCACHE_H
#define KVCACHE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* The version of this header; kvcache_version() returns that of the loaded library. */
#define KVCACHE_VERSION_MAJOR 0
#define KVCACHE_VERSION_MINOR 2

/* Returns "MAJOR.MINOR.PATCH", a static text. */
const char *kvcache_version(void);

enum { KVCACHE_KEY_BYTES = 32 };

/* The name of a chunk: opaque bytes, usually a hash chained over the whole prefix. A key of 32 zero
 * bytes is invalid. */
struct kvcache_key {
        uint8_t bytes[KVCACHE_KEY_BYTES];
};

/* The result of one key of a request. The numbers are stable. */
enum kvcache_status {
        KVCACHE_OK = 0,
        KVCACHE_MISS = 1,   /* the chunk is not stored, or failed its check */
        KVCACHE_EXISTS = 2, /* put: the chunk was already stored, as durably as requested, and
                               nothing was copied */
        KVCACHE_BUSY = 3, /* no room at the moment, or none until the request's deadline; evict from
                             memory: the chunk is not on disk */
        KVCACHE_TOO_LARGE =
                4, /* put: longer than max_chunk_bytes; get into: longer than the room */
        KVCACHE_NOT_DURABLE = 5, /* put durable: written, but it may not survive power loss */
        KVCACHE_FAILED = 6,      /* the device or a copy failed; put: nothing was stored; evict: the
                                    chunk may be found again after a restart */
        KVCACHE_INVALID = 7,     /* the key, its memory or an argument is invalid */
        KVCACHE_STALE = 8,       /* give back: no such loan in this session */
        KVCACHE_DENIED = 9,      /* the user does not have the right */
        KVCACHE_QUOTA = 10,      /* a limit of this session, user or tenant is reached */
        KVCACHE_MISMATCH = 11,   /* namespace: it exists with another fingerprint */
        KVCACHE_NO_NAMESPACE = 12, /* the namespace does not exist */
        KVCACHE_VERSION = 13,      /* connect: no common version of the protocol */
        KVCACHE_SHUTDOWN = 14,     /* the daemon is stopping */
        KVCACHE_NO_SPACE = 15,     /* nothing was stored: disk full, or, for written and durable,
                                      store.write_budget spent */
        KVCACHE_NOT_EMPTY = 16,    /* namespace: it holds chunks, or the shared tier may */
        /* Set by the library, never by the daemon: */
        KVCACHE_LOST = 100, /* the session ended before the reply */
        /* The deadline passed but the request continues and still owns the memory that it names.
         * The keys of a request that was not sent yet are KVCACHE_BUSY instead: the request was
         * taken back. */
        KVCACHE_PENDING = 101,
        KVCACHE_CANCELLED = 102, /* kvcache_cancel() took effect before the key was processed, and
                                    nothing was done */
};

/* Returns whether the chunk is stored. A chunk with KVCACHE_NOT_DURABLE may not survive power
 * loss. */
static inline int kvcache_status_ok(int status)
{
        return status == KVCACHE_OK || status == KVCACHE_EXISTS || status == KVCACHE_NOT_DURABLE;
}
/* Returns the status's name, a static text. */
const char *kvcache_status_name(int status);

/* The durability that a put has when it is answered. */
enum kvcache_ack {
        KVCACHE_ACCEPTED = 0, /* visible; may be lost with the daemon, or be evicted before it is
                                 written, if the disk is slower than the puts */
        KVCACHE_WRITTEN = 1,  /* survives kill -9 of the daemon */
        KVCACHE_DURABLE = 2,  /* survives power loss */
};

enum kvcache_tier {
        KVCACHE_TIER_MEMORY = 1,
        KVCACHE_TIER_DISK = 2,
        KVCACHE_TIER_ALL = 3,
        KVCACHE_TIER_REMOTE = 4, /* the shared tier of several hosts, if the daemon has one */
};

struct kvcache; /* a handle: a connection, its mappings, and the requests in flight */

struct kvcache_options {
        uint32_t size;           /* sizeof(struct kvcache_options) */
        uint32_t flags;          /* KVCACHE_POPULATE, KVCACHE_NO_LOOKUP, KVCACHE_NO_SPIN */
        const char *socket_path; /* NULL: $KVCACHE_SOCKET, else the default path */
        const char *client_name; /* for the daemon's log, at most 31 bytes; NULL: the program's
                                    name */
        int connect_timeout_ms;  /* 0: 5,000 */
        int request_timeout_ms;  /* timeout of blocking calls, and of requests without their own; 0:
                                    30,000, which a purge, a verify or a device call may exceed */
        uint64_t staging_bytes;  /* size of the staging memory, limited by the daemon; 0: the
                                    daemon's limit */
};
enum {
        KVCACHE_POPULATE = 1 << 0, /* fault in the whole pool mapping at connect: the first touch of
                                      a page costs more than copying it */
        KVCACHE_NO_LOOKUP = 1 << 1, /* EXISTS, MATCH and gets always ask the daemon; see enum
                                       kvcache_op */
        /* Waiting calls sleep at once. Without this flag, and with four processors or more, they
         * first poll for up to 50 us, or 2 ms if the daemon has io.spin: long, while recent answers
         * arrived within that time. */
        KVCACHE_NO_SPIN = 1 << 2,
};

/* Connects, agrees on a version, maps the pool read-only and checks its seals. `*ret` is set on
 * success only. Returns -ENOENT or -ECONNREFUSED if no daemon listens; -EACCES if the user may not
 * connect, or another user listens at a default path in this user's folders or /tmp; -EDQUOT or
 * -EBUSY if too many are connected; -ESHUTDOWN if the daemon is stopping; -EPROTONOSUPPORT if there
 * is no common version; -ETIMEDOUT; -ECONNRESET if the connection was closed without an answer, as
 * by a daemon that could not start; -EPERM if the daemon's memory is not sealed as required;
 * -EBADMSG for a malformed reply; -EINVAL or -E2BIG for invalid options; -ENOMEM. `ret_error` (may
 * be NULL) gets a sentence that describes the failure. */
int kvcache_connect(struct kvcache **ret, const struct kvcache_options *options, char *ret_error,
                    size_t error_bytes);
/* Ends the requests in flight, unmaps the memory and frees the handle. The caller must no longer
 * access data of leases. While a GPU is attached, the call only marks the handle as closed, and the
 * last kvcache_gpu_detach() closes it. NULL is allowed. */
void kvcache_close(struct kvcache *kv);
/* Returns why the last call on this handle failed; an empty text if it succeeded. Never NULL; valid
 * until the next call. */
const char *kvcache_error(const struct kvcache *kv);

/* The daemon's limits as reported at connect, and counters of this handle since then. */
struct kvcache_info {
        uint32_t size; /* in: sizeof(struct kvcache_info) */
        uint32_t protocol_version;
        uint64_t pool_bytes;
        /* Size of the largest chunk: the smaller of a slab of the tenant's pool (an eighth of that
         * pool, rounded down to 2 MiB, from 2 MiB to 64 MiB) and a segment of the store. The size
         * grows with memory.pool, or with the tenant's pool. */
        uint64_t max_chunk_bytes;
        uint64_t staging_bytes; /* size of this handle's staging memory; 0: none yet */
        uint64_t reconnects;    /* number of reconnects of this handle */
        uint8_t instance[16];   /* identifies the daemon's process; changes with a restart */
        uint64_t lookup_bytes;  /* size of the mapped lookup index; 0: none is mapped */
        uint64_t lookups_local; /* keys that this handle has answered from the lookup index */
        uint32_t lends; /* 1: at connect, the daemon lent data files to this user; 0: the daemon
                           does not (io.gds), or is too old to lend any */
        uint32_t takes_files;      /* 1: the daemon accepts KVCACHE_BUFFER_FILE from this user
                                      (io.gds_puts); 0: the daemon does not, or is too old for such
                                      buffers */
        uint32_t shared_tier;      /* 1: the daemon has a tier that it shares with other hosts */
        uint32_t reserved;         /* 0 */
        uint64_t pool_index_bytes; /* size of the mapped pool index; 0: none is mapped */
        uint64_t gets_local; /* keys that this handle has got through the pool index, without the
                                daemon */
};
int kvcache_get_info(struct kvcache *kv, struct kvcache_info *ret);

/* --- namespaces ---
 * A namespace is a name bound to a fingerprint: canonical text of lines "key=value\n", sorted by
 * key, such as model, revision, dtype, layout, block tokens and parallel sizes. Opening a name with
 * another fingerprint fails with -EEXIST, and kvcache_error() names the field. This keeps two
 * configurations from reading each other's bytes.
 *
 * kvcache_namespace_open() opens or creates a namespace and sets `*ret_namespace` to a number,
 * never 0, that stays valid across reconnects. Returns -EEXIST if the fingerprint differs; -ENOENT
 * if the namespace does not exist and KVCACHE_ATTACH is set; -EINVAL if an option is invalid;
 * -EDQUOT if a limit of namespaces is reached; -EIO if the new namespace could not be written;
 * -EOPNOTSUPP if a lifetime is given and the daemon is too old for lifetimes. */
struct kvcache_namespace_options {
        uint32_t size;           /* sizeof(struct kvcache_namespace_options) */
        uint32_t flags;          /* KVCACHE_ATTACH */
        const char *name;        /* 1 to 255 bytes */
        const char *fingerprint; /* NULL, only with KVCACHE_ATTACH: not compared, for tools */
        uint64_t chunk_bytes;    /* size of most chunks: stored without rounding loss; 0: not
                                    declared */
        uint32_t lifetime_s; /* lifetime of chunks after their put, in seconds, if this call creates
                                the namespace; 0: no end. An existing namespace keeps its own: see
                                kvcache_namespace_set_lifetime() */
        uint32_t reserved;   /* 0 */
};
enum {
        KVCACHE_ATTACH = 1 << 0, /* fail unless the namespace exists */
};
int kvcache_namespace_open(struct kvcache *kv, const struct kvcache_namespace_options *options,
                           uint32_t *ret_namespace);

/* --- staging: memory that the daemon shares with this handle, the source of puts and the target of
 * `get into` ---
 *
 * The staging area is created on first use. kvcache_staging_acquire() returns a place aligned to 64
 * bytes. Returns -ENOBUFS if there is no room now (reap, release, try again); -E2BIG if `bytes` can
 * never fit; -EINVAL if `bytes` is 0; -EDQUOT or -EBUSY if the daemon's limits allow no further
 * staging area. A place that a request in flight names belongs to the daemon until the request's
 * completion is reaped. Releasing the place earlier is safe: the library frees it after that
 * completion. */
int kvcache_staging_acquire(struct kvcache *kv, size_t bytes, void **ret_place);
void kvcache_staging_release(struct kvcache *kv, void *place);

/* --- registered buffers: the caller's memory, which the daemon reads and writes directly ---
 *
 * The library does not copy the bytes of a put or a `get into` that lie in a registered buffer. The
 * one exception is a small `get into` of chunks in the daemon's memory, into a mapping that the
 * library made of a file with F_SEAL_SHRINK: a copy is then faster than a message.
 *
 * The daemon moves the bytes between the buffer and the disk without a copy of its own if all
 * pieces of a key lie in registered buffers, the key has at most 64 pieces, each piece begins at a
 * multiple of 4,096 bytes, and all pieces except the last are multiples of 4,096 bytes long (such
 * as a page of K and one of V). In addition, a put must be KVCACHE_WRITTEN or KVCACHE_DURABLE
 * without KVCACHE_KEEP_LEASE, and a get must want a whole chunk that is not in memory.
 *
 * The whole size of a buffer counts against the daemon's limits.registered.
 *
 * A place that a request names belongs to the daemon until the request's completion is reaped;
 * after KVCACHE_PENDING or KVCACHE_LOST, until kvcache_memory_settled() returns 1. A program that
 * changes the bytes of a put earlier, punches holes or truncates the file damages only its own
 * chunks: gets of them miss.
 *
 * A buffer outlives its session. After a reconnect the library registers the buffer again before it
 * sends a request that names it. If the daemon refuses, keys in the buffer are KVCACHE_INVALID, the
 * request's error and kvcache_error() after kvcache_submit() or kvcache_submit_and_wait() give the
 * reason, and the next request tries again. */
struct kvcache_buffer_options {
        uint32_t size;  /* sizeof(struct kvcache_buffer_options) */
        uint32_t flags; /* 0, KVCACHE_BUFFER_FILE */
        int fd; /* a memfd, sealed against shrinking or not, or a file on tmpfs or hugetlbfs, open
                   for reading and writing. The library duplicates the descriptor, and the caller
                   keeps its own */
        uint64_t offset, bytes; /* range of the file: multiples of its page size, not beyond its
                                   end. Missing pages of the range are allocated; the rest of the
                                   file must have no holes. Before Linux 5.14 the range must have no
                                   holes either: write to each page, or call fallocate() */
        void *base; /* address at which the caller has mapped the range shared; NULL: the library
                       maps it, and a child after fork() does not inherit the mapping */
};
enum {
        /* `fd` is a file on a disk (ext4 or XFS), open for reading and writing with O_DIRECT, as a
         * source of puts. The program writes chunks into it by its own means, such as
         * cuFileWrite(), each at a multiple of 4,096 bytes. `*ret_base` is an address that only
         * names the bytes, as `data` of a put's entries: nothing is mapped there, and `base` must
         * be NULL. Puts with `pieces`, and gets, are KVCACHE_INVALID in such a buffer. The daemon
         * copies the bytes of a put into its store, and does not need the file after the put. */
        KVCACHE_BUFFER_FILE = 1 << 0,
};
/* Registers [offset, offset + bytes) of the file with the daemon. Sets `*ret_buffer` to the
 * handle's number for the buffer and `*ret_base`, which may be NULL if `base` is given, to the
 * address of its mapping. Returns -EINVAL if an option is invalid, the memory at `base` overlaps a
 * registered buffer or 64 are registered, and kvcache_error() says which; -EDQUOT or -EBUSY if
 * limits.registered is exceeded; -EIO if the daemon could not map the file; -EOPNOTSUPP or -EACCES
 * if the daemon accepts no KVCACHE_BUFFER_FILE, or none from this user (io.gds_puts). */
int kvcache_buffer_register(struct kvcache *kv, const struct kvcache_buffer_options *options,
                            uint32_t *ret_buffer, void **ret_base);
/* Unregisters the buffer and unmaps the library's mapping. Waits for requests in flight that name
 * the buffer, including those sent to a daemon that has ended; after 0 only the caller accesses the
 * memory. Does not connect. Returns -EINVAL if there is no such buffer. After any other error, such
 * as -ETIMEDOUT after the handle's request timeout, the memory is still mapped and the daemon may
 * still move bytes there. Later requests treat the buffer as unregistered memory; call again to
 * continue waiting. kvcache_close() unregisters all buffers without waiting: unregister first if
 * requests may be in flight. */
int kvcache_buffer_unregister(struct kvcache *kv, uint32_t buffer);

/* Returns 1 if memory in staging or a registered buffer may be reused, 0 if a request may still
 * move bytes there, including one that timed out or was lost with a daemon. The address must be one
 * that the requests named: another mapping of the same file is not recognized. */
int kvcache_memory_settled(struct kvcache *kv, const void *data, size_t bytes);

/* --- requests --- */

enum kvcache_op {
        KVCACHE_OP_PUT = 1, /* stores `length` bytes from `data`, or the bytes of `pieces` */
        /* Returns the chunk in place: results carry `data` in the pool and a lease to release. The
         * library itself answers keys in memory where it can, from the tenant's pool index. The
         * daemon maintains that index in shared memory, and the library asks for it once some keys
         * were found in memory. A request answered this way is complete when the call returns. */
        KVCACHE_OP_GET = 2,
        /* Copies the chunk to `data`, `length` bytes of room, or to `pieces`. The daemon copies if
         * all targets of the request are in staging or in registered buffers; otherwise the library
         * copies when the reply arrives. If the pool index has all keys, the library copies them
         * itself, except to targets in staging or registered buffers if the request is above 4 MiB
         * or other requests are not reaped yet, because the daemon's workers are faster then, or if
         * a target's file may be truncated. */
        KVCACHE_OP_GET_INTO = 3,
        /* EXISTS and MATCH: the library answers these requests itself where it can, from the
         * tenant's lookup index. The daemon maintains that index in shared memory, and the library
         * asks for it with the first of these requests. A request answered this way is complete
         * when the call returns, and the daemon does not learn of it. A stored key that is not put
         * or evicted meanwhile is never reported absent. An absent key may be reported present for
         * three seconds after the daemon was killed, or while the volume that had the chunk is
         * bypassed; a get of the key then misses. */
        KVCACHE_OP_EXISTS = 4,
        KVCACHE_OP_MATCH = 5, /* counts the stored keys before the first key that is not stored; the
                                 completion's `value` is their number */
        KVCACHE_OP_TOUCH = 6,
        KVCACHE_OP_EVICT = 7,
        KVCACHE_OP_STAT = 8,
        /* Reads chunks from disk into the pool for a later get; the answer does not wait for the
         * read. Status of each key: KVCACHE_OK if the chunk is in memory or its read is pending;
         * KVCACHE_MISS; KVCACHE_BUSY if there is no room now, requests of the user wait for room,
         * or the limit of pending reads is reached; KVCACHE_TOO_LARGE; KVCACHE_SHUTDOWN. The users
         * of a tenant share the limit of pending reads, which is a quarter of the pool, 128 MiB or
         * 1,024 chunks, whichever is reached first. */
        KVCACHE_OP_PREFETCH = 9,
        /* Ends loans; `loans` replaces entries and keys, and no namespace is given. KVCACHE_OK for
         * a loan means that the bytes read before this call are those of the chunk. After any other
         * status, discard the bytes: the chunk was purged or found bad, its volume failed, or the
         * daemon ended meanwhile. */
        KVCACHE_OP_GIVE_BACK = 10,
        /* Tells the eviction policy when a chain will be used again: in about `return_s` seconds,
         * or never if `return_s` is 0, so that the chain is evicted first. The keys are those of
         * one chain, root first; chunks that another chain continues from are left unchanged.
         * Submit the hint when the requests that use the chain are complete.
         *
         * A hint is advice. The daemon learns how reliable hints are, evicts or keeps nothing
         * because of a hint alone, and leaves leases and data unchanged. The next use of a key
         * cancels its hint. Status of each key: KVCACHE_OK if it is stored, KVCACHE_MISS otherwise.
         * -EOPNOTSUPP if the daemon is too old; only the hint is lost. */
        KVCACHE_OP_HINT = 11,
        /* PIN: exempts the chunk on disk from eviction until UNPIN, within the tenant's share of
         * pinned bytes (tenants.pinned_bytes). Pins belong to the tenant rather than the session.
         * Pins survive a restart of the daemon; those of the last ten minutes
         * (eviction.save_interval) are lost if it is killed. EVICT and PURGE drop a pinned chunk
         * like any other.
         *
         * Status of each key: KVCACHE_OK; KVCACHE_MISS if the chunk is absent, or only in memory
         * because its write failed or the write budget was spent; KVCACHE_BUSY if the chunk is not
         * on disk yet: ask again when its put is WRITTEN; KVCACHE_QUOTA if the tenant has pinned as
         * much as it may. Pinning or unpinning twice is OK. -EOPNOTSUPP if the daemon is too
         * old. */
        KVCACHE_OP_PIN = 12,
        KVCACHE_OP_UNPIN = 13,
        /* Gives the daemon `advice` about the keys: see enum kvcache_advice. Status of each key:
         * for PIN, UNPIN and PREFETCH, that of the operation of the same name; for DEMOTE and
         * SHARE, see there; for all other advice, that of HINT. -EOPNOTSUPP if the daemon does not
         * know this advice; the request is then not sent, and nothing else is affected. */
        KVCACHE_OP_ADVISE = 14,
};

/* Advice tells the daemon how a chain will be used. KVCACHE_OP_ADVISE carries it, in the same form
 * for every engine. The keys are those of one chain, root first. Advice about reuse (RETURN, FINAL,
 * TOOL_CALL, TURN_END) goes to the eviction policies of both tiers. Submit advice about reuse when
 * the requests that use the chain are complete; the advice ends with the chain's next use.
 *
 * The daemon measures, for each user, the share of the latest announcements of reuse that came
 * true, and ignores the announcements of a user with a share below one half. A new user is
 * believed for 16 chains at first. If a chain is announced again without a use after half of the
 * announced time, the earlier announcement was false. Therefore a user gains nothing by
 * announcing the same for every chain. */
enum kvcache_advice {
        KVCACHE_ADVICE_NONE = 0,
        KVCACHE_ADVICE_RETURN = 1, /* used again in about `return_s` seconds, 1 or more; true if the
                                      chain is used after half of that time to twice that time */
        KVCACHE_ADVICE_FINAL = 2,  /* never used again: evicted first, except chunks that another
                                      chain continues */
        KVCACHE_ADVICE_TOOL_CALL = 3, /* the engine stopped for a tool call: used again soon; true
                                         if used within two minutes */
        KVCACHE_ADVICE_TURN_END = 4,  /* the engine ended its turn: used again later; true if not
                                         used within 20 seconds */
        KVCACHE_ADVICE_PIN = 5,       /* as KVCACHE_OP_PIN */
        KVCACHE_ADVICE_UNPIN = 6,     /* as KVCACHE_OP_UNPIN */
        KVCACHE_ADVICE_DEMOTE = 7, /* drop the copy in memory: KVCACHE_OK; KVCACHE_BUSY if the chunk
                                      is in use, or not on disk yet */
        KVCACHE_ADVICE_PREFETCH = 8, /* as KVCACHE_OP_PREFETCH */
        /* Other hosts will use the chunks: offer those in memory to the shared tier. KVCACHE_OK
         * also if the daemon has no shared tier. */
        KVCACHE_ADVICE_SHARE = 9,
};

/* The name of a lease, valid in the handle that took the lease. */
struct kvcache_lease {
        uint32_t id, generation;
};

/* Permission to read a chunk directly from disk, with cuFileRead() or pread(): `length` bytes at
 * `offset` of the data file whose descriptor kvcache_lent_file() returns. `offset` is a multiple of
 * 4,096. Whole pages may be read; the bytes after `length` in the last page are undefined. The
 * bytes are valid only after KVCACHE_OP_GIVE_BACK returned KVCACHE_OK for the loan, because no
 * checksum is compared during the read. A loan ends with its session. */
struct kvcache_loan {
        uint64_t session; /* number of the handle's session */
        uint64_t offset;
        uint32_t file; /* number of the file in the session; a session never uses a number for two
                          files */
        uint32_t length;
        uint32_t id, generation; /* generation 0: no chunk is lent */
};

/* Why a GET with KVCACHE_LEND did not lend a chunk that is on disk. Stable numbers. */
enum kvcache_not_lent {
        KVCACHE_NOT_LENT_NONE = 0,       /* the chunk was lent, came from memory, or is a miss */
        KVCACHE_NOT_LENT_DENIED = 1,     /* the daemon does not lend to this user (io.gds) */
        KVCACHE_NOT_LENT_UNVERIFIED = 2, /* not read back since the daemon started; the daemon
                                            verifies it now */
        KVCACHE_NOT_LENT_VOLUME = 3, /* the volume has no O_DIRECT, or cannot tell whether a file
                                        is open elsewhere */
        KVCACHE_NOT_LENT_LIMIT = 4,  /* the limit of loans of this user, or of all, is reached */
};

/* One key of a request. The keys of a request form a chain, root first; keys that form no chain are
 * served in the same way. */
struct kvcache_entry {
        struct kvcache_key key;
        void *data; /* PUT: the bytes, used in place if they lie in staging or a registered buffer,
                       otherwise copied to staging first. GET_INTO: room for the bytes */
        uint64_t length;       /* PUT: 1 to max_chunk_bytes. GET_INTO: room at data */
        uint64_t range_offset; /* GET, GET_INTO: first byte wanted, as an offset in the chunk */
        uint64_t range_length; /* GET, GET_INTO: length in bytes; 0: to the chunk's end */
        /* PUT, GET_INTO: the bytes, or the room for them, in several non-empty places of any
         * memory, in order; `data` and `length` are then ignored. A key whose pieces all lie in
         * staging or registered buffers is sent without a copy and may have at most 4,088 of them,
         * otherwise -E2BIG. The library gathers or scatters the pieces of other keys. The array is
         * read during the call only. */
        const struct iovec *pieces;
        uint32_t n_pieces; /* 0: `data`, `length` */
        /* PUT: cost of computing the bytes again, in microseconds of an engine that does nothing
         * else; 0: not declared. Later blocks of a long prompt cost more than early ones, and
         * blocks of a large model more than those of a small one. All else being equal, the
         * eviction policy keeps chunks with a higher cost per byte for longer. A chunk without a
         * declared cost counts as the mean of the others. Other operations and older daemons ignore
         * the member. */
        uint32_t cost_us;
};

/* The class that the eviction policy of a tier assigns to a chunk. Stable numbers. */
enum kvcache_class {
        KVCACHE_CLASS_NONE = 0,           /* not in that tier, or not reported by the daemon */
        KVCACHE_CLASS_ONCE = 1,           /* used once */
        KVCACHE_CLASS_ONCE_CONTINUED = 2, /* used once, inserted by a later turn of a session */
        KVCACHE_CLASS_ONCE_END = 3,       /* used once, the end of its chain */
        KVCACHE_CLASS_TWICE = 4,
        KVCACHE_CLASS_THRICE = 5,
        KVCACHE_CLASS_4_TO_5 = 6,
        KVCACHE_CLASS_6_TO_11 = 7,
        KVCACHE_CLASS_12 = 8,        /* 12 times or more */
        KVCACHE_CLASS_RETURN_60 = 9, /* a HINT announced a use in 60 s or less */
        KVCACHE_CLASS_RETURN_600 = 10,
        KVCACHE_CLASS_RETURN = 11,  /* a HINT announced a use in more than 600 s */
        KVCACHE_CLASS_FINAL = 12,   /* a HINT declared that its chain has ended */
        KVCACHE_CLASS_RECENCY = 13, /* the policy uses recency alone */
        KVCACHE_CLASS_GAP_10 = 14,  /* the mean time between uses of the chain is at most 10 s; the
                                       following classes: 20, 40, 80 s */
        KVCACHE_CLASS_GAP_20 = 15,
        KVCACHE_CLASS_GAP_40 = 16,
        KVCACHE_CLASS_GAP_80 = 17,
};

enum {
        KVCACHE_STANDING_NEXT = 1 << 0,      /* evicted next among chunks of its size */
        KVCACHE_STANDING_PINNED = 1 << 1,    /* in use by a lease, a loan or I/O: not evicted
                                                meanwhile */
        KVCACHE_STANDING_CONTINUED = 1 << 2, /* a chunk that continues the chain is stored and is
                                                evicted first */
        KVCACHE_STANDING_RETAINED = 1 << 3,  /* pinned by a client: not evicted */
        /* The bits from this one on are a code for the declared cost of recomputing one byte. Code
         * 0: not declared; code n: 0.05 ns times the square root of two to the power of n - 1. */
        KVCACHE_STANDING_COST_BIT = 4,
};

struct kvcache_standing {
        uint32_t age;  /* uses of chunks in the tier since the last use of this one */
        int16_t worth; /* 256 times the binary logarithm of a ratio: the hits per time kept that are
                          expected of the chunk, over those of the least valuable chunk of its size.
                          INT16_MAX: that value or more, or only the latter has no expected hits;
                          INT16_MIN: only the former has none; 0 also if both have none */
        uint8_t reuse_class; /* enum kvcache_class; a later daemon may report more */
        uint8_t flags;
};

struct kvcache_result {
        int status;      /* enum kvcache_status */
        uint32_t tiers;  /* GET: the tier that supplied it; EXISTS, STAT: the tiers that have it
                            (enum kvcache_tier); MATCH: KVCACHE_TIER_REMOTE, or 0 */
        uint64_t length; /* GET, GET_INTO: bytes returned; PUT, STAT: size of the chunk */
        uint64_t chunk_length; /* GET, GET_INTO: size of the whole chunk */
        const void *data; /* GET, PUT with KVCACHE_KEEP_LEASE: the bytes in the pool, read-only,
                             until `lease` is released */
        struct kvcache_lease lease; /* generation 0: no lease was taken */
        uint64_t created_ms;      /* STAT: Unix time of the put; 0: the chunk is not on disk yet */
        uint32_t crc32c;          /* STAT: checksum of the chunk */
        uint32_t leases;          /* STAT: number of leases on the chunk, of all sessions */
        struct kvcache_loan loan; /* GET with KVCACHE_LEND; generation 0: the chunk is in `data` */
        uint32_t not_lent;        /* GET with KVCACHE_LEND: enum kvcache_not_lent */
        uint32_t reserved;
        struct kvcache_standing memory, disk; /* STAT: the chunk's rank for eviction in each tier */
};

enum {
        /* PUT, GET: return KVCACHE_BUSY instead of waiting for room. An accepted put does not wait
         * for a slow disk either: its chunk stays in memory, and may be evicted before it is
         * written. */
        KVCACHE_NOWAIT = 1 << 0,
        KVCACHE_KEEP_LEASE = 1 << 1, /* PUT: keep a lease on each chunk */
        KVCACHE_MORE = 1 << 2, /* PUT, GET, GET_INTO, TOUCH, PREFETCH: the chain continues in the
                                  next such request, whose `parent` is the last key of this one.
                                  A get of the stored keys and a put of the rest then form one
                                  chain, whose recency is set from its end to its root, so that
                                  ends are evicted first */
        KVCACHE_LEND = 1 << 3, /* GET, whole chunks: lend chunks on disk that are not in memory, if
                                  allowed; `loan` locates them. Other chunks are returned as usual,
                                  and `not_lent` gives the reason */
        /* EXISTS, MATCH, STAT: also include keys of the shared tier, as far as the daemon knows
         * them without waiting for that tier. MATCH also counts the keys in the shared tier that
         * follow the leading run. If the daemon is still searching, the status of the first unknown
         * key is KVCACHE_BUSY; asking again a little later finds more. A get waits for the shared
         * tier, up to its timeout, unless it is KVCACHE_NOWAIT; a prefetch fetches chunks from
         * there. A daemon without a shared tier, or one that is too old, ignores the flag. */
        KVCACHE_REMOTE = 1 << 4,
};

struct kvcache_request {
        uint32_t size;        /* sizeof(struct kvcache_request) */
        uint32_t entry_size;  /* sizeof(struct kvcache_entry); 0 if there are no entries */
        uint32_t result_size; /* sizeof(struct kvcache_result); 0 if there are no results */
        enum kvcache_op op;
        uint32_t namespace_handle;
        uint32_t flags;
        enum kvcache_ack ack; /* PUT */
        uint32_t tiers;       /* EVICT: KVCACHE_TIER_MEMORY or KVCACHE_TIER_ALL; 0: all */
        const struct kvcache_entry *entries; /* read during the call only */
        const struct kvcache_key *keys; /* instead of entries for GET (whole chunks), EXISTS, MATCH,
                                           TOUCH, EVICT, STAT, PREFETCH, HINT, PIN, UNPIN, ADVISE */
        size_t count; /* any number; keys that do not fit into one message are sent as several
                         messages of one chain */
        const struct kvcache_key *parent; /* the key before the first; NULL: the first is a root.
                                             KVCACHE_ADVICE_RETURN: with it, the daemon reads a
                                             chain that is announced in several requests, its end
                                             first, from its beginning */
        struct kvcache_result *results;   /* `count` of them, owned by the caller; written before
                                             the completion is reaped. May be NULL for MATCH,
                                             TOUCH, PREFETCH, HINT and ADVISE */
        uint64_t user_data;               /* returned with the completion */
        int timeout_ms; /* 0: the handle's timeout. When the time has passed, keys without a status
                           get KVCACHE_PENDING, or KVCACHE_BUSY if the request was not sent */
        uint32_t return_s; /* HINT: seconds until the next use, 0 if the chain is final; with
                              KVCACHE_ADVICE_RETURN: seconds, 1 or more; else 0 */
        const struct kvcache_loan *loans; /* GIVE_BACK: `count` of them; else NULL */
        /* ADVISE: the advice. PUT: KVCACHE_ADVICE_RETURN or KVCACHE_ADVICE_FINAL if the chain's
         * next use is known before the chunks are stored, so that chunks that are needed late do
         * not displace those needed sooner; a daemon that is too old ignores the advice. Else 0. */
        enum kvcache_advice advice;
        uint32_t reserved;
};

/* --- preparing requests ---
 * Each function sets every member of `*request`; the caller then sets parent, flags, timeout_ms and
 * user_data as needed. The caller owns the arrays: entries and keys are read during
 * kvcache_submit() or kvcache_submit_and_wait() only, and results are written until the completion
 * is reaped. A timeout_ms of 0 selects the handle's timeout. */
static inline void kvcache_prep(struct kvcache_request *request, enum kvcache_op op,
                                uint32_t namespace_handle, size_t count,
                                struct kvcache_result *results)
{
        memset(request, 0, sizeof(*request));
        request->size = (uint32_t)sizeof(*request);
        request->entry_size = (uint32_t)sizeof(struct kvcache_entry);
        request->result_size = (uint32_t)sizeof(struct kvcache_result);
        request->op = op;
        request->namespace_handle = namespace_handle;
        request->count = count;
        request->results = results;
}

static inline void kvcache_prep_put(struct kvcache_request *request, uint32_t namespace_handle,
                                    const struct kvcache_entry *entries, size_t count,
                                    enum kvcache_ack ack, struct kvcache_result *results)
{
        kvcache_prep(request, KVCACHE_OP_PUT, namespace_handle, count, results);
        request->entries = entries;
        request->ack = ack;
}

/* Prepares a get of whole chunks in place, in the pool. */
static inline void kvcache_prep_get(struct kvcache_request *request, uint32_t namespace_handle,
                                    const struct kvcache_key *keys, size_t count,
                                    struct kvcache_result *results)
{
        kvcache_prep(request, KVCACHE_OP_GET, namespace_handle, count, results);
        request->keys = keys;
}

static inline void kvcache_prep_get_into(struct kvcache_request *request, uint32_t namespace_handle,
                                         const struct kvcache_entry *entries, size_t count,
                                         struct kvcache_result *results)
{
        kvcache_prep(request, KVCACHE_OP_GET_INTO, namespace_handle, count, results);
        request->entries = entries;
}

static inline void kvcache_prep_exists(struct kvcache_request *request, uint32_t namespace_handle,
                                       const struct kvcache_key *keys, size_t count,
                                       struct kvcache_result *results)
{
        kvcache_prep(request, KVCACHE_OP_EXISTS, namespace_handle, count, results);
        request->keys = keys;
}

/* Prepares a MATCH; the answer is the completion's `value`. */
static inline void kvcache_prep_match(struct kvcache_request *request, uint32_t namespace_handle,
                                      const struct kvcache_key *keys, size_t count)
{
        kvcache_prep(request, KVCACHE_OP_MATCH, namespace_handle, count, NULL);
        request->keys = keys;
}

/* Prepares a TOUCH; `results` may be NULL. */
static inline void kvcache_prep_touch(struct kvcache_request *request, uint32_t namespace_handle,
                                      const struct kvcache_key *keys, size_t count,
                                      struct kvcache_result *results)
{
        kvcache_prep(request, KVCACHE_OP_TOUCH, namespace_handle, count, results);
        request->keys = keys;
}

static inline void kvcache_prep_evict(struct kvcache_request *request, uint32_t namespace_handle,
                                      const struct kvcache_key *keys, size_t count, uint32_t tiers,
                                      struct kvcache_result *results)
{
        kvcache_prep(request, KVCACHE_OP_EVICT, namespace_handle, count, results);
        request->keys = keys;
        request->tiers = tiers;
}

static inline void kvcache_prep_stat(struct kvcache_request *request, uint32_t namespace_handle,
                                     const struct kvcache_key *keys, size_t count,
                                     struct kvcache_result *results)
{
        kvcache_prep(request, KVCACHE_OP_STAT, namespace_handle, count, results);
        request->keys = keys;
}

/* Prepares a PREFETCH; `results` may be NULL. */
static inline void kvcache_prep_prefetch(struct kvcache_request *request, uint32_t namespace_handle,
                                         const struct kvcache_key *keys, size_t count,
                                         struct kvcache_result *results)
{
        kvcache_prep(request, KVCACHE_OP_PREFETCH, namespace_handle, count, results);
        request->keys = keys;
}

/* Prepares a HINT: `return_s` is the expected time until the next use, 0 if the chain is final.
 * `results` may be NULL. */
static inline void kvcache_prep_hint(struct kvcache_request *request, uint32_t namespace_handle,
                                     const struct kvcache_key *keys, size_t count,
                                     uint32_t return_s, struct kvcache_result *results)
{
        kvcache_prep(request, KVCACHE_OP_HINT, namespace_handle, count, results);
        request->keys = keys;
        request->return_s = return_s;
}

/* Prepares an ADVISE. `return_s`: for KVCACHE_ADVICE_RETURN, 1 or more; otherwise 0. `results` may
 * be NULL. */
static inline void kvcache_prep_advise(struct kvcache_request *request, uint32_t namespace_handle,
                                       const struct kvcache_key *keys, size_t count,
                                       enum kvcache_advice advice, uint32_t return_s,
                                       struct kvcache_result *results)
{
        kvcache_prep(request, KVCACHE_OP_ADVISE, namespace_handle, count, results);
        request->keys = keys;
        request->advice = advice;
        request->return_s = return_s;
}

static inline void kvcache_prep_pin(struct kvcache_request *request, uint32_t namespace_handle,
                                    const struct kvcache_key *keys, size_t count,
                                    struct kvcache_result *results)
{
        kvcache_prep(request, KVCACHE_OP_PIN, namespace_handle, count, results);
        request->keys = keys;
}

static inline void kvcache_prep_unpin(struct kvcache_request *request, uint32_t namespace_handle,
                                      const struct kvcache_key *keys, size_t count,
                                      struct kvcache_result *results)
{
        kvcache_prep(request, KVCACHE_OP_UNPIN, namespace_handle, count, results);
        request->keys = keys;
}

static inline void kvcache_prep_give_back(struct kvcache_request *request,
                                          const struct kvcache_loan *loans, size_t count,
                                          struct kvcache_result *results)
{
        kvcache_prep(request, KVCACHE_OP_GIVE_BACK, 0, count, results);
        request->loans = loans;
}

/* --- asynchronous: submit, wait until kvcache_fd() is readable, reap --- */

struct kvcache_completion {
        uint64_t user_data;
        uint64_t value; /* MATCH: number of stored keys before the first one that is not stored */
        int error;      /* 0, or -errno of the request as a whole; each result also has a status */
        enum kvcache_op op;
        size_t count;
};

/* Sends the request, or queues it if the daemon has enough in flight. Returns -ENOBUFS if the data
 * does not fit into staging now; -E2BIG if it never does, a key has more pieces than a message
 * holds, or a member is set that the library does not know; -EINVAL if the request is invalid;
 * -ENOTCONN if there is no daemon and reconnecting failed; -EOPNOTSUPP if the daemon is too old for
 * the operation; -ENOMEM; after a reconnect also the errors of kvcache_namespace_open() and
 * kvcache_staging_acquire(), and -ETIMEDOUT. After an error there is no completion. */
int kvcache_submit(struct kvcache *kv, const struct kvcache_request *request);
/* Returns an epoll descriptor that covers the socket and the deadlines of requests, and is readable
 * when kvcache_reap() has something to do. The library owns the descriptor, which stays the same
 * across reconnects. */
int kvcache_fd(const struct kvcache *kv);
/* Takes up to `max` completions. Waits at most timeout_ms for the first (0: does not wait; < 0:
 * until there is one or no request is in flight). Returns the number of completions. */
int kvcache_reap_sized(struct kvcache *kv, struct kvcache_completion *ret, size_t completion_size,
                       size_t max, int timeout_ms);
static inline int kvcache_reap(struct kvcache *kv, struct kvcache_completion *ret, size_t max,
                               int timeout_ms)
{
        return kvcache_reap_sized(kv, ret, sizeof(*ret), max, timeout_ms);
}
/* Cancels the incomplete requests with this user_data, without waiting. A request that was not sent
 * is taken back: its keys end with KVCACHE_CANCELLED and its error is -ECANCELED. The daemon
 * cancels the keys of a PUT or a GET that wait for room or for a read; all other keys end as usual.
 * Each request still has its completion, which kvcache_reap() returns, and owns the memory that it
 * names until then. Returns the number of requests found, 0 or more. If the daemon is too old, only
 * requests that were not sent are cancelled. */
int kvcache_cancel(struct kvcache *kv, uint64_t user_data);
/* Returns the number of requests submitted and not yet reaped. */
size_t kvcache_inflight(const struct kvcache *kv);

/* Reports that `keys` stored keys of the namespace are not fetched, because computing them is
 * faster. The count appears in kvcache_loads_declined_total and as "declined" in kvcachectl status.
 * The call adds to a counter in shared memory and sends no message. Returns 0 if the keys were
 * counted, or 1 if they were not, which affects nothing else: this session has not requested the
 * lookup index or opened the namespace yet, or the daemon has no lookup index or is too old.
 * Returns -EINVAL if there is no such namespace. */
int kvcache_count_declined(struct kvcache *kv, uint32_t namespace_handle, uint64_t keys);

/* Releases leases; the caller must no longer access the data. The release is sent with the next
 * request, by kvcache_flush(), or when many are waiting. Leases that were released before are
 * ignored. Returns 0; -EINVAL; -ENOMEM, and the session is then ended, which ends its leases in the
 * daemon. */
int kvcache_release(struct kvcache *kv, const struct kvcache_lease *leases, size_t n);
/* Sends queued releases, and queued requests as far as the daemon accepts them, without waiting for
 * replies. Returns 0, also if there is no session; -ENOMEM; another negative errno if the session
 * ends during the call. */
int kvcache_flush(struct kvcache *kv);

/* Finds the pool that leased bytes lie in, for kvcache_gpu_copy_leased(). The id names the pool's
 * memory: it is never 0, and is the same in each process of the host that maps this pool, also
 * after a restart that keeps the pool. No two pools that are mapped at a time have the same id.
 * `*ret_offset` is the position of `data` in the pool. Returns -ENOENT if `data` is in no pool that
 * this handle maps. */
int kvcache_pool_of(struct kvcache *kv, const void *data, uint64_t *ret_pool_id,
                    uint64_t *ret_offset);

/* Asks the daemon for a descriptor of the loan's data file, read-only and O_DIRECT. The caller owns
 * and closes it, and may keep it while the session lasts (loan.session). Returns -ESTALE if the
 * loan belongs to an earlier session or no chunk of the file is lent; -EACCES if the daemon no
 * longer lends to this user; -EIO if the file cannot be opened; -EBUSY if too many replies with
 * descriptors are unread; -EINVAL. */
int kvcache_lent_file(struct kvcache *kv, const struct kvcache_loan *loan, int *ret_fd);

/* --- blocking --- */

/* Submits any request, whatever its size, and waits for it. A put that does not fit into staging is
 * sent in parts; -E2BIG if one chunk is longer than staging, or has more pieces than a message
 * holds. Each result has a status, also after an error, unless the request itself is invalid
 * (-EINVAL, or -E2BIG for members that the library does not know): the results are then unchanged.
 * `ret_value` (may be NULL) gets the answer of MATCH. */
int kvcache_submit_and_wait(struct kvcache *kv, const struct kvcache_request *request,
                            uint64_t *ret_value);
/* kvcache_put(), kvcache_get() and kvcache_get_map() handle one key. Each returns the key's status,
 * or a negative errno if the request was not sent. */
int kvcache_put(struct kvcache *kv, uint32_t namespace_handle, const struct kvcache_key *key,
                const void *data, size_t length, enum kvcache_ack ack);
/* Copies the chunk into `buffer`. `*ret_length` (may be NULL) is set to the chunk's length with
 * KVCACHE_OK, and with KVCACHE_TOO_LARGE if it does not fit into `room` bytes. */
int kvcache_get(struct kvcache *kv, uint32_t namespace_handle, const struct kvcache_key *key,
                void *buffer, size_t room, size_t *ret_length);
/* Returns the chunk in place; ret->data is valid until kvcache_release(kv, &ret->lease, 1). */
int kvcache_get_map_sized(struct kvcache *kv, uint32_t namespace_handle,
                          const struct kvcache_key *key, struct kvcache_result *ret,
                          size_t result_size);
static inline int kvcache_get_map(struct kvcache *kv, uint32_t namespace_handle,
                                  const struct kvcache_key *key, struct kvcache_result *ret)
{
        return kvcache_get_map_sized(kv, namespace_handle, key, ret, sizeof(*ret));
}

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
