/* SPDX-License-Identifier: Apache-2.0 */
/* reconfigure: a store of one to three volumes lives many lives, each under another configuration:
 * limit, entries, size of data files, eviction policy and set of volumes change between two starts,
 * which may be cut off. Between lives a volume is occasionally opened for inspection, copied to a
 * new directory, or loses a data file. A life ends with a stop, a kill or a power loss. One run is
 * one life.
 *
 * Wrong: a byte that was never put, or a purged version. Lost: a chunk answered `written` (after a
 * power loss, `durable`) whose data file still exists, unless the limit of entries dropped it; a
 * data file that disappeared although the limit had room for all files; a store that does not
 * open. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "campaign.h"
#include "checked.h"
#include "sim.h"
#include "store/internal.h"
#include "store/volume/internal.h"
#include "world-internal.h"

enum {
        LIVES_OF_A_STORE = 24,
        KEYS = 640,
        FILES = 1024,
        SPARE_ENTRIES = 16,
        NAMESPACES_GROWTH =
                256 << 10 /* bytes that a higher limit adds to the lists of namespaces */
};

static struct {
        uint64_t starts, starts_cut, stops, kills, losses, inspections, copies, removals,
                files_removed, apart, returned, suspensions;
} tally;

/* The files of each volume at the end of the last life, and where the chunks were. */
static struct {
        uint64_t bytes[FILES]; /* sizes of the data files by number; 0: no such file */
        uint64_t sum;          /* bytes of all files */
        uint64_t chunks;       /* chunks in the index */
} before[CAMPAIGN_VOLUMES];

static struct {
        uint32_t segment;
        uint64_t end;
} places[CAMPAIGN_KEYS];

/* Whether a startup since the end of the last life may have removed files, and the fewest entries
 * that such a startup permitted. */
static bool may_shrink;
static uint64_t fewest_entries;
/* The last life ended without a power loss, which could still undo what is only `written` until the
 * next verification: until then, starts are cut off by kills alone. */
static bool fragile;

/* --- files on the disk --- */

static uint64_t file_bytes(unsigned volume, const char *name)
{
        char path[400];
        struct stat st;

        snprintf(path, sizeof(path), "%s/%s", world.dirs[volume], name);
        return stat(path, &st) == 0 ? MAX((uint64_t)st.st_size, (uint64_t)st.st_blocks * 512) : 0;
}

static uint64_t data_file_bytes(unsigned volume, uint32_t segment)
{
        char path[400];
        struct stat st;

        snprintf(path, sizeof(path), "%s/segment-%04x", world.dirs[volume], segment);
        return stat(path, &st) == 0 ? round_down((uint64_t)st.st_size, DISK_PAGE) : 0;
}

/* Notes the files. Called after the end of a life. */
static void note_files(void)
{
        for (unsigned i = 0; i < world.volumes; i++) {
                before[i].sum = file_bytes(i, "superblock") + file_bytes(i, "namespaces.0") +
                                file_bytes(i, "namespaces.1") + file_bytes(i, "table");
                for (uint32_t n = 0; n < FILES; n++) {
                        before[i].bytes[n] = data_file_bytes(i, n);
                        before[i].sum += before[i].bytes[n];
                        if (before[i].bytes[n] > 0)
                                before[i].sum += DISK_PAGE;
                }
        }
}

/* Notes the place of each chunk that must be found. */
static void note_places(void)
{
        for (uint32_t k = 0; k < CAMPAIGN_KEYS; k++) {
                struct key key = item_key(k);
                uint32_t id = world.namespaces[item_namespace(k)].id, at;
                const struct chunk *c;
                const struct volume *v;

                if (!world.items[k].must)
                        continue;
                for (unsigned i = 0; i < world_used(); i++) {
                        if (world_volume_at(i) != world.items[k].must_on)
                                continue;
                        v = world.s->volumes[i].volume;
                        at = index_find(v->index, id, &key, store_hash(world.s, id, &key));
                        if (at == INDEX_NONE)
                                continue;
                        c = volume_chunk_at(v, at);
                        places[k].segment = c->slab;
                        places[k].end =
                                (uint64_t)(c->slot) * v->segments[c->slab]->slot_bytes + c->length;
                }
        }
        for (unsigned i = 0; i < world_used(); i++) {
                const struct volume *v = world.s->volumes[i].volume;

                if (v)
                        before[world_volume_at(i)].chunks = index_used(v->index);
        }
}

/* Releases the chunks whose data files exist no longer, or are too short. Fails if a file was
 * removed or cut although nothing required that. */
static void release_removed(void)
{
        for (unsigned i = 0; i < world.volumes; i++)
                for (uint32_t n = 0; n < FILES; n++) {
                        uint64_t now = before[i].bytes[n] ? data_file_bytes(i, n) : 0;

                        if (now >= before[i].bytes[n])
                                continue;
                        tally.files_removed++;
                        if (!may_shrink)
                                campaign_fail(VERDICT_LOST,
                                              "volume %u: data file %u had %llu bytes and has %llu",
                                              i, n, (unsigned long long)before[i].bytes[n],
                                              (unsigned long long)now);
                        before[i].bytes[n] = now;
                }
        for (uint32_t k = 0; k < CAMPAIGN_KEYS; k++) {
                unsigned on = world.items[k].must_on;

                if (world.items[k].must && (places[k].end > before[on].bytes[places[k].segment]))
                        world.items[k].must = 0;
        }
}

/* Releases the chunks that an index without room may have dropped. Startup takes back evicted
 * chunks whose slots are free, before older ones that were not evicted, and some of them leave
 * again before this is called. */
static void release_entries(void)
{
        bool is_full = fewest_entries < KEYS;

        for (unsigned i = 0; i < world_used(); i++) {
                const struct index *ix = world.s->volumes[i].volume->index;

                is_full = is_full || index_used(ix) + SPARE_ENTRIES >= index_max(ix) ||
                          before[world_volume_at(i)].chunks * world_used() >= fewest_entries;
        }
        if (!is_full)
                return;
        for (uint32_t k = 0; k < CAMPAIGN_KEYS; k++)
                if (world.items[k].must && world_version(k) != world.items[k].must)
                        world.items[k].must = 0;
}

/* --- chunks on volumes that are not in use --- */

static struct {
        uint32_t must, version; /* must: 0 if nothing is known */
        unsigned on;
} absent[CAMPAIGN_KEYS];
static bool disturbed; /* the volumes that are not in use may have missed something */

/* Notes the chunks that must be found when a volume returns that the present life does not use. */
static void note_absent(void)
{
        for (uint32_t k = 0; k < CAMPAIGN_KEYS; k++) {
                struct item *item = &world.items[k];

                if (item->must && !(world.used & 1u << item->must_on)) {
                        absent[k].must = item->must;
                        absent[k].version = item->version;
                        absent[k].on = item->must_on;
                }
        }
        disturbed = false;
}

/* Expects the chunks of volumes that are in use again. */
static void expect_absent(void)
{
        for (uint32_t k = 0; k < CAMPAIGN_KEYS; k++) {
                struct item *item = &world.items[k];

                if (disturbed || item->must || item->version != absent[k].version)
                        absent[k].must = 0;
                if (!absent[k].must)
                        continue;
                item->must = absent[k].must;
                item->must_on = absent[k].on;
                tally.returned += (world.used >> absent[k].on) & 1;
                absent[k].must = 0;
        }
}

/* --- configurations --- */

static unsigned used_before;

static void choose_volumes(void)
{
        used_before = world.used;
        world_use(UINT_MAX);
        if (world.apart && chance(2))
                world_use(1 + (unsigned)draw((1u << world.volumes) - 1));
        tally.apart += world_used() < world.volumes;
}

static void choose_configuration(void)
{
        static const uint64_t limits[] = { 4, 5, 6, 8, 12, 20, 150, 300 };
        static const uint64_t entries[] = { 2048, 2048, 2048, 40, 200, 600 };
        uint64_t limit_was = world.limit;

        if (chance(2))
                world.limit = limits[draw(ARRAY_SIZE(limits))] << 20;
        if (chance(4))
                world.limit = (4 << 20) + draw(8 << 20) / 4096 * 4096;
        if (chance(3))
                world.entries = entries[draw(ARRAY_SIZE(entries))];
        if (chance(3))
                world.segment_bytes = (1 + draw(4)) << 20;
        if (chance(4))
                world.policy = chance(2) ? "lru" : "cq";
        world.prewrite = world.limit < 100 << 20 && chance(8);
        if (world.volumes > 1 && (limit_was != world.limit || used_before != world.used))
                may_shrink = true;
        for (unsigned i = 0; i < world.volumes; i++)
                if (before[i].sum + STORE_SLACK_BYTES + NAMESPACES_GROWTH > world.limit)
                        may_shrink = true;
        fewest_entries = MIN(fewest_entries, world.entries);
}

/* --- deaths --- */

static void die(bool by_kill)
{
        world_die(by_kill);
        if (by_kill) {
                tally.kills++;
                return;
        }
        tally.losses++;
        memset(absent, 0, sizeof(absent));
}

/* --- between lives --- */

static void check_volumes_up(void)
{
        for (unsigned i = 0; i < world_used(); i++) {
                struct store_volume_stats st;

                if (store_get_volume_stats(world.s, i, &st) && st.state != STORE_VOLUME_UP)
                        campaign_fail(VERDICT_LOST, "volume %u is not up: %s", i, st.reason);
        }
}

/* Opens a volume for inspection. */
static void inspect(void)
{
        const char *paths[1] = { world.dirs[draw(world.volumes)] };
        struct store_params params = {
                .paths = paths,
                .n_paths = 1,
                .as_is = true,
                .limit = world.limit,
                .segment_bytes = world.segment_bytes,
                .entries = world.entries,
                .policy = "lru",
                .pool_slab_bytes = CAMPAIGN_ROOM,
                .secret = { { 3, 4 } },
                .lock_wait_ms = 30000,
        };
        char error[512] = "";

        world_forget_requests();
        if (store_prepare(&world.s, &params, error) < 0)
                campaign_fail(VERDICT_LOST, "a volume cannot be inspected: %s", error);
        if (chance(4))
                sim_die_after(1 + draw(8));
        if (store_open(world.s, world.io, error) < 0 && !sim_is_dead())
                campaign_fail(VERDICT_LOST, "a volume cannot be inspected: %s", error);
        sim_die_after(0);
        tally.inspections++;
        if (sim_is_dead() || chance(2)) {
                die(true);
                return;
        }
        world_settle();
        world_close();
        world.in_doubt = true;
        fragile = true;
}

/* Replaces a volume's directory by a copy of it. */
static void copy_directory(const char *dir)
{
        char command[1200];

        snprintf(command, sizeof(command), "cp -a %s %s.copy && rm -r %s && mv %s.copy %s", dir,
                 dir, dir, dir, dir);
        if (system(command) != 0)
                campaign_fail(VERDICT_HUNG, "%s fails", command);
}

static void begin_simulation(void)
{
        world_begin_simulation();
        for (unsigned i = 1; i < world.volumes; i++)
                if (sim_add_dir(world.dirs[i]) < 0)
                        campaign_fail(VERDICT_HUNG, "%s cannot be simulated", world.dirs[i]);
}

/* Replaces a volume's directory by a copy, or removes one of its data files. */
static void meddle(void)
{
        unsigned volume = (unsigned)draw(world.volumes);
        char name[400];

        sim_stop();
        if (chance(2)) {
                copy_directory(world.dirs[volume]);
                tally.copies++;
        } else {
                uint32_t n = (uint32_t)draw(6);

                if (before[volume].bytes[n] > 0) {
                        snprintf(name, sizeof(name), "%s/segment-%04x", world.dirs[volume], n);
                        unlink(name);
                        before[volume].bytes[n] = 0;
                        tally.removals++;
                }
        }
        begin_simulation();
}

/* --- a life --- */

static void start(void)
{
        char error[512] = "";
        int r;

        sim_hold(0);
        choose_volumes();
        expect_absent();
        for (unsigned tries = chance(3) ? 1 + (unsigned)draw(3) : 0; tries > 0; tries--) {
                choose_configuration();
                sim_die_after(1 + draw(24));
                r = world_open(error);
                sim_die_after(0);
                if (sim_is_dead()) {
                        tally.starts_cut++;
                        die(fragile || chance(2));
                        continue;
                }
                if (r < 0)
                        campaign_fail(VERDICT_LOST, "the store does not open: %s", error);
                die(fragile || chance(2));
        }
        choose_configuration();
        r = world_open(error);
        if (r < 0)
                campaign_fail(VERDICT_LOST, "the store does not open: %s", error);
        check_volumes_up();
        tally.starts++;
}

static void work(void)
{
        uint64_t steps = chance(8) ? 700 : 1 + draw(chance(3) ? 200 : 60);
        unsigned lag = (unsigned)draw(chance(2) ? 3 : CAMPAIGN_SLOTS);
        uint32_t durable_in = (uint32_t)(1 + draw(4)), hot = (uint32_t)(1 + draw(KEYS));
        bool quiet = chance(2); /* nothing that a volume may miss */

        disturbed = disturbed || !quiet;

        for (uint64_t i = 0; i < steps; i++) {
                uint32_t k = (uint32_t)draw(chance(3) ? KEYS : hot);
                uint64_t x = quiet ? 80 + draw(920) : draw(1000);

                if (x < 20 && store_volumes_up(world.s) == world.volumes)
                        world_open_namespace((unsigned)draw(CAMPAIGN_NAMESPACES));
                else if (x < 60)
                        world_drop(k);
                else if (x < 70)
                        world_purge((int)draw(CAMPAIGN_NAMESPACES));
                else if (x < 72)
                        world_purge(-1);
                else if (x < 80)
                        world_settle_drops();
                else if (x < 100)
                        world_sync();
                else if (x < 120)
                        sim_advance_ms(draw(3000));
                else if (x < 130)
                        tally.suspensions += world_device((unsigned)draw(world_used()), false);
                else if (x < 160 && store_volumes_up(world.s) < world_used())
                        world_device((unsigned)draw(world_used()), true);
                else
                        world_put_some(k, KEYS, durable_in);
                world_iterate();
                while (sim_held() > lag)
                        world_step();
                for (uint64_t j = draw(3); j > 0 && world_step(); j--)
                        ;
        }
        if (chance(3))
                world_settle();
}

static void end_life(void)
{
        uint64_t x = draw(8);
        bool by_kill = x < 5;

        if (x < 2) {
                world_settle();
                world_note_must(true);
                note_places();
                tally.stops++;
                fragile = world.in_doubt = true;
                world_close();
                sim_hold(0);
        } else {
                world_note_must(by_kill);
                note_places();
                fragile = by_kill;
                die(by_kill);
        }
        note_files();
        may_shrink = false;
        fewest_entries = UINT64_MAX;
}

static void one_life(bool is_first)
{
        if (!is_first && chance(8))
                inspect();
        if (!is_first && chance(10))
                meddle();
        start();
        release_removed();
        release_entries();
        note_absent();
        sim_hold(1u << KIO_WRITE | 1u << KIO_SYNC);
        world_verify();
        fragile = false;
        for (unsigned n = 0; n < CAMPAIGN_NAMESPACES / 2; n++)
                if (chance(2) && world_used() == world.volumes)
                        world_open_namespace(n);
        world.apart = world.volumes > 1;
        world_iterate();
        if (chance(2))
                world_settle();
        work();
        end_life();
}

int campaign_reconfigure(uint64_t count, uint64_t *seed)
{
        world.lockstep = true;
        for (uint64_t done = 0; done < count; ++*seed) {
                world.random = *seed;
                fragile = world.in_doubt = false;
                world_init(sim_backend());
                world_set_volumes(*seed % 2 ? 1 : 1 + (unsigned)(*seed / 2 % CAMPAIGN_VOLUMES));
                world_wipe();
                world.part_ways = world.volumes > 1;
                begin_simulation();
                memset(before, 0, sizeof(before));
                memset(absent, 0, sizeof(absent));
                may_shrink = true;
                fewest_entries = UINT64_MAX;
                world.max_length = chance(2) ? 4096 : chance(2) ? 8192 : 32768;
                for (unsigned i = 0; i < LIVES_OF_A_STORE && done < count; i++, done++) {
                        one_life(i == 0);
                        campaign_count(1);
                }
                sim_stop();
        }
        campaign_note("%llu starts, %llu cut off; %llu stops, %llu kills, %llu power losses; "
                      "%llu inspections, %llu copies, %llu data files removed by hand, %llu by "
                      "starts; %llu lives of some volumes, %llu chunks expected "
                      "of volumes that returned, %llu suspensions, %llu chunks read back",
                      (unsigned long long)tally.starts, (unsigned long long)tally.starts_cut,
                      (unsigned long long)tally.stops, (unsigned long long)tally.kills,
                      (unsigned long long)tally.losses, (unsigned long long)tally.inspections,
                      (unsigned long long)tally.copies, (unsigned long long)tally.removals,
                      (unsigned long long)tally.files_removed, (unsigned long long)tally.apart,
                      (unsigned long long)tally.returned, (unsigned long long)tally.suspensions,
                      (unsigned long long)world.hits);
        return campaign_end();
}
