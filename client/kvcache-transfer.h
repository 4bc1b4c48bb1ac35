/* SPDX-License-Identifier: Apache-2.0 */
/* libkvcache: what a program moves by itself. The daemon counts what it moves, and the library what
 * the calls of <kvcache-gpu.h> move; a program that copies blocks in another way, as with
 * kvcache_layout_gather() or a copy engine of its own, says here what it has moved. So the metrics
 * kvcache_transfer_* and the sessions of kvcache-bench show what really happened. */
#ifndef KVCACHE_TRANSFER_H
#define KVCACHE_TRANSFER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct kvcache;

enum kvcache_transfer_path {
        KVCACHE_PATH_OTHER = 0,
        KVCACHE_HOST_TO_DISK = 1,
        KVCACHE_DISK_TO_HOST = 2,
        KVCACHE_HOST_TO_DEVICE = 3,
        KVCACHE_DEVICE_TO_HOST = 4,
        KVCACHE_DEVICE_TO_DEVICE = 5,
        KVCACHE_HOST_TO_HOST = 6,
        KVCACHE_DISK_TO_DEVICE = 7,
        KVCACHE_DEVICE_TO_DISK = 8,
};

enum kvcache_transfer_technology {
        KVCACHE_TECHNOLOGY_OTHER = 0,
        KVCACHE_IO_URING = 1,
        KVCACHE_POSIX = 2,
        KVCACHE_GDS = 3,
        KVCACHE_CUDA_BATCH = 4,  /* cuMemcpyBatchAsync() */
        KVCACHE_CUDA_KERNEL = 5, /* a kernel that copies many pieces */
        KVCACHE_CUDA_COPY = 6,   /* cuMemcpyAsync() and the like */
        KVCACHE_MEMCPY = 7,
        KVCACHE_COMPOSED = 8, /* several of these technologies */
};

enum kvcache_transfer_result {
        KVCACHE_TRANSFER_OK = 0,
        KVCACHE_TRANSFER_IO = 1,
        KVCACHE_TRANSFER_SHORT = 2, /* fewer bytes than were asked for */
        KVCACHE_TRANSFER_CHECKSUM = 3,
        KVCACHE_TRANSFER_CANCELLED = 4,
        KVCACHE_TRANSFER_TIMEOUT = 5,
};

/* Operations that have ended, of one kind. */
struct kvcache_transfer {
        uint32_t size;   /* sizeof(struct kvcache_transfer) */
        uint32_t path;   /* enum kvcache_transfer_path */
        uint32_t layout; /* layout of the program's memory: enum kvcache_layout_kind; 0: another one
                          */
        uint32_t technology; /* enum kvcache_transfer_technology */
        uint32_t result;     /* enum kvcache_transfer_result */
        uint32_t reserved;   /* 0 */
        uint64_t
                transfers; /* at least 1: copies, entries of a batch, launches of a kernel, reads */
        uint64_t blocks;   /* these four are not counted of what has failed */
        uint64_t regions;  /* blocks × layers × outer */
        uint64_t bytes;    /* without padding */
        uint64_t device_bytes; /* with it; 0: as `bytes` */
        uint64_t duration_ns;  /* from the beginning of the first to the end of the last, which is
                                  now. Divided by `transfers` it is the latency of each. */
};

/* Counts them: no message, no system call but for the clock, and nothing that waits; the first time
 * in a session memory is allocated and the daemon is asked for the page in which it reads them. In
 * a session at most 16 combinations of path, layout and technology are counted.
 *
 * 0; -EINVAL: one of the members is not what it must be; -E2BIG: it is of a newer library; -ENOSPC:
 * there are 16 others; -ENOMEM; -ENOTCONN: there is no session, which no call has opened yet or
 * which has ended; -EOPNOTSUPP: the daemon is too old for it; -ECHILD: after fork(). */
int kvcache_count_transfer(struct kvcache *kv, const struct kvcache_transfer *transfer);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
