/* SPDX-License-Identifier: Apache-2.0 */
/* Declares the interface of a queue of device operations, which one worker drives. uring.c and
 * posix.c implement it, and tests wrap or replace it. Private to io/ and its tests. */
#pragma once

#include "checked.h"
#include "io/request.h"

struct kio;
struct kio_backend;
struct kio_params;

/* The common part of every back end's queue, which is the first member of the back end's own
 * struct. */
struct kio_queue {
        const struct kio_backend *ops;
};

struct kio_queue_params {
        unsigned depth;   /* most operations in flight in the queue */
        unsigned threads; /* I/O threads; used by the POSIX back end only */
        void *pool;
        uint64_t pool_bytes, piece_bytes;
        bool pool_has_data;
        const struct kio_pool *more_pools;
        unsigned n_more_pools;
        const int *lock_fds;
        unsigned n_lock_fds;
        int probe_fd;
        unsigned rung;   /* feature level to try, an index below kio_backend.rungs; 0 is the best */
        unsigned worker; /* the worker's number, used in thread names */
        char *error;     /* buffer of at least 256 bytes for a text that describes a failure of
                          * open(); NULL: no text is wanted */
};

/* Returns the part of the pool into which the self-test of worker number params->worker reads
 * `bytes`. The self-test uses the pool so that it covers the memory of later reads. Each worker has
 * its own range, because workers start concurrently. Returns NULL if the pool is too small, is
 * absent or holds data that must not change. */
static inline void *kio_probe_buffer(const struct kio_queue_params *params, uint64_t bytes)
{
        uint64_t at = params->worker * bytes;

        return params->pool && !params->pool_has_data && at + bytes <= params->pool_bytes
                       ? (char *)params->pool + at
                       : NULL;
}

/* Most requests in a merged operation, and most pieces of memory in it: each request has a
 * buffer and a tail. */
enum { KIO_PARTS_MAX = 32, KIO_PIECES_MAX = 2 * KIO_PARTS_MAX };

static inline struct kio_request *kio_request_of(const struct list_node *n)
{
        return container_of(n, struct kio_request, node);
}

/* Appends the pieces of memory that hold bytes [from, from + left) of the request to the `n`
 * pieces in `pieces`, and returns their new number. Bytes below req->body lie in the buffer or
 * vector, the others in the tail. Pieces that are adjacent in memory become one. */
static inline unsigned kio_add_pieces(const struct kio_request *req, uint64_t from, uint64_t left,
                                      struct iovec *pieces, unsigned n)
{
        for (uint64_t bytes; left > 0; from += bytes, left -= bytes) {
                bool in_body = from < req->body;
                char *at;

                bytes = in_body ? MIN(left, req->body - from) : left;
                at = in_body ? kio_request_at(req, from, &bytes)
                             : (char *)req->tail + (from - req->body);
                if (n > 0 && (char *)pieces[n - 1].iov_base + pieces[n - 1].iov_len == at)
                        pieces[n - 1].iov_len += bytes;
                else
                        pieces[n++] = (struct iovec){ .iov_base = at, .iov_len = bytes };
        }
        return n;
}

/* Writes the memory of the request's remaining transfer, at most 1 GiB, to `ret`, and returns
 * the number of pieces. A back end passes req->pieces, where the pieces stay valid while the
 * operation is in flight. A merged request always transfers from its start, because it is split
 * when it is short. */
static inline unsigned kio_rest(const struct kio_request *req, struct iovec *ret)
{
        uint64_t left = MIN(req->length - req->progress, UINT64_C(1) << 30);
        unsigned n = 0;

        if (!req->parts)
                return kio_add_pieces(req, req->progress, left, ret, 0);
        list_for_each (req->parts, i) {
                const struct kio_request *part = kio_request_of(i);
                uint64_t bytes = MIN(left, part->length);

                n = kio_add_pieces(part, 0, bytes, ret, n);
                left -= bytes;
        }
        return n;
}

struct kio_done {
        struct kio_request *req;
        int32_t result; /* bytes transferred, or -errno */
};

struct kio_backend {
        const char *name;
        unsigned rungs; /* number of feature levels, which open() tries by params->rung */

        /* All functions run on the worker's thread, except wake(), which any thread may call. */
        int (*open)(struct kio_queue **ret, const struct kio_queue_params *params);
        struct kio_queue *(*close)(struct kio_queue *q); /* waits for everything in flight */
        /* Returns the features of the queue in use, such as "SINGLE_ISSUER|DEFER_TASKRUN". Owned
         * by the queue. */
        const char *(*describe)(const struct kio_queue *q);
        /* Registers a piece of the pool as a buffer. Returns 0, also without effect in a back end
         * that registers no memory; -EOPNOTSUPP if the queue has no table of buffers; or the error
         * of the kernel, such as -ENOMEM if RLIMIT_MEMLOCK is too small. */
        int (*register_piece)(struct kio_queue *q, unsigned piece);
        /* Registers [base, base + bytes) as buffer `number` of those reserved for regions, or
         * unregisters that buffer if base is NULL. Returns 0, an error of register_piece(),
         * -ENOSPC if the table has no such number, or -EFAULT if the memory is not mapped. NULL
         * in a back end that cannot register regions; the caller then fails with -EOPNOTSUPP. */
        int (*set_buffer)(struct kio_queue *q, unsigned number, void *base, uint64_t bytes);

        /* Queues the bytes [progress, length) of the request, or the first GiB of them. Returns 0,
         * or -EAGAIN if the queue is full and the caller must submit and reap first. */
        int (*push)(struct kio_queue *q, struct kio_request *req);
        /* Hands queued operations to the kernel. With `wait`, also waits for a completion or a
         * wake(), at most `timeout_ns` (0: without limit). Returns 0 or -errno; after a failure,
         * operations that the kernel has not taken stay queued for the next call. */
        int (*submit)(struct kio_queue *q, bool wait, uint64_t timeout_ns);
        /* Stores up to `max` finished operations, and returns their number. */
        unsigned (*reap)(struct kio_queue *q, struct kio_done *ret, unsigned max);
        void (*wake)(struct kio_queue *q);
        /* Returns whether reap() would find a finished operation. Makes no system call, so that a
         * worker can poll it. May be NULL. */
        bool (*is_ready)(const struct kio_queue *q);
        /* Reports that `stuck` operations in flight hang, so that the back end can add threads
         * for the other operations. May be NULL. */
        void (*relieve)(struct kio_queue *q, unsigned stuck);
};

extern const struct kio_backend kio_backend_uring; /* absent when built without liburing */
extern const struct kio_backend kio_backend_posix;

/* Starts as kio_start() does, but on this back end only, without a fallback to another. With NULL,
 * acts like kio_start(). For tests, which pass a back end that injects faults or simulates a
 * disk. */
int kio_start_with(struct kio **ret, const struct kio_params *params,
                   const struct kio_backend *backend, char ret_error[static 256]);
