/* SPDX-License-Identifier: Apache-2.0 */
#include "fleet.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "cleanup.h"
#include "fleet-router.h"
#include "host-blocks.h"
#include "simulated-cache.h"

#define NONE UINT32_MAX

/* --- sessions --- */

struct tails {
        uint32_t *session_of; /* by block: the session of which the block is the tail (set_tail());
                                 NONE: of no session */
        uint32_t *tail_of;    /* by session: the block that is its tail; NONE: no block */
        uint32_t *brought_by; /* by block: the session that used the block first; NONE: not used yet
                               */
};

/* Finds the session of the deepest block that is a tail, or NONE if the request begins a
 * session. */
static uint32_t find_session(const struct tails *t, const uint32_t *blocks, size_t n)
{
        while (n-- > 0)
                if (t->session_of[blocks[n]] != NONE)
                        return t->session_of[blocks[n]];
        return NONE;
}

/* Sets the tail of a session, by which its next request is recognized: the last block but one,
 * because the last block may be partial. If another session used that block first, several
 * sessions may share it, and the tail is the last block instead. */
static void set_tail(struct tails *t, uint32_t session, const uint32_t *blocks, size_t n)
{
        uint32_t tail = NONE;

        for (size_t i = 0; i < n; i++)
                if (t->brought_by[blocks[i]] == NONE)
                        t->brought_by[blocks[i]] = session;
        for (size_t back = MIN(n, (size_t)2); back >= 1 && tail == NONE; back--)
                if (t->brought_by[blocks[n - back]] == session)
                        tail = blocks[n - back];
        if (tail == NONE)
                return;
        if (t->tail_of[session] != NONE)
                t->session_of[t->tail_of[session]] = NONE;
        t->tail_of[session] = tail;
        t->session_of[tail] = session;
}

static int find_sessions(struct fleet *f)
{
        const struct workload *w = f->simulation->workload;
        size_t n_blocks = MAX(f->simulation->n_blocks, 1U),
               n_requests = MAX(w->n_requests, (size_t)1);
        _cleanup_(freep) uint32_t *session_of = malloc(n_blocks * sizeof(*session_of));
        _cleanup_(freep) uint32_t *brought_by = malloc(n_blocks * sizeof(*brought_by));
        _cleanup_(freep) uint32_t *tail_of = malloc(n_requests * sizeof(*tail_of));
        struct tails tails = { session_of, tail_of, brought_by };

        f->sessions = malloc(n_requests * sizeof(*f->sessions));
        if (!session_of || !brought_by || !tail_of || !f->sessions)
                return -ENOMEM;
        memset(session_of, 0xff, n_blocks * sizeof(*session_of));
        memset(brought_by, 0xff, n_blocks * sizeof(*brought_by));
        for (size_t i = 0; i < w->n_requests; i++) {
                const uint32_t *blocks = &f->simulation->blocks[w->requests[i].first_id];
                size_t n = w->requests[i].n_ids;
                uint32_t session = find_session(&tails, blocks, n);

                f->sessions[i] = 0;
                if (n == 0)
                        continue;
                if (session == NONE) {
                        session = f->n_sessions++;
                        tail_of[session] = NONE;
                }
                set_tail(&tails, session, blocks, n);
                f->sessions[i] = session;
        }
        return 0;
}

static int find_bound(struct fleet *f)
{
        const struct workload *w = f->simulation->workload;
        _cleanup_(freep) uint8_t *seen = calloc(MAX(f->simulation->n_blocks, 1U), 1);

        if (!seen)
                return -ENOMEM;
        for (size_t i = 0; i < w->n_requests; i++) {
                const uint32_t *blocks = &f->simulation->blocks[w->requests[i].first_id];
                size_t hits = 0;

                while (hits < w->requests[i].n_ids && seen[blocks[hits]])
                        hits++;
                f->blocks_bound += hits;
                for (size_t k = hits; k < w->requests[i].n_ids; k++)
                        seen[blocks[k]] = 1;
        }
        return 0;
}

int fleet_init(struct fleet *f, const struct simulation *s)
{
        int r;

        f->simulation = s;
        f->n_sessions = 0;
        f->blocks_bound = 0;
        r = find_sessions(f);
        if (r == 0)
                r = find_bound(f);
        if (r < 0)
                fleet_fini(f);
        return r;
}

void fleet_fini(struct fleet *f)
{
        free(f->sessions);
        f->sessions = NULL;
}

/* --- hosts --- */

struct host {
        struct simulated_cache cache;
        struct simulated_observer observer;
        struct hosts *all;
        uint32_t *blocks; /* the fleet's number of each block of the host, indexed by the host's
                             number; only with a router */
        uint32_t room;    /* number of entries for which `blocks` has room */
        uint64_t computed;
};

struct hosts {
        const struct fleet *fleet;
        struct host *hosts;
        uint32_t n;
        struct host_blocks numbers;
        uint32_t *own; /* blocks of all requests, as simulation.blocks, but with the numbers of the
                          request's host */
        struct router *router; /* NULL unless the route follows events */
        uint64_t now_ns;
        int error; /* first -errno of an observer; 0: none */
};

static void hosts_fini(struct hosts *h)
{
        for (uint32_t i = 0; h->hosts && i < h->n; i++) {
                simulated_cache_fini(&h->hosts[i].cache);
                free(h->hosts[i].blocks);
        }
        free(h->hosts);
        free(h->own);
        host_blocks_fini(&h->numbers);
        router_free(h->router);
}

/* Returns the host of a request, unless the route follows events. */
static uint32_t fixed_host(const struct fleet *f, size_t request, uint32_t hosts)
{
        uint64_t drawn = ((uint64_t)request + 1) * UINT64_C(0x9e3779b97f4a7c15);

        if (f->route == FLEET_ROUTE_SESSION)
                return f->sessions[request] % hosts;
        drawn = (drawn ^ drawn >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        drawn = (drawn ^ drawn >> 27) * UINT64_C(0x94d049bb133111eb);
        return (uint32_t)((drawn ^ drawn >> 31) % hosts);
}

/* Numbers the blocks of a request for the host that the router chose, in h->own. Returns 0 or
 * -ENOMEM. */
static int number_request(struct hosts *h, size_t request, uint32_t host)
{
        const struct simulation *s = h->fleet->simulation;
        const struct workload_request *r = &s->workload->requests[request];
        int error = 0;

        for (size_t i = r->first_id; error == 0 && i < r->first_id + r->n_ids; i++)
                error = host_blocks_number(&h->numbers, host, s->blocks[i], &h->own[i]);
        return error;
}

/* Enters the blocks of a routed request in the host's table of blocks, and allocates the cache's
 * records for them. The arrays grow by half, so that the total cost of growing is linear. Returns 0
 * or -ENOMEM. */
static int learn_blocks(struct hosts *h, size_t request, uint32_t host)
{
        const struct simulation *s = h->fleet->simulation;
        const struct workload_request *r = &s->workload->requests[request];
        struct host *own = &h->hosts[host];
        uint32_t n = h->numbers.count[host];

        if (n > own->room) {
                uint32_t room = MIN(n + n / 2, s->n_blocks);
                uint32_t *blocks = realloc(own->blocks, room * sizeof(*blocks));

                if (!blocks)
                        return -ENOMEM;
                own->blocks = blocks;
                own->room = room;
        }
        for (size_t i = r->first_id; i < r->first_id + r->n_ids; i++)
                own->blocks[h->own[i]] = s->blocks[i];
        return simulated_cache_grow(&own->cache, own->room);
}

static void publish(struct host *host, uint32_t own_block, bool is_cached)
{
        struct hosts *h = host->all;
        int r = router_publish(h->router, (uint32_t)(host - h->hosts), host->blocks[own_block],
                               is_cached, h->now_ns);

        h->error = h->error ?: r;
}

static void on_inserted(void *userdata, const struct simulated_cache *c, uint32_t block)
{
        (void)c;
        publish(userdata, block, true);
}

static void on_evicting(void *userdata, const struct simulated_cache *c, uint32_t block)
{
        (void)c;
        publish(userdata, block, false);
}

/* Creates the router, and the caches of the hosts among which it chooses. If the lag is longer
 * than the workload, hosts publish no events, because no event would arrive in time. */
static int begin_routing(struct hosts *h)
{
        const struct fleet *f = h->fleet;
        const struct simulation *s = f->simulation;
        size_t n = s->workload->n_requests;
        uint64_t last_ns = n > 0 ? s->times_ns[n - 1] - s->times_ns[0] : 0;
        int r = router_new(&h->router, h->n, s->n_blocks, f->lag_ns);

        for (uint32_t i = 0; r == 0 && i < h->n; i++) {
                struct host *host = &h->hosts[i];

                host->observer = (struct simulated_observer){ on_inserted, on_evicting, host };
                r = simulated_cache_init_growing(&host->cache, f->policy, f->capacity, s->n_blocks);
                if (f->lag_ns <= last_ns)
                        host->cache.observer = &host->observer;
        }
        return r;
}

/* Sorts the indices of all requests by host and, for each host, in the order of the requests. `ret`
 * has an entry per request. */
static void sort_by_host(const struct hosts *h, uint32_t *ret)
{
        size_t n_requests = h->fleet->simulation->workload->n_requests;
        uint32_t first[FLEET_MAX_HOSTS + 1] = { 0 };

        for (size_t i = 0; i < n_requests; i++)
                first[fixed_host(h->fleet, i, h->n) + 1]++;
        for (uint32_t host = 0; host < h->n; host++)
                first[host + 1] += first[host];
        for (size_t i = 0; i < n_requests; i++)
                ret[first[fixed_host(h->fleet, i, h->n)]++] = (uint32_t)i;
}

/* Numbers the blocks of all requests, host by host, in h->own. The loop needs no search, so that it
 * takes a fraction of the time of number_request(). Returns 0 or -ENOMEM. */
static int number_all(struct hosts *h)
{
        const struct simulation *s = h->fleet->simulation;
        size_t n_blocks = MAX(s->n_blocks, 1U), n = MAX(s->workload->n_requests, (size_t)1);
        _cleanup_(freep) uint32_t *by_host = malloc(n * sizeof(*by_host));
        /* `last`: by block, the host that numbered the block last, plus one; 0: none. `current`:
         * the block's number on that host. */
        _cleanup_(freep) uint32_t *last = calloc(n_blocks, sizeof(*last));
        _cleanup_(freep) uint32_t *current = calloc(n_blocks, sizeof(*current));

        if (!by_host || !last || !current)
                return -ENOMEM;
        sort_by_host(h, by_host);
        for (size_t i = 0; i < s->workload->n_requests; i++) {
                const struct workload_request *r = &s->workload->requests[by_host[i]];
                uint32_t host = fixed_host(h->fleet, by_host[i], h->n);

                for (size_t k = r->first_id; k < r->first_id + r->n_ids; k++) {
                        uint32_t block = s->blocks[k];

                        if (last[block] != host + 1) {
                                last[block] = host + 1;
                                current[block] = h->numbers.count[host]++;
                        }
                        h->own[k] = current[block];
                }
        }
        return 0;
}

static int begin_fixed(struct hosts *h)
{
        const struct fleet *f = h->fleet;
        int r = number_all(h);

        for (uint32_t i = 0; r == 0 && i < h->n; i++)
                r = simulated_cache_init(&h->hosts[i].cache, f->policy, f->capacity,
                                         h->numbers.count[i]);
        return r;
}

static int hosts_init(struct hosts *h, const struct fleet *f, uint32_t n)
{
        int r;

        *h = (struct hosts){ .fleet = f, .n = n };
        h->hosts = calloc(n, sizeof(*h->hosts));
        h->own = malloc(MAX(f->simulation->workload->n_ids, (size_t)1) * sizeof(*h->own));
        r = host_blocks_init(&h->numbers, n);
        if (!h->hosts || !h->own || r < 0)
                return -ENOMEM;
        for (uint32_t i = 0; i < n; i++)
                h->hosts[i].all = h;
        return f->route == FLEET_ROUTE_EVENTS ? begin_routing(h) : begin_fixed(h);
}

/* Finds the host of the next request. With a router, also numbers the request's blocks for that
 * host, and sets `*ret_expected` as router_choose() does; without one, `*ret_expected` is 0.
 * Returns 0 or -ENOMEM. */
static int hosts_route(struct hosts *h, size_t request, uint32_t *ret_host, size_t *ret_expected)
{
        const struct fleet *f = h->fleet;
        const struct workload_request *r = &f->simulation->workload->requests[request];
        int error;

        *ret_expected = 0;
        if (!h->router) {
                *ret_host = fixed_host(f, request, h->n);
                return 0;
        }
        h->now_ns = f->simulation->times_ns[request];
        error = router_choose(h->router, &f->simulation->blocks[r->first_id], r->n_ids, h->now_ns,
                              ret_host, ret_expected);
        if (error == 0)
                error = number_request(h, request, *ret_host);
        return error == 0 ? learn_blocks(h, request, *ret_host) : error;
}

/* --- the run --- */

/* The hits of a request, and its traffic with the shared tier, in blocks. `local`: hits in the
 * host's cache; `hits`: all hits. */
struct plan {
        size_t local, hits, reads, writes;
        uint8_t *use; /* by block of the request: whether the block is to be in the shared tier
                         afterwards */
};

static void make_plan(const struct fleet *f, const struct simulated_cache *own,
                      const struct simulated_cache *shared, const uint32_t *own_blocks,
                      const uint32_t *blocks, size_t n, struct plan *p)
{
        p->local = p->reads = p->writes = 0;
        while (p->local < n && simulated_cache_has(own, own_blocks[p->local]))
                p->local++;
        p->hits = p->local;
        if (!shared)
                return;
        for (; p->hits < n; p->hits++)
                if (!simulated_cache_has(own, own_blocks[p->hits])) {
                        if (!simulated_cache_has(shared, blocks[p->hits]))
                                break;
                        p->reads++;
                }
        for (size_t i = 0; i < n; i++) {
                bool is_there = simulated_cache_has(shared, blocks[i]), is_hit = i < p->hits;
                bool is_wanted = f->write == FLEET_WRITE_REUSED ? is_hit
                                 : f->write == FLEET_WRITE_ALL  ? !is_hit
                                                                : false;

                p->use[i] = is_there || is_wanted;
                p->writes += is_wanted && !is_there;
        }
}

static void use_shared(struct simulated_cache *shared, const struct plan *p, uint32_t number,
                       const uint32_t *blocks, size_t n)
{
        if (p->reads == 0 && p->writes == 0)
                return;
        simulated_cache_begin(shared, number, blocks, n);
        for (size_t i = MIN(n, (size_t)shared->capacity); i-- > 0;)
                if (p->use[i])
                        simulated_cache_use(shared, blocks[i], EVICT_PLACE_UNKNOWN);
}

/* The largest number of blocks read from the shared tier within a window. */
struct busiest {
        uint64_t window, blocks, most;
};

/* Adds reads. A timestamp before the current window counts towards the current window. */
static void busiest_add(struct busiest *b, uint64_t ms, uint64_t blocks)
{
        if (ms / FLEET_WINDOW_MS > b->window)
                *b = (struct busiest){ .window = ms / FLEET_WINDOW_MS, .most = b->most };
        b->blocks += blocks;
        b->most = MAX(b->most, b->blocks);
}

/* Plays the workload on the hosts. Returns 0 or -ENOMEM. */
static int play(const struct fleet *f, struct hosts *hosts, struct simulated_cache *shared,
                const uint8_t *ends, struct plan *p, struct fleet_result *ret)
{
        const struct workload *w = f->simulation->workload;
        const struct simulated_hint final = { .kind = SIMULATED_HINT_FINAL };
        struct busiest busiest = { 0 };
        uint64_t begin_ms = w->n_requests > 0 ? w->requests[0].timestamp_ms : 0;

        for (size_t i = 0; i < w->n_requests; i++) {
                const struct workload_request *r = &w->requests[i];
                const uint32_t *blocks = &f->simulation->blocks[r->first_id];
                const uint32_t *own = &hosts->own[r->first_id];
                uint32_t number = (uint32_t)i + 1, host;
                size_t expected;

                if (hosts_route(hosts, i, &host, &expected) < 0)
                        return -ENOMEM;
                make_plan(f, &hosts->hosts[host].cache, shared, own, blocks, r->n_ids, p);
                ret->blocks_asked += r->n_ids;
                ret->blocks_hit_local += p->local;
                ret->blocks_hit += p->hits;
                ret->blocks_read += p->reads;
                ret->loads += p->reads > 0;
                ret->blocks_expected += expected;
                ret->blocks_stale += expected - MIN(expected, p->local);
                hosts->hosts[host].computed += r->n_ids - p->hits;
                busiest_add(&busiest, r->timestamp_ms - MIN(r->timestamp_ms, begin_ms), p->reads);
                simulated_cache_play(&hosts->hosts[host].cache, number, own, r->n_ids,
                                     f->simulation->times_ns[i], ends && ends[i] ? &final : NULL);
                if (shared)
                        use_shared(shared, p, number, blocks, r->n_ids);
        }
        ret->busiest_read = busiest.most;
        return hosts->error;
}

static void sum_up(const struct hosts *hosts, const struct simulated_cache *shared,
                   struct fleet_result *ret)
{
        for (uint32_t h = 0; h < hosts->n; h++) {
                ret->touches += hosts->hosts[h].cache.touches;
                ret->most_computed = MAX(ret->most_computed, hosts->hosts[h].computed);
        }
        if (shared) {
                ret->touches += shared->touches;
                ret->blocks_written = shared->writes;
                ret->evictions = shared->evictions;
                ret->blocks_stored = shared->writes - shared->evictions;
        }
}

static size_t longest_request(const struct workload *w)
{
        size_t longest = 1;

        for (size_t i = 0; i < w->n_requests; i++)
                longest = MAX(longest, w->requests[i].n_ids);
        return longest;
}

int fleet_run(const struct fleet *f, uint32_t n_hosts, struct fleet_result *ret)
{
        const struct simulation *s = f->simulation;
        _cleanup_(hosts_fini) struct hosts hosts = { 0 };
        _cleanup_(simulated_cache_fini) struct simulated_cache shared = { 0 };
        _cleanup_(freep) uint8_t *use = malloc(longest_request(s->workload));
        _cleanup_(freep) uint8_t *ends = NULL;
        struct plan plan = { .use = use };
        double start = simulation_cpu_seconds();
        int r;

        *ret = (struct fleet_result){ 0 };
        if (n_hosts == 0 || n_hosts > FLEET_MAX_HOSTS || f->capacity == 0)
                return -EINVAL;
        if (!use || simulation_choose_ends(s, &ends) < 0)
                return -ENOMEM;
        r = hosts_init(&hosts, f, n_hosts);
        if (r == 0 && f->shared > 0)
                r = simulated_cache_init(&shared, "lru", f->shared, s->n_blocks);
        if (r == 0)
                r = play(f, &hosts, f->shared > 0 ? &shared : NULL, ends, &plan, ret);
        if (r < 0)
                return r;
        sum_up(&hosts, f->shared > 0 ? &shared : NULL, ret);
        ret->seconds = simulation_cpu_seconds() - start;
        return 0;
}
