/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle: decides what must be found after a life, and what must not. Main thread, with the
 * store open. */
#include <stdio.h>
#include <string.h>

#include "campaign.h"
#include "store/internal.h"
#include "store/volume/volume.h"
#include "world-internal.h"

/* Verifies that each namespace whose opening was answered exists, with the same id. */
static void verify_namespaces(void)
{
        for (unsigned n = 0; n < CAMPAIGN_NAMESPACES; n++) {
                char name[16];
                bool found = false;

                snprintf(name, sizeof(name), "namespace-%u", n);
                for (unsigned i = 0; store_namespace_at(world.s, i); i++) {
                        const struct store_namespace *ns = store_namespace_at(world.s, i);

                        if (strcmp(ns->name, name) != 0)
                                continue;
                        found = true;
                        if (strcmp(ns->fingerprint, world_fingerprint(name)) != 0 ||
                            ns->tenant != n % CAMPAIGN_TENANTS)
                                campaign_fail(VERDICT_WRONG, "namespace %u has changed", n);
                        if (world.namespaces[n].removed)
                                campaign_fail(VERDICT_WRONG, "namespace %u was removed and is back",
                                              n);
                        if (!world.namespaces[n].asked ||
                            (world.namespaces[n].answered && ns->id != world.namespaces[n].id))
                                campaign_fail(VERDICT_WRONG, "namespace %u came as %u", n, ns->id);
                        world.namespaces[n].id = ns->id;
                }
                if (world.namespaces[n].answered && !found)
                        campaign_fail(VERDICT_LOST, "namespace %u was open and is lost", n);
                if (!found)
                        world.namespaces[n].id = 0;
                world.namespaces[n].answered = found;
                world.namespaces[n].asked = found;
                world_note_name(n);
        }
}

void world_note_must(bool written_too)
{
        for (uint32_t k = 0; k < CAMPAIGN_KEYS; k++) {
                struct item *item = &world.items[k];
                uint32_t v = item->stable || written_too ? world_version_on(k, &item->must_on) : 0;

                item->must =
                        v > item->shut && (v == item->stable || (written_too && v == item->written))
                                ? v
                                : 0;
        }
        world_end_life();
}

void world_release_must(void)
{
        for (uint32_t k = 0; k < CAMPAIGN_KEYS; k++)
                world.items[k].must = 0;
}

void world_forgive(void)
{
        world_release_must();
        for (uint32_t k = 0; k < CAMPAIGN_KEYS; k++)
                world.items[k].lost = 0;
        for (unsigned n = 0; n < CAMPAIGN_NAMESPACES; n++)
                world.namespaces[n].answered = false;
}

static void is_lost(uint32_t k)
{
        const struct item *item = &world.items[k];

        campaign_fail(VERDICT_LOST, "key %u, version %u: it was %s, and is lost", k, item->must,
                      item->must == item->stable ? "durable" : "written");
}

static uint64_t evictions(void)
{
        struct store_stats stats;

        store_get_stats(world.s, &stats);
        return stats.evictions;
}

/* Verifies that all chunks are found once the store is open. A store with more slots than its ring
 * has room for evicts in its first iteration; that many losses are accepted, and none later. */
static void verify_index(void)
{
        uint64_t before = evictions(), last, gone = 0;

        for (uint32_t k = 0; k < CAMPAIGN_KEYS; k++)
                if (world.items[k].must && world_version(k) == 0)
                        is_lost(k);
        do {
                last = evictions();
                world_iterate();
        } while (evictions() != last);
        for (uint32_t k = 0; k < CAMPAIGN_KEYS; k++)
                if (world.items[k].must && world_version(k) == 0) {
                        if (++gone > last - before)
                                is_lost(k);
                        world.items[k].must = 0;
                }
}

/* Returns whether a later start may find the chunk although this one has not. That is so if it was
 * evicted, since an eviction writes nothing. A start evicts as well: what an earlier life evicted
 * and the table still names in pages that the ring overwrites next. */
static bool may_be_evicted(uint32_t k)
{
        struct key key = item_key(k);
        uint32_t id = world.namespaces[item_namespace(k)].id;
        const struct volume *v = world.s->volumes[0].volume;

        return id != 0 && v && volume_may_have(v, id, &key, store_hash(world.s, id, &key));
}

static void verify_one(uint32_t k, uint32_t version)
{
        struct item *item = &world.items[k];

        /* The volume that was asked may have an entry whose chunk a failed write has destroyed; the
         * chunk is then dropped, and the next lookup asks the other volumes. */
        for (unsigned i = 1; i < world.volumes && item->must && version == 0; i++)
                version = world_get(k, NULL);
        if (item->must && version == 0)
                is_lost(k);
        if (item->must && version != item->must && world.volumes == 1)
                campaign_fail(VERDICT_WRONG, "key %u: version %u was the last, and is %u now", k,
                              item->must, version);
        if (version && version == item->failed && world.volumes == 1)
                campaign_fail(VERDICT_WRONG, "key %u: version %u, whose put had failed", k,
                              version);
        if (version && version <= item->lost && world.volumes == 1)
                campaign_fail(VERDICT_WRONG,
                              "key %u: version %u, which an earlier start did not find", k,
                              version);
        /* The evidence may be in the page cache only. */
        if (!world.in_doubt && (version || !may_be_evicted(k)))
                item->lost = version ? version - 1 : item->version;
        if (version)
                world.hits++;
        else
                world.misses++;
        if (!world.in_doubt)
                item->stable = version;
        else if (item->stable != version)
                item->stable = 0;
        item->written = version;
        item->shut = item->purged;
        item->failed = 0;
}

void world_verify(void)
{
        world_begin_life();
        verify_namespaces();
        verify_index();
        world_get_all(verify_one);
        world_release_must();
}
