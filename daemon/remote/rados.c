/* SPDX-License-Identifier: Apache-2.0 */
/* The RADOS back end: objects of a pool of Ceph, by librados. The prefix is a RADOS namespace, so
 * that several fleets can share a pool and capabilities can be limited to one of them.
 *
 * There are two threads. The connector makes the calls that wait for monitors: it connects, retries
 * until there is a cluster, and ends. The worker hands operations to librados, cancels those past
 * their deadline, and shuts the connection down. librados copies the bytes to be written and may
 * wait for its own limits. librados's threads descend from these two and inherit their blocked
 * signals.
 *
 * Once librados has an operation, it ends only in librados's callback, and its memory is not
 * accessed afterwards. At its deadline it is cancelled, which calls the callback unless the answer
 * is being read. A cancelled write may still be carried out; the object is then complete, and a
 * later create finds it.
 *
 * Full clusters and pools answer -ENOSPC or -EDQUOT, since all writes have FULL_TRY; without it
 * they would wait for room.
 *
 * Locking: `lock` protects all fields of struct rados that change. librados is not called under it,
 * but backend_op_end() is, so that no operation ends after close(). */
#include "remote/rados.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread.h"
#include "checked.h"
#include "cleanup.h"

enum {
        MARKS_MAX = 64,       /* most marks that are queued or in flight; further ones are
                               * dropped */
        USED_SLOTS = 1 << 14, /* slots of the table of marked objects; each remembers one object */
        MARK_INTERVAL_S = 24 * 60 * 60,
        CLOSE_WAIT_MS = 500, /* ms that close() waits for the connection to be shut down */
        RETRY_MS = 2000,     /* ms between attempts to connect */
};

/* An operation at librados, or about to be. */
struct call {
        struct list_node node; /* in rados.calls or rados.marks */
        struct rados *rados;
        struct backend_op *op; /* NULL if this is a call of mark_used() */
        uint64_t deadline_ns;
        rados_completion_t completion;
        rados_read_op_t read;
        rados_write_op_t write;
        bool held;              /* the worker uses the call and frees it if the callback has run
                                 * meanwhile */
        bool done;              /* the callback has run */
        bool cancelled;         /* cancelled at its deadline, or because the daemon stops */
        bool late;              /* cancelled because its deadline has passed */
        struct iovec pieces[2]; /* pieces passed to librados */
        unsigned n_pieces;
        size_t got[2];
        int results[3]; /* result of each piece, then of stat */
        uint64_t size;
        time_t mtime;
        char name[REMOTE_NAME_MAX]; /* the object's name for mark_used() */
};

static struct rados *rados_of(struct backend *b)
{
        return (struct rados *)b;
}

const char *rados_oid(const struct rados *r, const char *name)
{
        size_t n = strlen(r->prefix);

        if (n == 0)
                return name;
        return strncmp(name, r->prefix, n) == 0 && name[n] == '/' && name[n + 1] ? name + n + 1
                                                                                 : NULL;
}

int rados_errno(int result)
{
        switch (-result) {
        case EDQUOT:
        case ENOSPC:
                return -ENOSPC;
        case EPERM:
        case EACCES:
                return -EACCES;
        case EAGAIN:
        case EBUSY:
                return -EBUSY;
        case EFBIG:
        case EMSGSIZE:
        case E2BIG:
                return -E2BIG;
        default:
                return result <= 0 ? result : -EIO;
        }
}

static struct timespec at_ns(uint64_t ns)
{
        return (struct timespec){ (time_t)(ns / 1000000000), (long)(ns % 1000000000) };
}

/* --- times at which objects were marked as used --- */

static struct rados_used *used_slot(struct rados *r, const char *name, uint64_t *ret_hash)
{
        uint64_t h = 0xcbf29ce484222325u;

        for (; *name; name++)
                h = (h ^ (uint8_t)*name) * 0x100000001b3u;
        *ret_hash = h;
        return &r->used[(h ^ h >> 32) % USED_SLOTS];
}

static void used_note(struct rados *r, const char *name, int64_t at)
{
        uint64_t hash;
        struct rados_used *slot = used_slot(r, name, &hash);

        if (slot->hash != hash || slot->at < at)
                *slot = (struct rados_used){ hash, at };
}

/* --- calls --- */

static void call_free(struct call *c)
{
        const struct librados *api = &c->rados->api;

        if (c->read)
                api->release_read_op(c->read);
        if (c->write)
                api->release_write_op(c->write);
        if (c->completion)
                api->aio_release(c->completion);
        free(c);
}

/* Sets the operation's result fields and returns its result. */
static int call_result(struct call *c, int r)
{
        struct backend_op *op = c->op;

        if (c->cancelled && r == -ECANCELED) {
                if (!c->late)
                        return -ECANCELED;
                snprintf(op->error, sizeof(op->error), "the cluster has not answered in time");
                return -ETIMEDOUT;
        }
        if (op->kind != BACKEND_READ) {
                if (r == -ENOENT && op->kind != BACKEND_DELETE) {
                        snprintf(op->error, sizeof(op->error), "pool %.60s has been removed",
                                 c->rados->pool);
                        return -EIO;
                }
                return rados_errno(r);
        }
        for (unsigned i = 0; r >= 0 && i < ARRAY_SIZE(c->results); i++)
                r = MIN(c->results[i], 0);
        if (r < 0)
                return rados_errno(r);
        op->size = c->size;
        for (unsigned i = 0; i < c->n_pieces; i++) {
                op->transferred += MIN(c->got[i], c->pieces[i].iov_len);
                if (c->got[i] < c->pieces[i].iov_len)
                        break;
        }
        return 0;
}

/* Ends a call that librados has finished with. After the last unlock, neither `r` nor the call may
 * be accessed. */
static void call_end(struct call *c, int result)
{
        struct rados *r = c->rados;
        struct backend_op *op = c->op;
        bool held;

        if (op)
                result = call_result(c, result);
        pthread_mutex_lock(&r->lock);
        if (op && op->kind == BACKEND_READ && result == 0)
                used_note(r, op->name, c->mtime);
        list_unlink(&c->node);
        if (op && !r->closed)
                backend_op_end(op, result);
        c->done = true;
        held = c->held;
        pthread_mutex_unlock(&r->lock);
        if (!held)
                call_free(c);
        pthread_mutex_lock(&r->lock);
        r->n_marks -= !op;
        r->n_calls--;
        pthread_cond_signal(&r->work);
        pthread_mutex_unlock(&r->lock);
}

static void on_complete(rados_completion_t completion, void *userdata)
{
        struct call *c = userdata;

        call_end(c, c->rados->api.aio_get_return_value(completion));
}

/* Combines pieces that are contiguous in memory, since each piece costs time in librados and the
 * OSD. */
static unsigned join_pieces(const struct backend_op *op, struct iovec ret[static 2])
{
        unsigned n = 0;

        for (unsigned i = 0; i < 2; i++) {
                const struct iovec *p = &op->pieces[i];

                if (p->iov_len == 0)
                        continue;
                if (n > 0 && (char *)ret[n - 1].iov_base + ret[n - 1].iov_len == p->iov_base)
                        ret[n - 1].iov_len += p->iov_len;
                else
                        ret[n++] = *p;
        }
        return n;
}

static int start_read(struct rados *r, struct call *c, const char *oid)
{
        const struct librados *api = &r->api;
        uint64_t offset = 0;

        c->read = api->create_read_op();
        if (!c->read)
                return -ENOMEM;
        c->n_pieces = join_pieces(c->op, c->pieces);
        for (unsigned i = 0; i < c->n_pieces; i++) {
                api->read_op_read(c->read, offset, c->pieces[i].iov_len, c->pieces[i].iov_base,
                                  &c->got[i], &c->results[i]);
                offset += c->pieces[i].iov_len;
        }
        api->read_op_stat(c->read, &c->size, &c->mtime, &c->results[2]);
        return api->aio_read_op_operate(c->read, r->io, c->completion, oid, 0);
}

static int start_write(struct rados *r, struct call *c, const char *oid)
{
        const struct librados *api = &r->api;
        uint64_t offset = 0;

        c->write = api->create_write_op();
        if (!c->write)
                return -ENOMEM;
        if (!c->op) {
                api->write_op_assert_exists(c->write);
                api->write_op_setxattr(c->write, "used", "", 0);
        } else if (c->op->kind == BACKEND_DELETE) {
                api->write_op_remove(c->write);
        } else {
                if (c->op->kind == BACKEND_CREATE)
                        api->write_op_create(c->write, RADOS_CREATE_EXCLUSIVE, NULL);
                c->n_pieces = join_pieces(c->op, c->pieces);
                if (c->n_pieces == 0)
                        api->write_op_write_full(c->write, "", 0);
                for (unsigned i = 0; i < c->n_pieces; i++) {
                        const struct iovec *p = &c->pieces[i];

                        if (i == 0)
                                api->write_op_write_full(c->write, p->iov_base, p->iov_len);
                        else
                                api->write_op_write(c->write, p->iov_base, p->iov_len, offset);
                        offset += p->iov_len;
                }
        }
        return api->aio_write_op_operate(c->write, r->io, c->completion, oid, NULL,
                                         RADOS_OPERATION_FULL_TRY);
}

/* Hands a call to librados. Runs on the worker without the lock; the call is in `calls` and
 * held. */
static void call_start(struct rados *r, struct call *c)
{
        const char *oid = rados_oid(r, c->op ? c->op->name : c->name);
        int e = -EINVAL;

        if (oid)
                e = r->api.aio_create_completion2(c, on_complete, &c->completion);
        if (e >= 0)
                e = c->op && c->op->kind == BACKEND_READ ? start_read(r, c, oid)
                                                         : start_write(r, c, oid);
        if (e < 0)
                call_end(c, e);
}

/* --- the worker --- */

/* Unlocks, and frees `r` if this was the last reference. The lock is held on entry. */
static void unlock_and_unref(struct rados *r)
{
        bool last = --r->refs == 0;

        pthread_mutex_unlock(&r->lock);
        if (!last)
                return;
        for (struct list_node *n; (n = list_pop(&r->marks));)
                free(container_of(n, struct call, node));
        pthread_cond_destroy(&r->work);
        pthread_cond_destroy(&r->change);
        pthread_mutex_destroy(&r->lock);
        free(r->used);
        free(r->prefix);
        free(r->pool);
        free(r->conf);
        free(r->user);
        free(r);
}

/* Ends the worker's use of a call after librados ran without the lock, and frees the call if it has
 * ended. Takes the lock, and may release it for a moment. */
static void worker_retake(struct rados *r, struct call *c)
{
        pthread_mutex_lock(&r->lock);
        c->held = false;
        if (c->done) {
                pthread_mutex_unlock(&r->lock);
                call_free(c);
                pthread_mutex_lock(&r->lock);
        }
}

/* Starts a call. Takes and returns with the lock held, but releases it while librados runs. */
static void worker_start(struct rados *r, struct call *c)
{
        list_append(&r->calls, &c->node);
        r->n_calls++;
        c->held = true;
        pthread_mutex_unlock(&r->lock);
        call_start(r, c);
        worker_retake(r, c);
}

static void worker_cancel(struct rados *r, struct call *c, bool late)
{
        c->cancelled = true;
        c->late = late;
        c->held = true;
        pthread_mutex_unlock(&r->lock);
        (void)r->api.aio_cancel(r->io, c->completion); /* has no effect if the answer has arrived
                                                        * meanwhile */
        worker_retake(r, c);
}

static void fail_unsent(struct rados *r, struct backend_op *op, int result, const char *error)
{
        list_unlink(&op->node);
        snprintf(op->error, sizeof(op->error), "%s", error);
        if (!r->closed)
                backend_op_end(op, result);
}

/* Ends queued operations that cannot continue, and returns the earliest deadline of the others, or
 * UINT64_MAX. */
static uint64_t worker_expire(struct rados *r, uint64_t now)
{
        uint64_t next = UINT64_MAX;

        list_for_each_safe (&r->queue, n) {
                struct backend_op *op = container_of(n, struct backend_op, node);

                if (r->stopping)
                        fail_unsent(r, op, -ECANCELED, "");
                else if (r->state == RADOS_FAILED)
                        fail_unsent(r, op, r->connect_result, r->error);
                else if (op->deadline_ns <= now)
                        fail_unsent(r, op, -ETIMEDOUT,
                                    r->state == RADOS_CONNECTED
                                            ? "the operation was not sent in time, because too "
                                              "many operations wait for the cluster"
                                            : "the operation was not sent in time, because the "
                                              "cluster is not connected yet");
                else
                        next = MIN(next, op->deadline_ns);
        }
        return next;
}

/* Returns the first call to cancel, or NULL; lowers *next to the earliest deadline of the
 * others. */
static struct call *find_late(struct rados *r, uint64_t now, uint64_t *next)
{
        list_for_each (&r->calls, n) {
                struct call *c = container_of(n, struct call, node);

                if (c->cancelled)
                        continue;
                if (r->stopping || c->deadline_ns <= now)
                        return c;
                *next = MIN(*next, c->deadline_ns);
        }
        return NULL;
}

/* Returns a call that can be handed to librados now, or NULL. */
static struct call *worker_take(struct rados *r)
{
        struct list_node *n;
        struct backend_op *op;
        struct call *c;

        if (r->state != RADOS_CONNECTED || r->stopping || r->n_calls >= r->depth)
                return NULL;
        n = list_pop(&r->queue);
        if (!n) {
                n = list_pop(&r->marks);
                return n ? container_of(n, struct call, node) : NULL;
        }
        op = container_of(n, struct backend_op, node);
        c = calloc(1, sizeof(*c));
        if (!c) {
                fail_unsent(r, op, -ENOMEM, "");
                return NULL;
        }
        *c = (struct call){ .rados = r, .op = op, .deadline_ns = op->deadline_ns };
        list_init(&c->node);
        return c;
}

static void *worker_run(void *userdata)
{
        struct rados *r = userdata;

        pthread_mutex_lock(&r->lock);
        while (!r->closed || r->n_calls > 0 || r->n_blocking > 0 || !r->connector_ended) {
                uint64_t now = clock_mono_ns(), next = worker_expire(r, now);
                struct call *c = find_late(r, now, &next);
                struct timespec t;

                if (c) {
                        worker_cancel(r, c, !r->stopping);
                        continue;
                }
                c = worker_take(r);
                if (c) {
                        worker_start(r, c);
                        continue;
                }
                if (next == UINT64_MAX) {
                        pthread_cond_wait(&r->work, &r->lock);
                        continue;
                }
                t = at_ns(next);
                pthread_cond_timedwait(&r->work, &r->lock, &t);
        }
        pthread_mutex_unlock(&r->lock);
        if (r->io)
                r->api.ioctx_destroy(r->io);
        if (r->cluster)
                r->api.shutdown(r->cluster);
        pthread_mutex_lock(&r->lock);
        r->worker_ended = true;
        pthread_cond_broadcast(&r->change);
        unlock_and_unref(r);
        return NULL;
}

/* --- the connector --- */

static void set_seconds(struct rados *r, rados_t cluster, const char *option)
{
        char text[32];

        snprintf(text, sizeof(text), "%llu",
                 (unsigned long long)((r->timeout_ns + 999999999) / 1000000000));
        (void)r->api.conf_set(cluster, option, text); /* no failure, because a later version of Ceph
                                                       * may lack the option */
}

/* Connects to the cluster and opens the pool. Returns 0, or librados's error and a sentence about
 * it. */
static int connect_once(struct rados *r, rados_t *ret_cluster, rados_ioctx_t *ret_io,
                        char ret_error[static 120])
{
        rados_t cluster;
        rados_ioctx_t io;
        int e = r->api.create(&cluster, r->user);

        if (e < 0) {
                snprintf(ret_error, 120, "librados cannot be initialized: %s", strerror(-e));
                return e;
        }
        /* Keep librados from writing to the daemon's stderr, unless the configuration file asks for
         * it. */
        (void)r->api.conf_set(cluster, "log_to_stderr", "false");
        (void)r->api.conf_set(cluster, "err_to_stderr", "false");
        e = r->api.conf_read_file(cluster, r->conf);
        if (e < 0) {
                snprintf(ret_error, 120, "%.70s cannot be read: %s",
                         r->conf ? r->conf : "ceph.conf", strerror(-e));
                r->api.shutdown(cluster);
                return e == -ENOENT ? -ENOTCONN : e;
        }
        set_seconds(r, cluster, "client_mount_timeout");
        set_seconds(r, cluster, "rados_mon_op_timeout");
        set_seconds(r, cluster, "rados_osd_op_timeout");
        /* The tier bounds the operations in flight. At its own bounds, librados would block. */
        (void)r->api.conf_set(cluster, "objecter_inflight_op_bytes", "1099511627776");
        (void)r->api.conf_set(cluster, "objecter_inflight_ops", "1048576");
        e = r->api.connect(cluster);
        if (e < 0) {
                snprintf(ret_error, 120, "cannot connect to the cluster: %s", strerror(-e));
                r->api.shutdown(cluster);
                return e == -ENOENT ? -ENOTCONN : e;
        }
        e = r->api.ioctx_create(cluster, r->pool, &io);
        if (e < 0) {
                if (e == -ENOENT)
                        snprintf(ret_error, 120,
                                 "there is no pool %.40s: create it with `ceph osd pool create`",
                                 r->pool);
                else
                        snprintf(ret_error, 120, "pool %.60s: %s", r->pool, strerror(-e));
                r->api.shutdown(cluster);
                return e == -ENOENT ? -ENOTCONN : e;
        }
        r->api.ioctx_set_namespace(io, r->prefix);
        *ret_cluster = cluster;
        *ret_io = io;
        return 0;
}

static void *connector_run(void *userdata)
{
        struct rados *r = userdata;

        pthread_mutex_lock(&r->lock);
        while (!r->stopping && r->state != RADOS_CONNECTED) {
                rados_t cluster = NULL;
                rados_ioctx_t io = NULL;
                char error[120] = "";
                struct timespec t;
                int e;

                pthread_mutex_unlock(&r->lock);
                e = connect_once(r, &cluster, &io, error);
                pthread_mutex_lock(&r->lock);
                if (e >= 0) {
                        r->cluster = cluster;
                        r->io = io;
                        r->state = RADOS_CONNECTED;
                        break;
                }
                r->state = RADOS_FAILED;
                r->connect_result = rados_errno(e);
                memcpy(r->error, error, sizeof(r->error));
                pthread_cond_signal(&r->work);
                t = at_ns(clock_mono_ns() + RETRY_MS * 1000000ull);
                if (!r->stopping)
                        pthread_cond_timedwait(&r->change, &r->lock, &t);
        }
        r->connector_ended = true;
        pthread_cond_signal(&r->work); /* last access: the worker may free `r` afterwards */
        pthread_mutex_unlock(&r->lock);
        return NULL;
}

/* --- the interface of backend.h --- */

static int copy_text(const char *from, char **ret)
{
        *ret = from ? strdup(from) : NULL;
        return from && !*ret ? -ENOMEM : 0;
}

static int start_thread(const char *name, void *(*run)(void *userdata), struct rados *r)
{
        pthread_t thread;
        int e = thread_start(&thread, name, run, r);

        if (e >= 0)
                pthread_detach(thread);
        return e;
}

static int rados_init(struct rados *r, const struct backend_params *params)
{
        pthread_condattr_t monotonic;
        const char *user = params->ceph_user;

        *r = (struct rados){ .api = r->api,
                             .refs = 1,
                             .depth = MAX(params->depth, 1u),
                             .timeout_ns = params->timeout_ns };
        list_init(&r->queue);
        list_init(&r->marks);
        list_init(&r->calls);
        pthread_mutex_init(&r->lock, NULL);
        pthread_condattr_init(&monotonic);
        pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        pthread_cond_init(&r->work, &monotonic);
        pthread_cond_init(&r->change, &monotonic);
        pthread_condattr_destroy(&monotonic);
        if (user && strncmp(user, "client.", 7) == 0)
                user += 7;
        r->used = calloc(USED_SLOTS, sizeof(*r->used));
        if (!r->used || copy_text(params->prefix ? params->prefix : "", &r->prefix) < 0 ||
            copy_text(params->pool, &r->pool) < 0 || copy_text(params->ceph_conf, &r->conf) < 0 ||
            copy_text(user && *user ? user : "admin", &r->user) < 0)
                return -ENOMEM;
        return 0;
}

static int rados_open(struct backend **ret, const struct backend_params *params,
                      char ret_error[static 256])
{
        struct rados *r;
        int e;

        if (!params->pool || !*params->pool) {
                snprintf(ret_error, 256, "remote.pool is not set: the pool of Ceph to use");
                return -EINVAL;
        }
        r = calloc(1, sizeof(*r));
        if (!r)
                return -ENOMEM;
        e = librados_open(&r->api, ret_error);
        if (e < 0) {
                free(r);
                return e;
        }
        e = rados_init(r, params);
        if (e < 0)
                goto fail;
        if (r->conf && access(r->conf, R_OK) < 0) {
                e = -errno;
                snprintf(ret_error, 256, "remote.ceph_conf: %s cannot be read: %s", r->conf,
                         strerror(-e));
                goto fail;
        }
        e = start_thread("kv-rados", worker_run, r);
        if (e < 0)
                goto fail;
        pthread_mutex_lock(&r->lock);
        r->refs++; /* a second reference, held by the worker */
        e = start_thread("kv-rados-conn", connector_run, r);
        if (e < 0) {
                r->connector_ended = r->stopping = r->closed = true;
                pthread_cond_signal(&r->work);
                unlock_and_unref(r);
                snprintf(ret_error, 256, "a thread cannot be started: %s", strerror(-e));
                return e;
        }
        pthread_mutex_unlock(&r->lock);
        *ret = (struct backend *)r;
        return 0;
fail:
        if (!*ret_error)
                snprintf(ret_error, 256, "cannot initialize rados: %s", strerror(-e));
        pthread_mutex_lock(&r->lock);
        unlock_and_unref(r);
        return e;
}

static void rados_submit(struct backend *b, struct backend_op *op)
{
        struct rados *r = rados_of(b);

        op->size = op->transferred = 0;
        op->error[0] = 0;
        list_init(&op->node);
        pthread_mutex_lock(&r->lock);
        if (r->stopping) {
                backend_op_end(op, -ECANCELED);
        } else {
                list_append(&r->queue, &op->node);
                pthread_cond_signal(&r->work);
        }
        pthread_mutex_unlock(&r->lock);
}

static void rados_stop(struct backend *b)
{
        struct rados *r = rados_of(b);

        pthread_mutex_lock(&r->lock);
        r->stopping = true;
        /* End queued operations here, because the worker may be inside librados. */
        worker_expire(r, 0);
        pthread_cond_broadcast(&r->work);
        pthread_cond_broadcast(&r->change);
        pthread_mutex_unlock(&r->lock);
}

static struct backend *rados_close(struct backend *b)
{
        struct rados *r = rados_of(b);
        struct timespec t = at_ns(clock_mono_ns() + CLOSE_WAIT_MS * 1000000ull);

        if (!r)
                return NULL;
        rados_stop(b);
        pthread_mutex_lock(&r->lock);
        r->closed = true;
        pthread_cond_signal(&r->work);
        /* Wait for an orderly end, within a limit. */
        while (!r->worker_ended && pthread_cond_timedwait(&r->change, &r->lock, &t) != ETIMEDOUT)
                ;
        unlock_and_unref(r);
        return NULL;
}

static void rados_mark_used(struct backend *b, const char *name, uint64_t used_ms)
{
        struct rados *r = rados_of(b);
        int64_t now = (int64_t)(clock_unix_ms() / 1000);
        uint64_t hash;
        struct rados_used *slot;
        struct call *c;

        pthread_mutex_lock(&r->lock);
        slot = used_slot(r, name, &hash);
        if (!r->stopping && r->n_marks < MARKS_MAX &&
            (slot->hash != hash || now - slot->at >= MARK_INTERVAL_S) &&
            (c = calloc(1, sizeof(*c)))) {
                *c = (struct call){ .rados = r, .deadline_ns = clock_mono_ns() + r->timeout_ns };
                snprintf(c->name, sizeof(c->name), "%s", name);
                *slot = (struct rados_used){ hash, now };
                list_init(&c->node);
                list_append(&r->marks, &c->node);
                r->n_marks++;
                pthread_cond_signal(&r->work);
        }
        pthread_mutex_unlock(&r->lock);
}

const struct backend_ops backend_rados = {
        .name = "rados",
        .open = rados_open,
        .submit = rados_submit,
        .stop = rados_stop,
        .close = rados_close,
        .lease = rados_lease,
        .release = rados_release,
        .list = rados_list,
        .remove_unused = rados_remove_unused,
        .mark_used = rados_mark_used,
};
