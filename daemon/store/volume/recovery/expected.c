/* SPDX-License-Identifier: Apache-2.0 */
/* Recovery of lost data files: computes the sizes that data files should have (losses.c explains
 * the sizes in the superblock), and counts the chunks in missing parts. A file should have the size
 * in the superblock or, if its segment was cut after the sizes were computed, up to the size of new
 * files. The scan handles slots in missing parts like all others, so that it finds the latest entry
 * of each slot, and counts the live ones as lost. */
#include "store/volume/recovery/internal.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "checked.h"

void expected_init(struct recovery *rec)
{
        const struct disk_superblock *sb = &rec->v->dir->superblock;
        bool known = sizes_are_known(sb);
        uint64_t largest = round_down(MIN(sb->segment_bytes, CHUNK_FILE_BYTES), DISK_PAGE);

        rec->reads_all = false;
        for (uint32_t i = 0; i < DISK_SEGMENTS_MAX; i++) {
                struct segment_scan *scan = &rec->scans[i];

                scan->span = MAX(scan->bytes, largest);
                scan->mapped = known ? (uint64_t)sizes_pages(sb, i) * DISK_PAGE : scan->span;
                scan->mapped = MIN(scan->mapped, CHUNK_FILE_BYTES);
                scan->needed = MAX(scan->bytes, known ? scan->mapped : 0);
                if (!known && i < rec->v->n_segments && scan->bytes == 0)
                        rec->reads_all = true;
        }
}

void expected_release(struct recovery *rec, uint32_t segment, uint64_t bytes)
{
        struct segment_scan *scan = &rec->scans[segment];

        scan->bytes = scan->span = scan->needed = bytes;
        scan->mapped = MIN(scan->mapped, bytes);
}

static bool is_within(const struct disk_entry *e, uint64_t bytes)
{
        return range_within((uint64_t)e->slot_offset * DISK_PAGE,
                            (uint64_t)e->slot_pages * DISK_PAGE, bytes);
}

bool expected_has_place(const struct recovery *rec, const struct disk_entry *e)
{
        const struct disk_superblock *sb = &rec->v->dir->superblock;
        const struct segment_scan *scan;

        if (e->segment >= DISK_SEGMENTS_MAX)
                return false;
        scan = &rec->scans[e->segment];
        return is_within(e, e->segment_epoch <= sb->sizes_seq ? scan->mapped : scan->span);
}

bool expected_is_there(const struct recovery *rec, const struct disk_entry *e)
{
        return is_within(e, rec->scans[e->segment].bytes);
}

static int note_file(struct losses *l, const struct segment_scan *scan, uint32_t segment)
{
        struct lost_file *files = realloc(l->files, (l->n_files + 1) * sizeof(*files));

        if (!files)
                return -ENOMEM;
        l->files = files;
        files[l->n_files++] = (struct lost_file){
                .segment = segment,
                .kind = scan->bytes > 0 ? LOST_SHORT : scan->removed_for,
                .chunks = scan->lost,
        };
        return 0;
}

int expected_note_losses(struct recovery *rec)
{
        struct volume *v = rec->v;
        struct losses *l = &v->losses;

        v->stats.lost_chunks = l->nameless = rec->nameless;
        for (uint32_t i = 0; i < DISK_SEGMENTS_MAX; i++) {
                int r = rec->scans[i].lost > 0 ? note_file(l, &rec->scans[i], i) : 0;

                if (r < 0)
                        return r;
                v->stats.lost_chunks += rec->scans[i].lost;
        }
        l->table_pages = rec->table_was;
        l->table_kept = rec->table_found;
        l->table_replaced = rec->table_replaced && rec->table_was == 0;
        v->stats.lost_files =
                l->n_files + (l->table_pages > 0 || l->table_replaced) + (rec->nameless > 0);
        l->any = v->stats.lost_files > 0 || v->dir->copied;
        v->stats.lost_ns = v->stats.lost_files > 0 ? clock_mono_ns() : 0;
        return 0;
}
