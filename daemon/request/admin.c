/* SPDX-License-Identifier: Apache-2.0 */
#include "request/admin.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "checked.h"
#include "cleanup.h"

/* A text as a sealed memfd: however long it is, the message stays small. */
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

void admin_report(struct client *client, const struct wire_report_request *msg,
                  uint64_t received_ns)
{
        _cleanup_(freep) char *text = NULL;
        _cleanup_(closep) int fd = -1;
        size_t bytes = 0;
        FILE *out;

        if (msg->what == WIRE_REPORT_CONFIG && !client->admin) {
                client_reply(client, &msg->hdr, received_ns, WIRE_DENIED, 0, 0,
                             "the configuration is for admins", NULL, 0);
                return;
        }
        if (!client->takes_fds(client, 1)) {
                client_reply(client, &msg->hdr, received_ns, WIRE_BUSY, 0, 0, CLIENT_UNREAD, NULL,
                             0);
                return;
        }
        out = open_memstream(&text, &bytes);
        if (out) {
                client->env->report(client->env->userdata, client, (enum wire_report)msg->what,
                                    out);
                fclose(out);
                fd = text_to_memfd(text, bytes);
        }
        if (fd < 0) {
                client_reply(client, &msg->hdr, received_ns, WIRE_BUSY, 0, 0,
                             "no memory or descriptors for the report", NULL, 0);
                return;
        }
        client_reply(client, &msg->hdr, received_ns, WIRE_OK, 0, bytes, NULL, &fd, 1);
}

void admin_list(struct client *client, const struct wire_list *msg, uint64_t received_ns)
{
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
                client_reply(client, &msg->hdr, received_ns, WIRE_NO_NAMESPACE, 0, 0,
                             "this session has not opened that namespace", NULL, 0);
                return;
        }
        /* The reply may have to wait for its reader. */
        status = client_charge_request(client, sizeof(out));
        if (status != WIRE_OK) {
                client_reply(client, &msg->hdr, received_ns, status, 0, 0, client_refusal(status),
                             NULL, 0);
                return;
        }
        n = store_list(client->env->store, ns, &cursor, chunks,
                       MIN(msg->max, (uint32_t)WIRE_MAX_KEYS));
        for (unsigned i = 0; i < n; i++) {
                const struct store_chunk *c = &chunks[i];
                uint64_t hash = store_hash(client->env->store, c->namespace_id, &c->key);
                uint32_t chunk = pool_find(client->env->pool, c->namespace_id, &c->key, hash);
                bool in_pool = chunk != POOL_NONE &&
                               !(pool_chunk(client->env->pool, chunk)->flags & POOL_FILLING);

                out.results[i] = (struct wire_list_result){
                        .key = c->key,
                        .length = c->length,
                        .tiers = (uint16_t)(WIRE_TIER_DISK | (in_pool ? WIRE_TIER_MEMORY : 0)),
                        .created_ms = c->created_ms,
                };
        }
        out.reply = (struct wire_reply){
                .hdr = {
                        .len = (uint32_t)(sizeof(out.reply) + n * sizeof(out.results[0])),
                        .op = msg->hdr.op | WIRE_REPLY,
                        .tag = msg->hdr.tag,
                },
                .count = (uint16_t)n,
                .value64 = cursor,
        };
        client_uncharge_request(client, sizeof(out));
        client_answer(client, received_ns, &out.reply);
}

void *admin_operation_new(struct client *client, const struct wire_hdr *hdr, uint64_t received_ns,
                          size_t bytes)
{
        enum wire_status status = client_charge_request(client, bytes);
        void *op = NULL;

        if (status == WIRE_OK) {
                op = calloc(1, bytes);
                if (op)
                        return op;
                client_uncharge_request(client, bytes);
                status = WIRE_BUSY;
        }
        client_reply(client, hdr, received_ns, status, 0, 0, client_refusal(status), NULL, 0);
        return NULL;
}

void admin_operation_free(struct client *client, void *op, size_t bytes)
{
        client_uncharge_request(client, bytes);
        free(op);
}

struct purge {
        struct store_purge store;
        struct client *client;
        struct wire_hdr hdr;
        uint64_t received_ns;
};

static void on_purged(struct store_purge *store)
{
        struct purge *p = container_of(store, struct purge, store);
        char text[128];

        snprintf(text, sizeof(text), "gone from memory, but not synced to disk: %s",
                 strerror(store->result < 0 ? -store->result : EIO));
        client_reply(p->client, &p->hdr, p->received_ns, store->result == 0 ? WIRE_OK : WIRE_FAILED,
                     0, store->dropped, text, NULL, 0);
        admin_operation_free(p->client, p, sizeof(*p));
}

void admin_purge(struct client *client, const struct wire_purge *msg, uint64_t received_ns)
{
        bool all = msg->hdr.flags & WIRE_F_ALL;
        uint32_t ns = client_namespace(client, msg->namespace_id);
        struct purge *p;

        if (all && !client->admin) {
                client_reply(client, &msg->hdr, received_ns, WIRE_DENIED, 0, 0,
                             "purging every namespace needs an admin", NULL, 0);
                return;
        }
        if (!all && ns == 0) {
                client_reply(client, &msg->hdr, received_ns, WIRE_NO_NAMESPACE, 0, 0,
                             "this session has not opened that namespace", NULL, 0);
                return;
        }
        p = admin_operation_new(client, &msg->hdr, received_ns, sizeof(*p));
        if (!p)
                return;
        p->client = client;
        p->hdr = msg->hdr;
        p->received_ns = received_ns;
        p->store.namespace_id = ns;
        p->store.all = all;
        p->store.complete = on_purged;
        for (unsigned i = 0; all && i < client->env->n_all; i++)
                if (&client->env->all[i] != client->env)
                        cache_forget(client->env->all[i].cache);
        cache_purge(client->env->cache, &p->store);
}

struct verify {
        struct store_verify store;
        struct client *client;
        struct wire_hdr hdr;
        uint64_t received_ns;
};

static void on_verified(struct store_verify *store)
{
        struct verify *v = container_of(store, struct verify, store);
        struct {
                struct wire_reply reply;
                struct wire_verify_result result;
        } out = {
                .reply = {
                        .hdr = {
                                .len = sizeof(out),
                                .op = WIRE_VERIFY | WIRE_REPLY,
                                .tag = v->hdr.tag,
                        },
                        .count = 1,
                },
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
                client_answer(v->client, v->received_ns, &out.reply);
        else if (store->result == STORE_BYPASSED)
                client_reply(v->client, &v->hdr, v->received_ns, WIRE_FAILED, 0, 0,
                             "this volume of the store is bypassed", NULL, 0);
        else
                client_reply(v->client, &v->hdr, v->received_ns, WIRE_SHUTDOWN, 0, 0,
                             "the daemon is stopping", NULL, 0);
        admin_operation_free(v->client, v, sizeof(*v));
}

void admin_verify(struct client *client, const struct wire_verify *msg, uint64_t received_ns)
{
        enum wire_status status;
        const char *text;
        struct verify *v;

        if (!client->admin) {
                client_reply(client, &msg->hdr, received_ns, WIRE_DENIED, 0, 0,
                             "verifying the store needs an admin", NULL, 0);
                return;
        }
        v = admin_operation_new(client, &msg->hdr, received_ns, sizeof(*v));
        if (!v)
                return;
        v->client = client;
        v->hdr = msg->hdr;
        v->received_ns = received_ns;
        v->store.volume = msg->volume;
        v->store.segment = msg->segment;
        v->store.slot = msg->slot;
        v->store.max_chunks = msg->max_chunks;
        v->store.max_bytes = msg->max_bytes;
        v->store.complete = on_verified;
        switch (store_verify(client->env->store, &v->store)) {
        case 0:
                return;
        case STORE_MISS:
                status = WIRE_INVALID;
                text = "the store has no volume of that number";
                break;
        case STORE_BYPASSED:
                status = WIRE_FAILED;
                text = "this volume of the store is bypassed";
                break;
        default:
                status = WIRE_BUSY;
                text = "too much is being verified already";
                break;
        }
        admin_operation_free(client, v, sizeof(*v));
        client_reply(client, &msg->hdr, received_ns, status, 0, 0, text, NULL, 0);
}

struct device {
        struct store_device store;
        struct client *client;
        struct wire_hdr hdr;
        uint64_t received_ns;
};

static void on_device(struct store_device *store)
{
        struct device *d = container_of(store, struct device, store);
        enum wire_status status = WIRE_FAILED;

        if (store->result == 0 || store->result == STORE_EXISTS)
                status = WIRE_OK;
        else if (store->result == STORE_BUSY)
                status = WIRE_BUSY;
        client_reply(d->client, &d->hdr, d->received_ns, status, 0, store->result == STORE_EXISTS,
                     store->text[0] ? store->text : "the device failed", NULL, 0);
        admin_operation_free(d->client, d, sizeof(*d));
}

void admin_device(struct client *client, const struct wire_device *msg, uint64_t received_ns)
{
        struct device *d;

        if (!client->admin) {
                client_reply(client, &msg->hdr, received_ns, WIRE_DENIED, 0, 0,
                             "suspending and resuming needs an admin", NULL, 0);
                return;
        }
        if (!store_volume_path(client->env->store, msg->volume)) {
                client_reply(client, &msg->hdr, received_ns, WIRE_INVALID, 0, 0,
                             "the store has no volume of that number", NULL, 0);
                return;
        }
        d = admin_operation_new(client, &msg->hdr, received_ns, sizeof(*d));
        if (!d)
                return;
        d->client = client;
        d->hdr = msg->hdr;
        d->received_ns = received_ns;
        d->store.volume = msg->volume;
        d->store.complete = on_device;
        if (msg->action == WIRE_DEVICE_SUSPEND)
                store_suspend(client->env->store, &d->store);
        else
                store_resume(client->env->store, &d->store);
}
