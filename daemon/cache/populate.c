/* SPDX-License-Identifier: Apache-2.0 */
/* See populate.h. Owns the position: pool, slab and offset. One step at a time runs on a
 * blocking-call thread; everything else runs on the loop thread.
 *
 * Failures: if memory is short, populating waits RETRY_S and continues at the same position. A slab
 * that a ring refuses to register is used unregistered, and reported once. */
#include "cache/populate.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "cleanup.h"
#include "io/io.h"
#include "cache/pool.h"

enum { STEP_BYTES = 4 << 20, RETRY_S = 5 };

struct populate {
        struct populate_params params;
        struct event *retry;
        struct kio_request step;
        struct pool **pools;
        unsigned pool;        /* index of the pool whose slab is being populated */
        unsigned first_piece; /* number of that pool's first piece in the io */
        uint64_t done;        /* bytes of the current slab that are populated */
        uint64_t offset, bytes;
        uint64_t step_huge,
                huge; /* bytes in huge pages of this step, and of the earlier steps of the slab */
        bool short_of_memory, refused, stopped;
};

DEFINE_CLEANUP(struct populate *, populate_free);

static void next_step(struct populate *p);
static void next_pool(struct populate *p);

static int run_step(struct kio_request *req)
{
        struct populate *p = container_of(req, struct populate, step);

        return pool_populate(p->pools[p->pool], p->offset, p->bytes, &p->step_huge);
}

static void wait_for_memory(struct populate *p)
{
        if (!p->short_of_memory)
                p->params.on_short(p->params.userdata);
        p->short_of_memory = true;
        event_add(p->retry, &(struct timeval){ .tv_sec = RETRY_S });
}

static void on_registered(void *userdata, int r)
{
        struct populate *p = userdata;

        /* The ring uses the slab unregistered; kio_get_info() has the reason. */
        if (r < 0 && !p->refused) {
                p->refused = true;
                p->params.on_refused(p->params.userdata);
        }
        next_pool(p);
        next_step(p);
}

static void on_step(struct kio_request *req)
{
        struct populate *p = container_of(req, struct populate, step);
        struct pool *pool = p->pools[p->pool];
        int slab = pool_next_slab(pool);

        if (p->stopped)
                return;
        if (req->result < 0) {
                wait_for_memory(p);
                return;
        }
        p->short_of_memory = false;
        p->done += p->bytes;
        p->huge += p->step_huge;
        if (p->done < pool_slab_bytes(pool)) {
                next_step(p);
                return;
        }
        p->done = 0;
        if (pool_open_slab(pool, p->huge) < 0) {
                p->huge = 0;
                wait_for_memory(p);
                return;
        }
        p->huge = 0;
        p->params.on_slab(p->params.userdata, p->pool);
        kio_register_piece(p->params.io, p->first_piece + (unsigned)slab, on_registered, p);
}

static void next_pool(struct populate *p)
{
        const struct pool *pool = p->pools[p->pool];

        p->first_piece += (unsigned)(pool_bytes(pool) / pool_slab_bytes(pool));
        if (++p->pool == p->params.n_pools) {
                p->pool = 0;
                p->first_piece = 0;
        }
}

static void next_step(struct populate *p)
{
        uint64_t available, slab_bytes;
        int slab;

        /* Finds the next pool that lacks memory, beginning with the current one. */
        for (unsigned i = 0; i < p->params.n_pools && pool_next_slab(p->pools[p->pool]) < 0; i++)
                next_pool(p);
        slab = pool_next_slab(p->pools[p->pool]);
        slab_bytes = pool_slab_bytes(p->pools[p->pool]);
        if (slab < 0 || p->stopped)
                return;
        available = p->params.available(p->params.userdata);
        p->bytes = MIN((uint64_t)STEP_BYTES, slab_bytes - p->done);
        if (available < p->params.reserve_bytes + p->bytes) {
                wait_for_memory(p);
                return;
        }
        p->offset = (uint64_t)slab * slab_bytes + p->done;
        p->step = (struct kio_request){
                .op = KIO_CALL,
                .class = KIO_CLASS_BACKGROUND,
                .call = run_step,
                .complete = on_step,
        };
        kio_submit(p->params.io, &p->step, (unsigned)slab);
}

static void on_retry(evutil_socket_t fd, short what, void *userdata)
{
        next_step(userdata);
}

int populate_start(struct populate **ret, struct event_base *base,
                   const struct populate_params *params)
{
        _cleanup_(populate_freep) struct populate *p = calloc(1, sizeof(*p));

        if (!p)
                return -ENOMEM;
        p->params = *params;
        p->retry = evtimer_new(base, on_retry, p);
        p->pools = calloc(params->n_pools, sizeof(struct pool *));
        if (!p->retry || !p->pools)
                return -ENOMEM;
        memcpy(p->pools, params->pools, params->n_pools * sizeof(struct pool *));
        *ret = p;
        next_step(TAKE_PTR(p));
        return 0;
}

bool populate_is_short(const struct populate *p)
{
        return p->short_of_memory;
}

void populate_stop(struct populate *p)
{
        p->stopped = true;
        event_del(p->retry);
}

struct populate *populate_free(struct populate *p)
{
        if (!p)
                return NULL;
        if (p->retry)
                event_free(p->retry);
        free(p->pools);
        free(p);
        return NULL;
}
