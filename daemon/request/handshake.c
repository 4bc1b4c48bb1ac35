/* SPDX-License-Identifier: Apache-2.0 */
/* Implements handshake.h. STAGING is answered at once, NAMESPACE when the store has written a new
 * namespace, LOOKUP when the tenant's index can be read. Resources are charged to the client's user
 * before they are created.
 *
 * Failures: a refusal names the limit and the remedy. Without memory or descriptors nothing is
 * created, and the answer says so. */
#include "request/handshake.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "units.h"
#include "checked.h"
#include "cleanup.h"
#include "fingerprint.h"
#include "request/hits.h"
#include "tenant/removal.h"
#include "transfer-page.h"

/* --- namespaces --- */

struct namespace_open {
        struct store_namespace_open store;
        struct request request;
        bool makes;          /* the namespace does not exist, and the store creates it */
        uint64_t charged;    /* bytes of memory charged to the client's user */
        uint32_t highest_id; /* highest id before this namespace was created */
        struct removal removal;
        unsigned removals; /* removals of unused namespaces that were started for this open */
};

/* Most removals that one open attempts, since each namespace may turn out to be in use. */
enum { MOST_REMOVALS = 8 };

/* Returns the number of entries free for further namespaces. */
static unsigned free_numbers(const struct client *client)
{
        return CLIENT_MAX_NAMESPACES - client->open_namespaces - client->opening;
}

/* Assigns a number, for an open that has reserved an entry. Prefers numbers not used before in this
 * session. Returns 0 without memory. */
static uint32_t take_number(struct client *client, uint32_t id)
{
        unsigned i = client->n_namespaces;

        if (i == CLIENT_MAX_NAMESPACES)
                for (i = 0; i < CLIENT_MAX_NAMESPACES && client->namespaces[i] != 0; i++)
                        ;
        if (i == CLIENT_MAX_NAMESPACES ||
            namespace_counts_ref(client->tenant->service->namespace_counts, id) < 0)
                return 0;
        /* Settle the counts so far, which do not belong to the new namespace. */
        if (i < client->n_namespaces)
                client_count_lookups(client, clock_mono_ns());
        hits_forget(client, i + 1);
        client->n_namespaces = MAX(client->n_namespaces, i + 1);
        client->namespaces[i] = id;
        client->open_namespaces++;
        return i + 1;
}

/* Describes the limit that prevents another namespace, and the remedy. */
static void quota_text(const struct namespace_use *use, const struct client *client,
                       char ret[static WIRE_MAX_TEXT])
{
        static const char remedy[] = "no namespace of this user is known to be unused; remove some "
                                     "(kvcachectl namespace rm)";
        char has[UNITS_TEXT];

        units_count(use->has, "namespace", has);

        switch (use->scope) {
        case NAMESPACES_OF_SESSION:
                snprintf(ret, WIRE_MAX_TEXT,
                         "this session has %s open, of at most %u; open more in another session",
                         has, use->most);
                break;
        case NAMESPACES_OF_USER:
                snprintf(ret, WIRE_MAX_TEXT,
                         "user %u has made %s, and may have %u (%s): %s, or have the limit raised",
                         client->uid, has, use->most, use->setting, remedy);
                break;
        case NAMESPACES_OF_TENANT:
                snprintf(ret, WIRE_MAX_TEXT,
                         "tenant \"%s\" has %s, and may have %u (tenants.namespaces): "
                         "%s, or have the limit raised",
                         tenant_name(client->tenant), has, use->most, remedy);
                break;
        default:
                snprintf(ret, WIRE_MAX_TEXT,
                         "the store has %s, as many as it can have: an admin can "
                         "remove some (kvcachectl namespace rm)",
                         has);
                break;
        }
}

/* Refuses a new namespace, because of a limit. */
static void refuse_limit(struct request req, const struct namespace_use *use)
{
        struct client *client = req.client;
        char text[WIRE_MAX_TEXT];
        uint32_t held_back;

        namespace_counts_count_refusal(client->tenant->service->namespace_counts, use->scope);
        quota_text(use, client, text);
        if (use->scope != NAMESPACES_OF_SESSION &&
            log_ratelimit_pass(&client->tenant->quota_lines, &held_back))
                log_notice("cannot create a namespace: %s", text);
        request_fail(req, WIRE_QUOTA, text);
}

/* Returns whether the session has an entry free for the namespace, or needs none: the session has
 * it open already, or WIRE_F_ATTACH names one that does not exist. Otherwise refuses the
 * request. */
static bool has_place(struct request req, const struct wire_namespace *msg,
                      const struct store_namespace *existing)
{
        struct client *client = req.client;
        bool attach = msg->hdr.flags & WIRE_F_ATTACH;

        if (existing ? client_namespace_number(client, existing->id) != 0 : attach)
                return true;
        if (free_numbers(client) > 0)
                return true;
        if (client->opening == 0) {
                refuse_limit(req, &(struct namespace_use){ NAMESPACES_OF_SESSION,
                                                           client->open_namespaces,
                                                           CLIENT_MAX_NAMESPACES });
                return false;
        }
        namespace_counts_count_refusal(client->tenant->service->namespace_counts,
                                       NAMESPACES_OF_SESSION);
        request_fail(req, WIRE_BUSY,
                     "this session is opening the maximum number of namespaces; wait for their "
                     "replies");
        return false;
}

static void on_namespace(struct store_namespace_open *store)
{
        struct namespace_open *op = container_of(store, struct namespace_open, store);
        struct client *client = op->request.client;
        const struct store_namespace *ns = store->namespace;
        struct request req = op->request;
        char text[WIRE_MAX_TEXT];
        int result = store->result;
        uint32_t number = result == 0 ? client_namespace_number(client, ns->id) : 0;

        client->opening--;
        if (result == STORE_MISMATCH) {
                char diff[512];

                wire_fingerprint_diff(ns->fingerprint, strlen(ns->fingerprint), store->fingerprint,
                                      store->fingerprint_length, diff, sizeof(diff));
                snprintf(text, sizeof(text), "namespace \"%s\" exists with another fingerprint: %s",
                         ns->name, diff);
        }
        if (result == 0 && op->makes) {
                namespace_counts_made(client->tenant->service->namespace_counts,
                                      client->tenant->store_tenant, client->uid);
                /* The store no longer has chunks of an earlier namespace with this number, but the
                 * pool may, if they could not be written. */
                if (ns->id <= op->highest_id)
                        cache_forget_namespace(client->tenant->cache, ns->id);
        }
        if (result == 0 && client->tenant->service->namespace_changed)
                client->tenant->service->namespace_changed(client->tenant->service->server_userdata,
                                                           ns->id, true);
        request_operation_free(req, op, op->charged);
        if (result == 0 && number == 0) {
                number = take_number(client, ns->id);
                if (number == 0) {
                        request_fail(req, WIRE_FAILED,
                                     "the daemon has no memory to open the namespace in this "
                                     "session");
                        return;
                }
        }
        if (result == 0) {
                if (ns->chunk_bytes)
                        pool_declare(client->tenant->pool, ns->chunk_bytes);
                hits_allow(client, ns->id);
                request_ok_value(req, number, ns->chunk_bytes);
        } else if (result == STORE_MISMATCH) {
                request_fail(req, WIRE_MISMATCH, text);
        } else if (result == STORE_MISS) {
                request_fail(req, WIRE_NO_NAMESPACE, "there is no such namespace");
        } else if (result == -ENOSPC) {
                namespace_counts_count_refusal(client->tenant->service->namespace_counts,
                                               NAMESPACES_OF_STORE);
                request_fail(req, WIRE_QUOTA,
                             "the store has no room for another namespace: an admin can remove "
                             "some (kvcachectl namespace rm)");
        } else {
                snprintf(text, sizeof(text), "the namespace could not be written: %s",
                         strerror(result < 0 ? -result : EIO));
                request_fail(req, WIRE_FAILED, text);
        }
}

static void make_room(struct namespace_open *op);

static void on_room_made(struct removal *removal)
{
        struct namespace_open *op = container_of(removal, struct namespace_open, removal);
        const struct client *client = op->request.client;

        if (removal->result == 0) {
                namespace_counts_count_expired(client->tenant->service->namespace_counts);
                log_info("namespace \"%s\": removed, as it had no chunks and no sessions, to make "
                         "room for a new one of user %u at a limit",
                         removal->name, client->uid);
        }
        make_room(op);
}

/* Opens a namespace, and creates it once the limits allow that: while they do not, removes the
 * namespace of the user that has been unused for longest. During a removal other opens may have
 * used the freed place or created the same namespace, so the limits and the name are checked
 * again. */
static void make_room(struct namespace_open *op)
{
        struct client *client = op->request.client;
        struct request req = op->request;
        struct tenant *tenant = client->tenant;
        struct service *service = tenant->service;
        const struct store_namespace *existing = store_namespace_find(
                service->store, tenant->store_tenant, op->store.name, op->store.name_length);
        struct unused_namespace unused;
        struct namespace_use use;

        op->makes = !existing;
        if (existing || op->store.attach ||
            namespace_counts_may_make(service->namespace_counts, tenant->store_tenant, client->uid,
                                      &use)) {
                op->highest_id = namespace_counts_highest_id(service->namespace_counts);
                store_namespace_open(service->store, &op->store);
                return;
        }
        if (op->removals++ < MOST_REMOVALS && !service->stopping && removal_sees_all(service) &&
            namespace_counts_find_unused(service->namespace_counts, tenant->store_tenant,
                                         client->uid, &unused)) {
                removal_start(&op->removal, service, unused.id, on_room_made);
                return;
        }
        client->opening--;
        request_operation_free(req, op, op->charged);
        refuse_limit(req, &use);
}

void handshake_namespace(struct request req, const struct wire_namespace *msg)
{
        struct client *client = req.client;
        const char *name = (const char *)(msg + 1), *fingerprint = name + msg->name_length;
        struct tenant *tenant = client->tenant;
        const struct store_namespace *existing;
        size_t bytes = sizeof(struct namespace_open) + msg->fingerprint_length + msg->name_length;
        size_t beside = store_fan_out_bytes(tenant->service->store) + msg->name_length +
                        msg->fingerprint_length + 1;
        struct namespace_open *op;
        char *text;

        if (wire_fingerprint_check(fingerprint, msg->fingerprint_length) < 0 ||
            memchr(name, '\0', msg->name_length)) {
                request_fail(req, WIRE_INVALID,
                             memchr(name, '\0', msg->name_length)
                                     ? "the namespace's name has a NUL byte"
                                     : "the fingerprint is not canonical: lines key=value, "
                                       "sorted by key, each ended by a newline");
                return;
        }
        existing = store_namespace_find(tenant->service->store, tenant->store_tenant, name,
                                        msg->name_length);
        if (!has_place(req, msg, existing))
                return;
        op = request_operation_new(req, bytes, beside);
        if (!op)
                return;
        op->request = req;
        op->charged = bytes + beside;
        text = (char *)(op + 1);
        op->store = (struct store_namespace_open){
                .tenant = tenant->store_tenant,
                /* Copied, because a refusal compares the fingerprint, and the open may wait for a
                 * removal. */
                .fingerprint = memcpy(text, fingerprint, msg->fingerprint_length),
                .name = memcpy(text + msg->fingerprint_length, name, msg->name_length),
                .name_length = msg->name_length,
                .fingerprint_length = msg->fingerprint_length,
                .chunk_bytes = msg->chunk_bytes,
                .lifetime_s = msg->lifetime_s,
                .attach = msg->hdr.flags & WIRE_F_ATTACH,
                .owner = client->uid,
                .complete = on_namespace,
        };
        client->opening++;
        make_room(op);
}

/* --- the staging area --- */

void handshake_staging(struct request req, const struct wire_staging *msg)
{
        struct client *client = req.client;
        struct tenant *tenant = client->tenant;
        uint64_t bytes = msg->bytes ? msg->bytes : tenant->service->staging_max;
        char text[160];
        enum wire_status status;
        int r;

        if (client->staging.base) {
                request_fail(req, WIRE_INVALID, "this session already has a staging area");
                return;
        }
        if (bytes > tenant->service->staging_max) {
                char wanted[UNITS_TEXT], most[UNITS_TEXT];

                snprintf(text, sizeof(text),
                         "a staging area of %s is larger than memory.staging, which is %s",
                         units_bytes(bytes, wanted),
                         units_bytes(tenant->service->staging_max, most));
                request_fail_value(req, WIRE_TOO_LARGE, 0, tenant->service->staging_max, text);
                return;
        }
        if (!client->takes_fds(client, 1)) {
                request_fail(req, WIRE_BUSY, CLIENT_UNREAD);
                return;
        }
        bytes = round_up(bytes, 4096);
        status = client_charge(client, QUOTA_STAGING_BYTES, bytes);
        if (status == WIRE_OK) {
                status = client_charge(client, QUOTA_STAGINGS, 1);
                if (status != WIRE_OK)
                        quota_uncharge(&client->holds, QUOTA_STAGING_BYTES, bytes);
        }
        if (status != WIRE_OK) {
                request_fail(
                        req, status,
                        status == WIRE_BUSY
                                ? "all clients together have reached limits.staging_bytes, or "
                                  "this user has its share of the rest"
                                : "this user or tenant has reached its limit of staging memory "
                                  "(limits.uid_staging_bytes, tenants.staging_bytes)");
                return;
        }
        r = staging_open(&client->staging, bytes);
        if (r < 0) {
                quota_uncharge(&client->holds, QUOTA_STAGING_BYTES, bytes);
                quota_uncharge(&client->holds, QUOTA_STAGINGS, 1);
                snprintf(text, sizeof(text), "the staging area could not be created: %s",
                         strerror(-r));
                request_fail(req, WIRE_BUSY, text);
                return;
        }
        request_reply_fds(req, 0, bytes, &client->staging.fd, 1);
}

/* --- counters of transfers --- */

/* The charges for a session's pages end with the session (quota_holder_close()). */

void handshake_transfers(struct request req)
{
        struct client *client = req.client;
        _cleanup_(closep) int fd = -1;
        enum wire_status status;

        if (client->transfers) {
                request_fail(req, WIRE_EXISTS_ALREADY,
                             "this session already has its page of counters");
                return;
        }
        if (!client->takes_fds(client, 1)) {
                request_fail(req, WIRE_BUSY, CLIENT_UNREAD);
                return;
        }
        status = client_charge(client, QUOTA_REQUEST_BYTES, bench_page_bytes());
        if (status != WIRE_OK) {
                request_fail(req, status, client_refusal(status));
                return;
        }
        if (bench_page_open(client->tenant->service->bench, client->since_ns, &client->transfers,
                            &fd) < 0) {
                quota_uncharge(&client->holds, QUOTA_REQUEST_BYTES, bench_page_bytes());
                request_fail(req, WIRE_BUSY,
                             "the daemon has no memory or descriptors for the counters");
                return;
        }
        request_reply_fds(req, 0, TRANSFER_PAGE_BYTES, &fd, 1);
}

/* --- the lookup index --- */

/* Descriptors in the reply: the index, and the page for the client's counters. */
enum { LOOKUP_FDS = 2 };

struct lookup_open {
        struct lookup_wait wait;
        struct request request;
};

/* Creates the page in which the client counts its lookups. Without room or memory for it, these
 * lookups are not counted, which a metric reports. */
static void open_tally(struct client *client, int *ret_fd)
{
        if (client_charge(client, QUOTA_REQUEST_BYTES, tally_page_bytes()) != WIRE_OK)
                return;
        if (tally_page_open(&client->page, clock_mono_ns(), ret_fd) < 0)
                quota_uncharge(&client->holds, QUOTA_REQUEST_BYTES, tally_page_bytes());
}

static void reply_lookup(struct request req, int result)
{
        struct client *client = req.client;
        _cleanup_(closep) int tally = -1;
        uint64_t bytes = 0;
        int fd = result == 0 ? lookups_fd(client->tenant->service->lookups, client->tenant->number,
                                          &bytes)
                             : -1;

        if (fd >= 0 && client->takes_fds(client, LOOKUP_FDS)) {
                if ((req.header.flags & WIRE_F_TALLY) && !client->page.counts)
                        open_tally(client, &tally);
                client->looks_up = true;
                request_reply_fds(req, 0, bytes, (int[]){ fd, tally }, tally >= 0 ? 2 : 1);
        } else if (fd >= 0)
                request_fail(req, WIRE_BUSY, CLIENT_UNREAD);
        else if (result == -ESHUTDOWN || result == -ECANCELED)
                request_fail(req, WIRE_SHUTDOWN, "the daemon is stopping");
        else
                request_fail(req, WIRE_BUSY,
                             "the daemon has no memory or descriptors for the lookup index");
}

static void on_lookup(struct lookup_wait *wait)
{
        struct lookup_open *op = container_of(wait, struct lookup_open, wait);
        struct request req = op->request;
        int result = wait->result;

        list_unlink(&wait->owned);
        request_operation_free(req, op, sizeof(*op));
        reply_lookup(req, result);
}

void handshake_lookup(struct request req)
{
        struct client *client = req.client;
        struct lookup_open *op;
        int r;

        if (!client->tenant->service->lookups) {
                request_fail(req, WIRE_DENIED, "there is no lookup index (memory.lookup_index)");
                return;
        }
        op = request_operation_new(req, sizeof(*op), 0);
        if (!op)
                return;
        *op = (struct lookup_open){ .wait = { .complete = on_lookup }, .request = req };
        list_init(&op->wait.node);
        list_init(&op->wait.owned);
        r = lookups_ask(client->tenant->service->lookups, client->tenant->number, &op->wait);
        if (r == LOOKUP_WAIT) {
                list_append(&client->lookups, &op->wait.owned);
                return;
        }
        request_operation_free(req, op, sizeof(*op));
        reply_lookup(req, r);
}
