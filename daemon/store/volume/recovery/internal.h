/* SPDX-License-Identifier: Apache-2.0 */
/* The state of recovery, and the functions that its files share. Only they include this header;
 * recovery.c explains how they work together. */
#pragma once

#include <pthread.h>

#include "warm.h"
#include "store/volume/internal.h"

#define RECOVERY_TABLE     "table"
#define RECOVERY_TABLE_NEW "table.new"

/* The number of sequences that recovery skips, of entries and of pages, if a page could not be read
 * and the superblock has no valid ceilings. The page may be readable at a later startup, and the
 * purges and writes until then must be newer than its entries. */
#define RECOVERY_UNREAD_GAP (UINT64_C(1) << 40)

/* The highest sequence of a valid page. No store can reach a higher one by writing pages. */
#define RECOVERY_PAGE_SEQUENCE_MAX (UINT64_C(1) << 62)

/* A segment, as described by the newest ring entry for it. */
struct segment_scan {
        uint64_t epoch;             /* epoch of that entry */
        uint32_t slot_pages, slots; /* size of the slots in pages; number of slots */
        uint32_t unseen;            /* number of slots that no entry has named yet */
        uint16_t tenant;
        uint64_t *hashes; /* by slot: hash of the key of the slot's newest entry, or 0 if no entry
                             was found yet; NULL before the first entry of the segment */
        uint64_t bytes;   /* size of the file; 0 if the file does not exist */
        /* Sizes in bytes that expected.c computes. `mapped`: entries with epochs up to sizes_seq
         * are void beyond this. `span`: entries with later epochs are void beyond this. `needed`:
         * the scan must find an entry of each slot up to this. */
        uint64_t mapped, span, needed;
        uint64_t lost; /* number of chunks whose slots lie beyond the end of the file */
        enum lost_kind removed_for; /* why startup removed the file; LOST_MISSING if it did not */
};

/* A piece of memory for the arrays segment_scan.hashes. Pieces are large, because there are many
 * arrays. */
struct arena {
        struct arena *next;
        uint64_t used, bytes; /* bytes of the piece, including this header: in use, and in all */
};

/* The set of keys whose newest entry shows that they have no live chunk, as hashes. A hash is never
 * 0, here and in segment_scan. */
struct dead_keys {
        uint64_t *hashes; /* 0 in a free place */
        uint64_t n, room; /* number of hashes; number of places, a power of two or 0 */
        uint64_t likely;  /* upper estimate of the final number of hashes */
};

/* The result of checking a page. */
struct check {
        bool valid;
        uint32_t entries;                   /* valid entries, by bit */
        uint64_t hashes[DISK_PAGE_ENTRIES]; /* hashes of the entries' keys; not 0 */
};
static_assert(DISK_PAGE_ENTRIES <= 32, "a bit each");

/* A block of consecutive pages of the ring in memory. */
struct block {
        struct disk_page *pages;
        struct check *checks;
        uint32_t first, n; /* position of the first page; number of pages, 0 if nothing was read */
        bool unread;       /* the device refused to read a page */
        bool zeros;        /* all of `pages` are zero */
        bool checked;      /* `checks` is filled in */
        bool busy;         /* a helper thread is reading or checking the block */
};

/* A range of pages in one block, to be scanned from `high` down to `low`. `turn`: index in
 * plan.turns. */
struct visit {
        uint32_t turn, high, low;
};

/* The order in which blocks are read, and the pages that are scanned in them. A block that is
 * visited several times in a row is read once. */
struct plan {
        struct visit *visits;
        uint32_t *turns; /* first page of each block to read, in order */
        uint32_t n_visits, n_turns;
};

enum { READERS = 2, PREFETCHED_BLOCKS = 6 };

struct recovery {
        struct volume *v;
        char *error;

        uint32_t pages; /* number of pages of the ring's file */
        uint32_t room;  /* number of pages in a block */
        bool *written;  /* by block: whether any part of it was ever written */
        struct plan plan;
        struct block block;  /* the block that is being scanned */
        bool shallow;        /* check only whether pages are valid, not their entries */
        uint64_t *sequences; /* by page: its sequence, 0 if it is not valid, or TABLE_STALE */
        struct arena *arenas;
        struct dead_keys dead_keys;
        bool unread; /* the device refused to read a page */

        /* State of the helper threads; see threads.c. */
        pthread_t readers[READERS], checker, populator;
        unsigned n_readers;
        bool has_checker, has_populator;
        pthread_mutex_t lock;
        pthread_cond_t cond;    /* signals changes of the following fields */
        bool ending, populated; /* `ending`: readers and checker must end; `populated`: the
                                   populator must end */
        struct block prefetched[PREFETCHED_BLOCKS];
        uint32_t reading, read, checking,
                taken; /* numbers of turns of the plan that were begun to be read, read, begun to be
                          checked, and taken by the scan */
        uint32_t expected; /* number of index records whose memory is to be populated */

        struct disk_page newest; /* newest page found; sequence 0 if there is none */
        bool newest_is_sure; /* certainly no page is newer than `newest`, not even one that was not
                                read */
        bool sorted;         /* the plan follows the sequences of the pages */
        uint64_t last;       /* sequence of the page scanned last */
        uint64_t scanned;    /* number of pages scanned */
        uint32_t likely;     /* upper estimate of the number of index records that recovery needs */
        uint64_t superseded; /* upper estimate of the number of superseded entries in the ring */
        uint64_t max_seq, max_sequence; /* highest sequence of an entry or epoch; of a page */
        bool names_lost;                /* neither namespaces file is whole, although the volume is
                                         * not new */
        struct segment_scan *scans;     /* by segment: DISK_SEGMENTS_MAX elements */
        bool reads_all; /* scan the whole ring, because a file is missing whose size is not known */
        uint64_t nameless;    /* number of chunks whose namespace is lost */
        uint32_t table_was;   /* expected number of pages if the table's file is shorter, else 0 */
        uint32_t table_found; /* number of pages of a table's file that is too short */
        bool table_replaced;  /* another file has the table's name */
        uint32_t unseen_segments; /* number of segments that no entry has named yet */
        uint64_t unseen_slots; /* number of slots of the other segments that no entry has named yet
                                */

        uint32_t new_pages; /* number of pages to which the ring must shrink; 0 if it need not */
};

/* Formats an error with the volume, the failed step and the reason. Returns `r`. */
int recovery_fail(struct recovery *rec, int r, const char *what);
/* Allocates memory with huge pages if possible, which saves page faults if all of it is used.
 * Release it with free(). */
void *recovery_huge_alloc(uint64_t bytes);
/* Removes a chunk that has no slot yet from the index. */
void recovery_forget(struct volume *v, uint32_t chunk);
void recovery_forget_all(struct volume *v);

/* --- reader.c: the ring, a block at a time --- */

int recovery_open_ring(struct recovery *rec);
/* Frees everything that recovery_open_ring() allocated. */
void recovery_close_ring(struct recovery *rec);
/* Stores the block at this position of plan.turns in rec->block, read and checked. Positions must
 * be taken in order. */
void recovery_take_turn(struct recovery *rec, uint32_t turn);

/* Prefetches a page that the device or another core has written. */
static inline void recovery_warm_page(const struct disk_page *page)
{
        for (unsigned i = 0; i < DISK_PAGE; i += 64)
                warm((const char *)page + i);
}

int recovery_block_init(struct block *b, uint32_t room);
void recovery_block_fini(struct block *b);
void recovery_block_fill(const struct recovery *rec, struct block *b, uint32_t first);
/* Fills a block for recovery_estimate_newest(): after a read error, does not read the pages around
 * the bad one singly. */
void recovery_block_probe(const struct recovery *rec, struct block *b, uint32_t first);
/* Finds the valid pages and entries of a block. */
void recovery_block_check(const struct recovery *rec, struct block *b);

/* --- probe.c: the order of the pages --- */

/* Plans a scan of all blocks, from the first on. */
int recovery_plan_all(struct recovery *rec);
/* Plans a scan from the newest page backwards, around the ring. */
int recovery_plan_back(struct recovery *rec, uint32_t newest);
/* Plans a scan of the pages that have a sequence, from the highest sequence down. */
int recovery_plan_sorted(struct recovery *rec);
/* Estimates the newest page by reading a few blocks. Returns UINT32_MAX if the first block has no
 * valid page or memory is short. Otherwise sets *ret_sure to whether certainly no page is newer. */
uint32_t recovery_estimate_newest(struct recovery *rec, bool *ret_sure);
void recovery_plan_fini(struct plan *plan);

/* --- scan.c --- */

/* Scans the ring into index and table, and fills in `newest`, `sequences`, `scans`, `max_seq` and
 * `max_sequence`. Discards the results of an earlier scan. */
int recovery_scan(struct recovery *rec);
void recovery_scan_fini(struct recovery *rec);

/* --- dead-keys.c --- */

/* Adds a key's hash to the dead keys. Returns 0 or -ENOMEM. */
int dead_keys_add(struct dead_keys *g, uint64_t hash);
bool dead_keys_have(const struct dead_keys *g, uint64_t hash);
void dead_keys_warm(const struct dead_keys *g, uint64_t hash);
void dead_keys_fini(struct dead_keys *g);

/* --- threads.c: helper threads --- */

/* Start and stop the threads that read and check blocks in advance. The threads must be stopped
 * before the plan changes. If none can be started, recovery_take_turn() reads and checks the blocks
 * itself. */
void recovery_threads_start(struct recovery *rec);
void recovery_threads_stop(struct recovery *rec);
/* Starts populating memory for the records that are likely to be needed. */
void recovery_populate_start(struct recovery *rec);
/* Stops populating, and frees the memory of unused records. */
void recovery_populate_stop(struct recovery *rec);
/* Stores the next block of the plan in rec->block. Returns false if no reading thread runs. */
bool recovery_threads_take(struct recovery *rec);
/* Reports the present number of records to the populating thread, which stays ahead of it. */
void recovery_expect(struct recovery *rec, uint32_t records);

/* --- segments.c --- */

/* Opens the existing data files. A number below the highest that has no file gets a segment without
 * a file. */
int recovery_open_segments(struct recovery *rec);
/* Removes data files, from the last one on, until the file system accepts the writes of startup.
 * Called before the scan. */
int recovery_make_room(struct recovery *rec);
/* Enforces the limit after the scan: shortens the ring, then the last segment, then removes
 * segments from the last one on, and then checks the ring again. */
int recovery_enforce_limit(struct recovery *rec);

/* --- expected.c: the data files and chunks that should exist --- */

/* Computes `mapped`, `span` and `needed` of each segment, from the superblock and the sizes of the
 * open files. */
void expected_init(struct recovery *rec);
/* Notes that recovery itself has removed or shortened the file, so that the chunks beyond `bytes`
 * do not count as lost. */
void expected_release(struct recovery *rec, uint32_t segment, uint64_t bytes);
/* Returns whether the entry names a slot that exists or should exist. */
bool expected_has_place(const struct recovery *rec, const struct disk_entry *e);
/* Returns whether the slot that an entry names lies within the existing file. expected_has_place()
 * must be true. */
bool expected_is_there(const struct recovery *rec, const struct disk_entry *e);
/* Records the missing files and chunks in volume.losses and the statistics. Returns 0 or
 * -ENOMEM. */
int expected_note_losses(struct recovery *rec);

/* --- slots.c --- */

/* Assigns slots, counts and eviction order to all chunks in the index. A chunk whose slot is not
 * available is removed. */
int recovery_take_slots(struct recovery *rec);
