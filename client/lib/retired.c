/* SPDX-License-Identifier: Apache-2.0 */
/* Whose memory is it: sessions that have ended, and what still hangs on them (rule R17).
 *
 * Runs in the handle's thread. Owns the list of ended sessions.
 *
 * A request that names staging or registered memory may go on in the kernel after the daemon's
 * death: reads of a killed process still reach memory. The liveness file says when that is over:
 * the daemon and each of its rings hold it locked, so a shared lock succeeds only when the last of
 * its I/O has ended. Until then the messages in question stay as ghosts, their places stay taken,
 * and the staging area stays mapped; of registered memory, which the user unmaps, the addresses are
 * kept for kvcache_memory_settled(). An ended session is freed in parts: pool and socket with the
 * last lease, the staging area with the last place. */
#include "lib/retired.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"
#include "lib/message.h"

/* Is the daemon's I/O on this session's memory over? */
static bool region_settle(struct conn *c)
{
        struct message *m;

        if (TAILQ_EMPTY(&c->ghosts))
                return true;
        if (flock(c->live_fd, LOCK_SH | LOCK_NB) < 0)
                return false;
        while ((m = TAILQ_FIRST(&c->ghosts))) {
                TAILQ_REMOVE(&c->ghosts, m, link);
                message_unref_staging(m, &c->staging);
                message_free(m);
        }
        return true;
}

void region_collect(struct kvcache *kv)
{
        struct conn *c, *next;

        for (c = TAILQ_FIRST(&kv->ended); c; c = next) {
                bool settled = region_settle(c);

                next = TAILQ_NEXT(c, link);
                if (c->leases == 0)
                        conn_close_pool(c);
                if (c->leases > 0 || !settled || c->staging.n_places > 0)
                        continue;
                TAILQ_REMOVE(&kv->ended, c, link);
                conn_free(c, false);
        }
}

void region_end_session(struct kvcache *kv)
{
        struct conn *c = TAKE_PTR(kv->conn);

        (void)epoll_ctl(kv->epoll_fd, EPOLL_CTL_DEL, c->sock, NULL);
        lookup_fini(&c->lookup);
        tally_fini(&c->tally);
        TAILQ_INSERT_TAIL(&kv->ended, c, link);
        region_collect(kv);
}

/* Where a place of this session's is in memory; 0: nowhere any more. */
static uintptr_t region_address(const struct conn *c, const struct place *p)
{
        if (p->region == WIRE_REGION_STAGING)
                return (uintptr_t)c->staging.base + p->offset;
        for (unsigned i = 0; i < c->n_regions; i++)
                if (c->regions[i].id == p->region)
                        return (uintptr_t)c->regions[i].base + p->offset;
        return 0;
}

static bool region_overlaps(const struct message *m, const struct conn *c, const void *data,
                            uint64_t bytes)
{
        for (unsigned i = 0; i < message_places(m); i++) {
                struct place p = message_place(m, i);
                uintptr_t at = region_address(c, &p);

                if (at != 0 && at < (uintptr_t)data + bytes && (uintptr_t)data < at + p.bytes)
                        return true;
        }
        return false;
}

bool region_is_used(struct kvcache *kv, const void *data, uint64_t bytes)
{
        struct message *m;
        struct conn *c;

        region_collect(kv);
        if (kv->conn) {
                for (unsigned i = 0; i < WIRE_MAX_INFLIGHT; i++)
                        if (kv->inflight[i] &&
                            region_overlaps(kv->inflight[i], kv->conn, data, bytes))
                                return true;
                TAILQ_FOREACH(m, &kv->queue, link)
                if (region_overlaps(m, kv->conn, data, bytes))
                        return true;
        }
        TAILQ_FOREACH(c, &kv->ended, link)
        TAILQ_FOREACH(m, &c->ghosts, link)
        if (region_overlaps(m, c, data, bytes))
                return true;
        return false;
}

int kvcache_memory_settled(struct kvcache *kv, const void *data, size_t bytes)
{
        uintptr_t end;
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        if (!data || bytes == 0 || !checked_add((uintptr_t)data, bytes, &end))
                return handle_fail(kv, -EINVAL, "no memory given");

        (void)message_flow(kv);
        r = !region_is_used(kv, data, bytes);
        handle_leave(kv);
        return r;
}

static int region_staging_acquire(struct kvcache *kv, size_t bytes, void **ret)
{
        uint64_t offset;
        int r;

        r = handle_connected(kv);
        if (r == 0)
                r = region_staging_ready(kv);
        if (r < 0)
                return r;
        r = staging_acquire(&kv->conn->staging, bytes, true, &offset);
        if (r == -ENOBUFS) {
                /* Completions that are here already may make room. */
                if (message_flow(kv) < 0)
                        return handle_fail(kv, -ENOTCONN, "the daemon closed the connection");
                r = staging_acquire(&kv->conn->staging, bytes, true, &offset);
        }
        switch (r) {
        case 0:
                *ret = kv->conn->staging.base + offset;
                return 0;
        case -ENOBUFS:
                return handle_fail(kv, r, "the staging area has no %zu bytes free now", bytes);
        case -E2BIG:
                return handle_fail(kv, r, "the staging area has %llu bytes in all",
                                   (unsigned long long)kv->conn->staging.bytes);
        default:
                return handle_fail(kv, r, "out of memory");
        }
}

int kvcache_staging_acquire(struct kvcache *kv, size_t bytes, void **ret_place)
{
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        if (bytes == 0 || !ret_place)
                return handle_fail(kv, -EINVAL, "a place of no bytes");
        message_check_idle(kv);
        r = region_staging_acquire(kv, bytes, ret_place);
        handle_leave(kv);
        return r;
}

void kvcache_staging_release(struct kvcache *kv, void *place)
{
        struct conn *c;

        if (!place || handle_enter(kv) < 0)
                return;
        if (kv->conn && staging_contains(&kv->conn->staging, place, 1)) {
                (void)staging_release(&kv->conn->staging,
                                      (uint64_t)((uint8_t *)place - kv->conn->staging.base));
                return;
        }
        TAILQ_FOREACH(c, &kv->ended, link)
        if (staging_contains(&c->staging, place, 1)) {
                (void)staging_release(&c->staging, (uint64_t)((uint8_t *)place - c->staging.base));
                break;
        }
        region_collect(kv);
}

int region_staging_ready(struct kvcache *kv)
{
        struct control c = { 0 };
        struct message *m;

        if (kv->conn->staging.base)
                return 0;
        m = message_new(WIRE_STAGING, sizeof(struct wire_staging));
        if (!m)
                return handle_fail(kv, -ENOMEM, "out of memory");
        ((struct wire_staging *)m->data)->bytes = MIN(kv->staging_bytes, kv->conn->staging_max);
        return message_call(kv, m, &c, handle_deadline(0, kv->request_timeout_ms));
}
