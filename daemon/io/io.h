/* SPDX-License-Identifier: Apache-2.0 */
/* Asynchronous work off the loop thread: disk reads, writes and syncs, copies and checksums.
 *
 * The loop thread fills in a struct kio_request, submits it with kio_submit() and gets it back
 * in kio_reap(), which calls complete(). Workers execute the requests: each is a thread with one
 * back-end queue, which is an io_uring or a pool of POSIX threads. Blocking calls run on one
 * more thread per volume that makes them. A request has one owner at a time, named by its state.
 * Requests are not ordered; to run one after another, submit it in complete(). */
#pragma once

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/stages.h"
#include "io/crc.h"
#include "io/request.h"
#include "io/transfers.h"

struct kio_params {
        const char *backend; /* "auto", "io_uring" or "posix" */
        unsigned workers;
        /* Most operations that one worker keeps in flight for gets, and likewise for puts and
         * background work together. Both kinds together may have an eighth more than this, so
         * that neither can take all places. With depth 1, the two kinds share one place. */
        unsigned depth;
        unsigned posix_threads; /* threads per worker of the POSIX back end, before any are added
                                 * because operations hang; 0: 8 */
        /* A volume hangs for a worker if one of that worker's operations on it takes longer than
         * this. Until all of these operations are answered, the worker's new requests for the
         * volume fail with -ETIMEDOUT, and the operations in flight do not count toward `depth`,
         * so that other volumes continue. 0: never. */
        uint64_t hang_ns;
        uint32_t spin_ns; /* longest time that a worker polls before it sleeps */
        /* Bytes of reads that one worker gets in a row before the worker with the fewest is
         * chosen again. Use a small value if every worker has a core, because each worker
         * computes the checksums of its reads. 0: a worker is filled to its depth, or with 32
         * MiB, before the next one is used. */
        uint64_t spread_bytes;
        bool huge_regions;    /* regions with kio_region.may_be_huge are moved to huge pages before
                               * they are registered */
        bool no_registration; /* no ring registers memory; I/O in pieces and regions goes
                                 unregistered */

        /* The memory pool. Each piece, [pool + i * piece_bytes, ...), becomes one registered
         * buffer when kio_register_piece() is called for it. */
        void *pool;
        uint64_t pool_bytes;
        uint64_t piece_bytes;
        bool pool_has_data; /* the pool contains data, so the self-test must not write to it */
        /* Additional pools, at most KIO_MORE_POOLS_MAX. Their pieces are numbered after those of
         * the pools before them. */
        const struct kio_pool *more_pools;
        unsigned n_more_pools;

        /* Descriptors that every ring registers, and so keeps open until its last I/O has ended. A
         * lock on them lasts as long as this process's I/O can (rules R3 and R17 in
         * SECURITY.md). */
        const int *lock_fds;
        unsigned n_lock_fds;

        /* The self-test reads 4 KiB at offset 0 of this file, into the pool if that has no data,
         * and with O_DIRECT if the file was opened with it. -1: no file. */
        int probe_fd;
        struct stages *stages; /* records the times of all operations while enabled; may be NULL */
};

/* The I/O configuration in use, for status, log and metrics. Text is static or owned by the kio. */
struct kio_info {
        const char *backend;    /* "io_uring", "posix" */
        const char *reason;     /* reason why the configuration that was tried before this one was
                                 * refused; "" if this one was tried first */
        const char *ring_flags; /* "SINGLE_ISSUER|DEFER_TASKRUN|...", "" for POSIX */
        bool registered; /* every ring has registered a piece of the pool, and no ring has refused
                            one */
        const char *registered_reason;  /* reason why `registered` is false; "" otherwise */
        int registration_error;         /* error of the first refused piece of the pool; 0: none */
        uint64_t registrations_refused; /* pieces of the pool that were refused */
        unsigned workers, depth;
};

/* Counters of all workers and blocking-call threads, summed when they are read. */
struct kio_stats {
        uint64_t ops[KIO_OP_END]; /* operations completed without error; a merged operation counts
                                     as one */
        uint64_t joined[KIO_OP_END]; /* requests that were merged into an adjacent request's
                                      * operation */
        uint64_t bytes[KIO_OP_END];
        uint64_t errors[KIO_OP_END]; /* failed operations; a failed merged operation adds one,
                                      * and each of its requests that fails adds another */
        uint64_t resubmitted;        /* operations submitted again after a short transfer or an
                                      * error that may pass */
        uint64_t wiped;              /* reads whose bytes were wiped, because they failed or had
                                      * a wrong checksum */
        uint64_t registered_ops;     /* submitted reads and writes that use a registered buffer */
        uint64_t inflight;           /* reads and writes in flight now, of all workers; a merged
                                      * operation counts as one */
        uint64_t inflight_time_ns;   /* integral of `inflight` over time; divide by busy_time_ns
                                      * for the mean depth */
        uint64_t busy_time_ns;       /* time with a read or write in flight, summed over the
                                      * workers */
        uint64_t queued; /* requests that no worker or blocking-call thread has begun yet */
        uint64_t wakeups;
        uint64_t spun_ns; /* time that workers have polled before they slept */
};

/* Starts the workers, and blocks until each has its queue or none can have one. "auto" falls
 * back to POSIX, and kio_get_info() reports the reason; "io_uring" fails instead. Returns 0, or
 * -errno and a text in `ret_error`, which may be NULL. */
int kio_start(struct kio **ret, const struct kio_params *params, char ret_error[static 256]);

/* Waits until everything submitted has finished, ends the threads and frees `io`, which may be
 * NULL. Does not call complete(); call kio_reap() until kio_pending() is 0 first. */
struct kio *kio_stop(struct kio *io);

/* Returns an eventfd that is readable when requests have finished. Level-triggered; kio_reap()
 * resets it. Borrowed. */
int kio_fd(const struct kio *io);

/* Calls complete() for finished requests, and returns their number. Completes a limited number at a
 * time; kio_fd() stays readable if more have finished. */
unsigned kio_reap(struct kio *io);

/* Flushes submitted requests, waits up to `ms` for a completion, and reaps. For a thread without
 * an event loop. */
static inline void kio_wait(struct kio *io, int ms)
{
        struct pollfd p = { .fd = kio_fd(io), .events = POLLIN };

        kio_flush(io);
        (void)poll(&p, 1, ms);
        kio_reap(io);
}
uint64_t kio_pending(const struct kio *io); /* requests submitted and not yet reaped */

/* Registers piece number `piece` of the pools with the ring of every worker, without populating it.
 * Calls `done` on the loop thread with 0 or the first error, such as -ENOMEM if RLIMIT_MEMLOCK is
 * too small; I/O in a refused piece goes unregistered. On the POSIX back end, and with
 * kio_params.no_registration, it succeeds without effect. Only one call may be pending. */
void kio_register_piece(struct kio *io, unsigned piece, void (*done)(void *userdata, int r),
                        void *userdata);

/* Registers a region with every ring, a piece at a time, so that no worker is blocked for as
 * much as a millisecond. Each piece is used as soon as it is registered. Any number of regions
 * may be in progress. Runs on the loop thread. */
void kio_region_register(struct kio *io, struct kio_region *region);
/* Unregisters a region. No request in flight may name it. If the region is still being
 * registered, that ends, and complete() is called once only. Afterwards no ring holds the
 * region's pages; before Linux 6.13, a ring may hold them until its operations in flight have
 * ended, and for up to one second more. */
void kio_region_unregister(struct kio *io, struct kio_region *region);

/* Fill in the configuration in use and the counters as of now. */
void kio_get_info(const struct kio *io, struct kio_info *ret);
void kio_get_stats(const struct kio *io, struct kio_stats *ret);
/* Returns the counters of transfers. Borrowed; loop thread only. */
const struct transfers *kio_transfers(const struct kio *io);
/* Adds every later transfer also to `window`, an array of TRANSFERS_SERIES elements by series,
 * which stays the caller's. NULL ends this. */
void kio_record_transfers(struct kio *io, struct transfer_counts *window);

/* Returns whether every thread has advanced since the last call, has nothing to do, or is inside
 * a device call. For the watchdog. */
bool kio_is_alive(struct kio *io);
/* Returns the ns for which the oldest operation of a volume has been at the device, or 0 if none
 * is. A CALL counts from when it begins to run; registrations of memory count for volume 0. Cheap
 * enough to call in every iteration of the loop. */
uint64_t kio_oldest(const struct kio *io, unsigned volume);
