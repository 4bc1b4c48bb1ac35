/* SPDX-License-Identifier: Apache-2.0 */
/* Reads structures of programs that were built against another header; see abi.h. */
#include "lib/abi.h"

#include <errno.h>

int abi_copy_in(void *to, size_t to_size, const void *from, size_t from_size)
{
        for (size_t i = to_size; i < from_size; i++)
                if (((const unsigned char *)from)[i] != 0)
                        return -E2BIG;
        memcpy(to, from, MIN(to_size, from_size));
        if (to_size > from_size)
                memset((char *)to + from_size, 0, to_size - from_size);
        return 0;
}
