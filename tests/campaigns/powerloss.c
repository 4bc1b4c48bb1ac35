/* SPDX-License-Identifier: Apache-2.0 */
/* powerloss: a store on the simulated disk works until the power fails, at any moment, and is
 * opened on a possible remaining state; repeatedly. One run is one such state. After a few dozen
 * states a new store is created, from the next seed.
 *
 * Wrong: a byte that was never put, or a purged version. Lost: a chunk that was answered `durable`,
 * or has survived a power loss before, and was neither evicted nor dropped since; a namespace that
 * was open; a store that does not open. */
#include <string.h>

#include "campaign.h"
#include "sim.h"

enum { STATES_OF_A_STORE = 40, CHANGES_OF_A_START = 16, KEYS = 640 };

static struct {
        uint64_t starts_cut, clean, pages;
} tally;

static void work(void)
{
        uint64_t steps = chance(16) ? 600 : 1 + draw(chance(4) ? 200 : 50);
        unsigned lag = (unsigned)draw(CAMPAIGN_SLOTS); /* operations left at the device */
        uint32_t hot = (uint32_t)(1 + draw(CAMPAIGN_KEYS)), durable_in = (uint32_t)(1 + draw(6));

        for (uint64_t i = 0; i < steps; i++) {
                uint32_t k = (uint32_t)draw(chance(3) ? KEYS : hot);
                uint64_t x = draw(1000);

                if (x < 20)
                        world_open_namespace((unsigned)draw(CAMPAIGN_NAMESPACES));
                else if (x < 80)
                        world_drop(k);
                else if (x < 90)
                        world_purge((int)draw(CAMPAIGN_NAMESPACES));
                else if (x < 92)
                        world_purge(-1);
                else if (x < 120)
                        world_sync();
                else if (x < 130)
                        sim_advance_ms(draw(3000));
                else
                        world_put_some(k, KEYS, durable_in);
                world_iterate();
                while (sim_held() > lag)
                        world_step();
                for (uint64_t n = draw(3); n > 0 && world_step(); n--)
                        ;
        }
        if (chance(8))
                world_settle();
}

static void lose_power(void)
{
        int r = sim_power_loss();

        if (r < 0)
                campaign_fail(VERDICT_HUNG, "the disk's state cannot be made: %s", strerror(-r));
        campaign_count(1);
}

/* Takes down the store, which is dead already or about to die; only the disk is left. */
static void crash(void)
{
        sim_die();
        world_drop_requests();
        sim_hold(0);
        if (world.s)
                world_close();
        lose_power();
}

static void one_state(void)
{
        char error[512] = "";
        int r;

        if (chance(5))
                sim_die_after(1 + draw(CHANGES_OF_A_START));
        world.prewrite = chance(8);
        sim_hold(0);
        r = world_open(error);
        sim_die_after(0);
        if (sim_is_dead()) {
                tally.starts_cut++;
                crash();
                return;
        }
        if (r < 0)
                campaign_fail(VERDICT_LOST, "the store does not open: %s", error);
        sim_hold(1u << KIO_WRITE | 1u << KIO_SYNC);
        world_verify();
        if (chance(12)) {
                /* An orderly shutdown, which may itself be interrupted. */
                world_settle();
                world_note_must(true);
                tally.clean++;
                if (chance(2)) {
                        sim_die_after(1 + draw(12));
                        world_note_must(false);
                }
                world_close();
                if (!sim_is_dead())
                        sim_die();
                lose_power();
                return;
        }
        for (unsigned n = 0; n < CAMPAIGN_NAMESPACES / 2; n++)
                world_open_namespace(n);
        world_iterate();
        if (chance(4))
                world_settle();
        work();
        world_note_must(false);
        crash();
}

int campaign_powerloss(uint64_t count, uint64_t *seed)
{
        world.lockstep = true;
        world_init(sim_backend());
        for (uint64_t done = 0; done < count; ++*seed) {
                world.random = *seed;
                world_wipe();
                world_begin_simulation();
                world.max_length = chance(3) ? 4096 : chance(2) ? 8192 : 32768;
                world.limit = ((uint64_t)4 + draw(3)) << 20;
                for (unsigned i = 0; i < STATES_OF_A_STORE && done < count; i++, done++)
                        one_state();
                sim_stop();
        }
        campaign_note("%llu starts cut off, %llu shutdowns, %llu chunks read back",
                      (unsigned long long)tally.starts_cut, (unsigned long long)tally.clean,
                      (unsigned long long)world.hits);
        return campaign_end();
}
