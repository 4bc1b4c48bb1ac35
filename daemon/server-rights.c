/* SPDX-License-Identifier: Apache-2.0 */
/* Decides whether the memory of an earlier daemon may be used again. A client keeps the pool's
 * mapping and the descriptors of data files after its session has ended and the daemon has stopped.
 * Memory and files are therefore used again only if each client that received them may still
 * connect as the same tenant: by the lists of users and groups, and by the permissions of the
 * socket. Loop thread, at startup and at the stop.
 *
 * The groups of a client are those that it had when it connected, as for the connection itself. A
 * digest of all rights decides the common case in which nothing changed, without the record of
 * clients. The store gets the same digest: after a change it copies data files that were lent and
 * are still open (store/volume/detach.c). */
#include "server-internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "checked.h"

static_assert((int)KEEP_MAX_READERS == (int)READERS_MAX, "all recorded readers fit");
static_assert((int)KEEP_MAX_GROUPS == (int)PEER_MAX_GROUPS, "all recorded groups fit");

struct socket_rights {
        uint64_t uid, gid, mode;
};

/* Returns the owner and the mode of the socket file: of the inherited socket as it is, otherwise as
 * the listener will create it. */
static struct socket_rights socket_rights(const struct server *s)
{
        struct socket_rights own = { geteuid(), getegid(), s->config->listen.mode & 0777 };
        struct sockaddr_un address = { 0 };
        socklen_t bytes = sizeof(address) - 1;
        struct stat st;

        if (s->inherited.listen < 0 ||
            getsockname(s->inherited.listen, (struct sockaddr *)&address, &bytes) < 0 ||
            address.sun_path[0] != '/' || stat(address.sun_path, &st) < 0)
                return own;
        return (struct socket_rights){ st.st_uid, st.st_gid, st.st_mode & 0777 };
}

/* Returns whether the kernel lets the peer connect to the socket, which takes write permission for
 * the socket file. */
static bool may_connect(const struct socket_rights *socket, const struct peer *p)
{
        bool in_group = p->gid == socket->gid;

        for (unsigned i = 0; i < p->n_groups; i++)
                in_group = in_group || p->groups[i] == socket->gid;
        if (p->uid == 0)
                return true;
        if (p->uid == socket->uid)
                return socket->mode & S_IWUSR;
        return socket->mode & (in_group ? S_IWGRP : S_IWOTH);
}

uint64_t server_rights(const struct server *s)
{
        struct socket_rights socket = socket_rights(s);
        uint64_t digest = quotas_digest(s->service.quotas);

        digest = (digest ^ socket.uid) * UINT64_C(0x100000001b3);
        digest = (digest ^ socket.gid) * UINT64_C(0x100000001b3);
        return (digest ^ socket.mode) * UINT64_C(0x100000001b3);
}

bool server_may_reuse_pool(struct server *s, unsigned tenant, int kept,
                           char ret_error[static KEEP_ERROR_BYTES])
{
        const struct keep_map *map = &s->keep.file->map;
        struct socket_rights socket = socket_rights(s);
        struct readers *readers = &s->tenants[tenant].readers;
        bool same = map->head->rights == server_rights(s);

        if (!same && map->pools[kept]->flags & KEEP_POOL_MANY_READERS) {
                snprintf(ret_error, KEEP_ERROR_BYTES,
                         "access rights have changed, and more than %d different clients had "
                         "mapped it",
                         READERS_MAX);
                return false;
        }
        for (uint32_t i = 0; i < map->head->n_readers; i++) {
                const struct keep_reader *from = &map->readers[i];
                struct peer p = { .uid = from->uid, .gid = from->gid, .n_groups = from->n_groups };
                unsigned now;
                bool admin;

                if (from->pool != (uint32_t)kept)
                        continue;
                memcpy(p.groups, from->groups, sizeof(p.groups));
                if (!same && (quotas_identify(s->service.quotas, &p, &now, &admin) != 0 ||
                              now != tenant || !may_connect(&socket, &p))) {
                        readers_fini(readers);
                        snprintf(ret_error, KEEP_ERROR_BYTES,
                                 "user %u, who had mapped it, may no longer connect as this tenant "
                                 "(access, tenants, listen.mode)",
                                 (unsigned)p.uid);
                        return false;
                }
                readers_note(readers, &p); /* recorded again, because a client's mapping may outlive
                                            * further restarts */
        }
        readers->incomplete |= map->pools[kept]->flags & KEEP_POOL_MANY_READERS;
        return true;
}

int server_list_readers(const struct server *s, struct keep_handover *ret,
                        struct keep_reader **ret_readers)
{
        struct keep_reader *readers;
        uint32_t n = 0;

        for (unsigned i = 0; i < s->service.n_tenants; i++)
                n += s->tenants[i].readers.n;
        readers = calloc(MAX(n, 1u), sizeof(*readers));
        if (!readers)
                return -ENOMEM;
        ret->rights = server_rights(s);
        ret->readers = *ret_readers = readers;
        ret->n_readers = n;
        for (unsigned i = 0; i < s->service.n_tenants; i++) {
                const struct readers *of = &s->tenants[i].readers;

                ret->many_readers[i] = of->incomplete;
                for (unsigned k = 0; k < of->n; k++, readers++) {
                        *readers = (struct keep_reader){ .pool = i,
                                                         .uid = of->items[k].uid,
                                                         .gid = of->items[k].gid,
                                                         .n_groups = of->items[k].n_groups };
                        memcpy(readers->groups, of->items[k].groups, sizeof(readers->groups));
                }
        }
        return 0;
}
