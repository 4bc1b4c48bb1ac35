/* SPDX-License-Identifier: Apache-2.0 */
/* The users of a cache, and the order in which their writes and reads are passed to the store.
 *
 * A device serves requests in the order in which it receives them, so it receives only as many as
 * keep it busy: there is one window for writes, and one for the reads of each volume. Further
 * requests wait by user, and the next one is always taken from the user with the fewest bytes in
 * the window (fair/window.h). A user that transfers little waits for at most one window of other
 * users' transfers. Each volume has its own queue of reads, so a slow or hung volume delays no
 * other.
 *
 * Loop thread. Failures: a write that the store cannot take yet moves to a second queue of its
 * user, which is tried again first. It delays neither that user's other writes nor another user. A
 * bypassed volume has an open window, so that its waiting reads are started, and fail, at once.
 * Reads at a hung device are no longer counted once the volume is bypassed. */
#include "cache/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "checked.h"
#include "cleanup.h"

/* A window keeps requests queued at the device while it works. With one user's reads of 64 KiB, 576
 * KiB and 2 MiB and two workers, a window of 16 MiB held 32, 14 and 4 reads at each worker. It left
 * the device idle as rarely as no limit: at most 1 % of the time, and 3 % with 64 KiB. */
enum {
        WINDOW_MIN = 4,    /* items that may be in flight whatever their size */
        WINDOW_MAX = 1024, /* most items in flight */
        /* Most queued writes, and most queued reads of each volume, that an iteration passes to the
         * store. A window of small chunks that empties at once would otherwise be filled again in
         * one step, of more than a millisecond. */
        STARTS = 64,
};
/* Bytes in flight from which on only WINDOW_MIN items may be in flight. WRITES_BYTES: of all
 * writes, times the number of volumes in use (as WINDOW_MIN and WINDOW_MAX are); READS_BYTES: of
 * the reads of one volume. */
#define WRITES_BYTES (UINT64_C(32) << 20)
#define READS_BYTES  (UINT64_C(16) << 20)

static void user_fini(struct fair_state *state)
{
        struct cache_user *u = (struct cache_user *)state;

        assert(u->unwritten == 0 && u->copying == 0 && u->postponed.n == 0 && !u->putting &&
               u->n_prefetches == 0);
        window_member_fini(&u->writes);
        for (unsigned i = 0; i < STORE_MAX_VOLUMES; i++)
                window_member_fini(&u->reads[i]);
}

static int user_init(struct fair_state *state)
{
        struct cache_user *u = (struct cache_user *)state;
        struct cache *c = container_of(state->room, struct cache, users);
        int r = window_member_init(&u->writes, &c->writes, state->user);

        for (unsigned kind = 0; kind < KINDS; kind++)
                turns_member_init(&u->waits[kind]);
        turns_member_init(&u->refused);
        for (unsigned i = 0; i < STORE_MAX_VOLUMES; i++)
                r = MIN(r, window_member_init(&u->reads[i], &c->reads[i], state->user));
        if (r < 0)
                user_fini(state);
        return r;
}

void cache_schedule_init(struct cache *c)
{
        fair_room_init(&c->users, sizeof(struct cache_user), user_init, user_fini);
        turns_init(&c->refused);
        window_init(&c->writes, WINDOW_MIN, WINDOW_MAX, WRITES_BYTES);
        for (unsigned i = 0; i < STORE_MAX_VOLUMES; i++)
                window_init(&c->reads[i], WINDOW_MIN, WINDOW_MAX, READS_BYTES);
}

void cache_schedule_fini(struct cache *c)
{
        fair_room_fini(&c->users);
        window_fini(&c->writes);
        for (unsigned i = 0; i < STORE_MAX_VOLUMES; i++)
                window_fini(&c->reads[i]);
}

struct cache_user *cache_user_find(const struct cache *c, uint32_t uid)
{
        return (struct cache_user *)fair_state_find(&c->users, uid);
}

struct cache_user *cache_user_get(struct cache *c, uint32_t uid)
{
        return (struct cache_user *)fair_state_get(&c->users, uid);
}

void cache_user_count(struct cache *c, struct cache_user *u)
{
        bool putting = u->unwritten > 0 || u->copying > 0 || turns_item(&u->waits[KIND_PUT]);

        c->stats.putting_users += (uint64_t)putting - (uint64_t)u->putting;
        u->putting = putting;
}

/* --- writes --- */

static struct cache_user *writer_of(const struct store_write *w)
{
        return container_of(w->item.member, struct cache_user, writes);
}

/* Adds the bytes of a write to the sums of unwritten bytes, or of copied bytes if the write is
 * postponed; or subtracts them. */
static void count_bytes(struct cache *c, struct cache_user *u, const struct store_write *w,
                        bool begins)
{
        uint64_t bytes = begins ? w->item.bytes : -(uint64_t)w->item.bytes;

        *(w->postponed ? &u->copying : &u->unwritten) += bytes;
        *(w->postponed ? &c->copying : &c->unwritten) += bytes;
        cache_postponed_note(c, u);
        cache_user_count(c, u);
}

int cache_unwritten_begin(struct cache *c, struct store_write *w, uint32_t uid, uint64_t bytes)
{
        struct cache_user *u = cache_user_get(c, uid);

        if (!u)
                return -ENOMEM;
        assert(bytes <= UINT32_MAX);
        window_item_init(&w->item, &u->writes, (uint32_t)bytes, 0);
        count_bytes(c, u, w, true);
        return 0;
}

void cache_unwritten_end(struct cache *c, struct store_write *w)
{
        struct cache_user *u;

        if (!w->item.member)
                return;
        u = writer_of(w);
        window_done(&w->item);
        cache_settle_charge(c, &w->charged);
        w->item.member = NULL;
        count_bytes(c, u, w, false);
        cache_user_unref(u);
}

static bool may_write(const struct cache *c)
{
        return window_is_open(&c->writes, MAX(store_volumes_up(c->params.store), 1u));
}

/* Passes a write to the store. If this returns true, the write may have ended and been freed. */
static bool submit_write(struct store_write *w)
{
        window_submit(&w->item);
        if (w->direct ? cache_direct_store(w) : cache_write_store(w))
                return true;
        window_done(&w->item);
        return false;
}

void cache_queue_write(struct cache *c, struct store_write *w)
{
        if (c->writes.n_waiting > 0 || !may_write(c)) {
                window_wait(&w->item);
        } else {
                if (submit_write(w))
                        return;
                turns_add(&c->refused, &writer_of(w)->refused, &w->item.node);
        }
        c->stats.queued_writes++;
}

/* Passes the first few of each user's writes, in order, to the store again after it could not take
 * them. Returns the number of queued writes that the iteration may still pass. */
static unsigned retry_refused(struct cache *c)
{
        unsigned left = STARTS;
        struct turns_member *m;
        struct list_node *n;

        while (left > 0 && (m = turns_next(&c->refused))) {
                struct cache_user *u = container_of(m, struct cache_user, refused);

                cache_user_ref(u);
                for (unsigned tries = 0;
                     left > 0 && tries < CACHE_FAILED_TRIES && (n = turns_item(m));) {
                        turns_remove(m, n);
                        if (submit_write(container_of(n, struct store_write, item.node))) {
                                c->stats.queued_writes--;
                                left--;
                        } else {
                                turns_set_aside(m, n);
                                tries++;
                        }
                }
                turns_park(&c->refused, m);
                cache_user_unref(u);
        }
        turns_unpark(&c->refused);
        return left;
}

void cache_submit_writes(struct cache *c)
{
        unsigned left = retry_refused(c);
        struct window_item *i;

        for (unsigned tries = 0; left > 0 && tries < CACHE_FAILED_TRIES && may_write(c) &&
                                 (i = window_next(&c->writes));) {
                struct store_write *w = container_of(i, struct store_write, item);

                if (submit_write(w)) {
                        c->stats.queued_writes--;
                        left--;
                } else {
                        turns_add(&c->refused, &writer_of(w)->refused, &i->node);
                        tries++;
                }
        }
        c->retry_now |= left == 0;
}

bool cache_has_writes(const struct cache *c)
{
        return c->writes.n_waiting > 0 || !turns_is_empty(&c->refused);
}

/* --- reads --- */

static bool may_read(const struct cache *c, unsigned volume)
{
        return window_is_open(&c->reads[volume], 1) || !store_volume_is_up(c->params.store, volume);
}

static unsigned volume_of(const struct cache *c, const struct store_read *r)
{
        return (unsigned)(r->item.member->window - c->reads);
}

int cache_read_begin(struct cache *c, struct store_read *r, uint32_t uid, struct store_ref ref,
                     uint32_t bytes, unsigned order)
{
        struct cache_user *u = cache_user_get(c, uid);

        if (!u)
                return -ENOMEM;
        window_item_init(&r->item, &u->reads[store_volume_of(ref)], bytes, order);
        return 0;
}

static void leave_window(struct cache *c, struct store_read *r)
{
        c->stats.queued_reads -= window_item_waits(&r->item);
        window_done(&r->item);
}

void cache_read_end(struct cache *c, struct store_read *r)
{
        if (!r->item.member)
                return;
        leave_window(c, r);
        fair_user_unref(TAKE_PTR(r->item.member)->user);
}

bool cache_read_is_due(const struct cache *c, const struct store_read *r)
{
        unsigned volume = volume_of(c, r);

        return c->reads[volume].n_waiting == 0 && may_read(c, volume);
}

bool cache_may_read_ahead(const struct cache *c, struct store_ref ref)
{
        unsigned volume = store_volume_of(ref);

        return c->reads[volume].n_waiting == 0 && window_is_open(&c->reads[volume], 1) &&
               store_volume_is_up(c->params.store, volume);
}

void cache_read_wait(struct cache *c, struct store_read *r)
{
        window_wait(&r->item);
        c->stats.queued_reads++;
}

void cache_read_join(struct cache *c, struct store_read *r, uint32_t uid)
{
        struct window_member *m = r->item.member, *joining;
        struct cache_user *u;

        if (!m || !window_item_waits(&r->item) ||
            (m->user->uid == uid && r->item.order == READ_GET))
                return;
        u = cache_user_get(c, uid);
        if (!u)
                return;
        leave_window(c, r);
        r->item.order = READ_GET;
        joining = &u->reads[volume_of(c, r)];
        if (joining->bytes < m->bytes)
                r->item.member = joining;
        fair_user_unref(joining->bytes < m->bytes ? m->user : joining->user);
        cache_read_wait(c, r);
}

void cache_submit_reads(struct cache *c)
{
        struct window_item *i;

        for (unsigned volume = 0; c->stats.queued_reads > 0 && volume < STORE_MAX_VOLUMES; volume++)
                for (unsigned n = 0;
                     n < STARTS && may_read(c, volume) && (i = window_next(&c->reads[volume]));
                     n++) {
                        struct store_read *r = container_of(i, struct store_read, item);

                        c->stats.queued_reads--;
                        /* each of these calls may free the read and its user */
                        if (r->in_pool)
                                cache_fill_start(c, r);
                        else
                                cache_direct_start(c, r);
                }
}

bool cache_has_due_reads(const struct cache *c)
{
        for (unsigned volume = 0; c->stats.queued_reads > 0 && volume < STORE_MAX_VOLUMES; volume++)
                if (c->reads[volume].n_waiting > 0 && may_read(c, volume))
                        return true;
        return false;
}
