/* SPDX-License-Identifier: Apache-2.0 */
/* One volume of the store: a directory with its superblock, namespaces, table ring and data files,
 * and the index of what lies in it. Only the files that store/internal.h lists call these
 * functions; they combine several volumes into one store. A function without a comment does for one
 * volume what the function of the same name in store.h does for the store. volume_make() and
 * volume_write_superblock() act like dir_make() and dir_write_superblock() in dir.h.
 *
 * Opening takes several steps, each for all volumes, because the volumes must agree: prepare them;
 * check that they form one set; divide the limit; make the volumes of empty directories; open all;
 * and give each the others' records (join). */
#pragma once

#include "store/volume/format.h"
#include "store/volume/types.h"

struct volume;

/* Callbacks from a volume to the store. */
struct volume_ops {
        /* A put has ended on this volume. The store completes it or retries it on another volume.
         */
        void (*put_done)(void *userdata, struct store_put *req);
        /* The volume has just been bypassed. The callback may come from within any call, and must
         * neither complete nor submit a request. */
        void (*bypassed)(void *userdata, struct volume *v);
        /* The next startup may find chunks that were dropped: a table write has failed, and the
         * superblock could not be marked with that, or a tombstone was queued after the bypass.
         * Called like bypassed(). */
        void (*doubtful)(void *userdata, struct volume *v);
        /* The volume's file system has become full or has room again. Called like bypassed(). */
        void (*full)(void *userdata, struct volume *v, bool full);
        /* The volume has removed data file number `segment`, with this number of chunks, to make
         * room on its file system. Called like bypassed(). */
        void (*gave_up)(void *userdata, struct volume *v, uint32_t segment, uint64_t chunks);
        /* The volume is being closed, and `reason` says which of its files were removed or
         * replaced. */
        void (*astray)(void *userdata, struct volume *v, const char *reason);
        /* Returns the number of the volume that is the key's placement. Runs on any thread. The
         * pointer is NULL if the store has one volume. */
        unsigned (*placement)(const void *userdata, uint32_t namespace_id, const struct key *key);
        void *userdata;
};

struct volume_params {
        const struct store_params *store; /* parameters of the store; limit and entries come from
                                             volume_set_limit() instead */
        const char *path;
        unsigned number; /* index among the store's volumes; part of each store_ref */
        int lock_fd;     /* descriptor of a lock that this process already holds, or -1; see
                            dir_params.lock_fd */
        const struct volume_ops *ops;
};

enum {
        VOLUME_GENERATION_BITS = 28
}; /* bits of store_ref.generation that hold the generation; the rest hold the volume's number */

/* store_walk_at() returns the position of a volume's record in store_walk().
 * STORE_WALK_RECORD_BITS: the bits of a position that hold the record's number. */
enum { STORE_WALK_RECORD_BITS = 32 };
static inline uint64_t store_walk_at(unsigned volume, uint32_t record)
{
        return (uint64_t)volume << STORE_WALK_RECORD_BITS | record;
}

/* Returns the default number of index entries for a store of `limit` bytes. */
static inline uint64_t volume_auto_entries(uint64_t limit)
{
        return limit / (256 * 1024) > UINT64_C(1) << 20 ? limit / (256 * 1024) : UINT64_C(1) << 20;
}

int volume_read_format(const char *path, struct store_format *ret, char ret_error[static 512]);
int volume_prepare(struct volume **ret, const struct volume_params *params,
                   char ret_error[static 512]);
int volume_lock_fd(const struct volume *v);
int volume_probe_fd(const struct volume *v);
/* Returns whether the directory held no volume when it was prepared; volume_make() must then create
 * one. */
bool volume_is_fresh(const struct volume *v);
int volume_make(struct volume *v, const uint8_t *set, unsigned index, unsigned count,
                char ret_error[static 512]);
/* Returns whether volume_make() failed but may have left a superblock. No other volume may then get
 * this volume's number. */
bool volume_is_half_made(const struct volume *v);
/* Returns the superblock as read or made. The volume owns the struct; volume_open(),
 * volume_write_superblock() and the marking functions write it to the disk. */
struct disk_superblock *volume_superblock(struct volume *v);
int volume_write_superblock(struct volume *v);
/* Record in the superblock of an open volume that the other volumes continue without it, or that
 * the set has given out `count` volume numbers. The write is asynchronous and may fail. */
void volume_mark_away(struct volume *v);
void volume_mark_count(struct volume *v, unsigned count);
/* Returns 0 if the count of the last volume_mark_count() is on stable storage, VOLUME_MARK_WAITS
 * while its write is pending, or the write's -errno. */
enum { VOLUME_MARK_WAITS = 1 };
int volume_count_is_marked(const struct volume *v);
/* Copies the marks for failed table writes and data syncs from an earlier struct of the same
 * directory, because these marks may not have reached the disk. Call before volume_open(). No
 * effect if the directories differ. */
void volume_take_marks(struct volume *v, const struct volume *earlier);
/* Stores the size of the volume's file system in bytes, and its device number. Returns 0 or
 * -errno. */
int volume_space(const struct volume *v, uint64_t *ret_bytes, uint64_t *ret_device);
void volume_set_limit(struct volume *v, uint64_t limit, uint64_t entries);

/* Reads the volume's files and builds the index. Blocks, and may run on any thread as long as no
 * other thread uses the volume. */
int volume_open(struct volume *v, struct kio *io, char ret_error[static 512]);

bool volume_is_open(const struct volume *v);
/* Returns the number of data files that volume_open() replaced by copies, because access rights had
 * changed. */
unsigned volume_detached_files(const struct volume *v);
/* Calls each() with a sentence for each loss that volume_open() found, and then records the present
 * state of the files, so that the next startup does not report these losses again. */
void volume_report_losses(struct volume *v, void (*each)(void *userdata, const char *text),
                          void *userdata);

/* The state of the set that a volume needs before it is used with other volumes. */
struct volume_join {
        const struct store_namespace *namespaces; /* namespaces of the whole set */
        unsigned n_namespaces;
        uint32_t next_id;
        bool in_set;
        struct volume_set set; /* the set's record of claims, which this volume stores */
        bool witnessed;        /* `set` records everything that this volume missed while it was
                                  offline; if false, a volume that was offline is emptied */
        bool empty;            /* the volume has missed a purge and must be emptied */
};
/* Gives an open volume the state of the set, and empties it if it has missed a purge or drop. Sets
 * *ret_emptied to whether it was emptied of chunks that recovery had found. Returns 0 or -errno;
 * after an error other than -EUCLEAN the volume is no longer open. Blocks. */
int volume_join(struct volume *v, const struct volume_join *join, bool *ret_emptied,
                char ret_error[static 512]);
/* Clears the superblock's mark that the volume was offline, after every volume of this startup has
 * joined. Returns 0 or -errno; on failure the volume is no longer open. Blocks. */
int volume_is_back(struct volume *v, char ret_error[static 512]);
/* Returns 0, or -EUCLEAN with a text if the volume's namespaces contradict those of `join`. */
int volume_check_namespaces(const struct volume *v, const struct volume_join *join,
                            char ret_error[static 512]);
uint32_t volume_next_id(const struct volume *v);
const struct volume_set *volume_set(const struct volume *v);

void volume_stop(struct volume *v);
/* Iterates the volume if it is stopping. Completions call this, because the store does not call
 * volume_iterate() once it stops. */
void volume_progress(struct volume *v);
uint64_t volume_pending(
        const struct volume *v); /* requests and internal operations that are not completed */
struct volume *volume_close(struct volume *v);
void volume_iterate(struct volume *v);
uint64_t volume_max_chunk(const struct volume *v);

/* Takes the volume out of use and calls ops->bypassed(). Later calls have no effect. */
void volume_bypass(struct volume *v, const char *reason);
const char *volume_reason(const struct volume *v);
/* Answers all waiting requests of a bypassed volume whose device hangs. Memory that the device may
 * still access is not released. */
void volume_abandon(struct volume *v);
/* Returns whether the volume has no uncompleted request, and no pending tombstone, table write or
 * sync. */
bool volume_is_quiet(const struct volume *v);
/* Syncs a quiet, bypassed volume and writes its superblock, marked as clean if every sync
 * succeeded. Returns 0, or -errno if a sync has failed since the volume was opened, or if the list
 * of namespaces or the superblock could not be written. Blocks, and may run on any thread between
 * volume_begin_rest(), which records `away` in the superblock, and volume_end_rest(). In between,
 * no other thread may use the list of namespaces or the superblock. */
void volume_begin_rest(struct volume *v, bool away);
int volume_rest(struct volume *v);
void volume_end_rest(struct volume *v);

void volume_namespace_open(struct volume *v, struct store_namespace_open *req);
const struct store_namespace *volume_namespace_get(const struct volume *v, uint32_t id);
const struct store_namespace *volume_namespace_at(const struct volume *v, unsigned i);
/* Returns whether the namespace has neither chunks nor puts in flight. A namespace that the volume
 * does not have is empty. */
bool volume_namespace_is_empty(const struct volume *v, uint32_t id);
/* Removes the namespace req->namespace_id, which must be empty, from the list. `set` is as in
 * volume_purge(). */
void volume_namespace_remove(struct volume *v, struct store_purge *req,
                             const struct volume_set *set);

int volume_find(const struct volume *v, uint32_t namespace_id, const struct key *key, uint64_t hash,
                struct store_ref *ret_ref, struct store_chunk *ret_chunk);
/* volume_expire() drops a chunk that was put before `born_after_ms`, and returns whether it was
 * dropped. volume_expire_step() drops expired chunks for one step of a walk through the index, and
 * adds their number to *expired. It returns false at the end of the index; the next step then
 * starts again. */
bool volume_expire(struct volume *v, struct store_ref ref, uint64_t born_after_ms);
bool volume_expire_step(struct volume *v, uint64_t now_ms, uint64_t *expired);
uint32_t volume_records(const struct volume *v);
/* Returns whether the volume has a chunk of the key, or a put of the key in flight. */
bool volume_has(const struct volume *v, uint32_t namespace_id, const struct key *key,
                uint64_t hash);
/* Returns the number of chunks whose placement is another volume, not including puts in flight. */
uint64_t volume_displaced(const struct volume *v);
void volume_touch(struct volume *v, struct store_ref ref, uint32_t use);
uint8_t volume_chain_gap(const struct volume *v, struct store_ref ref, uint32_t use,
                         struct evict_return *ret);
uint8_t volume_gap(const struct volume *v, struct store_ref ref);
void volume_set_gap(struct volume *v, struct store_ref ref, uint8_t gap);
int volume_turn(const struct volume *v, struct store_ref ref, uint32_t use);
bool volume_explain(const struct volume *v, struct store_ref ref, struct evict_standing *ret);
unsigned volume_cost(const struct volume *v, struct store_ref ref);
bool volume_hint(struct volume *v, struct store_ref ref, enum evict_hint hint);
/* Return the results of evict_demote() and evict_promote(), or false if the ref is stale. */
bool volume_demote(struct volume *v, struct store_ref ref);
bool volume_promote(struct volume *v, struct store_ref ref);
uint32_t volume_demoted(const struct volume *v); /* the number of demoted chunks */
/* Returns 0, or STORE_MISS if the ref is stale or the chunk's put is in flight. */
int volume_retain(struct volume *v, struct store_ref ref, bool retained);
/* Returns whether the chunk is retained, and stores its tenant and the size of its slot in bytes.
 * If `ref` is stale, returns false and stores zeros. */
bool volume_is_retained(const struct volume *v, struct store_ref ref, uint16_t *ret_tenant,
                        uint32_t *ret_bytes);
/* Sets the chunk's turn for eviction, and links it to its parent, the chunk before it in its chain.
 * `parent` is NULL if the parent is not on this volume. */
void volume_chain(struct volume *v, struct store_ref ref, const struct store_ref *parent,
                  uint32_t use, unsigned turn, bool is_end);
/* Act like store_warm() and store_warm_touch() for this volume. */
void volume_warm(const struct volume *v, uint64_t hash, unsigned step);
void volume_warm_touch(const struct volume *v, struct store_ref ref, unsigned step);
int volume_put(struct volume *v, struct store_put *req);
void volume_put_checksum(struct store_put *req, int r, uint32_t crc);
/* Lets entries be written that wait for others of their batch, and checks from time to time that
 * the volume's files are still in place. Call it once a second. */
void volume_tick(struct volume *v);
void volume_sync(struct volume *v, struct store_put *req);
/* Returns whether power loss may destroy the chunk although a later sync succeeds, because an
 * earlier process wrote the chunk and had a failed data sync. With NULL or a stale ref, returns
 * whether the volume may have such chunks. */
bool volume_is_in_doubt(const struct volume *v, const struct store_ref *ref);
/* Returns whether `ref` names the chunk that is now visible under this key. */
bool volume_is_at(const struct volume *v, struct store_ref ref, uint32_t namespace_id,
                  const struct key *key);
/* Reads the chunk that req->ref names, which must be from volume_find(). */
int volume_get(struct volume *v, struct store_get *req);
/* Lends a chunk like store_lend(), and pins it until volume_give_back(). *files is the last number
 * that was given to a lent data file, and is raised if this file gets its number now. */
int volume_lend(struct volume *v, struct store_ref ref, uint32_t *files, struct store_extent *ret);
/* Ends a loan. Returns false if the bytes read may be wrong, because the chunk was removed or found
 * damaged, or the volume is bypassed. */
bool volume_give_back(struct volume *v, struct store_ref ref);
/* Opens a data file for a client, like store_open_lent(). */
int volume_open_lent(struct volume *v, struct store_lent_file *req);
bool volume_is_reading(const struct volume *v, struct store_ref ref);
/* Returns whether volume_open() found the chunk and it has not been read since. */
bool volume_is_unverified(const struct volume *v, struct store_ref ref);
/* Drops a chunk and queues its tombstone. Returns 0; STORE_MISS if there is no such chunk; or
 * -ENOMEM, without having dropped it. With `even_if_missing`, also queues a tombstone for a missing
 * chunk if the disk may still have an evicted chunk of the key, which a restart would restore. */
int volume_drop(struct volume *v, uint32_t namespace_id, const struct key *key, uint64_t hash,
                bool even_if_missing);
/* Returns whether recovery might find a chunk of this key on the disk. May return true for a chunk
 * that is not there, but never false for one that is. */
bool volume_may_have(const struct volume *v, uint32_t namespace_id, const struct key *key,
                     uint64_t hash);
/* Returns whether recovery might find chunks that are neither in the index nor evicted: of a failed
 * put whose tombstone could not be written, or of a purge that could not be written. */
bool volume_has_lost_removals(const struct volume *v);
/* Returns whether a crash might undo a drop or a purge: the tombstone of a drop is not written yet
 * or could not be written, or a purge could not be written. */
bool volume_loses_drops(const struct volume *v);
void volume_settle_drops(struct volume *v, struct store_put *req);
/* Purges what store_purge() purges, on this volume, and writes `set` together with the purge. If
 * req->namespace_id is 0 and req->all is not set, only `set` is written. `set` is NULL if the store
 * never had more than one volume. */
void volume_purge(struct volume *v, struct store_purge *req, const struct volume_set *set);
/* Drops purged chunks for one step. Returns whether more steps are needed. */
bool volume_sweep(struct volume *v);
bool volume_is_sweeping(const struct volume *v);
unsigned volume_list(const struct volume *v, uint32_t namespace_id, uint64_t *cursor,
                     struct store_chunk *ret, unsigned max);
/* volume_set_watches() gives an open volume the store's list of watches, which must stay valid
 * until the volume is closed. volume_walk() calls each() for the visible chunks among `max_records`
 * records from record *i on, advances *i, and returns whether records are left. */
void volume_set_watches(struct volume *v, const struct list_node *watches);
bool volume_walk(const struct volume *v, uint32_t *i, unsigned max_records,
                 void (*each)(void *userdata, uint32_t namespace_id, const struct key *key,
                              uint32_t length),
                 void *userdata);
/* Acts like store_report_leaving() for this volume. */
void volume_report_leaving(struct volume *v,
                           void (*each)(void *userdata, const struct store_leaving *leaving),
                           void *userdata);
/* Returns the number of size classes in which a tenant has chunks. */
unsigned volume_classes_in_use(const struct volume *v, uint16_t tenant);
/* Acts like store_next() for this volume: visits up to `most` chunks, and up to `each_class` of a
 * size class. */
void volume_next(const struct volume *v, uint16_t tenant, unsigned most, unsigned each_class,
                 void (*each)(void *userdata, const struct store_leaving *leaving), void *userdata);
/* Returns whether the policy remembers evicting a chunk with this hash. */
bool volume_remembers(const struct volume *v, uint64_t hash);
/* Returns the result of evict_remembered_gap() for this hash. */
uint8_t volume_remembered_gap(const struct volume *v, uint64_t hash, struct evict_return *ret);
void volume_admit_all(struct volume *v, bool all);
/* Switches the eviction policy. Returns the result of evict_switch(), or 0 if the volume was not
 * opened. */
int volume_set_policy(struct volume *v, const char *policy);
void volume_set_scrub(struct volume *v, const struct store_scrub *scrub);
int volume_verify(struct volume *v, struct store_verify *req);
uint64_t volume_deadline_ns(const struct volume *v);
/* Sets a tenant's limit on this volume; 0 means none. Evicts the tenant's coldest chunks at once
 * until its usage is within the limit. Chunks with I/O on their slots are left to the next put. */
void volume_set_tenant_limit(struct volume *v, uint16_t tenant, uint64_t bytes);
uint64_t volume_tenant_bytes(const struct volume *v, uint16_t tenant);
uint64_t volume_tenant_retained(const struct volume *v,
                                uint16_t tenant); /* bytes of the slots of retained chunks */
void volume_get_stats(const struct volume *v, struct store_stats *ret);
/* Returns the eviction order, which the volume owns; NULL if the volume was not opened. */
const struct evict *volume_eviction(const struct volume *v);
uint32_t volume_save_order(const struct volume *v, uint32_t *cursor, uint32_t max_records,
                           struct evict_record *ret, uint32_t room);
uint32_t volume_restore_order(struct volume *v, const struct store_order *order);
const struct histogram *volume_evicted_ages(const struct volume *v);
/* Replaces the volume's counters by those of an earlier struct of the same directory, except the
 * figures of this startup's recovery. */
void volume_take_counts(struct volume *v, const struct volume *earlier);
const struct file_system *volume_file_system(const struct volume *v);
bool volume_is_full(const struct volume *v, uint64_t *ret_refusals);
