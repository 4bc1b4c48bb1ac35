/* SPDX-License-Identifier: Apache-2.0 */
/* Namespaces on the shared tier, and their generations. Loop thread.
 *
 * A purge writes another generation; a host that reads a generation other than that of its chunks
 * purges them. Generations combine a clock and a random number, above the previous one. Two hosts
 * that purge at the same time write different generations, so that every host that has read one
 * sees that the other is different. Only equality counts.
 *
 * The state file records the generation of this host's chunks. If it lacks the namespace, the
 * chunks are of unknown generation and are purged if there ever was a purge. This includes chunks
 * of a new namespace that were put while the first read was in flight, since they may precede a
 * purge. If the storage system has a lower generation than the file, or none, it has lost the newer
 * one and with it the purges. Then the namespace is purged, and a generation above all earlier ones
 * is written.
 *
 * A namespace is usable if its generation was read recently. From a change until remote_purged()
 * reports that this host has no old chunks, it is not. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/search.h"
#include "checked.h"
#include "remote/internal.h"

enum { CHANCE_BITS = 20 };
#define RETRY_NS UINT64_C(1000000000)
/* Time until a read of a generation is tried again if too many operations are in flight. */
#define FULL_NS UINT64_C(20000000)

/* --- the state file --- */

static void run_record(struct job *j)
{
        struct remote *r = container_of(j, struct remote, recorder);

        r->record_result = generations_write(r->state_path, r->record, r->record_bytes);
}

static void on_recorded(struct job *j)
{
        struct remote *r = container_of(j, struct remote, recorder);

        free(r->record);
        r->record = NULL;
        if (r->record_result < 0) {
                snprintf(r->reason, sizeof(r->reason),
                         "%s cannot be written (%s), so a restart may purge namespaces again",
                         r->state_path, strerror(-r->record_result));
                r->record_due = true;
                r->record_after_ns = clock_mono_ns() + r->params.generation_interval_ns;
        }
}

static void record(struct remote *r, uint64_t now_ns)
{
        if (!r->record_due || !r->state_path || r->recorder.running ||
            now_ns < r->record_after_ns || r->stopping)
                return;
        r->record = generations_encode(&r->generations, &r->record_bytes);
        r->recorder.run = run_record;
        r->recorder.done = on_recorded;
        if (!r->record || job_start(&r->recorder, &r->completions, "remote-state") < 0) {
                free(r->record);
                r->record = NULL;
                r->record_after_ns = now_ns + r->params.generation_interval_ns;
                return;
        }
        r->record_due = false;
}

/* Records that this host's chunks are of the current generation. */
static void settle(struct namespace *ns)
{
        struct remote *r = ns->remote;

        if (ns->has_last && ns->last == ns->generation)
                return;
        ns->last = ns->generation;
        ns->has_last = true;
        /* A namespace that was never purged needs no entry. */
        if ((ns->last > 0 || generations_remove(&r->generations, &ns->identity)) &&
            generations_set(&r->generations, &ns->identity, ns->last) == 0)
                r->record_due = true;
}

/* --- generations --- */

#define NOT_SOON UINT64_MAX

static void read_at(struct namespace *ns, uint64_t at_ns)
{
        /* Cannot fail: the deadline is in the heap or has just left it, so the heap has room. */
        (void)deadlines_add(&ns->remote->deadlines, &ns->next, at_ns);
}

/* Lets a read of the generation in flight end without effect, because it began before the
 * generation changed. */
static void forget_reading(struct namespace *ns)
{
        if (ns->reading)
                ns->reading->owner = NULL;
        ns->reading = NULL;
}

/* Invalidates everything cached, queued or searched for in the earlier generation. */
static void begin_epoch(struct namespace *ns)
{
        ns->epoch = ++ns->remote->epochs;
        ns->salt = ns->epoch * UINT64_C(0x9e3779b97f4a7c15);
}

static void change(struct namespace *ns, uint64_t generation)
{
        matches_cancel(ns->remote, ns);
        begin_epoch(ns);
        ns->generation = generation;
        ns->known = true;
        ns->failed = false;
        ns->awaiting++;
}

static void change_by_another(struct namespace *ns, uint64_t generation)
{
        struct remote *r = ns->remote;

        change(ns, generation);
        r->stats.purges_seen++;
        r->params.purged(r->params.userdata, ns->id);
}

static void write_generation(struct namespace *ns, struct remote_purge *purge);

static void restore_generation(struct namespace *ns);

static void on_generation(struct namespace *ns, uint64_t generation, uint64_t now_ns)
{
        bool was_usable = remote_namespace_is_usable(ns, now_ns);

        if (generation == 0 && was_usable && ns->generation > 0) {
                restore_generation(ns);
                return;
        }
        ns->read_ns = now_ns;
        ns->failed = false;
        if (!ns->has_last && generation == 0) {
                ns->generation = generation;
                ns->known = true;
                settle(ns);
        } else if (ns->has_last && generation == ns->last) {
                ns->generation = generation;
                ns->known = true;
        } else if (ns->has_last && generation < ns->last) {
                ns->known = false;
                write_generation(ns, NULL);
        } else {
                change_by_another(ns, generation);
        }
}

/* Handles a failed read or write. The generation stays known unless the storage system returned
 * something unexpected or a write's effect is unknown. */
static void on_failed(struct namespace *ns, bool rejected)
{
        ns->failed = true;
        ns->known &= !rejected;
}

static void on_read(struct operation *o, int result)
{
        struct namespace *ns = o->owner;
        struct remote *r = o->remote;
        uint64_t now_ns = clock_mono_ns(), generation = 0;
        enum remote_rejection why = REMOTE_ACCEPTED;

        if (!ns)
                return;
        ns->reading = NULL;
        if (r->stopping)
                return;
        read_at(ns, now_ns + r->params.generation_interval_ns);
        if (result == 0) {
                why = o->op.transferred < REMOTE_HEADER_BYTES
                              ? REMOTE_BAD_HEADER
                              : remote_generation_read(o->buffer.bytes, o->op.size, &ns->identity,
                                                       &generation);
                r->stats.rejected[why] += why != REMOTE_ACCEPTED;
        }
        if ((result == 0 && why == REMOTE_ACCEPTED) || result == -ENOENT)
                on_generation(ns, generation, now_ns);
        else
                on_failed(ns, result == 0);
}

static void on_read_due(struct deadline *d, uint64_t now_ns)
{
        struct namespace *ns = container_of(d, struct namespace, next);
        struct remote *r = ns->remote;
        struct operation *o;

        read_at(ns, NOT_SOON);
        if (r->stopping || ns->reading || ns->awaiting > 0 || ns->writing > 0)
                return; /* the end of that read, purge or write reads the generation again */
        read_at(ns, now_ns + MIN(RETRY_NS, r->params.generation_interval_ns));
        if (r->breaker.state != REMOTE_CLOSED) {
                ns->failed = true;
                return;
        }
        if (operation_new(r, OPERATION_READ_GENERATION, NULL, REMOTE_HEADER_BYTES, &o) < 0) {
                read_at(ns, now_ns + FULL_NS);
                return;
        }
        read_at(ns, NOT_SOON);
        ns->reading = o;
        o->owner = ns;
        o->done = on_read;
        remote_generation_name(r->prefix, &ns->identity, o->op.name);
        operation_submit(o, BACKEND_READ);
}

void remote_namespaces_read_soon(struct remote *r, uint64_t now_ns)
{
        for (unsigned i = 0; i < r->n_namespaces; i++)
                if (deadline_ns(&r->namespaces[i]->next) != NOT_SOON)
                        read_at(r->namespaces[i], now_ns);
}

bool remote_namespace_is_usable(const struct namespace *ns, uint64_t now_ns)
{
        const struct remote_params *p = &ns->remote->params;

        return ns->known && ns->awaiting == 0 && ns->writing == 0 &&
               now_ns - MIN(ns->read_ns, now_ns) <= 2 * p->generation_interval_ns + p->timeout_ns;
}

bool remote_namespace_is_new(const struct namespace *ns)
{
        return !ns->known && !ns->failed && ns->awaiting == 0 && ns->writing == 0;
}

void remote_namespace_saw(struct namespace *ns, uint32_t length)
{
        ns->longest = MAX(ns->longest, length);
        ns->lately = MAX(ns->lately, length);
        if (++ns->n_lately < LATELY)
                return;
        ns->longest = MAX(ns->longest / 2, ns->lately);
        ns->lately = ns->n_lately = 0;
}

/* --- purges --- */

static uint64_t next_generation(const struct namespace *ns)
{
        uint64_t chance, above = MAX(ns->generation, ns->has_last ? ns->last : 0);

        if (getrandom(&chance, sizeof(chance), GRND_NONBLOCK) != (ssize_t)sizeof(chance))
                chance = clock_mono_ns() / 64;
        chance &= (UINT64_C(1) << CHANCE_BITS) - 1;
        return MAX(above + 1 + chance % 1024, (clock_unix_ms() << CHANCE_BITS) | chance);
}

struct generation_write {
        uint32_t namespace_id;
        uint64_t born; /* namespace.born, which distinguishes a new namespace with the same id */
        uint64_t generation;
        struct remote_purge *purge; /* NULL: the change replaces a generation that the storage
                                     * system has lost */
};

static void end_purge(struct remote *r, struct remote_purge *purge, int result)
{
        purge->result = result;
        list_append(&r->purges, &purge->node);
}

static void complete_purges(struct remote *r)
{
        struct list_node *node;

        while ((node = list_pop(&r->purges))) {
                struct remote_purge *purge = container_of(node, struct remote_purge, node);

                purge->complete(purge);
        }
}

static void on_generation_written(struct operation *o, int result)
{
        struct generation_write *w = o->owner;
        struct remote *r = o->remote;
        struct namespace *ns = remote_namespace_find(r, w->namespace_id);
        uint64_t now_ns = clock_mono_ns();

        if (ns && ns->born != w->born)
                ns = NULL;
        if (ns) {
                ns->writing--;
                if (result != 0)
                        on_failed(ns, true);
                else
                        ns->read_ns = now_ns;
                if (result == 0 && w->purge)
                        change(ns, w->generation);
                if (result != 0 && ns->awaiting == 0 && ns->writing == 0)
                        read_at(ns, now_ns + RETRY_NS);
        }
        r->stats.purges += result == 0 && w->purge;
        if (w->purge) {
                w->purge->result = result;
                w->purge->complete(w->purge);
        } else if (ns && result == 0) {
                change_by_another(ns, w->generation);
        }
        free(w);
}

static void write_generation(struct namespace *ns, struct remote_purge *purge)
{
        struct remote *r = ns->remote;
        struct generation_write *w = malloc(sizeof(*w));
        struct operation *o;
        int e = w ? operation_new(r, OPERATION_WRITE_GENERATION, NULL, REMOTE_HEADER_BYTES, &o)
                  : -ENOMEM;

        if (e < 0) {
                free(w);
                if (purge)
                        end_purge(r, purge, e);
                return;
        }
        *w = (struct generation_write){ ns->id, ns->born, next_generation(ns), purge };
        ns->writing++;
        forget_reading(ns);
        read_at(ns, NOT_SOON);
        o->owner = w;
        o->done = on_generation_written;
        remote_generation_name(r->prefix, &ns->identity, o->op.name);
        remote_generation_write(&ns->identity, w->generation, clock_unix_ms(), o->buffer.bytes);
        operation_submit(o, BACKEND_REPLACE);
}

static void on_restored(struct operation *o, int result)
{
        struct namespace *ns = o->owner;

        if (!ns)
                return;
        ns->reading = NULL;
        if (o->remote->stopping)
                return;
        if (result == 0 || result == -EEXIST)
                read_at(ns, clock_mono_ns());
        else
                read_at(ns, clock_mono_ns() + o->remote->params.generation_interval_ns);
}

/* Writes back the object of the generation, which existed a moment ago and was removed by an
 * administrator or a rule of the storage system. Does not overwrite an object that exists again. */
static void restore_generation(struct namespace *ns)
{
        struct remote *r = ns->remote;
        struct operation *o;

        if (operation_new(r, OPERATION_WRITE_GENERATION, NULL, REMOTE_HEADER_BYTES, &o) < 0)
                return;
        read_at(ns, NOT_SOON);
        ns->reading = o;
        o->owner = ns;
        o->done = on_restored;
        remote_generation_name(r->prefix, &ns->identity, o->op.name);
        remote_generation_write(&ns->identity, ns->generation, clock_unix_ms(), o->buffer.bytes);
        operation_submit(o, BACKEND_CREATE);
}

void remote_purge(struct remote *r, struct remote_purge *purge)
{
        struct namespace *ns = remote_namespace_find(r, purge->namespace_id);

        purge->remote = r;
        list_init(&purge->node);
        if (!ns || r->stopping)
                end_purge(r, purge, ns ? -ECANCELED : -ENOENT);
        else
                write_generation(ns, purge);
}

void remote_purged(struct remote *r, uint32_t namespace_id)
{
        struct namespace *ns = remote_namespace_find(r, namespace_id);

        if (!ns || ns->awaiting == 0 || r->stopping || --ns->awaiting > 0)
                return;
        settle(ns);
        if (ns->writing == 0)
                read_at(ns, clock_mono_ns()); /* reads the generation at once, because another purge
                                               * may have followed */
}

/* --- the list of namespaces --- */

/* Returns the index of the first namespace whose id is not below `id`. */
static unsigned place_of(const struct remote *r, uint32_t id)
{
        return search_first(r->n_namespaces, i, r->namespaces[i]->id < id);
}

struct namespace *remote_namespace_find(const struct remote *r, uint32_t id)
{
        unsigned at = place_of(r, id);

        return at < r->n_namespaces && r->namespaces[at]->id == id ? r->namespaces[at] : NULL;
}

bool remote_has_namespace(const struct remote *r, uint32_t namespace_id)
{
        return remote_namespace_find(r, namespace_id) != NULL;
}

static int make_room(struct remote *r)
{
        unsigned room = MAX(2 * r->namespaces_room, 16u);
        struct namespace **list;

        if (r->n_namespaces < r->namespaces_room)
                return 0;
        list = realloc(r->namespaces, room * sizeof(*list));
        if (!list)
                return -ENOMEM;
        r->namespaces = list;
        r->namespaces_room = room;
        return 0;
}

static void take_out(struct remote *r, struct namespace *ns)
{
        unsigned at = place_of(r, ns->id);

        r->n_namespaces--;
        memmove(&r->namespaces[at], &r->namespaces[at + 1],
                (r->n_namespaces - at) * sizeof(*r->namespaces));
        matches_cancel(r, ns);
        deadlines_remove(&r->deadlines, &ns->next);
        forget_reading(ns);
        free(ns);
}

int remote_namespace_add(struct remote *r, uint32_t namespace_id, const char *name,
                         const char *fingerprint, const void *secret, size_t secret_length)
{
        struct namespace *ns = remote_namespace_find(r, namespace_id);
        struct remote_identity identity;
        unsigned at;
        int e = remote_identify(secret, secret_length, name, fingerprint, &identity);

        if (e < 0)
                return e;
        if (ns && memcmp(&ns->identity, &identity, sizeof(identity)) == 0)
                return 0;
        if (ns)
                take_out(r, ns);
        e = make_room(r);
        if (e < 0)
                return e;
        ns = calloc(1, sizeof(*ns));
        if (!ns)
                return -ENOMEM;
        *ns = (struct namespace){
                .remote = r,
                .id = namespace_id,
                .identity = identity,
                .next.expire = on_read_due,
        };
        begin_epoch(ns);
        ns->born = ns->epoch;
        ns->has_last = generations_find(&r->generations, &identity, &ns->last);
        if (deadlines_add(&r->deadlines, &ns->next, clock_mono_ns()) < 0) {
                free(ns);
                return -ENOMEM;
        }
        at = place_of(r, namespace_id);
        memmove(&r->namespaces[at + 1], &r->namespaces[at],
                (r->n_namespaces - at) * sizeof(*r->namespaces));
        r->namespaces[at] = ns;
        r->n_namespaces++;
        return 0;
}

void remote_namespace_remove(struct remote *r, uint32_t namespace_id)
{
        struct namespace *ns = remote_namespace_find(r, namespace_id);

        if (!ns)
                return;
        /* This host has no chunk of the removed namespace, so the recorded generation stays valid.
         * It is kept while the list has room, because it spares a new namespace of the same name a
         * purge. */
        if (r->generations.n > GENERATIONS_MAX / 2 &&
            generations_remove(&r->generations, &ns->identity))
                r->record_due = true;
        take_out(r, ns);
}

/* --- iteration and end --- */

void remote_namespaces_iterate(struct remote *r, uint64_t now_ns)
{
        complete_purges(r);
        record(r, now_ns);
}

uint64_t remote_namespaces_next(const struct remote *r)
{
        return r->record_due && !r->recorder.running ? r->record_after_ns : 0;
}

void remote_namespaces_stop(struct remote *r)
{
        complete_purges(r);
}

void remote_namespaces_fini(struct remote *r)
{
        while (r->n_namespaces > 0)
                take_out(r, r->namespaces[r->n_namespaces - 1]);
        free(r->namespaces);
        r->namespaces = NULL;
        generations_fini(&r->generations);
}
