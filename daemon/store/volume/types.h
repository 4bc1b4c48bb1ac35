/* SPDX-License-Identifier: Apache-2.0 */
/* The requests, parameters and statistics that the store and its volumes share. store.h documents
 * their use. Only store.h and the files of the store include this file. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "evict/evict.h"
#include "io/io.h"
#include "key.h"

enum store_answer {
        STORE_MISS = 1,   /* the chunk does not exist, or failed its check and was dropped */
        STORE_EXISTS = 2, /* put: the key is present or being written */
        STORE_FULL = 3,   /* put: even eviction makes no room now, because everything is pinned */
        STORE_TOO_LARGE = 4,
        STORE_MISMATCH = 5,    /* namespace: another fingerprint */
        STORE_NOT_DURABLE = 6, /* put: written, but a sync failed or has no effect */
        STORE_BYPASSED =
                7,         /* the volume, or every volume, is offline: nothing is read or written */
        STORE_BUSY = 8,    /* suspend, resume: another one is in progress, or the device has not
                              completed earlier operations; removal of a namespace: it is in use */
        STORE_SUSPECT = 9, /* get into memory that others can write to: the bytes do not match; read
                              the chunk into private memory to find out why */
        STORE_UNVERIFIED = 10, /* lend: the chunk was not read back since startup */
        STORE_NOT_LENT = 11,   /* lend: the volume lends nothing, because it has no O_DIRECT or its
                                  file system no leases */
        STORE_STALE =
                12, /* give back: there is no such loan; open a lent file: there is no such file */
};

enum {
        STORE_MAX_VOLUMES = 16,
        STORE_MAX_NAME = 255,
        STORE_MAX_FINGERPRINT = 4096,
        STORE_MAX_NAMESPACES = 4096
};

/* The owner of a namespace that was made before owners were recorded. */
#define STORE_NO_OWNER UINT32_MAX

/* The background verification of the chunks on disk: see store_set_scrub(). */
struct store_scrub {
        uint64_t rate;        /* bytes per second and volume; 0 for no passes */
        uint64_t interval_ms; /* time between the beginnings of two passes */
};

struct store_chunk;

/* A chunk that is dropped because it failed when it was read back. */
struct store_finding {
        const char *path;
        uint32_t segment;
        uint64_t offset; /* within the segment */
        const struct store_chunk *chunk;
        int error; /* 0 if the checksum does not match, -errno if it cannot be read */
};

/* The reason of a volume that was up when it was suspended. Any other suspended volume keeps the
 * reason for which it was bypassed. */
#define STORE_SUSPENDED_BY_HAND "suspended by an admin"

enum store_volume_event {
        STORE_VOLUME_IS_BYPASSED,
        STORE_VOLUME_IS_SUSPENDED,
        STORE_VOLUME_IS_RESUMED,
        STORE_VOLUME_IS_FULL,      /* the file system is full, so the volume does not grow */
        STORE_VOLUME_HAS_ROOM,     /* the file system has room, so the volume grows again */
        STORE_VOLUME_IS_EMPTIED,   /* the volume had missed a purge; its chunks were dropped */
        STORE_VOLUME_KEEPS_POLICY, /* resumed without memory for another eviction policy */
        STORE_VOLUME_IS_NEW,       /* the volume was created in an empty directory */
        STORE_VOLUME_GAVE_UP,      /* a data file with its chunks, as its file system is full */
        STORE_VOLUME_COPIED,   /* data files that were open elsewhere after a change of rights */
        STORE_VOLUME_HAS_LOST, /* chunks, or files that may have named some; once for each file */
};

/* The format that a volume's superblock states, and whether this build supports it. */
struct store_format {
        uint32_t version;
        uint64_t compat, ro_compat, incompat; /* flags that the superblock sets */
        bool opens;             /* false if this build refuses the volume, without changing it */
        uint32_t version_known; /* version of this build, to which opening upgrades the volume */
        uint64_t compat_known, ro_compat_known, incompat_known;
        char features[160]; /* incompat and ro_compat flags that are set, by name, or as numbers */
};

struct store_params {
        const char *const *paths;
        unsigned n_paths;
        uint64_t limit;         /* bytes over all volumes: payload, tables and all */
        uint64_t segment_bytes; /* preferred size: min(this, limit / 64), whole MiB, at least 1 MiB,
                                   at most 16384 files */
        uint64_t entries;       /* limit of the index; 0 means max(limit / 256 KiB, 1 Mi) */
        bool prewrite;
        bool direct;              /* try O_DIRECT */
        const char *policy;       /* eviction */
        uint64_t pool_slab_bytes; /* buffers of reads and writes are at most this large */
        struct key_secret secret;
        /* A digest of the rights of users. After a change no data file that is open elsewhere gets
         * another chunk. 0: the rights are not known, and files stay as they are. */
        uint64_t rights;
        uint32_t lock_wait_ms; /* how long to wait for the lock; 0: 5000 */
        uint32_t table_block;  /* pages of a table that recovery reads at a time; 0: what suits its
                                  length. It finds the same with any */
        uint32_t error_budget; /* device errors of a volume in a minute; one more bypasses it. 0: 16
                                */
        uint64_t hang_ms;      /* an operation of a volume that takes longer bypasses it; 0: none
                                  does */
        uint64_t sequence_reserve; /* how far ahead the ceilings of sequences are; 0: 2^20. At least
                                      16 times what an iteration of the loop begins */
        uint64_t reserve; /* bytes of a file system that stay free when a volume grows; 0: 1 %, at
                             most 1 GiB */
        /* Tells of a change of a volume, once, on the loop thread, from store_open() on; it may not
         * call the store. `text`: why. NULL: none. */
        void (*on_volume)(void *userdata, unsigned path, enum store_volume_event event,
                          const char *text);
        struct store_scrub scrub;
        /* Opens one volume of a store for inspection, whatever its number: limit and segment size
         * are those of the last opening, no data files are made, and no puts accepted. */
        bool as_is;
        /* Reports a finding, from an iteration or the end of a read; its arguments are valid only
         * during the call. May be NULL. */
        void (*on_finding)(void *userdata, const struct store_finding *finding);
        void *userdata;
};

/* A namespace. A pointer to it is valid until control returns to the store: until complete()
 * returns, or until the next call that is not const. Keep the id instead. */
struct store_namespace {
        uint32_t id;
        uint16_t tenant;
        const char *name;        /* NUL-terminated */
        const char *fingerprint; /* NUL-terminated canonical text */
        uint64_t chunk_bytes;    /* declared chunk size; 0 if none */
        uint32_t owner;          /* uid of the user that made it, or STORE_NO_OWNER */
        uint64_t created_ms;     /* Unix time */
        uint32_t lifetime_s;     /* older chunks are not found; 0 means no limit */
        uint64_t chunks, bytes;  /* on disk now */
};

struct store_namespace_open {
        struct list_node node; /* used by the store */
        uint16_t tenant;
        const char *name;
        uint16_t name_length;
        const char *fingerprint;
        uint16_t fingerprint_length;
        uint64_t chunk_bytes;
        bool attach;         /* the namespace must exist; an empty fingerprint matches any */
        uint32_t owner;      /* owner of a new namespace */
        uint32_t lifetime_s; /* lifetime of a new namespace; with set_lifetime, also of an existing
                                one */
        bool set_lifetime;   /* completes once that is on stable storage */
        uint32_t id;         /* the store's */
        uint64_t created_ms; /* the store's */
        uint64_t generation; /* the store's */

        int result; /* 0, STORE_MISS (attach), STORE_MISMATCH, -ENOSPC (STORE_MAX_NAMESPACES),
                       -errno */
        /* Set on 0, and on STORE_MISMATCH to the existing one; valid only within complete(). */
        const struct store_namespace *namespace;
        void (*complete)(struct store_namespace_open *req);
};

/* Returns the Unix time in ms before which chunks of this lifetime have expired; 0 if none have. A
 * chunk with a time in the future, after a clock was set back, has not expired. */
static inline uint64_t store_born_after_ms(uint32_t lifetime_s, uint64_t now_ms)
{
        uint64_t lifetime_ms = (uint64_t)lifetime_s * 1000;

        return lifetime_s > 0 && now_ms > lifetime_ms ? now_ms - lifetime_ms : 0;
}

struct store_ref {
        uint32_t index; /* UINT32_MAX if none */
        uint32_t generation;
};

#define STORE_REF_NONE ((struct store_ref){ .index = UINT32_MAX })

struct store_chunk {
        struct key key;
        uint32_t namespace_id;
        uint32_t length;
        uint32_t crc;
        uint64_t created_ms;
};

struct store_put {
        struct kio_request io; /* the store's */
        struct list_node node; /* the store's */
        uint64_t store_private[6];

        uint32_t namespace_id;
        uint16_t tenant;
        struct key key;
        uint64_t hash;
        struct key parent; /* none for a root */
        uint32_t use;      /* see evict.h */
        uint8_t gap;       /* see evict.h */
        uint8_t place;     /* enum evict_place */
        /* The payload, aligned to 4 KiB, and readable up to the next 4 KiB boundary after `length`.
         * With a `tail` it is read for `length` bytes only, and the bytes beyond whole 4 KiB blocks
         * are taken from the tail. */
        const void *buf;
        const struct iovec *vector; /* instead of `buf`: pieces, each aligned to 4 KiB, and of whole
                                       4 KiB except the last */
        struct iovec *vector_room; /* with a vector: room for one element more than it has, owned by
                                      the caller */
        void *tail;                /* 4 KiB, aligned to 4 KiB; NULL if none */
        struct kio_region *region; /* region that contains `buf`, or NULL */
        /* A client shares the memory of `buf`, so missing memory is no fault of the device: the put
         * then fails with -EFAULT, and is not tried on another volume. */
        bool foreign;
        uint32_t length;
        uint32_t crc;
        bool summing;        /* `crc` is being computed: store_put_checksum() follows */
        int sum_result;      /* used by the store: 0, or why there is no checksum */
        uint64_t created_ms; /* Unix time of the put; 0 means now */
        uint8_t hint;        /* enum evict_hint that arrived before the put was submitted */
        uint8_t cost;        /* evict_cost_level() */
        struct evict_promise promise; /* used by the cache: the expected return of the chain */
        bool durable;                 /* complete only after a sync */
        bool drop; /* set during the put: the key was dropped, and no request finds the chunk. If
                      it is found after complete(), the store could not drop it. */
        uint64_t batch;  /* puts with the same number are answered together, so their entries wait
                            shortly for each other; 0 if alone */
        uint32_t tried;  /* used by the store: volumes that were tried, by bit */
        uint64_t purges; /* the store's */

        /* The record in the index, set when store_put() returns 0. store_find() does not find the
         * chunk yet, but it is in the eviction order, so the caller touches it with its chain. */
        struct store_ref ref;

        /* 0 or STORE_NOT_DURABLE if the chunk is stored; otherwise STORE_BYPASSED, -ECANCELED
         * (purged during the put), or -errno of a failed write. */
        int result;
        void (*complete)(struct store_put *req);
        /* Called when the device hangs and the volume is bypassed: waiters for this put can be
         * answered that it failed. The store uses `buf` and the request until complete(). May be
         * NULL. */
        void (*abandon)(struct store_put *req);
};

/* A request to all volumes that carries no chunk. */
struct store_sync {
        struct list_node node; /* the store's */
        bool of_one;           /* store_sync(): sync the chunk `ref` only, instead of all */
        struct store_ref ref;
        int result;
        void (*complete)(struct store_sync *req);
};

struct store_get {
        struct kio_request io; /* the store's */
        struct list_node node; /* the store's */
        uint64_t store_private[4];

        uint32_t namespace_id;
        struct key key;
        uint64_t hash;
        /* The target, aligned to 4 KiB, with room for the length rounded up to 4 KiB. With a `tail`
         * it needs room for the length only, and nothing is written beyond that. */
        void *buf;
        uint32_t room;
        const struct iovec *vector; /* see store_put.vector */
        struct iovec *vector_room;
        void *tail;
        struct kio_region *region;
        /* A client shares the memory of `buf`, and may write to it or unmap it at any time. Results
         * -EFAULT and STORE_SUSPECT then say nothing about the chunk, which stays. */
        bool foreign;
        bool background; /* no client waits for it */

        /* The ref from store_find(), which saves a second lookup if the chunk is still there. Set
         * to the chunk's present ref. */
        struct store_ref ref;
        uint32_t length; /* length of the chunk in bytes */
        uint32_t crc;

        int result; /* 0 if the chunk was read whole and its CRC matches; STORE_MISS; -EIO and
                       others are counted, and are misses, too */
        void (*complete)(struct store_get *req);
        void (*abandon)(
                struct store_get *req); /* see store_put.abandon; the get counts as a miss */
};

struct store_purge {
        struct list_node node; /* the store's */
        uint32_t namespace_id;
        bool all;
        uint64_t dropped;
        int result; /* 0, or -errno if the purge could not be synced: the chunks are out of memory,
                       but may return */
        void (*complete)(struct store_purge *req);

        /* Used by the store: see purge.c. */
        struct list_node sweep;
        void (*answer)(struct store_purge *req);
        uint32_t stop;
        bool written, swept, wrapped;
};

/* A chunk that has become findable or has been removed. */
struct store_change {
        uint64_t at; /* the chunk's place in the walk */
        uint32_t namespace_id;
        uint32_t length;
        uint16_t tenant;
        bool is_there;
        bool is_evicted;       /* the chunk left to make room */
        const struct key *key; /* valid until the callback returns */
};

/* changed() is called from within the function that changes a chunk. The callbacks must not call
 * the store, except to look up namespaces. */
struct store_watch {
        struct list_node node; /* private to the store */
        void (*changed)(void *userdata, const struct store_change *change);
        /* Called when a volume was resumed. Its old and new chunks were not reported, so walk
         * again. NULL: not needed. */
        void (*replaced)(void *userdata);
        /* Called when a volume has begun or ceased to be in use, so that its chunks are findable or
         * not. NULL: not needed. */
        void (*volumes_changed)(void *userdata);
        void *userdata;
};

/* A chunk that will be evicted soon, and can still be read. `chance` is evict_chance(), `age_ns`
 * evict_age_ns(). */
struct store_leaving {
        uint32_t namespace_id;
        uint16_t tenant;
        const struct key *key; /* valid until the callback returns */
        uint64_t hash;         /* hash of the key under store_params.secret */
        uint32_t length;
        uint32_t place; /* in the order of its size class and volume, from 1 */
        uint64_t age_ns;
        double chance;
};

/* The place of a chunk that a client reads directly from a data file; its slot is pinned. */
struct store_extent {
        uint32_t file; /* number of the data file, never reused in this process */
        uint32_t length;
        uint64_t
                offset; /* in bytes, a multiple of 4 KiB; the last page may also hold other bytes */
};
struct store_loan {
        uint32_t id;
        uint32_t generation; /* never 0 */
};
/* The loans of one client. */
struct store_borrower {
        uint32_t first; /* initially STORE_LOAN_NONE */
        uint32_t count;
        uint64_t bytes; /* lengths of the loans, rounded up to pages */
};
#define STORE_LOAN_NONE UINT32_MAX

/* A descriptor of a data file, to be passed to a client of the tenant that the file belongs to. */
struct store_lent_file {
        struct kio_request io; /* the store's */
        void *volume, *segment;
        int source; /* the store's: a duplicate of the data file's descriptor */
        uint32_t file;
        uint16_t tenant;
        /* Set at completion: 0 and a descriptor, read-only and O_DIRECT, which the caller owns; or
         * -errno. */
        int result, fd;
        uint64_t bytes;
        void (*complete)(struct store_lent_file *req);
};

struct store_verified {
        uint64_t chunks, bytes; /* chunks and bytes verified, including bad ones */
        uint64_t mismatched;    /* dropped because the bytes differ from those that were put */
        uint64_t unreadable;    /* dropped because the device could not read them */
        uint64_t skipped;       /* not read, for lack of memory for example; kept */
};

/* A request to verify a range of one segment, at the full speed of background work. */
struct store_verify {
        struct list_node node; /* the store's */

        unsigned volume;
        uint32_t segment, slot; /* start position: 0 at first, then the values of next_* */
        uint32_t max_chunks;    /* the request ends behind the chunk that reaches either limit */
        uint64_t max_bytes;

        unsigned volumes;                 /* number of the store's volumes */
        uint32_t segments;                /* upper bound of this volume's segment numbers */
        uint32_t next_segment, next_slot; /* next_segment == segments at the end */
        struct store_verified found;
        /* 0; or, if it ended early, STORE_BYPASSED, -EIO (many chunks in a row could not be read)
         * or -ECANCELED (the store stops) */
        int result;
        void (*complete)(struct store_verify *req);
};

/* The parts of the memory that a store takes for its chunks. */
enum store_memory {
        STORE_MEMORY_RECORDS,
        STORE_MEMORY_HASH,     /* from keys to records */
        STORE_MEMORY_SLOTS,    /* from slots to records */
        STORE_MEMORY_TABLE,    /* from pages of the table ring to records */
        STORE_MEMORY_EVICTION, /* items of the eviction policy */
        STORE_MEMORY_FORKS,    /* links of chains that fork */
        STORE_MEMORY_GHOSTS,
        STORE_MEMORY_PARTS
};

struct store_stats {
        uint64_t limit, used_bytes; /* used_bytes: space that the files occupy, as du reports it */
        uint64_t payload_bytes;     /* sum of the lengths of stored chunks */
        uint64_t chunks, entries_max;
        uint64_t slots, segments, segment_bytes;
        uint64_t segments_max; /* existing segments plus those that the limit has room for */
        uint64_t memory[STORE_MEMORY_PARTS];
        uint64_t table_pages, table_pages_written, table_entries_written, table_entries_carried;
        uint64_t puts, gets, drops, purges, evictions, evicted_bytes;
        uint64_t payload_bytes_written, table_bytes_written, prewrite_bytes_written, bytes_read;
        uint64_t payload_writes, table_writes, reads, syncs; /* operations */
        uint64_t crc_failures, crc_rereads, read_errors, write_errors, sync_errors;
        uint64_t crc_failed_ns; /* CLOCK_MONOTONIC time of the latest; 0 if none */
        uint64_t namespaces;
        uint64_t recovered_chunks, recovered_pages, skipped_pages, recover_ms;
        /* Chunks that startup, or a resume, expected and whose data file or namespace is missing;
         * the files that are missing or short; when that was found, CLOCK_MONOTONIC, 0: never. */
        uint64_t lost_chunks, lost_files, lost_ns;
        uint64_t slab_moves;
        uint64_t retained_evictions; /* the part of `evictions` that clients had pinned */
        uint64_t expired;            /* chunks dropped because their lifetime had ended */
        struct evict_stats evict;
        /* Segments that passed to another tenant, and segments that could not and are not used for
         * it. */
        uint64_t handovers, handover_failures;
        uint64_t detached_files;        /* replaced at startup, as rights had changed */
        uint64_t files_given_up;        /* data files removed, as the file system was full */
        uint64_t handover_replacements; /* where a process had the file open: another one */
        /* Reading back, passes and requests together: read; looked at; dropped */
        uint64_t scrub_bytes, scrub_chunks, scrub_failures;
        uint64_t scrub_passes,
                scrub_last_pass_ms; /* passes that ended; Unix time of the end of the last one */
        uint64_t scrub_segments_done,
                scrub_segments;    /* progress of the current pass; both 0 if there is none */
        uint64_t scrub_pinned;     /* chunks being read back now */
        bool direct;               /* O_DIRECT in use on all volumes */
        const char *direct_reason; /* why not, or "" */
        bool clean_start;          /* the store was closed properly before this startup */
        bool bypassed;
};

/* The saved state of a volume's eviction order. */
struct store_order {
        const char *policy;
        const struct evict_learned *learned;
        const struct evict_record *chunks,
                *remembered; /* chunks: in order of their last use, the latest at the end */
        uint64_t n_chunks, n_remembered;
        uint64_t saved_ms; /* Unix time; chunks that were put later count as used later */
};

enum { VOLUMES_SET_MAX = 64 }; /* volume numbers that a set can give out in total */

/* The state that the volumes of a set record about each other in the namespaces files; see
 * membership.c. Epochs are indexed by the set's number of the volume that gave them; 0 means none.
 */
struct volume_set {
        uint64_t epoch; /* the highest epoch that this volume knows */
        /* The last epochs at which a namespace was removed. If a volume has missed something since,
         * its list is replaced. */
        uint64_t removed_at[VOLUMES_SET_MAX];
        /* Indexed by the number of a volume: the epochs by which that volume has missed something.
         * It is emptied unless it has been emptied for them already. A volume's entry for itself
         * has the epochs for which it has been emptied. */
        uint64_t missed_at[VOLUMES_SET_MAX][VOLUMES_SET_MAX];
};

/* Returns whether any epoch in `a` is higher than the epoch of the same volume in `b`. */
static inline bool volume_epochs_exceed(const uint64_t a[static VOLUMES_SET_MAX],
                                        const uint64_t b[static VOLUMES_SET_MAX])
{
        for (unsigned i = 0; i < VOLUMES_SET_MAX; i++)
                if (a[i] > b[i])
                        return true;
        return false;
}

static inline void volume_epochs_raise(uint64_t a[static VOLUMES_SET_MAX],
                                       const uint64_t b[static VOLUMES_SET_MAX])
{
        for (unsigned i = 0; i < VOLUMES_SET_MAX; i++)
                if (a[i] < b[i])
                        a[i] = b[i];
}
