/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of leased chunks, made in the calling thread without the daemon, and the pools that they
 * are made from.
 *
 * Leased bytes neither move nor change, so a copy of them needs no message to the daemon: the
 * copy is put into a stream within the call, ordered with the program's own work. */
#pragma once

#include <pthread.h>
#include <sys/queue.h>

#include "gpu/engine.h"
#include "gpu/slices.h"
#include "lib/layout.h"
#include "lib/parts.h"

enum {
        LEASED_POOLS = 4, /* maximum number of pools that are registered at a time, including the
                             current session's */
        LEASED_SLOTS = 16,
        LEASED_STREAMS = 2, /* streams of a queue: lists for the kernel alternate between them, all
                               other copies use the first */
        LEASED_TEXT = 512,
        LEASED_TALLIES = 16,
};

struct kvcache_gpu;

/* A pool that is registered with the driver. */
struct leased_pool {
        uint64_t id; /* 0: the row is free */
        struct parts_pool hold;
        struct slices slices;
        bool is_current; /* the handle's session uses the pool, and kvcache_gpu.pool has the hold */
        bool is_released; /* the program has called kvcache_gpu_release_pool() */
};

/* One call of kvcache_gpu_copy_leased(), from then until its completion is taken. */
struct leased_copy {
        STAILQ_ENTRY(leased_copy) link;
        cu_event before, begun, done;
        uint64_t user_data;
        size_t count;
        struct kvcache_transfer moved;
};
STAILQ_HEAD(leased_list, leased_copy);

/* A queue of requests that are copied one after another, with its streams and copy engine. */
struct leased_queue {
        bool is_open; /* the engine and the streams exist; the queue's first request creates them */
        struct engine engine;
        cu_stream streams[LEASED_STREAMS];
        cu_event joint; /* recorded in one stream so that the other can wait for its work */
        cu_event slot_done[LEASED_SLOTS]; /* recorded behind the last list that used the slot */
        bool slot_is_used[LEASED_SLOTS];
        unsigned next_slot;
        struct leased_list under_way;
};

/* A stream of the program waits for the copies of an awaited request, which must not queue behind
 * gigabytes for which nothing waits. */
enum leased_kind {
        LEASED_PLAIN,
        LEASED_AWAITED,
        LEASED_KINDS,
};

struct leased {
        pthread_mutex_t lock; /* guards the members that follow */
        struct leased_queue queues[LEASED_KINDS];
        struct leased_list idle;
        struct leased_pool pools[LEASED_POOLS]; /* the oldest first */
        uint64_t blocks;
        /* Finished copies, summed by layout, technology and result, that the handle's thread has
         * not yet counted for the session. */
        struct kvcache_transfer tallies[LEASED_TALLIES];
        unsigned n_tallies;
        struct copy *copies; /* scratch: list of copies */
        struct kvcache_piece pieces[LAYOUT_MAX_PIECES];
        char error[LEASED_TEXT];
};

/* --- in the handle's thread --- */

/* Allocates the state of leased copies. Returns 0 or -ENOMEM. */
int leased_new(struct leased **ret);
/* Waits for the requests in flight, unregisters all pools and frees the state of leased copies. No
 * other thread may be in a call on the attachment. */
void leased_free(struct kvcache_gpu *gpu);
/* Publishes the session's pool, if the driver has registered it, so that copies may use it. */
void leased_publish(struct kvcache_gpu *gpu, bool pauses);
/* Called before the session's pool is unregistered. Returns true if leased copies may still use it;
 * they then own its registration and its hold. */
bool leased_keep(struct kvcache_gpu *gpu);
/* Counts the finished copies, and unregisters the pools that the program has released. With
 * KVCACHE_GPU_EXPLICIT, kvcache_gpu_renew() unregisters them instead. */
void leased_progress(struct kvcache_gpu *gpu);
/* Unregisters the pools that the program has released, or all. */
void leased_drop_pools(struct kvcache_gpu *gpu, bool all, bool pauses);
/* Adds the counters of leased copies to those in `info`. */
void leased_add_counts(struct kvcache_gpu *gpu, struct kvcache_gpu_info *info);

/* --- in any thread, with leased.lock held --- */

/* Waits until all copies in the streams of both queues are done. */
void leased_synchronize(struct leased *l, const struct driver *d);
/* Returns the pool of this id, or NULL. */
struct leased_pool *leased_find(struct leased *l, uint64_t id);
int leased_fail(struct leased *l, int error, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
