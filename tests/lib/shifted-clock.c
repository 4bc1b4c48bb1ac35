/* SPDX-License-Identifier: Apache-2.0 */
/* Shifts the wall clock of a process, for LD_PRELOAD: SHIFTED_CLOCK names a file of 8 bytes with
 * the shift in seconds, which a test may change at any moment. The monotonic clock stays as it is.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *shift;
static int (*real)(clockid_t which, struct timespec *ret);

__attribute__((constructor)) static void begin(void)
{
        const char *path = getenv("SHIFTED_CLOCK");
        int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *p = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*shift), PROT_READ, MAP_SHARED, fd, 0);

        *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
        if (p != MAP_FAILED)
                shift = p;
        if (fd >= 0)
                close(fd);
}

int clock_gettime(clockid_t which, struct timespec *ret)
{
        int r;

        if (!real)
                *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
        r = real(which, ret);
        if (r == 0 && shift && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE))
                ret->tv_sec += *shift;
        return r;
}
