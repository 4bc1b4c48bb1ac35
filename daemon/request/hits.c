/* SPDX-License-Identifier: Apache-2.0 */
/* See hits.h. A hit that a client found through the pool index counts like any other hit, but not
 * as a request, and it has no latency. The client records it in its page (lookup/pool-index.h),
 * which is read for reports and when the session ends. The chunks that the client used are touched
 * later, a bounded number at a time: the chunks of one request are touched as one chain. After the
 * end of a session, its page stays until the words that its ring had at that time have been read,
 * whatever a process that still has the page writes into it.
 *
 * Clients must ask the daemon for chunks of a namespace with a lifetime, since each may have
 * expired.
 *
 * Failures: without memory, or if other clients may already hold everything that can be held, a
 * client gets no page and keeps asking the daemon. */
#include "request/hits.h"

#include <errno.h>

#include "base/clock.h"
#include "checked.h"
#include "cleanup.h"
#include "request/chain.h"

enum {
        HITS_FDS = 2,  /* descriptors in the reply: the index and the client's page */
        HELD_PART = 4, /* all clients' holds may take the limit of leases divided by this, in
                        * addition to leases */

        /* Most words that an iteration reads from clients' rings, of which hits_catch_up() before
         * messages may read CATCH_UP_WORDS. Ended sessions have a limit of their own. Touching a
         * chunk takes 100 to 500 ns. */
        ITERATION_WORDS = 1536,
        CATCH_UP_WORDS = 1024,
        /* Most touches per step, per millisecond on average, and after a sleep of the loop. */
        TOUCHES_STEP = 256,
        TOUCHES_PER_MS = 2048,
        TOUCHES_MOST = 65536,
        TICK_MS = 1000,
};
#define NS_PER_MS UINT64_C(1000000)
/* Interval of retries for requests that wait for the end of a hold, which sends no message. */
#define RETRY_NS (2 * NS_PER_MS)

static struct client *client_of(struct pool_client *hits)
{
        return container_of(hits, struct client, hits);
}

static void allow(struct client *client, uint32_t number, uint32_t id)
{
        const struct store *store = client->tenant->service->store;

        if (!client->ended)
                pool_index_allow(&client->hits, number, store_lifetime_s(store, id) > 0 ? 0 : id);
}

void hits_allow(struct client *client, uint32_t id)
{
        uint32_t number = client_namespace_number(client, id);

        if (number != 0)
                allow(client, number, id);
}

static void allow_open(struct client *client)
{
        for (unsigned i = 0; i < client->n_namespaces; i++)
                if (client->namespaces[i] != 0)
                        allow(client, i + 1, client->namespaces[i]);
}

void hits_allow_all(struct tenant *tenant, uint32_t id)
{
        struct pool_client *hits = NULL;

        while (tenant->pool_index && (hits = pool_index_next_client(tenant->pool_index, hits)))
                hits_allow(client_of(hits), id);
}

void hits_forget(struct client *client, uint32_t number)
{
        hits_count(client, clock_mono_ns());
        pool_index_allow(&client->hits, number, 0);
}

void hits_join(struct request req)
{
        struct client *client = req.client;
        struct tenant *tenant = client->tenant;
        _cleanup_(closep) int page = -1;
        enum wire_status status;
        uint64_t bytes;
        int fd, r;

        if (!tenant->pool_index) {
                request_fail(req, WIRE_DENIED, "there is no pool index (memory.pool_index)");
                return;
        }
        if (client->hits.index) {
                request_fail(req, WIRE_EXISTS_ALREADY,
                             "this session already has its page of the pool index");
                return;
        }
        if (tenant->service->stopping) {
                request_fail(req, WIRE_SHUTDOWN, "the daemon is stopping");
                return;
        }
        if (!client->takes_fds(client, HITS_FDS)) {
                request_fail(req, WIRE_BUSY, CLIENT_UNREAD);
                return;
        }
        status = client_charge(client, QUOTA_REQUEST_BYTES, POOL_PAGE_BYTES);
        if (status != WIRE_OK) {
                request_fail(req, status, client_refusal(status));
                return;
        }
        r = pool_index_join(tenant->pool_index, &client->hits, client->uid,
                            leases_bytes_most(tenant->leases) / HELD_PART, &fd, &bytes, &page);
        if (r < 0) {
                quota_uncharge(&client->holds, QUOTA_REQUEST_BYTES, POOL_PAGE_BYTES);
                request_fail(
                        req, r == -EDQUOT || r == -EACCES ? WIRE_QUOTA : WIRE_BUSY,
                        r == -EDQUOT ? "other clients have taken all of the pool that clients "
                                       "may hold without a lease; get chunks by requests"
                        : r == -EACCES
                                ? "a client of this user has held more of the pool "
                                  "than it may; for a minute, this user's clients "
                                  "cannot hold chunks without a lease"
                                : "the daemon has no memory or descriptors for the pool index");
                return;
        }
        allow_open(client);
        request_reply_fds(req, 0, bytes, (int[]){ fd, page }, HITS_FDS);
}

/* --- leases and holds of a client --- */

uint64_t hits_leases(const struct client *client)
{
        return client->leases.count + pool_index_holds(&client->hits);
}

void hits_each_leased(const struct client *client, void (*each)(void *userdata, uint32_t chunk),
                      void *userdata)
{
        lease_walk(client->tenant->leases, &client->leases, each, userdata);
        pool_index_each_hold(&client->hits, each, userdata);
}

/* --- hits --- */

void hits_count(struct client *client, uint64_t now_ns)
{
        struct tenant *tenant = client->tenant;
        struct traffic *traffic = &tenant->traffic;
        bool is_possible = true;

        for (unsigned i = 0; client->hits.index && i < client->n_namespaces; i++) {
                struct pool_index_count count;

                is_possible &= pool_index_count(&client->hits, i + 1, now_ns, &count);
                traffic->keys[WIRE_GET] += count.keys;
                traffic->results[WIRE_OK] += count.keys;
                traffic->get_bytes_map += count.mapped_bytes;
                traffic->get_bytes_into += count.copied_bytes;
                traffic->own_hits += count.keys;
                traffic->own_hits_untold += count.untold;
                cache_count_hits(tenant->cache, count.keys);
                lookup_counters_add(&tenant->lookup_counters, tenant->service->store,
                                    client->namespaces[i], COUNTED_GETS,
                                    (struct lookup_counts){ .found = count.keys });
        }
        tenant->impossible_tallies += !is_possible;
}

/* Touches the chunks of the client's next request, up to *most of them, the last ones first, and
 * subtracts the words read from *most. Returns false if there is no request. */
static bool touch_some(struct client *client, uint32_t *most)
{
        static struct pool_index_touch touches[POOL_MAX_TOUCHES]; /* too large for the stack */
        static struct cache_place places[POOL_MAX_TOUCHES];
        struct cache *cache = client->tenant->cache;
        uint64_t now_ns = announced_is_empty(client->tenant->announced) ? 0 : clock_mono_ns();
        uint32_t words;
        int n = pool_index_take_touches(&client->hits, *most, touches, &words);

        if (n < 0)
                return false;
        for (int i = 0; i < n; i++) {
                places[i] = cache_place_used(cache, touches[i].chunk);
                if (now_ns > 0 && places[i].chunk != POOL_NONE)
                        announced_use(
                                client->tenant->announced, client->uid,
                                evict_id(pool_chunk(client->tenant->pool, places[i].chunk)->hash),
                                now_ns);
        }
        if (n > 0)
                chain_touch(cache, places, (uint32_t)n);
        *most -= MIN(*most, words);
        client->tenant->service->hits.words += words;
        return true;
}

void hits_catch_up(struct client *client)
{
        uint32_t words = client->tenant->service->hits.words;
        uint32_t left = CATCH_UP_WORDS - MIN(words, (uint32_t)CATCH_UP_WORDS);

        while (client->hits.index && left > 0 && touch_some(client, &left))
                ;
}

/* Touches one request of each client in turn, until there are none or *most words have been read;
 * subtracts the words. */
static void touch_all(struct service *service, uint32_t *most)
{
        uint64_t clients = 0, in_vain = 0;

        for (unsigned i = 0; i < service->n_tenants; i++) {
                struct pool_index_stats stats = { 0 };

                if (service->tenants[i].pool_index)
                        pool_index_get_stats(service->tenants[i].pool_index, &stats);
                clients += stats.clients;
        }
        clients *= service->n_tenants;
        while (*most > 0 && in_vain < clients) {
                struct tenant *t = &service->tenants[service->hits.turn++ % service->n_tenants];
                struct pool_client *hits = t->pool_index ? pool_index_turn(t->pool_index) : NULL;

                in_vain = hits && touch_some(client_of(hits), most) ? 0 : in_vain + 1;
        }
}

bool hits_iterate(struct service *service, uint64_t now_ns)
{
        struct hits_pace *pace = &service->hits;
        uint64_t passed_ms = (now_ns - MIN(pace->at_ns, now_ns)) / NS_PER_MS;
        uint32_t room = ITERATION_WORDS - MIN(pace->words, (uint32_t)ITERATION_WORDS);
        uint32_t step, left;
        bool more = false;

        for (unsigned i = 0; i < service->n_tenants; i++)
                if (service->tenants[i].pool_index)
                        more |= pool_index_iterate(service->tenants[i].pool_index);
        if (passed_ms > 0) {
                pace->at_ns = now_ns;
                pace->touches = (uint32_t)MIN(pace->touches + MIN(passed_ms, (uint64_t)TICK_MS) *
                                                                      TOUCHES_PER_MS,
                                              (uint64_t)TOUCHES_MOST);
        }
        if (passed_ms > 0 || pace->is_behind) {
                step = left = MIN(pace->touches, MIN(room, (uint32_t)TOUCHES_STEP));
                touch_all(service, &left);
                pace->touches -= step - left;
                pace->is_behind = left == 0 && pace->touches > 0;
        }
        pace->words = 0;
        return more;
}

bool hits_are_behind(const struct service *service)
{
        return service->hits.is_behind;
}

/* Decides again which namespaces clients may read without a message, because a volume that has
 * returned may have changed their lifetimes. Also frees dropped chunks that no client holds any
 * longer, because the end of a hold is not reported. */
void hits_tick(struct service *service)
{
        for (unsigned i = 0; i < service->n_tenants; i++) {
                struct pool_client *hits = NULL;
                struct tenant *t = &service->tenants[i];

                while (t->pool_index && (hits = pool_index_next_client(t->pool_index, hits)))
                        allow_open(client_of(hits));
                if (pool_held(t->pool) > 0 && pool_release_held(t->pool) > 0)
                        cache_kick(t->cache);
        }
}

uint64_t hits_retry_ns(struct service *service, uint64_t now_ns)
{
        uint64_t retry_ns = 0;

        for (unsigned i = 0; i < service->n_tenants; i++) {
                struct tenant *t = &service->tenants[i];
                uint64_t scan_ns;

                if (pool_was_held_up(t->pool) && t->retry_ns == 0)
                        t->retry_ns = now_ns + RETRY_NS;
                if (t->retry_ns != 0 && t->retry_ns <= now_ns) {
                        t->retry_ns = 0;
                        (void)pool_release_held(t->pool);
                        cache_kick(t->cache);
                } else if (pool_holds_more(t->pool) && pool_release_held(t->pool) > 0) {
                        cache_kick(t->cache);
                }
                if (t->retry_ns != 0 && (retry_ns == 0 || t->retry_ns < retry_ns))
                        retry_ns = t->retry_ns;
                scan_ns = pool_holds_more(t->pool) ? pool_next_scan_ns(t->pool) : 0;
                if (scan_ns != 0 && (retry_ns == 0 || scan_ns < retry_ns))
                        retry_ns = scan_ns;
        }
        return retry_ns;
}

void hits_suspend(struct service *service, bool suspend)
{
        for (unsigned i = 0; i < service->n_tenants; i++)
                if (service->tenants[i].pool_index)
                        pool_index_suspend(service->tenants[i].pool_index, suspend);
}

void hits_end(struct client *client)
{
        pool_index_close(&client->hits);
}

bool hits_settle_some(struct client *client, uint32_t *steps)
{
        if (!client->hits.index)
                return false;
        while (*steps > 0 && client->hits_left > 0) {
                uint32_t part = MIN(*steps, client->hits_left), left = part;

                if (!touch_some(client, &left)) {
                        client->hits_left = 0;
                        return false;
                }
                *steps -= part - left;
                client->hits_left -= part - left;
        }
        return client->hits_left > 0;
}

void hits_leave(struct client *client)
{
        if (!client->hits.index)
                return;
        hits_count(client, clock_mono_ns());
        pool_index_leave(&client->hits);
        quota_uncharge(&client->holds, QUOTA_REQUEST_BYTES, POOL_PAGE_BYTES);
        cache_kick(client->tenant->cache);
}
