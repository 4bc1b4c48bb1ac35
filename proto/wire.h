/* SPDX-License-Identifier: Apache-2.0 */
/* The messages between a client and the daemon: one SOCK_SEQPACKET datagram each, little-endian,
 * fixed-size structs without pointers or padding. proto/README.md is the specification; this is its
 * C side.
 *
 * No I/O and no allocation here. A message is first copied out of the memory it arrived in, then
 * checked with wire_check_request(), and only then interpreted. */
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
        WIRE_MAX_KEYS = 1024,          /* per message */
        WIRE_MAX_RELEASES = 1024,      /* per message, if its other parts leave room for them */
        WIRE_MAX_INFLIGHT = 64,        /* unanswered messages of one session */
        WIRE_MAX_KEYS_INFLIGHT = 8192, /* while a session has this many keys unanswered, the
                                          daemon does not read its next message */
        WIRE_MAX_FDS = 4,
        WIRE_MAX_NAME = 255, /* length of a namespace's name */
        WIRE_MAX_FINGERPRINT = 4096,
        WIRE_MAX_PING = 1024,
        WIRE_MAX_TEXT = 1024, /* length of the text of a refusal */
        WIRE_CLIENT_NAME = 32,
        WIRE_INSTANCE_BYTES = 16,
};

/* A reply carries its request's op with this bit. */
enum { WIRE_REPLY = 0x8000 };

enum wire_op {
        WIRE_HELLO = 1, /* a client's first message; sent once */
        WIRE_PING = 2,
        WIRE_NAMESPACE = 3, /* opens a namespace by name and fingerprint */
        WIRE_STAGING = 4,   /* creates the session's staging area; the reply carries its fd */
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
        WIRE_REPORT = 15,     /* a text about the daemon; the reply carries a memfd */
        WIRE_VERIFY = 16,     /* reads a part of a segment back; admin only */
        WIRE_DEVICE = 17,     /* suspends or resumes a volume of the store; admin only */
        WIRE_REGISTER = 18,   /* registers memory of the client; the request carries its fd */
        WIRE_UNREGISTER = 19, /* ends a registration */
        WIRE_LOOKUP = 20,     /* the tenant's lookup index (lookup.h); the reply carries its fd,
                                 and that of the page of counters */
        WIRE_PREFETCH = 21, /* reads chunks into the pool for later gets; the reply does not wait */
        WIRE_NAMESPACES = 22,       /* lists namespaces, or describes one */
        WIRE_NAMESPACE_REMOVE = 23, /* removes a namespace by its name */
        WIRE_CANCEL = 24,           /* cancels the waiting keys of a batch */
        WIRE_LENT_FILE = 25, /* a data file that contains lent chunks; the reply carries its fd */
        WIRE_GIVE_BACK = 26, /* ends loans, and tells whether they were valid throughout */
        /* advice: when a chain will be used again, or that it will not be used again */
        WIRE_HINT = 27,
        WIRE_BENCH = 28,     /* a benchmark session; the reply carries a memfd */
        WIRE_TRANSFERS = 29, /* the page in which this session's client counts its own transfers
                                (transfer-page.h); the reply carries its fd */
        WIRE_RECORD = 30,    /* records the traffic of all clients; admin only */
        WIRE_RELOAD = 31, /* reads the configuration again; the reply carries a memfd; admin only */
        WIRE_SWEEP = 32,  /* deletes chunks from the shared tier; admin only */
        WIRE_POOL_INDEX = 33, /* the tenant's pool index (pool-index.h); the reply carries its
                                 fd, and that of the session's page */
        WIRE_EVENTS = 34, /* changes of the tenant's chunks since an earlier reply, or all chunks */
        WIRE_OP_END,
};

/* Values of wire_hdr.flags in requests; wire.c has the flags of each op. Flags of replies are
 * zero. */
enum wire_flag {
        WIRE_F_MORE = 1 << 0,    /* PUT, GET, TOUCH, PREFETCH: the chain continues in the next
                                    message */
        WIRE_F_NOWAIT = 1 << 1,  /* PUT, GET: answer BUSY instead of waiting for room */
        WIRE_F_LEASE = 1 << 2,   /* PUT: keep a lease on each chunk put or already stored. GET
                                    with WIRE_F_INTO: lease chunks in memory, which the client
                                    copies itself; for WIRE_FEATURE_LEASE_INTO */
        WIRE_F_INTO = 1 << 3,    /* GET: copy to the staging area or a region instead of leasing */
        WIRE_F_ATTACH = 1 << 4,  /* NAMESPACE: must exist; an empty fingerprint is not compared */
        WIRE_F_ALL = 1 << 5,     /* PURGE: every namespace of the store; admin only */
        WIRE_F_PIECES = 1 << 6,  /* PUT, GET with WIRE_F_INTO: each key's bytes are in several
                                    pieces; struct wire_piece */
        WIRE_F_TALLY = 1 << 7,   /* LOOKUP: also the session's page of counters; for
                                    WIRE_FEATURE_TALLY */
        WIRE_F_PURGE = 1 << 8,   /* NAMESPACE_REMOVE: also delete its chunks */
        WIRE_F_LEND = 1 << 9,    /* GET: lend chunks that are only on disk; for WIRE_FEATURE_LEND */
        WIRE_F_FILE = 1 << 10,   /* REGISTER: a file on a disk; for WIRE_FEATURE_FILES */
        WIRE_F_SET = 1 << 11,    /* NAMESPACE: only set a namespace's lifetime; for
                                    WIRE_FEATURE_LIFETIME */
        WIRE_F_REMOTE = 1 << 12, /* EXISTS, MATCH, STAT, PURGE: include the shared tier; for
                                    WIRE_FEATURE_REMOTE */
        WIRE_F_NO_REPLY = 1 << 13, /* RELEASE: do not reply; for WIRE_FEATURE_NO_REPLY */
};

/* Status of a message, and of each key; the comment of an op's struct gives further causes. Stable
 * numbers: append only. */
enum wire_status {
        WIRE_OK = 0,
        WIRE_MISS = 1, /* the chunk is not stored, not visible to this client, or failed its check:
                          the client recomputes it */
        WIRE_EXISTS_ALREADY = 2, /* put: stored already, as durably as requested; nothing was
                                    copied */
        WIRE_BUSY = 3,      /* no room now, or the deadline passed while waiting for it; evict from
                               memory: the chunk is not on disk */
        WIRE_TOO_LARGE = 4, /* put: over max_chunk; get into: over the room, and `length` is
                               the size needed */
        WIRE_NOT_DURABLE = 5, /* put durable: written, but this file system cannot guarantee
                                 durability */
        WIRE_FAILED = 6,  /* the device or a copy failed; put: nothing was stored; evict: the chunk
                             may be found again after a restart */
        WIRE_INVALID = 7, /* the arguments of this key or message are invalid */
        WIRE_STALE = 8,   /* lease: no such lease, or an older generation */
        WIRE_DENIED = 9,  /* the user or its tenant does not have the right, or the daemon does not
                             offer the operation */
        WIRE_QUOTA = 10,  /* a limit of this connection, uid or tenant is reached */
        WIRE_MISMATCH = 11,     /* namespace: one with another fingerprint exists; the text names
                                   the field */
        WIRE_NO_NAMESPACE = 12, /* this session has not opened the namespace or, with WIRE_F_ATTACH,
                                   the namespace does not exist */
        WIRE_VERSION = 13,      /* hello: no version in common */
        WIRE_SHUTDOWN = 14,     /* the daemon is stopping */
        WIRE_NO_SPACE = 15,     /* put: eviction cannot make room; written or durable: refused by
                                   the write budget. Nothing is stored */
        WIRE_NOT_EMPTY = 16,    /* namespace remove: the namespace holds chunks; value64 is their
                                   number */
        WIRE_CANCELLED = 17,    /* CANCEL took effect first: nothing was done */
        WIRE_STATUS_END,
};

/* Durability of a put when it is answered. */
enum wire_ack {
        WIRE_ACCEPTED = 0, /* copied: visible, may be lost with the daemon */
        WIRE_WRITTEN = 1,  /* survives kill -9 */
        WIRE_DURABLE = 2,  /* survives power loss */
};

/* Advice of a HINT about its keys. */
enum wire_hint {
        WIRE_HINT_FINAL = 1,  /* the chain will not be used again: evict it first */
        WIRE_HINT_RETURN = 2, /* the keys will be used again in about `return_s` */
        WIRE_HINT_PIN = 3,    /* keep the keys on disk; for WIRE_FEATURE_PIN */
        WIRE_HINT_UNPIN = 4,  /* end WIRE_HINT_PIN */
        /* For WIRE_FEATURE_ADVICE: */
        WIRE_HINT_TOOL_CALL = 5, /* generation stopped for a tool call: the chain returns soon */
        /* generation ended: the chain returns with the next prompt, if at all */
        WIRE_HINT_TURN_END = 6,
        WIRE_HINT_DEMOTE = 7, /* drop the copies in memory of keys on disk */
        WIRE_HINT_SHARE = 8,  /* other hosts will use the keys: offer them to the shared tier */
        WIRE_HINT_END,
};

/* A PUT announces the next use of its chain by this code; for WIRE_FEATURE_ADVICE. From
 * WIRE_EXPECTS_RETURN on, a code stands for a time: WIRE_EXPECTS_RETURN + n for (8 + n mod 8) <<
 * (n / 8) eighths of a second. */
enum wire_expects {
        WIRE_EXPECTS_NOTHING = 0,
        WIRE_EXPECTS_FINAL = 1, /* the chain will not be used again */
        WIRE_EXPECTS_RETURN = 16,
};
/* Returns the code of a time of 1 s or more, rounded down to an eighth of an octave. Times of 2^30
 * s or more have the largest code. */
static inline uint8_t wire_expects_return(uint32_t seconds)
{
        unsigned octave = 31u - (unsigned)__builtin_clz(seconds | 1);
        unsigned steps = (unsigned)(((uint64_t)seconds << 3) >> octave);

        if (octave > 29)
                return UINT8_MAX;
        return (uint8_t)(WIRE_EXPECTS_RETURN + 8 * octave + steps - 8);
}

/* Returns the seconds of a code from WIRE_EXPECTS_RETURN on. */
static inline uint32_t wire_expects_seconds(uint8_t code)
{
        unsigned steps = code - WIRE_EXPECTS_RETURN;

        return (uint32_t)((uint64_t)(8 + steps % 8) << (steps / 8) >> 3);
}

/* Tiers in which a chunk is stored, as bits. */
enum wire_tier {
        WIRE_TIER_MEMORY = 1 << 0,
        WIRE_TIER_DISK = 1 << 1,
        WIRE_TIER_ALL = WIRE_TIER_MEMORY | WIRE_TIER_DISK,
        WIRE_TIER_REMOTE = 1 << 2, /* the shared tier, as far as the daemon knows its contents; set
                                      in results of GET, and of requests with WIRE_F_REMOTE */
};

enum wire_report {
        WIRE_REPORT_STATUS = 0,     /* JSON, as the daemon's HTTP server returns it for /status */
        WIRE_REPORT_STATS = 1,      /* JSON, every metric */
        WIRE_REPORT_METRICS = 2,    /* Prometheus text */
        WIRE_REPORT_CONFIG = 3,     /* YAML, the configuration in force; admin only */
        WIRE_REPORT_STAGES = 4,     /* JSON, the latest times recorded by io.stages; admin only; for
                                       WIRE_FEATURE_STAGES */
        WIRE_REPORT_NAMESPACES = 5, /* JSON, namespaces with their latest samples; for
                                       WIRE_FEATURE_NAMESPACE_REPORT */
        WIRE_REPORT_END,
};

/* Regions that a client may name: its staging area, and from 1 on those that REGISTER numbered. */
enum { WIRE_REGION_STAGING = 0, WIRE_MAX_REGIONS = 64 };

struct wire_hdr {
        uint32_t len;   /*  0  whole message, including this header */
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
        char client[WIRE_CLIENT_NAME]; /* 32  for the log; printable ASCII, padded with at least one
                                          NUL */
};
static_assert(sizeof(struct wire_hello) == 64, "wire format");

/* Head of PUT, GET, RELEASE, EXISTS, MATCH, TOUCH, EVICT, STAT, PREFETCH, GIVE_BACK and HINT. After
 * it come `count` entries of the op's size, then `pieces`, then `releases` leases, which end with
 * this message even if the rest of it fails. */
struct wire_batch {
        struct wire_hdr hdr;
        uint32_t namespace_id; /* 16  RELEASE, GIVE_BACK: ignored */
        uint16_t count;        /* 20  1 to WIRE_MAX_KEYS; RELEASE: 0 */
        uint16_t releases;     /* 22 */
        union {
                uint32_t timeout_ms; /* 24  maximum wait for room; 0: the daemon's default */
                uint32_t return_s; /* 24  HINT: seconds until the return, at least 1; without RETURN
                                      zero */
        };
        union {
                uint8_t ack;  /* 28  PUT: enum wire_ack; others: zero */
                uint8_t hint; /* 28  HINT: enum wire_hint */
        };
        union {
                uint8_t tiers;   /* 29  EVICT: enum wire_tier, memory or all; others: zero */
                uint8_t expects; /* 29  PUT: enum wire_expects */
        };
        uint16_t pieces;   /* 30  with WIRE_F_PIECES; else zero */
        struct key parent; /* 32  PUT, GET, TOUCH, PREFETCH, HINT with RETURN: key before the first;
                              zero: the first is a root, or in a HINT unknown; others: zero */
};
static_assert(sizeof(struct wire_batch) == 64, "wire format");

struct wire_put {
        struct key key;
        uint64_t offset;   /* 32  offset of the chunk's bytes in the region */
        uint32_t length;   /* 40 */
        uint32_t region;   /* 44 */
        uint32_t cost_us;  /* 48  cost of computing the chunk again, µs; 0: not declared */
        uint32_t reserved; /* 52  zero */
};
static_assert(sizeof(struct wire_put) == 56, "wire format");

struct wire_get {
        struct key key;
        uint32_t range_offset; /* 32 first byte wanted, as an offset in the chunk */
        uint32_t range_length; /* 36 bytes wanted; 0: to the chunk's end */
        uint64_t into_offset;  /* 40 offset of the target in its region; this and the next two
                                  members are zero without WIRE_F_INTO */
        uint32_t into_length;  /* 48  room at the target */
        uint32_t into_region;  /* 52 */
};
static_assert(sizeof(struct wire_get) == 56, "wire format");

/* With WIRE_F_PIECES, `region` and `offset` of a PUT, and `into_region` and `into_offset` of a GET,
 * do not describe a place: they are the number of the key's pieces, at least one, and the index of
 * the first in the message, from 0. `length` (`into_length`) is the sum of their lengths. */
struct wire_piece {
        uint64_t offset; /*  0  in the region */
        uint32_t length; /*  8  at least 1 */
        uint32_t region; /* 12 */
};
static_assert(sizeof(struct wire_piece) == 16, "wire format");

struct wire_namespace {
        struct wire_hdr hdr;
        uint64_t chunk_bytes; /* 16  declared size of most chunks; 0: none; zero with WIRE_F_SET */
        uint16_t name_length; /* 24 */
        union {
                uint16_t fingerprint_length; /* 26 */
                uint16_t tenant_length;      /* 26  with WIRE_F_SET; 0: the client's own */
        };
        uint32_t lifetime_s; /* 28  lifetime of chunks if the message creates the namespace; 0: no
                                limit. With WIRE_F_SET: new lifetime of the named one; zero with
                                WIRE_F_ATTACH */
        /* Followed by the name, then the fingerprint: "k=v" lines, sorted by k, each ended by a
         * newline. With WIRE_F_SET, the tenant's name replaces the fingerprint. */
};
static_assert(sizeof(struct wire_namespace) == 32, "wire format");

struct wire_staging {
        struct wire_hdr hdr;
        uint64_t bytes; /* 16  requested size; 0: the daemon's default */
};
static_assert(sizeof(struct wire_staging) == 24, "wire format");

/* Registers [offset, offset + bytes) of a file. The request has one descriptor, open for reading
 * and writing: a memfd, sealed against shrinking or not, or a file on tmpfs or hugetlbfs. The range
 * must lie within the file, and every page of the file must be allocated. The reply's `value` is
 * the region's number. With WIRE_F_FILE, the descriptor is a file on a disk, from which only PUTs
 * may take bytes, each from the beginning of a page. */
struct wire_register {
        struct wire_hdr hdr;
        uint64_t offset; /* 16  a multiple of the file's page size */
        uint64_t bytes;  /* 24 length, a multiple of the same page size; at least one page */
};
static_assert(sizeof(struct wire_register) == 32, "wire format");

/* Ends a registration. Later requests must not name the region. The reply is sent once no I/O uses
 * the region and the daemon has unmapped it. */
struct wire_unregister {
        struct wire_hdr hdr;
        uint32_t region;   /* 16 */
        uint32_t reserved; /* 20  zero */
};
static_assert(sizeof(struct wire_unregister) == 24, "wire format");

struct wire_list {
        struct wire_hdr hdr;
        uint32_t namespace_id; /* 16 */
        uint32_t max;          /* 20  entries requested, 1 to WIRE_MAX_KEYS */
        uint64_t cursor;       /* 24  0 at first, then value64 of the last reply */
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
        WIRE_MAX_NAMESPACES = 128, /* per reply */
        WIRE_MAX_TENANT = 63,
        WIRE_NO_OWNER = -1, /* UINT32_MAX: the creator of the namespace is not known */
};

struct wire_namespaces {
        struct wire_hdr hdr;
        uint64_t cursor;     /* 16  0 at first, then value64 of the last reply; zero with a name */
        uint16_t max;        /* 24  1 to WIRE_MAX_NAMESPACES; 1 with a name */
        uint8_t name_length; /* 26  0: all namespaces */
        uint8_t tenant_length; /* 27  0: the own tenant; for an admin without a name: all */
        uint32_t reserved;     /* 28  zero */
        /* Followed by the name, then the tenant's name. */
};
static_assert(sizeof(struct wire_namespaces) == 32, "wire format");

struct wire_namespace_remove {
        struct wire_hdr hdr;
        uint8_t name_length;   /* 16  at least 1 */
        uint8_t tenant_length; /* 17  0: the client's own tenant */
        uint16_t reserved0;    /* 18  zero */
        uint32_t reserved1;    /* 20  zero */
        /* Followed by the name, then the tenant's name. */
};
static_assert(sizeof(struct wire_namespace_remove) == 24, "wire format");

enum { WIRE_MAX_VERIFY_CHUNKS = 65536 };

struct wire_verify {
        struct wire_hdr hdr;
        uint32_t volume;     /* 16  index in the store, from 0 */
        uint32_t segment;    /* 20 */
        uint32_t slot;       /* 24  where to begin in the segment: 0, or next_slot of a reply */
        uint32_t max_chunks; /* 28  1 to WIRE_MAX_VERIFY_CHUNKS */
        uint64_t max_bytes;  /* 32  at least 1 */
};
static_assert(sizeof(struct wire_verify) == 40, "wire format");

enum wire_device_action { WIRE_DEVICE_SUSPEND = 1, WIRE_DEVICE_RESUME = 2 };

struct wire_device {
        struct wire_hdr hdr;
        uint32_t volume; /* 16  index in the store, from 0 */
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

/* Controls a benchmark session; admin only, except STATUS and LIST. The reply has one descriptor,
 * the session as JSON of `value64` bytes. EXISTS_ALREADY: INIT of an existing session without an
 * option; MISS: no session of that name; STALE: no name was given, and no session is active; QUOTA:
 * the daemon has the maximum number of sessions. */
struct wire_bench {
        struct wire_hdr hdr;
        uint8_t action;      /* 16  enum wire_bench_action */
        uint8_t name_length; /* 17  up to WIRE_BENCH_NAME; 0: the active session; INIT: at least 1;
                                LIST: 0 */
        uint16_t options;    /* 18  INIT: at most one of RESUME and FORCE; otherwise zero */
        uint32_t reserved;   /* 20  zero */
        /* Followed by the name. */
};
static_assert(sizeof(struct wire_bench) == 24, "wire format");

enum { WIRE_MAX_RECORD_S = 7 * 24 * 3600 };

/* Starts a recording; admin only. The reply has one descriptor, a stream socket from which the
 * client reads struct wire_record_entry, each followed by its ids, up to an END or the end of the
 * session. EXISTS_ALREADY: a recording is in progress. */
struct wire_record {
        struct wire_hdr hdr;
        uint32_t duration_s; /* 16  1 to WIRE_MAX_RECORD_S */
        uint32_t reserved;   /* 20  zero */
};
static_assert(sizeof(struct wire_record) == 24, "wire format");

enum { WIRE_SWEEP_DRY_RUN = 1 << 0 };

/* Deletes purged chunks from the shared tier, and those unused for longest, until at most `limit`
 * bytes are left; admin only. BUSY: another host or request is sweeping; INVALID: there is no
 * shared tier, or its back end expires objects itself; FAILED: the back end failed. */
struct wire_sweep {
        struct wire_hdr hdr;
        uint64_t limit;    /* 16  bytes */
        uint32_t options;  /* 24  WIRE_SWEEP_DRY_RUN */
        uint32_t reserved; /* 28  zero */
};
static_assert(sizeof(struct wire_sweep) == 32, "wire format");

enum wire_events_kind {
        WIRE_EVENTS_SINCE = 0,    /* the events from a sequence number on */
        WIRE_EVENTS_SNAPSHOT = 1, /* the chunks that are stored */
        WIRE_EVENTS_END,
};
enum { WIRE_MAX_EVENTS_WAIT_MS = 60000 };

/* Asks for changes of the tenant's chunks. Without events, the reply waits up to `wait_ms` for
 * some. BUSY: another EVENTS of this session is waiting; DENIED: the daemon keeps no events. */
struct wire_events {
        struct wire_hdr hdr;
        uint64_t epoch; /* 16  SINCE: epoch of the reply that gave `from`, zero at first; SNAPSHOT:
                           zero */
        uint64_t from; /* 24  SINCE: value64 of an earlier reply, zero at first; SNAPSHOT: cursor, 0
                          at first */
        uint32_t wait_ms; /* 32  SINCE: at most WIRE_MAX_EVENTS_WAIT_MS; SNAPSHOT: zero */
        uint16_t max;     /* 36  entries wanted, 1 to WIRE_MAX_KEYS */
        uint8_t kind;     /* 38  enum wire_events_kind */
        uint8_t reserved; /* 39  zero */
};
static_assert(sizeof(struct wire_events) == 40, "wire format");

/* Follows the head of the reply to EVENTS. `count` struct wire_event follow, then `value` struct
 * wire_event_name with their texts. */
struct wire_events_result {
        uint64_t epoch; /* 0 identifies the daemon's process: another one after every start; never
                           zero */
        uint64_t first; /* 8 sequence number of the oldest event that the daemon still keeps */
        uint64_t next;  /* 16  sequence number of the next event that is written */
        uint32_t flags; /* 24  WIRE_EVENTS_GAP */
        uint32_t reserved; /* 28  ignored */
};
static_assert(sizeof(struct wire_events_result) == 32, "wire format");

/* The daemon no longer keeps all events from `from` on: take a snapshot, then request the events
 * from value64 on. */
enum { WIRE_EVENTS_GAP = 1 << 0 };

/* Stable numbers: append only. Ignore an event of an unknown kind. */
enum wire_event_kind {
        WIRE_EVENT_STORED = 1,            /* the tier has the chunk */
        WIRE_EVENT_REMOVED = 2,           /* the tier no longer has the chunk */
        WIRE_EVENT_NAMESPACE_REMOVED = 3, /* no tier has any chunk of the namespace; the key is
                                             zero, and the number is not used again */
};
struct wire_event {
        struct key key;            /*  0 */
        uint64_t time_ms;          /* 32  Unix time; SNAPSHOT: zero */
        uint32_t namespace_number; /* 40  identifies the namespace within the tenant and this epoch
                                    */
        uint32_t length;           /* 44 */
        uint8_t kind;              /* 48  enum wire_event_kind */
        uint8_t tier;        /* 49  WIRE_TIER_MEMORY or WIRE_TIER_DISK; NAMESPACE_REMOVED: 0 */
        uint8_t reserved[6]; /* 50  ignored */
};
static_assert(sizeof(struct wire_event) == 56, "wire format");

/* The name of a namespace to which an event of the same reply refers. Namespaces that no longer
 * exist have none. */
struct wire_event_name {
        uint32_t namespace_number; /*  0 */
        uint16_t name_length;      /*  4 */
        uint16_t reserved;         /*  6  ignored */
        /* Followed by the name, and by zeros up to a multiple of 8 bytes. */
};
static_assert(sizeof(struct wire_event_name) == 8, "wire format");

/* The result of SWEEP. */
struct wire_sweep_result {
        uint64_t seen, seen_bytes;       /*  0 */
        uint64_t deleted, deleted_bytes; /* 16 deleted chunks and their bytes; with DRY_RUN, those
                                            that would be deleted */
};
static_assert(sizeof(struct wire_sweep_result) == 32, "wire format");

/* Kinds of recorded entries. Stable numbers: append only. */
enum wire_record_kind {
        /* the recording has ended: its duration has passed, or the daemon stops */
        WIRE_RECORD_END = 0,
        WIRE_RECORD_PUT = 1, /* the keys of a PUT, recorded on arrival */
        WIRE_RECORD_GET = 2, /* the keys that a GET found before the first miss; recorded when the
                                GET is answered */
};
struct wire_record_entry {
        uint16_t kind;  /*  0  enum wire_record_kind */
        uint16_t count; /*  2  number of ids that follow, 8 bytes each: below 2^53, a keyed hash of
                           namespace and key */
        uint32_t reserved; /*  4  ignored */
        uint64_t session;  /*  8  session that sent the request */
        uint64_t time_ms;  /* 16  since the recording began */
        uint64_t parent;   /* 24  id of the key before the first; 0: the first is a root */
        uint64_t lost;     /* 32  keys missing from the recording so far */
};
static_assert(sizeof(struct wire_record_entry) == 40, "wire format");

/* Requests the descriptor of a data file, read-only and O_DIRECT; `value64` of the reply is the
 * file's size. */
struct wire_lent_file {
        struct wire_hdr hdr;
        uint32_t file;     /* 16  number from a result of GET */
        uint32_t reserved; /* 20  zero */
};
static_assert(sizeof(struct wire_lent_file) == 24, "wire format");

/* Cancels the waiting keys of a batch. The reply's `value` is the number of keys that end with
 * WIRE_CANCELLED because of it; 0 also if this session has no batch with the tag in flight. The
 * batch has its own reply, as usual. */
struct wire_cancel {
        struct wire_hdr hdr;
        uint64_t tag; /* 16  tag of the batch */
};
static_assert(sizeof(struct wire_cancel) == 24, "wire format");

/* Head of every reply. If status is not OK, `count` is 0 and a text may follow that gives the
 * reason (to the message's end, without NUL). */
struct wire_reply {
        struct wire_hdr hdr;
        uint16_t status;  /* 16  enum wire_status of the message as a whole */
        uint16_t count;   /* 18  number of results that follow */
        uint32_t value;   /* 20  NAMESPACE: id; REGISTER: region; MATCH: keys of the leading run;
                             NAMESPACES: number visible to this client; NAMESPACE_REMOVE with
                             BUSY: sessions that have it open; CANCEL: keys cancelled; RELOAD: 1
                             if refused; PURGE with WIRE_F_REMOTE: seconds for which other hosts
                             may still have chunks; EVENTS: names; other batches: stale releases */
        uint64_t value64; /* 24  STAGING, LOOKUP, POOL_INDEX, TRANSFERS, REGISTER, LENT_FILE: size
                             in bytes; LIST, NAMESPACES: next cursor, 0 at the end; EVENTS: next
                             `from`, of a SNAPSHOT 0 at the end; REPORT, BENCH, RELOAD: bytes of
                             the text; PURGE, NAMESPACE_REMOVE: chunks dropped, with NOT_EMPTY
                             chunks held; NAMESPACE: declared chunk bytes in force; DEVICE: 1 if
                             the volume was in that state already; MATCH with WIRE_F_REMOTE: keys
                             after the run that the shared tier has, and WIRE_MATCH_SEARCHING */
};
static_assert(sizeof(struct wire_reply) == 32, "wire format");

/* Set while the daemon is searching the shared tier, which may have more or fewer keys: ask
 * again. */
#define WIRE_MATCH_SEARCHING (UINT64_C(1) << 63)

/* Tag of a reply to HELLO by which the daemon refuses a connection without having read HELLO. */
#define WIRE_REFUSAL_TAG UINT64_MAX

/* Follows the head of the reply to HELLO, whose descriptors are the pool and the liveness file, in
 * this order. */
struct wire_hello_result {
        uint16_t version;      /*  0 */
        uint16_t max_keys;     /*  2 */
        uint32_t max_inflight; /*  4 */
        uint32_t max_message;  /*  8 */
        uint32_t spin_us; /* 12  time for which the daemon's threads poll at most before they sleep;
                             0: they do not poll */
        uint64_t pool_bytes;                   /* 16  size of the pool's mapping */
        uint64_t max_chunk;                    /* 24 */
        uint64_t staging_max;                  /* 32 */
        uint64_t features;                     /* 40  enum wire_feature; ignore other bits */
        uint8_t instance[WIRE_INSTANCE_BYTES]; /* 48  random, new at every start of the daemon */
};
static_assert(sizeof(struct wire_hello_result) == 64, "wire format");

/* Features that a daemon may offer beyond the version, as bits. */
enum wire_feature {
        WIRE_FEATURE_LOOKUP = 1 << 0,      /* LOOKUP */
        WIRE_FEATURE_PREFETCH = 1 << 1,    /* PREFETCH */
        WIRE_FEATURE_TALLY = 1 << 2,       /* LOOKUP with WIRE_F_TALLY */
        WIRE_FEATURE_NAMESPACES = 1 << 3,  /* NAMESPACES, NAMESPACE_REMOVE */
        WIRE_FEATURE_CANCEL = 1 << 4,      /* CANCEL */
        WIRE_FEATURE_LEND = 1 << 5,        /* GET with WIRE_F_LEND, LENT_FILE, GIVE_BACK */
        WIRE_FEATURE_LENDS = 1 << 6,       /* the daemon currently lends to this client */
        WIRE_FEATURE_HINT = 1 << 7,        /* HINT */
        WIRE_FEATURE_FILES = 1 << 8,       /* REGISTER with WIRE_F_FILE, currently by this client */
        WIRE_FEATURE_BENCH = 1 << 9,       /* BENCH */
        WIRE_FEATURE_TRANSFERS = 1 << 10,  /* TRANSFERS */
        WIRE_FEATURE_RECORD = 1 << 11,     /* RECORD */
        WIRE_FEATURE_RELOAD = 1 << 12,     /* RELOAD */
        WIRE_FEATURE_PIN = 1 << 13,        /* HINT with PIN and UNPIN */
        WIRE_FEATURE_LIFETIME = 1 << 14,   /* NAMESPACE with a lifetime, or with WIRE_F_SET */
        WIRE_FEATURE_COST = 1 << 15,       /* PUT with the cost of computing a chunk again */
        WIRE_FEATURE_STAGES = 1 << 16,     /* REPORT of WIRE_REPORT_STAGES */
        WIRE_FEATURE_LEASE_INTO = 1 << 17, /* GET with WIRE_F_INTO and WIRE_F_LEASE */
        WIRE_FEATURE_REMOTE = 1 << 18,     /* there is a shared tier: WIRE_F_REMOTE, SWEEP */
        WIRE_FEATURE_NO_REPLY = 1 << 19,   /* RELEASE with WIRE_F_NO_REPLY */
        WIRE_FEATURE_POOL_INDEX = 1 << 20, /* POOL_INDEX */
        WIRE_FEATURE_EVENTS = 1 << 21,     /* EVENTS */
        WIRE_FEATURE_ADVICE =
                1 << 22, /* HINT with the kinds from TOOL_CALL on, PUT with `expects` */
        WIRE_FEATURE_NAMESPACE_REPORT = 1 << 23, /* REPORT of WIRE_REPORT_NAMESPACES */
        WIRE_FEATURE_HINT_PARENT = 1 << 24,      /* HINT with RETURN and `parent` */
};

/* A session's counters of lookups that its client answered itself, in memory that the client
 * writes: one row for each namespace of the session, by its number less one. The counters only
 * grow. */
enum { WIRE_TALLY_NAMESPACES = 256 };
struct wire_tally {
        uint64_t found;   /*  0 */
        uint64_t missing; /*  8 */
};
static_assert(sizeof(struct wire_tally) == 16, "wire format");

/* A second row for each namespace, behind all rows of struct wire_tally: what clients did with
 * the keys found. The pages of older daemons end before these rows. */
struct wire_tally_loads {
        uint64_t declined; /*  0  keys that were stored but not fetched, because computing was
                              faster */
        uint64_t reserved; /*  8  ignored */
};
static_assert(sizeof(struct wire_tally_loads) == 16, "wire format");
enum {
        WIRE_TALLY_LOADS_OFFSET = WIRE_TALLY_NAMESPACES * 16,
        WIRE_TALLY_BYTES = 2 * WIRE_TALLY_LOADS_OFFSET,
};

enum {
        WIRE_RESULT_LEASED = 1 << 0,
        WIRE_RESULT_LENT = 1 << 1, /* GET: `lease` is a loan, and `offset` is in the file `file` */
};

/* Reason why a GET with WIRE_F_LEND did not lend a chunk on disk: `file` of a result that is not
 * lent. Stable numbers: append only. */
enum wire_not_lent {
        WIRE_LEND_NONE = 0,       /* the chunk was lent, lending was not requested, the chunk is in
                                     memory, or the key is a miss */
        WIRE_LEND_DENIED = 1,     /* the daemon does not lend to this user (io.gds) */
        WIRE_LEND_UNVERIFIED = 2, /* not read back since the daemon started: this GET reads it */
        WIRE_LEND_VOLUME = 3,     /* the volume has no O_DIRECT, or its file system does not support
                                     file leases (F_SETLEASE) */
        WIRE_LEND_LIMIT = 4,      /* the limit of loans of this user, or of all, is reached */
        WIRE_LEND_END,
};

struct wire_put_result {
        uint16_t status;         /*  0 */
        uint16_t flags;          /*  2  WIRE_RESULT_LEASED */
        uint32_t length;         /*  4  size of the chunk */
        struct wire_lease lease; /*  8 */
        uint64_t offset;         /* 16  in the pool */
};
static_assert(sizeof(struct wire_put_result) == 24, "wire format");

struct wire_get_result {
        uint16_t status; /*  0 */
        uint8_t tier;    /*  2  enum wire_tier: the tier that supplied the bytes */
        uint8_t flags;   /*  3  WIRE_RESULT_LEASED or WIRE_RESULT_LENT */
        uint32_t length; /*  4  bytes leased, lent or copied; with TOO_LARGE, the size needed */
        struct wire_lease lease; /*  8 */
        uint64_t offset; /* 16  offset in the pool of the range's first byte; zero if the bytes were
                            copied */
        uint32_t chunk_length; /* 24 */
        uint32_t file; /* 28  WIRE_RESULT_LENT: number of the file; otherwise enum wire_not_lent */
};
static_assert(sizeof(struct wire_get_result) == 32, "wire format");

/* Results without a struct. EXISTS: one byte per key, enum wire_tier bits, 0 if not stored. TOUCH,
 * EVICT, PREFETCH, HINT: one uint16_t per key, a status. GIVE_BACK: one uint16_t per loan: OK; MISS
 * if the bytes that were read may be wrong; STALE. */

/* The eviction policy's data of a chunk in one tier. Zeros: the chunk is not in that tier, or the
 * daemon is too old to report it. */
struct wire_standing {
        uint32_t age;  /* 0 uses of chunks in the tier since the last use of this one; UINT32_MAX:
                          that number or more */
        int16_t worth; /* 4  256 times the binary logarithm of a ratio: the chunk's expected hits
                          per time kept, over those of the least valuable chunk of its size;
                          INT16_MAX: that value or more, or only the latter has no expected hits;
                          INT16_MIN: only the former has none; 0 also if both have none */
        uint8_t class; /*  6  enum wire_class */
        uint8_t flags; /* 7 enum wire_standing_flag; the bits from WIRE_STANDING_COST_BIT on are a
                          code of the cost of computing one byte again: code 0: not declared; code
                          n: 0.05 ns times the square root of two to the power of n - 1 */
};
static_assert(sizeof(struct wire_standing) == 8, "wire format");

/* Classes of the eviction policy. Stable numbers: append only. */
enum wire_class {
        WIRE_CLASS_NONE = 0,
        WIRE_CLASS_ONCE = 1,           /* used once */
        WIRE_CLASS_ONCE_CONTINUED = 2, /* used once, inserted by a later turn of a session */
        WIRE_CLASS_ONCE_END = 3,       /* used once, the end of its chain */
        WIRE_CLASS_TWICE = 4,
        WIRE_CLASS_THRICE = 5,
        WIRE_CLASS_4_TO_5 = 6,
        WIRE_CLASS_6_TO_11 = 7,
        WIRE_CLASS_12 = 8,        /* 12 times or more */
        WIRE_CLASS_RETURN_60 = 9, /* a hint announced a use within 60 s */
        WIRE_CLASS_RETURN_600 = 10,
        WIRE_CLASS_RETURN = 11,  /* a hint announced a use in more than 600 s */
        WIRE_CLASS_FINAL = 12,   /* a hint declared that its chain has ended */
        WIRE_CLASS_RECENCY = 13, /* the policy uses recency alone */
        WIRE_CLASS_GAP_10 = 14,  /* the mean time between uses of the chain is at most 10 s */
        WIRE_CLASS_GAP_20 = 15,
        WIRE_CLASS_GAP_40 = 16,
        WIRE_CLASS_GAP_80 = 17,
        WIRE_CLASS_END,
};
enum wire_standing_flag {
        WIRE_STANDING_NEXT = 1 << 0,   /* evicted next among chunks of its size */
        WIRE_STANDING_PINNED = 1 << 1, /* in use by a lease, a loan or I/O: not evicted meanwhile */
        WIRE_STANDING_CONTINUED = 1 << 2, /* a chunk that continues the chain is stored and is
                                             evicted first */
        WIRE_STANDING_RETAINED = 1 << 3,  /* pinned by a HINT */
        WIRE_STANDING_COST_BIT = 4,
};

struct wire_stat_result {
        uint16_t status;                   /*  0 */
        uint16_t tiers;                    /*  2 */
        uint32_t length;                   /*  4 */
        uint32_t crc32c;                   /*  8 */
        uint32_t leases;                   /* 12  leases of all sessions */
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
        WIRE_NAMESPACE_MAY_REMOVE = 1 << 0, /* this client may remove the namespace once it is
                                               empty */
};

/* A result of NAMESPACES, of which `count` follow the reply. Each is followed by its texts: name,
 * tenant's name and, if it was requested by name, its fingerprint; then zeros up to `bytes`. */
struct wire_namespace_info {
        uint16_t bytes;              /*  0  including the texts; a multiple of 8 */
        uint8_t name_length;         /*  2 */
        uint8_t tenant_length;       /*  3 */
        uint16_t fingerprint_length; /*  4  0 unless requested by name */
        uint16_t flags;              /*  6 */
        uint32_t owner;              /*  8  uid of its creator, or WIRE_NO_OWNER */
        uint32_t sessions;           /* 12 number of sessions that have the namespace open */
        uint64_t chunks;             /* 16  on disk */
        uint64_t stored_bytes;       /* 24  size of these chunks */
        uint64_t chunk_bytes;        /* 32  declared; 0: none */
        uint64_t created_ms;         /* 40  Unix time */
        uint64_t last_used_ms; /* 48 Unix time: now if a session has the namespace open, else the
                                  end of the last one that had; 0: none since the daemon started */
        uint32_t fingerprint_crc32c; /* 56 */
        uint32_t lifetime_s;         /* 60  lifetime of its chunks, s; 0: no limit */
};
static_assert(sizeof(struct wire_namespace_info) == 64, "wire format");
static_assert(WIRE_MAX_NAMESPACES * (sizeof(struct wire_namespace_info) + WIRE_MAX_NAME +
                                     WIRE_MAX_TENANT + 7) +
                              sizeof(struct wire_reply) <=
                      WIRE_MAX_MESSAGE,
              "a page of them fits in a message");

/* The one result of VERIFY. */
struct wire_verify_result {
        uint32_t volumes;      /*  0  number of volumes in the store */
        uint32_t segments;     /*  4  number of segments in this volume */
        uint32_t next_segment; /*  8  where to continue; equal to `segments` after the volume's
                                  last */
        uint32_t next_slot;    /* 12 */
        uint64_t chunks;       /* 16 chunks read, including bad ones */
        uint64_t bytes;        /* 24  bytes of the chunks read */
        uint64_t mismatched;   /* 32 chunks whose bytes differ from those put; they were dropped */
        uint64_t unreadable;   /* 40 chunks that the device failed to read; they were dropped */
        uint64_t skipped;  /* 48 chunks that were not read, for example for lack of memory; they are
                              still stored */
        uint32_t gave_up;  /* 56  1: many consecutive reads failed, so the device is at fault; the
                              rest was not read */
        uint32_t reserved; /* 60 */
};
static_assert(sizeof(struct wire_verify_result) == 64, "wire format");

/* Return the size in bytes of one entry of a batch op's request, and of one result of its reply;
 * 0 if the op has no entries or results, or is not a batch op. */
size_t wire_entry_bytes(unsigned op);
size_t wire_result_bytes(unsigned op);
/* Returns whether the op's entries begin with a key. */
bool wire_op_has_keys(unsigned op);
/* Return whether the op's request is a struct wire_batch, and whether its keys form a chain, which
 * begins after `parent` and may continue in the next message. */
bool wire_op_is_batch(unsigned op);
bool wire_op_is_chained(unsigned op);

/* Checks that `msg` is one complete request that a client of this version may send: length, op,
 * flags, counts, reserved fields and enums. Does not depend on the daemon's state. `msg` is private
 * memory, aligned to 8. Returns NULL, or a static text for the log that gives the fault. */
const char *wire_check_request(const void *msg, size_t bytes);

/* Returns the exact number of descriptors that a request of this op carries. */
unsigned wire_request_fds(unsigned op);

/* Return the pieces and the releases of a checked batch message. */
const struct wire_piece *wire_batch_pieces(const struct wire_batch *b);
const struct wire_lease *wire_batch_releases(const struct wire_batch *b);

/* Return a name, such as "PUT" or "busy"; never NULL. */
const char *wire_op_name(unsigned op);
const char *wire_status_name(unsigned status);

/* Checks a namespace's name: 1 to WIRE_MAX_NAME bytes of printable ASCII. Returns 0 or -EINVAL. */
int wire_name_check(const char *name, size_t bytes);
