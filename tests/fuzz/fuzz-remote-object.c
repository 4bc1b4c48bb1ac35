/* SPDX-License-Identifier: Apache-2.0 */
/* Reads any bytes as the header of an object of the shared tier. They are refused with a reason, or
 * have the fields that were expected, and are encoded to the same bytes again. The first byte
 * chooses whether the checksum is corrected first, whether the expectation is taken from the
 * header, and whether the size of the object is known. */
#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <isa-l/crc.h>

#include "checked.h"
#include "remote/object.h"

enum { SEALED = 1, ASKED = 2, SIZED = 4, AT_CRC = 12, AT_GENERATION = 16, AT_KEY = 24, AT_ID = 56 };

static void check_chunk(const uint8_t *header, uint64_t size, const struct remote_object *want)
{
        struct remote_object o, again;
        uint8_t copy[REMOTE_HEADER_BYTES];

        if (remote_object_read(header, size, want, &o) != REMOTE_ACCEPTED)
                return;
        if (!key_equal(&o.key, &want->key) || o.generation != want->generation ||
            memcmp(&o.identity, &want->identity, sizeof(o.identity)) != 0 || o.length == 0 ||
            o.length > REMOTE_CHUNK_MAX ||
            (size != UINT64_MAX && size != REMOTE_HEADER_BYTES + (uint64_t)o.length))
                abort();
        remote_object_write(&o, copy);
        if (remote_object_read(copy, size, want, &again) != REMOTE_ACCEPTED ||
            again.length != o.length || again.crc != o.crc || again.created_ms != o.created_ms)
                abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
        uint64_t size = UINT64_MAX, generation = 0;
        struct remote_object want = { .generation = 1 };
        uint8_t *header;
        uint32_t crc;

        if (bytes < 9)
                return 0;
        header = calloc(1, REMOTE_HEADER_BYTES); /* a sanitizer detects reads beyond its end */
        if (!header)
                return 0;
        memcpy(header, data + 9, MIN(bytes - 9, (size_t)REMOTE_HEADER_BYTES));
        if (data[0] & SIZED)
                memcpy(&size, data + 1, sizeof(size));
        if (data[0] & SEALED) {
                memset(header + AT_CRC, 0, sizeof(crc));
                crc = htole32(~crc32_iscsi(header, REMOTE_HEADER_BYTES, ~UINT32_C(0)));
                memcpy(header + AT_CRC, &crc, sizeof(crc));
        }
        if (data[0] & ASKED) {
                memcpy(&want.generation, header + AT_GENERATION, sizeof(want.generation));
                want.generation = le64toh(want.generation);
                memcpy(&want.key, header + AT_KEY, sizeof(want.key));
                memcpy(&want.identity, header + AT_ID, sizeof(want.identity));
        }
        check_chunk(header, size, &want);
        if (remote_generation_read(header, size, &want.identity, &generation) == REMOTE_ACCEPTED &&
            generation == 0)
                abort();
        free(header);
        return 0;
}
