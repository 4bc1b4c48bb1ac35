/* SPDX-License-Identifier: Apache-2.0 */
/* NAMESPACES, NAMESPACE_REMOVE, and NAMESPACE with WIRE_F_SET.
 *
 * A namespace can be removed by the user that created it or by an admin, if no other session has it
 * open and it is known to be empty. Empty means no chunk on any volume and none in memory. With
 * WIRE_F_PURGE its contents are purged first, on the shared tier before this host, so that a new
 * namespace of the same name begins empty. A client that may remove it may also set its lifetime,
 * which applies to present contents as well, from the next message on.
 *
 * Failures: a namespace that may have chunks on an offline volume or on the shared tier is removed
 * only with a purge. If the shared tier does not confirm the purge, nothing is purged or removed
 * here. Without memory nothing is done. */
#include "request/admin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "units.h"
#include "checked.h"
#include "remote/remote.h"
#include "request/audit.h"
#include "request/hits.h"
#include "tenant/ids.h"
#include "tenant/removal.h"

/* Returns the store's number of a tenant whose namespaces the client may see, or TENANT_IDS if it
 * may not or there is no such tenant. An empty text stands for the client's own tenant. */
static uint16_t tenant_by_name(const struct client *client, const char *text, size_t length)
{
        const struct tenant *tenant = client->tenant;
        char name[WIRE_MAX_TENANT + 1];
        uint16_t number;

        if (length == 0)
                return tenant->store_tenant;
        memcpy(name, text, length);
        name[length] = '\0';
        if (strcmp(name, tenant_name(tenant)) == 0)
                return tenant->store_tenant;
        if (!client->admin)
                return TENANT_IDS;
        if (strcmp(name, "default") == 0)
                return 0;
        number = tenant_id_of(tenant->service->store, name);
        return number ? number : TENANT_IDS;
}

static bool may_remove(const struct client *client, const struct store_namespace *ns)
{
        return client->admin || (ns->owner != STORE_NO_OWNER && ns->owner == client->uid);
}

/* --- NAMESPACES --- */

struct page {
        const struct client *client;
        uint64_t after; /* last id of the previous page */
        int only;       /* the tenant's number in the store; -1: all tenants */
        unsigned max, count;
        uint32_t ids[WIRE_MAX_NAMESPACES];
        unsigned n;
        bool more;
};

static bool is_seen(const struct page *page, const struct store_namespace *ns)
{
        return ns->tenant != TENANT_IDS && (page->only < 0 || ns->tenant == page->only);
}

static bool note_id(void *userdata, const struct store_namespace *ns)
{
        struct page *page = userdata;

        if (!is_seen(page, ns))
                return true;
        page->count++;
        if (ns->id <= page->after)
                return true;
        if (page->n < page->max)
                page->ids[page->n++] = ns->id;
        else
                page->more = true;
        return true;
}

/* Writes the struct wire_namespace_info of a namespace, and the texts that follow it, to `to`,
 * which has room. Returns the number of bytes written. */
static size_t print_namespace(const struct client *client, const struct store_namespace *ns,
                              bool fingerprint, uint8_t *to)
{
        const struct namespace_counts *namespace_counts = client->tenant->service->namespace_counts;
        const char *known = tenant_name_in_store(client->tenant->service, ns->tenant),
                   *tenant = known ? known : "";
        size_t name_length = strlen(ns->name), tenant_length = strlen(tenant),
               text = strlen(ns->fingerprint), shown = fingerprint ? text : 0,
               used = sizeof(struct wire_namespace_info) + name_length + tenant_length + shown,
               bytes = round_up(used, 8);
        struct wire_namespace_info info = {
                .bytes = (uint16_t)bytes,
                .name_length = (uint8_t)name_length,
                .tenant_length = (uint8_t)tenant_length,
                .fingerprint_length = (uint16_t)shown,
                .flags = may_remove(client, ns) ? WIRE_NAMESPACE_MAY_REMOVE : 0,
                .owner = ns->owner,
                .sessions = namespace_counts_sessions(namespace_counts, ns->id),
                .chunks = ns->chunks,
                .stored_bytes = ns->bytes,
                .chunk_bytes = ns->chunk_bytes,
                .created_ms = ns->created_ms,
                .last_used_ms = namespace_counts_last_used_ms(namespace_counts, ns->id),
                .fingerprint_crc32c = kio_crc32c(ns->fingerprint, text),
                .lifetime_s = ns->lifetime_s,
        };
        uint8_t *p = to;

        memcpy(p, &info, sizeof(info));
        p += sizeof(info);
        memcpy(p, ns->name, name_length);
        p += name_length;
        memcpy(p, tenant, tenant_length);
        p += tenant_length;
        memcpy(p, ns->fingerprint, shown);
        memset(p + shown, 0, bytes - used);
        return bytes;
}

void admin_namespaces(struct request req, const struct wire_namespaces *msg)
{
        struct client *client = req.client;
        static struct { /* too large for the stack */
                struct wire_reply reply;
                uint8_t infos[WIRE_MAX_MESSAGE - sizeof(struct wire_reply)];
        } out;
        const char *name = (const char *)(msg + 1);
        const struct store *store = client->tenant->service->store;
        uint16_t store_tenant = tenant_by_name(client, name + msg->name_length, msg->tenant_length);
        struct page page = {
                .client = client,
                .after = msg->cursor,
                .only = client->admin && msg->tenant_length == 0 ? -1 : store_tenant,
                .max = msg->max,
        };
        const struct store_namespace *ns = NULL;
        enum wire_status status;
        size_t bytes = 0;

        /* The client's limits must have room for the reply, which may have to be queued. */
        status = client_charge_request(client, sizeof(out));
        if (status != WIRE_OK) {
                request_fail(req, status, client_refusal(status));
                return;
        }
        client_uncharge_request(client, sizeof(out));
        if (msg->name_length > 0) {
                if (store_tenant != TENANT_IDS)
                        ns = store_namespace_find(store, store_tenant, name, msg->name_length);
                if (!ns) {
                        request_fail(req, WIRE_NO_NAMESPACE, "there is no such namespace");
                        return;
                }
                page.ids[0] = ns->id;
                page.n = page.count = 1;
        } else {
                store_namespaces_walk(store, false, note_id, &page);
        }
        for (unsigned i = 0; i < page.n; i++)
                bytes += print_namespace(client, store_namespace_get(store, page.ids[i]),
                                         msg->name_length > 0, out.infos + bytes);
        out.reply = (struct wire_reply){
                .count = (uint16_t)page.n,
                .value = page.count,
                .value64 = page.more ? page.ids[page.n - 1] : 0,
        };
        request_reply(req, &out.reply, sizeof(out.reply) + bytes);
}

/* --- NAMESPACE_REMOVE --- */

struct client_removal {
        struct cache_purge purge;
        struct store_namespace_remove store;
        struct cache_count count;
        struct remote_purge remote;
        struct request request;
        struct tenant *of; /* tenant of the namespace; NULL if it is not configured */
        uint32_t id;
        uint16_t store_tenant;
        uint64_t created_ms; /* creation time of the namespace, because another one may get its
                              * id */
        uint64_t dropped;
        bool shared;                  /* the namespace was also purged on the shared tier */
        char name[WIRE_MAX_NAME + 1]; /* copied, since the store forgets it */
};

/* Returns the bytes of a removal, including those that the store keeps for the purge and the
 * removal. */
static size_t removal_bytes(const struct client *client)
{
        return sizeof(struct client_removal) + store_fan_out_bytes(client->tenant->service->store);
}

static void audit_removal(const struct client_removal *op, const char *operation,
                          const char *detail)
{
        audit_log(op->request.client, operation, op->name,
                  tenant_name_in_store(op->request.client->tenant->service, op->store_tenant),
                  op->dropped, detail);
}

/* Answers a removal that cannot be carried out, and ends it. */
static void refuse(struct client_removal *op, enum wire_status status, uint32_t value,
                   uint64_t value64, const char *text)
{
        request_fail_value(op->request, status, value, value64, text);
        request_operation_free(op->request, op, removal_bytes(op->request.client));
}

static void refuse_not_empty(struct client_removal *op, uint64_t chunks)
{
        char text[160], counted[UNITS_TEXT];

        snprintf(text, sizeof(text),
                 "the namespace holds %s: evict or purge first (kvcachectl namespace rm --purge)",
                 units_count(chunks, "chunk", counted));
        refuse(op, WIRE_NOT_EMPTY, 0, chunks, text);
}

/* Refuses the removal if another session has the namespace open, or if a request in flight of this
 * session may name it. Returns whether it refused. */
static bool refuse_open(struct client_removal *op)
{
        const struct client *client = op->request.client;
        unsigned others =
                namespace_counts_sessions(client->tenant->service->namespace_counts, op->id) -
                (client_namespace_number(client, op->id) != 0);
        char text[160];

        if (others == 0 && client->keys_inflight == 0)
                return false;
        if (others == 0) {
                refuse(op, WIRE_BUSY, 0, op->dropped,
                       "requests of this session are in flight: wait for their replies");
                return true;
        }
        snprintf(text, sizeof(text), "%u other session%s the namespace open%s", others,
                 others == 1 ? " has" : "s have", op->dropped ? ", and it has been purged" : "");
        refuse(op, WIRE_BUSY, others, op->dropped, text);
        return true;
}

/* Ends this client's number of a namespace that has been removed, and reports the removal to the
 * other parts of the daemon. */
static void forget(struct client_removal *op)
{
        struct client *client = op->request.client;

        hits_forget(client, client_namespace_number(client, op->id));
        client_forget_namespace(client, op->id);
        removal_forget(client->tenant->service, op->id);
}

/* Returns for how long other hosts may serve the chunks of a namespace purged on the shared tier.
 */
static uint32_t stale_seconds(const struct client_removal *op)
{
        const struct service *service = op->request.client->tenant->service;

        return (uint32_t)((service->generation_interval_ms + 999) / 1000);
}

static void on_removed(struct store_namespace_remove *store)
{
        struct client_removal *op = container_of(store, struct client_removal, store);
        const struct store_namespace *ns;
        char text[160];

        switch (store->result) {
        case 0:
                forget(op);
                audit_removal(op, "removal of a namespace", "");
                request_ok_value(op->request, op->shared ? stale_seconds(op) : 0, op->dropped);
                request_operation_free(op->request, op, removal_bytes(op->request.client));
                return;
        case STORE_MISS:
                refuse(op, WIRE_NO_NAMESPACE, 0, 0, "there is no such namespace");
                return;
        case STORE_BUSY:
                ns = store_namespace_get(op->request.client->tenant->service->store, op->id);
                if (ns && ns->chunks > 0)
                        refuse_not_empty(op, ns->chunks);
                else
                        refuse(op, WIRE_BUSY, 0, op->dropped,
                               "the namespace is being opened, or puts into it are in flight: try "
                               "again");
                return;
        default:
                if (!store_namespace_get(op->request.client->tenant->service->store, op->id))
                        forget(op);
                audit_removal(op, "removal of a namespace", ", not written to disk");
                snprintf(text, sizeof(text),
                         "the removal could not be written, and the namespace may be back after a "
                         "restart: %s",
                         client_write_error(op->request.client, store->result));
                refuse(op, WIRE_FAILED, 0, op->dropped, text);
        }
}

static void remove_now(struct client_removal *op)
{
        if (refuse_open(op))
                return;
        op->store = (struct store_namespace_remove){ .id = op->id, .complete = on_removed };
        store_namespace_remove(op->request.client->tenant->service->store, &op->store);
}

static void removal_purged(struct client_removal *op)
{
        const struct store_purge *purge = &op->purge.store;
        char text[160];

        op->dropped = purge->dropped;
        audit_removal(op, "purge",
                      purge->result != 0 ? ", not synced to disk"
                      : op->shared       ? ", and what the shared tier had"
                                         : "");
        if (purge->result == 0) {
                if (op->shared)
                        remote_purged(op->request.client->tenant->service->remote, op->id);
                remove_now(op);
                return;
        }
        snprintf(text, sizeof(text), "not removed: the purge before it could not be written: %s",
                 client_write_error(op->request.client, purge->result));
        refuse(op, WIRE_FAILED, 0, op->dropped, text);
}

static void on_removal_purged(struct cache_purge *purge)
{
        removal_purged(container_of(purge, struct client_removal, purge));
}

/* Completes the purge for a tenant that is not configured, and so has no cache. */
static void on_store_purged(struct store_purge *purge)
{
        removal_purged(container_of(purge, struct client_removal, purge.store));
}

static void purge_here(struct client_removal *op)
{
        op->purge.store.namespace_id = op->id;
        op->purge.complete = on_removal_purged;
        op->purge.store.complete = on_store_purged; /* used if the tenant has no cache;
                                                     * cache_purge() sets another one */
        if (op->of)
                cache_purge(op->of->cache, &op->purge);
        else
                store_purge(op->request.client->tenant->service->store, &op->purge.store);
}

/* Continues after the purge of the shared tier. Requests of other sessions have been processed
 * meanwhile. */
static void on_shared_purged(struct remote_purge *remote)
{
        struct client_removal *op = container_of(remote, struct client_removal, remote);
        const struct store_namespace *ns =
                store_namespace_get(op->request.client->tenant->service->store, op->id);
        char text[WIRE_MAX_TEXT];

        if (!ns || ns->created_ms != op->created_ms || strcmp(ns->name, op->name) != 0) {
                refuse(op, WIRE_NO_NAMESPACE, 0, 0,
                       "another client removed this namespace meanwhile; a new one of its name "
                       "stays");
        } else if (remote->result != 0) {
                snprintf(text, sizeof(text),
                         "not removed: the shared tier did not confirm the purge, and would "
                         "restore the chunks: %s; see \"kvcachectl remote status\"",
                         strerror(remote->result < 0 ? -remote->result : EIO));
                refuse(op, WIRE_FAILED, 0, 0, text);
        } else {
                op->shared = true;
                purge_here(op);
        }
}

/* Continues when the chunks in memory are counted. These exist only there, because no volume has
 * chunks of the namespace: they are accepted and not yet written, or never written. */
static void on_counted(struct cache_count *count)
{
        struct client_removal *op = container_of(count, struct client_removal, count);

        if (count->found > 0)
                refuse_not_empty(op, count->found);
        else
                remove_now(op);
}

/* Returns a namespace that the client may remove. Otherwise replies, with `denied` if another user
 * made it, and returns NULL. */
static const struct store_namespace *find_to_change(struct request req, uint16_t store_tenant,
                                                    const char *name, size_t name_length,
                                                    const char *denied)
{
        const struct service *service = req.client->tenant->service;
        const struct store_namespace *ns =
                store_tenant == TENANT_IDS
                        ? NULL
                        : store_namespace_find(service->store, store_tenant, name, name_length);

        if (!ns)
                request_fail(req, WIRE_NO_NAMESPACE, "there is no such namespace");
        else if (!may_remove(req.client, ns))
                request_fail(req, WIRE_DENIED, denied);
        else if (service->stopping)
                request_fail(req, WIRE_SHUTDOWN, "the daemon is stopping");
        else
                return ns;
        return NULL;
}

void admin_namespace_remove(struct request req, const struct wire_namespace_remove *msg)
{
        struct client *client = req.client;
        const char *name = (const char *)(msg + 1);
        struct tenant *tenant = client->tenant;
        uint16_t store_tenant = tenant_by_name(client, name + msg->name_length, msg->tenant_length);
        const struct store_namespace *ns;
        struct client_removal *op;
        bool uses_shared;

        ns = find_to_change(req, store_tenant, name, msg->name_length,
                            "only the user who made a namespace, or an admin, removes it");
        if (!ns)
                return;
        op = request_operation_new(req, sizeof(*op), removal_bytes(req.client) - sizeof(*op));
        if (!op)
                return;
        op->request = req;
        op->of = tenant_in_store(tenant->service, store_tenant);
        op->id = ns->id;
        op->store_tenant = store_tenant;
        op->created_ms = ns->created_ms;
        snprintf(op->name, sizeof(op->name), "%s", ns->name);
        if (refuse_open(op))
                return;
        uses_shared =
                tenant->service->remote && remote_has_namespace(tenant->service->remote, op->id);
        if (msg->hdr.flags & WIRE_F_PURGE) {
                op->remote.namespace_id = op->id;
                op->remote.complete = on_shared_purged;
                if (uses_shared)
                        remote_purge(tenant->service->remote, &op->remote);
                else
                        purge_here(op);
                return;
        }
        ns = store_namespace_get(tenant->service->store, op->id);
        if (ns->chunks > 0)
                refuse_not_empty(op, ns->chunks);
        else if (uses_shared)
                refuse(op, WIRE_NOT_EMPTY, 0, 0,
                       "the shared tier may hold chunks of the namespace: purge them, for all "
                       "hosts, as well (kvcachectl namespace rm --purge)");
        else if (!removal_sees_all(tenant->service))
                refuse(op, WIRE_BUSY, 0, 0,
                       "a volume of the store is suspended or bypassed, and may hold chunks of the "
                       "namespace: resume it, or purge the namespace as well (--purge)");
        else if (op->of) {
                op->count = (struct cache_count){ .namespace_id = op->id, .complete = on_counted };
                cache_count(op->of->cache, &op->count);
        } else
                remove_now(op);
}

/* --- NAMESPACE with WIRE_F_SET --- */

struct lifetime_set {
        struct store_namespace_open store;
        struct request request;
        size_t charged;
};

static void audit_lifetime(const struct client *client, uint32_t id, uint32_t lifetime_s,
                           int result)
{
        const struct store_namespace *ns = store_namespace_get(client->tenant->service->store, id);
        char detail[96] = ": none from now on", lasts[UNITS_TEXT];

        if (!ns)
                return;
        if (lifetime_s > 0)
                snprintf(detail, sizeof(detail), ": %s from now on",
                         units_ms(UINT64_C(1000) * lifetime_s, lasts));
        if (result != 0)
                snprintf(detail + strlen(detail), sizeof(detail) - strlen(detail),
                         ", not written to disk");
        audit_log(client, "lifetime", ns->name,
                  tenant_name_in_store(client->tenant->service, ns->tenant), ns->chunks, detail);
}

static void on_lifetime_set(struct store_namespace_open *store)
{
        struct lifetime_set *op = container_of(store, struct lifetime_set, store);
        struct request req = op->request;
        uint32_t lifetime_s = store->result == 0 ? store->namespace->lifetime_s : 0;
        int result = store->result;
        const struct service *service = req.client->tenant->service;
        char text[160];

        if (store->namespace)
                audit_lifetime(req.client, store->namespace->id, store->lifetime_s, result);
        for (unsigned i = 0; store->namespace && i < service->n_tenants; i++)
                hits_allow_all(&service->tenants[i], store->namespace->id);
        request_operation_free(req, op, op->charged);
        if (result == 0) {
                request_ok_value(req, lifetime_s, 0);
        } else if (result == STORE_MISS) {
                request_fail(req, WIRE_NO_NAMESPACE, "there is no such namespace");
        } else {
                snprintf(
                        text, sizeof(text),
                        "the lifetime could not be written, and may be the earlier one again after "
                        "a restart: %s",
                        strerror(result < 0 ? -result : EIO));
                request_fail(req, WIRE_FAILED, text);
        }
}

void admin_namespace_set(struct request req, const struct wire_namespace *msg)
{
        struct client *client = req.client;
        struct store *store = client->tenant->service->store;
        const char *name = (const char *)(msg + 1);
        uint16_t store_tenant = tenant_by_name(client, name + msg->name_length, msg->tenant_length);
        const struct store_namespace *ns;
        size_t beside = store_fan_out_bytes(store) + msg->name_length + 1;
        struct lifetime_set *op;

        ns = find_to_change(req, store_tenant, name, msg->name_length,
                            "only the user who made a namespace, or an admin, sets its lifetime");
        if (!ns)
                return;
        if (store_volumes_up(store) == 0) {
                request_fail(req, WIRE_FAILED,
                             "no volume of the store is in use: the lifetime cannot be written");
                return;
        }
        op = request_operation_new(req, sizeof(*op), beside);
        if (!op)
                return;
        op->request = req;
        op->charged = sizeof(*op) + beside;
        op->store = (struct store_namespace_open){
                .tenant = store_tenant,
                .name = name,
                .name_length = msg->name_length,
                .attach = true,
                .lifetime_s = msg->lifetime_s,
                .set_lifetime = true,
                .complete = on_lifetime_set,
        };
        store_namespace_open(store, &op->store);
}
