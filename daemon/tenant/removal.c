/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks on disk are counted first, then those in memory, a slice an iteration. A session may open
 * the namespace meanwhile, so sessions are counted again after that; from then on the store keeps
 * opens of the name waiting until the removal is answered. */
#include "tenant/removal.h"

#include <stdio.h>

#include "base/list.h"
#include "checked.h"
#include "tenant/tenant.h"

bool removal_sees_all(const struct service *service)
{
        unsigned n = 0;

        while (store_volume_path(service->store, n))
                n++;
        return store_volumes_up(service->store) == n;
}

void removal_forget(struct service *service, uint32_t id)
{
        if (service->namespace_changed)
                service->namespace_changed(service->server_userdata, id, false);
        census_removed(service->census, id);
}

static void end(struct removal *removal, int result)
{
        removal->result = result;
        census_claim(removal->service->census, removal->id, false);
        if (result == REMOVAL_USED)
                census_note_used(removal->service->census, removal->id);
        removal->complete(removal);
}

static void on_removed(struct store_namespace_remove *store)
{
        struct removal *removal = container_of(store, struct removal, store);

        /* After a failure the list in memory may lack it all the same. */
        if (store->result == 0 ||
            (store->result < 0 && !store_namespace_get(removal->service->store, removal->id)))
                removal_forget(removal->service, removal->id);
        end(removal, store->result <= 0 ? store->result : REMOVAL_USED);
}

static void remove_now(struct removal *removal)
{
        struct service *service = removal->service;

        if (census_sessions(service->census, removal->id) > 0 || !removal_sees_all(service)) {
                end(removal, REMOVAL_USED);
                return;
        }
        removal->store =
                (struct store_namespace_remove){ .id = removal->id, .complete = on_removed };
        store_namespace_remove(service->store, &removal->store);
}

static void on_counted(struct cache_count *count)
{
        struct removal *removal = container_of(count, struct removal, count);

        if (count->found > 0)
                end(removal, REMOVAL_USED);
        else
                remove_now(removal);
}

void removal_start(struct removal *removal, struct service *service, uint32_t id,
                   void (*complete)(struct removal *removal))
{
        const struct store_namespace *ns = store_namespace_get(service->store, id);
        struct tenant *tenant = ns ? tenant_in_store(service, ns->tenant) : NULL;

        *removal = (struct removal){ .id = id, .complete = complete, .service = service };
        if (ns)
                snprintf(removal->name, sizeof(removal->name), "%s", ns->name);
        if (!ns || ns->chunks > 0 || service->stopping) {
                end(removal, REMOVAL_USED);
                return;
        }
        census_claim(service->census, id, true);
        if (tenant) {
                removal->count = (struct cache_count){ .namespace_id = id, .complete = on_counted };
                cache_count(tenant->cache, &removal->count);
        } else
                remove_now(removal);
}
