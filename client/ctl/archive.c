/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a tar archive; see archive.h. */
#include "archive.h"

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "checked.h"

enum { BLOCK = 512 };

/* The header of a file, as POSIX.1-2017 defines it (pax, "ustar Interchange Format"). Numbers
 * are octal digits. */
struct header {
        char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type;
        char link[100], magic[6], version[2], user[32], group[32], device[16], prefix[155];
        char unused[12];
};

static_assert(sizeof(struct header) == BLOCK, "a header is one block");

/* Fills a field with the number's last octal digits and '\0'. */
static void put_octal(char *field, size_t bytes, uint64_t n)
{
        field[--bytes] = '\0';
        for (; bytes > 0; n >>= 3)
                field[--bytes] = (char)('0' + (n & 7));
}

/* Returns the sum of the header's bytes; the field of the checksum must hold blanks. */
static unsigned checksum(const struct header *h)
{
        const uint8_t *bytes = (const uint8_t *)h;
        unsigned sum = 0;

        for (size_t i = 0; i < sizeof(*h); i++)
                sum += bytes[i];
        return sum;
}

int archive_add(FILE *out, const char *name, const char *bytes, size_t length, time_t modified)
{
        static const char zeros[BLOCK];
        struct header h = { .type = '0', .magic = "ustar", .version = { '0', '0' } };

        if (strlen(name) >= sizeof(h.name))
                return -ENAMETOOLONG;
        if (length >= UINT64_C(1) << 33) /* 11 octal digits */
                return -EFBIG;
        memcpy(h.name, name, strlen(name));
        put_octal(h.mode, sizeof(h.mode), 0600);
        put_octal(h.uid, sizeof(h.uid), 0);
        put_octal(h.gid, sizeof(h.gid), 0);
        put_octal(h.size, sizeof(h.size), length);
        put_octal(h.mtime, sizeof(h.mtime), (uint64_t)MAX(modified, 0));
        memset(h.checksum, ' ', sizeof(h.checksum));
        put_octal(h.checksum, sizeof(h.checksum) - 1,
                  checksum(&h)); /* the last of the field's blanks remains behind the '\0' */
        fwrite(&h, sizeof(h), 1, out);
        fwrite(bytes, 1, length, out);
        fwrite(zeros, 1, (BLOCK - length % BLOCK) % BLOCK, out);
        return 0;
}

void archive_end(FILE *out)
{
        static const char zeros[2 * BLOCK];

        fwrite(zeros, sizeof(zeros), 1, out);
}
