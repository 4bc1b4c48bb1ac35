/* SPDX-License-Identifier: Apache-2.0 */
/* See removal.h. Chunks on disk are counted first, then those in memory, in slices over several
 * iterations. A session may open the namespace during that time, so sessions are counted again
 * afterwards. From then on the store delays opens of the name until the removal is answered. */
#include "tenant/removal.h"

#include <stdio.h>

#include "base/list.h"
#include "events/events.h"
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
        events_namespace_removed(service->events, id);
        namespace_counts_removed(service->namespace_counts, id);
}

static void end(struct removal *removal, int result)
{
        removal->result = result;
        namespace_counts_claim(removal->service->namespace_counts, removal->id, false);
        if (result == REMOVAL_USED)
                namespace_counts_note_used(removal->service->namespace_counts, removal->id);
        removal->complete(removal);
}

static void on_removed(struct store_namespace_remove *store)
{
        struct removal *removal = container_of(store, struct removal, store);

        /* If the removal could not be written, the store may nevertheless have removed the
         * namespace in memory. */
        if (store->result == 0 ||
            (store->result < 0 && !store_namespace_get(removal->service->store, removal->id)))
                removal_forget(removal->service, removal->id);
        end(removal, store->result <= 0 ? store->result : REMOVAL_USED);
}

static void remove_now(struct removal *removal)
{
        struct service *service = removal->service;

        if (namespace_counts_sessions(service->namespace_counts, removal->id) > 0 ||
            !removal_sees_all(service)) {
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
        namespace_counts_claim(service->namespace_counts, id, true);
        if (tenant) {
                removal->count = (struct cache_count){ .namespace_id = id, .complete = on_counted };
                cache_count(tenant->cache, &removal->count);
        } else
                remove_now(removal);
}
