/* SPDX-License-Identifier: Apache-2.0 */
/* Recovery of the data files: opens the existing ones, and removes those for which the present
 * limit or the file system has no room. Blocks. */
#include "store/volume/recovery/internal.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"

enum {
        STARTUP_ROOM = 16 << 20
}; /* free bytes of the file system with which the writes of startup certainly succeed */

/* Charges a file against the limit: the larger one of its size and the space that it occupies, and
 * one page. Returns 0 or -errno. */
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

/* Removes a data file that could not be replaced by a copy after access rights had changed.
 * Processes that have the file open keep its present contents, and get no later chunk. */
static int remove_for_rights(struct recovery *rec, struct segment *seg)
{
        char name[DIR_SEGMENT_NAME_BYTES];

        dir_segment_name(seg->number, name);
        close(seg->fd);
        seg->fd = -1;
        rec->scans[seg->number].removed_for = LOST_FOR_RIGHTS;
        return unlinkat(rec->v->dir->fd, name, 0) < 0 ? -errno : 0;
}

static int open_segment(struct recovery *rec, uint32_t number)
{
        int r;
        struct volume *v = rec->v;
        struct segment *seg = v->segments[number];
        char name[DIR_SEGMENT_NAME_BYTES];
        struct stat st;

        if (!v->params.as_is) {
                dir_replacement_name(
                        number,
                        name); /* a copy that a crash left before the data file could be replaced */
                unlinkat(v->dir->fd, name, 0);
        }
        dir_segment_name(number, name);
        seg->fd = dir_open_file(v->dir, name, O_RDWR);
        if (seg->fd < 0)
                return seg->fd;
        if (fstat(seg->fd, &st) < 0)
                return -errno;
        seg->bytes = round_down((uint64_t)st.st_size, DISK_PAGE);
        if (seg->bytes == 0) {
                /* A crash has left an empty file, because it came while the file was being made. */
                close(seg->fd);
                seg->fd = -1;
                return unlinkat(v->dir->fd, name, 0) < 0 ? -errno : 0;
        }
        /* A power loss may come while a file is being made. The bytes after the last whole page are
         * unused, and are cut off, because they count against the limit as soon as the file system
         * allocates a block for them. */
        if ((uint64_t)st.st_size != seg->bytes && !v->params.as_is &&
            ftruncate(seg->fd, (off_t)seg->bytes) < 0)
                return -errno;
        seg->bytes = MIN(seg->bytes, CHUNK_FILE_BYTES);
        r = segment_detach(seg);
        if (r < 0)
                return remove_for_rights(rec, seg);
        v->losses.detached += (unsigned)r;
        v->stats.detached_files += (unsigned)r;
        seg->prewritten = seg->bytes;
        return charge_segment(v, seg);
}

int recovery_open_segments(struct recovery *rec)
{
        struct volume *v = rec->v;
        _cleanup_(closedirp) DIR *dir = NULL;
        int r = dir_open_entries(v->dir, &dir);

        if (r < 0)
                return recovery_fail(rec, r, "cannot list the directory");
        for (;;) {
                struct dirent *e;
                int n;

                errno = 0;
                e = readdir(dir);
                if (!e)
                        break;
                n = dir_segment_number(e->d_name);
                if (n >= 0)
                        v->n_segments = MAX(v->n_segments, (uint32_t)n + 1);
        }
        /* A new data file would replace one that the list lacks. */
        if (errno != 0)
                return recovery_fail(rec, -errno, "cannot list the directory");
        v->segments = calloc(v->n_segments + 1, sizeof(struct segment *));
        rec->scans = calloc(DISK_SEGMENTS_MAX, sizeof(*rec->scans));
        if (!v->segments || !rec->scans)
                return recovery_fail(rec, -ENOMEM, "cannot allocate the data files");
        for (uint32_t i = 0; i < v->n_segments; i++) {
                v->segments[i] = segment_new(v, i);
                if (!v->segments[i])
                        return recovery_fail(rec, -ENOMEM, "cannot allocate the data files");
                r = open_segment(rec, i);
                if (r < 0 && r != -ENOENT) {
                        char name[DIR_SEGMENT_NAME_BYTES];

                        dir_segment_name(i, name);
                        return store_error(rec->error, r, "%s/%s: cannot open: %s", v->path, name,
                                           dir_strerror(r));
                }
                rec->scans[i].bytes = v->segments[i]->fd >= 0 ? v->segments[i]->bytes : 0;
        }
        expected_init(rec);
        return 0;
}

/* --- removing files --- */

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

static bool last_segment_is_occupied(const struct volume *v)
{
        struct stat st;
        int fd = v->segments[v->n_segments - 1]->fd;

        return fd >= 0 && fstat(fd, &st) == 0 && st.st_blocks > 0;
}

/* A file system that never overwrites in place needs free space for the writes of startup, too.
 * Writing the unchanged superblock tests whether there is enough. If a few removed files do not
 * help, because a snapshot has their blocks or another program takes the space, startup fails and
 * keeps the others. */
int recovery_make_room(struct recovery *rec)
{
        struct volume *v = rec->v;
        struct statvfs fs;
        unsigned in_vain = 0;
        int r;

        if (v->params.as_is || fstatvfs(v->dir->fd, &fs) < 0 ||
            (uint64_t)fs.f_bavail * fs.f_frsize >= STARTUP_ROOM)
                return 0;
        for (;;) {
                r = dir_write_superblock(v->dir);
                if ((r != -ENOSPC && r != -EDQUOT) || v->n_segments == 0 ||
                    in_vain == STORE_MOST_IN_VAIN)
                        break;
                in_vain += last_segment_is_occupied(v);
                drop_last_segment(rec);
                rec->scans[v->n_segments].bytes =
                        0; /* makes expected_note_losses() report the chunks of the file */
                rec->scans[v->n_segments].removed_for = LOST_FOR_ROOM;
                v->stats.files_given_up++;
                (void)dir_sync(v->dir); /* some file systems free the space only then */
        }
        return r < 0 ? recovery_fail(rec, r, "cannot write the superblock") : 0;
}

/* Cuts `excess` bytes off the end of the last segment, so that a small excess does not cost all its
 * chunks. Returns false if there is no file, more than half of it would have to be cut off, it
 * cannot be cut, or cutting does not lower the charge. */
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
        seg->prewritten = seg->bytes;
        expected_release(rec, number, seg->bytes);
        return charge_segment(v, seg) == 0 && seg->charged < before;
}

static uint64_t scanned_slots(const struct recovery *rec)
{
        uint64_t slots = 0;

        for (uint32_t i = 0; i < rec->v->n_segments; i++)
                if (rec->scans[i].slot_pages > 0)
                        slots += rec->scans[i].bytes / DISK_PAGE / rec->scans[i].slot_pages;
        return slots;
}

int recovery_enforce_limit(struct recovery *rec)
{
        struct volume *v = rec->v;
        uint32_t pages = rec->pages;
        bool dropped = false;
        int r;

        v->table_charged = (uint64_t)pages * DISK_PAGE;
        /* A limit that no removal of files can satisfy is refused before a file is removed. An
         * inspection removes nothing. */
        if (!v->params.as_is && volume_charged(v) > v->params.limit &&
            segments_least_limit(v) > v->params.limit)
                return store_error(rec->error, -ENOSPC,
                                   "%s: store.limit is too small for this store's tables; raise it",
                                   v->path);
        while (!v->params.as_is && volume_charged(v) > v->params.limit) {
                uint32_t need = ring_pages_for(scanned_slots(rec));

                if (pages > need) {
                        rec->new_pages = pages = need;
                        v->table_charged = (uint64_t)pages * DISK_PAGE;
                } else if (v->n_segments > 0 &&
                           trim_last_segment(rec, volume_charged(v) - v->params.limit)) {
                        dropped = true;
                } else {
                        assert(v->n_segments > 0);
                        drop_last_segment(rec);
                        expected_release(rec, v->n_segments, 0);
                        dropped = true;
                }
        }
        while (v->n_segments > 0 && v->segments[v->n_segments - 1]->fd < 0)
                drop_last_segment(rec);
        if (!dropped)
                return 0;
        r = dir_sync(v->dir);
        return r < 0 ? r : recovery_scan(rec);
}
