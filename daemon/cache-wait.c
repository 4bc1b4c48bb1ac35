/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for room: who is let in when, who gives up; and what the cache does each turn. See
 * cache.c. */
#include "cache-internal.h"

#include "base/clock.h"

enum {
        /* In a wait for room the first of a line goes first, so that a large one is not starved by
         * small ones. But one that has found none for so long, since what it needs is leased, does
         * not hold up who comes behind it any more. */
        PATIENCE_MS = 100,
        LOOKS = 1024, /* of a turn, at those who wait */
};
#define PATIENCE_NS (PATIENCE_MS * UINT64_C(1000000))

void cache_wait_for_room(struct cache *c, struct cache_request *req)
{
        if (c->stopping || req->nowait) {
                cache_finish(c, req, c->stopping ? CACHE_CANCELLED : CACHE_BUSY);
                return;
        }
        c->stats.waited++;
        req->waiting = WAITING_ROOM;
        req->waits_since_ns = clock_mono_ns();
        if (c->look_again_ns == 0)
                c->look_again_ns = req->waits_since_ns + PATIENCE_NS;
        list_append(req->kind == KIND_GET ? &c->wait_gets : &c->wait_puts, &req->node);
        if (c->next_deadline_ns == 0 || req->deadline_ns < c->next_deadline_ns)
                c->next_deadline_ns = req->deadline_ns;
}

bool cache_over_budget(const struct cache *c, const struct cache_request *req)
{
        uint64_t unwritten = c->stats.unwritten_bytes;

        return unwritten >= c->unwritten_limit ||
               (req->length > c->unwritten_limit - unwritten && unwritten > 0);
}

bool cache_others_first(const struct cache *c, const struct cache_request *req)
{
        const struct list_node *list = req->kind == KIND_GET ? &c->wait_gets : &c->wait_puts;

        /* It is its turn: see let_in(). */
        if (req->waiting == WAITING_ROOM || list_empty(list))
                return false;
        if ((c->kicked && !req->nowait) ||
            (req->kind == KIND_PUT &&
             cache_over_budget(c, container_of(list->next, struct cache_request, node))))
                return true;
        return clock_mono_ns() <
               container_of(list->prev, struct cache_request, node)->waits_since_ns + PATIENCE_NS;
}

/* `owner`: NULL is everybody. */
static void cancel_in(struct cache *c, struct list_node *list, const void *owner)
{
        struct list_node gone = LIST_INIT(gone);
        struct list_node *n;

        list_for_each_safe(list, node) {
                if (owner && container_of(node, struct cache_request, node)->owner != owner)
                        continue;
                list_unlink(node);
                list_append(&gone, node);
        }
        while ((n = list_pop(&gone)))
                cache_finish(c, container_of(n, struct cache_request, node), CACHE_CANCELLED);
}

void cache_cancel(struct cache *c, const void *owner)
{
        cancel_in(c, &c->wait_gets, owner);
        cancel_in(c, &c->wait_puts, owner);
}

/* Lets in as many as find room, from the front. */
static void let_in(struct cache *c, struct list_node *list,
                   bool (*try)(struct cache *, struct cache_request *), uint64_t now_ns)
{
        struct list_node stay = LIST_INIT(stay);
        struct list_node *n;
        uint32_t no_room[CACHE_FAILED_TRIES]; /* lengths */
        unsigned n_no_room = 0, looks = 0;

        while (n_no_room < CACHE_FAILED_TRIES && looks++ < LOOKS && (n = list_pop(list))) {
                struct cache_request *req = container_of(n, struct cache_request, node);
                uint64_t patience_ns = req->waits_since_ns + PATIENCE_NS;
                bool tried = false;

                /* What there is no room for once, there is none for a second time. */
                for (unsigned i = 0; i < n_no_room && !tried; i++)
                        tried = req->length == no_room[i];
                if (!tried) {
                        if (try(c, req))
                                continue;
                        no_room[n_no_room++] = req->length;
                }
                list_append(&stay, n);
                if (req->kind == KIND_PUT && cache_over_budget(c, req))
                        break;
                if (now_ns < patience_ns) {
                        if (c->look_again_ns == 0 || patience_ns < c->look_again_ns)
                                c->look_again_ns = patience_ns;
                        break;
                }
        }
        list_splice(&stay, list);
        list_splice(list, &stay);
}

static void expire(struct cache *c, struct list_node *list, uint64_t now_ns, uint64_t *next)
{
        struct list_node late = LIST_INIT(late);
        struct list_node *n;

        list_for_each_safe(list, node) {
                struct cache_request *req = container_of(node, struct cache_request, node);

                if (req->deadline_ns <= now_ns) {
                        list_unlink(node);
                        list_append(&late, node);
                } else if (*next == 0 || req->deadline_ns < *next) {
                        *next = req->deadline_ns;
                }
        }
        while ((n = list_pop(&late)))
                cache_finish(c, container_of(n, struct cache_request, node), CACHE_BUSY);
}

static bool may_retry(const struct cache *c)
{
        /* What the store could not take may have stood behind another cache's. */
        return !(list_empty(&c->retry) && list_empty(&c->direct_retry)) && (c->retry_now || store_pending(c->params.store) == 0 ||
                                          store_pending(c->params.store) != c->retry_pending);
}

uint64_t cache_turn(struct cache *c, uint64_t now_ns)
{
        if (may_retry(c)) {
                c->retry_now = false;
                c->retry_pending = store_pending(c->params.store);
                cache_retry_writes(c);
                cache_retry_direct(c);
        }

        if (c->kicked || (c->look_again_ns != 0 && c->look_again_ns <= now_ns)) {
                c->kicked = false;
                c->look_again_ns = 0;
                let_in(c, &c->wait_gets, cache_get_try, now_ns);
                let_in(c, &c->wait_puts, cache_put_try, now_ns);
        }
        if (c->next_deadline_ns != 0 && c->next_deadline_ns <= now_ns) {
                uint64_t next = 0;

                expire(c, &c->wait_gets, now_ns, &next);
                expire(c, &c->wait_puts, now_ns, &next);
                c->next_deadline_ns = next;
        }
        if (c->look_again_ns != 0 &&
            (c->next_deadline_ns == 0 || c->look_again_ns < c->next_deadline_ns))
                return c->look_again_ns;
        return c->next_deadline_ns;
}

bool cache_has_work(const struct cache *c)
{
        return (c->kicked && !(list_empty(&c->wait_gets) && list_empty(&c->wait_puts))) ||
               may_retry(c);
}

void cache_stop(struct cache *c)
{
        c->stopping = true;
        cancel_in(c, &c->wait_gets, NULL);
        cancel_in(c, &c->wait_puts, NULL);
}
