/* SPDX-License-Identifier: Apache-2.0 */
/* CRC32C over memory. Any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* CRC32C (Castagnoli, reflected, initial and final inversion, as iSCSI), for what is small enough
 * to be done in place. */
uint32_t kio_crc32c(const void *data, size_t bytes);
uint32_t kio_crc32c_extend(uint32_t crc, const void *data, size_t bytes);
/* Copies, and extends `crc` by what came to lie at `to`. The target of a long copy is not in the
 * cache afterwards. */
uint32_t kio_copy_crc32c(uint32_t crc, void *to, const void *from, size_t bytes);
