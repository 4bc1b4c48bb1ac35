/* SPDX-License-Identifier: Apache-2.0 */
/* The store under test, and requests to it: see campaign.h. Runs on the main thread, which is the
 * store's loop. world-requests.c and world-gets.c make the requests, world-items.c has the bytes,
 * world-verify.c and apart.c the expectations; a wrong answer ends the program (verdict.c). */
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../lib/folder.h"
#include "base/clock.h"
#include "checked.h"
#include "sim.h"
#include "world-internal.h"

struct world world;
char *world_pool;

/* --- folders --- */

static void remove_files(void)
{
        for (unsigned i = 0; i < CAMPAIGN_VOLUMES; i++)
                if (world.dirs[i][0])
                        folder_empty(world.dirs[i]);
}

void world_remove_folder(void)
{
        remove_files();
        for (unsigned i = 0; i < CAMPAIGN_VOLUMES; i++)
                if (world.dirs[i][0])
                        rmdir(world.dirs[i]);
}

void world_set_volumes(unsigned n)
{
        for (unsigned i = 1; i < n; i++)
                if (!world.dirs[i][0]) {
                        snprintf(world.dirs[i], sizeof(world.dirs[i]), "%s.%u", world.dir, i);
                        if (mkdir(world.dirs[i], 0700) < 0)
                                campaign_fail(VERDICT_HUNG, "%s cannot be made", world.dirs[i]);
                }
        world.volumes = n;
        world_use(UINT_MAX);
}

/* --- opening --- */

/* Pins the process to one processor. In lockstep only one thread runs at a time, and handing over
 * is cheaper there. */
static void stay_on_one_processor(void)
{
        cpu_set_t set;
        int n = 0, chosen;

        if (sched_getaffinity(0, sizeof(set), &set) < 0 || CPU_COUNT(&set) < 2)
                return;
        chosen = getpid() % CPU_COUNT(&set);
        for (int i = 0; i < CPU_SETSIZE; i++)
                if (CPU_ISSET(i, &set) && n++ != chosen)
                        CPU_CLR(i, &set);
        sched_setaffinity(0, sizeof(set), &set);
}

void world_make_folder(void)
{
        const char *roots[] = { getenv("KVCACHE_CAMPAIGN_DIR"),
                                world.on_disk ? "/var/tmp" : "/dev/shm", "/tmp" };

        for (unsigned i = 0; i < ARRAY_SIZE(roots) && !world.dir[0]; i++) {
                if (!roots[i])
                        continue;
                snprintf(world.dir, sizeof(world.dir), "%s/kvcache-campaign-XXXXXX", roots[i]);
                if (!mkdtemp(world.dir))
                        world.dir[0] = '\0';
        }
        if (!world.dir[0])
                campaign_fail(VERDICT_HUNG, "no folder to work in");
        snprintf(world.dirs[0], sizeof(world.dirs[0]), "%s", world.dir);
}

void world_init(const struct kio_backend *backend)
{
        struct kio_params params = {
                .workers = 1,
                .depth = 256,
                .posix_threads = 2,
                .pool_bytes = (uint64_t)(2 * CAMPAIGN_SLOTS) * CAMPAIGN_ROOM,
                .piece_bytes = (uint64_t)(2 * CAMPAIGN_SLOTS) * CAMPAIGN_ROOM,
                .probe_fd = -1,
        };
        char error[256] = "";

        if (world.lockstep)
                stay_on_one_processor();
        if (!world_pool)
                world_pool = aligned_alloc(4096, params.pool_bytes);
        params.pool = world_pool;
        if (!world_pool)
                campaign_fail(VERDICT_HUNG, "no memory");
        world_make_folder();
        world_set_volumes(1);
        world.backend = backend;
        world.io = kio_stop(world.io);
        if (kio_start_with(&world.io, &params, backend, error) < 0)
                campaign_fail(VERDICT_HUNG, "kio_start: %s", error);
        world.limit = 4 << 20;
        world.segment_bytes = 1 << 20;
        world.entries = 2048;
        world.policy = "lru";
        world.max_length = 8192;
}

void world_wipe(void)
{
        remove_files();
        memset(world.items, 0, sizeof(world.items));
        memset(world.namespaces, 0, sizeof(world.namespaces));
        memset(world.known, 0, sizeof(world.known));
        world.apart = false;
}

void world_begin_simulation(void)
{
        if (sim_start(world.dir, sim_draw(&world.random)) < 0)
                campaign_fail(VERDICT_HUNG, "%s cannot be simulated", world.dir);
        if (!REAL_IO) /* the history then depends on nothing but the seed */
                sim_hold_clock();
}

void world_cut_off(void)
{
        sim_die();
        world_drop_requests();
        sim_hold(0);
        if (world.s)
                world_close();
}

void world_die(bool by_kill)
{
        int r;

        world_cut_off();
        world.in_doubt = by_kill;
        if (by_kill) {
                sim_end_process();
                return;
        }
        r = sim_power_loss();
        world_release_drops();
        if (r < 0)
                campaign_fail(VERDICT_HUNG, "the disk's state cannot be made: %s", strerror(-r));
}

int world_open(char error[static 512])
{
        const char *paths[CAMPAIGN_VOLUMES];
        struct store_params params = {
                .paths = paths,
                .n_paths = world_used(),
                .limit = world.limit * world_used(),
                .segment_bytes = world.segment_bytes,
                .entries = world.entries,
                .prewrite = world.prewrite,
                .direct = world.direct,
                .error_budget = world.error_budget,
                .policy = world.policy,
                .pool_slab_bytes = CAMPAIGN_ROOM,
                .secret = { { 1, 2 } },
                .lock_wait_ms = 30000,
                .table_block = campaign_seed() % 8 == 7 ? 1 + campaign_seed() / 8 % 8 : 0,
        };
        int r;

        for (unsigned i = 0; i < world_used(); i++)
                paths[i] = world.dirs[world_volume_at(i)];
        world_forget_requests();
        r = store_prepare(&world.s, &params, error);
        if (r < 0)
                return r;
        r = store_open(world.s, world.io, error);
        if (r < 0)
                world.s = store_close(world.s);
        return r;
}

void world_wait_io(void)
{
        struct pollfd p[] = { { .fd = kio_fd(world.io), .events = POLLIN },
                              { .fd = sim_fd(), .events = POLLIN } };
        uint64_t n;

        if (kio_pending(world.io) == 0)
                campaign_fail(VERDICT_HUNG, "the store waits for nothing: %llu pending",
                              (unsigned long long)store_pending(world.s));
        poll(p, world.lockstep || world.on_disk ? 2 : 1, -1); /* the watchdog ends it */
        if (world.on_disk)
                sim_end_if_due();
        if (world.lockstep && p[1].revents && read(p[1].fd, &n, sizeof(n)) < 0)
                return;
}

/* Flushes the I/O. In lockstep, waits for a worker before that, because otherwise the merging of
 * requests would depend on timing. */
static void flush_io(void)
{
        kio_flush(world.io);
        if (world.lockstep)
                sim_wait_idle();
}

void world_close(void)
{
        store_stop(world.s);
        for (;;) {
                flush_io();
                kio_reap(world.io);
                if (store_pending(world.s) == 0)
                        break;
                if (world.lockstep && kio_pending(world.io) == sim_held_requests() &&
                    sim_complete_one())
                        continue;
                world_wait_io();
        }
        world.s = store_close(world.s);
}

/* --- iterations --- */

void world_iterate(void)
{
        unsigned reaped;

        do {
                store_iterate(world.s);
                flush_io();
                reaped = kio_reap(world.io);
                flush_io();
                while (world.lockstep && kio_pending(world.io) != sim_held_requests()) {
                        world_wait_io();
                        reaped += kio_reap(world.io);
                        flush_io();
                }
        } while (reaped > 0);
}

bool world_step(void)
{
        if (!sim_complete_one())
                return false;
        world_iterate();
        return true;
}

void world_wait_for(uint64_t pending)
{
        while (kio_pending(world.io) > pending) {
                world_wait_io();
                world_iterate();
        }
}

/* Iterates when the store has work that waits for no I/O, and is due within a second. Returns false
 * if it has none. */
static bool iterate_when_due(void)
{
        const uint64_t second_ns = 1000000000;
        uint64_t deadline = store_deadline_ns(world.s);

        if (deadline == 0 || deadline > clock_mono_ns() + second_ns)
                return false;
        while (clock_mono_ns() < deadline) {
                if (sim_holds_clock())
                        sim_advance_ms(1);
                else
                        sched_yield();
        }
        world_iterate();
        return true;
}

void world_settle(void)
{
        world_iterate();
        while (store_pending(world.s) > 0) {
                if (world.lockstep) {
                        if (!world_step() && !iterate_when_due())
                                campaign_fail(VERDICT_HUNG, "%llu pending, and nothing to wait for",
                                              (unsigned long long)store_pending(world.s));
                } else if (kio_pending(world.io) > 0 || !iterate_when_due()) {
                        world_wait_io();
                        world_iterate();
                }
        }
}
