/* SPDX-License-Identifier: Apache-2.0 */
/* store/volume/recovery/ against the rules in store/volume/README.md. Tables are written here as a
 * store would have left them, after puts, drops, evictions, cuts, restarts and a crash that lost,
 * tore or kept each page that was not synced; what lives is computed from the bytes, by the rules,
 * by sorting; and recovery must find that and nothing else, in blocks of any size, with threads and
 * without. What a failed test prints has the seed. */
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/sanitizers.h"
#include "checked.h"
#include "io/backend.h"
#include "io/io.h"
#include "timeout.h"
#include "store/volume/format.h"
#include "store/store.h"
#include "store/volume/table.h"

#define MIB (UINT64_C(1) << 20)

enum {
        PAGES_MAX = 1400,
        SEGMENT_PAGES = 96, /* divisible by every size of slot */
        SEGMENTS_MAX = 160,
        SLOTS_MAX = SEGMENTS_MAX * SEGMENT_PAGES,
        KEYS = 2 * SLOTS_MAX,
        QUEUE_MAX = DISK_PAGE_ENTRIES,
        NEW_KEYS = 1000000, /* keys from here on are in no table of this test */
};

static struct {
        char dir[PATH_MAX];
        uint32_t seed;
        struct store *s;
        struct kio *io;
        uint32_t ns;
        uint8_t uuid[DISK_UUID_BYTES];
} t;

/* --- numbers --- */

static uint64_t random_state;

static uint64_t random_below(uint64_t n)
{
        random_state ^= random_state << 13;
        random_state ^= random_state >> 7;
        random_state ^= random_state << 17;
        return (random_state >> 11) % n;
}

static bool chance(unsigned percent)
{
        return random_below(100) < percent;
}

/* --- the writer: a ring, as it lies on the disk --- */

static struct disk_page disk[PAGES_MAX], before[PAGES_MAX]; /* `before`: what a page overwrote */

static struct {
        uint32_t pages, segments, safe, head, turn;
        uint32_t file_pages; /* more than pages: the ring is about to grow */
        uint64_t seq, sequence, run;
        struct {
                uint64_t epoch;
                uint32_t slot_pages;
        } cut[SEGMENTS_MAX];
        struct {
                uint32_t key; /* + 1; 0: none */
        } slot[SLOTS_MAX];    /* by its first page */
        struct {
                struct disk_entry entry;
                bool live;
                uint32_t page; /* UINT32_MAX: queued */
        } key[KEYS];
        struct disk_entry queue[QUEUE_MAX];
        unsigned queued;
} w;

static struct key key_of(uint64_t n)
{
        struct key k = { { 0 } };

        memcpy(k.bytes, &n, sizeof(n));
        k.bytes[31] = 1;
        return k;
}

static uint64_t number_of(const struct key *k)
{
        uint64_t n;

        memcpy(&n, k->bytes, sizeof(n));
        return n;
}

static void add_entry(struct disk_page *page, const struct disk_entry *e)
{
        page->entries[page->count] = *e;
        page->entries[page->count].crc = disk_entry_crc(e, t.uuid);
        page->count++;
}

static void write_page(void)
{
        uint32_t from = (w.head + w.safe) % w.pages;
        struct disk_page *page = &disk[w.head];

        before[w.head] = *page;
        *page = (struct disk_page){
                .magic = DISK_PAGE_MAGIC,
                .sequence = w.sequence++,
                .position = w.head,
                .ring_pages = w.pages,
                .safe = w.safe,
                .run_sequence = w.run,
        };
        memcpy(page->uuid, t.uuid, sizeof(page->uuid));
        for (unsigned j = 0; j < disk[from].count; j++) {
                uint64_t n = number_of(&disk[from].entries[j].key);

                if (w.key[n].live && w.key[n].page == from &&
                    w.key[n].entry.seq == disk[from].entries[j].seq) {
                        add_entry(page, &w.key[n].entry);
                        w.key[n].page = w.head;
                }
        }
        while (w.queued > 0 && page->count < DISK_PAGE_ENTRIES) {
                uint64_t n = number_of(&w.queue[0].key);

                add_entry(page, &w.queue[0]);
                if (w.key[n].live && w.key[n].entry.seq == w.queue[0].seq)
                        w.key[n].page = w.head;
                w.queued--;
                memmove(&w.queue[0], &w.queue[1], w.queued * sizeof(w.queue[0]));
        }
        page->crc = disk_page_crc(page);
        w.head = (w.head + 1) % w.pages;
}

static void queue(const struct disk_entry *e)
{
        w.queue[w.queued++] = *e;
        if (w.queued == QUEUE_MAX || chance(7))
                while (w.queued > 0)
                        write_page();
}

/* Evicts the slot without writing anything. Queued entries stay queued: a put that is evicted at
 * once has its entry. */
static void evict(uint32_t slot)
{
        if (w.slot[slot].key == 0)
                return;
        w.key[w.slot[slot].key - 1].live = false;
        w.slot[slot].key = 0;
}

static void drop(uint32_t n)
{
        struct disk_entry e = {
                .key = key_of(n),
                .seq = ++w.seq,
                .flags = DISK_ENTRY_TOMBSTONE,
                .namespace_id = w.key[n].entry.namespace_id,
        };
        const struct disk_entry *was = &w.key[n].entry;

        evict(was->segment * SEGMENT_PAGES + was->slot_offset);
        queue(&e);
}

static void cut(uint32_t segment)
{
        static const uint32_t sizes[] = { 1, 2, 3, 4 };

        for (uint32_t i = 0; i < SEGMENT_PAGES; i++)
                evict(segment * SEGMENT_PAGES + i);
        while (w.queued > 0)
                write_page();
        w.cut[segment].epoch = ++w.seq;
        w.cut[segment].slot_pages = sizes[random_below(ARRAY_SIZE(sizes))];
}

static void put(uint32_t n)
{
        /* Every other put goes to slots in turn, so that none stays unused forever. */
        uint32_t place = (uint32_t)(chance(50) ? w.turn++ : random_below(SLOTS_MAX)),
                 segment = place / SEGMENT_PAGES % w.segments, size = w.cut[segment].slot_pages,
                 at = place % SEGMENT_PAGES / size * size, slot = segment * SEGMENT_PAGES + at;

        if (w.key[n].live)
                return;
        evict(slot);
        w.key[n].entry = (struct disk_entry){
                .key = key_of(n),
                .seq = ++w.seq,
                .segment = segment,
                .slot_offset = at,
                .slot_pages = size,
                .length = size * DISK_PAGE - (uint32_t)random_below(DISK_PAGE),
                .namespace_id = chance(98) ? t.ns : t.ns + 7, /* a namespace that does not exist */
                .created_ms = 1000 * w.seq / 3,
                .segment_epoch = w.cut[segment].epoch,
        };
        w.key[n].live = true;
        w.key[n].page = UINT32_MAX;
        w.slot[slot].key = n + 1;
        queue(&w.key[n].entry);
}

static void restart(void)
{
        while (w.queued > 0)
                write_page();
        w.sequence += random_below(3) * random_below(100000);
        w.run = w.sequence;
        w.seq += random_below(3) * random_below(100000);
}

/* Puts n times, and meanwhile drops and recuts, in proportions of `drops` and `cuts` to 30,000
 * puts. */
static void put_at_random(uint64_t n, unsigned drops, unsigned cuts)
{
        for (uint64_t i = 0; i < n; i++) {
                uint32_t key = (uint32_t)random_below(w.segments * SEGMENT_PAGES * 2);

                put(key);
                if (random_below(30000) < drops && w.key[key / 2].live)
                        drop(key / 2);
                if (random_below(30000) < cuts)
                        cut((uint32_t)random_below(w.segments));
                if (random_below(4000) == 0)
                        restart();
        }
        while (w.queued > 0)
                write_page();
}

static void begin_ring(uint32_t pages, uint32_t segments, uint32_t safe)
{
        memset(&w, 0, sizeof(w));
        memset(disk, 0, sizeof(disk));
        w.pages = w.file_pages = pages;
        w.safe = safe;
        w.segments = segments;
        assert_in_range(w.segments, 1, SEGMENTS_MAX);
        w.sequence = w.run = 1;
        for (uint32_t i = 0; i < w.segments; i++)
                cut(i);
}

static void write_ring(uint32_t pages, uint32_t segments, unsigned laps, unsigned drops,
                       unsigned cuts)
{
        uint64_t n = (uint64_t)laps * pages * 20;

        begin_ring(pages, segments, MAX(4u, pages / 8));
        put_at_random(chance(80) ? n : random_below(n), drops, cuts);
}

static uint32_t segments_for(uint32_t pages)
{
        return pages * DISK_PAGE_ENTRIES / 3 / SEGMENT_PAGES;
}

/* Loses, tears or keeps each of the last pages, none of which was synced. */
static void crash(unsigned unsynced, bool tears)
{
        for (uint32_t i = 1; i <= unsynced && i < w.sequence - w.run; i++) {
                uint32_t page = (w.head + w.pages - i) % w.pages;
                unsigned fate = (unsigned)random_below(10);

                if (fate < 2)
                        disk[page] = before[page];
                else if (tears && fate < 3)
                        memset(&disk[page], 0, sizeof(disk[page]));
                else if (tears && fate < 5)
                        memcpy((char *)&disk[page] + 512, (char *)&before[page] + 512,
                               sizeof(disk[page]) - 512);
        }
}

/* Keeps only the very last of the pages that were not synced. */
static void lose_all_but(uint32_t kept, uint32_t unsynced)
{
        for (uint32_t i = kept + 1; i <= unsynced; i++) {
                uint32_t page = (w.head + w.pages - i) % w.pages;

                disk[page] = before[page];
        }
}

/* --- the rules --- */

struct line {
        struct disk_entry entry;
        uint64_t sequence;
        uint32_t page;
};

static struct line lines[PAGES_MAX * DISK_PAGE_ENTRIES];
static size_t n_lines, n_valid;
static uint32_t expected[KEYS]; /* generations; 0: not there */
static uint32_t evicted[KEYS];  /* chunks evicted without a record, which may return */

static bool is_left_over(const struct disk_page *newest, uint32_t i)
{
        uint64_t back = (newest->position + w.pages - i) % w.pages;

        return newest->sequence >= newest->run_sequence + back &&
               disk[i].sequence != newest->sequence - back;
}

static int by_key_and_seq(const void *a, const void *b)
{
        const struct line *x = a, *y = b;
        int r = memcmp(&x->entry.key, &y->entry.key, sizeof(x->entry.key));

        if (r != 0)
                return r;
        if (x->entry.namespace_id != y->entry.namespace_id)
                return x->entry.namespace_id < y->entry.namespace_id ? -1 : 1;
        if (x->entry.seq != y->entry.seq)
                return x->entry.seq < y->entry.seq ? 1 : -1;
        return x->sequence < y->sequence ? 1 : -1; /* the newest copy */
}

static const struct disk_page *newest_page(void)
{
        const struct disk_page *newest = NULL;

        for (uint32_t i = 0; i < w.pages; i++)
                if (disk_page_valid(&disk[i], t.uuid, i) &&
                    (!newest || disk[i].sequence > newest->sequence))
                        newest = &disk[i];
        return newest;
}

static unsigned compute(void)
{
        static uint64_t epochs[SEGMENTS_MAX], highest[SLOTS_MAX];
        const struct disk_page *newest = newest_page();
        unsigned n = 0;

        memset(epochs, 0, sizeof(epochs));
        memset(highest, 0, sizeof(highest));
        memset(expected, 0, sizeof(expected));
        memset(evicted, 0, sizeof(evicted));
        n_lines = n_valid = 0;
        for (uint32_t i = 0; i < w.pages; i++) {
                if (!disk_page_valid(&disk[i], t.uuid, i) || is_left_over(newest, i))
                        continue;
                n_valid++;
                for (unsigned j = 0; j < disk[i].count; j++)
                        if (disk_entry_valid(&disk[i].entries[j], t.uuid))
                                lines[n_lines++] =
                                        (struct line){ disk[i].entries[j], disk[i].sequence, i };
        }
        for (size_t i = 0; i < n_lines; i++) {
                const struct disk_entry *e = &lines[i].entry;

                if (!(e->flags & DISK_ENTRY_TOMBSTONE))
                        epochs[e->segment] = MAX(epochs[e->segment], e->segment_epoch);
        }
        for (size_t i = 0; i < n_lines; i++) {
                const struct disk_entry *e = &lines[i].entry;
                uint64_t *slot = &highest[e->segment * SEGMENT_PAGES + e->slot_offset];

                if (!(e->flags & DISK_ENTRY_TOMBSTONE) && e->segment_epoch == epochs[e->segment])
                        *slot = MAX(*slot, e->seq);
        }
        qsort(lines, n_lines, sizeof(lines[0]), by_key_and_seq);
        for (size_t i = 0; i < n_lines; i++) {
                const struct disk_entry *e = &lines[i].entry;

                if (i > 0 && memcmp(&e->key, &lines[i - 1].entry.key, sizeof(e->key)) == 0 &&
                    e->namespace_id == lines[i - 1].entry.namespace_id)
                        continue; /* the highest counts */
                if (e->flags & DISK_ENTRY_TOMBSTONE || e->namespace_id != t.ns ||
                    e->segment_epoch != epochs[e->segment] ||
                    e->seq != highest[e->segment * SEGMENT_PAGES + e->slot_offset])
                        continue;
                if ((lines[i].page + w.file_pages - newest->position - 1) % w.file_pages <
                    newest->safe) {
                        evicted[number_of(&e->key)] = (uint32_t)e->seq & ((1u << 28) - 1);
                        continue;
                }
                expected[number_of(&e->key)] = (uint32_t)e->seq & ((1u << 28) - 1);
                n++;
        }
        return n;
}

/* --- the store --- */

static void finish(void)
{
        while (store_pending(t.s) > 0) {
                struct pollfd p = { .fd = kio_fd(t.io), .events = POLLIN };

                store_iterate(t.s);
                kio_flush(t.io);
                if (store_pending(t.s) > 0 && kio_pending(t.io) > 0)
                        assert_int_equal(poll(&p, 1, test_timeout_ms(60000)), 1);
                kio_reap(t.io);
        }
}

static void opened(struct store_namespace_open *req)
{
}

static void start(uint32_t block)
{
        const char *paths[] = { t.dir };
        struct store_params params = {
                .paths = paths,
                .n_paths = 1,
                .limit = 256 * MIB,
                .segment_bytes = MIB,
                .policy = "lru",
                .table_block = block,
                .secret = { { 3, t.seed } },
        };
        struct kio_params io_params = { .workers = 1, .depth = 8, .probe_fd = -1 };
        struct store_namespace_open req = {
                .name = "many", .name_length = 4, .fingerprint = "", .complete = opened
        };
        char error[512] = "";

        if (store_prepare(&t.s, &params, error) < 0 ||
            kio_start_with(&t.io, &io_params, &kio_backend_posix, error) < 0 ||
            store_open(t.s, t.io, error) < 0)
                fail_msg("%s", error);
        store_namespace_open(t.s, &req);
        finish();
        assert_int_equal(req.result, 0);
        t.ns = req.namespace->id;
}

static void stop(void)
{
        store_stop(t.s);
        finish();
        t.s = store_close(t.s);
        t.io = kio_stop(t.io);
}

static int file_of(const char *name)
{
        char path[PATH_MAX + 64];
        int fd;

        snprintf(path, sizeof(path), "%s/%s", t.dir, name);
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
        return fd;
}

static void change_superblock(void (*change)(struct disk_superblock *sb))
{
        struct disk_superblock sb;
        int fd = file_of("superblock");

        assert_int_equal(pread(fd, &sb, sizeof(sb), 0), sizeof(sb));
        change(&sb);
        sb.crc = disk_superblock_crc(&sb);
        for (unsigned i = 0; i < DISK_SUPERBLOCKS; i++)
                assert_int_equal(pwrite(fd, &sb, sizeof(sb), (off_t)i * DISK_PAGE), sizeof(sb));
        close(fd);
}

/* Makes the superblock one of a version without sizes. */
static void forget_sizes(struct disk_superblock *sb)
{
        sb->sizes_seq = sb->n_sizes = sb->table_pages = 0;
}

/* Makes an empty store, which then gets the tables. */
static void make_store(void)
{
        struct disk_superblock sb;
        int fd;

        start(0);
        stop();
        fd = file_of("superblock");
        assert_int_equal(pread(fd, &sb, sizeof(sb), 0), sizeof(sb));
        memcpy(t.uuid, sb.uuid, sizeof(t.uuid));
        close(fd);
}

static void lay_down(void)
{
        int fd;

        change_superblock(forget_sizes);
        for (uint32_t i = 0; i < SEGMENTS_MAX; i++) {
                char name[32];

                snprintf(name, sizeof(name), "segment-%04x", i);
                fd = file_of(name);
                close(fd);
                if (i >= w.segments) {
                        char path[PATH_MAX + 64];

                        snprintf(path, sizeof(path), "%s/%s", t.dir, name);
                        assert_int_equal(unlink(path), 0);
                        continue;
                }
                fd = file_of(name);
                assert_int_equal(ftruncate(fd, SEGMENT_PAGES * DISK_PAGE), 0);
                close(fd);
        }
        fd = file_of("table");
        assert_int_equal(ftruncate(fd, (off_t)w.file_pages * DISK_PAGE), 0);
        assert_int_equal(pwrite(fd, disk, w.file_pages * sizeof(disk[0]), 0),
                         w.file_pages * sizeof(disk[0]));
        close(fd);
}

/* Returns the generation of a chunk, or 0 if it is absent. */
static uint32_t found(uint64_t n)
{
        struct key k = key_of(n);
        struct store_ref ref;

        if (store_find(t.s, t.ns, &k, store_hash(t.s, t.ns, &k), &ref, NULL) != 0)
                return 0;
        return ref.generation;
}

struct put {
        struct store_put req;
        bool done;
};

static void put_done(struct store_put *req)
{
        container_of(req, struct put, req)->done = true;
}

static void put_some_more(void)
{
        static char buf[DISK_PAGE] __attribute__((aligned(DISK_PAGE)));
        unsigned n = 1 + (unsigned)random_below(60);

        for (unsigned i = 0; i < n; i++) {
                struct put p = { .req = { .namespace_id = t.ns,
                                          .key = key_of(NEW_KEYS + i),
                                          .buf = buf,
                                          .length = sizeof(buf),
                                          .crc = kio_crc32c(buf, sizeof(buf)),
                                          .complete = put_done } };

                p.req.hash = store_hash(t.s, t.ns, &p.req.key);
                assert_int_equal(store_put(t.s, &p.req), 0);
                finish();
                assert_true(p.done);
        }
}

static void expect_what_lives(unsigned n)
{
        struct store_stats st;

        for (uint64_t i = 0; i < KEYS; i++)
                if (found(i) != expected[i])
                        fail_msg("key %u: found %u, expected %u", (unsigned)i, found(i),
                                 expected[i]);
        store_get_stats(t.s, &st);
        assert_int_equal(st.chunks, n);
}

/* Remains of a crash would be taken for whole at the next start, or be completed by another
 * crash. */
static void expect_what_is_left_over_to_be_erased(void)
{
        static const struct disk_page zeros;
        static struct disk_page now[PAGES_MAX];
        const struct disk_page *newest = newest_page();
        int fd = file_of("table");

        assert_int_equal(pread(fd, now, w.pages * sizeof(now[0]), 0), w.pages * sizeof(now[0]));
        close(fd);
        for (uint32_t i = 0; i < w.pages; i++)
                if (disk_page_valid(&disk[i], t.uuid, i) ? is_left_over(newest, i)
                                                         : disk[i].magic != 0)
                        assert_memory_equal(&now[i], &zeros, sizeof(zeros));
}

/* Checks recovery. Returns how many pages of the ring it did not read. */
static uint64_t check_ring(uint32_t block)
{
        unsigned n = compute();
        struct store_stats st;

        lay_down();
        start(block);
        expect_what_lives(n);
        expect_what_is_left_over_to_be_erased();
        store_get_stats(t.s, &st);
        put_some_more();
        stop();
        /* No dead entry has outlived the entries that superseded it. */
        start(block == 0 ? 16 : 0);
        for (uint64_t i = 0; i < KEYS; i++)
                if (found(i) != 0 && found(i) != evicted[i])
                        assert_int_equal(found(i), expected[i]);
        stop();
        return n_valid > st.recovered_pages ? n_valid - st.recovered_pages : 0;
}

/* --- */

static const uint32_t blocks[] = { 0, 1, 7, 16, 64, 256 };

/* Steps over seeds, because ThreadSanitizer is ten times as slow, and the threads' behaviour does
 * not depend on the contents of a ring. The step is prime to the number of blocks. */
enum { STEP = SANITIZES_THREADS ? 5 : 1 };

static void seed(uint32_t number)
{
        t.seed = number;
        random_state = UINT64_C(0x9e3779b97f4a7c15) * (number + 1);
        print_message("seed %u\n", number);
}

static uint32_t block_for(uint32_t i)
{
        return blocks[i % ARRAY_SIZE(blocks)];
}

static uint32_t pages_between(uint32_t least, uint32_t most)
{
        return least + (uint32_t)random_below(most - least);
}

static void a_start_finds_what_the_rules_say(void **state)
{
        for (uint32_t i = 0; i < 48; i += STEP) {
                uint32_t pages;

                seed(i);
                pages = pages_between(64, 150);
                write_ring(pages, segments_for(pages), 6, i % 3 * 1000, i % 2 * 10);
                crash((unsigned)random_below(w.safe / 2 + 1), true);
                check_ring(block_for(i));
        }
}

static void a_large_ring_is_not_read_to_its_end(void **state)
{
        uint64_t left_out = 0;

        for (uint32_t i = 100; i < 108; i++) {
                uint32_t pages;

                seed(i);
                pages = pages_between(1100, PAGES_MAX);
                write_ring(pages, segments_for(pages), 12, i % 2 * 1000, i % 2);
                if (i % 2 == 1)
                        crash((unsigned)random_below(w.safe / 2 + 1), true);
                left_out += check_ring(blocks[1 + i % (ARRAY_SIZE(blocks) - 1)]);
        }
        assert_true(left_out > 0);
}

/* Recovery has seen all slots after a few pages. */
static void what_a_crash_left_is_found_behind_what_a_start_needs(void **state)
{
        uint64_t left_out = 0;

        for (uint32_t i = 200; i < 206; i += STEP) {
                seed(i);
                write_ring(1300, 1, 4, 0, 0);
                crash(w.safe / 2, false);
                left_out += check_ring(block_for(i));
        }
        assert_true(left_out > 0);
}

/* No store leaves such pages, but a copy taken while it ran may. */
static void pages_out_of_order_count_by_their_sequences(void **state)
{
        for (uint32_t i = 300; i < 324; i += STEP) {
                uint32_t pages;

                seed(i);
                pages = pages_between(64, 150);
                write_ring(pages, segments_for(pages), 6, 3000, 0);
                crash(w.safe / 2, false);
                restart();
                put_at_random(10 * pages, 3000, 0);
                check_ring(block_for(i));
        }
}

/* The pages from the end of the file on are lost, except a few that are far from it. */
static void the_newest_pages_may_lie_behind_hundreds_that_were_lost(void **state)
{
        for (uint32_t i = 700; i < 718; i += STEP) {
                /* The last block is short, or the file continues after the ring's end. */
                uint32_t pages = i % 2 ? 1296 : 1040;

                seed(i);
                begin_ring(pages, 1, 2 * TABLE_UNSYNCED_MAX);
                w.safe = MIN(w.safe, pages - 100);
                put_at_random(60000, i % 3 * 500, 0);
                do
                        put_at_random(1, 0, 0);
                while (w.head < 310 || w.head > 400);
                lose_all_but(10, w.head);
                if (i % 2 == 0)
                        w.file_pages = PAGES_MAX;
                check_ring(i % 6 < 4 ? 256 : block_for(i));
        }
}

/* Marks a failed sync after which the store continued, so that any number of pages may be lost. */
static void mark_unsynced(struct disk_superblock *sb)
{
        assert_int_equal(sb->unsynced, 0);
        sb->unsynced = 1;
}

static void after_a_failed_sync_all_of_the_ring_is_scanned(void **state)
{
        for (uint32_t i = 800; i < 806; i += STEP) {
                seed(i);
                begin_ring(1296, 1, 1100);
                put_at_random(60000, i % 3 * 500, 0);
                do
                        put_at_random(1, 0, 0);
                while (w.head < 1200);
                lose_all_but(10, 700);
                change_superblock(mark_unsynced);
                check_ring(256);
        }
}

/* The pages behind the ring's end have been written with zeros, and count as none. */
static void the_room_for_a_ring_that_grows_is_not_taken_for_pages(void **state)
{
        for (uint32_t i = 900; i < 912; i += STEP) {
                uint32_t lost;

                seed(i);
                begin_ring(800, 1, 500);
                put_at_random(60000, 0, 0);
                do
                        put_at_random(1, 0, 0);
                while (w.head < 20 || w.head > 60);
                lost = 60 + (uint32_t)random_below(100);
                for (uint32_t j = 0; j < 60; j++) {
                        uint32_t page = (w.head + w.pages - lost - j) % w.pages;

                        disk[page] = before[page];
                }
                w.file_pages = PAGES_MAX;
                check_ring(i % 2 ? 16 : 256);
        }
}

static void damage_costs_its_own_entries(void **state)
{
        for (uint32_t i = 400; i < 424; i += STEP) {
                uint32_t pages, first, n;

                seed(i);
                pages = pages_between(64, 260);
                write_ring(pages, segments_for(pages), 6, 1000, 5);
                crash((unsigned)random_below(w.safe / 2 + 1), true);
                /* Damages a few consecutive pages: at the beginning of the ring, around the newest
                 * page, or anywhere. */
                n = 1 + (uint32_t)random_below(30);
                first = i % 3 == 0   ? 0
                        : i % 3 == 1 ? w.head + w.pages - n / 2
                                     : (uint32_t)random_below(w.pages);
                for (uint32_t j = 0; j < n; j++)
                        disk[(first + j) % w.pages].crc ^= 1;
                check_ring(block_for(i));
        }
}

/* The newest pages lie behind more damage than a crash may leave. */
static void damage_does_not_hide_the_newest_pages(void **state)
{
        for (uint32_t i = 500; i < 506; i += STEP) {
                seed(i);
                write_ring(1300, 1, 4, 0, 0);
                for (uint32_t j = 0; j < 700; j++)
                        disk[(w.head + w.pages - 100 - j) % w.pages].crc ^= 1;
                check_ring(block_for(i));
        }
}

static void a_newest_page_where_halves_do_not_find_it_is_found(void **state)
{
        for (uint32_t i = 600; i < 624; i += STEP) {
                uint32_t pages;

                seed(i);
                pages = pages_between(64, 150);
                write_ring(pages, segments_for(pages), 8, 1000, 5);
                while (w.head == 0 || w.head > 3 || w.sequence < 2 * w.pages)
                        put_at_random(1, 1000, 5);
                /* The first page still has the contents of the previous round. */
                disk[0] = before[0];
                check_ring(block_for(i));
        }
}

static int setup(void **state)
{
        const char *root = getenv("TMPDIR") ? getenv("TMPDIR") : "/var/tmp";

        snprintf(t.dir, sizeof(t.dir), "%s/kvcache-recover-XXXXXX", root);
        if (!mkdtemp(t.dir))
                return -1;
        make_store();
        return 0;
}

static int teardown(void **state)
{
        char command[PATH_MAX + 16];

        snprintf(command, sizeof(command), "rm -rf '%s'", t.dir);
        return system(command);
}

/* --- data files that are missing or short --- */

static uint32_t sizes[SEGMENTS_MAX]; /* remaining size of each data file, in pages */

static int remove_file(uint32_t segment)
{
        char path[PATH_MAX + 64];

        snprintf(path, sizeof(path), "%s/segment-%04x", t.dir, segment);
        return unlink(path);
}

/* Removes, empties and cuts some data files. */
static void damage_files(unsigned percent)
{
        for (uint32_t i = 0; i < w.segments; i++) {
                char name[32], path[PATH_MAX + 64];
                uint64_t how = random_below(3);

                if (!chance(percent))
                        continue;
                snprintf(name, sizeof(name), "segment-%04x", i);
                snprintf(path, sizeof(path), "%s/%s", t.dir, name);
                sizes[i] = how == 2 ? (uint32_t)random_below(SEGMENT_PAGES) : 0;
                if (how == 0)
                        assert_int_equal(unlink(path), 0);
                else
                        assert_int_equal(truncate(path, (off_t)sizes[i] * DISK_PAGE), 0);
        }
}

/* Returns how many chunks were in the missing parts, and expects them no longer. */
static unsigned expect_losses(void)
{
        unsigned lost = 0;

        for (size_t i = 0; i < n_lines; i++) {
                const struct disk_entry *e = &lines[i].entry;
                uint64_t n = number_of(&e->key);

                if (n >= KEYS || expected[n] == 0 ||
                    expected[n] != ((uint32_t)e->seq & ((1u << 28) - 1)) ||
                    e->slot_offset + e->slot_pages <= sizes[e->segment])
                        continue;
                expected[n] = 0;
                lost++;
        }
        return lost;
}

static uint64_t start_and_count_losses(uint32_t block)
{
        struct store_stats st;

        start(block);
        store_get_stats(t.s, &st);
        return st.lost_chunks;
}

/* The entries of the missing file lie far behind all those that the present file needs. */
static void old_chunks_of_a_missing_file_are_counted(void **state)
{
        for (uint32_t i = 1100; i < 1112; i += STEP) {
                unsigned n, lost;

                seed(i);
                begin_ring(1300, 2, 160);
                put_at_random(2000, 0, 0);
                w.segments = 1;
                put_at_random(60000 + random_below(40000), 0, 0);
                w.segments = 2;
                n = compute();
                lay_down();
                assert_int_equal(start_and_count_losses(16), 0);
                expect_what_lives(n);
                stop();
                for (uint32_t j = 0; j < SEGMENTS_MAX; j++)
                        sizes[j] = j == 1 ? 0 : SEGMENT_PAGES;
                assert_int_equal(remove_file(1), 0);
                for (uint32_t j = 2; j < SEGMENTS_MAX; j++)
                        (void)remove_file(j); /* made ahead: with unused slots all is scanned */
                lost = expect_losses();
                assert_true(lost > 0);
                assert_int_equal(start_and_count_losses(16), lost);
                expect_what_lives(n - lost);
                stop();
        }
}

static void write_as_an_older_daemon(struct disk_superblock *sb)
{
        sb->ceiling_generation = ++sb->generation;
        for (uint32_t i = 0; i < sb->n_sizes; i++)
                sb->sizes[i].pages = 0;
        sb->sizes_seq = UINT64_C(1) << 51; /* beyond all epochs */
}

/* Such a daemon copies the sizes, and removes and cuts data files without changing them. */
static void sizes_that_were_not_maintained_hide_no_chunk(void **state)
{
        for (uint32_t i = 1200; i < 1206; i += STEP) {
                unsigned n;

                seed(i);
                write_ring(100, segments_for(100), 6, 0, 0);
                n = compute();
                lay_down();
                assert_int_equal(start_and_count_losses(block_for(i)), 0);
                stop();
                change_superblock(write_as_an_older_daemon);
                assert_int_equal(start_and_count_losses(block_for(i)), 0);
                expect_what_lives(n);
                stop();
        }
}

/* The first start makes the superblock know the sizes. A start after a loss reports it; the next
 * one reports nothing, also once other files have taken the names of the missing ones. */
static void chunks_of_missing_and_short_files_are_lost_once(void **state)
{
        uint64_t all = 0;

        for (uint32_t i = 1000; i < 1024; i += STEP) {
                uint32_t pages;
                unsigned n, lost;

                seed(i);
                pages = i % 4 == 0 ? pages_between(1100, PAGES_MAX) : pages_between(64, 150);
                write_ring(pages, segments_for(pages), 6, i % 3 * 1000, i % 2 * 10);
                n = compute();
                lay_down();
                for (uint32_t j = 0; j < SEGMENTS_MAX; j++)
                        sizes[j] = SEGMENT_PAGES;
                if (i % 5 != 0) { /* otherwise the sizes are unknown */
                        assert_int_equal(start_and_count_losses(block_for(i)), 0);
                        expect_what_lives(n);
                        stop();
                }
                damage_files(i % 7 == 0 ? 100 : 20);
                lost = expect_losses();
                assert_int_equal(start_and_count_losses(block_for(i + 1)), lost);
                expect_what_lives(n - lost);
                stop();
                all += lost;
                for (unsigned again = 0; again < 2; again++) {
                        assert_int_equal(start_and_count_losses(block_for(i + again)), 0);
                        expect_what_lives(n - lost);
                        stop();
                }
        }
        assert_true(all > 0);
}

int main(int argc, char **argv)
{
        static const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(a_start_finds_what_the_rules_say, setup, teardown),
                cmocka_unit_test_setup_teardown(chunks_of_missing_and_short_files_are_lost_once,
                                                setup, teardown),
                cmocka_unit_test_setup_teardown(sizes_that_were_not_maintained_hide_no_chunk, setup,
                                                teardown),
                cmocka_unit_test_setup_teardown(old_chunks_of_a_missing_file_are_counted, setup,
                                                teardown),
                cmocka_unit_test_setup_teardown(a_large_ring_is_not_read_to_its_end, setup,
                                                teardown),
                cmocka_unit_test_setup_teardown(
                        what_a_crash_left_is_found_behind_what_a_start_needs, setup, teardown),
                cmocka_unit_test_setup_teardown(pages_out_of_order_count_by_their_sequences, setup,
                                                teardown),
                cmocka_unit_test_setup_teardown(
                        the_newest_pages_may_lie_behind_hundreds_that_were_lost, setup, teardown),
                cmocka_unit_test_setup_teardown(after_a_failed_sync_all_of_the_ring_is_scanned,
                                                setup, teardown),
                cmocka_unit_test_setup_teardown(
                        the_room_for_a_ring_that_grows_is_not_taken_for_pages, setup, teardown),
                cmocka_unit_test_setup_teardown(damage_costs_its_own_entries, setup, teardown),
                cmocka_unit_test_setup_teardown(damage_does_not_hide_the_newest_pages, setup,
                                                teardown),
                cmocka_unit_test_setup_teardown(a_newest_page_where_halves_do_not_find_it_is_found,
                                                setup, teardown),
        };

        if (argc > 1)
                cmocka_set_test_filter(argv[1]);
        return cmocka_run_group_tests_name("start", tests, NULL, NULL);
}
