/* SPDX-License-Identifier: Apache-2.0 */
/* See namespace-counts.h. One pass over the store's list counts the namespaces by tenant and user.
 * It runs again only after the list has changed (store_namespaces_version()), so no caller has to
 * report changes. A user is counted in each tenant separately, because the user's limit depends on
 * the tenant.
 *
 * A hash table by id counts the sessions that have a namespace open. An entry stays until its
 * namespace is removed, so there are at most as many as a store can have namespaces. The entry has
 * the time of the last use too. That time is not on disk: a namespace without an entry counts as
 * used when the counts were created, or when it was made after that. */
#include "tenant/namespace-counts.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "checked.h"
#include "fair/user.h"

enum {
        BUCKETS = 8192, /* at least twice the store's limit, so that a search is short */
        LINES_BURST = 4,
};
static_assert(BUCKETS >= 2 * STORE_MAX_NAMESPACES, "the hash table has room");

/* The number of a user's namespaces in each tenant of the limits, by the tenant's index there, and,
 * as the last element, in all other tenants together. Each counted namespace has a reference to its
 * user. */
struct owner {
        struct fair_state state;
        uint16_t counts[NAMESPACE_MAX_TENANTS + 1];
};

struct use {
        uint32_t id; /* 0 if the bucket is free */
        uint32_t sessions;
        bool is_claimed;    /* a removal of the namespace is in progress */
        uint64_t closed_ms; /* Unix time at which the last session closed the namespace; 0: none has
                             * since startup */
        uint64_t used_ns;   /* time at which the namespace was last found in use; 0: not since
                             * startup */
};

struct namespace_counts {
        const struct store *store;
        uint16_t hidden;
        struct namespace_limits limits;
        struct log_ratelimit lines;

        uint64_t version; /* version of the store's list that was counted */
        bool counted;
        unsigned count, n_hidden;
        uint32_t highest_id; /* highest id ever counted */
        unsigned tenants[NAMESPACE_MAX_TENANTS];
        struct fair_room owners; /* struct owner */
        unsigned unattributed;   /* namespaces whose owner was not counted, for lack of memory */

        struct use uses[BUCKETS];
        unsigned n_uses;
        uint64_t began_ns, began_ms, removed, expired, refused[NAMESPACE_SCOPES];
};

/* Sets the counts of all users to zero, and ends the references of the namespaces counted. */
static void forget_owners(struct namespace_counts *n)
{
        list_for_each_safe (&n->owners.states, i) {
                struct owner *owner = container_of(i, struct owner, state.node);
                struct fair_user *user = owner->state.user;
                unsigned count = 0;

                for (unsigned k = 0; k < ARRAY_SIZE(owner->counts); k++)
                        count += owner->counts[k];
                memset(owner->counts, 0, sizeof(owner->counts));
                while (count-- > 0)
                        fair_user_unref(user);
        }
}

int namespace_counts_new(struct namespace_counts **ret, const struct store *store, uint16_t hidden)
{
        struct namespace_counts *n = calloc(1, sizeof(*n));

        if (!n)
                return -ENOMEM;
        fair_room_init(&n->owners, sizeof(struct owner), NULL, NULL);
        n->store = store;
        n->hidden = hidden;
        n->began_ns = clock_mono_ns();
        n->began_ms = clock_unix_ms();
        n->lines = (struct log_ratelimit)LOG_RATELIMIT_INIT(LINES_BURST);
        *ret = n;
        return 0;
}

struct namespace_counts *namespace_counts_free(struct namespace_counts *n)
{
        if (!n)
                return NULL;
        forget_owners(n);
        fair_room_fini(&n->owners);
        free(n);
        return NULL;
}

void namespace_counts_set_limits(struct namespace_counts *n, const struct namespace_limits *limits)
{
        assert(limits->n_tenants <= NAMESPACE_MAX_TENANTS);
        n->limits = *limits;
        n->counted = false;
}

/* --- counting --- */

static int tenant_index(const struct namespace_counts *n, uint16_t store_tenant)
{
        for (unsigned i = 0; i < n->limits.n_tenants; i++)
                if (n->limits.tenants[i].store_tenant == store_tenant)
                        return (int)i;
        return -1;
}

/* Returns the number of the user's namespaces in a tenant. Namespaces whose owner could not be
 * counted count for each user, so that no limit is exceeded. */
static unsigned user_has(const struct namespace_counts *n, int tenant, uint32_t uid)
{
        const struct owner *owner = (const struct owner *)fair_state_find(&n->owners, uid);

        return (owner ? owner->counts[tenant >= 0 ? tenant : NAMESPACE_MAX_TENANTS] : 0) +
               n->unattributed;
}

static bool count_one(void *userdata, const struct store_namespace *ns)
{
        struct namespace_counts *n = userdata;
        struct owner *owner;
        int tenant;

        n->highest_id = MAX(n->highest_id, ns->id);
        if (ns->tenant == n->hidden) {
                n->n_hidden++;
                return true;
        }
        n->count++;
        tenant = tenant_index(n, ns->tenant);
        if (tenant >= 0)
                n->tenants[tenant]++;
        if (ns->owner == STORE_NO_OWNER)
                return true;
        owner = (struct owner *)fair_state_get(&n->owners, ns->owner);
        if (owner)
                owner->counts[tenant >= 0 ? tenant : NAMESPACE_MAX_TENANTS]++;
        else
                n->unattributed++;
        return true;
}

static void count_all(struct namespace_counts *n)
{
        uint64_t version = store_namespaces_version(n->store);

        if (n->counted && n->version == version)
                return;
        n->count = n->n_hidden = n->unattributed = 0;
        memset(n->tenants, 0, sizeof(n->tenants));
        forget_owners(n);
        store_namespaces_walk(n->store, false, count_one, n);
        n->version = version;
        n->counted = true;
}

/* --- limits --- */

static unsigned store_most(const struct namespace_counts *n)
{
        return STORE_MAX_NAMESPACES - n->n_hidden;
}

static unsigned tenant_most(const struct namespace_counts *n, unsigned i)
{
        unsigned most = n->limits.tenants[i].most;

        return most ? most : MAX(store_most(n) / n->limits.n_tenants, 1u);
}

static unsigned user_most(const struct namespace_counts *n, int tenant)
{
        unsigned of_tenant = tenant >= 0 ? tenant_most(n, (unsigned)tenant) : store_most(n);

        if (n->limits.user)
                return MIN(n->limits.user, of_tenant);
        return MIN(MAX(of_tenant / 2, 1u), (unsigned)NAMESPACE_USER_AUTO);
}

static const char *user_setting(const struct namespace_counts *n, int tenant)
{
        unsigned of_tenant = tenant >= 0 ? tenant_most(n, (unsigned)tenant) : store_most(n);

        if (user_most(n, tenant) < of_tenant)
                return "limits.uid_namespaces";
        if (of_tenant >= store_most(n))
                return "a fixed limit";
        return n->limits.user == of_tenant ? "limits.uid_namespaces and tenants.namespaces"
                                           : "tenants.namespaces";
}

static bool is_near(unsigned has, unsigned most)
{
        return (uint64_t)has * 100 >= (uint64_t)most * NAMESPACE_WARN_PERCENT;
}

static struct namespace_use use_of_user(const struct namespace_counts *n, int tenant, uint32_t uid)
{
        return (struct namespace_use){ NAMESPACES_OF_USER, user_has(n, tenant, uid),
                                       user_most(n, tenant), user_setting(n, tenant) };
}

bool namespace_counts_may_make(struct namespace_counts *n, uint16_t store_tenant, uint32_t uid,
                               struct namespace_use *ret)
{
        struct namespace_use uses[3];
        int tenant;

        count_all(n);
        tenant = tenant_index(n, store_tenant);
        uses[0] = use_of_user(n, tenant, uid);
        uses[1] = (struct namespace_use){ NAMESPACES_OF_TENANT, 0, 1 };
        if (tenant >= 0)
                uses[1] = (struct namespace_use){ NAMESPACES_OF_TENANT, n->tenants[tenant],
                                                  tenant_most(n, (unsigned)tenant) };
        uses[2] = (struct namespace_use){ NAMESPACES_OF_STORE, n->count, store_most(n) };
        for (unsigned i = 0; i < ARRAY_SIZE(uses); i++)
                if (uses[i].has >= uses[i].most) {
                        *ret = uses[i];
                        return false;
                }
        return true;
}

uint32_t namespace_counts_highest_id(struct namespace_counts *n)
{
        count_all(n);
        return n->highest_id;
}

void namespace_counts_count_refusal(struct namespace_counts *n, enum namespace_scope scope)
{
        n->refused[scope]++;
}

static void warn(struct namespace_counts *n, const char *whose, unsigned has, unsigned most,
                 const char *key)
{
        uint32_t held_back;

        if (log_ratelimit_pass(&n->lines, &held_back))
                log_warning("%s has %u of at most %u namespaces (%s); remove unused ones with "
                            "\"kvcachectl namespace rm\"",
                            whose, has, most, key);
}

/* Returns whether the last new namespace made the count reach NAMESPACE_WARN_PERCENT of the
 * limit. */
static bool has_come_near(unsigned has, unsigned most)
{
        return has > 0 && is_near(has, most) && !is_near(has - 1, most);
}

void namespace_counts_made(struct namespace_counts *n, uint16_t store_tenant, uint32_t uid)
{
        unsigned user;
        char whose[96];
        int tenant;

        count_all(n);
        tenant = tenant_index(n, store_tenant);
        user = user_has(n, tenant, uid);
        if (has_come_near(user, user_most(n, tenant))) {
                snprintf(whose, sizeof(whose), "user %u", uid);
                warn(n, whose, user, user_most(n, tenant), user_setting(n, tenant));
        }
        if (tenant >= 0 && n->limits.n_tenants > 1 &&
            has_come_near(n->tenants[tenant], tenant_most(n, (unsigned)tenant))) {
                snprintf(whose, sizeof(whose), "tenant %s", n->limits.tenants[tenant].name);
                warn(n, whose, n->tenants[tenant], tenant_most(n, (unsigned)tenant),
                     "tenants.namespaces");
        }
        if (has_come_near(n->count, store_most(n)))
                warn(n, "the store", n->count, store_most(n), "a fixed limit");
}

void namespace_counts_log_started(struct namespace_counts *n)
{
        char whose[96];

        count_all(n);
        for (unsigned i = 0; n->limits.n_tenants > 1 && i < n->limits.n_tenants; i++)
                if (is_near(n->tenants[i], tenant_most(n, i))) {
                        snprintf(whose, sizeof(whose), "tenant %s", n->limits.tenants[i].name);
                        warn(n, whose, n->tenants[i], tenant_most(n, i), "tenants.namespaces");
                }
        if (is_near(n->count, store_most(n)))
                warn(n, "the store", n->count, store_most(n), "a fixed limit");
}

/* --- sessions that have a namespace open --- */

static unsigned bucket_of(uint32_t id)
{
        return (unsigned)(id * UINT64_C(0x9e3779b97f4a7c15) >> 32) % BUCKETS;
}

/* Returns the namespace's bucket, or the free one for it. */
static struct use *use_find(const struct namespace_counts *n, uint32_t id)
{
        unsigned i = bucket_of(id);

        while (n->uses[i].id != 0 && n->uses[i].id != id)
                i = (i + 1) % BUCKETS;
        return (struct use *)&n->uses[i];
}

/* Returns the namespace's entry, creating it if necessary. Returns NULL if the table is full. */
static struct use *use_make(struct namespace_counts *n, uint32_t id)
{
        struct use *use = use_find(n, id);

        if (use->id == 0) {
                if (n->n_uses == STORE_MAX_NAMESPACES)
                        return NULL;
                n->n_uses++;
                use->id = id;
        }
        return use;
}

int namespace_counts_ref(struct namespace_counts *n, uint32_t id)
{
        struct use *use = use_make(n, id);

        if (!use)
                return -ENOMEM;
        use->sessions++;
        return 0;
}

void namespace_counts_unref(struct namespace_counts *n, uint32_t id)
{
        struct use *use = use_find(n, id);

        assert(use->id == id && use->sessions > 0);
        if (--use->sessions > 0)
                return;
        use->closed_ms = clock_unix_ms();
        use->used_ns = clock_mono_ns();
}

unsigned namespace_counts_sessions(const struct namespace_counts *n, uint32_t id)
{
        return use_find(n, id)->sessions;
}

uint64_t namespace_counts_last_used_ms(const struct namespace_counts *n, uint32_t id)
{
        const struct use *use = use_find(n, id);

        return use->sessions > 0 ? clock_unix_ms() : use->closed_ms;
}

/* Frees a bucket, and moves later entries of the same run of used buckets forward, so that every
 * search still ends at a free bucket. */
static void use_forget(struct namespace_counts *n, struct use *use)
{
        unsigned hole = (unsigned)(use - n->uses), i = hole;

        n->n_uses--;
        n->uses[hole] = (struct use){ 0 };
        for (;;) {
                unsigned home;

                i = (i + 1) % BUCKETS;
                if (n->uses[i].id == 0)
                        return;
                home = bucket_of(n->uses[i].id);
                if ((i - home) % BUCKETS < (i - hole) % BUCKETS)
                        continue;
                n->uses[hole] = n->uses[i];
                n->uses[i] = (struct use){ 0 };
                hole = i;
        }
}

void namespace_counts_removed(struct namespace_counts *n, uint32_t id)
{
        struct use *use = use_find(n, id);

        n->removed++;
        if (use->id == 0)
                return;
        assert(use->sessions == 0);
        use_forget(n, use);
}

/* --- unused namespaces --- */

void namespace_counts_note_used(struct namespace_counts *n, uint32_t id)
{
        struct use *use = store_namespace_get(n->store, id) ? use_make(n, id) : NULL;

        if (use)
                use->used_ns = clock_mono_ns();
}

void namespace_counts_claim(struct namespace_counts *n, uint32_t id, bool claimed)
{
        struct use *use = claimed ? use_make(n, id) : use_find(n, id);

        if (use && use->id == id)
                use->is_claimed = claimed;
}

struct search {
        struct namespace_counts *namespace_counts;
        int tenant;
        uint32_t owner;
        uint64_t now_ns, created_ms;
        struct unused_namespace found; /* id 0 if none yet */
};

/* Returns the time since which a namespace without chunks and sessions has been unused. */
static uint64_t unused_since_ns(const struct search *search, const struct store_namespace *ns)
{
        const struct namespace_counts *n = search->namespace_counts;
        const struct use *use = use_find(n, ns->id);
        uint64_t made_ms = ns->created_ms > n->began_ms ? ns->created_ms - n->began_ms : 0;

        if (use->used_ns > 0)
                return use->used_ns;
        return MIN(n->began_ns + made_ms * 1000000, search->now_ns);
}

static bool search_one(void *userdata, const struct store_namespace *ns)
{
        struct search *search = userdata;
        struct namespace_counts *n = search->namespace_counts;
        struct use *use = ns->chunks > 0 ? use_make(n, ns->id) : use_find(n, ns->id);
        uint64_t since_ns;

        if (ns->chunks > 0) {
                if (use)
                        use->used_ns = search->now_ns;
                return true;
        }
        if (use->sessions > 0 || use->is_claimed || ns->tenant == n->hidden ||
            (search->tenant >= 0 && ns->tenant != search->tenant) ||
            (search->owner != STORE_NO_OWNER && ns->owner != search->owner))
                return true;
        /* Namespaces that were not used since a restart count as unused since the restart. The one
         * that was made first is preferred. */
        since_ns = unused_since_ns(search, ns);
        if (search->found.id == 0 || since_ns < search->found.since_ns ||
            (since_ns == search->found.since_ns && ns->created_ms < search->created_ms)) {
                search->found = (struct unused_namespace){ ns->id, since_ns };
                search->created_ms = ns->created_ms;
        }
        return true;
}

bool namespace_counts_find_unused(struct namespace_counts *n, int tenant, uint32_t owner,
                                  struct unused_namespace *ret)
{
        struct search search = {
                .namespace_counts = n, .tenant = tenant, .owner = owner, .now_ns = clock_mono_ns()
        };

        store_namespaces_walk(n->store, true, search_one, &search);
        if (search.found.id == 0)
                return false;
        *ret = search.found;
        return true;
}

void namespace_counts_count_expired(struct namespace_counts *n)
{
        n->expired++;
}

/* --- statistics --- */

void namespace_counts_get_stats(struct namespace_counts *n, struct namespace_counts_stats *ret)
{
        count_all(n);
        *ret = (struct namespace_counts_stats){
                .count = n->count,
                .most = store_most(n),
                .store_near = is_near(n->count, store_most(n)),
                .removed = n->removed,
                .expired = n->expired,
        };
        memcpy(ret->refused, n->refused, sizeof(ret->refused));
        for (unsigned i = 0; i < n->limits.n_tenants; i++)
                ret->tenants_near += is_near(n->tenants[i], tenant_most(n, i));
        list_for_each (&n->owners.states, i) {
                const struct owner *owner = container_of(i, struct owner, state.node);

                for (int k = 0; k < (int)ARRAY_SIZE(owner->counts); k++)
                        ret->users_near +=
                                owner->counts[k] > 0 &&
                                is_near(owner->counts[k],
                                        user_most(n, k < NAMESPACE_MAX_TENANTS ? k : -1));
        }
}

bool namespace_counts_get_tenant(struct namespace_counts *n, uint16_t store_tenant,
                                 struct namespace_use *ret)
{
        int i = tenant_index(n, store_tenant);

        if (i < 0)
                return false;
        count_all(n);
        *ret = (struct namespace_use){ NAMESPACES_OF_TENANT, n->tenants[i],
                                       tenant_most(n, (unsigned)i) };
        return true;
}

struct namespace_use namespace_counts_get_user(struct namespace_counts *n, uint16_t store_tenant,
                                               uint32_t uid)
{
        int tenant = tenant_index(n, store_tenant);

        count_all(n);
        return use_of_user(n, tenant, uid);
}

struct selection {
        uint16_t hidden;
        struct largest_namespaces *ret;
        int only;
};

static bool is_larger(const struct store_namespace *a, const struct store_namespace *b)
{
        return a->bytes != b->bytes ? a->bytes > b->bytes : a->id < b->id;
}

static bool select_one(void *userdata, const struct store_namespace *ns)
{
        const struct selection *selection = userdata;
        struct largest_namespaces *l = selection->ret;
        unsigned i;

        if (ns->tenant == selection->hidden ||
            (selection->only >= 0 && ns->tenant != selection->only))
                return true;
        l->count++;
        l->chunks += ns->chunks;
        l->bytes += ns->bytes;
        if (l->n == NAMESPACE_LARGEST_MAX && !is_larger(ns, &l->list[NAMESPACE_LARGEST_MAX - 1]))
                return true;
        if (l->n < NAMESPACE_LARGEST_MAX)
                l->n++;
        for (i = l->n - 1; i > 0 && is_larger(ns, &l->list[i - 1]); i--)
                l->list[i] = l->list[i - 1];
        l->list[i] = *ns;
        return true;
}

void namespace_counts_get_largest(const struct namespace_counts *n, int only,
                                  struct largest_namespaces *ret)
{
        *ret = (struct largest_namespaces){ 0 };
        store_namespaces_walk(n->store, true, select_one,
                              &(struct selection){ n->hidden, ret, only });
}
