/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions with a real cache and store: how they end, in every state, and which resources are
 * freed. The test is both the loop and the clients. After each test nothing is held. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <linux/sockios.h>
#include <cmocka.h>

#include "../lib/open-fds.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/sanitizers.h"
#include "checked.h"
#include "fdpass.h"
#include "io/liveness.h"
#include "request/audit.h"
#include "request/memory.h"
#include "session/session.h"
#include "timeout.h"
#include "tiers.h"

enum { KIB = 1024, MIB = 1024 * KIB, LENGTH = 64 * KIB, STAGING = 4 * MIB, SLABS = 8 };

static struct tiers t;
static struct {
        struct event_base *base;
        struct event *done, *wait, *guard;
        struct liveness liveness;
        struct leases *leases;
        struct quotas *quotas;
        struct namespace_counts *namespace_counts;
        struct service service;
        struct tenant tenant;
        struct sessions *sessions;
        unsigned fds;
} d;

/* --- the daemon's side --- */

static void on_done(evutil_socket_t fd, short what, void *userdata)
{
        kio_reap(t.io);
}

static void on_wait(evutil_socket_t fd, short what, void *userdata)
{
}

static void on_guard(evutil_socket_t fd, short what, void *userdata)
{
        fail_msg("nothing happens");
}

static void no_report(void *userdata, const struct client *client, enum wire_report what, FILE *out)
{
        fputs("report", out);
}

static int reload(void *userdata, FILE *out)
{
        fputs("{}", out);
        return 0;
}

static struct sessions_stats sessions(void)
{
        struct sessions_stats s;

        sessions_get_stats(d.sessions, &s);
        return s;
}

static uint64_t used(enum quota_thing what)
{
        struct quota_usage usage;

        quotas_get_usage(d.quotas, TENANT_DEFAULT, &usage);
        return usage.used[what];
}

/* Ends an iteration as server.c does. */
static bool turn_end(void)
{
        uint64_t now = clock_mono_ns(), deadline;
        bool more;

        store_iterate(t.store);
        more = sessions_iterate(d.sessions);
        cache_sweep(t.cache);
        deadline = cache_iterate(t.cache, now);
        store_iterate(t.store);
        more = more || cache_has_work(t.cache) || sessions_active(d.sessions) ||
               sessions_are_ending(d.sessions);
        kio_flush(t.io);
        if (deadline && !more) {
                uint64_t us = deadline > now ? (deadline - now) / 1000 + 1 : 1;

                event_add(d.wait, &(struct timeval){ .tv_sec = (time_t)(us / 1000000),
                                                     .tv_usec = (suseconds_t)(us % 1000000) });
        }
        return more;
}

/* Runs one iteration. Waits for an event unless there is more to do. */
static void turn(bool wait)
{
        static bool more;

        event_add(d.guard, &(struct timeval){ .tv_sec = test_timeout_ms(TIERS_WAIT_MS) / 1000 });
        event_base_loop(d.base, EVLOOP_ONCE | (wait && !more ? 0 : EVLOOP_NONBLOCK));
        more = turn_end();
}

/* Iterates often enough to read everything that a client may have sent. */
static void turns(void)
{
        for (unsigned i = 0; i < 4 * WIRE_MAX_INFLIGHT; i++)
                turn(false);
}

static int setup(void **state)
{
        struct quota_params only = { .name = "default" };
        struct quota_access admins = { 0 };
        struct sessions_params params = { .service = &d.service, .handshake_ms = 60000 };
        char error[256];

        struct quota_limits all, none = { 0 };

        for (unsigned i = 0; i < QUOTA_THINGS; i++)
                none.most[i] = QUOTA_NO_LIMIT;
        all = only.limits = none;
        all.most[QUOTA_CONNECTIONS] = 64;
        all.most[QUOTA_STAGING_BYTES] = 256 * MIB;
        memset(&d, 0, sizeof(d));
        t = (struct tiers){ 0 };
        log_set_level(LOG_LEVEL_ERROR);
        tiers_open(&t);
        d.base = event_base_new();
        d.done = event_new(d.base, kio_fd(t.io), EV_READ | EV_PERSIST, on_done, NULL);
        d.wait = evtimer_new(d.base, on_wait, NULL);
        d.guard = evtimer_new(d.base, on_guard, NULL);
        event_add(d.done, NULL);
        assert_int_equal(liveness_open(&d.liveness), 0);
        assert_int_equal(
                leases_new(&d.leases, t.pool, 4096, &(struct lease_limits){ .bytes_all = 8 * MIB }),
                0);
        assert_int_equal(quotas_new(&d.quotas, &only, 1, &admins, &all, &none, error), 0);
        assert_int_equal(namespace_counts_new(&d.namespace_counts, t.store, UINT16_MAX), 0);
        d.tenant = (struct tenant){
                .service = &d.service,
                .cache = t.cache,
                .pool = t.pool,
                .leases = d.leases,
        };
        assert_int_equal(request_init(&d.tenant), 0);
        d.service = (struct service){
                .tenants = &d.tenant,
                .n_tenants = 1,
                .store = t.store,
                .io = t.io,
                .quotas = d.quotas,
                .namespace_counts = d.namespace_counts,
                .staging_max = 64 * MIB,
                .wait_ms = 60000,
                .report = no_report,
                .reload = reload,
        };
        audit_init(&d.service);
        params.base = d.base;
        params.liveness_fd = d.liveness.handout_fd;
        assert_int_equal(sessions_new(&d.sessions, &params), 0);
        d.fds = open_sockets_and_memfds();
        return 0;
}

static int teardown(void **state)
{
        struct quota_usage usage;
        struct pool_stats pool;

        fault_set(NULL);
        fault_release();
        sessions_stop(d.sessions, NULL, NULL);
        while (!sessions_empty(d.sessions) || cache_pending(t.cache) > 0 || kio_pending(t.io) > 0 ||
               store_pending(t.store) > 0)
                turn(!sessions_empty(d.sessions) || kio_pending(t.io) > 0);
        quotas_get_usage(d.quotas, TENANT_DEFAULT, &usage);
        pool_get_stats(t.pool, &pool);
        for (unsigned i = 0; i < QUOTA_THINGS; i++)
                assert_int_equal(usage.used[i], 0);
        assert_int_equal(pool.pinned_bytes, 0);
        assert_int_equal(pool.leased_bytes, 0);
        sessions_free(d.sessions);
        request_fini(&d.tenant);
        lookup_counters_fini(&d.tenant.lookup_counters);
        readers_fini(&d.tenant.readers);
        leases_free(d.leases);
        namespace_counts_free(d.namespace_counts);
        quotas_free(d.quotas);
        liveness_close(&d.liveness);
        event_free(d.done);
        event_free(d.wait);
        event_free(d.guard);
        tiers_remove(&t);
        event_base_free(d.base);
        return 0;
}

/* --- the client's side --- */

struct peer_end {
        int fd;
        int staging_fd;
        char *staging;
        uint32_t ns;
        uint64_t tag;
};

static struct key key_of(uint32_t n)
{
        struct key k = { { 1 } };

        memcpy(k.bytes + 4, &n, sizeof(n));
        return k;
}

static void connect_only(struct peer_end *c)
{
        int pair[2];

        *c = (struct peer_end){ .staging_fd = -1 };
        assert_int_equal(
                socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
        c->fd = pair[0];
        sessions_accept_take_fd(d.sessions, pair[1]);
}

static void hang_up(struct peer_end *c)
{
        close(c->fd);
        if (c->staging)
                munmap(c->staging, STAGING);
        c->fd = -1;
        c->staging = NULL;
}

static void send_raw(struct peer_end *c, const void *msg, size_t bytes)
{
        assert_int_equal(fdpass_send(c->fd, msg, bytes, NULL, 0), 0);
}

/* Receives the next message from the daemon. Returns its bytes, or 0 at the end of the stream. */
static ssize_t receive(struct peer_end *c, void *msg, int *ret_fds, unsigned *ret_n_fds)
{
        for (;;) {
                ssize_t n = fdpass_recv(c->fd, msg, WIRE_MAX_MESSAGE, ret_fds, ret_n_fds);

                if (n != -EAGAIN)
                        return n;
                turn(false);
        }
}

static union {
        struct wire_reply reply;
        uint64_t align;
        uint8_t bytes[WIRE_MAX_MESSAGE];
} in, out;

/* Receives a reply. Keeps one of its descriptors and closes the others. */
static const struct wire_reply *reply(struct peer_end *c, enum wire_op op, int *ret_fd)
{
        int fds[WIRE_MAX_FDS];
        unsigned n_fds = 0;

        assert_true(receive(c, in.bytes, fds, &n_fds) >= (ssize_t)sizeof(struct wire_reply));
        for (unsigned i = 0; i < n_fds; i++) {
                if (i == 0 && ret_fd)
                        *ret_fd = fds[i];
                else
                        close(fds[i]);
        }
        assert_int_equal(in.reply.hdr.op, op | WIRE_REPLY);
        return &in.reply;
}

static void assert_ended(struct peer_end *c)
{
        int fds[WIRE_MAX_FDS];
        unsigned n_fds;

        assert_int_equal(receive(c, in.bytes, fds, &n_fds), 0);
}

static void hello(struct peer_end *c)
{
        struct wire_hello msg = {
                .hdr = { .len = sizeof(msg), .op = WIRE_HELLO },
                .magic = WIRE_MAGIC,
                .version_min = 1,
                .version_max = 1,
                .client = "test",
        };

        connect_only(c);
        send_raw(c, &msg, sizeof(msg));
        assert_int_equal(reply(c, WIRE_HELLO, NULL)->status, WIRE_OK);
}

/* Sends HELLO, and opens a namespace and a staging area. */
static void greet(struct peer_end *c)
{
        struct {
                struct wire_namespace head;
                char name[1];
        } ns = { .head = { .hdr = { .len = 33, .op = WIRE_NAMESPACE }, .name_length = 1 },
                 .name = "a" };
        struct wire_staging staging = { .hdr = { .len = sizeof(staging), .op = WIRE_STAGING },
                                        .bytes = STAGING };
        int fd = -1;

        hello(c);
        send_raw(c, &ns, 33);
        assert_int_equal(reply(c, WIRE_NAMESPACE, NULL)->status, WIRE_OK);
        c->ns = in.reply.value;
        send_raw(c, &staging, sizeof(staging));
        assert_int_equal(reply(c, WIRE_STAGING, &fd)->status, WIRE_OK);
        c->staging = mmap(NULL, STAGING, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        assert_ptr_not_equal(c->staging, MAP_FAILED);
        close(fd);
}

static struct wire_batch *batch(struct peer_end *c, enum wire_op op, uint16_t flags, uint16_t count)
{
        struct wire_batch *b = (struct wire_batch *)out.bytes;

        *b = (struct wire_batch){
                .hdr = { .len = (uint32_t)(sizeof(*b) + count * wire_entry_bytes(op)),
                         .op = op,
                         .flags = flags,
                         .tag = ++c->tag },
                .namespace_id = c->ns,
                .count = count,
        };
        memset(b + 1, 0, count * wire_entry_bytes(op));
        return b;
}

static void send_batch(struct peer_end *c)
{
        send_raw(c, out.bytes, ((struct wire_batch *)out.bytes)->hdr.len);
}

static void pattern(char *p, uint32_t n, uint32_t length)
{
        for (uint32_t i = 0; i < length; i++)
                p[i] = (char)(n * 37 + i * 11 + (i >> 8));
}

static void check_pattern(const char *p, uint32_t n, uint32_t length)
{
        for (uint32_t i = 0; i < length; i++)
                if (p[i] != (char)(n * 37 + i * 11 + (i >> 8)))
                        fail_msg("wrong byte %u of chunk %u", i, n);
}

static void submit_put(struct peer_end *c, uint32_t n, uint32_t length, enum wire_ack ack,
                       uint16_t flags)
{
        struct wire_put *e = (struct wire_put *)(batch(c, WIRE_PUT, flags, 1) + 1);

        pattern(c->staging, n, length);
        *e = (struct wire_put){ .key = key_of(n), .length = length };
        ((struct wire_batch *)out.bytes)->ack = (uint8_t)ack;
        send_batch(c);
}

static struct wire_put_result put(struct peer_end *c, uint32_t n, uint32_t length,
                                  enum wire_ack ack, uint16_t flags)
{
        submit_put(c, n, length, ack, flags);
        assert_int_equal(reply(c, WIRE_PUT, NULL)->status, WIRE_OK);
        return *(struct wire_put_result *)(&in.reply + 1);
}

static void submit_gets(struct peer_end *c, uint32_t n, uint16_t count, uint16_t flags,
                        uint32_t into_length)
{
        struct wire_get *e = (struct wire_get *)(batch(c, WIRE_GET, flags, count) + 1);

        for (unsigned i = 0; i < count; i++)
                e[i] = (struct wire_get){ .key = key_of(n + i), .into_length = into_length };
        send_batch(c);
}

static struct wire_get_result get(struct peer_end *c, uint32_t n)
{
        submit_gets(c, n, 1, 0, 0);
        assert_int_equal(reply(c, WIRE_GET, NULL)->status, WIRE_OK);
        return *(struct wire_get_result *)(&in.reply + 1);
}

static void release_one(struct peer_end *c, struct wire_lease lease)
{
        struct {
                struct wire_batch head;
                struct wire_lease lease;
        } msg = { .head = { .hdr = { .len = sizeof(msg), .op = WIRE_RELEASE }, .releases = 1 },
                  .lease = lease };

        send_raw(c, &msg, sizeof(msg));
        assert_int_equal(reply(c, WIRE_RELEASE, NULL)->value, 0);
}

static void evict(struct peer_end *c, uint32_t n, enum wire_tier tiers)
{
        struct key *k = (struct key *)(batch(c, WIRE_EVICT, 0, 1) + 1);

        *k = key_of(n);
        ((struct wire_batch *)out.bytes)->tiers = (uint8_t)tiers;
        send_batch(c);
        assert_int_equal(reply(c, WIRE_EVICT, NULL)->status, WIRE_OK);
}

static void ping(struct peer_end *c)
{
        struct wire_hdr msg = { .len = sizeof(msg), .op = WIRE_PING };

        send_raw(c, &msg, sizeof(msg));
}

static void wait_for_open(uint64_t sessions_open)
{
        while (sessions().open != sessions_open || sessions().stagings_closing > 0)
                turn(true);
}

/* Checks that the loop sleeps while there is nothing to do. */
static void assert_idle(void)
{
        struct event *end = evtimer_new(d.base, on_wait, NULL);
        uint64_t cpu;

        turns();
        event_add(end, &(struct timeval){ .tv_usec = 200000 });
        cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        event_base_loop(d.base, EVLOOP_ONCE);
        assert_true(clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu < 50000000);
        event_free(end);
}

/* --- how sessions end --- */

static void a_peer_that_closes_gives_everything_back(void **state)
{
        struct peer_end c;

        greet(&c);
        assert_int_equal(put(&c, 1, LENGTH, WIRE_WRITTEN, WIRE_F_LEASE).flags, WIRE_RESULT_LEASED);
        assert_int_equal(get(&c, 1).status, WIRE_OK);
        assert_int_equal(used(QUOTA_LEASES), 2);
        hang_up(&c);
        wait_for_open(0);
        assert_int_equal(used(QUOTA_LEASES), 0);
        assert_int_equal(open_sockets_and_memfds(), d.fds);
        assert_int_equal(sessions().ended_closed, 1);
}

static void an_ended_session_keeps_its_leases_until_the_peer_closes(void **state)
{
        struct wire_put_result r;
        struct peer_end c, other;

        greet(&other);
        greet(&c);
        r = put(&c, 1, LENGTH, WIRE_WRITTEN, WIRE_F_LEASE);
        send_raw(&c, "bad", 3);
        assert_ended(&c);
        evict(&other, 1, WIRE_TIER_ALL);
        for (uint32_t n = 100; n < 400; n++)
                assert_int_equal(put(&other, n, LENGTH, WIRE_ACCEPTED, 0).status, WIRE_OK);
        assert_int_equal(used(QUOTA_LEASES), 1);
        check_pattern((char *)pool_base(t.pool) + r.offset, 1, LENGTH);
        assert_int_equal(sessions().open, 2);
        assert_idle();
        hang_up(&c);
        wait_for_open(1);
        assert_int_equal(used(QUOTA_LEASES), 0);
        hang_up(&other);
}

/* Takes `count` leases of one chunk of a page. */
static void lease_many(struct peer_end *c, uint16_t count)
{
        struct wire_get *e = (struct wire_get *)(batch(c, WIRE_GET, 0, count) + 1);

        for (unsigned i = 0; i < count; i++)
                e[i] = (struct wire_get){ .key = key_of(1) };
        send_batch(c);
        assert_int_equal(reply(c, WIRE_GET, NULL)->status, WIRE_OK);
}

static void leases_of_sessions_that_end_are_given_back_in_steps(void **state)
{
        enum { SESSIONS = 3, EACH = 1000, MOST = 256 };
        uint64_t left = (uint64_t)SESSIONS * EACH, most = 0;
        struct peer_end c[SESSIONS], other;

        greet(&other);
        assert_int_equal(put(&other, 1, 4096, WIRE_WRITTEN, 0).status, WIRE_OK);
        for (unsigned i = 0; i < SESSIONS; i++) {
                greet(&c[i]);
                lease_many(&c[i], EACH);
        }
        for (unsigned i = 0; i < SESSIONS; i++)
                hang_up(&c[i]);
        while (left > 0) {
                turn(true);
                most = MAX(most, left - used(QUOTA_LEASES));
                left = used(QUOTA_LEASES);
                assert_int_equal(used(QUOTA_LEASES), left); /* charged until it is given back */
        }
        assert_in_range(most, 1, MOST);
        wait_for_open(1);
        assert_int_equal(get(&other, 1).status, WIRE_OK);
        hang_up(&other);
}

/* The daemon stops meanwhile: see teardown(). */
static void leases_of_sessions_that_end_do_not_keep_a_daemon_from_stopping(void **state)
{
        struct peer_end c[2];

        greet(&c[0]);
        greet(&c[1]);
        assert_int_equal(put(&c[0], 1, 4096, WIRE_WRITTEN, 0).status, WIRE_OK);
        lease_many(&c[0], 1000);
        lease_many(&c[1], 1000);
        hang_up(&c[0]);
        turn(true);
        assert_true(used(QUOTA_LEASES) > 0);
        hang_up(&c[1]);
}

/* Submits a TOUCH of `count` keys, which continues the chain of earlier ones. */
static void submit_touch(struct peer_end *c, uint32_t n, uint16_t count, bool more)
{
        struct wire_batch *b = batch(c, WIRE_TOUCH, more ? WIRE_F_MORE : 0, count);
        struct key *keys = (struct key *)(b + 1);

        if (n > 0)
                b->parent = key_of(n - 1);
        for (unsigned i = 0; i < count; i++)
                keys[i] = key_of(n + i);
        send_batch(c);
}

static void a_long_chain_is_touched_in_steps(void **state)
{
        enum { MESSAGES = 30, KEYS = 1024, MOST = 4 };
        const uint64_t stretch = KEYS * sizeof(struct cache_place);

        for (unsigned closed = 0; closed < 2; closed++) {
                uint64_t left, most = 0;
                struct peer_end c;

                greet(&c);
                for (unsigned i = 0; i < MESSAGES; i++) {
                        submit_touch(&c, i * KEYS, KEYS, true);
                        assert_int_equal(reply(&c, WIRE_TOUCH, NULL)->status, WIRE_OK);
                }
                left = used(QUOTA_REQUEST_BYTES);
                assert_true(left >= MESSAGES * stretch);
                if (closed)
                        hang_up(&c);
                else
                        submit_touch(&c, MESSAGES * KEYS, 1, false);
                while (used(QUOTA_REQUEST_BYTES) > 0) {
                        turn(true);
                        left = MAX(left, used(QUOTA_REQUEST_BYTES));
                        most = MAX(most, left - used(QUOTA_REQUEST_BYTES));
                        left = used(QUOTA_REQUEST_BYTES);
                }
                assert_in_range(most, stretch, (MOST + 2) * stretch);
                if (!closed)
                        hang_up(&c);
                wait_for_open(0);
        }
}

static void an_ended_session_is_noticed_to_close_though_replies_were_left_unread(void **state)
{
        struct peer_end c;

        greet(&c);
        assert_int_equal(put(&c, 1, LENGTH, WIRE_WRITTEN, WIRE_F_LEASE).status, WIRE_OK);
        ping(&c);
        ping(&c);
        turns();
        send_raw(&c, "bad", 3);
        turns();
        assert_int_equal(sessions().ended_bad_frame, 1);
        assert_idle();
        hang_up(&c);
        wait_for_open(0);
        assert_idle();
}

static void an_ended_session_without_leases_is_closed(void **state)
{
        struct peer_end c;

        greet(&c);
        ping(&c);
        send_raw(&c, "bad", 3);
        ping(&c); /* is not read; must not cost the reply to the first */
        wait_for_open(0);
        assert_int_equal(reply(&c, WIRE_PING, NULL)->status, WIRE_OK);
        assert_ended(&c);
        hang_up(&c);
}

static void an_ended_session_waits_for_its_io(void **state)
{
        struct peer_end c;

        greet(&c);
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_NEVER, .first = 1, .count = FAULT_FOR_EVER });
        submit_put(&c, 1, LENGTH, WIRE_WRITTEN, WIRE_F_LEASE);
        while (fault_hits() == 0)
                turn(false);
        send_raw(&c, "bad", 3);
        assert_ended(&c);
        hang_up(&c);
        turns();
        assert_int_equal(sessions().open, 1); /* the staging area may be in use */
        fault_set(NULL);
        fault_release();
        wait_for_open(0);
        assert_int_equal(used(QUOTA_LEASES), 0);
}

static void who_does_not_greet_is_disconnected(void **state)
{
        struct peer_end c;

        sessions_set_handshake(d.sessions, 20);
        connect_only(&c);
        wait_for_open(0);
        assert_int_equal(sessions().ended_timeout, 1);
        assert_ended(&c);
        hang_up(&c);
}

static void descriptors_end_the_session_and_are_closed(void **state)
{
        struct wire_hdr msg = { .len = sizeof(msg), .op = WIRE_PING };
        int fds[2] = { STDIN_FILENO, STDERR_FILENO };
        struct peer_end c;

        hello(&c);
        assert_int_equal(fdpass_send(c.fd, &msg, sizeof(msg), fds, 2), 0);
        assert_ended(&c);
        hang_up(&c);
        assert_int_equal(open_sockets_and_memfds(), d.fds);
        assert_int_equal(sessions().ended_bad_frame, 1);
}

static void a_request_that_needs_a_descriptor_is_refused_when_there_are_none(void **state)
{
        struct wire_report_request report = { .hdr = { .len = sizeof(report), .op = WIRE_REPORT } };
        struct wire_staging staging = { .hdr = { .len = sizeof(staging), .op = WIRE_STAGING } };
        struct rlimit before, none;
        struct peer_end c;

        hello(&c);
        assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
        none = before;
        none.rlim_cur = 0;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
        send_raw(&c, &staging, sizeof(staging));
        send_raw(&c, &report, sizeof(report));
        turns();
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        assert_int_equal(reply(&c, WIRE_STAGING, NULL)->status, WIRE_BUSY);
        assert_int_equal(reply(&c, WIRE_REPORT, NULL)->status, WIRE_BUSY);
        send_raw(&c, &staging, sizeof(staging));
        assert_int_equal(reply(&c, WIRE_STAGING, NULL)->status, WIRE_OK);
        hang_up(&c);
        wait_for_open(0);
        assert_int_equal(open_sockets_and_memfds(), d.fds);
}

/* --- waiting --- */

/* Leases a chunk in each slab, so that no whole slab is available. */
static void lease_every_slab(struct peer_end *c)
{
        bool has[SLABS] = { false };
        uint32_t n = 1000;

        for (unsigned i = 0; i < pool_bytes(t.pool) / LENGTH; i++)
                assert_int_equal(put(c, n + i, LENGTH, WIRE_WRITTEN, 0).status, WIRE_OK);
        for (unsigned i = 0; i < pool_bytes(t.pool) / LENGTH; i++) {
                struct key k = key_of(n + i);
                uint32_t chunk = pool_find(t.pool, c->ns, &k, store_hash(t.store, c->ns, &k));
                uint64_t slab;

                if (chunk == POOL_NONE)
                        continue;
                slab = pool_offset(t.pool, chunk) / pool_slab_bytes(t.pool);
                if (!has[slab])
                        assert_int_equal(get(c, n + i).status, WIRE_OK);
                has[slab] = true;
        }
        for (unsigned i = 0; i < SLABS; i++)
                assert_true(has[i]);
}

static void a_wait_for_room_ends_at_its_deadline_though_nothing_else_happens(void **state)
{
        struct peer_end holder, c;

        greet(&holder);
        greet(&c);
        lease_every_slab(&holder);
        turns();
        submit_put(&c, 1, (uint32_t)pool_slab_bytes(t.pool), WIRE_WRITTEN, 0);
        ((struct wire_batch *)out.bytes)->timeout_ms = 300;
        send_batch(&c); /* the two puts wait, but the second only briefly */
        while (poll(&(struct pollfd){ .fd = c.fd, .events = POLLIN }, 1, 0) == 0)
                turn(true);
        assert_int_equal(reply(&c, WIRE_PUT, NULL)->status, WIRE_OK);
        assert_int_equal(in.reply.hdr.tag, c.tag);
        assert_int_equal(((struct wire_put_result *)(&in.reply + 1))->status, WIRE_BUSY);
        hang_up(&holder); /* now there is room for the first */
        assert_int_equal(reply(&c, WIRE_PUT, NULL)->status, WIRE_OK);
        assert_int_equal(((struct wire_put_result *)(&in.reply + 1))->status, WIRE_OK);
        hang_up(&c);
}

static void who_waits_with_all_its_requests_is_noticed_to_die(void **state)
{
        struct peer_end holder, c;

        greet(&holder);
        greet(&c);
        lease_every_slab(&holder);
        ping(&c);
        for (unsigned i = 0; i < WIRE_MAX_INFLIGHT; i++)
                submit_put(&c, 1 + i, (uint32_t)pool_slab_bytes(t.pool), WIRE_WRITTEN, 0);
        ping(&c); /* one too many, so it is not read */
        turns();
        assert_int_equal(cache_pending(t.cache), WIRE_MAX_INFLIGHT);
        assert_idle();
        hang_up(&c); /* with the reply to the ping unread */
        wait_for_open(1);
        assert_int_equal(cache_pending(t.cache), 0);
        assert_idle();
        hang_up(&holder);
}

/* Submits a put of `count` keys, for none of which there is room. */
static void submit_waits(struct peer_end *c, uint32_t n, uint16_t count)
{
        struct wire_put *e = (struct wire_put *)(batch(c, WIRE_PUT, 0, count) + 1);

        for (unsigned i = 0; i < count; i++)
                e[i] = (struct wire_put){ .key = key_of(n + i),
                                          .length = (uint32_t)pool_slab_bytes(t.pool) };
        ((struct wire_batch *)out.bytes)->ack = WIRE_WRITTEN;
        send_batch(c);
}

/* Each session has the maximum number of keys in flight. */
static void waits_of_sessions_that_end_are_cancelled_in_steps(void **state)
{
        enum { SESSIONS = 3, EACH = WIRE_MAX_KEYS_INFLIGHT, MESSAGE = 1024, MOST = 256 };
        uint64_t left = SESSIONS * EACH, most = 0;
        struct peer_end holder, c[SESSIONS];

        greet(&holder);
        lease_every_slab(&holder);
        for (unsigned i = 0; i < SESSIONS; i++) {
                greet(&c[i]);
                for (unsigned n = 0; n < EACH; n += MESSAGE) {
                        submit_waits(&c[i], 100000 * (i + 1) + n, MESSAGE);
                        while (cache_pending(t.cache) < i * EACH + n + MESSAGE)
                                turn(true);
                }
        }
        for (unsigned i = 0; i < SESSIONS; i++)
                hang_up(&c[i]);
        while (left > 0) {
                turn(true);
                most = MAX(most, left - cache_pending(t.cache));
                left = cache_pending(t.cache);
                assert_int_equal(used(QUOTA_KEYS) > 0, left > 0); /* charged until then */
        }
        assert_in_range(most, 1, MOST);
        wait_for_open(1);
        hang_up(&holder);
}

static void what_a_dead_client_has_in_flight_takes_no_lease(void **state)
{
        struct peer_end c;

        greet(&c);
        assert_int_equal(put(&c, 1, LENGTH, WIRE_WRITTEN, 0).status, WIRE_OK);
        evict(&c, 1, WIRE_TIER_MEMORY);
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_READ, .kind = FAULT_NEVER, .first = 1, .count = FAULT_FOR_EVER });
        submit_gets(&c, 1, 1, 0, 0);
        submit_gets(&c, 1, 1, WIRE_F_INTO, LENGTH);
        while (fault_hits() == 0)
                turn(false);
        hang_up(&c);
        turns();
        assert_int_equal(sessions().open, 1);
        fault_set(NULL);
        fault_release();
        wait_for_open(0);
        assert_int_equal(used(QUOTA_LEASES), 0);
}

static void keys_that_a_dead_client_has_not_started_are_not(void **state)
{
        struct cache_stats before, after;
        struct wire_put *e;
        struct peer_end c;

        greet(&c);
        e = (struct wire_put *)(batch(&c, WIRE_PUT, 0, WIRE_MAX_KEYS) + 1);
        for (unsigned i = 0; i < WIRE_MAX_KEYS; i++)
                e[i] = (struct wire_put){ .key = key_of(i + 1), .length = 100 };
        cache_get_stats(t.cache, &before);
        send_batch(&c);
        turn(false);
        hang_up(&c);
        wait_for_open(0);
        while (cache_pending(t.cache) > 0)
                turn(true);
        cache_get_stats(t.cache, &after);
        assert_in_range(after.puts - before.puts, 1, 2 * REQUEST_KEYS_PER_ITERATION);
}

/* --- limits --- */

static void keys_in_flight_are_bounded(void **state)
{
        enum { BATCHES = 40 };
        struct peer_end c;
        unsigned sent = 0;
        uint64_t most = 0;

        greet(&c);
        assert_int_equal(put(&c, 1, LENGTH, WIRE_WRITTEN, 0).status, WIRE_OK);
        evict(&c, 1, WIRE_TIER_MEMORY);
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_READ, .kind = FAULT_NEVER, .first = 1, .count = FAULT_FOR_EVER });
        for (unsigned idle = 0; idle < 100;) {
                struct wire_get *e =
                        (struct wire_get *)(batch(&c, WIRE_GET, WIRE_F_INTO, WIRE_MAX_KEYS) + 1);

                for (unsigned i = 0; i < WIRE_MAX_KEYS; i++)
                        e[i] = (struct wire_get){ .key = key_of(1),
                                                  .into_length = 1,
                                                  .range_length = 1 };
                if (sent < BATCHES &&
                    fdpass_send(c.fd, out.bytes, ((struct wire_batch *)out.bytes)->hdr.len, NULL,
                                0) == 0) {
                        sent++;
                        idle = 0;
                }
                turns();
                idle++;
                most = MAX(most, used(QUOTA_KEYS));
        }
        assert_true(sent < BATCHES);
        assert_in_range(most, CLIENT_MAX_KEYS, CLIENT_MAX_KEYS + WIRE_MAX_KEYS);
        fault_set(NULL);
        fault_release();
        for (unsigned i = 0; i < sent; i++)
                assert_int_equal(reply(&c, WIRE_GET, NULL)->count, WIRE_MAX_KEYS);
        hang_up(&c);
}

static void set_limit(enum quota_thing what, uint64_t tenant, uint64_t user, uint64_t all)
{
        struct quota_limits limits[3] = { 0 };

        for (unsigned i = 0; i < 3; i++)
                for (unsigned k = 0; k < QUOTA_THINGS; k++)
                        limits[i].most[k] = QUOTA_NO_LIMIT;
        limits[0].most[what] = tenant;
        limits[1].most[what] = user;
        limits[2].most[what] = all;
        quotas_set_limits(d.quotas, TENANT_DEFAULT, &limits[0]);
        quotas_set_common_limits(d.quotas, &limits[2], &limits[1]);
}

/* An iteration reads large messages for a bounded time, whatever the number of sessions. */
static void messages_of_many_sessions_are_read_in_steps(void **state)
{
        enum { SESSIONS = 60 };
        struct peer_end c[SESSIONS];
        unsigned unread = 0;
        int bytes;

        for (unsigned i = 0; i < SESSIONS; i++)
                greet(&c[i]);
        /* libevent doubles the number of events of an iteration after an iteration with as many. */
        for (unsigned i = 0; i < SESSIONS; i++)
                submit_gets(&c[i], 1, 1, 0, 0);
        for (unsigned i = 0; i < SESSIONS; i++)
                assert_int_equal(reply(&c[i], WIRE_GET, NULL)->status, WIRE_OK);
        turns();
        for (unsigned i = 0; i < SESSIONS; i++)
                submit_gets(&c[i], i * WIRE_MAX_KEYS, WIRE_MAX_KEYS, 0, 0);
        turn(false);
        for (unsigned i = 0; i < SESSIONS; i++) {
                assert_int_equal(ioctl(c[i].fd, SIOCOUTQ, &bytes), 0);
                unread += bytes > 0;
        }
        assert_in_range(unread, 1, SESSIONS - 1);
        for (unsigned i = 0; i < SESSIONS; i++) {
                assert_int_equal(reply(&c[i], WIRE_GET, NULL)->status, WIRE_OK);
                hang_up(&c[i]);
        }
        wait_for_open(0);
}

/* A session whose message waits to be read may end: the peer closes, or the daemon ends it. */
static void sessions_that_wait_to_be_read_may_end(void **state)
{
        enum { SESSIONS = 60 };
        struct peer_end c[SESSIONS];

        for (unsigned i = 0; i < SESSIONS; i++)
                greet(&c[i]);
        turns();
        for (unsigned i = 0; i < SESSIONS; i++)
                submit_gets(&c[i], i * WIRE_MAX_KEYS, WIRE_MAX_KEYS, 0, 0);
        turn(false);
        for (unsigned i = 0; i < SESSIONS; i++)
                hang_up(&c[i]);
        wait_for_open(0);
}

static void test_R10_too_many_keys_are_busy_for_all_and_over_quota_for_one(void **state)
{
        struct peer_end c;

        greet(&c);
        set_limit(QUOTA_KEYS, 1000, 1000, 9);
        submit_gets(&c, 1, 10, 0, 0);
        assert_int_equal(reply(&c, WIRE_GET, NULL)->status, WIRE_BUSY);
        set_limit(QUOTA_KEYS, 9, 1000, 1000);
        submit_gets(&c, 1, 10, 0, 0);
        assert_int_equal(reply(&c, WIRE_GET, NULL)->status, WIRE_QUOTA);
        set_limit(QUOTA_KEYS, 1000, 9, 1000);
        submit_gets(&c, 1, 10, 0, 0);
        assert_int_equal(reply(&c, WIRE_GET, NULL)->status, WIRE_QUOTA);
        assert_int_equal(used(QUOTA_KEYS), 0);
        assert_int_equal(get(&c, 1).status, WIRE_MISS);
        hang_up(&c);
}

static void test_R10_leases_of_all_sessions_of_a_user_or_tenant_are_counted(void **state)
{
        struct wire_lease held;
        struct peer_end a, b;

        greet(&a);
        greet(&b);
        assert_int_equal(put(&a, 1, LENGTH, WIRE_WRITTEN, 0).status, WIRE_OK);
        assert_int_equal(put(&a, 2, LENGTH, WIRE_WRITTEN, 0).status, WIRE_OK);
        set_limit(QUOTA_LEASES, 2, 1000, 1000);
        assert_int_equal(get(&a, 1).status, WIRE_OK);
        held = get(&b, 1).lease;
        assert_int_equal(used(QUOTA_LEASES), 2);
        assert_int_equal(used(QUOTA_LEASED_BYTES), 2 * round_up(LENGTH, 4096));
        assert_int_equal(get(&b, 2).status, WIRE_QUOTA);
        assert_int_equal(get(&a, 2).status, WIRE_QUOTA);
        release_one(&b, held);
        assert_int_equal(used(QUOTA_LEASES), 1);
        assert_int_equal(get(&a, 2).status, WIRE_OK);
        /* The limit of bytes, and that of one user. */
        set_limit(QUOTA_LEASED_BYTES, QUOTA_NO_LIMIT, used(QUOTA_LEASED_BYTES), QUOTA_NO_LIMIT);
        assert_int_equal(get(&b, 1).status, WIRE_QUOTA);
        assert_int_equal(used(QUOTA_LEASES), 2);
        hang_up(&a);
        turns();
        assert_int_equal(used(QUOTA_LEASES), 0);
        assert_int_equal(used(QUOTA_LEASED_BYTES), 0);
        assert_int_equal(get(&b, 1).status, WIRE_OK);
        hang_up(&b);
}

/* The reason comes without a HELLO, and before the end. */
static void assert_refused(const struct peer_end *c, enum wire_status status, const char *text)
{
        struct {
                struct wire_reply reply;
                char text[WIRE_MAX_TEXT + 1];
        } got = { .text = "" };
        ssize_t n;

        turns();
        n = recv(c->fd, &got, sizeof(got) - 1, 0);
        assert_int_equal(n, got.reply.hdr.len);
        assert_int_equal(got.reply.hdr.op, WIRE_HELLO | WIRE_REPLY);
        assert_int_equal(got.reply.hdr.tag, WIRE_REFUSAL_TAG);
        assert_int_equal(got.reply.status, status);
        assert_non_null(strstr(got.text, text));
}

static void test_R10_connections_and_stagings_over_a_quota_are_refused(void **state)
{
        struct wire_staging staging = { .hdr = { .len = sizeof(staging), .op = WIRE_STAGING },
                                        .bytes = STAGING };
        struct peer_end a, b, c;

        greet(&a);
        set_limit(QUOTA_CONNECTIONS, 1000, 2, 1000);
        hello(&b);
        connect_only(&c);
        assert_refused(&c, WIRE_QUOTA, "too many connections of this user");
        assert_ended(&c);
        assert_int_equal(sessions().refused_limit, 1);
        set_limit(QUOTA_STAGING_BYTES, 2 * STAGING - 1, QUOTA_NO_LIMIT, QUOTA_NO_LIMIT);
        send_raw(&b, &staging, sizeof(staging));
        assert_int_equal(reply(&b, WIRE_STAGING, NULL)->status, WIRE_QUOTA);
        assert_int_equal(used(QUOTA_STAGING_BYTES), STAGING);
        hang_up(&a);
        while (used(QUOTA_STAGING_BYTES) > 0)
                turn(true);
        send_raw(&b, &staging, sizeof(staging));
        assert_int_equal(reply(&b, WIRE_STAGING, NULL)->status, WIRE_OK);
        hang_up(&b);
        hang_up(&c);
}

/* The session is over at once; its staging area is the user's until a thread has freed it. */
static void test_R10_a_staging_area_is_charged_until_it_is_freed(void **state)
{
        struct wire_staging staging = { .hdr = { .len = sizeof(staging), .op = WIRE_STAGING },
                                        .bytes = STAGING };
        struct peer_end a, b;

        greet(&a);
        hello(&b);
        set_limit(QUOTA_STAGING_BYTES, QUOTA_NO_LIMIT, STAGING, QUOTA_NO_LIMIT);
        event_del(d.done); /* nothing is reaped meanwhile */
        hang_up(&a);
        while (sessions().open > 1)
                turn(false);
        assert_int_equal(sessions().stagings_closing, 1);
        assert_int_equal(used(QUOTA_CONNECTIONS), 1);
        assert_int_equal(used(QUOTA_STAGINGS), 1);
        assert_int_equal(used(QUOTA_STAGING_BYTES), STAGING);
        event_add(d.done, NULL);
        while (sessions().stagings_closing > 0)
                turn(true);
        assert_int_equal(used(QUOTA_STAGING_BYTES), 0);
        send_raw(&b, &staging, sizeof(staging));
        assert_int_equal(reply(&b, WIRE_STAGING, NULL)->status, WIRE_OK);
        hang_up(&b);
        wait_for_open(0);
}

/* Numbers belong to the session: they reveal nothing about namespaces that others have opened. */
static void test_R9_numbers_of_namespaces_say_nothing_of_other_sessions(void **state)
{
        struct {
                struct wire_namespace head;
                char name[1];
        } ns = { .head = { .hdr = { .len = 33, .op = WIRE_NAMESPACE }, .name_length = 1 } };
        struct peer_end a, b;

        greet(&a);
        hello(&b);
        for (ns.name[0] = 'b'; ns.name[0] < 'f'; ns.name[0]++) {
                send_raw(&a, &ns, 33);
                assert_int_equal(reply(&a, WIRE_NAMESPACE, NULL)->value, 2 + ns.name[0] - 'b');
        }
        ns.name[0] = 'd';
        send_raw(&b, &ns, 33);
        assert_int_equal(reply(&b, WIRE_NAMESPACE, NULL)->value, 1);
        send_raw(&b, &ns, 33);
        assert_int_equal(reply(&b, WIRE_NAMESPACE, NULL)->value, 1);
        b.ns = 2;
        submit_gets(&b, 1, 1, 0, 0);
        assert_int_equal(reply(&b, WIRE_GET, NULL)->status, WIRE_NO_NAMESPACE);
        hang_up(&a);
        hang_up(&b);
}

static void a_hello_is_counted_and_timed_as_every_request(void **state)
{
        struct peer_end a;

        hello(&a);
        assert_int_equal(d.tenant.traffic.latency[WIRE_HELLO].count, 1);
        assert_int_equal(d.tenant.traffic.requests[WIRE_HELLO], 1);
        hang_up(&a);
}

/* --- bytes --- */

static void a_copy_to_the_staging_is_right_though_the_chunk_goes_meanwhile(void **state)
{
        struct key k = { { 1, 0, 0, 0, 1 } };
        struct peer_end c, other;

        greet(&other);
        greet(&c);
        for (uint32_t round = 0; round < 20; round++) {
                assert_int_equal(put(&c, 1, MIB, WIRE_WRITTEN, 0).status, WIRE_OK);
                memset(c.staging, 0, MIB);
                submit_gets(&c, 1, 1, WIRE_F_INTO, MIB);
                event_base_loop(d.base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
                sessions_iterate(d.sessions); /* the copy is ordered, and not begun */
                cache_evict(t.cache, c.ns, &k, cache_hash(t.cache, c.ns, &k), false);
                for (uint32_t n = 0; n < 20; n++)
                        assert_int_equal(
                                put(&other, 500 + 20 * round + n, MIB, WIRE_ACCEPTED, 0).status,
                                WIRE_OK);
                assert_int_equal(reply(&c, WIRE_GET, NULL)->status, WIRE_OK);
                assert_int_equal(((struct wire_get_result *)(&in.reply + 1))->status, WIRE_OK);
                check_pattern(c.staging, 1, MIB);
        }
        hang_up(&c);
        hang_up(&other);
}

/* --- the daemon's end --- */

static void when_stopping_what_was_asked_is_answered_and_sessions_end(void **state)
{
        struct peer_end idle, busy, leasing;

        greet(&idle);
        greet(&busy);
        greet(&leasing);
        assert_int_equal(put(&leasing, 2, LENGTH, WIRE_WRITTEN, WIRE_F_LEASE).status, WIRE_OK);
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_NEVER, .first = 1, .count = FAULT_FOR_EVER });
        submit_put(&busy, 1, LENGTH, WIRE_WRITTEN, 0);
        while (fault_hits() == 0)
                turn(false);

        d.service.stopping = true;
        sessions_drain(d.sessions);
        cache_stop(t.cache);
        ping(&busy); /* comes too late */
        wait_for_open(2);
        assert_ended(&idle);
        assert_ended(&leasing);
        assert_true(sessions_busy(d.sessions));
        assert_int_equal(used(QUOTA_LEASES), 1);
        fault_set(NULL);
        fault_release();
        wait_for_open(1);
        assert_int_equal(reply(&busy, WIRE_PUT, NULL)->status, WIRE_OK);
        assert_int_equal(((struct wire_put_result *)(&in.reply + 1))->status, WIRE_OK);
        assert_ended(&busy);
        assert_false(sessions_busy(d.sessions));
        hang_up(&idle);
        hang_up(&busy);
        hang_up(&leasing);
        wait_for_open(0);
}

/* Allocations of this thread; the library's own calls are not wrapped. */
static _Thread_local uint64_t allocations;
static atomic_bool no_tallies; /* simulates a lack of memory for tallies; workers allocate, too */

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
        allocations++;
        return __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
        allocations++;
        if (no_tallies && n == WIRE_TALLY_NAMESPACES)
                return NULL;
        return __real_calloc(n, bytes);
}

/* Work done for one key. */
struct work {
        unsigned pool, index, hashes;
};
static struct work work;

uint32_t __real_pool_find(const struct pool *p, uint32_t namespace_id, const struct key *key,
                          uint64_t hash);
uint32_t __wrap_pool_find(const struct pool *p, uint32_t namespace_id, const struct key *key,
                          uint64_t hash);
struct index;
uint32_t __real_index_find(const struct index *ix, uint32_t namespace_id, const struct key *key,
                           uint64_t hash);
uint32_t __wrap_index_find(const struct index *ix, uint32_t namespace_id, const struct key *key,
                           uint64_t hash);
uint64_t __real_key_hash(const struct key_secret *secret, uint32_t namespace_id,
                         const struct key *k);
uint64_t __wrap_key_hash(const struct key_secret *secret, uint32_t namespace_id,
                         const struct key *k);

uint32_t __wrap_pool_find(const struct pool *p, uint32_t namespace_id, const struct key *key,
                          uint64_t hash)
{
        work.pool++;
        return __real_pool_find(p, namespace_id, key, hash);
}

uint32_t __wrap_index_find(const struct index *ix, uint32_t namespace_id, const struct key *key,
                           uint64_t hash)
{
        work.index++;
        return __real_index_find(ix, namespace_id, key, hash);
}

uint64_t __wrap_key_hash(const struct key_secret *secret, uint32_t namespace_id,
                         const struct key *k)
{
        work.hashes++;
        return __real_key_hash(secret, namespace_id, k);
}

/* Sends one request of one key. Returns the work that its answer took. */
static struct work work_of(struct peer_end *c, enum wire_op op, uint16_t flags, uint32_t n)
{
        work = (struct work){ 0 };
        if (op == WIRE_GET) {
                submit_gets(c, n, 1, flags, flags & WIRE_F_INTO ? LENGTH : 0);
        } else {
                struct wire_batch *b = batch(c, op, flags, 1);

                *(struct key *)(b + 1) = key_of(n);
                if (op == WIRE_HINT)
                        b->hint = WIRE_HINT_FINAL;
                send_batch(c);
        }
        assert_int_equal(reply(c, op, NULL)->status, WIRE_OK);
        return work;
}

static void each_key_is_looked_up_once_in_each_index(void **state)
{
        static const struct {
                enum wire_op op;
                uint16_t flags;
                bool in_memory; /* in memory and on disk */
                struct work takes;
        } what[] = {
                { WIRE_GET, 0, true, { .pool = 1, .index = 0 } },
                { WIRE_GET, WIRE_F_INTO, true, { .pool = 1, .index = 0 } },
                { WIRE_GET, 0, false, { .pool = 1, .index = 1 } },
                { WIRE_GET, WIRE_F_INTO, false, { .pool = 1, .index = 1 } },
                { WIRE_PREFETCH, 0, false, { .pool = 1, .index = 1 } },
                { WIRE_PREFETCH, 0, true, { .pool = 1, .index = 1 } },
                { WIRE_EXISTS, 0, true, { .pool = 1, .index = 1 } },
                { WIRE_EXISTS, 0, false, { .pool = 1, .index = 1 } },
                { WIRE_MATCH, 0, true, { .pool = 1, .index = 0 } },
                { WIRE_MATCH, 0, false, { .pool = 1, .index = 1 } },
                { WIRE_TOUCH, 0, true, { .pool = 1, .index = 1 } },
                { WIRE_STAT, 0, false, { .pool = 1, .index = 1 } },
                { WIRE_HINT, 0, true, { .pool = 1, .index = 1 } },
                { WIRE_HINT, 0, false, { .pool = 1, .index = 1 } },
        };
        struct peer_end c;

        greet(&c);
        for (unsigned i = 0; i < sizeof(what) / sizeof(what[0]); i++) {
                struct work did;

                assert_int_equal(put(&c, 1 + i, LENGTH, WIRE_WRITTEN, 0).status, WIRE_OK);
                if (!what[i].in_memory)
                        evict(&c, 1 + i, WIRE_TIER_MEMORY);
                did = work_of(&c, what[i].op, what[i].flags, 1 + i);
                assert_int_equal(did.pool, what[i].takes.pool);
                assert_int_equal(did.index, what[i].takes.index);
                assert_int_equal(did.hashes, 1);
        }
        assert_int_equal(work_of(&c, WIRE_GET, 0, 1000).index, 1); /* a miss */
        assert_int_equal(work.pool, 1);
        hang_up(&c);
}

static void hits_allocate_nothing(void **state)
{
        enum { KEYS = 128 };
        struct peer_end c;
        uint64_t before;

        greet(&c);
        for (uint32_t n = 0; n < KEYS; n++)
                assert_int_equal(put(&c, n, 4096, WIRE_ACCEPTED, 0).status, WIRE_OK);
        assert_true(allocations > KEYS); /* allocations are counted */
        for (unsigned round = 0; round < 4; round++) {
                before = allocations;
                submit_gets(&c, 0, KEYS, 0, 0);
                assert_int_equal(reply(&c, WIRE_GET, NULL)->status, WIRE_OK);
                for (unsigned i = 0; i < KEYS; i++) {
                        const struct wire_get_result *results = (void *)(&in.reply + 1);

                        assert_int_equal(results[i].status, WIRE_OK);
                        assert_int_equal(results[i].flags, WIRE_RESULT_LEASED);
                        assert_int_equal(results[i].tier, WIRE_TIER_MEMORY);
                }
                turn(false); /* to the end of the turn that it was answered in */
                /* The first request may allocate memory for a batch. */
                if (round > 0 && !SANITIZES_ADDRESSES)
                        assert_int_equal(allocations, before);
        }
        hang_up(&c);
}

/* --- lookups that clients make themselves --- */

static struct lookups *lookups_open(void)
{
        struct lookups *l;

        assert_int_equal(lookups_new(&l,
                                     &(struct lookups_params){
                                             .store = t.store,
                                             .io = t.io,
                                             .tenants = &(struct lookups_tenant){ .pool = t.pool },
                                             .n_tenants = 1,
                                     }),
                         0);
        return l;
}

/* Sends LOOKUP with TALLY. Returns the number of descriptors received, of which it keeps the
 * second. */
static unsigned ask_for_tally(struct peer_end *c, int *ret_tally)
{
        struct wire_hdr msg = { .len = sizeof(msg), .op = WIRE_LOOKUP, .flags = WIRE_F_TALLY };
        int fds[WIRE_MAX_FDS];
        unsigned n_fds = 0;
        ssize_t n;

        send_raw(c, &msg, sizeof(msg));
        while ((n = fdpass_recv(c->fd, in.bytes, WIRE_MAX_MESSAGE, fds, &n_fds)) == -EAGAIN) {
                turn(false);
                (void)lookups_iterate(d.service.lookups, clock_mono_ns(), LOOKUPS_SLICE_NS);
        }
        assert_int_equal(n, sizeof(struct wire_reply));
        assert_int_equal(in.reply.status, WIRE_OK);
        for (unsigned i = 0; i < n_fds; i++) {
                if (i == 1)
                        *ret_tally = fds[i];
                else
                        close(fds[i]);
        }
        return n_fds;
}

static struct lookup_counts own_lookups(void)
{
        sessions_count_lookups(d.sessions);
        return d.tenant.lookup_counters.all[COUNTED_OWN_LOOKUPS];
}

/* Counters are read for each session by its own namespaces, at each reading and at the end,
 * whichever side ends it. */
static void what_clients_count_is_read_until_their_session_ends(void **state)
{
        struct lookup_counts keys[COUNTED_KINDS];
        struct wire_tally *counts[2];
        struct peer_end c[2];
        int fd = -1;

        d.service.lookups = lookups_open();
        for (unsigned i = 0; i < 2; i++) {
                greet(&c[i]);
                assert_int_equal(ask_for_tally(&c[i], &fd), 2);
                counts[i] = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
                assert_ptr_not_equal(counts[i], MAP_FAILED);
                close(fd);
                assert_int_equal(ask_for_tally(&c[i], &fd), 1); /* the session has its page */
        }
        assert_int_equal(own_lookups().found, 0);
        assert_int_equal(sessions().counted, 2);
        assert_int_equal(sessions().uncounted, 0);
        counts[0][c[0].ns - 1] = (struct wire_tally){ 5, 1 };
        counts[1][c[1].ns - 1] = (struct wire_tally){ 10, 0 };
        counts[1][c[1].ns] = (struct wire_tally){ 3, 3 }; /* a session that has opened one
                                                             namespace only */
        assert_int_equal(own_lookups().found, 15);
        assert_int_equal(own_lookups().missing, 1);

        /* The page is not read again before the first session has ended, which does not affect the
         * second one's. */
        counts[0][c[0].ns - 1].found += 100;
        hang_up(&c[0]);
        turns();
        assert_int_equal(d.tenant.lookup_counters.all[COUNTED_OWN_LOOKUPS].found, 115);
        assert_int_equal(own_lookups().found, 115);
        assert_int_equal(sessions().counted, 1);

        /* The counters are read before the daemon ends the session. */
        counts[1][c[1].ns - 1].missing = 7;
        send_raw(&c[1], "?", 1);
        assert_ended(&c[1]);
        turns();
        assert_int_equal(d.tenant.lookup_counters.all[COUNTED_OWN_LOOKUPS].missing, 8);
        hang_up(&c[1]);
        turns();
        assert_int_equal(own_lookups().found, 115);
        assert_int_equal(sessions().counted, 0);
        lookup_counters_get(&d.tenant.lookup_counters, store_namespace_get(t.store, t.ns), keys);
        assert_int_equal(keys[COUNTED_OWN_LOOKUPS].found, 115);
        assert_int_equal(d.tenant.impossible_tallies, 0);
        for (unsigned i = 0; i < 2; i++)
                munmap(counts[i], 4096);
        d.service.lookups = lookups_free(d.service.lookups);
}

static void without_memory_for_a_tally_there_is_the_index_alone(void **state)
{
        struct peer_end c;
        int fd = -1;

        d.service.lookups = lookups_open();
        greet(&c);
        no_tallies = true;
        assert_int_equal(ask_for_tally(&c, &fd), 1);
        (void)own_lookups();
        assert_int_equal(sessions().counted, 0);
        assert_int_equal(sessions().uncounted, 1);
        no_tallies = false;
        assert_int_equal(ask_for_tally(&c, &fd), 2);
        close(fd);
        (void)own_lookups();
        assert_int_equal(sessions().counted, 1);
        assert_int_equal(sessions().uncounted, 0);
        hang_up(&c);
        turns();
        d.service.lookups = lookups_free(d.service.lookups);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

/* The write of an accepted put outlives its message. A later message is independent, even at the
 * same address. There are no ticks here, because they would answer it in any case. */
static void a_put_does_not_wait_for_what_another_client_was_answered(void **state)
{
        struct peer_end a, b;

        greet(&a);
        greet(&b);
        assert_int_equal(put(&b, 900, 4096, WIRE_WRITTEN, 0).status, WIRE_OK);
        assert_int_equal(put(&a, 901, MIB, WIRE_WRITTEN, 0).status, WIRE_OK);
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_NEVER, .first = 1, .count = 1 });
        assert_int_equal(put(&a, 1, MIB, WIRE_ACCEPTED, 0).status, WIRE_OK);
        while (fault_hits() == 0)
                turn(false);
        assert_int_equal(put(&b, 2, 4096, WIRE_WRITTEN, 0).status, WIRE_OK);
        fault_set(NULL);
        fault_release();
        hang_up(&a);
        hang_up(&b);
        wait_for_open(0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(a_put_does_not_wait_for_what_another_client_was_answered),
                TEST(each_key_is_looked_up_once_in_each_index),
                TEST(hits_allocate_nothing),
                TEST(what_clients_count_is_read_until_their_session_ends),
                TEST(without_memory_for_a_tally_there_is_the_index_alone),
                TEST(a_peer_that_closes_gives_everything_back),
                TEST(an_ended_session_keeps_its_leases_until_the_peer_closes),
                TEST(leases_of_sessions_that_end_are_given_back_in_steps),
                TEST(leases_of_sessions_that_end_do_not_keep_a_daemon_from_stopping),
                TEST(a_long_chain_is_touched_in_steps),
                TEST(an_ended_session_is_noticed_to_close_though_replies_were_left_unread),
                TEST(an_ended_session_without_leases_is_closed),
                TEST(an_ended_session_waits_for_its_io),
                TEST(who_does_not_greet_is_disconnected),
                TEST(descriptors_end_the_session_and_are_closed),
                TEST(a_request_that_needs_a_descriptor_is_refused_when_there_are_none),
                TEST(a_wait_for_room_ends_at_its_deadline_though_nothing_else_happens),
                TEST(waits_of_sessions_that_end_are_cancelled_in_steps),
                TEST(who_waits_with_all_its_requests_is_noticed_to_die),
                TEST(what_a_dead_client_has_in_flight_takes_no_lease),
                TEST(keys_that_a_dead_client_has_not_started_are_not),
                TEST(keys_in_flight_are_bounded),
                TEST(messages_of_many_sessions_are_read_in_steps),
                TEST(sessions_that_wait_to_be_read_may_end),
                TEST(test_R10_too_many_keys_are_busy_for_all_and_over_quota_for_one),
                TEST(test_R10_leases_of_all_sessions_of_a_user_or_tenant_are_counted),
                TEST(test_R10_connections_and_stagings_over_a_quota_are_refused),
                TEST(test_R10_a_staging_area_is_charged_until_it_is_freed),
                TEST(test_R9_numbers_of_namespaces_say_nothing_of_other_sessions),
                TEST(a_hello_is_counted_and_timed_as_every_request),
                TEST(a_copy_to_the_staging_is_right_though_the_chunk_goes_meanwhile),
                TEST(when_stopping_what_was_asked_is_answered_and_sessions_end),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
