/* SPDX-License-Identifier: Apache-2.0 */
/* A volume's namespaces and their effect on chunks; namespace.c has the list. A namespace that
 * declares a chunk size gets a slot class of that size. Purged chunks are not found from the
 * request on, even before the purge is written, and are removed from the index in steps (purge.c).
 * Loop thread. */
#include <string.h>

#include "store/volume/internal.h"

void volume_namespace_open(struct volume *v, struct store_namespace_open *req)
{
        uint64_t charged = volume_charged(v);
        const struct namespace *ns;

        namespaces_open_one(v->namespaces, req,
                            v->params.limit > charged ? v->params.limit - charged : 0, v->seq);
        ns = namespaces_get(v->namespaces, req->id);
        /* if this fails, because the size is too large or the table of classes is full, the chunks
         * use the shared classes */
        if (ns && ns->seen.chunk_bytes)
                slabs_declare_class(v->slabs, ns->seen.chunk_bytes);
        volume_nudge(v);
}

const struct store_namespace *volume_namespace_get(const struct volume *v, uint32_t id)
{
        const struct namespace *ns = namespaces_get(v->namespaces, id);

        return ns ? &ns->seen : NULL;
}

const struct store_namespace *volume_namespace_at(const struct volume *v, unsigned i)
{
        const struct namespace *ns = namespaces_at(v->namespaces, i);

        return ns ? &ns->seen : NULL;
}

bool volume_namespace_is_empty(const struct volume *v, uint32_t id)
{
        const struct namespace *ns = namespaces_get(v->namespaces, id);

        return !ns || (ns->seen.chunks == 0 && ns->pending == 0);
}

void volume_namespace_remove(struct volume *v, struct store_purge *req,
                             const struct volume_set *set)
{
        req->dropped = 0;
        list_init(&req->node);
        namespaces_remove(v->namespaces, req, set);
        volume_nudge(v);
}

bool volume_is_sweeping(const struct volume *v)
{
        return !list_empty(&v->sweeps);
}

void volume_purge(struct volume *v, struct store_purge *req, const struct volume_set *set)
{
        bool walk = req->all ? index_used(v->index) > 0
                             : req->namespace_id != 0 &&
                                       !volume_namespace_is_empty(v, req->namespace_id);

        req->dropped = 0;
        list_init(&req->node);
        v->stats.purges += req->all || req->namespace_id != 0;
        namespaces_purge(v->namespaces, req, ++v->seq, set);
        if (walk)
                sweep_begin(v, req);
        volume_nudge(v);
}
