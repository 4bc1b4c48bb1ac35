/* SPDX-License-Identifier: Apache-2.0 */
/* The memfd is sealed SHRINK|GROW|SEAL, so that no client can truncate it under this mapping; a
 * hole that one punches reads as zeros. The descriptor is not kept: the mapping is all that the
 * daemon needs.
 *
 * Counters only grow. A counter that went back adds nothing, and neither does an increase by more
 * keys than a client can look up in the time since the last reading; counting continues from the
 * new value. So a client that lies adds at most a key for each TALLY_PAGE_NS_PER_KEY of its
 * session, to the counts of its own namespaces. */
#include "lookup/tally-page.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"

enum { PAGE_BYTES = WIRE_TALLY_NAMESPACES * sizeof(struct wire_tally) };

int tally_page_open(struct tally_page *ret, uint64_t now_ns, int *ret_fd)
{
        _cleanup_(closep) int fd = memfd_create("kvcache-tally", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        _cleanup_(freep) struct wire_tally *seen = calloc(WIRE_TALLY_NAMESPACES, sizeof(*seen));
        void *counts;

        if (!seen)
                return -ENOMEM;
        if (fd < 0 || ftruncate(fd, PAGE_BYTES) < 0)
                return -errno;
        if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
                return -errno;
        counts = mmap(NULL, PAGE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
        if (counts == MAP_FAILED)
                return -errno;
        (void)madvise(counts, PAGE_BYTES, MADV_DONTDUMP);
        (void)madvise(counts, PAGE_BYTES, MADV_DONTFORK);
        *ret = (struct tally_page){
                .counts = counts,
                .seen = TAKE_PTR(seen),
                .read_ns = now_ns,
        };
        *ret_fd = TAKE_FD(fd);
        return 0;
}

void tally_page_close(struct tally_page *p)
{
        if (p->counts)
                munmap((void *)p->counts, PAGE_BYTES);
        free(p->seen);
        *p = (struct tally_page){ 0 };
}

void tally_page_read(struct tally_page *p, uint64_t now_ns)
{
        p->budget = (now_ns - MIN(p->read_ns, now_ns)) / TALLY_PAGE_NS_PER_KEY;
        p->read_ns = now_ns;
}

/* Loads the counter once: the next load may bring something else. */
static bool take(struct tally_page *p, const uint64_t *counter, uint64_t *seen, uint64_t *ret)
{
        uint64_t now = __atomic_load_n(counter, __ATOMIC_RELAXED);
        uint64_t more = now > *seen ? now - *seen : 0;
        bool is_possible = now >= *seen && more <= p->budget;

        *ret = MIN(more, p->budget);
        p->budget -= *ret;
        *seen = now;
        return is_possible;
}

bool tally_page_take(struct tally_page *p, unsigned number, struct tally_keys *ret)
{
        bool found, missing;

        if (!p->counts || number >= WIRE_TALLY_NAMESPACES) {
                *ret = (struct tally_keys){ 0 };
                return true;
        }
        found = take(p, &p->counts[number].found, &p->seen[number].found, &ret->found);
        missing = take(p, &p->counts[number].missing, &p->seen[number].missing, &ret->missing);
        return found && missing;
}
