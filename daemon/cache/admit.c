/* SPDX-License-Identifier: Apache-2.0 */
/* Admission: which puts are written to the store when writes have a budget (evict/admission.h).
 * Loop thread.
 *
 * A put asks once, when it is tried first, and keeps the answer while it waits for room. If a put
 * with acknowledgement "accepted" is refused, its chunk stays in the pool until it is evicted, or
 * is written when its key is used a second time. If any other put is refused, it ends with
 * CACHE_NO_SPACE and stores nothing. The charge is settled when the write ends, or when the put
 * ends without a write. */
#include "cache/internal.h"

#include "base/clock.h"
#include "checked.h"
#include "evict/admission.h"

enum { PAGE = 4096 };

/* Values of cache_request.admission. */
enum { NOT_ASKED, ADMITTED, REFUSED };

static bool ask(struct cache *c, uint64_t hash, uint32_t use, bool again, uint32_t bytes)
{
        const struct admission_write w = {
                .id = evict_id(hash), .use = use, .again = again, .bytes = bytes
        };

        return admission_ask(c->params.admission, &w, clock_mono_ns()) == ADMISSION_ADMITTED;
}

static bool has_budget(const struct cache *c)
{
        return c->params.admission && admission_has_budget(c->params.admission);
}

bool cache_admit(struct cache *c, struct cache_request *req, bool again)
{
        uint32_t bytes = (uint32_t)round_up((uint64_t)req->length, PAGE);

        if (req->admission == NOT_ASKED) {
                req->admission = ADMITTED;
                if (!has_budget(c))
                        return true;
                again = again ||
                        store_remembers(c->params.store, req->namespace_id, &req->key, req->hash) ||
                        pool_remembers(c->params.pool, req->hash);
                if (ask(c, req->hash, req->use, again, bytes))
                        req->charged = bytes;
                else
                        req->admission = REFUSED;
        }
        return req->admission == ADMITTED;
}

void cache_charge_write(struct store_write *w, struct cache_request *req)
{
        w->charged += req->charged;
        req->charged = 0;
}

void cache_settle_charge(struct cache *c, uint32_t *charged)
{
        if (*charged > 0)
                admission_settle(c->params.admission, *charged);
        *charged = 0;
}

bool cache_was_refused(const struct cache *c, const struct cache_request *req)
{
        return has_budget(c) && admission_has_refused(c->params.admission, evict_id(req->hash));
}

bool cache_may_write_kept(const struct cache *c, uint32_t chunk)
{
        return store_volumes_up(c->params.store) > 0 &&
               (c->unwritten == 0 ||
                c->unwritten + pool_slot_bytes(c->params.pool, chunk) <= c->unwritten_limit);
}

bool cache_write_kept(struct cache *c, uint32_t chunk, uint32_t use, bool again)
{
        struct pool_chunk *pc = pool_chunk(c->params.pool, chunk);
        const struct store_namespace *ns = store_namespace_get(c->params.store, pc->namespace_id);
        struct cache_request req = {
                .namespace_id = pc->namespace_id,
                .tenant = ns ? ns->tenant : 0,
                .user = pc->user,
                .key = pc->key,
                .hash = pc->hash,
                .use = use,
                .gap = pc->gap,
                .chain_place = pc->place,
                .length = pc->length,
                .ack = CACHE_ACCEPTED,
        };

        if (!ns || !cache_may_write_kept(c, chunk) || !cache_admit(c, &req, again))
                return false;
        if (cache_write_resident(c, chunk, &req))
                return true;
        cache_settle_charge(c, &req.charged);
        return false;
}
