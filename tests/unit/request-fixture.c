/* SPDX-License-Identifier: Apache-2.0 */
/* See request-fixture.h. */
#include "request-fixture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "../lib/folder.h"
#include "../lib/open-fds.h"
#include "base/clock.h"
#include "base/log.h"
#include "benchmark/benchmark.h"
#include "checked.h"
#include "evict/admission.h"
#include "fdpass.h"
#include "keep/keep.h"
#include "lookup/index.h"
#include "remote/remote.h"
#include "report/status.h"
#include "request-shared.h"
#include "request/audit.h"
#include "request/hits.h"
#include "request/memory.h"
#include "tenant/ids.h"

struct rig rig;

static uid_t next_uid;
static union {
        struct wire_reply reply;
        uint64_t align;
        uint8_t bytes[WIRE_MAX_MESSAGE];
} in, out;

/* --- the loop --- */

int __wrap_peer_from_socket(int fd, struct peer *ret);
int __wrap_peer_from_socket(int fd, struct peer *ret)
{
        *ret = (struct peer){ .pid = getpid(), .uid = next_uid, .gid = next_uid };
        return 0;
}

static void on_done(evutil_socket_t fd, short what, void *userdata)
{
        kio_reap(rig.t.io);
}

static void on_remote_done(evutil_socket_t fd, short what, void *userdata)
{
        remote_reap(rig.service.remote);
}

static void on_wait(evutil_socket_t fd, short what, void *userdata)
{
}

static void on_guard(evutil_socket_t fd, short what, void *userdata)
{
        fail_msg("nothing happens");
}

static void wake_in(uint64_t ns)
{
        uint64_t us = ns / 1000 + 1;

        event_add(rig.wait, &(struct timeval){ .tv_sec = (time_t)(us / 1000000),
                                               .tv_usec = (suseconds_t)(us % 1000000) });
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
        return a == 0 || (b != 0 && b < a) ? b : a;
}

/* Ends an iteration as server.c does. */
static bool iterate(void)
{
        uint64_t now = clock_mono_ns(), deadline = 0;
        bool more;

        store_iterate(rig.t.store);
        more = sessions_iterate(rig.sessions);
        if (rig.service.remote)
                deadline = remote_iterate(rig.service.remote, now);
        for (unsigned i = 0; i < ARRAY_SIZE(rig.tenants); i++) {
                cache_sweep(rig.tenants[i].cache);
                deadline = earlier(deadline, cache_iterate(rig.tenants[i].cache, now));
        }
        store_iterate(rig.t.store);
        more |= lookups_iterate(rig.service.lookups, now, 1000000);
        more |= hits_iterate(&rig.service, now) || hits_are_behind(&rig.service);
        more |= sessions_active(rig.sessions) || sessions_are_ending(rig.sessions);
        for (unsigned i = 0; i < ARRAY_SIZE(rig.tenants); i++)
                more |= cache_has_work(rig.tenants[i].cache);
        kio_flush(rig.t.io);
        if (deadline && !more)
                wake_in(deadline > now ? deadline - now : 0);
        return more;
}

void rig_turn(bool wait)
{
        static bool more;

        event_add(rig.guard, &(struct timeval){ .tv_sec = TIERS_WAIT_MS / 1000 });
        event_base_loop(rig.base, EVLOOP_ONCE | (wait && !more ? 0 : EVLOOP_NONBLOCK));
        more = iterate();
}

void rig_turns(void)
{
        for (unsigned i = 0; i < 4 * WIRE_MAX_INFLIGHT; i++)
                rig_turn(false);
}

/* --- the daemon --- */

static int reload(void *userdata, FILE *to)
{
        rig.reloads++;
        fputs("{\"reload\": true}", to);
        return rig.reload_result;
}

static uint64_t plenty(void *userdata)
{
        return UINT64_C(1) << 40;
}

static void namespace_changed(void *userdata, uint32_t id, bool is_there)
{
        const struct store_namespace *ns = store_namespace_get(rig.t.store, id);

        if (!rig.service.remote)
                return;
        if (is_there)
                assert_int_equal(remote_namespace_add(rig.service.remote, id, ns->name,
                                                      ns->fingerprint, NULL, 0),
                                 0);
        else
                remote_namespace_remove(rig.service.remote, id);
}

static void load(void *userdata, struct remote_put *put)
{
        remote_put_loaded(put, false);
}

static void purged(void *userdata, uint32_t namespace_id)
{
        remote_purged(rig.service.remote, namespace_id);
}

static struct quota_limits all_limits, user_limits;

static void open_quotas(void)
{
        char guest[] = "40003", *guests[] = { guest };
        struct quota_params params[] = { { .name = "default" },
                                         { .name = "guests",
                                           .access = { .users = guests, .n_users = 1 } } };
        struct quota_access admins = { 0 };
        char error[256];

        for (unsigned i = 0; i < QUOTA_THINGS; i++)
                all_limits.most[i] = user_limits.most[i] = QUOTA_NO_LIMIT;
        params[0].limits = params[1].limits = user_limits;
        all_limits.most[QUOTA_CONNECTIONS] = 64;
        assert_int_equal(quotas_new(&rig.service.quotas, params, ARRAY_SIZE(params), &admins,
                                    &all_limits, &user_limits, error),
                         0);
}

static void open_remote(void)
{
        struct remote_params params = {
                .ops = &fake_backend,
                .prefix = "kvcache",
                .write = REMOTE_WRITE_NEVER,
                .read_inflight = 8 * MIB,
                .write_inflight = 8 * MIB,
                .write_queue = 8 * MIB,
                .timeout_ns = TIERS_WAIT_MS * UINT64_C(1000000),
                .presence_ns = TIERS_WAIT_MS * UINT64_C(1000000),
                .absence_ns = TIERS_WAIT_MS * UINT64_C(1000000),
                .generation_interval_ns = TIERS_WAIT_MS * UINT64_C(1000000),
                .probe_rate = 1000,
                .state_path = rig.state,
                .load = load,
                .purged = purged,
        };
        char error[256];

        fake_reset();
        snprintf(rig.state, sizeof(rig.state), "%s/remote", rig.t.dir);
        if (remote_new(&rig.service.remote, &params, error) < 0)
                fail_msg("remote_new: %s", error);
        rig.remote_done = event_new(rig.base, remote_fd(rig.service.remote), EV_READ | EV_PERSIST,
                                    on_remote_done, NULL);
        event_add(rig.remote_done, NULL);
}

static struct pool *open_pool(void)
{
        struct pool *pool;
        uint64_t huge;

        assert_int_equal(pool_new(&pool, 16 * MIB, "lru"), 0);
        while (pool_next_slab(pool) >= 0) {
                uint64_t offset = (uint64_t)pool_next_slab(pool) * pool_slab_bytes(pool);

                assert_int_equal(pool_populate(pool, offset, pool_slab_bytes(pool), &huge), 0);
                assert_int_equal(pool_open_slab(pool, huge), 0);
        }
        return pool;
}

static void open_tenants(void)
{
        static const char *const names[] = { "default", "guests" };
        uint16_t numbers[ARRAY_SIZE(rig.tenants)];
        struct lookups_tenant looked_up[ARRAY_SIZE(rig.tenants)];
        char error[256];

        assert_int_equal(
                tenant_ids_assign(rig.t.store, rig.t.io, names, ARRAY_SIZE(names), numbers, error),
                0);
        rig.t.cache = cache_free(rig.t.cache); /* tenant_open() makes one */
        rig.tenants[0].pool = rig.t.pool;
        rig.tenants[1].pool = open_pool();
        for (unsigned i = 0; i < ARRAY_SIZE(rig.tenants); i++) {
                rig.tenants[i].number = i;
                rig.tenants[i].store_tenant = numbers[i];
                rig.tenants[i].pinned_limit = 64 * MIB;
                assert_int_equal(tenant_open(&rig.tenants[i], &rig.service,
                                             &(struct lease_limits){ .bytes_all = 8 * MIB }),
                                 0);
                assert_int_equal(request_init(&rig.tenants[i]), 0);
                looked_up[i] = (struct lookups_tenant){ .store_tenant = numbers[i],
                                                        .pool = rig.tenants[i].pool };
        }
        rig.t.cache = rig.tenants[0].cache;
        assert_int_equal(lookups_new(&rig.service.lookups,
                                     &(struct lookups_params){ .store = rig.t.store,
                                                               .io = rig.t.io,
                                                               .tenants = looked_up,
                                                               .n_tenants = ARRAY_SIZE(looked_up),
                                                               .available = plenty }),
                         0);
}

static void open_sources(void)
{
        struct keep_tenant kept[ARRAY_SIZE(rig.tenants)];

        for (unsigned i = 0; i < ARRAY_SIZE(kept); i++)
                kept[i] = (struct keep_tenant){ .name = tenant_name(&rig.tenants[i]),
                                                .pool = rig.tenants[i].pool,
                                                .store_tenant = rig.tenants[i].store_tenant,
                                                .kept = -1 };
        assert_int_equal(
                keep_new(&rig.keep, &(struct keep_params){ .base = rig.base,
                                                           .io = rig.t.io,
                                                           .store = rig.t.store,
                                                           .tenants = kept,
                                                           .n_tenants = ARRAY_SIZE(kept) }),
                0);
        config_init(&rig.config);
        rig.sources = (struct status_sources){
                .config = &rig.config,
                .service = &rig.service,
                .sessions = rig.sessions,
                .namespaces = &rig.namespaces,
                .started_unix_ms = clock_unix_ms(),
                .started_ns = clock_mono_ns(),
                .keep = rig.keep,
                .keep_ready = &rig.keep_ready,
                .keep_why_not = "it is a test",
                .ready = true,
                .instance = rig.instance,
        };
}

static void open_namespace_counts(void)
{
        struct namespace_limits limits = { .n_tenants = ARRAY_SIZE(rig.tenants) };

        for (unsigned i = 0; i < limits.n_tenants; i++)
                limits.tenants[i] = (struct namespace_tenant){ rig.tenants[i].store_tenant,
                                                               tenant_name(&rig.tenants[i]), 0 };
        assert_int_equal(
                namespace_counts_new(&rig.service.namespace_counts, rig.t.store, TENANT_IDS), 0);
        namespace_counts_set_limits(rig.service.namespace_counts, &limits);
}

static void setup(bool with_remote)
{
        struct sessions_params params = { .service = &rig.service, .handshake_ms = 600000 };
        char folder[300];

        memset(&rig, 0, sizeof(rig));
        log_set_level(LOG_LEVEL_ERROR);
        tiers_open(&rig.t);
        rig.base = event_base_new();
        rig.done = event_new(rig.base, kio_fd(rig.t.io), EV_READ | EV_PERSIST, on_done, NULL);
        rig.wait = evtimer_new(rig.base, on_wait, NULL);
        rig.guard = evtimer_new(rig.base, on_guard, NULL);
        event_add(rig.done, NULL);
        assert_int_equal(liveness_open(&rig.liveness), 0);
        rig.service = (struct service){
                .tenants = rig.tenants,
                .n_tenants = ARRAY_SIZE(rig.tenants),
                .store = rig.t.store,
                .io = rig.t.io,
                .pool_index = true,
                .generation_interval_ms = 10000,
                .staging_max = 16 * MIB,
                .wait_ms = TIERS_WAIT_MS,
                .report = status_report,
                .userdata = &rig.sources,
                .reload = reload,
                .namespace_changed = namespace_changed,
        };
        audit_init(&rig.service);
        open_quotas();
        assert_int_equal(admission_new(&rig.service.admission, 1024, 1, clock_mono_ns()), 0);
        if (with_remote)
                open_remote();
        open_tenants();
        open_namespace_counts();
        snprintf(folder, sizeof(folder), "%s/bench", rig.t.dir);
        assert_int_equal(bench_new(&rig.service.bench,
                                   &(struct bench_params){ .io = rig.t.io, .folder = folder }),
                         0);
        params.base = rig.base;
        params.liveness_fd = rig.liveness.handout_fd;
        assert_int_equal(sessions_new(&rig.sessions, &params), 0);
        open_sources();
        rig.fds = open_sockets_and_memfds();
}

int rig_setup(void **state)
{
        setup(false);
        return 0;
}

int rig_setup_remote(void **state)
{
        setup(true);
        return 0;
}

static bool is_busy(void)
{
        uint64_t pending = kio_pending(rig.t.io) + store_pending(rig.t.store);

        for (unsigned i = 0; i < ARRAY_SIZE(rig.tenants); i++)
                pending += cache_pending(rig.tenants[i].cache);
        return pending > 0 || !sessions_empty(rig.sessions);
}

static void remove_bench(void)
{
        char folder[300];

        snprintf(folder, sizeof(folder), "%s/bench", rig.t.dir);
        folder_empty(folder);
        assert_true(rmdir(folder) == 0 || errno == ENOENT);
}

static void assert_nothing_is_held(void)
{
        for (unsigned i = 0; i < ARRAY_SIZE(rig.tenants); i++) {
                struct quota_usage usage;
                struct pool_stats pool;

                quotas_get_usage(rig.service.quotas, i, &usage);
                pool_get_stats(rig.tenants[i].pool, &pool);
                for (unsigned k = 0; k < QUOTA_THINGS; k++)
                        assert_int_equal(usage.used[k], 0);
                assert_int_equal(pool.pinned_bytes, 0);
                assert_int_equal(pool.leased_bytes, 0);
        }
        assert_int_equal(open_sockets_and_memfds(), rig.fds);
}

int rig_teardown(void **state)
{
        fault_set(NULL);
        fault_release();
        sessions_stop(rig.sessions, NULL, NULL);
        if (rig.service.remote)
                remote_stop(rig.service.remote);
        while (is_busy())
                rig_turn(kio_pending(rig.t.io) > 0);
        assert_nothing_is_held();
        sessions_free(rig.sessions);
        keep_free(rig.keep);
        config_fini(&rig.config);
        bench_free(rig.service.bench);
        remove_bench();
        lookups_free(rig.service.lookups);
        for (unsigned i = 0; i < ARRAY_SIZE(rig.tenants); i++)
                request_fini(&rig.tenants[i]);
        tenant_close(&rig.tenants[1]);
        leases_free(rig.tenants[0].leases);
        lookup_counters_fini(&rig.tenants[0].lookup_counters);
        readers_fini(&rig.tenants[0].readers);
        pool_index_free(rig.tenants[0].pool_index);
        remote_free(rig.service.remote);
        namespace_counts_free(rig.service.namespace_counts);
        admission_free(rig.service.admission);
        quotas_free(rig.service.quotas);
        liveness_close(&rig.liveness);
        event_free(rig.done);
        event_free(rig.wait);
        event_free(rig.guard);
        if (rig.remote_done)
                event_free(rig.remote_done);
        tiers_remove(&rig.t);
        event_base_free(rig.base);
        return 0;
}

void rig_limit(enum quota_thing what, uint64_t user, uint64_t all)
{
        user_limits.most[what] = user;
        all_limits.most[what] = all;
        quotas_set_common_limits(rig.service.quotas, &all_limits, &user_limits);
}

uint64_t rig_used(enum quota_thing what)
{
        struct quota_usage usage;

        quotas_get_total(rig.service.quotas, &usage);
        return usage.used[what];
}

/* --- clients --- */

/* Returns the length of the next message, or 0 at the end of the stream. */
static ssize_t receive(struct peer_end *c, int *ret_fds, unsigned *ret_n_fds)
{
        for (;;) {
                ssize_t n = fdpass_recv(c->fd, in.bytes, sizeof(in), ret_fds, ret_n_fds);

                if (n != -EAGAIN)
                        return n;
                rig_turn(true);
        }
}

void send_message(struct peer_end *c, void *msg, size_t bytes)
{
        struct wire_hdr *hdr = msg;

        hdr->len = (uint32_t)bytes;
        hdr->tag = ++c->tag;
        assert_int_equal(fdpass_send(c->fd, msg, bytes, NULL, 0), 0);
}

const struct wire_reply *receive_reply(struct peer_end *c, enum wire_op op, int *ret_fds,
                                       unsigned *ret_n_fds)
{
        int fds[WIRE_MAX_FDS];
        unsigned n_fds = 0;

        assert_true(receive(c, fds, &n_fds) >= (ssize_t)sizeof(struct wire_reply));
        assert_int_equal(in.reply.hdr.op, op | WIRE_REPLY);
        for (unsigned i = 0; i < n_fds; i++) {
                if (ret_fds)
                        ret_fds[i] = fds[i];
                else
                        close(fds[i]);
        }
        if (ret_n_fds)
                *ret_n_fds = n_fds;
        return &in.reply;
}

const struct wire_reply *call(struct peer_end *c, void *msg, size_t bytes)
{
        send_message(c, msg, bytes);
        return receive_reply(c, (enum wire_op)((struct wire_hdr *)msg)->op, NULL, NULL);
}

const struct wire_reply *call_for_fd(struct peer_end *c, void *msg, size_t bytes, int *ret_fd)
{
        int fds[WIRE_MAX_FDS] = { -1 };
        unsigned n_fds;

        send_message(c, msg, bytes);
        receive_reply(c, (enum wire_op)((struct wire_hdr *)msg)->op, fds, &n_fds);
        if (in.reply.status != WIRE_OK)
                fail_msg("status %u: %.*s", in.reply.status,
                         (int)(in.reply.hdr.len - sizeof(in.reply)), (char *)(&in.reply + 1));
        assert_int_equal(n_fds, 1);
        *ret_fd = fds[0];
        return &in.reply;
}

void assert_ended(struct peer_end *c)
{
        int fds[WIRE_MAX_FDS];
        unsigned n_fds;

        assert_int_equal(receive(c, fds, &n_fds), 0);
}

void assert_says(const struct wire_reply *reply, enum wire_status status, const char *words)
{
        char text[WIRE_MAX_TEXT + 1] = "";

        memcpy(text, reply + 1, MIN(reply->hdr.len - sizeof(*reply), sizeof(text) - 1));
        assert_int_equal(reply->status, status);
        assert_int_equal(reply->count, 0);
        if (!strstr(text, words))
                fail_msg("\"%s\" does not contain \"%s\"", text, words);
}

char *call_for_text(struct peer_end *c, void *msg, size_t bytes)
{
        int fd;
        size_t n = call_for_fd(c, msg, bytes, &fd)->value64;
        char *text = calloc(1, n + 1);

        assert_non_null(text);
        assert_int_equal(fcntl(fd, F_GET_SEALS),
                         F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
        assert_int_equal(pread(fd, text, n, 0), n);
        close(fd);
        return text;
}

void connect_as(struct peer_end *c, uid_t uid)
{
        struct wire_hello msg = { .hdr.op = WIRE_HELLO,
                                  .magic = WIRE_MAGIC,
                                  .version_min = 1,
                                  .version_max = 1,
                                  .client = "test" };
        int pair[2];

        *c = (struct peer_end){ 0 };
        assert_int_equal(
                socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
        c->fd = pair[0];
        next_uid = uid;
        sessions_accept_take_fd(rig.sessions, pair[1]);
        assert_int_equal(call(c, &msg, sizeof(msg))->status, WIRE_OK);
}

void hang_up(struct peer_end *c)
{
        close(c->fd);
        if (c->staging)
                munmap(c->staging, STAGING);
        *c = (struct peer_end){ .fd = -1 };
}

struct key key_of(uint32_t n)
{
        struct key k = { { 1 } };

        memcpy(k.bytes + 4, &n, sizeof(n));
        return k;
}

const struct wire_reply *open_namespace(struct peer_end *c, const char *name,
                                        const char *fingerprint, unsigned flags,
                                        uint32_t lifetime_s)
{
        struct {
                struct wire_namespace head;
                char text[WIRE_MAX_NAME + WIRE_MAX_FINGERPRINT];
        } msg = { .head = { .hdr = { .op = WIRE_NAMESPACE, .flags = (uint16_t)flags },
                            .name_length = (uint16_t)strlen(name),
                            .fingerprint_length = (uint16_t)strlen(fingerprint),
                            .lifetime_s = lifetime_s } };

        memcpy(msg.text, name, strlen(name));
        memcpy(msg.text + strlen(name), fingerprint, strlen(fingerprint));
        return call(c, &msg, sizeof(msg.head) + strlen(name) + strlen(fingerprint));
}

void enter(struct peer_end *c, const char *name)
{
        struct wire_staging msg = { .hdr.op = WIRE_STAGING, .bytes = STAGING };
        int fd;

        assert_int_equal(open_namespace(c, name, "", 0, 0)->status, WIRE_OK);
        c->ns = in.reply.value;
        if (c->staging)
                return;
        call_for_fd(c, &msg, sizeof(msg), &fd);
        c->staging = mmap(NULL, STAGING, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        assert_ptr_not_equal(c->staging, MAP_FAILED);
        close(fd);
}

struct wire_batch *batch(struct peer_end *c, enum wire_op op, unsigned flags, uint16_t count)
{
        struct wire_batch *b = (struct wire_batch *)out.bytes;

        *b = (struct wire_batch){
                .hdr = { .len = (uint32_t)(sizeof(*b) + count * wire_entry_bytes(op)),
                         .op = op,
                         .flags = (uint16_t)flags },
                .namespace_id = c->ns,
                .count = count,
        };
        memset(b + 1, 0, count * wire_entry_bytes(op));
        return b;
}

struct wire_batch *batch_of_keys(struct peer_end *c, enum wire_op op, unsigned flags, uint32_t n,
                                 uint16_t count)
{
        struct wire_batch *b = batch(c, op, flags, count);

        for (unsigned i = 0; i < count; i++) {
                struct key key = key_of(n + i);

                memcpy((uint8_t *)(b + 1) + i * wire_entry_bytes(op), &key, sizeof(key));
        }
        return b;
}

const struct wire_reply *call_batch(struct peer_end *c)
{
        return call(c, out.bytes, ((struct wire_hdr *)out.bytes)->len);
}

enum wire_status put(struct peer_end *c, uint32_t n, enum wire_ack ack)
{
        struct wire_batch *b = batch(c, WIRE_PUT, 0, 1);

        memset(c->staging, (int)n, LENGTH);
        b->ack = (uint8_t)ack;
        *(struct wire_put *)(b + 1) = (struct wire_put){ .key = key_of(n), .length = LENGTH };
        if (call_batch(c)->status != WIRE_OK)
                return in.reply.status;
        return ((struct wire_put_result *)(&in.reply + 1))->status;
}

struct wire_get_result get(struct peer_end *c, uint32_t n)
{
        batch_of_keys(c, WIRE_GET, 0, n, 1);
        assert_int_equal(call_batch(c)->status, WIRE_OK);
        return *(struct wire_get_result *)(&in.reply + 1);
}

void put_on_shared_tier(const char *name, uint32_t n, uint32_t length)
{
        const struct store_namespace *ns =
                store_namespace_find(rig.t.store, 0, name, (uint16_t)strlen(name));
        struct key key = key_of(n);

        request_shared_put(rig.service.remote, ns->id, &key, n, length);
}
