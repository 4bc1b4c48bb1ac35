/* SPDX-License-Identifier: Apache-2.0 */
/* The store: chunks on disk, and the only door to them. See README.md beside it for the format and
 * for what survives which crash.
 *
 * A store has one or several volumes, on devices of their own. A chunk lies on one of them. A
 * volume that fails, hangs, or is suspended is bypassed: what lies there is a miss, puts go to the
 * others, and what waits for it ends. With all volumes bypassed every lookup is a miss and no put
 * is taken.
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

#include "base/histogram.h"
#include "io/io.h"
#include "key.h"
#include "store/volume/types.h"

struct histogram;
struct store;

enum store_volume_state {
        STORE_VOLUME_UP,
        STORE_VOLUME_BYPASSED,  /* it failed, or hangs, or could not be opened */
        STORE_VOLUME_SUSPENDED, /* by hand */
        STORE_VOLUME_RESUMING,
        STORE_VOLUME_STATE_END,
};

/* Step one of opening, before there is any I/O ring: makes or checks the directories, takes the
 * locks (retrying for lock_wait_ms while another holds them), reads the superblocks, probes
 * O_DIRECT. A volume that cannot be opened is left bypassed if another can.
 *
 * Errors: -EBUSY: another daemon has it; -EPROTO: not a store, or of a version or with a flag this
 * build does not know; others as the world says. `ret_error` gets one clear sentence with the
 * volume. 0 else. */
int store_prepare(struct store **ret, const struct store_params *params,
                  char ret_error[static 512]);

/* The format of one volume of a store. Reads the superblock and nothing else, also while a daemon
 * has the store open, and writes nothing. 0: see ret->opens; `ret_error` is why it does not, or
 * "". -EPROTO: not a volume, or damaged beyond use; others as the world says. */
int store_read_format(const char *path, struct store_format *ret, char ret_error[static 512]);

/* Descriptors to register with every ring, of the volumes that could be opened; n <=
 * STORE_MAX_VOLUMES. A file to probe reads with. Borrowed. */
unsigned store_lock_fds(const struct store *s, int ret_fds[static STORE_MAX_VOLUMES]);
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
void store_iterate(struct store *s);
/* Looks for operations that hang. Call it about once a second; it completes requests. */
void store_tick(struct store *s);

uint64_t store_max_chunk(const struct store *s); /* a segment's payload */

/* --- namespaces --- */

/* Memory that the store takes for each open, removal and purge until all volumes have done their
 * part; for an open of a name that is being removed, also its name and fingerprint. */
size_t store_fan_out_bytes(const struct store *s);
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

uint64_t store_hash(const struct store *s, uint32_t namespace_id, const struct key *key);

/* Present and written? `hash` is store_hash()'s. 0, STORE_MISS. Either ret may be NULL. */
int store_find(const struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash,
               struct store_ref *ret_ref, struct store_chunk *ret_chunk);

/* --- lifetimes --- */

/* Of a namespace; 0: none, or there is no such namespace. And how many namespaces have one. */
uint32_t store_lifetime_s(const struct store *s, uint32_t namespace_id);
unsigned store_lifetimes(const struct store *s);
/* Drops the chunk if it was put before that (store_born_after_ms()). Was it? Nothing is written: it
 * may be found again after a kill, and has expired then as well. */
bool store_expire(struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash,
                  uint64_t born_after_ms);
/* A step, of about 100 us, of a walk that drops all chunks that have expired; adds how many it has
 * dropped. False: it has come by all, and begins anew. */
bool store_expire_step(struct store *s, uint64_t now_ms, uint64_t *expired);
uint64_t store_records(const struct store *s); /* that such a walk comes by, about */

/* --- eviction --- */

/* Recency; a stale ref is ignored. `use`: as of evict.h. */
void store_touch(struct store *s, struct store_ref ref, uint32_t use);
/* As evict_turn(); -1: the ref is stale. */
int store_turn(const struct store *s, struct store_ref ref, uint32_t use);
/* Its place in its chain, before it is touched at the chain's end. A parent in another volume keeps
 * nothing there: what is evicted first is decided in each volume by itself. */
void store_chain(struct store *s, struct store_ref ref, struct store_ref parent, uint32_t use,
                 unsigned turn, bool is_end);
/* As evict_explain(), in its volume. Is it pinned, by I/O or a loan? */
bool store_explain(const struct store *s, struct store_ref ref, struct evict_standing *ret);
/* As evict_cost(); of a stale ref unknown. */
unsigned store_cost(const struct store *s, struct store_ref ref);
/* As evict_hint(). True: the ref is stale. What goes on in another volume is not known to one. */
bool store_hint(struct store *s, struct store_ref ref, enum evict_hint hint);
/* A client has pinned it, which is called retained here, where pins are those of I/O; or that is
 * over. It is no victim of the eviction policy. It goes when its tenant has nothing else to make
 * room with, and with a whole segment that another tenant takes, to which it counts as all else.
 * Dropped and purged it is as ever. `limit`: bytes on disk that the tenant may retain. 0;
 * STORE_FULL: it would be more; STORE_MISS: the ref is stale. */
int store_retain(struct store *s, struct store_ref ref, bool retained, uint64_t limit);
/* For many store_find() or store_touch() in a row: their memory is fetched together. Step 0 for
 * each of a few, a little later step 1, a little later the call. */
void store_warm(const struct store *s, uint64_t hash, unsigned step);
void store_warm_touch(const struct store *s, struct store_ref ref, unsigned step);

/* Takes a slot, evicting if it must, and writes payload, then table; it is in the index once both
 * are written. 0: complete() will follow. STORE_EXISTS, STORE_FULL, STORE_TOO_LARGE, STORE_BYPASSED
 * (also once the store stops), -EINVAL (no such namespace), -ENOMEM: it will not. STORE_FULL may
 * pass: try again after some completion. */
int store_put(struct store *s, struct store_put *req);
/* Of a put that store_put() took while it was `summing`, and that has not completed: its payload is
 * written meanwhile, its entry not before this. `r` < 0: there is no checksum, and the put fails
 * with that. May complete other requests, as an iteration does. */
void store_put_checksum(struct store_put *req, int r, uint32_t crc);

/* Makes what was written before this call durable (one sync serves all that wait). Completes as a
 * put does, with result 0, STORE_NOT_DURABLE or -errno; of `req` only complete() is read, and with
 * of_one, ref: the one chunk that is meant. What startup found after an earlier process had a sync
 * of data fail does not become durable any more. */
void store_sync(struct store *s, struct store_put *req);

/* 0: complete() will follow. STORE_MISS, STORE_TOO_LARGE (room): it will not. The slot is pinned
 * meanwhile. */
int store_get(struct store *s, struct store_get *req);
/* --- lending: a chunk that a client reads from the data file by itself --- */

enum { STORE_LOANS_MAX = 65536 };
/* What store_find() found, pinned in its slot until the loan is given back. STORE_MISS;
 * STORE_UNVERIFIED: this process has not read it back yet, and a store_get() would; STORE_NOT_LENT:
 * nothing of its volume is lent; STORE_FULL: there are STORE_LOANS_MAX, or very many of this chunk;
 * -ENOMEM. */
int store_lend(struct store *s, struct store_borrower *borrower, struct store_ref ref,
               struct store_loan *ret_loan, struct store_extent *ret_extent);
/* Ends a loan. 0: the chunk was in its place all the time. STORE_MISS: it was purged, dropped,
 * found bad or its volume failed meanwhile, so what was read of it may be anything. STORE_STALE:
 * the borrower has no such loan. */
int store_give_back(struct store *s, struct store_borrower *borrower, struct store_loan loan);
/* So many at most, the latest first; how many there were. */
uint32_t store_give_back_some(struct store *s, struct store_borrower *borrower, uint32_t most);
/* 0: complete() will follow. STORE_STALE: there is no such file, or not of this tenant. */
int store_open_lent(struct store *s, struct store_lent_file *req);

struct store_loan_stats {
        uint64_t loans, bytes;            /* now */
        uint64_t lent, lent_bytes;        /* ever */
        uint64_t returned, returned_void; /* given back: in its place all the time; not */
        uint64_t abandoned;               /* that ended with their client */
        uint64_t files;                   /* descriptors handed out */
};
void store_get_loans(const struct store *s, struct store_loan_stats *ret);

/* Which volume it is read from, for `ref` of store_find(). */
unsigned store_volume_of(struct store_ref ref);
/* Is it used? What is asked of one that is not ends at once. */
bool store_volume_is_up(const struct store *s, unsigned volume);
/* Is a store_get() of it under way? For `ref` of store_find(). */
bool store_is_reading(const struct store *s, struct store_ref ref);

/* Drops the chunk and appends a tombstone on each volume. 0, STORE_MISS, -ENOMEM (it may still be
 * there). A put of the key in flight is not found; what lies on a volume that is offline is, unless
 * all of that volume is lost already. Until the tombstone is written a kill may bring the chunk
 * back: see store_settle_drops(). */
int store_drop(struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash);
/* The same of a key that the caller has found elsewhere: nothing that may still be on a disk comes
 * back, though the store does not find it. */
int store_forget(struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash);

/* Completes once no kill, and no volume that comes back, can bring back what was dropped before
 * this call: the tombstones are written. As store_sync(): of `req` only complete() is read, and the
 * rest is the store's until then; result is 0, or STORE_BYPASSED if something that was dropped, by
 * anyone, may come back. */
void store_settle_drops(struct store *s, struct store_put *req);

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

/* `watch` is kept, not copied; NULL: none, which costs nothing. Once the store is open.
 */
void store_set_watch(struct store *s, const struct store_watch *watch);

/* The chunks that are evicted next, of volumes and classes in which chunks were evicted since the
 * last report of it: each chunk about twice, while it can still be read. The store may not be
 * called from within. Costs nothing where nothing was evicted. */
void store_report_leaving(struct store *s,
                          void (*each)(void *userdata, const struct store_leaving *leaving),
                          void *userdata);

#define STORE_WALK_END UINT64_MAX
/* All chunks of all namespaces that the watch is notified of, those of offline volumes
 * included, in an order that stays: from *cursor on, 0 at first, looks at no more than `looks`
 * places; at the end the cursor is STORE_WALK_END. What changes at places below the cursor has to
 * be reported to the watch, the rest is met. */
void store_walk(const struct store *s, uint64_t *cursor, unsigned max_records,
                void (*each)(void *userdata, uint32_t namespace_id, const struct key *key),
                void *userdata);

/* --- reading back --- */

/* Was it evicted from the volume that it belongs to, as far as the policy there remembers? */
bool store_remembers(const struct store *s, uint32_t namespace_id, const struct key *key,
                     uint64_t hash);
/* As evict_switch(), in each volume; also in one that is resumed later. -ENOMEM: a volume has kept
 * its policy. */
int store_set_policy(struct store *s, const char *policy);
/* Every interval all chunks are read back, at that rate and behind everything else, and what does
 * not match its checksum twice, or cannot be read twice, is dropped. The first pass begins an
 * interval after opening, at most an hour. A pass under way goes on with what is new. */
void store_set_scrub(struct store *s, const struct store_scrub *scrub);

/* 0: complete() will follow. STORE_MISS (no such volume), STORE_FULL (too many at once),
 * STORE_BYPASSED: it will not. */
int store_verify(struct store *s, struct store_verify *req);

/* Returns the CLOCK_MONOTONIC time at which store_iterate() must be called even if nothing
 * completes; 0 if never.
 */
uint64_t store_deadline_ns(const struct store *s);

/* --- tenants --- */

/* A tenant's chunks lie in files of its own. What they take, in whole slots, and may take over all
 * volumes, each in its share; 0: no limit. Over it the tenant's own coldest ones go. */
struct store_tenant_usage {
        uint64_t bytes, limit; /* limit: UINT64_MAX is none */
        uint64_t retained;     /* the part of `bytes` in retained chunks */
};
void store_set_tenant_limit(struct store *s, uint16_t tenant, uint64_t bytes);
void store_get_tenant(const struct store *s, uint16_t tenant, struct store_tenant_usage *ret);

/* --- the eviction order, over a restart --- */

unsigned store_volumes(const struct store *s);
/* Returns a volume's eviction order, or NULL if the volume is offline. The store owns the result,
 * which is valid until control returns to the store. */
const struct evict *store_eviction(const struct store *s, unsigned volume);
/* Chunks of a volume that is not offline, from *cursor on, 0 at first: looks at so many, fills in
 * as many at most. Their number; *cursor is UINT32_MAX behind the last. */
uint32_t store_save_order(const struct store *s, unsigned volume, uint32_t *cursor,
                          uint32_t max_records, struct evict_record *ret, uint32_t room);
/* After store_open(), before anything is put. How many chunks have the place that they had; what
 * was saved of another policy, or is malformed, changes nothing. */
uint32_t store_restore_order(struct store *s, unsigned volume, const struct store_order *order);

/* --- statistics --- */

/* Sums over all volumes that are open; what is counted of a volume goes on counting when it is
 * resumed. `bypassed`: all are. */
void store_get_stats(const struct store *s, struct store_stats *ret);
/* Fills in the ages of evicted chunks: nanoseconds since their last use, from evict_age_ns(). */
void store_get_evicted_ages(const struct store *s, struct histogram *ret);
const char *store_volume_path(const struct store *s, unsigned i);

struct store_volume_stats {
        const char *path;
        enum store_volume_state state;
        const char *reason;     /* why the volume is bypassed; "" if it is not */
        uint64_t since_ms;      /* Unix time at which the state began; 0 if at startup */
        uint64_t bypasses;      /* by itself or by hand, since startup */
        bool hung;              /* bypassed since its device did not answer; while `pending` it
                                   still does not */
        bool full;              /* the file system is full, so the volume does not grow */
        uint64_t full_refusals; /* growths and writes refused for that */
        uint64_t pending;       /* requests and operations not completed */
        uint64_t oldest_ns;     /* age of the oldest operation at the device */
        /* The kind of its file system, and a sentence if that kind loses chunks; both may be "". */
        const char *file_system, *file_system_warning;
        struct store_stats stats;
};
/* Fills in the statistics of volume `i`. Returns false if there is no such volume. */
bool store_get_volume_stats(const struct store *s, unsigned i, struct store_volume_stats *ret);
unsigned store_volumes_up(const struct store *s);

/* --- by hand --- */

struct store_device {
        unsigned volume;
        /* 0: done. STORE_BUSY. STORE_EXISTS: it is in that state already. -errno: the device, with
         * `text`. */
        int result;
        char text[512];
        void (*complete)(struct store_device *req); /* may run within the call */
};
/* Bypasses the volume when all that was begun has been written. A volume that is bypassed already
 * is only marked so. */
void store_suspend(struct store *s, struct store_device *req);
/* Probes the device with real I/O, reads the volume's tables as at startup, off the loop, and
 * uses it again. That needs memory for a second index of it while it lasts, and about a second for
 * a million chunks. */
void store_resume(struct store *s, struct store_device *req);
