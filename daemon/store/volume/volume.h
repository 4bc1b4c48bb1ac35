/* SPDX-License-Identifier: Apache-2.0 */
/* One volume of the store: a directory with its superblock, namespaces, table ring and data files,
 * and the index of what lies in it. The files that store/internal.h lists are the only callers and
 * add what several of them are together; each function does for one volume what store.h says its
 * namesake does for all.
 *
 * Opening is in steps, since volumes must agree: prepare all; make the empty ones, or check that
 * the others are of one set; share out the limit; open all; tell each what the others know (join).
 */
#pragma once

#include "store/volume/format.h"
#include "store/volume/types.h"

struct volume;

/* What a volume asks and tells its store. */
struct volume_ops {
        /* A put is over: completes it, or tries elsewhere. */
        void (*put_done)(void *userdata, struct store_put *req);
        /* It has just left itself aside. Called from anywhere: nothing may be completed or
         * submitted in it. */
        void (*bypassed)(void *userdata, struct volume *v);
        /* Its table may hold what no record knows of, and that could not be marked. The same. */
        void (*doubtful)(void *userdata, struct volume *v);
        /* The volume's file system has become full or has room again. Called as bypassed() is. */
        void (*full)(void *userdata, struct volume *v, bool full);
        /* The volume has removed a data file to make room. Called as bypassed() is. */
        void (*gave_up)(void *userdata, struct volume *v, uint32_t segment, uint64_t chunks);
        /* The volume is being closed, and its files are no longer its own. */
        void (*astray)(void *userdata, struct volume *v, const char *reason);
        /* The volume a chunk is looked for first; NULL: there is only one. Any thread. */
        unsigned (*placement)(const void *userdata, uint32_t namespace_id, const struct key *key);
        void *userdata;
};

struct volume_params {
        const struct store_params *store; /* limit and entries apart */
        const char *path;
        unsigned number; /* among the store's volumes: part of each store_ref */
        int lock_fd;     /* -1, or one that is held from before */
        const struct volume_ops *ops;
};

enum { VOLUME_GENERATION_BITS = 28 };

/* A place in the walk: a record's of a volume. */
enum { STORE_WALK_RECORD_BITS = 32 };
static inline uint64_t store_walk_at(unsigned volume, uint32_t record)
{
        return (uint64_t)volume << STORE_WALK_RECORD_BITS | record;
}

/* Bound of the index of a store of that size, where none is configured. */
static inline uint64_t volume_auto_entries(uint64_t limit)
{
        return limit / (256 * 1024) > UINT64_C(1) << 20 ? limit / (256 * 1024) : UINT64_C(1) << 20;
}

int volume_read_format(const char *path, struct store_format *ret, char ret_error[static 512]);
int volume_prepare(struct volume **ret, const struct volume_params *params,
                   char ret_error[static 512]);
int volume_lock_fd(const struct volume *v);
int volume_probe_fd(const struct volume *v);
/* Empty: volume_make() is to come. */
bool volume_is_fresh(const struct volume *v);
int volume_make(struct volume *v, const uint8_t *set, unsigned index, unsigned count,
                char ret_error[static 512]);
/* It failed, but may be found made: its number is to be given to no other. */
bool volume_is_half_made(const struct volume *v);
/* As read or made; volume_open() writes it, and the functions below. */
struct disk_superblock *volume_superblock(struct volume *v);
int volume_write_superblock(struct volume *v);
/* Of a volume that is open, in the superblock: others go on without it; so many numbers have been
 * given out. Written soon, if that can be. */
void volume_mark_away(struct volume *v);
void volume_mark_count(struct volume *v, unsigned count);
/* 0: it is on stable storage; VOLUME_MARK_WAITS; -errno. */
enum { VOLUME_MARK_WAITS = 1 };
int volume_count_is_marked(const struct volume *v);
/* Before volume_open(): what an earlier volume of the volume could not write of its table, or not
 * sync of its data. */
void volume_take_marks(struct volume *v, const struct volume *earlier);
/* Size of the file system it lies in; which one that is. */
int volume_space(const struct volume *v, uint64_t *ret_bytes, uint64_t *ret_device);
void volume_set_limit(struct volume *v, uint64_t limit, uint64_t entries);

/* Blocks, and may run on any thread as long as no other thread uses the volume. */
int volume_open(struct volume *v, struct kio *io, char ret_error[static 512]);

bool volume_is_open(const struct volume *v);
/* Returns the number of data files that opening it copied, as access rights had changed. */
unsigned volume_detached_files(const struct volume *v);
/* Reports, a sentence each, what opening it did not find, and forgets that. The next opening finds
 * what is left. */
void volume_report_losses(struct volume *v, void (*each)(void *userdata, const char *text),
                          void *userdata);

/* What a volume must know before it is used with others. */
struct volume_join {
        const struct store_namespace *namespaces; /* of all */
        unsigned n_namespaces;
        uint32_t next_id;
        bool in_set;
        struct volume_set set; /* that it is to know of */
        bool witnessed;        /* by a volume that was never offline */
        bool empty;            /* it has missed something */
};
/* Blocks, as volume_open(). *ret_emptied: it had missed a purge. */
int volume_join(struct volume *v, const struct volume_join *join, bool *ret_emptied,
                char ret_error[static 512]);
/* It has joined, and so have all that are started with it: its superblock does not say any more
 * that it is offline. Blocks. */
int volume_is_back(struct volume *v, char ret_error[static 512]);
/* Does it contradict the list? -EUCLEAN with a text. */
int volume_check_namespaces(const struct volume *v, const struct volume_join *join,
                            char ret_error[static 512]);
uint32_t volume_next_id(const struct volume *v);
const struct volume_set *volume_set(const struct volume *v);

void volume_stop(struct volume *v);
/* A caller's or an own operation's completion is over. Once the store stops, no caller calls
 * volume_iterate(). */
void volume_progress(struct volume *v);
uint64_t volume_pending(const struct volume *v);
struct volume *volume_close(struct volume *v);
void volume_iterate(struct volume *v);
uint64_t volume_max_chunk(const struct volume *v);

/* Leaves it aside, once; tells ops->bypassed. */
void volume_bypass(struct volume *v, const char *reason);
const char *volume_reason(const struct volume *v);
/* It is bypassed and its device hangs: answers all its waiters, but does not release what the
 * device has. */
void volume_abandon(struct volume *v);
/* Puts, gets and syncs that are not completed. */
bool volume_is_quiet(const struct volume *v);
/* All to stable storage. Blocks; the volume is quiet and bypassed. */
int volume_rest(struct volume *v, bool away);

void volume_namespace_open(struct volume *v, struct store_namespace_open *req);
const struct store_namespace *volume_namespace_get(const struct volume *v, uint32_t id);
const struct store_namespace *volume_namespace_at(const struct volume *v, unsigned i);
/* Has it neither chunks nor puts in flight? One that the volume does not have is empty. */
bool volume_namespace_is_empty(const struct volume *v, uint32_t id);
/* Takes req->namespace_id, which is empty, off the list. `set`: as of volume_purge(). */
void volume_namespace_remove(struct volume *v, struct store_purge *req,
                             const struct volume_set *set);

int volume_find(const struct volume *v, uint32_t namespace_id, const struct key *key, uint64_t hash,
                struct store_ref *ret_ref, struct store_chunk *ret_chunk);
/* As of store_expire(), of what volume_find() found; and a step of the walk: false: it has come by
 * all, and begins anew. */
bool volume_expire(struct volume *v, struct store_ref ref, uint64_t born_after_ms);
bool volume_expire_step(struct volume *v, uint64_t now_ms, uint64_t *expired);
uint32_t volume_records(const struct volume *v);
/* A put of it may be in flight. */
bool volume_has(const struct volume *v, uint32_t namespace_id, const struct key *key,
                uint64_t hash);
/* Chunks whose placement is elsewhere, puts in flight included. */
uint64_t volume_displaced(const struct volume *v);
void volume_touch(struct volume *v, struct store_ref ref, uint32_t use);
int volume_turn(const struct volume *v, struct store_ref ref, uint32_t use);
bool volume_explain(const struct volume *v, struct store_ref ref, struct evict_standing *ret);
unsigned volume_cost(const struct volume *v, struct store_ref ref);
bool volume_hint(struct volume *v, struct store_ref ref, enum evict_hint hint);
/* 0, STORE_MISS: the ref is stale. */
int volume_retain(struct volume *v, struct store_ref ref, bool retained);
/* And whose it is, and its length; zeros of a stale one. */
bool volume_is_retained(const struct volume *v, struct store_ref ref, uint16_t *ret_tenant,
                        uint32_t *ret_bytes);
/* `parent`: NULL if it is not in this volume. */
void volume_chain(struct volume *v, struct store_ref ref, const struct store_ref *parent,
                  uint32_t use, unsigned turn, bool is_end);
/* As those of the store. */
void volume_warm(const struct volume *v, uint64_t hash, unsigned step);
void volume_warm_touch(const struct volume *v, struct store_ref ref, unsigned step);
int volume_put(struct volume *v, struct store_put *req);
void volume_put_checksum(struct store_put *req, int r, uint32_t crc);
/* Once a second: entries that wait for others of their batch do so no longer. */
void volume_tick(struct volume *v);
void volume_sync(struct volume *v, struct store_put *req);
/* Was it found at startup, after a process whose sync of data had failed? NULL: was anything? */
bool volume_is_in_doubt(const struct volume *v, const struct store_ref *ref);
/* Is it what volume_find() would find now? */
bool volume_is_at(const struct volume *v, struct store_ref ref, uint32_t namespace_id,
                  const struct key *key);
/* Of what volume_find() finds at req->ref. */
int volume_get(struct volume *v, struct store_get *req);
/* 0: pinned until volume_give_back(). STORE_MISS, STORE_UNVERIFIED, STORE_NOT_LENT, STORE_FULL.
 * *files: the last number that was given to a data file. */
int volume_lend(struct volume *v, struct store_ref ref, uint32_t *files, struct store_extent *ret);
/* Was it there, and what was put, all the time? */
bool volume_give_back(struct volume *v, struct store_ref ref);
/* 0: complete() will follow. STORE_STALE: there is no such file, or not of this tenant. */
int volume_open_lent(struct volume *v, struct store_lent_file *req);
bool volume_is_reading(const struct volume *v, struct store_ref ref);
/* STORE_MISS: it was not found; with `even_if_missing` nothing older of the key comes back all the
 * same. -ENOMEM: nothing is done. */
int volume_drop(struct volume *v, uint32_t namespace_id, const struct key *key, uint64_t hash,
                bool even_if_missing);
/* Could recovery find it? False if certainly not. */
bool volume_may_have(const struct volume *v, uint32_t namespace_id, const struct key *key,
                     uint64_t hash);
/* Was something dropped whose tombstone is not written, or never will be? */
bool volume_loses_drops(const struct volume *v);
void volume_settle_drops(struct volume *v, struct store_put *req);
/* `set`: with this one; NULL in a store of one volume. */
void volume_purge(struct volume *v, struct store_purge *req, const struct volume_set *set);
/* One step of dropping what was purged. True: there is more to do. */
bool volume_sweep(struct volume *v);
bool volume_is_sweeping(const struct volume *v);
unsigned volume_list(const struct volume *v, uint32_t namespace_id, uint64_t *cursor,
                     struct store_chunk *ret, unsigned max);
/* As store_set_watch(); of a volume that is open, and as store_walk() from record *i on. False: it
 * has no more. */
void volume_set_watch(struct volume *v, const struct store_watch *watch);
bool volume_walk(const struct volume *v, uint32_t *i, unsigned looks,
                 void (*each)(void *userdata, uint32_t namespace_id, const struct key *key),
                 void *userdata);
/* As store_report_leaving(). */
void volume_report_leaving(struct volume *v,
                           void (*each)(void *userdata, const struct store_leaving *leaving),
                           void *userdata);
/* Was the chunk of this hash evicted, as far as the policy remembers? */
bool volume_remembers(const struct volume *v, uint64_t hash);
/* As evict_switch(). */
int volume_set_policy(struct volume *v, const char *policy);
void volume_set_scrub(struct volume *v, const struct store_scrub *scrub);
int volume_verify(struct volume *v, struct store_verify *req);
uint64_t volume_deadline_ns(const struct volume *v);
/* 0: none. Its coldest chunks go at once until it is kept. */
void volume_set_tenant_limit(struct volume *v, uint16_t tenant, uint64_t bytes);
uint64_t volume_tenant_bytes(const struct volume *v, uint16_t tenant);
uint64_t volume_tenant_retained(const struct volume *v, uint16_t tenant); /* likewise */
void volume_get_stats(const struct volume *v, struct store_stats *ret);
/* NULL: it was not opened. */
const struct evict *volume_eviction(const struct volume *v);
uint32_t volume_save_order(const struct volume *v, uint32_t *cursor, uint32_t looks,
                           struct evict_record *ret, uint32_t room);
uint32_t volume_restore_order(struct volume *v, const struct store_order *order);
const struct histogram *volume_evicted_ages(const struct volume *v);
/* What an earlier volume of this volume has counted. */
void volume_take_counts(struct volume *v, const struct volume *earlier);
const struct file_system *volume_file_system(const struct volume *v);
bool volume_is_full(const struct volume *v, uint64_t *ret_refusals);
