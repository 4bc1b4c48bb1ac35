/* SPDX-License-Identifier: Apache-2.0 */
/* Start: from the files to the index. Blocks; runs once, before there is any other I/O.
 *
 * Two looks at the ring, each sequential. A ring of up to 64 MiB is read once and kept meanwhile;
 * a larger one is read each time, through the page cache: that costs less than touching that much
 * memory. A second thread then reads the next block while this one is looked at, and in the second
 * look does all but the index's part with it. What the looks come to in memory is anywhere, so each
 * fetches it for a whole page before it is used.
 *   1. The newest page, hence the head; the highest sequence; of each segment the last cut
 *      (epoch), and of each of its slots the highest sequence. Then a lowered limit is enforced,
 *      before anything is built.
 *   2. From the oldest page to the newest: entries that won their slot, of namespaces that are
 *      known and not purged since, go into the index; of a key with several the highest sequence
 *      stays; of an entry with several copies the newest page counts. Any other entry, tombstones
 *      above all, that is newer than what the index holds under its key, takes it out: the entries
 *      of one key were written in the order of their sequences.
 *
 * What is left is live: its segment is cut as the entries say, its slot is taken, it enters the
 * eviction order, older seconds first and within a second the later put first, so that parents are
 * younger than children.
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
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "checked.h"
#include "cleanup.h"
#include "store/internal.h"

#define NAME_TABLE     "table"
#define NAME_TABLE_NEW "table.new"

enum {
        READ_PAGES = 128,
        POPULATE_RECORDS = 128 * 1024,
        KEEP_PAGES = 64 * 1024 * 1024 / DISK_PAGE,
        HUGE_BYTES = 2 * 1024 * 1024,
        ARENA_BYTES = 16 * 1024 * 1024,
        FETCH_AHEAD = 32,
};

/* How far both counters go ahead when a page could not be read: it may be readable again at another
 * start, and what is purged or written from now on must be newer than all it says. */
#define UNREAD_GAP (UINT64_C(1) << 40)

/* What the ring says about one segment. */
struct segment_scan {
        uint64_t epoch;
        uint32_t slot_pages, slots, room;
        uint32_t won; /* slots that have an entry */
        uint16_t tenant;
        uint64_t *seqs; /* of each slot the highest; room for `room` */
        uint64_t bytes; /* of the file; 0: there is none */
};

/* Where these arrays lie: large pieces, since they are looked at in no order. */
struct arena {
        struct arena *next;
        uint64_t used, bytes;
};

/* What of a page may be read, and what the second look does with it; of entries a bit each. */
struct check {
        bool valid;
        uint32_t entries;
        uint32_t won; /* have their slot */
        uint32_t in;  /* and are of namespaces that have not been purged since */
        uint64_t hashes[DISK_PAGE_ENTRIES]; /* of the keys of `entries` */
};
static_assert(DISK_PAGE_ENTRIES <= 32, "a bit each");

/* Pages of the ring that lie together, read and checked. */
struct block {
        struct disk_page *pages;
        struct check *checks;
        uint32_t first, n; /* n: 0: nothing */
        bool unread;       /* the device has refused one */
        bool zeros;        /* all of `pages` */
        bool checked;      /* `checks` say what may be read */
        bool judged;       /* and the rest */
};

struct recovery {
        struct volume *v;
        char *error;

        int fd;
        uint32_t pages;
        uint32_t room; /* of a block, in pages */
        bool *written; /* of each block: has any of it been, ever */
        struct block block;
        uint64_t *sequences; /* of each page; 0: not valid; TABLE_STALE */
        uint32_t *entries;   /* of each page, from the first look: a bit for each that is valid */
        struct arena *arenas;
        bool unread;         /* the device has refused a page */

        /* The reader has `ahead` while `reading`. */
        struct block ahead;
        pthread_t reader;
        pthread_mutex_t lock;
        pthread_cond_t cond;
        bool has_reader, reading, judging, ending;

        /* Another puts memory under so many records of the index meanwhile. */
        pthread_t populator;
        bool has_populator;
        uint32_t expected;

        bool looked;   /* once: `sequences` says what there is to read */
        bool in_force; /* so is the limit: which segments there are says what can be read of them */

        uint32_t n_won; /* slots that have an entry */
        uint64_t max_seq, max_sequence;
        uint32_t newest; /* UINT32_MAX: none */
        uint32_t safe;   /* pages behind it with nothing that is needed */
        struct segment_scan *scans;
        uint32_t n_scans;

        uint32_t new_pages; /* the ring has to shrink to; 0: it does not */
};

static int fail(struct recovery *rec, int r, const char *what)
{
        return store_error(rec->error, r, "%s: %s: %s", rec->v->path, what, strerror(-r));
}

/* --- reading the ring --- */

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

/* The segment's part of an entry: within a file that is there, and possible. */
static bool place_valid(const struct recovery *rec, const struct disk_entry *e)
{
        return e->segment < rec->v->n_segments && e->slot_pages > 0 &&
               e->slot_offset % e->slot_pages == 0 && e->length > 0 &&
               e->length <= (uint64_t)e->slot_pages * DISK_PAGE &&
               e->segment_epoch <= CHUNK_SEQ_MAX &&
               range_within((uint64_t)e->slot_offset * DISK_PAGE,
                            (uint64_t)e->slot_pages * DISK_PAGE, rec->scans[e->segment].bytes);
}

/* Both steps for all entries of a page, then whatever looks at their slots. */
static void prefetch_segments(const struct recovery *rec, const struct disk_page *page)
{
        for (unsigned j = 0; j < page->count; j++)
                if (page->entries[j].segment < rec->n_scans)
                        __builtin_prefetch(&rec->scans[page->entries[j].segment]);
}

static void prefetch_slots(const struct recovery *rec, const struct disk_page *page)
{
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

static bool is_of_scan(const struct segment_scan *scan, const struct disk_entry *e)
{
        return e->segment_epoch == scan->epoch && e->slot_pages == scan->slot_pages &&
               e->tenant == scan->tenant;
}

static bool won_its_slot(const struct recovery *rec, const struct disk_entry *e)
{
        const struct segment_scan *scan;

        if (e->flags & DISK_ENTRY_TOMBSTONE || !place_valid(rec, e))
                return false;
        scan = &rec->scans[e->segment];
        return is_of_scan(scan, e) && e->seq == scan->seqs[e->slot_offset / e->slot_pages];
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
                prefetch_segments(rec, p);
                prefetch_slots(rec, p);
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

static void populator_tell(struct recovery *rec, uint32_t expected)
{
        if (!rec->has_populator || expected < rec->expected + POPULATE_RECORDS)
                return;
        pthread_mutex_lock(&rec->lock);
        rec->expected = expected;
        pthread_cond_broadcast(&rec->cond);
        pthread_mutex_unlock(&rec->lock);
}

static void threads_stop(struct recovery *rec)
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

static const struct disk_page *ring_page(struct recovery *rec, uint32_t page)
{
        if (page < rec->block.first || page - rec->block.first >= rec->block.n)
                next_block(rec, page);
        return &rec->block.pages[page - rec->block.first];
}

/* NULL: it is not. Of its entries, a bit for each that is. */
static const struct disk_page *valid_page(struct recovery *rec, uint32_t page,
                                          uint32_t *ret_entries)
{
        const struct disk_page *p = ring_page(rec, page);
        const struct check *c = &rec->block.checks[page - rec->block.first];

        *ret_entries = c->entries;
        return c->valid ? p : NULL;
}

static int open_ring(struct recovery *rec)
{
        struct volume *v = rec->v;
        struct stat st;
        int r;

        unlinkat(v->dir->fd, NAME_TABLE_NEW, 0);
        v->table_fd = dir_open_file(v->dir, NAME_TABLE, O_RDWR | O_CREAT);
        if (v->table_fd < 0)
                return fail(rec, v->table_fd, "cannot open the file \"" NAME_TABLE "\"");
        if (fstat(v->table_fd, &st) < 0)
                return fail(rec, -errno, "cannot look at the file \"" NAME_TABLE "\"");
        rec->pages =
                (uint32_t)MIN(MAX((uint64_t)st.st_size / DISK_PAGE, (uint64_t)STORE_RING_MIN_PAGES),
                              (uint64_t)TABLE_MAX_PAGES - 1);
        r = dir_allocate(v->table_fd, (uint64_t)rec->pages * DISK_PAGE);
        if (r == 0 && fdatasync(v->table_fd) < 0)
                r = -errno;
        if (r < 0)
                return fail(rec, r, "cannot allocate the file \"" NAME_TABLE "\"");

        rec->fd = dir_open_buffered(v->dir, NAME_TABLE);
        if (rec->fd < 0)
                return fail(rec, rec->fd, "cannot read the file \"" NAME_TABLE "\"");
        posix_fadvise(rec->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
        rec->room = rec->pages <= KEEP_PAGES ? rec->pages : READ_PAGES;
        if (v->params.table_block > 0)
                rec->room = MIN(v->params.table_block, rec->pages);
        rec->sequences = calloc(rec->pages, sizeof(*rec->sequences));
        rec->entries = calloc(rec->pages, sizeof(*rec->entries));
        if (block_init(&rec->block, rec->room) < 0 || !rec->sequences || !rec->entries ||
            find_written(rec) < 0)
                return fail(rec, -ENOMEM, "reading the table");
        if (rec->room < rec->pages) {
                reader_start(rec);
                populator_start(rec);
        }
        return 0;
}

/* --- segments --- */

/* What the file takes, by its size as we use it and as the file system has it. */
static int charge_segment(struct volume *v, struct segment *seg)
{
        struct stat st;

        if (fstat(seg->fd, &st) < 0)
                return -errno;
        v->segments_charged -= seg->charged;
        seg->charged = MAX(seg->bytes, (uint64_t)st.st_blocks * 512) + DISK_PAGE;
        v->segments_charged += seg->charged;
        return 0;
}

static int open_segment(struct recovery *rec, uint32_t number)
{
        struct volume *v = rec->v;
        struct segment *seg = v->segments[number];
        char name[DIR_SEGMENT_NAME_BYTES];
        struct stat st;

        dir_segment_name(number, name);
        seg->fd = dir_open_file(v->dir, name, O_RDWR);
        if (seg->fd < 0)
                return seg->fd;
        if (fstat(seg->fd, &st) < 0)
                return -errno;
        seg->bytes = round_down((uint64_t)st.st_size, DISK_PAGE);
        if (!S_ISREG(st.st_mode) || seg->bytes == 0) {
                /* A crash while it was made. */
                close(seg->fd);
                seg->fd = -1;
                return unlinkat(v->dir->fd, name, 0) < 0 ? -errno : 0;
        }
        /* A power loss while it was made. What lies behind the last whole page is nobody's, but it would
         * take its room from the limit, now or when the file system gives it a block. */
        if ((uint64_t)st.st_size != seg->bytes && !v->params.as_is &&
            ftruncate(seg->fd, (off_t)seg->bytes) < 0)
                return -errno;
        seg->bytes = MIN(seg->bytes, UINT64_C(1) << 40);
        seg->prewritten = seg->bytes;
        return charge_segment(v, seg);
}

/* Opens those that are there; a number that is missing below the highest gets a segment without a
 * file. */
static int open_segments(struct recovery *rec)
{
        struct volume *v = rec->v;
        int fd = openat(v->dir->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *dir = fd < 0 ? NULL : fdopendir(fd);
        struct dirent *e;
        int r;

        if (!dir)
                return fail(rec, -errno, "cannot list the directory");
        while ((e = readdir(dir))) {
                int n = dir_segment_number(e->d_name);

                if (n >= 0)
                        v->n_segments = MAX(v->n_segments, (uint32_t)n + 1);
        }
        closedir(dir);
        v->segments = calloc(v->n_segments + 1, sizeof(struct segment *));
        rec->scans = calloc(v->n_segments + 1, sizeof(*rec->scans));
        if (!v->segments || !rec->scans)
                return fail(rec, -ENOMEM, "opening segments");
        rec->n_scans = v->n_segments;
        for (uint32_t i = 0; i < v->n_segments; i++) {
                v->segments[i] = segment_new(v, i);
                if (!v->segments[i])
                        return fail(rec, -ENOMEM, "opening segments");
                r = open_segment(rec, i);
                if (r < 0 && r != -ENOENT) {
                        char name[DIR_SEGMENT_NAME_BYTES];

                        dir_segment_name(i, name);
                        return store_error(rec->error, r, "%s/%s: cannot open: %s", v->path, name,
                                           strerror(-r));
                }
                rec->scans[i].bytes = v->segments[i]->fd >= 0 ? v->segments[i]->bytes : 0;
        }
        return 0;
}

static void drop_last_segment(struct recovery *rec)
{
        struct volume *v = rec->v;
        uint32_t number = --v->n_segments;
        struct segment *seg = v->segments[number];
        char name[DIR_SEGMENT_NAME_BYTES];

        if (seg->fd >= 0) {
                dir_segment_name(number, name);
                unlinkat(v->dir->fd, name, 0);
                v->segments_charged -= seg->charged;
        }
        rec->n_won -= rec->scans[number].won;
        segment_free(seg);
        v->segments[number] = NULL;
}

/* A little too much costs the chunks at its end, not all of it. False: that is not enough. */
static bool trim_last_segment(struct recovery *rec, uint64_t excess)
{
        struct volume *v = rec->v;
        uint32_t number = v->n_segments - 1;
        struct segment *seg = v->segments[number];
        uint64_t before = seg->charged, cut = round_up(excess, DISK_PAGE);

        if (seg->fd < 0 || cut > seg->bytes / 2 ||
            ftruncate(seg->fd, (off_t)(seg->bytes - cut)) < 0)
                return false;
        seg->bytes -= cut;
        seg->prewritten = rec->scans[number].bytes = seg->bytes;
        return charge_segment(v, seg) == 0 && seg->charged < before;
}

/* --- first look --- */

/* For what is filled at once: fewer faults. free() it. */
static void *huge_alloc(uint64_t bytes)
{
        void *p = aligned_alloc(HUGE_BYTES, round_up(bytes, HUGE_BYTES));

        if (p)
                madvise(p, bytes, MADV_HUGEPAGE); /* a wish */
        return p;
}

static uint64_t *seqs_new(struct recovery *rec, uint32_t n)
{
        uint64_t bytes = (uint64_t)n * sizeof(uint64_t), room;
        struct arena *a = rec->arenas;
        void *p;

        if (!a || a->bytes - a->used < bytes) {
                room = round_up(MAX(bytes + sizeof(*a), (uint64_t)ARENA_BYTES), HUGE_BYTES);
                a = huge_alloc(room);
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
        if (e->flags & DISK_ENTRY_TOMBSTONE || !place_valid(rec, e))
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
                                return fail(rec, -ENOMEM, "reading the table");
                }
                memset(scan->seqs, 0, scan->slots * sizeof(*scan->seqs));
                rec->n_won -= scan->won;
                scan->won = 0;
        }
        if (is_of_scan(scan, e)) {
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
                const struct disk_page *page = valid_page(rec, i, &entries);

                if (!page) {
                        /* A page that was torn before its first sector has no head to come back
                         * with. */
                        if (ring_page(rec, i)->magic != 0) {
                                rec->v->stats.skipped_pages++;
                                rec->sequences[i] = TABLE_STALE;
                        }
                        continue;
                }
                rec->v->stats.recovered_pages++;
                rec->sequences[i] = page->sequence;
                rec->entries[i] = entries;
                prefetch_segments(rec, page);
                prefetch_slots(rec, page);
                for (unsigned j = 0; j < page->count; j++) {
                        int r = entries >> j & 1 ? scan_entry(rec, &page->entries[j]) : 0;

                        if (r < 0)
                                return r;
                }
                populator_tell(rec, rec->n_won);
        }
        rec->looked = true;
        rec->newest = table_find_newest(rec->sequences, rec->pages);
        if (rec->newest != UINT32_MAX) {
                const struct disk_page *newest = ring_page(rec, rec->newest);

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

/* --- the limit --- */

static uint64_t scanned_slots(const struct recovery *rec)
{
        uint64_t slots = 0;

        for (uint32_t i = 0; i < rec->v->n_segments; i++)
                slots += rec->scans[i].slots;
        return slots;
}

/* The ring gives what it has too much of, the last segment its end; then segments go, from the last
 * one on. */
static int enforce_limit(struct recovery *rec)
{
        struct volume *v = rec->v;
        uint32_t pages = rec->pages;
        bool dropped = false;

        v->table_charged = (uint64_t)pages * DISK_PAGE;
        while (volume_charged(v) > v->params.limit) {
                uint32_t need = ring_pages_for(scanned_slots(rec));

                if (pages > need) {
                        rec->new_pages = pages = need;
                        v->table_charged = (uint64_t)pages * DISK_PAGE;
                } else if (v->n_segments > 0 &&
                           trim_last_segment(rec, volume_charged(v) - v->params.limit)) {
                        dropped = true;
                } else if (v->n_segments > 0) {
                        drop_last_segment(rec);
                        dropped = true;
                } else {
                        return store_error(rec->error, -ENOSPC,
                                           "%s: store.limit is too small for this store's tables",
                                           v->path);
                }
        }
        while (v->n_segments > 0 && v->segments[v->n_segments - 1]->fd < 0)
                drop_last_segment(rec);
        return dropped ? dir_sync(v->dir) : 0;
}

/* --- second look --- */

/* NULL: there is nothing to read. */
static const struct disk_page *judged_page(struct recovery *rec, uint32_t page,
                                           const struct check **ret_check)
{
        const struct disk_page *p;
        uint32_t entries;

        if (rec->sequences[page] == 0 || rec->sequences[page] == TABLE_STALE)
                return NULL;
        p = valid_page(rec, page, &entries);
        if (!rec->block.judged)
                block_judge(rec, &rec->block);
        *ret_check = &rec->block.checks[page - rec->block.first];
        return p;
}

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

static void forget(struct volume *v, uint32_t i)
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
        forget(v, i);
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
                const struct disk_page *page = judged_page(rec, i, &check);

                if (page)
                        use_entries(rec, page, check->hashes, 0, check->entries & ~check->won);
        }
}

static void second_look(struct recovery *rec)
{
        bool in_order = is_in_order(rec);

        rec->in_force = true;
        index_reserve(rec->v->index, rec->n_won);
        for (uint32_t i = 0; i < rec->pages; i++) {
                const struct check *check;
                const struct disk_page *page = judged_page(rec, page_by_age(rec, i), &check);

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
                return fail(rec, r, "making the slot allocator");
        for (unsigned i = 0; i < namespaces_count(v->namespaces); i++)
                slabs_declare_class(v->slabs, namespaces_at(v->namespaces, i)->seen.chunk_bytes);
        for (uint32_t i = 0; i < v->n_segments; i++) {
                struct segment *seg = v->segments[i];

                if (seg->fd < 0)
                        seg->bytes = DISK_PAGE;
                r = slabs_add(v->slabs, seg->bytes);
                if (r < 0)
                        return fail(rec, r, "making the slot allocator");
                if (seg->fd < 0)
                        segment_retire(v, i);
        }
        v->n_retired = 0; /* those were missing already: no reason not to make new ones */
        return 0;
}

static int cut_segment(struct recovery *rec, uint32_t number)
{
        uint16_t tenant = rec->scans[number].tenant;
        struct volume *v = rec->v;
        struct segment *seg = v->segments[number];
        uint64_t bytes = (uint64_t)rec->scans[number].slot_pages * DISK_PAGE;
        int class, r;

        slabs_declare_class(v->slabs, bytes);
        class = slabs_class_of(v->slabs, tenant, bytes);
        if (class < 0 || slabs_class_bytes(v->slabs, (unsigned)class) != bytes)
                return -EINVAL;
        r = slabs_assign(v->slabs, number, (unsigned)class);
        if (r < 0)
                return r;
        seg->slot_bytes = bytes;
        seg->tenant = tenant;
        seg->epoch = rec->scans[number].epoch;
        v->cut_slots += slabs_slab_slots(v->slabs, number);
        return 0;
}

struct age {
        uint64_t second, seq;
        uint32_t chunk;
};

static int by_age(const void *a, const void *b)
{
        const struct age *x = a, *y = b;

        if (x->second != y->second)
                return x->second < y->second ? -1 : 1;
        return x->seq > y->seq ? -1 : x->seq < y->seq;
}

/* Records are in the order of the pages, which is nearly that of the puts: seconds ascend, and
 * within each it is the other way round. Once that is turned there may be nothing left to sort. */
static void sort_by_age(struct age *ages, size_t n)
{
        bool sorted = true;

        for (size_t i = 0, end; i < n; i = end) {
                for (end = i + 1; end < n && by_age(&ages[end - 1], &ages[end]) > 0; end++)
                        ;
                for (size_t a = i, b = end - 1; a < b; a++, b--) {
                        struct age swap = ages[a];

                        ages[a] = ages[b];
                        ages[b] = swap;
                }
                sorted = sorted && (i == 0 || by_age(&ages[i - 1], &ages[i]) <= 0);
        }
        if (!sorted)
                qsort(ages, n, sizeof(*ages), by_age);
}

static void prefetch_place(const struct volume *v, uint32_t i, unsigned step)
{
        const struct chunk *c = volume_chunk_at(v, i);

        slabs_prefetch(v->slabs, (struct slab_slot){ .slab = c->slab, .slot = c->slot }, step);
}

/* Slots, counts, and the order of eviction. A chunk whose slot cannot be had is forgotten. */
static int take_places(struct recovery *rec)
{
        struct volume *v = rec->v;
        _cleanup_(freep) struct age *ages =
                huge_alloc(((uint64_t)index_used(v->index) + 1) * sizeof(*ages));
        size_t n = 0;

        if (!ages)
                return fail(rec, -ENOMEM, "building the index");
        for (uint32_t i = 0; i < index_high(v->index); i++) {
                const struct chunk *c = volume_chunk_at(v, i);

                if (c->flags & CHUNK_USED)
                        ages[n++] = (struct age){ .second = c->created_ms / 1000,
                                                  .seq = c->seq,
                                                  .chunk = i };
        }
        sort_by_age(ages, n);
        for (size_t k = 0; k < n; k++) {
                if (k + FETCH_AHEAD < n)
                        prefetch_place(v, ages[k + FETCH_AHEAD].chunk, 0);
                if (k + FETCH_AHEAD / 2 < n)
                        prefetch_place(v, ages[k + FETCH_AHEAD / 2].chunk, 1);
                uint32_t i = ages[k].chunk;
                struct chunk *c = volume_chunk_at(v, i);
                int r = 0;

                if (slabs_slab_class(v->slabs, c->slab) < 0)
                        r = cut_segment(rec, c->slab);
                if (r == 0)
                        r = slabs_occupy(v->slabs,
                                         (struct slab_slot){ .slab = c->slab, .slot = c->slot }, i);
                if (r < 0) {
                        forget(v, i);
                        continue;
                }
                room_charge(v, c);
                evict_insert(v->evict, i, (uint32_t)slabs_slab_class(v->slabs, c->slab), c->length);
                chunk_publish(v, i);
        }
        v->stats.recovered_chunks = v->chunks;
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
                return fail(rec, r, "cannot write the table");
        for (uint32_t i = 0; i < MIN(rec->safe, rec->pages - 1); i++)
                drop_page(v, (head + i) % rec->pages);
        r = table_start(v->table, head, rec->max_sequence + 1);
        if (r == -ENOSPC) {
                drop_page(v, head);
                r = table_start(v->table, head, rec->max_sequence + 1);
        }
        if (r < 0)
                return fail(rec, r, "starting the table");
        return fdatasync(v->table_fd) < 0 ? fail(rec, -errno, "cannot sync the table") : 0;
}

/* All live entries into a new, smaller file, which then takes the place of the ring. */
static int rewrite_ring(struct recovery *rec)
{
        struct volume *v = rec->v;
        _cleanup_(closep) int fd =
                dir_open_file(v->dir, NAME_TABLE_NEW, O_RDWR | O_CREAT | O_TRUNC);
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
        if (fsync(fd) < 0 || renameat(v->dir->fd, NAME_TABLE_NEW, v->dir->fd, NAME_TABLE) < 0)
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
        r = open_ring(rec);
        if (r == 0)
                r = open_segments(rec);
        if (r == 0)
                r = first_look(rec);
        if (r == 0)
                r = enforce_limit(rec);
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
                        return fail(rec, r, "cannot write the namespaces");
        }
        r = new_table(rec);
        if (r < 0)
                return fail(rec, r, "making the table");
        second_look(rec);
        threads_stop(rec);
        r = take_places(rec);
        if (r < 0)
                return r;
        if (rec->new_pages) {
                r = rewrite_ring(rec);
                if (r < 0)
                        return fail(rec, r, "cannot make a smaller table");
        }
        return start_ring(rec);
}

int recover(struct volume *v, char ret_error[static STORE_ERROR_BYTES])
{
        struct recovery rec = {
                .v = v,
                .error = ret_error,
                .fd = -1,
                .lock = PTHREAD_MUTEX_INITIALIZER,
                .cond = PTHREAD_COND_INITIALIZER,
        };
        uint64_t begun = clock_mono_ns();
        int r = recover_all(&rec);

        threads_stop(&rec);
        if (rec.fd >= 0) {
                posix_fadvise(rec.fd, 0, 0, POSIX_FADV_DONTNEED);
                close(rec.fd);
        }
        arenas_free(rec.arenas);
        free(rec.scans);
        free(rec.sequences);
        free(rec.entries);
        free(rec.written);
        block_fini(&rec.block);
        block_fini(&rec.ahead);
        v->stats.recover_ms = (clock_mono_ns() - begun) / 1000000;
        return r;
}
