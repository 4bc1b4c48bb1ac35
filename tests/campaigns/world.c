/* SPDX-License-Identifier: Apache-2.0 */
/* The store under test, and what is asked of it: see campaign.h. Runs on the main thread, which is
 * the store's loop. What has to come of it is in world-verify.c, and apart.c; an answer that is
 * wrong ends the program (verdict.c). */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "campaign.h"
#include "checked.h"
#include "sim.h"
#include "store/volume/volume.h"

struct world world;

/* --- folders --- */

static void remove_files_of(const char *dir)
{
        DIR *d = opendir(dir);

        for (struct dirent *e; d && (e = readdir(d));)
                if (e->d_name[0] != '.')
                        unlinkat(dirfd(d), e->d_name, 0);
        if (d)
                closedir(d);
}

static void remove_files(void)
{
        for (unsigned i = 0; i < CAMPAIGN_VOLUMES; i++)
                if (world.dirs[i][0])
                        remove_files_of(world.dirs[i]);
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

static char *pool;

/* In lockstep only one thread runs at a time, and hands over more cheaply on one processor. */
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
        if (!pool)
                pool = aligned_alloc(4096, params.pool_bytes);
        params.pool = pool;
        if (!pool)
                campaign_fail(VERDICT_HUNG, "no memory");
        world_make_folder();
        world_set_volumes(1);
        world.backend = backend;
        world.io = kio_stop(world.io);
        if (kio_start_with(&world.io, &params, backend, error) < 0)
                campaign_fail(VERDICT_HUNG, "kio_start: %s", error);
        world.limit = 4 << 20;
        world.max_length = 8192;
}

static struct slot {
        struct store_put put;
        struct store_get get;
        uint32_t k, version;
        bool put_busy, get_busy, durable;
        char *put_buf, *get_buf;
} slots[CAMPAIGN_SLOTS];

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
        struct store_put req;
        bool busy;
        uint32_t versions[CAMPAIGN_KEYS];
} syncing;

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

/* Raised when requests are forgotten: their answers count for nothing any more. */
static bool deaf;

void world_wipe(void)
{
        remove_files();
        memset(world.items, 0, sizeof(world.items));
        memset(world.namespaces, 0, sizeof(world.namespaces));
        memset(world.known, 0, sizeof(world.known));
        world.apart = false;
}

void world_drop_requests(void)
{
        deaf = true;
}

int world_open(char error[static 512])
{
        const char *paths[CAMPAIGN_VOLUMES];
        struct store_params params = {
                .paths = paths,
                .n_paths = world_used(),
                .limit = world.limit * world_used(),
                .segment_bytes = 1 << 20,
                .entries = 2048,
                .prewrite = world.prewrite,
                .direct = world.direct,
                .policy = "lru",
                .pool_slab_bytes = CAMPAIGN_ROOM,
                .secret = { { 1, 2 } },
                .lock_wait_ms = 30000,
                .table_block = campaign_seed() % 8 == 7 ? 1 + campaign_seed() / 8 % 8 : 0,
        };
        int r;

        for (unsigned i = 0; i < world_used(); i++)
                paths[i] = world.dirs[world_volume_at(i)];
        for (unsigned i = 0; i < CAMPAIGN_SLOTS; i++) {
                slots[i].put_buf = pool + (size_t)i * CAMPAIGN_ROOM;
                slots[i].get_buf = pool + (size_t)(CAMPAIGN_SLOTS + i) * CAMPAIGN_ROOM;
                slots[i].put_busy = slots[i].get_busy = false;
        }
        for (unsigned i = 0; i < CAMPAIGN_NAMESPACES; i++)
                openings[i].busy = false;
        purge.busy = syncing.busy = removal.busy = device.busy = false;
        world.puts_busy = world.others_busy = 0;
        deaf = false;
        r = store_prepare(&world.s, &params, error);
        if (r < 0)
                return r;
        r = store_open(world.s, world.io, error);
        if (r < 0)
                world.s = store_close(world.s);
        return r;
}

static void wait_io(void)
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

/* In lockstep nothing is submitted but to a worker that waits: or what goes to the device as one
 * would be a matter of who is faster. */
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
                wait_io();
        }
        world.s = store_close(world.s);
}

/* --- turning --- */

void world_iterate(void)
{
        unsigned reaped;

        do {
                store_iterate(world.s);
                flush_io();
                reaped = kio_reap(world.io);
                flush_io();
                while (world.lockstep && kio_pending(world.io) != sim_held_requests()) {
                        wait_io();
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
                wait_io();
                world_iterate();
        }
}

void world_settle(void)
{
        world_iterate();
        while (store_pending(world.s) > 0) {
                if (world.lockstep) {
                        if (!world_step())
                                campaign_fail(VERDICT_HUNG, "%llu pending, and nothing to wait for",
                                              (unsigned long long)store_pending(world.s));
                } else {
                        wait_io();
                        world_iterate();
                }
        }
}

/* --- keys and bytes --- */

unsigned item_namespace(uint32_t k)
{
        return k % CAMPAIGN_NAMESPACES;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
        uint64_t state = a * UINT64_C(0xff51afd7ed558ccd) ^ b;

        return sim_draw(&state);
}

/* Mostly of one size, for slots that are taken over; some smaller, a few of any size. */
uint32_t item_length(uint32_t k, uint32_t version)
{
        uint64_t x = mix(k, version), y = x >> 8;

        switch (x % 8) {
        case 0:
                return (uint32_t)(1 + y % world.max_length);
        case 1:
                return (uint32_t)(1 + y % 4096);
        case 2:
                return world.max_length;
        default:
                return (uint32_t)(MIN(4096u, world.max_length) - y % 64);
        }
}

static unsigned item_tenant(uint32_t k)
{
        return item_namespace(k) % CAMPAIGN_TENANTS;
}

/* No bit that is turned makes one of another. */
static uint64_t tenant_mark(unsigned tenant)
{
        return UINT64_C(0x6b72616d73746e61) * (tenant + 1);
}

/* The tenant whose memory the slot's get_buf is at present, and 1. */
static unsigned reading_for[CAMPAIGN_SLOTS];

/* 1 + the mark that was seen where it must not be. */
static _Atomic uint64_t foreign_mark;

/* Memory that a tenant sees: any thread. */
static void note_marks(const void *memory, uint64_t bytes)
{
        uint64_t at = (uint64_t)((const char *)memory - pool) / CAMPAIGN_ROOM - CAMPAIGN_SLOTS;
        const uint64_t *words = memory;

        if ((const char *)memory < pool || at >= CAMPAIGN_SLOTS || reading_for[at] == 0)
                return; /* the store's own */
        for (uint64_t i = 1; i < bytes / sizeof(*words); i += 64)
                for (unsigned n = 0; n < CAMPAIGN_TENANTS; n++)
                        if (words[i] == tenant_mark(n) && n != reading_for[at] - 1)
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

/* Each sector is of this put and this place alone, and says whose. */
void item_payload(uint32_t k, uint32_t version, void *buf)
{
        uint32_t length = item_length(k, version), words = (length + 7) / 8;
        uint64_t *p = buf, x = 0, step = 0;

        for (uint32_t i = 0; i < words; i++) {
                if (i % 64 == 0) {
                        x = mix((uint64_t)k << 32 | version, i);
                        step = x | 1;
                }
                p[i] = i % 64 == 1 ? tenant_mark(item_tenant(k)) : (x += step);
        }
        p[0] = (uint64_t)version << 32 |
               k; /* says who it is; a byte may be all that is kept of it */
}

static struct key key_of(uint32_t k)
{
        struct key key = { { 0 } };

        memcpy(key.bytes, &k, sizeof(k));
        key.bytes[31] = 1;
        return key;
}

/* --- namespaces --- */

/* Of the name, and so long that a list of all takes several sectors. */
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
        /* With its path bypassed the store has it in memory alone. */
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

int world_put(uint32_t k, bool durable)
{
        struct item *item = &world.items[k];
        struct slot *p = NULL;
        uint32_t id = world.namespaces[item_namespace(k)].id;
        int r;

        if (id == 0 || !world.namespaces[item_namespace(k)].answered)
                return STORE_MISS;
        for (unsigned i = 0; i < CAMPAIGN_SLOTS && !p; i++)
                if (!slots[i].put_busy)
                        p = &slots[i];
        if (!p)
                return STORE_FULL;
        p->k = k;
        p->version = item->version + 1;
        p->durable = durable;
        memset(p->put_buf, 0,
               round_up(world.max_length, 4096)); /* a tenant's own, as the daemon's */
        item_payload(k, p->version, p->put_buf);
        p->put = (struct store_put){
                .namespace_id = id,
                .tenant = (uint16_t)item_tenant(k),
                .key = key_of(k),
                .buf = p->put_buf,
                .length = item_length(k, p->version),
                .durable = durable,
                .complete = put_done,
        };
        p->put.crc = kio_crc32c(p->put_buf, p->put.length);
        p->put.hash = store_hash(world.s, id, &p->put.key);
        r = store_put(world.s, &p->put);
        if (r != 0)
                return r;
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

int world_drop(uint32_t k)
{
        struct key key = key_of(k);
        uint32_t id = world.namespaces[item_namespace(k)].id;

        return store_drop(world.s, id, &key, store_hash(world.s, id, &key));
}

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
        if (req->result > 0) { /* it was left as it is */
                world.namespaces[n].answered = removal.answered;
                return;
        }
        world.namespaces[n].id = 0;
        if (req->result != 0)
                return;
        world.removals++;
        /* Unless it is being opened anew. */
        world.namespaces[n].asked = openings[n].busy;
        world.namespaces[n].removed = !openings[n].busy;
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
        /* Until it is answered it may be there or not. */
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

static void synced(struct store_put *req)
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
        syncing.req = (struct store_put){ .complete = synced };
        store_sync(world.s, &syncing.req);
        return true;
}

/* The newest is what is looked for most. */
static uint32_t version_with(uint32_t k, uint32_t length, uint32_t crc)
{
        static char buf[CAMPAIGN_ROOM];

        for (uint32_t v = world.items[k].version; v > 0; v--) {
                if (item_length(k, v) != length)
                        continue;
                item_payload(k, v, buf);
                if (kio_crc32c(buf, length) == crc)
                        return v;
        }
        return 0;
}

uint32_t world_version_on(uint32_t k, unsigned *ret_volume)
{
        struct key key = key_of(k);
        uint32_t id = world.namespaces[item_namespace(k)].id;
        struct store_chunk chunk;
        struct store_ref ref;
        uint32_t v;

        if (id == 0 ||
            store_find(world.s, id, &key, store_hash(world.s, id, &key), &ref, &chunk) != 0)
                return 0;
        *ret_volume = world_volume_at(ref.generation >> VOLUME_GENERATION_BITS);
        v = version_with(k, chunk.length, chunk.crc);
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
                .key = key_of(k),
                .buf = p->get_buf,
                .room = CAMPAIGN_ROOM,
                .complete = get_done,
        };
        p->get.hash = store_hash(world.s, id, &p->get.key);
        reading_for[(p->get_buf - pool) / CAMPAIGN_ROOM - CAMPAIGN_SLOTS] = item_tenant(k) + 1;
        memset(p->get_buf, 0, round_up(world.max_length, 4096));
        sim_set_read_watch(note_marks);
        r = store_get(world.s, &p->get);
        p->get_busy = r == 0;
        return r;
}

/* A hit: of which put is it? */
static uint32_t get_check(const struct slot *p)
{
        static char right[CAMPAIGN_ROOM];
        uint32_t k = p->k, v = version_with(k, p->get.length, p->get.crc);

        if (v == 0)
                campaign_fail(VERDICT_WRONG, "key %u: a chunk of %u bytes that was never put", k,
                              p->get.length);
        item_payload(k, v, right);
        if (memcmp(right, p->get_buf, p->get.length) != 0)
                campaign_fail(VERDICT_WRONG, "key %u, version %u: wrong bytes", k, v);
        if (v <= world.items[k].purged)
                campaign_fail(VERDICT_WRONG, "key %u: version %u is back, purged up to %u", k, v,
                              world.items[k].purged);
        return v;
}

uint32_t world_get(uint32_t k, int *ret_error)
{
        static struct slot p;
        int r;

        p.get_buf = slots[0].get_buf;
        r = get_begin(&p, k);
        if (ret_error)
                *ret_error = r;
        if (r != 0)
                return 0;
        world_iterate();
        while (p.get_busy) {
                if (!world.lockstep || !world_step())
                        wait_io();
                world_iterate();
        }
        if (ret_error)
                *ret_error = p.get.result;
        return p.get.result == 0 ? get_check(&p) : 0;
}

static bool gets_busy(void);

void world_get_pair(uint32_t a, uint32_t b, uint32_t *ret_a, uint32_t *ret_b)
{
        bool begun_a = get_begin(&slots[0], a) == 0, begun_b = get_begin(&slots[1], b) == 0;

        sim_hold(1u << KIO_READ);
        world_iterate();
        while (gets_busy())
                world_step();
        sim_hold(0);
        world_iterate();
        *ret_a = begun_a && slots[0].get.result == 0 ? get_check(&slots[0]) : 0;
        *ret_b = begun_b && slots[1].get.result == 0 ? get_check(&slots[1]) : 0;
}

static bool gets_busy(void)
{
        for (unsigned i = 0; i < CAMPAIGN_SLOTS; i++)
                if (slots[i].get_busy)
                        return true;
        return false;
}

void world_get_all(void (*got)(uint32_t k, uint32_t version))
{
        for (uint32_t first = 0; first < CAMPAIGN_KEYS;) {
                int answers[CAMPAIGN_SLOTS];
                uint32_t keys[CAMPAIGN_SLOTS], n = 0;

                for (; n < CAMPAIGN_SLOTS && first < CAMPAIGN_KEYS; first++) {
                        answers[n] = get_begin(&slots[n], first);
                        keys[n] = first;
                        if (answers[n] == 0)
                                n++;
                        else
                                got(first, 0);
                }
                world_iterate();
                while (gets_busy()) {
                        if (!world.lockstep || !world_step())
                                wait_io();
                        world_iterate();
                }
                for (uint32_t i = 0; i < n; i++)
                        got(keys[i], slots[i].get.result == 0 ? get_check(&slots[i]) : 0);
        }
}
