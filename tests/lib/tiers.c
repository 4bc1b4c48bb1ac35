/* SPDX-License-Identifier: Apache-2.0 */
#include "tiers.h"
#include "timeout.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "folder.h"

enum { MIB = 1 << 20 };

static void open_pool(struct tiers *t)
{
        assert_int_equal(pool_new(&t->pool, t->pool_bytes ? t->pool_bytes : 16 * MIB, "lru"), 0);
        while (pool_next_slab(t->pool) >= 0) {
                uint64_t offset = (uint64_t)pool_next_slab(t->pool) * pool_slab_bytes(t->pool),
                         huge;

                assert_int_equal(pool_populate(t->pool, offset, pool_slab_bytes(t->pool), &huge),
                                 0);
                assert_int_equal(pool_open_slab(t->pool, huge), 0);
        }
}

static void on_volume(void *userdata, unsigned volume, enum store_volume_event event,
                      const char *text)
{
        struct tiers *t = userdata;

        t->emptied += event == STORE_VOLUME_IS_EMPTIED;
}

static void make_dir(struct tiers *t)
{
        const char *base = getenv("TMPDIR");

        snprintf(t->dir, sizeof(t->dir), "%s/kvcache-tiers-XXXXXX", base ? base : "/var/tmp");
        assert_non_null(mkdtemp(t->dir));
}

void tiers_open(struct tiers *t)
{
        char names[STORE_MAX_VOLUMES][sizeof(t->dir) + 4];
        const char *paths[STORE_MAX_VOLUMES] = { t->dir };
        struct store_params params = {
                .paths = paths,
                .n_paths = t->volumes ? t->volumes : 1,
                .limit = t->limit ? t->limit : 256 * MIB,
                .segment_bytes = 4 * MIB,
                .prewrite = false, /* keeps the writes of a plan free of preformatting */
                .direct = true,
                .policy = "lru",
                .secret = { { 1, 2 } },
                .lock_wait_ms = 30000,
                .hang_ms = t->hang_ms,
                .error_budget = t->error_budget,
                .on_volume = on_volume,
                .on_finding = t->on_finding,
                .userdata = t,
        };
        struct kio_params io = {
                .backend = "posix", .workers = 2, .depth = 64, .posix_threads = 4, .probe_fd = -1
        };
        int locks[STORE_MAX_VOLUMES];
        char error[512] = "";

        if (!t->dir[0])
                make_dir(t);
        for (unsigned i = 0; i < t->volumes; i++) {
                snprintf(names[i], sizeof(names[i]), "%s/%u", t->dir, i);
                paths[i] = names[i];
        }
        fault_set(NULL);
        open_pool(t);
        params.pool_slab_bytes = pool_slab_bytes(t->pool);
        if (store_prepare(&t->store, &params, error) < 0)
                fail_msg("store_prepare: %s", error);
        io.lock_fds = locks;
        io.n_lock_fds = store_lock_fds(t->store, locks);
        io.pool = pool_base(t->pool);
        io.pool_bytes = pool_bytes(t->pool);
        io.piece_bytes = pool_slab_bytes(t->pool);
        if (kio_start_with(&t->io, &io, fault_wrap(&kio_backend_posix), error) < 0)
                fail_msg("kio_start: %s", error);
        if (store_open(t->store, t->io, error) < 0)
                fail_msg("store_open: %s", error);
        assert_int_equal(cache_new(&t->cache, &(struct cache_params){ .pool = t->pool,
                                                                      .store = t->store,
                                                                      .io = t->io,
                                                                      .admission = t->admission }),
                         0);
        t->ns = tiers_namespace(t, "a");
        tiers_settle(t);
}

void tiers_close(struct tiers *t)
{
        fault_set(NULL);
        fault_release();
        tiers_settle(t);
        t->cache = cache_free(t->cache);
        store_stop(t->store);
        while (store_pending(t->store) > 0) {
                kio_flush(t->io);
                tiers_wait_io(t);
                kio_reap(t->io);
        }
        t->store = store_close(t->store);
        t->io = kio_stop(t->io);
        t->pool = pool_free(t->pool);
}

/* All operations in flight are independent of each other, and none is begun meanwhile. So whatever
 * of them the copy has, a killed daemon can leave. */
void tiers_kill(struct tiers *t)
{
        struct tiers copy = *t;
        char command[3 * sizeof(t->dir)];

        make_dir(&copy);
        snprintf(command, sizeof(command), "cp -r --sparse=always '%s/.' '%s'", t->dir, copy.dir);
        assert_int_equal(system(command), 0);
        tiers_remove(t);
        memcpy(t->dir, copy.dir, sizeof(t->dir));
}

void tiers_remove(struct tiers *t)
{
        tiers_close(t);
        assert_int_equal(folder_remove(t->dir), 0);
        t->dir[0] = '\0';
}

struct opening {
        struct store_namespace_open req;
        bool done;
        uint32_t id;
};

static void on_opened(struct store_namespace_open *req)
{
        struct opening *o = container_of(req, struct opening, req);

        assert_int_equal(req->result, 0);
        o->id = req->namespace->id;
        o->done = true;
}

uint32_t tiers_namespace_as(struct tiers *t, const struct store_namespace_open *as)
{
        struct opening o = { .req = *as };

        if (!as->fingerprint)
                o.req.fingerprint = "";
        o.req.name_length = (uint16_t)strlen(o.req.name);
        o.req.fingerprint_length = (uint16_t)strlen(o.req.fingerprint);
        o.req.complete = on_opened;
        store_namespace_open(t->store, &o.req);
        tiers_wait(t, &o.done);
        return o.id;
}

uint32_t tiers_namespace(struct tiers *t, const char *name)
{
        return tiers_namespace_as(t, &(struct store_namespace_open){ .name = name });
}

uint64_t tiers_now(const struct tiers *t)
{
        return t->fixed_ns != 0 ? t->fixed_ns : clock_mono_ns() + t->later_ns;
}

void tiers_iterate(struct tiers *t)
{
        store_iterate(t->store);
        if (t->cache) {
                cache_sweep(t->cache);
                cache_iterate(t->cache, tiers_now(t));
        }
        store_iterate(t->store);
        kio_flush(t->io);
}

void tiers_wait_io(struct tiers *t)
{
        struct pollfd p = { .fd = kio_fd(t->io), .events = POLLIN };

        if (kio_pending(t->io) == 0)
                fail_msg("waits for nothing: the cache has %llu pending, the store %llu",
                         (unsigned long long)(t->cache ? cache_pending(t->cache) : 0),
                         (unsigned long long)store_pending(t->store));
        if (poll(&p, 1, test_timeout_ms(TIERS_WAIT_MS)) != 1)
                fail_msg("I/O hangs");
}

void tiers_wait(struct tiers *t, const bool *done)
{
        for (;;) {
                kio_reap(t->io);
                tiers_iterate(t);
                if (*done)
                        return;
                if (!t->cache || !cache_has_work(t->cache))
                        tiers_wait_io(t);
        }
}

void tiers_settle(struct tiers *t)
{
        for (;;) {
                kio_reap(t->io);
                tiers_iterate(t);
                if (cache_pending(t->cache) == 0 && store_pending(t->store) == 0)
                        return;
                if (!cache_has_work(t->cache))
                        tiers_wait_io(t);
        }
}

void tiers_wait_hits(struct tiers *t, uint64_t hits)
{
        uint64_t end = clock_mono_ns() + (uint64_t)test_timeout_ms(TIERS_WAIT_MS) * 1000000;

        while (fault_hits() < hits) {
                struct pollfd p = { .fd = kio_fd(t->io), .events = POLLIN };

                if (clock_mono_ns() > end)
                        fail_msg("%llu operations failed or are held, not %llu",
                                 (unsigned long long)fault_hits(), (unsigned long long)hits);
                poll(&p, 1, 1); /* a worker is busy: no event announces a held operation */
                kio_reap(t->io);
                tiers_iterate(t);
        }
}
