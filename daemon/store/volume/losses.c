/* SPDX-License-Identifier: Apache-2.0 */
/* Detects and reports chunks that are lost because a file is missing, empty or short at startup.
 * Maintains the sizes in the superblock by which startup detects this.
 *
 * The table alone does not tell a lost chunk from an evicted one: the volume removes data files
 * itself, when its limit is lowered or its file system is full, and their entries stay in the
 * table. So the superblock has the size of every data file that is in use. An entry beyond that
 * size is void. An entry within it, but beyond the file, is a lost chunk. The sizes are written
 * when a segment is cut for the first time, when a data file is removed, and with every other mark.
 * A segment that was cut after the last write is recognised by its epoch.
 *
 * An entry that is void by the sizes must stay void when a new data file gets the same number,
 * because drops write no tombstone for its key. So the first cut of a segment that may have such
 * entries is recorded in the table, as in handover.c. Until the record is synced, the sizes leave
 * the segment out, and are older than its epoch.
 *
 * After a loss has been reported, the sizes of the remaining files are written, so the next startup
 * does not report it again. Until then the old sizes stay, so a daemon that is killed before the
 * report makes it at the next startup. If there are more ranges of sizes than the superblock has
 * room for, it has no sizes: losses are then reported at every startup, and files that the volume
 * itself removed are reported as lost, too.
 *
 * Loop thread, and the thread that opens the volume. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/search.h"
#include "checked.h"
#include "store/volume/internal.h"

enum { MOST_FILES_REPORTED = 16 }; /* data files that are reported one by one */

bool sizes_are_known(const struct disk_superblock *sb)
{
        return sb->n_sizes > 0 && sb->n_sizes <= DISK_SIZES_MAX;
}

uint32_t sizes_pages(const struct disk_superblock *sb, uint32_t segment)
{
        uint32_t at = search_first(sizes_are_known(sb) ? sb->n_sizes : 0, i,
                                   sb->sizes[i].segment <= segment);

        return at > 0 ? sb->sizes[at - 1].pages : 0;
}

static uint32_t pages_in_use(const struct volume *v, uint32_t segment)
{
        const struct segment *seg = segment < v->n_segments ? v->segments[segment] : NULL;

        return seg && seg->fd >= 0 && seg->slot_bytes > 0 && !seg->unrecorded
                       ? (uint32_t)(seg->bytes / DISK_PAGE)
                       : 0;
}

/* Returns the sequence at which the sizes are computed. A segment whose first cut is not recorded
 * yet counts as cut later. */
static uint64_t sequence_of_sizes(const struct volume *v)
{
        uint64_t seq = v->seq;

        for (uint32_t i = 0; i < v->n_segments; i++)
                if (v->segments[i]->unrecorded)
                        seq = MIN(seq, v->segments[i]->epoch - 1);
        return seq;
}

void sizes_update(struct volume *v)
{
        struct disk_superblock *sb = &v->dir->superblock;
        struct stat st;
        uint32_t n = 0;

        if (v->losses.any || v->params.as_is) {
                /* Recovery cuts off pages beyond this number. The ring may have grown since the
                 * last sizes were computed. */
                sb->table_pages = MAX(sb->table_pages, table_pages(v->table));
                return;
        }
        for (uint32_t i = 0; i <= v->n_segments; i++) {
                uint32_t pages = pages_in_use(v, i);

                if (n > 0 && sb->sizes[n - 1].pages == pages)
                        continue;
                if (n == DISK_SIZES_MAX) {
                        n = 0;
                        break;
                }
                sb->sizes[n++] = (struct disk_size){ .segment = i, .pages = pages };
        }
        memset(&sb->sizes[n], 0, (DISK_SIZES_MAX - n) * sizeof(sb->sizes[0]));
        sb->n_sizes = n;
        sb->sizes_seq = sequence_of_sizes(v);
        sb->table_pages = table_pages(v->table);
        sb->directory_inode = fstat(v->dir->fd, &st) == 0 ? st.st_ino : 0;
        sb->table_inode = fstat(v->table_fd, &st) == 0 ? st.st_ino : 0;
}

/* --- reporting --- */

unsigned volume_detached_files(const struct volume *v)
{
        return v->losses.detached;
}

static void describe_file(const struct lost_file *f, char ret[static STORE_ERROR_BYTES])
{
        static const char *const reasons[] = {
                [LOST_MISSING] = "is missing or empty",
                [LOST_SHORT] = "is shorter than it was",
                [LOST_FOR_ROOM] = "was removed to make room on the full file system",
                [LOST_FOR_RIGHTS] = ("was open in another process after access rights had changed, "
                                     "could not be copied, and was removed"),
        };
        char name[DIR_SEGMENT_NAME_BYTES];

        dir_segment_name(f->segment, name);
        snprintf(ret, STORE_ERROR_BYTES, "the data file %s %s: %" PRIu64 " chunk%s lost", name,
                 reasons[f->kind], f->chunks, f->chunks == 1 ? " is" : "s are");
}

static void describe_table(const struct losses *l, char ret[static STORE_ERROR_BYTES])
{
        if (l->table_replaced)
                snprintf(ret, STORE_ERROR_BYTES,
                         "the file \"" DIR_TABLE
                         "\" was replaced while a daemon used it: chunks that "
                         "were written after that are lost");
        else if (l->table_kept == 0)
                snprintf(ret, STORE_ERROR_BYTES,
                         "the file \"" DIR_TABLE "\" is missing or empty: all chunks are lost");
        else
                snprintf(ret, STORE_ERROR_BYTES,
                         "the file \"" DIR_TABLE "\" has %u of its %u pages: chunks that only the "
                         "missing pages recorded are lost",
                         l->table_kept, l->table_pages);
}

static void report_rest(const struct losses *l, void (*each)(void *userdata, const char *text),
                        void *userdata)
{
        char text[STORE_ERROR_BYTES];
        uint64_t sum = 0;

        for (unsigned i = MOST_FILES_REPORTED; i < l->n_files; i++)
                sum += l->files[i].chunks;
        snprintf(text, sizeof(text),
                 "%u more data files are missing or too short: %" PRIu64 " chunks are lost",
                 l->n_files - MOST_FILES_REPORTED, sum);
        each(userdata, text);
}

void volume_report_losses(struct volume *v, void (*each)(void *userdata, const char *text),
                          void *userdata)
{
        struct losses *l = &v->losses;
        char text[STORE_ERROR_BYTES];

        if (v->dir->emptied)
                each(userdata,
                     "its directory was emptied while a daemon used it: what the daemon had "
                     "written there is lost");
        if (v->dir->copied)
                each(userdata,
                     "its directory is a copy, or was restored, and was in use when it was "
                     "copied: chunks that the original got after that are not in it");
        if (l->table_pages > 0 || l->table_replaced) {
                describe_table(l, text);
                each(userdata, text);
        }
        if (l->nameless > 0) {
                snprintf(text, sizeof(text),
                         "both lists of namespaces are missing or damaged: %" PRIu64
                         " chunk%s lost",
                         l->nameless, l->nameless == 1 ? " is" : "s are");
                each(userdata, text);
        }
        for (unsigned i = 0; i < MIN(l->n_files, (unsigned)MOST_FILES_REPORTED); i++) {
                describe_file(&l->files[i], text);
                each(userdata, text);
        }
        if (l->n_files > MOST_FILES_REPORTED)
                report_rest(l, each, userdata);
        v->dir->emptied = v->dir->copied = false;
        free(l->files);
        *l = (struct losses){};
        if (v->open && !v->bypassed && !v->params.as_is)
                mark_want(v, MARK_SIZES);
}
