/* SPDX-License-Identifier: Apache-2.0 */
/* The users of a cache, and the order in which their writes are passed to the store.
 *
 * The store serves writes in the order in which it receives them, so it receives only as many as
 * keep its devices busy (window_is_open()). Further writes wait in a queue per user. The next one
 * is always taken from the user with the fewest bytes in the store, so a user that writes little
 * waits for at most one window of other users' writes.
 *
 * A user object exists from its first waiting request, write or read until the last of them has
 * ended. Loop thread. Failures: a write that the store cannot take yet stays at the front of its
 * user's queue and is tried again. It delays neither that user's other writes nor another user. */
#include "cache/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "checked.h"

enum {
        WINDOW_MIN_WRITES = 4, /* per volume, of any size */
        WINDOW_MAX_WRITES = 1024,
};
#define WINDOW_BYTES (UINT64_C(32) << 20)

struct cache_user *cache_user_find(const struct cache *c, uint32_t uid)
{
        const struct list_node *bucket = &c->users[uid % CACHE_USER_BUCKETS];

        list_for_each (bucket, n) {
                struct cache_user *u = container_of(n, struct cache_user, node);

                if (u->uid == uid)
                        return u;
        }
        return NULL;
}

struct cache_user *cache_user_get(struct cache *c, uint32_t uid)
{
        struct cache_user *u = cache_user_find(c, uid);

        if (!u) {
                u = calloc(1, sizeof(*u));
                if (!u)
                        return NULL;
                u->uid = uid;
                for (unsigned kind = 0; kind < KINDS; kind++) {
                        list_init(&u->waits[kind]);
                        list_init(&u->turn[kind]);
                }
                list_init(&u->stay);
                list_init(&u->ready);
                list_init(&u->refused);
                list_init(&u->write_turn);
                for (unsigned volume = 0; volume < STORE_MAX_VOLUMES; volume++) {
                        for (unsigned order = 0; order < READ_ORDERS; order++)
                                list_init(&u->reads[volume].waits[order]);
                        list_init(&u->reads[volume].turn);
                }
                list_append(&c->users[uid % CACHE_USER_BUCKETS], &u->node);
        }
        u->refs++;
        return u;
}

void cache_user_unref(struct cache_user *u)
{
        assert(u->refs > 0);
        if (--u->refs > 0)
                return;
        assert(u->unwritten == 0 && u->in_store == 0 && !u->putting && u->n_prefetches == 0);
        list_unlink(&u->node);
        free(u);
}

void cache_user_count(struct cache *c, struct cache_user *u)
{
        bool putting = u->unwritten > 0 || !list_empty(&u->waits[KIND_PUT]);

        if (putting && !u->putting)
                c->stats.putting_users++;
        else if (!putting && u->putting)
                c->stats.putting_users--;
        u->putting = putting;
}

/* --- writes --- */

int cache_unwritten_begin(struct cache *c, struct store_write *w, uint32_t uid, uint64_t bytes)
{
        w->user = cache_user_get(c, uid);
        if (!w->user)
                return -ENOMEM;
        w->bytes = bytes;
        list_init(&w->node);
        w->user->unwritten += bytes;
        c->unwritten += bytes;
        cache_user_count(c, w->user);
        return 0;
}

/* Ends the accounting of a write in the store. */
static void leave_store(struct cache *c, struct store_write *w)
{
        if (!w->in_store)
                return;
        w->in_store = false;
        w->user->in_store -= w->bytes;
        c->in_store_bytes -= w->bytes;
        c->n_in_store--;
}

void cache_unwritten_end(struct cache *c, struct store_write *w)
{
        struct cache_user *u = w->user;

        if (!u)
                return;
        leave_store(c, w);
        cache_settle_charge(c, &w->charged);
        w->user = NULL;
        u->unwritten -= w->bytes;
        c->unwritten -= w->bytes;
        cache_user_count(c, u);
        cache_user_unref(u);
}

static bool window_is_open(const struct cache *c)
{
        unsigned volumes = MAX(store_volumes_up(c->params.store), 1u);

        return c->n_in_store < (uint64_t)WINDOW_MIN_WRITES * volumes ||
               (c->n_in_store < (uint64_t)WINDOW_MAX_WRITES * volumes &&
                c->in_store_bytes < WINDOW_BYTES * volumes);
}

/* Passes a write to the store. If this returns true, the write may have ended and been freed. */
static bool ask_store(struct cache *c, struct store_write *w)
{
        struct cache_user *u = w->user;
        bool taken;

        w->in_store = true;
        u->in_store += w->bytes;
        c->in_store_bytes += w->bytes;
        c->n_in_store++;
        taken = w->direct ? cache_direct_store(w) : cache_write_store(w);
        if (!taken)
                leave_store(c, w);
        return taken;
}

static void enlist(struct cache *c, struct cache_user *u)
{
        if (list_empty(&u->write_turn))
                list_append(&c->writers, &u->write_turn);
}

void cache_queue_write(struct cache *c, struct store_write *w)
{
        struct cache_user *u = w->user;

        if (c->n_ready == 0 && window_is_open(c)) {
                if (ask_store(c, w))
                        return;
                list_append(&u->refused, &w->node);
        } else {
                list_append(&u->ready, &w->node);
                c->n_ready++;
        }
        c->stats.queued_writes++;
        enlist(c, u);
}

/* Passes writes that the store could not take to it again: the first few of each user, in order. */
static void ask_again(struct cache *c)
{
        struct list_node turn = LIST_INIT(turn), *n;

        list_splice(&turn, &c->writers);
        while ((n = list_pop(&turn))) {
                struct cache_user *u = container_of(n, struct cache_user, write_turn);
                struct list_node again = LIST_INIT(again), *i;
                unsigned refused = 0;

                u->refs++;
                list_splice(&again, &u->refused);
                while (refused < CACHE_FAILED_TRIES && (i = list_pop(&again))) {
                        struct store_write *w = container_of(i, struct store_write, node);

                        if (ask_store(c, w)) {
                                c->stats.queued_writes--;
                        } else {
                                list_append(&u->refused, &w->node);
                                refused++;
                        }
                }
                list_splice(&u->refused, &again);
                if (!list_empty(&u->ready) || !list_empty(&u->refused))
                        enlist(c, u);
                cache_user_unref(u);
        }
}

/* Returns the user with the fewest bytes in the store that has a write ready, or NULL. */
static struct cache_user *next_writer(struct cache *c)
{
        struct cache_user *next = NULL;

        list_for_each (&c->writers, n) {
                struct cache_user *u = container_of(n, struct cache_user, write_turn);

                if (!list_empty(&u->ready) && (!next || u->in_store < next->in_store))
                        next = u;
        }
        return next;
}

void cache_submit_writes(struct cache *c)
{
        struct cache_user *u;
        unsigned refused = 0;

        ask_again(c);
        while (refused < CACHE_FAILED_TRIES && window_is_open(c) && (u = next_writer(c))) {
                struct store_write *w = container_of(list_pop(&u->ready), struct store_write, node);

                c->n_ready--;
                u->refs++;
                /* moves the user behind those with as many bytes in the store */
                list_unlink(&u->write_turn);
                if (ask_store(c, w)) {
                        c->stats.queued_writes--;
                } else {
                        list_append(&u->refused, &w->node);
                        refused++;
                }
                if (!list_empty(&u->ready) || !list_empty(&u->refused))
                        enlist(c, u);
                cache_user_unref(u);
        }
}

bool cache_has_writes(const struct cache *c)
{
        return !list_empty(&c->writers);
}
