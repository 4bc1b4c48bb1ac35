/* SPDX-License-Identifier: Apache-2.0 */
/* The state of recovery, and the functions that its files share. Only they include this header;
 * recovery.c explains how they work together. */
#pragma once

#include <pthread.h>

#include "warm.h"
#include "store/volume/internal.h"

#define RECOVERY_TABLE     "table"
#define RECOVERY_TABLE_NEW "table.new"

/* The amount by which both counters are raised if a page could not be read. The page may be
 * readable at another startup, and later purges and writes must be newer than its entries. */
#define RECOVERY_UNREAD_GAP (UINT64_C(1) << 40)

/* A page with a higher sequence is not valid: no store reaches it, and the pages after it would not
 * be valid either. */
#define RECOVERY_PAGE_SEQUENCE_MAX (UINT64_C(1) << 62)

/* A segment as its newest entry in the ring describes it. */
struct segment_scan {
        uint64_t epoch;
        uint32_t slot_pages, slots;
        uint32_t unseen; /* slots that no entry has named yet */
        uint16_t tenant;
        uint64_t *hashes; /* hash of the key of each slot's newest entry, or 0 if it has none; NULL
                             if no slot has one */
        uint64_t bytes;   /* bytes of the file; 0 if there is none */
        /* expected.c: the bytes within which entries have a place, of epochs that the superblock's
         * sizes know of, and of later ones; the bytes whose slots are looked for. */
        uint64_t mapped, span, needed;
        uint64_t lost;              /* chunks that have a place beyond the file */
        enum lost_kind removed_for; /* why startup removed the file */
};

/* Memory for these arrays, allocated in large pieces because there are many arrays. */
struct arena {
        struct arena *next;
        uint64_t used, bytes;
};

/* Hashes of keys that are dead by their newest entry. No hash is 0, here and above. */
struct dead_keys {
        uint64_t *hashes; /* 0 if free */
        uint64_t n, room; /* a power of two, or 0 */
        uint64_t likely;  /* an upper estimate of their final number */
};

/* The valid parts of a page. */
struct check {
        bool valid;
        uint32_t entries;                   /* one bit for each valid entry */
        uint64_t hashes[DISK_PAGE_ENTRIES]; /* hashes of the entries' keys; not 0 */
};
static_assert(DISK_PAGE_ENTRIES <= 32, "a bit each");

/* A block of consecutive pages of the ring, read and checked. */
struct block {
        struct disk_page *pages;
        struct check *checks;
        uint32_t first, n; /* n is 0 if the block is empty */
        bool unread;       /* the device refused to read a page */
        bool zeros;        /* all of `pages` are zero */
        bool checked;
        bool busy; /* a thread works on it */
};

/* Some pages of a block, to be scanned from the highest to the lowest. */
struct visit {
        uint32_t turn, high, low;
};

/* The order in which blocks are read, and the pages that are scanned in them. A block that is
 * visited several times in a row is read once. */
struct plan {
        struct visit *visits;
        uint32_t *turns; /* first pages of the blocks, in the order in which they are read */
        uint32_t n_visits, n_turns;
};

enum { READERS = 2, PREFETCHED_BLOCKS = 6 };

struct recovery {
        struct volume *v;
        char *error;

        uint32_t pages;
        uint32_t room; /* pages of a block */
        bool *written; /* for each block, whether any part of it was ever written */
        struct plan plan;
        struct block block;
        bool shallow;        /* only the validity of pages is checked, not their entries */
        uint64_t *sequences; /* sequence of each page; 0 if not valid, or TABLE_STALE */
        struct arena *arenas;
        struct dead_keys dead_keys;
        bool unread; /* the device refused to read a page */

        /* The helper threads of threads.c. */
        pthread_t readers[READERS], checker, populator;
        unsigned n_readers;
        bool has_checker, has_populator;
        pthread_mutex_t lock;
        pthread_cond_t cond; /* for the following fields */
        bool ending, populated;
        struct block prefetched[PREFETCHED_BLOCKS];
        uint32_t reading, read, checking, taken; /* counters of turns of the plan */
        uint32_t expected;                       /* number of index records that need memory */

        struct disk_page newest; /* newest page found; sequence 0 if there is none */
        bool newest_is_sure;     /* `newest` is the newest of all pages, not only of those that were
                                    read */
        bool sorted;             /* the plan follows the sequences of the pages */
        uint64_t last;           /* sequence of the page scanned last */
        uint64_t scanned;        /* number of pages scanned */
        uint32_t likely;         /* upper estimate of the number of records */
        uint64_t superseded;     /* upper estimate of the number of superseded entries */
        uint64_t max_seq, max_sequence;
        bool names_lost;            /* the volume does not know what the namespaces were */
        struct segment_scan *scans; /* DISK_SEGMENTS_MAX */
        bool reads_all;             /* a file is missing whose size is not known */
        uint64_t nameless;          /* chunks whose namespace is lost */
        uint32_t table_was;         /* pages, if it is shorter now; else 0 */
        uint32_t table_found;
        bool table_replaced;
        uint32_t unseen_segments; /* segments that have no entry yet */
        uint64_t unseen_slots;    /* unseen slots of the other segments */

        uint32_t new_pages; /* size to which the ring must shrink; 0 if it need not */
};

/* Formats an error with the volume, the failed step and the reason. Returns `r`. */
int recovery_fail(struct recovery *rec, int r, const char *what);
/* Allocates memory that is filled at once, with fewer page faults. Release it with free(). */
void *recovery_huge_alloc(uint64_t bytes);
/* Removes a chunk from the index that has no slot yet. */
void recovery_forget(struct volume *v, uint32_t chunk);
void recovery_forget_all(struct volume *v);

/* --- reader.c: the ring, a block at a time --- */

int recovery_open_ring(struct recovery *rec);
/* Frees everything that recovery_open_ring() allocated. */
void recovery_close_ring(struct recovery *rec);
/* Makes the block at this position of the plan rec->block, read and checked. Positions are taken in
 * order. */
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
/* Fills a block for a probe, which need not find each readable page next to an unreadable one. */
void recovery_block_probe(const struct recovery *rec, struct block *b, uint32_t first);
/* Finds the valid pages and entries of a block. */
void recovery_block_check(const struct recovery *rec, struct block *b);

/* --- probe.c: the order of the pages --- */

/* Plans each block, from the first on. */
int recovery_plan_all(struct recovery *rec);
/* Plans from the newest page backwards, around the ring. */
int recovery_plan_back(struct recovery *rec, uint32_t newest);
/* Plans the pages that have a sequence, from the highest on. */
int recovery_plan_sorted(struct recovery *rec);
/* Estimates the newest page by reading a few blocks; UINT32_MAX if it cannot. Sets *ret_sure if no
 * page is newer. */
uint32_t recovery_estimate_newest(struct recovery *rec, bool *ret_sure);
void recovery_plan_fini(struct plan *plan);

/* --- scan.c --- */

/* Scans the ring into index and table, and fills in `newest`, `sequences`, `scans` and both maximum
 * counters. Discards the results of an earlier scan. */
int recovery_scan(struct recovery *rec);
void recovery_scan_fini(struct recovery *rec);

/* --- dead-keys.c --- */

/* Returns 0 or -ENOMEM. */
int dead_keys_add(struct dead_keys *g, uint64_t hash);
bool dead_keys_have(const struct dead_keys *g, uint64_t hash);
void dead_keys_warm(const struct dead_keys *g, uint64_t hash);
void dead_keys_fini(struct dead_keys *g);

/* --- threads.c: helper threads; without them nothing is done in advance --- */

/* Start and stop the helper threads. They must be stopped before the plan changes. */
void recovery_threads_start(struct recovery *rec);
void recovery_threads_stop(struct recovery *rec);
/* Starts populating memory for the records that are likely to be needed. */
void recovery_populate_start(struct recovery *rec);
/* Stops populating, and frees the memory of unused records. */
void recovery_populate_stop(struct recovery *rec);
/* Makes the next turn's block rec->block. Returns false if there are no threads. */
bool recovery_threads_take(struct recovery *rec);
/* Reports the present number of records, so that memory is populated ahead of it. */
void recovery_expect(struct recovery *rec, uint32_t records);

/* --- segments.c --- */

/* Opens the existing data files. A missing number below the highest gets a segment without a
 * file. */
int recovery_open_segments(struct recovery *rec);
/* Removes data files, from the last one on, until the file system accepts the writes of startup.
 * Called before the scan. */
int recovery_make_room(struct recovery *rec);
/* Enforces the limit after the scan: shortens the ring, then the last segment, then removes
 * segments from the last one on, and then checks the ring again. */
int recovery_enforce_limit(struct recovery *rec);

/* --- expected.c: the data files and chunks that should exist --- */

/* Computes the expected files from the superblock and the open files. */
void expected_init(struct recovery *rec);
/* Notes that the volume itself has removed or shortened the file, so that the chunks beyond `bytes`
 * do not count as lost. */
void expected_release(struct recovery *rec, uint32_t segment, uint64_t bytes);
/* Returns whether the entry names a slot that exists or should exist. */
bool expected_has_place(const struct recovery *rec, const struct disk_entry *e);
/* Returns whether the slot of an entry that has a place lies within the file. */
bool expected_is_there(const struct recovery *rec, const struct disk_entry *e);
/* Notes the missing files and chunks in the volume. Returns 0 or -ENOMEM. */
int expected_note_losses(struct recovery *rec);

/* --- slots.c --- */

/* Assigns slots, counts and eviction order to all chunks in the index. A chunk whose slot is not
 * available is removed. */
int recovery_take_slots(struct recovery *rec);
