/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 of a text in memory, by libmd. It names chunks and protects no secret. */
#pragma once

#include <sha2.h>
#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = SHA256_DIGEST_LENGTH };

static inline void sha256(const void *data, size_t bytes, uint8_t ret[static SHA256_BYTES])
{
        SHA2_CTX context;

        SHA256Init(&context);
        if (bytes > 0)
                SHA256Update(&context, data, bytes);
        SHA256Final(ret, &context);
}
