/* SPDX-License-Identifier: Apache-2.0 */
/* Start: from the files to the index. Blocks; runs once, before there is any other I/O.
 *
 * Two looks at the ring, each sequential; recover-read.c reads it. What the looks come to in memory
 * is anywhere, so each fetches it for a whole page before it is used.
 *   1. The newest page, hence the head; the highest sequence; of each segment the last cut
 *      (epoch), and of each of its slots the highest sequence. Then a lowered limit is enforced,
 *      before anything is built.
 *   2. From the oldest page to the newest: entries that won their slot, of namespaces that are
 *      known and not purged since, go into the index; of a key with several the highest sequence
 *      stays; of an entry with several copies the newest page counts. Any other entry, tombstones
 *      above all, that is newer than what the index holds under its key, takes it out: the entries
 *      of one key were written in the order of their sequences.
 *
 * What is left is live, and recover-places.c gives it its place.
 *
 * A ring whose pages do not follow each other in the order of their sequences, whatever has
 * happened to it, has the second look's takings-out done in a look of their own, when all that may
 * be taken out is in.
 *
 * A page counts if its CRC, the store's uuid and its position are right, an entry if its own CRC is
 * and its place exists: damage costs the entries it hit. A page that a crash left unwritten amid
 * newer ones is not read, and erased: what it holds would outlive the tombstones that came after
 * it. So is a page that is not whole, before a sequence is given: overwritten and torn once more,
 * it might be whole again, as new as what is written by then, purges and all. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "base/clock.h"
#include "base/pages.h"
#include "checked.h"
#include "cleanup.h"
#include "store/recover-internal.h"

enum {
        HUGE_BYTES = 2 * 1024 * 1024,
        ARENA_BYTES = 16 * 1024 * 1024,
};

/* How far both counters go ahead when a page could not be read: it may be readable again at another
 * start, and what is purged or written from now on must be newer than all it says. */
#define UNREAD_GAP (UINT64_C(1) << 40)

int recover_fail(struct recovery *rec, int r, const char *what)
{
        return store_error(rec->error, r, "%s: %s: %s", rec->v->path, what, strerror(-r));
}

/* --- first look --- */

void *recover_huge_alloc(uint64_t bytes)
{
        void *p;

        if (bytes < HUGE_BYTES)
                return malloc(bytes);
        p = aligned_alloc(HUGE_BYTES, round_up(bytes, HUGE_BYTES));
        if (p)
                pages_wish_huge(p, round_up(bytes, HUGE_BYTES));
        return p;
}

static uint64_t *seqs_new(struct recovery *rec, uint32_t n)
{
        uint64_t bytes = (uint64_t)n * sizeof(uint64_t), room;
        struct arena *a = rec->arenas;
        void *p;

        if (!a || a->bytes - a->used < bytes) {
                /* A short table tells of few slots. */
                room = MIN((uint64_t)rec->pages * DISK_PAGE, (uint64_t)ARENA_BYTES);
                room = round_up(MAX(bytes + sizeof(*a), room), DISK_PAGE);
                a = recover_huge_alloc(room);
                if (!a)
                        return NULL;
                *a = (struct arena){ .next = rec->arenas, .used = sizeof(*a), .bytes = room };
                rec->arenas = a;
        }
        p = (char *)a + a->used;
        a->used += bytes;
        return p;
}

static void arenas_free(struct arena *a)
{
        while (a) {
                struct arena *next = a->next;

                free(a);
                a = next;
        }
}

static int scan_entry(struct recovery *rec, const struct disk_entry *e)
{
        struct segment_scan *scan;

        rec->max_seq = MAX(rec->max_seq, e->seq);
        namespaces_reserve_id(rec->v->namespaces, e->namespace_id);
        if (e->flags & DISK_ENTRY_TOMBSTONE || !recover_place_valid(rec, e))
                return 0;
        rec->max_seq = MAX(rec->max_seq, e->segment_epoch);
        scan = &rec->scans[e->segment];
        if (!scan->seqs || e->segment_epoch > scan->epoch) {
                scan->epoch = e->segment_epoch;
                scan->slot_pages = e->slot_pages;
                scan->tenant = e->tenant; /* a file is of one */
                scan->slots = (uint32_t)(scan->bytes / DISK_PAGE / e->slot_pages);
                if (scan->slots > scan->room) {
                        /* What it had is left: all in all no more than what it has. */
                        scan->room = MAX(scan->slots, 2 * scan->room);
                        scan->seqs = seqs_new(rec, scan->room);
                        if (!scan->seqs)
                                return recover_fail(rec, -ENOMEM, "reading the table");
                }
                memset(scan->seqs, 0, scan->slots * sizeof(*scan->seqs));
                rec->n_won -= scan->won;
                scan->won = 0;
        }
        if (recover_is_of_scan(scan, e)) {
                uint64_t *seq = &scan->seqs[e->slot_offset / e->slot_pages];

                if (*seq == 0) {
                        scan->won++;
                        rec->n_won++;
                }
                *seq = MAX(*seq, e->seq);
        }
        return 0;
}

static int first_look(struct recovery *rec)
{
        for (uint32_t i = 0; i < rec->pages; i++) {
                uint32_t entries;
                const struct disk_page *page = recover_valid_page(rec, i, &entries);

                if (!page) {
                        /* A page that was torn before its first sector has no head to come back
                         * with. */
                        if (recover_page(rec, i)->magic != 0) {
                                rec->v->stats.skipped_pages++;
                                rec->sequences[i] = TABLE_STALE;
                        }
                        continue;
                }
                rec->v->stats.recovered_pages++;
                rec->sequences[i] = page->sequence;
                rec->entries[i] = entries;
                recover_prefetch(rec, page);
                for (unsigned j = 0; j < page->count; j++) {
                        int r = entries >> j & 1 ? scan_entry(rec, &page->entries[j]) : 0;

                        if (r < 0)
                                return r;
                }
                recover_expect(rec, rec->n_won, false);
        }
        rec->looked = true;
        rec->newest = table_find_newest(rec->sequences, rec->pages);
        if (rec->newest != UINT32_MAX) {
                const struct disk_page *newest = recover_page(rec, rec->newest);

                rec->max_sequence = newest->sequence;
                rec->safe = newest->safe;
                table_mark_stale(rec->sequences, rec->pages, newest);
        }
        if (rec->unread) {
                rec->max_seq += UNREAD_GAP;
                rec->max_sequence += UNREAD_GAP;
        }
        return 0;
}

/* --- second look --- */

static void index_entry(struct recovery *rec, const struct disk_entry *e, uint64_t hash,
                        uint32_t page)
{
        struct volume *v = rec->v;
        uint32_t i = index_find(v->index, e->namespace_id, &e->key, hash);
        struct chunk *c;

        if (i != INDEX_NONE) {
                c = volume_chunk_at(v, i);
                if (c->seq > e->seq)
                        return;
                if (c->seq == e->seq && rec->sequences[table_page_of(v->table, i)] >
                                                rec->sequences[page])
                        return;
                table_forget(v->table, i);
        } else {
                i = index_acquire(v->index);
                if (i == INDEX_NONE)
                        return; /* store.entries was lowered */
                c = volume_chunk_at(v, i);
                c->key = e->key;
                c->namespace_id = e->namespace_id;
                index_link(v->index, i, hash);
        }
        c->seq = e->seq;
        c->created_ms = e->created_ms;
        memcpy(c->parent, e->parent, sizeof(c->parent));
        c->length = e->length;
        c->crc = e->payload_crc;
        c->slab = (uint16_t)e->segment;
        c->slot = (e->slot_offset / e->slot_pages) & ((1u << CHUNK_SLOT_BITS) - 1);
        table_place(v->table, page, i);
}

void recover_forget(struct volume *v, uint32_t i)
{
        volume_chunk_at(v, i)->slab = INDEX_NO_SLAB;
        table_forget(v->table, i);
        index_unlink(v->index, i);
        index_release(v->index, i);
}

static void unindex_entry(struct recovery *rec, const struct disk_entry *e, uint64_t hash)
{
        struct volume *v = rec->v;
        uint32_t i = index_find(v->index, e->namespace_id, &e->key, hash);

        if (i == INDEX_NONE || volume_chunk_at(v, i)->seq >= e->seq)
                return;
        recover_forget(v, i);
}

/* Some of a page's entries go into the index, others take out what is older. Whatever is wanted of
 * the page's is asked for at once, so that its memory is fetched together. */
static void use_entries(struct recovery *rec, const struct disk_page *page,
                        const uint64_t *hashes, uint32_t in, uint32_t out)
{
        uint32_t wanted = in | out;
        const struct volume *v = rec->v;

        for (unsigned j = 0; j < page->count; j++)
                if (wanted >> j & 1)
                        index_prefetch(v->index, hashes[j], 0);
        for (unsigned j = 0; j < page->count; j++)
                if (wanted >> j & 1)
                        index_prefetch(v->index, hashes[j], 1);
        for (unsigned j = 0; j < page->count; j++) {
                const struct disk_entry *e = &page->entries[j];

                if (in >> j & 1)
                        index_entry(rec, e, hashes[j], page->position);
                else if (out >> j & 1)
                        unindex_entry(rec, e, hashes[j]);
        }
}

/* From the oldest page on. */
static uint32_t page_by_age(const struct recovery *rec, uint32_t i)
{
        uint32_t oldest = rec->newest == UINT32_MAX ? 0 : rec->newest + 1;

        return (uint32_t)(((uint64_t)oldest + i) % rec->pages);
}

static bool is_in_order(const struct recovery *rec)
{
        uint64_t last = 0;

        for (uint32_t i = 0; i < rec->pages; i++) {
                uint64_t sequence = rec->sequences[page_by_age(rec, i)];

                if (sequence == 0 || sequence == TABLE_STALE)
                        continue;
                if (sequence <= last)
                        return false;
                last = sequence;
        }
        return true;
}

static void third_look(struct recovery *rec)
{
        for (uint32_t i = 0; i < rec->pages; i++) {
                const struct check *check;
                const struct disk_page *page = recover_judged_page(rec, i, &check);

                if (page)
                        use_entries(rec, page, check->hashes, 0, check->entries & ~check->won);
        }
}

static void second_look(struct recovery *rec)
{
        bool in_order = is_in_order(rec);

        rec->in_force = true;
        index_reserve(rec->v->index, rec->n_won);
        recover_expect(rec, rec->n_won, true);
        for (uint32_t i = 0; i < rec->pages; i++) {
                const struct check *check;
                const struct disk_page *page = recover_judged_page(rec, page_by_age(rec, i), &check);

                if (page)
                        use_entries(rec, page, check->hashes, check->in,
                                    in_order ? check->entries & ~check->won : 0);
        }
        if (!in_order)
                third_look(rec);
}

/* --- building --- */

static int new_table(struct recovery *rec)
{
        struct volume *v = rec->v;

        return table_new(&v->table, v->dir->superblock.uuid, rec->pages, index_max(v->index),
                         &volume_table_ops, v);
}

static int add_slabs(struct recovery *rec)
{
        struct volume *v = rec->v;
        int r;

        v->slab_bytes = v->segment_bytes;
        for (uint32_t i = 0; i < v->n_segments; i++)
                v->slab_bytes = MAX(v->slab_bytes, v->segments[i]->bytes);
        r = slabs_new(&v->slabs, DISK_SEGMENTS_MAX, v->slab_bytes);
        if (r < 0)
                return recover_fail(rec, r, "making the slot allocator");
        for (unsigned i = 0; i < namespaces_count(v->namespaces); i++)
                slabs_declare_class(v->slabs, namespaces_at(v->namespaces, i)->seen.chunk_bytes);
        for (uint32_t i = 0; i < v->n_segments; i++) {
                struct segment *seg = v->segments[i];

                if (seg->fd < 0)
                        seg->bytes = DISK_PAGE;
                r = slabs_add(v->slabs, seg->bytes);
                if (r < 0)
                        return recover_fail(rec, r, "making the slot allocator");
                if (seg->fd < 0)
                        segment_retire(v, i);
        }
        v->n_retired = 0; /* those were missing already: no reason not to make new ones */
        return 0;
}

/* Forgets what lies in the page. */
static void drop_page(struct volume *v, uint32_t page)
{
        uint32_t chunk;

        while ((chunk = table_chunk_in(v->table, page)) != TABLE_NOWHERE)
                chunk_remove(v, chunk);
}

static int erase_stale(struct recovery *rec)
{
        struct disk_page *zeros = rec->block.pages;

        memset(zeros, 0, DISK_PAGE);
        rec->block.n = 0;
        for (uint32_t i = 0; i < rec->pages; i++)
                if (rec->sequences[i] == TABLE_STALE &&
                    pwrite(rec->v->table_fd, zeros, DISK_PAGE, (off_t)i * DISK_PAGE) !=
                            DISK_PAGE)
                        return errno ? -errno : -EIO;
        return 0;
}

static int start_ring(struct recovery *rec)
{
        struct volume *v = rec->v;
        uint32_t head = rec->newest == UINT32_MAX ? 0 : (rec->newest + 1) % rec->pages;
        int r = erase_stale(rec);

        if (r < 0)
                return recover_fail(rec, r, "cannot write the table");
        for (uint32_t i = 0; i < MIN(rec->safe, rec->pages - 1); i++)
                drop_page(v, (head + i) % rec->pages);
        r = table_start(v->table, head, rec->max_sequence + 1);
        if (r == -ENOSPC) {
                drop_page(v, head);
                r = table_start(v->table, head, rec->max_sequence + 1);
        }
        if (r < 0)
                return recover_fail(rec, r, "starting the table");
        return fdatasync(v->table_fd) < 0 ? recover_fail(rec, -errno, "cannot sync the table") : 0;
}

/* All live entries into a new, smaller file, which then takes the place of the ring. */
static int rewrite_ring(struct recovery *rec)
{
        struct volume *v = rec->v;
        _cleanup_(closep) int fd =
                dir_open_file(v->dir, RECOVER_TABLE_NEW, O_RDWR | O_CREAT | O_TRUNC);
        struct disk_page *page = rec->block.pages;
        uint32_t next = 0, i = 0, high = index_high(v->index);
        int r;

        if (fd < 0)
                return fd;
        r = dir_allocate(fd, (uint64_t)rec->new_pages * DISK_PAGE);
        if (r < 0)
                return r;
        rec->block.n = 0;
        rec->pages = rec->new_pages;
        rec->newest = UINT32_MAX;
        rec->safe = 0;
        v->table = table_free(v->table);
        r = new_table(rec);
        if (r < 0)
                return r;
        while (i < high && next < rec->pages) {
                *page = (struct disk_page){
                        .magic = DISK_PAGE_MAGIC,
                        .sequence = ++rec->max_sequence,
                        .position = next,
                        .ring_pages = rec->pages,
                        .run_sequence = rec->max_sequence,
                };
                memcpy(page->uuid, v->dir->superblock.uuid, DISK_UUID_BYTES);
                for (; i < high && page->count < DISK_PAGE_ENTRIES; i++) {
                        const struct chunk *c = volume_chunk_at(v, i);
                        struct disk_entry *e = &page->entries[page->count];

                        if (!(c->flags & CHUNK_USED))
                                continue;
                        entry_from_chunk(v, c, e);
                        e->crc = disk_entry_crc(e, v->dir->superblock.uuid);
                        page->count++;
                        table_place(v->table, next, i);
                }
                page->crc = disk_page_crc(page);
                if (pwrite(fd, page, DISK_PAGE, (off_t)next * DISK_PAGE) != DISK_PAGE)
                        return errno ? -errno : -EIO;
                rec->newest = next++;
        }
        assert(i == high);
        if (fsync(fd) < 0 || renameat(v->dir->fd, RECOVER_TABLE_NEW, v->dir->fd, RECOVER_TABLE) < 0)
                return -errno;
        close(v->table_fd);
        v->table_fd = TAKE_FD(fd);
        memset(rec->sequences, 0,
               rec->pages * sizeof(*rec->sequences)); /* nothing stale in this one */
        return dir_sync(v->dir);
}

static int recover_all(struct recovery *rec)
{
        struct volume *v = rec->v;
        bool lost = false;
        uint64_t reserve =
                MIN(MAX(v->params.limit / 4096, UINT64_C(16) * 1024), UINT64_C(2) * 1024 * 1024);
        int r;

        r = namespaces_open(&v->namespaces, v->dir, reserve, &lost, rec->error);
        if (r < 0)
                return r;
        r = recover_open_ring(rec);
        if (r == 0)
                r = recover_open_segments(rec);
        if (r == 0)
                r = first_look(rec);
        if (r == 0)
                r = recover_enforce_limit(rec);
        if (r == 0)
                r = add_slabs(rec);
        if (r < 0)
                return r;

        v->seq = MAX(rec->max_seq, namespaces_max_seq(v->namespaces));
        if (v->seq > CHUNK_SEQ_MAX - UNREAD_GAP)
                return store_error(rec->error, -EOVERFLOW,
                                   "%s: no sequence numbers are left: make the store anew", v->path);
        if (lost) {
                namespaces_purge_all(v->namespaces, v->seq);
                r = namespaces_write_now(v->namespaces);
                if (r < 0)
                        return recover_fail(rec, r, "cannot write the namespaces");
        }
        r = new_table(rec);
        if (r < 0)
                return recover_fail(rec, r, "making the table");
        second_look(rec);
        recover_ahead_stop(rec);
        r = recover_take_places(rec);
        if (r < 0)
                return r;
        if (rec->new_pages) {
                r = rewrite_ring(rec);
                if (r < 0)
                        return recover_fail(rec, r, "cannot make a smaller table");
        }
        return start_ring(rec);
}

int recover(struct volume *v, char ret_error[static STORE_ERROR_BYTES])
{
        struct recovery rec = {
                .v = v,
                .error = ret_error,
                .lock = PTHREAD_MUTEX_INITIALIZER,
                .cond = PTHREAD_COND_INITIALIZER,
        };
        uint64_t begun = clock_mono_ns();
        int r = recover_all(&rec);

        recover_close_ring(&rec);
        arenas_free(rec.arenas);
        free(rec.scans);
#ifdef __GLIBC__
        malloc_trim(0); /* what a start has needed is needed no more */
#endif
        v->stats.recover_ms = (clock_mono_ns() - begun) / 1000000;
        return r;
}
