/* SPDX-License-Identifier: Apache-2.0 */
/* libkvcache: moves blocks between GPU memory and the daemon. An engine describes how its blocks
 * lie in memory (<kvcache-layout.h>); the library gathers them into chunks and scatters chunks into
 * them.
 *
 * kvcache_gpu_attach() loads the driver, libcuda.so.1. A program needs no CUDA to be built: it
 * passes a CUstream and a CUevent as pointers, and a CUdeviceptr as a 64-bit number.
 *
 * The rules of <kvcache.h> about threads, fork(), return values and structures apply. */
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
 * A handle with an attached GPU is used as before. kvcache_gpu_reap() also processes the handle's
 * messages for the GPU's requests; kvcache_reap() still returns the completions of other requests.
 */

struct kvcache_gpu;

/* Ways to copy pieces. AUTO chooses one for each group of blocks. For gets of pieces below 1 MiB,
 * copy engines bring long runs into device memory, from which the kernel scatters them. Pieces
 * below 64 KiB of puts, and of gets if they are not adjacent in host memory, are written and read
 * there by the kernel. For all other pieces, and for fewer than four, AUTO uses the driver's batch
 * copy, or one asynchronous copy for each piece if the driver has no batch copy. If a way fails,
 * the library tries the next one in the order BOUNCE, KERNEL, BATCH, PLAIN. */
enum kvcache_gpu_engine {
        KVCACHE_GPU_ENGINE_AUTO = 0,
        KVCACHE_GPU_ENGINE_KERNEL = 1, /* the kernel accesses host memory directly */
        KVCACHE_GPU_ENGINE_BATCH = 2,
        KVCACHE_GPU_ENGINE_PLAIN = 3,
        KVCACHE_GPU_ENGINE_BOUNCE = 4, /* gets: copy engines fill device memory, from which the
                                          kernel scatters pieces; puts: as KERNEL */
};

enum {
        /* Uses the calling thread's context, which must outlive the attachment, rather than the
         * device's primary one. */
        KVCACHE_GPU_CURRENT_CONTEXT = 1 << 0,
        KVCACHE_GPU_NO_POOL = 1 << 1, /* does not register the pool with the driver, which takes
                                         time, and populates and pins the pool's memory */
        KVCACHE_GPU_URGENT = 1 << 2,  /* runs the kernel before the model's work of lower priority:
                                         faster, but it slows that work more */
        /* Takes no device memory (64 MiB, or less if short) for small pieces of gets: the kernel
         * reads those below 64 KiB over the bus, which slows a concurrent model more. */
        KVCACHE_GPU_NO_BOUNCE = 1 << 3,
        KVCACHE_GPU_LEASED = 1 << 4, /* kvcache_gpu_copy_leased() makes most loads: no device memory
                                        is taken for small pieces of other gets */
        /* For a program whose other threads compute on the GPU: no request registers or unregisters
         * memory. When another session has replaced the handle's, after a restart of the daemon,
         * requests fail with KVCACHE_LOST until kvcache_gpu_renew(). */
        KVCACHE_GPU_EXPLICIT = 1 << 5,
        KVCACHE_GPU_GENTLE = 1 << 6, /* kvcache_gpu_attach() registers the pool in slices with
                                        pauses between them, as kvcache_gpu_renew() does */
};

/* GPUDirect Storage: cuFile (libcufile.so.0) reads chunks that are only on disk directly into
 * device memory, if the daemon lends them. All other chunks pass through host memory, and are
 * counted with the reason. */
enum kvcache_gpu_gds_option {
        KVCACHE_GPU_GDS_AUTO = 0, /* use cuFile if it has a direct path: nvidia-fs, or P2P */
        /* Use cuFile also if it only copies through host memory. kvcache_gpu_attach() fails with
         * -EOPNOTSUPP if cuFile is not available. */
        KVCACHE_GPU_GDS_REQUIRED = 1,
        KVCACHE_GPU_GDS_NEVER = 2,
};

struct kvcache_gpu_options {
        uint32_t size;    /* sizeof(struct kvcache_gpu_options) */
        uint32_t flags;   /* KVCACHE_GPU_CURRENT_CONTEXT, ... */
        int32_t device;   /* number of the device; ignored with KVCACHE_GPU_CURRENT_CONTEXT */
        uint32_t engine;  /* enum kvcache_gpu_engine; values other than AUTO are for measurements */
        uint32_t max_sms; /* multiprocessors that the kernel may take at a time; 0: 2 */
        uint32_t gds;     /* enum kvcache_gpu_gds_option */
        uint64_t staging_bytes; /* size of the memory for puts, in eight parts, each of which must
                                   hold a block; a multiple of 4,096, 64 KiB or more; 0: 128 MiB */
        uint64_t gds_bytes; /* size of the device memory that cuFile uses, in eight parts, each of
                               which must hold a block; a multiple of 65,536, 1 MiB or more; less if
                               memory is short; 0: 128 MiB */
        /* Folder on ext4 or XFS for a file of gds_bytes, into which cuFile writes puts and from
         * which the daemon copies them (io.gds_puts). The file's name is removed when cuFile has
         * registered it. This pays only if host memory, or the bus to it, limits puts, because each
         * byte is written to disk twice and read once. Read during the call only. NULL: puts pass
         * through the staging memory. */
        const char *gds_put_path;
};

/* Loads the driver and prepares one GPU of this process: streams, the kernel, staging memory, and
 * the pool, registered for reading. Detach before kvcache_close(): a handle that is closed first
 * stays until its last GPU is detached, and meanwhile the calls of this section on the attachment,
 * except kvcache_gpu_detach() and kvcache_gpu_error(), return -EBADF.
 *
 * The staging memory is a registered buffer, from which the daemon writes to disk directly; if the
 * daemon refuses to register a buffer, the staging memory is a place in the handle's staging area.
 * If the driver does not register the pool, gets pass through the staging memory, too, and
 * kvcache_gpu_get_info() returns no KVCACHE_GPU_HAS_POOL.
 *
 * Returns -ENODEV: no driver, or no such device; -ENOSYS: the driver is too old; -EINVAL: no
 * current context, or invalid options; -EOPNOTSUPP: no unified addresses, or no GPUDirect
 * Storage with KVCACHE_GPU_GDS_REQUIRED; -ENOBUFS, -ENOMEM: no memory; -E2BIG: the handle's staging
 * area is too small, or an option is set that the library does not know; -EIO: the driver refuses;
 * -ENOTCONN: no daemon. `ret_error` (may be NULL) gets a sentence that describes the failure.
 * Without a driver the rest of the library works unchanged. */
int kvcache_gpu_attach(struct kvcache_gpu **ret, struct kvcache *kv,
                       const struct kvcache_gpu_options *options, char *ret_error,
                       size_t error_bytes);
/* Waits until no request is in flight, for at most timeout_ms (< 0: without limit), unregisters all
 * memory and frees the attachment. `gpu` may be NULL. Returns -ETIMEDOUT if the GPU is still
 * attached; call again to continue waiting. */
int kvcache_gpu_detach(struct kvcache_gpu *gpu, int timeout_ms);
/* Registers the memory of the handle's current session with the driver if that of an earlier
 * session is registered, and unregisters the pools that were released. Registers slices that take
 * milliseconds each, with pauses, so that other threads can launch work meanwhile. The call takes a
 * second or more for each GiB. Returns 0 also if nothing had to be done, or if the driver refuses
 * the pool, as kvcache_gpu_attach() does; the next call then tries again. -EAGAIN while requests
 * are in flight; -ENOMEM, or the reason why there is no session. Without KVCACHE_GPU_EXPLICIT the
 * next request registers the memory itself, without pauses. */
int kvcache_gpu_renew(struct kvcache_gpu *gpu);
/* Returns the reason of the latest failure of a call, or of a driver call for a request, also if
 * later calls succeeded; empty if nothing has failed. Never NULL; valid until the next call. */
const char *kvcache_gpu_error(const struct kvcache_gpu *gpu);

/* Counters of copies of blocks, by the way in which the bytes were copied. */
struct kvcache_gpu_counts {
        uint64_t bytes;  /* copied between the engine's memory, host memory and the device memory
                            that cuFile uses */
        uint64_t pieces; /* pieces of blocks, counted before adjacent ones are merged */
        uint64_t kernel_launches, kernel_copies, kernel_failures;
        uint64_t batch_calls, batch_copies, batch_failures;
        uint64_t plain_copies;
        uint64_t blocks_from_pool; /* blocks of gets, and of kvcache_gpu_copy_leased(), that were
                                      copied directly from the pool, under a lease */
        uint64_t blocks_through_staging; /* blocks of gets that passed through the staging memory;
                                            puts do not count */
        uint64_t driver_errors; /* errors of the driver that made blocks or requests fail */
};

/* Why GPUDirect Storage did not move a block that was on disk, or that was put. Stable numbers. */
enum kvcache_gpu_gds_reason {
        KVCACHE_GPU_GDS_NONE = 0,
        KVCACHE_GPU_GDS_OFF = 1,     /* KVCACHE_GPU_GDS_NEVER; puts: no gds_put_path. Not counted */
        KVCACHE_GPU_GDS_DAEMON = 2,  /* the daemon does not lend to this user, or takes no puts from
                                        its files, or is too old */
        KVCACHE_GPU_GDS_LIBRARY = 3, /* there is no libcufile.so.0 */
        KVCACHE_GPU_GDS_SYMBOL = 4,  /* cuFile lacks a function */
        KVCACHE_GPU_GDS_DRIVER = 5,  /* cuFile's driver does not open */
        KVCACHE_GPU_GDS_COMPATIBLE = 6, /* cuFile would copy through host memory */
        KVCACHE_GPU_GDS_BUFFER = 7, /* cuFile does not register the device memory, or the device has
                                       too little, or requests that wait for leases use all of it */
        KVCACHE_GPU_GDS_UNVERIFIED = 8, /* the daemon had not read the chunk since it started; it
                                           verifies the chunk now */
        KVCACHE_GPU_GDS_VOLUME = 9,     /* the volume has no O_DIRECT, or cannot lend */
        /* A limit of loans, or for puts of registered buffers, is reached. */
        KVCACHE_GPU_GDS_LIMIT = 10,
        /* No descriptor of the data file, or one without O_DIRECT; put: the file cannot be created,
         * or the daemon does not register it. */
        KVCACHE_GPU_GDS_FILE = 11,
        KVCACHE_GPU_GDS_FILES = 12,  /* the maximum number of files is in use */
        KVCACHE_GPU_GDS_HANDLE = 13, /* cuFile does not register the file */
        KVCACHE_GPU_GDS_SIZE = 14,   /* the chunk is longer than an eighth of the device memory */
        KVCACHE_GPU_GDS_FAILED = 15, /* the read or the write failed */
        KVCACHE_GPU_GDS_TOO_SHORT = 16, /* the read or the write ended early */
        KVCACHE_GPU_GDS_RECALLED = 17,  /* the daemon did not confirm the bytes: the chunk was
                                           dropped during the read, or the session ended */
        KVCACHE_GPU_GDS_PAUSED = 18,    /* reads or puts pause after 16 failures in a row */
        KVCACHE_GPU_GDS_POOL = 19,      /* the pool is not registered with the GPU's driver */
        KVCACHE_GPU_GDS_PUT = 20,       /* put: the daemon could not read the chunk from the file */
        KVCACHE_GPU_GDS_SMALL = 21,     /* put: shorter than 8 KiB */
        KVCACHE_GPU_GDS_HOLES = 22, /* put: the request leaves out blocks, KVCACHE_GPU_NO_BLOCK */
        KVCACHE_GPU_GDS_REASONS = 24,
};

/* State and counters of gets by GPUDirect Storage. */
struct kvcache_gpu_gds {
        uint32_t state; /* enum kvcache_gpu_gds_reason: why GPUDirect Storage is not used now; NONE:
                           it is used */
        int32_t error;  /* the latest error: cuFile's number, from 5001 on, or -errno; 0: none */
        uint32_t files; /* number of files that are registered with cuFile now */
        uint32_t reserved;
        uint64_t device_bytes; /* device memory that cuFile uses */
        uint64_t reads, read_bytes;
        uint64_t blocks;                             /* blocks moved by cuFile */
        uint64_t fallbacks[KVCACHE_GPU_GDS_REASONS]; /* number of blocks on disk that were moved
                                                        without cuFile, by reason */
};
/* State and counters of puts by GPUDirect Storage; `state` is KVCACHE_GPU_GDS_OFF unless
 * kvcache_gpu_options.gds_put_path is set. */
struct kvcache_gpu_gds_puts {
        uint32_t state; /* enum kvcache_gpu_gds_reason: why the file could not be used at the last
                           attempt; NONE: it could */
        int32_t error;  /* the latest error: cuFile's number, from 5001 on, or -errno; 0: none */
        uint64_t writes, write_bytes;
        uint64_t blocks;                             /* blocks moved by cuFile */
        uint64_t fallbacks[KVCACHE_GPU_GDS_REASONS]; /* number of blocks that passed through
                                                        staging, by reason */
};
/* Returns a text for an enum kvcache_gpu_gds_reason, such as "the read or the write failed". Never
 * NULL. */
const char *kvcache_gpu_gds_reason_name(int reason);

struct kvcache_gpu_info {
        uint32_t size; /* in: sizeof(struct kvcache_gpu_info) */
        uint32_t flags;
        int32_t device;
        int32_t driver_version; /* 13000: CUDA 13.0 */
        uint32_t multiprocessors, max_sms;
        uint64_t staging_bytes, pool_bytes; /* bytes of the staging memory and of the pool that are
                                               registered with the driver */
        struct kvcache_gpu_counts counts;
        struct kvcache_gpu_gds gds;
        uint64_t blocks_paced; /* number of blocks that were requested again, because they exceeded
                                  the daemon's limit of leased bytes */
        struct kvcache_gpu_gds_puts gds_puts;
        uint64_t bounce_bytes;  /* device memory for small pieces of gets */
        uint64_t bounce_copies; /* copies into that memory */
};
enum {
        KVCACHE_GPU_HAS_KERNEL = 1 << 0,
        KVCACHE_GPU_HAS_BATCH = 1 << 1,
        KVCACHE_GPU_HAS_POOL = 1 << 2,   /* gets are copied directly from the pool */
        KVCACHE_GPU_HAS_BUFFER = 1 << 3, /* the staging memory is a registered buffer */
        KVCACHE_GPU_HAS_GDS = 1 << 4,    /* GPUDirect Storage is used */
        KVCACHE_GPU_GDS_COPIES = 1 << 5, /* cuFile copies through host memory */
};
int kvcache_gpu_get_info(struct kvcache_gpu *gpu, struct kvcache_gpu_info *ret);

struct kvcache_gpu_block {
        struct kvcache_key key;
        uint64_t block;  /* index in the layout; 0 in a request with `indices` */
        uint32_t tokens; /* number of tokens, from the block's first on; 0: the layout's page_tokens
                          */
        uint32_t cost_us; /* put: cost of computing the block, see struct kvcache_entry; 0: not
                             declared */
};

enum {
        KVCACHE_GPU_NOTIFY_ISSUED = 1 << 8, /* adds a completion of kind KVCACHE_GPU_ISSUED */
};

/* The index of a block that is left out of a chunk of several blocks. */
#define KVCACHE_GPU_NO_BLOCK UINT64_MAX

/* CUDA orders a request with the caller's own work, on both sides. Requests of one kind, puts or
 * gets, begin in the order of their calls. If two requests in flight write the same block, the
 * caller must order them.
 *
 * Before: the library reads or writes no block until two kinds of work are done: the work that was
 * in `before_stream` at the time of the call, and the work that precedes the latest record of
 * `before_event` at that time.
 *
 * After: a request is issued when its last copy is in a stream of the library. `after_event` is
 * then recorded behind it, and `after_stream` is made to wait for it. Waiting for `after_event` is
 * meaningful only from then on, which KVCACHE_GPU_NOTIFY_ISSUED reports. Work that follows
 * `after_event`, or in `after_stream`, may overwrite the blocks of a put, and may read the blocks
 * of a get whose status is good.
 *
 * Captures: a program may capture CUDA graphs in other threads at any time. Every call relaxes the
 * calling thread's capture mode, so that none of its driver calls invalidates a capture, and then
 * restores it. The library cannot do the same for cuFile's threads and its first use: a program
 * that uses GPUDirect Storage must attach, and open its volumes, before it captures. If
 * `after_stream` is being captured when the request could be issued, the request is issued when
 * that capture has ended.
 *
 * Chunks of several blocks: with `indices`, each entry of `blocks` is a chunk of `chunk_blocks`
 * consecutive blocks, block j at j × the layout's block_bytes. Its `block` and `tokens` are 0, and
 * `indices` has the blocks' indices in the layout. KVCACHE_GPU_NO_BLOCK leaves out a block, such as
 * one that the engine already has: a get does not change its memory, and a put stores zeros in its
 * place. At least one block of a chunk has an index.
 *
 * A get that exceeds the daemon's limit of leases (limits.leased_bytes) proceeds in parts: the
 * rest is requested after the blocks before it are copied. A block is KVCACHE_QUOTA only if it
 * cannot be leased while this attachment leases nothing else. */
struct kvcache_gpu_request {
        uint32_t size;       /* sizeof(struct kvcache_gpu_request) */
        uint32_t block_size; /* sizeof(struct kvcache_gpu_block) */
        uint32_t namespace_handle;
        uint32_t flags;       /* KVCACHE_NOWAIT, KVCACHE_GPU_NOTIFY_ISSUED */
        enum kvcache_ack ack; /* put */
        uint32_t first_layer,
                n_layers; /* get: only these layers; 0, 0: all layers, as for every put */
        int timeout_ms;   /* limit of the daemon's part of the time for each group of blocks; 0: the
                             handle's timeout */
        const struct kvcache_layout *layout; /* this and `blocks` are read during the call only */
        const struct kvcache_gpu_block *blocks; /* a chain, root first, as in <kvcache.h> */
        size_t count;
        const struct kvcache_key *parent; /* the key before the first; NULL: the first is a root */
        int *statuses; /* `count` values of enum kvcache_status; the library writes to them until
                          the completion is reaped. KVCACHE_MISMATCH: the chunk's length is not that
                          of the block; KVCACHE_FAILED: the GPU or its driver failed, or, as in
                          <kvcache.h>, the daemon's disk or a copy */
        void *before_stream, *after_stream; /* CUstream; NULL: none; the default stream is
                                               CU_STREAM_LEGACY or CU_STREAM_PER_THREAD */
        void *before_event, *after_event;   /* CUevent; NULL: none */
        uint64_t user_data;
        uint32_t chunk_blocks;   /* with `indices`: blocks of a chunk; 0: 1 */
        uint32_t reserved;       /* 0 */
        const uint64_t *indices; /* count × chunk_blocks; read during the call only; NULL: a chunk
                                    is one block, `block` */
};

/* Start a put of blocks from GPU memory, or a get of blocks into GPU memory, and return without
 * waiting. Return -EINVAL: the request is invalid; -E2BIG: a chunk of a put is longer than an
 * eighth of the staging memory, a chunk of several blocks has more than 16,384 pieces, the layout
 * does not fit its buffers, or a member is set that the library does not know; -EOVERFLOW: a chunk
 * or the layout exceeds the address space; -EBUSY: `before_stream` or `after_stream` is being
 * captured into a CUDA graph, of which the request would become part, or is CU_STREAM_LEGACY during
 * a capture, which the request would invalidate; neither the stream nor the capture is affected;
 * -ENOMEM; -EIO: the driver refuses. */
int kvcache_gpu_put_blocks(struct kvcache_gpu *gpu, const struct kvcache_gpu_request *request);
int kvcache_gpu_get_blocks(struct kvcache_gpu *gpu, const struct kvcache_gpu_request *request);

enum kvcache_gpu_completion_kind {
        KVCACHE_GPU_ISSUED = 1,
        KVCACHE_GPU_DONE = 2, /* the last completion of a request */
};

struct kvcache_gpu_completion {
        uint64_t user_data;
        enum kvcache_gpu_completion_kind kind;
        int error; /* 0, or a negative errno: blocks failed, or the driver could not make the
                      program's stream or event follow the copies */
        size_t count;
        /* Nanoseconds during which copies of the request were in progress, by the GPU's clock,
         * excluding waits for the stream's order, the daemon or a queue. Bytes divided by this give
         * the rate of the bus. 0: the driver cannot measure it. */
        uint64_t copy_ns;
};

/* Returns a descriptor that is readable when kvcache_gpu_reap() has work. Also call
 * kvcache_gpu_reap() after kvcache_reap() of the same handle, which takes replies for both. */
int kvcache_gpu_fd(struct kvcache_gpu *gpu);
/* Continues the requests and takes up to `max` completions. Waits for the first one at most
 * timeout_ms (0: not at all; < 0: until there is one or nothing is in flight). Returns the number
 * of completions. */
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
 * the thread that owns the handle. Any thread may call the functions below, also while another
 * thread makes any call on the same attachment except kvcache_gpu_attach() and
 * kvcache_gpu_detach(); each relaxes and restores the calling thread's capture mode.
 *
 * The lease may belong to another handle or another process, which passes the results of
 * kvcache_pool_of() for the leased bytes: the pool's id, and the offset in the pool. */

struct kvcache_gpu_leased_request {
        uint32_t size;                       /* sizeof(struct kvcache_gpu_leased_request) */
        uint32_t flags;                      /* 0 */
        const struct kvcache_layout *layout; /* these three are read during the call only */
        const uint64_t *blocks;              /* indices in the layout; `count` elements */
        const uint64_t *pool_offsets;        /* position of each block's chunk */
        size_t count;     /* number of blocks; 0: only prepares for requests of the same kind */
        uint64_t pool_id; /* the pool of all these chunks */
        void *before_stream, *before_event; /* NULL: none; see kvcache_gpu_request */
        void *after_stream;                 /* made to wait for the copies; NULL: none */
        uint64_t user_data;
};

/* Puts copies of whole leased chunks into a stream of the library, and returns without waiting for
 * the daemon or the device. The caller keeps the leases until it has taken the request's
 * completion.
 *
 * Requests with an after_stream are one kind, and those without the other. The requests of a kind
 * are copied one after another, and beside those of the other kind. The first request of a kind
 * creates streams and takes up to 72 MiB of device memory: up to 64 MiB for small pieces, none with
 * KVCACHE_GPU_NO_BOUNCE, and 7.5 MiB for lists of copies.
 *
 * Returns -EINVAL: the request is invalid, or a chunk is not within its pool; -E2BIG or -EOVERFLOW:
 * the layout is invalid, as in kvcache_layout_measure(), or a member is set that this library does
 * not know (-E2BIG); -ESTALE: the pool is not registered with this device; -EBUSY: a stream is
 * being captured into a CUDA graph, see kvcache_gpu_put_blocks(); -ENOMEM; -EIO, -ENODEV or
 * -EOPNOTSUPP: the driver refuses, and no copy of the request is in flight. A request for which the
 * function returned 0 fails only if the device fails. */
int kvcache_gpu_copy_leased(struct kvcache_gpu *gpu,
                            const struct kvcache_gpu_leased_request *request);

/* Takes up to `max` completions of kvcache_gpu_copy_leased(), all of kind KVCACHE_GPU_DONE, in the
 * order of the requests with an after_stream, and of those without. Waits for the first one at most
 * timeout_ms (0: not at all; < 0: until there is one or nothing is in flight). Returns the number
 * of completions. */
int kvcache_gpu_reap_leased_sized(struct kvcache_gpu *gpu, struct kvcache_gpu_completion *ret,
                                  size_t completion_size, size_t max, int timeout_ms);
static inline int kvcache_gpu_reap_leased(struct kvcache_gpu *gpu,
                                          struct kvcache_gpu_completion *ret, size_t max,
                                          int timeout_ms)
{
        return kvcache_gpu_reap_leased_sized(gpu, ret, sizeof(*ret), max, timeout_ms);
}
/* Returns the reason of the latest failure of a function of this section, also if later calls
 * succeeded; empty if none has failed. Never NULL; valid until the next such call. */
const char *kvcache_gpu_leased_error(const struct kvcache_gpu *gpu);

/* Writes up to `max` ids of pools whose chunks can be copied, the latest first, and returns their
 * number. After a restart of the daemon, its new pool is included once a call on the handle has
 * reconnected. From the first kvcache_gpu_copy_leased() on, the previous pool stays mapped and
 * registered, for leases that were taken in it. At most four pools are kept; a further one replaces
 * the oldest. */
int kvcache_gpu_pools(struct kvcache_gpu *gpu, uint64_t *ret_ids, size_t max);
/* Releases a pool in which the caller has no lease. The next call that continues requests, such as
 * kvcache_gpu_reap(), unregisters it; with KVCACHE_GPU_EXPLICIT, the next kvcache_gpu_renew() does.
 * Returns -ESTALE if there is no such pool, or -EBUSY if the handle's session uses it. */
int kvcache_gpu_release_pool(struct kvcache_gpu *gpu, uint64_t pool_id);
/* Returns the address at which a pool of kvcache_gpu_pools() is mapped in this process, read-only,
 * and sets `*ret_bytes` to its length; returns NULL if there is no such pool. The memory stays
 * mapped until the pool is released or the GPU is detached. */
const void *kvcache_gpu_pool_memory(struct kvcache_gpu *gpu, uint64_t pool_id, uint64_t *ret_bytes);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
