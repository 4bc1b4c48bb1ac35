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
 * `to`. A long copy bypasses the processor's caches, so that its target is not cached
 * afterwards. */
uint32_t kio_copy_crc32c(uint32_t crc, void *to, const void *from, size_t bytes);
