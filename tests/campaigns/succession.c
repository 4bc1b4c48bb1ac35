/* SPDX-License-Identifier: Apache-2.0 */
/* succession: operations on files and names fail one after the other, over several lives of a store
 * of one, two or three volumes. A failing operation does nothing, writes some sectors, or succeeds
 * but reports an error. Operations are writes, syncs, creation, renaming, truncation and removal of
 * files; files are the superblock, the namespaces, the table, the directory and occasionally a data
 * file. Between faults the store does ordinary work: names opened and removed, puts, purges,
 * evictions, volumes suspended and resumed. A life ends with a stop, a kill or a power loss, with
 * operations at the device torn. One run is one such life. Every other store with several volumes
 * has lives with some of its volumes only, which are used separately.
 *
 * succession-disk does the same on a real disk, with the library's threads and backends. There a
 * life is a process that ends with a stop or by killing itself, at some step or during a change of
 * a file. Power loss cannot be simulated there.
 *
 * Wrong: a byte that was never put, a purged version, a removed name, after a stop or a kill also a
 * version whose drop was settled. Lost: a chunk answered `durable` (after a kill or a stop,
 * `written`) and neither evicted nor dropped since; a namespace that was open; a store that does
 * not open after the faults have ended. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "build-config.h"
#include "campaign.h"
#include "checked.h"
#include "fault.h"
#include "sim.h"

enum { STATES_OF_A_STORE = 24, KEYS = 320 };

/* The operations that fail, and how soon. */
static struct {
        uint64_t random;
        const char *file; /* names with this prefix; "": any but data files */
        unsigned left, one_in;
        int dir; /* only in this directory; -1: any */
        bool as_done;
        char last[96];
} faults;

static struct tally {
        uint64_t starts_refused, starts_without, starts_cut, stops, kills, losses, faults, resumes;
        uint64_t lives_apart; /* lives with some of the volumes */
} tally;

/* Incremented by the threads whose calls fail; tally.faults is the number that the campaign has
 * seen. */
static _Atomic uint64_t faults_made;

/* Results of a life that ran in a process of its own, on the real disk. */
static struct {
        struct world world;
        struct tally tally;
} * left;

/* Whether the chunks that must be found are known, because a process has verified them. */
static bool verified;

/* Whether the store is being opened. */
static bool starting;

/* Whether chunks that must be found may exist in the page cache only. */
static bool fragile;

static enum sim_fault fail_some(const char *operation, unsigned dir, const char *file,
                                int *ret_error)
{
        static const enum sim_fault kinds[] = { SIM_FAULT_NOTHING, SIM_FAULT_TORN, SIM_FAULT_DONE };
        bool is_data = strncmp(file, "segment-", 8) == 0;
        uint64_t x;

        if (faults.left == 0 || (faults.dir >= 0 && dir != (unsigned)faults.dir) ||
            strncmp(file, faults.file, strlen(faults.file)) != 0)
                return SIM_FAULT_NONE;
        x = sim_draw(&faults.random);
        if (x % faults.one_in != 0 || (is_data && faults.file[0] == '\0' && x >> 32 & 7))
                return SIM_FAULT_NONE;
        x = sim_draw(&faults.random);
        faults.left--;
        faults_made++;
        snprintf(faults.last, sizeof(faults.last), "%s of %u/%s", operation, dir, file);
        *ret_error = x % 4 == 0 ? ENOSPC : EIO;
        return faults.as_done ? SIM_FAULT_DONE : kinds[x / 4 % ARRAY_SIZE(kinds)];
}

/* Afterwards no thread is in fail_some(), or enters it. */
static void disarm(void)
{
        sim_set_faults(NULL);
}

static void arm(void)
{
        static const char *const files[] = { "",           "",      "namespaces", "namespaces.0",
                                             "superblock", "table", "directory" };

        disarm();
        faults.random = sim_draw(&world.random);
        faults.file = files[draw(ARRAY_SIZE(files))];
        faults.left = (unsigned)(1 + draw(chance(4) ? 12 : 3));
        faults.one_in = (unsigned)(1 + draw(chance(2) ? 4 : 60));
        faults.dir = chance(2) ? -1 : (int)draw(world.volumes);
        faults.as_done = chance(4);
        sim_set_faults(fail_some);
}

static void ignore(uint32_t k, uint32_t version)
{
}

/* Returns this key, or the next one that the store has; or else one that it does not have, although
 * no purge and no drop covers its last version. */
static uint32_t next_key(uint32_t k, bool stored)
{
        for (unsigned i = 0; i < KEYS; i++, k = (k + 1) % KEYS) {
                const struct item *item = &world.items[k];

                if (item->version > MAX(item->shut, item->dropped) &&
                    (world_version(k) > 0) == stored)
                        break;
        }
        return k;
}

/* Drops a key, mostly one that the store has. A key that it does not have may be on the disk. */
static void drop_one(uint32_t k)
{
        bool stored = chance(2);

        if (chance(4) == 0)
                k = next_key(k, stored);
        if (!stored)
                world_forget_key(k);
        else
                world_drop(k);
        if (chance(2))
                world_settle_drops();
}

static void work(void)
{
        uint64_t steps = 1 + draw(chance(4) ? 160 : 40);
        unsigned lag = (unsigned)draw(chance(2) ? 3 : CAMPAIGN_SLOTS);
        uint32_t durable_in = (uint32_t)(1 + draw(4));
        uint64_t range = chance(3) ? 340 : 1000; /* range of random actions; names and purges
                                                    come first */

        for (uint64_t i = 0; i < steps; i++) {
                uint32_t k = (uint32_t)draw(KEYS);
                unsigned n = (unsigned)draw(CAMPAIGN_NAMESPACES);
                uint64_t x = draw(chance(4) ? 1000 : range);

                if (i % 16 == 15 && chance(3))
                        arm();
                if (x < 120) {
                        /* While a volume is offline, the others may give a name an id that the
                         * offline volume gives to another name. */
                        if (store_volumes_up(world.s) == world.volumes)
                                world_open_namespace(n);
                } else if (x < 180) {
                        if (chance(2) && world_purge((int)n))
                                world_iterate();
                        world_remove(n);
                } else if (x < 250) {
                        drop_one(k);
                } else if (x < 330) {
                        world_purge((int)n);
                } else if (x < 340) {
                        world_purge(-1);
                } else if (x < 380) {
                        world_sync();
                } else if (x < 420) {
                        sim_advance_ms(draw(chance(2) ? 100 : 12000));
                } else if (x < 440) {
                        world_device((unsigned)draw(world_used()), false);
                } else if (x < 500 && store_volumes_up(world.s) < world_used()) {
                        tally.resumes += world_device((unsigned)draw(world_used()), true);
                } else {
                        world_put_some(k, KEYS, durable_in);
                }
                world_iterate();
                while (sim_held() > lag)
                        world_step();
                if (left && chance(3))
                        world_wait_for(lag);
                for (uint64_t j = draw(3); j > 0 && world_step(); j--)
                        ;
        }
        if (chance(4))
                world_settle();
}

static void leave(void)
{
        left->world = world;
        tally.faults = faults_made;
        left->tally = tally;
}

_Noreturn static void end_process(void)
{
        if (starting)
                world_end_start();
        tally.kills++;
        leave();
        for (;;)
                kill(getpid(), SIGKILL);
}

/* Called in the middle of a change. */
static void ended(void)
{
        if (verified)
                world_note_must(true);
        else
                tally.starts_cut++;
        end_process();
}

/* Takes down the store without further writes; only the disk is left. */
static void die(bool by_kill)
{
        if (left)
                end_process();
        sim_die();
        disarm();
        world_die(by_kill);
        tally.kills += by_kill;
        tally.losses += !by_kill;
}

static void start_again(const char *when)
{
        char error[512] = "";
        int r;

        disarm();
        r = world_open(error);
        if (r < 0)
                campaign_fail(VERDICT_LOST, "the store does not open %s (%s): %s", when,
                              faults.last, error);
        for (unsigned i = 0; i < world_used(); i++) {
                struct store_volume_stats st;

                if (store_get_volume_stats(world.s, i, &st) && st.state != STORE_VOLUME_UP)
                        campaign_fail(VERDICT_LOST, "volume %u is not up %s (%s): %s", i, when,
                                      faults.last, st.reason);
        }
}

/* Opens the store with all of its volumes. */
static void start(void)
{
        char error[512] = "";
        uint64_t before = faults_made;
        int r;

        disarm();
        faults.last[0] = '\0';
        sim_hold(0);
        for (unsigned tries = chance(2) ? 1 + (unsigned)draw(3) : 0; tries > 0; tries--) {
                arm();
                if (chance(4))
                        sim_die_after(1 + draw(16));
                r = world_open(error);
                sim_die_after(0);
                disarm();
                if (sim_is_dead()) {
                        tally.starts_cut++;
                        die(fragile || chance(2));
                        continue;
                }
                if (r < 0) {
                        if (faults_made == before)
                                campaign_fail(VERDICT_LOST, "the store does not open: %s", error);
                        tally.starts_refused++;
                        continue;
                }
                if (store_volumes_up(world.s) == world_used())
                        return;
                tally.starts_without++;
                if (chance(2)) {
                        world_settle();
                        world_close();
                } else {
                        die(fragile || chance(2));
                }
        }
        start_again(faults_made > before ? "after faults" : "though nothing has failed");
}

/* Chooses all volumes, or some, which are used without the others from now on. */
static void choose_volumes(void)
{
        world_use(UINT_MAX);
        if (!world.apart || chance(3))
                return;
        world_use(1 + (unsigned)draw((1u << world.volumes) - 1));
        tally.lives_apart += world_used() < world.volumes;
}

static void one_life(void)
{
        uint64_t x, resumes = tally.resumes;

        world.prewrite = chance(8);
        choose_volumes();
        starting = true;
        start();
        starting = false;
        sim_hold(1u << KIO_WRITE | 1u << KIO_SYNC);
        world_verify();
        /* Bytes that a failed sync has dropped can no longer be synced. */
        for (uint32_t k = 0; sim_has_dropped() && k < CAMPAIGN_KEYS; k++)
                world.items[k].written = 0;
        fragile = false;
        for (unsigned n = 0; n < CAMPAIGN_NAMESPACES / 2; n++)
                if (chance(2) && world_used() == world.volumes)
                        world_open_namespace(n);
        /* The store exists now. */
        world.apart = world.part_ways;
        world_iterate();
        if (chance(2))
                world_settle();
        verified = true;
        if (chance(8) == 0)
                arm();
        if (left && chance(2))
                sim_die_after(1 + draw(100));
        work();
        /* A resumed volume may have the record of a chunk whose slot has been reused: the record is
         * found, and the get is a miss. */
        if (tally.resumes > resumes) {
                world_settle();
                world_get_all(ignore);
        }
        x = draw(8);
        if (x < 2) {
                if (chance(2))
                        disarm();
                world_settle();
                world_note_must(true);
                verified = false;
                tally.stops++;
                fragile = world.in_doubt = !left;
                world_close();
                disarm();
                sim_hold(0);
        } else {
                bool by_kill = x < 5 || left;

                fragile = by_kill;
                world_note_must(by_kill);
                die(by_kill);
        }
}

static void note_tally(void)
{
        campaign_note(
                "%llu faults; %llu starts refused, %llu without a volume, %llu cut off; "
                "%llu stops, %llu kills, %llu power losses; %llu lives of some of the volumes, "
                "%llu resumes, %llu removals, %llu chunks read back",
                (unsigned long long)faults_made, (unsigned long long)tally.starts_refused,
                (unsigned long long)tally.starts_without, (unsigned long long)tally.starts_cut,
                (unsigned long long)tally.stops, (unsigned long long)tally.kills,
                (unsigned long long)tally.losses, (unsigned long long)tally.lives_apart,
                (unsigned long long)tally.resumes, (unsigned long long)world.removals,
                (unsigned long long)world.hits);
}

int campaign_succession(uint64_t count, uint64_t *seed)
{
        world.lockstep = world.long_fingerprints = true;
        for (uint64_t done = 0; done < count; ++*seed) {
                world.random = *seed;
                fragile = world.in_doubt = false;
                world_init(sim_backend()); /* nothing is left of the previous store */
                world_set_volumes((unsigned)(1 + *seed % CAMPAIGN_VOLUMES));
                world_wipe();
                world.part_ways = world.volumes > 1 && *seed / CAMPAIGN_VOLUMES % 2;
                world_begin_simulation();
                for (unsigned i = 1; i < world.volumes; i++)
                        if (sim_add_dir(world.dirs[i]) < 0)
                                campaign_fail(VERDICT_HUNG, "%s cannot be simulated",
                                              world.dirs[i]);
                world.max_length = chance(2) ? 4096 : chance(2) ? 8192 : 32768;
                world.limit = ((uint64_t)4 + draw(2)) << 20;
                for (unsigned i = 0; i < STATES_OF_A_STORE && done < count; i++, done++) {
                        one_life();
                        campaign_count(1);
                }
                sim_stop();
        }
        note_tally();
        return campaign_end();
}

/* --- on a real disk --- */

/* Called by any thread. */
static bool choose_fault(const struct kio_request *req, struct fault_plan *plan)
{
        switch (sim_fault_of(req, &plan->error)) {
        case SIM_FAULT_NONE:
        case SIM_FAULT_END:
                return false;
        case SIM_FAULT_NOTHING:
                plan->kind = FAULT_ERROR;
                break;
        case SIM_FAULT_TORN:
                plan->kind = req->op == KIO_WRITE ? FAULT_TORN : FAULT_ERROR;
                break;
        case SIM_FAULT_DONE:
                plan->kind = FAULT_LIES;
        }
        return true;
}

static const struct kio_backend *draw_backend(void)
{
#if HAVE_LIBURING
        if (chance(2)) {
                const struct kio_params params = { .workers = 1, .depth = 8, .probe_fd = -1 };
                struct kio *probe;
                char why[256];

                if (kio_start_with(&probe, &params, &kio_backend_uring, why) == 0) {
                        kio_stop(probe);
                        return &kio_backend_uring;
                }
        }
#endif
        return &kio_backend_posix;
}

/* Runs a life in its own process, which ends with the life's death, or here. */
static void live(void)
{
        const char *dirs[CAMPAIGN_VOLUMES] = { world.dirs[0], world.dirs[1], world.dirs[2] };
        const struct fault_plan plan = { .choose = choose_fault };
        const struct world store = world;

        campaign_count(0);
        sim_use_files(dirs, store.volumes, ended);
        world_init(fault_wrap(draw_backend()));
        world_set_volumes(store.volumes);
        world.limit = store.limit;
        world.max_length = store.max_length;
        fault_set(&plan);
        world.direct = chance(2);
        one_life();
        leave();
        fflush(stdout);
        _exit(0);
}

static void next_life(void)
{
        struct world *w = &left->world;
        pid_t pid;
        int status;

        fflush(stdout);
        leave();
        pid = fork();
        if (pid == 0)
                live();
        if (pid < 0 || waitpid(pid, &status, 0) < 0)
                campaign_fail(VERDICT_HUNG, "no process can be made: %s", strerror(errno));
        if (WIFEXITED(status) && WEXITSTATUS(status) == 1)
                _exit(1); /* the reason has been reported */
        if (!(WIFEXITED(status) && WEXITSTATUS(status) == 0) &&
            !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))
                campaign_fail(VERDICT_HUNG, "the process ends with status %x", (unsigned)status);
        w->io = NULL;
        w->s = NULL;
        world = *w;
        tally = left->tally;
        faults_made = tally.faults;
}

int campaign_succession_disk(uint64_t count, uint64_t *seed)
{
        left = mmap(NULL, sizeof(*left), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (left == MAP_FAILED)
                campaign_fail(VERDICT_HUNG, "no memory");
        world.on_disk = world.long_fingerprints = true;
        sim_pretend_disk();
        world_make_folder();
        for (uint64_t done = 0; done < count; ++*seed) {
                world.random = *seed;
                world_set_volumes((unsigned)(1 + *seed % CAMPAIGN_VOLUMES));
                world_wipe();
                world.part_ways = world.volumes > 1 && *seed / CAMPAIGN_VOLUMES % 2;
                world.max_length = chance(2) ? 4096 : chance(2) ? 8192 : 32768;
                world.limit = ((uint64_t)4 + draw(2)) << 20;
                for (unsigned i = 0; i < STATES_OF_A_STORE && done < count; i++, done++) {
                        next_life();
                        campaign_count(1);
                }
        }
        note_tally();
        return campaign_end();
}
