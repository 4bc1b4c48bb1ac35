/* SPDX-License-Identifier: Apache-2.0 */
/* A start, the reading: the ring's pages, checked. recover.c says what for.
 *
 * A ring of up to 64 MiB is read once and kept meanwhile; a larger one is read for each look, past
 * the page cache where that is possible: memory that is touched for the first time may cost more
 * than the device. Then there are threads beside, which recover-ahead.c has. Without them
 * everything is done in turn.
 *
 * A block that was never written is not read, and what cannot be read is as good as zeros. */
#include "store/recover-internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/pages.h"
#include "checked.h"
#include "prefetch.h"

enum {
        READ_PAGES = 256,
        STEP_BYTES = 1024 * 1024, /* a power of two */
        KEEP_PAGES = 64 * 1024 * 1024 / DISK_PAGE,
};

/* What is allocated and was never written need not be read: the kernel would zero pages of its own
 * first. Asked once, before the first read: pages that it reads ahead there are data to it. */
static int find_written(struct recovery *rec)
{
        uint32_t n = (rec->pages + rec->room - 1) / rec->room;
        uint64_t bytes = (uint64_t)rec->room * DISK_PAGE;
        off_t end = 0;

        rec->written = calloc(n, sizeof(*rec->written));
        if (!rec->written)
                return -ENOMEM;
        for (;;) {
                off_t data = lseek(rec->v->table_fd, end, SEEK_DATA);

                if (data < 0 && errno == ENXIO)
                        return 0;
                end = data < 0 ? -1 : lseek(rec->v->table_fd, data, SEEK_HOLE);
                if (end <= data) {
                        memset(rec->written, true, n); /* it does not say */
                        return 0;
                }
                for (uint64_t i = (uint64_t)data / bytes; i < n && i * bytes < (uint64_t)end; i++)
                        rec->written[i] = true;
        }
}

/* What cannot be read is as good as zeros: not valid. */
static void block_read(const struct recovery *rec, struct block *b)
{
        char *buf = (char *)b->pages;
        uint64_t offset = (uint64_t)b->first * DISK_PAGE, bytes = (uint64_t)b->n * DISK_PAGE,
                 done = 0, step = STEP_BYTES;
        bool zeros = !rec->written[b->first / rec->room];

        if (zeros && !b->zeros)
                memset(buf, 0, (size_t)rec->room * DISK_PAGE);
        b->zeros = zeros;
        if (zeros)
                return;
        while (done < bytes) {
                /* To the end of a page, whatever was read before. */
                uint64_t next = MIN(round_down(done, DISK_PAGE) + step, bytes);
                ssize_t k = pread(rec->v->table_fd, buf + done, next - done, (off_t)(offset + done));

                if (k < 0 && errno == EINTR)
                        continue;
                if (k > 0) {
                        done += (uint64_t)k;
                        step = MIN(2 * step, (uint64_t)STEP_BYTES);
                } else if (k == 0) {
                        memset(buf + done, 0, bytes - done);
                        break;
                } else if (step > DISK_PAGE) {
                        /* Somewhere in there: a direct read says no more, and each that fails may
                         * take the device a second. */
                        step /= 2;
                } else {
                        b->unread = true;
                        memset(buf + done, 0, next - done);
                        done = next;
                }
        }
}

/* No store has come to give a sequence that a record has no room for. */
static bool entry_valid(const struct disk_entry *e, const uint8_t uuid[static DISK_UUID_BYTES])
{
        return disk_entry_valid(e, uuid) && e->seq <= CHUNK_SEQ_MAX;
}

void recover_block_check(const struct recovery *rec, struct block *b, bool again)
{
        const uint8_t *uuid = rec->v->dir->superblock.uuid;

        b->checked = true;
        for (uint32_t i = 0; i < b->n; i++) {
                const struct disk_page *p = &b->pages[i];
                struct check *c = &b->checks[i];

                c->valid = disk_page_valid(p, uuid, b->first + i);
                c->entries = 0;
                if (c->valid && again && p->sequence == rec->sequences[b->first + i]) {
                        c->entries = rec->entries[b->first + i];
                        continue;
                }
                for (unsigned j = 0; c->valid && j < p->count; j++)
                        c->entries |= (uint32_t)entry_valid(&p->entries[j], uuid) << j;
        }
}

bool recover_place_valid(const struct recovery *rec, const struct disk_entry *e)
{
        return e->segment < rec->v->n_segments && e->slot_pages > 0 &&
               e->slot_offset % e->slot_pages == 0 && e->length > 0 &&
               e->length <= (uint64_t)e->slot_pages * DISK_PAGE &&
               e->segment_epoch <= CHUNK_SEQ_MAX &&
               range_within((uint64_t)e->slot_offset * DISK_PAGE,
                            (uint64_t)e->slot_pages * DISK_PAGE, rec->scans[e->segment].bytes);
}

void recover_prefetch(const struct recovery *rec, const struct disk_page *page)
{
        for (unsigned j = 0; j < page->count; j++)
                if (page->entries[j].segment < rec->n_scans)
                        prefetch(&rec->scans[page->entries[j].segment]);
        for (unsigned j = 0; j < page->count; j++) {
                const struct disk_entry *e = &page->entries[j];
                const struct segment_scan *scan;

                if (e->segment >= rec->n_scans)
                        continue;
                scan = &rec->scans[e->segment];
                if (scan->seqs && e->slot_pages == scan->slot_pages &&
                    e->slot_offset / e->slot_pages < scan->slots)
                        prefetch(&scan->seqs[e->slot_offset / e->slot_pages]);
        }
}

/* The device has put it where no core has looked. */
static void prefetch_page(const struct disk_page *page)
{
        for (unsigned i = 0; i < DISK_PAGE; i += 64)
                prefetch((const char *)page + i);
}

static bool won_its_slot(const struct recovery *rec, const struct disk_entry *e)
{
        const struct segment_scan *scan;

        if (e->flags & DISK_ENTRY_TOMBSTONE || !recover_place_valid(rec, e))
                return false;
        scan = &rec->scans[e->segment];
        return recover_is_of_scan(scan, e) && e->seq == scan->seqs[e->slot_offset / e->slot_pages];
}

void recover_block_judge(const struct recovery *rec, struct block *b)
{
        const struct volume *v = rec->v;

        if (!b->checked)
                recover_block_check(rec, b, true);
        b->judged = true;
        for (uint32_t i = 0; i < b->n; i++) {
                const struct disk_page *p = &b->pages[i];
                struct check *c = &b->checks[i];

                c->won = c->in = 0;
                if (i + 2 < b->n)
                        prefetch_page(p + 2);
                if (i + 1 < b->n && b->checks[i + 1].valid)
                        recover_prefetch(rec, p + 1);
                if (!c->valid)
                        continue;
                for (unsigned j = 0; j < p->count; j++) {
                        const struct disk_entry *e = &p->entries[j];

                        if (!(c->entries >> j & 1))
                                continue;
                        c->hashes[j] = key_hash(&v->params.secret, e->namespace_id, &e->key);
                        if (!won_its_slot(rec, e))
                                continue;
                        c->won |= UINT32_C(1) << j;
                        if (!namespaces_is_dead(v->namespaces, e->namespace_id, e->seq))
                                c->in |= UINT32_C(1) << j;
                }
        }
}

void recover_block_fill(const struct recovery *rec, struct block *b, uint32_t first)
{
        b->first = first;
        b->n = MIN(rec->room, rec->pages - first);
        b->unread = b->checked = b->judged = false;
        block_read(rec, b);
}

int recover_block_init(struct block *b, uint32_t room)
{
        b->pages = aligned_alloc(DISK_PAGE, (size_t)room * DISK_PAGE);
        b->checks = calloc(room, sizeof(*b->checks));
        if (!b->pages || !b->checks)
                return -ENOMEM;
        pages_wish_huge(b->pages, (uint64_t)room * DISK_PAGE);
        return 0;
}

void recover_block_fini(struct block *b)
{
        free(b->pages);
        free(b->checks);
        *b = (struct block){};
}

/* The block that has the page. */
static void next_block(struct recovery *rec, uint32_t page)
{
        uint32_t first = page / rec->room * rec->room;

        if (!recover_ahead_take(rec, first))
                recover_block_fill(rec, &rec->block, first);
        rec->unread = rec->unread || rec->block.unread;
        recover_ahead_ask(rec, first);
        if (!rec->block.checked)
                recover_block_check(rec, &rec->block, rec->in_force);
}

const struct disk_page *recover_page(struct recovery *rec, uint32_t page)
{
        if (page < rec->block.first || page - rec->block.first >= rec->block.n)
                next_block(rec, page);
        return &rec->block.pages[page - rec->block.first];
}

const struct disk_page *recover_valid_page(struct recovery *rec, uint32_t page,
                                           uint32_t *ret_entries)
{
        const struct disk_page *p = recover_page(rec, page);
        const struct check *c = &rec->block.checks[page - rec->block.first];

        *ret_entries = c->entries;
        return c->valid ? p : NULL;
}

const struct disk_page *recover_judged_page(struct recovery *rec, uint32_t page,
                                            const struct check **ret_check)
{
        const struct disk_page *p;
        uint32_t entries;

        if (rec->sequences[page] == 0 || rec->sequences[page] == TABLE_STALE)
                return NULL;
        p = recover_valid_page(rec, page, &entries);
        if (!rec->block.judged)
                recover_block_judge(rec, &rec->block);
        *ret_check = &rec->block.checks[page - rec->block.first];
        return p;
}

int recover_open_ring(struct recovery *rec)
{
        struct volume *v = rec->v;
        struct stat st;
        int r;

        unlinkat(v->dir->fd, RECOVER_TABLE_NEW, 0);
        v->table_fd = dir_open_file(v->dir, RECOVER_TABLE, O_RDWR | O_CREAT);
        if (v->table_fd < 0)
                return recover_fail(rec, v->table_fd, "cannot open the file \"" RECOVER_TABLE "\"");
        if (fstat(v->table_fd, &st) < 0)
                return recover_fail(rec, -errno, "cannot look at the file \"" RECOVER_TABLE "\"");
        rec->pages =
                (uint32_t)MIN(MAX((uint64_t)st.st_size / DISK_PAGE, (uint64_t)STORE_RING_MIN_PAGES),
                              (uint64_t)TABLE_MAX_PAGES - 1);
        r = dir_allocate(v->table_fd, (uint64_t)rec->pages * DISK_PAGE);
        if (r == 0 && fdatasync(v->table_fd) < 0)
                r = -errno;
        if (r < 0)
                return recover_fail(rec, r, "cannot allocate the file \"" RECOVER_TABLE "\"");

        posix_fadvise(v->table_fd, 0, 0, POSIX_FADV_SEQUENTIAL);
        rec->room = rec->pages <= KEEP_PAGES ? rec->pages : READ_PAGES;
        if (v->params.table_block > 0)
                rec->room = MIN(v->params.table_block, rec->pages);
        rec->sequences = calloc(rec->pages, sizeof(*rec->sequences));
        rec->entries = calloc(rec->pages, sizeof(*rec->entries));
        if (recover_block_init(&rec->block, rec->room) < 0 || !rec->sequences || !rec->entries ||
            find_written(rec) < 0)
                return recover_fail(rec, -ENOMEM, "reading the table");
        if (rec->room < rec->pages)
                recover_ahead_start(rec);
        return 0;
}

void recover_close_ring(struct recovery *rec)
{
        recover_ahead_stop(rec);
        if (rec->v->table_fd >= 0)
                posix_fadvise(rec->v->table_fd, 0, 0, POSIX_FADV_DONTNEED);
        free(rec->sequences);
        free(rec->entries);
        free(rec->written);
        recover_block_fini(&rec->block);
}
