/* SPDX-License-Identifier: Apache-2.0 */
/* Implements process.h. Asks the kernel at each call, except for the number of descriptors on
 * kernels where it has to be counted one by one. Cannot fail: an unavailable number is 0. */
#include "report/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

enum { COUNT_INTERVAL_NS = 1000000000 };

static void get_memory(struct process_stats *ret)
{
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), pages, resident;
        int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
        char text[128];
        ssize_t n;

        if (fd < 0)
                return;
        n = read(fd, text, sizeof(text) - 1);
        close(fd);
        if (n <= 0)
                return;
        text[n] = '\0';
        if (sscanf(text, "%" SCNu64 " %" SCNu64, &pages, &resident) == 2) {
                ret->virtual_bytes = pages * page;
                ret->resident_bytes = resident * page;
        }
}

static uint64_t count_fds(void)
{
        DIR *dir = opendir("/proc/self/fd");
        uint64_t n = 0;

        if (!dir)
                return 0;
        for (const struct dirent *entry; (entry = readdir(dir));)
                n += entry->d_name[0] != '.';
        closedir(dir);
        return n > 0 ? n - 1 : 0; /* less the descriptor that reads the directory */
}

/* Returns the number of open descriptors. Since Linux 6.2 it is the size of /proc/self/fd. Before,
 * the entries are counted at most once a second, which takes a millisecond for ten thousand. */
static uint64_t open_fds(void)
{
        static uint64_t counted, counted_ns; /* static, because only the loop thread uses them */
        struct stat st;

        if (stat("/proc/self/fd", &st) == 0 && st.st_size > 0)
                return (uint64_t)st.st_size;
        if (counted_ns == 0 || clock_mono_ns() - counted_ns >= COUNT_INTERVAL_NS) {
                counted = count_fds();
                counted_ns = clock_mono_ns();
        }
        return counted;
}

void process_get_stats(struct process_stats *ret)
{
        struct timespec cpu;
        struct rlimit files;

        *ret = (struct process_stats){ .open_fds = open_fds() };
        if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu) == 0)
                ret->cpu_ns = (uint64_t)cpu.tv_sec * 1000000000u + (uint64_t)cpu.tv_nsec;
        if (getrlimit(RLIMIT_NOFILE, &files) == 0)
                ret->max_fds = files.rlim_cur == RLIM_INFINITY ? UINT64_MAX : files.rlim_cur;
        get_memory(ret);
}
