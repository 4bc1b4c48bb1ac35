/* SPDX-License-Identifier: Apache-2.0 */
/* Implements admin.h. REPORT, LIST, BENCH and RELOAD are answered at once, PURGE, VERIFY and DEVICE
 * when the store completes them, SWEEP and a PURGE of the shared tier when the shared tier does.
 * Until then each is an operation (request_operation_new()), charged to the client's user, which
 * continues if the client's session ends.
 *
 * Failures: an operation that requires an admin is refused before it does anything. Later failures
 * are in the reply's status and text. */
#include "request/admin.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "benchmark/benchmark.h"
#include "checked.h"
#include "cleanup.h"
#include "remote/remote.h"
#include "request/audit.h"
#include "snapshot.h"

/* Returns a sealed memfd with the text, so that the message stays small however long the text is,
 * or -errno. */
static int text_to_memfd(const char *text, size_t bytes)
{
        _cleanup_(closep) int fd = memfd_create("kvcache-report", MFD_CLOEXEC | MFD_ALLOW_SEALING);

        if (fd < 0)
                return -errno;
        for (size_t done = 0; done < bytes;) {
                ssize_t n = write(fd, text + done, bytes - done);

                if (n < 0)
                        return -errno;
                done += (size_t)n;
        }
        if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0)
                return -errno;
        return TAKE_FD(fd);
}

/* Replies with the text that `print` prints, in a memfd, and the value that it returns. Refuses the
 * request if the client may have no further descriptor. Returns 0 if the request was answered;
 * otherwise the error of `print`, or -ENOMEM without memory or descriptors. */
static int reply_text(struct request req, int (*print)(struct request req, void *data, FILE *out),
                      void *data)
{
        _cleanup_(freep) char *text = NULL;
        _cleanup_(closep) int fd = -1;
        size_t bytes = 0;
        FILE *out;
        int r, value;

        if (!req.client->takes_fds(req.client, 1)) {
                request_fail(req, WIRE_BUSY, CLIENT_UNREAD);
                return 0;
        }
        out = open_memstream(&text, &bytes);
        if (!out)
                return -ENOMEM;
        r = print(req, data, out);
        value = r;
        if (fclose(out) != 0 && r >= 0)
                r = -ENOMEM;
        if (r < 0)
                return r;
        fd = text_to_memfd(text, bytes);
        if (fd < 0)
                return -ENOMEM;
        request_reply_fds(req, (uint32_t)value, bytes, &fd, 1);
        return 0;
}

static int print_report(struct request req, void *data, FILE *out)
{
        const struct service *service = req.client->tenant->service;
        const struct wire_report_request *msg = data;

        service->report(service->userdata, req.client, (enum wire_report)msg->what, out);
        return 0;
}

void admin_report(struct request req, const struct wire_report_request *msg)
{
        struct wire_report_request copy = *msg;

        if (msg->what == WIRE_REPORT_CONFIG && !req.client->admin)
                request_fail(req, WIRE_DENIED, "reading the configuration needs an admin");
        else if (msg->what == WIRE_REPORT_STAGES && !req.client->admin)
                request_fail(req, WIRE_DENIED, "reading stage times needs an admin");
        else if (reply_text(req, print_report, &copy) < 0)
                request_fail(req, WIRE_BUSY,
                             "the daemon has no memory or descriptors for the report");
}

/* --- the configuration --- */

static int print_reload(struct request req, void *data, FILE *out)
{
        const struct service *service = req.client->tenant->service;

        return service->reload(service->server_userdata, out);
}

void admin_reload(struct request req)
{
        int r;

        if (!req.client->admin) {
                request_fail(req, WIRE_DENIED, "reloading the configuration needs an admin");
                return;
        }
        r = reply_text(req, print_reload, NULL);
        if (r == -ESHUTDOWN)
                request_fail(req, WIRE_SHUTDOWN, "the daemon is stopping");
        else if (r < 0)
                request_fail(req, WIRE_BUSY,
                             "the daemon has no memory or descriptors for the answer; its log "
                             "names the changes of a reload");
}

/* --- benchmark sessions --- */

static_assert((int)BENCH_INIT == (int)WIRE_BENCH_INIT, "the same commands");
static_assert((int)BENCH_COMMAND_END == (int)WIRE_BENCH_ACTION_END, "the same commands");
static_assert((int)BENCH_RESUME == (int)WIRE_BENCH_RESUME, "the same flags");
static_assert((int)BENCH_FORCE == (int)WIRE_BENCH_FORCE, "the same flags");

static void bench_refuse(struct request req, int error, const char *name)
{
        char text[160];

        switch (error) {
        case -EINVAL:
                request_fail(req, WIRE_INVALID,
                             "a benchmark session's name is " SNAPSHOT_NAME_RULE);
                break;
        case -EEXIST:
                snprintf(text, sizeof(text), "benchmark session %s already exists", name);
                request_fail(req, WIRE_EXISTS_ALREADY, text);
                break;
        case -ENOENT:
                snprintf(text, sizeof(text), "benchmark session %s does not exist", name);
                request_fail(req, WIRE_MISS, text);
                break;
        case -ESRCH:
                request_fail(req, WIRE_STALE, "no benchmark session is active");
                break;
        case -ENOSPC:
                snprintf(text, sizeof(text),
                         "the limit of %d benchmark sessions is reached; delete one first",
                         BENCH_MAX_SESSIONS);
                request_fail(req, WIRE_QUOTA, text);
                break;
        default:
                request_fail(req, WIRE_BUSY,
                             "the daemon has no memory or descriptors for the benchmark session");
        }
}

struct bench_call {
        enum bench_command command;
        unsigned flags;
        char name[WIRE_BENCH_NAME + 1];
};

static int print_bench(struct request req, void *data, FILE *out)
{
        const struct bench_call *c = data;

        return bench_command(req.client->tenant->service->bench, c->command, c->name, c->flags,
                             out);
}

void admin_bench(struct request req, const struct wire_bench *msg)
{
        struct bench_call call = {
                .command = (enum bench_command)msg->action,
                .flags = msg->options | (req.client->admin ? 0u : BENCH_UNSAVED),
        };
        int r;

        if (!req.client->admin && msg->action != WIRE_BENCH_STATUS &&
            msg->action != WIRE_BENCH_LIST) {
                request_fail(req, WIRE_DENIED, "changing benchmark sessions needs an admin");
                return;
        }
        memcpy(call.name, msg + 1, msg->name_length);
        r = strlen(call.name) == msg->name_length ? reply_text(req, print_bench, &call) : -EINVAL;
        if (r < 0)
                bench_refuse(req, r, call.name);
}

/* --- the store --- */

void admin_list(struct request req, const struct wire_list *msg)
{
        struct client *client = req.client;
        struct store_chunk chunks[WIRE_MAX_KEYS];
        struct {
                struct wire_reply reply;
                struct wire_list_result results[WIRE_MAX_KEYS];
        } out;
        uint32_t ns = client_namespace(client, msg->namespace_id);
        uint64_t cursor = msg->cursor;
        enum wire_status status;
        unsigned n;

        if (ns == 0) {
                request_fail(req, WIRE_NO_NAMESPACE, "this session has not opened that namespace");
                return;
        }
        /* The client's limits must have room for the reply, which may have to be queued. */
        status = client_charge_request(client, sizeof(out));
        if (status != WIRE_OK) {
                request_fail(req, status, client_refusal(status));
                return;
        }
        n = store_list(client->tenant->service->store, ns, &cursor, chunks,
                       MIN(msg->max, (uint32_t)WIRE_MAX_KEYS));
        for (unsigned i = 0; i < n; i++) {
                const struct store_chunk *c = &chunks[i];
                uint64_t hash =
                        store_hash(client->tenant->service->store, c->namespace_id, &c->key);
                uint32_t chunk = pool_find(client->tenant->pool, c->namespace_id, &c->key, hash);
                bool in_pool = chunk != POOL_NONE &&
                               !pool_is_filling(pool_chunk(client->tenant->pool, chunk));

                out.results[i] = (struct wire_list_result){
                        .key = c->key,
                        .length = c->length,
                        .tiers = (uint16_t)(WIRE_TIER_DISK | (in_pool ? WIRE_TIER_MEMORY : 0)),
                        .created_ms = c->created_ms,
                };
        }
        out.reply = (struct wire_reply){ .count = (uint16_t)n, .value64 = cursor };
        client_uncharge_request(client, sizeof(out));
        request_reply(req, &out.reply, sizeof(out.reply) + n * sizeof(out.results[0]));
}

struct forgetting {
        struct pool_purge pool;
        struct purge *purge;
};

enum { REMOTE_PURGES = 64 /* most purges of one request in flight at the shared tier */ };

/* The purge of one namespace on the shared tier. */
struct remote_part {
        struct remote_purge remote;
        struct purge *purge;
};

struct purge {
        struct cache_purge cache;
        struct request request;
        size_t charged;
        struct remote_part *remote; /* NULL: the shared tier is not purged */
        unsigned n_remote, remote_begun, remote_left;
        int remote_result;
        unsigned parts;             /* purges of this host that have not completed */
        struct forgetting others[]; /* for a purge of all namespaces: the purges of the other
                                     * tenants' pools, by the tenants' numbers */
};

static void audit_purge(const struct purge *p)
{
        const struct store_purge *store = &p->cache.store;
        const struct service *service = p->request.client->tenant->service;
        const struct store_namespace *ns =
                store->all ? NULL : store_namespace_get(service->store, store->namespace_id);
        const char *detail = p->remote ? ", and what the shared tier had" : "";

        if (store->result != 0)
                detail = ", not synced to disk";
        else if (p->remote_result != 0)
                detail = ", but not on the shared tier";
        audit_log(p->request.client, store->all ? "purge of everything" : "purge",
                  ns           ? ns->name
                  : store->all ? NULL
                               : "(removed)",
                  ns ? tenant_name_in_store(service, ns->tenant) : NULL, store->dropped, detail);
}

static void purge_end(struct purge *p)
{
        const struct store_purge *store = &p->cache.store;
        const struct service *service = p->request.client->tenant->service;
        char text[256];

        audit_purge(p);
        for (unsigned i = 0; i < p->n_remote && store->result == 0; i++)
                if (p->remote[i].remote.result == 0)
                        remote_purged(service->remote, p->remote[i].remote.namespace_id);
        if (store->result != 0) {
                snprintf(text, sizeof(text), "purged from memory, but not synced to disk: %s",
                         client_write_error(p->request.client, store->result));
                request_fail_value(p->request, WIRE_FAILED, 0, store->dropped, text);
        } else if (p->remote_result != 0) {
                snprintf(text, sizeof(text),
                         "purged on this host, but not on the shared tier, which may restore the "
                         "chunks: %s; see \"kvcachectl remote status\"",
                         strerror(p->remote_result < 0 ? -p->remote_result : EIO));
                request_fail_value(p->request, WIRE_FAILED, 0, store->dropped, text);
        } else {
                request_ok_value(
                        p->request,
                        p->remote ? (uint32_t)((service->generation_interval_ms + 999) / 1000) : 0,
                        store->dropped);
        }
        free(p->remote);
        request_operation_free(p->request, p, p->charged);
}

static void part_purged(struct purge *p)
{
        if (--p->parts == 0)
                purge_end(p);
}

static void on_purged(struct cache_purge *cache)
{
        part_purged(container_of(cache, struct purge, cache));
}

static void on_forgotten(struct pool_purge *pool)
{
        part_purged(container_of(pool, struct forgetting, pool)->purge);
}

static void purge_here(struct purge *p)
{
        const struct tenant *tenant = p->request.client->tenant;
        unsigned n = p->cache.store.all ? tenant->service->n_tenants : 0;

        p->parts = 1;
        for (unsigned i = 0; i < n; i++) {
                struct tenant *other = &tenant->service->tenants[i];

                if (other == tenant)
                        continue;
                p->parts++;
                p->others[i].purge = p;
                p->others[i].pool.complete = on_forgotten;
                cache_forget(other->cache, &p->others[i].pool);
        }
        cache_purge(tenant->cache, &p->cache);
}

static void on_remote_purged(struct remote_purge *remote);

/* Starts the next purge at the shared tier. Returns false if all have been started. */
static bool purge_next_remote(struct purge *p)
{
        struct remote_part *next = &p->remote[p->remote_begun];

        if (p->remote_begun == p->n_remote)
                return false;
        p->remote_begun++;
        next->purge = p;
        next->remote.complete = on_remote_purged;
        remote_purge(p->request.client->tenant->service->remote, &next->remote);
        return true;
}

static void remote_part_purged(struct purge *p)
{
        (void)purge_next_remote(p);
        if (--p->remote_left == 0)
                purge_here(p);
}

static void on_remote_purged(struct remote_purge *remote)
{
        struct purge *p = container_of(remote, struct remote_part, remote)->purge;

        if (remote->result != 0)
                p->remote_result = remote->result;
        remote_part_purged(p);
}

/* Purges the shared tier first: the local purge that follows also removes chunks fetched
 * meanwhile. */
static void purge_remote(struct purge *p)
{
        p->remote_left = p->n_remote;
        for (unsigned i = 0; i < REMOTE_PURGES && purge_next_remote(p); i++)
                ;
}

/* Collects the namespaces to purge at the shared tier: `only`, or all if it is 0. Stores up to
 * `room` of them in `ret`, which may be NULL, and returns the number of all of them. */
static unsigned remote_namespaces(const struct service *service, uint32_t only,
                                  struct remote_part *ret, unsigned room)
{
        const struct store_namespace *ns;
        unsigned n = 0;

        for (unsigned i = 0; (ns = store_namespace_at(service->store, i)); i++) {
                if ((only != 0 && ns->id != only) || !remote_has_namespace(service->remote, ns->id))
                        continue;
                if (ret && n < room)
                        ret[n].remote.namespace_id = ns->id;
                n++;
        }
        return n;
}

void admin_purge(struct request req, const struct wire_purge *msg)
{
        struct client *client = req.client;
        const struct service *service = client->tenant->service;
        bool all = msg->hdr.flags & WIRE_F_ALL, shared = msg->hdr.flags & WIRE_F_REMOTE;
        uint32_t ns = client_namespace(client, msg->namespace_id);
        unsigned n = all ? service->n_tenants : 0, n_remote = 0;
        size_t bytes = sizeof(struct purge) + n * sizeof(struct forgetting);
        size_t beside = store_fan_out_bytes(service->store);
        struct remote_part *remote = NULL;
        struct purge *p;

        if (all && !client->admin) {
                request_fail(req, WIRE_DENIED, "purging every namespace needs an admin");
                return;
        }
        if (!all && ns == 0) {
                request_fail(req, WIRE_NO_NAMESPACE, "this session has not opened that namespace");
                return;
        }
        if (shared && service->remote)
                n_remote = remote_namespaces(service, ns, NULL, 0);
        if (shared && n_remote == 0 && (!all || !service->remote)) {
                request_fail(req, WIRE_INVALID,
                             service->remote ? "the namespace is not on the shared tier: nothing "
                                               "was purged"
                                             : "there is no shared tier (remote.backend): nothing "
                                               "was purged");
                return;
        }
        beside += n_remote * sizeof(*remote);
        p = request_operation_new(req, bytes, beside);
        if (!p)
                return;
        if (n_remote > 0) {
                remote = calloc(n_remote, sizeof(*remote));
                if (!remote) {
                        request_operation_free(req, p, bytes + beside);
                        request_fail(req, WIRE_BUSY, "the daemon has no memory for the purge");
                        return;
                }
        }
        p->charged = bytes + beside;
        p->request = req;
        p->cache.store.namespace_id = ns;
        p->cache.store.all = all;
        p->cache.complete = on_purged;
        p->remote = remote;
        p->n_remote = n_remote;
        if (!remote) {
                purge_here(p);
                return;
        }
        (void)remote_namespaces(service, ns, remote, n_remote);
        purge_remote(p);
}

/* --- the shared tier --- */

struct sweep {
        struct remote_sweep remote;
        struct request request;
};

static void on_swept(struct remote_sweep *remote)
{
        struct sweep *s = container_of(remote, struct sweep, remote);
        struct {
                struct wire_reply reply;
                struct wire_sweep_result result;
        } out = {
                .reply = { .count = 1 },
                .result = {
                        .seen = remote->seen,
                        .seen_bytes = remote->seen_bytes,
                        .deleted = remote->deleted,
                        .deleted_bytes = remote->deleted_bytes,
                },
        };

        if (!remote->dry_run && remote->deleted > 0)
                audit_log(s->request.client, "sweep of the shared tier", NULL, NULL,
                          remote->deleted, "");
        switch (remote->result) {
        case 0:
                request_reply(s->request, &out.reply, sizeof(out));
                break;
        case -EBUSY:
                request_fail(s->request, WIRE_BUSY,
                             "another host, or another request, is sweeping the shared tier");
                break;
        case -ENOTSUP:
                request_fail(s->request, WIRE_INVALID,
                             "the back end S3 has no sweep: set lifecycle rules on the bucket");
                break;
        case -ECANCELED:
                request_fail(s->request, WIRE_SHUTDOWN, "the daemon is stopping");
                break;
        default:
                request_fail(s->request, WIRE_FAILED,
                             remote->error[0] ? remote->error : strerror(-remote->result));
        }
        request_operation_free(s->request, s, sizeof(*s));
}

void admin_sweep(struct request req, const struct wire_sweep *msg)
{
        struct client *client = req.client;
        struct remote *remote = client->tenant->service->remote;
        struct sweep *s;

        if (!client->admin) {
                request_fail(req, WIRE_DENIED, "sweeping the shared tier needs an admin");
                return;
        }
        if (!remote) {
                request_fail(req, WIRE_INVALID, "there is no shared tier (remote.backend)");
                return;
        }
        if (client->tenant->service->stopping) {
                request_fail(req, WIRE_SHUTDOWN, "the daemon is stopping");
                return;
        }
        s = request_operation_new(req, sizeof(*s), 0);
        if (!s)
                return;
        s->request = req;
        s->remote = (struct remote_sweep){ .limit = msg->limit,
                                           .dry_run = msg->options & WIRE_SWEEP_DRY_RUN,
                                           .complete = on_swept };
        remote_sweep(remote, &s->remote);
}

/* --- the store's volumes --- */

struct verify {
        struct store_verify store;
        struct request request;
};

static void on_verified(struct store_verify *store)
{
        struct verify *v = container_of(store, struct verify, store);
        struct {
                struct wire_reply reply;
                struct wire_verify_result result;
        } out = {
                .reply = { .count = 1 },
                .result = {
                        .volumes = store->volumes,
                        .segments = store->segments,
                        .next_segment = store->next_segment,
                        .next_slot = store->next_slot,
                        .chunks = store->found.chunks,
                        .bytes = store->found.bytes,
                        .mismatched = store->found.mismatched,
                        .unreadable = store->found.unreadable,
                        .skipped = store->found.skipped,
                        .gave_up = store->result == -EIO,
                },
        };

        if (store->result == 0 || store->result == -EIO)
                request_reply(v->request, &out.reply, sizeof(out));
        else if (store->result == STORE_BYPASSED)
                request_fail(v->request, WIRE_FAILED,
                             "this volume of the store is not in use; \"kvcachectl device ls\" "
                             "says why");
        else
                request_fail(v->request, WIRE_SHUTDOWN, "the daemon is stopping");
        request_operation_free(v->request, v, sizeof(*v));
}

void admin_verify(struct request req, const struct wire_verify *msg)
{
        struct client *client = req.client;
        enum wire_status status;
        const char *text;
        struct verify *v;

        if (!client->admin) {
                request_fail(req, WIRE_DENIED, "verifying the store needs an admin");
                return;
        }
        v = request_operation_new(req, sizeof(*v), 0);
        if (!v)
                return;
        v->request = req;
        v->store.volume = msg->volume;
        v->store.segment = msg->segment;
        v->store.slot = msg->slot;
        v->store.max_chunks = msg->max_chunks;
        v->store.max_bytes = msg->max_bytes;
        v->store.complete = on_verified;
        switch (store_verify(client->tenant->service->store, &v->store)) {
        case 0:
                return;
        case STORE_MISS:
                status = WIRE_INVALID;
                text = "the store has no volume of that number";
                break;
        case STORE_BYPASSED:
                status = WIRE_FAILED;
                text = "this volume of the store is not in use; \"kvcachectl device ls\" says why";
                break;
        default:
                status = WIRE_BUSY;
                text = "too many verifications are running; try again later";
                break;
        }
        request_operation_free(req, v, sizeof(*v));
        request_fail(req, status, text);
}

struct device {
        struct store_device store;
        struct request request;
};

static void on_device(struct store_device *store)
{
        struct device *d = container_of(store, struct device, store);
        enum wire_status status = WIRE_FAILED;

        if (store->result == 0 || store->result == STORE_EXISTS)
                status = WIRE_OK;
        else if (store->result == STORE_BUSY)
                status = WIRE_BUSY;
        if (status == WIRE_OK)
                request_ok_value(d->request, 0, store->result == STORE_EXISTS);
        else
                request_fail(d->request, status,
                             store->text[0] ? store->text
                                            : "the volume could not be suspended or resumed");
        request_operation_free(d->request, d, sizeof(*d));
}

void admin_device(struct request req, const struct wire_device *msg)
{
        struct client *client = req.client;
        struct device *d;

        if (!client->admin) {
                request_fail(req, WIRE_DENIED, "suspending or resuming a volume needs an admin");
                return;
        }
        if (!store_volume_path(client->tenant->service->store, msg->volume)) {
                request_fail(req, WIRE_INVALID, "the store has no volume of that number");
                return;
        }
        d = request_operation_new(req, sizeof(*d), 0);
        if (!d)
                return;
        d->request = req;
        d->store.volume = msg->volume;
        d->store.complete = on_device;
        if (msg->action == WIRE_DEVICE_SUSPEND)
                store_suspend(client->tenant->service->store, &d->store);
        else
                store_resume(client->tenant->service->store, &d->store);
}
