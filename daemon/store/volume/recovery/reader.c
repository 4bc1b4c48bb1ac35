/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and checks the ring's pages during recovery: recovery_block_check() finds torn and damaged
 * pages and entries by their CRCs.
 *
 * A ring of up to 64 MiB is read as one block. A larger ring is read in many blocks of READ_PAGES
 * into the same few buffers, with O_DIRECT if possible, because the first use of memory may take
 * longer than the read from the device. The threads of threads.c then read and check blocks in
 * advance; without these threads, each block is read and checked when the scan reaches it.
 *
 * A block that was never written is not read, and counts as zeros. A page that cannot be read
 * counts as zeros, too. */
#include "store/volume/recovery/internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/pages.h"
#include "checked.h"
#include "cleanup.h"

enum {
        READ_PAGES = 256,         /* pages of a block in a large ring */
        STEP_BYTES = 1024 * 1024, /* most bytes of one read; a power of two */
        KEEP_PAGES =
                64 * 1024 * 1024 / DISK_PAGE, /* most pages of a ring that is read as one block */
};

/* Finds the blocks that were ever written, with SEEK_DATA and SEEK_HOLE. Called once, before the
 * first read, because a read makes the kernel cache pages of holes, which SEEK_DATA then reports as
 * data. */
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
                        memset(rec->written, true, n); /* the file system does not report holes */
                        return 0;
                }
                for (uint64_t i = (uint64_t)data / bytes; i < n && i * bytes < (uint64_t)end; i++)
                        rec->written[i] = true;
        }
}

/* Reads a block. Pages that cannot be read are zeroed, so that they are not valid. */
static void block_read(const struct recovery *rec, struct block *b, bool probe)
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
                /* reads up to the end of a page, even after a short read */
                uint64_t next = MIN(round_down(done, DISK_PAGE) + step, bytes);
                ssize_t k =
                        pread(rec->v->table_fd, buf + done, next - done, (off_t)(offset + done));

                if (k < 0 && errno == EINTR)
                        continue;
                if (k > 0) {
                        done += (uint64_t)k;
                        step = MIN(2 * step, (uint64_t)STEP_BYTES);
                } else if (k == 0) {
                        memset(buf + done, 0, bytes - done);
                        break;
                } else if (step > DISK_PAGE && !probe) {
                        /* A page in this range cannot be read, and a direct read does not show
                         * which one. The range is halved rather than read page by page, because
                         * each failing read may take the device a second. */
                        step /= 2;
                } else {
                        b->unread = true;
                        memset(buf + done, 0, next - done);
                        done = next;
                }
        }
}

/* Returns whether an entry is valid, with a sequence that fits into a record of the index. */
static bool entry_valid(const struct disk_entry *e, const uint8_t uuid[static DISK_UUID_BYTES])
{
        return disk_entry_valid(e, uuid) && e->seq <= CHUNK_SEQ_MAX;
}

void recovery_block_check(const struct recovery *rec, struct block *b)
{
        const struct volume *v = rec->v;
        const uint8_t *uuid = v->dir->superblock.uuid;

        b->checked = true;
        for (uint32_t i = 0; i < b->n; i++) {
                const struct disk_page *p = &b->pages[i];
                struct check *c = &b->checks[i];

                if (i + 1 < b->n)
                        recovery_warm_page(p + 1);
                c->valid = disk_page_valid(p, uuid, b->first + i) &&
                           p->sequence <= RECOVERY_PAGE_SEQUENCE_MAX;
                c->entries = 0;
                for (unsigned j = 0; c->valid && !rec->shallow && j < p->count; j++) {
                        const struct disk_entry *e = &p->entries[j];

                        if (!entry_valid(e, uuid))
                                continue;
                        c->entries |= UINT32_C(1) << j;
                        c->hashes[j] = key_hash(&v->params.secret, e->namespace_id, &e->key);
                        if (c->hashes[j] == 0)
                                c->hashes[j] = UINT64_C(1)
                                               << 63; /* a hash must not be 0; the highest bit is
                                                         set, because the low half selects a bucket
                                                         of the index */
                }
        }
}

static void block_fill(const struct recovery *rec, struct block *b, uint32_t first, bool probe)
{
        b->first = first;
        b->n = MIN(rec->room, rec->pages - first);
        b->unread = b->checked = false;
        block_read(rec, b, probe);
}

void recovery_block_fill(const struct recovery *rec, struct block *b, uint32_t first)
{
        block_fill(rec, b, first, false);
}

void recovery_block_probe(const struct recovery *rec, struct block *b, uint32_t first)
{
        block_fill(rec, b, first, true);
}

int recovery_block_init(struct block *b, uint32_t room)
{
        b->pages = aligned_alloc(DISK_PAGE, (size_t)room * DISK_PAGE);
        b->checks = calloc(room, sizeof(*b->checks));
        if (!b->pages || !b->checks)
                return -ENOMEM;
        pages_wish_huge(b->pages, (uint64_t)room * DISK_PAGE);
        return 0;
}

void recovery_block_fini(struct block *b)
{
        free(b->pages);
        free(b->checks);
        *b = (struct block){};
}

void recovery_take_turn(struct recovery *rec, uint32_t turn)
{
        uint32_t first = rec->plan.turns[turn];

        if (rec->block.n > 0 && rec->block.first == first)
                return;
        if (!recovery_threads_take(rec))
                recovery_block_fill(rec, &rec->block, first);
        assert(rec->block.first == first);
        rec->unread = rec->unread || rec->block.unread;
        if (!rec->block.checked)
                recovery_block_check(rec, &rec->block);
}

/* Estimates the number of records from the blocks that were written and from the slots that the
 * ring was sized for. */
static void estimate_records(struct recovery *rec)
{
        uint64_t written = 0, slots = (uint64_t)rec->pages * DISK_PAGE_ENTRIES / STORE_RING_ENTRIES;

        for (uint32_t first = 0; first < rec->pages; first += rec->room)
                written += rec->written[first / rec->room];
        written *= (uint64_t)rec->room * DISK_PAGE_ENTRIES;
        rec->likely = (uint32_t)MIN(MIN(written, slots), (uint64_t)index_max(rec->v->index));
        rec->superseded = written - rec->likely;
}

/* Erases the pages of a table write that failed, because the write may have reached the disk
 * nevertheless. No page that it overwrote was needed. Runs before any other change of the ring,
 * because later pages at the same place must not be erased. */
static int erase_void(const struct volume *v, uint32_t pages)
{
        struct disk_superblock *sb = &v->dir->superblock;
        _cleanup_(freep) void *zeros = aligned_alloc(DISK_PAGE, DISK_PAGE);

        if (!zeros)
                return -ENOMEM;
        memset(zeros, 0, DISK_PAGE);
        for (uint32_t i = 0; i < MIN(sb->void_pages, (uint32_t)TABLE_BATCH_PAGES); i++)
                if (sb->void_position < pages && i < pages - sb->void_position &&
                    pwrite(v->table_fd, zeros, DISK_PAGE,
                           (off_t)(sb->void_position + (uint64_t)i) * DISK_PAGE) != DISK_PAGE)
                        return errno ? -errno : -EIO;
        if (fdatasync(v->table_fd) < 0)
                return -errno;
        sb->void_position = sb->void_pages = 0;
        sb->incompat &= ~DISK_INCOMPAT_VOID_PAGES;
        return dir_write_superblock(v->dir);
}

int recovery_open_ring(struct recovery *rec)
{
        struct volume *v = rec->v;
        struct stat st;
        uint64_t most;
        int r;

        unlinkat(v->dir->fd, RECOVERY_TABLE_NEW, 0);
        v->table_fd = dir_open_file(v->dir, RECOVERY_TABLE, O_RDWR | O_CREAT);
        if (v->table_fd < 0)
                return recovery_fail(rec, v->table_fd,
                                     "cannot open the file \"" RECOVERY_TABLE "\"");
        if (fstat(v->table_fd, &st) < 0)
                return recovery_fail(rec, -errno, "cannot examine the file \"" RECOVERY_TABLE "\"");
        if ((uint64_t)st.st_size / DISK_PAGE < v->dir->superblock.table_pages) {
                rec->table_was = v->dir->superblock.table_pages;
                rec->table_found = (uint32_t)(st.st_size / DISK_PAGE);
        }
        rec->table_replaced = !v->dir->copied && !v->dir->superblock.clean &&
                              v->dir->superblock.table_inode != 0 &&
                              v->dir->superblock.table_inode != st.st_ino;
        /* A ring is never larger than a store full of the smallest slots needs, unless it was that
         * large already when the last limit was set. Bytes beyond this size are no part of a ring,
         * and are cut off, because recovery would allocate memory for them. */
        most = ring_pages_for(MAX(v->dir->superblock.limit, v->params.limit) / DISK_PAGE);
        most = MAX(most, (uint64_t)v->dir->superblock.table_pages);
        if ((uint64_t)st.st_size > most * DISK_PAGE && !v->params.as_is &&
            ftruncate(v->table_fd, (off_t)(most * DISK_PAGE)) < 0)
                return recovery_fail(rec, -errno,
                                     "cannot truncate the file \"" RECOVERY_TABLE "\"");
        rec->pages = (uint32_t)MIN(
                MAX((uint64_t)st.st_size / DISK_PAGE, (uint64_t)STORE_RING_MIN_PAGES), most);
        r = dir_allocate(v->table_fd, (uint64_t)rec->pages * DISK_PAGE);
        if (r == 0 && fdatasync(v->table_fd) < 0)
                r = -errno;
        if (r < 0)
                return recovery_fail(rec, r, "cannot allocate the file \"" RECOVERY_TABLE "\"");

        if (v->dir->superblock.void_pages > 0) {
                r = erase_void(v, rec->pages);
                if (r < 0)
                        return recovery_fail(rec, r,
                                             "cannot erase the table pages whose write failed");
        }
        /* discards cached pages that the kernel could not write to the disk */
        if (v->dir->superblock.unsynced)
                posix_fadvise(v->table_fd, 0, 0, POSIX_FADV_DONTNEED);
        posix_fadvise(v->table_fd, 0, 0, POSIX_FADV_SEQUENTIAL);
        rec->room = rec->pages <= KEEP_PAGES ? rec->pages : READ_PAGES;
        if (v->params.table_block > 0)
                rec->room = MIN(v->params.table_block, rec->pages);
        rec->sequences = calloc(rec->pages, sizeof(*rec->sequences));
        if (recovery_block_init(&rec->block, rec->room) < 0 || !rec->sequences ||
            find_written(rec) < 0)
                return recovery_fail(rec, -ENOMEM, "cannot allocate memory to read the table");
        estimate_records(rec);
        return 0;
}

void recovery_close_ring(struct recovery *rec)
{
        recovery_threads_stop(rec);
        if (rec->v->table_fd >= 0)
                posix_fadvise(rec->v->table_fd, 0, 0, POSIX_FADV_DONTNEED);
        free(rec->sequences);
        free(rec->written);
        recovery_plan_fini(&rec->plan);
        recovery_block_fini(&rec->block);
}
