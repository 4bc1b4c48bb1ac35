/* SPDX-License-Identifier: Apache-2.0 */
/* The sweeper deletes all objects of older generations, and the least recently used others.
 *
 * A store may have many millions of objects, which are therefore listed and not remembered. The
 * first listing finds the namespaces that have a generation, which the loop then reads. The second
 * deletes objects of older generations and counts the bytes of the others by age. If these exceed
 * the limit, the counts determine an age, and a third listing deletes older objects. Ages have a
 * resolution of a thousandth.
 *
 * A thread of its own lists and deletes; it holds the lease (backend_ops.lease()), owns the sweeper
 * while it runs (job.h), and checks `stop`. If it hangs in the back end at the end of the process,
 * it is abandoned. Objects with other names are not touched. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "checked.h"
#include "remote/internal.h"

enum {
        STEP_BITS = 10, /* significant bits of an age that are kept */
        AGE_BITS = 48,
        AGES = (AGE_BITS - STEP_BITS + 1) << STEP_BITS,
        IDS_MAX = 1 << 20,
        ERRORS_MAX = 100, /* a sweep ends after this number of objects that cannot be deleted */
        ID_HEX = 32,
};

#define LEASE_NS UINT64_C(300000000000)
#define RENEW_NS UINT64_C(60000000000)

enum phase { LIST_GENERATIONS, READ_GENERATIONS, DELETE_OLDER_GENERATIONS, DELETE_OLDEST };

struct swept_namespace {
        char id[ID_HEX + 1];
        bool known;
        uint64_t generation;
};

struct sweeper {
        struct remote *remote;
        struct remote_sweep *sweep; /* NULL: the sweep was cancelled */
        struct job job;
        enum phase phase;
        bool stop; /* accessed atomically; the thread ends the sweep when it is true */

        const struct backend_ops *ops;
        struct backend *backend;
        const char *prefix;
        char lease[REMOTE_NAME_MAX], owner[64];
        bool leased;
        uint64_t renewed_ns;
        uint64_t limit;
        bool dry_run;

        struct swept_namespace *namespaces; /* sorted by id after the listing */
        size_t n, room, at;
        uint64_t newest_ms;
        uint64_t live; /* bytes of objects that are not of older generations */
        uint64_t *ages;
        unsigned oldest_kept;   /* objects with a higher age are deleted */
        uint64_t of_that_bytes; /* bytes to delete among the objects whose age is `oldest_kept` */

        int result;
        unsigned errors;
        struct remote_sweep sums; /* results, until the sweep ends */
};

/* --- names of objects --- */

static bool is_hex(const char *s, size_t n)
{
        for (size_t i = 0; i < n; i++)
                if (!((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'f')))
                        return false;
        return true;
}

/* Returns the part of a name after the prefix, or NULL if the name is not below it. */
static const char *below(const struct sweeper *s, const char *name)
{
        size_t n = strlen(s->prefix);

        return strncmp(name, s->prefix, n) == 0 && name[n] == '/' ? name + n + 1 : NULL;
}

static const char *generation_id(const struct sweeper *s, const char *name)
{
        static const char folder[] = "generation/";
        const char *rest = below(s, name);

        if (!rest || strncmp(rest, folder, sizeof(folder) - 1) != 0)
                return NULL;
        rest += sizeof(folder) - 1;
        return strlen(rest) == ID_HEX && is_hex(rest, ID_HEX) ? rest : NULL;
}

/* Parses the name of a chunk, <generation>/<id>/<kk>/<key>. Returns false for other names. */
static bool parse_chunk(const struct sweeper *s, const char *name, uint64_t *ret_generation,
                        const char **ret_id)
{
        const char *rest = below(s, name);
        char *end;

        if (!rest || *rest < '0' || *rest > '9')
                return false;
        errno = 0;
        *ret_generation = strtoull(rest, &end, 10);
        if (errno != 0 || *end != '/' ||
            strlen(end) != 1 + ID_HEX + 1 + 2 + 1 + (size_t)KEY_HEX_BYTES)
                return false;
        *ret_id = end + 1;
        rest = *ret_id + ID_HEX;
        return is_hex(*ret_id, ID_HEX) && rest[0] == '/' && is_hex(rest + 1, 2) && rest[3] == '/' &&
               is_hex(rest + 4, KEY_HEX_BYTES) && memcmp(rest + 1, rest + 4, 2) == 0;
}

static int by_id(const void *a, const void *b)
{
        return memcmp(a, b, ID_HEX);
}

/* Returns whether an object is of an older generation. Returns false if the namespace's generation
 * is unknown, because the object that stores it may have been lost. */
static bool is_older(const struct sweeper *s, uint64_t generation, const char *id)
{
        const struct swept_namespace *ns =
                s->n > 0 ? bsearch(id, s->namespaces, s->n, sizeof(*ns), by_id) : NULL;

        return ns && ns->known && generation < ns->generation;
}

/* --- the age from which objects are deleted --- */

static unsigned age_of(const struct sweeper *s, uint64_t used_ms)
{
        uint64_t age = s->newest_ms - MIN(used_ms, s->newest_ms);
        unsigned exponent;

        if (age < UINT64_C(1) << STEP_BITS)
                return (unsigned)age;
        age = MIN(age, (UINT64_C(1) << AGE_BITS) - 1);
        exponent = 63U - (unsigned)__builtin_clzll(age);
        return ((exponent - STEP_BITS + 1) << STEP_BITS) +
               (unsigned)((age >> (exponent - STEP_BITS)) & ((1U << STEP_BITS) - 1));
}

/* Chooses the age from which objects are deleted. Returns false if the size is within the limit. */
static bool choose_age(struct sweeper *s)
{
        uint64_t excess;

        if (s->live <= s->limit)
                return false;
        excess = s->live - s->limit;
        s->oldest_kept = AGES - 1;
        while (s->ages[s->oldest_kept] < excess) {
                excess -= s->ages[s->oldest_kept];
                s->oldest_kept--;
        }
        s->of_that_bytes = excess;
        return true;
}

/* --- the sweep, on its own thread --- */

static bool has_more(struct sweeper *s)
{
        int e;

        if (__atomic_load_n(&s->stop, __ATOMIC_RELAXED)) {
                s->result = -ECANCELED;
        } else if (clock_mono_ns() > s->renewed_ns + RENEW_NS) {
                e = s->ops->lease(s->backend, s->lease, s->owner, LEASE_NS);
                s->renewed_ns = clock_mono_ns();
                if (e < 0)
                        s->result = e;
        }
        return s->result == 0;
}

/* Deletes an object, or only counts it in a dry run. Returns whether it was counted as deleted. */
static bool delete (struct sweeper *s, const struct backend_entry *e, uint64_t used_ms)
{
        int r = s->dry_run ? 0 : s->ops->remove_unused(s->backend, e->name, used_ms);

        if (r == 0) {
                s->sums.deleted++;
                s->sums.deleted_bytes += e->bytes;
        } else if (r != -ENOENT && r != -EAGAIN) {
                snprintf(s->sums.error, sizeof(s->sums.error), "deleting: %s", strerror(-r));
                if (++s->errors >= ERRORS_MAX)
                        s->result = r;
        }
        return r == 0;
}

static bool on_listed(void *userdata, const struct backend_entry *e)
{
        struct sweeper *s = userdata;
        const char *id = generation_id(s, e->name);
        uint64_t generation;

        if (id && s->n == s->room && s->room < IDS_MAX) {
                size_t room = MAX(2 * s->room, (size_t)64);
                struct swept_namespace *list = realloc(s->namespaces, room * sizeof(*list));

                if (list) {
                        s->namespaces = list;
                        s->room = room;
                }
        }
        if (id && s->n < s->room) {
                s->namespaces[s->n] = (struct swept_namespace){ .known = false };
                memcpy(s->namespaces[s->n++].id, id, ID_HEX);
        }
        if (parse_chunk(s, e->name, &generation, &id))
                s->newest_ms = MAX(s->newest_ms, e->used_ms);
        return has_more(s);
}

static bool on_older(void *userdata, const struct backend_entry *e)
{
        struct sweeper *s = userdata;
        uint64_t generation;
        const char *id;

        if (!parse_chunk(s, e->name, &generation, &id))
                return has_more(s);
        s->sums.seen++;
        s->sums.seen_bytes += e->bytes;
        if (!is_older(s, generation, id)) {
                s->live += e->bytes;
                s->ages[age_of(s, e->used_ms)] += e->bytes;
        } else {
                (void)delete (s, e, UINT64_MAX);
        }
        return has_more(s);
}

static bool on_oldest(void *userdata, const struct backend_entry *e)
{
        struct sweeper *s = userdata;
        uint64_t generation;
        const char *id;
        unsigned age;

        if (!parse_chunk(s, e->name, &generation, &id) || is_older(s, generation, id))
                return has_more(s);
        age = age_of(s, e->used_ms);
        if (age > s->oldest_kept) {
                (void)delete (s, e, e->used_ms);
        } else if (age == s->oldest_kept && s->of_that_bytes > 0) {
                if (delete (s, e, e->used_ms))
                        s->of_that_bytes -= MIN(e->bytes, s->of_that_bytes);
        }
        return has_more(s);
}

static void list(struct sweeper *s, bool (*each)(void *userdata, const struct backend_entry *e))
{
        int r = s->ops->list(s->backend, !s->dry_run, each, s, &s->stop);

        if (__atomic_load_n(&s->stop, __ATOMIC_RELAXED))
                s->result = -ECANCELED; /* the back end has ended the listing because of `stop` */
        if (r < 0 && s->result == 0) {
                s->result = r;
                snprintf(s->sums.error, sizeof(s->sums.error), "listing: %s", strerror(-r));
        }
}

static void run(struct job *j)
{
        struct sweeper *s = container_of(j, struct sweeper, job);

        if (s->phase == LIST_GENERATIONS) {
                s->result = s->ops->lease(s->backend, s->lease, s->owner, LEASE_NS);
                if (s->result < 0)
                        return;
                s->leased = true;
                s->renewed_ns = clock_mono_ns();
                list(s, on_listed);
                if (s->n > 1)
                        qsort(s->namespaces, s->n, sizeof(*s->namespaces), by_id);
                if (s->result == 0)
                        return;
        } else {
                list(s, on_older);
                if (s->result == 0 && choose_age(s)) {
                        s->phase = DELETE_OLDEST;
                        list(s, on_oldest);
                }
        }
        (void)s->ops->release(s->backend, s->lease, s->owner);
        s->leased = false;
}

/* --- requests for a sweep, on the loop thread --- */

static void free_sweeper(struct sweeper *s)
{
        s->remote->sweeper = NULL;
        free(s->namespaces);
        free(s->ages);
        free(s);
}

static void end(struct sweeper *s)
{
        struct remote_sweep *sweep = s->sweep;
        struct remote_sweep sums = s->sums;
        int result = s->result;

        free_sweeper(s);
        if (!sweep)
                return;
        sweep->result = result;
        sweep->seen = sums.seen;
        sweep->seen_bytes = sums.seen_bytes;
        sweep->deleted = sums.deleted;
        sweep->deleted_bytes = sums.deleted_bytes;
        memcpy(sweep->error, sums.error, sizeof(sweep->error));
        sweep->complete(sweep);
}

static void start_thread(struct sweeper *s)
{
        int r = job_start(&s->job, &s->remote->completions, "remote-sweep");

        if (r < 0) {
                s->result = r;
                end(s);
        }
}

static void read_next(struct sweeper *s);

static void on_read(struct operation *o, int result)
{
        struct remote *r = o->remote;
        struct sweeper *s = r->sweeper;
        struct swept_namespace *ns;
        struct remote_identity id;
        char name[REMOTE_NAME_MAX];

        if (!s || r->stopping)
                return;
        ns = &s->namespaces[s->at++];
        if (result == 0 && o->op.transferred >= REMOTE_HEADER_BYTES) {
                remote_generation_identity(o->buffer.bytes, &id);
                remote_generation_name(r->prefix, &id, name);
                ns->known = strcmp(name, o->op.name) == 0 &&
                            remote_generation_read(o->buffer.bytes, o->op.size, &id,
                                                   &ns->generation) == REMOTE_ACCEPTED;
        }
        read_next(s);
}

static void read_next(struct sweeper *s)
{
        struct remote *r = s->remote;
        struct operation *o;

        for (; s->at < s->n; s->at++) {
                if (operation_new(r, OPERATION_SWEEP, NULL, REMOTE_HEADER_BYTES, &o) < 0)
                        continue;
                o->done = on_read;
                snprintf(o->op.name, sizeof(o->op.name), "%s/generation/%s", r->prefix,
                         s->namespaces[s->at].id);
                operation_submit(o, BACKEND_READ);
                return;
        }
        s->phase = DELETE_OLDER_GENERATIONS;
        start_thread(s);
}

static void on_job_done(struct job *j)
{
        struct sweeper *s = container_of(j, struct sweeper, job);

        if (s->phase == LIST_GENERATIONS && s->result == 0 && !s->remote->stopping) {
                s->phase = READ_GENERATIONS;
                read_next(s);
        } else {
                end(s);
        }
}

static struct sweeper *new_sweeper(struct remote *r, struct remote_sweep *sweep)
{
        struct sweeper *s = calloc(1, sizeof(*s));
        uint64_t *ages = calloc(AGES, sizeof(*ages));
        char host[32] = "";

        if (!s || !ages) {
                free(s);
                free(ages);
                return NULL;
        }
        *s = (struct sweeper){
                .remote = r,
                .sweep = sweep,
                .job = { .run = run, .done = on_job_done },
                .ops = r->params.ops,
                .backend = r->backend,
                .prefix = r->prefix,
                .limit = sweep->limit,
                .dry_run = sweep->dry_run,
                .ages = ages,
        };
        (void)gethostname(host, sizeof(host) - 1);
        snprintf(s->owner, sizeof(s->owner), "%s-%d-%" PRIx64, host, (int)getpid(),
                 clock_mono_ns());
        snprintf(s->lease, sizeof(s->lease), "%s/sweep", r->prefix);
        return s;
}

static void refuse(struct remote_sweep *sweep, int result)
{
        sweep->result = result;
        sweep->complete(sweep);
}

void remote_sweep(struct remote *r, struct remote_sweep *sweep)
{
        const struct backend_ops *ops = r->params.ops;

        sweep->seen = sweep->seen_bytes = sweep->deleted = sweep->deleted_bytes = 0;
        sweep->error[0] = 0;
        if (!ops->lease || !ops->release || !ops->list || !ops->remove_unused) {
                refuse(sweep, -ENOTSUP);
        } else if (r->sweeper) {
                refuse(sweep, -EBUSY);
        } else if (r->stopping) {
                refuse(sweep, -ECANCELED);
        } else {
                r->sweeper = new_sweeper(r, sweep);
                if (r->sweeper)
                        start_thread(r->sweeper);
                else
                        refuse(sweep, -ENOMEM);
        }
}

void sweep_stop(struct remote *r)
{
        struct sweeper *s = r->sweeper;
        struct remote_sweep *sweep;

        if (!s)
                return;
        __atomic_store_n(&s->stop, true, __ATOMIC_RELAXED);
        sweep = s->sweep;
        s->sweep = NULL;
        if (sweep)
                refuse(sweep, -ECANCELED);
}

bool sweep_fini(struct remote *r)
{
        if (!r->sweeper)
                return true;
        if (r->sweeper->job.running) {
                job_abandon(&r->sweeper->job);
                return false;
        }
        free_sweeper(r->sweeper);
        return true;
}
