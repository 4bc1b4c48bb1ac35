/* SPDX-License-Identifier: Apache-2.0 */
/* An attached GPU: what attach.c makes and blocks.c moves blocks with. */
#pragma once

#include <sys/queue.h>
#include <sys/types.h>

#include "gpu/driver.h"
#include "gpu/engine.h"
#include "gpu/gds.h"
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

/* One request of the program's. */
struct operation {
        TAILQ_ENTRY(operation) link;
        bool is_put, has_parent, is_issued, issued_is_known;
        uint32_t namespace_handle, flags;
        enum kvcache_ack ack;
        struct layout_part layers; /* but for its tokens */
        int timeout_ms;
        struct layout layout;
        struct kvcache_gpu_block *blocks; /* tokens of each are set */
        uint32_t chunk_blocks;            /* blocks of a chunk */
        bool has_holes;                   /* blocks of some chunks are left out */
        uint64_t *indices;                /* count × chunk_blocks; NULL: blocks[].block */
        size_t count;
        size_t next;     /* the first that is in no batch yet */
        size_t unissued; /* batches that are not in a stream yet */
        size_t judged;   /* blocks that have their status */
        struct kvcache_key parent;
        int *statuses;
        cu_event before;  /* the request's own, recorded when it was made; NULL: none */
        cu_event begun;   /* timed, recorded before the first batch's copies; NULL: none yet */
        double copied_ms; /* behind `begun`: the end of the copies that are counted in copy_ms */
        double copy_ms;   /* in which copies were under way */
        cu_stream after_stream;
        cu_event after_event;
        uint64_t user_data;
        int error;
};
TAILQ_HEAD(operation_list, operation);

enum batch_state {
        BATCH_FREE,
        BATCH_ASKING,   /* a request to the daemon is under way */
        BATCH_LENT,     /* waits for device memory to read into */
        BATCH_READING,  /* cuFile is */
        BATCH_PACED,    /* waits to ask for blocks again for which there was no lease */
        BATCH_COPYING,  /* its copies are in a stream */
        BATCH_SETTLING, /* of no operation any more: the daemon may still use its staging */
};

/* What a batch that borrows has asked for last. */
enum borrow_question {
        BORROW_BLOCKS,
        BORROW_GIVE_BACK, /* is what was read of the loans good? */
        BORROW_GET,       /* the blocks that did not come so */
        BORROW_DONE,
};

/* What a batch that is written by cuFile does, one after another. */
enum write_step {
        WRITE_GATHER, /* blocks to the device memory */
        WRITE_FILE,   /* from there to the file */
        WRITE_PUT,    /* the daemon takes them from the file */
        /* What did not go so goes by way of the staging memory, in rounds: */
        WRITE_WAIT,   /* for a part of it */
        WRITE_BACK,   /* from the device memory to there */
        WRITE_STAGED, /* the daemon takes them from there */
};

/* A block that is lent, or written. */
struct borrowed {
        struct kvcache_loan loan;           /* generation 0: it is not */
        uint64_t at;                        /* of its range in the device memory */
        uint32_t read;                      /* of the batch's reads; READ_NONE: it is not read */
        bool is_good;                       /* it is there, and the daemon has said so */
        enum kvcache_gpu_gds_reason reason; /* why it is not read */
};
enum { READ_NONE = UINT32_MAX };

/* What a batch has put into a stream, of each side that it may have besides the engine's memory. */
enum { MOVED_HOST, MOVED_DEVICE, MOVED_SIDES };
struct moved {
        uint64_t blocks, regions, pieces, bytes, device_bytes;
};

/* Consecutive blocks of an operation, under way together. */
struct batch {
        TAILQ_ENTRY(batch) link; /* kvcache_gpu.active */
        enum batch_state state;
        struct operation *op;
        unsigned slot; /* its number */
        size_t first;
        uint32_t n;
        int part;        /* of the staging memory; -1: none */
        int device_part; /* of what cuFile reads into; -1: none */
        bool borrows;    /* borrow.c */
        bool writes;     /* write.c, with these: */
        bool is_written; /* all went well until now */
        enum write_step step;
        uint32_t n_round; /* of `asked`: this round's */
        enum borrow_question question;
        uint32_t n_asked, n_reads;
        uint32_t asked[GPU_BATCH_BLOCKS]; /* what the question is about */
        struct borrowed borrowed[GPU_BATCH_BLOCKS];
        struct gds_read reads[GPU_BATCH_BLOCKS];
        struct gds_group group;
        bool is_paced, asked_alone; /* pace.c: it has asked again; with nothing of ours leased */
        uint32_t n_again;           /* of `asked`, that were asked for again */
        bool is_judged[GPU_BATCH_BLOCKS];
        bool is_failed;   /* a driver call was refused */
        bool is_settling; /* the daemon may still use its staging */
        struct request *request;
        cu_stream stream;     /* that its copies are in */
        uint64_t issue;       /* order in which batches were put into streams */
        cu_event done, begun; /* of its copies; NULL: the driver cannot say how long they took */
        bool is_timed;        /* `begun` is recorded */
        struct moved moved[MOVED_SIDES];
        uint64_t copies;    /* that these were: operations of the driver's */
        uint32_t copies_by; /* enum kvcache_transfer_technology */
        int64_t began_ns;   /* of these, or of its reads or writes */
        struct kvcache_entry entries[GPU_BATCH_BLOCKS];
        struct kvcache_result results[GPU_BATCH_BLOCKS];
        struct kvcache_entry again[GPU_BATCH_BLOCKS]; /* these three as `asked` */
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
        bool is_primary, is_current; /* the context is ours to release; pushed */
        int capture_mode;            /* the calling thread's mode outside of the library */
        int multiprocessors;
        uint32_t flags;
        cu_stream put_stream;
        cu_stream back_stream;      /* what is put, from the device memory to staging */
        cu_stream get_streams[2];   /* of batches in turn: one's list and launch overlap with the
                                       other's copies */
        cu_stream order_streams[2]; /* in which what a request follows is brought together */
        cu_event after;
        struct engine engine;
        bool has_engine;
        struct gds gds;
        enum kvcache_gpu_gds_option gds_option;
        uint64_t gds_bytes; /* asked for */
        uint64_t blocks_paced;

        struct parts_pool pool;
        cu_address pool_device; /* 0: not registered */
        struct leased *leased;  /* leased.h */
        struct staging_memory staging;
        uint64_t staging_bytes; /* asked for */

        struct operation_list operations;
        struct batch_list active, idle;
        struct batch *batches;
        struct copy *copies;                            /* scratch: a batch's */
        struct kvcache_piece pieces[LAYOUT_MAX_PIECES]; /* a block's */

        int event_fd; /* written by threads for cuFile when they have read or written */
        int timer_fd; /* readable when copies are to be asked after */
        int epoll_fd;
        bool is_watched; /* the program has the epoll descriptor */
        uint64_t next_issue;
        char error[GPU_TEXT];
};

int gpu_fail(struct kvcache_gpu *gpu, int error, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
/* The same for a call of the driver's. */
int gpu_fail_driver(struct kvcache_gpu *gpu, const char *what, cu_result c);
/* Every public call is between these: -ECHILD after fork(); -EBADF: the handle is closed; else the
 * context is current and the thread's capture mode is relaxed (driver.h). Detaching needs
 * gpu_make_current() only. */
int gpu_enter(struct kvcache_gpu *gpu);
void gpu_make_current(struct kvcache_gpu *gpu);
void gpu_leave(struct kvcache_gpu *gpu);
/* Holds the pool of the session that there is and registers it. With no batch active. */
int gpu_pool_open(struct kvcache_gpu *gpu);
void gpu_pool_close(struct kvcache_gpu *gpu);

/* Prepares for GPUDirect Storage if the daemon that there is lends and it has not been tried. 0;
 * -EOPNOTSUPP: it is required and cannot be had. */
int gpu_gds_open(struct kvcache_gpu *gpu);

/* Goes on with all operations. True: nothing is under way. */
bool blocks_progress(struct kvcache_gpu *gpu);
/* Waits for the socket, the driver or `deadline`, then goes on. */
bool blocks_wait(struct kvcache_gpu *gpu, int64_t deadline);
/* Makes the program's epoll descriptor readable when blocks_wait() would end by itself. */
void blocks_set_timer(struct kvcache_gpu *gpu);
int64_t blocks_deadline(int timeout_ms);
void operation_free(struct kvcache_gpu *gpu, struct operation *op);
