/* SPDX-License-Identifier: Apache-2.0 */
/* Asynchronous work off the loop thread: disk reads and writes, syncs, copies, checksums.
 *
 * The loop thread fills in a struct kio_request, hands it over with kio_submit() and gets it back
 * in kio_reap(), which calls complete(). Behind that are workers: one thread, one backend queue (an
 * io_uring, or the POSIX thread pool) each; and a thread for calls, one a path that has any. A
 * request has one owner at a time; its state names it. No request waits for another: what must come
 * after one is submitted by its complete().
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
 *          they came to lie there* into `crc`; in slices of at most 256 KiB between looks at the
 *          queue. src may be memory that a client shares and changes meanwhile, and (guard_src)
 *          that may vanish: then the result is -EFAULT. guard_src covers `buf` as well, and of a
 *          READ the checksum and what is copied out of its tail. Without `buf` nothing is copied,
 *          and counted as moved: the checksum is that of `src` as it lies there. But what `length`
 *          has beyond whole 4 KiB blocks is copied to `tail`, if there is one, with zeros up to
 *          4 KiB, and the checksum is taken over it *there*: what a WRITE with this tail needs.
 *   CALL   runs `call(req)` on its path's thread for calls and takes what it returns as the
 *          result: for what has no asynchronous form here (fallocate, openat, populating memory).
 *          One call of a path at a time, so that each holds up the others for as long as it takes;
 *          never a worker, whatever the affinity.
 * Reads, or writes, of neighbouring places in a file that wait together at one worker may go to the
 * device as one; if that fails or is short each goes by itself.
 * Results are compared with the length asked for; a short transfer is resubmitted for its aligned
 * rest, -EINTR and -EAGAIN are retried a bounded number of times. Memory that is not there (any
 * more) when the device wants it makes -EFAULT, also where guard_src is not set. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/list.h"

enum kio_op { KIO_READ, KIO_WRITE, KIO_SYNC, KIO_COPY, KIO_CALL, KIO_OP_END };

/* Gets go before puts, but one submission in eight is a put; background work goes when both are
 * idle, and one submission in 64. */
enum kio_class { KIO_CLASS_GET, KIO_CLASS_PUT, KIO_CLASS_BACKGROUND, KIO_CLASS_END };

/* Requests name what they depend on, so that one device that hangs can be told from the others: a
 * number below KIO_PATHS_MAX, given out by whoever submits. 0: no device, or any. */
enum { KIO_PATHS_MAX = 32 };

enum kio_state {
        KIO_IDLE,   /* loop: free for use */
        KIO_QUEUED, /* worker: the loop may not even read it */
        KIO_DONE,   /* loop: result is set, complete() runs, back to IDLE before it is called */
};

/* Bytes of neighbours that go as one, at most. */
enum { KIO_JOINED_MAX = 512 * 1024 };

struct kio_region;

struct kio_request {
        struct list_node node;
        enum kio_state state;
        enum kio_op op;
        enum kio_class class;
        unsigned path;

        int fd;
        uint64_t offset;
        void *buf;
        uint64_t length;
        uint64_t crc_bytes;
        /* READ, WRITE: buf lies in it; COPY: src or buf does. NULL: in the pool, or anywhere. */
        struct kio_region *region;
        void *tail; /* READ, WRITE, COPY: 4 KiB, so aligned, the caller's; NULL: none */
        const void *src;
        /* COPY: in place of `src`, or with a `src` in place of `buf`: at least `length` bytes in
         * all, taken or filled in this order. */
        const struct iovec *vector;
        bool guard_src;
        bool wipe; /* READ */
        uint32_t want_crc;
        int (*call)(struct kio_request *req);

        int64_t result; /* 0, or -errno. Never a byte count: all or failure */
        uint32_t crc;
        uint64_t submitted_ns, done_ns; /* CLOCK_MONOTONIC */

        void (*complete)(struct kio_request *req); /* on the loop thread */

        /* worker's own */
        uint64_t body; /* so many bytes are buf's, the rest is the tail's */
        uint64_t progress;
        uint64_t vector_done;    /* of its first element; `vector` goes on with the copy */
        uint64_t device_ns;      /* when the device got it last */
        struct list_node *parts; /* the requests that this one is made up of; NULL: none */
        struct iovec *pieces;    /* of what was pushed last: own_pieces, or the parts' */
        struct iovec own_pieces[2];
        uint32_t attempts; /* in a row without progress */
        int32_t failure;   /* of a read, while what it brought is wiped */
        bool wiping;
        uint32_t registered; /* did the last transfer use a registered buffer? */
        bool stuck;          /* is it at a device that hangs? */
        bool along;          /* did it go along in the operation of another, its neighbour? */
};

struct kio;

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
        void *base;     /* in: a shared mapping, aligned to its pages */
        uint64_t bytes; /* in: of it, whole pages */
        unsigned path;  /* in: as of a request; of the thread for calls that maps its pages */
        /* In. Loop thread, from kio_reap(): of register, and of unregister. */
        void (*complete)(struct kio_region *region);
        /* Of register: 0: every ring has all of it; else why some I/O there goes unregistered,
         * which works as well, only slower: -ENOMEM (RLIMIT_MEMLOCK), -EOPNOTSUPP (the backend has
         * no such thing), -ENOSPC (no more buffers), -EFAULT (the memory is not there). Of
         * unregister: 0; -errno: a ring would not let go of all of it. */
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

struct kio_params {
        const char *backend; /* "auto", "io_uring", "posix" */
        unsigned workers;
        /* Operations in flight of one worker, at most: of gets so many, and of puts and background
         * together. The queue has room for an eighth more, so that neither kind ever finds it full
         * of the other; with depth 1 they share the one place. */
        unsigned depth;
        unsigned posix_threads; /* of one worker, when the backend is posix */
        /* An operation that takes longer makes its path one that hangs: until it answers, new
         * requests for that path fail with -ETIMEDOUT, and what stands there counts no more for
         * `depth`, so that the other paths go on. It comes back when the device says so. 0: never
         */
        uint64_t hang_ns;

        /* One registered buffer a piece: [pool + i * piece_bytes, ...). Registered later, piece by
         * piece, by kio_register_piece(). */
        void *pool;
        uint64_t pool_bytes;
        uint64_t piece_bytes;
        /* Further ones, at most KIO_MORE_POOLS_MAX, whose pieces are counted on from those before.
         */
        const struct kio_pool *more_pools;
        unsigned n_more_pools;

        /* Held open by each ring as registered files until the last of its I/O is over: a lock on
         * them lasts as long as this process's I/O can (rules R3, R17). */
        const int *lock_fds;
        unsigned n_lock_fds;

        /* The self-test reads 4 KiB of it at offset 0 into the pool, with O_DIRECT if it was opened
         * so. -1: none */
        int probe_fd;
};

/* What it runs on, for status, log and metrics. Text is static or owned by the kio. */
struct kio_info {
        const char *backend;    /* "io_uring", "posix" */
        const char *reason;     /* why not the better one; "" if nothing was given up */
        const char *ring_flags; /* "SINGLE_ISSUER|DEFER_TASKRUN|...", "" for posix */
        bool registered; /* does I/O use registered buffers, for what has been registered so far? */
        const char *registered_reason; /* why not; "" */
        int registration_error; /* of the first piece of the pool that was refused; 0: none */
        uint64_t registrations_refused; /* pieces of the pool */
        unsigned workers, depth;
};

/* Counted where it happens, by workers; summed on read. */
struct kio_stats {
        uint64_t ops[KIO_OP_END];    /* completed without error; of neighbours in one, one */
        uint64_t joined[KIO_OP_END]; /* requests that went along in a neighbour's operation */
        uint64_t bytes[KIO_OP_END];
        uint64_t errors[KIO_OP_END]; /* failed; of neighbours in one, one, and then each */
        uint64_t resubmitted;        /* short transfers and retries */
        uint64_t wiped;              /* reads that failed, or their check, whose bytes were wiped */
        uint64_t registered_ops;     /* reads and writes that used a registered buffer */
        uint64_t inflight;           /* now, reads and writes, all workers */
        uint64_t inflight_time_ns; /* integral of inflight over time: / busy_time_ns = mean depth */
        uint64_t busy_time_ns;     /* time with at least one read or write in flight, summed over
                                      workers */
        uint64_t queued;           /* now, requests not yet given to a ring */
        uint64_t wakeups;
};

/* Starts the workers. Blocks until each has its queue or none can be had. "auto" falls back to
 * POSIX, and kio_get_info() says why; "io_uring" fails instead. `ret_error` (may be NULL) gets a
 * text that outlives the call, on failure. 0, -errno. */
int kio_start(struct kio **ret, const struct kio_params *params, char ret_error[static 256]);

/* Waits until everything submitted is done, without calling complete() for what is not reaped, ends
 * the workers, frees. NULL is fine. Call kio_reap() until kio_pending() is 0 before it. */
struct kio *kio_stop(struct kio *io);

/* Readable when kio_reap() has something to do. Level: kio_reap() drains it. Borrowed. */
int kio_fd(const struct kio *io);

/* Loop thread. The request must stay where it is until complete(). Never fails: an unusable worker
 * completes it with an error. `affinity`: requests with the same value go to the same worker. */
void kio_submit(struct kio *io, struct kio_request *req, unsigned affinity);

/* Submits wake-ups once for all kio_submit() since the last: call at the end of a loop turn. */
void kio_flush(struct kio *io);

/* Calls complete() for all that is done. Returns how many. */
unsigned kio_reap(struct kio *io);
uint64_t kio_pending(const struct kio *io); /* submitted, not yet reaped */

/* Every worker populates nothing, but registers this piece with its ring; `done` runs on the loop
 * thread with 0 or the first error (-ENOMEM: RLIMIT_MEMLOCK), after which I/O in that piece goes
 * unregistered. A no-op that succeeds on posix. One at a time. */
void kio_register_piece(struct kio *io, unsigned piece, void (*done)(void *userdata, int r),
                        void *userdata);

/* Loop thread. Piece by piece, never more than a worker can do in well under a millisecond at a
 * time; what is registered is used at once. Any number of regions may be at it. */
void kio_region_register(struct kio *io, struct kio_region *region);
/* No request that names it may be in flight. Also while it is being registered: that goes no
 * further, and complete() comes once, for this. After it no ring holds the region's pages (before
 * Linux 6.13: once what was in flight at the ring is over, and a second later at most). */
void kio_region_unregister(struct kio *io, struct kio_region *region);

void kio_get_info(const struct kio *io, struct kio_info *ret);
void kio_get_stats(const struct kio *io, struct kio_stats *ret);

/* Has every worker either advanced since the last call, or nothing to do, or is inside a device
 * call? For the watchdog. */
bool kio_is_alive(struct kio *io);
/* How long the oldest operation has stood at the device, in ns; 0: none does. A CALL stands there
 * from when it begins to run. Of one path, or of all. Cheap: the loop may ask every turn, a timer
 * of a second will do. */
uint64_t kio_oldest(const struct kio *io, unsigned path);
uint64_t kio_oldest_ns(const struct kio *io);

/* CRC32C (Castagnoli, reflected, initial and final inversion, as iSCSI), for what is small enough
 * to be done in place. */
uint32_t kio_crc32c(const void *data, size_t bytes);
uint32_t kio_crc32c_extend(uint32_t crc, const void *data, size_t bytes);
/* Copies, then extends `crc` by what came to lie at `to`: piece by piece, each still in the cache.
 */
uint32_t kio_copy_crc32c(uint32_t crc, void *to, const void *from, size_t bytes);
