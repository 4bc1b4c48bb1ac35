/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory, files and threads of GPUDirect Storage.
 *
 * Everything runs in the handle's thread except gds_thread(), which takes reads from the queue,
 * makes cuFile's call in the attachment's context, and marks the group. The thread owns the reads
 * until then; the lock guards the queue and the groups' counters.
 *
 * Failures: if cuFile, the device memory or the threads cannot be set up, the state has the
 * reason, and blocks take another path. Registering a file that cuFile refused is tried again
 * after a while. If a descriptor or handle is not available, only the blocks of that request are
 * affected. */
#include "gpu/gds.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"

enum {
        GDS_LEAST_BYTES = 1024 * 1024,
        GDS_TRY_AGAIN_S = 10,
        GDS_MOST_FAILURES = 16, /* consecutive failures after which reads pause */
};

int64_t gds_now(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void gds_init(struct gds *g, const struct driver *d, cu_context context, int event_fd)
{
        *g = (struct gds){
                .d = d,
                .context = context,
                .event_fd = event_fd,
                .state = KVCACHE_GPU_GDS_OFF,
                .queue = STAILQ_HEAD_INITIALIZER(g->queue),
        };
        pthread_mutex_init(&g->lock, NULL);
        pthread_cond_init(&g->work, NULL);
        for (unsigned i = 0; i < GDS_FILES; i++)
                g->files[i].fd = -1;
        g->puts.file.fd = -1;
}

void gds_count(struct gds *g, enum kvcache_gpu_gds_reason reason, int error, uint64_t blocks)
{
        if (blocks == 0)
                return;
        g->counts.fallbacks[reason] += blocks;
        if (error != 0)
                g->counts.error = error;
}

const char *kvcache_gpu_gds_reason_name(int reason)
{
        static const char *const texts[] = {
                [KVCACHE_GPU_GDS_NONE] = "in use",
                [KVCACHE_GPU_GDS_OFF] = "switched off",
                [KVCACHE_GPU_GDS_DAEMON] = "the daemon does not lend",
                [KVCACHE_GPU_GDS_LIBRARY] = "no libcufile.so.0",
                [KVCACHE_GPU_GDS_SYMBOL] = "libcufile lacks a function",
                [KVCACHE_GPU_GDS_DRIVER] = "cuFile's driver does not open",
                [KVCACHE_GPU_GDS_COMPATIBLE] = "cuFile has no direct way here",
                [KVCACHE_GPU_GDS_BUFFER] = "no registered device memory",
                [KVCACHE_GPU_GDS_UNVERIFIED] = "not verified since the daemon started",
                [KVCACHE_GPU_GDS_VOLUME] = "the volume cannot lend",
                [KVCACHE_GPU_GDS_LIMIT] = "a limit of loans is reached",
                [KVCACHE_GPU_GDS_FILE] = "no usable descriptor of the data file",
                [KVCACHE_GPU_GDS_FILES] = "too many files in use",
                [KVCACHE_GPU_GDS_HANDLE] = "cuFile does not register the file",
                [KVCACHE_GPU_GDS_SIZE] = "longer than an eighth of the device memory",
                [KVCACHE_GPU_GDS_FAILED] = "the read or the write failed",
                [KVCACHE_GPU_GDS_TOO_SHORT] = "the read or the write ended early",
                [KVCACHE_GPU_GDS_RECALLED] = "the chunk was dropped during the read",
                [KVCACHE_GPU_GDS_PAUSED] = "paused after failures",
                [KVCACHE_GPU_GDS_POOL] = "the pool is not registered with the driver",
                [KVCACHE_GPU_GDS_PUT] = "the daemon could not take it from the file",
                [KVCACHE_GPU_GDS_SMALL] = "shorter than 8 KiB",
                [KVCACHE_GPU_GDS_HOLES] = "blocks of the chunk are left out",
        };

        return (size_t)reason < ARRAY_SIZE(texts) && texts[reason] ? texts[reason] : "unknown";
}

/* --- memory --- */

static void *gds_base(const struct gds *g)
{
        return (void *)(uintptr_t)g->memory;
}

/* Allocates the device memory, half as much after each failure, and registers it with cuFile.
 * Without a direct path cuFile does not need the registration, so a refusal is ignored. Returns
 * false with the reason in `ret_why`. */
static bool gds_open_memory(struct gds *g, uint64_t bytes, char *ret_why)
{
        for (; bytes >= GDS_LEAST_BYTES; bytes /= 2) {
                cu_result c = g->d->mem_alloc(&g->memory, bytes);
                struct cf_error e = { 0 };

                if (c != CU_OK) {
                        g->memory = 0;
                        snprintf(ret_why, CUFILE_TEXT,
                                 "the device memory for cuFile cannot be allocated: %s",
                                 driver_error_name(g->d, c));
                        continue;
                }
                e = g->cufile.buffer_register(gds_base(g), bytes, 0);
                g->is_registered = e.error == CF_OK;
                if (g->is_registered || g->cufile.is_compatible) {
                        g->bytes = bytes;
                        g->part_bytes = round_down(bytes / GDS_PARTS, GDS_PAGE);
                        return true;
                }
                g->counts.error = e.error;
                snprintf(ret_why, CUFILE_TEXT,
                         "cuFile does not register %llu MiB of device memory: %s (%d)",
                         (unsigned long long)bytes >> 20, cufile_error_name(e.error), e.error);
                (void)g->d->mem_free(g->memory);
                g->memory = 0;
        }
        return false;
}

int gds_part_acquire(struct gds *g)
{
        for (int i = 0; i < GDS_PARTS; i++)
                if (!g->taken[i]) {
                        g->taken[i] = true;
                        return i;
                }
        return -1;
}

void gds_part_release(struct gds *g, int part)
{
        g->taken[part] = false;
}

/* --- threads --- */

static void gds_carry_out(struct gds *g, struct gds_read *read)
{
        ssize_t n;

        errno = 0;
        if (read->is_write)
                n = g->cufile.write(read->file->handle, gds_base(g), read->bytes,
                                    (off_t)read->offset, (off_t)read->at);
        else
                n = g->cufile.read(read->file->handle, gds_base(g), read->bytes,
                                   (off_t)read->offset, (off_t)read->at);
        if (n < 0)
                read->error = n == -1 ? -(errno ? errno : EIO) : (int)-n;
        else
                read->error = (uint64_t)n < read->needed ? GDS_SHORT : 0;
}

static void *gds_thread(void *user)
{
        struct gds *g = user;
        uint64_t one = 1;

        (void)driver_relax(g->d);
        (void)g->d->ctx_push(g->context);
        pthread_mutex_lock(&g->lock);
        for (;;) {
                struct gds_read *read = STAILQ_FIRST(&g->queue);

                if (!read && g->stop)
                        break;
                if (!read) {
                        pthread_cond_wait(&g->work, &g->lock);
                        continue;
                }
                STAILQ_REMOVE_HEAD(&g->queue, link);
                pthread_mutex_unlock(&g->lock);
                gds_carry_out(g, read);
                pthread_mutex_lock(&g->lock);
                if (--read->group->left == 0)
                        (void)!write(g->event_fd, &one, sizeof(one));
        }
        pthread_mutex_unlock(&g->lock);
        return NULL;
}

/* Starts the threads, with all signals blocked. Returns whether at least one runs. */
static bool gds_start_threads(struct gds *g)
{
        sigset_t all, before;

        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        while (g->n_threads < GDS_THREADS &&
               pthread_create(&g->threads[g->n_threads], NULL, gds_thread, g) == 0)
                g->n_threads++;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        return g->n_threads > 0;
}

static void gds_stop_threads(struct gds *g)
{
        pthread_mutex_lock(&g->lock);
        g->stop = true;
        pthread_cond_broadcast(&g->work);
        pthread_mutex_unlock(&g->lock);
        while (g->n_threads > 0)
                pthread_join(g->threads[--g->n_threads], NULL);
        g->stop = false;
}

void gds_submit(struct gds *g, struct gds_group *group, struct gds_read *reads, unsigned n)
{
        pthread_mutex_lock(&g->lock);
        group->left = n;
        for (unsigned i = 0; i < n; i++) {
                reads[i].group = group;
                STAILQ_INSERT_TAIL(&g->queue, &reads[i], link);
        }
        pthread_cond_broadcast(&g->work);
        pthread_mutex_unlock(&g->lock);
}

bool gds_group_is_done(struct gds *g, struct gds_group *group)
{
        bool done;

        pthread_mutex_lock(&g->lock);
        done = group->left == 0;
        pthread_mutex_unlock(&g->lock);
        return done;
}

void gds_judge(struct gds *g, const struct gds_read *read)
{
        if (read->is_write) {
                g->puts.counts.writes += read->error == 0;
                g->puts.counts.write_bytes += read->error == 0 ? read->bytes : 0;
                return;
        }
        if (read->error == 0) {
                g->failures = 0;
                g->counts.reads++;
                g->counts.read_bytes += read->bytes;
                return;
        }
        if (++g->failures >= GDS_MOST_FAILURES) {
                g->failures = 0;
                g->not_before = gds_now() + GDS_TRY_AGAIN_S * INT64_C(1000000000);
        }
}

/* --- files --- */

void gds_file_close(struct gds *g, struct gds_file *file)
{
        if (file->handle) {
                g->cufile.handle_deregister(file->handle);
                g->counts.files--;
        }
        closep(&file->fd);
        *file = (struct gds_file){ .fd = -1 };
}

/* Returns a table entry for another file: one of a session that has ended, or else the entry
 * that was unused for longest; NULL if all are in use. */
static struct gds_file *gds_file_place(struct gds *g, uint64_t session)
{
        struct gds_file *best = NULL;

        for (unsigned i = 0; i < GDS_FILES; i++) {
                struct gds_file *file = &g->files[i];

                if (file->users > 0)
                        continue;
                if (file->session != session)
                        gds_file_close(g, file);
                if (!best || file->used < best->used)
                        best = file;
        }
        if (best)
                gds_file_close(g, best);
        return best;
}

bool gds_file_register(struct gds *g, struct gds_file *file)
{
        struct cf_descriptor descriptor = { .type = CF_HANDLE_IS_FD, .handle.fd = file->fd };
        struct cf_error e = g->cufile.handle_register(&file->handle, &descriptor);

        if (e.error == CF_OK) {
                g->counts.files++;
                return true;
        }
        file->handle = NULL;
        file->error = e.error;
        file->try_again = gds_now() + GDS_TRY_AGAIN_S * INT64_C(1000000000);
        return false;
}

static bool gds_fd_is_direct(int fd)
{
        int flags = fcntl(fd, F_GETFL);

        return flags >= 0 && (flags & O_DIRECT);
}

struct gds_file *gds_file_acquire(struct gds *g, struct kvcache *kv,
                                  const struct kvcache_loan *loan,
                                  enum kvcache_gpu_gds_reason *ret_reason)
{
        struct gds_file *file = NULL;
        int r;

        for (unsigned i = 0; i < GDS_FILES && !file; i++)
                if (g->files[i].session == loan->session && g->files[i].number == loan->file)
                        file = &g->files[i];
        if (!file) {
                *ret_reason = KVCACHE_GPU_GDS_FILES;
                file = gds_file_place(g, loan->session);
                if (!file)
                        return NULL;
                *ret_reason = KVCACHE_GPU_GDS_FILE;
                r = kvcache_lent_file(kv, loan, &file->fd);
                if (r == 0 && !gds_fd_is_direct(file->fd))
                        r = -EINVAL;
                if (r < 0) {
                        g->counts.error = r;
                        closep(&file->fd);
                        return NULL;
                }
                file->session = loan->session;
                file->number = loan->file;
                (void)gds_file_register(g, file);
        } else if (!file->handle && gds_now() >= file->try_again) {
                (void)gds_file_register(g, file);
        }
        if (!file->handle) {
                *ret_reason = KVCACHE_GPU_GDS_HANDLE;
                g->counts.error = file->error;
                return NULL;
        }
        file->users++;
        file->used = ++g->uses;
        return file;
}

void gds_file_release(struct gds_file *file)
{
        file->users--;
}

/* --- opening and closing --- */

bool gds_is_usable(struct gds *g)
{
        return g->state == KVCACHE_GPU_GDS_NONE &&
               (g->not_before == 0 || gds_now() >= g->not_before);
}

static void gds_release(struct gds *g)
{
        gds_stop_threads(g);
        for (unsigned i = 0; i < GDS_FILES; i++)
                gds_file_close(g, &g->files[i]);
        if (g->is_registered)
                (void)g->cufile.buffer_deregister(gds_base(g));
        if (g->memory)
                (void)g->d->mem_free(g->memory);
        g->is_registered = false;
        g->memory = 0;
        g->bytes = 0;
        cufile_close(&g->cufile);
}

enum kvcache_gpu_gds_reason gds_open(struct gds *g, uint64_t bytes, bool must, char *ret_why)
{
        int error;

        g->state = cufile_open(&g->cufile, ret_why, &error);
        if (error != 0)
                g->counts.error = error;
        if (g->state != KVCACHE_GPU_GDS_NONE)
                return g->state;
        if (g->cufile.is_compatible && !must) {
                snprintf(ret_why, CUFILE_TEXT,
                         "cuFile would copy through host memory here: neither nvidia-fs nor P2P");
                g->state = KVCACHE_GPU_GDS_COMPATIBLE;
        } else if (!gds_open_memory(g, bytes, ret_why)) {
                g->state = KVCACHE_GPU_GDS_BUFFER;
        } else if (!gds_start_threads(g)) {
                snprintf(ret_why, CUFILE_TEXT, "the threads for cuFile's calls cannot be started");
                g->state = KVCACHE_GPU_GDS_BUFFER;
        }
        if (g->state != KVCACHE_GPU_GDS_NONE)
                gds_release(g);
        return g->state;
}

void gds_fini(struct gds *g)
{
        if (!g->d)
                return;
        gds_release(g);
        pthread_cond_destroy(&g->work);
        pthread_mutex_destroy(&g->lock);
        g->d = NULL;
}
