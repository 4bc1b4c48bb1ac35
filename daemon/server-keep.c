/* SPDX-License-Identifier: Apache-2.0 */
/* The server's part of keeping the memory pools across a planned restart. Startup creates each pool
 * in memory that the service manager can keep, or takes over the memory that it kept; a clean stop
 * leaves a map of the pools. keep/format.h describes the map. Loop thread.
 *
 * The memory of a pool is chosen before the store is open. Its chunks are taken over afterwards,
 * before any client is served. A failure is one log line, and the pool is then empty, as after a
 * crash. If there is no memory to take over the chunks, startup fails, and the next startup begins
 * with an empty pool. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "cache/backing.h"
#include "cleanup.h"
#include "keep/keep.h"
#include "request/hits.h"
#include "server-internal.h"
#include "units.h"

#define MAP_NAME NOTIFY_KEPT "map"

static void say_why_not(struct server *s, const char *fmt, ...)
        __attribute__((format(printf, 2, 3)));
static void say_why_not(struct server *s, const char *fmt, ...)
{
        va_list args;

        va_start(args, fmt);
        vsnprintf(s->keep.why_not, sizeof(s->keep.why_not), fmt, args);
        va_end(args);
}

/* --- startup --- */

void server_read_map(struct server *s)
{
        char error[KEEP_ERROR_BYTES] =
                "the previous daemon left no description of it, as after a crash";
        int fd;

        while (!s->keep.file && (fd = notify_take_kept(&s->inherited, MAP_NAME)) >= 0) {
                (void)keep_file_read(&s->keep.file, fd, error);
                close(fd);
                notify_forget(MAP_NAME);
        }
        if (!s->keep.file && s->inherited.n_kept > 0)
                log_notice("memory.keep: the previous daemon's pool is not taken over: %s", error);
}

static bool has_socket(void *userdata, const char *name)
{
        return notify_has_kept(&((struct server *)userdata)->inherited, name);
}

/* Lets the service manager forget both descriptors of a pool, because each is useless without the
 * other. */
static void forget_pool(const struct server *s, int kept)
{
        char file[KEEP_NAME_BYTES + 4];

        if (kept < 0)
                return;
        snprintf(file, sizeof(file), "%s" NOTIFY_KEPT_WRITABLE,
                 s->keep.file->map.pools[kept]->files);
        notify_forget(file);
        snprintf(file, sizeof(file), "%s-ro", s->keep.file->map.pools[kept]->files);
        notify_forget(file);
}

/* Opens a tenant's pool over the memory of the earlier daemon. Returns 0 if it could; otherwise the
 * memory is not used. */
static int take_over(struct server *s, unsigned tenant, const char *name, uint64_t bytes,
                     uint64_t slab_bytes, struct backing *ret)
{
        char error[KEEP_ERROR_BYTES], file[KEEP_NAME_BYTES + 4];
        _cleanup_(closep) int rw = -1, ro = -1;
        int kept, r;

        if (!s->keep.file)
                return -ENOENT;
        kept = keep_file_find(s->keep.file, name, bytes, slab_bytes, has_socket, s, error);
        if (kept >= 0 && !server_may_reuse_pool(s, tenant, kept, error)) {
                forget_pool(s, kept);
                s->keep.forbidden++;
                log_warning("memory.keep: the previous daemon's pool of tenant %s is not taken "
                            "over: %s; the new pool begins empty",
                            name, error);
                return -EACCES;
        }
        if (kept >= 0) {
                const char *files = s->keep.file->map.pools[kept]->files;

                snprintf(file, sizeof(file), "%s" NOTIFY_KEPT_WRITABLE, files);
                rw = notify_take_kept(&s->inherited, file);
                snprintf(file, sizeof(file), "%s-ro", files);
                ro = notify_take_kept(&s->inherited, file);
                snprintf(error, sizeof(error),
                         "the service manager has not kept it (FileDescriptorStoreMax=)");
        }
        r = rw < 0 || ro < 0 ? -ENOENT : backing_take_fds(ret, rw, ro, bytes, error);
        if (r < 0) {
                forget_pool(s, kept);
                log_notice("memory.keep: the previous daemon's pool of tenant %s is not taken "
                           "over: %s",
                           name, error);
                return r;
        }
        rw = ro = -1;
        s->keep.kept[tenant] = kept;
        snprintf(s->keep.files[tenant], sizeof(s->keep.files[tenant]), "%s",
                 s->keep.file->map.pools[kept]->files);
        return 0;
}

static int open_kept(struct server *s, unsigned tenant, const char *name, uint64_t bytes,
                     uint64_t slab_bytes, struct backing *ret)
{
        char error[BACKING_ERROR_BYTES];
        uint32_t of_this;
        int r;

        if (strcmp(s->config->memory.keep, "off") == 0) {
                say_why_not(s, "memory.keep is off");
                return -EOPNOTSUPP;
        }
        if (notify_keeps() < 2 * s->service.n_tenants + 1) {
                say_why_not(s, "no service manager keeps descriptors for this daemon");
                return -EOPNOTSUPP;
        }
        if (take_over(s, tenant, name, bytes, slab_bytes, ret) == 0)
                return 0;
        r = backing_open_kept(ret, s->config->memory.directory.items[0], bytes, error);
        if (r < 0) {
                say_why_not(s, "%s", error);
                return r;
        }
        if (getrandom(&of_this, sizeof(of_this), 0) != sizeof(of_this))
                of_this = (uint32_t)clock_unix_ms();
        snprintf(s->keep.files[tenant], sizeof(s->keep.files[tenant]),
                 NOTIFY_KEPT "pool-%08" PRIx32 "-%u", of_this, tenant);
        return 0;
}

int server_open_pool(struct server *s, unsigned tenant, const char *name, uint64_t bytes,
                     bool automatic)
{
        uint64_t slab_bytes, whole = pool_whole_bytes(bytes, &slab_bytes);
        const char *policy = s->config->eviction.policy;
        struct backing backing;
        int r;

        if (automatic && s->keep.file && strcmp(s->config->memory.keep, "off") != 0) {
                uint64_t chosen = whole;
                char size[UNITS_TEXT];

                keep_file_size(s->keep.file, name, &whole, &slab_bytes);
                if (whole != chosen)
                        log_info("memory.keep: the pool of tenant %s keeps the size it had in the "
                                 "previous daemon: %s",
                                 name, units_bytes(whole, size));
        }
        s->keep.kept[tenant] = -1;
        if (whole == 0 || open_kept(s, tenant, name, whole, slab_bytes, &backing) < 0)
                return pool_new(&s->tenants[tenant].pool, whole, policy);
        r = pool_new_over(&s->tenants[tenant].pool, &backing, policy);
        if (r < 0)
                backing_close(&backing);
        return r;
}

static int take_socket(void *userdata, const char *name)
{
        return notify_take_kept(&((struct server *)userdata)->inherited, name);
}

static void on_more_room(void *userdata, unsigned tenant)
{
        cache_kick(((struct server *)userdata)->tenants[tenant].cache);
}

/* Closes the socket of a client of the earlier daemon, here and in the service manager: the client
 * has closed its end, so it reads no chunk any longer. */
static void on_ended(void *userdata, const char *name, int fd)
{
        struct server *s = userdata;

        notify_forget(name);
        sessions_close_take_fd(s->sessions, fd);
}

/* Returns whether the store is as it was when the map was written. In either case the store's
 * number is removed, so that no later map can match it. */
static bool is_of_this_store(struct server *s)
{
        uint8_t number[KEEP_NUMBER_BYTES];
        int r = keep_number_take(store_volume_path(s->service.store, 0), number);

        if (!s->keep.file)
                return false;
        if (r == 0 && memcmp(number, s->keep.file->map.head->number, sizeof(number)) == 0)
                return true;
        if (r < 0 && r != -ENOENT && r != -EBADMSG)
                log_notice("memory.keep: the previous daemon's pool is not taken over: the number "
                           "that it left in %s cannot be read or removed: %s",
                           store_volume_path(s->service.store, 0), strerror(-r));
        else
                log_notice("memory.keep: the previous daemon's pool is not taken over: the store "
                           "is a different one, or another daemon has opened it since");
        return false;
}

/* Gives the service manager the descriptors of a pool that it does not have yet. If the pool's
 * memory cannot be kept, or the manager takes no descriptor, no pool is handed on. */
static void give_pool(struct server *s, unsigned tenant)
{
        const struct backing *b = pool_backing(s->tenants[tenant].pool);
        char name[KEEP_NAME_BYTES + 4];
        int r;

        if (!backing_is_kept(b)) {
                s->keep.ready = false;
                return;
        }
        if (s->keep.kept[tenant] >= 0)
                return;
        snprintf(name, sizeof(name), "%s" NOTIFY_KEPT_WRITABLE, s->keep.files[tenant]);
        r = notify_keep(name, b->writable_fd);
        snprintf(name, sizeof(name), "%s-ro", s->keep.files[tenant]);
        if (r == 0)
                r = notify_keep(name, b->fd);
        if (r < 0) {
                s->keep.ready = false;
                say_why_not(s, "the service manager does not take descriptors: %s", strerror(-r));
        }
}

int server_start_keep(struct server *s)
{
        struct keep_tenant tenants[CONFIG_MAX_TENANTS];
        struct keep_params params = {
                .base = s->base,
                .io = s->service.io,
                .store = s->service.store,
                .tenants = tenants,
                .n_tenants = s->service.n_tenants,
                .forbidden_pools = s->keep.forbidden,
                .more_room = on_more_room,
                .ended = on_ended,
                .userdata = s,
        };
        bool valid = is_of_this_store(s), any = false;
        char chunks[UNITS_TEXT];
        struct keep_stats stats;
        int r;

        for (unsigned i = 0; i < s->service.n_tenants; i++) {
                tenants[i] = (struct keep_tenant){ .name = server_tenant_name(s, i),
                                                   .pool = s->tenants[i].pool,
                                                   .store_tenant = s->tenants[i].store_tenant,
                                                   .kept = s->keep.kept[i] };
                any = any || s->keep.kept[i] >= 0;
        }
        r = keep_new(&s->keep.keep, &params);
        if (r < 0)
                return server_fail(r, "preparing to keep the memory pools (memory.keep)", NULL);
        r = any ? keep_adopt(s->keep.keep, s->keep.file, valid, take_socket, s) : 0;
        if (r < 0)
                return server_fail(r, "taking over the memory of the previous daemon", NULL);
        s->keep.file = keep_file_free(s->keep.file);
        notify_drop_kept(&s->inherited);
        s->keep.ready = true;
        for (unsigned i = 0; i < s->service.n_tenants; i++)
                give_pool(s, i);

        keep_get_stats(s->keep.keep, &stats);
        if (stats.mapped > 0)
                log_notice("memory.keep: %s taken over from the previous daemon; each is verified "
                           "against its checksum before it is served from memory",
                           units_count(stats.pending, "chunk", chunks));
        if (!s->keep.ready && strcmp(s->config->memory.keep, "on") == 0)
                log_warning("memory.keep: the pool will not survive a restart of this daemon: %s",
                            s->keep.why_not);
        return 0;
}

bool server_iterate_keep(struct server *s)
{
        char all[UNITS_TEXT], took[UNITS_TEXT];
        struct keep_stats stats;
        bool more = keep_iterate(s->keep.keep);

        keep_get_stats(s->keep.keep, &stats);
        if (stats.mapped == 0 || stats.pending > 0 || s->keep.reported)
                return more;
        s->keep.reported = true;
        units_count(stats.mapped, "chunk", all);
        units_ms(stats.verify_ns / 1000000, took);
        if (stats.refused[KEEP_DAMAGED] > 0)
                log_warning("memory.keep: %" PRIu64
                            " of %s are verified and served from memory, after %s; %" PRIu64
                            " did not match their checksums and were dropped",
                            stats.verified, all, took, stats.refused[KEEP_DAMAGED]);
        else
                log_info("memory.keep: %" PRIu64
                         " of %s are verified and served from memory, after %s",
                         stats.verified, all, took);
        return more;
}

/* --- stopping --- */

struct holding {
        struct server *s;
        int r;
};

static void hold_chunk(void *userdata, uint32_t chunk)
{
        struct holding *h = userdata;

        if (h->r == 0)
                h->r = keep_hold_chunk(h->s->keep.keep, chunk);
}

/* Gives up handing on the pools of all tenants. */
static void give_up(struct server *s, const char *what, int r)
{
        if (s->keep.ready)
                log_warning("memory.keep: no pool is handed over to the next daemon: %s: %s", what,
                            strerror(-r));
        s->keep.ready = false;
}

/* Returns whether the service manager keeps as many descriptors as are to be handed over: two of
 * each pool, the map, and the sockets of clients with leases. Otherwise gives up. */
static bool fits_descriptor_store(struct server *s)
{
        unsigned fds = 2 * s->service.n_tenants + 1 + keep_holders(s->keep.keep);

        if (fds <= notify_keeps())
                return true;
        log_warning("memory.keep: no pool is handed over to the next daemon: %u descriptors are to "
                    "be kept, but the service manager keeps %u: raise FileDescriptorStoreMax= of "
                    "the unit",
                    fds, notify_keeps());
        s->keep.ready = false;
        return false;
}

/* Gives up handing on a tenant's pool, because the chunks that its clients have leased could not be
 * protected from reuse. */
static void lose_pool(struct server *s, unsigned tenant, int r)
{
        if (s->keep.files[tenant][0])
                log_warning("memory.keep: the pool of tenant %s is not handed over to the next "
                            "daemon: its clients' leases cannot be handed over: %s",
                            server_tenant_name(s, tenant), strerror(-r));
        s->keep.files[tenant][0] = '\0';
}

bool server_hold_leases(void *userdata, struct client *client, int fd)
{
        struct server *s = userdata;
        struct holding h = { .s = s };
        unsigned tenant = client->tenant->number;

        if (!s->keep.ready || !s->keep.files[tenant][0])
                return false;
        h.r = keep_hold(s->keep.keep, tenant, fd);
        if (h.r < 0) {
                lose_pool(s, tenant, h.r);
                return false;
        }
        hits_each_leased(client, hold_chunk, &h);
        if (h.r < 0)
                lose_pool(s, tenant, h.r);
        return true;
}

void server_number_memory(struct server *s)
{
        int r;

        if (!s->keep.ready)
                return;
        r = getrandom(s->keep.number, sizeof(s->keep.number), 0) == sizeof(s->keep.number)
                    ? keep_number_put(store_volume_path(s->service.store, 0), s->keep.number)
                    : -EIO;
        if (r < 0)
                give_up(s, "writing the number of the map to the first volume failed", r);
}

static void give_holder(void *userdata, const char *name, int fd)
{
        struct server *s = userdata;
        int r = s->keep.ready ? notify_keep(name, fd) : 0;

        if (r < 0)
                give_up(s, "the service manager does not take the socket of a client with leases",
                        r);
}

void server_hand_on_memory(struct server *s)
{
        struct keep_handover handover = {
                .files = (const char(*)[KEEP_NAME_BYTES])s->keep.files,
                .number = s->keep.number,
        };
        _cleanup_(freep) struct keep_reader *readers = NULL;
        _cleanup_(closep) int map = -1;
        char count[UNITS_TEXT];
        uint64_t chunks;
        int r;

        if (!s->keep.ready || !fits_descriptor_store(s))
                return;
        r = server_list_readers(s, &handover, &readers);
        if (r == 0)
                r = keep_save(s->keep.keep, &handover, &map, &chunks);
        if (r < 0) {
                give_up(s, "making the map of the pools failed", r);
                return;
        }
        keep_each_new_holder(s->keep.keep, give_holder, s);
        if (!s->keep.ready)
                return;
        r = notify_keep(MAP_NAME, map);
        if (r == 0 && !notify_settle())
                r = -ETIMEDOUT;
        if (r < 0)
                give_up(s, "the service manager does not take the map of the pools", r);
        else
                log_info("memory.keep: %s handed over to the next daemon",
                         units_count(chunks, "chunk", count));
}
