/* SPDX-License-Identifier: Apache-2.0 */
/* The store: chunks on disk. Other rooms use it through this header only. store/README.md describes
 * how volumes form one store; store/volume/README.md describes the disk format, and what survives
 * which crash.
 *
 * A store has one or several volumes, each on a device of its own, and a chunk is on one of them. A
 * volume that fails, hangs or is suspended is bypassed: its chunks are misses, puts go to the other
 * volumes, and requests that wait for it end. If all volumes are bypassed, every lookup is a miss
 * and no put is accepted.
 *
 * All functions run on the loop thread. Opening and closing block; all other functions answer at
 * once or through the request's complete(). A request, and the buffer that it names, belong to the
 * store from the call until complete(). Except for store_suspend() and store_resume(), the store
 * never calls complete() from within the call that submitted the request, unless memory is too
 * short to defer it.
 *
 * A `struct store_ref` names a chunk in the index by a number and a generation. A ref is cheap to
 * keep. It is stale once its chunk has left the index or its volume is offline; functions recognise
 * a stale ref. */
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
        STORE_VOLUME_SUSPENDED, /* an admin suspended the volume */
        STORE_VOLUME_RESUMING,  /* the volume is being opened again */
        STORE_VOLUME_STATE_END,
};

/* First step of opening, before there is any I/O ring: creates or checks the directories, takes the
 * locks (waiting up to lock_wait_ms for each that another process holds), reads the superblocks and
 * probes O_DIRECT. A volume that cannot be opened is bypassed if another volume can.
 *
 * Returns 0; -EBUSY if another daemon has the store; -EPROTO if the directory is not a store, or
 * has a version or flag that this build does not know; or another -errno. `ret_error` gets one
 * sentence that names the volume. */
int store_prepare(struct store **ret, const struct store_params *params,
                  char ret_error[static 512]);

/* Reads the format of one volume. Reads only the superblock, also while a daemon has the store
 * open, and writes nothing. Returns 0 if the superblock was read: `ret->opens` tells whether this
 * build can open the volume, and `ret_error` has the reason if it cannot. Returns -EPROTO if the
 * directory is not a volume, or its superblock is damaged; or another -errno. */
int store_read_format(const char *path, struct store_format *ret, char ret_error[static 512]);

/* store_lock_fds() fills in the descriptors of the lock files of all volumes that could be opened,
 * and returns their number. Every I/O ring must register them, so that a lock is held as long as
 * any I/O of the daemon is in flight. store_probe_fd() returns a descriptor of a superblock, which
 * I/O back ends read to test themselves, or -1. The store owns all these descriptors. */
unsigned store_lock_fds(const struct store *s, int ret_fds[static STORE_MAX_VOLUMES]);
int store_probe_fd(const struct store *s);

/* Second step of opening: reads the tables, builds the index and enforces a lowered limit. All
 * further I/O goes through `io`. Returns 0, or -errno with one sentence in `ret_error`. */
int store_open(struct store *s, struct kio *io, char ret_error[static 512]);

/* store_stop() stops accepting requests. Then call kio_reap() until store_pending() is 0, and then
 * store_close(), which syncs, marks the store clean and frees it. store_stop() and store_close()
 * allow NULL. */
void store_stop(struct store *s);
uint64_t store_pending(const struct store *s);
struct store *store_close(struct store *s);

/* Does the store's regular work: prewriting, writing namespaces and purges to disk, writing partly
 * filled table pages. Call it at the end of each loop iteration. */
void store_iterate(struct store *s);
/* Bypasses volumes with operations that hang, checks that files are still in place, and has waiting
 * table entries written. May complete requests. Call it about once a second. */
void store_tick(struct store *s);

uint64_t store_max_chunk(
        const struct store *s); /* largest chunk, in bytes, that all open volumes can store; or 0 */

/* --- namespaces --- */

/* Returns the most memory, in bytes, that one open, removal or purge of a namespace takes until all
 * volumes have answered. An open of a name that is being removed also takes a copy of the name and
 * the fingerprint. */
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
         * -errno if it is not removed permanently: memory is short or no volume is up, and nothing
         * was removed; or the removal could not be written, and the namespace may be back after a
         * restart. */
        int result;
        void (*complete)(struct store_namespace_remove *req);
};
void store_namespace_remove(struct store *s, struct store_namespace_remove *req);

const struct store_namespace *store_namespace_get(const struct store *s, uint32_t id);
/* Returns a namespace by its position in the list, which ascends by id, or NULL past the end. */
const struct store_namespace *store_namespace_at(const struct store *s, unsigned i);
/* Returns the namespace of a name, without its counts, or NULL if there is none. */
const struct store_namespace *store_namespace_find(const struct store *s, uint16_t tenant,
                                                   const char *name, size_t length);
/* Calls each() for all namespaces, ascending by id, until it returns false. Their counts are zero
 * unless `counted` is set. */
void store_namespaces_walk(const struct store *s, bool counted,
                           bool (*each)(void *userdata, const struct store_namespace *ns),
                           void *userdata);
/* Returns a number that changes whenever a namespace is made or removed, or its lifetime or
 * declared chunk size changes. */
uint64_t store_namespaces_version(const struct store *s);

/* --- finding chunks --- */

uint64_t store_hash(const struct store *s, uint32_t namespace_id, const struct key *key);

/* Looks up a written chunk. `hash` is from store_hash(). Returns 0 or STORE_MISS. `ret_ref` and
 * `ret_chunk` may be NULL. */
int store_find(const struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash,
               struct store_ref *ret_ref, struct store_chunk *ret_chunk);

/* --- lifetimes --- */

/* store_lifetime_s() returns the lifetime of a namespace, or 0 if the namespace has none or does
 * not exist. store_lifetimes() returns the number of namespaces that have a lifetime. */
uint32_t store_lifetime_s(const struct store *s, uint32_t namespace_id);
unsigned store_lifetimes(const struct store *s);
/* Drops the chunk if it was put before `born_after_ms` (store_born_after_ms()), and returns whether
 * it was dropped. Nothing is written to the disk: after a crash the chunk may be found again, and
 * is then dropped again. */
bool store_expire(struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash,
                  uint64_t born_after_ms);
/* Drops expired chunks for one step of a walk, about 100 us, and adds their number to *expired.
 * Returns false at the end of the walk; the next step starts again. */
bool store_expire_step(struct store *s, uint64_t now_ms, uint64_t *expired);
uint64_t store_records(const struct store *s); /* approximate number of records that a walk of
                                                  store_expire_step() visits */

/* --- eviction --- */

/* Records a use with the eviction policy; a stale ref is ignored. `use` is as in evict.h. */
void store_touch(struct store *s, struct store_ref ref, uint32_t use);
/* Call evict_chain_gap(), evict_gap() and evict_set_gap() for the chunk. The first two return
 * EVICT_NO_GAP if the ref is stale. */
uint8_t store_chain_gap(const struct store *s, struct store_ref ref, uint32_t use,
                        struct evict_return *ret);
uint8_t store_gap(const struct store *s, struct store_ref ref);
void store_set_gap(struct store *s, struct store_ref ref, uint8_t gap);
/* Returns the result of evict_turn(), or -1 if the ref is stale. */
int store_turn(const struct store *s, struct store_ref ref, uint32_t use);
/* Records a chunk's place in its chain, before the chain is touched at its end. A parent on another
 * volume has no effect, because each volume decides separately which chunk it evicts. */
void store_chain(struct store *s, struct store_ref ref, struct store_ref parent, uint32_t use,
                 unsigned turn, bool is_end);
/* Fills in the result of evict_explain() for the chunk, or zeros if the ref is stale. Returns
 * whether I/O or a loan keeps the chunk in its slot. */
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
/* Sets or clears retention: a client has pinned the chunk, or has ended its pin. (In the store's
 * code, pins are references by I/O.) The eviction policy never chooses a retained chunk. A retained
 * chunk is evicted only if its tenant has no other chunk to make room with, or with a whole segment
 * that another tenant takes over, or that is removed to make room for the table or because the file
 * system is full. When segments are compared for that, retained chunks count like any others. Drops
 * and purges apply to it as usual. `limit` is the number of bytes on disk that the tenant may
 * retain. Returns 0, STORE_FULL if the limit would be exceeded, or STORE_MISS if the ref is stale
 * or the chunk's put is in flight. */
int store_retain(struct store *s, struct store_ref ref, bool retained, uint64_t limit);
/* Prefetch the CPU cache lines that store_find() or store_touch() will read, for many calls in a
 * row: call step 0 for each of several chunks, then step 1 for each, then the operation for each.
 * store_warm() has no effect in a store of several volumes, because the hash does not determine the
 * volume. */
void store_warm(const struct store *s, uint64_t hash, unsigned step);
void store_warm_touch(const struct store *s, struct store_ref ref, unsigned step);

/* --- putting, syncing and getting --- */

/* Acquires a slot, evicting other chunks if necessary, and writes the payload and the table entry.
 * store_find() finds the chunk once both are written. Returns 0 if complete() will follow.
 * Otherwise returns STORE_EXISTS, STORE_FULL, STORE_TOO_LARGE, STORE_BYPASSED (also once the store
 * stops), -EINVAL (no such namespace) or -ENOMEM. STORE_FULL may be temporary: try again after a
 * completion. */
int store_put(struct store *s, struct store_put *req);
/* Supplies the checksum of a put that store_put() accepted with `summing` set and that has not
 * completed. The payload may be written before this call; the table entry is written only after it,
 * possibly before the payload is.
 * If `r` < 0, no checksum could be computed, and the put fails with `r`. Like store_iterate(), the
 * call may complete other requests. */
void store_put_checksum(struct store_put *req, int r, uint32_t crc);

/* Makes everything that was written before this call durable; one sync serves all waiting requests.
 * Completes with result 0, or STORE_NOT_DURABLE if a sync has failed or has no effect, if a volume
 * went offline meanwhile, or if none is in use. Chunks found at startup after an earlier process
 * had a failed data sync cannot become durable, so the result is also STORE_NOT_DURABLE if there
 * are such chunks; with `of_one` set, only if the chunk `ref` is one. */
void store_sync(struct store *s, struct store_sync *req);

/* Reads a chunk. Returns 0 if complete() will follow, and otherwise STORE_MISS, or STORE_TOO_LARGE
 * if `room` is too small. The slot is pinned during the read. */
int store_get(struct store *s, struct store_get *req);
/* --- lending: chunks that clients read directly from data files --- */

enum { STORE_LOANS_MAX = 65536 };
/* Lends a chunk that store_find() found: it stays in its slot until the loan is returned. Returns
 * 0; STORE_MISS; STORE_UNVERIFIED if this process has not read the chunk back yet, which a
 * store_get() does; STORE_NOT_LENT if the volume cannot lend chunks; STORE_FULL if there are
 * STORE_LOANS_MAX loans, too many loans of this chunk, or too few segments without loans; or
 * -ENOMEM. */
int store_lend(struct store *s, struct store_borrower *borrower, struct store_ref ref,
               struct store_loan *ret_loan, struct store_extent *ret_extent);
/* Ends a loan. Returns 0 if the chunk was in its place all the time; STORE_MISS if it was purged,
 * dropped or found damaged, or its volume went offline, so that the bytes read may be wrong;
 * STORE_STALE if the borrower has no such loan. */
int store_give_back(struct store *s, struct store_borrower *borrower, struct store_loan loan);
/* Ends up to `most` loans of a borrower, the latest first, and returns their number. */
uint32_t store_give_back_some(struct store *s, struct store_borrower *borrower, uint32_t most);
/* Opens the data file with the number `req->file`, which store_lend() returned, for a client.
 * Returns 0 if complete() will follow, or STORE_STALE if no data file of a volume in use has this
 * number, the file belongs to another tenant or is being handed over to one, or no descriptor is
 * free. */
int store_open_lent(struct store *s, struct store_lent_file *req);

struct store_loan_stats {
        uint64_t loans, bytes; /* current number of loans, and the bytes of the chunks on loan, each
                                  rounded up to whole pages */
        uint64_t lent, lent_bytes; /* loans made since startup, and the bytes of their chunks */
        uint64_t returned, returned_void; /* number of returned loans: of chunks that stayed in
                                             their slots, and of chunks that did not */
        uint64_t abandoned; /* number of loans that ended because their client disconnected */
};
void store_get_loans(const struct store *s, struct store_loan_stats *ret);

/* Returns the index of the volume that a ref of store_find() names. */
unsigned store_volume_of(struct store_ref ref);
/* Returns whether a volume is in use. Requests for any other volume fail at once. */
bool store_volume_is_up(const struct store *s, unsigned volume);
/* Returns whether the chunk was found at startup, or when its volume was resumed, and has not been
 * read since. Such a chunk may have been evicted before, so that its slot has other bytes. `ref` is
 * from store_find(). */
bool store_is_unverified(const struct store *s, struct store_ref ref);
/* Returns whether a store_get() of the chunk is in flight; may return false after the first of
 * several concurrent gets has ended. `ref` is from store_find(). */
bool store_is_reading(const struct store *s, struct store_ref ref);

/* Drops the chunk, and appends a tombstone on each volume in use that may have a copy of it.
 * Returns 0, STORE_MISS, or -ENOMEM if the chunk may still exist. A put in flight is not affected,
 * and does not count as the chunk. A chunk on an offline volume does count, unless the volume will
 * be emptied in any case when it returns. Until the tombstone is written, a crash may restore the
 * chunk: see store_settle_drops(). */
int store_drop(struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash);
/* Drops a chunk that the caller has found in another tier. Acts like store_drop(), but also appends
 * tombstones if the store does not find the key, so that no evicted chunk of the key returns after
 * a restart. */
int store_forget(struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash);

/* Completes once the tombstones of all chunks that were dropped before this call are written, so
 * that neither a crash nor a returning volume can restore these chunks. The result is 0, or
 * STORE_BYPASSED if any dropped chunk may return. A resume between a drop and this call may have
 * restored the chunk; the caller detects that by a changed store_lost_drops(). */
void store_settle_drops(struct store *s, struct store_sync *req);
/* Returns how often a store of one volume has failed to make drops or purges permanent. */
uint64_t store_lost_drops(const struct store *s);

/* Purges a namespace, or everything. Its chunks, including puts in flight, are not found after the
 * call. complete() follows when the purge is on stable storage and all purged chunks have been
 * removed from the index, which takes steps of less than a millisecond. `dropped` is then the
 * number of chunks that this purge removed; a chunk that several purges cover is counted by one of
 * them. */
void store_purge(struct store *s, struct store_purge *req);
/* Sets the histogram to which the store adds the duration of each step of a purge, in nanoseconds;
 * NULL ends the measurement. The histogram must stay valid until then. */
void store_time_sweeps(struct store *s, struct histogram *times);

/* Lists the chunks of a namespace in no particular order. Start with *cursor = 0; the list ends
 * with *cursor = 0. Chunks that are put or dropped during the walk may or may not be listed; none
 * is listed twice. A call visits at most `max` * 16 records, so it may return fewer than `max`
 * chunks, even 0, before the end. */
unsigned store_list(const struct store *s, uint32_t namespace_id, uint64_t *cursor,
                    struct store_chunk *ret, unsigned max);

/* --- change notifications for external indexes --- */

/* Adds a watch to an open store. `watch` must stay valid until it is removed. Without watches,
 * changes cost nothing. */
void store_add_watch(struct store *s, struct store_watch *watch);
void store_remove_watch(struct store_watch *watch);
/* Returns whether the volume that contains position `at` of store_walk() is in use. */
bool store_is_in_use(const struct store *s, uint64_t at);

/* Calls each() for the chunks that will be evicted next, in every volume and size class whose
 * report is due: after a number of evictions, or after an announcement of a use; see
 * evict_note_leaving(). A chunk is reported about twice before it is evicted, while it can still be
 * read. each() must not call the store. The call costs nothing while no report is due. */
void store_report_leaving(struct store *s,
                          void (*each)(void *userdata, const struct store_leaving *leaving),
                          void *userdata);

/* Calls each() for the chunks of a tenant that will be evicted next, in the order of their eviction
 * within each volume and size class; does not change that order. Visits at most `most` chunks,
 * divided equally among the size classes that the tenant uses. Skips chunks that I/O keeps in their
 * slots. each() must not call the store, except to look up namespaces. */
void store_next(const struct store *s, uint16_t tenant, unsigned most,
                void (*each)(void *userdata, const struct store_leaving *leaving), void *userdata);

#define STORE_WALK_END UINT64_MAX
/* Calls each() for all chunks, including those on offline volumes, in a fixed order. A call visits
 * at most `max_records` positions of one volume, from *cursor on, which must be 0 at first and is
 * STORE_WALK_END at the end. A watch is needed for changes at positions that the walk has passed;
 * the walk itself meets all changes at later positions. */
void store_walk(const struct store *s, uint64_t *cursor, unsigned max_records,
                void (*each)(void *userdata, uint32_t namespace_id, const struct key *key,
                             uint32_t length),
                void *userdata);
/* Acts like store_walk(), but only for the volumes in use. */
void store_walk_findable(const struct store *s, uint64_t *cursor, unsigned max_records,
                         void (*each)(void *userdata, uint32_t namespace_id, const struct key *key,
                                      uint32_t length),
                         void *userdata);

/* --- eviction policy and verification --- */

/* Returns whether the eviction policy of the volume that is the key's placement remembers evicting
 * the chunk; false if that volume is not in use. */
bool store_remembers(const struct store *s, uint32_t namespace_id, const struct key *key,
                     uint64_t hash);
/* Returns the result of evict_remembered_gap() for the volume that is the key's placement, or
 * EVICT_NO_GAP if that volume is not in use. */
uint8_t store_remembered_gap(const struct store *s, uint32_t namespace_id, const struct key *key,
                             uint64_t hash, struct evict_return *ret);
/* Calls evict_admit_all() for each volume. A volume that is resumed later needs another call. */
void store_admit_all(struct store *s, bool all);
/* Switches the policy of each volume, and of volumes that are resumed later, like evict_switch().
 * Returns 0, or -ENOMEM if a volume has kept its policy. */
int store_set_policy(struct store *s, const char *policy);
/* Sets rate and interval of the scrub, which reads all chunks back once in every interval, at lower
 * priority than all other work. A chunk that fails its checksum twice, or cannot be read twice, is
 * dropped. The first pass begins one interval after opening, but after an hour at the latest. A
 * pass in progress continues with the new values. */
void store_set_scrub(struct store *s, const struct store_scrub *scrub);

/* Verifies chunks on request. Returns 0 if complete() will follow, and otherwise STORE_MISS (no
 * such volume), STORE_FULL (too many requests) or STORE_BYPASSED. */
int store_verify(struct store *s, struct store_verify *req);

/* Returns the CLOCK_MONOTONIC time at which store_iterate() must be called even if nothing
 * completes; 0 if never. */
uint64_t store_deadline_ns(const struct store *s);

/* --- tenants --- */

/* A tenant's usage and limit over all volumes in bytes, counted in whole slots. The limit is
 * divided among the volumes; a tenant above it loses its own coldest chunks.
 * store_set_tenant_limit() takes 0 for no limit, and has no effect if memory is short. */
struct store_tenant_usage {
        uint64_t bytes, limit; /* `limit` is UINT64_MAX if the tenant has none */
        uint64_t retained;     /* the part of `bytes` in retained chunks */
};
void store_set_tenant_limit(struct store *s, uint16_t tenant, uint64_t bytes);
void store_get_tenant(const struct store *s, uint16_t tenant, struct store_tenant_usage *ret);

/* --- saving and restoring the eviction order --- */

unsigned store_volumes(const struct store *s);
/* Returns a volume's eviction order, or NULL if the volume is offline. The store owns the result,
 * which is valid until the caller next calls the store or returns to it. */
const struct evict *store_eviction(const struct store *s, unsigned volume);
/* Fills in the eviction records of a volume's chunks. A call visits at most `max_records` records
 * from *cursor on, which must be 0 at first, and fills in at most `room`. Returns the number filled
 * in; sets *cursor to UINT32_MAX at the end, and for an offline volume. */
uint32_t store_save_order(const struct store *s, unsigned volume, uint32_t *cursor,
                          uint32_t max_records, struct evict_record *ret, uint32_t room);
/* Restores an eviction order, after store_open() and before any put. Returns the number of chunks
 * whose place in the order was restored. The call has no effect if another policy saved the order,
 * the order is malformed, the volume is offline, or memory is short. */
uint32_t store_restore_order(struct store *s, unsigned volume, const struct store_order *order);

/* --- statistics --- */

/* Fills in sums over all volumes whose directory could be opened. The counters of a volume continue
 * when it is resumed. `bypassed` is set if all volumes are bypassed. */
void store_get_stats(const struct store *s, struct store_stats *ret);
/* Fills in the ages of the chunks that were evicted, in nanoseconds since their last use; see
 * evict_age_ns(). */
void store_get_evicted_ages(const struct store *s, struct histogram *ret);
const char *store_volume_path(const struct store *s, unsigned i);
/* Returns the path of the volume whose device has worked longest on an operation, or NULL if no
 * device works on any. */
const char *store_slowest_volume(const struct store *s);

struct store_volume_stats {
        const char *path;
        enum store_volume_state state;
        const char *reason; /* why the volume is not in use; "" if it is */
        uint64_t since_ms;  /* Unix time at which the state began; 0 if at startup */
        uint64_t bypasses;  /* number of times that the volume was taken out of use, by a bypass or
                               suspend */
        bool hung; /* the volume was bypassed because its device did not answer; while `pending` is
                      not 0, operations are still in flight */
        bool full; /* the file system is full, so the volume does not grow */
        uint64_t full_refusals; /* growths and writes that the full file system refused */
        uint64_t pending;       /* number of requests and operations that are not completed */
        uint64_t oldest_ns;     /* age of the oldest operation at the device; 0 if there is none */
        /* The kind of the volume's file system; a warning if such file systems lose chunks; and
         * advice if they do not suit a store (store/volume/file-system.h). Each may be "". */
        const char *file_system, *file_system_warning, *file_system_advice;
        struct store_stats stats;
};
/* Fills in the statistics of volume `i`. Returns false if there is no such volume. */
bool store_get_volume_stats(const struct store *s, unsigned i, struct store_volume_stats *ret);
unsigned store_volumes_up(const struct store *s);

/* --- suspending and resuming by an admin --- */

struct store_device {
        unsigned volume;
        /* 0 if the volume was suspended or resumed; STORE_BUSY; STORE_EXISTS if the volume is
         * already suspended (suspend) or is up (resume); or -errno. `text` has the reason unless
         * the result is 0. */
        int result;
        char text[512];
        void (*complete)(struct store_device *req); /* may run within the call */
};
/* Suspends a volume: waits until its operations in progress have ended, bypasses it and syncs its
 * files. A volume that is already bypassed is only marked as suspended. */
void store_suspend(struct store *s, struct store_device *req);
/* Resumes a volume: reads its files as at startup, on another thread, and then uses the volume
 * again. Resuming needs memory for a second index of the volume, and takes about a second per
 * million chunks. */
void store_resume(struct store *s, struct store_device *req);
