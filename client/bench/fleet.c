/* SPDX-License-Identifier: Apache-2.0 */
#include "fleet.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "cleanup.h"
#include "simulated-cache.h"

#define NONE UINT32_MAX

/* --- sessions --- */

struct tails {
        uint32_t *session_of; /* by block: the session whose latest request has it as tail */
        uint32_t *tail_of;    /* by session: its tail */
        uint32_t *brought_by; /* by block: the session that used it first */
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

/* Sets the tail of a session: the block before the last, which may be partial. If another session
 * has used that block first, many may share it, and the last block is the tail. */
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

/* --- routing --- */

static uint32_t host_of(const struct fleet *f, size_t request, uint32_t hosts)
{
        uint64_t drawn = ((uint64_t)request + 1) * UINT64_C(0x9e3779b97f4a7c15);

        if (f->route == FLEET_ROUTE_SESSION)
                return f->sessions[request] % hosts;
        drawn = (drawn ^ drawn >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        drawn = (drawn ^ drawn >> 27) * UINT64_C(0x94d049bb133111eb);
        return (uint32_t)((drawn ^ drawn >> 31) % hosts);
}

/* Each host numbers its blocks from 0 on, so that all hosts together need no more memory than the
 * workload has ids. */
struct numbers {
        uint32_t *own;      /* like simulation.blocks, with the host's numbers */
        uint32_t *n_blocks; /* distinct blocks of each host */
        uint32_t *last,
                *current; /* by block: the last host that numbered it, plus one; its number there */
};

static void number_request(struct numbers *n, const struct simulation *s, size_t request,
                           uint32_t host)
{
        const struct workload_request *r = &s->workload->requests[request];

        for (size_t i = r->first_id; i < r->first_id + r->n_ids; i++) {
                uint32_t block = s->blocks[i];

                if (n->last[block] != host + 1) {
                        n->last[block] = host + 1;
                        n->current[block] = n->n_blocks[host]++;
                }
                n->own[i] = n->current[block];
        }
}

/* Numbers the blocks of each host; `by_host` is scratch memory with an entry per request. */
static void number_blocks(struct numbers *n, const struct fleet *f, uint32_t hosts,
                          uint32_t *by_host)
{
        size_t n_requests = f->simulation->workload->n_requests;
        uint32_t first[FLEET_MAX_HOSTS + 1] = { 0 };

        for (size_t i = 0; i < n_requests; i++)
                first[host_of(f, i, hosts) + 1]++;
        for (uint32_t h = 0; h < hosts; h++)
                first[h + 1] += first[h];
        for (size_t i = 0; i < n_requests; i++)
                by_host[first[host_of(f, i, hosts)]++] = (uint32_t)i;
        for (size_t i = 0; i < n_requests; i++)
                number_request(n, f->simulation, by_host[i], host_of(f, by_host[i], hosts));
}

/* --- the run --- */

struct hosts {
        struct simulated_cache *caches;
        uint32_t n;
};

static void hosts_fini(struct hosts *h)
{
        for (uint32_t i = 0; h->caches && i < h->n; i++)
                simulated_cache_fini(&h->caches[i]);
        free(h->caches);
}

/* The hits of a request, and its traffic with the shared tier. */
struct plan {
        size_t local, hits, reads, writes;
        uint8_t *use; /* by block of the request: belongs in the shared tier afterwards */
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

/* Adds reads; a timestamp before the current window counts for it. */
static void busiest_add(struct busiest *b, uint64_t ms, uint64_t blocks)
{
        if (ms / FLEET_WINDOW_MS > b->window)
                *b = (struct busiest){ .window = ms / FLEET_WINDOW_MS, .most = b->most };
        b->blocks += blocks;
        b->most = MAX(b->most, b->blocks);
}

static void play(const struct fleet *f, struct hosts *hosts, struct simulated_cache *shared,
                 const uint32_t *own, const uint8_t *ends, struct plan *p, struct fleet_result *ret)
{
        const struct workload *w = f->simulation->workload;
        const struct simulated_hint final = { .kind = SIMULATED_HINT_FINAL };
        struct busiest busiest = { 0 };
        uint64_t begin_ms = w->n_requests > 0 ? w->requests[0].timestamp_ms : 0;

        for (size_t i = 0; i < w->n_requests; i++) {
                const struct workload_request *r = &w->requests[i];
                const uint32_t *blocks = &f->simulation->blocks[r->first_id];
                struct simulated_cache *cache = &hosts->caches[host_of(f, i, hosts->n)];
                uint32_t number = (uint32_t)i + 1;

                make_plan(f, cache, shared, &own[r->first_id], blocks, r->n_ids, p);
                ret->blocks_asked += r->n_ids;
                ret->blocks_hit_local += p->local;
                ret->blocks_hit += p->hits;
                ret->blocks_read += p->reads;
                ret->loads += p->reads > 0;
                busiest_add(&busiest, r->timestamp_ms - MIN(r->timestamp_ms, begin_ms), p->reads);
                simulated_cache_play(cache, number, &own[r->first_id], r->n_ids,
                                     f->simulation->times_ns[i], ends && ends[i] ? &final : NULL);
                if (shared)
                        use_shared(shared, p, number, blocks, r->n_ids);
        }
        ret->busiest_read = busiest.most;
        for (uint32_t h = 0; h < hosts->n; h++)
                ret->touches += hosts->caches[h].touches;
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
        const struct workload *w = s->workload;
        size_t n_blocks = MAX(s->n_blocks, 1U);
        _cleanup_(hosts_fini) struct hosts hosts = { .n = n_hosts };
        _cleanup_(simulated_cache_fini) struct simulated_cache shared = { 0 };
        _cleanup_(freep) uint32_t *own = malloc(MAX(w->n_ids, (size_t)1) * sizeof(*own));
        _cleanup_(freep) uint32_t *by_host =
                malloc(MAX(w->n_requests, (size_t)1) * sizeof(*by_host));
        _cleanup_(freep) uint32_t *last = calloc(n_blocks, sizeof(*last));
        _cleanup_(freep) uint32_t *current = calloc(n_blocks, sizeof(*current));
        _cleanup_(freep) uint8_t *use = malloc(longest_request(w));
        _cleanup_(freep) uint8_t *ends = NULL;
        uint32_t own_blocks[FLEET_MAX_HOSTS] = { 0 };
        struct plan plan = { .use = use };
        double start = simulation_cpu_seconds();
        int r = 0;

        *ret = (struct fleet_result){ 0 };
        if (n_hosts == 0 || n_hosts > FLEET_MAX_HOSTS || f->capacity == 0)
                return -EINVAL;
        hosts.caches = calloc(n_hosts, sizeof(*hosts.caches));
        if (!hosts.caches || !own || !by_host || !last || !current || !use ||
            simulation_choose_ends(s, &ends) < 0)
                return -ENOMEM;
        number_blocks(&(struct numbers){ own, own_blocks, last, current }, f, n_hosts, by_host);
        for (uint32_t h = 0; r == 0 && h < n_hosts; h++)
                r = simulated_cache_init(&hosts.caches[h], f->policy, f->capacity, own_blocks[h]);
        if (r == 0 && f->shared > 0)
                r = simulated_cache_init(&shared, "lru", f->shared, s->n_blocks);
        if (r < 0)
                return r;
        play(f, &hosts, f->shared > 0 ? &shared : NULL, own, ends, &plan, ret);
        ret->seconds = simulation_cpu_seconds() - start;
        return 0;
}
