/* SPDX-License-Identifier: Apache-2.0 */
/* Recovery: builds the index from the files. Blocks; runs once, before any other I/O.
 *
 * The ring is scanned once, from its newest page to its oldest: probe.c finds the newest page,
 * reader.c reads the pages, and scan.c evaluates their entries. All chunks that are in the index
 * after the scan are live, unless a lowered limit removes them, and slots.c assigns their slots.
 *
 * A page is valid if its CRC, the volume's uuid and its position are right; an entry is valid if
 * its own CRC is right and its slot exists. So damage costs only the damaged entries. An old page
 * that should have been overwritten before newer ones were written, but was not because of a crash,
 * is erased and not read, because the tombstones that void its entries may be lost. A page that is
 * not whole is erased, too, before any sequence is assigned. Otherwise a later write that is torn
 * at the same place might complete it, with a sequence higher than those of purges that were made
 * meanwhile. */
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
#include "store/volume/recovery/internal.h"

enum { HUGE_BYTES = 2 * 1024 * 1024 };

int recovery_fail(struct recovery *rec, int r, const char *what)
{
        return store_error(rec->error, r, "%s: %s: %s", rec->v->path, what, dir_strerror(r));
}

void *recovery_huge_alloc(uint64_t bytes)
{
        void *p;

        if (bytes < HUGE_BYTES)
                return malloc(bytes);
        p = aligned_alloc(HUGE_BYTES, round_up(bytes, HUGE_BYTES));
        if (p)
                pages_wish_huge(p, round_up(bytes, HUGE_BYTES));
        return p;
}

void recovery_forget(struct volume *v, uint32_t i)
{
        v->evicted++;
        volume_chunk_at(v, i)->slab = INDEX_NO_SLAB;
        table_forget(v->table, i);
        index_unlink(v->index, i);
        index_release(v->index, i);
}

void recovery_forget_all(struct volume *v)
{
        for (uint32_t i = 0; i < index_high(v->index); i++)
                if (volume_chunk_at(v, i)->flags & CHUNK_USED)
                        recovery_forget(v, i);
        index_reset(v->index);
}

/* --- starting the ring, and the steps of recovery --- */

static int new_table(struct recovery *rec)
{
        struct volume *v = rec->v;

        int r = table_new(&v->table, v->dir->superblock.uuid, rec->pages, index_max(v->index),
                          &volume_table_ops, v);

        return r < 0 ? recovery_fail(rec, r, "cannot allocate the table") : 0;
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
                return recovery_fail(rec, r, "cannot allocate the slots");
        slabs_limit_owners(v->slabs, index_max(v->index));
        for (uint32_t i = 0; i < v->n_segments; i++) {
                struct segment *seg = v->segments[i];

                if (seg->fd < 0)
                        seg->bytes = DISK_PAGE;
                r = slabs_add(v->slabs, seg->bytes);
                if (r < 0)
                        return recovery_fail(rec, r, "cannot allocate the slots");
                if (seg->fd < 0)
                        segment_retire(v, i);
        }
        v->n_retired = 0; /* these files were missing before startup, so they do not count as
                             retired, and new files may be made for them */
        return 0;
}

/* Removes the chunks whose live entries are in the page. */
static void drop_page(struct volume *v, uint32_t page)
{
        uint32_t chunk;

        while ((chunk = table_chunk_in(v->table, page)) != TABLE_NOWHERE) {
                v->evicted++;
                chunk_remove(v, chunk);
        }
}

static int erase_stale(struct recovery *rec)
{
        struct disk_page *zeros = rec->block.pages;

        memset(zeros, 0, DISK_PAGE);
        rec->block.n = 0;
        for (uint32_t i = 0; i < rec->pages; i++)
                if (rec->sequences[i] == TABLE_STALE &&
                    pwrite(rec->v->table_fd, zeros, DISK_PAGE, (off_t)i * DISK_PAGE) != DISK_PAGE)
                        return errno ? -errno : -EIO;
        return 0;
}

/* Reads `n` pages of the ring and writes them again to the same place. Returns false if a page
 * cannot be read; stores the -errno of a failed write in *ret_error. */
static bool copy_pages(struct recovery *rec, uint32_t first, uint32_t n, int *ret_error)
{
        const off_t offset = (off_t)first * DISK_PAGE;
        const ssize_t bytes = (ssize_t)n * DISK_PAGE;
        int fd = rec->v->table_fd;

        if (pread(fd, rec->block.pages, (size_t)bytes, offset) != bytes)
                return false;
        errno = 0;
        if (pwrite(fd, rec->block.pages, (size_t)bytes, offset) != bytes)
                *ret_error = errno ? -errno : -EIO;
        return true;
}

/* Writes the newest pages again, each to its own place, unless the volume was closed properly.
 * After a failed sync, which the superblock may not show, the page cache may have pages that the
 * disk does not have and that the kernel will not write. The last daemon wrote at most
 * TABLE_UNSYNCED_MAX pages after its last successful sync. None of these overwrote the only copy of
 * a live entry, so if this write tears one of them, its entries still exist in older pages. The
 * batch after the newest page is included, because it may have been in flight. */
static int write_newest_again(struct recovery *rec)
{
        const struct disk_page *newest = &rec->newest;
        uint32_t ring = MIN(newest->ring_pages, rec->pages), n, back, first, k;
        int r = 0;

        if (newest->sequence == 0 || ring <= newest->position || rec->new_pages ||
            rec->v->stats.clean_start)
                return 0;
        back = (uint32_t)MIN(newest->sequence, (uint64_t)MIN((uint32_t)TABLE_UNSYNCED_MAX, ring));
        n = MIN(back + TABLE_BATCH_PAGES, ring);
        first = (newest->position + 1 + ring - back) % ring;
        rec->block.n = 0;
        for (; n > 0 && r == 0; n -= k, first = (first + k) % ring) {
                k = MIN(MIN(n, rec->room), ring - first);
                if (copy_pages(rec, first, k, &r))
                        continue;
                for (uint32_t i = 0; i < k && r == 0; i++)
                        copy_pages(rec, first + i, 1, &r);
        }
        return r;
}

/* Returns the lowest sequence from which on all pages up to the head exist without a gap, as far as
 * the scan has seen them. */
static uint64_t whole_since(const struct recovery *rec)
{
        const struct disk_page *newest = &rec->newest;
        uint32_t back = 0;

        if (newest->sequence != rec->max_sequence || newest->ring_pages != rec->pages)
                return rec->max_sequence + 1;
        while (back < MIN(newest->sequence, (uint64_t)rec->pages) &&
               rec->sequences[(newest->position + rec->pages - back) % rec->pages] ==
                       newest->sequence - back)
                back++;
        return newest->sequence + 1 - back;
}

static int start_ring(struct recovery *rec)
{
        struct volume *v = rec->v;
        uint32_t head = rec->newest.sequence == 0 ? 0 : (rec->newest.position + 1) % rec->pages;
        int r = erase_stale(rec);

        if (r == 0)
                r = write_newest_again(rec);
        if (r < 0)
                return recovery_fail(rec, r, "cannot write the table");
        for (uint32_t i = 0; i < MIN(rec->newest.safe, rec->pages - 1); i++)
                drop_page(v, (head + i) % rec->pages);
        r = table_start(v->table, head, rec->max_sequence + 1);
        if (r == -ENOSPC) {
                drop_page(v, head);
                r = table_start(v->table, head, rec->max_sequence + 1);
        }
        if (r < 0) /* the code is that of table_start(), and not an error of the file system */
                return store_error(rec->error, r,
                                   "%s: the pages of the file \"" RECOVERY_TABLE
                                   "\" contradict each other; move the directory away to start "
                                   "with an empty volume",
                                   v->path);
        table_continue_run(v->table, whole_since(rec));
        return fdatasync(v->table_fd) < 0 ? recovery_fail(rec, -errno, "cannot sync the table") : 0;
}

/* Writes all live entries, the oldest first, into a new, smaller file, which then replaces the
 * ring. */
static int rewrite_ring(struct recovery *rec)
{
        struct volume *v = rec->v;
        _cleanup_(closep) int fd =
                dir_open_file(v->dir, RECOVERY_TABLE_NEW, O_RDWR | O_CREAT | O_TRUNC);
        struct disk_page *page = rec->block.pages;
        uint32_t next = 0, left = index_high(v->index);
        int r;

        if (fd < 0)
                return fd;
        r = dir_allocate(fd, (uint64_t)rec->new_pages * DISK_PAGE);
        if (r < 0)
                return r;
        rec->block.n = 0;
        rec->pages = rec->new_pages;
        rec->newest = (struct disk_page){};
        v->table = table_free(v->table);
        r = new_table(rec);
        if (r < 0)
                return r;
        while (left > 0 && next < rec->pages) {
                *page = (struct disk_page){
                        .magic = DISK_PAGE_MAGIC,
                        .sequence = ++rec->max_sequence,
                        .position = next,
                        .ring_pages = rec->pages,
                        .run_sequence = rec->max_sequence,
                };
                memcpy(page->uuid, v->dir->superblock.uuid, DISK_UUID_BYTES);
                while (left > 0 && page->count < DISK_PAGE_ENTRIES) {
                        uint32_t i = --left;
                        const struct chunk *c = volume_chunk_at(v, i);
                        struct disk_entry *e = &page->entries[page->count];

                        if (!(c->flags & CHUNK_USED))
                                continue;
                        entry_from_chunk(v, i, e);
                        e->crc = disk_entry_crc(e, v->dir->superblock.uuid);
                        page->count++;
                        table_place(v->table, next, i);
                }
                page->crc = disk_page_crc(page);
                if (pwrite(fd, page, DISK_PAGE, (off_t)next * DISK_PAGE) != DISK_PAGE)
                        return errno ? -errno : -EIO;
                rec->newest = *page;
                next++;
        }
        assert(left == 0);
        if (fsync(fd) < 0 ||
            renameat(v->dir->fd, RECOVERY_TABLE_NEW, v->dir->fd, RECOVERY_TABLE) < 0)
                return -errno;
        close(v->table_fd);
        v->table_fd = TAKE_FD(fd);
        memset(rec->sequences, 0,
               rec->pages * sizeof(*rec->sequences)); /* the new ring has no stale pages to erase */
        return dir_sync(v->dir);
}

static int recovery_all(struct recovery *rec)
{
        struct volume *v = rec->v;
        uint64_t reserve =
                MIN(MAX(v->params.limit / 4096, UINT64_C(16) * 1024), UINT64_C(2) * 1024 * 1024);
        int r;

        r = recovery_open_segments(rec);
        if (r == 0)
                r = recovery_make_room(rec);
        if (r == 0)
                r = namespaces_open(&v->namespaces, v->dir, reserve, &rec->names_lost, rec->error);
        if (r < 0)
                return r;
        r = recovery_open_ring(rec);
        if (r == 0)
                recovery_populate_start(rec);
        if (r == 0)
                r = new_table(rec);
        if (r == 0)
                r = recovery_scan(rec);
        if (r == 0)
                r = recovery_enforce_limit(rec);
        if (r == 0)
                r = add_slabs(rec);
        if (r < 0)
                return r;

        v->seq = MAX(rec->max_seq, namespaces_max_seq(v->namespaces));
        if (v->seq > CHUNK_SEQ_MAX - RECOVERY_UNREAD_GAP ||
            rec->max_sequence > RECOVERY_PAGE_SEQUENCE_MAX - RECOVERY_UNREAD_GAP)
                return store_error(rec->error, -EOVERFLOW,
                                   "%s: no sequence numbers are left; create a new store", v->path);
        if (rec->names_lost) {
                /* Leaves one id without a namespace permanently, so that has_other_tenants()
                 * returns true from now on. */
                namespaces_reserve_id(v->namespaces, namespaces_next_id(v->namespaces));
                namespaces_purge_all(v->namespaces, v->seq);
                r = namespaces_write_now(v->namespaces);
                if (r < 0)
                        return recovery_fail(rec, r, "cannot write the namespaces");
                recovery_forget_all(v);
        }
        r = expected_note_losses(rec);
        if (r == 0)
                r = recovery_take_slots(rec);
        recovery_populate_stop(rec);
        if (r < 0)
                return r;
        if (rec->new_pages) {
                r = rewrite_ring(rec);
                if (r < 0)
                        return recovery_fail(rec, r, "cannot shrink the table");
        }
        return start_ring(rec);
}

int recovery_run(struct volume *v, char ret_error[static STORE_ERROR_BYTES])
{
        struct recovery rec = {
                .v = v,
                .error = ret_error,
                .lock = PTHREAD_MUTEX_INITIALIZER,
                .cond = PTHREAD_COND_INITIALIZER,
        };
        uint64_t begun = clock_mono_ns();
        int r = recovery_all(&rec);

        recovery_populate_stop(&rec);
        recovery_close_ring(&rec);
        recovery_scan_fini(&rec);
#ifdef __GLIBC__
        malloc_trim(0); /* returns the memory that recovery has freed to the kernel */
#endif
        v->stats.recover_ms = (clock_mono_ns() - begun) / 1000000;
        return r;
}
