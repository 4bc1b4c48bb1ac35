/* SPDX-License-Identifier: Apache-2.0 */
/* The messages between a client and the daemon: one SOCK_SEQPACKET datagram each, little-endian,
 * fixed-size structs, no pointers, no padding. proto/README.md is the specification; this is its C
 * side.
 *
 * No I/O and no allocation here. A message is first copied out of whatever memory it came in, then
 * checked with wire_check_request(), and only then looked at. */
#pragma once

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "key.h"

enum {
        WIRE_VERSION_MIN = 1,
        WIRE_VERSION_MAX = 1,
        WIRE_MAGIC = 0x3143564b, /* "KVC1" */

        WIRE_MAX_MESSAGE = 64 * 1024,
        WIRE_MAX_KEYS = 1024,          /* of one message */
        WIRE_MAX_RELEASES = 1024,      /* of one message, as far as they fit */
        WIRE_MAX_INFLIGHT = 64,        /* messages of one session not yet answered */
        WIRE_MAX_KEYS_INFLIGHT = 8192, /* with more keys of them, no message is read */
        WIRE_MAX_FDS = 4,
        WIRE_MAX_NAME = 255, /* namespace */
        WIRE_MAX_FINGERPRINT = 4096,
        WIRE_MAX_PING = 1024,
        WIRE_MAX_TEXT = 1024, /* what a refusal says */
        WIRE_CLIENT_NAME = 32,
        WIRE_INSTANCE_BYTES = 16,
};

/* A reply carries its request's op with this bit. */
enum { WIRE_REPLY = 0x8000 };

enum wire_op {
        WIRE_HELLO = 1, /* first, once */
        WIRE_PING = 2,
        WIRE_NAMESPACE = 3, /* open by name and fingerprint */
        WIRE_STAGING = 4,   /* make this session's staging area; reply carries its fd */
        WIRE_PUT = 5,
        WIRE_GET = 6,
        WIRE_RELEASE = 7,
        WIRE_EXISTS = 8,
        WIRE_MATCH = 9,
        WIRE_TOUCH = 10,
        WIRE_EVICT = 11,
        WIRE_STAT = 12,
        WIRE_LIST = 13,
        WIRE_PURGE = 14,
        WIRE_REPORT = 15,     /* a text about the daemon; reply carries a memfd */
        WIRE_VERIFY = 16,     /* read a stretch of a segment back; admin only */
        WIRE_DEVICE = 17,     /* suspend or resume a volume of the store; admin only */
        WIRE_REGISTER = 18,   /* register memory of the client; request carries its fd */
        WIRE_UNREGISTER = 19, /* take it back */
        WIRE_LOOKUP = 20,     /* the tenant's lookup index (lookup.h); reply carries its fd, and
                                 the tally's */
        WIRE_PREFETCH = 21,   /* disk to pool, for gets that will come; the reply does not wait */
        WIRE_NAMESPACES = 22, /* the namespaces that exist, or one of them */
        WIRE_NAMESPACE_REMOVE = 23, /* ends one, by its name */
        WIRE_CANCEL = 24,           /* a batch's keys that wait need not be done any more */
        WIRE_LENT_FILE = 25,        /* a data file that chunks were lent of; reply carries its fd */
        WIRE_GIVE_BACK = 26,        /* ends loans: was what they were of there all the time? */
        WIRE_HINT = 27,             /* when a chain comes back, or that it does not: advice */
        WIRE_BENCH = 28,            /* a benchmark session; reply carries a memfd */
        WIRE_TRANSFERS = 29,        /* this session's page of counters of what its client moves by
                                       itself (transfer-page.h); reply carries its fd */
        WIRE_RECORD = 30,           /* the traffic of all clients, as it comes; admin only */
        WIRE_RELOAD = 31,           /* read the configuration again; reply carries a memfd; admin
                                       only */
        WIRE_SWEEP = 32,            /* make room on the shared tier; admin only */
        WIRE_POOL_INDEX = 33,       /* the tenant's pool index (pool-index.h); reply carries its fd,
                                       and that of the session's page */
        WIRE_OP_END,
};

/* wire_hdr.flags of requests; which op takes which is in wire.c. In replies flags are zero. */
enum wire_flag {
        WIRE_F_MORE = 1 << 0,   /* PUT, GET, TOUCH, PREFETCH: the chain goes on in the next message
                                 */
        WIRE_F_NOWAIT = 1 << 1, /* PUT, GET: answer BUSY instead of waiting for room */
        WIRE_F_LEASE = 1 << 2,  /* PUT: keep a lease on each chunk put or already there. GET with
                                   WIRE_F_INTO: lease what is in memory, and the client copies it
                                   by itself; for WIRE_FEATURE_LEASE_INTO */
        WIRE_F_INTO = 1 << 3,   /* GET: copy to the client's region instead of leasing */
        WIRE_F_ATTACH = 1 << 4, /* NAMESPACE: must exist; an empty fingerprint is not compared */
        WIRE_F_ALL = 1 << 5,    /* PURGE: every namespace of the store; admin only */
        WIRE_F_PIECES = 1 << 6, /* PUT, GET with WIRE_F_INTO: each key's bytes are in several pieces
                                   of memory; struct wire_piece */
        WIRE_F_TALLY = 1 << 7,  /* LOOKUP: the session's tally, too; for WIRE_FEATURE_TALLY */
        WIRE_F_PURGE = 1 << 8,  /* NAMESPACE_REMOVE: what it holds, too */
        WIRE_F_LEND = 1 << 9,   /* GET: lend what is on disk only; for WIRE_FEATURE_LEND */
        WIRE_F_FILE = 1 << 10,  /* REGISTER: a file on a disk; for WIRE_FEATURE_FILES */
        WIRE_F_SET = 1 << 11,   /* NAMESPACE: opens none, but sets the lifetime of one; for
                                   WIRE_FEATURE_LIFETIME */
        WIRE_F_REMOTE = 1 << 12,   /* EXISTS, MATCH, STAT, PURGE: the shared tier, too; for
                                      WIRE_FEATURE_REMOTE */
        WIRE_F_NO_REPLY = 1 << 13, /* RELEASE: is not answered; for WIRE_FEATURE_NO_REPLY */
};

/* Of a message, and of each key. Stable numbers: append only. */
enum wire_status {
        WIRE_OK = 0,
        WIRE_MISS = 1,           /* not there, or not yours, or failed its check: recompute it */
        WIRE_EXISTS_ALREADY = 2, /* put: present, in the class asked for; nothing was copied */
        WIRE_BUSY = 3,           /* no room now, or the deadline passed while waiting for it */
        WIRE_TOO_LARGE = 4, /* put: over max_chunk; get into: over the room given, `length` says */
        WIRE_NOT_DURABLE = 5, /* put durable: written, but this file system cannot promise more */
        WIRE_FAILED = 6,      /* put: the device refused; nothing was stored */
        WIRE_INVALID = 7,     /* this key's or this message's arguments are malformed */
        WIRE_STALE = 8,       /* lease: no such lease, or an older generation */
        WIRE_DENIED = 9,      /* needs an admin, or a tenant that you are not */
        WIRE_QUOTA = 10,      /* a limit of this connection, uid or tenant */
        WIRE_MISMATCH =
                11, /* namespace: exists with another fingerprint; the text names the field */
        WIRE_NO_NAMESPACE = 12, /* not opened by this session, or (attach) does not exist */
        WIRE_VERSION = 13,      /* hello: no version in common */
        WIRE_SHUTDOWN = 14,     /* the daemon is stopping */
        WIRE_NO_SPACE = 15,     /* put: not even eviction makes room; written or durable: the budget
                                   of writes refuses it. Nothing is stored */
        WIRE_NOT_EMPTY = 16,    /* namespace remove: it holds chunks, so many as value64 says */
        WIRE_CANCELLED = 17,    /* CANCEL came first: nothing was done */
        WIRE_STATUS_END,
};

/* How far a put has come when it is answered. */
enum wire_ack {
        WIRE_ACCEPTED = 0, /* copied: visible, may be lost with the daemon */
        WIRE_WRITTEN = 1,  /* survives kill -9 */
        WIRE_DURABLE = 2,  /* survives power loss */
};

/* What a HINT says of its keys. */
enum wire_hint {
        WIRE_HINT_FINAL = 1,  /* the chain that they are will not be used again: evict it first */
        WIRE_HINT_RETURN = 2, /* they will be used again, in about `return_s` */
        WIRE_HINT_PIN = 3,    /* they are to stay on disk; for WIRE_FEATURE_PIN */
        WIRE_HINT_UNPIN = 4,  /* ... no more */
        WIRE_HINT_END,
};

/* Bits: where a chunk is. */
enum wire_tier {
        WIRE_TIER_MEMORY = 1 << 0,
        WIRE_TIER_DISK = 1 << 1,
        WIRE_TIER_ALL = WIRE_TIER_MEMORY | WIRE_TIER_DISK,
        WIRE_TIER_REMOTE = 1 << 2, /* the shared tier, as far as the daemon remembers: in results
                                      of GET, and where a request has WIRE_F_REMOTE */
};

enum wire_report {
        WIRE_REPORT_STATUS = 0,  /* JSON, as /status */
        WIRE_REPORT_STATS = 1,   /* JSON: every metric */
        WIRE_REPORT_METRICS = 2, /* Prometheus text */
        WIRE_REPORT_CONFIG = 3,  /* YAML: the configuration in force; admin only */
        WIRE_REPORT_STAGES = 4,  /* JSON: the latest of io.stages; admin only; for
                                    WIRE_FEATURE_STAGES */
        WIRE_REPORT_END,
};

/* Regions a client may name: its staging area, and from 1 on what REGISTER gave a number. */
enum { WIRE_REGION_STAGING = 0, WIRE_MAX_REGIONS = 64 };

struct wire_hdr {
        uint32_t len;   /*  0  whole message, this header included */
        uint16_t op;    /*  4  enum wire_op */
        uint16_t flags; /*  6  an unknown bit ends the session */
        uint64_t tag;   /*  8  chosen by the sender, echoed in the reply */
};
static_assert(sizeof(struct wire_hdr) == 16, "wire format");

struct wire_lease {
        uint32_t id;
        uint32_t generation;
};
static_assert(sizeof(struct wire_lease) == 8, "wire format");

struct wire_hello {
        struct wire_hdr hdr;
        uint32_t magic;                /* 16  WIRE_MAGIC */
        uint16_t version_min;          /* 20 */
        uint16_t version_max;          /* 22 */
        uint64_t features;             /* 24  zero, unless version_max is above 1: then ignored */
        char client[WIRE_CLIENT_NAME]; /* 32  for the log; printable ASCII, NUL-padded, one NUL at
                                          least */
};
static_assert(sizeof(struct wire_hello) == 64, "wire format");

/* PUT, GET, RELEASE, EXISTS, MATCH, TOUCH, EVICT, STAT, PREFETCH, GIVE_BACK, HINT: this head, then
 * `count` entries of the op's size, then `pieces`, then `releases` leases that end with this
 * message, whatever becomes of the rest of it. */
struct wire_batch {
        struct wire_hdr hdr;
        uint32_t namespace_id; /* 16  RELEASE, GIVE_BACK: ignored */
        uint16_t count;        /* 20  1 to WIRE_MAX_KEYS; RELEASE: 0 */
        uint16_t releases;     /* 22 */
        union {
                uint32_t
                        timeout_ms; /* 24  how long it may wait for room; 0: the daemon's default */
                uint32_t return_s;  /* 24  HINT: in so many seconds, at least 1; not of a RETURN:
                                       zero */
        };
        union {
                uint8_t ack;  /* 28  PUT: enum wire_ack; others: zero */
                uint8_t hint; /* 28  HINT: enum wire_hint */
        };
        uint8_t tiers;     /* 29  EVICT: enum wire_tier, memory or all; others: zero */
        uint16_t pieces;   /* 30  with WIRE_F_PIECES; else zero */
        struct key parent; /* 32  PUT, GET, TOUCH, PREFETCH: key before the first; zero: the first
                              is a root; others: zero */
};
static_assert(sizeof(struct wire_batch) == 64, "wire format");

struct wire_put {
        struct key key;
        uint64_t offset;   /* 32  in the region */
        uint32_t length;   /* 40 */
        uint32_t region;   /* 44 */
        uint32_t cost_us;  /* 48  what computing it again would take; 0: not said */
        uint32_t reserved; /* 52  zero */
};
static_assert(sizeof(struct wire_put) == 56, "wire format");

struct wire_get {
        struct key key;
        uint32_t range_offset; /* 32  within the chunk */
        uint32_t range_length; /* 36  0: to its end */
        uint64_t into_offset;  /* 40  in the region; with WIRE_F_INTO, else these three are zero */
        uint32_t into_length;  /* 48  room there */
        uint32_t into_region;  /* 52 */
};
static_assert(sizeof(struct wire_get) == 56, "wire format");

/* With WIRE_F_PIECES a PUT's `offset` and `region`, and a GET's `into_offset` and `into_region`,
 * are not a place but the number of the key's first piece in the message, from 0, and how many they
 * are, at least one; `length` (`into_length`) is the sum of their lengths. */
struct wire_piece {
        uint64_t offset; /*  0  in the region */
        uint32_t length; /*  8  at least 1 */
        uint32_t region; /* 12 */
};
static_assert(sizeof(struct wire_piece) == 16, "wire format");

struct wire_namespace {
        struct wire_hdr hdr;
        uint64_t chunk_bytes; /* 16  declared size of most chunks; 0: none; with WIRE_F_SET zero */
        uint16_t name_length; /* 24 */
        union {
                uint16_t fingerprint_length; /* 26 */
                uint16_t tenant_length;      /* 26  with WIRE_F_SET; 0: the client's own */
        };
        uint32_t lifetime_s; /* 28  of the chunks of one that is made; 0: no end. With WIRE_F_SET:
                                of the one of that name; with WIRE_F_ATTACH zero */
        /* name, then fingerprint: "k=v" lines, sorted by k, each ended by a newline; with
         * WIRE_F_SET the tenant's name */
};
static_assert(sizeof(struct wire_namespace) == 32, "wire format");

struct wire_staging {
        struct wire_hdr hdr;
        uint64_t bytes; /* 16  wanted; 0: the daemon's default */
};
static_assert(sizeof(struct wire_staging) == 24, "wire format");

/* With one descriptor, open for reading and writing: a memfd sealed F_SEAL_SHRINK, or a file on
 * tmpfs or hugetlbfs. [offset, offset + bytes) of it must lie within the file and have no hole. The
 * reply's `value` is the region's number. With WIRE_F_FILE: a file on a disk, from which PUTs alone
 * may take their bytes, each from the beginning of a page. */
struct wire_register {
        struct wire_hdr hdr;
        uint64_t offset; /* 16  a multiple of the file's page size */
        uint64_t bytes;  /* 24  likewise, at least one page */
};
static_assert(sizeof(struct wire_register) == 32, "wire format");

/* From now on no request may name the region; the reply comes when no I/O uses it any more and the
 * daemon has unmapped it. */
struct wire_unregister {
        struct wire_hdr hdr;
        uint32_t region;   /* 16 */
        uint32_t reserved; /* 20  zero */
};
static_assert(sizeof(struct wire_unregister) == 24, "wire format");

struct wire_list {
        struct wire_hdr hdr;
        uint32_t namespace_id; /* 16 */
        uint32_t max;          /* 20  entries wanted, at most WIRE_MAX_KEYS */
        uint64_t cursor;       /* 24  0 at first, then what the reply gave */
};
static_assert(sizeof(struct wire_list) == 32, "wire format");

struct wire_purge {
        struct wire_hdr hdr;
        uint32_t namespace_id; /* 16  zero with WIRE_F_ALL */
        uint32_t reserved;     /* 20  zero */
};
static_assert(sizeof(struct wire_purge) == 24, "wire format");

struct wire_report_request {
        struct wire_hdr hdr;
        uint32_t what;     /* 16  enum wire_report */
        uint32_t reserved; /* 20  zero */
};
static_assert(sizeof(struct wire_report_request) == 24, "wire format");

enum {
        WIRE_MAX_NAMESPACES = 128, /* of one reply */
        WIRE_MAX_TENANT = 63,
        WIRE_NO_OWNER = -1, /* as a uint32_t: it is not known who made the namespace */
};

struct wire_namespaces {
        struct wire_hdr hdr;
        uint64_t cursor;       /* 16  0 at first, then what the reply gave; zero with a name */
        uint16_t max;          /* 24  1 to WIRE_MAX_NAMESPACES; with a name 1 */
        uint8_t name_length;   /* 26  0: all */
        uint8_t tenant_length; /* 27  0: the client's own; of an admin without a name: all */
        uint32_t reserved;     /* 28  zero */
        /* name, then the tenant's name */
};
static_assert(sizeof(struct wire_namespaces) == 32, "wire format");

struct wire_namespace_remove {
        struct wire_hdr hdr;
        uint8_t name_length;   /* 16  at least 1 */
        uint8_t tenant_length; /* 17  0: the client's own */
        uint16_t reserved0;    /* 18  zero */
        uint32_t reserved1;    /* 20  zero */
        /* name, then the tenant's name */
};
static_assert(sizeof(struct wire_namespace_remove) == 24, "wire format");

enum { WIRE_MAX_VERIFY_CHUNKS = 65536 };

struct wire_verify {
        struct wire_hdr hdr;
        uint32_t volume;     /* 16  of the store, from 0 */
        uint32_t segment;    /* 20 */
        uint32_t slot;       /* 24  where in it to begin; 0, or what a reply gave */
        uint32_t max_chunks; /* 28  1 to WIRE_MAX_VERIFY_CHUNKS */
        uint64_t max_bytes;  /* 32  at least 1 */
};
static_assert(sizeof(struct wire_verify) == 40, "wire format");

enum wire_device_action { WIRE_DEVICE_SUSPEND = 1, WIRE_DEVICE_RESUME = 2 };

struct wire_device {
        struct wire_hdr hdr;
        uint32_t volume; /* 16  of the store, from 0 */
        uint32_t action; /* 20  enum wire_device_action */
};
static_assert(sizeof(struct wire_device) == 24, "wire format");

enum wire_bench_action {
        WIRE_BENCH_INIT = 1,
        WIRE_BENCH_STATUS = 2,
        WIRE_BENCH_RESET = 3,
        WIRE_BENCH_ENABLE = 4,
        WIRE_BENCH_DISABLE = 5,
        WIRE_BENCH_LIST = 6,
        WIRE_BENCH_DELETE = 7,
        WIRE_BENCH_ACTION_END,
};
enum { WIRE_BENCH_RESUME = 1 << 0, WIRE_BENCH_FORCE = 1 << 1, WIRE_BENCH_NAME = 64 };

/* But for STATUS and LIST admin only. The reply has one descriptor, the session as JSON, `value64`
 * bytes of it. EXISTS_ALREADY: INIT; MISS: no session of that name; STALE: none is active. */
struct wire_bench {
        struct wire_hdr hdr;
        uint8_t action;      /* 16  enum wire_bench_action */
        uint8_t name_length; /* 17  to WIRE_BENCH_NAME; 0: the active one; INIT: at least 1; LIST: 0
                              */
        uint16_t options;    /* 18  INIT: at most one of RESUME and FORCE; else zero */
        uint32_t reserved;   /* 20  zero */
        /* name */
};
static_assert(sizeof(struct wire_bench) == 24, "wire format");

enum { WIRE_MAX_RECORD_S = 7 * 24 * 3600 };

/* Admin only. The reply has one descriptor, a stream socket: struct wire_record_entry, each with
 * its ids, up to an END or to the session's. EXISTS_ALREADY: a recording is under way. */
struct wire_record {
        struct wire_hdr hdr;
        uint32_t duration_s; /* 16  1 to WIRE_MAX_RECORD_S */
        uint32_t reserved;   /* 20  zero */
};
static_assert(sizeof(struct wire_record) == 24, "wire format");

enum { WIRE_SWEEP_DRY_RUN = 1 << 0 };

/* Admin only. Deletes what was not used for longest until no more than `limit` bytes are left.
 * BUSY: another host, or another request, is at it; DENIED; INVALID: there is no shared tier, or
 * its engine does that itself. */
struct wire_sweep {
        struct wire_hdr hdr;
        uint64_t limit;    /* 16  bytes */
        uint32_t options;  /* 24  WIRE_SWEEP_DRY_RUN */
        uint32_t reserved; /* 28  zero */
};
static_assert(sizeof(struct wire_sweep) == 32, "wire format");

/* Its one result. */
struct wire_sweep_result {
        uint64_t seen, seen_bytes;       /*  0 */
        uint64_t deleted, deleted_bytes; /* 16  with DRY_RUN: that would be */
};
static_assert(sizeof(struct wire_sweep_result) == 32, "wire format");

/* Of what is recorded. Stable numbers: append only. */
enum wire_record_kind {
        WIRE_RECORD_END = 0, /* the time is over, or the daemon stops */
        WIRE_RECORD_PUT = 1, /* a PUT, when it comes */
        WIRE_RECORD_GET = 2, /* the leading keys that a GET found, when it is answered */
};
struct wire_record_entry {
        uint16_t kind;     /*  0  enum wire_record_kind */
        uint16_t count;    /*  2  ids that follow, of 8 bytes: below 2^53, a keyed hash of
                              namespace and key */
        uint32_t reserved; /*  4  ignored */
        uint64_t session;  /*  8  that sent it */
        uint64_t time_ms;  /* 16  since the recording began */
        uint64_t parent;   /* 24  id of the key before the first; 0: the first is a root */
        uint64_t lost;     /* 32  keys that are missing in the recording, up to here */
};
static_assert(sizeof(struct wire_record_entry) == 40, "wire format");

/* The reply has one descriptor, read-only and O_DIRECT; `value64` is the file's size. */
struct wire_lent_file {
        struct wire_hdr hdr;
        uint32_t file;     /* 16  of a result of GET */
        uint32_t reserved; /* 20  zero */
};
static_assert(sizeof(struct wire_lent_file) == 24, "wire format");

/* The reply's `value` is the number of keys that end with WIRE_CANCELLED because of it; 0, also
 * when this session has no batch with the tag in flight. The batch has its own reply, as always. */
struct wire_cancel {
        struct wire_hdr hdr;
        uint64_t tag; /* 16  of the batch */
};
static_assert(sizeof(struct wire_cancel) == 24, "wire format");

/* Every reply starts so. Where status is not OK, `count` is 0 and a text may follow (to the
 * message's end, no NUL) that says why. */
struct wire_reply {
        struct wire_hdr hdr;
        uint16_t status;  /* 16  enum wire_status, of the message as a whole */
        uint16_t count;   /* 18  results that follow */
        uint32_t value;   /* 20  NAMESPACE: id; REGISTER: region; MATCH: keys of the leading run;
                             NAMESPACES: how many there are; NAMESPACE_REMOVE, BUSY: sessions
                             that have it open; CANCEL: keys; RELOAD: 1 if it is refused; PURGE
                             with WIRE_F_REMOTE: for how many seconds other hosts may still have
                             it; batches else: stale releases */
        uint64_t value64; /* 24  STAGING, LOOKUP, TRANSFERS: bytes; LIST, NAMESPACES: next cursor,
                             0 at the end; REPORT: bytes of the text; PURGE, NAMESPACE_REMOVE:
                             chunks dropped, NOT_EMPTY: chunks there are; NAMESPACE: declared
                             chunk bytes in force; MATCH with WIRE_F_REMOTE: keys behind the
                             run that the shared tier has, and WIRE_MATCH_SEARCHING */
};
static_assert(sizeof(struct wire_reply) == 32, "wire format");

/* It may have more of them, or fewer: the daemon looks, and knows more when it is asked again. */
#define WIRE_MATCH_SEARCHING (UINT64_C(1) << 63)

/* Tag of a reply to HELLO by which the daemon refuses a connection without having read HELLO. */
#define WIRE_REFUSAL_TAG UINT64_MAX

/* Follows the reply's head; its descriptors are the pool and the liveness file, in this order. */
struct wire_hello_result {
        uint16_t version;                      /*  0 */
        uint16_t max_keys;                     /*  2 */
        uint32_t max_inflight;                 /*  4 */
        uint32_t max_message;                  /*  8 */
        uint32_t spin_us;                      /* 12  for how long the daemon's threads poll */
        uint64_t pool_bytes;                   /* 16  size of the pool's mapping */
        uint64_t max_chunk;                    /* 24 */
        uint64_t staging_max;                  /* 32 */
        uint64_t features;                     /* 40  enum wire_feature; ignore other bits */
        uint8_t instance[WIRE_INSTANCE_BYTES]; /* 48  random, new with every start of the daemon */
};
static_assert(sizeof(struct wire_hello_result) == 64, "wire format");

/* What a daemon may offer beyond the version. Bits. */
enum wire_feature {
        WIRE_FEATURE_LOOKUP = 1 << 0,     /* LOOKUP */
        WIRE_FEATURE_PREFETCH = 1 << 1,   /* PREFETCH */
        WIRE_FEATURE_TALLY = 1 << 2,      /* LOOKUP with WIRE_F_TALLY */
        WIRE_FEATURE_NAMESPACES = 1 << 3, /* NAMESPACES, NAMESPACE_REMOVE */
        WIRE_FEATURE_CANCEL = 1 << 4,     /* CANCEL */
        WIRE_FEATURE_LEND = 1 << 5,       /* GET with WIRE_F_LEND, LENT_FILE, GIVE_BACK */
        WIRE_FEATURE_LENDS = 1 << 6,      /* ... and, as of now, to this client */
        WIRE_FEATURE_HINT = 1 << 7,       /* HINT */
        WIRE_FEATURE_FILES = 1 << 8,      /* REGISTER with WIRE_F_FILE, as of now, by this client */
        WIRE_FEATURE_BENCH = 1 << 9,      /* BENCH */
        WIRE_FEATURE_TRANSFERS = 1 << 10, /* TRANSFERS */
        WIRE_FEATURE_RECORD = 1 << 11,    /* RECORD */
        WIRE_FEATURE_RELOAD = 1 << 12,    /* RELOAD */
        WIRE_FEATURE_PIN = 1 << 13,       /* HINT to pin and unpin */
        WIRE_FEATURE_LIFETIME = 1 << 14,  /* NAMESPACE with a lifetime, or with WIRE_F_SET */
        WIRE_FEATURE_COST = 1 << 15,      /* PUT says what computing a chunk again would cost */
        WIRE_FEATURE_STAGES = 1 << 16,    /* REPORT of the stages */
        WIRE_FEATURE_LEASE_INTO = 1 << 17, /* GET with WIRE_F_INTO and WIRE_F_LEASE */
        WIRE_FEATURE_REMOTE = 1 << 18,     /* there is a shared tier: WIRE_F_REMOTE, SWEEP */
        WIRE_FEATURE_NO_REPLY = 1 << 19,   /* RELEASE with WIRE_F_NO_REPLY */
        WIRE_FEATURE_POOL_INDEX = 1 << 20, /* POOL_INDEX */
};

/* A session's tally, in memory that its client writes: the keys that it has looked up by itself,
 * one of these for each namespace of the session, by its number less one. They only grow. */
enum { WIRE_TALLY_NAMESPACES = 256 };
struct wire_tally {
        uint64_t found;   /*  0 */
        uint64_t missing; /*  8 */
};
static_assert(sizeof(struct wire_tally) == 16, "wire format");

/* Behind them all, again one for each namespace: what became of what was found. A daemon that is
 * too old for it gives a tally that ends before it. */
struct wire_tally_loads {
        uint64_t declined; /*  0  keys that were there and were not got, as computing was faster */
        uint64_t reserved; /*  8  ignored */
};
static_assert(sizeof(struct wire_tally_loads) == 16, "wire format");
enum {
        WIRE_TALLY_LOADS_OFFSET = WIRE_TALLY_NAMESPACES * 16,
        WIRE_TALLY_BYTES = 2 * WIRE_TALLY_LOADS_OFFSET,
};

enum {
        WIRE_RESULT_LEASED = 1 << 0,
        WIRE_RESULT_LENT = 1 << 1, /* GET: `lease` is a loan, `offset` is in the file `file` */
};

/* Why a GET with WIRE_F_LEND did not lend what it found on disk: `file` of a result that is not
 * lent. Stable numbers: append only. */
enum wire_not_lent {
        WIRE_LEND_NONE = 0,       /* it did, or was not asked to, or it is in memory, or no chunk */
        WIRE_LEND_DENIED = 1,     /* the daemon does not lend to this user (io.gds) */
        WIRE_LEND_UNVERIFIED = 2, /* not read back since the daemon started: this GET does */
        WIRE_LEND_VOLUME = 3,     /* its volume has no O_DIRECT, or its file system no leases */
        WIRE_LEND_LIMIT = 4,      /* enough is lent, to this user or to all */
        WIRE_LEND_END,
};

struct wire_put_result {
        uint16_t status;         /*  0 */
        uint16_t flags;          /*  2  WIRE_RESULT_LEASED */
        uint32_t length;         /*  4  of the chunk */
        struct wire_lease lease; /*  8 */
        uint64_t offset;         /* 16  in the pool */
};
static_assert(sizeof(struct wire_put_result) == 24, "wire format");

struct wire_get_result {
        uint16_t status;         /*  0 */
        uint8_t tier;            /*  2  enum wire_tier it came from */
        uint8_t flags;           /*  3  WIRE_RESULT_LEASED */
        uint32_t length;         /*  4  bytes leased or copied */
        struct wire_lease lease; /*  8 */
        uint64_t offset; /* 16  in the pool, of the range's first byte; zero if it was copied */
        uint32_t chunk_length; /* 24 */
        uint32_t file;         /* 28  WIRE_RESULT_LENT: its number; else enum wire_not_lent */
};
static_assert(sizeof(struct wire_get_result) == 32, "wire format");

/* EXISTS: one byte a key, enum wire_tier bits, 0: not there. TOUCH, EVICT, PREFETCH, HINT: one
 * uint16_t a key, a status. GIVE_BACK: one a loan: OK; MISS, what was read of it may be anything;
 * STALE. */

/* What the eviction policy of a tier goes by for a chunk. Zeros: it is not in that tier, or the
 * daemon is too old to say. */
struct wire_standing {
        uint32_t age;  /*  0  uses of chunks in the tier since its last; UINT32_MAX: that or more */
        int16_t worth; /*  4  256 times the binary logarithm of its expected hits per time kept,
                          over those of what is worth least; INT16_MAX: that or more, or those are
                              none */
        uint8_t class; /*  6  enum wire_class */
        uint8_t flags; /*  7  enum wire_standing_flag; from WIRE_STANDING_COST_BIT on what computing
                          it again costs for each byte: 0 not said, else n for 0.05 ns times the
                             square root of two to the power of n - 1 */
};
static_assert(sizeof(struct wire_standing) == 8, "wire format");

/* Stable numbers: append only. */
enum wire_class {
        WIRE_CLASS_NONE = 0,
        WIRE_CLASS_ONCE = 1,           /* used once */
        WIRE_CLASS_ONCE_CONTINUED = 2, /* used once, brought in by a later turn of a session */
        WIRE_CLASS_ONCE_END = 3,       /* used once, the end of its chain */
        WIRE_CLASS_TWICE = 4,
        WIRE_CLASS_THRICE = 5,
        WIRE_CLASS_4_TO_5 = 6,
        WIRE_CLASS_6_TO_11 = 7,
        WIRE_CLASS_12 = 8,        /* or more */
        WIRE_CLASS_RETURN_60 = 9, /* by a hint: it returns within 60 s */
        WIRE_CLASS_RETURN_600 = 10,
        WIRE_CLASS_RETURN = 11,  /* later than that */
        WIRE_CLASS_FINAL = 12,   /* by a hint: its chain has ended */
        WIRE_CLASS_RECENCY = 13, /* the policy goes by recency alone */
        WIRE_CLASS_END,
};
enum wire_standing_flag {
        WIRE_STANDING_NEXT = 1 << 0,      /* the next of its size to be evicted */
        WIRE_STANDING_PINNED = 1 << 1,    /* by a lease, a loan or I/O: not evicted meanwhile */
        WIRE_STANDING_CONTINUED = 1 << 2, /* what goes on from it is there, and goes before it */
        WIRE_STANDING_RETAINED = 1 << 3,  /* by a HINT to pin it */
        WIRE_STANDING_COST_BIT = 4,
};

struct wire_stat_result {
        uint16_t status;                   /*  0 */
        uint16_t tiers;                    /*  2 */
        uint32_t length;                   /*  4 */
        uint32_t crc32c;                   /*  8 */
        uint32_t leases;                   /* 12  held on it now, by anyone */
        uint64_t created_ms;               /* 16  Unix time; 0: not on disk yet */
        struct wire_standing memory, disk; /* 24 */
};
static_assert(sizeof(struct wire_stat_result) == 40, "wire format");

struct wire_list_result {
        struct key key;
        uint32_t length;     /* 32 */
        uint16_t tiers;      /* 36 */
        uint16_t reserved;   /* 38 */
        uint64_t created_ms; /* 40 */
};
static_assert(sizeof(struct wire_list_result) == 48, "wire format");

enum {
        WIRE_NAMESPACE_MAY_REMOVE = 1 << 0, /* this client may remove it, once it is empty */
};

/* NAMESPACES: `count` of these, each with its texts: name, tenant's name, and, where one was asked
 * for by name, its fingerprint; then zeros up to `bytes`. */
struct wire_namespace_info {
        uint16_t bytes;              /*  0  with the texts: a multiple of 8 */
        uint8_t name_length;         /*  2 */
        uint8_t tenant_length;       /*  3 */
        uint16_t fingerprint_length; /*  4  that follow */
        uint16_t flags;              /*  6 */
        uint32_t owner;              /*  8  user id of who made it, or WIRE_NO_OWNER */
        uint32_t sessions;           /* 12  that have it open */
        uint64_t chunks;             /* 16  on disk */
        uint64_t stored_bytes;       /* 24  of these */
        uint64_t chunk_bytes;        /* 32  declared; 0: none */
        uint64_t created_ms;         /* 40  Unix time */
        uint64_t last_used_ms;       /* 48  when the last session that had it open ended, now if one
                                        has; 0: none has since the daemon started */
        uint32_t fingerprint_crc32c; /* 56 */
        uint32_t lifetime_s;         /* 60  of its chunks; 0: no end */
};
static_assert(sizeof(struct wire_namespace_info) == 64, "wire format");
static_assert(WIRE_MAX_NAMESPACES * (sizeof(struct wire_namespace_info) + WIRE_MAX_NAME +
                                     WIRE_MAX_TENANT + 7) +
                              sizeof(struct wire_reply) <=
                      WIRE_MAX_MESSAGE,
              "a page of them fits in a message");

/* The one result of VERIFY. */
struct wire_verify_result {
        uint32_t volumes;      /*  0  of the store */
        uint32_t segments;     /*  4  of this volume: numbers are below */
        uint32_t next_segment; /*  8  where to go on; `segments`: that was the volume's last */
        uint32_t next_slot;    /* 12 */
        uint64_t chunks;       /* 16  looked at, bad ones included */
        uint64_t bytes;        /* 24  of these */
        uint64_t mismatched;   /* 32  not what was put: dropped */
        uint64_t unreadable;   /* 40  refused by the device: dropped */
        uint64_t skipped;      /* 48  not read, for want of memory and the like: still there */
        uint32_t gave_up;  /* 56  1: many in a row could not be read, so the device is at fault; the
                              rest of the stretch was not looked at */
        uint32_t reserved; /* 60 */
};
static_assert(sizeof(struct wire_verify_result) == 64, "wire format");

/* Bytes of one entry of a batch op's request, and of one result of its reply. 0: not a batch op, or
 * none. */
size_t wire_entry_bytes(unsigned op);
size_t wire_result_bytes(unsigned op);
/* Do its entries begin with a key? */
bool wire_op_has_keys(unsigned op);
/* Is its request a struct wire_batch? And are its keys a chain, which its `parent` leads to and the
 * next message may continue? */
bool wire_op_is_batch(unsigned op);
bool wire_op_is_chained(unsigned op);

/* Is this one complete request that a client of this version may send: length, op, flags, counts,
 * reserved fields and enums? NULL if so, else a static text that says what is wrong, for the log.
 * Looks at nothing that depends on the daemon's state. `msg` is private memory, aligned to 8. */
const char *wire_check_request(const void *msg, size_t bytes);

/* Descriptors that a request of this op carries, no more and no fewer. */
unsigned wire_request_fds(unsigned op);

/* The pieces and the releases of a checked batch message. */
const struct wire_piece *wire_batch_pieces(const struct wire_batch *b);
const struct wire_lease *wire_batch_releases(const struct wire_batch *b);

/* "PUT", "busy"; never NULL. */
const char *wire_op_name(unsigned op);
const char *wire_status_name(unsigned status);

/* Is it a namespace's name: 1 to WIRE_MAX_NAME bytes of printable ASCII? 0, or -EINVAL. */
int wire_name_check(const char *name, size_t bytes);

/* Is `text` canonical: "k=v\n" lines, k in [a-z0-9_.-]+ strictly ascending, v printable ASCII
 * without newline? 0, or -EINVAL. */
int wire_fingerprint_check(const char *text, size_t bytes);
/* Writes the first field in which two texts differ, as "dtype: fp8 here, bf16 there" (a missing one
 * as "none"). Always ends `ret` with NUL. False if they are equal. */
int wire_fingerprint_diff(const char *a, size_t a_bytes, const char *b, size_t b_bytes, char *ret,
                          size_t ret_bytes);
