/* SPDX-License-Identifier: Apache-2.0 */
/* What the store and its volumes share: requests and their answers, parameters, numbers. store.h
 * says what each is for; it includes this, and nothing but it and the files of the store do. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "evict/evict.h"
#include "io/io.h"
#include "key.h"

enum store_answer {
        STORE_MISS = 1,   /* not there (any more), or it failed its check and is dropped */
        STORE_EXISTS = 2, /* put: the key is present or being written */
        STORE_FULL = 3,   /* put: not even eviction makes room now: everything is pinned */
        STORE_TOO_LARGE = 4,
        STORE_MISMATCH = 5,    /* namespace: another fingerprint */
        STORE_NOT_DURABLE = 6, /* put: written, but a sync failed or cannot be believed */
        STORE_BYPASSED = 7,    /* the volume, or all of them, is offline: nothing is read or
                                  written */
        STORE_BUSY = 8,        /* suspend, resume: another is under way, or what was asked of the
                                  device before has not come back; removal of a namespace: it is
                                  in use */
        STORE_SUSPECT = 9,     /* get, into memory that others write to: read, but not what was
                                  put. Read it again into memory of one's own, to know why */
        STORE_UNVERIFIED = 10, /* lend: it was not read back since startup */
        STORE_NOT_LENT = 11, /* lend: nothing of this volume is lent, as it has no O_DIRECT, or its
                                file system no leases */
        STORE_STALE = 12,    /* give back: there is no such loan. Open a lent file: no such file */
};

enum {
        STORE_MAX_VOLUMES = 16,
        STORE_MAX_NAME = 255,
        STORE_MAX_FINGERPRINT = 4096,
        STORE_MAX_NAMESPACES = 4096
};

/* The owner of a namespace that was made before owners were written down. */
#define STORE_NO_OWNER UINT32_MAX

/* The background pass over what is on disk: see store_set_scrub(). */
struct store_scrub {
        uint64_t rate;        /* bytes a second of each volume; 0: no passes */
        uint64_t interval_ms; /* from the begin of a pass to that of the next */
};

struct store_chunk;

/* A chunk that was read back and is dropped for it. */
struct store_finding {
        const char *path;
        uint32_t segment;
        uint64_t offset; /* within the segment */
        const struct store_chunk *chunk;
        int error; /* 0: its checksum does not match; -errno: it cannot be read */
};

/* The reason of a volume that was up when it was suspended; of another one it is why it was not. */
#define STORE_SUSPENDED_BY_HAND "suspended by an admin"

enum store_volume_event {
        STORE_VOLUME_IS_BYPASSED,
        STORE_VOLUME_IS_SUSPENDED,
        STORE_VOLUME_IS_RESUMED,
        STORE_VOLUME_IS_FULL,      /* its file system, by whatever files: it does not grow */
        STORE_VOLUME_HAS_ROOM,     /* it grows again */
        STORE_VOLUME_IS_EMPTIED,   /* it had missed a purge: what lay there is dropped */
        STORE_VOLUME_KEEPS_POLICY, /* resumed without memory for another eviction policy */
        STORE_VOLUME_IS_NEW,       /* the volume was created in an empty directory */
        STORE_VOLUME_GAVE_UP,      /* a data file with its chunks, as its file system is full */
        STORE_VOLUME_COPIED,   /* data files that were open elsewhere after a change of rights */
        STORE_VOLUME_HAS_LOST, /* chunks, or files that may have named some; once for each file */
};

/* What a volume's superblock says of its format, and what this build makes of it. */
struct store_format {
        uint32_t version;
        uint64_t compat, ro_compat, incompat; /* flags of it that are set */
        bool opens;             /* false: this build refuses it, and changes nothing */
        uint32_t version_known; /* by this build, which makes it that when it opens it */
        uint64_t compat_known, ro_compat_known, incompat_known;
        char features[160]; /* incompat and ro_compat flags that are set, by name, or as numbers */
};

struct store_params {
        const char *const *paths;
        unsigned n_paths;
        uint64_t limit;         /* bytes over all volumes: payload, tables and all */
        uint64_t segment_bytes; /* wished: min(this, limit / 64), whole MiB, at least 1 MiB, at most
                                   16384 files */
        uint64_t entries;       /* bound of the index; 0: max(limit / 256 KiB, 1 Mi) */
        bool prewrite;
        bool direct;              /* try O_DIRECT */
        const char *policy;       /* eviction */
        uint64_t pool_slab_bytes; /* reads and writes come from buffers at most this large */
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
        uint64_t reserve; /* of a file system, left free when a volume grows; 0: 1 %, at most
                             1 GiB */
        /* Tells of a change of a volume, once, on the loop thread, from store_open() on; it may not
         * call the store. `text`: why. NULL: none. */
        void (*on_volume)(void *userdata, unsigned path, enum store_volume_event event,
                          const char *text);
        struct store_scrub scrub;
        /* To look at one volume of a store as it lies, whatever number it has: limit and segment
         * size are those it was last opened with, no data files are made, and no puts taken. */
        bool as_is;
        /* From an iteration, and from the end of a read; what it is given lives only through the
         * call. May be NULL. */
        void (*on_finding)(void *userdata, const struct store_finding *finding);
        void *userdata;
};

/* A pointer to one is valid until control returns to the store: until complete() returns, or until
 * the next call that is not const. Keep the id. */
struct store_namespace {
        uint32_t id;
        uint16_t tenant;
        const char *name;        /* NUL-terminated */
        const char *fingerprint; /* NUL-terminated canonical text */
        uint64_t chunk_bytes;    /* declared; 0: none */
        uint32_t owner;          /* user id of who made it, or STORE_NO_OWNER */
        uint64_t created_ms;     /* Unix time */
        uint32_t lifetime_s;     /* chunks that are older are not to be found; 0: no end */
        uint64_t chunks, bytes;  /* on disk now */
};

struct store_namespace_open {
        struct list_node node; /* the store's */
        uint16_t tenant;
        const char *name;
        uint16_t name_length;
        const char *fingerprint;
        uint16_t fingerprint_length;
        uint64_t chunk_bytes;
        bool attach;         /* must exist; an empty fingerprint matches any */
        uint32_t owner;      /* of a namespace that is made */
        uint32_t lifetime_s; /* likewise; with set_lifetime, of one that exists */
        bool set_lifetime;   /* completes once that is on stable storage */
        uint32_t id;         /* the store's */
        uint64_t created_ms; /* the store's */
        uint64_t generation; /* the store's */

        int result; /* 0, STORE_MISS (attach), STORE_MISMATCH, -ENOSPC (STORE_MAX_NAMESPACES),
                       -errno */
        /* On 0; on STORE_MISMATCH the existing one. Within complete() only. */
        const struct store_namespace *namespace;
        void (*complete)(struct store_namespace_open *req);
};

/* Chunks of the lifetime that were put before this, Unix time in ms, have expired. 0: none have. A
 * chunk from the future, as a clock that was set back makes them, has not. */
static inline uint64_t store_born_after_ms(uint32_t lifetime_s, uint64_t now_ms)
{
        uint64_t lifetime_ms = (uint64_t)lifetime_s * 1000;

        return lifetime_s > 0 && now_ms > lifetime_ms ? now_ms - lifetime_ms : 0;
}

struct store_ref {
        uint32_t index; /* UINT32_MAX: none */
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
        struct key parent; /* root: none */
        uint32_t use;      /* as of evict.h */
        /* Aligned to 4 KiB; readable up to the next 4 KiB boundary after length, or, with a `tail`,
         * for `length` bytes, of which those beyond whole 4 KiB blocks are taken from the tail. */
        const void *buf;
        const struct iovec *vector; /* in place of `buf`: pieces, each of them so aligned, and of
                                       whole 4 KiB but for the last */
        struct iovec *vector_room;  /* with a vector: an element more than it has, the caller's */
        void *tail;                 /* 4 KiB, so aligned; NULL: none */
        struct kio_region *region;  /* `buf` lies in it; or NULL */
        /* A client shares the memory of `buf`: that it is not there is no fault of the device. Then
         * the put fails with -EFAULT, and is tried nowhere else. */
        bool foreign;
        uint32_t length;
        uint32_t crc;
        bool summing;        /* `crc` is being computed: store_put_checksum() follows */
        int sum_result;      /* the store's: 0, or why there is no checksum */
        uint64_t created_ms; /* when it was put, Unix time; 0: now */
        uint8_t hint;        /* enum evict_hint, that came before it was handed over */
        uint8_t cost;        /* evict_cost_level() */
        bool durable;        /* complete only after a sync */
        uint64_t batch;      /* puts with the same number are answered together; 0: by itself. Their
                                entries wait for each other a little */
        bool of_one;         /* store_sync(): of the chunk `ref`; else of all there are */
        uint32_t tried;      /* the store's: volumes, by bit */
        uint64_t purges;     /* the store's */

        /* Set when store_put() returns 0: the place in the index, not visible to store_find() yet,
         * but in the eviction order: touch it with its chain. */
        struct store_ref ref;

        /* 0, or STORE_NOT_DURABLE: it is stored. STORE_BYPASSED, -ECANCELED (purged meanwhile),
         * -errno of a failed write: it is not. */
        int result;
        void (*complete)(struct store_put *req);
        /* The device hangs, and the volume is bypassed: a waiter for this put need not wait
         * any more, it counts as failed. `buf` and the request stay the store's until complete().
         * May be NULL. */
        void (*abandon)(struct store_put *req);
};

struct store_get {
        struct kio_request io; /* the store's */
        struct list_node node; /* the store's */
        uint64_t store_private[4];

        uint32_t namespace_id;
        struct key key;
        uint64_t hash;
        /* Aligned to 4 KiB, with room for the length rounded up to 4 KiB; or, with a `tail`, for
         * the length, and nothing is written beyond that. */
        void *buf;
        uint32_t room;
        const struct iovec *vector; /* as of a put */
        struct iovec *vector_room;
        void *tail;
        struct kio_region *region;
        /* A client shares the memory of `buf`, and may write to it or take it away at any time: it
         * says nothing of the chunk then, which stays. Results -EFAULT, STORE_SUSPECT. */
        bool foreign;
        bool background; /* no client waits for it */

        /* Where store_find() found it, and it is not looked for once more if it is there still.
         * Out: where it is. */
        struct store_ref ref;
        uint32_t length; /* of the chunk */
        uint32_t crc;

        int result; /* 0: read whole and its CRC compared; STORE_MISS; -EIO etc. counted, also a
                       miss */
        void (*complete)(struct store_get *req);
        void (*abandon)(struct store_get *req); /* as of a put: it counts as a miss */
};

struct store_purge {
        struct list_node node; /* the store's */
        uint32_t namespace_id;
        bool all;
        uint64_t dropped;
        int result; /* 0, or -errno: the epoch could not be synced; the chunks are out of memory,
                       but may come back */
        void (*complete)(struct store_purge *req);

        /* The store's: see purge.c. */
        struct list_node sweep;
        void (*answer)(struct store_purge *req);
        uint32_t stop;
        bool written, swept, wrapped;
};

/* Told of each chunk as it becomes findable and as it is removed, from within whatever does it: it
 * may not call the store, other than to ask for namespaces. `at`: the chunk's place in the walk. */
struct store_watch {
        void (*changed)(void *userdata, uint64_t at, uint32_t namespace_id, uint16_t tenant,
                        const struct key *key, bool is_there);
        /* A volume was resumed: what it had and what it has now was not reported. Walk again. */
        void (*replaced)(void *userdata);
        void *userdata;
};

/* A chunk that is evicted soon, and can still be read. `chance`: evict_chance(). */
struct store_leaving {
        uint32_t namespace_id;
        uint16_t tenant;
        const struct key *key; /* borrowed, until the callback returns */
        uint64_t hash;         /* of the key, by store_params.secret */
        uint32_t length;
        double chance;
};

/* A chunk that a client reads by itself, from the data file: its slot is pinned meanwhile. */
struct store_extent {
        uint32_t file; /* number of the data file, in this process: never of another one */
        uint32_t length;
        uint64_t offset; /* of whole pages of 4 KiB, of which the last may have other bytes too */
};
struct store_loan {
        uint32_t id;
        uint32_t generation; /* never 0 */
};
/* What one client has been lent. */
struct store_borrower {
        uint32_t first; /* STORE_LOAN_NONE at first */
        uint32_t count;
        uint64_t bytes; /* of their lengths, in pages */
};
#define STORE_LOAN_NONE UINT32_MAX

/* A descriptor of a data file, to be handed to a client of the tenant that it is of. */
struct store_lent_file {
        struct kio_request io; /* the store's */
        void *volume, *segment;
        uint32_t file;
        uint16_t tenant;
        /* Out: 0 and a descriptor, read-only and O_DIRECT, the caller's; -errno. */
        int result, fd;
        uint64_t bytes;
        void (*complete)(struct store_lent_file *req);
};

struct store_verified {
        uint64_t chunks, bytes; /* looked at, bad ones included */
        uint64_t mismatched;    /* not what was put: dropped */
        uint64_t unreadable;    /* refused by the device: dropped */
        uint64_t skipped;       /* not read for want of memory and the like: still there */
};

/* The same on request, for a stretch of one segment, as fast as background work may go. */
struct store_verify {
        struct list_node node; /* the store's */

        unsigned volume;
        uint32_t segment, slot; /* where to begin; 0 at first, then what next_* said */
        uint32_t max_chunks;    /* ends behind the chunk that reaches one of these */
        uint64_t max_bytes;

        unsigned volumes;                 /* of the store */
        uint32_t segments;                /* of this volume: numbers are below */
        uint32_t next_segment, next_slot; /* next_segment == segments: that was the last one */
        struct store_verified found;
        /* 0; STORE_BYPASSED, -EIO (many in a row could not be read), -ECANCELED (the store stops):
         * as far as it came */
        int result;
        void (*complete)(struct store_verify *req);
};

struct store_stats {
        uint64_t limit, used_bytes; /* used: what the files occupy, as du sees it */
        uint64_t payload_bytes;     /* sum of the lengths of what is stored */
        uint64_t chunks, entries_max;
        uint64_t slots, segments, segment_bytes;
        uint64_t segments_max; /* those there are, and what the limit has room for */
        uint64_t index_bytes;  /* memory of index, slabs, eviction and table bookkeeping */
        uint64_t table_pages, table_pages_written, table_entries_written, table_entries_carried;
        uint64_t puts, gets, drops, purges, evictions, evicted_bytes;
        uint64_t payload_bytes_written, table_bytes_written, prewrite_bytes_written, bytes_read;
        uint64_t payload_writes, table_writes, reads, syncs; /* operations */
        uint64_t crc_failures, crc_rereads, read_errors, write_errors, sync_errors;
        uint64_t crc_failed_ns; /* when the latest was, CLOCK_MONOTONIC; 0: there was none */
        uint64_t namespaces;
        uint64_t recovered_chunks, recovered_pages, skipped_pages, recover_ms;
        /* Chunks that startup, or a resume, expected and whose data file or namespace is missing;
         * the files that are missing or short; when that was found, CLOCK_MONOTONIC, 0: never. */
        uint64_t lost_chunks, lost_files, lost_ns;
        uint64_t slab_moves;
        uint64_t retained_evictions; /* of `evictions`, of chunks that clients had pinned */
        uint64_t expired;            /* chunks that were dropped as their lifetime was over */
        struct evict_stats evict;
        /* Segments that went to another tenant; those that could not, and are not used for it. */
        uint64_t handovers, handover_failures;
        uint64_t detached_files;        /* replaced at startup, as rights had changed */
        uint64_t files_given_up;        /* data files removed, as the file system was full */
        uint64_t handover_replacements; /* where a process had the file open: another one */
        /* Reading back, passes and requests together: read; looked at; dropped */
        uint64_t scrub_bytes, scrub_chunks, scrub_failures;
        uint64_t scrub_passes, scrub_last_pass_ms;    /* ended; when the last one did, Unix time */
        uint64_t scrub_segments_done, scrub_segments; /* of the pass under way; 0 of 0: none is */
        uint64_t scrub_pinned;                        /* chunks that are being read back now */
        bool direct;                                  /* O_DIRECT in use on all volumes */
        const char *direct_reason;                    /* why not; "" */
        bool clean_start;                             /* was it closed properly? */
        bool bypassed;
};

/* What eviction had learned in a volume when it was saved. */
struct store_order {
        const char *policy;
        const struct evict_learned *learned;
        const struct evict_record *chunks, *remembered; /* chunks: those used last come last */
        uint64_t n_chunks, n_remembered;
        uint64_t saved_ms; /* Unix time: chunks that were put later were used later */
};

enum { VOLUMES_SET_MAX = 64 }; /* numbers that a set can give out, in its life */

/* What the volumes of a set write down of each other, in the namespaces files: see membership.c.
 * Epochs by the number in the set of the volume that gave them; 0: none. */
struct volume_set {
        uint64_t epoch; /* none that this volume knows of is higher */
        /* The last at which a namespace was removed: the list of a volume that has missed something
         * since is replaced. */
        uint64_t removed_at[VOLUMES_SET_MAX];
        /* By number: the volume has missed something by these epochs, and is emptied unless it has
         * been for them. What a volume has of itself: those that it has been emptied for. */
        uint64_t missed_at[VOLUMES_SET_MAX][VOLUMES_SET_MAX];
};

/* Is an epoch of `a` higher than the one that `b` has of the same volume? */
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
