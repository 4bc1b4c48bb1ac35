/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of recovery share: what is known so far, and the functions between them. Only they
 * include this; recovery.c says how they work together. */
#pragma once

#include <pthread.h>

#include "warm.h"
#include "store/volume/internal.h"

#define RECOVERY_TABLE     "table"
#define RECOVERY_TABLE_NEW "table.new"

/* How far both counters go ahead when a page could not be read: it may be readable again at another
 * start, and what is purged or written from now on must be newer than all it says. */
#define RECOVERY_UNREAD_GAP (UINT64_C(1) << 40)

/* A page with a higher sequence is no page: no store has come that far, and pages behind it would
 * not be valid. */
#define RECOVERY_PAGE_SEQUENCE_MAX (UINT64_C(1) << 62)

/* What the ring says about one segment, by its newest entry. */
struct segment_scan {
        uint64_t epoch;
        uint32_t slot_pages, slots;
        uint32_t unseen; /* of these, not yet named by an entry */
        uint16_t tenant;
        uint64_t *hashes; /* of each slot, of its newest entry's key; 0: it has no entry. NULL: no
                             slot has one */
        uint64_t bytes;   /* of the file; 0: there is none */
        /* expected.c: the bytes within which entries have a place, of epochs that the superblock's
         * sizes know of, and of later ones; the bytes whose slots are looked for. */
        uint64_t mapped, span, needed;
        uint64_t lost;              /* chunks that have a place beyond the file */
        enum lost_kind removed_for; /* why startup removed the file */
};

/* Where these arrays lie: large pieces, since there are many. */
struct arena {
        struct arena *next;
        uint64_t used, bytes;
};

/* Hashes of keys whose newest entry says that they are not there. None is 0, here and above. */
struct dead_keys {
        uint64_t *hashes; /* 0: free */
        uint64_t n, room; /* a power of two, or 0 */
        uint64_t likely;  /* so many there will be, or fewer, if there are many */
};

/* What of a page may be read. */
struct check {
        bool valid;
        uint32_t entries;                   /* a bit for each that is valid */
        uint64_t hashes[DISK_PAGE_ENTRIES]; /* of their keys; not 0 */
};
static_assert(DISK_PAGE_ENTRIES <= 32, "a bit each");

/* Pages of the ring that lie together, read and checked. */
struct block {
        struct disk_page *pages;
        struct check *checks;
        uint32_t first, n; /* n: 0: nothing */
        bool unread;       /* the device has refused one */
        bool zeros;        /* all of `pages` */
        bool checked;
        bool busy; /* a thread works on it */
};

/* Some pages of a block, to be looked at from the highest to the lowest. */
struct visit {
        uint32_t turn, high, low;
};

/* Which blocks are read, turn by turn, and what is looked at in them. A block that is visited
 * several times in a row is read once. */
struct plan {
        struct visit *visits;
        uint32_t *turns; /* the block's first page */
        uint32_t n_visits, n_turns;
};

enum { READERS = 2, PREFETCHED_BLOCKS = 6 };

struct recovery {
        struct volume *v;
        char *error;

        uint32_t pages;
        uint32_t room; /* of a block, in pages */
        bool *written; /* of each block: has any of it been, ever */
        struct plan plan;
        struct block block;
        bool shallow;        /* blocks are checked for the validity of their pages alone */
        uint64_t *sequences; /* of each page; 0: not valid; TABLE_STALE */
        struct arena *arenas;
        struct dead_keys dead_keys;
        bool unread; /* the device has refused a page */

        /* The threads beside; threads.c. */
        pthread_t readers[READERS], checker, populator;
        unsigned n_readers;
        bool has_checker, has_populator;
        pthread_mutex_t lock;
        pthread_cond_t cond; /* of what follows */
        bool ending, populated;
        struct block prefetched[PREFETCHED_BLOCKS];
        uint32_t reading, read, checking, taken; /* turns of the plan */
        uint32_t expected;                       /* records of the index that need memory */

        struct disk_page newest; /* sequence: 0: there is none */
        bool newest_is_sure;     /* not the newest of what has been seen: of all */
        bool sorted;             /* the plan follows the pages' sequences, whatever they are */
        uint64_t last;           /* sequence looked at */
        uint64_t scanned;        /* pages looked at */
        uint32_t likely;         /* records there will be, or fewer */
        uint64_t superseded;     /* entries beside these, or fewer */
        uint64_t max_seq, max_sequence;
        bool names_lost;            /* what the namespaces were is not known */
        struct segment_scan *scans; /* DISK_SEGMENTS_MAX */
        bool reads_all;             /* a file is missing whose size is not known */
        uint64_t nameless;          /* chunks whose namespace is lost */
        uint32_t table_was;         /* pages, if it is shorter now; else 0 */
        uint32_t table_found;
        bool table_replaced;
        uint32_t unseen_segments; /* that have no entry yet */
        uint64_t unseen_slots;    /* of the others */

        uint32_t new_pages; /* the ring has to shrink to; 0: it does not */
};

/* store_error() with the volume, what was done, and why it did not go. */
int recovery_fail(struct recovery *rec, int r, const char *what);
/* For what is filled at once: fewer faults. free() it. */
void *recovery_huge_alloc(uint64_t bytes);
/* A chunk of the index's that has no place yet. */
void recovery_forget(struct volume *v, uint32_t chunk);
void recovery_forget_all(struct volume *v);

/* --- reader.c: the ring, a block at a time --- */

int recovery_open_ring(struct recovery *rec);
/* Frees all of it. */
void recovery_close_ring(struct recovery *rec);
/* Makes the turn's block rec->block, checked. Turns come in order. */
void recovery_take_turn(struct recovery *rec, uint32_t turn);

/* It lies where this core has not looked: the device, or another core, has put it there. */
static inline void recovery_warm_page(const struct disk_page *page)
{
        for (unsigned i = 0; i < DISK_PAGE; i += 64)
                warm((const char *)page + i);
}

int recovery_block_init(struct block *b, uint32_t room);
void recovery_block_fini(struct block *b);
void recovery_block_fill(const struct recovery *rec, struct block *b, uint32_t first);
/* Where a page of it cannot be read, others may be missing as well. */
void recovery_block_probe(const struct recovery *rec, struct block *b, uint32_t first);
/* What may be read of it. */
void recovery_block_check(const struct recovery *rec, struct block *b);

/* --- probe.c: which pages in which order --- */

/* Each block, from the first on. */
int recovery_plan_all(struct recovery *rec);
/* From this page back, around the ring. */
int recovery_plan_back(struct recovery *rec, uint32_t newest);
/* The pages that have a sequence, from the highest on. */
int recovery_plan_sorted(struct recovery *rec);
/* Likely the newest page; UINT32_MAX: no idea. Reads a few blocks. `ret_sure`: there is no newer
 * one. */
uint32_t recovery_estimate_newest(struct recovery *rec, bool *ret_sure);
void recovery_plan_fini(struct plan *plan);

/* --- scan.c --- */

/* All that the ring says of the segments there are, into index and table; and `newest`,
 * `sequences`, `scans` and both highest. Forgets what an earlier scan has found. */
int recovery_scan(struct recovery *rec);
void recovery_scan_fini(struct recovery *rec);

/* --- dead-keys.c --- */

/* -ENOMEM */
int dead_keys_add(struct dead_keys *g, uint64_t hash);
bool dead_keys_have(const struct dead_keys *g, uint64_t hash);
void dead_keys_warm(const struct dead_keys *g, uint64_t hash);
void dead_keys_fini(struct dead_keys *g);

/* --- threads.c: threads beside; without them nothing is ahead --- */

/* With the plan as it is; stop before it changes. */
void recovery_threads_start(struct recovery *rec);
void recovery_threads_stop(struct recovery *rec);
/* Puts memory under the records that are likely to be needed. */
void recovery_populate_start(struct recovery *rec);
/* Takes back what they did not need. */
void recovery_populate_stop(struct recovery *rec);
/* The turn's block becomes rec->block. False: there are no threads. */
bool recovery_threads_take(struct recovery *rec);
/* There are so many. */
void recovery_expect(struct recovery *rec, uint32_t records);

/* --- segments.c --- */

/* Opens those that are there; a number that is missing below the highest gets a segment without a
 * file. */
int recovery_open_segments(struct recovery *rec);
/* Removes data files from the last one on until the file system takes what startup writes. Before
 * the scan. */
int recovery_make_room(struct recovery *rec);
/* The ring gives what it has too much of, the last segment its end; then segments go, from the last
 * one on, and then the ring is looked at again. After the scan. */
int recovery_enforce_limit(struct recovery *rec);

/* --- expected.c: what should be there --- */

/* Computes them from the superblock and the open files. */
void expected_init(struct recovery *rec);
/* The volume has removed or shortened the file itself: the chunks behind `bytes` do not count as
 * lost. */
void expected_release(struct recovery *rec, uint32_t segment, uint64_t bytes);
/* Returns whether the entry names a slot that there is, or should be. */
bool expected_has_place(const struct recovery *rec, const struct disk_entry *e);
/* Returns whether the slot of an entry that has a place lies within the file. */
bool expected_is_there(const struct recovery *rec, const struct disk_entry *e);
/* Notes in the volume what was not found. -ENOMEM */
int expected_note_losses(struct recovery *rec);

/* --- slots.c --- */

/* Slots, counts, and the order of eviction, of all that is in the index. A chunk whose slot cannot
 * be had is forgotten. */
int recovery_take_slots(struct recovery *rec);
