/* SPDX-License-Identifier: Apache-2.0 */
/* Writes chunks. An offered chunk waits in the queue, is loaded into a buffer when the rate
 * permits, and is written. Loop thread.
 *
 * A chunk is written in the generation in which it was offered; if that changes while the chunk
 * waits or is loaded, the chunk is dropped. If the storage system is full or refuses writes, only
 * writes are suspended. One write is tried after a pause of PAUSE_MIN_NS, which doubles each time
 * up to PAUSE_MAX_NS. */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "checked.h"
#include "remote/internal.h"

enum { DROPPED_FULL_QUEUE, DROPPED_BAD, DROPPED_FULL_ENGINE, DROPPED_FAILED };

#define PAUSE_MIN_NS UINT64_C(10000000000)
#define PAUSE_MAX_NS UINT64_C(300000000000)

struct writing {
        struct remote_put put;
        struct remote *remote;
        struct queue_entry *entry;
        struct operation *operation;
        uint64_t epoch; /* namespace's epoch when the chunk was offered */
};

static void end(struct writing *w)
{
        w->remote->writing--;
        queue_end(&w->remote->queue, w->entry);
        free(w);
}

/* --- offers --- */

void remote_offer(struct remote *r, uint32_t namespace_id, uint16_t tenant, const struct key *key,
                  uint64_t hash, uint32_t length, enum remote_reason reason)
{
        struct namespace *ns;
        uint64_t now_ns, known_as;

        if (r->stopping || r->params.write == REMOTE_WRITE_NEVER || length == 0 ||
            length > REMOTE_CHUNK_MAX ||
            (r->params.write == REMOTE_WRITE_REUSED && reason == REMOTE_PUT))
                return;
        ns = remote_namespace_find(r, namespace_id);
        now_ns = clock_mono_ns();
        if (!ns || !(remote_namespace_is_usable(ns, now_ns) || remote_namespace_is_new(ns)))
                return;
        known_as = remote_namespace_hash(ns, hash);
        if (queue_has(&r->queue, known_as) ||
            presence_get(&r->presence, known_as, now_ns) == PRESENCE_THERE)
                return;
        if (reason == REMOTE_LEAVING && !queue_has_room(&r->queue, tenant, length)) {
                r->stats.dropped[DROPPED_FULL_QUEUE]++;
                return;
        }
        remote_namespace_saw(ns, length);
        r->stats.dropped[DROPPED_FULL_QUEUE] +=
                queue_put(&r->queue, &(struct queue_entry){
                                             .hash = known_as,
                                             .epoch = ns->epoch,
                                             .namespace_id = namespace_id,
                                             .length = length,
                                             .tenant = tenant,
                                             .key = *key,
                                             .key_hash = hash,
                                     });
        r->stats.offers[reason] += queue_has(&r->queue, known_as);
}

bool remote_takes_leaving(const struct remote *r)
{
        return !r->stopping && r->params.write != REMOTE_WRITE_NEVER &&
               r->breaker.state == REMOTE_CLOSED &&
               (r->paused_until_ns == 0 || clock_mono_ns() >= r->paused_until_ns);
}

/* --- the storage system's answer --- */

/* Returns whether a write was submitted after the last pause, or no pause is in force. */
static bool is_newer_than_pause(const struct remote *r, const struct operation *o)
{
        return r->paused_until_ns == 0 || o->op.submitted_ns >= r->paused_until_ns;
}

static void pause(struct remote *r, uint64_t now_ns)
{
        r->pause_ns = r->pause_ns == 0 ? PAUSE_MIN_NS : MIN(2 * r->pause_ns, PAUSE_MAX_NS);
        r->paused_until_ns = now_ns + r->pause_ns;
}

static void resume(struct remote *r)
{
        r->full = false;
        r->paused_until_ns = r->pause_ns = 0;
}

static void on_written(struct operation *o, int result)
{
        struct writing *w = o->owner;
        struct remote *r = o->remote;
        uint64_t now_ns = clock_mono_ns();

        if (result == 0 || result == -EEXIST) {
                presence_set(&r->presence, o->hash, PRESENCE_THERE, r->params.presence_ns, now_ns);
                r->stats.puts += result == 0;
                r->stats.put_bytes += result == 0 ? w->put.length : 0;
                r->stats.puts_existing += result == -EEXIST;
                if (is_newer_than_pause(r, o))
                        resume(r);
        } else if (result == -ENOSPC) {
                r->stats.dropped[DROPPED_FULL_ENGINE]++;
                if (is_newer_than_pause(r, o))
                        pause(r, now_ns);
                r->full = true;
        } else {
                r->stats.dropped[DROPPED_FAILED]++;
                if ((result == -EACCES || result == -EROFS) && is_newer_than_pause(r, o))
                        pause(r, now_ns);
        }
        end(w);
}

/* --- sending writes --- */

void remote_put_loaded(struct remote_put *put, bool loaded)
{
        struct writing *w = put->private_data;
        struct remote *r = w->remote;
        struct operation *o = w->operation;
        const struct namespace *ns = remote_namespace_find(r, put->namespace_id);

        r->loading--;
        if (!loaded || r->stopping || !ns || ns->epoch != w->epoch) {
                r->stats.dropped[DROPPED_BAD]++;
                operation_free(o);
                end(w);
                return;
        }
        o->want.crc = put->crc;
        o->want.created_ms = put->created_ms;
        remote_object_write(&o->want, o->buffer.bytes);
        operation_submit(o, BACKEND_CREATE);
}

static void load(struct remote *r, struct queue_entry *e, const struct namespace *ns,
                 struct writing *w, struct operation *o, uint64_t now_ns)
{
        *w = (struct writing){
                .put = { .namespace_id = e->namespace_id,
                         .tenant = e->tenant,
                         .key = e->key,
                         .hash = e->key_hash,
                         .buffer = o->buffer.bytes + REMOTE_HEADER_BYTES,
                         .length = e->length,
                         .remote = r,
                         .private_data = w },
                .remote = r,
                .entry = e,
                .operation = o,
                .epoch = e->epoch,
        };
        list_init(&w->put.node);
        o->owner = w;
        o->done = on_written;
        o->hash = e->hash;
        o->want = (struct remote_object){
                .key = e->key,
                .identity = ns->identity,
                .generation = ns->generation,
                .length = e->length,
        };
        o->op.pieces[0].iov_len = REMOTE_HEADER_BYTES;
        o->op.pieces[1] = (struct iovec){ w->put.buffer, e->length };
        remote_object_name(r->prefix, ns->generation, &ns->identity, &e->key, o->op.name);
        rate_take(&r->write_rate, e->length, r->params.write_rate, now_ns);
        queue_serve(&r->queue, e);
        r->writing++;
        r->loading++;
        r->params.load(r->params.userdata, &w->put);
}

static void drop(struct remote *r, struct queue_entry *e)
{
        queue_take(&r->queue, e);
        queue_end(&r->queue, e);
}

/* Returns the most writes at a time, which leaves capacity of the storage system for reads. */
static unsigned writes_most(const struct remote *r)
{
        return MAX(r->params.backend.depth / 4 * 3, 1u);
}

static bool may_write(const struct remote *r, uint64_t now_ns)
{
        if (r->stopping || r->breaker.state != REMOTE_CLOSED ||
            r->params.write == REMOTE_WRITE_NEVER || rate_next(&r->write_rate, 0) > now_ns ||
            r->writing >= writes_most(r))
                return false;
        return r->paused_until_ns == 0 || (now_ns >= r->paused_until_ns && r->writing == 0);
}

void puts_iterate(struct remote *r, uint64_t now_ns)
{
        struct queue_entry *e;

        buffers_trim(&r->write_buffers, now_ns);
        while ((e = queue_first(&r->queue)) && may_write(r, now_ns)) {
                const struct namespace *ns = remote_namespace_find(r, e->namespace_id);
                struct operation *o;
                struct writing *w;

                if (ns && ns->epoch == e->epoch && !ns->failed &&
                    !remote_namespace_is_usable(ns, now_ns))
                        return; /* the chunk waits until the generation has been read or written */
                if (!ns || ns->epoch != e->epoch || !remote_namespace_is_usable(ns, now_ns)) {
                        r->stats.dropped[DROPPED_BAD]++;
                        drop(r, e);
                        continue;
                }
                if (presence_get(&r->presence, e->hash, now_ns) == PRESENCE_THERE) {
                        drop(r, e);
                        continue;
                }
                w = malloc(sizeof(*w));
                if (!w)
                        return;
                if (operation_new(r, OPERATION_PUT, &r->write_buffers,
                                  (size_t)REMOTE_HEADER_BYTES + e->length, &o) < 0) {
                        free(w);
                        return;
                }
                load(r, e, ns, w, o, now_ns);
        }
}

/* Returns the time at which the next write may begin; 0 if no chunk waits or none may be written.
 * Ignores that all buffers may be in use or a trial be in flight, since the end of an operation
 * causes an iteration. */
uint64_t puts_next(const struct remote *r)
{
        if (!queue_first(&r->queue) || r->stopping || r->breaker.state != REMOTE_CLOSED ||
            r->params.write == REMOTE_WRITE_NEVER)
                return 0;
        return MAX(rate_next(&r->write_rate, 0), r->paused_until_ns);
}
