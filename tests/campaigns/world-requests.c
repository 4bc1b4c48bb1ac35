/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of a campaign other than gets: namespaces, puts, drops, purges, syncs, removals,
 * volumes. Answers are recorded for world-verify.c. On the main thread, one request of each kind at
 * a time, puts up to the number of slots. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "checked.h"
#include "world-internal.h"

struct slot world_slots[CAMPAIGN_SLOTS];

static struct opening {
        struct store_namespace_open req;
        char name[16];
        bool busy;
} openings[CAMPAIGN_NAMESPACES];

static struct {
        struct store_purge req;
        bool busy;
        int n;
} purge;

static struct {
        struct store_sync req;
        bool busy;
        uint32_t versions[CAMPAIGN_KEYS];
} syncing;

static struct {
        struct store_sync req;
        bool busy;
        uint64_t lost_before;
        uint32_t versions[CAMPAIGN_KEYS];
} settling;

/* The version up to which each key was dropped since settling began last, and the store's count of
 * lost drops at the first of these drops. */
static uint32_t dropped[CAMPAIGN_KEYS];
static uint64_t lost_before;
static bool has_dropped;

static struct {
        struct store_namespace_remove req;
        bool busy, answered;
        unsigned n;
        uint32_t shut[CAMPAIGN_KEYS];
} removal;

static struct {
        struct store_device req;
        bool busy;
} device;

/* Set when requests are forgotten: their answers are ignored. */
static bool deaf;

void world_drop_requests(void)
{
        deaf = true;
}

void world_forget_requests(void)
{
        for (unsigned i = 0; i < CAMPAIGN_SLOTS; i++) {
                world_slots[i].put_buf = world_pool + (size_t)i * CAMPAIGN_ROOM;
                world_slots[i].get_buf = world_pool + (size_t)(CAMPAIGN_SLOTS + i) * CAMPAIGN_ROOM;
                world_slots[i].put_busy = world_slots[i].get_busy = false;
        }
        for (unsigned i = 0; i < CAMPAIGN_NAMESPACES; i++)
                openings[i].busy = false;
        purge.busy = syncing.busy = settling.busy = removal.busy = device.busy = false;
        memset(dropped, 0, sizeof(dropped));
        has_dropped = false;
        world.puts_busy = world.others_busy = 0;
        deaf = false;
}

/* --- namespaces --- */

/* Derives the fingerprint from the name, and makes it so long that a list of all takes several
 * sectors. */
const char *world_fingerprint(const char *name)
{
        static char text[512];
        size_t length = world.long_fingerprints ? sizeof(text) - 1 : strlen(name) - 4;

        for (size_t i = 0; i < length; i++)
                text[i] = name[4 + i % (strlen(name) - 4)];
        text[length] = '\0';
        return text;
}

static void opened(struct store_namespace_open *req)
{
        struct opening *o = container_of(req, struct opening, req);
        unsigned n = (unsigned)(o - openings);

        o->busy = false;
        if (deaf)
                return;
        world.others_busy--;
        /* While its volume is bypassed, the store has the namespace in memory only. */
        if (req->result != 0 || store_volumes_up(world.s) == 0)
                return;
        if (world.namespaces[n].id && world.namespaces[n].id != req->namespace->id)
                campaign_fail(VERDICT_WRONG, "namespace %u had the id %u and has %u", n,
                              world.namespaces[n].id, req->namespace->id);
        world.namespaces[n].id = req->namespace->id;
        world.namespaces[n].answered = true;
}

void world_open_namespace(unsigned n)
{
        struct opening *o = &openings[n];

        if (o->busy)
                return;
        snprintf(o->name, sizeof(o->name), "namespace-%u", n);
        o->req = (struct store_namespace_open){
                .tenant = (uint16_t)(n % CAMPAIGN_TENANTS),
                .name = o->name,
                .name_length = (uint16_t)strlen(o->name),
                .fingerprint = world_fingerprint(o->name),
                .fingerprint_length = (uint16_t)strlen(world_fingerprint(o->name)),
                .chunk_bytes = n % 4 == 3 ? world.max_length : 0,
                .complete = opened,
        };
        o->busy = true;
        world.others_busy++;
        world.namespaces[n].asked = true;
        world.namespaces[n].removed = false;
        for (unsigned i = 0; i < world.volumes; i++) {
                world.known[i].names[n].asked = true;
                world.known[i].names[n].removed = false;
        }
        store_namespace_open(world.s, &o->req);
}

/* --- chunks --- */

static struct slot *slot_of(const struct store_put *req)
{
        return container_of(req, struct slot, put);
}

static void put_done(struct store_put *req)
{
        struct slot *p = slot_of((void *)(uintptr_t)req);
        struct item *item = &world.items[p->k];

        p->put_busy = false;
        if (deaf)
                return;
        world.puts_busy--;
        if (req->result == 0 || req->result == STORE_NOT_DURABLE)
                item->written = p->version;
        else if (req->result < 0 && req->result != -ECANCELED)
                item->failed = p->version;
        if (req->result == 0 && p->durable)
                item->stable = p->version;
}

/* Returns whether the checksum is supplied after the payload was submitted, so that the entry may
 * reach the disk before the payload. That is the case for half of the puts; the choice draws no
 * random number, so the seeds of failures that are on record keep their meaning. */
static bool is_summed_beside(uint32_t k, uint32_t version)
{
        return (k + version) % 2 == 0;
}

int world_put(uint32_t k, bool durable)
{
        struct item *item = &world.items[k];
        struct slot *p = NULL;
        uint32_t id = world.namespaces[item_namespace(k)].id;
        int r;

        if (id == 0 || !world.namespaces[item_namespace(k)].answered)
                return STORE_MISS;
        for (unsigned i = 0; i < CAMPAIGN_SLOTS && !p; i++)
                if (!world_slots[i].put_busy)
                        p = &world_slots[i];
        if (!p)
                return STORE_FULL;
        p->k = k;
        p->version = item->version + 1;
        p->durable = durable;
        memset(p->put_buf, 0,
               round_up(world.max_length, 4096)); /* one pool per tenant, as in the daemon */
        item_payload(k, p->version, p->put_buf);
        p->put = (struct store_put){
                .namespace_id = id,
                .tenant = (uint16_t)item_tenant(k),
                .key = item_key(k),
                .buf = p->put_buf,
                .length = item_length(k, p->version),
                .durable = durable,
                .complete = put_done,
        };
        p->put.crc = kio_crc32c(p->put_buf, p->put.length);
        p->put.hash = store_hash(world.s, id, &p->put.key);
        p->put.summing = is_summed_beside(k, p->version);
        r = store_put(world.s, &p->put);
        if (r != 0)
                return r;
        if (p->put.summing)
                store_put_checksum(&p->put, 0, p->put.crc);
        item->version = p->version;
        p->put_busy = true;
        world.puts_busy++;
        return 0;
}

void world_put_some(uint32_t k, uint32_t keys, uint32_t durable_in)
{
        for (uint64_t n = chance(4) ? 2 + draw(6) : 1; n > 0; n--, k = (k + 1) % keys)
                (void)world_put(k, chance(durable_in));
}

/* Notes a drop: it covers the versions whose puts were answered. */
static void note_drop(uint32_t k)
{
        uint32_t version = world.items[k].version;

        for (unsigned i = 0; i < CAMPAIGN_SLOTS; i++)
                if (world_slots[i].put_busy && world_slots[i].k == k)
                        version = MIN(version, world_slots[i].version - 1);
        dropped[k] = MAX(dropped[k], version);
}

static void begin_drop(void)
{
        if (!has_dropped)
                lost_before = store_lost_drops(world.s);
        has_dropped = true;
}

int world_drop(uint32_t k)
{
        struct key key = item_key(k);
        uint32_t id = world.namespaces[item_namespace(k)].id;
        int r;

        begin_drop();
        r = store_drop(world.s, id, &key, store_hash(world.s, id, &key));
        if (r == 0)
                note_drop(k);
        return r;
}

int world_forget_key(uint32_t k)
{
        struct key key = item_key(k);
        uint32_t id = world.namespaces[item_namespace(k)].id;
        int r;

        if (id == 0)
                return STORE_MISS;
        begin_drop();
        r = store_forget(world.s, id, &key, store_hash(world.s, id, &key));
        if (r >= 0)
                note_drop(k);
        return r;
}

static void settled(struct store_sync *req)
{
        settling.busy = false;
        if (deaf)
                return;
        world.others_busy--;
        if (store_lost_drops(world.s) != settling.lost_before)
                return;
        for (uint32_t k = 0; req->result == 0 && k < CAMPAIGN_KEYS; k++)
                world.items[k].dropped = MAX(world.items[k].dropped, settling.versions[k]);
}

bool world_settle_drops(void)
{
        if (settling.busy)
                return false;
        settling.busy = true;
        world.others_busy++;
        memcpy(settling.versions, dropped, sizeof(dropped));
        memset(dropped, 0, sizeof(dropped));
        settling.lost_before = has_dropped ? lost_before : store_lost_drops(world.s);
        has_dropped = false;
        settling.req = (struct store_sync){ .complete = settled };
        store_settle_drops(world.s, &settling.req);
        return true;
}

void world_release_drops(void)
{
        for (uint32_t k = 0; k < CAMPAIGN_KEYS; k++)
                world.items[k].dropped = world.items[k].failed = 0;
        for (unsigned i = 0; i < CAMPAIGN_VOLUMES; i++)
                memset(world.known[i].dropped, 0, sizeof(world.known[i].dropped));
}

/* --- purges, removals, volumes, syncs --- */

static void purged(struct store_purge *req)
{
        purge.busy = false;
        if (deaf)
                return;
        world.others_busy--;
        if (req->result != 0)
                return;
        for (uint32_t k = 0; k < CAMPAIGN_KEYS; k++)
                if (purge.n < 0 || item_namespace(k) == (unsigned)purge.n)
                        world.items[k].purged = world.items[k].shut;
}

bool world_purge(int n)
{
        if (purge.busy || (n >= 0 && world.namespaces[n].id == 0))
                return false;
        purge.busy = true;
        purge.n = n;
        world.others_busy++;
        for (uint32_t k = 0; k < CAMPAIGN_KEYS; k++)
                if (n < 0 || item_namespace(k) == (unsigned)n)
                        world.items[k].shut = world.items[k].version;
        purge.req = (struct store_purge){ .namespace_id = n < 0 ? 0 : world.namespaces[n].id,
                                          .all = n < 0,
                                          .complete = purged };
        store_purge(world.s, &purge.req);
        return true;
}

static void removed(struct store_namespace_remove *req)
{
        unsigned n = removal.n;

        removal.busy = false;
        if (deaf)
                return;
        world.others_busy--;
        if (req->result > 0) { /* the namespace was left unchanged */
                world.namespaces[n].answered = removal.answered;
                return;
        }
        world.namespaces[n].id = 0;
        if (req->result != 0)
                return;
        world.removals++;
        /* The namespace no longer exists, unless it is being opened again. */
        world.namespaces[n].asked = openings[n].busy;
        world.namespaces[n].removed = !openings[n].busy;
        world_note_name(n);
        for (uint32_t k = n; k < CAMPAIGN_KEYS; k += CAMPAIGN_NAMESPACES)
                world.items[k].purged = world.items[k].shut = removal.shut[k];
}

bool world_remove(unsigned n)
{
        if (removal.busy || openings[n].busy || world.namespaces[n].id == 0)
                return false;
        removal.busy = true;
        removal.n = n;
        removal.answered = world.namespaces[n].answered;
        world.others_busy++;
        /* The namespace may or may not exist until the answer arrives. */
        world.namespaces[n].answered = false;
        for (uint32_t k = n; k < CAMPAIGN_KEYS; k += CAMPAIGN_NAMESPACES)
                removal.shut[k] = world.items[k].version;
        removal.req = (struct store_namespace_remove){ .id = world.namespaces[n].id,
                                                       .complete = removed };
        store_namespace_remove(world.s, &removal.req);
        return true;
}

static void device_done(struct store_device *req)
{
        device.busy = false;
        if (!deaf)
                world.others_busy--;
}

bool world_device(unsigned volume, bool resume)
{
        if (device.busy)
                return false;
        device.busy = true;
        world.others_busy++;
        device.req = (struct store_device){ .volume = volume, .complete = device_done };
        (resume ? store_resume : store_suspend)(world.s, &device.req);
        return true;
}

static void synced(struct store_sync *req)
{
        syncing.busy = false;
        if (deaf)
                return;
        world.others_busy--;
        for (uint32_t k = 0; req->result == 0 && k < CAMPAIGN_KEYS; k++)
                if (syncing.versions[k])
                        world.items[k].stable = MAX(world.items[k].stable, syncing.versions[k]);
}

bool world_sync(void)
{
        if (syncing.busy)
                return false;
        syncing.busy = true;
        world.others_busy++;
        for (uint32_t k = 0; k < CAMPAIGN_KEYS; k++)
                syncing.versions[k] =
                        world.volumes == 1 || world_version(k) == world.items[k].written
                                ? world.items[k].written
                                : 0; /* on a volume that is offline */
        syncing.req = (struct store_sync){ .complete = synced };
        store_sync(world.s, &syncing.req);
        return true;
}
