/* SPDX-License-Identifier: Apache-2.0 */
/* Determines how far chains reach on the shared tier, from cached knowledge and searches for the
 * rest.
 *
 * A search probes one key after another by reading headers; all searches together are limited to
 * probe_rate. The keys between the probed ones are inferred from their order. An inference may be
 * wrong: then a get misses, and while that is remembered, matches examine every key. Loop
 * thread. */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/search.h"
#include "checked.h"
#include "remote/internal.h"
#include "remote/search.h"

#define PROBE_BURST_NS UINT64_C(100000000)

struct search_under_way {
        struct list_node node;
        struct remote *remote;
        uint32_t namespace_id;
        uint64_t epoch;
        uint64_t last; /* hash of the last key of the chain, by which the search is found again */
        struct search search;
        uint32_t probed;
        struct operation *probe; /* operation in flight; NULL: the next probe may be sent */
};

static void end(struct search_under_way *s)
{
        struct remote *r = s->remote;

        if (s->probe)
                s->probe->owner = NULL;
        list_unlink(&s->node);
        r->n_searches--;
        search_fini(&s->search);
        free(s);
}

void matches_cancel(struct remote *r, const struct namespace *ns)
{
        list_for_each_safe (&r->searches, node) {
                struct search_under_way *s = container_of(node, struct search_under_way, node);

                if (!ns || s->namespace_id == ns->id)
                        end(s);
        }
}

/* --- probes --- */

static void conclude(struct search_under_way *s, const struct namespace *ns, uint64_t now_ns)
{
        struct remote *r = s->remote;

        for (uint32_t i = 0; i < s->search.n; i++) {
                bool there = i < s->search.low;

                presence_set(&r->presence, remote_namespace_hash(ns, s->search.hashes[i]),
                             there ? PRESENCE_THERE_BY_ORDER : PRESENCE_ABSENT_BY_ORDER,
                             there ? r->params.presence_ns : r->params.absence_ns, now_ns);
        }
        r->stats.searches++;
        end(s);
}

static void on_probed(struct operation *o, int result)
{
        struct search_under_way *s = o->owner;
        struct remote *r = o->remote;
        struct namespace *ns = s ? remote_namespace_find(r, s->namespace_id) : NULL;
        enum remote_rejection why = REMOTE_ACCEPTED;
        uint64_t now_ns = clock_mono_ns();
        struct remote_object object;
        bool there;
        uint32_t next;

        if (result == 0) {
                why = o->op.transferred < REMOTE_HEADER_BYTES
                              ? REMOTE_BAD_HEADER
                              : remote_object_read(o->buffer.bytes, o->op.size, &o->want, &object);
                if (why != REMOTE_ACCEPTED)
                        remote_reject(r, why, o->op.name);
        }
        there = result == 0 && why == REMOTE_ACCEPTED;
        if (result == 0 || result == -ENOENT)
                presence_set(&r->presence, o->hash, there ? PRESENCE_THERE : PRESENCE_ABSENT,
                             there ? r->params.presence_ns : r->params.absence_ns, now_ns);
        if (!s)
                return;
        s->probe = NULL;
        if ((result != 0 && result != -ENOENT) || !ns || ns->epoch != s->epoch) {
                end(s);
                return;
        }
        if (there)
                remote_namespace_saw(ns, object.length);
        search_answer(&s->search, s->probed, there);
        if (!search_next(&s->search, &next))
                conclude(s, ns, now_ns);
}

/* Sends the next probe of a search, or ends the search if its namespace cannot be used. Returns
 * false if no probe can be sent now. */
static bool probe(struct search_under_way *s, uint64_t now_ns)
{
        struct remote *r = s->remote;
        const struct namespace *ns = remote_namespace_find(r, s->namespace_id);
        struct operation *o;

        if (!ns || ns->epoch != s->epoch || !remote_namespace_is_usable(ns, now_ns) ||
            r->breaker.state != REMOTE_CLOSED) {
                end(s);
                return true;
        }
        if (operation_new(r, OPERATION_PROBE, NULL, REMOTE_HEADER_BYTES, &o) < 0)
                return false;
        rate_take(&r->probe_rate, 1, r->params.probe_rate, now_ns);
        r->stats.probes++;
        (void)search_next(&s->search, &s->probed); /* cannot fail, or the search would have ended */
        s->probe = o;
        o->owner = s;
        o->done = on_probed;
        o->hash = remote_namespace_hash(ns, s->search.hashes[s->probed]);
        o->want = (struct remote_object){
                .key = s->search.keys[s->probed],
                .identity = ns->identity,
                .generation = ns->generation,
        };
        remote_object_name(r->prefix, ns->generation, &ns->identity, &o->want.key, o->op.name);
        operation_submit(o, BACKEND_READ);
        return true;
}

void matches_iterate(struct remote *r, uint64_t now_ns)
{
        list_for_each_safe (&r->searches, node) {
                struct search_under_way *s = container_of(node, struct search_under_way, node);

                if (s->probe)
                        continue;
                if (rate_next(&r->probe_rate, PROBE_BURST_NS) > now_ns)
                        return;
                list_unlink(&s->node); /* moves the search behind the others, so that all make
                                        * progress */
                list_append(&r->searches, &s->node);
                if (!probe(s, now_ns))
                        return;
                if (node_next == &r->searches)
                        return;
        }
}

uint64_t matches_next(const struct remote *r)
{
        list_for_each (&r->searches, node)
                if (!container_of(node, struct search_under_way, node)->probe)
                        return MAX(rate_next(&r->probe_rate, PROBE_BURST_NS), UINT64_C(1));
        return 0;
}

/* --- cached presence of keys --- */

static bool is_under_way(const struct remote *r, uint32_t namespace_id, uint64_t last)
{
        list_for_each (&r->searches, node) {
                const struct search_under_way *s =
                        container_of(node, struct search_under_way, node);

                if (s->namespace_id == namespace_id && s->last == last)
                        return true;
        }
        return false;
}

static void start(struct remote *r, const struct namespace *ns, const struct key *keys,
                  const uint64_t *hashes, uint32_t n, uint32_t stride, uint64_t last)
{
        struct search_under_way *s;

        if (r->n_searches >= SEARCHES_MAX || is_under_way(r, ns->id, last))
                return;
        s = calloc(1, sizeof(*s));
        if (!s || search_init(&s->search, keys, hashes, n, stride) < 0) {
                free(s);
                return;
        }
        s->remote = r;
        s->namespace_id = ns->id;
        s->epoch = ns->epoch;
        s->last = last;
        list_append(&r->searches, &s->node);
        r->n_searches++;
}

static bool is_there(const struct namespace *ns, uint64_t hash, bool unknown_is_there,
                     uint64_t now_ns)
{
        enum presence p =
                presence_get(&ns->remote->presence, remote_namespace_hash(ns, hash), now_ns);

        return unknown_is_there ? !presence_is_absent(p) : presence_is_there(p);
}

/* Returns the number of present keys among the first of `hashes` and every stride-th after it, `n`
 * in all. Assumes that no present key follows an absent one. Unknown keys count as present if
 * `unknown_is_there`, otherwise as absent. */
static uint32_t count_there(const struct namespace *ns, const uint64_t *hashes, uint32_t stride,
                            uint32_t n, bool unknown_is_there, uint64_t now_ns)
{
        return search_first(n, i,
                            is_there(ns, hashes[(size_t)i * stride], unknown_is_there, now_ns));
}

/* Returns the distance between the keys among which a long chain is searched first; a second search
 * then covers the keys between two of them. A power of two, so that the same keys are probed while
 * a chain grows. */
static uint32_t stride_of(uint32_t n)
{
        uint32_t stride = 1;

        while (n / stride > SEARCH_KEYS)
                stride *= 2;
        return stride;
}

static uint32_t first_absent(const struct namespace *ns, const uint64_t *hashes, uint32_t n,
                             uint64_t now_ns)
{
        uint32_t i = 0;

        n = MIN(n, (uint32_t)SEARCH_KEYS); /* later keys are not examined; a get that misses reveals
                                            * an absent one */
        while (i < n && presence_get(&ns->remote->presence, remote_namespace_hash(ns, hashes[i]),
                                     now_ns) != PRESENCE_ABSENT)
                i++;
        return i;
}

uint32_t remote_match(struct remote *r, uint32_t namespace_id, const struct key *keys,
                      const uint64_t *hashes, uint32_t n, bool *ret_known)
{
        const struct namespace *ns = remote_namespace_find(r, namespace_id);
        uint64_t now_ns = clock_mono_ns();
        uint32_t begin = 0, end = n, low = 0;

        *ret_known = true;
        if (!ns || n == 0 || r->stopping || r->breaker.state != REMOTE_CLOSED)
                return 0;
        if (!remote_namespace_is_usable(ns, now_ns)) {
                *ret_known = ns->failed;
                return 0;
        }
        for (uint32_t stride = stride_of(n);; stride = 1) {
                /* Consider the last of every `stride` keys between `begin` and `end`. */
                uint32_t first = begin + stride - 1, all = (end - begin) / stride, high;

                low = count_there(ns, hashes + first, stride, all, false, now_ns);
                high = count_there(ns, hashes + first, stride, all, true, now_ns);
                if (low < high) {
                        *ret_known = false;
                        start(r, ns, keys + first + (size_t)low * stride,
                              hashes + first + (size_t)low * stride, high - low, stride,
                              hashes[n - 1]);
                }
                low = MIN(low, high); /* low may exceed high, because cached entries may contradict
                                       * each other */
                end = low < all ? begin + (low + 1) * stride - 1 : end;
                begin += low * stride;
                if (stride == 1 || !*ret_known)
                        break;
        }
        if (now_ns < r->surprised_until_ns) {
                low = first_absent(ns, hashes, begin, now_ns);
                if (low < MIN(begin, (uint32_t)SEARCH_KEYS)) {
                        *ret_known = true;
                        begin = low;
                }
        }
        return begin;
}

int remote_presence(const struct remote *r, uint32_t namespace_id, uint64_t hash)
{
        const struct namespace *ns = remote_namespace_find(r, namespace_id);
        uint64_t now_ns = clock_mono_ns();
        enum presence p;

        if (!ns || r->breaker.state != REMOTE_CLOSED || !remote_namespace_is_usable(ns, now_ns))
                return -1;
        p = presence_get(&r->presence, remote_namespace_hash(ns, hash), now_ns);
        return presence_is_there(p) ? 1 : presence_is_absent(p) ? 0 : -1;
}
