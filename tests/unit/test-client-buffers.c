/* SPDX-License-Identifier: Apache-2.0 */
/* libkvcache's registered buffers and pieces with a fake daemon: the messages, the ownership of
 * memory, and daemons that refuse, lie, are late or end. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "../lib/open-fds.h"
#include "../lib/rig.h"
#include "../lib/timeout.h"
#include "checked.h"
#include "lib/handle.h"

enum { PAGE = 4096, REGION = 64 * PAGE, MOST_PIECES = 4088 };

static int sealed_memfd(size_t bytes)
{
        int fd = memfd_create("test-client-buffers", MFD_CLOEXEC | MFD_ALLOW_SEALING);

        assert_true(fd >= 0);
        assert_int_equal(posix_fallocate(fd, 0, (off_t)bytes), 0);
        assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
        return fd;
}

static int file_fd; /* a file to register */

static int setup(void **state)
{
        int r = rig_setup(state);

        file_fd = sealed_memfd(REGION);
        return r;
}

static int teardown(void **state)
{
        close(file_fd);
        return rig_teardown(state);
}

static void start(struct rig *f, const struct fake_options *o)
{
        struct kvcache_options options = {
                .size = sizeof(options),
                .socket_path = f->path,
                .request_timeout_ms = test_timeout_ms(60000),
                .staging_bytes = 64 * 1024,
        };
        struct kvcache_namespace_options ns = { .size = sizeof(ns),
                                                .name = "n",
                                                .fingerprint = "" };
        char why[512] = "";

        f->d = fake_daemon_start(f->path, o);
        if (kvcache_connect(&f->kv, &options, why, sizeof(why)) < 0)
                fail_msg("%s", why);
        assert_int_equal(kvcache_namespace_open(f->kv, &ns, &f->ns), 0);
}

static struct kvcache_buffer_options options_of(int fd, uint64_t offset, uint64_t bytes)
{
        return (struct kvcache_buffer_options){ .size = sizeof(struct kvcache_buffer_options),
                                                .fd = fd,
                                                .offset = offset,
                                                .bytes = bytes };
}

/* Registers the whole file of the fixture. */
static uint8_t *register_buffer(struct rig *f, uint32_t *ret_region)
{
        struct kvcache_buffer_options o = options_of(file_fd, 0, REGION);
        void *base = NULL;
        int r = kvcache_buffer_register(f->kv, &o, ret_region, &base);

        if (r < 0)
                fail_msg("%d: %s", r, kvcache_error(f->kv));
        return base;
}

static struct kvcache_request request_of(struct rig *f, enum kvcache_op op,
                                         const struct kvcache_entry *entries, size_t n,
                                         struct kvcache_result *results)
{
        struct kvcache_request q = rig_request(f, op, NULL, n, results);

        q.entries = entries;
        q.ack = op == KVCACHE_OP_PUT ? KVCACHE_WRITTEN : 0;
        return q;
}

static int call(struct rig *f, enum kvcache_op op, const struct kvcache_entry *entries, size_t n,
                struct kvcache_result *results)
{
        struct kvcache_request q = request_of(f, op, entries, n, results);

        return kvcache_submit_and_wait(f->kv, &q, NULL);
}

static int submit(struct rig *f, enum kvcache_op op, const struct kvcache_entry *entries, size_t n,
                  struct kvcache_result *results, int timeout_ms)
{
        struct kvcache_request q = request_of(f, op, entries, n, results);

        q.timeout_ms = timeout_ms;
        return kvcache_submit(f->kv, &q);
}

/* Returns whether the daemon's chunk of key n is `bytes` long and filled with n. */
static bool stored(struct rig *f, uint64_t n, size_t bytes)
{
        uint8_t *back = malloc(bytes + 1);
        struct kvcache_key k = rig_key(n);
        size_t length = 0;
        bool r;

        assert_non_null(back);
        r = kvcache_get(f->kv, f->ns, &k, back, bytes + 1, &length) == KVCACHE_OK &&
            length == bytes && rig_filled(back, bytes, n);
        free(back);
        return r;
}

/* Returns the i-th batch from the end that the daemon has received. */
static struct fake_logged logged_before(struct rig *f, unsigned i)
{
        struct fake_logged l = { 0 };

        fake_daemon_lock(f->d);
        if (i < f->d->n_log)
                l = f->d->log[f->d->n_log - 1 - i];
        fake_daemon_unlock(f->d);
        return l;
}

static bool is_mapped(const void *p)
{
        unsigned char there;

        return mincore((void *)p, PAGE, &there) == 0;
}

/* --- registering, and what is sent --- */

static void test_puts_and_gets_name_the_region_and_need_no_staging(void **state)
{
        struct rig *f = *state;
        struct kvcache_result r[2];
        struct kvcache_entry e[2];
        uint32_t region = 0;
        uint8_t *base;

        start(f, NULL);
        base = register_buffer(f, &region);
        assert_int_equal(region, 1);
        rig_fill(base, 5000, 1);
        rig_fill(base + 7777, 333, 2);
        e[0] = (struct kvcache_entry){ .key = rig_key(1), .data = base, .length = 5000 };
        e[1] = (struct kvcache_entry){ .key = rig_key(2), .data = base + 7777, .length = 333 };
        assert_int_equal(call(f, KVCACHE_OP_PUT, e, 2, r), 0);
        assert_int_equal(r[0].status, KVCACHE_OK);
        assert_int_equal(r[1].status, KVCACHE_OK);
        assert_int_equal(logged_before(f, 0).region, 101);
        assert_true(stored(f, 1, 5000) && stored(f, 2, 333));

        e[0].data = base + REGION - 5000;
        e[1].data = base + 100000;
        assert_int_equal(call(f, KVCACHE_OP_GET_INTO, e, 2, r), 0);
        assert_int_equal(r[0].status, KVCACHE_OK);
        assert_int_equal(r[1].length, 333);
        assert_true(rig_filled(base + REGION - 5000, 5000, 1) && rig_filled(base + 100000, 333, 2));
        assert_int_equal(logged_before(f, 0).flags, WIRE_F_INTO);
        assert_int_equal(logged_before(f, 0).region, 101);
        assert_int_equal(rig_peek(f, &f->d->requests[WIRE_STAGING]), 0);
        assert_int_equal(kvcache_buffer_unregister(f->kv, region), 0);
        assert_int_equal(rig_peek(f, &f->d->regions), 0);
}

static unsigned leases_left(struct rig *f)
{
        unsigned n = 0;

        fake_daemon_lock(f->d);
        for (unsigned i = 0; i < FAKE_LEASES; i++)
                n += f->d->leases[i].used;
        fake_daemon_unlock(f->d);
        return n;
}

static void wait_for_leases_to_go_back(struct rig *f)
{
        time_t end = time(NULL) + 10;

        while (leases_left(f) > 0) {
                assert_true(time(NULL) < end);
                sched_yield();
        }
}

/* Two chunks are in memory, one on disk. */
static void test_the_library_copies_a_little_that_is_in_memory(void **state)
{
        enum { BYTES = 30000 }; /* long enough to bypass the caches */
        struct fake_options o = { .lease_into = true, .in_memory = 2 };
        struct rig *f = *state;
        struct kvcache_result r[3];
        struct kvcache_entry e[3];
        struct kvcache_completion c[2];
        uint32_t region = 0;
        uint8_t *base;

        start(f, &o);
        base = register_buffer(f, &region);
        for (unsigned i = 0; i < 3; i++) {
                rig_put(f, 1 + i, BYTES);
                e[i] = (struct kvcache_entry){ .key = rig_key(1 + i),
                                               .data = base + 1 + i * (BYTES + 7),
                                               .length = BYTES };
        }
        memset(base, 0x33, REGION);
        assert_int_equal(call(f, KVCACHE_OP_GET_INTO, e, 3, r), 0);
        for (unsigned i = 0; i < 3; i++) {
                uint8_t *at = base + 1 + i * (BYTES + 7);

                assert_int_equal(r[i].status, KVCACHE_OK);
                assert_int_equal(r[i].length, BYTES);
                assert_int_equal(r[i].lease.generation, 0);
                assert_null(r[i].data);
                assert_true(rig_filled(at, BYTES, 1 + i));
                assert_int_equal(at[-1], 0x33);
                assert_int_equal(at[BYTES], 0x33);
        }
        /* The lease is released at once, because the user does not know it. */
        wait_for_leases_to_go_back(f);
        assert_int_equal(logged_before(f, 1).flags, WIRE_F_INTO | WIRE_F_LEASE);
        assert_int_equal(logged_before(f, 0).op, WIRE_RELEASE);

        /* A range works. A place with too little room is left to the daemon. */
        e[0].range_offset = 100;
        e[0].range_length = 20000;
        e[1].length = BYTES - 1;
        memset(base, 0x33, REGION);
        assert_int_equal(call(f, KVCACHE_OP_GET_INTO, e, 2, r), 0);
        assert_int_equal(r[0].length, 20000);
        rig_fill(base + 100000, BYTES, 1);
        assert_memory_equal(base + 1, base + 100000 + 100, 20000);
        assert_int_equal(base[1 + 20000], 0x33);
        assert_int_equal(r[1].status, KVCACHE_TOO_LARGE);
        wait_for_leases_to_go_back(f);

        /* While other requests are in flight, the daemon's workers copy. */
        e[0] = (struct kvcache_entry){ .key = rig_key(1), .data = base, .length = BYTES };
        e[1] = (struct kvcache_entry){ .key = rig_key(2), .data = base + BYTES, .length = BYTES };
        assert_int_equal(submit(f, KVCACHE_OP_GET_INTO, &e[0], 1, &r[0], 0), 0);
        assert_int_equal(submit(f, KVCACHE_OP_GET_INTO, &e[1], 1, &r[1], 0), 0);
        for (unsigned n = 0; n < 2;)
                n += (unsigned)kvcache_reap(f->kv, c, 2, test_timeout_ms(60000));
        assert_true(rig_filled(base, BYTES, 1) && rig_filled(base + BYTES, BYTES, 2));
        assert_int_equal(kvcache_buffer_unregister(f->kv, region), 0);
        wait_for_leases_to_go_back(f);
}

/* Memory of a file that can be truncated is filled by a worker of the daemon, which reports missing
 * memory as an error, where the program would get a signal. This also applies where the program has
 * mapped it. */
static void test_memory_that_may_go_away_is_filled_by_the_daemon(void **state)
{
        struct fake_options o = { .lease_into = true, .in_memory = 1 };
        int cut = memfd_create("can-be-cut", MFD_CLOEXEC);
        struct kvcache_buffer_options b[] = { options_of(cut, 0, REGION),
                                              options_of(file_fd, 0, REGION) };
        struct rig *f = *state;
        struct kvcache_result r;

        start(f, &o);
        rig_put(f, 1, 5000);
        assert_int_equal(ftruncate(cut, REGION), 0);
        b[1].base = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_SHARED, file_fd, 0);
        assert_ptr_not_equal(b[1].base, MAP_FAILED);
        for (unsigned i = 0; i < 2; i++) {
                struct kvcache_entry e = { .key = rig_key(1), .length = 5000 };
                uint32_t region = 0;

                assert_int_equal(kvcache_buffer_register(f->kv, &b[i], &region, &e.data), 0);
                assert_int_equal(call(f, KVCACHE_OP_GET_INTO, &e, 1, &r), 0);
                assert_int_equal(logged_before(f, 0).flags, WIRE_F_INTO);
                assert_true(rig_filled(e.data, 5000, 1));
        }
        munmap(b[1].base, REGION);
        close(cut);
}

/* The library copies up to four MiB; with one more key, the daemon copies. */
static void test_much_is_copied_by_the_daemon(void **state)
{
        enum { LITTLE = (4 << 20) / REGION };
        struct fake_options o = { .lease_into = true, .in_memory = 1 };
        struct kvcache_result r[LITTLE + 1];
        struct kvcache_entry e[LITTLE + 1];
        struct rig *f = *state;
        uint32_t region = 0;
        uint8_t *base;

        start(f, &o);
        base = register_buffer(f, &region);
        rig_put(f, 1, 1000);
        for (unsigned i = 0; i <= LITTLE; i++)
                e[i] = (struct kvcache_entry){ .key = rig_key(1), .data = base, .length = REGION };
        assert_int_equal(call(f, KVCACHE_OP_GET_INTO, e, LITTLE, r), 0);
        wait_for_leases_to_go_back(f);
        assert_int_equal(logged_before(f, 1).flags, WIRE_F_INTO | WIRE_F_LEASE);
        assert_int_equal(call(f, KVCACHE_OP_GET_INTO, e, LITTLE + 1, r), 0);
        assert_int_equal(logged_before(f, 0).flags, WIRE_F_INTO);
        assert_true(rig_filled(base, 1000, 1));
}

/* A release after a copy needs no answer and no place in the window. */
static void test_the_release_after_a_copy_is_not_answered(void **state)
{
        struct fake_options o = {
                .lease_into = true, .in_memory = 1, .no_reply = true, .max_inflight = 1
        };
        struct kvcache_entry e = { .key = rig_key(1), .length = 5000 };
        struct rig *f = *state;
        struct kvcache_result r;
        uint32_t region = 0;

        start(f, &o);
        rig_put(f, 1, 5000);
        e.data = register_buffer(f, &region);
        for (unsigned i = 0; i < 100; i++) {
                memset(e.data, 0x33, 5000);
                assert_int_equal(call(f, KVCACHE_OP_GET_INTO, &e, 1, &r), 0);
                assert_int_equal(r.status, KVCACHE_OK);
                assert_true(rig_filled(e.data, 5000, 1));
                wait_for_leases_to_go_back(f);
                assert_int_equal(logged_before(f, 0).op, WIRE_RELEASE);
                assert_int_equal(logged_before(f, 0).flags, WIRE_F_NO_REPLY);
        }
        assert_int_equal(f->d->stale_releases, 0);
}

/* The answers to the release after a copy, if any, do not hide the end of the session. */
static void a_restart_is_noticed(void **state, bool no_reply)
{
        struct fake_options o = { .lease_into = true, .in_memory = 1, .no_reply = no_reply };
        struct kvcache_entry e = { .key = rig_key(1), .length = 5000 };
        struct kvcache_info info = { .size = sizeof(info) };
        struct rig *f = *state;
        struct kvcache_result r;
        uint32_t region = 0;

        start(f, &o);
        rig_put(f, 1, 5000);
        e.data = register_buffer(f, &region);
        assert_int_equal(call(f, KVCACHE_OP_GET_INTO, &e, 1, &r), 0);
        wait_for_leases_to_go_back(f);
        fake_daemon_free(f->d);
        f->d = fake_daemon_start(f->path, &o);
        assert_int_equal(kvcache_get_info(f->kv, &info), 0);
        assert_int_equal(info.reconnects, 1);
}

static void test_a_restart_is_noticed_behind_a_release(void **state)
{
        a_restart_is_noticed(state, false);
}

static void test_a_restart_is_noticed_behind_an_unanswered_release(void **state)
{
        a_restart_is_noticed(state, true);
}

static void test_a_lease_outside_of_the_pool_is_not_copied_from(void **state)
{
        struct fake_options o = { .lease_into = true, .in_memory = 1 };
        struct rig *f = *state;
        struct kvcache_entry e;
        struct kvcache_result r;
        uint32_t region = 0;

        start(f, &o);
        e = (struct kvcache_entry){ .key = rig_key(1),
                                    .data = register_buffer(f, &region),
                                    .length = 5000 };
        rig_put(f, 1, 5000);
        fake_daemon_lock(f->d);
        f->d->o.lease_lie = UINT64_C(1) << 40;
        fake_daemon_unlock(f->d);
        memset(e.data, 0x33, 5000);
        assert_int_not_equal(call(f, KVCACHE_OP_GET_INTO, &e, 1, &r), 0);
        assert_int_equal(((uint8_t *)e.data)[0], 0x33);
}

static void test_a_chunk_longer_than_the_staging_goes_from_a_region(void **state)
{
        struct rig *f = *state;
        struct kvcache_entry e = { .key = rig_key(1), .length = 100000 };
        struct kvcache_result r;
        uint8_t *own = malloc(100000), *base;
        uint32_t region;

        start(f, NULL);
        base = register_buffer(f, &region);
        rig_fill(base, 100000, 1);
        e.data = base;
        assert_int_equal(call(f, KVCACHE_OP_PUT, &e, 1, &r), 0);
        assert_int_equal(r.status, KVCACHE_OK);
        e.key = rig_key(2);
        e.data = memcpy(own, base, 100000);
        assert_int_equal(call(f, KVCACHE_OP_PUT, &e, 1, &r), -E2BIG);
        free(own);
        assert_true(stored(f, 1, 100000));
}

static void test_a_request_may_mix_staging_region_and_other_memory(void **state)
{
        struct rig *f = *state;
        struct kvcache_entry e[4];
        struct kvcache_result r[4];
        uint8_t own[1000], *base;
        uint32_t region;
        void *place;

        start(f, NULL);
        base = register_buffer(f, &region);
        assert_int_equal(kvcache_staging_acquire(f->kv, 1000, &place), 0);
        rig_fill(base + 10, 1000, 0);
        rig_fill(place, 1000, 1);
        rig_fill(own, 1000, 2);
        rig_fill(base + REGION - 1000, 1000, 3);
        for (unsigned i = 0; i < 4; i++)
                e[i] = (struct kvcache_entry){
                        .key = rig_key(i),
                        .data = (void *[]){ base + 10, place, own, base + REGION - 1000 }[i],
                        .length = 1000,
                };
        assert_int_equal(call(f, KVCACHE_OP_PUT, e, 4, r), 0);
        for (unsigned i = 0; i < 4; i++)
                assert_true(r[i].status == KVCACHE_OK && stored(f, i, 1000));

        /* The daemon fills staging areas and regions. If other memory is involved, the library
         * copies. */
        memset(base, 0, REGION);
        memset(place, 0, 1000);
        e[2].data = base + 5000;
        assert_int_equal(call(f, KVCACHE_OP_GET_INTO, e, 4, r), 0);
        assert_int_equal(logged_before(f, 0).flags, WIRE_F_INTO);
        for (unsigned i = 0; i < 4; i++)
                assert_true(r[i].status == KVCACHE_OK && rig_filled(e[i].data, 1000, i));
        memset(base, 0, REGION);
        memset(place, 0, 1000);
        memset(own, 0, 1000);
        e[2].data = own;
        assert_int_equal(call(f, KVCACHE_OP_GET_INTO, e, 4, r), 0);
        assert_int_equal(logged_before(f, 0).flags, 0);
        for (unsigned i = 0; i < 4; i++)
                assert_true(r[i].status == KVCACHE_OK && rig_filled(e[i].data, 1000, i));

        /* Beyond the region's last byte is other memory. */
        e[0] = (struct kvcache_entry){ .key = rig_key(9),
                                       .data = base + REGION - 10,
                                       .length = 10 };
        assert_int_equal(call(f, KVCACHE_OP_PUT, e, 1, r), 0);
        assert_int_equal(logged_before(f, 0).region, 101);
        kvcache_staging_release(f->kv, place);
}

static void test_memory_that_is_mapped_already_is_taken_where_it_is(void **state)
{
        struct rig *f = *state;
        struct kvcache_buffer_options o = options_of(file_fd, 8 * PAGE, 8 * PAGE);
        uint8_t *mine = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_SHARED, file_fd, 0);
        struct kvcache_entry e = { .key = rig_key(1), .length = 3 * PAGE };
        struct kvcache_result r;
        uint32_t region = 0;
        void *base = NULL;

        assert_true(mine != MAP_FAILED);
        start(f, NULL);
        o.base = mine + 8 * PAGE;
        assert_int_equal(kvcache_buffer_register(f->kv, &o, &region, &base), 0);
        assert_ptr_equal(base, mine + 8 * PAGE);
        rig_fill(mine + 9 * PAGE, 3 * PAGE, 1);
        e.data = mine + 9 * PAGE;
        assert_int_equal(call(f, KVCACHE_OP_PUT, &e, 1, &r), 0);
        assert_int_equal(logged_before(f, 0).region, 101);
        assert_true(stored(f, 1, 3 * PAGE));
        /* Memory that is half outside is copied. */
        rig_fill(mine + 15 * PAGE, 3 * PAGE, 2);
        e = (struct kvcache_entry){ .key = rig_key(2),
                                    .data = mine + 15 * PAGE,
                                    .length = 3 * PAGE };
        assert_int_equal(call(f, KVCACHE_OP_PUT, &e, 1, &r), 0);
        assert_int_equal(logged_before(f, 0).region, 0);
        assert_true(stored(f, 2, 3 * PAGE));

        assert_int_equal(kvcache_buffer_unregister(f->kv, region), 0);
        assert_true(is_mapped(mine + 8 * PAGE)); /* the caller's mapping stays */
        munmap(mine, REGION);
}

static void test_senseless_regions_are_refused_before_anything_is_sent(void **state)
{
        struct rig *f = *state;
        struct kvcache_buffer_options good = options_of(file_fd, 0, REGION), o;
        unsigned char *page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        uint32_t region = 77;
        void *base = NULL;

        assert_true(page != MAP_FAILED);
        start(f, NULL);
#define REFUSED(change)                                                                            \
        do {                                                                                       \
                o = good;                                                                          \
                change;                                                                            \
                assert_int_equal(kvcache_buffer_register(f->kv, &o, &region, &base), -EINVAL);     \
                assert_string_not_equal(kvcache_error(f->kv), "");                                 \
        } while (0)
        REFUSED(o.size = 0);
        REFUSED(o.size--);
        REFUSED(o.flags = 2);
        REFUSED(o.flags = KVCACHE_BUFFER_FILE; o.base = page);
        REFUSED(o.fd = -1);
        REFUSED(o.fd = 9999);
        REFUSED(o.bytes = 0);
        REFUSED(o.bytes = 100);
        REFUSED(o.bytes = UINT64_MAX & ~(uint64_t)(PAGE - 1));
        REFUSED(o.offset = 1);
        REFUSED(o.offset = UINT64_MAX & ~(uint64_t)(PAGE - 1));
        REFUSED(o.offset = INT64_MAX & ~(uint64_t)(PAGE - 1));
        REFUSED(o.base = page + 1);
        REFUSED(o.base = (void *)(UINTPTR_MAX & ~(uintptr_t)(PAGE - 1)));
        REFUSED(o.fd = open("/dev/null", O_RDWR | O_CLOEXEC); close(o.fd));
#undef REFUSED
        assert_int_equal(kvcache_buffer_register(f->kv, NULL, &region, &base), -EINVAL);
        assert_int_equal(kvcache_buffer_register(f->kv, &good, NULL, &base), -EINVAL);
        assert_int_equal(kvcache_buffer_register(f->kv, &good, &region, NULL), -EINVAL);
        assert_int_equal(kvcache_buffer_register(NULL, &good, &region, &base), -EINVAL);
        assert_int_equal(kvcache_buffer_unregister(f->kv, 0), -EINVAL);
        assert_int_equal(kvcache_buffer_unregister(f->kv, 1), -EINVAL);
        assert_int_equal(kvcache_buffer_unregister(NULL, 1), -EINVAL);
        assert_int_equal(region, 77);
        assert_null(base);
        assert_int_equal(rig_peek(f, &f->d->requests[WIRE_REGISTER]), 0);

        /* Memory can be in only one region at a time. */
        assert_int_equal(kvcache_buffer_register(f->kv, &good, &region, &base), 0);
        o = options_of(file_fd, 0, PAGE);
        o.base = (uint8_t *)base + REGION - PAGE;
        assert_int_equal(kvcache_buffer_register(f->kv, &o, &region, NULL), -EINVAL);
        assert_non_null(strstr(kvcache_error(f->kv), "buffer 1"));
        munmap(page, PAGE);
}

static void test_the_daemons_refusal_leaves_nothing_behind(void **state)
{
        struct rig *f = *state;
        struct fake_options options = { .refuse_register = "there is a hole" };
        struct kvcache_buffer_options o = options_of(file_fd, 0, REGION);
        uint32_t region = 77;
        void *base = NULL;
        unsigned fds;

        start(f, &options);
        fds = open_fds();
        assert_int_equal(kvcache_buffer_register(f->kv, &o, &region, &base), -EINVAL);
        assert_non_null(strstr(kvcache_error(f->kv), "there is a hole"));
        assert_int_equal(region, 77);
        assert_null(base);
        fake_daemon_lock(f->d); /* the daemon answers first, and then closes the descriptor */
        assert_int_equal(open_fds(), fds);
        fake_daemon_unlock(f->d);
        assert_int_equal(kvcache_buffer_unregister(f->kv, 1), -EINVAL);
}

static void test_a_handle_has_as_many_regions_as_a_session(void **state)
{
        struct rig *f = *state;
        struct kvcache_buffer_options o = options_of(file_fd, 0, PAGE);
        struct kvcache_result r;
        void *base[WIRE_MAX_REGIONS + 1];
        uint32_t region[WIRE_MAX_REGIONS + 1];

        start(f, NULL);
        for (unsigned i = 0; i < WIRE_MAX_REGIONS; i++) {
                o.offset = i * PAGE;
                assert_int_equal(kvcache_buffer_register(f->kv, &o, &region[i], &base[i]), 0);
        }
        o.offset = 0;
        assert_int_equal(kvcache_buffer_register(f->kv, &o, &region[64], &base[64]), -EINVAL);
        assert_non_null(strstr(kvcache_error(f->kv), "64"));
        for (unsigned i = 0; i < WIRE_MAX_REGIONS; i += 9) {
                struct kvcache_entry e = { .key = rig_key(i), .data = base[i], .length = PAGE };

                rig_fill(base[i], PAGE, i);
                assert_int_equal(call(f, KVCACHE_OP_PUT, &e, 1, &r), 0);
                assert_int_equal(logged_before(f, 0).region, 101 + i);
        }
        /* A place is free again, but its number is not reused. */
        assert_int_equal(kvcache_buffer_unregister(f->kv, region[5]), 0);
        assert_false(is_mapped(base[5]));
        assert_int_equal(kvcache_buffer_unregister(f->kv, region[5]), -EINVAL);
        assert_int_equal(kvcache_buffer_register(f->kv, &o, &region[64], &base[64]), 0);
        assert_int_equal(region[64], 65);
        for (unsigned i = 0; i < WIRE_MAX_REGIONS; i += 9)
                assert_true(stored(f, i, PAGE));
}

/* --- pieces --- */

static void test_pieces_of_shared_memory_travel_and_others_are_gathered(void **state)
{
        struct rig *f = *state;
        struct iovec shared[3], other[3], one[1];
        uint8_t own[700], whole[3000], *base;
        struct kvcache_entry e[4];
        struct kvcache_result r[4];
        uint32_t region;
        void *place;

        start(f, NULL);
        base = register_buffer(f, &region);
        assert_int_equal(kvcache_staging_acquire(f->kv, 1000, &place), 0);
        rig_fill(whole, sizeof(whole), 0);
        shared[0] = (struct iovec){ base + 50000, 1300 };
        shared[1] = (struct iovec){ place, 1000 };
        shared[2] = (struct iovec){ base + 1, 700 };
        memcpy(base + 50000, whole, 1300);
        memcpy(place, whole + 1300, 1000);
        memcpy(base + 1, whole + 2300, 700);
        memcpy(other, shared, sizeof(other));
        rig_fill(whole, sizeof(whole), 1);
        other[0].iov_base = base + 60000;
        other[1].iov_base = base + 70000;
        other[2].iov_base = own;
        memcpy(base + 60000, whole, 1300);
        memcpy(base + 70000, whole + 1300, 1000);
        memcpy(own, whole + 2300, 700);
        rig_fill(base + 80000, 3000, 2);
        rig_fill(base + 90000, 3000, 3);
        one[0] = (struct iovec){ base + 90000, 3000 };

        e[0] = (struct kvcache_entry){ .key = rig_key(0), .pieces = shared, .n_pieces = 3 };
        e[1] = (struct kvcache_entry){ .key = rig_key(1), .pieces = other, .n_pieces = 3 };
        e[2] = (struct kvcache_entry){ .key = rig_key(2), .data = base + 80000, .length = 3000 };
        e[3] = (struct kvcache_entry){ .key = rig_key(3), .pieces = one, .n_pieces = 1 };
        assert_int_equal(call(f, KVCACHE_OP_PUT, e, 4, r), 0);
        assert_int_equal(logged_before(f, 0).flags, WIRE_F_PIECES);
        assert_int_equal(logged_before(f, 0).count, 4);
        assert_int_equal(logged_before(f, 0).pieces, 3 + 1 + 1 + 1);
        for (unsigned i = 0; i < 4; i++)
                assert_true(r[i].status == KVCACHE_OK && stored(f, i, 3000));

        /* A single piece is equivalent to a place. */
        e[3].key = rig_key(4);
        rig_fill(base + 90000, 3000, 4);
        assert_int_equal(call(f, KVCACHE_OP_PUT, &e[3], 1, r), 0);
        assert_int_equal(logged_before(f, 0).flags, 0);
        assert_int_equal(logged_before(f, 0).region, 101);
        assert_true(stored(f, 4, 3000));
        e[3].key = rig_key(3);

        /* The daemon distributes the bytes to the pieces, */
        memset(base, 0, REGION);
        memset(place, 0, 1000);
        assert_int_equal(call(f, KVCACHE_OP_GET_INTO, e, 1, r), 0);
        assert_int_equal(logged_before(f, 0).flags, WIRE_F_INTO | WIRE_F_PIECES);
        rig_fill(whole, sizeof(whole), 0);
        assert_int_equal(r[0].length, 3000);
        assert_memory_equal(base + 50000, whole, 1300);
        assert_memory_equal(place, whole + 1300, 1000);
        assert_memory_equal(base + 1, whole + 2300, 700);
        assert_int_equal(base[0] | base[701] | base[49999] | base[51300], 0);
        /* and the library does, if a piece of one key is in other memory. */
        memset(base, 0, REGION);
        memset(place, 0, 1000);
        memset(own, 0, sizeof(own));
        assert_int_equal(call(f, KVCACHE_OP_GET_INTO, e, 4, r), 0);
        assert_int_equal(logged_before(f, 0).flags, 0);
        assert_memory_equal(base + 50000, whole, 1300);
        assert_memory_equal(place, whole + 1300, 1000);
        assert_memory_equal(base + 1, whole + 2300, 700);
        rig_fill(whole, sizeof(whole), 1);
        assert_memory_equal(base + 60000, whole, 1300);
        assert_memory_equal(base + 70000, whole + 1300, 1000);
        assert_memory_equal(own, whole + 2300, 700);
        assert_true(rig_filled(base + 80000, 3000, 2) && rig_filled(base + 90000, 3000, 3));

        /* Memory after the end of the bytes does not change; too little room is TOO_LARGE. */
        other[2].iov_len = 1;
        assert_int_equal(call(f, KVCACHE_OP_GET_INTO, &e[1], 1, r), 0);
        assert_int_equal(r[0].status, KVCACHE_TOO_LARGE);
        shared[2].iov_len = 1;
        assert_int_equal(call(f, KVCACHE_OP_GET_INTO, &e[0], 1, r), 0);
        assert_int_equal(r[0].status, KVCACHE_TOO_LARGE);
        kvcache_staging_release(f->kv, place);
}

static void test_many_pieces_are_several_messages_of_one_chain(void **state)
{
        enum { KEYS = 40, EACH = 500 };
        struct rig *f = *state;
        struct iovec *pieces = calloc(KEYS * EACH, sizeof(*pieces));
        struct kvcache_entry *e = calloc(KEYS, sizeof(*e));
        struct kvcache_result *r = calloc(KEYS, sizeof(*r));
        unsigned messages, batches, keys = 0, total = 0;
        uint32_t region;
        uint8_t *base;

        assert_true(pieces && e && r);
        start(f, NULL);
        base = register_buffer(f, &region);
        for (unsigned k = 0; k < KEYS; k++) {
                for (unsigned i = 0; i < EACH; i++)
                        pieces[k * EACH + i] = (struct iovec){ base + k * EACH * 4 + i * 4, 4 };
                rig_fill(base + k * EACH * 4, EACH * 4, k);
                e[k] = (struct kvcache_entry){ .key = rig_key(k),
                                               .pieces = &pieces[k * EACH],
                                               .n_pieces = EACH };
        }
        assert_int_equal(call(f, KVCACHE_OP_PUT, e, KEYS, r), 0);
        messages = rig_peek(f, &f->d->requests[WIRE_PUT]);
        assert_int_equal(messages, 5); /* 8 keys of 500 pieces each */
        for (unsigned i = 0; i < messages; i++) {
                struct fake_logged l = logged_before(f, messages - 1 - i);
                struct kvcache_key parent = rig_key(keys - 1);

                assert_int_equal(l.flags & WIRE_F_MORE, i + 1 < messages ? WIRE_F_MORE : 0);
                if (i > 0)
                        assert_memory_equal(&l.parent, &parent, sizeof(parent));
                keys += l.count;
                total += l.pieces;
        }
        assert_int_equal(keys, KEYS);
        assert_int_equal(total, KEYS * EACH);
        for (unsigned k = 0; k < KEYS; k++)
                assert_true(r[k].status == KVCACHE_OK && stored(f, k, EACH * 4));
        memset(base, 0, REGION);
        assert_int_equal(call(f, KVCACHE_OP_GET_INTO, e, KEYS, r), 0);
        for (unsigned k = 0; k < KEYS; k++)
                assert_true(rig_filled(base + k * EACH * 4, EACH * 4, k));

        /* The maximum number of pieces of a message works, and one more is refused. */
        for (unsigned i = 0; i < MOST_PIECES + 1; i++)
                pieces[i] = (struct iovec){ base + i, 1 };
        rig_fill(base, MOST_PIECES + 1, 100);
        e[0] = (struct kvcache_entry){ .key = rig_key(100),
                                       .pieces = pieces,
                                       .n_pieces = MOST_PIECES };
        batches = rig_peek(f, &f->d->n_log);
        assert_int_equal(call(f, KVCACHE_OP_PUT, e, 1, r), 0);
        assert_int_equal(rig_peek(f, &f->d->n_log), batches + 1);
        assert_true(stored(f, 100, MOST_PIECES));
        e[0] = (struct kvcache_entry){ .key = rig_key(101),
                                       .pieces = pieces,
                                       .n_pieces = MOST_PIECES + 1 };
        assert_int_equal(call(f, KVCACHE_OP_PUT, e, 1, r), -E2BIG);
        assert_int_equal(r[0].status, KVCACHE_TOO_LARGE);
        assert_non_null(strstr(
                kvcache_error(f->kv),
                "4089 pieces in staging or registered buffers, but a message holds 4088: use"));
        assert_int_equal(submit(f, KVCACHE_OP_GET_INTO, e, 1, r, 0), -E2BIG);
        /* Gathered by the library there is no such limit. */
        {
                uint8_t own;

                own = base[MOST_PIECES];
                rig_fill(base, MOST_PIECES + 1, 101);
                own = base[MOST_PIECES];
                pieces[MOST_PIECES].iov_base = &own;
                assert_int_equal(call(f, KVCACHE_OP_PUT, e, 1, r), 0);
                assert_true(stored(f, 101, MOST_PIECES + 1));
        }
        free(pieces);
        free(e);
        free(r);
}

static void test_senseless_pieces_are_their_keys_affair(void **state)
{
        struct rig *f = *state;
        uint8_t own[100];
        struct iovec good[2] = { { own, 50 }, { own + 50, 50 } };
        struct iovec empty[2] = { { own, 50 }, { own, 0 } };
        struct iovec nowhere[2] = { { NULL, 50 }, { own, 50 } };
        struct iovec huge[2] = { { own, UINT64_MAX }, { own, 2 } };
        struct iovec long_[2] = { { own, 3u << 30 }, { own, 3u << 30 } };
        struct kvcache_entry e[6] = {
                { .key = rig_key(0), .pieces = good, .n_pieces = 2 },
                { .key = rig_key(1), .pieces = empty, .n_pieces = 2 },
                { .key = rig_key(2), .pieces = nowhere, .n_pieces = 2 },
                { .key = rig_key(3), .pieces = NULL, .n_pieces = 2 },
                { .key = rig_key(4), .pieces = huge, .n_pieces = 2 },
                { .key = rig_key(5), .pieces = long_, .n_pieces = 2 },
        };
        struct kvcache_result r[6];

        start(f, NULL);
        rig_fill(own, 100, 0);
        assert_int_equal(call(f, KVCACHE_OP_PUT, e, 6, r), 0);
        assert_int_equal(r[0].status, KVCACHE_OK);
        for (unsigned i = 1; i < 4; i++)
                assert_int_equal(r[i].status, KVCACHE_INVALID);
        assert_int_equal(r[4].status, KVCACHE_TOO_LARGE);
        assert_int_equal(r[5].status, KVCACHE_TOO_LARGE);
        assert_true(stored(f, 0, 100));
        memset(own, 0, sizeof(own));
        assert_int_equal(call(f, KVCACHE_OP_GET_INTO, e, 6, r), 0);
        assert_int_equal(r[0].status, KVCACHE_OK);
        for (unsigned i = 1; i < 6; i++)
                assert_int_equal(r[i].status, KVCACHE_INVALID);
        assert_true(rig_filled(own, 100, 0));
}

/* --- sessions come and go --- */

static void test_after_a_restart_a_region_is_registered_again_before_it_is_named(void **state)
{
        struct rig *f = *state;
        struct kvcache_entry e = { .key = rig_key(1), .length = 5000 };
        struct kvcache_result r;
        uint32_t region;
        uint8_t *base;

        start(f, NULL);
        (void)register_buffer(f, &region);
        assert_int_equal(kvcache_buffer_unregister(f->kv, region), 0);
        base = register_buffer(f, &region);
        assert_int_equal(region, 2);
        fake_daemon_free(f->d);
        f->d = fake_daemon_start(f->path, NULL);

        rig_put(f, 7, 100); /* names no region: none is registered */
        assert_int_equal(rig_peek(f, &f->d->requests[WIRE_REGISTER]), 0);
        rig_fill(base, 5000, 1);
        e.data = base;
        assert_int_equal(call(f, KVCACHE_OP_PUT, &e, 1, &r), 0);
        assert_int_equal(r.status, KVCACHE_OK);
        assert_int_equal(logged_before(f, 0).region, 101);
        assert_int_equal(rig_peek(f, &f->d->requests[WIRE_REGISTER]), 1);
        assert_true(stored(f, 1, 5000));

        /* Requests submitted with a get and in pieces behave alike. */
        fake_daemon_hang_up(f->d);
        assert_int_equal(kvcache_ping(f->kv, NULL), 0); /* in a new session */
        {
                struct iovec p[2] = { { base + 10000, 2000 }, { base + 20000, 3000 } };

                e = (struct kvcache_entry){ .key = rig_key(1), .pieces = p, .n_pieces = 2 };
                assert_int_equal(submit(f, KVCACHE_OP_GET_INTO, &e, 1, &r, 0), 0);
                assert_int_equal(rig_reap(f).error, 0);
                assert_int_equal(r.status, KVCACHE_OK);
                assert_int_equal(logged_before(f, 0).flags, WIRE_F_INTO | WIRE_F_PIECES);
                assert_memory_equal(p[0].iov_base, base, 2000);
                assert_memory_equal(p[1].iov_base, base + 2000, 3000);
        }
        assert_int_equal(rig_peek(f, &f->d->requests[WIRE_REGISTER]), 2);
        assert_int_equal(kvcache_buffer_unregister(f->kv, region), 0);
}

static void test_a_region_that_is_not_taken_again_makes_its_keys_invalid(void **state)
{
        struct rig *f = *state;
        struct fake_options refusing = { .refuse_register = "too much is registered" };
        struct kvcache_result r[3];
        struct kvcache_entry e[3];
        uint8_t own[100], *base;
        uint32_t region;

        start(f, NULL);
        base = register_buffer(f, &region);
        fake_daemon_free(f->d);
        f->d = fake_daemon_start(f->path, &refusing);
        rig_fill(base, 100, 0);
        rig_fill(own, 100, 1);
        rig_fill(base + 100, 100, 2);
        for (unsigned i = 0; i < 3; i++)
                e[i] = (struct kvcache_entry){
                        .key = rig_key(i),
                        .data = (void *[]){ base, own, base + 100 }[i],
                        .length = 100,
                };
        assert_int_equal(call(f, KVCACHE_OP_PUT, e, 3, r), -EINVAL);
        assert_non_null(strstr(kvcache_error(f->kv), "too much is registered"));
        assert_int_equal(r[0].status, KVCACHE_INVALID);
        assert_int_equal(r[1].status, KVCACHE_OK);
        assert_int_equal(r[2].status, KVCACHE_INVALID);
        assert_int_equal(rig_peek(f, &f->d->requests[WIRE_REGISTER]), 1); /* asked once a request */

        assert_int_equal(submit(f, KVCACHE_OP_GET_INTO, e, 2, r, 0), 0);
        assert_non_null(strstr(kvcache_error(f->kv), "too much is registered"));
        assert_int_equal(rig_reap(f).error, -EINVAL);
        assert_int_equal(r[0].status, KVCACHE_INVALID);
        assert_int_equal(r[1].status, KVCACHE_OK);
        assert_int_equal(kvcache_put(f->kv, f->ns, &e[0].key, base, 100, KVCACHE_WRITTEN),
                         KVCACHE_INVALID);

        /* Each request tries to register again. */
        fake_daemon_lock(f->d);
        f->d->o.refuse_register = NULL;
        fake_daemon_unlock(f->d);
        rig_fill(base, 100, 0);
        assert_int_equal(call(f, KVCACHE_OP_PUT, e, 3, r), 0);
        assert_int_equal(r[0].status, KVCACHE_OK);
        assert_int_equal(r[1].status, KVCACHE_EXISTS);
        assert_true(stored(f, 0, 100) && stored(f, 2, 100));
}

static void test_a_late_answer_to_a_registration_is_sent_back(void **state)
{
        struct rig *f = *state;
        struct kvcache_buffer_options o = options_of(file_fd, 0, REGION);
        uint32_t region;
        void *base;

        start(f, NULL);
        fake_daemon_hold(f->d, 1u << WIRE_REGISTER);
        f->kv->request_timeout_ms = 100;
        assert_int_equal(kvcache_buffer_register(f->kv, &o, &region, &base), -ETIMEDOUT);
        f->kv->request_timeout_ms = test_timeout_ms(60000);
        fake_daemon_hold(f->d, 0);
        assert_true(fake_daemon_wait(f->d, &f->d->last_region, 1));
        /* The next calls take the reply, and send the resulting messages. */
        assert_int_equal(kvcache_ping(f->kv, NULL), 0);
        assert_int_equal(kvcache_ping(f->kv, NULL), 0);
        assert_int_equal(rig_peek(f, &f->d->requests[WIRE_UNREGISTER]), 1);
        assert_int_equal(rig_peek(f, &f->d->regions), 0);
        assert_int_equal(kvcache_buffer_unregister(f->kv, 1), -EINVAL);
}

static void test_lies_about_regions_end_the_session(void **state)
{
        static const struct fake_options lies[] = {
                { .register_long = true },
                { .region_lie = 1 },     /* the number 0 */
                { .region_lie = 1 + 5 }, /* one number for all */
                { .stray_fd = true },
        };
        struct rig *f = *state;

        for (size_t i = 0; i < ARRAY_SIZE(lies); i++) {
                struct kvcache_buffer_options o = options_of(file_fd, 0, PAGE);
                uint32_t region;
                void *base;
                int r;

                start(f, NULL);
                fake_daemon_lock(f->d);
                f->d->o.register_long = lies[i].register_long;
                f->d->o.region_lie = lies[i].region_lie;
                f->d->o.stray_fd = lies[i].stray_fd;
                fake_daemon_unlock(f->d);
                r = kvcache_buffer_register(f->kv, &o, &region, &base);
                if (r == 0)
                        r = kvcache_buffer_register(f->kv, &o, &region, &base);
                if (r != -EBADMSG)
                        fail_msg("lie %zu: %d, %s", i, r, kvcache_error(f->kv));
                kvcache_close(f->kv);
                f->kv = NULL;
                f->d = fake_daemon_free(f->d);
        }
}

/* --- reuse of memory --- */

static void assert_unregister_times_out(struct rig *f, uint32_t region)
{
        f->kv->request_timeout_ms = 100;
        assert_int_equal(kvcache_buffer_unregister(f->kv, region), -ETIMEDOUT);
        f->kv->request_timeout_ms = test_timeout_ms(60000);
}

static void test_R17_a_place_in_a_region_is_the_daemons_until_the_late_reply(void **state)
{
        struct rig *f = *state;
        struct kvcache_entry e = { .key = rig_key(1), .length = 1000 };
        struct kvcache_result r;
        uint32_t region;
        uint8_t *base;

        start(f, NULL);
        base = register_buffer(f, &region);
        rig_put(f, 1, 1000);
        fake_daemon_hold(f->d, 1u << WIRE_GET);
        e.data = base + 5000;
        assert_int_equal(submit(f, KVCACHE_OP_GET_INTO, &e, 1, &r, 50), 0);
        assert_int_equal(rig_reap(f).error, -ETIMEDOUT);
        assert_int_equal(r.status, KVCACHE_PENDING);
        assert_int_equal(kvcache_memory_settled(f->kv, base, REGION), 0);
        assert_int_equal(kvcache_memory_settled(f->kv, base + 5999, 1), 0);
        assert_int_equal(kvcache_memory_settled(f->kv, base + 6000, 1), 1);
        assert_int_equal(kvcache_memory_settled(f->kv, base, 5000), 1);
        fake_daemon_hold(f->d, 0);
        assert_int_equal(kvcache_ping(f->kv, NULL), 0);
        assert_int_equal(kvcache_memory_settled(f->kv, base, REGION), 1);
        assert_true(rig_filled(base + 5000, 1000, 1));
}

static void
test_R17_registered_memory_of_a_dead_daemons_io_is_not_settled_until_it_is_over(void **state)
{
        struct rig *f = *state;
        struct iovec p[2];
        struct kvcache_entry e[2];
        struct kvcache_result r[2], put;
        uint32_t region;
        uint8_t *base;

        start(f, NULL);
        base = register_buffer(f, &region);
        rig_put(f, 1, 1000);
        fake_daemon_hold(f->d, 1u << WIRE_GET | 1u << WIRE_PUT);
        p[0] = (struct iovec){ base + 100, 400 };
        p[1] = (struct iovec){ base + 3000, 600 };
        e[0] = (struct kvcache_entry){ .key = rig_key(1), .pieces = p, .n_pieces = 2 };
        e[1] = (struct kvcache_entry){ .key = rig_key(1), .data = base + 9000, .length = 1000 };
        assert_int_equal(submit(f, KVCACHE_OP_GET_INTO, e, 2, r, 0), 0);
        e[0] = (struct kvcache_entry){ .key = rig_key(2), .data = base + 20000, .length = 5 };
        assert_int_equal(submit(f, KVCACHE_OP_PUT, e, 1, &put, 0), 0);
        assert_true(fake_daemon_wait(f->d, &f->d->n_held, 2));
        fake_daemon_kill(f->d, true);
        assert_int_equal(rig_reap(f).error, -ECONNRESET);
        assert_int_equal(rig_reap(f).error, -ECONNRESET);
        assert_true(r[0].status == KVCACHE_LOST && put.status == KVCACHE_LOST);

        assert_int_equal(kvcache_memory_settled(f->kv, base + 499, 1), 0);
        assert_int_equal(kvcache_memory_settled(f->kv, base + 500, 2500), 1);
        assert_int_equal(kvcache_memory_settled(f->kv, base + 3599, 1), 0);
        assert_int_equal(kvcache_memory_settled(f->kv, base + 9999, 1), 0);
        assert_int_equal(kvcache_memory_settled(f->kv, base + 20000, 1), 0);
        /* The buffer cannot be unregistered either, and stays mapped. */
        assert_unregister_times_out(f, region);
        assert_true(is_mapped(base));
        assert_int_equal(kvcache_memory_settled(f->kv, base, REGION), 0);
        fake_daemon_io_done(f->d);
        assert_int_equal(kvcache_memory_settled(f->kv, base, REGION), 1);
        assert_int_equal(kvcache_buffer_unregister(f->kv, region), 0);
        assert_false(is_mapped(base));
}

static void test_a_unregistration_waits_for_requests_that_name_the_region(void **state)
{
        struct rig *f = *state;
        struct kvcache_entry e = { .key = rig_key(1), .length = 1000 };
        struct kvcache_result r, other;
        uint32_t region;
        uint8_t *base;

        start(f, NULL);
        base = register_buffer(f, &region);
        rig_put(f, 1, 1000);
        fake_daemon_hold(f->d, 1u << WIRE_GET | 1u << WIRE_UNREGISTER);
        e.data = base;
        assert_int_equal(submit(f, KVCACHE_OP_GET_INTO, &e, 1, &r, 100), 0);
        assert_unregister_times_out(f, region);
        assert_true(is_mapped(base));
        assert_int_equal(kvcache_memory_settled(f->kv, base, 1), 0);
        /* No request names the region any longer, so its memory is like any other. */
        rig_fill(base + 5000, 1000, 2);
        e = (struct kvcache_entry){ .key = rig_key(2), .data = base + 5000, .length = 1000 };
        assert_int_equal(call(f, KVCACHE_OP_PUT, &e, 1, &other), 0);
        assert_int_equal(logged_before(f, 0).region, 0);
        /* Another call continues to wait, and sends no second request. */
        assert_unregister_times_out(f, region);
        assert_int_equal(rig_peek(f, &f->d->requests[WIRE_UNREGISTER]), 1);
        fake_daemon_hold(f->d, 0);
        assert_int_equal(kvcache_buffer_unregister(f->kv, region), 0);
        assert_false(is_mapped(base));
        assert_int_equal(rig_reap(f).error, -ETIMEDOUT);
        assert_int_equal(r.status, KVCACHE_PENDING);
        assert_int_equal(kvcache_buffer_unregister(f->kv, region), -EINVAL);
}

static void test_a_unregistration_waits_for_the_librarys_own_copies(void **state)
{
        struct rig *f = *state;
        struct kvcache_result r[2];
        struct kvcache_entry e[2];
        uint8_t own[1000], *base;
        uint32_t region;

        start(f, NULL);
        base = register_buffer(f, &region);
        rig_put(f, 1, 1000);
        fake_daemon_hold(f->d, 1u << WIRE_GET);
        e[0] = (struct kvcache_entry){ .key = rig_key(1), .data = base, .length = 1000 };
        e[1] = (struct kvcache_entry){ .key = rig_key(1), .data = own, .length = 1000 };
        assert_int_equal(submit(f, KVCACHE_OP_GET_INTO, e, 2, r, 5000), 0);
        assert_unregister_times_out(f, region);
        assert_true(is_mapped(base));
        fake_daemon_hold(f->d, 0);
        assert_int_equal(kvcache_buffer_unregister(f->kv, region), 0);
        assert_int_equal(rig_reap(f).error, 0);
        assert_int_equal(r[0].status, KVCACHE_OK);
        assert_true(rig_filled(own, 1000, 1));
}

static void test_a_unregistration_needs_no_daemon(void **state)
{
        struct rig *f = *state;
        uint32_t region;
        uint8_t *base;

        start(f, NULL);
        base = register_buffer(f, &region);
        fake_daemon_kill(f->d, false);
        assert_int_equal(kvcache_buffer_unregister(f->kv, region), 0);
        assert_false(is_mapped(base));
}

static void test_a_child_has_neither_calls_nor_mapping_and_the_parent_goes_on(void **state)
{
        struct rig *f = *state;
        struct kvcache_entry e = { .key = rig_key(1), .length = 1000 };
        struct kvcache_result r;
        uint32_t region;
        uint8_t *base;
        int status;
        pid_t pid;

        start(f, NULL);
        base = register_buffer(f, &region);
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                struct kvcache_buffer_options o = options_of(file_fd, 0, REGION);
                uint32_t another;
                void *where;

                if (kvcache_buffer_register(f->kv, &o, &another, &where) != -ECHILD)
                        _exit(1);
                if (kvcache_buffer_unregister(f->kv, region) != -ECHILD)
                        _exit(2);
                if (is_mapped(base))
                        _exit(3);
                kvcache_close(f->kv);
                _exit(0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        rig_fill(base, 1000, 1);
        e.data = base;
        assert_int_equal(call(f, KVCACHE_OP_PUT, &e, 1, &r), 0);
        assert_true(stored(f, 1, 1000));
}

static void test_closing_takes_all_back(void **state)
{
        struct rig *f = *state;
        uint32_t region;
        uint8_t *base;

        start(f, NULL);
        base = register_buffer(f, &region);
        kvcache_close(f->kv);
        f->kv = NULL;
        assert_false(is_mapped(base));
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)

/* --- files on a disk --- */

static int register_file(struct rig *f, uint32_t flags, uint32_t *ret_region, uint8_t **ret_base)
{
        struct kvcache_buffer_options o = { .size = sizeof(o), .flags = flags, .bytes = REGION };
        void *base = NULL;
        int r;

        o.fd = open("/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        assert_true(o.fd >= 0 && ftruncate(o.fd, REGION) == 0);
        for (unsigned i = 0; i < 4; i++) {
                uint8_t page[PAGE];

                rig_fill(page, sizeof(page), i);
                assert_int_equal(pwrite(o.fd, page, sizeof(page), (off_t)i * PAGE), PAGE);
        }
        r = kvcache_buffer_register(f->kv, &o, ret_region, &base);
        assert_int_equal(close(o.fd), 0);
        *ret_base = base;
        return r;
}

static void test_puts_name_a_place_in_a_file(void **state)
{
        struct rig *f = *state;
        struct kvcache_result r[3];
        struct kvcache_entry e[3];
        struct iovec pieces[2];
        uint32_t region = 0;
        uint8_t *base;

        start(f, &(struct fake_options){ .takes_files = true });
        assert_int_equal(register_file(f, KVCACHE_BUFFER_FILE, &region, &base), 0);
        e[0] = (struct kvcache_entry){ .key = rig_key(1), .data = base + PAGE, .length = PAGE };
        e[1] = (struct kvcache_entry){ .key = rig_key(2), .data = base + 2 * PAGE, .length = 100 };
        e[2] = (struct kvcache_entry){ .key = rig_key(3),
                                       .data = base + REGION - 10,
                                       .length = 11 };
        assert_int_equal(call(f, KVCACHE_OP_PUT, e, 3, r), 0);
        assert_int_equal(r[0].status, KVCACHE_OK);
        assert_int_equal(r[1].status, KVCACHE_OK);
        assert_int_equal(r[2].status, KVCACHE_INVALID); /* no memory has these bytes */
        assert_int_equal(rig_peek(f, &f->d->file_puts), 2);
        assert_int_equal(logged_before(f, 0).region, 101);
        assert_true(stored(f, 1, PAGE) && stored(f, 2, 100));
        /* The file is not a place for a get, or for pieces. */
        e[0].length = PAGE;
        assert_int_equal(call(f, KVCACHE_OP_GET_INTO, e, 1, r), 0);
        assert_int_equal(r[0].status, KVCACHE_INVALID);
        pieces[0] = (struct iovec){ base, PAGE };
        pieces[1] = (struct iovec){ base + PAGE, PAGE };
        e[0] = (struct kvcache_entry){ .key = rig_key(9), .pieces = pieces, .n_pieces = 2 };
        assert_int_equal(call(f, KVCACHE_OP_PUT, e, 1, r), 0);
        assert_int_equal(r[0].status, KVCACHE_INVALID);
        assert_int_equal(kvcache_buffer_unregister(f->kv, region), 0);
        assert_int_equal(rig_peek(f, &f->d->regions), 0);
}

static void test_a_file_is_registered_again_with_a_new_session(void **state)
{
        struct rig *f = *state;
        struct kvcache_result r;
        struct kvcache_entry e;
        uint32_t region;
        uint8_t *base;

        start(f, &(struct fake_options){ .takes_files = true });
        assert_int_equal(register_file(f, KVCACHE_BUFFER_FILE, &region, &base), 0);
        fake_daemon_hang_up(f->d);
        assert_int_equal(kvcache_ping(f->kv, NULL), 0); /* in a new session */
        e = (struct kvcache_entry){ .key = rig_key(3), .data = base + 3 * PAGE, .length = PAGE };
        assert_int_equal(call(f, KVCACHE_OP_PUT, &e, 1, &r), 0);
        assert_int_equal(r.status, KVCACHE_OK);
        assert_int_equal(rig_peek(f, &f->d->files_registered), 2);
        assert_true(stored(f, 3, PAGE));
        /* ... and refused by a daemon that no longer accepts files. */
        fake_daemon_lock(f->d);
        f->d->o.takes_files = false;
        fake_daemon_unlock(f->d);
        fake_daemon_hang_up(f->d);
        assert_int_equal(kvcache_ping(f->kv, NULL), 0);
        e.key = rig_key(4);
        assert_int_equal(call(f, KVCACHE_OP_PUT, &e, 1, &r), -EOPNOTSUPP);
        assert_int_equal(r.status, KVCACHE_INVALID);
        assert_int_equal(kvcache_buffer_unregister(f->kv, region), 0);
}

static void test_an_old_daemon_is_not_asked_to_take_a_file(void **state)
{
        struct rig *f = *state;
        uint32_t region;
        uint8_t *base;

        start(f, NULL);
        assert_int_equal(register_file(f, KVCACHE_BUFFER_FILE, &region, &base), -EOPNOTSUPP);
        assert_int_equal(rig_peek(f, &f->d->requests[WIRE_REGISTER]), 0);
        assert_int_equal(register_file(f, 1 << 1, &region, &base), -EINVAL);
        assert_int_equal(rig_peek(f, &f->d->bad_requests), 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(puts_and_gets_name_the_region_and_need_no_staging),
                TEST(the_library_copies_a_little_that_is_in_memory),
                TEST(much_is_copied_by_the_daemon),
                TEST(the_release_after_a_copy_is_not_answered),
                TEST(a_restart_is_noticed_behind_a_release),
                TEST(a_restart_is_noticed_behind_an_unanswered_release),
                TEST(memory_that_may_go_away_is_filled_by_the_daemon),
                TEST(a_lease_outside_of_the_pool_is_not_copied_from),
                TEST(a_chunk_longer_than_the_staging_goes_from_a_region),
                TEST(a_request_may_mix_staging_region_and_other_memory),
                TEST(memory_that_is_mapped_already_is_taken_where_it_is),
                TEST(senseless_regions_are_refused_before_anything_is_sent),
                TEST(the_daemons_refusal_leaves_nothing_behind),
                TEST(a_handle_has_as_many_regions_as_a_session),
                TEST(pieces_of_shared_memory_travel_and_others_are_gathered),
                TEST(many_pieces_are_several_messages_of_one_chain),
                TEST(senseless_pieces_are_their_keys_affair),
                TEST(after_a_restart_a_region_is_registered_again_before_it_is_named),
                TEST(a_region_that_is_not_taken_again_makes_its_keys_invalid),
                TEST(a_late_answer_to_a_registration_is_sent_back),
                TEST(lies_about_regions_end_the_session),
                TEST(R17_a_place_in_a_region_is_the_daemons_until_the_late_reply),
                TEST(R17_registered_memory_of_a_dead_daemons_io_is_not_settled_until_it_is_over),
                TEST(a_unregistration_waits_for_requests_that_name_the_region),
                TEST(a_unregistration_waits_for_the_librarys_own_copies),
                TEST(a_unregistration_needs_no_daemon),
                TEST(a_child_has_neither_calls_nor_mapping_and_the_parent_goes_on),
                TEST(closing_takes_all_back),
                TEST(puts_name_a_place_in_a_file),
                TEST(a_file_is_registered_again_with_a_new_session),
                TEST(an_old_daemon_is_not_asked_to_take_a_file),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
