/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of device operations that a worker drives. uring.c and posix.c implement it; tests wrap
 * and replace it. Private to io/ and its tests. */
#pragma once

#include "checked.h"
#include "io/request.h"

struct kio;
struct kio_backend;
struct kio_params;

/* The first member of each backend's own queue. */
struct kio_queue {
        const struct kio_backend *ops;
};

struct kio_queue_params {
        unsigned depth;   /* operations in flight, at most */
        unsigned threads; /* posix */
        void *pool;
        uint64_t pool_bytes, piece_bytes;
        bool pool_has_data;
        const struct kio_pool *more_pools;
        unsigned n_more_pools;
        const int *lock_fds;
        unsigned n_lock_fds;
        int probe_fd;
        unsigned rung;   /* of the backend's ladder; 0 is the best */
        unsigned worker; /* its number, for names of threads */
        char *error;     /* 256 bytes: open() says here what was refused, and what to do about it */
};

/* Where the self-test reads to: where everything else will be read to, a place for each worker, as
 * they start side by side. NULL: the pool has none, or something that it must not change. */
static inline void *kio_probe_buffer(const struct kio_queue_params *params, uint64_t bytes)
{
        uint64_t at = params->worker * bytes;

        return params->pool && !params->pool_has_data && at + bytes <= params->pool_bytes
                       ? (char *)params->pool + at
                       : NULL;
}

/* So many adjacent requests, merged; each lies in its buffer and its tail.
 */
enum { KIO_PARTS_MAX = 32, KIO_PIECES_MAX = 2 * KIO_PARTS_MAX };

static inline struct kio_request *kio_request_of(const struct list_node *n)
{
        return container_of(n, struct kio_request, node);
}

/* Adds `left` bytes of the request's memory, from `from` on: its buffer's, then its tail's. Pieces
 * that lie side by side are one. */
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

/* What is left of a transfer, in memory: at most 1 GiB. To req->pieces, where they stay while it is
 * with the backend, or wherever as many have room. One with parts has made no progress. */
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
        int32_t result; /* bytes, or -errno */
};

struct kio_backend {
        const char *name;
        unsigned rungs; /* how many ladder steps open() knows */

        /* All on the worker's thread, but wake(), which any thread may call. */
        int (*open)(struct kio_queue **ret, const struct kio_queue_params *params);
        struct kio_queue *(*close)(struct kio_queue *q); /* waits for what is in flight */
        /* "SINGLE_ISSUER|DEFER_TASKRUN" */
        const char *(*describe)(const struct kio_queue *q);
        /* 0; -EOPNOTSUPP: no registered memory here; -ENOMEM: RLIMIT_MEMLOCK. */
        int (*register_piece)(struct kio_queue *q, unsigned piece);
        /* May be NULL: -EOPNOTSUPP. Registers memory as the buffer with this number, one of those
         * kept for regions; with base NULL unregisters that buffer. 0; as above; -ENOSPC: there is
         * no such number; -EFAULT: the memory is not mapped. */
        int (*set_buffer)(struct kio_queue *q, unsigned number, void *base, uint64_t bytes);

        /* Queues the rest of the request ([progress, length)). -EAGAIN: full, submit and reap
         * first. */
        int (*push)(struct kio_queue *q, struct kio_request *req);
        /* Tells the kernel; waits for one completion or a wake() if `wait`, at most `timeout_ns`
         * (0: for ever). A failure leaves everything pushed where it is: what the kernel has not
         * got goes with the next call. */
        int (*submit)(struct kio_queue *q, bool wait, uint64_t timeout_ns);
        /* Up to `max` finished ones. */
        unsigned (*reap)(struct kio_queue *q, struct kio_done *ret, unsigned max);
        void (*wake)(struct kio_queue *q);
        /* May be NULL. Is there something to reap? Cheap, and no system call: to be asked again and
         * again. */
        bool (*is_ready)(const struct kio_queue *q);
        /* May be NULL. So many of those in flight are at devices that hang: the others shall not
         * want for threads. */
        void (*relieve)(struct kio_queue *q, unsigned stuck);
};

extern const struct kio_backend kio_backend_uring; /* absent when built without liburing */
extern const struct kio_backend kio_backend_posix;

/* As kio_start(), with this backend and no ladder over backends. For tests: fault and sim. */
int kio_start_with(struct kio **ret, const struct kio_params *params,
                   const struct kio_backend *backend, char ret_error[static 256]);
