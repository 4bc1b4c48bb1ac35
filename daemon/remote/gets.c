/* SPDX-License-Identifier: Apache-2.0 */
/* Reads of chunks, each for one get. Loop thread.
 *
 * A get waits for a buffer if all are in use, then the engine has it. It is completed once: as what
 * was found, or a miss, at its deadline at the latest. A chunk that is larger than any of its
 * namespace before is read for a second time, into a buffer that it fits into. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "checked.h"
#include "remote/internal.h"

/* What the tier keeps of a get, from remote_get() to complete(), or remote_get_end(). */
struct reading {
        struct remote *remote;
        struct remote_get *get;
        struct list_node node; /* of those that wait for a buffer */
        bool waits;
        struct deadline deadline;
        struct operation *operation; /* under way, or found; NULL: it waits */
        uint64_t bytes;              /* of buffer; 0: as its namespace's are */
        uint64_t epoch;
};

static void on_deadline(struct deadline *d, uint64_t now_ns);

static void set_waiting(struct reading *rd, bool waits)
{
        struct remote *r = rd->remote;

        if (waits == rd->waits)
                return;
        if (waits)
                list_append(&r->waiting, &rd->node);
        else
                list_unlink(&rd->node);
        r->n_waiting += waits ? 1u : -1u;
        rd->waits = waits;
}

static void complete(struct reading *rd, bool found)
{
        struct remote *r = rd->remote;
        struct remote_get *get = rd->get;

        set_waiting(rd, false);
        deadlines_remove(&r->deadlines, &rd->deadline);
        get->found = found;
        if (!found) {
                if (rd->operation)
                        rd->operation->owner = NULL; /* it is late */
                get->private_data = NULL;
                free(rd);
        }
        get->complete(get);
}

static void on_deadline(struct deadline *d, uint64_t now_ns)
{
        struct reading *rd = container_of(d, struct reading, deadline);

        (void)now_ns;
        if (rd->waits)
                rd->remote->stats.refused[1]++;
        else
                rd->remote->stats.misses++;
        complete(rd, false);
}

void gets_fail_waiting(struct remote *r)
{
        struct list_node failed = LIST_INIT(failed), *node;

        /* Those that come meanwhile are refused, or wait for their own reasons. */
        list_splice(&failed, &r->waiting);
        while ((node = failed.next) != &failed) {
                r->stats.refused[0]++;
                complete(container_of(node, struct reading, node), false);
        }
}

/* --- what the engine brings --- */

static void remember(struct operation *o, bool there)
{
        struct remote *r = o->remote;
        uint64_t now_ns = clock_mono_ns();

        if (!there && presence_is_there(presence_get(&r->presence, o->hash, now_ns)))
                r->surprised_until_ns = now_ns + r->params.absence_ns;
        presence_set(&r->presence, o->hash, there ? PRESENCE_THERE : PRESENCE_ABSENT,
                     there ? r->params.presence_ns : r->params.absence_ns, now_ns);
}

static void start(struct reading *rd);

static void read_again(struct reading *rd, uint64_t bytes)
{
        rd->operation = NULL;
        rd->bytes = bytes;
        start(rd);
}

/* Is it what was asked for? `*ret_more`: the bytes that it has, if the buffer was too small. */
static enum remote_rejection check(const struct operation *o, struct remote_object *ret,
                                   uint64_t *ret_more)
{
        uint64_t size = MIN(o->op.size, UINT64_MAX), whole;
        enum remote_rejection why;

        *ret_more = 0;
        if (o->op.transferred < REMOTE_HEADER_BYTES)
                return REMOTE_BAD_HEADER;
        why = remote_object_read(o->buffer.bytes, size, &o->want, ret);
        if (why != REMOTE_ACCEPTED)
                return why;
        whole = (uint64_t)REMOTE_HEADER_BYTES + ret->length;
        if (o->op.transferred >= whole)
                return REMOTE_ACCEPTED;
        if (whole <= o->op.pieces[0].iov_len)
                return REMOTE_BAD_LENGTH;
        *ret_more = whole;
        return REMOTE_ACCEPTED;
}

/* remote_get_end() may be called from within. */
static void on_found(struct operation *o)
{
        complete(o->owner, true);
}

static void on_done(struct operation *o, int result)
{
        struct reading *rd = o->owner;
        struct remote *r = o->remote;
        enum remote_rejection why = REMOTE_ACCEPTED;
        struct namespace *ns = rd ? remote_namespace_find(r, rd->get->namespace_id) : NULL;
        struct remote_object object;
        uint64_t more = 0;

        if (!rd && !o->expired)
                r->stats.late++;
        if (result == 0) {
                why = check(o, &object, &more);
                if (why != REMOTE_ACCEPTED)
                        remote_reject(r, why, o->op.name);
                else
                        r->stats.get_bytes += o->op.transferred;
        }
        if (result == 0 || result == -ENOENT)
                remember(o, result == 0 && why == REMOTE_ACCEPTED);
        if (!rd)
                return;
        if (result != 0 || why != REMOTE_ACCEPTED || !ns || ns->epoch != rd->epoch) {
                rd->operation = NULL;
                r->stats.misses++;
                complete(rd, false);
                return;
        }
        if (more > 0) {
                read_again(rd, more);
                return;
        }
        remote_namespace_saw(ns, object.length);
        rd->get->payload = o->buffer.bytes + REMOTE_HEADER_BYTES;
        rd->get->length = object.length;
        rd->get->crc = object.crc;
        rd->get->created_ms = object.created_ms;
        operation_keep(o, on_found);
}

/* --- on the way there --- */

/* Waits, if there is no buffer. */
static void start(struct reading *rd)
{
        struct remote *r = rd->remote;
        struct namespace *ns = remote_namespace_find(r, rd->get->namespace_id);
        struct operation *o;
        uint64_t bytes;
        int e;

        if (!ns || ns->epoch != rd->epoch || r->breaker.state != REMOTE_CLOSED) {
                (void)deadlines_add(&r->deadlines, &rd->deadline, 1); /* it is in */
                set_waiting(rd, false);
                return;
        }
        if (rd->bytes > 0)
                ns->longest = MAX(ns->longest, (uint32_t)(rd->bytes - REMOTE_HEADER_BYTES));
        bytes = (uint64_t)REMOTE_HEADER_BYTES +
                (ns->longest > 0 ? ns->longest : FIRST_READ - REMOTE_HEADER_BYTES);
        e = operation_new(r, OPERATION_GET, &r->read_buffers, MAX(rd->bytes, bytes), &o);
        if (e < 0) {
                set_waiting(rd, true);
                return;
        }
        set_waiting(rd, false);
        rd->operation = o;
        o->owner = rd;
        o->done = on_done;
        o->hash = remote_namespace_hash(ns, rd->get->hash);
        o->want = (struct remote_object){
                .key = rd->get->key,
                .identity = ns->identity,
                .generation = ns->generation,
        };
        remote_object_name(r->prefix, ns->generation, &ns->identity, &rd->get->key, o->op.name);
        operation_submit(o, BACKEND_READ);
}

void gets_iterate(struct remote *r, uint64_t now_ns)
{
        buffers_trim(&r->read_buffers, now_ns);
        while (!list_empty(&r->waiting)) {
                struct reading *rd = container_of(r->waiting.next, struct reading, node);

                start(rd);
                if (rd->waits)
                        return;
        }
}

bool remote_get(struct remote *r, struct remote_get *get)
{
        const struct namespace *ns = remote_namespace_find(r, get->namespace_id);
        uint64_t now_ns = clock_mono_ns();
        struct reading *rd;

        if (!ns || r->stopping)
                return false;
        r->stats.gets++;
        if (r->breaker.state != REMOTE_CLOSED) {
                r->stats.refused[0]++;
                return false;
        }
        if (!remote_namespace_is_usable(ns, now_ns)) {
                r->stats.refused[2]++;
                return false;
        }
        if (get->deadline_ns <= now_ns ||
            presence_get(&r->presence, remote_namespace_hash(ns, get->hash), now_ns) ==
                    PRESENCE_ABSENT) {
                r->stats.misses++;
                return false;
        }
        rd = r->n_waiting < GETS_WAITING_MAX ? calloc(1, sizeof(*rd)) : NULL;
        if (!rd) {
                r->stats.refused[1]++;
                return false;
        }
        *rd = (struct reading){ .remote = r, .get = get, .epoch = ns->epoch };
        rd->deadline.expire = on_deadline;
        if (deadlines_add(&r->deadlines, &rd->deadline,
                          MIN(get->deadline_ns, now_ns + r->params.timeout_ns)) < 0) {
                r->stats.refused[1]++;
                free(rd);
                return false;
        }
        get->found = false;
        get->private_data = rd;
        if (list_empty(&r->waiting))
                start(rd);
        else
                set_waiting(rd, true);
        return true;
}

void remote_get_end(struct remote *r, struct remote_get *get, bool bad)
{
        struct reading *rd = get->private_data;
        struct operation *o = rd->operation;
        uint64_t now_ms = clock_unix_ms();

        if (bad)
                r->stats.misses++;
        else
                r->stats.hits++;
        if (bad) {
                remote_reject(r, REMOTE_BAD_CHECKSUM, o->op.name);
                remember(o, false);
        } else if (!r->stopping && r->params.ops->mark_used &&
                   presence_mark_day(&r->presence, o->hash, (uint16_t)(now_ms / 86400000))) {
                r->params.ops->mark_used(r->backend, o->op.name, now_ms);
        }
        get->private_data = NULL;
        get->payload = NULL;
        operation_free(o);
        free(rd);
}
