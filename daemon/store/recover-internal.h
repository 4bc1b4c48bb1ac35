/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of a start share: what is known so far, and the functions between them. Only they
 * include this; recover.c says how a start goes. */
#pragma once

#include <pthread.h>

#include "store/internal.h"

#define RECOVER_TABLE     "table"
#define RECOVER_TABLE_NEW "table.new"

/* What the ring says about one segment. */
struct segment_scan {
        uint64_t epoch;
        uint32_t slot_pages, slots, room;
        uint32_t won; /* slots that have an entry */
        uint16_t tenant;
        uint64_t *seqs; /* of each slot the highest; room for `room` */
        uint64_t bytes; /* of the file; 0: there is none */
};

/* Where these arrays lie: large pieces, since they are looked at in no order. */
struct arena {
        struct arena *next;
        uint64_t used, bytes;
};

/* What of a page may be read, and what the second look does with it; of entries a bit each. */
struct check {
        bool valid;
        uint32_t entries;
        uint32_t won; /* have their slot */
        uint32_t in;  /* and are of namespaces that have not been purged since */
        uint64_t hashes[DISK_PAGE_ENTRIES]; /* of the keys of `entries` */
};
static_assert(DISK_PAGE_ENTRIES <= 32, "a bit each");

/* Pages of the ring that lie together, read and checked. */
struct block {
        struct disk_page *pages;
        struct check *checks;
        uint32_t first, n; /* n: 0: nothing */
        bool unread;       /* the device has refused one */
        bool zeros;        /* all of `pages` */
        bool checked;      /* `checks` say what may be read */
        bool judged;       /* and the rest */
        bool again;        /* asked for by the second look */
        bool busy;         /* somebody is at it */
};

enum { READERS = 2, READ_AHEAD = 6 };

struct recovery {
        struct volume *v;
        char *error;

        uint32_t pages;
        uint32_t room; /* of a block, in pages */
        bool *written; /* of each block: has any of it been, ever */
        struct block block;
        uint64_t *sequences; /* of each page; 0: not valid; TABLE_STALE */
        uint32_t *entries;   /* of each page, from the first look: a bit for each that is valid */
        struct arena *arenas;
        bool unread;         /* the device has refused a page */

        /* The threads beside; recover-ahead.c. */
        pthread_t readers[READERS], judge, populator;
        unsigned n_readers;
        bool has_judge, has_populator;
        pthread_mutex_t lock;
        pthread_cond_t cond; /* of what follows */
        bool ending;
        struct block ahead[READ_AHEAD];
        uint32_t asked, reading, read, judging, taken; /* of the blocks, ever */
        uint32_t last_asked;                           /* its first page */
        uint32_t expected; /* records of the index that need memory */
        bool all_expected; /* no more of them */

        bool looked;   /* once: `sequences` says what there is to read */
        bool in_force; /* so is the limit: which segments there are says what can be read of them */

        uint32_t n_won; /* slots that have an entry */
        uint64_t max_seq, max_sequence;
        uint32_t newest; /* UINT32_MAX: none */
        uint32_t safe;   /* pages behind it with nothing that is needed */
        struct segment_scan *scans;
        uint32_t n_scans;

        uint32_t new_pages; /* the ring has to shrink to; 0: it does not */
};

/* store_error() with the path, what was done, and why it did not go. */
int recover_fail(struct recovery *rec, int r, const char *what);
/* For what is filled at once: fewer faults. free() it. */
void *recover_huge_alloc(uint64_t bytes);
/* A chunk of the index's that has no place yet. */
void recover_forget(struct volume *v, uint32_t chunk);

/* --- recover-read.c: the ring, a block at a time --- */

int recover_open_ring(struct recovery *rec);
/* Frees all of it. */
void recover_close_ring(struct recovery *rec);
/* A page is borrowed until the next is asked for. */
const struct disk_page *recover_page(struct recovery *rec, uint32_t page);
/* NULL: it is not valid. Of its entries, a bit for each that is. */
const struct disk_page *recover_valid_page(struct recovery *rec, uint32_t page,
                                           uint32_t *ret_entries);
/* NULL: there is nothing to read. Once the limit is in force. */
const struct disk_page *recover_judged_page(struct recovery *rec, uint32_t page,
                                            const struct check **ret_check);

/* The segment's part of an entry: within a file that is there, and possible. */
bool recover_place_valid(const struct recovery *rec, const struct disk_entry *e);
/* Whatever looks at the slots of a page's entries will come to it soon. */
void recover_prefetch(const struct recovery *rec, const struct disk_page *page);

static inline bool recover_is_of_scan(const struct segment_scan *scan, const struct disk_entry *e)
{
        return e->segment_epoch == scan->epoch && e->slot_pages == scan->slot_pages &&
               e->tenant == scan->tenant;
}

int recover_block_init(struct block *b, uint32_t room);
void recover_block_fini(struct block *b);
void recover_block_fill(const struct recovery *rec, struct block *b, uint32_t first);
/* What may be read of it. `again`: a page that is still whole has the same entries as when it was
 * looked at first. */
void recover_block_check(const struct recovery *rec, struct block *b, bool again);
/* What the second look does, up to the index. Nothing that this reads changes any more. */
void recover_block_judge(const struct recovery *rec, struct block *b);

/* --- recover-ahead.c: threads beside; without them nothing is ahead --- */

void recover_ahead_start(struct recovery *rec);
void recover_ahead_stop(struct recovery *rec);
/* The block becomes rec->block, if it has been asked for. */
bool recover_ahead_take(struct recovery *rec, uint32_t first);
/* The blocks that will be wanted after this one. */
void recover_ahead_ask(struct recovery *rec, uint32_t first);
/* So many records of the index are known to be needed; `all`: and no more. */
void recover_expect(struct recovery *rec, uint32_t records, bool all);

/* --- recover-segments.c --- */

/* Opens those that are there; a number that is missing below the highest gets a segment without a
 * file. */
int recover_open_segments(struct recovery *rec);
/* The ring gives what it has too much of, the last segment its end; then segments go, from the last
 * one on. After the first look. */
int recover_enforce_limit(struct recovery *rec);

/* --- recover-places.c --- */

/* Slots, counts, and the order of eviction, of all that is in the index. A chunk whose slot cannot
 * be had is forgotten. After the last look. */
int recover_take_places(struct recovery *rec);
