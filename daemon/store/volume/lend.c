/* SPDX-License-Identifier: Apache-2.0 */
/* Lends chunks to clients that read them directly from the disk (GPUDirect Storage). The slot of a
 * lent chunk is pinned, and the client gets a descriptor of the data file.
 *
 * Loop thread; files are opened on the blocking-call thread. A data file has chunks of one tenant
 * only, so its descriptor does not reveal chunks of other tenants. Descriptors cannot be revoked.
 * So a file that any process still has open is never passed to another tenant: handover.c calls
 * file_is_shared(), which also detects files that an earlier daemon lent, and replaces the file.
 * Chunks are not lent from a file system without file leases (F_SETLEASE), because file_is_shared()
 * does not work there.
 *
 * The daemon compares no checksum when a client reads directly. So a chunk is lent only after this
 * process has read and verified it (chunk.verified), and the client may use the bytes only if
 * volume_give_back() then reports that the chunk was in its slot all the time. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/volume/internal.h"

/* The kernel grants a write lease only on a file that is open nowhere else. The kernel counts open
 * file descriptions, including those that I/O in flight or a mapping holds. The lease is released
 * at once. If another process opens the file in between, the kernel sends SIGIO, which the daemon
 * ignores. */
int file_is_shared(int fd)
{
        if (fcntl(fd, F_SETLEASE, F_WRLCK) < 0)
                return errno == EAGAIN ? 1 : -errno;
        (void)fcntl(fd, F_SETLEASE, F_UNLCK);
        return 0;
}

static struct chunk *find(const struct volume *v, struct store_ref ref)
{
        struct chunk *c = volume_chunk_of(v, ref);

        return c && (c->flags & (CHUNK_LINKED | CHUNK_PENDING)) == CHUNK_LINKED &&
                               !sweep_is_dead(v, ref.index)
                       ? c
                       : NULL;
}

/* Returns whether enough segments without loans are left after a loan in this segment. A segment
 * with a loan cannot be cut for another size, so without this limit a client with a few loans could
 * keep all segments from other sizes. */
static bool leaves_segments(const struct volume *v, const struct segment *seg)
{
        uint64_t most = segments_max(v), least = MAX(most / 32, UINT64_C(2));

        if (most < 8)
                least = most < 4 ? 0 : 1;
        return seg->loans > 0 || v->lent_segments + 1 + least <= most;
}

int volume_lend(struct volume *v, struct store_ref ref, uint32_t *files, struct store_extent *ret)
{
        struct chunk *c = find(v, ref);
        struct segment *seg;

        if (!c || v->stopping || v->bypassed)
                return STORE_MISS;
        seg = v->segments[c->slab];
        if (!v->dir->direct || *files == UINT32_MAX ||
            (seg->lent_as == 0 && file_is_shared(seg->fd) < 0))
                return STORE_NOT_LENT;
        if (!c->verified)
                return STORE_UNVERIFIED;
        if (c->pins >= CHUNK_PINS_MAX / 2 || /* half of the pins are reserved for reads */
            !leaves_segments(v, seg))
                return STORE_FULL;
        if (seg->lent_as == 0)
                seg->lent_as = ++*files;
        chunk_pin(v, ref.index);
        v->lent_pins++;
        v->lent_segments += seg->loans++ == 0;
        *ret = (struct store_extent){
                .file = seg->lent_as,
                .length = c->length,
                .offset = chunk_offset(v, c),
        };
        return 0;
}

bool volume_give_back(struct volume *v, struct store_ref ref)
{
        const struct chunk *c = find(v, ref);
        bool was_right = c && c->verified && !v->bypassed;

        v->lent_pins--;
        v->lent_segments -= --v->segments[volume_chunk_at(v, ref.index)->slab]->loans == 0;
        chunk_unpin(v, ref.index);
        return was_right;
}

/* Opens the data file for a client. Runs on the blocking-call thread. */
static int open_file(struct kio_request *io)
{
        struct store_lent_file *req = container_of(io, struct store_lent_file, io);
        struct stat opened;
        char path[64];

        /* Opens through /proc, because the file's name may belong to another file by now.
         * O_NOFOLLOW and O_NONBLOCK are left out, because cuFile refuses descriptors with these
         * flags. */
        snprintf(path, sizeof(path), "/proc/self/fd/%d", req->source);
        req->fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
        if (req->fd < 0 || fstat(req->fd, &opened) < 0)
                return -errno;
        req->bytes = (uint64_t)opened.st_size;
        return 0;
}

static void opened(struct kio_request *io)
{
        struct store_lent_file *req = container_of(io, struct store_lent_file, io);
        struct volume *v = req->volume;
        const struct segment *seg = req->segment;

        v->operations--;
        close(req->source);
        req->result = (int)io->result;
        /* during the call, the file may have been emptied and passed to another tenant */
        if (req->result == 0 && (seg->lent_as != req->file || v->bypassed))
                req->result = -ENOENT;
        if (req->result < 0 && req->fd >= 0) {
                close(req->fd);
                req->fd = -1;
        }
        req->complete(req);
        volume_progress(v);
}

int volume_open_lent(struct volume *v, struct store_lent_file *req)
{
        struct segment *seg = NULL;

        for (uint32_t i = 0; i < v->n_segments && !seg; i++)
                if (v->segments[i]->lent_as == req->file && req->file != 0)
                        seg = v->segments[i];
        if (!seg || v->stopping || v->bypassed || seg->tenant != req->tenant || seg->handing_over)
                return STORE_STALE;
        req->volume = v;
        req->segment = seg;
        req->fd = -1;
        /* Duplicates the descriptor, because the loop thread may close the segment's own one during
         * the call, once the loans have ended, and another file may then get the same descriptor
         * number. */
        req->source = fcntl(seg->fd, F_DUPFD_CLOEXEC, 0);
        if (req->source < 0)
                return STORE_STALE;
        req->io = (struct kio_request){
                .op = KIO_CALL,
                .class = KIO_CLASS_GET,
                .volume = v->kio_volume,
                .call = open_file,
                .complete = opened,
        };
        list_init(&req->io.node);
        v->operations++;
        kio_submit(v->io, &req->io, seg->number);
        return 0;
}
