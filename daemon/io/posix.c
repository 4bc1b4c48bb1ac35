/* SPDX-License-Identifier: Apache-2.0 */
/* The POSIX back end: threads that call pread, pwrite and fdatasync for one worker, where
 * io_uring is not available.
 *
 * It owns its threads and one slot per operation that may be in flight. push() fills a slot and
 * lists it; a thread takes the slot, makes the blocking call and lists the result; the worker
 * sleeps on a condition variable until there is a result or a wake-up. The lock protects the
 * lists and is never held across a system call. Lock files need no registration here: the
 * descriptors of a killed daemon stay open until its last thread has returned from its last
 * call.
 *
 * A hung device occupies one thread for each call; the worker reports such calls, and one thread
 * is added for each.
 *
 * A failed call has its error as result; the worker handles short transfers and EINTR. */
#include "io/backend.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/list.h"
#include "checked.h"
#include "cleanup.h"
#include "io/guard.h"

enum { POSIX_THREADS_DEFAULT = 8, POSIX_THREADS_MAX = 256, POSIX_PROBE_BYTES = 4096 };

struct slot {
        struct list_node node; /* in one of the lists below, or in none while a thread has the
                                * slot */
        struct kio_request *req;
        enum kio_op op;
        int fd;
        const struct iovec *pieces; /* array that belongs to the request; a sync has none */
        unsigned n_pieces;
        bool shared; /* a client shares the memory, so that ThreadSanitizer must not check it */
        off_t offset;
        int32_t result;
};

struct posix_queue {
        struct kio_queue base;

        pthread_mutex_t lock;
        pthread_cond_t work_cond; /* signalled for threads when `work` has a slot or `closing` is
                                   * set */
        pthread_cond_t done_cond; /* signalled for the worker when `done` has a slot or `woken`
                                   * is set */
        struct list_node work, done;
        bool woken, closing;

        struct slot *slots;
        struct list_node unused; /* free slots; used by the worker only */

        pthread_t *threads; /* array of POSIX_THREADS_MAX elements */
        unsigned n_threads, wanted_threads;
        unsigned worker;
};

static struct posix_queue *posix_of(struct kio_queue *q)
{
        return container_of(q, struct posix_queue, base);
}

static int32_t posix_execute(const struct slot *s)
{
        ssize_t n = -1;

        switch (s->op) {
        case KIO_READ:
                n = s->n_pieces > 1
                            ? preadv(s->fd, s->pieces, (int)s->n_pieces, s->offset)
                            : pread(s->fd, s->pieces[0].iov_base, s->pieces[0].iov_len, s->offset);
                break;
        case KIO_WRITE:
                n = s->n_pieces > 1
                            ? pwritev(s->fd, s->pieces, (int)s->n_pieces, s->offset)
                            : pwrite(s->fd, s->pieces[0].iov_base, s->pieces[0].iov_len, s->offset);
                break;
        case KIO_SYNC:
                n = fdatasync(s->fd);
                break;
        default:
                assert(!"not an operation of a device");
        }
        return n < 0 ? -errno : (int32_t)n;
}

static void *posix_thread(void *userdata)
{
        struct posix_queue *q = userdata;

        pthread_mutex_lock(&q->lock);
        for (;;) {
                struct slot *s;

                while (list_empty(&q->work) && !q->closing)
                        pthread_cond_wait(&q->work_cond, &q->lock);
                if (list_empty(&q->work))
                        break;
                s = container_of(list_pop(&q->work), struct slot, node);
                pthread_mutex_unlock(&q->lock);

                if (s->shared)
                        guard_shared_begin();
                s->result = posix_execute(s);
                if (s->shared)
                        guard_shared_end();

                pthread_mutex_lock(&q->lock);
                if (list_empty(&q->done))
                        pthread_cond_signal(&q->done_cond);
                list_append(&q->done, &s->node);
        }
        pthread_mutex_unlock(&q->lock);
        return NULL;
}

static struct kio_queue *posix_close(struct kio_queue *base)
{
        struct posix_queue *q;

        if (!base)
                return NULL;
        q = posix_of(base);
        pthread_mutex_lock(&q->lock);
        q->closing = true;
        pthread_cond_broadcast(&q->work_cond);
        pthread_mutex_unlock(&q->lock);
        /* The threads end when `work` is empty, so joining them waits for everything in flight. */
        for (unsigned i = 0; i < q->n_threads; i++)
                pthread_join(q->threads[i], NULL);
        pthread_cond_destroy(&q->done_cond);
        pthread_cond_destroy(&q->work_cond);
        pthread_mutex_destroy(&q->lock);
        free(q->threads);
        free(q->slots);
        free(q);
        return NULL;
}
DEFINE_CLEANUP(struct kio_queue *, posix_close);

static int posix_refused(const struct kio_queue_params *params, const char *what, int error)
{
        if (params->error)
                snprintf(params->error, 256, "%s: %s", what, strerror(error));
        return -error;
}

static int posix_prove(const struct kio_queue_params *params)
{
        _Alignas(POSIX_PROBE_BYTES) char scratch[POSIX_PROBE_BYTES];
        void *buf = kio_probe_buffer(params, POSIX_PROBE_BYTES);
        ssize_t n;

        if (params->probe_fd < 0)
                return 0;
        do
                n = pread(params->probe_fd, buf ? buf : scratch, POSIX_PROBE_BYTES, 0);
        while (n < 0 && errno == EINTR);
        if (n < 0)
                return posix_refused(params, "the self-test's read", errno);
        return 0;
}

static int posix_start_threads(struct posix_queue *q, unsigned n)
{
        for (; q->n_threads < n; q->n_threads++) {
                char name[16];
                int r;

                r = pthread_create(&q->threads[q->n_threads], NULL, posix_thread, q);
                if (r != 0)
                        return -r;
                snprintf(name, sizeof(name), "kio-%u-%u", q->worker % 1000, q->n_threads);
                pthread_setname_np(q->threads[q->n_threads], name);
        }
        return 0;
}

static int posix_open(struct kio_queue **ret, const struct kio_queue_params *params)
{
        _cleanup_(posix_closep) struct kio_queue *base = NULL;
        unsigned n_threads = params->threads > 0 ? params->threads : POSIX_THREADS_DEFAULT;
        pthread_condattr_t attr;
        struct posix_queue *q;
        int r;

        r = posix_prove(params);
        if (r < 0)
                return r;
        q = calloc(1, sizeof(*q));
        if (!q)
                return posix_refused(params, "I/O threads", ENOMEM);
        q->base.ops = &kio_backend_posix;
        q->worker = params->worker;
        list_init(&q->work);
        list_init(&q->done);
        list_init(&q->unused);
        pthread_mutex_init(&q->lock, NULL);
        pthread_cond_init(&q->work_cond, NULL);
        pthread_condattr_init(&attr);
        pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        pthread_cond_init(&q->done_cond, &attr);
        pthread_condattr_destroy(&attr);
        base = &q->base;

        n_threads = MIN(n_threads, params->depth);
        n_threads = MIN(n_threads, (unsigned)POSIX_THREADS_MAX);
        q->slots = calloc(params->depth, sizeof(*q->slots));
        q->threads = calloc(POSIX_THREADS_MAX, sizeof(*q->threads));
        if (!q->slots || !q->threads)
                return posix_refused(params, "I/O threads", ENOMEM);
        for (unsigned i = 0; i < params->depth; i++)
                list_append(&q->unused, &q->slots[i].node);
        q->wanted_threads = n_threads;
        r = posix_start_threads(q, n_threads);
        if (r < 0)
                return posix_refused(params, "starting I/O threads", -r);
        *ret = TAKE_PTR(base);
        return 0;
}

static const char *posix_describe(const struct kio_queue *base)
{
        return "";
}

static int posix_register_piece(struct kio_queue *base, unsigned piece)
{
        return 0;
}

static int posix_push(struct kio_queue *base, struct kio_request *req)
{
        struct posix_queue *q = posix_of(base);
        struct list_node *n = list_pop(&q->unused);
        struct slot *s;

        if (!n)
                return -EAGAIN;
        s = container_of(n, struct slot, node);
        req->registered = 0;
        s->req = req;
        s->op = req->op;
        s->fd = req->fd;
        s->pieces = req->pieces;
        s->n_pieces = kio_rest(req, req->pieces);
        s->shared = req->region != NULL;
        s->offset = (off_t)(req->offset + req->progress);

        pthread_mutex_lock(&q->lock);
        list_append(&q->work, &s->node);
        pthread_cond_signal(&q->work_cond);
        pthread_mutex_unlock(&q->lock);
        return 0;
}

static int posix_submit(struct kio_queue *base, bool wait, uint64_t timeout_ns)
{
        struct posix_queue *q = posix_of(base);
        struct timespec until;

        if (!wait)
                return 0;
        if (timeout_ns > 0) {
                clock_gettime(CLOCK_MONOTONIC, &until);
                timeout_ns += (uint64_t)until.tv_nsec;
                until.tv_sec += (time_t)(timeout_ns / 1000000000u);
                until.tv_nsec = (long)(timeout_ns % 1000000000u);
        }
        pthread_mutex_lock(&q->lock);
        while (list_empty(&q->done) && !q->woken) {
                if (timeout_ns == 0)
                        pthread_cond_wait(&q->done_cond, &q->lock);
                else if (pthread_cond_timedwait(&q->done_cond, &q->lock, &until) == ETIMEDOUT)
                        break;
        }
        q->woken = false;
        pthread_mutex_unlock(&q->lock);
        return 0;
}

static unsigned posix_reap(struct kio_queue *base, struct kio_done *ret, unsigned max)
{
        struct posix_queue *q = posix_of(base);
        unsigned n_ret = 0;

        pthread_mutex_lock(&q->lock);
        while (n_ret < max && !list_empty(&q->done)) {
                struct slot *s = container_of(list_pop(&q->done), struct slot, node);

                ret[n_ret++] = (struct kio_done){ .req = s->req, .result = s->result };
                list_append(&q->unused, &s->node);
        }
        pthread_mutex_unlock(&q->lock);
        return n_ret;
}

static void posix_wake(struct kio_queue *base)
{
        struct posix_queue *q = posix_of(base);

        pthread_mutex_lock(&q->lock);
        q->woken = true;
        pthread_cond_signal(&q->done_cond);
        pthread_mutex_unlock(&q->lock);
}

/* Adds a thread for each operation that hangs, whether or not a thread has begun it, up to
 * POSIX_THREADS_MAX threads in all. The added threads stay. */
static void posix_relieve(struct kio_queue *base, unsigned stuck)
{
        struct posix_queue *q = posix_of(base);

        (void)posix_start_threads(q, MIN(q->wanted_threads + stuck, (unsigned)POSIX_THREADS_MAX));
}

const struct kio_backend kio_backend_posix = {
        .name = "posix",
        .rungs = 1,
        .open = posix_open,
        .close = posix_close,
        .describe = posix_describe,
        .register_piece = posix_register_piece,
        .push = posix_push,
        .submit = posix_submit,
        .reap = posix_reap,
        .wake = posix_wake,
        .relieve = posix_relieve,
};
