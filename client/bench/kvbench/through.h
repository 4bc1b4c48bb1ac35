/* SPDX-License-Identifier: Apache-2.0 */
/* The side KVCACHE: blocks through the daemon, as an engine would move them.
 *
 * Each client is a connection. A piece is one request, a part of a user's chain. Written: from the
 * staging area, answered when the daemon has written them. Read: mapped, in place; leases are held
 * until the window has been checked. With a GPU, blocks come out of its memory and go there:
 * through-gpu.c.
 *
 * through_open() takes a connection for what goes around the passes (dropping, waiting until the
 * daemon is at rest, looking what there is); it stays its owner's. */
#pragma once

#include <pthread.h>

#include "gpu-shape.h"
#include "profile.h"

/* Blocks in GPU memory. */
struct through_gpu_options {
        int device;
        struct gpu_shape shape;
};

struct through_options {
        const char *socket_path;               /* of the clients' connections; NULL: the default */
        struct kvcache *kv;                    /* borrowed */
        bool own_daemon;                       /* it has no other clients */
        const struct through_gpu_options *gpu; /* NULL: blocks are in host memory */
        bool gds; /* the side is called so, and uses cuFile also where that only copies */
};

/* What all clients did, in all passes. */
struct through_gpu {
        pthread_mutex_t lock;
        uint64_t bytes; /* between the device and the host */
        uint64_t kernel_copies, batch_copies, plain_copies;
        uint64_t blocks_from_pool, blocks_through_staging; /* of those read */
        uint64_t gds_blocks;                               /* read by GPUDirect Storage */
        uint64_t gds_fallbacks[KVCACHE_GPU_GDS_REASONS];   /* read from disk otherwise, by why */
        unsigned gds_state; /* enum kvcache_gpu_gds_reason: why it was not used at all */
        int driver_version;
};

struct through {
        struct through_options options;
        struct profile_side side;
        uint32_t namespace_handle;
        struct kvcache_result *results; /* for calls on all keys, some at a time */
        uint8_t instance[16];           /* of the daemon at the beginning */
        struct through_gpu gpu;
};

/* What a daemon says of itself. */
struct through_facts {
        char backend[32];            /* "io_uring", "posix" */
        char store_volume_path[512]; /* the first of them */
        bool direct;
        uint64_t pool_bytes, limit_bytes, max_chunk_bytes;
        unsigned depth; /* I/Os at the device, of all its workers */
};
/* 0, or -errno with a sentence in ret_error. */
int through_facts(struct kvcache *kv, struct through_facts *ret, char *ret_error, size_t room);

enum { THROUGH_NOTHING = 1, THROUGH_INCOMPLETE = 2 };
/* 0; negative after profile_fail(). */
int through_open(struct through *t, struct profile *p, const struct through_options *options);
/* What the clients so far have done with the GPU is not for the report. */
void through_forget_counts(struct through *t);
void through_close(struct through *t);
/* Is every block there, for a read? 0; THROUGH_NOTHING: none is; THROUGH_INCOMPLETE, with how many
 * are; negative after profile_fail(). */
int through_look(struct through *t, struct profile *p, uint64_t *ret_present);

/* --- inside KVCACHE --- */

/* through-client.c, for the side. */
int through_client_new(void *self, struct profile *p, void **ret);
void through_client_free(void *client);
int through_client_move(void *client, const struct profile_work *work);
int through_client_check(void *client, const struct profile_work *work);
/* through-gpu.c, likewise. */
int through_gpu_client_new(void *self, struct profile *p, void **ret);
void through_gpu_client_free(void *client);
int through_gpu_client_prepare(void *client, const struct profile_work *work);
int through_gpu_client_move(void *client, const struct profile_work *work);
int through_gpu_client_check(void *client, const struct profile_work *work);
/* Fails the job by what became of a block. Returns -ECANCELED. */
int through_block_failed(struct profile *p, bool write, uint64_t block, int status,
                         uint64_t length);
/* A client's connection, and the job's namespace, made if it is not there. What was opened stays
 * the caller's on failure. */
int through_connect(struct through *t, struct profile *p, struct kvcache **ret_kv,
                    uint32_t *ret_namespace);
/* After a reap of at most THROUGH_REAP_MS that brought `n`: 0, or negative, since the daemon failed
 * (`error`), the job is to stop, or nothing has come for too long since *last_ns, which is set if
 * something has. */
enum { THROUGH_REAP_MS = 100 };
int through_reaped(struct profile *p, int n, const char *error, uint64_t *last_ns);
/* Is it still the daemon of the beginning? */
int through_check_instance(struct through *t, struct profile *p, struct kvcache *kv);
