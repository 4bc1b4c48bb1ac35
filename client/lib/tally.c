/* SPDX-License-Identifier: Apache-2.0 */
/* The session's tally; see tally.h.
 *
 * Runs in the handle's thread. Owns the mapping, which a child does not have after fork() and which
 * ends with the session: another daemon's tally begins at zero, and what this one's said has been
 * read by then, or ended with the daemon.
 *
 * Without a page, or with one that cannot be trusted to stay as large as it is, nothing is counted:
 * a lookup never fails for its count. */
#include "lib/tally.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { TALLY_BYTES = WIRE_TALLY_NAMESPACES * sizeof(struct wire_tally) };

int tally_map(struct tally *t, int fd)
{
        int seals = fcntl(fd, F_GET_SEALS);
        struct stat st;
        void *p;

        if (seals < 0 || !(seals & F_SEAL_SHRINK))
                return -EPERM;
        if (fstat(fd, &st) < 0)
                return -errno;
        if (st.st_size < TALLY_BYTES)
                return -EBADMSG;
        p = mmap(NULL, TALLY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED)
                return -errno;
        if (madvise(p, TALLY_BYTES, MADV_DONTFORK) < 0) {
                int r = -errno;

                munmap(p, TALLY_BYTES);
                return r;
        }
        t->counts = p;
        return 0;
}

void tally_fini(struct tally *t)
{
        if (t->counts)
                munmap(t->counts, TALLY_BYTES);
        t->counts = NULL;
}
