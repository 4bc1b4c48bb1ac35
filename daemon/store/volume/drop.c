/* SPDX-License-Identifier: Apache-2.0 */
/* Tombstones of dropped chunks, and the requests that wait until tombstones are written.
 *
 * A tombstone is handled like the entry of a put: it is queued for the table, filled in when its
 * page is composed, and its result is reported to tombstone_written(). A drop needs memory only for
 * its tombstone. Loop thread.
 *
 * When a volume is bypassed, the store asks volume_loses_drops() whether tombstones are lost with
 * it. A tombstone that is queued after the bypass, for a put in flight with store_put.drop, is
 * reported to the store at once (volume_ops.doubtful), because its chunk may return. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "store/volume/internal.h"

struct tombstone {
        struct table_work work;
        bool is_asked_for; /* the tombstone was made for a drop, and not for a damaged chunk */
        struct key key;
        uint64_t seq;
        uint32_t namespace_id;
        uint16_t tenant;
};

/* State of a volume_settle_drops() request: the numbers of drops and purges that were begun before
 * it. */
struct asked {
        uint64_t drops, purges;
};
static_assert(sizeof(struct asked) <= sizeof(((struct store_put *)0)->store_private),
              "room in the request");

static struct asked *asked_of(struct store_put *req)
{
        return (struct asked *)req->store_private;
}

static int queue(struct volume *v, uint32_t namespace_id, const struct key *key, bool is_asked_for)
{
        const struct namespace *ns = namespaces_get(v->namespaces, namespace_id);
        struct tombstone *t;

        if (!ns)
                return 0; /* the namespace does not exist, so no chunk of it can return */
        t = malloc(sizeof(*t));
        if (!t)
                return -ENOMEM;
        *t = (struct tombstone){
                .work.kind = WORK_TOMBSTONE,
                .is_asked_for = is_asked_for,
                .key = *key,
                .seq = ++v->seq,
                .namespace_id = namespace_id,
                .tenant = ns->seen.tenant,
        };
        v->tombstones++;
        v->drops_begun += is_asked_for;
        table_add(v, &t->work.item);
        if (v->bypassed && is_asked_for)
                v->ops.doubtful(v->ops.userdata, v);
        return 0;
}

int tombstone_queue(struct volume *v, uint32_t namespace_id, const struct key *key)
{
        return queue(v, namespace_id, key, true);
}

void tombstone_entry(const struct table_work *work, struct disk_entry *ret)
{
        const struct tombstone *t = container_of((void *)work, struct tombstone, work);

        *ret = (struct disk_entry){
                .key = t->key,
                .seq = t->seq,
                .tenant = t->tenant,
                .flags = DISK_ENTRY_TOMBSTONE,
                .namespace_id = t->namespace_id,
        };
}

void tombstone_written(struct volume *v, struct table_work *work, int r)
{
        struct tombstone *t = container_of(work, struct tombstone, work);

        v->tombstones--;
        v->drops_over += t->is_asked_for;
        v->drops_lost = v->drops_lost || (t->is_asked_for && r < 0);
        free(t);
        drops_settle(v);
}

/* Removes a damaged chunk, and queues a tombstone if memory allows and the volume is not bypassed.
 * Without a tombstone, the next startup finds the chunk again, and the first get of it detects the
 * damage. */
static void chunk_discard(struct volume *v, uint32_t i)
{
        const struct chunk *c = volume_chunk_at(v, i);

        if (!v->bypassed)
                (void)queue(v, chunk_namespace(v, c), &c->key, false);
        chunk_remove(v, i);
}

void chunk_condemn(struct volume *v, uint32_t i, int error)
{
        const struct chunk *c = volume_chunk_at(v, i);
        struct store_chunk chunk = volume_describe(v, c);

        if (error == 0) {
                v->stats.crc_failures++;
                v->stats.crc_failed_ns = clock_mono_ns();
        }
        if (v->params.on_finding)
                v->params.on_finding(v->params.userdata, &(struct store_finding){
                                                                 .path = v->path,
                                                                 .segment = c->slab,
                                                                 .offset = chunk_offset(v, c),
                                                                 .chunk = &chunk,
                                                                 .error = error,
                                                         });
        chunk_discard(v, i);
}

/* Settles the waiting requests in order, because tombstones are written in the order of the drops,
 * and purges in the order of their requests. A request also waits for earlier purges: a purge may
 * have removed a put whose entry is on disk already. After a failed write of a tombstone or purge,
 * all settle requests fail; if it was a purge, until a retry has written it. */
void drops_settle(struct volume *v)
{
        const struct namespaces_purges *purges = namespaces_purges(v->namespaces);
        bool lost = v->drops_lost || namespaces_purge_is_lost(v->namespaces);

        while (!list_empty(&v->drops_waiting)) {
                struct store_put *req = container_of(v->drops_waiting.next, struct store_put, node);
                const struct asked *asked = asked_of(req);

                if (asked->drops > v->drops_over || asked->purges > purges->over)
                        return;
                list_unlink(&req->node);
                put_finish(v, req, lost ? STORE_BYPASSED : 0);
        }
}

void volume_settle_drops(struct volume *v, struct store_put *req)
{
        v->requests++;
        list_init(&req->node);
        *asked_of(req) = (struct asked){
                .drops = v->drops_begun,
                .purges = namespaces_purges(v->namespaces)->begun,
        };
        list_append(&v->drops_waiting, &req->node);
        drops_settle(v);
        volume_nudge(v);
}

bool volume_loses_drops(const struct volume *v)
{
        return v->open && (v->drops_lost || v->drops_begun != v->drops_over ||
                           namespaces_purge_is_lost(v->namespaces));
}
