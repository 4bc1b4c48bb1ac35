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
};

struct recovery {
        struct volume *v;
        char *error;

        int fd;
        uint32_t pages;
        uint32_t room; /* of a block, in pages */
        bool *written; /* of each block: has any of it been, ever */
        struct block block;
        uint64_t *sequences; /* of each page; 0: not valid; TABLE_STALE */
        uint32_t *entries;   /* of each page, from the first look: a bit for each that is valid */
        struct arena *arenas;
        bool unread;         /* the device has refused a page */

        /* The reader has `ahead` while `reading`. */
        struct block ahead;
        pthread_t reader;
        pthread_mutex_t lock;
        pthread_cond_t cond;
        bool has_reader, reading, judging, ending;

        /* Another puts memory under so many records of the index meanwhile. */
        pthread_t populator;
        bool has_populator;
        uint32_t expected;

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

/* --- recover-read.c: the ring, a block at a time --- */

int recover_open_ring(struct recovery *rec);
/* Frees all of it. */
void recover_close_ring(struct recovery *rec);
/* So many records of the index are known to be needed. */
void recover_expect(struct recovery *rec, uint32_t records);
void recover_stop_threads(struct recovery *rec);

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
/* Whatever looks at the slots of a page's entries is about to. */
void recover_prefetch(const struct recovery *rec, const struct disk_page *page);

static inline bool recover_is_of_scan(const struct segment_scan *scan, const struct disk_entry *e)
{
        return e->segment_epoch == scan->epoch && e->slot_pages == scan->slot_pages &&
               e->tenant == scan->tenant;
}

/* --- recover-segments.c --- */

/* Opens those that are there; a number that is missing below the highest gets a segment without a
 * file. */
int recover_open_segments(struct recovery *rec);
/* The ring gives what it has too much of, the last segment its end; then segments go, from the last
 * one on. After the first look. */
int recover_enforce_limit(struct recovery *rec);
