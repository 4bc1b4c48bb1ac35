/* SPDX-License-Identifier: Apache-2.0 */
/* An attached GPU. attach.c creates it, and blocks.c uses it to move blocks. */
#pragma once

#include <sys/queue.h>
#include <sys/types.h>

#include "gpu/driver.h"
#include "gpu/engine.h"
#include "gpu/gds.h"
#include "gpu/slices.h"
#include "gpu/staging.h"
#include "lib/abi.h"
#include "lib/layout.h"
#include "lib/parts.h"

enum {
        GPU_BATCHES = 16,
        GPU_BATCH_BLOCKS = 256,
        GPU_BATCH_BYTES = 32 * 1024 * 1024,
        GPU_BOUNCE_BYTES = ENGINE_BOUNCE_PARTS * GPU_BATCH_BYTES,
        GPU_COMPLETION_MIN = ABI_BYTES_TO(struct kvcache_gpu_completion, count),
        GPU_TEXT = 512,
};

struct leased;

/* One call of kvcache_gpu_put_blocks() or kvcache_gpu_get_blocks(). */
struct operation {
        TAILQ_ENTRY(operation) link;
        bool is_put, has_parent, is_issued, issued_is_known;
        uint32_t namespace_handle, flags;
        enum kvcache_ack ack;
        struct layout_part layers; /* the layers to move; `tokens` is unused */
        int timeout_ms;
        struct layout layout;
        struct kvcache_gpu_block *blocks; /* owned; a `tokens` of 0 in the request was replaced by a
                                             whole block's tokens */
        uint32_t chunk_blocks;            /* number of blocks in a chunk */
        bool has_holes;                   /* blocks of some chunks are left out */
        uint64_t *indices; /* count × chunk_blocks indices; NULL: blocks[].block has the index */
        size_t count;
        size_t next;     /* index of the first block that is in no batch yet */
        size_t unissued; /* number of batches that have yet to put copies into a stream */
        size_t judged;   /* number of blocks that have a final status */
        struct kvcache_key parent;
        int *statuses;
        cu_event before;  /* event after the work that the request must follow, recorded when the
                             request was made; NULL: none */
        cu_event begun;   /* timed, recorded before the first batch's copies; NULL: none yet */
        double copied_ms; /* end of the last copy counted in copy_ms, ms after `begun` */
        double copy_ms;   /* time during which copies were in progress, ms */
        cu_stream after_stream;
        cu_event after_event;
        uint64_t user_data;
        int error;
};
TAILQ_HEAD(operation_list, operation);

enum batch_state {
        BATCH_FREE,
        BATCH_ASKING,   /* a request to the daemon is in flight */
        BATCH_LENT,     /* waits for a part of the device memory (borrow.c) or of the staging memory
                           (write.c) */
        BATCH_READING,  /* cuFile reads into device memory, or writes from it (write.c) */
        BATCH_PACED,    /* waits to request blocks again for which the daemon gave no lease */
        BATCH_COPYING,  /* the copies are in a stream */
        BATCH_SETTLING, /* every block has its status, but the daemon may still use memory that a
                           request named */
};

/* The latest request of a batch that borrows. */
enum borrow_question {
        BORROW_BLOCKS,
        BORROW_GIVE_BACK, /* return of the loans: the answers tell whether the bytes read from them
                             are good */
        BORROW_GET,       /* get of the blocks that were not lent or not read */
        BORROW_DONE,
};

/* The steps of a batch that cuFile writes, in order. */
enum write_step {
        WRITE_GATHER, /* copies blocks to the device memory */
        WRITE_FILE,   /* cuFile writes the blocks from the device memory to the file */
        WRITE_PUT,    /* the daemon reads the blocks from the file */
        /* Blocks that failed pass through the staging memory, in rounds: */
        WRITE_WAIT,   /* waits for a part of the staging memory */
        WRITE_BACK,   /* copies blocks from the device memory to the staging memory */
        WRITE_STAGED, /* the daemon reads the blocks from the staging memory */
};

/* The state of a block in a batch that cuFile reads (borrow.c) or writes (write.c). */
struct borrowed {
        struct kvcache_loan loan; /* generation 0: not lent */
        uint64_t at;              /* position of the block's range in cuFile's device memory */
        uint32_t read;            /* index of its read in the batch; READ_NONE: not read */
        bool is_good; /* the bytes that cuFile read are those of the chunk, as the daemon has
                         confirmed */
        enum kvcache_gpu_gds_reason reason; /* why cuFile did not read the block, or the block did
                                               not pass through the file; NONE: no reason yet */
};
enum { READ_NONE = UINT32_MAX };

/* Counters of the copies that a batch put into a stream: those to or from host memory (MOVED_HOST),
 * and those between the engine's memory and cuFile's device memory (MOVED_DEVICE). */
enum { MOVED_HOST, MOVED_DEVICE, MOVED_SIDES };
struct moved {
        uint64_t blocks, regions, pieces, bytes, device_bytes;
};

/* Consecutive blocks of an operation that are moved together. */
struct batch {
        TAILQ_ENTRY(batch) link; /* kvcache_gpu.active */
        enum batch_state state;
        struct operation *op;
        unsigned slot; /* number of the batch, and of its list in the engine */
        size_t first;
        uint32_t n;
        int part;        /* number of its part of the staging memory; -1: none */
        int device_part; /* number of its part of cuFile's device memory; -1: none */
        bool borrows;    /* a get that lets cuFile read chunks from disk; see borrow.c */
        bool writes; /* a put that cuFile writes to a file; see write.c, which uses the next three
                        members */
        bool is_written; /* no write to the file and no read from it has failed yet */
        enum write_step step;
        uint32_t n_round; /* number of the first blocks of `asked`, which this round puts through
                             the staging memory */
        enum borrow_question question;
        uint32_t n_asked, n_reads;
        uint32_t asked[GPU_BATCH_BLOCKS]; /* indices, in the batch, of the blocks that the latest
                                             request is about */
        struct borrowed borrowed[GPU_BATCH_BLOCKS];
        struct gds_read reads[GPU_BATCH_BLOCKS];
        struct gds_group group;
        bool is_paced, asked_alone; /* see pace.c. is_paced: the batch must request blocks again;
                                       asked_alone: its latest request was sent while this
                                       attachment had no other lease */
        uint32_t n_again;           /* number of blocks of `asked` that were requested again */
        bool is_judged[GPU_BATCH_BLOCKS];
        bool is_failed;   /* a driver call was refused */
        bool is_settling; /* the daemon may still use memory that a request of the batch named */
        struct request *request;
        cu_stream stream;     /* the stream of its copies */
        uint64_t issue;       /* order in which batches were put into streams */
        cu_event done, begun; /* events after and before its copies; `begun` is NULL if their time
                                 cannot be measured */
        bool is_timed;        /* `begun` is recorded */
        struct moved moved[MOVED_SIDES];
        uint64_t copies;    /* driver operations that made the copies */
        uint32_t copies_by; /* enum kvcache_transfer_technology */
        int64_t began_ns;   /* start of the copies, or of the reads or writes */
        struct kvcache_entry entries[GPU_BATCH_BLOCKS];
        struct kvcache_result results[GPU_BATCH_BLOCKS];
        /* The entries of the blocks in `asked`. This and the next two arrays are indexed like
         * `asked`. */
        struct kvcache_entry again[GPU_BATCH_BLOCKS];
        struct kvcache_loan loans[GPU_BATCH_BLOCKS];
        struct kvcache_result answers[GPU_BATCH_BLOCKS];
};
TAILQ_HEAD(batch_list, batch);

struct kvcache_gpu {
        struct kvcache *kv;
        pid_t pid;
        struct driver driver;
        cu_device device;
        cu_context context;
        /* is_primary: `context` is the device's primary one, which the library must release;
         * is_current: the library has pushed `context` for the calling thread, and must pop it. */
        bool is_primary, is_current;
        int capture_mode; /* the calling thread's capture mode before gpu_enter() */
        int multiprocessors;
        uint32_t flags;
        cu_stream put_stream;
        cu_stream back_stream;      /* for copies of puts from the device memory to staging */
        cu_stream get_streams[2];   /* used by batches alternately, so that one's list and launch
                                       overlap with the other's copies */
        cu_stream order_streams[2]; /* for gets and for puts: work that a request must follow */
        cu_event after;
        struct engine engine;
        bool has_engine;
        struct gds gds;
        enum kvcache_gpu_gds_option gds_option;
        uint64_t gds_bytes; /* requested bytes of device memory for GPUDirect Storage */
        uint64_t blocks_paced;

        struct parts_pool pool;
        struct slices pool_slices; /* the pool's registration; all zero: not registered */
        struct leased *leased;     /* leased.h */
        struct staging_memory staging;
        uint64_t staging_bytes; /* requested bytes of staging memory */

        struct operation_list operations;
        struct batch_list active, idle;
        struct batch *batches;
        struct copy *copies;                            /* scratch: copies of one batch */
        struct kvcache_piece pieces[LAYOUT_MAX_PIECES]; /* scratch: pieces of one block */

        int event_fd; /* written by cuFile's threads after a read or write */
        int timer_fd; /* readable when copies must be polled */
        int epoll_fd;
        bool is_watched; /* the program has the epoll descriptor */
        uint64_t next_issue;
        char error[GPU_TEXT];
};

int gpu_fail(struct kvcache_gpu *gpu, int error, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
/* Sets the error text to `what` and the driver's error, and returns -errno for the error. */
int gpu_fail_driver(struct kvcache_gpu *gpu, const char *what, cu_result c);
/* Begin and end the public calls of the handle's thread. gpu_enter() returns -ECHILD after fork()
 * and -EBADF if the handle is closed; otherwise the context is current and the thread's capture
 * mode is relaxed (driver.h). kvcache_gpu_detach() only calls gpu_make_current() instead. */
int gpu_enter(struct kvcache_gpu *gpu);
void gpu_make_current(struct kvcache_gpu *gpu);
void gpu_leave(struct kvcache_gpu *gpu);
/* Takes a hold on the current session's pool and registers the pool. `pauses`: leave other threads
 * time to use the driver (slices.h). No batch may be active. Returns 0, also if the driver refuses
 * to register the pool; -errno if there is no session. */
int gpu_pool_open(struct kvcache_gpu *gpu, bool pauses);
void gpu_pool_close(struct kvcache_gpu *gpu, bool pauses);

/* Prepares for GPUDirect Storage, unless it is disabled, cuFile was tried before, the pool is not
 * registered with the driver or the daemon does not lend. Returns 0, or -EOPNOTSUPP if it is
 * required and not available. */
int gpu_gds_open(struct kvcache_gpu *gpu);

/* Registers the memory of the current session in place of that of an earlier session, which
 * takes seconds. Returns 0; -EAGAIN while batches are active; another -errno if there is no
 * session or no memory. */
int blocks_renew(struct kvcache_gpu *gpu, bool pauses);
/* Continues all operations. Returns true if nothing is in progress. */
bool blocks_progress(struct kvcache_gpu *gpu);
/* Waits until the socket is readable, cuFile has ended a read or write, it is time to poll for
 * copies, or `deadline` (ns) passes. Then sends and takes messages. Returns false, without waiting,
 * if `deadline` has passed. */
bool blocks_wait(struct kvcache_gpu *gpu, int64_t deadline);
/* Sets the timer that makes the program's epoll descriptor readable when copies must be polled. */
void blocks_set_timer(struct kvcache_gpu *gpu);
int64_t blocks_deadline(int timeout_ms);
void operation_free(struct kvcache_gpu *gpu, struct operation *op);
