/* SPDX-License-Identifier: Apache-2.0 */
/* The struct volume and the functions that the files of a volume share.
 * Private to these files. Everything runs on the loop thread unless marked otherwise.
 *
 *   run.c         iterate, stop, rest and close a volume
 *   open.c        prepare, make and open a volume
 *   join.c        give an opened volume the state of the set before it is used
 *   errors.c      device errors and their budget; a full file system; a device that hangs
 *   superblock.c  marks in the superblock of a volume in use
 *   namespaces.c  the store's requests for namespaces and purges
 *   chunks.c      lookups, drops, lists; verification on request
 *   drop.c        tombstones of dropped chunks
 *   purge.c       removal of purged chunks from the index, in steps
 *   expire.c      removal of expired chunks from the index, in steps
 *   stats.c       statistics
 *   put.c get.c   puts and gets
 *   entries.c     writes the queued entries to the table
 *   order.c       saves and restores the eviction order over a restart
 *   alloc.c       slots: acquire, evict, move slabs between classes; removes chunks
 *   emptying.c    empties a segment in steps
 *   lend.c        data files and slots that clients read directly
 *   leaving.c     lists the chunks that will be evicted next
 *   segment.c     data files: make ahead, prewrite, retire; the limit
 *   space.c       removes data files when a file system refuses a write for lack of room
 *   handover.c    data files that pass from one tenant to another
 *   identity.c    checks that directory and files were not removed or replaced
 *   ring.c        growth of the table ring's file
 *   detach.c      data files that were lent before access rights changed
 *   losses.c      chunks and files that startup expects but does not find; sizes of the data files
 *   sequence.c    ceilings of the sequences, in the superblock
 *   sync.c        durability: one pass of fdatasync for all waiting requests
 *   scrub.c       reads chunks back, in the background and on request
 *   namespace.c   the list of namespaces; namespace-file.c writes it to its two files
 *   recovery/     reads a volume at startup
 *
 * Terms. A *sequence* is a number from one rising counter, which each put, drop, purge and cut
 * takes. A segment is *cut* when it is divided into slots of one size; its *epoch* is the sequence
 * of the cut. A segment that passes to another tenant is *handed over* (handover.c). A file is
 * *prewritten* while it is filled with zeros before its first use. A chunk is *pinned* while
 * references to it exist, and *retained* while a client has pinned it. The *ring* is the table's
 * file, whose pages table.c writes. A *mark* is a fact in the superblock of a volume in use. The
 * *set* is all volumes that have formed one store. */
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
        STORE_SLACK_BYTES = 64 * 1024, /* bytes charged for the directory and for blocks of the file
                                          system that no file accounts for */
        STORE_MIN_LIMIT = 4 * 1024 * 1024, /* smallest limit of a volume, in bytes */
        STORE_MIN_SEGMENT = 1024 * 1024,   /* smallest data file, in bytes */
        STORE_MOST_IN_VAIN = 4,            /* most data files removed for a write that still has no
                                              room; startup does not count empty ones */
        STORE_RING_MIN_PAGES = 64,         /* smallest size of the ring, in pages */
        STORE_RING_STEP_PAGES = 16,        /* the ring grows in multiples of this number of pages */
        STORE_RING_ENTRIES = 3,            /* entries that the ring has room for, per slot */
        STORE_RING_SHARE = 512,        /* the ring gets 1/512 of the limit if there is room, ... */
        STORE_RING_SHARE_PAGES = 2048, /* ... but no more than this number of pages */
        STORE_SEGMENTS_PREFORMATTED =
                2, /* least number of segments without chunks that are kept ready */
        STORE_PREFORMATTED_PART = 3, /* segments without chunks take at most 1/3 of the limit, and
                                        at most STORE_PREFORMATTED_MAX bytes */
        STORE_PREWRITE_BYTES = 1024 * 1024, /* bytes of zeros in one write */
        STORE_MAX_PASSED = 1024, /* most pinned chunks that one search for a victim passes over */
        STORE_EMPTIED =
                64, /* most chunks that an iteration evicts in addition to one for each put */
};

#define STORE_PREFORMATTED_MAX (UINT64_C(4) << 30)
/* Pause after the file system was full, before the volume requests space again; other programs
 * mostly free space in small amounts. */
#define STORE_FULL_PAUSE_NS (UINT64_C(30) * 1000000000)

/* A table entry that is queued or being written. */
struct table_work {
        struct table_item item;
        enum { WORK_PUT, WORK_TOMBSTONE, WORK_HANDOVER } kind;
};

/* One data file, and the slab of the same number. */
struct segment {
        struct volume *volume;
        uint32_t number;
        int fd;              /* -1 if the file does not exist; the slab is then unused */
        uint64_t bytes;      /* size of the file in bytes, all of it payload */
        uint64_t charged;    /* bytes of the limit that the file takes */
        uint64_t prewritten; /* the bytes before this offset have been written once; equal to
                                `bytes` if the file is complete, or will not be prewritten */
        bool prewriting;     /* a write of zeros to the file is in flight; puts into it wait */
        int tenant; /* tenant whose bytes are in the file; SEGMENT_ZERO if the file holds zeros
                       only; SEGMENT_UNKNOWN if the file may hold bytes of any tenant */
        bool handing_over; /* a hand-over is in progress; puts into the file wait */
        bool to_wipe;      /* the hand-over must fill the file with zeros, because it holds another
                              tenant's bytes */
        bool replaced;     /* the hand-over has replaced the file by a new one */
        bool unrecorded;   /* the first cut of the file waits for its record; see losses.c */
        int handover;      /* result of the last hand-over: 0 or -errno */
        uint32_t lent_as;  /* number under which clients know the file; 0 if none of its chunks was
                              lent */
        bool dirty, sync_wanted, syncing; /* written since the last sync; to be synced in the next
                                             pass; a sync is in flight */
        uint64_t epoch; /* volume.seq when the slab was cut into slots of slot_bytes; 0 if never */
        uint64_t slot_bytes;
        uint32_t pinned, retained; /* number of chunks with references by I/O or loans; of chunks
                                      that clients have pinned */
        uint32_t loans;            /* number of loans of chunks in this segment */
        struct list_node waiting;  /* struct store_put: puts that wait for `prewriting` or
                                      `handing_over` to end */
        struct list_node dirty_node;
        struct table_work record; /* the table entry that records the hand-over or the first cut */
        struct list_node record_node; /* in volume.records_waiting or volume.records_flying */
        struct kio_request sync, handover_io;
};

/* The identity check of identity.c that is running, or the state for the next one. */
enum {
        IDENTITY_SEGMENTS = 64, /* segments that one check covers, in addition to the table */
        IDENTITY_FAILURES = 2   /* consecutive failed checks that bypass the volume */
};
struct identity {
        struct kio_request io;
        bool checking;
        bool removing, removed; /* the files that no startup finds are being removed instead of
                                 * checks; and all have been removed */
        unsigned failed;        /* number of consecutive checks that have failed */
        uint32_t at;            /* number of the check's first segment */
        struct dir_open_file files[IDENTITY_SEGMENTS + 1];
        unsigned n;
        uint64_t checked_ns;
        char reason[STORE_ERROR_BYTES]; /* written by the blocking-call thread during the check */
};

/* The segment that is being emptied, so that another class or the table ring gets its space. */
enum emptying_purpose { EMPTIED_FOR_CLASS, EMPTIED_FOR_RING };
#define EMPTYING_NONE UINT32_MAX
struct emptying {
        uint32_t slab;      /* EMPTYING_NONE if no segment is being emptied */
        uint32_t at;        /* slot at which the next step continues */
        bool keep_retained; /* stop if a client pins a chunk of the slab */
        bool is_done;       /* the slab is empty, and reserved for the growth of the ring */
        enum emptying_purpose purpose;
        uint64_t until_ns; /* CLOCK_MONOTONIC time until which the emptying waits for chunks in use;
                              0 before the wait begins */
        uint32_t left;     /* number of chunks that this iteration may still evict */
        bool is_short;     /* this iteration has refused to evict a chunk because `left` was 0 */
};

enum { SEGMENT_ZERO = -1, SEGMENT_UNKNOWN = -2 };

/* A tenant's usage of a volume and its limit (0: no limit), in bytes of whole slots. */
struct tenant_room {
        uint64_t bytes, limit;
        uint64_t retained;        /* the part of `bytes` in chunks that clients have pinned */
        struct turns_member puts; /* queue of struct store_put: the tenant's puts that wait for a
                                     slot; all zeros until first used */
};

/* A batch of puts (store_put.batch), tracked while the entries of some of its puts cannot be queued
 * yet. */
struct put_batch {
        uint64_t id;      /* number of the batch; see store_put.batch */
        uint32_t writing; /* number of the batch's puts whose payloads are being written, and whose
                             entries cannot be queued yet; 0 if this place is free */
};
enum { VOLUME_BATCHES = 16 }; /* most batches that are tracked at a time */

/* A data file that has lost chunks, as startup has found: the file is missing or too short, or
 * startup has removed it, to make room on a full file system or because another process had it open
 * after access rights had changed. */
enum lost_kind { LOST_MISSING, LOST_SHORT, LOST_FOR_ROOM, LOST_FOR_RIGHTS };
struct lost_file {
        uint32_t segment;
        enum lost_kind kind;
        uint64_t chunks; /* number of chunks in the missing part */
};

/* Losses that startup has found and that have not been reported yet. */
struct losses {
        struct lost_file *files;
        unsigned n_files;
        uint64_t nameless; /* number of chunks that are lost because their namespace is not known */
        uint32_t table_pages, table_kept; /* expected and found number of pages of a table that is
                                             too short; both 0 if the table is not too short */
        bool table_replaced;
        bool any;          /* some loss has not been reported */
        unsigned detached; /* data files that were replaced by copies, which is no loss */
};

struct volume {
        struct store_params params;
        char *path, *policy;
        struct dir *dir;
        struct kio *io;
        struct volume_ops ops;
        unsigned number;     /* index among the store's volumes */
        unsigned kio_volume; /* number of the volume in kio_request.volume */
        bool open, stopping, bypassed;
        bool resting;   /* volume_rest() is running on another thread, and uses `namespaces` and the
                           superblock */
        bool abandoned; /* volume_abandon() was called, because the device hangs */
        char reason[192]; /* why the volume was bypassed */

        /* Marks for the superblock, as bits of enum volume_mark; see superblock.c. */
        unsigned marks_wanted, marks_flying;
        uint16_t mark_count; /* number of volume numbers that MARK_COUNT records */
        int count_result;    /* result of the last superblock write with MARK_COUNT: 0 or -errno */
        struct kio_request mark_io;

        uint64_t window_ns, window_errors; /* error budget: CLOCK_MONOTONIC time at which the
                                              present minute began, and errors in it */
        uint64_t names_errors; /* errors of the namespaces files that were counted against the
                                  budget */
        bool full;             /* the file system refused the last request for space */
        uint64_t full_ns,
                full_refusals; /* CLOCK_MONOTONIC time of the last refusal; number of refusals */
        uint64_t displaced;    /* number of chunks whose placement is another volume */
        const struct list_node
                *watches; /* the store's list of struct store_watch; NULL if there is none */

        struct index *index;
        struct slabs *slabs;
        struct evict *evict;
        struct table *table;
        struct namespaces *namespaces;
        struct scrub *scrub;
        uint64_t seq; /* the last sequence that was assigned to a chunk, a tombstone, a purge or a
                         segment's cut */
        uint64_t opened_seq; /* value of `seq` after recovery: chunks with higher sequences were put
                                by this process */

        /* sequence.c */
        uint64_t seq_ceiling, page_ceiling; /* ceilings in the superblock on the disk */
        uint64_t next_seq_ceiling,
                next_page_ceiling; /* ceilings in the superblock write in flight */
        bool raising;              /* the superblock with the next ceilings is being written */
        uint64_t raise_again_at;   /* sequence from which on a failed write of the ceilings is tried
                                      again */

        /* segment.c */
        struct segment **segments;
        uint32_t n_segments; /* number of elements of `segments`, including retired ones; the first
                                slabs_added() can be used */
        uint32_t n_retired;
        bool ring_is_short; /* no new segments are made, because the limit has no room for the ring
                               pages that their slots need */
        uint64_t segment_bytes; /* usual size of a new segment in bytes; the last one may be smaller
                                 */
        uint64_t slab_bytes;    /* size of the largest slab in bytes */
        uint64_t max_chunk;
        uint64_t segments_charged;
        uint64_t no_room_for; /* the limit has no room for another segment with slots of this many
                                 bytes or more */
        uint8_t space_epoch;  /* number of data files removed for lack of room, modulo 256 */
        unsigned given_up_in_vain; /* number of data files removed for lack of room since a payload
                                      was last written; counted from 1 again after the pause that
                                      follows too many */
        uint64_t give_up_after_ns; /* CLOCK_MONOTONIC time before which no further file is removed,
                                      after too many removals in vain */
        bool table_composed_late;  /* the table write in flight was composed after the device hung,
                                      so it has no entry of a put that was answered then */
        uint8_t table_tries;       /* number of retries of the table write in flight, each after the
                                      removal of a data file */
        uint64_t no_room_until_ns; /* CLOCK_MONOTONIC time before which no file is made or extended,
                                      because the last attempt failed or the file system was full */
        struct segment *formatting; /* the segment that is being made, or NULL */
        struct kio_request format_io, prewrite_io, grow_io;
        struct segment *prewriting; /* the segment that is being filled with zeros, or NULL */
        uint64_t quiet_from_ns; /* CLOCK_MONOTONIC time at which prewriting may continue; 0 while
                                   the volume is in use */
        void *zeros;            /* STORE_PREWRITE_BYTES of zeros */
        struct tenant_room *tenants; /* by tenant number, UINT16_MAX + 1 elements; never NULL. The
                                        kernel backs only the pages that were used */
        uint64_t cut_slots;          /* number of slots in segments that are cut */
        uint64_t used_slots;         /* number of slots that hold a chunk */
        uint64_t pins, lent_pins; /* number of references to all chunks; the part of these that are
                                     loans */
        uint32_t lent_segments;   /* number of segments with loans */
        uint32_t sample_phase, compare_at; /* first slot of the next sample of slab_worth(); slab at
                                              which the next comparison begins */
        struct emptying emptying;
        /* By class: evictions of retained chunks since the last search for a segment of another
         * class of the same tenant found none; 0 if the next eviction must search. */
        uint32_t since_no_other[SLAB_MAX_CLASSES];
        uint32_t class_evictions[SLAB_MAX_CLASSES]; /* by class: evictions since its slabs were last
                                                       compared with those of other classes */

        int table_fd;
        uint64_t table_charged;
        uint32_t growing_pages; /* number of pages to which the ring's file is growing; 0 if it is
                                   not growing */
        uint64_t growth_zeroed; /* the growing file holds zeros up to this offset in bytes */
        uint64_t charged_if_growth_fails; /* bytes to charge for the file if the growth fails */
        bool no_ring_share; /* space for the ring's share of the limit was refused, and is not
                               requested again before a restart */
        bool growth_waiting, growth_flying; /* the growth waits for the next table sync, or for the
                                               one in flight */
        bool growth_done;                   /* the file has grown and is synced; the table uses its
                                               new pages when no table write is in flight */

        /* sync.c */
        struct list_node dirty_segments;
        struct list_node sync_waiting,
                sync_flying; /* struct store_put: puts and requests of volume_sync() that wait for
                                the next pass; those that the running pass covers */
        struct list_node records_waiting,
                records_flying; /* struct segment: segments whose `record` waits for a table sync;
                                   whose `record` the sync in flight covers */
        unsigned sync_outstanding; /* number of syncs of the running pass that have not completed */
        bool sync_failed; /* a sync has failed since the volume was opened, so later successes prove
                             nothing */
        unsigned sync_marks; /* marks that were requested because a sync has failed */
        struct kio_request table_sync_io, names_sync_io;
        bool names_dirty;            /* data files were made since the directory was last synced */
        _Atomic bool names_unsynced; /* a call on another thread could not sync the directory */

        struct kio_request table_io;
        bool table_due; /* the queued entries are written as soon as possible, without waiting for
                           more entries of their batch */
        uint64_t table_held_bytes; /* payload bytes of the puts whose entries are queued and not due
                                    */
        struct put_batch batches[VOLUME_BATCHES];
        int table_error; /* -errno of the failed table write, while the superblock is being marked
                            with it */
        uint32_t void_position,
                void_pages; /* first page, and number of pages, of the failed table write */
        struct turns
                slot_waiting; /* the queues tenant_room.puts that are not empty, in round robin */
        uint64_t n_slot_waiting; /* number of puts that wait for a slot */
        struct list_node gets_flying,
                puts_flying; /* gets that are being read; puts whose payload is being written, or
                                whose entry is not in the table yet */
        struct list_node done_puts, done_gets; /* struct store_put and struct store_get whose
                                                  complete() is to be called */

        struct losses losses;
        uint32_t void_below; /* segments with numbers below this may have entries in the table that
                                are void only because of the recorded sizes */
        struct identity identity;
        struct kio_request nudge_io; /* an empty operation; see volume_nudge() */
        bool nudged;                 /* nudge_io is in flight */

        uint64_t requests;   /* number of callers' requests that are not completed */
        uint64_t operations; /* number of internal operations that are not completed */
        uint64_t tombstones; /* number of tombstones that are queued or being written */
        uint64_t drops_begun,
                drops_over; /* number of drops; number of drops whose tombstone was written or has
                               failed, which happens in the same order */
        bool drops_lost; /* a tombstone could not be written, which happens only after a bypass */
        struct list_node sweeps;     /* struct store_purge whose chunks are being removed from the
                                        index, in order; see purge.c */
        uint32_t n_sweeps, sweep_at; /* number of these purges; record at which the next step of the
                                        sweep continues */
        uint32_t expire_at;          /* the record that the walk for expired chunks visits next */
        struct store_purge *sweep_all; /* the purge of everything that counts the chunks of
                                          namespaces without a purge of their own */
        bool evicting; /* set around the removal of a chunk that is evicted, for chunk_notify() */
        uint64_t evicted; /* number of chunks removed from the index without a tombstone, which
                             recovery may find again */
        bool lost_puts;   /* the tombstone of a failed put could not be written, so recovery may
                             find its chunk */
        struct list_node
                drops_waiting; /* struct store_put: requests of volume_settle_drops(), in order */

        uint64_t payload_bytes,
                chunks; /* sum of the lengths of the visible chunks, and their number */
        struct histogram
                evicted_ages; /* ages of the evicted chunks, in nanoseconds since their last use */
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

/* Returns whether a write has failed for lack of room on the file system. EFBIG is excluded,
 * because removing other files does not help if a file exceeds RLIMIT_FSIZE. */
static inline bool volume_lacks_room(int64_t r)
{
        return volume_is_no_space(r) && r != -EFBIG;
}

static inline struct chunk *volume_chunk_at(const struct volume *v, uint32_t i)
{
        return index_chunk(v->index, i);
}

/* Returns the id of the namespace of a linked record. */
static inline uint32_t chunk_namespace(const struct volume *v, const struct chunk *c)
{
        return index_namespace_of(v->index, c);
}

/* Returns the ref of record `i`. The generation holds the volume's number and the low bits of the
 * put's sequence, which distinguish successive chunks in one record. */
static inline struct store_ref volume_ref(const struct volume *v, uint32_t i)
{
        return (struct store_ref){
                .index = i,
                .generation = ((uint32_t)index_chunk(v->index, i)->seq &
                               ((1u << VOLUME_GENERATION_BITS) - 1)) |
                              v->number << VOLUME_GENERATION_BITS,
        };
}

/* Returns the chunk that `ref` names, or NULL if the ref is stale. */
static inline struct chunk *volume_chunk_of(const struct volume *v, struct store_ref ref)
{
        return ref.index < index_high(v->index) &&
                               volume_ref(v, ref.index).generation == ref.generation
                       ? volume_chunk_at(v, ref.index)
                       : NULL;
}

/* run.c */
/* Submits an empty operation if the volume is stopping, so that its completion iterates the volume.
 * Needed for a request that arrives after the stop: its complete() must not be called from within
 * the call, and without this operation no event might follow. */
void volume_nudge(struct volume *v);

/* identity.c */
/* Returns whether the volume was bypassed because the next startup will not find its files. */
static inline bool identity_is_lost(const struct volume *v)
{
        return v->bypassed && v->identity.failed >= IDENTITY_FAILURES;
}
/* Starts an identity check, or after the last one the removal of orphans, if one is due. */
void identity_tick(struct volume *v);
/* Checks the directory and all files at once; no I/O may be in flight. Returns false, with a
 * sentence in v->identity.reason, if any of them was removed or replaced. Blocks. */
bool identity_check_now(struct volume *v);
/* Removes all data files that dir_remove_orphans() may remove; no I/O may be in flight. Blocks. */
void identity_remove_orphans(struct volume *v);

/* losses.c */
/* Updates the sizes of the data files in the superblock in memory. No effect while a loss has not
 * been reported, because the old sizes are needed to find the loss again, and with as_is. */
void sizes_update(struct volume *v);
/* Returns the number of pages, from the beginning of a data file, in which the superblock expects
 * chunks. */
uint32_t sizes_pages(const struct disk_superblock *sb, uint32_t segment);
/* Returns whether the superblock has valid sizes of data files. */
bool sizes_are_known(const struct disk_superblock *sb);

/* detach.c */
/* Replaces a data file by a copy if another process has the file open and the access rights differ
 * from those of the last startup. Returns 1 if the file was replaced, 0 if that is not necessary,
 * or -errno if the copy failed; the file must then not be used. Called before there is any I/O.
 * Blocks. */
int segment_detach(struct segment *seg);

/* errors.c */
/* Notes that an operation has failed with `r`. An error of the device counts against the volume's
 * error budget; a read-only file system bypasses the volume at once; a full file system is only
 * recorded. `what` describes the operation in the reason of a bypass. */
void volume_note_error(struct volume *v, const char *what, int64_t r);
/* Returns whether the chunk was certainly intact on the disk at some time, because this process
 * wrote it from its own memory or has verified it. Other chunks may be damaged without a fault of
 * the device: a client may have changed its memory during a direct put, or a power loss may have
 * torn a chunk of an earlier process. */
bool volume_was_whole(const struct chunk *c);
/* Counts an error against the budget, because a chunk that was once intact no longer matches its
 * checksum. The caller has dropped the chunk. */
void volume_note_mismatch(struct volume *v, const char *what);
/* Records whether the file system granted or refused space, and reports a change to the store. */
void volume_note_full(struct volume *v, bool full);
/* Checks that store.reserve bytes of the file system stay free if the volume grows by `bytes`.
 * Returns 0 or -ENOSPC; 0 also if the volume is not open yet or the free space is not known. Any
 * thread. */
int volume_check_space(const struct volume *v, uint64_t bytes);

/* superblock.c */
enum volume_mark {
        MARK_UNSYNCED = 1,  /* unsynced: a sync has failed */
        MARK_AWAY = 2,      /* away: the other volumes continue without this one */
        MARK_COUNT = 4,     /* volume_count: the set has given out a volume number */
        MARK_VOID = 8,      /* void_position, void_pages: a table write has failed */
        MARK_CEILINGS = 16, /* new sequence ceilings; see sequence.c */
        MARK_DOUBT = 32,    /* doubt_seq: a sync of data has failed */
        MARK_SIZES = 64,    /* sizes of the data files; see losses.c */
};
void mark_want(struct volume *v,
               unsigned marks); /* requests a write of the superblock with these marks */

/* chunks.c */
struct store_chunk volume_describe(const struct volume *v, const struct chunk *c);

/* purge.c */
/* Returns whether record `i` holds a purged chunk that the sweep has not dropped yet. */
bool sweep_is_dead(const struct volume *v, uint32_t i);
/* Drops record `i` if its chunk was purged. Returns whether the chunk stays in the index. */
bool sweep_is_kept(struct volume *v, uint32_t i);
/* Starts removing the chunks that `req` purges from the index. The list of namespaces must already
 * have the purge's sequence. `req` is completed after the sweep, once the purge is on stable
 * storage. */
void sweep_begin(struct volume *v, struct store_purge *req);

/* put.c */
void puts_abandon(struct volume *v);
void gets_abandon(struct volume *v); /* get.c */
void put_serve_waiting(struct volume *v);
void put_resume(struct volume *v, struct segment *seg);
void put_finish(struct volume *v, struct store_put *req, int result);
/* Fill in the entry of a put, and handle the result of its write, as the functions of struct
 * table_ops do. */
bool put_entry(struct table_work *work, struct disk_entry *ret);
void put_entry_written(struct table_work *work, uint32_t page, int r);

/* entries.c */
extern const struct table_ops volume_table_ops;
/* Queues a table entry, and lets the next table write begin without waiting for more entries. */
void table_add(struct volume *v, struct table_item *item);
/* Queues the entry of a put of `payload_bytes`. It waits for other entries, but not if many or
 * those of much payload are queued. */
void table_hold(struct volume *v, struct table_item *item, uint32_t payload_bytes);
/* Begins the next table write if an entry is due and no write is in flight. */
void table_kick(struct volume *v);
/* Continues after the superblock write that declares the pages of a failed table write void; `r` is
 * the result of that write. */
void table_is_void(struct volume *v, int r);
/* Fills in the table entry of a chunk. The parent is taken from the eviction policy, if the policy
 * has linked one. */
void entry_from_chunk(const struct volume *v, uint32_t i, struct disk_entry *ret);

/* put.c */
/* Reports to the watches, if there are any, that a chunk has become visible or has been removed. */
void chunk_notify(const struct volume *v, uint32_t i, const struct namespace *ns, bool is_there);
/* Makes a chunk visible to lookups and counts it. Called once the chunk's entry is in the table. */
void chunk_publish(struct volume *v, uint32_t i);

/* drop.c */
/* Queues a tombstone for the key and counts it as a drop. Returns 0, also without effect if the
 * namespace does not exist, or -ENOMEM without effect. */
int tombstone_queue(struct volume *v, uint32_t namespace_id, const struct key *key);
/* Completes each request of volume_settle_drops() once the tombstones of all earlier drops, and all
 * earlier purges, have been written or have failed. */
void drops_settle(struct volume *v);
/* Reports and drops a chunk that could not be read back correctly. `error`: 0 if the checksum does
 * not match, -errno if the read failed. */
void chunk_condemn(struct volume *v, uint32_t i, int error);
/* Fill in the entry of a tombstone, and handle the result of its write. */
void tombstone_entry(const struct table_work *work, struct disk_entry *ret);
void tombstone_written(struct volume *v, struct table_work *work, int r);

/* alloc.c */
enum { ROOM_WAIT = 100 };
/* Assigns a slot of the class to the chunk, evicting other chunks if necessary. Returns 0;
 * ROOM_WAIT if a file is being made, a segment is being emptied, the ring is growing or the
 * iteration may evict no further chunk; STORE_FULL; STORE_TOO_LARGE if the chunk exceeds the
 * tenant's limit; or -errno. */
int room_acquire(struct volume *v, uint32_t chunk, unsigned class);
bool room_evict_any(struct volume *v, unsigned class);
/* Empties the slab that is worth least and has no I/O in flight, to make room for the ring. Returns
 * the number of the slab once it is empty, which may take several calls, and otherwise
 * UINT32_MAX. */
uint32_t room_take_slab(struct volume *v);
/* Empties a slab at once, because a write has failed for lack of room. Prefers slabs whose file
 * occupies at least half of its size on the disk, and among these slabs without chunks that clients
 * have pinned. Returns the slab's number, or UINT32_MAX if no slab whose file occupies disk space
 * can be emptied. */
uint32_t room_take_occupied_slab(struct volume *v);
/* Charges the tenant for the slot that the chunk was assigned. */
void room_charge(struct volume *v, const struct chunk *c);
/* Releases the slot of a chunk; the chunk's record stays. */
void room_return(struct volume *v, struct chunk *c);
/* Removes a chunk from the index and the eviction order at once. The slot and the record are freed
 * when the last reference (chunk_pin()) ends. */
void chunk_remove(struct volume *v, uint32_t i);
/* Evicts a chunk: removes it like chunk_remove(), counts the eviction, and lets the policy remember
 * the chunk. */
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
/* Begins to empty a slab; none of its chunks may have references. With `keep_retained`, the
 * emptying ends early if a client pins one of the chunks. Returns whether the slab is empty and
 * free already; always false for the ring, to which emptying_take() returns the slab. */
bool emptying_begin(struct volume *v, uint32_t slab, bool keep_retained,
                    enum emptying_purpose purpose);
/* Returns the slab that has been emptied for the ring, which no longer has a class then, or
 * EMPTYING_NONE if no slab is ready. */
uint32_t emptying_take(struct volume *v);
/* Empties a slab in one step, for a failed write that cannot wait. */
void emptying_all(struct volume *v, uint32_t slab);
/* Returns whether this iteration may evict another chunk in addition to one for each put, and
 * counts it. */
bool emptying_may_evict(struct volume *v);
/* Begins an iteration: allows STORE_EMPTIED further evictions, and continues the emptying. */
void emptying_iterate(struct volume *v);
/* Returns the CLOCK_MONOTONIC time at which the volume must iterate; 1 means at once, 0 never. */
uint64_t emptying_deadline_ns(const struct volume *v);

/* segment.c */
struct segment *segment_new(struct volume *v, uint32_t number);
struct segment *segment_free(struct segment *seg);
uint64_t segment_bytes_for(uint64_t limit, uint64_t wished);
uint64_t volume_charged(const struct volume *v);
/* Returns the number of data files that exist or can be made. The limit alone does not determine
 * this number, because some files may have been made smaller under an earlier limit. */
uint64_t segments_max(const struct volume *v);
uint64_t segments_next_bytes(const struct volume *v);
/* Returns the smallest limit that has room for the smallest data file beside the superblock, the
 * namespaces and the smallest ring. */
uint64_t segments_least_limit(const struct volume *v);
uint32_t ring_pages_for(uint64_t slots);
/* Called when a slot of a slab was acquired, in case this has cut the slab for another size or
 * tenant. A slab that may have belonged to another tenant is handed over before anything is written
 * to it: the hand-over is recorded in the table, the slab is filled with zeros, and both are
 * synced. A slab that may have void entries of an earlier cut is only recorded. */
void segment_note_cut(struct volume *v, uint32_t slab);
/* Returns the CLOCK_MONOTONIC time at which prewriting continues if the volume stays idle; 0 if
 * there is nothing to prewrite or the volume is in use. */
uint64_t segments_deadline_ns(const struct volume *v);
/* Lets puts use the next segment, even if it is not prewritten yet. Returns false if there is
 * none. */
bool segments_add_next(struct volume *v);
/* Starts making a segment, if none is being made, the limit has room for one of at least
 * `slot_bytes`, and the file system was not full recently. Returns whether it has started. */
bool segments_format_next(struct volume *v, uint64_t slot_bytes);
/* Makes a segment and waits until that is done; used by volume_open() only. */
int segments_format_now(struct volume *v);
void segments_iterate(struct volume *v);
/* Takes an empty slab out of use permanently. */
void segment_retire(struct volume *v, uint32_t slab);

/* space.c */
/* Removes the coldest data file, because the file system has refused a write for lack of room.
 * `epoch` is the value of v->space_epoch when the write began; if a file has been removed since
 * then, nothing more is removed. Returns whether the caller should try the write again. */
bool space_make(struct volume *v, uint8_t epoch);

/* handover.c */
/* Sets the tenant of a newly cut segment. Starts a hand-over to `tenant` if the segment may hold
 * another tenant's bytes, or may have void entries in the table. */
void handover_begin(struct volume *v, struct segment *seg, int tenant);
/* Fill in the table entry of a hand-over, and handle the results of its write and sync. */
void handover_entry(const struct segment *seg, struct disk_entry *ret);
void handover_written(struct segment *seg, int r);
void handover_synced(struct segment *seg, int r);

/* lend.c */
/* Returns 1 if the file is open elsewhere, in another process or a second time in this one; 0 if it
 * is not; and -errno if the file system cannot tell. Any thread. */
int file_is_shared(int fd);

/* ring.c */
bool ring_is_growing(const struct volume *v);
void ring_iterate(struct volume *v);
/* Continues the growth of the ring after the table sync that covers it; `r` is the sync's result.
 */
void ring_growth_synced(struct volume *v, int r);
/* Lets the table use the pages that the growth has added, if it is complete. No table write may be
 * in flight. */
void ring_use_growth(struct volume *v);

/* sequence.c */
/* Sets the sequence ceilings of the superblock that is about to be written. With `done`, the
 * ceilings are exact, because no more sequences are assigned before the next startup. */
void sequence_reserve(struct volume *v, bool done);
/* Adopts the ceilings after sequence_reserve()'s superblock has been written. */
void sequence_reserved(struct volume *v);
/* Handles the result of a superblock write that MARK_CEILINGS requested. */
void sequence_marked(struct volume *v, int r);
/* Raises the ceilings before they are reached. If that fails, bypasses the volume before a sequence
 * exceeds them. */
void sequence_iterate(struct volume *v);

/* sync.c */
void sync_iterate(struct volume *v);
void sync_mark_dirty(struct segment *seg);
void sync_want(struct segment *seg);
void sync_want_all(struct volume *v);
/* Syncs the directory on the blocking-call thread. Returns 0 or -errno. The call's completion must
 * call sync_note_names(), which notes a failure as that of a sync pass. */
int sync_names(struct volume *v);
void sync_note_names(struct volume *v, int64_t r);

/* recovery.c */
int recovery_run(struct volume *v, char ret_error[static STORE_ERROR_BYTES]);
