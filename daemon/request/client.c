/* SPDX-License-Identifier: Apache-2.0 */
/* Implements client.h. Only this file charges leases, and decides which client may borrow.
 *
 * Failures: a client over a limit of its own, its user or its tenant gets QUOTA; over the limit of
 * all clients, BUSY. The log names the limit and the key that sets it, at most once a second. */
#include "request/client.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

/* --- quotas --- */

/* Logs the limit that was reached, and the configuration key that sets it. */
static void log_quota(const struct client *client, enum quota_thing what, int r)
{
        const char *key = quota_thing_key(what), *tenant = tenant_name(client->tenant);
        char where[64] = "";

        if (key)
                snprintf(where, sizeof(where), " (%s%s)",
                         r == QUOTA_OVER_USER     ? "limits.uid_"
                         : r == QUOTA_OVER_TENANT ? "tenants."
                                                  : "limits.",
                         key);
        if (r == QUOTA_OVER_CONNECTION)
                log_notice("tenant %s: %s of a connection of user %u are at the limit of one "
                           "connection%s; a request was refused",
                           tenant, quota_thing_name(what), client->uid, where);
        else if (r == QUOTA_OVER_USER)
                log_notice("tenant %s: %s of user %u are at the limit of one user%s; a request was "
                           "refused",
                           tenant, quota_thing_name(what), client->uid, where);
        else
                log_notice("tenant %s: %s are at the limit of %s%s; a request was refused", tenant,
                           quota_thing_name(what),
                           r == QUOTA_OVER_TENANT ? "the tenant"
                                                  : "all clients together, or of what one user may "
                                                    "take of the rest",
                           where);
}

enum wire_status client_charge(struct client *client, enum quota_thing what, uint64_t amount)
{
        struct tenant *tenant = client->tenant;
        uint32_t held_back;
        int r = quota_charge(&client->holds, what, amount);

        if (r == 0)
                return WIRE_OK;
        if (log_ratelimit_pass(&tenant->quota_lines, &held_back))
                log_quota(client, what, r);
        return r == QUOTA_FULL ? WIRE_BUSY : WIRE_QUOTA;
}

enum wire_status client_charge_request(struct client *client, uint64_t bytes)
{
        enum wire_status status = client_charge(client, QUOTA_REQUEST_BYTES, bytes);

        if (status != WIRE_OK)
                return status;
        status = client_charge(client, QUOTA_REQUESTS, 1);
        if (status != WIRE_OK)
                quota_uncharge(&client->holds, QUOTA_REQUEST_BYTES, bytes);
        return status;
}

void client_uncharge_request(struct client *client, uint64_t bytes)
{
        quota_uncharge(&client->holds, QUOTA_REQUEST_BYTES, bytes);
}

const char *client_refusal(enum wire_status status)
{
        return status == WIRE_BUSY
                       ? "all clients together have too many requests in flight, or too "
                         "much memory is kept for them (limits.requests, limits.request_memory), "
                         "or this user has its share of the rest"
                       : "this user has too many requests in flight, or too "
                         "much memory is kept for them (limits.uid_requests, "
                         "limits.uid_request_memory)";
}

const char *client_write_error(const struct client *client, int result)
{
        if (store_volumes_up(client->tenant->service->store) == 0)
                return "no volume of the store is in use";
        return strerror(result < 0 ? -result : EIO);
}

/* --- leases --- */

/* Corrects the charges after leases have ended or one was refused. */
static void settle_leases(struct client *client)
{
        quota_settle(&client->holds, QUOTA_LEASES, client->leases.count);
        quota_settle(&client->holds, QUOTA_LEASED_BYTES, client->leases.bytes);
}

bool client_has_room_for_lease(const struct client *client, uint32_t chunk)
{
        return quota_has_room(&client->holds, QUOTA_LEASES, 1) &&
               quota_has_room(&client->holds, QUOTA_LEASED_BYTES,
                              pool_slot_bytes(client->tenant->pool, chunk));
}

enum wire_status client_lease(struct client *client, uint32_t chunk, struct wire_lease *ret)
{
        enum wire_status status = client_charge(client, QUOTA_LEASES, 1);
        struct lease lease;

        if (status == WIRE_OK)
                status = client_charge(client, QUOTA_LEASED_BYTES,
                                       pool_slot_bytes(client->tenant->pool, chunk));
        if (status == WIRE_OK &&
            lease_acquire(client->tenant->leases, &client->leases, chunk, &lease) != 0)
                status = WIRE_BUSY;
        if (status == WIRE_OK)
                *ret = (struct wire_lease){ .id = lease.id, .generation = lease.generation };
        else
                settle_leases(client);
        return status;
}

uint32_t client_release(struct client *client, const struct wire_lease *leases, unsigned n)
{
        uint32_t stale = 0;

        for (unsigned i = 0; i < n; i++) {
                struct lease lease = { .id = leases[i].id, .generation = leases[i].generation };

                if (lease_release(client->tenant->leases, &client->leases, lease) != 0)
                        stale++;
        }
        if (n > 0) {
                settle_leases(client);
                cache_kick(client->tenant->cache);
        }
        return stale;
}

uint32_t client_release_some(struct client *client, uint32_t most)
{
        uint32_t n = lease_release_some(client->tenant->leases, &client->leases, most);

        if (n > 0) {
                settle_leases(client);
                cache_kick(client->tenant->cache);
        }
        return n;
}

static bool is_allowed(const struct client *client, enum service_gds to)
{
        switch (to) {
        case SERVICE_GDS_ON:
                return true;
        case SERVICE_GDS_AUTO:
                return client->admin; /* true for root, the daemon's own user, and admins */
        case SERVICE_GDS_OFF:
                break;
        }
        return false;
}

/* Returns whether the client may borrow data files. A descriptor exposes a whole file, and direct
 * reads bypass the scheduling of users. The file contains only chunks that the tenant may read
 * anyway, but only trusted users get unlimited disk time by default. */
bool client_may_borrow(const struct client *client)
{
        return is_allowed(client, client->tenant->service->gds);
}

/* Returns whether the client may register files. All clients share the one thread that reads such
 * files. */
bool client_may_register_files(const struct client *client)
{
        return is_allowed(client, client->tenant->service->gds_puts);
}

/* --- creation --- */

static_assert((int)CLIENT_MAX_NAMESPACES == (int)WIRE_TALLY_NAMESPACES, "each has its counters");

int client_init(struct client *client, struct tenant *tenant, const struct quota_holder *holds)
{
        *client = (struct client){
                .tenant = tenant,
                .holds = *holds,
                .leases = { .first = LEASE_NONE },
                .loans = { .first = STORE_LOAN_NONE },
                .staging = { .fd = -1 },
                .since_ns = clock_mono_ns(),
        };
        list_init(&client->unstarted);
        list_init(&client->batches);
        list_init(&client->lookups);
        list_init(&client->chains_over);
        return lease_holder_init(tenant->leases, &client->leases, quota_user_uid(holds->user),
                                 holds->admin);
}

uint32_t client_namespace(const struct client *client, uint32_t number)
{
        return number > 0 && number <= client->n_namespaces ? client->namespaces[number - 1] : 0;
}

void client_count_lookups(struct client *client, uint64_t now_ns)
{
        struct tenant *tenant = client->tenant;
        bool is_possible = true;

        if (!client->page.counts)
                return;
        tally_page_read(&client->page, now_ns);
        for (unsigned i = 0; i < client->n_namespaces; i++) {
                struct lookup_counts keys;
                uint64_t declined;

                is_possible &= tally_page_take(&client->page, i, &keys, &declined);
                tenant->lookup_counters.declined += declined;
                lookup_counters_add(&tenant->lookup_counters, tenant->service->store,
                                    client->namespaces[i], COUNTED_OWN_LOOKUPS, keys);
        }
        tenant->impossible_tallies += !is_possible;
}

uint32_t client_namespace_number(const struct client *client, uint32_t id)
{
        for (unsigned i = 0; i < client->n_namespaces; i++)
                if (client->namespaces[i] == id)
                        return i + 1;
        return 0;
}

void client_forget_namespace(struct client *client, uint32_t id)
{
        uint32_t number = client_namespace_number(client, id);

        if (number == 0)
                return;
        client_count_lookups(client, clock_mono_ns());
        namespace_counts_unref(client->tenant->service->namespace_counts, id);
        client->namespaces[number - 1] = 0;
        client->open_namespaces--;
}
