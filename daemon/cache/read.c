/* SPDX-License-Identifier: Apache-2.0 */
/* The reads of a cache, and the order in which they are passed to the store.
 *
 * A device serves reads in the order in which it receives them, so it receives only as many as keep
 * it busy (window_is_open()). Further reads wait, per volume and user. The next one is always taken
 * from the user with the fewest bytes at that volume, so a user that reads little waits for at most
 * one window of other users' reads. Reads that a client waits for precede the same user's
 * prefetches. Each volume has its own queue, so a slow or hung volume delays no other.
 *
 * Loop thread. Failures: a bypassed volume has an open window, so that its waiting reads are
 * started, and fail, at once. Reads at a hung device are no longer counted once the volume is
 * bypassed. */
#include "cache/internal.h"

#include <errno.h>

#include "checked.h"

/* A window keeps requests queued at the device while it works. With one user's reads of 64 KiB, 576
 * KiB and 2 MiB and two workers, a window of 16 MiB held 32, 14 and 4 reads at each worker. It left
 * the device idle as rarely as no limit: at most 1 % of the time, and 3 % with 64 KiB. */
enum {
        WINDOW_MIN_READS = 4, /* per volume, of any size */
        WINDOW_MAX_READS = 1024,
        STARTS = 1024, /* per iteration and volume */
};
#define WINDOW_BYTES (UINT64_C(16) << 20)

static bool window_is_open(const struct cache *c, unsigned volume)
{
        const struct volume_reads *p = &c->reads[volume];

        return p->n_in_store < WINDOW_MIN_READS ||
               (p->n_in_store < WINDOW_MAX_READS && p->in_store_bytes < WINDOW_BYTES) ||
               !store_volume_is_up(c->params.store, volume);
}

static bool has_waiting(const struct user_reads *reads)
{
        for (unsigned order = 0; order < READ_ORDERS; order++)
                if (!list_empty(&reads->waits[order]))
                        return true;
        return false;
}

int cache_read_begin(struct cache *c, struct store_read *r, uint32_t uid, struct store_ref ref,
                     uint32_t bytes, unsigned order)
{
        r->user = cache_user_get(c, uid);
        if (!r->user)
                return -ENOMEM;
        list_init(&r->node);
        r->bytes = bytes;
        r->volume = (uint8_t)store_volume_of(ref);
        r->order = (uint8_t)order;
        r->in_store = false;
        r->user->reads[r->volume].bytes += bytes;
        return 0;
}

/* Removes a waiting read from its user's queue. */
static void leave_queue(struct cache *c, struct store_read *r)
{
        struct user_reads *reads = &r->user->reads[r->volume];

        list_unlink(&r->node);
        if (!has_waiting(reads))
                list_unlink(&reads->turn);
        c->reads[r->volume].n_waiting--;
        c->stats.queued_reads--;
}

void cache_read_end(struct cache *c, struct store_read *r)
{
        struct cache_user *u = r->user;
        struct volume_reads *p = &c->reads[r->volume];

        if (!u)
                return;
        if (r->in_store) {
                r->in_store = false;
                u->reads[r->volume].in_store -= r->bytes;
                p->in_store_bytes -= r->bytes;
                p->n_in_store--;
        } else if (!list_empty(&r->node)) {
                leave_queue(c, r);
        }
        u->reads[r->volume].bytes -= r->bytes;
        r->user = NULL;
        cache_user_unref(u);
}

bool cache_read_is_due(const struct cache *c, const struct store_read *r)
{
        return c->reads[r->volume].n_waiting == 0 && window_is_open(c, r->volume);
}

void cache_read_enter(struct cache *c, struct store_read *r)
{
        struct volume_reads *p = &c->reads[r->volume];

        r->in_store = true;
        r->user->reads[r->volume].in_store += r->bytes;
        p->in_store_bytes += r->bytes;
        p->n_in_store++;
}

void cache_read_wait(struct cache *c, struct store_read *r)
{
        struct user_reads *reads = &r->user->reads[r->volume];

        list_append(&reads->waits[r->order], &r->node);
        if (list_empty(&reads->turn))
                list_append(&c->reads[r->volume].readers, &reads->turn);
        c->reads[r->volume].n_waiting++;
        c->stats.queued_reads++;
}

void cache_read_join(struct cache *c, struct store_read *r, uint32_t uid)
{
        struct cache_user *u;

        if (!r->user || list_empty(&r->node) || (r->user->uid == uid && r->order == READ_GET))
                return;
        u = cache_user_get(c, uid);
        if (!u)
                return;
        leave_queue(c, r);
        r->order = READ_GET;
        if (u->reads[r->volume].bytes + r->bytes < r->user->reads[r->volume].bytes) {
                r->user->reads[r->volume].bytes -= r->bytes;
                u->reads[r->volume].bytes += r->bytes;
                cache_user_unref(r->user);
                r->user = u;
        } else {
                cache_user_unref(u);
        }
        cache_read_wait(c, r);
}

/* Returns the reads of the user that has the fewest bytes at the device and a read that waits; the
 * first of several. */
static struct user_reads *next_reader(struct volume_reads *p)
{
        struct user_reads *next = NULL;

        list_for_each (&p->readers, n) {
                struct user_reads *reads = container_of(n, struct user_reads, turn);

                if (!next || reads->in_store < next->in_store)
                        next = reads;
        }
        return next;
}

static void submit_reads_of_volume(struct cache *c, unsigned volume)
{
        struct volume_reads *p = &c->reads[volume];

        for (unsigned i = 0; i < STARTS && p->n_waiting > 0 && window_is_open(c, volume); i++) {
                struct user_reads *reads = next_reader(p);
                bool is_prefetch = list_empty(&reads->waits[READ_GET]);
                struct store_read *r =
                        container_of(reads->waits[is_prefetch ? READ_PREFETCH : READ_GET].next,
                                     struct store_read, node);

                leave_queue(c, r);
                /* moves the user behind those with as many bytes at the device */
                if (has_waiting(reads)) {
                        list_unlink(&reads->turn);
                        list_append(&p->readers, &reads->turn);
                }
                /* These calls may free the read and its user. */
                if (r->in_pool)
                        cache_fill_start(c, r);
                else
                        cache_direct_start(c, r);
        }
}

void cache_submit_reads(struct cache *c)
{
        for (unsigned volume = 0; c->stats.queued_reads > 0 && volume < STORE_MAX_VOLUMES; volume++)
                submit_reads_of_volume(c, volume);
}

bool cache_has_due_reads(const struct cache *c)
{
        if (c->stats.queued_reads == 0)
                return false;
        for (unsigned volume = 0; volume < STORE_MAX_VOLUMES; volume++)
                if (c->reads[volume].n_waiting > 0 && window_is_open(c, volume))
                        return true;
        return false;
}
