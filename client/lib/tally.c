/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of lookups; see tally.h.
 *
 * Runs in the handle's thread. Owns the mapping, which a child does not inherit. The mapping ends
 * with the session: the daemon has read the counters by then, or has ended, and the counters of the
 * next session start at zero.
 *
 * Without a page, or if the page's file could shrink, nothing is counted, because a lookup must
 * not fail for lack of a counter. */
#include "lib/tally.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

int tally_map(struct tally *t, int fd)
{
        int seals = fcntl(fd, F_GET_SEALS);
        struct stat st;
        size_t bytes;
        void *p;

        if (seals < 0 || !(seals & F_SEAL_SHRINK))
                return -EPERM;
        if (fstat(fd, &st) < 0)
                return -errno;
        if (st.st_size < WIRE_TALLY_LOADS_OFFSET)
                return -EBADMSG;
        bytes = st.st_size < WIRE_TALLY_BYTES ? WIRE_TALLY_LOADS_OFFSET : WIRE_TALLY_BYTES;
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED)
                return -errno;
        if (madvise(p, bytes, MADV_DONTFORK) < 0) {
                int r = -errno;

                munmap(p, bytes);
                return r;
        }
        t->counts = p;
        t->bytes = bytes;
        if (bytes == WIRE_TALLY_BYTES)
                t->loads = (void *)((uint8_t *)p + WIRE_TALLY_LOADS_OFFSET);
        return 0;
}

void tally_fini(struct tally *t)
{
        if (t->counts)
                munmap(t->counts, t->bytes);
        *t = (struct tally){ 0 };
}
