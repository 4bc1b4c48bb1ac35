/* SPDX-License-Identifier: Apache-2.0 */
/* store/table with a disk in memory: whichever part of the write in flight reached the disk, every
 * live entry is in at least one whole page. The same holds for synced entries after a power loss,
 * when any page written since the last sync may be missing. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checked.h"
#include "store/volume/format.h"
#include "store/volume/table.h"

enum { PAGES_MAX = 512, KEYS = 6000 };

enum state { GONE, EVICTED, QUEUED, LIVE };

/* Expected state of a key, which the disk is compared with. */
struct model {
        enum state state;
        uint64_t seq;        /* last answered one */
        uint64_t acked_seq;  /* sequence of the latest answered one */
        uint64_t stable_seq; /* latest one answered before a successful sync began */
};

struct item {
        struct table_item item;
        uint32_t key;
        uint64_t seq;
        bool tombstone;
};

static struct {
        struct table *table;
        uint32_t pages;
        struct disk_page disk[PAGES_MAX], stable[PAGES_MAX], scratch[PAGES_MAX];
        struct model keys[KEYS];
        uint64_t seq, random, failed;
        uint32_t live;
} t;

static const uint8_t uuid[DISK_UUID_BYTES] = "0123456789abcde";

static uint64_t random_below(uint64_t n)
{
        t.random ^= t.random << 13;
        t.random ^= t.random >> 7;
        t.random ^= t.random << 17;
        return t.random % n;
}

/* --- the owner of the table --- */

static void entry_of(uint32_t key, uint64_t seq, bool tombstone, struct disk_entry *ret)
{
        memcpy(ret->key.bytes, &key, sizeof(key));
        ret->seq = seq;
        ret->flags = tombstone ? DISK_ENTRY_TOMBSTONE : 0;
}

static bool fill(void *userdata, struct table_item *table_item, struct disk_entry *ret)
{
        struct item *item = container_of(table_item, struct item, item);

        if (!item->tombstone &&
            (t.keys[item->key].state != QUEUED || t.keys[item->key].seq != item->seq))
                return false;
        entry_of(item->key, item->seq, item->tombstone, ret);
        return true;
}

static void written(void *userdata, struct table_item *table_item, uint32_t page, int r)
{
        struct item *item = container_of(table_item, struct item, item);
        struct model *m = &t.keys[item->key];

        if (r < 0)
                t.failed++;
        if (r == 0 && item->tombstone && m->state == GONE) {
                m->acked_seq = MAX(m->acked_seq, item->seq);
        } else if (r == 0 && !item->tombstone && m->state == QUEUED && m->seq == item->seq) {
                m->state = LIVE;
                m->acked_seq = item->seq;
                table_place(t.table, page, item->key);
        }
        free(item);
}

static void entry(void *userdata, uint32_t key, struct disk_entry *ret)
{
        assert_int_equal(t.keys[key].state, LIVE);
        entry_of(key, t.keys[key].seq, false, ret);
}

static const struct table_ops ops = { .fill = fill, .written = written, .entry = entry };

static void queue(uint32_t key, uint64_t seq, bool tombstone)
{
        struct item *item = calloc(1, sizeof(*item));

        *item = (struct item){ .key = key, .seq = seq, .tombstone = tombstone };
        table_queue(t.table, &item->item);
}

static void put(uint32_t key)
{
        t.keys[key].state = QUEUED;
        t.keys[key].seq = ++t.seq;
        t.live++;
        queue(key, t.seq, false);
}

static void drop(uint32_t key)
{
        t.keys[key].state = GONE;
        t.keys[key].seq = ++t.seq;
        table_forget(t.table, key);
        t.live--;
        queue(key, t.seq, true);
}

static void evict(uint32_t key)
{
        t.keys[key].state = EVICTED;
        table_forget(t.table, key);
        t.live--;
}

/* --- reading a disk, as the start does --- */

struct found {
        uint64_t seq, sequence;
        uint32_t page;
        bool tombstone;
};
static struct found found[KEYS];

static uint64_t sequences[PAGES_MAX];

static uint32_t survey(const struct disk_page *disk)
{
        uint32_t newest;

        for (uint32_t p = 0; p < t.pages; p++)
                sequences[p] = disk_page_valid(&disk[p], uuid, p) ? disk[p].sequence : 0;
        newest = table_find_newest(sequences, t.pages);
        for (uint32_t p = 0; newest != UINT32_MAX && p < t.pages; p++)
                if (sequences[p] != 0 && table_is_stale(&disk[newest], t.pages, p, sequences[p]))
                        sequences[p] = TABLE_STALE;
        return newest;
}

static void scan(const struct disk_page *disk)
{
        memset(found, 0, sizeof(found));
        survey(disk);
        for (uint32_t p = 0; p < t.pages; p++) {
                if (sequences[p] == 0 || sequences[p] == TABLE_STALE)
                        continue;
                for (unsigned i = 0; i < disk[p].count; i++) {
                        const struct disk_entry *e = &disk[p].entries[i];
                        uint32_t key;

                        assert_true(disk_entry_valid(e, uuid));
                        memcpy(&key, e->key.bytes, sizeof(key));
                        if (e->seq < found[key].seq ||
                            (e->seq == found[key].seq && disk[p].sequence < found[key].sequence))
                                continue;
                        found[key] = (struct found){ .seq = e->seq,
                                                     .sequence = disk[p].sequence,
                                                     .page = p,
                                                     .tombstone = e->flags & DISK_ENTRY_TOMBSTONE };
                }
        }
}

/* Returns whether the page is one that the newest page declares safe, whose entries are dropped
 * unread. Dead entries of formerly live keys, or of slots with another owner, are irrelevant. */
static bool in_safe_pages(const struct disk_page *disk, uint32_t newest, uint32_t page)
{
        return newest != UINT32_MAX && page != newest &&
               (page + t.pages - newest - 1) % t.pages < disk[newest].safe;
}

/* Checks the disk after a kill: acknowledged live entries exist, and acknowledged drops do not
 * return, unless a page was torn in itself, which needs a power loss, and may lose tombstones. */
static void check_kill(const struct disk_page *disk, bool torn_in_itself)
{
        uint32_t newest = survey(disk);

        scan(disk);
        for (uint32_t k = 0; k < KEYS; k++) {
                const struct model *m = &t.keys[k];

                if (m->state == LIVE && (found[k].seq != m->seq || found[k].tombstone))
                        fail_msg("key %u of seq %llu is lost", k, (unsigned long long)m->seq);
                if (m->state == LIVE && in_safe_pages(disk, newest, found[k].page))
                        fail_msg("key %u of seq %llu lies only where nothing should be needed", k,
                                 (unsigned long long)m->seq);
                if (!torn_in_itself && m->state == GONE && m->acked_seq == m->seq &&
                    found[k].seq != 0 && !found[k].tombstone)
                        fail_msg("key %u is back from the dead", k);
        }
}

/* Checks the disk after a power loss: live entries that were synced exist. */
static void check_power_loss(const struct disk_page *disk)
{
        uint32_t newest = survey(disk);

        scan(disk);
        for (uint32_t k = 0; k < KEYS; k++) {
                const struct model *m = &t.keys[k];

                if (m->state == LIVE && m->stable_seq == m->seq &&
                    (found[k].seq != m->seq || found[k].tombstone))
                        fail_msg("key %u of seq %llu is lost though synced", k,
                                 (unsigned long long)m->seq);
                if (m->state == LIVE && m->stable_seq == m->seq &&
                    in_safe_pages(disk, newest, found[k].page))
                        fail_msg("key %u of seq %llu lies only where nothing should be needed", k,
                                 (unsigned long long)m->seq);
        }
}

static void free_queue(void)
{
        /* A failed ring releases all items. */
        const void *buf;
        uint64_t offset, bytes;

        if (!t.table)
                return;
        for (uint32_t k = 0; k < KEYS; k++)
                if (t.keys[k].state == QUEUED) {
                        t.keys[k].state = EVICTED;
                        t.live--;
                }
        if (!table_in_flight(t.table) && !table_compose(t.table, &buf, &offset, &bytes) &&
            table_has_queued(t.table)) {
                table_sync_begin(t.table);
                table_sync_end(t.table, 0);
                table_compose(t.table, &buf, &offset, &bytes);
        }
        if (table_in_flight(t.table))
                table_complete(t.table, -EIO);
        t.table = table_free(t.table);
}

/* Forgets everything but the disk, and starts from it. */
static void restart(void)
{
        uint32_t newest = survey(t.disk);

        free_queue();
        scan(t.disk);
        t.live = 0;
        assert_int_equal(table_new(&t.table, uuid, t.pages, KEYS, &ops, NULL), 0);
        for (uint32_t k = 0; k < KEYS; k++) {
                struct model *m = &t.keys[k];

                /* An evicted key has lost its slot, unless the disk has a later put of it. */
                bool back = found[k].seq != 0 && !found[k].tombstone &&
                            !(m->state == EVICTED && found[k].seq <= m->seq);

                m->state = back ? LIVE : found[k].tombstone ? GONE : EVICTED;
                m->seq = m->acked_seq = m->stable_seq = found[k].seq;
                if (back) {
                        t.live++;
                        table_place(t.table, found[k].page, k);
                }
        }
        for (uint32_t i = 1; newest != UINT32_MAX && i <= t.disk[newest].safe; i++) {
                uint32_t key;

                while ((key = table_chunk_in(t.table, (newest + i) % t.pages)) != TABLE_NOWHERE)
                        evict(key);
        }
        for (uint32_t p = 0; p < t.pages; p++)
                if (sequences[p] == TABLE_STALE)
                        memset(&t.disk[p], 0, DISK_PAGE);
        assert_int_equal(table_start(t.table, newest == UINT32_MAX ? 0 : (newest + 1) % t.pages,
                                     newest == UINT32_MAX ? 1 : sequences[newest] + 1),
                         0);
        memcpy(t.stable, t.disk, sizeof(t.disk));
}

/* --- the device --- */

static void begin(uint32_t pages, uint64_t seed)
{
        memset(&t, 0, sizeof(t));
        t.pages = pages;
        t.random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
        restart();
}

static void end(void)
{
        free_queue();
}

static void sync_disk(void)
{
        table_sync_begin(t.table);
        for (uint32_t k = 0; k < KEYS; k++)
                t.keys[k].stable_seq = t.keys[k].acked_seq;
        memcpy(t.stable, t.disk, sizeof(t.disk));
        table_sync_end(t.table, 0);
}

/* Applies the pages of a write that reach the disk, as bits of `which`. */
static void apply(struct disk_page *disk, const void *buf, uint64_t offset, uint64_t bytes,
                  uint64_t which)
{
        for (uint64_t i = 0; i < bytes / DISK_PAGE; i++)
                if (which >> i & 1)
                        memcpy(&disk[offset / DISK_PAGE + i], (const char *)buf + i * DISK_PAGE,
                               DISK_PAGE);
}

struct write {
        const void *buf;
        uint64_t offset, bytes;
};

static bool compose(struct write *w)
{
        if (!table_compose(t.table, &w->buf, &w->offset, &w->bytes))
                return false;
        assert_true(w->bytes > 0 && w->bytes % DISK_PAGE == 0 &&
                    w->bytes <= (uint64_t)TABLE_BATCH_PAGES * DISK_PAGE);
        assert_true(w->offset + w->bytes <= (uint64_t)t.pages * DISK_PAGE);
        return true;
}

/* Stops in the middle of this write in several ways, and looks. */
static void check_torn(const struct write *w)
{
        uint64_t k = w->bytes / DISK_PAGE, all = (UINT64_C(1) << k) - 1;

        for (unsigned i = 0; i < 4; i++) {
                uint64_t which = i == 0   ? 0
                                 : i == 1 ? UINT64_C(1) << (k - 1)
                                          : random_below(all + 1);

                memcpy(t.scratch, t.disk, sizeof(t.disk));
                apply(t.scratch, w->buf, w->offset, w->bytes, which);
                if (i == 3) {
                        /* Tears a page in itself, so that half of it is old. */
                        uint64_t p = w->offset / DISK_PAGE + random_below(k);

                        memcpy(&t.scratch[p],
                               (const char *)w->buf + (p - w->offset / DISK_PAGE) * DISK_PAGE,
                               2048);
                }
                check_kill(t.scratch, i == 3);
        }
}

static void finish(const struct write *w)
{
        apply(t.disk, w->buf, w->offset, w->bytes, UINT64_MAX);
        table_complete(t.table, 0);
        check_kill(t.disk, false);
}

/* Puts, drops and evictions that keep `wanted` keys live. */
static void change(uint32_t wanted, unsigned n)
{
        for (unsigned i = 0; i < n; i++) {
                uint32_t key = (uint32_t)random_below(KEYS);
                enum state state = t.keys[key].state;

                if (state == LIVE && (t.live >= wanted || random_below(4) == 0)) {
                        if (random_below(3) == 0)
                                drop(key);
                        else
                                evict(key);
                } else if ((state == GONE || state == EVICTED) && t.live < wanted) {
                        put(key);
                }
        }
}

/* Runs some iterations, with syncs as requested. */
static void run(uint32_t wanted, unsigned writes, bool torn)
{
        for (unsigned i = 0; i < writes; i++) {
                struct write w;

                do
                        change(wanted, 1 + (unsigned)random_below(120));
                while (!table_has_queued(t.table));
                if (table_wants_sync(t.table) && random_below(3) == 0)
                        sync_disk();
                if (!compose(&w)) {
                        assert_true(table_wants_sync(t.table) || !table_has_queued(t.table));
                        sync_disk();
                        if (!compose(&w))
                                continue;
                }
                change(wanted, (unsigned)random_below(40)); /* while it flies */
                if (torn)
                        check_torn(&w);
                finish(&w);
        }
}

/* --- tests --- */

static void every_live_entry_lies_in_a_page_whenever_it_stops(void **state)
{
        static const struct {
                uint32_t pages, live;
        } cases[] = { { 64, 661 }, { 64, 1500 }, { 16, 120 }, { 128, 1323 }, { 256, 4000 } };

        for (unsigned i = 0; i < ARRAY_SIZE(cases); i++) {
                begin(cases[i].pages, i + 1);
                assert_true(cases[i].live <= table_capacity(t.table));
                run(cases[i].live, 600, true);
                assert_true(t.live > cases[i].live * 9 / 10);
                end();
        }
}

static void it_goes_on_after_each_of_many_torn_writes(void **state)
{
        begin(64, 42);
        for (unsigned round = 0; round < 300; round++) {
                struct write w;

                run(661, (unsigned)random_below(20), false);
                change(661, 60);
                if (!compose(&w)) {
                        sync_disk();
                        if (!compose(&w))
                                continue;
                }
                apply(t.disk, w.buf, w.offset, w.bytes,
                      random_below(UINT64_C(1) << (w.bytes / DISK_PAGE)));
                check_kill(t.disk, false);
                restart();
                check_kill(t.disk, false);
                assert_true(table_window(t.table) >= 1);
        }
        /* The window comes back. */
        run(661, 100, false);
        assert_true(table_window(t.table) >= 64 / 8);
        end();
}

static void power_loss_keeps_what_was_synced(void **state)
{
        begin(64, 7);
        for (unsigned round = 0; round < 300; round++) {
                struct write w;
                bool flying;

                run(661, 1 + (unsigned)random_below(30), false);
                change(661, 60);
                flying = compose(&w);
                /* Any of the pages written since the sync may be missing. */
                memcpy(t.scratch, t.disk, sizeof(t.disk));
                if (flying)
                        apply(t.scratch, w.buf, w.offset, w.bytes,
                              random_below(UINT64_C(1) << (w.bytes / DISK_PAGE)));
                for (uint32_t p = 0; p < t.pages; p++)
                        if (random_below(2) == 0)
                                t.scratch[p] = t.stable[p];
                check_power_loss(t.scratch);
                if (round % 3 != 0) {
                        if (flying)
                                finish(&w);
                        continue;
                }
                memcpy(t.disk, t.scratch, sizeof(t.disk));
                restart();
        }
        end();
}

/* Writes pages with one new entry each until a sync is due. Returns their number. */
static unsigned write_until_a_sync_is_due(void)
{
        struct write w;
        unsigned pages = 0;

        for (uint32_t k = 0; k < KEYS; k++) {
                if (t.keys[k].state == LIVE || t.keys[k].state == QUEUED)
                        continue;
                put(k);
                if (!compose(&w))
                        break;
                finish(&w);
                pages++;
        }
        assert_true(table_wants_sync(t.table));
        return pages;
}

/* A sync is due after half of the pages that were safe at the last one. */
static void nothing_is_written_when_a_sync_is_due(void **state)
{
        struct write w;
        uint32_t window;

        begin(64, 3);
        run(1500, 200, false);
        sync_disk();
        window = table_window(t.table);
        assert_in_range(window, 2, 64 / 4);
        assert_in_range(write_until_a_sync_is_due(), 1, window / 2);
        end();

        begin(64, 3);
        assert_in_range(write_until_a_sync_is_due(), 64 / 8, 64 / 2 / 2);
        sync_disk();
        assert_false(table_wants_sync(t.table));
        assert_true(compose(&w));
        finish(&w);
        end();
}

/* Chunks die in the order in which they came: nothing is carried, and syncs are as rare as in an
 * empty ring, although the ring is more than half full. */
static void where_the_oldest_die_first_syncs_are_rare(void **state)
{
        struct table_stats stats;
        struct write w;
        unsigned syncs = 0;

        begin(64, 4);
        for (uint32_t k = 0; k < 1000; k++) {
                if (k >= 36)
                        evict(k - 36);
                put(k);
                if (table_wants_sync(t.table)) {
                        sync_disk();
                        syncs++;
                }
                assert_true(compose(&w));
                finish(&w);
                assert_true(k < 36 || table_window(t.table) >= 64 - 36 - 1);
        }
        table_get_stats(t.table, &stats);
        assert_int_equal(stats.entries_carried, 0);
        assert_in_range(syncs, 1, 1000 / ((64 - 36 - 1) / 4) + 2);
        end();
}

/* The pages that the sync should have covered may be lost, so overwriting more of their
 * predecessors could lose entries. */
static void nothing_is_written_after_a_failed_sync(void **state)
{
        struct write w;

        begin(64, 3);
        put(1);
        assert_true(compose(&w));
        table_sync_begin(t.table);
        table_sync_end(t.table, -EIO);
        finish(&w); /* the page was in flight */
        assert_false(table_wants_sync(t.table));
        put(2);
        assert_false(compose(&w));
        assert_int_equal(t.failed, 1);
        t.table = table_free(t.table);
}

static void puts_that_queue_up_share_pages(void **state)
{
        struct table_stats stats;
        struct write w;

        begin(256, 5);
        for (uint32_t k = 0; k < 100; k++)
                put(k);
        assert_true(compose(&w));
        assert_int_equal(w.bytes, 4 * DISK_PAGE);
        assert_false(compose(&w)); /* a single page at a time */
        for (uint32_t k = 100; k < 105; k++)
                put(k);
        finish(&w);
        assert_true(compose(&w));
        assert_int_equal(w.bytes, DISK_PAGE);
        assert_int_equal(w.offset, 4 * DISK_PAGE);
        finish(&w);
        table_get_stats(t.table, &stats);
        assert_int_equal(stats.pages_written, 5);
        assert_int_equal(stats.entries_written, 105);
        assert_int_equal(stats.writes, 2);
        end();
}

static void what_was_called_off_is_not_written(void **state)
{
        struct write w;

        begin(64, 5);
        put(1);
        evict(1);
        assert_false(compose(&w));
        assert_int_equal(t.failed, 1);
        put(1);
        put(2);
        evict(1);
        assert_true(compose(&w));
        finish(&w);
        assert_int_equal(t.failed, 2);
        scan(t.disk);
        assert_int_equal(found[1].seq, 0);
        assert_int_equal(found[2].seq, t.keys[2].seq);
        end();
}

static void a_failed_write_fails_everything(void **state)
{
        struct write w;

        begin(64, 5);
        put(1);
        assert_true(compose(&w));
        put(2);
        table_complete(t.table, -EIO);
        assert_int_equal(t.failed, 2);
        put(3);
        assert_false(compose(&w));
        assert_int_equal(t.failed, 3);
        t.table = table_free(t.table);
}

/* Grows the ring while pages are not synced, if their places allow that. */
static void grow(uint32_t pages)
{
        int r = table_grow(t.table, pages);

        if (r == -EAGAIN) {
                sync_disk();
                r = table_grow(t.table, pages);
        }
        assert_int_equal(r, 0);
        t.pages = pages;
}

/* Returns the page behind the newest one. */
static uint32_t next_page(void)
{
        return (survey(t.disk) + 1) % t.pages;
}

static void a_ring_grows_anywhere_in_its_round(void **state)
{
        for (unsigned i = 0; i < 20; i++) {
                begin(64, 100 + i);
                run(600, 40 + 7 * i, true);
                for (uint32_t pages = 80; pages <= 400; pages += 80) {
                        /* Some pages may not be synced when the ring grows, if their places allow
                         * that. */
                        if (random_below(2) == 0)
                                sync_disk();
                        grow(pages);
                        run(pages * 10, 3 + (unsigned)random_below(30), true);
                        sync_disk();
                        restart();
                        check_kill(t.disk, false);
                        run(pages * 10, 3 + (unsigned)random_below(30), true);
                }
                end();
        }
}

/* Unsynced pages, before a ring grew or after, may have old contents. If a newer page is missing,
 * that must be detected. */
static void pages_that_were_lost_are_found_after_a_growth_as_well(void **state)
{
        unsigned grown_unsynced = 0;

        for (unsigned i = 0; i < 200; i++) {
                uint32_t newest;

                begin(64, 3000 + i);
                run(600, 40 + 7 * i % 100, false);
                if (i % 2) {
                        /* The batch that is in flight during the sync of the file may be the last
                         * of its round. */
                        while (next_page() != 60)
                                run(600, 1, false);
                        sync_disk();
                        run(600, 1 + i % 4, false);
                }
                grow(80);
                grown_unsynced += table_is_dirty(t.table);
                for (unsigned j = (unsigned)random_below(3); j > 0; j--) {
                        struct write w;

                        change(600, 50);
                        if (compose(&w))
                                finish(&w);
                }
                memcpy(t.scratch, t.disk, sizeof(t.disk));
                for (uint32_t p = 0; p < t.pages; p++)
                        if (random_below(2) == 0)
                                t.scratch[p] = t.stable[p];
                newest = survey(t.scratch);
                for (uint32_t p = 0; newest != UINT32_MAX && p < t.pages; p++)
                        if (t.disk[p].sequence < t.scratch[newest].sequence &&
                            t.scratch[p].sequence != t.disk[p].sequence && sequences[p] != 0)
                                assert_int_equal(sequences[p], TABLE_STALE);
                end();
        }
        assert_true(grown_unsynced > 20);
}

static void a_head_without_a_safe_page_is_refused(void **state)
{
        begin(64, 9);
        for (uint32_t i = 0; i < 64; i++) {
                t.keys[i].state = LIVE;
                table_place(t.table, i, i);
        }
        assert_int_equal(table_start(t.table, 5, 100), -ENOSPC);
        t.keys[5].state = EVICTED;
        table_forget(t.table, 5);
        assert_int_equal(table_start(t.table, 5, 100), 0);
        assert_int_equal(table_window(t.table), 1);
        end();
}

static void a_damaged_page_or_entry_is_not_believed(void **state)
{
        struct disk_page good, bad;
        struct write w;

        begin(64, 5);
        put(1);
        put(2);
        assert_true(compose(&w));
        memcpy(&good, w.buf, sizeof(good));
        finish(&w);
        assert_true(disk_page_valid(&good, uuid, 0));
        assert_true(disk_entry_valid(&good.entries[1], uuid));
        assert_false(disk_page_valid(&good, uuid, 1));
        assert_false(disk_page_valid(&good, (const uint8_t *)"another store...", 0));
        assert_false(disk_entry_valid(&good.entries[1], (const uint8_t *)"another store..."));
        for (unsigned bit = 0; bit < 8 * sizeof(good); bit++) {
                bad = good;
                ((uint8_t *)&bad)[bit / 8] ^= (uint8_t)(1u << bit % 8);
                assert_false(disk_page_valid(&bad, uuid, 0));
                if (bit / 8 >= offsetof(struct disk_page, entries) &&
                    bit / 8 < offsetof(struct disk_page, entries[1]))
                        assert_false(disk_entry_valid(&bad.entries[0], uuid));
        }
        end();
}

/* A CRC over bytes followed by their own CRC does not depend on the bytes, so the page's CRC would
 * not detect that. */
static void a_page_notices_an_entry_that_was_replaced_by_another_whole_one(void **state)
{
        static struct disk_page page;

        page = (struct disk_page){
                .magic = DISK_PAGE_MAGIC, .sequence = 1, .position = 7, .count = 2
        };
        memcpy(page.uuid, uuid, sizeof(uuid));
        for (unsigned i = 0; i < 2; i++) {
                page.entries[i] = (struct disk_entry){ .seq = 10 + i, .length = 100 };
                page.entries[i].crc = disk_entry_crc(&page.entries[i], uuid);
        }
        page.crc = disk_page_crc(&page);
        assert_true(disk_page_valid(&page, uuid, 7));
        page.entries[1] = page.entries[0];
        assert_true(disk_entry_valid(&page.entries[1], uuid));
        assert_false(disk_page_valid(&page, uuid, 7));
}

/* Places, forgets and moves in any order, against a plain array. */
static void each_chunk_lies_in_one_page_or_nowhere(void **state)
{
        enum { CHUNKS = 200, PAGES = 20 };
        uint32_t at[CHUNKS], n_in[PAGES] = { 0 };

        begin(64, 77);
        memset(at, 0xff, sizeof(at));
        for (unsigned step = 0; step < 100000; step++) {
                uint32_t chunk = (uint32_t)random_below(CHUNKS),
                         page = (uint32_t)random_below(PAGES), first;

                assert_int_equal(table_page_of(t.table, chunk), at[chunk]);
                if (at[chunk] != TABLE_NOWHERE) {
                        table_forget(t.table, chunk);
                        n_in[at[chunk]]--;
                        at[chunk] = TABLE_NOWHERE;
                } else if (n_in[page] < DISK_PAGE_ENTRIES) {
                        table_place(t.table, page, chunk);
                        at[chunk] = page;
                        n_in[page]++;
                }
                first = table_chunk_in(t.table, page);
                assert_int_equal(first == TABLE_NOWHERE, n_in[page] == 0);
                if (first != TABLE_NOWHERE)
                        assert_int_equal(at[first], page);
        }
        for (uint32_t page = 0; page < PAGES; page++) {
                uint32_t chunk;

                while ((chunk = table_chunk_in(t.table, page)) != TABLE_NOWHERE) {
                        assert_int_equal(at[chunk], page);
                        table_forget(t.table, chunk);
                        n_in[page]--;
                }
                assert_int_equal(n_in[page], 0);
        }
        end();
}

/* A ring of more pages than chunks needs wider links than before. */
static void chunks_stay_in_their_pages_when_the_ring_outgrows_them(void **state)
{
        enum { CHUNKS = 20 };
        struct table *table;
        uint32_t pages = 16;

        assert_int_equal(table_new(&table, uuid, pages, CHUNKS, &ops, NULL), 0);
        assert_int_equal(table_bytes(table, 1000) - table_bytes(table, 0), 1000 * 6 / 8);
        for (uint32_t chunk = 0; chunk + 1 < CHUNKS; chunk++)
                table_place(table, chunk % 7, chunk);
        for (unsigned bits = 5; pages < 1u << 20; bits++) {
                pages *= 2;
                assert_int_equal(table_grow(table, pages), 0);
                assert_int_equal(table_bytes(table, 1000) - table_bytes(table, 0),
                                 (1000 * (MAX(bits, 5u) + 1) + 7) / 8);
                for (uint32_t chunk = 0; chunk + 1 < CHUNKS; chunk++)
                        assert_int_equal(table_page_of(table, chunk), chunk % 7);
                assert_int_equal(table_page_of(table, CHUNKS - 1), TABLE_NOWHERE);
                table_place(table, pages - 1, CHUNKS - 1);
                assert_int_equal(table_page_of(table, CHUNKS - 1), pages - 1);
                assert_int_equal(table_chunk_in(table, pages - 1), CHUNKS - 1);
                table_forget(table, CHUNKS - 1);
        }
        table_free(table);
}

int main(void)
{
        static const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_page_notices_an_entry_that_was_replaced_by_another_whole_one),
                cmocka_unit_test(every_live_entry_lies_in_a_page_whenever_it_stops),
                cmocka_unit_test(it_goes_on_after_each_of_many_torn_writes),
                cmocka_unit_test(power_loss_keeps_what_was_synced),
                cmocka_unit_test(nothing_is_written_when_a_sync_is_due),
                cmocka_unit_test(where_the_oldest_die_first_syncs_are_rare),
                cmocka_unit_test(nothing_is_written_after_a_failed_sync),
                cmocka_unit_test(puts_that_queue_up_share_pages),
                cmocka_unit_test(what_was_called_off_is_not_written),
                cmocka_unit_test(a_failed_write_fails_everything),
                cmocka_unit_test(a_ring_grows_anywhere_in_its_round),
                cmocka_unit_test(each_chunk_lies_in_one_page_or_nowhere),
                cmocka_unit_test(chunks_stay_in_their_pages_when_the_ring_outgrows_them),
                cmocka_unit_test(pages_that_were_lost_are_found_after_a_growth_as_well),
                cmocka_unit_test(a_head_without_a_safe_page_is_refused),
                cmocka_unit_test(a_damaged_page_or_entry_is_not_believed),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
