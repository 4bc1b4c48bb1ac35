/* SPDX-License-Identifier: Apache-2.0 */
#include "backend-contract.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "checked.h"

enum { MIB = 1 << 20, PAGE = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

void backend_op_end(struct backend_op *op, int result)
{
        struct operation *o = container_of(op, struct operation, op);

        pthread_mutex_lock(&lock);
        if (o->ended) {
                fprintf(stderr, "%s ended twice\n", op->name);
                abort();
        }
        op->result = result;
        o->ended = true;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
}

struct operation *operation_new(enum backend_op_kind kind, const char *name, uint64_t bytes,
                                bool apart)
{
        struct operation *o = calloc(1, sizeof(*o));
        uint64_t first = MIN(bytes, (uint64_t)REMOTE_HEADER_BYTES), room = bytes + 3 * PAGE;

        if (!o)
                abort();
        o->memory = aligned_alloc(PAGE, round_up(room, PAGE));
        if (!o->memory)
                abort();
        memset(o->memory, 0xee, room);
        o->op.kind = kind;
        o->op.deadline_ns = clock_mono_ns() + 300 * SECOND_NS;
        snprintf(o->op.name, sizeof(o->op.name), "%s", name);
        o->op.pieces[0] = (struct iovec){ o->memory, first };
        o->op.pieces[1] = (struct iovec){ o->memory + first + (apart ? PAGE : 0), bytes - first };
        return o;
}

struct operation *operation_free(struct operation *o)
{
        if (o)
                free(o->memory);
        free(o);
        return NULL;
}

static char byte_at(uint64_t seed, uint64_t i)
{
        return (char)((seed * 0x9e3779b97f4a7c15u + (i / 8 + 1) * 0xbf58476d1ce4e5b9u) >>
                      i % 8 * 8);
}

void operation_fill(struct operation *o, uint64_t seed)
{
        uint64_t at = 0;

        for (unsigned k = 0; k < 2; k++)
                for (uint64_t i = 0; i < o->op.pieces[k].iov_len; i++, at++)
                        ((char *)o->op.pieces[k].iov_base)[i] = byte_at(seed, at);
}

bool operation_holds(const struct operation *o, uint64_t bytes, uint64_t seed)
{
        uint64_t at = 0;

        for (unsigned k = 0; k < 2; k++)
                for (uint64_t i = 0; i < o->op.pieces[k].iov_len && at < bytes; i++, at++)
                        if (((char *)o->op.pieces[k].iov_base)[i] != byte_at(seed, at))
                                return false;
        return at == bytes;
}

int operation_wait(struct operation *o)
{
        pthread_mutex_lock(&lock);
        while (!o->ended)
                pthread_cond_wait(&changed, &lock);
        pthread_mutex_unlock(&lock);
        return o->op.result;
}

bool operation_has_ended(struct operation *o)
{
        bool ended;

        pthread_mutex_lock(&lock);
        ended = o->ended;
        pthread_mutex_unlock(&lock);
        return ended;
}

int backend_write(const struct backend_ops *ops, struct backend *b, enum backend_op_kind kind,
                  const char *name, uint64_t bytes, uint64_t seed)
{
        struct operation *o = operation_new(kind, name, bytes, seed % 2);
        int r;

        operation_fill(o, seed);
        ops->submit(b, &o->op);
        r = operation_wait(o);
        if (r < 0 && r != -EEXIST && *o->op.error)
                fprintf(stderr, "# %s: %s\n", name, o->op.error);
        operation_free(o);
        return r;
}

int backend_read(const struct backend_ops *ops, struct backend *b, const char *name, uint64_t bytes,
                 uint64_t seed)
{
        struct operation *o = operation_new(BACKEND_READ, name, bytes, seed % 2);
        int r;

        ops->submit(b, &o->op);
        r = operation_wait(o);
        if (r == 0 &&
            (o->op.size != bytes || o->op.transferred != bytes || !operation_holds(o, bytes, seed)))
                r = -EBADMSG;
        if (r < 0 && *o->op.error)
                fprintf(stderr, "# %s: %s\n", name, o->op.error);
        operation_free(o);
        return r;
}

int backend_delete(const struct backend_ops *ops, struct backend *b, const char *name)
{
        struct operation *o = operation_new(BACKEND_DELETE, name, 0, false);
        int r;

        ops->submit(b, &o->op);
        r = operation_wait(o);
        operation_free(o);
        return r;
}

/* --- the contract --- */

struct run {
        const struct backend_ops *ops;
        const struct backend_params *params;
        struct backend *b;
        unsigned checks, failed;
};

static void check_at(struct run *t, bool held, int line, const char *what)
{
        t->checks++;
        if (held)
                return;
        if (t->failed++ < 20)
                printf("%s: line %d: %s\n", t->ops->name, line, what);
}
#define check(t, what) check_at(t, what, __LINE__, #what)

static const char *name_of(const struct run *t, const char *rest)
{
        static char names[8][REMOTE_NAME_MAX];
        static unsigned next;
        char *name = names[next++ % 8];

        snprintf(name, sizeof(names[0]), "%s/%s", t->params->prefix, rest);
        return name;
}

static void objects_come_back_whole(struct run *t)
{
        static const uint64_t sizes[] = {
                1,        512,          4095,    4096,           4097,
                2 * 4096, 2 * 4096 + 1, 2 * MIB, 2 * MIB + 4096, 4 * MIB - 100
        };

        for (unsigned i = 0; i < ARRAY_SIZE(sizes); i++) {
                const char *name = name_of(t, "1/id/ab/size");

                check(t, backend_write(t->ops, t->b, BACKEND_CREATE, name, sizes[i], i) == 0);
                check(t, backend_read(t->ops, t->b, name, sizes[i], i) == 0);
                check(t, backend_delete(t->ops, t->b, name) == 0);
        }
}

static void what_is_not_there_is_enoent(struct run *t)
{
        const char *name = name_of(t, "1/id/ab/missing");

        check(t, backend_read(t->ops, t->b, name, 8192, 0) == -ENOENT);
        if (strcmp(t->ops->name, "s3") != 0) /* s3 cannot detect it */
                check(t, backend_delete(t->ops, t->b, name) == -ENOENT);
        check(t, backend_write(t->ops, t->b, BACKEND_CREATE, name, 8192, 3) == 0);
        check(t, backend_delete(t->ops, t->b, name) == 0);
        check(t, backend_read(t->ops, t->b, name, 8192, 3) == -ENOENT);
}

static void the_first_create_wins(struct run *t)
{
        const char *name = name_of(t, "1/id/ab/first");

        check(t, backend_write(t->ops, t->b, BACKEND_CREATE, name, 9000, 1) == 0);
        check(t, backend_write(t->ops, t->b, BACKEND_CREATE, name, 9500, 2) == -EEXIST);
        check(t, backend_read(t->ops, t->b, name, 9000, 1) == 0);
        check(t, backend_write(t->ops, t->b, BACKEND_REPLACE, name, 5000, 2) == 0);
        check(t, backend_read(t->ops, t->b, name, 5000, 2) == 0);
        check(t, backend_delete(t->ops, t->b, name) == 0);
        check(t, backend_write(t->ops, t->b, BACKEND_REPLACE, name, 5000, 4) == 0);
        check(t, backend_read(t->ops, t->b, name, 5000, 4) == 0);
        check(t, backend_delete(t->ops, t->b, name) == 0);
}

/* The room may be smaller or larger than the object, and of any length. */
static void a_read_fills_the_room_there_is(struct run *t)
{
        static const uint64_t rooms[] = { 1, 100, 4096, 4097, 5000, 9999, 10000, 10001, 65536 };
        const char *name = name_of(t, "1/id/ab/room");

        check(t, backend_write(t->ops, t->b, BACKEND_CREATE, name, 10000, 7) == 0);
        for (unsigned i = 0; i < 2 * ARRAY_SIZE(rooms); i++) {
                uint64_t room = rooms[i / 2], want = MIN(room, (uint64_t)10000), beyond;
                struct operation *o = operation_new(BACKEND_READ, name, room, i % 2);

                t->ops->submit(t->b, &o->op);
                check(t, operation_wait(o) == 0);
                check(t, o->op.size == 10000);
                check(t, o->op.transferred == want);
                check(t, operation_holds(o, want, 7));
                beyond = want > REMOTE_HEADER_BYTES && i % 2 ? want + PAGE : want;
                check(t, o->memory[beyond] == (char)0xee);
                operation_free(o);
        }
        check(t, backend_delete(t->ops, t->b, name) == 0);
}

static void many_at_once_all_end(struct run *t)
{
        enum { N = 200 };
        struct operation *o[N];
        unsigned good = 0;

        for (unsigned round = 0; round < 3; round++) {
                static const enum backend_op_kind kinds[] = { BACKEND_CREATE, BACKEND_READ,
                                                              BACKEND_DELETE };

                for (unsigned i = 0; i < N; i++) {
                        char rest[64];

                        snprintf(rest, sizeof(rest), "2/id/%02x/%u", i % 16, i);
                        o[i] = operation_new(kinds[round], name_of(t, rest), 20000 + i, i % 2);
                        if (round == 0)
                                operation_fill(o[i], i);
                        t->ops->submit(t->b, &o[i]->op);
                }
                for (unsigned i = 0; i < N; i++) {
                        good += operation_wait(o[i]) == 0 &&
                                (round != 1 || operation_holds(o[i], 20000 + i, i));
                        operation_free(o[i]);
                }
        }
        check(t, good == 3 * N);
}

static void what_is_late_is_timed_out(struct run *t)
{
        struct operation *o = operation_new(BACKEND_READ, name_of(t, "1/id/ab/late"), 4096, false);

        o->op.deadline_ns = clock_mono_ns() - 1;
        t->ops->submit(t->b, &o->op);
        check(t, operation_wait(o) == -ETIMEDOUT);
        operation_free(o);
}

struct seen {
        unsigned n, ours, stop_after;
        uint64_t bytes;
        struct backend_entry last;
        const char *want;
};

static bool note_entry(void *userdata, const struct backend_entry *e)
{
        struct seen *s = userdata;

        s->n++;
        if (strstr(e->name, s->want)) {
                s->ours++;
                s->bytes += e->bytes;
                s->last = *e;
        }
        return s->n != s->stop_after;
}

static void the_sweeper_has_what_it_needs(struct run *t)
{
        const bool never = false, now = true;
        struct seen s = { .want = "/3/id/" };
        uint64_t began = clock_unix_ms();

        if (!t->ops->list)
                return;
        for (unsigned i = 0; i < 150; i++) {
                char rest[64];

                snprintf(rest, sizeof(rest), "3/id/%02x/%u", i % 16, i);
                check(t,
                      backend_write(t->ops, t->b, BACKEND_CREATE, name_of(t, rest), 5000, i) == 0);
        }
        check(t, t->ops->list(t->b, true, note_entry, &s, &never) == 0);
        check(t, s.ours == 150 && s.bytes == 150 * 5000);
        if (s.ours == 0)
                return;
        check(t, s.last.used_ms + 2000 >= began && s.last.used_ms < began + 60000);
        check(t, strncmp(s.last.name, t->params->prefix, strlen(t->params->prefix)) == 0);
        check(t, backend_read(t->ops, t->b, s.last.name, 5000,
                              (uint64_t)atoi(strrchr(s.last.name, '/') + 1)) == 0);

        s = (struct seen){ .want = "/3/id/", .stop_after = 5 };
        check(t, t->ops->list(t->b, true, note_entry, &s, &never) == 0);
        check(t, s.n == 5);
        s = (struct seen){ .want = "/3/id/" };
        (void)t->ops->list(t->b, true, note_entry, &s, &now);
        check(t, s.n < 150);

        check(t, t->ops->remove_unused(t->b, name_of(t, "3/id/00/0"), began - 3600000) == -EAGAIN);
        check(t, backend_read(t->ops, t->b, name_of(t, "3/id/00/0"), 5000, 0) == 0);
        check(t, t->ops->remove_unused(t->b, name_of(t, "3/id/00/0"), began + 3600000) == 0);
        check(t, t->ops->remove_unused(t->b, name_of(t, "3/id/00/0"), began + 3600000) == -ENOENT);
        for (unsigned i = 1; i < 150; i++) {
                char rest[64];

                snprintf(rest, sizeof(rest), "3/id/%02x/%u", i % 16, i);
                check(t, backend_delete(t->ops, t->b, name_of(t, rest)) == 0);
        }
}

/* Leases `name` to host-b for `ns`, and returns the result of a request by host-a meanwhile. */
static int lease_held_by_another(struct run *t, struct backend *other, const char *name,
                                 uint64_t ns)
{
        check(t, t->ops->lease(other, name, "host-b", ns) == 0);
        return t->ops->lease(t->b, name, "host-a", 3600 * SECOND_NS);
}

static void one_host_has_the_lease(struct run *t)
{
        const char *name = name_of(t, "sweeper");
        struct backend *other = NULL;
        char error[256] = "";
        int r;

        if (!t->ops->lease)
                return;
        check(t, t->ops->open(&other, t->params, error) == 0);
        if (!other)
                return;
        (void)backend_read(t->ops, other, name_of(t, "1/id/ab/none"), 4096, 0); /* connects */
        check(t, t->ops->lease(t->b, name, "host-a", 3600 * SECOND_NS) == 0);
        check(t, t->ops->lease(t->b, name, "host-a", 3600 * SECOND_NS) == 0);
        check(t, t->ops->lease(other, name, "host-b", 3600 * SECOND_NS) == -EBUSY);
        check(t, t->ops->lease(other, name, "host-a", 3600 * SECOND_NS) == 0);
        check(t, t->ops->release(other, name, "host-a") == 0);
        /* A lease may expire before the next call on a slow machine: try a longer one. */
        for (uint64_t ns = SECOND_NS / 2; (r = lease_held_by_another(t, other, name, ns)) == 0;
             ns *= 2)
                check(t, ns < 60 * SECOND_NS && t->ops->release(t->b, name, "host-a") == 0);
        check(t, r == -EBUSY);
        for (uint64_t until = clock_mono_ns() + 120 * SECOND_NS;
             t->ops->lease(t->b, name, "host-a", 3600 * SECOND_NS) == -EBUSY &&
             clock_mono_ns() < until;)
                usleep(20000);
        check(t, t->ops->lease(other, name, "host-b", SECOND_NS) == -EBUSY);
        check(t, t->ops->release(t->b, name, "host-a") == 0);
        (void)backend_delete(t->ops, t->b, name);
        t->ops->stop(other);
        t->ops->close(other);
}

static void a_mark_is_no_harm(struct run *t)
{
        const char *name = name_of(t, "1/id/ab/marked"), *none = name_of(t, "1/id/ab/unmarked");

        if (!t->ops->mark_used)
                return;
        check(t, backend_write(t->ops, t->b, BACKEND_CREATE, name, 6000, 5) == 0);
        for (unsigned i = 0; i < 1000; i++) {
                t->ops->mark_used(t->b, name, clock_unix_ms());
                t->ops->mark_used(t->b, none, clock_unix_ms());
        }
        check(t, backend_read(t->ops, t->b, name, 6000, 5) == 0);
        check(t, backend_read(t->ops, t->b, none, 6000, 5) == -ENOENT);
        check(t, backend_delete(t->ops, t->b, name) == 0);
}

/* All operations end, as done or as cancelled, and close() returns. */
static void stop_ends_all(struct run *t)
{
        enum { N = 50 };
        struct operation *o[N];
        unsigned ended = 0;

        for (unsigned i = 0; i < N; i++) {
                o[i] = operation_new(BACKEND_READ, name_of(t, "1/id/ab/stop"), 8192, i % 2);
                t->ops->submit(t->b, &o[i]->op);
        }
        t->ops->stop(t->b);
        for (unsigned i = 0; i < N; i++) {
                int r = operation_wait(o[i]);

                ended += r == -ENOENT || r == -ECANCELED;
                operation_free(o[i]);
        }
        check(t, ended == N);
        o[0] = operation_new(BACKEND_READ, name_of(t, "1/id/ab/stop"), 8192, false);
        t->ops->submit(t->b, &o[0]->op);
        check(t, operation_wait(o[0]) == -ECANCELED);
        operation_free(o[0]);
        check(t, t->ops->close(t->b) == NULL);
}

unsigned backend_contract(const struct backend_ops *ops, const struct backend_params *params,
                          unsigned *ret_checks)
{
        struct run t = { .ops = ops, .params = params };
        char error[256] = "";

        if (ops->open(&t.b, params, error) < 0) {
                printf("%s: open: %s\n", ops->name, error);
                *ret_checks = 1;
                return 1;
        }
        objects_come_back_whole(&t);
        if (t.failed > 0) { /* nothing works in that case */
                ops->stop(t.b);
                ops->close(t.b);
                *ret_checks = t.checks;
                return t.failed;
        }
        what_is_not_there_is_enoent(&t);
        the_first_create_wins(&t);
        a_read_fills_the_room_there_is(&t);
        many_at_once_all_end(&t);
        what_is_late_is_timed_out(&t);
        the_sweeper_has_what_it_needs(&t);
        one_host_has_the_lease(&t);
        a_mark_is_no_harm(&t);
        stop_ends_all(&t);
        *ret_checks = t.checks;
        return t.failed;
}
