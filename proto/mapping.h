/* SPDX-License-Identifier: Apache-2.0 */
/* Maps a whole file shared, at an address where a huge page can begin, so that file memory in huge
 * pages is also mapped by huge pages. */
#pragma once

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>

enum { MAPPING_ALIGN = 2 << 20 };

/* Maps the file's first `bytes` bytes, a multiple of the page size and at most SIZE_MAX / 2.
 * Returns MAP_FAILED and sets errno on failure. munmap() ends the mapping as usual. */
static inline void *mapping_shared(int fd, uint64_t bytes, int prot)
{
        size_t room = bytes + MAPPING_ALIGN;
        char *begin, *at, *end;

        if (bytes < MAPPING_ALIGN)
                return mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);
        begin = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (begin == MAP_FAILED)
                return mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);
        at = begin + (-(uintptr_t)begin & (MAPPING_ALIGN - 1));
        end = at + bytes;
        if (mmap(at, bytes, prot, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
                int error = errno;

                munmap(begin, room);
                errno = error;
                return MAP_FAILED;
        }
        if (at > begin)
                munmap(begin, (size_t)(at - begin));
        if (end < begin + room)
                munmap(end, (size_t)(begin + room - end));
        return at;
}
