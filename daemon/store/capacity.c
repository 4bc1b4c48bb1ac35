/* SPDX-License-Identifier: Apache-2.0 */
/* Divides the store's limit, its index entries and the limits of tenants among the volumes.
 *
 * Shares are in proportion to the sizes of the file systems. They stay the same until the limit or
 * the number of volumes changes; the superblocks keep them. An absent volume keeps its share. A
 * single volume has everything. A tenant's limit is divided in the same proportion.
 *
 * Loop thread. Runs once while the store is prepared, and later when a tenant's limit is set or a
 * volume is resumed. Owns the list of tenants' limits, and each volume's limit and entries.
 *
 * Failures: a file system that does not report its size counts as an average one. If memory is
 * short, a tenant's limit stays as it is. */
#include <stdlib.h>

#include "checked.h"
#include "store/internal.h"

/* Keeps the shares of the last startup if limit and number of volumes are the same and no volume is
 * new: shares that follow small changes of file system sizes would make each startup create and
 * remove segments. Shares are also kept while a volume is absent, so that those of the other
 * volumes do not change. Returns whether the shares were kept. */
static bool keep_shares(struct store *s)
{
        uint64_t left = s->params.limit;
        unsigned absent = 0;

        for (unsigned i = 0; i < s->n_volumes; i++)
                absent += !s->volumes[i].volume;
        for (unsigned i = 0; i < s->n_volumes; i++) {
                struct member *p = &s->volumes[i];
                const struct disk_superblock *sb;

                if (!p->volume)
                        continue;
                sb = volume_superblock(p->volume);
                if (volume_is_fresh(p->volume) ||
                    (absent == 0 && sb->set_limit != s->params.limit) ||
                    sb->set_volumes != s->n_volumes || (absent == 0 && sb->limit > left) ||
                    MIN(sb->limit, left) < VOLUMES_MIN_LIMIT)
                        return false;
                p->limit = MIN(sb->limit, left);
                left -= p->limit;
        }
        if (absent > 0 && left / absent < VOLUMES_MIN_LIMIT)
                return false;
        for (unsigned i = 0; i < s->n_volumes; i++)
                if (!s->volumes[i].volume)
                        s->volumes[i].limit = round_down(left / absent, DISK_PAGE);
        return true;
}

/* Computes shares in proportion to the sizes of the file systems. */
static void new_shares(struct store *s)
{
        uint64_t sizes[STORE_MAX_VOLUMES] = { 0 }, devices[STORE_MAX_VOLUMES] = { 0 }, sum = 0;
        uint64_t spare = s->params.limit - (uint64_t)s->n_volumes * VOLUMES_MIN_LIMIT;
        unsigned known = 0;

        for (unsigned i = 0; i < s->n_volumes; i++)
                if (s->volumes[i].volume &&
                    volume_space(s->volumes[i].volume, &sizes[i], &devices[i]) < 0)
                        sizes[i] = 0;
        for (unsigned i = 0; i < s->n_volumes; i++) {
                unsigned sharing = 0;

                for (unsigned j = 0; j < s->n_volumes; j++)
                        sharing += sizes[j] > 0 && devices[j] == devices[i];
                if (sizes[i] == 0)
                        continue;
                /* size in MiB, so that sums do not overflow; volumes on one device share its
                 * size */
                s->volumes[i].limit = MAX((sizes[i] >> 20) / sharing, UINT64_C(1));
                sum += s->volumes[i].limit;
                known++;
        }
        for (unsigned i = 0; i < s->n_volumes; i++)
                if (sizes[i] == 0)
                        s->volumes[i].limit = known ? MAX(sum / known, UINT64_C(1)) : 1;
        sum = 0;
        for (unsigned i = 0; i < s->n_volumes; i++)
                sum += s->volumes[i].limit;
        for (unsigned i = 0; i < s->n_volumes; i++)
                s->volumes[i].limit = VOLUMES_MIN_LIMIT + (uint64_t)((unsigned __int128)spare *
                                                                     s->volumes[i].limit / sum);
}

void capacity_give_out(struct store *s)
{
        uint64_t entries =
                s->params.entries ? s->params.entries : volume_auto_entries(s->params.limit);

        if (s->params.as_is && s->n_volumes == 1)
                s->params.limit = volume_superblock(s->volumes[0].volume)->limit;
        if (s->n_volumes == 1)
                s->volumes[0].limit = s->params.limit;
        else if (!keep_shares(s))
                new_shares(s);
        for (unsigned i = 0; i < s->n_volumes; i++) {
                struct member *p = &s->volumes[i];

                if (s->n_volumes > 1)
                        p->limit = round_down(p->limit, DISK_PAGE);
                p->entries = s->n_volumes == 1 ? s->params.entries
                                               : (uint64_t)((unsigned __int128)entries * p->limit /
                                                            s->params.limit) +
                                                         1;
        }
        placement_set_thresholds(s);
}

/* --- limits and usage of tenants --- */

void capacity_limit_tenant(struct member *p, const struct tenant_limit *l)
{
        uint64_t share =
                (uint64_t)((unsigned __int128)l->bytes * p->limit / p->store->params.limit);

        volume_set_tenant_limit(p->volume, l->tenant, l->bytes ? MAX(share, UINT64_C(1)) : 0);
}

void store_set_tenant_limit(struct store *s, uint16_t tenant, uint64_t bytes)
{
        struct tenant_limit *l = NULL;

        for (unsigned i = 0; i < s->n_tenant_limits && !l; i++)
                if (s->tenant_limits[i].tenant == tenant)
                        l = &s->tenant_limits[i];
        if (!l) {
                void *p = realloc(s->tenant_limits,
                                  (s->n_tenant_limits + 1) * sizeof(*s->tenant_limits));

                if (!p)
                        return; /* the tenant's limit stays as it is */
                s->tenant_limits = p;
                l = &s->tenant_limits[s->n_tenant_limits++];
        }
        *l = (struct tenant_limit){ .tenant = tenant, .bytes = bytes };
        for (unsigned i = 0; i < s->n_volumes; i++)
                if (member_has_volume(s, i) && volume_is_open(s->volumes[i].volume))
                        capacity_limit_tenant(&s->volumes[i], l);
}

void store_get_tenant(const struct store *s, uint16_t tenant, struct store_tenant_usage *ret)
{
        *ret = (struct store_tenant_usage){ .limit = UINT64_MAX };
        for (unsigned i = 0; i < s->n_tenant_limits; i++)
                if (s->tenant_limits[i].tenant == tenant && s->tenant_limits[i].bytes)
                        ret->limit = s->tenant_limits[i].bytes;
        for (unsigned i = 0; i < s->n_volumes; i++)
                if (member_has_volume(s, i) && volume_is_open(s->volumes[i].volume)) {
                        ret->bytes += volume_tenant_bytes(s->volumes[i].volume, tenant);
                        ret->retained += volume_tenant_retained(s->volumes[i].volume, tenant);
                }
}
