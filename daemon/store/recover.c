/* SPDX-License-Identifier: Apache-2.0 */
/* Start: from the files to the index. Blocks; runs once, before there is any other I/O.
 *
 * Three looks at the ring, each sequential. A ring of up to 64 MiB is read once and kept meanwhile;
 * a larger one is read each time, through the page cache: that costs less than touching that much
 * memory.
 *   1. The newest page, hence the head; the highest sequence; of each segment the last cut
 *      (epoch), and of each of its slots the highest sequence. Then a lowered limit is enforced,
 *      before anything is built.
 *   2. Entries that won their slot, of namespaces that are known and not purged since, go into
 *      the index; of a key with several the highest sequence stays; of an entry with several
 *      copies the newest page counts.
 *   3. Any entry, tombstones above all, that is newer than what the index holds under its key,
 *      takes it out. What is left is live: its segment is cut as the entries say, its slot is
 *      taken, it enters the eviction order, older seconds first and within a second the later put
 *      first, so that parents are younger than children.
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

enum { READ_PAGES = 1024, KEEP_PAGES = 64 * 1024 * 1024 / DISK_PAGE };

/* How far both counters go ahead when a page could not be read: it may be readable again at another
 * start, and what is purged or written from now on must be newer than all it says. */
#define UNREAD_GAP (UINT64_C(1) << 40)

/* What the ring says about one segment. */
struct segment_scan {
        uint64_t epoch;
        uint32_t slot_pages, slots;
        uint64_t *seqs; /* of each slot the highest */
};

struct recovery {
        struct volume *v;
        char *error;

        int fd;
        uint32_t pages;
        struct disk_page *buf;
        uint32_t buf_first, buf_pages, buf_room;
        uint64_t *sequences; /* of each page; 0: not valid; TABLE_STALE */
        bool unread;         /* the device has refused a page */

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

/* What cannot be read is as good as zeros: not valid. */
static void read_pages(struct recovery *rec, uint32_t first, uint32_t n)
{
        char *buf = (char *)rec->buf;
        uint64_t offset = (uint64_t)first * DISK_PAGE, bytes = (uint64_t)n * DISK_PAGE, done = 0;

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
                        rec->unread = true;
                        memset(buf + done, 0, next - done);
                        done = next;
                } else {
                        done += (uint64_t)k;
                }
        }
        rec->buf_first = first;
        rec->buf_pages = n;
}

static const struct disk_page *ring_page(struct recovery *rec, uint32_t page)
{
        if (page < rec->buf_first || page - rec->buf_first >= rec->buf_pages)
                read_pages(rec, page, MIN(rec->buf_room, rec->pages - page));
        return &rec->buf[page - rec->buf_first];
}

static const struct disk_page *valid_page(struct recovery *rec, uint32_t page)
{
        const struct disk_page *p = ring_page(rec, page);

        return disk_page_valid(p, rec->v->dir->superblock.uuid, page) ? p : NULL;
}

static bool valid_entry(const struct recovery *rec, const struct disk_entry *e)
{
        return disk_entry_valid(e, rec->v->dir->superblock.uuid);
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
        rec->buf_room = rec->pages <= KEEP_PAGES ? rec->pages : READ_PAGES;
        rec->buf = aligned_alloc(DISK_PAGE, (size_t)rec->buf_room * DISK_PAGE);
        if (rec->buf)
                madvise(rec->buf, (size_t)rec->buf_room * DISK_PAGE, MADV_HUGEPAGE); /* a wish */
        rec->sequences = calloc(rec->pages, sizeof(*rec->sequences));
        return rec->buf && rec->sequences ? 0 : fail(rec, -ENOMEM, "reading the table");
}

/* --- segments --- */

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
        seg->bytes = MIN(seg->bytes, UINT64_C(1) << 40);
        seg->prewritten = seg->bytes;
        seg->charged = MAX(seg->bytes, (uint64_t)st.st_blocks * 512) + DISK_PAGE;
        v->segments_charged += seg->charged;
        return 0;
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
        segment_free(seg);
        v->segments[number] = NULL;
}

/* The segment's part of an entry: within a file that is there, and possible. */
static bool place_valid(const struct volume *v, const struct disk_entry *e)
{
        return e->segment < v->n_segments && v->segments[e->segment]->fd >= 0 &&
               e->slot_pages > 0 && e->slot_offset % e->slot_pages == 0 && e->length > 0 &&
               e->length <= (uint64_t)e->slot_pages * DISK_PAGE &&
               e->segment_epoch < UINT64_MAX / 2 &&
               range_within((uint64_t)e->slot_offset * DISK_PAGE,
                            (uint64_t)e->slot_pages * DISK_PAGE, v->segments[e->segment]->bytes);
}

/* --- first look --- */

static int scan_entry(struct recovery *rec, const struct disk_entry *e)
{
        struct segment_scan *scan;

        rec->max_seq = MAX(rec->max_seq, e->seq);
        namespaces_reserve_id(rec->v->namespaces, e->namespace_id);
        if (e->flags & DISK_ENTRY_TOMBSTONE || !place_valid(rec->v, e))
                return 0;
        rec->max_seq = MAX(rec->max_seq, e->segment_epoch);
        scan = &rec->scans[e->segment];
        if (!scan->seqs || e->segment_epoch > scan->epoch) {
                free(scan->seqs);
                scan->epoch = e->segment_epoch;
                scan->slot_pages = e->slot_pages;
                scan->slots =
                        (uint32_t)(rec->v->segments[e->segment]->bytes / DISK_PAGE / e->slot_pages);
                scan->seqs = calloc(scan->slots, sizeof(*scan->seqs));
                if (!scan->seqs)
                        return fail(rec, -ENOMEM, "reading the table");
        }
        if (e->segment_epoch == scan->epoch && e->slot_pages == scan->slot_pages) {
                uint64_t *seq = &scan->seqs[e->slot_offset / e->slot_pages];

                *seq = MAX(*seq, e->seq);
        }
        return 0;
}

static int first_look(struct recovery *rec)
{
        for (uint32_t i = 0; i < rec->pages; i++) {
                const struct disk_page *page = valid_page(rec, i);

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
                for (unsigned j = 0; j < page->count; j++) {
                        int r = valid_entry(rec, &page->entries[j])
                                        ? scan_entry(rec, &page->entries[j])
                                        : 0;

                        if (r < 0)
                                return r;
                }
        }
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

/* The ring gives what it has too much of, segments go from the end. */
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

/* --- second and third look --- */

static const struct disk_page *readable_page(struct recovery *rec, uint32_t page)
{
        return rec->sequences[page] == 0 || rec->sequences[page] == TABLE_STALE
                       ? NULL
                       : valid_page(rec, page);
}

static bool won_its_slot(const struct recovery *rec, const struct disk_entry *e)
{
        const struct segment_scan *scan;

        if (e->flags & DISK_ENTRY_TOMBSTONE || !place_valid(rec->v, e))
                return false;
        scan = &rec->scans[e->segment];
        return e->segment_epoch == scan->epoch && e->slot_pages == scan->slot_pages &&
               e->seq == scan->seqs[e->slot_offset / e->slot_pages];
}

static void index_entry(struct recovery *rec, const struct disk_entry *e, uint64_t hash,
                        uint32_t position)
{
        struct volume *v = rec->v;
        uint32_t i = index_find(v->index, e->namespace_id, &e->key, hash);
        struct chunk *c;

        if (i != INDEX_NONE) {
                c = volume_chunk_at(v, i);
                if (c->seq > e->seq)
                        return;
                if (c->seq == e->seq && rec->sequences[c->table_position / DISK_PAGE_ENTRIES] >
                                                rec->sequences[position / DISK_PAGE_ENTRIES])
                        return;
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
        c->table_position = position;
        c->slab = (uint16_t)e->segment;
        c->slot = e->slot_offset / e->slot_pages;
        c->tenant = e->tenant;
}

static bool second_look_wants(const struct recovery *rec, const struct disk_entry *e)
{
        return won_its_slot(rec, e) &&
               !namespaces_is_dead(rec->v->namespaces, e->namespace_id, e->seq);
}

static void unindex_entry(struct recovery *rec, const struct disk_entry *e, uint64_t hash,
                          uint32_t position)
{
        struct volume *v = rec->v;
        uint32_t i = index_find(v->index, e->namespace_id, &e->key, hash);

        if (i == INDEX_NONE || volume_chunk_at(v, i)->seq >= e->seq)
                return;
        index_unlink(v->index, i);
        index_release(v->index, i);
}

static bool third_look_wants(const struct recovery *rec, const struct disk_entry *e)
{
        return !won_its_slot(rec, e);
}

/* A page at a time, so that the memory of its look-ups is fetched at once. */
static void
look_again(struct recovery *rec, bool (*wants)(const struct recovery *, const struct disk_entry *),
           void (*use)(struct recovery *, const struct disk_entry *, uint64_t, uint32_t))
{
        const struct volume *v = rec->v;

        for (uint32_t i = 0; i < rec->pages; i++) {
                const struct disk_page *page = readable_page(rec, i);
                uint64_t hashes[DISK_PAGE_ENTRIES];
                unsigned wanted[DISK_PAGE_ENTRIES], n = 0;

                for (unsigned j = 0; page && j < page->count; j++) {
                        const struct disk_entry *e = &page->entries[j];

                        if (!valid_entry(rec, e) || !wants(rec, e))
                                continue;
                        hashes[n] = key_hash(&v->params.secret, e->namespace_id, &e->key);
                        index_prefetch(v->index, hashes[n], 0);
                        wanted[n++] = j;
                }
                for (unsigned j = 0; j < n; j++)
                        index_prefetch(v->index, hashes[j], 1);
                for (unsigned j = 0; j < n; j++)
                        use(rec, &page->entries[wanted[j]], hashes[j],
                            i * DISK_PAGE_ENTRIES + wanted[j]);
        }
}

/* --- building --- */

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
        struct volume *v = rec->v;
        struct segment *seg = v->segments[number];
        uint64_t bytes = (uint64_t)rec->scans[number].slot_pages * DISK_PAGE;
        int class, r;

        slabs_declare_class(v->slabs, bytes);
        class = slabs_class_for(v->slabs, bytes);
        if (class < 0 || slabs_class_bytes(v->slabs, (unsigned)class) != bytes)
                return -EINVAL;
        r = slabs_assign(v->slabs, number, (unsigned)class);
        if (r < 0)
                return r;
        seg->slot_bytes = bytes;
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

/* Slots, counts, and the order of eviction. A chunk whose slot cannot be had is forgotten. */
static int take_places(struct recovery *rec)
{
        struct volume *v = rec->v;
        _cleanup_(freep) struct age *ages =
                malloc(((size_t)index_used(v->index) + 1) * sizeof(*ages));
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
        qsort(ages, n, sizeof(*ages), by_age);
        for (size_t k = 0; k < n; k++) {
                uint32_t i = ages[k].chunk;
                struct chunk *c = volume_chunk_at(v, i);
                int r = slabs_slab_class(v->slabs, c->slab) < 0 ? cut_segment(rec, c->slab) : 0;

                if (r == 0)
                        r = slabs_occupy(v->slabs,
                                         (struct slab_slot){ .slab = c->slab, .slot = c->slot }, i);
                if (r < 0) {
                        c->slab = INDEX_NO_SLAB;
                        index_unlink(v->index, i);
                        index_release(v->index, i);
                        continue;
                }
                v->used_slots++;
                evict_insert(v->evict, i, (uint32_t)slabs_slab_class(v->slabs, c->slab), c->length);
                chunk_publish(v, i, c->table_position);
        }
        v->stats.recovered_chunks = v->chunks;
        return 0;
}

/* Forgets what lies in the page. */
static void drop_page(struct volume *v, uint32_t page)
{
        for (uint32_t i = 0; i < DISK_PAGE_ENTRIES; i++) {
                uint32_t position = page * DISK_PAGE_ENTRIES + i,
                         chunk = table_chunk_at(v->table, position);

                if (chunk != UINT32_MAX && volume_chunk_at(v, chunk)->table_position == position)
                        chunk_remove(v, chunk);
        }
}

static int erase_stale(struct recovery *rec)
{
        memset(rec->buf, 0, DISK_PAGE);
        rec->buf_pages = 0;
        for (uint32_t i = 0; i < rec->pages; i++)
                if (rec->sequences[i] == TABLE_STALE &&
                    pwrite(rec->v->table_fd, rec->buf, DISK_PAGE, (off_t)i * DISK_PAGE) !=
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
        struct disk_page *page = rec->buf;
        uint32_t next = 0, i = 0, high = index_high(v->index);
        int r;

        if (fd < 0)
                return fd;
        r = dir_allocate(fd, (uint64_t)rec->new_pages * DISK_PAGE);
        if (r < 0)
                return r;
        rec->buf_pages = 0;
        rec->pages = rec->new_pages;
        rec->newest = UINT32_MAX;
        rec->safe = 0;
        v->table = table_free(v->table);
        r = table_new(&v->table, v->dir->superblock.uuid, rec->pages, &volume_table_ops, v);
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
                        struct chunk *c = volume_chunk_at(v, i);
                        struct disk_entry *e = &page->entries[page->count];

                        if (!(c->flags & CHUNK_USED))
                                continue;
                        entry_from_chunk(v, c, e);
                        e->crc = disk_entry_crc(e, v->dir->superblock.uuid);
                        c->table_position = next * DISK_PAGE_ENTRIES + page->count++;
                        table_place(v->table, c->table_position, i);
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
        if (lost) {
                namespaces_purge_all(v->namespaces, v->seq);
                r = namespaces_write_now(v->namespaces);
                if (r < 0)
                        return fail(rec, r, "cannot write the namespaces");
        }
        r = table_new(&v->table, v->dir->superblock.uuid, rec->pages, &volume_table_ops, v);
        if (r < 0)
                return fail(rec, r, "making the table");
        look_again(rec, second_look_wants, index_entry);
        look_again(rec, third_look_wants, unindex_entry);
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
        struct recovery rec = { .v = v, .error = ret_error, .fd = -1 };
        uint64_t begun = clock_mono_ns();
        int r = recover_all(&rec);

        if (rec.fd >= 0) {
                posix_fadvise(rec.fd, 0, 0, POSIX_FADV_DONTNEED);
                close(rec.fd);
        }
        for (uint32_t i = 0; i < rec.n_scans; i++)
                free(rec.scans[i].seqs);
        free(rec.scans);
        free(rec.sequences);
        free(rec.buf);
        v->stats.recover_ms = (clock_mono_ns() - begun) / 1000000;
        return r;
}
