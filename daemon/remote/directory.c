/* SPDX-License-Identifier: Apache-2.0 */
/* The directory back end: objects are files on any file system that the hosts share (CephFS,
 * Lustre, GPFS, WekaFS, NFS, or a local one). directory-file.h describes how a file is read and
 * written.
 *
 * The back end has its own threads for blocking calls and uses none of the daemon's I/O rings.
 * Requests to a hung network file system cannot be cancelled in the kernel: a ring with such a
 * request never ends, and neither does a process that waits for it. A thread costs as little and
 * can be left behind.
 *
 * Threads are started on demand, up to `depth`. The supervisor, a thread that makes no such call,
 * ends operations that are still waiting for a thread at their deadline. An operation still inside
 * a call at its deadline hangs: its thread no longer counts toward `depth`, and another may be
 * started, up to `bound` threads in all. One hung file therefore does not stop the others, and a
 * hung file system occupies a bounded number of threads. A hung call ends when the kernel returns.
 *
 * Reads go first; writes take at most three quarters of the threads, and every fourth operation
 * while both wait.
 *
 * Locking: `lock` protects all fields except `files`, which has its own lock; no file is accessed
 * under it. Threads are detached and each holds a reference; after close(), the last one frees the
 * directory. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread.h"
#include "checked.h"
#include "remote/backend.h"
#include "remote/directory-file.h"
#include "remote/directory-sweep.h"

enum {
        MARKS_MAX = 256,        /* most marks that wait to be made; further ones are dropped */
        MARKED_SLOTS = 1 << 14, /* slots of a table of the latest marks, so that an object is not
                                 * marked again */
        READS_IN_A_ROW = 3,     /* most reads in a row while writes wait */
};
#define MARK_INTERVAL_NS (24ull * 60 * 60 * 1000000000)

struct mark {
        struct list_node node;
        char name[REMOTE_NAME_MAX];
};

struct marked {
        uint64_t hash, at_ns;
};

/* The state of a thread, on its stack. */
struct worker {
        struct list_node node; /* in `busy` */
        uint64_t deadline_ns;
        bool hangs, writes;
};

struct directory {
        struct files files;
        char *path, *prefix;
        unsigned depth, bound;
        uint64_t timeout_ns;

        pthread_mutex_t lock;
        pthread_cond_t work; /* signals idle threads */
        pthread_cond_t time; /* signals the supervisor that there is an earlier deadline, or that
                              * the back end stops */
        bool stopping;       /* written under `lock`; an operation also reads it without the lock,
                              * atomically, before each of its steps (file_call.stop) */
        bool closed;
        unsigned refs;
        struct list_node reads, writes; /* struct backend_op, in order */
        struct list_node marks;         /* struct mark */
        struct list_node busy;          /* struct worker */
        unsigned n_waiting, n_marks, n_threads, n_idle, n_hung, n_writing, reads_in_a_row;
        bool marking;
        uint64_t wake_ns; /* time at which the supervisor wakes up next */
        struct marked *marked;
};

static struct directory *directory_of(struct backend *b)
{
        return (struct directory *)b;
}

/* --- threads --- */

/* Unlocks, and frees `d` if this was the last reference. The lock is held on entry. */
static void unlock_and_unref(struct directory *d)
{
        bool last = --d->refs == 0;

        pthread_mutex_unlock(&d->lock);
        if (!last)
                return;
        for (struct list_node *n; (n = list_pop(&d->marks));)
                free(container_of(n, struct mark, node));
        files_fini(&d->files);
        pthread_cond_destroy(&d->work);
        pthread_cond_destroy(&d->time);
        pthread_mutex_destroy(&d->lock);
        free(d->marked);
        free(d->path);
        free(d->prefix);
        free(d);
}

/* Starts a detached thread that holds a reference. */
static int start(const char *name, void *(*run)(void *userdata), struct directory *d)
{
        pthread_t thread;
        int r = thread_start(&thread, name, run, d);

        if (r < 0)
                return r;
        pthread_detach(thread);
        d->refs++;
        return 0;
}

static bool may_write(const struct directory *d)
{
        return d->depth == 1 || d->n_writing < d->depth - (d->depth + 3) / 4;
}

/* Returns the next operation, or NULL. Reads precede writes, within a limit. */
static struct backend_op *take(struct directory *d)
{
        bool write = !list_empty(&d->writes) && may_write(d) &&
                     (list_empty(&d->reads) || d->reads_in_a_row >= READS_IN_A_ROW);
        struct list_node *n = list_pop(write ? &d->writes : &d->reads);

        if (!n)
                return NULL;
        d->reads_in_a_row = write ? 0 : d->reads_in_a_row + 1;
        d->n_waiting--;
        return container_of(n, struct backend_op, node);
}

static unsigned n_working(const struct directory *d)
{
        return d->n_threads - d->n_hung;
}

static void *worker_run(void *userdata);

/* Provides a thread for waiting work: wakes an idle one, or starts another if more work waits than
 * threads are idle. Threads that were woken still count as idle, and their work as waiting. */
static void wake_worker(struct directory *d)
{
        unsigned waiting = d->n_waiting + (!d->marking && d->n_marks > 0);

        if (d->n_idle > 0)
                pthread_cond_signal(&d->work);
        if (waiting > d->n_idle && n_working(d) < d->depth && d->n_threads < d->bound &&
            start("kv-directory", worker_run, d) == 0)
                d->n_threads++;
}

/* Makes the supervisor wake up at this deadline, if it would sleep longer. */
static void notice_deadline(struct directory *d, uint64_t deadline_ns)
{
        if (deadline_ns < d->wake_ns) {
                d->wake_ns = deadline_ns;
                pthread_cond_signal(&d->time);
        }
}

static int run_op(struct directory *d, struct backend_op *op)
{
        struct file_call call = {
                .name = op->name,
                .deadline_ns = op->deadline_ns,
                .stop = &d->stopping,
                .error = { op->error, sizeof(op->error) },
        };

        switch (op->kind) {
        case BACKEND_READ:
                return file_read(&d->files, &call, op->pieces, &op->size, &op->transferred);
        case BACKEND_CREATE:
        case BACKEND_REPLACE:
                return file_write(&d->files, &call, op->pieces, op->kind == BACKEND_REPLACE);
        case BACKEND_DELETE:
                return file_delete(&d->files, &call);
        default:
                return -EINVAL;
        }
}

/* Marks the thread as busy and releases the lock; worker_end() takes it again. */
static void worker_begin(struct directory *d, struct worker *worker, uint64_t deadline_ns)
{
        worker->deadline_ns = deadline_ns;
        worker->hangs = false;
        d->n_writing += worker->writes;
        list_append(&d->busy, &worker->node);
        notice_deadline(d, deadline_ns);
        pthread_mutex_unlock(&d->lock);
}

static void worker_end(struct directory *d, struct worker *worker)
{
        pthread_mutex_lock(&d->lock);
        list_unlink(&worker->node);
        d->n_writing -= worker->writes && !worker->hangs;
        d->n_hung -= worker->hangs;
}

/* Ends an operation. After close() its memory may be freed, so it is not accessed. */
static void end_op(struct directory *d, struct backend_op *op, int r)
{
        if (!d->closed)
                backend_op_end(op, r);
}

static void worker_do(struct directory *d, struct worker *worker, struct backend_op *op)
{
        int r = -ETIMEDOUT;

        if (clock_mono_ns() < op->deadline_ns) {
                worker->writes = op->kind != BACKEND_READ;
                worker_begin(d, worker, op->deadline_ns);
                r = run_op(d, op);
                worker_end(d, worker);
        }
        end_op(d, op, r);
}

static void worker_mark(struct directory *d, struct worker *worker, struct mark *mark)
{
        struct file_call call = { .name = mark->name, .stop = &d->stopping };

        d->n_marks--;
        d->marking = true;
        worker->writes = false;
        worker_begin(d, worker, clock_mono_ns() + d->timeout_ns);
        file_mark_used(&d->files, &call); /* a failure is harmless */
        worker_end(d, worker);
        d->marking = false;
        free(mark);
}

static void *worker_run(void *userdata)
{
        struct directory *d = userdata;
        struct worker worker = { .hangs = false };

        list_init(&worker.node);
        pthread_mutex_lock(&d->lock);
        /* The loop ends a thread that hung and recovered, if another was started in its place. */
        while (!d->stopping && n_working(d) <= d->depth) {
                struct backend_op *op = take(d);

                if (op)
                        worker_do(d, &worker, op);
                else if (!d->marking && !list_empty(&d->marks))
                        worker_mark(d, &worker,
                                    container_of(list_pop(&d->marks), struct mark, node));
                else {
                        d->n_idle++;
                        pthread_cond_wait(&d->work, &d->lock);
                        d->n_idle--;
                }
        }
        d->n_threads--;
        unlock_and_unref(d);
        return NULL;
}

/* --- the supervisor --- */

/* Ends operations that have waited beyond their deadline, and returns the earliest deadline of the
 * others; UINT64_MAX if none is left. */
static uint64_t expire(struct directory *d, struct list_node *waiting, uint64_t now)
{
        uint64_t next = UINT64_MAX;

        list_for_each_safe (waiting, n) {
                struct backend_op *op = container_of(n, struct backend_op, node);

                if (op->deadline_ns > now) {
                        next = MIN(next, op->deadline_ns);
                        continue;
                }
                list_unlink(n);
                d->n_waiting--;
                snprintf(op->error, sizeof(op->error),
                         "no thread became free in time: %u of %u hang in %s", d->n_hung,
                         d->n_threads, d->path);
                end_op(d, op, -ETIMEDOUT);
        }
        return next;
}

static uint64_t find_hung(struct directory *d, uint64_t now)
{
        uint64_t next = UINT64_MAX;

        list_for_each (&d->busy, n) {
                struct worker *worker = container_of(n, struct worker, node);

                if (worker->hangs)
                        continue;
                if (worker->deadline_ns > now) {
                        next = MIN(next, worker->deadline_ns);
                        continue;
                }
                worker->hangs = true;
                d->n_hung++;
                d->n_writing -= worker->writes;
                if (d->n_waiting > 0)
                        wake_worker(d);
        }
        return next;
}

static void *supervisor_run(void *userdata)
{
        struct directory *d = userdata;

        pthread_mutex_lock(&d->lock);
        while (!d->stopping) {
                uint64_t now = clock_mono_ns(), a, b, c;

                c = find_hung(d, now);
                a = expire(d, &d->reads, now);
                b = expire(d, &d->writes, now);
                d->wake_ns = MIN(MIN(a, b), c);
                if (d->wake_ns == UINT64_MAX)
                        pthread_cond_wait(&d->time, &d->lock);
                else
                        pthread_cond_timedwait(
                                &d->time, &d->lock,
                                &(struct timespec){ .tv_sec = (time_t)(d->wake_ns / 1000000000u),
                                                    .tv_nsec = (long)(d->wake_ns % 1000000000u) });
        }
        unlock_and_unref(d);
        return NULL;
}

/* --- the back end --- */

static void directory_init(struct directory *d, const struct backend_params *params)
{
        pthread_condattr_t monotonic;

        d->depth = MAX(params->depth, 1u);
        d->bound = 2 * d->depth;
        d->timeout_ns = params->timeout_ns;
        d->refs = 1;
        d->wake_ns = UINT64_MAX;
        list_init(&d->reads);
        list_init(&d->writes);
        list_init(&d->marks);
        list_init(&d->busy);
        files_init(&d->files, d->path, params->sync);
        pthread_mutex_init(&d->lock, NULL);
        pthread_cond_init(&d->work, NULL);
        pthread_condattr_init(&monotonic);
        pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        pthread_cond_init(&d->time, &monotonic);
        pthread_condattr_destroy(&monotonic);
}

static int directory_open(struct backend **ret, const struct backend_params *params,
                          char ret_error[static 256])
{
        struct directory *d;
        int r;

        if (!params->path || params->path[0] != '/') {
                snprintf(ret_error, 256,
                         "remote.path must be the absolute path of a directory that the hosts "
                         "share");
                return -EINVAL;
        }
        d = calloc(1, sizeof(*d));
        if (d) {
                d->path = strdup(params->path);
                d->prefix = strdup(params->prefix ? params->prefix : "");
                d->marked = calloc(MARKED_SLOTS, sizeof(*d->marked));
        }
        if (!d || !d->path || !d->prefix || !d->marked) {
                if (d) {
                        free(d->path);
                        free(d->prefix);
                        free(d->marked);
                }
                free(d);
                snprintf(ret_error, 256, "no memory for the directory of the shared tier");
                return -ENOMEM;
        }
        directory_init(d, params);
        pthread_mutex_lock(&d->lock);
        r = start("kv-directory-s", supervisor_run, d);
        if (r < 0) {
                unlock_and_unref(d);
                snprintf(ret_error, 256, "cannot start a thread for %s: %s", params->path,
                         strerrordesc_np(-r));
                return r;
        }
        pthread_mutex_unlock(&d->lock);
        *ret = (struct backend *)d;
        return 0;
}

static void directory_submit(struct backend *b, struct backend_op *op)
{
        struct directory *d = directory_of(b);

        op->error[0] = '\0';
        op->size = op->transferred = 0;
        list_init(&op->node);
        pthread_mutex_lock(&d->lock);
        if (d->stopping) {
                backend_op_end(op, -ECANCELED);
        } else {
                list_append(op->kind == BACKEND_READ ? &d->reads : &d->writes, &op->node);
                d->n_waiting++;
                notice_deadline(d, op->deadline_ns);
                wake_worker(d);
        }
        pthread_mutex_unlock(&d->lock);
}

static void cancel(struct directory *d, struct list_node *waiting)
{
        for (struct list_node *n; (n = list_pop(waiting)); d->n_waiting--)
                backend_op_end(container_of(n, struct backend_op, node), -ECANCELED);
}

static void directory_stop(struct backend *b)
{
        struct directory *d = directory_of(b);

        pthread_mutex_lock(&d->lock);
        if (!d->stopping) {
                __atomic_store_n(&d->stopping, true, __ATOMIC_RELEASE);
                cancel(d, &d->reads);
                cancel(d, &d->writes);
                pthread_cond_broadcast(&d->work);
                pthread_cond_broadcast(&d->time);
        }
        pthread_mutex_unlock(&d->lock);
}

static struct backend *directory_close(struct backend *b)
{
        struct directory *d = directory_of(b);

        if (!d)
                return NULL;
        directory_stop(b);
        pthread_mutex_lock(&d->lock);
        d->closed = true;
        unlock_and_unref(d);
        return NULL;
}

/* Returns a hash of a name, used only to remember marks. */
static uint64_t hash_of(const char *name)
{
        uint64_t h = 0xcbf29ce484222325u;

        for (; *name; name++)
                h = (h ^ (uint8_t)*name) * 0x100000001b3u;
        return h;
}

static void directory_mark_used(struct backend *b, const char *name, uint64_t used_ms)
{
        struct directory *d = directory_of(b);
        uint64_t hash = hash_of(name), now = clock_mono_ns();
        struct marked *slot = &d->marked[(hash ^ hash >> 32) % MARKED_SLOTS];
        struct mark *mark;

        pthread_mutex_lock(&d->lock);
        if (!d->stopping && d->n_marks < MARKS_MAX &&
            (slot->hash != hash || now - slot->at_ns >= MARK_INTERVAL_NS) &&
            (mark = malloc(sizeof(*mark)))) {
                *slot = (struct marked){ hash, now };
                snprintf(mark->name, sizeof(mark->name), "%s", name);
                list_init(&mark->node);
                list_append(&d->marks, &mark->node);
                d->n_marks++;
                if (!d->marking)
                        wake_worker(d);
        }
        pthread_mutex_unlock(&d->lock);
}

/* Takes a reference for a call of the sweeper, whose thread may still be inside the call at
 * close(). */
static struct directory *ref(struct backend *b)
{
        struct directory *d = directory_of(b);

        pthread_mutex_lock(&d->lock);
        d->refs++;
        pthread_mutex_unlock(&d->lock);
        return d;
}

static int unref(struct directory *d, int r)
{
        pthread_mutex_lock(&d->lock);
        unlock_and_unref(d);
        return r;
}

static int directory_lease(struct backend *b, const char *name, const char *owner, uint64_t for_ns)
{
        struct directory *d = ref(b);

        return unref(d, sweep_lease(&d->files, name, owner, for_ns));
}

static int directory_release(struct backend *b, const char *name, const char *owner)
{
        struct directory *d = ref(b);

        return unref(d, sweep_release(&d->files, name, owner));
}

static int directory_list(struct backend *b, bool tidy,
                          bool (*each)(void *userdata, const struct backend_entry *e),
                          void *userdata, const bool *stop)
{
        struct directory *d = ref(b);

        return unref(d, sweep_list(&d->files, d->prefix, tidy, each, userdata, stop));
}

static int directory_remove_unused(struct backend *b, const char *name, uint64_t used_ms)
{
        struct directory *d = ref(b);
        struct file_call call = { .name = name, .stop = &d->stopping };

        return unref(d, file_delete_unused(&d->files, &call, used_ms));
}

const struct backend_ops backend_directory = {
        .name = "directory",
        .open = directory_open,
        .submit = directory_submit,
        .stop = directory_stop,
        .close = directory_close,
        .lease = directory_lease,
        .release = directory_release,
        .list = directory_list,
        .remove_unused = directory_remove_unused,
        .mark_used = directory_mark_used,
};
