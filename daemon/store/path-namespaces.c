/* SPDX-License-Identifier: Apache-2.0 */
/* One list of namespaces for all paths, so that each has the same id on every one of them.
 *
 * Each path keeps a list of its own on disk. At a start they are put together here (learn); a path
 * that lacks some is given a copy of the whole (snapshot) before it is used. A namespace that is
 * opened gets its id here and is then made on the paths by spread.c. What a namespace holds is
 * summed up when somebody asks.
 *
 * Loop thread; only a snapshot goes to a path's thread, whose texts live as long as the store, as
 * does every namespace that a path has taken. Owns the list, the next id and the count of changes,
 * by which a resume sees that its snapshot is old.
 *
 * Failures: lists that contradict each other are for the caller to refuse; without memory, or with
 * no id left, nothing is made; what no path took is forgotten. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "checked.h"
#include "cleanup.h"
#include "store/namespace.h"
#include "store/paths.h"

struct store_namespace *path_namespaces_by_id(const struct store *s, uint32_t id)
{
        unsigned low = 0, high = s->n_namespaces;

        while (low < high) {
                unsigned middle = (low + high) / 2;

                if (s->namespaces[middle]->id < id)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low < s->n_namespaces && s->namespaces[low]->id == id ? s->namespaces[low] : NULL;
}

static struct store_namespace *namespace_by_name(const struct store *s, uint16_t tenant,
                                                 const char *name, size_t length)
{
        for (unsigned i = 0; i < s->n_namespaces; i++) {
                struct store_namespace *ns = s->namespaces[i];

                if (ns->tenant == tenant && strlen(ns->name) == length &&
                    memcmp(ns->name, name, length) == 0)
                        return ns;
        }
        return NULL;
}

static void namespace_free(struct store_namespace *ns)
{
        if (!ns)
                return;
        free((char *)ns->name);
        free((char *)ns->fingerprint);
        free(ns);
}

static int namespace_add(struct store *s, const struct store_namespace *from, size_t name_length,
                         size_t fingerprint_length, struct store_namespace **ret)
{
        struct store_namespace *ns;
        unsigned i;

        if (s->n_namespaces == s->namespaces_room) {
                unsigned room = s->namespaces_room ? 2 * s->namespaces_room : 16;
                void *p = realloc(s->namespaces, room * sizeof(struct store_namespace *));

                if (!p)
                        return -ENOMEM;
                s->namespaces = p;
                s->namespaces_room = room;
        }
        ns = calloc(1, sizeof(*ns));
        if (!ns)
                return -ENOMEM;
        ns->id = from->id;
        ns->tenant = from->tenant;
        ns->chunk_bytes = from->chunk_bytes;
        ns->owner = from->owner;
        ns->created_ms = from->created_ms;
        ns->name = strndup(from->name, name_length);
        ns->fingerprint = strndup(from->fingerprint, fingerprint_length);
        if (!ns->name || !ns->fingerprint) {
                namespace_free(ns);
                return -ENOMEM;
        }
        for (i = s->n_namespaces; i > 0 && s->namespaces[i - 1]->id > ns->id; i--)
                s->namespaces[i] = s->namespaces[i - 1];
        s->namespaces[i] = ns;
        s->n_namespaces++;
        s->changes++;
        *ret = ns;
        return 0;
}

/* No path took it. */
void path_namespaces_forget(struct store *s, struct store_namespace *ns)
{
        for (unsigned i = 0; i < s->n_namespaces; i++) {
                if (s->namespaces[i] != ns)
                        continue;
                s->n_namespaces--;
                s->changes++;
                for (; i < s->n_namespaces; i++)
                        s->namespaces[i] = s->namespaces[i + 1];
        }
        namespace_free(ns);
}

void path_namespaces_fini(struct store *s)
{
        for (unsigned i = 0; i < s->n_namespaces; i++)
                namespace_free(s->namespaces[i]);
        free(s->namespaces);
}

/* Into ret: what a path is to know now. */
int path_namespaces_snapshot(const struct store *s, struct store_namespace **ret,
                             struct volume_join *ret_join)
{
        struct store_namespace *copies = calloc(s->n_namespaces + 1, sizeof(*copies));

        if (!copies)
                return -ENOMEM;
        for (unsigned i = 0; i < s->n_namespaces; i++)
                copies[i] = *s->namespaces[i];
        *ret = copies;
        *ret_join = (struct volume_join){
                .namespaces = copies,
                .n_namespaces = s->n_namespaces,
                .next_id = s->next_id,
                .purges = s->sum.purges,
        };
        return 0;
}

/* What the path knows into what all know. */
int path_namespaces_learn(struct store *s, const struct path *p,
                          char ret_error[static STORE_ERROR_BYTES])
{
        _cleanup_(freep) struct store_namespace *copies = NULL;
        const struct store_namespace *ns;
        struct volume_join join;
        int r = path_namespaces_snapshot(s, &copies, &join);

        if (r == 0)
                r = volume_check_namespaces(p->volume, &join, ret_error);
        for (unsigned i = 0; r == 0 && (ns = volume_namespace_at(p->volume, i)); i++) {
                struct store_namespace *added;

                if (!path_namespaces_by_id(s, ns->id))
                        r = namespace_add(s, ns, strlen(ns->name), strlen(ns->fingerprint), &added);
        }
        if (r == -ENOMEM)
                return store_error(ret_error, r, "out of memory");
        if (r < 0)
                return r;
        s->next_id = MAX(s->next_id, volume_next_id(p->volume));
        s->sum.purges = MAX(s->sum.purges, volume_set(p->volume)->purges);
        s->sum.missed |= volume_set(p->volume)->missed;
        s->sum.missed_at = MAX(s->sum.missed_at, volume_set(p->volume)->missed_at);
        return 0;
}

int path_namespaces_prepare(struct store *s, struct store_namespace_open *req,
                            struct store_namespace **ret)
{
        struct store_namespace *ns;
        int r;

        if (!namespaces_may_open(req))
                return -EINVAL;
        ns = namespace_by_name(s, req->tenant, req->name, req->name_length);
        if (ns && !(req->attach && req->fingerprint_length == 0) &&
            (strlen(ns->fingerprint) != req->fingerprint_length ||
             memcmp(ns->fingerprint, req->fingerprint, req->fingerprint_length) != 0)) {
                req->namespace = ns;
                return STORE_MISMATCH;
        }
        if (!ns && req->attach)
                return STORE_MISS;
        if (!ns) {
                if (s->n_namespaces == STORE_MAX_NAMESPACES || s->next_id == UINT32_MAX)
                        return -ENOSPC;
                r = namespace_add(s,
                                  &(struct store_namespace){
                                          .id = MAX(s->next_id, 1u),
                                          .tenant = req->tenant,
                                          .name = req->name,
                                          .fingerprint = req->fingerprint,
                                          .chunk_bytes = req->chunk_bytes,
                                          .owner = req->owner,
                                          .created_ms = clock_unix_ms(),
                                  },
                                  req->name_length, req->fingerprint_length, &ns);
                if (r < 0)
                        return r;
                s->next_id = ns->id + 1;
        } else if (req->chunk_bytes != 0 && req->chunk_bytes != ns->chunk_bytes) {
                ns->chunk_bytes = req->chunk_bytes;
                s->changes++;
        }
        *ret = ns;
        return 0;
}

static const struct store_namespace *with_counts(const struct store *s, struct store_namespace *ns)
{
        if (!ns)
                return NULL;
        ns->chunks = ns->bytes = 0;
        for (unsigned i = 0; i < s->n_paths; i++) {
                const struct store_namespace *part =
                        path_is_up(s, i) ? volume_namespace_get(s->paths[i].volume, ns->id) : NULL;

                if (!part)
                        continue;
                ns->chunks += part->chunks;
                ns->bytes += part->bytes;
        }
        return ns;
}

const struct store_namespace *store_namespace_get(const struct store *s, uint32_t id)
{
        return with_counts(s, path_namespaces_by_id(s, id));
}

const struct store_namespace *store_namespace_at(const struct store *s, unsigned i)
{
        return i < s->n_namespaces ? with_counts(s, s->namespaces[i]) : NULL;
}

const struct store_namespace *store_namespace_find(const struct store *s, uint16_t tenant,
                                                   const char *name, size_t length)
{
        return namespace_by_name(s, tenant, name, length);
}

uint64_t store_namespaces_version(const struct store *s)
{
        return s->changes;
}

/* The lists of the paths are ascending by id, too, so that each is passed through once. */
void store_namespaces_walk(const struct store *s, bool counted,
                           bool (*each)(void *userdata, const struct store_namespace *ns),
                           void *userdata)
{
        unsigned at[STORE_MAX_PATHS] = { 0 };

        for (unsigned i = 0; i < s->n_namespaces; i++) {
                struct store_namespace ns = *s->namespaces[i];

                ns.chunks = ns.bytes = 0;
                for (unsigned k = 0; counted && k < s->n_paths; k++) {
                        const struct store_namespace *part;

                        if (!path_is_up(s, k))
                                continue;
                        while ((part = volume_namespace_at(s->paths[k].volume, at[k])) &&
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
