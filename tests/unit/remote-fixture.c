/* SPDX-License-Identifier: Apache-2.0 */
#include "remote-fixture.h"
#include "timeout.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "checked.h"
#include "io/io.h"

struct rig rig;

/* --- the clock --- */

static uint64_t clock_now;

int __wrap_clock_gettime(clockid_t which, struct timespec *ret);

int __wrap_clock_gettime(clockid_t which, struct timespec *ret)
{
        uint64_t now = __atomic_load_n(&clock_now, __ATOMIC_RELAXED);

        if (which == CLOCK_REALTIME)
                now += UINT64_C(1700000000) * SECOND;
        *ret = (struct timespec){ .tv_sec = (time_t)(now / SECOND),
                                  .tv_nsec = (long)(now % SECOND) };
        return 0;
}

uint64_t now_ns(void)
{
        return clock_mono_ns();
}

void step(void)
{
        uint64_t next;
        unsigned n;

        do {
                next = remote_iterate(rig.r, now_ns());
                n = remote_reap(rig.r);
        } while (n > 0 || (next > 0 && next <= now_ns()));
}

void advance(uint64_t ns)
{
        __atomic_fetch_add(&clock_now, ns, __ATOMIC_RELAXED);
        step();
}

void wait_and_step(void)
{
        struct pollfd p = { .fd = remote_fd(rig.r), .events = POLLIN };

        assert_int_equal(poll(&p, 1, test_timeout_ms(60000)), 1); /* or it hangs */
        step();
}

bool is_recorded(void)
{
        return !rig.r->record_due && !rig.r->recorder.running;
}

/* --- keys --- */

struct key key_of(unsigned i)
{
        struct key k;

        for (unsigned b = 0; b < KEY_BYTES; b++)
                k.bytes[b] = (uint8_t)(i * 2654435761U >> (b % 4 * 8));
        k.bytes[31] = 1;
        memcpy(k.bytes + 8, &i, sizeof(i));
        return k;
}

uint64_t hash_of(unsigned i)
{
        static const struct key_secret secret = { { 3, 4 } };
        struct key k = key_of(i);

        return key_hash(&secret, NS, &k);
}

const char *name_of(unsigned i)
{
        static char name[REMOTE_NAME_MAX];
        const struct namespace *ns = remote_namespace_find(rig.r, NS);
        struct key k = key_of(i);

        remote_object_name("kvcache", ns->generation, &ns->identity, &k, name);
        return name;
}

void fill(unsigned i, uint8_t *ret, uint32_t length)
{
        for (uint32_t at = 0; at < length; at++)
                ret[at] = (uint8_t)(i * 7 + at + (at >> 8));
}

void put_object(unsigned i, uint32_t length)
{
        const struct namespace *ns = remote_namespace_find(rig.r, NS);
        uint8_t *bytes = malloc(REMOTE_HEADER_BYTES + (size_t)length);
        struct remote_object o = { .key = key_of(i),
                                   .identity = ns->identity,
                                   .generation = ns->generation,
                                   .length = length,
                                   .created_ms = 5 };

        assert_non_null(bytes);
        fill(i, bytes + REMOTE_HEADER_BYTES, length);
        o.crc = kio_crc32c(bytes + REMOTE_HEADER_BYTES, length);
        remote_object_write(&o, bytes);
        fake_put(name_of(i), bytes, REMOTE_HEADER_BYTES + (size_t)length, 1000);
        free(bytes);
}

/* --- the cache's part --- */

static void load(void *userdata, struct remote_put *put)
{
        unsigned i;

        (void)userdata;
        memcpy(&i, put->key.bytes + 8, sizeof(i));
        rig.loaded[rig.loads++ % ARRAY_SIZE(rig.loaded)] = i;
        fill(i, put->buffer, put->length);
        put->crc = kio_crc32c(put->buffer, put->length);
        put->created_ms = 5;
        if (rig.load_later)
                rig.put = put;
        else
                remote_put_loaded(put, !rig.load_fails);
}

static void purged(void *userdata, uint32_t namespace_id)
{
        (void)userdata;
        assert_int_equal(namespace_id, NS);
        rig.purged++;
        if (!rig.keep_purges)
                remote_purged(rig.r, namespace_id);
}

void offer(unsigned i)
{
        struct key k = key_of(i);

        remote_offer(rig.r, NS, 0, &k, hash_of(i), CHUNK, REMOTE_USED_AGAIN);
}

static void on_complete(struct remote_get *get)
{
        struct asked *a = container_of(get, struct asked, get);

        a->completed++;
        if (rig.end_within && get->found)
                get_end(a);
}

bool get(struct asked *a, unsigned i, uint64_t timeout_ns)
{
        *a = (struct asked){ .get = { .namespace_id = NS,
                                      .tenant = rig.tenant,
                                      .key = key_of(i),
                                      .hash = hash_of(i),
                                      .deadline_ns = now_ns() + timeout_ns,
                                      .complete = on_complete } };
        return remote_get(rig.r, &a->get);
}

void get_end(struct asked *a)
{
        a->bad = kio_crc32c(a->get.payload, a->get.length) != a->get.crc;
        remote_get_end(rig.r, &a->get, a->bad);
}

bool finds(unsigned i, uint32_t length)
{
        uint8_t *want = malloc(length);
        struct asked a;
        bool same;

        assert_non_null(want);
        if (!get(&a, i, SECOND)) {
                free(want);
                return false;
        }
        assert_int_equal(a.completed, 0); /* not from within */
        step();
        assert_int_equal(a.completed, 1);
        fill(i, want, length);
        same = a.get.found && a.get.length == length && memcmp(a.get.payload, want, length) == 0;
        if (same)
                assert_int_equal(a.get.created_ms, 5);
        if (a.get.found)
                get_end(&a);
        free(want);
        return same;
}

uint32_t match(unsigned n, bool *ret_known)
{
        static struct key keys[KEYS];
        static uint64_t hashes[KEYS];

        if (hashes[0] == 0)
                for (unsigned i = 0; i < KEYS; i++) {
                        keys[i] = key_of(i);
                        hashes[i] = hash_of(i);
                }
        return remote_match(rig.r, NS, keys, hashes, n, ret_known);
}

struct remote_stats stats(void)
{
        struct remote_stats ret;

        remote_get_stats(rig.r, &ret);
        return ret;
}

struct remote_status status(void)
{
        struct remote_status ret;

        remote_get_status(rig.r, &ret);
        return ret;
}

/* --- */

int rig_setup(void **state)
{
        int fd;

        (void)state;
        __atomic_store_n(&clock_now, 1000 * SECOND, __ATOMIC_RELAXED);
        fake_reset();
        rig = (struct rig){ .state = "/tmp/kvcache-test-remote-XXXXXX" };
        fd = mkstemp(rig.state);
        assert_true(fd >= 0);
        close(fd);
        unlink(rig.state);
        rig.params = (struct remote_params){
                .ops = &fake_backend,
                .backend.depth = 64,
                .prefix = "kvcache",
                .write = REMOTE_WRITE_REUSED,
                .read_inflight = 64 << 20,
                .write_inflight = 32 << 20,
                .write_queue = 1 << 30,
                .timeout_ns = 5 * SECOND,
                .presence_ns = 5 * MINUTE,
                .absence_ns = 10 * SECOND,
                .generation_interval_ns = 30 * SECOND,
                .probe_rate = 1000,
                .state_path = rig.state,
                .load = load,
                .purged = purged,
        };
        return 0;
}

int rig_teardown(void **state)
{
        (void)state;
        if (rig.r) /* otherwise its thread might write the state file later */
                wait_until(!rig.r->recorder.running);
        rig.r = remote_free(rig.r);
        (void)fake_release(UINT32_MAX); /* to memory that is still there */
        unlink(rig.state);
        fake_reset();
        return 0;
}

void make_bare(void)
{
        char error[256] = "";

        assert_int_equal(remote_new(&rig.r, &rig.params, error), 0);
        assert_string_equal(error, "");
}

static void add(void)
{
        assert_int_equal(remote_namespace_add(rig.r, NS, "model", "fp", "s", 1), 0);
}

void make(void)
{
        make_bare();
        add();
        step();
        wait_until(is_recorded());
}

void make_again(void)
{
        rig.r = remote_free(rig.r);
        make_bare();
        add();
        step();
        wait_until(is_recorded());
}
