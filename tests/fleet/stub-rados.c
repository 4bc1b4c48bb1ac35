/* SPDX-License-Identifier: Apache-2.0 */
/* See stub-rados.h. One lock for all. */
#include "stub-rados.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "remote/librados.h"

#define EXPORT __attribute__((visibility("default")))

enum { OPTIONS = 16, FAULTS = 8, COUNTS = 64, STEPS = 8 };

struct object {
        struct object *next;
        char space[160], oid[320];
        char *data;
        uint64_t size, version;
        int64_t mtime;
        char owner[128];
        const void *locker; /* the cluster handle that has the lock */
        struct timespec lock_until;
};

struct cluster {
        bool connected;
};

struct context {
        struct cluster *cluster;
        char space[160];
        uint64_t last_version;
};

struct completion {
        void *userdata;
        rados_callback_t complete;
        int result;
        bool done;
        unsigned refs;
};

enum step_kind { CREATE, EXISTS, VERSION, WRITE_FULL, WRITE, SETXATTR, REMOVE, STAT, READ };

struct step {
        enum step_kind kind;
        uint64_t offset, n;
        char *bytes; /* a copy of the bytes to write, as librados makes one; or the target of a read
                      */
        size_t *ret_n;
        int *ret_result;
        uint64_t *ret_size;
        time_t *ret_mtime;
};

struct operation {
        struct operation *next;
        struct step steps[STEPS];
        unsigned n;
        bool owned; /* by the queue: made for aio_stat() */
        struct context *io;
        struct completion *completion;
        char oid[320];
        bool writes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static struct object *objects;
static struct operation *queue;
static bool running, hanging, deaf, connect_hangs;
static uint64_t lies, versions;
static unsigned live;
static struct {
        char name[48], value[48];
} options[OPTIONS];
static struct {
        char function[48];
        unsigned after, times;
        int result;
} faults[FAULTS];
static struct {
        char function[48];
        unsigned n;
} counts[COUNTS];

/* Returns 0, or the error with which the call must fail. The caller holds the lock. */
static int enter(const char *function)
{
        for (unsigned i = 0; i < COUNTS; i++)
                if (!*counts[i].function || strcmp(counts[i].function, function) == 0) {
                        snprintf(counts[i].function, sizeof(counts[i].function), "%s", function);
                        counts[i].n++;
                        break;
                }
        for (unsigned i = 0; i < FAULTS; i++) {
                if (faults[i].times == 0 || strcmp(faults[i].function, function) != 0)
                        continue;
                if (faults[i].after > 0) {
                        faults[i].after--;
                        continue;
                }
                faults[i].times--;
                return faults[i].result;
        }
        return 0;
}

static int call(const char *function)
{
        int r;

        pthread_mutex_lock(&lock);
        r = enter(function);
        pthread_mutex_unlock(&lock);
        return r;
}

/* --- objects; the lock is held --- */

static struct object *find(const char *space, const char *oid)
{
        for (struct object *o = objects; o; o = o->next)
                if (strcmp(o->space, space) == 0 && strcmp(o->oid, oid) == 0)
                        return o;
        return NULL;
}

static struct object *make(const char *space, const char *oid)
{
        struct object *o = find(space, oid);

        if (o)
                return o;
        o = calloc(1, sizeof(*o));
        snprintf(o->space, sizeof(o->space), "%s", space);
        snprintf(o->oid, sizeof(o->oid), "%s", oid);
        o->next = objects;
        objects = o;
        return o;
}

static void forget(struct object *dead)
{
        for (struct object **p = &objects; *p; p = &(*p)->next)
                if (*p == dead) {
                        *p = dead->next;
                        free(dead->data);
                        free(dead);
                        return;
                }
}

static void resize(struct object *o, uint64_t size)
{
        o->data = realloc(o->data, MAX(size, (uint64_t)1));
        if (size > o->size)
                memset(o->data + o->size, 0, size - o->size);
        o->size = size;
}

static int do_step(struct operation *p, const struct step *s)
{
        struct object *o = find(p->io->space, p->oid);
        uint64_t n;

        switch (s->kind) {
        case CREATE:
                if (o)
                        return -EEXIST;
                make(p->io->space, p->oid);
                return 0;
        case EXISTS:
                return o ? 0 : -ENOENT;
        case VERSION:
                return !o ? -ENOENT : o->version == s->offset ? 0 : -ERANGE;
        case WRITE_FULL:
        case WRITE:
                o = make(p->io->space, p->oid);
                resize(o, s->kind == WRITE ? MAX(o->size, s->offset + s->n) : s->n);
                memcpy(o->data + s->offset, s->bytes, s->n);
                return 0;
        case SETXATTR:
                make(p->io->space, p->oid);
                return 0;
        case REMOVE:
                if (!o)
                        return -ENOENT;
                forget(o);
                return 0;
        case STAT:
                if (!o)
                        return -ENOENT;
                *s->ret_size = o->size;
                *s->ret_mtime = o->mtime;
                break;
        case READ:
                if (!o)
                        return -ENOENT;
                n = s->offset < o->size ? MIN(s->n, o->size - s->offset) : 0;
                if (n > 0)
                        memcpy(s->bytes, o->data + s->offset, n);
                *s->ret_n = n + lies;
                break;
        }
        if (s->ret_result)
                *s->ret_result = 0;
        return 0;
}

static int carry_out(struct operation *p)
{
        int r = enter(p->writes ? "write" : "read");
        struct object *o;

        for (unsigned i = 0; i < p->n && r >= 0; i++)
                r = do_step(p, &p->steps[i]);
        o = find(p->io->space, p->oid);
        if (r >= 0 && p->writes && o) {
                o->version = ++versions;
                o->mtime = time(NULL);
        }
        if (o)
                p->io->last_version = o->version;
        return r;
}

/* --- operations --- */

static void unref(struct completion *c)
{
        if (--c->refs == 0) {
                live--;
                free(c);
        }
}

/* Completes an operation. The caller holds the lock, which is released during the callback. */
static void finish(struct operation *p, int result)
{
        struct completion *c = p->completion;

        if (p->owned)
                free(p);
        c->result = result;
        c->done = true;
        pthread_cond_broadcast(&change);
        if (c->complete) {
                pthread_mutex_unlock(&lock);
                c->complete(c, c->userdata);
                pthread_mutex_lock(&lock);
        }
        unref(c);
}

static void *run(void *userdata)
{
        pthread_mutex_lock(&lock);
        for (;;) {
                struct operation *p = queue;

                if (!p || hanging) {
                        pthread_cond_wait(&change, &lock);
                        continue;
                }
                queue = p->next;
                finish(p, carry_out(p));
        }
        return NULL;
}

static int enqueue(struct operation *p, struct context *io, struct completion *c, const char *oid,
                   const char *function)
{
        struct operation **last = &queue;
        pthread_t thread;
        int r;

        pthread_mutex_lock(&lock);
        r = enter(function);
        if (r >= 0) {
                if (!running && pthread_create(&thread, NULL, run, NULL) == 0) {
                        pthread_detach(thread);
                        running = true;
                }
                p->io = io;
                p->completion = c;
                p->next = NULL;
                snprintf(p->oid, sizeof(p->oid), "%s", oid);
                c->refs++;
                while (*last)
                        last = &(*last)->next;
                *last = p;
                pthread_cond_broadcast(&change);
        }
        pthread_mutex_unlock(&lock);
        return r;
}

static struct step *add(struct operation *p, enum step_kind kind)
{
        if (p->n == STEPS)
                abort();
        p->steps[p->n] = (struct step){ .kind = kind };
        return &p->steps[p->n++];
}

static void *operation_new(bool writes)
{
        struct operation *p = call("create_op") < 0 ? NULL : calloc(1, sizeof(*p));

        if (p) {
                p->writes = writes;
                pthread_mutex_lock(&lock);
                live++;
                pthread_mutex_unlock(&lock);
        }
        return p;
}

static void operation_free(struct operation *p)
{
        for (unsigned i = 0; i < p->n; i++)
                if (p->steps[i].kind == WRITE || p->steps[i].kind == WRITE_FULL)
                        free(p->steps[i].bytes);
        free(p);
        pthread_mutex_lock(&lock);
        live--;
        pthread_mutex_unlock(&lock);
}

/* --- functions that rados.c calls --- */

#define X(name, type, arguments) EXPORT type rados_##name arguments;
LIBRADOS_FUNCTIONS(X)
#undef X

int rados_create(rados_t *ret, const char *id)
{
        int r = call("rados_create");

        if (r < 0)
                return r;
        *ret = calloc(1, sizeof(struct cluster));
        pthread_mutex_lock(&lock);
        live++;
        pthread_mutex_unlock(&lock);
        return 0;
}

int rados_conf_read_file(rados_t cluster, const char *path)
{
        return call("rados_conf_read_file");
}

int rados_conf_set(rados_t cluster, const char *option, const char *value)
{
        int r;

        pthread_mutex_lock(&lock);
        r = enter("rados_conf_set");
        for (unsigned i = 0; r >= 0 && i < OPTIONS; i++)
                if (!*options[i].name || strcmp(options[i].name, option) == 0) {
                        snprintf(options[i].name, sizeof(options[i].name), "%s", option);
                        snprintf(options[i].value, sizeof(options[i].value), "%s", value);
                        break;
                }
        pthread_mutex_unlock(&lock);
        return r;
}

int rados_connect(rados_t cluster)
{
        int r;

        pthread_mutex_lock(&lock);
        r = enter("rados_connect");
        while (connect_hangs)
                pthread_cond_wait(&change, &lock);
        ((struct cluster *)cluster)->connected = r >= 0;
        pthread_mutex_unlock(&lock);
        return r;
}

void rados_shutdown(rados_t cluster)
{
        pthread_mutex_lock(&lock);
        enter("rados_shutdown");
        live--;
        pthread_mutex_unlock(&lock);
        free(cluster);
}

int rados_ioctx_create(rados_t cluster, const char *pool, rados_ioctx_t *ret)
{
        struct context *io;
        int r = call("rados_ioctx_create");

        if (r < 0)
                return r;
        if (strcmp(pool, "missing") == 0)
                return -ENOENT;
        io = calloc(1, sizeof(*io));
        io->cluster = cluster;
        *ret = io;
        pthread_mutex_lock(&lock);
        live++;
        pthread_mutex_unlock(&lock);
        return 0;
}

void rados_ioctx_destroy(rados_ioctx_t io)
{
        free(io);
        pthread_mutex_lock(&lock);
        live--;
        pthread_mutex_unlock(&lock);
}

void rados_ioctx_set_namespace(rados_ioctx_t io, const char *name)
{
        struct context *c = io;

        snprintf(c->space, sizeof(c->space), "%s", name);
}

int rados_aio_create_completion2(void *userdata, rados_callback_t complete, rados_completion_t *ret)
{
        struct completion *c;
        int r = call("rados_aio_create_completion2");

        if (r < 0)
                return r;
        c = calloc(1, sizeof(*c));
        *c = (struct completion){ .userdata = userdata, .complete = complete, .refs = 1 };
        *ret = c;
        pthread_mutex_lock(&lock);
        live++;
        pthread_mutex_unlock(&lock);
        return 0;
}

int rados_aio_get_return_value(rados_completion_t c)
{
        return ((struct completion *)c)->result;
}

int rados_aio_wait_for_complete(rados_completion_t c)
{
        pthread_mutex_lock(&lock);
        while (!((struct completion *)c)->done)
                pthread_cond_wait(&change, &lock);
        pthread_mutex_unlock(&lock);
        return 0;
}

void rados_aio_release(rados_completion_t c)
{
        pthread_mutex_lock(&lock);
        unref(c);
        pthread_mutex_unlock(&lock);
}

int rados_aio_cancel(rados_ioctx_t io, rados_completion_t c)
{
        int r;

        pthread_mutex_lock(&lock);
        r = enter("rados_aio_cancel");
        for (struct operation **p = &queue; r >= 0 && !deaf && *p; p = &(*p)->next)
                if ((*p)->completion == c) {
                        struct operation *found = *p;

                        *p = found->next;
                        finish(found, -ECANCELED);
                        break;
                }
        pthread_mutex_unlock(&lock);
        return r;
}

int rados_aio_stat(rados_ioctx_t io, const char *oid, rados_completion_t c, uint64_t *ret_size,
                   time_t *ret_mtime)
{
        struct operation *p = calloc(1, sizeof(*p));
        struct step *s = add(p, STAT);
        int r;

        s->ret_size = ret_size;
        s->ret_mtime = ret_mtime;
        p->owned = true;
        r = enqueue(p, io, c, oid, "rados_aio_stat");
        if (r < 0)
                free(p);
        return r;
}

rados_write_op_t rados_create_write_op(void)
{
        return operation_new(true);
}

void rados_release_write_op(rados_write_op_t op)
{
        operation_free(op);
}

void rados_write_op_create(rados_write_op_t op, int exclusive, const char *category)
{
        if (exclusive != RADOS_CREATE_EXCLUSIVE)
                abort();
        add(op, CREATE);
}

void rados_write_op_assert_exists(rados_write_op_t op)
{
        add(op, EXISTS);
}

void rados_write_op_assert_version(rados_write_op_t op, uint64_t version)
{
        add(op, VERSION)->offset = version;
}

static void add_write(struct operation *p, enum step_kind kind, const char *buffer, size_t n,
                      uint64_t offset)
{
        struct step *s = add(p, kind);

        s->offset = offset;
        s->n = n;
        s->bytes = malloc(MAX(n, 1u));
        memcpy(s->bytes, buffer, n);
}

void rados_write_op_write_full(rados_write_op_t op, const char *buffer, size_t n)
{
        add_write(op, WRITE_FULL, buffer, n, 0);
}

void rados_write_op_write(rados_write_op_t op, const char *buffer, size_t n, uint64_t offset)
{
        add_write(op, WRITE, buffer, n, offset);
}

void rados_write_op_setxattr(rados_write_op_t op, const char *name, const char *value, size_t n)
{
        add(op, SETXATTR);
}

void rados_write_op_remove(rados_write_op_t op)
{
        add(op, REMOVE);
}

int rados_write_op_operate(rados_write_op_t op, rados_ioctx_t io, const char *oid, time_t *mtime,
                           int flags)
{
        struct operation *p = op;
        int r;

        pthread_mutex_lock(&lock);
        p->io = io;
        snprintf(p->oid, sizeof(p->oid), "%s", oid);
        r = enter("rados_write_op_operate");
        if (r >= 0)
                r = carry_out(p);
        pthread_mutex_unlock(&lock);
        return r;
}

int rados_aio_write_op_operate(rados_write_op_t op, rados_ioctx_t io, rados_completion_t c,
                               const char *oid, time_t *mtime, int flags)
{
        if (!(flags & RADOS_OPERATION_FULL_TRY))
                abort(); /* librados would wait for room */
        return enqueue(op, io, c, oid, "rados_aio_write_op_operate");
}

rados_read_op_t rados_create_read_op(void)
{
        return operation_new(false);
}

void rados_release_read_op(rados_read_op_t op)
{
        operation_free(op);
}

void rados_read_op_stat(rados_read_op_t op, uint64_t *ret_size, time_t *ret_mtime, int *ret_result)
{
        struct step *s = add(op, STAT);

        s->ret_size = ret_size;
        s->ret_mtime = ret_mtime;
        s->ret_result = ret_result;
}

void rados_read_op_read(rados_read_op_t op, uint64_t offset, size_t n, char *buffer, size_t *ret_n,
                        int *ret_result)
{
        struct step *s = add(op, READ);

        s->offset = offset;
        s->n = n;
        s->bytes = buffer;
        s->ret_n = ret_n;
        s->ret_result = ret_result;
}

int rados_aio_read_op_operate(rados_read_op_t op, rados_ioctx_t io, rados_completion_t c,
                              const char *oid, int flags)
{
        return enqueue(op, io, c, oid, "rados_aio_read_op_operate");
}

int rados_stat(rados_ioctx_t io, const char *oid, uint64_t *ret_size, time_t *ret_mtime)
{
        struct context *c = io;
        struct object *o;
        int r;

        pthread_mutex_lock(&lock);
        r = enter("rados_stat");
        o = find(c->space, oid);
        if (r >= 0 && !o)
                r = -ENOENT;
        if (r >= 0) {
                *ret_size = o->size;
                *ret_mtime = o->mtime;
                c->last_version = o->version;
        }
        pthread_mutex_unlock(&lock);
        return r;
}

uint64_t rados_get_last_version(rados_ioctx_t io)
{
        return ((struct context *)io)->last_version;
}

static bool is_locked(const struct object *o)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return *o->owner &&
               (now.tv_sec < o->lock_until.tv_sec ||
                (now.tv_sec == o->lock_until.tv_sec && now.tv_nsec < o->lock_until.tv_nsec));
}

int rados_lock_exclusive(rados_ioctx_t io, const char *oid, const char *name, const char *cookie,
                         const char *description, struct timeval *duration, uint8_t flags)
{
        struct context *c = io;
        struct object *o;
        int r;

        pthread_mutex_lock(&lock);
        r = enter("rados_lock_exclusive");
        if (r >= 0) {
                o = make(c->space, oid);
                if (is_locked(o) && (strcmp(o->owner, cookie) != 0 || o->locker != c->cluster)) {
                        r = -EBUSY;
                } else {
                        snprintf(o->owner, sizeof(o->owner), "%s", cookie);
                        o->locker = c->cluster;
                        clock_gettime(CLOCK_MONOTONIC, &o->lock_until);
                        o->lock_until.tv_sec += duration->tv_sec;
                        o->lock_until.tv_nsec += duration->tv_usec * 1000;
                        if (o->lock_until.tv_nsec >= 1000000000) {
                                o->lock_until.tv_nsec -= 1000000000;
                                o->lock_until.tv_sec++;
                        }
                }
        }
        pthread_mutex_unlock(&lock);
        return r;
}

int rados_unlock(rados_ioctx_t io, const char *oid, const char *name, const char *cookie)
{
        struct context *c = io;
        struct object *o;
        int r;

        pthread_mutex_lock(&lock);
        r = enter("rados_unlock");
        o = find(c->space, oid);
        if (r >= 0 &&
            (!o || !is_locked(o) || strcmp(o->owner, cookie) != 0 || o->locker != c->cluster))
                r = -ENOENT;
        if (r >= 0)
                *o->owner = 0;
        pthread_mutex_unlock(&lock);
        return r;
}

ssize_t rados_list_lockers(rados_ioctx_t io, const char *oid, const char *name, int *ret_exclusive,
                           char *tag, size_t *tag_n, char *clients, size_t *clients_n,
                           char *cookies, size_t *cookies_n, char *addresses, size_t *addresses_n)
{
        struct context *c = io;
        struct object *o;
        ssize_t n;

        pthread_mutex_lock(&lock);
        n = enter("rados_list_lockers");
        o = find(c->space, oid);
        if (n >= 0 && o && is_locked(o)) {
                snprintf(clients, *clients_n, "client.%p", o->locker);
                snprintf(cookies, *cookies_n, "%s", o->owner);
                n = 1;
        }
        pthread_mutex_unlock(&lock);
        return n;
}

int rados_break_lock(rados_ioctx_t io, const char *oid, const char *name, const char *client,
                     const char *cookie)
{
        struct context *c = io;
        struct object *o;
        int r;

        pthread_mutex_lock(&lock);
        r = enter("rados_break_lock");
        o = find(c->space, oid);
        if (r >= 0 && o)
                *o->owner = 0;
        pthread_mutex_unlock(&lock);
        return r;
}

struct listing {
        char space[160];
        char (*names)[320];
        unsigned n, at;
};

int rados_nobjects_list_open(rados_ioctx_t io, rados_list_ctx_t *ret)
{
        struct context *c = io;
        struct listing *l;
        unsigned n = 0;
        int r = call("rados_nobjects_list_open");

        if (r < 0)
                return r;
        l = calloc(1, sizeof(*l));
        pthread_mutex_lock(&lock);
        live++;
        for (struct object *o = objects; o; o = o->next)
                n++;
        l->names = calloc(n + 1, sizeof(*l->names));
        for (struct object *o = objects; o; o = o->next)
                if (strcmp(o->space, c->space) == 0)
                        memcpy(l->names[l->n++], o->oid, sizeof(o->oid));
        pthread_mutex_unlock(&lock);
        *ret = l;
        return 0;
}

int rados_nobjects_list_next(rados_list_ctx_t list, const char **ret_entry, const char **ret_key,
                             const char **ret_namespace)
{
        struct listing *l = list;
        int r = call("rados_nobjects_list_next");

        if (r < 0)
                return r;
        if (l->at == l->n)
                return -ENOENT;
        *ret_entry = l->names[l->at++];
        return 0;
}

void rados_nobjects_list_close(rados_list_ctx_t list)
{
        struct listing *l = list;

        free(l->names);
        free(l);
        pthread_mutex_lock(&lock);
        live--;
        pthread_mutex_unlock(&lock);
}

/* --- functions that the tests call --- */

EXPORT void stub_fault(const char *function, unsigned after, unsigned times, int result);
EXPORT void stub_hang(bool on);
EXPORT void stub_ignore_cancel(bool on);
EXPORT void stub_hang_connect(bool on);
EXPORT void stub_lie(uint64_t bytes);
EXPORT unsigned stub_calls(const char *function);
EXPORT const char *stub_option(const char *name);
EXPORT bool stub_set_mtime(const char *oid, int64_t mtime);
EXPORT int64_t stub_mtime(const char *oid);
EXPORT bool stub_has(const char *space, const char *oid);
EXPORT unsigned stub_live(void);
EXPORT unsigned stub_pending(void);
EXPORT void stub_reset(void);

void stub_fault(const char *function, unsigned after, unsigned times, int result)
{
        pthread_mutex_lock(&lock);
        for (unsigned i = 0; i < FAULTS; i++)
                if (faults[i].times == 0) {
                        snprintf(faults[i].function, sizeof(faults[i].function), "%s", function);
                        faults[i].after = after;
                        faults[i].times = times;
                        faults[i].result = result;
                        break;
                }
        pthread_mutex_unlock(&lock);
}

static void set(bool *what, bool on)
{
        pthread_mutex_lock(&lock);
        *what = on;
        pthread_cond_broadcast(&change);
        pthread_mutex_unlock(&lock);
}

void stub_hang(bool on)
{
        set(&hanging, on);
}

void stub_ignore_cancel(bool on)
{
        set(&deaf, on);
}

void stub_hang_connect(bool on)
{
        set(&connect_hangs, on);
}

void stub_lie(uint64_t bytes)
{
        pthread_mutex_lock(&lock);
        lies = bytes;
        pthread_mutex_unlock(&lock);
}

unsigned stub_calls(const char *function)
{
        unsigned n = 0;

        pthread_mutex_lock(&lock);
        for (unsigned i = 0; i < COUNTS; i++)
                if (strcmp(counts[i].function, function) == 0)
                        n = counts[i].n;
        pthread_mutex_unlock(&lock);
        return n;
}

const char *stub_option(const char *name)
{
        const char *value = "";

        pthread_mutex_lock(&lock);
        for (unsigned i = 0; i < OPTIONS; i++)
                if (strcmp(options[i].name, name) == 0)
                        value = options[i].value;
        pthread_mutex_unlock(&lock);
        return value;
}

static struct object *find_anywhere(const char *oid)
{
        struct object *o = objects;

        while (o && strcmp(o->oid, oid) != 0)
                o = o->next;
        return o;
}

bool stub_set_mtime(const char *oid, int64_t mtime)
{
        struct object *o;

        pthread_mutex_lock(&lock);
        o = find_anywhere(oid);
        if (o)
                o->mtime = mtime;
        pthread_mutex_unlock(&lock);
        return o;
}

int64_t stub_mtime(const char *oid)
{
        struct object *o;
        int64_t mtime;

        pthread_mutex_lock(&lock);
        o = find_anywhere(oid);
        mtime = o ? o->mtime : 0;
        pthread_mutex_unlock(&lock);
        return mtime;
}

bool stub_has(const char *space, const char *oid)
{
        bool there;

        pthread_mutex_lock(&lock);
        there = find(space, oid);
        pthread_mutex_unlock(&lock);
        return there;
}

unsigned stub_live(void)
{
        unsigned n;

        pthread_mutex_lock(&lock);
        n = live;
        pthread_mutex_unlock(&lock);
        return n;
}

unsigned stub_pending(void)
{
        unsigned n = 0;

        pthread_mutex_lock(&lock);
        for (struct operation *p = queue; p; p = p->next)
                n++;
        pthread_mutex_unlock(&lock);
        return n;
}

void stub_reset(void)
{
        pthread_mutex_lock(&lock);
        while (objects)
                forget(objects);
        memset(options, 0, sizeof(options));
        memset(faults, 0, sizeof(faults));
        memset(counts, 0, sizeof(counts));
        hanging = deaf = connect_hangs = false;
        lies = 0;
        pthread_cond_broadcast(&change);
        pthread_mutex_unlock(&lock);
}
