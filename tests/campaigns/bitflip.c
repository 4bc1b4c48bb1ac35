/* SPDX-License-Identifier: Apache-2.0 */
/* bitflip: every run flips one bit of a store, checks its answers, and flips the bit back.
 *
 * Thirty-one runs of 32 flip a bit of the first data file while the store is open, in an order that
 * reaches each bit once: --count 8659209 flips all 8,388,608. If the bit belongs to a chunk, its
 * get must be a miss, and the chunk is put again; otherwise no answer may change. The other runs
 * flip a bit of the table, the namespaces or the superblock of a closed store and open it: entries
 * of the damaged page of the table may be misses, all other chunks must be there, byte for byte. */
#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "campaign.h"
#include "checked.h"
#include "sim.h"
#include "store/volume/format.h"

enum { DATA_BYTES = 1 << 20, FILES = 4, FLIPS_OF_AN_IMAGE = 64, STRIDE = 0x2f0b4c5 /* odd */ };

static const char *const file_names[FILES] = { "table", "namespaces.0", "namespaces.1",
                                               "superblock" };

static struct {
        uint64_t under_chunks, elsewhere, meta, table_misses;
} tally;

static struct {
        int fd;
        uint8_t *bytes;
        uint64_t n;
} images[FILES];

static uint8_t page_of[CAMPAIGN_KEYS][512]; /* per key and table page: 1: the page has an entry
                                               of the key */
static uint32_t live_page[CAMPAIGN_KEYS];   /* page of the newest copy of the newest entry */
static uint32_t before[CAMPAIGN_KEYS];
static uint32_t flipped_page; /* UINT32_MAX: not in the table */

static int open_file(const char *name)
{
        char path[512];
        int fd;

        snprintf(path, sizeof(path), "%s/%s", world.dir, name);
        fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0)
                campaign_fail(VERDICT_LOST, "%s is missing", name);
        return fd;
}

static void flip(int fd, uint64_t bit)
{
        uint8_t byte;

        if (pread(fd, &byte, 1, (off_t)(bit / 8)) != 1)
                campaign_fail(VERDICT_LOST, "a file is too short");
        byte ^= (uint8_t)(1u << bit % 8);
        if (pwrite(fd, &byte, 1, (off_t)(bit / 8)) != 1)
                campaign_fail(VERDICT_LOST, "a bit cannot be turned");
}

static void reopen(void)
{
        char error[512] = "";

        if (world_open(error) < 0)
                campaign_fail(VERDICT_LOST, "the store does not open: %s", error);
}

/* --- the data file --- */

/* Chunks of at most a page occupy one page each, and contain their key's number. */
static void flip_data(int fd, uint64_t bit)
{
        uint64_t page = bit / 8 / DISK_PAGE, at = bit / 8 % DISK_PAGE, head;
        uint32_t k, version, other;
        bool live;

        if (pread(fd, &head, sizeof(head), (off_t)(page * DISK_PAGE)) != sizeof(head))
                campaign_fail(VERDICT_LOST, "the data file is too short");
        k = (uint32_t)head;
        version = (uint32_t)(head >> 32);
        live = k < CAMPAIGN_KEYS && version > 0 && world_version(k) == version;
        flip(fd, bit);
        if (live && at < item_length(k, version)) {
                if (world_get(k, NULL) != 0 || world_version(k) != 0)
                        campaign_fail(VERDICT_WRONG,
                                      "bit %llu of the data file, under key %u, goes unnoticed",
                                      (unsigned long long)bit, k);
                flip(fd, bit);
                world_put(k, false);
                world_settle();
                tally.under_chunks++;
                return;
        }
        if (live && world_get(k, NULL) != version)
                campaign_fail(VERDICT_LOST, "bit %llu of the data file, behind key %u, costs it",
                              (unsigned long long)bit, k);
        other = (uint32_t)draw(CAMPAIGN_KEYS);
        version = world_version(other);
        if (world_get(other, NULL) != version)
                campaign_fail(VERDICT_LOST, "bit %llu of the data file costs key %u",
                              (unsigned long long)bit, other);
        flip(fd, bit);
        tally.elsewhere++;
}

/* --- files that recovery reads --- */

/* Finds which keys have entries in which page of the table, from the format alone. */
static void read_table(void)
{
        static struct {
                uint64_t seq, page_sequence;
        } best[CAMPAIGN_KEYS];
        const struct disk_page *pages = (const void *)images[0].bytes;

        memset(best, 0, sizeof(best));
        memset(page_of, 0, sizeof(page_of));
        for (uint32_t i = 0; i < CAMPAIGN_KEYS; i++)
                live_page[i] = UINT32_MAX;
        assert(images[0].n / DISK_PAGE <= ARRAY_SIZE(page_of[0]));
        for (uint32_t i = 0; i < images[0].n / DISK_PAGE; i++) {
                if (pages[i].magic != DISK_PAGE_MAGIC || pages[i].crc != disk_page_crc(&pages[i]))
                        continue;
                for (unsigned j = 0; j < pages[i].count; j++) {
                        const struct disk_entry *e = &pages[i].entries[j];
                        uint32_t k;

                        memcpy(&k, e->key.bytes, sizeof(k));
                        if (k >= CAMPAIGN_KEYS || disk_entry_is_handover(e))
                                continue;
                        page_of[k][i] = 1;
                        if (e->seq < best[k].seq ||
                            (e->seq == best[k].seq && pages[i].sequence < best[k].page_sequence))
                                continue;
                        best[k].seq = e->seq;
                        best[k].page_sequence = pages[i].sequence;
                        live_page[k] = i;
                }
        }
}

static void images_take(void)
{
        struct stat st;

        for (unsigned i = 0; i < FILES; i++) {
                images[i].fd = open_file(file_names[i]);
                if (fstat(images[i].fd, &st) < 0)
                        campaign_fail(VERDICT_LOST, "%s is missing", file_names[i]);
                images[i].n = (uint64_t)st.st_size;
                images[i].bytes = aligned_alloc(DISK_PAGE, round_up(images[i].n, DISK_PAGE));
                if (!images[i].bytes ||
                    pread(images[i].fd, images[i].bytes, images[i].n, 0) != st.st_size)
                        campaign_fail(VERDICT_LOST, "%s cannot be read", file_names[i]);
        }
        read_table();
}

static void images_restore(void)
{
        for (unsigned i = 0; i < FILES; i++)
                if (pwrite(images[i].fd, images[i].bytes, images[i].n, 0) != (ssize_t)images[i].n)
                        campaign_fail(VERDICT_LOST, "%s cannot be written", file_names[i]);
}

static void images_free(void)
{
        for (unsigned i = 0; i < FILES; i++) {
                close(images[i].fd);
                free(images[i].bytes);
        }
}

static void note_before(uint32_t k, uint32_t version)
{
        before[k] = version;
}

static void compare(uint32_t k, uint32_t version)
{
        bool touched = flipped_page != UINT32_MAX && page_of[k][flipped_page];

        if (version == before[k])
                return;
        if (before[k] == 0 && touched)
                return; /* may have been its tombstone */
        if (before[k] && version == 0 && flipped_page != UINT32_MAX &&
            live_page[k] == flipped_page) {
                tally.table_misses++;
                return;
        }
        campaign_fail(version ? VERDICT_WRONG : VERDICT_LOST,
                      "key %u: version %u was there, and is %u now (page %u)", k, before[k],
                      version, flipped_page);
}

/* Closes the open store, flips a bit of its metadata, and opens it again. */
static void flip_meta(uint64_t n)
{
        world_settle();
        world_get_all(note_before);
        world_close();
        images_take();
        for (; n > 0; n--) {
                unsigned file =
                        chance(2) ? 0
                                  : 1 + (unsigned)draw(FILES -
                                                       1); /* half of the flips are in the table */
                uint64_t bit;

                bit = draw(images[file].n * 8);
                flipped_page = file == 0 ? (uint32_t)(bit / 8 / DISK_PAGE) : UINT32_MAX;
                flip(images[file].fd, bit);
                reopen();
                for (unsigned i = 0; i < CAMPAIGN_NAMESPACES; i++)
                        if (!store_namespace_at(world.s, i) ||
                            store_namespace_at(world.s, i)->id != world.namespaces[i].id)
                                campaign_fail(VERDICT_LOST, "bit %llu of %s costs a namespace",
                                              (unsigned long long)bit, file_names[file]);
                world_get_all(compare);
                world_settle();
                world_close();
                images_restore();
                tally.meta++;
                campaign_count(1);
        }
        images_free();
        reopen();
}

/* --- the campaign --- */

static void fill(void)
{
        world_wipe();
        world.max_length = DISK_PAGE;
        world.error_budget = UINT32_MAX; /* the volume must survive many wrong bytes */
        reopen();
        for (unsigned n = 0; n < CAMPAIGN_NAMESPACES; n++) {
                world_open_namespace(n);
                world_settle();
        }
        for (uint32_t k = 0; k < CAMPAIGN_KEYS; k++)
                if (world_put(k, false) == STORE_FULL || k % CAMPAIGN_SLOTS == 0)
                        world_settle();
        world_settle();
        for (unsigned i = 0; i < 20; i++)
                world_drop((uint32_t)draw(CAMPAIGN_KEYS));
        world_settle();
}

int campaign_bitflip(uint64_t count, uint64_t *seed)
{
        uint64_t bit, done = 0;
        int fd;

        world.lockstep = true;
        world_init(sim_backend());
        world.random = *seed;
        fill();
        fd = open_file("segment-0000");
        bit = draw((uint64_t)DATA_BYTES * 8);
        while (done < count) {
                uint64_t meta = MIN((uint64_t)FLIPS_OF_AN_IMAGE, (count - done + 31) / 32),
                         data = MIN(31 * meta, count - done - meta);

                flip_meta(meta);
                for (uint64_t i = 0; i < data; i++) {
                        flip_data(fd, bit);
                        bit = (bit + STRIDE) % ((uint64_t)DATA_BYTES * 8);
                        campaign_count(1);
                }
                done += meta + data;
        }
        close(fd);
        world_settle();
        world_close();
        campaign_note("%llu bits under chunks, %llu elsewhere in the data file, %llu in what a "
                      "start reads, "
                      "which cost %llu entries",
                      (unsigned long long)tally.under_chunks, (unsigned long long)tally.elsewhere,
                      (unsigned long long)tally.meta, (unsigned long long)tally.table_misses);
        return campaign_end();
}
