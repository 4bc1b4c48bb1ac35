/* SPDX-License-Identifier: Apache-2.0 */
/* A request, as callers, workers and back ends have it.
 *
 * What becomes of a request, by op:
 *   READ   reads `length` bytes at `offset` of `fd` into `buf`, then, if `crc_bytes` is not 0,
 *          computes the CRC32C of the first crc_bytes of `buf` into `crc`. A read that reaches the
 *          end of the file early is a failure: -EIO, never a short success.
 *          With a `tail`, `length` is crc_bytes up to the next 4 KiB and `buf` has room for
 *          crc_bytes only: whole 4 KiB blocks go there, the last, broken one to `tail`; the
 *          checksum is that of both; then what counts of the tail is copied behind the rest in
 *          `buf`. No byte beyond buf + crc_bytes is written, whatever happens.
 *          With `wipe`, `want_crc` is what the checksum has to be: when it is another, or the read
 *          fails, `buf` is filled with zeros before complete() is called, whatever was read to it.
 *          `crc` says what came.
 *   WRITE  writes all of it. With a `tail`, `length` is whole 4 KiB blocks, and the last one comes
 *          from there.
 *   SYNC   fdatasync.
 *   COPY   copies `length` bytes from `src` to `buf` and computes the CRC32C *over buf's bytes as
 *          they came to lie there* into `crc`, in slices of at most 256 KiB, between which the
 * worker serves its queue. src may be memory that a client shares and changes meanwhile, and
 * (guard_src) that may vanish: then the result is -EFAULT. guard_src covers `buf` as well, and of a
 *          READ the checksum and what is copied out of its tail. Without `buf` nothing is copied,
 *          and counted as moved: the checksum is that of `src` as it lies there. But what `length`
 *          has beyond whole 4 KiB blocks is copied to `tail`, if there is one, with zeros up to
 *          4 KiB, and the checksum is taken over it *there*: what a WRITE with this tail needs.
 *   CALL   runs `call(req)` on its volume's blocking-call thread and takes its return value as the
 *          result: for operations without an asynchronous form here (fallocate, openat, populating
 *          memory). Calls of a volume run one at a time and never on a worker, whatever the
 * affinity.
 *
 * Reads, or writes, of adjacent places in a file that wait together at one worker may be merged
 * (merge.h). Results are compared with the length asked for; a short transfer is resubmitted for
 * its aligned rest, -EINTR and -EAGAIN are retried a bounded number of times. Memory that is not
 * mapped when the device accesses it results in -EFAULT, also where guard_src is not set. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/list.h"

struct kio;

enum kio_op { KIO_READ, KIO_WRITE, KIO_SYNC, KIO_COPY, KIO_CALL, KIO_OP_END };

/* Gets go before puts, but one submission in eight is a put; background work goes when both are
 * idle, and one submission in 64. */
enum kio_class { KIO_CLASS_GET, KIO_CLASS_PUT, KIO_CLASS_BACKGROUND, KIO_CLASS_END };

/* The device that a request depends on, so that a hung one can be distinguished from the others: a
 * number below KIO_VOLUMES_MAX that the submitter assigns. 0: no device, or any. */
enum { KIO_VOLUMES_MAX = 32 };

enum kio_state {
        KIO_IDLE,   /* loop: free for use */
        KIO_QUEUED, /* worker: the loop may not even read it */
        KIO_DONE,   /* loop: result is set, complete() runs, back to IDLE before it is called */
};

/* Most bytes of adjacent requests that are merged into one operation. */
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
        /* READ, WRITE, COPY: of `length`, the bytes of the chunk that it moves, for transfers.h. 0:
         * it moves none. A READ that has them has `want_crc`. */
        uint64_t payload;
        /* READ, WRITE: buf lies in it; COPY: src or buf does. NULL: in the pool, or anywhere. */
        struct kio_region *region;
        void *tail; /* READ, WRITE, COPY: 4 KiB, so aligned, the caller's; NULL: none */
        const void *src;
        /* COPY: in place of `src`, or with a `src` in place of `buf`: at least `length` bytes in
         * all, taken or filled in this order. READ, WRITE: in place of `buf`, of as many bytes, and
         * aligned as the file asks for; `room` has an element more than that takes, the caller's.
         * Such a one is not merged, nor uses registered buffers if it is more than one piece. */
        const struct iovec *vector;
        struct iovec *room;
        bool guard_src;
        bool unchecked; /* COPY with a `buf`: no checksum is computed, and `crc` is 0 */
        bool wipe;      /* READ */
        uint32_t want_crc;
        int (*call)(struct kio_request *req);

        int64_t result; /* 0, or -errno. Never a byte count: all or failure */
        uint32_t crc;
        uint64_t submitted_ns, done_ns; /* CLOCK_MONOTONIC */

        void (*complete)(struct kio_request *req); /* on the loop thread */

        /* the loop's own */
        unsigned worker; /* that has it, or had it last */
        uint64_t load;   /* bytes that it counts as there */

        /* worker's own */
        uint64_t body; /* so many bytes are buf's, the rest is the tail's */
        uint64_t progress;
        uint64_t vector_done;    /* of its first element; `vector` goes on with the copy */
        uint64_t device_ns;      /* when the device got it last; COPY: when it began */
        uint64_t settled_ns;     /* when the device answered last */
        uint64_t joined_payload; /* of all parts of the operation that it was the first of */
        struct list_node *parts; /* the requests that this one is made up of; NULL: none */
        struct iovec *pieces;    /* of what was pushed last: own_pieces, or the parts' */
        struct iovec own_pieces[2];
        uint32_t attempts; /* in a row without progress */
        int32_t failure;   /* of a read, while what it brought is wiped */
        bool wiping;
        uint32_t registered; /* did the last transfer use a registered buffer? */
        bool stuck;          /* is it at a device that hangs? */
        bool along;          /* was it merged into the operation of an adjacent one? */
        bool cut_short;      /* did the file, or the transfer, end early? */
};

/* READ, WRITE: where byte `at` of the memory is. `*bytes` becomes what lies there in one piece, if
 * that is less. */
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

/* Memory that I/O goes to, registered piece by piece. */
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

/* Memory of a client that I/O goes to and comes from, registered with every ring while it is so.
 * The caller's; the io's from kio_region_register() until kio_region_unregister() has completed, or
 * kio_stop(). All zero before its first time. */
struct kio_region {
        void *base;      /* in: a shared mapping, aligned to its pages */
        uint64_t bytes;  /* in: of it, whole pages */
        unsigned volume; /* in: as of a request; of the blocking-call thread that maps its pages */
        /* In. Loop thread, from kio_reap(): of register, and of unregister. */
        void (*complete)(struct kio_region *region);
        /* Of register: 0: every ring has all of it; else why some I/O there goes unregistered,
         * which works as well but is slower: -ENOMEM (RLIMIT_MEMLOCK), -EOPNOTSUPP (not offered by
         * the backend), -ENOSPC (no more buffers), -EFAULT (the memory is not mapped). Of
         * unregister: 0; -errno: a ring failed to unregister all of it. */
        int result;
        uint64_t registered_bytes; /* from base on, in every ring */

        /* the io's own */
        struct list_node node;
        struct regions *regions;
        enum kio_region_state state;
        _Atomic bool closing; /* goes no further with registering */
        struct kio_request step;
        uint64_t mapped, to_map;
        struct regions_ring *rings; /* one a worker */
        uint16_t *buffers;          /* their numbers, by piece */
        uint32_t n_buffers;
        uint32_t waiting;   /* for so many rings */
        uint32_t in_flight; /* requests that name it */
        int refused, ring_result;
};

/* Loop thread. The request must stay where it is until complete(). Never fails: an unusable worker
 * completes it with an error. As few workers as the load needs take the requests; where it needs
 * all of them, reads, writes and syncs with the same `affinity` go to the same one. */
void kio_submit(struct kio *io, struct kio_request *req, unsigned affinity);

/* Wakes the workers for what kio_submit() has not: call at the end of a loop turn. */
void kio_flush(struct kio *io);
