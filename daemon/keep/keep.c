/* SPDX-License-Identifier: Apache-2.0 */
/* See keep.h. Takes over the pools of a map, and verifies their chunks.
 *
 * Owns the queues of unverified chunks, the requests that read them, and the holders. A chunk is
 * pinned while a worker reads it and checked again afterwards, because a purge, an eviction, or a
 * new put or read of the key prevails over the map at any time. Failures: a chunk that does not
 * match is dropped and counted. */
#include "keep/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cache/cache.h"
#include "checked.h"
#include "cleanup.h"
#include "store/store.h"

enum { CHECKS = 32 };

struct check {
        struct kio_request req;
        struct keep *keep;
        unsigned tenant;
        uint32_t chunk, generation;
        bool busy;
};

DEFINE_CLEANUP(struct keep *, keep_free);

int keep_new(struct keep **ret, const struct keep_params *params)
{
        _cleanup_(keep_freep) struct keep *k = calloc(1, sizeof(*k));
        int r;

        if (!k)
                return -ENOMEM;
        k->params = *params;
        k->stats.forbidden_pools = params->forbidden_pools;
        k->closed_fd = -1;
        k->n_checks = CHECKS;
        k->tenants = calloc(params->n_tenants, sizeof(*k->tenants));
        k->queues = calloc(params->n_tenants, sizeof(*k->queues));
        k->checks = calloc(k->n_checks, sizeof(*k->checks));
        if (!k->tenants || !k->queues || !k->checks)
                return -ENOMEM;
        memcpy(k->tenants, params->tenants, params->n_tenants * sizeof(*k->tenants));
        r = holders_init(k);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(k);
        return 0;
}

struct keep *keep_free(struct keep *k)
{
        if (!k)
                return NULL;
        holders_fini(k);
        for (unsigned i = 0; k->queues && i < k->params.n_tenants; i++)
                free(k->queues[i].refs);
        free(k->queues);
        free(k->checks);
        free(k->tenants);
        free(k);
        return NULL;
}

/* --- taking over --- */

/* Returns whether the store does not contradict a chunk of the map: the chunk's namespace belongs
 * to the tenant, and the store has no other chunk under its key. Fills in the chunk's pool
 * record. */
static bool is_current(const struct keep *k, const struct keep_tenant *t,
                       const struct keep_chunk *chunk, struct pool_kept *ret)
{
        const struct store_namespace *ns =
                store_namespace_get(k->params.store, chunk->namespace_id);
        struct store_ref ref = STORE_REF_NONE;
        struct store_chunk info;
        bool stored;

        if (!ns || ns->tenant != t->store_tenant)
                return false;
        *ret = (struct pool_kept){
                .key = chunk->key,
                .hash = store_hash(k->params.store, chunk->namespace_id, &chunk->key),
                .namespace_id = chunk->namespace_id,
                .length = chunk->length,
                .crc = chunk->payload_crc,
                .slab = chunk->slab,
                .slot = chunk->slot,
                .user = chunk->user,
                .created_ms = chunk->created_ms,
                .record = chunk->record,
        };
        stored = store_find(k->params.store, chunk->namespace_id, &chunk->key, ret->hash, &ref,
                            &info) == 0;
        if (stored && (info.length != chunk->length || info.crc != chunk->payload_crc))
                return false;
        ret->flags = (stored || chunk->flags & KEEP_STORED ? POOL_STORED : 0) |
                     (!stored && chunk->flags & KEEP_REFUSED ? POOL_REFUSED : 0);
        ret->ref = ref;
        return true;
}

static void adopt_chunk(struct keep *k, unsigned tenant, const struct keep_chunk *chunk)
{
        const struct keep_tenant *t = &k->tenants[tenant];
        struct keep_queue *q = &k->queues[tenant];
        struct pool_kept kept;
        uint32_t number;

        if (!is_current(k, t, chunk, &kept)) {
                k->stats.refused[KEEP_CHANGED]++;
                return;
        }
        if (pool_keep_chunk(t->pool, &kept, &number) < 0) {
                k->stats.refused[KEEP_NO_SLOT]++;
                return;
        }
        q->refs[q->left++] =
                (struct keep_ref){ .chunk = number,
                                   .generation = pool_chunk(t->pool, number)->generation };
        k->stats.pending++;
}

static int adopt_pool(struct keep *k, const struct keep_file *f, unsigned tenant, bool valid)
{
        const struct keep_map *map = &f->map;
        unsigned i = (unsigned)k->tenants[tenant].kept;
        const struct keep_pool *p = map->pools[i];
        uint64_t position = 0;

        for (uint32_t slab = 0; slab < p->n_slabs; slab++) {
                int r = pool_keep_slab(k->tenants[tenant].pool, p->slot_bytes[slab]);

                if (r < 0)
                        return r;
        }
        if (!valid)
                return 0;
        k->queues[tenant].refs = calloc(MAX(p->n_chunks, UINT64_C(1)), sizeof(struct keep_ref));
        if (!k->queues[tenant].refs)
                return -ENOMEM;
        for (unsigned before = 0; before < i; before++)
                position += map->pools[before]->n_chunks;
        k->stats.mapped += p->n_chunks;
        for (uint64_t c = 0; c < p->n_chunks; c++) {
                const struct keep_chunk *chunk = &map->chunks[i][c];

                if (chunk->crc == keep_chunk_crc(map->head, chunk, position + c))
                        adopt_chunk(k, tenant, chunk);
                else
                        k->stats.refused[KEEP_DAMAGED]++;
        }
        return 0;
}

/* Adds a holder of the map, and leases the slots that its client may still read. */
static int adopt_holder(struct keep *k, const struct keep_holder *h, unsigned tenant, int fd)
{
        struct pool *pool = k->tenants[tenant].pool;
        int r = holders_add_take_fd(k, h->name, tenant, fd, false);

        for (uint32_t i = 0; r == 0 && i < h->n_slots; i++) {
                uint32_t chunk = pool_at_slot(pool, h->slots[i].slab, h->slots[i].slot);

                if (chunk == POOL_NONE)
                        r = pool_keep_slot(pool, h->slots[i].slab, h->slots[i].slot, &chunk);
                else
                        pool_lease(pool, chunk);
                if (r == 0)
                        r = holders_add_chunk(k, chunk);
        }
        return r < 0 ? r : holders_watch(k);
}

int keep_adopt(struct keep *k, const struct keep_file *f, bool valid,
               int (*socket)(void *userdata, const char *name), void *userdata)
{
        k->began_ns = clock_mono_ns();
        for (unsigned i = 0; i < k->params.n_tenants; i++) {
                int r = k->tenants[i].kept < 0 ? 0 : adopt_pool(k, f, i, valid);

                for (uint32_t h = 0;
                     r == 0 && k->tenants[i].kept >= 0 && h < f->map.head->n_holders; h++)
                        if (f->map.holders[h]->pool == (uint32_t)k->tenants[i].kept)
                                r = adopt_holder(k, f->map.holders[h], i,
                                                 socket(userdata, f->map.holders[h]->name));
                if (r < 0)
                        return r;
        }
        return 0;
}

/* --- verifying --- */

static void on_checked(struct kio_request *req)
{
        struct check *check = container_of(req, struct check, req);
        struct keep *k = check->keep;
        struct pool *pool = k->tenants[check->tenant].pool;
        const struct pool_chunk *c = pool_chunk(pool, check->chunk);

        check->busy = false;
        k->n_checking--;
        k->stats.pending--;
        if (!pool_is_unverified(pool, check->chunk, check->generation)) {
                k->stats.refused[KEEP_REPLACED]++;
        } else if (req->result < 0 || req->crc != c->crc) {
                k->stats.refused[KEEP_DAMAGED]++;
                pool_drop(pool, check->chunk);
        } else {
                k->stats.verified++;
                k->stats.verified_bytes += c->length;
                pool_verify(pool, check->chunk);
        }
        if (pool_unpin(pool, check->chunk))
                k->params.more_room(k->params.userdata, check->tenant);
        if (k->stats.pending == 0)
                k->stats.verify_ns = clock_mono_ns() - k->began_ns;
}

static void check_begin(struct keep *k, unsigned tenant, struct keep_ref ref)
{
        struct pool *pool = k->tenants[tenant].pool;
        struct check *check = k->checks;

        while (check->busy)
                check++;
        pool_pin(pool, ref.chunk);
        *check = (struct check){
                .keep = k,
                .tenant = tenant,
                .chunk = ref.chunk,
                .generation = ref.generation,
                .busy = true,
                /* not in the background, because gets of the chunk read from disk until it is
                 * verified */
                .req = { .op = KIO_COPY,
                         .class = KIO_CLASS_GET,
                         .src = pool_at(pool, ref.chunk),
                         .length = pool_chunk(pool, ref.chunk)->length,
                         .complete = on_checked },
        };
        k->n_checking++;
        kio_submit(k->params.io, &check->req, ref.chunk);
}

/* Returns the queue of the next tenant with unverified chunks, or NULL. Tenants take turns. */
static struct keep_queue *next_queue(struct keep *k, unsigned *ret_tenant)
{
        for (unsigned i = 0; i < k->params.n_tenants; i++) {
                *ret_tenant = k->turn++ % k->params.n_tenants;
                if (k->queues[*ret_tenant].left > 0)
                        return &k->queues[*ret_tenant];
        }
        return NULL;
}

bool keep_iterate(struct keep *k)
{
        enum { LOOKS = 1024 };
        struct keep_queue *q;
        unsigned tenant;
        bool more = holders_iterate(k);

        if (k->stats.pending == k->n_checking || k->stopping)
                return more;
        for (unsigned i = 0; i < LOOKS && k->n_checking < k->n_checks; i++) {
                struct keep_ref ref;

                q = next_queue(k, &tenant);
                if (!q)
                        return more;
                ref = q->refs[--q->left];
                if (pool_is_unverified(k->tenants[tenant].pool, ref.chunk, ref.generation)) {
                        check_begin(k, tenant, ref);
                        continue;
                }
                k->stats.refused[KEEP_REPLACED]++;
                if (--k->stats.pending == 0)
                        k->stats.verify_ns = clock_mono_ns() - k->began_ns;
        }
        return more || k->n_checking < k->n_checks;
}

void keep_stop(struct keep *k)
{
        k->stopping = true;
}

void keep_get_stats(const struct keep *k, struct keep_stats *ret)
{
        *ret = k->stats;
}
