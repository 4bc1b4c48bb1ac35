/* SPDX-License-Identifier: Apache-2.0 */
/* See quota.h. Owns the tenants' users and groups, as resolved at startup, and a state of each user
 * with a charge (fair/user.h). Each holder refers to its user.
 *
 * Failures: a user or group that the host does not know fails startup with a text that names it. A
 * refused charge returns the account whose limit is reached, and charges nothing. */
#include "tenant/quota.h"

#include <assert.h>
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"
#include "fair/user.h"
#include "units.h"

enum { UID_NOBODY = 65534 };

struct ids {
        uint32_t *items;
        unsigned n;
};

/* An account with its limits: of a tenant, or of all tenants together. */
struct level {
        struct quota_limits most;
        uint64_t used[QUOTA_THINGS];
};

struct quota_tenant {
        char *name;
        struct ids users, groups;
        struct level level;
        struct quota_limits connection;
        uint64_t refused[QUOTA_THINGS];
};

struct quota_user {
        struct fair_state state;
        uint64_t used[QUOTA_THINGS];
};

struct quotas {
        struct quota_tenant list[TENANTS_MAX];
        unsigned n;
        struct ids admin_users, admin_groups;
        struct level all;
        struct quota_limits user_limits;
        struct fair_room users; /* struct quota_user */
};

static bool has_charge(const struct quota_user *user)
{
        for (unsigned i = 0; i < QUOTA_THINGS; i++)
                if (user->used[i] > 0)
                        return true;
        return false;
}

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
                p.n_groups = 0; /* more groups than fit; only the primary group counts */
        *ret = p;
        return 0;
}

static int resolve(struct ids *ret, char *const *names, unsigned n, bool groups, char *ret_error)
{
        ret->items = calloc(n ? n : 1, sizeof(*ret->items));
        if (!ret->items)
                return -ENOMEM;
        for (unsigned i = 0; i < n; i++) {
                const struct passwd *user = NULL;
                const struct group *group = NULL;
                uint64_t number;

                if (units_parse_count(names[i], &number) == 0 && number < UINT32_MAX) {
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

DEFINE_CLEANUP(struct quotas *, quotas_free);

int quotas_new(struct quotas **ret, const struct quota_params *params, unsigned n,
               const struct quota_access *admins, const struct quota_limits *all,
               const struct quota_limits *user, char ret_error[static 256])
{
        _cleanup_(quotas_freep) struct quotas *t = calloc(1, sizeof(*t));
        int r;

        assert(n > 0 && n <= TENANTS_MAX);
        if (!t)
                return -ENOMEM;
        t->all.most = *all;
        t->user_limits = *user;
        fair_room_init(&t->users, sizeof(struct quota_user), NULL, NULL);
        if ((r = resolve(&t->admin_users, admins->users, admins->n_users, false, ret_error)) < 0 ||
            (r = resolve(&t->admin_groups, admins->groups, admins->n_groups, true, ret_error)) < 0)
                return r;
        for (t->n = 0; t->n < n; t->n++) {
                const struct quota_access *access = &params[t->n].access;
                struct quota_tenant *tenant = &t->list[t->n];

                tenant->level.most = params[t->n].limits;
                for (unsigned k = 0; k < QUOTA_THINGS; k++)
                        tenant->connection.most[k] = QUOTA_NO_LIMIT;
                tenant->name = strdup(params[t->n].name);
                r = tenant->name ? 0 : -ENOMEM;
                if (r == 0)
                        r = resolve(&tenant->users, access->users, access->n_users, false,
                                    ret_error);
                if (r == 0)
                        r = resolve(&tenant->groups, access->groups, access->n_groups, true,
                                    ret_error);
                if (r < 0) {
                        t->n++; /* from here on, quotas_free() frees this tenant, too */
                        return r;
                }
        }
        *ret = TAKE_PTR(t);
        return 0;
}

struct quotas *quotas_free(struct quotas *t)
{
        if (!t)
                return NULL;
        for (unsigned i = 0; i < t->n; i++) {
                free(t->list[i].name);
                free(t->list[i].users.items);
                free(t->list[i].groups.items);
        }
        free(t->admin_users.items);
        free(t->admin_groups.items);
        assert(quotas_users(t) == 0);
        fair_room_fini(&t->users);
        free(t);
        return NULL;
}

void quotas_set_limits(struct quotas *t, unsigned tenant, const struct quota_limits *limits)
{
        assert(tenant < t->n);
        t->list[tenant].level.most = *limits;
}

void quotas_set_connection_limits(struct quotas *t, unsigned tenant,
                                  const struct quota_limits *limits)
{
        assert(tenant < t->n);
        t->list[tenant].connection = *limits;
}

void quotas_set_common_limits(struct quotas *t, const struct quota_limits *all,
                              const struct quota_limits *user)
{
        t->all.most = *all;
        t->user_limits = *user;
}

/* --- identification --- */

static bool contains(const struct ids *ids, uint32_t id)
{
        for (unsigned i = 0; i < ids->n; i++)
                if (ids->items[i] == id)
                        return true;
        return false;
}

/* Returns whether the lists name the peer. For a peer whose uid the kernel could not map (65534),
 * only the list of users counts, not its groups. */
static bool is_among(const struct ids *users, const struct ids *groups, const struct peer *p)
{
        if (contains(users, p->uid))
                return true;
        if (p->uid == UID_NOBODY && geteuid() != UID_NOBODY)
                return false;
        if (contains(groups, p->gid))
                return true;
        for (unsigned i = 0; i < p->n_groups; i++)
                if (contains(groups, p->groups[i]))
                        return true;
        return false;
}

int quotas_identify(const struct quotas *t, const struct peer *p, unsigned *ret_tenant,
                    bool *ret_admin)
{
        const struct quota_tenant *last = &t->list[TENANT_DEFAULT];
        bool unmapped = p->uid == UID_NOBODY && geteuid() != UID_NOBODY;
        bool anyone = last->users.n == 0 && last->groups.n == 0 && !unmapped;
        bool own = p->uid == geteuid() &&
                   p->uid != UID_NOBODY; /* an unmapped uid may be any user, even if the daemon runs
                                            as that uid */
        bool admin =
                p->uid == 0 || own || (!unmapped && is_among(&t->admin_users, &t->admin_groups, p));

        for (unsigned i = 1; i < t->n; i++)
                if (is_among(&t->list[i].users, &t->list[i].groups, p)) {
                        *ret_tenant = i;
                        *ret_admin = admin;
                        return 0;
                }
        if (!anyone && !admin && !is_among(&last->users, &last->groups, p))
                return QUOTA_REFUSED;
        *ret_tenant = TENANT_DEFAULT;
        *ret_admin = admin;
        return 0;
}

static uint64_t digest_extend(uint64_t digest, const void *bytes, size_t n)
{
        for (size_t i = 0; i < n; i++)
                digest = (digest ^ ((const uint8_t *)bytes)[i]) * UINT64_C(0x100000001b3);
        return digest;
}

static uint64_t digest_ids(uint64_t digest, const struct ids *ids)
{
        digest = digest_extend(digest, &ids->n, sizeof(ids->n));
        return digest_extend(digest, ids->items, ids->n * sizeof(*ids->items));
}

/* The digest is FNV-1a: an administrator wrote the configuration, so no input is chosen to
 * collide. */
uint64_t quotas_digest(const struct quotas *t)
{
        uint64_t digest = UINT64_C(0xcbf29ce484222325);
        uid_t own = geteuid();

        digest = digest_extend(digest, &own, sizeof(own));
        digest = digest_ids(digest, &t->admin_users);
        digest = digest_ids(digest, &t->admin_groups);
        for (unsigned i = 0; i < t->n; i++) {
                digest = digest_extend(digest, t->list[i].name, strlen(t->list[i].name) + 1);
                digest = digest_ids(digest, &t->list[i].users);
                digest = digest_ids(digest, &t->list[i].groups);
        }
        return digest;
}

/* --- charges --- */

uid_t quota_user_uid(const struct quota_user *user)
{
        return user->state.user->uid;
}

static bool fits(uint64_t used, uint64_t amount, uint64_t most)
{
        uint64_t sum;

        return checked_add(used, amount, &sum) && sum <= most;
}

/* Returns whether the user, once charged, would hold at most QUOTA_SHARE times the part of the
 * total limit that would then be unused. Admins, and things without a shared limit, always pass. */
static bool within_share(const struct quota_holder *h, enum quota_thing what, uint64_t amount)
{
        const struct quotas *t = h->tenants;
        uint64_t used, left;

        if (h->admin || !t->user_limits.shared[what] || t->all.most.most[what] == QUOTA_NO_LIMIT)
                return true;
        /* the caller has checked that the sums fit the limit and do not overflow */
        used = h->user->used[what] + amount;
        left = t->all.most.most[what] - t->all.used[what] - amount;
        return used / QUOTA_SHARE + (used % QUOTA_SHARE > 0) <= left;
}

void quota_charge_anyway(struct quota_holder *h, enum quota_thing what, uint64_t amount)
{
        h->used[what] += amount;
        h->user->used[what] += amount;
        h->tenants->list[h->tenant].level.used[what] += amount;
        h->tenants->all.used[what] += amount;
}

/* Returns 0, or the enum quota_answer of the limit that refuses the charge. */
static int check(const struct quota_holder *h, enum quota_thing what, uint64_t amount)
{
        const struct quotas *t = h->tenants;
        const struct quota_tenant *tenant = &t->list[h->tenant];

        if (tenant->connection.most[what] != QUOTA_NO_LIMIT &&
            !fits(h->used[what], amount, tenant->connection.most[what]))
                return QUOTA_OVER_CONNECTION;
        if (!fits(h->user->used[what], amount, t->user_limits.most[what]))
                return QUOTA_OVER_USER;
        if (!fits(tenant->level.used[what], amount, tenant->level.most.most[what]))
                return QUOTA_OVER_TENANT;
        return fits(t->all.used[what], amount, t->all.most.most[what]) &&
                               within_share(h, what, amount)
                       ? 0
                       : QUOTA_FULL;
}

bool quota_has_room(const struct quota_holder *h, enum quota_thing what, uint64_t amount)
{
        return check(h, what, amount) == 0;
}

int quota_charge(struct quota_holder *h, enum quota_thing what, uint64_t amount)
{
        int r = check(h, what, amount);

        if (r != 0) {
                h->tenants->list[h->tenant].refused[what]++;
                return r;
        }
        quota_charge_anyway(h, what, amount);
        return 0;
}

void quota_uncharge(struct quota_holder *h, enum quota_thing what, uint64_t amount)
{
        assert(h->used[what] >= amount);
        h->used[what] -= amount;
        h->user->used[what] -= amount;
        h->tenants->list[h->tenant].level.used[what] -= amount;
        h->tenants->all.used[what] -= amount;
}

void quota_settle(struct quota_holder *h, enum quota_thing what, uint64_t used)
{
        if (h->used[what] > used)
                quota_uncharge(h, what, h->used[what] - used);
}

void quota_hand_over(struct quota_holder *to, struct quota_holder *from, enum quota_thing what,
                     uint64_t amount)
{
        if (!to->tenants) {
                *to = (struct quota_holder){ .tenants = from->tenants,
                                             .user = from->user,
                                             .tenant = from->tenant,
                                             .admin = from->admin };
                fair_user_ref(to->user->state.user);
        }
        assert(to->user == from->user && to->tenant == from->tenant);
        assert(from->used[what] >= amount);
        from->used[what] -= amount;
        to->used[what] += amount;
}

int quota_holder_open(struct quota_holder *ret, struct quotas *t, unsigned tenant, uid_t uid)
{
        struct quota_holder h = { .tenants = t, .tenant = tenant };
        int r;

        assert(tenant < t->n);
        h.user = (struct quota_user *)fair_state_get(&t->users, uid);
        if (!h.user)
                return -ENOMEM;
        r = quota_charge(&h, QUOTA_CONNECTIONS, 1);
        if (r != 0) {
                fair_user_unref(h.user->state.user);
                return r;
        }
        *ret = h;
        return 0;
}

void quota_holder_close(struct quota_holder *h)
{
        if (!h->tenants)
                return;
        for (unsigned i = 0; i < QUOTA_THINGS; i++)
                quota_uncharge(h, (enum quota_thing)i, h->used[i]);
        fair_user_unref(h->user->state.user);
        *h = (struct quota_holder){ 0 };
}

/* --- statistics --- */

const char *quota_thing_name(enum quota_thing what)
{
        static const char *const names[] = {
                [QUOTA_CONNECTIONS] = "connections",
                [QUOTA_LEASES] = "leases",
                [QUOTA_LEASED_BYTES] = "leased bytes",
                [QUOTA_STAGINGS] = "stagings",
                [QUOTA_STAGING_BYTES] = "staging bytes",
                [QUOTA_REGISTERED_BYTES] = "registered bytes",
                [QUOTA_REGIONS] = "registered buffers",
                [QUOTA_KEYS] = "keys in flight",
                [QUOTA_REQUESTS] = "requests in flight",
                [QUOTA_REQUEST_BYTES] = "bytes of memory for requests",
                [QUOTA_UNREAD_FDS] = "descriptors in unread replies",
                [QUOTA_DEFERRED_FDS] = "descriptors of deferred requests",
                [QUOTA_LOANS] = "loans",
                [QUOTA_LOANED_BYTES] = "loaned bytes",
                [QUOTA_FILES] = "registered files",
        };

        return names[what];
}

const char *quota_thing_key(enum quota_thing what)
{
        static const char *const keys[QUOTA_THINGS] = {
                [QUOTA_CONNECTIONS] = "connections",     [QUOTA_LEASES] = "leases",
                [QUOTA_LEASED_BYTES] = "leased_bytes",   [QUOTA_STAGING_BYTES] = "staging_bytes",
                [QUOTA_REGISTERED_BYTES] = "registered", [QUOTA_KEYS] = "keys",
                [QUOTA_REQUESTS] = "requests",           [QUOTA_REQUEST_BYTES] = "request_memory",
                [QUOTA_UNREAD_FDS] = "unread_fds",
        };

        return keys[what];
}

const char *quotas_tenant_name(const struct quotas *t, unsigned tenant)
{
        assert(tenant < t->n);
        return t->list[tenant].name;
}

void quotas_get_usage(const struct quotas *t, unsigned tenant, struct quota_usage *ret)
{
        const struct quota_tenant *of = &t->list[tenant];

        assert(tenant < t->n);
        *ret = (struct quota_usage){ 0 };
        for (unsigned i = 0; i < QUOTA_THINGS; i++) {
                ret->used[i] = of->level.used[i];
                ret->most[i] = of->level.most.most[i];
                ret->refused[i] = of->refused[i];
        }
}

void quotas_get_total(const struct quotas *t, struct quota_usage *ret)
{
        *ret = (struct quota_usage){ 0 };
        for (unsigned i = 0; i < QUOTA_THINGS; i++) {
                ret->used[i] = t->all.used[i];
                ret->most[i] = t->all.most.most[i];
                for (unsigned k = 0; k < t->n; k++)
                        ret->refused[i] += t->list[k].refused[i];
        }
}

void quotas_get_user_limits(const struct quotas *t, struct quota_limits *ret)
{
        *ret = t->user_limits;
}

void quotas_get_largest_user(const struct quotas *t, uint64_t ret[static QUOTA_THINGS])
{
        memset(ret, 0, QUOTA_THINGS * sizeof(*ret));
        list_for_each (&t->users.states, n) {
                const struct quota_user *user = container_of(n, struct quota_user, state.node);

                for (unsigned i = 0; i < QUOTA_THINGS; i++)
                        ret[i] = MAX(ret[i], user->used[i]);
        }
}

uint64_t quotas_users(const struct quotas *t)
{
        uint64_t count = 0;

        list_for_each (&t->users.states, n)
                count += has_charge(container_of(n, struct quota_user, state.node));
        return count;
}
