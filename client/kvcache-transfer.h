/* SPDX-License-Identifier: Apache-2.0 */
/* libkvcache: transfers that a program makes itself. The daemon counts its own transfers, and the
 * library those of <kvcache-gpu.h>. A program that copies blocks in another way, such as with
 * kvcache_layout_gather() or its own copy engine, reports them here, so that the metrics
 * kvcache_transfer_* and the sessions of kvcache-bench are complete. */
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

/* Completed transfers of one path, layout, technology and result. */
struct kvcache_transfer {
        uint32_t size;       /* sizeof(struct kvcache_transfer) */
        uint32_t path;       /* enum kvcache_transfer_path */
        uint32_t layout;     /* layout of the program's memory: enum kvcache_layout_kind; 0:
                                another one */
        uint32_t technology; /* enum kvcache_transfer_technology */
        uint32_t result;     /* enum kvcache_transfer_result */
        uint32_t reserved;   /* 0 */
        uint64_t transfers;  /* number of operations, 1 or more: copies, entries of a batch copy,
                                launches of a kernel, reads or writes */
        uint64_t blocks; /* number of blocks; this and the members up to device_bytes are ignored if
                            `result` is a failure */
        uint64_t regions;      /* blocks × layers × outer, or blocks × n_regions: see struct
                                  kvcache_layout */
        uint64_t bytes;        /* without padding */
        uint64_t device_bytes; /* bytes with padding between blocks; 0: equal to `bytes` */
        uint64_t duration_ns;  /* time from the start of the first operation to the end of the last,
                                  which is the time of the call. Each counts with this time divided
                                  by `transfers` as its latency */
};

/* Counts transfers, without a message, a system call other than for the clock, or a wait. The first
 * call of a session allocates memory and asks the daemon for the page from which it reads the
 * counters. A session counts at most 16 combinations of path, layout and technology.
 *
 * Returns 0; -EINVAL if a member is invalid; -E2BIG if the structure is newer than the library;
 * -ENOSPC if there are 16 other combinations; -ENOMEM; -ENOTCONN if the session has ended and no
 * other call has connected again; -EOPNOTSUPP if the daemon is too old; -ECHILD after fork(). */
int kvcache_count_transfer(struct kvcache *kv, const struct kvcache_transfer *transfer);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
