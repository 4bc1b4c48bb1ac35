/* SPDX-License-Identifier: Apache-2.0 */
/* Recovery: scans the table ring, and decides which entry of each slot and of each key counts.
 *
 * The scan goes from the newest page to the oldest, and in each page from its last entry to its
 * first, until every slot has been seen. The entries of one slot, and of one key, were written in
 * the order of their sequences, so the first one that the scan meets is the latest. The first entry
 *
 *   of a segment    has the valid epoch and size of the segment's slots;
 *   of a slot       names the chunk that the slot belongs to, live or not;
 *   of a hand-over  makes all older entries of the segment void;
 *   of a key        names the chunk's slot. If the slot has another owner by now, or the entry is a
 *                   tombstone, the key has no chunk, and is added to `dead_keys`.
 *
 * So a record that the scan adds to the index is never removed again. If the namespace of an entry
 * was purged after it, the entry only marks its slot as seen; its key need not be remembered,
 * because older entries of the namespace are purged as well.
 *
 * The scan must begin at the newest page. In a ring of several blocks, probe.c estimates this page.
 * If the sequences of the pages then do not fall from page to page, the scan reads the sequences of
 * all pages and starts again in their order. A ring of one block is in memory, and is scanned in
 * the order of sequences from the start. */
#include "store/volume/recovery/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "warm.h"

enum {
        OUT_OF_ORDER = 1,               /* the pages are not in the planned order */
        ALL_IS_SAID = 2,                /* older pages cannot change the result */
        ARENA_BYTES = 16 * 1024 * 1024, /* usual size of a piece of memory in rec->arenas */
};

/* Upper estimate of the number by which sequences of entries that were not scanned may exceed the
 * highest one that was. Entries are written in the order in which puts end, so the gap must exceed
 * the number of puts that can begin while one is in flight. */
#define UNSEEN_GAP (UINT64_C(1) << 30)

/* --- the newest entry of each slot --- */

static uint64_t *hashes_new(struct recovery *rec, uint32_t n)
{
        uint64_t bytes = (uint64_t)n * sizeof(uint64_t), room;
        struct arena *a = rec->arenas;
        void *p;

        if (!a || a->bytes - a->used < bytes) {
                /* a small ring names few slots */
                room = MIN((uint64_t)rec->pages * DISK_PAGE, (uint64_t)ARENA_BYTES);
                room = round_up(MAX(bytes + sizeof(*a), room), DISK_PAGE);
                a = recovery_huge_alloc(room);
                if (!a)
                        return NULL;
                *a = (struct arena){ .next = rec->arenas, .used = sizeof(*a), .bytes = room };
                rec->arenas = a;
        }
        p = (char *)a + a->used;
        a->used += bytes;
        return memset(p, 0, bytes);
}

static void arenas_free(struct arena *a)
{
        while (a) {
                struct arena *next = a->next;

                free(a);
                a = next;
        }
}

/* Returns whether an entry names a valid slot within a file that exists or should exist. */
static bool has_place(const struct recovery *rec, const struct disk_entry *e)
{
        return !(e->flags & DISK_ENTRY_TOMBSTONE) && e->slot_pages > 0 &&
               e->slot_offset % e->slot_pages == 0 && e->length > 0 &&
               e->length <= MIN((uint64_t)e->slot_pages * DISK_PAGE, CHUNK_LENGTH_MAX) &&
               e->segment_epoch <= CHUNK_SEQ_MAX && expected_has_place(rec, e);
}

static int begin_scan(struct recovery *rec, struct segment_scan *scan, const struct disk_entry *e)
{
        scan->epoch = e->segment_epoch;
        scan->slot_pages = e->slot_pages;
        scan->tenant = e->tenant; /* all chunks of a file are of one tenant */
        scan->slots = (uint32_t)(MAX(scan->span, scan->mapped) / DISK_PAGE / e->slot_pages);
        scan->hashes = hashes_new(rec, scan->slots);
        if (!scan->hashes)
                return -ENOMEM;
        rec->unseen_segments -= scan->needed > 0;
        scan->unseen = (uint32_t)(scan->needed / DISK_PAGE / e->slot_pages);
        rec->unseen_slots += scan->unseen;
        return 0;
}

/* Notes an entry that is void because no file has its slot. A later file of the same number may
 * have this slot, so the first cut of that file must be recorded. */
static void note_void(const struct recovery *rec, const struct disk_entry *e)
{
        struct volume *v = rec->v;

        if (!(e->flags & DISK_ENTRY_TOMBSTONE) && e->segment < DISK_SEGMENTS_MAX)
                v->void_below = MAX(v->void_below, e->segment + 1);
}

/* Finds the slot of an entry, as an element of segment_scan.hashes. *ret is NULL if the entry has
 * no slot, or if newer entries show that the segment was cut again later. */
static int find_slot(struct recovery *rec, const struct disk_entry *e, uint64_t **ret)
{
        struct segment_scan *scan;

        *ret = NULL;
        if (!has_place(rec, e)) {
                note_void(rec, e);
                return 0;
        }
        rec->max_seq = MAX(rec->max_seq, e->segment_epoch);
        scan = &rec->scans[e->segment];
        if (!scan->hashes && begin_scan(rec, scan, e) < 0)
                return -ENOMEM;
        if (e->segment_epoch == scan->epoch && e->slot_pages == scan->slot_pages &&
            e->tenant == scan->tenant)
                *ret = &scan->hashes[e->slot_offset / e->slot_pages];
        return 0;
}

/* --- the newest entry of each key --- */

static int index_entry(struct recovery *rec, const struct disk_entry *e, uint64_t hash,
                       uint32_t page)
{
        struct volume *v = rec->v;
        uint32_t i = index_acquire(v->index);
        struct chunk *c;

        if (i == INDEX_NONE) { /* store.entries was lowered; older chunks are dropped */
                v->evicted++;
                return dead_keys_add(&rec->dead_keys, hash);
        }
        c = volume_chunk_at(v, i);
        c->key = e->key;
        index_link(v->index, i, e->namespace_id, hash);
        c->seq = e->seq;
        c->created_ms = MIN(e->created_ms, CHUNK_CREATED_MAX);
        c->length = e->length & CHUNK_LENGTH_MAX;
        c->crc = e->payload_crc;
        c->slab = e->segment & INDEX_NO_SLAB;
        c->slot = (e->slot_offset / e->slot_pages) & (CHUNK_SLOTS_MAX - 1);
        table_place(v->table, page, i);
        return 0;
}

/* Returns whether an entry is dead, because it was purged, its namespace is unknown, or its
 * namespace belongs to another tenant. */
static bool is_dead(const struct recovery *rec, const struct disk_entry *e)
{
        const struct namespaces *names = rec->v->namespaces;
        const struct namespace *ns;

        if (namespaces_is_dead(names, e->namespace_id, e->seq))
                return true;
        ns = namespaces_get(names, e->namespace_id);
        return ns->seen.tenant != e->tenant;
}

/* Handles the record of a hand-over: slots of the segment that no newer entry has named are
 * empty. */
static void scan_handover(struct recovery *rec, const struct disk_entry *e)
{
        struct segment_scan *scan = &rec->scans[e->segment];

        if (e->segment_epoch != scan->epoch)
                return;
        rec->unseen_slots -= scan->unseen;
        scan->unseen = 0;
}

/* Returns whether the page is one of the safe pages after the newest page. These pages never hold
 * the only entry of a stored chunk, but may hold the latest entry of an evicted one. */
static bool is_overwritten_next(const struct recovery *rec, uint32_t page)
{
        const struct disk_page *newest = &rec->newest;

        return ((uint64_t)page + rec->pages - newest->position % rec->pages - 1) % rec->pages <
               newest->safe;
}

static int scan_entry(struct recovery *rec, const struct disk_entry *e, uint64_t hash,
                      uint32_t page)
{
        const struct volume *v = rec->v;
        struct segment_scan *scan;
        uint64_t *slot;
        int r;

        rec->max_seq = MAX(rec->max_seq, e->seq);
        namespaces_reserve_id(v->namespaces, e->namespace_id);
        r = find_slot(rec, e, &slot);
        if (r < 0)
                return r;
        if (disk_entry_is_handover(e)) {
                if (slot)
                        scan_handover(rec, e);
                return 0;
        }
        if (slot && *slot == hash)
                return 0; /* a newer entry has the same slot and key; this is most likely an older
                             copy of it */
        if (!slot || *slot != 0)
                return dead_keys_add(&rec->dead_keys, hash);
        *slot = hash;
        scan = &rec->scans[e->segment];
        if (scan->unseen > 0 &&
            ((uint64_t)e->slot_offset + e->slot_pages) * DISK_PAGE <= scan->needed) {
                scan->unseen--;
                rec->unseen_slots--;
        }
        if (rec->names_lost && !dead_keys_have(&rec->dead_keys, hash)) {
                rec->nameless += !is_overwritten_next(rec, page);
                return dead_keys_add(&rec->dead_keys, hash);
        }
        if (is_dead(rec, e) || dead_keys_have(&rec->dead_keys, hash) ||
            index_find(v->index, e->namespace_id, &e->key, hash) != INDEX_NONE)
                return 0;
        if (!expected_is_there(rec, e)) {
                note_void(rec, e);
                scan->lost += !is_overwritten_next(rec, page);
                return dead_keys_add(&rec->dead_keys, hash);
        }
        return index_entry(rec, e, hash, page);
}

/* --- pages --- */

/* The scan accesses memory at random places. So for each page it prefetches, in steps some pages
 * ahead: the page itself, the slots and dead keys of its entries, their buckets in the index, and
 * the records in these buckets. */

static const uint64_t *slot_of(const struct recovery *rec, const struct disk_entry *e)
{
        const struct segment_scan *scan;

        if (e->segment >= DISK_SEGMENTS_MAX)
                return NULL;
        scan = &rec->scans[e->segment];
        return scan->hashes && e->slot_pages == scan->slot_pages &&
                               e->slot_offset / e->slot_pages < scan->slots
                       ? &scan->hashes[e->slot_offset / e->slot_pages]
                       : NULL;
}

/* Prefetches memory for a page's entries. Step 0 is for slots and dead keys; steps 1 and 2 are
 * steps 0 and 1 of index_warm(), for entries whose slot was not seen yet. */
static void warm_entries(const struct recovery *rec, uint32_t at, unsigned step)
{
        const struct disk_page *page = &rec->block.pages[at];
        const struct check *check = &rec->block.checks[at];

        for (unsigned j = page->count; check->valid && j-- > 0;) {
                const uint64_t *slot;

                if (!(check->entries >> j & 1))
                        continue;
                slot = slot_of(rec, &page->entries[j]);
                if (step == 0) {
                        dead_keys_warm(&rec->dead_keys, check->hashes[j]);
                        if (slot)
                                warm(slot, 1);
                } else if (!slot || *slot == 0) {
                        index_warm(rec->v->index, check->hashes[j], step - 1);
                }
        }
}

static void warm_for(const struct recovery *rec, uint32_t at)
{
        if (at >= 3)
                recovery_warm_page(&rec->block.pages[at - 3]);
        for (unsigned step = 0; step <= 2; step++)
                if (at >= 2 - step)
                        warm_entries(rec, at - (2 - step), step);
}

/* Returns whether this page must have been written: it belongs to the present run, and is older
 * than the batch that may have been in flight. If such a page is missing, the file was cut or a
 * power loss has lost its write. */
static bool is_hole(const struct recovery *rec, uint32_t page)
{
        const struct disk_page *newest = &rec->newest;
        uint32_t ring = newest->ring_pages, back;

        if (newest->sequence == 0 || ring > rec->pages || newest->position >= ring || page >= ring)
                return false;
        back = (newest->position + ring - page) % ring;
        return back >= TABLE_BATCH_PAGES && back < newest->sequence &&
               newest->sequence - back >= newest->run_sequence;
}

/* Records the sequence of the page at this position, or TABLE_STALE or 0 if it is not valid.
 * Returns whether it is valid. */
static bool note_page(struct recovery *rec, uint32_t page)
{
        const struct block *b = &rec->block;
        const struct disk_page *p = &b->pages[page - b->first];

        if (b->checks[page - b->first].valid) {
                rec->v->stats.recovered_pages++;
                rec->sequences[page] = p->sequence;
                return true;
        }
        /* A page with a wrong CRC must be erased. A page that is torn in its first sector may have
         * no magic number, and counts as never written. */
        if (p->magic != 0)
                rec->sequences[page] = TABLE_STALE;
        rec->v->stats.skipped_pages += p->magic != 0 || is_hole(rec, page);
        return false;
}

/* Returns whether the scan can end, because every slot has been seen and older pages add nothing to
 * the index. Returns false while there may still be pages that a crash has left and that must be
 * erased, and if all pages are needed: after damage, without a list of namespaces, or with
 * store_params.as_is. */
static bool is_all_seen(const struct recovery *rec)
{
        return rec->unseen_segments == 0 && rec->unseen_slots == 0 && rec->newest_is_sure &&
               (rec->sorted || rec->scanned > TABLE_UNSYNCED_MAX) && !rec->unread &&
               rec->v->stats.skipped_pages == 0 && !rec->names_lost && !rec->reads_all &&
               !rec->v->params.as_is;
}

/* Scans a page. Returns 0, ALL_IS_SAID if the scan can end, OUT_OF_ORDER if the plan does not agree
 * with the sequences of the pages, or -errno. */
static int scan_page(struct recovery *rec, uint32_t page)
{
        const struct block *b = &rec->block;
        const struct disk_page *p = &b->pages[page - b->first];
        const struct check *check = &b->checks[page - b->first];
        int r = 0;

        rec->scanned +=
                page <
                rec->newest.ring_pages; /* pages of the file beyond the ring are not counted */
        if (!(rec->sorted ? check->valid : note_page(rec, page)))
                return 0;
        if (!rec->sorted) {
                if (p->sequence > rec->newest.sequence)
                        return OUT_OF_ORDER;
                if (table_is_stale(&rec->newest, rec->pages, page, p->sequence)) {
                        rec->sequences[page] = TABLE_STALE;
                        return 0;
                }
                if (rec->last != 0 && p->sequence >= rec->last)
                        return OUT_OF_ORDER;
                rec->last = p->sequence;
        }
        warm_for(rec, page - b->first);
        for (unsigned j = p->count; j-- > 0 && r == 0;)
                if (check->entries >> j & 1)
                        r = scan_entry(rec, &p->entries[j], check->hashes[j], page);
        recovery_expect(rec, index_high(rec->v->index));
        return r != 0 || !is_all_seen(rec) ? r : ALL_IS_SAID;
}

static int follow_plan(struct recovery *rec, int (*scan)(struct recovery *rec, uint32_t page))
{
        int r = 0;

        if (rec->room < rec->pages)
                rec->block.n = 0; /* reads the block again, because an earlier check of it may have
                                     been shallow */
        recovery_threads_start(rec);
        for (uint32_t i = 0; i < rec->plan.n_visits && r == 0; i++) {
                const struct visit *visit = &rec->plan.visits[i];

                recovery_take_turn(rec, visit->turn);
                for (uint32_t page = visit->high + 1; page-- > visit->low && r == 0;)
                        r = scan(rec, page);
        }
        recovery_threads_stop(rec);
        return r;
}

static int note_page_only(struct recovery *rec, uint32_t page)
{
        note_page(rec, page);
        return 0;
}

static int read_newest(struct recovery *rec, uint32_t page)
{
        struct block *b = &rec->block;

        if (b->n == 0 || page < b->first || page - b->first >= b->n)
                recovery_block_fill(rec, b, page / rec->room * rec->room);
        rec->newest = b->pages[page - b->first];
        if (disk_page_valid(&rec->newest, rec->v->dir->superblock.uuid, page))
                return 0;
        rec->newest.sequence = 0;
        return -EIO;
}

/* Prepares a scan, and discards the results of an earlier one. */
static void reset_scan(struct recovery *rec)
{
        struct volume *v = rec->v;

        recovery_forget_all(v);
        index_reserve(v->index, rec->likely);
        for (uint32_t i = 0; i < DISK_SEGMENTS_MAX; i++)
                rec->scans[i] = (struct segment_scan){
                        .bytes = rec->scans[i].bytes,
                        .mapped = rec->scans[i].mapped,
                        .span = rec->scans[i].span,
                        .needed = rec->scans[i].needed,
                        .removed_for = rec->scans[i].removed_for,
                };
        arenas_free(rec->arenas);
        rec->arenas = NULL;
        dead_keys_fini(&rec->dead_keys);
        rec->dead_keys.likely = rec->superseded;
        memset(rec->sequences, 0, rec->pages * sizeof(*rec->sequences));
        v->stats.recovered_pages = v->stats.skipped_pages = 0;
        rec->newest.sequence = 0;
        rec->last = rec->scanned = 0;
        rec->sorted = rec->newest_is_sure = false;
        rec->unseen_slots = rec->unseen_segments = 0;
        rec->nameless = 0;
        for (uint32_t i = 0; i < DISK_SEGMENTS_MAX; i++)
                rec->unseen_segments += rec->scans[i].needed > 0;
}

/* Scans from the estimated newest page backwards. Returns OUT_OF_ORDER if there is no estimate, or
 * if the sequences of the pages show that it was wrong. */
static int scan_back(struct recovery *rec)
{
        uint32_t newest;
        int r;

        reset_scan(rec);
        rec->shallow = true;
        newest = recovery_estimate_newest(rec, &rec->newest_is_sure);
        rec->shallow = false;
        if (rec->v->dir->superblock.unsynced)
                rec->newest_is_sure = false;
        if (newest == UINT32_MAX || read_newest(rec, newest) < 0)
                return OUT_OF_ORDER;
        r = recovery_plan_back(rec, newest);
        return r < 0 ? r : follow_plan(rec, scan_page);
}

static int scan_sorted(struct recovery *rec)
{
        uint32_t newest;
        int r = recovery_plan_all(rec);

        reset_scan(rec);
        rec->shallow = rec->room < rec->pages;
        if (r == 0)
                r = follow_plan(rec, note_page_only);
        rec->shallow = false;
        if (r < 0)
                return r;
        while ((newest = table_find_newest(rec->sequences, rec->pages)) != UINT32_MAX &&
               read_newest(rec, newest) < 0) {
                rec->sequences[newest] = 0; /* the page could be read before, but not now */
                rec->unread = true;
        }
        if (newest == UINT32_MAX)
                return 0;
        for (uint32_t i = 0; i < rec->pages; i++)
                rec->v->stats.skipped_pages += rec->sequences[i] == 0 && is_hole(rec, i);
        for (uint32_t i = 0; i < rec->pages; i++)
                if (rec->sequences[i] != 0 &&
                    table_is_stale(&rec->newest, rec->pages, i, rec->sequences[i]))
                        rec->sequences[i] = TABLE_STALE;
        rec->sorted = rec->newest_is_sure = true;
        r = recovery_plan_sorted(rec);
        return r < 0 ? r : follow_plan(rec, scan_page);
}

/* Raises max_seq and max_sequence above the sequences of pages that were not scanned (`early`) or
 * could not be read. Uses the ceilings of the superblock. If these are not valid, because an older
 * daemon used the store or the store is damaged, uses an estimate. */
static void go_on_from(struct recovery *rec, bool early)
{
        const struct disk_superblock *sb = &rec->v->dir->superblock;
        bool known = sb->seq_ceiling > 0 && rec->max_seq <= sb->seq_ceiling &&
                     rec->max_sequence <= sb->page_ceiling;

        if (!early && !rec->unread)
                return;
        if (known) {
                rec->max_seq = sb->seq_ceiling;
                rec->max_sequence = MAX(rec->max_sequence, rec->unread ? sb->page_ceiling : 0);
                return;
        }
        rec->max_seq += rec->unread ? RECOVERY_UNREAD_GAP : UNSEEN_GAP;
        rec->max_sequence += rec->unread ? RECOVERY_UNREAD_GAP : 0;
}

int recovery_scan(struct recovery *rec)
{
        const struct disk_superblock *sb = &rec->v->dir->superblock;
        int r = OUT_OF_ORDER;

        if (rec->room < rec->pages)
                r = scan_back(rec);
        if (r == OUT_OF_ORDER)
                r = scan_sorted(rec);
        dead_keys_fini(&rec->dead_keys);
        if (r < 0)
                return recovery_fail(rec, r, "cannot read the table");
        rec->max_sequence = rec->newest.sequence;
        /* Segments that were cut before the sizes were computed have epochs up to sizes_seq. */
        rec->max_seq = MAX(rec->max_seq, MIN(sb->sizes_seq, (uint64_t)CHUNK_SEQ_MAX));
        if (r == ALL_IS_SAID ||
            rec->unread) /* the pages that were not scanned may have void entries of any segment */
                rec->v->void_below = DISK_SEGMENTS_MAX;
        rec->v->evicted +=
                rec->unread; /* an entry of an unread page may be found by the next startup */
        go_on_from(rec, r == ALL_IS_SAID);
        return 0;
}

void recovery_scan_fini(struct recovery *rec)
{
        arenas_free(rec->arenas);
        dead_keys_fini(&rec->dead_keys);
        free(rec->scans);
}
