/* SPDX-License-Identifier: Apache-2.0 */
/* Makes, reads and writes the superblock of a volume's directory; see dir.h. Calls block.
 *
 * The superblock has four copies, one per page, each with its own CRC. The whole copy with the
 * highest generation is used, so one whole copy suffices. A write consists of two halves with two
 * copies each and a sync after each half. If only one half is known to be whole, the other one is
 * written first. The first superblock of a volume is written to another name and then renamed, so a
 * crash while a volume is made leaves a directory that counts as empty. */
#include "store/volume/dir-internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/small-file.h"
#include "cleanup.h"
#include "store/volume/types.h"

int dir_write_synced(int fd, const void *buf, size_t bytes, uint64_t offset)
{
        while (bytes > 0) {
                ssize_t n = pwrite(fd, buf, bytes, (off_t)offset);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0)
                        return n < 0 ? -errno : -EIO;
                buf = (const char *)buf + n;
                bytes -= (size_t)n;
                offset += (uint64_t)n;
        }
        return fdatasync(fd) < 0 ? -errno : 0;
}

static int write_superblock_to(int fd, struct disk_superblock *sb, unsigned *good)
{
        _cleanup_(freep) struct disk_superblock *copies =
                aligned_alloc(DISK_PAGE, DISK_SUPERBLOCKS * DISK_PAGE);
        const size_t half = DISK_SUPERBLOCKS / 2 * DISK_PAGE;
        int r;

        if (!copies)
                return -ENOMEM;
        sb->generation++;
        sb->ceiling_generation = sb->sizes_generation = sb->generation;
        sb->crc = disk_superblock_crc(sb);
        for (unsigned i = 0; i < DISK_SUPERBLOCKS; i++)
                copies[i] = *sb;
        /* If the first write fails, the other half still has the old content. If the second write
         * fails, the first half has the new content, and the next write begins with the other
         * half. */
        const unsigned order[2] = { *good == 1, *good != 1 };

        for (unsigned i = 0; i < 2; i++) {
                *good &= ~(1u << order[i]);
                r = dir_write_synced(fd, (char *)copies + order[i] * half, half, order[i] * half);
                if (r < 0)
                        return i == 0 ? r : 0;
                *good = i == 0 ? 1u << order[i] : 3u;
        }
        return 0;
}

/* Writes the newest copies again, before the other half is overwritten. These copies may exist in
 * the page cache only, if a process was killed before its sync or its sync failed, and the kernel
 * may never write them. The bytes are the same, so a power loss cannot tear copies that are on the
 * disk already. */
static int write_newest_half(struct dir *d)
{
        _cleanup_(freep) struct disk_superblock *copies =
                aligned_alloc(DISK_PAGE, DISK_SUPERBLOCKS / 2 * DISK_PAGE);
        const size_t half = DISK_SUPERBLOCKS / 2 * DISK_PAGE;

        if (!copies)
                return -ENOMEM;
        for (unsigned i = 0; i < DISK_SUPERBLOCKS / 2; i++)
                copies[i] = d->superblock;
        return dir_write_synced(d->superblock_fd, copies, half, d->superblock_good == 2 ? half : 0);
}

int dir_write_superblock(struct dir *d)
{
        return write_superblock_to(d->superblock_fd, &d->superblock, &d->superblock_good);
}

static int make_superblock(struct dir *d, const uint8_t *set, unsigned index, unsigned count)
{
        _cleanup_(closep) int fd = -1;
        int r;

        d->superblock = (struct disk_superblock){
                .magic = DISK_SUPERBLOCK_MAGIC,
                .version = DISK_VERSION,
                .created_ms = clock_unix_ms(),
                .volume_index = (uint16_t)index,
                .volume_count = (uint16_t)count,
                .clean = 1,
        };
        if (set)
                memcpy(d->superblock.set, set, DISK_UUID_BYTES);
        if (getrandom(d->superblock.uuid, DISK_UUID_BYTES, 0) != DISK_UUID_BYTES)
                return -EIO;
        unlinkat(d->fd, DIR_SUPERBLOCK_NEW, 0);
        fd = dir_open_regular(d, DIR_SUPERBLOCK_NEW, O_RDWR | O_CREAT);
        if (fd < 0)
                return fd;
        r = write_superblock_to(fd, &d->superblock, &d->superblock_good);
        if (r == 0 && d->superblock_good != 3)
                r = -EIO;
        if (r < 0)
                return r;
        r = renameat(d->fd, DIR_SUPERBLOCK_NEW, d->fd, DIR_SUPERBLOCK) < 0 ? -errno : dir_sync(d);
        if (r < 0)
                d->half_made = (unlinkat(d->fd, DIR_SUPERBLOCK, 0) < 0 && errno != ENOENT) ||
                               dir_sync(d) < 0;
        return r;
}

/* Reads the four copies. Stores the whole copy with the highest generation in *ret_best. */
static int read_copies(const struct dir *d, struct disk_superblock *copies,
                       const struct disk_superblock **ret_best,
                       char ret_error[static STORE_ERROR_BYTES])
{
        _cleanup_(closep) int fd = dir_open_buffered(d, DIR_SUPERBLOCK);
        const struct disk_superblock *best = NULL;
        int r;

        if (fd >= 0) /* discards cached pages that the kernel could not write to the disk */
                posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        memset(copies, 0, DISK_SUPERBLOCKS * DISK_PAGE); /* the file may be short */
        r = fd < 0 ? fd : (int)small_file_read(fd, copies, DISK_SUPERBLOCKS * DISK_PAGE);
        if (r < 0)
                return store_error(ret_error, r, "%s/" DIR_SUPERBLOCK ": cannot read: %s", d->path,
                                   dir_strerror(r));
        for (unsigned i = 0; i < DISK_SUPERBLOCKS; i++) {
                const struct disk_superblock *sb = &copies[i];

                if (memcmp(sb->magic, DISK_SUPERBLOCK_MAGIC, sizeof(sb->magic)) == 0 &&
                    sb->crc == disk_superblock_crc(sb) &&
                    (!best || sb->generation > best->generation))
                        best = sb;
        }
        if (!best)
                return store_error(
                        ret_error, -EPROTO,
                        "%s/" DIR_SUPERBLOCK
                        ": none of its four copies is intact: not a kvcache store, or damaged "
                        "beyond use; move the directory away to start with an empty store",
                        d->path);
        *ret_best = best;
        return 0;
}

int dir_check_format(const char *path, const struct disk_superblock *sb,
                     char ret_error[static STORE_ERROR_BYTES])
{
        if (sb->version != DISK_VERSION)
                return store_error(
                        ret_error, -EPROTO,
                        "%s: the store has format version %u, but this kvcache-daemon "
                        "knows only version %u; start the kvcache-daemon that wrote it, or "
                        "move the directory away to start with an empty store",
                        path, sb->version, (unsigned)DISK_VERSION);
        if (sb->incompat & ~DISK_INCOMPAT || sb->ro_compat & ~DISK_RO_COMPAT)
                return store_error(
                        ret_error, -EPROTO,
                        "%s: the store uses a format feature that this kvcache-daemon "
                        "does not know (incompat %#llx, ro_compat %#llx); start a newer one",
                        path, (unsigned long long)(sb->incompat & ~DISK_INCOMPAT),
                        (unsigned long long)(sb->ro_compat & ~DISK_RO_COMPAT));
        if (sb->volume_index >= sb->volume_count || sb->volume_count > VOLUMES_SET_MAX)
                return store_error(ret_error, -EPROTO,
                                   "%s/" DIR_SUPERBLOCK
                                   ": damaged: it names volume %u of a store of %u; move the "
                                   "directory away to start with an empty volume",
                                   path, sb->volume_index + 1u, sb->volume_count);
        return 0;
}

int dir_read_superblock(const char *path, struct disk_superblock *ret,
                        char ret_error[static STORE_ERROR_BYTES])
{
        _cleanup_(freep) struct disk_superblock *copies =
                aligned_alloc(DISK_PAGE, DISK_SUPERBLOCKS * DISK_PAGE);
        _cleanup_(closep) int fd = -1;
        const struct disk_superblock *best;
        int r;

        if (!copies)
                return store_error(ret_error, -ENOMEM, "out of memory for the store");
        fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0) {
                r = -errno;
                return store_error(ret_error, r, "%s: cannot open: %s", path, strerror(-r));
        }
        r = read_copies(&(struct dir){ .fd = fd, .path = (char *)path }, copies, &best, ret_error);
        if (r == -ENOENT)
                return store_error(ret_error, -EPROTO,
                                   "%s: not a kvcache store: there is no file \"" DIR_SUPERBLOCK
                                   "\" in it",
                                   path);
        if (r == 0)
                *ret = *best;
        return r;
}

/* Returns whether the directory is a copy of a volume that was not closed properly, as its inode is
 * not the recorded one. A copy of a volume that was closed properly is complete, and so does not
 * count. */
static bool is_copied(const struct dir *d)
{
        const struct disk_superblock *sb = &d->superblock;
        struct stat st;

        return sb->sizes_generation == sb->generation && sb->directory_inode != 0 && !sb->clean &&
               fstat(d->fd, &st) == 0 && st.st_ino != sb->directory_inode;
}

int dir_superblock_read(struct dir *d, char ret_error[static STORE_ERROR_BYTES])
{
        _cleanup_(freep) struct disk_superblock *copies =
                aligned_alloc(DISK_PAGE, DISK_SUPERBLOCKS * DISK_PAGE);
        const struct disk_superblock *best;
        int r;

        if (!copies)
                return store_error(ret_error, -ENOMEM, "out of memory for the store");
        r = read_copies(d, copies, &best, ret_error);
        if (r == 0)
                r = dir_check_format(d->path, best, ret_error);
        if (r < 0)
                return r;
        d->superblock = *best;
        d->copied = is_copied(d);
        for (unsigned i = 0; i < DISK_SUPERBLOCKS; i++)
                if (memcmp(&copies[i], best, sizeof(*best)) == 0)
                        d->superblock_good |= 1u << i / (DISK_SUPERBLOCKS / 2);
        return 0;
}

/* Clears fields that an older daemon has written without maintaining them. */
static void forget_stale(struct disk_superblock *sb)
{
        if (sb->ceiling_generation != sb->generation)
                sb->seq_ceiling = sb->page_ceiling = 0;
        if (sb->sizes_generation != sb->generation) {
                sb->sizes_seq = sb->n_sizes = sb->table_pages = 0;
                sb->directory_inode = sb->table_inode = sb->rights = 0;
        }
}

int dir_superblock_open(struct dir *d, char ret_error[static STORE_ERROR_BYTES])
{
        int r;

        d->superblock_fd = dir_open_file(d, DIR_SUPERBLOCK, O_RDWR);
        if (d->superblock_fd < 0)
                return store_error(ret_error, d->superblock_fd,
                                   "%s/" DIR_SUPERBLOCK ": cannot open: %s", d->path,
                                   dir_strerror(d->superblock_fd));
        r = d->superblock_good == 3 ? 0 : write_newest_half(d);
        if (r < 0)
                return store_error(ret_error, r, "%s/" DIR_SUPERBLOCK ": cannot write: %s", d->path,
                                   strerror(-r));
        forget_stale(&d->superblock);
        return 0;
}

int dir_make(struct dir *d, const uint8_t *set, unsigned index, unsigned count,
             char ret_error[static STORE_ERROR_BYTES])
{
        int r = make_superblock(d, set, index, count);

        if (r < 0)
                return store_error(ret_error, r, "%s: cannot create a store: %s", d->path,
                                   dir_strerror(r));
        r = dir_superblock_open(d, ret_error);
        d->half_made = r < 0;
        return r;
}
