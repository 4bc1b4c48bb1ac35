/* SPDX-License-Identifier: Apache-2.0 */
/* RAW with io_uring: one ring per client, created in the client's own thread.
 *
 * Features that the kernel refuses are left out, one after the other: flags of the ring, then
 * registered memory (which counts against RLIMIT_MEMLOCK). A write takes any free slot; a read goes
 * to the slot of its block in the window. After a failed I/O, a failed submission or an interrupt,
 * all completions are reaped before anything is freed, because the kernel still uses the memory of
 * I/O in flight. If waiting for I/O fails, I/O in flight is not reaped. */
#include "build-config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "checked.h"
#include "raw.h"

#if HAVE_LIBURING
#include <liburing.h>

struct on_way {
        uint64_t block, slot;
        uint64_t at[4];
};

struct ring {
        struct io_uring uring;
        bool fixed_memory, fixed_file;
        struct on_way *on_way; /* I/Os in flight: an array of `depth` entries */
        uint32_t *idle;
        uint64_t n_idle;
        uint64_t *free_slots; /* slots without a write in flight; unused by reads */
        uint64_t n_free;
};

static int ring_setup(struct io_uring *uring, unsigned entries)
{
        static const unsigned ladder[] = {
#if defined(IORING_SETUP_SINGLE_ISSUER) && defined(IORING_SETUP_DEFER_TASKRUN)
                IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
#endif
                0,
        };
        int r = -EINVAL;

        for (unsigned i = 0; r == -EINVAL && i < ARRAY_SIZE(ladder); i++)
                r = io_uring_queue_init(entries, uring, ladder[i]);
        return r;
}

int raw_uring_probe(char *ret_why, size_t room)
{
        struct io_uring uring;
        int r = ring_setup(&uring, 4);

        if (r >= 0) {
                io_uring_queue_exit(&uring);
                return 0;
        }
        snprintf(ret_why, room, "the kernel refuses io_uring: %s%s", strerror(-r),
                 r == -EPERM ? " (kernel.io_uring_disabled, or a seccomp filter)" : "");
        return r;
}

int raw_uring_new(struct raw_client *c)
{
        struct ring *ring = calloc(1, sizeof(*ring));
        struct iovec whole = { .iov_base = c->slots, .iov_len = c->n_slots * c->raw->stride };
        int r;

        if (!ring)
                return profile_fail(c->profile, "out of memory");
        r = ring_setup(&ring->uring, (unsigned)c->depth);
        if (r < 0) {
                free(ring);
                return profile_fail(c->profile, "the kernel refuses io_uring: %s", strerror(-r));
        }
        c->ring = ring;
        ring->fixed_memory = io_uring_register_buffers(&ring->uring, &whole, 1) == 0;
        ring->fixed_file = io_uring_register_files(&ring->uring, &c->raw->fd, 1) == 0;
        ring->on_way = calloc(c->depth, sizeof(*ring->on_way));
        ring->idle = calloc(c->depth, sizeof(*ring->idle));
        ring->free_slots = calloc(c->n_slots, sizeof(*ring->free_slots));
        if (!ring->on_way || !ring->idle || !ring->free_slots)
                return profile_fail(c->profile, "out of memory");
        for (uint64_t i = 0; i < c->depth; i++)
                ring->idle[ring->n_idle++] = (uint32_t)i;
        for (uint64_t i = 0; i < c->n_slots; i++)
                ring->free_slots[ring->n_free++] = i;
        return 0;
}

void raw_uring_free(struct raw_client *c)
{
        struct ring *ring = c->ring;

        io_uring_queue_exit(&ring->uring);
        free(ring->on_way);
        free(ring->idle);
        free(ring->free_slots);
        free(ring);
        c->ring = NULL;
}

static void ring_prepare(struct raw_client *c, const struct profile_work *work, uint64_t block,
                         uint64_t slot)
{
        struct ring *ring = c->ring;
        struct raw *raw = c->raw;
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->uring);
        uint32_t number = ring->idle[--ring->n_idle];
        struct on_way *w = &ring->on_way[number];
        int fd = ring->fixed_file ? 0 : raw->fd;
        unsigned bytes = (unsigned)raw->stride;
        uint64_t offset = raw_offset(raw, block, c->profile->job->n_blocks);
        uint8_t *data;

        if (work->write)
                slot = ring->free_slots[--ring->n_free];
        data = c->slots + slot * raw->stride;
        *w = (struct on_way){ .block = block, .slot = slot, .at = { profile_now_ns() } };
        if (work->write)
                content_stamp(&c->profile->content, data, block, work->generation);
        if (work->write && ring->fixed_memory)
                io_uring_prep_write_fixed(sqe, fd, data, bytes, offset, 0);
        else if (work->write)
                io_uring_prep_write(sqe, fd, data, bytes, offset);
        else if (ring->fixed_memory)
                io_uring_prep_read_fixed(sqe, fd, data, bytes, offset, 0);
        else
                io_uring_prep_read(sqe, fd, data, bytes, offset);
        if (ring->fixed_file)
                io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
        io_uring_sqe_set_data64(sqe, number);
        w->at[1] = profile_now_ns();
}

/* Reaps the completions that have arrived, without waiting, and subtracts their number from
 * `*on_way`. `drop`: the job has failed, and results are ignored. Returns 0, or -ECANCELED after
 * profile_fail() for the first I/O that failed. */
static int ring_reap(struct raw_client *c, const struct profile_work *work, bool drop,
                     uint64_t *on_way)
{
        struct ring *ring = c->ring;
        struct io_uring_cqe *cqe;
        uint64_t now = profile_now_ns();
        unsigned head, n = 0;
        int r = 0;

        io_uring_for_each_cqe(&ring->uring, head, cqe)
        {
                uint32_t number = (uint32_t)io_uring_cqe_get_data64(cqe);
                struct on_way *w = &ring->on_way[number];

                n++;
                w->at[3] = now;
                if (r == 0 && !drop)
                        r = raw_check_io(c, w->block, work->write, cqe->res);
                if (r == 0 && !drop)
                        profile_count(work->tally, 1, c->profile->job->io_size, w->at);
                if (work->write)
                        ring->free_slots[ring->n_free++] = w->slot;
                ring->idle[ring->n_idle++] = number;
        }
        io_uring_cq_advance(&ring->uring, n);
        *on_way -= n;
        if (!drop)
                atomic_fetch_add_explicit(&c->profile->done_blocks, n, memory_order_relaxed);
        return r;
}

int raw_uring_move(struct raw_client *c, const struct profile_work *work)
{
        struct ring *ring = c->ring;
        uint32_t fresh[PROFILE_MAX_DEPTH];
        uint64_t on_way = 0; /* I/Os in the ring, whether or not the kernel has taken them */
        size_t piece = 0;
        uint32_t within = 0;
        int r = 0;

        while (on_way > io_uring_sq_ready(&ring->uring) ||
               (r == 0 && (on_way > 0 || piece < work->n_pieces))) {
                unsigned n = 0;
                uint64_t posting;

                while (r == 0 && piece < work->n_pieces && ring->n_idle > 0 &&
                       n < ARRAY_SIZE(fresh) && (!work->write || ring->n_free > 0)) {
                        const struct profile_piece *p = &work->pieces[piece];

                        fresh[n++] = ring->idle[ring->n_idle - 1];
                        ring_prepare(c, work, p->first + within, p->at + within);
                        if (++within == p->count) {
                                within = 0;
                                piece++;
                        }
                }
                on_way += n;
                posting = profile_now_ns();
                /* The kernel may have left a part of an earlier submission in the ring. */
                if (r == 0 && io_uring_sq_ready(&ring->uring) > 0) {
                        int submitted = io_uring_submit(&ring->uring);
                        uint64_t now = profile_now_ns(), each = n > 0 ? (now - posting) / n : 0;

                        if (submitted < 0)
                                r = profile_fail(c->profile,
                                                 "submitting I/O to io_uring failed: %s",
                                                 strerror(-submitted));
                        for (unsigned i = 0; i < n; i++)
                                ring->on_way[fresh[i]].at[2] = ring->on_way[fresh[i]].at[1] + each;
                        if (submitted < 0)
                                continue;
                }
                struct io_uring_cqe *cqe;
                int waited = io_uring_wait_cqe(&ring->uring, &cqe);

                if (waited < 0 && waited != -EINTR && waited != -EAGAIN) {
                        r = profile_fail(c->profile, "waiting for I/O of io_uring failed: %s",
                                         strerror(-waited));
                        break;
                }
                int reaped = ring_reap(c, work, r < 0, &on_way);

                if (r == 0)
                        r = reaped;
                if (r == 0 && profile_should_stop(c->profile))
                        r = -ECANCELED;
        }
        return r;
}

#else /* HAVE_LIBURING */

int raw_uring_probe(char *ret_why, size_t room)
{
        snprintf(ret_why, room, "this build has no io_uring");
        return -ENOSYS;
}

int raw_uring_new(struct raw_client *c)
{
        return profile_fail(c->profile, "this build has no io_uring");
}

void raw_uring_free(struct raw_client *c)
{
}

int raw_uring_move(struct raw_client *c, const struct profile_work *work)
{
        return -ENOSYS;
}

#endif
