/* SPDX-License-Identifier: Apache-2.0 */
/* A libcufile.so.0 in front of the real one, $CUFILE_REAL, for hosts where that works.
 * $CUFILE_FAIL, "FUNCTION EVERY RESULT", makes each EVERY-th call of the function fail with RESULT
 * without calling the real one. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/cufile-api.h"

#define X(member, name, is_needed, result, parameters)                                             \
        __attribute__((visibility("default"))) result name parameters;
CF_FUNCTIONS(X)
#undef X

static struct {
#define X(member, name, is_needed, result, parameters) result(*member) parameters;
        CF_FUNCTIONS(X)
#undef X
} real;
static char function[64];
static unsigned every, calls;
static int failure;

__attribute__((constructor)) static void load(void)
{
        const char *text = getenv("CUFILE_FAIL"), *path = getenv("CUFILE_REAL");
        void *dl = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;

        if (!dl) {
                fprintf(stderr, "CUFILE_REAL: %s\n", path ? dlerror() : "is not set");
                exit(1);
        }
#define X(member, name, is_needed, result, parameters) *(void **)&real.member = dlsym(dl, #name);
        CF_FUNCTIONS(X)
#undef X
        if (text && sscanf(text, "%63s %u %d", function, &every, &failure) != 3)
                every = 0;
}

static int fails(const char *name)
{
        return every > 0 && strcmp(name, function) == 0 &&
               __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) % every == 0;
}

#define FAIL()                                                                                     \
        do {                                                                                       \
                if (fails(__func__))                                                               \
                        return (struct cf_error){ failure, 0 };                                    \
        } while (0)

struct cf_error cuFileDriverOpen(void)
{
        FAIL();
        return real.driver_open();
}

struct cf_error cuFileDriverGetProperties(struct cf_properties *ret)
{
        FAIL();
        return real.get_properties(ret);
}

struct cf_error cuFileHandleRegister(cf_handle *ret, struct cf_descriptor *descriptor)
{
        FAIL();
        return real.handle_register(ret, descriptor);
}

void cuFileHandleDeregister(cf_handle handle)
{
        real.handle_deregister(handle);
}

struct cf_error cuFileBufRegister(const void *base, size_t bytes, int flags)
{
        FAIL();
        return real.buffer_register(base, bytes, flags);
}

struct cf_error cuFileBufDeregister(const void *base)
{
        return real.buffer_deregister(base);
}

ssize_t cuFileRead(cf_handle handle, void *base, size_t bytes, off_t file_offset, off_t base_offset)
{
        if (!fails(__func__))
                return real.read(handle, base, bytes, file_offset, base_offset);
        errno = EIO;
        return failure;
}

ssize_t cuFileWrite(cf_handle handle, const void *base, size_t bytes, off_t file_offset,
                    off_t base_offset)
{
        if (!fails(__func__))
                return real.write(handle, base, bytes, file_offset, base_offset);
        errno = EIO;
        return failure;
}
