/* SPDX-License-Identifier: Apache-2.0 */
/* Joins a volume to its set before the volume is used. If the volume has missed a purge or drop,
 * all its chunks are dropped. If it has missed the removal of a namespace, the namespaces that the
 * others do not have are dropped, too. Then the volume takes over the set's record, the next id,
 * the namespaces that it lacks and the lifetimes of the others, in one write.
 *
 * Blocks. Runs on the same threads as volume_open().
 *
 * Failures: if the namespaces of the volume contradict those of the set, the volume is not changed.
 * If the namespaces cannot be written, the volume is no longer open. */
#include <errno.h>
#include <string.h>

#include "store/volume/internal.h"

int volume_check_namespaces(const struct volume *v, const struct volume_join *join,
                            char ret_error[static 512])
{
        for (unsigned i = 0; i < join->n_namespaces; i++) {
                const struct store_namespace *other = &join->namespaces[i];
                const struct namespace *same_id = namespaces_get(v->namespaces, other->id),
                                       *same_name = namespaces_find(v->namespaces, other->tenant,
                                                                    other->name);

                if (same_id == same_name &&
                    (!same_id || strcmp(same_id->seen.fingerprint, other->fingerprint) == 0))
                        continue;
                return store_error(
                        ret_error, -EUCLEAN,
                        "%s: its namespaces contradict those of the other volumes: the name "
                        "\"%.100s\" or its number %u belongs to another namespace here; these are "
                        "not volumes of one store, or were used separately",
                        v->path, other->name, other->id);
        }
        return 0;
}

/* Drops all chunks. The caller must write the namespaces, which then have the purge. */
static void forget_all(struct volume *v)
{
        for (uint32_t i = 0; i < index_high(v->index); i++)
                if (volume_chunk_at(v, i)->flags & CHUNK_LINKED)
                        chunk_remove(v, i);
        namespaces_purge_all(v->namespaces, ++v->seq);
        v->dir->superblock.doubt_seq = 0;
}

static bool is_same(const struct namespace *ns, const struct store_namespace *other)
{
        return ns->seen.id == other->id && ns->seen.tenant == other->tenant &&
               strcmp(ns->seen.name, other->name) == 0 &&
               strcmp(ns->seen.fingerprint, other->fingerprint) == 0;
}

/* Removes the namespaces that the other volumes do not have, because they may have been removed
 * while this volume was offline. Both lists are in ascending order of id. */
static void drop_unknown(struct volume *v, const struct volume_join *join)
{
        struct namespace *ns;
        unsigned j = 0;

        for (unsigned i = 0; (ns = namespaces_at(v->namespaces, i));) {
                while (j < join->n_namespaces && join->namespaces[j].id < ns->seen.id)
                        j++;
                if (j < join->n_namespaces && is_same(ns, &join->namespaces[j]))
                        i++;
                else
                        namespaces_drop(v->namespaces, ns);
        }
}

int volume_join(struct volume *v, const struct volume_join *join, bool *ret_emptied,
                char ret_error[static 512])
{
        bool empty;
        bool replace = (join->empty || v->chunks == 0) &&
                       volume_epochs_exceed(join->set.removed_at,
                                            namespaces_set(v->namespaces)->removed_at);
        int r = replace ? 0 : volume_check_namespaces(v, join, ret_error);

        if (r < 0)
                return r;
        empty = join->empty || (v->dir->superblock.away && !join->witnessed);
        if (empty)
                forget_all(v);
        if (replace)
                drop_unknown(v, join);
        *ret_emptied = empty && v->stats.recovered_chunks > 0;
        namespaces_note_set(v->namespaces, &join->set, empty);
        if (join->next_id > 0)
                namespaces_reserve_id(v->namespaces, join->next_id - 1);
        for (unsigned i = 0; i < join->n_namespaces && r == 0; i++) {
                const struct store_namespace *other = &join->namespaces[i];

                struct namespace *mine = namespaces_get(v->namespaces, other->id);

                if (mine) {
                        namespaces_note_lifetime(v->namespaces, mine, other->lifetime_s);
                        continue;
                }
                /* regardless of the limit, because the volume cannot be used without these
                 * namespaces */
                r = namespaces_adopt(v->namespaces, other, UINT64_MAX / 2, v->seq);
                if (r == 0 && other->chunk_bytes)
                        slabs_declare_class(v->slabs, other->chunk_bytes);
        }
        if (r == 0)
                r = namespaces_write_now(v->namespaces);
        if (r == 0)
                return 0;
        v->open = false; /* a failed write must not prevent closing the volume */
        return store_error(ret_error, r, "%s: cannot write the namespaces: %s", v->path,
                           strerror(-r));
}

int volume_is_back(struct volume *v, char ret_error[static 512])
{
        int r;

        if (!v->dir->superblock.away)
                return 0;
        v->dir->superblock.away = 0;
        r = dir_write_superblock(v->dir);
        if (r == 0)
                return 0;
        v->open = false;
        return store_error(ret_error, r, "%s: cannot write the superblock: %s", v->path,
                           strerror(-r));
}

void volume_take_marks(struct volume *v, const struct volume *earlier)
{
        struct disk_superblock *sb = &v->dir->superblock;

        if (memcmp(earlier->dir->superblock.uuid, sb->uuid, DISK_UUID_BYTES) != 0)
                return;
        sb->doubt_seq = MAX(sb->doubt_seq, earlier->dir->superblock.doubt_seq);
        if (earlier->void_pages == 0)
                return;
        sb->void_position = earlier->void_position;
        sb->void_pages = earlier->void_pages;
}

uint32_t volume_next_id(const struct volume *v)
{
        return namespaces_next_id(v->namespaces);
}

const struct volume_set *volume_set(const struct volume *v)
{
        return namespaces_set(v->namespaces);
}
