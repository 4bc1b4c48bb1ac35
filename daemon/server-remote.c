/* SPDX-License-Identifier: Apache-2.0 */
/* The server's part of the shared tier. The tier is created at startup after the store is open and
 * before the caches. The server reports namespaces to it, and runs it in each iteration. Runs on
 * the loop thread; owns the tier.
 *
 * Failures: startup fails with an instruction if the storage system's library is missing, or if
 * secrets cannot be read or can be read by others. The storage system itself may be down at
 * startup, and is used once it answers. */
#include "server-internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "remote/remote.h"
#include "units.h"

enum {
        SECRET_MIN = 16,
        SECRET_MAX = 4096,
        DEPTH = 64, /* most operations in flight at the storage system */
};
#define MS UINT64_C(1000000)

/* A purge of this host's copy of a namespace that another host purged. */
struct purge {
        struct cache_purge cache;
        struct server *server;
        char name[WIRE_MAX_NAME + 1];
};

static const char *none_if_off(const char *text)
{
        return strcmp(text, "off") == 0 ? NULL : text;
}

static const struct backend_ops *ops_of(const char *backend)
{
        return strcmp(backend, "directory") == 0 ? &backend_directory
               : strcmp(backend, "rados") == 0   ? &backend_rados
                                                 : &backend_s3;
}

static void load(void *userdata, struct remote_put *put)
{
        struct server *s = userdata;
        struct tenant *t = tenant_in_store(&s->service, put->tenant);

        if (t)
                cache_remote_load(t->cache, put);
        else
                remote_put_loaded(put, false);
}

static void on_purged(struct cache_purge *cache)
{
        struct purge *p = container_of(cache, struct purge, cache);
        char chunks[UNITS_TEXT];

        if (cache->store.result == 0)
                remote_purged(p->server->service.remote, cache->store.namespace_id);
        if (cache->store.result == 0)
                log_notice("namespace \"%s\": purged on the shared tier by another host; %s "
                           "dropped here",
                           p->name, units_count(cache->store.dropped, "chunk", chunks));
        else
                log_error("namespace \"%s\": purged on the shared tier by another host, but the "
                          "purge could not be recorded on disk here: %s; the namespace does not "
                          "use the shared tier until the daemon is restarted",
                          p->name, strerror(cache->store.result < 0 ? -cache->store.result : EIO));
        free(p);
}

static void purged(void *userdata, uint32_t namespace_id)
{
        struct server *s = userdata;
        const struct store_namespace *ns = store_namespace_get(s->service.store, namespace_id);
        struct tenant *t = ns ? tenant_in_store(&s->service, ns->tenant) : NULL;
        struct purge *p = t ? calloc(1, sizeof(*p)) : NULL;

        if (!p) {
                if (t)
                        log_error("namespace \"%s\": purged on the shared tier by another host, "
                                  "but there was not enough memory to drop its chunks here; the "
                                  "namespace does not use the shared tier until the daemon is "
                                  "restarted, which drops them",
                                  ns->name);
                return;
        }
        p->server = s;
        snprintf(p->name, sizeof(p->name), "%s", ns->name);
        p->cache.store.namespace_id = namespace_id;
        p->cache.complete = on_purged;
        cache_purge(t->cache, &p->cache);
}

static struct remote_params params_of(struct server *s, const char *state_path)
{
        const struct config *c = s->config;

        return (struct remote_params){
                .ops = ops_of(c->remote.backend),
                .backend = {
                        .prefix = c->remote.prefix,
                        .path = none_if_off(c->remote.path),
                        .sync = c->remote.sync,
                        .pool = none_if_off(c->remote.pool),
                        .ceph_conf = none_if_off(c->remote.ceph_conf),
                        .ceph_user = none_if_off(c->remote.ceph_user),
                        .endpoint = none_if_off(c->remote.endpoint),
                        .bucket = none_if_off(c->remote.bucket),
                        .region = none_if_off(c->remote.region),
                        .credentials = none_if_off(c->remote.credentials),
                        .ca = none_if_off(c->remote.ca),
                        .depth = DEPTH,
                        .timeout_ns = c->remote.timeout_ms * MS,
                },
                .prefix = c->remote.prefix,
                .write = strcmp(c->remote.write, "never") == 0 ? REMOTE_WRITE_NEVER
                         : strcmp(c->remote.write, "all") == 0 ? REMOTE_WRITE_ALL
                                                               : REMOTE_WRITE_REUSED,
                .write_rate = c->remote.write_rate,
                .read_inflight = c->remote.read_inflight,
                .write_inflight = c->remote.write_inflight,
                .write_queue = c->remote.write_queue,
                .timeout_ns = c->remote.timeout_ms * MS,
                .presence_ns = c->remote.presence_lifetime_ms * MS,
                .absence_ns = c->remote.absence_lifetime_ms * MS,
                .generation_interval_ns = c->remote.generation_interval_ms * MS,
                .probe_rate = (unsigned)c->remote.probe_rate,
                .state_path = state_path,
                .load = load,
                .purged = purged,
                .userdata = s,
        };
}

/* --- secrets of tenants --- */

static int refuse(char ret_error[static 256], int r, const char *tenant, const char *path,
                  const char *what)
{
        snprintf(ret_error, 256, "tenants.remote_secret of tenant %s: %.100s: %s", tenant, path,
                 what);
        return r;
}

/* Reads a secret without a newline at its end. Returns 0, or -errno and a sentence that does not
 * contain the secret. */
static int read_secret(const char *tenant, const char *path, struct server_secret *ret,
                       char ret_error[static 256])
{
        _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        ssize_t got = 1;
        size_t n = 0;

        if (fd < 0)
                return refuse(ret_error, -errno, tenant, path, strerror(errno));
        while (n < sizeof(ret->bytes) && got > 0) {
                got = read(fd, ret->bytes + n, sizeof(ret->bytes) - n);
                if (got < 0)
                        return refuse(ret_error, -errno, tenant, path, strerror(errno));
                n += (size_t)got;
        }
        if (n > 0 && ret->bytes[n - 1] == '\n')
                n--;
        if (n > SECRET_MAX || got > 0)
                return refuse(ret_error, -EINVAL, tenant, path,
                              "the secret is longer than 4096 bytes");
        if (n < SECRET_MIN)
                return refuse(
                        ret_error, -EINVAL, tenant, path,
                        "the secret is shorter than 16 bytes; openssl rand -hex 32 makes one");
        ret->length = n;
        return 0;
}

static int read_secrets(struct server *s, char ret_error[static 256])
{
        for (unsigned i = 0; i < s->service.n_tenants; i++) {
                const struct config_tenant *t = s->tenant_config[i];
                int r;

                if (!t || strcmp(t->remote_secret, "off") == 0)
                        continue;
                s->remote.secrets[i] = calloc(1, sizeof(*s->remote.secrets[i]));
                if (!s->remote.secrets[i])
                        return -ENOMEM;
                r = read_secret(t->name, t->remote_secret, s->remote.secrets[i], ret_error);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* --- namespaces --- */

static bool is_local(const struct server *s, const char *name)
{
        const struct config_strings *local = &s->config->remote.local_namespaces;

        for (unsigned i = 0; i < local->n; i++) {
                const char *pattern = local->items[i];
                size_t n = strlen(pattern);

                if (n > 0 && pattern[n - 1] == '*' ? strncmp(pattern, name, n - 1) == 0
                                                   : strcmp(pattern, name) == 0)
                        return true;
        }
        return false;
}

static bool add_namespace(struct server *s, const struct store_namespace *ns)
{
        const struct tenant *t = tenant_in_store(&s->service, ns->tenant);
        const struct config_tenant *config = t ? s->tenant_config[t->number] : NULL;
        const struct server_secret *secret = t ? s->remote.secrets[t->number] : NULL;
        int r;

        if (!t || (config && !config->remote) || is_local(s, ns->name))
                return true;
        r = remote_namespace_add(s->service.remote, ns->id, ns->name, ns->fingerprint,
                                 secret ? secret->bytes : NULL, secret ? secret->length : 0);
        if (r < 0)
                log_error("namespace \"%s\" does not use the shared tier: %s", ns->name,
                          r == -ELIBACC ? "libcrypto.so.3 cannot be loaded; install the package "
                                          "libssl3 (Debian: libssl3 or libssl3t64)"
                                        : strerror(-r));
        return true;
}

static bool add_walked(void *userdata, const struct store_namespace *ns)
{
        return add_namespace(userdata, ns);
}

static void namespace_changed(void *userdata, uint32_t id, bool is_there)
{
        struct server *s = userdata;
        const struct store_namespace *ns = store_namespace_get(s->service.store, id);

        if (!is_there)
                remote_namespace_remove(s->service.remote, id);
        else if (ns && !remote_has_namespace(s->service.remote, id))
                (void)add_namespace(s, ns);
}

/* --- start and stop --- */

static void on_done(evutil_socket_t fd, short what, void *userdata)
{
        struct server *s = userdata;

        remote_reap(s->service.remote);
}

int server_start_remote(struct server *s)
{
        char state_path[PATH_MAX], error[256] = "";
        struct remote_params params;
        int r;

        if (strcmp(s->config->remote.backend, "off") == 0)
                return 0;
        snprintf(state_path, sizeof(state_path), "%s/remote",
                 store_volume_path(s->service.store, 0));
        params = params_of(s, state_path);
        r = read_secrets(s, error);
        if (r == 0)
                r = remote_new(&s->service.remote, &params, error);
        if (r < 0) {
                server_fail(r, "starting the shared tier (remote)", error);
                return EXIT_STATUS_CONFIG;
        }
        s->remote.done =
                event_new(s->base, remote_fd(s->service.remote), EV_READ | EV_PERSIST, on_done, s);
        if (!s->remote.done || event_add(s->remote.done, NULL) < 0)
                return server_fail(-ENOMEM, "starting the shared tier (remote)", NULL);
        s->service.namespace_changed = namespace_changed;
        s->service.generation_interval_ms = s->config->remote.generation_interval_ms;
        store_namespaces_walk(s->service.store, true, add_walked, s);
        return 0;
}

void server_apply_remote(struct server *s)
{
        struct remote_params params;

        if (!s->service.remote)
                return;
        params = params_of(s, NULL);
        s->service.generation_interval_ms = s->config->remote.generation_interval_ms;
        remote_configure(s->service.remote, &params);
}

void server_stop_remote(struct server *s)
{
        if (s->service.remote && !s->remote.stopped)
                remote_stop(s->service.remote);
        s->remote.stopped = true;
}

void server_free_remote(struct server *s)
{
        server_stop_remote(s);
        if (s->remote.done)
                event_free(s->remote.done);
        s->remote.done = NULL;
        s->service.remote = remote_free(s->service.remote);
        for (unsigned i = 0; i < CONFIG_MAX_TENANTS; i++) {
                if (s->remote.secrets[i])
                        explicit_bzero(s->remote.secrets[i], sizeof(*s->remote.secrets[i]));
                free(s->remote.secrets[i]);
                s->remote.secrets[i] = NULL;
        }
}
