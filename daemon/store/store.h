/* SPDX-License-Identifier: Apache-2.0 */
/* The store: chunks on disk. Other rooms use it through this header only. README.md describes the
 * format, and what survives which crash.
 *
 * A store has one or several volumes, each on a device of its own, and a chunk is on one of them. A
 * volume that fails, hangs or is suspended is bypassed: its chunks are misses, puts go to the other
 * volumes, and requests that wait for it end. If all volumes are bypassed, every lookup is a miss
 * and no put is accepted.
 *
 * Everything here runs on the loop thread. Opening and closing block; all other functions answer at
 * once or through the request's complete(). A request, and the buffer that it names, belong to the
 * store from the call until complete(). The store never calls complete() from within the call that
 * submitted the request, unless memory is too short to defer it.
 *
 * A `struct store_ref` names a chunk in the index by a number and a generation. It is cheap to
 * keep, and a stale one is recognised. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/histogram.h"
#include "io/io.h"
#include "key.h"
#include "store/volume/types.h"

struct histogram;
struct store;

enum store_volume_state {
        STORE_VOLUME_UP,
        STORE_VOLUME_BYPASSED,  /* the volume failed, hangs, or could not be opened */
        STORE_VOLUME_SUSPENDED, /* by an admin */
        STORE_VOLUME_RESUMING,
        STORE_VOLUME_STATE_END,
};

/* First step of opening, before there is any I/O ring: creates or checks the directories, takes the
 * locks (retrying for lock_wait_ms while another process holds them), reads the superblocks and
 * probes O_DIRECT. A volume that cannot be opened is bypassed if another volume can.
 *
 * Returns 0; -EBUSY if another daemon has the store; -EPROTO if the directory is not a store, or
 * has a version or flag that this build does not know; or another -errno. `ret_error` gets one
 * sentence that names the volume. */
int store_prepare(struct store **ret, const struct store_params *params,
                  char ret_error[static 512]);

/* Reads the format of one volume. Reads only the superblock, also while a daemon has the store
 * open, and writes nothing. Returns 0, and then ret->opens says whether this build opens it, and
 * `ret_error` why not or ""; -EPROTO if the directory is not a volume, or its superblock is
 * damaged; or another -errno. */
int store_read_format(const char *path, struct store_format *ret, char ret_error[static 512]);

/* Fills in the descriptors to register with every ring, of the volumes that could be opened.
 * Returns their number. The store owns them, and the descriptor for probe reads that
 * store_probe_fd() returns. */
unsigned store_lock_fds(const struct store *s, int ret_fds[static STORE_MAX_VOLUMES]);
int store_probe_fd(const struct store *s);

/* Second step of opening: reads the tables, builds the index and enforces a lowered limit. All
 * further I/O goes through `io`. */
int store_open(struct store *s, struct kio *io, char ret_error[static 512]);

/* store_stop() stops accepting requests. Then call kio_reap() until store_pending() is 0, and then
 * store_close(), which syncs, marks the store clean and frees it. NULL is allowed. */
void store_stop(struct store *s);
uint64_t store_pending(const struct store *s);
struct store *store_close(struct store *s);

/* Does the store's regular work: prewriting, writing namespaces and purges to disk, writing partly
 * filled table pages. Call it at the end of each loop iteration. */
void store_iterate(struct store *s);
/* Checks for operations that hang, and may complete requests. Call it about once a second. */
void store_tick(struct store *s);

uint64_t store_max_chunk(const struct store *s); /* a segment's payload */

/* --- namespaces --- */

/* Returns the memory that each open, removal and purge of a namespace needs until all volumes have
 * done their part. An open of a name that is being removed also keeps the name and the
 * fingerprint. */
size_t store_fan_out_bytes(const struct store *s);
/* Opens a namespace. The name and the fingerprint are copied if they are needed after the call. A
 * name that is being removed is opened after the removal is answered. */
void store_namespace_open(struct store *s, struct store_namespace_open *req);

/* Removes an empty namespace from the list of every volume that is up. Its id may be assigned again
 * later; the new namespace finds no chunk of the old one. */
struct store_namespace_remove {
        uint32_t id;
        /* 0 if the removal is on stable storage on every volume that is up; STORE_MISS if there is
         * no such namespace; STORE_BUSY if it has chunks, puts in flight or an open in progress;
         * -errno if it is removed from memory but may be back after a restart. */
        int result;
        void (*complete)(struct store_namespace_remove *req);
};
void store_namespace_remove(struct store *s, struct store_namespace_remove *req);

const struct store_namespace *store_namespace_get(const struct store *s, uint32_t id);
/* Returns a namespace by its position, or NULL past the end. */
const struct store_namespace *store_namespace_at(const struct store *s, unsigned i);
/* Returns the namespace of a name, without its counts, or NULL if there is none. */
const struct store_namespace *store_namespace_find(const struct store *s, uint16_t tenant,
                                                   const char *name, size_t length);
/* Calls each() for all namespaces, ascending by id, until it returns false. Their counts are zero
 * unless `counted` is set. */
void store_namespaces_walk(const struct store *s, bool counted,
                           bool (*each)(void *userdata, const struct store_namespace *ns),
                           void *userdata);
/* Changes whenever a namespace is made or removed. */
uint64_t store_namespaces_version(const struct store *s);

/* --- chunks --- */

uint64_t store_hash(const struct store *s, uint32_t namespace_id, const struct key *key);

/* Looks up a written chunk. `hash` is from store_hash(). Returns 0 or STORE_MISS. Either result may
 * be NULL. */
int store_find(const struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash,
               struct store_ref *ret_ref, struct store_chunk *ret_chunk);

/* --- lifetimes --- */

/* Return the lifetime of a namespace, 0 if it has none or does not exist; and the number of
 * namespaces with a lifetime. */
uint32_t store_lifetime_s(const struct store *s, uint32_t namespace_id);
unsigned store_lifetimes(const struct store *s);
/* Drops the chunk if it was put before `born_after_ms` (store_born_after_ms()), and returns whether
 * it did. Nothing is written: after a crash the chunk may be found again, and is expired then,
 * too. */
bool store_expire(struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash,
                  uint64_t born_after_ms);
/* Drops expired chunks for one step of a walk, about 100 us, and adds their number to *expired.
 * Returns false at the end of the walk; the next step starts again. */
bool store_expire_step(struct store *s, uint64_t now_ms, uint64_t *expired);
uint64_t
store_records(const struct store *s); /* approximate number of records that the walk visits */

/* --- eviction --- */

/* Records a use with the eviction policy; a stale ref is ignored. `use` is as in evict.h. */
void store_touch(struct store *s, struct store_ref ref, uint32_t use);
/* Call evict_chain_gap(), evict_gap() and evict_set_gap(). A stale ref has EVICT_NO_GAP. */
uint8_t store_chain_gap(const struct store *s, struct store_ref ref, uint32_t use,
                        struct evict_return *ret);
uint8_t store_gap(const struct store *s, struct store_ref ref);
void store_set_gap(struct store *s, struct store_ref ref, uint8_t gap);
/* Returns the result of evict_turn(), or -1 if the ref is stale. */
int store_turn(const struct store *s, struct store_ref ref, uint32_t use);
/* Records a chunk's place in its chain, before it is touched at the end of the chain. A parent on
 * another volume has no effect, because each volume decides separately which chunk it evicts. */
void store_chain(struct store *s, struct store_ref ref, struct store_ref parent, uint32_t use,
                 unsigned turn, bool is_end);
/* Fills in the answer of evict_explain() of the chunk's volume. Returns whether I/O or a loan keeps
 * the chunk in its slot. */
bool store_explain(const struct store *s, struct store_ref ref, struct evict_standing *ret);
/* Returns the result of evict_cost(), or EVICT_COST_UNKNOWN if the ref is stale. */
unsigned store_cost(const struct store *s, struct store_ref ref);
/* Returns the result of evict_hint(), or true if the ref is stale. A volume does not know chains
 * that continue on another one. */
bool store_hint(struct store *s, struct store_ref ref, enum evict_hint hint);
/* Return the results of evict_demote() and evict_promote(), or false if the ref is stale. */
bool store_demote(struct store *s, struct store_ref ref);
bool store_promote(struct store *s, struct store_ref ref);
/* Returns the number of demoted chunks. */
uint64_t store_demoted(const struct store *s);
/* Sets or clears retention: a client has pinned the chunk, or ended that. (In the store, pins are
 * references by I/O.) The eviction policy never chooses a retained chunk. It is evicted only if its
 * tenant has no other chunk to make room with, or with a whole segment that another tenant takes
 * over, in which it counts like any other chunk. Drops and purges apply to it as usual. `limit` is
 * the number of bytes on disk that the tenant may retain. Returns 0, STORE_FULL if the limit would
 * be exceeded, or STORE_MISS if the ref is stale. */
int store_retain(struct store *s, struct store_ref ref, bool retained, uint64_t limit);
/* Prefetch the CPU cache lines of store_find() or store_touch(), for many calls in a row. Call step
 * 0 for each of several, then step 1 for each, then the operation. */
void store_warm(const struct store *s, uint64_t hash, unsigned step);
void store_warm_touch(const struct store *s, struct store_ref ref, unsigned step);

/* Acquires a slot, evicting other chunks if necessary, and writes the payload, then the table
 * entry. The chunk is in the index once both are written. Returns 0 if complete() will follow.
 * Otherwise returns STORE_EXISTS, STORE_FULL, STORE_TOO_LARGE, STORE_BYPASSED (also once the store
 * stops), -EINVAL (no such namespace) or -ENOMEM. STORE_FULL may be temporary: try again after a
 * completion. */
int store_put(struct store *s, struct store_put *req);
/* Gives the checksum of a put that store_put() took with `summing` set and that has not completed.
 * The payload is written before or meanwhile, its table entry only after this call. If `r` < 0
 * there is no checksum, and the put fails with `r`. The call may complete other requests, like an
 * iteration. */
void store_put_checksum(struct store_put *req, int r, uint32_t crc);

/* Makes everything that was written before this call durable; one sync serves all waiting requests.
 * Completes like a put, with result 0, STORE_NOT_DURABLE or -errno. Chunks found at startup after
 * an earlier process had a failed data sync cannot become durable. */
void store_sync(struct store *s, struct store_sync *req);

/* Reads a chunk. Returns 0 if complete() will follow, and otherwise STORE_MISS, or STORE_TOO_LARGE
 * if `room` is too small. The slot is pinned during the read. */
int store_get(struct store *s, struct store_get *req);
/* --- lending: chunks that clients read directly from data files --- */

enum { STORE_LOANS_MAX = 65536 };
/* Lends a chunk that store_find() found: it stays in its slot until the loan is returned. Returns
 * 0; STORE_MISS; STORE_UNVERIFIED if this process has not read the chunk back yet, which a
 * store_get() does; STORE_NOT_LENT if the volume lends nothing; STORE_FULL if there are
 * STORE_LOANS_MAX loans, too many of this chunk, or too few segments without loans; or -ENOMEM. */
int store_lend(struct store *s, struct store_borrower *borrower, struct store_ref ref,
               struct store_loan *ret_loan, struct store_extent *ret_extent);
/* Ends a loan. Returns 0 if the chunk was in its place all the time; STORE_MISS if it was purged,
 * dropped, found damaged or its volume failed, so that the bytes read may be wrong; STORE_STALE if
 * the borrower has no such loan. */
int store_give_back(struct store *s, struct store_borrower *borrower, struct store_loan loan);
/* Ends up to `most` loans of a borrower, the latest first, and returns their number. */
uint32_t store_give_back_some(struct store *s, struct store_borrower *borrower, uint32_t most);
/* Opens a lent file. Returns 0 if complete() will follow, or STORE_STALE if there is no such file,
 * or it belongs to another tenant. */
int store_open_lent(struct store *s, struct store_lent_file *req);

struct store_loan_stats {
        uint64_t loans, bytes;            /* current */
        uint64_t lent, lent_bytes;        /* totals since startup */
        uint64_t returned, returned_void; /* returned loans whose chunk stayed in place, and whose
                                             chunk did not */
        uint64_t abandoned;               /* loans that ended with their client */
        uint64_t files;                   /* descriptors passed to clients */
};
void store_get_loans(const struct store *s, struct store_loan_stats *ret);

/* Returns the volume of a ref of store_find(). */
unsigned store_volume_of(struct store_ref ref);
/* Returns whether a volume is in use. Requests for any other volume fail at once. */
bool store_volume_is_up(const struct store *s, unsigned volume);
/* Returns whether the chunk was found at startup, or when its volume was resumed, and was not read
 * back since. Such a chunk may have been evicted, and its slot may have other bytes. `ref` is from
 * store_find(). */
bool store_is_unverified(const struct store *s, struct store_ref ref);
/* Returns whether a store_get() of the chunk is in flight. `ref` is from store_find(). */
bool store_is_reading(const struct store *s, struct store_ref ref);

/* Drops the chunk and appends a tombstone on each volume. Returns 0, STORE_MISS, or -ENOMEM if the
 * chunk may still exist. A put of the key in flight is not found. A chunk on an offline volume is
 * found, unless everything on that volume is lost already. Until the tombstone is written, a crash
 * may restore the chunk: see store_settle_drops(). */
int store_drop(struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash);
/* Drops a key that the caller has found elsewhere. No chunk of the key that is still on a disk can
 * return, even if the store does not find it now. */
int store_forget(struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash);

/* Completes once neither a crash nor a volume that returns can restore chunks that were dropped
 * before this call, because the tombstones are written. The result is 0, or STORE_BYPASSED if any
 * dropped chunk may return. A resume between a drop and this call may have restored the chunk:
 * store_lost_drops() differs then. */
void store_settle_drops(struct store *s, struct store_sync *req);
/* Counts failures to make drops or purges permanent, in a store of one volume. */
uint64_t store_lost_drops(const struct store *s);

/* Purges a namespace, or everything. Its chunks, including puts in flight, are not found after the
 * call. complete() follows when the purge is on stable storage and all chunks have left the index,
 * in steps of less than a millisecond. `dropped` is then the number of chunks that this purge
 * dropped; if several purges cover a chunk, one of them counts it. */
void store_purge(struct store *s, struct store_purge *req);
/* Adds the duration of each step of a purge, in ns, to `times`, which the store keeps; NULL ends
 * that. */
void store_time_sweeps(struct store *s, struct histogram *times);

/* Lists the chunks of a namespace in no particular order. Start with *cursor = 0; the list ends
 * with *cursor = 0. Chunks that are put or dropped during the walk may or may not be listed; none
 * is listed twice. A call visits at most `max` * 64 entries, so it may return fewer than `max`
 * chunks, even 0, before the end. */
unsigned store_list(const struct store *s, uint32_t namespace_id, uint64_t *cursor,
                    struct store_chunk *ret, unsigned max);

/* --- change notifications for external indexes --- */

/* Adds a watch to an open store. The caller keeps it until it removes it. Without watches, changes
 * cost nothing. */
void store_add_watch(struct store *s, struct store_watch *watch);
void store_remove_watch(struct store_watch *watch);
/* Returns whether the volume is in use whose place in the walk is `at`. */
bool store_is_in_use(const struct store *s, uint64_t at);

/* Calls each() for the chunks that are evicted next, in volumes and classes that evicted chunks
 * since their last report. Each chunk is reported about twice, while it can still be read. each()
 * must not call the store. The call costs nothing if nothing was evicted. */
void store_report_leaving(struct store *s,
                          void (*each)(void *userdata, const struct store_leaving *leaving),
                          void *userdata);

/* Calls each() for chunks of a tenant that are evicted next, without changing their order: in each
 * volume and size class from the first. Visits at most `most` chunks, in equal shares for the
 * classes that the tenant uses. Chunks that I/O keeps in their slots are left out. each() must not
 * call the store, except to look up namespaces. */
void store_next(const struct store *s, uint16_t tenant, unsigned most,
                void (*each)(void *userdata, const struct store_leaving *leaving), void *userdata);

#define STORE_WALK_END UINT64_MAX
/* Calls each() for all chunks that watches are notified of, including those of offline volumes, in
 * a fixed order: visits at most `max_records` places of one volume from *cursor on, which is 0 at
 * first and STORE_WALK_END at the end. A watch reports changes below the cursor; the walk meets all
 * others. */
void store_walk(const struct store *s, uint64_t *cursor, unsigned max_records,
                void (*each)(void *userdata, uint32_t namespace_id, const struct key *key,
                             uint32_t length),
                void *userdata);
/* Acts like store_walk() for the volumes in use. */
void store_walk_findable(const struct store *s, uint64_t *cursor, unsigned max_records,
                         void (*each)(void *userdata, uint32_t namespace_id, const struct key *key,
                                      uint32_t length),
                         void *userdata);

/* --- eviction policy and verification --- */

/* Returns whether the policy of the key's volume remembers evicting the chunk. */
bool store_remembers(const struct store *s, uint32_t namespace_id, const struct key *key,
                     uint64_t hash);
/* Returns the result of evict_remembered_gap() in the key's volume, or EVICT_NO_GAP if that is
 * down. */
uint8_t store_remembered_gap(const struct store *s, uint32_t namespace_id, const struct key *key,
                             uint64_t hash, struct evict_return *ret);
/* Calls evict_admit_all() for each volume. A volume that is resumed later needs another call. */
void store_admit_all(struct store *s, bool all);
/* Switches the policy of each volume, and of volumes that are resumed later, like evict_switch().
 * Returns 0, or -ENOMEM if a volume has kept its policy. */
int store_set_policy(struct store *s, const char *policy);
/* Sets the scrub: in every interval all chunks are read back at the given rate, behind all other
 * work. A chunk that fails its checksum twice, or cannot be read twice, is dropped. The first pass
 * begins an interval after opening, but at most an hour. A pass in progress continues with the new
 * values. */
void store_set_scrub(struct store *s, const struct store_scrub *scrub);

/* Verifies chunks on request. Returns 0 if complete() will follow, and otherwise STORE_MISS (no
 * such volume), STORE_FULL (too many requests) or STORE_BYPASSED. */
int store_verify(struct store *s, struct store_verify *req);

/* Returns the CLOCK_MONOTONIC time at which store_iterate() must be called even if nothing
 * completes; 0 if never. */
uint64_t store_deadline_ns(const struct store *s);

/* --- tenants --- */

/* A tenant's usage and limit over all volumes, counted in whole slots. Each tenant's chunks are in
 * files of its own. The limit is divided among the volumes; a tenant above it loses its own coldest
 * chunks. A limit of 0 means none. */
struct store_tenant_usage {
        uint64_t bytes, limit; /* limit: UINT64_MAX if none */
        uint64_t retained;     /* the part of `bytes` in retained chunks */
};
void store_set_tenant_limit(struct store *s, uint16_t tenant, uint64_t bytes);
void store_get_tenant(const struct store *s, uint16_t tenant, struct store_tenant_usage *ret);

/* --- saving and restoring the eviction order --- */

unsigned store_volumes(const struct store *s);
/* Returns a volume's eviction order, or NULL if the volume is offline. The store owns the result,
 * which is valid until control returns to the store. */
const struct evict *store_eviction(const struct store *s, unsigned volume);
/* Fills in the eviction records of a volume's chunks, from *cursor on, which is 0 at first: visits
 * at most `max_records` records and fills in at most `room`. Returns the number filled in; *cursor
 * is UINT32_MAX at the end, and for an offline volume. */
uint32_t store_save_order(const struct store *s, unsigned volume, uint32_t *cursor,
                          uint32_t max_records, struct evict_record *ret, uint32_t room);
/* Restores an eviction order, after store_open() and before any put. Returns the number of chunks
 * that got their old place. An order that another policy saved, or that is malformed, has no
 * effect. */
uint32_t store_restore_order(struct store *s, unsigned volume, const struct store_order *order);

/* --- statistics --- */

/* Fills in sums over all open volumes. The counters of a volume continue when it is resumed.
 * `bypassed` means that all volumes are. */
void store_get_stats(const struct store *s, struct store_stats *ret);
/* Fills in the ages of evicted chunks: nanoseconds since their last use, from evict_age_ns(). */
void store_get_evicted_ages(const struct store *s, struct histogram *ret);
const char *store_volume_path(const struct store *s, unsigned i);

struct store_volume_stats {
        const char *path;
        enum store_volume_state state;
        const char *reason; /* why the volume is bypassed; "" if it is not */
        uint64_t since_ms;  /* Unix time at which the state began; 0 if at startup */
        uint64_t bypasses;  /* number of bypasses and suspends since startup */
        bool hung; /* bypassed because the device did not answer; it still does not while `pending`
                      is not 0 */
        bool full; /* the file system is full, so the volume does not grow */
        uint64_t full_refusals; /* growths and writes refused for that */
        uint64_t pending;       /* requests and operations not completed */
        uint64_t oldest_ns;     /* age of the oldest operation at the device */
        /* The kind of its file system, a sentence if that kind loses chunks, and a sentence if it
         * does not suit a store (store/volume/file-system.h); each may be "". */
        const char *file_system, *file_system_warning, *file_system_advice;
        struct store_stats stats;
};
/* Fills in the statistics of volume `i`. Returns false if there is no such volume. */
bool store_get_volume_stats(const struct store *s, unsigned i, struct store_volume_stats *ret);
unsigned store_volumes_up(const struct store *s);

/* --- suspending and resuming by an admin --- */

struct store_device {
        unsigned volume;
        /* 0 if done; STORE_BUSY; STORE_EXISTS if the volume is already in that state; -errno of the
         * device, with `text`. */
        int result;
        char text[512];
        void (*complete)(struct store_device *req); /* may run within the call */
};
/* Bypasses the volume after everything in progress has been written. A volume that is bypassed
 * already is only marked as suspended. */
void store_suspend(struct store *s, struct store_device *req);
/* Probes the device with real I/O, reads the volume's tables as at startup, off the loop, and uses
 * the volume again. Resuming needs memory for a second index of the volume, and takes about a
 * second per million chunks. */
void store_resume(struct store *s, struct store_device *req);
