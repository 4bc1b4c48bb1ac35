/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of table pages, as a state machine without a file: it composes batches of pages and is
 * notified of their results. Its owner does the I/O.
 *
 * For each page the ring knows which chunks have their live entry in it; all other entries are
 * superseded. table.c explains the rule that keeps live entries from being overwritten. Memory: one
 * bit more per chunk than the largest number of a chunk or page has, touched as they are used, and
 * 4 bytes per page. */
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
        /* Fills in a new entry, except its CRC. Returns false if the entry is no longer wanted;
         * `written` follows with -ECANCELED. */
        bool (*fill)(void *userdata, struct table_item *item, struct disk_entry *ret);
        /* Called when an entry was written to `page`, where the owner may place its chunk. If r <
         * 0, it is in no page. */
        void (*written)(void *userdata, struct table_item *item, uint32_t page, int r);
        /* Fills in a chunk's live entry, except the CRC. */
        void (*entry)(void *userdata, uint32_t chunk, struct disk_entry *ret);
};

struct table;

struct table_stats {
        uint64_t pages_written, entries_written, entries_carried, writes;
};

#define TABLE_STALE UINT64_MAX

/* Returns the newest page for recovery, which knows the sequence of each page (0 or TABLE_STALE if
 * not valid), or UINT32_MAX if there is none. */
uint32_t table_find_newest(const uint64_t *sequences, uint32_t pages);
/* Returns whether a crash or power loss kept a page with this sequence from being overwritten
 * although newer pages were written. No entry of such a page is needed, and a page that has been
 * overwritten may have revoked some. It must not be read, and must be erased before anything is
 * written. */
bool table_is_stale(const struct disk_page *newest, uint32_t pages, uint32_t page,
                    uint64_t sequence);

/* Creates an empty ring. Chunk numbers are below `max_chunks`, which is below 2^31. The caller owns
 * `ops`. */
int table_new(struct table **ret, const uint8_t uuid[static DISK_UUID_BYTES], uint32_t pages,
              uint32_t max_chunks, const struct table_ops *ops, void *userdata);
struct table *table_free(struct table *t);

/* Notes that a chunk's live entry, which was in no page, is in this page. */
void table_place(struct table *t, uint32_t page, uint32_t chunk);
/* Notes that the chunk has no live entry. */
void table_forget(struct table *t, uint32_t chunk);
/* Returns the page of the chunk's live entry, or TABLE_NOWHERE. */
uint32_t table_page_of(const struct table *t, uint32_t chunk);
/* Returns a chunk whose live entry is in the page, or TABLE_NOWHERE. */
uint32_t table_chunk_in(const struct table *t, uint32_t page);

/* Starts the ring with the next page to write and its sequence. The chunks with entries in the
 * `safe` pages behind the newest one must have been dropped: they were evicted before the stop,
 * without a write. Returns 0, or -ENOSPC if the page at `head` holds live entries all the same (a
 * damaged ring): drop their chunks and call again. */
int table_start(struct table *t, uint32_t head, uint64_t next_sequence);
/* Notes, after table_start(), that the pages before the head were written without a gap since this
 * sequence, and are all there. Recovery then finds out if one is lost later. */
void table_continue_run(struct table *t, uint64_t sequence);

/* Entries are written in the order they are queued. */
void table_queue(struct table *t, struct table_item *item);
bool table_has_queued(const struct table *t);
uint64_t table_queued(const struct table *t);

/* Composes the next write if an entry is queued, no write is in flight and table_wants_sync() does
 * not come first. The table owns the buffer, which is aligned to a page and unchanged until
 * table_complete(). */
bool table_compose(struct table *t, const void **ret_buf, uint64_t *ret_offset,
                   uint64_t *ret_bytes);
bool table_in_flight(const struct table *t);
/* Ends the write in flight. If r < 0 the ring is unusable: all entries that are queued, now or
 * later, get `r`. */
void table_complete(struct table *t, int r);

/* Bracket a sync of the file: everything completed before table_sync_begin() is on stable storage
 * after table_sync_end(). If r < 0 the ring writes nothing more, as after a failed write. */
bool table_wants_sync(const struct table *t);
void table_sync_begin(struct table *t);
void table_sync_end(struct table *t, int r);
int table_failure(const struct table *t);   /* why the ring has ended, as -errno; 0: it has not */
bool table_is_dirty(const struct table *t); /* a write has completed since the last sync began */

/* Adds pages, which are zero and synced. No write may be in flight. Returns 0; -EAGAIN if the pages
 * written since the last sync wrap around the end, so that another sync is needed; or -ENOMEM. */
int table_grow(struct table *t, uint32_t pages);
uint64_t table_next_sequence(const struct table *t); /* sequence of the next page to be written */

uint32_t table_pages(const struct table *t);
/* Returns the number of live entries up to which new ones can be written at acceptable cost. */
uint32_t table_capacity(const struct table *t);
/* Returns the number of pages at the head that are known to hold no live entry. */
uint32_t table_window(const struct table *t);
/* Returns the memory in bytes if chunks below this number were placed. */
uint64_t table_bytes(const struct table *t, uint32_t chunks);
void table_get_stats(const struct table *t, struct table_stats *ret);
