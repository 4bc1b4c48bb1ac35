/* SPDX-License-Identifier: Apache-2.0 */
/* The requests, parameters and statistics that the store and its volumes share. store.h documents
 * their use. The set is all volumes that have formed one store; struct volume_set, at the end,
 * explains epochs and claims. Only store.h and the files of the store include this file. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "evict/evict.h"
#include "io/io.h"
#include "key.h"

enum store_answer {
        STORE_MISS = 1,   /* the chunk, namespace or volume does not exist; get: or the chunk failed
                             its check and was dropped; give back: the chunk has left its slot */
        STORE_EXISTS = 2, /* put: the store has a chunk of the key, or a put of the key is in
                             flight; suspend, resume: the volume is in the wanted state already */
        STORE_FULL = 3, /* put: eviction cannot make room now, because operations or loans keep the
                           chunks in their slots, or the table of slot sizes is full; retain, lend,
                           verify: a limit is reached */
        STORE_TOO_LARGE = 4,   /* put: empty, or larger than the largest slot or the tenant's limit;
                                  get: larger than the buffer */
        STORE_MISMATCH = 5,    /* namespace: exists with another fingerprint */
        STORE_NOT_DURABLE = 6, /* put, sync: written, but a sync has failed, has no effect on this
                                  file system, or missed a volume that went offline */
        STORE_BYPASSED = 7,    /* the volume or every volume is offline, or the store stops, so the
                                  request had no effect; settled drops: dropped chunks may return */
        STORE_BUSY = 8, /* suspend, resume: another suspend or resume is in progress, or the device
                           has not completed earlier operations; removal of a namespace: the
                           namespace is in use */
        STORE_SUSPECT = 9, /* get into memory that others can write to: the bytes do not match; read
                              the chunk into private memory to find out why */
        STORE_UNVERIFIED = 10, /* lend: the chunk was not read back since startup */
        STORE_NOT_LENT = 11,   /* lend: the volume cannot lend chunks, because it does not use
                                  O_DIRECT or its file system has no file leases (F_SETLEASE) */
        STORE_STALE = 12, /* give back: the borrower has no such loan; open a lent file: no data
                             file of the tenant has this number */
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
        uint64_t rate; /* bytes per second that a pass reads from each volume; 0 for no passes */
        uint64_t interval_ms; /* time between the beginnings of two passes */
};

struct store_chunk;

/* A report about a chunk that could not be read back correctly and is therefore dropped. */
struct store_finding {
        const char *path;
        uint32_t segment;
        uint64_t offset; /* position of the chunk in the segment, in bytes */
        const struct store_chunk *chunk;
        int error; /* 0 if the checksum does not match, -errno if the chunk cannot be read */
};

/* The text of store_volume_stats.reason for a volume that was in use when an admin suspended it. A
 * volume that was bypassed before keeps its earlier reason. */
#define STORE_SUSPENDED_BY_HAND "suspended by an admin"

enum store_volume_event {
        STORE_VOLUME_IS_BYPASSED,
        STORE_VOLUME_IS_SUSPENDED,
        STORE_VOLUME_IS_RESUMED,
        STORE_VOLUME_IS_FULL,      /* the file system is full, so the volume does not grow */
        STORE_VOLUME_HAS_ROOM,     /* the file system has room, so the volume grows again */
        STORE_VOLUME_IS_EMPTIED,   /* the volume had missed a purge; its chunks were dropped */
        STORE_VOLUME_KEEPS_POLICY, /* the volume was resumed, but memory was too short to switch it
                                      to the store's present eviction policy */
        STORE_VOLUME_IS_NEW,       /* the volume was created in an empty directory */
        STORE_VOLUME_GAVE_UP, /* the volume removed a data file with its chunks, because its file
                                 system is full */
        STORE_VOLUME_COPIED, /* data files were replaced by copies, because other processes had them
                                open after access rights had changed */
        STORE_VOLUME_HAS_LOST, /* chunks are lost, because a file or the directory is missing, short
                                  or replaced; the event's text says which */
};

/* The format that a volume's superblock states, and whether this build supports it. */
struct store_format {
        uint32_t version;
        uint64_t compat, ro_compat, incompat; /* feature flags in the superblock */
        bool opens;             /* false if this build refuses the volume, without changing it */
        uint32_t version_known; /* the only format version that this build opens */
        uint64_t compat_known, ro_compat_known,
                incompat_known; /* feature flags that this build knows */
        char features[160]; /* incompat and ro_compat flags that are set, by name, or as numbers */
};

struct store_params {
        const char *const *paths;
        unsigned n_paths;
        uint64_t limit;         /* bytes that all files of all volumes may occupy together */
        uint64_t segment_bytes; /* preferred size of a data file; the size used is min(this, limit /
                                   64) in whole MiB, at least 1 MiB, and large enough for at most
                                   16384 files */
        uint64_t entries; /* most chunks that the index can hold, but no more than limit / 4 KiB; 0
                             means max(limit / 256 KiB, 1 Mi) */
        bool prewrite; /* allocate data files in full, and fill them with zeros while the volume is
                          idle */
        bool direct;   /* use O_DIRECT where the file system supports it */
        const char *policy;       /* name of the eviction policy */
        uint64_t pool_slab_bytes; /* bytes of the caller's largest buffer for a chunk: puts of
                                     larger chunks are refused; 0: no such bound */
        struct key_secret secret; /* key of the hashes of chunks and namespace names */
        /* A digest of the access rights of users. If it has changed since the last startup, data
         * files that other processes have open are replaced by copies before they get further
         * chunks. 0: the rights are not known, and no file is replaced. */
        uint64_t rights;
        uint32_t lock_wait_ms; /* longest wait for a volume's lock; 0: 5000 */
        uint32_t table_block;  /* pages of the table that recovery reads at a time; 0: chosen by the
                                  table's length. Affects only the speed of recovery */
        uint32_t error_budget; /* device errors in a minute that a volume survives; one more
                                  bypasses it. 0: 16 */
        uint64_t hang_ms; /* longest time that an operation may take before its volume is bypassed;
                             0: no limit */
        uint64_t sequence_reserve; /* number of sequences that a write of the superblock reserves;
                                      0: 2^20. Must be at least 16 times the number of sequences
                                      that one iteration of the loop assigns */
        uint64_t reserve; /* free bytes that a growing volume leaves on its file system; 0: 1 % of
                             the file system, at most 1 GiB */
        /* Called once for each change of a volume, on the loop thread, from store_open() on. `path`
         * is the volume's index, and `text` the reason or the details. The callback must not call
         * the store. May be NULL. */
        void (*on_volume)(void *userdata, unsigned path, enum store_volume_event event,
                          const char *text);
        struct store_scrub scrub;
        /* Open a single volume for inspection, whatever its number in its set. The limit and
         * segment size of its last opening apply, no data files are made, and no puts are
         * accepted. */
        bool as_is;
        /* Called for each chunk that is dropped because it could not be read back correctly, from
         * an iteration or the completion of a read. The arguments are valid only during the call.
         * May be NULL. */
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
        uint64_t chunk_bytes;    /* declared chunk size in bytes; 0 if none is declared */
        uint32_t owner;          /* uid of the user that made it, or STORE_NO_OWNER */
        uint64_t created_ms;     /* Unix time in ms */
        uint32_t lifetime_s; /* chunks older than this, in seconds, are not found; 0 means no limit
                              */
        uint64_t chunks, bytes; /* number of chunks on disk, and the sum of their lengths */
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
        uint32_t lifetime_s; /* lifetime of a new namespace in seconds; with set_lifetime, also of
                                an existing one */
        bool set_lifetime; /* also change the lifetime of an existing namespace; completes once the
                              lifetime is on stable storage */
        uint32_t id;       /* used by the store */
        uint64_t created_ms; /* used by the store */
        uint64_t generation; /* used by the store */

        int result; /* 0, STORE_MISS (attach), STORE_MISMATCH, -ENOSPC (STORE_MAX_NAMESPACES, or no
                       room on disk), -EINVAL (invalid name or fingerprint), or another -errno */
        /* The namespace if the result is 0, and the existing one if the result is STORE_MISMATCH;
         * otherwise NULL. Valid only within complete(). */
        const struct store_namespace *namespace;
        void (*complete)(struct store_namespace_open *req);
};

/* Returns the time such that chunks put before it have expired, as Unix time in ms, or 0 if no
 * chunk can have expired. A chunk whose time is in the future, because a clock was set back, has
 * not expired. */
static inline uint64_t store_born_after_ms(uint32_t lifetime_s, uint64_t now_ms)
{
        uint64_t lifetime_ms = (uint64_t)lifetime_s * 1000;

        return lifetime_s > 0 && now_ms > lifetime_ms ? now_ms - lifetime_ms : 0;
}

/* Names a chunk in the index; see store.h. */
struct store_ref {
        uint32_t index; /* UINT32_MAX if the ref names no chunk */
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
        struct kio_request io; /* used by the store */
        struct list_node node; /* used by the store */
        uint64_t store_private[7];

        uint32_t namespace_id;
        uint16_t tenant;
        struct key key;
        uint64_t hash;
        struct key parent; /* all zeros if the chunk is the root of its chain */
        uint32_t use;      /* see evict.h */
        uint8_t gap;       /* see evict.h */
        uint8_t place;     /* enum evict_place */
        /* The payload, aligned to 4 KiB, and readable up to the next 4 KiB boundary after `length`.
         * With a `tail`, only `length` bytes of it are read: its whole 4 KiB blocks are written
         * from it directly, and the rest is copied to the tail and written from there. */
        const void *buf;
        const struct iovec *vector; /* the payload in pieces, instead of `buf`: each aligned to 4
                                       KiB, and all except the last of whole 4 KiB */
        struct iovec *vector_room;  /* with a vector: an array of the caller with room for one
                                       element more than the vector has */
        void *tail;                 /* buffer of 4 KiB, aligned to 4 KiB; NULL if there is none */
        struct kio_region *region;  /* region that contains `buf`, or NULL */
        /* A client shares the memory of the payload, and may truncate the file behind it. If the
         * memory cannot be read, the put fails with -EFAULT, which does not count as an error of
         * the device, and is not tried on another volume. */
        bool foreign;
        uint32_t length;
        uint32_t crc;
        bool summing;   /* `crc` is not known yet, and store_put_checksum() will supply it */
        int sum_result; /* used by the store: 0, or the -errno that store_put_checksum() was called
                           with */
        uint64_t created_ms; /* Unix time of the put; 0 means now */
        uint8_t hint;        /* enum evict_hint: a hint for the key that arrived before the put was
                                submitted */
        uint8_t cost;        /* evict_cost_level() */
        struct evict_promise promise; /* used by the cache: the expected return of the chain */
        bool durable;                 /* complete only after the chunk has been synced */
        bool drop; /* set by the caller during the put, if the key was dropped: the store then drops
                      the chunk when it is written. A chunk that is found after complete() could not
                      be dropped. */
        uint64_t batch;  /* number of the batch; the entries of puts with the same number wait
                            shortly for each other, because these puts are answered together. 0 if
                            the put belongs to no batch */
        uint32_t tried;  /* used by the store: volumes on which the put was tried, by bit */
        uint64_t purges; /* used by the store */

        /* The record in the index, set when store_put() returns 0. store_find() does not find the
         * chunk yet, but it is in the eviction order, so the caller touches it with its chain. */
        struct store_ref ref;

        /* 0 or STORE_NOT_DURABLE if the chunk is stored; otherwise STORE_BYPASSED, -ECANCELED
         * (purged during the put), STORE_TOO_LARGE (the tenant's limit was lowered during the put),
         * -ENOSPC (no slot can be freed), or -errno of a failed write, of the hand-over of the data
         * file or of store_put_checksum(). */
        int result;
        void (*complete)(struct store_put *req);
        /* Called if the device hangs and the volume is bypassed, so that the caller can answer the
         * waiters of this put with a failure. The store still uses `buf` and the request until
         * complete(). May be NULL. */
        void (*abandon)(struct store_put *req);
};

/* A request of store_sync() or store_settle_drops(), which explain `result`. */
struct store_sync {
        struct list_node node; /* used by the store */
        bool of_one; /* store_sync(): only the chunk `ref` must become durable; see there */
        struct store_ref ref;
        int result;
        void (*complete)(struct store_sync *req);
};

struct store_get {
        struct kio_request io; /* used by the store */
        struct list_node node; /* used by the store */
        uint64_t store_private[4];

        uint32_t namespace_id;
        struct key key;
        uint64_t hash;
        /* The target, aligned to 4 KiB, with room for the chunk's length rounded up to 4 KiB. With
         * a `tail`, room for the length suffices, and no byte beyond it is written. */
        void *buf;
        uint32_t room;              /* size of the target in bytes */
        const struct iovec *vector; /* see store_put.vector */
        struct iovec *vector_room;
        void *tail;
        struct kio_region *region;
        /* A client shares the memory of `buf`, and may write to it, or truncate its file, at any
         * time. So the results -EFAULT and STORE_SUSPECT do not show that the chunk is damaged, and
         * it is not dropped. */
        bool foreign;
        bool background; /* no client waits for this get */

        /* In: the ref from store_find(), which saves a second lookup if the chunk is still in that
         * record. Out: the chunk's present ref. */
        struct store_ref ref;
        uint32_t length; /* length of the chunk in bytes */
        uint32_t crc;

        int result; /* 0 if the whole chunk was read and its CRC matches; STORE_MISS; STORE_SUSPECT;
                       or -errno of the read, which the caller treats as a miss */
        void (*complete)(struct store_get *req);
        void (*abandon)(struct store_get *req); /* see store_put.abandon; the waiters are answered
                                                   with a miss */
};

struct store_purge {
        struct list_node node; /* used by the store */
        uint32_t namespace_id;
        bool all;
        uint64_t dropped;
        int result; /* 0, or -errno if the purge could not be synced: the chunks are no longer in
                       the index, but may return after a restart. If memory is too short to begin,
                       -ENOMEM, and nothing is purged */
        void (*complete)(struct store_purge *req);

        /* Used by the store; see volume/purge.c. */
        struct list_node sweep;
        void (*answer)(struct store_purge *req);
        uint32_t stop;
        bool written, swept, wrapped;
};

/* A chunk that has become findable or has been removed. */
struct store_change {
        uint64_t at; /* the chunk's position in store_walk() */
        uint32_t namespace_id;
        uint32_t length;
        uint16_t tenant;
        bool is_there;         /* the chunk has become findable; false if it was removed */
        bool is_evicted;       /* the chunk was evicted to make room */
        const struct key *key; /* valid until the callback returns */
};

/* Callbacks for changes of the stored chunks, see store_add_watch(). changed() is called from
 * within the function that changes a chunk. The callbacks must not call the store, except to look
 * up namespaces. */
struct store_watch {
        struct list_node node; /* private to the store */
        void (*changed)(void *userdata, const struct store_change *change);
        /* Called when a volume was resumed. The removal of its old chunks and the addition of its
         * new ones are not reported, so the watcher must walk again. May be NULL. */
        void (*replaced)(void *userdata);
        /* Called when a volume has begun or ceased to be in use, which makes its chunks findable or
         * not findable. May be NULL. */
        void (*volumes_changed)(void *userdata);
        void *userdata;
};

/* A chunk that will be evicted soon, and can still be read. `chance` is the result of
 * evict_chance(), `age_ns` that of evict_age_ns(). */
struct store_leaving {
        uint32_t namespace_id;
        uint16_t tenant;
        const struct key *key; /* valid until the callback returns */
        uint64_t hash;         /* hash of the key under store_params.secret */
        uint32_t length;
        uint32_t place; /* position in the eviction order of its size class and volume; 1 is evicted
                           first */
        uint64_t age_ns;
        double chance;
};

/* The location of a chunk on loan, which a client reads directly from a data file. */
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
        uint32_t first; /* the latest loan; STORE_LOAN_NONE if there is none, as initially */
        uint32_t count;
        uint64_t bytes; /* sum of the lengths of the lent chunks, each rounded up to whole pages */
};
#define STORE_LOAN_NONE UINT32_MAX

/* A descriptor of a data file, to be passed to a client of the tenant that the file belongs to. */
struct store_lent_file {
        struct kio_request io;  /* used by the store */
        void *volume, *segment; /* used by the store */
        int source;             /* used by the store: a duplicate of the data file's descriptor */
        uint32_t file;          /* number of the data file, from struct store_extent */
        uint16_t tenant;
        /* Set at completion: 0 and a descriptor, read-only and O_DIRECT, which the caller owns; or
         * -errno. */
        int result, fd;
        uint64_t bytes;
        void (*complete)(struct store_lent_file *req);
};

struct store_verified {
        uint64_t chunks, bytes; /* chunks that were read, including bad ones, and their bytes */
        uint64_t mismatched;    /* chunks dropped because their checksum does not match */
        uint64_t unreadable;    /* chunks dropped because the device could not read them */
        uint64_t skipped; /* chunks that were not read, for example for lack of memory, and are kept
                           */
};

/* A request to verify the chunks in a range of one segment. Its reads have the class of background
 * work, but no rate limit. */
struct store_verify {
        struct list_node node; /* used by the store */

        unsigned volume;
        uint32_t segment, slot; /* start position: 0 at first, then next_segment and next_slot of
                                   the request before */
        uint32_t max_chunks;    /* the request ends at the end of the segment, or before, after the
                                   chunk with which either limit is reached */
        uint64_t max_bytes;     /* a number above 64 MiB acts like 64 MiB */

        unsigned volumes;                 /* out: number of the store's volumes */
        uint32_t segments;                /* out: upper bound of this volume's segment numbers */
        uint32_t next_segment, next_slot; /* out: where to continue; next_segment equals `segments`
                                             at the end of the volume */
        struct store_verified found;
        /* 0; or, if the request ended early, STORE_BYPASSED, -EIO (many chunks in a row could not
         * be read) or -ECANCELED (the store is stopping) */
        int result;
        void (*complete)(struct store_verify *req);
};

/* The parts of the memory, in bytes, that the store takes for its chunks. */
enum store_memory {
        STORE_MEMORY_RECORDS,  /* records of the index */
        STORE_MEMORY_HASH,     /* hash table from keys to records */
        STORE_MEMORY_SLOTS,    /* table from slots to records */
        STORE_MEMORY_TABLE,    /* table from pages of the table ring to records */
        STORE_MEMORY_EVICTION, /* the eviction policy's data for each chunk */
        STORE_MEMORY_FORKS,    /* the eviction policy's links of chains that fork */
        STORE_MEMORY_GHOSTS,   /* the eviction policy's memory of evicted chunks */
        STORE_MEMORY_PARTS
};

struct store_stats {
        uint64_t limit, used_bytes; /* in bytes; used_bytes is the part of the limit that the files
                                       take */
        uint64_t payload_bytes;     /* sum of the lengths of the stored chunks */
        uint64_t chunks, entries_max;
        uint64_t slots, segments, segment_bytes;
        uint64_t segments_max; /* number of existing segments plus those that the limit has room for
                                */
        uint64_t memory[STORE_MEMORY_PARTS];
        uint64_t table_pages, table_pages_written, table_entries_written, table_entries_carried;
        uint64_t puts, gets, drops, purges, evictions, evicted_bytes;
        uint64_t payload_bytes_written, table_bytes_written, prewrite_bytes_written, bytes_read;
        uint64_t payload_writes, table_writes, reads,
                syncs; /* completed operations at the device */
        uint64_t crc_failures, crc_rereads, read_errors, write_errors, sync_errors;
        uint64_t crc_failed_ns; /* CLOCK_MONOTONIC time of the latest CRC failure; 0 if there was
                                   none */
        uint64_t namespaces;
        uint64_t recovered_chunks, recovered_pages, skipped_pages, recover_ms;
        /* Losses found by a startup or resume: chunks whose data file or namespace is missing;
         * files that are missing or short; and the CLOCK_MONOTONIC time of the finding, 0 if there
         * was none. */
        uint64_t lost_chunks, lost_files, lost_ns;
        uint64_t slab_moves;
        uint64_t retained_evictions; /* the part of `evictions` that were of chunks pinned by
                                        clients */
        uint64_t expired;            /* chunks dropped because their lifetime had ended */
        struct evict_stats evict;
        /* Hand-overs that succeeded, including records of first cuts (see store/volume/handover.c),
         * and hand-overs that failed. After a failure, the next put that gets a slot in the segment
         * starts another one. */
        uint64_t handovers, handover_failures;
        uint64_t detached_files; /* data files replaced by copies at startup, because access rights
                                    had changed */
        uint64_t files_given_up; /* data files removed because the file system was full */
        uint64_t handover_replacements; /* hand-overs that replaced the data file by a new one,
                                           because another process had it open */
        /* Read back by the scrub and by store_verify() together: bytes read, chunks checked, chunks
         * dropped */
        uint64_t scrub_bytes, scrub_chunks, scrub_failures;
        uint64_t scrub_passes, scrub_last_pass_ms; /* completed passes of the scrub; Unix time at
                                                      which the last one ended */
        uint64_t scrub_segments_done,
                scrub_segments; /* progress of the current pass: segments read, and segments in all;
                                   both 0 if no pass runs */
        uint64_t scrub_pinned;  /* chunks that are being read back now */
        bool direct;            /* O_DIRECT in use on all volumes */
        const char *direct_reason; /* why O_DIRECT is not in use, or "" */
        bool clean_start;          /* the store was closed properly before this startup */
        bool bypassed;
};

/* A volume's eviction order, as it was saved before a restart. */
struct store_order {
        const char *policy;
        const struct evict_learned *learned;
        const struct evict_record *chunks,
                *remembered; /* `chunks`: stored chunks in order of their last use, the latest last;
                                `remembered`: chunks that the policy remembers evicting */
        uint64_t n_chunks, n_remembered;
        uint64_t saved_ms; /* Unix time of the saving; chunks that were put later count as used
                              later */
};

enum { VOLUMES_SET_MAX = 64 }; /* volume numbers that a set can give out in total */

/* The record that the volumes of a set keep about each other in their namespaces files; see
 * membership.c. The innermost index of each array is the number, in the set, of the volume that
 * gave the epoch (the claimant); an epoch of 0 means that this claimant gave none. */
struct volume_set {
        uint64_t epoch; /* the highest epoch that this volume knows */
        /* The last epochs at which a namespace was removed. A volume that has missed one of these
         * removals takes the other volumes' list. */
        uint64_t removed_at[VOLUMES_SET_MAX];
        /* The claims on each volume: the outer index is the number of a volume, and its epochs
         * state when it missed something. That volume is emptied before use unless it has been
         * emptied for these epochs already. A volume's entry for itself has the epochs for which it
         * has been emptied. */
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

/* Raises each epoch in `a` to the epoch of the same volume in `b`, if that is higher. */
static inline void volume_epochs_raise(uint64_t a[static VOLUMES_SET_MAX],
                                       const uint64_t b[static VOLUMES_SET_MAX])
{
        for (unsigned i = 0; i < VOLUMES_SET_MAX; i++)
                if (a[i] < b[i])
                        a[i] = b[i];
}
