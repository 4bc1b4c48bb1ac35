/* SPDX-License-Identifier: Apache-2.0 */
/* The store: chunks on disk, and the only door to them. See README.md beside it for the format and
 * for what survives which crash.
 *
 * A store has one or several paths, on devices of their own. A chunk lies on one of them. A path
 * that fails, hangs, or is suspended is bypassed: what lies there is a miss, puts go to the others,
 * and what waits for it ends. With all paths bypassed every look-up is a miss and no put is taken.
 *
 * Everything here runs on the loop thread. Opening and closing block; the rest answers at once or
 * through the request's complete(). A request belongs to the store from the call until complete();
 * the buffer it names must stay put as long. The store never calls complete() from within the call
 * that submitted the request, unless there is no memory to put it off.
 *
 * A chunk in the index is a `struct store_ref`: a number with a generation, cheap to keep, safe to
 * use late. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "io/io.h"
#include "key.h"

struct histogram;
struct store;

enum store_answer {
        STORE_MISS = 1,   /* not there (any more), or it failed its check and is dropped */
        STORE_EXISTS = 2, /* put: the key is present or being written */
        STORE_FULL = 3,   /* put: not even eviction makes room now: everything is pinned */
        STORE_TOO_LARGE = 4,
        STORE_MISMATCH = 5,    /* namespace: another fingerprint */
        STORE_NOT_DURABLE = 6, /* put: written, but a sync failed or cannot be believed */
        STORE_BYPASSED = 7,    /* the path, or all of them, is left aside: nothing is read or
                                  written */
        STORE_BUSY = 8,        /* suspend, resume: another is under way, or what was asked of the
                                  device before has not come back; removal of a namespace: it is
                                  in use */
        STORE_SUSPECT = 9,     /* get, into memory that others write to: read, but not what was
                                  put. Read it again into memory of one's own, to know why */
};

enum {
        STORE_MAX_PATHS = 16,
        STORE_MAX_NAME = 255,
        STORE_MAX_FINGERPRINT = 4096,
        STORE_MAX_NAMESPACES = 4096
};

/* The owner of a namespace that was made before owners were written down. */
#define STORE_NO_OWNER UINT32_MAX

/* The background pass over what is on disk: see store_set_scrub(). */
struct store_scrub {
        uint64_t rate;        /* bytes a second of each path; 0: no passes */
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

enum store_path_state {
        STORE_PATH_UP,
        STORE_PATH_BYPASSED,  /* it failed, or hangs, or could not be opened */
        STORE_PATH_SUSPENDED, /* by hand */
        STORE_PATH_RESUMING,
        STORE_PATH_STATE_END,
};

/* The reason of a path that was up when it was suspended; of another one it is why it was not. */
#define STORE_SUSPENDED_BY_HAND "suspended by an admin"

enum store_path_event {
        STORE_PATH_IS_BYPASSED,
        STORE_PATH_IS_SUSPENDED,
        STORE_PATH_IS_RESUMED,
        STORE_PATH_IS_FULL,    /* its file system, whoever filled it: it does not grow */
        STORE_PATH_HAS_ROOM,   /* it grows again */
        STORE_PATH_IS_EMPTIED, /* it had missed a purge: what lay there is dropped */
};

struct store_params {
        const char *const *paths;
        unsigned n_paths;
        uint64_t limit;         /* bytes over all paths: payload, tables and all */
        uint64_t segment_bytes; /* wished: min(this, limit / 64), whole MiB, at least 1 MiB, at most
                                   16384 files */
        uint64_t entries;       /* bound of the index; 0: max(limit / 256 KiB, 1 Mi) */
        bool prewrite;
        bool direct;              /* try O_DIRECT */
        const char *policy;       /* eviction */
        uint64_t pool_slab_bytes; /* reads and writes come from buffers at most this large */
        struct key_secret secret;
        uint32_t lock_wait_ms; /* how long to wait for the lock; 0: 5000 */
        uint32_t table_block;  /* pages of a table that a start reads at a time; 0: what suits its
                                  length. It finds the same with any */
        uint32_t error_budget; /* device errors of a path in a minute; one more bypasses it. 0: 16
                                */
        uint64_t hang_ms;      /* an operation of a path that takes longer bypasses it; 0: none
                                  does */
        uint64_t sequence_reserve; /* how far ahead the ceilings of sequences are; 0: 2^20. At least
                                      16 times what a turn of the loop begins */
        uint64_t reserve;          /* of a file system, left free when a path grows; 0: 1 %, at most
                                      1 GiB */
        /* Tells of a change of a path, once, on the loop thread, from store_open() on; it may not
         * call the store. `text`: why. NULL: nobody. */
        void (*on_path)(void *userdata, unsigned path, enum store_path_event event,
                        const char *text);
        struct store_scrub scrub;
        /* To look at one path of a store as it lies, whatever number it has: limit and segment size
         * are those it was last opened with, no data files are made, and no puts taken. */
        bool as_is;
        /* From a turn, and from the end of a read; what it is given lives only through the call.
         * May be NULL. */
        void (*on_finding)(void *userdata, const struct store_finding *finding);
        void *userdata;
};

/* Step one of opening, before there is any I/O ring: makes or checks the directories, takes the
 * locks (retrying for lock_wait_ms while another holds them), reads the superblocks, probes
 * O_DIRECT. A path that cannot be opened is left bypassed if another can.
 *
 * Errors: -EBUSY: another daemon has it; -EPROTO: not a store, or of a version or with a flag this
 * build does not know; others as the world says. `ret_error` gets one clear sentence with the path.
 * 0 else. */
int store_prepare(struct store **ret, const struct store_params *params,
                  char ret_error[static 512]);

/* Descriptors to register with every ring, of the paths that could be opened; n <= STORE_MAX_PATHS.
 * A file to probe reads with. Borrowed. */
unsigned store_lock_fds(const struct store *s, int ret_fds[static STORE_MAX_PATHS]);
int store_probe_fd(const struct store *s);

/* Step two: reads the tables, makes the index, enforces a lowered limit. From here on I/O goes
 * through `io`. */
int store_open(struct store *s, struct kio *io, char ret_error[static 512]);

/* Stops accepting; then call kio_reap() until store_pending() is 0, then store_close(): syncs,
 * marks the store clean, frees. NULL is fine. */
void store_stop(struct store *s);
uint64_t store_pending(const struct store *s);
struct store *store_close(struct store *s);

/* Regular work: prewriting, namespaces and purges to disk, partial table pages. Call at the end of
 * a loop turn. */
void store_turn(struct store *s);
/* Looks for operations that hang. Call it about once a second; it completes requests. */
void store_tick(struct store *s);

uint64_t store_max_chunk(const struct store *s); /* a segment's payload */

/* --- namespaces --- */

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
        uint32_t id;         /* the store's */
        uint64_t created_ms; /* the store's */
        uint64_t generation; /* the store's */

        int result; /* 0, STORE_MISS (attach), STORE_MISMATCH, -ENOSPC (STORE_MAX_NAMESPACES),
                       -errno */
        /* On 0; on STORE_MISMATCH the existing one. Within complete() only. */
        const struct store_namespace *namespace;
        void (*complete)(struct store_namespace_open *req);
};
/* name and fingerprint need only live through the call. A name that is being removed is opened once
 * the removal is answered. */
void store_namespace_open(struct store *s, struct store_namespace_open *req);

/* Takes a namespace that holds nothing off the list of every volume that is up. An id can be given
 * again later: nothing that was stored under it before is found in the namespace that has it then.
 */
struct store_namespace_remove {
        uint32_t id;
        /* 0: removed, on stable storage on every volume that is up. STORE_MISS: there is no such
         * namespace. STORE_BUSY: it has chunks, puts in flight, or an open under way. -errno: it is
         * removed from memory, but may be back after a restart. */
        int result;
        void (*complete)(struct store_namespace_remove *req);
};
void store_namespace_remove(struct store *s, struct store_namespace_remove *req);

const struct store_namespace *store_namespace_get(const struct store *s, uint32_t id);
/* By position; NULL past the end. */
const struct store_namespace *store_namespace_at(const struct store *s, unsigned i);
/* The one of that name, without its counts; NULL: there is none. */
const struct store_namespace *store_namespace_find(const struct store *s, uint16_t tenant,
                                                   const char *name, size_t length);
/* All of them, ascending by id, until `each` returns false. `counted`: with their counts, which
 * are zero otherwise. */
void store_namespaces_walk(const struct store *s, bool counted,
                           bool (*each)(void *userdata, const struct store_namespace *ns),
                           void *userdata);
/* Changes whenever a namespace is made or removed. */
uint64_t store_namespaces_version(const struct store *s);

/* --- chunks --- */

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

uint64_t store_hash(const struct store *s, uint32_t namespace_id, const struct key *key);

/* Present and written? `hash` is store_hash()'s. 0, STORE_MISS. Either ret may be NULL. */
int store_find(const struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash,
               struct store_ref *ret_ref, struct store_chunk *ret_chunk);

/* Recency; a stale ref is ignored. */
void store_touch(struct store *s, struct store_ref ref);
/* For many store_find() or store_touch() in a row: their memory is fetched together. Step 0 for
 * each of a few, a little later step 1, a little later the call. */
void store_prefetch(const struct store *s, uint64_t hash, unsigned step);
void store_prefetch_touch(const struct store *s, struct store_ref ref, unsigned step);

struct store_put {
        struct kio_request io; /* the store's */
        struct list_node node; /* the store's */
        uint64_t store_private[6];

        uint32_t namespace_id;
        uint16_t tenant;
        struct key key;
        uint64_t hash;
        struct key parent; /* root: none */
        /* Aligned to 4 KiB; readable up to the next 4 KiB boundary after length, or, with a `tail`,
         * for `length` bytes, of which those beyond whole 4 KiB blocks are taken from the tail. */
        const void *buf;
        void *tail;                /* 4 KiB, so aligned; NULL: none */
        struct kio_region *region; /* `buf` lies in it; or NULL */
        /* A client shares the memory of `buf`: that it is not there is no fault of the device. Then
         * the put fails with -EFAULT, and is tried nowhere else. */
        bool foreign;
        uint32_t length;
        uint32_t crc;
        bool durable;    /* complete only after a sync */
        uint32_t tried;  /* the store's: paths, by bit */
        uint64_t purges; /* the store's */

        /* Set when store_put() returns 0: the place in the index, not visible to store_find() yet,
         * but in the eviction order: touch it with its chain. */
        struct store_ref ref;

        /* 0, or STORE_NOT_DURABLE: it is stored. STORE_BYPASSED, -ECANCELED (purged meanwhile),
         * -errno of a failed write: it is not. */
        int result;
        void (*complete)(struct store_put *req);
        /* The device hangs, and the path is bypassed: whoever waits for this put need not wait any
         * more, it counts as failed. `buf` and the request stay the store's until complete(). May
         * be NULL. */
        void (*abandon)(struct store_put *req);
};
/* Takes a slot, evicting if it must, and writes payload, then table; it is in the index once both
 * are written. 0: complete() will follow. STORE_EXISTS, STORE_FULL, STORE_TOO_LARGE, STORE_BYPASSED
 * (also once the store stops), -EINVAL (no such namespace), -ENOMEM: it will not. STORE_FULL may
 * pass: try again after some completion. */
int store_put(struct store *s, struct store_put *req);

/* Makes what was written before this call durable (one sync serves all that wait). Completes as a
 * put does, with result 0, STORE_NOT_DURABLE or -errno; of `req` only complete() is read. */
void store_sync(struct store *s, struct store_put *req);

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
        void *tail; /* as of a put */
        struct kio_region *region;
        /* A client shares the memory of `buf`, and may write to it or take it away at any time: it
         * says nothing of the chunk then, which stays. Results -EFAULT, STORE_SUSPECT. */
        bool foreign;

        uint32_t length; /* of the chunk */
        uint32_t crc;
        struct store_ref ref;

        int result; /* 0: read whole and its CRC compared; STORE_MISS; -EIO etc. counted, also a
                       miss */
        void (*complete)(struct store_get *req);
        void (*abandon)(struct store_get *req); /* as of a put: it counts as a miss */
};
/* 0: complete() will follow. STORE_MISS, STORE_TOO_LARGE (room): it will not. The slot is pinned
 * meanwhile. */
int store_get(struct store *s, struct store_get *req);
/* Which path it is read from, for `ref` of store_find(). */
unsigned store_path_of(struct store_ref ref);
/* Is it used? What is asked of one that is not ends at once. */
bool store_path_is_up(const struct store *s, unsigned path);
/* Is a store_get() of it under way? For `ref` of store_find(). */
bool store_is_reading(const struct store *s, struct store_ref ref);

/* Drops the chunk and appends a tombstone on each path. 0, STORE_MISS, -ENOMEM (it may still be
 * there). A put of the key in flight is not found; what lies on a path that is aside is, unless all
 * of that path is lost already.
 * Until the tombstone is written a kill may bring the chunk back: see store_settle_drops(). */
int store_drop(struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash);
/* The same of a key that the caller has found elsewhere: nothing that may still be on a disk comes
 * back, though the store does not find it. */
int store_forget(struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash);

/* Completes once no kill, and no path that comes back, can bring back what was dropped before this
 * call: the tombstones are written. As store_sync(): of `req` only complete() is read, and the rest
 * is the store's until then; result is 0, or STORE_BYPASSED if something that was dropped, by
 * anyone, may come back. */
void store_settle_drops(struct store *s, struct store_put *req);

struct store_purge {
        struct list_node node; /* the store's */
        uint32_t namespace_id;
        bool all;
        uint64_t dropped;
        int result; /* 0, or -errno: the epoch could not be synced; the chunks are gone from memory,
                       but may come back */
        void (*complete)(struct store_purge *req);

        /* The store's: see purge.c. */
        struct list_node sweep;
        void (*answer)(struct store_purge *req);
        uint32_t stop;
        bool written, swept, wrapped;
};
/* At once nothing of it is found any more, puts in flight included; complete() when that is on
 * stable storage and all of it has left the index, which takes steps of less than a millisecond.
 * `dropped`, known then: chunks that this purge dropped; where several purge the same, each chunk
 * is counted by one of them. */
void store_purge(struct store *s, struct store_purge *req);
/* How long each step took, ns, is added to `times`, which is kept; NULL: none is. */
void store_time_sweeps(struct store *s, struct histogram *times);

/* Walks all chunks of a namespace in no order. Start with *cursor = 0; it ends with *cursor = 0.
 * What is put or dropped meanwhile may or may not be met; nothing is met twice. Looks at no more
 * than `max` * 64 entries a call, so it may return fewer than max, and 0, before the end. */
unsigned store_list(const struct store *s, uint32_t namespace_id, uint64_t *cursor,
                    struct store_chunk *ret, unsigned max);

/* --- for who keeps a list of his own of what can be found --- */

/* Told of each chunk as it becomes findable and as it is removed, from within whatever does it: it
 * may not call the store, other than to ask for namespaces. `at`: the chunk's place in the walk. */
struct store_watch {
        void (*changed)(void *userdata, uint64_t at, uint32_t namespace_id, uint16_t tenant,
                        const struct key *key, bool is_there);
        /* A path was resumed: what it had and what it has now was told nobody. Walk anew. */
        void (*replaced)(void *userdata);
        void *userdata;
};
/* `watch` is kept, not copied; NULL: nobody is told, which costs nothing. Once the store is open.
 */
void store_set_watch(struct store *s, const struct store_watch *watch);

#define STORE_WALK_END UINT64_MAX
/* All chunks of all namespaces that the watch is told of, those of paths that are left aside
 * included, in an order that stays: from *cursor on, 0 at first, looks at no more than `looks`
 * places; at the end the cursor is STORE_WALK_END. What changes at places below the cursor has to
 * be heard of by the watch, the rest is met. */
void store_walk(const struct store *s, uint64_t *cursor, unsigned looks,
                void (*each)(void *userdata, uint32_t namespace_id, const struct key *key),
                void *userdata);

/* --- reading back --- */

/* Every interval all chunks are read back, at that rate and behind everything else, and what does
 * not match its checksum twice, or cannot be read twice, is dropped. The first pass begins an
 * interval after opening, at most an hour. A pass under way goes on with what is new. */
void store_set_scrub(struct store *s, const struct store_scrub *scrub);

struct store_verified {
        uint64_t chunks, bytes; /* looked at, bad ones included */
        uint64_t mismatched;    /* not what was put: dropped */
        uint64_t unreadable;    /* refused by the device: dropped */
        uint64_t skipped;       /* not read for want of memory and the like: still there */
};

/* The same on request, for a stretch of one segment, as fast as background work may go. */
struct store_verify {
        struct list_node node; /* the store's */

        unsigned path;
        uint32_t segment, slot; /* where to begin; 0 at first, then what next_* said */
        uint32_t max_chunks;    /* ends behind the chunk that reaches one of these */
        uint64_t max_bytes;

        unsigned paths;                   /* of the store */
        uint32_t segments;                /* of this path: numbers are below */
        uint32_t next_segment, next_slot; /* next_segment == segments: that was the last one */
        struct store_verified found;
        /* 0; STORE_BYPASSED, -EIO (many in a row could not be read), -ECANCELED (the store stops):
         * as far as it came */
        int result;
        void (*complete)(struct store_verify *req);
};
/* 0: complete() will follow. STORE_MISS (no such path), STORE_FULL (too many at once),
 * STORE_BYPASSED: it will not. */
int store_verify(struct store *s, struct store_verify *req);

/* When store_turn() is to be called again though nothing completes, CLOCK_MONOTONIC; 0: never. */
uint64_t store_deadline_ns(const struct store *s);

/* --- tenants --- */

/* A tenant's chunks lie in files of its own. What they take, in whole slots, and may take over all
 * paths, each in its share; 0: no limit. Over it the tenant's own coldest ones go. */
struct store_tenant_usage {
        uint64_t bytes, limit; /* limit: UINT64_MAX is none */
};
void store_set_tenant_limit(struct store *s, uint16_t tenant, uint64_t bytes);
void store_get_tenant(const struct store *s, uint16_t tenant, struct store_tenant_usage *ret);

/* --- what is seen from outside --- */

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
        uint64_t namespaces;
        uint64_t recovered_chunks, recovered_pages, skipped_pages, recover_ms;
        uint64_t slab_moves;
        /* Segments that went to another tenant; those that could not, and are not used for it. */
        uint64_t handovers, handover_failures;
        /* Reading back, passes and requests together: read; looked at; dropped */
        uint64_t scrub_bytes, scrub_chunks, scrub_failures;
        uint64_t scrub_passes, scrub_last_pass_ms;    /* ended; when the last one did, Unix time */
        uint64_t scrub_segments_done, scrub_segments; /* of the pass under way; 0 of 0: none is */
        uint64_t scrub_pinned;                        /* chunks that are being read back now */
        bool direct;                                  /* O_DIRECT in use on all paths */
        const char *direct_reason;                    /* why not; "" */
        bool clean_start;                             /* was it closed properly? */
        bool bypassed;
};
/* Sums over all paths that are open; what is counted of a path goes on counting when it is resumed.
 * `bypassed`: all are. */
void store_get_stats(const struct store *s, struct store_stats *ret);
const char *store_path(const struct store *s, unsigned i);

struct store_path_stats {
        const char *path;
        enum store_path_state state;
        const char *reason;     /* of being bypassed; "" */
        uint64_t since_ms;      /* of the state, Unix time; 0: the start */
        uint64_t bypasses;      /* by itself or by hand, since the start */
        bool hung;              /* bypassed since its device did not answer; while `pending` it
                                   still does not */
        bool full;              /* its file system is: it does not grow */
        uint64_t full_refusals; /* growths and writes refused for that */
        uint64_t pending;       /* requests and operations not completed */
        uint64_t oldest_ns;     /* age of the oldest operation at the device */
        struct store_stats stats;
};
/* Of path i; false past the end. */
bool store_get_path_stats(const struct store *s, unsigned i, struct store_path_stats *ret);
unsigned store_paths_up(const struct store *s);

/* --- by hand --- */

struct store_device {
        unsigned path;
        /* 0: done. STORE_BUSY. STORE_EXISTS: it is in that state already. -errno: the device, with
         * `text`. */
        int result;
        char text[512];
        void (*complete)(struct store_device *req); /* may run within the call */
};
/* Bypasses the path when all that was begun has been written. A path that is bypassed already is
 * only marked so. */
void store_suspend(struct store *s, struct store_device *req);
/* Probes the device with real I/O, reads the path's tables as a start does, off the loop, and uses
 * it again. That needs memory for a second index of it while it lasts, and about a second for a
 * million chunks. */
void store_resume(struct store *s, struct store_device *req);
