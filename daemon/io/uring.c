/* SPDX-License-Identifier: Apache-2.0 */
/* The io_uring back end: one ring, which one worker's thread creates, uses and closes.
 *
 * It owns the ring and everything registered with it. The buffer table has one entry per piece
 * of the pool, filled as the pool is populated, followed by those of client regions, whose
 * numbers buffers.c assigns. The registered files are the locks, which stay held until the
 * kernel has finished the ring's last I/O, even if this process is killed. A read of an eventfd
 * is pending while the worker waits, so that another thread's wake() is a completion like any
 * other.
 *
 * open() tests the ring before it succeeds: a read of the probe file into the pool and one wake-up
 * must complete. If the kernel can restrict a ring, only the operations that uring_restrict() lists
 * and updates of the buffer table remain possible.
 *
 * Thread sanitizers need no annotation here: the thread that pushes is the thread that reaps,
 * and the kernel's writes in between are invisible to them.
 *
 * Failures: open() describes the kernel's refusal, and the next feature level asks for less.
 * Without a buffer table, or with a piece that cannot be registered, transfers go unregistered,
 * which is only slower. */
#include "io/backend.h"

#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#include "checked.h"
#include "cleanup.h"
#include "io/buffers.h"

enum { URING_BUFFERS_MAX = 16384, URING_PROBE_BYTES = 4096 };

/* Feature levels, from the best for a thread that submits and reaps in batches to the one of the
 * oldest usable kernel. */
static const struct rung {
        unsigned flags;
        bool restricted;
} rungs[] = {
        { IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG |
                  IORING_SETUP_SUBMIT_ALL,
          true },
        { IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG |
                  IORING_SETUP_SUBMIT_ALL,
          false },
        { IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG |
                  IORING_SETUP_SUBMIT_ALL,
          true },
        { IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL, true },
        { IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL, false },
        { 0, true },
        { 0, false },
};

struct uring_queue {
        struct kio_queue base;
        struct io_uring ring;
        bool has_ring;
        unsigned depth, in_flight;

        int wake_fd;
        bool wake_armed;
        int wake_result;
        uint64_t wake_value;

        struct kio_pool pools[1 + KIO_MORE_POOLS_MAX];
        unsigned n_pools;
        unsigned n_pieces; /* pieces of all pools, each with an entry in the table; 0: pieces have
                              no entries */
        unsigned n_region_buffers; /* entries for client regions, after those for pieces of pools;
                                      0: there is no table */
        bool *registered;
        unsigned worker;

        char description[128];
};

/* User data of completions that belong to the ring itself and not to a request. */
static char uring_wake_tag, uring_probe_tag;

static struct uring_queue *uring_of(struct kio_queue *q)
{
        return container_of(q, struct uring_queue, base);
}

static const char *uring_hint(int error)
{
        switch (error) {
        case EPERM:
        case EACCES:
                return "io_uring is refused (kernel.io_uring_disabled or a seccomp filter)";
        case ENOSYS:
                return "the kernel has no io_uring";
        case ENOMEM:
                return "no memory for the ring (RLIMIT_MEMLOCK too small?)";
        case EMFILE:
        case ENFILE:
                return "too many open files (RLIMIT_NOFILE too small?)";
        }
        return NULL;
}

static int uring_refused(const struct kio_queue_params *params, const char *what, int error)
{
        const char *hint = uring_hint(error);

        if (params->error)
                snprintf(params->error, 256, "%s: %s%s%s%s", what, hint ? hint : "",
                         hint ? " (" : "", strerror(error), hint ? ")" : "");
        return -error;
}

static void uring_describe_flags(struct uring_queue *q, const struct rung *rung)
{
        static const struct {
                unsigned flag;
                const char *name;
        } names[] = {
                { IORING_SETUP_SINGLE_ISSUER, "SINGLE_ISSUER" },
                { IORING_SETUP_DEFER_TASKRUN, "DEFER_TASKRUN" },
                { IORING_SETUP_COOP_TASKRUN, "COOP_TASKRUN" },
                { IORING_SETUP_TASKRUN_FLAG, "TASKRUN_FLAG" },
                { IORING_SETUP_SUBMIT_ALL, "SUBMIT_ALL" },
        };
        FILE *f = fmemopen(q->description, sizeof(q->description), "w");
        const char *separator = "";

        if (!f)
                return;
        for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
                if (!(rung->flags & names[i].flag))
                        continue;
                fprintf(f, "%s%s", separator, names[i].name);
                separator = "|";
        }
        if (rung->restricted)
                fprintf(f, "%sRESTRICTED", separator);
        fclose(f);
}

static int uring_restrict(struct uring_queue *q)
{
        struct io_uring_restriction allowed[] = {
                { .opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_READ },
                { .opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_WRITE },
                { .opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_READ_FIXED },
                { .opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_WRITE_FIXED },
                { .opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_READV },
                { .opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_WRITEV },
                { .opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_FSYNC },
                { .opcode = IORING_RESTRICTION_REGISTER_OP,
                  .register_op = IORING_REGISTER_BUFFERS_UPDATE },
                { .opcode = IORING_RESTRICTION_REGISTER_OP,
                  .register_op = IORING_UNREGISTER_RING_FDS },
        };

        /* Use the raw system call: liburing 2.3 declares io_uring_register_restrictions() and
         * io_uring_enable_rings(), but its shared library does not export them. */
        return io_uring_register(q->ring.ring_fd, IORING_REGISTER_RESTRICTIONS, allowed,
                                 ARRAY_SIZE(allowed));
}

static uint64_t uring_pieces(const struct kio_pool *pool)
{
        return (pool->bytes - 1) / pool->piece_bytes + 1;
}

/* Creates the table of registered buffers, which costs nothing while it is empty. Without a
 * table, all I/O works unregistered. */
static void uring_make_table(struct uring_queue *q, const struct kio_queue_params *params)
{
        uint64_t n = 0, n_more;

        for (unsigned i = 0; i < q->n_pools; i++) {
                if (!q->pools[i].base || q->pools[i].bytes == 0 || q->pools[i].piece_bytes == 0) {
                        n = 0;
                        break;
                }
                n += uring_pieces(&q->pools[i]);
        }
        if (n > URING_BUFFERS_MAX)
                n = 0;
        n_more = MIN((uint64_t)REGIONS_BUFFERS, URING_BUFFERS_MAX - n);
        q->registered = calloc(n + 1, sizeof(*q->registered));
        if (!q->registered ||
            io_uring_register_buffers_sparse(&q->ring, (unsigned)(n + n_more)) < 0)
                return;
        q->n_pieces = (unsigned)n;
        q->n_region_buffers = (unsigned)n_more;
}

static struct io_uring_sqe *uring_get_sqe(struct uring_queue *q)
{
        struct io_uring_sqe *sqe = io_uring_get_sqe(&q->ring);

        /* There is an entry, because the ring has room for every operation in flight and for the
         * wake-up. */
        assert(sqe);
        return sqe;
}

static void uring_arm_wake(struct uring_queue *q)
{
        struct io_uring_sqe *sqe;

        if (q->wake_armed)
                return;
        sqe = uring_get_sqe(q);
        io_uring_prep_read(sqe, q->wake_fd, &q->wake_value, sizeof(q->wake_value), 0);
        io_uring_sqe_set_data(sqe, &uring_wake_tag);
        q->wake_armed = true;
}

static void uring_wake(struct kio_queue *base)
{
        eventfd_write(uring_of(base)->wake_fd, 1);
}

/* Reaps finished operations and handles wake-ups; returns only the number of operations. */
static unsigned uring_reap(struct kio_queue *base, struct kio_done *ret, unsigned max)
{
        struct uring_queue *q = uring_of(base);
        struct io_uring_cqe *cqes[64];
        unsigned n, n_ret = 0;

        while (n_ret < max) {
                n = io_uring_peek_batch_cqe(&q->ring, cqes,
                                            MIN((unsigned)ARRAY_SIZE(cqes), max - n_ret));
                if (n == 0)
                        break;
                for (unsigned i = 0; i < n; i++) {
                        void *data = io_uring_cqe_get_data(cqes[i]);

                        if (data == &uring_wake_tag) {
                                q->wake_armed = false;
                                q->wake_result = cqes[i]->res;
                                continue;
                        }
                        ret[n_ret++] = (struct kio_done){ .req = data, .result = cqes[i]->res };
                        q->in_flight--;
                }
                io_uring_cq_advance(&q->ring, n);
        }
        return n_ret;
}

/* Returns whether a completion can be reaped. Completions that the kernel has deferred to this
 * thread count as ready, because reaping makes the kernel deliver them. */
static bool uring_is_ready(const struct kio_queue *base)
{
        const struct uring_queue *q = container_of(base, const struct uring_queue, base);

        return io_uring_cq_ready(&q->ring) > 0 || (IO_URING_READ_ONCE(*q->ring.sq.kflags) &
                                                   (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW));
}

static int uring_submit(struct kio_queue *base, bool wait, uint64_t timeout_ns)
{
        struct uring_queue *q = uring_of(base);
        int r;

        if (!wait) {
                /* Without anything to submit, the system call is unnecessary. */
                if (io_uring_sq_ready(&q->ring) == 0)
                        return 0;
                r = io_uring_submit_and_get_events(&q->ring);
        } else {
                uring_arm_wake(q);
                if (timeout_ns > 0) {
                        struct __kernel_timespec t = {
                                .tv_sec = (int64_t)(timeout_ns / 1000000000u),
                                .tv_nsec = (int64_t)(timeout_ns % 1000000000u),
                        };
                        struct io_uring_cqe *cqe;

                        r = io_uring_submit_and_wait_timeout(&q->ring, &cqe, 1, &t, NULL);
                } else
                        r = io_uring_submit_and_wait(&q->ring, 1);
        }
        if (r == -ETIME || r == -EINTR)
                return 0;
        return r < 0 ? r : 0;
}

/* Tests the ring: reads the probe file and wakes itself up. Returns 0, or -errno and a text. */
static int uring_prove(struct uring_queue *q, const struct kio_queue_params *params)
{
        static _Alignas(URING_PROBE_BYTES) char scratch[URING_PROBE_BYTES];
        struct kio_done done;
        bool probing = params->probe_fd >= 0;
        int r;

        if (probing) {
                void *buf = kio_probe_buffer(params, URING_PROBE_BYTES);
                struct io_uring_sqe *sqe = uring_get_sqe(q);

                io_uring_prep_read(sqe, params->probe_fd, buf ? buf : scratch, URING_PROBE_BYTES,
                                   0);
                io_uring_sqe_set_data(sqe, &uring_probe_tag);
                q->in_flight++;
        }
        uring_arm_wake(q);
        uring_wake(&q->base);
        while (probing || q->wake_armed) {
                /* uring_submit() would arm a second wake-up after the first has completed. */
                r = io_uring_submit_and_wait(&q->ring, 1);
                if (r < 0 && r != -EINTR)
                        return uring_refused(params, "io_uring_enter", -r);
                if (uring_reap(&q->base, &done, 1) == 0)
                        continue;
                probing = false;
                if (done.result < 0)
                        return uring_refused(params, "the self-test's read through io_uring",
                                             -done.result);
        }
        if (q->wake_result < 0)
                return uring_refused(params, "the self-test's wake-up through io_uring",
                                     -q->wake_result);
        return 0;
}

static struct kio_queue *uring_close(struct kio_queue *base)
{
        struct uring_queue *q;
        struct kio_done done[16];
        int r = 0;

        if (!base)
                return NULL;
        q = uring_of(base);
        if (q->has_ring) {
                if (q->wake_armed)
                        uring_wake(base);
                /* A ring that cannot be entered has no operation in flight. */
                while ((q->in_flight > 0 || q->wake_armed) &&
                       (r >= 0 || r == -EINTR || r == -EAGAIN || r == -EBUSY))
                        if (uring_reap(base, done, ARRAY_SIZE(done)) == 0 &&
                            (q->in_flight > 0 || q->wake_armed))
                                r = io_uring_submit_and_wait(&q->ring, 1);
                io_uring_queue_exit(&q->ring);
        }
        closep(&q->wake_fd);
        free(q->registered);
        free(q);
        return NULL;
}
DEFINE_CLEANUP(struct kio_queue *, uring_close);

static int uring_open(struct kio_queue **ret, const struct kio_queue_params *params)
{
        const struct rung *rung;
        struct io_uring_params p = { 0 };
        struct uring_queue *q;
        _cleanup_(uring_closep) struct kio_queue *base = NULL;
        int r;

        if (params->rung >= ARRAY_SIZE(rungs))
                return -EINVAL;
        rung = &rungs[params->rung];
        q = calloc(1, sizeof(*q));
        if (!q)
                return uring_refused(params, "io_uring", ENOMEM);
        q->base.ops = &kio_backend_uring;
        q->wake_fd = -1;
        q->depth = params->depth;
        q->worker = params->worker;
        q->pools[q->n_pools++] = (struct kio_pool){ .base = params->pool,
                                                    .bytes = params->pool_bytes,
                                                    .piece_bytes = params->piece_bytes };
        for (unsigned i = 0; i < params->n_more_pools; i++)
                q->pools[q->n_pools++] = params->more_pools[i];
        base = &q->base;

        /* The eventfd must block: io_uring waits for a blocking descriptor, but a non-blocking
         * one would return EAGAIN. */
        q->wake_fd = eventfd(0, EFD_CLOEXEC);
        if (q->wake_fd < 0)
                return uring_refused(params, "eventfd", errno);

        p.flags = rung->flags | (rung->restricted ? IORING_SETUP_R_DISABLED : 0);
        r = io_uring_queue_init_params(params->depth + 1, &q->ring, &p);
        if (r < 0)
                return uring_refused(params, "io_uring_setup", -r);
        q->has_ring = true;
        if (!(p.features & IORING_FEAT_EXT_ARG) || !(p.features & IORING_FEAT_NODROP))
                return uring_refused(params, "io_uring", ENOSYS);
        /* The completion ring has room for every operation in flight, so it cannot overflow. */
        assert(p.cq_entries > params->depth);

        if (params->n_lock_fds > 0) {
                r = io_uring_register_files(&q->ring, params->lock_fds, params->n_lock_fds);
                if (r < 0)
                        return uring_refused(params, "registering the lock files with the ring",
                                             -r);
        }
        uring_make_table(q, params);
        /* Saves the kernel a lookup of the ring's file in each call. A failure is harmless. */
        (void)io_uring_register_ring_fd(&q->ring);
        if (rung->restricted) {
                r = uring_restrict(q);
                if (r < 0)
                        return uring_refused(params, "restricting the ring", -r);
                r = io_uring_register(q->ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
                if (r < 0)
                        return uring_refused(params, "enabling the ring", -r);
        }
        r = uring_prove(q, params);
        if (r < 0)
                return r;
        uring_describe_flags(q, rung);
        *ret = TAKE_PTR(base);
        return 0;
}

static const char *uring_describe(const struct kio_queue *base)
{
        return uring_of((struct kio_queue *)(uintptr_t)base)->description;
}

static int uring_register_piece(struct kio_queue *base, unsigned piece)
{
        struct uring_queue *q = uring_of(base);
        struct iovec v;
        __u64 tag = 0;
        const struct kio_pool *pool = q->pools;
        uint64_t at, within = piece;
        int r;

        if (q->n_pieces == 0)
                return -EOPNOTSUPP;
        assert(piece < q->n_pieces);
        if (q->registered[piece])
                return 0;
        for (; within >= uring_pieces(pool); pool++)
                within -= uring_pieces(pool);
        at = within * pool->piece_bytes;
        v = (struct iovec){ .iov_base = (char *)pool->base + at,
                            .iov_len = MIN(pool->piece_bytes, pool->bytes - at) };
        r = io_uring_register_buffers_update_tag(&q->ring, piece, &v, &tag, 1);
        if (r < 0)
                return r;
        q->registered[piece] = true;
        return 0;
}

static int uring_set_buffer(struct kio_queue *base, unsigned number, void *memory, uint64_t bytes)
{
        struct uring_queue *q = uring_of(base);
        struct iovec v = { .iov_base = memory, .iov_len = bytes };
        __u64 tag = 0;
        int r;

        if (q->n_region_buffers == 0)
                return -EOPNOTSUPP;
        if (number >= q->n_region_buffers)
                return -ENOSPC;
        r = io_uring_register_buffers_update_tag(&q->ring, q->n_pieces + number, &v, &tag, 1);
        return r < 0 ? r : 0;
}

/* Returns the index of the table's entry that contains all of [buf, buf + length), or -1. */
static int uring_find_buffer(const struct uring_queue *q, const struct kio_region *region,
                             const char *buf, uint64_t length)
{
        uint64_t first = 0, at, piece;

        if (region) {
                int number = regions_find_buffer(region, q->worker, buf, length);

                if (number >= 0)
                        return (int)q->n_pieces + number;
        }
        if (q->n_pieces == 0)
                return -1;
        for (const struct kio_pool *p = q->pools; p < q->pools + q->n_pools; p++) {
                at = (uintptr_t)buf - (uintptr_t)p->base;
                if ((uintptr_t)buf < (uintptr_t)p->base || !range_within(at, length, p->bytes)) {
                        first += uring_pieces(p);
                        continue;
                }
                piece = at / p->piece_bytes;
                if (!range_within(at - piece * p->piece_bytes, length, p->piece_bytes) ||
                    !q->registered[first + piece])
                        return -1;
                return (int)(first + piece);
        }
        return -1;
}

static int uring_push(struct kio_queue *base, struct kio_request *req)
{
        struct uring_queue *q = uring_of(base);
        struct io_uring_sqe *sqe;
        uint64_t offset = req->offset + req->progress;
        unsigned n, length;
        char *buf;
        int buffer;

        if (q->in_flight >= q->depth)
                return -EAGAIN;
        sqe = uring_get_sqe(q);
        req->registered = 0;
        switch (req->op) {
        case KIO_READ:
        case KIO_WRITE:
                n = kio_rest(req, req->pieces);
                if (n > 1) {
                        /* An operation on several pieces of memory cannot use a registered
                         * buffer. */
                        if (req->op == KIO_READ)
                                io_uring_prep_readv(sqe, req->fd, req->pieces, n, offset);
                        else
                                io_uring_prep_writev(sqe, req->fd, req->pieces, n, offset);
                        break;
                }
                buf = req->pieces[0].iov_base;
                length = (unsigned)req->pieces[0].iov_len;
                buffer = uring_find_buffer(q, req->region, buf, length);
                req->registered = buffer >= 0;
                if (req->op == KIO_READ && buffer >= 0)
                        io_uring_prep_read_fixed(sqe, req->fd, buf, length, offset, buffer);
                else if (req->op == KIO_READ)
                        io_uring_prep_read(sqe, req->fd, buf, length, offset);
                else if (buffer >= 0)
                        io_uring_prep_write_fixed(sqe, req->fd, buf, length, offset, buffer);
                else
                        io_uring_prep_write(sqe, req->fd, buf, length, offset);
                break;
        case KIO_SYNC:
                io_uring_prep_fsync(sqe, req->fd, IORING_FSYNC_DATASYNC);
                break;
        default:
                assert(!"not an operation of a device");
        }
        io_uring_sqe_set_data(sqe, req);
        q->in_flight++;
        return 0;
}

const struct kio_backend kio_backend_uring = {
        .name = "io_uring",
        .rungs = ARRAY_SIZE(rungs),
        .open = uring_open,
        .close = uring_close,
        .describe = uring_describe,
        .register_piece = uring_register_piece,
        .set_buffer = uring_set_buffer,
        .push = uring_push,
        .submit = uring_submit,
        .is_ready = uring_is_ready,
        .reap = uring_reap,
        .wake = uring_wake,
};
