/* SPDX-License-Identifier: Apache-2.0 */
/* The session state machine: four clients of a daemon's core over a store in memory send anything
 * in any order: half a greeting, messages before and after it, unexpected descriptors, an end in
 * the middle. After all have closed, nothing is held: no lease, staging area, byte, descriptor or
 * request. The lookup index and the events match the stored chunks, and no chunk waits for a client
 * of the pool index.
 *
 * libFuzzer runs it; the test is both the loop and the clients. The input is a list of actions: a
 * byte for the kind and the client, and then the arguments. The store survives from one input to
 * the next. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "benchmark/benchmark.h"
#include "base/log.h"
#include "checked.h"
#include "events/events.h"
#include "fdpass.h"
#include "inline-clock.h"
#include "inline-io.h"
#include "lookup/index.h"
#include "lookup/pool-index.h"
#include "lookup.h"
#include "io/liveness.h"
#include "request/audit.h"
#include "request/hits.h"
#include "request/memory.h"
#include "session/session.h"
#include "tiers.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
        REGION = 256 << 10,
        MIB = 1 << 20,
        CLIENTS = 4,
        STAGING = 1 << 20,
        FDS = 64,
        TURNS = 10000,
        KEYS = 32
};

static struct tiers t;
static struct {
        struct event_base *base;
        struct liveness liveness;
        struct leases *leases;
        struct quotas *quotas;
        struct namespace_counts *namespace_counts;
        struct service service;
        struct tenant tenant;
        struct sessions *sessions;
} d;
static int clients[CLIENTS];
/* Files that clients register; they may be truncated. The last one is on a disk, if there is one
 * that supports puts from files. */
static int sealed_fd = -1, file_fd = -1, disk_fd = -1;
static dev_t store_device;
static bool resumed;
static struct wire_lease last_lease;
static struct pool_page *page; /* page of a client that has the pool index; NULL: none has */
static const uint8_t *input;
static size_t left;

/* --- the daemon's side --- */

static int reload(void *userdata, FILE *out)
{
        fputs("{}", out);
        return 0;
}

static void report(void *userdata, const struct client *client, enum wire_report what, FILE *out)
{
        fputs("report", out);
}

/* Ends an iteration as server.c does. */
static void turn(void)
{
        event_base_loop(d.base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
        kio_reap(t.io);
        store_iterate(t.store);
        sessions_iterate(d.sessions);
        cache_sweep(t.cache);
        cache_iterate(t.cache, clock_mono_ns());
        store_iterate(t.store);
        if (d.service.lookups)
                lookups_iterate(d.service.lookups, clock_mono_ns(), 0);
        (void)events_iterate(d.service.events, clock_mono_ns(), &(uint64_t){ 0 });
        (void)hits_retry_ns(&d.service, clock_mono_ns());
        (void)hits_iterate(&d.service, clock_mono_ns());
        sessions_end_revoked(d.sessions);
        kio_flush(t.io);
}

static bool is_idle(void)
{
        return sessions_empty(d.sessions) && cache_pending(t.cache) == 0 &&
               kio_pending(t.io) == 0 && store_pending(t.store) == 0;
}

/* Sockets and memory files, which have low numbers; not the store's own files. */
static unsigned open_fds(void)
{
        unsigned n = 0;
        struct stat st;

        for (int fd = 0; fd < FDS; fd++)
                n += fstat(fd, &st) == 0 &&
                     (S_ISSOCK(st.st_mode) || (S_ISREG(st.st_mode) && st.st_dev != store_device));
        return n;
}

static void on_resumed(struct store_device *req)
{
        resumed = true;
}

/* Resumes the store, which errors may have bypassed, for the next input. */
static void resume_store(void)
{
        struct store_device req = { .complete = on_resumed };

        if (store_volumes_up(t.store) > 0)
                return;
        resumed = false;
        store_resume(t.store, &req);
        for (unsigned turns = 0; !resumed || !is_idle(); turns++) {
                assert(turns < TURNS);
                turn();
        }
        assert(req.result == 0 && store_volumes_up(t.store) == 1);
}

/* --- the lookup index: what it says is what can be found --- */

static void on_lookup(struct lookup_wait *wait)
{
}

/* Makes the lookup index if an error has prevented it. */
static void make_lookups(void)
{
        struct lookup_wait wait = { .complete = on_lookup };
        struct lookups_stats stats;
        unsigned turns = 0;

        list_init(&wait.node);
        (void)lookups_ask(d.service.lookups, 0, &wait);
        do {
                assert(turns++ < TURNS);
                inline_clock_advance_ms(1); /* a failed build is repeated after a second */
                turn();
                lookups_get_stats(d.service.lookups, &stats);
        } while (stats.tables == 0 || stats.building > 0);
}

/* Names of the test's namespaces. A name may have been removed, and opened again with another
 * number. */
static const char namespace_names[] = "abcd";

static const struct store_namespace *find_namespace(char letter)
{
        return store_namespace_find(t.store, TENANT_DEFAULT, &letter, 1);
}

static void check_lookups(void)
{
        struct lookup_view view;
        uint64_t bytes;
        int fd = lookups_fd(d.service.lookups, 0, &bytes);
        void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);

        assert(fd >= 0 && map != MAP_FAILED);
        assert(lookup_view_init(&view, map, bytes));
        for (const char *name = namespace_names; *name != '\0'; name++) {
                const struct store_namespace *ns = find_namespace(*name);
                struct key_secret secret;

                lookup_namespace_secret(&view.secret, name, 1, &secret);
                for (unsigned k = 0; k < KEYS; k++) {
                        struct key key = { .bytes = { 1, (uint8_t)k } };
                        unsigned truth = 0;

                        if (ns)
                                truth = cache_find(t.cache, ns->id, &key,
                                                   cache_hash(t.cache, ns->id, &key), NULL, NULL);
                        assert(lookup_find(&view, lookup_hash(&secret, &key)) == truth);
                }
        }
        munmap(map, bytes);
}

/* --- the events: an index that is built from them says what can be found --- */

enum { EVENT_RING = 64 * 64, SEEN = 64 };

/* A namespace as the events describe it. */
struct seen {
        uint32_t number; /* 0: unused */
        char letter;     /* 0: not one of the test's, or removed since */
        uint8_t tiers[KEYS];
};
static struct seen seen[SEEN];
static uint64_t seen_epoch, seen_next;
static struct events_reply events_reply;

static struct seen *seen_of(uint32_t number)
{
        struct seen *unused = NULL;

        for (unsigned i = 0; i < SEEN; i++) {
                if (seen[i].number == number)
                        return &seen[i];
                if (seen[i].number == 0)
                        unused = &seen[i];
        }
        assert(unused);
        unused->number = number;
        return unused;
}

static void apply(const struct wire_event *e)
{
        struct seen *s = seen_of(e->namespace_number);

        if (e->kind == WIRE_EVENT_NAMESPACE_REMOVED) {
                *s = (struct seen){ 0 };
                return;
        }
        assert(e->tier == WIRE_TIER_MEMORY || e->tier == WIRE_TIER_DISK);
        if (e->key.bytes[0] != 1 || e->key.bytes[1] >= KEYS)
                return;
        for (unsigned i = 2; i < sizeof(e->key.bytes); i++)
                if (e->key.bytes[i] != 0)
                        return;
        if (e->kind == WIRE_EVENT_STORED)
                s->tiers[e->key.bytes[1]] |= e->tier;
        else
                s->tiers[e->key.bytes[1]] &= (uint8_t)~e->tier;
}

static void apply_reply(void)
{
        const uint8_t *at = events_reply.body + sizeof(struct wire_events_result);
        const uint8_t *end = events_reply.body + events_reply.bytes;

        for (unsigned i = 0; i < events_reply.head.count; i++, at += sizeof(struct wire_event))
                apply((const struct wire_event *)at);
        for (unsigned i = 0; i < events_reply.head.value; i++) {
                struct wire_event_name name;

                memcpy(&name, at, sizeof(name));
                if (name.name_length == 1)
                        seen_of(name.namespace_number)->letter = (char)at[sizeof(name)];
                at += round_up(sizeof(name) + name.name_length, 8);
        }
        assert(at == end);
}

static void take_snapshot(void)
{
        uint64_t cursor = 0;

        memset(seen, 0, sizeof(seen));
        do {
                events_snapshot(d.service.events, 0, cursor, 100, &events_reply);
                apply_reply();
                cursor = events_reply.head.value64;
        } while (cursor != 0);
}

static void check_events(void)
{
        struct wire_events_result head;

        do {
                events_read(d.service.events, 0, seen_epoch, seen_next, 100, &events_reply);
                memcpy(&head, events_reply.body, sizeof(head));
                seen_epoch = head.epoch;
                seen_next = events_reply.head.value64;
                if (head.flags & WIRE_EVENTS_GAP)
                        take_snapshot();
                else
                        apply_reply();
        } while (seen_next != head.next);
        for (const char *name = namespace_names; *name != '\0'; name++) {
                const struct store_namespace *ns = find_namespace(*name);

                for (unsigned k = 0; ns && k < KEYS; k++) {
                        struct key key = { .bytes = { 1, (uint8_t)k } };
                        unsigned truth = cache_find(t.cache, ns->id, &key,
                                                    cache_hash(t.cache, ns->id, &key), NULL, NULL);
                        unsigned said = 0;

                        for (unsigned i = 0; i < SEEN; i++)
                                if (seen[i].number != 0 && seen[i].letter == *name)
                                        said |= seen[i].tiers[k];
                        assert(said == truth);
                }
        }
}

/* The index is made for the first client, and keeps its descriptor. */
static void make_pool_index(void)
{
        struct pool_client client = { 0 };
        int fd, page_fd, r = pool_index_new(&d.tenant.pool_index, t.pool, NULL);
        uint64_t bytes;

        assert(r == 0);
        r = pool_index_join(d.tenant.pool_index, &client, 0, 4 * MIB, &fd, &bytes, &page_fd);
        assert(r == 0);
        close(page_fd);
        pool_index_leave(&client);
}

static void start(void)
{
        struct quota_params only = { .name = "default" };
        struct quota_access admins = { 0 };
        struct quota_limits all, none = { 0 };
        struct sessions_params params = { .service = &d.service, .handshake_ms = 60000 };
        char error[256];
        struct stat st;
        int r;

        for (unsigned i = 0; i < QUOTA_THINGS; i++)
                none.most[i] = QUOTA_NO_LIMIT;
        all = only.limits = none;
        all.most[QUOTA_CONNECTIONS] = 16;
        all.most[QUOTA_STAGING_BYTES] = 16 * MIB;
        all.most[QUOTA_REGISTERED_BYTES] = 4 * REGION;
        log_set_level(LOG_LEVEL_ERROR);
        setenv("TMPDIR", "/dev/shm", 1);
        t = (struct tiers){ .limit = 32 * MIB, .pool_bytes = 8 * MIB };
        tiers_open(&t);
        assert(stat(t.dir, &st) == 0);
        store_device = st.st_dev;
        d.base = event_base_new();
        r = liveness_open(&d.liveness);
        assert(r == 0);
        r = leases_new(&d.leases, t.pool, 256, &(struct lease_limits){ .bytes_all = 4 * MIB });
        assert(r == 0);
        r = quotas_new(&d.quotas, &only, 1, &admins, &all, &none, error);
        assert(r == 0);
        r = namespace_counts_new(&d.namespace_counts, t.store, UINT16_MAX);
        assert(r == 0);
        d.tenant = (struct tenant){
                .service = &d.service,
                .cache = t.cache,
                .pool = t.pool,
                .leases = d.leases,
        };
        r = request_init(&d.tenant);
        assert(r == 0);
        d.service = (struct service){
                .tenants = &d.tenant,
                .n_tenants = 1,
                .store = t.store,
                .io = t.io,
                .quotas = d.quotas,
                .namespace_counts = d.namespace_counts,
                .staging_max = 4 * MIB,
                .gds = SERVICE_GDS_ON,
                .gds_puts = SERVICE_GDS_ON,
                .wait_ms = 20,
                .report = report,
                .reload = reload,
        };
        audit_init(&d.service);
        r = lookups_new(&d.service.lookups,
                        &(struct lookups_params){
                                .store = t.store,
                                .io = t.io,
                                .tenants = &(struct lookups_tenant){ .pool = t.pool },
                                .n_tenants = 1,
                                .min_buckets = 8,
                        });
        assert(r == 0);
        r = events_new(&d.service.events,
                       &(struct events_params){
                               .store = t.store,
                               .tenants = &(struct events_tenant){ .pool = t.pool },
                               .n_tenants = 1,
                               .ring_bytes = EVENT_RING,
                       });
        assert(r == 0);
        make_pool_index();
        r = bench_new(&d.service.bench, &(struct bench_params){ .io = t.io });
        assert(r == 0);
        params.base = d.base;
        params.liveness_fd = d.liveness.handout_fd;
        r = sessions_new(&d.sessions, &params);
        assert(r == 0);
        make_lookups();
        for (unsigned i = 0; i < CLIENTS; i++)
                clients[i] = -1;
        sealed_fd = memfd_create("registered", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        file_fd = open("/dev/shm", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
        disk_fd = open("/var/tmp", O_RDWR | O_TMPFILE | O_DIRECT | O_CLOEXEC, 0600);
        if (disk_fd < 0 || fallocate(disk_fd, 0, 0, REGION) < 0)
                disk_fd = file_fd;
        assert(sealed_fd >= 0 && file_fd >= 0);
        if (fallocate(sealed_fd, 0, 0, REGION) < 0 ||
            fcntl(sealed_fd, F_ADD_SEALS, F_SEAL_SHRINK) < 0)
                abort();
}

/* The store's folder is in memory, and would stay there. */
static void clean_up(void)
{
        lookups_stop(d.service.lookups);
        d.service.lookups = lookups_free(d.service.lookups);
        events_stop(d.service.events);
        d.service.events = events_free(d.service.events);
        bench_free(d.service.bench);
        d.tenant.pool_index = pool_index_free(d.tenant.pool_index);
        readers_fini(&d.tenant.readers);
        tiers_remove(&t);
}

/* --- the clients' side --- */

static uint32_t take(unsigned bytes)
{
        uint32_t x = 0;

        for (unsigned i = 0; i < bytes && left > 0; i++, left--)
                x = x << 8 | *input++;
        return x;
}

static void connect_client(int *fd)
{
        int pair[2];

        if (*fd >= 0 ||
            socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
                return;
        *fd = pair[0];
        sessions_accept_take_fd(d.sessions, pair[1]);
}

static void hang_up(int *fd)
{
        if (*fd >= 0)
                close(*fd);
        *fd = -1;
}

static void unmap_page(void)
{
        if (page)
                munmap(page, POOL_PAGE_BYTES);
        page = NULL;
}

static void map_page(int fd)
{
        void *map = mmap(NULL, POOL_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

        unmap_page();
        if (map != MAP_FAILED)
                page = map;
}

/* Reads what has come; remembers a lease, and a page. */
static void listen_to(int fd)
{
        static union {
                struct wire_reply reply;
                uint8_t bytes[WIRE_MAX_MESSAGE];
        } in;
        int fds[WIRE_MAX_FDS];
        unsigned n_fds;
        ssize_t n;

        while (fd >= 0 && (n = fdpass_recv(fd, in.bytes, sizeof(in), fds, &n_fds)) > 0) {
                const struct wire_get_result *result = (const void *)(&in.reply + 1);

                assert(n >= (ssize_t)sizeof(in.reply) && in.reply.hdr.len == (size_t)n);
                assert(in.reply.hdr.op & WIRE_REPLY && in.reply.status < WIRE_STATUS_END);
                if (in.reply.hdr.op == (WIRE_GET | WIRE_REPLY) && in.reply.count > 0 &&
                    result->flags & WIRE_RESULT_LEASED)
                        last_lease = result->lease;
                if (in.reply.hdr.op == (WIRE_POOL_INDEX | WIRE_REPLY) && n_fds == 2)
                        map_page(fds[1]);
                for (unsigned i = 0; i < n_fds; i++)
                        close(fds[i]);
        }
}

static void say_with(int fd, const void *msg, size_t n, int with)
{
        if (fd >= 0)
                fdpass_send(fd, msg, n, &with, with >= 0 ? 1 : 0);
}

static void say(int fd, const void *msg, size_t n, bool with_fd)
{
        say_with(fd, msg, n, with_fd ? d.liveness.handout_fd : -1);
}

static void say_hello(int fd)
{
        struct wire_hello msg = {
                .hdr = { .len = sizeof(msg), .op = WIRE_HELLO },
                .magic = WIRE_MAGIC,
                .version_min = 1,
                .version_max = 1,
                .client = "fuzz",
        };

        say(fd, &msg, sizeof(msg), false);
}

static void say_namespace_and_staging(int fd)
{
        struct {
                struct wire_namespace head;
                char name[1];
        } ns = { .head = { .hdr = { .len = 33, .op = WIRE_NAMESPACE }, .name_length = 1 },
                 .name = "a" };
        struct wire_staging staging = { .hdr = { .len = sizeof(staging), .op = WIRE_STAGING },
                                        .bytes = STAGING };

        say(fd, &ns, 33, false);
        say(fd, &staging, sizeof(staging), false);
}

static void say_register(int fd)
{
        uint32_t x = take(1);
        struct wire_register msg = {
                .hdr = { .len = sizeof(msg),
                         .op = WIRE_REGISTER,
                         .flags = x & 32 ? WIRE_F_FILE : 0 },
                .offset = (uint64_t)(x & 3) << 12,
                .bytes = x & 4 ? take(3) : REGION / 2,
        };

        say_with(fd, &msg, sizeof(msg),
                 x & 8    ? d.liveness.handout_fd
                 : x & 16 ? file_fd
                 : x & 32 ? disk_fd
                          : sealed_fd);
}

static void say_unregister(int fd)
{
        struct wire_unregister msg = { .hdr = { .len = sizeof(msg), .op = WIRE_UNREGISTER },
                                       .region = take(1) & 7 };

        say(fd, &msg, sizeof(msg), false);
}

/* Sends requests about namespaces with names of one letter, so that all clients open, list and
 * remove the same ones. */
static void say_of_namespaces(int fd)
{
        uint32_t x = take(1);
        struct {
                union {
                        struct wire_namespace open;
                        struct wire_namespaces list;
                        struct wire_namespace_remove remove;
                } head;
                char name[2];
        } msg = { 0 };
        size_t head;

        if (x % 3 == 0) {
                head = sizeof(msg.head.open);
                msg.head.open.hdr.op = WIRE_NAMESPACE;
                msg.head.open.hdr.flags = x & 128 ? WIRE_F_SET : 0;
                msg.head.open.lifetime_s = x & 64 ? 1 : 0;
                msg.head.open.name_length = 1;
        } else if (x % 3 == 1) {
                head = sizeof(msg.head.list);
                msg.head.list.hdr.op = WIRE_NAMESPACES;
                msg.head.list.max = 1;
                msg.head.list.name_length = 1;
        } else {
                head = sizeof(msg.head.remove);
                msg.head.remove.hdr.op = WIRE_NAMESPACE_REMOVE;
                msg.head.remove.hdr.flags = x & 128 ? WIRE_F_PURGE : 0;
                msg.head.remove.name_length = 1;
        }
        msg.head.open.hdr.len = (uint32_t)head + 1;
        ((char *)&msg)[head] = namespace_names[(x >> 2) % 4];
        say(fd, &msg, head + 1, false);
}

static void say_events(int fd, uint32_t x)
{
        struct wire_events msg = { .hdr = { .len = sizeof(msg), .op = WIRE_EVENTS },
                                   .from = x & 32 ? take(2) : seen_next,
                                   .max = (uint16_t)(1 + (x & 128 ? take(1) : 100)) };

        if (x & 64) {
                msg.kind = WIRE_EVENTS_SNAPSHOT;
                msg.from <<= x & 1 ? 48 : 0;
        } else {
                msg.epoch = seen_epoch;
                msg.wait_ms = x & 16 ? 1 : 10000;
        }
        say(fd, &msg, sizeof(msg), false);
}

static void say_lookup(int fd)
{
        uint32_t x = take(1);
        struct wire_hdr msg = { .len = sizeof(msg),
                                .op = x & 4   ? WIRE_POOL_INDEX
                                      : x & 2 ? WIRE_TRANSFERS
                                              : WIRE_LOOKUP,
                                .flags = (x & 7) == 1 ? WIRE_F_TALLY : 0 };

        if (x & 8) {
                say_events(fd, x);
                return;
        }
        say(fd, &msg, sizeof(msg), false);
}

/* Overwrites a word of the page that was passed last, or holds one of the first chunks. */
static void scribble(void)
{
        uint32_t x = take(2), value = take(2);

        if (!page)
                return;
        if (x & 0x8000) {
                page->used[0] |= 0xffff;
                page->holds[value >> 12][x & 7] = pool_page_hold(value >> 12, value & 0xfff);
        } else {
                ((uint64_t *)page)[x % (POOL_PAGE_BYTES / sizeof(uint64_t))] =
                        x & 0x4000 ? value : ~(uint64_t)value;
        }
}

/* Cancels a batch, if the tag matches one. */
static void say_cancel(int fd)
{
        struct wire_cancel msg = { .hdr = { .len = sizeof(msg), .op = WIRE_CANCEL },
                                   .tag = take(1) & 1 };

        say(fd, &msg, sizeof(msg), false);
}

static void say_lent_file(int fd)
{
        struct wire_lent_file msg = { .hdr = { .len = sizeof(msg), .op = WIRE_LENT_FILE },
                                      .file = take(1) & 3 };

        say(fd, &msg, sizeof(msg), false);
}

static void say_record(int fd)
{
        struct wire_record msg = { .hdr = { .len = sizeof(msg), .op = WIRE_RECORD },
                                   .duration_s = 1 + take(1) };

        say(fd, &msg, sizeof(msg), false);
}

static void say_reload(int fd)
{
        struct wire_hdr msg = { .len = sizeof(msg), .op = WIRE_RELOAD };

        say(fd, &msg, sizeof(msg), false);
}

static void say_bench(int fd)
{
        uint32_t x = take(1);
        struct {
                struct wire_bench head;
                char name[4];
        } msg = { .head = { .hdr = { .op = WIRE_BENCH },
                            .action = (uint8_t)(1 + x % 7),
                            .name_length = (uint8_t)(x >> 6) } };

        if (msg.head.action == WIRE_BENCH_INIT)
                msg.head.options = (uint16_t)(x >> 3 & 3);
        for (unsigned i = 0; i < msg.head.name_length; i++)
                msg.name[i] = (char)('a' + (take(1) & 31));
        msg.head.hdr.len = (uint32_t)sizeof(msg.head) + msg.head.name_length;
        say(fd, &msg, msg.head.hdr.len, false);
}

/* Sends a batch, valid as far as the input allows. */
static void say_batch(int fd)
{
        const struct store_namespace *ns = find_namespace('a');
        static const uint16_t ops[] = { WIRE_PUT,      WIRE_GET,       WIRE_RELEASE, WIRE_EXISTS,
                                        WIRE_MATCH,    WIRE_TOUCH,     WIRE_EVICT,   WIRE_STAT,
                                        WIRE_PREFETCH, WIRE_GIVE_BACK, WIRE_HINT };
        static struct {
                struct wire_batch head;
                uint8_t bytes[32 * 64];
        } msg;
        uint32_t x = take(1), flags = take(1), n = take(1) % 8, at = 0;

        memset(&msg, 0, sizeof(msg));
        msg.head.hdr.op = ops[x % ARRAY_SIZE(ops)];
        msg.head.hdr.flags = (uint16_t)(flags & 15);
        msg.head.namespace_id = (ns ? ns->id : t.ns) + (flags >> 7);
        msg.head.count = (uint16_t)(msg.head.hdr.op == WIRE_RELEASE ? 0 : n + 1);
        msg.head.timeout_ms = flags >> 4 & 1 ? 1 : 0;
        if (msg.head.hdr.op == WIRE_PUT)
                msg.head.ack = (uint8_t)(x >> 4) % 3;
        if (msg.head.hdr.op == WIRE_PUT && flags >> 6 & 1)
                msg.head.expects = (uint8_t)(x | 16);
        if (msg.head.hdr.op == WIRE_HINT) {
                msg.head.hint = (uint8_t)(1 + (x >> 4 & 3) + (flags >> 5 & 1 ? 4 : 0));
                msg.head.return_s = msg.head.hint == WIRE_HINT_RETURN ? 1u << (x >> 6) : 0;
        }
        if (msg.head.hdr.op == WIRE_EVICT)
                msg.head.tiers = x >> 4 & 1 ? WIRE_TIER_ALL : WIRE_TIER_MEMORY;
        for (unsigned i = 0; i < msg.head.count; i++) {
                struct wire_put *put = (void *)(msg.bytes + at);
                struct wire_get *get = (void *)(msg.bytes + at);
                uint32_t k = take(1), region = k >> 6;

                if (msg.head.hdr.op == WIRE_GIVE_BACK) {
                        struct wire_lease loan = { .id = k & 3, .generation = k >> 2 };

                        memcpy(msg.bytes + at, &loan, sizeof(loan));
                        at += sizeof(loan);
                        continue;
                }
                put->key.bytes[0] = 1;
                put->key.bytes[1] = (uint8_t)(k % KEYS);
                if (msg.head.hdr.op == WIRE_PUT) {
                        put->offset = (uint64_t)take(1) << 12;
                        put->length = take(3);
                        put->region = region;
                        at += sizeof(*put);
                } else if (msg.head.hdr.op == WIRE_GET) {
                        if (flags & WIRE_F_INTO) {
                                get->into_offset = (uint64_t)take(1) << 12;
                                get->into_length = take(3);
                                get->into_region = region;
                        }
                        if (k & 32)
                                get->range_offset = take(2);
                        else if (k & 16 && !(flags & WIRE_F_INTO))
                                msg.head.hdr.flags |= WIRE_F_LEND;
                        at += sizeof(*get);
                } else {
                        at += sizeof(struct key);
                }
        }
        /* Uses the same bytes as above as the first piece and the number of pieces. */
        if (flags & 64 && !(flags & 32)) {
                uint32_t pieces = take(1) % 16;

                msg.head.hdr.flags |= WIRE_F_PIECES;
                msg.head.pieces = (uint16_t)pieces;
                for (unsigned i = 0; i < msg.head.count; i++) {
                        struct wire_put *put = (void *)(msg.bytes + i * sizeof(*put));
                        struct wire_get *get = (void *)(msg.bytes + i * sizeof(*get));

                        if (msg.head.hdr.op == WIRE_PUT) {
                                put->offset >>= 12;
                                put->region++;
                        } else if (msg.head.hdr.op == WIRE_GET) {
                                get->into_offset >>= 12;
                                get->into_region++;
                        }
                }
                for (unsigned i = 0; i < pieces; i++) {
                        struct wire_piece piece = { .region = take(1) & 3 };

                        piece.offset = (uint64_t)take(2) << 4;
                        piece.length = take(2);
                        memcpy(msg.bytes + at, &piece, sizeof(piece));
                        at += sizeof(piece);
                }
        }
        if (flags & 32 || msg.head.hdr.op == WIRE_RELEASE) {
                struct wire_lease lease = last_lease;

                msg.head.releases = 1;
                lease.generation += flags & 64 ? 1 : 0;
                memcpy(msg.bytes + at, &lease, sizeof(lease));
                at += sizeof(lease);
        }
        msg.head.hdr.len = (uint32_t)sizeof(msg.head) + at;
        say(fd, &msg, msg.head.hdr.len, false);
}

/* Sends any bytes, mostly with the right length at the beginning. */
static void say_bytes(int fd, bool with_fd)
{
        static union {
                struct wire_hdr hdr;
                uint8_t bytes[4096];
        } msg;
        uint32_t n = take(2) % sizeof(msg);

        n = (uint32_t)MIN((size_t)n, left);
        memset(&msg, 0, sizeof(msg));
        memcpy(msg.bytes, input, n);
        input += n;
        left -= n;
        if (n < sizeof(msg.hdr))
                n = sizeof(msg.hdr);
        if (msg.bytes[3] == 0)
                msg.hdr.len = n;
        say(fd, &msg, n, with_fd);
}

static void resize_file(off_t bytes)
{
        if (ftruncate(file_fd, bytes) < 0 || (bytes > 0 && fallocate(file_fd, 0, 0, bytes) < 0))
                abort();
}

/* Makes I/O late, reordered or failing. */
static void plan_io(void)
{
        static const int errors[] = { -EIO, -ENOSPC, -ENOMEM, -ETIMEDOUT };
        uint32_t x = take(2);

        inline_io_set(&(struct inline_io_plan){
                .at_once = x & 7,
                .newest_first = x & 8,
                .fail_in = x >> 4 & 15,
                .fail_ops = x >> 8 & 15,
                .error = errors[x >> 12 & 3],
        });
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static unsigned fds;
        struct quota_usage usage;
        struct pool_index_stats index;
        struct pool_stats pool;

        if (!d.base) {
                start();
                fds = open_fds();
                atexit(clean_up);
        }
        input = data;
        left = size;
        resize_file(REGION);
        last_lease = (struct wire_lease){ 0 };
        for (unsigned steps = 0; left > 0 && steps < 256; steps++) {
                uint32_t x = take(1);
                int *fd = &clients[x >> 3 & 3];

                switch (x & 7) {
                case 0:
                        if (*fd < 0) {
                                connect_client(fd);
                                if (!(x & 64))
                                        say_hello(*fd);
                                if (x & 32)
                                        say_namespace_and_staging(*fd);
                        } else {
                                say_hello(*fd);
                        }
                        break;
                case 1:
                        if ((x & 224) == 224)
                                say_record(*fd);
                        else if ((x & 192) == 192)
                                say_bench(*fd);
                        else if (x & 128)
                                say_of_namespaces(*fd);
                        else
                                hang_up(fd);
                        break;
                case 2:
                        if ((x & 224) == 224)
                                scribble();
                        else if ((x & 192) == 192)
                                say_reload(*fd);
                        else if (*fd >= 0)
                                shutdown(*fd, x & 32 ? SHUT_WR : SHUT_RD);
                        break;
                case 3:
                        say_bytes(*fd, x & 32);
                        break;
                case 4:
                case 5:
                        say_batch(*fd);
                        break;
                case 6:
                        if (x & 32)
                                say_register(*fd);
                        else if (x & 64)
                                say_unregister(*fd);
                        else if (x & 128)
                                say_lookup(*fd);
                        else if (x & 16)
                                say_cancel(*fd);
                        else
                                say_lent_file(*fd);
                        if (!(x & 96))
                                listen_to(*fd);
                        /* Memory goes from under what moves there, and comes back empty. */
                        if (x & 128)
                                resize_file(take(1) & 1 ? REGION : 0);
                        break;
                default:
                        if (x & 128)
                                plan_io();
                        if (x & 64)
                                inline_clock_advance_ms(10);
                        for (unsigned n = x >> 3 & 7; n > 0; n--)
                                turn();
                }
        }
        for (unsigned i = 0; i < 8; i++)
                turn();
        for (unsigned i = 0; i < CLIENTS; i++) {
                listen_to(clients[i]);
                hang_up(&clients[i]);
        }
        inline_io_set(&(struct inline_io_plan){ 0 });
        for (unsigned turns = 0; !is_idle(); turns++) {
                assert(turns < TURNS);
                inline_clock_advance_ms(1);
                if (turns > 100)
                        poll(NULL, 0, 1); /* timers of the event base are of the real clock */
                turn();
        }
        resume_store();
        make_lookups();
        check_lookups();
        check_events();
        quotas_get_usage(d.quotas, TENANT_DEFAULT, &usage);
        for (unsigned i = 0; i < QUOTA_THINGS; i++)
                assert(usage.used[i] == 0);
        pool_get_stats(t.pool, &pool);
        assert(pool.pinned_bytes == 0 && pool.leased_bytes == 0 && pool_held(t.pool) == 0);
        pool_index_get_stats(d.tenant.pool_index, &index);
        assert(index.clients == 0 && index.allowed == 0);
        unmap_page();
        assert(open_fds() == fds);
        return 0;
}
