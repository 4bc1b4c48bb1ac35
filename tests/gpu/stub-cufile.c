/* SPDX-License-Identifier: Apache-2.0 */
/* The stub cuFile. Its one lock is released during a read or write.
 *
 * STUB_POOR: lacks a required function. For programs that cannot call the test functions,
 * $STUB_CUFILE has the arguments of fault(), "FUNCTION AFTER TIMES EVERY RESULT", and
 * $STUB_CUFILE_NVFS the version. */
#include "stub-cufile.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checked.h"
#include "gpu/cuda-api.h"
#include "gpu/cufile-api.h"

#define EXPORT __attribute__((visibility("default")))

enum { MAX_FAULTS = 16, MAX_BUFFERS = 16, INVALID_VALUE = 5022, NOT_OPEN = 5001 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct {
        const char *function;
        unsigned calls, after, times, every, seen;
        int result;
} faults[MAX_FAULTS];
static struct {
        const uint8_t *base;
        size_t bytes;
} buffers[MAX_BUFFERS];
static struct stub_cufile_live count;
static unsigned nvfs = 2, reading;
static bool held, is_open;

struct file {
        int fd;
};

/* --- faults --- */

static unsigned fault_of(const char *function)
{
        for (unsigned i = 0;; i++) {
                if (!faults[i].function)
                        faults[i].function = strdup(function);
                if (strcmp(faults[i].function, function) == 0)
                        return i;
        }
}

/* Returns whether this call fails; the caller holds the lock. */
static bool fails(const char *function, int *ret)
{
        unsigned i = fault_of(function);

        faults[i].calls++;
        if (faults[i].after > 0) {
                faults[i].after--;
                return false;
        }
        if (faults[i].times == 0 || ++faults[i].seen % faults[i].every != 0)
                return false;
        faults[i].times--;
        *ret = faults[i].result;
        return true;
}

EXPORT void stub_cufile_fault(const char *function, unsigned after, unsigned times, unsigned every,
                              int result);
EXPORT void stub_cufile_fault(const char *function, unsigned after, unsigned times, unsigned every,
                              int result)
{
        unsigned i;

        pthread_mutex_lock(&lock);
        i = fault_of(function);
        faults[i].after = after;
        faults[i].times = times;
        faults[i].every = every;
        faults[i].seen = 0;
        faults[i].result = result;
        pthread_mutex_unlock(&lock);
}

EXPORT unsigned stub_cufile_calls(const char *function);
EXPORT unsigned stub_cufile_calls(const char *function)
{
        unsigned n;

        pthread_mutex_lock(&lock);
        n = faults[fault_of(function)].calls;
        pthread_mutex_unlock(&lock);
        return n;
}

EXPORT void stub_cufile_live(struct stub_cufile_live *ret);
EXPORT void stub_cufile_live(struct stub_cufile_live *ret)
{
        pthread_mutex_lock(&lock);
        *ret = count;
        pthread_mutex_unlock(&lock);
}

EXPORT void stub_cufile_hold(bool on);
EXPORT void stub_cufile_hold(bool on)
{
        pthread_mutex_lock(&lock);
        held = on;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
}

EXPORT void stub_cufile_set_nvfs(unsigned version);
EXPORT void stub_cufile_set_nvfs(unsigned version)
{
        pthread_mutex_lock(&lock);
        nvfs = version;
        pthread_mutex_unlock(&lock);
}

EXPORT void stub_cufile_reset(void);
EXPORT void stub_cufile_reset(void)
{
        pthread_mutex_lock(&lock);
        for (unsigned i = 0; i < MAX_FAULTS; i++)
                faults[i].calls = faults[i].after = faults[i].times = faults[i].seen = 0;
        count.misaligned = count.misplaced = count.most_at_a_time = 0;
        nvfs = 2;
        held = false;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void take_environment(void)
{
        const char *text = getenv("STUB_CUFILE"), *version = getenv("STUB_CUFILE_NVFS");
        unsigned after, times, every;
        char function[64];
        int result;

        if (text &&
            sscanf(text, "%63s %u %u %u %d", function, &after, &times, &every, &result) == 5)
                stub_cufile_fault(function, after, times, every, result);
        if (version)
                nvfs = (unsigned)atoi(version);
}

/* --- cuFile --- */

#define X(member, name, is_needed, result, parameters) EXPORT result name parameters;
CF_FUNCTIONS(X)
#undef X

static struct cf_error leave(int error)
{
        pthread_mutex_unlock(&lock);
        return (struct cf_error){ error, 0 };
}

#define BEGIN()                                                                                    \
        do {                                                                                       \
                int error_;                                                                        \
                pthread_mutex_lock(&lock);                                                         \
                if (fails(__func__, &error_))                                                      \
                        return leave(error_);                                                      \
        } while (0)

struct cf_error cuFileDriverOpen(void)
{
        BEGIN();
        if (is_open)
                return leave(CF_DRIVER_ALREADY_OPEN);
        is_open = true;
        return leave(CF_OK);
}

struct cf_error cuFileDriverGetProperties(struct cf_properties *ret)
{
        BEGIN();
        *ret = (struct cf_properties){ .nvfs = { .major_version = nvfs } };
        return leave(is_open ? CF_OK : NOT_OPEN);
}

struct cf_error cuFileHandleRegister(cf_handle *ret, struct cf_descriptor *descriptor)
{
        struct file *file;
        struct stat st;
        int flags;

        BEGIN();
        flags = fcntl(descriptor->handle.fd, F_GETFL);
        if (!is_open || descriptor->type != CF_HANDLE_IS_FD || flags < 0 || !(flags & O_DIRECT))
                return leave(is_open ? INVALID_VALUE : NOT_OPEN);
        if (flags & (O_APPEND | O_NONBLOCK | O_NOFOLLOW | O_TMPFILE))
                return leave(5019); /* cuFile refuses these flags with this error */
        if (fstat(descriptor->handle.fd, &st) != 0 || st.st_nlink == 0)
                return leave(5031); /* cuFile opens the file again by its name, so it needs one */
        file = malloc(sizeof(*file));
        file->fd = descriptor->handle.fd;
        count.files++;
        *ret = file;
        return leave(CF_OK);
}

void cuFileHandleDeregister(cf_handle handle)
{
        struct file *file = handle;

        pthread_mutex_lock(&lock);
        if (fcntl(file->fd, F_GETFL) < 0) /* the caller closed the descriptor too early */
                abort();
        count.files--;
        free(file);
        pthread_mutex_unlock(&lock);
}

struct cf_error cuFileBufRegister(const void *base, size_t bytes, int flags)
{
        BEGIN();
        for (unsigned i = 0; i < MAX_BUFFERS; i++)
                if (!buffers[i].base) {
                        buffers[i].base = base;
                        buffers[i].bytes = bytes;
                        count.buffers++;
                        return leave(CF_OK);
                }
        return leave(5036);
}

#ifndef STUB_POOR
struct cf_error cuFileBufDeregister(const void *base)
{
        BEGIN();
        for (unsigned i = 0; i < MAX_BUFFERS; i++)
                if (buffers[i].base == base) {
                        buffers[i].base = NULL;
                        count.buffers--;
                        return leave(CF_OK);
                }
        return leave(INVALID_VALUE);
}
#endif

/* Returns the CPU's pointer to device memory, or NULL for other memory. */
static uint8_t *translate(const void *base, off_t offset, size_t bytes)
{
        static void *(*find)(uint64_t address);
        static cu_result (*current)(cu_context * ret);
        uint64_t at = (uint64_t)(uintptr_t)base + (uint64_t)offset;
        cu_context context = NULL;
        uint8_t *p;

        if (!find) {
                void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

                *(void **)&find = cuda ? dlsym(cuda, "stub_memory") : NULL;
                *(void **)&current = cuda ? dlsym(cuda, "cuCtxGetCurrent") : NULL;
        }
        if (!find || current(&context) != CU_OK || !context || bytes == 0)
                return NULL;
        p = find(at);
        return p && find(at + bytes - 1) == p + bytes - 1 ? p : NULL;
}

static bool is_registered(const void *base, off_t offset, size_t bytes)
{
        for (unsigned i = 0; i < MAX_BUFFERS; i++)
                if (buffers[i].base == base &&
                    range_within((uint64_t)offset, bytes, buffers[i].bytes))
                        return true;
        return false;
}

static ssize_t read_file(int fd, uint8_t *to, size_t bytes, off_t offset)
{
        void *page = aligned_alloc(4096, round_up(bytes, (size_t)4096));
        ssize_t n = pread(fd, page, bytes, offset);

        pthread_mutex_lock(&lock);
        while (held)
                pthread_cond_wait(&changed, &lock);
        reading--;
        pthread_mutex_unlock(&lock);
        if (n > 0)
                memcpy(to, page, (size_t)n);
        free(page);
        return n;
}

ssize_t cuFileRead(cf_handle handle, void *base, size_t bytes, off_t file_offset, off_t base_offset)
{
        const struct file *file = handle;
        uint8_t *to;
        int result = 0;
        bool failed;

        pthread_mutex_lock(&lock);
        failed = fails(__func__, &result);
        to = translate(base, base_offset, bytes);
        count.misaligned += file_offset % 4096 != 0 || bytes % 4096 != 0 || base_offset % 4096 != 0;
        count.misplaced += !to || (nvfs > 0 && !is_registered(base, base_offset, bytes));
        if (to && !failed) {
                memset(to, 0xcc, bytes);
                reading++;
                count.most_at_a_time = MAX(count.most_at_a_time, reading);
        }
        pthread_mutex_unlock(&lock);
        if (!to)
                return -5014;
        if (failed && result == -1)
                errno = EIO;
        if (failed) {
                memset(to, 0xcc, bytes);
                return result;
        }
        return read_file(file->fd, to, bytes, file_offset);
}

static ssize_t write_file(int fd, const uint8_t *from, size_t bytes, off_t offset)
{
        void *page = aligned_alloc(4096, round_up(bytes, (size_t)4096));
        ssize_t n;

        memset(page, 0xcc, bytes);
        /* A reader that does not wait for the write sees these bytes. The file keeps them if the
         * write is lost. */
        (void)!pwrite(fd, page, bytes, offset);
        pthread_mutex_lock(&lock);
        while (held)
                pthread_cond_wait(&changed, &lock);
        reading--;
        pthread_mutex_unlock(&lock);
        memcpy(page, from, bytes);
        n = pwrite(fd, page, bytes, offset);
        free(page);
        return n;
}

ssize_t cuFileWrite(cf_handle handle, const void *base, size_t bytes, off_t file_offset,
                    off_t base_offset)
{
        const struct file *file = handle;
        const uint8_t *from;
        int result = 0;
        bool failed;

        pthread_mutex_lock(&lock);
        failed = fails(__func__, &result);
        from = translate(base, base_offset, bytes);
        count.misaligned += file_offset % 4096 != 0 || bytes % 4096 != 0 || base_offset % 4096 != 0;
        count.misplaced += !from || (nvfs > 0 && !is_registered(base, base_offset, bytes));
        if (from && !failed) {
                reading++;
                count.most_at_a_time = MAX(count.most_at_a_time, reading);
        }
        pthread_mutex_unlock(&lock);
        if (!from)
                return -5014;
        if (failed && result == -1)
                errno = EIO;
        return failed ? result : write_file(file->fd, from, bytes, file_offset);
}
