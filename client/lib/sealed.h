/* SPDX-License-Identifier: Apache-2.0 */
/* Maps memory that the daemon provides in a sealed file. */
#pragma once

#include <fcntl.h>
#include <linux/memfd.h>
#include <stdint.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

enum {
        SEALED_SIZE = F_SEAL_SEAL | F_SEAL_SHRINK, /* the file cannot be truncated */
        SEALED_READ_ONLY = SEALED_SIZE | F_SEAL_GROW | F_SEAL_FUTURE_WRITE,
};

/* Maps the whole file, which must have exactly `bytes` bytes and at least these seals; a child does
 * not inherit the mapping. The caller keeps the descriptor. Returns NULL if the file differs or
 * cannot be mapped, or `bytes` is 0 or no multiple of 4,096. */
void *sealed_map(int fd, uint64_t bytes, int seals, int prot);
