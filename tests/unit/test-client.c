/* SPDX-License-Identifier: Apache-2.0 */
/* libkvcache with a fake daemon: its messages, its checks of replies, and daemons that lie, are
 * late, or end. The library's sources are linked in, so that sanitizers check them. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "../lib/open-fds.h"
#include "../lib/rig.h"
#include "../lib/timeout.h"
#include "checked.h"
#include "lib/handle.h"
#include "lib/staging.h"
#include "lib/lease.h"

enum { WAIT_MS = 60000 };

static int try_connect(struct rig *f, int timeout_ms, char *error, size_t bytes)
{
        struct kvcache_options o = {
                .size = sizeof(o),
                .socket_path = f->path,
                .connect_timeout_ms = timeout_ms,
                .request_timeout_ms = test_timeout_ms(WAIT_MS),
        };

        return kvcache_connect(&f->kv, &o, error, bytes);
}

static uint32_t open_namespace(struct kvcache *kv, const char *name)
{
        struct kvcache_namespace_options o = { .size = sizeof(o),
                                               .name = name,
                                               .fingerprint = "dtype=bf16\n" };
        uint32_t ns = 0;

        assert_int_equal(kvcache_namespace_open(kv, &o, &ns), 0);
        assert_true(ns > 0);
        return ns;
}

static void start(struct rig *f, const struct fake_options *o)
{
        char why[512] = "";

        f->d = fake_daemon_start(f->path, o);
        if (try_connect(f, test_timeout_ms(WAIT_MS), why, sizeof(why)) < 0)
                fail_msg("%s", why);
        f->ns = open_namespace(f->kv, "ns");
}

/* Starts another daemon at the same path. */
static void restart(struct rig *f, const struct fake_options *o)
{
        fake_daemon_free(f->d);
        f->d = fake_daemon_start(f->path, o);
}

static bool readable(int fd, int timeout_ms)
{
        struct pollfd p = { .fd = fd, .events = POLLIN };

        return poll(&p, 1, timeout_ms) == 1;
}

static void wait_readable(int fd)
{
        assert_true(readable(fd, test_timeout_ms(WAIT_MS)));
}

/* --- handshake --- */

static void test_connect_maps_the_pool_and_says_what_the_daemon_is(void **state)
{
        struct rig *f = *state;
        struct kvcache_info info = { .size = sizeof(info) };

        start(f, NULL);
        assert_int_equal(kvcache_get_info(f->kv, &info), 0);
        assert_int_equal(info.protocol_version, 1);
        assert_int_equal(info.pool_bytes, 4 << 20);
        assert_int_equal(info.max_chunk_bytes, 1 << 20);
        assert_int_equal(info.reconnects, 0);
        assert_memory_equal(info.instance, f->d->instance, 16);

        /* no header had this size */
        memset(&info, 0xee, sizeof(info));
        info.size = 8;
        assert_int_equal(kvcache_get_info(f->kv, &info), -EINVAL);
        assert_int_equal(info.pool_bytes, 0xeeeeeeeeeeeeeeee);
}

static void test_connect_refuses_what_it_cannot_trust(void **state)
{
        static const struct {
                struct fake_options o;
                int error;
                const char *text;
        } cases[] = {
                { { .unsealed = true }, -EPERM, "not sealed" },
                { { .hello_fds = -1 }, -EBADMSG, "lacks" },
                { { .hello_fds = 1 }, -EBADMSG, "lacks" },
                { { .hello_fds = 3 }, -EBADMSG, "lacks" },
                { { .hello_fds = 6 }, -EBADMSG, "greeting" }, /* MSG_CTRUNC */
                { { .version = 2 }, -EPROTONOSUPPORT, "version 2" },
                { { .hello_status = WIRE_VERSION }, -EPROTONOSUPPORT, "not" },
                { { .hello_status = WIRE_DENIED }, -EACCES, "not" },
                { { .hello_status = 999 }, -EIO, "not" },
                { { .hello_cut = 1 }, -EBADMSG, "lacks" },
                { { .hello_cut = 64 }, -EBADMSG, "lacks" },
                { { .hello_cut = 70 }, -EBADMSG, "too short" },
                { { .pool_lie = 4096 }, -EBADMSG, "but its file has" },
                { { .pool_lie = UINT64_MAX - (4 << 20) }, -EBADMSG, "but its file has" },
                { { .pool_lie = -(uint64_t)(4 << 20) }, -EBADMSG, "but its file has" },
                { { .silent = true }, -ETIMEDOUT, "did not answer" },
                { { .hang_up = true }, -ECONNRESET, "could not start" },
        };
        struct rig *f = *state;

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                char why[512] = "";
                int r;

                f->d = fake_daemon_start(f->path, &cases[i].o);
                r = try_connect(f, cases[i].o.silent ? 20 : test_timeout_ms(WAIT_MS), why,
                                sizeof(why));
                if (r != cases[i].error || !strstr(why, cases[i].text) || strchr(why, '\x1b') ||
                    f->kv)
                        fail_msg("case %zu: %d, '%s'", i, r, why);
                f->d = fake_daemon_free(f->d);
                assert_int_equal(open_fds(), f->fds);
        }
}

static void test_connect_names_what_is_missing(void **state)
{
        struct rig *f = *state;
        struct kvcache_options o = { .size = sizeof(o) };
        char why[1024] = "", where[256], *old = getenv("XDG_RUNTIME_DIR");
        struct kvcache *kv = NULL;
        int r;

        assert_int_equal(try_connect(f, test_timeout_ms(WAIT_MS), why, sizeof(why)), -ENOENT);
        assert_non_null(strstr(why, f->path));
        f->d = fake_daemon_start(f->path, NULL);
        fake_daemon_kill(f->d, false);
        assert_int_equal(try_connect(f, test_timeout_ms(WAIT_MS), why, sizeof(why)), -ECONNREFUSED);

        memset(where, 'x', sizeof(where) - 1);
        where[sizeof(where) - 1] = '\0';
        o.socket_path = where;
        assert_int_equal(kvcache_connect(&kv, &o, why, sizeof(why)), -ENAMETOOLONG);
        assert_int_equal(kvcache_connect(&kv, &o, why, 3), -ENAMETOOLONG);
        assert_int_equal(strlen(why), 2);
        o.connect_timeout_ms = -1;
        assert_int_equal(kvcache_connect(&kv, &o, NULL, 0), -EINVAL);

        o = (struct kvcache_options){ .size = sizeof(o) };
        unsetenv("KVCACHE_SOCKET");
        setenv("XDG_RUNTIME_DIR", f->dir, 1);
        r = kvcache_connect(&kv, &o, why, sizeof(why));
        if (old)
                setenv("XDG_RUNTIME_DIR", old, 1);
        else
                unsetenv("XDG_RUNTIME_DIR");
        if (r == 0) {
                kvcache_close(kv);
                skip(); /* a daemon is running on this host */
        }
        assert_non_null(strstr(why, "/run/kvcache/kvcache.sock"));
        snprintf(where, sizeof(where), "%s/kvcache/kvcache.sock", f->dir);
        assert_non_null(strstr(why, where));
        snprintf(where, sizeof(where), "/tmp/kvcache-%u/kvcache.sock", (unsigned)geteuid());
        assert_non_null(strstr(why, where));
}

static void test_connect_takes_the_socket_of_the_environment(void **state)
{
        struct rig *f = *state;

        f->d = fake_daemon_start(f->path, NULL);
        setenv("KVCACHE_SOCKET", f->path, 1);
        assert_int_equal(kvcache_connect(&f->kv, NULL, NULL, 0), 0);
        unsetenv("KVCACHE_SOCKET");
}

static void test_calls_without_a_handle_are_refused(void **state)
{
        assert_int_equal(kvcache_fd(NULL), -EINVAL);
        assert_int_equal(kvcache_flush(NULL), -EINVAL);
        assert_int_equal(kvcache_cancel(NULL, 0), -EINVAL);
        assert_int_equal(kvcache_inflight(NULL), 0);
        assert_non_null(kvcache_error(NULL));
        kvcache_close(NULL);
        kvcache_staging_release(NULL, NULL);
        assert_string_equal(kvcache_status_name(KVCACHE_OK), "ok");
        assert_string_equal(kvcache_status_name(KVCACHE_PENDING), "pending");
        assert_string_equal(kvcache_status_name(-1), "unknown");
        assert_string_equal(kvcache_status_name(99), "unknown");
        for (int i = 0; i <= KVCACHE_NOT_EMPTY; i++)
                assert_string_not_equal(kvcache_status_name(i), "unknown");
}

/* --- namespaces --- */

static void test_namespace_mismatch_names_the_field(void **state)
{
        struct rig *f = *state;
        struct kvcache_namespace_options o = { .size = sizeof(o),
                                               .name = "ns",
                                               .fingerprint = "dtype=fp8\n" };
        uint32_t ns = 77;

        start(f, NULL);
        assert_int_equal(kvcache_namespace_open(f->kv, &o, &ns), -EEXIST);
        assert_non_null(strstr(kvcache_error(f->kv), "dtype"));
        assert_int_equal(ns, 77);

        o = (struct kvcache_namespace_options){ .size = sizeof(o),
                                                .name = "none",
                                                .flags = KVCACHE_ATTACH };
        assert_int_equal(kvcache_namespace_open(f->kv, &o, &ns), -ENOENT);
        o.name = "ns";
        assert_int_equal(kvcache_namespace_open(f->kv, &o, &ns), 0);
        assert_int_not_equal(ns, f->ns);
        assert_int_equal(open_namespace(f->kv, "ns"), f->ns);

        o.fingerprint = "b=1\na=2\n";
        assert_int_equal(kvcache_namespace_open(f->kv, &o, &ns), -EINVAL);
        o.fingerprint = NULL;
        o.flags = 0;
        assert_int_equal(kvcache_namespace_open(f->kv, &o, &ns), -EINVAL);
        o.flags = KVCACHE_ATTACH;
        o.name = "";
        assert_int_equal(kvcache_namespace_open(f->kv, &o, &ns), -EINVAL);
        o.size = 0;
        assert_int_equal(kvcache_namespace_open(f->kv, &o, &ns), -EINVAL);
}

/* --- put, get and the rest --- */

static void test_what_was_put_is_got(void **state)
{
        struct rig *f = *state;
        struct kvcache_key k = rig_key(1), other = rig_key(2);
        uint8_t back[10000];
        struct kvcache_result r;
        size_t length = 0;

        start(f, NULL);
        rig_put(f, 1, 9000);
        assert_int_equal(kvcache_put(f->kv, f->ns, &k, back, 10, KVCACHE_ACCEPTED), KVCACHE_EXISTS);
        assert_int_equal(kvcache_get(f->kv, f->ns, &k, back, sizeof(back), &length), KVCACHE_OK);
        assert_int_equal(length, 9000);
        assert_true(rig_filled(back, 9000, 1));
        assert_int_equal(kvcache_get(f->kv, f->ns, &other, back, sizeof(back), &length),
                         KVCACHE_MISS);

        length = 0;
        assert_int_equal(kvcache_get(f->kv, f->ns, &k, back, 8999, &length), KVCACHE_TOO_LARGE);
        assert_int_equal(length, 9000);
        assert_int_equal(kvcache_get(f->kv, f->ns, &k, NULL, 0, &length), KVCACHE_TOO_LARGE);
        assert_int_equal(kvcache_get(f->kv, f->ns, &k, NULL, 5, &length), -EINVAL);

        assert_int_equal(kvcache_get_map(f->kv, f->ns, &k, &r), KVCACHE_OK);
        assert_true(rig_filled(r.data, r.length, 1));
        assert_int_equal(r.tiers, KVCACHE_TIER_MEMORY);
        assert_int_equal(r.chunk_length, 9000);
        assert_int_equal(kvcache_release(f->kv, &r.lease, 1), 0);
        assert_int_equal(kvcache_get_map(f->kv, f->ns, &other, &r), KVCACHE_MISS);
        assert_int_equal(r.lease.generation, 0);

        assert_int_equal(kvcache_put(f->kv, f->ns, NULL, back, 1, KVCACHE_ACCEPTED), -EINVAL);
        assert_int_equal(kvcache_put(f->kv, f->ns, &k, back, 1, 7), -EINVAL);
        assert_int_equal(kvcache_put(f->kv, 0, &k, back, 1, KVCACHE_ACCEPTED), -EINVAL);
        assert_int_equal(kvcache_put(f->kv, 99, &k, back, 1, KVCACHE_ACCEPTED), -EINVAL);
        assert_int_equal(kvcache_put(f->kv, f->ns, &other, back, (1 << 20) + 1, KVCACHE_ACCEPTED),
                         KVCACHE_TOO_LARGE);
        assert_int_equal(kvcache_put(f->kv, f->ns, &other, back, 0, KVCACHE_ACCEPTED),
                         KVCACHE_INVALID);
}

/* A client that polls for its answers gets the same ones as a client that sleeps. */
static void test_answers_that_are_polled_for_are_the_same(void **state)
{
        static const uint32_t limits_ns[] = { 0, 1000, 2000000000 };
        struct rig *f = *state;
        uint8_t back[9000];
        size_t length = 0;

        start(f, NULL);
        for (unsigned i = 0; i < ARRAY_SIZE(limits_ns); i++) {
                f->kv->spin = (struct spin){ .limit_ns = limits_ns[i] };
                for (unsigned key = 20 * i; key < 20 * i + 20; key++) {
                        struct kvcache_key k = rig_key(key);

                        rig_put(f, key, 9000);
                        assert_int_equal(kvcache_get(f->kv, f->ns, &k, back, sizeof(back), &length),
                                         KVCACHE_OK);
                        assert_true(rig_filled(back, 9000, key));
                }
                assert_true(f->kv->spin.typical_ns <= 4 * (uint64_t)limits_ns[i]);
        }
        assert_true(f->kv->spin.typical_ns > 0);

        struct kvcache_options o = { .size = sizeof(o),
                                     .flags = KVCACHE_NO_SPIN,
                                     .socket_path = f->path };
        struct kvcache *kv;

        fake_daemon_lock(f->d);
        f->d->o.spin_us = 700;
        fake_daemon_unlock(f->d);
        assert_int_equal(kvcache_connect(&kv, &o, NULL, 0), 0);
        assert_int_equal(kv->spin.limit_ns, 0);
        kvcache_close(kv);
        o.flags = KVCACHE_NO_SPIN << 1;
        assert_int_equal(kvcache_connect(&kv, &o, NULL, 0), -EINVAL);
}

static void reconnect(struct rig *f, uint32_t spin_us)
{
        struct kvcache_key k = rig_key(1);
        struct kvcache_completion c;
        struct kvcache_result r;

        fake_daemon_lock(f->d);
        f->d->o.spin_us = spin_us;
        fake_daemon_unlock(f->d);
        fake_daemon_hang_up(f->d);
        wait_readable(kvcache_fd(f->kv));
        assert_int_equal(kvcache_reap(f->kv, &c, 1, 0), 0);
        assert_int_equal(kvcache_get_map(f->kv, f->ns, &k, &r), KVCACHE_MISS);
}

/* A client polls as long as its daemon's threads, whatever an earlier daemon said, and not at all
 * if polling is off. */
static void test_a_client_polls_as_long_as_the_daemon_says(void **state)
{
        struct rig *f = *state;

        start(f, NULL);
        f->kv->spin = (struct spin){ .limit_ns = SPIN_LIMIT_NS }; /* the state on four processors */
        reconnect(f, 700);
        assert_int_equal(f->kv->spin.limit_ns, 700000);
        f->kv->spin.typical_ns = 2800000;
        reconnect(f, 0);
        assert_int_equal(f->kv->spin.limit_ns, SPIN_LIMIT_NS);
        assert_true(f->kv->spin.typical_ns <= 4 * SPIN_LIMIT_NS);
        reconnect(f, UINT32_MAX);
        assert_int_equal(f->kv->spin.limit_ns, SPIN_LONG_LIMIT_NS);
        f->kv->spin.limit_ns = 0;
        reconnect(f, 700);
        assert_int_equal(f->kv->spin.limit_ns, 0);
}

static void test_releases_ride_and_end_once(void **state)
{
        struct rig *f = *state;
        struct kvcache_key k = rig_key(1);
        struct kvcache_result a, b;
        unsigned sent;

        start(f, NULL);
        rig_put(f, 1, 100);
        assert_int_equal(kvcache_get_map(f->kv, f->ns, &k, &a), KVCACHE_OK);
        assert_int_equal(kvcache_get_map(f->kv, f->ns, &k, &b), KVCACHE_OK);
        assert_true(fake_daemon_wait_leases(f->d, 2));

        assert_int_equal(kvcache_release(f->kv, &a.lease, 1), 0);
        assert_int_equal(kvcache_release(f->kv, &a.lease, 1),
                         0); /* twice: the second one has no effect */
        assert_int_equal(kvcache_ping(f->kv, NULL), 0);
        assert_true(fake_daemon_wait_leases(f->d, 2)); /* a ping carries none */
        rig_put(f, 2, 100);
        assert_true(fake_daemon_wait_leases(f->d, 1));

        /* The row is reused by another lease, and the old name still ends nothing. */
        assert_int_equal(kvcache_get_map(f->kv, f->ns, &k, &b), KVCACHE_OK);
        assert_int_equal(kvcache_release(f->kv, &a.lease, 1), 0);
        assert_int_equal(kvcache_flush(f->kv), 0);
        assert_int_equal(kvcache_ping(f->kv, NULL), 0);
        assert_true(fake_daemon_wait_leases(f->d, 2));

        assert_int_equal(kvcache_release(f->kv, &b.lease, 1), 0);
        assert_int_equal(kvcache_flush(f->kv), 0);
        assert_true(fake_daemon_wait_leases(f->d, 1));
        a.lease = (struct kvcache_lease){ 12345, 1 };
        assert_int_equal(kvcache_release(f->kv, &a.lease, 1), 0);
        assert_int_equal(kvcache_release(f->kv, NULL, 0), 0);
        assert_int_equal(kvcache_release(f->kv, NULL, 1), -EINVAL);
        sent = rig_peek(f, &f->d->requests[WIRE_RELEASE]);
        assert_int_equal(sent, 1); /* the empty flush sent nothing */
        assert_int_equal(rig_peek(f, &f->d->stale_releases), 0);
}

static void test_many_releases_go_by_themselves(void **state)
{
        struct rig *f = *state;
        struct kvcache_key *keys = calloc(1500, sizeof(*keys));
        struct kvcache_result *r = calloc(1500, sizeof(*r));
        struct kvcache_request q;

        start(f, NULL);
        rig_put(f, 1, 100);
        for (size_t i = 0; i < 1500; i++)
                keys[i] = rig_key(1);
        q = rig_request(f, KVCACHE_OP_GET, keys, 1500, r);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        assert_true(fake_daemon_wait_leases(f->d, 1500));
        for (size_t i = 0; i < 1500; i++) {
                assert_true(rig_filled(r[i].data, 100, 1));
                assert_int_equal(kvcache_release(f->kv, &r[i].lease, 1), 0);
        }
        assert_true(fake_daemon_wait(f->d, &f->d->releases, 1024));
        assert_int_equal(kvcache_flush(f->kv), 0);
        assert_true(fake_daemon_wait_leases(f->d, 0));
        free(keys);
        free(r);
}

static void test_what_a_chunk_costs_is_said_to_daemons_that_know_of_costs(void **state)
{
        struct rig *f = *state;

        for (unsigned is_old = 0; is_old < 2; is_old++) {
                char bytes[] = "bytes";
                struct kvcache_entry e = {
                        .key = rig_key(9), .data = bytes, .length = 5, .cost_us = 1234
                };
                struct kvcache_result r = { 0 };
                struct kvcache_request q;

                start(f, &(struct fake_options){ .is_old = is_old });
                kvcache_prep_put(&q, f->ns, &e, 1, KVCACHE_ACCEPTED, &r);
                assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
                assert_int_equal(r.status, KVCACHE_OK);
                assert_int_equal(f->d->log[f->d->n_log - 1].op, WIRE_PUT);
                assert_int_equal(f->d->log[f->d->n_log - 1].cost_us, is_old ? 0 : 1234);
                if (!is_old) {
                        assert_int_equal(rig_teardown(state), 0);
                        assert_int_equal(rig_setup(state), 0);
                        f = *state;
                }
        }
}

/* The daemon would end the session over an unknown message. */
static void test_an_old_daemon_is_not_asked_to_prefetch(void **state)
{
        struct rig *f = *state;
        struct kvcache_key key = rig_key(1);
        struct kvcache_request q;

        start(f, &(struct fake_options){ .is_old = true });
        q = rig_request(f, KVCACHE_OP_PIN, &key, 1, &(struct kvcache_result){ 0 });
        assert_int_equal(kvcache_submit(f->kv, &q), -EOPNOTSUPP);
        q = rig_request(f, KVCACHE_OP_HINT, &key, 1, NULL);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), -EOPNOTSUPP);
        q = rig_request(f, KVCACHE_OP_PREFETCH, &key, 1, NULL);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), -EOPNOTSUPP);
        assert_int_equal(kvcache_submit(f->kv, &q), -EOPNOTSUPP);
        rig_put(f, 1, 100); /* the session stands */

        /* The current daemon counts; an older one's arrival need not have been noticed. */
        restart(f, NULL);
        rig_put(f, 1, 100);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        restart(f, &(struct fake_options){ .is_old = true });
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), -EOPNOTSUPP);
        rig_put(f, 1, 100);
        fake_daemon_free(f->d);
        assert_int_equal(kvcache_ping(f->kv, NULL), -ENOTCONN);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), -ENOTCONN);
        f->d = fake_daemon_start(f->path, NULL);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
}

static void test_exists_match_touch_stat_evict_list_purge(void **state)
{
        struct rig *f = *state;
        struct kvcache_key keys[6];
        struct kvcache_result r[6];
        struct kvcache_listed listed[4];
        struct kvcache_request q;
        uint64_t value = 99, cursor = 0;
        size_t seen = 0;
        char *text = NULL;
        int n;

        start(f, NULL);
        for (unsigned i = 0; i < 6; i++) {
                keys[i] = rig_key(i);
                if (i != 3)
                        rig_put(f, i, 100 + i);
        }
        q = rig_request(f, KVCACHE_OP_EXISTS, keys, 6, r);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, &value), 0);
        assert_int_equal(value, 0);
        for (unsigned i = 0; i < 6; i++) {
                assert_int_equal(r[i].status, i == 3 ? KVCACHE_MISS : KVCACHE_OK);
                assert_int_equal(r[i].tiers, i == 3 ? 0 : KVCACHE_TIER_MEMORY);
        }
        q = rig_request(f, KVCACHE_OP_MATCH, keys, 6, NULL);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, &value), 0);
        assert_int_equal(value, 3);
        q.results = r;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, &value), 0);
        assert_int_equal(r[2].status, KVCACHE_OK);
        assert_int_equal(r[3].status, KVCACHE_MISS);
        q = rig_request(f, KVCACHE_OP_TOUCH, keys, 6, NULL);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        q = rig_request(f, KVCACHE_OP_PREFETCH, keys, 6, NULL);
        q.flags = KVCACHE_MORE;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        q.results = r;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        for (unsigned i = 0; i < 6; i++)
                assert_int_equal(r[i].status, i == 3 ? KVCACHE_MISS : KVCACHE_OK);
        q.flags = KVCACHE_NOWAIT;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), -EINVAL);

        /* The message with the end of the chain goes first. */
        q = rig_request(f, KVCACHE_OP_HINT, keys, 6, r);
        for (unsigned return_s = 0; return_s < 2; return_s++) {
                memset(r, 0xee, sizeof(r));
                q.return_s = return_s;
                assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
                for (unsigned i = 0; i < 6; i++)
                        assert_int_equal(r[i].status, i == 3 ? KVCACHE_MISS : KVCACHE_OK);
                assert_memory_equal(f->d->hinted.bytes, keys[0].bytes, KEY_BYTES);
        }
        assert_int_equal(f->d->hint, WIRE_HINT_RETURN);
        q.flags = KVCACHE_MORE;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), -EINVAL);

        for (unsigned pinned = 0; pinned < 2; pinned++) {
                q = rig_request(f, pinned ? KVCACHE_OP_PIN : KVCACHE_OP_UNPIN, keys, 6, r);
                memset(r, 0xee, sizeof(r));
                assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
                for (unsigned i = 0; i < 6; i++)
                        assert_int_equal(r[i].status, i == 3 ? KVCACHE_MISS : KVCACHE_OK);
                assert_int_equal(f->d->hint, pinned ? WIRE_HINT_PIN : WIRE_HINT_UNPIN);
                q.return_s = 1;
                assert_true(kvcache_submit_and_wait(f->kv, &q, NULL) < 0);
                q.return_s = 0;
                q.results = NULL; /* whether it was pinned must be seen */
                assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), -EINVAL);
        }
        q = rig_request(f, KVCACHE_OP_STAT, keys, 6, r);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        assert_int_equal(r[3].status, KVCACHE_MISS);
        assert_int_equal(r[4].length, 104);
        assert_int_equal(r[4].crc32c, 0x12345678);
        assert_int_equal(r[4].leases, 3);
        assert_int_equal(r[4].created_ms, 1700000000000);
        assert_int_equal(r[4].memory.age, 7);
        assert_int_equal(r[4].memory.worth, -256);
        assert_int_equal(r[4].memory.reuse_class, KVCACHE_CLASS_FINAL);
        assert_int_equal(r[4].memory.flags, KVCACHE_STANDING_NEXT);
        assert_int_equal(r[4].disk.reuse_class, KVCACHE_CLASS_NONE);

        do {
                n = kvcache_list(f->kv, f->ns, &cursor, listed, 2);
                assert_true(n >= 0 && n <= 2);
                seen += (size_t)n;
        } while (cursor != 0);
        assert_int_equal(seen, 5);
        assert_int_equal(kvcache_list(f->kv, f->ns, &cursor, listed, 0), -EINVAL);
        assert_int_equal(kvcache_list(f->kv, 55, &cursor, listed, 1), -EINVAL);

        q = rig_request(f, KVCACHE_OP_EVICT, keys, 1, r);
        q.tiers = KVCACHE_TIER_MEMORY;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        assert_int_equal(r[0].status, KVCACHE_OK);
        q.tiers = 0;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        assert_int_equal(r[0].status, KVCACHE_MISS);
        q.tiers = KVCACHE_TIER_DISK;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), -EINVAL);

        assert_int_equal(kvcache_purge(f->kv, f->ns, &value), 0);
        assert_int_equal(value, 4);
        assert_int_equal(kvcache_purge_all(f->kv, NULL), 0);
        assert_int_equal(kvcache_ping(f->kv, &value), 0);
        assert_true(value > 0);
        assert_int_equal(kvcache_report(f->kv, KVCACHE_REPORT_STATUS, &text), 0);
        assert_string_equal(text, "{\"state\": \"fake\"}");
        free(text);
        assert_int_equal(kvcache_report(f->kv, 17, &text), -EINVAL);
}

static void test_a_session_is_asked_for_by_a_name_or_by_none(void **state)
{
        struct rig *f = *state;
        char name[66], *text = NULL;

        start(f, NULL);
        memset(name, 'a', sizeof(name));
        name[64] = '\0';
        assert_int_equal(kvcache_bench_session(f->kv, KVCACHE_BENCH_INIT, name, 0, &text), 0);
        assert_string_equal(text, "{\"state\": \"fake\"}");
        free(text);
        assert_int_equal(kvcache_bench_session(f->kv, KVCACHE_BENCH_RESET, NULL, 0, NULL), 0);
        assert_int_equal(kvcache_bench_session(f->kv, KVCACHE_BENCH_LIST, NULL, 0, NULL), 0);
        name[64] = 'a';
        name[65] = '\0';
        for (int action = -1; action < 10; action++) {
                assert_int_equal(kvcache_bench_session(f->kv, action, name, 0, &text), -EINVAL);
                assert_int_equal(kvcache_bench_session(f->kv, action, "", 0, &text), -EINVAL);
                if (action != KVCACHE_BENCH_INIT)
                        assert_int_equal(kvcache_bench_session(f->kv, action, "a",
                                                               KVCACHE_BENCH_FORCE, &text),
                                         -EINVAL);
        }
        assert_int_equal(kvcache_bench_session(f->kv, KVCACHE_BENCH_INIT, NULL, 0, &text), -EINVAL);
        assert_int_equal(kvcache_bench_session(f->kv, KVCACHE_BENCH_INIT, "a", 3, &text), -EINVAL);
        assert_int_equal(kvcache_bench_session(f->kv, KVCACHE_BENCH_LIST, "a", 0, &text), -EINVAL);
        assert_int_equal(kvcache_ping(f->kv, NULL), 0);
}

static void test_verify_walks_and_says_what_is_wrong(void **state)
{
        struct rig *f = *state;
        struct kvcache_verify v = { .size = sizeof(v) };
        uint64_t chunks = 0, bad = 0;

        start(f, NULL);
        do {
                assert_int_equal(kvcache_verify(f->kv, &v), 0);
                chunks += v.chunks;
                bad += v.mismatched;
                assert_int_equal(v.volumes, 1);
        } while (v.segment < v.segments);
        assert_int_equal(chunks, 6);
        assert_int_equal(bad, 3);
        assert_int_equal(v.size, sizeof(v));

        v = (struct kvcache_verify){ .size = sizeof(v), .volume = 1 };
        assert_int_equal(kvcache_verify(f->kv, &v), -EINVAL);
        v = (struct kvcache_verify){ .size = sizeof(v), .max_chunks = 65537 };
        assert_int_equal(kvcache_verify(f->kv, &v), -EINVAL);
        v = (struct kvcache_verify){ .size = sizeof(v) - 1 };
        assert_int_equal(kvcache_verify(f->kv, &v), -EINVAL);
        assert_int_equal(kvcache_verify(f->kv, NULL), -EINVAL);

        /* A truncated result ends the session, and the request has no answer. */
        fake_daemon_lock(f->d);
        f->d->o.short_verify = true;
        fake_daemon_unlock(f->d);
        v = (struct kvcache_verify){ .size = sizeof(v), .segment = 1 };
        assert_int_equal(kvcache_verify(f->kv, &v), -EBADMSG);
        assert_int_equal(v.segment, 1);
        assert_int_equal(kvcache_ping(f->kv, NULL), 0);
}

static void test_namespaces_are_listed_page_by_page_and_removed(void **state)
{
        struct rig *f = *state;
        struct kvcache_namespace_options o = { .size = sizeof(o), .fingerprint = "a=b\n" };
        struct kvcache_namespace_info list[2], one;
        char *fingerprint = NULL, name[8];
        uint64_t cursor = 0, dropped = 0;
        unsigned seen = 0;
        uint32_t handle;

        start(f, NULL);
        for (unsigned i = 0; i < 5; i++) {
                snprintf(name, sizeof(name), "many-%u", i);
                o.name = name;
                assert_int_equal(kvcache_namespace_open(f->kv, &o, &handle), 0);
        }
        do {
                int n = kvcache_namespace_list(f->kv, NULL, &cursor, list, 2);

                assert_true(n > 0);
                for (int i = 0; i < n; i++, seen++) {
                        assert_string_equal(list[i].tenant, "fake");
                        assert_int_equal(list[i].owner, 1000 + seen);
                        assert_int_equal(list[i].may_remove, 1);
                }
        } while (cursor != 0);
        assert_int_equal(seen, 6); /* including the rig's own */
        assert_string_equal(list[1].name, "many-4");

        assert_int_equal(kvcache_namespace_stat(f->kv, "many-2", "fake", &one, &fingerprint), 0);
        assert_string_equal(one.name, "many-2");
        assert_string_equal(fingerprint, "a=b\n");
        free(fingerprint);
        assert_int_equal(kvcache_namespace_stat(f->kv, "many-9", NULL, &one, NULL), -ENOENT);

        rig_put(f, 1, 10);
        assert_int_equal(kvcache_namespace_remove(f->kv, "many-4", NULL, 0, NULL), -ENOTEMPTY);
        assert_non_null(strstr(kvcache_error(f->kv), "it has chunks"));
        assert_int_equal(kvcache_namespace_remove(f->kv, "many-4", NULL, KVCACHE_PURGE, &dropped),
                         0);
        assert_int_equal(dropped, 1);
        assert_int_equal(kvcache_namespace_remove(f->kv, "many-4", NULL, 0, NULL), -ENOENT);
        /* A handle of the namespace opens it again. */
        assert_int_equal(kvcache_purge(f->kv, handle, NULL), 0);
        assert_int_equal(kvcache_namespace_stat(f->kv, "many-4", NULL, &one, NULL), 0);

        assert_int_equal(kvcache_namespace_list(f->kv, "", &cursor, list, 2), -EINVAL);
        assert_int_equal(kvcache_namespace_list(f->kv, NULL, NULL, list, 2), -EINVAL);
        assert_int_equal(kvcache_namespace_list(f->kv, NULL, &cursor, list, 0), -EINVAL);
        assert_int_equal(kvcache_namespace_stat(f->kv, "a\n", NULL, &one, NULL), -EINVAL);
        assert_int_equal(kvcache_namespace_stat(f->kv, NULL, NULL, &one, NULL), -EINVAL);
        assert_int_equal(kvcache_namespace_remove(f->kv, "", NULL, 0, NULL), -EINVAL);
        assert_int_equal(kvcache_namespace_remove(f->kv, "a", NULL, 2, NULL), -EINVAL);
}

/* A chain that is announced in several messages or requests is read as one chain by a daemon that
 * knows the key before each of them. */
static void test_an_announced_return_names_the_key_before_it(void **state)
{
        struct rig *f = *state;
        const struct key root = { 0 };
        struct kvcache_key keys[6];
        struct kvcache_request q;

        for (unsigned i = 0; i < 6; i++)
                keys[i] = rig_key(i);
        for (unsigned is_known = 0; is_known < 2; is_known++) {
                struct fake_options o = { .max_keys = 2, .hint_parent = is_known };

                if (is_known)
                        restart(f, &o);
                else
                        start(f, &o);
                q = rig_request(f, KVCACHE_OP_HINT, keys + 1, 5, NULL);
                q.parent = keys;
                q.return_s = 9;
                assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
                assert_int_equal(f->d->n_hints, 3);
                for (unsigned i = 0; i < 3; i++) /* the message with the end goes first */
                        assert_memory_equal(&f->d->hint_parents[i],
                                            is_known ? (void *)&keys[4 - 2 * i] : &root, KEY_BYTES);
                q.return_s = 0; /* the end of a chain names no key before it */
                assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
                assert_int_equal(f->d->n_hints, 6);
                for (unsigned i = 3; i < 6; i++)
                        assert_memory_equal(&f->d->hint_parents[i], &root, KEY_BYTES);
        }
        assert_int_equal(f->d->bad_requests, 0);
}

static void test_a_namespace_has_the_lifetime_that_it_was_given(void **state)
{
        struct rig *f = *state;
        struct kvcache_namespace_options o = {
                .size = sizeof(o), .fingerprint = "a=b\n", .name = "brief", .lifetime_s = 90
        };
        struct kvcache_namespace_info one;
        uint32_t handle, again;

        start(f, NULL);
        assert_int_equal(kvcache_namespace_open(f->kv, &o, &handle), 0);
        assert_int_equal(kvcache_namespace_stat(f->kv, "brief", NULL, &one, NULL), 0);
        assert_int_equal(one.lifetime_s, 90);
        assert_int_equal(kvcache_namespace_open(f->kv, &o, &again), 0);
        assert_int_equal(again, handle);
        assert_int_equal(kvcache_namespace_set_lifetime(f->kv, "brief", "fake", UINT32_MAX), 0);
        assert_int_equal(kvcache_namespace_stat(f->kv, "brief", NULL, &one, NULL), 0);
        assert_int_equal(one.lifetime_s, UINT32_MAX);
        assert_int_equal(kvcache_namespace_set_lifetime(f->kv, "none", NULL, 0), -ENOENT);
        assert_int_equal(kvcache_namespace_set_lifetime(f->kv, NULL, NULL, 0), -EINVAL);
        assert_int_equal(kvcache_namespace_set_lifetime(f->kv, "a\n", NULL, 0), -EINVAL);
        assert_int_equal(kvcache_namespace_set_lifetime(f->kv, "a", "", 0), -EINVAL);
        o.flags = KVCACHE_ATTACH;
        assert_int_equal(kvcache_namespace_open(f->kv, &o, &handle), -EINVAL);
        o.flags = 0;
        o.reserved = 1;
        assert_int_equal(kvcache_namespace_open(f->kv, &o, &handle), -EINVAL);
}

enum { LIE_NONE, LIE_BYTES, LIE_LESS, LIE_NAME, LIE_NUL, LIE_COUNT, LIE_REST, LIE_END };
static int list_lie;

static size_t lie_of_namespaces(struct fake_daemon *d, const struct wire_hdr *request,
                                struct wire_reply *reply, size_t bytes)
{
        struct wire_namespace_info *info = (struct wire_namespace_info *)(reply + 1);

        if (request->op != WIRE_NAMESPACES)
                return bytes;
        switch (list_lie) {
        case LIE_BYTES:
                info->bytes = UINT16_MAX;
                break;
        case LIE_LESS:
                info->bytes = sizeof(*info);
                break;
        case LIE_NAME:
                info->name_length = 255;
                break;
        case LIE_NUL:
                *(char *)(info + 1) = '\0';
                break;
        case LIE_COUNT:
                reply->count++;
                break;
        case LIE_REST:
                reply->count = 0;
                break;
        }
        return bytes;
}

static void test_a_malformed_list_of_namespaces_is_refused(void **state)
{
        struct rig *f = *state;
        struct fake_options o = { .reply = lie_of_namespaces };
        struct kvcache_namespace_info list[4];
        uint64_t cursor;

        start(f, &o);
        for (int i = LIE_NONE; i < LIE_END; i++) {
                fake_daemon_lock(f->d);
                list_lie = i;
                fake_daemon_unlock(f->d);
                cursor = 0;
                assert_int_equal(kvcache_namespace_list(f->kv, NULL, &cursor, list, 4),
                                 i == LIE_NONE ? 1 : -EBADMSG);
        }
}

static void test_an_old_daemon_is_not_asked_for_namespaces(void **state)
{
        struct rig *f = *state;
        struct fake_options o = { .is_old = true };
        struct kvcache_namespace_info one;
        uint64_t cursor = 0;

        start(f, &o);
        assert_int_equal(kvcache_namespace_list(f->kv, NULL, &cursor, &one, 1), -EOPNOTSUPP);
        assert_int_equal(kvcache_namespace_stat(f->kv, "a", NULL, &one, NULL), -EOPNOTSUPP);
        assert_int_equal(kvcache_namespace_remove(f->kv, "a", NULL, 0, NULL), -EOPNOTSUPP);
        assert_int_equal(kvcache_namespace_set_lifetime(f->kv, "a", NULL, 1), -EOPNOTSUPP);
        {
                struct kvcache_namespace_options o2 = {
                        .size = sizeof(o2), .fingerprint = "", .name = "brief", .lifetime_s = 1
                };
                uint32_t handle;

                /* The daemon would keep the chunks without a limit, silently. */
                assert_int_equal(kvcache_namespace_open(f->kv, &o2, &handle), -EOPNOTSUPP);
                o2.lifetime_s = 0;
                assert_int_equal(kvcache_namespace_open(f->kv, &o2, &handle), 0);
        }
        assert_int_equal(kvcache_bench_session(f->kv, KVCACHE_BENCH_LIST, NULL, 0, NULL),
                         -EOPNOTSUPP);
        assert_int_equal(kvcache_ping(f->kv, NULL), 0);
}

static int list_sessions(struct kvcache *kv)
{
        return kvcache_bench_session(kv, KVCACHE_BENCH_LIST, NULL, 0, NULL);
}

static int record(struct kvcache *kv)
{
        int fd;

        return kvcache_record(kv, 1, &fd);
}

static int reload(struct kvcache *kv)
{
        return kvcache_reload(kv, NULL);
}

static int report_stages(struct kvcache *kv)
{
        char *text;

        return kvcache_report(kv, KVCACHE_REPORT_STAGES, &text);
}

static int report_namespaces(struct kvcache *kv)
{
        char *text;

        return kvcache_report(kv, KVCACHE_REPORT_NAMESPACES, &text);
}

/* A call takes replies before it fails, and kvcache_fd() still reports the requests that these have
 * completed. */
static void test_a_call_that_an_old_daemon_lacks_leaves_completions_readable(void **state)
{
        static int (*const calls[])(struct kvcache * kv) = { list_sessions, record, reload,
                                                             report_stages, report_namespaces };
        struct kvcache_key k = rig_key(1);
        struct rig *f = *state;
        struct fake_options o = { .is_old = true };
        struct kvcache_result r;
        struct kvcache_request q;

        start(f, &o);
        rig_put(f, 1, 100);
        assert_int_equal(kvcache_get_map(f->kv, f->ns, &k, &r), 0);
        fake_daemon_hold(f->d, 1u << WIRE_RELEASE); /* calls take replies while one is in flight */
        assert_int_equal(kvcache_release(f->kv, &r.lease, 1), 0);
        assert_int_equal(kvcache_flush(f->kv), 0);
        k = rig_key(2);
        for (size_t i = 0; i < ARRAY_SIZE(calls); i++) {
                q = rig_request(f, KVCACHE_OP_GET, &k, 1, &r);
                q.user_data = i;
                assert_int_equal(kvcache_submit(f->kv, &q), 0);
                wait_readable(kvcache_fd(f->kv));
                assert_int_equal(calls[i](f->kv), -EOPNOTSUPP);
                /* long before the request's deadline, at which it is readable in any case */
                assert_true(readable(kvcache_fd(f->kv), test_timeout_ms(1000)));
                assert_int_equal(rig_reap(f).user_data, i);
        }
        fake_daemon_hold(f->d, 0);
}

static void test_senseless_requests_are_refused_whole_and_senseless_keys_alone(void **state)
{
        struct rig *f = *state;
        struct kvcache_key keys[3] = { rig_key(1), { { 0 } }, rig_key(2) };
        struct kvcache_entry entry = { .key = rig_key(1), .range_offset = 1ull << 32 };
        struct kvcache_result r[3];
        struct kvcache_request q;
        uint64_t value;

        start(f, NULL);
        rig_put(f, 1, 10);
        rig_put(f, 2, 10);
        q = rig_request(f, KVCACHE_OP_EXISTS, keys, 3, r);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        assert_int_equal(r[0].status, KVCACHE_OK);
        assert_int_equal(r[1].status, KVCACHE_INVALID);
        assert_int_equal(r[2].status, KVCACHE_OK);
        q.op = KVCACHE_OP_MATCH;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, &value), 0);
        assert_int_equal(value, 1);

        q.op = KVCACHE_OP_GET;
        q.keys = NULL;
        q.count = 1;
        assert_int_equal(kvcache_submit(f->kv, &q), -EINVAL);
        q.entries = &entry;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        assert_int_equal(r[0].status, KVCACHE_INVALID);
        q.keys = keys;
        assert_int_equal(kvcache_submit(f->kv, &q), -EINVAL);
        q.entries = NULL;
        q.op = 77;
        assert_int_equal(kvcache_submit(f->kv, &q), -EINVAL);
        q.op = KVCACHE_OP_PUT;
        assert_int_equal(kvcache_submit(f->kv, &q), -EINVAL);
        q.op = KVCACHE_OP_GET;
        q.flags = KVCACHE_KEEP_LEASE;
        assert_int_equal(kvcache_submit(f->kv, &q), -EINVAL);
        q.flags = 0;
        q.results = NULL;
        assert_int_equal(kvcache_submit(f->kv, &q), -EINVAL);
        q.results = r;
        q.timeout_ms = -1;
        assert_int_equal(kvcache_submit(f->kv, &q), -EINVAL);
        q.timeout_ms = 0;
        q.size = 12;
        assert_int_equal(kvcache_submit(f->kv, &q), -EINVAL);
        assert_int_equal(kvcache_submit(f->kv, NULL), -EINVAL);
        assert_int_equal(kvcache_inflight(f->kv), 0);

        /* A request without keys is not sent, but completes. */
        q = rig_request(f, KVCACHE_OP_GET, NULL, 0, NULL);
        q.user_data = 5;
        assert_int_equal(kvcache_submit(f->kv, &q), 0);
        wait_readable(kvcache_fd(f->kv));
        assert_int_equal(rig_reap(f).user_data, 5);
        assert_false(readable(kvcache_fd(f->kv), 0));
}

static void test_ranges_and_places(void **state)
{
        struct rig *f = *state;
        struct kvcache_entry e[2];
        struct kvcache_result r[2];
        struct kvcache_request q;
        uint8_t out[600];
        uint8_t *place, *all = malloc(5000);

        start(f, NULL);
        rig_put(f, 1, 5000);
        rig_fill(all, 5000, 1);
        e[0] = (struct kvcache_entry){ .key = rig_key(1),
                                       .range_offset = 1000,
                                       .range_length = 500 };
        e[1] = (struct kvcache_entry){ .key = rig_key(1), .range_offset = 5000 };
        q = rig_request(f, KVCACHE_OP_GET, NULL, 2, r);
        q.entries = e;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        assert_int_equal(r[0].status, KVCACHE_OK);
        assert_int_equal(r[0].length, 500);
        assert_int_equal(r[0].chunk_length, 5000);
        assert_memory_equal(r[0].data, all + 1000, 500);
        assert_int_equal(r[1].status, KVCACHE_INVALID);
        assert_int_equal(kvcache_release(f->kv, &r[0].lease, 1), 0);

        /* A get into the staging area is copied by the daemon, without a lease. */
        assert_int_equal(kvcache_staging_acquire(f->kv, 600, (void **)&place), 0);
        assert_int_equal((uintptr_t)place % 64, 0);
        e[0].data = place + 50;
        e[0].length = 500;
        q.op = KVCACHE_OP_GET_INTO;
        q.count = 1;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        assert_int_equal(r[0].status, KVCACHE_OK);
        assert_memory_equal(place + 50, all + 1000, 500);
        assert_int_equal(r[0].lease.generation, 0);
        e[0].length = 499;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        assert_int_equal(r[0].status, KVCACHE_TOO_LARGE);
        assert_int_equal(r[0].length, 500);
        assert_int_equal(kvcache_memory_settled(f->kv, place, 600), 1);

        /* in the staging area, but outside the place */
        e[0].data = place + 600;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), -EINVAL);
        assert_int_equal(r[0].status, KVCACHE_INVALID);

        /* Elsewhere: the library copies, and its lease goes back. */
        e[0].data = out;
        e[0].length = 500;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        assert_int_equal(r[0].status, KVCACHE_OK);
        assert_memory_equal(out, all + 1000, 500);
        e[0].length = 499;
        memset(out, 0, sizeof(out));
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        assert_int_equal(r[0].status, KVCACHE_TOO_LARGE);
        assert_int_equal(out[0], 0);
        assert_int_equal(kvcache_flush(f->kv), 0);
        assert_true(fake_daemon_wait_leases(f->d, 0));
        free(all);
}

static void test_a_put_can_keep_its_lease(void **state)
{
        struct rig *f = *state;
        uint8_t data[200];
        struct kvcache_entry e = { .key = rig_key(4), .data = data, .length = sizeof(data) };
        struct kvcache_result r;
        struct kvcache_request q = rig_request(f, KVCACHE_OP_PUT, NULL, 1, &r);

        start(f, NULL);
        rig_fill(data, sizeof(data), 4);
        q.namespace_handle = f->ns;
        q.entries = &e;
        q.flags = KVCACHE_KEEP_LEASE | KVCACHE_NOWAIT;
        q.ack = KVCACHE_DURABLE;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        assert_int_equal(r.status, KVCACHE_OK);
        assert_true(rig_filled(r.data, 200, 4));
        assert_int_equal(rig_logged(f, 0).ack, WIRE_DURABLE);
        assert_int_equal(rig_logged(f, 0).flags, WIRE_F_LEASE | WIRE_F_NOWAIT);
        assert_true(rig_logged(f, 0).timeout_ms > 0 &&
                    rig_logged(f, 0).timeout_ms < (unsigned)test_timeout_ms(WAIT_MS));
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        assert_int_equal(r.status, KVCACHE_EXISTS);
        assert_true(rig_filled(r.data, 200, 4));
}

/* --- chains --- */

static void test_a_get_and_the_put_of_the_rest_are_one_chain(void **state)
{
        struct rig *f = *state;
        struct kvcache_key keys[2] = { rig_key(1), rig_key(2) };
        struct kvcache_entry e = { .key = rig_key(3), .data = (void *)"data", .length = 4 };
        struct kvcache_result r[2];
        struct kvcache_request q;
        struct fake_logged l;

        start(f, NULL);
        q = rig_request(f, KVCACHE_OP_GET, keys, 2, r);
        q.flags = KVCACHE_MORE;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        q = rig_request(f, KVCACHE_OP_PUT, NULL, 1, r);
        q.entries = &e;
        q.parent = &keys[1];
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        assert_int_equal(rig_logged(f, 0).flags, WIRE_F_MORE);
        l = rig_logged(f, 1);
        assert_int_equal(l.flags, 0);
        assert_memory_equal(&l.parent, &keys[1], 32);

        /* Only chains may continue. */
        q = rig_request(f, KVCACHE_OP_EXISTS, keys, 2, r);
        q.flags = KVCACHE_MORE;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), -EINVAL);
}

static void test_long_chains_are_several_messages_in_order(void **state)
{
        enum { N = 2500 };
        struct rig *f = *state;
        struct kvcache_key *keys = calloc(N, sizeof(*keys)), parent = rig_key(777777);
        struct kvcache_entry *e = calloc(N, sizeof(*e));
        struct kvcache_result *r = calloc(N, sizeof(*r));
        struct kvcache_request q;
        uint8_t *data = malloc(N * 16);
        struct fake_logged l;
        uint64_t value;

        start(f, NULL);
        for (size_t i = 0; i < N; i++) {
                keys[i] = rig_key(i);
                rig_fill(data + i * 16, 16, i);
                e[i] = (struct kvcache_entry){ .key = keys[i],
                                               .data = data + i * 16,
                                               .length = 16 };
        }
        q = rig_request(f, KVCACHE_OP_PUT, NULL, N, r);
        q.entries = e;
        q.parent = &parent;
        assert_int_equal(kvcache_submit(f->kv, &q), 0);
        memset(data, 0, N * 16); /* the library has its own copy */
        assert_int_equal(rig_reap(f).error, 0);
        for (size_t i = 0; i < N; i++)
                assert_int_equal(r[i].status, KVCACHE_OK);

        assert_int_equal(rig_peek(f, &f->d->n_log), 3);
        assert_int_equal(rig_logged(f, 0).count, 1024);
        assert_int_equal(rig_logged(f, 2).count, N - 2048);
        assert_int_equal(rig_logged(f, 0).flags, WIRE_F_MORE);
        assert_int_equal(rig_logged(f, 1).flags, WIRE_F_MORE);
        assert_int_equal(rig_logged(f, 2).flags, 0);
        l = rig_logged(f, 0);
        assert_memory_equal(&l.parent, &parent, 32);
        l = rig_logged(f, 1);
        assert_memory_equal(&l.parent, &keys[1023], 32);
        l = rig_logged(f, 2);
        assert_memory_equal(&l.parent, &keys[2047], 32);
        l = rig_logged(f, 2);
        assert_memory_equal(&l.first, &keys[2048], 32);

        q = rig_request(f, KVCACHE_OP_GET, keys, N, r);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        for (size_t i = 0; i < N; i++) {
                assert_int_equal(r[i].status, KVCACHE_OK);
                assert_true(rig_filled(r[i].data, 16, i));
                assert_int_equal(kvcache_release(f->kv, &r[i].lease, 1), 0);
        }

        q = rig_request(f, KVCACHE_OP_MATCH, keys, N, NULL);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, &value), 0);
        assert_int_equal(value, N);
        keys[2100] = rig_key(1000000);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, &value), 0);
        assert_int_equal(value, 2100);
        keys[1023] = rig_key(1000001);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, &value), 0);
        assert_int_equal(value, 1023);
        keys[0] = rig_key(1000002);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, &value), 0);
        assert_int_equal(value, 0);
        free(keys);
        free(e);
        free(r);
        free(data);
}

static void test_no_more_in_flight_than_the_daemon_allows(void **state)
{
        struct rig *f = *state;
        struct fake_options o = { .max_inflight = 3, .max_keys = 2 };
        struct kvcache_key keys[20];
        struct kvcache_result r[20];
        struct kvcache_request q;
        struct kvcache_completion c[2];

        start(f, &o);
        for (unsigned i = 0; i < 20; i++)
                keys[i] = rig_key(i);
        rig_put(f, 19, 30);
        fake_daemon_hold(f->d, 1u << WIRE_GET);
        q = rig_request(f, KVCACHE_OP_GET, keys, 20, r);
        assert_int_equal(kvcache_submit(f->kv, &q), 0);
        assert_true(fake_daemon_wait(f->d, &f->d->n_held, 3));
        assert_int_equal(kvcache_reap(f->kv, c, 2, 0), 0);
        assert_int_equal(kvcache_inflight(f->kv), 1);
        assert_int_equal(rig_peek(f, &f->d->n_held), 3);
        fake_daemon_hold(f->d, 0);
        assert_int_equal(rig_reap(f).count, 20);
        assert_int_equal(r[0].status, KVCACHE_MISS);
        assert_int_equal(r[19].status, KVCACHE_OK);
        assert_int_equal(rig_peek(f, &f->d->requests[WIRE_GET]), 10);
}

static void test_a_blocking_call_leaves_other_completions_to_be_reaped(void **state)
{
        struct rig *f = *state;
        struct kvcache_key k = rig_key(1);
        struct kvcache_result r;
        struct kvcache_request q;

        start(f, NULL);
        fake_daemon_hold(f->d, 1u << WIRE_EXISTS);
        q = rig_request(f, KVCACHE_OP_EXISTS, &k, 1, &r);
        q.user_data = 42;
        assert_int_equal(kvcache_submit(f->kv, &q), 0);
        assert_true(fake_daemon_wait(f->d, &f->d->n_held, 1));
        fake_daemon_hold(f->d, 0);
        rig_put(f, 1, 10); /* also takes the other request's reply */
        wait_readable(kvcache_fd(f->kv));
        assert_int_equal(rig_reap(f).user_data, 42);
        assert_false(readable(kvcache_fd(f->kv), 0));
        assert_int_equal(r.status, KVCACHE_MISS);
}

static void test_a_full_socket_delays_and_loses_nothing(void **state)
{
        enum { N = 40 * 1024 };
        struct rig *f = *state;
        struct kvcache_key *keys = calloc(N, sizeof(*keys));
        struct kvcache_result *r = calloc(N, sizeof(*r));
        struct kvcache_completion c;
        struct kvcache_request q;

        start(f, NULL);
        rig_put(f, N - 1, 10);
        for (size_t i = 0; i < N; i++)
                keys[i] = rig_key(i);
        q = rig_request(f, KVCACHE_OP_EXISTS, keys, N, r);
        fake_daemon_lock(f->d); /* the daemon reads nothing now, and 1.3 MB do not fit into a
                                   socket */
        assert_int_equal(kvcache_submit(f->kv, &q), 0);
        assert_int_equal(kvcache_reap(f->kv, &c, 1, 0), 0);
        assert_int_equal(kvcache_reap(f->kv, &c, 1, 20), 0);
        fake_daemon_unlock(f->d);
        do
                wait_readable(kvcache_fd(f->kv));
        while (kvcache_reap(f->kv, &c, 1, 0) == 0);
        assert_int_equal(c.error, 0);
        assert_int_equal(rig_peek(f, &f->d->requests[WIRE_EXISTS]), 40);
        for (size_t i = 0; i < N; i++)
                assert_int_equal(r[i].status, i == N - 1 ? KVCACHE_OK : KVCACHE_MISS);
        assert_false(readable(kvcache_fd(f->kv), 0));
        free(keys);
        free(r);
}

static void test_a_full_socket_that_empties_without_replies_is_noticed(void **state)
{
        enum { N = 40 * 1024 };
        struct rig *f = *state;
        struct kvcache_key *keys = calloc(N, sizeof(*keys));
        struct kvcache_result *r = calloc(N, sizeof(*r));
        struct kvcache_completion c;
        struct kvcache_request q;

        start(f, NULL);
        for (size_t i = 0; i < N; i++)
                keys[i] = rig_key(i);
        q = rig_request(f, KVCACHE_OP_EXISTS, keys, N, r);
        fake_daemon_hold(f->d, 1u << WIRE_EXISTS);
        fake_daemon_lock(f->d);
        assert_int_equal(kvcache_submit(f->kv, &q), 0);
        fake_daemon_unlock(f->d);
        for (unsigned tries = 0; rig_peek(f, &f->d->n_held) < 40; tries++) {
                assert_true(tries < (unsigned)test_timeout_ms(WAIT_MS) / 20);
                if (readable(kvcache_fd(f->kv), 20))
                        assert_int_equal(kvcache_reap(f->kv, &c, 1, 0), 0);
        }
        assert_false(readable(kvcache_fd(f->kv), 0)); /* forgotten once everything is sent */
        fake_daemon_hold(f->d, 0);
        assert_int_equal(rig_reap(f).error, 0);
        free(keys);
        free(r);
}

static void test_drain_without_an_end_waits_for_what_is_in_flight_only(void **state)
{
        struct rig *f = *state;
        struct kvcache_key k = rig_key(1);
        struct kvcache_completion c[3];
        struct kvcache_result r[3];
        struct kvcache_request q;

        start(f, NULL);
        assert_int_equal(kvcache_reap(f->kv, c, 3, -1), 0);
        assert_int_equal(kvcache_reap(f->kv, c, 0, 0), -EINVAL);
        for (unsigned i = 0; i < 3; i++) {
                q = rig_request(f, KVCACHE_OP_EXISTS, &k, 1, &r[i]);
                q.user_data = i;
                assert_int_equal(kvcache_submit(f->kv, &q), 0);
        }
        assert_int_equal(kvcache_inflight(f->kv), 3);
        assert_int_equal(kvcache_reap(f->kv, c, 1, -1), 1);
        assert_int_equal(kvcache_reap(f->kv, c + 1, 1, -1), 1);
        assert_int_equal(kvcache_reap(f->kv, c + 2, 1, -1), 1);
        for (unsigned i = 0; i < 3; i++)
                assert_int_equal(c[i].user_data, i);
        assert_int_equal(kvcache_inflight(f->kv), 0);
}

/* --- time --- */

static void test_a_chain_that_is_partly_sent_goes_on_after_its_deadline(void **state)
{
        struct rig *f = *state;
        struct fake_options o = { .max_inflight = 1, .max_keys = 2 };
        struct kvcache_key keys[6];
        struct kvcache_result r[6];
        struct kvcache_request q;

        start(f, &o);
        for (unsigned i = 0; i < 6; i++) {
                keys[i] = rig_key(i);
                rig_put(f, i, 10);
        }
        fake_daemon_hold(f->d, 1u << WIRE_GET);
        q = rig_request(f, KVCACHE_OP_GET, keys, 6, r);
        q.timeout_ms = 10;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), -ETIMEDOUT);
        for (unsigned i = 0; i < 6; i++)
                assert_int_equal(r[i].status, KVCACHE_PENDING);
        fake_daemon_hold(f->d, 0);
        assert_int_equal(kvcache_ping(f->kv, NULL), 0);
        assert_int_equal(rig_peek(f, &f->d->requests[WIRE_GET]), 3);
        assert_int_equal(kvcache_flush(f->kv), 0);
        assert_true(fake_daemon_wait_leases(f->d, 0));
}

static void test_a_staging_that_comes_late_is_used(void **state)
{
        struct rig *f = *state;
        struct kvcache_options o = { .size = sizeof(o),
                                     .socket_path = f->path,
                                     .request_timeout_ms = 20 };
        void *place;

        f->d = fake_daemon_start(f->path, NULL);
        assert_int_equal(kvcache_connect(&f->kv, &o, NULL, 0), 0);
        fake_daemon_hold(f->d, 1u << WIRE_STAGING);
        assert_int_equal(kvcache_staging_acquire(f->kv, 100, &place), -ETIMEDOUT);
        assert_true(fake_daemon_wait(f->d, &f->d->n_held, 1));
        fake_daemon_hold(f->d, 0);
        while (kvcache_ping(f->kv, NULL) == -ETIMEDOUT) /* 20 ms are little on a busy machine */
                ;
        assert_int_equal(kvcache_staging_acquire(f->kv, 100, &place), 0);
        assert_int_equal(rig_peek(f, &f->d->requests[WIRE_STAGING]), 1);
        memset(place, 1, 100);
}

static void test_a_late_reply_gives_its_leases_back(void **state)
{
        struct rig *f = *state;
        struct kvcache_key k = rig_key(1);
        struct kvcache_entry e = { .key = rig_key(2), .data = (char[]){ "put late" }, .length = 8 };
        struct kvcache_result r;
        struct kvcache_completion c;
        struct kvcache_request q;

        start(f, NULL);
        rig_put(f, 1, 10);
        fake_daemon_hold(f->d, 1u << WIRE_GET);
        q = rig_request(f, KVCACHE_OP_GET, &k, 1, &r);
        q.timeout_ms = 20;
        assert_int_equal(kvcache_submit(f->kv, &q), 0);
        wait_readable(kvcache_fd(f->kv)); /* the timer rings */
        c = rig_reap(f);
        assert_int_equal(c.error, -ETIMEDOUT);
        assert_int_equal(r.status, KVCACHE_PENDING);
        assert_int_equal(kvcache_inflight(f->kv), 0);
        assert_false(readable(kvcache_fd(f->kv), 0));

        memset(&r, 0xee, sizeof(r));
        assert_true(fake_daemon_wait(f->d, &f->d->n_held, 1));
        fake_daemon_hold(f->d, 0);
        assert_true(fake_daemon_wait_leases(f->d, 1));
        wait_readable(kvcache_fd(f->kv));
        assert_int_equal(kvcache_reap(f->kv, &c, 1, 0), 0);
        assert_int_equal(kvcache_flush(f->kv), 0);
        assert_true(fake_daemon_wait_leases(f->d, 0));
        assert_int_equal(r.status, (int)0xeeeeeeee); /* the results were the caller's again */

        fake_daemon_hold(f->d, 1u << WIRE_PUT);
        q = rig_request(f, KVCACHE_OP_PUT, NULL, 1, &r);
        q.entries = &e;
        q.flags = KVCACHE_KEEP_LEASE;
        q.timeout_ms = 10;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), -ETIMEDOUT);
        assert_int_equal(r.status, KVCACHE_PENDING);
        assert_true(fake_daemon_wait(f->d, &f->d->n_held, 1));
        fake_daemon_hold(f->d, 0);
        assert_int_equal(kvcache_ping(f->kv, NULL), 0);
        assert_true(fake_daemon_wait_leases(f->d, 1));
        assert_int_equal(kvcache_flush(f->kv), 0);
        assert_true(fake_daemon_wait_leases(f->d, 0));
}

static void test_a_request_that_was_never_sent_is_taken_back(void **state)
{
        struct rig *f = *state;
        struct fake_options o = { .max_inflight = 1 };
        struct kvcache_key k = rig_key(1);
        uint8_t data[100] = { 1 };
        struct kvcache_entry e = { .key = rig_key(2), .data = data, .length = sizeof(data) };
        struct kvcache_result r[2];
        struct kvcache_request q;

        start(f, &o);
        rig_put(f, 1, 10);
        fake_daemon_hold(f->d, 1u << WIRE_GET);
        q = rig_request(f, KVCACHE_OP_GET, &k, 1, &r[0]);
        assert_int_equal(kvcache_submit(f->kv, &q), 0);
        q = rig_request(f, KVCACHE_OP_PUT, NULL, 1, &r[1]);
        q.entries = &e;
        q.timeout_ms = 10;
        assert_int_equal(kvcache_submit(f->kv, &q), 0);
        assert_int_equal(rig_reap(f).error, -ETIMEDOUT);
        assert_int_equal(r[1].status, KVCACHE_BUSY);
        assert_true(fake_daemon_wait(f->d, &f->d->n_held, 1));
        fake_daemon_hold(f->d, 0);
        assert_int_equal(rig_reap(f).op, KVCACHE_OP_GET);
        assert_int_equal(kvcache_ping(f->kv, NULL), 0);
        assert_int_equal(rig_peek(f, &f->d->requests[WIRE_PUT]), 1);
}

static void test_cancel_takes_back_what_was_not_sent(void **state)
{
        struct rig *f = *state;
        struct fake_options o = { .max_inflight = 1, .max_keys = 2, .staging_max = 64 << 10 };
        struct kvcache_key keys[6];
        uint8_t data[40000] = { 1 };
        struct kvcache_entry e = { .key = rig_key(9), .data = data, .length = sizeof(data) };
        struct kvcache_result r[6], put;
        struct kvcache_completion c;
        struct kvcache_request q;
        void *place;

        start(f, &o);
        for (unsigned i = 0; i < 6; i++) {
                keys[i] = rig_key(i);
                rig_put(f, i, 10);
        }
        fake_daemon_hold(f->d, 1u << WIRE_GET);
        q = rig_request(f, KVCACHE_OP_GET, keys, 6, r);
        q.user_data = 1;
        assert_int_equal(kvcache_submit(f->kv, &q), 0);
        q = rig_request(f, KVCACHE_OP_PUT, NULL, 1, &put);
        q.entries = &e;
        q.user_data = 2;
        assert_int_equal(kvcache_submit(f->kv, &q), 0);
        assert_true(fake_daemon_wait(f->d, &f->d->n_held, 1));
        assert_int_equal(kvcache_cancel(f->kv, 3), 0);

        /* A request that was not sent completes at once, and its place in staging is free. */
        assert_int_equal(kvcache_cancel(f->kv, 2), 1);
        wait_readable(kvcache_fd(f->kv));
        c = rig_reap(f);
        assert_int_equal(c.user_data, 2);
        assert_int_equal(c.error, -ECANCELED);
        assert_int_equal(put.status, KVCACHE_CANCELLED);
        assert_string_equal(kvcache_status_name(put.status), "cancelled");
        assert_false(kvcache_status_ok(put.status));
        assert_int_equal(kvcache_staging_acquire(f->kv, 60000, &place), 0);
        kvcache_staging_release(f->kv, place);

        /* The daemon has the first message of the chain, and is too old to cancel. */
        assert_int_equal(kvcache_cancel(f->kv, 1), 1);
        assert_int_equal(kvcache_inflight(f->kv), 1);
        assert_int_equal(kvcache_reap(f->kv, &c, 1, 0), 0);
        for (unsigned i = 2; i < 6; i++)
                assert_int_equal(r[i].status, KVCACHE_CANCELLED);
        fake_daemon_hold(f->d, 0);
        c = rig_reap(f);
        assert_int_equal(c.error, -ECANCELED);
        assert_int_equal(r[0].status, KVCACHE_OK);
        assert_int_equal(r[1].status, KVCACHE_OK);
        assert_int_equal(kvcache_cancel(f->kv, 1), 0);
        assert_int_equal(rig_peek(f, &f->d->requests[WIRE_GET]), 1);
        assert_int_equal(rig_peek(f, &f->d->requests[WIRE_PUT]), 6);
        assert_int_equal(rig_peek(f, &f->d->requests[WIRE_CANCEL]), 0);

        /* The chain was left open; what follows works. */
        q = rig_request(f, KVCACHE_OP_GET, keys, 2, r);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        assert_int_equal(rig_peek(f, &f->d->bad_requests), 0);
}

static void test_cancel_has_the_daemon_end_what_waits(void **state)
{
        struct rig *f = *state;
        struct fake_options o = { .max_inflight = 3, .max_keys = 2, .cancel = true };
        struct kvcache_entry e[6];
        uint8_t data[100] = { 1 };
        struct kvcache_result r[6], exists;
        struct kvcache_completion c;
        struct kvcache_request q;

        start(f, &o);
        rig_put(f, 100, 10);
        fake_daemon_hold(f->d, 1u << WIRE_PUT | 1u << WIRE_EXISTS);
        for (unsigned i = 0; i < 6; i++)
                e[i] = (struct kvcache_entry){ .key = rig_key(i), .data = data, .length = 100 };
        q = rig_request(f, KVCACHE_OP_PUT, NULL, 6, r);
        q.entries = e;
        q.user_data = 7;
        assert_int_equal(kvcache_submit(f->kv, &q), 0);

        /* One place of the window stays free for a CANCEL. */
        assert_true(fake_daemon_wait(f->d, &f->d->n_held, 2));
        assert_int_equal(kvcache_reap(f->kv, &c, 1, 0), 0);
        assert_int_equal(rig_peek(f, &f->d->n_held), 2);
        assert_int_equal(kvcache_cancel(f->kv, 7), 1);
        c = rig_reap(f);
        assert_int_equal(c.user_data, 7);
        assert_int_equal(c.error, -ECANCELED); /* the third message was taken back */
        for (unsigned i = 0; i < 6; i++)
                assert_int_equal(r[i].status, KVCACHE_CANCELLED);
        assert_int_equal(rig_peek(f, &f->d->requests[WIRE_PUT]), 3);
        assert_int_equal(rig_peek(f, &f->d->requests[WIRE_CANCEL]), 2);

        /* All messages were sent and then cancelled by the daemon, as the statuses show. */
        q.count = 2;
        q.user_data = 8;
        assert_int_equal(kvcache_submit(f->kv, &q), 0);
        assert_int_equal(kvcache_cancel(f->kv, 8), 1);
        c = rig_reap(f);
        assert_int_equal(c.error, 0);
        assert_int_equal(r[0].status, KVCACHE_CANCELLED);
        assert_int_equal(r[1].status, KVCACHE_CANCELLED);

        /* A lookup waits for nothing. */
        q = rig_request(f, KVCACHE_OP_EXISTS, &e[0].key, 1, &exists);
        q.user_data = 9;
        assert_int_equal(kvcache_submit(f->kv, &q), 0);
        assert_int_equal(kvcache_cancel(f->kv, 9), 1);
        fake_daemon_hold(f->d, 0);
        assert_int_equal(rig_reap(f).error, 0);
        assert_int_equal(exists.status, KVCACHE_MISS);
        assert_int_equal(rig_peek(f, &f->d->requests[WIRE_CANCEL]), 3);
        assert_int_equal(kvcache_ping(f->kv, NULL), 0);
        assert_int_equal(rig_peek(f, &f->d->bad_requests), 0);
}

static void test_a_daemon_that_dies_while_it_cancels(void **state)
{
        struct rig *f = *state;
        struct fake_options o = { .cancel = true };
        struct kvcache_key k = rig_key(1);
        struct kvcache_result r;
        struct kvcache_request q;

        start(f, &o);
        fake_daemon_hold(f->d, 1u << WIRE_GET | 1u << WIRE_CANCEL);
        q = rig_request(f, KVCACHE_OP_GET, &k, 1, &r);
        q.user_data = 1;
        assert_int_equal(kvcache_submit(f->kv, &q), 0);
        assert_int_equal(kvcache_cancel(f->kv, 1), 1);
        assert_true(fake_daemon_wait(f->d, &f->d->n_held, 2));
        assert_int_equal(kvcache_cancel(f->kv, 1), 1);
        fake_daemon_hang_up(f->d);
        assert_int_equal(rig_reap(f).error, -ECONNRESET);
        assert_int_equal(r.status, KVCACHE_LOST);
        assert_int_equal(rig_peek(f, &f->d->requests[WIRE_CANCEL]), 1);
        assert_int_equal(kvcache_cancel(f->kv, 1), 0);
        fake_daemon_hold(f->d, 0);
        q.timeout_ms = 0;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        assert_int_equal(r.status, KVCACHE_MISS);
}

static void test_a_place_is_the_daemons_until_the_late_reply(void **state)
{
        struct rig *f = *state;
        struct kvcache_completion c;
        struct kvcache_entry e = { .key = rig_key(1) };
        struct kvcache_result r;
        struct kvcache_request q;
        void *place, *other;

        start(f, NULL);
        rig_put(f, 1, 4096);
        assert_int_equal(kvcache_staging_acquire(f->kv, 1 << 20, &place), 0);
        assert_int_equal(kvcache_staging_acquire(f->kv, 1, &other), -ENOBUFS);
        fake_daemon_hold(f->d, 1u << WIRE_GET);
        e.data = (uint8_t *)place + 8192;
        e.length = 4096;
        q = rig_request(f, KVCACHE_OP_GET_INTO, NULL, 1, &r);
        q.entries = &e;
        q.timeout_ms = 10;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), -ETIMEDOUT);
        assert_int_equal(r.status, KVCACHE_PENDING);
        assert_int_equal(kvcache_memory_settled(f->kv, e.data, 1), 0);
        assert_int_equal(kvcache_memory_settled(f->kv, (uint8_t *)place + 8191, 2), 0);
        assert_int_equal(kvcache_memory_settled(f->kv, place, 8192), 1);
        assert_int_equal(kvcache_memory_settled(f->kv, (uint8_t *)place + 8192 + 4096, 100), 1);
        assert_int_equal(kvcache_memory_settled(f->kv, NULL, 1), -EINVAL);
        assert_int_equal(kvcache_memory_settled(f->kv, place, SIZE_MAX), -EINVAL);

        kvcache_staging_release(f->kv, place);
        assert_int_equal(kvcache_staging_acquire(f->kv, 1, &other), -ENOBUFS);
        fake_daemon_hold(f->d, 0);
        while (kvcache_staging_acquire(f->kv, 1 << 20, &other) == -ENOBUFS)
                assert_int_equal(kvcache_reap(f->kv, &c, 1, 0), 0);
        assert_ptr_equal(place, other);
        assert_int_equal(kvcache_memory_settled(f->kv, e.data, 1), 1);
}

/* --- the staging area --- */

static void test_staging_full_and_too_small(void **state)
{
        struct rig *f = *state;
        struct fake_options o = { .staging_max = 64 * 1024, .pool_bytes = 16 << 20 };
        uint8_t *data = calloc(1, 1 << 20);
        struct kvcache_key k = rig_key(1);
        struct kvcache_entry e[40];
        struct kvcache_result r[40];
        unsigned n_log;
        struct kvcache_request q;
        void *place, *other;

        start(f, &o);
        assert_int_equal(kvcache_put(f->kv, f->ns, &k, data, 64 * 1024 + 1, KVCACHE_ACCEPTED),
                         -E2BIG);
        assert_non_null(strstr(kvcache_error(f->kv), "a chunk of 65537 bytes"));
        assert_non_null(strstr(kvcache_error(f->kv),
                               "65536 bytes: raise memory.staging, or staging_bytes"));
        assert_int_equal(kvcache_staging_acquire(f->kv, 64 * 1024 + 1, &place), -E2BIG);
        assert_int_equal(kvcache_staging_acquire(f->kv, 0, &place), -EINVAL);

        for (unsigned i = 0; i < 40; i++) {
                rig_fill(data + i * 5000, 5000, i);
                e[i] = (struct kvcache_entry){ .key = rig_key(100 + i),
                                               .data = data + i * 5000,
                                               .length = 5000 };
        }
        q = rig_request(f, KVCACHE_OP_PUT, NULL, 40, r);
        q.entries = e;
        assert_int_equal(kvcache_submit(f->kv, &q), -ENOBUFS);
        assert_int_equal(kvcache_inflight(f->kv), 0);

        /* The put proceeds in rounds, as one chain, with the free part of the staging area. */
        assert_int_equal(kvcache_staging_acquire(f->kv, 40 * 1024, &place), 0);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
        for (unsigned i = 0; i < 40; i++)
                assert_int_equal(r[i].status, KVCACHE_OK);
        n_log = rig_peek(f, &f->d->n_log);
        assert_true(n_log > 3);
        for (unsigned i = 0; i < n_log; i++)
                assert_int_equal(rig_logged(f, i).flags, i + 1 < n_log ? WIRE_F_MORE : 0);
        for (unsigned i = 0; i < 40; i++) {
                size_t length;

                assert_int_equal(kvcache_get(f->kv, f->ns, &e[i].key, data, 5000, &length),
                                 KVCACHE_OK);
                assert_true(rig_filled(data, 5000, i));
        }

        /* The whole staging area is free again. */
        kvcache_staging_release(f->kv, place);
        kvcache_staging_release(f->kv, place);
        assert_int_equal(kvcache_staging_acquire(f->kv, 64 * 1024, &other), 0);
        assert_ptr_equal(place, other);
        assert_int_equal(kvcache_put(f->kv, f->ns, &k, data, 5000, KVCACHE_ACCEPTED), -ENOBUFS);
        /* ... and data in a staging place is put without a copy. */
        rig_fill(other, 5000, 1);
        assert_int_equal(kvcache_put(f->kv, f->ns, &k, other, 5000, KVCACHE_ACCEPTED), KVCACHE_OK);
        free(data);
}

static void test_a_blocking_put_waits_for_room_that_others_give_back(void **state)
{
        struct rig *f = *state;
        struct fake_options o = { .staging_max = 64 * 1024 };
        uint8_t *data = calloc(1, 64 * 1024);
        struct kvcache_key k = rig_key(9);
        struct kvcache_entry e = { .key = rig_key(1), .data = data, .length = 64 * 1024 };
        struct kvcache_result r;
        struct kvcache_request q;

        start(f, &o);
        fake_daemon_hold(f->d, 1u << WIRE_PUT);
        q = rig_request(f, KVCACHE_OP_PUT, NULL, 1, &r);
        q.entries = &e;
        assert_int_equal(kvcache_submit(f->kv, &q), 0);
        assert_true(fake_daemon_wait(f->d, &f->d->n_held, 1));
        q.timeout_ms = 20;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), -ENOBUFS);
        assert_int_equal(r.status, KVCACHE_BUSY);
        fake_daemon_hold(f->d, 0);
        assert_int_equal(kvcache_put(f->kv, f->ns, &k, data, 64 * 1024, KVCACHE_ACCEPTED),
                         KVCACHE_OK);
        assert_int_equal(rig_reap(f).error, 0);
        free(data);
}

static void test_a_staging_that_cannot_be_trusted_is_refused(void **state)
{
        struct rig *f = *state;
        struct fake_options unsealed = { .staging_unsealed = true },
                            cut = { .staging_short = true };
        void *place;

        start(f, &unsealed);
        assert_int_equal(kvcache_staging_acquire(f->kv, 100, &place), -EPERM);
        kvcache_close(f->kv);
        f->kv = NULL;
        fake_daemon_free(f->d);
        start(f, &cut);
        assert_int_equal(kvcache_staging_acquire(f->kv, 100, &place), -EBADMSG);
}

static void test_the_allocator_keeps_places_apart(void **state)
{
        enum { BYTES = 64 * 512, N = 200 };
        struct staging l = { .base = (uint8_t *)0x10000, .bytes = BYTES + 63 };
        uint8_t owner[512] = { 0 };
        struct {
                uint64_t start, units;
        } at[N] = { { 0 } };
        uint64_t seed = 1, offset;
        unsigned taken = 0;

        for (unsigned step = 0; step < 50000; step++) {
                unsigned i;
                uint64_t bytes;
                int r;

                seed = seed * 6364136223846793005u + 1442695040888963407u;
                i = (unsigned)(seed >> 33) % N;
                if (at[i].units > 0) {
                        assert_true(staging_release(&l, at[i].start));
                        assert_false(staging_release(&l, at[i].start));
                        for (uint64_t u = 0; u < at[i].units; u++)
                                owner[at[i].start / 64 + u] = 0;
                        taken -= (unsigned)at[i].units;
                        at[i].units = 0;
                        continue;
                }
                bytes = 1 + (seed >> 40) % (64 * 9);
                r = staging_acquire(&l, bytes, true, &offset);
                if (r == -ENOBUFS) {
                        /* True only if there is no run of free units so long. */
                        uint64_t run = 0, longest = 0;

                        for (unsigned u = 0; u < 512; u++) {
                                run = owner[u] ? 0 : run + 1;
                                longest = MAX(longest, run);
                        }
                        assert_true(longest < (bytes + 63) / 64);
                        continue;
                }
                assert_int_equal(r, 0);
                assert_int_equal(offset % 64, 0);
                assert_true(offset + bytes <= BYTES);
                at[i].start = offset;
                at[i].units = (bytes + 63) / 64;
                taken += (unsigned)at[i].units;
                for (uint64_t u = 0; u < at[i].units; u++) {
                        assert_int_equal(owner[offset / 64 + u], 0);
                        owner[offset / 64 + u] = 1;
                }
                assert_true(staging_ref(&l, offset + bytes / 2, bytes - bytes / 2));
                assert_false(staging_ref(&l, offset, at[i].units * 64 + 1));
                staging_unref(&l, offset);
        }
        assert_true(taken > 0);
        assert_int_equal(staging_acquire(&l, BYTES + 1, true, &offset), -E2BIG);
        staging_fini(&l, false);
}

/* --- loss --- */

static void
test_a_dead_daemon_loses_what_is_in_flight_and_the_next_call_finds_its_successor(void **state)
{
        struct rig *f = *state;
        struct kvcache_key k = rig_key(1);
        struct kvcache_result held, r[2];
        struct kvcache_info info = { .size = sizeof(info) };
        struct kvcache_request q;
        uint8_t instance[16];
        int fd;

        start(f, NULL);
        fd = kvcache_fd(f->kv);
        memcpy(instance, f->d->instance, 16);
        rig_put(f, 1, 5000);
        assert_int_equal(kvcache_get_map(f->kv, f->ns, &k, &held), KVCACHE_OK);
        fake_daemon_hold(f->d, 1u << WIRE_GET);
        q = rig_request(f, KVCACHE_OP_GET, &k, 1, &r[0]);
        assert_int_equal(kvcache_submit(f->kv, &q), 0);
        assert_true(fake_daemon_wait(f->d, &f->d->n_held, 1));

        f->d = fake_daemon_free(f->d);
        wait_readable(fd);
        assert_int_equal(rig_reap(f).error, -ECONNRESET);
        assert_int_equal(r[0].status, KVCACHE_LOST);
        assert_false(readable(fd, 0));
        q.results = &r[1];
        assert_int_equal(kvcache_submit(f->kv, &q), -ENOTCONN);
        assert_int_equal(kvcache_put(f->kv, f->ns, &k, "x", 1, KVCACHE_ACCEPTED), -ENOTCONN);
        assert_int_equal(kvcache_ping(f->kv, NULL), -ENOTCONN);

        unlink(f->path);
        f->d = fake_daemon_start(f->path, NULL);
        assert_int_equal(kvcache_get_map(f->kv, f->ns, &k, &r[1]), KVCACHE_MISS);
        assert_int_equal(kvcache_get_info(f->kv, &info), 0);
        assert_int_equal(info.reconnects, 1);
        assert_memory_not_equal(info.instance, instance, 16);
        assert_int_equal(kvcache_fd(f->kv), fd);

        /* The old lease's bytes are still mapped, and releasing it releases no lease of the new
         * session. */
        assert_true(rig_filled(held.data, 5000, 1));
        rig_put(f, 1, 77);
        assert_int_equal(kvcache_get_map(f->kv, f->ns, &k, &r[1]), KVCACHE_OK);
        assert_true(rig_filled(held.data, 5000, 1));
        assert_int_equal(kvcache_release(f->kv, &held.lease, 1), 0);
        assert_int_equal(kvcache_flush(f->kv), 0);
        assert_int_equal(kvcache_ping(f->kv, NULL), 0);
        assert_true(fake_daemon_wait_leases(f->d, 1));
        assert_int_equal(rig_peek(f, &f->d->stale_releases), 0);
}

/* Limits and features are those of the present daemon, even if its start was not noticed. A request
 * that the previous daemon could not have served must reveal that, because nothing else would be
 * sent. */
static void test_what_one_daemon_refuses_the_next_may_do(void **state)
{
        const struct fake_options small_chunks = { .max_chunk = 4096 },
                                  short_staging = { .staging_max = 65536 },
                                  old = { .is_old = true };
        struct rig *f = *state;
        uint8_t *data = calloc(1, 100000);
        struct kvcache_key k = rig_key(1);
        struct kvcache_entry e = { .key = k, .data = data, .length = 100000 };
        struct kvcache_result r;
        struct kvcache_request put, prefetch;
        struct kvcache_completion c;

        assert_non_null(data);
        start(f, &small_chunks);
        put = rig_request(f, KVCACHE_OP_PUT, NULL, 1, &r);
        put.entries = &e;
        for (unsigned i = 0; i < 2; i++) {
                assert_int_equal(kvcache_put(f->kv, f->ns, &k, data, 100000, KVCACHE_ACCEPTED),
                                 KVCACHE_TOO_LARGE);
                restart(f, NULL);
                if (i == 0) {
                        assert_int_equal(kvcache_submit_and_wait(f->kv, &put, NULL), 0);
                } else {
                        assert_int_equal(kvcache_submit(f->kv, &put), 0);
                        assert_int_equal(kvcache_reap(f->kv, &c, 1, test_timeout_ms(WAIT_MS)), 1);
                        assert_int_equal(c.error, 0);
                }
                assert_int_equal(r.status, KVCACHE_OK);
                restart(f, &small_chunks);
        }

        restart(f, &short_staging);
        for (unsigned i = 0; i < 2; i++) {
                assert_int_equal(kvcache_submit_and_wait(f->kv, &put, NULL), -E2BIG);
                assert_int_equal(kvcache_submit(f->kv, &put), -E2BIG);
                restart(f, NULL);
                r.status = -1;
                if (i == 0) {
                        assert_int_equal(kvcache_submit_and_wait(f->kv, &put, NULL), 0);
                } else {
                        assert_int_equal(kvcache_submit(f->kv, &put), 0);
                        assert_int_equal(kvcache_reap(f->kv, &c, 1, test_timeout_ms(WAIT_MS)), 1);
                        assert_int_equal(c.error, 0);
                }
                assert_int_equal(r.status, KVCACHE_OK);
                assert_string_equal(kvcache_error(f->kv), "");
                restart(f, &short_staging);
        }

        prefetch = rig_request(f, KVCACHE_OP_PREFETCH, &k, 1, NULL);
        restart(f, &old);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &prefetch, NULL), -EOPNOTSUPP);
        restart(f, NULL);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &prefetch, NULL), 0);
        restart(f, &old);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &prefetch, NULL), -EOPNOTSUPP);

        /* Another request is in flight in the ended session. */
        fake_daemon_hold(f->d, 1u << WIRE_EXISTS);
        {
                struct kvcache_request exists = rig_request(f, KVCACHE_OP_EXISTS, &k, 1, &r);

                assert_int_equal(kvcache_submit(f->kv, &exists), 0);
                assert_true(fake_daemon_wait(f->d, &f->d->requests[WIRE_EXISTS], 1));
                restart(f, NULL);
                assert_int_equal(kvcache_submit_and_wait(f->kv, &prefetch, NULL), 0);
                assert_int_equal(kvcache_reap(f->kv, &c, 1, test_timeout_ms(WAIT_MS)), 1);
                assert_int_equal(r.status, KVCACHE_LOST);
        }

        /* If no daemon has followed, the request fails with that error. */
        restart(f, &small_chunks);
        assert_int_equal(kvcache_put(f->kv, f->ns, &k, data, 100000, KVCACHE_ACCEPTED),
                         KVCACHE_TOO_LARGE);
        fake_daemon_free(f->d);
        f->d = NULL;
        assert_int_equal(kvcache_put(f->kv, f->ns, &k, data, 100000, KVCACHE_ACCEPTED), -ENOTCONN);
        free(data);
}

static void test_a_restart_between_two_calls_goes_unnoticed(void **state)
{
        struct rig *f = *state;
        struct kvcache_key k = rig_key(1);
        struct kvcache_result r;
        void *place;

        start(f, NULL);
        rig_put(f, 1, 10);
        assert_int_equal(kvcache_staging_acquire(f->kv, 1000, &place), 0);
        restart(f, NULL);
        rig_put(f, 1, 10);
        restart(f, NULL);
        assert_int_equal(kvcache_get_map(f->kv, f->ns, &k, &r), KVCACHE_MISS);
        restart(f, NULL);
        assert_int_equal(kvcache_ping(f->kv, NULL), 0);
        restart(f, NULL);
        assert_int_equal(open_namespace(f->kv, "ns"), f->ns);
        restart(f, NULL);

        /* Releases that had not gone out end with their session. */
        rig_put(f, 1, 10);
        assert_int_equal(kvcache_get_map(f->kv, f->ns, &k, &r), KVCACHE_OK);
        assert_int_equal(kvcache_release(f->kv, &r.lease, 1), 0);
        restart(f, NULL);
        rig_put(f, 1, 10);
        assert_int_equal(kvcache_flush(f->kv), 0);
        assert_int_equal(kvcache_ping(f->kv, NULL), 0);
        assert_int_equal(rig_peek(f, &f->d->releases), 0);

        /* A place of the first staging area, many daemons later, is ordinary memory. */
        rig_fill(place, 1000, 5);
        k = rig_key(5);
        assert_int_equal(kvcache_put(f->kv, f->ns, &k, place, 1000, KVCACHE_ACCEPTED), KVCACHE_OK);
        {
                struct kvcache_entry e = { .key = k, .data = place, .length = 1000 };
                struct kvcache_request q = rig_request(f, KVCACHE_OP_GET_INTO, NULL, 1, &r);

                memset(place, 0, 1000);
                q.entries = &e;
                assert_int_equal(kvcache_submit_and_wait(f->kv, &q, NULL), 0);
                assert_true(rig_filled(place, 1000, 5));
        }
        kvcache_staging_release(f->kv, place);
}

static void test_memory_of_a_dead_daemons_io_is_not_settled_until_it_is_over(void **state)
{
        struct rig *f = *state;
        struct fake_daemon *dead;
        struct kvcache_entry e[2] = { { .key = rig_key(1) }, { .key = rig_key(2) } };
        struct kvcache_result r[2];
        struct kvcache_request q;
        uint8_t *place, *other;

        start(f, NULL);
        rig_put(f, 1, 4096);
        assert_int_equal(kvcache_staging_acquire(f->kv, 8192, (void **)&place), 0);
        assert_int_equal(kvcache_staging_acquire(f->kv, 4096, (void **)&other), 0);
        fake_daemon_hold(f->d, 1u << WIRE_GET | 1u << WIRE_PUT);
        e[0].data = place + 4096;
        e[0].length = 4096;
        e[1].data = other;
        e[1].length = 4096;
        q = rig_request(f, KVCACHE_OP_GET_INTO, NULL, 1, &r[0]);
        q.entries = &e[0];
        assert_int_equal(kvcache_submit(f->kv, &q), 0);
        q = rig_request(f, KVCACHE_OP_PUT, NULL, 1, &r[1]);
        q.entries = &e[1];
        assert_int_equal(kvcache_submit(f->kv, &q), 0);
        assert_true(fake_daemon_wait(f->d, &f->d->n_held, 2));

        dead = f->d;
        fake_daemon_kill(dead, true);
        assert_int_equal(rig_reap(f).error, -ECONNRESET);
        assert_int_equal(rig_reap(f).error, -ECONNRESET);
        assert_int_equal(r[0].status, KVCACHE_LOST);
        assert_int_equal(r[1].status, KVCACHE_LOST);
        assert_int_equal(kvcache_memory_settled(f->kv, place, 8192), 0);
        assert_int_equal(kvcache_memory_settled(f->kv, place, 4096), 1);
        assert_int_equal(kvcache_memory_settled(f->kv, other, 4096), 0);

        /* This also holds with a new daemon, and after the user has released the place. */
        unlink(f->path);
        f->d = fake_daemon_start(f->path, NULL);
        assert_int_equal(kvcache_ping(f->kv, NULL), 0);
        kvcache_staging_release(f->kv, place);
        kvcache_staging_release(f->kv, other);
        assert_int_equal(kvcache_memory_settled(f->kv, place, 8192), 0);
        place[4096] = 1; /* still mapped */

        fake_daemon_io_done(dead);
        assert_int_equal(kvcache_memory_settled(f->kv, place, 8192), 1);
        assert_int_equal(kvcache_memory_settled(f->kv, other, 4096), 1);
        fake_daemon_free(dead);
}

static void test_leases_outlive_a_session_that_a_living_daemon_ends(void **state)
{
        struct rig *f = *state;
        struct kvcache_key k = rig_key(1);
        struct kvcache_result held, r;
        struct kvcache_completion c;

        start(f, NULL);
        rig_put(f, 1, 500);
        assert_int_equal(kvcache_get_map(f->kv, f->ns, &k, &held), KVCACHE_OK);
        fake_daemon_hang_up(f->d);
        wait_readable(kvcache_fd(f->kv));
        assert_int_equal(kvcache_reap(f->kv, &c, 1, 0), 0);
        assert_int_equal(kvcache_get_map(f->kv, f->ns, &k, &r), KVCACHE_OK);
        assert_true(fake_daemon_wait_leases(
                f->d, 2)); /* the old socket is open, and so the old lease holds */
        assert_int_equal(kvcache_release(f->kv, &held.lease, 1), 0);
        assert_true(fake_daemon_wait_leases(f->d, 1));
}

/* --- lies --- */

struct lie {
        const char *what;
        uint16_t op;
        int expect; /* error of the completion; 1: see the case */
        size_t (*tell)(struct wire_reply *r, size_t bytes);
};

static struct wire_get_result *get_result(struct wire_reply *r)
{
        return (struct wire_get_result *)(r + 1);
}

static struct wire_put_result *put_result(struct wire_reply *r)
{
        return (struct wire_put_result *)(r + 1);
}

#define LIE(name, ...)                                                                             \
        static size_t lie_##name(struct wire_reply *r, size_t bytes)                               \
        {                                                                                          \
                __VA_ARGS__;                                                                       \
                return bytes;                                                                      \
        }

LIE(tag, r->hdr.tag++)
LIE(slot, r->hdr.tag += 64)
LIE(op, r->hdr.op++)
LIE(not_a_reply, r->hdr.op &= (uint16_t)~WIRE_REPLY)
LIE(flags, r->hdr.flags = 1)
LIE(length, r->hdr.len += 8)
LIE(cut, r->hdr.len = (uint32_t)--bytes)
LIE(stump, bytes = 31; r->hdr.len = 31)
LIE(crumb, bytes = 3)
LIE(longer, bytes += 8; r->hdr.len = (uint32_t)bytes)
LIE(huge, bytes = WIRE_MAX_MESSAGE; r->hdr.len = WIRE_MAX_MESSAGE)
LIE(fewer, r->count = 0)
LIE(more, r->count = 2)
LIE(many, r->count = UINT16_MAX)
LIE(refused_with_results, r->status = WIRE_BUSY)
LIE(outside, get_result(r)->offset = 4 << 20)
LIE(straddling, get_result(r)->offset = (4 << 20) - 1)
LIE(wrapping, get_result(r)->offset = UINT64_MAX - 2)
LIE(long_lease, get_result(r)->length = UINT32_MAX; get_result(r)->chunk_length = UINT32_MAX)
LIE(empty, get_result(r)->length = 0)
LIE(short_chunk, get_result(r)->chunk_length = 3)
LIE(part, get_result(r)->length--)
LIE(generation, get_result(r)->lease.generation = 0)
LIE(no_lease, get_result(r)->flags = 0)
LIE(miss_with_lease, get_result(r)->status = WIRE_MISS)
LIE(result_flags, get_result(r)->flags |= 0x80)
LIE(strange_status, get_result(r)->status = 5000; get_result(r)->flags = 0)
LIE(unasked_lease, put_result(r)->flags = WIRE_RESULT_LEASED; put_result(r)->lease.generation = 1)
LIE(put_flags, put_result(r)->flags = 0x8000)
LIE(tier, ((uint8_t *)(r + 1))[0] = 0x40)
LIE(run, r->value = 2)

static const struct lie lies[] = {
        { "wrong tag", WIRE_GET, -EBADMSG, lie_tag },
        { "a tag of the same slot", WIRE_GET, -EBADMSG, lie_slot },
        { "wrong op", WIRE_GET, -EBADMSG, lie_op },
        { "not a reply", WIRE_GET, -EBADMSG, lie_not_a_reply },
        { "flags", WIRE_GET, -EBADMSG, lie_flags },
        { "wrong length", WIRE_GET, -EBADMSG, lie_length },
        { "one byte short", WIRE_GET, -EBADMSG, lie_cut },
        { "shorter than a head", WIRE_GET, -EBADMSG, lie_stump },
        { "three bytes", WIRE_GET, -EBADMSG, lie_crumb },
        { "longer", WIRE_GET, -EBADMSG, lie_longer },
        { "as long as may be", WIRE_EXISTS, -EBADMSG, lie_huge },
        { "fewer results", WIRE_GET, -EBADMSG, lie_fewer },
        { "more results", WIRE_GET, -EBADMSG, lie_more },
        { "very many results", WIRE_EXISTS, -EBADMSG, lie_many },
        { "a refusal with results", WIRE_GET, -EBADMSG, lie_refused_with_results },
        { "a lease behind the pool", WIRE_GET, -EBADMSG, lie_outside },
        { "a lease across the pool's end", WIRE_GET, -EBADMSG, lie_straddling },
        { "an offset that wraps", WIRE_GET, -EBADMSG, lie_wrapping },
        { "a lease longer than the pool", WIRE_GET, -EBADMSG, lie_long_lease },
        { "no bytes", WIRE_GET, -EBADMSG, lie_empty },
        { "more bytes than the chunk", WIRE_GET, -EBADMSG, lie_short_chunk },
        { "a part of what was asked", WIRE_GET, -EBADMSG, lie_part },
        { "generation zero", WIRE_GET, -EBADMSG, lie_generation },
        { "ok without a lease", WIRE_GET, -EBADMSG, lie_no_lease },
        { "a miss with a lease", WIRE_GET, -EBADMSG, lie_miss_with_lease },
        { "unknown flags of a result", WIRE_GET, -EBADMSG, lie_result_flags },
        { "an unknown status", WIRE_GET, 1, lie_strange_status },
        { "a lease that was not requested", WIRE_PUT, -EBADMSG, lie_unasked_lease },
        { "unknown flags of a put", WIRE_PUT, -EBADMSG, lie_put_flags },
        { "an unknown tier", WIRE_EXISTS, -EBADMSG, lie_tier },
        { "a run longer than asked", WIRE_MATCH, -EBADMSG, lie_run },
};

static size_t tell(struct fake_daemon *d, const struct wire_hdr *request, struct wire_reply *reply,
                   size_t bytes)
{
        const struct lie *lie = d->o.user;

        return lie && lie->op == request->op ? lie->tell(reply, bytes) : bytes;
}

static void set_lie(struct rig *f, const void *lie)
{
        fake_daemon_lock(f->d);
        f->d->o.user = (void *)lie;
        fake_daemon_unlock(f->d);
}

static void test_lies_end_the_session_and_nothing_else(void **state)
{
        struct rig *f = *state;
        struct fake_options o = { .reply = tell };
        struct kvcache_key k = rig_key(1);
        uint8_t data[10];
        struct kvcache_entry e = { .key = k, .data = data, .length = sizeof(data) };

        start(f, &o);
        rig_put(f, 1, 10);
        for (size_t i = 0; i < ARRAY_SIZE(lies); i++) {
                struct kvcache_result r = { .status = -1 };
                struct kvcache_request q = rig_request(f, KVCACHE_OP_GET, &k, 1, &r);
                struct kvcache_completion c;

                q.op = lies[i].op == WIRE_PUT      ? KVCACHE_OP_PUT
                       : lies[i].op == WIRE_EXISTS ? KVCACHE_OP_EXISTS
                       : lies[i].op == WIRE_MATCH  ? KVCACHE_OP_MATCH
                                                   : KVCACHE_OP_GET;
                if (lies[i].op == WIRE_PUT) {
                        q.keys = NULL;
                        q.entries = &e;
                }
                set_lie(f, &lies[i]);
                assert_int_equal(kvcache_submit(f->kv, &q), 0);
                c = rig_reap(f);
                set_lie(f, NULL);
                if (lies[i].expect == 1) {
                        assert_int_equal(r.status, KVCACHE_FAILED);
                        continue;
                }
                if (c.error != lies[i].expect || r.status != KVCACHE_LOST)
                        fail_msg("%s: error %d, status %d", lies[i].what, c.error, r.status);
                assert_int_equal(kvcache_get(f->kv, f->ns, &k, data, sizeof(data), NULL),
                                 KVCACHE_OK);
                assert_true(rig_filled(data, 10, 1));
        }
}

static size_t tell_shared(struct fake_daemon *d, const struct wire_hdr *request,
                          struct wire_reply *reply, size_t bytes)
{
        if (request->op == WIRE_MATCH && request->flags & WIRE_F_REMOTE)
                reply->value64 = *(const uint64_t *)d->o.user;
        return bytes;
}

/* This host has two of six keys, and the shared tier has `shared` further ones, or possibly
 * more. */
static void test_match_has_the_shared_tier_behind_its_run(void **state)
{
        static const struct {
                uint64_t said;
                int error;
                uint64_t run;
                int status; /* status of the first key after the run */
        } cases[] = {
                { 0, 0, 2, KVCACHE_MISS },
                { WIRE_MATCH_SEARCHING, 0, 2, KVCACHE_BUSY },
                { 3, 0, 5, KVCACHE_MISS },
                { 3 | WIRE_MATCH_SEARCHING, 0, 5, KVCACHE_BUSY },
                { 4, 0, 6, KVCACHE_OK },
                { 4 | WIRE_MATCH_SEARCHING, 0, 6, KVCACHE_OK },
                { 5, -EBADMSG, 0, KVCACHE_LOST },
                { UINT32_MAX, -EBADMSG, 0, KVCACHE_LOST },
                { UINT64_MAX >> 1, -EBADMSG, 0, KVCACHE_LOST },
        };
        struct rig *f = *state;
        uint64_t said = 0, value;
        struct fake_options o = { .reply = tell_shared, .user = &said };
        struct kvcache_result r[6];
        struct kvcache_key keys[6];

        for (uint8_t i = 0; i < 6; i++)
                keys[i] = rig_key((uint8_t)(i + 1));
        start(f, &o);
        rig_put(f, 1, 10);
        rig_put(f, 2, 10);
        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                struct kvcache_request q = rig_request(f, KVCACHE_OP_MATCH, keys, 6, r);

                fake_daemon_lock(f->d);
                said = cases[i].said;
                fake_daemon_unlock(f->d);
                q.flags = KVCACHE_REMOTE;
                assert_int_equal(kvcache_submit_and_wait(f->kv, &q, &value), cases[i].error);
                assert_int_equal(value, cases[i].run);
                for (size_t k = 0; k < 6; k++) {
                        int behind = cases[i].error ? KVCACHE_LOST : KVCACHE_MISS;

                        assert_int_equal(r[k].status, k < cases[i].run    ? KVCACHE_OK
                                                      : k == cases[i].run ? cases[i].status
                                                                          : behind);
                        assert_int_equal(r[k].tiers,
                                         k >= 2 && k < cases[i].run ? KVCACHE_TIER_REMOTE : 0);
                }
                /* Without the flag, only keys of this host count. */
                q.flags = 0;
                assert_int_equal(kvcache_submit_and_wait(f->kv, &q, &value), 0);
                assert_int_equal(value, 2);
        }
}

static void test_descriptors_where_none_belong_end_the_session(void **state)
{
        struct rig *f = *state;
        char *text;
        void *place;

        start(f, NULL);
        rig_put(f, 1, 10);
        fake_daemon_lock(f->d);
        f->d->o.stray_fd = true;
        fake_daemon_unlock(f->d);
        for (unsigned i = 0; i < 10; i++)
                assert_int_equal(kvcache_ping(f->kv, NULL), -EBADMSG);
        fake_daemon_lock(f->d);
        f->d->o.stray_fd = false;
        f->d->o.no_fd = true;
        fake_daemon_unlock(f->d);
        assert_int_equal(kvcache_staging_acquire(f->kv, 1, &place), -EBADMSG);
        assert_int_equal(kvcache_report(f->kv, KVCACHE_REPORT_STATUS, &text), -EBADMSG);
        assert_int_equal(kvcache_ping(f->kv, NULL), 0);
}

static void test_words_that_nobody_asked_for_end_the_session(void **state)
{
        struct rig *f = *state;
        struct kvcache_info info = { .size = sizeof(info) };
        struct wire_reply r = {
                .hdr = { .len = sizeof(r), .op = WIRE_GET | WIRE_REPLY, .tag = 64 }
        };
        struct kvcache_completion c;

        start(f, NULL);
        fake_daemon_say(f->d, &r, sizeof(r));
        wait_readable(kvcache_fd(f->kv));
        assert_int_equal(kvcache_reap(f->kv, &c, 1, 0), 0);
        assert_false(readable(kvcache_fd(f->kv), 0));
        rig_put(f, 1, 10);
        assert_int_equal(kvcache_get_info(f->kv, &info), 0);
        assert_int_equal(info.reconnects, 1);
}

static struct {
        uint64_t seed;
        unsigned changed;
} noise;

static uint32_t noise_next(void)
{
        noise.seed = noise.seed * 6364136223846793005u + 1442695040888963407u;
        return (uint32_t)(noise.seed >> 33);
}

static size_t make_noise(struct fake_daemon *d, const struct wire_hdr *request,
                         struct wire_reply *reply, size_t bytes)
{
        if (request->op == WIRE_HELLO || noise_next() % 3 == 0)
                return bytes;
        noise.changed++;
        for (unsigned n = 1 + noise_next() % 3; n > 0; n--) {
                uint32_t at = noise_next() % (uint32_t)bytes;

                /* Mostly changes bytes after the header, because a reply with a wrong tag is not
                 * examined further. */
                if (at < sizeof(reply->hdr) && noise_next() % 8 != 0)
                        continue;
                ((uint8_t *)reply)[at] = noise_next() % 2 ? (uint8_t)noise_next()
                                                          : (uint8_t)(noise_next() % 2 * 0xff);
        }
        return bytes;
}

/* With any bytes in the replies: no crash, no report of a sanitizer, every request ends, and
 * each mapped chunk can be read to its end. */
static void test_noise_in_the_replies_does_no_harm(void **state)
{
        struct rig *f = *state;
        struct fake_options o = { .reply = make_noise, .pool_bytes = 1 << 20 };
        struct kvcache_namespace_options ns = { .size = sizeof(ns),
                                                .name = "ns",
                                                .fingerprint = "dtype=bf16\n" };
        struct kvcache_key keys[8];
        uint8_t data[64] = { 1 };
        unsigned good = 0, zeros = 0;

        noise.seed = 42;
        f->d = fake_daemon_start(f->path, &o);
        assert_int_equal(try_connect(f, test_timeout_ms(WAIT_MS), NULL, 0), 0);
        while (kvcache_namespace_open(f->kv, &ns, &f->ns) != 0)
                ;
        for (unsigned i = 0; i < 8; i++)
                keys[i] = rig_key(i);
        for (unsigned round = 0; round < 3000; round++) {
                enum kvcache_op op = 1 + round % 8;
                struct kvcache_result r[8];
                struct kvcache_entry e[8];
                struct kvcache_request q = rig_request(f, op, keys, 8, r);
                struct kvcache_listed listed[4];
                uint64_t value = 0, cursor = 0;
                char *text = NULL;
                int ret;

                q.timeout_ms = 1000;
                if (op == KVCACHE_OP_PUT || op == KVCACHE_OP_GET_INTO) {
                        for (unsigned i = 0; i < 8; i++)
                                e[i] = (struct kvcache_entry){ .key = keys[i],
                                                               .data = data,
                                                               .length = 64 };
                        q.keys = NULL;
                        q.entries = e;
                        q.flags = op == KVCACHE_OP_PUT ? KVCACHE_KEEP_LEASE : 0;
                }
                ret = kvcache_submit_and_wait(f->kv, &q, &value);
                assert_true(value <= 8);
                for (unsigned i = 0; ret == 0 && i < 8; i++) {
                        if (r[i].data)
                                for (uint64_t b = 0; b < r[i].length; b++)
                                        zeros += ((const uint8_t *)r[i].data)[b] == 0;
                        good += r[i].status == KVCACHE_OK;
                        assert_int_equal(kvcache_release(f->kv, &r[i].lease, 1), 0);
                }
                if (round % 16 == 0)
                        (void)kvcache_list(f->kv, f->ns, &cursor, listed, 4);
                if (round % 16 == 1 && kvcache_report(f->kv, KVCACHE_REPORT_STATUS, &text) == 0)
                        free(text);
                (void)kvcache_flush(f->kv);
        }
        assert_true(good > 1000);
        assert_true(zeros > 0);
        assert_true(noise.changed > 500);
}

/* --- fork --- */

static int child_of(struct rig *f)
{
        struct kvcache_key k = rig_key(1);
        struct kvcache_completion c;
        struct kvcache_info info = { .size = sizeof(info) };
        struct kvcache_result r;
        struct kvcache_request q = rig_request(f, KVCACHE_OP_GET, &k, 1, &r);
        struct kvcache_lease lease = { 0, 1 };
        struct kvcache_listed listed;
        uint64_t cursor = 0;
        char buf[10], *text;
        uint32_t ns;
        void *place;
        struct kvcache_namespace_options o = { .size = sizeof(o), .name = "x", .fingerprint = "" };
        struct kvcache_verify verify = { .size = sizeof(verify) };

#define MUST(x)                                                                                    \
        do {                                                                                       \
                if ((x) != -ECHILD)                                                                \
                        return __LINE__ % 200 + 1;                                                 \
        } while (0)
        MUST(kvcache_submit(f->kv, &q));
        MUST(kvcache_submit_and_wait(f->kv, &q, NULL));
        MUST(kvcache_reap(f->kv, &c, 1, 0));
        MUST(kvcache_put(f->kv, f->ns, &k, buf, 1, KVCACHE_ACCEPTED));
        MUST(kvcache_get(f->kv, f->ns, &k, buf, 1, NULL));
        MUST(kvcache_get_map(f->kv, f->ns, &k, &r));
        MUST(kvcache_release(f->kv, &lease, 1));
        MUST(kvcache_flush(f->kv));
        MUST(kvcache_fd(f->kv));
        MUST(kvcache_get_info(f->kv, &info));
        MUST(kvcache_namespace_open(f->kv, &o, &ns));
        MUST(kvcache_staging_acquire(f->kv, 1, &place));
        MUST(kvcache_memory_settled(f->kv, buf, 1));
        MUST(kvcache_list(f->kv, f->ns, &cursor, &listed, 1));
        MUST(kvcache_purge(f->kv, f->ns, NULL));
        MUST(kvcache_purge_all(f->kv, NULL));
        MUST(kvcache_ping(f->kv, NULL));
        MUST(kvcache_report(f->kv, KVCACHE_REPORT_STATUS, &text));
        MUST(kvcache_verify(f->kv, &verify));
        if (!strstr(kvcache_error(f->kv), "parent"))
                return 255;
        kvcache_staging_release(f->kv, buf);
        kvcache_close(f->kv);
        return 0;
}

static void test_a_child_gets_echild_and_the_parent_goes_on(void **state)
{
        struct rig *f = *state;
        struct kvcache_key k = rig_key(1);
        struct kvcache_result held;
        int status;
        pid_t pid;

        start(f, NULL);
        rig_put(f, 1, 100);
        assert_int_equal(kvcache_get_map(f->kv, f->ns, &k, &held), KVCACHE_OK);
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
                _exit(child_of(f));
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        assert_true(rig_filled(held.data, 100, 1));
        assert_int_equal(kvcache_release(f->kv, &held.lease, 1), 0);
        rig_put(f, 2, 100);
        assert_int_equal(kvcache_ping(f->kv, NULL), 0);
}

static void test_closing_ends_the_session_even_if_a_child_lives_on(void **state)
{
        struct rig *f = *state;
        struct kvcache_key k = rig_key(1);
        struct kvcache_result held;
        int wait[2], status;
        char c;
        pid_t pid;

        start(f, NULL);
        rig_put(f, 1, 100);
        assert_int_equal(kvcache_get_map(f->kv, f->ns, &k, &held), KVCACHE_OK);
        assert_int_equal(pipe(wait), 0);
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                close(wait[1]);
                _exit(read(wait[0], &c, 1) != 0);
        }
        kvcache_close(f->kv);
        f->kv = NULL;
        assert_true(fake_daemon_wait_leases(f->d, 0));
        close(wait[0]);
        close(wait[1]);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
}

/* --- leases' table --- */

static void test_the_lease_table_tells_old_from_new(void **state)
{
        struct lease_table t = { 0 };
        struct conn *conn = (struct conn *)0x1000;
        struct kvcache_lease a[200], b;
        struct lease_row row;

        for (uint32_t i = 0; i < 200; i++) {
                assert_int_equal(lease_acquire(&t, conn, (struct wire_lease){ i, 9 }, i, &a[i]), 0);
                assert_true(a[i].generation > 0);
        }
        for (uint32_t i = 0; i < 200; i += 2) {
                assert_true(lease_release(&t, a[i], &row));
                assert_int_equal(row.wire.id, i);
                assert_int_equal(row.length, i);
                assert_false(lease_release(&t, a[i], &row));
        }
        assert_int_equal(lease_acquire(&t, conn, (struct wire_lease){ 1000, 9 }, 1, &b), 0);
        assert_int_equal(t.n_rows, 200);
        assert_int_equal(b.id, 198);
        assert_false(lease_release(&t, a[198], &row));
        assert_true(lease_release(&t, b, &row));
        assert_int_equal(row.wire.id, 1000);
        lease_table_fini(&t);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, rig_setup, rig_teardown)

int main(void)
{
        static const struct CMUnitTest tests[] = {
                TEST(connect_maps_the_pool_and_says_what_the_daemon_is),
                TEST(connect_refuses_what_it_cannot_trust),
                TEST(connect_names_what_is_missing),
                TEST(connect_takes_the_socket_of_the_environment),
                TEST(calls_without_a_handle_are_refused),
                TEST(verify_walks_and_says_what_is_wrong),
                TEST(namespaces_are_listed_page_by_page_and_removed),
                TEST(an_announced_return_names_the_key_before_it),
                TEST(a_namespace_has_the_lifetime_that_it_was_given),
                TEST(a_malformed_list_of_namespaces_is_refused),
                TEST(an_old_daemon_is_not_asked_for_namespaces),
                TEST(a_call_that_an_old_daemon_lacks_leaves_completions_readable),
                TEST(namespace_mismatch_names_the_field),
                TEST(what_was_put_is_got),
                TEST(answers_that_are_polled_for_are_the_same),
                TEST(a_client_polls_as_long_as_the_daemon_says),
                TEST(releases_ride_and_end_once),
                TEST(many_releases_go_by_themselves),
                TEST(exists_match_touch_stat_evict_list_purge),
                TEST(a_session_is_asked_for_by_a_name_or_by_none),
                TEST(what_a_chunk_costs_is_said_to_daemons_that_know_of_costs),
                TEST(an_old_daemon_is_not_asked_to_prefetch),
                TEST(senseless_requests_are_refused_whole_and_senseless_keys_alone),
                TEST(ranges_and_places),
                TEST(a_put_can_keep_its_lease),
                TEST(a_get_and_the_put_of_the_rest_are_one_chain),
                TEST(long_chains_are_several_messages_in_order),
                TEST(no_more_in_flight_than_the_daemon_allows),
                TEST(a_blocking_call_leaves_other_completions_to_be_reaped),
                TEST(a_full_socket_delays_and_loses_nothing),
                TEST(a_full_socket_that_empties_without_replies_is_noticed),
                TEST(drain_without_an_end_waits_for_what_is_in_flight_only),
                TEST(a_chain_that_is_partly_sent_goes_on_after_its_deadline),
                TEST(a_staging_that_comes_late_is_used),
                TEST(a_late_reply_gives_its_leases_back),
                TEST(a_request_that_was_never_sent_is_taken_back),
                TEST(cancel_takes_back_what_was_not_sent),
                TEST(cancel_has_the_daemon_end_what_waits),
                TEST(a_daemon_that_dies_while_it_cancels),
                TEST(a_place_is_the_daemons_until_the_late_reply),
                TEST(staging_full_and_too_small),
                TEST(a_blocking_put_waits_for_room_that_others_give_back),
                TEST(a_staging_that_cannot_be_trusted_is_refused),
                TEST(the_allocator_keeps_places_apart),
                TEST(a_dead_daemon_loses_what_is_in_flight_and_the_next_call_finds_its_successor),
                TEST(a_restart_between_two_calls_goes_unnoticed),
                TEST(what_one_daemon_refuses_the_next_may_do),
                TEST(memory_of_a_dead_daemons_io_is_not_settled_until_it_is_over),
                TEST(leases_outlive_a_session_that_a_living_daemon_ends),
                TEST(lies_end_the_session_and_nothing_else),
                TEST(match_has_the_shared_tier_behind_its_run),
                TEST(descriptors_where_none_belong_end_the_session),
                TEST(words_that_nobody_asked_for_end_the_session),
                TEST(noise_in_the_replies_does_no_harm),
                TEST(a_child_gets_echild_and_the_parent_goes_on),
                TEST(closing_ends_the_session_even_if_a_child_lives_on),
                TEST(the_lease_table_tells_old_from_new),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
