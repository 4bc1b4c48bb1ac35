/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "volumes-fixture.h"
#include "timeout.h"

struct volumes_test t;

static void on_volume(void *userdata, unsigned volume, enum store_volume_event event,
                      const char *text)
{
        t.events[event]++;
        t.told += event != STORE_VOLUME_IS_NEW;
        snprintf(t.text, sizeof(t.text), "%s", text);
}

/* Opens the store. `which` has the numbers of directories, in the order of the configuration. */
static int try_open(const char *which, char error[static 512])
{
        const char *paths[DIRS + 1];
        struct store_params params = {
                .paths = paths,
                .n_paths = (unsigned)strlen(which),
                .limit = t.limit,
                .segment_bytes = 1 * MIB,
                .entries = 4096,
                .policy = "lru",
                .secret = { { 1, clock_mono_ns() } }, /* differs at each start */
                .lock_wait_ms = 30000,
                .hang_ms = t.hang_ms,
                .error_budget = t.error_budget,
                .reserve = 1 * MIB,
                .on_volume = on_volume,
        };
        struct kio_params io = {
                .backend = "posix",
                .workers = 2,
                .depth = 32,
                .posix_threads = 4,
                .pool = t.bufs[0],
                .pool_bytes = (uint64_t)DEPTH * ROOM,
                .piece_bytes = (uint64_t)DEPTH * ROOM,
                .probe_fd = -1,
        };
        int locks[STORE_MAX_VOLUMES], r;

        for (unsigned i = 0; which[i]; i++)
                paths[i] = t.dirs[which[i] - '0'];
        r = store_prepare(&t.s, &params, error);
        if (r < 0) {
                t.s = NULL;
                return r;
        }
        io.lock_fds = locks;
        io.n_lock_fds = store_lock_fds(t.s, locks);
        if (kio_start_with(&t.io, &io, fault_wrap(&kio_backend_posix), error) < 0)
                fail_msg("kio_start: %s", error);
        r = store_open(t.s, t.io, error);
        if (r < 0) {
                t.s = store_close(t.s);
                t.io = kio_stop(t.io);
        }
        return r;
}

void turn(void)
{
        kio_reap(t.io);
        store_iterate(t.s);
        kio_flush(t.io);
}

void wait_io(void)
{
        struct pollfd p = { .fd = kio_fd(t.io), .events = POLLIN };

        if (kio_pending(t.io) == 0)
                fail_msg("waits for nothing: %llu pending", (unsigned long long)store_pending(t.s));
        if (poll(&p, 1, test_timeout_ms(WAIT_MS)) != 1)
                fail_msg("I/O hangs");
}

void wait_for(const bool *done)
{
        for (;;) {
                turn();
                if (*done)
                        return;
                wait_io();
        }
}

void settle(void)
{
        turn();
        while (store_pending(t.s) > 0) {
                wait_io();
                turn();
        }
}

void wait_hits(uint64_t hits)
{
        uint64_t end = clock_mono_ns() + (uint64_t)test_timeout_ms(WAIT_MS) * 1000000;

        while (fault_hits() < hits) {
                struct pollfd p = { .fd = kio_fd(t.io), .events = POLLIN };

                if (clock_mono_ns() > end)
                        fail_msg("only %llu operations were met", (unsigned long long)fault_hits());
                poll(&p, 1, 1);
                turn();
        }
}

void wait_state(unsigned volume, enum store_volume_state state)
{
        uint64_t end = clock_mono_ns() + (uint64_t)test_timeout_ms(WAIT_MS) * 1000000;
        struct store_volume_stats st;

        for (;;) {
                struct pollfd p = { .fd = kio_fd(t.io), .events = POLLIN };

                turn();
                store_tick(t.s);
                assert_true(store_get_volume_stats(t.s, volume, &st));
                if (st.state == state)
                        return;
                if (clock_mono_ns() > end)
                        fail_msg("path %u stays in state %d", volume, st.state);
                poll(&p, 1, 5);
        }
}

void opened(struct store_namespace_open *req)
{
        container_of(req, struct opening, req)->done = true;
}

int open_with(const char *name, const char *fingerprint, uint32_t *ret)
{
        struct opening o = { .req = { .name = name,
                                      .name_length = (uint16_t)strlen(name),
                                      .fingerprint = fingerprint,
                                      .fingerprint_length = (uint16_t)strlen(fingerprint),
                                      .complete = opened } };

        store_namespace_open(t.s, &o.req);
        wait_for(&o.done);
        if (o.req.result == 0)
                *ret = o.req.namespace->id;
        return o.req.result;
}

int open_namespace(const char *name, uint32_t *ret)
{
        return open_with(name, "f", ret);
}

bool has_namespace(const char *name)
{
        return store_namespace_find(t.s, 0, name, strlen(name));
}

void start(const char *which)
{
        char error[512] = "";

        memset(t.events, 0, sizeof(t.events));
        t.told = 0;
        if (try_open(which, error) < 0)
                fail_msg("open: %s", error);
        assert_int_equal(open_namespace("model/a", &t.ns), 0);
}

void refused(const char *which, int r, const char *text)
{
        char error[512] = "";

        assert_int_equal(try_open(which, error), r);
        if (!strstr(error, text))
                fail_msg("the text is: %s", error);
}

void stop(void)
{
        store_stop(t.s);
        while (store_pending(t.s) > 0) {
                kio_flush(t.io);
                wait_io();
                kio_reap(t.io);
                store_iterate(t.s);
        }
        t.s = store_close(t.s);
        t.io = kio_stop(t.io);
}

void restart(const char *which)
{
        stop();
        start(which);
}

struct key key_of(uint64_t i)
{
        struct key k = { { 0 } };

        memcpy(k.bytes, &i, sizeof(i));
        k.bytes[31] = 1;
        return k;
}

static void fill(uint64_t i, char *buf)
{
        uint64_t x = i * UINT64_C(0x9e3779b97f4a7c15) + 1;

        for (unsigned n = 0; n < LENGTH; n++) {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                buf[n] = (char)x;
        }
}

void put_done(struct store_put *req)
{
        container_of(req, struct put, req)->done = true;
}

void sync_done(struct store_sync *req)
{
        container_of(req, struct sync, req)->done = true;
}

static void put_abandoned(struct store_put *req)
{
        container_of(req, struct put, req)->abandoned = true;
}

int put_begin(struct put *p, uint64_t i, char *buf)
{
        *p = (struct put){ .req = { .namespace_id = t.ns,
                                    .foreign = t.foreign,
                                    .key = key_of(i),
                                    .buf = buf,
                                    .length = LENGTH,
                                    .complete = put_done,
                                    .abandon = put_abandoned } };
        fill(i, buf);
        p->req.hash = store_hash(t.s, t.ns, &p->req.key);
        p->req.crc = kio_crc32c(buf, LENGTH);
        return store_put(t.s, &p->req);
}

int put(uint64_t i)
{
        struct put p;
        int r = put_begin(&p, i, t.bufs[0]);

        if (r != 0)
                return r;
        wait_for(&p.done);
        return p.req.result;
}

void put_range(uint64_t from, uint64_t n)
{
        for (uint64_t i = from; i < from + n; i++)
                assert_int_equal(put(i), 0);
}

static void get_done(struct store_get *req)
{
        container_of(req, struct get, req)->done = true;
}

static void get_abandoned(struct store_get *req)
{
        container_of(req, struct get, req)->abandoned = true;
}

int get_begin(struct get *g, uint64_t i, char *buf)
{
        *g = (struct get){ .req = { .namespace_id = t.ns,
                                    .key = key_of(i),
                                    .buf = buf,
                                    .room = ROOM,
                                    .complete = get_done,
                                    .abandon = get_abandoned } };
        g->req.hash = store_hash(t.s, t.ns, &g->req.key);
        return store_get(t.s, &g->req);
}

int get(uint64_t i)
{
        static char expected[LENGTH];
        struct get g;
        int r = get_begin(&g, i, t.bufs[1]);

        if (r != 0)
                return r;
        wait_for(&g.done);
        if (g.req.result == 0) {
                fill(i, expected);
                assert_int_equal(g.req.length, LENGTH);
                assert_memory_equal(t.bufs[1], expected, LENGTH);
        }
        return g.req.result;
}

unsigned count_hits(uint64_t from, uint64_t n)
{
        unsigned hits = 0;

        for (uint64_t i = from; i < from + n; i++) {
                int r = get(i);

                assert_true(r == 0 || r == STORE_MISS);
                hits += r == 0;
        }
        return hits;
}

/* Returns the volume of chunk i, or PATHS. */
static unsigned volume_of(uint64_t i)
{
        struct key k = key_of(i);
        struct store_ref ref;

        if (store_find(t.s, t.ns, &k, store_hash(t.s, t.ns, &k), &ref, NULL) != 0)
                return PATHS;
        return ref.generation >> 28;
}

uint64_t next_on(unsigned volume, uint64_t from)
{
        for (uint64_t i = from; i < MANY; i++)
                if (volume_of(i) == volume)
                        return i;
        fail_msg("nothing lies on path %u from %llu on", volume, (unsigned long long)from);
        return 0;
}

uint64_t first_on(unsigned volume)
{
        return next_on(volume, 0);
}

int drop(uint64_t i)
{
        struct key k = key_of(i);

        return store_drop(t.s, t.ns, &k, store_hash(t.s, t.ns, &k));
}

int settle_drops(void)
{
        struct sync p = { .req = { .complete = sync_done } };

        store_settle_drops(t.s, &p.req);
        wait_for(&p.done);
        return p.req.result;
}

void purge_done(struct store_purge *req)
{
        container_of(req, struct purge, req)->done = true;
}

int purge(void)
{
        struct purge p = { .req = { .namespace_id = t.ns, .complete = purge_done } };

        store_purge(t.s, &p.req);
        wait_for(&p.done);
        return p.req.result;
}

void device_done(struct store_device *req)
{
        container_of(req, struct device, req)->done = true;
}

int device(void (*act)(struct store *s, struct store_device *req), unsigned volume)
{
        struct device d = { .req = { .volume = volume, .complete = device_done } };

        act(t.s, &d.req);
        if (!d.done) {
                struct store_volume_stats st;

                assert_true(store_get_volume_stats(t.s, volume, &st));
                assert_int_equal(st.state, act == store_resume ? STORE_VOLUME_RESUMING
                                                               : STORE_VOLUME_SUSPENDED);
                wait_for(&d.done);
        }
        snprintf(t.text, sizeof(t.text), "%s", d.req.text);
        return d.req.result;
}

struct store_volume_stats stats_of(unsigned volume)
{
        struct store_volume_stats st = { 0 };

        assert_true(store_get_volume_stats(t.s, volume, &st));
        return st;
}

struct store_stats stats(void)
{
        struct store_stats st;

        store_get_stats(t.s, &st);
        return st;
}

void copy_dir(unsigned from, unsigned to)
{
        char command[700];

        snprintf(command, sizeof(command), "cp -r '%s' '%s'", t.dirs[from], t.dirs[to]);
        assert_int_equal(system(command), 0);
}

void removed(struct store_namespace_remove *req)
{
        container_of(req, struct removal, req)->done = true;
}

int remove_namespace(uint32_t id)
{
        struct removal r = { .req = { .id = id, .complete = removed } };

        store_namespace_remove(t.s, &r.req);
        wait_for(&r.done);
        return r.req.result;
}

int set_up(void **state)
{
        const char *base = getenv("TMPDIR");

        fault_set(NULL);
        t.limit = 64 * MIB;
        t.hang_ms = 0;
        t.error_budget = 0;
        t.foreign = false;
        snprintf(t.root, sizeof(t.root), "%s/kvcache-paths-XXXXXX", base ? base : "/var/tmp");
        if (!mkdtemp(t.root))
                return -1;
        for (unsigned i = 0; i < DIRS; i++)
                snprintf(t.dirs[i], sizeof(t.dirs[i]), "%s/%u", t.root, i);
        for (unsigned i = 0; i < DEPTH && !t.bufs[0]; i++)
                t.bufs[0] = aligned_alloc(4096, (size_t)DEPTH * ROOM);
        for (unsigned i = 1; i < DEPTH; i++)
                t.bufs[i] = t.bufs[0] + (size_t)i * ROOM;
        return t.bufs[0] ? 0 : -1;
}

int tear_down(void **state)
{
        char command[300];

        fault_set(NULL);
        fault_release();
        snprintf(command, sizeof(command), "rm -rf '%s'", t.root);
        return system(command);
}
