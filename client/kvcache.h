/* SPDX-License-Identifier: Apache-2.0 */
/* libkvcache: the client library of kvcache-daemon, which keeps the KV-cache blocks of LLM engines
 * in memory and on disk. The calls that administer a daemon are in <kvcache-admin.h>.
 *
 * The library starts no threads, installs no signal handlers, prints nothing and never exits. Every
 * call that can wait takes a timeout or uses the handle's. A handle belongs to one thread at a
 * time; several handles in one process are independent. After fork(), every call on a handle of the
 * parent returns -ECHILD in the child. When the daemon restarts, requests in flight end with a
 * status, and the next call connects again and maps the new memory.
 *
 * Return values, for every function that returns int:
 *   0       success
 *   > 0     an expected answer, which the function's comment names: a count, an enum
 *           kvcache_status, or 1 for "yes" or "already so"
 *   < 0     a negative errno: the call as a whole failed, and kvcache_error() says why in words
 * Each key of a request has its own status in its result. The caller recomputes a key whose status
 * is not kvcache_status_ok().
 *
 * Structures grow at their end. Those with a member `size` are set to sizeof by the caller; where
 * an array crosses, the size of one element crosses with it (the inline functions below pass it). A
 * program that was built against an older header runs with a newer library: members that it does
 * not know are taken as zero and are not written. A program that was built against a newer header
 * runs with an older library as long as the members that the library does not know are zero: a
 * structure in which one is not is refused with -E2BIG, and such members of results are set to
 * zero. struct kvcache_key, struct kvcache_lease, struct kvcache_loan, struct kvcache_standing and
 * struct iovec never change: they lie in arrays and in other structures. */
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

/* The name of a chunk: opaque bytes, usually a hash chained over the whole prefix. All zero bytes
 * are no key. */
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
        KVCACHE_NO_SPACE =
                15, /* nothing is stored; written, durable: also for store.write_budget */
        KVCACHE_NOT_EMPTY = 16,
        /* The library's own: */
        KVCACHE_LOST = 100, /* the daemon ended before it replied */
        /* The deadline passed and the request goes on: memory that it names still belongs to it.
         * (The keys of a request that was not sent yet are KVCACHE_BUSY: it was taken back.) */
        KVCACHE_PENDING = 101,
        KVCACHE_CANCELLED = 102, /* kvcache_cancel() came first: nothing was done */
};

/* Returns whether the chunk is stored. A chunk with KVCACHE_NOT_DURABLE may not survive power loss.
 */
static inline int kvcache_status_ok(int status)
{
        return status == KVCACHE_OK || status == KVCACHE_EXISTS || status == KVCACHE_NOT_DURABLE;
}
/* Returns the status's name, a static text. */
const char *kvcache_status_name(int status);

/* The durability that a put has when it is answered. */
enum kvcache_ack {
        KVCACHE_ACCEPTED = 0, /* visible; may be lost with the daemon */
        KVCACHE_WRITTEN = 1,  /* survives kill -9 of the daemon */
        KVCACHE_DURABLE = 2,  /* survives power loss */
};

enum kvcache_tier {
        KVCACHE_TIER_MEMORY = 1,
        KVCACHE_TIER_DISK = 2,
        KVCACHE_TIER_ALL = 3,
        KVCACHE_TIER_REMOTE = 4, /* the shared tier of several hosts, if the daemon has one */
};

struct kvcache; /* a handle: a connection, its mappings, and what is in flight */

struct kvcache_options {
        uint32_t size;           /* sizeof(struct kvcache_options) */
        uint32_t flags;          /* KVCACHE_POPULATE, KVCACHE_NO_LOOKUP, KVCACHE_NO_SPIN */
        const char *socket_path; /* NULL: $KVCACHE_SOCKET, else the default path */
        const char
                *client_name; /* for the daemon's log, at most 31 bytes; NULL: the program's name */
        int connect_timeout_ms; /* 0: 5,000 */
        int request_timeout_ms; /* timeout of blocking calls, and of requests without their own; 0:
                                   30,000, which a purge, a verify or a device call may exceed */
        uint64_t staging_bytes; /* size of the staging memory, limited by the daemon; 0: the
                                   daemon's limit */
};
enum {
        KVCACHE_POPULATE = 1 << 0, /* fault the whole pool mapping in at connect: the first touch of
                                      a page costs more than copying it */
        KVCACHE_NO_LOOKUP = 1 << 1, /* EXISTS, MATCH and gets always ask the daemon: see there */
        KVCACHE_NO_SPIN = 1 << 2,   /* a call that waits for an answer sleeps at once. Without it,
                                       and on four processors or more, it polls for 50 us at most
                                       first (2 ms, where the daemon does: io.spin), as long as
                                       recent answers have come that soon */
};

/* Connects, agrees on a version, maps the pool read-only and checks its seals. `*ret` is set on
 * success only. Returns -ENOENT or -ECONNREFUSED if no daemon listens; -EACCES if the user may not
 * connect; -EDQUOT or -EBUSY if too many are connected; -EPROTONOSUPPORT if there is no common
 * version; -ETIMEDOUT; -ECONNRESET if the connection was closed without an answer, as by a daemon
 * that could not start; -EPERM if the daemon's memory is not sealed as required;
 * -EBADMSG for a malformed reply. `ret_error` (may be NULL) gets a sentence. */
int kvcache_connect(struct kvcache **ret, const struct kvcache_options *options, char *ret_error,
                    size_t error_bytes);
/* Ends the requests in flight, unmaps the memory and frees the handle. The caller must no longer
 * access data of leases. With a GPU attached, kvcache_gpu_detach() does that. NULL is allowed. */
void kvcache_close(struct kvcache *kv);
/* Returns why the last call on this handle failed. Never NULL; valid until the next call. */
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
        uint64_t lookups_local; /* keys that this handle has answered from the index */
        uint32_t lends; /* 1: at connect, the daemon lent data files to this user; 0: it did not
                           (io.gds), or is too old */
        uint32_t takes_files;      /* 1: the daemon accepts KVCACHE_BUFFER_FILE from this user
                                      (io.gds_puts); 0: as for `lends` */
        uint32_t shared_tier;      /* 1: the daemon has a tier that it shares with other hosts */
        uint32_t reserved;         /* 0 */
        uint64_t pool_index_bytes; /* size of the mapped pool index; 0: none is mapped */
        uint64_t gets_local; /* keys that this handle has got through the index, without the daemon
                              */
};
int kvcache_get_info(struct kvcache *kv, struct kvcache_info *ret);

/* --- namespaces ---
 * A name and what its blocks depend on. `fingerprint`: canonical text, lines "key=value\n" sorted
 * by key: model, revision, dtype, layout, block tokens, parallel sizes. The same name with another
 * fingerprint is refused with -EEXIST and kvcache_error() names the field: that is what keeps two
 * configurations from reading each other's bytes.
 *
 * Gives a handle (never 0) that stays valid across reconnects. -EEXIST: mismatch. -ENOENT:
 * KVCACHE_ATTACH, and it does not exist. -EOPNOTSUPP: a lifetime, and the daemon is too old. */
struct kvcache_namespace_options {
        uint32_t size;           /* sizeof(struct kvcache_namespace_options) */
        uint32_t flags;          /* KVCACHE_ATTACH */
        const char *name;        /* 1 to 255 bytes */
        const char *fingerprint; /* NULL with KVCACHE_ATTACH: do not compare (tools) */
        uint64_t chunk_bytes; /* size of most chunks: stored without rounding loss; 0: not declared
                               */
        uint32_t lifetime_s; /* lifetime of chunks after their put, in seconds, if this call creates
                                the namespace; 0: no end. An existing namespace keeps its own: see
                                kvcache_namespace_set_lifetime() */
        uint32_t reserved;   /* 0 */
};
enum {
        KVCACHE_ATTACH = 1 << 0, /* must exist already */
};
int kvcache_namespace_open(struct kvcache *kv, const struct kvcache_namespace_options *options,
                           uint32_t *ret_namespace);

/* --- staging: memory that the daemon shares with this handle, from which puts are taken and to
 * which `get into` copies ---
 * Made at the first use. kvcache_staging_acquire() gives a place, 64-byte aligned; -ENOBUFS: no
 * room now (reap, release, try again); -E2BIG: never. A place that a request in flight names
 * belongs to the daemon until its completion is reaped; releasing it earlier is safe: the library
 * frees it when that has happened. */
int kvcache_staging_acquire(struct kvcache *kv, size_t bytes, void **ret_place);
void kvcache_staging_release(struct kvcache *kv, void *place);

/* --- registered buffers: memory of the caller's that the daemon moves bytes to and from itself ---
 * What a put or a `get into` names there is not copied by the library, but for a little that is in
 * the daemon's memory, got into a mapping that the library has made of a file with F_SEAL_SHRINK:
 * that is sooner copied than asked for. Nor is it copied by the daemon, which moves it between
 * there and the disk, where the key's pieces, 64 at most, lie in registered
 * buffers, begin at multiples of 4,096 bytes there and are, but for the last, of whole 4,096 bytes
 * (a page of K and one of V), and are put KVCACHE_WRITTEN or KVCACHE_DURABLE without a lease to
 * keep, or are to hold a whole chunk that is not in memory. A buffer counts in full against the
 * daemon's limits.registered.
 *
 * A place that a request names is the daemon's until its completion is reaped; after
 * KVCACHE_PENDING or KVCACHE_LOST until kvcache_memory_settled() returns 1. A program that changes
 * the bytes of a put before that, punches holes or truncates the file, harms its own chunks only:
 * they are misses.
 *
 * A buffer outlives its session: after a reconnect the library registers it again before it sends
 * anything that names it. Where the daemon refuses that, keys that name it are KVCACHE_INVALID, the
 * request's error and kvcache_error() after kvcache_submit() or kvcache_submit_and_wait() say why,
 * and the next request tries again. */
struct kvcache_buffer_options {
        uint32_t size;  /* sizeof(struct kvcache_buffer_options) */
        uint32_t flags; /* 0, KVCACHE_BUFFER_FILE */
        int fd; /* a memfd, sealed against shrinking or not, or a file on tmpfs or hugetlbfs, open
                   for reading and writing. Stays the caller's: the library keeps a duplicate */
        uint64_t offset, bytes; /* range of the file: multiples of its page size, and not beyond its
                                   end. Missing pages of the range are allocated; the rest of the
                                   file must have no holes (before Linux 5.14, the range neither:
                                   write to each page, or call fallocate()) */
        void *base; /* where the caller has mapped the part, shared; NULL: the library maps it,
                       and a child after fork() does not have it */
};
enum {
        /* `fd` is of a file on a disk (ext4 or XFS), open for reading and writing with O_DIRECT,
         * from which puts are taken: the program writes chunks there by its own means,
         * cuFileWrite() for one, each at a multiple of 4,096. `*ret_base` is an address to name
         * them by, as `data` of a put's entries; nothing is mapped there, so it may be neither read
         * nor written, and `base` has to be NULL. Puts with `pieces`, gets and requests that have
         * such are KVCACHE_INVALID there. The daemon copies what it puts: the file is not part of
         * the store. */
        KVCACHE_BUFFER_FILE = 1 << 0,
};
/* Shares [offset, offset + bytes) of the file with the daemon. `*ret_buffer` is the handle's own
 * number for it, `*ret_base` (may be NULL where `base` is given) where it is mapped. -EINVAL: it is
 * not what it must be, overlaps a registered buffer, or there are too many, 64; kvcache_error()
 * says which. -EDQUOT, -EBUSY: limits.registered; -EIO: the daemon could not map it; -EOPNOTSUPP,
 * -EACCES: it takes no such files, or not of this user (io.gds_puts). */
int kvcache_buffer_register(struct kvcache *kv, const struct kvcache_buffer_options *options,
                            uint32_t *ret_buffer, void **ret_base);
/* Ends the sharing, and unmaps what the library has mapped. Waits for requests in flight that name
 * the buffer, those of a daemon that has ended too: after 0 only the caller touches the memory. It
 * does not connect. -EINVAL: no such buffer. Any other error, as -ETIMEDOUT after the handle's
 * request timeout: the memory is still mapped and the daemon may still move bytes there; no later
 * request names the buffer, its memory is like any other to them; call again to go on waiting.
 * kvcache_close() unregisters all buffers without waiting, so that bytes may still move: unregister
 * first where requests may be in flight. */
int kvcache_buffer_unregister(struct kvcache *kv, uint32_t buffer);

/* Whether this memory, staging or a registered buffer, may be reused: 1, when no request, not one
 * that timed out or was lost with a daemon either, moves bytes there any more; 0: one may. Another
 * mapping of the same file is not recognized: ask for the addresses that the requests named. */
int kvcache_memory_settled(struct kvcache *kv, const void *data, size_t bytes);

/* --- requests --- */

enum kvcache_op {
        KVCACHE_OP_PUT = 1, /* from `data`, `length` bytes */
        /* Mapped: results carry `data` in the pool and a lease to release. What is in memory the
         * library gets itself where it can, by the tenant's pool index: memory that the daemon
         * maintains, asked for when some keys were found there. Then the request is complete when
         * the call returns. */
        KVCACHE_OP_GET = 2,
        /* Copied to `data`, `length` bytes of room, or to `pieces`: by the daemon if all rooms of
         * the request are in staging or in registered buffers, else by the library when it takes
         * the reply. What is in memory the library gets itself here as well, unless the daemon's
         * workers are the better choice: more than 4 MiB, or while other requests are on their way.
         */
        KVCACHE_OP_GET_INTO = 3,
        /* These two the library answers itself where it can, from the tenant's lookup index:
         * memory that the daemon maintains, asked for with the first of them. Then they are
         * complete when the call returns, and the daemon does not learn of them. A key that is
         * there, and is not put or evicted meanwhile, is never called absent; one that is not there
         * can be called present, for three seconds after the daemon was killed or for as long as
         * its volume is bypassed: a get of it is a miss. */
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
        /* Ends loans: `loans` in place of entries and keys, no namespace. Per loan: KVCACHE_OK: the
         * bytes that were read before this call are those of the chunk. Any other status: they may
         * be anything, as the chunk was purged or found bad, its volume failed or the daemon ended
         * meanwhile: discard them. */
        KVCACHE_OP_GIVE_BACK = 10,
        /* When a chain will be used again, as far as the caller knows: in about `return_s` seconds,
         * or, with 0, never: it is final, and is evicted first. The keys are those of a chain, root
         * first; what another chain goes on from is left as it is. Advice, for the daemon's
         * eviction policy: it learns how far such hints hold, nothing is evicted or kept because of
         * it alone, leases and data stay as they are, and the next use of a key ends it. Submit it
         * when the requests that use the chain are complete. Per key: KVCACHE_OK: it is there;
         * KVCACHE_MISS. -EOPNOTSUPP: the daemon is too old; nothing is lost but the hint. */
        KVCACHE_OP_HINT = 11,
        /* PIN: the daemon keeps the chunk on disk until UNPIN, whatever else it evicts, as far as
         * the tenant's share of pinned bytes goes (tenants.pinned_bytes). Pins belong to the
         * tenant, not to the session. They outlive a restart of the daemon; those of the last ten
         * minutes (eviction.save_interval) are lost if it is killed. EVICT and PURGE drop a pinned
         * chunk as any other. Per key: KVCACHE_OK; KVCACHE_MISS: it is not there, or in memory
         * alone, as a write that failed or the budget of writes has left it; KVCACHE_BUSY: it is
         * not on disk yet, ask again when its put is WRITTEN; KVCACHE_QUOTA: the tenant has pinned
         * as much as it may. Pinning or unpinning twice is OK. -EOPNOTSUPP: the daemon is too old.
         */
        KVCACHE_OP_PIN = 12,
        KVCACHE_OP_UNPIN = 13,
};

struct kvcache_lease {
        uint32_t id, generation;
};

/* A chunk that the caller reads from the disk by itself, as cuFileRead() or pread() do: `length`
 * bytes at `offset` of the data file whose descriptor kvcache_lent_file() gives. `offset` is a
 * multiple of 4,096, and so much of the file that whole pages may be read; what lies behind
 * `length` in the last one is of no meaning. The bytes count only once KVCACHE_OP_GIVE_BACK has
 * answered KVCACHE_OK for the loan: no checksum is compared on the way. A loan ends with its
 * session. */
struct kvcache_loan {
        uint64_t session; /* number of the handle's session */
        uint64_t offset;
        uint32_t file; /* number of the file in the session; never used for two files */
        uint32_t length;
        uint32_t id, generation; /* generation 0: nothing is lent */
};

/* Why a GET with KVCACHE_LEND did not lend a chunk that is on disk. Stable numbers. */
enum kvcache_not_lent {
        KVCACHE_NOT_LENT_NONE = 0,       /* the chunk was lent, came from memory, or is a miss */
        KVCACHE_NOT_LENT_DENIED = 1,     /* the daemon does not lend to this user (io.gds) */
        KVCACHE_NOT_LENT_UNVERIFIED = 2, /* not read back since the daemon started; it is now */
        KVCACHE_NOT_LENT_VOLUME =
                3, /* the volume has no O_DIRECT, or cannot tell whether a file is open elsewhere */
        KVCACHE_NOT_LENT_LIMIT = 4, /* enough is lent, to this user or to all */
};

/* One key of a request. Keys of a request are a chain, root first; keys that are not a chain are
 * served the same. */
struct kvcache_entry {
        struct kvcache_key key;
        void *data; /* PUT: the bytes; in staging or in a registered buffer they are taken as they
                       lie, from other memory they are copied to staging first. GET_INTO: room for
                       the bytes */
        uint64_t length;       /* PUT: 1 to max_chunk_bytes. GET_INTO: room at data */
        uint64_t range_offset; /* GET, GET_INTO: within the chunk */
        uint64_t range_length; /* 0: to its end */
        /* PUT, GET_INTO: the bytes, or the room, in several places of any memory, one after the
         * other, none of them empty; `data` and `length` are ignored then. A key all of whose
         * pieces are in staging or in registered buffers travels as it is, with at most 4,088 of
         * them: more are -E2BIG. Others are gathered or scattered by the library. The array is read
         * during the call only. */
        const struct iovec *pieces;
        uint32_t n_pieces; /* 0: `data`, `length` */
        /* PUT: what computing the bytes again would take, in microseconds of an engine that is busy
         * with nothing else; 0: not said. Later blocks of a long prompt cost more than early ones,
         * and those of a large model more than those of a small one. The eviction policy keeps what
         * costs more for each byte for longer, all else being equal; what nothing was said of
         * counts as the mean of the rest. Other operations, and older daemons, ignore it. */
        uint32_t cost_us;
};

/* The class that the eviction policy of a tier assigns to a chunk. Stable numbers. */
enum kvcache_class {
        KVCACHE_CLASS_NONE = 0,           /* not in that tier, or the daemon does not say */
        KVCACHE_CLASS_ONCE = 1,           /* used once */
        KVCACHE_CLASS_ONCE_CONTINUED = 2, /* used once, brought in by a later turn of a session */
        KVCACHE_CLASS_ONCE_END = 3,       /* used once, the end of its chain */
        KVCACHE_CLASS_TWICE = 4,
        KVCACHE_CLASS_THRICE = 5,
        KVCACHE_CLASS_4_TO_5 = 6,
        KVCACHE_CLASS_6_TO_11 = 7,
        KVCACHE_CLASS_12 = 8,        /* or more */
        KVCACHE_CLASS_RETURN_60 = 9, /* a HINT said: within 60 s */
        KVCACHE_CLASS_RETURN_600 = 10,
        KVCACHE_CLASS_RETURN = 11,  /* later than that */
        KVCACHE_CLASS_FINAL = 12,   /* a HINT said: its chain has ended */
        KVCACHE_CLASS_RECENCY = 13, /* the policy goes by recency alone */
};

enum {
        KVCACHE_STANDING_NEXT = 1 << 0,   /* the next of its size to be evicted */
        KVCACHE_STANDING_PINNED = 1 << 1, /* by a lease, a loan or I/O: not evicted meanwhile */
        KVCACHE_STANDING_CONTINUED =
                1 << 2, /* a chunk that continues the chain is stored and is evicted first */
        KVCACHE_STANDING_RETAINED = 1 << 3, /* pinned by a client: not evicted */
        /* From this bit on: the cost of recomputing each byte, as declared by the put. 0: not
           declared; n: 0.05 ns times the square root of two to the power of n - 1. */
        KVCACHE_STANDING_COST_BIT = 4,
};

struct kvcache_standing {
        uint32_t age;  /* uses of chunks in the tier since its last */
        int16_t worth; /* 256 times the binary logarithm of the hits that are expected of it for the
                          time that it is kept, over those of what is worth least among chunks of
                          its size; INT16_MAX: that or more */
        uint8_t reuse_class; /* enum kvcache_class; a later daemon may have more */
        uint8_t flags;
};

struct kvcache_result {
        int status;      /* enum kvcache_status */
        uint32_t tiers;  /* GET: where it came from; EXISTS, STAT: where it is (enum kvcache_tier);
                            MATCH: KVCACHE_TIER_REMOTE, or 0 */
        uint64_t length; /* GET, GET_INTO: bytes got; PUT, STAT: of the chunk */
        uint64_t chunk_length; /* GET, GET_INTO: of the whole chunk */
        const void *
                data; /* GET, PUT with KVCACHE_KEEP_LEASE: in the pool, read-only, until released */
        struct kvcache_lease lease; /* generation 0: none */
        uint64_t created_ms;        /* STAT */
        uint32_t crc32c;            /* STAT */
        uint32_t leases;            /* STAT */
        struct kvcache_loan loan;   /* GET with KVCACHE_LEND: generation 0: it is in `data` */
        uint32_t not_lent;          /* likewise: enum kvcache_not_lent */
        uint32_t reserved;
        struct kvcache_standing memory, disk; /* STAT: why it would be evicted from there, or not */
};

enum {
        KVCACHE_NOWAIT = 1 << 0,     /* PUT, GET: KVCACHE_BUSY rather than waiting for room */
        KVCACHE_KEEP_LEASE = 1 << 1, /* PUT: keep a lease on each chunk */
        KVCACHE_MORE = 1 << 2, /* PUT, GET, GET_INTO, TOUCH, PREFETCH: the chain goes on with the
                                  next such request, whose `parent` is the last key of this one. A
                                  get of what is there and a put of the rest are one chain: its
                                  recency is set from its end to its root, so that ends are evicted
                                  first */
        KVCACHE_LEND = 1 << 3, /* GET, whole chunks: what is not in memory but on disk is lent where
                                  that may be, and `loan` says where it is; what cannot be lent is
                                  got as ever, and `not_lent` says why it is not */
        /* EXISTS, MATCH, STAT: as well what the shared tier has, as far as the daemon knows, which
         * does not wait for it. MATCH counts what is there behind the leading run; where the daemon
         * is still looking, the status of the first key that is not known is KVCACHE_BUSY, and
         * asking again a little later finds more. A get waits for the shared tier, up to its
         * timeout, unless it is KVCACHE_NOWAIT; a prefetch has chunks fetched from there. A daemon
         * without such a tier, or that is too old, ignores it. */
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
                                           TOUCH, EVICT, STAT, PREFETCH, HINT, PIN, UNPIN */
        size_t count; /* any; more than a message holds are sent as several, as one chain */
        const struct kvcache_key *parent; /* the key before the first; NULL: the first is a root */
        struct kvcache_result *results;   /* `count` of them, the caller's; written by the time the
                                             completion is reaped. May be NULL for MATCH, TOUCH,
                                             PREFETCH and HINT */
        uint64_t user_data;               /* comes back with the completion */
        int timeout_ms;    /* 0: the handle's; then the key's status is KVCACHE_PENDING */
        uint32_t return_s; /* HINT: seconds, 0: final; else 0 */
        const struct kvcache_loan *loans; /* GIVE_BACK: `count` of them; else NULL */
};

/* --- preparing requests ---
 * Each sets every member of *request; the caller then sets parent, flags, timeout_ms and user_data
 * as needed. The arrays are the caller's: entries and keys are read during kvcache_submit() or
 * kvcache_submit_and_wait() only, results are written until the completion was reaped. Without a
 * timeout of its own (0) a request uses the handle's. */
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

/* Mapped, whole chunks. */
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

/* The answer is the completion's `value`. */
static inline void kvcache_prep_match(struct kvcache_request *request, uint32_t namespace_handle,
                                      const struct kvcache_key *keys, size_t count)
{
        kvcache_prep(request, KVCACHE_OP_MATCH, namespace_handle, count, NULL);
        request->keys = keys;
}

/* `results` may be NULL. */
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

/* `results` may be NULL. */
static inline void kvcache_prep_prefetch(struct kvcache_request *request, uint32_t namespace_handle,
                                         const struct kvcache_key *keys, size_t count,
                                         struct kvcache_result *results)
{
        kvcache_prep(request, KVCACHE_OP_PREFETCH, namespace_handle, count, results);
        request->keys = keys;
}

/* `return_s`: 0: the chain is final. `results` may be NULL. */
static inline void kvcache_prep_hint(struct kvcache_request *request, uint32_t namespace_handle,
                                     const struct kvcache_key *keys, size_t count,
                                     uint32_t return_s, struct kvcache_result *results)
{
        kvcache_prep(request, KVCACHE_OP_HINT, namespace_handle, count, results);
        request->keys = keys;
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
        uint64_t value; /* MATCH */
        int error; /* 0, or -errno of the request as a whole; each result has a status in any case
                    */
        enum kvcache_op op;
        size_t count;
};

/* Sends it, or queues it when the daemon has enough in flight. -ENOBUFS: data does not fit staging
 * now; -E2BIG: it never does, or a key has more pieces than a message holds; -EINVAL; -ENOTCONN:
 * there is no daemon and reconnecting failed; -EOPNOTSUPP: the daemon is too old for this. */
int kvcache_submit(struct kvcache *kv, const struct kvcache_request *request);
/* An epoll descriptor over socket and deadlines: readable when kvcache_reap() has something to do.
 * Borrowed; stays the same across reconnects. */
int kvcache_fd(const struct kvcache *kv);
/* Takes up to `max` completions, waiting for the first at most timeout_ms (0: not at all; < 0:
 * until there is one or nothing is in flight). Returns how many. */
int kvcache_reap_sized(struct kvcache *kv, struct kvcache_completion *ret, size_t completion_size,
                       size_t max, int timeout_ms);
static inline int kvcache_reap(struct kvcache *kv, struct kvcache_completion *ret, size_t max,
                               int timeout_ms)
{
        return kvcache_reap_sized(kv, ret, sizeof(*ret), max, timeout_ms);
}
/* Cancels the requests with this user_data that are not complete. What was not sent yet is taken
 * back: its keys end with KVCACHE_CANCELLED, and the request's error is -ECANCELED. Of what was
 * sent, the daemon cancels the keys of a PUT or a GET that wait for room or for their turn to be
 * read; all others end as they would. Each request still has its completion, which kvcache_reap()
 * returns, and until then the memory that it names belongs to it. Returns how many requests were
 * found, 0 or more; it waits for nothing. With a daemon that is too old for this, only what was not
 * sent is cancelled. */
int kvcache_cancel(struct kvcache *kv, uint64_t user_data);
/* Requests submitted and not yet reaped. */
size_t kvcache_inflight(const struct kvcache *kv);

/* Has the daemon report that so many more keys of the namespace were found and are not got, as
 * computing them is faster: kvcache_loads_declined_total, and "declined" in kvcachectl status. An
 * addition in shared memory, no message. 0: counted; 1: there is no place to count them, as the
 * lookup index has not been asked yet, or the daemon has none, or is too old: nothing is lost but
 * the count. -EINVAL: no such namespace. */
int kvcache_count_declined(struct kvcache *kv, uint32_t namespace_handle, uint64_t keys);

/* Gives leases back; sent with the next request, or by kvcache_flush(), or when many are held.
 * Leases of a daemon that has ended are ignored. The data must not be touched any more. */
int kvcache_release(struct kvcache *kv, const struct kvcache_lease *leases, size_t n);
int kvcache_flush(struct kvcache *kv);

/* A descriptor of the data file that the loan is of, read-only and O_DIRECT. It is the caller's, to
 * keep as long as the session lasts (loan.session) and to close: the daemon is asked each time.
 * -ESTALE: the loan is of an earlier session, or the file is in use no more; -EACCES: the daemon
 * does not lend to this user any more. */
int kvcache_lent_file(struct kvcache *kv, const struct kvcache_loan *loan, int *ret_fd);

/* --- blocking --- */

/* Any request, whatever its size, waited for: a put that staging cannot hold at once goes in
 * rounds; -E2BIG: one chunk is longer than staging, or has more pieces than a message holds. Each
 * result has a status in any case. `ret_value` may be NULL: MATCH's answer. */
int kvcache_submit_and_wait(struct kvcache *kv, const struct kvcache_request *request,
                            uint64_t *ret_value);
/* One key each. These return its status, or a negative errno when the request was not sent. */
int kvcache_put(struct kvcache *kv, uint32_t namespace_handle, const struct kvcache_key *key,
                const void *data, size_t length, enum kvcache_ack ack);
/* Copies into `buffer`; *ret_length is the chunk's length, also when KVCACHE_TOO_LARGE says that it
 * did not fit. */
int kvcache_get(struct kvcache *kv, uint32_t namespace_handle, const struct kvcache_key *key,
                void *buffer, size_t room, size_t *ret_length);
/* In place: valid until kvcache_release(kv, &result.lease, 1). */
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
