/* SPDX-License-Identifier: Apache-2.0 */
/* The sweeper's operations on RADOS: a lock on an object as the lease, and listing all objects of a
 * RADOS namespace. All functions block, for at most rados_osd_op_timeout per call, on the sweeper's
 * thread.
 *
 * The mtime of an object is a time in seconds by the clock of the host that wrote it.
 *
 * RADOS cannot delete conditionally on mtime. However, every change of an object, including
 * mark_used(), advances its version. The deletion therefore asserts the version with which mtime
 * was read. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "remote/rados.h"

enum { LIST_BATCH = 64 };

#define LOCK_NAME "kvcache"

static void leave_blocking(struct rados *r)
{
        pthread_mutex_lock(&r->lock);
        r->n_blocking--;
        pthread_cond_signal(&r->work);
        pthread_mutex_unlock(&r->lock);
}

static int begin_blocking(struct rados *r, rados_ioctx_t *ret)
{
        rados_ioctx_t io;
        int e = 0;

        pthread_mutex_lock(&r->lock);
        if (r->stopping)
                e = -ECANCELED;
        else if (r->state != RADOS_CONNECTED)
                e = -ENOTCONN;
        else
                r->n_blocking++;
        pthread_mutex_unlock(&r->lock);
        if (e < 0)
                return e;
        e = r->api.ioctx_create(r->cluster, r->pool, &io);
        if (e >= 0) {
                r->api.ioctx_set_namespace(io, r->prefix);
                *ret = io;
                return 0;
        }
        leave_blocking(r);
        return rados_errno(e);
}

static int end_blocking(struct rados *r, rados_ioctx_t io, int result)
{
        r->api.ioctx_destroy(io);
        leave_blocking(r);
        return result;
}

static int lock_object(struct rados *r, rados_ioctx_t io, const char *oid, const char *owner,
                       uint64_t for_ns)
{
        struct timeval duration = { (time_t)(for_ns / 1000000000),
                                    (suseconds_t)(for_ns % 1000000000 / 1000) };

        return r->api.lock_exclusive(io, oid, LOCK_NAME, owner, "kvcachectl remote sweep",
                                     &duration, RADOS_LOCK_FLAG_MAY_RENEW);
}

/* Breaks a lock that `owner` holds through an earlier connection, since RADOS identifies a lock by
 * connection and cookie. Returns whether it did so. */
static bool break_own_lock(struct rados *r, rados_ioctx_t io, const char *oid, const char *owner)
{
        char tag[256], clients[256], cookies[512], addresses[512];
        size_t tag_n = sizeof(tag), clients_n = sizeof(clients), cookies_n = sizeof(cookies),
               addresses_n = sizeof(addresses);
        int exclusive;
        ssize_t n = r->api.list_lockers(io, oid, LOCK_NAME, &exclusive, tag, &tag_n, clients,
                                        &clients_n, cookies, &cookies_n, addresses, &addresses_n);

        if (n != 1 || memchr(clients, 0, sizeof(clients)) == NULL ||
            memchr(cookies, 0, sizeof(cookies)) == NULL || strcmp(cookies, owner) != 0)
                return false;
        return r->api.break_lock(io, oid, LOCK_NAME, clients, cookies) >= 0;
}

int rados_lease(struct backend *b, const char *name, const char *owner, uint64_t for_ns)
{
        struct rados *r = (struct rados *)b;
        const char *oid = rados_oid(r, name);
        rados_ioctx_t io;
        int e;

        if (!oid)
                return -EINVAL;
        e = begin_blocking(r, &io);
        if (e < 0)
                return e;
        e = lock_object(r, io, oid, owner, for_ns);
        if (e == -EBUSY && break_own_lock(r, io, oid, owner))
                e = lock_object(r, io, oid, owner, for_ns);
        return end_blocking(r, io, rados_errno(e));
}

int rados_release(struct backend *b, const char *name, const char *owner)
{
        struct rados *r = (struct rados *)b;
        const char *oid = rados_oid(r, name);
        rados_ioctx_t io;
        int e;

        if (!oid)
                return -EINVAL;
        e = begin_blocking(r, &io);
        if (e < 0)
                return e;
        e = r->api.unlock(io, oid, LOCK_NAME, owner);
        return end_blocking(r, io, rados_errno(e));
}

struct found {
        struct backend_entry entry;
        rados_completion_t completion;
        uint64_t size;
        time_t mtime;
        int started;
};

/* Calls each() for the objects found, except those deleted meanwhile. Returns 0, 1 if each()
 * returned false, or -errno. */
static int tell(struct rados *r, rados_ioctx_t io, struct found *found, unsigned n,
                bool (*each)(void *userdata, const struct backend_entry *e), void *userdata)
{
        int e = 0;

        for (unsigned i = 0; i < n; i++) {
                struct found *f = &found[i];

                f->started = r->api.aio_create_completion2(NULL, NULL, &f->completion);
                if (f->started < 0)
                        continue;
                f->started = r->api.aio_stat(io, rados_oid(r, f->entry.name), f->completion,
                                             &f->size, &f->mtime);
                if (f->started < 0)
                        r->api.aio_release(f->completion);
        }
        for (unsigned i = 0; i < n; i++) {
                struct found *f = &found[i];
                int s = f->started;

                if (s >= 0) {
                        r->api.aio_wait_for_complete(f->completion);
                        s = r->api.aio_get_return_value(f->completion);
                        r->api.aio_release(f->completion);
                }
                if (e != 0 || s == -ENOENT)
                        continue;
                if (s < 0) {
                        e = rados_errno(s);
                        continue;
                }
                f->entry.bytes = f->size;
                f->entry.used_ms = f->mtime > 0 ? (uint64_t)f->mtime * 1000 : 0;
                if (!each(userdata, &f->entry))
                        e = 1;
        }
        return e;
}

static int walk(struct rados *r, rados_ioctx_t io, rados_list_ctx_t list, struct found *found,
                bool (*each)(void *userdata, const struct backend_entry *e), void *userdata,
                const bool *stop)
{
        unsigned n = 0;
        int e = 0;

        while (e == 0 && !__atomic_load_n(stop, __ATOMIC_ACQUIRE) &&
               !__atomic_load_n(&r->stopping, __ATOMIC_ACQUIRE)) {
                const char *entry = NULL, *key = NULL, *space = NULL;
                int length;

                e = r->api.nobjects_list_next(list, &entry, &key, &space);
                if (e < 0 && e != -ENOENT)
                        return rados_errno(e);
                if (e == -ENOENT) {
                        e = tell(r, io, found, n, each, userdata);
                        return MIN(e, 0);
                }
                length = snprintf(found[n].entry.name, sizeof(found[n].entry.name), "%s%s%s",
                                  r->prefix, *r->prefix ? "/" : "", entry);
                if (length >= (int)sizeof(found[n].entry.name)) /* a name that is too long for an
                                                                 * object's name is skipped */
                        continue;
                if (++n == LIST_BATCH) {
                        e = tell(r, io, found, n, each, userdata);
                        n = 0;
                }
        }
        return e < 0 ? e : e == 1 ? 0 : -ECANCELED;
}

int rados_list(struct backend *b, bool tidy,
               bool (*each)(void *userdata, const struct backend_entry *e), void *userdata,
               const bool *stop)
{
        struct rados *r = (struct rados *)b;
        struct found *found = calloc(LIST_BATCH, sizeof(*found));
        rados_ioctx_t io;
        rados_list_ctx_t list;
        int e;

        if (!found)
                return -ENOMEM;
        e = begin_blocking(r, &io);
        if (e < 0) {
                free(found);
                return e;
        }
        e = r->api.nobjects_list_open(io, &list);
        if (e >= 0) {
                e = walk(r, io, list, found, each, userdata, stop);
                r->api.nobjects_list_close(list);
        } else {
                e = rados_errno(e);
        }
        free(found);
        return end_blocking(r, io, e);
}

int rados_remove_unused(struct backend *b, const char *name, uint64_t used_ms)
{
        struct rados *r = (struct rados *)b;
        const char *oid = rados_oid(r, name);
        rados_write_op_t op;
        rados_ioctx_t io;
        uint64_t size, version;
        time_t mtime;
        int e;

        if (!oid)
                return -EINVAL;
        e = begin_blocking(r, &io);
        if (e < 0)
                return e;
        e = r->api.stat(io, oid, &size, &mtime);
        if (e < 0)
                return end_blocking(r, io, rados_errno(e));
        version = r->api.get_last_version(io);
        if (mtime > 0 && (uint64_t)mtime > used_ms / 1000)
                return end_blocking(r, io, -EAGAIN);
        op = r->api.create_write_op();
        if (!op)
                return end_blocking(r, io, -ENOMEM);
        r->api.write_op_assert_version(op, version);
        r->api.write_op_remove(op);
        e = r->api.write_op_operate(op, io, oid, NULL, RADOS_OPERATION_FULL_TRY);
        r->api.release_write_op(op);
        if (e == -ERANGE || e == -EOVERFLOW)
                return end_blocking(r, io, -EAGAIN);
        return end_blocking(r, io, rados_errno(e));
}
