/* SPDX-License-Identifier: Apache-2.0 */
/* The server's part of keeping the state that eviction has learned across a restart. The file is
 * read before the store is opened, because the store must hash keys with the file's secret. It is
 * restored when the store is open, before any client is served. Loop thread. A damaged file costs
 * one log line. */
#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/log.h"
#include "learned/learned.h"
#include "server-internal.h"
#include "units.h"

int server_read_learned(struct server *s, struct key_secret *ret)
{
        const char *folder = s->config->store.path.items[0];
        char error[LEARNED_ERROR_BYTES];
        int r = learned_read(folder, &s->learned_file, error);

        if (r == 0)
                learned_secret(s->learned_file, ret);
        else if (r != -ENOENT)
                log_warning("%s/learned: %s; eviction starts without saved state", folder, error);
        return r < 0 && getrandom(ret, sizeof(*ret), 0) != sizeof(*ret) ? -EIO : 0;
}

static void warn(void *userdata, const char *text)
{
        log_warning("%s", text);
}

int server_start_learned(struct server *s, const struct key_secret *secret)
{
        struct pool *pools[CONFIG_MAX_TENANTS];
        struct learned_params params = {
                .io = s->service.io,
                .store = s->service.store,
                .pools = pools,
                .n_pools = s->service.n_tenants,
                .folder = store_volume_path(s->service.store, 0),
                .secret = *secret,
                .warn = warn,
        };
        struct learned_stats stats;
        char chunks[UNITS_TEXT];
        int r;

        for (unsigned i = 0; i < s->service.n_tenants; i++)
                pools[i] = s->tenants[i].pool;
        r = learned_new(&s->learned, &params, s->learned_file, clock_mono_ns());
        free(s->learned_file);
        s->learned_file = NULL;
        if (r < 0)
                return server_fail(r, "starting eviction", NULL);
        learned_get_stats(s->learned, &stats);
        if (stats.saved_ms != 0)
                log_info("eviction: restored the saved state and the order of %s",
                         units_count(stats.restored_chunks, "chunk", chunks));
        return 0;
}
