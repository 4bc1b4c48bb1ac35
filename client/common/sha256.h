/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 (FIPS 180-4), of a text that lies in memory as a whole. It names chunks; it guards no
 * secret. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32 };

void sha256(const void *data, size_t bytes, uint8_t ret[static SHA256_BYTES]);
