/* SPDX-License-Identifier: Apache-2.0 */
/* Copies whose target goes past the caches, with the CRC32C of what is stored. Any thread; nothing
 * is owned. Private to io/.
 *
 * A plain copy of a chunk first reads the target's lines into the cache, and drives out what others
 * have there; a pass for the checksum then reads them again. Here each byte is loaded once, folded
 * into the checksum and stored from the same register, so that the checksum is that of what lies in
 * the target, whatever a client does to the source meanwhile. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum {
        STREAM_UNIT = 128,        /* bytes that a step takes */
        STREAM_ALIGNMENT = 32,    /* of the target */
        STREAM_LEAST = 16 * 1024, /* a shorter copy is rather wanted in the cache */
};

/* Of `bytes`, a multiple of STREAM_UNIT and not 0. Other threads see the target once they
 * synchronize with this one. `crc`: without the inversions, as libisal has it. */
struct stream_way {
        const char *name;
        uint32_t (*copy_crc)(uint32_t crc, void *to, const void *from, size_t bytes);
};

/* Number `i` of those that this processor can do, the quickest first; NULL: there are no more. */
const struct stream_way *stream_way(unsigned i);
