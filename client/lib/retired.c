/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions that have ended, and the memory that their unanswered requests may still use (R17 in
 * SECURITY.md).
 *
 * Runs in the handle's thread. Owns the list of ended sessions.
 *
 * I/O of a request that names staging or registered memory may continue in the kernel after the
 * daemon's death: reads of a killed process still write to memory. The daemon and each of its rings
 * hold a lock on the liveness file, so that a shared lock succeeds only when the last of its I/O
 * has ended. Until then the messages stay as ghosts of the session, their places stay taken, and
 * the staging area stays mapped. The user may unmap registered memory; the session keeps the
 * addresses for kvcache_memory_settled(). The parts of an ended session are freed separately: the
 * pool and the socket with the last lease and the last hold of parts.h, the staging area with the
 * last place. */
#include "lib/retired.h"

#include <sys/epoll.h>
#include <sys/file.h>

#include "cleanup.h"
#include "lib/connection.h"
#include "lib/lookup.h"
#include "lib/message.h"

/* Returns whether the daemon's I/O on this session's memory has ended, and if so frees the
 * ghosts. */
static bool settle(struct conn *c)
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

void retired_collect(struct kvcache *kv)
{
        struct conn *c, *next;

        for (c = TAILQ_FIRST(&kv->ended); c; c = next) {
                bool settled = settle(c);

                next = TAILQ_NEXT(c, link);
                if (c->leases == 0 && c->holds == 0)
                        conn_close_pool(c);
                if (c->leases > 0 || c->holds > 0 || !settled || c->staging.n_places > 0)
                        continue;
                TAILQ_REMOVE(&kv->ended, c, link);
                conn_free(c, false);
        }
}

void retired_add(struct kvcache *kv)
{
        struct conn *c = TAKE_PTR(kv->conn);

        (void)epoll_ctl(kv->epoll_fd, EPOLL_CTL_DEL, c->sock, NULL);
        lookup_fini(&c->lookup);
        tally_fini(&c->tally);
        transfers_fini(&c->transfers, false);
        TAILQ_INSERT_TAIL(&kv->ended, c, link);
        retired_collect(kv);
}

/* Returns the address of a place that a message of session `c` names, or 0 if its buffer is no
 * longer registered. */
static uintptr_t address_of(const struct conn *c, const struct place *p)
{
        if (p->region == WIRE_REGION_STAGING)
                return (uintptr_t)c->staging.base + p->offset;
        for (unsigned i = 0; i < c->n_regions; i++)
                if (c->regions[i].id == p->region)
                        return (uintptr_t)c->regions[i].base + p->offset;
        return 0;
}

static bool overlaps(const struct message *m, const struct conn *c, const void *data,
                     uint64_t bytes)
{
        for (unsigned i = 0; i < message_places(m); i++) {
                struct place p = message_place(m, i);
                uintptr_t at = address_of(c, &p);

                if (at != 0 && at < (uintptr_t)data + bytes && (uintptr_t)data < at + p.bytes)
                        return true;
        }
        return false;
}

bool retired_uses(struct kvcache *kv, const void *data, uint64_t bytes)
{
        struct message *m;
        struct conn *c;

        retired_collect(kv);
        if (kv->conn) {
                for (unsigned i = 0; i < WIRE_MAX_INFLIGHT; i++)
                        if (kv->inflight[i] && overlaps(kv->inflight[i], kv->conn, data, bytes))
                                return true;
                TAILQ_FOREACH(m, &kv->queue, link)
                if (overlaps(m, kv->conn, data, bytes))
                        return true;
        }
        TAILQ_FOREACH(c, &kv->ended, link)
        TAILQ_FOREACH(m, &c->ghosts, link)
        if (overlaps(m, c, data, bytes))
                return true;
        return false;
}
