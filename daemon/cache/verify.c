/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a chunk back before a put of its key is answered that it exists.
 *
 * Startup finds the entries of chunks that were evicted, and whose slots another put was
 * overwriting when the process ended or its write failed, and entries whose payload did not reach
 * the disk before a kill or a power loss. Such a chunk is dropped when it is read. A put that
 * was answered EXISTS for it would be lost. So the first put of a key that startup found waits for
 * a read of the chunk, and is then tried again: it finds the chunk verified, or stores its own
 * bytes. A chunk that the resume of a suspended volume brings back while the put waits is read
 * again. Chunks that this process has put or read cost nothing.
 *
 * Loop thread. Owns the buffer of each read, which no client sees. A put waits for room if its read
 * would make more than CHECK_BYTES in flight; a single read may be longer.
 *
 * Failures: if the read fails and says nothing about the chunk, the put fails. If the device hangs,
 * the put is tried again without the volume, and the buffer stays allocated until the device
 * answers. */
#include "cache/internal.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "checked.h"
#include "cleanup.h"

#define CHECK_BYTES (UINT64_C(16) << 20)

struct check {
        struct store_get get;
        struct cache *cache;
        struct cache_request *req; /* the put to try again after the read; NULL if it was tried
                                    * again already, because the device hangs */
};

static struct check *check_new(struct cache *c, struct cache_request *req, struct store_ref ref,
                               uint32_t length)
{
        uint32_t room = round_up(length, (uint32_t)TAIL_BYTES);
        struct check *k = calloc(1, sizeof(*k));

        if (!k)
                return NULL;
        *k = (struct check){
                .cache = c,
                .req = req,
                .get = {
                        .namespace_id = req->namespace_id,
                        .key = req->key,
                        .hash = req->hash,
                        .ref = ref,
                        .room = room,
                },
        };
        k->get.buf = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (k->get.buf == MAP_FAILED) {
                free(k);
                return NULL;
        }
        madvise(k->get.buf, room, MADV_DONTDUMP);
        c->checking += room;
        c->pending++;
        return k;
}

static void check_free(struct check *k)
{
        struct cache *c = k->cache;

        c->checking -= k->get.room;
        c->pending--;
        munmap(k->get.buf, k->get.room);
        free(k);
        cache_kick(c);
}

/* Tries the put again, unless that was done already because the device hangs. */
static void resume_put(struct check *k)
{
        struct cache_request *req = TAKE_PTR(k->req);
        struct list_node puts = LIST_INIT(puts);

        if (!req)
                return;
        list_append(&puts, &req->node);
        cache_try_in_turn(k->cache, &puts);
}

/* Returns whether the read failed without a verdict on the chunk, which still exists and is still
 * unverified. */
static bool is_undecided(const struct check *k)
{
        const struct cache_request *req = k->req;
        struct store_ref ref;

        return req && k->get.result < 0 &&
               store_find(k->cache->params.store, req->namespace_id, &req->key, req->hash, &ref,
                          NULL) == 0 &&
               store_is_unverified(k->cache->params.store, ref);
}

static void on_read(struct store_get *get)
{
        struct check *k = container_of(get, struct check, get);

        if (is_undecided(k))
                cache_finish(k->cache, TAKE_PTR(k->req), CACHE_FAILED);
        else
                resume_put(k);
        check_free(k);
}

static void on_read_abandoned(struct store_get *get)
{
        resume_put(container_of(get, struct check, get));
}

bool cache_verify_existing(struct cache *c, struct cache_request *req)
{
        struct store_chunk info;
        struct store_ref ref;
        struct check *k;

        if (store_find(c->params.store, req->namespace_id, &req->key, req->hash, &ref, &info) !=
            0) {
                cache_finish(c, req, CACHE_FAILED);
                return true;
        }
        if (c->checking > 0 && c->checking + info.length > CHECK_BYTES)
                return false;
        k = check_new(c, req, ref, info.length);
        if (!k) {
                cache_finish(c, req, CACHE_FAILED);
                return true;
        }
        k->get.complete = on_read;
        k->get.abandon = on_read_abandoned;
        if (store_get(c->params.store, &k->get) != 0) {
                check_free(k);
                cache_finish(c, req, c->stopping ? CACHE_CANCELLED : CACHE_FAILED);
                return true;
        }
        c->stats.put_checks++;
        cache_set_waiting(req, WAITING_SYNC);
        return true;
}
