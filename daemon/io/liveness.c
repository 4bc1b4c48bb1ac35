/* SPDX-License-Identifier: Apache-2.0 */
/* Creates the file at startup, on the loop thread. The kernel releases the lock once this process
 * has closed the file, or has died, and the last ring that registered it has ended its last I/O. */
#include "io/liveness.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "cleanup.h"

int liveness_open(struct liveness *ret)
{
        _cleanup_(closep) int locked =
                memfd_create("kvcache-liveness", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        _cleanup_(closep) int handout = -1;
        char path[64];

        if (locked < 0)
                return -errno;
        snprintf(path, sizeof(path), "/proc/self/fd/%d", locked);
        handout = open(path, O_RDONLY | O_CLOEXEC);
        if (handout < 0 || flock(locked, LOCK_EX | LOCK_NB) < 0 || fchmod(locked, 0400) < 0 ||
            fcntl(locked, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) <
                    0)
                return -errno;
        *ret = (struct liveness){ .locked_fd = TAKE_FD(locked), .handout_fd = TAKE_FD(handout) };
        return 0;
}

void liveness_close(struct liveness *l)
{
        closep(&l->locked_fd);
        closep(&l->handout_fd);
        *l = (struct liveness){ .locked_fd = -1, .handout_fd = -1 };
}
