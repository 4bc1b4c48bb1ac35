/* SPDX-License-Identifier: Apache-2.0 */
/* Gets of a campaign, all checked: every byte belongs to one put, purged chunks do not return, and
 * no sector of another tenant reaches the memory, even temporarily. On the main thread; reads are
 * observed on any (note_marks()). */
#include <string.h>

#include "checked.h"
#include "sim.h"
#include "store/volume/volume.h"
#include "world-internal.h"

/* One more than the tenant that currently owns the slot's get_buf. */
static unsigned reading_for[CAMPAIGN_SLOTS];

/* One more than the foreign mark that was seen. */
static _Atomic uint64_t foreign_mark;

/* Checks memory that a tenant can see. Any thread. */
static void note_marks(const void *memory, uint64_t bytes)
{
        uint64_t at =
                (uint64_t)((const char *)memory - world_pool) / CAMPAIGN_ROOM - CAMPAIGN_SLOTS;
        const uint64_t *words = memory;

        if ((const char *)memory < world_pool || at >= CAMPAIGN_SLOTS || reading_for[at] == 0)
                return; /* memory of the store itself */
        for (uint64_t i = 1; i < bytes / sizeof(*words); i += 64)
                for (unsigned n = 0; n < CAMPAIGN_TENANTS; n++)
                        if (words[i] == item_tenant_mark(n) && n != reading_for[at] - 1)
                                foreign_mark = 1 + n;
}

static void check_marks(const struct slot *p, bool after)
{
        if (after)
                note_marks(p->get_buf, round_up(world.max_length, 4096));
        if (foreign_mark)
                campaign_fail(
                        VERDICT_WRONG,
                        "bytes of tenant %llu %s memory of another (key %u was read for tenant "
                        "%u)",
                        (unsigned long long)foreign_mark - 1,
                        after ? "stay in" : "come for a while to", p->k, item_tenant(p->k));
}

uint32_t world_version_on(uint32_t k, unsigned *ret_volume)
{
        struct key key = item_key(k);
        uint32_t id = world.namespaces[item_namespace(k)].id;
        struct store_chunk chunk;
        struct store_ref ref;
        uint32_t v;

        if (id == 0 ||
            store_find(world.s, id, &key, store_hash(world.s, id, &key), &ref, &chunk) != 0)
                return 0;
        *ret_volume = world_volume_at(ref.generation >> VOLUME_GENERATION_BITS);
        v = item_version_with(k, chunk.length, chunk.crc);
        if (v == 0)
                campaign_fail(VERDICT_WRONG, "key %u: a chunk of %u bytes that was never put", k,
                              chunk.length);
        return v;
}

uint32_t world_version(uint32_t k)
{
        unsigned volume;

        return world_version_on(k, &volume);
}

static void get_done(struct store_get *req)
{
        struct slot *p = container_of(req, struct slot, get);

        check_marks(p, false);
        check_marks(p, true);
        p->get_busy = false;
}

static int get_begin(struct slot *p, uint32_t k)
{
        uint32_t id = world.namespaces[item_namespace(k)].id;
        int r;

        if (id == 0)
                return STORE_MISS;
        p->k = k;
        p->get = (struct store_get){
                .namespace_id = id,
                .key = item_key(k),
                .buf = p->get_buf,
                .room = CAMPAIGN_ROOM,
                .complete = get_done,
        };
        p->get.hash = store_hash(world.s, id, &p->get.key);
        reading_for[(p->get_buf - world_pool) / CAMPAIGN_ROOM - CAMPAIGN_SLOTS] =
                item_tenant(k) + 1;
        memset(p->get_buf, 0, round_up(world.max_length, 4096));
        sim_set_read_watch(note_marks);
        r = store_get(world.s, &p->get);
        p->get_busy = r == 0;
        return r;
}

/* Determines the put that a hit belongs to. */
static uint32_t get_check(const struct slot *p)
{
        static char right[CAMPAIGN_ROOM];
        uint32_t k = p->k, v = item_version_with(k, p->get.length, p->get.crc);

        if (v == 0)
                campaign_fail(VERDICT_WRONG, "key %u: a chunk of %u bytes that was never put", k,
                              p->get.length);
        item_payload(k, v, right);
        if (memcmp(right, p->get_buf, p->get.length) != 0)
                campaign_fail(VERDICT_WRONG, "key %u, version %u: wrong bytes", k, v);
        if (v <= world.items[k].purged)
                campaign_fail(VERDICT_WRONG, "key %u: version %u is back, purged up to %u", k, v,
                              world.items[k].purged);
        if (v <= world.items[k].dropped)
                campaign_fail(VERDICT_WRONG, "key %u: version %u is back, dropped up to %u", k, v,
                              world.items[k].dropped);
        return v;
}

uint32_t world_get(uint32_t k, int *ret_error)
{
        static struct slot p;
        int r;

        p.get_buf = world_slots[0].get_buf;
        r = get_begin(&p, k);
        if (ret_error)
                *ret_error = r;
        if (r != 0)
                return 0;
        world_iterate();
        while (p.get_busy) {
                if (!world.lockstep || !world_step())
                        world_wait_io();
                world_iterate();
        }
        if (ret_error)
                *ret_error = p.get.result;
        return p.get.result == 0 ? get_check(&p) : 0;
}

static bool gets_busy(void)
{
        for (unsigned i = 0; i < CAMPAIGN_SLOTS; i++)
                if (world_slots[i].get_busy)
                        return true;
        return false;
}

void world_get_pair(uint32_t a, uint32_t b, uint32_t *ret_a, uint32_t *ret_b)
{
        bool begun_a = get_begin(&world_slots[0], a) == 0,
             begun_b = get_begin(&world_slots[1], b) == 0;

        sim_hold(1u << KIO_READ);
        world_iterate();
        while (gets_busy())
                world_step();
        sim_hold(0);
        world_iterate();
        *ret_a = begun_a && world_slots[0].get.result == 0 ? get_check(&world_slots[0]) : 0;
        *ret_b = begun_b && world_slots[1].get.result == 0 ? get_check(&world_slots[1]) : 0;
}

void world_get_all(void (*got)(uint32_t k, uint32_t version))
{
        for (uint32_t first = 0; first < CAMPAIGN_KEYS;) {
                int answers[CAMPAIGN_SLOTS];
                uint32_t keys[CAMPAIGN_SLOTS], n = 0;

                for (; n < CAMPAIGN_SLOTS && first < CAMPAIGN_KEYS; first++) {
                        answers[n] = get_begin(&world_slots[n], first);
                        keys[n] = first;
                        if (answers[n] == 0)
                                n++;
                        else
                                got(first, 0);
                }
                world_iterate();
                while (gets_busy()) {
                        if (!world.lockstep || !world_step())
                                world_wait_io();
                        world_iterate();
                }
                for (uint32_t i = 0; i < n; i++)
                        got(keys[i],
                            world_slots[i].get.result == 0 ? get_check(&world_slots[i]) : 0);
        }
}
