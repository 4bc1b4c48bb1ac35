/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/* A request, as callers, workers and back ends share it. The fields that each operation uses:
 *
 *   READ   Reads `length` bytes at `offset` of `fd` into `buf`. If `crc_bytes` is not 0, computes
 *          the CRC32C of the first crc_bytes of `buf` into `crc`. A read that reaches the end of the
 *          file early fails with -EIO; it is never a short success.
 *          With a `tail`, `length` is crc_bytes rounded up to 4 KiB, and `buf` has room for
 *          crc_bytes only: whole 4 KiB blocks are read into `buf` and the last, partial one into
 *          `tail`. The checksum covers both, and then the payload of the tail is copied to its place
 *          in `buf`. No byte beyond buf + crc_bytes is written, even after an error.
 *          With `wipe`, `want_crc` is the expected checksum. If the checksum differs or the read
 *          fails, `buf` is filled with zeros before complete() is called; `crc` still tells what was
 *          read.
 *   WRITE  Writes `length` bytes.
 *          With a `tail`, `length` is a multiple of 4 KiB, and the last 4 KiB come from `tail`.
 *   SYNC   Calls fdatasync.
 *   COPY   Copies `length` bytes from `src` to `buf` in slices of at most 256 KiB, between which the
 *          worker serves its queue, and computes into `crc` the CRC32C of the bytes *as they are in
 *          buf*, since a client that shares `src` may change it during the copy.
 *          With `guard_src`, the memory may also vanish, which results in -EFAULT; this covers `src`
 *          and `buf`, and in a READ the checksum and the copy out of the tail.
 *          Without `buf`, nothing is copied or counted as moved, and the checksum is that of `src`.
 *          If there is a `tail`, however, the bytes beyond the last whole 4 KiB block are copied to
 *          it and padded with zeros to 4 KiB, and the checksum covers them *there*, as a WRITE with
 *          this tail will store them.
 *   CALL   Runs `call(req)` on the blocking-call thread of its volume, and takes the return value as
 *          the result. For operations without an asynchronous form here, such as fallocate, openat
 *          and populating memory. Calls of one volume run one at a time and never on a worker,
 *          whatever the affinity.
 *
 * Adjacent reads, or adjacent writes, that wait together at one worker may be merged (merge.h).
 * A short transfer is resubmitted for its aligned rest; -EINTR and -EAGAIN are retried a bounded
 * number of times. Memory that is not mapped when the device accesses it results in -EFAULT,
 * even without guard_src. */
/* clang-format on */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/list.h"

struct kio;

enum kio_op { KIO_READ, KIO_WRITE, KIO_SYNC, KIO_COPY, KIO_CALL, KIO_OP_END };

/* The class of a request. A worker serves gets first, then puts, then background work, except
 * that every eighth submission prefers a put and one in 64 prefers background work. */
enum kio_class { KIO_CLASS_GET, KIO_CLASS_PUT, KIO_CLASS_BACKGROUND, KIO_CLASS_END };

/* Volume numbers are below this. A request names the device that it depends on by such a number,
 * which the submitter assigns, so that the worker can tell a hung device from the others. 0 stands
 * for a request that depends on no particular device. */
enum { KIO_VOLUMES_MAX = 32 };

enum kio_state {
        KIO_IDLE,   /* the submitter owns the request, on the loop thread */
        KIO_QUEUED, /* a worker or blocking-call thread owns the request; the loop thread must not
                       even read it */
        KIO_DONE,   /* the loop thread owns the request: its result is set. kio_reap() makes it IDLE
                       before it calls complete() */
};

/* Most bytes in one merged write, and bytes of submitted reads and writes at which a worker is
 * woken before the next flush. Merged reads are smaller (merge.c). */
enum { KIO_JOINED_MAX = 512 * 1024 };

struct kio_region;

struct kio_request {
        struct list_node node;
        enum kio_state state;
        enum kio_op op;
        enum kio_class class;
        unsigned volume;

        int fd;
        uint64_t offset;
        void *buf;
        uint64_t length;
        uint64_t crc_bytes;
        /* READ, WRITE, COPY: bytes of a chunk within `length`, counted by transfers.h. 0: the
         * request moves no chunk. A READ with a payload also sets `want_crc`. */
        uint64_t payload;
        /* READ, WRITE: the region that contains buf. COPY: the region that contains src or buf.
         * NULL: the pool, or any other memory. */
        struct kio_region *region;
        void *tail; /* READ, WRITE, COPY: 4 KiB, aligned to 4 KiB, owned by the caller; NULL:
                     * none */
        const void *src;
        /* COPY: replaces `src`, or `buf` if `src` is set, by pieces of at least `length` bytes in
         * all, used in this order. READ, WRITE: replaces `buf` by pieces of `length` bytes in all,
         * each aligned as the file requires; `room` is an array of the caller with one element more
         * than the vector needs. A read or write with a vector is not merged, and uses a registered
         * buffer only if it is a single piece. */
        const struct iovec *vector;
        struct iovec *room;
        bool guard_src;
        bool unchecked; /* COPY with `buf`: computes no checksum and leaves `crc` 0 */
        bool wipe;      /* READ: fill `buf` with zeros if the read fails or the checksum differs */
        uint32_t want_crc;
        int (*call)(struct kio_request *req);

        int64_t result; /* 0 or -errno, never a byte count, because a short transfer is a failure;
                         * CALL: the return value of `call` */
        uint32_t crc;
        uint64_t submitted_ns, done_ns; /* CLOCK_MONOTONIC times of the submission and of the end */

        void (*complete)(struct kio_request *req); /* called on the loop thread, from kio_reap() */

        /* Private to the loop thread. */
        unsigned worker; /* the worker that has the request or had it last */
        uint64_t load;   /* bytes that the request adds to the load of that worker */

        /* Private to the worker. */
        uint64_t body; /* leading bytes of the transfer that are in `buf` or `vector`; the rest is
                        * in `tail` */
        uint64_t progress;
        uint64_t vector_done;    /* bytes of the vector's first element that are done; a copy also
                                  * advances `vector` */
        uint64_t device_ns;      /* time at which the device last got the request; COPY: time at
                                  * which the copy began */
        uint64_t settled_ns;     /* time at which the device last answered */
        uint64_t joined_payload; /* sum of the payloads of all parts of the merged operation; 0 if
                                    the request was not merged */
        struct list_node *parts; /* requests merged into this one; NULL: none */
        struct iovec *pieces;    /* memory of the current operation: own_pieces, `room` or a
                                  * merged request's array */
        struct iovec own_pieces[2];
        uint32_t attempts; /* consecutive attempts without progress */
        int32_t failure;   /* result of a failed read, kept while its bytes are wiped */
        bool wiping;
        uint32_t registered; /* 1: the last transfer used a registered buffer */
        bool stuck;          /* the request is in flight at a volume that hangs */
        bool along;          /* the request was a part of a merged operation, but not its first */
        bool cut_short;      /* the file or the transfer ended early */
};

static inline bool kio_request_is_transfer(const struct kio_request *req)
{
        return req->op == KIO_READ || req->op == KIO_WRITE;
}

/* Returns the address of byte `at` of a READ's or WRITE's memory, and lowers `*bytes` to the
 * number of bytes that are contiguous there. */
static inline char *kio_request_at(const struct kio_request *req, uint64_t at, uint64_t *bytes)
{
        const struct iovec *v = req->vector;

        if (!v)
                return (char *)req->buf + at;
        for (; at >= v->iov_len; v++)
                at -= v->iov_len;
        if (*bytes > v->iov_len - at)
                *bytes = v->iov_len - at;
        return (char *)v->iov_base + at;
}

/* A range of memory used for I/O and registered in pieces of piece_bytes. */
struct kio_pool {
        void *base;
        uint64_t bytes, piece_bytes;
};

enum { KIO_MORE_POOLS_MAX = 15 };

enum kio_region_state {
        KIO_REGION_NONE,
        KIO_REGION_MAPPING,
        KIO_REGION_REGISTERING,
        KIO_REGION_REGISTERED,
        KIO_REGION_UNREGISTERING,
};

/* Client memory used for I/O, which every ring registers. The caller owns the struct, except from
 * kio_region_register() until kio_region_unregister() has completed or kio_stop() has run. All
 * members except those marked "in" must be zero before the first registration. */
struct kio_region {
        void *base;      /* in: start of a shared mapping, aligned to its pages */
        uint64_t bytes;  /* in: length of the mapping, in whole pages */
        unsigned volume; /* in: volume whose blocking-call thread populates the pages, numbered as
                          * in a request */
        /* in: the pages may be moved to huge pages. False if the memory can be cut: a huge page
         * that crosses the end of a file stays accessible beyond that end. */
        bool may_be_huge;
        /* in: called on the loop thread, from kio_reap(), when registering or unregistering has
         * ended */
        void (*complete)(struct kio_region *region);
        /* out: After registering, 0 if every ring has all of the region. Otherwise some I/O goes
         * unregistered, which is only slower: -ENOMEM (RLIMIT_MEMLOCK, or no memory for the
         * lists), -EOPNOTSUPP (the back end cannot), -ENOSPC (no buffer numbers are left), -EFAULT
         * (the memory is not mapped), -EPERM (kio_params.no_registration), or the error with which
         * a piece of the pool was refused before. After unregistering, 0, or -errno if a ring
         * failed to unregister a piece. */
        int result;
        uint64_t registered_bytes; /* out: bytes from base on that every ring has registered */
        uint64_t huge_bytes;       /* out: bytes in huge pages */

        /* Private to io/. */
        struct list_node node;
        struct regions *regions;
        enum kio_region_state state;
        _Atomic bool closing; /* unregistering has begun; rings register no further piece */
        struct kio_request step;
        uint64_t mapped, to_map;
        bool huge;                  /* pages are still to be moved to huge ones */
        struct regions_ring *rings; /* one per worker */
        uint16_t *buffers;          /* buffer numbers, by piece */
        uint32_t n_buffers;
        uint32_t waiting;   /* rings that have not answered yet */
        uint32_t in_flight; /* requests in flight that name the region */
        int refused, ring_result;
};

/* Submits a request, which must stay valid and in place until complete(). Cannot fail: an
 * unusable worker completes the request with an error. The fewest workers that the load needs
 * are used; if it needs all, reads, writes and syncs with the same `affinity` go to the same
 * worker. With kio_params.spread_bytes, reads go to the worker with the fewest bytes of reads
 * instead. Loop thread. */
void kio_submit(struct kio *io, struct kio_request *req, unsigned affinity);

/* Wakes each worker that sleeps although requests were submitted to it. Call it at the end of a
 * loop iteration, because kio_submit() wakes a worker only for a large amount of work. */
void kio_flush(struct kio *io);
