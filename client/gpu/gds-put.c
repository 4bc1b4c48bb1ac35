/* SPDX-License-Identifier: Apache-2.0 */
/* The file to which cuFile writes puts, and from which the daemon reads them.
 *
 * Runs in the handle's thread. Owns the file, which has a name only until cuFile has registered it,
 * so that nothing of it remains if the program dies later; its registration with the daemon, which
 * the library renews in a new session; and its handle at cuFile. The file is created when the first
 * block is to use it, and created again after many consecutive failures, because the daemon never
 * again reads a file that it once could not read at once.
 *
 * Failures: if the file, its registration or its handle cannot be created, the state has the
 * reason, blocks pass through the staging memory, and the creation is tried again after
 * PUTS_TRY_AGAIN_S seconds. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "gpu/gds.h"

enum {
        PUTS_TRY_AGAIN_S = 10,
        PUTS_MOST_FAILURES = 16, /* consecutive failures after which puts by cuFile pause */
        PUTS_LEAST_BYTES = 8192, /* a block is padded to whole pages (GDS_PAGE) in the file: from
                                  * this size on, less than a third of the file's bytes is
                                  * padding */
};

int gds_puts_init(struct gds *g, const char *path)
{
        if (!path)
                return 0;
        g->puts.path = strdup(path);
        g->puts.counts.state = KVCACHE_GPU_GDS_NONE;
        return g->puts.path ? 0 : -ENOMEM;
}

static void puts_pause(struct gds_puts *p)
{
        p->failures = 0;
        p->not_before = gds_now() + PUTS_TRY_AGAIN_S * INT64_C(1000000000);
}

static void puts_close(struct gds *g, struct kvcache *kv)
{
        struct gds_puts *p = &g->puts;

        /* If the daemon does not answer, it may still read the file. That is harmless, because
         * the library no longer writes to the file. */
        if (p->base)
                (void)kvcache_buffer_unregister(kv, p->buffer);
        p->base = NULL;
        gds_file_close(g, &p->file);
}

/* Returns why the daemon refuses the file. */
static enum kvcache_gpu_gds_reason refusal_of(int error)
{
        switch (error) {
        case -EOPNOTSUPP:
        case -EACCES:
                return KVCACHE_GPU_GDS_DAEMON;
        case -EDQUOT:
        case -EBUSY:
                return KVCACHE_GPU_GDS_LIMIT;
        default:
                return KVCACHE_GPU_GDS_FILE;
        }
}

/* Creates the file and allocates `bytes` for it. `path` ends in XXXXXX, which is replaced by the
 * rest of a new name. Returns 0 or -errno. After a failure no name remains, but `*ret_fd` may be
 * open. */
static int puts_make_file(char *path, uint64_t bytes, int *ret_fd)
{
        int fd = mkostemp(path, O_DIRECT | O_CLOEXEC), r;

        if (fd < 0)
                return -errno;
        *ret_fd = fd;
        r = posix_fallocate(fd, 0, (off_t)bytes);
        if (r != 0)
                unlink(path);
        return -r;
}

/* Registers the file with cuFile, which opens the file by its name: cuFile refuses a file
 * without a name (error 5031), and a file that was made with O_TMPFILE (error 5019). The name is
 * removed immediately afterwards. */
static enum kvcache_gpu_gds_reason puts_register_file(struct gds *g)
{
        struct gds_puts *p = &g->puts;
        _cleanup_(freep) char *path = NULL;
        bool is_registered;
        int r;

        if (asprintf(&path, "%s/kvcache-put.XXXXXX", p->path) < 0) {
                path = NULL;
                p->counts.error = -ENOMEM;
                return KVCACHE_GPU_GDS_FILE;
        }
        r = puts_make_file(path, g->bytes, &p->file.fd);
        if (r < 0) {
                p->counts.error = r;
                return KVCACHE_GPU_GDS_FILE;
        }
        is_registered = gds_file_register(g, &p->file);
        unlink(path);
        if (!is_registered)
                p->counts.error = p->file.error;
        return is_registered ? KVCACHE_GPU_GDS_NONE : KVCACHE_GPU_GDS_HANDLE;
}

static enum kvcache_gpu_gds_reason puts_open(struct gds *g, struct kvcache *kv)
{
        struct gds_puts *p = &g->puts;
        struct kvcache_buffer_options o = { .size = sizeof(o), .flags = KVCACHE_BUFFER_FILE };
        enum kvcache_gpu_gds_reason reason;
        void *base = NULL;
        int r;

        if (!g->cufile.write)
                return KVCACHE_GPU_GDS_SYMBOL;
        reason = puts_register_file(g);
        if (reason != KVCACHE_GPU_GDS_NONE)
                return reason;
        o.fd = p->file.fd;
        o.bytes = g->bytes;
        r = kvcache_buffer_register(kv, &o, &p->buffer, &base);
        if (r < 0) {
                p->counts.error = r;
                return refusal_of(r);
        }
        p->base = base;
        return KVCACHE_GPU_GDS_NONE;
}

enum kvcache_gpu_gds_reason gds_puts_ready(struct gds *g, struct kvcache *kv, uint64_t bytes)
{
        struct gds_puts *p = &g->puts;

        if (!p->path)
                return KVCACHE_GPU_GDS_OFF;
        if (g->state != KVCACHE_GPU_GDS_NONE)
                return p->counts.state = g->state;
        if (bytes < PUTS_LEAST_BYTES)
                return KVCACHE_GPU_GDS_SMALL;
        if (bytes > g->part_bytes)
                return KVCACHE_GPU_GDS_SIZE;
        if (p->not_before != 0) {
                if (gds_now() < p->not_before || p->file.users > 0)
                        return p->base ? KVCACHE_GPU_GDS_PAUSED : p->counts.state;
                p->not_before = 0;
                puts_close(g, kv);
        }
        if (p->base)
                return p->counts.state = KVCACHE_GPU_GDS_NONE;
        p->counts.state = puts_open(g, kv);
        if (p->counts.state != KVCACHE_GPU_GDS_NONE) {
                puts_close(g, kv);
                puts_pause(p);
        }
        return p->counts.state;
}

void gds_puts_acquire(struct gds *g)
{
        g->puts.file.users++;
}

void gds_puts_release(struct gds *g)
{
        g->puts.file.users--;
}

void gds_puts_judge(struct gds *g, bool is_good)
{
        struct gds_puts *p = &g->puts;

        if (is_good)
                p->failures = 0;
        else if (++p->failures >= PUTS_MOST_FAILURES)
                puts_pause(p);
}

void gds_puts_count(struct gds *g, enum kvcache_gpu_gds_reason reason, int error, uint64_t blocks)
{
        if (reason == KVCACHE_GPU_GDS_OFF || blocks == 0)
                return;
        g->puts.counts.fallbacks[reason] += blocks;
        if (error != 0)
                g->puts.counts.error = error;
}

void gds_puts_fini(struct gds *g, struct kvcache *kv)
{
        if (!g->d)
                return;
        puts_close(g, kv);
        free(g->puts.path);
        g->puts.path = NULL;
}
