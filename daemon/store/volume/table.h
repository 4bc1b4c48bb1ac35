/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of table pages, as a state machine without a file: the ring composes writes of pages,
 * and its owner does the I/O and reports the results. The head is the next page to write; at the
 * end of the ring it returns to the beginning.
 *
 * For each page the ring knows the chunks whose live entry is in that page; all other entries are
 * superseded. A live entry is carried forward, which means written again at the head, before its
 * page is overwritten; table.c explains the rule. The ring takes 4 bytes of memory per page, and
 * for each chunk one bit more than the largest number of a chunk or page has; memory is allocated
 * as chunk numbers are used. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "store/volume/format.h"

#define TABLE_NOWHERE UINT32_MAX /* returned if there is no page or chunk */

enum {
        TABLE_BATCH_PAGES = 16,   /* most pages in one write */
        TABLE_MIN_PAGES = 16,     /* smallest ring, in pages */
        TABLE_UNSYNCED_MAX = 512, /* most pages that are written without a sync */
        TABLE_MAX_PAGES = UINT32_MAX / DISK_PAGE_ENTRIES,
};

/* A queued entry, embedded in a request of the ring's owner. Must stay valid until written() is
 * called. */
struct table_item {
        struct list_node node;
};

struct table_ops {
        /* Fills in a queued entry, except its CRC. Returns false if the entry is no longer wanted;
         * written() then follows with -ECANCELED. */
        bool (*fill)(void *userdata, struct table_item *item, struct disk_entry *ret);
        /* Called when a queued entry was written to `page`; the owner may then call table_place()
         * for its chunk. If r < 0, the entry was not written, and `page` is TABLE_NOWHERE. */
        void (*written)(void *userdata, struct table_item *item, uint32_t page, int r);
        /* Fills in a chunk's live entry, except the CRC. */
        void (*entry)(void *userdata, uint32_t chunk, struct disk_entry *ret);
};

struct table;

struct table_stats {
        uint64_t pages_written, entries_written, entries_carried, writes;
};

/* Stands for the sequence of a page that must not be read, and must be erased. */
#define TABLE_STALE UINT64_MAX

/* Returns the page with the highest sequence, for recovery, or UINT32_MAX if no page is valid.
 * `sequences` has the sequence of each page; 0 or TABLE_STALE if it is not valid. */
uint32_t table_find_newest(const uint64_t *sequences, uint32_t pages);
/* Returns whether a page with this sequence should have been overwritten before `newest` was
 * written, but was not, because of a crash or power loss. No entry of such a page is needed, and a
 * lost tombstone may have voided some of them. So recovery must not read the page, and must erase
 * it before it writes anything. */
bool table_is_stale(const struct disk_page *newest, uint32_t pages, uint32_t page,
                    uint64_t sequence);

/* Creates an empty ring of `pages` pages. Chunk numbers must be below `max_chunks`, which must be
 * below 2^31. `ops` must stay valid. Returns 0 or -ENOMEM. */
int table_new(struct table **ret, const uint8_t uuid[static DISK_UUID_BYTES], uint32_t pages,
              uint32_t max_chunks, const struct table_ops *ops, void *userdata);
struct table *table_free(struct table *t);

/* Notes that the live entry of a chunk is in this page. The chunk must not have had a live entry
 * before. */
void table_place(struct table *t, uint32_t page, uint32_t chunk);
/* Notes that the chunk no longer has a live entry. */
void table_forget(struct table *t, uint32_t chunk);
/* Returns the page of the chunk's live entry, or TABLE_NOWHERE. */
uint32_t table_page_of(const struct table *t, uint32_t chunk);
/* Returns a chunk whose live entry is in the page, or TABLE_NOWHERE. */
uint32_t table_chunk_in(const struct table *t, uint32_t page);

/* Starts the ring after recovery, with the position and sequence of the next page to write. The
 * caller must have dropped the chunks with entries in the disk_page.safe pages after the newest
 * one, because they were evicted before the stop. Returns 0, or -ENOSPC if the page at `head` still
 * holds live entries, because the ring is damaged; the caller then drops their chunks and calls
 * again. */
int table_start(struct table *t, uint32_t head, uint64_t next_sequence);
/* Notes, after table_start(), that all pages from this sequence up to the head exist and were
 * written without a gap. A later recovery then detects if one of them is lost. */
void table_continue_run(struct table *t, uint64_t sequence);

/* Queues an entry. Entries are written in the order in which they are queued. */
void table_queue(struct table *t, struct table_item *item);
bool table_has_queued(const struct table *t);
uint64_t table_queued(const struct table *t);

/* Composes the next write, and returns true, if an entry is queued that fill() does not cancel, no
 * write is in flight, no sync is needed before, and the ring has not failed (table_failure()). The
 * table owns the buffer, which is aligned to a page and does not change until table_complete(). */
bool table_compose(struct table *t, const void **ret_buf, uint64_t *ret_offset,
                   uint64_t *ret_bytes);
bool table_in_flight(const struct table *t);
/* Reports the result of the write in flight. If r < 0, the ring writes nothing more: written() is
 * called with `r` for all entries that are queued, now or later. */
void table_complete(struct table *t, int r);

/* table_wants_sync() returns whether the owner should sync the file. table_sync_begin() and
 * table_sync_end() report the beginning and the result of a sync: it covers all writes that were
 * completed before table_sync_begin(). If r < 0, the ring writes nothing more, as after a failed
 * write. */
bool table_wants_sync(const struct table *t);
void table_sync_begin(struct table *t);
void table_sync_end(struct table *t, int r);
int table_failure(const struct table *t); /* -errno of the failure after which the ring writes
                                             nothing more; 0 if there was none */
bool table_is_dirty(
        const struct table *t); /* whether a write has completed that no successful sync covers */

/* Extends the ring to `pages` pages; the caller must have filled the new pages of the file with
 * zeros and synced them. No write may be in flight. Returns 0; -EAGAIN if the pages written since
 * the last sync wrap around the end, so that another sync is needed first; or -ENOMEM. */
int table_grow(struct table *t, uint32_t pages);
uint64_t table_next_sequence(const struct table *t); /* sequence of the next page to be written */

uint32_t table_pages(const struct table *t);
/* Returns the number of live entries up to which the ring can carry entries forward at an
 * acceptable cost. */
uint32_t table_capacity(const struct table *t);
/* Returns the number of pages at the head that are known to hold no live entry. */
uint32_t table_window(const struct table *t);
/* Returns the ring's memory in bytes if the numbers of all placed chunks are below `chunks`. */
uint64_t table_bytes(const struct table *t, uint32_t chunks);
void table_get_stats(const struct table *t, struct table_stats *ret);
