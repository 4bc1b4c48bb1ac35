/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for room: when a waiting request is admitted, and when its wait ends; when a wait for the
 * shared tier ends; and what the cache does each iteration. Loop thread.
 *
 * Each user has a queue; cache.h says how users share the cache. A put waits when the pool has no
 * slot for it, or its user has used up its share of the unwritten bytes (cache_over_budget()); a
 * get waits when the pool has no slot. A wait ends when there is room, at the request's deadline,
 * or when its client cancels it or ends. At the deadline the answer is BUSY, except that the chunk
 * of an accepted put that waited for the disk stays in the pool (postponed.c). A request that has
 * found no room for HEAD_OF_LINE_MS no longer delays the requests behind it.
 *
 * Failures: without memory for its deadline, a request that would wait is BUSY. */
#include "cache/internal.h"

#include "base/clock.h"
#include "checked.h"

enum {
        /* The first request of a queue is served first, so that small requests do not starve a
         * large one. If the request has found no room for this time, because leases occupy the
         * room, it no longer delays the requests behind it. */
        HEAD_OF_LINE_MS = 100,
        STEPS = 1024, /* waiters tried per iteration and kind of request, and deadlines visited per
                         iteration */
};
#define HEAD_OF_LINE_NS (HEAD_OF_LINE_MS * UINT64_C(1000000))
#define TICK_NS         (UINT64_C(1) << 21) /* ns by which a wait may end after its deadline */

/* Ends the wait of a request whose deadline has passed. */
static void on_deadline(struct deadline *d, uint64_t now_ns);

/* Notes that the request waits until its deadline. Deadlines are rounded up to ticks, so that those
 * of one tick wake the loop once. Returns 0 or -ENOMEM. */
static int note_wait(struct cache *c, struct cache_request *req)
{
        uint64_t at_ns = MIN(MAX(req->deadline_ns, req->waits_since_ns), UINT64_MAX - TICK_NS);
        int r;

        req->cache = c;
        req->deadline.expire = on_deadline;
        r = deadlines_add(&c->deadlines, &req->deadline, (at_ns / TICK_NS + 1) * TICK_NS);
        if (r == 0 && req->owner)
                list_append(req->owner, &req->owned);
        return r;
}

/* Counts a request as waiting for room; the caller queues it. Returns 0 or -ENOMEM. */
static int note_waiting(struct cache *c, struct cache_request *req, struct cache_user *u)
{
        int r = note_wait(c, req);

        if (r == 0) {
                req->waits_as = u;
                c->n_waiting[req->kind]++;
        }
        return r;
}

int cache_wait_for_remote(struct cache *c, struct cache_request *req)
{
        int r;

        req->waits_since_ns = clock_mono_ns();
        r = note_wait(c, req);
        if (r == 0)
                cache_set_waiting(req, WAITING_REMOTE);
        return r;
}

void cache_stop_waiting_remote(struct cache *c, struct cache_request *req)
{
        cache_set_waiting(req, WAITING_NOT);
        list_unlink(&req->owned);
        deadlines_remove(&c->deadlines, &req->deadline);
}

/* Removes a request from the user's queue. The caller decides how it continues. */
static void stop_waiting(struct cache *c, struct cache_request *req)
{
        struct cache_user *u = req->waits_as;

        req->waits_as = NULL;
        turns_remove(&u->waits[req->kind], &req->node);
        list_unlink(&req->owned);
        deadlines_remove(&c->deadlines, &req->deadline);
        c->n_waiting[req->kind]--;
        cache_user_count(c, u);
        cache_user_unref(u);
}

void cache_wait_for_room(struct cache *c, struct cache_request *req)
{
        struct cache_user *u = c->stopping || req->nowait ? NULL : cache_user_get(c, req->user);

        if (!u) {
                cache_finish(c, req, c->stopping ? CACHE_CANCELLED : CACHE_BUSY);
                return;
        }
        req->waits_since_ns = clock_mono_ns();
        if (note_waiting(c, req, u) < 0) {
                cache_user_unref(u);
                cache_finish(c, req, CACHE_BUSY);
                return;
        }
        c->stats.waited++;
        cache_set_waiting(req, WAITING_ROOM);
        if (c->retry_ns == 0)
                c->retry_ns = req->waits_since_ns + HEAD_OF_LINE_NS;
        /* A chunk from the shared tier precedes other puts: it does not wait for the disk, and it
         * occupies a buffer of the shared tier. */
        if (req->fetched)
                turns_add_first(&c->waiting[req->kind], &u->waits[req->kind], &req->node);
        else
                turns_add(&c->waiting[req->kind], &u->waits[req->kind], &req->node);
        cache_user_count(c, u);
}

bool cache_needs_disk(const struct cache_request *req)
{
        return !req->fetched && !(req->ack == CACHE_ACCEPTED && req->nowait);
}

uint64_t cache_share_of(const struct cache *c, const struct cache_user *u)
{
        return c->unwritten_limit / (c->stats.putting_users + !(u && u->putting));
}

/* Returns whether `length` more bytes exceed unwritten_limit, if all users together have `all`
 * bytes and this user has `own`. Any length is permitted if `all` is 0. A user within its `share`
 * may also use the reserve, for the case that other users have reached the limit. */
static bool is_over(const struct cache *c, uint64_t all, uint64_t own, uint64_t share,
                    uint32_t length)
{
        bool within = own == 0 || own + length <= share;

        return all > 0 && all + length > c->unwritten_limit + (within ? c->reserve : 0);
}

bool cache_may_postpone(const struct cache *c, const struct cache_request *req)
{
        const struct cache_user *u = cache_user_find(c, req->user);

        return !cache_needs_disk(req) &&
               !is_over(c, c->copying, u ? u->copying : 0, cache_share_of(c, u), req->length);
}

bool cache_over_budget(struct cache *c, const struct cache_request *req)
{
        struct cache_user *u = cache_user_find(c, req->user);
        uint64_t own = u ? u->unwritten : 0, share = cache_share_of(c, u);
        bool over = is_over(c, c->unwritten, own, share, req->length);

        if (!u || cache_needs_disk(req))
                return over;
        u->postponing = over || (u->postponing && own > share / 2);
        return u->postponing;
}

bool cache_others_first(struct cache *c, const struct cache_request *req)
{
        const struct cache_user *u;
        const struct list_node *list;

        /* admit_waiters() is trying this request */
        if (req->waiting == WAITING_ROOM || c->n_waiting[req->kind] == 0)
                return false;
        if (c->kicked && !req->nowait)
                return true;
        u = cache_user_find(c, req->user);
        if (!u || !turns_item(&u->waits[req->kind]))
                return false;
        list = &u->waits[req->kind].items;
        if (req->kind == KIND_PUT &&
            cache_over_budget(c, container_of(list->next, struct cache_request, node)))
                return cache_needs_disk(req);
        return clock_mono_ns() <
               container_of(list->prev, struct cache_request, node)->waits_since_ns +
                       HEAD_OF_LINE_NS;
}

static void finish_all(struct cache *c, struct list_node *requests, enum cache_status status)
{
        struct list_node *n;

        while ((n = list_pop(requests)))
                cache_finish(c, container_of(n, struct cache_request, node), status);
}

bool cache_cancel(struct cache *c, struct list_node *owner, uint32_t *most)
{
        struct list_node cancelled = LIST_INIT(cancelled);
        bool more;

        for (; *most > 0 && !list_empty(owner); --*most) {
                struct cache_request *req = container_of(owner->next, struct cache_request, owned);

                if (req->waiting == WAITING_TURN)
                        cache_direct_leave(c, req);
                else if (req->waiting == WAITING_FILL)
                        cache_fill_leave(c, req);
                else if (req->waiting == WAITING_REMOTE)
                        cache_remote_leave(c, req);
                else
                        stop_waiting(c, req);
                list_append(&cancelled, &req->node);
        }
        more = !list_empty(owner); /* completing the last request may free the owner */
        finish_all(c, &cancelled, CACHE_CANCELLED);
        return more;
}

/* State of one run of admit_waiters(). */
struct round {
        uint32_t no_room[CACHE_FAILED_TRIES]; /* lengths for which the pool has no room */
        unsigned n_no_room;
        uint64_t now_ns;
};

/* Tries the user's next request. Returns false if the user must wait for the next round. */
static bool admit_next_waiter(struct cache *c, struct cache_user *u, unsigned kind,
                              struct round *round)
{
        struct cache_request *req =
                container_of(turns_item(&u->waits[kind]), struct cache_request, node);
        uint64_t head_until_ns = req->waits_since_ns + HEAD_OF_LINE_NS;
        bool tried = false;

        if (kind == KIND_PUT && cache_over_budget(c, req) && !cache_may_postpone(c, req))
                return false;
        /* A length that found no room in this round is not tried again in the same round. */
        for (unsigned i = 0; i < round->n_no_room && !tried; i++)
                tried = req->length == round->no_room[i];
        if (!tried) {
                uint32_t length;

                stop_waiting(c, req); /* an admitted request may be freed */
                if (kind == KIND_GET ? cache_get_try(c, req) : cache_put_try(c, req))
                        return true;
                length = req->length;
                if (round->n_no_room < CACHE_FAILED_TRIES)
                        round->no_room[round->n_no_room++] = length;
                if (note_waiting(c, req, u) < 0) {
                        cache_finish(c, req, CACHE_BUSY);
                        return true;
                }
                cache_user_ref(u);
        }
        turns_set_aside(&u->waits[kind], &req->node);
        if (round->now_ns >= head_until_ns)
                return true;
        if (c->retry_ns == 0 || head_until_ns < c->retry_ns)
                c->retry_ns = head_until_ns;
        return false;
}

/* Admits the waiting requests that find room; users are served in turn, and the requests of one
 * user in order. */
static void admit_waiters(struct cache *c, unsigned kind, uint64_t now_ns)
{
        struct round round = { .now_ns = now_ns };
        struct turns_member *waits;
        struct turns turns;

        if (turns_is_empty(&c->waiting[kind]))
                return;
        /* Users that begin to wait during this round have their turn in the next one. */
        turns_init(&turns);
        turns_move(&turns, &c->waiting[kind]);
        for (unsigned steps = 0;
             round.n_no_room < CACHE_FAILED_TRIES && steps < STEPS && (waits = turns_next(&turns));
             steps++) {
                struct cache_user *u = container_of(waits, struct cache_user, waits[kind]);

                cache_user_ref(u);
                if (admit_next_waiter(c, u, kind, &round) && turns_item(waits))
                        turns_requeue(&turns, waits);
                else
                        turns_park(&turns, waits);
                cache_user_unref(u);
        }
        /* Users that were served in this round come after the other users in the next one. */
        turns_unpark(&turns);
        turns_move(&c->waiting[kind], &turns);
}

static void on_deadline(struct deadline *d, uint64_t now_ns)
{
        struct cache_request *req = container_of(d, struct cache_request, deadline);
        struct cache *c = req->cache;
        bool is_remote = req->waiting == WAITING_REMOTE;

        if (is_remote) {
                cache_remote_leave(c, req);
                cache_finish(c, req, CACHE_MISS);
                return;
        }
        stop_waiting(c, req);
        if (req->kind == KIND_PUT && req->ack == CACHE_ACCEPTED) {
                req->nowait = true; /* the put no longer waits for the disk, and needs only room in
                                     * the pool */
                if (cache_put_try(c, req))
                        return;
        }
        cache_finish(c, req, CACHE_BUSY);
}

static bool may_submit(const struct cache *c)
{
        /* A write that the store refused may have waited for a write of another cache. */
        return cache_has_writes(c) && (c->retry_now || store_pending(c->params.store) == 0 ||
                                       store_pending(c->params.store) != c->retry_pending);
}

/* Returns the earlier of two times; 0 means no time. */
static uint64_t earlier(uint64_t a, uint64_t b)
{
        return b == 0 || (a != 0 && a < b) ? a : b;
}

uint64_t cache_iterate(struct cache *c, uint64_t now_ns)
{
        uint64_t next_ns;

        pool_note_time(c->params.pool, now_ns);
        c->now_ns = now_ns;
        returns_pass(&c->returns, now_ns);
        cache_complete_finished(c);
        if (may_submit(c)) {
                c->retry_now = false;
                c->retry_pending = store_pending(c->params.store);
                cache_submit_writes(c);
        }
        cache_submit_reads(c);
        cache_catch_up(c);
        c->kicked |= pool_has_given_up(c->params.pool);
        if (c->kicked || (c->retry_ns != 0 && c->retry_ns <= now_ns)) {
                c->kicked = false;
                c->retry_ns = 0;
                admit_waiters(c, KIND_GET, now_ns);
                admit_waiters(c, KIND_PUT, now_ns);
                c->kicked |= pool_has_given_up(c->params.pool);
        }
        sets_iterate(c->sets);
        next_ns = deadlines_next(&c->deadlines);
        if (next_ns != 0 && next_ns <= now_ns) {
                deadlines_run(&c->deadlines, now_ns, STEPS);
                next_ns = deadlines_next(&c->deadlines);
        }
        next_ns = earlier(next_ns, c->retry_ns);
        return c->prefetch ? earlier(next_ns, prefetch_iterate(c->prefetch, now_ns)) : next_ns;
}

bool cache_has_work(const struct cache *c)
{
        return !list_empty(&c->finished) || !list_empty(&c->settled) ||
               (c->kicked && c->n_waiting[KIND_GET] + c->n_waiting[KIND_PUT] > 0) ||
               may_submit(c) || cache_may_catch_up(c) || cache_has_due_reads(c) ||
               pool_is_sweeping(c->params.pool) || pool_is_emptying(c->params.pool) ||
               !list_empty(&c->counting) || sets_has_work(c->sets);
}

void cache_stop(struct cache *c)
{
        struct list_node cancelled = LIST_INIT(cancelled);
        struct turns_member *waits;

        c->stopping = true;
        if (c->prefetch)
                prefetch_stop(c->prefetch);
        for (unsigned kind = 0; kind < KINDS; kind++)
                while ((waits = turns_next(&c->waiting[kind]))) {
                        struct cache_request *req =
                                container_of(turns_item(waits), struct cache_request, node);

                        stop_waiting(c, req);
                        list_append(&cancelled, &req->node);
                }
        finish_all(c, &cancelled, CACHE_CANCELLED);
        cache_remote_stop(c);
}
