/* SPDX-License-Identifier: Apache-2.0 */
/* Implements client-end.h. Releases a client's resources: leases, loans, chains, registered
 * buffers, namespaces. A client may hold much, so client_settle() releases a bounded amount per
 * iteration. The session frees the staging area (session/staging-closer.h). Cannot fail. */
#include "request/client-end.h"

#include <assert.h>

#include "base/clock.h"
#include "benchmark/benchmark.h"
#include "request/audit.h"
#include "request/buffers.h"
#include "request/chain.h"
#include "request/events-request.h"
#include "request/hits.h"
#include "request/internal.h"
#include "request/recorder.h"

void client_abandon(struct client *client)
{
        client->ended = client->abandoned = true;
        client->hits_left = POOL_PAGE_RING;
        audit_flush(client);
        recorder_stop(client);
        chain_close(client);
        while (!list_empty(&client->lookups))
                lookups_cancel(container_of(client->lookups.next, struct lookup_wait, owned));
        events_request_end(client);
        buffers_end(client);
}

bool client_settle(struct client *client, uint32_t *steps)
{
        bool more = chain_settle_some(client, steps);

        if (client->abandoned) {
                more |= batches_cancel_some(client, steps);
                *steps -= client_release_some(client, *steps);
                more |= client->leases.count > 0;
                *steps -= loans_end_some(client, *steps);
                more |= client->loans.count > 0;
                more |= hits_settle_some(client, steps);
        }
        return more;
}

void client_fini(struct client *client)
{
        uint32_t all = UINT32_MAX;

        assert(client->inflight == 0);
        audit_flush(client);
        recorder_stop(client);
        client_count_lookups(client, clock_mono_ns());
        tally_page_close(&client->page);
        hits_leave(client);
        client->transfers = bench_page_close(client->tenant->service->bench, client->transfers,
                                             clock_mono_ns());
        chain_close(client);
        (void)chain_settle_some(client, &all);
        for (unsigned i = 0; i < client->n_namespaces; i++)
                if (client->namespaces[i] != 0)
                        namespace_counts_unref(client->tenant->service->namespace_counts,
                                               client->namespaces[i]);
        (void)client_release_some(client, UINT32_MAX);
        (void)loans_end_some(client, UINT32_MAX);
        lease_holder_fini(&client->leases);
        assert(!client->staging.base);
}
