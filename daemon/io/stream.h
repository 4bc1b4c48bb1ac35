/* SPDX-License-Identifier: Apache-2.0 */
/* Copies that bypass the processor's caches and compute the CRC32C of the stored bytes. Any
 * thread; nothing is owned. Private to io/.
 *
 * A plain copy of a chunk first loads the target's lines into the cache, which evicts the lines
 * of other work, and a second pass for the checksum loads them again. Here each byte is loaded
 * once, folded into the checksum and stored from the same register. The checksum is therefore
 * that of the target, even if a client changes the source meanwhile. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum {
        STREAM_UNIT = 128,        /* bytes processed by one step */
        STREAM_ALIGNMENT = 32,    /* bytes; alignment that the target must have */
        STREAM_LEAST = 16 * 1024, /* a shorter copy should stay in the cache */
};

/* An implementation for one instruction set. copy_crc() requires `bytes` to be a positive multiple
 * of STREAM_UNIT and `to` to have STREAM_ALIGNMENT. Other threads see the target after they
 * synchronize with this one. `crc` is the state without the initial and final inversion, as in
 * libisal. */
struct stream_way {
        const char *name;
        uint32_t (*copy_crc)(uint32_t crc, void *to, const void *from, size_t bytes);
};

/* Returns implementation number `i` of those that this processor supports, the fastest first, or
 * NULL if there are fewer. */
const struct stream_way *stream_way(unsigned i);
