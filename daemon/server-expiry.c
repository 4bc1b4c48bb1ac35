/* SPDX-License-Identifier: Apache-2.0 */
/* While namespaces have lifetimes, a walk through the records of the store and of all pools drops
 * expired chunks that no request asks for, in steps of about 100 us. The pauses between steps are
 * chosen so that the walk visits all records in about a minute. They are shorter while steps find
 * chunks to drop. Loop thread. */
#include "server-internal.h"

#include "base/clock.h"
#include "cache/cache.h"
#include "checked.h"

enum {
        STEP_RECORDS = 4096,  /* records visited by a step that drops nothing */
        PAUSE_BUSY_US = 1000, /* pause while steps drop chunks, which limits them to about 50,000
                               * chunks a second */
        PAUSE_MIN_US = 5000,
        PAUSE_MAX_US = 500 * 1000,
        WALK_US = 60 * 1000 * 1000,
};

static uint64_t pause_us(const struct server *s)
{
        uint64_t records = store_records(s->service.store), steps = 1 + s->service.n_tenants;

        for (unsigned i = 0; i < s->service.n_tenants; i++)
                records += pool_records(s->tenants[i].pool);
        steps += records / STEP_RECORDS;
        return MIN(MAX(WALK_US / steps, (uint64_t)PAUSE_MIN_US), (uint64_t)PAUSE_MAX_US);
}

static void arm(struct server *s, uint64_t us)
{
        event_add(s->expiry, &(struct timeval){ .tv_sec = (time_t)(us / 1000000),
                                                .tv_usec = (suseconds_t)(us % 1000000) });
}

static void on_expiry(evutil_socket_t fd, short what, void *userdata)
{
        struct server *s = userdata;
        uint64_t expired = 0, now_ms = clock_unix_ms();
        bool more;

        if (s->draining || store_lifetimes(s->service.store) == 0)
                return;
        if (s->expiry_at == 0)
                more = store_expire_step(s->service.store, now_ms, &expired);
        else
                more = cache_expire_step(s->tenants[s->expiry_at - 1].cache, now_ms, &expired);
        if (!more)
                s->expiry_at = (s->expiry_at + 1) % (1 + s->service.n_tenants);
        arm(s, expired > 0 ? PAUSE_BUSY_US : pause_us(s));
}

int server_add_expiry(struct server *s)
{
        s->expiry = evtimer_new(s->base, on_expiry, s);
        return s->expiry ? 0 : -ENOMEM;
}

void server_start_expiry(struct server *s)
{
        if (!s->draining && store_lifetimes(s->service.store) > 0 &&
            !event_pending(s->expiry, EV_TIMEOUT, NULL))
                arm(s, PAUSE_MIN_US);
}
