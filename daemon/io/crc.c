/* SPDX-License-Identifier: Apache-2.0 */
/* CRC32C over memory, by libisal, which picks the processor's best way itself.
 *
 * Any thread may call; nothing is owned. libisal's crc32_iscsi() does neither inversion and takes
 * an int for the length; both are settled here. A copy goes in pieces that stay in the second-level
 * cache, so that the checksum reads what the copy has just written there and memory sees each byte
 * once. */
#include "io/crc.h"

#include <string.h>
#include <isa-l/crc.h>

#include "checked.h"

enum { CRC_COPY_PIECE = 32 * 1024, CRC_MOST_AT_ONCE = 1 << 30 };

uint32_t kio_crc32c_extend(uint32_t crc, const void *data, size_t bytes)
{
        const unsigned char *p = data;

        crc = ~crc;
        while (bytes > 0) {
                size_t n = MIN(bytes, (size_t)CRC_MOST_AT_ONCE);

                /* It does not write to the buffer; its prototype has only forgotten to say so. */
                crc = crc32_iscsi((unsigned char *)(uintptr_t)p, (int)n, crc);
                p += n;
                bytes -= n;
        }
        return ~crc;
}

uint32_t kio_crc32c(const void *data, size_t bytes)
{
        return kio_crc32c_extend(0, data, bytes);
}

uint32_t kio_copy_crc32c(uint32_t crc, void *to, const void *from, size_t bytes)
{
        unsigned char *t = to;
        const unsigned char *f = from;

        while (bytes > 0) {
                size_t n = MIN(bytes, (size_t)CRC_COPY_PIECE);

                memcpy(t, f, n);
                crc = kio_crc32c_extend(crc, t, n);
                t += n;
                f += n;
                bytes -= n;
        }
        return crc;
}
