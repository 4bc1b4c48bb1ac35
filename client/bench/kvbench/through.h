/* SPDX-License-Identifier: Apache-2.0 */
/* The side KVCACHE: moves blocks through the daemon, as an engine would.
 *
 * Each client is a connection. A piece is one request, a part of a user's chain. Writes are put
 * from the staging area and acknowledged when the daemon has written them. Reads are mapped in
 * place; their leases are held until the window has been checked. With a GPU, blocks are copied
 * from and to its memory: through-gpu.c.
 *
 * through_open() borrows a connection for calls between passes (dropping blocks, waiting until the
 * daemon is at rest, looking up blocks); the caller keeps it. */
#pragma once

#include <pthread.h>

#include "gpu-shape.h"
#include "profile.h"

/* Options for blocks in GPU memory. */
struct through_gpu_options {
        int device;
        struct gpu_shape shape;
};

struct through_options {
        const char *socket_path;               /* socket of the clients' connections; NULL: the
                                                  default */
        struct kvcache *kv;                    /* borrowed */
        bool own_daemon;                       /* no other clients use the daemon */
        const struct through_gpu_options *gpu; /* NULL: blocks are in host memory */
        bool gds; /* use cuFile even if it copies through host memory; the reports then name this
                     side "GDS" */
};

/* Counters of all clients in all passes. */
struct through_gpu {
        pthread_mutex_t lock;
        uint64_t bytes; /* copied between the device and the host */
        uint64_t kernel_copies, batch_copies, plain_copies;
        uint64_t blocks_from_pool, blocks_through_staging; /* blocks read: directly from the pool;
                                                              through staging memory */
        uint64_t gds_blocks;                               /* blocks read by GPUDirect Storage */
        uint64_t gds_fallbacks[KVCACHE_GPU_GDS_REASONS];   /* blocks on disk that GPUDirect Storage
                                                              did not read, by reason */
        unsigned gds_state; /* enum kvcache_gpu_gds_reason: why the client that ended last did not
                               use GPUDirect Storage; NONE: it did */
        int driver_version;
};

struct through {
        struct through_options options;
        struct profile_side side;
        uint32_t namespace_handle;
        struct kvcache_result *results; /* results of calls on all keys, made in batches */
        uint8_t instance[16];           /* daemon's instance at the beginning of the job */
        struct through_gpu gpu;
};

/* Properties that a daemon reports. */
struct through_facts {
        char backend[32];            /* "io_uring" or "posix" */
        char store_volume_path[512]; /* directory of the first volume */
        bool direct;
        uint64_t pool_bytes, limit_bytes, max_chunk_bytes;
        unsigned depth; /* maximum number of I/Os that all workers of the daemon together have at
                           the device */
};
/* Reads the daemon's properties, for the report. Returns 0, or -errno with a message in
 * `ret_error`. */
int through_facts(struct kvcache *kv, struct through_facts *ret, char *ret_error, size_t room);

enum { THROUGH_NOTHING = 1, THROUGH_INCOMPLETE = 2 };
/* Initializes the side. Returns 0, or negative after profile_fail(). */
int through_open(struct through *t, struct profile *p, const struct through_options *options);
/* Clears the counters of GPU transfers, so that earlier ones are not reported. */
void through_forget_counts(struct through *t);
void through_close(struct through *t);
/* Checks that every block can be read. Returns 0; THROUGH_NOTHING if none is stored;
 * THROUGH_INCOMPLETE, with the number of stored ones; negative after profile_fail(). */
int through_look(struct through *t, struct profile *p, uint64_t *ret_present);

/* --- internal to KVCACHE --- */

/* Functions of the side in through-client.c. */
int through_client_new(void *self, struct profile *p, void **ret);
void through_client_free(void *client);
int through_client_move(void *client, const struct profile_work *work);
int through_client_check(void *client, const struct profile_work *work);
/* Functions of the side in through-gpu.c. */
int through_gpu_client_new(void *self, struct profile *p, void **ret);
void through_gpu_client_free(void *client);
int through_gpu_client_prepare(void *client, const struct profile_work *work);
int through_gpu_client_move(void *client, const struct profile_work *work);
int through_gpu_client_check(void *client, const struct profile_work *work);
/* Fails the job because of a block's status. Returns -ECANCELED. */
int through_block_failed(struct profile *p, bool write, uint64_t block, int status,
                         uint64_t length);
/* Opens a client's connection and the job's namespace, creating it if necessary. Returns 0, or
 * negative after profile_fail(); the caller then still owns what was opened. */
int through_connect(struct through *t, struct profile *p, struct kvcache **ret_kv,
                    uint32_t *ret_namespace);
/* Checks the result `n` of a reap of at most THROUGH_REAP_MS. Returns 0, or negative if the reap
 * failed (`error`), the job must stop, or nothing has arrived for too long since `*last_ns`, which
 * is updated if something has. */
enum { THROUGH_REAP_MS = 100 };
int through_reaped(struct profile *p, int n, const char *error, uint64_t *last_ns);
/* Checks that the daemon is the process that ran at the beginning of the job. Returns 0, or
 * negative after profile_fail(). */
int through_check_instance(struct through *t, struct profile *p, struct kvcache *kv);
