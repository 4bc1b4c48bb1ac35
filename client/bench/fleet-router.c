/* SPDX-License-Identifier: Apache-2.0 */
/* Implements fleet-router.h. The router keeps for each block the set of hosts that are known to
 * have it. A prefix is known to be on the hosts in the intersection of its blocks' sets, so one
 * pass over a request finds the known prefix of every host. */
#include "fleet-router.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"

struct event {
        uint64_t published_ns;
        uint32_t block;
        uint32_t host : 31;
        uint32_t is_cached : 1;
};

struct sent {
        uint64_t at_ns;
        uint32_t host;
        uint32_t blocks; /* number of blocks that the host had to compute, as far as the router knew
                          */
};

/* A queue in one array: the entries from `first` to `end`. */
struct queue {
        void *entries;
        size_t first, end, room;
};

struct router {
        uint32_t hosts, words; /* number of hosts; number of 64-bit words of a set of hosts */
        uint64_t lag_ns;
        uint64_t *holders;  /* by block: the set of hosts that are known to have it */
        uint64_t *alive;    /* scratch: the hosts that have the whole prefix so far */
        uint32_t *known;    /* scratch, by host: length of the known prefix */
        uint64_t *load;     /* by host: blocks sent to compute within the window */
        uint64_t *requests; /* by host: number of its requests so far */
        struct queue events, sent;
};

int router_new(struct router **ret, uint32_t hosts, uint32_t n_blocks, uint64_t lag_ns)
{
        struct router *r = calloc(1, sizeof(*r));

        if (!r)
                return -ENOMEM;
        r->hosts = hosts;
        r->words = (hosts + 63) / 64;
        r->lag_ns = lag_ns;
        r->holders = calloc((size_t)MAX(n_blocks, 1U) * r->words, sizeof(*r->holders));
        r->alive = calloc(r->words, sizeof(*r->alive));
        r->known = calloc(hosts, sizeof(*r->known));
        r->load = calloc(hosts, sizeof(*r->load));
        r->requests = calloc(hosts, sizeof(*r->requests));
        if (!r->holders || !r->alive || !r->known || !r->load || !r->requests) {
                router_free(r);
                return -ENOMEM;
        }
        *ret = r;
        return 0;
}

struct router *router_free(struct router *r)
{
        if (!r)
                return NULL;
        free(r->holders);
        free(r->alive);
        free(r->known);
        free(r->load);
        free(r->requests);
        free(r->events.entries);
        free(r->sent.entries);
        free(r);
        return NULL;
}

/* Appends room for an entry of `bytes`. Returns NULL if there is no memory. */
static void *queue_append(struct queue *q, size_t bytes)
{
        if (q->first > q->room / 2) {
                memmove(q->entries, (char *)q->entries + q->first * bytes,
                        (q->end - q->first) * bytes);
                q->end -= q->first;
                q->first = 0;
        }
        if (q->end == q->room) {
                size_t room = MAX(2 * q->room, (size_t)1024);
                void *entries = realloc(q->entries, room * bytes);

                if (!entries)
                        return NULL;
                q->entries = entries;
                q->room = room;
        }
        return (char *)q->entries + q->end++ * bytes;
}

int router_publish(struct router *r, uint32_t host, uint32_t block, bool is_cached, uint64_t now_ns)
{
        struct event *event = queue_append(&r->events, sizeof(*event));

        if (!event)
                return -ENOMEM;
        *event = (struct event){ now_ns, block, host & INT32_MAX, is_cached };
        return 0;
}

/* Applies the events that have arrived. Compares the lag with the difference of the times,
 * because the sum of a time and the lag may overflow. */
static void receive(struct router *r, uint64_t now_ns)
{
        struct queue *q = &r->events;

        for (; q->first < q->end; q->first++) {
                const struct event *e = &((struct event *)q->entries)[q->first];
                uint64_t *set = &r->holders[(size_t)e->block * r->words + e->host / 64];
                uint64_t bit = UINT64_C(1) << e->host % 64;

                if (now_ns < e->published_ns || now_ns - e->published_ns < r->lag_ns)
                        return;
                *set = e->is_cached ? *set | bit : *set & ~bit;
        }
}

static void forget_sent(struct router *r, uint64_t now_ns)
{
        struct queue *q = &r->sent;

        for (; q->first < q->end; q->first++) {
                const struct sent *s = &((struct sent *)q->entries)[q->first];

                if (now_ns < s->at_ns || now_ns - s->at_ns < ROUTER_WINDOW_S * UINT64_C(1000000000))
                        return;
                r->load[s->host] -= s->blocks;
        }
}

/* Computes the length of the known prefix of every host. */
static void find_known(struct router *r, const uint32_t *blocks, size_t n)
{
        memset(r->known, 0, r->hosts * sizeof(*r->known));
        memset(r->alive, 0xff, r->words * sizeof(*r->alive));
        for (size_t depth = 0; depth < n; depth++) {
                const uint64_t *set = &r->holders[(size_t)blocks[depth] * r->words];
                bool any = false;

                for (uint32_t w = 0; w < r->words; w++) {
                        uint64_t left = r->alive[w] & set[w];

                        r->alive[w] = left;
                        any |= left != 0;
                        for (; left != 0; left &= left - 1)
                                r->known[w * 64 + (uint32_t)__builtin_ctzll(left)]++;
                }
                if (!any)
                        return;
        }
}

static uint64_t cost_of(const struct router *r, uint32_t host, size_t n)
{
        return ROUTER_WEIGHT * (uint64_t)(n - r->known[host]) + r->load[host];
}

int router_choose(struct router *r, const uint32_t *blocks, size_t n, uint64_t now_ns,
                  uint32_t *ret_host, size_t *ret_expected)
{
        struct sent *sent;
        uint32_t best = 0;

        receive(r, now_ns);
        forget_sent(r, now_ns);
        find_known(r, blocks, n);
        for (uint32_t h = 1; h < r->hosts; h++) {
                uint64_t cost = cost_of(r, h, n), least = cost_of(r, best, n);

                if (cost < least || (cost == least && r->requests[h] < r->requests[best]))
                        best = h;
        }
        sent = queue_append(&r->sent, sizeof(*sent));
        if (!sent)
                return -ENOMEM;
        *sent = (struct sent){ now_ns, best, (uint32_t)(n - r->known[best]) };
        r->load[best] += sent->blocks;
        r->requests[best]++;
        *ret_host = best;
        *ret_expected = r->known[best];
        return 0;
}
