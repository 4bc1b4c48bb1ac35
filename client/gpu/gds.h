/* SPDX-License-Identifier: Apache-2.0 */
/* GPUDirect Storage: reads of data files that the daemon lends, into device memory, and writes of
 * it to a file that the daemon takes puts from.
 *
 * The memory belongs to the attachment, is registered with cuFile once, and is used in parts like
 * the staging memory. An engine's own memory is never registered: cuFile must not know memory that
 * the engine may free, and a copy within the device costs little beside the disk.
 *
 * Reads are cuFile's plain calls, which wait, made by a few threads: of its three interfaces the
 * one that works the same with nvidia-fs and without, and whose failures are of one call each. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "gpu/cufile.h"
#include "gpu/driver.h"
#include "kvcache-gpu.h"

enum {
        GDS_PARTS = 8,
        GDS_THREADS = 8,
        GDS_FILES = 64, /* registered at a time */
        GDS_PAGE = 4096,
        GDS_READ_BYTES = 4 * 1024 * 1024, /* adjacent chunks are read as one up to this */
        /* The same where cuFile copies through host memory, a piece after the other: measured, a
         * longer one is slower than two side by side. */
        GDS_COPIED_READ_BYTES = 1024 * 1024,
};

struct gds_file {
        uint64_t session; /* of the loan; 0: the place is free */
        uint32_t number;
        unsigned users; /* reads that name it */
        uint64_t used;  /* when: the least goes first */
        int fd;
        cf_handle handle;  /* NULL: refused */
        int error;         /* cuFile's, or -errno */
        int64_t try_again; /* not before, ns */
};

/* The reads that are waited for together. */
struct gds_group {
        unsigned left; /* under gds.lock */
};

struct gds_read {
        STAILQ_ENTRY(gds_read) link;
        struct gds_group *group;
        struct gds_file *file;
        uint64_t offset; /* in the file */
        uint64_t at;     /* in the device memory */
        uint64_t bytes, needed;
        int error; /* 0; cuFile's; -errno; GDS_SHORT */
        bool is_write;
};
STAILQ_HEAD(gds_reads, gds_read);
enum { GDS_SHORT = 1 };

/* The file that puts are written to: gds-put.c's. Its parts are those of the device memory. */
struct gds_puts {
        char *path;           /* of the folder; NULL: puts do not go so */
        uint8_t *base;        /* names the file in puts; NULL: there is none now */
        uint32_t buffer;      /* its number */
        struct gds_file file; /* `users`: batches that use it */
        unsigned failures;    /* in a row */
        int64_t not_before;
        struct kvcache_gpu_gds_puts counts; /* `state`: why it is not used now */
};

struct gds {
        struct cufile cufile;
        const struct driver *d;
        cu_context context;
        int event_fd;                      /* written when a group is done */
        enum kvcache_gpu_gds_reason state; /* why it is not used; NONE: it is */
        cu_address memory;
        uint64_t bytes, part_bytes;
        bool is_registered;
        bool taken[GDS_PARTS];
        struct gds_file files[GDS_FILES];
        uint64_t uses;
        unsigned failures; /* in a row */
        int64_t not_before;
        struct kvcache_gpu_gds counts;
        struct gds_puts puts;

        pthread_mutex_t lock;
        pthread_cond_t work;
        struct gds_reads queue; /* from here on under `lock` */
        bool stop;
        unsigned n_threads; /* of the handle's thread alone */
        pthread_t threads[GDS_THREADS];
};

void gds_init(struct gds *g, const struct driver *d, cu_context context, int event_fd);
/* Loads cuFile and prepares `bytes` of device memory, or less. In the current context. The state
 * afterwards, which `ret_why` (CUFILE_TEXT bytes) explains. `must`: a cuFile that has no direct way
 * here will do, too. */
enum kvcache_gpu_gds_reason gds_open(struct gds *g, uint64_t bytes, bool must, char *ret_why);
/* No part is taken and no read is under way. */
void gds_fini(struct gds *g);

/* May blocks be borrowed now? */
bool gds_is_usable(struct gds *g);
/* -1: all are taken. */
int gds_part_acquire(struct gds *g);
void gds_part_release(struct gds *g, int part);

/* The file of a loan, one user more. NULL: `*ret_reason` says why not. Asks the daemon for a
 * descriptor if it is new. */
struct gds_file *gds_file_acquire(struct gds *g, struct kvcache *kv,
                                  const struct kvcache_loan *loan,
                                  enum kvcache_gpu_gds_reason *ret_reason);
void gds_file_release(struct gds_file *file);

/* They belong to the threads until the group is done. */
void gds_submit(struct gds *g, struct gds_group *group, struct gds_read *reads, unsigned n);
bool gds_group_is_done(struct gds *g, struct gds_group *group);

/* Blocks went another way. */
void gds_count(struct gds *g, enum kvcache_gpu_gds_reason reason, int error, uint64_t blocks);
int64_t gds_now(void); /* ns, CLOCK_MONOTONIC */
/* Registers the file's descriptor with cuFile. False: it is refused, for a while. */
bool gds_file_register(struct gds *g, struct gds_file *file);
void gds_file_close(struct gds *g, struct gds_file *file);
/* A read or a write has ended. Reads: too many failures in a row, and none is tried for a while. */
void gds_judge(struct gds *g, const struct gds_read *read);

/* --- gds-put.c: blocks that are put are written to a file --- */

/* 0, -ENOMEM. NULL: none is to be. Before gds_open(). */
int gds_puts_init(struct gds *g, const char *path);
/* May a block of so many bytes go so now? Makes the file and registers it, if need be; else says
 * why not. */
enum kvcache_gpu_gds_reason gds_puts_ready(struct gds *g, struct kvcache *kv, uint64_t bytes);
/* A batch uses the file until gds_puts_release(), which says whether all went well. */
void gds_puts_acquire(struct gds *g);
void gds_puts_release(struct gds *g, bool is_good);
void gds_puts_count(struct gds *g, enum kvcache_gpu_gds_reason reason, int error, uint64_t blocks);
/* No batch uses it. Harmless before gds_init(). */
void gds_puts_fini(struct gds *g, struct kvcache *kv);
