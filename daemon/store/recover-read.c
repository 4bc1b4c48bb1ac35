/* SPDX-License-Identifier: Apache-2.0 */
/* A start, the reading: the ring's pages, checked. recover.c says what for.
 *
 * A ring of up to 64 MiB is read once and kept meanwhile; a larger one is read for each look,
 * through the page cache: that costs less than touching that much memory. Then there are two
 * threads beside: one reads the next block while this one is looked at, and in the second look does
 * all but the index's part with it; one puts memory under the index while the device is what all
 * wait for. Without them everything is done in turn.
 *
 * A block that was never written is not read, and what cannot be read is as good as zeros. */
#include "store/recover-internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checked.h"

enum {
        READ_PAGES = 128,
        KEEP_PAGES = 64 * 1024 * 1024 / DISK_PAGE,
        POPULATE_RECORDS = 128 * 1024,
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
                off_t data = lseek(rec->fd, end, SEEK_DATA);

                if (data < 0 && errno == ENXIO)
                        return 0;
                end = data < 0 ? -1 : lseek(rec->fd, data, SEEK_HOLE);
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
                 done = 0;
        bool zeros = !rec->written[b->first / rec->room];

        if (zeros && !b->zeros)
                memset(buf, 0, (size_t)rec->room * DISK_PAGE);
        b->zeros = zeros;
        if (zeros)
                return;
        while (done < bytes) {
                ssize_t k = pread(rec->fd, buf + done, bytes - done, (off_t)(offset + done));

                if (k < 0 && errno == EINTR)
                        continue;
                if (k > 0) {
                        done += (uint64_t)k;
                        continue;
                }
                if (k == 0) {
                        memset(buf + done, 0, bytes - done);
                        break;
                }
                /* Past the page that fails; a page at a time from there, as long as it takes. */
                uint64_t next = MIN(round_down(done, DISK_PAGE) + DISK_PAGE, bytes);

                k = pread(rec->fd, buf + done, next - done, (off_t)(offset + done));
                if (k <= 0) {
                        b->unread = true;
                        memset(buf + done, 0, next - done);
                        done = next;
                } else {
                        done += (uint64_t)k;
                }
        }
}

/* No store has come to give a sequence that a record has no room for. */
static bool entry_valid(const struct disk_entry *e, const uint8_t uuid[static DISK_UUID_BYTES])
{
        return disk_entry_valid(e, uuid) && e->seq <= CHUNK_SEQ_MAX;
}

/* A page that is still whole has the same entries as when it was looked at first. */
static void block_check(const struct recovery *rec, struct block *b)
{
        const uint8_t *uuid = rec->v->dir->superblock.uuid;

        b->checked = true;
        for (uint32_t i = 0; i < b->n; i++) {
                const struct disk_page *p = &b->pages[i];
                struct check *c = &b->checks[i];

                c->valid = disk_page_valid(p, uuid, b->first + i);
                c->entries = 0;
                if (c->valid && rec->in_force && p->sequence == rec->sequences[b->first + i]) {
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
                        __builtin_prefetch(&rec->scans[page->entries[j].segment]);
        for (unsigned j = 0; j < page->count; j++) {
                const struct disk_entry *e = &page->entries[j];
                const struct segment_scan *scan;

                if (e->segment >= rec->n_scans)
                        continue;
                scan = &rec->scans[e->segment];
                if (scan->seqs && e->slot_pages == scan->slot_pages &&
                    e->slot_offset / e->slot_pages < scan->slots)
                        __builtin_prefetch(&scan->seqs[e->slot_offset / e->slot_pages]);
        }
}

static bool won_its_slot(const struct recovery *rec, const struct disk_entry *e)
{
        const struct segment_scan *scan;

        if (e->flags & DISK_ENTRY_TOMBSTONE || !recover_place_valid(rec, e))
                return false;
        scan = &rec->scans[e->segment];
        return recover_is_of_scan(scan, e) && e->seq == scan->seqs[e->slot_offset / e->slot_pages];
}

/* What the second look does, up to the index. Nothing that this reads changes any more. */
static void block_judge(const struct recovery *rec, struct block *b)
{
        const struct volume *v = rec->v;

        if (!b->checked)
                block_check(rec, b);
        b->judged = true;
        for (uint32_t i = 0; i < b->n; i++) {
                const struct disk_page *p = &b->pages[i];
                struct check *c = &b->checks[i];

                c->won = c->in = 0;
                if (!c->valid)
                        continue;
                recover_prefetch(rec, p);
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

static void block_fill(const struct recovery *rec, struct block *b, uint32_t first)
{
        b->first = first;
        b->n = MIN(rec->room, rec->pages - first);
        b->unread = b->checked = b->judged = false;
        block_read(rec, b);
}

static int block_init(struct block *b, uint32_t room)
{
        b->pages = aligned_alloc(DISK_PAGE, (size_t)room * DISK_PAGE);
        b->checks = calloc(room, sizeof(*b->checks));
        if (!b->pages || !b->checks)
                return -ENOMEM;
        madvise(b->pages, (size_t)room * DISK_PAGE, MADV_HUGEPAGE); /* a wish */
        return 0;
}

static void block_fini(struct block *b)
{
        free(b->pages);
        free(b->checks);
}

static void *reader_run(void *userdata)
{
        struct recovery *rec = userdata;

        pthread_mutex_lock(&rec->lock);
        while (!rec->ending) {
                if (!rec->reading) {
                        pthread_cond_wait(&rec->cond, &rec->lock);
                        continue;
                }
                pthread_mutex_unlock(&rec->lock);
                block_fill(rec, &rec->ahead, rec->ahead.first);
                if (rec->judging)
                        block_judge(rec, &rec->ahead);
                pthread_mutex_lock(&rec->lock);
                rec->reading = false;
                pthread_cond_broadcast(&rec->cond);
        }
        pthread_mutex_unlock(&rec->lock);
        return NULL;
}

/* Without it blocks are read as they are needed. */
static void reader_start(struct recovery *rec)
{
        if (block_init(&rec->ahead, rec->room) < 0)
                return;
        rec->has_reader = pthread_create(&rec->reader, NULL, reader_run, rec) == 0;
}

static void reader_wait(struct recovery *rec)
{
        pthread_mutex_lock(&rec->lock);
        while (rec->reading)
                pthread_cond_wait(&rec->cond, &rec->lock);
        pthread_mutex_unlock(&rec->lock);
}

static void reader_ask(struct recovery *rec, uint32_t first)
{
        pthread_mutex_lock(&rec->lock);
        rec->ahead.first = first;
        rec->ahead.n = 0;
        rec->reading = true;
        rec->judging = rec->in_force;
        pthread_cond_broadcast(&rec->cond);
        pthread_mutex_unlock(&rec->lock);
}

/* The kernel takes a third of a start to clear what the index is about to fill. While the table is
 * first read, the device is what all wait for. */
static void *populator_run(void *userdata)
{
        struct recovery *rec = userdata;
        uint32_t done = 0;

        pthread_mutex_lock(&rec->lock);
        while (!rec->ending) {
                uint32_t wanted = rec->expected;

                if (wanted <= done) {
                        pthread_cond_wait(&rec->cond, &rec->lock);
                        continue;
                }
                pthread_mutex_unlock(&rec->lock);
                index_populate(rec->v->index, done, wanted);
                done = wanted;
                pthread_mutex_lock(&rec->lock);
        }
        pthread_mutex_unlock(&rec->lock);
        return NULL;
}

static void populator_start(struct recovery *rec)
{
        rec->has_populator = pthread_create(&rec->populator, NULL, populator_run, rec) == 0;
}

void recover_expect(struct recovery *rec, uint32_t records)
{
        if (!rec->has_populator || records < rec->expected + POPULATE_RECORDS)
                return;
        pthread_mutex_lock(&rec->lock);
        rec->expected = records;
        pthread_cond_broadcast(&rec->cond);
        pthread_mutex_unlock(&rec->lock);
}

void recover_stop_threads(struct recovery *rec)
{
        if (!rec->has_reader && !rec->has_populator)
                return;
        pthread_mutex_lock(&rec->lock);
        rec->ending = true;
        pthread_cond_broadcast(&rec->cond);
        pthread_mutex_unlock(&rec->lock);
        if (rec->has_reader)
                pthread_join(rec->reader, NULL);
        if (rec->has_populator)
                pthread_join(rec->populator, NULL);
        rec->has_reader = rec->has_populator = false;
}

/* The block that will be needed after this one; from the end it goes on at the begin. */
static uint32_t wanted_after(const struct recovery *rec, uint32_t block)
{
        for (uint32_t first = block + rec->room; first < rec->pages; first += rec->room) {
                uint32_t end = MIN(rec->pages, first + rec->room);

                if (!rec->looked)
                        return first;
                for (uint32_t i = first; i < end; i++)
                        if (rec->sequences[i] != 0 && rec->sequences[i] != TABLE_STALE)
                                return first;
        }
        return 0;
}

/* The block that has the page; the reader then goes on with the one after it. */
static void next_block(struct recovery *rec, uint32_t page)
{
        uint32_t first = page / rec->room * rec->room, after;

        if (rec->has_reader)
                reader_wait(rec);
        if (rec->has_reader && rec->ahead.n > 0 && rec->ahead.first == first) {
                struct block b = rec->block;

                rec->block = rec->ahead;
                rec->ahead = b;
        } else {
                block_fill(rec, &rec->block, first);
        }
        rec->unread = rec->unread || rec->block.unread;
        if (rec->has_reader && (after = wanted_after(rec, first)) != first)
                reader_ask(rec, after);
        if (!rec->block.checked)
                block_check(rec, &rec->block);
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
                block_judge(rec, &rec->block);
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

        rec->fd = dir_open_buffered(v->dir, RECOVER_TABLE);
        if (rec->fd < 0)
                return recover_fail(rec, rec->fd, "cannot read the file \"" RECOVER_TABLE "\"");
        posix_fadvise(rec->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
        rec->room = rec->pages <= KEEP_PAGES ? rec->pages : READ_PAGES;
        if (v->params.table_block > 0)
                rec->room = MIN(v->params.table_block, rec->pages);
        rec->sequences = calloc(rec->pages, sizeof(*rec->sequences));
        rec->entries = calloc(rec->pages, sizeof(*rec->entries));
        if (block_init(&rec->block, rec->room) < 0 || !rec->sequences || !rec->entries ||
            find_written(rec) < 0)
                return recover_fail(rec, -ENOMEM, "reading the table");
        if (rec->room < rec->pages) {
                reader_start(rec);
                populator_start(rec);
        }
        return 0;
}

void recover_close_ring(struct recovery *rec)
{
        recover_stop_threads(rec);
        if (rec->fd >= 0) {
                posix_fadvise(rec->fd, 0, 0, POSIX_FADV_DONTNEED);
                close(rec->fd);
        }
        free(rec->sequences);
        free(rec->entries);
        free(rec->written);
        block_fini(&rec->block);
        block_fini(&rec->ahead);
}
