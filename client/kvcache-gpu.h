/* SPDX-License-Identifier: Apache-2.0 */
/* libkvcache: blocks between GPU memory and the daemon. An engine describes how its blocks lie in
 * memory (<kvcache-layout.h>); the library gathers them into chunks and scatters chunks into them.
 *
 * The driver, libcuda.so.1, is loaded by kvcache_gpu_attach(). Nothing here needs CUDA when a
 * program is built: a CUstream, a CUevent and a CUdeviceptr cross as what they are, a pointer, a
 * pointer and a 64-bit number.
 *
 * What <kvcache.h> says of threads, fork(), return values and structures applies. */
#ifndef KVCACHE_GPU_H
#define KVCACHE_GPU_H

#include <stddef.h>
#include <stdint.h>

#include "kvcache-layout.h"
#include "kvcache.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* --- blocks of a GPU ---
 * A handle that a GPU is attached to is used as before; what the GPU's requests need of it goes
 * along with kvcache_gpu_reap(), and its own completions are still reaped by kvcache_reap(). */

struct kvcache_gpu;

/* How pieces are copied. AUTO chooses for each group of blocks: for many small pieces the kernel,
 * which of a put writes them to host memory, and of a get scatters them from device memory to which
 * the copy engines brought them in long copies, or, where they do not lie side by side in host
 * memory, reads them there; the driver's batch copy for larger ones; a plain asynchronous copy each
 * where neither can be had. What fails is tried in the next way: BOUNCE, KERNEL, BATCH, PLAIN. */
enum kvcache_gpu_engine {
        KVCACHE_GPU_ENGINE_AUTO = 0,
        KVCACHE_GPU_ENGINE_KERNEL = 1, /* from and to host memory itself */
        KVCACHE_GPU_ENGINE_BATCH = 2,
        KVCACHE_GPU_ENGINE_PLAIN = 3,
        KVCACHE_GPU_ENGINE_BOUNCE = 4, /* gets; puts as KERNEL */
};

enum {
        KVCACHE_GPU_CURRENT_CONTEXT = 1 << 0, /* the calling thread's, which must outlive the
                                                 attachment; else the device's primary one */
        KVCACHE_GPU_NO_POOL = 1 << 1, /* does not register the pool with the driver: that takes
                                         time, and the pool's memory is then populated and pinned */
        KVCACHE_GPU_URGENT = 1 << 2,  /* the kernel goes before the model's work of lower priority:
                                         faster beside it, and slows it more */
        KVCACHE_GPU_NO_BOUNCE = 1 << 3, /* takes no device memory (64 MiB, or what there is of it)
                                           for small pieces of gets to come through: the kernel
                                           reads the bus, which slows a model beside it more */
        KVCACHE_GPU_LEASED = 1 << 4,    /* most is loaded by kvcache_gpu_copy_leased(): only its
                                           pieces come through such memory */
};

/* GPUDirect Storage: gets read what is on disk, and not in memory, by cuFile (libcufile.so.0) into
 * device memory, where the daemon lends it. What cannot be done so goes through host memory as
 * without it, and is counted with the reason. */
enum kvcache_gpu_gds_option {
        KVCACHE_GPU_GDS_AUTO = 0,     /* where cuFile has a direct way: nvidia-fs, or P2P */
        KVCACHE_GPU_GDS_REQUIRED = 1, /* also where it only copies through host memory by itself;
                                         else kvcache_gpu_attach() fails: -EOPNOTSUPP */
        KVCACHE_GPU_GDS_NEVER = 2,
};

struct kvcache_gpu_options {
        uint32_t size;          /* sizeof(struct kvcache_gpu_options) */
        uint32_t flags;         /* KVCACHE_GPU_CURRENT_CONTEXT, ... */
        int32_t device;         /* ordinal; ignored with KVCACHE_GPU_CURRENT_CONTEXT */
        uint32_t engine;        /* enum kvcache_gpu_engine; not AUTO: for measurements */
        uint32_t max_sms;       /* multiprocessors that the kernel may take at a time; 0: 2 */
        uint32_t gds;           /* enum kvcache_gpu_gds_option */
        uint64_t staging_bytes; /* memory that puts pass through, in eight parts, each to hold a
                                   block; 0: 128 MiB */
        uint64_t gds_bytes; /* device memory that cuFile reads into, in eight parts, each to hold
                               a block; 0: 128 MiB; less if there is not so much */
        /* A folder of ext4 or XFS in which cuFile writes what is put, from where the daemon copies
         * it (io.gds_puts): in a file as long as gds_bytes, whose name goes when cuFile has
         * registered it. It is worth it only where host memory, or the bus to it, is what puts wait
         * for: each byte is written to disk twice and read once. Read during the call only. NULL:
         * puts pass through the staging memory */
        const char *gds_put_path;
};

/* Loads the driver and prepares for one GPU of this process: streams, the kernel, staging memory,
 * the pool registered for reading. Detach before kvcache_close(): a handle that is closed first
 * stays until the last GPU is detached, and every call but kvcache_gpu_detach() and
 * kvcache_gpu_error() returns -EBADF.
 *
 * The staging memory is a registered buffer, from which the daemon writes to disk itself; where the
 * daemon refuses one it is a place of the handle's staging. Where the driver does not register the
 * pool, gets pass through the staging memory, too: kvcache_gpu_get_info().
 *
 * -ENODEV: no driver, or no such device; -ENOSYS: it is too old; -EINVAL: no current context, or
 * options that are not what they must be; -EOPNOTSUPP: no unified addresses, or no GPUDirect
 * Storage with KVCACHE_GPU_GDS_REQUIRED; -ENOBUFS, -ENOMEM: no memory; -EIO: the driver refuses;
 * -ENOTCONN: no daemon. `ret_error` (may be NULL) gets a sentence. Without a driver the rest of the
 * library works as ever. */
int kvcache_gpu_attach(struct kvcache_gpu **ret, struct kvcache *kv,
                       const struct kvcache_gpu_options *options, char *ret_error,
                       size_t error_bytes);
/* Waits until no request is under way, at most timeout_ms (< 0: as long as it takes), unregisters
 * everything, frees. NULL is fine. -ETIMEDOUT: it is still attached; call again to go on waiting.
 */
int kvcache_gpu_detach(struct kvcache_gpu *gpu, int timeout_ms);
/* Why the last call failed, or the last driver call of a request. Never NULL; valid until the next
 * call. */
const char *kvcache_gpu_error(const struct kvcache_gpu *gpu);

/* Counters of transfers, by the way in which the bytes were copied. */
struct kvcache_gpu_counts {
        uint64_t bytes;  /* between the device and the host */
        uint64_t pieces; /* pieces of blocks, before adjacent ones were coalesced */
        uint64_t kernel_launches, kernel_copies, kernel_failures;
        uint64_t batch_calls, batch_copies, batch_failures;
        uint64_t plain_copies;
        uint64_t blocks_from_pool;       /* straight, under a lease */
        uint64_t blocks_through_staging; /* blocks of gets only */
        uint64_t driver_errors;          /* by which blocks failed */
};

/* Why a block that was on disk did not come by GPUDirect Storage, or one that is put did not go by
 * it. Stable numbers. */
enum kvcache_gpu_gds_reason {
        KVCACHE_GPU_GDS_NONE = 0,
        KVCACHE_GPU_GDS_OFF = 1,        /* KVCACHE_GPU_GDS_NEVER: not counted */
        KVCACHE_GPU_GDS_DAEMON = 2,     /* the daemon does not lend to this user, or is too old */
        KVCACHE_GPU_GDS_LIBRARY = 3,    /* there is no libcufile.so.0 */
        KVCACHE_GPU_GDS_SYMBOL = 4,     /* cuFile lacks a function */
        KVCACHE_GPU_GDS_DRIVER = 5,     /* cuFile's driver does not open */
        KVCACHE_GPU_GDS_COMPATIBLE = 6, /* cuFile would copy through host memory */
        KVCACHE_GPU_GDS_BUFFER = 7,     /* no device memory, or cuFile does not register it; or all
                                           of it waits for leases */
        KVCACHE_GPU_GDS_UNVERIFIED = 8, /* not read back since the daemon started; it is now */
        KVCACHE_GPU_GDS_VOLUME = 9,     /* the volume has no O_DIRECT, or cannot lend */
        KVCACHE_GPU_GDS_LIMIT = 10,     /* the daemon has lent enough */
        KVCACHE_GPU_GDS_FILE = 11,   /* no descriptor of the data file, or one without O_DIRECT */
        KVCACHE_GPU_GDS_FILES = 12,  /* the maximum number of files is in use */
        KVCACHE_GPU_GDS_HANDLE = 13, /* cuFile does not register the file */
        KVCACHE_GPU_GDS_SIZE = 14,   /* longer than an eighth of the device memory */
        KVCACHE_GPU_GDS_FAILED = 15, /* the read or the write failed */
        KVCACHE_GPU_GDS_TOO_SHORT = 16, /* the read or the write ended early */
        KVCACHE_GPU_GDS_RECALLED = 17,  /* the chunk was dropped while it was being read */
        KVCACHE_GPU_GDS_PAUSED = 18,    /* reads are suspended after consecutive failures */
        KVCACHE_GPU_GDS_POOL = 19,      /* the pool is not registered with the GPU's driver */
        KVCACHE_GPU_GDS_PUT = 20,       /* put: the daemon could not take it from the file */
        KVCACHE_GPU_GDS_SMALL = 21,     /* put: shorter than 8 KiB */
        KVCACHE_GPU_GDS_HOLES = 22, /* put: the request leaves out blocks, KVCACHE_GPU_NO_BLOCK */
        KVCACHE_GPU_GDS_REASONS = 24,
};

/* State and counters of gets by GPUDirect Storage. */
struct kvcache_gpu_gds {
        uint32_t state; /* enum kvcache_gpu_gds_reason: why it is not used; NONE: it is */
        int32_t error;  /* the last one: cuFile's number, from 5001 on, or -errno; 0: none */
        uint32_t files; /* registered with cuFile now */
        uint32_t reserved;
        uint64_t device_bytes; /* that cuFile reads into */
        uint64_t reads, read_bytes;
        uint64_t blocks;                             /* that came so */
        uint64_t fallbacks[KVCACHE_GPU_GDS_REASONS]; /* blocks on disk that did not, by reason */
};
/* State and counters of puts by GPUDirect Storage; `state` is KVCACHE_GPU_GDS_OFF unless
 * kvcache_gpu_options.gds_put_path is set. */
struct kvcache_gpu_gds_puts {
        uint32_t state; /* enum kvcache_gpu_gds_reason, as of the last attempt */
        int32_t error;  /* the last one: cuFile's number, from 5001 on, or -errno; 0: none */
        uint64_t writes, write_bytes;
        uint64_t blocks;                             /* that went so */
        uint64_t fallbacks[KVCACHE_GPU_GDS_REASONS]; /* that went through staging, by reason */
};
/* "the read or the write failed". Never NULL. */
const char *kvcache_gpu_gds_reason_name(int reason);

struct kvcache_gpu_info {
        uint32_t size; /* in: sizeof(struct kvcache_gpu_info) */
        uint32_t flags;
        int32_t device;
        int32_t driver_version; /* 13000: CUDA 13.0 */
        uint32_t multiprocessors, max_sms;
        uint64_t staging_bytes, pool_bytes; /* registered with the driver */
        struct kvcache_gpu_counts counts;
        struct kvcache_gpu_gds gds;
        uint64_t blocks_paced; /* asked for again: there were too many for the daemon's limit of
                                  what may be leased at a time */
        struct kvcache_gpu_gds_puts gds_puts;
        uint64_t bounce_bytes;  /* device memory that small pieces of gets come through */
        uint64_t bounce_copies; /* into it */
};
enum {
        KVCACHE_GPU_HAS_KERNEL = 1 << 0,
        KVCACHE_GPU_HAS_BATCH = 1 << 1,
        KVCACHE_GPU_HAS_POOL = 1 << 2,   /* gets go straight from the pool */
        KVCACHE_GPU_HAS_BUFFER = 1 << 3, /* the staging memory is a registered buffer */
        KVCACHE_GPU_HAS_GDS = 1 << 4,    /* GPUDirect Storage is used */
        KVCACHE_GPU_GDS_COPIES = 1 << 5, /* but cuFile copies through host memory */
};
int kvcache_gpu_get_info(struct kvcache_gpu *gpu, struct kvcache_gpu_info *ret);

struct kvcache_gpu_block {
        struct kvcache_key key;
        uint64_t block;   /* index in the layout; 0 in a request with `indices` */
        uint32_t tokens;  /* 0: all of a page */
        uint32_t cost_us; /* put: as of struct kvcache_entry; 0: not said */
};

enum {
        KVCACHE_GPU_NOTIFY_ISSUED = 1 << 8, /* a completion of kind KVCACHE_GPU_ISSUED, too */
};

/* The index of a block that is left out of a chunk of several blocks. */
#define KVCACHE_GPU_NO_BLOCK UINT64_MAX

/* CUDA orders a request with the caller's own work, on both sides. Requests of one kind, puts or
 * gets, begin in the order of their calls; two under way at a time that write the same block are
 * the caller's to order.
 *
 * Before: no block is read or written before what `before_stream` holds at the time of the call, or
 * what `before_event` has been recorded after by then, is done.
 * After: when the last copy of the request has been put into a stream of the library's, it is
 * issued. Then `after_event` is recorded behind it and `after_stream` made to wait for it. Waiting
 * for `after_event` has a meaning from then on: KVCACHE_GPU_NOTIFY_ISSUED says when that is. After
 * a put, the blocks' memory may be overwritten in that order; after a get, blocks whose status is
 * good by then may be read.
 * Captures: a program may capture CUDA graphs in other threads at any time: every call makes the
 * thread's capture mode relaxed, so that none of its own calls of the driver invalidates a capture,
 * and restores it. cuFile's threads and its first use are outside of that: a program that uses
 * GPUDirect Storage attaches and opens its volumes before it captures. If `after_stream` is being
 * captured when the request could be issued, it is issued when that capture has ended.
 *
 * Chunks of several blocks: with `indices`, each entry of `blocks` is a chunk of `chunk_blocks`
 * blocks one after the other, block j at j × the layout's block_bytes. Its `block` and `tokens` are
 * 0, and `indices` has the blocks' indices in the layout. A get leaves the memory of a block as it
 * is if its index is KVCACHE_GPU_NO_BLOCK, such as those that the engine has already; a put stores
 * zeros in its place. At least one block of a chunk has an index.
 *
 * A get of more than the daemon leases at a time (limits.leased_bytes) goes in parts: the rest is
 * asked for when the blocks before it are copied. A block is KVCACHE_QUOTA only if it cannot be
 * leased with nothing else of this attachment's leased. */
struct kvcache_gpu_request {
        uint32_t size;       /* sizeof(struct kvcache_gpu_request) */
        uint32_t block_size; /* sizeof(struct kvcache_gpu_block) */
        uint32_t namespace_handle;
        uint32_t flags;                 /* KVCACHE_NOWAIT, KVCACHE_GPU_NOTIFY_ISSUED */
        enum kvcache_ack ack;           /* put */
        uint32_t first_layer, n_layers; /* get: these only; 0, 0: all. A put takes whole blocks */
        int timeout_ms; /* limits the daemon's share of each group of blocks; 0: the handle's */
        const struct kvcache_layout *layout; /* this and `blocks` are read during the call only */
        const struct kvcache_gpu_block *blocks; /* a chain, root first, as in <kvcache.h> */
        size_t count;
        const struct kvcache_key *parent; /* the key before the first; NULL: the first is a root */
        int *statuses; /* `count` of them, enum kvcache_status; written until the completion is
                          reaped. KVCACHE_MISMATCH: the chunk's length is not that of the block;
                          KVCACHE_FAILED: the GPU's driver refused, or the device */
        void *before_stream, *after_stream; /* CUstream; NULL: none; the default stream is
                                               CU_STREAM_LEGACY or CU_STREAM_PER_THREAD */
        void *before_event, *after_event;   /* CUevent; NULL: none */
        uint64_t user_data;
        uint32_t chunk_blocks;   /* with `indices`: blocks of a chunk; 0: 1 */
        uint32_t reserved;       /* 0 */
        const uint64_t *indices; /* count × chunk_blocks; read during the call only; NULL: a chunk
                                    is one block, `block` */
};

/* Begins to take blocks out of GPU memory, or to bring them there, and returns. -EINVAL: the
 * request is not what it must be; -E2BIG: a chunk is longer than an eighth of the staging memory,
 * or has more than 16,384 pieces; -EOVERFLOW: a chunk or the layout is larger than all memory;
 * -EBUSY: `before_stream` or `after_stream` is being captured into a CUDA graph, which the request
 * would become a part of, or is CU_STREAM_LEGACY during a capture, which it would invalidate;
 * neither is touched; -ENOMEM; -EIO: the driver refuses. */
int kvcache_gpu_put_blocks(struct kvcache_gpu *gpu, const struct kvcache_gpu_request *request);
int kvcache_gpu_get_blocks(struct kvcache_gpu *gpu, const struct kvcache_gpu_request *request);

enum kvcache_gpu_completion_kind {
        KVCACHE_GPU_ISSUED = 1,
        KVCACHE_GPU_DONE = 2, /* the last one of a request */
};

struct kvcache_gpu_completion {
        uint64_t user_data;
        enum kvcache_gpu_completion_kind kind;
        int error; /* 0, or -errno of what some of the blocks have failed by */
        size_t count;
        /* Nanoseconds in which copies of the request were under way, by the GPU's clock: without
         * what they waited for in the stream's order, at the daemon or in a queue. Divide bytes by
         * it for the rate of the bus. 0: the driver cannot say. */
        uint64_t copy_ns;
};

/* Readable when kvcache_gpu_reap() has something to do. Call that after kvcache_reap() of the same
 * handle, too, which takes replies for both. */
int kvcache_gpu_fd(struct kvcache_gpu *gpu);
/* Goes on with the requests and takes up to `max` completions, waiting for the first at most
 * timeout_ms (0: not at all; < 0: until there is one or nothing is under way). Returns how many. */
int kvcache_gpu_reap_sized(struct kvcache_gpu *gpu, struct kvcache_gpu_completion *ret,
                           size_t completion_size, size_t max, int timeout_ms);
static inline int kvcache_gpu_reap(struct kvcache_gpu *gpu, struct kvcache_gpu_completion *ret,
                                   size_t max, int timeout_ms)
{
        return kvcache_gpu_reap_sized(gpu, ret, sizeof(*ret), max, timeout_ms);
}

/* --- copies of leased chunks ---
 *
 * A leased chunk neither moves nor changes, so copying it into blocks needs neither the daemon nor
 * the thread that owns the handle. The functions below may be called by any thread, beside any call
 * on the same attachment but kvcache_gpu_attach() and kvcache_gpu_detach(); each relaxes and
 * restores the calling thread's capture mode.
 *
 * A lease may be of another handle, or of another process that hands on what kvcache_pool_of() says
 * of the leased bytes: the pool and the offset in it. */

struct kvcache_gpu_leased_request {
        uint32_t size;                       /* sizeof(struct kvcache_gpu_leased_request) */
        uint32_t flags;                      /* 0 */
        const struct kvcache_layout *layout; /* these three are read during the call only */
        const uint64_t *blocks;              /* indices in the layout, `count` of them */
        const uint64_t *pool_offsets;        /* position of each block's chunk */
        size_t count;                        /* 0: only prepares for requests that follow */
        uint64_t pool_id;                    /* the pool of all these chunks */
        void *before_stream, *before_event;  /* NULL: none; see kvcache_gpu_request */
        void *after_stream;                  /* made to wait for the copies; NULL: none */
        uint64_t user_data;
};

/* Puts copies of whole leased chunks into a stream of the library's and returns; it does not wait
 * for the daemon, nor for the device. Requests are copied one after another. The caller keeps the
 * leases until it has taken the request's completion. The first request makes streams and up to 64
 * MiB of device memory.
 *
 * -EINVAL: the request is not what it must be, or a chunk is not within its pool; -ESTALE: the pool
 * is not registered with this device; -EBUSY: a stream is being captured into a CUDA graph, see
 * kvcache_gpu_put_blocks(); -ENOMEM; -EIO: the driver refuses, and nothing is under way any more. A
 * request that returned 0 fails only if the device does. */
int kvcache_gpu_copy_leased(struct kvcache_gpu *gpu,
                            const struct kvcache_gpu_leased_request *request);

/* Takes up to `max` completions of such requests, all of kind KVCACHE_GPU_DONE, in their order,
 * waiting for the first at most timeout_ms (0: not at all; < 0: until there is one or nothing is
 * under way). Returns how many. */
int kvcache_gpu_reap_leased_sized(struct kvcache_gpu *gpu, struct kvcache_gpu_completion *ret,
                                  size_t completion_size, size_t max, int timeout_ms);
static inline int kvcache_gpu_reap_leased(struct kvcache_gpu *gpu,
                                          struct kvcache_gpu_completion *ret, size_t max,
                                          int timeout_ms)
{
        return kvcache_gpu_reap_leased_sized(gpu, ret, sizeof(*ret), max, timeout_ms);
}
/* Why the last of these calls failed. Never NULL; valid until the next of them. */
const char *kvcache_gpu_leased_error(const struct kvcache_gpu *gpu);

/* The pools whose chunks can be copied, the latest first: writes up to `max` ids and returns how
 * many. After a restart of the daemon its new pool is one of them once a call on the handle has
 * reconnected. From the first kvcache_gpu_copy_leased() on, the pool before it remains one, mapped
 * and registered, for leases that were taken in it. At most four pools are kept: of more, the
 * oldest goes. */
int kvcache_gpu_pools(struct kvcache_gpu *gpu, uint64_t *ret_ids, size_t max);
/* Releases a pool in which the caller has no lease any more; the handle's next call unregisters
 * it. -ESTALE: there is no such pool; -EBUSY: it is that of the handle's session. */
int kvcache_gpu_release_pool(struct kvcache_gpu *gpu, uint64_t pool_id);
/* Returns the first byte of such a pool in this process, read-only, and its length. NULL: there is
 * no such pool. The memory stays mapped until the pool is released or the GPU is detached. */
const void *kvcache_gpu_pool_memory(struct kvcache_gpu *gpu, uint64_t pool_id, uint64_t *ret_bytes);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
