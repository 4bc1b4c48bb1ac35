/* SPDX-License-Identifier: Apache-2.0 */
/* Maps sealed files; see sealed.h. Owns nothing. */
#include "lib/sealed.h"

#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "mapping.h"

void *sealed_map(int fd, uint64_t bytes, int seals, int prot)
{
        int has = fcntl(fd, F_GET_SEALS);
        struct stat st;
        void *p;

        if (has < 0 || (has & seals) != seals || fstat(fd, &st) < 0 || bytes == 0 ||
            bytes > SIZE_MAX / 2 || bytes % 4096 != 0 || st.st_size < 0 ||
            (uint64_t)st.st_size != bytes)
                return NULL;
        p = mapping_shared(fd, bytes, prot);
        if (p == MAP_FAILED)
                return NULL;
        if (madvise(p, bytes, MADV_DONTFORK) < 0) {
                munmap(p, bytes);
                return NULL;
        }
        (void)madvise(p, bytes, MADV_DONTDUMP);
        return p;
}
