/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of memory. Any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Computes CRC32C: Castagnoli, reflected, initial and final inversion, as in iSCSI.
 * kio_crc32c_extend() continues from the result of an earlier call. */
uint32_t kio_crc32c(const void *data, size_t bytes);
uint32_t kio_crc32c_extend(uint32_t crc, const void *data, size_t bytes);
/* Copies `bytes` from `from` to `to`, and returns `crc` extended by the bytes as they are at
 * `to`. A copy of 16 KiB or more bypasses the processor's caches if the processor has the
 * instructions (stream.h), so that its target is not cached afterwards. */
uint32_t kio_copy_crc32c(uint32_t crc, void *to, const void *from, size_t bytes);
