/* SPDX-License-Identifier: Apache-2.0 */
/* GPUDirect Storage: cuFile reads chunks from data files that the daemon lends into device memory,
 * and writes device memory to a file from which the daemon takes puts.
 *
 * The device memory belongs to the attachment, is registered with cuFile once, and is used in parts
 * like the staging memory. An engine's own memory is never registered, because the engine may free
 * memory that cuFile still knows, and a copy within the device costs little compared with the disk.
 *
 * A few threads call cuFileRead() and cuFileWrite(), which block. Unlike cuFile's batch and
 * stream interfaces, these calls work the same with and without nvidia-fs, and each failure
 * belongs to one call. */
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
        GDS_FILES = 64, /* maximum number of files that are registered at a time */
        GDS_PAGE = 4096,
        GDS_READ_BYTES = 4 * 1024 * 1024, /* adjacent chunks are read together up to this size */
        /* The maximum size of a read if cuFile copies through host memory, piece by piece: by
         * measurement, one longer read is slower than two concurrent ones. */
        GDS_COPIED_READ_BYTES = 1024 * 1024,
};

struct gds_file {
        uint64_t session; /* session of the loan; 0 if the entry is free */
        uint32_t number;
        unsigned users; /* reads in progress that use the file */
        uint64_t used; /* value of gds.uses at the latest use; the entry with the lowest is replaced
                          first */
        int fd;
        cf_handle handle;  /* NULL if cuFile refused to register the file */
        int error;         /* cuFile's error of the last refused registration */
        int64_t try_again; /* earliest time at which cuFile is asked again to register the file, ns
                            */
};

/* A group of reads; the batch continues when all of them are done. */
struct gds_group {
        unsigned left; /* number of reads or writes that are not done; protected by gds.lock */
};

struct gds_read {
        STAILQ_ENTRY(gds_read) link;
        struct gds_group *group;
        struct gds_file *file;
        uint64_t offset;        /* offset of the bytes in the file */
        uint64_t at;            /* position of the bytes in the device memory */
        uint64_t bytes, needed; /* bytes to transfer; the least number after which the transfer is
                                   not short */
        int error;              /* 0, an error of cuFile, -errno or GDS_SHORT */
        bool is_write;
};
STAILQ_HEAD(gds_reads, gds_read);
enum { GDS_SHORT = 1 };

/* The file to which puts are written, owned by gds-put.c. Its parts correspond to those of the
 * device memory. */
struct gds_puts {
        char *path;      /* path of the folder; NULL if puts do not use a file */
        uint8_t *base;   /* address that names the file in puts; NULL if there is no file now */
        uint32_t buffer; /* number of the file's registered buffer */
        struct gds_file file; /* file.users counts the batches that use the file */
        unsigned failures;    /* consecutive batches that failed */
        int64_t not_before;
        struct kvcache_gpu_gds_puts counts; /* `state` says why the file is not used now */
};

struct gds {
        struct cufile cufile;
        const struct driver *d;
        cu_context context;
        int event_fd;                      /* written when a group is done */
        enum kvcache_gpu_gds_reason state; /* why GDS is not used; KVCACHE_GPU_GDS_NONE if it is */
        cu_address memory;
        uint64_t bytes, part_bytes;
        bool is_registered;
        bool taken[GDS_PARTS];
        struct gds_file files[GDS_FILES];
        uint64_t uses;
        unsigned failures; /* consecutive reads that failed */
        int64_t not_before;
        struct kvcache_gpu_gds counts;
        struct gds_puts puts;

        pthread_mutex_t lock;
        pthread_cond_t work;
        struct gds_reads queue; /* `lock` guards the queue, `stop` and the groups' counters */
        bool stop;
        unsigned n_threads; /* used by the handle's thread only */
        pthread_t threads[GDS_THREADS];
};

void gds_init(struct gds *g, const struct driver *d, cu_context context, int event_fd);
/* Loads cuFile and prepares `bytes` of device memory, or less, in the current context. Returns the
 * resulting state, which `ret_why` (CUFILE_TEXT bytes) explains. With `must`, a cuFile without a
 * direct path on this host is accepted, too. */
enum kvcache_gpu_gds_reason gds_open(struct gds *g, uint64_t bytes, bool must, char *ret_why);
/* Stops the threads and frees all memory and files. No part may be taken, and no read may be in
 * progress. */
void gds_fini(struct gds *g);

/* Returns whether cuFile may read lent chunks now: GDS is set up, and reads do not pause after
 * failures. */
bool gds_is_usable(struct gds *g);
/* Returns a free part, or -1 if all are taken. */
int gds_part_acquire(struct gds *g);
void gds_part_release(struct gds *g, int part);

/* Returns the file of a loan and increments its `users`; on failure returns NULL and sets the
 * reason. Requests a descriptor from the daemon if the file is new. */
struct gds_file *gds_file_acquire(struct gds *g, struct kvcache *kv,
                                  const struct kvcache_loan *loan,
                                  enum kvcache_gpu_gds_reason *ret_reason);
void gds_file_release(struct gds_file *file);

/* Submits reads, which the threads own until the group is done. */
void gds_submit(struct gds *g, struct gds_group *group, struct gds_read *reads, unsigned n);
bool gds_group_is_done(struct gds *g, struct gds_group *group);

/* Counts blocks that were moved without cuFile, by reason. `error`: cuFile's number or -errno; 0:
 * none. */
void gds_count(struct gds *g, enum kvcache_gpu_gds_reason reason, int error, uint64_t blocks);
int64_t gds_now(void); /* ns, CLOCK_MONOTONIC */
/* Registers the file's descriptor with cuFile. Returns false if it is refused; it is then not tried
 * again for a while. */
bool gds_file_register(struct gds *g, struct gds_file *file);
void gds_file_close(struct gds *g, struct gds_file *file);
/* Records the result of a read or write. After GDS_MOST_FAILURES consecutive failures of reads,
 * no read is tried for a while. */
void gds_judge(struct gds *g, const struct gds_read *read);

/* --- gds-put.c: the file for puts --- */

/* Sets the folder of the file, or NULL for none, before gds_open(). Returns 0 or -ENOMEM. */
int gds_puts_init(struct gds *g, const char *path);
/* Returns KVCACHE_GPU_GDS_NONE if a block of `bytes` may be put through the file now, otherwise
 * the reason why not. Creates and registers the file if necessary. */
enum kvcache_gpu_gds_reason gds_puts_ready(struct gds *g, struct kvcache *kv, uint64_t bytes);
/* Begin and end the use of the file by a batch. */
void gds_puts_acquire(struct gds *g);
void gds_puts_release(struct gds *g);
/* Records the result of a batch that was gathered. After several consecutive failures, no put
 * passes through the file for a while. `is_good`: no write to the file failed, and no block was one
 * that the daemon could not read from the file. */
void gds_puts_judge(struct gds *g, bool is_good);
void gds_puts_count(struct gds *g, enum kvcache_gpu_gds_reason reason, int error, uint64_t blocks);
/* Closes the file, which no batch may use. No effect before gds_init(). */
void gds_puts_fini(struct gds *g, struct kvcache *kv);
