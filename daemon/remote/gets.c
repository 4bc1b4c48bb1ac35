/* SPDX-License-Identifier: Apache-2.0 */
/* Reads chunks, one per get. Loop thread.
 *
 * A get waits while all buffers are in use or the storage system is busy; then it is sent to the
 * storage system. A tenant's gets wait in order, and tenants share by fair queueing. Each get
 * completes once, with a chunk or as a miss, at its deadline at the latest. A chunk larger than any
 * earlier one of its namespace is read again, into a buffer of its size. */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "checked.h"
#include "remote/internal.h"

/* The state of a get, from remote_get() to complete() or remote_get_end(). */
struct reading {
        struct remote *remote;
        struct remote_get *get;
        struct list_node node; /* in remote.waiting, while `waits` */
        bool waits;
        struct deadline deadline;
        struct operation *operation; /* operation in flight, or ended with a chunk; NULL while the
                                      * get waits */
        uint64_t bytes; /* least size of the buffer, because a smaller one was too small; 0: the
                         * size that is usual in the namespace */
        uint64_t epoch;
};

static void on_deadline(struct deadline *d, uint64_t now_ns);

static void set_waiting(struct reading *rd, bool waits)
{
        struct sfq *waiting = &rd->remote->waiting;

        if (waits == rd->waits)
                return;
        if (waits)
                sfq_append(waiting, rd->get->tenant, &rd->node, 0);
        else
                sfq_remove(waiting, rd->get->tenant, &rd->node, 0);
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
                        rd->operation->owner = NULL; /* the operation's answer will come too late
                                                      * and is ignored */
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
        struct list_node *node;

        while ((node = sfq_first(&r->waiting, 0))) { /* ends, because remote_get() refuses new gets
                                                      * now */
                r->stats.refused[0]++;
                complete(container_of(node, struct reading, node), false);
        }
}

/* --- answers of the storage system --- */

static void remember(struct operation *o, bool there)
{
        struct remote *r = o->remote;
        uint64_t now_ns = clock_mono_ns();

        if (!there && presence_is_there(presence_get(&r->presence, o->hash, now_ns)))
                r->surprised_until_ns = now_ns + r->params.absence_ns;
        presence_set(&r->presence, o->hash, there ? PRESENCE_THERE : PRESENCE_ABSENT,
                     there ? r->params.presence_ns : r->params.absence_ns, now_ns);
}

static int start(struct reading *rd);

static void read_again(struct reading *rd, uint64_t bytes)
{
        rd->operation = NULL;
        rd->bytes = bytes;
        (void)start(rd);
}

/* Returns REMOTE_ACCEPTED if the object is the requested one, otherwise the reason why it is not.
 * If the buffer was too small, `*ret_more` becomes the bytes of the whole object, otherwise 0. */
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

/* Completes the get. The callee may call remote_get_end() within complete(). */
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

/* --- sending gets --- */

/* Returns the most gets at the storage system at a time: enough that the storage system always has
 * some to work on, but few enough that the gets of one tenant do not delay those of others. */
static unsigned reads_most(const struct remote *r)
{
        return MAX(2 * r->params.backend.depth, 1u);
}

/* Returns whether a tenant may take another buffer: it has none, would have at most three quarters
 * of the bound, or is the only one that has ever requested a chunk. A chunk keeps its buffer until
 * the tenant's pool has room for it; without this limit, a tenant with a full pool would occupy all
 * buffers. */
static bool may_hold(const struct remote *r, uint16_t tenant, uint64_t bytes)
{
        uint64_t held = r->held[sfq_number(tenant)], bound = r->read_buffers.bound;
        bool alone = (r->asking & (r->asking - 1)) == 0;

        return alone || held == 0 || held + bytes <= bound - bound / 4;
}

/* Sends a get to the storage system, or makes it wait. Returns 0 if it was sent or is about to
 * become a miss, -EAGAIN if no get can be sent, and -EDQUOT if no get of this tenant can. */
static int start(struct reading *rd)
{
        struct remote *r = rd->remote;
        struct namespace *ns = remote_namespace_find(r, rd->get->namespace_id);
        struct operation *o;
        uint64_t bytes;
        int e = 0;

        if (!ns || ns->epoch != rd->epoch || r->breaker.state != REMOTE_CLOSED) {
                (void)deadlines_add(&r->deadlines, &rd->deadline, 1); /* cannot fail, because the
                                                                       * deadline is in the heap
                                                                       * already */
                set_waiting(rd, false);
                return 0;
        }
        if (rd->bytes > 0)
                ns->longest = MAX(ns->longest, (uint32_t)(rd->bytes - REMOTE_HEADER_BYTES));
        bytes = (uint64_t)REMOTE_HEADER_BYTES +
                (ns->longest > 0 ? ns->longest : FIRST_READ - REMOTE_HEADER_BYTES);
        bytes = MAX(rd->bytes, bytes);
        if (r->reading >= reads_most(r))
                e = -EAGAIN;
        else if (!may_hold(r, rd->get->tenant, bytes))
                e = -EDQUOT;
        else if (operation_new(r, OPERATION_GET, &r->read_buffers, bytes, &o) < 0)
                e = -EAGAIN;
        if (e < 0) {
                set_waiting(rd, true);
                return e;
        }
        o->tenant = rd->get->tenant;
        r->held[sfq_number(o->tenant)] += o->buffer.size;
        if (rd->waits)
                sfq_charge(&r->waiting, o->tenant, o->buffer.size);
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
        return 0;
}

void gets_iterate(struct remote *r, uint64_t now_ns)
{
        struct list_node *node;
        uint64_t full = 0; /* bit mask of the flows of tenants that hold as many buffers as they
                            * may */

        buffers_trim(&r->read_buffers, now_ns);
        while ((node = sfq_first(&r->waiting, full))) {
                struct reading *rd = container_of(node, struct reading, node);
                int e = start(rd);

                if (e == -EAGAIN)
                        return;
                if (e == -EDQUOT)
                        full |= UINT64_C(1) << sfq_number(rd->get->tenant);
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
        rd = sfq_flow(&r->waiting, get->tenant)->n < GETS_WAITING_MAX ? calloc(1, sizeof(*rd))
                                                                      : NULL;
        if (!rd) {
                r->stats.refused[1]++;
                return false;
        }
        *rd = (struct reading){ .remote = r, .get = get, .epoch = ns->epoch };
        list_init(&rd->node);
        rd->deadline.expire = on_deadline;
        if (deadlines_add(&r->deadlines, &rd->deadline,
                          MIN(get->deadline_ns, now_ns + r->params.timeout_ns)) < 0) {
                r->stats.refused[1]++;
                free(rd);
                return false;
        }
        get->found = false;
        get->private_data = rd;
        r->asking |= UINT64_C(1) << sfq_number(get->tenant);
        if (sfq_is_empty(&r->waiting))
                (void)start(rd);
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
