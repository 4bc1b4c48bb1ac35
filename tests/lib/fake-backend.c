/* SPDX-License-Identifier: Apache-2.0 */
/* A fake back end; see fake-backend.h. There is one, protected by one lock; the thread of
 * FAKE_THREAD is started with the first back end and ends with it. */
#include "fake-backend.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"

struct object {
        struct list_node node;
        char name[REMOTE_NAME_MAX];
        uint8_t *bytes;
        size_t size;
        uint64_t used_ms;
};

struct backend {
        pthread_mutex_t lock;
        pthread_cond_t cond;
        struct list_node objects, inbox, held;
        enum fake_end ends[BACKEND_OP_END];
        struct {
                int result;
                unsigned times;
        } faults[BACKEND_OP_END];
        unsigned counts[BACKEND_OP_END], n_objects, n_held, marked, lists;
        bool hide_sizes, hang_list, listing, stopping, has_thread;
        pthread_t thread;
        char leased[64];
};

static struct backend fake = {
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .cond = PTHREAD_COND_INITIALIZER,
        .objects = LIST_INIT(fake.objects),
        .inbox = LIST_INIT(fake.inbox),
        .held = LIST_INIT(fake.held),
};

static void lock(void)
{
        pthread_mutex_lock(&fake.lock);
}

static void unlock(void)
{
        pthread_mutex_unlock(&fake.lock);
}

/* --- objects, under the lock --- */

static struct object *find(const char *name)
{
        list_for_each (&fake.objects, node) {
                struct object *o = container_of(node, struct object, node);

                if (strcmp(o->name, name) == 0)
                        return o;
        }
        return NULL;
}

static void drop(struct object *o)
{
        list_unlink(&o->node);
        fake.n_objects--;
        free(o->bytes);
        free(o);
}

static void store(const char *name, const struct iovec pieces[static 2], uint64_t used_ms)
{
        struct object *o = find(name);

        if (o)
                drop(o);
        o = calloc(1, sizeof(*o));
        if (!o)
                abort();
        snprintf(o->name, sizeof(o->name), "%s", name);
        o->size = pieces[0].iov_len + pieces[1].iov_len;
        o->used_ms = used_ms;
        o->bytes = malloc(MAX(o->size, (size_t)1));
        if (!o->bytes)
                abort();
        memcpy(o->bytes, pieces[0].iov_base, pieces[0].iov_len);
        if (pieces[1].iov_len > 0)
                memcpy(o->bytes + pieces[0].iov_len, pieces[1].iov_base, pieces[1].iov_len);
        list_append(&fake.objects, &o->node);
        fake.n_objects++;
}

/* --- operations --- */

static int read_object(struct backend_op *op)
{
        const struct object *o = find(op->name);
        size_t at = 0;

        if (!o)
                return -ENOENT;
        for (unsigned i = 0; i < ARRAY_SIZE(op->pieces); i++) {
                size_t n = MIN(o->size - at, op->pieces[i].iov_len);

                if (n > 0)
                        memcpy(op->pieces[i].iov_base, o->bytes + at, n);
                at += n;
        }
        op->transferred = at;
        op->size = fake.hide_sizes ? UINT64_MAX : o->size;
        return 0;
}

static int carry_out(struct backend_op *op)
{
        struct object *o;

        if (fake.faults[op->kind].times > 0) {
                fake.faults[op->kind].times--;
                snprintf(op->error, sizeof(op->error), "the fake engine says no");
                return fake.faults[op->kind].result;
        }
        switch (op->kind) {
        case BACKEND_READ:
                return read_object(op);
        case BACKEND_CREATE:
                if (find(op->name))
                        return -EEXIST;
                __attribute__((fallthrough));
        case BACKEND_REPLACE:
                store(op->name, op->pieces, 0);
                return 0;
        case BACKEND_DELETE:
                o = find(op->name);
                if (o)
                        drop(o);
                return o ? 0 : -ENOENT;
        case BACKEND_OP_END:
                break;
        }
        abort();
}

static void submit(struct backend *b, struct backend_op *op)
{
        int r;

        (void)b;
        lock();
        fake.counts[op->kind]++;
        switch (fake.ends[op->kind]) {
        case FAKE_WITHIN:
                r = carry_out(op);
                unlock();
                backend_op_end(op, r);
                return;
        case FAKE_THREAD:
                list_append(&fake.inbox, &op->node);
                pthread_cond_broadcast(&fake.cond);
                break;
        case FAKE_HELD:
        case FAKE_HUNG:
                list_append(&fake.held, &op->node);
                fake.n_held++;
                break;
        }
        unlock();
}

static void *run(void *userdata)
{
        struct list_node *node;

        (void)userdata;
        lock();
        for (;;) {
                while (!fake.stopping && list_empty(&fake.inbox))
                        pthread_cond_wait(&fake.cond, &fake.lock);
                while ((node = list_pop(&fake.inbox))) {
                        struct backend_op *op = container_of(node, struct backend_op, node);
                        int r = carry_out(op);

                        unlock();
                        backend_op_end(op, r);
                        lock();
                }
                if (fake.stopping)
                        break;
        }
        unlock();
        return NULL;
}

static int open_fake(struct backend **ret, const struct backend_params *params,
                     char ret_error[static 256])
{
        (void)params;
        (void)ret_error;
        fake.stopping = false;
        fake.has_thread = pthread_create(&fake.thread, NULL, run, NULL) == 0;
        *ret = &fake;
        return fake.has_thread ? 0 : -EAGAIN;
}

static void stop(struct backend *b)
{
        struct list_node canceled = LIST_INIT(canceled), *node;

        (void)b;
        lock();
        fake.stopping = true;
        pthread_cond_broadcast(&fake.cond);
        list_for_each_safe (&fake.held, held) {
                struct backend_op *op = container_of(held, struct backend_op, node);

                if (fake.ends[op->kind] == FAKE_HUNG)
                        continue;
                list_unlink(&op->node);
                list_append(&canceled, &op->node);
                fake.n_held--;
        }
        unlock();
        while ((node = list_pop(&canceled)))
                backend_op_end(container_of(node, struct backend_op, node), -ECANCELED);
}

static struct backend *close_fake(struct backend *b)
{
        (void)b;
        lock();
        if (fake.listing)
                abort(); /* a back end would free memory that the sweeper's thread uses */
        unlock();
        if (fake.has_thread)
                pthread_join(fake.thread, NULL);
        fake.has_thread = false;
        return NULL;
}

/* --- the sweeper's functions --- */

static int lease(struct backend *b, const char *name, const char *owner, uint64_t for_ns)
{
        int r;

        (void)b;
        (void)name;
        (void)for_ns;
        lock();
        r = fake.leased[0] != 0 && strcmp(fake.leased, owner) != 0 ? -EBUSY : 0;
        if (r == 0)
                snprintf(fake.leased, sizeof(fake.leased), "%s", owner);
        unlock();
        return r;
}

static int release(struct backend *b, const char *name, const char *owner)
{
        (void)b;
        (void)name;
        lock();
        if (strcmp(fake.leased, owner) == 0)
                fake.leased[0] = 0;
        unlock();
        return 0;
}

static int list_all(struct backend *b, bool tidy,
                    bool (*each)(void *userdata, const struct backend_entry *e), void *userdata,
                    const bool *stop_it)
{
        struct backend_entry *entries;
        unsigned n = 0;

        (void)b;
        lock();
        fake.lists++;
        fake.listing = true;
        pthread_cond_broadcast(&fake.cond);
        while (fake.hang_list)
                pthread_cond_wait(&fake.cond, &fake.lock);
        entries = calloc(MAX(fake.n_objects, 1U), sizeof(*entries));
        if (!entries)
                abort();
        list_for_each (&fake.objects, node) {
                const struct object *o = container_of(node, struct object, node);

                memcpy(entries[n].name, o->name, sizeof(o->name));
                entries[n].bytes = o->size;
                entries[n++].used_ms = o->used_ms;
        }
        unlock();
        for (unsigned i = 0; i < n && !__atomic_load_n(stop_it, __ATOMIC_RELAXED); i++)
                if (!each(userdata, &entries[i]))
                        break;
        free(entries);
        lock();
        fake.listing = false;
        unlock();
        return 0;
}

static int remove_unused(struct backend *b, const char *name, uint64_t used_ms)
{
        struct object *o;
        int r;

        (void)b;
        lock();
        fake.counts[BACKEND_DELETE]++;
        o = find(name);
        r = !o ? -ENOENT : o->used_ms > used_ms ? -EAGAIN : 0;
        if (r == 0 && fake.faults[BACKEND_DELETE].times > 0) {
                fake.faults[BACKEND_DELETE].times--;
                r = fake.faults[BACKEND_DELETE].result;
        }
        if (r == 0)
                drop(o);
        unlock();
        return r;
}

static void mark_used(struct backend *b, const char *name, uint64_t used_ms)
{
        struct object *o;

        (void)b;
        lock();
        fake.marked++;
        o = find(name);
        if (o)
                o->used_ms = used_ms;
        unlock();
}

const struct backend_ops fake_backend = {
        .name = "fake",
        .open = open_fake,
        .submit = submit,
        .stop = stop,
        .close = close_fake,
        .lease = lease,
        .release = release,
        .list = list_all,
        .remove_unused = remove_unused,
        .mark_used = mark_used,
};
const struct backend_ops fake_backend_plain = {
        .name = "plain",
        .open = open_fake,
        .submit = submit,
        .stop = stop,
        .close = close_fake,
};

/* --- the test's functions --- */

void fake_reset(void)
{
        lock();
        while (!list_empty(&fake.objects))
                drop(container_of(fake.objects.next, struct object, node));
        memset(fake.ends, 0, sizeof(fake.ends));
        memset(fake.faults, 0, sizeof(fake.faults));
        memset(fake.counts, 0, sizeof(fake.counts));
        fake.marked = fake.lists = 0;
        fake.hide_sizes = fake.hang_list = false;
        fake.leased[0] = 0;
        unlock();
}

void fake_set_end(enum backend_op_kind kind, enum fake_end end)
{
        lock();
        fake.ends[kind] = end;
        unlock();
}

void fake_set_end_of_all(enum fake_end end)
{
        for (unsigned kind = 0; kind < BACKEND_OP_END; kind++)
                fake_set_end((enum backend_op_kind)kind, end);
}

void fake_fail(enum backend_op_kind kind, int result, unsigned times)
{
        lock();
        fake.faults[kind].result = result;
        fake.faults[kind].times = times;
        unlock();
}

void fake_hide_sizes(bool hide)
{
        lock();
        fake.hide_sizes = hide;
        unlock();
}

unsigned fake_release(unsigned n)
{
        unsigned released = 0;

        for (; released < n; released++) {
                struct list_node *node;
                struct backend_op *op;
                int r;

                lock();
                node = list_pop(&fake.held);
                if (!node) {
                        unlock();
                        break;
                }
                fake.n_held--;
                op = container_of(node, struct backend_op, node);
                r = carry_out(op);
                unlock();
                backend_op_end(op, r);
        }
        return released;
}

static unsigned get(const unsigned *value)
{
        unsigned ret;

        lock();
        ret = *value;
        unlock();
        return ret;
}

unsigned fake_held(void)
{
        return get(&fake.n_held);
}

unsigned fake_count(enum backend_op_kind kind)
{
        return get(&fake.counts[kind]);
}

unsigned fake_marked(void)
{
        return get(&fake.marked);
}

unsigned fake_objects(void)
{
        return get(&fake.n_objects);
}

unsigned fake_lists(void)
{
        return get(&fake.lists);
}

bool fake_has(const char *name)
{
        size_t size;

        return fake_bytes(name, &size) != NULL;
}

const uint8_t *fake_bytes(const char *name, size_t *ret_size)
{
        const struct object *o;

        lock();
        o = find(name);
        unlock();
        if (o)
                *ret_size = o->size;
        return o ? o->bytes : NULL;
}

void fake_put(const char *name, const void *bytes, size_t size, uint64_t used_ms)
{
        struct iovec pieces[2] = { { (void *)(uintptr_t)bytes, size } };

        lock();
        store(name, pieces, used_ms);
        unlock();
}

/* Calls `change` on the object of that name, if there is one. */
static bool with(const char *name, void (*change)(struct object *o, uint64_t how), uint64_t how)
{
        struct object *o;

        lock();
        o = find(name);
        if (o)
                change(o, how);
        unlock();
        return o != NULL;
}

static void change_remove(struct object *o, uint64_t how)
{
        (void)how;
        drop(o);
}

static void change_flip(struct object *o, uint64_t offset)
{
        o->bytes[offset] ^= 1;
}

static void change_cut(struct object *o, uint64_t size)
{
        o->size = MIN(o->size, (size_t)size);
}

static void change_used(struct object *o, uint64_t used_ms)
{
        o->used_ms = used_ms;
}

bool fake_remove(const char *name)
{
        return with(name, change_remove, 0);
}

bool fake_flip(const char *name, size_t offset)
{
        return with(name, change_flip, offset);
}

bool fake_cut(const char *name, size_t size)
{
        return with(name, change_cut, size);
}

bool fake_set_used(const char *name, uint64_t used_ms)
{
        return with(name, change_used, used_ms);
}

bool fake_swap(const char *a, const char *b)
{
        struct object *x, *y;

        lock();
        x = find(a);
        y = find(b);
        if (x && y) {
                uint8_t *bytes = x->bytes;
                size_t size = x->size;

                x->bytes = y->bytes;
                x->size = y->size;
                y->bytes = bytes;
                y->size = size;
        }
        unlock();
        return x && y;
}

void fake_lease(const char *owner)
{
        lock();
        snprintf(fake.leased, sizeof(fake.leased), "%s", owner ? owner : "");
        unlock();
}

bool fake_is_leased(const char *owner)
{
        bool ret;

        lock();
        ret = owner ? strcmp(fake.leased, owner) == 0 : fake.leased[0] != 0;
        unlock();
        return ret;
}

void fake_hang_list(bool hang)
{
        lock();
        fake.hang_list = hang;
        pthread_cond_broadcast(&fake.cond);
        unlock();
}
