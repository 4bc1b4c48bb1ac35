/* SPDX-License-Identifier: Apache-2.0 */
#include "tenant.h"

#include <assert.h>
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cleanup.h"

enum { UID_NOBODY = 65534 };

struct ids {
        uint32_t *items;
        unsigned n;
};

struct tenants {
        struct ids users, groups, admin_users, admin_groups;
        struct tenant_limits limits;
        struct tenant_usage usage;
};

int peer_from_socket(int fd, struct peer *ret)
{
        struct ucred cred;
        socklen_t bytes = sizeof(cred);
        struct peer p;

        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &bytes) < 0)
                return -errno;
        p = (struct peer){ .pid = cred.pid, .uid = cred.uid, .gid = cred.gid };
        bytes = sizeof(p.groups);
        if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, p.groups, &bytes) == 0)
                p.n_groups = bytes / sizeof(gid_t);
        else
                p.n_groups = 0; /* more groups than there is room for: only the first counts */
        *ret = p;
        return 0;
}

static int resolve(struct ids *ret, char *const *names, unsigned n, bool groups, char *ret_error)
{
        ret->items = calloc(n ? n : 1, sizeof(*ret->items));
        if (!ret->items)
                return -ENOMEM;
        for (unsigned i = 0; i < n; i++) {
                char *end;
                unsigned long number = strtoul(names[i], &end, 10);
                const struct passwd *user = NULL;
                const struct group *group = NULL;

                if (names[i][0] != '\0' && *end == '\0' && number < UINT32_MAX) {
                        ret->items[ret->n++] = (uint32_t)number;
                        continue;
                }
                if (groups)
                        group = getgrnam(names[i]);
                else
                        user = getpwnam(names[i]);
                if (!group && !user) {
                        snprintf(ret_error, 256, "there is no %s \"%s\" on this host",
                                 groups ? "group" : "user", names[i]);
                        return -EINVAL;
                }
                ret->items[ret->n++] = groups ? group->gr_gid : user->pw_uid;
        }
        return 0;
}

DEFINE_CLEANUP(struct tenants *, tenants_free);

int tenants_new(struct tenants **ret, const struct tenant_access *clients,
                const struct tenant_access *admins, const struct tenant_limits *limits,
                char ret_error[static 256])
{
        _cleanup_(tenants_freep) struct tenants *t = calloc(1, sizeof(*t));
        int r;

        if (!t)
                return -ENOMEM;
        t->limits = *limits;
        if ((r = resolve(&t->users, clients->users, clients->n_users, false, ret_error)) < 0 ||
            (r = resolve(&t->groups, clients->groups, clients->n_groups, true, ret_error)) < 0 ||
            (r = resolve(&t->admin_users, admins->users, admins->n_users, false, ret_error)) < 0 ||
            (r = resolve(&t->admin_groups, admins->groups, admins->n_groups, true, ret_error)) < 0)
                return r;
        *ret = TAKE_PTR(t);
        return 0;
}

struct tenants *tenants_free(struct tenants *t)
{
        if (!t)
                return NULL;
        free(t->users.items);
        free(t->groups.items);
        free(t->admin_users.items);
        free(t->admin_groups.items);
        free(t);
        return NULL;
}

void tenants_set_limits(struct tenants *t, const struct tenant_limits *limits)
{
        t->limits = *limits;
}

static bool contains(const struct ids *ids, uint32_t id)
{
        for (unsigned i = 0; i < ids->n; i++)
                if (ids->items[i] == id)
                        return true;
        return false;
}

static bool is_among(const struct ids *users, const struct ids *groups, const struct peer *p)
{
        if (contains(users, p->uid) || contains(groups, p->gid))
                return true;
        for (unsigned i = 0; i < p->n_groups; i++)
                if (contains(groups, p->groups[i]))
                        return true;
        return false;
}

int tenants_identify(const struct tenants *t, const struct peer *p, uint16_t *ret_tenant,
                     bool *ret_admin)
{
        bool anyone = t->users.n == 0 && t->groups.n == 0;
        bool own = p->uid == geteuid() &&
                   p->uid != UID_NOBODY; /* that may be anybody, even to a daemon that runs so */
        bool admin = p->uid == 0 || own || is_among(&t->admin_users, &t->admin_groups, p);

        /* Whom the kernel could not map is nobody in particular. */
        if (p->uid == UID_NOBODY && geteuid() != UID_NOBODY && !contains(&t->users, UID_NOBODY))
                return TENANT_REFUSED;
        if (!anyone && !admin && !is_among(&t->users, &t->groups, p))
                return TENANT_REFUSED;
        *ret_tenant = TENANT_DEFAULT;
        *ret_admin = admin;
        return 0;
}

int tenants_charge_connection(struct tenants *t, uint16_t tenant)
{
        if (t->usage.connections >= t->limits.connections)
                return TENANT_QUOTA;
        t->usage.connections++;
        return 0;
}

void tenants_uncharge_connection(struct tenants *t, uint16_t tenant)
{
        assert(t->usage.connections > 0);
        t->usage.connections--;
}

int tenants_charge_lane(struct tenants *t, uint16_t tenant, uint64_t bytes)
{
        if (bytes > t->limits.lane_bytes || t->usage.lane_bytes > t->limits.lane_bytes - bytes)
                return TENANT_QUOTA;
        t->usage.lane_bytes += bytes;
        t->usage.lanes++;
        return 0;
}

void tenants_uncharge_lane(struct tenants *t, uint16_t tenant, uint64_t bytes)
{
        assert(t->usage.lane_bytes >= bytes && t->usage.lanes > 0);
        t->usage.lane_bytes -= bytes;
        t->usage.lanes--;
}

void tenants_get_usage(const struct tenants *t, uint16_t tenant, struct tenant_usage *ret)
{
        *ret = t->usage;
}
