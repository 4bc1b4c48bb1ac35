/* SPDX-License-Identifier: Apache-2.0 */
/* misdirect: a disk that returns the bytes of another place, exchanges those of two reads, returns
 * old bytes, or flips bits. One run is one get or, once per store, one recovery, with such reads. A
 * get is tried twice: if both reads are wrong, it is a miss and the chunk is dropped; if one is, it
 * is a hit. Recovery from such a table may find fewer chunks, but never wrong bytes or purged
 * chunks. */
#include <stdlib.h>

#include "campaign.h"
#include "sim.h"

enum { RUNS_OF_A_STORE = 512 };

static struct {
        uint64_t misses, hits, starts;
} tally;

static void put_and_wait(uint32_t k)
{
        world_put(k, false);
        world_settle();
}

/* Writes slots more than once, so that they have old contents. */
static void fill(void)
{
        char error[512] = "";

        world_wipe();
        world_begin_simulation();
        world.max_length = chance(2) ? 4096 : 16384;
        world.error_budget = UINT32_MAX; /* the volume must survive many wrong bytes */
        if (world_open(error) < 0)
                campaign_fail(VERDICT_LOST, "the store does not open: %s", error);
        for (unsigned n = 0; n < CAMPAIGN_NAMESPACES; n++)
                world_open_namespace(n);
        world_settle();
        for (unsigned i = 0; i < 1500; i++) {
                world_put((uint32_t)draw(CAMPAIGN_KEYS), false);
                if (chance(4))
                        world_drop((uint32_t)draw(CAMPAIGN_KEYS));
                if (chance(8))
                        world_settle();
        }
        world_purge((int)draw(CAMPAIGN_NAMESPACES));
        world_settle();
}

static uint32_t some_key(void)
{
        for (;;) {
                uint32_t k = (uint32_t)draw(CAMPAIGN_KEYS);

                if (world_version(k))
                        return k;
                put_and_wait(k);
        }
}

static const char *const fault_names[] = { "right", "misdirected", "stale", "swapped", "flipped" };

/* Each function tries one fault. Returns whether it occurred, which makes it a run. */
static bool one_pair(void)
{
        uint32_t a = some_key(), b, va, vb;

        do
                b = some_key();
        while (a == b);
        if (!world_version(a) || !world_version(b))
                return false;
        sim_set_reads(SIM_READ_SWAPPED, 0);
        world_get_pair(a, b, &va, &vb);
        if (va || vb || sim_read_faults() < 4)
                campaign_fail(VERDICT_WRONG,
                              "keys %u and %u: swapped reads are a hit (%llu faults)", a, b,
                              (unsigned long long)sim_read_faults());
        sim_set_reads(SIM_READ_RIGHT, 0);
        if (world_version(a) || world_version(b))
                campaign_fail(VERDICT_WRONG, "keys %u and %u: damaged, and still there", a, b);
        put_and_wait(a);
        put_and_wait(b);
        tally.misses += 2;
        campaign_count(1);
        return true;
}

static bool one_get(enum sim_read_fault fault, bool once)
{
        uint32_t k = some_key(), before = world_version(k), version;
        uint64_t faults;
        int r;

        sim_set_reads(fault, once);
        version = world_get(k, &r);
        faults = sim_read_faults();
        sim_set_reads(SIM_READ_RIGHT, 0);
        if (faults == 0) {
                /* This place has no older contents. */
                if (version != before)
                        campaign_fail(VERDICT_LOST, "key %u: a miss, though all reads were right",
                                      k);
                return false;
        }
        campaign_count(1);
        if (once || faults == 1) {
                if (version != before)
                        campaign_fail(VERDICT_LOST, "key %u: one %s read, and it is a miss", k,
                                      fault_names[fault]);
                tally.hits++;
                return true;
        }
        if (version || r != STORE_MISS || world_version(k))
                campaign_fail(VERDICT_WRONG, "key %u: a %s read is a hit, or the chunk stays", k,
                              fault_names[fault]);
        tally.misses++;
        put_and_wait(k);
        return true;
}

static void one_start(void)
{
        char error[512] = "";

        world_settle();
        world_close();
        sim_set_start_reads("table");
        if (world_open(error) < 0)
                campaign_fail(VERDICT_LOST, "the store does not open: %s", error);
        sim_set_start_reads(NULL);
        world_forgive();
        world_verify();
        for (unsigned i = 0; i < 100; i++)
                world_put((uint32_t)draw(CAMPAIGN_KEYS), false);
        world_settle();
        world_forgive(); /* chunks that such a recovery missed may be found by another */
        world_note_must(true);
        world_close();
        if (world_open(error) < 0)
                campaign_fail(VERDICT_LOST, "the store does not open: %s", error);
        world_verify();
        tally.starts++;
        campaign_count(1);
}

int campaign_misdirect(uint64_t count, uint64_t *seed)
{
        world.lockstep = true;
        world_init(sim_backend());
        for (uint64_t done = 0; done < count; ++*seed) {
                world.random = *seed;
                fill();
                for (unsigned i = 1; i < RUNS_OF_A_STORE && done + 1 < count; i++) {
                        uint64_t x = draw(8);

                        if (x == 0)
                                done += one_pair();
                        else if (x < 4)
                                done += one_get(SIM_READ_MISDIRECTED, false);
                        else if (x < 6)
                                done += one_get(SIM_READ_STALE, false);
                        else if (x == 6)
                                done += one_get(SIM_READ_FLIPPED, false);
                        else
                                done += one_get((enum sim_read_fault)(1 + draw(2)), true);
                }
                one_start();
                done++;
                world_settle();
                world_close();
                sim_stop();
        }
        campaign_note("%llu gets were misses, %llu hits at the second try, %llu starts",
                      (unsigned long long)tally.misses, (unsigned long long)tally.hits,
                      (unsigned long long)tally.starts);
        return campaign_end();
}
