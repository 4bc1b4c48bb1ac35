/* SPDX-License-Identifier: Apache-2.0 */
/* The struct volume and the functions that the files of a volume share.
 * Private to these files. Everything runs on the loop thread.
 *
 *   run.c         iterate, stop, rest, close
 *   open.c        prepare, make, open
 *   join.c        what a volume must know of the others before it is used
 *   errors.c      errors and their budget; a full file system; a device that hangs
 *   superblock.c  what the superblock of a volume in use says of it
 *   namespaces.c  namespaces, as the store sees them; purges
 *   chunks.c      lookups, drops, lists; reading back, on request
 *   stats.c       numbers
 *   put.c get.c   a chunk on its way in, on its way out
 *   order.c       the eviction order over a restart
 *   alloc.c       slots: acquire, evict, move slabs between classes; removing chunks
 *   lend.c        data files and slots that clients read by themselves
 *   segment.c     data files: format ahead, prewrite, retire; what the limit allows
 *   handover.c    data files that pass from tenant to tenant
 *   identity.c    whether its directory and files are still its own
 *   ring.c        the ring's file: growth
 *   detach.c      data files that were lent before access rights changed
 *   losses.c      what startup expected and did not find; the sizes of the data files
 *   sequence.c    how far sequences may go before the superblock says so
 *   sync.c        durability: one pass of fdatasync for all waiters
 *   scrub.c       reading back: the background pass, and on request
 *   namespace.c   the list of namespaces; namespace-file.c: what of it is on disk
 *   recovery/     reads a volume at startup */
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/histogram.h"
#include "base/list.h"
#include "evict/evict.h"
#include "fair/turns.h"
#include "slab/slab.h"
#include "store/volume/dir.h"
#include "store/volume/format.h"
#include "store/volume/index.h"
#include "store/volume/namespace.h"
#include "store/volume/table.h"
#include "store/volume/volume.h"

struct scrub;

enum {
        STORE_SLACK_BYTES =
                64 *
                1024, /* directory and file system blocks that are accounted for nowhere else */
        STORE_MIN_LIMIT = 4 * 1024 * 1024,
        STORE_MIN_SEGMENT = 1024 * 1024,
        STORE_RING_MIN_PAGES = 64,
        STORE_RING_STEP_PAGES = 16, /* granularity of the ring's growth */
        STORE_RING_ENTRIES = 3,     /* ring entries per slot */
        STORE_RING_SHARE = 512,     /* the ring's share is 1/512 of the limit, and at most: */
        STORE_RING_SHARE_PAGES = 2048,
        STORE_SEGMENTS_PREFORMATTED = 2,
        STORE_PREFORMATTED_PART = 3, /* at most 1/3 of the limit, and STORE_PREFORMATTED_MAX */
        STORE_PREWRITE_BYTES = 1024 * 1024,
        STORE_MAX_PASSED = 1024, /* pinned chunks that a search for a victim passes over */
        STORE_EMPTIED = 64,      /* chunks that an iteration evicts beyond one for each put */
};

#define STORE_PREFORMATTED_MAX (UINT64_C(4) << 30)
/* After a file system was full, the volume waits this long before it asks for space again, because
 * other programs free space in small amounts. */
#define STORE_FULL_PAUSE_NS (UINT64_C(30) * 1000000000)

/* An entry that is queued for the table or being written to it. */
struct table_work {
        struct table_item item;
        enum { WORK_PUT, WORK_TOMBSTONE, WORK_HANDOVER } kind;
};

/* One data file, and the slab of the same number. */
struct segment {
        struct volume *volume;
        uint32_t number;
        int fd;           /* -1 if there is no file; the slab is then unused */
        uint64_t bytes;   /* payload bytes */
        uint64_t charged; /* against the limit */
        uint64_t
                prewritten; /* up to here it has been written once; `bytes`: wholly, or not to be */
        bool prewriting;    /* zeros are being written to the file; puts wait */
        int tenant;         /* owner of the bytes in the file; or SEGMENT_ZERO, SEGMENT_UNKNOWN */
        bool handing_over;  /* the hand-over to `tenant` is not on the disk yet; puts wait */
        bool to_wipe;       /* the hand-over wipes the file, which holds another tenant's bytes */
        bool replaced;      /* the hand-over has put another file in place of this one */
        bool unrecorded;    /* the first cut of the file waits for its record; see losses.c */
        int handover;       /* result of the last hand-over: 0 or -errno */
        uint32_t lent_as;   /* the number that clients know it by; 0: none of its chunks was lent */
        bool dirty, sync_wanted, syncing;
        uint64_t epoch; /* volume.seq when the slab was cut into slots of slot_bytes; 0 if never */
        uint64_t slot_bytes;
        uint32_t pinned, retained; /* chunks with a pin; chunks that clients have pinned */
        uint32_t loans;            /* loans of chunks in this segment */
        struct list_node waiting;  /* puts, for the write of zeros or the hand-over to end */
        struct list_node dirty_node;
        struct table_work record;     /* table entry that records the hand-over */
        struct list_node record_node; /* in records_waiting or records_flying */
        struct kio_request sync, handover_io;
};

/* The running identity check of identity.c, or the next one. */
enum { IDENTITY_SEGMENTS = 64 }; /* segments per check; the table is in each */
struct identity {
        struct kio_request io;
        bool checking;
        unsigned failed; /* checks in a row */
        uint32_t at;     /* first segment of the check */
        struct dir_open_file files[IDENTITY_SEGMENTS + 1];
        unsigned n;
        uint64_t checked_ns;
        char reason[STORE_ERROR_BYTES]; /* written by the worker during the check */
};

/* The segment that is being emptied. */
enum emptying_purpose { EMPTIED_FOR_CLASS, EMPTIED_FOR_RING };
#define EMPTYING_NONE UINT32_MAX
struct emptying {
        uint32_t slab; /* EMPTYING_NONE: there is none */
        uint32_t at;   /* slot at which the next step continues */
        bool keep_retained;
        bool is_done; /* the slab is empty, and kept for the ring */
        enum emptying_purpose purpose;
        uint64_t until_ns; /* how long chunks in use are waited for; 0: they are not yet */
        uint32_t left;     /* chunks that this iteration may still evict */
        bool is_short;     /* this iteration has refused to evict more */
};

enum { SEGMENT_ZERO = -1, SEGMENT_UNKNOWN = -2 };

/* A tenant's usage of a volume and its limit (0: no limit), both counted in whole slots. */
struct tenant_room {
        uint64_t bytes, limit;
        uint64_t retained;        /* the part of `bytes` that clients have pinned */
        struct turns_member puts; /* struct store_put, for a slot; unused: zero */
};

/* Puts that are answered together, and have payloads at the device. */
struct put_batch {
        uint64_t id; /* store_put.batch */
        uint32_t writing;
};
enum { VOLUME_BATCHES = 16 };

/* A data file that startup expected, and the chunks that were in the missing part. */
enum lost_kind { LOST_MISSING, LOST_SHORT, LOST_FOR_ROOM, LOST_FOR_RIGHTS };
struct lost_file {
        uint32_t segment;
        enum lost_kind kind;
        uint64_t chunks;
};

/* Losses that startup has found and that are not reported yet. */
struct losses {
        struct lost_file *files;
        unsigned n_files;
        uint64_t nameless;                /* chunks whose namespace is not known */
        uint32_t table_pages, table_kept; /* size of a short table: before, now */
        bool table_replaced;
        bool any;
        unsigned detached; /* files that were copied: no loss */
};

struct volume {
        struct store_params params;
        char *path, *policy;
        struct dir *dir;
        struct kio *io;
        struct volume_ops ops;
        unsigned number;     /* among the store's volumes */
        unsigned kio_volume; /* number of the volume in kio */
        bool open, stopping, bypassed;
        bool resting;     /* volume_rest() runs, and writes `namespaces` and the superblock */
        bool abandoned;   /* volume_abandon() was called, because the device hangs */
        char reason[192]; /* why the volume was bypassed */

        /* values of enum volume_mark; see superblock.c */
        unsigned marks_wanted, marks_flying;
        uint16_t mark_count;
        int count_result; /* result of the last write of mark_count */
        struct kio_request mark_io;

        uint64_t window_ns, window_errors; /* error budget: start of the window, errors in it */
        uint64_t names_errors;           /* errors of the namespaces files that have been charged */
        bool full;                       /* the file system refused the last request for space */
        uint64_t full_ns, full_refusals; /* time of the last refusal, number of refusals */
        uint64_t displaced;              /* chunks whose placement is another volume */
        const struct list_node *watches; /* struct store_watch, the store's; NULL: none */

        struct index *index;
        struct slabs *slabs;
        struct evict *evict;
        struct table *table;
        struct namespaces *namespaces;
        struct scrub *scrub;
        uint64_t seq; /* the last sequence given: to a chunk, a tombstone, a purge or a segment's
                         cut */
        uint64_t opened_seq; /* the last sequence given before volume_open() */

        /* sequence.c */
        uint64_t seq_ceiling, page_ceiling; /* ceilings in the superblock on the disk */
        uint64_t next_seq_ceiling,
                next_page_ceiling; /* ceilings in the superblock write in flight */
        bool raising;
        uint64_t raise_again_at; /* after a failure: from this sequence on */

        /* segment.c */
        struct segment **segments;
        uint32_t n_segments; /* including retired ones; slabs_added() of them can be used */
        uint32_t n_retired;
        bool ring_is_short; /* no new segments: the limit has no room for a ring for their slots */
        uint64_t segment_bytes; /* size of the next segment */
        uint64_t slab_bytes;    /* size of the largest slab */
        uint64_t max_chunk;
        uint64_t segments_charged;
        uint64_t no_room_for; /* the limit has none for another segment of slots of at least this
                                 size */
        uint8_t space_epoch;  /* data files removed for lack of room, modulo 256 */
        unsigned given_up_in_vain;  /* files removed for room since the last write */
        uint64_t give_up_after_ns;  /* time of the next removal, after too many of these */
        uint8_t table_tries;        /* retries of the table write in flight, after removals */
        uint64_t no_room_until_ns;  /* the file system was full: no new files before this */
        struct segment *formatting; /* being made; NULL: none is */
        struct kio_request format_io, prewrite_io, grow_io;
        struct segment *prewriting;
        uint64_t quiet_from_ns; /* when prewriting may go on; 0: the volume is in use */
        void *zeros;
        struct tenant_room *tenants; /* by number, for all possible tenants; touched when used */
        uint64_t cut_slots;          /* in segments that have a class */
        uint64_t used_slots;
        uint64_t pins, lent_pins; /* refs of all chunks; the number of them that are loans */
        uint32_t lent_segments;   /* segments with loans */
        uint32_t sample_phase, compare_at; /* state of the sampling that compares slabs */
        struct emptying emptying;
        /* Evictions of retained chunks since a search found nothing else of the tenant to evict; 0
         * if the search must run. */
        uint32_t since_no_other[SLAB_MAX_CLASSES];
        uint32_t class_evictions[SLAB_MAX_CLASSES]; /* since its slabs were last compared with
                                                       others' */

        int table_fd;
        uint64_t table_charged;
        uint32_t growing_pages; /* size to which the ring's file is growing; 0 if it is not */
        uint64_t growth_zeroed; /* bytes of the file that hold zeros; past its end if growth has not
                                   begun */
        uint64_t charged_if_growth_fails; /* size to charge for the file if the growth fails */
        bool no_ring_share; /* space for the ring's share was refused; it is not requested again
                               before a restart */
        bool growth_waiting, growth_flying; /* the growth waits for the next table sync, or for the
                                               one in flight */
        bool growth_done;                   /* the growth waits until no table write is in flight */

        /* sync.c */
        struct list_node dirty_segments;
        struct list_node sync_waiting, sync_flying;       /* struct store_put */
        struct list_node records_waiting, records_flying; /* struct segment: of hand-overs */
        unsigned sync_outstanding;
        bool sync_failed;    /* a sync failed once; later results are not trusted */
        unsigned sync_marks; /* marks that the failed sync requested */
        struct kio_request table_sync_io, names_sync_io;
        bool names_dirty; /* files were made since the directory was synced */

        struct kio_request table_io;
        bool table_due;            /* queued entries are to be written without waiting for more */
        uint64_t table_held_bytes; /* payload bytes of the queued entries that are held back
                                    */
        struct put_batch batches[VOLUME_BATCHES];
        int table_error; /* error of the failed write, while the superblock mark for it is being
                            written */
        uint32_t void_position, void_pages;        /* pages of the failed write */
        struct turns slot_waiting;                 /* struct tenant_room.puts, tenants in turn */
        uint64_t n_slot_waiting;                   /* puts that wait for a slot */
        struct list_node gets_flying, puts_flying; /* at the device; puts until they are in the
                                                      table */
        struct list_node done_puts, done_gets;     /* requests whose complete() is to be called */

        struct losses losses;
        uint32_t void_below; /* segments of lower numbers may have entries in the table that are
                                void only because of the recorded sizes */
        struct identity identity;
        struct kio_request nudge_io; /* does nothing, and completes */
        bool nudged;

        uint64_t requests;                /* callers' requests that are not completed */
        uint64_t operations;              /* the volume's own operations that are not completed */
        uint64_t tombstones;              /* queued */
        uint64_t drops_begun, drops_over; /* drops requested; drops whose tombstone was written or
                                             has failed, in table order */
        bool drops_lost;         /* a tombstone could not be written; only after a bypass */
        struct list_node sweeps; /* struct store_purge, in order: purge.c */
        uint32_t n_sweeps, sweep_at;
        uint32_t expire_at;            /* the record that the walk for expired chunks visits next */
        struct store_purge *sweep_all; /* purge that counts the chunks of namespaces without a sweep
                                          of their own */
        bool evicting;                 /* a chunk leaves to make room, in chunk_notify() */
        uint64_t evicted; /* chunks removed from the index without a tombstone; recovery may find
                             them */
        struct list_node drops_waiting; /* struct store_put, in order */

        uint64_t payload_bytes, chunks;
        struct histogram evicted_ages; /* nanoseconds since their last touch */
        struct store_stats stats; /* counters only; volume_get_stats() computes the other fields */
};

/* Returns whether `r` means that the device lost or cannot read data, as opposed to a shortage of
 * memory or queue entries. */
static inline bool volume_is_loss(int64_t r)
{
        return r == -EIO || r == -ENODATA || r == -EILSEQ || r == -EREMOTEIO || r == -ENXIO ||
               r == -EBADMSG;
}

static inline bool volume_is_no_space(int64_t r)
{
        return r == -ENOSPC || r == -EDQUOT || r == -EFBIG;
}

static inline struct chunk *volume_chunk_at(const struct volume *v, uint32_t i)
{
        return index_chunk(v->index, i);
}

/* Returns the namespace of a linked record. */
static inline uint32_t chunk_namespace(const struct volume *v, const struct chunk *c)
{
        return index_namespace_of(v->index, c);
}

/* Returns the ref of record `i`. The generation holds the low bits of the put's sequence, which
 * tell successive chunks in one record apart. */
static inline struct store_ref volume_ref(const struct volume *v, uint32_t i)
{
        return (struct store_ref){
                .index = i,
                .generation = ((uint32_t)index_chunk(v->index, i)->seq &
                               ((1u << VOLUME_GENERATION_BITS) - 1)) |
                              v->number << VOLUME_GENERATION_BITS,
        };
}

/* Returns the chunk that `ref` names, or NULL if it has left its record. */
static inline struct chunk *volume_chunk_of(const struct volume *v, struct store_ref ref)
{
        return ref.index < index_high(v->index) &&
                               volume_ref(v, ref.index).generation == ref.generation
                       ? volume_chunk_at(v, ref.index)
                       : NULL;
}

/* run.c */
/* Submits an empty operation if the volume is stopping, so that its completion runs the volume. A
 * request that arrives after the stop needs this: complete() must not be called from within the
 * request, and no other event may follow. */
void volume_nudge(struct volume *v);

/* identity.c */
/* Starts an identity check if one is due. */
void identity_tick(struct volume *v);
/* Checks everything, while there is no I/O. Returns whether all is its own, else v->identity.reason
 * says what is not. Blocks. */
bool identity_check_now(struct volume *v);

/* losses.c */
/* Writes the sizes of the data files into the superblock in memory, unless a loss is still to be
 * reported: the old sizes show it. */
void sizes_update(struct volume *v);
/* Returns the pages of a data file in which the superblock expects chunks. */
uint32_t sizes_pages(const struct disk_superblock *sb, uint32_t segment);
/* Returns whether the superblock has sizes at all. */
bool sizes_are_known(const struct disk_superblock *sb);

/* detach.c */
/* Puts a copy in the place of a data file if another process has it open and the access rights are
 * not those of the last startup. 1: it did. -errno: it could not, and the file must not be used.
 * Before there is any I/O. Blocks. */
int segment_detach(struct segment *seg);

/* errors.c */
/* Notes a failed operation, which counts against the volume's error budget if the device is to
 * blame. A read-only file system bypasses the volume at once, and a full one is noted. `what` is
 * part of the reason. */
void volume_note_error(struct volume *v, const char *what, int64_t r);
/* Returns whether the chunk was certainly intact on the disk: this process wrote it from its own
 * memory, or has verified it. A client may change its memory while a direct put reads it, and a
 * power loss may tear chunks of an earlier process; neither is a fault of the device. */
bool volume_was_whole(const struct chunk *c);
/* Counts a chunk against the error budget that was once intact and no longer matches its checksum.
 * The chunk has been dropped. */
void volume_note_mismatch(struct volume *v, const char *what);
/* Records whether the file system granted or refused space, and reports a change to the store. */
void volume_note_full(struct volume *v, bool full);
/* Checks that the file system keeps its reserve of free space if the volume grows by `bytes`.
 * Returns 0 or -ENOSPC. Any thread. */
int volume_check_space(const struct volume *v, uint64_t bytes);

/* superblock.c */
enum volume_mark {
        MARK_UNSYNCED = 1,  /* a sync has failed */
        MARK_AWAY = 2,      /* the other volumes continue without this one */
        MARK_COUNT = 4,     /* mark_count: numbers that the set has given out */
        MARK_VOID = 8,      /* void_position and void_pages */
        MARK_CEILINGS = 16, /* sequence.c */
        MARK_DOUBT = 32,    /* a sync of data has failed */
        MARK_SIZES = 64,    /* losses.c */
};
void mark_want(struct volume *v, unsigned marks);

/* chunks.c */
struct store_chunk volume_describe(const struct volume *v, const struct chunk *c);

/* purge.c */
/* Returns whether record `i` holds a purged chunk that the sweep has not dropped yet. */
bool sweep_is_dead(const struct volume *v, uint32_t i);
/* Drops record `i` if its chunk was purged. Returns whether the chunk stays in the index. */
bool sweep_is_kept(struct volume *v, uint32_t i);
/* Starts dropping the chunks that `req` purges from the index. The namespaces must already have the
 * purge's sequence. `req` stays the caller's and is completed after the sweep. */
void sweep_begin(struct volume *v, struct store_purge *req);

/* put.c */
void puts_abandon(struct volume *v);
void gets_abandon(struct volume *v); /* get.c */
extern const struct table_ops volume_table_ops;
void put_serve_waiting(struct volume *v);
void put_resume(struct volume *v, struct segment *seg);
void put_finish(struct volume *v, struct store_put *req, int result);
/* Continues after the superblock write that declares the pages of a failed table write void; `r` is
 * the result of that write. */
void put_table_is_void(struct volume *v, int r);
/* Queues the entry and lets the next table write begin without waiting for more entries. */
void table_add(struct volume *v, struct table_item *item);
void table_kick(struct volume *v);
/* Makes the table's entry of a chunk. Its parent is the one that the eviction policy knows, if
 * any. */
void entry_from_chunk(const struct volume *v, uint32_t i, struct disk_entry *ret);
/* Reports to the watches, if there are any, that a chunk has become visible or has been removed. */
void chunk_notify(const struct volume *v, uint32_t i, const struct namespace *ns, bool is_there);
/* Makes a chunk visible to lookups, because its entry is in the table, and counts it. */
void chunk_publish(struct volume *v, uint32_t i);

/* drop.c */
/* Queues a tombstone for the key and counts it as a drop. Returns 0, or -ENOMEM without effect. */
int tombstone_queue(struct volume *v, uint32_t namespace_id, const struct key *key);
/* Completes the requests that wait for drops whose tombstones have been written. */
void drops_settle(struct volume *v);
/* Reports and drops a chunk that failed a read-back. `error`: 0 if the checksum does not match,
 * -errno if the chunk cannot be read. */
void chunk_condemn(struct volume *v, uint32_t i, int error);
/* Fill in the entry of a tombstone, and handle the result of its write. */
void tombstone_entry(const struct table_work *work, struct disk_entry *ret);
void tombstone_written(struct volume *v, struct table_work *work, int r);

/* alloc.c */
enum { ROOM_WAIT = 100 };
/* Gives the chunk a slot of its tenant's class. Returns 0; ROOM_WAIT while a file is being made, or
 * a segment is being emptied; STORE_FULL; STORE_TOO_LARGE if the tenant's share cannot hold the
 * chunk; or -errno. */
int room_acquire(struct volume *v, uint32_t chunk, unsigned class);
bool room_evict_any(struct volume *v, unsigned class);
/* Empties the least used slab of any class that has no I/O in flight, for the ring. Returns the
 * number of the slab once it is empty, in a later call if it has many chunks, and else UINT32_MAX.
 */
uint32_t room_take_slab(struct volume *v);
/* Empties a slab whose file occupies the disk, at once: preferably all of it, and without chunks
 * that clients have pinned. */
uint32_t room_take_occupied_slab(struct volume *v);
/* Charges the tenant for a chunk that has got its slot. */
void room_charge(struct volume *v, const struct chunk *c);
/* Returns the slot of a chunk that stays in the index without one. */
void room_return(struct volume *v, struct chunk *c);
/* Removes a chunk from the index and the eviction order at once. The slot and the record are freed
 * when the last ref ends. */
void chunk_remove(struct volume *v, uint32_t i);
/* Removes a chunk as its eviction does: its policy remembers it. */
void chunk_evict(struct volume *v, uint32_t i);
/* Sets or clears retention of a chunk that has a slot. Retained chunks are evicted last. */
void chunk_retain(struct volume *v, uint32_t i, bool retained);
void chunk_pin(struct volume *v, uint32_t i);
void chunk_unpin(struct volume *v, uint32_t i);
uint64_t chunk_offset(const struct volume *v, const struct chunk *c);
/* Returns the kio affinity of I/O on the chunk's slot. Adjacent slots share a worker, which may
 * merge their requests; successive ranges of slots alternate between workers. */
unsigned chunk_affinity(const struct volume *v, const struct chunk *c);

/* emptying.c */
void emptying_init(struct volume *v);
bool emptying_is_active(const struct volume *v);
/* Begins to empty a slab of a class, none of whose chunks is in use. With `keep_retained`, a chunk
 * that a client pins meanwhile ends that. Returns whether it is empty already. */
bool emptying_begin(struct volume *v, uint32_t slab, bool keep_retained,
                    enum emptying_purpose purpose);
/* Returns the slab that has been emptied for the ring, and then has no class, or EMPTYING_NONE. */
uint32_t emptying_take(struct volume *v);
/* Empties a slab in one step, because a write has failed that cannot wait. */
void emptying_all(struct volume *v, uint32_t slab);
/* Returns whether another chunk may leave in this iteration, and counts it. */
bool emptying_may_evict(struct volume *v);
/* Begins an iteration, in which the next chunks leave. */
void emptying_iterate(struct volume *v);
uint64_t emptying_deadline_ns(const struct volume *v);

/* segment.c */
struct segment *segment_new(struct volume *v, uint32_t number);
struct segment *segment_free(struct segment *seg);
uint64_t segment_bytes_for(uint64_t limit, uint64_t wished);
uint64_t volume_charged(const struct volume *v);
/* Returns the number of data files that exist or can be made. The limit alone does not determine
 * it, because earlier limits may have cut some files short. */
uint64_t segments_max(const struct volume *v);
uint64_t segments_next_bytes(const struct volume *v);
uint32_t ring_pages_for(uint64_t slots);
/* Called when a slab has been cut for a size and a tenant. A slab that may have belonged to another
 * tenant is handed over before anything is written to it: the hand-over is recorded in the table,
 * the slab is filled with zeros, and both are synced. A slab that may have void entries of an
 * earlier cut is only recorded. */
void segment_note_cut(struct volume *v, uint32_t slab);
/* Returns the monotonic time at which prewriting continues if the volume stays quiet; 0 if none. */
uint64_t segments_deadline_ns(const struct volume *v);
/* Lets puts use the next segment, though it is not prewritten yet. */
bool segments_add_next(struct volume *v);
/* Starts making a segment, if none is being made and the limit allows one that holds `slot_bytes`.
 */
bool segments_format_next(struct volume *v, uint64_t slot_bytes);
/* Makes a segment and waits for it; only for volume_open(). */
int segments_format_now(struct volume *v);
void segments_iterate(struct volume *v);
/* Takes an empty slab out of use permanently. */
void segment_retire(struct volume *v, uint32_t slab);

/* space.c */
/* Removes the coldest data file, because the file system has refused a write for lack of room. A
 * caller whose write began before the latest removal should only try again: `epoch` is
 * v->space_epoch as of then. Returns whether trying again makes sense. */
bool space_make(struct volume *v, uint8_t epoch);

/* handover.c */
/* Starts the hand-over of a newly cut segment to `tenant`; it may hold another tenant's bytes, or
 * have void entries in the table. */
void handover_begin(struct volume *v, struct segment *seg, int tenant);
/* Fill in the table entry of a hand-over, and handle the results of its write and sync. */
void handover_entry(const struct segment *seg, struct disk_entry *ret);
void handover_written(struct segment *seg, int r);
void handover_synced(struct segment *seg, int r);

/* lend.c */
/* Returns 1 if another process has the file open, 0 if none has, and -errno if the file system
 * cannot tell. Any thread. */
int file_is_shared(int fd);

/* ring.c */
bool ring_is_growing(const struct volume *v);
void ring_iterate(struct volume *v);
/* Continues the growth of the ring after the table sync that covers it; `r` is the sync's result.
 */
void ring_growth_synced(struct volume *v, int r);
/* Lets the table use the grown pages. No table write may be in flight. */
void ring_use_growth(struct volume *v);

/* sequence.c */
/* Sets the sequence ceilings of the superblock that is about to be written. `done` reserves none,
 * because no more sequences are given before the next startup. */
void sequence_reserve(struct volume *v, bool done);
/* Adopts the ceilings after sequence_reserve()'s superblock has been written. */
void sequence_reserved(struct volume *v);
/* Handles the result of a superblock write that MARK_CEILINGS requested. */
void sequence_marked(struct volume *v, int r);
/* Raises the ceilings in time. A volume that cannot is bypassed before it reaches them. */
void sequence_iterate(struct volume *v);

/* sync.c */
void sync_iterate(struct volume *v);
void sync_mark_dirty(struct segment *seg);
void sync_want(struct segment *seg);
void sync_want_all(struct volume *v);

/* recovery.c */
int recovery_run(struct volume *v, char ret_error[static STORE_ERROR_BYTES]);
