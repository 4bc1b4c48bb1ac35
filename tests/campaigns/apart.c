/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's knowledge of volumes that are used separately: some lives of a store go without some
 * of its volumes. A purge, a drop or a removal is in force wherever a volume is up that was up when
 * it was answered, or that has been up together with such a volume since. Data that no volume which
 * is up can know to be purged may be found.
 *
 * On the main thread. At the end of a life, the knowledge is stored with the volumes that are up;
 * at the beginning of the next, the knowledge of the volumes that are up is merged. */

#include "campaign.h"
#include "checked.h"

void world_use(unsigned volumes)
{
        world.used = volumes & ((1u << world.volumes) - 1);
}

unsigned world_used(void)
{
        return (unsigned)__builtin_popcount(world.used);
}

unsigned world_volume_at(unsigned number)
{
        for (unsigned i = 0; i < world.volumes; i++)
                if (world.used & 1u << i && number-- == 0)
                        return i;
        return CAMPAIGN_VOLUMES;
}

/* Returns the volumes in use that are up, as bits. */
static unsigned volumes_up(void)
{
        unsigned up = 0;

        for (unsigned i = 0; i < world_used(); i++) {
                struct store_volume_stats st;

                if (store_get_volume_stats(world.s, i, &st) && st.state == STORE_VOLUME_UP)
                        up |= 1u << world_volume_at(i);
        }
        return up;
}

static void learn_names(unsigned up)
{
        for (unsigned n = 0; n < CAMPAIGN_NAMESPACES; n++) {
                struct world_name name = { .answered = true };

                for (unsigned i = 0; i < world.volumes; i++) {
                        const struct world_name *its = &world.known[i].names[n];

                        if (!(up & 1u << i))
                                continue;
                        name.asked = name.asked || its->asked;
                        name.removed = name.removed || its->removed;
                        name.answered = name.answered && its->answered;
                        name.id = MAX(name.id, its->id);
                }
                name.answered = name.answered && !name.removed;
                world.namespaces[n] = name;
        }
}

/* Releases chunks that volumes may have dropped because they did not know of each other. */
static void release_musts(unsigned up)
{
        for (uint32_t k = 0; k < CAMPAIGN_KEYS; k++) {
                unsigned on = world.items[k].must_on;

                if (world.items[k].must && (!(up & 1u << on) || world.known[on].claimed & up))
                        world.items[k].must = 0;
        }
}

void world_begin_life(void)
{
        unsigned up = volumes_up();

        if (world.volumes == 1 || !world.apart)
                return;
        for (uint32_t k = 0; k < CAMPAIGN_KEYS; k++) {
                uint32_t purged = 0, dropped = 0;

                for (unsigned i = 0; i < world.volumes; i++) {
                        if (!(up & 1u << i))
                                continue;
                        purged = MAX(purged, world.known[i].purged[k]);
                        dropped = MAX(dropped, world.known[i].dropped[k]);
                }
                world.items[k].purged = purged;
                world.items[k].dropped = dropped;
        }
        learn_names(up);
        release_musts(up);
        for (unsigned i = 0; i < world.volumes; i++)
                if (up & 1u << i)
                        world.known[i].claimed &= ~up;
}

void world_end_start(void)
{
        if (world.volumes == 1 || !world.apart)
                return;
        for (unsigned n = 0; n < CAMPAIGN_NAMESPACES; n++) {
                bool asked = false, answered = true;

                for (unsigned i = 0; i < world.volumes; i++) {
                        const struct world_name *its = &world.known[i].names[n];

                        if (!(world.used & 1u << i))
                                continue;
                        asked = asked || its->asked;
                        answered = answered && its->answered;
                }
                for (unsigned i = 0; i < world.volumes; i++) {
                        if (!(world.used & 1u << i))
                                continue;
                        world.known[i].names[n].asked = asked;
                        world.known[i].names[n].answered = answered;
                }
        }
        release_musts(world.used);
}

void world_note_name(unsigned n)
{
        const struct world_name *name = &world.namespaces[n];
        unsigned up = volumes_up();

        for (unsigned i = 0; i < world.volumes; i++) {
                if (!(up & 1u << i))
                        continue;
                world.known[i].names[n].asked = name->asked;
                world.known[i].names[n].removed = name->removed;
        }
}

void world_end_life(void)
{
        unsigned up = volumes_up(), n_volumes = MIN(world.volumes, (unsigned)CAMPAIGN_VOLUMES);

        if (world.volumes == 1 || !world.apart)
                return;
        for (unsigned i = 0; i < n_volumes; i++) {
                struct world_known *its = &world.known[i];
                bool is_up = up & 1u << i;

                if (!is_up)
                        its->claimed |= world.used & ~(1u << i);
                else
                        its->claimed &= ~up;
                if (!(world.used & 1u << i))
                        continue;
                for (uint32_t k = 0; is_up && k < CAMPAIGN_KEYS; k++) {
                        its->purged[k] = world.items[k].purged;
                        its->dropped[k] = world.items[k].dropped;
                }
                for (unsigned n = 0; n < CAMPAIGN_NAMESPACES; n++) {
                        const struct world_name name = world.namespaces[n];

                        /* A volume that went offline meanwhile may list a name or not. */
                        its->names[n].asked =
                                is_up ? name.asked : its->names[n].asked || name.asked;
                        its->names[n].answered = is_up && name.answered;
                        its->names[n].removed = is_up ? name.removed : its->names[n].removed;
                        its->names[n].id = is_up ? name.id : its->names[n].id;
                }
        }
}
