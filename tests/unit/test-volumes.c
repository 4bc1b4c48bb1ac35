/* SPDX-License-Identifier: Apache-2.0 */
/* store/ with several volumes: how chunks are spread, what a volume that fails, hangs, is suspended
 * or missing costs, and what must not come back with it. The POSIX backend under faults by plan;
 * the test is the loop. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "checked.h"
#include "cleanup.h"
#include "fault.h"
#include "store/volume/format.h"
#include "store/store.h"

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)

enum {
        PATHS = 3,
        DIRS = 5,
        DEPTH = 32,
        ROOM = 64 * 1024,
        LENGTH = 5000,
        WAIT_MS = 60000,
        MANY = 300
};

static struct {
        char root[200];
        char dirs[DIRS][256];
        struct kio *io;
        struct store *s;
        uint32_t ns;
        char *bufs[DEPTH];
        uint64_t limit, hang_ms;
        uint32_t error_budget;
        unsigned events[16], told; /* by enum store_volume_event; all */
        char text[512];            /* of the last one */
} t;

/* --- opening and turning --- */

static void on_volume(void *userdata, unsigned volume, enum store_volume_event event,
                      const char *text)
{
        t.events[event]++;
        t.told++;
        snprintf(t.text, sizeof(t.text), "%s", text);
}

/* `which`: numbers of directories, in the order of the configuration. */
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
                .secret = { { 1, clock_mono_ns() } }, /* another one at each start */
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

static void turn(void)
{
        kio_reap(t.io);
        store_iterate(t.s);
        kio_flush(t.io);
}

static void wait_io(void)
{
        struct pollfd p = { .fd = kio_fd(t.io), .events = POLLIN };

        if (kio_pending(t.io) == 0)
                fail_msg("waits for nothing: %llu pending", (unsigned long long)store_pending(t.s));
        if (poll(&p, 1, WAIT_MS) != 1)
                fail_msg("I/O hangs");
}

static void wait_for(const bool *done)
{
        for (;;) {
                turn();
                if (*done)
                        return;
                wait_io();
        }
}

static void settle(void)
{
        turn();
        while (store_pending(t.s) > 0) {
                wait_io();
                turn();
        }
}

/* Until the plan has made so many operations fail, or holds them. */
static void wait_hits(uint64_t hits)
{
        uint64_t end = clock_mono_ns() + WAIT_MS * UINT64_C(1000000);

        while (fault_hits() < hits) {
                struct pollfd p = { .fd = kio_fd(t.io), .events = POLLIN };

                if (clock_mono_ns() > end)
                        fail_msg("only %llu operations were met", (unsigned long long)fault_hits());
                poll(&p, 1, 1);
                turn();
        }
}

/* Until the path is in that state: what hangs is found by a tick. */
static void wait_state(unsigned volume, enum store_volume_state state)
{
        uint64_t end = clock_mono_ns() + WAIT_MS * UINT64_C(1000000);
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

struct opening {
        struct store_namespace_open req;
        bool done;
};

static void opened(struct store_namespace_open *req)
{
        container_of(req, struct opening, req)->done = true;
}

static int open_with(const char *name, const char *fingerprint, uint32_t *ret)
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

static int open_namespace(const char *name, uint32_t *ret)
{
        return open_with(name, "f", ret);
}

static bool has_namespace(const char *name)
{
        return store_namespace_find(t.s, 0, name, strlen(name));
}

static void start(const char *which)
{
        char error[512] = "";

        memset(t.events, 0, sizeof(t.events));
        t.told = 0;
        if (try_open(which, error) < 0)
                fail_msg("open: %s", error);
        assert_int_equal(open_namespace("model/a", &t.ns), 0);
}

static void refused(const char *which, int r, const char *text)
{
        char error[512] = "";

        assert_int_equal(try_open(which, error), r);
        if (!strstr(error, text))
                fail_msg("the text is: %s", error);
}

static void stop(void)
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

/* --- requests --- */

static struct key key_of(uint64_t i)
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

struct put {
        struct store_put req;
        bool done, abandoned;
};

static void put_done(struct store_put *req)
{
        container_of(req, struct put, req)->done = true;
}

static void put_abandoned(struct store_put *req)
{
        container_of(req, struct put, req)->abandoned = true;
}

static int put_begin(struct put *p, uint64_t i, char *buf)
{
        *p = (struct put){ .req = { .namespace_id = t.ns,
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

static int put(uint64_t i)
{
        struct put p;
        int r = put_begin(&p, i, t.bufs[0]);

        if (r != 0)
                return r;
        wait_for(&p.done);
        return p.req.result;
}

static void put_range(uint64_t from, uint64_t n)
{
        for (uint64_t i = from; i < from + n; i++)
                assert_int_equal(put(i), 0);
}

struct get {
        struct store_get req;
        bool done, abandoned;
};

static void get_done(struct store_get *req)
{
        container_of(req, struct get, req)->done = true;
}

static void get_abandoned(struct store_get *req)
{
        container_of(req, struct get, req)->abandoned = true;
}

static int get_begin(struct get *g, uint64_t i, char *buf)
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

static int get(uint64_t i)
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

static unsigned count_hits(uint64_t from, uint64_t n)
{
        unsigned hits = 0;

        for (uint64_t i = from; i < from + n; i++) {
                int r = get(i);

                assert_true(r == 0 || r == STORE_MISS);
                hits += r == 0;
        }
        return hits;
}

/* The path it lies on, or PATHS. */
static unsigned volume_of(uint64_t i)
{
        struct key k = key_of(i);
        struct store_ref ref;

        if (store_find(t.s, t.ns, &k, store_hash(t.s, t.ns, &k), &ref, NULL) != 0)
                return PATHS;
        return ref.generation >> 28;
}

static uint64_t next_on(unsigned volume, uint64_t from)
{
        for (uint64_t i = from; i < MANY; i++)
                if (volume_of(i) == volume)
                        return i;
        fail_msg("nothing lies on path %u from %llu on", volume, (unsigned long long)from);
        return 0;
}

static uint64_t first_on(unsigned volume)
{
        return next_on(volume, 0);
}

static int drop(uint64_t i)
{
        struct key k = key_of(i);

        return store_drop(t.s, t.ns, &k, store_hash(t.s, t.ns, &k));
}

static int settle_drops(void)
{
        struct put p = { .req = { .complete = put_done } };

        store_settle_drops(t.s, &p.req);
        wait_for(&p.done);
        return p.req.result;
}

struct purge {
        struct store_purge req;
        bool done;
};

static void purge_done(struct store_purge *req)
{
        container_of(req, struct purge, req)->done = true;
}

static int purge(void)
{
        struct purge p = { .req = { .namespace_id = t.ns, .complete = purge_done } };

        store_purge(t.s, &p.req);
        wait_for(&p.done);
        return p.req.result;
}

struct device {
        struct store_device req;
        bool done;
};

static void device_done(struct store_device *req)
{
        container_of(req, struct device, req)->done = true;
}

static int device(void (*act)(struct store *s, struct store_device *req), unsigned volume)
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

static struct store_volume_stats stats_of(unsigned volume)
{
        struct store_volume_stats st = { 0 };

        assert_true(store_get_volume_stats(t.s, volume, &st));
        return st;
}

static struct store_stats stats(void)
{
        struct store_stats st;

        store_get_stats(t.s, &st);
        return st;
}

/* --- spreading --- */

static void chunks_are_spread_and_found_again(void **state)
{
        struct store_chunk listed[16];
        uint64_t cursor = 0, sum = 0;
        unsigned met = 0;

        start("012");
        put_range(0, MANY);
        for (unsigned i = 0; i < PATHS; i++) {
                struct store_volume_stats st = stats_of(i);

                assert_string_equal(st.path, t.dirs[i]);
                assert_in_range(st.stats.chunks, MANY / PATHS / 2, MANY / PATHS * 2);
                sum += st.stats.limit;
        }
        assert_true(sum <= t.limit && sum > t.limit - 1 * MIB);
        assert_int_equal(stats().chunks, MANY);
        assert_int_equal(stats().puts, MANY);
        assert_int_equal(store_namespace_get(t.s, t.ns)->chunks, MANY);
        assert_int_equal(store_namespace_find(t.s, 0, "model/a", 7)->id, t.ns);
        assert_null(store_namespace_find(t.s, 0, "model/b", 7));
        assert_null(store_namespace_find(t.s, 1, "model/a", 7));
        assert_int_equal(put(7), STORE_EXISTS);
        stop();

        start("012");
        assert_int_equal(stats().recovered_chunks, MANY);
        assert_int_equal(count_hits(0, MANY), MANY);
        do
                met += store_list(t.s, t.ns, &cursor, listed, ARRAY_SIZE(listed));
        while (cursor != 0);
        assert_int_equal(met, MANY);
        assert_int_equal(drop(7), 0);
        assert_int_equal(drop(7), STORE_MISS);
        assert_int_equal(settle_drops(), 0);
        stop();

        /* In another order. */
        start("201");
        assert_int_equal(count_hits(0, MANY), MANY - 1);
        assert_int_equal(put(8), STORE_EXISTS);
        assert_int_equal(put(7), 0);
        assert_int_equal(purge(), 0);
        assert_int_equal(count_hits(0, MANY), 0);
        stop();
        start("012");
        assert_int_equal(stats().chunks, 0);
        stop();
}

static void an_empty_path_may_be_added_to_a_store(void **state)
{
        start("0");
        put_range(0, MANY);
        stop();
        start("01");
        assert_int_equal(count_hits(0, MANY), MANY);
        put_range(MANY, MANY);
        assert_true(stats_of(1).stats.chunks > 0);
        stop();
        start("10");
        assert_int_equal(count_hits(0, 2 * MANY), 2 * MANY);
        stop();
        start("102");
        assert_int_equal(count_hits(0, 2 * MANY), 2 * MANY);
        put_range(2 * MANY, 50);
        stop();
}

static void a_path_that_is_left_out_takes_its_chunks_with_it(void **state)
{
        unsigned left;

        start("01");
        put_range(0, MANY);
        left = (unsigned)stats_of(0).stats.chunks;
        stop();
        start("0");
        assert_int_equal(count_hits(0, MANY), left);
        stop();
        start("01");
        assert_int_equal(count_hits(0, MANY), MANY);
        stop();
        /* A purge, or a drop, that it has missed. */
        start("0");
        assert_int_equal(purge(), 0);
        stop();
        start("01");
        assert_int_equal(t.events[STORE_VOLUME_IS_EMPTIED], 1);
        assert_int_equal(count_hits(0, MANY), 0);
        put_range(0, MANY);
        stop();
        start("1");
        for (uint64_t i = 0; drop(i) != 0; i++)
                assert_true(i < MANY); /* some of them are here */
        assert_int_equal(settle_drops(), 0);
        stop();
        start("01");
        assert_int_equal(t.events[STORE_VOLUME_IS_EMPTIED], 1);
        stop();
}

static void a_store_of_one_path_carries_no_trace_of_sets(void **state)
{
        struct disk_superblock sb;
        char name[300];
        int fd;

        start("0");
        put_range(0, 20);
        assert_int_equal(purge(), 0);
        stop();
        snprintf(name, sizeof(name), "%s/superblock", t.dirs[0]);
        fd = open(name, O_RDONLY);
        assert_int_equal(read(fd, &sb, sizeof(sb)), sizeof(sb));
        close(fd);
        for (const uint8_t *p = sb.set; p < (uint8_t *)&sb.seq_ceiling; p++)
                assert_int_equal(*p, 0);
        for (unsigned i = 0; i < sizeof(sb.reserved); i++)
                assert_int_equal(sb.reserved[i], 0);
        assert_int_equal(sb.volume_index, 0);
        assert_int_equal(sb.volume_count, 1);
}

/* --- who belongs together --- */

static void copy_dir(unsigned from, unsigned to)
{
        char command[700];

        snprintf(command, sizeof(command), "cp -r '%s' '%s'", t.dirs[from], t.dirs[to]);
        assert_int_equal(system(command), 0);
}

static void paths_of_different_stores_are_refused(void **state)
{
        start("0");
        stop();
        start("1");
        stop();
        refused("01", -EPROTO, "two stores");
        start("02");
        stop();
        refused("012", -EPROTO, "different stores");
        refused("10", -EPROTO, "different stores");
        start("0");
        stop();
        start("20");
        stop();
}

static void a_copy_of_a_path_is_refused(void **state)
{
        start("01");
        put_range(0, 20);
        stop();
        copy_dir(1, 2);
        refused("012", -EPROTO, "one is a copy");
        start("02");
        assert_int_equal(count_hits(0, 20), 20);
        stop();
}

static void namespaces_that_contradict_each_other_are_refused(void **state)
{
        uint32_t a, b;

        start("01");
        stop();
        start("0");
        assert_int_equal(open_namespace("apart-0", &a), 0);
        stop();
        start("1");
        assert_int_equal(open_namespace("apart-1", &b), 0);
        stop();
        assert_int_equal(a, b);
        refused("01", -EUCLEAN, "contradict");
}

static void a_path_that_was_away_learns_the_namespaces(void **state)
{
        uint32_t id, again;

        start("01");
        assert_int_equal(device(store_suspend, 1), 0);
        assert_int_equal(open_namespace("new", &id), 0);
        stop();
        start("01");
        assert_int_equal(open_namespace("new", &again), 0);
        assert_int_equal(again, id);
        stop();
        start("1");
        assert_int_equal(open_namespace("new", &again), 0);
        assert_int_equal(again, id);
        stop();
}

/* The names that were made without it take more than it has left. */
static void a_path_that_is_full_learns_the_namespaces(void **state)
{
        static char fingerprint[STORE_MAX_FINGERPRINT + 1];
        const unsigned names = 200;
        uint32_t id;

        memset(fingerprint, 'f', sizeof(fingerprint) - 1);
        t.limit = 16 * MIB;
        start("01");
        assert_int_equal(device(store_suspend, 0), 0);
        put_range(0, t.limit / 2 / LENGTH);
        assert_true(stats().evictions > 0);
        assert_int_equal(device(store_resume, 0), 0);
        assert_int_equal(device(store_suspend, 1), 0);
        for (unsigned i = 0; i < names; i++) {
                char name[16];

                snprintf(name, sizeof(name), "name-%u", i);
                assert_int_equal(open_with(name, fingerprint, &id), 0);
        }
        assert_int_equal(device(store_resume, 1), 0);
        stop();
        start("1");
        assert_true(has_namespace("name-0"));
        assert_true(has_namespace("name-199"));
        stop();
}

struct removal {
        struct store_namespace_remove req;
        bool done;
};

static void removed(struct store_namespace_remove *req)
{
        container_of(req, struct removal, req)->done = true;
}

static int remove_namespace(uint32_t id)
{
        struct removal r = { .req = { .id = id, .complete = removed } };

        store_namespace_remove(t.s, &r.req);
        wait_for(&r.done);
        return r.req.result;
}

static void what_is_removed_while_a_path_is_away_does_not_come_back_with_it(void **state)
{
        for (unsigned round = 0; round < 4; round++) {
                char name[16];
                uint32_t id, other;

                snprintf(name, sizeof(name), "name-%u", round);
                start("012");
                assert_int_equal(open_namespace(name, &id), 0);
                t.ns = id;
                put_range(round * 1000, MANY);
                assert_int_equal(remove_namespace(id), STORE_BUSY);
                assert_int_equal(device(store_suspend, 1), 0);
                assert_int_equal(purge(), 0);
                assert_int_equal(remove_namespace(id), 0);
                assert_int_equal(open_namespace("other", &other), 0);
                assert_int_equal(remove_namespace(other), 0);
                if (round % 2 == 0) {
                        assert_int_equal(device(store_resume, 1), 0);
                } else {
                        stop();
                        start("012");
                        assert_int_equal(stats_of(1).state, STORE_VOLUME_UP);
                }
                assert_false(has_namespace(name));
                assert_false(has_namespace("other"));
                t.ns = id;
                assert_int_equal(count_hits(round * 1000, MANY), 0);
                if (round >= 2) {
                        assert_int_equal(open_namespace(name, &t.ns), 0);
                        assert_int_not_equal(t.ns, id);
                        assert_int_equal(count_hits(round * 1000, MANY), 0);
                        put_range(round * 1000, 20);
                }
                stop();
                start("1");
                assert_int_equal(has_namespace(name), round >= 2);
                stop();
                start("120");
                assert_int_equal(has_namespace(name), round >= 2);
                if (round >= 2) {
                        assert_int_equal(open_namespace(name, &t.ns), 0);
                        assert_int_equal(count_hits(round * 1000, 20), 20);
                }
                stop();
        }
}

static void a_removal_that_one_path_cannot_write_costs_that_path(void **state)
{
        uint32_t id;

        start("01");
        assert_int_equal(open_namespace("name", &id), 0);
        settle();
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE,
                                        .volume = 2,
                                        .kind = FAULT_ERROR,
                                        .error = EIO,
                                        .first = 1 });
        assert_int_equal(remove_namespace(id), 0);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_BYPASSED);
        fault_set(NULL);
        settle();
        assert_int_equal(device(store_resume, 1), 0);
        assert_false(has_namespace("name"));
        stop();
        start("01");
        assert_false(has_namespace("name"));
        stop();
}

/* Path 1 has written it, and is suspended before path 0, then the last one, fails. */
static void leave_the_last_path_without(bool is_removal)
{
        struct purge p = { .req = { .namespace_id = t.ns, .complete = purge_done } };
        struct removal r = { .req = { .complete = removed } };
        uint32_t id;

        start("01");
        assert_int_equal(open_namespace("name", &id), 0);
        put_range(0, MANY);
        settle();
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .volume = 1, .kind = FAULT_NEVER, .first = 1 });
        r.req.id = id;
        if (is_removal)
                store_namespace_remove(t.s, &r.req);
        else
                store_purge(t.s, &p.req);
        wait_hits(1);
        while (stats_of(1).pending > 0) {
                wait_io();
                turn();
        }
        assert_int_equal(device(store_suspend, 1), 0);
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_SYNC,
                                        .volume = 1,
                                        .kind = FAULT_ERROR,
                                        .error = EIO,
                                        .first = 1 });
        fault_release();
        wait_for(is_removal ? &r.done : &p.done);
        assert_int_equal(fault_hits(), 1);
        assert_true((is_removal ? r.req.result : p.req.result) < 0);
        assert_int_equal(stats_of(0).state, STORE_VOLUME_UP);
        fault_set(NULL);
        assert_int_equal(purge(), 0);
        stop();
}

static void what_the_last_path_cannot_write_is_not_answered_as_purged(void **state)
{
        leave_the_last_path_without(false);
}

static void what_the_last_path_cannot_write_is_not_answered_as_removed(void **state)
{
        leave_the_last_path_without(true);
}

static void without_a_path_nothing_is_removed(void **state)
{
        uint32_t id;

        start("01");
        assert_int_equal(open_namespace("name", &id), 0);
        assert_int_equal(device(store_suspend, 0), 0);
        assert_int_equal(device(store_suspend, 1), 0);
        assert_int_equal(remove_namespace(id), -EIO);
        assert_true(has_namespace("name"));
        stop();
}

static void remove_dir(unsigned i)
{
        char command[300];

        snprintf(command, sizeof(command), "rm -r '%s'", t.dirs[i]);
        assert_int_equal(system(command), 0);
}

static void replace_file(unsigned dir, const char *name, unsigned kind)
{
        char path[PATH_MAX], target[PATH_MAX];

        snprintf(path, sizeof(path), "%s/%s", t.dirs[dir], name);
        assert_true(unlink(path) == 0 || rmdir(path) == 0);
        switch (kind) {
        case 0:
                assert_int_equal(mkfifo(path, 0600), 0);
                break;
        case 1:
                assert_int_equal(mkdir(path, 0700), 0);
                break;
        case 2:
                snprintf(target, sizeof(target), "%s/%s", t.dirs[0], name);
                assert_int_equal(symlink(target, path), 0);
                break;
        default:
                assert_int_equal(mknod(path, S_IFSOCK | 0600, 0), 0);
        }
}

/* Whatever lies in the place of a file of a path costs that path, and no time. */
static void what_is_no_file_costs_its_path_only(void **state)
{
        static const char *const names[] = { "superblock",   "LOCK",  "namespaces.0",
                                             "namespaces.1", "table", "segment-0000" };

        start("01");
        put_range(0, MANY);
        stop();
        for (unsigned i = 0; i < ARRAY_SIZE(names); i++)
                for (unsigned kind = 0; kind < 4; kind++) {
                        copy_dir(1, 2);
                        replace_file(2, names[i], kind);
                        refused("2", -EMEDIUMTYPE, "it is not a regular file");
                        start("02");
                        assert_int_equal(stats_of(1).state, STORE_VOLUME_BYPASSED);
                        assert_non_null(strstr(stats_of(1).reason, "it is not a regular file"));
                        assert_true(count_hits(0, MANY) > 0);
                        assert_int_equal(device(store_resume, 1), -EMEDIUMTYPE);
                        stop();
                        remove_dir(2);
                }
}

/* --- by hand --- */

static void a_suspended_path_is_a_miss_and_comes_back_whole(void **state)
{
        unsigned on_0;

        start("01");
        put_range(0, MANY);
        on_0 = (unsigned)stats_of(0).stats.chunks;
        assert_int_equal(device(store_suspend, 1), 0);
        assert_int_equal(device(store_suspend, 1), STORE_EXISTS);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_SUSPENDED);
        assert_int_equal(store_volumes_up(t.s), 1);
        assert_int_equal(count_hits(0, MANY), on_0);
        put_range(MANY, MANY);
        assert_int_equal(count_hits(MANY, MANY), MANY);
        assert_int_equal(device(store_resume, 0), STORE_EXISTS);
        assert_int_equal(device(store_resume, 1), 0);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_UP);
        assert_int_equal(count_hits(0, 2 * MANY), 2 * MANY);
        /* What went elsewhere is present, too. */
        for (uint64_t i = MANY; i < 2 * MANY; i++)
                assert_int_equal(put(i), STORE_EXISTS);
        assert_int_equal(t.events[STORE_VOLUME_IS_SUSPENDED], 1);
        assert_int_equal(t.events[STORE_VOLUME_IS_RESUMED], 1);
        assert_int_equal(t.told, 2);
        assert_int_equal(stats().puts, 2 * MANY);
        stop();
        start("01");
        assert_int_equal(count_hits(0, 2 * MANY), 2 * MANY);
        stop();
}

static void a_path_that_cannot_be_told_the_namespaces_stays_away(void **state)
{
        struct rlimit before, little;
        char name[200];
        uint32_t id;
        int r;

        start("01");
        put_range(0, MANY);
        assert_int_equal(device(store_suspend, 1), 0);
        /* More than is allocated of the files that hold them. */
        memset(name, 'n', sizeof(name) - 1);
        name[sizeof(name) - 1] = '\0';
        for (unsigned i = 0; i < 100; i++) {
                memcpy(name, (char[]){ (char)('a' + i / 10), (char)('a' + i % 10) }, 2);
                assert_int_equal(open_namespace(name, &id), 0);
        }
        settle();
        assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
        little = before;
        little.rlim_cur = 16 * KIB;
        signal(SIGXFSZ, SIG_IGN);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
        r = device(store_resume, 1);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        signal(SIGXFSZ, SIG_DFL);
        assert_int_equal(r, -EFBIG);
        assert_non_null(strstr(t.text, "namespaces"));
        assert_int_equal(stats_of(1).state, STORE_VOLUME_BYPASSED);

        assert_int_equal(device(store_resume, 1), 0);
        assert_int_equal(count_hits(0, MANY), MANY);
        stop();
}

static void verify_done(struct store_verify *req)
{
        req->complete = NULL;
}

static void verify(unsigned volume)
{
        struct store_verify req = {
                .volume = volume, .max_chunks = 1000, .max_bytes = 64 * MIB, .complete = verify_done
        };

        assert_int_equal(store_verify(t.s, &req), 0);
        for (turn(); req.complete; turn())
                wait_io();
        assert_int_equal(req.result, 0);
        assert_true(req.found.chunks > 0);
}

/* Counts only go up, whatever becomes of a path. */
static void assert_no_less(const struct store_stats *before, const struct store_stats *after)
{
#define NO_LESS(member)                                                                            \
        do {                                                                                       \
                assert_true(before->member > 0);                                                   \
                if (after->member < before->member)                                                \
                        fail_msg(#member " went from %llu to %llu",                                \
                                 (unsigned long long)before->member,                               \
                                 (unsigned long long)after->member);                               \
        } while (0)
        NO_LESS(puts);
        NO_LESS(payload_bytes_written);
        NO_LESS(table_bytes_written);
        NO_LESS(table_pages_written);
        NO_LESS(table_entries_written);
        NO_LESS(scrub_bytes);
        NO_LESS(scrub_chunks);
        NO_LESS(scrub_passes);
        NO_LESS(scrub_last_pass_ms);
#undef NO_LESS
}

static void what_is_counted_of_a_path_goes_on_when_it_is_resumed(void **state)
{
        struct store_scrub scrub = { .rate = 64 * MIB, .interval_ms = 1 };
        struct store_stats before, again;

        start("01");
        put_range(0, MANY);
        verify(1);
        store_set_scrub(t.s, &scrub);
        while (stats_of(1).stats.scrub_passes == 0) {
                struct pollfd p = { .fd = kio_fd(t.io), .events = POLLIN };

                turn();
                poll(&p, 1, 1); /* a pass goes at its rate */
        }
        scrub.rate = 0;
        store_set_scrub(t.s, &scrub);
        settle();
        before = stats_of(1).stats;
        for (unsigned n = 0; n < 2; n++) {
                assert_int_equal(device(store_suspend, 1), 0);
                assert_int_equal(device(store_resume, 1), 0);
                again = stats_of(1).stats;
                assert_no_less(&before, &again);
                /* Nor is anything counted twice. */
                assert_int_equal(again.scrub_chunks, before.scrub_chunks);
                assert_int_equal(again.table_entries_written, before.table_entries_written);
                assert_int_equal(again.chunks, before.chunks);
                assert_int_equal(again.namespaces, before.namespaces);
        }
        verify(1);
        assert_true(stats_of(1).stats.scrub_chunks > before.scrub_chunks);
        stop();
}

static void suspending_waits_for_what_was_begun(void **state)
{
        struct device d = { .req = { .volume = 0, .complete = device_done } };
        struct put p[8];

        start("0");
        for (unsigned i = 0; i < ARRAY_SIZE(p); i++)
                assert_int_equal(put_begin(&p[i], i, t.bufs[i]), 0);
        store_suspend(t.s, &d.req);
        wait_for(&d.done);
        assert_int_equal(d.req.result, 0);
        for (unsigned i = 0; i < ARRAY_SIZE(p); i++) {
                assert_true(p[i].done);
                assert_int_equal(p[i].req.result, 0);
        }
        assert_int_equal(put(20), STORE_BYPASSED);
        assert_int_equal(get(0), STORE_MISS);
        assert_int_equal(device(store_resume, 0), 0);
        assert_int_equal(count_hits(0, 8), 8);
        assert_int_equal(put(20), 0);
        stop();
}

static void what_was_purged_while_a_path_was_away_never_comes_back(void **state)
{
        /* Resumed. */
        start("01");
        put_range(0, MANY);
        assert_int_equal(device(store_suspend, 1), 0);
        assert_int_equal(purge(), 0);
        assert_int_equal(device(store_resume, 1), 0);
        assert_int_equal(t.events[STORE_VOLUME_IS_EMPTIED], 1);
        assert_int_equal(count_hits(0, MANY), 0);

        /* Found again by recovery. */
        put_range(0, MANY);
        assert_int_equal(device(store_suspend, 1), 0);
        assert_int_equal(purge(), 0);
        stop();
        start("01");
        assert_int_equal(count_hits(0, MANY), 0);

        /* Alone. */
        put_range(0, MANY);
        assert_int_equal(device(store_suspend, 0), 0);
        assert_int_equal(purge(), 0);
        stop();
        start("0");
        assert_int_equal(count_hits(0, MANY), 0);
        stop();
        start("01");
        assert_int_equal(count_hits(0, MANY), 0);
        stop();
}

static void what_was_dropped_while_a_path_was_away_never_comes_back(void **state)
{
        uint64_t i, other;

        start("01");
        put_range(0, MANY);
        i = first_on(1);
        other = first_on(0);
        assert_int_equal(device(store_suspend, 1), 0);
        assert_int_equal(drop(other), 0);
        assert_int_equal(settle_drops(), 0);
        assert_int_equal(device(store_resume, 1), 0);
        assert_int_equal(t.events[STORE_VOLUME_IS_EMPTIED], 0); /* it had nothing to do with that */
        assert_int_equal(get(i), 0);
        assert_int_equal(device(store_suspend, 1), 0);
        assert_int_equal(drop(i), 0);
        assert_int_equal(settle_drops(), 0);
        assert_int_equal(drop(i), STORE_MISS);
        stop();
        start("01");
        assert_int_equal(get(i), STORE_MISS);
        stop();
}

/* What the tombstone is for is older than the put, wherever the put is: at its payload (write 1),
 * on its way to the table (write 2), or queued behind such a write. */
static void a_tombstone_does_not_outlive_a_put_that_was_under_way(void **state)
{
        struct put p[2];

        for (unsigned write = 1; write <= 3; write++) {
                uint64_t key = 10 * write, last = write == 3;
                struct key k = key_of(key + last);

                start("0");
                settle();
                fault_set(&(struct fault_plan){
                        .ops = 1u << KIO_WRITE, .kind = FAULT_NEVER, .first = MIN(write, 2u) });
                assert_int_equal(put_begin(&p[0], key, t.bufs[0]), 0);
                wait_hits(1);
                if (last) {
                        uint64_t written = stats().payload_writes;

                        assert_int_equal(put_begin(&p[1], key + 1, t.bufs[1]), 0);
                        turn();
                        while (stats().payload_writes == written) {
                                wait_io();
                                turn();
                        }
                }
                assert_int_equal(store_forget(t.s, t.ns, &k, store_hash(t.s, t.ns, &k)),
                                 STORE_MISS);
                fault_set(NULL);
                fault_release();
                for (unsigned i = 0; i <= last; i++) {
                        wait_for(&p[i].done);
                        assert_int_equal(p[i].req.result, 0);
                }
                assert_int_equal(get(key + last), 0);
                stop();
                start("0");
                assert_int_equal(get(key + last), 0);
                /* Nor does the put outlive a drop that comes after it. */
                assert_int_equal(drop(key + last), 0);
                stop();
                start("0");
                assert_int_equal(get(key + last), STORE_MISS);
                stop();
        }
}

/* The resume is under way until an iteration. */
static void what_is_dropped_or_purged_during_a_resume_does_not_come_back(void **state)
{
        struct device d = { .req = { .volume = 1, .complete = device_done } };
        struct put settling = { .req = { .complete = put_done } };
        struct purge p = { .req = { .complete = purge_done } };
        uint64_t i;

        start("01");
        put_range(0, MANY);
        i = first_on(1);
        assert_int_equal(device(store_suspend, 1), 0);
        store_resume(t.s, &d.req);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_RESUMING);
        assert_int_equal(drop(i), 0);
        store_settle_drops(t.s, &settling.req);
        wait_for(&settling.done);
        wait_for(&d.done);
        assert_int_equal(settling.req.result, 0);
        assert_int_equal(d.req.result, 0);
        assert_int_equal(get(i), STORE_MISS);
        assert_int_equal(put(i), 0);
        put_range(MANY, MANY);
        stop();
        start("01");
        assert_int_equal(t.events[STORE_VOLUME_IS_EMPTIED], 0);
        assert_int_equal(get(i), 0);
        assert_int_equal(count_hits(MANY, MANY), MANY);

        assert_int_equal(device(store_suspend, 1), 0);
        d.done = false;
        store_resume(t.s, &d.req);
        p.req.namespace_id = t.ns;
        store_purge(t.s, &p.req);
        wait_for(&p.done);
        wait_for(&d.done);
        assert_int_equal(p.req.result, 0);
        assert_int_equal(d.req.result, 0);
        assert_int_equal(count_hits(0, 2 * MANY), 0);
        put_range(0, MANY);
        stop();
        start("01");
        assert_int_equal(t.events[STORE_VOLUME_IS_EMPTIED], 0);
        assert_int_equal(count_hits(0, MANY), MANY);
        stop();
}

static void a_drop_of_nothing_costs_no_path_what_it_has(void **state)
{
        struct device d = { .req = { .volume = 1, .complete = device_done } };

        start("01");
        put_range(0, MANY);
        assert_int_equal(device(store_suspend, 1), 0);
        assert_int_equal(drop(MANY), STORE_MISS);
        store_resume(t.s, &d.req);
        assert_int_equal(drop(MANY), STORE_MISS);
        assert_int_equal(settle_drops(), 0);
        wait_for(&d.done);
        assert_int_equal(t.events[STORE_VOLUME_IS_EMPTIED], 0);
        assert_int_equal(count_hits(0, MANY), MANY);
        stop();
        start("01");
        assert_int_equal(t.events[STORE_VOLUME_IS_EMPTIED], 0);
        assert_int_equal(count_hits(0, MANY), MANY);
        stop();
        start("0");
        assert_int_equal(drop(MANY), STORE_MISS);
        assert_int_equal(settle_drops(), 0);
        stop();
        start("01");
        assert_int_equal(count_hits(0, MANY), MANY);
        stop();
}

/* Each has purged something that the other has missed, whatever the epochs of both are. */
static void paths_that_were_used_apart_bring_back_nothing(void **state)
{
        start("01");
        put_range(0, MANY);
        assert_int_equal(device(store_suspend, 1), 0);
        assert_int_equal(drop(first_on(0)), 0);
        assert_int_equal(purge(), 0);
        put_range(MANY, MANY);
        stop();
        start("1");
        assert_int_equal(count_hits(0, 2 * MANY), 0);
        put_range(2 * MANY, 20);
        assert_int_equal(purge(), 0);
        put_range(3 * MANY, 20);
        stop();
        start("01");
        /* Path 1 has been emptied, but alone: nothing says which of the claims of 0 are older. */
        assert_int_equal(count_hits(0, 4 * MANY), 0);
        put_range(3 * MANY, 20);
        stop();
        start("10");
        assert_int_equal(count_hits(3 * MANY, 20), 20);
        stop();
        start("0");
        stop();
        start("0");
        put_range(4 * MANY, 20);
        assert_int_equal(purge(), 0);
        stop();
        start("1");
        assert_int_equal(purge(), 0);
        stop();
        start("10");
        assert_int_equal(count_hits(0, 5 * MANY), 0);
        stop();
}

/* Neither path knows of what the other did, and the one that was marked as offline is used alone
 * before the other purges. */
static void what_is_purged_on_one_path_while_another_is_used_apart_does_not_come_back(void **state)
{
        start("01");
        put_range(0, MANY);
        assert_int_equal(device(store_suspend, 1), 0);
        stop();
        start("1");
        put_range(MANY, 20);
        stop();
        start("0");
        put_range(2 * MANY, 20);
        assert_int_equal(purge(), 0);
        put_range(3 * MANY, 20);
        stop();
        start("01");
        assert_int_equal(count_hits(0, 3 * MANY), 0);
        assert_int_equal(count_hits(3 * MANY, 20), 20);
        put_range(0, MANY);
        stop();
        start("10");
        assert_int_equal(count_hits(0, MANY), MANY);
        stop();
}

/* A path that two others have gone on without knows less than they do, and nothing on it says so.
 */
static void what_a_path_purges_that_knows_less_than_the_others_does_not_come_back(void **state)
{
        start("012");
        put_range(0, MANY);
        stop();
        start("12");
        for (unsigned round = 0; round < 4; round++) {
                assert_int_equal(device(store_suspend, round % 2), 0);
                assert_int_equal(purge(), 0);
                assert_int_equal(device(store_resume, round % 2), 0);
                put_range(MANY, MANY);
        }
        stop();
        start("0");
        assert_int_equal(purge(), 0);
        stop();
        start("012");
        assert_int_equal(count_hits(0, 2 * MANY), 0);
        put_range(0, MANY);
        stop();
        start("12");
        stop();
        start("201");
        assert_int_equal(count_hits(0, MANY), MANY);
        stop();
}

/* Not even the order of the claims of one path is that of another's. */
static void a_claim_that_was_made_up_for_empties_no_path_again(void **state)
{
        unsigned hits;

        start("012");
        assert_int_equal(device(store_suspend, 1), 0);
        assert_int_equal(purge(), 0); /* 0 and 2 say that 1 has missed it */
        stop();
        start("01");
        put_range(0, MANY);
        hits = count_hits(0, MANY);
        assert_int_equal(hits, MANY);
        stop();
        start("012");
        assert_int_equal(t.events[STORE_VOLUME_IS_EMPTIED], 0);
        assert_int_equal(count_hits(0, MANY), MANY);
        stop();
}

/* What it knows of the others comes too late to empty those. */
static void a_path_that_was_used_apart_is_not_resumed(void **state)
{
        char aside[300];

        start("01");
        put_range(0, MANY);
        stop();
        start("1");
        assert_int_equal(purge(), 0);
        stop();
        snprintf(aside, sizeof(aside), "%s.aside", t.dirs[1]);
        assert_int_equal(rename(t.dirs[1], aside), 0);
        close(open(t.dirs[1], O_WRONLY | O_CREAT, 0600)); /* no directory */
        start("01");
        assert_int_equal(stats_of(1).state, STORE_VOLUME_BYPASSED);
        assert_int_equal(unlink(t.dirs[1]), 0);
        assert_int_equal(rename(aside, t.dirs[1]), 0);
        assert_int_equal(device(store_resume, 1), -EPROTO);
        assert_non_null(strstr(t.text, "restart the daemon"));
        assert_int_equal(stats_of(1).state, STORE_VOLUME_BYPASSED);
        stop();
        start("01");
        assert_int_equal(count_hits(0, MANY), 0);
        stop();
}

static void what_is_removed_on_paths_that_are_used_apart_does_not_come_back(void **state)
{
        uint32_t a, b, both, id;

        start("01");
        assert_int_equal(open_namespace("a", &a), 0);
        assert_int_equal(open_namespace("b", &b), 0);
        both = t.ns;
        stop();
        start("0");
        assert_int_equal(remove_namespace(a), 0);
        stop();
        start("1");
        assert_int_equal(remove_namespace(b), 0);
        stop();
        start("01");
        assert_false(has_namespace("a"));
        assert_false(has_namespace("b"));
        assert_int_equal(t.ns, both);
        assert_int_equal(open_namespace("a", &id), 0);
        assert_true(id > b);
        stop();
        start("0");
        assert_true(has_namespace("a"));
        assert_false(has_namespace("b"));
        stop();
}

/* The device says that a write of the table failed; it did not. */
static void lie_about_the_table(unsigned volume)
{
        settle();
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE,
                                        .volume = volume + 1,
                                        .kind = FAULT_LIES,
                                        .error = EIO,
                                        .first = 2 }); /* the first is the payload's */
}

static void what_failed_and_was_written_all_the_same_is_not_found(void **state)
{
        start("0");
        put_range(0, 20);
        lie_about_the_table(0);
        assert_true(put(100) != 0);
        assert_int_equal(fault_hits(), 1);
        assert_int_equal(stats_of(0).state, STORE_VOLUME_BYPASSED);
        settle();
        assert_int_equal(device(store_resume, 0), 0);
        assert_int_equal(get(100), STORE_MISS);
        assert_int_equal(count_hits(0, 20), 20);
        assert_int_equal(put(100), 0);
        lie_about_the_table(0);
        assert_true(put(101) != 0);
        fault_set(NULL);
        stop();
        start("0");
        assert_int_equal(get(101), STORE_MISS);
        assert_int_equal(count_hits(0, 20), 20);
        assert_int_equal(get(100), 0);
        assert_int_equal(put(101), 0);
        stop();

        start("0");
        lie_about_the_table(0);
        assert_true(put(102) != 0);
        fault_set(NULL);
        assert_int_equal(
                store_forget(t.s, t.ns, &(struct key){ .bytes = { 102, [31] = 1 } },
                             store_hash(t.s, t.ns, &(struct key){ .bytes = { 102, [31] = 1 } })),
                STORE_MISS);
        stop();
        start("0");
        assert_int_equal(get(102), STORE_MISS);
        stop();
}

static void what_was_put_elsewhere_after_a_lie_can_be_dropped(void **state)
{
        uint64_t i = 1000;

        start("01");
        put_range(0, MANY);
        lie_about_the_table(0);
        while (stats_of(0).state == STORE_VOLUME_UP)
                assert_int_equal(put(i++), 0);
        settle();
        fault_set(NULL);
        assert_int_equal(get(i - 1), 0);
        assert_int_equal(drop(i - 1), 0);
        assert_int_equal(settle_drops(), 0);
        assert_int_equal(device(store_resume, 0), 0);
        assert_int_equal(get(i - 1), STORE_MISS);
        assert_int_equal(put(i - 1), 0);
        stop();
}

static void with_all_paths_aside_no_drop_is_answered_as_one_for_good(void **state)
{
        uint64_t i, j;

        start("01");
        put_range(0, MANY);
        i = first_on(0);
        j = first_on(1);
        assert_int_equal(device(store_suspend, 0), 0);
        assert_int_equal(device(store_suspend, 1), 0);
        for (unsigned n = 0; n < 2; n++) {
                assert_int_equal(drop(i), 0);
                assert_int_equal(settle_drops(), STORE_BYPASSED);
                assert_int_equal(drop(j), 0);
                assert_int_equal(settle_drops(), STORE_BYPASSED);
        }
        assert_int_equal(device(store_resume, 0), 0);
        assert_int_equal(drop(j), 0);
        assert_int_equal(settle_drops(), 0);
        assert_int_equal(get(i), STORE_MISS);
        stop();
        start("01");
        assert_int_equal(get(i), STORE_MISS);
        assert_int_equal(get(j), STORE_MISS);
        stop();
}

static void no_drop_is_settled_before_the_note_of_it_is_written(void **state)
{
        struct put first = { .req = { .complete = put_done } },
                   second = { .req = { .complete = put_done } };
        uint64_t i;

        start("01");
        put_range(0, MANY);
        i = first_on(1);
        assert_int_equal(device(store_suspend, 1), 0);
        settle();
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE,
                                        .volume = 1,
                                        .kind = FAULT_NEVER,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
        assert_int_equal(drop(i), 0);
        store_settle_drops(t.s, &first.req);
        assert_int_equal(drop(i), 0); /* not yet for good */
        store_settle_drops(t.s, &second.req);
        wait_hits(1);
        for (unsigned n = 0; n < 5; n++)
                turn();
        assert_false(first.done || second.done);
        fault_set(NULL);
        fault_release();
        wait_for(&first.done);
        wait_for(&second.done);
        assert_int_equal(first.req.result, 0);
        assert_int_equal(second.req.result, 0);
        assert_int_equal(drop(i), STORE_MISS);
        stop();
}

static void a_note_that_failed_is_written_for_the_next_who_asks(void **state)
{
        uint64_t i;

        start("01");
        put_range(0, MANY);
        i = first_on(1);
        assert_int_equal(device(store_suspend, 1), 0);
        settle();
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE,
                                        .volume = 1,
                                        .kind = FAULT_ERROR,
                                        .error = EIO,
                                        .first = 1,
                                        .count = 2 });
        for (unsigned n = 0; n < 2; n++) {
                assert_int_equal(drop(i), 0);
                assert_int_equal(settle_drops(), STORE_BYPASSED);
        }
        assert_int_equal(drop(i), 0);
        assert_int_equal(settle_drops(), 0);
        assert_int_equal(fault_hits(), 2);
        assert_int_equal(stats_of(0).state, STORE_VOLUME_UP);
        stop();
}

/* Dies while a purge of another namespace has reached one path and not the other. */
static void die_amid_a_purge(void)
{
        struct purge p = { .req = { .complete = purge_done } };
        uint32_t other = 0;

        start("01");
        assert_int_equal(open_namespace("other", &other), 0);
        put_range(0, MANY);
        settle();
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE,
                                        .volume = 2,
                                        .kind = FAULT_NEVER,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
        p.req.namespace_id = other;
        store_purge(t.s, &p.req);
        wait_hits(1);
        /* The first path is through with both of its files when it has nothing pending. */
        while (stats_of(0).pending > 0) {
                wait_io();
                turn();
        }
        assert_false(p.done);
}

static void a_kill_amid_a_purge_costs_nothing_else(void **state)
{
        pid_t pid = fork();
        int status;

        assert_true(pid >= 0);
        if (pid == 0) {
                die_amid_a_purge();
                kill(getpid(), SIGKILL);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        start("01");
        assert_int_equal(t.events[STORE_VOLUME_IS_EMPTIED], 0);
        assert_int_equal(count_hits(0, MANY), MANY);
        stop();
}

/* The first path has all that was asked of it on the disk, the second nothing. The name and the
 * fingerprint are the caller's, and overwritten at once. */
static void die_amid_a_removal(void)
{
        char name[] = "name", fingerprint[] = "f";
        struct removal r = { .req = { .complete = removed } };
        struct opening o = { .req = { .name = name,
                                      .name_length = sizeof(name) - 1,
                                      .fingerprint = fingerprint,
                                      .fingerprint_length = sizeof(fingerprint) - 1,
                                      .complete = opened } };
        uint32_t id = 0;

        start("01");
        assert_int_equal(open_namespace(name, &id), 0);
        settle();
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE,
                                        .volume = 2,
                                        .kind = FAULT_NEVER,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
        r.req.id = id;
        store_namespace_remove(t.s, &r.req);
        store_namespace_open(t.s, &o.req);
        memset(name, 'x', sizeof(name));
        memset(fingerprint, 'x', sizeof(fingerprint));
        wait_hits(1);
        while (stats_of(0).pending > 0) {
                wait_io();
                turn();
        }
        assert_false(r.done);
        assert_false(o.done);
}

static void a_name_whose_removal_a_kill_cuts_off_contradicts_nothing(void **state)
{
        pid_t pid = fork();
        uint32_t id;
        int status;

        assert_true(pid >= 0);
        if (pid == 0) {
                die_amid_a_removal();
                kill(getpid(), SIGKILL);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        start("01");
        assert_int_equal(open_namespace("name", &id), 0);
        stop();
}

static void an_open_of_what_is_being_removed_waits_and_makes_it_anew(void **state)
{
        char names[3][8] = { "name", "name", "name" }, fingerprints[3][8] = { "f", "g", "" };
        struct opening o[3];
        struct removal r = { .req = { .complete = removed } };
        uint32_t id = 0, other;

        start("01");
        assert_int_equal(open_namespace("name", &id), 0);
        settle();
        r.req.id = id;
        store_namespace_remove(t.s, &r.req);
        for (unsigned i = 0; i < 3; i++) {
                o[i] = (struct opening){ .req = { .name = names[i],
                                                  .name_length = 4,
                                                  .fingerprint = fingerprints[i],
                                                  .fingerprint_length =
                                                          (uint16_t)strlen(fingerprints[i]),
                                                  .attach = i == 2,
                                                  .complete = opened } };
                store_namespace_open(t.s, &o[i].req);
        }
        memset(names, 'x', sizeof(names));
        memset(fingerprints, 'x', sizeof(fingerprints));
        assert_int_equal(open_namespace("another", &other), 0);
        for (unsigned i = 0; i < 3; i++)
                wait_for(&o[i].done);
        assert_true(r.done);
        assert_int_equal(r.req.result, 0);
        assert_int_equal(o[0].req.result, 0);
        assert_int_equal(o[1].req.result, STORE_MISMATCH); /* the first of them is there by now */
        assert_int_equal(o[2].req.result, 0);
        assert_true(store_namespace_find(t.s, 0, "name", 4)->id > id);

        /* A store that stops keeps none of them waiting. */
        settle();
        r = (struct removal){ .req = { .id = other, .complete = removed } };
        store_namespace_remove(t.s, &r.req);
        o[0] = (struct opening){ .req = { .name = "another",
                                          .name_length = 7,
                                          .fingerprint = "",
                                          .complete = opened } };
        store_namespace_open(t.s, &o[0].req);
        stop();
        assert_true(r.done && o[0].done);
        start("01");
        assert_true(has_namespace("name"));
        assert_int_equal(has_namespace("another"), o[0].req.result == 0);
        stop();
}

/* --- failures --- */

static void fail_volume(unsigned volume, unsigned ops, int error)
{
        fault_set(&(struct fault_plan){ .ops = ops,
                                        .volume = volume + 1,
                                        .kind = FAULT_ERROR,
                                        .error = error,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
}

static void a_failing_path_is_bypassed_when_its_budget_is_spent(void **state)
{
        unsigned failed = 0, hits = 0;

        t.error_budget = 5;
        start("01");
        put_range(0, MANY);
        settle();
        fail_volume(1, 1u << KIO_READ, EIO);
        for (uint64_t i = 0; i < MANY; i++) {
                int r = get(i);

                assert_true(r == 0 || r == STORE_MISS || r == -EIO);
                failed += r == -EIO;
                hits += r == 0;
        }
        assert_int_equal(failed, 6);
        assert_int_equal(hits, stats_of(0).stats.chunks);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_BYPASSED);
        assert_non_null(strstr(stats_of(1).reason, "error_budget"));
        assert_int_equal(stats_of(1).stats.read_errors, 6);
        assert_int_equal(t.events[STORE_VOLUME_IS_BYPASSED], 1);
        assert_int_equal(t.told, 1);
        fault_set(NULL);
        settle(); /* its superblock is being marked: a call of the path, too */
        assert_int_equal(device(store_suspend, 1), 0);
        assert_non_null(strstr(stats_of(1).reason, "error_budget")); /* why is not forgotten */
        put_range(MANY, 50);
        settle();
        assert_int_equal(device(store_resume, 1), 0);
        assert_int_equal(count_hits(MANY, 50), 50);
        assert_true(count_hits(0, MANY) >= MANY - 6);
        stop();
}

static void test_R2_what_a_client_took_away_is_looked_for_on_one_path_only(void **state)
{
        struct put p;

        start("01");
        settle();
        for (unsigned foreign = 0; foreign < 2; foreign++) {
                fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE,
                                                .kind = FAULT_ERROR,
                                                .error = EFAULT,
                                                .first = 1,
                                                .count = FAULT_FOR_EVER });
                for (uint64_t i = 0; i < 20; i++) {
                        uint64_t before = fault_matched();

                        p = (struct put){ .req = { .namespace_id = t.ns,
                                                   .key = key_of(i),
                                                   .buf = t.bufs[0],
                                                   .length = 8192,
                                                   .foreign = foreign,
                                                   .complete = put_done } };
                        p.req.hash = store_hash(t.s, t.ns, &p.req.key);
                        assert_int_equal(store_put(t.s, &p.req), 0);
                        wait_for(&p.done);
                        assert_int_equal(p.req.result, -EFAULT);
                        assert_int_equal(fault_matched() - before, foreign ? 1 : 2);
                }
                assert_int_equal(stats_of(0).stats.write_errors, 20);
                assert_int_equal(stats_of(1).stats.write_errors, 20);
        }
        assert_int_equal(t.told, 0);
        fault_set(NULL);
        put_range(0, 20);
        assert_int_equal(count_hits(0, 20), 20);
        stop();
}

static void a_put_that_fails_on_one_path_is_written_to_another(void **state)
{
        start("01");
        settle();
        fail_volume(1, 1u << KIO_WRITE, EIO);
        put_range(0, 100);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_BYPASSED);
        assert_int_equal(count_hits(0, 100), 100);
        assert_int_equal(stats_of(0).stats.chunks, 100);
        fault_set(NULL);
        stop();
        start("01");
        assert_int_equal(count_hits(0, 100), 100);
        stop();
}

static void a_table_that_cannot_be_written_bypasses_the_path_at_once(void **state)
{
        uint64_t i;

        start("01");
        put_range(0, 50);
        settle();
        i = first_on(0);
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE,
                                        .volume = 1,
                                        .kind = FAULT_ERROR,
                                        .error = EIO,
                                        .first = 1,
                                        .count = 1 });
        assert_int_equal(drop(i), 0); /* a tombstone is all that is written */
        assert_int_equal(settle_drops(), 0);
        assert_int_equal(stats_of(0).state, STORE_VOLUME_BYPASSED);
        assert_non_null(strstr(stats_of(0).reason, "table"));
        fault_set(NULL);
        settle();
        /* The tombstone was not written, so what it meant must not come back with the path. */
        assert_int_equal(device(store_resume, 0), 0);
        assert_int_equal(get(i), STORE_MISS);
        stop();
        start("01");
        assert_int_equal(get(i), STORE_MISS);
        stop();
}

static void a_read_only_path_is_bypassed_and_a_full_one_is_not(void **state)
{
        start("01");
        settle();
        fail_volume(1, 1u << KIO_WRITE, ENOSPC);
        put_range(0, 60);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_UP);
        assert_true(stats_of(1).full);
        assert_true(stats_of(1).full_refusals > 0);
        assert_int_equal(t.events[STORE_VOLUME_IS_FULL], 1);
        assert_int_equal(t.told, 1);
        fail_volume(1, 1u << KIO_WRITE, EROFS);
        put_range(60, 60);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_BYPASSED);
        assert_int_equal(count_hits(0, 120), 120);
        fault_set(NULL);
        stop();
}

static void with_its_only_path_bypassed_the_store_answers_misses(void **state)
{
        uint32_t id;

        start("0");
        put_range(0, 20);
        settle();
        fail_volume(0, 1u << KIO_WRITE, EROFS);
        assert_int_equal(put(100), -EROFS);
        assert_true(stats().bypassed);
        assert_int_equal(put(101), STORE_BYPASSED);
        assert_int_equal(get(0), STORE_MISS);
        /* A kill may bring any of them back, whichever request asked before. */
        for (uint64_t i = 0; i < 2; i++) {
                assert_int_equal(drop(i), 0);
                assert_int_equal(settle_drops(), STORE_BYPASSED);
        }
        /* So does every other request, since it may be another's drop that is asked about. */
        assert_int_equal(drop(1000), STORE_MISS);
        assert_int_equal(settle_drops(), STORE_BYPASSED);
        assert_int_equal(open_namespace("meanwhile", &id), 0);
        assert_int_equal(purge(), -EIO);
        assert_int_equal(drop(2), 0);
        assert_int_equal(settle_drops(), STORE_BYPASSED);
        fault_set(NULL);
        settle();
        assert_int_equal(device(store_resume, 0), 0);
        assert_int_equal(get(1), STORE_MISS); /* purged, after all */
        assert_int_equal(store_namespace_get(t.s, id)->chunks, 0);
        assert_int_equal(put(101), 0);
        stop();
        start("0");
        assert_int_equal(get(101), 0);
        assert_int_equal(get(1), STORE_MISS);
        stop();
}

static void a_start_without_one_of_its_paths_goes_on(void **state)
{
        unsigned on_0;

        start("01");
        put_range(0, MANY);
        on_0 = (unsigned)stats_of(0).stats.chunks;
        stop();
        assert_int_equal(rename(t.dirs[1], t.dirs[2]), 0);
        close(open(t.dirs[1], O_WRONLY | O_CREAT, 0600)); /* no directory: it cannot be opened */
        start("01");
        assert_int_equal(t.events[STORE_VOLUME_IS_BYPASSED], 1);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_BYPASSED);
        assert_int_equal(count_hits(0, MANY), on_0);
        put_range(MANY, 50);
        assert_true(device(store_resume, 1) < 0);
        assert_int_equal(stats_of(1).state, STORE_VOLUME_BYPASSED);
        assert_int_equal(unlink(t.dirs[1]), 0);
        assert_int_equal(rename(t.dirs[2], t.dirs[1]), 0);
        assert_int_equal(device(store_resume, 1), 0);
        assert_int_equal(count_hits(0, MANY + 50), MANY + 50);
        stop();
        assert_int_equal(rename(t.dirs[1], t.dirs[2]), 0);
        close(open(t.dirs[1], O_WRONLY | O_CREAT, 0600));
        refused("1", -ENOTDIR, t.dirs[1]);
        assert_int_equal(unlink(t.dirs[1]), 0);
}

static struct disk_superblock superblock_of(unsigned dir)
{
        struct disk_superblock sb = { 0 };
        char name[300];
        int fd;

        snprintf(name, sizeof(name), "%s/superblock", t.dirs[dir]);
        fd = open(name, O_RDONLY);
        if (fd >= 0) {
                assert_int_equal(read(fd, &sb, sizeof(sb)), sizeof(sb));
                close(fd);
        }
        return sb;
}

/* A path that cannot be used may have the number, or be of the set, that they would get. */
static void empty_directories_become_paths_only_beside_all_the_others(void **state)
{
        close(open(t.dirs[1], O_WRONLY | O_CREAT, 0600));
        refused("01", -EIO, t.dirs[1]);
        assert_int_equal(superblock_of(0).volume_count, 0);
        assert_int_equal(unlink(t.dirs[1]), 0);

        start("01");
        put_range(0, MANY);
        stop();
        assert_int_equal(rename(t.dirs[1], t.dirs[3]), 0);
        close(open(t.dirs[1], O_WRONLY | O_CREAT, 0600));
        start("012");
        assert_int_equal(stats_of(2).state, STORE_VOLUME_BYPASSED);
        assert_non_null(strstr(stats_of(2).reason, "not added"));
        assert_int_equal(superblock_of(2).volume_count, 0);
        assert_int_equal(unlink(t.dirs[1]), 0);
        assert_int_equal(rename(t.dirs[3], t.dirs[1]), 0);
        assert_int_equal(device(store_resume, 1), 0);
        assert_int_equal(device(store_resume, 2), 0);
        assert_int_equal(superblock_of(2).volume_index, 2);
        assert_int_equal(count_hits(0, MANY), MANY);
        stop();
}

/* The numbers are on the disk of the others before, and come back where they were not used. */
static void a_number_that_a_start_announces_is_not_given_twice(void **state)
{
        struct disk_superblock sb;
        char name[300];

        start("0");
        put_range(0, MANY);
        stop();
        snprintf(name, sizeof(name), "%s/superblock.new", t.dirs[1]);
        assert_int_equal(mkdir(t.dirs[1], 0700), 0);
        assert_int_equal(mkdir(name, 0700), 0);
        start("01");
        assert_int_equal(stats_of(1).state, STORE_VOLUME_BYPASSED);
        assert_int_equal(superblock_of(0).volume_count, 1);
        sb = superblock_of(0);
        stop();
        assert_int_equal(rmdir(name), 0);
        start("01");
        assert_int_equal(superblock_of(1).volume_index, 1);
        assert_memory_equal(superblock_of(1).set, sb.set, sizeof(sb.set));
        assert_int_equal(superblock_of(0).volume_count, 2);
        assert_int_equal(count_hits(0, MANY), MANY);
        stop();
}

static struct {
        struct kio_request req;
        sem_t end;
        bool done;
} held;

static int wait_for_end(struct kio_request *req)
{
        return sem_wait(&held.end) < 0 ? -errno : 0;
}

static void calls_released(struct kio_request *req)
{
        held.done = true;
}

/* Superblocks of the path are written after this. */
static void hold_calls(unsigned volume)
{
        held.done = false;
        sem_init(&held.end, 0, 0);
        held.req = (struct kio_request){ .op = KIO_CALL,
                                         .class = KIO_CLASS_PUT,
                                         .volume = volume + 1,
                                         .call = wait_for_end,
                                         .complete = calls_released };
        list_init(&held.req.node);
        kio_submit(t.io, &held.req, 0);
        kio_flush(t.io);
}

static void release_calls(void)
{
        sem_post(&held.end);
        wait_for(&held.done);
        sem_destroy(&held.end);
}

/* Before a directory that was empty is a path, the others have its number on stable storage. */
static void a_path_that_is_added_by_a_resume_is_written_down_first(void **state)
{
        struct rlimit before, none;
        struct device d;
        int r;

        start("01");
        put_range(0, MANY);
        stop();
        close(open(t.dirs[2], O_WRONLY | O_CREAT, 0600));
        start("012");
        assert_int_equal(stats_of(2).state, STORE_VOLUME_BYPASSED);
        assert_int_equal(unlink(t.dirs[2]), 0);
        settle();

        assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
        none = before;
        none.rlim_cur = 0;
        signal(SIGXFSZ, SIG_IGN);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
        r = device(store_resume, 2);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        signal(SIGXFSZ, SIG_DFL);
        assert_int_equal(r, -EFBIG);
        assert_non_null(strstr(stats_of(2).reason, "the superblock of"));
        assert_int_equal(superblock_of(2).volume_count, 0);

        hold_calls(1);
        d = (struct device){ .req = { .volume = 2, .complete = device_done } };
        store_resume(t.s, &d.req);
        while (!d.done && superblock_of(0).volume_count < 3)
                turn();
        for (unsigned i = 0; i < 100; i++)
                turn();
        assert_false(d.done);
        assert_int_equal(superblock_of(1).volume_count, 2);
        assert_int_equal(superblock_of(2).volume_count, 0);
        release_calls();
        wait_for(&d.done);
        assert_int_equal(d.req.result, 0);
        assert_int_equal(superblock_of(1).volume_count, 3);
        assert_int_equal(superblock_of(2).volume_count, 3);
        assert_int_equal(superblock_of(2).volume_index, 2);
        put_range(MANY, MANY);
        assert_true(stats_of(2).stats.chunks > 0);
        assert_int_equal(count_hits(0, 2 * MANY), 2 * MANY);
        stop();

        /* Its number is not given again, and what it misses is known. */
        assert_int_equal(rename(t.dirs[2], t.dirs[3]), 0);
        start("01");
        assert_int_equal(purge(), 0);
        stop();
        start("014");
        assert_int_equal(superblock_of(4).volume_index, 3);
        stop();
        start("0134");
        assert_int_equal(t.events[STORE_VOLUME_IS_EMPTIED], 1);
        assert_int_equal(count_hits(0, 2 * MANY), 0);
        stop();
}

/* Nor does a stop wait for the others' superblocks longer than for any of them. */
static void a_stop_ends_a_resume_that_waits_for_a_number(void **state)
{
        struct device d;

        start("01");
        stop();
        close(open(t.dirs[2], O_WRONLY | O_CREAT, 0600));
        start("012");
        assert_int_equal(unlink(t.dirs[2]), 0);
        settle();
        hold_calls(1);
        d = (struct device){ .req = { .volume = 2, .complete = device_done } };
        store_resume(t.s, &d.req);
        while (!d.done && superblock_of(0).volume_count < 3)
                turn();
        assert_false(d.done);
        store_stop(t.s);
        assert_true(d.done);
        assert_int_equal(d.req.result, -ECANCELED);
        release_calls();
        stop();
        start("012");
        assert_int_equal(store_volumes_up(t.s), 3);
        stop();
}

static void test_R3_a_path_of_another_daemon_is_refused(void **state)
{
        struct store_params params;
        const char *paths[] = { t.dirs[2], t.dirs[1] };
        struct store *other;
        char error[512] = "";

        start("01");
        params = (struct store_params){
                .paths = paths,
                .n_paths = 2,
                .limit = t.limit,
                .segment_bytes = MIB,
                .policy = "lru",
                .lock_wait_ms = 50,
        };
        assert_int_equal(store_prepare(&other, &params, error), -EBUSY);
        assert_non_null(strstr(error, t.dirs[1]));
        stop();
}

/* --- hanging --- */

static void test_R15_a_path_that_hangs_is_bypassed_and_keeps_its_buffers(void **state)
{
        uint64_t on_0, on_1, homed_on_1;
        struct put p[DEPTH] = { 0 }, sync = { .req = { .complete = put_done } };
        struct get g;

        t.hang_ms = 200;
        start("01");
        put_range(0, MANY);
        on_0 = first_on(0);
        on_1 = first_on(1);
        homed_on_1 = next_on(1, on_1 + 1);
        assert_int_equal(drop(homed_on_1), 0);
        settle();
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_READ | 1u << KIO_WRITE | 1u << KIO_SYNC,
                                        .volume = 2,
                                        .kind = FAULT_NEVER,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
        assert_int_equal(get_begin(&g, on_1, t.bufs[1]), 0);
        assert_int_equal(put_begin(&p[2], homed_on_1, t.bufs[2]), 0);
        for (unsigned i = 3; i < 12; i++)
                assert_int_equal(put_begin(&p[i], MANY + i, t.bufs[i]), 0);
        store_sync(t.s, &sync.req);
        wait_hits(2);
        /* The other path goes on meanwhile. */
        assert_int_equal(get(on_0) == 0 || g.abandoned, true);
        wait_state(1, STORE_VOLUME_BYPASSED);
        assert_non_null(strstr(stats_of(1).reason, "io.hang"));
        assert_true(g.abandoned);
        assert_false(g.done);
        for (unsigned i = 2; i < 12; i++)
                while (!p[i].done && !p[i].abandoned)
                        turn();
        assert_true(p[2].abandoned);
        assert_false(p[2].done);
        wait_for(&sync.done);
        assert_int_equal(sync.req.result, STORE_NOT_DURABLE);
        assert_int_equal(get(on_1), STORE_MISS);
        assert_int_equal(get(on_0), 0);
        put_range(2 * MANY, 20);
        assert_int_equal(purge(), 0);
        assert_int_equal(drop(1), STORE_MISS);
        assert_int_equal(settle_drops(), 0);
        assert_int_equal(device(store_resume, 1), STORE_BUSY);

        /* It comes back: only now are the buffers ours. */
        fault_set(NULL);
        fault_release();
        wait_for(&g.done);
        for (unsigned i = 2; i < 12; i++)
                wait_for(&p[i].done);
        settle();
        assert_int_equal(device(store_resume, 1), 0);
        assert_int_equal(count_hits(0, MANY), 0); /* purged */
        put_range(0, 50);
        assert_int_equal(count_hits(0, 50), 50);
        assert_int_equal(t.events[STORE_VOLUME_IS_BYPASSED], 1);
        stop();
        start("01");
        assert_int_equal(count_hits(0, MANY), 50);
        stop();
}

static void test_R15_a_suspend_does_not_wait_for_a_device_that_hangs(void **state)
{
        struct device d = { .req = { .volume = 0, .complete = device_done } };
        struct put p;

        t.hang_ms = 200;
        start("0");
        settle();
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_NEVER, .first = 1, .count = FAULT_FOR_EVER });
        assert_int_equal(put_begin(&p, 1, t.bufs[0]), 0);
        wait_hits(1);
        store_suspend(t.s, &d.req);
        wait_state(0, STORE_VOLUME_BYPASSED);
        assert_true(d.done);
        assert_true(d.req.result < 0);
        assert_true(p.abandoned);
        fault_set(NULL);
        fault_release();
        wait_for(&p.done);
        settle();
        assert_int_equal(device(store_resume, 0), 0);
        assert_int_equal(put(2), 0);
        stop();
}

/* --- */

static int set_up(void **state)
{
        const char *base = getenv("TMPDIR");

        fault_set(NULL);
        t.limit = 64 * MIB;
        t.hang_ms = 0;
        t.error_budget = 0;
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

static int tear_down(void **state)
{
        char command[300];

        fault_set(NULL);
        fault_release();
        snprintf(command, sizeof(command), "rm -rf '%s'", t.root);
        return system(command);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv)
{
        const struct CMUnitTest tests[] = {
                TEST(chunks_are_spread_and_found_again),
                TEST(an_empty_path_may_be_added_to_a_store),
                TEST(a_path_that_is_left_out_takes_its_chunks_with_it),
                TEST(a_store_of_one_path_carries_no_trace_of_sets),
                TEST(paths_of_different_stores_are_refused),
                TEST(a_copy_of_a_path_is_refused),
                TEST(namespaces_that_contradict_each_other_are_refused),
                TEST(a_path_that_was_away_learns_the_namespaces),
                TEST(a_path_that_is_full_learns_the_namespaces),
                TEST(a_suspended_path_is_a_miss_and_comes_back_whole),
                TEST(a_path_that_cannot_be_told_the_namespaces_stays_away),
                TEST(what_is_removed_while_a_path_is_away_does_not_come_back_with_it),
                TEST(a_removal_that_one_path_cannot_write_costs_that_path),
                TEST(what_the_last_path_cannot_write_is_not_answered_as_purged),
                TEST(what_the_last_path_cannot_write_is_not_answered_as_removed),
                TEST(without_a_path_nothing_is_removed),
                TEST(what_is_no_file_costs_its_path_only),
                TEST(what_is_counted_of_a_path_goes_on_when_it_is_resumed),
                TEST(suspending_waits_for_what_was_begun),
                TEST(what_was_purged_while_a_path_was_away_never_comes_back),
                TEST(what_was_dropped_while_a_path_was_away_never_comes_back),
                TEST(a_tombstone_does_not_outlive_a_put_that_was_under_way),
                TEST(what_is_dropped_or_purged_during_a_resume_does_not_come_back),
                TEST(a_drop_of_nothing_costs_no_path_what_it_has),
                TEST(paths_that_were_used_apart_bring_back_nothing),
                TEST(what_is_purged_on_one_path_while_another_is_used_apart_does_not_come_back),
                TEST(what_a_path_purges_that_knows_less_than_the_others_does_not_come_back),
                TEST(a_claim_that_was_made_up_for_empties_no_path_again),
                TEST(a_path_that_was_used_apart_is_not_resumed),
                TEST(what_is_removed_on_paths_that_are_used_apart_does_not_come_back),
                TEST(what_failed_and_was_written_all_the_same_is_not_found),
                TEST(what_was_put_elsewhere_after_a_lie_can_be_dropped),
                TEST(with_all_paths_aside_no_drop_is_answered_as_one_for_good),
                TEST(no_drop_is_settled_before_the_note_of_it_is_written),
                TEST(a_note_that_failed_is_written_for_the_next_who_asks),
                TEST(a_kill_amid_a_purge_costs_nothing_else),
                TEST(a_name_whose_removal_a_kill_cuts_off_contradicts_nothing),
                TEST(an_open_of_what_is_being_removed_waits_and_makes_it_anew),
                TEST(a_failing_path_is_bypassed_when_its_budget_is_spent),
                TEST(test_R2_what_a_client_took_away_is_looked_for_on_one_path_only),
                TEST(a_put_that_fails_on_one_path_is_written_to_another),
                TEST(a_table_that_cannot_be_written_bypasses_the_path_at_once),
                TEST(a_read_only_path_is_bypassed_and_a_full_one_is_not),
                TEST(with_its_only_path_bypassed_the_store_answers_misses),
                TEST(a_start_without_one_of_its_paths_goes_on),
                TEST(empty_directories_become_paths_only_beside_all_the_others),
                TEST(a_number_that_a_start_announces_is_not_given_twice),
                TEST(a_path_that_is_added_by_a_resume_is_written_down_first),
                TEST(a_stop_ends_a_resume_that_waits_for_a_number),
                TEST(test_R3_a_path_of_another_daemon_is_refused),
                TEST(test_R15_a_path_that_hangs_is_bypassed_and_keeps_its_buffers),
                TEST(test_R15_a_suspend_does_not_wait_for_a_device_that_hangs),
        };

        if (argc > 1)
                cmocka_set_test_filter(argv[1]);
        return cmocka_run_group_tests_name("several volumes", tests, NULL, NULL);
}
