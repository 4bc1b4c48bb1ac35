/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated disk as a backend for kio_start_with(). An operation is performed on arrival, or
 * waits at the device until the test completes it. Workers call it, each for its own queue. */
#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>

#include "sim-internal.h"

static struct sim_queue *queue_of(struct kio_queue *q)
{
        return container_of(q, struct sim_queue, base);
}

/* Copies between the pieces of a request and one contiguous buffer. */
void sim_gather(const struct kio_request *req, uint8_t *whole, bool out)
{
        struct iovec pieces[KIO_PIECES_MAX + 1]; /* pieces of a vector, and a tail */
        unsigned n = kio_rest(req, pieces);

        for (unsigned i = 0; i < n; whole += pieces[i++].iov_len)
                memcpy(out ? pieces[i].iov_base : whole, out ? whole : pieces[i].iov_base,
                       pieces[i].iov_len);
}

static void show_read(const struct kio_request *req)
{
        struct iovec pieces[KIO_PIECES_MAX + 1]; /* pieces of a vector, and a tail */
        unsigned n = kio_rest(req, pieces);

        for (unsigned i = 0; i < n; i++)
                sim.read_watch(pieces[i].iov_base, pieces[i].iov_len);
}

/* Performs an operation, and completes it. */
static void execute(struct waiting *w)
{
        struct kio_request *req = w->req;
        uint64_t offset = req->offset + req->progress, length = req->length - req->progress;
        uint8_t *whole =
                req->parts || req->vector || req->body < req->length ? must(malloc(length)) : NULL;
        uint8_t *buf = whole      ? whole
                       : req->buf ? (uint8_t *)req->buf + req->progress
                                  : NULL; /* a sync has no buffer */
        struct file *f = sim_file_of(req->fd);
        ssize_t n = (ssize_t)length;
        bool truthful = sim.fault == SIM_READ_RIGHT;
        enum sim_fault fault = SIM_FAULT_NONE;
        int error = 0;

        if (whole && req->op == KIO_WRITE)
                sim_gather(req, whole, false);
        switch (req->op) {
        case KIO_READ:
                n = __real_pread64(req->fd, buf, length, (off_t)offset);
                if (n > 0)
                        sim_spoil_reads(req, buf, (uint64_t)n);
                if (n == (ssize_t)length && whole)
                        sim_gather(req, whole, true);
                if (n == (ssize_t)length && sim.read_watch && truthful)
                        show_read(req);
                break;
        case KIO_WRITE:
                if (f && length > 0)
                        fault = sim_fault_for("write", f->dir, f->name, &error);
                if (fault != SIM_FAULT_NONE) {
                        sim_file_write_fault(f, fault, buf, length, offset);
                        errno = error;
                        n = -1;
                        break;
                }
                if (f && length > 0 && sim_reached("write", f->name, false))
                        sim_record_add(f, offset, length, buf); /* in flight */
                if (sim.dead)
                        break;
                if (f) {
                        sim_file_write(f, buf, length, offset);
                        sim_changed();
                        sim_reached("write", f->name, true);
                } else {
                        n = __real_pwrite64(req->fd, buf, length, (off_t)offset);
                }
                break;
        default:
                n = 0;
                if (w->dir < 0) {
                        if (!sim.dead)
                                n = __real_fdatasync(req->fd);
                        break;
                }
                fault = sim_fault_for("sync", (unsigned)w->dir,
                                      w->file ? w->file->name : "directory", &error);
                if (fault != SIM_FAULT_NONE) {
                        errno = error;
                        n = -1;
                }
                if (fault == SIM_FAULT_NOTHING || fault == SIM_FAULT_TORN) {
                        sim_sync_dropped(w->file);
                        break;
                }
                sim_reached("sync", w->file ? w->file->name : "directory", false);
                if (sim.dead)
                        break;
                if (w->file)
                        sim_file_synced(w->file, w->serial, w->size);
                else
                        sim_names_synced((unsigned)w->dir, w->serial);
                sim_changed();
                sim_reached("sync", w->file ? w->file->name : "directory", true);
                errno = error;
        }
        w->result = n < 0 ? -errno : (int32_t)n;
        free(whole);
        w->next = NULL;
        *w->queue->done_end = w;
        w->queue->done_end = &w->next;
        pthread_cond_signal(&w->queue->cond);
}

/* Orders the files of two operations by their names: threads that open other files at the time
 * determine which numbers their descriptors have. */
static int compare_files(int a, int b)
{
        struct file *f = sim_file_of(a), *g = sim_file_of(b);

        if (f == g)
                return 0;
        if (!f || !g)
                return f ? 1 : -1; /* directories and files that are not simulated go first */
        return f->dir != g->dir ? (f->dir < g->dir ? -1 : 1) : strcmp(f->name, g->name);
}

/* Orders waiting operations by their contents, because threads determine when they arrive. */
static bool comes_before(const struct kio_request *a, const struct kio_request *b)
{
        int order = a->fd == b->fd ? 0 : compare_files(a->fd, b->fd);

        if (order != 0)
                return order < 0;
        if (a->op != b->op)
                return a->op < b->op;
        if (a->offset != b->offset)
                return a->offset < b->offset;
        return a->submitted_ns <= b->submitted_ns; /* for example several syncs of the table */
}

static int sim_push(struct kio_queue *base, struct kio_request *req)
{
        struct waiting *w = must(calloc(1, sizeof(*w))), **at;

        lock();
        w->queue = queue_of(base);
        w->req = req;
        req->registered = 0;
        if (req->op == KIO_SYNC) {
                w->file = sim_file_of(req->fd);
                w->serial = sim.serial;
                w->size = w->file ? sim_size_of(w->file) : 0;
                w->dir = w->file ? (int)w->file->dir : sim_dir_of(req->fd);
        }
        if (sim.dead || !(sim.hold & 1u << req->op)) {
                sim_note_for_swap(req);
                execute(w);
        } else {
                for (at = &sim.held; *at && comes_before((*at)->req, req); at = &(*at)->next)
                        ;
                w->next = *at;
                *at = w;
                sim.n_held++;
                sim_note_for_swap(req);
                eventfd_write(sim.event_fd, 1);
        }
        unlock();
        return 0;
}

static int sim_submit(struct kio_queue *base, bool wait, uint64_t timeout_ns)
{
        struct sim_queue *q = queue_of(base);

        if (!wait)
                return 0;
        lock();
        q->waiting = true;
        pthread_cond_broadcast(&sim.idle);
        while (!q->done && !q->woken)
                pthread_cond_wait(&q->cond, &sim.lock);
        q->waiting = false;
        q->woken = false;
        unlock();
        return 0;
}

static unsigned sim_reap(struct kio_queue *base, struct kio_done *ret, unsigned max)
{
        struct sim_queue *q = queue_of(base);
        unsigned n = 0;

        lock();
        while (n < max && q->done) {
                struct waiting *w = q->done;

                q->done = w->next;
                if (!q->done)
                        q->done_end = &q->done;
                ret[n++] = (struct kio_done){ .req = w->req, .result = w->result };
                free(w);
        }
        unlock();
        return n;
}

static void sim_wake(struct kio_queue *base)
{
        struct sim_queue *q = queue_of(base);

        lock();
        q->woken = true;
        pthread_cond_signal(&q->cond);
        unlock();
}

static int sim_open(struct kio_queue **ret, const struct kio_queue_params *params)
{
        struct sim_queue *q = calloc(1, sizeof(*q));

        if (!q)
                return -ENOMEM;
        q->base.ops = sim_backend();
        q->done_end = &q->done;
        q->thread = pthread_self();
        pthread_cond_init(&q->cond, NULL);
        lock();
        q->next = sim.queues;
        sim.queues = q;
        unlock();
        *ret = &q->base;
        return 0;
}

static struct kio_queue *sim_close(struct kio_queue *base)
{
        struct sim_queue *q, **at;

        if (!base)
                return NULL;
        q = queue_of(base);
        lock();
        for (at = &sim.queues; *at != q; at = &(*at)->next)
                ;
        *at = q->next;
        unlock();
        pthread_cond_destroy(&q->cond);
        free(q);
        return NULL;
}

static const char *sim_describe(const struct kio_queue *base)
{
        return "";
}

static int sim_register_piece(struct kio_queue *base, unsigned piece)
{
        return 0;
}

const struct kio_backend *sim_backend(void)
{
        static const struct kio_backend backend = {
                .name = "sim",
                .rungs = 1,
                .open = sim_open,
                .close = sim_close,
                .describe = sim_describe,
                .register_piece = sim_register_piece,
                .push = sim_push,
                .submit = sim_submit,
                .reap = sim_reap,
                .wake = sim_wake,
        };

        return &backend;
}

void sim_hold(unsigned ops)
{
        lock();
        sim.hold = ops;
        unlock();
}

unsigned sim_held(void)
{
        unsigned n;

        lock();
        n = sim.n_held;
        unlock();
        return n;
}

unsigned sim_held_requests(void)
{
        unsigned n = 0;

        lock();
        for (const struct waiting *w = sim.held; w; w = w->next) {
                if (!w->req->parts)
                        n++;
                else
                        list_for_each (w->req->parts, i)
                                n++;
        }
        unlock();
        return n;
}

void sim_wait_idle(void)
{
        const struct sim_queue *q;

        lock();
        for (q = sim.queues; q;) {
                if ((q->waiting && !q->woken && !q->done) ||
                    pthread_equal(q->thread, pthread_self())) {
                        q = q->next;
                        continue;
                }
                pthread_cond_wait(&sim.idle, &sim.lock);
                q = sim.queues;
        }
        unlock();
}

void sim_execute_held(unsigned i)
{
        struct waiting **at = &sim.held, *w;

        while (i-- > 0)
                at = &(*at)->next;
        w = *at;
        *at = w->next;
        sim.n_held--;
        execute(w);
}

bool sim_complete_one(void)
{
        bool any;

        lock();
        any = sim.n_held > 0;
        if (any)
                sim_execute_held((unsigned)draw(sim.n_held));
        unlock();
        return any;
}
