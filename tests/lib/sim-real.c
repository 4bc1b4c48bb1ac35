/* SPDX-License-Identifier: Apache-2.0 */
/* Faults of real files, without a simulation: see sim_use_files(). */
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "sim-internal.h"

/* Finds the directory and the name of a file; or, with `file`, of a name in the directory `fd`.
 * Returns -1 if the directory is not under test. */
static int real_name(int fd, const char *file, char ret[static NAME_BYTES])
{
        char link[64], path[512];
        ssize_t n;

        snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
        n = sim.n_paths > 0 ? readlink(link, path, sizeof(path) - 1) : -1;
        if (n < 0)
                return -1;
        path[n] = '\0';
        for (unsigned i = 0; i < sim.n_paths; i++) {
                size_t length = strlen(sim.paths[i]);

                if (strncmp(path, sim.paths[i], length) != 0 ||
                    (path[length] != '\0' && path[length] != '/'))
                        continue;
                if (!file)
                        file = path[length] == '/' ? path + length + 1 : "directory";
                snprintf(ret, NAME_BYTES, "%s", file);
                return (int)i;
        }
        return -1;
}

/* Returns the fault. The lock is held. SIM_FAULT_END: nothing may happen after this operation. */
enum sim_fault sim_real_fault(const char *operation, int fd, const char *file, int *ret_error)
{
        char name[NAME_BYTES];
        int dir = sim.active ? -1 : real_name(fd, file, name);

        if (dir < 0)
                return SIM_FAULT_NONE;
        if (sim.die_after > 0 && --sim.die_after == 0)
                return SIM_FAULT_END;
        return sim.faults ? sim.faults(operation, (unsigned)dir, name, ret_error) : SIM_FAULT_NONE;
}

/* Ends the process. The lock is held. A thread other than the loop's stays here forever. */
_Noreturn void sim_real_end(void)
{
        bool is_loop = pthread_equal(pthread_self(), sim.loop);

        sim.ended = true;
        unlock();
        if (is_loop)
                sim.end();
        eventfd_write(sim.event_fd, 1);
        for (;;)
                pause();
}

/* Writes some sectors from the beginning, because other bytes for tearing are not available. */
void sim_real_tear(int fd, const void *buf, uint64_t bytes, uint64_t offset)
{
        uint64_t n = draw(bytes / SIM_SECTOR + 1) * SIM_SECTOR;

        if (n > 0 && __real_pwrite64(fd, buf, n, (off_t)offset) < 0)
                return; /* fewer sectors are written then */
}

void sim_use_files(const char *const *paths, unsigned n, void (*end)(void))
{
        assert(!sim.active && n <= DIRS);
        for (unsigned i = 0; i < n; i++)
                if (!realpath(paths[i], sim.paths[i]))
                        n = 0;
        sim.n_paths = n;
        sim.loop = pthread_self();
        sim.end = end;
        sim.ended = false;
        sim.die_after = 0;
        sim.faults = NULL;
        if (sim.event_fd < 0)
                sim.event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
}

void sim_end_if_due(void)
{
        bool ended;

        lock();
        ended = sim.ended;
        unlock();
        if (ended)
                sim.end();
}

enum sim_fault sim_fault_of(const struct kio_request *req, int *ret_error)
{
        enum sim_fault fault;

        if (req->op != KIO_WRITE && req->op != KIO_SYNC)
                return SIM_FAULT_NONE;
        lock();
        fault = sim_real_fault(req->op == KIO_WRITE ? "write" : "sync", req->fd, NULL, ret_error);
        if (fault == SIM_FAULT_END) {
                struct iovec pieces[KIO_PIECES_MAX + 1]; /* pieces of a vector, and a tail */

                if (req->op == KIO_WRITE && kio_rest(req, pieces) > 0)
                        sim_real_tear(req->fd, pieces[0].iov_base, pieces[0].iov_len,
                                      req->offset + req->progress);
                sim_real_end();
        }
        unlock();
        return fault;
}
