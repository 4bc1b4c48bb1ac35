/* SPDX-License-Identifier: Apache-2.0 */
/* The store's list of namespaces, by which each namespace has the same id on every volume.
 *
 * Each volume keeps a list of its own on disk. At startup these lists are merged into this one
 * (set_namespaces_learn()). Before a volume is used, it receives a copy of the whole list
 * (set_namespaces_snapshot()). A new namespace gets its id here; fan-out.c then creates it on the
 * volumes, and also removes namespaces from the volumes. The numbers of chunks and bytes of a
 * namespace are added up on request.
 *
 * Ids ascend. After the last one, ids of removed namespaces are given again. A volume notes its
 * present sequence when it creates a namespace, so older chunks under the same id stay dead.
 *
 * Loop thread; only a snapshot is passed to a volume's thread. Owns the list, the next id, and the
 * version of the list, by which a resume detects that its snapshot is outdated. Each struct
 * set_namespace is reference counted.
 *
 * Failures: startup, or the resume of a volume, fails if the lists of two volumes contradict each
 * other. If memory is short, or no id is free, no namespace is created. A namespace whose creation
 * failed on all volumes is removed from the list. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/search.h"
#include "checked.h"
#include "store/volume/namespace.h"
#include "store/internal.h"

/* Returns the position of an id in the list, or the position at which to insert it. */
static unsigned position_of(const struct store *s, uint32_t id)
{
        return search_first(s->n_namespaces, i, s->namespaces[i]->seen.id < id);
}

struct set_namespace *set_namespaces_by_id(const struct store *s, uint32_t id)
{
        unsigned i = position_of(s, id);

        return i < s->n_namespaces && s->namespaces[i]->seen.id == id ? s->namespaces[i] : NULL;
}

static struct set_namespace *namespace_by_name(const struct store *s, uint16_t tenant,
                                               const char *name, size_t length)
{
        uint64_t hash = names_hash(&s->params.secret, tenant, name, length);

        for (struct name_node *i = names_first(&s->names, hash); i; i = i->next) {
                struct set_namespace *ns = container_of(i, struct set_namespace, node);

                if (i->hash == hash && ns->seen.tenant == tenant &&
                    strlen(ns->seen.name) == length && memcmp(ns->seen.name, name, length) == 0)
                        return ns;
        }
        return NULL;
}

struct set_namespace *set_namespaces_ref(struct set_namespace *ns)
{
        ns->refs++;
        return ns;
}

void set_namespaces_unref(struct set_namespace *ns)
{
        if (!ns || --ns->refs > 0)
                return;
        free((char *)ns->seen.name);
        free((char *)ns->seen.fingerprint);
        free(ns);
}

static int namespace_add(struct store *s, const struct store_namespace *from, size_t name_length,
                         size_t fingerprint_length, struct set_namespace **ret)
{
        struct set_namespace *ns;
        unsigned i;

        if (s->n_namespaces == s->namespaces_room) {
                unsigned room = s->namespaces_room ? 2 * s->namespaces_room : 16;
                void *p = realloc(s->namespaces, room * sizeof(s->namespaces[0]));

                if (!p)
                        return -ENOMEM;
                s->namespaces = p;
                s->namespaces_room = room;
        }
        ns = calloc(1, sizeof(*ns));
        if (!ns)
                return -ENOMEM;
        ns->refs = 1;
        ns->listed = true;
        ns->seen.id = from->id;
        ns->seen.tenant = from->tenant;
        ns->seen.chunk_bytes = from->chunk_bytes;
        ns->seen.owner = from->owner;
        ns->seen.created_ms = from->created_ms;
        ns->seen.lifetime_s = namespaces_lifetime(from->lifetime_s);
        ns->seen.name = strndup(from->name, name_length);
        ns->seen.fingerprint = strndup(from->fingerprint, fingerprint_length);
        if (!ns->seen.name || !ns->seen.fingerprint) {
                set_namespaces_unref(ns);
                return -ENOMEM;
        }
        i = position_of(s, ns->seen.id);
        memmove(&s->namespaces[i + 1], &s->namespaces[i],
                (s->n_namespaces - i) * sizeof(s->namespaces[0]));
        s->namespaces[i] = ns;
        s->n_namespaces++;
        names_insert(&s->names, &ns->node,
                     names_hash(&s->params.secret, ns->seen.tenant, ns->seen.name, name_length));
        s->n_lifetimes += ns->seen.lifetime_s > 0;
        s->changes++;
        *ret = ns;
        return 0;
}

static void set_lifetime(struct store *s, struct set_namespace *ns, uint32_t lifetime_s)
{
        lifetime_s = namespaces_lifetime(lifetime_s);
        if (ns->seen.lifetime_s == lifetime_s)
                return;
        s->n_lifetimes += (lifetime_s > 0) - (unsigned)(ns->seen.lifetime_s > 0);
        ns->seen.lifetime_s = lifetime_s;
        s->changes++;
}

void set_namespaces_remove(struct store *s, struct set_namespace *ns)
{
        unsigned i = position_of(s, ns->seen.id);

        assert(ns->listed && s->namespaces[i] == ns);
        s->n_namespaces--;
        memmove(&s->namespaces[i], &s->namespaces[i + 1],
                (s->n_namespaces - i) * sizeof(s->namespaces[0]));
        names_remove(&s->names, &ns->node);
        s->n_lifetimes -= ns->seen.lifetime_s > 0;
        s->changes++;
        ns->listed = false;
        set_namespaces_unref(ns);
}

void set_namespaces_forget(struct store *s, struct set_namespace *ns)
{
        bool in_snapshot = false;

        if (!ns->listed || ns->opens > 0 || s->up == 0)
                return;
        for (unsigned i = 0; i < s->n_volumes; i++) {
                const struct member *p = &s->volumes[i];

                if ((member_is_up(s, i) && volume_namespace_get(p->volume, ns->seen.id)) ||
                    (!p->calling && p->next && volume_namespace_get(p->next, ns->seen.id)))
                        return;
                /* a volume that is being resumed may take the namespace over from its snapshot;
                 * set_namespaces_release() then calls this function again */
                for (unsigned j = 0; p->snapshot && j < p->snapshot->n; j++)
                        in_snapshot = in_snapshot || p->snapshot->list[j] == ns;
        }
        ns->refused = in_snapshot;
        if (!in_snapshot)
                set_namespaces_remove(s, ns);
}

void set_namespaces_fini(struct store *s)
{
        for (unsigned i = 0; i < s->n_namespaces; i++)
                set_namespaces_unref(s->namespaces[i]);
        free(s->namespaces);
}

int set_namespaces_snapshot(const struct store *s, struct namespaces_snapshot **ret,
                            struct volume_join *ret_join)
{
        const unsigned n = s->n_namespaces;
        struct namespaces_snapshot *x = calloc(1, sizeof(*x));

        if (x) {
                x->seen = calloc(n + 1, sizeof(x->seen[0]));
                x->list = calloc(n + 1, sizeof(x->list[0]));
        }
        if (!x || !x->seen || !x->list) {
                if (x) {
                        free(x->seen);
                        free(x->list);
                }
                free(x);
                return -ENOMEM;
        }
        x->n = n;
        for (unsigned i = 0; i < n; i++) {
                x->list[i] = set_namespaces_ref(s->namespaces[i]);
                x->seen[i] = s->namespaces[i]->seen;
        }
        *ret = x;
        *ret_join = (struct volume_join){
                .namespaces = x->seen,
                .n_namespaces = n,
                .next_id = s->next_id,
                .in_set = s->in_set,
                .set = s->sum,
        };
        return 0;
}

struct namespaces_snapshot *set_namespaces_release(struct store *s, struct namespaces_snapshot *x)
{
        if (!x)
                return NULL;
        for (unsigned i = 0; i < x->n; i++) {
                if (x->list[i]->refused) {
                        x->list[i]->refused = false;
                        set_namespaces_forget(s, x->list[i]);
                }
                set_namespaces_unref(x->list[i]);
        }
        free(x->seen);
        free(x->list);
        free(x);
        return NULL;
}

static bool is_same(const struct store_namespace *a, const struct store_namespace *b)
{
        return a->id == b->id && a->tenant == b->tenant && strcmp(a->name, b->name) == 0 &&
               strcmp(a->fingerprint, b->fingerprint) == 0;
}

/* Returns whether the namespace may have been removed while `p`, which lists it, was offline. */
static bool may_be_removed(const struct store *s, const struct member *p,
                           const struct store_namespace *ns)
{
        for (unsigned i = 0; i < s->n_volumes; i++) {
                const struct member *q = &s->volumes[i];
                const struct store_namespace *its;

                if (q == p || !member_is_up(s, i) || !membership_has_missed_removal(p, q))
                        continue;
                its = volume_namespace_get(q->volume, ns->id);
                if (!its || !is_same(its, ns))
                        return true;
        }
        return namespace_by_name(s, ns->tenant, ns->name, strlen(ns->name));
}

static int check(struct store *s, const struct member *p, char ret_error[static STORE_ERROR_BYTES])
{
        struct namespaces_snapshot *copies;
        struct volume_join *join = malloc(sizeof(*join));
        int r = join ? set_namespaces_snapshot(s, &copies, join) : -ENOMEM;

        if (r == 0) {
                r = volume_check_namespaces(p->volume, join, ret_error);
                set_namespaces_release(s, copies);
        }
        free(join);
        return r;
}

int set_namespaces_learn(struct store *s, const struct member *p, bool behind,
                         char ret_error[static STORE_ERROR_BYTES])
{
        const struct store_namespace *ns;
        int r = behind ? 0 : check(s, p, ret_error);

        for (unsigned i = 0; r == 0 && (ns = volume_namespace_at(p->volume, i)); i++) {
                struct set_namespace *known = set_namespaces_by_id(s, ns->id), *added;

                /* the lifetimes differ if one was set while a volume was offline, or a crash came
                 * between the writes; the shortest one applies */
                if (known && ns->lifetime_s > 0 &&
                    (known->seen.lifetime_s == 0 || ns->lifetime_s < known->seen.lifetime_s))
                        set_lifetime(s, known, ns->lifetime_s);
                if (!known && !(behind && may_be_removed(s, p, ns)))
                        r = namespace_add(s, ns, strlen(ns->name), strlen(ns->fingerprint), &added);
        }
        if (r == -ENOMEM)
                return store_error(ret_error, r, "out of memory for the store");
        if (r < 0)
                return r;
        s->next_id = MAX(s->next_id, volume_next_id(p->volume));
        membership_learn(s, p->volume);
        return 0;
}

/* Returns a free id, or 0 if there is none. */
static uint32_t free_id(struct store *s)
{
        if (s->next_id < UINT32_MAX) {
                uint32_t id = MAX(s->next_id, 1u);

                s->next_id = id + 1;
                return id;
        }
        for (unsigned i = 0; i <= STORE_MAX_NAMESPACES; i++) {
                s->reused_id = s->reused_id >= UINT32_MAX - 1 ? 1 : s->reused_id + 1;
                if (!set_namespaces_by_id(s, s->reused_id))
                        return s->reused_id;
        }
        return 0;
}

int set_namespaces_prepare(struct store *s, const struct store_namespace_open *req,
                           struct set_namespace **ret)
{
        struct set_namespace *ns;
        int r;

        if (!namespaces_may_open(req))
                return -EINVAL;
        ns = namespace_by_name(s, req->tenant, req->name, req->name_length);
        if (ns && !(req->attach && req->fingerprint_length == 0) &&
            (strlen(ns->seen.fingerprint) != req->fingerprint_length ||
             memcmp(ns->seen.fingerprint, req->fingerprint, req->fingerprint_length) != 0)) {
                *ret = set_namespaces_ref(ns);
                return STORE_MISMATCH;
        }
        if (!ns && req->attach)
                return STORE_MISS;
        if (!ns) {
                uint32_t id = s->n_namespaces < STORE_MAX_NAMESPACES ? free_id(s) : 0;

                if (id == 0)
                        return -ENOSPC;
                r = namespace_add(s,
                                  &(struct store_namespace){
                                          .id = id,
                                          .tenant = req->tenant,
                                          .name = req->name,
                                          .fingerprint = req->fingerprint,
                                          .chunk_bytes = req->chunk_bytes,
                                          .owner = req->owner,
                                          .created_ms = clock_unix_ms(),
                                          .lifetime_s = req->lifetime_s,
                                  },
                                  req->name_length, req->fingerprint_length, &ns);
                if (r < 0)
                        return r;
        } else if (req->chunk_bytes != 0 && req->chunk_bytes != ns->seen.chunk_bytes) {
                ns->seen.chunk_bytes = req->chunk_bytes;
                s->changes++;
        }
        if (req->set_lifetime)
                set_lifetime(s, ns, req->lifetime_s);
        *ret = set_namespaces_ref(ns);
        return 0;
}

static const struct store_namespace *with_counts(const struct store *s, struct set_namespace *ns)
{
        if (!ns)
                return NULL;
        ns->seen.chunks = ns->seen.bytes = 0;
        for (unsigned i = 0; i < s->n_volumes; i++) {
                const struct store_namespace *part =
                        member_is_up(s, i) ? volume_namespace_get(s->volumes[i].volume, ns->seen.id)
                                           : NULL;

                if (!part)
                        continue;
                ns->seen.chunks += part->chunks;
                ns->seen.bytes += part->bytes;
        }
        return &ns->seen;
}

const struct store_namespace *store_namespace_get(const struct store *s, uint32_t id)
{
        return with_counts(s, set_namespaces_by_id(s, id));
}

uint32_t store_lifetime_s(const struct store *s, uint32_t id)
{
        const struct set_namespace *ns = s->n_lifetimes > 0 ? set_namespaces_by_id(s, id) : NULL;

        return ns ? ns->seen.lifetime_s : 0;
}

unsigned store_lifetimes(const struct store *s)
{
        return s->n_lifetimes;
}

const struct store_namespace *store_namespace_at(const struct store *s, unsigned i)
{
        return i < s->n_namespaces ? with_counts(s, s->namespaces[i]) : NULL;
}

const struct store_namespace *store_namespace_find(const struct store *s, uint16_t tenant,
                                                   const char *name, size_t length)
{
        const struct set_namespace *ns = namespace_by_name(s, tenant, name, length);

        return ns ? &ns->seen : NULL;
}

uint64_t store_namespaces_version(const struct store *s)
{
        return s->changes;
}

/* Walks the store's list and those of the volumes in parallel. All are in ascending order of id, so
 * each list is traversed once. */
void store_namespaces_walk(const struct store *s, bool counted,
                           bool (*each)(void *userdata, const struct store_namespace *ns),
                           void *userdata)
{
        unsigned at[STORE_MAX_VOLUMES] = { 0 };

        for (unsigned i = 0; i < s->n_namespaces; i++) {
                struct store_namespace ns = s->namespaces[i]->seen;

                ns.chunks = ns.bytes = 0;
                for (unsigned k = 0; counted && k < s->n_volumes; k++) {
                        const struct store_namespace *part;

                        if (!member_is_up(s, k))
                                continue;
                        while ((part = volume_namespace_at(s->volumes[k].volume, at[k])) &&
                               part->id < ns.id)
                                at[k]++;
                        if (!part || part->id != ns.id)
                                continue;
                        ns.chunks += part->chunks;
                        ns.bytes += part->bytes;
                }
                if (!each(userdata, &ns))
                        return;
        }
}
