/* SPDX-License-Identifier: Apache-2.0 */
/* Data files that were lent (lend.c) to users that have lost access since.
 *
 * No process can revoke a descriptor that a client was given: it stays valid after the session,
 * after the daemon, and after a change of access rights. The holder could read the chunks that the
 * file had while the holder had the right to. It must not read chunks that are put later. Rights
 * change with a restart only, so the superblock has a digest of the rights under which files may
 * have been lent. If startup finds other rights, every data file that another process still has
 * open is replaced by a copy before its first put, and the holder keeps the old file, which no
 * longer has a name. The digest shows only that some right has changed. So files that are open in
 * processes with unchanged rights are copied as well; such a process requests a descriptor of the
 * new file with a message.
 *
 * On a file system without file leases (F_SETLEASE), the daemon cannot detect whether another
 * process has a file open. It lends no chunk from such a file system, so no file is copied there.
 *
 * Blocks. Runs on the thread that opens the volume, before there is any I/O. Failures: a file that
 * cannot be copied is removed, and its chunks are reported as lost. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"
#include "store/volume/internal.h"

/* Copies a range of data, without holes, from one file to the same offsets of another. */
static int copy_range(int from, int to, off_t at, off_t end)
{
        while (at < end) {
                off_t into = at;
                ssize_t n = copy_file_range(from, &at, to, &into, (size_t)(end - at), 0);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0)
                        return n < 0 ? -errno : -EIO;
        }
        return 0;
}

static int copy_file(int from, int to, off_t bytes)
{
        off_t at = 0;

        while (at < bytes) {
                off_t data = lseek(from, at, SEEK_DATA), hole;
                int r;

                if (data < 0 && errno == ENXIO)
                        return 0; /* there is a hole up to the end */
                hole = data < 0 ? -1 : lseek(from, data, SEEK_HOLE);
                if (hole < 0)
                        return -errno;
                r = copy_range(from, to, data, MIN(hole, bytes));
                if (r < 0)
                        return r;
                at = hole;
        }
        return 0;
}

static int make_copy(struct segment *seg, const char *name, const char *other)
{
        struct volume *v = seg->volume;
        _cleanup_(closep) int from = dir_open_buffered(v->dir, name);
        _cleanup_(closep) int to = dir_open_file(v->dir, other, O_RDWR | O_CREAT | O_EXCL);
        int r;

        if (from < 0 || to < 0)
                return MIN(from, to);
        r = v->params.prewrite                     ? dir_allocate(to, seg->bytes)
            : ftruncate(to, (off_t)seg->bytes) < 0 ? -errno
                                                   : 0;
        if (r == 0)
                r = copy_file(from, to, (off_t)seg->bytes);
        if (r == 0 && fsync(to) < 0)
                r = -errno;
        if (r == 0 && renameat(v->dir->fd, other, v->dir->fd, name) < 0)
                r = -errno;
        if (r == 0 && dup3(to, seg->fd, O_CLOEXEC) < 0)
                r = -errno;
        return r < 0 ? r : dir_sync(v->dir);
}

int segment_detach(struct segment *seg)
{
        struct volume *v = seg->volume;
        char name[DIR_SEGMENT_NAME_BYTES], other[DIR_SEGMENT_NAME_BYTES];
        int r;

        if (v->params.as_is || v->params.rights == 0 ||
            v->params.rights == v->dir->superblock.rights || file_is_shared(seg->fd) <= 0)
                return 0;
        dir_segment_name(seg->number, name);
        dir_replacement_name(seg->number, other);
        r = make_copy(seg, name, other);
        if (r < 0)
                unlinkat(v->dir->fd, other, 0);
        return r < 0 ? r : 1;
}
