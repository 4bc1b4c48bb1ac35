/* SPDX-License-Identifier: Apache-2.0 */
#include "admin.h"

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
                dispatch_reply(client, &msg->hdr, received_ns, WIRE_DENIED, 0, 0,
                               "the configuration is for admins", NULL, 0);
                return;
        }
        out = open_memstream(&text, &bytes);
        if (out) {
                client->env->report(client->env->userdata, (enum wire_report)msg->what, out);
                fclose(out);
                fd = text_to_memfd(text, bytes);
        }
        if (fd < 0) {
                dispatch_reply(client, &msg->hdr, received_ns, WIRE_BUSY, 0, 0,
                               "no memory or descriptors for the report", NULL, 0);
                return;
        }
        dispatch_reply(client, &msg->hdr, received_ns, WIRE_OK, 0, bytes, NULL, &fd, 1);
}

void admin_list(struct client *client, const struct wire_list *msg, uint64_t received_ns)
{
        struct store_chunk chunks[WIRE_MAX_KEYS];
        struct {
                struct wire_reply reply;
                struct wire_list_result results[WIRE_MAX_KEYS];
        } out;
        uint64_t cursor = msg->cursor;
        unsigned n;

        if (!client_has_namespace(client, msg->namespace_id)) {
                dispatch_reply(client, &msg->hdr, received_ns, WIRE_NO_NAMESPACE, 0, 0,
                               "this session has not opened that namespace", NULL, 0);
                return;
        }
        n = store_list(client->env->store, msg->namespace_id, &cursor, chunks,
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
        dispatch_answer(client, received_ns, &out.reply);
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
                 strerror(-store->result));
        dispatch_reply(p->client, &p->hdr, p->received_ns,
                       store->result == 0 ? WIRE_OK : WIRE_FAILED, 0, store->dropped, text, NULL,
                       0);
        free(p);
}

void admin_purge(struct client *client, const struct wire_purge *msg, uint64_t received_ns)
{
        bool all = msg->hdr.flags & WIRE_F_ALL;
        struct purge *p;

        if (all && !client->admin) {
                dispatch_reply(client, &msg->hdr, received_ns, WIRE_DENIED, 0, 0,
                               "purging every namespace needs an admin", NULL, 0);
                return;
        }
        if (!all && !client_has_namespace(client, msg->namespace_id)) {
                dispatch_reply(client, &msg->hdr, received_ns, WIRE_NO_NAMESPACE, 0, 0,
                               "this session has not opened that namespace", NULL, 0);
                return;
        }
        p = calloc(1, sizeof(*p));
        if (!p) {
                dispatch_reply(client, &msg->hdr, received_ns, WIRE_BUSY, 0, 0, "out of memory",
                               NULL, 0);
                return;
        }
        p->client = client;
        p->hdr = msg->hdr;
        p->received_ns = received_ns;
        p->store.namespace_id = msg->namespace_id;
        p->store.all = all;
        p->store.complete = on_purged;
        cache_purge(client->env->cache, &p->store);
}
