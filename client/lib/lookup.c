/* SPDX-License-Identifier: Apache-2.0 */
/* Answers lookups from the tenant's lookup index; see lookup.h.
 *
 * Runs in the handle's thread. Owns the mapping.
 *
 * The first request that could be answered here goes to the daemon, followed by a LOOKUP; once its
 * reply has arrived, later requests are answered from the index. Keys are hashed and their buckets
 * prefetched one window ahead of the search, so that no key waits for the memory of another.
 *
 * The whole request goes to the daemon if the index cannot answer it: no index is mapped, its
 * clock has stopped, it was superseded, it has no definite answer for a key, or a key is absent
 * and the session has ended. A malicious daemon can misreport stored keys in the index, as it
 * can in its replies; the size that the daemon states is checked once against the file, which is
 * sealed. The index does not cover the shared tier: a request that includes it goes to the
 * daemon, unless it is a MATCH of which all keys are in the index. */
#include "lib/lookup.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "lib/message.h"
#include "lib/results.h"
#include "lib/sealed.h"
#include "lib/window.h"

enum {
        /* ms by which the index's clock may be ahead of this process's coarse clock */
        AHEAD_MS = 100,
        AGAIN_MS = 100,     /* minimum time between two LOOKUPs, ms */
        REFUSED_MS = 10000, /* minimum time between a LOOKUP that failed and the next, ms */
        ALIVE_NS = 1000000, /* ns for which the result of a check that the session is up remains
                               valid */
};

/* Returns milliseconds of the coarse monotonic clock, without a system call. */
static int64_t now_ms(void)
{
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
        return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

void lookup_fini(struct lookup_serial *l)
{
        if (l->base)
                munmap((void *)l->base, l->bytes);
        l->base = NULL;
        l->bytes = 0;
}

/* --- requesting the index --- */

void lookup_want(struct kvcache *kv)
{
        struct lookup_serial *l = &kv->conn->lookup;
        struct message *m;

        if (!(kv->conn->features & WIRE_FEATURE_LOOKUP) || (kv->flags & KVCACHE_NO_LOOKUP) ||
            l->base || l->asking || now_ms() < l->not_before)
                return;
        m = message_new(WIRE_LOOKUP, sizeof(struct wire_hdr));
        if (!m)
                return;
        if ((kv->conn->features & WIRE_FEATURE_TALLY) && !kv->conn->tally.counts)
                ((struct wire_hdr *)m->data)->flags = WIRE_F_TALLY;
        l->asking = true;
        message_queue(kv, m);
}

/* Maps the index. Returns false if the file is not an index of `bytes` bytes. */
static bool map(struct lookup_serial *l, int fd, uint64_t bytes)
{
        void *p = sealed_map(fd, bytes, SEALED_READ_ONLY, PROT_READ);

        if (!p)
                return false;
        if (!lookup_view_init(&l->view, p, bytes)) {
                munmap(p, bytes);
                return false;
        }
        l->base = p;
        l->bytes = bytes;
        return true;
}

void lookup_take(struct kvcache *kv, const struct wire_reply *reply, int fd, int tally_fd)
{
        struct lookup_serial *l = &kv->conn->lookup;

        l->asking = false;
        if (tally_fd >= 0 && !kv->conn->tally.counts)
                (void)tally_map(&kv->conn->tally,
                                tally_fd); /* on failure, lookups are not counted */
        if (l->base)
                return;
        if (reply->status != WIRE_OK || !map(l, fd, reply->value64)) {
                l->not_before = now_ms() + REFUSED_MS;
                return;
        }
        l->not_before = now_ms() + AGAIN_MS;
        l->serial = ++kv->lookups_mapped;
}

/* --- answering from the index --- */

static bool is_live(struct lookup_serial *l)
{
        int64_t age;

        if (lookup_state(&l->view) != LOOKUP_LIVE) {
                lookup_fini(l); /* a new index has superseded this one, or will */
                return false;
        }
        age = (int64_t)((uint64_t)now_ms() - lookup_clock_ms(&l->view));
        return age >= -AHEAD_MS && age <= LOOKUP_STALE_MS;
}

/* The clock of a killed daemon is trusted for a while, and its successor may store chunks that this
 * index lacks. An absent key is therefore believed only while the session is up, which is polled at
 * most once a millisecond: no daemon can die, be succeeded and accept a put at the successor in
 * that time. */
bool lookup_session_is_up(struct kvcache *kv)
{
        struct lookup_serial *l = &kv->conn->lookup;
        struct pollfd p = { .fd = kv->conn->sock, .events = POLLRDHUP };
        int64_t now = handle_now_ns();

        if (now - l->alive_ns < ALIVE_NS)
                return true;
        if (poll(&p, 1, 0) != 0)
                return false;
        l->alive_ns = now;
        return true;
}

/* An EVICT that was submitted before the lookup takes effect first, and the index may not reflect
 * it yet. */
bool lookup_is_overtaking(const struct kvcache *kv)
{
        const struct message *m;
        unsigned left = kv->n_inflight;

        for (unsigned i = 0; left > 0 && i < WIRE_MAX_INFLIGHT; i++) {
                if (!kv->inflight[i])
                        continue;
                left--;
                if (kv->inflight[i]->op == WIRE_EVICT)
                        return true;
        }
        TAILQ_FOREACH(m, &kv->queue, link)
        if (m->op == WIRE_EVICT)
                return true;
        return false;
}

/* Returns a namespace that is open in this session, with its secret for this index, or NULL. */
static const struct namespace *namespace_of(struct kvcache *kv, uint32_t namespace_handle)
{
        const struct lookup_serial *l = &kv->conn->lookup;
        struct namespace *ns;

        if (namespace_handle == 0 || namespace_handle > kv->n_namespaces)
                return NULL;
        ns = &kv->namespaces[namespace_handle - 1];
        if (ns->session != kv->sessions)
                return NULL;
        if (ns->lookup_serial != l->serial) {
                lookup_namespace_secret(&l->view.secret, ns->name, strlen(ns->name),
                                        &ns->lookup_secret);
                ns->lookup_serial = l->serial;
        }
        return ns;
}

/* Counts the keys before the first absent one. Most keys are found in their first bucket. The
 * second bucket is prefetched only for the others and searched one window later, and likewise the
 * stash. Returns false if the index cannot answer. */
static bool match(const struct look *look, size_t *ret_run)
{
        enum { STAGES = 4 };
        const struct window_ways *ways = window_best();
        struct window windows[STAGES];

        for (unsigned i = 0; i < STAGES; i++)
                windows[i].n = windows[i].absent = 0;
        for (size_t step = 0; step * WINDOW_KEYS < look->count + (STAGES - 1) * WINDOW_KEYS;
             step++) {
                struct window *hashed = &windows[step % STAGES],
                              *first = &windows[(step + 3) % STAGES],
                              *second = &windows[(step + 2) % STAGES],
                              *stash = &windows[(step + 1) % STAGES];

                if (!ways->hash(look, step * WINDOW_KEYS, hashed))
                        return false;
                for (; stash->absent; stash->absent &= stash->absent - 1) {
                        unsigned i = (unsigned)__builtin_ctz(stash->absent);
                        unsigned found = lookup_find_surely(look->view, stash->hashes[i],
                                                            lookup_removals(look->view));

                        if (found & WIRE_TIER_ALL)
                                continue;
                        *ret_run = stash->first + i;
                        return found == 0;
                }
                ways->find_second(look, second);
                for (unsigned left = second->absent; left; left &= left - 1)
                        lookup_warm_stash(look->view, second->hashes[__builtin_ctz(left)]);
                ways->find_first(look, first);
        }
        *ret_run = look->count;
        return true;
}

/* Looks up all tiers of all keys, and counts the keys that are in any. Returns false if the index
 * has no definite answer for a key, or a key is the root. */
static bool exists(const struct look *look, const struct results *results, size_t *ret_present)
{
        const struct window_ways *ways = window_best();
        struct window windows[2];
        size_t present = 0;

        if (!ways->hash(look, 0, &windows[0]))
                return false;
        for (size_t step = 0; step * WINDOW_KEYS < look->count; step++) {
                struct window *now = &windows[step % 2];

                for (size_t i = 0; i < now->n; i++)
                        lookup_warm_second(look->view, now->hashes[i]);
                if (!ways->hash(look, (step + 1) * WINDOW_KEYS, &windows[(step + 1) % 2]))
                        return false;
                for (size_t i = 0; i < now->n; i++) {
                        unsigned found = lookup_find_surely(look->view, now->hashes[i],
                                                            lookup_removals(look->view));
                        unsigned tiers = found & WIRE_TIER_ALL;

                        if ((found & LOOKUP_UNKNOWN) && tiers != WIRE_TIER_ALL)
                                return false;
                        present += tiers != 0;
                        results_set(results, now->first + i,
                                    &(struct kvcache_result){
                                            .status = tiers ? KVCACHE_OK : KVCACHE_MISS,
                                            .tiers = tiers,
                                    });
                }
        }
        *ret_present = present;
        return true;
}

bool lookup_answer(struct kvcache *kv, const struct kvcache_request *u, uint64_t *ret_value)
{
        bool is_match = u->op == KVCACHE_OP_MATCH;
        const struct results results = { u->results, u->result_size };
        const struct namespace *ns;
        struct look look;
        size_t present = 0; /* MATCH: keys in the leading run */
        bool is_remote = kv->conn && (u->flags & KVCACHE_REMOTE) &&
                         (kv->conn->features & WIRE_FEATURE_REMOTE);

        if ((is_remote && !is_match) || (!is_match && u->op != KVCACHE_OP_EXISTS) ||
            u->count == 0 || !kv->conn || !kv->conn->lookup.base || !is_live(&kv->conn->lookup) ||
            lookup_is_overtaking(kv))
                return false;
        /* The daemon answers each message of a MATCH separately, so that the results after the
         * first absent key differ. */
        if (is_match && u->results && u->count > kv->conn->max_keys)
                return false;
        ns = namespace_of(kv, u->namespace_handle);
        if (!ns)
                return false;
        look = (struct look){
                .view = &kv->conn->lookup.view,
                .secret = &ns->lookup_secret,
                .keys = u->entries ? u->entries->key.bytes : u->keys->bytes,
                .stride = u->entries ? u->entry_size : sizeof(*u->keys),
                .count = u->count,
        };
        if (!(is_match ? match(&look, &present) : exists(&look, &results, &present)) ||
            (present < u->count && (is_remote || !lookup_session_is_up(kv))))
                return false;
        for (size_t i = 0; is_match && results.base && i < u->count; i++)
                results_set(&results, i,
                            &(struct kvcache_result){
                                    .status = i < present ? KVCACHE_OK : KVCACHE_MISS,
                            });
        kv->lookups_local += u->count;
        tally_add(&kv->conn->tally, ns->id, present, u->count - present);
        *ret_value = is_match ? present : 0;
        return true;
}

int kvcache_count_declined(struct kvcache *kv, uint32_t namespace_handle, uint64_t keys)
{
        const struct namespace *ns;
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        if (namespace_handle == 0 || namespace_handle > kv->n_namespaces)
                return handle_fail(kv, -EINVAL,
                                   "%u is not a namespace of this handle: open one with "
                                   "kvcache_namespace_open()",
                                   namespace_handle);
        ns = kv->conn ? namespace_of(kv, namespace_handle) : NULL;
        r = !ns || !tally_decline(&kv->conn->tally, ns->id, keys);
        handle_leave(kv);
        return r;
}
