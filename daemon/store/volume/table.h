/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of table pages, as a machine without a file: it composes batches of pages and is
 * notified of their results. Its owner does the I/O.
 *
 * It knows of each page which chunks have their live entry in it; everything else in the ring is
 * history. See table.c for the rule that keeps live entries from being overwritten. Memory: 4 bytes
 * a chunk, touched as they come, and 4 a page. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "store/volume/format.h"

#define TABLE_NOWHERE UINT32_MAX

enum {
        TABLE_BATCH_PAGES = 16,
        TABLE_MIN_PAGES = 16,
        TABLE_UNSYNCED_MAX = 512, /* pages written since the last sync, at most */
        TABLE_MAX_PAGES = UINT32_MAX / DISK_PAGE_ENTRIES,
};

/* A queued entry, embedded in its owner's request, which keeps it until written() is called. */
struct table_item {
        struct list_node node;
};

struct table_ops {
        /* The bytes of a new entry, but for its crc. False: it is no longer wanted; `written`
         * follows with -ECANCELED. */
        bool (*fill)(void *userdata, struct table_item *item, struct disk_entry *ret);
        /* The entry was written to `page`, where the owner may place its chunk; if r < 0, to no
         * page. */
        void (*written)(void *userdata, struct table_item *item, uint32_t page, int r);
        /* The bytes of a chunk's live entry, but for the crc. */
        void (*entry)(void *userdata, uint32_t chunk, struct disk_entry *ret);
};

struct table;

struct table_stats {
        uint64_t pages_written, entries_written, entries_carried, writes;
};

#define TABLE_STALE UINT64_MAX

/* For recovery, which knows the sequence of each page (0 or TABLE_STALE: not valid). The newest
 * page; UINT32_MAX: there is none. */
uint32_t table_find_newest(const uint64_t *sequences, uint32_t pages);
/* Is this one, with this sequence, of those that a crash or a power loss kept from being
 * overwritten, though newer ones were? Nothing in them is needed, and what they say may have been
 * taken back by a page that has been overwritten: they must not be read, and be erased before
 * anything is written. */
bool table_is_stale(const struct disk_page *newest, uint32_t pages, uint32_t page,
                    uint64_t sequence);

/* An empty ring. Chunks are below `max_chunks`, which is below 2^31. `ops` stays the caller's. */
int table_new(struct table **ret, const uint8_t uuid[static DISK_UUID_BYTES], uint32_t pages,
              uint32_t max_chunks, const struct table_ops *ops, void *userdata);
struct table *table_free(struct table *t);

/* This chunk's live entry lies in that page; it has lain nowhere. */
void table_place(struct table *t, uint32_t page, uint32_t chunk);
/* Makes the chunk's entry history, in whichever page it is. */
void table_forget(struct table *t, uint32_t chunk);
/* Returns the page of the chunk's live entry, or TABLE_NOWHERE. */
uint32_t table_page_of(const struct table *t, uint32_t chunk);
/* Returns a chunk whose live entry is in the page, or TABLE_NOWHERE. */
uint32_t table_chunk_in(const struct table *t, uint32_t page);

/* At start: the next page to write, and the sequence it gets. What lay in the newest page's `safe`
 * next ones was dead before the stop, evicted without a word on the disk, and must have been
 * dropped. -ENOSPC: the page at `head` holds live entries all the same (a damaged ring): drop their
 * chunks and call again. */
int table_start(struct table *t, uint32_t head, uint64_t next_sequence);

/* Entries are written in the order they are queued. */
void table_queue(struct table *t, struct table_item *item);
bool table_has_queued(const struct table *t);
uint64_t table_queued(const struct table *t);

/* The next write, if there is something queued, none is in flight and table_wants_sync() does not
 * come first. The buffer is the table's, aligned to a page, and stays still until table_complete().
 */
bool table_compose(struct table *t, const void **ret_buf, uint64_t *ret_offset,
                   uint64_t *ret_bytes);
bool table_in_flight(const struct table *t);
/* r < 0: the ring is unusable from here on: all that is queued, and whatever is queued later, gets
 * `r`. */
void table_complete(struct table *t, int r);

/* The file has been synced: everything completed before begin() is on stable storage. r < 0: as
 * after a failed write, the ring writes nothing more. */
bool table_wants_sync(const struct table *t);
void table_sync_begin(struct table *t);
void table_sync_end(struct table *t, int r);
bool table_is_dirty(const struct table *t); /* something completed since the last sync began */

/* The file has more pages now, zeros, which a sync has covered. Not while a write is in flight.
 * -EAGAIN: the pages written since the last sync go round the end; sync once more. -ENOMEM. */
int table_grow(struct table *t, uint32_t pages);
uint64_t table_next_sequence(const struct table *t); /* sequence of the next page to be written */

uint32_t table_pages(const struct table *t);
/* Live entries it can hold and still take new ones at a bearable cost. */
uint32_t table_capacity(const struct table *t);
/* Pages ahead of the head, at least, that hold nothing live. */
uint32_t table_window(const struct table *t);
uint64_t table_bytes(const struct table *t); /* memory in bytes, except that of the chunks */
void table_get_stats(const struct table *t, struct table_stats *ret);
