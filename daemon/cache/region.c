/* SPDX-License-Identifier: Apache-2.0 */
/* See region.h. A region is checked -> mapped -> registered with the rings, if it is large enough
 * to benefit -> unregistered -> unmapped. The functions run_*() ask the file system or take time in
 * proportion to the region's size. They run on a blocking-call thread of their own, REGION_THREAD,
 * so that a client's file delays no call of the store's volumes.
 *
 * Failures: a file that cannot be registered is refused with a text that says why. A ring that
 * refuses a region uses it unregistered. */
#include "cache/region.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/list.h"
#include "base/pages.h"
#include "cache/put-file.h"
#include "checked.h"
#include "cleanup.h"
#include "store/store.h"

enum {
        PAGE = 4096,
        HUGE_PAGE = 2 << 20,
        REGISTERED_MIN = 1 << 20, /* bytes; a smaller region is not worth a slot among a ring's
                                   * registered buffers */
};
static_assert((int)REGION_THREAD > (int)STORE_MAX_VOLUMES,
              "the store numbers its volumes from 1 on");

bool region_is_memory(int fd)
{
        /* The kernel answers this without the file system, and only for tmpfs and hugetlbfs. */
        return fcntl(fd, F_GET_SEALS) >= 0;
}

/* Returns when the file was created, in ns; 0 if its file system does not record that. */
static uint64_t born_ns(int fd)
{
        struct statx more;

        if (statx(fd, "", AT_EMPTY_PATH, STATX_BTIME, &more) < 0 || !(more.stx_mask & STATX_BTIME))
                return 0;
        return (uint64_t)more.stx_btime.tv_sec * 1000000000 + more.stx_btime.tv_nsec;
}

int region_check(int fd, uint64_t offset, uint64_t bytes, struct region_identity *ret,
                 const char **ret_wrong)
{
        int flags = fcntl(fd, F_GETFL);
        struct statfs fs;
        struct stat st;
        uint64_t page;
        bool huge;
        int seals;

        *ret_wrong = "the file is neither a memfd nor on tmpfs or hugetlbfs";
        if (flags < 0 || !region_is_memory(fd) || fstatfs(fd, &fs) < 0 || fstat(fd, &st) < 0)
                return -EINVAL;
        huge = fs.f_type == HUGETLBFS_MAGIC;
        if ((!huge && fs.f_type != TMPFS_MAGIC) || !S_ISREG(st.st_mode))
                return -EINVAL;
        *ret_wrong = "the descriptor is not open for reading and writing";
        if ((flags & O_ACCMODE) != O_RDWR)
                return -EINVAL;
        *ret_wrong = "the memfd is sealed against writing";
        seals = fcntl(fd, F_GET_SEALS);
        if (seals < 0 || (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)))
                return -EINVAL;
        page = huge ? (uint64_t)fs.f_bsize : PAGE;
        *ret_wrong = "offset and bytes are not multiples of the page size of the file";
        if (offset % page != 0 || bytes % page != 0 || bytes == 0)
                return -EINVAL;
        *ret_wrong = "the file ends before the range does";
        if (!range_within(offset, bytes, (uint64_t)st.st_size))
                return -EINVAL;
        /* A hole's memory would be charged to the daemon when it touches it. SEEK_HOLE would find
         * holes, but waits for the file's lock, which its owner can hold forever. */
        *ret_wrong = "the range has a hole; allocate all of it";
        if ((uint64_t)st.st_blocks * 512 < (uint64_t)st.st_size)
                return -EINVAL;

        *ret_wrong = NULL;
        *ret = (struct region_identity){ .device = st.st_dev,
                                         .inode = st.st_ino,
                                         .born_ns = born_ns(fd) };
        return 0;
}

static bool is_hugetlbfs(int fd)
{
        struct statfs fs;

        return fstatfs(fd, &fs) == 0 && fs.f_type == HUGETLBFS_MAGIC;
}

/* Maps the range of the file at an address that has the same remainder modulo HUGE_PAGE as the
 * range's offset in the file. Only then can huge pages be mapped. */
static void *map_aligned(int fd, uint64_t offset, uint64_t bytes)
{
        uint64_t room = bytes + HUGE_PAGE, skip;
        char *at = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        void *base;

        if (at == MAP_FAILED)
                return MAP_FAILED;
        skip = (offset - (uintptr_t)at) % HUGE_PAGE;
        base = mmap(at + skip, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                    (off_t)offset);
        if (base == MAP_FAILED) {
                int error = errno;

                (void)munmap(at, room);
                errno = error;
                return MAP_FAILED;
        }
        if (skip > 0)
                (void)munmap(at, skip);
        if (room > skip + bytes)
                (void)munmap(at + skip + bytes, room - skip - bytes);
        return base;
}

int region_map(struct region *ret, int fd, uint64_t offset, uint64_t bytes)
{
        /* hugetlbfs chooses addresses of its own, which suit its pages. */
        void *base =
                bytes >= HUGE_PAGE && !is_hugetlbfs(fd)
                        ? map_aligned(fd, offset, bytes)
                        : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);

        if (base == MAP_FAILED)
                return -errno;
        (void)madvise(base, bytes, MADV_DONTDUMP);
        (void)madvise(base, bytes, MADV_DONTFORK);
        ret->base = base;
        ret->bytes = bytes;
        return 0;
}

void region_unmap(struct region *r)
{
        if (r->base)
                pages_unmap(r->base, r->bytes);
        r->base = NULL;
}

void *region_at(const struct region *r, uint64_t offset, uint64_t length)
{
        if (!r->base || !range_within(offset, length, r->bytes))
                return NULL;
        return (char *)r->base + offset;
}

/* --- calls on a blocking-call thread, and their completion --- */

static void call_on(unsigned thread, struct kio *io, struct kio_request *req,
                    int (*run)(struct kio_request *), void (*complete)(struct kio_request *))
{
        *req = (struct kio_request){
                .op = KIO_CALL,
                .class = KIO_CLASS_PUT, /* precedes moves to huge pages, which are BACKGROUND */
                .volume = thread,
                .call = run,
                .complete = complete,
        };
        kio_submit(io, req, 0);
}

static void call(struct kio *io, struct kio_request *req, int (*run)(struct kio_request *),
                 void (*complete)(struct kio_request *))
{
        call_on(REGION_THREAD, io, req, run, complete);
}

/* Files on disk use another thread than memory, so that a hung disk does not delay memory. */
static unsigned thread_of(const struct region_file *f)
{
        return f->on_disk ? PUT_FILE_THREAD : REGION_THREAD;
}

static void on_file_done(struct kio_request *req)
{
        struct region_file *f = container_of(req, struct region_file, call);

        f->done(f, (int)req->result);
}

static int run_close_file(struct kio_request *req)
{
        struct region_file *f = container_of(req, struct region_file, call);

        if (f->fd >= 0)
                close(TAKE_FD(f->fd));
        return 0;
}

static int run_check(struct kio_request *req)
{
        struct region_file *f = container_of(req, struct region_file, call);
        int result = f->on_disk ? put_file_check(f->fd, f->offset, f->bytes, &f->wrong)
                                : region_check(f->fd, f->offset, f->bytes, &f->identity, &f->wrong);

        if (result < 0)
                (void)run_close_file(req);
        return result;
}

void region_file_check(struct region_file *f)
{
        call_on(thread_of(f), f->io, &f->call, run_check, on_file_done);
}

void region_file_close(struct region_file *f)
{
        call_on(thread_of(f), f->io, &f->call, run_close_file, on_file_done);
}

static int run_map(struct kio_request *req)
{
        struct region *r = container_of(req, struct region, call);
        int result = region_map(r, r->fd, r->offset, r->bytes);
        int seals = fcntl(r->fd, F_GET_SEALS);

        r->has_fixed_size = seals >= 0 && seals & F_SEAL_SHRINK;
        close(TAKE_FD(r->fd)); /* closing the last descriptor frees the memory */
        return result;
}

static void on_registered(struct kio_region *in_rings)
{
        struct region *r = container_of(in_rings, struct region, in_rings);

        r->registered(r);
}

static void on_mapped(struct kio_request *req)
{
        struct region *r = container_of(req, struct region, call);

        if (req->result == 0) {
                r->in_rings = (struct kio_region){
                        .base = r->base,
                        .bytes = r->bytes,
                        .volume = REGION_THREAD,
                        .may_be_huge = r->has_fixed_size,
                        .complete = on_registered,
                };
                r->registers = r->bytes >= REGISTERED_MIN;
                if (r->registers)
                        kio_region_register(r->io, &r->in_rings);
        }
        r->opened(r, (int)req->result);
}

void region_open(struct region *r, int fd, uint64_t offset, uint64_t bytes)
{
        r->fd = fd;
        r->offset = offset;
        r->bytes = bytes;
        call(r->io, &r->call, run_map, on_mapped);
}

static int run_unmap(struct kio_request *req)
{
        region_unmap(container_of(req, struct region, call));
        return 0;
}

static void on_unmapped(struct kio_request *req)
{
        struct region *r = container_of(req, struct region, call);

        r->closed(r);
}

static void on_unregistered(struct kio_region *in_rings)
{
        struct region *r = container_of(in_rings, struct region, in_rings);

        call(r->io, &r->call, run_unmap, on_unmapped);
}

void region_close(struct region *r)
{
        if (!r->registers) {
                call(r->io, &r->call, run_unmap, on_unmapped);
                return;
        }
        r->in_rings.complete = on_unregistered;
        kio_region_unregister(r->io, &r->in_rings);
}
