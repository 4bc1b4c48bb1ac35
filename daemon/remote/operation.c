/* SPDX-License-Identifier: Apache-2.0 */
/* Operations sent to the storage system, and the accounting of their results. Loop thread.
 *
 * Owns every operation and its memory until the storage system has ended it. At the deadline, the
 * owner continues without it: the operation has expired, counts as failed, and keeps its buffer. A
 * storage system that hangs can therefore occupy at most the bounded buffers. Operations without
 * such a buffer are limited to SMALL_MAX, plus WRITES_MAX that write a generation, so that reads of
 * generations cannot cause a purge to be refused. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "checked.h"
#include "remote/internal.h"

static void on_complete(struct backend_op *op);
static void on_expire(struct deadline *d, uint64_t now_ns);

int operation_new(struct remote *r, enum operation_kind kind, struct buffers *buffers, size_t bytes,
                  struct operation **ret)
{
        struct operation *o;
        int e = 0;

        if (!buffers &&
            r->small >= SMALL_MAX + (kind == OPERATION_WRITE_GENERATION ? WRITES_MAX : 0))
                return -EAGAIN;
        o = calloc(1, sizeof(*o));
        if (!o)
                return -ENOMEM;
        *o = (struct operation){
                .op = { .complete = on_complete, .completions = &r->completions },
                .remote = r,
                .kind = kind,
                .expiry.expire = on_expire,
                .buffers = buffers,
        };
        if (buffers) {
                e = buffers_acquire(buffers, bytes, &o->buffer);
        } else if (bytes > 0) {
                o->buffer.size = round_up(bytes, REMOTE_HEADER_BYTES);
                o->buffer.bytes = aligned_alloc(REMOTE_HEADER_BYTES, o->buffer.size);
                e = o->buffer.bytes ? 0 : -ENOMEM;
        }
        if (e == 0)
                e = deadlines_add(&r->deadlines, &o->expiry, UINT64_MAX);
        if (e < 0) {
                if (buffers && o->buffer.bytes)
                        buffers_release(buffers, o->buffer, clock_mono_ns());
                else
                        free(o->buffer.bytes);
                free(o);
                return e;
        }
        o->op.pieces[0] = (struct iovec){ o->buffer.bytes, o->buffer.size };
        r->small += !buffers;
        r->deleting += kind == OPERATION_DELETE;
        list_append(&r->operations, &o->node);
        *ret = o;
        return 0;
}

struct operation *operation_free(struct operation *o)
{
        struct remote *r = o->remote;

        deadlines_remove(&r->deadlines, &o->expiry);
        list_unlink(&o->node);
        r->small -= !o->buffers;
        r->deleting -= o->kind == OPERATION_DELETE;
        if (o->kind == OPERATION_GET)
                r->held[sfq_number(o->tenant)] -= o->buffer.size;
        if (o->buffers)
                buffers_release(o->buffers, o->buffer, clock_mono_ns());
        else
                free(o->buffer.bytes);
        free(o);
        return NULL;
}

/* Updates the measurements for break-even after the number of gets in flight has changed by `add`,
 * and `bytes` were read. Adds the time during which gets are at the storage system, and the bytes
 * read in it. Both decay as they grow, so that recent seconds dominate. */
static void count_busy(struct remote *r, int add, uint64_t bytes, uint64_t now_ns)
{
        const double horizon_ns = 10e9;

        if (r->reading > 0) {
                r->busy_ns += (double)(now_ns - MIN(r->busy_since_ns, now_ns));
                if (r->busy_ns > 2 * horizon_ns) {
                        r->busy_ns /= 2;
                        r->read_bytes /= 2;
                }
        }
        r->busy_since_ns = MAX(r->busy_since_ns, now_ns);
        r->reading += (unsigned)add;
        r->read_bytes += (double)bytes;
}

void operation_submit(struct operation *o, enum backend_op_kind kind)
{
        struct remote *r = o->remote;

        o->op.kind = kind;
        o->op.submitted_ns = clock_mono_ns();
        o->op.deadline_ns = o->op.submitted_ns + r->params.timeout_ns;
        /* Cannot fail, because operation_new() has added the deadline. */
        (void)deadlines_add(&r->deadlines, &o->expiry, o->op.deadline_ns);
        o->under_way = true;
        r->inflight++;
        if (o->kind == OPERATION_GET)
                count_busy(r, 1, 0, o->op.submitted_ns);
        r->params.ops->submit(r->backend, &o->op);
}

void operation_keep(struct operation *o, void (*kept)(struct operation *o))
{
        o->kept = kept;
}

/* --- statistics --- */

/* Updates the moving average of a small read's latency. */
static void count_latency(struct remote *r, uint64_t took_ns)
{
        r->latency_ns += ((double)took_ns - r->latency_ns) / (r->latency_ns > 0 ? 8 : 1);
}

static bool is_error(int result)
{
        return result < 0 && result != -ENOENT && result != -EEXIST && result != -ECANCELED;
}

/* Returns whether a result suggests that the storage system is down or overloaded. */
static bool is_failure(const struct operation *o, int result)
{
        bool writes = o->op.kind != BACKEND_READ;

        return is_error(result) && result != -E2BIG &&
               !(writes && (result == -ENOSPC || result == -EACCES || result == -EROFS));
}

static void set_reason(struct remote *r, const struct operation *o, int result)
{
        static const char *const verbs[BACKEND_OP_END] = {
                [BACKEND_READ] = "reading",
                [BACKEND_CREATE] = "writing",
                [BACKEND_REPLACE] = "writing",
                [BACKEND_DELETE] = "deleting",
        };

        /* Copies no sentence of an expired operation, because it belongs to the storage system,
         * including `error`. */
        snprintf(r->reason, sizeof(r->reason), "%s: %s", verbs[o->op.kind],
                 o->expired            ? "no answer within remote.timeout"
                 : o->op.error[0] != 0 ? o->op.error
                                       : strerror(-result));
}

/* Accounts for an operation that ended at `ended_ns`, or that had not ended by its deadline. */
static void count(struct operation *o, int result, uint64_t ended_ns)
{
        struct remote *r = o->remote;
        bool failed = is_failure(o, result);
        uint64_t took_ns = ended_ns - MIN(o->op.submitted_ns, ended_ns);

        if (o->kind == OPERATION_GET)
                count_busy(r, -1, result == 0 ? o->op.transferred : 0, ended_ns);
        if (result == -ECANCELED)
                return;
        if (is_error(result)) {
                r->stats.errors[o->op.kind]++;
                set_reason(r, o, result);
        } else if (o->op.kind == BACKEND_READ && o->kind != OPERATION_GET) {
                count_latency(r, took_ns);
        }
        if (o->kind == OPERATION_GET && !o->expired)
                histogram_add(&r->stats.get_times, took_ns);
        if (o->kind == OPERATION_PUT && !o->expired)
                histogram_add(&r->stats.put_times, took_ns);
        if (o->kind != OPERATION_TRIAL && o->kind != OPERATION_DELETE &&
            breaker_count(&r->breaker, failed, took_ns, clock_mono_ns()))
                gets_fail_waiting(r);
}

static void on_complete(struct backend_op *op)
{
        struct operation *o = container_of(op, struct operation, op);
        struct remote *r = o->remote;

        r->inflight--;
        o->under_way = false;
        if (!o->expired) {
                deadlines_remove(&r->deadlines, &o->expiry);
                count(o, op->result, op->ended_ns);
                o->done(o, op->result);
        } else if (o->kind == OPERATION_GET && !r->stopping) {
                r->stats.late++;
        }
        if (o->kept)
                o->kept(o);
        else
                operation_free(o);
}

static void on_expire(struct deadline *d, uint64_t now_ns)
{
        struct operation *o = container_of(d, struct operation, expiry);

        o->expired = true;
        count(o, -ETIMEDOUT, now_ns);
        o->done(o, -ETIMEDOUT);
}

static struct operation *find_under_way(const struct remote *r)
{
        list_for_each (&r->operations, node) {
                struct operation *o = container_of(node, struct operation, node);

                if (o->under_way && !o->expired)
                        return o;
        }
        return NULL;
}

void operations_cancel(struct remote *r)
{
        struct operation *o;

        /* Restart from the beginning, because done() may free other operations. */
        while ((o = find_under_way(r))) {
                deadlines_remove(&r->deadlines, &o->expiry);
                o->expired = true;
                count(o, -ECANCELED, clock_mono_ns());
                o->done(o, -ECANCELED);
        }
}

/* --- deletes --- */

static void on_deleted(struct operation *o, int result)
{
        o->remote->stats.deletes += result == 0;
}

/* Deletes an object in the background, unless too many deletes are in flight. */
static void delete_object(struct remote *r, const char *name)
{
        struct operation *o;

        if (r->stopping || r->deleting >= DELETES_MAX ||
            operation_new(r, OPERATION_DELETE, NULL, 0, &o) < 0)
                return;
        o->done = on_deleted;
        memcpy(o->op.name, name, sizeof(o->op.name));
        operation_submit(o, BACKEND_DELETE);
}

void remote_reject(struct remote *r, enum remote_rejection why, const char *name)
{
        r->stats.rejected[why]++;
        if (why != REMOTE_BAD_VERSION) /* an object of a later version is kept, because hosts with
                                        * newer software can read it */
                delete_object(r, name);
}

/* --- trials --- */

static void on_trial(struct operation *o, int result)
{
        struct remote *r = o->remote;
        uint64_t now_ns = clock_mono_ns();
        bool failed = is_error(result) || result == -ECANCELED ||
                      o->op.ended_ns > o->op.submitted_ns + r->breaker.slow_ns;

        if (r->stopping)
                return;
        breaker_trial_end(&r->breaker, failed, now_ns);
        if (!failed && r->breaker.state == REMOTE_CLOSED)
                remote_namespaces_read_soon(r, now_ns);
}

/* Sends a trial, which reads an object that usually exists. Its absence is also a valid answer. */
void remote_trial(struct remote *r, uint64_t now_ns)
{
        static const struct remote_identity any;
        struct operation *o;

        if (r->stopping || !breaker_trial(&r->breaker, now_ns))
                return;
        if (operation_new(r, OPERATION_TRIAL, NULL, REMOTE_HEADER_BYTES, &o) < 0) {
                breaker_trial_end(&r->breaker, true, now_ns);
                return;
        }
        o->done = on_trial;
        remote_generation_name(r->prefix, r->n_namespaces > 0 ? &r->namespaces[0]->identity : &any,
                               o->op.name);
        operation_submit(o, BACKEND_READ);
}
