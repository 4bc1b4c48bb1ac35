/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of a start share: what is known so far, and the functions between them. Only they
 * include this; recovery.c says how a start goes. */
#pragma once

#include <pthread.h>

#include "prefetch.h"
#include "store/volume/internal.h"

#define RECOVER_TABLE     "table"
#define RECOVER_TABLE_NEW "table.new"

/* How far both counters go ahead when a page could not be read: it may be readable again at another
 * start, and what is purged or written from now on must be newer than all it says. */
#define RECOVER_UNREAD_GAP (UINT64_C(1) << 40)

/* A page with a higher sequence is no page: no store has come that far, and pages behind it would
 * not be valid. */
#define RECOVER_PAGE_SEQUENCE_MAX (UINT64_C(1) << 62)

/* What the ring says about one segment, by its newest entry. */
struct segment_scan {
        uint64_t epoch;
        uint32_t slot_pages, slots;
        uint32_t unheard; /* of these, not yet named by an entry */
        uint16_t tenant;
        uint64_t *hashes; /* of each slot, of its newest entry's key; 0: it has no entry. NULL: no
                             slot has one */
        uint64_t bytes;   /* of the file; 0: there is none */
};

/* Where these arrays lie: large pieces, since there are many. */
struct arena {
        struct arena *next;
        uint64_t used, bytes;
};

/* Hashes of keys whose newest entry says that they are not there. None is 0, here and above. */
struct gone {
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

enum { READERS = 2, READ_AHEAD = 6 };

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
        struct gone gone;
        bool unread; /* the device has refused a page */

        /* The threads beside; threads.c. */
        pthread_t readers[READERS], checker, populator;
        unsigned n_readers;
        bool has_checker, has_populator;
        pthread_mutex_t lock;
        pthread_cond_t cond; /* of what follows */
        bool ending, populated;
        struct block ahead[READ_AHEAD];
        uint32_t reading, read, checking, taken; /* turns of the plan */
        uint32_t expected;                       /* records of the index that need memory */

        struct disk_page newest; /* sequence: 0: there is none */
        bool newest_is_sure;     /* not the newest of what has been seen: of all */
        bool sorted;             /* the plan follows the pages' sequences, whatever they are */
        uint64_t last;           /* sequence looked at */
        uint64_t looked;         /* pages looked at */
        uint32_t likely;         /* records there will be, or fewer */
        uint64_t superseded;     /* entries beside these, or fewer */
        uint64_t max_seq, max_sequence;
        bool names_lost; /* what the namespaces were is not known */
        struct segment_scan *scans;
        uint32_t n_scans;
        uint32_t unheard_segments; /* that have no entry yet */
        uint64_t unheard_slots;    /* of the others */

        uint32_t new_pages; /* the ring has to shrink to; 0: it does not */
};

/* store_error() with the path, what was done, and why it did not go. */
int recover_fail(struct recovery *rec, int r, const char *what);
/* For what is filled at once: fewer faults. free() it. */
void *recover_huge_alloc(uint64_t bytes);
/* A chunk of the index's that has no place yet. */
void recover_forget(struct volume *v, uint32_t chunk);
void recover_forget_all(struct volume *v);

/* --- reader.c: the ring, a block at a time --- */

int recover_open_ring(struct recovery *rec);
/* Frees all of it. */
void recover_close_ring(struct recovery *rec);
/* Makes the turn's block rec->block, checked. Turns come in order. */
void recover_take_turn(struct recovery *rec, uint32_t turn);

/* It lies where this core has not looked: the device, or another core, has put it there. */
static inline void recover_prefetch_page(const struct disk_page *page)
{
        for (unsigned i = 0; i < DISK_PAGE; i += 64)
                prefetch((const char *)page + i);
}

int recover_block_init(struct block *b, uint32_t room);
void recover_block_fini(struct block *b);
void recover_block_fill(const struct recovery *rec, struct block *b, uint32_t first);
/* Where a page of it cannot be read, others may be missing as well. */
void recover_block_glance(const struct recovery *rec, struct block *b, uint32_t first);
/* What may be read of it. */
void recover_block_check(const struct recovery *rec, struct block *b);

/* --- probe.c: which pages in which order --- */

/* Each block, from the first on. */
int recover_plan_all(struct recovery *rec);
/* From this page back, around the ring. */
int recover_plan_back(struct recovery *rec, uint32_t newest);
/* The pages that have a sequence, from the highest on. */
int recover_plan_sorted(struct recovery *rec);
/* Likely the newest page; UINT32_MAX: no idea. Reads a few blocks. `ret_sure`: there is no newer
 * one. */
uint32_t recover_guess_newest(struct recovery *rec, bool *ret_sure);
void recover_plan_fini(struct plan *plan);

/* --- scan.c --- */

/* All that the ring says of the segments there are, into index and table; and `newest`,
 * `sequences`, `scans` and both highest. Forgets what an earlier look has found. */
int recover_look(struct recovery *rec);
void recover_look_fini(struct recovery *rec);

/* --- dead-keys.c --- */

/* -ENOMEM */
int gone_add(struct gone *g, uint64_t hash);
bool gone_has(const struct gone *g, uint64_t hash);
void gone_prefetch(const struct gone *g, uint64_t hash);
void gone_fini(struct gone *g);

/* --- threads.c: threads beside; without them nothing is ahead --- */

/* With the plan as it is; stop before it changes. */
void recover_ahead_start(struct recovery *rec);
void recover_ahead_stop(struct recovery *rec);
/* Puts memory under the records that are likely to be needed. */
void recover_populate_start(struct recovery *rec);
/* Takes back what they did not need. */
void recover_populate_stop(struct recovery *rec);
/* The turn's block becomes rec->block. False: there are no threads. */
bool recover_ahead_take(struct recovery *rec);
/* There are so many. */
void recover_expect(struct recovery *rec, uint32_t records);

/* --- segments.c --- */

/* Opens those that are there; a number that is missing below the highest gets a segment without a
 * file. */
int recover_open_segments(struct recovery *rec);
/* The ring gives what it has too much of, the last segment its end; then segments go, from the last
 * one on, and then the ring is looked at again. After the look. */
int recover_enforce_limit(struct recovery *rec);

/* --- slots.c --- */

/* Slots, counts, and the order of eviction, of all that is in the index. A chunk whose slot cannot
 * be had is forgotten. */
int recover_take_places(struct recovery *rec);
