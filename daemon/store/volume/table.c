/* SPDX-License-Identifier: Apache-2.0 */
/* The table ring: the durable record of the chunk in each slot.
 *
 * A chunk survives a restart only if its entry has reached the disk; slots without an entry are
 * free. Runs on the loop thread. Owns the head, the queue, the page buffers, and for each page the
 * list of chunks whose live entry is in it. These lists are linked through one array by chunk
 * number; the last link of a list is the page's number.
 *
 * The rule: none of the next `safe` pages from the head on holds the only copy of a live entry. A
 * batch of k pages overwrites [head, head + k), with k at most half of `safe`, and carries the live
 * entries of k pages from head + safe on. Once it is complete, those entries are in the batch, and
 * the rule holds for the new head. If a crash loses or tears any part of the batch, every live
 * entry is still in its old page, because no page that was overwritten was needed, and at least
 * half of the safe pages are still safe. While `safe` is below the preferred window, the entries of
 * two pages are carried for each page written. While it is above, no entries are carried. Pages
 * after the safe ones become safe without a copy if they have no live entries; so if chunks are
 * evicted in about the order of their puts, most of the ring's free space is safe, and syncs are
 * rare.
 *
 * Power loss: writes that were completed but not synced may be lost in any order. So at most half
 * of the pages that were safe at the last sync are written without another one; table_wants_sync()
 * requests a sync at a quarter.
 *
 * Tombstones are not carried: the ring overwrites pages in the order in which they were written, so
 * every older entry of the key is overwritten before its tombstone. Within a torn batch this order
 * does not hold; recovery finds the pages concerned with table_is_stale().
 *
 * Entries that are queued while a batch is in flight share the next batch. Carried entries get room
 * in a batch before queued ones, so that the rule always holds.
 *
 * Page sequences show which pages a crash kept from being written: each is one more than the one
 * before, and the beginning of the ring follows its end. So a ring may grow only while all unsynced
 * pages lie between the beginning of the file and the head, because growing does not change the
 * order of these.
 *
 * Failures: after a failed write the ring writes nothing more, because the content of those pages
 * is unknown. The same holds after a failed sync: the pages that the sync was to cover may never
 * reach the disk, so older pages with the same entries must not be overwritten. Gets do not need
 * the ring and continue. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/packed.h"
#include "base/pages-ahead.h"
#include "base/pages.h"
#include "checked.h"
#include "cleanup.h"
#include "store/volume/table.h"

#define LAST_LINK (UINT32_C(1) << 31)
static_assert(TABLE_MAX_PAGES < LAST_LINK, "a page fits");

enum {
        WINDOW_MIN = 4,
        WINDOW_MAX = 2 * TABLE_UNSYNCED_MAX,
        WINDOW_SHARE = 8
}; /* the preferred window is 1/8 of the ring, within these limits */

/* An entry of the batch in flight: a queued one (`item`), or the entry of `chunk` that is carried
 * from page `from`. */
struct batch_entry {
        struct table_item *item;
        uint32_t chunk;
        uint32_t from;
};

struct table {
        uint8_t uuid[DISK_UUID_BYTES];
        const struct table_ops *ops;
        void *userdata;

        uint32_t pages, max_chunks;
        uint32_t *heads; /* by page: 1 + the first chunk of its list; 0 if the list is empty, as in
                            new memory */
        struct packed links; /* by chunk; see link_of() */
        uint32_t linked;     /* all chunks that were ever placed have lower numbers */
        uint64_t heads_bytes, links_bytes;
        struct pages_ahead links_ahead;

        uint32_t head; /* next page to write */
        uint32_t safe; /* number of safe pages from the head on, see the rule above */
        uint64_t next_sequence, run_sequence;
        int failed; /* see table_failure() */

        struct list_node queue;
        uint64_t queued;

        uint32_t flying;        /* pages of the write in flight; 0 if none */
        uint32_t carried_pages; /* pages whose entries the write in flight carries */
        uint32_t n_batch;
        struct disk_page *buf;
        struct batch_entry batch[TABLE_BATCH_PAGES * DISK_PAGE_ENTRIES];

        /* `written`: pages written since table_start(). `synced` and `syncing`: the value of
         * `written` when the last successful sync, and the sync in flight, began; `synced_safe` and
         * `syncing_safe`: the value of `safe` at these times. */
        uint64_t written, synced, syncing;
        uint32_t synced_safe, syncing_safe;

        struct table_stats stats;
};

DEFINE_CLEANUP(struct table *, table_free);

static uint32_t wished_window(const struct table *t)
{
        return MAX((uint32_t)WINDOW_MIN, MIN(t->pages / WINDOW_SHARE, (uint32_t)WINDOW_MAX));
}

/* Returns the widest window that is used while its pages have no live entries, so that a wide
 * window costs no copies. */
static uint32_t widest_window(const struct table *t)
{
        return MAX(wished_window(t), MIN(t->pages / 2, (uint32_t)WINDOW_MAX));
}

static uint64_t map_bytes(uint32_t numbers)
{
        return round_up((uint64_t)numbers * sizeof(uint32_t), 4096);
}

/* Returns the link of a chunk: 1 + the next chunk in its page, or LAST_LINK | page at the end of
 * the list; 0 if the chunk is in no page. In memory the flag LAST_LINK is the lowest bit. */
static uint32_t link_of(const struct table *t, uint32_t chunk)
{
        uint32_t link = packed_get(&t->links, chunk);

        return link >> 1 | link << 31;
}

static void set_link(struct table *t, uint32_t chunk, uint32_t link)
{
        packed_set(&t->links, chunk, link << 1 | link >> 31);
}

/* Returns the number of bits that a link takes in a ring of this number of pages. */
static unsigned link_bits(const struct table *t, uint32_t pages)
{
        return packed_bits(MAX(t->max_chunks, pages - 1)) + 1;
}

static int map_links(struct table *t, unsigned bits)
{
        t->links.bits = bits;
        t->links_bytes = round_up(packed_bytes(t->max_chunks, bits) + PACKED_PADDING, 4096);
        t->links.base = pages_map(t->links_bytes);
        if (!t->links.base)
                return -ENOMEM;
        pages_ahead_init(&t->links_ahead, t->links.base, t->links_bytes);
        return 0;
}

static void unmap_links(struct table *t)
{
        pages_ahead_fini(&t->links_ahead);
        if (t->links.base)
                munmap(t->links.base, t->links_bytes);
}

/* Makes the links wide enough for the page numbers of a larger ring. */
static int widen_links(struct table *t, uint32_t pages)
{
        struct table old = { .links = t->links,
                             .links_bytes = t->links_bytes,
                             .links_ahead = t->links_ahead };
        int r;

        if (link_bits(t, pages) <= t->links.bits)
                return 0;
        r = map_links(t, link_bits(t, pages));
        if (r < 0) {
                t->links = old.links;
                t->links_bytes = old.links_bytes;
                return r;
        }
        for (uint32_t i = 0; i < t->linked; i++)
                set_link(t, i, link_of(&old, i));
        unmap_links(&old);
        return 0;
}

int table_new(struct table **ret, const uint8_t uuid[static DISK_UUID_BYTES], uint32_t pages,
              uint32_t max_chunks, const struct table_ops *ops, void *userdata)
{
        _cleanup_(table_freep) struct table *t = calloc(1, sizeof(*t));

        if (!t)
                return -ENOMEM;
        assert(pages >= TABLE_MIN_PAGES && pages < TABLE_MAX_PAGES);
        assert(max_chunks > 0 && max_chunks < LAST_LINK);
        memcpy(t->uuid, uuid, DISK_UUID_BYTES);
        t->ops = ops;
        t->userdata = userdata;
        t->pages = pages;
        t->max_chunks = max_chunks;
        t->next_sequence = t->run_sequence = 1;
        list_init(&t->queue);
        t->buf = aligned_alloc(DISK_PAGE, (size_t)TABLE_BATCH_PAGES * DISK_PAGE);
        if (!t->buf)
                return -ENOMEM;
        t->heads_bytes = map_bytes(pages);
        t->heads = pages_map(t->heads_bytes);
        if (!t->heads || map_links(t, link_bits(t, pages)) < 0)
                return -ENOMEM;
        t->safe = t->synced_safe = wished_window(t);
        *ret = TAKE_PTR(t);
        return 0;
}

struct table *table_free(struct table *t)
{
        if (!t)
                return NULL;
        if (t->heads)
                munmap(t->heads, t->heads_bytes);
        unmap_links(t);
        free(t->buf);
        free(t);
        return NULL;
}

void table_place(struct table *t, uint32_t page, uint32_t chunk)
{
        assert(page < t->pages && chunk < t->max_chunks && link_of(t, chunk) == 0);
        t->linked = MAX(t->linked, chunk + 1);
        pages_ahead_use(&t->links_ahead, packed_bytes((uint64_t)chunk + 1, t->links.bits));
        set_link(t, chunk, t->heads[page] != 0 ? t->heads[page] : LAST_LINK | page);
        t->heads[page] = chunk + 1;
}

uint32_t table_page_of(const struct table *t, uint32_t chunk)
{
        uint32_t link;

        assert(chunk < t->max_chunks);
        link = link_of(t, chunk);
        if (link == 0)
                return TABLE_NOWHERE;
        while (!(link & LAST_LINK))
                link = link_of(t, link - 1);
        return link & ~LAST_LINK;
}

void table_forget(struct table *t, uint32_t chunk)
{
        uint32_t page = table_page_of(t, chunk), before, link;

        if (page == TABLE_NOWHERE)
                return;
        link = link_of(t, chunk);
        if (t->heads[page] == chunk + 1) {
                t->heads[page] = link & LAST_LINK ? 0 : link;
        } else {
                before = t->heads[page] - 1;
                while (link_of(t, before) != chunk + 1)
                        before = link_of(t, before) - 1;
                set_link(t, before, link);
        }
        set_link(t, chunk, 0);
}

uint32_t table_chunk_in(const struct table *t, uint32_t page)
{
        assert(page < t->pages);
        return t->heads[page] - 1;
}

/* Returns 1 + the next chunk in the same page, or 0 at the end. */
static uint32_t next_in_page(const struct table *t, uint32_t chunk)
{
        uint32_t link = link_of(t, chunk);

        return link & LAST_LINK ? 0 : link;
}

static uint32_t page_after(const struct table *t, uint32_t page, uint32_t steps)
{
        return (uint32_t)(((uint64_t)page + steps) % t->pages);
}

static unsigned count_live(const struct table *t, uint32_t page)
{
        unsigned n = 0;

        for (uint32_t i = t->heads[page]; i != 0; i = next_in_page(t, i - 1))
                n++;
        return n;
}

/* Returns the number of safe pages from the head on, within widest_window(). The first `n` are
 * known to be safe; a further page is safe if it has no live entry. */
static uint32_t count_safe(const struct table *t, uint32_t n)
{
        uint32_t most = widest_window(t);

        while (n < most && t->heads[page_after(t, t->head, n)] == 0)
                n++;
        return n;
}

uint32_t table_find_newest(const uint64_t *sequences, uint32_t pages)
{
        uint32_t newest = UINT32_MAX;

        for (uint32_t i = 0; i < pages; i++)
                if (sequences[i] != 0 && sequences[i] != TABLE_STALE &&
                    (newest == UINT32_MAX || sequences[i] > sequences[newest]))
                        newest = i;
        return newest;
}

/* From the newest page backwards, the sequence of each page must be one less than that of the page
 * after it, down to `run_sequence`; a page with another sequence is stale. Pages before that are
 * not checked. */
bool table_is_stale(const struct disk_page *newest, uint32_t pages, uint32_t page,
                    uint64_t sequence)
{
        uint32_t ring = newest->ring_pages, back;

        if (ring > pages || newest->position >= ring || page >= ring)
                return false;
        back = (uint32_t)(((uint64_t)newest->position + ring - page) % ring);
        return back < newest->sequence && newest->sequence - back >= newest->run_sequence &&
               sequence != newest->sequence - back;
}

int table_start(struct table *t, uint32_t head, uint64_t next_sequence)
{
        assert(head < t->pages && t->flying == 0);
        t->head = head;
        t->next_sequence = t->run_sequence = next_sequence;
        t->safe = t->synced_safe = count_safe(t, 0);
        t->written = t->synced = 0;
        return t->safe > 0 ? 0 : -ENOSPC;
}

void table_continue_run(struct table *t, uint64_t sequence)
{
        assert(sequence > 0 && sequence <= t->next_sequence);
        t->run_sequence = sequence;
}

void table_queue(struct table *t, struct table_item *item)
{
        list_append(&t->queue, &item->node);
        t->queued++;
}

bool table_has_queued(const struct table *t)
{
        return t->queued > 0;
}

uint64_t table_queued(const struct table *t)
{
        return t->queued;
}

static struct table_item *dequeue(struct table *t)
{
        struct list_node *n = list_pop(&t->queue);

        if (!n)
                return NULL;
        t->queued--;
        return container_of(n, struct table_item, node);
}

static void fail_queued(struct table *t)
{
        struct table_item *item;

        while ((item = dequeue(t)))
                t->ops->written(t->userdata, item, TABLE_NOWHERE, t->failed);
}

/* Returns the number of pages that may still be written before a sync. */
static uint32_t unsynced_room(const struct table *t)
{
        uint64_t most = MAX(t->synced_safe / 2, 1u), since = t->written - t->synced;

        return since >= most ? 0 : (uint32_t)(most - since);
}

int table_failure(const struct table *t)
{
        return t->failed;
}

bool table_wants_sync(const struct table *t)
{
        return !t->failed && t->written - t->synced >= MAX(t->synced_safe / 4, 1u);
}

bool table_is_dirty(const struct table *t)
{
        return t->written > t->synced;
}

void table_sync_begin(struct table *t)
{
        t->syncing = t->written;
        t->syncing_safe = t->safe;
}

void table_sync_end(struct table *t, int r)
{
        if (r < 0) {
                t->failed = r;
                return;
        }
        t->synced = t->syncing;
        t->synced_safe = t->syncing_safe;
}

/* Returns the number of pages after the safe ones whose entries a batch of k pages should carry. k
 * pages keep the window, more pages widen it, and fewer suffice if it is wider than preferred. */
static uint32_t pages_to_carry(const struct table *t, uint32_t k)
{
        uint32_t wish = wished_window(t), carry = k;

        if (t->safe < wish)
                carry += MIN(k, wish - t->safe);
        else
                carry -= MIN(k, t->safe - wish);
        return MIN(carry, t->pages - t->safe);
}

static struct disk_entry *batch_add(struct table *t, struct table_item *item, uint32_t chunk,
                                    uint32_t from)
{
        uint32_t n = t->n_batch++;

        t->batch[n] = (struct batch_entry){ .item = item, .chunk = chunk, .from = from };
        return &t->buf[n / DISK_PAGE_ENTRIES].entries[n % DISK_PAGE_ENTRIES];
}

static void carry_page(struct table *t, uint32_t page)
{
        for (uint32_t i = t->heads[page]; i != 0; i = next_in_page(t, i - 1))
                t->ops->entry(t->userdata, i - 1, batch_add(t, NULL, i - 1, page));
}

/* Returns the number of pages after the n-th page of the batch that are safe even if all unsynced
 * writes are lost: the pages that were safe at the last sync, less those written since. */
static uint32_t safe_after(const struct table *t, uint32_t n)
{
        uint64_t safe = t->synced + t->synced_safe, written = t->written + n;

        return safe > written ? (uint32_t)(safe - written) : 0;
}

static void seal_pages(struct table *t, uint32_t k)
{
        for (uint32_t i = 0; i < k; i++) {
                struct disk_page *page = &t->buf[i];
                uint32_t first = i * DISK_PAGE_ENTRIES;

                page->magic = DISK_PAGE_MAGIC;
                memcpy(page->uuid, t->uuid, DISK_UUID_BYTES);
                page->sequence = t->next_sequence + i;
                page->position = t->head + i;
                page->ring_pages = t->pages;
                page->safe = safe_after(t, i + 1);
                page->run_sequence = t->run_sequence;
                page->count = (uint16_t)(t->n_batch > first ? MIN(t->n_batch - first,
                                                                  (uint32_t)DISK_PAGE_ENTRIES)
                                                            : 0);
                for (unsigned j = 0; j < page->count; j++)
                        page->entries[j].crc = disk_entry_crc(&page->entries[j], t->uuid);
                page->crc = disk_page_crc(page);
        }
}

bool table_compose(struct table *t, const void **ret_buf, uint64_t *ret_offset, uint64_t *ret_bytes)
{
        uint32_t k = 0, k_max, carry = 0, carried = 0, room = 0;

        if (t->failed)
                fail_queued(t);
        if (t->queued == 0 || t->flying > 0)
                return false;
        k_max = MIN(MAX(t->safe / 2, 1u), MIN((uint32_t)TABLE_BATCH_PAGES, t->pages - t->head));
        k_max = MIN(k_max, unsynced_room(t));
        if (k_max == 0)
                return false;

        /* Finds the smallest k for which all queued entries have room. The entries of k pages can
         * always be carried, because k pages have room for them. */
        do {
                k++;
                room = k * DISK_PAGE_ENTRIES;
                for (uint32_t want = pages_to_carry(t, k); carry < want; carry++) {
                        uint32_t n = count_live(t, page_after(t, t->head, t->safe + carry));

                        if (carried + n > room)
                                break;
                        carried += n;
                }
        } while (k < k_max && carried + t->queued > room);

        memset(t->buf, 0, (size_t)k * DISK_PAGE);
        t->n_batch = 0;
        for (uint32_t i = 0; i < carry; i++)
                carry_page(t, page_after(t, t->head, t->safe + i));
        assert(t->n_batch == carried);
        while (t->n_batch < room && t->queued > 0) {
                struct table_item *item = dequeue(t);
                struct disk_entry entry = { 0 };

                if (t->ops->fill(t->userdata, item, &entry))
                        *batch_add(t, item, 0, TABLE_NOWHERE) = entry;
                else
                        t->ops->written(t->userdata, item, TABLE_NOWHERE, -ECANCELED);
        }
        if (t->n_batch == carried && t->queued == 0)
                return false; /* all entries were cancelled */
        seal_pages(t, k);

        t->flying = k;
        t->carried_pages = carry;
        *ret_buf = t->buf;
        *ret_offset = (uint64_t)t->head * DISK_PAGE;
        *ret_bytes = (uint64_t)k * DISK_PAGE;
        return true;
}

bool table_in_flight(const struct table *t)
{
        return t->flying > 0;
}

void table_complete(struct table *t, int r)
{
        uint32_t first = t->head, k = t->flying;

        assert(k > 0);
        t->flying = 0;
        if (r < 0) {
                t->failed = r;
                for (uint32_t i = 0; i < t->n_batch; i++)
                        if (t->batch[i].item)
                                t->ops->written(t->userdata, t->batch[i].item, TABLE_NOWHERE, r);
                fail_queued(t);
                return;
        }

        for (uint32_t i = 0; i < k; i++)
                assert(t->heads[first + i] ==
                       0); /* by the rule, these pages held no live entries */
        t->head = page_after(t, t->head, k);
        t->next_sequence += k;
        t->safe = t->safe - k + t->carried_pages;
        t->written += k;
        t->stats.writes++;
        t->stats.pages_written += k;
        for (uint32_t i = 0; i < t->n_batch; i++) {
                struct batch_entry *b = &t->batch[i];
                uint32_t page = first + i / DISK_PAGE_ENTRIES;

                if (b->item) {
                        t->stats.entries_written++;
                        t->ops->written(t->userdata, b->item, page, 0);
                } else {
                        t->stats.entries_carried++;
                        /* if the entry has left its page, the chunk was dropped, and its number may
                         * belong to another chunk */
                        if (table_page_of(t, b->chunk) == b->from) {
                                table_forget(t, b->chunk);
                                table_place(t, page, b->chunk);
                        }
                }
        }
        t->safe = count_safe(t, t->safe);
}

uint64_t table_next_sequence(const struct table *t)
{
        return t->next_sequence;
}

int table_grow(struct table *t, uint32_t pages)
{
        void *p;
        int r;

        assert(t->flying == 0 && pages >= t->pages && pages < TABLE_MAX_PAGES);
        if (t->written - t->synced > t->head)
                return -EAGAIN;
        r = widen_links(t, pages);
        if (r < 0)
                return r;
        p = mremap(t->heads, t->heads_bytes, map_bytes(pages), MREMAP_MAYMOVE);
        if (p == MAP_FAILED)
                return -ENOMEM;
        t->heads = p;
        t->heads_bytes = map_bytes(pages);
        t->pages = pages;
        /* the pages from the beginning of the file to the head were written without a gap */
        t->run_sequence =
                MAX(t->run_sequence, t->next_sequence - MIN(t->head, t->next_sequence - 1));
        /* the new pages are empty, so the number of safe pages can only rise */
        t->safe = count_safe(t, t->safe);
        return 0;
}

uint32_t table_pages(const struct table *t)
{
        return t->pages;
}

uint32_t table_capacity(const struct table *t)
{
        return (t->pages - wished_window(t)) / 8 * 7 * DISK_PAGE_ENTRIES;
}

uint32_t table_window(const struct table *t)
{
        return t->safe;
}

uint64_t table_bytes(const struct table *t, uint32_t chunks)
{
        return sizeof(*t) + t->heads_bytes + (uint64_t)TABLE_BATCH_PAGES * DISK_PAGE +
               packed_bytes(chunks, t->links.bits);
}

void table_get_stats(const struct table *t, struct table_stats *ret)
{
        *ret = t->stats;
}
