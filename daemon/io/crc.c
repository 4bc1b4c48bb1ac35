/* SPDX-License-Identifier: Apache-2.0 */
/* CRC32C over memory by libisal, which selects the fastest code for the processor.
 *
 * Any thread may call; nothing is owned. libisal's crc32_iscsi() does neither inversion and
 * takes an int as length; this module handles both. A long copy bypasses the caches (stream.h)
 * if the processor can. Other copies proceed in pieces that fit the second-level cache, so that the
 * checksum reads cached bytes of the copy, and each byte crosses the memory bus once. */
#include "io/crc.h"

#include <string.h>
#include <isa-l/crc.h>

#include "checked.h"
#include "io/stream.h"

enum { CRC_COPY_PIECE = 32 * 1024, CRC_MOST_AT_ONCE = 1 << 30 };

uint32_t kio_crc32c_extend(uint32_t crc, const void *data, size_t bytes)
{
        const unsigned char *p = data;

        crc = ~crc;
        while (bytes > 0) {
                size_t n = MIN(bytes, (size_t)CRC_MOST_AT_ONCE);

                /* crc32_iscsi() does not write to the buffer; its prototype merely lacks the
                 * const. */
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

static uint32_t copy_by_pieces(uint32_t crc, char *to, const char *from, size_t bytes)
{
        while (bytes > 0) {
                size_t n = MIN(bytes, (size_t)CRC_COPY_PIECE);

                memcpy(to, from, n);
                crc = kio_crc32c_extend(crc, to, n);
                to += n;
                from += n;
                bytes -= n;
        }
        return crc;
}

/* Returns the implementation for a long copy, or NULL if the copy is short or the processor has
 * none. Stores the bytes to copy before the first aligned one, and the bytes for the
 * implementation itself. */
static const struct stream_way *find_way(const void *to, size_t bytes, size_t *ret_head,
                                         size_t *ret_body)
{
        if (bytes < STREAM_LEAST)
                return NULL;
        *ret_head = round_up((uintptr_t)to, STREAM_ALIGNMENT) - (uintptr_t)to;
        *ret_body = round_down(bytes - *ret_head, STREAM_UNIT);
        return stream_way(0);
}

uint32_t kio_copy_crc32c(uint32_t crc, void *to, const void *from, size_t bytes)
{
        size_t head, body;
        const struct stream_way *way = find_way(to, bytes, &head, &body);
        const char *f = from;
        char *t = to;

        if (!way)
                return copy_by_pieces(crc, t, f, bytes);
        crc = copy_by_pieces(crc, t, f, head);
        crc = ~way->copy_crc(~crc, t + head, f + head, body);
        head += body;
        return copy_by_pieces(crc, t + head, f + head, bytes - head);
}
