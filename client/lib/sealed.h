/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the daemon's in a sealed file, mapped here. */
#pragma once

#include <fcntl.h>
#include <linux/memfd.h>
#include <stdint.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

enum {
        SEALED_SIZE = F_SEAL_SEAL | F_SEAL_SHRINK, /* it cannot be cut off */
        SEALED_READ_ONLY = SEALED_SIZE | F_SEAL_GROW | F_SEAL_FUTURE_WRITE,
};

/* All of the file, which has so many bytes and at least these seals; a child of fork() does not
 * have it. The descriptor stays the caller's. NULL: it is another file, or cannot be mapped. */
void *sealed_map(int fd, uint64_t bytes, int seals, int prot);
