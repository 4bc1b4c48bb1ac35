/* SPDX-License-Identifier: Apache-2.0 */
/* The pools that leased chunks are copied from.
 *
 * The handle's thread publishes the session's pool when the driver has registered it. When another
 * session with another pool replaces that session and the program has made leased copies, the
 * earlier pool stays registered and mapped for leases that were taken in it, until the program
 * releases it, a further pool needs its row or the GPU is detached. Only the handle's thread
 * registers and unregisters; any thread may read the table while it holds leased.lock. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "gpu/gpu.h"
#include "gpu/leased.h"

struct leased_pool *leased_find(struct leased *l, uint64_t id)
{
        for (unsigned i = 0; i < LEASED_POOLS; i++)
                if (l->pools[i].id == id && id != 0)
                        return &l->pools[i];
        return NULL;
}

/* Removes a row from the table after waiting for all copies in the streams, and returns it. */
static struct leased_pool leased_remove(struct kvcache_gpu *gpu, unsigned row)
{
        struct leased *l = gpu->leased;
        struct leased_pool pool = l->pools[row];

        leased_synchronize(l, &gpu->driver);
        memmove(&l->pools[row], &l->pools[row + 1], (LEASED_POOLS - row - 1) * sizeof(pool));
        l->pools[LEASED_POOLS - 1] = (struct leased_pool){ 0 };
        return pool;
}

/* Unregisters a pool that was removed from the table. Called without the lock, because it takes
 * long. */
static void leased_unregister(struct kvcache_gpu *gpu, struct leased_pool *pool, bool pauses)
{
        if (pool->is_current) /* kvcache_gpu.pool has the registration, too */
                return;
        slices_unregister(&gpu->driver, &pool->slices, pauses);
        parts_pool_release(gpu->kv, &pool->hold);
}

void leased_publish(struct kvcache_gpu *gpu, bool pauses)
{
        struct leased *l = gpu->leased;
        struct leased_pool oldest = { 0 };
        unsigned row = 0;

        if (!gpu->pool_slices.device)
                return;
        pthread_mutex_lock(&l->lock);
        if (l->pools[LEASED_POOLS - 1].id != 0)
                oldest = leased_remove(gpu, 0);
        while (l->pools[row].id != 0)
                row++;
        l->pools[row] = (struct leased_pool){
                .id = gpu->pool.id,
                .hold = gpu->pool,
                .slices = gpu->pool_slices,
                .is_current = true,
        };
        pthread_mutex_unlock(&l->lock);
        if (oldest.id != 0)
                leased_unregister(gpu, &oldest, pauses);
}

void leased_drop_pools(struct kvcache_gpu *gpu, bool all, bool pauses)
{
        struct leased_pool dropped[LEASED_POOLS];
        struct leased *l = gpu->leased;
        unsigned n = 0;

        pthread_mutex_lock(&l->lock);
        for (unsigned i = 0; i < LEASED_POOLS && l->pools[i].id != 0;)
                if (all || (l->pools[i].is_released && !l->pools[i].is_current))
                        dropped[n++] = leased_remove(gpu, i);
                else
                        i++;
        pthread_mutex_unlock(&l->lock);
        for (unsigned i = 0; i < n; i++)
                leased_unregister(gpu, &dropped[i], pauses);
}

static bool leased_is_open(const struct leased *l)
{
        for (unsigned i = 0; i < LEASED_KINDS; i++)
                if (l->queues[i].is_open)
                        return true;
        return false;
}

bool leased_keep(struct kvcache_gpu *gpu)
{
        struct leased *l = gpu->leased;
        bool is_kept = false;

        pthread_mutex_lock(&l->lock);
        for (unsigned i = 0; i < LEASED_POOLS; i++)
                if (l->pools[i].is_current) {
                        is_kept = leased_is_open(l) && !l->pools[i].is_released;
                        l->pools[i].is_current = false;
                        if (!is_kept)
                                (void)leased_remove(gpu, i);
                        break;
                }
        pthread_mutex_unlock(&l->lock);
        return is_kept;
}

/* --- pools, for the program --- */

int kvcache_gpu_pools(struct kvcache_gpu *gpu, uint64_t *ret_ids, size_t max)
{
        int n = 0;

        if (!gpu || (!ret_ids && max > 0))
                return -EINVAL;
        if (gpu->pid != getpid())
                return -ECHILD;
        pthread_mutex_lock(&gpu->leased->lock);
        for (unsigned i = LEASED_POOLS; i-- > 0;) /* the latest first */
                if (gpu->leased->pools[i].id != 0 && !gpu->leased->pools[i].is_released &&
                    (size_t)n < max)
                        ret_ids[n++] = gpu->leased->pools[i].id;
        pthread_mutex_unlock(&gpu->leased->lock);
        return n;
}

int kvcache_gpu_release_pool(struct kvcache_gpu *gpu, uint64_t pool_id)
{
        struct leased_pool *pool;
        int r = 0;

        if (!gpu)
                return -EINVAL;
        if (gpu->pid != getpid())
                return -ECHILD;
        pthread_mutex_lock(&gpu->leased->lock);
        pool = leased_find(gpu->leased, pool_id);
        if (!pool)
                r = leased_fail(gpu->leased, -ESTALE,
                                "pool %llx is not registered with this device",
                                (unsigned long long)pool_id);
        else if (pool->is_current)
                r = leased_fail(
                        gpu->leased, -EBUSY,
                        "pool %llx belongs to the present session, so it cannot be released",
                        (unsigned long long)pool_id);
        else
                pool->is_released = true;
        pthread_mutex_unlock(&gpu->leased->lock);
        return r;
}

const void *kvcache_gpu_pool_memory(struct kvcache_gpu *gpu, uint64_t pool_id, uint64_t *ret_bytes)
{
        const void *base = NULL;
        struct leased_pool *pool;

        if (!gpu || !ret_bytes || gpu->pid != getpid())
                return NULL;
        pthread_mutex_lock(&gpu->leased->lock);
        pool = leased_find(gpu->leased, pool_id);
        if (pool) {
                base = pool->hold.base;
                *ret_bytes = pool->hold.bytes;
        }
        pthread_mutex_unlock(&gpu->leased->lock);
        return base;
}
