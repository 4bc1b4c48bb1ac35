/* SPDX-License-Identifier: Apache-2.0 */
/* Asynchronous work off the loop thread: disk reads and writes, syncs, copies, checksums.
 *
 * The loop thread fills in a struct kio_request, submits it with kio_submit() and gets it back in
 * kio_reap(), which calls complete(). Behind that are workers, each one thread with one backend
 * queue (an io_uring, or the POSIX thread pool), and one blocking-call thread per volume that needs
 * it. A request has one owner at a time; its state names it. Requests are not ordered: what must
 * come after one is submitted by its complete(). */
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
        const char *backend; /* "auto", "io_uring", "posix" */
        unsigned workers;
        /* Operations in flight of one worker, at most: of gets so many, and of puts and background
         * together. The queue has room for an eighth more, so that neither kind ever finds it full
         * of the other; with depth 1 they share the one place. */
        unsigned depth;
        unsigned posix_threads; /* of one worker, when the backend is posix */
        /* An operation that takes longer makes its volume one that hangs: until it answers, new
         * requests for that volume fail with -ETIMEDOUT, and what stands there counts no more for
         * `depth`, so that the other volumes go on. It comes back when the device says so. 0: never
         */
        uint64_t hang_ns;
        uint32_t spin_ns; /* how long a worker polls before it sleeps, at most */
        /* Bytes of reads that a worker is given in a row, before the one that has the least is
         * given more: few where there are cores for all workers, as each compares what it has read.
         * 0: a worker has as many as its places, before another is given any. */
        uint64_t spread_bytes;

        /* One registered buffer a piece: [pool + i * piece_bytes, ...). Registered later, piece by
         * piece, by kio_register_piece(). */
        void *pool;
        uint64_t pool_bytes;
        uint64_t piece_bytes;
        bool pool_has_data; /* nothing is written to it but what is asked for */
        /* Further ones, at most KIO_MORE_POOLS_MAX, whose pieces are counted on from those before.
         */
        const struct kio_pool *more_pools;
        unsigned n_more_pools;

        /* Held open by each ring as registered files until the last of its I/O is over: a lock on
         * them lasts as long as this process's I/O can (rules R3, R17). */
        const int *lock_fds;
        unsigned n_lock_fds;

        /* The self-test reads 4 KiB of it at offset 0 into the pool, if that has no data, with
         * O_DIRECT if it was opened so. -1: none */
        int probe_fd;
        struct stages
                *stages; /* takes in the times of all operations, while it is on; may be NULL */
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
        uint64_t ops[KIO_OP_END];    /* completed without error; merged requests count as one */
        uint64_t joined[KIO_OP_END]; /* requests merged into an adjacent one's operation */
        uint64_t bytes[KIO_OP_END];
        uint64_t errors[KIO_OP_END]; /* failed; a merged one counts as one, and then each part */
        uint64_t resubmitted;        /* short transfers and retries */
        uint64_t wiped;              /* reads that failed, or their check, whose bytes were wiped */
        uint64_t registered_ops;     /* reads and writes that used a registered buffer */
        uint64_t inflight;           /* now, reads and writes, all workers */
        uint64_t inflight_time_ns; /* integral of inflight over time: / busy_time_ns = mean depth */
        uint64_t busy_time_ns;     /* time with at least one read or write in flight, summed over
                                      workers */
        uint64_t queued;           /* now, requests not yet given to a ring */
        uint64_t wakeups;
        uint64_t spun_ns; /* time that workers have polled before they slept */
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

/* Calls complete() for all that is done. Returns how many. */
unsigned kio_reap(struct kio *io);

/* For a thread without an event loop: hands over what was submitted, waits for a completion for
 * `ms` at most, and reaps. */
static inline void kio_wait(struct kio *io, int ms)
{
        struct pollfd p = { .fd = kio_fd(io), .events = POLLIN };

        kio_flush(io);
        (void)poll(&p, 1, ms);
        kio_reap(io);
}
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
/* Loop thread. Borrowed. */
const struct transfers *kio_transfers(const struct kio *io);
/* From now on, what completes is also added to `window`, TRANSFERS_SERIES of them, by series; the
 * caller's. NULL: no more. */
void kio_record_transfers(struct kio *io, struct transfer_counts *window);

/* Has every worker either advanced since the last call, or nothing to do, or is inside a device
 * call? For the watchdog. */
bool kio_is_alive(struct kio *io);
/* How long the oldest operation of a volume has stood at the device, in ns; 0: none does. A CALL
 * stands there from when it begins to run. Cheap: the loop may ask every iteration, a timer of a
 * second will do. */
uint64_t kio_oldest(const struct kio *io, unsigned volume);
