/* SPDX-License-Identifier: Apache-2.0 */
/* The store's door: see store.h for the contract and README.md for the format. Hands each request to
 * the volume that it is for. Loop thread. */
#include "store/store.h"

#include <errno.h>
#include <stdlib.h>

#include "cleanup.h"
#include "store/dir.h"
#include "store/volume.h"

struct store {
        struct key_secret secret;
        struct volume *volume;
};

DEFINE_CLEANUP(struct store *, store_close);

/* --- open --- */

int store_prepare(struct store **ret, const struct store_params *params, char ret_error[static 512])
{
        _cleanup_(store_closep) struct store *s = NULL;
        int r;

        if (params->n_paths == 0 || !params->paths[0])
                return store_error(ret_error, -EINVAL, "store.path: there must be one");
        if (params->n_paths > 1)
                return store_error(ret_error, -EINVAL,
                                   "store.path: several paths are not supported by this version");
        s = calloc(1, sizeof(*s));
        if (!s)
                return store_error(ret_error, -ENOMEM, "out of memory");
        s->secret = params->secret;
        r = volume_prepare(&s->volume, params, params->paths[0], ret_error);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(s);
        return 0;
}

unsigned store_lock_fds(const struct store *s, int ret_fds[static STORE_MAX_PATHS])
{
        ret_fds[0] = volume_lock_fd(s->volume);
        return 1;
}

int store_probe_fd(const struct store *s)
{
        return volume_probe_fd(s->volume);
}

const char *store_path(const struct store *s, unsigned i)
{
        return i == 0 ? volume_path(s->volume) : NULL;
}

int store_open(struct store *s, struct kio *io, char ret_error[static 512])
{
        return volume_open(s->volume, io, ret_error);
}

void store_stop(struct store *s)
{
        if (s)
                volume_stop(s->volume);
}

uint64_t store_pending(const struct store *s)
{
        return volume_pending(s->volume);
}

struct store *store_close(struct store *s)
{
        if (!s)
                return NULL;
        volume_close(s->volume);
        free(s);
        return NULL;
}

void store_turn(struct store *s)
{
        volume_turn(s->volume);
}

uint64_t store_max_chunk(const struct store *s)
{
        return volume_max_chunk(s->volume);
}

/* --- namespaces --- */

void store_namespace_open(struct store *s, struct store_namespace_open *req)
{
        volume_namespace_open(s->volume, req);
}

const struct store_namespace *store_namespace_get(const struct store *s, uint32_t id)
{
        return volume_namespace_get(s->volume, id);
}

const struct store_namespace *store_namespace_at(const struct store *s, unsigned i)
{
        return volume_namespace_at(s->volume, i);
}

void store_purge(struct store *s, struct store_purge *req)
{
        volume_purge(s->volume, req);
}

/* --- chunks --- */

uint64_t store_hash(const struct store *s, uint32_t namespace_id, const struct key *key)
{
        return key_hash(&s->secret, namespace_id, key);
}

int store_find(const struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash,
               struct store_ref *ret_ref, struct store_chunk *ret_chunk)
{
        return volume_find(s->volume, namespace_id, key, hash, ret_ref, ret_chunk);
}

void store_touch(struct store *s, struct store_ref ref)
{
        volume_touch(s->volume, ref);
}

int store_put(struct store *s, struct store_put *req)
{
        return volume_put(s->volume, req);
}

void store_sync(struct store *s, struct store_put *req)
{
        volume_sync(s->volume, req);
}

int store_get(struct store *s, struct store_get *req)
{
        return volume_get(s->volume, req);
}

int store_drop(struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash)
{
        return volume_drop(s->volume, namespace_id, key, hash);
}

void store_settle_drops(struct store *s, struct store_put *req)
{
        volume_settle_drops(s->volume, req);
}

unsigned store_list(const struct store *s, uint32_t namespace_id, uint64_t *cursor,
                    struct store_chunk *ret, unsigned max)
{
        return volume_list(s->volume, namespace_id, cursor, ret, max);
}

void store_get_stats(const struct store *s, struct store_stats *ret)
{
        volume_get_stats(s->volume, ret);
}
