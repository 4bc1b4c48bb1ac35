/* SPDX-License-Identifier: Apache-2.0 */
/* Removes namespaces that have had no chunk and no session for namespaces.expire. Every minute, or
 * every eighth of namespaces.expire if that is shorter, the namespace that has been unused for
 * longest is removed, and then the next one, one at a time and at most MOST in one tick of the
 * server. If there are more, the next tick continues. Loop thread.
 *
 * Failures: without memory a namespace stays until a later tick. A removal that could not be
 * written is logged; the namespace may be back after a restart, and expires again then. */
#include "server-internal.h"

#include <string.h>

#include "base/clock.h"
#include "checked.h"
#include "units.h"

enum { MOST = 16, PAUSE_MS = 60 * 1000 };

static void remove_next(struct server *s);

static void on_removed(struct removal *removal)
{
        struct server *s = container_of(removal, struct server, unused.removal);
        char expire[UNITS_TEXT];

        s->unused.removing = false;
        if (removal->result == 0) {
                namespace_counts_count_expired(s->service.namespace_counts);
                log_info("namespace \"%s\": removed; it had no chunks and no sessions for %s "
                         "(namespaces.expire)",
                         removal->name, units_ms(s->config->namespaces.expire_ms, expire));
        } else if (removal->result < 0) {
                bool stays = store_namespace_get(s->service.store, removal->id) != NULL;

                log_warning("namespace \"%s\": it is unused, but its removal failed: %s; %s",
                            removal->name, strerror(-removal->result),
                            stays ? "it stays, and its removal is tried again"
                                  : "it may be back after a restart, and is then removed again");
                return;
        }
        if (++s->unused.n < MOST)
                remove_next(s);
        else
                s->unused.searched_ns = 0;
}

static void remove_next(struct server *s)
{
        struct unused_namespace unused;

        if (s->draining || s->config->namespaces.expire_ms == 0 ||
            !namespace_counts_find_unused(s->service.namespace_counts, -1, STORE_NO_OWNER,
                                          &unused) ||
            clock_mono_ns() - unused.since_ns < s->config->namespaces.expire_ms * UINT64_C(1000000))
                return;
        s->unused.removing = true;
        removal_start(&s->unused.removal, &s->service, unused.id, on_removed);
}

void server_expire_namespaces(struct server *s, uint64_t now_ns)
{
        uint64_t pause_ms = MIN(s->config->namespaces.expire_ms / 8, (uint64_t)PAUSE_MS);

        if (s->unused.removing || now_ns < s->unused.searched_ns + pause_ms * 1000000 ||
            !removal_sees_all(&s->service))
                return;
        s->unused.searched_ns = now_ns;
        s->unused.n = 0;
        remove_next(s);
}
