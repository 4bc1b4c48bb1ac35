/* SPDX-License-Identifier: Apache-2.0 */
/* CRC32C over memory, by libisal, which picks the processor's best way itself.
 *
 * Any thread may call; nothing is owned. libisal's crc32_iscsi() does neither inversion and takes
 * an int for the length; both are settled here. A copy of some length goes past the caches
 * (stream.h), where the processor can. Else it goes in pieces that stay in the second-level cache,
 * so that the checksum reads what the copy has just written there and memory sees each byte once.
 */
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

/* Of a copy that is long enough: the bytes in front of those that a way takes, and as many of those
 * as there are. NULL: it is to be done without. */
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
